//! The units that the model counts in, and its arithmetic.

use std::time::Duration;

use crate::{
    Rule,
    algorithm::{HoldSupport, capabilities},
    rule::limits::RuleFault,
    store::Charge,
};

/// Resolution of stored times: a microsecond in logs with periods up to 200 seconds, else a
/// millisecond.
pub(super) fn tick_us(rule: &Rule) -> i128 {
    // Only a log holds costs until they are settled.
    let is_log = capabilities(rule.algorithm()).holds == HoldSupport::Settled;
    if is_log && rule.period() <= Duration::from_secs(200) { 1 } else { 1000 }
}

pub(super) fn count(rule: &Rule) -> i128 {
    rule.count().into()
}

pub(super) fn period_ms(rule: &Rule) -> i128 {
    rule.period_ms().into()
}

/// The largest count of a rule with this algorithm and period, which is also the largest that a log
/// can store.
pub(super) fn largest_count(rule: &Rule) -> i128 {
    match rule.with_count(u64::MAX).limit_fault() {
        Some(RuleFault::TooLarge { largest, .. }) => largest.into(),
        other => unreachable!("no rule counts without end: {other:?}"),
    }
}

/// The smallest cost that a charge accepts.
pub(super) fn least(charge: &Charge) -> i128 {
    if charge.hold.is_some_and(|hold| hold.allow_partial) { charge.cost.min(1).into() } else { charge.cost.into() }
}

/// End of a lease that begins now.
pub(super) fn end_of_lease_us(charge: &Charge, now: i128) -> i128 {
    let lease = charge.hold.expect("a charge that is held").lease;
    ceil(now, 1000) * 1000 + micros(lease)
}

pub(super) fn wait_ms(charge: &Charge) -> i128 {
    i128::try_from(charge.longest_wait.as_millis()).expect("less than 2^127")
}

pub(super) fn micros(time: Duration) -> i128 {
    i128::try_from(time.as_micros()).expect("less than 2^127")
}

/// Quotient, rounded up. The dividend may be negative.
pub(super) fn ceil(dividend: i128, divisor: i128) -> i128 {
    -(-dividend).div_euclid(divisor)
}

pub(super) fn whole(number: i128) -> u64 {
    u64::try_from(number).expect("a number of the contract is not negative")
}

/// The smallest number from 0 on for which a monotonic predicate is true.
pub(super) fn smallest(is_true: impl Fn(i128) -> bool) -> i128 {
    if is_true(0) {
        return 0;
    }
    let (mut false_at, mut true_at) = (0, 1);
    while !is_true(true_at) {
        assert!(true_at < 1 << 60, "the model waits forever");
        (false_at, true_at) = (true_at, 2 * true_at);
    }
    while false_at + 1 < true_at {
        let middle = i128::midpoint(false_at, true_at);
        *(if is_true(middle) { &mut true_at } else { &mut false_at }) = middle;
    }
    true_at
}
