//! The future of a call: an immediate attempt, a ticket in a batch, or the general way.

use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use super::{
    ask::AcquireResult,
    attempt::{Decided, exceeded, try_charge},
    backend_kind::Ticket,
    core::EngineRef,
    general::BoxedAcquire,
    options::{AcquireOptions, OnLimit},
    permit::{Permit, Receipt},
    refusal::refusal,
    request::{AcquireRequest, ChargeRequests, RequestKey},
    several::SeveralCharges,
};
use crate::{
    RequestPerMinute, Rule,
    backend::{Attempt, Backend as _, CounterReceipt, Query, Undecided, Waiter},
    background,
    clock::after,
    decision::PermitNumbers,
    observe,
    rule::call_kind::CallKind,
};

/// A call that is decided when it is awaited.
///
/// A named type without borrows is cheap for each function that awaits it. It compiles fast, and it
/// takes no more room than the call needs before the store is asked.
///
/// The rule comes first, and is not a part of the state. Behind padding it would be copied in
/// pieces that overlap, and the processor stalls when it reads them.
#[repr(C)]
pub struct Acquire {
    /// [`NO_RULE`] for several charges: their rules and costs are in the state.
    rule: Rule,
    cost: u64,
    options: AcquireOptions,
    state: AcquireState,
}

enum AcquireState {
    /// One charge. With a ticket, it travels in a batch with other callers' charges. The poll that decides it
    /// takes the engine: the rest stays as it is, since moving it takes as long as the arithmetic.
    Attempt {
        engine: Option<EngineRef>,
        key: RequestKey,
        ticket: Option<Ticket>,
    },
    Other(OtherState),
}

/// The states of rare calls. An enum of their own, so that to drop an attempt takes one test.
enum OtherState {
    /// Several charges or holds, before the first poll. The poll that decides them takes them out: the rest of the
    /// state stays as it is.
    All(Option<Box<SeveralCharges>>),
    Pending(BoxedAcquire),
    Done,
}

const NO_RULE: Rule = Rule::new("", 0, Duration::ZERO);

const POLLED_AGAIN: &str = "`Acquire` polled after it was done";

impl Acquire {
    /// One charge, decided when the future is first polled.
    #[inline(always)]
    #[allow(clippy::inline_always)] // otherwise a rule is copied twice, which costs as much as a lock
    pub(crate) fn single(engine: EngineRef, rule: &Rule, key: RequestKey, cost: u64, options: AcquireOptions) -> Self {
        Self { rule: *rule, cost, options, state: AcquireState::Attempt { engine: Some(engine), key, ticket: None } }
    }

    /// Several charges or holds, decided when the future is first polled. `fill` adds them.
    ///
    /// Inline, so that it is made where it is polled: a copy of it takes a tenth of the call.
    #[inline]
    pub(crate) fn all(
        engine: EngineRef,
        fill: impl FnOnce(&mut ChargeRequests),
        options: AcquireOptions,
        on_busy: OnLimit,
    ) -> Self {
        let call = SeveralCharges::new(engine, fill, on_busy);
        Self { rule: NO_RULE, cost: 0, options, state: AcquireState::Other(OtherState::All(Some(call))) }
    }

    /// Decides the call while this thread waits, for a caller that is not async.
    ///
    /// In memory, only a call that sleeps has to wait. All else waits on the background runtime,
    /// which no caller can stall or end.
    ///
    /// # Panics
    ///
    /// If it has to wait on a thread that runs async tasks.
    #[track_caller]
    pub fn block(mut self) -> AcquireResult {
        let is_in_memory = match &self.state {
            AcquireState::Attempt { engine, .. } => engine.as_ref().is_none_or(|engine| engine.guard().is_none()),
            AcquireState::Other(OtherState::All(Some(call))) => call.engine().guard().is_none(),
            AcquireState::Other(_) => false,
        };
        let rule = match &self.state {
            AcquireState::Other(OtherState::All(Some(call))) => *call.rule().unwrap_or(&self.rule),
            _ => self.rule,
        };
        if is_in_memory && let Poll::Ready(answer) = self.decide(&mut Context::from_waker(Waker::noop()), false) {
            return answer;
        }
        background::block_on(self).unwrap_or_else(|error| Err(refusal(&rule, error)).inspect_err(observe::refused))
    }
}

