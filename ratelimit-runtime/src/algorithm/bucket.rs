//! Token bucket and leaky bucket: how much is missing from a full bucket, and when it is full again.
//!
//! The *token bucket*, and, one by one, the *generic cell rate algorithm* of the ATM Forum (1996), which is the same as a
//! meter. A *leaky bucket* (Turner, 1986) as a queue is the same arithmetic again: what is missing is what has been given slots that have not
//! passed.
//!
//! What is missing is counted in units small enough that each interval refills a whole number of them, the rule's count: a token is P units and an
//! interval a millisecond, or, where all of a period comes at once, a token is one unit and an interval the period.

#[cfg(feature = "redis")]
use redis::Value;

use super::Look;
#[cfg(feature = "redis")]
use super::script::{Numbers, pack, unpack};
#[cfg(feature = "redis")]
use crate::rule::limits::EXACT;
use crate::{Algorithm, Refill, Rule};

/// One bucket, as it was when it was last written.
#[derive(Debug)]
pub(crate) struct Bucket {
    /// When it is full.
    pub(super) full_ms: u64,
    written_ms: u64,
    /// In units.
    missing: u64,
}

/// What a rule makes of a bucket.
struct Measures {
    /// Units a token.
    unit: u64,
    /// Milliseconds between two refills.
    interval_ms: u64,
    /// Units a refill.
    refill: u64,
    /// Units.
    capacity: u64,
    /// Whether callers wait for slots.
    is_queue: bool,
}

impl Measures {
    fn of(rule: &Rule) -> Self {
        let (unit, interval_ms) = match rule.algorithm() {
            Algorithm::TokenBucket { refill: Refill::Interval, .. } => (1, rule.period_ms()),
            _ => (rule.period_ms(), 1),
        };
        let is_queue = matches!(rule.algorithm(), Algorithm::LeakyBucket { .. });
        Self { unit, interval_ms, refill: rule.count(), capacity: rule.limit() * unit, is_queue }
    }

    /// Refills until so much is back; as good as never without a count.
    #[allow(clippy::cast_possible_truncation)] // what is missing of a queue comes back before its end
    fn refills(&self, units: u128) -> u64 {
        match (u64::try_from(units), self.refill) {
            (Ok(0), _) => 0,
            (_, 0) => u64::MAX,
            (Ok(units), refill) => units.div_ceil(refill),
            (Err(_), refill) => units.div_ceil(refill.into()) as u64,
        }
    }
}

impl Bucket {
    /// A bucket that is full.
    pub(super) fn full(now_ms: u64) -> Self {
        Self { full_ms: now_ms, written_ms: now_ms, missing: 0 }
    }

    /// If the clock was set back, nobody knows how long ago the bucket was written: as if just now.
    pub(super) fn set_right(&mut self, now_ms: u64) {
        if now_ms < self.written_ms {
            self.full_ms = self.full_ms - self.written_ms + now_ms;
            self.written_ms = now_ms;
        }
    }

    /// Refills between now and when it is full.
    fn refills_to_come(&self, measures: &Measures, from_ms: u64) -> u64 {
        self.full_ms.saturating_sub(from_ms).div_ceil(measures.interval_ms)
    }

    /// Of a queue whose count was raised this may be more than it holds, and more than it can ever store.
    fn missing_at(&self, measures: &Measures, now_ms: u64) -> u128 {
        if now_ms >= self.full_ms {
            return 0;
        }
        let refills = self.refills_to_come(measures, self.written_ms) - self.refills_to_come(measures, now_ms);
        let missing = self.missing.saturating_sub(refills.saturating_mul(measures.refill));
        if measures.is_queue {
            // Slots that have been given stay, also when the count was raised since.
            u128::from(missing).max(u128::from(self.full_ms - now_ms - 1) * u128::from(measures.refill) + 1)
        } else {
            missing.into()
        }
    }

