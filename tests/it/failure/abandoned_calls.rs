//! Callers who leave or time out before the server has replied: they hold nothing in the end, and
//! the clean-up is cheap.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use ratelimit_harness::{Mode, Proxy, RedisServer};
use ratelimit_runtime::store::{Batch, Charges, Reply, StoreError};
use ratelimit_runtime::{Algorithm, Cause, CounterName, Decision, Key, Limiter, OnStoreError, Rule, Store};
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep, timeout};

use super::background::current_thread;
use super::gate::Gate;
use super::{DEADLINE, HOUR, at_once, decides_again};
use crate::support::holds::remaining;
use crate::support::servers::script_calls;
use crate::support::{
    FIXED, LOG, MS, PATIENCE, SECOND, ends, eventually, exceeded, fresh_key, hourly, limiter_on, settle,
};

const PLACES: Rule = Rule::new("place", 2, SECOND.saturating_mul(60)).with_algorithm(Algorithm::Concurrent);
const TOKENS: Rule = Rule::new("tokens", 1000, SECOND.saturating_mul(60)).with_algorithm(LOG);

/// Polls the future once.
async fn is_pending<F: Future + Unpin>(future: &mut F) -> bool {
    std::future::poll_fn(|context| Poll::Ready(Pin::new(&mut *future).poll(context).is_pending())).await
}

/// They hold nothing after the reply has arrived, too.
#[tokio::test]
async fn a_call_cancelled_before_its_reply_holds_nothing() {
    let server = RedisServer::start();
    let (limiter, other, key) = (limiter_on(&server).await, limiter_on(&server).await, fresh_key());
    let mut was_held = false;
    // Until the server knows the scripts, nothing comes of the first question.
    drop(limiter.acquire(&PLACES, key).await.unwrap());
    limiter.reserve(&TOKENS, key, 1).await.unwrap().cancel().await.unwrap();
    for _ in 0..50 {
        let mut asking = Box::pin(limiter.acquire(&PLACES, key));
        assert!(is_pending(&mut asking).await);
        let mut reserving = Box::pin(limiter.reserve(&TOKENS, key, 1000));
        assert!(is_pending(&mut reserving).await);
        let mut waiting = Box::pin(limiter.acquire_within(&PLACES, key, PATIENCE));
        assert!(is_pending(&mut waiting).await);
        sleep(MS * (fastrand::u32(0..3))).await;
        was_held |= remaining(&other, &PLACES, key).await < 2 && remaining(&other, &TOKENS, key).await < 1000;
    }
    assert!(was_held, "the server has granted some");
    eventually("nothing is held", || async {
        remaining(&limiter, &PLACES, key).await == 2 && remaining(&limiter, &TOKENS, key).await == 1000
    })
    .await;
}

/// The release may overtake the request on another connection.
#[tokio::test]
async fn a_cancelled_call_holds_nothing_with_several_connections() {
    let server = RedisServer::start();
    let builder = Limiter::builder(&server.url()).connections(4).on_store_error(OnStoreError::Deny);
    let (limiter, key) = (builder.deadline(PATIENCE).build().await.unwrap(), fresh_key());
    let places = Rule::new("connections", 1000, 60 * SECOND).with_algorithm(Algorithm::Concurrent);
    drop(limiter.acquire(&places, key).await.unwrap());
    sleep(300 * MS).await; // all of them are open
    for _ in 0..300 {
        let mut asking = Box::pin(limiter.acquire(&places, key));
        assert!(is_pending(&mut asking).await);
        tokio::task::yield_now().await;
        drop(asking);
        if fastrand::bool() {
            sleep(MS).await;
        }
    }
    eventually("nothing is held", || async { remaining(&limiter, &places, key).await == 1000 }).await;
}

