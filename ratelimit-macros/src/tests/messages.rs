//! What is said about each mistake, whole: one mistake, one error.

#![allow(clippy::too_many_lines, reason = "a table is as long as it is")]

use crate::expand::expand;
use crate::kind::AttributeKind;

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

/// The same for `#[limit_concurrent_requests]`.
fn check_concurrent(args: &str, item: &str, expected: &[&str]) {
    let (errors, _) = errors_of(AttributeKind::Concurrent, args, item);
    assert_eq!(errors, expected, "\n#[limit_concurrent_requests({args})]\n{item}\n");
}

/// One more argument after the required ones.
fn check_argument(argument: &str, expected: &[&str]) {
    let args = format!("prefix = \"item\", unit = Days, count = 1, {argument}");
    check(&args, FN, expected);
}

#[test]
fn names() {
    let missing_prefix = "missing `prefix`, the counter's name: prefix = \"item\"";
    let missing_unit = "missing `unit`, the unit of `ttl`: unit = Minutes";
    let missing_count = "missing `count`, how many calls are let through: count = 100";
    check("", FN, &[missing_prefix, missing_unit, missing_count]);
    check("unit = Days, count = 1", FN, &[missing_prefix]);
    let named = "a value without a name comes before the named ones: write `name = value`";
    let order = "only `prefix`, `ttl`, `unit` and `count` go without a name, in this order: write `name = value`";
    for (argument, expected) in [
        ("coun = 5", "unknown argument `coun`, did you mean `count`?"),
        ("Key = id", "unknown argument `Key`, did you mean `key`?"),
        ("on_stroe_eror = Deny", "unknown argument `on_stroe_eror`, did you mean `on_store_error`?"),
        (
            "colour = Red",
            "unknown argument `colour`, expected `prefix`, `ttl`, `unit`, `count`, `key`, `algorithm`, `cost`, `on_limit`, `on_store_error`, `on_missing_key`, `permit`, `limiter`, `prefetch`, `denial_cache`, `shadow` or `crate`",
        ),
        ("count = 2", "`count` is set twice"),
        ("key", "`key` needs a value: key = user_id"),
        ("key =", "`key` needs a value: key = user_id"),
        ("permit = , key = id", "`permit` needs a value: permit = permit"),
        ("on_limit: Wait", "`on_limit` needs a value: on_limit = Wait(max = \"30s\")"),
        ("shadow(true)", "`shadow` needs a value: shadow = false"),
        ("id", named),
        (", key = id", "expected an argument before this `,`"),
        ("ttl = 5 key = id", "expected `,` before the next argument"),
        ("prefetch = 1 1", "unexpected token, expected `,`"),
        ("skip", "`skip` stands alone: #[limit_request_per_time(skip)]"),
    ] {
        check_argument(argument, &[expected]);
    }
    check("skip, count = 1", FN, &["`skip` stands alone: #[limit_request_per_time(skip)]"]);
    check("\"item\", 1, Days, 100, id", FN, &[order]);
    // A suggestion counts as given, and the argument itself may still come.
    check("prefx = \"a\", unit = Days, count = 1", FN, &["unknown argument `prefx`, did you mean `prefix`?"]);
    check(
        "prefx = \"a\", prefix = \"a\", unit = Days, count = 1",
        FN,
        &["unknown argument `prefx`, did you mean `prefix`?"],
    );
    check("\"a\", ttl, Days, 1", FN, &["`ttl` needs a value: ttl = 1"]);
    check("\"a\", unit = Days, 100", FN, &[named]);
    // What was left out shifts the others: one error.
    check("\"item\", Minutes, 100", FN, &["`unit` is `Milliseconds`, `Seconds`, `Minutes`, `Hours` or `Days`"]);
}

