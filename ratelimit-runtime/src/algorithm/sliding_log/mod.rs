//! Sliding log: each charge counts for one period.
//!
//! The *sliding window log* of the textbooks, stored as running totals. A charge of any cost is one
//! entry, and the sum of any range of entries is a subtraction.

mod entries;

#[cfg(feature = "redis")]
use redis::Value;
use smallvec::{SmallVec, smallvec};

use self::entries::{LogEntries, LogEntry};
use super::{
    contract::{Ban, Evaluation, MemoryState},
    hold_set::HoldSet,
};
#[cfg(feature = "redis")]
use super::{
    contract::{LuaScript, RedisScript},
    wire::{PackedNumbers, pack},
};
#[cfg(feature = "redis")]
use crate::store::Charge;
use crate::{
    Rule,
    clock::DecisionTime,
    decision::{Outcome, wait_ms},
    rule::limits::{LogLayout, MOST_HOLDS},
    store::{ChargeQuery, Hold},
};

/// Number of entries from the newest within which a charge can be refunded.
///
/// A refund changes every later total, and a server does nothing else meanwhile.
const REFUND_DEPTH: usize = 5000;

/// Largest number of settled holds that are kept; see [`SettledHold`].
const MAX_SETTLED: usize = 10_000;

/// The log of one counter.
#[derive(Debug, Default)]
pub(crate) struct SlidingLog {
    /// Time when all entries have expired.
    entries_expire_at_ms: u64,
    entries: LogEntries,
    /// The total of the entries that have expired.
    base: u64,
    /// Most logs have none.
    holds: Option<Box<LogHolds>>,
}

#[derive(Debug)]
struct LogHolds {
    /// A hold counts until a period after its end. Unless settled, it becomes a charge made at its
    /// end.
    set: HoldSet,
    settled: Vec<SettledHold>,
    /// The ban of the counter, which may have ended.
    ban: Option<Ban>,
}

static NO_HOLDS: HoldSet = HoldSet::counting_on(0);

/// A hold that was settled by a retry.
///
/// The first attempt may arrive later and then charges nothing. The entry itself counts nothing and
/// is dropped after a lease and a period.
#[derive(Debug)]
struct SettledHold {
    id: u64,
    expires_at_ms: u64,
}

/// Longest time for which a charge counts. A clock may be a fraction of a millisecond ahead of it.
fn lifetime_ms(rule: &Rule) -> u64 {
    rule.period_ms() + 1
}

/// Sum of entries. `base` is the total before the first.
#[inline]
fn sum_of(entries: &[LogEntry], base: u64) -> u64 {
    entries.last().map_or(0, |(_, total)| total - base)
}

/// Time until entries of an amount have expired. `None` if they have less.
#[inline]
fn free_ms(entries: &[LogEntry], base: u64, layout: &LogLayout, now: u64, amount: u64) -> Option<u64> {
    if amount == 0 {
        return Some(0);
    }
    let (time, _) = match entries.first()? {
        first if first.1 - base >= amount => first,
        _ => later_of(entries, base, amount)?,
    };
    Some(layout.wait_ms(*time, now))
}

/// The entry up to which entries have an amount.
#[inline(never)] // the code of each call stays short
fn later_of(entries: &[LogEntry], base: u64, amount: u64) -> Option<&LogEntry> {
    entries.get(entries.partition_point(|(_, total)| total - base < amount))
}

impl SlidingLog {
    fn holds(&self) -> &HoldSet {
        self.holds.as_ref().map_or(&NO_HOLDS, |holds| &holds.set)
    }

    fn holds_mut(&mut self, rule: &Rule) -> &mut LogHolds {
        let set = || HoldSet::counting_on(rule.period_ms());
        self.holds.get_or_insert_with(|| Box::new(LogHolds { set: set(), settled: Vec::new(), ban: None }))
    }

    fn drop_expired_holds(&mut self, now_us: u64) {
        let Some(holds) = &mut self.holds else { return };
        holds.set.drop_expired(now_us);
        holds.ban = holds.ban.filter(|ban| ban.until_ms > now_us / 1000);
        if holds.set.len() == 0 && holds.settled.is_empty() && holds.ban.is_none() {
            self.holds = None;
        }
    }

