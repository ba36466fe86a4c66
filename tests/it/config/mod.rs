//! Rules in a file, which override the rules in the code.

mod changes;
mod unfit;
mod waiting;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use ratelimit_harness::RedisServer;
use ratelimit_runtime::config::Rules;
use ratelimit_runtime::store::{Batch, Charges, Reply, StoreError};
use ratelimit_runtime::{
    Algorithm, Cause, CounterName, Decision, Key, Limiter, ManualClock, OnStoreError, Refill, RequestPerMinute, Rule,
    Store, limit_request_per_time,
};
use tempfile::TempDir;

use crate::support::log::Log;
use crate::support::plain_store::PlainStore;
use crate::support::{PATIENCE, ends, eventually, exceeded, settle};

const MINUTE: Duration = Duration::from_secs(60);
const ITEM: Rule = Rule::new("item", 2, MINUTE);

async fn with(text: &str) -> Limiter {
    Limiter::builder("memory://").rules(Rules::parse(text).unwrap()).build().await.unwrap()
}

/// With the rules of a file, in memory and on Redis.
async fn both(rules: &Rules) -> (Vec<Limiter>, RedisServer) {
    let server = RedisServer::start();
    let mut limiters = Vec::new();
    for url in ["memory://".to_owned(), server.url()] {
        let builder = Limiter::builder(&url).deadline(crate::support::PATIENCE).on_store_error(OnStoreError::Deny);
        limiters.push(builder.rules(rules.clone()).build().await.unwrap());
    }
    (limiters, server)
}

struct File {
    path: PathBuf,
    _directory: TempDir,
}

impl File {
    fn new(text: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rules.toml");
        fs::write(&path, format!("{text}\n")).unwrap();
        Self { path, _directory: directory }
    }

    fn write(&self, text: &str) {
        fs::write(&self.path, format!("{text}\n")).unwrap();
    }
}

/// The largest cost that a key would be granted, found without consuming.
async fn limit(limiter: &Limiter, key: &str) -> u64 {
    limiter.peek(&ITEM, key).await.unwrap().limit()
}

#[tokio::test]
async fn settings_of_an_empty_key_do_not_apply_to_no_key() {
    let limiter = with("[rules.item]\ncount = 3\n[rules.item.keys]\n\"\" = { count = 5 }").await;
    let rule = Rule::new("item", 1, Duration::from_secs(60));
    assert_eq!(limiter.peek(&rule, "").await.unwrap().limit(), 5);
    assert_eq!(limiter.peek(&rule, Key::NONE).await.unwrap().limit(), 3);
}

#[tokio::test]
async fn settings_of_the_file_apply_to_their_prefixes_and_keys() {
    let rules = Rules::parse(
        "[rules.item]\ncount = 3\n[rules.item.keys]\nalice = { count = 5 }\nbob = { enabled = false }\n\"(eu,7)\" = { count = 4 }",
    );
    let (limiters, _server) = both(&rules.unwrap()).await;
    for limiter in &limiters {
        let admitted = async |key: Key| {
            let mut admitted = 0;
            while admitted < 10 && limiter.acquire(&ITEM, &key).await.is_ok() {
                admitted += 1;
            }
            admitted
        };
        for (key, expected) in
            [(Key::new("carol"), 3), (Key::new("alice"), 5), (Key::new("bob"), 10), (Key::new(("eu", 7)), 4)]
        {
            assert_eq!(admitted(key.clone()).await, expected, "{key}");
        }
        let other = Rule::new("other", 1, MINUTE);
        limiter.acquire(&other, "alice").await.unwrap();
        assert_eq!(exceeded(limiter.acquire(&other, "alice").await).limit(), 1, "not in the file");
    }
}

