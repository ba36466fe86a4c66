//! The permit that a caller gets, and the receipt that refunds it.

use std::{fmt, sync::Arc, time::Duration};

use super::{
    core::{EngineRef, Origin},
    hold::Holding,
    receipt::CounterReceipt,
    refusal::refusal,
};
use crate::{
    Algorithm, Decision, RequestPerMinute, Rule,
    algorithm::{Taken, TakenWindow},
    counter::CounterId,
    guard::Spent,
    store::{Charge, Charges},
};

/// The right to run once, already charged.
///
/// Dropping a permit does not refund it: the call counts. If the call did not happen, refund the
/// permit. Only what a permit holds ends with it. A place of [`Algorithm::Concurrent`] becomes
/// free, and a call that is charged by elapsed time has ended.
///
/// On Redis, a background task does that. The next acquire of the key in this process waits for it,
/// for at most half of its deadline.
///
/// ```
/// # use ratelimit_runtime::{Limiter, Rule};
/// # use std::time::Duration;
/// const RULE: Rule = Rule::new("mail", 10, Duration::from_secs(60));
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let limiter = Limiter::in_memory();
/// let permit = limiter.acquire_n(&RULE, "alice", 4).await?;
/// assert_eq!((permit.limit(), permit.remaining()), (10, 6));
///
/// assert_eq!(permit.refund().await?, 4);
/// assert_eq!(limiter.peek(&RULE, "alice").await?.remaining(), 10);
/// # Ok::<_, ratelimit_runtime::RequestPerMinute>(()) }).unwrap();
/// ```
pub struct Permit {
    limit: u64,
    remaining: u64,
    reset_after_ms: u64,
    receipt: Receipt,
}

/// The charges to refund. A permit is moved more often than it is refunded, so this is small.
enum Receipt {
    Nothing,
    InMemory(EngineRef, CounterReceipt),
    /// Spent from quota that this process had prefetched.
    Prefetched(EngineRef, CounterReceipt),
    /// An entry of a batch, and its receipt.
    #[cfg(feature = "redis")]
    Shared(EngineRef, Arc<crate::redis::BatchEntry>, [u64; 2]),
    /// In an `Arc`, though it is not shared. Dropping an `Arc` is short code, and that code stands
    /// in each limited function.
    Store(Arc<StoreReceipt>),
    /// The holds, settled when the permit is dropped, and the charges that hold nothing.
    Hold(Box<(Holding, Option<StoreReceipt>)>),
}

type StoreReceipt = (EngineRef, Charges, Origin);

/// The charge that leaves the least. Of equal ones, the one that takes longest to reset. Holds come
/// after charges that hold nothing, and shadow rules come last.
fn most_restrictive(charges: &[Charge]) -> Option<&Charge> {
    let room = |charge: &&Charge| {
        let Decision { remaining, reset_after_ms, .. } = charge.decision;
        (charge.rule.is_shadow(), charge.hold.is_some(), remaining, u64::MAX - reset_after_ms)
    };
    charges.iter().min_by_key(room)
}

impl Permit {
    /// For one charge in the memory store.
    #[inline]
    pub(crate) fn in_memory(engine: EngineRef, id: CounterId, rule: &Rule, cost: u64, outcome: &Taken) -> Self {
        let Taken { remaining, reset_after_ms, receipt: recorded, .. } = *outcome;
        let receipt = CounterReceipt::new(id, rule, cost, recorded);
        Self { limit: rule.limit(), remaining, reset_after_ms, receipt: Receipt::InMemory(engine, receipt) }
    }

    /// For one charge paid from prefetched quota.
    pub(crate) fn prefetched(engine: EngineRef, id: CounterId, rule: &Rule, spent: &Spent) -> Self {
        let Spent { cost, remaining, reset_after_ms, receipt: recorded } = *spent;
        let receipt = CounterReceipt::new(id, rule, cost, recorded);
        Self { limit: rule.limit(), remaining, reset_after_ms, receipt: Receipt::Prefetched(engine, receipt) }
    }

    /// For one entry of a batch.
    #[cfg(feature = "redis")]
    pub(crate) fn shared(engine: EngineRef, entry: Arc<crate::redis::BatchEntry>, limit: u64, outcome: &Taken) -> Self {
        let Taken { remaining, reset_after_ms, receipt: recorded, .. } = *outcome;
        Self { limit, remaining, reset_after_ms, receipt: Receipt::Shared(engine, entry, recorded) }
    }

    /// For one charge of a fixed window in the memory store.
    #[inline]
    pub(crate) fn of_window(engine: EngineRef, limit: u64, period_ms: u64, cost: u64, outcome: &TakenWindow) -> Self {
        let TakenWindow { name: id, remaining, reset_after_ms, opened, .. } = *outcome;
        let algorithm = Algorithm::FixedWindow { align: false }; // refunds and quota do not depend on the alignment
        let receipt = CounterReceipt { id, cost, receipt: [opened, 0], count: limit, period_ms, algorithm };
        Self { limit, remaining, reset_after_ms, receipt: Receipt::InMemory(engine, receipt) }
    }

