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
    duration::random_in_process,
    store::{ChargeQuery, Hold},
};

/// The places of one counter.
///
/// Most are taken by a permit of this process, which frees its place once, when it is dropped: their number is
/// enough.
#[derive(Debug, Default)]
pub(crate) struct Semaphore {
    /// The places that permits free. Their leases do not end.
    taken: u64,
    /// A random number that is in the receipts of these places: after a reset, an earlier permit frees no place.
    /// Never 0.
    epoch: u64,
    /// The places of holds.
    held: Option<Box<HoldSet>>,
}

impl Semaphore {
    fn total(&self) -> u64 {
        self.taken.saturating_add(self.held.as_ref().map_or(0, |held| held.total()))
    }

    /// The end of the leases of permits, which are renewed all the time: of all of them by this rule, whose lease may
    /// have changed.
    fn taken_until_ms(&self, rule: &Rule, now_us: u64) -> Option<u64> {
        (self.taken > 0).then(|| now_us / 1000 + rule.period_ms())
    }

    /// The earliest end of a lease.
    fn first_end_ms(&self, rule: &Rule, now_us: u64) -> Option<u64> {
        let taken = self.taken_until_ms(rule, now_us);
        match &self.held {
            Some(held) => taken.into_iter().chain(held.first_end_ms(now_us)).min(),
            None => taken,
        }
    }

    /// The latest end of a lease.
    fn last_end_ms(&self, rule: &Rule, now_us: u64) -> Option<u64> {
        self.taken_until_ms(rule, now_us).max(self.held.as_ref().and_then(|held| held.last_end_ms(now_us)))
    }

    fn drop_expired(&mut self, now_us: u64) {
        if let Some(held) = &mut self.held {
            held.drop_expired(now_us);
        }
    }

    /// Takes places for a permit. Returns the receipt.
    #[inline]
    fn take(&mut self, amount: u64) -> [u64; 2] {
        self.taken = self.taken.saturating_add(amount);
        [self.epoch, amount]
    }
}

impl MemoryState for Semaphore {
    type Align = ();

    fn restart(&mut self, _rule: &Rule, _now_us: u64) {
        *self = Self { epoch: random_in_process().max(1), ..Self::default() };
    }

    fn recovery(_rule: &Rule) -> Recovery {
        Recovery::Released
    }

    #[inline]
    fn expires_at_ms(&self) -> u64 {
        match &self.held {
            _ if self.taken > 0 => u64::MAX,
            Some(held) => held.expires_at_ms(),
            None => 0,
        }
    }

    fn correct_clock(&mut self, _rule: &Rule, _now_us: u64) {}

    fn evaluate(&mut self, query: &ChargeQuery<'_>, cost: u64, now_us: u64) -> Evaluation {
        self.drop_expired(now_us);
        let rule = query.rule;
        let remaining = rule.count().saturating_sub(self.total());
        let until = |ends_ms: Option<u64>| ends_ms.map_or(0, |ends_ms| ends_ms - now_us / 1000);
        // The first hold that ends may not free enough: the caller is evaluated again then.
        let retry_after_ms = (cost > remaining).then(|| until(self.first_end_ms(rule, now_us)));
        let found = Evaluation::new(rule, remaining, until(self.last_end_ms(rule, now_us)), retry_after_ms);
        if found.fits { found } else { Evaluation { held: self.total(), fits_when_released: true, ..found } }
    }

    /// Takes no places without a hold; see [`Store::decide`](crate::Store::decide).
    fn commit(&mut self, query: &ChargeQuery<'_>, amount: u64, now_us: u64) -> [u64; 2] {
        match query.hold {
            None => [0; 2],
            Some(hold) if hold.is_of_permit() => self.take(amount),
            Some(hold) => {
                self.held.get_or_insert_default().insert(now_us, amount, hold);
                [0, amount] // it is settled, and not refunded
            }
        }
    }

    /// If there are no holds: the leases of permits, which are renewed all the time, have no end.
    #[inline(always)]
    #[allow(clippy::inline_always)] // in each call
    fn charge_at_once(&mut self, rule: &Rule, cost: u64, _now: DecisionTime) -> Option<Outcome> {
        if self.held.is_some() {
            return None;
        }
        let (remaining, lease_ms) = (rule.count().saturating_sub(self.taken), rule.period_ms());
        if cost > remaining {
            return Some(Outcome::denied(remaining, if self.taken > 0 { lease_ms } else { 0 }));
        }
        Some(Outcome::admitted(remaining - cost, lease_ms, self.take(cost)))
    }

    /// Frees the places of a permit.
    fn refund(&mut self, _rule: &Rule, _cost: u64, [epoch, amount]: [u64; 2], _now_us: u64) -> u64 {
        if epoch != self.epoch {
            return 0; // of an earlier state, or nothing was taken
        }
        let freed = amount.min(self.taken);
        self.taken -= freed;
        freed
    }

    fn renew(&mut self, hold: &Hold, now_us: u64) -> bool {
        self.held.as_mut().is_some_and(|held| held.renew(now_us, hold))
    }

