//! What is held while a call runs: places, reservations, and charges by the time a call takes.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use ratelimit_harness::{Mode, Proxy, RedisCluster, RedisServer};
use ratelimit_runtime::__private::{
    AnnotatedCharge, Call, charge, charge_elapsed, concurrent, key, permit_requests_per_time,
};
use ratelimit_runtime::conformance::{counter_of, store_of};
use ratelimit_runtime::store::{Batch, Charge as StoreCharge, Charges, Hold, Reply, Request, StoreError};
use ratelimit_runtime::{
    Algorithm, Cause, CounterName, Key, Limiter, OnStoreError, Permit, RequestPerMinute, Rule, Store,
    limit_concurrent_requests, limit_request_per_time,
};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::redis::denial_cache::asked;
use crate::redis::server::eventually;
use crate::support::{FIXED, LOG, PATIENCE, SLIDING, Timed, ends, exceeded, fresh_key, limiter_on, settle};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(30);
const PLACES: Rule = Rule::new("place", 2, LEASE).with_algorithm(Algorithm::Concurrent);
const TOKENS: Rule = Rule::new("tokens", 1000, SECOND.saturating_mul(60)).with_algorithm(LOG);

/// As many milliseconds a minute.
const TIME: Rule = Rule::new("time", 20_000, SECOND.saturating_mul(60)).with_algorithm(LOG);

async fn run(limiter: &Limiter, rule: Rule, id: u64, max: Option<u64>) -> Result<Permit, RequestPerMinute> {
    permit_requests_per_time(Some(limiter), Call::new(), [charge_elapsed(rule, key(&id), max).asked()]).await
}

async fn remaining(limiter: &Limiter, rule: &Rule, key: u64) -> u64 {
    limiter.peek(rule, key).await.unwrap().remaining()
}

#[tokio::test]
async fn so_many_places_are_held_at_once() {
    for timed in Timed::both().await {
        let (limiter, key) = (&timed.limiter, fresh_key());
        let one = limiter.acquire(&PLACES, key).await.unwrap();
        assert_eq!((one.limit(), one.remaining()), (2, 1));
        let two = limiter.acquire(&PLACES, key).await.unwrap();
        assert_eq!(two.remaining(), 0);
        let refused = exceeded(limiter.acquire(&PLACES, key).await);
        assert_eq!((refused.rule(), refused.limit(), refused.retry_after()), ("place", 2, None), "{}", timed.name());
        assert_eq!(refused.to_string(), "`place` is limited to 2 at once");
        assert!(one.is_held() && two.is_held());
        assert_eq!(remaining(limiter, &PLACES, fresh_key()).await, 2);
        for _ in 0..10 {
            // What was dropped is free for the next one, though a server is told in the background.
            drop(limiter.acquire(&PLACES, key).await.ok());
        }
        drop(one);
        let three = limiter.acquire(&PLACES, key).await.unwrap();
        assert_eq!(two.refund().await, Ok(1));
        assert_eq!(remaining(limiter, &PLACES, key).await, 1);
        let both = limiter.acquire_n(&PLACES, key, 2).await;
        exceeded(both);
        drop(three);
        assert_eq!(limiter.acquire_n(&PLACES, key, 2).await.unwrap().remaining(), 0);
        let never = limiter.acquire_n(&PLACES, key, 3).await.unwrap_err();
        assert_eq!(never.cause(), Cause::NeverFits);
    }
}

#[tokio::test]
async fn a_place_is_handed_over_to_who_waits_in_the_order_of_arrival() {
    for timed in Timed::both().await {
        let (limiter, key) = (timed.limiter.clone(), fresh_key());
        let places = PLACES;
        let (first, second) =
            (limiter.acquire(&places, key).await.unwrap(), limiter.acquire(&places, key).await.unwrap());
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        for at in 0..20 {
            let (limiter, tell) = (limiter.clone(), tell.clone());
            tasks.spawn(async move {
                let permit = limiter.acquire_within(&places, key, PATIENCE).await.unwrap();
                tell.send(at).unwrap();
                drop(permit);
            });
            settle().await;
        }
        drop((first, second));
        for at in 0..20 {
            assert_eq!(ends(told.recv()).await, Some(at), "{}", timed.name());
        }
        ends(tasks.join_all()).await;
        eventually("both are free", || async { remaining(&limiter, &places, key).await == 2 }).await;
    }
}

/// However short the wait is that a caller is ready for.
#[tokio::test]
async fn who_waits_for_a_moment_gets_a_place_that_is_left_in_it() {
    for timed in Timed::both().await {
        let (limiter, key) = (timed.limiter.clone(), fresh_key());
        let first = limiter.acquire_n(&PLACES, key, 2).await.unwrap();
        let waiting = |longest| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.acquire_within(&PLACES, key, longest).await })
        };
        let [soon, later] = [MS, 2 * MS].map(waiting);
        settle().await;
        timed.advance(MS);
        exceeded(ends(soon).await.unwrap());
        assert!(!later.is_finished());
        drop(first);
        ends(later).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn what_is_reserved_counts_until_it_is_settled() {
    for timed in Timed::both().await {
        let (limiter, key) = (&timed.limiter, fresh_key());
        let reservation = limiter.reserve(&TOKENS, key, 600).await.unwrap();
        assert_eq!((reservation.held(), reservation.is_held()), (600, true));
        assert_eq!(remaining(limiter, &TOKENS, key).await, 400);
        let refused = limiter.reserve(&TOKENS, key, 500).await.unwrap_err();
        assert_eq!((refused.cause(), refused.remaining()), (Cause::Exceeded, 400), "{}", timed.name());
        exceeded(limiter.acquire_n(&TOKENS, key, 401).await);
        limiter.acquire_n(&TOKENS, key, 100).await.unwrap();
        reservation.settle(123).await.unwrap();
        assert_eq!(remaining(limiter, &TOKENS, key).await, 1000 - 123 - 100);
        let cancelled = limiter.reserve(&TOKENS, key, 600).await.unwrap();
        cancelled.cancel().await.unwrap();
        assert_eq!(remaining(limiter, &TOKENS, key).await, 1000 - 123 - 100);
        // More than was reserved.
        limiter.reserve(&TOKENS, key, 1).await.unwrap().settle(5000).await.unwrap();
        assert_eq!(remaining(limiter, &TOKENS, key).await, 0);
        timed.advance(60 * SECOND);
        assert_eq!(remaining(limiter, &TOKENS, key).await, 1000);
    }
}