    /// The ban of the counter.
    fn banned(&self, now_us: u64) -> Option<Ban> {
        self.holds.as_ref()?.ban.filter(|ban| ban.until_ms > now_us / 1000)
    }

    #[inline(never)] // the code of each call stays short
    fn drop_expired_entries(&mut self, layout: &LogLayout, now: u64) {
        while let Some(&(time, total)) = self.entries.first()
            && layout.is_expired(time, now)
        {
            self.base = total;
            self.entries.drop_first();
        }
    }

    /// Sum of the entries that are stored.
    fn used(&self) -> u64 {
        sum_of(&self.entries, self.base)
    }

    /// Time until an amount has expired of both entries and holds.
    fn wait_ms(&self, layout: &LogLayout, now_us: u64, short: u64) -> u64 {
        let (now, millis) = (layout.tick(now_us), now_us / 1000);
        // For the first holds to end: the sum of their amounts, and the time until they no longer
        // count.
        let mut ended: SmallVec<[(u64, u64); 4]> = smallvec![(0, 0)];
        let mut freed = 0;
        for (ends_ms, amount) in self.holds().in_order(now_us) {
            if freed >= short {
                break;
            }
            freed += amount;
            ended.push((freed, self.holds().counts_until_ms(ends_ms) - millis));
        }
        let rest_ms = |freed: u64| free_ms(&self.entries, self.base, layout, now, short.saturating_sub(freed));
        // The more holds the wait includes, the fewer entries it needs.
        let at = ended.partition_point(|&(freed, after_ms)| rest_ms(freed).is_none_or(|rest_ms| rest_ms > after_ms));
        let by_holds = ended.get(at).map(|&(_, after_ms)| after_ms);
        let by_entries = at.checked_sub(1).and_then(|before| rest_ms(ended[before].0));
        by_holds.into_iter().chain(by_entries).min().unwrap_or_default()
    }

    /// Adds a charge. The receipt is the tick of its entry.
    fn add(&mut self, rule: &Rule, cost: u64, now_us: u64) -> [u64; 2] {
        let ceiling = LogLayout::of(rule.period_ms()).next_tick(now_us);
        let total = self.entries.last().map_or(self.base, |(_, total)| *total) + cost;
        self.entries_expire_at_ms = now_us / 1000 + lifetime_ms(rule);
        match self.entries.last_mut() {
            Some((time, newest)) if *time >= ceiling => {
                *newest = total;
                [*time, 0]
            }
            _ => {
                self.entries.push((ceiling, total));
                [ceiling, 0]
            }
        }
    }
}

impl MemoryState for SlidingLog {
    type Align = ();

    fn restart(&mut self, _rule: &Rule, _now_us: u64) {
        *self = Self::default();
    }

    #[inline]
    fn expires_at_ms(&self) -> u64 {
        let Some(holds) = &self.holds else { return self.entries_expire_at_ms };
        let banned_until_ms = holds.ban.map_or(0, |ban| ban.until_ms);
        let expires_at_ms = self.entries_expire_at_ms.max(holds.set.expires_at_ms()).max(banned_until_ms);
        holds.settled.iter().map(|settled| settled.expires_at_ms).fold(expires_at_ms, u64::max)
    }

    /// The age of entries is unknown after the clock was set back: all of them count as made now.
    fn correct_clock(&mut self, rule: &Rule, now_us: u64) {
        let expires_at_ms = now_us / 1000 + lifetime_ms(rule);
        if self.entries_expire_at_ms > expires_at_ms
            && let Some(&(_, total)) = self.entries.last()
        {
            self.entries.clear();
            self.entries.push((LogLayout::of(rule.period_ms()).next_tick(now_us), total));
            self.entries_expire_at_ms = expires_at_ms;
        }
        if let Some(holds) = &mut self.holds {
            holds.set.correct_clock(now_us);
            holds.ban = holds.ban.map(|ban| ban.corrected(now_us / 1000));
        }
    }

