//! One call on its way: from what is asked, through the store, to a permit or a refusal.

use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use smallvec::SmallVec;
use tokio::{
    sync::watch::Receiver,
    time::{Instant, timeout},
};

mod waiting;

#[cfg(feature = "redis")]
use crate::redis::Share;
use crate::{
    Algorithm, Clock, Decision, Key, OnStoreError, Permit, RequestPerMinute, Rule,
    algorithm::TakenWindow,
    counter::CounterId,
    guard::Known,
    hold::{self, CleanUpOnDrop},
    limiter::{Held, Inner, RulesNow, refusal},
    observe,
    queue::Answer as StoreAnswer,
    rule::limits::LARGEST_WINDOW,
    store::{Batch, Charge, ChargeQuery, Charges, HOLDS_NOTHING, Hold, Reply, Request, Store as _, StoreError},
};
#[cfg(not(feature = "redis"))]
use std::convert::Infallible as Share;

/// What a caller asks for, and of whom.
pub(crate) struct Call {
    limiter: Held,
    charges: SmallVec<[Applied; 1]>,
    /// One rule was asked for, whatever became of it.
    alone: bool,
    manner: Manner,
    /// What it does when all places are taken.
    on_busy: OnLimit,
    /// If it is ready to wait.
    arrival: Option<Arrival>,
    /// Changes of the rules, of a call that is ready to wait where they can change.
    rule_changes: Option<Receiver<()>>,
    /// The policy that a file has for its rules.
    policy_of_rules: Option<OnStoreError>,
}

/// One charge as a caller asks for it.
#[derive(Clone, Debug)]
pub struct Asked {
    pub(crate) rule: Rule,
    pub(crate) key: AskedKey,
    pub(crate) cost: u64,
    pub(crate) holds: Holds,
}

/// A charge, and its rule as it applies now: settings from outside the code may change while a caller waits.
struct Applied {
    asked: Asked,
    /// Nothing if it is not to be asked.
    rule: Option<Rule>,
}

impl From<Asked> for Applied {
    fn from(asked: Asked) -> Self {
        Self { rule: Some(asked.rule), asked }
    }
}

/// What a charge comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// The cost; places of [`Algorithm::Concurrent`] are held.
    Cost,
    /// What is told in the end; the cost is held until then.
    Told,
    /// The milliseconds until the end; what remains is held until then, up to the cost.
    Time,
}

#[derive(Clone, Debug)]
pub(crate) enum AskedKey {
    Some(Key),
    /// One counter for all.
    Shared,
    /// A missing key, that is refused.
    Missing,
    /// A missing key, that is let through.
    Skip,
}

/// How a call wants to be treated. [`OnLimit`] lies in pieces, as each future of a call carries it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Manner {
    waits: bool,
    /// In nanoseconds; [`u64::MAX`] if nothing is said.
    longest_wait: u64,
    pub(crate) on_store_error: Option<OnStoreError>,
}

impl Manner {
    #[allow(clippy::cast_possible_truncation)] // 584 years at most
    pub(crate) const fn new(on_limit: OnLimit, on_store_error: Option<OnStoreError>) -> Self {
        const LONGEST: u128 = u64::MAX as u128 - 1;
        let (waits, longest_wait) = match on_limit {
            OnLimit::Reject => (false, 0),
            OnLimit::Wait(None) => (true, u64::MAX),
            OnLimit::Wait(Some(longest)) if longest.as_nanos() > LONGEST => (true, LONGEST as u64),
            OnLimit::Wait(Some(longest)) => (true, longest.as_nanos() as u64),
        };
        Self { waits, longest_wait, on_store_error }
    }

    pub(crate) const fn on_limit(self) -> OnLimit {
        match self.longest_wait {
            _ if !self.waits => OnLimit::Reject,
            u64::MAX => OnLimit::Wait(None),
            longest => OnLimit::Wait(Some(Duration::from_nanos(longest))),
        }
    }
}

/// What a caller does who is over the limit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum OnLimit {
    #[default]
    Reject,
    /// Waits, up to so long if something is said.
    Wait(Option<Duration>),
}

/// Who holds a charge.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CountedBy {
    Store,
    Local,
}

/// The arrival of a caller who is ready to wait.
#[derive(Clone, Copy)]
struct Arrival {
    ticket: u64,
    at: Duration,
    /// The end of its patience.
    give_up: Option<Duration>,
    /// See [`WaitQueues::changes`](crate::queue::WaitQueues::changes).
    changes: u64,
}

/// A refusal after which waiting helps.
struct Exceeded {
    refusal: RequestPerMinute,
    by: By,
    ready_in: Duration,
    /// Others hold something that they may leave before.
    is_held: bool,
    charges: Charges,
    /// What the store said of them.
    answer: StoreAnswer,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    Limit,
    /// All places are taken.
    Places,
    /// It is another's turn.
    Turn,
}

