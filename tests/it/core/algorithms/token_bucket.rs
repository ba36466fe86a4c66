//! Token buckets: the rate, fractions of a token, and changed numbers.

use std::time::Duration;

use ratelimit_runtime::{Cause, Refill, Rule};

use super::{DAY, MINUTE, MS, SECOND, bucket, ms, peek};
use crate::support::servers::dump;
use crate::support::{Timed, admitted, exceeded, fresh_key};

/// Tokens come back faster than two calls can ask for them.
#[tokio::test]
async fn a_burst_below_half_the_rate_still_limits() {
    for timed in Timed::both().await {
        for (count, period) in
            [(10, SECOND), (1000, SECOND), (10_000, SECOND), (10_000_000, SECOND), (100, DAY), (7, 10 * MS)]
        {
            for burst in [1, 2, 3] {
                for refill in [Refill::Greedy, Refill::Interval] {
                    let (rule, key) =
                        (Rule::new("small", count, period).with_algorithm(bucket(burst, refill)), fresh_key());
                    let never = timed.limiter.acquire_n(&rule, key, burst + 1).await.unwrap_err();
                    assert_eq!((never.cause(), never.limit()), (Cause::NeverFits, burst), "{}", timed.of(&rule));
                    for _ in 0..3 {
                        assert_eq!(admitted(&timed.limiter, &rule, key, 5).await, burst, "{}", timed.of(&rule));
                        if let Some(server) = timed.server() {
                            let stored = dump(server);
                            let (_, (end, _)) = stored.last_key_value().expect("it is stored");
                            let now = i64::try_from(server.clock().now_micros() / 1000).unwrap();
                            assert!((now + 1..=now + i64::try_from(period.as_millis()).unwrap()).contains(end));
                        }
                        let wait = exceeded(timed.limiter.acquire(&rule, key).await).retry_after().unwrap();
                        let one = if refill == Refill::Interval { ms(period) } else { ms(period).div_ceil(count) };
                        assert_eq!(ms(wait), one, "{}", timed.of(&rule));
                        timed.advance(peek(&timed, &rule, key).await.reset_after());
                    }
                    timed.limiter.reset(&rule, key).await.unwrap();
                }
            }
        }
    }
}

/// From one a day to ten million a second: over many periods, exactly the refilled tokens are
/// admitted.
#[tokio::test]
async fn a_token_bucket_keeps_its_rate() {
    let rates = [
        (1, DAY),
        (7, DAY),
        (1000, MINUTE),
        (61, SECOND),
        (1500, SECOND),
        (999_983, SECOND),
        (10_000_000, SECOND),
        (1, MS),
        (3, 7 * MS),
    ];
    for timed in Timed::both().await {
        for (count, period) in rates {
            let (rule, key) =
                (Rule::new("rate", count, period).with_algorithm(bucket(2 * count, Refill::Greedy)), fresh_key());
            // Each token is taken within a period of its coming, and none is lost.
            timed.limiter.acquire_n(&rule, key, 2 * count).await.unwrap();
            let (mut admitted, mut passed) = (0, 0);
            for step in 0..100_u64 {
                let pause = 1 + (step * 7919 % 97) * ms(period) / 97;
                timed.advance(Duration::from_millis(pause));
                passed += pause;
                let remaining = peek(&timed, &rule, key).await.remaining();
                timed.limiter.acquire_n(&rule, key, remaining).await.unwrap();
                exceeded(timed.limiter.acquire(&rule, key).await);
                admitted += remaining;
                assert_eq!(admitted, passed * count / ms(period), "{passed} ms, {}", timed.of(&rule));
            }
            assert!(passed >= 40 * ms(period));
        }
    }
}

/// Tokens come at 1.5 a millisecond, or one in 16.4 ms. Fractions of a token and of a millisecond
/// are kept between calls while the bucket is not full.
#[tokio::test]
async fn fractions_of_a_token_do_not_drift() {
    for timed in Timed::both().await {
        for (count, burst) in [(1500, 3), (61, 2), (1001, 3)] {
            let (rule, key) =
                (Rule::new("drift", count, SECOND).with_algorithm(bucket(burst, Refill::Greedy)), fresh_key());
            timed.limiter.acquire_n(&rule, key, burst).await.unwrap();
            let mut in_all = 0;
            for passed in 1..=2000 {
                timed.advance(MS);
                in_all += admitted(&timed.limiter, &rule, key, 3).await;
                assert_eq!(in_all, passed * count / 1000, "{passed} ms, {}", timed.of(&rule));
            }
        }
    }
}

