//! Windows and waits on clocks that the test controls.

use std::time::Duration;

use futures_util::future::join_all;
use ratelimit_runtime::conformance::store_of;
use ratelimit_runtime::{Algorithm, Rule};

use crate::support::holds::{decide_all, held_charge};
use crate::support::{
    ADDED_UP, ALGORITHMS, ALIGNED, BUCKET, By, FIXED, INTERVAL, LOG, SLIDING, Timed, admitted, exceeded, fresh_key,
    is_admitted, lifetime,
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A window ends when it was opened to end, however steadily calls come in.
#[tokio::test]
async fn steady_calls_do_not_move_the_end_of_a_window() {
    for timed in Timed::both().await {
        for algorithm in [FIXED, LOG] {
            let rule = Rule::new("trickle", 3, 10 * SECOND).by(algorithm);
            let key = fresh_key();
            let mut admitted_at = Vec::new();
            for second in 0..45 {
                if is_admitted(timed.limiter.acquire(&rule, key).await) {
                    admitted_at.push(second);
                }
                timed.advance(SECOND);
            }
            let expected = [0, 1, 2, 10, 11, 12, 20, 21, 22, 30, 31, 32, 40, 41, 42];
            assert_eq!(admitted_at, expected, "{}", timed.of(&rule));
        }
    }
}

/// Admitted calls do not move it either: its end is the same from the first to the last of them.
#[tokio::test]
async fn admitted_calls_do_not_move_the_end_of_a_window() {
    for timed in Timed::both().await {
        let (rule, key) = (Rule::new("anchored", 9, 10 * SECOND), fresh_key());
        for second in 0..9 {
            let left = timed.limiter.acquire(&rule, key).await.unwrap().reset_after();
            assert_eq!(left, (10 - second) * SECOND, "{}", timed.of(&rule));
            timed.advance(SECOND);
        }
        exceeded(timed.limiter.acquire(&rule, key).await);
        timed.advance(SECOND);
        assert_eq!(timed.limiter.acquire(&rule, key).await.unwrap().remaining(), 8, "{}", timed.of(&rule));
    }
}

#[tokio::test]
async fn an_aligned_window_begins_on_a_multiple_of_its_period() {
    for timed in Timed::both().await {
        // Both clocks show a full minute; 17 s and 3 ms later a window is opened.
        let rule = Rule::new("aligned", 2, 60 * SECOND).with_algorithm(Algorithm::FixedWindow { align: true });
        let key = fresh_key();
        timed.advance(17 * SECOND + 3 * MS);
        assert_eq!(timed.limiter.acquire(&rule, key).await.unwrap().reset_after(), 43 * SECOND - 3 * MS);
        timed.advance(43 * SECOND - 4 * MS);
        timed.limiter.acquire(&rule, key).await.unwrap();
        assert_eq!(exceeded(timed.limiter.acquire(&rule, key).await).retry_after(), Some(MS), "{}", timed.name());
        timed.advance(MS);
        assert_eq!(timed.limiter.acquire(&rule, key).await.unwrap().reset_after(), 60 * SECOND, "{}", timed.name());
    }
}

/// In every span of one period, half open, a log has admitted its count at most; and it admits as soon as that allows.
#[tokio::test]
async fn a_log_admits_its_count_in_every_span_of_a_period() {
    for timed in Timed::both().await {
        let (rule, key) = (Rule::new("log", 5, SECOND).with_algorithm(LOG), fresh_key());
        let (mut now, mut admitted_at) = (Duration::ZERO, Vec::<Duration>::new());
        for step in 0..600_u32 {
            let in_window = admitted_at.iter().filter(|&&at| at + SECOND > now).count();
            let admitted = is_admitted(timed.limiter.acquire(&rule, key).await);
            assert_eq!(admitted, in_window < 5, "{}: {now:?} after {admitted_at:?}", timed.name());
            if admitted {
                admitted_at.push(now);
            }
            let pause = Duration::from_micros(u64::from(step * 7919 % 97) * 1009);
            timed.advance(pause);
            now += pause;
        }
        assert!(admitted_at.len() > 100, "{}", admitted_at.len());
    }
}

/// Expired entries are removed before the stored times repeat.
#[tokio::test]
async fn expired_entries_of_a_log_never_count_again() {
    for timed in Timed::both().await {
        for period in [200 * SECOND, 90 * 3600 * SECOND, 37 * 86_400 * SECOND] {
            let (rule, key) = (Rule::new("forget", 3, period).with_algorithm(LOG), fresh_key());
            for _ in 0..20 {
                timed.limiter.acquire(&rule, key).await.unwrap();
                timed.advance(period / 100 * 99);
            }
            timed.limiter.acquire(&rule, key).await.unwrap();
            timed.advance(period / 10 * 6);
            assert_eq!(timed.limiter.peek(&rule, key).await.unwrap().remaining(), 2, "{}", timed.of(&rule));
        }
    }
}

/// A long log has times of whole milliseconds, rounded up. The key lives on after the first charge in each sixteenth
/// of its period, also if only the rounded time is in that sixteenth.
#[tokio::test]
async fn a_long_log_is_kept_while_its_charges_count() {
    const SIXTEENTH: u64 = 18_750;
    const CYCLE: u64 = 812_345_679; // of the times in the script, in milliseconds
    for timed in Timed::both().await {
        let (rule, key) = (Rule::new("kept", 9, 300 * SECOND).with_algorithm(LOG), fresh_key());
        let now_ms = timed.server().map_or(0, |server| server.clock().now_micros() / 1000);
        timed.advance(Duration::from_millis(SIXTEENTH - now_ms % CYCLE % SIXTEENTH));

        timed.limiter.acquire(&rule, key).await.unwrap();
        timed.advance(Duration::from_micros(1000 * SIXTEENTH - 500)); // rounded up, it is in the next sixteenth
        timed.limiter.acquire(&rule, key).await.unwrap();
        timed.advance(Duration::from_millis(SIXTEENTH - 1)); // late in that one
        timed.limiter.acquire_n(&rule, key, 7).await.unwrap();
        timed.advance(Duration::from_millis(15 * SIXTEENTH + 4)); // the seven count for nearly a sixteenth more
        assert_eq!(admitted(&timed.limiter, &rule, key, 9).await, 2, "{}", timed.of(&rule));
    }
}

/// A caller who obeys is admitted, and one that comes a millisecond earlier is refused.
#[tokio::test]
async fn retry_after_is_the_shortest_wait() {
    for timed in Timed::both().await {
        let mut refusals = 0;
        for algorithm in ALGORITHMS {
            for period in [2 * MS, 50 * MS, SECOND, 100 * SECOND, 300 * SECOND] {
                for micros in [0, 1, 499, 500, 999] {
                    for cost in 1..=3 {
                        timed.advance(Duration::from_micros(1000 + micros));
                        let (rule, key) = (Rule::new("retry", 3, period).by(algorithm), fresh_key());
                        timed.limiter.acquire(&rule, key).await.unwrap();
                        timed.advance(period / 7);
                        let _ = timed.limiter.acquire_n(&rule, key, 2).await;
                        timed.advance(period / 7);
                        let Err(refused) = timed.limiter.acquire_n(&rule, key, cost).await else { continue };
                        refusals += 1;
                        let wait = refused.retry_after().unwrap();
                        let context = format!("{}, +{micros} µs, cost {cost}: {wait:?}", timed.of(&rule));
                        timed.advance(wait.checked_sub(MS).expect("a wait of a millisecond at least"));
                        let Err(early) = timed.limiter.acquire_n(&rule, key, cost).await else {
                            panic!("admitted a millisecond early: {context}");
                        };
                        assert_eq!(early.retry_after(), Some(MS), "{context}");
                        timed.advance(MS);
                        assert!(is_admitted(timed.limiter.acquire_n(&rule, key, cost).await), "{context}");
                    }
                }
            }
        }
        assert!(refusals > 180, "{}: only {refusals} refusals", timed.name());
    }
}

#[tokio::test]
async fn reset_after_is_the_time_until_the_whole_count_is_available() {
    for timed in Timed::both().await {
        for algorithm in ALGORITHMS {
            for period in [2 * MS, SECOND, 100 * SECOND, 300 * SECOND] {
                for micros in [0, 1, 999] {
                    timed.advance(Duration::from_micros(1000 + micros));
                    let (rule, key) = (Rule::new("reset", 9, period).by(algorithm), fresh_key());
                    assert_eq!(timed.limiter.peek(&rule, key).await.unwrap().reset_after(), Duration::ZERO);
                    timed.limiter.acquire(&rule, key).await.unwrap();
                    timed.advance(period / 3);
                    let wait = timed.limiter.acquire_n(&rule, key, 2).await.unwrap().reset_after();
                    let context = format!("{}, +{micros} µs: {wait:?}", timed.of(&rule));
                    timed.advance(wait.checked_sub(MS).unwrap());
                    let early = timed.limiter.peek(&rule, key).await.unwrap();
                    assert!(early.remaining() < 9 && early.reset_after() == MS, "{early:?}: {context}");
                    timed.advance(MS);
                    let later = timed.limiter.peek(&rule, key).await.unwrap();
                    assert_eq!((later.remaining(), later.reset_after()), (9, Duration::ZERO), "{context}");
                }
            }
        }
    }
}

/// One an hour, one a millisecond: nothing is rounded to no limit or to a limit for ever.
#[tokio::test]
async fn a_count_of_one_admits_one_call_a_period() {
    for timed in Timed::both().await {
        for algorithm in ALGORITHMS {
            for period in [MS, SECOND, 3600 * SECOND, Rule::LONGEST_PERIOD] {
                if algorithm == ADDED_UP && period == MS {
                    continue; // it cannot be divided
                }
                let (rule, key) = (Rule::new("one", 1, period).by(algorithm), fresh_key());
                for _ in 0..3 {
                    timed
                        .limiter
                        .acquire(&rule, key)
                        .await
                        .unwrap_or_else(|error| panic!("{}: {error}", timed.of(&rule)));
                    let wait = exceeded(timed.limiter.acquire(&rule, key).await).retry_after().unwrap();
                    assert!(wait <= lifetime(&rule) && wait >= MS, "{wait:?} of {}", timed.of(&rule));
                    timed.advance(wait);
                }
            }
        }
    }
}

/// Ten million a second: they are admitted at once, and again when none of them counts any more.
#[tokio::test]
async fn a_rate_of_ten_million_a_second_is_exact() {
    for timed in Timed::both().await {
        for algorithm in ALGORITHMS {
            let (rule, key) = (Rule::new("fast", 10_000_000, SECOND).by(algorithm), fresh_key());
            for round in 0..3 {
                for tenth in 0..10 {
                    let permit = timed.limiter.acquire_n(&rule, key, 1_000_000).await.unwrap();
                    assert_eq!(permit.remaining(), (9 - tenth) * 1_000_000, "round {round}, {}", timed.of(&rule));
                }
                exceeded(timed.limiter.acquire(&rule, key).await);
                timed.advance(lifetime(&rule));
            }
        }
    }
}

const BACK: [Duration; 6] = [
    MS,
    Duration::from_millis(20),
    Duration::from_secs(2),
    Duration::from_secs(9),
    Duration::from_secs(3600),
    Duration::from_secs(400 * 86_400),
];

/// Admitted calls stay counted. No caller is refused for longer than a charge can count, and a
/// caller who obeys `retry_after` is admitted.
#[tokio::test]
async fn a_server_clock_set_back_neither_credits_nor_bans_callers() {
    let timed = Timed::redis().await;
    let clock = timed.server().unwrap().clock();
    for algorithm in ALGORITHMS {
        for back in BACK {
            let (rule, key) = (Rule::new("back", 3, 10 * SECOND).by(algorithm), fresh_key());
            timed.limiter.acquire_n(&rule, key, 3).await.unwrap();
            clock.set_micros(clock.now_micros() - u64::try_from(back.as_micros()).unwrap());
            assert_eq!(admitted(&timed.limiter, &rule, key, 5).await, 0, "{back:?} back, {}", timed.of(&rule));
            assert_eq!(timed.limiter.peek(&rule, key).await.unwrap().remaining(), 0);
            let mut waited = Duration::ZERO;
            while !is_admitted(timed.limiter.acquire_n(&rule, key, 3).await) {
                timed.advance(100 * MS);
                waited += 100 * MS;
                assert!(waited <= lifetime(&rule) + 100 * MS, "{back:?} back, {}", timed.of(&rule));
            }
            exceeded(timed.limiter.acquire(&rule, key).await);
        }
    }
}

/// Both count as made at the time after it.
#[tokio::test]
async fn a_log_keeps_its_entries_and_its_hold_when_the_clock_is_set_back() {
    let (timed, key) = (Timed::redis().await, fresh_key());
    let (clock, rule) = (timed.server().unwrap().clock(), Rule::new("held", 10, 60 * SECOND).by(LOG));
    // The first charge expires, and 3 remain.
    for (cost, later) in [(2, 30), (1, 31), (2, 0)] {
        timed.limiter.acquire_n(&rule, key, cost).await.unwrap();
        timed.advance(later * SECOND);
    }
    decide_all(&timed, [held_charge(rule, key, 1, 30 * SECOND)].into_iter()).await;
    clock.set_micros(clock.now_micros() - 100_000_000);
    assert_eq!(timed.limiter.acquire_n(&rule, key, 2).await.unwrap().remaining(), 4);
    // The hold ends after 30 s, and then counts for one period more.
    for (later, remaining) in [(59, 4), (2, 9), (28, 9), (2, 10)] {
        timed.advance(later * SECOND);
        assert_eq!(timed.limiter.peek(&rule, key).await.unwrap().remaining(), remaining, "{later} s later");
    }
}

/// Redis rounds the end of a hold up to a millisecond, so a hold never counts for less than a period.
#[tokio::test]
async fn a_hold_of_a_log_counts_for_a_period_after_its_end() {
    const LEASE: Duration = Duration::from_secs(5);
    for timed in Timed::both().await {
        let (rule, key) = (Rule::new("held", 10, SECOND).with_algorithm(LOG), fresh_key());
        let microsecond = Duration::from_micros(1);
        timed.advance(microsecond);
        decide_all(&timed, [held_charge(rule, key, 4, LEASE)].into_iter()).await;
        timed.advance(LEASE + SECOND - microsecond);
        assert_eq!(timed.limiter.peek(&rule, key).await.unwrap().remaining(), 6, "{}", timed.name());
        timed.advance(MS);
        assert_eq!(timed.limiter.peek(&rule, key).await.unwrap().remaining(), 10, "{}", timed.name());
    }
}

/// With holds, a log keeps the time when all charges have expired.
#[tokio::test]
async fn a_charge_of_a_log_counts_to_the_microsecond_beside_a_hold() {
    let microseconds = Duration::from_micros;
    for timed in Timed::both().await {
        let (rule, key) = (Rule::new("beside", 10, SECOND).with_algorithm(LOG), fresh_key());
        timed.advance(microseconds(998));
        timed.limiter.acquire_n(&rule, key, 3).await.unwrap();
        timed.advance(microseconds(1));
        decide_all(&timed, [held_charge(rule, key, 1, 10 * SECOND)].into_iter()).await;
        timed.advance(SECOND - microseconds(2));
        assert_eq!(timed.limiter.peek(&rule, key).await.unwrap().remaining(), 6, "{}", timed.name());
        timed.advance(MS);
        assert_eq!(timed.limiter.peek(&rule, key).await.unwrap().remaining(), 9, "{}", timed.name());
    }
}

/// Its lease is longer than the period of the rule.
#[tokio::test]
async fn a_renewed_hold_of_one_counts_until_its_lease_ends() {
    const LEASE: Duration = Duration::from_secs(30);
    for timed in Timed::both().await {
        let (rule, key) = (Rule::new("renewed", 10, SECOND).with_algorithm(LOG), fresh_key());
        let held = decide_all(&timed, [held_charge(rule, key, 1, LEASE)].into_iter()).await;
        timed.advance(LEASE - SECOND);
        let renewed = store_of(&timed.limiter).renew(held[0].charges.iter().cloned().collect());
        assert_eq!(renewed.answer().await.unwrap(), [true], "{}", timed.name());
        timed.advance(LEASE - SECOND);
        assert_eq!(timed.limiter.peek(&rule, key).await.unwrap().remaining(), 9, "{}", timed.name());
    }
}

#[tokio::test]
async fn after_a_clock_set_back_no_wait_is_longer_than_a_charge_counts() {
    let timed = Timed::redis().await;
    let clock = timed.server().unwrap().clock();
    for algorithm in ALGORITHMS {
        for (back, period) in BACK.map(|back| (back, 10 * SECOND)).into_iter().chain([(10 * SECOND, 3600 * SECOND)]) {
            let (rule, key) = (Rule::new("obey", 3, period).by(algorithm), fresh_key());
            timed.limiter.acquire_n(&rule, key, 3).await.unwrap();
            clock.set_micros(clock.now_micros() - u64::try_from(back.as_micros()).unwrap());
            let wait = exceeded(timed.limiter.acquire(&rule, key).await).retry_after().unwrap();
            assert!(wait <= lifetime(&rule) + MS, "{wait:?} after {back:?} back, {}", timed.of(&rule));
            timed.advance(wait);
            assert!(is_admitted(timed.limiter.acquire(&rule, key).await), "{back:?} back, {}", timed.of(&rule));
        }
    }
}

/// In the last millisecond of a second. Log and fixed window count all as charged now, and sub-windows as
/// charged in the current one.
#[tokio::test]
async fn after_a_clock_set_back_charges_expire_to_the_millisecond() {
    let timed = Timed::redis().await;
    let clock = timed.server().unwrap().clock();
    for (algorithm, period, reset) in [
        (FIXED, 10 * SECOND, 10 * SECOND),
        (FIXED, 300 * SECOND, 300 * SECOND),
        (LOG, 10 * SECOND, 10 * SECOND),
        (LOG, 300 * SECOND, 300 * SECOND),
        (SLIDING, 10 * SECOND, 16_001 * MS),
    ] {
        let (rule, key) = (Rule::new("exact", 3, period).by(algorithm), fresh_key());
        let of = timed.of(&rule);
        let hour = clock.now_micros() / 3_600_000_000 * 3_600_000_000;
        clock.set_micros(hour + 3_600_000_000);
        timed.limiter.acquire_n(&rule, key, 3).await.unwrap();
        clock.set_micros(hour + 3_999_000);
        let seen = timed.limiter.peek(&rule, key).await.unwrap();
        assert_eq!((seen.remaining(), seen.reset_after()), (0, reset), "{of}");
        timed.advance(reset - MS);
        assert!(timed.limiter.peek(&rule, key).await.unwrap().remaining() < 3, "{of}");
        timed.advance(MS);
        assert_eq!(timed.limiter.peek(&rule, key).await.unwrap().remaining(), 3, "{of}");
    }
}

/// An aligned window that is given a new end keeps to the grid: a window off it would let a third one into one period.
#[tokio::test]
async fn an_aligned_window_stays_on_the_grid_when_the_clock_is_set_back() {
    let timed = Timed::redis().await;
    let clock = timed.server().unwrap().clock();
    let (rule, key) = (Rule::new("grid", 10, 60 * SECOND).with_algorithm(ALIGNED), fresh_key());
    let minute = clock.now_micros() / 60_000_000 * 60_000_000;
    clock.set_micros(minute + 30_000_000);
    timed.limiter.acquire(&rule, key).await.unwrap();
    clock.set_micros(minute - 10_000_000);
    let healed = timed.limiter.peek(&rule, key).await.unwrap();
    assert_eq!(healed.reset_after(), 10 * SECOND);
    assert_eq!(admitted(&timed.limiter, &rule, key, 12).await, 9);
    timed.advance(10 * SECOND);
    assert_eq!(admitted(&timed.limiter, &rule, key, 12).await, 10);
    timed.advance(59 * SECOND);
    assert_eq!(admitted(&timed.limiter, &rule, key, 12).await, 0);
}

/// Stored time does not move back with the clock: what is charged then counts for a whole period too.
#[tokio::test]
async fn a_charge_after_a_clock_set_back_counts_for_a_period() {
    let timed = Timed::redis().await;
    let clock = timed.server().unwrap().clock();
    for algorithm in [FIXED, LOG] {
        for back in BACK {
            let (rule, key) = (Rule::new("stored", 3, 10 * SECOND).by(algorithm), fresh_key());
            timed.limiter.acquire(&rule, key).await.unwrap();
            clock.set_micros(clock.now_micros() - u64::try_from(back.as_micros()).unwrap());
            timed.limiter.acquire(&rule, key).await.unwrap();
            timed.advance(10 * SECOND - 2 * MS);
            let remaining = timed.limiter.peek(&rule, key).await.unwrap().remaining();
            assert!(remaining <= if back < 10 * SECOND { 1 } else { 2 }, "{back:?} back, {}", timed.of(&rule));
            timed.advance(4 * MS);
            assert_eq!(timed.limiter.peek(&rule, key).await.unwrap().remaining(), 3, "{back:?}, {}", timed.of(&rule));
        }
    }
}

/// The refund removes no charge of another caller. A bucket knows a charge by its time alone, and
/// sub-windows by theirs: there it removes at most what is charged in the time that is shown twice.
#[tokio::test]
async fn refunding_a_permit_from_before_a_clock_set_back_removes_no_other_charge() {
    let timed = Timed::redis().await;
    let clock = timed.server().unwrap().clock();
    for algorithm in ALGORITHMS {
        for back in BACK {
            let (rule, key) = (Rule::new("before", 3, 10 * SECOND).by(algorithm), fresh_key());
            let permit = timed.limiter.acquire_n(&rule, key, 3).await.unwrap();
            clock.set_micros(clock.now_micros() - u64::try_from(back.as_micros()).unwrap());
            exceeded(timed.limiter.acquire(&rule, key).await);
            timed.advance(lifetime(&rule) + MS);
            timed.limiter.acquire_n(&rule, key, 3).await.unwrap();
            let credited = permit.refund().await.unwrap();
            let twice = match algorithm {
                BUCKET | INTERVAL => back.as_secs() * 3 / 10,
                // The others may be in the permit's sub-window, which is shown twice.
                ADDED_UP if back > rule.period() / 2 => 3,
                _ => 0,
            };
            let remaining = timed.limiter.peek(&rule, key).await.unwrap().remaining();
            assert!(remaining <= twice.min(3), "{remaining}, {back:?} back, {}", timed.of(&rule));
            // A part of a token is said as one.
            let part = u64::from(algorithm == BUCKET);
            assert!(
                (remaining..=remaining + part).contains(&credited),
                "{credited}, {back:?} back, {}",
                timed.of(&rule)
            );
        }
    }
}

/// The charges expire as if the time had passed. After the clock is right again, no caller is
/// refused for longer than a charge can count.
#[tokio::test]
async fn a_server_clock_set_forward_and_back_again_bans_no_caller() {
    let timed = Timed::redis().await;
    let clock = timed.server().unwrap().clock();
    for algorithm in ALGORITHMS {
        for forward in BACK {
            let (rule, key) = (Rule::new("forward", 3, 10 * SECOND).by(algorithm), fresh_key());
            assert_eq!(admitted(&timed.limiter, &rule, key, 5).await, 3);
            let right = clock.now_micros();
            clock.set_micros(right + u64::try_from(forward.as_micros()).unwrap());
            let gained = admitted(&timed.limiter, &rule, key, 9).await;
            assert!(gained <= 3, "{gained} more, {forward:?} forward, {}", timed.of(&rule));
            clock.set_micros(right);
            assert_eq!(admitted(&timed.limiter, &rule, key, 9).await, 0, "{forward:?}, {}", timed.of(&rule));
            timed.advance(lifetime(&rule) + MS);
            assert_eq!(admitted(&timed.limiter, &rule, key, 9).await, 3, "{forward:?}, {}", timed.of(&rule));
        }
    }
}

/// Equal charges are merged into one script. On Redis before 7.2 the clock moves while it runs;
/// here it moves at each reading, by a hundredth of the period. The replies count down without a
/// gap, and only an empty counter refuses: all were decided at one time.
#[tokio::test]
async fn one_script_decides_all_its_charges_at_one_time() {
    let timed = Timed::redis().await;
    let clock = timed.server().unwrap().clock();
    let sliding = |buckets| Algorithm::SlidingWindow { buckets, weighted: true };
    for (algorithm, period) in [
        (sliding(1), SECOND),
        (sliding(10), SECOND),
        (sliding(100), SECOND),
        (FIXED, SECOND),
        (FIXED, 300 * SECOND),
        (ALIGNED, SECOND),
        (ALIGNED, 300 * SECOND),
        (LOG, SECOND),
        (BUCKET, SECOND),
        (INTERVAL, SECOND),
    ] {
        for round in 0..60 {
            let (rule, key) = (Rule::new("tick", 50, period).by(algorithm).with_denial_cache(false), fresh_key());
            timed.limiter.acquire_n(&rule, key, 30).await.unwrap();
            timed.advance(period / 60 * round);
            clock.tick(period / 100);
            let calls = join_all((0..40).map(|_| timed.limiter.acquire(&rule, key))).await;
            clock.tick(Duration::ZERO);
            timed.advance(2 * period); // sets the clock
            let context = format!("{}, round {round}", timed.of(&rule));
            // The first call travels alone.
            let together = calls.into_iter().skip(1);
            let remaining: Vec<_> = together
                .map(|call| call.map(|permit| permit.remaining()).map_err(|refused| exceeded(Err::<(), _>(refused))))
                .collect();
            let granted: Vec<_> = remaining.iter().flatten().copied().collect();
            for pair in granted.windows(2) {
                assert_eq!(pair[0], pair[1] + 1, "{context}: {granted:?}");
            }
            if granted.len() < remaining.len() {
                assert!(matches!(granted.last(), None | Some(0)), "{context}: refused after {granted:?}");
            }
        }
    }
}

/// The exception in the table of limits: an aligned window ends on the grid, so a clock that is set
/// back shows the next window again.
#[tokio::test]
async fn an_aligned_window_grants_its_count_again_after_each_clock_set_back() {
    let timed = Timed::redis().await;
    let clock = timed.server().unwrap().clock();
    let (rule, key) = (Rule::new("again", 3, SECOND).with_algorithm(ALIGNED).with_denial_cache(false), fresh_key());
    timed.advance(SECOND - MS);
    assert_eq!(admitted(&timed.limiter, &rule, key, 5).await, 3);
    timed.advance(MS);
    assert_eq!(admitted(&timed.limiter, &rule, key, 5).await, 3);
    for _ in 0..4 {
        clock.set_micros(clock.now_micros() - 2_000);
        assert_eq!(admitted(&timed.limiter, &rule, key, 5).await, 0);
        timed.advance(2 * MS);
        assert_eq!(admitted(&timed.limiter, &rule, key, 5).await, 3);
    }
}

/// Windows of a key are distinguished modulo 450.001 s. A step back by about that much keeps a
/// count for at most two periods.
#[tokio::test]
async fn a_clock_set_back_by_multiples_of_450_s_keeps_a_count_for_at_most_two_periods() {
    let timed = Timed::redis().await;
    let clock = timed.server().unwrap().clock();
    for algorithm in [FIXED, ALIGNED] {
        for back in [450_001_000, 900_002_000, 450_001_000 - 300_000, 450_001_000 + 300_000] {
            let (rule, key) =
                (Rule::new("wrap", 3, SECOND).with_algorithm(algorithm).with_denial_cache(false), fresh_key());
            timed.limiter.acquire_n(&rule, key, 3).await.unwrap();
            timed.advance(300 * MS);
            clock.set_micros(clock.now_micros() - back);
            let mut since = Duration::ZERO;
            // Several at once: only these calls use the number of the window alone.
            while !join_all((0..3).map(|_| timed.limiter.acquire(&rule, key))).await.into_iter().any(is_admitted) {
                timed.advance(50 * MS);
                since += 50 * MS;
                assert!(since <= 2 * SECOND + 50 * MS, "{back} µs back, {}", timed.of(&rule));
            }
        }
    }
}
