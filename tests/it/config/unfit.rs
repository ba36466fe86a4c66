//! Settings that do not fit the rule in the code, and the counter of such a rule.

use std::convert::Infallible;

use ratelimit_runtime::web::{Limit, RateLimitLayer};
use tower::{Layer as _, ServiceExt as _, service_fn};

use super::*;

/// A file that is wrong only together with the code leaves the last settings that were right.
#[tokio::test]
async fn settings_that_do_not_fit_the_code_leave_the_last_valid_ones() {
    const LARGE: &str = "[rules.item]\ncount = 4503599627370496";
    let code = Rule::new("item", 1000, MINUTE);
    let file = File::new("[rules.item]\ncount = 10\n[rules.item.keys]\nalice = { count = 20 }");
    let rules = Rules::watch(&file.path).unwrap();
    let limiter = Limiter::builder("memory://").rules(rules.clone()).build().await.unwrap();
    let limits = async || {
        let alice = limiter.peek(&code, "alice").await.unwrap().limit();
        (alice, limiter.peek(&code, "bob").await.unwrap().limit())
    };
    assert_eq!(limits().await, (20, 10));
    for wrong in [LARGE, "[rules.item]\nalgorithm = \"SlidingWindow\"\nbuckets = 999"] {
        file.write(&format!("{wrong}\n[rules.seen]"));
        eventually("the file is read", || async { rules.prefixes().len() == 2 }).await;
        assert_eq!(limits().await.1, 10, "{wrong}");
        file.write(wrong);
        eventually("the file is read", || async { rules.prefixes().len() == 1 }).await;
        assert_eq!(limits().await.1, 10, "{wrong}");
    }
    file.write("[rules.item]\ncount = 11");
    eventually("the file is read", || async { limits().await == (11, 11) }).await;
}

/// An algorithm that a call cannot use is an error, as an impossible rule is.
#[tokio::test]
async fn an_algorithm_that_does_not_fit_the_call_changes_nothing() {
    let limiter = with("[rules.log]\nalgorithm = \"TokenBucket\"\n[rules.item]\nalgorithm = \"LeakyBucket\"\nqueue = 5\n[rules.places]\nalgorithm = \"FixedWindow\"").await;
    let log = Rule::new("log", 5, MINUTE).with_algorithm(ratelimit_runtime::Algorithm::SlidingLog);
    let reservation = limiter.reserve(&log, "alice", 3).await.unwrap();
    reservation.settle(1).await.unwrap();
    let both = [(&ITEM, Key::new("alice"), 1), (&Rule::new("other", 5, MINUTE), Key::new("alice"), 1)];
    limiter.acquire_all(&both).await.unwrap();
    limiter.reserve(&ITEM, "dave", 1).await.unwrap().settle(0).await.unwrap();
    // A leaky bucket alone fits.
    let one = limiter.acquire(&ITEM, "bob").await.unwrap();
    let all = limiter.acquire_all(&[(&ITEM, Key::new("carol"), 1)]).await.unwrap();
    assert_eq!((all.limit(), all.remaining()), (one.limit(), one.remaining()));
    assert_ne!(all.limit(), ITEM.limit());
    let places = Rule::new("places", 1, MINUTE).with_algorithm(ratelimit_runtime::Algorithm::Concurrent);
    drop(limiter.acquire(&places, "alice").await.unwrap());
    limiter.acquire(&places, "alice").await.unwrap();
}

/// A lease that ends before it is renewed would admit further calls meanwhile.
#[tokio::test]
async fn a_lease_that_is_too_short_or_too_long_changes_nothing() {
    let places = Rule::new("places", 1, MINUTE).with_algorithm(ratelimit_runtime::Algorithm::Concurrent);
    for (time, is_used) in [
        ("ttl = 999, unit = \"Milliseconds\"", false),
        ("ttl = 1, unit = \"Seconds\"", true),
        ("ttl = 1, unit = \"Days\"", true),
        ("ttl = 25, unit = \"Hours\"", false),
    ] {
        let limiter = with(&format!("[rules]\nplaces = {{ count = 2, {time} }}")).await;
        let permit = limiter.acquire(&places, "alice").await.unwrap();
        assert_eq!(permit.limit(), if is_used { 2 } else { 1 }, "{time}");
    }
}

