//! Fixed window: one counter with one end.
//!
//! The *fixed window counter* of the textbooks. The charge that opens a window determines its end.
//! No later charge moves it.

#[cfg(feature = "redis")]
use redis::Value;

use super::contract::{Evaluation, MemoryState, evaluate_and_commit};
#[cfg(feature = "redis")]
use super::{
    contract::{LuaScript, RedisScript},
    wire::{PackedNumbers, pack},
};
#[cfg(any(feature = "redis", test))]
use crate::rule::limits::LARGEST_WINDOW;
#[cfg(feature = "redis")]
use crate::store::Charge;
use crate::{Algorithm, Rule, decision::Outcome, store::ChargeQuery};

/// The current window of one counter.
#[derive(Debug)]
pub(crate) struct FixedWindow {
    pub(crate) end_ms: u64,
    /// Opening time. It distinguishes the window from others of the counter.
    opened: u64,
    used: u64,
}

impl FixedWindow {
    #[inline]
    pub(crate) fn open(rule: &Rule, now_ms: u64) -> Self {
        Self { end_ms: end_ms(rule, now_ms), opened: now_ms, used: 0 }
    }

    /// An end further away than a period shows that the clock was set back.
    #[inline]
    fn correct_clock_ms(&mut self, rule: &Rule, now_ms: u64) {
        if self.end_ms > now_ms + rule.period_ms() {
            self.end_ms = end_ms(rule, now_ms);
        }
    }

    #[inline]
    fn evaluate_ms(&self, rule: &Rule, cost: u64, now_ms: u64) -> Evaluation {
        let remaining = rule.count().saturating_sub(self.used);
        let left_ms = self.end_ms - now_ms;
        let reset_after_ms = if self.used == 0 { 0 } else { left_ms };
        Evaluation::new(rule, remaining, reset_after_ms, (cost > remaining).then_some(left_ms))
    }

    /// Evaluates and commits in one step a cost of 1 to the count, as most calls ask for.
    #[inline]
    fn charge_usual(&mut self, rule: &Rule, cost: u64, now_ms: u64) -> Outcome {
        if self.end_ms <= now_ms {
            *self = Self::open(rule, now_ms);
        }
        self.correct_clock_ms(rule, now_ms);
        let left_ms = self.end_ms - now_ms;
        let remaining = rule.count().saturating_sub(self.used);
        if cost > remaining {
            return Outcome { remaining, reset_after_ms: left_ms, retry_after_ms: left_ms, receipt: [0; 2] };
        }
        let receipt = self.add(cost);
        Outcome { remaining: remaining - cost, reset_after_ms: left_ms, retry_after_ms: u64::MAX, receipt }
    }

    #[inline]
    fn add(&mut self, cost: u64) -> [u64; 2] {
        self.used += cost;
        [self.opened, 0]
    }
}

impl MemoryState for FixedWindow {
    #[inline]
    fn fresh(rule: &Rule, now_us: u64) -> Self {
        Self::open(rule, now_us / 1000)
    }

    #[inline]
    fn expires_at_ms(&self) -> u64 {
        self.end_ms
    }

    #[inline]
    fn correct_clock(&mut self, rule: &Rule, now_us: u64) {
        self.correct_clock_ms(rule, now_us / 1000);
    }

    #[inline]
    fn evaluate(&mut self, query: &ChargeQuery<'_>, cost: u64, now_us: u64) -> Evaluation {
        self.evaluate_ms(query.rule, cost, now_us / 1000)
    }

    #[inline]
    fn commit(&mut self, _query: &ChargeQuery<'_>, amount: u64, _now_us: u64) -> [u64; 2] {
        self.add(amount)
    }

    fn refund(&mut self, _rule: &Rule, cost: u64, [opened, _]: [u64; 2], _now_us: u64) -> u64 {
        if self.opened != opened {
            return 0;
        }
        let back = cost.min(self.used);
        self.used -= back;
        if self.used == 0 {
            self.end_ms = 0;
        }
        back
    }

    #[inline]
    fn charge(&mut self, query: &ChargeQuery<'_>, now_us: u64) -> Outcome {
        if (1..=query.rule.count()).contains(&query.cost) {
            return self.charge_usual(query.rule, query.cost, now_us / 1000);
        }
        evaluate_and_commit(self, query, now_us)
    }
}

/// A window in two numbers. The first has the end and the low bits of the opening time, the second
/// its high bits and the use.
///
/// Both times have 47 bits, enough until the year 6429. The use has 34 bits, enough for
/// [`LARGEST_WINDOW`](crate::rule::limits::LARGEST_WINDOW).
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackedWindow(u64, u64);

const OPENED_BITS: u32 = 17;
const USED_BITS: u32 = 34;

impl Default for PackedWindow {
    /// Marks an empty place of a table.
    fn default() -> Self {
        Self(0, 0)
    }
}

impl PackedWindow {
    /// Charges a cost of 1 to the count if it fits. `None` if the window is not open.
    ///
    /// A window that was opened later than now is not open either: the clock was set back.
    #[inline(always)]
    #[allow(clippy::inline_always)] // see `Memory::charge_open_window`
    pub(crate) fn charge(&mut self, count: u64, now_ms: u64, cost: u64) -> Option<Outcome> {
        let FixedWindow { end_ms, opened, used } = FixedWindow::from(*self);
        let is_open = opened <= now_ms && now_ms < end_ms;
        if !is_open {
            return None;
        }
        let (left, reset_after_ms) = (count.saturating_sub(used), end_ms - now_ms);
        // A cost that does not fit fits when the window has ended.
        let (cost, retry_after_ms) = if cost <= left { (cost, u64::MAX) } else { (0, reset_after_ms) };
        self.1 += cost;
        Some(Outcome { remaining: left - cost, reset_after_ms, retry_after_ms, receipt: [opened, 0] })
    }
}

