//! One call on its way: from what is asked, through the store, to a permit or a refusal.

use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use smallvec::SmallVec;

use crate::{
    Algorithm, Clock, CounterName, Decision, Key, OnStoreError, Permit, RequestPerMinute, Rule,
    algorithm::{Ask, Taken},
    guard::Known,
    key::Fingerprint,
    limiter::{Held, no_answer, refusal},
    memory::Memory,
    store::{Batch, Charge, Charges, Reply, Request, Store as _, StoreError},
    wait::Refused,
};

/// What a caller asks for, and of whom.
pub(crate) struct Call {
    limiter: Held,
    asked: SmallVec<[Asked; 1]>,
    manner: Manner,
    /// If it is ready to wait.
    arrival: Option<Arrival>,
}

/// One charge as a caller asks for it.
#[derive(Debug)]
pub struct Asked {
    pub(crate) rule: Rule,
    pub(crate) key: AskedKey,
    pub(crate) cost: u64,
}

#[derive(Debug)]
pub(crate) enum AskedKey {
    Some(Key),
    /// One counter for all.
    Shared,
    /// A missing key, that is refused.
    Missing,
    /// A missing key, that is let through.
    Skip,
}

/// How a call wants to be treated.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Manner {
    pub(crate) on_limit: OnLimit,
    pub(crate) on_store_error: Option<OnStoreError>,
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

/// When a caller came who is ready to wait, and when it will have waited enough.
#[derive(Clone, Copy)]
struct Arrival {
    ticket: u64,
    give_up: Option<Duration>,
}

/// What comes of one question to the store.
#[allow(clippy::large_enum_variant)] // made and taken apart at once, and most are permits
enum Verdict {
    /// And when the call may run, if not at once.
    Permit(Permit, Option<Duration>),
    /// Waiting helps; the counter that asks for the longest wait.
    Exceeded(RequestPerMinute, CounterName),
    Refused(RequestPerMinute),
}

type Answer = Result<Permit, RequestPerMinute>;
type Pending = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// A permit whose time has not come. Dropped, it is given back.
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
    One(Asked, Manner),
    Several(Vec<Asked>, Manner),
    Pending(Pending),
    Done,
}

impl Call {
    /// Decides when it is first polled.
    #[inline]
    pub(crate) fn decide_one(limiter: Held, rule: Rule, key: AskedKey, cost: u64, manner: Manner) -> Deciding {
        Deciding { limiter: Some(limiter), state: State::One(Asked { rule, key, cost }, manner) }
    }

    /// Decides when it is first polled.
    pub(crate) fn decide(limiter: Held, asked: Vec<Asked>, manner: Manner) -> Deciding {
        Deciding { limiter: Some(limiter), state: State::Several(asked, manner) }
    }

    /// The answer of a store that has it at once, or the way to it.
    fn start(mut self) -> Result<Answer, Pending> {
        self.arrival = self.arrive();
        let charges = match self.charges() {
            Ok(charges) => charges,
            Err(refused) => return Ok(Err(refused)),
        };
        let Some(store) = self.limiter.store().filter(|_| !charges.is_empty()) else {
            return Ok(Ok(Permit::free(&charges)));
        };
        if let Some(arrival) = self.arrival
            && let Some(counter) = self.limiter.lines().ahead(&charges, arrival.ticket)
        {
            return Err(Box::pin(self.wait(arrival, counter, None)));
        }
        match store.decide(Request::new(charges, true).into()) {
            Reply::Ready(batch) => self.answer_or_wait(Ok(batch)),
            reply @ Reply::Pending(_) => Err(Box::pin(async move {
                let batch = self.limiter.within_deadline(reply).await;
                match self.answer_or_wait(batch) {
                    Ok(answer) => answer,
                    Err(waiting) => waiting.await,
                }
            })),
        }
    }

    fn answer_or_wait(self, batch: Result<Batch, StoreError>) -> Result<Answer, Pending> {
        match (self.conclude(batch, true), self.arrival) {
            (Verdict::Exceeded(refusal, counter), Some(arrival)) => {
                let refused = self.refused(refusal);
                Err(Box::pin(self.wait(arrival, counter, Some(refused))))
            }
            (Verdict::Permit(permit, Some(at)), _) => Err(Box::pin(async move { self.sleep_until(at, permit).await })),
            (Verdict::Permit(permit, None), _) => Ok(Ok(permit)),
            (Verdict::Exceeded(refused, _) | Verdict::Refused(refused), _) => Ok(Err(refused)),
        }
    }

