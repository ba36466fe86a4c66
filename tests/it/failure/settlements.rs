//! Settlements and refunds that the store could not make at first: they are repeated, and made once.

use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use ratelimit_harness::{Mode, Proxy, RedisCluster, RedisServer};
use ratelimit_runtime::__private::{Call, charge_settled, key as key_of, permit_of_several};
use ratelimit_runtime::conformance::store_of;
use ratelimit_runtime::store::{Batch, Charge, Charges, Reply, StoreError};
use ratelimit_runtime::{Cause, CounterName, Key, Limiter, OnStoreError, Permit, RequestPerMinute, Reservation, Store};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::support::holds::{TIME, TOKENS, acquire_time, remaining};
use crate::support::servers::ask;
use crate::support::{FIXED, MS, PATIENCE, SECOND, eventually, fresh_key, hourly, limiter_on};

const KEYS: usize = 5;

/// A call of each kind: they were charged 300 of 900, and are settled or refunded below.
struct Calls {
    keys: [u64; KEYS],
    less: Reservation,
    more: Reservation,
    plain: Permit,
    two: Permit,
}

impl Calls {
    async fn make(limiter: &Limiter, keys: [u64; KEYS]) -> Self {
        let rule = hourly(1000, FIXED);
        for key in keys {
            limiter.acquire_n(&rule, key, 100).await.unwrap(); // a counter that is refunded in full would be deleted
        }
        let two = [(&rule, Key::new(keys[3]), 300), (&rule, Key::new(keys[4]), 300)];
        Self {
            keys,
            less: limiter.reserve(&rule, keys[0], 300).await.unwrap(),
            more: limiter.reserve(&rule, keys[1], 300).await.unwrap(),
            plain: limiter.acquire_n(&rule, keys[2], 300).await.unwrap(),
            two: limiter.acquire_all(&two).await.unwrap(),
        }
    }

    /// Uses 100 of one, 400 of another, and refunds the others. All of it fails.
    async fn end(self) -> [u64; KEYS] {
        fn unavailable<T: std::fmt::Debug>(answer: Result<T, RequestPerMinute>) {
            assert_eq!(answer.unwrap_err().cause(), Cause::Unavailable);
        }
        unavailable(self.less.settle(100).await);
        unavailable(self.more.settle(400).await);
        unavailable(self.plain.refund().await);
        unavailable(self.two.refund().await);
        self.keys
    }
}

async fn left(limiter: &Limiter, keys: [u64; KEYS]) -> Option<[u64; KEYS]> {
    let mut left = [0; KEYS];
    for (key, left) in keys.into_iter().zip(&mut left) {
        *left = limiter.peek(&hourly(1000, FIXED), key).await.ok()?.remaining();
    }
    Some(left)
}

const UNTOUCHED: [u64; KEYS] = [600; KEYS];
const ENDED: [u64; KEYS] = [800, 500, 900, 900, 900];

/// Each is made once.
async fn ends_once(limiter: &Limiter, keys: [u64; KEYS]) {
    eventually("they are settled", || async { left(limiter, keys).await == Some(ENDED) }).await;
    sleep(SECOND).await;
    assert_eq!(left(limiter, keys).await, Some(ENDED));
}

fn deny(url: &str, deadline: Duration) -> ratelimit_runtime::Builder {
    Limiter::builder(url).deadline(deadline).on_store_error(OnStoreError::Deny)
}

/// The server refuses each of them with an error, and has changed nothing.
#[tokio::test]
async fn what_a_server_refuses_is_made_when_it_accepts_writes() {
    let server = RedisServer::start();
    let limiter = limiter_on(&server).await;
    for (refuse, accept) in [
        ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"),
        ("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0"),
        ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
        ("CONFIG SET replica-serve-stale-data no", "REPLICAOF NO ONE"),
    ] {
        let calls = Calls::make(&limiter, [(); KEYS].map(|()| fresh_key())).await;
        ask::<()>(&server, refuse);
        if accept == "REPLICAOF NO ONE" {
            ask::<()>(&server, "REPLICAOF 127.0.0.1 1");
        }
        let keys = calls.end().await;
        ask::<()>(&server, accept);
        ends_once(&limiter, keys).await;
    }
}

