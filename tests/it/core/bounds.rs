//! The largest number of admitted calls in any window of a period: each bound is reached and never
//! exceeded.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ratelimit_runtime::{Algorithm, ManualClock, Permit, Refill, RequestPerMinute, Rule};

use crate::core::algorithms::leaky_bucket::Queue;
use crate::support::{ALIGNED, FIXED, LOG, Timed, admitted, fresh_key, in_memory};

const MICRO: Duration = Duration::from_micros(1);
const MS: Duration = Duration::from_millis(1);

fn rule(count: u64, period_ms: u64, algorithm: Algorithm) -> Rule {
    Rule::new("bound", count, Duration::from_millis(period_ms)).with_algorithm(algorithm)
}

fn bucket(burst: u64, refill: Refill) -> Algorithm {
    Algorithm::TokenBucket { burst, refill }
}

/// Costs, and when each was admitted.
#[derive(Debug, Default)]
struct Admissions(Vec<(Duration, u64)>);

impl Admissions {
    /// The most in any window of that length, half open. A window that holds the most may begin with an admission.
    fn most_in(&self, length: Duration) -> u64 {
        let in_window = |from: Duration| {
            self.0.iter().filter(|(at, _)| (from..from + length).contains(at)).map(|(_, cost)| cost).sum()
        };
        self.0.iter().map(|(from, _)| in_window(*from)).max().unwrap_or(0)
    }

    /// These admissions, at the times that a clock of whole milliseconds shows.
    fn in_ms(&self) -> Self {
        let cut = |at: Duration| Duration::from_millis(u64::try_from(at.as_millis()).unwrap());
        Self(self.0.iter().map(|(at, cost)| (cut(*at), *cost)).collect())
    }
}

/// Asks at each time for as much, all of which must be granted, with nothing left after it.
async fn exhaust(timed: &Timed, rule: &Rule, calls: &[(Duration, u64)]) -> Admissions {
    // From a full period on, whatever ran before.
    let period = u64::try_from(rule.period().as_millis()).unwrap();
    let into = u64::try_from(timed.now().as_micros()).unwrap() % (1000 * period);
    timed.advance(2 * rule.period() - Duration::from_micros(into));
    let (key, mut now) = (fresh_key(), Duration::ZERO);
    let mut admissions = Admissions::default();
    for &(at, cost) in calls {
        timed.advance(at - now);
        now = at;
        let context = || format!("{cost} at {at:?}, {}", timed.of(rule));
        let permit = timed.limiter.acquire_n(rule, key, cost).await;
        permit.unwrap_or_else(|error| panic!("{error}: {}", context()));
        assert_eq!(admitted(&timed.limiter, rule, key, 1).await, 0, "{}", context());
        admissions.0.push((at, cost));
    }
    admissions
}

/// Twice the count around the end of a window.
#[tokio::test]
async fn a_fixed_window_reaches_twice_its_count() {
    for timed in Timed::both().await {
        let rule = rule(100, 6000, FIXED);
        // Opened in the last microsecond of a millisecond, it ends a period after that millisecond began.
        let calls = [(999 * MICRO, 100), (6000 * MS, 100)];
        assert_eq!(exhaust(&timed, &rule, &calls).await.most_in(rule.period()), 200, "{}", timed.of(&rule));
        let rule = rule.with_algorithm(ALIGNED);
        let calls = [(5999 * MS, 100), (6000 * MS, 100)];
        assert_eq!(exhaust(&timed, &rule, &calls).await.most_in(rule.period()), 200, "{}", timed.of(&rule));
    }
}