#[tokio::test]
async fn a_reservation_that_is_dropped_is_charged_what_is_known_of_it_or_else_all() {
    for timed in Timed::both().await {
        let (limiter, key) = (&timed.limiter, fresh_key());
        drop(limiter.reserve(&TOKENS, key, 600).await.unwrap());
        // The next one waits until the store knows.
        let mut reservation = limiter.reserve(&TOKENS, key, 400).await.unwrap();
        reservation.record(10);
        reservation.record(20);
        drop(reservation);
        let rest = limiter.reserve(&TOKENS, key, 370).await.unwrap();
        assert_eq!(remaining(limiter, &TOKENS, key).await, 0, "{}", timed.name());
        rest.cancel().await.unwrap();
        // Charged when it ended, each.
        timed.advance(60 * SECOND);
        assert_eq!(remaining(limiter, &TOKENS, key).await, 1000);
    }
}

#[tokio::test]
async fn a_call_is_charged_the_time_it_took() {
    for timed in Timed::both().await {
        let (limiter, key) = (&timed.limiter, fresh_key());
        let permit = run(limiter, TIME, key, Some(5000)).await.unwrap();
        assert_eq!(permit.remaining_time(), 5 * SECOND);
        assert_eq!(remaining(limiter, &TIME, key).await, 15_000, "{}", timed.name());
        timed.advance(1234 * MS);
        assert_eq!(permit.remaining_time(), 3766 * MS);
        drop(permit);
        // All that remains, which is less than the largest.
        for left in [18_766, 13_766, 8_766, 3_766] {
            let permit = run(limiter, TIME, key, Some(5000)).await.unwrap();
            assert_eq!(permit.remaining_time(), left.min(5000) * MS);
            timed.advance(5 * SECOND);
        }
        let refused = exceeded(run(limiter, TIME, key, Some(5000)).await);
        // The last one took 1,234 ms more than it had: without the first charge, which is as long, still nothing is left.
        assert_eq!(refused.retry_after(), Some(45 * SECOND), "{}", timed.name());
        timed.advance(45 * SECOND - MS);
        exceeded(run(limiter, TIME, key, Some(5000)).await);
        timed.advance(MS);
        let permit = run(limiter, TIME, key, None).await.unwrap();
        assert_eq!(permit.remaining_time(), 5 * SECOND);
    }
}

/// Equal durations in the same millisecond all count.
#[tokio::test]
async fn equal_durations_are_not_one() {
    for timed in Timed::both().await {
        let (limiter, key) = (&timed.limiter, fresh_key());
        let mut permits = Vec::new();
        for _ in 0..10 {
            permits.push(run(limiter, TIME, key, Some(1000)).await.unwrap());
        }
        timed.advance(500 * MS);
        drop(permits);
        drop(run(limiter, TIME, key, Some(1)).await.unwrap());
        // On a busy machine the last of them is settled after the call beside it.
        let left = 20_000 - 10 * 500;
        eventually(&format!("{left} remain ({})", timed.name()), || async {
            remaining(limiter, &TIME, key).await == left
        })
        .await;
    }
}

#[tokio::test]
async fn calls_that_use_all_that_remains_run_one_after_another() {
    for timed in Timed::both().await {
        let (limiter, key) = (timed.limiter.clone(), fresh_key());
        let first = run(&limiter, TIME, key, None).await.unwrap();
        assert_eq!(first.remaining_time(), 20 * SECOND);
        let next = tokio::spawn({
            let limiter = limiter.clone();
            async move { run(&limiter, TIME, key, None).await }
        });
        settle().await;
        assert!(!next.is_finished(), "its turn has not come");
        timed.advance(3 * SECOND);
        drop(first);
        let next = ends(next).await.unwrap().unwrap();
        assert_eq!(next.remaining_time(), 17 * SECOND, "{}", timed.name());
        timed.advance(17 * SECOND);
        drop(next);
        let refused = exceeded(ends(run(&limiter, TIME, key, None)).await);
        assert_eq!(refused.retry_after(), Some(43 * SECOND));
        assert_eq!(refused.to_string(), "`time` is limited to 20s of time per minute; retry in 43.000s");
    }
}

/// Also if something is left for it, as older calls leave the window meanwhile.
#[tokio::test]
async fn who_uses_all_that_remains_runs_alone() {
    for timed in Timed::both().await {
        let (limiter, key) = (timed.limiter.clone(), fresh_key());
        let before = run(&limiter, TIME, key, None).await.unwrap();
        timed.advance(15 * SECOND);
        drop(before);
        while remaining(&limiter, &TIME, key).await != 5_000 {
            settle().await; // it is charged now, and not later
        }
        timed.advance(58 * SECOND);
        let first = run(&limiter, TIME, key, None).await.unwrap();
        assert_eq!(first.remaining_time(), 5 * SECOND);
        timed.advance(3 * SECOND);
        assert_eq!(remaining(&limiter, &TIME, key).await, 15_000, "{}", timed.name());
        let next = tokio::spawn({
            let limiter = limiter.clone();
            async move { run(&limiter, TIME, key, None).await }
        });
        settle().await;
        sleep(100 * MS).await;
        assert!(!next.is_finished(), "{}: its turn has not come", timed.name());
        // Calls that say how long they may take run beside it.
        drop(run(&limiter, TIME, key, Some(1000)).await.unwrap());
        drop(first);
        assert_eq!(ends(next).await.unwrap().unwrap().remaining_time(), 17 * SECOND);
    }
}

