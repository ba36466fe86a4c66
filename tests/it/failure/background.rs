//! Work that no caller awaits needs no caller's runtime: settling, renewing, prefetching, clean-up.

use std::future::Future;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use ratelimit_harness::{Mode, Proxy, RedisServer};
use ratelimit_runtime::store::{Batch, Charges, Reply, StoreError};
use ratelimit_runtime::{
    Algorithm, Cause, CounterName, Health, Limiter, ManualClock, OnStoreError, Permit, Rule, Store,
};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{sleep, timeout};

use crate::core::custom_store::{PlainStore, on_plain_store};
use crate::redis::denial_cache::asked;
use crate::redis::server::eventually;
use crate::support::{FIXED, LOG, PATIENCE, ends, exceeded, fresh_key, hourly, limiter_on, settle};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const PLACES: Rule = Rule::new("place", 2, SECOND.saturating_mul(60)).with_algorithm(Algorithm::Concurrent);
const TOKENS: Rule = Rule::new("tokens", 1000, SECOND.saturating_mul(60)).with_algorithm(LOG);

/// It runs while somebody is in `block_on`, and not otherwise.
fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn multi_thread(workers: usize) -> Runtime {
    Builder::new_multi_thread().worker_threads(workers).enable_all().build().unwrap()
}

async fn remaining(limiter: &Limiter, rule: &Rule, key: u64) -> u64 {
    limiter.peek(rule, key).await.unwrap().remaining()
}

fn prefetched() -> Rule {
    hourly(10_000, FIXED).with_prefetch(10)
}

