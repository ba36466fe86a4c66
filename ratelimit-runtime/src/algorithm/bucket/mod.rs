//! Token bucket and leaky bucket: the deficit of a bucket, and when it is full again.
//!
//! With [`Refill::Greedy`] the *token bucket* equals the *generic cell rate algorithm* of the ATM
//! Forum (1996). A *leaky bucket* (Turner, 1986) as a queue is the same arithmetic: its deficit is
//! the slots that have been given and have not passed.
//!
//! The deficit is counted in units that are small enough for each interval to refill a whole
//! number of them, the rule's count. A token is P units and an interval a millisecond. If all
//! tokens of a period come back at once, a token is one unit and an interval the period.

#[cfg(all(test, not(model_check)))]
mod exact;
mod level;
mod lows;
mod packed;

use std::num::NonZeroU64;

#[cfg(feature = "redis")]
use redis::Value;

use self::{
    level::{BucketLevel, BucketParams, LARGEST_PACE, storable},
    lows::Lows,
    packed::PackedLevel,
};
use super::contract::{Ban, Evaluation, HalfLine, MemoryState, Recovery};
#[cfg(feature = "redis")]
use super::{
    contract::{LuaScript, RedisScript, UNBAN, ban_of_string},
    wire::{PackedNumbers, pack, unpack},
};
use crate::{
    Algorithm, Refill, Rule,
    clock::DecisionTime,
    decision::{Outcome, Quotient},
    store::ChargeQuery,
};
#[cfg(feature = "redis")]
use crate::{rule::limits::EXACT, store::Charge};

/// One bucket. Some are stored apart, so that a slot of the table is as small as the others need: those with charges
/// that are settled later or with large numbers, and until they are full, those with a deficit above 2^21 units whose
/// rule has changed its count.
#[derive(Debug)]
pub(crate) enum Bucket {
    Plain(PackedLevel),
    Large(Box<(BucketLevel, Lows)>),
}

impl Default for Bucket {
    fn default() -> Self {
        Self::of(BucketLevel::full(1))
    }
}

/// The milliseconds of a time. The first millisecond of 1970 counts as the second one.
fn millis(us: u64) -> u64 {
    (us / 1000).max(1)
}

impl Bucket {
    #[inline(always)]
    #[allow(clippy::inline_always)] // short for the constants of a full bucket
    fn of(level: BucketLevel) -> Self {
        PackedLevel::of(&level).map_or_else(|| Self::large(level), Self::Plain)
    }

    #[cold]
    fn large(level: BucketLevel) -> Self {
        Self::Large(Box::new((level, Lows::default())))
    }

    fn level(&self) -> BucketLevel {
        match self {
            Self::Plain(packed) => packed.level(),
            Self::Large(both) => both.0,
        }
    }

    fn lows(&mut self) -> Option<&mut Lows> {
        match self {
            Self::Plain(_) => None,
            Self::Large(both) => Some(&mut both.1),
        }
    }

    /// Changes the level, and keeps the lows.
    fn set_level(&mut self, level: BucketLevel) {
        match (self, PackedLevel::of(&level)) {
            (Self::Large(both), packed) if packed.is_none() || !both.1.is_empty() => both.0 = level,
            (plain, Some(packed)) => *plain = Self::Plain(packed),
            (plain, None) => *plain = Self::large(level),
        }
    }
}

/// Charges units that fit to a queue without slots to come. `None` if a number is too large.
#[inline(never)] // the code of each call stays short
fn charge_empty_queue(level: &mut PackedLevel, rule: &Rule, charged: u64, now_ms: u64) -> Option<Outcome> {
    let params = BucketParams::of(rule);
    level.write(now_ms, charged)?;
    let remaining = (params.capacity - charged) / params.unit;
    Some(Outcome::admitted(remaining, level.full_at_ms() - now_ms, level.level().queue_end(&params)))
}

impl MemoryState for Bucket {
    type Align = HalfLine;

    fn restart(&mut self, rule: &Rule, now_us: u64) {
        let fastest = BucketParams::of(rule).pace(); // with it, the first charge is decided at once
        *self = Self::of(BucketLevel { fastest, ..BucketLevel::full(millis(now_us)) });
    }

    /// Tokens that come back at once may fill the bucket.
    fn recovery(rule: &Rule) -> Recovery {
        match rule.algorithm() {
            Algorithm::TokenBucket { refill: Refill::Interval, .. } => Recovery::Lumps,
            _ => Recovery::Even,
        }
    }

