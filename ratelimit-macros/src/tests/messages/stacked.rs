//! Several attributes on one function.

use super::{FN, check, check_concurrent, compile_errors};

#[test]
fn limits_per_time() {
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
        // The errors on a method of a limited block are the same.
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

/// Attributes of both names, in either order.
#[test]
fn with_concurrent_limits() {
    let once = |name: &str| format!("`{name}` holds for the whole call: give it on one of the stacked rate limits");
    let alone = |name: &str| format!("`{name}` stands alone: a function with it has no second rate limit");
    let permit = "`permit` and a closure of `Settled` exclude each other: leave the closure out, and let the body call permit.settle(..)";
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
        &["one closure settles the whole call: leave this one out, Settled(max = ..)"],
    );
    // One closure settles both limits.
    let held = "algorithm = SlidingLog, cost = Settled(max = 1)";
    let needs = "`Settled` needs what is held while the call runs, and a closure that says what was used: Settled(max = 4_000, |outcome| outcome.tokens()); or, without the closure, `permit = permit` for a body that calls permit.settle(tokens)";
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
    // Either name leaves a method out of the limits of both.
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
    // Any of the generated calls is found.
    let applied = "another rate limit is already applied to this function, under a different name or through `cfg_attr`: write every attribute as #[limit_request_per_time(..)] or #[limit_concurrent_requests(..)]";
    for call in ["limit_one", "limit_several", "permit_of_one", "permit_of_several"] {
        let body = |path: &str| format!("async fn f() -> R {{ let deciding = {path}::{call}(None); deciding.await }}");
        check("\"a\", 1, Days, 1", &body("::x::__private"), &[applied]);
        check_concurrent("\"a\", 1", &body("::x::__private"), &[applied]);
        check_concurrent("\"a\", 1", &body("::x::__public"), &[]);
    }
}

/// One counter, which a call would be charged for twice.
#[test]
fn one_counter_twice() {
    let twice =
        "a limit above has the same counter, which each call would charge twice: give this one another `prefix`";
    for (first, second) in [
        ("\"a\", 1, Minutes, 5", "\"a\", 1, Minutes, 50"),
        ("\"a\", 1, Minutes, 5, key = (a, b)", "prefix = \"a\", key = (a, b), unit = Minutes, count = 50"),
        ("\"a\", 60, Seconds, 5", "\"a\", 1, Minutes, 50, algorithm = FixedWindow(align = false), shadow = true"),
        ("A, TTL, Days, 5, algorithm = SlidingWindow", "A, TTL, Days, 9, algorithm = SlidingWindow(buckets = 1)"),
        (
            "A, 1, Days, 5, algorithm = SlidingWindow(weighted = false)",
            "A, 1, Days, 9, algorithm = SlidingWindow(weighted = false, buckets = 1)",
        ),
        ("\"a\", 1, Days, 5, algorithm = TokenBucket", "\"a\", 1, Days, 5, algorithm = TokenBucket(burst = 9)"),
    ] {
        check(first, &format!("#[limit_request_per_time({second})] {FN}"), &[twice]);
        check(
            first,
            &format!("impl S {{ #[limit_request_per_time({second})] {FN} async fn g() -> R {{}} }}"),
            &[twice],
        );
        check(
            first,
            &format!(
                "#[limit_request_per_time({second})] impl S {{ {FN} #[limit_request_per_time(\"b\", 1, Days, 1)] async fn g() -> R {{}} }}"
            ),
            &[twice],
        );
    }
    check_concurrent(
        "\"a\", 3, key = id",
        &format!("#[limit_concurrent_requests(\"a\", 5, key = id, lease = \"1m\")] {FN}"),
        &[twice],
    );
    for (first, second) in [
        ("\"a\", 1, Minutes, 5", "\"b\", 1, Minutes, 5"),
        ("\"a\", 1, Minutes, 5, key = from", "\"a\", 1, Minutes, 5, key = to"),
        ("\"a\", 1, Minutes, 5", "\"a\", 1, Hours, 50"),
        ("\"a\", 1, Minutes, 5", "\"a\", 1, Minutes, 5, algorithm = FixedWindow(align = true)"),
        (
            "\"a\", 1, Days, 5, algorithm = SlidingWindow(buckets = 2)",
            "\"a\", 1, Days, 5, algorithm = SlidingWindow(buckets = 2, weighted = false)",
        ),
        (
            "\"a\", 1, Days, 5, algorithm = TokenBucket(refill = Greedy)",
            "\"a\", 1, Days, 5, algorithm = TokenBucket(refill = Interval)",
        ),
    ] {
        check(first, &format!("#[limit_request_per_time({second})] {FN}"), &[]);
    }
    check("\"a\", 1, Minutes, 5, key = id", &format!("#[limit_concurrent_requests(\"a\", 5, key = id)] {FN}"), &[]);
}