#[tokio::test]
async fn a_sliding_log_reaches_its_count() {
    for timed in Timed::both().await {
        let rule = rule(100, 6000, LOG);
        let calls = [(Duration::ZERO, 100), (6000 * MS, 100), (12_000 * MS, 100)];
        assert_eq!(exhaust(&timed, &rule, &calls).await.most_in(rule.period()), 100, "{}", timed.of(&rule));
        // To the microsecond.
        let key = fresh_key();
        for _ in 0..3 {
            assert_eq!(admitted(&timed.limiter, &rule, key, 101).await, 100, "{}", timed.of(&rule));
            timed.advance(rule.period() - MICRO);
            assert_eq!(admitted(&timed.limiter, &rule, key, 1).await, 0, "{}", timed.of(&rule));
            timed.advance(MICRO);
        }
    }
}

/// The largest count of a sliding window, in a period that begins in the last millisecond of a
/// sub-window. All its calls came in that millisecond.
fn sliding_bound(rule: &Rule, buckets: u32) -> u64 {
    let size = u64::try_from((rule.period() / buckets).as_millis()).unwrap();
    let count = rule.count();
    (2 * count - (2 * count).div_ceil(size)).max(count)
}

#[tokio::test]
async fn a_sliding_window_reaches_its_bound() {
    for timed in Timed::both().await {
        for (buckets, count, expected) in [(1, 100, 196), (3, 100, 190), (60, 100, 100), (1, 7, 13), (3, 7, 13)] {
            let rule = rule(count, 60, Algorithm::SlidingWindow { buckets: buckets.into(), weighted: true });
            assert_eq!(sliding_bound(&rule, buckets), expected);
            let size = rule.period() / buckets;
            // The whole count in the last millisecond of a sub-window, then all that fits in the
            // last millisecond of the period from then on.
            let last = size - MS;
            let mut calls = vec![(last, count), (last + rule.period() - MS, expected - count)];
            calls.retain(|(_, cost)| *cost > 0);
            let admissions = exhaust(&timed, &rule, &calls).await;
            assert_eq!(admissions.most_in(rule.period()), expected, "{}", timed.of(&rule));
            assert_eq!(admissions.most_in(rule.period() - size), if buckets == 1 { 0 } else { count });
        }
    }
}

/// Twice the count, whatever the number of sub-windows is: at the end of one, and at the start of the
/// one that pushes it out.
#[tokio::test]
async fn sub_windows_that_are_added_up_reach_twice_their_count() {
    for timed in Timed::both().await {
        for buckets in [1, 2, 3, 60] {
            let rule = rule(100, 60, Algorithm::SlidingWindow { buckets: buckets.into(), weighted: false });
            let size = rule.period() / buckets;
            let calls = [(size - MS, 100), (rule.period(), 100)];
            let admissions = exhaust(&timed, &rule, &calls).await;
            assert_eq!(admissions.most_in(rule.period() - size + 2 * MS), 200, "{}", timed.of(&rule));
            assert_eq!(admissions.most_in(rule.period() - size + MS), 100, "{}", timed.of(&rule));
        }
    }
}

/// The store reads its clock in whole milliseconds. A finer clock sees a period that is up to a
/// millisecond longer.
#[tokio::test]
async fn a_finer_clock_sees_one_millisecond_more_of_a_sliding_window() {
    for timed in Timed::both().await {
        let rule = rule(100, 60, Algorithm::SlidingWindow { buckets: 3, weighted: true });
        let calls = [(19 * MS + 999 * MICRO, 100), (79 * MS, 95)];
        assert_eq!(exhaust(&timed, &rule, &calls).await.most_in(rule.period()), 195, "{}", timed.of(&rule));
    }
}

/// A full bucket is used at once, and then each token that comes back within a period.
#[tokio::test]
async fn a_token_bucket_reaches_burst_and_count() {
    for timed in Timed::both().await {
        for burst in [20, 100, 250] {
            let rule = rule(100, 60, bucket(burst, Refill::Greedy));
            let mut calls = vec![(999 * MICRO, burst)];
            calls.extend((1..=60).map(|ms| (ms * MS, u64::from(ms * 100 / 60 - (ms - 1) * 100 / 60))));
            let admissions = exhaust(&timed, &rule, &calls).await;
            assert_eq!(admissions.most_in(rule.period()), burst + 100, "{}", timed.of(&rule));
        }
    }
}