    #[inline]
    fn expires_at_ms(&self) -> u64 {
        match self {
            Self::Plain(packed) => packed.full_at_ms(),
            Self::Large(both) => both.0.full_at_ms,
        }
    }

    /// The time of the last write is unknown after the clock was set back: it counts as written
    /// just now.
    fn correct_clock(&mut self, _rule: &Rule, now_us: u64) {
        let (time_ms, level) = (millis(now_us), self.level());
        if time_ms < level.written_ms {
            let full_at_ms = level.full_at_ms - level.written_ms + time_ms;
            *self = Self::of(BucketLevel { full_at_ms, written_ms: time_ms, ..level });
        }
    }

    fn evaluate(&mut self, query: &ChargeQuery<'_>, cost: u64, now_us: u64) -> Evaluation {
        let level = self.level();
        if level.is_banned {
            let left_ms = level.full_at_ms - millis(now_us);
            return Evaluation::banned(query.rule, left_ms, left_ms);
        }
        level.evaluate_ms(query.rule, cost, millis(now_us), query.longest_wait_ms)
    }

    fn ban(&mut self, _rule: &Rule, ban: Ban) {
        *self = Self::of(BucketLevel::of_ban(ban.lasting_until(self.expires_at_ms())));
    }

    /// A charge by another count also takes what has come back by that count.
    fn can_undo(&self, rule: &Rule) -> bool {
        self.level().has_one_count(&BucketParams::of(rule))
    }

    fn unban(&mut self, now_us: u64) {
        if self.level().is_banned {
            *self = Self::of(BucketLevel::full(millis(now_us)));
        }
    }

    fn commit(&mut self, query: &ChargeQuery<'_>, amount: u64, now_us: u64) -> [u64; 2] {
        let (params, time_ms) = (BucketParams::of(query.rule), millis(now_us));
        if time_ms >= self.expires_at_ms() {
            *self = Self::of(BucketLevel::full(time_ms));
        }
        let mut level = self.level();
        let deficit = storable(level.deficit_at(&params, time_ms));
        level.write(&params, time_ms, deficit + amount * params.unit);
        if let Some(lows) = self.lows() {
            lows.note(deficit);
        }
        if query.settles && !params.is_queue {
            if let Self::Plain(_) = self {
                *self = Self::Large(Box::new((level, Lows::default())));
            }
            if let Some(lows) = self.lows() {
                lows.push(time_ms, level.deficit);
            }
        }
        self.set_level(level);
        level.receipt(&params)
    }

    /// If tokens come back one by one, or a queue has no slots to come, and the clock was not set back. Decided only by
    /// the count, below 2^30 - 1, of all charges since the bucket was full, or of the last charge to a queue.
    #[inline(always)]
    #[allow(clippy::inline_always)] // in each call
    fn charge_at_once(&mut self, rule: &Rule, cost: u64, now: DecisionTime) -> Option<Outcome> {
        let is_queue = match rule.algorithm() {
            Algorithm::TokenBucket { refill: Refill::Greedy, .. } => false,
            Algorithm::LeakyBucket { .. } => true,
            _ => return None,
        };
        let (unit, refill) = (NonZeroU64::new(rule.period_ms())?, NonZeroU64::new(rule.count())?);
        let Self::Plain(level) = self else { return None };
        let before = level.deficit_at_pace(refill.get(), now.ms)?;
        if cost > rule.limit() {
            return None;
        }
        let (after, capacity) = (before + cost * unit.get(), rule.limit() * unit.get());
        if after > capacity {
            let free = capacity.saturating_sub(before);
            let remaining = if free < unit.get() { 0 } else { free / unit }; // a division takes long
            return Some(Outcome::denied(remaining, Quotient::ceil(after - capacity, refill)));
        }
        if is_queue {
            // Otherwise the slot comes later.
            return if before == 0 { charge_empty_queue(level, rule, after, now.ms) } else { None };
        }
        level.write(now.ms, after)?;
        let (remaining, reset_after_ms) = (Quotient::floor(capacity - after, unit), Quotient::ceil(after, refill));
        Some(Outcome::admitted(remaining, reset_after_ms, [now.ms, 0]))
    }

