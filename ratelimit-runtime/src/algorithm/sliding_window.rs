//! Sliding window: sub-windows, of which the oldest counts by how much of it the last period overlaps.
//!
//! The *sliding window counter* of the textbooks, in its form with one sub-window and with several.

use std::collections::VecDeque;

#[cfg(feature = "redis")]
use redis::Value;

use super::Look;
#[cfg(feature = "redis")]
use super::script::{Numbers, pack, unpack};
use crate::{Algorithm, Rule};

/// The sub-windows of one counter.
#[derive(Debug)]
pub(crate) struct SubWindows {
    /// When nothing counts any more.
    pub(super) until_ms: u64,
    /// The number of the newest, in multiples of its length since 1970.
    current: u64,
    /// What was charged in each, newest first, at most one more than the rule has buckets.
    counts: VecDeque<u64>,
}

/// Buckets, and milliseconds of each.
fn grid(rule: &Rule) -> (u64, u64) {
    let buckets = match rule.algorithm() {
        Algorithm::SlidingWindow { buckets } => buckets,
        _ => 1,
    };
    (buckets, rule.period_ms() / buckets)
}

impl SubWindows {
    pub(super) fn empty(rule: &Rule, now_ms: u64) -> Self {
        Self { until_ms: now_ms, current: now_ms / grid(rule).1, counts: VecDeque::new() }
    }

    /// If the clock was set back, nobody knows when anything was charged: as if all of it were charged just now.
    pub(super) fn set_right(&mut self, rule: &Rule, now_ms: u64) {
        let (buckets, size) = grid(rule);
        if now_ms < self.current * size {
            let sum = self.counts.iter().sum();
            self.counts = [sum].into();
            self.current = now_ms / size;
            self.until_ms = (self.current + 1 + buckets) * size;
        }
    }

    /// Moves on to the sub-window of now.
    fn slide(&mut self, buckets: u64, size: u64, now_ms: u64) {
        for _ in 0..(now_ms / size).saturating_sub(self.current).min(buckets + 1) {
            self.counts.push_front(0);
        }
        self.counts.truncate(usize::try_from(buckets + 1).unwrap_or(usize::MAX));
        self.current = self.current.max(now_ms / size);
    }

    /// What was charged `back` sub-windows ago.
    fn count(&self, back: u64) -> u64 {
        usize::try_from(back).ok().and_then(|back| self.counts.get(back)).copied().unwrap_or(0)
    }

    /// How much of a sub-window's charges counts, with so much of the current one passed.
    fn weighted(count: u64, size: u64, passed: u64) -> u64 {
        (count * (size - passed)).div_ceil(size)
    }

    pub(super) fn look(&mut self, rule: &Rule, now_ms: u64, cost: u64) -> Look {
        let (buckets, size) = grid(rule);
        self.slide(buckets, size, now_ms);
        let passed = now_ms % size;
        let mut whole: u64 = (0..buckets).map(|back| self.count(back)).sum();
        let used = whole + Self::weighted(self.count(buckets), size, passed);
        let remaining = rule.count().saturating_sub(used);
        let newest = (0..=buckets).find(|&back| self.count(back) > 0);
        let reset_after_ms = newest.map_or(0, |back| (1 + buckets - back) * size - passed);
        if cost <= remaining {
            return Look::new(rule, remaining, reset_after_ms, None);
        }
        // Sub-window by sub-window from here: when would what then is the oldest have faded enough?
        let mut retry_after_ms = reset_after_ms;
        for ahead in 0..=buckets {
            let oldest = self.count(buckets - ahead);
            if let Some(room) = rule.count().checked_sub(whole.saturating_add(cost)) {
                let faded = (room * size).checked_div(oldest).map_or(0, |weight| size - weight.min(size));
                if faded < size {
                    retry_after_ms = ahead * size + faded - passed;
                    break;
                }
            }
            whole -= if ahead < buckets { self.count(buckets - ahead - 1) } else { 0 };
        }
        Look::new(rule, remaining, reset_after_ms, Some(retry_after_ms))
    }