    pub(super) fn look(&self, rule: &Rule, now_ms: u64, cost: u64, longest_wait_ms: u64) -> Look {
        let measures = Measures::of(rule);
        let missing = self.missing_at(&measures, now_ms);
        let to_come = self.refills_to_come(&measures, now_ms);
        let left_ms = self.full_ms - now_ms.min(self.full_ms);
        // Until so many more refills; then, whatever the count is by now, the bucket is as good as new.
        let until = |refills: u64| {
            let later = refills.saturating_sub(to_come).saturating_mul(measures.interval_ms);
            let sooner = to_come.saturating_sub(refills).saturating_mul(measures.interval_ms);
            left_ms.saturating_add(later).saturating_sub(sooner).min(left_ms)
        };
        let remaining = measures.capacity.saturating_sub(stored(missing)) / measures.unit;
        let reset_after_ms = if missing == 0 { 0 } else { until(measures.refills(missing)) };
        let wait_ms = if measures.is_queue && cost > 0 { measures.refills(missing) } else { 0 };
        let too_much =
            (missing + u128::from(cost) * u128::from(measures.unit)).saturating_sub(measures.capacity.into());
        let too_late = wait_ms.saturating_sub(longest_wait_ms);
        let retry_after_ms =
            (cost > 0 && (too_much > 0 || too_late > 0)).then(|| until(measures.refills(too_much).max(too_late)));
        Look { wait_ms, ..Look::new(rule, remaining, reset_after_ms, retry_after_ms) }
    }

    /// Takes a cost that [`Bucket::look`] has found to fit.
    pub(super) fn charge(&mut self, rule: &Rule, now_ms: u64, cost: u64) -> [u64; 2] {
        let measures = Measures::of(rule);
        if now_ms >= self.full_ms {
            *self = Self::full(now_ms);
        }
        self.write(&measures, now_ms, stored(self.missing_at(&measures, now_ms)) + cost * measures.unit);
        self.receipt(&measures)
    }

    /// For a token bucket, when it was charged. For a queue, where its end was then.
    fn receipt(&self, measures: &Measures) -> [u64; 2] {
        if measures.is_queue { self.end(measures) } else { [self.written_ms, 0] }
    }

    /// The end of the last slot: so many units before a millisecond.
    fn end(&self, measures: &Measures) -> [u64; 2] {
        let ceiling = (self.full_ms - self.written_ms).wrapping_mul(measures.refill);
        // Below zero only for a lower count than that of the last charge, and then no receipt has it.
        [self.full_ms, ceiling.wrapping_sub(self.missing)]
    }

    fn write(&mut self, measures: &Measures, now_ms: u64, missing: u64) {
        let to_come = self.refills_to_come(measures, now_ms);
        let refills = measures.refills(missing.into());
        let later = self.full_ms.saturating_add(refills.saturating_mul(measures.interval_ms));
        self.full_ms = later - to_come * measures.interval_ms;
        self.written_ms = now_ms;
        self.missing = missing;
    }

    /// Returns what the bucket cannot have refilled since it was charged; for a queue, what was charged last.
    pub(super) fn refund(&mut self, rule: &Rule, now_ms: u64, receipt: [u64; 2], cost: u64) -> u64 {
        let measures = Measures::of(rule);
        let now_ms = now_ms.max(self.written_ms); // the clock may have been set back
        let missing = stored(self.missing_at(&measures, now_ms));
        let charged = cost.saturating_mul(measures.unit);
        let back = if measures.is_queue {
            if self.end(&measures) == receipt { charged.min(missing) } else { 0 }
        } else {
            let refills =
                self.refills_to_come(&measures, receipt[0]) - self.refills_to_come(&measures, now_ms.max(receipt[0]));
            charged.saturating_sub(refills.saturating_mul(measures.refill)).min(missing)
        };
        match missing - back {
            _ if back == 0 => {}
            0 => *self = Self::full(now_ms),
            left => self.write(&measures, now_ms, left),
        }
        back.div_ceil(measures.unit)
    }
}

/// What is missing, where it can be stored or is only compared with what can.
fn stored(missing: u128) -> u64 {
    u64::try_from(missing).unwrap_or(u64::MAX)
}