    /// Returns the part without which the bucket would not have been full meanwhile. Without [`Lows`],
    /// that is the part that it can't have refilled since the charge. For a queue, only the last charge
    /// counts.
    fn refund(&mut self, rule: &Rule, cost: u64, receipt: [u64; 2], now_us: u64) -> u64 {
        let mut level = self.level();
        if level.is_banned {
            return 0;
        }
        let params = BucketParams::of(rule);
        let time_ms = millis(now_us).max(level.written_ms); // the clock may have been set back
        let deficit = storable(level.deficit_at(&params, time_ms));
        let charged = cost.saturating_mul(params.unit);
        let mut not_refilled = 0;
        let back = if params.is_queue {
            if level.queue_end(&params) == receipt { charged.min(deficit) } else { 0 }
        } else if receipt[0] > time_ms {
            0 // the clock was set back since: it is unknown how much was refilled
        } else {
            let refills = level.refills_to_come(&params, receipt[0]) - level.refills_to_come(&params, time_ms);
            let is_any = level.fastest == LARGEST_PACE && params.refill < LARGEST_PACE;
            let fastest = if is_any { u64::MAX } else { level.fastest.max(params.refill) };
            not_refilled = charged.saturating_sub(refills.saturating_mul(fastest));
            let lowest = self.lows().map_or(0, |lows| lows.since(receipt[0]));
            not_refilled.max(charged.min(lowest)).min(deficit)
        };
        // If nothing is refunded, nothing is written: a rule with a higher count may find a full bucket that is
        // not full for others.
        if back > 0 {
            if let Some(lows) = self.lows() {
                lows.note(deficit);
                lows.refund(receipt[0], time_ms, back, not_refilled, deficit - back);
            }
            if deficit == back && !level.mixes(&params) {
                level = BucketLevel::full(time_ms);
            } else {
                let full_at_ms = level.full_at_ms;
                level.write(&params, time_ms, deficit - back);
                // A rule whose count is lower than that of later charges would put it off.
                level.full_at_ms = level.full_at_ms.min(full_at_ms);
            }
            self.set_level(level);
        }
        back.div_ceil(params.unit)
    }
}

#[cfg(feature = "redis")]
impl RedisScript for Bucket {
    const SCRIPTS: &'static [LuaScript] = &[LuaScript {
        decide: include_str!("decide.lua"),
        args: "cost, capacity, refill, interval, longest",
        first_of_many: "cost * n",
        place: "granted + n - 1",
        stored: "value",
        fitting: "\
local _, left, deficit = struct.unpack('<ddd', reply, 2)
if its_longest > 0 and left > 0 then
  deficit = math.max(deficit, (left - 1) * its_refill + 1)
end
local fitting = (its_capacity - deficit) / its_cost",
        has_value: true,
        ban: ban_of_string!("struct.pack('<dddi4', ban, -1, 0, 0)"),
        unban: UNBAN,
        refund: include_str!("refund.lua"),
        refund_args: "cost, unit, refill, interval, charged, spare",
    }];

    fn args(charge: &Charge) -> PackedNumbers {
        let BucketParams { unit, interval_ms, refill, capacity, is_queue } = BucketParams::of(&charge.rule);
        let longest = if is_queue { 1 + charge.longest_wait_ms().min(EXACT) } else { 0 };
        let mut numbers = pack([charge.cost * unit, capacity, refill, interval_ms, longest]);
        if charge.settles && !is_queue {
            numbers.truncate(numbers.len() - 8);
            numbers.extend((-1.0_f64).to_le_bytes());
        }
        numbers
    }

    fn refund_args(charge: &Charge) -> PackedNumbers {
        let BucketParams { unit, interval_ms, refill, is_queue, .. } = BucketParams::of(&charge.rule);
        let [charged, spare] = charge.receipt;
        let spare = if is_queue { spare.saturating_add(1) } else { 0 };
        pack([charge.cost, unit, refill, interval_ms, charged, spare])
    }

    fn steps(rule: &Rule) -> u64 {
        if matches!(rule.algorithm(), Algorithm::LeakyBucket { .. }) { 80 } else { 140 }
    }

    fn parse_reply(charge: &Charge, charged: bool, reply: &Value) -> Option<(Evaluation, [u64; 2])> {
        let (rule, cost) = (&charge.rule, charge.cost);
        let (is_denied, bytes) = match reply {
            Value::Nil => return Some((Evaluation::fresh(rule, cost), [0; 2])),
            Value::BulkString(bytes) => match bytes.strip_prefix(b"-") {
                Some(numbers) if bytes.len() == 29 => (true, numbers),
                _ => (false, &**bytes),
            },
            _ => return None,
        };
        let bucket = parse_stored(bytes)?;
        if is_denied || !charged {
            return Some((bucket.evaluate_ms(rule, cost, bucket.written_ms, charge.longest_wait_ms()), [0; 2]));
        }
        let params = BucketParams::of(rule);
        let before = bucket.deficit.checked_sub(cost * params.unit)?;
        let wait_ms = if params.is_queue { params.refills(before.into()) } else { 0 };
        Some((Evaluation { wait_ms, ..bucket.evaluate_ms(rule, 0, bucket.written_ms, 0) }, bucket.receipt(&params)))
    }

    fn shift_reply(rule: &Rule, reply: &Value, more: i64) -> Option<Value> {
        let Value::BulkString(bytes) = reply else { return None };
        let mut bucket = parse_stored(bytes)?;
        let params = BucketParams::of(rule);
        let more = more.checked_mul(i64::try_from(params.unit).ok()?)?;
        // No server's time is before the first interval, so `write` cannot overflow.
        let now_ms = Some(bucket.written_ms).filter(|now_ms| *now_ms >= params.interval_ms)?;
        let deficit = bucket.deficit.checked_add_signed(more)?;
        bucket.write(&params, now_ms, deficit);
        let left_ms = bucket.full_at_ms.checked_sub(now_ms)?;
        let fastest = if params.is_queue { 0 } else { i32::try_from(bucket.fastest).ok()? };
        let mut numbers = pack([bucket.full_at_ms, left_ms, bucket.deficit]);
        numbers.extend(if bucket.is_mixed { -fastest } else { fastest }.to_le_bytes());
        Some(Value::BulkString(numbers.to_vec()))
    }
}

