//! Sliding window: sub-windows, the oldest of which is weighted by its overlap with the last
//! period.
//!
//! The *sliding window counter* of the textbooks, with one sub-window or with several.

use std::collections::VecDeque;

#[cfg(feature = "redis")]
use redis::Value;

use super::contract::{Evaluation, MemoryState};
#[cfg(feature = "redis")]
use super::{
    contract::{LuaScript, RedisScript},
    wire::{PackedNumbers, pack, unpack},
};
#[cfg(feature = "redis")]
use crate::store::Charge;
use crate::{Algorithm, Rule, store::ChargeQuery};

/// The sub-windows of one counter.
#[derive(Debug)]
pub(crate) struct SlidingWindow {
    expires_at_ms: u64,
    /// Number of the newest sub-window, in multiples of its length since 1970.
    current: u64,
    /// Charges of each sub-window, newest first, at most one more than the rule has buckets.
    counts: VecDeque<u64>,
}

/// Number of buckets, and length of each in milliseconds.
fn bucket_layout(rule: &Rule) -> (u64, u64) {
    let buckets = match rule.algorithm() {
        Algorithm::SlidingWindow { buckets } => buckets,
        _ => 1,
    };
    (buckets, rule.period_ms() / buckets)
}

impl SlidingWindow {
    /// Moves on to the current sub-window.
    fn slide(&mut self, buckets: u64, size: u64, now_ms: u64) {
        for _ in 0..(now_ms / size).saturating_sub(self.current).min(buckets + 1) {
            self.counts.push_front(0);
        }
        self.counts.truncate(usize::try_from(buckets + 1).unwrap_or(usize::MAX));
        self.current = self.current.max(now_ms / size);
    }

    /// Charges of the sub-window that is `back` places before the current one.
    fn count(&self, back: u64) -> u64 {
        usize::try_from(back).ok().and_then(|back| self.counts.get(back)).copied().unwrap_or(0)
    }

    /// Weight of the oldest sub-window when `passed` milliseconds of the current one are over.
    fn weighted(count: u64, size: u64, passed: u64) -> u64 {
        (count * (size - passed)).div_ceil(size)
    }

    fn evaluate_ms(&mut self, rule: &Rule, cost: u64, now_ms: u64) -> Evaluation {
        let (buckets, size) = bucket_layout(rule);
        self.slide(buckets, size, now_ms);
        let passed = now_ms % size;
        let mut whole: u64 = (0..buckets).map(|back| self.count(back)).sum();
        let used = whole + Self::weighted(self.count(buckets), size, passed);
        let remaining = rule.count().saturating_sub(used);
        let newest = (0..=buckets).find(|&back| self.count(back) > 0);
        let reset_after_ms = newest.map_or(0, |back| (1 + buckets - back) * size - passed);
        if cost <= remaining {
            return Evaluation::new(rule, remaining, reset_after_ms, None);
        }
        // Searches the first future sub-window in which the oldest has faded enough for the cost.
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
        Evaluation::new(rule, remaining, reset_after_ms, Some(retry_after_ms))
    }
}

impl MemoryState for SlidingWindow {
    fn fresh(rule: &Rule, now_us: u64) -> Self {
        let millis = now_us / 1000;
        Self { expires_at_ms: millis, current: millis / bucket_layout(rule).1, counts: VecDeque::new() }
    }

    #[inline]
    fn expires_at_ms(&self) -> u64 {
        self.expires_at_ms
    }

    /// The age of charges is unknown after the clock was set back: all of them count as made now.
    fn correct_clock(&mut self, rule: &Rule, now_us: u64) {
        let ((buckets, size), millis) = (bucket_layout(rule), now_us / 1000);
        if millis < self.current * size {
            let sum = self.counts.iter().sum();
            self.counts = [sum].into();
            self.current = millis / size;
            self.expires_at_ms = (self.current + 1 + buckets) * size;
        }
    }

    fn evaluate(&mut self, query: &ChargeQuery<'_>, cost: u64, now_us: u64) -> Evaluation {
        self.evaluate_ms(query.rule, cost, now_us / 1000)
    }

    /// The receipt is the number of the sub-window.
    fn commit(&mut self, query: &ChargeQuery<'_>, amount: u64, now_us: u64) -> [u64; 2] {
        let (buckets, size) = bucket_layout(query.rule);
        self.slide(buckets, size, now_us / 1000);
        match self.counts.front_mut() {
            Some(count) => *count += amount,
            None => self.counts.push_front(amount),
        }
        self.expires_at_ms = (self.current + 1 + buckets) * size;
        [self.current, 0]
    }