#[tokio::test]
async fn nothing_is_charged_where_no_place_is_free_and_no_place_taken_where_nothing_is_left() {
    for timed in Timed::both().await {
        let (limiter, id) = (&timed.limiter, fresh_key());
        let rate = Rule::new("rate", 3, 60 * SECOND);
        let both = || {
            let charges = [charge(concurrent("joined", 1, 30_000), key(&id), 1), charge(rate, key(&id), 1)];
            permit_requests_per_time(Some(limiter), Call::new(), charges.map(AnnotatedCharge::asked))
        };
        let place = Rule::new("joined", 1, LEASE).with_algorithm(Algorithm::Concurrent);
        let permit = both().await.unwrap();
        assert_eq!(exceeded(both().await).rule(), "joined");
        assert_eq!(remaining(limiter, &rate, id).await, 2);
        drop(permit);
        drop(both().await.unwrap());
        // Refunded, both of it.
        assert_eq!(both().await.unwrap().refund().await, Ok(2), "{}", timed.name());
        drop(both().await.unwrap());
        assert_eq!(exceeded(both().await).rule(), "rate");
        assert_eq!(remaining(limiter, &place, id).await, 1);
    }
}

/// As if the process had died: nobody renews it, nobody settles it.
#[tokio::test]
async fn what_nobody_renews_becomes_a_charge_in_full_and_a_place_becomes_free() {
    let timed = Timed::redis().await;
    let (limiter, key) = (&timed.limiter, fresh_key());
    let (place, reservation) =
        (limiter.acquire(&PLACES, key).await.unwrap(), limiter.reserve(&TOKENS, key, 600).await.unwrap());
    timed.advance(LEASE - MS);
    assert_eq!((remaining(limiter, &PLACES, key).await, place.is_held()), (1, true));
    timed.advance(MS);
    assert_eq!((remaining(limiter, &PLACES, key).await, place.is_held()), (2, false));
    assert!(!reservation.is_held());
    timed.advance(60 * SECOND - MS);
    assert_eq!(remaining(limiter, &TOKENS, key).await, 400);
    timed.advance(MS);
    assert_eq!(remaining(limiter, &TOKENS, key).await, 1000);
    // It was used all the same, and is charged when that is known.
    reservation.settle(700).await.unwrap();
    assert_eq!(remaining(limiter, &TOKENS, key).await, 300);
    // And a late settlement corrects what was charged in full.
    let late = limiter.reserve(&TOKENS, key, 300).await.unwrap();
    timed.advance(LEASE + SECOND);
    assert_eq!(remaining(limiter, &TOKENS, key).await, 0);
    late.settle(100).await.unwrap();
    assert_eq!(remaining(limiter, &TOKENS, key).await, 200);
}

/// By the clock of the machine: so that its leases end while it runs.
#[tokio::test]
async fn a_call_that_takes_longer_than_its_lease_keeps_what_it_holds() {
    let server = RedisServer::start();
    let (limiter, other, key) = (limiter_on(&server).await, limiter_on(&server).await, fresh_key());
    let places = Rule::new("short", 1, 2 * SECOND).with_algorithm(Algorithm::Concurrent);
    // The lease of a log is the time that is granted.
    let time = Rule::new("time", 2000, 2001 * MS).with_algorithm(LOG);
    let (place, permit) = (limiter.acquire(&places, key).await.unwrap(), run(&limiter, time, key, None).await.unwrap());
    let until = Instant::now() + 6 * SECOND;
    while Instant::now() < until {
        assert!(place.is_held() && permit.is_held());
        exceeded(other.acquire(&places, key).await);
        exceeded(other.acquire(&time, key).await);
        sleep(20 * MS).await;
    }
    drop(permit);
    drop(place);
    eventually("the place is free", || async { other.acquire(&places, key).await.is_ok() }).await;
}

/// So many calls of one key hold something, with a lease of two seconds, for longer than that.
async fn hold_together(limiter: &Limiter, rule: Rule, key: u64) -> Vec<Permit> {
    let hold = |_| async { run(limiter, rule, key, Some(2000)).await.unwrap() };
    join_all((0..200).map(hold)).await
}

#[tokio::test]
async fn holds_of_one_counter_are_renewed_together() {
    let server = RedisServer::start();
    let limiter = limiter_on(&server).await;
    let log = Rule::new("many", 1_000_000, 60 * SECOND).with_algorithm(LOG);
    let places = Rule::new("many", 1_000, 2 * SECOND).with_algorithm(Algorithm::Concurrent);
    let (one, other) = (fresh_key(), fresh_key());
    let mut held = hold_together(&limiter, log, one).await;
    held.extend(hold_together(&limiter, log, other).await);
    held.extend(join_all((0..200).map(|_| async { limiter.acquire(&places, one).await.unwrap() })).await);
    sleep(100 * MS).await; // all that is sent for them has arrived
    let before = asked(&server);
    let until = Instant::now() + 5 * SECOND;
    while Instant::now() < until {
        assert!(held.iter().all(Permit::is_held));
        sleep(20 * MS).await;
    }
    // Of each counter eight, or a few more, as some begin later than others.
    let scripts = asked(&server) - before;
    assert!(scripts <= 60, "{scripts} scripts renewed {} holds of 3 counters", held.len());
    assert_eq!(remaining(&limiter, &places, one).await, 800);
}

#[tokio::test]
async fn of_holds_that_are_renewed_together_only_those_are_lost_that_the_server_has_lost() {
    let server = RedisServer::start();
    let limiter = limiter_on(&server).await;
    let log = Rule::new("some", 1_000_000, 60 * SECOND).with_algorithm(LOG);
    let (one, other) = (fresh_key(), fresh_key());
    let held = hold_together(&limiter, log, one).await;
    let lost = hold_together(&limiter, log, other).await;
    limiter.reset(&log, other).await.unwrap();
    let new = hold_together(&limiter, log, other).await;
    let (settled, held): (Vec<_>, Vec<_>) = held.into_iter().enumerate().partition(|(at, _)| at % 3 == 0);
    drop(settled);
    eventually("they learn that they have lost it", || async { lost.iter().all(|lost| !lost.is_held()) }).await;
    let until = Instant::now() + 4 * SECOND;
    while Instant::now() < until {
        assert!(held.iter().all(|(_, held)| held.is_held()));
        assert!(new.iter().all(Permit::is_held));
        assert!(lost.iter().all(|lost| !lost.is_held()));
        sleep(20 * MS).await;
    }
}

