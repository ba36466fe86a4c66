//! Sliding log: each charge is remembered for one period.
//!
//! The *sliding window log* of the textbooks, stored as running totals, so that a weighted charge is one entry and
//! the sum of any stretch is a subtraction.

use std::collections::VecDeque;

#[cfg(feature = "redis")]
use redis::Value;
use smallvec::{SmallVec, smallvec};

#[cfg(feature = "redis")]
use super::script::{Numbers, pack};
use super::{Look, holds::HoldSet};
use crate::{
    Rule,
    rule::limits::{LogLayout, MOST_HOLDS},
    store::Hold,
};

/// Entries that a charge can be refunded behind: every later total changes, and a server does nothing else meanwhile.
const GIVE_BACK_DEPTH: usize = 5000;

/// Settled holds that are remembered at most, see [`Settled`].
const MOST_SETTLED: usize = 10_000;

/// The log of one counter.
#[derive(Debug)]
pub(crate) struct Log {
    /// When all of its entries have expired.
    until_ms: u64,
    /// Ticks, and the total of all charges up to and including this one.
    entries: VecDeque<(u64, u64)>,
    /// The total of what has expired.
    base: u64,
    /// Most logs have none.
    holds: Option<Box<Holds>>,
}

#[derive(Debug)]
struct Holds {
    /// They count until a period after their ends, so one that nobody settles becomes a charge made then.
    set: HoldSet,
    settled: Vec<Settled>,
}

static NO_HOLDS: HoldSet = HoldSet::counting_on(0);

/// A hold that was settled by a retry. The first attempt may come later, and charges nothing then. It counts nothing, and is forgotten after a lease
/// and a period.
#[derive(Debug)]
struct Settled {
    id: u64,
    until_ms: u64,
}

/// How long after a charge at most it still counts; a clock may be a fraction of a millisecond ahead of it.
fn lifetime_ms(rule: &Rule) -> u64 {
    rule.period_ms() + 1
}

impl Log {
    pub(super) fn empty() -> Self {
        Self { until_ms: 0, entries: VecDeque::new(), base: 0, holds: None }
    }

    fn holds(&self) -> &HoldSet {
        self.holds.as_ref().map_or(&NO_HOLDS, |holds| &holds.set)
    }

    /// Drops the holds that count no more.
    fn drop_ended(&mut self, now_us: u64) {
        let Some(holds) = &mut self.holds else { return };
        holds.set.drop_ended(now_us);
        if holds.set.len() == 0 && holds.settled.is_empty() {
            self.holds = None;
        }
    }

    /// If the clock was set back, nobody knows how old the entries are: all of them count as made now.
    pub(super) fn set_right(&mut self, rule: &Rule, now_us: u64) {
        let until_ms = now_us / 1000 + lifetime_ms(rule);
        if self.until_ms > until_ms
            && let Some((_, total)) = self.entries.pop_back()
        {
            self.entries.clear();
            self.entries.push_back((now_us.div_ceil(LogLayout::of(rule.period_ms()).tick_us), total));
            self.until_ms = until_ms;
        }
        if let Some(holds) = &mut self.holds {
            holds.set.set_right(now_us);
        }
    }

    /// When nothing counts any more, and nothing has to be remembered.
    pub(super) fn until_ms(&self) -> u64 {
        let Some(holds) = &self.holds else { return self.until_ms };
        let until_ms = self.until_ms.max(holds.set.until_ms());
        holds.settled.iter().map(|settled| settled.until_ms).fold(until_ms, u64::max)
    }

    /// Decides at `now_us`, having dropped what has expired by then. A hold does not fit where there are too many, nor, if it is to be alone, beside
    /// any other.
    pub(super) fn look(&mut self, rule: &Rule, now_us: u64, cost: u64, asked: Option<&Hold>) -> Look {
        let (layout, millis) = (LogLayout::of(rule.period_ms()), now_us / 1000);
        let now = now_us / layout.tick_us;
        self.drop_expired(&layout, now);
        self.drop_ended(now_us);

        let holds = self.holds();
        let (used, held) = (self.used(), holds.total());
        let remaining = rule.count().saturating_sub(used + held);
        let last_end_ms = holds.last_end_ms(now_us);
        let holds_end_ms = last_end_ms.map_or(0, |ends_ms| holds.counts_until_ms(ends_ms) - millis);
        let reset_after_ms = self.entries.back().map_or(0, |(time, _)| layout.wait_ms(*time, now)).max(holds_end_ms);
        let retry_after_ms = (cost > remaining).then(|| {
            let short = (used + held).saturating_add(cost).saturating_sub(rule.count()).min(used + held);
            self.wait_ms(&layout, now_us, short)
        });
        let turn_ms = last_end_ms.map_or(0, |ends_ms| ends_ms.saturating_sub(millis));
        let turn_ms = (turn_ms > 0 && asked.is_some_and(|hold| hold.exclusive)).then_some(turn_ms);
        let first_end_ms = (holds.len() >= MOST_HOLDS && asked.is_some()).then(|| holds.first_end_ms(now_us));
        let room_ms = first_end_ms.flatten().map(|ends_ms| holds.counts_until_ms(ends_ms) - millis);
        let look = Look::new(rule, remaining, reset_after_ms, retry_after_ms.max(turn_ms).max(room_ms));
        if look.fits {
            return look;
        }
        let overdue = holds.overdue(now_us);
        Look { held: held - overdue, fits_when_released: (used + overdue).saturating_add(cost) <= rule.count(), ..look }
    }