    /// Returns the weight that the charge still had.
    fn refund(&mut self, rule: &Rule, cost: u64, [charged, _]: [u64; 2], now_us: u64) -> u64 {
        let (buckets, size) = bucket_layout(rule);
        let millis = (now_us / 1000).max(self.current * size); // the clock may have been set back
        self.slide(buckets, size, millis);
        let back = self.current.wrapping_sub(charged);
        let Some(count) = usize::try_from(back).ok().and_then(|back| self.counts.get_mut(back)) else {
            return 0;
        };
        let weight = |count| if back < buckets { count } else { Self::weighted(count, size, millis % size) };
        let before = weight(*count);
        *count -= cost.min(*count);
        let refunded = before - weight(*count);
        if self.counts.iter().all(|count| *count == 0) {
            self.expires_at_ms = 0;
        }
        refunded
    }
}

#[cfg(feature = "redis")]
impl RedisScript for SlidingWindow {
    const SCRIPTS: &'static [LuaScript] = &[LuaScript {
        decide: include_str!("decide.lua"),
        args: "cost, count, size, buckets",
        first_of_many: "cost * n",
        place: "granted + n - 1",
        stored: "value",
        fitting: "local fitting = (its_count - select(2, struct.unpack('<dd', reply, 2))) / its_cost",
        has_value: true,
        refund: include_str!("refund.lua"),
        refund_args: "cost, size, buckets, charged",
    }];

    fn args(charge: &Charge) -> PackedNumbers {
        let (buckets, size) = bucket_layout(&charge.rule);
        pack([charge.cost, charge.rule.count(), size, buckets])
    }

    fn refund_args(charge: &Charge) -> PackedNumbers {
        let ((buckets, size), [charged, _]) = (bucket_layout(&charge.rule), charge.receipt);
        pack([charge.cost, size, buckets, charged])
    }

    fn steps(rule: &Rule) -> u64 {
        80 + 2 * bucket_layout(rule).0
    }

    fn parse_reply(charge: &Charge, charged: bool, reply: &Value) -> Option<(Evaluation, [u64; 2])> {
        let (rule, cost) = (&charge.rule, charge.cost);
        let bytes = match reply {
            Value::Nil => return Some((Evaluation::fresh(rule, cost), [0; 2])),
            Value::BulkString(bytes) => bytes,
            _ => return None,
        };
        if let Some([left_ms, current, used]) = parse_charged(bytes) {
            return Some((Evaluation::new(rule, rule.count().saturating_sub(used), left_ms, None), [current, 0]));
        }
        let (sign, numbers) = bytes.split_first()?;
        let mut numbers = unpack(numbers);
        let [left_ms, _used, current, _sum] = [numbers.next()??, numbers.next()??, numbers.next()??, numbers.next()??];
        let counts = numbers.collect::<Option<VecDeque<_>>>()?;
        let (buckets, size) = bucket_layout(rule);
        let expires_at_ms = current.checked_add(1 + buckets)?.checked_mul(size)?;
        let now_ms = expires_at_ms.checked_sub(left_ms)?;
        counts.iter().try_fold(0_u64, |sum, count| sum.checked_add(*count))?.checked_mul(size)?;
        let mut sub_windows = Self { expires_at_ms, current, counts };
        let cost = if charged && *sign == b'+' { 0 } else { cost };
        Some((sub_windows.evaluate_ms(rule, cost, now_ms), [current, 0]))
    }

    fn shift_reply(_rule: &Rule, reply: &Value, more: i64) -> Option<Value> {
        let Value::BulkString(bytes) = reply else { return None };
        let [left_ms, current, used] = parse_charged(bytes)?;
        Some(Value::BulkString(pack([left_ms, current, used.checked_add_signed(more)?]).to_vec()))
    }
}

/// Parses the reply to a charge: ms until it no longer counts, its sub-window, and the use.
#[cfg(feature = "redis")]
fn parse_charged(reply: &[u8]) -> Option<[u64; 3]> {
    let mut numbers = unpack(reply);
    let three = [numbers.next()??, numbers.next()??, numbers.next()??];
    numbers.next().is_none().then_some(three)
}