#[test]
fn values() {
    let plain = "`prefix` is a string in quotes, for example prefix = \"item\"";
    let long = format!("prefix = \"{}\", unit = Days, count = 1", "é".repeat(101));
    check(&long, FN, &["`prefix` is 202 bytes long, at most 200 are allowed"]);
    for (prefix, expected) in [
        ("\"\"", "`prefix` must not be empty, it names the counter"),
        ("\"a\"b", "`prefix` is a plain string: leave out the suffix"),
        ("5", plain),
        ("b\"item\"", plain),
        ("f()", plain),
        ("%", "`prefix` needs an expression here: expected an expression"),
    ] {
        check(&format!("prefix = {prefix}, unit = Days, count = 1"), FN, &[expected]);
    }
    let units = "`unit` is `Milliseconds`, `Seconds`, `Minutes`, `Hours` or `Days`";
    for (unit, expected) in [
        ("Minuts", "unknown unit `Minuts`, did you mean `Minutes`?"),
        ("minutes", "unknown unit `minutes`, did you mean `Minutes`?"),
        ("TimeUnit::Hour", "unknown unit `Hour`, did you mean `Hours`?"),
        ("Weeks", "unknown unit `Weeks`, expected `Milliseconds`, `Seconds`, `Minutes`, `Hours` or `Days`"),
        ("\"minutes\"", "`unit` is a word, not a string: write `Minutes` without quotes"),
        ("60", units),
        ("\"fortnight\"", units),
    ] {
        check(&format!("prefix = \"a\", unit = {unit}, count = 1"), FN, &[expected]);
    }
    let at_least = "`count` must be at least 1, for example count = 1";
    for (count, expected) in [
        ("0", at_least),
        ("-5", at_least),
        ("1.5", "`count` is an integer, for example count = 1"),
        ("\"5\"", "`count` is an integer, for example count = 1"),
        ("5i8", "`count` counts in u64: leave out the suffix, for example count = 1"),
        ("99999999999999999999", "`count` is at most 18446744073709551615, for example count = 1"),
    ] {
        check(&format!("prefix = \"a\", unit = Days, count = {count}"), FN, &[expected]);
    }
    let duration = "expected a duration in quotes: \"250ms\", \"30s\", \"5m\", \"2h\" or \"1m30s\"";
    let permit = "`permit` is a name for the body: permit = permit";
    let path = "`crate` is a path that starts with `::`, `crate` or `$crate`: crate = ::ratelimit_runtime";
    let takes = "`Return` needs the value to return: Return(Ok(cached))";
    for (argument, expected) in [
        ("ttl = 0", "`ttl` must be at least 1, for example ttl = 1"),
        ("ttl = 999999999999", "`ttl` is longer than 3,650 days"),
        ("ttl = 3651", "`ttl` is longer than 3,650 days"),
        ("key = id +", "`key` needs an expression here: unexpected end of input, expected an expression"),
        ("cost = -1", "`cost` must be at least 0, for example cost = 1"),
        ("on_limit = Wiat", "unknown on_limit `Wiat`, did you mean `Wait`?"),
        ("on_limit = Wait(\"30s\")", "name the option: Wait(max = \"30s\")"),
        ("on_limit = Wait(30)", "name the option: Wait(max = 30)"),
        ("on_limit = Wait(max = 30)", duration),
        ("on_limit = Wait(max = \"30\")", duration),
        ("on_limit = Wait(max = \"s\")", duration),
        ("on_limit = Wait(max = \"\")", duration),
        ("on_limit = Wait(max = \"0s\")", "a duration must be greater than 0, for example \"30s\""),
        ("on_limit = Wait(max = \"999999999999999d\")", "this duration is too long, use a shorter one such as \"1d\""),
        ("on_limit = Wait(mx = \"1s\")", "unknown option `mx` of `Wait`, did you mean `max`?"),
        ("on_limit = Wait(max = \"1s\", max = \"1s\")", "`max` is set twice"),
        ("on_limit = Reject(max = \"1s\")", "`Reject` has no options, write it alone"),
        ("on_limit = Return", takes),
        ("on_limit = Return()", takes),
        ("on_limit = Return(a, b)", "`Return` takes one value: Return((a, b))"),
        ("on_store_error = Explode", "unknown on_store_error `Explode`, expected `Local`, `Allow` or `Deny`"),
        ("on_missing_key = Deny", "`on_missing_key` needs a `key` that may be missing: key = user_id"),
        ("permit = 5", permit),
        ("permit = self", permit),
        ("crate = facade", path),
        ("crate = \"facade\"", path),
        ("shadow = 1", "`shadow` is `true` or `false`"),
        ("denial_cache = no", "`denial_cache` is `true` or `false`"),
        ("prefetch = 0", "`prefetch` must be at least 1, for example prefetch = 1"),
        (
            "algorithm = Bucket",
            "unknown algorithm `Bucket`, expected `FixedWindow`, `SlidingLog`, `SlidingWindow`, `TokenBucket` or `LeakyBucket`",
        ),
        (
            "algorithm = Algorithm::Concurrent",
            "calls that run at once have an attribute of their own: #[limit_concurrent_requests(\"export\", 3)]",
        ),
        ("algorithm = FixedWindow(align = 1)", "`align` is `true` or `false`"),
        ("algorithm = SlidingLog(align = true)", "`SlidingLog` has no options, write it alone"),
        ("algorithm = LeakyBucket", "`LeakyBucket` needs to know how many may wait: LeakyBucket(queue = 50)"),
        ("algorithm = TokenBucket(burst = 0)", "`burst` must be at least 1, for example burst = 1"),
        ("algorithm = TokenBucket(burst = 1.5)", "`burst` is an integer, for example burst = 1"),
        ("algorithm = TokenBucket(queue = 5)", "unknown option `queue` of `TokenBucket`, expected `burst` or `refill`"),
        ("algorithm = TokenBucket(200)", "name the option: TokenBucket(burst = 200)"),
        ("algorithm = TokenBucket(refill = 5)", "`refill` is `Greedy` or `Interval`"),
        ("algorithm = LeakyBucket()", "`LeakyBucket` needs to know how many may wait: LeakyBucket(queue = 50)"),
        ("algorithm = LeakyBucket(queue = -1)", "`queue` must be at least 0, for example queue = 1"),
        ("algorithm = SlidingWindow(buckets = 0)", "`buckets` must be at least 1, for example buckets = 1"),
        ("algorithm = SlidingWindow(buckets = 1001)", "`buckets` must be at most 1000, for example buckets = 60"),
        ("algorithm = TokenBucket(refill = Intervall)", "unknown refill `Intervall`, did you mean `Interval`?"),
        ("prefetch = 5, algorithm = SlidingLog", "`prefetch` needs `algorithm = FixedWindow`, not `SlidingLog`"),
        ("cost = Elapsed", "`Elapsed` needs `algorithm = SlidingLog`, not `FixedWindow`"),
    ] {
        check_argument(argument, &[expected]);
    }
}

