//! Charges of a call that are settled when it ends: places, and costs that are known only then.
//!
//! A remote store forgets a hold that is not renewed. So it is renewed in the background, see
//! `renewals.rs`. When its holder is dropped, a background task settles it. The memory store keeps
//! holds by itself and settles at once.
//!
//! Only logs and semaphores hold. Other algorithms charge the most at the start, and a settlement
//! refunds the rest. Such a charge is not renewed. A refund that was sent is not sent again, as it may
//! have arrived.

use std::{mem, process, sync::Arc, time::Duration};

use tokio::sync::oneshot;

use super::{
    core::{EngineRef, Origin},
    refusal::refusal,
    renewals,
};
use crate::{
    RequestPerMinute, Rule, background,
    clock::after,
    counter::CounterId,
    deadline, observe,
    store::{Charge, Charges, Reply, StoreError},
};

type EngineHold = renewals::HeldCharge<EngineRef>;

/// The charges of one call that are settled later: when this is dropped.
pub(crate) struct Holding {
    engine: EngineRef,
    origin: Origin,
    began_at: Duration,
    /// The shortest time that was granted by a charge by elapsed time.
    granted: Duration,
    amount: u64,
    /// The amount reported as used so far. `None` if none was reported.
    reported: Option<u64>,
    /// The report is incomplete: the whole cost is charged at least.
    is_part: bool,
    state: HoldState,
}

/// The location of the charges, which decides how they are settled.
enum HoldState {
    /// In this process. Dropping settles them at once.
    Local(Charges),
    /// At a store: holds, which are renewed, and charges to be refunded. Dropping hands them to a
    /// background task that settles them.
    Remote { process: u32, held: Vec<Arc<EngineHold>>, unheld: Charges },
    /// Settled already, or left to the parent of a forked process.
    Settled,
}

/// The amount that was used.
#[derive(Clone, Copy)]
struct UsedAmount {
    elapsed_ms: u64,
    /// The reported amount. `None` counts as the whole cost.
    reported: Option<u64>,
    /// The report is incomplete: the whole cost is charged at least.
    is_part: bool,
}

impl UsedAmount {
    fn of(self, charge: &Charge) -> u64 {
        match charge.hold {
            Some(hold) if hold.is_timed => self.elapsed_ms,
            _ if self.is_part => self.reported.unwrap_or_default().max(charge.cost),
            _ => self.reported.unwrap_or(charge.cost),
        }
    }
}

impl Holding {
    /// Takes over charges that a store has just granted. `sent_at`: time of the request.
    pub(crate) fn new(engine: EngineRef, mut charges: Charges, origin: Origin, sent_at: Duration) -> Self {
        let began_at = engine.settings().clock.now();
        // Places come last, and are also freed last. The next holder of a place then finds the
        // usage of this call charged.
        charges.sort_by_key(|charge| charge.rule.is_concurrent());
        let is_timed = |charge: &&Charge| charge.hold.is_some_and(|hold| hold.is_timed) && !charge.rule.is_shadow();
        let timed = charges.iter().filter(is_timed);
        let granted = timed.map(|charge| Duration::from_millis(charge.cost)).min().unwrap_or(Duration::MAX);
        let amount = charges.iter().map(|charge| charge.cost).sum();
        let is_in_memory = matches!(origin, Origin::LocalFallback) || engine.memory().is_some();
        let state = if is_in_memory { HoldState::Local(charges) } else { HoldState::remote(&engine, charges, sent_at) };
        Self { engine, origin, began_at, granted, amount, reported: None, is_part: false, state }
    }

    /// The time that a call charged by elapsed time may still use.
    pub(crate) fn remaining_time(&self) -> Duration {
        if self.granted == Duration::MAX {
            return Duration::MAX;
        }
        self.granted.saturating_sub(self.elapsed())
    }

    /// True if no other caller can have the hold. A charge that is not held has nothing to lose.
    pub(crate) fn is_held(&self) -> bool {
        match &self.state {
            // The share of this process is valid during an outage of the store only.
            HoldState::Local(charges) => {
                let holds = charges.iter().any(|charge| charge.hold.is_some());
                !holds || matches!(self.origin, Origin::Store) || self.engine.is_degraded()
            }
            HoldState::Remote { held, .. } => {
                let now_us = self.engine.settings().clock.now_us();
                held.iter().all(|held| held.is_held(now_us))
            }
            HoldState::Settled => false,
        }
    }

