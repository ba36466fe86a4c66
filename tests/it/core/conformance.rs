//! The conformance suite: the Redis store passes it, and it names the promise that a defective store
//! breaks. That the memory store passes is a unit test.

use std::any::Any;
use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use ratelimit_runtime::conformance::{self, ALGORITHMS, Model, Subject};
use ratelimit_runtime::store::{Batch, Charge, Charges, Reply, Request, StoreError};
use ratelimit_runtime::{Algorithm, CounterName, Decision, ManualClock, Refill, Rule, Store};

use crate::support::{ALIGNED, FIXED, LOG, Timed};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_redis_store_conforms() {
    conformance::check(&Timed::redis().await, ALGORITHMS).await;
}

#[cfg(feature = "rustls")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_redis_store_over_tls_conforms() {
    let server = ratelimit_harness::RedisServer::builder().tls().controlled_clock().start();
    conformance::check(&Timed::on(server).await, ALGORITHMS).await;
}

/// The model as a store, with a defect.
#[derive(Debug)]
struct Defective {
    defect: Option<Defect>,
    clock: ManualClock,
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug, Default)]
struct Inner {
    model: Model,
    rules: HashMap<CounterName, Rule>,
    last: HashMap<CounterName, (Duration, Vec<Charges>)>,
    first: HashMap<String, CounterName>,
    held: Vec<Held>,
}

/// The held costs and their ends, settled or not.
#[derive(Debug)]
struct Held {
    charge: Charge,
    ends: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Defect {
    ChargesRefusals,
    ChargesWhatFits,
    RenewsWindows,
    CountsInstantsOnce,
    CreditsLaterWindows,
    LooksConsume,
    RetryIsEarly,
    ResetIsEarly,
    LooksThenCharges,
    IgnoresCosts,
    RefusesCostsOfNone,
    IgnoresChanges,
    LosesRequests,
    SeesNoOtherOfItsBatch,
    IgnoresLongestWait,
    GivesOneSlot,
    IgnoresResets,
    KeepsWhatIsGivenBack,
    RefundsAllForAPart,
    NamesNoWindows,
    SharesCounters,
    KnowsNoAlgorithm,
    HasItsOwnTime,
    CountsNoHolds,
    ForgetsHoldsWithTheirHolder,
    SettlesWithoutCharging,
    ChargesAllThatWasHeld,
    ChargesNoMoreThanWasHeld,
    RenewsNothing,
    RenewsWhatIsGone,
    RenewsTheFirst,
    ForgetsLateSettlements,
    AddsLateSettlements,
    HoldsAllOrNothing,
    HoldsBesideOthers,
    HoldsMoreThanRemains,
    GivesBackWhatIsHeldTwice,
    KeepsWhatIsHeldAndGivenBack,
    SaysNothingOfHolds,
    CountsTheDeadAsHolders,
    HoldsThoughOthersRefuse,
    KeepsHoldsThroughResets,
}

impl Defective {
    fn new(defect: Option<Defect>) -> (Self, ManualClock) {
        let clock = ManualClock::new();
        (Self { defect, clock: clock.clone(), inner: Arc::default() }, clock)
    }

