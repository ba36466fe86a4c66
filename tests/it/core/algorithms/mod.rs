//! Promises of each algorithm beyond the common rules, in memory and on Redis.

pub(super) mod leaky_bucket;
mod sliding_window;
mod token_bucket;

use std::time::Duration;

use ratelimit_runtime::{Algorithm, Cause, Decision, Key, Limiter, Refill, Rule};

use crate::support::{ALGORITHMS, ALIGNED, By, FIXED, INTERVAL, Timed, admitted, exceeded, fresh_key, is_admitted};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(86_400);

fn bucket(burst: u64, refill: Refill) -> Algorithm {
    Algorithm::TokenBucket { burst, refill }
}

fn added_up(buckets: u64) -> Algorithm {
    Algorithm::SlidingWindow { buckets, weighted: false }
}

fn sliding(buckets: u64) -> Algorithm {
    Algorithm::SlidingWindow { buckets, weighted: true }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap()
}

async fn peek(timed: &Timed, rule: &Rule, key: u64) -> Decision {
    timed.limiter.peek(rule, key).await.unwrap()
}

/// The message names what is too much, and the most there may be.
async fn misconfigured(timed: &Timed, rule: Rule, most: u64) {
    let refused = timed.limiter.acquire(&rule, 1).await.unwrap_err();
    assert_eq!(refused.cause(), Cause::Misconfigured, "{}", timed.of(&rule));
    assert!(refused.to_string().contains(&format!("{most} at most")), "{refused}");
}

#[tokio::test]
async fn impossible_buckets_and_bursts_are_misconfigured() {
    let limiter = Limiter::in_memory();
    for (period, algorithm, says) in [
        (SECOND, sliding(0), "buckets: 0"),
        (SECOND, sliding(1001), "buckets: 1001"),
        (SECOND, sliding(3), "buckets: 3"),
        (SECOND, sliding(u64::MAX), "buckets: 18446744073709551615"),
        (2 * MS, sliding(4), "buckets: 4"),
        (SECOND, bucket(0, Refill::Greedy), "burst: 0"),
        (SECOND, bucket(0, Refill::Interval), "burst: 0"),
    ] {
        let refused = limiter.acquire(&Rule::new("odd", 5, period).with_algorithm(algorithm), 1).await.unwrap_err();
        assert_eq!(refused.cause(), Cause::Misconfigured, "{algorithm:?}");
        assert!(refused.to_string().contains(says), "{refused}");
    }
    for buckets in [1, 2, 1000] {
        limiter.acquire(&Rule::new("even", 5, SECOND).with_algorithm(sliding(buckets)), 1).await.unwrap();
    }
}