#[tokio::test]
async fn settings_of_the_file_apply_to_annotated_functions_and_stacked_rules() {
    #[limit_request_per_time("all", 1, Days, 1)]
    #[limit_request_per_time("item", 1, Days, 1, key = id)]
    async fn save(id: u64) -> Result<(), RequestPerMinute> {
        Ok(())
    }

    let limiter =
        with("[rules.item]\ncount = 3\n[rules.all]\nenabled = false\n[rules.item.keys.7]\nshadow = true").await;
    limiter
        .scope(async {
            for _ in 0..3 {
                save(1).await.unwrap();
            }
            assert_eq!(save(1).await.unwrap_err().rule(), "item");
            for _ in 0..5 {
                save(7).await.unwrap();
            }
        })
        .await;
}

/// Settings that do not fit are ignored; that the rule is switched off is not. If it is switched on again, the
/// settings of before apply.
#[tokio::test]
async fn a_rule_is_switched_off_also_beside_settings_that_do_not_fit() {
    let (log, _guard) = Log::install();
    let rules = Rules::parse("[rules.item]\ncount = 2").unwrap();
    let limiter = Limiter::builder("memory://").rules(rules.clone()).build().await.unwrap();
    let (item, other) = (Rule::new("item", 1, MINUTE), Rule::new("other", 9, MINUTE));
    let call = async || limiter.acquire_all(&[(&item, Key::new(1), 1), (&other, Key::new(1), 1)]).await;
    for fits in [true, true, false] {
        assert_eq!(call().await.is_ok(), fits);
    }
    rules.replace("[rules.item]\nenabled = false\nalgorithm = \"LeakyBucket\"\nqueue = 1").unwrap();
    call().await.unwrap();
    assert!(log.with("do not fit the code").is_empty());
    for enabled in ["", "enabled = true\n"] {
        rules.replace(&format!("[rules.item]\n{enabled}algorithm = \"LeakyBucket\"\nqueue = 1")).unwrap();
        assert_eq!(exceeded(call().await).limit(), 2);
    }
}

/// The entry that switched it off fitted.
#[tokio::test]
async fn a_rule_that_is_switched_on_again_limits_also_beside_settings_that_do_not_fit() {
    let rules = Rules::parse("[rules.item]\ncount = 2").unwrap();
    let limiter = Limiter::builder("memory://").rules(rules.clone()).build().await.unwrap();
    let (item, other) = (Rule::new("item", 1, MINUTE), Rule::new("other", 99, MINUTE));
    let call = async || limiter.acquire_all(&[(&item, Key::new(1), 1), (&other, Key::new(1), 1)]).await;
    for fits in [true, true, false] {
        assert_eq!(call().await.is_ok(), fits);
    }
    rules.replace("[rules.item]\ncount = 2\nenabled = false").unwrap();
    call().await.unwrap();
    for enabled in ["enabled = true\n", ""] {
        rules.replace(&format!("[rules.item]\n{enabled}algorithm = \"LeakyBucket\"\nqueue = 1")).unwrap();
        assert_eq!(exceeded(call().await).limit(), 2);
    }
}

/// The rest of the old count is above the new one.
#[tokio::test]
async fn a_count_that_falls_meanwhile_does_not_make_a_partial_cost_too_large() {
    let (clock, rules) = (ManualClock::new(), Rules::parse("[rules.item]\ncount = 100").unwrap());
    let store = PlainStore::new(&clock);
    let builder = Limiter::builder("memory://").clock(clock).deadline(PATIENCE).rules(rules.clone());
    let (limiter, rule) = (builder.over(store.clone()).unwrap(), Rule::new("item", 100, MINUTE));
    limiter.acquire_n(&rule, 1, 50).await.unwrap();
    store.hold();
    let call = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire_up_to(&rule, 1, 80).await.map(|(granted, _)| granted) }
    });
    settle().await;
    rules.replace("[rules.item]\ncount = 40").unwrap();
    (0..9).for_each(|_| store.release());
    let refused = ends(call).await.unwrap().unwrap_err();
    assert_eq!((refused.cause(), refused.limit()), (Cause::Exceeded, 40));
}