    fn is(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    /// Hears something else than was asked.
    fn mishear(&self, Inner { rules, first, .. }: &mut Inner, charge: &mut Charge) {
        if let Some(hold) = &mut charge.hold {
            hold.allow_partial &= !self.is(Defect::HoldsAllOrNothing);
            hold.exclusive &= !self.is(Defect::HoldsBesideOthers);
        }
        match self.defect {
            Some(Defect::IgnoresCosts) => charge.cost = charge.cost.min(1),
            Some(Defect::IgnoresLongestWait) => charge.longest_wait = Duration::MAX,
            Some(Defect::IgnoresChanges) => {
                charge.rule = *rules.entry(charge.counter.clone()).or_insert(charge.rule);
            }
            Some(Defect::SharesCounters) => {
                // The last part of a name is lost.
                let name = charge.counter.to_string();
                let rest = name[..name.rfind(',').unwrap()].to_owned();
                charge.counter = first.entry(rest).or_insert(charge.counter.clone()).clone();
            }
            Some(Defect::KnowsNoAlgorithm) if charge.rule.algorithm() == LOG => {
                charge.rule = charge.rule.with_algorithm(FIXED);
            }
            _ => {}
        }
    }

    fn decide_one(&self, request: &mut Request) {
        let now = self.clock.now();
        let mut inner = self.inner.lock().unwrap();
        let asked = request.clone();
        for charge in request.charges.iter_mut() {
            self.mishear(&mut inner, charge);
        }
        let Inner { model, last, .. } = &mut *inner;
        let counter = request.charges.first().map(|charge| charge.counter.clone()).unwrap();
        match self.defect {
            Some(Defect::LooksConsume) => {
                request.consume = true;
                model.decide(now, request);
            }
            Some(Defect::ChargesWhatFits) => {
                let mut fits = true;
                let charges = request.charges.iter().cloned().map(|charge| {
                    let mut one = Request::new(charge, request.consume);
                    model.decide(now, &mut one);
                    fits &= one.outcome == Ok(true);
                    one.charges[0].clone()
                });
                let charges: Vec<_> = charges.collect();
                request.charges.iter_mut().zip(charges).for_each(|(to, from)| *to = from);
                request.outcome = Ok(fits);
            }
            Some(Defect::LooksThenCharges) if request.consume => {
                request.consume = false;
                model.decide(now, request);
                drop(inner);
                std::thread::sleep(Duration::from_micros(100));
                let mut charged = asked.clone();
                self.inner.lock().unwrap().model.decide(now, &mut charged);
                if charged.outcome == Ok(true) {
                    *request = charged;
                }
                request.consume = true;
                return;
            }
            _ => model.decide(now, request),
        }
        let granted = asked.consume && request.outcome == Ok(true);
        match self.defect {
            Some(Defect::ChargesRefusals) if request.outcome == Ok(false) => {
                let mut rest = asked.clone();
                rest.consume = true;
                for charge in rest.charges.iter_mut() {
                    charge.cost = request.charges[0].decision.remaining();
                }
                model.decide(now, &mut rest);
            }
            Some(Defect::RenewsWindows) if granted && request.charges[0].rule.algorithm() == FIXED => {
                model.reset(&counter);
                for charge in request.charges.iter_mut() {
                    let used = charge.rule.limit() - charge.decision.remaining();
                    let mut all = Request::new(Charge::new(charge.rule, charge.counter.clone(), used), true);
                    model.decide(now, &mut all);
                    let cost = charge.cost;
                    *charge = all.charges[0].clone();
                    charge.cost = cost;
                }
            }
            Some(Defect::CountsInstantsOnce) if granted && asked.charges[0].cost > 0 => {
                let entry = last.entry(counter).or_default();
                if entry.0 == now {
                    model.refund(now, &request.charges);
                }
                entry.0 = now;
            }
            Some(Defect::CreditsLaterWindows | Defect::RefundsAllForAPart) if granted => {
                last.entry(counter).or_default().1.push(request.charges.clone());
            }
            _ => {}
        }
        self.keep(&mut inner, &asked, request);
        for charge in request.charges.iter_mut() {
            request.outcome = self.misspeak(charge, request.outcome.clone());
        }
    }

    /// Remembers what was held, after the defects of that.
    fn keep(&self, Inner { model, held, .. }: &mut Inner, asked: &Request, request: &mut Request) {
        let now = self.clock.now();
        let granted = asked.consume && request.outcome == Ok(true);
        match self.defect {
            Some(Defect::HoldsThoughOthersRefuse) if asked.consume && request.outcome == Ok(false) => {
                for charge in asked.charges.iter().filter(|charge| charge.hold.is_some()) {
                    model.decide(now, &mut Request::new(charge.clone(), true));
                }
            }
            Some(Defect::CountsNoHolds) if granted => {
                for charge in request.charges.iter().filter(|charge| is_log(charge)) {
                    model.refund(now, &charge.clone().into());
                }
            }
            Some(Defect::CountsTheDeadAsHolders) if request.outcome == Ok(false) => {
                for charge in request.charges.iter_mut() {
                    let held = held.iter().filter(|held| held.charge.counter == charge.counter);
                    charge.held_by_others = held.map(|held| held.charge.cost).sum();
                }
            }
            Some(Defect::HoldsMoreThanRemains) if granted => {
                for (charge, asked) in request.charges.iter_mut().zip(asked.charges.iter()) {
                    charge.cost = asked.cost;
                }
            }
            _ => {}
        }
        if granted {
            let charges = request.charges.iter().filter(|charge| charge.hold.is_some() && charge.cost > 0);
            held.extend(charges.map(|charge| Held { charge: charge.clone(), ends: end_of_lease(charge, now) }));
        }
    }

    /// Lets what is held go when its lease is over.
    fn forget_the_dead(&self) {
        let now = self.clock.now();
        let mut inner = self.inner.lock().unwrap();
        let Inner { model, held, .. } = &mut *inner;
        for Held { charge, .. } in held.extract_if(.., |held| held.ends <= now) {
            model.refund(now, &charge.into());
        }
    }

    /// Says something else than was decided.
    fn misspeak(&self, charge: &mut Charge, mut outcome: Result<bool, StoreError>) -> Result<bool, StoreError> {
        let (limit, remaining) = (charge.decision.limit(), charge.decision.remaining());
        let (mut reset_after, mut retry_after) = (charge.decision.reset_after(), charge.decision.retry_after());
        if self.is(Defect::RetryIsEarly) {
            retry_after = retry_after.map(|wait| wait - Duration::from_millis(1));
        }
        if self.is(Defect::ResetIsEarly) && charge.cost > 1 {
            reset_after = reset_after.saturating_sub(Duration::from_millis(1));
        }
        if self.is(Defect::RefusesCostsOfNone) && charge.cost == 0 && remaining == 0 {
            outcome = Ok(false);
            retry_after = Some(reset_after);
        }
        if self.is(Defect::NamesNoWindows) {
            charge.receipt[0] = 0;
        }
        if self.is(Defect::GivesOneSlot) {
            charge.slot_delay = Duration::ZERO;
        }
        if self.is(Defect::SaysNothingOfHolds) {
            (charge.held_by_others, charge.fits_when_released) = (0, false);
        }
        charge.decision = Decision::new(limit, remaining, reset_after, retry_after);
        outcome
    }
}

impl Store for Defective {
    fn decide(&self, mut batch: Batch) -> Reply<Batch> {
        if self.is(Defect::HasItsOwnTime) {
            self.clock.advance(Duration::from_millis(1));
        }
        if self.is(Defect::ForgetsHoldsWithTheirHolder) {
            self.forget_the_dead();
        }
        let before: Vec<_> = batch.iter().skip(1).filter(|_| self.is(Defect::SeesNoOtherOfItsBatch)).cloned().collect();
        batch.iter_mut().for_each(|request| self.decide_one(request));
        if let Some(first) = batch.first().filter(|_| !before.is_empty()).cloned() {
            for (request, asked) in batch.iter_mut().skip(1).zip(before) {
                if asked.charges[0].counter == first.charges[0].counter {
                    *request = first.clone();
                }
            }
        }
        if self.is(Defect::LosesRequests) && batch.len() > 1 {
            let kept = batch.len() - 1;
            batch = batch.iter().take(kept).cloned().collect();
        }
        Reply::Ready(batch)
    }

