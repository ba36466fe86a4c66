//! The contract of an algorithm: how it counts in memory, and the scripts it counts with on Redis.

use std::{fmt, time::Duration};

#[cfg(feature = "redis")]
use redis::Value;

#[cfg(feature = "redis")]
use super::wire::PackedNumbers;
use crate::{
    Decision, Rule,
    clock::DecisionTime,
    decision::{BANNED, Outcome},
    store::{Charge, ChargeQuery, Hold},
};

/// State of a counter, and whether a cost fits, without a charge.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evaluation {
    pub(crate) fits: bool,
    pub(crate) decision: Decision,
    /// Time until the call may run, if the cost fits.
    pub(crate) wait_ms: u64,
    /// Amount held by others, if the cost does not fit.
    pub(crate) held: u64,
    /// The cost would fit if nothing were held.
    pub(crate) fits_when_released: bool,
}

impl Evaluation {
    /// `retry_after_ms` is `None` if the cost fits.
    #[inline]
    pub(crate) fn new(rule: &Rule, remaining: u64, reset_after_ms: u64, retry_after_ms: Option<u64>) -> Self {
        let retry_after_ms = retry_after_ms.unwrap_or(u64::MAX);
        let decision = Decision { limit: rule.limit(), remaining, reset_after_ms, retry_after_ms };
        Self { fits: retry_after_ms == u64::MAX, decision, wait_ms: 0, held: 0, fits_when_released: false }
    }

    /// Evaluation of an unused counter.
    #[inline]
    pub(crate) fn fresh(rule: &Rule, cost: u64) -> Self {
        Self::new(rule, rule.limit(), 0, (cost > rule.limit()).then_some(0))
    }

    /// Records the evaluation in a charge, and the receipt if it was made.
    pub(crate) fn write_to(self, charge: &mut Charge, receipt: [u64; 2]) {
        let Self { decision, wait_ms, held, fits_when_released, .. } = self;
        (charge.decision, charge.slot_delay, charge.receipt) = (decision, Duration::from_millis(wait_ms), receipt);
        (charge.held_by_others, charge.fits_when_released) = (held, fits_when_released);
    }

    /// Evaluation of a banned counter: no cost fits.
    pub(crate) fn banned(rule: &Rule, reset_after_ms: u64, retry_after_ms: u64) -> Self {
        Self::new(rule, 0, reset_after_ms, Some(retry_after_ms | BANNED))
    }

    /// Adds the amount held by others from a script's reply: 1 + n, or -n if the cost would not fit without
    /// it either.
    #[cfg(feature = "redis")]
    pub(super) fn with_held(self, reply: &[Value]) -> Self {
        match (self.fits, reply) {
            (false, [Value::Int(held)]) if *held > 0 => {
                Self { held: held.unsigned_abs() - 1, fits_when_released: true, ..self }
            }
            (false, [Value::Int(held)]) => Self { held: held.unsigned_abs(), ..self },
            _ => self,
        }
    }
}

/// The way in which room comes back at a full counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recovery {
    /// Charges count until a time, and then not at all: all of the count may come back at once.
    Whole,
    /// Evenly, one by one.
    Even,
    /// Up to twice the limit may come back within a short time.
    Lumps,
    /// At any time, when others release it.
    Released,
}

/// A ban of a counter in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ban {
    pub(super) since_ms: u64,
    pub(super) until_ms: u64,
}

impl Ban {
    /// The ban, moved to now if the clock was set back since.
    pub(super) fn corrected(self, now_ms: u64) -> Self {
        let ahead_ms = self.since_ms.saturating_sub(now_ms);
        Self { since_ms: self.since_ms - ahead_ms, until_ms: self.until_ms - ahead_ms }
    }

    /// The ban, lasting at least until a time.
    pub(super) fn lasting_until(self, time_ms: u64) -> Self {
        Self { until_ms: self.until_ms.max(time_ms), ..self }
    }
}

/// The alignment of slots of 32 bytes: two fit into one cache line.
#[derive(Debug)]
#[repr(align(32))]
pub(crate) struct HalfLine;

/// The state of one counter in memory.
///
/// A receipt is two numbers by which [`MemoryState::refund`] finds the charge again. A table stores
/// states side by side; in an empty slot it has the default one.
pub(crate) trait MemoryState: fmt::Debug {
    /// A type with the alignment of a slot: of a cache line or half of one if no slot is to cross
    /// its border, or `()`.
    type Align: fmt::Debug
    where
        Self: Sized;

    /// Makes it a counter without charges. It lasts as if it had been charged now.
    fn restart(&mut self, rule: &Rule, now_us: u64);

    fn recovery(_rule: &Rule) -> Recovery
    where
        Self: Sized,
    {
        Recovery::Whole
    }

    /// Time from which the state equals a fresh one and can be dropped.
    fn expires_at_ms(&self) -> u64;

    /// Adjusts the state if the clock was set back since it was written. The system's clock never is: see
    /// `clock.rs`.
    fn correct_clock(&mut self, rule: &Rule, now_us: u64);