    /// A hold does not fit if there are [`MOST_HOLDS`] already, nor, if it is exclusive, beside
    /// another one.
    fn evaluate(&mut self, query: &ChargeQuery<'_>, cost: u64, now_us: u64) -> Evaluation {
        let (rule, hold) = (query.rule, query.hold.filter(|_| cost > 0));
        let (layout, millis) = (LogLayout::of(rule.period_ms()), now_us / 1000);
        let now = layout.tick(now_us);
        self.drop_expired_entries(&layout, now);
        self.drop_expired_holds(now_us);

        let holds = self.holds();
        let (used, in_holds) = (self.used(), holds.total());
        let remaining = rule.count().saturating_sub(used + in_holds);
        let last_end_ms = holds.last_end_ms(now_us);
        let holds_end_ms = last_end_ms.map_or(0, |ends_ms| holds.counts_until_ms(ends_ms) - millis);
        let reset_after_ms = self.entries.last().map_or(0, |(time, _)| layout.wait_ms(*time, now)).max(holds_end_ms);
        let retry_after_ms = (cost > remaining).then(|| {
            let short = (used + in_holds).saturating_add(cost).saturating_sub(rule.count()).min(used + in_holds);
            self.wait_ms(&layout, now_us, short)
        });
        let turn_ms = last_end_ms.map_or(0, |ends_ms| ends_ms.saturating_sub(millis));
        let turn_ms = (turn_ms > 0 && hold.is_some_and(|hold| hold.exclusive)).then_some(turn_ms);
        let first_end_ms = (holds.len() >= MOST_HOLDS && hold.is_some()).then(|| holds.first_end_ms(now_us));
        let room_ms = first_end_ms.flatten().map(|ends_ms| holds.counts_until_ms(ends_ms) - millis);
        let found = Evaluation::new(rule, remaining, reset_after_ms, retry_after_ms.max(turn_ms).max(room_ms));
        if let Some(ban) = self.banned(now_us) {
            let left_ms = ban.until_ms - millis;
            let retry_after_ms = wait_ms(found.decision.retry_after_ms).unwrap_or_default().max(left_ms);
            return Evaluation::banned(rule, reset_after_ms.max(left_ms), retry_after_ms);
        }
        if found.fits {
            return found;
        }
        let ended = holds.ended(now_us);
        Evaluation {
            held: in_holds - ended,
            fits_when_released: (used + ended).saturating_add(cost) <= rule.count(),
            ..found
        }
    }

    fn commit(&mut self, query: &ChargeQuery<'_>, amount: u64, now_us: u64) -> [u64; 2] {
        let Some(hold) = query.hold else { return self.add(query.rule, amount, now_us) };
        self.holds_mut(query.rule).set.insert(now_us, amount, hold);
        [hold.id, amount]
    }

    fn ban(&mut self, rule: &Rule, ban: Ban) {
        let holds = self.holds_mut(rule);
        holds.ban = Some(ban.lasting_until(holds.ban.map_or(0, |ban| ban.until_ms)));
    }

    fn unban(&mut self, now_us: u64) {
        if self.banned(now_us).is_some() {
            self.entries.clear();
            self.entries_expire_at_ms = 0;
            self.holds.iter_mut().for_each(|holds| holds.ban = None);
            self.drop_expired_holds(now_us);
        }
    }

    fn needs_us() -> bool {
        true
    }

    /// If something is logged, nothing is held, and the clock was not set back.
    #[inline(always)]
    #[allow(clippy::inline_always)] // the outcome can stay in registers
    fn charge_at_once(&mut self, rule: &Rule, cost: u64, now: DecisionTime) -> Option<Outcome> {
        let now_us = now.us;
        let is_clock_set_back = self.entries_expire_at_ms > now_us / 1000 + lifetime_ms(rule);
        // An expired log is dropped as a whole, with its memory.
        if self.holds.is_some() || is_clock_set_back || self.is_fresh(now_us) {
            return None;
        }
        let layout = LogLayout::of(rule.period_ms());
        let now = layout.tick(now_us);
        // Looked up once: they lie in the slot, or elsewhere.
        let mut entries = &*self.entries;
        if entries.first().is_some_and(|(time, _)| layout.is_expired(*time, now)) {
            self.drop_expired_entries(&layout, now);
            entries = &*self.entries;
        }
        let (base, count) = (self.base, rule.count());
        let used = sum_of(entries, base);
        let remaining = count.saturating_sub(used);
        if cost > remaining {
            let short = used.saturating_add(cost).saturating_sub(count).min(used);
            let free_ms = free_ms(entries, base, &layout, now, short);
            return Some(Outcome::denied(remaining, free_ms.unwrap_or_default()));
        }
        let receipt = self.add(rule, cost, now_us);
        Some(Outcome::admitted(remaining - cost, layout.wait_ms(receipt[0], now), receipt))
    }

