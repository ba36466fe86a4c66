//! The future of a call: an immediate attempt, a ticket in a batch, or the general way.

use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use super::{
    ask::AcquireResult,
    core::{Engine, EngineRef},
    general::BoxedAcquire,
    permit::{Permit, Receipt},
    receipt::CounterReceipt,
    request::{AcquireOptions, AcquireRequest, ChargeRequest, OnLimit, RequestKey},
};
use crate::{
    Algorithm, RequestPerMinute, Rule, algorithm::capabilities, counter::CounterId, decision::Outcome, observe,
    rule::limits::LARGEST_WINDOW, store::ChargeQuery,
};
#[cfg(feature = "redis")]
use crate::{
    redis::BatchTicket,
    store::{Charge, StoreError},
};
#[cfg(not(feature = "redis"))]
use std::convert::Infallible as BatchTicket;

/// A call that is decided when it is awaited.
///
/// A named type without borrows is cheap for each function that awaits it. It compiles fast, and it
/// takes no more room than the call needs before the store is asked.
pub struct Acquire {
    /// The engine, until the call is decided or handed on.
    engine: Option<EngineRef>,
    state: AcquireState,
}

enum AcquireState {
    /// One charge, and its ticket while it travels in a batch with other callers' charges.
    Single(SingleCharge, AcquireOptions, Option<BatchTicket>),
    Pending(BoxedAcquire),
    Done,
}

/// A charge that holds nothing.
struct SingleCharge {
    rule: Rule,
    key: RequestKey,
    cost: u64,
}

impl Acquire {
    /// One charge, decided when the future is first polled.
    #[inline(always)]
    #[allow(clippy::inline_always)] // otherwise a rule is copied twice, which costs as much as a lock
    pub(crate) fn single(engine: EngineRef, rule: &Rule, key: RequestKey, cost: u64, options: AcquireOptions) -> Self {
        let charge = SingleCharge { rule: *rule, key, cost };
        Self { engine: Some(engine), state: AcquireState::Single(charge, options, None) }
    }

    /// Several charges or holds, decided when the future is first polled.
    pub(crate) fn all(
        engine: EngineRef,
        charges: Vec<ChargeRequest>,
        options: AcquireOptions,
        on_busy: OnLimit,
    ) -> Self {
        let call = AcquireRequest::new(engine, charges, options, on_busy);
        let answer = async move {
            match call.start() {
                Ok(answer) => answer,
                Err(pending) => pending.await,
            }
        };
        Self { engine: None, state: AcquireState::Pending(Box::pin(answer)) }
    }
}

impl Acquire {
    /// The common case: one rule, no ticket yet, and a caller who does not wait.
    #[inline]
    fn single_charge(&self) -> Option<(&EngineRef, &SingleCharge)> {
        match (&self.engine, &self.state) {
            (Some(engine), AcquireState::Single(charge, AcquireOptions { waits: false, .. }, None)) => {
                Some((engine, charge))
            }
            _ => None,
        }
    }

    /// Charges a fixed window that is stored and open, which is what most calls do. `None` if there
    /// is none; then nothing has changed.
    ///
    /// The code that is compiled into each caller ends here. This returns the numbers only, and
    /// `poll` makes the permit. Most callers only check that there is a permit. Making and moving
    /// one takes as long as all of the arithmetic.
    #[inline(never)]
    fn charge_window(&self) -> Option<(CounterId, Outcome)> {
        let (engine, charge) = self.single_charge()?;
        charge_window(engine, &charge.rule, &charge.key, charge.cost)
    }