/// What is known only when the call ends.
#[test]
fn costs_of_the_end() {
    let needs = "`Settled` needs what is held while the call runs, and a closure that says what was used: Settled(max = 4_000, |outcome| outcome.tokens())";
    let one = "`Settled` takes one closure, and what is held by its name: max = 4_000";
    let duration = "expected a duration in quotes: \"250ms\", \"30s\", \"5m\", \"2h\" or \"1m30s\"";
    for (cost, expected) in [
        ("Elapsed(5)", "name the option: Elapsed(max = 5)"),
        ("Elapsed(max = 5)", duration),
        ("Elapsed(max = \"0s\")", "a duration must be greater than 0, for example \"30s\""),
        ("Elapsed(mx = \"5s\")", "unknown option `mx` of `Elapsed`, did you mean `max`?"),
        ("Elapsed(max = \"5s\", max = \"5s\")", "`max` is set twice"),
        ("Elapsed(max = \"1s1ms\")", "a `max` of 1001 ms never fits: with count = 1000 the largest is 1000 ms"),
        ("Elapsd(max = \"5s\")", "unknown cost `Elapsd`, did you mean `Elapsed`?"),
        ("Cost::Elapse", "unknown cost `Elapse`, did you mean `Elapsed`?"),
        ("Setled(max = 5, |o| 5)", "unknown cost `Setled`, did you mean `Settled`?"),
        ("Settled", needs),
        ("Settled()", needs),
        ("Settled(max = 5)", needs),
        ("Settled(|o| o.len())", needs),
        ("Settled(5, |o| o.len())", "name the option: Settled(max = 5)"),
        ("Settled(most, |o| o.len())", one),
        ("Settled(max = 5, |o| o.len(), |o| 5)", one),
        ("Settled(max = 5, max = 5, |o| 5)", "`max` is set twice"),
        ("Settled(most = 5, |o| 5)", "unknown option `most` of `Settled`, expected `max`"),
        ("Settled(max = 0, |o| 5)", "`max` must be at least 1, for example max = 1"),
        ("Settled(max = \"5s\", |o| 5)", "`max` is an integer, for example max = 1"),
        ("Settled(max = 1001, |o| 5)", "a `max` of 1001 never fits: with count = 1000 the largest is 1000"),
        (
            "Settled(max = 5, |o| 5), permit = permit",
            "`permit` and `Settled` exclude each other: the closure settles the permit, leave `permit` out",
        ),
    ] {
        check(&format!("\"a\", 1, Days, 1000, algorithm = SlidingLog, cost = {cost}"), FN, &[expected]);
    }
    for cost in [
        "Elapsed",
        "Cost::Elapsed(max = \"1s\",)",
        "Elapsed(max = \"1s\"), permit = permit",
        "Settled(max = 1_000, |o| 5)",
        "Settled(move |o: &R| o.len(), max = most(id),)",
        "Cost::Settled(max = const { N }, tokens)",
        "ELAPSED",
        "elapsed",
        "Elapsd::of(id)",
        "Elapsd(id).milliseconds()",
        "Elapsd { id }.milliseconds()",
    ] {
        check(&format!("\"a\", 1, Days, 1000, algorithm = SlidingLog, cost = {cost}"), FN, &[]);
    }
    check("\"a\", 1, Days, limit, algorithm = SlidingLog, cost = Elapsed(max = \"1h\")", FN, &[]);
    // Elsewhere, that is the mistake, whatever the numbers are.
    for (algorithm, word) in [
        ("FixedWindow", "FixedWindow"),
        ("SlidingWindow", "SlidingWindow"),
        ("TokenBucket", "TokenBucket"),
        ("LeakyBucket(queue = 1)", "LeakyBucket"),
    ] {
        for (name, cost) in [("Elapsed", "Elapsed(max = \"5s\")"), ("Settled", "Settled(max = 9, |o| 1)")] {
            let expected = format!("`{name}` needs `algorithm = SlidingLog`, not `{word}`");
            check(&format!("\"a\", 1, Days, 5, algorithm = {algorithm}, cost = {cost}"), FN, &[&expected]);
        }
    }
    check_argument(
        "algorithm = SlidingLogg, cost = Elapsed",
        &["unknown algorithm `SlidingLogg`, did you mean `SlidingLog`?"],
    );
}

