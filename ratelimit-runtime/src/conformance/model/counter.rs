//! One counter of the model: every charge and hold, and the answers from the definitions.

use std::time::Duration;

use super::units::{capacity, ceil, count, period_ms, refill_ms, smallest, sub_window_ms, tick_us, unit, whole};
use crate::{Algorithm, Decision, Rule, rule::limits::MOST_HOLDS, store::Charge};

#[derive(Clone, Copy, Debug)]
pub(super) struct GrantRecord {
    pub(super) at_us: i128,
    /// The level of a bucket after the charge.
    pub(super) level: Option<Level>,
}

/// One counter. Windows and logs use the charges, buckets the level, logs and semaphores the holds.
#[derive(Clone, Debug, Default)]
pub(super) struct ModelCounter {
    pub(super) charges: Vec<CountedCharge>,
    pub(super) level: Option<Level>,
    pub(super) held: Vec<ModelHold>,
    /// Holds settled by a retry: its first attempt may still arrive.
    pub(super) settled: Vec<ModelHold>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct CountedCharge {
    pub(super) receipt: u64,
    pub(super) at_us: i128,
    /// When it expires, in a fixed window or a log.
    pub(super) ends_us: i128,
    /// The cost that was not refunded.
    pub(super) cost: i128,
}

/// A hold that was not settled yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct ModelHold {
    pub(super) id: u64,
    pub(super) cost: i128,
    /// End of the lease.
    pub(super) ends_us: i128,
}

