//! Refunds, and what is repeated until the store has done it: settlements and refunds.
//!
//! A refund that may have arrived is not repeated, as the store does not know it again. It knows a hold.

use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::{
    backend_kind::BackendReceipt,
    core::{EngineRef, Origin},
    refusal::refusal,
    settlements::{FIRST_PAUSE, LONGEST_PAUSE, lease_of},
};
use crate::{
    RequestPerMinute, Rule,
    backend::Backend as _,
    background,
    clock::after,
    counter::CounterId,
    deadline,
    duration::with_jitter,
    store::{Charge, Charges, Hold, Reply, StoreError},
};

/// The bounds of the time for which a refund is repeated.
const SHORTEST_TIME: Duration = Duration::from_secs(60);
const LONGEST_TIME: Duration = Duration::from_secs(3600);

/// Work for the store that may be repeated.
#[derive(Clone)]
#[allow(clippy::large_enum_variant)] // a task has one
enum Work {
    /// Settles a charge with this use.
    Settle(Charge, u64),
    Refund(Charges),
}

impl Work {
    fn charges(&self) -> &[Charge] {
        match self {
            Self::Settle(charge, _) => std::slice::from_ref(charge),
            Self::Refund(charges) => charges,
        }
    }

    fn ask(&self, engine: &EngineRef) -> Reply<Result<(), StoreError>> {
        match self {
            Self::Settle(charge, used) => engine.settle(charge.clone(), *used, Origin::Store),
            Self::Refund(charges) => engine.refund_charges(charges.clone(), Origin::Store).map(|done| done.map(drop)),
        }
    }

    /// True if another attempt after this error settles or refunds no more than one. The store knows a hold that
    /// it has settled. A refund or a charge that was sent may have arrived.
    fn is_repeatable(&self, error: &StoreError) -> bool {
        let is_known = |charge: &Charge| charge.hold.is_some();
        !error.misconfigured && (error.has_no_effect() || self.charges().iter().all(is_known))
    }

    /// Notes an attempt that failed. If it may have settled a hold, a later one is a retry: it charges only a hold
    /// that is still there. Otherwise a hold that the store has lost is charged, too.
    fn attempted(&mut self, error: &StoreError) {
        if let Self::Settle(charge, _) = self
            && !error.has_no_effect()
        {
            charge.hold = charge.hold.map(|hold| Hold { is_retry: true, ..hold });
        }
    }

    /// The time for which it is repeated: as long as a hold or a charge counts. A charge may count for a moment
    /// only, and others want its room; or for years.
    fn repeats_for(&self) -> Duration {
        let longest = |charge: &Charge| match charge.hold {
            Some(_) if charge.rule.is_concurrent() => lease_of(charge),
            Some(_) => lease_of(charge).saturating_add(charge.rule.period()),
            None => counts_for(&charge.rule).clamp(SHORTEST_TIME, LONGEST_TIME),
        };
        self.charges().iter().map(longest).max().unwrap_or_default()
    }
}

/// The time for which the largest charge of a rule counts.
fn counts_for(rule: &Rule) -> Duration {
    let periods = rule.limit().div_ceil(rule.count().max(1)).max(1);
    rule.period().saturating_mul(u32::try_from(periods).unwrap_or(u32::MAX))
}

impl EngineRef {
    /// Settles a charge in the background, after an attempt with this error.
    pub(super) fn settle_again(&self, charge: Charge, used: u64, error: &StoreError) {
        self.repeat_after(error, Work::Settle(charge, used));
    }

    /// Repeats the work in the background if it is repeatable, until shortly after the limiter is closed.
    fn repeat_after(&self, error: &StoreError, mut work: Work) {
        if !work.is_repeatable(error) {
            return;
        }
        work.attempted(error);
        let (engine, mut closing) = (self.clone(), self.settlements().closing());
        let deadline = self.settings().deadline;
        let _ = background::spawn(async move {
            let (mut end, mut pause, mut is_closed) = (after(work.repeats_for()), FIRST_PAUSE, false);
            loop {
                let turn = async {
                    sleep_until(end.min(after(with_jitter(pause)))).await;
                    timeout_at(end, engine.settlements().turn()).await
                };
                let turn = tokio::select! {
                    biased;
                    () = closing.closed(), if !is_closed => {
                        (end, pause, is_closed) = (end.min(after(deadline)), Duration::ZERO, true);
                        continue;
                    }
                    turn = turn => turn,
                };
                pause = (2 * pause).clamp(FIRST_PAUSE, LONGEST_PAUSE);
                if Instant::now() >= end {
                    break;
                }
                let (asking, its_engine, until) = (work.clone(), engine.clone(), end.min(after(deadline)));
                let done = background::in_own_task(async move {
                    deadline::within(asking.ask(&its_engine), until, deadline).await.and_then(|done| done)
                });
                let done = done.await;
                drop(turn);
                match done {
                    Err(error) if work.is_repeatable(&error) => work.attempted(&error),
                    _ => break,
                }
            }
            work.charges().iter().for_each(|charge| engine.queues().changed_id(charge.counter.id()));
        });
    }