/// The count comes back at once in each whole period after the first call.
#[tokio::test]
async fn a_bucket_refilled_at_intervals_keeps_its_rate() {
    for timed in Timed::both().await {
        for (count, burst) in [(1, 1), (5, 5), (5, 12), (5, 3), (10_000_000, 10_000_000)] {
            let rule = Rule::new("interval", count, MINUTE).with_algorithm(bucket(burst, Refill::Interval));
            let key = fresh_key();
            timed.advance(17 * MS);
            timed.limiter.acquire_n(&rule, key, burst).await.unwrap();
            for _ in 0..20 {
                timed.advance(MINUTE - MS);
                let refused = exceeded(timed.limiter.acquire(&rule, key).await);
                assert_eq!((refused.remaining(), refused.retry_after()), (0, Some(MS)), "{}", timed.of(&rule));
                timed.advance(MS);
                let back = count.min(burst);
                assert_eq!(peek(&timed, &rule, key).await.remaining(), back, "{}", timed.of(&rule));
                timed.limiter.acquire_n(&rule, key, back).await.unwrap();
            }
        }
    }
}

/// The deficit of the bucket stays. The new burst applies to the next call.
#[tokio::test]
async fn a_changed_burst_acts_on_the_next_call() {
    for timed in Timed::both().await {
        for refill in [Refill::Greedy, Refill::Interval] {
            let rule = |burst| Rule::new("burst", 2, MINUTE).with_algorithm(bucket(burst, refill));
            let key = fresh_key();
            assert_eq!(admitted(&timed.limiter, &rule(3), key, 9).await, 3);
            assert_eq!(admitted(&timed.limiter, &rule(10), key, 20).await, 7, "{}", timed.of(&rule(10)));
            let lowered = peek(&timed, &rule(4), key).await;
            assert_eq!((lowered.limit(), lowered.remaining()), (4, 0), "{}", timed.of(&rule(4)));
            // Ten are missing, and come back two a minute: after four of them there is one of three.
            assert_eq!(exceeded(timed.limiter.acquire(&rule(3), key).await).retry_after(), Some(4 * MINUTE));
            timed.advance(4 * MINUTE);
            assert_eq!(admitted(&timed.limiter, &rule(3), key, 9).await, 1, "{}", timed.of(&rule(3)));
        }
    }
}

/// From now on tokens come at the new rate.
#[tokio::test]
async fn a_changed_count_changes_the_rate_of_a_token_bucket() {
    for timed in Timed::both().await {
        for refill in [Refill::Greedy, Refill::Interval] {
            let rule = |count| Rule::new("rate", count, MINUTE).with_algorithm(bucket(60, refill));
            let key = fresh_key();
            timed.limiter.acquire_n(&rule(1), key, 60).await.unwrap();
            timed.advance(MINUTE);
            assert_eq!(peek(&timed, &rule(1), key).await.remaining(), 1, "{}", timed.of(&rule(1)));
            assert_eq!(peek(&timed, &rule(20), key).await.remaining(), 20, "{}", timed.of(&rule(20)));
            timed.limiter.acquire_n(&rule(20), key, 20).await.unwrap();
            timed.advance(2 * MINUTE);
            assert_eq!(peek(&timed, &rule(20), key).await.remaining(), 40, "{}", timed.of(&rule(20)));
            timed.advance(MINUTE);
            assert_eq!(peek(&timed, &rule(20), key).await.reset_after(), Duration::ZERO, "{}", timed.of(&rule(20)));
        }
    }
}

/// Its rule would need 250 million weeks for what the other rule has charged. So late a time is no exact
/// number in a script.
#[tokio::test]
async fn a_refund_of_a_slow_rule_does_not_put_off_the_time_when_a_bucket_is_full() {
    let week = 7 * DAY;
    for refill in [Refill::Interval, Refill::Greedy] {
        for timed in Timed::both().await {
            let slow = Rule::new("item", 1, week).with_algorithm(bucket(1, refill));
            let most = if refill == Refill::Interval { 500_000_000 } else { 7_000_000 };
            let fast = Rule::new("item", most, week).with_algorithm(bucket(most, refill));
            let (limiter, key) = (&timed.limiter, fresh_key());
            let permit = limiter.acquire(&slow, key).await.unwrap();
            limiter.acquire_n(&fast, key, most / 2).await.unwrap();
            let before = peek(&timed, &fast, key).await;
            assert_eq!(permit.refund().await.unwrap(), 1, "{}", timed.of(&slow));
            let after = peek(&timed, &fast, key).await;
            assert_eq!(after.remaining(), before.remaining() + 1, "{}", timed.of(&slow));
            assert!(after.reset_after() <= before.reset_after(), "{}", timed.of(&slow));
            assert!(peek(&timed, &slow, key).await.reset_after() <= week, "{}", timed.of(&slow));
        }
    }
}
