//! Stores and the model side by side, told the same things and compared after each.

use std::{
    fmt::{self, Write as _},
    hash::{BuildHasher, RandomState},
    panic,
    sync::Barrier,
    thread,
    time::Duration,
};

use tokio::{runtime::Handle, task::JoinSet};

use super::{model::Model, subject::Subject};
use crate::{
    Algorithm, CounterName, Key, Rule, Store,
    store::{Batch, Charge, Charges, Hold, Reply, Request, StoreError},
};

/// A run of steps on fresh counters, that ends where a store does not do what the model does.
#[allow(missing_debug_implementations)] // a `Subject` need not have one
pub struct Trial<'a> {
    promise: String,
    compared: Compared,
    stores: &'a [(&'a str, &'a dyn Subject)],
    model: Model,
    /// Part of each key, so that no counter was ever used before.
    id: u64,
    started: Duration,
    now: Duration,
    steps: Vec<String>,
    granted: Vec<Grant>,
    /// How long each charge to a log is held, if it is.
    lease: Option<Duration>,
    /// The waits that the last answer named.
    pub(super) retry_after: Duration,
    pub(super) reset_after: Duration,
}

/// How much of an answer has to be as the model's. Each has what those before it have.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
pub(super) enum Compared {
    /// Whether it fits, the limit and what remains.
    Counts,
    RetryAfter,
    ResetAfter,
    All,
}

/// A request that was granted, as each of the stores answered it.
#[derive(Clone, Debug)]
pub struct Grant {
    /// By the model.
    pub(super) charges: Charges,
    theirs: Vec<Charges>,
}

/// What was asked, what came and what should have come.
pub type Broken = String;

/// What a store says of one request.
#[derive(PartialEq)]
struct Answer {
    outcome: Result<bool, StoreError>,
    decisions: Vec<Said>,
}

/// What it says of one charge, as far as it is compared.
#[derive(PartialEq)]
struct Said {
    limit: u64,
    remaining: u64,
    #[allow(clippy::option_option)] // whether there is one may not be compared either
    retry_after: Option<Option<Duration>>,
    reset_after: Option<Duration>,
    slot: Option<Duration>,
    /// How much of it is held now.
    hold: Option<u64>,
    /// How much is held by others, and whether it would fit without, where it does not.
    in_the_way: Option<(u64, bool)>,
}

impl<'a> Trial<'a> {
    /// A trial of what is named.
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

    /// The same, with an eye on so much of each answer.
    pub(super) fn comparing(mut self, compared: Compared) -> Self {
        self.compared = compared;
        self
    }

    /// The same, with charges to logs that are held for so long.
    pub(super) fn holding(mut self, lease: Option<Duration>) -> Self {
        self.lease = lease;
        self
    }

    /// A charge to the rule's counter for a key. A place is held for the rule's period.
    pub(super) fn charge(&self, rule: &Rule, key: u64, cost: u64) -> Charge {
        let lease = match rule.algorithm() {
            Algorithm::Concurrent => Some(rule.period()),
            Algorithm::SlidingLog => self.lease,
            _ => None,
        };
        let hold = lease.map(Hold::new);
        Charge { hold, ..Charge::new(*rule, CounterName::new("", rule, Some(&Key::new((self.id, key)))), cost) }
    }

    /// Asks for one charge that is held, and returns what the model says of it.
    pub(super) async fn hold(&mut self, rule: &Rule, key: u64, cost: u64, hold: Hold) -> Result<Request, Broken> {
        self.ask(Request::new(Charge { hold: Some(hold), ..self.charge(rule, key, cost) }, true)).await
    }

    /// Asks for one charge, and returns what the model says of it.
    pub(super) async fn take(&mut self, rule: &Rule, key: u64, cost: u64) -> Result<Request, Broken> {
        self.ask(Request::new(self.charge(rule, key, cost), true)).await
    }

    /// Looks at one cost.
    pub(super) async fn look(&mut self, rule: &Rule, key: u64, cost: u64) -> Result<Request, Broken> {
        self.ask(Request::new(self.charge(rule, key, cost), false)).await
    }

    pub(super) async fn ask(&mut self, request: Request) -> Result<Request, Broken> {
        Ok(self.ask_all(vec![request]).await?.remove(0))
    }

