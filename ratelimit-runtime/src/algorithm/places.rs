//! Places: so many are held at once, each until its holder leaves it or no longer renews it.
//!
//! The *counting semaphore* of Dijkstra, with leases (Gray and Cheriton, 1989), so that the places of holders that died become free.

#[cfg(feature = "redis")]
use redis::Value;

#[cfg(feature = "redis")]
use super::script::{Numbers, pack};
use super::{Look, holds::HoldSet};
use crate::{Rule, store::Hold};

/// The places of one counter.
#[derive(Debug, Default)]
pub(crate) struct Places(HoldSet);

impl Places {
    /// When all of them are free.
    pub(super) fn until_ms(&self) -> u64 {
        self.0.until_ms()
    }

    pub(super) fn look(&mut self, rule: &Rule, now_us: u64, cost: u64) -> Look {
        self.0.drop_ended(now_us);
        let taken = self.0.total();
        let remaining = rule.count().saturating_sub(taken);
        let wait_ms = |ends_ms: Option<u64>| ends_ms.map_or(0, |ends_ms| ends_ms - now_us / 1000);
        // The first time that any of them is free: whether that is enough is asked again then.
        let retry_after_ms = (cost > remaining).then(|| wait_ms(self.0.first_end_ms(now_us)));
        let look = Look::new(rule, remaining, wait_ms(self.0.last_end_ms(now_us)), retry_after_ms);
        if look.fits { look } else { Look { held: taken, fits_when_released: true, ..look } }
    }

    /// Takes places that [`Places::look`] has found to be free.
    pub(super) fn hold(&mut self, now_us: u64, places: u64, asked: &Hold) -> [u64; 2] {
        self.0.insert(now_us, places, asked);
        [asked.id, places]
    }

    /// Says whether the places are still held, which last as long again from now if they are.
    pub(super) fn renew(&mut self, now_us: u64, asked: &Hold) -> bool {
        self.0.renew(now_us, asked)
    }

    /// Says how many were still held, which are free.
    pub(super) fn settle(&mut self, now_us: u64, asked: &Hold) -> u64 {
        self.0.drop_ended(now_us);
        self.0.remove(asked.id).map_or(0, |held| held.amount)
    }
}

#[cfg(feature = "redis")]
pub(super) fn numbers(rule: &Rule, cost: u64, hold: Option<&Hold>) -> Numbers {
    let (id, lease_ms, allow_partial) =
        hold.map_or((0, 0, false), |hold| (hold.id, hold.lease_ms(), hold.allow_partial));
    pack([cost, rule.count(), id, lease_ms, allow_partial.into()])
}

/// What the script says of the places, after some were taken if they were, and the receipt.
#[cfg(feature = "redis")]
pub(super) fn read(rule: &Rule, reply: &Value) -> Option<(Look, [u64; 2])> {
    let Value::Array(numbers) = reply else { return None };
    let [Value::Int(remaining), Value::Int(reset_after_ms), Value::Int(other), held @ ..] = &**numbers else {
        return None;
    };
    let (reset_after_ms, other) = (reset_after_ms.unsigned_abs(), other.unsigned_abs());
    Some(if *remaining < 0 {
        let look = Look::new(rule, (-1 - remaining).unsigned_abs(), reset_after_ms, Some(other));
        (look.holding(held), [0; 2])
    } else {
        (Look::new(rule, remaining.unsigned_abs(), reset_after_ms, None), [0, other])
    })
}
