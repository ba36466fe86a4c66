//! The future of a call: an immediate attempt, a ticket in a batch, or the general way.

use std::{
    borrow::Cow,
    fmt,
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use smallvec::SmallVec;

use super::{
    ask::AcquireResult,
    backend_kind::Ticket,
    core::{Engine, EngineRef},
    general::BoxedAcquire,
    permit::{Permit, Receipt},
    request::{AcquireOptions, AcquireRequest, ChargeRequest, CostKind, OnLimit, RequestKey},
};
use crate::{
    Key, RequestPerMinute, Rule,
    algorithm::capabilities,
    backend::{Attempt, Backend as _, CounterReceipt, Decided, Query, Waiter},
    decision::Outcome,
    observe,
};

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
    Single(SingleCharge, AcquireOptions, Option<Ticket>),
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
    /// Attempts to charge, unless the caller would wait. `false` if the charge has a ticket now, or
    /// if the general way has to resolve the call.
    ///
    /// The code that is compiled into each caller ends here. This writes the numbers only, and
    /// `poll` makes the permit. Most callers only check that there is a permit. Making and moving
    /// one takes as long as all of the arithmetic.
    #[inline(never)]
    fn try_charge(&mut self, context: &mut Context<'_>, decided: &mut Decided) -> bool {
        let (Some(engine), AcquireState::Single(charge, AcquireOptions { waits: false, .. }, ticket)) =
            (&self.engine, &mut self.state)
        else {
            return false;
        };
        let Some(key) = counter_key(&charge.key) else { return false };
        let Some(rule) = engine.settings().applied(&charge.rule, key) else { return false };
        let waiter = Waiter { waker: context.waker(), ticket };
        if !matches!(try_charge(engine, &rule, key, charge.cost, Some(waiter), decided), Attempt::Done) {
            return false;
        }
        // The permit or the refusal is about the rule that was charged.
        if let Cow::Owned(rule) = rule {
            charge.rule = rule;
        }
        true
    }

    /// Polls the ticket of a charge that travels in a batch.
    #[inline(never)]
    fn poll_ticket(&mut self, context: &mut Context<'_>) -> Poll<AcquireResult> {
        let (Some(engine), AcquireState::Single(_, _, Some(ticket))) = (&self.engine, &mut self.state) else {
            panic!("`Acquire` polled after it was done");
        };
        let result = ready!(engine.backend().poll_charge(ticket, context));
        let (AcquireState::Single(charge, options, _), Some(engine)) =
            (mem::replace(&mut self.state, AcquireState::Done), self.engine.take())
        else {
            panic!("`Acquire` polled after it was done");
        };
        match result {
            Ok((outcome, receipt)) => {
                if outcome.fits() {
                    engine.record_success();
                }
                let (rule, cost) = receipt.rule_and_cost().unwrap_or((charge.rule, charge.cost));
                let receipt = Receipt::Backend(engine, receipt);
                Poll::Ready(resolve(&rule, cost, &outcome, receipt))
            }
            Err(error) => {
                let mut request = AcquireRequest::single(engine, charge.rule, charge.key, charge.cost, options);
                request.apply_rules(false);
                self.go_on(request.resolve_or_wait(Err(error), Duration::ZERO), context)
            }
        }
    }

    /// Every call except an admitted one that the backend has decided at once.
    #[inline(never)]
    fn poll_slow(&mut self, denied: Option<&Outcome>, context: &mut Context<'_>) -> Poll<AcquireResult> {
        if let (Some(outcome), AcquireState::Single(charge, ..)) = (denied, &self.state) {
            let refusal = exceeded(&charge.rule, charge.cost, outcome);
            (self.engine, self.state) = (None, AcquireState::Done);
            return Poll::Ready(Err(refusal));
        }
        match mem::replace(&mut self.state, AcquireState::Done) {
            state @ AcquireState::Single(_, _, Some(_)) => {
                self.state = state;
                Poll::Pending
            }
            AcquireState::Single(SingleCharge { rule, key, cost }, options, None) => {
                let Some(engine) = self.engine.take() else { panic!("`Acquire` polled after it was done") };
                self.go_on(AcquireRequest::single(engine, rule, key, cost, options).start(), context)
            }
            AcquireState::Pending(pending) => self.go_on(Err(pending), context),
            AcquireState::Done => panic!("`Acquire` polled after it was done"),
        }
    }

    /// Ends with the result of the general way, or polls it.
    fn go_on(&mut self, answer: Result<AcquireResult, BoxedAcquire>, context: &mut Context<'_>) -> Poll<AcquireResult> {
        let polled = match answer {
            Ok(answer) => Poll::Ready(answer),
            Err(mut pending) => {
                let polled = pending.as_mut().poll(context);
                if polled.is_pending() {
                    self.state = AcquireState::Pending(pending);
                }
                polled
            }
        };
        polled.map(|answer| answer.inspect_err(observe::refused))
    }
}