/// The server has lost the hold when it accepts writes again. No attempt may have settled it, so the use is charged.
#[tokio::test]
async fn a_cost_whose_hold_was_lost_meanwhile_is_charged() {
    let server = RedisServer::start();
    let (limiter, key) = (limiter_on(&server).await, fresh_key());
    let reservation = limiter.reserve(&TOKENS, key, 300).await.unwrap();
    ask::<()>(&server, "CONFIG SET maxmemory 1");
    assert_eq!(reservation.settle(200).await.unwrap_err().cause(), Cause::Unavailable);
    ask::<()>(&server, "FLUSHALL");
    ask::<()>(&server, "CONFIG SET maxmemory 0");
    eventually("it is charged", || async { remaining(&limiter, &TOKENS, key).await == 800 }).await;
}

/// Takes the slots of these keys from their nodes (`DELSLOTS`), or gives them back (`ADDSLOTS`).
fn set_slots(cluster: &RedisCluster, change: &str, owners: &[(u16, usize)]) {
    for (slot, node) in owners {
        ask::<()>(cluster.node(*node), &format!("CLUSTER {change} {slot}"));
    }
}

fn owners(cluster: &RedisCluster, keys: &[u64]) -> Vec<(u16, usize)> {
    let slots = keys.iter().map(|key| cluster.slot_of(format!("{{{key}}}")));
    slots.map(|slot| (slot, cluster.primary_of_slot(slot))).collect()
}

fn cluster() -> RedisCluster {
    RedisCluster::builder().replicas(0).arg("--cluster-require-full-coverage", "no").start()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_a_cluster_refuses_is_made_when_it_is_up() {
    let cluster = cluster();
    let limiter = deny(&cluster.url(), PATIENCE).build().await.unwrap();
    let calls = Calls::make(&limiter, [(); KEYS].map(|()| fresh_key())).await;
    let owners = owners(&cluster, &calls.keys);
    set_slots(&cluster, "DELSLOTS", &owners);
    let keys = calls.end().await;
    set_slots(&cluster, "ADDSLOTS", &owners);
    ends_once(&limiter, keys).await;
}

/// The other part would be refunded twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_refund_of_which_a_part_was_made_is_not_repeated() {
    let cluster = cluster();
    let limiter = deny(&cluster.url(), PATIENCE).build().await.unwrap();
    let (rule, keys) = (hourly(1000, FIXED), [fresh_key(), fresh_key()]);
    let charges = keys.map(|key| (&rule, Key::new(key), 300));
    let [permit, _] = [limiter.acquire_all(&charges).await.unwrap(), limiter.acquire_all(&charges).await.unwrap()];
    let owners = owners(&cluster, &keys[..1]);
    set_slots(&cluster, "DELSLOTS", &owners);
    assert_eq!(permit.refund().await.unwrap_err().cause(), Cause::Unavailable);
    set_slots(&cluster, "ADDSLOTS", &owners);
    let left = async || [limiter.peek(&rule, keys[0]).await.ok(), limiter.peek(&rule, keys[1]).await.ok()];
    eventually("the slot is served", || async { left().await[0].is_some() }).await;
    sleep(2 * SECOND).await;
    assert_eq!(left().await.map(|counter| counter.unwrap().remaining()), [400, 700]);
}

/// Nothing was sent, and the server is back before the limiter is closed, or after.
#[tokio::test]
async fn a_closed_limiter_repeats_nothing_after_the_deadline() {
    for is_back in [true, false] {
        let server = RedisServer::start();
        let proxy = Proxy::start(server.port());
        let deadline = if is_back { PATIENCE } else { SECOND / 5 };
        let (limiter, other) = (deny(&proxy.url(), deadline).build().await.unwrap(), limiter_on(&server).await);
        let calls = Calls::make(&limiter, [(); KEYS].map(|()| fresh_key())).await;
        proxy.set(Mode::Refuse);
        proxy.cut();
        // For the connections of this runtime, by which permits are refunded, and of the background thread, by which
        // reservations are settled: on a connection that seems open, a refund would be sent and lost.
        let is_away = async || {
            let background = limiter.clone();
            let acquire = spawn_blocking(move || background.acquire_blocking(&hourly(1, FIXED), 1).is_err());
            limiter.peek(&hourly(1, FIXED), 1).await.is_err() && acquire.await.unwrap()
        };
        eventually("the server is away", is_away).await;
        let keys = calls.end().await;
        // The pauses between attempts have grown meanwhile.
        sleep(SECOND).await;
        if is_back {
            proxy.set(Mode::Pass);
            limiter.close().await;
            assert_eq!(left(&other, keys).await, Some(ENDED));
        } else {
            limiter.close().await;
            proxy.set(Mode::Pass);
            eventually("the server is back", || async { left(&limiter, keys).await.is_some() }).await;
            sleep(2 * SECOND).await;
            assert_eq!(left(&other, keys).await, Some(UNTOUCHED));
        }
    }
}

