//! The answers of one counter of the model, from the definition of its algorithm.

use std::time::Duration;

use super::{
    definitions::definition,
    state::{ModelCounter, RefundedCharge},
    units::{smallest, whole},
};
use crate::{Decision, Rule};

impl ModelCounter {
    /// Each number by its definition in [`Decision`].
    pub(super) fn decision(&self, rule: &Rule, now: i128, cost: i128, longest_wait_ms: i128) -> Decision {
        let fits_after = |wait_ms: i128| self.fits(rule, now + 1000 * wait_ms, cost, longest_wait_ms);
        let empty_after = |wait_ms: i128| self.spent(rule, now + 1000 * wait_ms) == 0;
        // For a semaphore: until the first place is free, even if that is not enough.
        let is_freed_after = |wait_ms: i128| self.spent(rule, now + 1000 * wait_ms) < self.spent(rule, now);
        let retry_after_ms = || if rule.is_concurrent() { smallest(is_freed_after) } else { smallest(fits_after) };
        let retry_after = (!fits_after(0)).then(|| Duration::from_millis(whole(retry_after_ms())));
        let reset_after = Duration::from_millis(whole(smallest(empty_after)));
        Decision::new(rule.limit(), whole(self.remaining(rule, now)), reset_after, retry_after)
    }

    pub(super) fn remaining(&self, rule: &Rule, at_us: i128) -> i128 {
        (capacity(rule) - self.spent(rule, at_us)).max(0) / unit(rule)
    }

    pub(super) fn fits(&self, rule: &Rule, at_us: i128, cost: i128, longest_wait_ms: i128) -> bool {
        let has_room = self.spent(rule, at_us) + cost * unit(rule) <= capacity(rule);
        cost == 0 || (has_room && self.slot_ms(rule, at_us) <= longest_wait_ms)
    }

    /// The used part of the capacity, in units.
    fn spent(&self, rule: &Rule, at_us: i128) -> i128 {
        (definition(rule).spent)(self, rule, at_us)
    }

    /// Time until the slot of a call that is made now.
    pub(super) fn slot_ms(&self, rule: &Rule, at_us: i128) -> i128 {
        (definition(rule).slot_ms)(self, rule, at_us)
    }

    /// Charges a cost that fits.
    pub(super) fn charge(&mut self, rule: &Rule, now: i128, cost: i128, receipt: u64) {
        (definition(rule).charge)(self, rule, now, cost, receipt);
    }

    /// Notes that the charge that was made now is settled later.
    pub(super) fn settles(&mut self, rule: &Rule, now: i128) {
        (definition(rule).settles)(self, now);
    }

    pub(super) fn refund(&mut self, rule: &Rule, now: i128, refunded: &RefundedCharge) -> i128 {
        (definition(rule).refund)(self, rule, now, refunded)
    }
}

fn unit(rule: &Rule) -> i128 {
    (definition(rule).unit)(rule)
}

fn capacity(rule: &Rule) -> i128 {
    i128::from(rule.limit()) * unit(rule)
}

impl Decision {
    /// The decision below a ban that lasts for this time: no cost fits.
    pub(super) fn below_ban(self, ms: u64) -> Self {
        if ms == 0 {
            return self;
        }
        let left = Duration::from_millis(ms);
        Self::banned(self.limit(), self.reset_after().max(left), self.retry_after().unwrap_or_default().max(left))
    }

    /// Delays `retry_after` to at least this time.
    pub(super) fn not_before(self, ms: u64) -> Self {
        let turn = (ms > 0).then(|| Duration::from_millis(ms));
        Self::new(self.limit(), self.remaining(), self.reset_after(), self.retry_after().max(turn))
    }
}