/// One that holds less than the count gets no more than it can hold.
#[tokio::test]
async fn a_token_bucket_refilled_at_intervals_reaches_burst_and_count() {
    for timed in Timed::both().await {
        for burst in [20, 100, 250] {
            let rule = rule(100, 60, bucket(burst, Refill::Interval));
            let calls = [(999 * MICRO, burst), (60 * MS, burst.min(100))];
            let admissions = exhaust(&timed, &rule, &calls).await;
            assert_eq!(admissions.most_in(rule.period()), burst + burst.min(100), "{}", timed.of(&rule));
        }
    }
}

/// Small numbers that come again in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Many schedules of many calls on small numbers: times in half milliseconds, costs from 1 to the
/// whole count.
async fn schedules(rule: &Rule, mut check: impl FnMut(&Admissions)) {
    let (clock, period) = (ManualClock::new(), rule.period());
    let limiter = in_memory(&clock).await;
    let mut numbers = Numbers(0x5EED);
    for key in 0..400_u64 {
        let (mut admissions, mut permits) = (Admissions::default(), VecDeque::new());
        let hasty = numbers.below(3);
        for _ in 0..30 {
            let halves = 2 * u64::try_from(period.as_millis()).unwrap();
            let pause = match numbers.below(4) + hasty {
                0 => numbers.below(halves),
                1 => halves / 2 + numbers.below(halves / 2),
                2 => numbers.below(halves / 4 + 2),
                _ => numbers.below(3),
            };
            clock.advance(Duration::from_micros(500 * pause));
            let remaining = limiter.peek(rule, key).await.unwrap().remaining();
            let cost = if numbers.below(3) == 0 { 1 + numbers.below(remaining.max(1)) } else { remaining };
            if let Ok(permit) = limiter.acquire_n(rule, key, cost).await {
                admissions.0.push((clock.now(), cost));
                permits.push_back((admissions.0.len() - 1, permit));
            }
            // What is refunded was not admitted.
            if numbers.below(8) == 0
                && let Some((at, permit)) = permits.pop_front()
            {
                admissions.0[at].1 -= permit.refund().await.unwrap();
            }
        }
        check(&admissions);
        // Each schedule begins at another place within a period.
        clock.advance(3 * period + u32::try_from(key).unwrap() * MS / 2);
    }
}

#[tokio::test]
async fn no_fixed_window_admits_more_than_twice_its_count() {
    for (count, period) in [(1, 1), (3, 7), (7, 4), (5, 20)] {
        let mut most = 0;
        for algorithm in [FIXED, ALIGNED] {
            let rule = rule(count, period, algorithm);
            schedules(&rule, |admissions| {
                let reached = admissions.most_in(rule.period());
                assert!(reached <= 2 * count, "{rule:?}: {reached} in {admissions:?}");
                most = most.max(reached);
            })
            .await;
        }
        assert_eq!(most, 2 * count, "the schedules do not reach what they are to look for");
    }
}

/// Clients know where an aligned window begins, so each has exactly its count.
#[tokio::test]
async fn no_aligned_window_admits_more_than_its_count() {
    let rule = rule(100, 6000, ALIGNED);
    for timed in Timed::both().await {
        let (key, mut in_window) = (fresh_key(), [0; 8]);
        for step in 0..400_usize {
            let granted = timed.limiter.acquire_n(&rule, key, 1 + step as u64 % 3).await;
            in_window[step * 100 / 6000] += granted.map_or(0, |_| 1 + step as u64 % 3);
            timed.advance(100 * MS);
        }
        assert!(in_window[..6].iter().all(|admitted| (98..=100).contains(admitted)), "{in_window:?}");
    }
}

