//! A refund returns the part of a charge that still counts, and no charge of another caller.

use std::time::Duration;

use ratelimit_runtime::{Algorithm, Key, Limiter, Permit, Refill, Rule};
use tokio::time::{advance, pause, resume};

use crate::support::{
    ALGORITHMS, ALIGNED, BUCKET, By, FIXED, INTERVAL, LOG, SLIDING, Timed, WINDOWS, admitted, exceeded, fresh_key,
    hourly,
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

async fn remaining(timed: &Timed, rule: &Rule, key: u64) -> u64 {
    timed.limiter.peek(rule, key).await.unwrap().remaining()
}

#[tokio::test]
async fn a_charge_is_refunded_in_full_within_its_window() {
    for timed in Timed::both().await {
        for algorithm in [FIXED, ALIGNED, LOG, SLIDING, INTERVAL] {
            timed.advance(3600 * SECOND - since_full_hour(&timed));
            let (rule, key) = (Rule::new("back", 10, 60 * SECOND).by(algorithm), fresh_key());
            let mut permits = Vec::new();
            for cost in [1, 4, 3, 2] {
                permits.push((timed.limiter.acquire_n(&rule, key, cost).await.unwrap(), cost));
                timed.advance(7 * SECOND);
            }
            exceeded(timed.limiter.acquire(&rule, key).await);
            let mut left = 0;
            for at in [1, 2, 0, 0] {
                let (permit, cost) = permits.remove(at);
                assert_eq!(permit.refund().await.unwrap(), cost, "{}", timed.of(&rule));
                left += cost;
                assert_eq!(remaining(&timed, &rule, key).await, left, "{}", timed.of(&rule));
                exceeded_or_fits(&timed, &rule, key, left).await;
            }
            assert_eq!(timed.limiter.peek(&rule, key).await.unwrap().reset_after(), Duration::ZERO);
            assert_eq!(admitted(&timed.limiter, &rule, key, 20).await, 10, "{}", timed.of(&rule));
        }
    }
}

/// Up to 200 seconds it counts in microseconds, above in milliseconds.
#[tokio::test]
async fn a_log_refunds_whatever_its_period_is() {
    for timed in Timed::both().await {
        for period in [200_000 * MS, 200_001 * MS] {
            let (rule, key) = (Rule::new("back", 10, period).by(LOG), fresh_key());
            let permit = timed.limiter.acquire_n(&rule, key, 3).await.unwrap();
            timed.advance(SECOND);
            timed.limiter.acquire_n(&rule, key, 4).await.unwrap();
            assert_eq!(permit.refund().await.unwrap(), 3, "{}", timed.of(&rule));
            assert_eq!(remaining(&timed, &rule, key).await, 6, "{}", timed.of(&rule));
        }
    }
}

fn since_full_hour(timed: &Timed) -> Duration {
    Duration::from_millis(u64::try_from(timed.now().as_millis()).unwrap() % 3_600_000)
}

/// The sub-window of a charge counts by how much of it the last period overlaps, and that much is refunded.
#[tokio::test]
async fn a_sliding_window_refunds_the_weight_a_charge_still_has() {
    for timed in Timed::both().await {
        for (later, back) in [(0, 10), (59, 10), (60, 10), (75, 8), (90, 5), (119, 1), (120, 0), (180, 0)] {
            timed.advance(3600 * SECOND - since_full_hour(&timed));
            let (rule, key) = (Rule::new("weighs", 20, 60 * SECOND).by(SLIDING), fresh_key());
            let permit = timed.limiter.acquire_n(&rule, key, 10).await.unwrap();
            timed.advance(later * SECOND);
            timed.limiter.acquire(&rule, key).await.unwrap();
            let before = remaining(&timed, &rule, key).await;
            assert_eq!(permit.refund().await.unwrap(), back, "{later} s later, {}", timed.name());
            assert_eq!(remaining(&timed, &rule, key).await, before + back, "{later} s later, {}", timed.name());
        }
    }
}

/// The refund is the part of the charge that cannot have been refilled since, to the fraction. A
/// fraction of a token is reported as one.
#[tokio::test]
async fn a_token_bucket_refunds_the_part_not_refilled_yet() {
    let cases: [(_, &[(u32, u64)]); 2] = [
        // One each six seconds.
        (BUCKET, &[(0, 7), (1, 7), (6_000, 6), (6_001, 6), (41_999, 1), (42_000, 0), (48_000, 0), (60_000, 0)]),
        (INTERVAL, &[(0, 7), (1, 7), (59_999, 7), (60_000, 0), (60_001, 0)]),
    ];
    for timed in Timed::both().await {
        for (algorithm, (later, back)) in
            cases.iter().flat_map(|(algorithm, of)| of.iter().map(move |one| (*algorithm, *one)))
        {
            let (rule, key) = (Rule::new("refills", 10, 60 * SECOND).by(algorithm), fresh_key());
            let permit = timed.limiter.acquire_n(&rule, key, 7).await.unwrap();
            timed.limiter.acquire_n(&rule, key, 3).await.unwrap();
            timed.advance(later * MS);
            let before = remaining(&timed, &rule, key).await;
            assert_eq!(permit.refund().await.unwrap(), back, "{later} ms later, {}", timed.of(&rule));
            assert_eq!(remaining(&timed, &rule, key).await, before + back, "{later} ms later, {}", timed.of(&rule));
        }
    }
}

/// A bucket of 50 tokens by a count of 1 a second, and by 100.
fn raised() -> [Rule; 2] {
    let bucket = Algorithm::TokenBucket { burst: 50, refill: Refill::Greedy };
    [1, 100].map(|count| Rule::new("raised", count, SECOND).with_algorithm(bucket))
}

/// The count was raised after the charge. What has refilled since, by the higher count, is not refunded.
#[tokio::test]
async fn a_bucket_whose_count_was_raised_refunds_the_part_not_refilled_yet() {
    for timed in Timed::both().await {
        let ([slow, fast], key) = (raised(), fresh_key());
        let permit = timed.limiter.acquire_n(&slow, key, 50).await.unwrap();
        timed.advance(400 * MS);
        timed.limiter.acquire_n(&fast, key, 40).await.unwrap();
        assert_eq!(permit.refund().await.unwrap(), 10, "{}", timed.name());
        assert_eq!(remaining(&timed, &fast, key).await, 10, "{}", timed.name());
    }
}

/// Nor is it refunded later, when the bucket would be full by the higher count, and a refund was between.
#[tokio::test]
async fn a_bucket_remembers_a_raised_count_behind_a_refund() {
    for timed in Timed::both().await {
        let ([slow, fast], key) = (raised(), fresh_key());
        let permit = timed.limiter.acquire_n(&slow, key, 50).await.unwrap();
        timed.advance(400 * MS);
        let refunded = timed.limiter.acquire_n(&fast, key, 10).await.unwrap();
        assert_eq!(refunded.refund().await.unwrap(), 10, "{}", timed.name());
        timed.advance(10 * MS);
        timed.limiter.acquire_n(&fast, key, 10).await.unwrap();
        timed.advance(SECOND);
        // By the low count, 1 has refilled.
        timed.limiter.acquire_n(&slow, key, 32).await.unwrap();
        assert_eq!(permit.refund().await.unwrap(), 0, "{}", timed.name());
    }
}

/// A bucket stores refills up to 2^30 - 2 as they are, and one number for all above.
#[tokio::test]
async fn a_bucket_whose_count_was_huge_for_a_while_refunds_nothing_later() {
    const BURST: u64 = 4_000_000;
    for timed in Timed::both().await {
        for (count, back) in [((1 << 30) - 2, 2_926_259), ((1 << 30) - 1, 0), (1 << 30, 0), (1 << 40, 0)] {
            let of_count = |count| {
                let bucket = Algorithm::TokenBucket { burst: BURST, refill: Refill::Greedy };
                Rule::new("huge", count, SECOND).with_algorithm(bucket)
            };
            let key = fresh_key();
            let first = timed.limiter.acquire_n(&of_count(1), key, BURST).await.unwrap();
            timed.advance(MS);
            timed.limiter.acquire_n(&of_count(count), key, 1_000_000).await.unwrap();
            let second = timed.limiter.acquire_n(&of_count(1), key, 9).await.unwrap();
            assert_eq!(second.refund().await.unwrap(), 9, "at once, {count}, {}", timed.name());
            assert_eq!(first.refund().await.unwrap(), back, "{count}, {}", timed.name());
        }
    }
}

/// Several periods to fill it: what the refills so far have brought is not refunded.
#[tokio::test]
async fn a_bucket_refilled_over_several_periods_refunds_less_after_each() {
    for timed in Timed::both().await {
        for (periods, back) in [(0, 12), (1, 7), (2, 2), (3, 0)] {
            let rule = Rule::new("slow", 5, 60 * SECOND);
            let rule = rule.with_algorithm(Algorithm::TokenBucket { burst: 20, refill: Refill::Interval });
            let key = fresh_key();
            let permit = timed.limiter.acquire_n(&rule, key, 12).await.unwrap();
            timed.advance(periods * 60 * SECOND);
            assert_eq!(permit.refund().await.unwrap(), back, "{periods} periods later, {}", timed.name());
            assert_eq!(remaining(&timed, &rule, key).await, 20, "{periods} periods later, {}", timed.name());
        }
    }
}

/// One more than `left` does not fit.
async fn exceeded_or_fits(timed: &Timed, rule: &Rule, key: u64, left: u64) {
    if left < rule.count() {
        assert_eq!(exceeded(timed.limiter.acquire_n(rule, key, left + 1).await).remaining(), left);
    }
}

#[tokio::test]
async fn charges_of_one_instant_are_refunded_separately() {
    for timed in Timed::both().await {
        for algorithm in ALGORITHMS {
            let (rule, key) = (hourly(10, algorithm), fresh_key());
            let first = timed.limiter.acquire_n(&rule, key, 5).await.unwrap();
            let second = timed.limiter.acquire_n(&rule, key, 3).await.unwrap();
            assert_eq!(first.refund().await.unwrap(), 5, "{}", timed.of(&rule));
            assert_eq!(remaining(&timed, &rule, key).await, 7);
            assert_eq!(second.refund().await.unwrap(), 3, "{}", timed.of(&rule));
            assert_eq!(remaining(&timed, &rule, key).await, 10);
        }
    }
}

/// Tried at the end of the window, a millisecond later and many windows later: with no later calls,
/// and with calls in the next window.
#[tokio::test]
async fn nothing_is_refunded_after_the_window_of_a_charge() {
    for timed in Timed::both().await {
        for algorithm in ALGORITHMS {
            for later in [Duration::ZERO, MS, SECOND, 9 * SECOND, 899_981 * MS, 7200 * SECOND] {
                for next in [0, 4] {
                    let (rule, key) = (Rule::new("late", 10, 10 * SECOND).by(algorithm), fresh_key());
                    let permit = timed.limiter.acquire_n(&rule, key, 3).await.unwrap();
                    let end = timed.limiter.peek(&rule, key).await.unwrap().reset_after();
                    timed.advance(end + later);
                    timed.limiter.acquire_n(&rule, key, next).await.unwrap();
                    let context = format!("{later:?} later, {next} counted then, {}", timed.of(&rule));
                    assert_eq!(permit.refund().await.unwrap(), 0, "{context}");
                    assert_eq!(remaining(&timed, &rule, key).await, 10 - next, "{context}");
                }
            }
        }
    }
}

/// Nobody has called since it expired; what was charged later may count still.
#[tokio::test]
async fn an_expired_charge_is_not_refunded() {
    for timed in Timed::both().await {
        for algorithm in ALGORITHMS {
            let (rule, key) = (Rule::new("expired", 10, 10 * SECOND).by(algorithm), fresh_key());
            let expired = timed.limiter.acquire_n(&rule, key, 3).await.unwrap();
            let counts = expired.reset_after();
            timed.advance(counts / 2);
            timed.limiter.acquire(&rule, key).await.unwrap();
            timed.advance(counts / 2);
            assert_eq!(expired.refund().await.unwrap(), 0, "{}", timed.of(&rule));
            let left = timed.limiter.peek(&rule, key).await.unwrap().remaining();
            let with_it = [FIXED, ALIGNED, INTERVAL].contains(&algorithm);
            assert_eq!(left, if with_it { 10 } else { 9 }, "{}", timed.of(&rule));
        }
    }
}

/// A window is known by when it was opened. Many of one key have been by the time an old permit comes back.
async fn no_later_window_is_credited(timed: &Timed, waits: impl Iterator<Item = Duration>) {
    let rule = Rule::new("later", 10, SECOND);
    for wait in waits {
        let key = fresh_key();
        let permit = timed.limiter.acquire_n(&rule, key, 3).await.unwrap();
        timed.advance(wait);
        timed.limiter.acquire_n(&rule, key, 4).await.unwrap();
        assert_eq!(permit.refund().await.unwrap(), 0, "{wait:?} later, {}", timed.of(&rule));
        assert_eq!(remaining(timed, &rule, key).await, 6, "{wait:?} later, {}", timed.of(&rule));
    }
}

#[tokio::test]
async fn a_refund_credits_no_later_window() {
    for timed in Timed::both().await {
        // Round numbers, and what a store may count its windows by: powers of two, and a prime.
        let round = (0..6).map(|digits| 10_u64.pow(digits) * 1000);
        let binary = (0..22).map(|bits| 1024 << bits);
        no_later_window_is_credited(&timed, round.chain(binary).map(Duration::from_millis)).await;
        no_later_window_is_credited(&timed, [899_981 * MS, 2 * 899_981 * MS].into_iter()).await;
    }
}

#[tokio::test]
async fn a_refund_of_several_rules_returns_only_what_still_counts() {
    for timed in Timed::both().await {
        for (short, long) in [(FIXED, FIXED), (LOG, LOG), (FIXED, LOG), (LOG, FIXED)] {
            let short = Rule::new("short", 10, SECOND).with_algorithm(short);
            let long = Rule::new("long", 10, 60 * SECOND).with_algorithm(long);
            let (key, names) = (fresh_key(), format!("{} and {}", timed.of(&short), timed.of(&long)));
            let charges = [(&short, Key::new(key), 2), (&long, Key::new(key), 5)];

            let permit = timed.limiter.acquire_all(&charges).await.unwrap();
            assert_eq!(permit.refund().await.unwrap(), 7, "{names}");
            let permit = timed.limiter.acquire_all(&charges).await.unwrap();
            timed.advance(2 * SECOND);
            timed.limiter.acquire(&short, key).await.unwrap();
            assert_eq!(permit.refund().await.unwrap(), 5, "{names}");
            assert_eq!(remaining(&timed, &short, key).await, 9, "{names}");
            assert_eq!(remaining(&timed, &long, key).await, 10, "{names}");
        }
    }
}

/// Tested where a store can tell: a sliding window and a bucket do not know single charges, and may
/// take later ones.
#[tokio::test]
async fn nothing_is_refunded_after_a_reset() {
    for timed in Timed::both().await {
        for algorithm in ALGORITHMS {
            let (rule, key) = (Rule::new("forgotten", 10, 10 * SECOND).by(algorithm), fresh_key());
            let permit = timed.limiter.acquire_n(&rule, key, 3).await.unwrap();
            timed.limiter.reset(&rule, key).await.unwrap();
            let later = timed.limiter.acquire_n(&rule, key, 3).await.unwrap();
            timed.limiter.reset(&rule, key).await.unwrap();
            assert_eq!(permit.refund().await.unwrap(), 0, "{}", timed.of(&rule));
            timed.advance(MS);
            timed.limiter.acquire_n(&rule, key, 2).await.unwrap();
            let back = later.refund().await.unwrap();
            let most = if WINDOWS.contains(&algorithm) { 0 } else { 2 };
            assert!(back <= most, "{back}, {}", timed.of(&rule));
            assert_eq!(remaining(&timed, &rule, key).await, 8 + back, "{}", timed.of(&rule));
        }
    }
}

#[tokio::test]
async fn a_permit_that_cost_nothing_refunds_nothing() {
    for timed in Timed::both().await {
        let (rule, key) = (hourly(3, LOG), fresh_key());
        timed.limiter.acquire_n(&rule, key, 2).await.unwrap();
        let nothing = timed.limiter.acquire_n(&rule, key, 0).await.unwrap();
        assert_eq!(nothing.refund().await.unwrap(), 0);
        assert_eq!(remaining(&timed, &rule, key).await, 1);
        assert_eq!(Limiter::unlimited().acquire(&rule, key).await.unwrap().refund().await.unwrap(), 0);
        assert_eq!(timed.limiter.acquire_all(&[]).await.unwrap().refund().await.unwrap(), 0);
    }
}

/// Refunding takes the permit, and there is no second one: this does not compile if a permit can be cloned.
#[test]
fn a_permit_can_be_refunded_only_once() {
    trait OnlyOnce<Marker> {
        fn is_told() {}
    }
    impl<T> OnlyOnce<()> for T {}
    impl<T: Clone> OnlyOnce<u8> for T {}
    <Permit as OnlyOnce<_>>::is_told();
}

/// Permits refunded while others are taken: what is charged in the end is what was kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refunds_under_load_neither_lose_nor_gain_permits() {
    for timed in Timed::both().await {
        for algorithm in ALGORITHMS {
            let (rule, key) = (hourly(100_000, algorithm), fresh_key());
            let mut tasks = tokio::task::JoinSet::new();
            for task in 0..16_u64 {
                let limiter = timed.limiter.clone();
                tasks.spawn(async move {
                    let mut kept = 0;
                    for call in 0..40 {
                        let cost = 1 + (task + call) % 5;
                        let permit = limiter.acquire_n(&rule, key, cost).await.unwrap();
                        tokio::task::yield_now().await;
                        if call % 3 == 0 {
                            kept += cost;
                        } else {
                            assert_eq!(permit.refund().await.unwrap(), cost);
                        }
                    }
                    kept
                });
            }
            for _ in 0..20 {
                timed.advance(Duration::from_micros(1));
                tokio::time::sleep(MS).await;
            }
            let kept: u64 = tasks.join_all().await.iter().sum();
            assert_eq!(remaining(&timed, &rule, key).await, 100_000 - kept, "{}", timed.of(&rule));
        }
    }
}