/// What is different where calls at once are limited.
#[test]
fn concurrent() {
    let missing_prefix = "missing `prefix`, the counter's name: prefix = \"export\"";
    let missing_count = "missing `count`, how many calls may run at once: count = 3";
    check_concurrent("", FN, &[missing_prefix, missing_count]);
    check_concurrent("3", FN, &["`prefix` is a string in quotes, for example prefix = \"item\""]);
    let order = "only `prefix` and `count` go without a name, in this order: write `name = value`";
    check_concurrent("\"a\", 3, id", FN, &[order]);
    let all = "`prefix`, `count`, `key`, `lease`, `on_limit`, `on_store_error`, `on_missing_key`, `permit`, `limiter` or `crate`";
    let unknown = |word: &str| format!("unknown argument `{word}`, expected {all}");
    let duration = "expected a duration in quotes: \"250ms\", \"30s\", \"5m\", \"2h\" or \"1m30s\"";
    for (argument, expected) in [
        ("ttl = 1", &*unknown("ttl")),
        ("unit = Minutes", &unknown("unit")),
        ("algorithm = SlidingLog", &unknown("algorithm")),
        ("cost = Elapsed", &unknown("cost")),
        ("shadow = true", &unknown("shadow")),
        ("leas = \"30s\"", "unknown argument `leas`, did you mean `lease`?"),
        ("count = 2", "`count` is set twice"),
        ("lease", "`lease` needs a value: lease = \"30s\""),
        ("lease = 30", duration),
        ("lease = 30s", duration),
        ("lease = LEASE", duration),
        ("lease = \"30\"", duration),
        ("lease = \"0s\"", "a duration must be greater than 0, for example \"30s\""),
        ("lease = \"999ms\"", "`lease` must be at least \"1s\", for example lease = \"30s\""),
        ("lease = \"1d1ms\"", "`lease` must be at most \"1d\", for example lease = \"30s\""),
        ("on_limit = Wiat", "unknown on_limit `Wiat`, did you mean `Wait`?"),
        ("on_limit = Wait(\"5s\")", "name the option: Wait(max = \"5s\")"),
        ("on_missing_key = Deny", "`on_missing_key` needs a `key` that may be missing: key = user_id"),
        ("skip", "`skip` stands alone: #[limit_concurrent_requests(skip)]"),
    ] {
        check_concurrent(&format!("\"a\", 3, {argument}"), FN, &[expected]);
    }
    check_concurrent("\"a\", 0", FN, &["`count` must be at least 1, for example count = 1"]);
    check_concurrent("skip, 3", FN, &["`skip` stands alone: #[limit_concurrent_requests(skip)]"]);
    for lease in ["1s", "1d", "999ms1ms", "12h"] {
        check_concurrent(&format!("\"a\", 3, lease = \"{lease}\""), FN, &[]);
    }
    let below = "another attribute already made this function synchronous: write #[limit_concurrent_requests] above it";
    check_concurrent("\"a\", 3", "fn main() {}", &[below]);
    let unpacked = "fn f(__arg0: (u64, u64)) -> BoxFuture<R> { Box::pin(async move { let (id, b) = { let __arg0 = __arg0; __arg0 }; id }) }";
    let later = "has no value yet when the limit is checked, #[async_trait] takes the argument apart later: give the argument a name and take it apart in the body";
    check_concurrent("\"a\", b, key = id", unpacked, &[&format!("`id` {later}"), &format!("`b` {later}")]);
    check(
        "\"a\", 1, Days, 9, algorithm = SlidingLog, cost = Settled(max = id, |o| 5)",
        unpacked,
        &[&format!("`id` {later}")],
    );
}

