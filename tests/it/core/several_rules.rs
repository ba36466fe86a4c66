//! Calls of several rules: all rules are charged, or none.

use std::time::Duration;

use ratelimit_runtime::{Algorithm, Cause, Key, Limiter, Refill, Rule};

use crate::support::{
    ALGORITHMS, By, FIXED, INTERVAL, LOG, Timed, WINDOWS, admitted, exceeded, fresh_key, hourly, is_admitted, lifetime,
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn pairs() -> impl Iterator<Item = (Algorithm, Algorithm)> {
    ALGORITHMS.into_iter().flat_map(|one| ALGORITHMS.map(|other| (one, other)))
}

/// The first or the last rule refuses, and the others are as before.
#[tokio::test]
async fn a_refusal_by_one_of_several_rules_charges_none() {
    for timed in Timed::both().await {
        for (one, other) in pairs() {
            let (wide, narrow) = (hourly(9, one), Rule::new("narrow", 3, 60 * SECOND).by(other));
            let key = fresh_key();
            let both = [(&wide, Key::new(key), 1), (&narrow, Key::new(key), 2)];
            let turned = [both[1].clone(), both[0].clone()];
            timed.limiter.acquire_all(&both).await.unwrap();
            for charges in [&both, &turned] {
                let refused = exceeded(timed.limiter.acquire_all(charges).await);
                let told = (refused.rule(), refused.limit(), refused.period(), refused.remaining());
                assert_eq!(told, ("narrow", 3, 60 * SECOND, 1), "{}", timed.of(&narrow));
                let never = [charges[0].clone(), (&narrow, Key::new("never"), 4)];
                assert_eq!(timed.limiter.acquire_all(&never).await.unwrap_err().cause(), Cause::NeverFits);
            }
            let left = timed.limiter.peek(&wide, key).await.unwrap().remaining();
            assert_eq!(left, 8, "{} below {}", timed.of(&wide), timed.of(&narrow));
            assert_eq!(timed.limiter.peek(&narrow, key).await.unwrap().remaining(), 1);
        }
    }
}

#[tokio::test]
async fn retry_after_of_several_rules_is_the_longest_wait() {
    for timed in Timed::both().await {
        for (one, other) in pairs() {
            let short = Rule::new("short", 1, 20 * SECOND).with_algorithm(one);
            let long = Rule::new("long", 1, 60 * SECOND).with_algorithm(other);
            let key = fresh_key();
            timed.limiter.acquire(&short, key).await.unwrap();
            timed.limiter.acquire(&long, key).await.unwrap();
            let both = [(&short, Key::new(key), 1), (&long, Key::new(key), 1)];
            let turned = [both[1].clone(), both[0].clone()];
            for charges in [&both, &turned] {
                let refused = exceeded(timed.limiter.acquire_all(charges).await);
                assert_eq!((refused.rule(), refused.limit()), ("long", 1), "{}", timed.of(&long));
                let alone = exceeded(timed.limiter.acquire(&long, key).await);
                assert_eq!(refused.retry_after(), alone.retry_after());
            }
            let wait = exceeded(timed.limiter.acquire_all(&both).await).retry_after().unwrap();
            timed.advance(wait - MS);
            exceeded(timed.limiter.acquire_all(&both).await);
            timed.advance(MS);
            timed.limiter.acquire_all(&both).await.unwrap();
        }
    }
}

/// The period is part of the name: the two admit as two of different prefixes do.
#[tokio::test]
async fn rules_of_one_prefix_and_different_periods_are_two_counters() {
    for timed in Timed::both().await {
        for algorithm in ALGORITHMS {
            let burst = Rule::new("item", 10, SECOND).by(algorithm);
            let total = Rule::new("item", 25, 60 * SECOND).by(algorithm);
            let other = Rule::new("other", 25, 60 * SECOND).by(algorithm);
            let key = fresh_key();
            let one_prefix = [(&burst, Key::new(key), 1), (&total, Key::new(key), 1)];
            let two_prefixes = [(&burst, Key::new(("other", key)), 1), (&other, Key::new(key), 1)];
            let mut in_second = [vec![], vec![]];
            for _ in 0..5 {
                for (both, in_second) in [&one_prefix, &two_prefixes].into_iter().zip(&mut in_second) {
                    let mut admitted = 0;
                    for _ in 0..12 {
                        admitted += u32::from(is_admitted(timed.limiter.acquire_all(both).await));
                    }
                    in_second.push(admitted);
                }
                timed.advance(SECOND);
            }
            assert_eq!(in_second[0], in_second[1], "{}", timed.of(&total));
            assert_eq!(in_second[0][0], 10, "{}", timed.of(&total));
            if WINDOWS.contains(&algorithm) || algorithm == INTERVAL {
                assert_eq!(in_second[0], [10, 10, 5, 0, 0], "{}", timed.of(&total));
            }
        }
    }
}

#[tokio::test]
async fn two_charges_of_one_counter_are_added_up() {
    for timed in Timed::both().await {
        for algorithm in ALGORITHMS {
            let (rule, lower, key) = (hourly(10, algorithm), hourly(6, algorithm), fresh_key());
            let twice = [(&rule, Key::new(key), 2), (&rule, Key::new(key.to_string()), 3)];
            assert_eq!(timed.limiter.acquire_all(&twice).await.unwrap().remaining(), 5);
            for charges in [
                [(&rule, Key::new(key), 1), (&lower, Key::new(key), 1)],
                [(&lower, Key::new(key), 1), (&rule, Key::new(key), 1)],
            ] {
                let refused = exceeded(timed.limiter.acquire_all(&charges).await);
                assert_eq!((refused.limit(), refused.remaining()), (6, 1), "{}", timed.of(&rule));
            }
            timed.limiter.acquire_all(&twice).await.unwrap();
            assert_eq!(exceeded(timed.limiter.acquire_all(&twice).await).remaining(), 0);
        }
    }
}

#[tokio::test]
async fn two_buckets_of_one_counter_are_refilled_at_the_lower_rate() {
    for timed in Timed::both().await {
        for bursts in [[10, 10], [10, 20], [20, 10]] {
            let [slow, fast] = [(60, bursts[0]), (600, bursts[1])].map(|(count, burst)| {
                let bucket = Algorithm::TokenBucket { burst, refill: Refill::Greedy };
                Rule::new("rate", count, 60 * SECOND).with_algorithm(bucket)
            });
            for order in [[&slow, &fast], [&fast, &slow]] {
                let key = fresh_key();
                let call = || timed.limiter.acquire_all(&order.map(|rule| (rule, Key::new(key), 1)));
                for _ in 0..5 {
                    call().await.unwrap();
                }
                timed.advance(SECOND); // for one token of the slow one. A call costs two.
                let refused = exceeded(call().await);
                assert_eq!((refused.limit(), refused.remaining()), (10, 1), "{}", timed.of(order[0]));
                assert_eq!(refused.retry_after(), Some(SECOND), "{}", timed.of(order[0]));
            }
        }
    }
}

#[tokio::test]
async fn a_permit_reports_the_tightest_rule() {
    for timed in Timed::both().await {
        for (one, other) in pairs() {
            let (wide, narrow) = (hourly(9, one), Rule::new("narrow", 3, 60 * SECOND).by(other));
            let key = fresh_key();
            let charges = [(&wide, Key::new(key), 1), (&narrow, Key::new(key), 1)];
            let permit = timed.limiter.acquire_all(&charges).await.unwrap();
            assert_eq!((permit.limit(), permit.remaining()), (3, 2), "{}", timed.of(&narrow));
            assert!(permit.reset_after() <= lifetime(&narrow), "{}", timed.of(&narrow));
        }
    }
}

#[tokio::test]
async fn many_rules_are_charged_together_or_not_at_all() {
    for timed in Timed::both().await {
        let rules: Vec<Rule> = (1..=30)
            .map(|ms| {
                Rule::new("many", 2, Duration::from_secs(60 + ms)).with_algorithm(if ms % 2 == 0 { LOG } else { FIXED })
            })
            .collect();
        let key = fresh_key();
        let charges: Vec<_> = rules.iter().map(|rule| (rule, Key::new(key), 1)).collect();
        assert_eq!(timed.limiter.acquire_all(&charges).await.unwrap().remaining(), 1);
        timed.limiter.acquire(&rules[29], key).await.unwrap();
        exceeded(timed.limiter.acquire_all(&charges).await);
        for (at, rule) in rules.iter().enumerate() {
            let left = timed.limiter.peek(rule, key).await.unwrap().remaining();
            assert_eq!(left, u64::from(at != 29), "{}", timed.of(rule));
        }
    }
}

/// All but the last are charged, and refunded. The locks of all do not fit on a stack.
#[tokio::test]
async fn thousands_of_counters_are_charged_together_or_not_at_all() {
    let limiter = Limiter::in_memory();
    let rule = hourly(2, FIXED);
    let charges: Vec<_> = (0..20_000).map(|key| (&rule, Key::new(key), 1)).collect();
    assert_eq!(limiter.acquire_all(&charges).await.unwrap().remaining(), 1);
    limiter.acquire(&rule, 19_999).await.unwrap();
    exceeded(limiter.acquire_all(&charges).await);
    for key in [0, 10_000] {
        assert_eq!(limiter.peek(&rule, key).await.unwrap().remaining(), 1);
    }
}

/// The first of the call, in memory and on Redis, whatever the order of their counters is.
#[tokio::test]
async fn of_equal_rules_the_permit_shows_the_first() {
    for timed in Timed::both().await {
        for _ in 0..10 {
            let key = fresh_key();
            let [one, other] = ["one", "other"].map(|prefix| Rule::new(prefix, 9, 60 * SECOND));
            for rules in [[&one, &other], [&other, &one]] {
                let costs = [1, 4];
                timed.limiter.reset(&one, key).await.unwrap();
                timed.limiter.reset(&other, key).await.unwrap();
                let raised = Rule::new(rules[1].prefix(), 12, 60 * SECOND);
                let charges = [(rules[0], Key::new(key), costs[0]), (&raised, Key::new(key), costs[1])];
                assert_eq!(timed.limiter.acquire_all(&charges).await.unwrap().limit(), 9, "{}", timed.of(&one));
            }
        }
    }
}

/// The log has room as soon as the hold ends, so it is the window that refuses.
#[tokio::test]
async fn a_rule_that_others_hold_is_named_last() {
    for timed in Timed::both().await {
        let (held, exhausted) = (Rule::new("held", 10, 60 * SECOND).by(LOG), Rule::new("exhausted", 1, 10 * SECOND));
        let key = fresh_key();
        let reservation = timed.limiter.reserve(&held, key, 10).await.unwrap();
        timed.limiter.acquire(&exhausted, key).await.unwrap();
        let charges = [(&exhausted, Key::new(key), 1), (&held, Key::new(key), 1)];
        let refused = exceeded(timed.limiter.acquire_all(&charges).await);
        assert_eq!(refused.rule(), "exhausted", "{}", timed.of(&held));
        reservation.cancel().await.unwrap();
    }
}

/// Calls in opposite orders, beside calls of each rule alone: exact, and without a deadlock.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_calls_of_several_rules_are_exact() {
    for timed in Timed::both().await {
        for (one, other) in [(FIXED, LOG), (LOG, LOG), (FIXED, FIXED)] {
            for _ in 0..20 {
                let (wide, narrow) = (hourly(200, one), Rule::new("narrow", 60, 3600 * SECOND).with_algorithm(other));
                let (key, total) = (fresh_key(), fresh_key());
                let mut tasks = tokio::task::JoinSet::new();
                for task in 0..150 {
                    let limiter = timed.limiter.clone();
                    tasks.spawn(async move {
                        let mut charges = [(&wide, Key::new(key), 1), (&narrow, Key::new(total), 1)];
                        match task % 3 {
                            0 => is_admitted(limiter.acquire_all(&charges).await),
                            1 => {
                                charges.reverse();
                                is_admitted(limiter.acquire_all(&charges).await)
                            }
                            _ => {
                                limiter.acquire(&wide, key).await.unwrap();
                                false
                            }
                        }
                    });
                }
                let stacked = tasks.join_all().await.into_iter().filter(|admitted| *admitted).count();
                assert_eq!(stacked, 60, "{}", timed.of(&narrow));
                assert_eq!(admitted(&timed.limiter, &wide, key, 200).await, 200 - 60 - 50, "{}", timed.of(&wide));
            }
        }
    }
}
