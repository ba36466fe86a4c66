//! Semaphore: places, each held until its holder releases it or stops renewing it.
//!
//! The *counting semaphore* of Dijkstra, with leases (Gray and Cheriton, 1989), so that places of
//! holders that died become free.

#[cfg(feature = "redis")]
use redis::Value;

use super::{
    contract::{Evaluation, MemoryState, Recovery},
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
    decision::Outcome,
    store::{ChargeQuery, Hold},
};

/// The places of one counter.
#[derive(Debug, Default)]
pub(crate) struct Semaphore(HoldSet);

impl Semaphore {
    /// The number of free places. If they are too few, also the time until the first hold ends: that one may not
    /// free enough, and the caller is evaluated again then.
    #[inline]
    fn free(&mut self, rule: &Rule, cost: u64, now_us: u64) -> (u64, Option<u64>) {
        self.0.drop_expired(now_us);
        let remaining = rule.count().saturating_sub(self.0.total());
        let wait_ms = || self.0.first_end_ms(now_us).map_or(0, |ends_ms| ends_ms - now_us / 1000);
        (remaining, (cost > remaining).then(wait_ms))
    }

    /// Returns the number of places that were still held.
    fn release(&mut self, hold_id: u64, now_us: u64) -> u64 {
        self.0.drop_expired(now_us);
        self.0.remove(hold_id).map_or(0, |held| held.amount)
    }
}

impl MemoryState for Semaphore {
    type Align = ();

    fn restart(&mut self, _rule: &Rule, _now_us: u64) {
        *self = Self::default();
    }

    fn recovery(_rule: &Rule) -> Recovery {
        Recovery::Released
    }

    #[inline]
    fn expires_at_ms(&self) -> u64 {
        self.0.expires_at_ms()
    }

    fn correct_clock(&mut self, _rule: &Rule, _now_us: u64) {}

    fn evaluate(&mut self, query: &ChargeQuery<'_>, cost: u64, now_us: u64) -> Evaluation {
        let (remaining, retry_after_ms) = self.free(query.rule, cost, now_us);
        let reset_after_ms = self.0.last_end_ms(now_us).map_or(0, |ends_ms| ends_ms - now_us / 1000);
        let found = Evaluation::new(query.rule, remaining, reset_after_ms, retry_after_ms);
        if found.fits { found } else { Evaluation { held: self.0.total(), fits_when_released: true, ..found } }
    }

    /// Takes no places without a hold; see [`Store::decide`](crate::Store::decide).
    fn commit(&mut self, query: &ChargeQuery<'_>, amount: u64, now_us: u64) -> [u64; 2] {
        let Some(hold) = query.hold else { return [0; 2] };
        self.0.insert(now_us, amount, hold);
        [hold.id, amount]
    }

    /// Only denies: a free place is taken with a hold.
    #[inline]
    fn charge_at_once(&mut self, rule: &Rule, cost: u64, now: DecisionTime) -> Option<Outcome> {
        let (remaining, retry_after_ms) = self.free(rule, cost, now.us);
        retry_after_ms.map(|retry_after_ms| Outcome::denied(remaining, retry_after_ms))
    }

    #[inline]
    fn needs_us() -> bool {
        true
    }

    /// Releases a place.
    fn refund(&mut self, _rule: &Rule, _cost: u64, [hold_id, _]: [u64; 2], now_us: u64) -> u64 {
        self.release(hold_id, now_us)
    }

    fn renew(&mut self, hold: &Hold, now_us: u64) -> bool {
        self.0.renew(now_us, hold)
    }

    fn settle(&mut self, _rule: &Rule, hold: &Hold, _used: u64, now_us: u64) -> u64 {
        self.release(hold.id, now_us)
    }
}

#[cfg(feature = "redis")]
impl RedisScript for Semaphore {
    const SCRIPTS: &'static [LuaScript] = &[LuaScript {
        decide: include_str!("decide.lua"),
        args: "cost, count, id, lease, allow_partial",
        first_of_many: "cost * n",
        place: "granted + n - 1",
        stored: "nil",
        fitting: "local fitting = (-1 - reply[1]) / its_cost",
        has_value: false,
        ban: "", // places cannot be banned
        unban: "",
        refund: "return 0", // places are settled
        refund_args: "cost",
    }];

    fn args(charge: &Charge) -> PackedNumbers {
        let (id, lease_ms, allow_partial) =
            charge.hold.map_or((0, 0, false), |hold| (hold.id, hold.lease_ms(), hold.allow_partial));
        pack([charge.cost, charge.rule.count(), id, lease_ms, allow_partial.into()])
    }

    fn refund_args(charge: &Charge) -> PackedNumbers {
        pack([charge.cost])
    }

    fn steps(rule: &Rule) -> u64 {
        // Binary searches among the holds.
        100 + 30 * u64::from(rule.count().max(1).ilog2())
    }

    fn renewal_steps(charge: &Charge) -> u64 {
        // Each member moves within a sorted set of all of them. Its two commands take longer than
        // most.
        60 + 100 * u64::from(charge.cost.count_ones())
    }

    fn parse_reply(charge: &Charge, _charged: bool, reply: &Value) -> Option<(Evaluation, [u64; 2])> {
        let rule = &charge.rule;
        let Value::Array(numbers) = reply else { return None };
        let [Value::Int(remaining), Value::Int(reset_after_ms), Value::Int(other), held @ ..] = &**numbers else {
            return None;
        };
        let (reset_after_ms, other) = (reset_after_ms.unsigned_abs(), other.unsigned_abs());
        Some(if *remaining < 0 {
            let found = Evaluation::new(rule, (-1 - remaining).unsigned_abs(), reset_after_ms, Some(other));
            (found.with_held(held), [0; 2])
        } else {
            (Evaluation::new(rule, remaining.unsigned_abs(), reset_after_ms, None), [0, other])
        })
    }

    /// Holds are decided one by one.
    fn shift_reply(_rule: &Rule, _reply: &Value, _more: i64) -> Option<Value> {
        None
    }
}
