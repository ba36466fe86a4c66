//! A reference model of all algorithms.
//!
//! It keeps every charge and computes each answer from the definitions: obviously right, slow, and
//! only useful for comparison.

mod bucket;
mod counter;
mod definitions;
mod state;
mod sub_windows;
#[cfg(all(test, not(model_check)))]
mod tests;
mod units;
mod whole;

use std::{collections::HashMap, mem, time::Duration};

pub(super) use self::definitions::EXAMPLES;
use self::{
    definitions::definition,
    state::{CountedCharge, GrantRecord, ModelCounter, ModelHold, RefundedCharge},
    units::{end_of_lease_us, largest_count, least, micros, tick_us, wait_ms, whole},
};
use crate::{
    CounterName, Key, Rule,
    algorithm::{HoldSupport, capabilities},
    store::{Charge, Charges, Hold, Request},
};

/// Counters that decide as [`Store`](crate::Store) promises.
#[derive(Clone, Debug, Default)]
pub struct Model {
    counters: HashMap<CounterName, ModelCounter>,
    /// Every charge ever granted. The second number of a receipt is an index into it, the first one is the time of the
    /// first charge of its window.
    granted: Vec<GrantRecord>,
}

impl Model {
    /// A charge to the counter of a rule and a key.
    pub fn charge(rule: &Rule, key: &Key, cost: u64) -> Charge {
        Charge::new(*rule, CounterName::new("", rule, key), cost)
    }

    /// Decides a request like a store.
    pub fn decide(&mut self, now: Duration, request: &mut Request) {
        let now = micros(now);
        let mut all_fit = true;
        for charge in request.charges.iter_mut() {
            let counter = self.counters.entry(charge.counter.clone()).or_default();
            let least = least(charge);
            let turn_ms = counter.turn_ms(charge, now).max(counter.room_ms(charge, now));
            let decision = counter.decision(&charge.rule, now, least, wait_ms(charge)).not_before(turn_ms);
            charge.decision = decision.below_ban(counter.banned_ms(now));
            if charge.decision.retry_after().is_some() && !charge.decision.is_banned() {
                let alone = counter.without_live_holds(now);
                charge.held_by_others = whole(counter.live_holds(now).map(|held| held.cost).sum());
                charge.fits_when_released =
                    charge.held_by_others > 0 && alone.fits(&charge.rule, now, least, wait_ms(charge));
            }
            charge.slot_delay =
                Duration::from_millis(whole(counter.slot_ms(&charge.rule, now) * i128::from(charge.cost > 0)));
            all_fit &= charge.decision.retry_after().is_none();
        }
        request.outcome = Ok(all_fit);
        if !(all_fit && request.consume) {
            return;
        }
        for charge in request.charges.iter_mut().filter(|charge| charge.cost > 0) {
            let counter = self.counters.entry(charge.counter.clone()).or_default();
            if let Some(Hold { id, allow_partial, .. }) = charge.hold {
                let remaining = whole(counter.remaining(&charge.rule, now));
                charge.cost = if allow_partial { charge.cost.min(remaining) } else { charge.cost };
                counter.held.push(ModelHold { id, cost: charge.cost.into(), ends_us: end_of_lease_us(charge, now) });
            } else {
                let index = self.granted.len() as u64;
                counter.charge(&charge.rule, now, charge.cost.into(), index);
                if charge.settles {
                    counter.settles(&charge.rule, now);
                }
                let first_us = first_us(counter, &self.granted, now);
                charge.receipt = [whole(first_us), index];
                self.granted.push(GrantRecord { at_us: now, first_us, level: counter.level });
            }
            charge.decision = counter.decision(&charge.rule, now, 0, 0);
        }
    }

    /// Refunds granted charges as far as they still count, and returns the refunded cost.
    pub fn refund(&mut self, now: Duration, charges: &Charges) -> u64 {
        let mut back = 0;
        for charge in charges.iter().filter(|charge| charge.cost > 0) {
            if charge.hold.is_some() {
                back += self.end_hold(micros(now), charge).map_or(0, |held| whole(held.cost));
                continue;
            }
            let receipt = charge.receipt[1];
            let granted = usize::try_from(receipt).ok().and_then(|at| self.granted.get(at));
            let Some(&granted) = granted else { continue };
            let counter = self.counters.entry(charge.counter.clone()).or_default();
            if counter.banned_ms(micros(now)) > 0 {
                continue;
            }
            let refunded = RefundedCharge { receipt, granted, cost: charge.cost.into() };
            back += whole(counter.refund(&charge.rule, micros(now), &refunded));
        }
        back
    }

    /// Renews a hold. Returns false if it no longer counts.
    pub fn renew(&mut self, now: Duration, charge: &Charge) -> bool {
        let ends_us = end_of_lease_us(charge, micros(now));
        let held = self.held(micros(now), charge);
        held.map(|held| held.ends_us = ends_us).is_some()
    }

