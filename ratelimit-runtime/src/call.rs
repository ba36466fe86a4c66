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

#[cfg(feature = "redis")]
use crate::redis::Share;
use crate::{
    Algorithm, Clock, CounterName, Decision, Key, OnStoreError, Permit, RequestPerMinute, Rule,
    algorithm::{Ask, TakenWindow, Window},
    guard::Known,
    key::Fingerprint,
    limiter::{Held, Settings, no_answer, refusal},
    observe,
    store::{Batch, Charge, Charges, Reply, Request, Store as _, StoreError},
    wait::Refused,
};
#[cfg(not(feature = "redis"))]
use std::convert::Infallible as Share;

/// What a caller asks for, and of whom.
pub(crate) struct Call {
    limiter: Held,
    asked: SmallVec<[Asked; 1]>,
    /// Whether one rule was asked for, whatever became of it.
    alone: bool,
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

/// What is left of a question when rules that are only tried out have refused: what they said, and the charges of the others.
struct Shadowed {
    said: Decision,
    rest: Charges,
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
    /// And its share, where many ask a server at once.
    One(Asked, Manner, Option<Share>),
    Pending(Pending),
    Done,
}

impl Call {
    /// Decides when it is first polled.
    #[inline(always)]
    #[allow(clippy::inline_always)] // or a rule is copied twice, which takes as long as a lock
    pub(crate) fn decide_one(limiter: Held, rule: &Rule, key: AskedKey, cost: u64, manner: Manner) -> Deciding {
        Deciding { limiter: Some(limiter), state: State::One(Asked { rule: *rule, key, cost }, manner, None) }
    }

    /// Decides when it is first polled.
    pub(crate) fn decide(limiter: Held, asked: Vec<Asked>, manner: Manner) -> Deciding {
        let call = Self { limiter, asked: asked.into(), alone: false, manner, arrival: None };
        let answer = async move {
            match call.start() {
                Ok(answer) => answer,
                Err(pending) => pending.await,
            }
        };
        Deciding { limiter: None, state: State::Pending(Box::pin(answer)) }
    }