    #[cfg(feature = "tower")]
    pub(super) fn has_place(&self) -> bool {
        self.charges().any(|charge| charge.rule.is_concurrent())
    }

    /// The cost of the charges that this settles, over all counters, as it was charged at the start.
    pub(crate) fn amount(&self) -> u64 {
        self.amount
    }

    /// The charges that are settled later.
    #[cfg(any(feature = "axum", feature = "tower"))]
    pub(super) fn charges(&self) -> impl Iterator<Item = &Charge> {
        let (charges, held): (&[Charge], &[Arc<EngineHold>]) = match &self.state {
            HoldState::Local(charges) => (charges, &[]),
            HoldState::Remote { held, unheld, .. } => (unheld, held),
            HoldState::Settled => (&[], &[]),
        };
        charges.iter().chain(held.iter().map(|held| &held.charge))
    }

    /// Takes out the charges that are not held, to refund them like any other charge.
    pub(super) fn take_refundable(&mut self) -> (EngineRef, Charges, Origin) {
        let charges = match &mut self.state {
            HoldState::Local(charges) => {
                let (held, unheld) = mem::take(charges).split(|charge| charge.hold.is_some());
                *charges = held;
                unheld
            }
            HoldState::Remote { process, unheld, .. } if *process == process::id() => mem::take(unheld),
            HoldState::Remote { .. } | HoldState::Settled => Charges::default(),
        };
        self.amount -= charges.iter().map(|charge| charge.cost).sum::<u64>();
        (self.engine.clone(), charges, self.origin)
    }

    /// Adds to the amount reported as used.
    pub(crate) fn record(&mut self, more: u64) {
        self.reported = Some(self.reported.unwrap_or_default().saturating_add(more));
    }

    /// Adds to the amount reported as used, of which more may have been used.
    #[cfg(feature = "tower")]
    pub(super) fn record_part(&mut self, more: u64) {
        self.record(more);
        self.is_part = true;
    }

    /// Charges the amount used, and the elapsed time for charges by time.
    pub(crate) async fn settle(self, used: u64) -> Result<(), RequestPerMinute> {
        let used = UsedAmount { elapsed_ms: self.elapsed_ms(), reported: Some(used), is_part: false };
        self.settle_used(used).await
    }

    /// Charges nothing, for `Reservation::cancel` and `Permit::refund`. Not for a caller whose future is dropped: see
    /// `Drop`.
    pub(crate) async fn cancel(self) -> Result<(), RequestPerMinute> {
        self.settle_used(UsedAmount { elapsed_ms: 0, reported: Some(0), is_part: false }).await
    }

    async fn settle_used(mut self, used: UsedAmount) -> Result<(), RequestPerMinute> {
        let (result_sender, result) = oneshot::channel();
        let Some(rule) = self.finish(used, Some(result_sender)) else { return Ok(()) };
        let gone = || StoreError::unavailable("the background task that settles the hold has ended");
        // The background task applies the deadline, on a runtime that has a timer.
        let settled = result.await.unwrap_or_else(|_| Err((rule, gone())));
        settled.map_err(|(rule, error)| refusal(&rule, error))
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.elapsed().as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
    }

    fn elapsed(&self) -> Duration {
        self.engine.settings().clock.now().saturating_sub(self.began_at)
    }

    /// Settles. Returns the rule that an error names if the background task sends no result. `None` if there will be
    /// no result.
    fn finish(
        &mut self,
        used: UsedAmount,
        result_sender: Option<oneshot::Sender<Result<(), (Rule, StoreError)>>>,
    ) -> Option<Rule> {
        match mem::replace(&mut self.state, HoldState::Settled) {
            HoldState::Local(charges) => {
                let mut failed = None;
                for charge in charges.iter() {
                    let done = self.engine.settle(charge.clone(), used.of(charge), self.origin);
                    self.engine.queues().changed(&charge.counter);
                    if let Reply::Ready(Err(error)) = done {
                        observe::shielded(|| observe::not_settled(&charge.rule, &error));
                        failed.get_or_insert((charge.rule, error)); // the others are settled all the same
                    }
                }
                let (rule, error) = failed?;
                if let Some(result) = result_sender {
                    let _ = result.send(Err((rule, error))); // no caller waits for it
                }
                Some(rule)
            }
            // After a fork, the parent settles.
            HoldState::Remote { process, held, .. }
                if process != process::id() || !self.engine.renewals().remove(&held) =>
            {
                None
            }
            HoldState::Remote { held, unheld, .. } => {
                let mut charges: Vec<_> =
                    unheld.into_charges().filter(|charge| used.of(charge) != charge.cost).collect();
                charges.extend(held.iter().map(|held| held.charge.clone()));
                let rule = charges.first()?.rule;
                let counters = charges.iter().map(|charge| charge.counter.id()).collect();
                let in_flight = SettlementInFlight::new(self.engine.clone(), counters);
                let _ = background::spawn(settle(self.engine.clone(), charges, used, in_flight, result_sender));
                Some(rule)
            }
            HoldState::Settled => None,
        }
    }
}