    /// `is_single`: the call has no other rule. The caller knows which one, so the permit need not.
    pub(crate) fn new(engine: EngineRef, charges: Charges, origin: Origin, is_single: bool) -> Self {
        let decision = most_restrictive(&charges).map_or(Decision::fresh(u64::MAX), |charge| charge.decision);
        let receipt = match (&charges[..], origin, engine.memory()) {
            ([charge], Origin::Store, Some(_)) if is_single && !charge.rule.is_shadow() => {
                let id = charge.counter.id();
                Receipt::InMemory(engine, CounterReceipt::new(id, &charge.rule, charge.cost, charge.receipt))
            }
            _ => Receipt::Store(Arc::new((engine, charges, origin))),
        };
        Self { receipt, ..Self::uncharged(decision) }
    }

    /// For charges of which some are held. Dropping the permit settles these. `sent_at`: time of the
    /// request.
    pub(crate) fn held(engine: EngineRef, charges: Charges, origin: Origin, sent_at: Duration) -> Self {
        let decision = most_restrictive(&charges).map_or(Decision::fresh(u64::MAX), |charge| charge.decision);
        let (held, rest) = charges.split_held();
        let rest = (!rest.is_empty()).then(|| (engine.clone(), rest, origin));
        let held = Holding::new(engine, held, origin, sent_at);
        Self { receipt: Receipt::Hold(Box::new((held, rest))), ..Self::uncharged(decision) }
    }

    /// The holds of the permit, if any.
    pub(crate) fn into_holding(self) -> Option<Holding> {
        if let Receipt::Hold(held) = self.receipt { Some(held.0) } else { None }
    }

    /// True if something is held until the permit is dropped.
    #[cfg(feature = "tower")]
    pub(crate) fn holds(&self) -> bool {
        self.holding().is_some()
    }

    fn holding(&self) -> Option<&Holding> {
        if let Receipt::Hold(held) = &self.receipt { Some(&held.0) } else { None }
    }

    fn uncharged(Decision { limit, remaining, reset_after_ms, .. }: Decision) -> Self {
        Self { limit, remaining, reset_after_ms, receipt: Receipt::Nothing }
    }

    /// A permit for a call that shadow rules alone would refuse.
    pub(crate) fn of_shadow(decision: Decision) -> Self {
        Self::uncharged(decision)
    }

    /// A permit without a charge.
    pub(crate) fn free(charges: &[Charge]) -> Self {
        let limit = charges.iter().map(|charge| charge.rule.limit()).min().unwrap_or(u64::MAX);
        Self::uncharged(Decision::fresh(limit))
    }

    /// The rule that the numbers are about, and its cost. In a permit of the memory store, the rule
    /// has no name.
    #[cfg(any(feature = "axum", feature = "tower"))]
    pub(crate) fn most_restrictive(&self) -> Option<(Rule, u64)> {
        let of_store = |charges| {
            let charge = most_restrictive(charges).filter(|charge| !charge.rule.is_shadow())?;
            Some((charge.rule, charge.cost))
        };
        match &self.receipt {
            Receipt::Nothing => None,
            Receipt::InMemory(_, receipt) | Receipt::Prefetched(_, receipt) => Some((receipt.rule(), receipt.cost)),
            Receipt::Store(receipt) => of_store(&receipt.1),
            Receipt::Hold(held) => of_store(&held.1.as_ref()?.1),
            #[cfg(feature = "redis")]
            Receipt::Shared(_, entry, _) => entry.charge().map(|charge| (charge.rule, charge.cost)),
        }
    }

    /// The limit of the rule; with several rules, of the most restrictive one.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// The amount that remained after this call; with several rules, under the most restrictive
    /// one.
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// The time that the body of a call with `cost = Elapsed` may still use. Pass it to a database
    /// or a client as its own time limit. Zero when it is used up; [`Duration::MAX`] for a permit
    /// that is not charged by time.
    ///
    /// ```
    /// # use ratelimit_runtime::{Limiter, Rule};
    /// # use std::time::Duration;
    /// # const RULE: Rule = Rule::new("query", 10, Duration::from_secs(60));
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// # let limiter = Limiter::in_memory();
    /// let permit = limiter.acquire(&RULE, "alice").await?;
    /// assert_eq!(permit.remaining_time(), Duration::MAX);
    /// # Ok::<_, ratelimit_runtime::RequestPerMinute>(()) }).unwrap();
    /// ```
    pub fn remaining_time(&self) -> Duration {
        self.holding().map_or(Duration::MAX, Holding::remaining_time)
    }