    /// How much the entries that have not expired are together.
    fn used(&self) -> u64 {
        self.entries.back().map_or(0, |(_, total)| total - self.base)
    }

    /// How long until so much has expired of what is held and what was charged.
    fn wait_ms(&self, layout: &LogLayout, now_us: u64, short: u64) -> u64 {
        let (now, millis) = (now_us / layout.tick_us, now_us / 1000);
        // When the first holds have ended: how much that is, and how long it takes.
        let mut ended: SmallVec<[(u64, u64); 4]> = smallvec![(0, 0)];
        let mut freed = 0;
        for (ends_ms, amount) in self.holds().in_order(now_us) {
            if freed >= short {
                break;
            }
            freed += amount;
            ended.push((freed, self.holds().counts_until_ms(ends_ms) - millis));
        }
        // How long until entries have made up for the rest, if they can.
        let rest_ms = |freed: u64| {
            let rest = short.saturating_sub(freed);
            let last_in_the_way = self.entries.partition_point(|(_, total)| total - self.base < rest);
            let entry = self.entries.get(last_in_the_way).map(|(time, _)| layout.wait_ms(*time, now));
            if rest == 0 { Some(0) } else { entry }
        };
        // The more holds are waited for, the fewer entries.
        let at = ended.partition_point(|&(freed, after_ms)| rest_ms(freed).is_none_or(|rest_ms| rest_ms > after_ms));
        let by_holds = ended.get(at).map(|&(_, after_ms)| after_ms);
        let by_entries = at.checked_sub(1).and_then(|before| rest_ms(ended[before].0));
        by_holds.into_iter().chain(by_entries).min().unwrap_or_default()
    }

    /// Holds what [`Log::look`] has found to fit.
    pub(super) fn hold(&mut self, rule: &Rule, now_us: u64, much: u64, asked: &Hold) -> [u64; 2] {
        let none = || Box::new(Holds { set: HoldSet::counting_on(rule.period_ms()), settled: Vec::new() });
        self.holds.get_or_insert_with(none).set.insert(now_us, much, asked);
        [asked.id, much]
    }

    /// Says whether the hold still counts, which lasts as long again from now if it does.
    pub(super) fn renew(&mut self, now_us: u64, asked: &Hold) -> bool {
        self.holds.as_mut().is_some_and(|holds| holds.set.renew(now_us, asked))
    }

    /// Charges what was used instead of what was held, whether or not it fits, and says how much still was. See [`Hold::again`].
    pub(super) fn settle(&mut self, rule: &Rule, now_us: u64, asked: &Hold, used: u64) -> u64 {
        let (layout, millis) = (LogLayout::of(rule.period_ms()), now_us / 1000);
        self.drop_expired(&layout, now_us / layout.tick_us);
        self.drop_ended(now_us);
        let (mut held, mut is_settled) = (None, false);
        if let Some(Holds { set, settled }) = self.holds.as_deref_mut() {
            settled.retain(|settled| settled.until_ms > millis);
            held = set.remove(asked.id);
            is_settled = held.is_none() && settled.iter().any(|settled| settled.id == asked.id);
            if held.is_some() && asked.is_retry {
                let too_many = (settled.len() + 1).saturating_sub(MOST_SETTLED);
                settled.drain(..too_many);
                settled.push(Settled { id: asked.id, until_ms: set.new_until_ms(now_us, asked) });
            }
        }
        is_settled |= held.is_none() && asked.is_retry;
        let used = used.min(layout.largest_count() - self.used());
        if used > 0 && !is_settled {
            self.charge(rule, now_us, used);
        }
        held.map_or(0, |held| held.amount)
    }

