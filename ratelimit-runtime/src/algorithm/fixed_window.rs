//! Fixed window: one counter, one end.
//!
//! The *fixed window counter* of the textbooks. A window is anchored once, by the charge that opens it,
//! and no later charge moves its end.

#[cfg(feature = "redis")]
use redis::Value;

#[cfg(feature = "redis")]
use super::script::{Numbers, pack};
use super::{Look, Taken};
#[cfg(any(feature = "redis", test))]
use crate::rule::limits::LARGEST_WINDOW;
use crate::{Algorithm, Decision, Rule, counter::CounterId};

/// One window.
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) end_ms: u64,
    /// Tells it from another window of the counter: when it was opened.
    opened: u64,
    used: u64,
}

impl Window {
    #[inline]
    pub(crate) fn open(rule: &Rule, now_ms: u64) -> Self {
        Self { end_ms: end_ms(rule, now_ms), opened: now_ms, used: 0 }
    }

    /// The clock was set back if the end is further away than a period.
    #[inline]
    pub(super) fn set_right(&mut self, rule: &Rule, now_ms: u64) {
        if self.end_ms > now_ms + rule.period_ms() {
            self.end_ms = end_ms(rule, now_ms);
        }
    }

    #[inline]
    pub(super) fn look(&self, rule: &Rule, now_ms: u64, cost: u64) -> Look {
        let remaining = rule.count().saturating_sub(self.used);
        let left_ms = self.end_ms - now_ms;
        let reset_after_ms = if self.used == 0 { 0 } else { left_ms };
        Look::new(rule, remaining, reset_after_ms, (cost > remaining).then_some(left_ms))
    }

    /// [`Window::look`] and [`Window::charge`] at once, for a cost of 1 to the count: what most calls ask for.
    #[inline]
    pub(crate) fn take(&mut self, rule: &Rule, now_ms: u64, cost: u64) -> Taken {
        if self.end_ms <= now_ms {
            *self = Self::open(rule, now_ms);
        }
        self.set_right(rule, now_ms);
        let left_ms = self.end_ms - now_ms;
        let remaining = rule.count().saturating_sub(self.used);
        if cost > remaining {
            return Taken { remaining, reset_after_ms: left_ms, retry_after_ms: left_ms, receipt: [0; 2] };
        }
        let receipt = self.charge(cost);
        Taken { remaining: remaining - cost, reset_after_ms: left_ms, retry_after_ms: u64::MAX, receipt }
    }

    #[inline]
    pub(super) fn charge(&mut self, cost: u64) -> [u64; 2] {
        self.used += cost;
        [self.opened, 0]
    }

    pub(super) fn refund(&mut self, [opened, _]: [u64; 2], cost: u64) -> u64 {
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

/// A window in the room of two numbers. Both times have 47 bits, which is enough until the year 6429; what is used has 34, which is enough for
/// [`LARGEST_WINDOW`](crate::rule::limits::LARGEST_WINDOW).
///
/// The end and the low bits of when it was opened; its high bits and what is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackedWindow(u64, u64);

const OPENED_BITS: u32 = 17;
const USED_BITS: u32 = 34;

impl Default for PackedWindow {
    /// It stands where there is no window.
    fn default() -> Self {
        Self(0, 0)
    }
}

impl PackedWindow {
    /// Charges a cost of 1 to the count if it fits in a window that is open. `None` if the window is not.
    ///
    /// A window that was opened after now is not taken for open: the clock was set back.
    #[inline(always)]
    #[allow(clippy::inline_always)] // see `Memory::take_window`
    pub(crate) fn take(&mut self, name: CounterId, count: u64, now_ms: u64, cost: u64) -> Option<TakenWindow> {
        let Window { end_ms, opened, used } = Window::from(*self);
        let is_open = opened <= now_ms && now_ms < end_ms;
        if !is_open {
            return None;
        }
        let (left, reset_after_ms) = (count.saturating_sub(used), end_ms - now_ms);
        let fits = cost <= left;
        let cost = if fits { cost } else { 0 };
        self.1 += cost;
        Some(TakenWindow { name, fits, remaining: left - cost, reset_after_ms, opened })
    }
}

/// What becomes of a charge in a window in memory that is open.
#[derive(Debug)]
pub(crate) struct TakenWindow {
    pub(crate) name: CounterId,
    pub(crate) fits: bool,
    pub(crate) remaining: u64,
    pub(crate) reset_after_ms: u64,
    /// Its receipt.
    pub(crate) opened: u64,
}

impl TakenWindow {
    /// Of a charge that did not fit: it does when the window has ended.
    pub(crate) fn refusal(&self, rule: &Rule) -> Decision {
        let Self { remaining, reset_after_ms, .. } = *self;
        Decision { limit: rule.limit(), remaining, reset_after_ms, retry_after_ms: reset_after_ms }
    }
}

impl From<&Window> for PackedWindow {
    #[inline]
    fn from(Window { end_ms, opened, used }: &Window) -> Self {
        Self((end_ms << OPENED_BITS) | (opened % (1 << OPENED_BITS)), opened >> OPENED_BITS << USED_BITS | used)
    }
}

impl From<PackedWindow> for Window {
    #[inline]
    fn from(PackedWindow(end, used): PackedWindow) -> Self {
        Self {
            end_ms: end >> OPENED_BITS,
            opened: (used >> USED_BITS << OPENED_BITS) | (end % (1 << OPENED_BITS)),
            used: used % (1 << USED_BITS),
        }
    }
}

/// When a window that is opened now ends.
fn end_ms(rule: &Rule, now_ms: u64) -> u64 {
    let period = rule.period_ms();
    match rule.algorithm() {
        Algorithm::FixedWindow { align: true } => now_ms - now_ms % period + period,
        _ => now_ms + period,
    }
}

/// How many windows of a counter are told apart on a server.
#[cfg(feature = "redis")]
pub(super) const WINDOWS: u64 = 450_001;

#[cfg(feature = "redis")]
pub(super) fn numbers(rule: &Rule, cost: u64) -> Numbers {
    // The largest value before the charge; a cost of 0 fits whatever is used.
    let room = if cost == 0 { LARGEST_WINDOW } else { rule.count().saturating_sub(cost) };
    let align = matches!(rule.algorithm(), Algorithm::FixedWindow { align: true });
    pack([room * WINDOWS + WINDOWS - 1, rule.period_ms(), align.into()])
}

#[cfg(feature = "redis")]
pub(super) fn refund_numbers([opened, _]: [u64; 2], cost: u64) -> Numbers {
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
            let before = packed.unsigned_abs().checked_sub(1)?;
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

/// The reply to a charge that was made after `more` has been charged in the same window.
#[cfg(feature = "redis")]
#[allow(clippy::cast_possible_wrap)] // constants, and a period has 39 bits
pub(super) fn reply_to_another(rule: &Rule, reply: &Value, more: i64) -> Option<Value> {
    let more = more.checked_mul(WINDOWS as i64)?;
    let period = rule.period_ms() as i64;
    Some(match reply {
        // A number that is too large for Lua may still be read.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_in_a_packed_window() {
        let times = [0, 1, 946_684_800_000, (1 << 47) - 1];
        for (end_ms, opened) in times.into_iter().flat_map(|end| times.map(|opened| (end, opened))) {
            for used in [0, 1, (1 << OPENED_BITS) - 1, 1 << OPENED_BITS, LARGEST_WINDOW] {
                let back = Window::from(PackedWindow::from(&Window { end_ms, opened, used }));
                assert_eq!((back.end_ms, back.opened, back.used), (end_ms, opened, used));
            }
        }
    }
}
