//! Runs the same steps on stores and on the model, and compares the answers after each.

mod answer;
mod ask;

use std::{
    fmt::Write as _,
    hash::{BuildHasher, RandomState},
    time::Duration,
};

pub(super) use self::answer::Compared;
use self::{
    answer::RequestAnswer,
    ask::{answer, decide_concurrently},
};
use super::{model::Model, subject::Subject};
use crate::{
    CounterName, Key, Rule,
    algorithm::{HoldSupport, capabilities},
    store::{Batch, Charge, Charges, Hold, Request},
};

/// A run of steps on fresh counters. It ends with the first answer of a store that differs from the
/// model's.
#[allow(missing_debug_implementations)] // a `Subject` need not have one
pub struct Trial<'a> {
    promise: String,
    compared: Compared,
    stores: &'a [(&'a str, &'a dyn Subject)],
    model: Model,
    /// Random part of each key, which makes all counters fresh.
    id: u64,
    started: Duration,
    now: Duration,
    steps: Vec<String>,
    granted: Vec<Grant>,
    /// The lease of each charge to a log, if charges to logs are held.
    lease: Option<Duration>,
    /// The waits that the last answer named: see [`Decision`](crate::Decision).
    pub(super) retry_after: Duration,
    pub(super) reset_after: Duration,
}

/// A granted request, as the model and each store answered it.
#[derive(Clone, Debug)]
pub struct Grant {
    /// The model's answer.
    pub(super) charges: Charges,
    theirs: Vec<Charges>,
}

impl Grant {
    /// A part of it, in tenths, to be refunded. Charges that are never settled by a refund stay whole.
    pub(super) fn part(mut self, tenths: u64) -> Self {
        for charges in self.theirs.iter_mut().chain([&mut self.charges]) {
            let is_refunded = |charge: &Charge| capabilities(charge.rule.algorithm()).holds == HoldSupport::Refunded;
            for charge in charges.iter_mut().filter(|charge| is_refunded(charge)) {
                charge.cost = u64::try_from(u128::from(charge.cost) * u128::from(tenths) / 10).unwrap_or(charge.cost);
            }
        }
        self
    }
}

/// The message about a broken promise: the request, the expected and the actual answer.
pub type Broken = String;

impl<'a> Trial<'a> {
    /// A trial of one promise.
    pub fn new(promise: impl Into<String>, stores: &'a [(&'a str, &'a dyn Subject)]) -> Self {
        let now = stores[0].1.now();
        Self {
            promise: promise.into(),
            compared: Compared::All,
            stores,
            model: Model::default(),
            id: RandomState::new().hash_one(0),
            started: now,
            now,
            steps: Vec::new(),
            granted: Vec::new(),
            lease: None,
            retry_after: Duration::ZERO,
            reset_after: Duration::ZERO,
        }
    }

    /// Compares only this much of each answer.
    pub(super) fn comparing(mut self, compared: Compared) -> Self {
        self.compared = compared;
        self
    }

    /// Holds each charge to a log with this lease.
    pub(super) fn holding(mut self, lease: Option<Duration>) -> Self {
        self.lease = lease;
        self
    }

    /// A charge to the rule's counter for a key. A place has the rule's period as its lease.
    pub(super) fn new_charge(&self, rule: &Rule, key: u64, cost: u64) -> Charge {
        let lease = match capabilities(rule.algorithm()).holds {
            HoldSupport::Always => Some(rule.period()),
            HoldSupport::Settled => self.lease,
            HoldSupport::Never | HoldSupport::Refunded => None,
        };
        let hold = lease.map(Hold::new);
        Charge { hold, ..Charge::new(*rule, CounterName::new("", rule, &Key::new((self.id, key))), cost) }
    }

    /// Requests a hold, and returns the model's answer.
    pub(super) async fn hold(&mut self, rule: &Rule, key: u64, cost: u64, hold: Hold) -> Result<Request, Broken> {
        self.decide(Request::new(Charge { hold: Some(hold), ..self.new_charge(rule, key, cost) }, true)).await
    }