#[tokio::test]
async fn no_sliding_log_admits_more_than_its_count() {
    for (count, period) in [(1, 1), (3, 7), (7, 4), (5, 20)] {
        let (rule, mut most) = (rule(count, period, LOG), 0);
        schedules(&rule, |admissions| {
            let reached = admissions.most_in(rule.period());
            assert!(reached <= count, "{rule:?}: {reached} in {admissions:?}");
            most = most.max(reached);
        })
        .await;
        assert_eq!(most, count);
    }
}

/// Measured by the clock of the store, in whole milliseconds. A window that is one sub-window
/// shorter never admits more than the count.
#[tokio::test]
async fn no_sliding_window_admits_more_than_its_bound() {
    for (count, period, buckets) in [(1, 1, 1), (3, 7, 1), (9, 4, 1), (20, 9, 1), (3, 12, 3), (20, 12, 3), (20, 6, 6)] {
        let rule = rule(count, period, Algorithm::SlidingWindow { buckets: buckets.into(), weighted: true });
        let (bound, shorter) = (sliding_bound(&rule, buckets), rule.period() - rule.period() / buckets);
        let mut most = 0;
        schedules(&rule, |admissions| {
            let in_ms = admissions.in_ms();
            let reached = in_ms.most_in(rule.period());
            assert!(reached <= bound, "{rule:?}: {reached} of {bound} in {in_ms:?}");
            assert!(in_ms.most_in(shorter) <= count, "{rule:?}: {in_ms:?}");
            most = most.max(reached);
        })
        .await;
        assert_eq!(most, bound, "the schedules do not reach what they are to look for: {rule:?}");
    }
}

/// A window that is one sub-window shorter never admits more than the count.
#[tokio::test]
async fn no_sub_windows_that_are_added_up_admit_more_than_twice_the_count() {
    for (count, period, buckets) in [(1, 1, 1), (3, 7, 1), (3, 12, 3), (20, 12, 3), (5, 8, 2), (20, 6, 6)] {
        let rule = rule(count, period, Algorithm::SlidingWindow { buckets: buckets.into(), weighted: false });
        let mut most = 0;
        schedules(&rule, |admissions| {
            let in_ms = admissions.in_ms();
            let reached = in_ms.most_in(rule.period());
            assert!(reached <= 2 * count, "{rule:?}: {reached} in {in_ms:?}");
            assert!(in_ms.most_in(rule.period() - rule.period() / buckets) <= count, "{rule:?}: {in_ms:?}");
            most = most.max(reached);
        })
        .await;
        // Sub-windows of one millisecond have no end that is not their start.
        let bound = if period == u64::from(buckets) { count } else { 2 * count };
        assert_eq!(most, bound, "the schedules do not reach what they are to look for: {rule:?}");
    }
}

#[tokio::test]
async fn no_token_bucket_admits_more_than_burst_and_count() {
    for (count, period) in [(1, 1), (3, 7), (7, 4), (5, 20)] {
        for burst in [1, 2, count, 2 * count + 1] {
            for (refill, bound) in [(Refill::Greedy, burst + count), (Refill::Interval, burst + count.min(burst))] {
                let (rule, mut most) = (rule(count, period, bucket(burst, refill)), 0);
                schedules(&rule, |admissions| {
                    let reached = admissions.most_in(rule.period());
                    assert!(reached <= bound, "{rule:?}: {reached} of {bound} in {admissions:?}");
                    most = most.max(reached);
                })
                .await;
                assert!(most >= burst, "{rule:?}");
            }
        }
    }
}

type Waiting = Pin<Box<dyn Future<Output = Result<Permit, RequestPerMinute>> + Send>>;

/// Calls that sleep until their slots, on a clock that is moved by hand.
#[derive(Default)]
struct Line {
    waiting: Vec<(u64, Waiting)>,
    /// By the times of their slots.
    admissions: Admissions,
}

