//! Background work needs no runtime of a caller: settlements, prefetches and clean-up go on when
//! the runtime of a caller is idle or has ended.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;

use futures_util::FutureExt;
use ratelimit_harness::{Mode, Proxy, RedisServer};
use ratelimit_runtime::store::{Batch, Charges, Reply, StoreError};
use ratelimit_runtime::{
    Algorithm, Cause, CounterName, Health, Limiter, ManualClock, OnStoreError, Permit, Rule, Store,
};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{sleep, timeout};

use super::HOUR;
use super::gate::Gate;
use crate::support::holds::remaining;
use crate::support::plain_store::{PlainStore, on_plain_store};
use crate::support::{FIXED, LOG, MS, PATIENCE, SECOND, ends, eventually, fresh_key, hourly, limiter_on};

const PLACES: Rule = Rule::new("place", 2, SECOND.saturating_mul(60)).with_algorithm(Algorithm::Concurrent);
const TOKENS: Rule = Rule::new("tokens", 1000, SECOND.saturating_mul(60)).with_algorithm(LOG);

/// A runtime that runs only inside of `block_on`.
pub(super) fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn multi_thread(workers: usize) -> Runtime {
    Builder::new_multi_thread().worker_threads(workers).enable_all().build().unwrap()
}

fn prefetched() -> Rule {
    hourly(10_000, FIXED).with_prefetch(10)
}

/// The failure policy is the default. The local fallback would grant places beyond the limit.
#[test]
fn a_permit_dropped_on_an_idle_runtime_releases_its_place() {
    let server = RedisServer::start();
    let (left, driven, key) = (current_thread(), multi_thread(2), fresh_key());
    let limiter = driven.block_on(Limiter::builder(&server.url()).deadline(SECOND).build()).unwrap();
    let mut permits = vec![driven.block_on(limiter.acquire(&PLACES, key)).unwrap()];
    drop(left.block_on(limiter.acquire(&PLACES, key)).unwrap());
    for _ in 0..5 {
        permits.extend(driven.block_on(limiter.acquire(&PLACES, key)));
    }
    assert_eq!((permits.len(), limiter.health()), (2, Health::Available));
    assert!(permits.iter().all(Permit::is_held));
}

/// Two limiters, and permits that come and go on runtimes that are idle in between.
#[test]
fn permits_of_idle_runtimes_never_exceed_the_places() {
    let server = RedisServer::start();
    let (runtimes, key) = ([current_thread(), current_thread(), current_thread()], fresh_key());
    let limiter = || runtimes[0].block_on(Limiter::builder(&server.url()).deadline(SECOND).build()).unwrap();
    let limiters = [limiter(), limiter()];
    let mut permits = Vec::new();
    for step in 0..300 {
        if fastrand::bool() && !permits.is_empty() {
            drop(permits.swap_remove(fastrand::usize(..permits.len())));
        } else {
            let (runtime, limiter) = (&runtimes[fastrand::usize(..3)], &limiters[fastrand::usize(..2)]);
            permits.extend(runtime.block_on(limiter.acquire(&PLACES, key)));
        }
        assert!(permits.len() <= 2, "step {step}: {}", permits.len());
    }
    assert_eq!(limiters.map(|limiter| limiter.health()), [Health::Available, Health::Available]);
}

#[test]
fn a_reservation_can_be_settled_on_another_runtime_or_on_none() {
    let server = RedisServer::start();
    let (left, driven, key) = (current_thread(), current_thread(), fresh_key());
    let limiter = left.block_on(limiter_on(&server));
    let reservation = left.block_on(limiter.reserve(&TOKENS, key, 600)).unwrap();
    let settled = driven.block_on(async { timeout(PATIENCE, reservation.settle(100)).await });
    settled.expect("it does not hang").unwrap();
    assert_eq!(driven.block_on(remaining(&limiter, &TOKENS, key)), 900);

    // And on none.
    let reservation = left.block_on(limiter.reserve(&TOKENS, key, 600)).unwrap();
    let (tell, told) = mpsc::channel();
    thread::spawn(move || tell.send(wait_for(Box::pin(reservation.settle(100)))));
    told.recv_timeout(PATIENCE).expect("it does not hang").unwrap();
    assert_eq!(driven.block_on(remaining(&limiter, &TOKENS, key)), 800);
}

/// Without a runtime.
fn wait_for<F: Future + Unpin>(mut future: F) -> F::Output {
    loop {
        if let Poll::Ready(output) = Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop())) {
            return output;
        }
        thread::sleep(MS);
    }
}

#[test]
fn a_settlement_ends_within_the_deadline_when_the_server_is_away() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let (left, driven, key) = (current_thread(), current_thread(), fresh_key());
    let limiter = Limiter::builder(&proxy.url()).deadline(100 * MS).on_store_error(OnStoreError::Deny);
    let limiter = left.block_on(limiter.build()).unwrap();
    let [one, two] = [(); 2].map(|()| left.block_on(limiter.reserve(&TOKENS, key, 100)).unwrap());
    proxy.set(Mode::Stall);
    let settled = [
        driven.block_on(async { timeout(PATIENCE, one.settle(1)).await }),
        left.block_on(async { timeout(PATIENCE, two.cancel()).await }),
    ];
    for settled in settled {
        assert_eq!(settled.expect("it does not hang").unwrap_err().cause(), Cause::Unavailable);
    }
}

