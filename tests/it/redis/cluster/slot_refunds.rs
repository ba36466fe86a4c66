//! Refunds of calls in several slots of a cluster: other calls were denied meanwhile, or wait.

use std::time::Duration;

use ratelimit_harness::{Mode, Proxy, RedisCluster};
use ratelimit_runtime::{Algorithm, Cause, Key, Limiter, Permit, RequestPerMinute, Rule};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::{keys_apart, limiter_on, name};
use crate::support::servers::{ask, script_calls};
use crate::support::{FIXED, MS, PATIENCE, SECOND, eventually, exceeded, hourly};

type Answer = Result<Permit, RequestPerMinute>;

/// A call charges its first counter, and then its other node is away: the charge is refunded, and a denial that
/// was cached meanwhile does not hold.
#[tokio::test]
async fn a_failure_in_another_slot_leaves_no_cached_denial() {
    let (cluster, limiter, [first, second]) = two_slots().await;
    let rule = hourly(1, FIXED);
    let [near, far] = [first, second].map(|key| cluster.primary_of(name(&rule, key)));
    let before = script_calls(cluster.node(near));
    cluster.proxy(near).set(Mode::Delay(400 * MS));
    let both = acquire_both(&limiter, rule, [first, second]);
    let is_charged = async || script_calls(cluster.node(near)) == before + 2; // the answer takes 400 ms
    eventually("the first is evaluated and charged", is_charged).await;
    cluster.proxy(far).set(Mode::Refuse);
    cluster.proxy(far).reset();
    exceeded(limiter.acquire(&rule, first).await); // behind the charge, and ahead of its refund
    assert_eq!(both.await.unwrap().unwrap_err().cause(), Cause::Unavailable);
    cluster.proxy(near).set(Mode::Pass);
    let is_refunded = async || limiter.peek(&rule, first).await.is_ok_and(|found| found.remaining() == 1);
    eventually("it is refunded", is_refunded).await;
    limiter.acquire(&rule, first).await.unwrap();
}

/// A call charges its first counter, and its other one refuses after all. A caller who was refused meanwhile, and
/// waits, is admitted when the charge is refunded. The queue alone would look again after six minutes.
#[tokio::test]
async fn a_waiting_caller_gets_a_charge_that_another_slot_has_refused() {
    let (cluster, limiter, [first, second]) = two_slots().await;
    let rule = hourly(1, FIXED);
    let node = cluster.primary_of(name(&rule, first));
    let (server, near) = (cluster.node(node), cluster.proxy(node));
    let before = script_calls(server);
    near.set(Mode::Delay(400 * MS));
    let both = acquire_both(&limiter, rule, [first, second]);
    let are_run = async |calls| eventually("its scripts", async || script_calls(server) == before + calls).await;
    are_run(1).await; // all fits; the answer takes 400 ms, and the charge as long
    limiter.acquire(&rule, second).await.unwrap();
    are_run(2).await;
    let waits = acquire_within(&limiter, rule, first); // behind the charge, and ahead of its refund
    exceeded(both.await.unwrap());
    near.set(Mode::Pass);
    timeout(PATIENCE, waits).await.expect("it is admitted").unwrap().unwrap();
}

/// Also if the caller of both slots leaves.
#[tokio::test]
async fn a_waiting_caller_gets_the_charge_of_a_caller_who_has_left() {
    let (cluster, limiter, [first, second]) = two_slots().await;
    let rule = hourly(1, FIXED);
    let node = cluster.primary_of(name(&rule, first));
    let (before, near) = (script_calls(cluster.node(node)), cluster.proxy(node));
    near.set(Mode::Delay(400 * MS));
    let both = acquire_both(&limiter, rule, [first, second]);
    let is_charged = async || script_calls(cluster.node(node)) == before + 2; // the answer takes 400 ms
    eventually("the first is evaluated and charged", is_charged).await;
    let waits = acquire_within(&limiter, rule, first); // behind the charge, and ahead of its refund
    sleep(50 * MS).await;
    both.abort();
    near.set(Mode::Pass);
    timeout(PATIENCE, waits).await.expect("it is admitted").unwrap().unwrap();
}

/// The refund arrives two seconds after the time for which its answer is waited for.
#[tokio::test]
async fn a_late_refund_in_a_slot_leaves_no_cached_denial_and_wakes_who_waits() {
    let mut tries = 0..10;
    while tries.next().is_some() {
        if late_refund().await {
            return;
        }
    }
    panic!("the proxy has held another request each time");
}

/// Returns false if the proxy has held another request than the refund, such as one that tests the connection.
async fn late_refund() -> bool {
    let (cluster, limiter, [first, second]) = two_slots().await;
    let rule = hourly(2, FIXED);
    let node = cluster.primary_of(name(&rule, first));
    let near = cluster.proxy(node);
    open_background_connection(&limiter, first).await;
    near.set(Mode::Delay(400 * MS));
    let both = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire_all(&[(&rule, Key::new(first), 2), (&rule, Key::new(second), 1)]).await }
    });
    let is_charged = || ask::<u64>(cluster.node(node), &format!("EXISTS {}", name(&rule, first))) == 1;
    eventually("the first is charged", async || is_charged()).await;
    both.abort();
    sleep(600 * MS).await; // its connection was tested after 400 ms; the refund would arrive after 800 ms
    near.hold_next_request(3 * SECOND);
    sleep(500 * MS).await;
    near.set(Mode::Pass);
    if !is_charged() {
        return false;
    }
    let waits = acquire_within(&limiter, rule, first);
    sleep(SECOND).await; // the answer to the refund was waited for until 1,400 ms
    assert!(!waits.is_finished(), "it is refunded after 3,800 ms");
    exceeded(limiter.acquire(&rule, first).await); // it is cached
    timeout(PATIENCE, waits).await.expect("it is admitted").unwrap().unwrap();
    limiter.acquire(&rule, first).await.unwrap();
    true
}