    fn refund(&self, mut charges: Charges) -> Reply<Result<u64, StoreError>> {
        let now = self.clock.now();
        let mut inner = self.inner.lock().unwrap();
        if self.is(Defect::KeepsWhatIsGivenBack) {
            return Reply::Ready(Ok(0));
        }
        if self.is(Defect::KeepsWhatIsHeldAndGivenBack) && charges.iter().any(|charge| charge.hold.is_some()) {
            return Reply::Ready(Ok(0));
        }
        if self.is(Defect::RefundsAllForAPart)
            && let Some((_, granted)) = inner.last.get(&charges[0].counter)
            && let Some(whole) = granted.iter().find(|granted| granted[0].receipt == charges[0].receipt)
        {
            charges = whole.clone();
        }
        let mut back = inner.model.refund(now, &charges);
        if self.is(Defect::GivesBackWhatIsHeldTwice) && charges.iter().any(|charge| charge.hold.is_some()) {
            back = charges.iter().map(|charge| charge.cost).sum();
        }
        if self.is(Defect::CreditsLaterWindows)
            && back == 0
            && let Some(latest) = inner.last.get(&charges[0].counter).and_then(|(_, granted)| granted.last()).cloned()
        {
            charges = latest;
            back = inner.model.refund(now, &charges);
        }
        Reply::Ready(Ok(back))
    }