/// Quota of a counter is prefetched once for all its waiting callers, on any runtime.
#[test]
fn a_prefetch_begun_on_an_idle_runtime_serves_other_callers() {
    let server = RedisServer::start();
    let (left, driven, key) = (current_thread(), current_thread(), fresh_key());
    let limiter = Limiter::builder(&server.url()).deadline(SECOND).on_store_error(OnStoreError::Deny);
    let limiter = driven.block_on(limiter.build()).unwrap();
    let begun = left.block_on(async {
        let mut call = Box::pin(limiter.acquire(&prefetched(), key));
        (&mut call).now_or_never().map_or(Some(call), |_| None) // it may have been answered at once
    });
    drop(begun);
    for _ in 0..3 {
        driven.block_on(limiter.acquire(&prefetched(), key)).unwrap();
    }
}

/// A task in a worker's own slot is not stolen by other workers.
#[test]
fn a_prefetch_begun_on_a_blocked_worker_serves_other_callers() {
    let server = RedisServer::start();
    let (runtime, key) = (multi_thread(2), fresh_key());
    let limiter = Limiter::builder(&server.url()).deadline(SECOND).on_store_error(OnStoreError::Deny);
    let limiter = runtime.block_on(limiter.build()).unwrap();
    let (begun, has_begun) = mpsc::channel();
    let (done, is_done) = mpsc::channel();
    let blocked = runtime.spawn({
        let limiter = limiter.clone();
        async move {
            let _ = limiter.acquire(&prefetched(), key).now_or_never();
            begun.send(()).unwrap();
            let _ = is_done.recv_timeout(PATIENCE);
        }
    });
    has_begun.recv_timeout(PATIENCE).unwrap();
    let answer = runtime.block_on(runtime.spawn(async move { limiter.acquire(&prefetched(), key).await }));
    done.send(()).unwrap();
    answer.unwrap().unwrap();
    runtime.block_on(blocked).unwrap();
}

/// Then it asks the store, which still counts the place.
#[test]
fn a_call_waits_for_a_settlement_only_for_a_part_of_its_deadline() {
    let server = RedisServer::start();
    let gate = Gate::start(server.port());
    let (runtime, key) = (multi_thread(2), fresh_key());
    let limiter = Limiter::builder(&gate.url()).deadline(2 * SECOND).on_store_error(OnStoreError::Deny);
    let limiter = runtime.block_on(limiter.build()).unwrap();
    let one = runtime.block_on(limiter.acquire(&PLACES, key)).unwrap();
    let two = runtime.block_on(limiter.acquire(&PLACES, key)).unwrap();
    // The connection for settlements is another one than that for calls.
    runtime.block_on(eventually("it is open", || async { gate.accepted() > 1 }));
    runtime.block_on(async { sleep(100 * MS).await });
    (1..gate.accepted()).for_each(|at| gate.hold(at));
    gate.delay_ms(100);
    drop(one);
    let refused = runtime.block_on(limiter.acquire(&PLACES, key)).unwrap_err();
    assert_eq!(refused.cause(), Cause::Exceeded, "{refused}");
    gate.release();
    runtime.block_on(eventually("it is left", || async { limiter.acquire(&PLACES, key).await.is_ok() }));
    drop(two);
}

/// Polls it once.
fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn a_poll_of_a_call_whose_runtime_has_ended_returns() {
    for is_elsewhere in [false, true] {
        let (limiter, store, _clock) = on_plain_store();
        store.hold();
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            let (begun, other) = (current_thread(), current_thread());
            let mut call = Box::pin(limiter.acquire(&prefetched(), 1));
            assert!(begun.block_on(async { (&mut call).now_or_never() }).is_none());
            drop(begun);
            let _context = is_elsewhere.then(|| other.enter());
            tell.send(catch_unwind(AssertUnwindSafe(|| poll_once(&mut call).map(|answer| answer.map(drop))))).unwrap();
        });
        let polled = told.recv_timeout(PATIENCE).expect("one poll returns").expect("without a panic");
        match polled {
            Poll::Ready(answer) => assert!(!is_elsewhere && answer.is_err(), "{answer:?}"),
            Poll::Pending => assert!(is_elsewhere, "nothing drives it"),
        }
        drop(store);
    }
}

/// It goes on where it is awaited.
#[test]
fn a_call_moved_to_another_runtime_keeps_its_deadline() {
    let clock = ManualClock::new();
    let store = PlainStore::new(&clock);
    let limiter = Limiter::builder("memory://").clock(clock).deadline(100 * MS).on_store_error(OnStoreError::Deny);
    let limiter = limiter.over(store.clone()).unwrap();
    store.hold();
    for rule in [prefetched(), hourly(10, FIXED)] {
        let (begun, other) = (current_thread(), current_thread());
        let mut call = Box::pin(limiter.acquire(&rule, 1));
        assert!(begun.block_on(async { (&mut call).now_or_never() }).is_none());
        drop(begun);
        let refused = other.block_on(ends(call)).unwrap_err();
        assert_eq!(refused.cause(), Cause::Unavailable, "{refused}");
    }
}