    fn arrive(&self) -> Option<Arrival> {
        let OnLimit::Wait(longest) = self.manner.on_limit else { return None };
        let give_up = longest.map(|longest| self.clock().now().saturating_add(longest));
        Some(Arrival { ticket: self.limiter.lines().ticket(), give_up })
    }

    /// Waits in the lines of the counters that refuse, one after the other, until none does.
    async fn wait(
        self,
        Arrival { ticket, give_up }: Arrival,
        mut counter: CounterName,
        mut refused: Option<Refused>,
    ) -> Answer {
        'lines: loop {
            let place = match self.limiter.lines().join(counter, ticket, refused.as_ref(), give_up) {
                Ok(place) => place,
                Err(theirs) => return Err(self.last_word(refused.or(theirs)).await),
            };
            loop {
                if !in_time(self.clock(), give_up, place.first()).await {
                    return Err(self.last_word(place.last().or(refused)).await);
                }
                if let Some(Refused { ready_at, .. }) = refused.take() {
                    self.clock().sleep_until(ready_at).await;
                    if !place.is_first() {
                        continue; // an earlier caller came over from another line
                    }
                }
                let charges = self.charges()?;
                if let Some(other) = self.limiter.lines().ahead(&charges, ticket) {
                    counter = other; // somebody who came earlier waits for another of our counters
                    continue 'lines;
                }
                match self.ask(charges, true).await {
                    Verdict::Exceeded(refusal, by) => {
                        let latest = self.refused(refusal);
                        if give_up.is_some_and(|give_up| latest.ready_at > give_up) {
                            return Err(self.last_word(Some(latest)).await);
                        }
                        refused = Some(latest.clone());
                        if by != *place.counter() {
                            counter = by;
                            continue 'lines;
                        }
                        place.refused(latest);
                    }
                    Verdict::Permit(permit, None) => return Ok(permit),
                    Verdict::Permit(permit, Some(at)) => {
                        drop(place); // from here on its slot keeps the order
                        return self.sleep_until(at, permit).await;
                    }
                    Verdict::Refused(refused) => return Err(refused),
                }
            }
        }
    }

    async fn sleep_until(&self, at: Duration, permit: Permit) -> Answer {
        let mut slot = Slot(Some(permit));
        self.clock().sleep_until(at).await;
        slot.0.take().ok_or_else(|| refusal(&self.rule(), no_answer()))
    }

    fn refused(&self, refusal: RequestPerMinute) -> Refused {
        let wait = refusal.retry_after().unwrap_or_default();
        Refused { refusal, ready_at: self.clock().now().saturating_add(wait) }
    }

    async fn ask(&self, charges: Charges, consume: bool) -> Verdict {
        let Some(store) = self.limiter.store() else { return Verdict::Permit(Permit::free(&charges), None) };
        let reply = store.decide(Request::new(charges, consume).into());
        self.conclude(self.limiter.within_deadline(reply).await, consume)
    }

    /// What a caller hears who stops waiting.
    async fn last_word(&self, refused: Option<Refused>) -> RequestPerMinute {
        let now = self.clock().now();
        if let Some(refused) = refused
            && refused.ready_at > now
        {
            return refused.at(now);
        }
        // Nothing is known that still holds, so the store is asked; those ahead go first all the same.
        let charges = match self.charges() {
            Ok(charges) => charges,
            Err(refused) => return refused,
        };
        match self.ask(charges, false).await {
            Verdict::Exceeded(refused, _) | Verdict::Refused(refused) => refused,
            Verdict::Permit(permit, _) => {
                let soon = Some(Duration::from_millis(1));
                let decision = Decision::new(permit.limit(), permit.remaining(), permit.reset_after(), soon);
                RequestPerMinute::exceeded(&self.rule(), 1, &decision)
            }
        }
    }

    /// What the call would charge; checked, so that a store sees only what it can decide.
    fn charges(&self) -> Result<Charges, RequestPerMinute> {
        let mut charges = Charges::default();
        let give_up = self.arrival.and_then(|arrival| arrival.give_up);
        let longest_wait = give_up.map(|give_up| give_up.saturating_sub(self.clock().now()));
        for Asked { rule, key, cost } in &self.asked {
            let key = match key {
                AskedKey::Some(key) => Some(key),
                AskedKey::Shared => None,
                AskedKey::Missing => return Err(RequestPerMinute::missing_key(rule)),
                AskedKey::Skip => continue,
            };
            let charge = self.limiter.charge(rule, key, *cost)?;
            charges.push(Charge { longest_wait: longest_wait.unwrap_or(Duration::MAX), ..charge });
        }
        if charges.len() > 1 {
            for Charge { rule, .. } in &*charges {
                let error = match rule.counted_by() {
                    Algorithm::LeakyBucket { .. } => {
                        "a LeakyBucket stands alone: it can't be one of several rules of a call"
                    }
                    _ if rule.lease_size() > 1 => {
                        "a rule with a lease stands alone: it can't be one of several rules of a call"
                    }
                    _ => continue,
                };
                return Err(refusal(rule, StoreError::misconfigured(error)));
            }
        }
        match charges.iter().find(|charge| charge.cost > charge.rule.limit()) {
            Some(charge) if self.limiter.store().is_some() => {
                Err(RequestPerMinute::never_fits(&charge.rule, charge.cost))
            }
            _ => Ok(charges),
        }
    }

    /// Turns what the store said, or that it said nothing, into a verdict.
    fn conclude(&self, batch: Result<Batch, StoreError>, consume: bool) -> Verdict {
        let error = match batch.map(Batch::into_first) {
            Ok(Some(Request { charges, outcome: Ok(fits), .. })) => {
                if fits {
                    self.limiter.succeeded(); // a server that can't write can still refuse
                }
                return self.verdict(charges, fits, CountedBy::Store);
            }
            Ok(Some(Request { outcome: Err(error), .. })) | Err(error) => error,
            Ok(None) => no_answer(),
        };
        if error.misconfigured {
            return Verdict::Refused(refusal(&self.rule(), error));
        }
        self.limiter.failed(&error);
        let settings = self.limiter.settings();
        match self.manner.on_store_error.unwrap_or(settings.on_store_error) {
            OnStoreError::Allow => match self.charges() {
                Ok(charges) => Verdict::Permit(Permit::free(&charges), None),
                Err(refused) => Verdict::Refused(refused),
            },
            OnStoreError::Local if !settings.is_local => self.decide_locally(&error, consume),
            OnStoreError::Local | OnStoreError::Deny => Verdict::Refused(refusal(&self.rule(), error)),
        }
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
            if charge.cost > share {
                let (prefix, cost) = (charge.rule.prefix(), charge.cost);
                let reason = format!(
                    "{error}; the share of `{prefix}` that this process may grant alone, as one of {instances} instances, is {share}, \
                     below the cost of {cost}"
                );
                return Verdict::Refused(refusal(&self.rule(), StoreError::unavailable(reason)));
            }
        }
        let Reply::Ready(batch) = self.limiter.local().decide(Request::new(charges, consume).into()) else {
            return Verdict::Refused(refusal(&self.rule(), no_answer()));
        };
        match batch.into_first() {
            Some(Request { charges, outcome: Ok(fits), .. }) => self.verdict(charges, fits, CountedBy::Local),
            Some(Request { outcome: Err(error), .. }) => Verdict::Refused(refusal(&self.rule(), error)),
            None => Verdict::Refused(refusal(&self.rule(), no_answer())),
        }
    }

    fn verdict(&self, charges: Charges, fits: bool, by: CountedBy) -> Verdict {
        if fits {
            let wait = charges.iter().map(|charge| charge.wait).max().filter(|wait| !wait.is_zero());
            let at = wait.map(|wait| self.clock().now().saturating_add(wait));
            return Verdict::Permit(Permit::new(self.limiter.clone(), charges, by), at);
        }
        let refusing = charges.iter().filter(|charge| charge.decision.retry_after().is_some());
        let Some(charge) = refusing.max_by_key(|charge| charge.decision.retry_after_ms) else {
            let error = StoreError::misconfigured("the store refused, and named no counter that did");
            return Verdict::Refused(refusal(&self.rule(), error));
        };
        let refused = RequestPerMinute::exceeded(&charge.rule, charge.cost, &charge.decision);
        if charge.wait > charge.longest_wait {
            return Verdict::Refused(refused); // a slot comes no sooner for a caller who waits to ask again
        }
        Verdict::Exceeded(refused, charge.counter.clone())
    }

    /// The rule that an error of the store is reported under.
    fn rule(&self) -> Rule {
        self.asked.first().map_or(Rule::new("", 0, Duration::ZERO), |asked| asked.rule)
    }

    fn clock(&self) -> &Clock {
        &self.limiter.settings().clock
    }
}

