//! Messages of errors, in full. One mistake is one error.
//!
//! The crate's `tests/ui` shows errors in their place. Its cases are not repeated here.

mod arguments;
mod items;
mod numbers;
mod stacked;

use crate::args::names;
use crate::expand::expand;
use crate::kind::AttributeKind;
use crate::suggest::list;

fn errors_of(kind: AttributeKind, args: &str, item: &str) -> (Vec<String>, Vec<String>) {
    let tokens = expand(kind, args.parse().unwrap(), item.parse().unwrap());
    super::compile_errors(tokens).into_iter().unzip()
}

fn compile_errors(args: &str, item: &str) -> (Vec<String>, Vec<String>) {
    errors_of(AttributeKind::PerTime, args, item)
}

const FN: &str = "async fn f(id: u64) -> R {}";

fn check(args: &str, item: &str, expected: &[&str]) {
    let (errors, _) = compile_errors(args, item);
    assert_eq!(errors, expected, "\n#[limit_request_per_time({args})]\n{item}\n");
}

/// [`check`] for `#[limit_concurrent_requests]`.
fn check_concurrent(args: &str, item: &str, expected: &[&str]) {
    let (errors, _) = errors_of(AttributeKind::Places, args, item);
    assert_eq!(errors, expected, "\n#[limit_concurrent_requests({args})]\n{item}\n");
}

/// Checks an argument after the required ones.
fn check_argument(argument: &str, expected: &[&str]) {
    let args = format!("prefix = \"item\", unit = Days, count = 1, {argument}");
    check(&args, FN, expected);
}

/// The error about an argument that the attribute does not have.
fn unknown(word: &str, kind: AttributeKind) -> String {
    format!("unknown argument `{word}`, expected {}", list(&names(kind), "or"))
}

#[test]
fn five_mistakes_are_five_errors() {
    check(
        "prefx = \"item\", ttl = \"1\", unit = Minuts, count = 0, count = 5, on_limit = Wait(mx = \"1s\", \"2s\")",
        FN,
        &[
            "unknown argument `prefx`, did you mean `prefix`?",
            "`ttl` is an integer, for example ttl = 1",
            "unknown unit `Minuts`, did you mean `Minutes`?",
            "`count` must be at least 1, for example count = 1",
            "`count` is set twice",
            "unknown option `mx` of `Wait`, did you mean `max`?",
            "name the option: Wait(max = \"2s\")",
        ],
    );
    check(
        "",
        "fn f() {}",
        &[
            "missing `prefix`, the counter's name: prefix = \"item\"",
            "missing `unit`, the unit of `ttl`: unit = Minutes",
            "missing `count`, how many calls are let through: count = 100",
            "this function is not async: write `async fn`, or add a word to the limit: #[limit_request_per_time(.., blocking)]",
        ],
    );
}

#[test]
fn errors_are_reported_at_their_token() {
    let valid = "\"a\", 1, Days, 1, key = id";
    for (args, item, tokens) in [
        (
            "prefx = \"item\", ttl = \"1\", unit = Time::Minuts, count = 0, count = 5, on_limit = Wait(\"2s\")",
            FN,
            &["prefx", "\"1\"", "Minuts", "0", "count", "\"2s\""] as &[_],
        ),
        ("\"a\", 1, Days, -5, shadow = true, permit = 7", FN, &["-5", "7"]),
        ("\"a\", 1, Days, 1, shadow = 1, prefetch = 0", FN, &["0", "1"]),
        ("\"a\", 1, Days, 1, on_limit = Wait(max = \"0s\", min = 5)", FN, &["\"0s\"", "min"]),
        ("\"a\", 1, Days, 1, algorithm = X::TokenBucket(burst = 0), key =", FN, &["0", "key"]),
        ("\"a\", 1, Days, 1, algorithm = X::LeakyBucket", FN, &["LeakyBucket"]),
        ("\"a\", 1, Days, 8, algorithm = SlidingWindow(buckets = 7), cost = 9", FN, &["7", "9"]),
        ("\"a\", 1, Days, 5, prefetch = 1 ~, crate = a::b", FN, &["a", "~"]),
        ("\"a\", 1, Days, 9, algorithm = TokenBucket, cost = Elapsed", FN, &["Elapsed"]),
        ("\"a\", 1, Days, 9, algorithm = SlidingLog, cost = Elapsed(max = \"1s\")", FN, &["\"1s\""]),
        ("\"a\", 1, Days, 9, algorithm = SlidingLog, cost = Cost::Elapsd", FN, &["Elapsd"]),
        ("\"a\", 1, Days, 9, cost = Settled(max = 10, |o| 5)", FN, &["10"]),
        ("\"a\", 1, Days, 9, prefetch = 2, cost = Settled(max = 9, |o| 5)", FN, &["prefetch"]),
        ("\"a\", 1, Days, 9, algorithm = LeakyBucket(queue = 9), cost = Settled(max = 5, |o| 5)", FN, &["Settled"]),
        ("\"a\", 1, Days, 9, algorithm = SlidingLog, cost = Settled(max = 10, |o| 5)", FN, &["10"]),
        ("\"a\", 1, Days, 9, algorithm = SlidingLog, cost = Settled(most = 9)", FN, &["most"]),
        ("\"a\", 1, Days, 9, algorithm = SlidingLog, cost = Settled(max = 9)", FN, &["Settled"]),
        ("\"a\", 1, Days, 9, algorithm = SlidingLog, cost = Settled(max = 9, f), permit = p", FN, &["permit"]),
        (valid, "#[limit_concurrent_requests(\"b\", 0, lease = \"5d\")] async fn f() {}", &["0", "\"5d\""]),
        (valid, "#[a::limit_concurrent_requests] async fn f() {}", &["limit_concurrent_requests"; 2]),
        (valid, "pub(crate) fn f() {}", &["fn"]),
        (valid, "pub const fn f() {}", &["const"]),
        (valid, "async fn f();", &["f"]),
        (valid, "#[derive(X)] pub struct S;", &["struct"]),
        (valid, "unsafe impl S {}", &["impl"]),
        (valid, "impl S { #[limit_request_per_time(skip, 1)] async fn f() {} }", &["skip"]),
        (valid, "#[a::limit_request_per_time] async fn f() {}", &["limit_request_per_time"; 3]),
        (
            "\"a\", 1, Days, 1, key = (0, a.id, b)",
            "fn f(__arg0: A) -> BoxFuture<R> { Box::pin(async { let A { id, b } = { let __arg0 = __arg0; __arg0 }; id }) }",
            &["b"],
        ),
    ] {
        let (errors, found) = compile_errors(args, item);
        let mut sorted = found.clone();
        sorted.sort();
        let mut expected = tokens.to_vec();
        expected.sort_unstable();
        assert_eq!(sorted, expected, "{args}\n{item}\n{errors:#?}");
    }
}
