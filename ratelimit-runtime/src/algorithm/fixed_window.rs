//! Fixed window: one counter, one end.
//!
//! The *fixed window counter* of the textbooks. A window is anchored once, by the charge that opens it,
//! and no later charge moves its end.

#[cfg(feature = "redis")]
use redis::Value;

use super::Look;
#[cfg(feature = "redis")]
use super::script::{Numbers, pack};
use crate::{Algorithm, Rule};

/// What is stored on Redis is [`WINDOWS`] times as large, and Lua is exact up to 2^53.
pub(super) const LARGEST_COUNT: u64 = 9_999_999_999;

/// One window.
#[derive(Debug)]
pub(crate) struct Window {
    pub(super) end_ms: u64,
    /// Tells it from another window of the counter: when it was opened.
    opened: u64,
    used: u64,
}

impl Window {
    pub(super) fn open(rule: &Rule, now_ms: u64) -> Self {
        Self { end_ms: end_ms(rule, now_ms), opened: now_ms, used: 0 }
    }

    /// The clock was set back if the end is further away than a period.
    pub(super) fn set_right(&mut self, rule: &Rule, now_ms: u64) {
        if self.end_ms > now_ms + rule.period_ms() {
            self.end_ms = end_ms(rule, now_ms);
        }
    }

    pub(super) fn look(&self, rule: &Rule, now_ms: u64, cost: u64) -> Look {
        let remaining = rule.count().saturating_sub(self.used);
        let left_ms = self.end_ms - now_ms;
        let reset_after_ms = if self.used == 0 { 0 } else { left_ms };
        Look::new(rule, remaining, reset_after_ms, (cost > remaining).then_some(left_ms))
    }

    pub(super) fn charge(&mut self, cost: u64) -> [u64; 2] {
        self.used += cost;
        [self.opened, 0]
    }

    pub(super) fn give_back(&mut self, [opened, _]: [u64; 2], cost: u64) -> u64 {
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
}

/// When a window that is opened now ends.
fn end_ms(rule: &Rule, now_ms: u64) -> u64 {
    let period = rule.period_ms();
    match rule.counted_by() {
        Algorithm::FixedWindow { align: true } => now_ms - now_ms % period + period,
        _ => now_ms + period,
    }
}

/// How many windows of a counter are told apart on a server.
#[cfg(feature = "redis")]
pub(super) const WINDOWS: u64 = 900_001;

#[cfg(feature = "redis")]
pub(super) fn numbers(rule: &Rule, cost: u64) -> Numbers {
    // The largest value before the charge; a cost of 0 fits whatever is used.
    let room = if cost == 0 { LARGEST_COUNT } else { rule.count().saturating_sub(cost) };
    let align = matches!(rule.counted_by(), Algorithm::FixedWindow { align: true });
    pack([room * WINDOWS + WINDOWS - 1, rule.period_ms(), align.into()])
}

#[cfg(feature = "redis")]
pub(super) fn give_back_numbers([opened, _]: [u64; 2], cost: u64) -> Numbers {
    pack([cost * WINDOWS, opened])
}

/// What the script says of the counter, after the charge if it was `charged`, and the receipt.
#[cfg(feature = "redis")]
pub(super) fn read(rule: &Rule, cost: u64, charged: bool, reply: &Value) -> Option<(Look, [u64; 2])> {
    let refused_or = |number: i64| if number < 0 { (true, -1 - number) } else { (false, number) };
    let (refused, value, left_ms) = match reply {
        Value::Nil => return Some((Look::fresh(rule, cost), [0; 2])),
        Value::Int(packed) => {
            let (refused, packed) = refused_or(*packed);
            let packed = packed.unsigned_abs();
            let before = packed.checked_sub(1)?;
            (refused, before / rule.period_ms(), before % rule.period_ms() + 1)
        }
        Value::Array(numbers) => {
            let [Value::Int(value), Value::Int(left)] = **numbers else { return None };
            let (refused, value) = refused_or(value);
            (refused, value.unsigned_abs(), left.unsigned_abs())
        }
        _ => return None,
    };
    // The server's time is not told, so the window is seen from a clock that shows 0.
    let mut window = Window { end_ms: left_ms, opened: value % WINDOWS, used: value / WINDOWS };
    if refused || !charged {
        return Some((window.look(rule, 0, cost), [0; 2]));
    }
    let receipt = window.charge(cost);
    Some((window.look(rule, 0, 0), receipt))
}