/// What comes of one question to the store.
#[allow(clippy::large_enum_variant)] // made and taken apart at once, and most are permits
enum Verdict {
    /// And when the call may run, if not at once.
    Permit(Permit, Option<Duration>),
    Exceeded(Box<Exceeded>),
    Refused(RequestPerMinute),
}

/// What is left of a question when rules that are only tried out have refused: what they said, and the charges of the others.
struct Shadowed {
    said: Decision,
    rest: Charges,
}

/// How long a hold lasts without being renewed, where nothing is said.
const LEASE: Duration = Duration::from_secs(30);
const SHORTEST_LEASE: Duration = Duration::from_secs(1);

type AcquireAnswer = Result<Permit, RequestPerMinute>;
type Pending = Pin<Box<dyn Future<Output = AcquireAnswer> + Send>>;

/// A permit whose time has not come. Dropped, it is refunded.
struct Slot(Option<Permit>);

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(permit) = self.0.take() {
            permit.abandon();
        }
    }
}

/// A decision that is made when it is awaited.
///
/// A type with a name and no borrows, so that it costs little in each function that awaits it: little time to compile,
/// and no more room than the call takes before it is on its way.
pub struct Deciding {
    /// Who is asked, until it has been.
    limiter: Option<Held>,
    state: State,
}

enum State {
    /// And its share, where many ask a server at once.
    One(One, Manner, Option<Share>),
    Pending(Pending),
    Done,
}

/// A charge that holds nothing.
struct One {
    rule: Rule,
    key: AskedKey,
    cost: u64,
}

impl Call {
    /// Decides when it is first polled.
    #[inline(always)]
    #[allow(clippy::inline_always)] // or a rule is copied twice, which takes as long as a lock
    pub(crate) fn decide_one(limiter: Held, rule: &Rule, key: AskedKey, cost: u64, manner: Manner) -> Deciding {
        let asked = One { rule: *rule, key, cost };
        Deciding { limiter: Some(limiter), state: State::One(asked, manner, None) }
    }

    fn new(limiter: Held, asked: impl IntoIterator<Item = Asked>, manner: Manner, on_busy: OnLimit) -> Self {
        Self {
            limiter,
            charges: asked.into_iter().map(Applied::from).collect(),
            alone: false,
            manner,
            on_busy,
            arrival: None,
            rule_changes: None,
            policy_of_rules: None,
        }
    }

    /// For one rule.
    fn alone(limiter: Held, One { rule, key, cost }: One, manner: Manner) -> Self {
        let asked = Asked { rule, key, cost, holds: Holds::Cost };
        Self { alone: true, ..Self::new(limiter, [asked], manner, manner.on_limit()) }
    }

    /// Decides when it is first polled.
    pub(crate) fn decide(limiter: Held, asked: Vec<Asked>, manner: Manner, on_busy: OnLimit) -> Deciding {
        let call = Self::new(limiter, asked, manner, on_busy);
        let answer = async move {
            match call.start() {
                Ok(answer) => answer,
                Err(pending) => pending.await,
            }
        };
        Deciding { limiter: None, state: State::Pending(Box::pin(answer)) }
    }

    /// The answer of a store that has it at once, or the way to it.
    fn start(mut self) -> Result<AcquireAnswer, Pending> {
        self.arrival = self.arrive();
        if self.arrival.is_some() {
            self.rule_changes = self.limiter.settings().rule_changes();
        }
        self.apply_rules(true);
        let charges = match self.charges() {
            Ok(charges) => charges,
            Err(refused) => return Ok(Err(refused)),
        };
        let Some(store) = self.limiter.store().filter(|_| !charges.is_empty()) else {
            return Ok(Ok(Permit::free(&charges)));
        };
        if let Some(arrival) = &mut self.arrival {
            if self.limiter.queues().is_behind_others(&charges, arrival.ticket) {
                return Err(Box::pin(self.wait(charges, None)));
            }
            arrival.changes = self.limiter.queues().changes(&charges);
        }
        if self.limiter.settlements().of(&charges).is_some() {
            return Err(Box::pin(async move {
                let (asked, batch) = self.question(charges, true).await;
                match self.answer_or_wait(batch, asked) {
                    Ok(answer) => answer,
                    Err(waiting) => waiting.await,
                }
            }));
        }
        let asked = self.clock().now();
        let held = hold::held(&charges);
        match store.decide(Request::new(charges, true).into()) {
            Reply::Ready(batch) => self.answer_or_wait(Ok(batch), asked),
            reply @ Reply::Pending(_) => Err(Box::pin(async move {
                let reply = CleanUpOnDrop::around(&self.limiter, held, reply);
                let batch = self.limiter.within_deadline(reply).await;
                match self.answer_or_wait(batch, asked) {
                    Ok(answer) => answer,
                    Err(waiting) => waiting.await,
                }
            })),
        }
    }