#[allow(clippy::inline_always)] // each copy of a permit on its way takes as long as all of the arithmetic
impl Deciding {
    /// Whether this is what most calls are: one rule, whose limit holds or not, in memory. It can be charged without a counter's name and
    /// without lists.
    ///
    /// What would have to wait, what is wrong and what can't fit goes the long way.
    #[inline(always)]
    fn in_memory(&self) -> Option<(&Memory, &Asked, Fingerprint)> {
        let (limiter, asked, key) = self.one_rule()?;
        Some((limiter.memory()?, asked, Fingerprint::new(&asked.rule, key)))
    }

    /// One rule, whose limit holds or not, and nobody waits.
    #[inline(always)]
    fn one_rule(&self) -> Option<(&Held, &Asked, Option<&Key>)> {
        let (Some(limiter), State::One(asked, Manner { on_limit: OnLimit::Reject, .. })) = (&self.limiter, &self.state)
        else {
            return None;
        };
        let Asked { rule, key, cost } = asked;
        let key = match key {
            AskedKey::Some(key) => Some(key),
            AskedKey::Shared => None,
            AskedKey::Missing | AskedKey::Skip => return None,
        };
        let can_fit = (1..=rule.limit()).contains(cost);
        if !can_fit || rule.has_fault() || matches!(rule.counted_by(), Algorithm::LeakyBucket { .. }) {
            return None;
        }
        Some((limiter, asked, key))
    }

