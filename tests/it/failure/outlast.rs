//! `OnStoreError::Wait`: calls wait until the store decides again.

use std::future::Future;
use std::time::Duration;

use futures_util::future::join_all;
use ratelimit_harness::{RedisCluster, RedisServer};
use ratelimit_runtime::config::Rules;
use ratelimit_runtime::store::StoreError;
use ratelimit_runtime::{
    Cause, Health, Key, Limiter, ManualClock, OnStoreError, Permit, RequestPerMinute, Rule, limit_request_per_time,
};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::{DEADLINE, HOUR, limiter};
use crate::support::plain_store::PlainStore;
use crate::support::servers::{keys, script_calls};
use crate::support::{FIXED, LOG, SECOND, ends, eventually, exceeded, hourly, settle};

const MINUTE: Duration = Duration::from_secs(60);
const FOR_A_MINUTE: OnStoreError = OnStoreError::Wait { max: MINUTE };

/// On a store that fails from the first call on.
fn on_failing_store() -> (Limiter, PlainStore, ManualClock) {
    let clock = ManualClock::new();
    let store = PlainStore::new(&clock);
    let builder = Limiter::builder("memory://").clock(clock.clone()).on_store_error(FOR_A_MINUTE);
    store.fail(Some(StoreError::unavailable("gone fishing")));
    (builder.over(store.clone()).unwrap(), store, clock)
}

/// Lets the store fail, and the turn of the first waiting call come. Returns once it has asked.
async fn fail_at_the_turn(store: &PlainStore, clock: &ManualClock, after: Duration) {
    settle().await;
    let asked = store.calls();
    store.fail(Some(StoreError::unavailable("gone fishing")));
    clock.advance(after);
    eventually("its turn has come", async || store.calls() > asked).await;
}

type Call = JoinHandle<Result<Permit, RequestPerMinute>>;

/// Starts a call that is refused over the limit, and one that waits.
fn both(limiter: &Limiter, rule: &Rule) -> [Call; 2] {
    [tokio::spawn(limiter.acquire(rule, 1)), tokio::spawn(limiter.acquire_within(rule, 1, 2 * HOUR))]
}

/// Starts calls and returns once they wait.
async fn waiting<T: Send + 'static>(
    calls: impl IntoIterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Vec<JoinHandle<T>> {
    let calls = calls.into_iter().map(tokio::spawn).collect();
    sleep(2 * DEADLINE).await;
    calls
}

async fn all_end<T>(calls: impl IntoIterator<Item = JoinHandle<T>>) -> Vec<T> {
    ends(join_all(calls)).await.into_iter().map(Result::unwrap).collect()
}

/// The server is killed, or halted, for two seconds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_wait_through_an_outage() {
    for is_killed in [true, false] {
        let mut server = RedisServer::start();
        let limiter = limiter(&server.url(), FOR_A_MINUTE).await;
        let rules = [hourly(1000, FIXED), Rule::new("log", 1000, HOUR).with_algorithm(LOG)];
        limiter.acquire(&rules[0], 0).await.unwrap();
        if is_killed {
            server.kill();
        } else {
            server.stop();
        }
        let calls = waiting((0..60).map(|number| {
            let (limiter, rule) = (limiter.clone(), rules[number % 2]);
            async move {
                match number % 3 {
                    0 => limiter.acquire(&rule, 1).await.map(drop),
                    1 => limiter.acquire_within(&rule, 1, HOUR).await.map(drop),
                    _ => {
                        limiter.acquire_all(&[(&rules[0], Key::new(1), 1), (&rules[1], Key::new(1), 1)]).await.map(drop)
                    }
                }
            }
        }))
        .await;
        let few = Rule::new("few", 10, HOUR);
        let crowd = waiting((0..30).map(|_| limiter.acquire(&few, 1))).await;
        sleep(2 * SECOND).await;
        assert!(calls.iter().all(|call| !call.is_finished()), "killed: {is_killed}");
        if is_killed {
            server.restart();
        } else {
            server.cont();
        }
        for answer in all_end(calls).await {
            answer.unwrap_or_else(|refused| panic!("killed: {is_killed}: {refused}"));
        }
        let charged = 1000 - limiter.peek(&rules[0], 1).await.unwrap().remaining();
        let admitted = all_end(crowd).await.iter().filter(|answer| answer.is_ok()).count();
        assert!(admitted <= 10, "killed: {is_killed}: {admitted}");
        // 20 calls of this rule alone, 20 of both. A lost reply is charged again.
        assert!((40..=80).contains(&charged), "killed: {is_killed}: {charged}");
    }
}