/// A store that knows of its outage.
#[derive(Debug)]
struct AwayStore {
    is_away: Arc<AtomicBool>,
    plain: PlainStore,
}

impl Store for AwayStore {
    fn decide(&self, batch: Batch) -> Reply<Batch> {
        self.plain.decide(batch)
    }

    fn refund(&self, charges: Charges) -> Reply<Result<u64, StoreError>> {
        self.plain.refund(charges)
    }

    fn reset(&self, counter: CounterName) -> Reply<Result<(), StoreError>> {
        self.plain.reset(counter)
    }

    fn outage(&self) -> Option<StoreError> {
        self.is_away.load(Ordering::SeqCst).then(|| StoreError::unavailable("away"))
    }
}

/// The first runtime has ended, or nobody drives it any more.
#[test]
fn a_call_that_waits_for_the_store_goes_on_on_another_runtime() {
    for ends_first in [true, false] {
        let (clock, is_away) = (ManualClock::new(), Arc::new(AtomicBool::new(true)));
        let plain = PlainStore::new(&clock);
        plain.fail(Some(StoreError::unavailable("away")));
        let store = AwayStore { is_away: is_away.clone(), plain: plain.clone() };
        let builder = Limiter::builder("memory://").clock(clock).on_store_error(OnStoreError::Wait { max: HOUR });
        let limiter = builder.over(store).unwrap();
        let (begun, other) = (current_thread(), current_thread());
        let rule = hourly(10, FIXED);
        let mut call = Box::pin(limiter.acquire(&rule, 1));
        assert!(begun.block_on(async { timeout(50 * MS, &mut call).await }).is_err());
        let begun = Some(begun).filter(|_| !ends_first);
        plain.fail(None);
        is_away.store(false, Ordering::SeqCst);
        other.block_on(ends(call)).unwrap();
        drop(begun);
    }
}

/// A store whose answers panic, or never come.
#[derive(Clone, Debug)]
struct BrokenStore {
    panics: Arc<AtomicBool>,
    hangs: Arc<AtomicBool>,
    plain: PlainStore,
}

impl BrokenStore {
    fn answer<T: Send + 'static>(&self, answer: Reply<T>) -> Reply<T> {
        let (panics, hangs) = (self.panics.load(Ordering::SeqCst), self.hangs.load(Ordering::SeqCst));
        let Reply::Ready(answer) = answer else { panic!("it holds nothing back") };
        Reply::Pending(Box::pin(async move {
            tokio::task::yield_now().await;
            assert!(!panics, "the store's own");
            if hangs {
                std::future::pending::<()>().await;
            }
            answer
        }))
    }
}

impl Store for BrokenStore {
    fn decide(&self, batch: Batch) -> Reply<Batch> {
        self.answer(self.plain.decide(batch))
    }

    fn refund(&self, charges: Charges) -> Reply<Result<u64, StoreError>> {
        self.answer(self.plain.refund(charges))
    }

    fn reset(&self, counter: CounterName) -> Reply<Result<(), StoreError>> {
        self.plain.reset(counter)
    }
}

#[tokio::test]
async fn a_store_that_panics_or_hangs_blocks_no_later_call() {
    let plain = PlainStore::new(&ManualClock::new());
    let store = BrokenStore { panics: Arc::new(AtomicBool::new(true)), hangs: Arc::default(), plain };
    let limiter = Limiter::builder("memory://").deadline(SECOND).on_store_error(OnStoreError::Deny);
    let (limiter, other) = (limiter.over(store.clone()).unwrap(), limiter_on(&RedisServer::start()).await);
    let refused = ends(limiter.acquire(&prefetched(), 1)).await.unwrap_err();
    assert_eq!(refused.cause(), Cause::Unavailable, "{refused}");
    store.panics.store(false, Ordering::SeqCst);
    ends(limiter.acquire(&prefetched(), 1)).await.unwrap();
    store.hangs.store(true, Ordering::SeqCst);
    let refused = ends(limiter.acquire(&prefetched(), 2)).await.unwrap_err();
    assert_eq!(refused.cause(), Cause::Unavailable, "{refused}");
    drop(limiter);
    drop(other);
}

/// The last handle of a limiter ends its tasks and connections.
#[tokio::test]
async fn a_dropped_limiter_leaves_no_connection() {
    let server = RedisServer::start();
    let clients = || redis::from_redis_value::<String>(server.command(&[b"CLIENT", b"LIST"])).unwrap().lines().count();
    let before = clients();
    for _ in 0..20 {
        let (limiter, key) = (limiter_on(&server).await, fresh_key());
        let permit = limiter.acquire(&PLACES, key).await.unwrap();
        limiter.reserve(&TOKENS, key, 10).await.unwrap().settle(3).await.unwrap();
        limiter.acquire(&prefetched(), key).await.unwrap();
        drop(limiter);
        drop(permit);
    }
    eventually("no connection is left", || async { clients() == before }).await;
}
