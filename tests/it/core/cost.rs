//! Weighted calls, and numbers at the edge of what can be stored.

use std::time::Duration;

use futures_util::future::join_all;
use ratelimit_harness::RedisServer;
use ratelimit_runtime::{Cause, Key, Limiter, RequestPerMinute, Rule, limit_request_per_time};

use crate::support::{
    ALGORITHMS, BUCKET, By, FIXED, INTERVAL, LOG, SLIDING, Timed, WINDOWS, admitted, ends, exceeded, fresh_key, hourly,
    limiter_on,
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

#[tokio::test]
async fn a_cost_of_a_million_is_one_charge() {
    for timed in Timed::both().await {
        for algorithm in ALGORITHMS {
            let rule = Rule::new("million", 1_000_000, 100 * SECOND).by(algorithm);
            let key = fresh_key();
            for _ in 0..3 {
                assert_eq!(timed.limiter.acquire_n(&rule, key, 1_000_000).await.unwrap().remaining(), 0);
                let all = exceeded(timed.limiter.acquire_n(&rule, key, 1_000_000).await).retry_after();
                let one = exceeded(timed.limiter.acquire(&rule, key).await).retry_after();
                assert!(one <= all, "{one:?} for one, {all:?} for a million, {}", timed.of(&rule));
                if WINDOWS.contains(&algorithm) || algorithm == INTERVAL {
                    assert_eq!(one, all, "all of it comes back at once: {}", timed.of(&rule));
                }
                timed.advance(all.unwrap());
            }
        }
    }
}

/// Charges equal grants, to the last unit.
#[tokio::test]
async fn charged_costs_add_up_to_the_last_unit() {
    for timed in Timed::both().await {
        for algorithm in ALGORITHMS {
            let (rule, key) = (hourly(100, algorithm), fresh_key());
            let mut left = 100;
            for cost in [7, 60, 1, 0, 40, 31, 33, 2, 1, 1] {
                match timed.limiter.acquire_n(&rule, key, cost).await {
                    Ok(permit) => {
                        left -= cost;
                        assert_eq!(permit.remaining(), left, "{}", timed.of(&rule));
                    }
                    refused => {
                        assert!(cost > left, "{} of {left}, {}", cost, timed.of(&rule));
                        assert_eq!(exceeded(refused).remaining(), left, "{}", timed.of(&rule));
                    }
                }
            }
            assert_eq!(left, 0);
        }
    }
}

/// `retry_after` of a log is when as much as the cost has expired, not when all has.
#[tokio::test]
async fn retry_after_of_a_log_is_when_the_cost_fits() {
    for timed in Timed::both().await {
        let (rule, key) = (Rule::new("partial", 10, 100 * SECOND).with_algorithm(LOG), fresh_key());
        for cost in [3, 1, 6] {
            timed.limiter.acquire_n(&rule, key, cost).await.unwrap();
            timed.advance(SECOND);
        }
        for (cost, wait) in [(1, 97), (3, 97), (4, 98), (5, 99), (10, 99)] {
            let refused = exceeded(timed.limiter.acquire_n(&rule, key, cost).await);
            assert_eq!(refused.retry_after(), Some(wait * SECOND), "cost {cost}, {}", timed.of(&rule));
        }
    }
}

#[tokio::test]
async fn a_cost_above_the_count_never_fits() {
    for timed in Timed::both().await {
        for algorithm in ALGORITHMS {
            let (rule, none, key) = (hourly(5, algorithm), hourly(0, algorithm), fresh_key());
            for (rule, cost) in [(&rule, 6), (&rule, u64::MAX), (&none, 1), (&none, u64::MAX)] {
                let refused = timed.limiter.acquire_n(rule, key, cost).await.unwrap_err();
                assert_eq!((refused.cause(), refused.retry_after()), (Cause::NeverFits, None), "{}", timed.of(rule));
                assert!(refused.to_string().contains("never fits"), "{refused}");
                let charges = [(rule, Key::new(key), cost)];
                assert_eq!(timed.limiter.acquire_all(&charges).await.unwrap_err().cause(), Cause::NeverFits);
            }
            // Two charges of one counter are one.
            for cost in [3, u64::MAX] {
                let charges = [(&rule, Key::new(key), cost), (&rule, Key::new(key), 3)];
                assert_eq!(timed.limiter.acquire_all(&charges).await.unwrap_err().cause(), Cause::NeverFits);
            }
            let waiting = ends(timed.limiter.acquire_within(&none, key, HOUR)).await.unwrap_err();
            assert_eq!(waiting.cause(), Cause::NeverFits);
            timed.limiter.acquire_n(&none, key, 0).await.unwrap();
            assert_eq!(timed.limiter.peek(&none, key).await.unwrap().remaining(), 0);
            assert_eq!(timed.limiter.peek(&rule, key).await.unwrap().remaining(), 5);
        }
    }
}

/// Also if other calls are in flight, whose next round trip it could share.
#[tokio::test]
async fn a_cost_above_the_count_never_fits_beside_other_calls() {
    let server = RedisServer::start();
    let (limiter, other) = (limiter_on(&server).await, Rule::new("other", 5, HOUR));
    for algorithm in ALGORITHMS {
        let (rule, none, key) = (hourly(5, algorithm), hourly(0, algorithm), fresh_key());
        for (rule, cost) in [(&rule, 6), (&rule, u64::MAX), (&none, 1), (&none, u64::MAX)] {
            let others = join_all((0..20).map(|_| limiter.acquire(&other, fresh_key())));
            let (_, refused) = tokio::join!(others, limiter.acquire_n(rule, key, cost));
            assert_eq!(refused.unwrap_err().cause(), Cause::NeverFits, "{cost} of {rule:?}");
        }
        assert_eq!(limiter.peek(&rule, key).await.unwrap().remaining(), 5);
    }
}

#[limit_request_per_time("costly", 1, Minutes, 5, cost = cost)]
async fn costly(cost: i128) -> Result<(), RequestPerMinute> {
    Ok(())
}

/// A cost of the largest `u64` is one, such as a product that saturates.
#[tokio::test]
async fn an_annotated_cost_never_fits_or_is_invalid() {
    let limiter = Limiter::in_memory();
    let cause = async |cost| limiter.scope(costly(cost)).await.unwrap_err().cause();
    assert_eq!(cause(u64::MAX.into()).await, Cause::NeverFits);
    assert_eq!(cause(i128::from(u64::MAX) + 1).await, Cause::Misconfigured);
    assert_eq!(cause(-1).await, Cause::Misconfigured);
}

/// The largest counts the docs of `Rule::new` name, used up twice, in large and in small costs.
#[tokio::test]
async fn the_largest_counts_are_exact() {
    let largest = [
        (FIXED, MS, 9_999_999_999),
        (FIXED, SECOND, 9_999_999_999),
        (FIXED, Rule::LONGEST_PERIOD, 9_999_999_999),
        (LOG, MS, 10_000_000),
        (LOG, SECOND, 10_000_000),
        (LOG, 200 * SECOND, 10_000_000),
        (LOG, 201 * SECOND, 10_000_000),
        (LOG, 90 * HOUR, 10_000_000),
        (LOG, 37 * DAY, 1_000_000),
        (LOG, 376 * DAY, 100_000),
        (LOG, Rule::LONGEST_PERIOD, 10_000),
        // The powers of two divided by milliseconds.
        (SLIDING, MS, 1 << 52),
        (SLIDING, SECOND, 4_503_599_627_370),
        (SLIDING, DAY, 52_124_995),
        (SLIDING, Rule::LONGEST_PERIOD, 14_280),
        (BUCKET, MS, 1 << 52),
        (BUCKET, SECOND, 4_503_599_627_370),
        (BUCKET, HOUR, 1_250_999_896),
        (BUCKET, Rule::LONGEST_PERIOD, 14_280),
        (INTERVAL, MS, 1 << 52),
        (INTERVAL, HOUR, 1 << 52),
        (INTERVAL, Rule::LONGEST_PERIOD, 1 << 52),
    ];
    for timed in Timed::both().await {
        for (algorithm, period, count) in largest {
            let (rule, key) = (Rule::new("largest", count, period).by(algorithm), fresh_key());
            for _ in 0..5 {
                let context = timed.of(&rule);
                let permit = timed.limiter.acquire_n(&rule, key, count - 2).await.unwrap();
                assert_eq!(permit.remaining(), 2, "{context}");
                assert_eq!(exceeded(timed.limiter.acquire_n(&rule, key, count).await).remaining(), 2, "{context}");
                assert_eq!(exceeded(timed.limiter.acquire_n(&rule, key, 3).await).remaining(), 2, "{context}");
                assert_eq!(timed.limiter.acquire(&rule, key).await.unwrap().remaining(), 1, "{context}");
                assert_eq!(timed.limiter.acquire(&rule, key).await.unwrap().remaining(), 0, "{context}");
                exceeded(timed.limiter.acquire(&rule, key).await);
                assert_eq!(permit.refund().await.unwrap(), count - 2, "{context}");
                assert_eq!(timed.limiter.acquire_n(&rule, key, count - 2).await.unwrap().remaining(), 0, "{context}");
                let wait = exceeded(timed.limiter.acquire_n(&rule, key, count).await).retry_after().unwrap();
                timed.advance(wait);
            }

            let above = Rule::new("largest", count + 1, period).by(algorithm);
            let refused = timed.limiter.acquire(&above, key).await.unwrap_err();
            assert_eq!(refused.cause(), Cause::Misconfigured, "{}", timed.of(&above));
            assert!(refused.to_string().contains(&count.to_string()), "{refused}");
        }
    }
}

/// Reported, whatever the store: it is the rule that is wrong.
#[tokio::test]
async fn an_impossible_rule_is_misconfigured() {
    for timed in Timed::both().await {
        let rules = [
            Rule::new("", 1, SECOND),
            Rule::new("zero", 1, Duration::ZERO),
            Rule::new("micros", 1, Duration::from_micros(1500)),
            Rule::new("long", 1, Rule::LONGEST_PERIOD + MS),
            Rule::new("endless", 1, Duration::MAX),
            Rule::new("many", u64::MAX, SECOND),
            Rule::new("none", 1, SECOND).with_prefetch(0),
        ];
        for rule in rules.into_iter().flat_map(|rule| ALGORITHMS.map(|algorithm| rule.by(algorithm))) {
            let limiter = &timed.limiter;
            let charges = [(&rule, Key::new(1), 1)];
            let causes = [
                limiter.acquire(&rule, 1).await.map(drop),
                limiter.acquire_n(&rule, 1, 0).await.map(drop),
                limiter.acquire_within(&rule, 1, SECOND).await.map(drop),
                limiter.acquire_all(&charges).await.map(drop),
                limiter.charge(&rule, 1, 1).await.map(drop),
                limiter.peek(&rule, 1).await.map(drop),
                limiter.reset(&rule, 1).await,
            ];
            for cause in causes.map(|answer| answer.unwrap_err().cause()) {
                assert_eq!(cause, Cause::Misconfigured, "{}", timed.of(&rule));
            }
        }
    }
}

/// 12 bytes an entry at 1,000 entries, the key and its name included; and no more after many
/// periods, whether entries expire one by one or several at once.
#[tokio::test]
async fn a_log_takes_12_bytes_an_entry() {
    let timed = Timed::redis().await;
    let server = timed.server().unwrap();
    for (period, together) in [(2 * SECOND, 1), (300 * SECOND, 1), (300 * SECOND, 10)] {
        let (rule, key) = (Rule::new("small", 1000, period).with_algorithm(LOG), fresh_key());
        let name = format!("small:{{{key}}}:sliding-log:{}", period.as_millis());
        for period_of_calls in 0..4 {
            // A group comes when all entries of the group a period before have expired.
            timed.advance(period / 200 * (together - 1).min(1));
            for call in 0..1000 {
                let pause = period / 1000 * together - MS * (together - 1);
                timed.advance(if call % together == 0 { pause } else { MS });
                timed.limiter.acquire(&rule, key).await.unwrap();
            }
            exceeded(timed.limiter.acquire(&rule, key).await);
            let usage = server.command(&[b"MEMORY", b"USAGE", name.as_bytes(), b"SAMPLES", b"0"]);
            let usage: u64 = redis::from_redis_value(usage).unwrap();
            assert!(
                usage <= 12_000,
                "{usage} bytes, {period:?}, {together} together, after {period_of_calls} more periods"
            );
        }
    }
}

/// Two entries at most, however much it weighs.
#[tokio::test]
async fn a_large_cost_takes_no_more_room_in_a_log_than_a_call() {
    let server = RedisServer::start();
    let limiter = limiter_on(&server).await;
    let (rule, key) = (Rule::new("weight", 1_000_000, HOUR).with_algorithm(LOG), fresh_key());
    limiter.acquire_n(&rule, key, 999_000).await.unwrap();
    assert_eq!(admitted(&limiter, &rule, key, 5).await, 5);
    let name = format!("weight:{{{key}}}:sliding-log:3600000");
    let usage: u64 = redis::from_redis_value(server.command(&[b"MEMORY", b"USAGE", name.as_bytes()])).unwrap();
    assert!(usage <= 300, "{usage} bytes");
}