/// The renewal that comes first is that of the hold which began last.
#[tokio::test]
async fn a_short_lease_is_renewed_beside_a_long_one() {
    let server = RedisServer::start();
    let (limiter, key) = (limiter_on(&server).await, fresh_key());
    let long = limiter.reserve(&TOKENS, key, 1).await.unwrap();
    sleep(100 * MS).await;
    let places = Rule::new("short", 1, SECOND).with_algorithm(Algorithm::Concurrent);
    let short = limiter.acquire(&places, key).await.unwrap();
    let until = Instant::now() + 3 * SECOND;
    while Instant::now() < until {
        assert!(long.is_held() && short.is_held());
        sleep(20 * MS).await;
    }
}

/// Grants everything. Its first renewals fail, each in a way of its own.
#[derive(Clone, Debug, Default)]
struct Unreliable {
    renewals: Arc<AtomicUsize>,
    /// The most that it was asked to renew in one go.
    most: Arc<AtomicUsize>,
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
            _ => Reply::Ready(Ok(vec![true; charges.len()])),
        }
    }

    fn settle(&self, _: StoreCharge, _: u64) -> Reply<Result<(), StoreError>> {
        Reply::Ready(Ok(()))
    }
}

#[tokio::test]
async fn renewals_that_fail_are_tried_again() {
    let store = Unreliable::default();
    let builder = Limiter::builder("memory://").deadline(20 * MS).on_store_error(OnStoreError::Deny);
    let limiter = builder.over(store.clone()).unwrap();
    let rule = Rule::new("again", 10_000, SECOND).with_algorithm(Algorithm::Concurrent);
    let places = join_all((0..6_000).map(|_| async { limiter.acquire(&rule, 1).await.unwrap() })).await;
    eventually("they fail", || async { store.renewals.load(Ordering::SeqCst) >= 4 }).await;
    eventually("they are renewed", || async { places.iter().all(Permit::is_held) }).await;
    let most = store.most.load(Ordering::SeqCst);
    assert!((2..=2_500).contains(&most), "{most} in one go");
    // And no more when they have ended.
    drop(places);
    sleep(SECOND).await;
    let before = store.renewals.load(Ordering::SeqCst);
    sleep(SECOND).await;
    assert_eq!(store.renewals.load(Ordering::SeqCst), before);
}

#[tokio::test]
async fn who_holds_something_learns_that_the_server_has_lost_it() {
    let server = RedisServer::start();
    let (limiter, key) = (limiter_on(&server).await, fresh_key());
    let places = Rule::new("lost", 1, 300 * MS).with_algorithm(Algorithm::Concurrent);
    let place = limiter.acquire(&places, key).await.unwrap();
    server.command(&[b"FLUSHALL"]);
    eventually("it learns that", || async { !place.is_held() }).await;
    let next = limiter.acquire(&places, key).await.unwrap();
    // Its end takes nothing from the one who holds the place now.
    drop(place);
    exceeded(limiter.acquire(&places, key).await);
    assert!(next.is_held());
}

/// Stopped for longer than the lease, as by SIGSTOP: the server hears nothing.
#[tokio::test]
async fn who_was_cut_off_for_a_lease_has_lost_its_place() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let (limiter, other, key) = (Limiter::connect(&proxy.url()).await.unwrap(), limiter_on(&server).await, fresh_key());
    let places = Rule::new("cut-off", 1, 500 * MS).with_algorithm(Algorithm::Concurrent);
    let place = limiter.acquire(&places, key).await.unwrap();
    proxy.set(Mode::Stall);
    let next = ends(other.acquire_within(&places, key, PATIENCE)).await.unwrap();
    assert!(!place.is_held());
    proxy.set(Mode::Pass);
    sleep(SECOND).await;
    assert!(!place.is_held() && next.is_held());
}

/// Polls it once, and says whether it goes on.
async fn asks<F: Future + Unpin>(future: &mut F) -> bool {
    std::future::poll_fn(|context| Poll::Ready(Pin::new(&mut *future).poll(context).is_pending())).await
}

/// Those who gave up before the server had answered hold nothing in the end.
#[tokio::test]
async fn who_is_cancelled_while_asking_holds_nothing() {
    let server = RedisServer::start();
    let (limiter, other, key) = (limiter_on(&server).await, limiter_on(&server).await, fresh_key());
    let mut was_held = false;
    // Until the server knows the scripts, nothing comes of the first question.
    drop(limiter.acquire(&PLACES, key).await.unwrap());
    limiter.reserve(&TOKENS, key, 1).await.unwrap().cancel().await.unwrap();
    for _ in 0..50 {
        let mut asking = Box::pin(limiter.acquire(&PLACES, key));
        assert!(asks(&mut asking).await);
        let mut reserving = Box::pin(limiter.reserve(&TOKENS, key, 1000));
        assert!(asks(&mut reserving).await);
        let mut waiting = Box::pin(limiter.acquire_within(&PLACES, key, PATIENCE));
        assert!(asks(&mut waiting).await);
        sleep(MS * (fastrand::u32(0..3))).await;
        was_held |= remaining(&other, &PLACES, key).await < 2 && remaining(&other, &TOKENS, key).await < 1000;
    }
    assert!(was_held, "the server has granted some");
    eventually("nothing is held", || async {
        remaining(&limiter, &PLACES, key).await == 2 && remaining(&limiter, &TOKENS, key).await == 1000
    })
    .await;
}

/// A refusal because of what is held is not remembered: it may be left at any time, by any process.
#[tokio::test]
async fn what_others_hold_is_asked_for_again() {
    let server = RedisServer::start();
    let (one, other, key) = (limiter_on(&server).await, limiter_on(&server).await, fresh_key());
    let all = one.reserve(&TOKENS, key, 1000).await.unwrap();
    for _ in 0..3 {
        exceeded(other.acquire(&TOKENS, key).await);
    }
    all.settle(999).await.unwrap();
    other.acquire(&TOKENS, key).await.unwrap();
    exceeded(other.acquire(&TOKENS, key).await);
}

