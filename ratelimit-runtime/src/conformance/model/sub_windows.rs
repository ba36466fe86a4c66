//! Charges that count by the sub-window they were made in.

use super::{
    state::{ModelCounter, RefundedCharge},
    units::{ceil, period_ms},
};
use crate::{Algorithm, Rule};

/// The number of sub-windows in a period, and the length of each.
fn layout_ms(rule: &Rule) -> (i128, i128) {
    let buckets = rule.algorithm().key_tag().buckets.unwrap_or(1).into();
    (buckets, period_ms(rule) / buckets)
}

pub(super) fn spent(counter: &ModelCounter, rule: &Rule, at_us: i128) -> i128 {
    let (buckets, length) = layout_ms(rule);
    let (current, elapsed) = (at_us / 1000 / length, at_us / 1000 % length);
    let charged = |sub_window: i128| -> i128 {
        let inside = counter.charges.iter().filter(|charge| charge.at_us / 1000 / length == sub_window);
        inside.map(|charge| charge.cost).sum()
    };
    let full: i128 = (current - buckets + 1..=current).map(charged).sum();
    match rule.algorithm() {
        Algorithm::SlidingWindow { weighted: false, .. } => full,
        _ => full + ceil(charged(current - buckets) * (length - elapsed), length),
    }
}

pub(super) fn refund(counter: &mut ModelCounter, rule: &Rule, now: i128, refunded: &RefundedCharge) -> i128 {
    let (buckets, length) = layout_ms(rule);
    let sub_window = refunded.granted.at_us / 1000 / length;
    if sub_window < now / 1000 / length - buckets {
        return 0;
    }
    let (before, mut left) = (spent(counter, rule, now), refunded.cost);
    for charge in counter.charges.iter_mut().filter(|charge| charge.at_us / 1000 / length == sub_window) {
        let back = left.min(charge.cost);
        charge.cost -= back;
        left -= back;
    }
    before - spent(counter, rule, now)
}
