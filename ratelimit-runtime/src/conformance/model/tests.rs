//! Each algorithm by examples that can be checked by hand.

use std::time::Duration;

use super::{EXAMPLES, Model, units::whole};
use crate::{
    Algorithm, CounterName, Decision, Key, Refill, Rule,
    algorithm::{Capabilities, HoldSupport, capabilities},
    store::{Charge, Charges, Hold, Request},
};

/// A model, a time and the rule of one counter.
struct CounterAt {
    model: Model,
    now: Duration,
    rule: Rule,
}

/// Whether it fits, `remaining`, `reset_after` and `retry_after` in milliseconds.
type ModelAnswer = (bool, u64, u64, Option<u64>);

fn at(ms: u64, count: u64, period_ms: u64, algorithm: Algorithm) -> CounterAt {
    let rule = Rule::new("item", count, Duration::from_millis(period_ms)).with_algorithm(algorithm);
    CounterAt { model: Model::default(), now: Duration::from_millis(ms), rule }
}

impl CounterAt {
    fn decide(&mut self, cost: u64, consume: bool, longest_wait_ms: u64) -> Request {
        let counter = CounterName::new("", &self.rule, &Key::new(1));
        let mut charge = Charge::new(self.rule, counter, cost);
        charge.longest_wait = Duration::from_millis(longest_wait_ms);
        let mut request = Request::new(charge, consume);
        self.model.decide(self.now, &mut request);
        request
    }

    fn charge(&mut self, cost: u64) -> ModelAnswer {
        numbers(&self.decide(cost, true, u64::MAX))
    }

    fn peek(&mut self, cost: u64) -> ModelAnswer {
        numbers(&self.decide(cost, false, u64::MAX))
    }

    fn slot(&mut self, cost: u64) -> u64 {
        whole(self.decide(cost, true, u64::MAX).charges[0].slot_delay.as_millis().try_into().unwrap())
    }

