//! What the algorithms mean, written to be obviously right: every charge is kept, and each answer is computed from the
//! definitions. Slow, and of no use but to compare with.

use std::{collections::HashMap, time::Duration};

use crate::{
    Algorithm, CounterName, Decision, Key, Refill, Rule,
    rule::limits::{Fault, MOST_HOLDS},
    store::{Charge, Charges, Hold, Request},
};

/// Counters that decide as the contract says.
#[derive(Clone, Debug, Default)]
pub struct Model {
    counters: HashMap<CounterName, Counter>,
    /// Every charge ever granted; a receipt is an index in here.
    granted: Vec<Granted>,
}

#[derive(Clone, Copy, Debug)]
struct Granted {
    at_us: i128,
    /// What was stored after it, of a bucket.
    level: Option<Level>,
}

/// One counter. A window and a log have charges, a bucket has a level; a log and places have what is held.
#[derive(Clone, Debug, Default)]
struct Counter {
    charges: Vec<Charged>,
    level: Option<Level>,
    held: Vec<Held>,
    /// What was held and settled by a retry, the first attempt of which may still come.
    settled: Vec<Held>,
}

#[derive(Clone, Copy, Debug)]
struct Charged {
    receipt: u64,
    at_us: i128,
    /// When it no longer counts, for a fixed window and a log.
    ends_us: i128,
    /// What has not been refunded of it.
    cost: i128,
}

/// Held until somebody settles it.
#[derive(Clone, Copy, Debug)]
struct Held {
    id: u64,
    cost: i128,
    /// When its holder's time is over.
    ends_us: i128,
}

/// What the last write to a bucket left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Level {
    written_ms: i128,
    /// What the bucket lacked then, in units.
    missing: i128,
    /// When it will be full.
    full_ms: i128,
}

impl Model {
    /// A cost to the counter of a rule and a key, to be decided.
    pub fn charge(rule: &Rule, key: &Key, cost: u64) -> Charge {
        Charge::new(*rule, CounterName::new("", rule, Some(key)), cost)
    }

    /// Decides a request as a store does.
    pub fn decide(&mut self, now: Duration, request: &mut Request) {
        let now = micros(now);
        let mut all_fit = true;
        for charge in request.charges.iter_mut() {
            let counter = self.counters.entry(charge.counter.clone()).or_default();
            let least = least(charge);
            let turn_ms = counter.turn_ms(charge, now).max(counter.room_ms(charge, now));
            charge.decision = counter.decision(&charge.rule, now, least, wait_ms(charge)).not_before(turn_ms);
            if charge.decision.retry_after().is_some() {
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
                counter.held.push(Held { id, cost: charge.cost.into(), ends_us: end_of_lease_us(charge, now) });
            } else {
                charge.receipt = [self.granted.len() as u64, 0];
                counter.charge(&charge.rule, now, charge.cost.into(), charge.receipt[0]);
                self.granted.push(Granted { at_us: now, level: counter.level });
            }
            charge.decision = counter.decision(&charge.rule, now, 0, 0);
        }
    }

    /// Returns what still counts of charges that [`Model::decide`] granted.
    pub fn refund(&mut self, now: Duration, charges: &Charges) -> u64 {
        let mut back = 0;
        for charge in charges.iter().filter(|charge| charge.cost > 0) {
            if charge.hold.is_some() {
                back += self.let_go(micros(now), charge).map_or(0, |held| whole(held.cost));
                continue;
            }
            let receipt = charge.receipt[0];
            let granted = usize::try_from(receipt).ok().and_then(|at| self.granted.get(at));
            let Some(&granted) = granted else { continue };
            let counter = self.counters.entry(charge.counter.clone()).or_default();
            back += whole(counter.refund(&charge.rule, micros(now), receipt, granted, charge.cost.into()));
        }
        back
    }

    /// Makes what is held last as long again, if it counts.
    pub fn renew(&mut self, now: Duration, charge: &Charge) -> bool {
        let ends_us = end_of_lease_us(charge, micros(now));
        let held = self.held(micros(now), charge);
        held.map(|held| held.ends_us = ends_us).is_some()
    }