    /// Decides on a cost without charging it. May drop parts that have expired.
    fn evaluate(&mut self, query: &ChargeQuery<'_>, cost: u64, now_us: u64) -> Evaluation;

    /// Charges or holds an amount that [`MemoryState::evaluate`] has found to fit. Returns the
    /// receipt.
    fn commit(&mut self, query: &ChargeQuery<'_>, amount: u64, now_us: u64) -> [u64; 2];

    /// Undoes a charge. Returns the amount that still counted. An empty state is fresh afterwards,
    /// unless it has to remember something of its other charges.
    fn refund(&mut self, rule: &Rule, cost: u64, receipt: [u64; 2], now_us: u64) -> u64;

    /// Whether a charge by a rule, refunded at the same time, leaves the state as it was.
    fn can_undo(&self, _rule: &Rule) -> bool {
        true
    }

    /// Makes a hold last one lease from now. `false` if it no longer counts.
    fn renew(&mut self, _hold: &Hold, _now_us: u64) -> bool {
        false
    }

    /// Replaces a hold by a charge of the amount used. Returns the amount that was still held.
    fn settle(&mut self, _rule: &Rule, _hold: &Hold, _used: u64, _now_us: u64) -> u64 {
        0
    }

    /// Bans the counter. The ban takes the place of the state, and lasts at least until none of its
    /// charges would have counted any more. A log keeps its charges and holds below the ban.
    ///
    /// A ban is none of the cases of [`MemoryState::charge_at_once`]. [`MemoryState::evaluate`]
    /// denies every cost, and [`MemoryState::refund`] refunds nothing.
    fn ban(&mut self, _rule: &Rule, _ban: Ban) {}

    /// Ends a ban: the counter is fresh, but for its holds. Does nothing without a ban.
    fn unban(&mut self, _now_us: u64) {}

    /// Charges a cost of at least 1 that is not settled later, in the most frequent case. Returns the
    /// outcome that [`charge`] would return; of a denial, see [`Outcome::denied`]. A slot that comes later, for
    /// which the caller has to sleep, is only denied. A place is taken as by [`Hold::of_permit`]: a refund frees it.
    ///
    /// `None` in all other cases. Then nothing has changed but parts that have expired. It never
    /// makes the state expire sooner, unless it has expired.
    #[inline(always)]
    #[allow(clippy::inline_always)] // in each call
    fn charge_at_once(&mut self, _rule: &Rule, _cost: u64, _now: DecisionTime) -> Option<Outcome> {
        None
    }

    /// Whether [`MemoryState::charge_at_once`] needs the time in microseconds.
    #[inline]
    fn needs_us() -> bool
    where
        Self: Sized,
    {
        false
    }

    #[inline]
    fn is_fresh(&self, now_us: u64) -> bool {
        self.expires_at_ms() <= now_us / 1000
    }
}

/// Bans a counter for some time from now. A time of 0 ends its ban.
pub(crate) fn ban(state: &mut dyn MemoryState, rule: &Rule, time_ms: u64, now_us: u64) {
    if !state.is_fresh(now_us) {
        state.correct_clock(rule, now_us);
    }
    let since_ms = now_us / 1000;
    match time_ms {
        0 => state.unban(now_us),
        _ => state.ban(rule, Ban { since_ms, until_ms: since_ms + time_ms }),
    }
}

/// Evaluates the query's cost on a state that may have expired or stem from a later time.
pub(crate) fn evaluate(state: &mut dyn MemoryState, query: &ChargeQuery<'_>, now_us: u64) -> Evaluation {
    if state.is_fresh(now_us) {
        return Evaluation::fresh(query.rule, query.least());
    }
    state.correct_clock(query.rule, now_us);
    state.evaluate(query, query.least(), now_us)
}

/// Charges the query's cost if it fits.
pub(crate) fn charge(state: &mut dyn MemoryState, query: &ChargeQuery<'_>, now_us: u64) -> Outcome {
    let found = evaluate(state, query, now_us);
    if !found.fits || query.cost == 0 {
        return Outcome::new(found.decision, [0; 2]);
    }
    let room = found.decision.remaining;
    if state.is_fresh(now_us) {
        state.restart(query.rule, now_us);
        return charge_fresh(state, query, room, now_us);
    }
    charge_fitting(state, query, room, now_us)
}

/// Charges the query's cost, which fits into the room, to a state that was [restarted](MemoryState::restart) now.
#[inline]
pub(crate) fn charge_fresh(state: &mut dyn MemoryState, query: &ChargeQuery<'_>, room: u64, now_us: u64) -> Outcome {
    let now = DecisionTime { us: now_us, ms: now_us / 1000 };
    // A place without a hold is not taken: no permit would free it.
    let is_plain = query.hold.is_none() && !query.settles && !query.rule.is_concurrent();
    if is_plain && let Some(outcome) = state.charge_at_once(query.rule, query.cost, now) {
        return outcome;
    }
    charge_fitting(state, query, room, now_us)
}

fn charge_fitting(state: &mut dyn MemoryState, query: &ChargeQuery<'_>, room: u64, now_us: u64) -> Outcome {
    // Only a hold may be granted less than its cost.
    let amount = if query.hold.is_some() { query.cost.min(room) } else { query.cost };
    let receipt = state.commit(query, amount, now_us);
    Outcome::new(state.evaluate(query, 0, now_us).decision, receipt)
}

/// A Lua script of an algorithm: two bodies, and the names of the numbers that they take.
///
/// Both bodies see `key`, `call` (`redis.call`) and their numbers. The body that refunds returns
/// the amount refunded. The body that decides sets `reply` and `fits`, may `break` after that, and
/// also sees:
///
/// - `charge`: `false` to evaluate, `true` to charge if the cost fits, `'always'` if it is known to
///   fit; for a hold `'renew'`, `'settle'` or `'again'`, see [`ScriptMode`](super::ScriptMode)
/// - `charged`: the stored cost in digits, or nil, see [`RedisScript::needs_stored_cost`]; or the
///   holds to renew
/// - `time`: the reply to TIME, or nil if the body has to ask for it
/// - `now`: the same in ms, to be used instead of the key's expiry, or nil
/// - `value`: the value of the key, or nil if the body has to read it
///
/// `fits` is nil if the counter is banned.
///
/// `place`, `stored` and `fitting` see no local of `decide`, but `reply`, `value`, `granted`, `n` and the numbers as
/// `its_<name>`: see `script/repeat.lua`.
#[cfg(feature = "redis")]
pub(super) struct LuaScript {
    pub(super) decide: &'static str,
    pub(super) args: &'static str,
    /// First of the numbers for `n` equal charges at once.
    pub(super) first_of_many: &'static str,
    /// Index, among equal charges made at once, of the charge that the reply describes.
    pub(super) place: &'static str,
    /// Value of the key after a charge, for the next decision on it; nil if that one reads the key
    /// again.
    pub(super) stored: &'static str,
    /// Declares `fitting`: how many equal charges would have fitted, from the denial of more of
    /// them.
    pub(super) fitting: &'static str,
    /// The decision uses `value`.
    pub(super) has_value: bool,
    /// Bans the counter, after the body that decides. It also sees `ban`, the ms of the ban, and sets
    /// `reply` to that of a banned counter, see `script/banned.lua`.
    pub(super) ban: &'static str,
    /// Ends a ban, after the body that decides: the counter is fresh, but for its holds.
    pub(super) unban: &'static str,
    pub(super) refund: &'static str,
    pub(super) refund_args: &'static str,
}

/// [`LuaScript::ban`] of a counter whose key is one string: a Lua expression for the value of a ban,
/// which takes the place of the state.
///
/// The ban lasts at least until no charge would count any more, or until an earlier ban ends.
#[cfg(feature = "redis")]
macro_rules! ban_of_string {
    ($value:literal) => {
        concat!(
            "ban = math.max(ban, fits == nil and reply[1][1] or call('PTTL', key))\n",
            "call('SET', key, ",
            $value,
            ", 'PX', string.format('%.0f', math.max(ban - 1, 1)))\n",
            "reply = { { ban, ban } }\n"
        )
    };
}
#[cfg(feature = "redis")]
pub(super) use ban_of_string;

/// [`LuaScript::unban`] of a counter that holds nothing.
#[cfg(feature = "redis")]
pub(super) const UNBAN: &str = "call('DEL', key)\n";

/// The scripts of an algorithm: their arguments, their replies and their cost.
#[cfg(feature = "redis")]
pub(super) trait RedisScript {
    /// The first is for charges that hold nothing.
    const SCRIPTS: &'static [LuaScript];

    /// Equal charges made at once have one receipt, and differ only in what remains.
    const REPEATS_SHARE_RECEIPT: bool = false;

    /// Index into [`RedisScript::SCRIPTS`] of the script for a charge.
    fn script_index(_charge: &Charge) -> usize {
        0
    }

    /// Numbers of the script that decides on a charge.
    fn args(charge: &Charge) -> PackedNumbers;

    /// The cost in the unit in which the script stores it.
    fn stored_cost(charge: &Charge) -> u64 {
        charge.cost
    }

    /// A script for one counter takes [`RedisScript::stored_cost`] as an argument, since it can't
    /// derive it.
    fn needs_stored_cost(_charge: &Charge) -> bool {
        false
    }

    /// Numbers of the script that refunds a charge.
    fn refund_args(charge: &Charge) -> PackedNumbers;

    /// Upper bound of the steps of one decision; see [`MAX_STEPS`](super::MAX_STEPS).
    fn steps(rule: &Rule) -> u64;

    /// Upper bound of the steps to renew one hold among as many others as a counter may have.
    fn renewal_steps(_charge: &Charge) -> u64 {
        24
    }

    /// Parses a reply: the evaluation (after the charge if it was `charged`) and the receipt.
    /// `None` if it is malformed.
    fn parse_reply(charge: &Charge, charged: bool, reply: &Value) -> Option<(Evaluation, [u64; 2])>;

    /// Reply to one of several equal charges made at once, from the reply to another. `more`: cost
    /// of the charges between them.
    fn shift_reply(rule: &Rule, reply: &Value, more: i64) -> Option<Value>;
}