/// A call takes a place, then its other rule refuses, and the release of the place gets no answer.
#[tokio::test]
async fn a_place_beside_a_refusal_is_released_again_if_there_is_no_answer() {
    let (cluster, limiter, [first, second]) = two_slots().await;
    let place = hourly(1, Algorithm::Concurrent);
    let (near, both) = take_a_place_and_be_refused(&cluster, &limiter, place, [first, second]).await;
    near.hold_next_request(600 * SECOND);
    exceeded(both.await.unwrap());
    near.set(Mode::Pass);
    let other = limiter_on(&cluster).await;
    eventually("it is free", async || other.acquire(&place, first).await.is_ok()).await;
}

/// Returns when the call has the place. Its release is sent after a second, and would arrive after two.
async fn take_a_place_and_be_refused<'a>(
    cluster: &'a RedisCluster,
    limiter: &Limiter,
    place: Rule,
    [first, second]: [u64; 2],
) -> (&'a Proxy, JoinHandle<Answer>) {
    let quota = hourly(1, FIXED);
    limiter.peek(&place, first).await.unwrap();
    limiter.acquire(&place, first).await.unwrap().refund().await.unwrap(); // its scripts are loaded
    let node = cluster.primary_of(name(&place, first));
    let (server, near) = (cluster.node(node), cluster.proxy(node));
    let before = script_calls(server);
    near.set(Mode::Delay(SECOND));
    let both = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire_all(&[(&place, Key::new(first), 1), (&quota, Key::new(second), 1)]).await }
    });
    let are_run = async |calls| eventually("its scripts", async || script_calls(server) == before + calls).await;
    are_run(1).await; // all fits; the answer takes a second, and the next request as long
    limiter.acquire(&quota, second).await.unwrap();
    are_run(2).await;
    (near, both)
}

fn acquire_both(limiter: &Limiter, rule: Rule, [first, second]: [u64; 2]) -> JoinHandle<Answer> {
    let limiter = limiter.clone();
    tokio::spawn(async move { limiter.acquire_all(&[(&rule, Key::new(first), 1), (&rule, Key::new(second), 1)]).await })
}

fn acquire_within(limiter: &Limiter, rule: Rule, key: u64) -> JoinHandle<Answer> {
    let limiter = limiter.clone();
    tokio::spawn(async move { limiter.acquire_within(&rule, key, 2 * 3600 * SECOND).await })
}

/// A call takes a place, then its other rule refuses, and the connection breaks while the place is refunded.
#[tokio::test]
async fn a_place_beside_a_refusal_is_free_although_its_refund_was_lost() {
    let (cluster, limiter, [first, second]) = two_slots().await;
    let place = hourly(1, Algorithm::Concurrent);
    let (near, both) = take_a_place_and_be_refused(&cluster, &limiter, place, [first, second]).await;
    sleep(1_500 * MS).await;
    near.set(Mode::Refuse);
    near.reset();
    sleep(100 * MS).await;
    near.set(Mode::Pass);
    exceeded(both.await.unwrap());
    eventually("it is free", async || limiter.acquire(&place, first).await.is_ok()).await;
}

/// As in `a_failure_in_another_slot_leaves_no_cached_denial`, but the caller leaves.
#[tokio::test]
async fn a_caller_of_several_slots_who_leaves_leaves_no_cached_denial() {
    let (cluster, limiter, [first, second]) = two_slots().await;
    let rule = hourly(1, FIXED);
    open_background_connection(&limiter, first).await;
    cluster.proxy(cluster.primary_of(name(&rule, first))).set(Mode::Delay(50 * MS));
    let both = acquire_both(&limiter, rule, [first, second]);
    sleep(130 * MS).await; // evaluated after 100 ms; the charge of the first arrives after 150 ms
    both.abort();
    let _ = limiter.acquire(&rule, first).await; // behind the charge, and ahead of its refund, most of the times
    cluster.proxy(cluster.primary_of(name(&rule, first))).set(Mode::Pass);
    let is_refunded = async || limiter.peek(&rule, first).await.is_ok_and(|found| found.remaining() == 1);
    eventually("it is refunded", is_refunded).await;
    eventually("it is admitted", async || limiter.acquire(&rule, first).await.is_ok()).await;
}

/// Opens the connection of the background runtime to the node of a key.
async fn open_background_connection(limiter: &Limiter, key: u64) {
    const WARM: Rule = Rule::new("warm", 9, Duration::from_secs(3600));
    let limiter = limiter.clone();
    tokio::task::spawn_blocking(move || limiter.acquire_blocking(&WARM, key).map(drop)).await.unwrap().unwrap();
}

/// A limiter whose scripts are loaded, and two keys in slots of several nodes, in the order of the slots.
async fn two_slots() -> (RedisCluster, Limiter, [u64; 2]) {
    let cluster = RedisCluster::builder().replicas(0).proxied().start();
    let limiter = limiter_on(&cluster).await;
    let (rule, warm) = (hourly(1, FIXED), Rule::new("warm", 9, 3600 * SECOND));
    let mut keys = keys_apart(&cluster, 2);
    keys.sort_by_key(|key| cluster.slot_of(name(&rule, *key)));
    for key in &keys {
        limiter.acquire(&warm, *key).await.unwrap().refund().await.unwrap();
        limiter.peek(&rule, *key).await.unwrap();
    }
    let keys = [keys[0], keys[1]];
    (cluster, limiter, keys)
}