    fn refund(&mut self, rule: &Rule, cost: u64, [time, _]: [u64; 2], now_us: u64) -> u64 {
        if self.banned(now_us).is_some() {
            return 0;
        }
        let layout = LogLayout::of(rule.period_ms());
        self.drop_expired_entries(&layout, layout.tick(now_us));
        let Ok(index) = self.entries.binary_search_by_key(&time, |(time, _)| *time) else {
            return 0;
        };
        if self.entries.len() - index > REFUND_DEPTH {
            return 0;
        }
        let before = index.checked_sub(1).map_or(self.base, |previous| self.entries[previous].1);
        let back = cost.min(self.entries[index].1 - before);
        for (_, total) in &mut self.entries[index..] {
            *total -= back;
        }
        if self.entries[index].1 == before {
            self.entries.remove(index);
        }
        if self.entries.is_empty() {
            self.entries_expire_at_ms = 0;
        }
        back
    }

    fn renew(&mut self, hold: &Hold, now_us: u64) -> bool {
        self.holds.as_mut().is_some_and(|holds| holds.set.renew(now_us, hold))
    }

    /// Charges the amount used whether or not it fits; see [`Hold::is_retry`] for retries.
    fn settle(&mut self, rule: &Rule, hold: &Hold, used: u64, now_us: u64) -> u64 {
        self.correct_clock(rule, now_us);
        let (layout, millis) = (LogLayout::of(rule.period_ms()), now_us / 1000);
        self.drop_expired_entries(&layout, layout.tick(now_us));
        self.drop_expired_holds(now_us);
        let (mut removed, mut is_settled) = (None, false);
        if let Some(LogHolds { set, settled, .. }) = self.holds.as_deref_mut() {
            settled.retain(|settled| settled.expires_at_ms > millis);
            removed = set.remove(hold.id);
            is_settled = removed.is_none() && settled.iter().any(|settled| settled.id == hold.id);
            if removed.is_some() && hold.is_retry {
                let too_many = (settled.len() + 1).saturating_sub(MAX_SETTLED);
                settled.drain(..too_many);
                settled.push(SettledHold { id: hold.id, expires_at_ms: set.new_counts_until_ms(now_us, hold) });
            }
        }
        is_settled |= removed.is_none() && hold.is_retry;
        let used = used.min(layout.largest_count() - self.used());
        if used > 0 && !is_settled {
            self.add(rule, used, now_us);
        }
        removed.map_or(0, |removed| removed.amount)
    }
}