    /// The answer, where the store need not be asked.
    fn known(&mut self) -> Option<Answer> {
        let (limiter, &Asked { rule, cost, .. }, key) = self.one_rule()?;
        let guarded = limiter.guarded()?;
        let name = Fingerprint::new(&rule, key);
        let known = guarded.known(name, &rule, cost)?;
        let limiter = self.limiter.take()?;
        self.state = State::Done;
        Some(match known {
            Known::Spent(spent) => Ok(Permit::leased(limiter, name, &rule, &spent)),
            Known::Denied(decision) => Err(RequestPerMinute::exceeded(&rule, cost, &decision)),
        })
    }

    #[inline(always)]
    fn in_window(&self) -> Option<(Fingerprint, Taken)> {
        let (memory, Asked { rule, cost, .. }, name) = self.in_memory()?;
        let is_window = matches!(rule.counted_by(), Algorithm::FixedWindow { .. });
        if is_window { Some((name, memory.take_window(name, rule, *cost)?)) } else { None }
    }

    /// The answer of the memory store to one rule.
    #[inline(always)]
    fn answer(&mut self, name: Fingerprint, taken: &Taken) -> Poll<Answer> {
        let (Some(limiter), State::One(Asked { rule, cost, .. }, _)) = (self.limiter.take(), &self.state) else {
            panic!("one rule was decided, and there was none")
        };
        Poll::Ready(if taken.fits() {
            Ok(Permit::in_memory(limiter, name, rule, *cost, taken))
        } else {
            Err(RequestPerMinute::exceeded(rule, *cost, &taken.decision(rule)))
        })
    }

    /// All that is not a fixed window in memory that is stored.
    #[inline(never)]
    fn poll_other(&mut self, context: &mut Context<'_>) -> Poll<Answer> {
        if let Some((memory, Asked { rule, cost, .. }, name)) = self.in_memory()
            // Where there is no room, the long way says what becomes of the call; nothing was charged.
            && let Ok(taken) = memory.take(name, &Ask { rule, cost: *cost, longest_wait_ms: u64::MAX })
        {
            return self.answer(name, &taken);
        }
        if let Some(answer) = self.known() {
            return Poll::Ready(answer);
        }
        if let Some(limiter) = self.limiter.take() {
            let (asked, manner) = match mem::replace(&mut self.state, State::Done) {
                State::One(asked, manner) => ([asked].into(), manner),
                State::Several(asked, manner) => (asked.into(), manner),
                State::Pending(_) | State::Done => panic!("a call was pending before anybody was asked"),
            };
            match (Call { limiter, asked, manner, arrival: None }).start() {
                Ok(answer) => return Poll::Ready(answer),
                Err(pending) => self.state = State::Pending(pending),
            }
        }
        match &mut self.state {
            State::Pending(pending) => pending.as_mut().poll(context),
            State::One(..) | State::Several(..) | State::Done => panic!("`Deciding` polled after it was done"),
        }
    }
}

impl Future for Deciding {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        match self.in_window() {
            Some((name, taken)) => self.answer(name, &taken),
            None => self.poll_other(context),
        }
    }
}

impl fmt::Debug for Deciding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deciding").finish_non_exhaustive()
    }
}

/// Whether the future was done before the clock showed `give_up`.
async fn in_time(clock: &Clock, give_up: Option<Duration>, done: impl Future<Output = ()>) -> bool {
    let Some(give_up) = give_up else {
        done.await;
        return true;
    };
    tokio::select! {
        biased;
        () = done => true,
        () = clock.sleep_until(give_up) => false,
    }
}