/// A store whose answer is lost. It decides on a call after the first of the refunds that follow.
#[derive(Clone, Debug)]
struct DecidesLate {
    memory: Limiter,
    sent: Arc<Mutex<Option<Batch>>>,
    refunds: Arc<AtomicU64>,
    /// The number of refunds that fail. The hold of 300 is never found then.
    failures: u64,
}

impl Store for DecidesLate {
    fn decide(&self, batch: Batch) -> Reply<Batch> {
        if !batch[0].consume {
            return store_of(&self.memory).decide(batch);
        }
        *self.sent.lock().unwrap() = Some(batch);
        Reply::Pending(Box::pin(pending()))
    }

    fn refund(&self, charges: Charges) -> Reply<Result<u64, StoreError>> {
        let mut refunded = 0;
        for charge in charges.iter() {
            let nth = self.refunds.fetch_add(1, Ordering::SeqCst);
            if nth == 1 {
                let sent = self.sent.lock().unwrap().take();
                assert!(store_of(&self.memory).decide(sent.unwrap()).answer().now_or_never().is_some());
            }
            if self.failures > 0 && charge.cost == 300 {
                continue;
            }
            if nth < self.failures {
                return Reply::Ready(Err(StoreError::unavailable("away")));
            }
            let one = store_of(&self.memory).refund(charge.clone().into()).answer();
            refunded += one.now_or_never().unwrap().unwrap();
        }
        Reply::Ready(Ok(refunded))
    }

    fn reset(&self, counter: CounterName) -> Reply<Result<(), StoreError>> {
        store_of(&self.memory).reset(counter)
    }

    fn supports_holds(&self) -> bool {
        true
    }
}

/// Makes a call with holds of 300 and 200, whose caller leaves.
async fn abandon(failures: u64) -> (Limiter, [u64; 2]) {
    let store = DecidesLate { memory: Limiter::in_memory(), sent: Arc::default(), refunds: Arc::default(), failures };
    let limiter = Limiter::builder("memory://").deadline(100 * MS).on_store_error(OnStoreError::Deny);
    let (limiter, keys) = (limiter.over(store.clone()).unwrap(), [fresh_key(), fresh_key()]);
    let [one, other] = [(0, 300), (1, 200)].map(|(at, cost)| charge_settled(TOKENS, key_of(&keys[at]), cost));
    let mut call = permit_of_several(Some(&limiter), Call::DEFAULT, (one, (other, ()))).boxed();
    assert!((&mut call).now_or_never().is_none());
    drop(call);
    eventually("the store has decided", || async { store.refunds.load(Ordering::SeqCst) >= 2 }).await;
    (limiter, keys)
}

/// The clean-up asks about one hold before the store has it, and about the other one after.
#[tokio::test]
async fn both_holds_of_a_call_whose_caller_left_are_ended() {
    let (limiter, keys) = abandon(0).await;
    eventually("nothing is held", || async {
        remaining(&limiter, &TOKENS, keys[0]).await == 1000 && remaining(&limiter, &TOKENS, keys[1]).await == 1000
    })
    .await;
}

/// The clean-up asks no longer for a hold that is never found, and goes on with the other one.
#[tokio::test]
async fn a_hold_is_ended_although_the_other_one_is_never_found() {
    let (limiter, keys) = abandon(8).await;
    assert_eq!(remaining(&limiter, &TOKENS, keys[1]).await, 800);
    eventually("it is ended", || async { remaining(&limiter, &TOKENS, keys[1]).await == 1000 }).await;
}

/// A store that settles nothing while it is away, and counts how many it settles at a time. It may panic once.
#[derive(Clone, Debug)]
struct SettlesSlowly {
    memory: Limiter,
    is_back: Arc<AtomicBool>,
    panics: Arc<AtomicBool>,
    at_once: Arc<AtomicU64>,
    most: Arc<AtomicU64>,
}