    /// Replaces a hold by a charge of the cost that was used, up to the largest count that a store
    /// can store.
    pub fn settle(&mut self, now: Duration, charge: &Charge, used: u64) {
        let (rule, now) = (&charge.rule, micros(now));
        let is_retry = charge.hold.is_some_and(|hold| hold.is_retry);
        let ended = self.end_hold(now, charge);
        if rule.is_concurrent() {
            return;
        }
        let counter = self.counters.entry(charge.counter.clone()).or_default();
        match ended {
            Some(ended) if is_retry => {
                counter.settled.push(ModelHold { ends_us: end_of_lease_us(charge, now), ..ended });
            }
            None if is_retry || counter.was_settled(charge, now) => return,
            _ => {}
        }
        let before: i128 = counter.counting(rule, now).map(|charge| charge.cost).sum();
        counter.charge(rule, now, i128::from(used).min(largest_count(rule) - before), self.granted.len() as u64);
        let first_us = first_us(counter, &self.granted, now);
        self.granted.push(GrantRecord { at_us: now, first_us, level: None });
    }

    /// The hold of a charge. `None` if it no longer counts.
    fn held(&mut self, now: i128, charge: &Charge) -> Option<&mut ModelHold> {
        let id = charge.hold.expect("a charge that is held").id;
        let held = self.counters.entry(charge.counter.clone()).or_default().held.iter_mut();
        held.into_iter().find(|held| held.id == id && held.counts(&charge.rule, now))
    }

    /// Ends the hold of a charge. `None` if it no longer counted.
    fn end_hold(&mut self, now: i128, charge: &Charge) -> Option<ModelHold> {
        let ended = self.held(now, charge).copied();
        let counter = self.counters.entry(charge.counter.clone()).or_default();
        counter.held.retain(|held| ended.is_none_or(|ended| ended.id != held.id));
        ended
    }

    /// Whether Redis may mistake a charge for one of a later window, or for a later entry of a log.
    ///
    /// It identifies a window by its opening millisecond modulo 450,001, and an entry by its tick
    /// modulo 812,345,679 or a multiple of that. A late refund hits the wrong one once in as many
    /// times.
    pub(super) fn may_alias(&self, charge: &Charge) -> bool {
        if charge.hold.is_some() {
            return false;
        }
        let tick = tick_us(&charge.rule);
        let Some((round_up, modulus)) = (definition(&charge.rule).alias)(&charge.rule) else { return false };
        let granted = usize::try_from(charge.receipt[1]).ok().and_then(|at| self.granted.get(at));
        let (Some(granted), Some(counter)) = (granted, self.counters.get(&charge.counter)) else { return false };
        let own = counter.charges.iter().find(|other| other.receipt == charge.receipt[1]);
        let is_own = |other: &&CountedCharge| own.is_some_and(|own| own.ends_us == other.ends_us);
        let tick_of = |at_us: i128| (at_us + round_up) / tick;
        let others = || counter.charges.iter().filter(|other| !is_own(other)).map(|other| tick_of(other.at_us));
        let made = counter.charges.iter().filter(is_own).map(|own| own.at_us);
        let mut made = made.chain([granted.at_us, granted.first_us]).map(tick_of);
        made.any(|made| others().any(|other| (other - made) % modulus == 0))
    }

    /// Whether a refund tells a charge from those that were made after a reset.
    pub(super) fn tells_resets_apart(rule: &Rule) -> bool {
        definition(rule).tells_resets_apart
    }

    /// Bans a counter, whose charges do not count for longer than that. A zero time ends its ban, and
    /// leaves only holds.
    pub fn ban(&mut self, now: Duration, counter: &CounterName, time: Duration) {
        let now = micros(now);
        let counter = self.counters.entry(counter.clone()).or_default();
        if !time.is_zero() {
            let until_ms = now.div_euclid(1000) + micros(time) / 1000;
            counter.banned_until_ms = counter.banned_until_ms.max(until_ms);
        } else if counter.banned_ms(now) > 0 {
            let ModelCounter { held, settled, .. } = mem::take(counter);
            *counter = ModelCounter { held, settled, ..ModelCounter::default() };
        }
    }

    /// Whether a ban of a counter keeps its charges.
    pub(super) fn keeps_charges(rule: &Rule) -> bool {
        capabilities(rule.algorithm()).holds == HoldSupport::Settled
    }

    /// Deletes a counter.
    pub fn reset(&mut self, counter: &CounterName) {
        self.counters.remove(counter);
    }
}

/// The time of the first charge of the window of a counter's latest charge.
fn first_us(counter: &ModelCounter, granted: &[GrantRecord], now: i128) -> i128 {
    let Some(own) = counter.charges.last() else { return now };
    let of_window = counter.charges.iter().filter(|other| other.ends_us == own.ends_us);
    let grants = of_window.filter_map(|other| granted.get(usize::try_from(other.receipt).ok()?));
    grants.map(|grant| grant.first_us).chain([now]).min().unwrap_or(now)
}