    /// Asks the store, when what is being settled has been; and tells when it did.
    async fn question(&self, charges: Charges, consume: bool) -> (Duration, Result<Batch, StoreError>) {
        let (began, mut left) = (Instant::now(), self.limiter.settings().deadline);
        if let Some(settlements) = self.limiter.settlements().of(&charges) {
            let _ = timeout(left / 2, settlements.done()).await; // the rest is for the question
            left = left.saturating_sub(began.elapsed());
        }
        let asked = self.clock().now();
        let Some(store) = self.limiter.store() else { return (asked, Err(StoreError::no_answer())) };
        let held = hold::held(&charges).filter(|_| consume);
        let reply = store.decide(Request::new(charges, consume).into());
        (asked, self.limiter.within(left, CleanUpOnDrop::around(&self.limiter, held, reply)).await)
    }

    fn answer_or_wait(self, batch: Result<Batch, StoreError>, asked: Duration) -> Result<AcquireAnswer, Pending> {
        match self.conclude(batch, true, asked) {
            Ok(verdict) => self.act_on(verdict),
            Err(shadowed) => Err(Box::pin(async move {
                let verdict = self.ask_without(shadowed, true).await;
                match self.act_on(verdict) {
                    Ok(answer) => answer,
                    Err(waiting) => waiting.await,
                }
            })),
        }
    }

    fn act_on(mut self, verdict: Verdict) -> Result<AcquireAnswer, Pending> {
        match (verdict, self.arrival) {
            (Verdict::Exceeded(exceeded), Some(arrival)) if self.waits_for(exceeded.by) => {
                let Exceeded { by, charges, answer, .. } = *exceeded;
                self.arrival = Some(Arrival { give_up: self.give_up(by, arrival), ..arrival });
                Err(Box::pin(self.wait(charges, Some(answer))))
            }
            (Verdict::Permit(permit, Some(at)), _) => Err(Box::pin(async move { self.sleep_until(at, permit).await })),
            (Verdict::Permit(permit, None), _) => Ok(Ok(permit)),
            (Verdict::Exceeded(exceeded), _) => Ok(Err(exceeded.refusal)),
            (Verdict::Refused(refused), _) => Ok(Err(refused)),
        }
    }

    fn arrive(&self) -> Option<Arrival> {
        let reasons = [By::Limit, By::Places, By::Turn].map(|by| self.waits_for(by).then_some(by));
        if reasons == [None; 3] {
            return None;
        }
        let ticket = self.limiter.queues().ticket();
        let arrival = Arrival { ticket, at: self.clock().now(), give_up: None, changes: 0 };
        let longest = reasons.into_iter().flatten().map(|by| self.give_up(by, arrival));
        let give_up = longest.reduce(|one, other| Some(one?.max(other?))).flatten();
        Some(Arrival { give_up, ..arrival })
    }

    /// What the call does when it is refused for that reason.
    fn on_refusal(&self, by: By) -> OnLimit {
        match (by, self.manner.on_limit()) {
            (By::Places, _) => self.on_busy,
            // Calls that use all that remains run one after another, whoever they are.
            (By::Turn, OnLimit::Reject) => OnLimit::Wait(None),
            (By::Limit | By::Turn, on_limit) => on_limit,
        }
    }

    fn waits_for(&self, by: By) -> bool {
        let may_be = match by {
            By::Limit => true,
            By::Places => self.charges.iter().any(|charge| charge.asked.rule.is_concurrent()),
            By::Turn => self.charges.iter().any(Applied::takes_all),
        };
        may_be && matches!(self.on_refusal(by), OnLimit::Wait(_))
    }

    fn give_up(&self, by: By, arrival: Arrival) -> Option<Duration> {
        match self.on_refusal(by) {
            OnLimit::Wait(longest) => longest.map(|longest| arrival.at.saturating_add(longest)),
            OnLimit::Reject => Some(arrival.at),
        }
    }

    async fn sleep_until(&self, at: Duration, permit: Permit) -> AcquireAnswer {
        let mut slot = Slot(Some(permit));
        self.clock().sleep_until(at).await;
        slot.0.take().ok_or_else(|| refusal(&self.rule(), StoreError::no_answer()))
    }

    async fn ask(&self, charges: Charges, consume: bool) -> Verdict {
        if self.limiter.store().is_none() {
            return Verdict::Permit(Permit::free(&charges), None);
        }
        let (asked, batch) = self.question(charges, consume).await;
        match self.conclude(batch, consume, asked) {
            Ok(verdict) => verdict,
            Err(shadowed) => self.ask_without(shadowed, consume).await,
        }
    }

