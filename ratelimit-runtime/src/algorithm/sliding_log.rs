//! Sliding log: each charge is remembered for one period.
//!
//! The *sliding window log* of the textbooks, stored as running totals, so that a weighted charge is one entry and
//! the sum of any stretch is a subtraction.

use std::collections::VecDeque;

#[cfg(feature = "redis")]
use redis::Value;

use super::Look;
#[cfg(feature = "redis")]
use super::script::{Numbers, pack};
use crate::{Rule, store::Hold};

/// How a period is stored. It depends on the period alone, so a changed count reads the same log.
pub(super) struct Layout {
    /// Microseconds a tick.
    tick_us: u64,
    period_ticks: u64,
    /// How many digits of an entry in Redis are its total.
    digits: u32,
}

/// What times are stored modulo in Redis, times what totals are: Lua's numbers are whole up to there.
const ROOM: u64 = 8_123_456_790_000_000;
const MOST_DIGITS: u32 = 7;

impl Layout {
    pub(super) const fn of(rule: &Rule) -> Self {
        let period_us = rule.period_ms().saturating_mul(1000);
        let tick_us = if period_us <= 200_000_000 { 1 } else { 1000 };
        let mut layout = Self { tick_us, period_ticks: period_us / tick_us, digits: MOST_DIGITS };
        while layout.cycle() / 5 * 2 < layout.period_ticks {
            layout.digits -= 1;
        }
        layout
    }

    /// What times are stored modulo in Redis: two and a half periods at least.
    const fn cycle(&self) -> u64 {
        ROOM / self.largest_count()
    }

    /// As much as a total in Redis can tell apart.
    pub(super) const fn largest_count(&self) -> u64 {
        10_u64.pow(self.digits)
    }
}

/// Entries that a charge can be given back behind: every later total changes, and a server does nothing else meanwhile.
const GIVE_BACK_DEPTH: usize = 5000;

/// The log of one counter.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// When all of its entries have expired.
    until_ms: u64,
    /// Ticks, and the total of all charges up to and including this one.
    entries: VecDeque<(u64, u64)>,
    /// The total of what has expired.
    base: u64,
    holds: Vec<Held>,
}

/// What is held until it is settled. It counts until a period after its end, so one that nobody settles becomes a charge made then.
#[derive(Debug)]
struct Held {
    id: u64,
    much: u64,
    ends_ms: u64,
    /// When it no longer counts.
    until_ms: u64,
    lease_ms: u64,
    is_kept: bool,
}

/// How long after a charge at most it still counts; a clock may be a fraction of a millisecond ahead of it.
fn lifetime_ms(rule: &Rule) -> u64 {
    rule.period_ms() + 1
}

impl Held {
    fn begin(rule: &Rule, now_us: u64, much: u64, asked: &Hold) -> Self {
        let (lease_ms, is_kept) = (asked.lease_ms(), asked.is_kept);
        let mut held = Self { id: asked.id, much, ends_ms: 0, until_ms: 0, lease_ms, is_kept };
        held.renew(rule, now_us);
        held
    }

    /// Lasts as long again from now.
    fn renew(&mut self, rule: &Rule, now_us: u64) {
        self.ends_ms = now_us.div_ceil(1000).saturating_add(self.lease_ms);
        self.until_ms = self.ends_ms.saturating_add(rule.period_ms());
    }
}

impl Log {
    /// If the clock was set back, nobody knows how old the entries are: all of them count as made now.
    pub(super) fn set_right(&mut self, rule: &Rule, now_us: u64) {
        let until_ms = now_us / 1000 + lifetime_ms(rule);
        if self.until_ms > until_ms
            && let Some((_, total)) = self.entries.pop_back()
        {
            self.entries.clear();
            self.entries.push_back((now_us.div_ceil(Layout::of(rule).tick_us), total));
            self.until_ms = until_ms;
        }
        for held in &mut self.holds {
            if held.is_kept || held.ends_ms > now_us.div_ceil(1000).saturating_add(held.lease_ms) {
                held.renew(rule, now_us);
            }
        }
    }

    /// When nothing counts any more.
    pub(super) fn until_ms(&self) -> u64 {
        let until_ms = |held: &Held| if held.is_kept { u64::MAX } else { held.until_ms };
        self.holds.iter().map(until_ms).fold(self.until_ms, u64::max)
    }