    /// Charges what was used instead of what is held, as far as a store can count.
    pub fn settle(&mut self, now: Duration, charge: &Charge, used: u64) {
        let (rule, now) = (&charge.rule, micros(now));
        let is_retry = charge.hold.is_some_and(|hold| hold.is_retry);
        let ended = self.let_go(now, charge);
        if rule.is_concurrent() {
            return;
        }
        let counter = self.counters.entry(charge.counter.clone()).or_default();
        match ended {
            Some(ended) if is_retry => {
                counter.settled.push(Held { ends_us: end_of_lease_us(charge, now), ..ended });
            }
            None if is_retry || counter.was_settled(charge, now) => return,
            _ => {}
        }
        let before: i128 = counter.counting(rule, now).map(|charge| charge.cost).sum();
        counter.charge(rule, now, i128::from(used).min(largest_count(rule) - before), self.granted.len() as u64);
        self.granted.push(Granted { at_us: now, level: None });
    }

    /// What is held of a charge, if it counts.
    fn held(&mut self, now: i128, charge: &Charge) -> Option<&mut Held> {
        let id = charge.hold.expect("a charge that is held").id;
        let held = self.counters.entry(charge.counter.clone()).or_default().held.iter_mut();
        held.into_iter().find(|held| held.id == id && held.counts(&charge.rule, now))
    }

    /// Ends what is held of a charge, and returns it if it counted.
    fn let_go(&mut self, now: i128, charge: &Charge) -> Option<Held> {
        let ended = self.held(now, charge).copied();
        let counter = self.counters.entry(charge.counter.clone()).or_default();
        counter.held.retain(|held| ended.is_none_or(|ended| ended.id != held.id));
        ended
    }

    /// Whether Redis may take a charge for one to a later window, or a later entry of a log.
    ///
    /// It knows a window by the millisecond it was opened in modulo 450,001, and an entry by its tick modulo 812,345,679 or a
    /// multiple of it. What is refunded too late meets the wrong one once in as many times.
    pub(super) fn may_be_mistaken(&self, charge: &Charge) -> bool {
        if charge.hold.is_some() {
            return false;
        }
        let tick = tick_us(&charge.rule);
        let (round_up, modulus) = match charge.rule.algorithm() {
            Algorithm::FixedWindow { .. } => (0, 450_001),
            Algorithm::SlidingLog => (tick - 1, 812_345_679),
            _ => return false,
        };
        let granted = usize::try_from(charge.receipt[0]).ok().and_then(|at| self.granted.get(at));
        let (Some(granted), Some(counter)) = (granted, self.counters.get(&charge.counter)) else { return false };
        let own = counter.charges.iter().find(|other| other.receipt == charge.receipt[0]);
        let is_own = |other: &&Charged| own.is_some_and(|own| own.ends_us == other.ends_us);
        let tick_of = |at_us: i128| (at_us + round_up) / tick;
        let others = || counter.charges.iter().filter(|other| !is_own(other)).map(|other| tick_of(other.at_us));
        let mut made = counter.charges.iter().filter(is_own).map(|own| own.at_us).chain([granted.at_us]).map(tick_of);
        made.any(|made| others().any(|other| (other - made) % modulus == 0))
    }

    /// Forgets a counter.
    pub fn reset(&mut self, counter: &CounterName) {
        self.counters.remove(counter);
    }
}

impl Counter {
    /// What the contract says of each number, word by word.
    fn decision(&self, rule: &Rule, now: i128, cost: i128, longest_wait_ms: i128) -> Decision {
        let fits_after = |wait_ms: i128| self.fits(rule, now + 1000 * wait_ms, cost, longest_wait_ms);
        let empty_after = |wait_ms: i128| self.spent(rule, now + 1000 * wait_ms) == 0;
        // Of places: until the first of them is free, be it enough or not.
        let is_freed_after = |wait_ms: i128| self.spent(rule, now + 1000 * wait_ms) < self.spent(rule, now);
        let retry_after_ms = || if rule.is_concurrent() { smallest(is_freed_after) } else { smallest(fits_after) };
        let retry_after = (!fits_after(0)).then(|| Duration::from_millis(whole(retry_after_ms())));
        let reset_after = Duration::from_millis(whole(smallest(empty_after)));
        Decision::new(rule.limit(), whole(self.remaining(rule, now)), reset_after, retry_after)
    }

    fn remaining(&self, rule: &Rule, at_us: i128) -> i128 {
        (capacity(rule) - self.spent(rule, at_us)).max(0) / unit(rule)
    }

    fn fits(&self, rule: &Rule, at_us: i128, cost: i128, longest_wait_ms: i128) -> bool {
        let has_room = self.spent(rule, at_us) + cost * unit(rule) <= capacity(rule);
        cost == 0 || (has_room && self.slot_ms(rule, at_us) <= longest_wait_ms)
    }