    /// Asks again without the rules that are only tried out and have refused.
    async fn ask_without(&self, shadowed: Box<Shadowed>, consume: bool) -> Verdict {
        let Shadowed { said, rest } = *shadowed;
        if rest.is_empty() {
            return Verdict::Permit(Permit::of_shadow(said), None);
        }
        Box::pin(self.ask(rest, consume)).await
    }

    /// What the call would charge; checked, so that a store sees only what it can decide.
    fn charges(&self) -> Result<Charges, RequestPerMinute> {
        let mut charges = Charges::default();
        let give_up = self.arrival.and_then(|arrival| arrival.give_up);
        let longest_wait = give_up.map(|give_up| give_up.saturating_sub(self.clock().now()));
        for Applied { asked, rule } in &self.charges {
            let (Asked { key, cost, .. }, Some(rule)) = (asked, rule) else { continue };
            let key = match key {
                AskedKey::Some(key) => Some(key),
                AskedKey::Shared => None,
                AskedKey::Missing => return Err(RequestPerMinute::missing_key(rule)),
                AskedKey::Skip => continue,
            };
            let longest_wait = longest_wait.unwrap_or(Duration::MAX);
            let charge = Charge { longest_wait, ..self.limiter.charge(rule, key, *cost)? };
            let is_held = asked.holds() && *cost > 0;
            charges.push(if is_held { self.hold(asked, charge)? } else { charge });
        }
        if charges.len() > 1 {
            for Charge { rule, .. } in &*charges {
                let error = match rule.algorithm() {
                    Algorithm::LeakyBucket { .. } => {
                        "a LeakyBucket stands alone: it can't be one of several rules of a call"
                    }
                    _ if rule.prefetch() > 1 => {
                        "a rule with `prefetch` stands alone: it can't be one of several rules of a call"
                    }
                    _ => continue,
                };
                return Err(refusal(rule, StoreError::misconfigured(error)));
            }
        }
        match charges.iter().find(|charge| charge.least() > charge.rule.limit()) {
            Some(charge) if self.limiter.store().is_some() => {
                Err(RequestPerMinute::never_fits(&charge.rule, charge.cost))
            }
            _ => Ok(charges),
        }
    }

    /// The charge as one that is held.
    fn hold(&self, asked: &Asked, charge: Charge) -> Result<Charge, RequestPerMinute> {
        let Charge { rule, cost, .. } = charge;
        let lease = match (asked.holds, rule.algorithm()) {
            (Holds::Cost, _) => rule.period(), // places
            (Holds::Told, Algorithm::SlidingLog) => LEASE,
            // A holder that died is charged when its time would have been over.
            (Holds::Time, Algorithm::SlidingLog) => {
                Duration::from_millis(cost.min(rule.limit())).clamp(SHORTEST_LEASE, LEASE)
            }
            (_, algorithm) => {
                let error = format!("what a call used can be charged by a SlidingLog only, and this is {algorithm:?}");
                return Err(refusal(&rule, StoreError::misconfigured(error)));
            }
        };
        if self.limiter.store().is_some_and(|store| !store.supports_holds()) {
            return Err(refusal(&rule, StoreError::misconfigured(HOLDS_NOTHING)));
        }
        let is_timed = asked.holds == Holds::Time;
        let is_kept = self.limiter.memory().is_some();
        let alone = is_timed && cost >= rule.limit();
        let hold = Hold { allow_partial: is_timed, exclusive: alone, is_kept, is_timed, ..Hold::new(lease) };
        // Of nothing, not even a moment is granted.
        Ok(Charge { cost: if is_timed { cost.min(rule.limit().max(1)) } else { cost }, hold: Some(hold), ..charge })
    }

    /// Turns what the store said, or that it said nothing, into a verdict.
    fn conclude(
        &self,
        batch: Result<Batch, StoreError>,
        consume: bool,
        asked: Duration,
    ) -> Result<Verdict, Box<Shadowed>> {
        let (error, charges) = match batch.map(Batch::into_first) {
            Ok(Some(Request { charges, outcome: Ok(fits), .. })) => {
                if fits {
                    self.limiter.succeeded(); // a server that can't write can still refuse
                }
                return self.verdict(charges, fits, consume, CountedBy::Store, asked);
            }
            Ok(Some(Request { charges, outcome: Err(error), .. })) => (error, charges),
            Err(error) => (error, self.charges().unwrap_or_default()),
            Ok(None) => (StoreError::no_answer(), Charges::default()),
        };
        if error.misconfigured {
            return Ok(Verdict::Refused(refusal(&self.rule(), error)));
        }
        self.limiter.failed(&error, &charges);
        let settings = self.limiter.settings();
        let policy = self.manner.on_store_error.unwrap_or(settings.on_store_error);
        let policy = self.policy_of_rules.unwrap_or(policy);
        observe::fallback_decision(policy);
        Ok(match policy {
            OnStoreError::Allow => match self.charges() {
                Ok(charges) => Verdict::Permit(Permit::free(&charges), None),
                Err(refused) => Verdict::Refused(refused),
            },
            OnStoreError::Local if !settings.is_local => self.decide_locally(&error, consume),
            OnStoreError::Local | OnStoreError::Deny => self.undecided(error),
        })
    }