#[cfg(feature = "redis")]
pub(super) fn numbers(rule: &Rule, cost: u64, longest_wait_ms: u64) -> Numbers {
    let Measures { unit, interval_ms, refill, capacity, is_queue } = Measures::of(rule);
    let longest = if is_queue { 1 + longest_wait_ms.min(EXACT) } else { 0 };
    pack([cost * unit, capacity, refill, interval_ms, longest])
}

#[cfg(feature = "redis")]
pub(super) fn refund_numbers(rule: &Rule, [charged, spare]: [u64; 2], cost: u64) -> Numbers {
    let Measures { unit, interval_ms, refill, is_queue, .. } = Measures::of(rule);
    let spare = if is_queue { spare.saturating_add(1) } else { 0 };
    pack([cost, unit, refill, interval_ms, charged, spare])
}

#[cfg(feature = "redis")]
impl Bucket {
    /// As it is stored on Redis, and when that was written.
    fn read(bytes: &[u8]) -> Option<(Self, u64)> {
        let mut numbers = unpack(bytes);
        let [full_ms, left_ms, missing] = [numbers.next()??, numbers.next()??, numbers.next()??];
        let now_ms = full_ms.checked_sub(left_ms)?;
        Some((Self { full_ms, written_ms: now_ms, missing }, now_ms))
    }
}

/// The reply to a charge that was made at the same time after `more` has been taken.
#[cfg(feature = "redis")]
pub(super) fn reply_to_another(rule: &Rule, reply: &Value, more: i64) -> Option<Value> {
    let Value::BulkString(bytes) = reply else { return None };
    let (mut bucket, now_ms) = Bucket::read(bytes)?;
    let measures = Measures::of(rule);
    let more = more.checked_mul(i64::try_from(measures.unit).ok()?)?;
    bucket.write(&measures, now_ms, bucket.missing.checked_add_signed(more)?);
    Some(Value::BulkString(pack([bucket.full_ms, bucket.full_ms - now_ms, bucket.missing]).to_vec()))
}

/// What the script says of the bucket, after the charge if it was `charged`, and the receipt.
#[cfg(feature = "redis")]
pub(super) fn read(
    rule: &Rule,
    cost: u64,
    longest_wait_ms: u64,
    charged: bool,
    reply: &Value,
) -> Option<(Look, [u64; 2])> {
    let (refused, bytes) = match reply {
        Value::Nil => return Some((Look::fresh(rule, cost), [0; 2])),
        Value::BulkString(bytes) => match bytes.strip_prefix(b"-") {
            Some(numbers) if bytes.len() == 25 => (true, numbers),
            _ => (false, &**bytes),
        },
        _ => return None,
    };
    let (bucket, now_ms) = Bucket::read(bytes)?;
    if refused || !charged {
        return Some((bucket.look(rule, now_ms, cost, longest_wait_ms), [0; 2]));
    }
    let measures = Measures::of(rule);
    let before = bucket.missing.checked_sub(cost * measures.unit)?;
    let wait_ms = if measures.is_queue { measures.refills(before.into()) } else { 0 };
    Some((Look { wait_ms, ..bucket.look(rule, now_ms, 0, 0) }, bucket.receipt(&measures)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Clocks of tokio's can be: each paused runtime has its own.
    #[test]
    fn a_charge_is_refunded_by_a_clock_set_back() {
        let rule = Rule::new("item", 10, Duration::from_secs(1));
        let token = rule.with_algorithm(Algorithm::TokenBucket { burst: 10, refill: Refill::Greedy });
        let queue = rule.with_algorithm(Algorithm::LeakyBucket { queue: 9 });
        for rule in [token, queue] {
            let mut bucket = Bucket::full(5000);
            let receipt = bucket.charge(&rule, 5000, 3);
            assert_eq!(bucket.refund(&rule, 4000, receipt, 3), 3, "{rule:?}");
            assert!(bucket.full_ms <= 5000, "{rule:?}");
        }
    }
}