    /// Refunds, and returns the amount. If that certainly failed, it is repeated in the background: if no request
    /// was sent, or the server refused it.
    pub(crate) async fn refund(&self, charges: Charges, origin: Origin) -> Result<u64, RequestPerMinute> {
        let Some(rule) = charges.first().map(|charge| charge.rule) else { return Ok(0) };
        let refund = self.begin_refund(charges, origin);
        refund.complete(self).await.map_err(|error| refusal(&rule, error))
    }

    pub(super) async fn refund_receipt(&self, receipt: BackendReceipt) -> Result<u64, RequestPerMinute> {
        let (id, charge) = (receipt.id(), receipt.rule_and_cost());
        let refund = self.begin_refund_receipt(receipt);
        let rule = || match charge {
            Some((rule, _)) if !rule.prefix().is_empty() => Some(rule),
            _ => self.guard()?.rule_of(id?),
        };
        let unknown = Rule::new("", 0, Duration::ZERO);
        refund.complete(self).await.map_err(|error| refusal(&rule().unwrap_or(unknown), error))
    }

    /// Refunds in the background.
    pub(crate) fn refund_in_background(&self, charges: Charges, origin: Origin) {
        self.begin_refund(charges, origin).complete_in_background(self);
    }

    /// Refunds in the background.
    pub(super) fn refund_receipt_in_background(&self, receipt: BackendReceipt) {
        self.begin_refund_receipt(receipt).complete_in_background(self);
    }

    fn begin_refund(&self, charges: Charges, origin: Origin) -> Refund {
        let counters = charges.iter().map(|charge| charge.counter.id()).collect();
        let is_remote = matches!(origin, Origin::Store) && self.memory().is_none();
        let repeatable = is_remote.then(|| charges.clone());
        Refund { counters, repeatable, reply: self.refund_charges(charges, origin) }
    }

    fn begin_refund_receipt(&self, receipt: BackendReceipt) -> Refund {
        let mut counters = SmallVec::new();
        if let Some(id) = receipt.id() {
            counters.push(id); // shorter code than `collect`
        }
        let repeatable = receipt.charges();
        Refund { counters, repeatable, reply: self.backend().refund_charge(receipt) }
    }
}

/// A refund on its way.
struct Refund {
    counters: SmallVec<[CounterId; 1]>,
    /// The charges, if the refund can be repeated.
    repeatable: Option<Charges>,
    reply: Reply<Result<u64, StoreError>>,
}

impl Refund {
    async fn complete(self, engine: &EngineRef) -> Result<u64, StoreError> {
        let changed = engine.queues().changed_on_drop(self.counters);
        let refunded = engine.within_deadline(self.reply).await.and_then(|refunded| refunded);
        drop(changed); // after the reply, with which the guard has dropped cached denials
        if let (Err(error), Some(charges)) = (&refunded, self.repeatable) {
            // It may still be made, and what is denied until then is not cached.
            if let Some(guard) = engine.guard()
                && !error.misconfigured
                && !error.has_no_effect()
            {
                guard.failed(&charges);
            }
            engine.repeat_after(error, Work::Refund(charges));
        }
        refunded
    }

    fn complete_in_background(self, engine: &EngineRef) {
        if let Reply::Ready(_) = self.reply {
            self.counters.iter().for_each(|counter| engine.queues().changed_id(*counter));
            return;
        }
        let (engine, closing) = (engine.clone(), engine.settlements().closing());
        let _ = background::spawn(async move {
            let _ = self.complete(&engine).await;
            drop(closing);
        });
    }
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use super::*;
    use crate::{Algorithm, CounterName, Key};

    /// A place is free after its lease. Any other hold then counts as a charge.
    #[test]
    fn a_settlement_is_repeated_as_long_as_its_hold_counts() {
        let (lease, period) = (Duration::from_secs(20), Duration::from_secs(300));
        let repeats_for = |algorithm| {
            let rule = Rule::new("item", 1, period).with_algorithm(algorithm);
            let mut charge = Charge::new(rule, CounterName::new("", &rule, &Key::NONE), 1);
            charge.hold = Some(Hold::new(lease));
            Work::Settle(charge, 1).repeats_for()
        };
        assert_eq!([Algorithm::Concurrent, Algorithm::SlidingLog].map(repeats_for), [lease, lease + period]);
    }
}
