//! One counter of the model: every charge and hold.

use super::units::{ceil, period_ms, tick_us, whole};
use crate::{Rule, rule::limits::MOST_HOLDS, store::Charge};

#[derive(Clone, Copy, Debug)]
pub(super) struct GrantRecord {
    pub(super) at_us: i128,
    /// The time of the first charge of its window. It is known also after a reset.
    pub(super) first_us: i128,
    /// The level of a bucket after the charge.
    pub(super) level: Option<Level>,
}

/// A granted charge that is refunded.
#[derive(Clone, Copy, Debug)]
pub(super) struct RefundedCharge {
    pub(super) receipt: u64,
    pub(super) granted: GrantRecord,
    pub(super) cost: i128,
}

/// One counter. Windows and logs use the charges, buckets the level, logs and semaphores the holds.
#[derive(Clone, Debug, Default)]
pub(super) struct ModelCounter {
    pub(super) charges: Vec<CountedCharge>,
    pub(super) level: Option<Level>,
    /// Charges to a bucket that are settled later: the time of each, and the lowest deficit since.
    pub(super) lows: Vec<(i128, i128)>,
    pub(super) held: Vec<ModelHold>,
    /// Holds settled by a retry: its first attempt may still arrive.
    pub(super) settled: Vec<ModelHold>,
    /// The end of a ban, which may be over.
    pub(super) banned_until_ms: i128,
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
    /// When the bucket will be full, or was full before.
    pub(super) full_ms: i128,
    /// The lowest and the highest pace of the rules that have written it since it was full.
    pub(super) paces: (i128, i128),
}

impl ModelCounter {
    /// The rest of the ban. 0 if there is none.
    pub(super) fn banned_ms(&self, now: i128) -> u64 {
        whole((self.banned_until_ms - now.div_euclid(1000)).max(0))
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