    /// What nobody could decide is refused, unless all of it is only tried out.
    fn undecided(&self, error: StoreError) -> Verdict {
        let mut rules = self.charges.iter().filter_map(|charge| charge.rule);
        if !error.misconfigured && rules.all(|rule| rule.is_shadow()) {
            return Verdict::Permit(Permit::of_shadow(Decision::fresh(self.rule().limit())), None);
        }
        Verdict::Refused(refusal(&self.rule(), error))
    }

    /// Decides in this process, within its share of each rule.
    fn decide_locally(&self, error: &StoreError, consume: bool) -> Verdict {
        let mut charges = match self.charges() {
            Ok(charges) => charges,
            Err(refused) => return Verdict::Refused(refused),
        };
        let instances = self.limiter.settings().instances;
        for charge in &mut *charges {
            charge.rule = charge.rule.share(instances);
            let share = charge.rule.limit();
            if let Some(hold) = &mut charge.hold {
                hold.is_kept = true;
                charge.cost = if hold.allow_partial { charge.cost.min(share.max(1)) } else { charge.cost };
            }
            if charge.cost > share && !charge.rule.is_shadow() {
                let (prefix, cost) = (charge.rule.prefix(), charge.cost);
                let reason = format!(
                    "{error}; the share of `{prefix}` that this process may grant alone, as one of {instances} instances, is {share}, \
                     below the cost of {cost}"
                );
                return Verdict::Refused(refusal(&self.rule(), StoreError::unavailable(reason)));
            }
        }
        // What is only tried out does not refuse because its share is small.
        charges.retain(|charge| charge.cost <= charge.rule.limit());
        if charges.is_empty() {
            return Verdict::Permit(Permit::of_shadow(Decision::fresh(self.rule().limit())), None);
        }
        loop {
            let Reply::Ready(batch) = self.limiter.local().decide(Request::new(charges, consume).into()) else {
                return Verdict::Refused(refusal(&self.rule(), StoreError::no_answer()));
            };
            let verdict = match batch.into_first() {
                Some(Request { charges, outcome: Ok(fits), .. }) => {
                    self.verdict(charges, fits, consume, CountedBy::Local, self.clock().now())
                }
                Some(Request { outcome: Err(error), .. }) => Ok(self.undecided(error)),
                None => Ok(Verdict::Refused(refusal(&self.rule(), StoreError::no_answer()))),
            };
            charges = match verdict {
                Ok(verdict) => return verdict,
                Err(shadowed) if shadowed.rest.is_empty() => {
                    return Verdict::Permit(Permit::of_shadow(shadowed.said), None);
                }
                Err(shadowed) => shadowed.rest,
            };
        }
    }