    /// What is taken of the capacity, in units.
    fn spent(&self, rule: &Rule, at_us: i128) -> i128 {
        match rule.algorithm() {
            Algorithm::FixedWindow { .. } | Algorithm::SlidingLog | Algorithm::Concurrent => {
                let charged: i128 = self.counting(rule, at_us).map(|charge| charge.cost).sum();
                let held = self.held.iter().filter(|held| held.counts(rule, at_us));
                charged + held.map(|held| held.cost).sum::<i128>()
            }
            Algorithm::SlidingWindow { buckets } => {
                let (length, buckets) = (sub_window_ms(rule), i128::from(buckets));
                let (current, elapsed) = (at_us / 1000 / length, at_us / 1000 % length);
                let charged = |sub_window| self.charged_in(rule, sub_window);
                let full: i128 = (current - buckets + 1..=current).map(charged).sum();
                full + ceil(charged(current - buckets) * (length - elapsed), length)
            }
            Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } => {
                let now = at_us / 1000;
                let Some(level) = self.level.filter(|level| now < level.full_ms) else { return 0 };
                let refills = level.refills_to_come(rule, level.written_ms) - level.refills_to_come(rule, now);
                let missing = (level.missing - refills * count(rule)).max(0);
                match rule.algorithm() {
                    // The slots that were handed out stay, if the count has been raised since.
                    Algorithm::LeakyBucket { .. } => missing.max((level.full_ms - now - 1) * count(rule) + 1),
                    _ => missing,
                }
            }
        }
    }

    /// How long until the slot of a call that is made now.
    fn slot_ms(&self, rule: &Rule, at_us: i128) -> i128 {
        match rule.algorithm() {
            Algorithm::LeakyBucket { .. } if rule.count() > 0 => ceil(self.spent(rule, at_us), count(rule)),
            _ => 0,
        }
    }

    /// Takes what has been found to fit.
    fn charge(&mut self, rule: &Rule, now: i128, cost: i128, receipt: u64) {
        let (period_us, now_ms, tick) = (period_ms(rule) * 1000, now / 1000, tick_us(rule));
        match rule.algorithm() {
            Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } => {
                let missing = self.spent(rule, now) + cost * unit(rule);
                let (full_ms, to_come) = match self.level.filter(|level| now_ms < level.full_ms) {
                    Some(level) => (level.full_ms, level.refills_to_come(rule, now_ms)),
                    None => (now_ms, 0),
                };
                let full_ms = full_ms + (ceil(missing, count(rule)) - to_come) * refill_ms(rule);
                self.level = Some(Level { written_ms: now_ms, missing, full_ms });
            }
            algorithm => {
                let open = self.counting(rule, now).map(|charge| charge.ends_us).next();
                let ends_us = match algorithm {
                    // Each for itself, from the end of the tick it was made in.
                    Algorithm::SlidingLog => ceil(now, tick) * tick + period_us,
                    Algorithm::FixedWindow { align: true } => now - now % period_us + period_us,
                    _ => open.unwrap_or(now - now % tick + period_us),
                };
                self.charges.push(Charged { receipt, at_us: now, ends_us, cost });
            }
        }
    }

    fn refund(&mut self, rule: &Rule, now: i128, receipt: u64, granted: Granted, cost: i128) -> i128 {
        match rule.algorithm() {
            Algorithm::FixedWindow { .. } | Algorithm::SlidingLog => {
                let read = now - now % tick_us(rule);
                let charge = self.charges.iter_mut().find(|charge| charge.receipt == receipt && charge.ends_us > read);
                charge.map_or(0, |charge| std::mem::take(&mut charge.cost))
            }
            Algorithm::SlidingWindow { buckets } => {
                let length = sub_window_ms(rule);
                let sub_window = granted.at_us / 1000 / length;
                if sub_window < now / 1000 / length - i128::from(buckets) {
                    return 0;
                }
                let (before, mut left) = (self.spent(rule, now), cost);
                for charge in self.charges.iter_mut().filter(|charge| charge.at_us / 1000 / length == sub_window) {
                    let back = left.min(charge.cost);
                    charge.cost -= back;
                    left -= back;
                }
                before - self.spent(rule, now)
            }
            Algorithm::Concurrent => unreachable!("places are held"),
            Algorithm::TokenBucket { .. } => {
                let now_ms = now / 1000;
                let Some(level) = self.level.filter(|level| now_ms < level.full_ms) else { return 0 };
                let to_come = level.refills_to_come(rule, now_ms);
                let refills = (level.refills_to_come(rule, granted.at_us / 1000) - to_come).max(0);
                let missing = self.spent(rule, now);
                let not_refilled = (cost * unit(rule) - refills * count(rule)).max(0);
                let back = not_refilled.min(missing);
                if back > 0 {
                    let missing = missing - back;
                    let full_ms = level.full_ms + (ceil(missing, count(rule)) - to_come) * refill_ms(rule);
                    self.level = (missing > 0).then_some(Level { written_ms: now_ms, missing, full_ms });
                }
                ceil(back, unit(rule))
            }
            Algorithm::LeakyBucket { .. } => {
                let now_ms = now / 1000;
                let Some(level) = self.level.filter(|level| now_ms < level.full_ms) else { return 0 };
                let is_last = granted.level.is_some_and(|after| after.end(rule) == level.end(rule));
                if !is_last {
                    return 0;
                }
                let back = self.spent(rule, now).min(cost * unit(rule));
                let missing = self.spent(rule, now) - back;
                let full_ms = now_ms + ceil(missing, count(rule));
                self.level = (missing > 0).then_some(Level { written_ms: now_ms, missing, full_ms });
                ceil(back, unit(rule))
            }
        }
    }

    /// The charges of a fixed window or a log that count.
    fn counting(&self, rule: &Rule, at_us: i128) -> impl Iterator<Item = &Charged> {
        let read = at_us - at_us % tick_us(rule);
        self.charges.iter().filter(move |charge| charge.ends_us > read && charge.cost > 0)
    }

    /// What is held by those whose time is not over.
    fn live_holds(&self, now: i128) -> impl Iterator<Item = &Held> {
        self.held.iter().filter(move |held| held.ends_us > now)
    }

    /// How long until the time of all of them is over, for a charge that is held alone.
    fn turn_ms(&self, charge: &Charge, now: i128) -> u64 {
        let is_alone = charge.cost > 0 && charge.hold.is_some_and(|hold| hold.exclusive);
        let last = self.live_holds(now).map(|held| ceil(held.ends_us - now, 1000)).max();
        last.filter(|_| is_alone).map_or(0, whole)
    }

    /// How long until a further hold has room beside the others, however little it is, for a charge to a log that is held.
    fn room_ms(&self, charge: &Charge, now: i128) -> u64 {
        let is_hold = charge.cost > 0 && charge.hold.is_some() && !charge.rule.is_concurrent();
        let counting = || self.held.iter().filter(|held| held.counts(&charge.rule, now));
        let first = counting().map(|held| held.counts_until_us(&charge.rule)).min();
        first.filter(|_| is_hold && counting().count() >= MOST_HOLDS).map_or(0, |first| whole(ceil(first - now, 1000)))
    }

    /// Whether a retry has ended what was held.
    fn was_settled(&self, charge: &Charge, now: i128) -> bool {
        let id = charge.hold.map(|hold| hold.id);
        self.settled.iter().any(|settled| Some(settled.id) == id && settled.counts(&charge.rule, now))
    }

    /// The same counter, if they left.
    fn without_live_holds(&self, now: i128) -> Self {
        let held = self.held.iter().filter(|held| held.ends_us <= now).copied().collect();
        Self { held, ..self.clone() }
    }

    fn charged_in(&self, rule: &Rule, sub_window: i128) -> i128 {
        let length = sub_window_ms(rule);
        let inside = self.charges.iter().filter(|charge| charge.at_us / 1000 / length == sub_window);
        inside.map(|charge| charge.cost).sum()
    }
}