impl Drop for Holding {
    /// The call has ended, failed, panicked or was cancelled. `Elapsed` is charged its time. Other costs are charged
    /// what was recorded, or the maximum if nothing was. After `record_part`, the larger of both.
    fn drop(&mut self) {
        let (elapsed_ms, reported, is_part) = (self.elapsed_ms(), self.reported, self.is_part);
        self.finish(UsedAmount { elapsed_ms, reported, is_part }, None);
    }
}

impl HoldState {
    /// Charges at a store. Holds are renewed from now on.
    fn remote(engine: &EngineRef, charges: Charges, sent_at: Duration) -> Self {
        #[cfg(feature = "redis")]
        if let Some(guard) = engine.guard() {
            guard.prepare(); // the settlement then finds an open connection
        }
        let (held, unheld) = charges.split(|charge| charge.hold.is_some());
        let to_hold = |charge| Arc::new(EngineHold::new(engine.clone(), charge, sent_at));
        let held: Vec<_> = held.into_charges().map(to_hold).collect();
        match engine.renewals().insert(&held) {
            Ok(()) => Self::Remote { process: process::id(), held, unheld },
            // The background thread ran when the store was asked. So the process was forked since,
            // and the parent has the hold.
            Err(_) => Self::Settled,
        }
    }
}

/// Settles charges. Callers of these counters wait until `in_flight` is dropped.
async fn settle(
    engine: EngineRef,
    charges: Vec<Charge>,
    used: UsedAmount,
    in_flight: SettlementInFlight,
    result_sender: Option<oneshot::Sender<Result<(), (Rule, StoreError)>>>,
) {
    let deadline = engine.settings().deadline;
    let end = after(deadline);
    let settle_one = |charge: &Charge| {
        let (engine, charge, used) = (engine.clone(), charge.clone(), used.of(charge));
        background::in_own_task(async move {
            let settling = engine.settle(charge, used, Origin::Store);
            deadline::within(settling, end, deadline).await.and_then(|done| done)
        })
    };
    let (held, unheld): (Vec<_>, Vec<_>) = charges.iter().partition(|charge| charge.hold.is_some());
    let settling: Vec<_> = unheld.iter().map(|charge| settle_one(charge)).collect();
    let mut results = Vec::with_capacity(charges.len());
    for settling in settling.into_iter().chain(held.iter().map(|charge| settle_one(charge))) {
        results.push(settling.await);
    }
    let failed: Vec<_> = (unheld.into_iter().chain(held).zip(results))
        .filter_map(|(charge, done)| done.err().map(|error| (charge, error)))
        .collect();
    for (charge, error) in &failed {
        engine.settle_again((*charge).clone(), used.of(charge), error);
    }
    // The next callers need not wait during an outage of the store.
    drop(in_flight);
    if let Some(result_sender) = result_sender {
        let _ = result_sender.send(failed.first().map_or(Ok(()), |(charge, error)| Err((charge.rule, error.clone()))));
    }
    // Last, as a log subscriber may panic.
    for (charge, error) in &failed {
        observe::not_settled(&charge.rule, error);
    }
}

/// A settlement in flight. Dropping it ends the settlement and notifies the wait queues.
struct SettlementInFlight {
    engine: EngineRef,
    counters: Vec<CounterId>,
    number: u64,
}

impl SettlementInFlight {
    fn new(engine: EngineRef, counters: Vec<CounterId>) -> Self {
        let number = engine.settlements().begin(&counters);
        Self { engine, counters, number }
    }
}

impl Drop for SettlementInFlight {
    fn drop(&mut self) {
        self.engine.settlements().end(&self.counters, self.number);
        for counter in &self.counters {
            self.engine.queues().changed_id(*counter);
        }
    }
}