    fn verdict(
        &self,
        charges: Charges,
        fits: bool,
        consume: bool,
        by: CountedBy,
        asked: Duration,
    ) -> Result<Verdict, Box<Shadowed>> {
        if fits && consume && charges.iter().any(|charge| charge.hold.is_some()) {
            charges.iter().for_each(|charge| observe::admitted(&charge.rule, charge.decision.remaining));
            return Ok(Verdict::Permit(Permit::held(self.limiter.clone(), charges, by, asked), None));
        }
        if fits {
            if consume {
                charges.iter().for_each(|charge| observe::admitted(&charge.rule, charge.decision.remaining));
            }
            let holding = charges.iter().filter(|charge| !charge.rule.is_shadow());
            let wait = holding.map(|charge| charge.slot_delay).max().filter(|wait| !wait.is_zero());
            let at = wait.map(|wait| self.clock().now().saturating_add(wait));
            return Ok(Verdict::Permit(Permit::new(self.limiter.clone(), charges, by, self.alone), at));
        }
        let is_over = |charge: &Charge| charge.decision.retry_after().is_some();
        let refusing = charges.iter().filter(|charge| is_over(charge));
        // Where one will not fit however soon others leave, that is the reason.
        let weight =
            |charge: &&Charge| (!charge.rule.is_shadow(), !charge.fits_when_released, charge.decision.retry_after_ms);
        let Some(charge) = refusing.max_by_key(weight) else {
            let error = StoreError::misconfigured("the store refused, and named no counter that did");
            return Ok(Verdict::Refused(refusal(&self.rule(), error)));
        };
        if charge.rule.is_shadow() {
            let said = charge.decision;
            let mut rest = charges;
            rest.retain(|charge| {
                let is_over = is_over(charge);
                if is_over && consume {
                    observe::refused_in_shadow(&charge.rule);
                }
                !is_over
            });
            return Err(Box::new(Shadowed { said, rest }));
        }
        let refused = RequestPerMinute::exceeded(&charge.rule, charge.least(), &charge.decision);
        if charge.slot_delay > charge.longest_wait {
            return Ok(Verdict::Refused(refused)); // a slot comes no sooner for a caller who waits to ask again
        }
        let refused = match charge.hold {
            // What would fit is refused because there are too many holds, or because it is another's turn.
            Some(hold) if !hold.exclusive && charge.least() <= charge.decision.remaining => refused.of_holds(),
            Some(hold) if hold.is_timed => refused.of_time(),
            _ => refused,
        };
        let takes_all = charge.hold.is_some_and(|hold| hold.exclusive);
        let by = match charge.fits_when_released {
            true if charge.rule.is_concurrent() => By::Places,
            true if takes_all => By::Turn,
            _ => By::Limit,
        };
        if consume && !self.waits_for(by) {
            let tried = charges.iter().filter(|charge| charge.rule.is_shadow() && is_over(charge));
            tried.for_each(|charge| observe::refused_in_shadow(&charge.rule));
        }
        let (id, is_held) = (charge.counter.id(), charge.held_by_others > 0);
        let ready_in = charge.decision.retry_after().unwrap_or_default();
        let answer = StoreAnswer { refusal: Some((id, refused.clone())), ..StoreAnswer::of(&charges, asked) };
        Ok(Verdict::Exceeded(Box::new(Exceeded { refusal: refused, by, ready_in, is_held, charges, answer })))
    }

    /// The rule that an error of the store is reported under.
    fn rule(&self) -> Rule {
        let first = self.charges.iter().find_map(|charge| charge.rule);
        first.or(self.charges.first().map(|charge| charge.asked.rule)).unwrap_or(Rule::new("", 0, Duration::ZERO))
    }

    /// Takes the rules as they apply now, all from one table.
    fn apply_rules(&mut self, is_first: bool) {
        let rules = self.limiter.settings().rules_now();
        let is_one_of_several = self.charges.len() > 1;
        for Applied { asked, rule } in &mut self.charges {
            *rule = rule_to_ask(&rules, asked, is_one_of_several, is_first);
        }
        let mut active = self.charges.iter().filter_map(|charge| charge.rule);
        self.policy_of_rules = active.find_map(|rule| rules.on_store_error(rule.prefix()));
    }

    fn clock(&self) -> &Clock {
        &self.limiter.settings().clock
    }
}

impl Asked {
    fn holds(&self) -> bool {
        self.holds != Holds::Cost || self.rule.is_concurrent()
    }
}

impl Applied {
    /// Nothing remains for others while it runs.
    fn takes_all(&self) -> bool {
        let rule = self.rule.unwrap_or(self.asked.rule);
        self.asked.holds == Holds::Time && self.asked.cost >= rule.limit()
    }
}

impl Deciding {
    /// Whether this is what most calls are: one rule, whose limit holds or not, and nobody waits.
    #[inline]
    fn one_rule(&self) -> Option<(&Held, &One)> {
        match (&self.limiter, &self.state) {
            (Some(limiter), State::One(asked, Manner { waits: false, .. }, None)) => Some((limiter, asked)),
            _ => None,
        }
    }

    /// Charges a fixed window that is stored and open, which is what most calls do. `None` if there is none, and nothing is changed then.
    ///
    /// Here ends what is compiled into each caller. What is found out is left to whoever polls, where it is no part of anything yet: most
    /// callers only want to know whether there is a permit, and it takes as long as all of the arithmetic to make one and to move it.
    #[inline(never)]
    fn take_window(&self) -> Option<TakenWindow> {
        let (limiter, asked) = self.one_rule()?;
        take_window(limiter, &asked.rule, &asked.key, asked.cost)
    }