/// Numbers that can't go together, where they are written down.
#[test]
fn numbers_against_each_other() {
    for (period, buckets, near) in [
        ("ttl = 1, unit = Milliseconds", 2, 1),
        ("ttl = 10, unit = Milliseconds", 4, 5),
        ("unit = Seconds", 7, 8),
        ("ttl = 7, unit = Seconds", 3, 2),
        ("ttl = 1, unit = Minutes", 999, 1_000),
        ("ttl = 997, unit = Milliseconds", 500, 997),
        ("ttl = 1009, unit = Milliseconds", 1_000, 1),
    ] {
        let args = |n| format!("prefix = \"a\", {period}, count = 1, algorithm = SlidingWindow(buckets = {n})");
        let (errors, found) = compile_errors(&args(buckets), FN);
        let [error] = &errors[..] else { panic!("{period}, {buckets}: {errors:?}") };
        let end = format!(" milliseconds can't be divided into {buckets} equal buckets, for example buckets = {near}");
        assert!(error.ends_with(&end), "{error}");
        assert_eq!(found, [buckets.to_string()]);
        check(&args(near), FN, &[]);
    }
    // What only rustc can tell.
    check("\"a\", TTL, Seconds, 1, algorithm = SlidingWindow(buckets = 7)", FN, &[]);
    check("\"a\", 1, Seconds, 1, algorithm = SlidingWindow(buckets = N)", FN, &[]);
    // One mistake is one error.
    let too_long = "`ttl` is longer than 3,650 days";
    check("\"a\", 4001, Days, 1, algorithm = SlidingWindow(buckets = 7)", FN, &[too_long]);

    for (algorithm, count, cost, said) in [
        ("FixedWindow", "5", 6, "count = 5 the largest is 5"),
        ("SlidingLog", "5", 6, "count = 5 the largest is 5"),
        ("SlidingWindow", "5", 6, "count = 5 the largest is 5"),
        ("TokenBucket", "5", 6, "count = 5 the largest is 5"),
        ("TokenBucket(burst = 9)", "5", 10, "burst = 9 the largest is 9"),
        ("TokenBucket(burst = 9)", "limit", 10, "burst = 9 the largest is 9"),
        ("LeakyBucket(queue = 9)", "limit", 11, "queue = 9 the largest is 10"),
        ("LeakyBucket(queue = 0)", "5", 2, "queue = 0 the largest is 1"),
    ] {
        let args = |cost| format!("\"a\", 1, Days, {count}, algorithm = {algorithm}, cost = {cost}");
        check(&args(cost), FN, &[&format!("a cost of {cost} never fits: with {said}")]);
        check(&args(cost - 1), FN, &[]);
    }
    check("\"a\", 1, Days, 5, cost = 6", FN, &["a cost of 6 never fits: with count = 5 the largest is 5"]);
    for unknown in [
        "\"a\", 1, Days, limit, cost = 6",
        "\"a\", 1, Days, 5, cost = weight",
        "\"a\", 1, Days, 5, algorithm = TokenBucket(burst = BURST), cost = 6",
        "\"a\", 1, Days, 5, algorithm = LeakyBucket(queue = 18446744073709551615), cost = 18446744073709551615",
    ] {
        check(unknown, FN, &[]);
    }
    // The limit is not known when the algorithm is not.
    let unknown = "unknown algorithm `TokenBuckt`, did you mean `TokenBucket`?";
    check("\"a\", 1, Days, 5, algorithm = TokenBuckt, cost = 6", FN, &[unknown]);
}