/// Also if the rule is only in the file: its earlier settings stay, and the log has one error.
#[tokio::test]
async fn a_leaky_bucket_beside_another_rule_is_one_error_and_changes_nothing() {
    let (log, _guard) = Log::install();
    let file = File::new("[rules.item]\ncount = 3\nunit = \"Minutes\"");
    let rules = Rules::watch(&file.path).unwrap();
    let limiter = Limiter::builder("memory://").rules(rules.clone()).build().await.unwrap();
    let other = Rule::new("other", 50, MINUTE);
    let acquire =
        async |item: Rule| limiter.acquire_all(&[(&item, Key::new("alice"), 1), (&other, Key::new("alice"), 1)]).await;
    acquire(rules.rule("item").unwrap()).await.unwrap();
    file.write("[rules.item]\ncount = 9\nunit = \"Minutes\"\nalgorithm = \"LeakyBucket\"\nqueue = 5");
    eventually("the file is read", || async { rules.rule("item").unwrap().count() == 9 }).await;
    for item in [ITEM, rules.rule("item").unwrap()] {
        acquire(item).await.unwrap();
    }
    let refused = exceeded(acquire(rules.rule("item").unwrap()).await);
    assert_eq!((refused.rule(), refused.limit()), ("item", 3));
    let errors = log.with("do not fit the code");
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_eq!(errors[0].0, tracing::Level::ERROR);
    assert!(errors[0].1.contains("set another algorithm in the file"), "{errors:?}");
}

/// Also for a request whose limit has a count of its own.
#[tokio::test]
async fn a_rule_of_the_file_keeps_its_last_settings_also_with_a_count_of_the_request() {
    let text = |count, rest| format!("[rules.item]\nunit = \"Minutes\"\ncount = {count}\n{rest}");
    let rules = Rules::parse(&text(3, "")).unwrap();
    let limiter = Limiter::builder("memory://").rules(rules.clone()).build().await.unwrap();
    for _ in 0..2 {
        let limits =
            [Limit::new(rules.rule("item").unwrap()).count(|_| 10), Limit::new(Rule::new("other", 50, MINUTE))];
        let layer = RateLimitLayer::new(limits).limiter(limiter.clone());
        let service = layer
            .layer(service_fn(async |_: http::Request<()>| Ok::<_, Infallible>(http::Response::new(String::new()))));
        let response = service.oneshot(http::Request::new(())).await.unwrap();
        assert_eq!(response.status(), 200);
        let policies = response.headers()["ratelimit-policy"].to_str().unwrap();
        assert!(policies.starts_with("\"item\";q=3;w=60"), "{policies}");
        rules.replace(&text(9, "algorithm = \"LeakyBucket\"\nqueue = 5")).unwrap();
    }
}

/// The rule of the program is that of the file. A key has settings of its own, which do not fit either.
#[tokio::test]
async fn a_rule_of_the_file_keeps_its_last_settings_also_for_a_key() {
    let text = |count, rest| {
        format!(
            "[rules.item]\nunit = \"Minutes\"\ncount = {count}\n{rest}\n[rules.item.keys]\nvip = {{ count = {count}0 }}"
        )
    };
    let rules = Rules::parse(&text(3, "")).unwrap();
    let limiter = Limiter::builder("memory://").rules(rules.clone()).build().await.unwrap();
    let other = Rule::new("other", 500, MINUTE);
    let limit = async |key| {
        let item = rules.rule("item").unwrap();
        limiter.acquire_all(&[(&item, Key::new(key), 1), (&other, Key::new(key), 1)]).await.unwrap().limit()
    };
    assert_eq!((limit("alice").await, limit("vip").await), (3, 30));
    rules.replace(&text(9, "algorithm = \"LeakyBucket\"\nqueue = 5")).unwrap();
    assert_eq!((limit("alice").await, limit("vip").await), (3, 30));
}

/// The file's algorithm does not fit calls whose cost is held, so they stay with the one in the code.
#[tokio::test]
async fn a_counter_is_peeked_at_and_banned_by_the_rule_of_its_calls() {
    let rule = Rule::new("item", 10, 60 * MINUTE).with_algorithm(Algorithm::SlidingLog);
    let limiter = with("[rules.item]\nalgorithm = \"TokenBucket\"").await;
    let reservation = limiter.reserve(&rule, 1, 3).await.unwrap();
    assert_eq!(limiter.peek(&rule, 1).await.unwrap().remaining(), 7);
    limiter.ban(&rule, 1, MINUTE).await.unwrap();
    assert_eq!(limiter.reserve(&rule, 1, 1).await.unwrap_err().cause(), Cause::Banned);
    limiter.unban(&rule, 1).await.unwrap();
    drop(limiter.reserve(&rule, 1, 1).await.unwrap());
    limiter.reset(&rule, 1).await.unwrap();
    assert_eq!(limiter.peek(&rule, 1).await.unwrap().remaining(), 10);
    drop(reservation);
}