/// The largest bursts and queues are used up twice. One more is misconfigured.
#[tokio::test]
async fn the_largest_bursts_and_queues_are_exact() {
    let most = 1_u64 << 52;
    let largest = [
        (1, SECOND, bucket(most / 1000, Refill::Greedy)),
        (2_147_483_648, SECOND, bucket(most / 1000, Refill::Greedy)),
        (most, MS, bucket(most, Refill::Greedy)),
        (most, 5 * MS, bucket(most / 5, Refill::Greedy)),
        (1, MS, bucket(most, Refill::Interval)),
        (1, SECOND, bucket(most / 1000, Refill::Interval)),
        (1000, SECOND, bucket(most / 1000 * 1000, Refill::Interval)),
        (2_147_483_648, SECOND, bucket(most, Refill::Interval)),
        (most, DAY, bucket(most, Refill::Interval)),
    ];
    for timed in Timed::both().await {
        for (count, period, algorithm) in largest {
            let (rule, key) = (Rule::new("largest", count, period).with_algorithm(algorithm), fresh_key());
            let Algorithm::TokenBucket { burst, refill } = algorithm else { unreachable!() };
            let (limit, context) = (rule.limit(), timed.of(&rule));
            for _ in 0..2 {
                let permit =
                    timed.limiter.acquire_n(&rule, key, limit - 2).await.unwrap_or_else(|e| panic!("{e}: {context}"));
                assert_eq!(permit.remaining(), 2, "{context}");
                assert_eq!(exceeded(timed.limiter.acquire_n(&rule, key, 3).await).remaining(), 2, "{context}");
                assert_eq!(permit.refund().await.unwrap(), limit - 2, "{context}");
                assert_eq!(timed.limiter.acquire_n(&rule, key, limit).await.unwrap().remaining(), 0, "{context}");
                let wait = exceeded(timed.limiter.acquire_n(&rule, key, limit).await).retry_after().unwrap();
                let refills = if refill == Refill::Interval {
                    limit.div_ceil(count) * ms(period)
                } else {
                    (limit * ms(period)).div_ceil(count)
                };
                assert_eq!(ms(wait), refills, "{context}");
                if wait > 1000 * 365 * DAY {
                    break; // no clock shows the end of it
                }
                timed.advance(wait - MS);
                exceeded(timed.limiter.acquire_n(&rule, key, limit).await);
                timed.advance(MS);
                assert_eq!(peek(&timed, &rule, key).await.remaining(), limit, "{context}");
            }
            misconfigured(&timed, Rule::new("largest", count, period).with_algorithm(bucket(burst + 1, refill)), burst)
                .await;
        }
        // A burst that the count would refill in time, and that is no exact number any more.
        misconfigured(&timed, Rule::new("huge", most, MS).with_algorithm(bucket(u64::MAX, Refill::Interval)), most)
            .await;
        for refill in [Refill::Greedy, Refill::Interval] {
            misconfigured(&timed, Rule::new("huge", most + 1, MS).with_algorithm(bucket(1, refill)), most).await;
        }
        for (period, queue) in [(MS, most - 1), (SECOND, most / 1000 - 1), (Rule::LONGEST_PERIOD, 14_279)] {
            let rule = Rule::new("queue", most, period);
            let (fits, above) = (Algorithm::LeakyBucket { queue }, Algorithm::LeakyBucket { queue: queue + 1 });
            let key = fresh_key();
            for _ in 0..3 {
                let permit = timed.limiter.acquire_n(&rule.with_algorithm(fits), key, queue + 1).await.unwrap();
                assert_eq!(permit.remaining(), 0, "{}", timed.of(&rule.with_algorithm(fits)));
                assert_eq!(permit.refund().await.unwrap(), queue + 1, "{}", timed.of(&rule.with_algorithm(fits)));
            }
            misconfigured(&timed, rule.with_algorithm(above), queue).await;
            let above = Rule::new("queue", most + 1, MS).with_algorithm(Algorithm::LeakyBucket { queue: 0 });
            misconfigured(&timed, above, most).await;
            let endless = Algorithm::LeakyBucket { queue: u64::MAX };
            misconfigured(&timed, rule.with_algorithm(endless), queue).await;
        }
    }
}

/// Buckets of a window and refills of a token bucket are part of the counter's name, as the algorithm is.
#[tokio::test]
async fn changed_buckets_and_refills_start_a_new_counter() {
    for timed in Timed::both().await {
        let key = fresh_key();
        let counters = [
            sliding(1),
            sliding(2),
            sliding(10),
            bucket(3, Refill::Greedy),
            bucket(3, Refill::Interval),
            Algorithm::LeakyBucket { queue: 2 },
        ];
        for algorithm in counters {
            let rule = Rule::new("fresh", 3, DAY).with_algorithm(algorithm);
            assert_eq!(peek(&timed, &rule, key).await.remaining(), 3, "{}", timed.of(&rule));
            if !matches!(algorithm, Algorithm::LeakyBucket { .. }) {
                assert_eq!(admitted(&timed.limiter, &rule, key, 5).await, 3, "{}", timed.of(&rule));
            }
        }
    }
}