#[test]
fn places() {
    let expected = "expected an async function or an `impl` block";
    let sync = "only an async function can be limited: write `async fn`";
    let below = "another attribute already made this function synchronous: write #[limit_request_per_time] above it";
    let declaration =
        "a declaration has no body to limit: write the attribute on the implementation, or on a default body";
    let future = "this function returns a future, but does not end in the async block to limit: end it in `async move { .. }` or `Box::pin(async move { .. })`";
    for (item, expected) in [
        ("fn f() {}", sync),
        ("fn f() -> impl Fn() { move || async move {} }", sync),
        ("fn main() {}", below),
        ("#[::core::prelude::v1::test] fn f() { block_on(async {}) }", below),
        ("const fn f() {}", "a `const fn` can't wait for a limiter: make it an `async fn`"),
        ("async fn f();", declaration),
        ("fn f() -> impl Future<Output = R> { g() }", future),
        ("fn f() -> Pin<Box<dyn Future<Output = R> + Send>> { Box::pin(g()) }", future),
        ("fn f<'a>() -> BoxFuture<'a, R> { if a { async {}.boxed() } else { b() } }", future),
        ("pub struct S { f: fn() }", expected),
        ("enum E {}", expected),
        ("pub trait T { async fn f() {} }", expected),
        ("mod m {}", expected),
        ("type F = fn();", expected),
        ("const F: fn() = f;", expected),
        ("let x = f();", expected),
        ("", expected),
        ("impl S { fn f() {} }", "no async function in this `impl` block: nothing to limit"),
        ("impl S {}", "no async function in this `impl` block: nothing to limit"),
        (
            "impl S { fn g() {} #[limit_request_per_time(skip)] async fn f() {} }",
            "every async function of this `impl` block is skipped: nothing is limited",
        ),
        ("impl S { async fn f() {} fn g() -> BoxFuture<R> { h() } }", future),
        ("impl S { #[limit_request_per_time(\"a\", 1, Days, 1)] fn f() {} }", sync),
        (
            "async fn f() -> R { let charges = [::x::__private::charge()]; if ::x::__private::limit_request_per_time(&charges).await {} }",
            "another rate limit is already applied to this function, under a different name or through `cfg_attr`: write every attribute as #[limit_request_per_time(..)] or #[limit_concurrent_requests(..)]",
        ),
        (
            "fn f(__arg0: (u64, u64)) -> Pin<Box<dyn Future<Output = R>>> { Box::pin(async move { let (id, b) = { let __arg0 = __arg0; __arg0 }; id }) }",
            "`id` has no value yet when the limit is checked, #[async_trait] takes the argument apart later: give the argument a name and take it apart in the body",
        ),
    ] {
        check("\"a\", 1, Days, 1, key = (self.b, id)", item, &[expected]);
    }
    check("skip", FN, &["`skip` belongs on a method of an `impl` block that is limited itself"]);
}

