//! Holds while the server is away or the connection is cut: nothing is lost, and nothing is charged twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use futures_util::future::join_all;
use ratelimit_harness::{Mode, Proxy, RedisServer};
use ratelimit_runtime::__private::{Call, charge, charge_elapsed, concurrent, key, permit_of_several};
use ratelimit_runtime::store::{Batch, Charge as StoreCharge, Charges, Reply, StoreError};
use ratelimit_runtime::{Algorithm, Cause, CounterName, Limiter, OnStoreError, Permit, Rule, Store};
use tokio::time::sleep;

use crate::support::holds::{PLACES, TIME, TOKENS, acquire_time, remaining};
use crate::support::{MS, PATIENCE, SECOND, ends, eventually, exceeded, fresh_key, limiter_on};

/// A store that grants everything. Its first renewals fail, each in another way.
#[derive(Clone, Debug, Default)]
struct Unreliable {
    renewals: Arc<AtomicUsize>,
    /// The largest number of holds in one renewal.
    most: Arc<AtomicUsize>,
    settlements: Arc<AtomicUsize>,
    /// So many settlements panic at first.
    panics: usize,
}

impl Store for Unreliable {
    fn decide(&self, mut batch: Batch) -> Reply<Batch> {
        batch.iter_mut().for_each(|request| request.outcome = Ok(true));
        Reply::Ready(batch)
    }

    fn refund(&self, _: Charges) -> Reply<Result<u64, StoreError>> {
        Reply::Ready(Ok(0))
    }

    fn reset(&self, _: CounterName) -> Reply<Result<(), StoreError>> {
        Reply::Ready(Ok(()))
    }

    fn supports_holds(&self) -> bool {
        true
    }

    fn renew(&self, charges: Vec<StoreCharge>) -> Reply<Result<Vec<bool>, StoreError>> {
        self.most.fetch_max(charges.len(), Ordering::SeqCst);
        match self.renewals.fetch_add(1, Ordering::SeqCst) {
            0 => Reply::Ready(Err(StoreError::unavailable("its own"))),
            1 => Reply::Ready(Ok(vec![false; charges.len() - 1])),
            2 => Reply::Pending(Box::pin(std::future::pending())),
            3 => panic!("a renewal of a store that panics"),
            _ => Reply::Ready(Ok(vec![true; charges.len()])),
        }
    }

    fn settle(&self, _: StoreCharge, _: u64) -> Reply<Result<(), StoreError>> {
        let earlier = self.settlements.fetch_add(1, Ordering::SeqCst);
        assert!(earlier >= self.panics, "a settlement of a store that panics");
        Reply::Ready(Ok(()))
    }
}

#[tokio::test]
async fn a_settlement_that_panics_is_tried_again() {
    let store = Unreliable { panics: 2, ..Unreliable::default() };
    let limiter = Limiter::with_store(store.clone());
    let places = Rule::new("panics", 1, 60 * SECOND).with_algorithm(Algorithm::Concurrent);
    drop(limiter.acquire(&places, 1).await.unwrap());
    eventually("it is settled", || async { store.settlements.load(Ordering::SeqCst) == 3 }).await;
}

/// The request arrives late, and its reply later still: the lease has begun long before the permit is here.
#[tokio::test]
async fn a_place_that_is_granted_late_is_renewed_in_time() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let builder = Limiter::builder(&proxy.url()).deadline(9 * SECOND).on_store_error(OnStoreError::Deny);
    let (limiter, other, key) = (builder.build().await.unwrap(), limiter_on(&server).await, fresh_key());
    let places = Rule::new("late", 1, 3 * SECOND).with_algorithm(Algorithm::Concurrent);
    let first = limiter.acquire(&places, fresh_key()).await.unwrap();
    sleep(1_500 * MS).await; // it is renewed once: the connections are open, and the scripts loaded
    first.refund().await.unwrap();
    proxy.set(Mode::Delay(1_050 * MS));
    let place = limiter.acquire(&places, key).await.unwrap();
    for _ in 0..600 {
        assert!(other.acquire(&places, key).await.is_err(), "two have the place");
        sleep(10 * MS).await;
    }
    drop(place);
}