/// Two counters by the code. Charged twice, half of what the file says would be admitted.
#[tokio::test]
async fn limits_that_the_file_makes_equal_are_charged_once() {
    let rules = Rules::parse("[rules.item]\ncount = 9\nttl = 1\nunit = \"Minutes\"").unwrap();
    let (limiters, _server) = both(&rules).await;
    let (second, hour) = (Rule::new("item", 5, MINUTE / 60), Rule::new("item", 100, 60 * MINUTE));
    for limiter in limiters {
        let call = async |keys: [u64; 2], costs: [u64; 2]| {
            let [one, other] = keys.map(Key::new);
            let charged = limiter.acquire_all(&[(&second, one, costs[0]), (&hour, other, costs[1])]).await;
            charged.map(|permit| permit.remaining())
        };
        assert_eq!(call([1, 1], [1, 1]).await.unwrap(), 8);
        assert_eq!(call([1, 1], [3, 3]).await.unwrap(), 5);
        assert_eq!(call([1, 2], [1, 2]).await.unwrap(), 4, "other keys are other counters");
        assert_eq!(limiter.peek(&hour, 2).await.unwrap().remaining(), 7);
        // The same limit by the code.
        limiter.acquire_all(&[(&hour, Key::new(1), 1), (&hour, Key::new(1), 1)]).await.unwrap();
        assert_eq!(limiter.peek(&hour, 1).await.unwrap().remaining(), 2);
    }
}

#[tokio::test]
async fn a_refund_of_several_rules_is_by_the_settings_of_the_file() {
    let rules = Rules::parse("[rules.item]\ncount = 100\nttl = 1\nunit = \"Hours\"").unwrap();
    let (limiters, _server) = both(&rules).await;
    let total = Rule::new("total", 100, MINUTE);
    for limiter in limiters {
        for algorithm in [Algorithm::TokenBucket { burst: 5, refill: Refill::Greedy }, Algorithm::SlidingLog] {
            let item = Rule::new("item", 9, MINUTE).with_algorithm(algorithm);
            let charges = [(&item, Key::new(1), 4), (&total, Key::new(1), 3)];
            let unused = limiter.peek(&item, 1).await.unwrap().remaining();
            let permit = limiter.acquire_all(&charges).await.unwrap();
            assert_eq!(limiter.peek(&item, 1).await.unwrap().remaining(), unused - 4);
            assert_eq!(permit.refund().await.unwrap(), 7, "{algorithm:?}");
            assert_eq!(limiter.peek(&item, 1).await.unwrap().remaining(), unused, "{algorithm:?}");
        }
    }
}

/// The file sets no count, so those of the code stay.
#[tokio::test]
async fn of_two_limits_that_the_file_makes_one_counter_the_lower_enforced_one_applies() {
    let rules = Rules::parse("[rules.item]\nttl = 1\nunit = \"Minutes\"").unwrap();
    let (limiters, _server) = both(&rules).await;
    let (strict, wide) = (Rule::new("item", 2, MINUTE / 60), Rule::new("item", 100, 60 * MINUTE));
    let trial = wide.with_shadow(true);
    for limiter in limiters {
        let orders = [[&strict, &wide], [&wide, &strict], [&strict, &trial], [&trial, &strict]];
        for (key, order) in (0_u64..).zip(orders) {
            let call = || limiter.acquire_all(&order.map(|rule| (rule, Key::new(key), 1)));
            for _ in 0..2 {
                call().await.unwrap();
            }
            assert_eq!(exceeded(call().await).limit(), 2, "{order:?}");
        }
    }
}

/// A second call waits while the first one runs, with these rules in a file.
async fn waits_for_the_first<F: Future>(rules: &str, call: impl Fn() -> F) {
    let calls = async {
        let mut first = Box::pin(call());
        assert!((&mut first).now_or_never().is_none());
        assert!(call().now_or_never().is_none(), "it waits for its turn");
    };
    with(rules).await.scope(calls).await;
}

/// As with this count in the code.
#[tokio::test]
async fn a_call_that_takes_all_of_a_count_of_the_file_lets_others_wait() {
    #[limit_request_per_time("item", 1, Minutes, 1_000, key = 1, algorithm = SlidingLog, cost = Elapsed(max = "500ms"))]
    async fn call() -> Result<(), RequestPerMinute> {
        std::future::pending().await
    }
    waits_for_the_first("[rules.item]\ncount = 500", call).await;
}