/// Some requests are still unread when their callers time out. The server grants them places later.
#[tokio::test]
async fn places_granted_after_the_callers_timed_out_are_released() {
    let server = RedisServer::start();
    let builder = Limiter::builder(&server.url()).deadline(100 * MS).on_store_error(OnStoreError::Deny);
    let (limiter, other, key) = (builder.build().await.unwrap(), limiter_on(&server).await, fresh_key());
    let places = Rule::new("stall", 3, 60 * SECOND).with_algorithm(Algorithm::Concurrent);
    drop(limiter.acquire(&places, key).await.unwrap());
    limiter.close().await;
    server.stop();
    let until = Instant::now() + SECOND;
    while Instant::now() < until {
        assert!(join_all((0..20).map(|_| limiter.acquire(&places, key))).await.iter().all(Result::is_err));
        sleep(10 * MS).await;
    }
    server.cont();
    eventually("all places are free", || async { remaining(&other, &places, key).await == 3 }).await;
    sleep(SECOND).await;
    assert_eq!(remaining(&other, &places, key).await, 3);
}

/// The server refuses each call, before or after its caller has left. There is nothing to release.
#[tokio::test]
async fn a_caller_who_leaves_costs_at_most_one_more_script() {
    const CALLERS: u64 = 1000;
    for connections in [1, 3] {
        let server = RedisServer::start();
        let proxy = Proxy::start(server.port());
        let builder = Limiter::builder(&proxy.url()).connections(connections).on_store_error(OnStoreError::Deny);
        let (limiter, key) = (builder.deadline(PATIENCE).build().await.unwrap(), fresh_key());
        let places = Rule::new("one", 1, SECOND * 30).with_algorithm(Algorithm::Concurrent);
        let place = limiter.acquire(&places, key).await.unwrap();
        proxy.set(Mode::Delay(5 * MS / 2));
        let before = script_calls(&server);
        let answers = join_all((0..CALLERS).map(|_| timeout(2 * MS, limiter.acquire(&places, key)))).await;
        assert!(answers.iter().all(|answer| !matches!(answer, Ok(Ok(_)))), "one has it");
        // All that comes of it has come.
        sleep(3 * SECOND).await;
        let more = script_calls(&server) - before;
        println!("{more} scripts for {CALLERS} callers, {connections} connections");
        assert!(more <= 2 * CALLERS, "{more} scripts for {CALLERS} callers, {connections} connections");
        let before = script_calls(&server);
        sleep(SECOND).await;
        assert_eq!(script_calls(&server) - before, 0, "it is over");
        assert!(place.is_held());
        proxy.set(Mode::Pass);
        exceeded(limiter.acquire(&places, key).await);
        drop(place);
        let place = limiter.acquire(&places, key).await.unwrap();
        exceeded(limiter.acquire(&places, key).await);
        drop(place);
    }
}

/// Places are free here: calls of callers who left are granted some, and release them.
#[tokio::test]
async fn a_place_granted_to_a_caller_who_left_is_released_once() {
    const CALLERS: u64 = 1000;
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let (limiter, key) = (Limiter::builder(&proxy.url()).deadline(PATIENCE).build().await.unwrap(), fresh_key());
    let places = Rule::new("many", CALLERS, SECOND * 30).with_algorithm(Algorithm::Concurrent);
    drop(limiter.acquire(&places, key).await.unwrap());
    limiter.close().await;
    proxy.set(Mode::Delay(5 * MS / 2));
    let before = script_calls(&server);
    drop(join_all((0..CALLERS).map(|_| timeout(2 * MS, limiter.acquire(&places, key)))).await);
    proxy.set(Mode::Pass);
    let looks = AtomicUsize::new(0);
    eventually("all are free", || async {
        looks.fetch_add(1, Ordering::Relaxed);
        remaining(&limiter, &places, key).await == CALLERS
    })
    .await;
    let more = script_calls(&server) - before - looks.load(Ordering::Relaxed) as u64;
    println!("{more} scripts for {CALLERS} callers");
    assert!(more <= 2 * CALLERS, "{more} scripts for {CALLERS} callers");
}

/// The request arrives after all later ones on other connections.
#[tokio::test]
async fn a_request_that_arrives_after_its_clean_up_holds_nothing() {
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
        let before = script_calls(&server);
        sleep(5 * SECOND).await;
        let more = script_calls(&server) - before;
        assert!(more <= 3, "{more} scripts to clean up after one caller");
        gate.release();
        // It is granted now, and refunded at once: not after its lease.
        sleep(SECOND).await;
        eventually("it is refunded", || async { remaining(&other, &places, key).await == 1 }).await;
        eventually("calls go on", || async { limiter.peek(&places, key).await.is_ok() }).await;
    }
}