/// Four failures in a row lose no hold.
#[tokio::test]
async fn failed_renewals_are_retried_within_the_lease() {
    let store = Unreliable::default();
    let builder = Limiter::builder("memory://").deadline(20 * MS).on_store_error(OnStoreError::Deny);
    let limiter = builder.over(store.clone()).unwrap();
    let lease = 6 * SECOND;
    let rule = Rule::new("again", 10_000, lease).with_algorithm(Algorithm::Concurrent);
    let places = join_all((0..6_000).map(|_| async { limiter.acquire(&rule, 1).await.unwrap() })).await;
    let began = Instant::now();
    eventually("they fail", || async { store.renewals.load(Ordering::SeqCst) >= 5 }).await;
    sleep((began + lease + 200 * MS).saturating_duration_since(Instant::now())).await;
    assert!(places.iter().all(Permit::is_held));
    let most = store.most.load(Ordering::SeqCst);
    assert!((2..=2_500).contains(&most), "{most} in one go");
    // No renewals come after the holds have ended.
    drop(places);
    sleep(lease / 3).await;
    let before = store.renewals.load(Ordering::SeqCst);
    sleep(lease / 3).await;
    assert_eq!(store.renewals.load(Ordering::SeqCst), before);
}

/// The process is stopped for longer than the lease, as by SIGSTOP: the server hears nothing.
#[tokio::test]
async fn a_process_cut_off_for_a_whole_lease_loses_its_place() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let builder = Limiter::builder(&proxy.url()).deadline(SECOND).on_store_error(OnStoreError::Deny);
    let (limiter, other, key) = (builder.build().await.unwrap(), limiter_on(&server).await, fresh_key());
    let places = Rule::new("cut-off", 1, 3 * SECOND).with_algorithm(Algorithm::Concurrent);
    let place = limiter.acquire(&places, key).await.unwrap();
    proxy.set(Mode::Stall);
    let next = ends(other.acquire_within(&places, key, PATIENCE)).await.unwrap();
    assert!(!place.is_held());
    proxy.set(Mode::Pass);
    sleep(1_500 * MS).await;
    assert!(!place.is_held() && next.is_held());
}

#[tokio::test]
async fn the_local_fallback_holds_only_the_share_of_this_process() {
    let mut server = RedisServer::start();
    let builder = Limiter::builder(&server.url()).instances(2).deadline(200 * MS);
    let (limiter, key) = (builder.build().await.unwrap(), fresh_key());
    let places = Rule::new("share", 4, SECOND).with_algorithm(Algorithm::Concurrent);
    let before = limiter.acquire(&places, key).await.unwrap();
    server.kill();
    let held = [limiter.acquire(&places, key).await.unwrap(), limiter.acquire(&places, key).await.unwrap()];
    assert_eq!(limiter.acquire(&places, key).await.unwrap_err().cause(), Cause::Exceeded);
    let [one, two] = held;
    drop(one);
    let one = limiter.acquire(&places, key).await.unwrap();
    let time = acquire_time(&limiter, TIME, key, None).await.unwrap();
    assert!(time.remaining_time() > 9 * SECOND && time.remaining_time() <= 10 * SECOND, "half of it");
    eventually("the place at the server counts as lost", || async { !before.is_held() }).await;
    assert!(one.is_held() && two.is_held());
}

/// The server was away when the place was released. It does not stay taken for a whole lease.
#[tokio::test]
async fn a_place_released_during_an_outage_is_free_after_it() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let builder = Limiter::builder(&proxy.url()).deadline(100 * MS).on_store_error(OnStoreError::Deny);
    let (limiter, other, key) = (builder.build().await.unwrap(), limiter_on(&server).await, fresh_key());
    let places = Rule::new("away", 1, 60 * SECOND).with_algorithm(Algorithm::Concurrent);
    let place = limiter.acquire(&places, key).await.unwrap();
    proxy.set(Mode::Stall);
    // The refund ends within the deadline, and the release goes on in the background.
    let left = tokio::time::timeout(PATIENCE, place.refund()).await.expect("within the deadline");
    assert_eq!(left.unwrap_err().cause(), Cause::Unavailable);
    exceeded(other.acquire(&places, key).await);
    proxy.set(Mode::Pass);
    eventually("it is free", || async { other.acquire(&places, key).await.is_ok() }).await;
}