impl Held {
    /// A place until its holder's time is over. In a log it is a charge then, which counts for one period.
    fn counts(&self, rule: &Rule, at_us: i128) -> bool {
        self.counts_until_us(rule) > at_us
    }

    fn counts_until_us(&self, rule: &Rule) -> i128 {
        let charged_us = if rule.is_concurrent() { 0 } else { period_ms(rule) * 1000 };
        self.ends_us + charged_us
    }
}

impl Decision {
    /// The same of a cost that fits after so long at the earliest.
    fn not_before(self, ms: u64) -> Self {
        let turn = (ms > 0).then(|| Duration::from_millis(ms));
        Self::new(self.limit(), self.remaining(), self.reset_after(), self.retry_after().max(turn))
    }
}

impl Level {
    fn refills_to_come(&self, rule: &Rule, at_ms: i128) -> i128 {
        ceil(self.full_ms - at_ms, refill_ms(rule))
    }

    /// When a leaky bucket is empty, to the fraction of a millisecond: the whole one and what is left of it.
    fn end(&self, rule: &Rule) -> (i128, i128) {
        (self.full_ms, (self.full_ms - self.written_ms) * count(rule) - self.missing)
    }
}

/// How many units a cost of 1 takes: so many that a refill is a whole number of them.
fn unit(rule: &Rule) -> i128 {
    match rule.algorithm() {
        Algorithm::TokenBucket { refill: Refill::Greedy, .. } | Algorithm::LeakyBucket { .. } => period_ms(rule),
        _ => 1,
    }
}

