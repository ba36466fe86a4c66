//! Refunds of a bucket, compared with the path that its deficit would have taken without them.

use proptest::prelude::*;
use std::time::Duration;

use super::{super::contract::evaluate, *};
use crate::decision::Decision;

/// A charge to a bucket, in units.
#[derive(Clone, Copy)]
struct Made {
    rule: Rule,
    at_ms: u64,
    /// The amount that was not refunded.
    units: u64,
    receipt: [u64; 2],
    settles: bool,
    is_open: bool,
}

struct Run {
    rule: Rule,
    bucket: Bucket,
    now_ms: u64,
    made: Vec<Made>,
}

impl Run {
    fn new(burst: u64, count: u64, refill: Refill) -> Self {
        let rule = Rule::new("item", count, Duration::from_millis(100));
        let rule = rule.with_algorithm(Algorithm::TokenBucket { burst, refill });
        let mut bucket = Bucket::default();
        bucket.restart(&rule, 1_000_000);
        Self { rule, bucket, now_ms: 1000, made: Vec::new() }
    }

    fn unit(&self) -> u64 {
        BucketParams::of(&self.rule).unit
    }

    /// Charges as much of a cost as fits.
    fn charge(&mut self, cost: u64, settles: bool) {
        let query = ChargeQuery { settles, ..ChargeQuery::of(&self.rule, cost) };
        let remaining = evaluate(&mut self.bucket, &query, self.now_ms * 1000).decision.remaining;
        let cost = cost.min(remaining);
        if cost == 0 {
            return;
        }
        let now = DecisionTime { us: self.now_ms * 1000, ms: self.now_ms };
        let at_once = if settles { None } else { self.bucket.charge_at_once(&self.rule, cost, now) };
        let receipt = match at_once {
            Some(outcome) => {
                let found = evaluate(&mut self.bucket, &ChargeQuery::of(&self.rule, 0), now.us);
                let receipt = self.bucket.level().receipt(&BucketParams::of(&self.rule));
                assert_eq!(outcome, Outcome::new(found.decision, receipt), "a cost of {cost} by {:?}", self.rule);
                receipt
            }
            None => self.bucket.commit(&query, cost, now.us),
        };
        self.made.push(Made {
            rule: self.rule,
            at_ms: self.now_ms,
            units: cost * self.unit(),
            receipt,
            settles,
            is_open: true,
        });
    }

    /// An attempt denies a cost with the same numbers as the general way.
    fn deny(&mut self, cost: u64) {
        if cost == 0 {
            return;
        }
        let now = DecisionTime { us: self.now_ms * 1000, ms: self.now_ms };
        let found = evaluate(&mut self.bucket, &ChargeQuery::of(&self.rule, cost), now.us);
        if found.fits && found.wait_ms == 0 {
            return; // it would be charged
        }
        if let Some(outcome) = self.bucket.charge_at_once(&self.rule, cost, now) {
            assert!(!found.fits, "a cost of {cost} fits");
            let Decision { remaining, retry_after_ms, .. } = found.decision;
            assert_eq!(outcome, Outcome::denied(remaining, retry_after_ms), "a cost of {cost} by {:?}", self.rule);
        }
    }

    /// One of the charges that were not refunded yet.
    fn open(&self, which: u64) -> Option<usize> {
        let open: Vec<_> = (0..self.made.len()).filter(|at| self.made[*at].is_open).collect();
        let which = usize::try_from(which).ok()?;
        open.get(which % open.len().max(1)).copied()
    }

    /// The deficit as a rule sees it.
    fn deficit(&self, rule: &Rule) -> u64 {
        storable(self.bucket.level().deficit_at(&BucketParams::of(rule), self.now_ms))
    }