/// The calls have counts of their own, of which none is that of the ban.
#[tokio::test]
async fn a_ban_finds_the_counter_of_calls_whose_count_is_computed() {
    let of_count = |count| Rule::new("item", count, 60 * MINUTE).with_algorithm(Algorithm::SlidingLog);
    let limiter = with("[rules.item]\nalgorithm = \"TokenBucket\"").await;
    drop(limiter.reserve(&of_count(20), 1, 3).await.unwrap());
    limiter.ban(&of_count(10), 1, MINUTE).await.unwrap();
    assert_eq!(limiter.reserve(&of_count(30), 1, 1).await.unwrap_err().cause(), Cause::Banned);
    // Of calls that the settings fit, it is the counter that these have.
    limiter.acquire(&of_count(10), 2).await.unwrap();
    limiter.ban(&of_count(10), 2, MINUTE).await.unwrap();
    assert_eq!(limiter.acquire(&of_count(10), 2).await.unwrap_err().cause(), Cause::Banned);
}

#[tokio::test]
async fn a_debt_is_charged_beside_settings_that_allow_none() {
    let limiter = with("[rules.item]\nalgorithm = \"LeakyBucket\"\nqueue = 5").await;
    limiter.charge(&ITEM, 1, 5).await.unwrap();
    assert_eq!(limiter.peek(&ITEM, 1).await.unwrap().remaining(), 0);
}

#[tokio::test]
async fn a_rule_that_is_switched_off_is_reset_by_its_settings() {
    let rule = Rule::new("item", 1, MINUTE);
    let text = "[rules.item]\nunit = \"Hours\"\ncount = 1";
    let rules = Rules::parse(text).unwrap();
    let limiter = Limiter::builder("memory://").rules(rules.clone()).build().await.unwrap();
    limiter.acquire(&rule, 1).await.unwrap();
    rules.replace(&format!("{text}\nenabled = false")).unwrap();
    assert_eq!(limiter.peek(&rule, 1).await.unwrap().remaining(), 0);
    limiter.reset(&rule, 1).await.unwrap();
    rules.replace(text).unwrap();
    limiter.acquire(&rule, 1).await.unwrap();
}

#[tokio::test]
async fn a_key_whose_settings_do_not_fit_has_those_of_all_keys() {
    let of_vip = "[rules.item.keys.vip]\nalgorithm = \"LeakyBucket\"\nqueue = 5";
    for before in ["[rules.other]\ncount = 100", "[rules.item]\ncount = 7"] {
        let rules = Rules::parse(before).unwrap();
        let limiter = Limiter::builder("memory://").rules(rules.clone()).build().await.unwrap();
        let other = Rule::new("other", 100, MINUTE);
        let charges = [(&ITEM, Key::new("vip"), 1), (&other, Key::new("vip"), 1)];
        limiter.acquire_all(&charges).await.unwrap();
        rules.replace(&format!("[rules.item]\ncount = 5\n{of_vip}")).unwrap();
        assert_eq!(limiter.acquire_all(&charges).await.unwrap().limit(), 5, "{before}");
    }
}

#[tokio::test]
async fn a_ban_is_by_the_rule_of_calls_before_a_change_of_the_file_and_of_other_keys() {
    let rule = Rule::new("item", 10, 60 * MINUTE).with_algorithm(Algorithm::SlidingLog);
    let text = "[rules.item]\nalgorithm = \"TokenBucket\"\n[rules.item.keys.2]\ncount = 9";
    let rules = Rules::parse(text).unwrap();
    let limiter = Limiter::builder("memory://").rules(rules.clone()).build().await.unwrap();
    drop(limiter.reserve(&rule, 1, 3).await.unwrap());
    limiter.ban(&rule, 2, MINUTE).await.unwrap(); // without a call
    assert_eq!(limiter.reserve(&rule, 2, 1).await.unwrap_err().cause(), Cause::Banned);
    rules.replace(&format!("{text}\n[rules.other]\ncount = 1")).unwrap();
    limiter.ban(&rule, 1, MINUTE).await.unwrap();
    assert_eq!(limiter.reserve(&rule, 1, 1).await.unwrap_err().cause(), Cause::Banned);
}