fn capacity(rule: &Rule) -> i128 {
    i128::from(rule.limit()) * unit(rule)
}

/// How long from one refill of a bucket to the next. Each brings `count` units.
fn refill_ms(rule: &Rule) -> i128 {
    match rule.algorithm() {
        Algorithm::TokenBucket { refill: Refill::Interval, .. } => period_ms(rule),
        _ => 1,
    }
}

/// A log counts in microseconds, unless its period is above 200 seconds; all else in milliseconds.
fn tick_us(rule: &Rule) -> i128 {
    let is_fine = rule.algorithm() == Algorithm::SlidingLog && rule.period() <= Duration::from_secs(200);
    if is_fine { 1 } else { 1000 }
}

fn sub_window_ms(rule: &Rule) -> i128 {
    match rule.algorithm() {
        Algorithm::SlidingWindow { buckets } => period_ms(rule) / i128::from(buckets),
        _ => period_ms(rule),
    }
}

fn count(rule: &Rule) -> i128 {
    rule.count().into()
}

fn period_ms(rule: &Rule) -> i128 {
    rule.period_ms().into()
}

/// The largest count of a rule with this algorithm and period. A log can count no more.
fn largest_count(rule: &Rule) -> i128 {
    match rule.with_count(u64::MAX).limit_fault() {
        Some(Fault::TooLarge { largest, .. }) => largest.into(),
        other => unreachable!("no rule counts without end: {other:?}"),
    }
}

/// The least that is granted.
fn least(charge: &Charge) -> i128 {
    if charge.hold.is_some_and(|hold| hold.allow_partial) { charge.cost.min(1).into() } else { charge.cost.into() }
}

/// When the time of somebody is over who holds a charge from now on.
fn end_of_lease_us(charge: &Charge, now: i128) -> i128 {
    let lease = charge.hold.expect("a charge that is held").lease;
    ceil(now, 1000) * 1000 + micros(lease)
}

fn wait_ms(charge: &Charge) -> i128 {
    i128::try_from(charge.longest_wait.as_millis()).expect("less than 2^127")
}

fn micros(time: Duration) -> i128 {
    i128::try_from(time.as_micros()).expect("less than 2^127")
}

/// Rounded up; the dividend may be negative.
fn ceil(dividend: i128, divisor: i128) -> i128 {
    -(-dividend).div_euclid(divisor)
}

fn whole(number: i128) -> u64 {
    u64::try_from(number).expect("a number of the contract is not negative")
}