/// A thousand calls neither ask a halted server again and again, nor one that answers with errors.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_calls_do_not_storm_the_server() {
    let server = RedisServer::start();
    let limiter = limiter(&server.url(), FOR_A_MINUTE).await;
    let rule = hourly(100_000, FIXED);
    limiter.acquire(&rule, 0).await.unwrap();
    let before = script_calls(&server);
    server.stop();
    let calls = waiting((0..1000).map(|key| limiter.acquire(&rule, key))).await;
    sleep(2 * SECOND).await;
    server.cont();
    assert!(all_end(calls).await.iter().all(Result::is_ok));
    let asked = script_calls(&server) - before;
    assert!(asked < 3000, "{asked} decisions for 1,000 calls");

    let (limiter, store, _clock) = on_failing_store();
    let calls = waiting((0..1000).map(|key| limiter.acquire(&rule, key))).await;
    sleep(3 * SECOND).await;
    let asked = store.calls();
    assert!(asked < 1000 + 2500, "{asked} requests of 1,000 calls within some 3 s");
    store.fail(None);
    assert!(all_end(calls).await.iter().all(Result::is_ok));
}

#[tokio::test]
async fn calls_whose_time_ends_do_not_storm_the_store() {
    let store = PlainStore::new(&ManualClock::new());
    store.fail(Some(StoreError::unavailable("loading")));
    let policy = OnStoreError::Wait { max: 3 * SECOND };
    let limiter = Limiter::builder("memory://").on_store_error(policy).over(store.clone()).unwrap();
    let rule = hourly(100_000, FIXED);
    let calls: Vec<_> = (0..1000).map(|key| tokio::spawn(limiter.acquire(&rule, key))).collect();
    assert!(all_end(calls).await.iter().all(Result::is_err));
    // The first and the last request of each, and 500 a second.
    let asked = store.calls();
    assert!((2000..2000 + 3 * 500).contains(&asked), "{asked} requests");
}

#[tokio::test]
async fn a_wait_ends_with_the_refusal_of_deny() {
    let (limiter, store, clock) = on_failing_store();
    let rule = hourly(5, FIXED);
    let calls = both(&limiter, &rule);
    settle().await;
    clock.advance(MINUTE - Duration::from_millis(1));
    sleep(DEADLINE).await;
    assert!(calls.iter().all(|call| !call.is_finished()));
    clock.advance(Duration::from_millis(1));
    for answer in all_end(calls).await {
        let refused = answer.unwrap_err();
        assert_eq!(refused.cause(), Cause::Unavailable);
        assert!(refused.to_string().contains("gone fishing"), "{refused}");
    }
    store.fail(None);
    assert_eq!(limiter.peek(&rule, 1).await.unwrap().remaining(), 5);
}

/// A rule in shadow mode refuses no call, and so delays none.
#[tokio::test]
async fn a_rule_in_shadow_mode_does_not_wait() {
    let (limiter, _store, _clock) = on_failing_store();
    ends(limiter.acquire(&hourly(5, FIXED).with_shadow(true), 1)).await.unwrap();
}

/// After the outage, a call is limited as before.
#[tokio::test]
async fn a_call_that_outlasts_an_outage_then_waits_for_its_limit() {
    let (limiter, store, clock) = on_failing_store();
    let rule = hourly(1, FIXED);
    store.fail(None);
    limiter.acquire(&rule, 1).await.unwrap();
    store.fail(Some(StoreError::unavailable("gone fishing")));
    let [at_once, waits] = both(&limiter, &rule);
    sleep(DEADLINE).await;
    assert!(!at_once.is_finished());
    store.fail(None);
    exceeded(ends(at_once).await.unwrap());
    sleep(SECOND).await; // no pause is longer by now
    assert!(!waits.is_finished());
    clock.advance(HOUR);
    ends(waits).await.unwrap().unwrap();
}