/// Parses a bucket as Redis stores it.
#[cfg(feature = "redis")]
fn parse_stored(bytes: &[u8]) -> Option<BucketLevel> {
    let (numbers, fastest) = bytes.split_last_chunk()?;
    let mut numbers = unpack(numbers);
    let [full_at_ms, left_ms, deficit] = [numbers.next()??, numbers.next()??, numbers.next()??];
    let fastest = i32::from_le_bytes(*fastest);
    Some(BucketLevel {
        full_at_ms,
        written_ms: full_at_ms.checked_sub(left_ms).filter(|written_ms| *written_ms > 0)?,
        deficit,
        fastest: fastest.unsigned_abs().into(),
        is_mixed: fastest < 0,
        is_banned: false,
    })
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use super::*;
    use std::time::Duration;

    fn full(now_ms: u64) -> Bucket {
        Bucket::of(BucketLevel::full(now_ms))
    }

    #[test]
    fn a_bucket_counts_in_the_first_millisecond_of_1970() {
        let rule = Rule::new("item", 10, Duration::from_secs(1));
        let token = rule.with_algorithm(Algorithm::TokenBucket { burst: 10, refill: Refill::Greedy });
        let queue = rule.with_algorithm(Algorithm::LeakyBucket { queue: 9 });
        for rule in [token, queue] {
            let mut bucket = Bucket::default();
            bucket.restart(&rule, 0);
            let query = ChargeQuery { rule: &rule, cost: 3, longest_wait_ms: u64::MAX, hold: None, settles: false };
            let receipt = bucket.commit(&query, 3, 0);
            bucket.correct_clock(&rule, 0);
            assert_eq!(bucket.evaluate(&query, 0, 0).decision.remaining, 7, "{rule:?}");
            assert_eq!(bucket.refund(&rule, 3, receipt, 0), 3, "{rule:?}");
        }
    }

    /// The slots that were given stay, and there are more of them than a number holds.
    #[test]
    fn a_queue_whose_count_was_raised_by_far_denies_as_before() {
        let of_count = |count| {
            let rule = Rule::new("item", count, Duration::from_millis(1));
            rule.with_algorithm(Algorithm::LeakyBucket { queue: 4_096 })
        };
        let mut bucket = full(1000);
        bucket.commit(&ChargeQuery::of(&of_count(1), 4_097), 4_097, 1_000_000);
        let (raised, now) = (of_count(1 << 52), DecisionTime { us: 1_001_000, ms: 1001 });
        for cost in 1..=4_097 {
            let found = bucket.evaluate(&ChargeQuery::of(&raised, cost), cost, now.us);
            assert!(!found.fits, "{cost}");
            assert!(bucket.charge_at_once(&raised, cost, now).is_none(), "{cost}");
        }
    }

    #[test]
    fn the_first_charge_and_the_next_denial_are_decided_at_once() {
        let rule = Rule::new("item", 10, Duration::from_secs(1));
        let token = rule.with_algorithm(Algorithm::TokenBucket { burst: 10, refill: Refill::Greedy });
        let queue = rule.with_algorithm(Algorithm::LeakyBucket { queue: 9 });
        for rule in [token, queue] {
            let mut bucket = Bucket::default();
            bucket.restart(&rule, 5_000_000);
            let now = DecisionTime { us: 5_000_000, ms: 5000 };
            let found = [10, 1].map(|cost| bucket.charge_at_once(&rule, cost, now).map(|outcome| outcome.fits()));
            assert_eq!(found, [Some(true), Some(false)], "{rule:?}");
        }
    }

    /// It takes no allocation for each charge.
    #[test]
    fn a_bucket_that_is_stored_apart_stays_where_it_is() {
        let of_count = |count| {
            let rule = Rule::new("item", count, Duration::from_secs(3600));
            rule.with_algorithm(Algorithm::TokenBucket { burst: 100, refill: Refill::Greedy })
        };
        let place = |bucket: &Bucket| match bucket {
            Bucket::Plain(_) => None,
            Bucket::Large(both) => Some(std::ptr::from_ref(&**both)),
        };
        let mut bucket = full(1000);
        bucket.commit(&ChargeQuery::of(&of_count(100), 1), 1, 1_000_000);
        assert_eq!(place(&bucket), None);
        bucket.commit(&ChargeQuery::of(&of_count(120), 1), 1, 2_000_000);
        let first = place(&bucket);
        assert!(first.is_some());
        bucket.commit(&ChargeQuery::of(&of_count(120), 1), 1, 3_000_000);
        assert_eq!(place(&bucket), first);
        bucket.commit(&ChargeQuery::of(&of_count(120), 1), 1, 3_600_000_000); // full meanwhile
        assert_eq!(place(&bucket), None);
    }

    /// A slot of the table is a bucket and its id.
    #[test]
    fn a_bucket_does_not_grow() {
        assert_eq!(size_of::<Bucket>(), 16);
    }

    /// A paused tokio runtime has a clock of its own, which may be behind.
    #[test]
    fn a_charge_is_refunded_by_a_clock_set_back() {
        let rule = Rule::new("item", 10, Duration::from_secs(1));
        let token = rule.with_algorithm(Algorithm::TokenBucket { burst: 10, refill: Refill::Greedy });
        let queue = rule.with_algorithm(Algorithm::LeakyBucket { queue: 9 });
        for rule in [token, queue] {
            let mut bucket = full(5000);
            let query = ChargeQuery { rule: &rule, cost: 3, longest_wait_ms: 0, hold: None, settles: false };
            let receipt = bucket.commit(&query, 3, 5_000_000);
            assert_eq!(bucket.refund(&rule, 3, receipt, 4_000_000), 3, "{rule:?}");
            assert!(bucket.expires_at_ms() <= 5000, "{rule:?}");
        }
    }

    /// The other charge was made by the clock that was set back. What came back before is not known any more.
    #[test]
    fn a_charge_later_than_the_clock_shows_is_not_refunded() {
        let token = Algorithm::TokenBucket { burst: 20, refill: Refill::Greedy };
        let rule = Rule::new("item", 10, Duration::from_secs(10)).with_algorithm(token);
        let mut bucket = full(60_000);
        let query = ChargeQuery { rule: &rule, cost: 10, longest_wait_ms: 0, hold: None, settles: false };
        let first = bucket.commit(&query, 10, 60_000_000);
        bucket.correct_clock(&rule, 5_000_000);
        bucket.commit(&query, 5, 5_000_000);
        assert_eq!(bucket.refund(&rule, 10, first, 8_000_000), 0);
        assert_eq!(bucket.evaluate(&query, 0, 8_000_000).decision.remaining, 8);
    }
}
