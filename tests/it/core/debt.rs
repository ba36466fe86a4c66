//! `Limiter::charge` charges into debt, and `Limiter::acquire_up_to` grants the part that fits.

use ratelimit_runtime::{Algorithm, Cause, Refill, Rule};
use tokio::task::JoinSet;

use crate::support::{ALGORITHMS, By, FIXED, LOG, MS, SECOND, Timed, exceeded, fresh_key, hourly};

const MINUTE: std::time::Duration = SECOND.saturating_mul(60);
const FULL_HOUR: std::time::Duration = SECOND.saturating_mul(3600);

/// Begins a period of an hour, for aligned windows.
fn align(timed: &Timed) {
    let since = timed.now().as_millis() % FULL_HOUR.as_millis();
    timed.advance(FULL_HOUR - MS * u32::try_from(since).unwrap());
}

#[tokio::test]
async fn a_debt_is_refused_until_its_retry_after_and_not_longer() {
    for algorithm in ALGORITHMS {
        let mut waits = Vec::new();
        for timed in Timed::both().await {
            align(&timed);
            let (rule, key) = (Rule::new("debt", 10, MINUTE).by(algorithm), fresh_key());
            timed.limiter.acquire_n(&rule, key, 4).await.unwrap();
            timed.advance(SECOND);
            timed.limiter.charge(&rule, key, 25).await.unwrap();
            let now = timed.limiter.peek(&rule, key).await.unwrap();
            assert_eq!(now.remaining(), 0, "{}", timed.of(&rule));
            let wait = exceeded(timed.limiter.acquire(&rule, key).await).retry_after().unwrap();
            assert_eq!(now.retry_after(), Some(wait), "{}", timed.of(&rule));
            timed.advance(wait - MS);
            exceeded(timed.limiter.acquire(&rule, key).await);
            timed.advance(MS);
            timed.limiter.acquire(&rule, key).await.unwrap();
            waits.push(wait);
        }
        assert_eq!(waits[0], waits[1], "{algorithm:?}");
    }
}

/// 10 a minute and a debt of 19: 20 tokens have to come back, one each 6 seconds.
#[tokio::test]
async fn the_debt_of_a_bucket_refills() {
    for timed in Timed::both().await {
        let rule =
            Rule::new("debt", 10, MINUTE).with_algorithm(Algorithm::TokenBucket { burst: 3, refill: Refill::Greedy });
        let key = fresh_key();
        timed.limiter.charge(&rule, key, 22).await.unwrap();
        assert_eq!(timed.limiter.peek(&rule, key).await.unwrap().retry_after(), Some(120 * SECOND));
    }
}

#[tokio::test]
async fn a_charge_that_fits_is_an_ordinary_charge() {
    for timed in Timed::both().await {
        for algorithm in ALGORITHMS {
            let (rule, key) = (hourly(10, algorithm), fresh_key());
            timed.limiter.charge(&rule, key, 3).await.unwrap();
            timed.limiter.charge(&rule, key, 0).await.unwrap();
            assert_eq!(timed.limiter.peek(&rule, key).await.unwrap().remaining(), 7, "{}", timed.of(&rule));
        }
    }
}

#[tokio::test]
async fn places_and_slots_have_no_debt_and_a_counter_has_a_largest_number() {
    for timed in Timed::both().await {
        for algorithm in [Algorithm::Concurrent, Algorithm::LeakyBucket { queue: 3 }] {
            let rule = Rule::new("debt", 10, MINUTE).with_algorithm(algorithm);
            let refused = timed.limiter.charge(&rule, fresh_key(), 1).await.unwrap_err();
            assert_eq!(refused.cause(), Cause::Misconfigured, "{refused}");
        }
        for algorithm in ALGORITHMS {
            let (rule, key) = (hourly(10, algorithm), fresh_key());
            let refused = timed.limiter.charge(&rule, key, u64::MAX).await.unwrap_err();
            assert_eq!(refused.cause(), Cause::NeverFits, "{}", timed.of(&rule));
            let largest = refused.limit();
            timed.limiter.charge(&rule, key, largest).await.unwrap();
            exceeded(timed.limiter.charge(&rule, key, 1).await);
            exceeded(timed.limiter.acquire(&rule, key).await);
        }
    }
}

#[tokio::test]
async fn a_partial_grant_is_what_remains_and_is_charged_as_that() {
    for timed in Timed::both().await {
        for algorithm in ALGORITHMS {
            let (rule, key) = (hourly(10, algorithm), fresh_key());
            assert_eq!(timed.limiter.acquire_up_to(&rule, key, 0).await.unwrap().0, 0);
            assert_eq!(timed.limiter.acquire_up_to(&rule, key, 4).await.unwrap().0, 4);
            let (granted, permit) = timed.limiter.acquire_up_to(&rule, key, u64::MAX).await.unwrap();
            assert_eq!((granted, permit.remaining()), (6, 0), "{}", timed.of(&rule));
            let wait = exceeded(timed.limiter.acquire_up_to(&rule, key, 5).await).retry_after();
            assert_eq!(wait, timed.limiter.peek(&rule, key).await.unwrap().retry_after(), "{}", timed.of(&rule));
            assert_eq!(permit.refund().await.unwrap(), 6, "{}", timed.of(&rule));
        }
    }
}

#[tokio::test]
async fn partial_grants_at_once_take_all_and_no_more() {
    for timed in Timed::both().await {
        for algorithm in [FIXED, LOG] {
            let (rule, key) = (hourly(1000, algorithm), fresh_key());
            let mut tasks = JoinSet::new();
            for most in 1..=60 {
                let limiter = timed.limiter.clone();
                tasks.spawn(async move {
                    let Ok((cost, permit)) = limiter.acquire_up_to(&rule, key, most).await else { return 0 };
                    // Others may have taken some in between, but nothing is left that would have fit.
                    assert!(cost == most || permit.remaining() == 0, "{cost} of {most}, {}", permit.remaining());
                    cost
                });
            }
            assert_eq!(tasks.join_all().await.into_iter().sum::<u64>(), 1000, "{}", timed.of(&rule));
        }
    }
}
