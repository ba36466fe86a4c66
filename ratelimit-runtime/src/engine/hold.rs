//! What is held for a call: places, and charges that come to something when it is over.
//!
//! A remote store forgets a hold that is not renewed, so it is renewed in the background, see
//! `renewals.rs`, and a background task settles it when its holder is dropped. The memory store
//! keeps holds by itself and is settled at once.

use std::{fmt, mem, sync::Arc, time::Duration};

use tokio::{
    sync::{oneshot, watch::Sender},
    time::{Instant, sleep},
};

use super::{
    abandon::{FIRST_PAUSE, LONGEST_PAUSE},
    core::{EngineRef, Origin},
    refusal::refusal,
    renewals,
    settlements::{after, lease_of},
};
use crate::{
    CounterName, RequestPerMinute, Rule, background, deadline, observe,
    store::{Charge, Charges, Hold, StoreError},
};

type EngineHold = renewals::HeldCharge<EngineRef>;

/// What is held for one call. Dropped, it is settled.
pub(crate) struct Holding {
    limiter: EngineRef,
    by: Origin,
    began: Duration,
    /// The least time that a charge by elapsed time has granted.
    granted: Duration,
    much: u64,
    /// What was used, as far as it is known.
    known: Option<u64>,
    kept: HoldState,
}

/// Who settles.
enum HoldState {
    /// Whoever drops it.
    Local(Charges),
    /// A background task. It is renewed until then.
    Renewed(Vec<Arc<EngineHold>>),
    /// It is settled.
    Settled,
}

/// How much was used.
#[derive(Clone, Copy)]
struct UsedAmount {
    elapsed_ms: u64,
    /// By who knows; nothing if it was not said, which is all of it.
    told: Option<u64>,
}

impl UsedAmount {
    fn of(self, charge: &Charge) -> u64 {
        match charge.hold {
            Some(hold) if hold.is_timed => self.elapsed_ms,
            _ => self.told.unwrap_or(charge.cost),
        }
    }
}

impl Holding {
    /// Takes over what a store has just granted. `asked`: when it was.
    pub(crate) fn new(limiter: EngineRef, mut charges: Charges, by: Origin, asked: Duration) -> Self {
        let began = limiter.settings().clock.now();
        // Places last, in which they are left too: who takes one next finds charged what was used in it.
        charges.sort_by_key(|charge| charge.rule.is_concurrent());
        let is_timed = |charge: &&Charge| charge.hold.is_some_and(|hold| hold.is_timed) && !charge.rule.is_shadow();
        let timed = charges.iter().filter(is_timed);
        let granted = timed.map(|charge| Duration::from_millis(charge.cost)).min().unwrap_or(Duration::MAX);
        let much = charges.iter().map(|charge| charge.cost).sum();
        let is_here = matches!(by, Origin::LocalFallback) || limiter.memory().is_some();
        let kept = if is_here { HoldState::Local(charges) } else { HoldState::renewed(&limiter, charges, asked) };
        Self { limiter, by, began, granted, much, known: None, kept }
    }

    /// What a call that is charged by its time may still use.
    pub(crate) fn remaining_time(&self) -> Duration {
        if self.granted == Duration::MAX {
            return Duration::MAX;
        }
        self.granted.saturating_sub(self.elapsed())
    }

    /// Whether nobody else can have it.
    pub(crate) fn is_held(&self) -> bool {
        match &self.kept {
            // A share of this process, as long as the store is away.
            HoldState::Local(_) => matches!(self.by, Origin::Store) || self.limiter.is_degraded(),
            HoldState::Renewed(held) => {
                let now_us = self.limiter.settings().clock.now_us();
                held.iter().all(|held| held.is_held(now_us))
            }
            HoldState::Settled => false,
        }
    }

    /// How much was held when it began, of all counters.
    pub(crate) fn much(&self) -> u64 {
        self.much
    }

    /// Adds to what is known to have been used.
    pub(crate) fn record(&mut self, more: u64) {
        self.known = Some(self.known.unwrap_or_default().saturating_add(more));
    }

    /// Charges what was used, and the time that it took where that is charged.
    pub(crate) async fn settle(self, used: u64) -> Result<(), RequestPerMinute> {
        let used = UsedAmount { elapsed_ms: self.elapsed_ms(), told: Some(used) };
        self.settle_as(used).await
    }

    /// Charges nothing.
    pub(crate) async fn cancel(self) -> Result<(), RequestPerMinute> {
        self.settle_as(UsedAmount { elapsed_ms: 0, told: Some(0) }).await
    }

    async fn settle_as(mut self, used: UsedAmount) -> Result<(), RequestPerMinute> {
        let (told, answer) = oneshot::channel();
        let Some(rule) = self.end(used, Some(told)) else { return Ok(()) };
        let gone = || StoreError::unavailable("the task that settles it has ended");
        // It has the deadline, on a runtime that has a timer.
        answer.await.unwrap_or_else(|_| Err(gone())).map_err(|error| refusal(&rule, error))
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.elapsed().as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
    }