#[tokio::test]
async fn of_two_times_that_the_file_makes_one_counter_others_wait_whatever_the_order() {
    #[limit_request_per_time("item", 1, Hours, 10_000, key = 1, algorithm = SlidingLog, cost = Elapsed(max = "500ms"))]
    #[limit_request_per_time("item", 1, Minutes, 500, key = 1, algorithm = SlidingLog, cost = Elapsed(max = "500ms"))]
    async fn call() -> Result<(), RequestPerMinute> {
        std::future::pending().await
    }
    waits_for_the_first("[rules.item]\nttl = 1\nunit = \"Minutes\"", call).await;
}

#[tokio::test]
async fn of_two_limits_that_the_file_makes_equal_one_with_a_ban_bans_whatever_the_order() {
    let rules = Rules::parse("[rules.item]\ncount = 2\nttl = 1\nunit = \"Minutes\"").unwrap();
    let (limiters, _server) = both(&rules).await;
    let plain = Rule::new("item", 5, MINUTE / 60);
    let bans = Rule::new("item", 100, 60 * MINUTE).with_ban(10 * MINUTE);
    for limiter in limiters {
        for (key, order) in (0_u64..).zip([[&bans, &plain], [&plain, &bans]]) {
            let call = || limiter.acquire_all(&order.map(|rule| (rule, Key::new(key), 1)));
            for _ in 0..2 {
                call().await.unwrap();
            }
            assert_eq!(call().await.unwrap_err().cause(), Cause::Banned, "{order:?}");
        }
    }
}

/// Headers name the rule that was charged, and no rule that is switched off.
#[tokio::test]
async fn headers_of_a_layer_report_the_rule_in_force() {
    use ratelimit_runtime::web::{Limit, RateLimitLayer};
    use tower::ServiceExt as _;

    let limiter = with("[rules.off]\nenabled = false\n[rules.item]\ncount = 7").await;
    let limits = [Limit::new(Rule::new("off", 1, MINUTE)), Limit::new(ITEM)];
    let layer = RateLimitLayer::new(limits).limiter(limiter);
    let router = axum::Router::new().fallback(|| async { "hello" }).layer(layer);
    let Ok(response) = router.oneshot(axum::extract::Request::new(axum::body::Body::empty())).await;
    assert_eq!(response.headers()["ratelimit-policy"], "\"item\";q=7;w=60");
    assert_eq!(response.headers()["ratelimit"], "\"item\";r=6;t=60");
}

/// Also if the rule has changed while the request waited.
#[tokio::test]
async fn headers_of_a_layer_report_the_rule_that_admitted_a_waiting_request() {
    use ratelimit_runtime::web::{Limit, RateLimitLayer};
    use tower::ServiceExt as _;

    let rules = Rules::parse("[rules.item]\ncount = 1").unwrap();
    let builder = Limiter::builder("memory://").rules(rules.clone()).clock(ManualClock::new());
    let layer = RateLimitLayer::new([Limit::new(ITEM)]).limiter(builder.build().await.unwrap()).wait(10 * MINUTE);
    let router = axum::Router::new().fallback(|| async { "hello" }).layer(layer);
    let ask = || tokio::spawn(router.clone().oneshot(axum::extract::Request::new(axum::body::Body::empty())));
    assert_eq!(ask().await.unwrap().unwrap().headers()["ratelimit-policy"], "\"item\";q=1;w=60");
    let waiting = ask();
    crate::support::settle().await;
    rules.replace("[rules.item]\ncount = 2").unwrap();
    let Ok(response) = crate::support::ends(waiting).await.unwrap();
    assert_eq!(response.headers()["ratelimit-policy"], "\"item\";q=2;w=60");
    assert_eq!(response.headers()["ratelimit"], "\"item\";r=0;t=60");
}