    /// True if the permit certainly still holds a place of [`Algorithm::Concurrent`], or a charge
    /// that is not settled yet.
    ///
    /// On Redis a hold may be lost if it could not be renewed for a whole lease. The reason may be
    /// that this process was stopped, or that the network was away. A server that lost its counters
    /// has also lost the holds.
    ///
    /// [`OnStoreError::Local`](crate::OnStoreError::Local) grants holds during an outage of the
    /// server, where other processes may hold something too. Use `Deny` where that must not be.
    ///
    /// After a machine was asleep, its clock may make a lost hold look valid until the next
    /// renewal. A hold in a memory store lasts until it is dropped. A permit that holds nothing has
    /// nothing to lose.
    ///
    /// ```
    /// # use ratelimit_runtime::{Algorithm, Limiter, Rule};
    /// # use std::time::Duration;
    /// const EXPORTS: Rule = Rule::new("export", 1, Duration::from_secs(30)).with_algorithm(Algorithm::Concurrent);
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// # let limiter = Limiter::in_memory();
    /// let permit = limiter.acquire(&EXPORTS, "alice").await?;
    /// // before work that must not run twice at once:
    /// assert!(permit.is_held());
    /// # Ok::<_, ratelimit_runtime::RequestPerMinute>(()) }).unwrap();
    /// ```
    pub fn is_held(&self) -> bool {
        self.holding().is_none_or(Holding::is_held)
    }

    /// Time from the decision until the whole limit is available again, if there are no other
    /// calls.
    pub fn reset_after(&self) -> Duration {
        Duration::from_millis(self.reset_after_ms)
    }

    /// Refunds the charges of this permit, and returns the amount, over all of its rules.
    ///
    /// A charge that no longer counts is not refunded. A later window is never credited:
    ///
    /// | algorithm | refund |
    /// |---|---|
    /// | `FixedWindow` | all of it until the window ends, then nothing |
    /// | `SlidingLog` | all of it for one period, then nothing (see below) |
    /// | `SlidingWindow` | the part that still counts |
    /// | `TokenBucket` | the part that can't have refilled since; a part of a token counts as one |
    /// | `Concurrent`, and charges by time | all of it: the place is free, and no time was used |
    /// | `LeakyBucket` | all of it, if no later slot was given and its slot has not passed; otherwise nothing |
    ///
    /// A `SlidingLog` also refunds nothing behind more than 5,000 later entries, which would all
    /// have to be rewritten.
    ///
    /// # Errors
    ///
    /// [`Cause::Unavailable`](crate::Cause::Unavailable) or
    /// [`Cause::Misconfigured`](crate::Cause::Misconfigured) if the store did not confirm the
    /// refund within the limiter's deadline. The charge may or may not have been refunded then.
    ///
    /// # Cancellation
    ///
    /// If the future is dropped before it is done, the charge may or may not have been refunded.
    pub async fn refund(self) -> Result<u64, RequestPerMinute> {
        match self.receipt {
            Receipt::Nothing => Ok(0),
            Receipt::InMemory(engine, receipt) => Ok(engine.refund_in_memory(&receipt)),
            Receipt::Prefetched(engine, receipt) => {
                let refunded = engine.within_deadline(engine.refund_prefetched(&receipt)).await;
                engine.queues().changed_id(receipt.id);
                refunded.and_then(|refunded| refunded).map_err(|error| refusal(&receipt.rule(), error))
            }
            Receipt::Store(receipt) => {
                let Some((engine, charges, origin)) = Arc::into_inner(receipt) else { return Ok(0) };
                engine.refund(charges, origin).await
            }
            Receipt::Hold(held) => {
                let (holding, rest) = *held;
                let held = holding.amount();
                let rest = async {
                    match rest {
                        Some((engine, charges, origin)) => engine.refund(charges, origin).await,
                        None => Ok(0),
                    }
                };
                let (cancelled, rest) = tokio::join!(holding.cancel(), rest);
                cancelled.and(rest).map(|rest| held + rest)
            }
            #[cfg(feature = "redis")]
            Receipt::Shared(engine, entry, receipt) => engine.refund(entry.charged(receipt), Origin::Store).await,
        }
    }
}

impl Permit {
    /// Refunds the permit in the background. Holds are settled by the drop of `Holding`.
    pub(crate) fn abandon(self) {
        match self.receipt {
            Receipt::Nothing => {}
            Receipt::InMemory(engine, receipt) => drop(engine.refund_in_memory(&receipt)),
            // A caller who sleeps until its slot has no permit of this kind.
            Receipt::Prefetched(engine, receipt) => drop(engine.refund_prefetched(&receipt)),
            Receipt::Store(receipt) => {
                if let Some((engine, charges, origin)) = Arc::into_inner(receipt) {
                    engine.abandon(charges, origin);
                }
            }
            Receipt::Hold(held) => {
                if let (_, Some((engine, charges, origin))) = *held {
                    engine.abandon(charges, origin);
                }
            }
            #[cfg(feature = "redis")]
            Receipt::Shared(engine, entry, receipt) => {
                engine.abandon(entry.charged(receipt), Origin::Store);
            }
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("limit", &self.limit())
            .field("remaining", &self.remaining())
            .field("reset_after", &self.reset_after())
            .finish_non_exhaustive()
    }
}