    /// Charges any other counter in memory, or one that is not stored; or spends what was taken from another store, or says what it would say, where
    /// that is known and need not be asked; or asks it together with others.
    ///
    /// What would have to wait, what is wrong and what can't fit goes the long way.
    #[cfg_attr(not(feature = "redis"), allow(unused_variables))]
    fn take(&mut self, context: &mut Context<'_>) -> Option<AcquireAnswer> {
        let (limiter, asked) = self.one_rule()?;
        let One { rule, cost, .. } = asked;
        let can_fit = (1..=rule.limit()).contains(cost);
        if !can_fit
            || rule.is_shadow()
            || rule.has_fault()
            || matches!(rule.algorithm(), Algorithm::LeakyBucket { .. } | Algorithm::Concurrent)
        {
            return None;
        }
        if !limiter.settings().rules_are_as_written() || !limiter.settlements().are_none() {
            return None;
        }
        let name = name(rule, &asked.key)?;
        let Some(memory) = limiter.memory() else {
            let guarded = limiter.guarded()?;
            match guarded.known(name, rule, *cost) {
                Some(Known::Denied(decision)) => {
                    let refused = RequestPerMinute::exceeded(rule, *cost, &decision);
                    observe::refused(&refused);
                    return Some(Err(refused));
                }
                Some(Known::Spent(spent)) => {
                    observe::admitted(rule, spent.remaining);
                    let rule = *rule;
                    return Some(Ok(Permit::prefetched(self.limiter.take()?, name, &rule, &spent)));
                }
                None => {}
            }
            #[cfg(feature = "redis")]
            {
                let charge = || {
                    let key = if let AskedKey::Some(key) = &asked.key { Some(key) } else { None };
                    Charge::new(*rule, crate::CounterName::new(&limiter.settings().namespace, rule, key), *cost)
                };
                let joined = guarded.share(name, rule, *cost, charge, context.waker());
                if let State::One(_, _, share) = &mut self.state {
                    *share = joined;
                }
            }
            return None;
        };
        // Where there is no room, the long way says what becomes of the call; nothing was charged.
        let taken =
            memory.take(name, &ChargeQuery { rule, cost: *cost, longest_wait_ms: u64::MAX, hold: None }).ok()?;
        if !taken.fits() {
            let refused = RequestPerMinute::exceeded(rule, *cost, &taken.decision(rule));
            observe::refused(&refused);
            return Some(Err(refused));
        }
        observe::admitted(rule, taken.remaining);
        let (rule, cost) = (*rule, *cost);
        Some(Ok(Permit::in_memory(self.limiter.take()?, name, &rule, cost, &taken)))
    }

    /// What came of asking together with others.
    #[cfg(feature = "redis")]
    #[inline(never)]
    fn poll_share(&mut self, context: &mut Context<'_>) -> Poll<AcquireAnswer> {
        let (Some(limiter), State::One(One { rule, cost, .. }, _, Some(share))) = (&self.limiter, &mut self.state)
        else {
            panic!("`Deciding` polled after it was done");
        };
        let told = ready!(limiter.guarded().map_or(Poll::Ready(None), |guarded| guarded.poll(share, context)));
        let error = match told {
            Some(Ok(taken)) if taken.fits() => {
                limiter.succeeded();
                observe::admitted(rule, taken.remaining);
                let (Some(decision), Some(limiter)) = (share.take_decision(), self.limiter.take()) else {
                    panic!("a share that has been told is one in a decision");
                };
                return Poll::Ready(Ok(Permit::shared(limiter, decision, rule.limit(), &taken)));
            }
            Some(Ok(taken)) => {
                let refused = RequestPerMinute::exceeded(rule, *cost, &taken.decision(rule));
                observe::refused(&refused);
                self.limiter = None;
                return Poll::Ready(Err(refused));
            }
            Some(Err(error)) => error,
            None => StoreError::late(limiter.settings().deadline),
        };
        if let State::One(asked, manner, _) = mem::replace(&mut self.state, State::Done)
            && let Some(limiter) = self.limiter.take()
        {
            match Call::alone(limiter, asked, manner).answer_or_wait(Err(error), Duration::ZERO) {
                Ok(answer) => return Poll::Ready(answer.inspect_err(observe::refused)),
                Err(pending) => self.state = State::Pending(pending),
            }
        }
        self.decide(None, context)
    }

    /// All that is not an admitted call of a fixed window in memory that is stored and open.
    #[inline(never)]
    fn decide(&mut self, refused: Option<&TakenWindow>, context: &mut Context<'_>) -> Poll<AcquireAnswer> {
        let answer = match (refused, &self.state) {
            (Some(taken), State::One(One { rule, cost, .. }, ..)) => Some(Err(exceeded(rule, *cost, taken))),
            _ => self.take(context),
        };
        if let Some(answer) = answer {
            self.limiter = None;
            self.state = State::Done;
            return Poll::Ready(answer);
        }
        if let State::One(_, _, None) = &self.state
            && let State::One(asked, manner, _) = mem::replace(&mut self.state, State::Done)
            && let Some(limiter) = self.limiter.take()
        {
            match Call::alone(limiter, asked, manner).start() {
                Ok(answer) => return Poll::Ready(answer.inspect_err(observe::refused)),
                Err(pending) => self.state = State::Pending(pending),
            }
        }
        match &mut self.state {
            State::Pending(pending) => {
                let answer = ready!(pending.as_mut().poll(context));
                self.state = State::Done;
                Poll::Ready(answer.inspect_err(observe::refused))
            }
            State::One(_, _, Some(_)) => Poll::Pending,
            State::One(_, _, None) | State::Done => panic!("`Deciding` polled after it was done"),
        }
    }
}

