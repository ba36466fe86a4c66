//! Costs that are known at the end, and literals that contradict each other.

use super::{FN, check, check_argument, compile_errors};

/// Costs that are known when the call ends.
#[test]
fn costs_known_at_the_end() {
    let needs = "`Settled` needs what is held while the call runs, and a closure that says what was used: Settled(max = 4_000, |outcome| outcome.tokens()); or, without the closure, `permit = permit` for a body that calls permit.settle(tokens)";
    let one = "`Settled` takes one closure, and what is held by its name: max = 4_000";
    let duration = "expected a duration in quotes: \"250ms\", \"30s\", \"5m\", \"2h\" or \"1m30s\"";
    for (cost, expected) in [
        ("Elapsed(5)", "name the option: Elapsed(max = \"5s\")"),
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
            "`permit` and a closure of `Settled` exclude each other: leave the closure out, and let the body call permit.settle(..)",
        ),
    ] {
        check(&format!("\"a\", 1, Days, 1000, algorithm = SlidingLog, cost = {cost}"), FN, &[expected]);
    }
    for cost in [
        "Elapsed",
        "Cost::Elapsed(max = \"1s\",)",
        "Elapsed(max = \"1s\"), permit = permit",
        "Settled(max = 1_000, |o| 5)",
        "Settled(max = 5), permit = permit",
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
    // With another algorithm, that is the error, whatever the numbers are.
    for (algorithm, word) in [
        ("FixedWindow", "FixedWindow"),
        ("SlidingWindow", "SlidingWindow"),
        ("TokenBucket", "TokenBucket"),
        ("LeakyBucket(queue = 1)", "LeakyBucket"),
    ] {
        let elapsed = format!("`Elapsed` needs `algorithm = SlidingLog`, not `{word}`");
        check(&format!("\"a\", 1, Days, 5, algorithm = {algorithm}, cost = Elapsed(max = \"5s\")"), FN, &[&elapsed]);
        let settled = match word {
            "LeakyBucket" => {
                "`Settled` needs `algorithm = FixedWindow, SlidingLog, SlidingWindow or TokenBucket`, not `LeakyBucket`"
            }
            _ => "a `max` of 9 never fits: with count = 5 the largest is 5",
        };
        check(&format!("\"a\", 1, Days, 5, algorithm = {algorithm}, cost = Settled(max = 9, |o| 1)"), FN, &[settled]);
    }
    let exclude = "`prefetch` and `Settled` exclude each other: prefetched permits can't be settled";
    check("\"a\", 1, Days, 5, prefetch = 2, cost = Settled(max = 3, |o| 1)", FN, &[exclude]);
    check_argument(
        "algorithm = SlidingLogg, cost = Elapsed",
        &["unknown algorithm `SlidingLogg`, did you mean `SlidingLog`?"],
    );
}

/// Literals that contradict each other.
#[test]
fn contradicting_literals() {
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
    // Constants are known to rustc only.
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
    ] {
        check(unknown, FN, &[]);
    }
    check(
        "\"a\", 1, Days, 5, algorithm = LeakyBucket(queue = 18446744073709551615), cost = 18446744073709551615",
        FN,
        &["`queue` is at most 52124994 for `LeakyBucket` and a period of 86400000 ms"],
    );
    // Without a valid algorithm the largest cost is not known.
    let unknown = "unknown algorithm `TokenBuckt`, did you mean `TokenBucket`?";
    check("\"a\", 1, Days, 5, algorithm = TokenBuckt, cost = 6", FN, &[unknown]);
}

/// The largest literals are those that the runtime accepts as constants.
#[test]
fn numbers_that_an_algorithm_can_store() {
    use ratelimit_runtime::__private::{rule, unchecked_rule, with_algorithm, with_algorithm_of_count};
    use ratelimit_runtime::{Algorithm, Refill, Rule};
    type Make<'a> = &'a dyn Fn(u64, u64) -> Rule;

    let made = |count, ms, algorithm| with_algorithm(unchecked_rule("a", count, ms, 1), algorithm);
    let algorithms: [(&str, &str, &str, Make); 8] = [
        ("count", "{n}", "FixedWindow", &|n, ms| rule("a", n, ms, 1)),
        ("count", "{n}", "SlidingLog", &|n, ms| made(n, ms, Algorithm::SlidingLog)),
        ("count", "{n}", "SlidingWindow", &|n, ms| {
            made(n, ms, Algorithm::SlidingWindow { buckets: 1, weighted: true })
        }),
        ("count", "{n}", "SlidingWindow(buckets = 4)", &|n, ms| {
            made(n, ms, Algorithm::SlidingWindow { buckets: 4, weighted: true })
        }),
        ("count", "{n}", "TokenBucket", &|n, ms| {
            let bucket = Algorithm::TokenBucket { burst: 0, refill: Refill::Greedy };
            with_algorithm_of_count(unchecked_rule("a", n, ms, 1), bucket)
        }),
        ("burst", "7", "TokenBucket(burst = {n})", &|n, ms| {
            made(7, ms, Algorithm::TokenBucket { burst: n, refill: Refill::Greedy })
        }),
        ("burst", "7", "TokenBucket(burst = {n}, refill = Interval)", &|n, ms| {
            made(7, ms, Algorithm::TokenBucket { burst: n, refill: Refill::Interval })
        }),
        ("queue", "7", "LeakyBucket(queue = {n})", &|n, ms| made(7, ms, Algorithm::LeakyBucket { queue: n })),
    ];
    let hour = 3_600_000;
    for ms in [
        4,
        1_000,
        200_000,
        200_004,
        60_000,
        hour,
        90 * hour,
        91 * hour,
        37 * 24 * hour,
        38 * 24 * hour,
        400 * 24 * hour,
    ] {
        for (name, count, algorithm, make) in algorithms {
            let fits = |n| std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| make(n, ms))).is_ok();
            let args = |n: u64| {
                let with = |text: &str| text.replace("{n}", &n.to_string());
                format!("\"a\", {ms}, Milliseconds, {}, algorithm = {}", with(count), with(algorithm))
            };
            let word = algorithm.split('(').next().unwrap_or_default();
            let (errors, _) = compile_errors(&args(1 << 60), FN);
            let [error] = &errors[..] else { panic!("{algorithm}, {ms} ms: {errors:?}") };
            let end = format!(" for `{word}` and a period of {ms} ms");
            let largest =
                error.strip_prefix(&format!("`{name}` is at most ")).and_then(|end_of| end_of.strip_suffix(&end));
            let largest: u64 = largest.expect(error).parse().unwrap();
            check(&args(largest), FN, &[]);
            check(&args(largest + 1), FN, &[error]);
            assert!(fits(largest) && !fits(largest + 1), "{algorithm}, {ms} ms: {largest}");
        }
    }
    // Constants are known to rustc only.
    check("\"a\", TTL, Days, 10_000_000, algorithm = SlidingLog", FN, &[]);
    check("\"a\", 1, Days, limit, algorithm = TokenBucket(burst = 1_000_000_000, refill = Interval)", FN, &[]);
}