/// Many callers of two processes' limiters, on one place: never two at once, and all of them in the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_more_than_the_count_run_at_once() {
    use std::sync::atomic::AtomicU64;

    let server = RedisServer::start();
    let redis = [limiter_on(&server).await, limiter_on(&server).await];
    for limiters in [redis.to_vec(), vec![Limiter::in_memory()]] {
        let (key, running, most, ran) =
            (fresh_key(), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let mut tasks = JoinSet::new();
        for at in 0..200 {
            let limiter = limiters[at % limiters.len()].clone();
            let (running, most, ran) = (Arc::clone(&running), Arc::clone(&most), Arc::clone(&ran));
            tasks.spawn(async move {
                let permit = limiter.acquire_within(&PLACES, key, 3 * PATIENCE).await.unwrap();
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                sleep(MS).await;
                ran.fetch_add(1, Ordering::SeqCst);
                running.fetch_sub(1, Ordering::SeqCst);
                drop(permit);
            });
        }
        tokio::time::timeout(6 * PATIENCE, tasks.join_all()).await.expect("they end");
        assert_eq!((most.load(Ordering::SeqCst), ran.load(Ordering::SeqCst)), (2, 200));
    }
}

#[tokio::test]
async fn a_cluster_holds_what_lies_in_one_slot_or_in_several() {
    let cluster = RedisCluster::start();
    let builder = Limiter::builder(&cluster.url()).deadline(PATIENCE).on_store_error(OnStoreError::Deny);
    let limiter = builder.build().await.unwrap();
    let rate = Rule::new("rate", 2, 60 * SECOND).with_algorithm(FIXED);
    for _ in 0..10 {
        let (one, two) = (fresh_key(), fresh_key());
        let charges = [(&PLACES, Key::new(one), 2), (&rate, Key::new(two), 1)];
        let permit = limiter.acquire_all(&charges).await.unwrap();
        assert_eq!(exceeded(limiter.acquire_all(&charges).await).rule(), "place");
        assert_eq!(remaining(&limiter, &rate, two).await, 1);
        assert_eq!(permit.refund().await, Ok(3));
        assert_eq!(remaining(&limiter, &PLACES, one).await, 2);
        assert_eq!(remaining(&limiter, &rate, two).await, 2);
        limiter.reserve(&TOKENS, one, 10).await.unwrap().settle(3).await.unwrap();
        assert_eq!(remaining(&limiter, &TOKENS, one).await, 997);
    }
}

#[tokio::test]
async fn this_process_alone_holds_its_share_while_the_server_is_away() {
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
    let time = run(&limiter, TIME, key, None).await.unwrap();
    assert!(time.remaining_time() > 9 * SECOND && time.remaining_time() <= 10 * SECOND, "half of it");
    eventually("the place at the server counts as lost", || async { !before.is_held() }).await;
    assert!(one.is_held() && two.is_held());
}

/// A place does not stay taken for a whole lease because the server was away when it was left.
#[tokio::test]
async fn a_place_that_is_left_while_the_server_is_away_is_free_when_it_is_back() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let builder = Limiter::builder(&proxy.url()).deadline(100 * MS).on_store_error(OnStoreError::Deny);
    let (limiter, other, key) = (builder.build().await.unwrap(), limiter_on(&server).await, fresh_key());
    let places = Rule::new("away", 1, 60 * SECOND).with_algorithm(Algorithm::Concurrent);
    let place = limiter.acquire(&places, key).await.unwrap();
    proxy.set(Mode::Stall);
    // Who waits for it hears so within the deadline, and it goes on.
    let left = tokio::time::timeout(PATIENCE, place.refund()).await.expect("within the deadline");
    assert_eq!(left.unwrap_err().cause(), Cause::Unavailable);
    exceeded(other.acquire(&places, key).await);
    proxy.set(Mode::Pass);
    eventually("it is free", || async { other.acquire(&places, key).await.is_ok() }).await;
}

#[tokio::test]
async fn closing_a_limiter_waits_for_what_is_being_settled() {
    let server = RedisServer::start();
    let (limiter, other, key) = (limiter_on(&server).await, limiter_on(&server).await, fresh_key());
    for _ in 0..20 {
        let permits = [limiter.acquire(&PLACES, key).await.unwrap(), limiter.acquire(&PLACES, key).await.unwrap()];
        drop(permits);
        assert_eq!(limiter.close().await, 0);
        assert_eq!(remaining(&other, &PLACES, key).await, 2);
    }
}

#[tokio::test]
async fn of_nothing_no_time_is_granted() {
    for timed in Timed::both().await {
        let none = Rule::new("none", 0, SECOND).with_algorithm(LOG);
        for max in [None, Some(0), Some(1)] {
            let refused = run(&timed.limiter, none, 1, max).await.unwrap_err();
            assert_eq!(refused.cause(), Cause::NeverFits, "{max:?}");
        }
        assert!(timed.limiter.acquire_n(&PLACES, 1, 0).await.unwrap().refund().await.is_ok());
    }
}

#[tokio::test]
async fn only_a_log_can_be_settled() {
    for timed in Timed::both().await {
        for algorithm in [FIXED, SLIDING] {
            let rule = Rule::new("other", 10, SECOND).with_algorithm(algorithm);
            let refused = timed.limiter.reserve(&rule, 1, 1).await.unwrap_err();
            assert_eq!(refused.cause(), Cause::Misconfigured);
            assert!(refused.to_string().contains("SlidingLog"), "{refused}");
        }
        let never = timed.limiter.reserve(&TOKENS, 1, 1001).await.unwrap_err();
        assert_eq!(never.cause(), Cause::NeverFits);
        assert_eq!(timed.limiter.reserve(&TOKENS, 1, 0).await.unwrap().held(), 0);
    }
}

/// How a body ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Well,
    InError,
    Early,
    InPanic,
    /// By the one who awaits it.
    Never,
}

#[limit_request_per_time("body", 1, Minutes, 20_000, key = id, algorithm = SlidingLog, cost = Elapsed(max = "5s"), limiter = &timed.limiter)]
async fn body(timed: &Timed, id: u64, end: End) -> Result<(), RequestPerMinute> {
    timed.advance(1234 * MS);
    match end {
        End::Well => Ok(()),
        End::InError => Err(timed.limiter.acquire(&Rule::new("none", 0, SECOND), 1).await.unwrap_err()),
        End::Early => {
            timed.limiter.acquire(&Rule::new("none", 0, SECOND), 1).await?;
            unreachable!("none fits")
        }
        End::InPanic => panic!("the body's own"),
        End::Never => std::future::pending().await,
    }
}