#[test]
fn stacked() {
    let on_limit =
        "`on_limit` holds for all #[limit_request_per_time] of a call: give it on one of the stacked rate limits";
    let once = |name: &str| format!("`{name}` holds for the whole call: give it on one of the stacked rate limits");
    for (first, second, expected) in [
        ("on_limit = Wait", "on_limit = Wait", on_limit.into()),
        ("limiter = a", "limiter = a", once("limiter")),
        ("on_store_error = Deny", "on_store_error = Deny", once("on_store_error")),
        ("permit = a", "permit = b", once("permit")),
        (
            "crate = ::a",
            "crate = ::b",
            "`crate` differs between the rate limits of one function: they share one runtime".into(),
        ),
        (
            "key = id",
            "algorithm = LeakyBucket(queue = 1)",
            "`LeakyBucket` stands alone: a function with it has no second rate limit".into(),
        ),
        ("prefetch = 2", "key = id", "`prefetch` stands alone: a function with it has no second rate limit".into()),
        ("key = id", "colour = Red, coutn = 5, count = 2, shadow = 3", "`shadow` is `true` or `false`".into()),
    ] {
        let second = format!("#[limit_request_per_time(\"b\", 1, Days, 1, {second})]");
        let first_args = format!("\"a\", 1, Days, 1, {first}");
        let (errors, _) = compile_errors(&first_args, &format!("{second} {FN}"));
        assert_eq!(errors.last(), Some(&expected), "{first}; {second}");
        // On a method beside the block's own, too.
        let block = format!("impl S {{ async fn g() {{}} {second} {FN} }}");
        let (inside, _) = compile_errors(&first_args, &block);
        assert_eq!(inside, errors, "{first}; {second}");
    }
    check(
        "\"a\", 1, Days, 1",
        "#[limit_request_per_time = 5] async fn f() {}",
        &["write the arguments in parentheses: #[limit_request_per_time(..)]"],
    );
    check(
        "\"a\", 1, Days, 1",
        "impl S { #[limit_request_per_time(\"b\", 1, Days, 1)] #[limit_request_per_time(skip)] async fn f() {} async fn g() {} }",
        &["`skip` and another rate limit on one method contradict each other: remove one"],
    );
    check(
        "\"a\", 1, Days, 1, on_limit = Wait",
        "#[limit_request_per_time(\"b\", 1, Days, 1, on_limit = Wait)] impl S { async fn f() {} async fn g() {} }",
        &[on_limit],
    );
}

