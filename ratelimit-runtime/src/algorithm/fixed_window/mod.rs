//! Fixed window: one counter with one end.
//!
//! The *fixed window counter* of the textbooks. The charge that opens a window determines its end.
//! No later charge moves it.

#[cfg(feature = "redis")]
use once_cell::sync::Lazy;
#[cfg(feature = "redis")]
use redis::Value;

use super::contract::{Ban, Evaluation, HalfLine, MemoryState};
#[cfg(feature = "redis")]
use super::{
    contract::{LuaScript, RedisScript, UNBAN, ban_of_string},
    wire::{PackedNumbers, pack},
};
#[cfg(any(feature = "redis", test))]
use crate::rule::limits::LARGEST_WINDOW;
use crate::{Algorithm, Rule, clock::DecisionTime, decision::Outcome, store::ChargeQuery};
#[cfg(feature = "redis")]
use crate::{Clock, store::Charge};

/// The current window of one counter, in two numbers. The first has the end and the low bits of the
/// opening time, the second its high bits and the use.
///
/// Both times have 47 bits, enough until the year 6429. The use has 34 bits, enough for
/// [`LARGEST_WINDOW`](crate::rule::limits::LARGEST_WINDOW).
///
/// A ban is a window that opened when it was made, and whose end has [`BAN`] added. As no window ends
/// so late, [`MemoryState::charge_at_once`] need not look for it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FixedWindow(u64, u64);

const OPENED_BITS: u32 = 17;
const USED_BITS: u32 = 34;

/// In the end of a ban. No other end is as large: it is in the year 4199.
const BAN: u64 = 1 << 46;

/// The numbers of a window.
#[derive(Clone, Copy, Debug)]
struct WindowNumbers {
    end_ms: u64,
    /// Opening time. It distinguishes the window from others of the counter.
    opened: u64,
    used: u64,
}

impl FixedWindow {
    #[inline]
    fn numbers(self) -> WindowNumbers {
        let Self(end, used) = self;
        WindowNumbers {
            end_ms: end >> OPENED_BITS,
            opened: (used >> USED_BITS << OPENED_BITS) | (end % (1 << OPENED_BITS)),
            used: used % (1 << USED_BITS),
        }
    }
}

impl From<WindowNumbers> for FixedWindow {
    #[inline]
    fn from(WindowNumbers { end_ms, opened, used }: WindowNumbers) -> Self {
        Self((end_ms << OPENED_BITS) | (opened % (1 << OPENED_BITS)), opened >> OPENED_BITS << USED_BITS | used)
    }
}

impl WindowNumbers {
    fn of_ban(ban: Ban) -> Self {
        Self { end_ms: ban.until_ms | BAN, opened: ban.since_ms, used: 0 }
    }

    fn ban(&self) -> Option<Ban> {
        (self.end_ms & BAN != 0).then_some(Ban { since_ms: self.opened, until_ms: self.end_ms & !BAN })
    }

    fn evaluate(&self, rule: &Rule, cost: u64, now_ms: u64) -> Evaluation {
        if let Some(ban) = self.ban() {
            let left_ms = ban.until_ms - now_ms;
            return Evaluation::banned(rule, left_ms, left_ms);
        }
        let remaining = rule.count().saturating_sub(self.used);
        let left_ms = self.end_ms - now_ms;
        let reset_after_ms = if self.used == 0 { 0 } else { left_ms };
        Evaluation::new(rule, remaining, reset_after_ms, (cost > remaining).then_some(left_ms))
    }
}

impl MemoryState for FixedWindow {
    type Align = HalfLine;

    fn restart(&mut self, rule: &Rule, now_us: u64) {
        let opened = now_us / 1000;
        *self = WindowNumbers { end_ms: end_ms(rule, opened), opened, used: 0 }.into();
    }

    #[inline]
    fn expires_at_ms(&self) -> u64 {
        self.numbers().end_ms & !BAN
    }

    /// An end further away than a period shows that the clock was set back.
    fn correct_clock(&mut self, rule: &Rule, now_us: u64) {
        let (window, millis) = (self.numbers(), now_us / 1000);
        if let Some(ban) = window.ban() {
            *self = WindowNumbers::of_ban(ban.corrected(millis)).into();
        } else if window.end_ms > millis + rule.period_ms() {
            *self = WindowNumbers { end_ms: end_ms(rule, millis), ..window }.into();
        }
    }

    fn evaluate(&mut self, query: &ChargeQuery<'_>, cost: u64, now_us: u64) -> Evaluation {
        self.numbers().evaluate(query.rule, cost, now_us / 1000)
    }