#[tokio::test]
async fn however_a_body_ends_it_is_charged_what_it_used() {
    const RULE: Rule = Rule::new("body", 20_000, Duration::from_secs(60)).with_algorithm(LOG);
    for timed in Timed::both().await {
        for end in [End::Well, End::InError, End::Early, End::InPanic, End::Never] {
            let id = fresh_key();
            let mut call = Box::pin(AssertUnwindSafe(body(&timed, id, end)).catch_unwind());
            // Dropped by its caller's own limit, or done.
            let ended = tokio::time::timeout(SECOND, &mut call).await;
            match end {
                End::Well => assert_eq!(ended.unwrap().unwrap(), Ok(())),
                End::InError | End::Early => assert_eq!(ended.unwrap().unwrap().unwrap_err().rule(), "none"),
                End::InPanic => drop(ended.unwrap().unwrap_err()),
                End::Never => drop(ended.unwrap_err()),
            }
            if end == End::Never {
                assert_eq!(remaining(&timed.limiter, &RULE, id).await, 15_000, "{}: it runs on", timed.name());
            }
            drop(call);
            // Another call waits until that is settled; a look does not.
            eventually("it is charged", || async { remaining(&timed.limiter, &RULE, id).await == 20_000 - 1234 }).await;
        }
    }
}

#[limit_request_per_time("settled", 1, Minutes, 1000, key = id, algorithm = SlidingLog, cost = Settled(max = 600, |outcome| outcome.as_ref().map_or(7, |used| *used)), limiter = limiter)]
async fn settled(limiter: &Limiter, id: u64, used: Result<u64, RequestPerMinute>) -> Result<u64, RequestPerMinute> {
    let used = used?;
    assert!(used != 13, "the body's own");
    Ok(used)
}

#[tokio::test]
async fn an_outcome_says_what_it_cost() {
    const RULE: Rule = Rule::new("settled", 1000, Duration::from_secs(60)).with_algorithm(LOG);
    for timed in Timed::both().await {
        let (limiter, id) = (&timed.limiter, fresh_key());
        let left =
            |left| eventually("it is charged", move || async move { remaining(limiter, &RULE, id).await == left });
        assert_eq!(settled(limiter, id, Ok(100)).await, Ok(100));
        left(900).await;
        let error = limiter.acquire(&Rule::new("none", 0, SECOND), 1).await.unwrap_err();
        assert_eq!(settled(limiter, id, Err(error.clone())).await, Err(error));
        left(893).await;
        assert!(AssertUnwindSafe(settled(limiter, id, Ok(13))).catch_unwind().await.is_err());
        left(293).await;
        assert_eq!(exceeded(settled(limiter, id, Ok(1)).await).remaining(), 293);
    }
}

#[limit_concurrent_requests("export", 1, key = id, lease = "10s", on_limit = Wait(max = "5s"), permit = permit, limiter = limiter)]
#[limit_request_per_time("export-rate", 1, Minutes, 2, key = id)]
async fn export(limiter: &Limiter, id: u64) -> Result<Permit, RequestPerMinute> {
    assert!(permit.is_held());
    Ok(permit)
}

/// Who waits for a place does not wait for the other limit.
#[tokio::test]
async fn each_attribute_says_what_becomes_of_its_refusals() {
    for limiter in [Limiter::in_memory(), limiter_on(&RedisServer::start()).await] {
        let id = fresh_key();
        let first = export(&limiter, id).await.unwrap();
        let next = tokio::spawn({
            let limiter = limiter.clone();
            async move { export(&limiter, id).await }
        });
        sleep(100 * MS).await;
        assert!(!next.is_finished());
        drop(first);
        drop(ends(next).await.unwrap().unwrap());
        let began = Instant::now();
        assert_eq!(exceeded(export(&limiter, id).await).rule(), "export-rate");
        assert!(began.elapsed() < 4 * SECOND, "refused at once");
    }
}

/// In this process a place is kept however long that takes, and nobody has to be asked.
#[tokio::test]
async fn what_was_held_for_long_is_refunded() {
    for timed in Timed::both().await {
        let (limiter, key) = (&timed.limiter, fresh_key());
        let place = limiter.acquire_n(&PLACES, key, 2).await.unwrap();
        let log = run(limiter, TIME, key, Some(5000)).await.unwrap();
        if timed.server().is_none() {
            timed.advance(10 * LEASE);
        }
        assert_eq!((place.refund().await, log.refund().await), (Ok(2), Ok(5000)), "{}", timed.name());
    }
}

/// A cost is stored as a number, however many places it is.
#[tokio::test]
async fn many_places_at_once_are_held_as_one_is() {
    const MANY: Rule = Rule::new("many", 1_000_000, LEASE).with_algorithm(Algorithm::Concurrent);
    for timed in Timed::both().await {
        let (limiter, key) = (&timed.limiter, fresh_key());
        let most = limiter.acquire_n(&MANY, key, 999_990).await.unwrap();
        assert_eq!(most.remaining(), 10, "{}", timed.name());
        let rest = limiter.acquire_n(&MANY, key, 10).await.unwrap();
        exceeded(limiter.acquire(&MANY, key).await);
        drop(most);
        assert_eq!(limiter.acquire_n(&MANY, key, 999_990).await.unwrap().refund().await, Ok(999_990));
        drop(rest);
        assert_eq!(limiter.acquire_n(&MANY, key, 1_000_000).await.unwrap().remaining(), 0, "{}", timed.name());
    }
}

