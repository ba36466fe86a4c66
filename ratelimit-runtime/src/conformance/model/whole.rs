//! Charges that count as a whole until their end: windows and logs. Places are held instead.

use super::{
    state::{CountedCharge, ModelCounter, RefundedCharge},
    units::{period_ms, tick_us},
};
use crate::Rule;

pub(super) fn spent(counter: &ModelCounter, rule: &Rule, at_us: i128) -> i128 {
    let charged: i128 = counter.counting(rule, at_us).map(|charge| charge.cost).sum();
    let held = counter.held.iter().filter(|held| held.counts(rule, at_us));
    charged + held.map(|held| held.cost).sum::<i128>()
}

/// Charges a cost that counts until the window ends, which opens with its first charge.
pub(super) fn charge(counter: &mut ModelCounter, rule: &Rule, now: i128, cost: i128, receipt: u64) {
    let open = counter.counting(rule, now).map(|charge| charge.ends_us).next();
    let ends_us = open.unwrap_or(now - now % tick_us(rule) + period_ms(rule) * 1000);
    counter.charges.push(CountedCharge { receipt, at_us: now, ends_us, cost });
}

pub(super) fn refund(counter: &mut ModelCounter, rule: &Rule, now: i128, refunded: &RefundedCharge) -> i128 {
    let read = now - now % tick_us(rule);
    let is_it = |charge: &&mut CountedCharge| charge.receipt == refunded.receipt && charge.ends_us > read;
    counter.charges.iter_mut().find(is_it).map_or(0, |charge| {
        let back = refunded.cost.min(charge.cost);
        charge.cost -= back;
        back
    })
}
