//! Names and values of arguments.

#![allow(clippy::too_many_lines, reason = "a table is as long as it is")]

use super::{FN, check, check_argument, check_concurrent, unknown};
use crate::kind::AttributeKind;

#[test]
fn names() {
    let missing_prefix = "missing `prefix`, the counter's name: prefix = \"item\"";
    check("unit = Days, count = 1", FN, &[missing_prefix]);
    let named = "a value without a name comes before the named ones: write `name = value`";
    for (argument, expected) in [
        ("coun = 5", "unknown argument `coun`, did you mean `count`?"),
        ("Key = id", "unknown argument `Key`, did you mean `key`?"),
        ("limit = 5", "unknown argument `limit`, did you mean `count`?"),
        ("name = \"a\"", "unknown argument `name`, did you mean `prefix`?"),
        ("on_stroe_eror = Deny", "unknown argument `on_stroe_eror`, did you mean `on_store_error`?"),
        ("count = 2", "`count` is set twice"),
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
    for (argument, expected) in [
        ("blocking = true", "`blocking` has no value: write it alone"),
        ("blocking, blocking", "`blocking` is set twice"),
        ("bloking", "unknown argument `bloking`, did you mean `blocking`?"),
        (
            "blocking, key = \"id\"",
            "`key` is an expression, not a string: write key = id without quotes, or leave `key` out for one counter",
        ),
    ] {
        check(&format!("\"a\", 1, Days, 1, {argument}"), "fn f() {}", &[expected]);
        check(
            "\"b\", 1, Days, 1, key = 5",
            &format!("#[limit_concurrent_requests(\"a\", 1, {argument})] fn f() {{}}"),
            &[expected],
        );
    }
    // A misspelt argument counts as given, and may still be given.
    check("prefx = \"a\", unit = Days, count = 1", FN, &["unknown argument `prefx`, did you mean `prefix`?"]);
    check(
        "prefx = \"a\", prefix = \"a\", unit = Days, count = 1",
        FN,
        &["unknown argument `prefx`, did you mean `prefix`?"],
    );
    check("\"a\", ttl, Days, 1", FN, &["`ttl` needs a value: ttl = 1"]);
    check("\"a\", unit = Days, 100", FN, &[named]);
    // A value that is left out shifts the ones after it: one error.
    check("\"item\", Minutes, 100", FN, &["`unit` is `Milliseconds`, `Seconds`, `Minutes`, `Hours` or `Days`"]);
}

#[test]
fn values() {
    let plain = "`prefix` is a string in quotes, for example prefix = \"item\"";
    let long = format!("prefix = \"{}\", unit = Days, count = 1", "é".repeat(101));
    check(&long, FN, &["`prefix` is 202 bytes long, at most 200 are allowed"]);
    for (prefix, expected) in [
        ("\"a\"b", "`prefix` is a plain string: leave out the suffix"),
        ("b\"item\"", plain),
        ("f()", plain),
        ("%", "`prefix` needs an expression here: expected an expression"),
    ] {
        check(&format!("prefix = {prefix}, unit = Days, count = 1"), FN, &[expected]);
    }
    let units = "`unit` is `Milliseconds`, `Seconds`, `Minutes`, `Hours` or `Days`";
    for (unit, expected) in [
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
        ("ttl = 999999999999", "`ttl` is longer than 3,650 days"),
        ("ttl = \"1m\"", "`ttl` is a number of units: write period = \"1m\" in place of `ttl` and `unit`"),
        ("period = \"1m\"", "`unit` and `period` exclude each other: leave one of them out"),
        ("ttl = \"1\"", "`ttl` is an integer, for example ttl = 1"),
        ("key = id +", "`key` needs an expression here: unexpected end of input, expected an expression"),
        ("cost = -1", "`cost` must be at least 0, for example cost = 1"),
        ("on_limit = Wait(30)", "name the option: Wait(max = \"30s\")"),
        ("on_limit = Wait(true)", "name the option: Wait(max = \"30s\")"),
        ("on_limit = Wait[max = \"30s\"]", "options stand in parentheses: Wait(max = \"30s\")"),
        ("on_limit = Wait(max = 30)", duration),
        ("on_limit = Wait(max = \"30\")", duration),
        ("on_limit = Wait(max = \"s\")", duration),
        ("on_limit = Wait(max = \"\")", duration),
        ("on_limit = Wait(max = \"0s\")", "a duration must be greater than 0, for example \"30s\""),
        ("on_limit = Wait(max = \"999999999999999d\")", "this duration is too long, use a shorter one such as \"1d\""),
        ("on_limit = Wait(mx = \"1s\")", "unknown option `mx` of `Wait`, did you mean `max`?"),
        ("on_limit = Wait(max = \"1s\", max = \"1s\")", "`max` is set twice"),
        ("on_limit = Reject(max = \"1s\")", "`Reject` has no options, write it alone"),
        ("on_limit = Return()", takes),
        ("on_limit = Return(a, b)", "`Return` takes one value: Return((a, b))"),
        ("on_store_error = Explode", "unknown on_store_error `Explode`, expected `Local`, `Allow`, `Deny` or `Wait`"),
        ("on_store_error = Wait", "`Wait` needs its longest time: Wait(max = \"1m\")"),
        ("on_store_error = Wait(max = 60)", duration),
        ("on_store_error = Deny(max = \"1m\")", "`Deny` has no options, write it alone"),
        ("permit = self", permit),
        ("permit = mut", permit),
        ("crate = facade", path),
        ("crate = \"facade\"", path),
        ("shadow = 1", "`shadow` is `true` or `false`"),
        ("denial_cache = no", "`denial_cache` is `true` or `false`"),
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
        ("algorithm = TokenBucket(burst = 1.5)", "`burst` is an integer, for example burst = 1"),
        ("algorithm = TokenBucket(queue = 5)", "unknown option `queue` of `TokenBucket`, expected `burst` or `refill`"),
        ("algorithm = TokenBucket(200)", "name the option: TokenBucket(burst = 200)"),
        ("algorithm = TokenBucket(\"200\")", "name the option: TokenBucket(burst = 200)"),
        ("algorithm = TokenBucket { burst: 5 }", "options stand in parentheses: TokenBucket(burst = 200)"),
        ("algorithm = TokenBucket(refill = 5)", "`refill` is `Greedy` or `Interval`"),
        ("algorithm = LeakyBucket()", "`LeakyBucket` needs to know how many may wait: LeakyBucket(queue = 50)"),
        ("algorithm = LeakyBucket(queue = -1)", "`queue` must be at least 0, for example queue = 1"),
        ("algorithm = SlidingWindow(buckets = 1001)", "`buckets` must be at most 1000, for example buckets = 60"),
        ("algorithm = SlidingWindow(weighted = 0)", "`weighted` is `true` or `false`"),
        (
            "algorithm = SlidingWindow(burst = 5)",
            "unknown option `burst` of `SlidingWindow`, expected `buckets` or `weighted`",
        ),
        ("algorithm = TokenBucket(refill = Intervall)", "unknown refill `Intervall`, did you mean `Interval`?"),
        ("prefetch = 5, algorithm = SlidingLog", "`prefetch` needs `algorithm = FixedWindow`, not `SlidingLog`"),
        ("cost = Elapsed", "`Elapsed` needs `algorithm = SlidingLog`, not `FixedWindow`"),
        ("ban = \"50d\"", "`ban` must be at most \"49d\", for example ban = \"10m\""),
        ("ban = \"0s\"", "a duration must be greater than 0, for example \"30s\""),
        ("ban = \"1m\", on_limit = Wait", "`ban` refuses, and `on_limit = Wait` waits: remove one of them"),
        (
            "ban = \"1m\", on_limit = Wait(max = \"1s\")",
            "`ban` refuses, and `on_limit = Wait` waits: remove one of them",
        ),
        (
            "ban = \"1m\", algorithm = LeakyBucket(queue = 1)",
            "`ban` needs another algorithm than `LeakyBucket`, whose slots cannot be taken back",
        ),
        (
            "ban = \"1m\", prefetch = 5",
            "`ban` and `prefetch` exclude each other: prefetched permits would be granted during a ban",
        ),
        ("ban = \"1m\", shadow = true", "`ban` and `shadow` exclude each other: a rule in shadow mode refuses nothing"),
    ] {
        check_argument(argument, &[expected]);
    }
}

/// A string as a key is the habit from other languages, and one counter for all callers.
#[test]
fn keys() {
    let error = |key: &str| {
        format!(
            "`key` is an expression, not a string: write key = {key} without quotes, or leave `key` out for one counter"
        )
    };
    for (key, expected) in [
        ("\"req.seller_id\"", error("req.seller_id")),
        ("\"#req.sellerId\"", error("user_id")),
        ("\"a user\"", error("user_id")),
        ("\"\"", error("user_id")),
        ("&\"id\"", error("& id")),
        ("(\"id\")", error("id")),
        ("(\"id\", &(\"name\"))", error("(id , & (name))")),
    ] {
        check_argument(&format!("key = {key}"), &[&expected]);
        check_concurrent(&format!("\"a\", 3, key = {key}"), FN, &[&expected]);
    }
    for key in ["(\"seller\", id)", "id", "format!(\"{id}\")", "5", "\"id\".len()"] {
        check_argument(&format!("key = {key}"), &[]);
    }
}

/// An expression may begin with the name of an argument.
#[test]
fn expressions_that_begin_with_a_name() {
    for args in [
        "\"a\", ttl(), Days, count.get()",
        "\"a\", ttl + 1, Days, count(5)",
        "\"a\", 1, Days, count as u64",
        "r#prefix = \"a\", r#ttl = 1, unit = Days, count = 5",
    ] {
        check(args, FN, &[]);
    }
    check("\"a\", 1, Days, count 5", FN, &["`count` needs a value: count = 100"]);
    check("\"a\", unit = Days, count(5)", FN, &["`count` needs a value: count = 100"]);
}

/// The body could not use the argument.
#[test]
fn a_permit_named_like_an_argument() {
    let hides = "`permit = b` hides the argument `b` from the body: choose another name";
    for arguments in ["a: u8, b: u8", "(a, [b, ..]): (u8, [u8; 2])", "&self, S { x: b, .. }: S"] {
        check("\"a\", 1, Days, 1, permit = b", &format!("async fn f({arguments}) -> R {{}}"), &[hides]);
        check("\"a\", 1, Days, 1, permit = b", &format!("impl S {{ async fn f({arguments}) -> R {{}} }}"), &[hides]);
        check("\"a\", 1, Days, 1, permit = c", &format!("async fn f({arguments}) -> R {{}}"), &[]);
    }
}

/// Differences of `#[limit_concurrent_requests]`.
#[test]
fn of_limit_concurrent_requests() {
    let order = "only `prefix` and `count` go without a name, in this order: write `name = value`";
    check_concurrent("\"a\", 3, id", FN, &[order]);
    let unknown = |word: &str| unknown(word, AttributeKind::Places);
    let duration = "expected a duration in quotes: \"250ms\", \"30s\", \"5m\", \"2h\" or \"1m30s\"";
    for (argument, expected) in [
        ("ttl = 1", &*unknown("ttl")),
        ("unit = Minutes", &unknown("unit")),
        ("algorithm = SlidingLog", &unknown("algorithm")),
        ("cost = Elapsed", &unknown("cost")),
        ("shadow = true", &unknown("shadow")),
        ("count = 2", "`count` is set twice"),
        ("lease", "`lease` needs a value: lease = \"30s\""),
        ("lease = 30s", duration),
        ("period = \"1m\"", &unknown("period")),
        ("lease = \"30\"", duration),
        ("lease = \"0s\"", "a duration must be greater than 0, for example \"30s\""),
        ("lease = \"999ms\"", "`lease` must be at least \"1s\", for example lease = \"30s\""),
        ("lease = \"1d1ms\"", "`lease` must be at most \"1d\", for example lease = \"30s\""),
        ("on_limit = Wiat", "unknown on_limit `Wiat`, did you mean `Wait`?"),
        ("on_limit = Wait(\"5s\")", "name the option: Wait(max = \"5s\")"),
        ("skip", "`skip` stands alone: #[limit_concurrent_requests(skip)]"),
    ] {
        check_concurrent(&format!("\"a\", 3, {argument}"), FN, &[expected]);
    }
    check_concurrent("skip, 3", FN, &["`skip` stands alone: #[limit_concurrent_requests(skip)]"]);
    for lease in ["\"1s\"", "\"1d\"", "\"999ms1ms\"", "\"12h\"", "LEASE", "Duration::from_secs(60)"] {
        check_concurrent(&format!("\"a\", 3, lease = {lease}"), FN, &[]);
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

/// A period in one argument.
#[test]
fn periods() {
    let duration = "expected a duration in quotes: \"250ms\", \"30s\", \"5m\", \"2h\" or \"1m30s\"";
    let exclude = |name: &str| format!("`{name}` and `period` exclude each other: leave one of them out");
    for (arguments, expected) in [
        ("period = \"90s\"", &[] as &[String]),
        ("period = MINUTE, algorithm = SlidingWindow(buckets = 6)", &[]),
        ("period = Duration::from_secs(60)", &[]),
        ("period = 90", &[duration.into()]),
        ("period = \"90\"", &[duration.into()]),
        ("period = \"3651d\"", &["`period` is longer than 3,650 days".into()]),
        ("perod = \"90s\"", &["unknown argument `perod`, did you mean `period`?".into()]),
        ("period = \"90s\", ttl = 1", &[exclude("ttl")]),
        ("ttl = 1, unit = Days, period = \"90s\"", &[exclude("ttl"), exclude("unit")]),
        (
            "period = \"7ms\", algorithm = SlidingWindow(buckets = 6)",
            &["7 milliseconds can't be divided into 6 equal buckets, for example buckets = 7".into()],
        ),
    ] {
        let expected: Vec<_> = expected.iter().map(String::as_str).collect();
        check(&format!("prefix = \"a\", count = 5, {arguments}"), FN, &expected);
    }
    let twice =
        "a limit above has the same counter, which each call would charge twice: give this one another `prefix`";
    for (first, second, expected) in [
        ("period = \"90s\"", "ttl = 90, unit = Seconds", &[twice] as &[_]),
        ("period = MINUTE", "period = MINUTE", &[twice]),
        ("period = MINUTE", "period = \"1m\"", &[]),
        ("ttl = N, unit = Minutes", "ttl = N, unit = Minutes", &[twice]),
    ] {
        let item = format!("#[limit_request_per_time(prefix = \"a\", count = 5, {second})] {FN}");
        check(&format!("prefix = \"a\", count = 5, {first}"), &item, expected);
    }
}

/// The rule has its numbers itself.
#[test]
fn a_constant_rule() {
    let part =
        |name: &str| format!("`{name}` is a part of the rule: leave it out beside `rule`, or change the constant");
    for (arguments, parts) in [
        ("rule = ORDERS", &[] as &[&str]),
        ("rule = rules::ORDERS.with_shadow(true), cost = 5, on_limit = Wait, permit = p", &[]),
        ("rule = Self::RULE, key = id, on_missing_key = Deny, on_store_error = Deny, limiter = l, crate = ::a", &[]),
        ("rule = ORDERS, cost = Elapsed(max = \"5s\")", &[]),
        ("rule = ORDERS, cost = Settled(max = 5, |o| 5)", &[]),
        ("\"a\", 1, Days, 5, rule = ORDERS", &["prefix", "ttl", "unit", "count"]),
        ("\"a\", rule = ORDERS, ttl = 5", &["prefix", "ttl"]),
        ("rule = ORDERS, algorithm = SlidingLog, cost = Elapsed", &["algorithm"]),
        ("rule = ORDERS, ttl = 1, period = \"1m\"", &["ttl", "period"]),
        ("rule = ORDERS, prefetch = 1, denial_cache = true, shadow = false", &["prefetch", "denial_cache", "shadow"]),
    ] {
        let expected: Vec<_> = parts.iter().map(|name| part(name)).collect();
        check(arguments, FN, &expected.iter().map(String::as_str).collect::<Vec<_>>());
    }
    for (arguments, parts) in [
        ("rule = EXPORTS, key = id, permit = p", &[] as &[&str]),
        ("\"a\", 3, rule = EXPORTS, lease = \"1m\"", &["prefix", "count", "lease"]),
    ] {
        let expected: Vec<_> = parts.iter().map(|name| part(name)).collect();
        check_concurrent(arguments, FN, &expected.iter().map(String::as_str).collect::<Vec<_>>());
    }
    let literal = "`rule` is a constant of the type `Rule`, which has the prefix and the numbers: rule = ORDERS";
    for rule in ["\"orders\"", "100"] {
        check(&format!("rule = {rule}"), FN, &[literal]);
    }
    check("rule =", FN, &["`rule` needs a value: rule = ORDERS"]);
    check("rule = A, rule = B, key = id", FN, &["`rule` is set twice"]);
    check("rul = ORDERS", FN, &["unknown argument `rul`, did you mean `rule`?"]);
    let twice = "a limit above has the same counter, which each call would charge twice: give this one another `rule`";
    let second = |arguments: &str| format!("#[limit_request_per_time({arguments})] {FN}");
    check("rule = ORDERS", &second("rule = ORDERS"), &[twice]);
    check("rule = ORDERS, key = id", &second("rule = ORDERS, key = id"), &[twice]);
    for other in ["rule = ORDERS", "rule = OTHERS, key = id", "\"a\", 1, Days, 5, key = id"] {
        check("rule = ORDERS, key = id", &second(other), &[]);
    }
    let alone = "`LeakyBucket` stands alone: a function with it has no second rate limit";
    check("rule = ORDERS", &second("\"a\", 1, Days, 1, algorithm = LeakyBucket(queue = 1)"), &[alone]);
}