#[tokio::test]
async fn a_call_that_ends_while_its_connection_is_cut_is_charged_its_time() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let builder = Limiter::builder(&proxy.url()).deadline(100 * MS).on_store_error(OnStoreError::Deny);
    let (limiter, other, id) = (builder.build().await.unwrap(), limiter_on(&server).await, fresh_key());
    for end in [0, 1] {
        let permit = acquire_time(&limiter, TIME, id, None).await.unwrap();
        sleep(20 * MS).await;
        match end {
            0 => proxy.cut(),
            // The server charges the call, and the reply is lost.
            _ => proxy.set(Mode::DropReplies),
        }
        drop(permit);
        sleep(300 * MS).await;
        proxy.set(Mode::Pass);
        eventually("it is charged what it used, once", || async {
            (15_000..20_000).contains(&remaining(&other, &TIME, id).await)
        })
        .await;
        eventually("calls go on", || async { acquire_time(&limiter, TIME, id, Some(1)).await.is_ok() }).await;
    }
}

/// The retry is sent on the other connection and arrives first. It ends the hold, and the first
/// request finds none.
#[tokio::test]
async fn a_settlement_overtaken_by_its_retry_is_charged_once() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let builder = Limiter::builder(&proxy.url()).connections(2).deadline(300 * MS).on_store_error(OnStoreError::Deny);
    let (limiter, other, key) = (builder.build().await.unwrap(), limiter_on(&server).await, fresh_key());
    limiter.reserve(&TOKENS, key, 1).await.unwrap().cancel().await.unwrap();
    sleep(300 * MS).await; // both connections are open
    for round in 1..=3 {
        let reservation = limiter.reserve(&TOKENS, key, 400).await.unwrap();
        proxy.hold_next_request(SECOND);
        reservation.settle(100).await.unwrap_err();
        eventually("the retry has settled it", || async {
            remaining(&other, &TOKENS, key).await == 1000 - 100 * round
        })
        .await;
        sleep(2 * SECOND).await; // the first one has arrived, too
        assert_eq!(remaining(&other, &TOKENS, key).await, 1000 - 100 * round, "round {round}");
    }
}

/// The lease of the place is an hour, that of the charge beside it a second.
#[tokio::test]
async fn a_place_held_beside_a_short_charge_is_released_after_an_outage() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let builder = Limiter::builder(&proxy.url()).deadline(100 * MS).on_store_error(OnStoreError::Deny);
    let (limiter, other, id) = (builder.build().await.unwrap(), limiter_on(&server).await, fresh_key());
    let places = Rule::new("long", 1, 3600 * SECOND).with_algorithm(Algorithm::Concurrent);
    let time = charge_elapsed(TIME, key(&id), Some(1000));
    let charges = (charge(concurrent("long", 1, 3_600_000), key(&id), 1), (time, ()));
    let permit = permit_of_several(Some(&limiter), Call::DEFAULT, charges).await.unwrap();
    proxy.set(Mode::Stall);
    drop(permit);
    sleep(3 * SECOND).await;
    proxy.set(Mode::Pass);
    eventually("it is free", || async { remaining(&other, &places, id).await == 1 }).await;
}

/// The server is silent for a moment, and the local fallback grants a place. That place is not held
/// beside those of the server for ever.
#[tokio::test]
async fn a_place_of_the_local_fallback_is_not_held_after_the_outage() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let (limiter, key) = (Limiter::connect(&proxy.url()).await.unwrap(), fresh_key());
    let places = Rule::new("moment", 1, 60 * SECOND).with_algorithm(Algorithm::Concurrent);
    let first = limiter.acquire(&places, key).await.unwrap();
    proxy.set(Mode::Stall);
    let second = limiter.acquire(&places, key).await.unwrap();
    assert!(second.is_held());
    proxy.set(Mode::Pass);
    eventually("the server decides again", || async { limiter.acquire(&places, key).await.is_err() }).await;
    eventually("it is not held", || async { !second.is_held() }).await;
    assert!(first.is_held());
}

/// The replies are awaited in the background, and are missed there.
#[tokio::test]
async fn a_server_silent_to_calls_that_hold_opens_the_breaker() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let builder = Limiter::builder(&proxy.url()).deadline(50 * MS).on_store_error(OnStoreError::Deny);
    let (limiter, key) = (builder.build().await.unwrap(), fresh_key());
    proxy.set(Mode::Stall);
    eventually("the breaker opens", || async {
        let refused = limiter.acquire(&PLACES, key).await.unwrap_err();
        refused.to_string().contains("3 calls in a row had no answer")
    })
    .await;
    proxy.set(Mode::Pass);
    eventually("both places are free", || async { limiter.acquire_n(&PLACES, key, 2).await.is_ok() }).await;
}