impl Future for Deciding {
    type Output = AcquireAnswer;

    #[inline(always)]
    #[allow(clippy::inline_always)] // see `Deciding::take_window`
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<AcquireAnswer> {
        #[cfg(feature = "redis")]
        if let State::One(_, _, Some(_)) = &self.state {
            return self.poll_share(context);
        }
        let has_memory = self.limiter.as_ref().is_some_and(|limiter| limiter.memory().is_some());
        let taken = if has_memory { self.take_window() } else { None };
        if let Some(taken) = &taken
            && taken.fits
            && let State::One(One { rule, cost, .. }, ..) = &self.state
            && let (limit, period_ms, cost) = (rule.count(), rule.period_ms(), *cost)
            && let Some(limiter) = self.limiter.take()
        {
            return Poll::Ready(Ok(Permit::of_window(limiter, limit, period_ms, cost, taken)));
        }
        self.decide(taken.as_ref(), context)
    }
}

/// The same for a caller who has no use for the permit.
#[derive(Debug)]
pub struct Admitting(pub(crate) Deciding);

impl Future for Admitting {
    type Output = Result<(), RequestPerMinute>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|answer| answer.map(drop))
    }
}

/// What most calls come to: a decision of a fixed window in memory that is stored and open. `None` if there is none, and nothing is changed
/// then.
#[inline(never)]
pub(crate) fn decide_at_once(
    limiter: &Inner,
    rule: &Rule,
    key: &AskedKey,
    cost: u64,
) -> Option<Result<(), RequestPerMinute>> {
    let taken = take_window(limiter, rule, key, cost)?;
    Some(if taken.fits { Ok(()) } else { Err(exceeded(rule, cost, &taken)) })
}

/// Charges a fixed window that is stored and open. `None` if there is none, and nothing is changed then.
#[inline(always)]
#[allow(clippy::inline_always)] // what is found out would have to be copied
fn take_window(limiter: &Inner, rule: &Rule, key: &AskedKey, cost: u64) -> Option<TakenWindow> {
    let memory = limiter.memory().filter(|_| limiter.settings().rules_are_as_written())?;
    let can_fit = (1..=rule.count()).contains(&cost) && rule.count() <= LARGEST_WINDOW && !rule.is_shadow();
    if !can_fit || rule.prefetch() == 0 || !matches!(rule.algorithm(), Algorithm::FixedWindow { .. }) {
        return None;
    }
    let taken = memory.take_window(name(rule, key)?, rule.count(), cost)?;
    if taken.fits {
        observe::admitted(rule, taken.remaining);
    }
    Some(taken)
}

#[cold]
#[inline(never)]
fn exceeded(rule: &Rule, cost: u64, taken: &TakenWindow) -> RequestPerMinute {
    let refused = RequestPerMinute::exceeded(rule, cost, &taken.refusal(rule));
    observe::refused(&refused);
    refused
}

/// What tells the counter from others, if it is sure that the call has one.
#[inline(always)]
#[allow(clippy::inline_always)] // the algorithm is known where it is called
fn name(rule: &Rule, key: &AskedKey) -> Option<CounterId> {
    let key = match key {
        AskedKey::Some(key) => Some(key),
        AskedKey::Shared => None,
        AskedKey::Missing | AskedKey::Skip => return None,
    };
    Some(CounterId::new_inline(rule, key))
}

impl fmt::Debug for Deciding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deciding").finish_non_exhaustive()
    }
}

/// The rule as it applies now. Nothing if it is not to be asked: a rule in shadow mode that would refuse without the
/// store.
fn rule_to_ask(
    rules: &RulesNow,
    Asked { rule, key, cost, holds }: &Asked,
    is_one_of_several: bool,
    is_first: bool,
) -> Option<Rule> {
    let of_key = if let AskedKey::Some(key) = key { Some(key) } else { None };
    let rule = rules.hold(rule, of_key, *holds != Holds::Cost, is_one_of_several)?;
    let least = if *holds == Holds::Time { (*cost).min(1) } else { *cost };
    let refuses = matches!(key, AskedKey::Missing) || least > rule.limit();
    if rule.is_shadow() && refuses && !rule.has_fault() {
        if is_first {
            observe::refused_in_shadow(&rule);
        }
        return None;
    }
    Some(rule)
}