#[tokio::test]
async fn a_rule_may_be_defined_in_the_file_alone() {
    let rules = Rules::parse("[rules.item]\ncount = 1\nunit = \"Hours\"\n[rules.half]\ncount = 1").unwrap();
    assert_eq!(rules.rule("item"), Some(Rule::new("item", 1, 60 * MINUTE)));
    assert_eq!((rules.rule("half"), rules.rule("none")), (None, None));
    assert_eq!(rules.prefixes(), ["half", "item"]);
}

#[tokio::test]
async fn the_file_may_set_the_failure_policy_of_one_rule() {
    let rules = Rules::parse("[rules.item]\non_store_error = \"Deny\"").unwrap();
    let builder = Limiter::builder("redis://127.0.0.1:1").lazy().on_store_error(OnStoreError::Allow);
    let limiter = builder.rules(rules).build().await.unwrap();
    assert_eq!(limiter.acquire(&ITEM, 1).await.unwrap_err().cause(), Cause::Unavailable);
    limiter.acquire(&Rule::new("other", 1, MINUTE), 1).await.unwrap();
}

/// Only together with the code are these settings a mistake. A mistake changes nothing.
#[tokio::test]
async fn settings_that_do_not_fit_the_code_change_nothing() {
    let limiter = with("[rules.item]\nalgorithm = \"SlidingWindow\"\nbuckets = 999").await;
    assert_eq!(limit(&limiter, "alice").await, 2);
    limiter.acquire(&ITEM, "alice").await.unwrap();
}

/// A changed count acts on what was counted; a changed period starts fresh.
#[tokio::test]
async fn a_change_of_the_file_acts_on_the_next_call() {
    let file = File::new("[rules.item]\ncount = 4");
    let (limiters, _server) = both(&Rules::watch(&file.path).unwrap()).await;
    for limiter in &limiters {
        limiter.acquire_n(&ITEM, "alice", 3).await.unwrap();
    }
    let becomes = async |expected: u64| {
        for limiter in &limiters {
            eventually("the file is read", || async { limit(limiter, "alice").await == expected }).await;
        }
    };
    file.write("[rules.item]\ncount = 6");
    becomes(6).await;
    for limiter in &limiters {
        assert_eq!(limiter.acquire(&ITEM, "alice").await.unwrap().remaining(), 2);
    }
    file.write("[rules.item]\ncount = 5\nunit = \"Hours\"");
    becomes(5).await;
    for limiter in &limiters {
        assert_eq!(limiter.acquire(&ITEM, "alice").await.unwrap().remaining(), 4);
    }
}

/// However it is changed: written over, replaced, a link that points elsewhere, gone and back.
#[tokio::test]
async fn a_change_of_the_file_is_seen_in_whichever_way_it_is_made() {
    let file = File::new("[rules.item]\ncount = 1");
    let limiter = Limiter::builder("memory://").rules(Rules::watch(&file.path).unwrap()).build().await.unwrap();
    let becomes = async |expected: u64| {
        eventually("the file is read", || async { limit(&limiter, "alice").await == expected }).await;
    };
    let beside = |name: &str, count: u64| {
        let path = file.path.with_file_name(name);
        fs::write(&path, format!("[rules.item]\ncount = {count}\n")).unwrap();
        path
    };
    fs::rename(beside("next", 3), &file.path).unwrap();
    becomes(3).await;
    fs::remove_file(&file.path).unwrap();
    tokio::time::sleep(Duration::from_millis(900)).await;
    becomes(3).await;
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(beside("fourth", 4), &file.path).unwrap();
        becomes(4).await;
        std::os::unix::fs::symlink(beside("fifth", 5), file.path.with_file_name("link")).unwrap();
        fs::rename(file.path.with_file_name("link"), &file.path).unwrap();
        becomes(5).await;
    }
}