/// The outage begins while the call waits for its limit. It keeps its place.
#[tokio::test]
async fn a_call_in_a_queue_outlasts_an_outage() {
    let (limiter, store, clock) = on_failing_store();
    let rule = hourly(1, FIXED);
    store.fail(None);
    limiter.acquire(&rule, 1).await.unwrap();
    let [first, second] = [HOUR, 2 * HOUR].map(|longest| tokio::spawn(limiter.acquire_within(&rule, 1, longest)));
    fail_at_the_turn(&store, &clock, HOUR).await;
    sleep(DEADLINE).await;
    assert!(!first.is_finished() && !second.is_finished());
    store.fail(None);
    ends(first).await.unwrap().unwrap();
    assert!(!second.is_finished());
    clock.advance(HOUR);
    ends(second).await.unwrap().unwrap();
}

/// Calls in a queue wait for the store side by side, and each as long as it may.
#[tokio::test]
async fn calls_in_a_queue_wait_for_the_store_together() {
    let (limiter, store, clock) = on_failing_store();
    let rule = hourly(1, FIXED);
    store.fail(None);
    limiter.acquire(&rule, 1).await.unwrap();
    let calls: Vec<_> = (0..4).map(|_| tokio::spawn(limiter.acquire_within(&rule, 1, 9 * HOUR))).collect();
    fail_at_the_turn(&store, &clock, HOUR).await;
    settle().await;
    clock.advance(MINUTE - Duration::from_millis(1));
    sleep(DEADLINE).await;
    assert!(calls.iter().all(|call| !call.is_finished()));
    clock.advance(Duration::from_millis(1));
    for answer in all_end(calls).await {
        let refused = answer.unwrap_err();
        assert_eq!(refused.cause(), Cause::Unavailable);
        assert!(refused.to_string().contains("gone fishing"), "{refused}");
    }
}

/// The calls behind the first one of a queue do not give up because of an outage, either.
#[tokio::test]
async fn an_outage_takes_nothing_from_the_wait_in_a_queue() {
    let (limiter, store, clock) = on_failing_store();
    let rule = Rule::new("item", 1, 20 * SECOND);
    store.fail(None);
    limiter.acquire(&rule, 1).await.unwrap();
    let [first, second] = [(); 2].map(|()| tokio::spawn(limiter.acquire_within(&rule, 1, 45 * SECOND)));
    fail_at_the_turn(&store, &clock, 20 * SECOND).await;
    settle().await;
    clock.advance(40 * SECOND);
    sleep(DEADLINE).await;
    assert!(!first.is_finished() && !second.is_finished());
    store.fail(None);
    ends(first).await.unwrap().unwrap();
    clock.advance(20 * SECOND);
    ends(second).await.unwrap().unwrap();
}

/// Nor do the requests of the first one, which have no answer in time.
#[tokio::test]
async fn requests_without_an_answer_take_nothing_from_the_wait_in_a_queue() {
    let (limiter, store, clock) = on_failing_store();
    let rule = Rule::new("item", 1, 20 * SECOND);
    store.fail(None);
    limiter.acquire(&rule, 1).await.unwrap();
    let call = tokio::spawn(limiter.acquire_within(&rule, 1, 45 * SECOND));
    settle().await;
    let mut asked = store.calls();
    store.fail(Some(StoreError::unavailable("gone fishing")));
    store.hold();
    clock.advance(20 * SECOND);
    for _ in 0..2 {
        eventually("it asks", async || store.calls() > asked).await;
        asked = store.calls();
        clock.advance(25 * SECOND);
    }
    eventually("the second request has failed, too", async || store.calls() > asked).await;
    // Another process is first when the store is back.
    (0..1_000).for_each(|_| store.release());
    let other = Limiter::builder("memory://").clock(clock.clone()).over(store.clone()).unwrap();
    settle().await;
    store.fail(None);
    other.acquire(&rule, 1).await.unwrap();
    let asked = store.calls();
    eventually("it is refused", async || store.calls() > asked).await;
    settle().await;
    clock.advance(20 * SECOND);
    ends(call).await.unwrap().unwrap();
}

/// Nor does the first request of a call.
#[tokio::test]
async fn a_first_request_without_an_answer_takes_nothing_from_the_wait_in_a_queue() {
    let (limiter, store, clock) = on_failing_store();
    let rule = Rule::new("item", 1, 20 * SECOND);
    store.fail(None);
    limiter.acquire(&rule, 1).await.unwrap();
    let asked = store.calls();
    store.hold();
    let call = tokio::spawn(limiter.acquire_within(&rule, 1, 15 * SECOND));
    eventually("it asks", async || store.calls() > asked).await;
    clock.advance(12 * SECOND);
    eventually("it asks again, after the deadline", async || store.calls() > asked + 1).await;
    (0..1_000).for_each(|_| store.release());
    sleep(DEADLINE).await;
    clock.advance(8 * SECOND);
    ends(call).await.unwrap().unwrap();
}