    fn commit(&mut self, _query: &ChargeQuery<'_>, amount: u64, _now_us: u64) -> [u64; 2] {
        self.1 += amount;
        [self.numbers().opened, 0]
    }

    fn refund(&mut self, _rule: &Rule, cost: u64, [opened, _]: [u64; 2], _now_us: u64) -> u64 {
        let numbers = self.numbers();
        if numbers.opened != opened || numbers.ban().is_some() {
            return 0;
        }
        let back = cost.min(numbers.used);
        let used = numbers.used - back;
        let end_ms = if used == 0 { 0 } else { numbers.end_ms };
        *self = WindowNumbers { end_ms, used, ..numbers }.into();
        back
    }

    fn ban(&mut self, _rule: &Rule, ban: Ban) {
        let numbers = self.numbers();
        let counts_until_ms = if numbers.used > 0 || numbers.ban().is_some() { self.expires_at_ms() } else { 0 };
        *self = WindowNumbers::of_ban(ban.lasting_until(counts_until_ms)).into();
    }

    fn unban(&mut self, _now_us: u64) {
        if self.numbers().ban().is_some() {
            *self = Self::default();
        }
    }

    /// If the window is open. A window that ends later than in a period is not: the clock was set
    /// back.
    #[inline(always)]
    #[allow(clippy::inline_always)] // in each call
    fn charge_at_once(&mut self, rule: &Rule, cost: u64, now: DecisionTime) -> Option<Outcome> {
        let WindowNumbers { end_ms, opened, used } = self.numbers();
        let reset_after_ms = end_ms.saturating_sub(now.ms);
        if reset_after_ms == 0 || reset_after_ms > rule.period_ms() {
            return None;
        }
        let left = rule.count().saturating_sub(used);
        if cost > left {
            return Some(Outcome::denied(left, reset_after_ms)); // it fits when the window has ended
        }
        self.1 += cost;
        Some(Outcome::admitted(left - cost, reset_after_ms, [opened, 0]))
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

/// Milliseconds by this process' clock. A receipt has the end of its window by this clock: a later window may have
/// the same number, but it ends at least a period later.
#[cfg(feature = "redis")]
fn process_ms() -> u64 {
    static CLOCK: Lazy<Clock> = Lazy::new(Clock::system);
    CLOCK.now_ms()
}

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
        ban: ban_of_string!("string.format('%.0fe999', ban)"),
        unban: UNBAN,
        refund: include_str!("refund.lua"),
        refund_args: "cost, number, longest",
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
        let [number, ends_ms] = charge.receipt;
        // More, as the clocks of server and process run at different rates. A window of that number ends later still.
        let latest_ms = ends_ms + charge.rule.period_ms().max(WINDOWS) / 2;
        pack([charge.cost * WINDOWS, number, latest_ms.saturating_sub(process_ms())])
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
        let mut window = WindowNumbers { end_ms: left_ms, opened: value % WINDOWS, used: value / WINDOWS };
        if is_denied || !charged {
            return Some((window.evaluate(rule, cost, 0), [0; 2]));
        }
        window.used += cost;
        Some((window.evaluate(rule, 0, 0), [window.opened, process_ms() + window.end_ms]))
    }

    #[allow(clippy::cast_possible_wrap)] // constants, and a period has 39 bits
    fn shift_reply(rule: &Rule, reply: &Value, more: i64) -> Option<Value> {
        let more = more.checked_mul(WINDOWS as i64)?;
        let period = rule.period_ms() as i64;
        Some(match reply {
            // A number that is too large for Lua can still be parsed here.
            Value::Int(packed) => {
                if let Some(packed) = more.checked_mul(period).and_then(|more| packed.checked_add(more)) {
                    return Some(Value::Int(packed));
                }
                let before = packed.checked_sub(1)?;
                Value::Array(vec![Value::Int((before / period).checked_add(more)?), Value::Int(before % period + 1)])
            }
            Value::Array(numbers) => {
                let [Value::Int(value), Value::Int(left)] = **numbers else { return None };
                Value::Array(vec![Value::Int(value.checked_add(more)?), Value::Int(left)])
            }
            _ => return None,
        })
    }
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_in_a_packed_window() {
        let times = [0, 1, 946_684_800_000, (1 << 46) - 1, (1 << 47) - 1];
        for (end_ms, opened) in times.into_iter().flat_map(|end| times.map(|opened| (end, opened))) {
            for used in [0, 1, (1 << OPENED_BITS) - 1, 1 << OPENED_BITS, LARGEST_WINDOW] {
                let back = FixedWindow::from(WindowNumbers { end_ms, opened, used }).numbers();
                assert_eq!((back.end_ms, back.opened, back.used), (end_ms, opened, used));
            }
        }
    }
}