    /// Adds a charge that [`Log::look`] has found to fit, and returns the time of its entry.
    pub(super) fn charge(&mut self, rule: &Rule, now_us: u64, cost: u64) -> [u64; 2] {
        let ceiling = now_us.div_ceil(LogLayout::of(rule.period_ms()).tick_us);
        let total = self.entries.back().map_or(self.base, |(_, total)| *total) + cost;
        self.until_ms = now_us / 1000 + lifetime_ms(rule);
        match self.entries.back_mut() {
            Some((time, newest)) if *time >= ceiling => {
                *newest = total;
                [*time, 0]
            }
            _ => {
                self.entries.push_back((ceiling, total));
                [ceiling, 0]
            }
        }
    }

    /// Takes a charge out of the entry of that time, and returns how much it still held.
    pub(super) fn refund(&mut self, rule: &Rule, now_us: u64, [time, _]: [u64; 2], cost: u64) -> u64 {
        let layout = LogLayout::of(rule.period_ms());
        self.drop_expired(&layout, now_us / layout.tick_us);
        let Ok(index) = self.entries.binary_search_by_key(&time, |(time, _)| *time) else {
            return 0;
        };
        if self.entries.len() - index > GIVE_BACK_DEPTH {
            return 0;
        }
        let before = index.checked_sub(1).map_or(self.base, |previous| self.entries[previous].1);
        let back = cost.min(self.entries[index].1 - before);
        for (_, total) in self.entries.range_mut(index..) {
            *total -= back;
        }
        if self.entries[index].1 == before {
            self.entries.remove(index);
        }
        if self.entries.is_empty() {
            self.until_ms = 0;
        }
        back
    }

    fn drop_expired(&mut self, layout: &LogLayout, now: u64) {
        while let Some(&(time, total)) = self.entries.front()
            && time + layout.period_ticks <= now
        {
            self.base = total;
            self.entries.pop_front();
        }
    }
}

#[cfg(feature = "redis")]
pub(super) fn numbers(rule: &Rule, cost: u64) -> Numbers {
    pack([cost, rule.count(), rule.period_ms(), LogLayout::of(rule.period_ms()).digits.into()])
}

/// And for a charge that is held.
#[cfg(feature = "redis")]
pub(super) fn hold_numbers(rule: &Rule, cost: u64, asked: &Hold) -> Numbers {
    let digits = LogLayout::of(rule.period_ms()).digits.into();
    pack([
        cost,
        rule.count(),
        rule.period_ms(),
        digits,
        asked.id,
        asked.lease_ms(),
        asked.allow_partial.into(),
        asked.exclusive.into(),
    ])
}

#[cfg(feature = "redis")]
pub(super) fn refund_numbers(rule: &Rule, [time, _]: [u64; 2], cost: u64) -> Numbers {
    pack([cost, rule.period_ms(), time, LogLayout::of(rule.period_ms()).digits.into()])
}

/// What the script says of the log, after the charge if there was one, and the receipt.
#[cfg(feature = "redis")]
pub(super) fn read(rule: &Rule, reply: &Value) -> Option<(Look, [u64; 2])> {
    let numbers = match reply {
        Value::Int(packed) => {
            let (packed, ahead_ms) = if *packed < 0 { (-1 - packed, 1) } else { (*packed, 0) };
            let cycle = LogLayout::of(rule.period_ms()).cycle();
            let (remaining, time) = (packed.unsigned_abs() / cycle, packed.unsigned_abs() % cycle);
            return Some((Look::new(rule, remaining, rule.period_ms() + ahead_ms, None), [time, 0]));
        }
        Value::Array(numbers) => numbers,
        _ => return None,
    };
    let [Value::Int(remaining), Value::Int(reset_after_ms), Value::Int(other), held @ ..] = &**numbers else {
        return None;
    };
    let (remaining, [reset_after_ms, other]) =
        (*remaining, [reset_after_ms, other].map(|number| number.unsigned_abs()));
    Some(if remaining < 0 {
        let look = Look::new(rule, (-1 - remaining).unsigned_abs(), reset_after_ms, Some(other));
        (look.holding(held), [0; 2])
    } else {
        // The time of a charge, or how much is held.
        (Look::new(rule, remaining.unsigned_abs(), reset_after_ms, None), [other, other])
    })
}

/// The reply to a charge that was made in the same tick after `more` has been charged.
#[cfg(feature = "redis")]
pub(super) fn reply_to_another(rule: &Rule, reply: &Value, more: i64) -> Option<Value> {
    Some(match reply {
        Value::Int(packed) => {
            let more = more.checked_mul(i64::try_from(LogLayout::of(rule.period_ms()).cycle()).ok()?)?;
            Value::Int(if *packed < 0 { packed.checked_add(more)? } else { packed.checked_sub(more)? })
        }
        Value::Array(numbers) => {
            let [Value::Int(remaining), Value::Int(reset_after_ms), Value::Int(time)] = **numbers else { return None };
            Value::Array([remaining.checked_sub(more)?, reset_after_ms, time].map(Value::Int).into())
        }
        _ => return None,
    })
}