    /// Refunds a part of a charge that was not refunded yet, by the rule of the charge. Returns the charge,
    /// the units that it asked for, and the units that it got.
    fn refund(&mut self, which: u64, tenths: u64) -> Option<(usize, u64, u64)> {
        let at = self.open(which)?;
        let (rule, cost) = (self.made[at].rule, (self.made[at].units / self.unit() * tenths).div_ceil(10));
        let before = self.deficit(&rule);
        self.bucket.refund(&rule, cost, self.made[at].receipt, self.now_ms * 1000);
        self.made[at].is_open = false;
        Some((at, cost * self.unit(), before - self.deficit(&rule)))
    }

    /// The units of a charge that can't have refilled since. `asked`: those to be refunded.
    fn not_refilled(&self, at: usize, asked: u64) -> u64 {
        asked.saturating_sub((self.now_ms - self.made[at].at_ms) * self.rule.count())
    }

    /// The deficit that the charges leave now, and the lowest one since a charge, if tokens come back
    /// one by one.
    fn path(&self, since: usize) -> (u64, u64) {
        let (mut deficit, mut lowest, mut at_ms) = (0_u64, u64::MAX, self.now_ms);
        for (at, made) in self.made.iter().enumerate() {
            deficit = deficit.saturating_sub(made.at_ms.saturating_sub(at_ms) * self.rule.count());
            at_ms = made.at_ms;
            // Of one instant, only the deficit after all of its charges counts.
            if at > since && made.at_ms > self.made[since].at_ms {
                lowest = lowest.min(deficit);
            }
            deficit += made.units;
        }
        deficit = deficit.saturating_sub((self.now_ms - at_ms) * self.rule.count());
        (deficit, lowest.min(deficit))
    }
}

/// The deficit of the time between is not known any more.
#[test]
fn a_clock_set_back_forgets_the_lowest_deficits() {
    for (set_back_ms, refunded) in [(0, 90), (1, 30)] {
        let mut run = Run::new(1000, 1, Refill::Greedy);
        (0..2).for_each(|_| run.charge(100, true));
        run.now_ms += 100 * 60;
        run.bucket.correct_clock(&run.rule, run.bucket.level().written_ms * 1000);
        run.bucket.correct_clock(&run.rule, (run.bucket.level().written_ms - set_back_ms) * 1000);
        assert_eq!(matches!(run.bucket, Bucket::Plain(_)), set_back_ms > 0);
        assert_eq!(run.bucket.refund(&run.rule, 90, [1000, 0], run.now_ms * 1000), refunded);
    }
}

/// The first charge, by a low count, has refilled at a higher one. That is remembered until it would have
/// refilled at its own, also if the bucket is full in between.
#[test]
fn a_bucket_that_was_full_by_a_higher_count_refunds_nothing_of_earlier_charges() {
    for refunds_last in [true, false] {
        let mut run = Run::new(50, 1, Refill::Greedy);
        let slow = run.rule;
        run.charge(50, false);
        run.rule = slow.with_count(100);
        run.now_ms += 40;
        run.charge(40, false);
        run.now_ms += 60;
        run.charge(10, false);
        if refunds_last {
            assert_eq!(run.refund(2, 10).map(|(_, _, refunded)| refunded), Some(1000));
        }
        run.now_ms += 10;
        run.rule = slow;
        run.charge(50, false);
        assert_eq!(run.refund(0, 10).map(|(_, _, refunded)| refunded), Some(0), "{refunds_last}");
    }
}

/// Others charge and refund. Before, each of their refunds was taken out of what is known of the charge.
#[test]
fn refunds_of_others_take_nothing_from_a_settlement() {
    let mut run = Run::new(1000, 1, Refill::Greedy);
    run.charge(900, true);
    for _ in 0..20 {
        run.now_ms += 100;
        run.charge(50, false);
        run.now_ms += 100;
        assert_eq!(run.refund(1, 10).map(|(_, _, refunded)| refunded), Some(5_000));
    }
    run.now_ms += 100;
    // 41 of 900 have refilled.
    assert_eq!(run.refund(0, 10).map(|(_, _, refunded)| refunded / 100), Some(859));
}