    fn settle(&mut self, _rule: &Rule, hold: &Hold, _used: u64, now_us: u64) -> u64 {
        self.drop_expired(now_us);
        let removed = self.held.as_mut().and_then(|held| held.remove(hold.id));
        self.held.take_if(|held| held.len() == 0); // most counters have no further one soon
        removed.map_or(0, |held| held.amount)
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

#[cfg(all(test, not(model_check)))]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::{
        Algorithm,
        algorithm::{contract::charge, hold_set::end_ms},
    };

    const COUNT: u64 = 6;

    /// The guide names the bytes of a counter.
    #[test]
    fn a_counter_is_as_small_as_that_of_a_bucket() {
        assert_eq!(size_of::<Semaphore>(), 24);
    }

    /// Such an id can only come from outside of the crate.
    #[test]
    fn a_hold_with_the_id_0_is_settled() {
        let rule = Rule::new("item", COUNT, Duration::from_secs(1)).with_algorithm(Algorithm::Concurrent);
        let hold = Hold { id: 0, ..Hold::new(rule.period()) };
        let mut state = Semaphore::default();
        state.restart(&rule, 0);
        state.commit(&ChargeQuery { hold: Some(&hold), ..ChargeQuery::of(&rule, 2) }, 2, 0);
        assert_eq!(state.expires_at_ms(), 1000);
        assert_eq!(state.settle(&rule, &hold, 0, 0), 2);
    }

    proptest! {
        /// A permit frees its places once, and after a reset none.
        #[test]
        fn places_of_permits_and_of_holds_are_counted_together(
            steps in prop::collection::vec((0_u8..8, 1_u64..4, 0_usize..8), 1..80),
        ) {
            let rule = Rule::new("item", COUNT, Duration::from_secs(1)).with_algorithm(Algorithm::Concurrent);
            let (mut state, mut now_us) = (Semaphore::default(), 1_000_000);
            state.restart(&rule, now_us);
            // Receipts with the places that count, and holds with their ends.
            let (mut permits, mut holds) = (Vec::<([u64; 2], u64)>::new(), Vec::<(Hold, u64, u64)>::new());
            for (what, cost, at) in steps {
                holds.retain(|(_, _, ends_ms)| *ends_ms > now_us / 1000);
                let held: u64 = holds.iter().map(|(_, amount, _)| amount).sum();
                let taken = held + permits.iter().map(|(_, counted)| counted).sum::<u64>();
                match what {
                    0..3 => {
                        let now = DecisionTime { us: now_us, ms: now_us / 1000 };
                        let before = state.evaluate(&ChargeQuery::of(&rule, cost), cost, now_us).decision;
                        let hold = Hold::of_permit(rule.period());
                        let query = ChargeQuery { hold: Some(&hold), ..ChargeQuery::of(&rule, cost) };
                        let at_once = state.charge_at_once(&rule, cost, now);
                        prop_assert_eq!(at_once.is_none(), state.held.is_some());
                        let outcome = at_once.unwrap_or_else(|| charge(&mut state, &query, now_us));
                        let after = state.evaluate(&ChargeQuery::of(&rule, 0), 0, now_us).decision;
                        if outcome.fits() {
                            prop_assert_eq!(outcome.decision(COUNT), after);
                        } else {
                            prop_assert_eq!(outcome.retry_after_ms.value(), before.retry_after_ms);
                        }
                        let left = if taken + cost <= COUNT { COUNT - taken - cost } else { COUNT - taken };
                        prop_assert_eq!((outcome.fits(), outcome.remaining.value()), (taken + cost <= COUNT, left));
                        if outcome.fits() {
                            permits.push((outcome.receipt, cost));
                        }
                    }
                    3 => {
                        let hold = Hold::new(Duration::from_millis(10 * cost));
                        let query = ChargeQuery { hold: Some(&hold), ..ChargeQuery::of(&rule, cost) };
                        let found = state.evaluate(&query, cost, now_us);
                        prop_assert_eq!((found.fits, found.decision.remaining), (taken + cost <= COUNT, COUNT - taken));
                        if found.fits {
                            state.commit(&query, cost, now_us);
                            holds.push((hold, cost, end_ms(now_us, hold.lease_ms())));
                        }
                    }
                    4 if at < holds.len() => {
                        let (hold, amount, _) = holds.swap_remove(at);
                        prop_assert_eq!(state.settle(&rule, &hold, 0, now_us), amount);
                        prop_assert_eq!(state.settle(&rule, &hold, 0, now_us), 0);
                    }
                    5 if at < permits.len() => {
                        let (receipt, counted) = permits.swap_remove(at);
                        prop_assert_eq!(state.refund(&rule, counted, receipt, now_us), counted);
                    }
                    6 if at == 0 => {
                        state.restart(&rule, now_us);
                        holds.clear();
                        for (_, counted) in &mut permits {
                            *counted = 0;
                        }
                    }
                    _ => now_us += 3_300 * cost,
                }
                let is_taken = permits.iter().any(|(_, counted)| *counted > 0);
                let last_ms = holds.iter().map(|(_, _, ends_ms)| *ends_ms).max();
                prop_assert_eq!(state.expires_at_ms() == u64::MAX, is_taken);
                prop_assert!(is_taken || state.expires_at_ms() >= last_ms.unwrap_or_default());
            }
        }
    }
}
