//! The rules and durations that the checks share.

use std::time::Duration;

use crate::{Algorithm, Rule, conformance::trial::Broken};

/// `Err` names the promise that is broken.
pub(super) type Checked = Result<(), Broken>;

pub(super) const MILLISECOND: Duration = Duration::from_millis(1);
pub(super) const COUNT: u64 = 10;
/// A lease shorter than the period.
pub(super) const LEASE: Duration = Duration::from_secs(20);
/// A lease longer than the period.
pub(super) const LONG_LEASE: Duration = Duration::from_secs(150);

/// A rule of [`COUNT`] per minute, or per shortest longer period that divides into the buckets.
pub(super) fn rule_by(prefix: &'static str, algorithm: Algorithm) -> Rule {
    let buckets = algorithm.key_tag().buckets.unwrap_or(1);
    let period = Duration::from_millis(60_000_u64.next_multiple_of(buckets));
    Rule::new(prefix, COUNT, period).with_algorithm(algorithm)
}

/// The rule with another prefix and limit.
pub(super) fn resized(prefix: &'static str, rule: Rule, limit: u64) -> Rule {
    Rule::new(prefix, limit, rule.period()).with_algorithm(rule.algorithm().with_largest_cost(limit))
}
