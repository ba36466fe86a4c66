//! Calls that are charged the time they take.

use std::time::Duration;

use ratelimit_runtime::{Cause, Rule};
use tokio::time::sleep;

use crate::support::holds::{PLACES, TIME, acquire_time, remaining};
use crate::support::{LOG, MS, SECOND, Timed, ends, eventually, exceeded, fresh_key, settle};

#[tokio::test]
async fn a_call_is_charged_the_time_it_took() {
    for timed in Timed::both().await {
        let (limiter, key) = (&timed.limiter, fresh_key());
        let permit = acquire_time(limiter, TIME, key, Some(5000)).await.unwrap();
        assert_eq!(permit.remaining_time(), 5 * SECOND);
        assert_eq!(remaining(limiter, &TIME, key).await, 15_000, "{}", timed.name());
        timed.advance(1234 * MS);
        assert_eq!(permit.remaining_time(), 3766 * MS);
        drop(permit);
        // All that remains, which is less than the largest.
        for left in [18_766, 13_766, 8_766, 3_766] {
            let permit = acquire_time(limiter, TIME, key, Some(5000)).await.unwrap();
            assert_eq!(permit.remaining_time(), left.min(5000) * MS);
            timed.advance(5 * SECOND);
        }
        let refused = exceeded(acquire_time(limiter, TIME, key, Some(5000)).await);
        // The last call took 1,234 ms more than it had. Without the first charge, which is as long,
        // still nothing is left.
        assert_eq!(refused.retry_after(), Some(45 * SECOND), "{}", timed.name());
        timed.advance(45 * SECOND - MS);
        exceeded(acquire_time(limiter, TIME, key, Some(5000)).await);
        timed.advance(MS);
        let permit = acquire_time(limiter, TIME, key, None).await.unwrap();
        assert_eq!(permit.remaining_time(), 5 * SECOND);
    }
}

/// Equal durations in the same millisecond all count.
#[tokio::test]
async fn equal_durations_in_one_millisecond_are_all_charged() {
    for timed in Timed::both().await {
        let (limiter, key) = (&timed.limiter, fresh_key());
        let mut permits = Vec::new();
        for _ in 0..10 {
            permits.push(acquire_time(limiter, TIME, key, Some(1000)).await.unwrap());
        }
        timed.advance(500 * MS);
        drop(permits);
        drop(acquire_time(limiter, TIME, key, Some(1)).await.unwrap());
        // On a busy machine the last of them is settled after the call beside it.
        let left = 20_000 - 10 * 500;
        eventually(&format!("{left} remain ({})", timed.name()), || async {
            remaining(limiter, &TIME, key).await == left
        })
        .await;
    }
}

#[tokio::test]
async fn calls_that_hold_all_remaining_time_run_one_after_another() {
    for timed in Timed::both().await {
        let (limiter, key) = (timed.limiter.clone(), fresh_key());
        let first = acquire_time(&limiter, TIME, key, None).await.unwrap();
        assert_eq!(first.remaining_time(), 20 * SECOND);
        let next = tokio::spawn({
            let limiter = limiter.clone();
            async move { acquire_time(&limiter, TIME, key, None).await }
        });
        settle().await;
        assert!(!next.is_finished(), "its turn has not come");
        timed.advance(3 * SECOND);
        drop(first);
        let next = ends(next).await.unwrap().unwrap();
        assert_eq!(next.remaining_time(), 17 * SECOND, "{}", timed.name());
        timed.advance(17 * SECOND);
        drop(next);
        let refused = exceeded(ends(acquire_time(&limiter, TIME, key, None)).await);
        assert_eq!(refused.retry_after(), Some(43 * SECOND));
        assert_eq!(refused.to_string(), "`time` is limited to 20 s of time per minute; retry in 43 s");
    }
}

/// They wait for each other, and not for time that has been used up.
#[tokio::test]
async fn calls_that_hold_all_remaining_time_are_refused_one_after_another() {
    for timed in Timed::both().await {
        let (limiter, key) = (timed.limiter.clone(), fresh_key());
        let first = acquire_time(&limiter, TIME, key, None).await.unwrap();
        let mut waiting = Vec::new();
        for _ in 0..3 {
            let limiter = limiter.clone();
            waiting.push(tokio::spawn(async move { acquire_time(&limiter, TIME, key, None).await }));
            settle().await;
        }
        assert!(waiting.iter().all(|call| !call.is_finished()), "{}", timed.name());
        timed.advance(20 * SECOND);
        drop(first);
        for call in waiting {
            assert_eq!(exceeded(ends(call).await.unwrap()).retry_after(), Some(60 * SECOND), "{}", timed.name());
        }
    }
}

/// No other call of its kind runs beside it, even when older charges leave the window meanwhile.
#[tokio::test]
async fn a_call_that_holds_all_remaining_time_is_never_joined_by_another() {
    for timed in Timed::both().await {
        let (limiter, key) = (timed.limiter.clone(), fresh_key());
        let before = acquire_time(&limiter, TIME, key, None).await.unwrap();
        timed.advance(15 * SECOND);
        drop(before);
        while remaining(&limiter, &TIME, key).await != 5_000 {
            settle().await; // it is charged now, and not later
        }
        timed.advance(58 * SECOND);
        let first = acquire_time(&limiter, TIME, key, None).await.unwrap();
        assert_eq!(first.remaining_time(), 5 * SECOND);
        timed.advance(3 * SECOND);
        assert_eq!(remaining(&limiter, &TIME, key).await, 15_000, "{}", timed.name());
        let next = tokio::spawn({
            let limiter = limiter.clone();
            async move { acquire_time(&limiter, TIME, key, None).await }
        });
        settle().await;
        sleep(100 * MS).await;
        assert!(!next.is_finished(), "{}: its turn has not come", timed.name());
        // Calls with a maximum time run beside it.
        drop(acquire_time(&limiter, TIME, key, Some(1000)).await.unwrap());
        drop(first);
        assert_eq!(ends(next).await.unwrap().unwrap().remaining_time(), 17 * SECOND);
    }
}

#[tokio::test]
async fn a_count_of_zero_grants_no_time() {
    for timed in Timed::both().await {
        let none = Rule::new("none", 0, SECOND).with_algorithm(LOG);
        for max in [None, Some(0), Some(1)] {
            let refused = acquire_time(&timed.limiter, none, 1, max).await.unwrap_err();
            assert_eq!(refused.cause(), Cause::NeverFits, "{max:?}");
        }
        assert!(timed.limiter.acquire_n(&PLACES, 1, 0).await.unwrap().refund().await.is_ok());
    }
}

/// The body is not told to hurry.
#[tokio::test]
async fn a_time_budget_in_shadow_mode_limits_no_call() {
    let timed = Timed::memory().await;
    let (limiter, id) = (&timed.limiter, fresh_key());
    for _ in 0..3 {
        let permit = acquire_time(limiter, TIME.with_shadow(true), id, None).await.unwrap();
        assert_eq!(permit.remaining_time(), Duration::MAX);
        timed.advance(19_999 * MS);
    }
    assert_eq!(remaining(limiter, &TIME, id).await, 0);
}