impl From<&FixedWindow> for PackedWindow {
    #[inline]
    fn from(FixedWindow { end_ms, opened, used }: &FixedWindow) -> Self {
        Self((end_ms << OPENED_BITS) | (opened % (1 << OPENED_BITS)), opened >> OPENED_BITS << USED_BITS | used)
    }
}

impl From<PackedWindow> for FixedWindow {
    #[inline]
    fn from(PackedWindow(end, used): PackedWindow) -> Self {
        Self {
            end_ms: end >> OPENED_BITS,
            opened: (used >> USED_BITS << OPENED_BITS) | (end % (1 << OPENED_BITS)),
            used: used % (1 << USED_BITS),
        }
    }
}

/// End of a window that is opened now.
fn end_ms(rule: &Rule, now_ms: u64) -> u64 {
    let period = rule.period_ms();
    match rule.algorithm() {
        Algorithm::FixedWindow { align: true } => now_ms - now_ms % period + period,
        _ => now_ms + period,
    }
}

/// Number of windows of a counter that a server distinguishes.
#[cfg(feature = "redis")]
const WINDOWS: u64 = 450_001;

#[cfg(feature = "redis")]
impl RedisScript for FixedWindow {
    const SCRIPTS: &'static [LuaScript] = &[LuaScript {
        decide: include_str!("decide.lua"),
        args: "room, length, align",
        first_of_many: "room - (n - 1) * its_charge",
        place: "granted", // the reply has the value before the charges
        stored: "value + its_charge * n",
        fitting: "local fitting = (its_room - value) / its_charge + 1",
        has_value: true,
        refund: include_str!("refund.lua"),
        refund_args: "cost, number",
    }];

    const REPEATS_SHARE_RECEIPT: bool = true;

    fn args(charge: &Charge) -> PackedNumbers {
        let (rule, cost) = (&charge.rule, charge.cost);
        // The largest value before the charge. A cost of 0 fits any use.
        let room = if cost == 0 { LARGEST_WINDOW } else { rule.count().saturating_sub(cost) };
        let align = matches!(rule.algorithm(), Algorithm::FixedWindow { align: true });
        pack([room * WINDOWS + WINDOWS - 1, rule.period_ms(), align.into()])
    }

    fn stored_cost(charge: &Charge) -> u64 {
        charge.cost * WINDOWS
    }

    fn needs_stored_cost(charge: &Charge) -> bool {
        charge.cost != 1
    }

    fn refund_args(charge: &Charge) -> PackedNumbers {
        let [opened, _] = charge.receipt;
        pack([charge.cost * WINDOWS, opened])
    }

    fn steps(_rule: &Rule) -> u64 {
        80
    }

    fn parse_reply(charge: &Charge, charged: bool, reply: &Value) -> Option<(Evaluation, [u64; 2])> {
        let (rule, cost) = (&charge.rule, charge.cost);
        let denied_or = |number: i64| if number < 0 { (true, -1 - number) } else { (false, number) };
        let (is_denied, value, left_ms) = match reply {
            Value::Nil => return Some((Evaluation::fresh(rule, cost), [0; 2])),
            Value::Int(packed) => {
                let (is_denied, packed) = denied_or(*packed);
                let before = packed.unsigned_abs().checked_sub(1)?;
                (is_denied, before / rule.period_ms(), before % rule.period_ms() + 1)
            }
            Value::Array(numbers) => {
                let [Value::Int(value), Value::Int(left)] = **numbers else { return None };
                let (is_denied, value) = denied_or(value);
                (is_denied, value.unsigned_abs(), left.unsigned_abs())
            }
            _ => return None,
        };
        // The reply has no time of the server, so the window is evaluated at time 0.
        let mut window = Self { end_ms: left_ms, opened: value % WINDOWS, used: value / WINDOWS };
        if is_denied || !charged {
            return Some((window.evaluate_ms(rule, cost, 0), [0; 2]));
        }
        let receipt = window.add(cost);
        Some((window.evaluate_ms(rule, 0, 0), receipt))
    }

    #[allow(clippy::cast_possible_wrap)] // constants, and a period has 39 bits
    fn shift_reply(rule: &Rule, reply: &Value, more: i64) -> Option<Value> {
        let more = more.checked_mul(WINDOWS as i64)?;
        let period = rule.period_ms() as i64;
        Some(match reply {
            // A number that is too large for Lua can still be parsed here.
            Value::Int(packed) => match more.checked_mul(period).and_then(|more| packed.checked_add(more)) {
                Some(packed) => Value::Int(packed),
                None => Value::Array(vec![
                    Value::Int(((packed - 1) / period).checked_add(more)?),
                    Value::Int((packed - 1) % period + 1),
                ]),
            },
            Value::Array(numbers) => {
                let [Value::Int(value), Value::Int(left)] = **numbers else { return None };
                Value::Array(vec![Value::Int(value.checked_add(more)?), Value::Int(left)])
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_in_a_packed_window() {
        let times = [0, 1, 946_684_800_000, (1 << 47) - 1];
        for (end_ms, opened) in times.into_iter().flat_map(|end| times.map(|opened| (end, opened))) {
            for used in [0, 1, (1 << OPENED_BITS) - 1, 1 << OPENED_BITS, LARGEST_WINDOW] {
                let back = FixedWindow::from(PackedWindow::from(&FixedWindow { end_ms, opened, used }));
                assert_eq!((back.end_ms, back.opened, back.used), (end_ms, opened, used));
            }
        }
    }
}