    /// Decides at `now_us`, having dropped what has expired by then. With `alone` it does not fit beside anything that is held.
    pub(super) fn look(&mut self, rule: &Rule, now_us: u64, cost: u64, alone: bool) -> Look {
        let (layout, millis) = (Layout::of(rule), now_us / 1000);
        let now = now_us / layout.tick_us;
        self.drop_expired(&layout, now);
        self.holds.retain(|held| held.until_ms > millis);
        // Those that end first come first.
        self.holds.sort_by_key(|held| held.until_ms);

        let wait_ms = |time: u64| ((time + layout.period_ticks - now) * layout.tick_us).div_ceil(1000);
        let newest = self.entries.back();
        let used = newest.map_or(0, |(_, total)| total - self.base);
        let held: u64 = self.holds.iter().map(|held| held.much).sum();
        let remaining = rule.count().saturating_sub(used + held);
        let reset_after_ms = newest.map_or(0, |(time, _)| wait_ms(*time));
        let reset_after_ms = self.holds.last().map_or(0, |held| held.until_ms - millis).max(reset_after_ms);
        let retry_after_ms = (cost > remaining).then(|| {
            let short = (used + held).saturating_add(cost).saturating_sub(rule.count()).min(used + held);
            // How long until so much has expired, if the first holds have, and for the rest entries.
            let mut freed = 0;
            let after_holds = |at: usize| {
                let after_ms = at.checked_sub(1).map_or(0, |last| self.holds[last].until_ms - millis);
                freed += at.checked_sub(1).map_or(0, |last| self.holds[last].much);
                let rest = short.saturating_sub(freed);
                let last_in_the_way = self.entries.partition_point(|(_, total)| total - self.base < rest);
                let entry =
                    if rest == 0 { Some(0) } else { self.entries.get(last_in_the_way).map(|(time, _)| wait_ms(*time)) };
                entry.map(|entry_ms| entry_ms.max(after_ms))
            };
            (0..=self.holds.len()).filter_map(after_holds).min().unwrap_or_default()
        });
        let turn_ms = self.holds.last().map_or(0, |held| held.ends_ms.saturating_sub(millis));
        let turn_ms = (alone && turn_ms > 0).then_some(turn_ms);
        let retry_after_ms = retry_after_ms.max(turn_ms);
        let live: u64 = self.holds.iter().filter(|held| held.ends_ms > millis).map(|held| held.much).sum();
        let look = Look::new(rule, remaining, reset_after_ms, retry_after_ms);
        if look.fits {
            return look;
        }
        Look { held: live, is_busy: (used + held - live).saturating_add(cost) <= rule.count(), ..look }
    }

    /// Holds what [`Log::look`] has found to fit.
    pub(super) fn hold(&mut self, rule: &Rule, now_us: u64, much: u64, asked: &Hold) -> [u64; 2] {
        self.holds.push(Held::begin(rule, now_us, much, asked));
        [asked.id, much]
    }

    /// Says whether the hold still counts, which lasts as long again from now if it does.
    pub(super) fn renew(&mut self, rule: &Rule, now_us: u64, asked: &Hold) -> bool {
        let held = self.holds.iter_mut().find(|held| held.id == asked.id && held.until_ms > now_us / 1000);
        let Some(held) = held else { return false };
        *held = Held::begin(rule, now_us, held.much, asked);
        true
    }

    /// Charges what was used instead of what was held, whether or not it fits, and says how much still was.
    pub(super) fn settle(&mut self, rule: &Rule, now_us: u64, asked: &Hold, used: u64) -> u64 {
        let ended = self.holds.extract_if(.., |held| held.id == asked.id);
        let still_held = ended.filter(|held| held.until_ms > now_us / 1000).map(|held| held.much).sum();
        self.look(rule, now_us, 0, false);
        let charged = self.entries.back().map_or(0, |(_, total)| total - self.base);
        let used = used.min(Layout::of(rule).largest_count() - charged);
        if used > 0 {
            self.charge(rule, now_us, used);
        }
        still_held
    }

    /// Adds a charge that [`Log::look`] has found to fit, and returns the time of its entry.
    pub(super) fn charge(&mut self, rule: &Rule, now_us: u64, cost: u64) -> [u64; 2] {
        let ceiling = now_us.div_ceil(Layout::of(rule).tick_us);
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
    pub(super) fn give_back(&mut self, rule: &Rule, now_us: u64, [time, _]: [u64; 2], cost: u64) -> u64 {
        let layout = Layout::of(rule);
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

    fn drop_expired(&mut self, layout: &Layout, now: u64) {
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
    pack([cost, rule.count(), rule.period_ms(), Layout::of(rule).digits.into()])
}

/// And for a charge that is held.
#[cfg(feature = "redis")]
pub(super) fn hold_numbers(rule: &Rule, cost: u64, asked: &Hold) -> Numbers {
    let digits = Layout::of(rule).digits.into();
    pack([
        cost,
        rule.count(),
        rule.period_ms(),
        digits,
        asked.id,
        asked.lease_ms(),
        asked.partial.into(),
        asked.alone.into(),
    ])
}

#[cfg(feature = "redis")]
pub(super) fn give_back_numbers(rule: &Rule, [time, _]: [u64; 2], cost: u64) -> Numbers {
    pack([cost, rule.period_ms(), time, Layout::of(rule).digits.into()])
}

/// What the script says of the log, after the charge if there was one, and the receipt.
#[cfg(feature = "redis")]
pub(super) fn read(rule: &Rule, reply: &Value) -> Option<(Look, [u64; 2])> {
    let numbers = match reply {
        Value::Int(packed) => {
            let (packed, ahead_ms) = if *packed < 0 { (-1 - packed, 1) } else { (*packed, 0) };
            let cycle = Layout::of(rule).cycle();
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
            let more = more.checked_mul(i64::try_from(Layout::of(rule).cycle()).ok()?)?;
            Value::Int(if *packed < 0 { packed.checked_add(more)? } else { packed.checked_sub(more)? })
        }
        Value::Array(numbers) => {
            let [Value::Int(remaining), Value::Int(reset_after_ms), Value::Int(time)] = **numbers else { return None };
            Value::Array([remaining.checked_sub(more)?, reset_after_ms, time].map(Value::Int).into())
        }
        _ => return None,
    })
}