/// The caller has left, and its runtime is idle.
#[test]
fn a_place_granted_to_a_caller_who_left_an_idle_runtime_is_released() {
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

/// Nothing was sent, so there is nothing to refund.
#[tokio::test]
async fn a_caller_who_leaves_before_the_request_is_sent_costs_nothing() {
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
    let before = script_calls(&server);
    sleep(SECOND).await;
    assert_eq!(script_calls(&server) - before, 0);
}

/// Polls the call up to so many times, as far as it can go, then drops it.
async fn poll_and_drop(call: impl Future, polls: usize) {
    let mut call = pin!(call);
    for _ in 0..polls {
        if at_once(call.as_mut()).is_some() {
            return;
        }
        sleep(Duration::from_millis(1)).await;
    }
}

/// Callers leave while a connection opens, while the server decides, while it is silent, and while
/// the breaker is open.
#[tokio::test]
async fn cancelled_calls_of_every_kind_leave_no_task_behind() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let rule = hourly(100_000, FIXED);
    for mode in [Mode::Pass, Mode::Stall, Mode::Refuse, Mode::Delay(Duration::from_millis(5))] {
        let builder = Limiter::builder(&proxy.url()).lazy().deadline(DEADLINE).on_store_error(OnStoreError::Deny);
        let limiter = builder.build().await.unwrap();
        proxy.set(mode);
        for polls in 0..30 {
            poll_and_drop(limiter.acquire(&rule, 1), polls).await;
            poll_and_drop(limiter.acquire_within(&rule, 1, HOUR), polls).await;
            poll_and_drop(limiter.acquire_all(&[(&rule, Key::new(1), 1), (&rule, Key::new(2), 1)]), polls).await;
            poll_and_drop(limiter.peek(&rule, 1), polls).await;
            poll_and_drop(limiter.reset(&rule, 1), polls).await;
        }
        proxy.set(Mode::Pass);
        decides_again(&limiter).await;
        ends(limiter.acquire_within(&rule, 1, HOUR)).await.unwrap();
        drop(limiter);
        eventually("no task is left", async || Handle::current().metrics().num_alive_tasks() == 0).await;
    }
}

/// A store with slots that come in a day, and slow refunds.
#[derive(Debug, Default)]
struct SlowRefunds(Arc<AtomicU64>);

impl Store for SlowRefunds {
    fn decide(&self, mut batch: Batch) -> Reply<Batch> {
        for request in batch.iter_mut() {
            for charge in request.charges.iter_mut() {
                charge.decision = Decision::new(5, 1, SECOND, None);
                charge.slot_delay = 86_400 * SECOND;
            }
            request.outcome = Ok(true);
        }
        Reply::Ready(batch)
    }

    fn refund(&self, _: Charges) -> Reply<Result<u64, StoreError>> {
        let refunded = self.0.clone();
        Reply::Pending(Box::pin(async move {
            sleep(100 * MS).await;
            refunded.fetch_add(1, Ordering::Relaxed);
            Ok(1)
        }))
    }

    fn reset(&self, _: CounterName) -> Reply<Result<(), StoreError>> {
        Reply::Ready(Ok(()))
    }
}

#[tokio::test]
async fn close_waits_for_the_refund_of_a_call_that_has_left() {
    let store = SlowRefunds::default();
    let refunded = store.0.clone();
    let limiter = Limiter::builder("memory://").deadline(PATIENCE).over(store).unwrap();
    let slots = Rule::new("slots", 1, SECOND).with_algorithm(Algorithm::LeakyBucket { queue: 5 });
    let mut waiting = Box::pin(limiter.acquire(&slots, 1));
    assert!(is_pending(&mut waiting).await);
    drop(waiting);
    limiter.close().await;
    assert_eq!(refunded.load(Ordering::Relaxed), 1);
}