    fn elapsed(&self) -> Duration {
        self.limiter.settings().clock.now().saturating_sub(self.began)
    }

    /// The rule to be named in an error, if somebody else does it.
    fn end(&mut self, used: UsedAmount, told: Option<oneshot::Sender<Result<(), StoreError>>>) -> Option<Rule> {
        match mem::replace(&mut self.kept, HoldState::Settled) {
            HoldState::Local(charges) => {
                for charge in charges.iter() {
                    drop(self.limiter.settle(charge.clone(), used.of(charge), self.by));
                    self.limiter.queues().changed(&charge.counter);
                }
                None
            }
            // The parent of a forked process settles what it holds.
            HoldState::Renewed(held) if !self.limiter.renewals().remove(&held) => None,
            HoldState::Renewed(held) => {
                let rule = held.first()?.charge.rule;
                let counters = held.iter().map(|held| held.charge.counter.clone()).collect();
                let under_way = SettlementInFlight::new(self.limiter.clone(), counters);
                let _ = background::spawn(settle(self.limiter.clone(), held, used, under_way, told));
                Some(rule)
            }
            HoldState::Settled => None,
        }
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.end(UsedAmount { elapsed_ms: self.elapsed_ms(), told: self.known }, None);
    }
}

impl HoldState {
    /// EngineRef at a store.
    fn renewed(limiter: &EngineRef, charges: Charges, asked: Duration) -> Self {
        #[cfg(feature = "redis")]
        if let Some(guarded) = limiter.guarded() {
            guarded.prepare(); // so that the settlement finds a connection
        }
        let held = |charge| Arc::new(EngineHold::new(limiter.clone(), charge, asked));
        let held: Vec<_> = charges.into_charges().map(held).collect();
        match limiter.renewals().insert(&held) {
            Ok(()) => Self::Renewed(held),
            // The thread ran when the store was asked: the process was forked since, and the
            // parent has the hold.
            Err(_) => Self::Settled,
        }
    }
}

/// Settles what is held. `under_way`: those who ask wait until it is dropped.
async fn settle(
    limiter: EngineRef,
    held: Vec<Arc<EngineHold>>,
    used: UsedAmount,
    under_way: SettlementInFlight,
    told: Option<oneshot::Sender<Result<(), StoreError>>>,
) {
    let deadline = limiter.settings().deadline;
    let end = after(deadline);
    let (mut settled, mut failed) = (Ok(()), Vec::new());
    for charge in held.iter().map(|held| &held.charge) {
        let settling = limiter.settle(charge.clone(), used.of(charge), Origin::Store);
        let left = end.saturating_duration_since(Instant::now());
        let done = deadline::within(settling, left, deadline).await.and_then(|done| done);
        if let Err(error) = &done {
            observe::not_settled(&charge.rule, error);
            if !error.misconfigured {
                failed.push(charge);
            }
        }
        settled = settled.and(done);
    }
    // Whoever asks next need not wait for a store that is away.
    drop(under_way);
    if let Some(told) = told {
        let _ = told.send(settled);
    }
    for charge in failed {
        let (used, limiter, mut charge) = (used.of(charge), limiter.clone(), charge.clone());
        charge.hold = charge.hold.map(|hold| Hold { is_retry: true, ..hold });
        let beyond = if charge.rule.is_concurrent() { Duration::ZERO } else { charge.rule.period() };
        tokio::spawn(async move {
            let (end, mut pause) = (after(lease_of(&charge).saturating_add(beyond)), FIRST_PAUSE);
            let mut is_settled = false;
            while !is_settled && Instant::now() < end {
                sleep(pause).await;
                pause = (2 * pause).min(LONGEST_PAUSE);
                let settling = limiter.settle(charge.clone(), used, Origin::Store);
                is_settled = deadline::answer(settling, deadline).await.is_ok();
            }
            limiter.queues().changed(&charge.counter);
        });
    }
}

/// A settlement under way, until this is dropped.
struct SettlementInFlight {
    limiter: EngineRef,
    counters: Vec<CounterName>,
    done: Sender<()>,
}

impl SettlementInFlight {
    fn new(limiter: EngineRef, counters: Vec<CounterName>) -> Self {
        let done = limiter.settlements().begin(&counters);
        Self { limiter, counters, done }
    }
}

impl Drop for SettlementInFlight {
    fn drop(&mut self) {
        self.limiter.settlements().end(&self.counters, &self.done);
        for counter in &self.counters {
            self.limiter.queues().changed(counter);
        }
    }
}

impl fmt::Debug for Holding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Holding").field("is_held", &self.is_held()).finish_non_exhaustive()
    }
}