impl Line {
    /// Lets everybody go whose slot has come.
    fn serve(&mut self, now: Duration) {
        self.waiting.retain_mut(|(cost, call)| match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => {
                if answer.is_ok() {
                    self.admissions.0.push((now, *cost));
                }
                false
            }
            Poll::Pending => true,
        });
    }
}

/// Measured by the slots on the clock of the store. A last call of several slots runs at the first
/// of them.
#[tokio::test]
async fn no_leaky_bucket_admits_more_than_its_count() {
    for (count, period, queue, largest) in
        [(1, 1, 3, 1), (3, 7, 9, 1), (7, 4, 20, 1), (5, 20, 0, 1), (5, 20, 12, 3), (3, 7, 9, 9), (7, 4, 20, 5)]
    {
        let rule = rule(count, period, Algorithm::LeakyBucket { queue });
        let (clock, mut numbers, mut most) = (ManualClock::new(), Numbers(0x5EED), 0);
        let limiter = in_memory(&clock).await;
        for key in 0..60_u64 {
            let mut line = Line::default();
            for _ in 0..8 * period + 40 {
                for _ in 0..numbers.below(2) * numbers.below(8) {
                    let cost = if numbers.below(2) == 0 { 1 } else { 1 + numbers.below(largest) };
                    line.waiting.push((cost, Box::pin(limiter.acquire_n(&rule, key, cost))));
                }
                line.serve(clock.now());
                clock.advance(MS / 2);
            }
            while !line.waiting.is_empty() {
                line.serve(clock.now());
                clock.advance(MS / 2);
            }
            let reached = line.admissions.in_ms().most_in(rule.period());
            assert!(reached < count + largest, "{rule:?}: {reached} in {:?}", line.admissions);
            most = most.max(reached);
            // A finer clock sees up to a millisecond more, and what it holds.
            let finer = line.admissions.most_in(rule.period());
            assert!(finer < count + count.div_ceil(period) + largest, "{rule:?}: {finer} in {:?}", line.admissions);
        }
        assert!(most >= count.min(queue + 1), "{most} of {rule:?}");
    }
}

/// The first of a queue may run late in the millisecond of its slot, the others at its beginning.
#[tokio::test]
async fn a_finer_clock_sees_one_call_more_of_a_leaky_bucket() {
    for timed in Timed::both().await {
        let rule = rule(10, 100, Algorithm::LeakyBucket { queue: 40 });
        timed.advance(999 * MICRO);
        let mut line = Queue::new(&timed, rule);
        line.join(1).await;
        timed.advance(9 * MS + MICRO);
        let (mut ran, start) = (vec![(999 * MICRO, 1)], timed.now());
        for _ in 0..10 {
            line.join(1).await;
            ran.push((10 * MS + (timed.now() - start), 1));
            line.pass(10).await;
        }
        assert_eq!(line.ran().len(), 11, "each of them ran at once");
        assert_eq!(Admissions(ran).most_in(rule.period()), 11, "{}", timed.of(&rule));
    }
}

/// All of them come at once, or one by one; the last takes several slots.
#[tokio::test]
async fn a_leaky_bucket_reaches_its_count() {
    for timed in Timed::both().await {
        for (costs, expected) in
            [([1; 25], 10), ([1, 1, 1, 1, 1, 1, 1, 1, 1, 5, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], 14)]
        {
            let rule = rule(10, 100, Algorithm::LeakyBucket { queue: 40 });
            let mut line = Queue::new(&timed, rule);
            for cost in costs {
                line.join(cost).await;
            }
            line.pass(300).await;
            let ran = line.ran().into_iter().map(|(number, ms)| (Duration::from_millis(ms), costs[number]));
            let admissions = Admissions(ran.collect());
            assert_eq!(admissions.0.len(), costs.len());
            assert_eq!(admissions.most_in(rule.period()), expected, "{}", timed.of(&rule));
        }
    }
}