/// A server packs the state of a window into one number, or into three where one is not exact.
#[tokio::test]
async fn a_fixed_window_of_any_size_reports_exact_numbers() {
    const COUNT: u64 = 9_999_999_999;
    for timed in Timed::both().await {
        for algorithm in [FIXED, ALIGNED] {
            // One number up to about ten million of a second, and of 115 days up to none.
            for period in [SECOND, 115 * DAY, 116 * DAY, Rule::LONGEST_PERIOD] {
                let (rule, key) = (Rule::new("packed", COUNT, period).with_algorithm(algorithm), fresh_key());
                let (context, mut used, mut left) = (timed.of(&rule), 0, None);
                for cost in [1, 10_007_000, 900, 50, 30, 6, 1, 1, 1, 1, 9, 50, 10_000, 9_000_000_000] {
                    let permit = timed.limiter.acquire_n(&rule, key, cost).await.unwrap();
                    used += cost;
                    let ends = *left.get_or_insert(permit.reset_after());
                    assert_eq!((permit.remaining(), permit.reset_after()), (COUNT - used, ends), "{context}");
                    let refused = exceeded(timed.limiter.acquire_n(&rule, key, COUNT).await);
                    assert_eq!((refused.remaining(), refused.retry_after()), (COUNT - used, Some(ends)), "{context}");
                    let seen = peek(&timed, &rule, key).await;
                    assert_eq!((seen.remaining(), seen.reset_after()), (COUNT - used, ends), "{context}");
                    let permit = timed.limiter.acquire(&rule, key).await.unwrap();
                    assert_eq!(permit.refund().await.unwrap(), 1, "{context}");
                    timed.advance(MS);
                    left = Some(ends - MS);
                }
            }
        }
    }
}

/// With costs of 0 among them: all are charged or none, whichever refuses.
#[tokio::test]
async fn rules_of_all_algorithms_are_charged_together_or_not_at_all() {
    for timed in Timed::both().await {
        let rules = ALGORITHMS.map(|algorithm| Rule::new("stack", 5, MINUTE).by(algorithm));
        let all_costs: [[u64; ALGORITHMS.len()]; 4] = [[1; 7], [0, 1, 2, 0, 2, 1, 1], [2, 0, 0, 1, 0, 0, 0], [0; 7]];
        for costs in all_costs {
            for full in 0..ALGORITHMS.len() {
                let key = fresh_key();
                let charges: Vec<_> = rules.iter().zip(costs).map(|(rule, cost)| (rule, Key::new(key), cost)).collect();
                let permit = timed.limiter.acquire_all(&charges).await.unwrap();
                assert_eq!(permit.remaining(), 5 - costs.iter().max().unwrap(), "{costs:?}, {}", timed.name());
                timed.limiter.acquire_n(&rules[full], key, 5 - costs[full]).await.unwrap();

                let before = seen(&timed, &rules, key).await;
                let mut turned = charges.clone();
                turned.reverse();
                let (all, context) =
                    (costs.iter().sum::<u64>(), format!("{costs:?}, {full} is full, {}", timed.name()));
                for charges in [&charges, &turned] {
                    match timed.limiter.acquire_all(charges).await {
                        // What costs nothing fits into a full counter.
                        Ok(another) => {
                            assert_eq!(costs[full], 0, "{context}");
                            assert_eq!(another.refund().await.unwrap(), all, "{context}");
                        }
                        refused => assert!(!is_admitted(refused) && costs[full] > 0, "{context}"),
                    }
                    assert_eq!(seen(&timed, &rules, key).await, before, "{context}");
                }
                assert_eq!(permit.refund().await.unwrap(), all, "{context}");
            }
        }
    }
}

async fn seen(timed: &Timed, rules: &[Rule], key: u64) -> Vec<Decision> {
    let mut seen = Vec::new();
    for rule in rules {
        seen.push(peek(timed, rule, key).await);
    }
    seen
}

/// A bucket of a single token that comes once in a period differs by nothing from a window.
#[tokio::test]
async fn a_bucket_of_one_token_a_period_acts_like_a_window() {
    for timed in Timed::both().await {
        for algorithm in [bucket(1, Refill::Greedy), INTERVAL, FIXED] {
            let (rule, key) = (Rule::new("single", 1, MINUTE).by(algorithm), fresh_key());
            for _ in 0..3 {
                let permit = timed.limiter.acquire(&rule, key).await.unwrap();
                assert_eq!((permit.remaining(), permit.reset_after()), (0, MINUTE), "{}", timed.of(&rule));
                timed.advance(MINUTE / 2);
                let refused = exceeded(timed.limiter.acquire(&rule, key).await);
                assert_eq!(refused.retry_after(), Some(MINUTE / 2), "{}", timed.of(&rule));
                timed.advance(MINUTE / 2);
            }
        }
    }
}