/// An operator switches a rule off, or lets its calls pass, while the store is away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_rules_reach_calls_that_wait_for_the_store() {
    let mut server = RedisServer::start();
    let unchanged = "[rules.other]\ncount = 1";
    let rules = Rules::parse(unchanged).unwrap();
    let builder = Limiter::builder(&server.url()).rules(rules.clone()).deadline(DEADLINE);
    let limiter = builder.on_store_error(FOR_A_MINUTE).build().await.unwrap();
    let rule = hourly(9, FIXED);
    limiter.acquire(&rule, 1).await.unwrap();
    server.kill();
    for changed in ["enabled = false", "on_store_error = \"Allow\""] {
        rules.replace(unchanged).unwrap();
        let calls = both(&limiter, &rule);
        sleep(2 * DEADLINE).await;
        assert!(calls.iter().all(|call| !call.is_finished()));
        rules.replace(&format!("[rules.item]\n{changed}")).unwrap();
        assert!(all_end(calls).await.iter().all(Result::is_ok), "{changed}");
    }
    rules.replace(unchanged).unwrap();
    let calls = both(&limiter, &rule);
    sleep(2 * DEADLINE).await;
    rules.replace("[rules.item]\non_store_error = { Wait = { max = 1, unit = \"Milliseconds\" } }").unwrap();
    for answer in all_end(calls).await {
        assert_eq!(answer.unwrap_err().cause(), Cause::Unavailable);
    }
}

/// A longer wait, set while they wait, also reaches the calls behind the first one of a queue.
#[tokio::test]
async fn a_longer_wait_for_the_store_reaches_calls_in_a_queue() {
    let (clock, rules) = (ManualClock::new(), Rules::parse("[rules.other]\ncount = 1").unwrap());
    let store = PlainStore::new(&clock);
    let builder = Limiter::builder("memory://").clock(clock.clone()).on_store_error(FOR_A_MINUTE);
    let limiter = builder.rules(rules.clone()).over(store.clone()).unwrap();
    let rule = hourly(1, FIXED);
    limiter.acquire(&rule, 1).await.unwrap();
    let calls: Vec<_> = (0..3).map(|_| tokio::spawn(limiter.acquire_within(&rule, 1, 9 * HOUR))).collect();
    fail_at_the_turn(&store, &clock, HOUR).await;
    rules.replace("[rules.item]\non_store_error = { Wait = { max = 10, unit = \"Minutes\" } }").unwrap();
    settle().await;
    clock.advance(10 * MINUTE - SECOND);
    sleep(DEADLINE).await;
    assert!(calls.iter().all(|call| !call.is_finished()));
    clock.advance(2 * SECOND);
    for answer in all_end(calls).await {
        assert_eq!(answer.unwrap_err().cause(), Cause::Unavailable);
    }
}

/// Calls of the lost node wait, and no others. The cluster answers with errors for a while, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_a_lost_node_of_a_cluster_wait() {
    let cluster = tokio::task::block_in_place(RedisCluster::start);
    let limiter = limiter(&cluster.url(), FOR_A_MINUTE).await;
    let rule = hourly(3, FIXED);
    limiter.acquire(&rule, "first").await.unwrap();
    let lost = cluster.primaries()[0];
    cluster.node(lost).stop();
    let calls = waiting((0..60).map(|key| limiter.acquire(&rule, key))).await;
    sleep(2 * SECOND).await;
    assert!(calls.iter().any(|call| !call.is_finished()));
    cluster.node(lost).cont();
    assert!(all_end(calls).await.iter().all(Result::is_ok));
}