impl Acquire {
    /// Decides the call. With `awaits`, it polls what has to be awaited.
    #[inline(always)]
    #[allow(clippy::inline_always)] // `poll` is this
    fn decide(&mut self, context: &mut Context<'_>, awaits: bool) -> Poll<AcquireResult> {
        match &self.state {
            AcquireState::Attempt { engine: Some(engine), ticket: None, .. } if !self.options.waits => {
                if engine.settings().rules_may_differ() {
                    self.decide_applied(context, awaits)
                } else {
                    self.decide_by(None, context, awaits)
                }
            }
            AcquireState::Attempt { ticket: Some(_), .. } => self.poll_ticket(context),
            AcquireState::Other(OtherState::All(Some(_))) if !self.options.waits => {
                self.decide_several(context, awaits)
            }
            _ => self.poll_slow(awaits.then_some(context)),
        }
    }

    /// [`Acquire::decide`], by the rule as it applies now. A permit and a refusal are about that one.
    #[inline(never)]
    fn decide_applied(&mut self, context: &mut Context<'_>, awaits: bool) -> Poll<AcquireResult> {
        let rule = self.rule;
        let rules;
        let applied = match &self.state {
            AcquireState::Attempt { engine: Some(engine), key, .. } => {
                rules = engine.settings().rules_now();
                key.counter_key().and_then(|key| rules.applied(&rule, key, CallKind::default()))
            }
            _ => None,
        };
        match applied {
            Some(applied) => self.decide_by(Some(&applied), context, awaits),
            None => self.poll_slow(awaits.then_some(context)),
        }
    }

    /// Attempts to charge, by the rule as it applies if that is not the rule of the call. The general way decides
    /// if that is unsupported.
    #[inline(always)]
    #[allow(clippy::inline_always)] // in two places
    fn decide_by(&mut self, applied: Option<&Rule>, context: &mut Context<'_>, awaits: bool) -> Poll<AcquireResult> {
        let Self { rule, cost, state, .. } = self;
        let rule = applied.unwrap_or(rule);
        if let AcquireState::Attempt { engine: place, key, ticket } = state
            && let Some(engine) = place.as_deref()
            && let Some(key) = key.counter_key()
        {
            let waiter = Waiter { waker: context.waker(), ticket };
            let mut query = Query::new(rule, key, *cost);
            let attempt = try_charge(engine, &mut query, Some(waiter));
            let Query { id, outcome, .. } = query;
            match attempt {
                Attempt::Decided if outcome.fits() && rule.is_concurrent() => {
                    if let Some(engine) = place.take() {
                        let permit = Permit::of_place(engine, id, rule, *cost, outcome);
                        observe::admitted(rule, outcome.remaining.value());
                        return Poll::Ready(Ok(permit));
                    }
                }
                Attempt::Decided if outcome.fits() => {
                    if let Some(engine) = place.take() {
                        let receipt = CounterReceipt::new(id, rule, *cost, outcome.receipt);
                        let receipt = Receipt::of_backend(engine, receipt.into());
                        return Poll::Ready(Ok(Permit::new(rule.limit(), &outcome, receipt)));
                    }
                }
                Attempt::Decided => {
                    let names_keys = engine.settings().names_keys;
                    *place = None;
                    return exceeded(rule, key, *cost, outcome, names_keys);
                }
                Attempt::Pending if ticket.is_some() => return Poll::Pending,
                Attempt::Pending | Attempt::Unsupported => {}
            }
        }
        self.poll_slow(awaits.then_some(context))
    }

    /// Polls the ticket of a charge that travels in a batch.
    #[inline(never)]
    fn poll_ticket(&mut self, context: &mut Context<'_>) -> Poll<AcquireResult> {
        let AcquireState::Attempt { engine: place, key, ticket: Some(ticket) } = &mut self.state else {
            panic!("{POLLED_AGAIN}");
        };
        let engine = place.as_ref().expect(POLLED_AGAIN);
        let result = ready!(engine.backend().poll_charge(ticket, context));
        let engine = place.take().expect(POLLED_AGAIN);
        let error = match result {
            Ok((outcome, receipt)) => {
                let applied = if engine.settings().rules_may_differ() { receipt.rule_and_cost() } else { None };
                let rule = applied.as_ref().map_or(&self.rule, |(rule, _)| rule);
                if !outcome.fits() {
                    return exceeded(rule, key.or_none(), self.cost, outcome, engine.settings().names_keys);
                }
                engine.record_success();
                observe::admitted(rule, outcome.remaining.value());
                return Poll::Ready(Ok(Permit::new(rule.limit(), &outcome, Receipt::of_backend(engine, receipt))));
            }
            Err(error) => error,
        };
        let key = mem::replace(key, RequestKey::Skip);
        self.state = AcquireState::Other(OtherState::Done);
        let mut request = AcquireRequest::single(engine, self.rule, key, self.cost, self.options);
        let answer = match error {
            Undecided::NotMade { left } => request.start_again(after(left)),
            Undecided::Failed(error) => {
                request.apply_rules(false);
                request.keys().named(request.resolve_or_wait(Err(error), Duration::ZERO, None))
            }
        };
        self.go_on(answer, Some(context))
    }

