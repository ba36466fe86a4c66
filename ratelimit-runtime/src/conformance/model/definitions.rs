//! The definition of each algorithm, and numbers to try it with.

use std::mem;

use super::{
    bucket,
    state::{CountedCharge, ModelCounter, RefundedCharge},
    sub_windows,
    units::{ceil, period_ms, tick_us},
    whole,
};
use crate::{Algorithm, Refill, Rule};

/// An algorithm by its definition. Times are microseconds since 1970, and parts of the capacity are
/// counted in units.
pub(super) struct Definition {
    /// The algorithm with revealing numbers.
    examples: &'static [Algorithm],
    /// Units per cost of 1, chosen so that each refill is a whole number of units.
    pub(super) unit: fn(&Rule) -> i128,
    /// The used part of the capacity at a time.
    pub(super) spent: fn(&ModelCounter, &Rule, i128) -> i128,
    /// Milliseconds until the slot of a call that is made at a time.
    pub(super) slot_ms: fn(&ModelCounter, &Rule, i128) -> i128,
    /// Charges a cost that fits at a time, with this receipt.
    pub(super) charge: fn(&mut ModelCounter, &Rule, i128, i128, u64),
    /// Notes that the charge that was made at this time is settled later.
    pub(super) settles: fn(&mut ModelCounter, i128),
    /// Refunds a charge at a time, as far as it still counts. Returns the refunded cost.
    pub(super) refund: fn(&mut ModelCounter, &Rule, i128, &RefundedCharge) -> i128,
    /// A refund tells a charge from those that were made after a reset.
    pub(super) tells_resets_apart: bool,
    /// How Redis identifies a charge: by its time, plus the first number, in ticks modulo the second.
    /// `None` if two charges never look equal.
    pub(super) alias: fn(&Rule) -> Option<(i128, i128)>,
}

/// Charges that count as a whole until the end of a window.
const WHOLE: Definition = Definition {
    examples: &[],
    unit: |_| 1,
    spent: whole::spent,
    slot_ms: |_, _, _| 0,
    charge: whole::charge,
    settles: |_, _| {},
    refund: whole::refund,
    tells_resets_apart: true,
    alias: |_| None,
};

// A further algorithm is a further row.
const DEFINITIONS: &[Definition] = &[
    Definition {
        examples: &[Algorithm::FixedWindow { align: false }, Algorithm::FixedWindow { align: true }],
        charge: |counter, rule, now, cost, receipt| match rule.algorithm() {
            Algorithm::FixedWindow { align: true } => {
                let period_us = period_ms(rule) * 1000;
                let ends_us = now - now % period_us + period_us;
                counter.charges.push(CountedCharge { receipt, at_us: now, ends_us, cost });
            }
            _ => whole::charge(counter, rule, now, cost, receipt),
        },
        // By the millisecond in which the window opened.
        alias: |_| Some((0, 450_001)),
        ..WHOLE
    },
    Definition {
        examples: &[Algorithm::SlidingLog],
        // Each charge by itself, from the end of its tick on.
        charge: |counter, rule, now, cost, receipt| {
            let tick = tick_us(rule);
            let ends_us = ceil(now, tick) * tick + period_ms(rule) * 1000;
            counter.charges.push(CountedCharge { receipt, at_us: now, ends_us, cost });
        },
        // By the tick of the entry, rounded up.
        alias: |rule| Some((tick_us(rule) - 1, 812_345_679)),
        ..WHOLE
    },
    Definition {
        examples: &[
            by_sub_windows(1, true),
            by_sub_windows(3, true),
            by_sub_windows(7, true),
            by_sub_windows(1, false),
            by_sub_windows(2, false),
            by_sub_windows(5, false),
        ],
        spent: sub_windows::spent,
        refund: sub_windows::refund,
        tells_resets_apart: false,
        ..WHOLE
    },
    Definition {
        examples: &[
            by_tokens(5, Refill::Greedy),
            by_tokens(10, Refill::Interval),
            by_tokens(25, Refill::Greedy),
            by_tokens(5, Refill::Interval),
            by_tokens(25, Refill::Interval),
        ],
        unit: bucket::unit,
        spent: bucket::spent,
        charge: bucket::charge,
        settles: bucket::settles,
        refund: bucket::refund,
        tells_resets_apart: false,
        ..WHOLE
    },
    Definition {
        examples: &[Algorithm::LeakyBucket { queue: 0 }, Algorithm::LeakyBucket { queue: 5 }],
        unit: bucket::unit,
        spent: bucket::slots_spent,
        slot_ms: bucket::slot_ms,
        charge: bucket::charge_slots,
        refund: bucket::refund_slots,
        tells_resets_apart: false,
        ..WHOLE
    },
    Definition { examples: &[Algorithm::Concurrent], refund: |_, _, _, _| unreachable!("places are held"), ..WHOLE },
];

const fn by_sub_windows(buckets: u64, weighted: bool) -> Algorithm {
    Algorithm::SlidingWindow { buckets, weighted }
}

const fn by_tokens(burst: u64, refill: Refill) -> Algorithm {
    Algorithm::TokenBucket { burst, refill }
}

/// The definition of a rule's algorithm.
pub(super) fn definition(rule: &Rule) -> &'static Definition {
    let of = |algorithm: &Algorithm| mem::discriminant(algorithm);
    let found = DEFINITIONS.iter().find(|row| row.examples.iter().any(|example| of(example) == of(&rule.algorithm())));
    found.expect("a definition of each algorithm")
}

/// All examples, in the order of the table.
pub(in crate::conformance) const EXAMPLES: [Algorithm; EXAMPLE_COUNT] = {
    let mut all = [DEFINITIONS[0].examples[0]; EXAMPLE_COUNT];
    let (mut at, mut row) = (0, 0);
    while row < DEFINITIONS.len() {
        let mut nth = 0;
        while nth < DEFINITIONS[row].examples.len() {
            all[at] = DEFINITIONS[row].examples[nth];
            (at, nth) = (at + 1, nth + 1);
        }
        row += 1;
    }
    all
};

const EXAMPLE_COUNT: usize = {
    let (mut count, mut row) = (0, 0);
    while row < DEFINITIONS.len() {
        count += DEFINITIONS[row].examples.len();
        row += 1;
    }
    count
};