/// The server tells windows apart by their opening time modulo 450.001 s. With a period of 15 minutes or more, the
/// next window may have the number of the last one.
#[tokio::test]
async fn a_refund_after_its_window_credits_no_window_of_an_equal_number() {
    let timed = Timed::redis().await;
    for period in [10 * SECOND, 60 * SECOND, 900 * SECOND, 3600 * SECOND] {
        for (sent_early, opened) in [(Duration::ZERO, Duration::ZERO), (SECOND, Duration::ZERO), (SECOND, SECOND)] {
            let (rule, key) = (Rule::new("equal", 10, period), fresh_key());
            timed.limiter.acquire_n(&rule, key, 1).await.unwrap();
            timed.advance(opened);
            let late = timed.limiter.acquire_n(&rule, key, 3).await.unwrap();
            let next_ms = u64::try_from(period.as_millis()).unwrap().next_multiple_of(450_001);
            timed.advance(Duration::from_millis(next_ms) - opened);
            timed.limiter.acquire_n(&rule, key, 5).await.unwrap();
            // It may be sent before the end of the window, and arrive after it.
            pause();
            advance(Duration::from_millis(next_ms) - opened - sent_early).await;
            resume();
            assert_eq!(late.refund().await.unwrap(), 0, "{period:?}, sent {sent_early:?} early");
            assert_eq!(remaining(&timed, &rule, key).await, 5, "{period:?}, sent {sent_early:?} early");
        }
    }
}