/// A bucket after its last write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Level {
    pub(super) written_ms: i128,
    /// The deficit at that time, in units.
    pub(super) deficit: i128,
    /// When the bucket will be full.
    pub(super) full_ms: i128,
}

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
    pub(super) fn spent(&self, rule: &Rule, at_us: i128) -> i128 {
        match rule.algorithm() {
            Algorithm::FixedWindow { .. } | Algorithm::SlidingLog | Algorithm::Concurrent => {
                let charged: i128 = self.counting(rule, at_us).map(|charge| charge.cost).sum();
                let held = self.held.iter().filter(|held| held.counts(rule, at_us));
                charged + held.map(|held| held.cost).sum::<i128>()
            }
            Algorithm::SlidingWindow { buckets } => {
                let (length, buckets) = (sub_window_ms(rule), i128::from(buckets));
                let (current, elapsed) = (at_us / 1000 / length, at_us / 1000 % length);
                let charged = |sub_window| self.charged_in(rule, sub_window);
                let full: i128 = (current - buckets + 1..=current).map(charged).sum();
                full + ceil(charged(current - buckets) * (length - elapsed), length)
            }
            Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } => {
                let now = at_us / 1000;
                let Some(level) = self.level.filter(|level| now < level.full_ms) else { return 0 };
                let refills = level.refills_to_come(rule, level.written_ms) - level.refills_to_come(rule, now);
                let deficit = (level.deficit - refills * count(rule)).max(0);
                match rule.algorithm() {
                    // Slots that were handed out stay if the count was raised since.
                    Algorithm::LeakyBucket { .. } => deficit.max((level.full_ms - now - 1) * count(rule) + 1),
                    _ => deficit,
                }
            }
        }
    }

    /// Time until the slot of a call that is made now.
    pub(super) fn slot_ms(&self, rule: &Rule, at_us: i128) -> i128 {
        match rule.algorithm() {
            Algorithm::LeakyBucket { .. } if rule.count() > 0 => ceil(self.spent(rule, at_us), count(rule)),
            _ => 0,
        }
    }

    /// Charges a cost that fits.
    pub(super) fn charge(&mut self, rule: &Rule, now: i128, cost: i128, receipt: u64) {
        let (period_us, now_ms, tick) = (period_ms(rule) * 1000, now / 1000, tick_us(rule));
        match rule.algorithm() {
            Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } => {
                let deficit = self.spent(rule, now) + cost * unit(rule);
                let (full_ms, to_come) = match self.level.filter(|level| now_ms < level.full_ms) {
                    Some(level) => (level.full_ms, level.refills_to_come(rule, now_ms)),
                    None => (now_ms, 0),
                };
                let full_ms = full_ms + (ceil(deficit, count(rule)) - to_come) * refill_ms(rule);
                self.level = Some(Level { written_ms: now_ms, deficit, full_ms });
            }
            algorithm => {
                let open = self.counting(rule, now).map(|charge| charge.ends_us).next();
                let ends_us = match algorithm {
                    // Each charge by itself, from the end of its tick on.
                    Algorithm::SlidingLog => ceil(now, tick) * tick + period_us,
                    Algorithm::FixedWindow { align: true } => now - now % period_us + period_us,
                    _ => open.unwrap_or(now - now % tick + period_us),
                };
                self.charges.push(CountedCharge { receipt, at_us: now, ends_us, cost });
            }
        }
    }

    pub(super) fn refund(&mut self, rule: &Rule, now: i128, receipt: u64, granted: GrantRecord, cost: i128) -> i128 {
        match rule.algorithm() {
            Algorithm::FixedWindow { .. } | Algorithm::SlidingLog => {
                let read = now - now % tick_us(rule);
                let charge = self.charges.iter_mut().find(|charge| charge.receipt == receipt && charge.ends_us > read);
                charge.map_or(0, |charge| std::mem::take(&mut charge.cost))
            }
            Algorithm::SlidingWindow { buckets } => {
                let length = sub_window_ms(rule);
                let sub_window = granted.at_us / 1000 / length;
                if sub_window < now / 1000 / length - i128::from(buckets) {
                    return 0;
                }
                let (before, mut left) = (self.spent(rule, now), cost);
                for charge in self.charges.iter_mut().filter(|charge| charge.at_us / 1000 / length == sub_window) {
                    let back = left.min(charge.cost);
                    charge.cost -= back;
                    left -= back;
                }
                before - self.spent(rule, now)
            }
            Algorithm::Concurrent => unreachable!("places are held"),
            Algorithm::TokenBucket { .. } => {
                let now_ms = now / 1000;
                let Some(level) = self.level.filter(|level| now_ms < level.full_ms) else { return 0 };
                let to_come = level.refills_to_come(rule, now_ms);
                let refills = (level.refills_to_come(rule, granted.at_us / 1000) - to_come).max(0);
                let deficit = self.spent(rule, now);
                let not_refilled = (cost * unit(rule) - refills * count(rule)).max(0);
                let back = not_refilled.min(deficit);
                if back > 0 {
                    let deficit = deficit - back;
                    let full_ms = level.full_ms + (ceil(deficit, count(rule)) - to_come) * refill_ms(rule);
                    self.level = (deficit > 0).then_some(Level { written_ms: now_ms, deficit, full_ms });
                }
                ceil(back, unit(rule))
            }
            Algorithm::LeakyBucket { .. } => {
                let now_ms = now / 1000;
                let Some(level) = self.level.filter(|level| now_ms < level.full_ms) else { return 0 };
                let is_last = granted.level.is_some_and(|after| after.end(rule) == level.end(rule));
                if !is_last {
                    return 0;
                }
                let back = self.spent(rule, now).min(cost * unit(rule));
                let deficit = self.spent(rule, now) - back;
                let full_ms = now_ms + ceil(deficit, count(rule));
                self.level = (deficit > 0).then_some(Level { written_ms: now_ms, deficit, full_ms });
                ceil(back, unit(rule))
            }
        }
    }

    /// The charges of a fixed window or a log that have not expired.
    pub(super) fn counting(&self, rule: &Rule, at_us: i128) -> impl Iterator<Item = &CountedCharge> {
        let read = at_us - at_us % tick_us(rule);
        self.charges.iter().filter(move |charge| charge.ends_us > read && charge.cost > 0)
    }

    /// Holds whose lease has not ended.
    pub(super) fn live_holds(&self, now: i128) -> impl Iterator<Item = &ModelHold> {
        self.held.iter().filter(move |held| held.ends_us > now)
    }

    /// Time until an exclusive hold may start: until all leases have ended. 0 for other charges.
    pub(super) fn turn_ms(&self, charge: &Charge, now: i128) -> u64 {
        let is_alone = charge.cost > 0 && charge.hold.is_some_and(|hold| hold.exclusive);
        let last = self.live_holds(now).map(|held| ceil(held.ends_us - now, 1000)).max();
        last.filter(|_| is_alone).map_or(0, whole)
    }

    /// Time until a log has room for a further hold. 0 for other charges.
    pub(super) fn room_ms(&self, charge: &Charge, now: i128) -> u64 {
        let is_hold = charge.cost > 0 && charge.hold.is_some() && !charge.rule.is_concurrent();
        let counting = || self.held.iter().filter(|held| held.counts(&charge.rule, now));
        let first = counting().map(|held| held.counts_until_us(&charge.rule)).min();
        first.filter(|_| is_hold && counting().count() >= MOST_HOLDS).map_or(0, |first| whole(ceil(first - now, 1000)))
    }

    /// Whether a retry has settled the hold.
    pub(super) fn was_settled(&self, charge: &Charge, now: i128) -> bool {
        let id = charge.hold.map(|hold| hold.id);
        self.settled.iter().any(|settled| Some(settled.id) == id && settled.counts(&charge.rule, now))
    }

    /// The counter as if all live holds had been released.
    pub(super) fn without_live_holds(&self, now: i128) -> Self {
        let held = self.held.iter().filter(|held| held.ends_us <= now).copied().collect();
        Self { held, ..self.clone() }
    }

    pub(super) fn charged_in(&self, rule: &Rule, sub_window: i128) -> i128 {
        let length = sub_window_ms(rule);
        let inside = self.charges.iter().filter(|charge| charge.at_us / 1000 / length == sub_window);
        inside.map(|charge| charge.cost).sum()
    }
}

impl ModelHold {
    /// A place counts until its lease ends. In a log, the hold then becomes a charge for one
    /// period.
    pub(super) fn counts(&self, rule: &Rule, at_us: i128) -> bool {
        self.counts_until_us(rule) > at_us
    }

    pub(super) fn counts_until_us(&self, rule: &Rule) -> i128 {
        let charged_us = if rule.is_concurrent() { 0 } else { period_ms(rule) * 1000 };
        self.ends_us + charged_us
    }
}

impl Decision {
    /// Delays `retry_after` to at least this time.
    pub(super) fn not_before(self, ms: u64) -> Self {
        let turn = (ms > 0).then(|| Duration::from_millis(ms));
        Self::new(self.limit(), self.remaining(), self.reset_after(), self.retry_after().max(turn))
    }
}

impl Level {
    pub(super) fn refills_to_come(&self, rule: &Rule, at_ms: i128) -> i128 {
        ceil(self.full_ms - at_ms, refill_ms(rule))
    }

    /// When a leaky bucket is empty: the millisecond, and the fraction that is left of it.
    pub(super) fn end(&self, rule: &Rule) -> (i128, i128) {
        (self.full_ms, (self.full_ms - self.written_ms) * count(rule) - self.deficit)
    }
}
