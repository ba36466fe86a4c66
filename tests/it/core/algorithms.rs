//! What is special to one algorithm, on both stores.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ratelimit_harness::RedisServer;
use ratelimit_runtime::{
    Algorithm, Cause, Decision, Key, Limiter, ManualClock, Permit, Refill, RequestPerMinute, Rule,
};
use tokio::task::JoinHandle;

use crate::core::state::dump;
use crate::support::{
    ALGORITHMS, ALIGNED, By, FIXED, INTERVAL, Timed, admitted, ends, exceeded, fresh_key, is_admitted, settle,
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(86_400);

fn bucket(burst: u64, refill: Refill) -> Algorithm {
    Algorithm::TokenBucket { burst, refill }
}

fn sliding(buckets: u64) -> Algorithm {
    Algorithm::SlidingWindow { buckets }
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap()
}

async fn peek(timed: &Timed, rule: &Rule, key: u64) -> Decision {
    timed.limiter.peek(rule, key).await.unwrap()
}

/// 84 in the last minute and 36 in this one, a quarter of a minute old: 84 × 45/60 + 36 = 99.
#[tokio::test]
async fn a_sliding_window_weights_the_last_one_by_its_overlap() {
    for timed in Timed::both().await {
        let (rule, key) = (Rule::new("weighted", 100, MINUTE).with_algorithm(sliding(1)), fresh_key());
        timed.advance(MINUTE / 2);
        timed.limiter.acquire_n(&rule, key, 84).await.unwrap();
        timed.advance(MINUTE / 2 + MINUTE / 4);
        let permit = timed.limiter.acquire_n(&rule, key, 36).await.unwrap();
        assert_eq!((permit.remaining(), permit.limit()), (1, 100), "{}", timed.name());
        assert_eq!(permit.reset_after(), MINUTE + 3 * MINUTE / 4, "{}", timed.name());
        assert_eq!(exceeded(timed.limiter.acquire_n(&rule, key, 2).await).remaining(), 1, "{}", timed.name());
        timed.limiter.acquire(&rule, key).await.unwrap();
        // 62 of the 84 count from 84 × 44.286/60 on.
        assert_eq!(exceeded(timed.limiter.acquire(&rule, key).await).retry_after(), Some(715 * MS), "{}", timed.name());
        timed.advance(715 * MS);
        assert_eq!(admitted(&timed.limiter, &rule, key, 9).await, 1, "{}", timed.name());
    }
}

/// Six sub-windows of ten seconds: whole ones count whole, and only the oldest fades.
#[tokio::test]
async fn a_sliding_window_of_several_buckets_weights_the_oldest() {
    for timed in Timed::both().await {
        let (rule, key) = (Rule::new("six", 100, MINUTE).with_algorithm(sliding(6)), fresh_key());
        for cost in [40, 20, 10] {
            timed.limiter.acquire_n(&rule, key, cost).await.unwrap();
            timed.advance(10 * SECOND);
        }
        for (pause, remaining) in [(0, 30), (29, 30), (1, 30), (5, 50), (5, 70), (5, 80), (5, 90), (9, 99), (1, 100)] {
            timed.advance(pause * SECOND);
            assert_eq!(peek(&timed, &rule, key).await.remaining(), remaining, "{}", timed.name());
        }
    }
}

/// Less than half of the rate: tokens come faster than such a bucket could be asked for two of them.
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

/// From one a day to ten million a second: what was admitted is what has come back, to the token, after many periods.
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

/// One and a half a millisecond, one in 16.4: parts of a token, and of a millisecond, are kept from call to call, as long as the bucket
/// is never full.
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

/// A count that comes at once each period, in whole periods from the first call on.
#[tokio::test]
async fn a_bucket_refilled_at_once_keeps_its_rate() {
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

/// The largest numbers that are no count, used up twice; one more is told to be too many.
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

/// The message names what is too much, and the most there may be.
async fn misconfigured(timed: &Timed, rule: Rule, most: u64) {
    let refused = timed.limiter.acquire(&rule, 1).await.unwrap_err();
    assert_eq!(refused.cause(), Cause::Misconfigured, "{}", timed.of(&rule));
    assert!(refused.to_string().contains(&format!("{most} at most")), "{refused}");
}

#[tokio::test]
async fn buckets_that_make_no_sense_are_misconfigured() {
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

/// What the bucket misses stays, and what it can hold is another number from the next call on.
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
async fn a_changed_count_changes_the_rate() {
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

/// Buckets of a window and refills of a token bucket are part of the counter's name, as the algorithm is.
#[tokio::test]
async fn changed_buckets_and_refills_start_fresh() {
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

/// A server says what is left of a window in one number, or, where that would not be exact any more, in three.
#[tokio::test]
async fn a_window_of_any_size_tells_its_numbers() {
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

/// Of six algorithms, with costs of 0 among them: all of them or none, whichever refuses.
#[tokio::test]
async fn rules_of_all_algorithms_are_one_decision() {
    for timed in Timed::both().await {
        let rules = ALGORITHMS.map(|algorithm| Rule::new("stack", 5, MINUTE).by(algorithm));
        for costs in [[1; 6], [0, 1, 2, 0, 2, 1], [2, 0, 0, 1, 0, 0], [0; 6]] {
            for full in 0..6 {
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

/// Calls of one key that sleep until their slots.
pub(crate) struct Queue<'a> {
    timed: &'a Timed,
    rule: Rule,
    key: u64,
    started: Duration,
    calls: Vec<JoinHandle<Result<(), RequestPerMinute>>>,
    ran: Arc<Mutex<Vec<(usize, Duration, Permit)>>>,
}

impl<'a> Queue<'a> {
    pub(crate) fn new(timed: &'a Timed, rule: Rule) -> Self {
        let (key, started) = (fresh_key(), timed.now());
        Self { timed, rule, key, started, calls: Vec::new(), ran: Arc::default() }
    }

    /// A call, which has its slot, or has run or been refused, when this returns. Its number.
    pub(crate) async fn join(&mut self, cost: u64) -> usize {
        let limiter = self.timed.limiter.clone();
        let (rule, key) = (self.rule, self.key);
        self.spawn(cost, async move { limiter.acquire_n(&rule, key, cost).await }).await
    }

    async fn join_within(&mut self, longest: Duration) -> usize {
        let limiter = self.timed.limiter.clone();
        let (rule, key) = (self.rule, self.key);
        self.spawn(1, async move { limiter.acquire_within(&rule, key, longest).await }).await
    }

    async fn spawn(
        &mut self,
        cost: u64,
        call: impl Future<Output = Result<Permit, RequestPerMinute>> + Send + 'static,
    ) -> usize {
        let expected = self.remaining().await.checked_sub(cost);
        let (number, ran) = (self.calls.len(), Arc::clone(&self.ran));
        let clock = self.timed.clock();
        self.calls.push(tokio::spawn(async move {
            let permit = call.await?;
            ran.lock().unwrap().push((number, clock.now(), permit));
            Ok(())
        }));
        let decided = async {
            while !self.calls[number].is_finished() && Some(self.remaining().await) != expected {
                tokio::time::sleep(MS).await;
            }
        };
        ends(decided).await;
        settle().await;
        number
    }

    async fn remaining(&self) -> u64 {
        peek(self.timed, &self.rule, self.key).await.remaining()
    }

    /// Time goes by, a millisecond at a time.
    pub(crate) async fn pass(&self, ms: u64) {
        for _ in 0..ms {
            self.timed.advance(MS);
            settle().await;
        }
    }

    /// The calls that have run, in that order, and how many milliseconds after the start they did.
    pub(crate) fn ran(&self) -> Vec<(usize, u64)> {
        self.ran.lock().unwrap().iter().map(|(number, at, _)| (*number, ms(*at - self.started))).collect()
    }

    /// The permit of a call that has run.
    fn permit(&self, number: usize) -> Permit {
        let mut ran = self.ran.lock().unwrap();
        let at = ran.iter().position(|(other, ..)| *other == number).expect("it has run");
        ran.remove(at).2
    }

    /// A refusal that came at once.
    async fn refused(&mut self, number: usize) -> RequestPerMinute {
        assert!(
            self.calls[number].is_finished(),
            "it waits, or the clock would have to be moved to hear of its refusal"
        );
        let call = std::mem::replace(&mut self.calls[number], tokio::spawn(async { Ok(()) }));
        let refused = call.await.unwrap().unwrap_err();
        assert_eq!(refused.cause(), Cause::Exceeded, "{refused}");
        refused
    }

    /// The caller goes, and what it was charged is back, if it was the last one's.
    async fn leave(&self, number: usize, remaining: u64) {
        self.calls[number].abort();
        let back = async {
            while !self.calls[number].is_finished() || self.remaining().await < remaining {
                tokio::time::sleep(MS).await;
            }
        };
        ends(back).await;
        settle().await;
        assert_eq!(self.remaining().await, remaining, "{}", self.timed.of(&self.rule));
    }
}

fn leaky(count: u64, queue: u64) -> Rule {
    Rule::new("leaky", count, SECOND).with_algorithm(Algorithm::LeakyBucket { queue })
}

#[tokio::test]
async fn slots_are_evenly_spaced_and_in_order() {
    for timed in Timed::both().await {
        for count in [10, 7, 1000, 1500] {
            let mut line = Queue::new(&timed, leaky(count, 5));
            for _ in 0..6 {
                line.join(1).await;
            }
            line.pass(6 * 1000 / count + 1).await;
            let expected: Vec<_> =
                (0_u64..6).map(|slot| (usize::try_from(slot).unwrap(), (slot * 1000).div_ceil(count))).collect();
            assert_eq!(line.ran(), expected, "{}", timed.of(&line.rule));
        }
    }
}

/// Whoever comes when others wait comes after them; whoever comes when nobody does runs at once.
#[tokio::test]
async fn a_slot_is_no_earlier_than_the_call() {
    for timed in Timed::both().await {
        let mut line = Queue::new(&timed, leaky(10, 9));
        line.join(1).await;
        line.pass(30).await;
        line.join(3).await;
        line.join(1).await;
        line.pass(620).await;
        line.join(1).await;
        line.join(1).await;
        line.pass(100).await;
        assert_eq!(line.ran(), [(0, 0), (1, 100), (2, 400), (3, 650), (4, 750)], "{}", timed.name());
    }
}

/// One runs and so many wait; the next one is told when there is room, and that is when there is.
#[tokio::test]
async fn more_than_the_queue_is_refused() {
    for timed in Timed::both().await {
        for queue in [0, 1, 4] {
            let mut line = Queue::new(&timed, leaky(10, queue));
            for _ in 0..=queue {
                line.join(1).await;
            }
            let stored = timed.server().map(dump);
            let number = line.join(1).await;
            let refused = line.refused(number).await;
            assert_eq!((refused.limit(), refused.remaining()), (queue + 1, 0), "{}", timed.of(&line.rule));
            assert_eq!(refused.retry_after(), Some(100 * MS), "{}", timed.of(&line.rule));
            assert_eq!(timed.server().map(dump), stored, "a refusal writes nothing");
            let never = timed.limiter.acquire_n(&line.rule, line.key, queue + 2).await.unwrap_err();
            assert_eq!(never.cause(), Cause::NeverFits, "{never}");
            line.pass(99).await;
            let number = line.join(1).await;
            assert_eq!(line.refused(number).await.retry_after(), Some(MS), "{}", timed.of(&line.rule));
            line.pass(1).await;
            let last = line.join(1).await;
            line.pass(queue * 100).await;
            assert_eq!(line.ran().last(), Some(&(last, (queue + 1) * 100)), "{}", timed.of(&line.rule));
        }
    }
}

/// Said at once: a slot stays where it is, however long a caller waits for a better one.
#[tokio::test]
async fn a_slot_beyond_the_longest_wait_is_refused_and_not_reserved() {
    for timed in Timed::both().await {
        let mut line = Queue::new(&timed, leaky(10, 50));
        for _ in 0..5 {
            line.join(1).await;
        }
        let stored = timed.server().map(dump);
        for (longest, retry_after) in [(0, 500), (1, 499), (250, 250), (499, 1)] {
            let number = line.join_within(longest * MS).await;
            let refused = line.refused(number).await;
            assert_eq!(refused.retry_after(), Some(retry_after * MS), "{longest} ms, {}", timed.name());
            assert_eq!(refused.remaining(), 46, "there is room, but not in time");
        }
        assert_eq!(timed.server().map(dump), stored, "a refusal writes nothing");
        let last = line.join_within(500 * MS).await;
        line.pass(500).await;
        assert_eq!(line.ran().last(), Some(&(last, 500)), "{}", timed.name());
    }
}

/// The queue is full: whoever is ready to wait waits for a place in it, and then for the slot.
#[tokio::test]
async fn a_caller_may_wait_for_a_place_in_the_queue() {
    for timed in Timed::both().await {
        let mut line = Queue::new(&timed, leaky(10, 1));
        line.join(1).await;
        line.join(1).await;
        let limiter = timed.limiter.clone();
        let (rule, key, clock, started) = (line.rule, line.key, timed.clock(), timed.now());
        let late = exceeded(ends(limiter.acquire_within(&rule, key, 199 * MS)).await);
        assert_eq!(late.retry_after(), Some(100 * MS), "{}", timed.name());
        assert_eq!(clock.now(), started, "it is known at once that no slot comes in time");
        let waiting = tokio::spawn(async move { limiter.acquire_within(&rule, key, 200 * MS).await.map(drop) });
        settle().await;
        assert_eq!(line.remaining().await, 0, "{}", timed.name());
        timed.advance(100 * MS);
        let has_a_place = async {
            while line.remaining().await > 0 {
                tokio::time::sleep(MS).await;
            }
        };
        ends(has_a_place).await;
        line.pass(99).await;
        assert!(!waiting.is_finished(), "{}", timed.name());
        line.pass(1).await;
        ends(waiting).await.unwrap().unwrap();
    }
}

/// The next one has the slot, and not the one after it.
#[tokio::test]
async fn a_caller_that_leaves_last_frees_its_slot() {
    for timed in Timed::both().await {
        let mut line = Queue::new(&timed, leaky(10, 9));
        for _ in 0..3 {
            line.join(1).await;
        }
        line.pass(50).await;
        line.leave(2, 8).await;
        let next = line.join(1).await;
        line.pass(200).await;
        assert_eq!(line.ran(), [(0, 0), (1, 100), (next, 200)], "{}", timed.name());
    }
}

/// Those behind it keep their slots: nobody comes closer to another than the rule says.
#[tokio::test]
async fn a_caller_that_leaves_the_middle_keeps_the_spacing() {
    for timed in Timed::both().await {
        let mut line = Queue::new(&timed, leaky(10, 9));
        for _ in 0..4 {
            line.join(1).await;
        }
        line.leave(1, 6).await;
        line.leave(2, 6).await;
        line.leave(3, 7).await;
        // The slots of the two in the middle pass unused, as does nothing behind them.
        line.join(1).await;
        line.pass(400).await;
        assert_eq!(line.ran(), [(0, 0), (4, 300)], "{}", timed.name());
    }
}

#[tokio::test]
async fn a_slot_can_be_refunded_when_it_has_come() {
    for timed in Timed::both().await {
        let mut line = Queue::new(&timed, leaky(10, 9));
        line.join(1).await;
        line.join(3).await;
        line.pass(150).await;
        assert_eq!(line.permit(0).refund().await.unwrap(), 0, "somebody has come since: {}", timed.name());
        assert_eq!(line.permit(1).refund().await.unwrap(), 3, "{}", timed.name());
        let next = line.join(1).await;
        line.pass(1).await;
        assert_eq!(line.ran(), [(next, 150)], "{}", timed.name());

        line.pass(200).await;
        assert_eq!(line.permit(next).refund().await.unwrap(), 0, "its slot is over: {}", timed.name());
        assert_eq!(line.remaining().await, 10, "{}", timed.name());
    }
}

/// Raised or lowered: nobody's slot moves, and the next ones come behind them at the new rate. What is ahead is counted in calls, so a
/// lower rate also keeps those waiting longer who come next.
#[tokio::test]
async fn a_changed_count_keeps_the_slots_that_were_given() {
    for timed in Timed::both().await {
        for (count, next) in [(100, [300, 310, 320]), (5, [600, 800, 1000])] {
            let mut line = Queue::new(&timed, leaky(10, 9));
            for _ in 0..3 {
                line.join(1).await;
            }
            line.rule = leaky(count, 99);
            for _ in 0..3 {
                line.join(1).await;
            }
            line.pass(1000).await;
            let expected = [(0, 0), (1, 100), (2, 200), (3, next[0]), (4, next[1]), (5, next[2])];
            assert_eq!(line.ran(), expected, "{}", timed.of(&line.rule));
        }
    }
}

#[tokio::test]
async fn a_changed_queue_acts_on_the_next_call() {
    for timed in Timed::both().await {
        let mut line = Queue::new(&timed, leaky(10, 1));
        line.join(1).await;
        line.join(1).await;
        let refused = line.join(1).await;
        line.refused(refused).await;
        line.rule = leaky(10, 2);
        let last = line.join(1).await;
        line.rule = leaky(10, 0);
        let lowered = line.join(1).await;
        let refused = line.refused(lowered).await;
        assert_eq!((refused.limit(), refused.remaining()), (1, 0), "{}", timed.name());
        assert_eq!(refused.retry_after(), Some(300 * MS), "{}", timed.name());
        line.pass(200).await;
        assert_eq!(line.ran(), [(0, 0), (1, 100), (last, 200)], "{}", timed.name());
    }
}

/// The deadline is about the store. It answers within it, and the slot comes later.
#[tokio::test]
async fn the_deadline_is_over_before_the_slot_comes() {
    let (server, clock, deadline) = (RedisServer::start(), ManualClock::new(), SECOND);
    let limiter = Limiter::builder(&server.url()).clock(clock.clone()).deadline(deadline).build().await.unwrap();
    let rule = Rule::new("deadline", 1, 3600 * SECOND).with_algorithm(Algorithm::LeakyBucket { queue: 1 });
    limiter.acquire(&rule, 1).await.unwrap();
    let waiting = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire(&rule, 1).await.map(|permit| permit.remaining()) }
    });
    tokio::time::sleep(deadline + deadline / 2).await;
    assert_eq!(limiter.peek(&rule, 1).await.unwrap().remaining(), 0);
    assert!(!waiting.is_finished(), "{:?}", waiting.await);
    clock.advance(3600 * SECOND);
    assert_eq!(ends(waiting).await.unwrap().unwrap(), 0);
}

#[tokio::test]
async fn a_leaky_bucket_stands_alone() {
    for timed in Timed::both().await {
        let (leaky, key) = (leaky(10, 9), fresh_key());
        for algorithm in ALGORITHMS {
            let other = Rule::new("other", 10, SECOND).by(algorithm);
            let charges = [(&leaky, Key::new(key), 1), (&other, Key::new(key), 1)];
            let turned = [charges[1].clone(), charges[0].clone()];
            for charges in [&charges, &turned] {
                let refused = timed.limiter.acquire_all(charges).await.unwrap_err();
                assert_eq!((refused.cause(), refused.rule()), (Cause::Misconfigured, "leaky"), "{refused}");
                assert!(refused.to_string().contains("stands alone"), "{refused}");
            }
            assert_eq!(peek(&timed, &other, key).await.remaining(), 10, "{}", timed.of(&other));
        }
        assert_eq!(peek(&timed, &leaky, key).await.remaining(), 10, "{}", timed.name());
        // By itself it may: two charges of one counter are one.
        let alone = [(&leaky, Key::new(key), 1), (&leaky, Key::new(key), 1)];
        assert_eq!(timed.limiter.acquire_all(&alone).await.unwrap().remaining(), 8, "{}", timed.name());
    }
}

/// Set back by whatever it is: slots are no further apart than before, nobody waits longer than the queue is long, and a key
/// somebody made permanent gets an end again.
#[tokio::test]
async fn a_queue_survives_what_happens_to_a_server() {
    let timed = Timed::redis().await;
    let server = timed.server().unwrap();
    for back in [MS, SECOND, 400 * DAY] {
        let mut line = Queue::new(&timed, leaky(10, 3));
        for _ in 0..3 {
            line.join(1).await;
        }
        server.clock().set_micros(server.clock().now_micros() - u64::try_from(back.as_micros()).unwrap());
        let next = line.join(1).await;
        let number = line.join(1).await;
        assert_eq!(line.refused(number).await.retry_after(), Some(100 * MS), "{back:?}");
        line.pass(400).await;
        assert_eq!(line.ran(), [(0, 0), (1, 100), (2, 200), (next, 300)], "{back:?}");
    }
    let mut line = Queue::new(&timed, leaky(10, 3));
    for _ in 0..3 {
        line.join(1).await;
    }
    let name = format!("leaky:{{{}}}:leaky:1000", line.key).into_bytes();
    let (end, _) = dump(server)[&name].clone();
    server.command(&[b"PERSIST", &name]);
    let next = line.join(1).await;
    let (healed, _) = dump(server)[&name].clone();
    assert_eq!(healed, end + 100);
    line.pass(400).await;
    assert_eq!(line.ran(), [(0, 0), (1, 100), (2, 200), (next, 300)]);
}

/// A bucket of a single token that comes once in a period differs by nothing from a window.
#[tokio::test]
async fn one_in_a_period_is_one_by_every_bucket() {
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
