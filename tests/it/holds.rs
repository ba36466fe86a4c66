//! What is held while a call runs: places, reservations, and charges by the time a call takes.

use std::time::Duration;

use ratelimit_runtime::__private::{Call, charge, charge_elapsed, concurrent, hold_requests, key};
use ratelimit_runtime::{Algorithm, Cause, Limiter, Permit, RequestPerMinute, Rule};

use crate::support::{LOG, PATIENCE, Timed, ends, exceeded, fresh_key};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(30);
const PLACES: Rule = Rule::new("place", 2, LEASE).algorithm(Algorithm::Concurrent);
const TOKENS: Rule = Rule::new("tokens", 1000, SECOND.saturating_mul(60)).algorithm(LOG);

/// As many milliseconds a minute.
const TIME: Rule = Rule::new("time", 20_000, SECOND.saturating_mul(60)).algorithm(LOG);

async fn run(limiter: &Limiter, rule: Rule, id: u64, max: Option<u64>) -> Result<Permit, RequestPerMinute> {
    hold_requests(Some(limiter), Call::new(), [charge_elapsed(rule, key(&id), max)]).await
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
        assert!(one.is_held() && two.is_held());
        assert_eq!(remaining(limiter, &PLACES, fresh_key()).await, 2);
        for _ in 0..10 {
            // What was dropped is free for the next one, though a server is told in the background.
            drop(limiter.acquire(&PLACES, key).await.map_or_else(|_| None, Some));
        }
        drop(one);
        let three = limiter.acquire(&PLACES, key).await.unwrap();
        assert_eq!(two.give_back().await, Ok(1));
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
        let mut tasks = tokio::task::JoinSet::new();
        for at in 0..20 {
            let (limiter, tell) = (limiter.clone(), tell.clone());
            tasks.spawn(async move {
                let permit = limiter.acquire_within(&places, key, PATIENCE).await.unwrap();
                tell.send(at).unwrap();
                drop(permit);
            });
            crate::support::settle().await;
        }
        drop((first, second));
        for at in 0..20 {
            assert_eq!(ends(told.recv()).await, Some(at), "{}", timed.name());
        }
        ends(tasks.join_all()).await;
        assert_eq!(remaining(&limiter, &places, key).await, 2);
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
        assert_eq!(remaining(limiter, &TIME, key).await, 20_000 - 10 * 500, "{}", timed.name());
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
        crate::support::settle().await;
        assert!(!next.is_finished(), "its turn has not come");
        timed.advance(3 * SECOND);
        drop(first);
        let next = ends(next).await.unwrap().unwrap();
        assert_eq!(next.remaining_time(), 17 * SECOND, "{}", timed.name());
        timed.advance(17 * SECOND);
        drop(next);
        let refused = exceeded(ends(run(&limiter, TIME, key, None)).await);
        assert_eq!(refused.retry_after(), Some(43 * SECOND));
    }
}

#[tokio::test]
async fn nothing_is_charged_where_no_place_is_free_and_no_place_taken_where_nothing_is_left() {
    for timed in Timed::both().await {
        let (limiter, id) = (&timed.limiter, fresh_key());
        let rate = Rule::new("rate", 3, 60 * SECOND);
        let both = || {
            let charges = [charge(concurrent("joined", 1, 30_000), key(&id), 1), charge(rate, key(&id), 1)];
            hold_requests(Some(limiter), Call::new(), charges)
        };
        let place = Rule::new("joined", 1, LEASE).algorithm(Algorithm::Concurrent);
        let permit = both().await.unwrap();
        assert_eq!(exceeded(both().await).rule(), "joined");
        assert_eq!(remaining(limiter, &rate, id).await, 2);
        drop(permit);
        drop(both().await.unwrap());
        // Given back, both of it.
        assert_eq!(both().await.unwrap().give_back().await, Ok(2), "{}", timed.name());
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