#[tokio::test]
async fn a_charge_is_refunded_beside_what_is_held() {
    for timed in Timed::both().await {
        let (limiter, key) = (&timed.limiter, fresh_key());
        // A server knows times modulo a quarter of an hour, and none of them is special.
        for _ in 0..20 {
            let reservation = limiter.reserve(&TOKENS, key, 600).await.unwrap();
            for cost in [1, 100, 400] {
                let permit = limiter.acquire_n(&TOKENS, key, cost).await.unwrap();
                timed.advance(SECOND);
                assert_eq!(permit.refund().await, Ok(cost), "{}", timed.name());
                assert_eq!(remaining(limiter, &TOKENS, key).await, 400);
            }
            assert!(reservation.is_held());
            reservation.cancel().await.unwrap();
            assert_eq!(remaining(limiter, &TOKENS, key).await, 1000);
            timed.advance(50 * SECOND);
        }
    }
}

/// Callers who gave up, some of them before the server had read what they asked: it grants them places when it goes on, late.
#[tokio::test]
async fn what_a_server_grants_to_callers_who_have_gone_is_left_again() {
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

/// What is left may overtake what was asked, on another connection.
#[tokio::test]
async fn who_is_cancelled_holds_nothing_on_any_of_several_connections() {
    let server = RedisServer::start();
    let builder = Limiter::builder(&server.url()).connections(4).on_store_error(OnStoreError::Deny);
    let (limiter, key) = (builder.deadline(PATIENCE).build().await.unwrap(), fresh_key());
    let places = Rule::new("connections", 1000, 60 * SECOND).with_algorithm(Algorithm::Concurrent);
    drop(limiter.acquire(&places, key).await.unwrap());
    sleep(300 * MS).await; // all of them are open
    for _ in 0..300 {
        let mut asking = Box::pin(limiter.acquire(&places, key));
        assert!(asks(&mut asking).await);
        tokio::task::yield_now().await;
        drop(asking);
        if fastrand::bool() {
            sleep(MS).await;
        }
    }
    eventually("nothing is held", || async { remaining(&limiter, &places, key).await == 1000 }).await;
}

#[tokio::test]
async fn a_call_that_ends_while_its_connection_is_cut_is_charged_what_it_used() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let builder = Limiter::builder(&proxy.url()).deadline(100 * MS).on_store_error(OnStoreError::Deny);
    let (limiter, other, id) = (builder.build().await.unwrap(), limiter_on(&server).await, fresh_key());
    for end in [0, 1] {
        let permit = run(&limiter, TIME, id, None).await.unwrap();
        sleep(20 * MS).await;
        match end {
            0 => proxy.cut(),
            // The server does it, and nobody hears of it.
            _ => proxy.set(Mode::DropReplies),
        }
        drop(permit);
        sleep(300 * MS).await;
        proxy.set(Mode::Pass);
        eventually("it is charged what it used, once", || async {
            (15_000..20_000).contains(&remaining(&other, &TIME, id).await)
        })
        .await;
        eventually("calls go on", || async { run(&limiter, TIME, id, Some(1)).await.is_ok() }).await;
    }
}

