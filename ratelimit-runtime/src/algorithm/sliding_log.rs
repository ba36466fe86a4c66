//! Sliding log: each charge is remembered for one period.
//!
//! The *sliding window log* of the textbooks, stored as running totals, so that a weighted charge is one entry and
//! the sum of any stretch is a subtraction.

use std::collections::VecDeque;

use crate::{Decision, Rule};

/// How a period is stored: the length of a tick, and how many digits of an entry are its time.
///
/// It depends on the period alone, so a changed count reads the same log.
pub(super) struct Layout {
    /// Microseconds a tick.
    tick_us: u64,
    period_ticks: u64,
    /// Times are stored modulo ten to this power, at least five periods; totals have the rest of 18 digits.
    digits: u32,
}

impl Layout {
    pub(super) fn of(rule: &Rule) -> Self {
        let period_us = rule.period_ms().saturating_mul(1000);
        let tick_us = if period_us <= 200_000_000 { 1 } else { 1000 };
        let period_ticks = period_us / tick_us;
        let digits = ((5 * period_ticks - 1).ilog10() + 1).max(9);
        Self { tick_us, period_ticks, digits }
    }

    /// Half of what a total can hold.
    pub(super) fn largest_count(&self) -> u64 {
        10_u64.pow(18 - self.digits) / 2
    }
}

/// Entries that a charge can be given back behind: every later total changes, and a server does nothing else meanwhile.
const GIVE_BACK_DEPTH: usize = 5000;

/// The log of one counter.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// Ticks, and the total of all charges up to and including this one.
    entries: VecDeque<(u64, u64)>,
    /// The total of what has expired.
    base: u64,
}

impl Log {
    /// Decides at `now_us`, having dropped what has expired by then.
    pub(super) fn decide(&mut self, rule: &Rule, now_us: u64, cost: u64) -> (bool, Decision) {
        let layout = Layout::of(rule);
        let now = now_us / layout.tick_us;
        self.drop_expired(&layout, now);

        let wait_ms = |time: u64| ((time + layout.period_ticks - now) * layout.tick_us).div_ceil(1000);
        let newest = self.entries.back();
        let used = newest.map_or(0, |(_, total)| total - self.base);
        let remaining = rule.count().saturating_sub(used);
        let fits = cost <= remaining;
        let short = if fits { 0 } else { used.saturating_add(cost).saturating_sub(rule.count()).min(used) };
        let last_in_the_way = self.entries.partition_point(|(_, total)| total - self.base < short);
        let decision = Decision {
            limit: rule.count(),
            remaining,
            reset_after_ms: newest.map_or(0, |(time, _)| wait_ms(*time)),
            retry_after_ms: match self.entries.get(last_in_the_way) {
                _ if fits => u64::MAX,
                Some((time, _)) => wait_ms(*time),
                None => 0,
            },
        };
        (fits, decision)
    }

    /// The clock was set back, so nobody knows how old the entries are: all of them count as made now.
    pub(super) fn restart(&mut self, rule: &Rule, now_us: u64) {
        if let Some((_, total)) = self.entries.pop_back() {
            self.entries.clear();
            self.entries.push_back((now_us.div_ceil(Layout::of(rule).tick_us), total));
        }
    }

    /// Adds a charge that [`Log::decide`] has found to fit, and returns the time of its entry.
    pub(super) fn charge(&mut self, rule: &Rule, now_us: u64, cost: u64) -> u64 {
        let ceiling = now_us.div_ceil(Layout::of(rule).tick_us);
        let total = self.entries.back().map_or(self.base, |(_, total)| *total) + cost;
        match self.entries.back_mut() {
            Some((time, newest)) if *time >= ceiling => {
                *newest = total;
                *time
            }
            _ => {
                self.entries.push_back((ceiling, total));
                ceiling
            }
        }
    }

    /// Takes a charge out of the entry of that time, and returns how much it still held.
    pub(super) fn give_back(&mut self, rule: &Rule, now_us: u64, time: u64, cost: u64) -> u64 {
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

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(feature = "redis")]
pub(super) fn arguments(rule: &Rule) -> [u64; 3] {
    let Layout { tick_us, period_ticks, digits } = Layout::of(rule);
    [tick_us, period_ticks, u64::from(digits)]
}

#[cfg(feature = "redis")]
pub(super) fn decode(rule: &Rule, [remaining, reset_after_ms, other]: [i64; 3]) -> (bool, Decision, u64) {
    let refused = remaining < 0;
    let decision = Decision {
        limit: rule.count(),
        remaining: if refused { -1 - remaining } else { remaining }.unsigned_abs(),
        reset_after_ms: reset_after_ms.unsigned_abs(),
        retry_after_ms: if refused { other.unsigned_abs() } else { u64::MAX },
    };
    (!refused, decision, if refused { 0 } else { other.unsigned_abs() })
}
