//! Metrics, log lines and spans of decisions.

use std::collections::BTreeMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::task::{Context, Waker};
use std::time::Duration;

use futures_util::future::{FutureExt as _, join_all};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use ratelimit_harness::RedisServer;
use ratelimit_runtime::__private::{Call, charge, key as key_of, permit_of_several};
use ratelimit_runtime::config::Rules;
use ratelimit_runtime::store::StoreError;
use ratelimit_runtime::{
    Algorithm, Key, Limiter, ManualClock, OnStoreError, RequestPerMinute, Rule, limit_request_per_time,
};
use tracing::Level;

use crate::support::log::Log;
use crate::support::plain_store::PlainStore;
use crate::support::{ends, eventually, fresh_key, in_memory, limiter_on, settle};

const MINUTE: Duration = Duration::from_secs(60);
/// Nobody may read this in a label or a line.
const SECRET: &str = "alice@example.org";

/// A recorder for this thread while it lives.
struct Recorder {
    snapshotter: Snapshotter,
    _guard: metrics::LocalRecorderGuard<'static>,
}

impl Recorder {
    fn install() -> Self {
        let recorder = Box::leak(Box::new(DebuggingRecorder::new()));
        Self { snapshotter: recorder.snapshotter(), _guard: metrics::set_default_local_recorder(recorder) }
    }

    /// Counters, and how many values each histogram has, since the last look.
    fn take(&self) -> BTreeMap<String, u64> {
        let snapshot = self.snapshotter.snapshot().into_vec();
        let values = snapshot.into_iter().filter_map(|(key, _, described, value)| {
            let key = key.key();
            assert!(described.is_some(), "{} has no description", key.name());
            assert_is_in_guide(key);
            let labels: Vec<_> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
            let value = match value {
                DebugValue::Counter(value) => value,
                DebugValue::Histogram(values) => values.len() as u64,
                DebugValue::Gauge(_) => return None,
            };
            let name = key.name().trim_start_matches("ratelimit_").to_owned();
            (value > 0).then(|| ([name].into_iter().chain(labels).collect::<Vec<_>>().join(" "), value))
        });
        values.collect()
    }
}

impl Recorder {
    /// Change of the number of waiting calls, and number of ended waits, since the last look.
    fn waits(&self) -> (f64, usize) {
        let mut waits = (0.0, 0);
        for (key, _, _, value) in self.snapshotter.snapshot().into_vec() {
            assert_is_in_guide(key.key());
            match (key.key().name(), value) {
                ("ratelimit_waiting", DebugValue::Gauge(value)) => waits.0 = value.into_inner(),
                ("ratelimit_wait_duration_seconds", DebugValue::Histogram(values)) => waits.1 = values.len(),
                _ => {}
            }
        }
        waits
    }
}

/// The metric is in the table of the guide, with just these labels.
fn assert_is_in_guide(key: &metrics::Key) {
    const GUIDE: &str = include_str!("../../../ratelimit-runtime/src/guide/operations.md");
    let row = GUIDE.lines().find_map(|line| line.strip_prefix(&format!("| `{}` |", key.name())));
    let row = row.unwrap_or_else(|| panic!("{} is not in the guide", key.name()));
    let documented = row.split('|').next().unwrap_or_default().split(',');
    let documented: Vec<_> = documented.map(|label| label.trim().trim_matches('`')).collect();
    let found: Vec<_> = key.labels().map(metrics::Label::key).collect();
    assert_eq!(found.join(","), documented.join(","), "the labels of {} in the guide", key.name());
}