    fn reset(&self, counter: CounterName) -> Reply<Result<(), StoreError>> {
        let mut inner = self.inner.lock().unwrap();
        let is_held = inner.held.iter().any(|held| held.charge.counter == counter && is_log(&held.charge));
        let is_ignored = self.is(Defect::IgnoresResets) || self.is(Defect::KeepsHoldsThroughResets) && is_held;
        if !is_ignored {
            inner.model.reset(&counter);
        }
        Reply::Ready(Ok(()))
    }

    fn supports_holds(&self) -> bool {
        true
    }

    fn renew(&self, charges: Vec<Charge>) -> Reply<Result<Vec<bool>, StoreError>> {
        let now = self.clock.now();
        let mut inner = self.inner.lock().unwrap();
        let renew = |(at, charge): (usize, &Charge)| {
            let is_ignored = self.is(Defect::RenewsNothing) || self.is(Defect::RenewsTheFirst) && at > 0;
            let renewed = is_ignored || inner.model.renew(now, charge);
            renewed || self.is(Defect::RenewsWhatIsGone)
        };
        Reply::Ready(Ok(charges.iter().enumerate().map(renew).collect()))
    }

    fn settle(&self, charge: Charge, mut used: u64) -> Reply<Result<(), StoreError>> {
        let now = self.clock.now();
        let mut inner = self.inner.lock().unwrap();
        let Inner { model, held, .. } = &mut *inner;
        let is_late = held.iter().any(|held| held.charge.hold == charge.hold && held.ends <= now);
        match self.defect {
            Some(Defect::SettlesWithoutCharging) => used = 0,
            Some(Defect::ChargesAllThatWasHeld) => used = charge.cost,
            Some(Defect::ChargesNoMoreThanWasHeld) => used = used.min(charge.cost),
            Some(Defect::ForgetsLateSettlements) if is_late => return Reply::Ready(Ok(())),
            Some(Defect::AddsLateSettlements) if is_late => used += charge.cost,
            _ => {}
        }
        model.settle(now, &charge, used);
        Reply::Ready(Ok(()))
    }
}

fn is_log(charge: &Charge) -> bool {
    charge.hold.is_some() && charge.rule.algorithm() == LOG
}

fn end_of_lease(charge: &Charge, now: Duration) -> Duration {
    now + charge.hold.map_or(Duration::ZERO, |hold| hold.lease)
}

/// The message of the suite, if the store fails it.
async fn broken_promise(subject: &impl Subject, algorithms: &[Algorithm]) -> Option<String> {
    let checked = AssertUnwindSafe(conformance::check(subject, algorithms)).catch_unwind().await;
    checked.err().map(|panic: Box<dyn Any + Send>| *panic.downcast::<String>().expect("a message"))
}

#[tokio::test]
async fn the_reference_model_conforms() {
    conformance::check(&Defective::new(None), ALGORITHMS).await;
}

/// The model without its holds, as a store that was written before there were any.
#[derive(Debug)]
struct HoldsNothing(Defective);

impl Store for HoldsNothing {
    fn decide(&self, batch: Batch) -> Reply<Batch> {
        let mut charges = batch.iter().flat_map(|request| request.charges.iter());
        assert!(charges.all(|charge| charge.hold.is_none()), "it is asked to hold: {batch:?}");
        self.0.decide(batch)
    }

    fn refund(&self, charges: Charges) -> Reply<Result<u64, StoreError>> {
        self.0.refund(charges)
    }