/// The retry travels on the other connection, and arrives first: it ends the hold, and the first one finds none.
#[tokio::test]
async fn a_settlement_that_its_retry_overtakes_is_charged_once() {
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

/// A charge that is held, for the store itself: a limiter would need a task for each.
fn held_charge(rule: Rule, key: u64, cost: u64, lease: Duration) -> Request {
    let mut charge = StoreCharge::new(rule, counter_of(&rule, key), cost);
    charge.hold = Some(Hold::new(lease));
    Request::new(charge, true)
}

/// Decides one after another, and returns what was asked with what came of it.
async fn decide_all(timed: &Timed, requests: impl Iterator<Item = Request>) -> Vec<Request> {
    let mut decided = Vec::new();
    for request in requests {
        let batch = store_of(&timed.limiter).decide(request.into()).answer().await;
        decided.extend(batch.iter().cloned());
    }
    decided
}

/// Beyond that a further one is refused, by what the error says; what is not held fits as before.
#[tokio::test]
async fn a_log_has_room_for_ten_thousand_holds() {
    let rule = Rule::new("room", 1_000_000, 60 * SECOND).with_algorithm(LOG);
    for timed in Timed::both().await {
        let (limiter, key) = (&timed.limiter, fresh_key());
        let held = decide_all(&timed, (0..10_000).map(|at| held_charge(rule, key, 1, LEASE + at * MS))).await;
        assert!(held.iter().all(|request| request.outcome == Ok(true)), "{}", timed.name());
        timed.advance(SECOND);
        let refused = limiter.reserve(&rule, key, 5).await.unwrap_err();
        assert_eq!((refused.cause(), refused.remaining()), (Cause::Exceeded, 990_000), "{}", timed.name());
        assert_eq!(refused.retry_after(), Some(LEASE + 59 * SECOND));
        assert_eq!(
            refused.to_string(),
            "`room` has 10000 holds at once, the maximum of a SlidingLog; retry in 89.000s"
        );
        exceeded(run(limiter, rule, key, Some(5)).await);
        // A look, a charge and a reservation of nothing are no holds.
        assert_eq!(remaining(limiter, &rule, key).await, 990_000);
        limiter.acquire_n(&rule, key, 10).await.unwrap();
        assert_eq!(limiter.reserve(&rule, key, 0).await.unwrap().held(), 0);
        let one = held[5000].charges[0].clone();
        store_of(limiter).settle(one, 3).answer().await.unwrap();
        assert_eq!(remaining(limiter, &rule, key).await, 1_000_000 - 9_999 - 13, "{}", timed.name());
        limiter.reserve(&rule, key, 5).await.unwrap().cancel().await.unwrap();
        // The dead make room as well: all but the last 100.
        timed.advance(LEASE + 59 * SECOND + 9_899 * MS);
        assert_eq!(remaining(limiter, &rule, key).await, 1_000_000 - 100, "{}", timed.name());
        limiter.reserve(&rule, key, 5).await.unwrap().cancel().await.unwrap();
    }
}

/// How many commands the server has run, those of scripts among them.
fn commands(server: &RedisServer) -> u64 {
    let info: String = redis::from_redis_value(server.command(&[b"INFO", b"commandstats"])).unwrap();
    let calls = info.lines().filter_map(|line| line.split_once(":calls=")?.1.split(',').next()?.parse::<u64>().ok());
    calls.sum()
}

/// The most commands that one of these calls took, and the elements of a sorted set that it read.
async fn most_commands(timed: &Timed, requests: Vec<Request>) -> u64 {
    let mut most = 0;
    for request in requests {
        let server = timed.server().unwrap();
        server.command(&[b"CONFIG", b"RESETSTAT"]);
        decide_all(timed, [request].into_iter()).await;
        most = most.max(commands(server));
    }
    most
}

fn look(request: &Request) -> Request {
    let mut look = request.clone();
    look.consume = false;
    look
}

#[tokio::test]
async fn what_a_call_does_on_a_server_does_not_grow_with_the_number_of_places() {
    const MANY: Rule = Rule::new("many", 5_000, LEASE).with_algorithm(Algorithm::Concurrent);
    let (timed, key) = (Timed::redis().await, fresh_key());
    let places = |cost| held_charge(MANY, key, cost, LEASE);
    // One of them outlives the others.
    decide_all(&timed, [held_charge(MANY, key, 1, 10 * LEASE)].into_iter()).await;
    decide_all(&timed, (1..5_000).map(|_| places(1))).await;
    timed.advance(SECOND);
    let most = most_commands(&timed, vec![places(1), places(5_000), look(&places(5_000)), look(&places(1))]).await;
    assert!(most <= 12, "{most} commands of one call");
    // All others are dead; those who come remove a few of them each.
    timed.advance(LEASE);
    let most = most_commands(&timed, vec![look(&places(5_000)), places(4_000), places(1_000), places(1)]).await;
    assert!(most <= 30, "{most} commands of one call");
    let name = counter_of(&MANY, key).to_string();
    let stored: u64 = redis::from_redis_value(timed.server().unwrap().command(&[b"ZCARD", name.as_bytes()])).unwrap();
    assert!((4_700..5_000).contains(&stored), "{stored} are stored");
    decide_all(&timed, (0..100).map(|_| places(1))).await;
    let stored: u64 = redis::from_redis_value(timed.server().unwrap().command(&[b"ZCARD", name.as_bytes()])).unwrap();
    assert!(stored < 200, "{stored} are stored");
}

/// Each of which has ended, and counts for a period from then on; entries that were charged lie between.
#[tokio::test]
async fn what_a_call_does_on_a_server_does_not_grow_with_the_number_of_holds() {
    let rule = Rule::new("overdue", 10_000, 60 * SECOND).with_algorithm(LOG);
    let (timed, key) = (Timed::redis().await, fresh_key());
    for at in 0..2_000_u32 {
        decide_all(&timed, [held_charge(rule, key, 2, (2_100 - at) * 10 * MS)].into_iter()).await;
        timed.limiter.acquire_n(&rule, key, 3).await.unwrap();
        timed.advance(10 * MS);
    }
    timed.advance(25 * SECOND);
    let hold = |cost| held_charge(rule, key, cost, LEASE);
    let calls = vec![hold(1), hold(5_000), hold(10_000), look(&hold(7_777)), look(&hold(1))];
    let most = most_commands(&timed, calls).await;
    assert!(most <= 300, "{most} commands of one call");
}

/// Its lease is an hour, that of the charge beside it a second.
#[tokio::test]
async fn a_place_beside_a_short_charge_is_left_after_an_outage() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let builder = Limiter::builder(&proxy.url()).deadline(100 * MS).on_store_error(OnStoreError::Deny);
    let (limiter, other, id) = (builder.build().await.unwrap(), limiter_on(&server).await, fresh_key());
    let places = Rule::new("long", 1, 3600 * SECOND).with_algorithm(Algorithm::Concurrent);
    let charges = [charge(concurrent("long", 1, 3_600_000), key(&id), 1), charge_elapsed(TIME, key(&id), Some(1000))];
    let charges = charges.map(AnnotatedCharge::asked);
    let permit = permit_requests_per_time(Some(&limiter), Call::new(), charges).await.unwrap();
    proxy.set(Mode::Stall);
    drop(permit);
    sleep(3 * SECOND).await;
    proxy.set(Mode::Pass);
    eventually("it is free", || async { remaining(&other, &places, id).await == 1 }).await;
}

/// A moment without an answer, in which this process counts alone: what it granted then is not held for ever beside what the server grants.
#[tokio::test]
async fn a_place_of_an_outage_is_not_held_any_more_when_it_is_over() {
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

/// A body that is only observed is not told to hurry.
#[tokio::test]
async fn a_budget_that_is_only_tried_out_limits_nobodys_time() {
    let timed = Timed::memory().await;
    let (limiter, id) = (&timed.limiter, fresh_key());
    for _ in 0..3 {
        let permit = run(limiter, TIME.with_shadow(true), id, None).await.unwrap();
        assert_eq!(permit.remaining_time(), Duration::MAX);
        timed.advance(19_999 * MS);
    }
    assert_eq!(remaining(limiter, &TIME, id).await, 0);
}

/// Settlements that begin after it came are not waited for, nor a server that is away.
#[tokio::test]
async fn who_asks_waits_for_settlements_that_were_under_way_and_for_no_others() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let builder = Limiter::builder(&proxy.url()).deadline(PATIENCE).on_store_error(OnStoreError::Allow);
    let (limiter, key) = (builder.build().await.unwrap(), fresh_key());
    let places = Rule::new("busy", 1000, 60 * SECOND).with_algorithm(Algorithm::Concurrent);
    let mut held = Vec::new();
    for _ in 0..300 {
        held.push(limiter.acquire(&places, key).await.unwrap());
    }
    proxy.set(Mode::Delay(20 * MS));
    // One ends every 5 ms, and each is settled within 40: some always are.
    let ending = tokio::spawn(async move {
        while let Some(permit) = held.pop() {
            drop(permit);
            sleep(5 * MS).await;
        }
    });
    sleep(50 * MS).await;
    limiter.acquire(&places, key).await.unwrap();
    assert!(!ending.is_finished(), "it did not wait for the last of them");
    ending.abort();
}

#[tokio::test]
async fn places_are_not_reserved() {
    let refused = Limiter::in_memory().reserve(&PLACES, 1, 1).await.unwrap_err();
    assert_eq!(refused.cause(), Cause::Misconfigured);
}