/// Of both names: either may stand first.
#[test]
fn stacked_with_concurrent() {
    let once = |name: &str| format!("`{name}` holds for the whole call: give it on one of the stacked rate limits");
    let alone = |name: &str| format!("`{name}` stands alone: a function with it has no second rate limit");
    let permit = "`permit` and `Settled` exclude each other: the closure settles the permit, leave `permit` out";
    let settled = "algorithm = SlidingLog, cost = Settled(max = 1, |o| 1)";
    let check_both = |per_time: &str, concurrent: &str, expected: &[&str]| {
        let (per_time, concurrent) = (format!("\"a\", 1, Days, 1, {per_time}"), format!("\"b\", 1, {concurrent}"));
        check(&per_time, &format!("#[limit_concurrent_requests({concurrent})] {FN}"), expected);
        check_concurrent(&concurrent, &format!("#[limit_request_per_time({per_time})] {FN}"), expected);
        check(&per_time, &format!("impl S {{ #[limit_concurrent_requests({concurrent})] {FN} }}"), expected);
        check_concurrent(&concurrent, &format!("impl S {{ #[limit_request_per_time({per_time})] {FN} }}"), expected);
    };
    check_both("on_limit = Wait", "on_limit = Wait(max = \"1s\")", &[]);
    check_both("on_limit = Return(Ok(refused))", "on_limit = Return(Err(refused))", &[]);
    for (per_time, concurrent, name) in [
        ("limiter = a", "limiter = b", "limiter"),
        ("on_store_error = Deny", "on_store_error = Allow", "on_store_error"),
        ("permit = a", "permit = b", "permit"),
    ] {
        check_both(per_time, concurrent, &[&once(name)]);
    }
    check_both("algorithm = LeakyBucket(queue = 1)", "key = id", &[&alone("LeakyBucket")]);
    check_both("prefetch = 2", "lease = \"2s\"", &[&alone("prefetch")]);
    check_both(settled, "permit = permit", &[permit]);
    check_both(settled, "key = id", &[]);
    check_concurrent(
        "\"a\", 1, on_limit = Wait",
        &format!("#[limit_concurrent_requests(\"b\", 1, on_limit = Reject)] {FN}"),
        &["`on_limit` holds for all #[limit_concurrent_requests] of a call: give it on one of the stacked rate limits"],
    );
    check(
        &format!("\"a\", 1, Days, 1, {settled}"),
        &format!("#[limit_request_per_time(\"b\", 1, Days, 1, {settled})] {FN}"),
        &["what was used is said once for the whole call: leave out this closure, Settled(max = ..)"],
    );
    // What was used is said once, and charged to both.
    let held = "algorithm = SlidingLog, cost = Settled(max = 1)";
    let needs = "`Settled` needs what is held while the call runs, and a closure that says what was used: Settled(max = 4_000, |outcome| outcome.tokens())";
    for (first, second, expected) in [(settled, held, &[] as &[_]), (held, settled, &[]), (held, held, &[needs])] {
        let (first, second) = (format!("\"a\", 1, Days, 1, {first}"), format!("\"b\", 1, Days, 1, {second}"));
        check(&first, &format!("#[limit_request_per_time({second})] {FN}"), expected);
        check(&first, &format!("impl S {{ #[limit_request_per_time({second})] {FN} }}"), expected);
    }
    check(
        &format!("\"a\", 1, Days, 1, {held}"),
        &format!(
            "#[limit_request_per_time(\"b\", 1, Days, 1, algorithm = SlidingLog, cost = Settled(max = 0, |o| 1))] {FN}"
        ),
        &["`max` must be at least 1, for example max = 1"],
    );
    check(
        "\"a\", 1, Days, 1",
        "#[limit_concurrent_requests = 5] async fn f() {}",
        &["write the arguments in parentheses: #[limit_concurrent_requests(..)]"],
    );
    // Either name leaves a method out of both.
    let contradict = "`skip` and another rate limit on one method contradict each other: remove one";
    let nothing = "every async function of this `impl` block is skipped: nothing is limited";
    for skip in ["limit_request_per_time", "limit_concurrent_requests"] {
        let block =
            |more: &str| format!("impl S {{ #[{skip}(skip)] {more} async fn f() {{}} async fn g() -> R {{}} }}");
        check("\"a\", 1, Days, 1", &block(""), &[]);
        check_concurrent("\"a\", 1", &block(""), &[]);
        check_concurrent("\"a\", 1", &block("#[limit_concurrent_requests(\"a\", 1)]"), &[contradict]);
        check_concurrent("\"a\", 1", &format!("impl S {{ #[{skip}(skip)] async fn f() {{}} }}"), &[nothing]);
    }
    let belongs = "`skip` belongs on a method of an `impl` block that is limited itself";
    check_concurrent("skip", FN, &[belongs]);
    // Found whatever was called.
    let applied = "another rate limit is already applied to this function, under a different name or through `cfg_attr`: write every attribute as #[limit_request_per_time(..)] or #[limit_concurrent_requests(..)]";
    for call in ["limit_request_per_time", "limit_requests_per_time", "hold_requests"] {
        let body = |path: &str| format!("async fn f() -> R {{ let deciding = {path}::{call}(None); deciding.await }}");
        check("\"a\", 1, Days, 1", &body("::x::__private"), &[applied]);
        check_concurrent("\"a\", 1", &body("::x::__private"), &[applied]);
        check_concurrent("\"a\", 1", &body("::x::__public"), &[]);
    }
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
            "only an async function can be limited: write `async fn`",
        ],
    );
}

#[test]
fn errors_are_drawn_at_their_token() {
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
        ("\"a\", 1, Days, 9, cost = Settled(max = 10, |o| 5)", FN, &["Settled"]),
        ("\"a\", 1, Days, 9, algorithm = SlidingLog, cost = Settled(max = 10, |o| 5)", FN, &["10"]),
        ("\"a\", 1, Days, 9, algorithm = SlidingLog, cost = Settled(most = 9)", FN, &["most"]),
        ("\"a\", 1, Days, 9, algorithm = SlidingLog, cost = Settled(max = 9), permit = p", FN, &["Settled"]),
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