    fn reset(&self, counter: CounterName) -> Reply<Result<(), StoreError>> {
        self.0.reset(counter)
    }
}

#[tokio::test]
async fn a_store_that_supports_no_holds_conforms() {
    let (model, clock) = Defective::new(None);
    conformance::check(&(HoldsNothing(model), clock), ALGORITHMS).await;
}

#[tokio::test]
async fn the_suite_names_each_defect_of_a_store() {
    const BUCKET: Algorithm = Algorithm::TokenBucket { burst: 7, refill: Refill::Greedy };
    const LEAKY: Algorithm = Algorithm::LeakyBucket { queue: 4 };
    const PLACES: Algorithm = Algorithm::Concurrent;
    let mut unnamed = Vec::new();
    for (defect, algorithm, promise) in [
        (Defect::ChargesRefusals, FIXED, "a refusal charges nothing"),
        (Defect::ChargesWhatFits, LOG, "all charges of a request are made, or none"),
        (Defect::RenewsWindows, FIXED, "no call makes another count longer"),
        (Defect::CountsInstantsOnce, LOG, "calls in the same instant all count"),
        (Defect::CreditsLaterWindows, ALIGNED, "no later window is credited"),
        (Defect::LooksConsume, BUCKET, "a request that does not consume charges nothing"),
        (Defect::RetryIsEarly, LOG, "after `retry_after` a cost is granted"),
        (Defect::ResetIsEarly, BUCKET, "after `reset_after` the whole limit is available"),
        (Defect::LooksThenCharges, LOG, "also when they are concurrent"),
        (Defect::IgnoresCosts, FIXED, "a cost of n takes n"),
        (Defect::RefusesCostsOfNone, BUCKET, "a cost of 0 always fits"),
        (Defect::IgnoresChanges, BUCKET, "a changed count, burst or queue"),
        (Defect::LosesRequests, FIXED, "each request of a batch is decided on its own"),
        (Defect::SeesNoOtherOfItsBatch, FIXED, "each request of a batch sees the charges of the others"),
        (Defect::IgnoresLongestWait, LEAKY, "later than `longest_wait`"),
        (Defect::GivesOneSlot, LEAKY, "a slot"),
        (Defect::IgnoresResets, FIXED, "a counter that was reset"),
        (Defect::KeepsWhatIsGivenBack, LOG, "a refunded cost is available again"),
        (Defect::RefundsAllForAPart, FIXED, "a part of a cost that is refunded"),
        (Defect::RefundsAllForAPart, BUCKET, "a part of a cost that is refunded"),
        (Defect::NamesNoWindows, FIXED, "a receipt identifies the window"),
        (Defect::NamesNoWindows, ALIGNED, "a receipt identifies the window"),
        (Defect::SharesCounters, FIXED, "have counters of their own"),
        (Defect::KnowsNoAlgorithm, FIXED, "an algorithm that the store does not have"),
        (Defect::HasItsOwnTime, FIXED, "It has to stand still"),
        (Defect::CountsNoHolds, LOG, "broken: a hold counts\n"),
        (Defect::ForgetsHoldsWithTheirHolder, LOG, "a hold that is never settled becomes a charge"),
        (Defect::SettlesWithoutCharging, LOG, "a settled hold is charged the cost that was used"),
        (Defect::ChargesAllThatWasHeld, LOG, "a settled hold is charged the cost that was used"),
        (Defect::ChargesNoMoreThanWasHeld, LOG, "a cost above the held one is charged"),
        (Defect::RenewsNothing, LOG, "a renewed hold lasts one lease"),
        (Defect::RenewsNothing, PLACES, "a renewed hold lasts one lease"),
        (Defect::RenewsWhatIsGone, LOG, "a hold that is gone is not renewed"),
        (Defect::RenewsWhatIsGone, PLACES, "a hold that is gone is not renewed"),
        (Defect::RenewsTheFirst, LOG, "holds that are renewed together"),
        (Defect::RenewsTheFirst, PLACES, "holds that are renewed together"),
        (Defect::ForgetsLateSettlements, LOG, "a late settlement charges the cost that was used"),
        (Defect::AddsLateSettlements, LOG, "a late settlement charges the cost that was used"),
        (Defect::HoldsAllOrNothing, LOG, "a partial hold takes what remains"),
        (Defect::HoldsBesideOthers, LOG, "an exclusive hold waits"),
        (Defect::HoldsMoreThanRemains, PLACES, "a partial hold takes what remains"),
        (Defect::KeepsWhatIsHeldAndGivenBack, LOG, "a refunded hold is available again"),
        (Defect::GivesBackWhatIsHeldTwice, LOG, "a refunded hold is available again"),
        (Defect::SaysNothingOfHolds, LOG, "a refusal says how much others hold"),
        (Defect::CountsTheDeadAsHolders, LOG, "a refusal says how much others hold"),
        (Defect::HoldsThoughOthersRefuse, LOG, "all of its holds and charges, or none"),
        (Defect::KeepsHoldsThroughResets, LOG, "with held charges: a counter that was reset"),
    ] {
        let broken = broken_promise(&Defective::new(Some(defect)), &[algorithm]).await;
        println!("{defect:?}: {broken:?}");
        if !broken.as_ref().is_some_and(|broken| broken.contains(promise)) {
            unnamed.push((defect, promise, broken.map(|broken| broken.lines().next().map(str::to_owned))));
        }
    }
    assert!(unnamed.is_empty(), "not named as they should be: {unnamed:#?}");
}
