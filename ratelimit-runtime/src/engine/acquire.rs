//! The future of a call: an attempt that decides at once, a ticket in a batch, or the general way.

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
    permit::Permit,
    request::{AcquireOptions, AcquireRequest, ChargeRequest, OnLimit, RequestKey},
};
use crate::{
    Algorithm, RequestPerMinute, Rule, algorithm::TakenWindow, counter::CounterId, guard::LocalAnswer, observe,
    rule::limits::LARGEST_WINDOW, store::ChargeQuery,
};
#[cfg(feature = "redis")]
use crate::{
    redis::BatchTicket,
    store::{Charge, StoreError},
};
#[cfg(not(feature = "redis"))]
use std::convert::Infallible as BatchTicket;

/// A decision that is made when it is awaited.
///
/// A type with a name and no borrows, so that it costs little in each function that awaits it: little time to compile,
/// and no more room than the call takes before it is on its way.
pub struct Acquire {
    /// Who is asked, until it has been.
    limiter: Option<EngineRef>,
    state: AcquireState,
}

enum AcquireState {
    /// And its share, where many ask a server at once.
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
    /// Decides when it is first polled.
    #[inline(always)]
    #[allow(clippy::inline_always)] // or a rule is copied twice, which takes as long as a lock
    pub(crate) fn one(limiter: EngineRef, rule: &Rule, key: RequestKey, cost: u64, manner: AcquireOptions) -> Self {
        let asked = SingleCharge { rule: *rule, key, cost };
        Self { limiter: Some(limiter), state: AcquireState::Single(asked, manner, None) }
    }

    /// Decides when it is first polled.
    pub(crate) fn all(limiter: EngineRef, asked: Vec<ChargeRequest>, manner: AcquireOptions, on_busy: OnLimit) -> Self {
        let call = AcquireRequest::new(limiter, asked, manner, on_busy);
        let answer = async move {
            match call.start() {
                Ok(answer) => answer,
                Err(pending) => pending.await,
            }
        };
        Self { limiter: None, state: AcquireState::Pending(Box::pin(answer)) }
    }
}