impl Store for SettlesSlowly {
    fn decide(&self, batch: Batch) -> Reply<Batch> {
        store_of(&self.memory).decide(batch)
    }

    fn refund(&self, charges: Charges) -> Reply<Result<u64, StoreError>> {
        store_of(&self.memory).refund(charges)
    }

    fn reset(&self, counter: CounterName) -> Reply<Result<(), StoreError>> {
        store_of(&self.memory).reset(counter)
    }

    fn supports_holds(&self) -> bool {
        true
    }

    fn renew(&self, charges: Vec<Charge>) -> Reply<Result<Vec<bool>, StoreError>> {
        store_of(&self.memory).renew(charges)
    }

    fn settle(&self, charge: Charge, used: u64) -> Reply<Result<(), StoreError>> {
        assert!(!self.panics.swap(false, Ordering::SeqCst), "a settlement of a store that panics");
        if !self.is_back.load(Ordering::SeqCst) {
            return Reply::Ready(Err(StoreError::unavailable("away")));
        }
        let store = self.clone();
        Reply::Pending(Box::pin(async move {
            let at_once = store.at_once.fetch_add(1, Ordering::SeqCst) + 1;
            store.most.fetch_max(at_once, Ordering::SeqCst);
            sleep(300 * MS).await;
            store.at_once.fetch_sub(1, Ordering::SeqCst);
            store_of(&store.memory).settle(charge, used).answer().await
        }))
    }
}

fn on_slow_store() -> (Limiter, SettlesSlowly) {
    let ([is_back, panics], [at_once, most]) = Default::default();
    let store = SettlesSlowly { memory: Limiter::in_memory(), is_back, panics, at_once, most };
    let limiter = Limiter::builder("memory://").deadline(PATIENCE).on_store_error(OnStoreError::Deny);
    (limiter.over(store.clone()).unwrap(), store)
}

/// The hold whose settlement panicked is settled by the next attempt.
#[tokio::test]
async fn a_store_that_panics_settles_the_other_holds_of_the_call() {
    let ((limiter, store), keys) = (on_slow_store(), [fresh_key(), fresh_key()]);
    store.is_back.store(true, Ordering::SeqCst);
    store.panics.store(true, Ordering::SeqCst);
    let [one, other] = [0, 1].map(|at| charge_settled(TOKENS, key_of(&keys[at]), 300));
    let permit = permit_of_several(Some(&limiter), Call::DEFAULT, (one, (other, ()))).await.unwrap();
    assert_eq!(permit.settle(0).await.unwrap_err().cause(), Cause::Unavailable);
    let left = async || [remaining(&limiter, &TOKENS, keys[0]).await, remaining(&limiter, &TOKENS, keys[1]).await];
    assert_eq!(left().await, [700, 1000]);
    eventually("both are settled", async || left().await == [1000, 1000]).await;
}

/// The lease is over when the store is back: until then the call counts in full.
#[tokio::test]
async fn a_hold_of_a_log_is_settled_after_its_lease_as_long_as_it_counts() {
    let ((limiter, store), key) = (on_slow_store(), fresh_key());
    drop(acquire_time(&limiter, TIME, key, Some(1000)).await.unwrap());
    sleep(5 * SECOND / 2).await;
    assert_eq!(remaining(&limiter, &TIME, key).await, 19_000);
    store.is_back.store(true, Ordering::SeqCst);
    eventually("it is settled", || async { remaining(&limiter, &TIME, key).await > 19_500 }).await;
}

/// The limiter is closed, or not, when the store is back.
#[tokio::test]
async fn few_are_repeated_at_a_time() {
    for closes in [false, true] {
        let ((limiter, store), key) = (on_slow_store(), fresh_key());
        let calls = join_all((0..300).map(|_| limiter.reserve(&TOKENS, key, 1))).await;
        assert_eq!(remaining(&limiter, &TOKENS, key).await, 700);
        for refunded in join_all(calls.into_iter().map(|call| call.unwrap().cancel())).await {
            assert_eq!(refunded.unwrap_err().cause(), Cause::Unavailable);
        }
        store.is_back.store(true, Ordering::SeqCst);
        if closes {
            limiter.close().await;
        }
        eventually("all are refunded", || async { remaining(&limiter, &TOKENS, key).await == 1000 }).await;
        assert!((1..=64).contains(&store.most.load(Ordering::SeqCst)), "{:?}", store.most);
    }
}