impl Future for Acquire {
    type Output = AcquireResult;

    #[inline(always)]
    #[allow(clippy::inline_always)] // see `Acquire::try_charge`
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let AcquireState::Single(_, _, Some(_)) = &self.state {
            return self.poll_ticket(context);
        }
        let mut decided = Decided::undecided();
        if !self.try_charge(context, &mut decided) {
            return self.poll_slow(None, context);
        }
        let (Decided { id, outcome }, Self { engine, state }) = (decided, &mut *self);
        if outcome.fits()
            && let AcquireState::Single(SingleCharge { rule, cost, .. }, ..) = state
            && let Some(engine) = engine.take()
        {
            let receipt = engine.backend().receipt(CounterReceipt::new(id, rule, *cost, outcome.receipt));
            return Poll::Ready(Ok(Permit::new(rule.limit(), &outcome, Receipt::Backend(engine, receipt))));
        }
        self.poll_slow(Some(&outcome), context)
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

/// Attempts to charge without a future. `None` if one is needed.
#[inline(never)]
pub(crate) fn try_acquire(
    engine: &Engine,
    rule: &Rule,
    key: &RequestKey,
    cost: u64,
) -> Option<Result<(), RequestPerMinute>> {
    let key = counter_key(key)?;
    let rule = engine.settings().applied(rule, key)?;
    let mut decided = Decided::undecided();
    match try_charge(engine, &rule, key, cost, None, &mut decided) {
        Attempt::Done if decided.outcome.fits() => Some(Ok(())),
        Attempt::Done => Some(Err(exceeded(&rule, cost, &decided.outcome))),
        Attempt::Pending | Attempt::Unsupported => None,
    }
}

/// Attempts several charges without a future. False if nothing has changed, and one is needed.
#[inline(never)]
pub(crate) fn try_acquire_all(engine: &Engine, charges: &[ChargeRequest]) -> bool {
    let rules = engine.settings().rules_now();
    let mut applied = SmallVec::<[_; 2]>::new();
    for ChargeRequest { rule, key, cost, cost_kind } in charges {
        let (Some(key), CostKind::Fixed) = (counter_key(key), cost_kind) else { return false };
        let Some(rule) = rules.applied(rule, key, false, true) else { return false };
        if !can_be_attempted(engine, &rule, *cost) || rule.prefetch() > 1 {
            return false;
        }
        applied.push((rule, key, *cost));
    }
    let namespace = &engine.settings().namespace;
    let queries: SmallVec<[Query<'_>; 2]> =
        applied.iter().map(|(rule, key, cost)| Query { rule, key: *key, cost: *cost, namespace }).collect();
    let Some(outcomes) = engine.backend().try_charge_all(&queries) else { return false };
    for (query, outcome) in queries.iter().zip(outcomes) {
        observe::admitted(query.rule, outcome.remaining);
    }
    true
}

/// The one attempt on a charge. The general way decides what it does not:
///
/// - calls that are refused without the store, invalid rules and rules in shadow mode;
/// - holds, and calls that wait for a slot;
/// - calls after a hold that is still being settled;
/// - errors of the store.
#[inline(always)]
#[allow(clippy::inline_always)] // in each call
fn try_charge(
    engine: &Engine,
    rule: &Rule,
    key: Option<&Key>,
    cost: u64,
    waiter: Option<Waiter<'_, Ticket>>,
    decided: &mut Decided,
) -> Attempt {
    if !can_be_attempted(engine, rule, cost) {
        return Attempt::Unsupported;
    }
    let namespace = &engine.settings().namespace;
    let attempt = engine.backend().try_charge(&Query { rule, key, cost, namespace }, waiter, decided);
    if matches!(attempt, Attempt::Done) && decided.outcome.fits() {
        observe::admitted(rule, decided.outcome.remaining);
    }
    attempt
}

/// See [`try_charge`].
#[inline]
fn can_be_attempted(engine: &Engine, rule: &Rule, cost: u64) -> bool {
    let can_fit = (1..=rule.limit()).contains(&cost);
    let is_enforced = !rule.is_shadow() && !rule.has_fault();
    can_fit && is_enforced && capabilities(rule.algorithm()).decides_at_once() && engine.settlements().is_empty()
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

/// The key of the counter. `None` if the call has no key, and is refused or skips the rule.
#[inline]
#[allow(clippy::option_option)] // the inner one: one counter for all callers
fn counter_key(key: &RequestKey) -> Option<Option<&Key>> {
    match key {
        RequestKey::Some(key) => Some(Some(key)),
        RequestKey::Shared => Some(None),
        RequestKey::Missing | RequestKey::Skip | RequestKey::Invalid(_) => None,
    }
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire").finish_non_exhaustive()
    }
}