#[cfg(feature = "redis")]
impl RedisScript for SlidingLog {
    /// The second script is for holds. The first leaves their arguments nil.
    const SCRIPTS: &'static [LuaScript] = &[
        LuaScript {
            decide: concat!("local id, lease, allow_partial, exclusive\n", include_str!("decide.lua")),
            args: "cost, count, period, digits",
            ..HOLDING
        },
        HOLDING,
    ];

    fn script_index(charge: &Charge) -> usize {
        charge.hold.is_some().into()
    }

    fn args(charge: &Charge) -> PackedNumbers {
        let (cost, count, period_ms) = (charge.cost, charge.rule.count(), charge.rule.period_ms());
        let digits = LogLayout::of(period_ms).digits().into();
        let Some(hold) = &charge.hold else { return pack([cost, count, period_ms, digits]) };
        let (allow_partial, exclusive) = (hold.allow_partial.into(), hold.exclusive.into());
        pack([cost, count, period_ms, digits, hold.id, hold.lease_ms(), allow_partial, exclusive])
    }

    fn refund_args(charge: &Charge) -> PackedNumbers {
        let ([time, _], period_ms) = (charge.receipt, charge.rule.period_ms());
        pack([charge.cost, period_ms, time, LogLayout::of(period_ms).digits().into()])
    }

    fn steps(rule: &Rule) -> u64 {
        // Three binary searches: one for the expired entries, and two for those to wait for.
        100 + 30 * u64::from(rule.count().max(1).ilog2())
    }

    fn parse_reply(charge: &Charge, _charged: bool, reply: &Value) -> Option<(Evaluation, [u64; 2])> {
        let rule = &charge.rule;
        let numbers = match reply {
            Value::Int(packed) => {
                let (packed, ahead_ms) = if *packed < 0 { (-1 - packed, 1) } else { (*packed, 0) };
                let cycle = LogLayout::of(rule.period_ms()).cycle();
                let (remaining, time) = (packed.unsigned_abs() / cycle, packed.unsigned_abs() % cycle);
                return Some((Evaluation::new(rule, remaining, rule.period_ms() + ahead_ms, None), [time, 0]));
            }
            Value::Array(numbers) => numbers,
            _ => return None,
        };
        let [Value::Int(remaining), Value::Int(reset_after_ms), Value::Int(other), held @ ..] = &**numbers else {
            return None;
        };
        let (reset_after_ms, other) = (reset_after_ms.unsigned_abs(), other.unsigned_abs());
        Some(if *remaining < 0 {
            let found = Evaluation::new(rule, (-1 - remaining).unsigned_abs(), reset_after_ms, Some(other));
            (found.with_held(held), [0; 2])
        } else {
            // `other` is the tick of a charge, or the amount held.
            (Evaluation::new(rule, remaining.unsigned_abs(), reset_after_ms, None), [other, other])
        })
    }

    fn shift_reply(rule: &Rule, reply: &Value, more: i64) -> Option<Value> {
        Some(match reply {
            Value::Int(packed) => {
                let more = more.checked_mul(i64::try_from(LogLayout::of(rule.period_ms()).cycle()).ok()?)?;
                Value::Int(if *packed < 0 { packed.checked_add(more)? } else { packed.checked_sub(more)? })
            }
            Value::Array(numbers) => {
                let [Value::Int(remaining), Value::Int(reset_after_ms), Value::Int(time)] = **numbers else {
                    return None;
                };
                Value::Array([remaining.checked_sub(more)?, reset_after_ms, time].map(Value::Int).into())
            }
            _ => return None,
        })
    }
}

#[cfg(feature = "redis")]
const HOLDING: LuaScript = LuaScript {
    decide: include_str!("decide.lua"),
    args: "cost, count, period, digits, id, lease, allow_partial, exclusive",
    first_of_many: "cost * n",
    place: "granted + n - 1",
    stored: "nil",
    fitting: "local fitting = (-1 - reply[1]) / its_cost",
    has_value: false,
    ban: include_str!("ban.lua"),
    unban: include_str!("unban.lua"),
    refund: include_str!("refund.lua"),
    refund_args: "cost, period, charged, digits",
};

#[cfg(all(test, not(model_check)))]
mod tests {
    use std::time::Duration;

    use super::{super::contract::evaluate, *};
    use crate::Algorithm;

    /// The second settlement finds no room. So nothing counts when the first one has expired.
    #[test]
    fn use_beyond_the_largest_count_is_not_charged() {
        let rule = Rule::new("item", 1, Duration::from_secs(1)).with_algorithm(Algorithm::SlidingLog);
        let largest = LogLayout::of(rule.period_ms()).largest_count();
        let mut log = SlidingLog::default();
        for at_us in [60_000_000, 60_500_000] {
            log.settle(&rule, &Hold::new(Duration::from_secs(1)), largest, at_us);
        }
        let mut left = |at_us| evaluate(&mut log, &ChargeQuery::of(&rule, 1), at_us).decision.remaining;
        assert_eq!([left(60_999_999), left(61_000_000)], [0, 1]);
    }
}