/// As above. Prefetched permits are refunded to those that are here, without asking the server.
#[tokio::test]
async fn a_prefetched_permit_is_not_refunded_to_a_window_of_an_equal_number() {
    let (timed, next) = (Timed::redis().await, Duration::from_millis(2 * 450_001));
    let (rule, key) = (Rule::new("equal", 1_000, 900 * SECOND).with_prefetch(10), fresh_key());
    let late = timed.limiter.acquire_n(&rule, key, 3).await.unwrap();
    let in_time = timed.limiter.acquire_n(&rule, key, 2).await.unwrap();
    assert_eq!(in_time.refund().await.unwrap(), 2);
    assert_eq!(remaining(&timed, &rule, key).await, 997);
    timed.advance(next);
    pause();
    advance(next).await;
    resume();
    // The thread that prefetches has a clock of its own, which was not advanced. It tells the windows apart by
    // milliseconds.
    std::thread::sleep(Duration::from_millis(5));
    timed.limiter.acquire_n(&rule, key, 5).await.unwrap();
    assert_eq!(late.refund().await.unwrap(), 0);
    assert_eq!(remaining(&timed, &rule, key).await, 995);
}

/// Of a bucket with 20 tokens: what came back before the clock was set back is not known any more.
#[tokio::test]
async fn a_bucket_refunds_nothing_that_was_charged_later_than_its_clock_shows() {
    let timed = Timed::redis().await;
    let clock = timed.server().unwrap().clock();
    let bucket = Algorithm::TokenBucket { burst: 20, refill: Refill::Greedy };
    let rule = Rule::new("later", 10, 10 * SECOND).with_algorithm(bucket);
    let first = timed.limiter.acquire_n(&rule, 1, 10).await.unwrap();
    clock.set_micros(clock.now_micros() - 60_000_000);
    timed.limiter.acquire_n(&rule, 1, 5).await.unwrap();
    timed.advance(3 * SECOND);
    assert_eq!(first.refund().await.unwrap(), 0);
    assert_eq!(remaining(&timed, &rule, 1).await, 8);
}