    /// Decides the other charges that need no general way:
    /// - A counter in memory is charged, whether or not it is stored already.
    /// - For another store, prefetched quota is spent, or a cached denial is returned.
    /// - With Redis, the charge otherwise joins a batch with those of other callers.
    ///
    /// `None` if the charge joined a batch, and has a ticket now. `None` also leaves a call to the
    /// general way, if it would wait, is misconfigured, or can't fit.
    #[cfg_attr(not(feature = "redis"), allow(unused_variables))]
    fn try_charge(&mut self, context: &mut Context<'_>) -> Option<AcquireResult> {
        let (engine, charge) = self.single_charge()?;
        let SingleCharge { rule, cost, .. } = charge;
        let can_fit = (1..=rule.limit()).contains(cost);
        if !can_fit
            || rule.is_shadow()
            || rule.has_fault()
            || capabilities(rule.algorithm()).has_slots
            || rule.is_concurrent()
        {
            return None;
        }
        if !engine.settings().rules_are_as_written() || !engine.settlements().is_empty() {
            return None;
        }
        let id = counter_id(rule, &charge.key)?;
        let Some(memory) = engine.memory() else {
            let guard = engine.guard()?;
            if let Some(outcome) = guard.answer_locally(id, rule, *cost) {
                let receipt = CounterReceipt::new(id, rule, *cost, outcome.receipt);
                let (rule, cost) = (*rule, *cost);
                let engine = self.engine.take()?;
                return Some(resolve(&rule, cost, &outcome, Receipt::Prefetched(engine, receipt)));
            }
            #[cfg(feature = "redis")]
            {
                let make_charge = || {
                    let key = if let RequestKey::Some(key) = &charge.key { Some(key) } else { None };
                    Charge::new(*rule, crate::CounterName::new(&engine.settings().namespace, rule, key), *cost)
                };
                let joined = guard.try_charge(id, rule, *cost, make_charge, context.waker());
                if let AcquireState::Single(_, _, ticket) = &mut self.state {
                    *ticket = joined;
                }
            }
            return None;
        };
        // If memory has no room for the counter, the general way resolves the call. Nothing was
        // charged.
        let query = ChargeQuery { rule, cost: *cost, longest_wait_ms: u64::MAX, hold: None };
        let outcome = memory.charge(id, &query).ok()?;
        let receipt = CounterReceipt::new(id, rule, *cost, outcome.receipt);
        let (rule, cost) = (*rule, *cost);
        let engine = self.engine.take()?;
        Some(resolve(&rule, cost, &outcome, Receipt::InMemory(engine, receipt)))
    }

    /// Polls the ticket of a charge that travels in a batch.
    #[cfg(feature = "redis")]
    #[inline(never)]
    fn poll_ticket(&mut self, context: &mut Context<'_>) -> Poll<AcquireResult> {
        let (Some(engine), AcquireState::Single(SingleCharge { rule, cost, .. }, _, Some(ticket))) =
            (&self.engine, &mut self.state)
        else {
            panic!("`Acquire` polled after it was done");
        };
        let polled = ready!(engine.guard().map_or(Poll::Ready(None), |guard| guard.poll_charge(ticket, context)));
        let error = match polled {
            Some(Ok(outcome)) => {
                if outcome.fits() {
                    engine.record_success();
                }
                let (Some(entry), Some(engine)) = (ticket.take_entry(), self.engine.take()) else {
                    panic!("a ticket whose result was delivered has an entry");
                };
                let receipt = Receipt::Shared(engine, entry, outcome.receipt);
                return Poll::Ready(resolve(rule, *cost, &outcome, receipt));
            }
            Some(Err(error)) => error,
            None => StoreError::late(engine.settings().deadline),
        };
        if let AcquireState::Single(charge, options, _) = mem::replace(&mut self.state, AcquireState::Done)
            && let Some(engine) = self.engine.take()
        {
            match AcquireRequest::single(engine, charge.rule, charge.key, charge.cost, options)
                .resolve_or_wait(Err(error), std::time::Duration::ZERO)
            {
                Ok(answer) => return Poll::Ready(answer.inspect_err(observe::refused)),
                Err(pending) => self.state = AcquireState::Pending(pending),
            }
        }
        self.poll_slow(None, context)
    }

    /// Every call except an admitted one of a fixed window in memory that is stored and open.
    #[inline(never)]
    fn poll_slow(&mut self, denied: Option<&Outcome>, context: &mut Context<'_>) -> Poll<AcquireResult> {
        let answer = match (denied, &self.state) {
            (Some(outcome), AcquireState::Single(SingleCharge { rule, cost, .. }, ..)) => {
                Some(Err(exceeded(rule, *cost, outcome)))
            }
            _ => self.try_charge(context),
        };
        if let Some(answer) = answer {
            self.engine = None;
            self.state = AcquireState::Done;
            return Poll::Ready(answer);
        }
        if let AcquireState::Single(_, _, None) = &self.state
            && let AcquireState::Single(charge, options, _) = mem::replace(&mut self.state, AcquireState::Done)
            && let Some(engine) = self.engine.take()
        {
            match AcquireRequest::single(engine, charge.rule, charge.key, charge.cost, options).start() {
                Ok(answer) => return Poll::Ready(answer.inspect_err(observe::refused)),
                Err(pending) => self.state = AcquireState::Pending(pending),
            }
        }
        match &mut self.state {
            AcquireState::Pending(pending) => {
                let answer = ready!(pending.as_mut().poll(context));
                self.state = AcquireState::Done;
                Poll::Ready(answer.inspect_err(observe::refused))
            }
            AcquireState::Single(_, _, Some(_)) => Poll::Pending,
            AcquireState::Single(_, _, None) | AcquireState::Done => panic!("`Acquire` polled after it was done"),
        }
    }
}