impl Acquire {
    /// Whether this is what most calls are: one rule, whose limit holds or not, and nobody waits.
    #[inline]
    fn one_rule(&self) -> Option<(&EngineRef, &SingleCharge)> {
        match (&self.limiter, &self.state) {
            (Some(limiter), AcquireState::Single(asked, AcquireOptions { waits: false, .. }, None)) => {
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
        take_window(limiter, &asked.rule, &asked.key, asked.cost)
    }

    /// Charges any other counter in memory, or one that is not stored; or spends what was taken from another store, or says what it would say, where
    /// that is known and need not be asked; or asks it together with others.
    ///
    /// What would have to wait, what is wrong and what can't fit goes the long way.
    #[cfg_attr(not(feature = "redis"), allow(unused_variables))]
    fn take(&mut self, context: &mut Context<'_>) -> Option<AcquireResult> {
        let (limiter, asked) = self.one_rule()?;
        let SingleCharge { rule, cost, .. } = asked;
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
                Some(LocalAnswer::Denied(decision)) => {
                    let refused = RequestPerMinute::exceeded(rule, *cost, &decision);
                    observe::refused(&refused);
                    return Some(Err(refused));
                }
                Some(LocalAnswer::Spent(spent)) => {
                    observe::admitted(rule, spent.remaining);
                    let rule = *rule;
                    return Some(Ok(Permit::prefetched(self.limiter.take()?, name, &rule, &spent)));
                }
                None => {}
            }
            #[cfg(feature = "redis")]
            {
                let charge = || {
                    let key = if let RequestKey::Some(key) = &asked.key { Some(key) } else { None };
                    Charge::new(*rule, crate::CounterName::new(&limiter.settings().namespace, rule, key), *cost)
                };
                let joined = guarded.share(name, rule, *cost, charge, context.waker());
                if let AcquireState::Single(_, _, share) = &mut self.state {
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
    fn poll_share(&mut self, context: &mut Context<'_>) -> Poll<AcquireResult> {
        let (Some(limiter), AcquireState::Single(SingleCharge { rule, cost, .. }, _, Some(share))) =
            (&self.limiter, &mut self.state)
        else {
            panic!("`Acquire` polled after it was done");
        };
        let told = ready!(limiter.guarded().map_or(Poll::Ready(None), |guarded| guarded.poll(share, context)));
        let error = match told {
            Some(Ok(taken)) if taken.fits() => {
                limiter.succeeded();
                observe::admitted(rule, taken.remaining);
                let (Some(decision), Some(limiter)) = (share.take_entry(), self.limiter.take()) else {
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
        if let AcquireState::Single(asked, manner, _) = mem::replace(&mut self.state, AcquireState::Done)
            && let Some(limiter) = self.limiter.take()
        {
            match AcquireRequest::alone(limiter, asked.rule, asked.key, asked.cost, manner)
                .answer_or_wait(Err(error), std::time::Duration::ZERO)
            {
                Ok(answer) => return Poll::Ready(answer.inspect_err(observe::refused)),
                Err(pending) => self.state = AcquireState::Pending(pending),
            }
        }
        self.decide(None, context)
    }

    /// All that is not an admitted call of a fixed window in memory that is stored and open.
    #[inline(never)]
    fn decide(&mut self, refused: Option<&TakenWindow>, context: &mut Context<'_>) -> Poll<AcquireResult> {
        let answer = match (refused, &self.state) {
            (Some(taken), AcquireState::Single(SingleCharge { rule, cost, .. }, ..)) => {
                Some(Err(exceeded(rule, *cost, taken)))
            }
            _ => self.take(context),
        };
        if let Some(answer) = answer {
            self.limiter = None;
            self.state = AcquireState::Done;
            return Poll::Ready(answer);
        }
        if let AcquireState::Single(_, _, None) = &self.state
            && let AcquireState::Single(asked, manner, _) = mem::replace(&mut self.state, AcquireState::Done)
            && let Some(limiter) = self.limiter.take()
        {
            match AcquireRequest::alone(limiter, asked.rule, asked.key, asked.cost, manner).start() {
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
    #[allow(clippy::inline_always)] // see `Acquire::take_window`
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<AcquireResult> {
        #[cfg(feature = "redis")]
        if let AcquireState::Single(_, _, Some(_)) = &self.state {
            return self.poll_share(context);
        }
        let has_memory = self.limiter.as_ref().is_some_and(|limiter| limiter.memory().is_some());
        let taken = if has_memory { self.take_window() } else { None };
        if let Some(taken) = &taken
            && taken.fits
            && let AcquireState::Single(SingleCharge { rule, cost, .. }, ..) = &self.state
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
pub struct Admit(pub(crate) Acquire);

impl Future for Admit {
    type Output = Result<(), RequestPerMinute>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|answer| answer.map(drop))
    }
}

/// What most calls come to: a decision of a fixed window in memory that is stored and open. `None` if there is none, and nothing is changed
/// then.
#[inline(never)]
pub(crate) fn decide_at_once(
    limiter: &Engine,
    rule: &Rule,
    key: &RequestKey,
    cost: u64,
) -> Option<Result<(), RequestPerMinute>> {
    let taken = take_window(limiter, rule, key, cost)?;
    Some(if taken.fits { Ok(()) } else { Err(exceeded(rule, cost, &taken)) })
}

/// Charges a fixed window that is stored and open. `None` if there is none, and nothing is changed then.
#[inline(always)]
#[allow(clippy::inline_always)] // what is found out would have to be copied
fn take_window(limiter: &Engine, rule: &Rule, key: &RequestKey, cost: u64) -> Option<TakenWindow> {
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
fn name(rule: &Rule, key: &RequestKey) -> Option<CounterId> {
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
