//! Places: so many are held at once, each until its holder leaves it or no longer renews it.
//!
//! The *counting semaphore* of Dijkstra, with leases (Gray and Cheriton, 1989), so that the places of holders that died become free.

#[cfg(feature = "redis")]
use redis::Value;

use super::Look;
#[cfg(feature = "redis")]
use super::script::{Numbers, pack};
use crate::{Rule, store::Hold};

/// The places of one counter.
#[derive(Debug, Default)]
pub(crate) struct Places(Vec<Held>);

#[derive(Debug)]
struct Held {
    places: u64,
    ends_ms: u64,
    hold: Hold,
}

impl Held {
    /// Lasts as long again from now.
    fn renew(&mut self, now_us: u64) {
        self.ends_ms = now_us.div_ceil(1000).saturating_add(self.hold.lease_ms());
    }
}

impl Places {
    /// When all of them are free.
    pub(super) fn until_ms(&self) -> u64 {
        self.0.iter().map(|held| if held.hold.is_kept { u64::MAX } else { held.ends_ms }).max().unwrap_or_default()
    }

    pub(super) fn look(&mut self, rule: &Rule, now_us: u64, cost: u64) -> Look {
        let millis = now_us / 1000;
        self.0.iter_mut().filter(|held| held.hold.is_kept).for_each(|held| held.renew(now_us));
        self.0.retain(|held| held.ends_ms > millis);
        self.0.sort_by_key(|held| held.ends_ms);
        let taken: u64 = self.0.iter().map(|held| held.places).sum();
        let remaining = rule.count().saturating_sub(taken);
        let retry_after_ms = (cost > remaining).then(|| {
            let short = taken.saturating_add(cost).saturating_sub(rule.count()).min(taken);
            let mut freed = 0;
            let last_in_the_way = self.0.iter().find(|held| {
                freed += held.places;
                freed >= short
            });
            last_in_the_way.map_or(0, |held| held.ends_ms - millis)
        });
        let reset_after_ms = self.0.last().map_or(0, |held| held.ends_ms - millis);
        let look = Look::new(rule, remaining, reset_after_ms, retry_after_ms);
        if look.fits { look } else { Look { held: taken, is_busy: true, ..look } }
    }

    /// Takes places that [`Places::look`] has found to be free.
    pub(super) fn hold(&mut self, now_us: u64, places: u64, asked: &Hold) -> [u64; 2] {
        let mut held = Held { places, ends_ms: 0, hold: *asked };
        held.renew(now_us);
        self.0.push(held);
        [asked.id, places]
    }

    /// Says whether the places are still held, which last as long again from now if they are.
    pub(super) fn renew(&mut self, now_us: u64, asked: &Hold) -> bool {
        let held = self.0.iter_mut().find(|held| held.hold.id == asked.id && held.ends_ms > now_us / 1000);
        held.map(|held| held.renew(now_us)).is_some()
    }

    /// Says how many were still held, which are free.
    pub(super) fn settle(&mut self, now_us: u64, asked: &Hold) -> u64 {
        let ended = self.0.extract_if(.., |held| held.hold.id == asked.id);
        ended.filter(|held| held.hold.is_kept || held.ends_ms > now_us / 1000).map(|held| held.places).sum()
    }
}

#[cfg(feature = "redis")]
pub(super) fn numbers(rule: &Rule, cost: u64, hold: Option<&Hold>) -> Numbers {
    let (id, lease_ms, partial) = hold.map_or((0, 0, false), |hold| (hold.id, hold.lease_ms(), hold.partial));
    pack([cost, rule.count(), id, lease_ms, partial.into()])
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