/// With the default policy: what this process grants alone would be beyond the places.
#[test]
fn a_place_is_left_by_a_runtime_that_nobody_drives() {
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

/// Two limiters, and permits that come and go on runtimes that stand still in between.
#[test]
fn no_more_permits_are_valid_than_there_are_places_while_the_server_answers() {
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
fn a_reservation_is_settled_on_any_runtime() {
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

/// Quota of one counter is taken once for all who wait for it, wherever they are.
#[test]
fn quota_that_was_begun_on_a_runtime_that_nobody_drives_is_there_for_others() {
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
fn quota_that_was_begun_on_a_worker_that_is_blocked_is_there_for_others() {
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

/// It waits for a settlement for a part of its deadline only, and then asks.
#[test]
fn a_call_asks_though_a_settlement_has_no_answer() {
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
fn a_call_whose_runtime_has_ended_ends_at_its_next_poll() {
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

/// A call whose runtime has ended goes on where it is awaited, and has its deadline there.
#[test]
fn a_call_that_goes_on_elsewhere_has_its_deadline() {
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
async fn a_store_that_panics_or_hangs_holds_up_nobody_else() {
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

/// A limiter ends, and all of its tasks and connections, when nobody has it any more.
#[tokio::test]
async fn a_limiter_that_is_dropped_leaves_no_connection() {
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

/// Each of them is refused by the server before or after it has gone: nothing has to be left again.
#[tokio::test]
async fn callers_who_lose_patience_cost_at_most_one_script_more_each() {
    const CALLERS: u64 = 1000;
    for connections in [1, 3] {
        let server = RedisServer::start();
        let proxy = Proxy::start(server.port());
        let builder = Limiter::builder(&proxy.url()).connections(connections).on_store_error(OnStoreError::Deny);
        let (limiter, key) = (builder.deadline(PATIENCE).build().await.unwrap(), fresh_key());
        let places = Rule::new("one", 1, SECOND * 30).with_algorithm(Algorithm::Concurrent);
        let place = limiter.acquire(&places, key).await.unwrap();
        proxy.set(Mode::Delay(5 * MS / 2));
        let before = asked(&server);
        let answers = join_all((0..CALLERS).map(|_| timeout(2 * MS, limiter.acquire(&places, key)))).await;
        assert!(answers.iter().all(|answer| !matches!(answer, Ok(Ok(_)))), "one has it");
        // All that comes of it has come.
        sleep(3 * SECOND).await;
        let more = asked(&server) - before;
        println!("{more} scripts for {CALLERS} callers, {connections} connections");
        assert!(more <= 2 * CALLERS, "{more} scripts for {CALLERS} callers, {connections} connections");
        let before = asked(&server);
        sleep(SECOND).await;
        assert_eq!(asked(&server) - before, 0, "it is over");
        assert!(place.is_held());
        proxy.set(Mode::Pass);
        exceeded(limiter.acquire(&places, key).await);
        drop(place);
        let place = limiter.acquire(&places, key).await.unwrap();
        exceeded(limiter.acquire(&places, key).await);
        drop(place);
    }
}

/// The same where places are free: those who went are granted some, and leave them.
#[tokio::test]
async fn places_that_were_granted_to_callers_who_have_gone_are_left_once() {
    const CALLERS: u64 = 1000;
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let (limiter, key) = (Limiter::builder(&proxy.url()).deadline(PATIENCE).build().await.unwrap(), fresh_key());
    let places = Rule::new("many", CALLERS, SECOND * 30).with_algorithm(Algorithm::Concurrent);
    drop(limiter.acquire(&places, key).await.unwrap());
    limiter.close().await;
    proxy.set(Mode::Delay(5 * MS / 2));
    let before = asked(&server);
    drop(join_all((0..CALLERS).map(|_| timeout(2 * MS, limiter.acquire(&places, key)))).await);
    proxy.set(Mode::Pass);
    let looks = AtomicUsize::new(0);
    eventually("all are free", || async {
        looks.fetch_add(1, Ordering::Relaxed);
        remaining(&limiter, &places, key).await == CALLERS
    })
    .await;
    let more = asked(&server) - before - looks.load(Ordering::Relaxed) as u64;
    println!("{more} scripts for {CALLERS} callers");
    assert!(more <= 2 * CALLERS, "{more} scripts for {CALLERS} callers");
}

/// The question of a caller who left arrives after all that was sent later on other connections.
#[tokio::test]
async fn a_question_that_arrives_after_its_clean_up_holds_nothing() {
    let server = RedisServer::start();
    let places = Rule::new("one", 1, SECOND * 3600).with_algorithm(Algorithm::Concurrent);
    for is_late in [false, true] {
        let gate = Gate::start(server.port());
        let limiter = Limiter::builder(&gate.url()).deadline(500 * MS).on_store_error(OnStoreError::Deny);
        let (limiter, other, key) = (limiter.build().await.unwrap(), limiter_on(&server).await, fresh_key());
        // The server knows the scripts.
        drop(limiter.acquire(&places, key).await.unwrap());
        limiter.close().await;
        gate.hold(0);
        let call = limiter.acquire(&places, key);
        if is_late {
            assert_eq!(call.await.unwrap_err().cause(), Cause::Unavailable);
        } else {
            assert!(timeout(20 * MS, call).await.is_err());
        }
        let before = asked(&server);
        sleep(5 * SECOND).await;
        let more = asked(&server) - before;
        assert!(more <= 3, "{more} scripts to clean up after one caller");
        gate.release();
        // It is granted now, and refunded at once: not after its lease.
        sleep(SECOND).await;
        eventually("it is refunded", || async { remaining(&other, &places, key).await == 1 }).await;
        eventually("calls go on", || async { limiter.peek(&places, key).await.is_ok() }).await;
    }
}

/// Their answers are awaited in the background, and are missing all the same.
#[tokio::test]
async fn a_server_that_is_silent_to_callers_who_would_hold_something_is_away() {
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

/// A caller has left, and its runtime stands still: the place is refunded all the same.
#[test]
fn a_place_that_was_granted_to_a_caller_on_a_runtime_that_nobody_drives_is_left() {
    let server = RedisServer::start();
    let (left, driven, key) = (current_thread(), current_thread(), fresh_key());
    let limiter = Limiter::builder(&server.url()).deadline(SECOND).on_store_error(OnStoreError::Deny);
    let limiter = left.block_on(limiter.build()).unwrap();
    drop(left.block_on(limiter.acquire(&PLACES, key)).unwrap());
    left.block_on(limiter.close());
    for _ in 0..20 {
        let mut call = Box::pin(limiter.acquire_n(&PLACES, key, 2));
        left.block_on(async {
            assert!((&mut call).now_or_never().is_none());
            for _ in 0..3 {
                tokio::task::yield_now().await; // it is sent
            }
        });
        drop(call);
    }
    driven.block_on(eventually("it is left", || async { remaining(&limiter, &PLACES, key).await == 2 }));
    driven.block_on(async { sleep(2 * SECOND).await });
    assert_eq!(driven.block_on(remaining(&limiter, &PLACES, key)), 2);
}

/// Callers who left before anything was sent have nothing to refund.
#[tokio::test]
async fn who_goes_before_anything_is_sent_costs_nothing() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let limiter = Limiter::builder(&proxy.url()).deadline(PATIENCE).lazy().build().await.unwrap();
    proxy.set(Mode::Stall);
    for _ in 0..100 {
        assert!(timeout(MS, limiter.acquire(&PLACES, 1)).await.is_err());
    }
    settle().await;
    proxy.set(Mode::Pass);
    limiter.peek(&PLACES, 1).await.unwrap();
    let before = asked(&server);
    sleep(SECOND).await;
    assert_eq!(asked(&server) - before, 0);
}

/// A proxy that can hold what single connections send, in the order in which they were opened.
struct Gate {
    port: u16,
    shared: Arc<GateState>,
}

#[derive(Default)]
struct GateState {
    accepted: AtomicUsize,
    /// Bit by bit.
    held: AtomicUsize,
    delay_ms: AtomicU32,
}

impl Gate {
    fn start(to: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let (port, shared) = (listener.local_addr().unwrap().port(), Arc::<GateState>::default());
        let state = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(("127.0.0.1", to))) else { return };
                let at = state.accepted.fetch_add(1, Ordering::SeqCst);
                let (replies_from, replies_to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                thread::spawn(move || pass_on(replies_from, replies_to, || ()));
                let state = Arc::clone(&state);
                thread::spawn(move || {
                    pass_on(client, server, || {
                        thread::sleep(MS * state.delay_ms.load(Ordering::SeqCst));
                        while state.held.load(Ordering::SeqCst) & (1 << at) != 0 {
                            thread::sleep(MS);
                        }
                    });
                });
            }
        });
        Self { port, shared }
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    fn hold(&self, connection: usize) {
        self.shared.held.fetch_or(1 << connection, Ordering::SeqCst);
    }

    /// Each request arrives so much later.
    fn delay_ms(&self, delay: u32) {
        self.shared.delay_ms.store(delay, Ordering::SeqCst);
    }

    fn release(&self) {
        self.shared.held.store(0, Ordering::SeqCst);
    }
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, may_go: impl Fn()) {
    let mut bytes = [0; 16 * 1024];
    to.set_nodelay(true).unwrap();
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        may_go();
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    may_go();
    let _ = to.shutdown(Shutdown::Write);
}