    /// Attempts several charges. The general way decides if that is unsupported.
    #[inline(never)]
    fn decide_several(&mut self, context: &mut Context<'_>, awaits: bool) -> Poll<AcquireResult> {
        if let AcquireState::Other(OtherState::All(place)) = &mut self.state
            && let Some(mut call) = place.take()
        {
            let (mut numbers, mut refused) = (PermitNumbers::NONE, None);
            // A recorder may panic: then the places are freed, and nothing is charged again.
            match (call.attempt(&mut numbers, &mut refused), refused) {
                (Some(Decided::Admitted), _) => {
                    return Poll::Ready(Ok(Permit::with_numbers(numbers, Receipt::Several(call))));
                }
                (Some(Decided::Refused), Some(refused)) => return Poll::Ready(Err(refused)),
                _ => *place = Some(call),
            }
        }
        self.poll_slow(awaits.then_some(context))
    }

    /// Every call that the backend has not decided at once. Without a context, nothing is polled that
    /// has to be awaited.
    #[inline(never)]
    fn poll_slow(&mut self, context: Option<&mut Context<'_>>) -> Poll<AcquireResult> {
        match mem::replace(&mut self.state, AcquireState::Other(OtherState::Done)) {
            AcquireState::Attempt { engine: Some(engine), key, .. } => {
                let request = AcquireRequest::single(engine, self.rule, key, self.cost, self.options);
                self.go_on(request.start(), context)
            }
            AcquireState::Other(OtherState::All(Some(call))) => {
                self.go_on(call.into_request(self.options).start(), context)
            }
            AcquireState::Other(OtherState::Pending(pending)) => self.go_on(Err(pending), context),
            AcquireState::Attempt { engine: None, .. }
            | AcquireState::Other(OtherState::All(None) | OtherState::Done) => {
                panic!("{POLLED_AGAIN}")
            }
        }
    }

    /// Ends with the result of the general way, or polls it.
    fn go_on(
        &mut self,
        answer: Result<AcquireResult, BoxedAcquire>,
        context: Option<&mut Context<'_>>,
    ) -> Poll<AcquireResult> {
        let polled = match answer {
            Ok(answer) => Poll::Ready(answer),
            Err(mut pending) => {
                let polled = context.map_or(Poll::Pending, |context| pending.as_mut().poll(context));
                if polled.is_pending() {
                    self.state = AcquireState::Other(OtherState::Pending(pending));
                }
                polled
            }
        };
        polled.map(|answer| answer.inspect_err(observe::refused))
    }
}

impl Future for Acquire {
    type Output = AcquireResult;

    /// Not a part of its callers: a permit is written once, where they want it.
    #[inline(never)]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.get_mut().decide(context, true)
    }
}

/// [`Acquire`] for a caller who does not need the permit.
#[derive(Debug)]
pub struct Admit(pub(crate) Acquire);

impl Admit {
    /// See [`Acquire::block`].
    #[track_caller]
    pub fn block(self) -> Option<RequestPerMinute> {
        self.0.block().err()
    }
}

impl Future for Admit {
    type Output = Option<RequestPerMinute>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(Result::err)
    }
}

impl fmt::Debug for Acquire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use super::*;
    use crate::Limiter;

    #[test]
    fn a_call_shows_no_more_than_its_type() {
        let call = Acquire::all(Limiter::in_memory().engine_ref(), |_| {}, AcquireOptions::default(), OnLimit::Reject);
        assert_eq!(format!("{call:?}"), "Acquire { .. }");
    }
}