impl Future for Acquire {
    type Output = AcquireResult;

    #[inline(always)]
    #[allow(clippy::inline_always)] // see `Acquire::charge_window`
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<AcquireResult> {
        #[cfg(feature = "redis")]
        if let AcquireState::Single(_, _, Some(_)) = &self.state {
            return self.poll_ticket(context);
        }
        let has_memory = self.engine.as_ref().is_some_and(|engine| engine.memory().is_some());
        let charged = if has_memory { self.charge_window() } else { None };
        let Self { engine, state } = &mut *self;
        if let Some((id, outcome)) = &charged
            && outcome.fits()
            && let AcquireState::Single(SingleCharge { rule, cost, .. }, ..) = state
            && let Some(engine) = engine.take()
        {
            let receipt = Receipt::InMemory(engine, CounterReceipt::new(*id, rule, *cost, outcome.receipt));
            return Poll::Ready(Ok(Permit::new(rule.count(), outcome, receipt)));
        }
        self.poll_slow(charged.as_ref().map(|(_, outcome)| outcome), context)
    }
}

/// [`Acquire`] for a caller who does not need the permit.
#[derive(Debug)]
pub struct Admit(pub(crate) Acquire);

impl Future for Admit {
    type Output = Result<(), RequestPerMinute>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|answer| answer.map(drop))
    }
}

/// Decides a fixed window in memory that is stored and open, which is what most calls do. `None` if
/// there is none; then nothing has changed.
#[inline(never)]
pub(crate) fn try_acquire(
    engine: &Engine,
    rule: &Rule,
    key: &RequestKey,
    cost: u64,
) -> Option<Result<(), RequestPerMinute>> {
    let (_, outcome) = charge_window(engine, rule, key, cost)?;
    Some(if outcome.fits() { Ok(()) } else { Err(exceeded(rule, cost, &outcome)) })
}

/// Charges a fixed window that is stored and open. `None` if there is none; then nothing has
/// changed.
#[inline(always)]
#[allow(clippy::inline_always)] // otherwise the result is copied
fn charge_window(engine: &Engine, rule: &Rule, key: &RequestKey, cost: u64) -> Option<(CounterId, Outcome)> {
    let memory = engine.memory().filter(|_| engine.settings().rules_are_as_written())?;
    let can_fit = (1..=rule.count()).contains(&cost) && rule.count() <= LARGEST_WINDOW && !rule.is_shadow();
    if !can_fit || rule.prefetch() == 0 || !matches!(rule.algorithm(), Algorithm::FixedWindow { .. }) {
        return None;
    }
    let id = counter_id(rule, key)?;
    let outcome = memory.charge_open_window(id, rule.count(), cost)?;
    if outcome.fits() {
        observe::admitted(rule, outcome.remaining);
    }
    Some((id, outcome))
}

/// Turns the outcome of an attempt into a permit or a refusal.
fn resolve(rule: &Rule, cost: u64, outcome: &Outcome, receipt: Receipt) -> AcquireResult {
    if !outcome.fits() {
        return Err(exceeded(rule, cost, outcome));
    }
    observe::admitted(rule, outcome.remaining);
    Ok(Permit::new(rule.limit(), outcome, receipt))
}

#[cold]
#[inline(never)]
fn exceeded(rule: &Rule, cost: u64, outcome: &Outcome) -> RequestPerMinute {
    let refusal = RequestPerMinute::exceeded(rule, cost, &outcome.decision(rule.limit()));
    observe::refused(&refusal);
    refusal
}

/// The id of the counter. `None` if the key is missing or the rule is skipped.
#[inline(always)]
#[allow(clippy::inline_always)] // the algorithm is known at each call site
fn counter_id(rule: &Rule, key: &RequestKey) -> Option<CounterId> {
    let key = match key {
        RequestKey::Some(key) => Some(key),
        RequestKey::Shared => None,
        RequestKey::Missing | RequestKey::Skip => return None,
    };
    Some(CounterId::new_inline(rule, key))
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire").finish_non_exhaustive()
    }
}