    fn grant(&mut self, cost: u64) -> Charges {
        let request = self.decide(cost, true, u64::MAX);
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

fn numbers(request: &Request) -> ModelAnswer {
    let Decision { remaining, reset_after_ms, .. } = request.charges[0].decision;
    let retry_after_ms = request.charges[0].decision.retry_after().map(|wait| wait.as_millis().try_into().unwrap());
    (request.outcome.clone().unwrap(), remaining, reset_after_ms, retry_after_ms)
}

#[test]
fn fixed_windows_open_with_a_call_or_on_multiples_of_the_period() {
    let mut fixed = at(1300, 3, 1000, Algorithm::FixedWindow { align: false });
    assert_eq!(fixed.charge(2), (true, 1, 1000, None));
    fixed.pass(999);
    assert_eq!(fixed.charge(2), (false, 1, 1, Some(1)));
    fixed.pass(1);
    assert_eq!(fixed.charge(2), (true, 1, 1000, None));

    let mut aligned = at(1300, 3, 1000, Algorithm::FixedWindow { align: true });
    let early = aligned.grant(3);
    assert_eq!(aligned.peek(1), (false, 0, 700, Some(700)));
    aligned.pass(700);
    assert_eq!(aligned.charge(1), (true, 2, 1000, None));
    assert_eq!(aligned.refund(&early), 0);
    assert_eq!(aligned.peek(1), (true, 2, 1000, None));
}

#[test]
fn a_log_forgets_each_charge_after_one_period() {
    let mut log = at(5000, 3, 1000, Algorithm::SlidingLog);
    let first = log.grant(2);
    log.pass(400);
    assert_eq!(log.charge(1), (true, 0, 1000, None));
    assert_eq!(log.peek(1), (false, 0, 1000, Some(600)));
    assert_eq!(log.peek(3), (false, 0, 1000, Some(1000)));
    assert_eq!(log.refund(&first), 2);
    assert_eq!(log.peek(1), (true, 2, 1000, None));
}

#[test]
fn a_window_weights_what_came_before() {
    // 84 in the last minute, 36 in this one, which is a quarter old: 84 × 45/60 + 36 = 99.
    let mut window = at(60_000, 100, 60_000, Algorithm::SlidingWindow { buckets: 1, weighted: true });
    window.grant(84);
    window.pass(60_000);
    window.pass(14_000);
    let current = window.grant(36 - 20); // 84 × 46/60 = 64.4 and 36 would be too much
    window.pass(1000);
    assert_eq!(window.charge(20), (true, 1, 105_000, None));
    assert_eq!(window.peek(1), (true, 1, 105_000, None));
    // 84 × (60,000 - 15,000 - w)/60,000 has to come down to 62.
    assert_eq!(window.peek(2), (false, 1, 105_000, Some(715)));
    assert_eq!(window.refund(&current), 16);
    window.pass(105_000 - 1);
    assert_eq!(window.peek(1), (true, 99, 1, None));
    window.pass(1);
    assert_eq!(window.peek(1), (true, 100, 0, None));
}

/// Ten a second with room for five: one every 100 ms.
#[test]
fn a_greedy_bucket_is_refilled_one_by_one() {
    let mut bucket = at(77, 10, 1000, Algorithm::TokenBucket { burst: 5, refill: Refill::Greedy });
    assert_eq!(bucket.charge(5), (true, 0, 500, None));
    assert_eq!(bucket.peek(1), (false, 0, 500, Some(100)));
    assert_eq!(bucket.peek(3), (false, 0, 500, Some(300)));
    bucket.pass(99);
    assert_eq!(bucket.peek(1), (false, 0, 401, Some(1)));
    bucket.pass(51);
    let two = {
        bucket.pass(100);
        bucket.grant(2)
    };
    assert_eq!(bucket.peek(1), (false, 0, 450, Some(50)));
    bucket.pass(50);
    // 50 ms later half of one of the two may have been refilled: one and a half are back.
    assert_eq!(bucket.refund(&two), 2);
    assert_eq!(bucket.peek(3), (false, 2, 250, Some(50)));
}

/// Four every second with room for ten; the periods begin with the charge that finds it full.
#[test]
fn an_interval_bucket_is_refilled_all_at_once() {
    let mut bucket = at(300, 4, 1000, Algorithm::TokenBucket { burst: 10, refill: Refill::Interval });
    assert_eq!(bucket.charge(3), (true, 7, 1000, None));
    bucket.pass(900);
    let six = bucket.grant(6);
    assert_eq!(bucket.peek(1), (true, 1, 2100, None));
    assert_eq!(bucket.peek(2), (false, 1, 2100, Some(100)));
    assert_eq!(bucket.peek(10), (false, 1, 2100, Some(2100)));
    bucket.pass(99);
    assert_eq!(bucket.peek(2), (false, 1, 2001, Some(1)));
    bucket.pass(1);
    assert_eq!(bucket.peek(2), (true, 5, 2000, None));
    assert_eq!(bucket.refund(&six), 2);
    assert_eq!(bucket.peek(2), (true, 7, 1000, None));
    bucket.rule = bucket.rule.with_algorithm(Algorithm::TokenBucket { burst: 4, refill: Refill::Interval });
    assert_eq!(bucket.peek(2), (false, 1, 1000, Some(1000)));
}

/// Ten a second and two may wait: slots 100 ms apart.
#[test]
fn a_leaky_bucket_gives_slots() {
    let mut leaky = at(40, 10, 1000, Algorithm::LeakyBucket { queue: 2 });
    assert_eq!([leaky.slot(1), leaky.slot(1), leaky.slot(1)], [0, 100, 200]);
    assert_eq!(leaky.peek(1), (false, 0, 300, Some(100)));
    leaky.pass(100);
    assert_eq!(numbers(&leaky.decide(1, false, 199)), (false, 1, 200, Some(1)));
    assert_eq!(numbers(&leaky.decide(1, false, 50)), (false, 1, 200, Some(150)));
    assert_eq!(numbers(&leaky.decide(0, false, 0)), (true, 1, 200, None));
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
    assert_eq!(leaky.peek(1), (false, 0, 150, Some(148)));
}

/// A granted hold.
fn hold(at: &mut CounterAt, cost: u64, lease_ms: u64, allow_partial: bool) -> Charge {
    let counter = CounterName::new("", &at.rule, &Key::new(1));
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
    assert_eq!(numbers_of(&six), (4, 1300));
    assert_eq!(log.charge(1), (true, 3, 1300, None));
    // 6 are held, and 5 would fit without.
    let refused = log.decide(5, true, 0);
    assert_eq!(numbers(&refused), (false, 3, 1300, Some(1300)));
    assert_eq!((refused.charges[0].held_by_others, refused.charges[0].fits_when_released), (6, true));
    let refused = log.decide(10, true, 0);
    assert_eq!((refused.charges[0].held_by_others, refused.charges[0].fits_when_released), (6, false));
    log.pass(200);
    assert!(log.model.renew(log.now, &six));
    assert_eq!(log.peek(4), (false, 3, 1300, Some(800)));
    log.model.settle(log.now, &six, 2);
    assert_eq!(log.peek(10), (false, 7, 1000, Some(1000)));
    // What was used counts from then on, and the first charge from 5,000 on.
    log.pass(800);
    assert_eq!(log.peek(10), (false, 8, 200, Some(200)));
    assert!(!log.model.renew(log.now, &six));
    // More than was held, and more than the limit.
    let one = hold(&mut log, 1, 1, false);
    log.model.settle(log.now, &one, 99);
    assert_eq!(log.peek(1), (false, 0, 1000, Some(1000)));
    log.model.settle(log.now, &one, u64::MAX);
    log.rule = log.rule.with_count(10_000_000);
    assert_eq!(log.peek(1), (false, 0, 1000, Some(200)));
}

#[test]
fn what_nobody_settles_is_charged_when_the_lease_ends() {
    let mut log = at(5000, 10, 1000, Algorithm::SlidingLog);
    log.now += Duration::from_micros(1);
    let most = hold(&mut log, 7, 300, false);
    let rest = hold(&mut log, 7, 400, true);
    assert_eq!((most.cost, rest.cost), (7, 3));
    // From 5,001 on, which is 999 µs later.
    assert_eq!(numbers_of(&rest), (0, 1401));
    log.pass(300);
    let refused = log.decide(5, true, 0);
    assert_eq!((refused.charges[0].held_by_others, refused.charges[0].fits_when_released), (10, true));
    log.pass(1);
    let refused = log.decide(5, true, 0);
    assert_eq!((refused.charges[0].held_by_others, refused.charges[0].fits_when_released), (3, false));
    log.pass(999);
    assert_eq!(log.peek(1), (false, 0, 101, Some(1)));
    assert!(log.model.renew(log.now, &rest));
    log.pass(1);
    assert_eq!(log.peek(1), (true, 7, 1400, None));
    assert_eq!(log.model.refund(log.now, &most.into()), 0);
    assert_eq!(log.model.refund(log.now, &rest.into()), 3);
    assert_eq!(log.peek(1), (true, 10, 0, None));
}

#[test]
fn places_are_free_when_the_lease_ends() {
    let mut places = at(5000, 3, 1000, Algorithm::Concurrent);
    let two = hold(&mut places, 2, 300, false);
    let one = hold(&mut places, 1, 500, false);
    assert_eq!(numbers_of(&one), (0, 500));
    let refused = places.decide(3, false, 0);
    assert_eq!(numbers(&refused), (false, 0, 500, Some(300))); // when the first of them ends
    assert_eq!((refused.charges[0].held_by_others, refused.charges[0].fits_when_released), (3, true));
    places.pass(299);
    assert_eq!(places.peek(1), (false, 0, 201, Some(1)));
    assert!(places.model.renew(places.now, &one));
    places.pass(1);
    assert_eq!(places.peek(1), (true, 2, 499, None));
    assert!(!places.model.renew(places.now, &two));
    places.model.settle(places.now, &one, 17);
    assert_eq!(places.peek(1), (true, 3, 0, None));
    let all = hold(&mut places, 3, 300, false);
    assert_eq!(places.model.refund(places.now, &all.into()), 3);
    assert_eq!(places.peek(3), (true, 3, 0, None));
}

fn numbers_of(granted: &Charge) -> (u64, u64) {
    (granted.decision.remaining, granted.decision.reset_after_ms)
}

#[test]
fn several_charges_are_one_decision() {
    let mut first = at(0, 2, 1000, Algorithm::SlidingLog);
    let mut charges = first.decide(0, false, 0).charges;
    let other = Rule::new("other", 1, Duration::from_secs(9));
    charges.push(Charge::new(other, CounterName::new("", &other, &Key::NONE), 1));
    charges[0].cost = 1;
    let mut decide = || {
        let mut request = Request::new(charges.clone(), true);
        first.model.decide(first.now, &mut request);
        (request.outcome.unwrap(), request.charges[0].decision.remaining(), request.charges[1].decision.retry_after())
    };
    assert_eq!(decide(), (true, 1, None));
    assert_eq!(decide(), (false, 1, Some(Duration::from_secs(9))));
    assert_eq!(decide(), (false, 1, Some(Duration::from_secs(9))));
}

/// A rule cannot ask the table of algorithms, which imports rules.
/// On Redis a charge has the number of its window, which another one had opened, also after a reset.
#[test]
fn a_charge_may_be_taken_for_one_of_a_later_window_by_the_first_of_its_own() {
    for (later_ms, expected) in [(8 * 450_001, true), (8 * 450_001 + 6, true), (8 * 450_001 + 3, false)] {
        let mut window = at(1000, 10, 3_600_000, Algorithm::FixedWindow { align: false });
        window.grant(1);
        window.pass(6);
        let second = window.grant(1);
        window.model.reset(&second[0].counter);
        window.now = Duration::from_millis(1000 + later_ms);
        window.grant(1);
        assert_eq!(window.model.may_alias(&second[0]), expected, "{later_ms} ms later");
    }
}

#[test]
fn a_rule_decides_at_once_if_its_algorithm_has_neither_slots_nor_places() {
    for algorithm in EXAMPLES {
        let Capabilities { has_slots, holds, .. } = capabilities(algorithm);
        let rule = Rule::new("item", 1, Duration::from_secs(1)).with_algorithm(algorithm);
        assert_eq!(rule.decides_at_once(), !has_slots && holds != HoldSupport::Always, "{algorithm:?}");
    }
}