/// A replica takes over the slots of the lost node. Nothing but the calls that wait looks for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_a_lost_node_of_a_cluster_find_its_replica() {
    let mut cluster = tokio::task::block_in_place(RedisCluster::start);
    let limiters = [limiter(&cluster.url(), FOR_A_MINUTE).await, limiter(&cluster.url(), OnStoreError::Deny).await];
    let rule = hourly(3, FIXED);
    for limiter in &limiters {
        limiter.acquire(&rule, "first").await.unwrap();
    }
    let lost = *cluster.primaries().iter().find(|&&node| !keys(cluster.node(node)).is_empty()).unwrap();
    cluster.node_mut(lost).kill();
    let refused = limiters[1].acquire(&rule, "first").await.unwrap_err();
    assert_eq!(refused.cause(), Cause::Unavailable);
    let calls = waiting([limiters[0].acquire(&rule, "first")]).await;
    // The refresh of the topology that the first failure has begun ends before the replica is promoted.
    sleep(SECOND / 2).await;
    tokio::task::block_in_place(|| cluster.wait_until_ready());
    assert!(all_end(calls).await.iter().all(Result::is_ok));
    eventually("the limiter sees it without a call", || async { limiters[1].health() == Health::Available }).await;
}

/// A call that is dropped while it waits charges nothing, and lets the next one ask.
#[tokio::test]
async fn a_waiting_call_can_be_dropped() {
    let (limiter, store, _clock) = on_failing_store();
    let rule = hourly(3, FIXED);
    let calls: Vec<_> = (0..3).flat_map(|_| both(&limiter, &rule)).collect();
    sleep(DEADLINE).await;
    calls.iter().for_each(JoinHandle::abort);
    for call in calls {
        assert!(call.await.unwrap_err().is_cancelled());
    }
    store.fail(None);
    assert_eq!(limiter.peek(&rule, 1).await.unwrap().remaining(), 3);
    ends(limiter.acquire_within(&rule, 1, HOUR)).await.unwrap();
}

#[tokio::test]
async fn too_many_calls_do_not_wait_for_the_store() {
    let store = PlainStore::new(&ManualClock::new());
    store.fail(Some(StoreError::unavailable("gone fishing")));
    let limiter =
        Limiter::builder("memory://").max_waiting(2).on_store_error(FOR_A_MINUTE).over(store.clone()).unwrap();
    let rule = hourly(1000, FIXED);
    let calls = waiting((0..2).map(|_| limiter.acquire(&rule, 1))).await;
    for _ in 0..3 {
        let refused = ends(limiter.acquire(&rule, 1)).await.unwrap_err();
        assert_eq!(refused.cause(), Cause::Unavailable);
    }
    store.fail(None);
    assert!(all_end(calls).await.iter().all(Result::is_ok));
    ends(limiter.acquire(&rule, 1)).await.unwrap();
}

#[tokio::test]
async fn close_refuses_calls_that_wait_for_the_store() {
    let (limiter, _store, _clock) = on_failing_store();
    let calls = both(&limiter, &hourly(3, FIXED));
    sleep(DEADLINE).await;
    limiter.close().await;
    for answer in all_end(calls).await {
        assert_eq!(answer.unwrap_err().cause(), Cause::Unavailable);
    }
    assert_eq!(ends(limiter.acquire(&hourly(3, FIXED), 1)).await.unwrap_err().cause(), Cause::Unavailable);
}

/// The server is started only after the call.
#[tokio::test]
async fn attributes_and_files_set_the_policy() {
    #[limit_request_per_time("saved", 1, Minutes, 5, key = id, on_store_error = Wait(max = "1m"))]
    async fn save(id: u64) -> Result<u64, RequestPerMinute> {
        Ok(id)
    }

    #[limit_request_per_time("brief", 1, Minutes, 5, on_store_error = Wait(max = "300ms"))]
    async fn brief() -> Result<(), RequestPerMinute> {
        Ok(())
    }

    let mut server = RedisServer::start();
    let text = "[rules.item]\non_store_error = { Wait = { max = 1, unit = \"Minutes\" } }";
    let rules = ratelimit_runtime::config::Rules::parse(text).unwrap();
    let builder = Limiter::builder(&server.url()).deadline(DEADLINE).on_store_error(OnStoreError::Deny).rules(rules);
    let limiter = builder.build().await.unwrap();
    server.kill();
    assert_eq!(ends(limiter.scope(brief())).await.unwrap_err().cause(), Cause::Unavailable);
    let saved = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.scope(save(7)).await }
    });
    let item = tokio::spawn(limiter.acquire(&hourly(1, FIXED), 1));
    sleep(SECOND).await;
    assert!(!saved.is_finished() && !item.is_finished());
    server.restart();
    assert_eq!(ends(saved).await.unwrap().unwrap(), 7);
    ends(item).await.unwrap().unwrap();
    eventually("the server decides", async || limiter.peek(&hourly(1, FIXED), 0).await.is_ok()).await;
}