    /// The answer of a store that has it at once, or the way to it.
    fn start(mut self) -> Result<Answer, Pending> {
        self.arrival = self.arrive();
        self.asked.retain(|asked| is_to_be_asked(self.limiter.settings(), asked));
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
        match self.conclude(batch, true) {
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

    fn act_on(self, verdict: Verdict) -> Result<Answer, Pending> {
        match (verdict, self.arrival) {
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
        mut self,
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
                self.asked.retain(|asked| is_to_be_asked(self.limiter.settings(), asked));
                let charges = self.charges()?;
                if charges.is_empty() {
                    return Ok(Permit::free(&charges));
                }
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
        match self.conclude(self.limiter.within_deadline(reply).await, consume) {
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
    fn conclude(&self, batch: Result<Batch, StoreError>, consume: bool) -> Result<Verdict, Box<Shadowed>> {
        let error = match batch.map(Batch::into_first) {
            Ok(Some(Request { charges, outcome: Ok(fits), .. })) => {
                if fits {
                    self.limiter.succeeded(); // a server that can't write can still refuse
                }
                return self.verdict(charges, fits, consume, CountedBy::Store);
            }
            Ok(Some(Request { outcome: Err(error), .. })) | Err(error) => error,
            Ok(None) => no_answer(),
        };
        if error.misconfigured {
            return Ok(Verdict::Refused(refusal(&self.rule(), error)));
        }
        self.limiter.failed(&error);
        let settings = self.limiter.settings();
        let policy = self.manner.on_store_error.unwrap_or(settings.on_store_error);
        #[cfg(feature = "config")]
        let policy = settings.on_store_error_of(self.asked.iter().map(|asked| asked.rule)).unwrap_or(policy);
        observe::decided_without_store(policy);
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
        if !error.misconfigured && self.asked.iter().all(|asked| asked.rule.is_shadow()) {
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
                return Verdict::Refused(refusal(&self.rule(), no_answer()));
            };
            let verdict = match batch.into_first() {
                Some(Request { charges, outcome: Ok(fits), .. }) => {
                    self.verdict(charges, fits, consume, CountedBy::Local)
                }
                Some(Request { outcome: Err(error), .. }) => Ok(self.undecided(error)),
                None => Ok(Verdict::Refused(refusal(&self.rule(), no_answer()))),
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

    fn verdict(&self, charges: Charges, fits: bool, consume: bool, by: CountedBy) -> Result<Verdict, Box<Shadowed>> {
        if fits {
            if consume {
                charges.iter().for_each(|charge| observe::admitted(&charge.rule, charge.decision.remaining));
            }
            let holding = charges.iter().filter(|charge| !charge.rule.is_shadow());
            let wait = holding.map(|charge| charge.wait).max().filter(|wait| !wait.is_zero());
            let at = wait.map(|wait| self.clock().now().saturating_add(wait));
            return Ok(Verdict::Permit(Permit::new(self.limiter.clone(), charges, by, self.alone), at));
        }
        let is_over = |charge: &Charge| charge.decision.retry_after().is_some();
        let refusing = charges.iter().filter(|charge| is_over(charge));
        let weight = |charge: &&Charge| (!charge.rule.is_shadow(), charge.decision.retry_after_ms);
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
        let refused = RequestPerMinute::exceeded(&charge.rule, charge.cost, &charge.decision);
        if charge.wait > charge.longest_wait {
            return Ok(Verdict::Refused(refused)); // a slot comes no sooner for a caller who waits to ask again
        }
        Ok(Verdict::Exceeded(refused, charge.counter.clone()))
    }

    /// The rule that an error of the store is reported under.
    fn rule(&self) -> Rule {
        self.asked.first().map_or(Rule::new("", 0, Duration::ZERO), |asked| asked.rule)
    }

    fn clock(&self) -> &Clock {
        &self.limiter.settings().clock
    }
}

impl Asked {
    /// What tells the counter from others, if it is sure that the call has one.
    #[inline(always)]
    #[allow(clippy::inline_always)] // the algorithm is known where it is called
    fn name(&self) -> Option<Fingerprint> {
        let key = match &self.key {
            AskedKey::Some(key) => Some(key),
            AskedKey::Shared => None,
            AskedKey::Missing | AskedKey::Skip => return None,
        };
        Some(Fingerprint::new_inline(&self.rule, key))
    }
}

impl Deciding {
    /// Whether this is what most calls are: one rule, whose limit holds or not, and nobody waits.
    #[inline]
    fn one_rule(&self) -> Option<(&Held, &Asked)> {
        match (&self.limiter, &self.state) {
            (Some(limiter), State::One(asked, Manner { on_limit: OnLimit::Reject, .. }, None)) => {
                Some((limiter, asked))
            }
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
        let memory = limiter.memory().filter(|_| limiter.settings().rules_are_as_written())?;
        let Asked { rule, cost, .. } = asked;
        let can_fit = (1..=rule.count()).contains(cost) && rule.count() <= Window::LARGEST_COUNT && !rule.is_shadow();
        if !can_fit || !matches!(rule.counted_by(), Algorithm::FixedWindow { .. }) {
            return None;
        }
        let taken = memory.take_window(asked.name()?, rule.count(), *cost)?;
        if taken.fits {
            observe::admitted(rule, taken.remaining);
        }
        Some(taken)
    }

    /// Charges any other counter in memory, or one that is not stored; or spends what was taken from another store, or says what it would say, where
    /// that is known and need not be asked; or asks it together with others.
    ///
    /// What would have to wait, what is wrong and what can't fit goes the long way.
    #[cfg_attr(not(feature = "redis"), allow(unused_variables))]
    fn take(&mut self, context: &mut Context<'_>) -> Option<Answer> {
        let (limiter, asked) = self.one_rule()?;
        let Asked { rule, cost, .. } = asked;
        let can_fit = (1..=rule.limit()).contains(cost);
        if !can_fit
            || rule.is_shadow()
            || rule.has_fault()
            || matches!(rule.counted_by(), Algorithm::LeakyBucket { .. })
        {
            return None;
        }
        if !limiter.settings().rules_are_as_written() {
            return None;
        }
        let name = asked.name()?;
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
                    return Some(Ok(Permit::leased(self.limiter.take()?, name, &rule, &spent)));
                }
                None => {}
            }
            #[cfg(feature = "redis")]
            {
                let charge = || {
                    let key = if let AskedKey::Some(key) = &asked.key { Some(key) } else { None };
                    Charge::new(*rule, CounterName::new(&limiter.settings().namespace, rule, key), *cost)
                };
                let joined = guarded.share(name, rule, *cost, charge, context.waker());
                if let State::One(_, _, share) = &mut self.state {
                    *share = joined;
                }
            }
            return None;
        };
        // Where there is no room, the long way says what becomes of the call; nothing was charged.
        let taken = memory.take(name, &Ask { rule, cost: *cost, longest_wait_ms: u64::MAX }).ok()?;
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
    fn poll_share(&mut self, context: &mut Context<'_>) -> Option<Answer> {
        let (Some(limiter), State::One(asked, _, Some(share))) = (&self.limiter, &mut self.state) else { return None };
        let Poll::Ready(told) = limiter.guarded()?.poll(share, context) else { return None };
        let error = match told {
            Some(Ok((look, _))) if !look.fits => {
                let refused = RequestPerMinute::exceeded(&asked.rule, asked.cost, &look.decision);
                observe::refused(&refused);
                return Some(Err(refused));
            }
            Some(Ok((look, receipt))) => {
                limiter.succeeded();
                observe::admitted(&asked.rule, look.decision.remaining);
                let decision = share.take_decision()?;
                return Some(Ok(Permit::shared(self.limiter.take()?, decision, look.decision, receipt)));
            }
            Some(Err(error)) => error,
            None => StoreError::late(limiter.settings().deadline),
        };
        let limiter = self.limiter.take()?;
        let State::One(asked, manner, _) = mem::replace(&mut self.state, State::Done) else { return None };
        match (Call { limiter, asked: [asked].into(), alone: true, manner, arrival: None }).answer_or_wait(Err(error)) {
            Ok(answer) => Some(answer.inspect_err(observe::refused)),
            Err(pending) => {
                self.state = State::Pending(pending);
                None
            }
        }
    }

    /// All that is not an admitted call of a fixed window in memory that is stored and open. `None` if there is no answer yet.
    #[inline(never)]
    fn decide(&mut self, refused: Option<&TakenWindow>, context: &mut Context<'_>, answer: &mut Option<Answer>) {
        *answer = match (refused, &self.state) {
            (Some(taken), State::One(Asked { rule, cost, .. }, ..)) => {
                let refused = RequestPerMinute::exceeded(rule, *cost, &taken.refusal(rule));
                observe::refused(&refused);
                Some(Err(refused))
            }
            #[cfg(feature = "redis")]
            (_, State::One(_, _, Some(_))) => self.poll_share(context),
            _ => self.take(context),
        };
        if answer.is_some() {
            self.limiter = None;
            self.state = State::Done;
            return;
        }
        if let State::One(_, _, None) = &self.state
            && let State::One(asked, manner, _) = mem::replace(&mut self.state, State::Done)
            && let Some(limiter) = self.limiter.take()
        {
            match (Call { limiter, asked: [asked].into(), alone: true, manner, arrival: None }).start() {
                Ok(now) => *answer = Some(now.inspect_err(observe::refused)),
                Err(pending) => self.state = State::Pending(pending),
            }
        }
        match &mut self.state {
            State::Pending(pending) => {
                if let Poll::Ready(now) = pending.as_mut().poll(context) {
                    *answer = Some(now.inspect_err(observe::refused));
                    self.state = State::Done;
                }
            }
            State::One(_, _, Some(_)) => {}
            State::One(_, _, None) | State::Done => assert!(answer.is_some(), "`Deciding` polled after it was done"),
        }
    }
}

impl Future for Deciding {
    type Output = Answer;

    #[inline(always)]
    #[allow(clippy::inline_always)] // see `Deciding::take_window`
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        let taken = self.take_window();
        if let Some(taken) = &taken
            && taken.fits
            && let State::One(Asked { rule, cost, .. }, ..) = &self.state
            && let (limit, period_ms, cost) = (rule.count(), rule.period_ms(), *cost)
            && let Some(limiter) = self.limiter.take()
        {
            return Poll::Ready(Ok(Permit::of_window(limiter, limit, period_ms, cost, taken)));
        }
        let mut answer = None;
        self.decide(taken.as_ref(), context, &mut answer);
        match answer {
            Some(answer) => Poll::Ready(answer),
            None => Poll::Pending,
        }
    }
}

impl fmt::Debug for Deciding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deciding").finish_non_exhaustive()
    }
}

/// Takes the rule as it holds now, and says whether the store is to be asked for it. One that is only tried out is not, where it would refuse
/// without the store.
fn is_to_be_asked(settings: &Settings, Asked { rule, key, cost }: &mut Asked) -> bool {
    let of_key = if let AskedKey::Some(key) = &*key { Some(key) } else { None };
    let Some(holds) = settings.hold(rule, of_key) else { return false };
    *rule = holds;
    let refuses = matches!(key, AskedKey::Missing) || *cost > rule.limit();
    if rule.is_shadow() && refuses && !rule.has_fault() {
        observe::refused_in_shadow(rule);
        return false;
    }
    true
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