    /// Requests a charge, and returns the model's answer.
    pub(super) async fn charge(&mut self, rule: &Rule, key: u64, cost: u64) -> Result<Request, Broken> {
        self.decide(Request::new(self.new_charge(rule, key, cost), true)).await
    }

    /// Sends a request that does not consume.
    pub(super) async fn peek(&mut self, rule: &Rule, key: u64, cost: u64) -> Result<Request, Broken> {
        self.decide(Request::new(self.new_charge(rule, key, cost), false)).await
    }

    /// Sends one request, and returns the model's answer.
    pub(super) async fn decide(&mut self, request: Request) -> Result<Request, Broken> {
        Ok(self.decide_batch(vec![request]).await?.remove(0))
    }

    /// Sends a batch, and returns the model's answers.
    pub(super) async fn decide_batch(&mut self, mut requests: Vec<Request>) -> Result<Vec<Request>, Broken> {
        let asked = requests.iter().map(|request| self.describe(request)).collect::<Vec<_>>().join(", and ");
        self.check_clocks(&asked)?;
        let question: Batch = requests.iter().cloned().collect();
        for request in &mut requests {
            self.model.decide(self.now, request);
        }
        let mut theirs = Vec::new();
        for (_, subject) in self.stores {
            theirs.push(answer(subject.store().decide(question.clone())).await);
        }
        let expected: Vec<_> = requests.iter().map(|request| RequestAnswer::of(request, self.compared)).collect();
        let answers: Vec<Vec<_>> = theirs
            .iter()
            .map(|batch| batch.iter().map(|request| RequestAnswer::of(request, self.compared)).collect())
            .collect();
        self.compare(&asked, &expected, &answers, |answers| {
            answers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", and ")
        })?;
        for (at, request) in requests.iter().enumerate() {
            for charge in request.charges.iter() {
                self.reset_after = charge.decision.reset_after();
                self.retry_after = charge.decision.retry_after().unwrap_or(self.retry_after);
            }
            if request.consume && request.outcome == Ok(true) {
                let theirs = theirs.iter().map(|batch| batch[at].charges.clone()).collect();
                self.granted.push(Grant { charges: request.charges.clone(), theirs });
            }
        }
        Ok(requests)
    }

    /// Sends more calls than fit, each of which charges 1 to every rule: in one batch, or
    /// concurrently.
    ///
    /// Only the number of granted calls is compared, as they are decided in any order.
    pub(super) async fn charge_many(&mut self, rules: &[Rule], calls: u64, in_one_batch: bool) -> Result<(), Broken> {
        let request = |cost| {
            let mut charges = Charges::default();
            for rule in rules {
                charges.push(self.new_charge(rule, 0, cost));
            }
            Request::new(charges, true)
        };
        let fits = rules.iter().map(Rule::limit).min().unwrap_or_default();
        let (mut all, requests) = (request(fits), (0..calls).map(|_| request(1)).collect::<Vec<_>>());
        let manner = if in_one_batch { "in one batch" } else { "concurrently" };
        let asked = format!("{calls} times {manner}: {}", self.describe(&requests[0]));
        self.check_clocks(&asked)?;
        // Calls in one instant are equivalent to one call with the sum of their costs.
        self.model.decide(self.now, &mut all);
        let mut answers = Vec::new();
        for (_, subject) in self.stores {
            let requests = requests.iter().cloned();
            let batches = if in_one_batch { vec![requests.collect()] } else { requests.map(Batch::from).collect() };
            let decided = decide_concurrently(subject.store(), batches).await;
            let outcomes: Result<Vec<_>, _> =
                decided.iter().flat_map(|batch| batch.iter()).map(|request| request.outcome.clone()).collect();
            answers
                .push(outcomes.map(|outcomes| (outcomes.iter().filter(|fits| **fits).count() as u64, outcomes.len())));
        }
        let expected = Ok((fits, usize::try_from(calls).expect("a small number")));
        self.compare(&asked, &expected, &answers, |answer| match answer {
            Ok((granted, answers)) => format!("{granted} granted of {answers}"),
            Err(error) => format!("the error {error:?}"),
        })
    }

    /// Checks that the store rejects an algorithm that it does not have.
    pub(super) async fn rejects_algorithm(self, rule: &Rule) -> Result<(), Broken> {
        let request = Request::new(self.new_charge(rule, 0, 1), true);
        let asked = self.describe(&request);
        for (_, subject) in self.stores {
            let batch = answer(subject.store().decide(request.clone().into())).await;
            let outcome = batch.first().map(|request| &request.outcome);
            if !matches!(outcome, Some(Err(error)) if error.misconfigured) {
                let promise = &self.promise;
                return Err(format!(
                    "a promise is broken: {promise}\n\n  asked     {asked}\n  expected  an error made by \
                     `StoreError::misconfigured`, or the algorithm among those that are checked\n  the store {outcome:?}"
                ));
            }
        }
        Ok(())
    }

    /// Removes and returns a granted request, counted from the last one.
    pub(super) fn pop_grant(&mut self, before_last: usize) -> Option<Grant> {
        let at = self.granted.len().checked_sub(before_last + 1)?;
        Some(self.granted.remove(at))
    }

    /// Removes and returns a granted request that holds something, counted from the last one.
    pub(super) fn pop_hold(&mut self, before_last: usize) -> Option<Grant> {
        let is_held = |&at: &usize| self.granted[at].held().next().is_some();
        let at = (0..self.granted.len()).rev().filter(is_held).nth(before_last)?;
        Some(self.granted.remove(at))
    }

    /// The lease of the last granted hold, or zero.
    pub(super) fn lease_of_last_hold(&self) -> Duration {
        let holds = self.granted.iter().rev().flat_map(|grant| grant.held().map(|at| grant.charges[at].hold));
        holds.flatten().next().map_or(Duration::ZERO, |hold| hold.lease)
    }

    /// Puts a grant back, as the last one.
    pub(super) fn push_grant(&mut self, grant: Grant) {
        self.granted.push(grant);
    }

    /// Renews each hold of a request by itself.
    pub(super) async fn renew(&mut self, grant: &Grant) -> Result<(), Broken> {
        for at in grant.held() {
            self.renew_holds(&[(grant, at)]).await?;
        }
        Ok(())
    }

    /// Renews all holds of these requests in one call. They are of one counter.
    pub(super) async fn renew_together(&mut self, grants: &[Grant]) -> Result<(), Broken> {
        let holds: Vec<_> = grants.iter().flat_map(|grant| grant.held().map(move |at| (grant, at))).collect();
        self.renew_holds(&holds).await
    }

    async fn renew_holds(&mut self, holds: &[(&Grant, usize)]) -> Result<(), Broken> {
        let charges: Vec<_> = holds.iter().map(|(grant, at)| &grant.charges[*at]).collect();
        let words: Vec<_> = charges.iter().map(|charge| self.describe_charge(charge)).collect();
        let asked = format!("renew {}", words.join(" and "));
        self.check_clocks(&asked)?;
        let expected = charges.iter().map(|charge| self.model.renew(self.now, charge)).collect();
        let mut answers = Vec::new();
        for (number, (_, subject)) in self.stores.iter().enumerate() {
            let theirs = holds.iter().map(|(grant, at)| grant.theirs[number][*at].clone()).collect();
            answers.push(answer(subject.store().renew(theirs)).await);
        }
        self.compare(&asked, &Ok(expected), &answers, |answer| match answer {
            Ok(held) => {
                let word = |held: &bool| if *held { "held" } else { "no longer held" };
                held.iter().map(word).collect::<Vec<_>>().join(", ")
            }
            Err(error) => format!("the error {error:?}"),
        })
    }

    /// Settles each hold of a request. `used` maps its cost to the cost that was used.
    pub(super) async fn settle(&mut self, grant: &Grant, used: impl Fn(u64) -> u64) -> Result<(), Broken> {
        self.settle_as(grant, used, false).await
    }

    /// Settles as a retry, see [`Hold::is_retry`].
    pub(super) async fn settle_retry(&mut self, grant: &Grant, used: impl Fn(u64) -> u64) -> Result<(), Broken> {
        self.settle_as(grant, used, true).await
    }

    async fn settle_as(&mut self, grant: &Grant, used: impl Fn(u64) -> u64, again: bool) -> Result<(), Broken> {
        let attempt = |charge: &Charge| Charge {
            hold: charge.hold.map(|hold| Hold { is_retry: again, ..hold }),
            ..charge.clone()
        };
        for at in grant.held() {
            let charge = &grant.charges[at];
            let used = used(charge.cost);
            let retry = if again { " again" } else { "" };
            let asked = format!("settle{retry} with {used} used: {}", self.describe_charge(charge));
            self.check_clocks(&asked)?;
            self.model.settle(self.now, &attempt(charge), used);
            let mut answers = Vec::new();
            for ((_, subject), theirs) in self.stores.iter().zip(&grant.theirs) {
                answers.push(answer(subject.store().settle(attempt(&theirs[at]), used)).await);
            }
            self.compare(&asked, &Ok(()), &answers, |answer| format!("{answer:?}"))?;
        }
        Ok(())
    }

    /// Removes and returns the last grant of the rule's counter for a key.
    pub(super) fn pop_grant_to(&mut self, rule: &Rule, key: u64) -> Option<Grant> {
        let counter = self.new_charge(rule, key, 0).counter;
        let is_it = |grant: &Grant| grant.charges.iter().any(|charge| charge.counter == counter && charge.cost > 0);
        self.granted.iter().rposition(is_it).map(|at| self.granted.remove(at))
    }

    /// Whether a store may mistake a charge for a much later one; see [`Model::may_alias`].
    pub(super) fn may_alias(&self, grant: &Grant) -> bool {
        grant.charges.iter().any(|charge| self.model.may_alias(charge))
    }

    /// Refunds a granted request.
    pub(super) async fn refund(&mut self, grant: Grant) -> Result<u64, Broken> {
        let asked = format!("refund {}", self.describe(&Request::new(grant.charges.clone(), true)));
        self.check_clocks(&asked)?;
        let expected = self.model.refund(self.now, &grant.charges);
        let mut answers = Vec::new();
        for ((_, subject), charges) in self.stores.iter().zip(grant.theirs) {
            answers.push(answer(subject.store().refund(charges)).await);
        }
        self.compare(&asked, &Ok(expected), &answers, |answer| match answer {
            Ok(back) => format!("{back} refunded"),
            Err(error) => format!("the error {error:?}"),
        })?;
        Ok(expected)
    }

    /// Compares which of these charges were made in one window, by the first numbers of their receipts.
    pub(super) fn compare_windows(&mut self, grants: &[Grant]) -> Result<(), Broken> {
        fn are_of_one<'a>(charges: impl Iterator<Item = &'a Charges>) -> Vec<bool> {
            let windows: Vec<_> = charges.flat_map(|charges| charges.iter().map(|charge| charge.receipt[0])).collect();
            windows.windows(2).map(|pair| pair[0] == pair[1]).collect()
        }
        let expected = are_of_one(grants.iter().map(|grant| &grant.charges));
        let stores = 0..self.stores.len();
        let answers: Vec<_> = stores.map(|at| are_of_one(grants.iter().map(|grant| &grant.theirs[at]))).collect();
        self.compare("the first numbers of successive receipts", &expected, &answers, |are_equal| {
            format!("equal to the one before: {are_equal:?}")
        })
    }

    /// Resets the rule's counter for a key.
    pub(super) async fn reset(&mut self, rule: &Rule, key: u64) -> Result<(), Broken> {
        let counter = self.new_charge(rule, key, 0).counter;
        let asked = format!("reset {}", counter_in_words(rule, key));
        self.check_clocks(&asked)?;
        self.model.reset(&counter);
        let mut answers = Vec::new();
        for (_, subject) in self.stores {
            answers.push(answer(subject.store().reset(counter.clone())).await);
        }
        self.compare(&asked, &Ok(()), &answers, |answer| format!("{answer:?}"))
    }

    /// Bans the rule's counter for a key. A zero time ends its ban.
    pub(super) async fn ban(&mut self, rule: &Rule, key: u64, time: Duration) -> Result<(), Broken> {
        let charge = self.new_charge(rule, key, 0);
        let asked = format!("ban for {time:?} {}", counter_in_words(rule, key));
        self.check_clocks(&asked)?;
        self.model.ban(self.now, &charge.counter, time);
        let mut answers = Vec::new();
        for (_, subject) in self.stores {
            answers.push(answer(subject.store().ban(charge.clone(), time)).await);
        }
        self.compare(&asked, &Ok(()), &answers, |answer| format!("{answer:?}"))
    }

    /// Forgets all grants of the rule's counter for a key.
    pub(super) fn forget_grants(&mut self, rule: &Rule, key: u64) {
        let counter = self.new_charge(rule, key, 0).counter;
        self.granted.retain(|grant| grant.charges.iter().all(|charge| charge.counter != counter));
    }

    /// Lets time pass.
    pub(super) fn pass(&mut self, time: Duration) {
        if !time.is_zero() {
            self.now += time;
            self.stores.iter().for_each(|(_, subject)| subject.advance(time));
            self.steps.push(format!("{time:?} pass"));
        }
    }

    /// The request in words.
    fn describe(&self, request: &Request) -> String {
        let mut words = String::from(if request.consume { "charge " } else { "look at " });
        for (at, charge) in request.charges.iter().enumerate() {
            let between = if at > 0 { " together with " } else { "" };
            let _ = write!(words, "{between}{}", self.describe_charge(charge));
        }
        words
    }

    fn describe_charge(&self, charge: &Charge) -> String {
        let key = (0..).take(1000).find(|&key| self.new_charge(&charge.rule, key, 0).counter == charge.counter);
        let mut words = format!("{} to {}", charge.cost, counter_in_words(&charge.rule, key.unwrap_or(u64::MAX)));
        if charge.longest_wait != Duration::MAX {
            let _ = write!(words, ", waiting at most {:?}", charge.longest_wait);
        }
        if let Some(Hold { lease, allow_partial, exclusive, .. }) = charge.hold {
            let (rest, alone) =
                (if allow_partial { "or what remains, " } else { "" }, if exclusive { " alone" } else { "" });
            let _ = write!(words, ", {rest}held{alone} for {lease:?}");
        }
        if charge.settles {
            words += ", settled later";
        }
        words
    }

    /// Checks that time stands still between steps, and has moved as told.
    fn check_clocks(&self, asked: &str) -> Result<(), Broken> {
        for (name, subject) in self.stores {
            let shown = subject.now();
            if shown != self.now {
                let should = self.now;
                return Err(format!(
                    "the clock of {name} shows {shown:?} and should show {should:?} before: {asked}\n\
                     It has to stand still, and to move by what `Subject::advance` is given.{}",
                    self.steps_so_far()
                ));
            }
        }
        Ok(())
    }

    fn compare<T: PartialEq>(
        &mut self,
        asked: &str,
        expected: &T,
        answers: &[T],
        words: impl Fn(&T) -> String,
    ) -> Result<(), Broken> {
        if answers.iter().all(|answer| answer == expected) {
            self.steps.push(format!("{asked}: {}", words(expected)));
            return Ok(());
        }
        let mut broken =
            format!("a promise is broken: {}\n\n  asked     {asked}\n  expected  {}\n", self.promise, words(expected));
        for ((name, _), answer) in self.stores.iter().zip(answers) {
            let _ = writeln!(broken, "  {name:<9} {}", words(answer));
        }
        Err(broken + &self.steps_so_far())
    }

    fn steps_so_far(&self) -> String {
        let mut told = format!("\nsteps before that, from {:?} since 1970 on:\n", self.started);
        for step in &self.steps {
            let _ = writeln!(told, "  {step}");
        }
        if self.steps.is_empty() {
            told += "  none\n";
        }
        told
    }
}

impl Grant {
    /// The indexes of its charges that hold something.
    fn held(&self) -> impl Iterator<Item = usize> {
        let charges = self.charges.iter().enumerate();
        charges.filter(|(_, charge)| charge.hold.is_some() && charge.cost > 0).map(|(at, _)| at)
    }
}

fn counter_in_words(rule: &Rule, key: u64) -> String {
    format!("`{}` of key {key} ({} per {:?} by {:?})", rule.prefix(), rule.count(), rule.period(), rule.algorithm())
}