    /// Asks for a batch.
    pub(super) async fn ask_all(&mut self, mut requests: Vec<Request>) -> Result<Vec<Request>, Broken> {
        let asked = requests.iter().map(|request| self.words(request)).collect::<Vec<_>>().join(", and ");
        self.check_clocks(&asked)?;
        let question: Batch = requests.iter().cloned().collect();
        for request in &mut requests {
            self.model.decide(self.now, request);
        }
        let mut theirs = Vec::new();
        for (_, subject) in self.stores {
            theirs.push(answer(subject.store().decide(question.clone())).await);
        }
        let expected: Vec<_> = requests.iter().map(|request| Answer::of(request, self.compared)).collect();
        let answers: Vec<Vec<_>> = theirs
            .iter()
            .map(|batch| batch.iter().map(|request| Answer::of(request, self.compared)).collect())
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

    /// So many calls that charge 1 to each of the rules, more than fit: in one batch, or at once. They end in any order.
    pub(super) async fn take_many(&mut self, rules: &[Rule], calls: u64, in_one_batch: bool) -> Result<(), Broken> {
        let request = |cost| {
            let mut charges = Charges::default();
            for rule in rules {
                charges.push(self.charge(rule, 0, cost));
            }
            Request::new(charges, true)
        };
        let fits = rules.iter().map(Rule::limit).min().unwrap_or_default();
        let (mut all, requests) = (request(fits), (0..calls).map(|_| request(1)).collect::<Vec<_>>());
        let manner = if in_one_batch { "in one batch" } else { "at once" };
        let asked = format!("{calls} times {manner}: {}", self.words(&requests[0]));
        self.check_clocks(&asked)?;
        // Calls of one instant come to the same as one call with their cost.
        self.model.decide(self.now, &mut all);
        let mut answers = Vec::new();
        for (_, subject) in self.stores {
            let requests = requests.iter().cloned();
            let batches = if in_one_batch { vec![requests.collect()] } else { requests.map(Batch::from).collect() };
            let decided = at_once(subject.store(), batches).await;
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

    /// Asks for an algorithm that the store should not know.
    pub(super) async fn refuses_to_know(self, rule: &Rule) -> Result<(), Broken> {
        let request = Request::new(self.charge(rule, 0, 1), true);
        let asked = self.words(&request);
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

    /// The request that was granted last but so many, not to be refunded by anybody else.
    pub(super) fn granted(&mut self, before_last: usize) -> Option<Grant> {
        let at = self.granted.len().checked_sub(before_last + 1)?;
        Some(self.granted.remove(at))
    }

    /// The request that was granted last but so many of those of which something was held, to be put back by whom it holds on to.
    pub(super) fn held(&mut self, before_last: usize) -> Option<Grant> {
        let is_held = |&at: &usize| self.granted[at].held().next().is_some();
        let at = (0..self.granted.len()).rev().filter(is_held).nth(before_last)?;
        Some(self.granted.remove(at))
    }

    /// How long the last of them is held, or not at all.
    pub(super) fn lease_of_last_hold(&self) -> Duration {
        let holds = self.granted.iter().rev().flat_map(|grant| grant.held().map(|at| grant.charges[at].hold));
        holds.flatten().next().map_or(Duration::ZERO, |hold| hold.lease)
    }

    /// As if it had just been granted.
    pub(super) fn put_back(&mut self, grant: Grant) {
        self.granted.push(grant);
    }

    /// Makes what is held of a request last as long again, each charge of it.
    pub(super) async fn renew(&mut self, grant: &Grant) -> Result<(), Broken> {
        for at in grant.held() {
            self.renew_holds(&[(grant, at)]).await?;
        }
        Ok(())
    }

    /// Makes holds of one counter last as long again, in one go: what is held of each of these requests.
    pub(super) async fn renew_together(&mut self, grants: &[Grant]) -> Result<(), Broken> {
        let holds: Vec<_> = grants.iter().flat_map(|grant| grant.held().map(move |at| (grant, at))).collect();
        self.renew_holds(&holds).await
    }

    async fn renew_holds(&mut self, holds: &[(&Grant, usize)]) -> Result<(), Broken> {
        let charges: Vec<_> = holds.iter().map(|(grant, at)| &grant.charges[*at]).collect();
        let words: Vec<_> = charges.iter().map(|charge| self.words_of(charge)).collect();
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
                let word = |held: &bool| if *held { "held" } else { "not held any more" };
                held.iter().map(word).collect::<Vec<_>>().join(", ")
            }
            Err(error) => format!("the error {error:?}"),
        })
    }

    /// Settles each charge of a request that is held, by what was used of how much.
    pub(super) async fn settle(&mut self, grant: &Grant, used: impl Fn(u64) -> u64) -> Result<(), Broken> {
        self.settle_as(grant, used, false).await
    }

    /// The same as a retry, see [`Hold::again`].
    pub(super) async fn settle_again(&mut self, grant: &Grant, used: impl Fn(u64) -> u64) -> Result<(), Broken> {
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
            let asked = format!("settle{retry} with {used} used: {}", self.words_of(charge));
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

    /// The request that was granted last to the rule's counter for a key, if it was not refunded.
    pub(super) fn granted_to(&mut self, rule: &Rule, key: u64) -> Option<Grant> {
        let counter = self.charge(rule, key, 0).counter;
        let is_it = |grant: &Grant| grant.charges.iter().any(|charge| charge.counter == counter && charge.cost > 0);
        self.granted.iter().rposition(is_it).map(|at| self.granted.remove(at))
    }

    /// Whether a store may take a charge for another one that comes much later.
    pub(super) fn may_be_mistaken(&self, grant: &Grant) -> bool {
        grant.charges.iter().any(|charge| self.model.may_be_mistaken(charge))
    }

    /// Refunds what was granted.
    pub(super) async fn refund(&mut self, grant: Grant) -> Result<u64, Broken> {
        let asked = format!("refund {}", self.words(&Request::new(grant.charges.clone(), true)));
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

    /// Resets the rule's counter for a key.
    pub(super) async fn reset(&mut self, rule: &Rule, key: u64) -> Result<(), Broken> {
        let counter = self.charge(rule, key, 0).counter;
        let asked = format!("reset {}", named(rule, key));
        self.check_clocks(&asked)?;
        self.model.reset(&counter);
        let mut answers = Vec::new();
        for (_, subject) in self.stores {
            answers.push(answer(subject.store().reset(counter.clone())).await);
        }
        self.compare(&asked, &Ok(()), &answers, |answer| format!("{answer:?}"))
    }

    /// Loses what the rule's counter for a key has granted, for no one to refund.
    pub(super) fn forget_granted(&mut self, rule: &Rule, key: u64) {
        let counter = self.charge(rule, key, 0).counter;
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

    /// For a message: which key it is, and what is asked of it.
    fn words(&self, request: &Request) -> String {
        let mut words = String::from(if request.consume { "charge " } else { "look at " });
        for (at, charge) in request.charges.iter().enumerate() {
            let between = if at > 0 { " together with " } else { "" };
            let _ = write!(words, "{between}{}", self.words_of(charge));
        }
        words
    }

    fn words_of(&self, charge: &Charge) -> String {
        let key = (0..).take(1000).find(|&key| self.charge(&charge.rule, key, 0).counter == charge.counter);
        let mut words = format!("{} to {}", charge.cost, named(&charge.rule, key.unwrap_or(u64::MAX)));
        if charge.longest_wait != Duration::MAX {
            let _ = write!(words, ", waiting at most {:?}", charge.longest_wait);
        }
        if let Some(Hold { lease, allow_partial, exclusive, .. }) = charge.hold {
            let (rest, alone) =
                (if allow_partial { "or what remains, " } else { "" }, if exclusive { " alone" } else { "" });
            let _ = write!(words, ", {rest}held{alone} for {lease:?}");
        }
        words
    }

    /// The answers mean nothing if time passes by itself, or does not pass when it should.
    fn check_clocks(&self, asked: &str) -> Result<(), Broken> {
        for (name, subject) in self.stores {
            let shown = subject.now();
            if shown != self.now {
                let should = self.now;
                return Err(format!(
                    "the clock of {name} shows {shown:?} and should show {should:?} before: {asked}\n\
                     It has to stand still, and to move when `Subject::advance` says so, by as much.{}",
                    self.told()
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
        Err(broken + &self.told())
    }

    fn told(&self) -> String {
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

fn named(rule: &Rule, key: u64) -> String {
    format!("`{}` of key {key} ({} per {:?} by {:?})", rule.prefix(), rule.count(), rule.period(), rule.algorithm())
}

impl Grant {
    /// Which of its charges hold something.
    fn held(&self) -> impl Iterator<Item = usize> {
        let charges = self.charges.iter().enumerate();
        charges.filter(|(_, charge)| charge.hold.is_some() && charge.cost > 0).map(|(at, _)| at)
    }
}

impl Answer {
    fn of(request: &Request, compared: Compared) -> Self {
        let is_granted = request.consume && request.outcome == Ok(true);
        let decisions = request.charges.iter().map(
            |Charge { decision, slot_delay: wait, cost, hold, held_by_others: held, fits_when_released, .. }| Said {
                limit: decision.limit(),
                remaining: decision.remaining(),
                retry_after: (compared >= Compared::RetryAfter).then_some(decision.retry_after()),
                reset_after: (compared >= Compared::ResetAfter).then_some(decision.reset_after()),
                slot: (compared >= Compared::All).then_some(*wait),
                hold: hold.filter(|_| is_granted).map(|_| *cost),
                in_the_way: decision
                    .retry_after()
                    .filter(|_| compared >= Compared::All)
                    .map(|_| (*held, *fits_when_released)),
            },
        );
        Self { outcome: request.outcome.clone(), decisions: decisions.collect() }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            Ok(true) => f.write_str("it fits")?,
            Ok(false) => f.write_str("it does not fit")?,
            Err(error) => return write!(f, "the error {error:?}"),
        }
        for Said { limit, remaining, retry_after, reset_after, slot, hold, in_the_way } in &self.decisions {
            write!(f, "; limit {limit}, remaining {remaining}")?;
            if let Some(wait) = reset_after {
                write!(f, ", reset_after {} ms", wait.as_millis())?;
            }
            match retry_after {
                Some(Some(wait)) => write!(f, ", retry_after {} ms", wait.as_millis())?,
                Some(None) => f.write_str(", no retry_after")?,
                None => {}
            }
            if let Some(wait) = slot.filter(|wait| !wait.is_zero()) {
                write!(f, ", slot in {} ms", wait.as_millis())?;
            }
            if let Some(held) = hold {
                write!(f, ", {held} of it held")?;
            }
            if let Some((held, fits_when_released)) = in_the_way {
                let not = if *fits_when_released { "" } else { "not " };
                write!(f, ", {held} held by others, without which it would {not}fit")?;
            }
        }
        Ok(())
    }
}

pub(super) async fn answer<T>(reply: Reply<T>) -> T {
    match reply {
        Reply::Ready(answer) => answer,
        Reply::Pending(answer) => answer.await,
    }
}

/// Asks a store from several threads, and awaits what it does not answer at once in as many tasks.
async fn at_once(store: &dyn Store, batches: Vec<Batch>) -> Vec<Batch> {
    const THREADS: usize = 8;
    let runtime = Handle::try_current().ok();
    let parts: Vec<_> = batches.chunks(batches.len().div_ceil(THREADS)).collect();
    let start = Barrier::new(parts.len());
    let replies: Vec<Reply<Batch>> = thread::scope(|scope| {
        let ask = |part: &[Batch]| {
            let _context = runtime.as_ref().map(Handle::enter);
            start.wait();
            part.iter().map(|batch| store.decide(batch.clone())).collect::<Vec<_>>()
        };
        let threads: Vec<_> = parts.iter().map(|part| scope.spawn(move || ask(part))).collect();
        let joined =
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| panic::resume_unwind(panic)));
        joined.flatten().collect()
    });
    let (mut answers, mut tasks) = (Vec::new(), JoinSet::new());
    for reply in replies {
        match (reply, &runtime) {
            (Reply::Pending(answer), Some(_)) => drop(tasks.spawn(answer)),
            (reply, _) => answers.push(answer(reply).await),
        }
    }
    answers.extend(tasks.join_all().await);
    answers
}