fn counted<const N: usize>(expected: [(&str, u64); N]) -> BTreeMap<String, u64> {
    expected.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

#[limit_request_per_time("item", 1, Minutes, 3, key = SECRET, limiter = limiter)]
async fn limited(limiter: &Limiter) -> Result<(), RequestPerMinute> {
    Ok(())
}

/// Every outcome, in memory and on Redis.
#[tokio::test]
async fn each_decision_is_counted_once_by_rule_and_outcome() {
    let recorder = Recorder::install();
    let rule = Rule::new("item", 3, MINUTE);
    let other = Rule::new("other", 100, MINUTE);
    let tried = Rule::new("tried", 1, MINUTE).with_shadow(true);
    let server = RedisServer::start();
    for limiter in [Limiter::in_memory(), limiter_on(&server).await] {
        for _ in 0..2 {
            let _ = limiter.acquire(&rule, SECRET).await;
        }
        for _ in 0..3 {
            let _ = limited(&limiter).await;
        }
        let _ = limiter.acquire_n(&rule, SECRET, 4).await;
        for _ in 0..2 {
            limiter.acquire_all(&[(&tried, Key::new(SECRET), 1), (&other, Key::new(SECRET), 1)]).await.unwrap();
        }
        let _ = limiter.acquire_all(&[(&rule, Key::new(SECRET), 1), (&other, Key::new(SECRET), 1)]).await;
        let _ = limiter.acquire(&Rule::new("faulty", 1, Duration::ZERO), SECRET).await;
        limiter.peek(&rule, SECRET).await.unwrap();
        let mut seen = recorder.take();
        let asked = ["store_round_trips_total", "store_decisions_total", "store_duration_seconds"]
            .map(|name| seen.remove(name));
        let is_redis = format!("{limiter:?}").contains("Redis");
        if is_redis {
            assert_eq!(seen.remove("cached_denials_total rule=item"), Some(1), "one of the two that ask again for 1");
        }
        let mut expected = counted([
            ("decisions_total rule=item outcome=admitted", 3),
            ("decisions_total rule=item outcome=refused", 3),
            ("decisions_total rule=item outcome=never_fits", 1),
            ("near_limit_total rule=item", 1),
            ("decisions_total rule=tried outcome=admitted", 1),
            ("near_limit_total rule=tried", 1),
            ("decisions_total rule=tried outcome=shadow_refused", 1),
            ("decisions_total rule=other outcome=admitted", 2),
            ("decisions_total rule=faulty outcome=misconfigured", 1),
        ]);
        assert_eq!(seen, std::mem::take(&mut expected), "{limiter:?}");
        // Of the first five one is known; then two, and the second of these once more, one, and the look.
        assert_eq!(asked[2], is_redis.then_some(9));
    }
}

#[tokio::test]
async fn refusals_are_logged_without_keys() {
    let (log, _guard) = Log::install();
    let rule = Rule::new("item", 1, MINUTE);
    let limiter = Limiter::in_memory();
    limiter.acquire(&rule, SECRET).await.unwrap();
    limiter.acquire(&rule.with_shadow(true), SECRET).await.unwrap();
    limiter.acquire(&rule, SECRET).await.unwrap_err();

    let before = log.with("a rate limit refuses a call").len();
    limiter.acquire(&rule, SECRET).await.unwrap_err();
    let refusals = &log.with("a rate limit refuses a call")[before..];
    let [(Level::DEBUG, refusal)] = refusals else { panic!("{refusals:?}") };
    assert!(refusal.contains("rule=\"item\"") && refusal.contains("cause=Exceeded"), "{refusal}");

    // Once a second at most of each rule, for all tests of this process together.
    eventually("a refusal in shadow mode is logged", || async {
        limiter.acquire(&rule.with_shadow(true), SECRET).await.unwrap();
        !log.with("in shadow mode").is_empty()
    })
    .await;
    assert!(log.with("in shadow mode").iter().all(|(level, _)| *level == Level::INFO));
    assert_eq!(log.with(SECRET), []);
}

#[tokio::test]
async fn a_missing_key_and_an_outage_are_counted_as_outcomes() {
    #[limit_request_per_time("keyed", 1, Days, 5, key = id, on_missing_key = Deny)]
    async fn keyed(id: Option<&str>) -> Result<(), RequestPerMinute> {
        Ok(())
    }

    let recorder = Recorder::install();
    Limiter::in_memory().scope(keyed(None)).await.unwrap_err();
    assert_eq!(recorder.take(), counted([("decisions_total rule=keyed outcome=missing_key", 1)]));

    for (policy, outcome, word) in [
        (OnStoreError::Local, "admitted", "local"),
        (OnStoreError::Allow, "admitted", "allow"),
        (OnStoreError::Deny, "unavailable", "deny"),
    ] {
        let builder = Limiter::builder("redis://127.0.0.1:1").lazy().instances(1).on_store_error(policy);
        let limiter = builder.build().await.unwrap();
        let _ = limiter.acquire(&Rule::new("item", 100, MINUTE), SECRET).await;
        let mut seen = recorder.take();
        seen.retain(|name, _| name.contains("policy") || name.contains("outcome"));
        let decision = format!("decisions_total rule=item outcome={outcome}");
        let without = format!("fallback_decisions_total policy={word}");
        assert_eq!(seen, counted([(&decision, 1), (&without, 1)]), "{policy:?}");
    }
}

/// `Local` is the policy. There is no other memory than the one that is full.
#[tokio::test]
async fn a_call_that_a_full_memory_store_refuses_counts_as_denied() {
    let recorder = Recorder::install();
    let limiter = Limiter::builder("memory://").max_keys(1).build().await.unwrap();
    for key in 0..2 {
        let _ = limiter.acquire(&Rule::new("item", 100, MINUTE), key).await;
    }
    let mut seen = recorder.take();
    seen.retain(|name, _| name.contains("policy"));
    assert_eq!(seen, counted([("fallback_decisions_total policy=deny", 1)]));
}

/// The rules file changes the policy while the call waits for the store.
#[tokio::test]
async fn a_call_counts_also_for_a_failure_policy_that_replaces_its_wait() {
    let recorder = Recorder::install();
    let (clock, rules) = (ManualClock::new(), Rules::parse("[rules.other]\ncount = 1").unwrap());
    let store = PlainStore::new(&clock);
    store.fail(Some(StoreError::unavailable("gone fishing")));
    let builder = Limiter::builder("memory://").clock(clock).on_store_error(OnStoreError::Wait { max: MINUTE });
    let limiter = builder.rules(rules.clone()).over(store).unwrap();
    let call = tokio::spawn(limiter.acquire(&Rule::new("item", 1, MINUTE), SECRET));
    settle().await;
    rules.replace("[rules.item]\non_store_error = \"Allow\"").unwrap();
    ends(call).await.unwrap().unwrap();
    let mut seen = recorder.take();
    seen.retain(|name, _| name.contains("policy"));
    let of = |policy| format!("fallback_decisions_total policy={policy}");
    assert_eq!(seen, counted([(&*of("wait"), 1), (&*of("allow"), 1)]));
}

/// Less than a tenth, rounded up: 1 and 0 of 20; 2, 1 and 0 of 25.
#[tokio::test]
async fn calls_that_leave_less_than_a_tenth_are_near_the_limit() {
    let recorder = Recorder::install();
    let limiter = Limiter::in_memory();
    for (count, near) in [(20, 2), (25, 3)] {
        let rule = Rule::new("item", count, MINUTE);
        for _ in 0..count {
            limiter.acquire(&rule, count).await.unwrap();
        }
        assert_eq!(recorder.take().get("near_limit_total rule=item"), Some(&near), "of {count}");
    }
}

/// Calls that wait are one decision each, however often the store is asked for them.
#[tokio::test(start_paused = true)]
async fn a_waiting_call_is_counted_once_when_it_ends() {
    let recorder = Recorder::install();
    let limiter = Limiter::in_memory();
    let rule = Rule::new("item", 1, MINUTE);
    for _ in 0..4 {
        limiter.acquire_within(&rule, SECRET, 2 * MINUTE).await.unwrap();
    }
    assert_eq!(
        recorder.take(),
        counted([
            ("decisions_total rule=item outcome=admitted", 4),
            ("near_limit_total rule=item", 4),
            ("wait_duration_seconds rule=item", 3)
        ])
    );
}

/// A gauge of callers who wait now, a histogram of waits, and a span around each.
#[tokio::test]
async fn a_waiting_call_is_in_a_gauge_a_histogram_and_a_span() {
    let recorder = Recorder::install();
    let (log, _guard) = Log::install();
    let clock = ManualClock::new();
    let limiter = Limiter::builder("memory://").clock(clock.clone()).build().await.unwrap();
    let rule = Rule::new("item", 1, MINUTE);
    limiter.acquire(&rule, SECRET).await.unwrap();
    let mut waiting = Box::pin(join_all((0..3).map(|_| limiter.acquire_within(&rule, SECRET, 10 * MINUTE))));
    let mut poll = || waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
    assert!(!poll());
    assert_eq!(recorder.waits(), (3.0, 0));
    clock.advance(MINUTE);
    assert!(!poll() && !poll());
    assert_eq!(recorder.waits(), (-1.0, 1));
    drop(waiting);
    assert_eq!(recorder.waits(), (-2.0, 2));
    for words in ["span wait_for_rate_limit", "a call waits for its rate limit", "no longer waits"] {
        assert_eq!(log.with(words).len(), 3, "{words}");
    }
    assert_eq!(log.with(SECRET), []);
}

/// Not under the first rule of the calls, which has room. The second call waits behind the first one.
#[tokio::test]
async fn a_wait_is_recorded_under_the_rule_that_the_call_waits_for() {
    let (log, _guard) = Log::install();
    let limiter = in_memory(&ManualClock::new()).await;
    let (open, full) = (Rule::new("open", 9, MINUTE), Rule::new("full", 1, MINUTE));
    limiter.acquire(&full, 1).await.unwrap();
    let call = || {
        let charges = (charge(open, key_of(&1), 1), (charge(full, key_of(&1), 1), ()));
        tokio::spawn(permit_of_several(Some(&limiter), Call::DEFAULT.wait(), charges))
    };
    let calls = [call(), call()];
    settle().await;
    assert_eq!((log.with("a call waits").len(), log.with("rule=\"full\"").len()), (2, 2), "{:?}", log.lines());
    calls.iter().for_each(tokio::task::JoinHandle::abort);
}

/// So is a call that waits for its slot, or for its store.
#[tokio::test]
async fn every_kind_of_wait_is_observed() {
    let recorder = Recorder::install();
    let (log, _guard) = Log::install();
    let clock = ManualClock::new();
    let store = PlainStore::new(&clock);
    let away = Limiter::builder("memory://").clock(clock.clone()).on_store_error(OnStoreError::Wait { max: MINUTE });
    let (away, limiter) = (away.over(store.clone()).unwrap(), in_memory(&clock).await);
    store.fail(Some(StoreError::unavailable("gone fishing")));
    let rule = Rule::new("item", 1, MINUTE).with_algorithm(Algorithm::LeakyBucket { queue: 5 });
    limiter.acquire(&rule, SECRET).await.unwrap();
    let calls = [tokio::spawn(limiter.acquire(&rule, SECRET)), tokio::spawn(away.acquire(&rule, SECRET))];
    settle().await;
    assert_eq!(recorder.waits(), (2.0, 0));
    assert_eq!(log.with("a call waits").len(), 2);
    clock.advance(MINUTE);
    for (call, is_admitted) in calls.into_iter().zip([true, false]) {
        assert_eq!(call.await.unwrap().is_ok(), is_admitted);
    }
    assert_eq!(recorder.waits(), (-2.0, 2));
    let ended = log.with("no longer waits");
    assert_eq!(ended.len(), 2, "{ended:?}");
    assert!(ended.iter().all(|(_, line)| line.contains("waited=")), "{ended:?}");
}

/// A call that waits for its store, and then for its limit, has one wait.
#[tokio::test]
async fn a_call_that_waits_for_its_store_and_its_limit_is_observed_once() {
    let recorder = Recorder::install();
    let (log, _guard) = Log::install();
    let clock = ManualClock::new();
    let store = PlainStore::new(&clock);
    let limiter = Limiter::builder("memory://").clock(clock.clone()).on_store_error(OnStoreError::Wait { max: MINUTE });
    let limiter = limiter.over(store.clone()).unwrap();
    let rule = Rule::new("item", 1, MINUTE);
    limiter.acquire(&rule, SECRET).await.unwrap();
    store.fail(Some(StoreError::unavailable("gone fishing")));
    let call = tokio::spawn(limiter.acquire_within(&rule, SECRET, 10 * MINUTE));
    settle().await;
    assert_eq!(recorder.waits(), (1.0, 0));
    let failed = store.calls();
    store.fail(None);
    eventually("it waits for its limit", async || store.calls() > failed).await;
    settle().await;
    assert_eq!(recorder.waits(), (0.0, 0));
    clock.advance(MINUTE);
    call.await.unwrap().unwrap();
    assert_eq!(recorder.waits(), (-1.0, 1));
    let ended = log.with("no longer waits");
    assert!(matches!(&ended[..], [(_, line)] if line.contains("admitted=true")), "{ended:?}");
}

/// The number of decisions in a batch is a metric.
#[tokio::test]
async fn the_number_of_decisions_a_batch_is_a_metric() {
    let recorder = Recorder::install();
    let server = RedisServer::start();
    let limiter = limiter_on(&server).await;
    recorder.take();
    let rule = Rule::new("item", 1_000, MINUTE);
    join_all((0..200).map(|_| limiter.acquire(&rule, SECRET))).await;
    let seen = recorder.take();
    assert_eq!(seen["store_decisions_total"], 200);
    assert!(seen["store_round_trips_total"] < 100, "{seen:?}");
}

/// By the code they are two counters. The file makes them one, which a call is charged once.
#[tokio::test]
async fn shadow_rules_that_the_file_makes_one_refuse_no_call_within_their_limit() {
    let recorder = Recorder::install();
    let rules = Rules::parse("[rules.item]\ncount = 5\nunit = \"Minutes\"\nshadow = true");
    let limiter = Limiter::builder("memory://").rules(rules.unwrap()).build().await.unwrap();
    let (second, hour) = (Rule::new("item", 5, MINUTE / 60), Rule::new("item", 100, 60 * MINUTE));
    limiter.acquire_all(&[(&second, Key::new(1), 3), (&hour, Key::new(1), 3)]).await.unwrap();
    let seen = recorder.take();
    assert_eq!(seen.get("decisions_total rule=item outcome=shadow_refused"), None);
    assert_eq!(seen.get("decisions_total rule=item outcome=admitted"), Some(&1));
}

/// Calls refused by another rule are in the counts of the shadow rule too, so that the two can be
/// compared.
#[tokio::test]
async fn a_shadow_rule_is_counted_beside_a_rule_that_refuses() {
    let recorder = Recorder::install();
    let tried = Rule::new("tried", 1, MINUTE).with_shadow(true);
    let held = Rule::new("held", 2, MINUTE);
    let server = RedisServer::start();
    for limiter in [Limiter::in_memory(), limiter_on(&server).await] {
        let charges = [(&tried, Key::new(SECRET), 1), (&held, Key::new(SECRET), 1)];
        for _ in 0..4 {
            let _ = limiter.acquire_all(&charges).await;
        }
        let mut seen = recorder.take();
        seen.retain(|name, _| name.contains("outcome"));
        let expected = counted([
            ("decisions_total rule=tried outcome=admitted", 1),
            ("decisions_total rule=tried outcome=shadow_refused", 3),
            ("decisions_total rule=held outcome=admitted", 2),
            ("decisions_total rule=held outcome=refused", 2),
        ]);
        assert_eq!(seen, expected);
    }
}

/// It would not have refused the call, which is admitted after its wait for the other rule.
#[tokio::test]
async fn a_shadow_rule_is_counted_when_a_waiting_call_ends() {
    let recorder = Recorder::install();
    let clock = ManualClock::new();
    let limiter = in_memory(&clock).await;
    let (held, tried) = (Rule::new("held", 1, MINUTE), Rule::new("tried", 1, MINUTE).with_shadow(true));
    let call = || {
        let charges = (charge(held, key_of(&1), 1), (charge(tried, key_of(&1), 1), ()));
        permit_of_several(Some(&limiter), Call::DEFAULT.wait(), charges)
    };
    call().await.unwrap();
    let waiting = tokio::spawn(call());
    settle().await;
    clock.advance(MINUTE);
    waiting.await.unwrap().unwrap();
    let mut seen = recorder.take();
    seen.retain(|name, _| name.contains("outcome"));
    let expected = counted([
        ("decisions_total rule=held outcome=admitted", 2),
        ("decisions_total rule=tried outcome=admitted", 2),
    ]);
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn a_full_memory_store_is_in_the_log() {
    let (log, _guard) = Log::install();
    let rule = Rule::new("item", 1, MINUTE);
    for (overflow_bytes, words) in [(0, "no room for new keys"), (1 << 16, "new keys in its overflow")] {
        let limiter = Limiter::builder("memory://").max_keys(1).overflow_bytes(overflow_bytes).build().await.unwrap();
        eventually(words, async || {
            let _ = limiter.acquire(&rule, fresh_key()).await;
            !log.with(words).is_empty()
        })
        .await;
    }
}

/// A rule that refuses often does not keep another one out of the log.
#[tokio::test]
async fn each_shadow_rule_has_its_own_line_in_the_log() {
    let (log, _guard) = Log::install();
    let limiter = Limiter::in_memory();
    for prefix in ["tried first", "tried second", "tried third"] {
        let rule = Rule::new(prefix, 1, MINUTE).with_shadow(true);
        for _ in 0..3 {
            limiter.acquire(&rule, SECRET).await.unwrap();
        }
    }
    for prefix in ["tried first", "tried second", "tried third"] {
        let lines = log.with("in shadow mode");
        let lines = lines.iter().filter(|(_, line)| line.contains(prefix)).count();
        assert_eq!(lines, 1, "{prefix}");
    }
}

/// The largest number stands for no limit, and for no wait.
#[tokio::test]
async fn debug_output_shows_no_number_that_stands_for_another_thing() {
    let limiter = Limiter::unlimited();
    let free = limiter.acquire_all(&[]).await.unwrap();
    let peeked = Limiter::in_memory().peek(&Rule::new("item", 5, MINUTE), 1).await.unwrap();
    let shown = format!("{free:?} {peeked:?}");
    assert!(!shown.contains(&u64::MAX.to_string()), "{shown}");
    assert!(shown.contains("limit: unlimited") && shown.contains("retry_after: None"), "{shown}");
}

/// A recorder that panics at the metrics whose names end so.
struct PanickingRecorder(&'static [&'static str]);

impl PanickingRecorder {
    fn record(&self, key: &metrics::Key) {
        let panics = self.0.iter().any(|end| key.name().ends_with(end));
        assert!(!panics, "a recorder that does not work: {key}");
    }
}

impl metrics::Recorder for PanickingRecorder {
    fn describe_counter(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}
    fn describe_gauge(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}
    fn describe_histogram(&self, _: metrics::KeyName, _: Option<metrics::Unit>, _: metrics::SharedString) {}

    fn register_counter(&self, key: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Counter {
        self.record(key);
        metrics::Counter::noop()
    }

    fn register_gauge(&self, key: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Gauge {
        self.record(key);
        metrics::Gauge::noop()
    }

    fn register_histogram(&self, key: &metrics::Key, _: &metrics::Metadata<'_>) -> metrics::Histogram {
        self.record(key);
        metrics::Histogram::noop()
    }
}

/// Before, nothing freed the places: in memory they have no lease.
#[test]
fn a_recorder_that_panics_takes_no_places() {
    let limiter = Limiter::in_memory();
    let place = Rule::new("place", 1, MINUTE).with_algorithm(Algorithm::Concurrent);
    let quota = Rule::new("quota", 9, MINUTE);
    let panics = |call: &mut dyn FnMut()| {
        let call = AssertUnwindSafe(|| metrics::with_local_recorder(&PanickingRecorder(&["decisions_total"]), call));
        std::panic::catch_unwind(call).unwrap_err();
    };
    panics(&mut || drop(limiter.acquire_blocking(&place, 1)));
    let both = [(&place, Key::new(1), 1), (&quota, Key::new(1), 1)];
    let mut call = Box::pin(limiter.acquire_all(&both));
    panics(&mut || drop(call.as_mut().now_or_never()));
    drop(limiter.acquire_blocking(&place, 1).unwrap()); // the call that panicked is not dropped yet
    panics(&mut || drop(call.as_mut().now_or_never())); // it has ended
    limiter.acquire_blocking(&place, 1).unwrap();
}

/// A subscriber that panics when a span is left, and when it ends.
struct PanickingSubscriber;

impl tracing::Subscriber for PanickingSubscriber {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_span() && metadata.target().starts_with("ratelimit_runtime")
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {
        panic!("a subscriber that does not work");
    }
    fn try_close(&self, _: tracing::span::Id) -> bool {
        panic!("a subscriber that does not work");
    }
}

/// Before, the place was taken for a lease, or for ever in memory, and nobody had it.
#[tokio::test]
async fn a_subscriber_that_panics_takes_no_place() {
    let server = RedisServer::start();
    let place = Rule::new("place", 1, MINUTE).with_algorithm(Algorithm::Concurrent);
    for limiter in [limiter_on(&server).await, Limiter::in_memory()] {
        let taken = limiter.acquire(&place, 1).await.unwrap();
        {
            let _guard = tracing::subscriber::set_default(PanickingSubscriber);
            let mut waiting = Box::pin(limiter.acquire_within(&place, 1, MINUTE));
            assert!(waiting.as_mut().now_or_never().is_none());
            drop(taken);
            drop(waiting.await.unwrap());
        }
        limiter.acquire(&place, 1).await.unwrap();
    }
}

/// Before, the second panic ended the process.
#[tokio::test]
async fn a_recorder_that_panics_at_a_decision_and_at_the_end_of_its_wait_ends_one_call() {
    const RULE: Rule = Rule::new("item", 1, Duration::from_millis(20));
    let (limiter, key) = (Limiter::in_memory(), fresh_key());
    limiter.acquire(&RULE, key).await.unwrap();
    {
        let _guard =
            metrics::set_default_local_recorder(&PanickingRecorder(&["decisions_total", "wait_duration_seconds"]));
        AssertUnwindSafe(limiter.acquire_within(&RULE, key, MINUTE)).catch_unwind().await.unwrap_err();
    }
    limiter.acquire_within(&RULE, key, MINUTE).await.unwrap();
}

/// Before, the calls of the batch failed, as if their runtime was shutting down.
#[tokio::test]
async fn a_recorder_that_panics_at_a_round_trip_fails_no_call_and_takes_no_place() {
    let server = RedisServer::start();
    let limiter = limiter_on(&server).await;
    let _guard =
        metrics::set_default_local_recorder(&PanickingRecorder(&["round_trips_total", "store_duration_seconds"]));
    let rule = Rule::new("item", 100, MINUTE);
    let place = Rule::new("place", 1, MINUTE).with_algorithm(Algorithm::Concurrent);
    drop(limiter.acquire(&place, 1).await.unwrap()); // before, it was taken for a lease, and nobody had it
    limiter.acquire(&place, 1).await.unwrap();
    for answer in join_all((0..20).map(|key| limiter.acquire(&rule, key))).await {
        answer.unwrap();
    }
}