/// One step: its kind, and two numbers.
fn steps() -> impl Strategy<Value = Vec<(u8, u64, u64)>> {
    prop::collection::vec((0..7_u8, 0..60_u64, 1..11_u64), 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 4_000, ..ProptestConfig::default() })]

    /// The bucket never refunds more than the exact amount. Of few charges that are settled later, it
    /// refunds just that amount, also if others are refunded the part that was not refilled.
    #[test]
    fn a_refund_is_never_more_than_exact(steps in steps(), burst in 1..200_u64, count in 1..60_u64) {
        let mut run = Run::new(burst, count, Refill::Greedy);
        let (mut settled, mut is_known) = (0, true);
        for (kind, number, tenths) in steps {
            match kind {
                0 | 1 => {
                    run.charge(number, true);
                    settled += 1;
                }
                2 => run.charge(number, false),
                3 | 4 => {
                    let exact = run.open(number).map(|at| run.path(at).1);
                    let Some((at, asked, refunded)) = run.refund(number, tenths) else { continue };
                    let exact = asked.min(exact.unwrap_or_default());
                    prop_assert!(refunded <= exact, "{refunded} of {exact}");
                    if !run.made[at].settles {
                        let at_ms = run.made[at].at_ms;
                        // Of one instant, the order of charges is not known any more.
                        let is_alone = !run.made.iter().any(|made| made.settles && made.at_ms == at_ms);
                        is_known &= is_alone && refunded == run.not_refilled(at, asked);
                    } else if settled <= 8 && is_known {
                        prop_assert_eq!(refunded, exact);
                    }
                    run.made[at].units -= refunded;
                    prop_assert_eq!(run.deficit(&run.rule), run.path(at).0, "the path without what was refunded");
                }
                _ => run.now_ms += number,
            }
        }
    }

    /// Each call counts with its use, at the time of its charge. The count changes now and then, and the
    /// highest one refills. Denials are compared, too.
    #[test]
    fn no_time_has_more_than_the_burst_and_what_is_refilled(
        steps in steps(), burst in 1..80_u64, count in 1..60_u64, is_whole in any::<bool>(), changes in any::<bool>()
    ) {
        let mut run = Run::new(burst, count, if is_whole { Refill::Interval } else { Refill::Greedy });
        let mut most = count;
        for (kind, number, tenths) in steps {
            match kind {
                0 | 1 => run.charge(number, true),
                2 => run.charge(number, false),
                3 | 4 => {
                    if let Some((at, _, refunded)) = run.refund(number, tenths) {
                        run.made[at].units -= refunded;
                    }
                    run.charge(burst, false);
                }
                5 if changes => {
                    let count = if tenths < 6 { 1 } else { number + 1 };
                    run.rule = run.rule.with_count(count);
                    most = most.max(count);
                }
                _ => run.now_ms += number,
            }
            run.deny(1);
            run.deny(number);
        }
        for (at, first) in run.made.iter().enumerate() {
            let mut used = 0;
            for made in &run.made[at..] {
                used += made.units;
                let time_ms = made.at_ms - first.at_ms;
                let refilled = if is_whole { (time_ms / 100 + 1) * most } else { time_ms * most };
                prop_assert!(used <= burst * run.unit() + refilled, "{used} in {time_ms} ms from {} on", first.at_ms);
            }
        }
    }

    /// Charges and denials of a queue, also by counts that differ from those of the charges.
    #[test]
    fn a_queue_decides_at_once_as_in_the_general_way(steps in steps(), queue in 0..20_u64, count in 1..60_u64) {
        let mut run = Run::new(1, count, Refill::Greedy);
        run.rule = run.rule.with_algorithm(Algorithm::LeakyBucket { queue });
        for (kind, number, tenths) in steps {
            match kind {
                0..3 => run.charge(number % (queue + 1), false),
                3 => run.rule = run.rule.with_count(tenths),
                _ => run.now_ms += number,
            }
            run.deny(1);
            run.deny(number);
        }
    }
}
