//! Reservations of a cost that is settled later, and refunds beside them.

use ratelimit_runtime::__private::{Call, charge_settled, key as key_of, permit_of_several};
use ratelimit_runtime::conformance::store_of;
use ratelimit_runtime::{Cause, Rule};

use crate::support::holds::{LEASE, PLACES, TIME, TOKENS, acquire_time, decide_all, held_charge, remaining};
use crate::support::{LOG, MS, SECOND, Timed, ends, exceeded, fresh_key, settle};

#[tokio::test]
async fn a_reservation_counts_in_full_until_it_is_settled() {
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
async fn a_dropped_reservation_is_charged_what_was_recorded_or_else_in_full() {
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
async fn no_more_than_the_limit_can_be_reserved() {
    for timed in Timed::both().await {
        let never = timed.limiter.reserve(&TOKENS, 1, 1001).await.unwrap_err();
        assert_eq!(never.cause(), Cause::NeverFits);
        assert_eq!(timed.limiter.reserve(&TOKENS, 1, 0).await.unwrap().held(), 0);
    }
}

/// The limiter is closed just when there is room. The refusal looks at the counter, and holds nothing.
#[tokio::test]
async fn a_call_that_waits_in_vain_is_not_settled() {
    let (timed, key) = (Timed::memory().await, fresh_key());
    timed.limiter.acquire_n(&TOKENS, key, 1000).await.unwrap();
    let charges = (charge_settled(TOKENS, key_of(&key), 600), ());
    let call = tokio::spawn(permit_of_several(Some(&timed.limiter), Call::DEFAULT.wait(), charges));
    settle().await;
    timed.advance(61 * SECOND);
    timed.limiter.close().await;
    exceeded(ends(call).await.unwrap());
    assert_eq!(remaining(&timed.limiter, &TOKENS, key).await, 1000);
}

/// In memory a hold lasts without renewals.
#[tokio::test]
async fn a_hold_of_many_leases_is_refunded_in_full() {
    for timed in Timed::both().await {
        let (limiter, key) = (&timed.limiter, fresh_key());
        let place = limiter.acquire_n(&PLACES, key, 2).await.unwrap();
        let log = acquire_time(limiter, TIME, key, Some(5000)).await.unwrap();
        if timed.server().is_none() {
            timed.advance(10 * LEASE);
        }
        assert_eq!((place.refund().await, log.refund().await), (Ok(2), Ok(5000)), "{}", timed.name());
    }
}

#[tokio::test]
async fn a_charge_is_refunded_beside_a_reservation_of_its_counter() {
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

/// One hold more is refused, and the error says why. Calls that hold nothing are not affected.
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
            "`room` has 10000 holds at once, the maximum of a SlidingLog; retry in 1 min 29 s"
        );
        exceeded(acquire_time(limiter, rule, key, Some(5)).await);
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

/// Settlements that retries made are remembered, and stop only the first attempts of those holds.
#[tokio::test]
async fn a_settlement_is_charged_while_those_of_other_holds_are_remembered() {
    for timed in Timed::both().await {
        let (key, store) = (fresh_key(), store_of(&timed.limiter));
        let held = || held_charge(TOKENS, key, 100, LEASE);
        let decided = decide_all(&timed, [(); 3].map(|()| held()).into_iter()).await;
        let first_attempts = || decided.iter().map(|request| request.charges[0].clone());
        for mut retried in first_attempts() {
            retried.hold.as_mut().unwrap().is_retry = true;
            store.settle(retried, 10).answer().await.unwrap();
        }
        assert_eq!(remaining(&timed.limiter, &TOKENS, key).await, 970);
        let lost = held().charges[0].clone();
        store.settle(lost, 30).answer().await.unwrap();
        assert_eq!(remaining(&timed.limiter, &TOKENS, key).await, 940, "{}", timed.name());
        for late in first_attempts() {
            store.settle(late, 10).answer().await.unwrap();
            assert_eq!(remaining(&timed.limiter, &TOKENS, key).await, 940, "{}", timed.name());
        }
    }
}