    /// Adds a cost that [`SubWindows::look`] has found to fit.
    pub(super) fn charge(&mut self, rule: &Rule, now_ms: u64, cost: u64) -> [u64; 2] {
        let (buckets, size) = grid(rule);
        self.slide(buckets, size, now_ms);
        match self.counts.front_mut() {
            Some(count) => *count += cost,
            None => self.counts.push_front(cost),
        }
        self.until_ms = (self.current + 1 + buckets) * size;
        [self.current, 0]
    }

    /// Takes a charge out of the sub-window of that number, and returns how much it still weighed.
    pub(super) fn refund(&mut self, rule: &Rule, now_ms: u64, [charged, _]: [u64; 2], cost: u64) -> u64 {
        let (buckets, size) = grid(rule);
        let now_ms = now_ms.max(self.current * size); // the clock may have been set back
        self.slide(buckets, size, now_ms);
        let back = self.current.wrapping_sub(charged);
        let Some(count) = usize::try_from(back).ok().and_then(|back| self.counts.get_mut(back)) else {
            return 0;
        };
        let weight = |count| if back < buckets { count } else { Self::weighted(count, size, now_ms % size) };
        let before = weight(*count);
        *count -= cost.min(*count);
        let returned = before - weight(*count);
        if self.counts.iter().all(|count| *count == 0) {
            self.until_ms = 0;
        }
        returned
    }
}

#[cfg(feature = "redis")]
pub(super) fn numbers(rule: &Rule, cost: u64) -> Numbers {
    let (buckets, size) = grid(rule);
    pack([cost, rule.count(), size, buckets])
}

#[cfg(feature = "redis")]
pub(super) fn refund_numbers(rule: &Rule, [charged, _]: [u64; 2], cost: u64) -> Numbers {
    let (buckets, size) = grid(rule);
    pack([cost, size, buckets, charged])
}

/// What the script says of the sub-windows, after the charge if it was `charged`, and the receipt.
#[cfg(feature = "redis")]
pub(super) fn read(rule: &Rule, cost: u64, charged: bool, reply: &Value) -> Option<(Look, [u64; 2])> {
    let bytes = match reply {
        Value::Nil => return Some((Look::fresh(rule, cost), [0; 2])),
        Value::BulkString(bytes) => bytes,
        _ => return None,
    };
    if let Some([left_ms, current, used]) = after_charge(bytes) {
        return Some((Look::new(rule, rule.count().saturating_sub(used), left_ms, None), [current, 0]));
    }
    let (sign, numbers) = bytes.split_first()?;
    let mut numbers = unpack(numbers);
    let [left_ms, _used, current, _sum] = [numbers.next()??, numbers.next()??, numbers.next()??, numbers.next()??];
    let counts = numbers.collect::<Option<VecDeque<_>>>()?;
    let (buckets, size) = grid(rule);
    let until_ms = current.checked_add(1 + buckets)?.checked_mul(size)?;
    let now_ms = until_ms.checked_sub(left_ms)?;
    counts.iter().try_fold(0_u64, |sum, count| sum.checked_add(*count))?.checked_mul(size)?;
    let mut sub_windows = SubWindows { until_ms, current, counts };
    let cost = if charged && *sign == b'+' { 0 } else { cost };
    Some((sub_windows.look(rule, now_ms, cost), [current, 0]))
}

/// The reply to a charge: how long it counts in ms, its sub-window, and how much counts.
#[cfg(feature = "redis")]
fn after_charge(reply: &[u8]) -> Option<[u64; 3]> {
    let mut numbers = unpack(reply);
    let three = [numbers.next()??, numbers.next()??, numbers.next()??];
    numbers.next().is_none().then_some(three)
}

/// The reply to a charge that was made at the same time after `more` has been charged.
#[cfg(feature = "redis")]
pub(super) fn reply_to_another(reply: &Value, more: i64) -> Option<Value> {
    let Value::BulkString(bytes) = reply else { return None };
    let [left_ms, current, used] = after_charge(bytes)?;
    Some(Value::BulkString(pack([left_ms, current, used.checked_add_signed(more)?]).to_vec()))
}