/// The text of the file was replaced by the program, and has not changed since.
#[tokio::test]
async fn a_file_that_cannot_be_read_for_a_while_does_not_undo_a_replacement() {
    const OLD: &str = "[rules.item]\ncount = 1\n";
    let file = File::new(OLD);
    let rules = Rules::watch(&file.path).unwrap();
    let limiter = Limiter::builder("memory://").rules(rules.clone()).build().await.unwrap();
    rules.replace("[rules.item]\ncount = 7").unwrap();
    fs::remove_file(&file.path).unwrap();
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    file.write(OLD);
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    assert_eq!(limit(&limiter, "alice").await, 7);
    file.write("[rules.item]\ncount = 3\n");
    eventually("a change is read", || async { limit(&limiter, "alice").await == 3 }).await;
}

/// While it is used; and a change loses no call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_file_changes_nothing_under_load() {
    let file = File::new("[rules.item]\ncount = 1000000000");
    let rules = Rules::watch(&file.path).unwrap();
    let limiter = Limiter::builder("memory://").rules(rules).build().await.unwrap();
    let (stop, calls, lost) =
        (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let load = tokio::spawn({
        let (limiter, stop, calls, lost) = (limiter.clone(), Arc::clone(&stop), Arc::clone(&calls), Arc::clone(&lost));
        async move {
            while !stop.load(Ordering::Relaxed) {
                calls.fetch_add(1, Ordering::Relaxed);
                lost.fetch_add(u64::from(limiter.acquire(&ITEM, "load").await.is_err()), Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        }
    });
    for broken in ["[rules.item]\ncount = 0", "[rules.item", "", "[rules.item]\ncuont = 1"] {
        file.write(broken);
        tokio::time::sleep(Duration::from_millis(900)).await;
        assert_eq!(limit(&limiter, "alice").await, 1_000_000_000, "{broken}");
    }
    file.write("[rules.item]\ncount = 2000000000");
    eventually("the file is read", || async { limit(&limiter, "alice").await == 2_000_000_000 }).await;
    stop.store(true, Ordering::Relaxed);
    load.await.unwrap();
    assert!(calls.load(Ordering::Relaxed) > 100);
    assert_eq!(lost.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn an_invalid_file_at_the_start_is_an_error() {
    let file = File::new("[rules.item]\n\ncount = 0");
    let wrong = Rules::watch(&file.path).unwrap_err().to_string();
    assert_eq!(wrong, format!("{}: line 3: `count` is 0; it must be at least 1", file.path.display()));
    let missing = Rules::watch(file.path.with_file_name("none.toml")).unwrap_err().to_string();
    assert!(missing.contains("none.toml: No such file"), "{missing}");
}

#[tokio::test(start_paused = true)]
async fn a_prefix_that_is_peeked_at_is_used() {
    let (log, _guard) = Log::install();
    let limiter = with("[rules.item]\ncount = 5\n[rules.order]\ncount = 5").await;
    for _ in 0..3 {
        limiter.acquire(&Rule::new("order", 5, MINUTE), 1).await.unwrap();
        limiter.peek(&ITEM, "alice").await.unwrap();
        tokio::time::advance(2 * MINUTE).await;
    }
    assert_eq!(log.with("no call has used"), []);
}

#[tokio::test]
async fn a_ban_of_the_file_is_ignored_by_calls_that_wait() {
    let (log, _guard) = Log::install();
    let limiter = with("[rules.item]\ncount = 3\nban = \"10m\"").await;
    for _ in 0..3 {
        limiter.acquire_within(&ITEM, "alice", MINUTE).await.unwrap();
    }
    let waited = exceeded(limiter.acquire_within(&ITEM, "alice", Duration::from_millis(1)).await);
    assert_eq!(waited.limit(), 3);
    let warnings = log.with("ignoring the ban that the rules file sets");
    assert!(matches!(warnings[..], [(tracing::Level::WARN, _)]), "{warnings:?}");
    // Other calls are banned.
    assert_eq!(limiter.acquire(&ITEM, "alice").await.unwrap_err().cause(), Cause::Banned);
}

#[tokio::test]
async fn a_prefix_that_no_rule_has_is_an_error_if_the_rules_are_known() {
    let rules = [&ITEM, &Rule::new("order", 1, MINUTE)];
    let wrong = Rules::parse("[rules.item]\n[rules.ordr]\n[rules.x]").unwrap().expect(&rules).unwrap_err().to_string();
    assert_eq!(wrong, "no rule of the program has the prefix `ordr`, `x`; those of its rules are `item`, `order`");
    let file = File::new("[rules.item]\ncount = 4");
    let watched = Rules::watch(&file.path).unwrap().expect(&rules).unwrap();
    let limiter = Limiter::builder("memory://").rules(watched).build().await.unwrap();
    file.write("[rules.item]\ncount = 5\n[rules.ordr]\ncount = 5");
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(limit(&limiter, "alice").await, 4);
    file.write("[rules.item]\ncount = 6\n[rules.order]\ncount = 5");
    eventually("the file is read", || async { limit(&limiter, "alice").await == 6 }).await;
}

/// Keys count as uses of their rule.
#[tokio::test(start_paused = true)]
async fn the_log_names_prefixes_that_no_call_has_used_for_a_minute() {
    let (log, _guard) = Log::install();
    let text = "[rules.item.keys.alice]\ncount = 5\n[rules.ordr]\ncount = 5";
    let limiter = with(text).await;
    let warnings = || log.with("no call has used");
    for _ in 0..3 {
        tokio::time::advance(MINUTE * 2 / 5).await;
        assert_eq!(warnings(), []);
        limiter.acquire(&ITEM, "alice").await.unwrap();
    }
    limiter.acquire(&ITEM, "alice").await.unwrap();
    assert_eq!(warnings(), [], "a minute from the first call on");
    tokio::time::advance(MINUTE / 2).await;
    for _ in 0..2 {
        limiter.acquire(&ITEM, "alice").await.unwrap_or_else(|refused| panic!("{refused}"));
        tokio::time::advance(2 * MINUTE).await;
    }
    assert_eq!(warnings().len(), 1);
    let (level, line) = warnings().remove(0);
    assert_eq!(level, tracing::Level::WARN);
    assert!(line.contains("prefixes=\"ordr\"") && line.contains("Rules::expect"), "{line}");

    let expected = Rules::parse(text).unwrap().expect(&[&ITEM, &Rule::new("ordr", 1, MINUTE)]).unwrap();
    let limiter = Limiter::builder("memory://").rules(expected).build().await.unwrap();
    for _ in 0..3 {
        limiter.acquire(&ITEM, "alice").await.unwrap();
        tokio::time::advance(2 * MINUTE).await;
    }
    assert_eq!(warnings().len(), 1, "all prefixes are the program's");
}

/// The half of a number is a number.
#[tokio::test]
async fn a_half_written_file_changes_nothing() {
    let file = File::new("[rules.item]\ncount = 500");
    let limiter = Limiter::builder("memory://").rules(Rules::watch(&file.path).unwrap()).build().await.unwrap();
    fs::write(&file.path, "[rules.item]\ncount = 1").unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(limit(&limiter, "alice").await, 500);
    file.write("[rules.item]\ncount = 1200");
    eventually("the file is read", || async { limit(&limiter, "alice").await == 1200 }).await;
    // Without the end of its last line it is read later.
    fs::write(&file.path, "[rules.item]\ncount = 7").unwrap();
    eventually("the file is read", || async { limit(&limiter, "alice").await == 7 }).await;
}

/// A table that is not read is a mistake, unless it is the program's own.
#[test]
fn an_unknown_table_beside_the_rules_is_an_error() {
    let text = "[[routes]]\npath = \"/\"\n[rules.item]\ncount = 1\n";
    let wrong = Rules::parse(text).unwrap_err().to_string();
    assert_eq!(wrong, "line 1: unknown table `routes`; write a rule as [rules.item]");
    assert_eq!(Rules::parse_beside(text, &["routes"]).unwrap().prefixes(), ["item"]);
    let file = File::new(text);
    Rules::watch(&file.path).unwrap_err();
    Rules::watch_beside(&file.path, &["routes"]).unwrap();
}