/// The smallest number, from 0, that something is true of, and of all above it.
fn smallest(is_true: impl Fn(i128) -> bool) -> i128 {
    if is_true(0) {
        return 0;
    }
    let (mut false_at, mut true_at) = (0, 1);
    while !is_true(true_at) {
        assert!(true_at < 1 << 60, "the model waits forever");
        (false_at, true_at) = (true_at, 2 * true_at);
    }
    while false_at + 1 < true_at {
        let middle = i128::midpoint(false_at, true_at);
        *(if is_true(middle) { &mut true_at } else { &mut false_at }) = middle;
    }
    true_at
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model and a time, for one counter at a time.
    struct At {
        model: Model,
        now: Duration,
        rule: Rule,
    }

    /// Whether it fits, what remains, and the waits.
    type Said = (bool, u64, u64, Option<u64>);

    fn at(ms: u64, count: u64, period_ms: u64, algorithm: Algorithm) -> At {
        let rule = Rule::new("item", count, Duration::from_millis(period_ms)).with_algorithm(algorithm);
        At { model: Model::default(), now: Duration::from_millis(ms), rule }
    }

    impl At {
        fn ask(&mut self, cost: u64, consume: bool, longest_wait_ms: u64) -> Request {
            let counter = CounterName::new("", &self.rule, Some(&Key::new(1)));
            let mut charge = Charge::new(self.rule, counter, cost);
            charge.longest_wait = Duration::from_millis(longest_wait_ms);
            let mut request = Request::new(charge, consume);
            self.model.decide(self.now, &mut request);
            request
        }

        fn take(&mut self, cost: u64) -> Said {
            said(&self.ask(cost, true, u64::MAX))
        }

        fn look(&mut self, cost: u64) -> Said {
            said(&self.ask(cost, false, u64::MAX))
        }

        fn slot(&mut self, cost: u64) -> u64 {
            whole(self.ask(cost, true, u64::MAX).charges[0].slot_delay.as_millis().try_into().unwrap())
        }

        fn grant(&mut self, cost: u64) -> Charges {
            let request = self.ask(cost, true, u64::MAX);
            assert_eq!(request.outcome, Ok(true));
            request.charges
        }

        fn refund(&mut self, charges: &Charges) -> u64 {
            self.model.refund(self.now, charges)
        }

        fn pass(&mut self, ms: u64) {
            self.now += Duration::from_millis(ms);
        }
    }

    fn said(request: &Request) -> Said {
        let Decision { remaining, reset_after_ms, .. } = request.charges[0].decision;
        let retry_after_ms = request.charges[0].decision.retry_after().map(|wait| wait.as_millis().try_into().unwrap());
        (request.outcome.clone().unwrap(), remaining, reset_after_ms, retry_after_ms)
    }

    #[test]
    fn fixed_windows_open_with_a_call_or_on_multiples_of_the_period() {
        let mut fixed = at(1300, 3, 1000, Algorithm::FixedWindow { align: false });
        assert_eq!(fixed.take(2), (true, 1, 1000, None));
        fixed.pass(999);
        assert_eq!(fixed.take(2), (false, 1, 1, Some(1)));
        fixed.pass(1);
        assert_eq!(fixed.take(2), (true, 1, 1000, None));

        let mut aligned = at(1300, 3, 1000, Algorithm::FixedWindow { align: true });
        let early = aligned.grant(3);
        assert_eq!(aligned.look(1), (false, 0, 700, Some(700)));
        aligned.pass(700);
        assert_eq!(aligned.take(1), (true, 2, 1000, None));
        assert_eq!(aligned.refund(&early), 0);
        assert_eq!(aligned.look(1), (true, 2, 1000, None));
    }

    #[test]
    fn a_log_forgets_each_charge_after_one_period() {
        let mut log = at(5000, 3, 1000, Algorithm::SlidingLog);
        let first = log.grant(2);
        log.pass(400);
        assert_eq!(log.take(1), (true, 0, 1000, None));
        assert_eq!(log.look(1), (false, 0, 1000, Some(600)));
        assert_eq!(log.look(3), (false, 0, 1000, Some(1000)));
        assert_eq!(log.refund(&first), 2);
        assert_eq!(log.look(1), (true, 2, 1000, None));
    }

    #[test]
    fn a_window_weights_what_came_before() {
        // 84 in the last minute, 36 in this one, which is a quarter old: 84 × 45/60 + 36 = 99.
        let mut window = at(60_000, 100, 60_000, Algorithm::SlidingWindow { buckets: 1 });
        window.grant(84);
        window.pass(60_000);
        window.pass(14_000);
        let current = window.grant(36 - 20); // 84 × 46/60 = 64.4 and 36 would be too much
        window.pass(1000);
        assert_eq!(window.take(20), (true, 1, 105_000, None));
        assert_eq!(window.look(1), (true, 1, 105_000, None));
        // 84 × (60,000 - 15,000 - w)/60,000 has to come down to 62.
        assert_eq!(window.look(2), (false, 1, 105_000, Some(715)));
        assert_eq!(window.refund(&current), 16);
        window.pass(105_000 - 1);
        assert_eq!(window.look(1), (true, 99, 1, None));
        window.pass(1);
        assert_eq!(window.look(1), (true, 100, 0, None));
    }

    /// Ten a second with room for five: one every 100 ms.
    #[test]
    fn a_greedy_bucket_is_refilled_one_by_one() {
        let mut bucket = at(77, 10, 1000, Algorithm::TokenBucket { burst: 5, refill: Refill::Greedy });
        assert_eq!(bucket.take(5), (true, 0, 500, None));
        assert_eq!(bucket.look(1), (false, 0, 500, Some(100)));
        assert_eq!(bucket.look(3), (false, 0, 500, Some(300)));
        bucket.pass(99);
        assert_eq!(bucket.look(1), (false, 0, 401, Some(1)));
        bucket.pass(51);
        let two = {
            bucket.pass(100);
            bucket.grant(2)
        };
        assert_eq!(bucket.look(1), (false, 0, 450, Some(50)));
        bucket.pass(50);
        // 50 ms later half of one of the two may have been refilled: one and a half are back.
        assert_eq!(bucket.refund(&two), 2);
        assert_eq!(bucket.look(3), (false, 2, 250, Some(50)));
    }

    /// Four every second with room for ten; the periods begin with the charge that finds it full.
    #[test]
    fn an_interval_bucket_is_refilled_all_at_once() {
        let mut bucket = at(300, 4, 1000, Algorithm::TokenBucket { burst: 10, refill: Refill::Interval });
        assert_eq!(bucket.take(3), (true, 7, 1000, None));
        bucket.pass(900);
        let six = bucket.grant(6);
        assert_eq!(bucket.look(1), (true, 1, 2100, None));
        assert_eq!(bucket.look(2), (false, 1, 2100, Some(100)));
        assert_eq!(bucket.look(10), (false, 1, 2100, Some(2100)));
        bucket.pass(99);
        assert_eq!(bucket.look(2), (false, 1, 2001, Some(1)));
        bucket.pass(1);
        assert_eq!(bucket.look(2), (true, 5, 2000, None));
        assert_eq!(bucket.refund(&six), 2);
        assert_eq!(bucket.look(2), (true, 7, 1000, None));
        bucket.rule = bucket.rule.with_algorithm(Algorithm::TokenBucket { burst: 4, refill: Refill::Interval });
        assert_eq!(bucket.look(2), (false, 1, 1000, Some(1000)));
    }

    /// Ten a second and two may wait: slots 100 ms apart.
    #[test]
    fn a_leaky_bucket_gives_slots() {
        let mut leaky = at(40, 10, 1000, Algorithm::LeakyBucket { queue: 2 });
        assert_eq!([leaky.slot(1), leaky.slot(1), leaky.slot(1)], [0, 100, 200]);
        assert_eq!(leaky.look(1), (false, 0, 300, Some(100)));
        leaky.pass(100);
        assert_eq!(said(&leaky.ask(1, false, 199)), (false, 1, 200, Some(1)));
        assert_eq!(said(&leaky.ask(1, false, 50)), (false, 1, 200, Some(150)));
        assert_eq!(said(&leaky.ask(0, false, 0)), (true, 1, 200, None));
        let last = leaky.grant(1);
        assert_eq!(last[0].slot_delay, Duration::from_millis(200));
        leaky.pass(150);
        let later = leaky.grant(1);
        assert_eq!(leaky.refund(&last), 0);
        assert_eq!(leaky.refund(&later), 1);
        assert_eq!(leaky.refund(&last), 1);
        assert_eq!(leaky.slot(1), 50);
        // Raised, the slots that were handed out stay.
        leaky.rule = leaky.rule.with_count(1000);
        assert_eq!(leaky.look(1), (false, 0, 150, Some(148)));
    }

    /// A charge that is held, as granted.
    fn hold(at: &mut At, cost: u64, lease_ms: u64, allow_partial: bool) -> Charge {
        let counter = CounterName::new("", &at.rule, Some(&Key::new(1)));
        let hold = Hold { allow_partial, ..Hold::new(Duration::from_millis(lease_ms)) };
        let mut request = Request::new(Charge { hold: Some(hold), ..Charge::new(at.rule, counter, cost) }, true);
        at.model.decide(at.now, &mut request);
        assert_eq!(request.outcome, Ok(true));
        request.charges[0].clone()
    }

    #[test]
    fn what_is_held_becomes_what_was_used() {
        let mut log = at(5000, 10, 1000, Algorithm::SlidingLog);
        let six = hold(&mut log, 6, 300, false);
        assert_eq!(said_of(&six), (4, 1300));
        assert_eq!(log.take(1), (true, 3, 1300, None));
        // 6 are held, and 5 would fit without.
        let refused = log.ask(5, true, 0);
        assert_eq!(said(&refused), (false, 3, 1300, Some(1300)));
        assert_eq!((refused.charges[0].held_by_others, refused.charges[0].fits_when_released), (6, true));
        let refused = log.ask(10, true, 0);
        assert_eq!((refused.charges[0].held_by_others, refused.charges[0].fits_when_released), (6, false));
        log.pass(200);
        assert!(log.model.renew(log.now, &six));
        assert_eq!(log.look(4), (false, 3, 1300, Some(800)));
        log.model.settle(log.now, &six, 2);
        assert_eq!(log.look(10), (false, 7, 1000, Some(1000)));
        // What was used counts from then on, and the first charge from 5,000 on.
        log.pass(800);
        assert_eq!(log.look(10), (false, 8, 200, Some(200)));
        assert!(!log.model.renew(log.now, &six));
        // More than was held, and more than the limit.
        let one = hold(&mut log, 1, 1, false);
        log.model.settle(log.now, &one, 99);
        assert_eq!(log.look(1), (false, 0, 1000, Some(1000)));
        log.model.settle(log.now, &one, u64::MAX);
        log.rule = log.rule.with_count(10_000_000);
        assert_eq!(log.look(1), (false, 0, 1000, Some(200)));
    }

    #[test]
    fn what_nobody_settles_is_charged_when_the_lease_ends() {
        let mut log = at(5000, 10, 1000, Algorithm::SlidingLog);
        log.now += Duration::from_micros(1);
        let most = hold(&mut log, 7, 300, false);
        let rest = hold(&mut log, 7, 400, true);
        assert_eq!((most.cost, rest.cost), (7, 3));
        // From 5,001 on, which is 999 µs later.
        assert_eq!(said_of(&rest), (0, 1401));
        log.pass(300);
        let refused = log.ask(5, true, 0);
        assert_eq!((refused.charges[0].held_by_others, refused.charges[0].fits_when_released), (10, true));
        log.pass(1);
        let refused = log.ask(5, true, 0);
        assert_eq!((refused.charges[0].held_by_others, refused.charges[0].fits_when_released), (3, false));
        log.pass(999);
        assert_eq!(log.look(1), (false, 0, 101, Some(1)));
        assert!(log.model.renew(log.now, &rest));
        log.pass(1);
        assert_eq!(log.look(1), (true, 7, 1400, None));
        assert_eq!(log.model.refund(log.now, &most.into()), 0);
        assert_eq!(log.model.refund(log.now, &rest.into()), 3);
        assert_eq!(log.look(1), (true, 10, 0, None));
    }

    #[test]
    fn places_are_free_when_the_lease_ends() {
        let mut places = at(5000, 3, 1000, Algorithm::Concurrent);
        let two = hold(&mut places, 2, 300, false);
        let one = hold(&mut places, 1, 500, false);
        assert_eq!(said_of(&one), (0, 500));
        let refused = places.ask(3, false, 0);
        assert_eq!(said(&refused), (false, 0, 500, Some(300))); // when the first of them ends
        assert_eq!((refused.charges[0].held_by_others, refused.charges[0].fits_when_released), (3, true));
        places.pass(299);
        assert_eq!(places.look(1), (false, 0, 201, Some(1)));
        assert!(places.model.renew(places.now, &one));
        places.pass(1);
        assert_eq!(places.look(1), (true, 2, 499, None));
        assert!(!places.model.renew(places.now, &two));
        places.model.settle(places.now, &one, 17);
        assert_eq!(places.look(1), (true, 3, 0, None));
        let all = hold(&mut places, 3, 300, false);
        assert_eq!(places.model.refund(places.now, &all.into()), 3);
        assert_eq!(places.look(3), (true, 3, 0, None));
    }

    fn said_of(granted: &Charge) -> (u64, u64) {
        (granted.decision.remaining, granted.decision.reset_after_ms)
    }

    #[test]
    fn several_charges_are_one_decision() {
        let mut first = at(0, 2, 1000, Algorithm::SlidingLog);
        let mut charges = first.ask(0, false, 0).charges;
        let other = Rule::new("other", 1, Duration::from_secs(9));
        charges.push(Charge::new(other, CounterName::new("", &other, None), 1));
        charges[0].cost = 1;
        let mut decide = || {
            let mut request = Request::new(charges.clone(), true);
            first.model.decide(first.now, &mut request);
            (
                request.outcome.unwrap(),
                request.charges[0].decision.remaining(),
                request.charges[1].decision.retry_after(),
            )
        };
        assert_eq!(decide(), (true, 1, None));
        assert_eq!(decide(), (false, 1, Some(Duration::from_secs(9))));
        assert_eq!(decide(), (false, 1, Some(Duration::from_secs(9))));
    }
}
