//! The permit that a caller gets, and the receipt that refunds it.

use std::{fmt, sync::Arc, time::Duration};

use super::{
    backend_kind::BackendReceipt,
    core::{EngineRef, Origin},
    hold::Holding,
    several::SeveralCharges,
};
use crate::{
    Decision, RequestPerMinute, Rule,
    backend::CounterReceipt,
    counter::CounterId,
    decision::{Outcome, PermitNumbers, ReadableNumber},
    store::{Charge, Charges},
};

/// The right to run once, already charged.
///
/// Dropping a permit does not refund it: the call counts. If the call did not happen, refund the
/// permit. Only what a permit holds ends with it. A place of
/// [`Algorithm::Concurrent`](crate::Algorithm::Concurrent) becomes free, and a call that is charged
/// by elapsed time has ended.
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
    numbers: PermitNumbers,
    receipt: Receipt,
}

/// The charges to refund. A permit is moved more often than it is refunded, so this is small.
pub(super) enum Receipt {
    Nothing,
    /// One charge that the backend has decided by itself. Dropping it frees a place.
    Backend(BackendCharge),
    /// Several charges that the backend has decided by itself. Dropping them frees their places.
    Several(Box<SeveralCharges>),
    /// In an `Arc`, though it is not shared. Dropping an `Arc` is short code, and that code stands
    /// in each limited function.
    Other(Arc<OtherReceipt>),
}

/// One charge that the backend has decided by itself, and `None` once it was taken out. Dropping it frees a place.
///
/// A place is no variant of its own of [`Receipt`]: with two variants of this size, each permit would be longer by a
/// tag, and each call by a twentieth.
pub(super) struct BackendCharge(Option<(EngineRef, BackendReceipt)>);

impl BackendCharge {
    #[inline]
    fn place(&self) -> Option<&CounterReceipt> {
        match &self.0 {
            Some((_, BackendReceipt::Counter(receipt))) if receipt.is_place() => Some(receipt),
            _ => None,
        }
    }

    /// Also frees a place.
    fn refund_in_background(&mut self) {
        if let Some((engine, receipt)) = self.0.take() {
            engine.refund_receipt_in_background(receipt);
        }
    }
}

impl Drop for BackendCharge {
    #[inline]
    fn drop(&mut self) {
        if self.place().is_some() {
            self.refund_in_background();
        }
    }
}

pub(super) enum OtherReceipt {
    /// Charges that the store has decided.
    Store(StoreReceipt),
    /// The holds, settled when the permit is dropped, and the charges that hold nothing.
    Hold(Holding, Option<StoreReceipt>),
}

impl From<OtherReceipt> for Receipt {
    fn from(receipt: OtherReceipt) -> Self {
        Self::Other(Arc::new(receipt))
    }
}

type StoreReceipt = (EngineRef, Charges, Origin);

/// The charge that leaves the least. Of equal ones, the one that takes longest to reset. Places come
/// after quota, and shadow rules come last.
fn most_restrictive<'a>(charges: impl IntoIterator<Item = &'a Charge>) -> Option<&'a Charge> {
    let room = |charge: &&Charge| {
        let Decision { remaining, reset_after_ms, .. } = charge.decision;
        (charge.rule.is_shadow(), charge.rule.is_concurrent(), remaining, u64::MAX - reset_after_ms)
    };
    charges.into_iter().min_by_key(room)
}

impl Receipt {
    #[inline]
    pub(super) fn of_backend(engine: EngineRef, receipt: BackendReceipt) -> Self {
        Self::Backend(BackendCharge(Some((engine, receipt))))
    }

    fn into_other(self) -> Option<OtherReceipt> {
        if let Self::Other(receipt) = self { Arc::into_inner(receipt) } else { None }
    }

    /// For charges that hold nothing. `is_single`: the call has no other rule. The caller knows
    /// which one, so the receipt need not.
    pub(super) fn of_charges(engine: EngineRef, charges: Charges, origin: Origin, is_single: bool) -> Self {
        match (&charges[..], origin, engine.memory()) {
            // A place that is not held is none to free: its cost is 0, or it was only looked for.
            ([charge], Origin::Store, Some(_))
                if is_single && !charge.rule.is_shadow() && !charge.rule.is_concurrent() =>
            {
                let receipt = CounterReceipt::new(charge.counter.id(), &charge.rule, charge.cost, charge.receipt);
                Self::of_backend(engine, receipt.into())
            }
            _ => OtherReceipt::Store((engine, charges, origin)).into(),
        }
    }

    /// For charges of which some are settled later. Dropping the permit settles these. `sent_at`: time of the
    /// request.
    pub(super) fn of_holds(engine: EngineRef, charges: Charges, origin: Origin, sent_at: Duration) -> Self {
        let (held, rest) = charges.split(Charge::is_settled_later);
        let rest = (!rest.is_empty()).then(|| (engine.clone(), rest, origin));
        let held = Holding::new(engine, held, origin, sent_at);
        OtherReceipt::Hold(held, rest).into()
    }
}

/// The decision that a permit shows for these charges: the one on the most restrictive charge.
pub(super) fn most_restrictive_decision(charges: &[Charge]) -> Decision {
    most_restrictive(charges).map_or(Decision::fresh(u64::MAX), |charge| charge.decision)
}

/// The decision that a permit shows for charges that no store counts.
pub(super) fn uncounted_decision(charges: &[Charge]) -> Decision {
    Decision::fresh(charges.iter().map(|charge| charge.rule.limit()).min().unwrap_or(u64::MAX))
}

impl Permit {
    /// For charges that the receipt refunds.
    #[inline]
    pub(super) fn new(limit: u64, outcome: &Outcome, receipt: Receipt) -> Self {
        Self { numbers: PermitNumbers::new(limit, outcome), receipt }
    }

    /// With the numbers that it shows.
    #[inline]
    pub(super) fn with_numbers(numbers: impl Into<PermitNumbers>, receipt: Receipt) -> Self {
        Self { numbers: numbers.into(), receipt }
    }

    /// For a place of a memory store. Dropping the permit frees it.
    #[inline(never)] // the code of other calls stays short
    pub(super) fn of_place(engine: EngineRef, id: CounterId, rule: &Rule, cost: u64, outcome: Outcome) -> Self {
        let receipt = CounterReceipt::new(id, rule, cost, outcome.receipt);
        Self::new(rule.limit(), &outcome, Receipt::of_backend(engine, receipt.into()))
    }

    /// For a call without a charge, with the numbers of a decision.
    pub(super) fn free(decision: Decision) -> Self {
        Self::with_numbers(decision, Receipt::Nothing)
    }

    /// The holds of the permit, if any.
    pub(crate) fn into_holding(self) -> Option<Holding> {
        if let OtherReceipt::Hold(holding, _) = self.receipt.into_other()? { Some(holding) } else { None }
    }

    /// True if something is held until the permit is dropped.
    #[cfg(feature = "tower")]
    pub(crate) fn holds(&self) -> bool {
        self.holding().is_some() || self.holds_place()
    }

    /// True if a place is held until the permit is dropped.
    #[cfg(feature = "tower")]
    pub(crate) fn holds_place(&self) -> bool {
        match &self.receipt {
            Receipt::Backend(charge) => charge.place().is_some(),
            Receipt::Several(charges) => charges.has_place(),
            _ => self.holding().is_some_and(Holding::has_place),
        }
    }

    fn holding(&self) -> Option<&Holding> {
        let Receipt::Other(receipt) = &self.receipt else { return None };
        if let OtherReceipt::Hold(holding, _) = &**receipt { Some(holding) } else { None }
    }

    fn holding_mut(&mut self) -> Option<&mut Holding> {
        let Receipt::Other(receipt) = &mut self.receipt else { return None };
        if let OtherReceipt::Hold(holding, _) = Arc::get_mut(receipt)? { Some(holding) } else { None }
    }

    /// The rule that the numbers are about, and its cost. `None` for a single place. The rule has no name if it is the
    /// only one, and was charged in memory or to prefetched quota.
    #[cfg(any(feature = "axum", feature = "tower"))]
    pub(crate) fn most_restrictive(&self) -> Option<(Rule, u64)> {
        fn of_store<'a>(charges: impl IntoIterator<Item = &'a Charge>) -> Option<(Rule, u64)> {
            let charge = most_restrictive(charges).filter(|charge| !charge.rule.is_shadow())?;
            Some((charge.rule, charge.cost))
        }
        match &self.receipt {
            Receipt::Nothing => None,
            Receipt::Backend(charge) if charge.place().is_some() => None,
            Receipt::Backend(charge) => charge.0.as_ref().and_then(|(_, receipt)| receipt.rule_and_cost()),
            Receipt::Several(charges) => charges.most_restrictive(),
            Receipt::Other(receipt) => match &**receipt {
                OtherReceipt::Store((_, charges, _)) => of_store(&**charges),
                OtherReceipt::Hold(held, rest) => {
                    of_store(rest.iter().flat_map(|(_, rest, _)| &**rest).chain(held.charges()))
                }
            },
        }
    }

    /// The limit of the rule; with several rules, of the most restrictive one. [`u64::MAX`] if no rule applies.
    pub fn limit(&self) -> u64 {
        self.numbers.limit
    }

    /// The amount that remained after this call; with several rules, under the most restrictive
    /// one.
    pub fn remaining(&self) -> u64 {
        self.numbers.remaining()
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

    /// False if a hold of this permit may be lost: a place of
    /// [`Algorithm::Concurrent`](crate::Algorithm::Concurrent), or a charge that is not settled yet. True for a permit
    /// that holds nothing, also if [`OnStoreError::Allow`](crate::OnStoreError::Allow) admitted its call in an outage.
    ///
    /// On Redis a hold may be lost if it could not be renewed for a whole lease. The reason may be
    /// that this process was stopped, or that the network was away. A server that lost its counters
    /// has also lost the holds.
    ///
    /// [`OnStoreError::Local`](crate::OnStoreError::Local) grants holds during an outage of the
    /// server, where other processes may hold something too. Such a hold is valid while a server is away, also in a
    /// later outage. Use `Deny` where that must not be: `Allow` takes no hold at all in an outage.
    ///
    /// After a machine was asleep, its clock may make a lost hold look valid until the next
    /// renewal. A hold in a memory store lasts until it is dropped; after [`Limiter::reset`](crate::Limiter::reset) it
    /// still looks valid there, and others may have the place.
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

    /// Adds to the cost that is charged when the permit is dropped, in place of its maximum.
    ///
    /// For a permit with `cost = Settled(max = ..)`, for example of a streamed answer: each part
    /// adds what it used. Without a record, the maximum is charged. It changes nothing for places and
    /// for charges by time, nor for a permit that is not settled.
    ///
    /// ```
    /// # use ratelimit_runtime::{Algorithm, Limiter, RequestPerMinute, Rule, limit_request_per_time};
    /// # use std::time::Duration;
    /// const TOKENS: Rule = Rule::new("tokens", 10_000, Duration::from_secs(60)).with_algorithm(Algorithm::SlidingLog);
    ///
    /// #[limit_request_per_time(rule = TOKENS, key = user, cost = Settled(max = 4_000), permit = mut permit)]
    /// async fn answer(user: u64) -> Result<(), RequestPerMinute> {
    ///     for part in ["one", "two"] {
    ///         permit.record(part.len() as u64);
    ///     }
    ///     Ok(())
    /// }
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let limiter = Limiter::in_memory();
    /// limiter.scope(answer(4711)).await?;
    /// assert_eq!(limiter.peek(&TOKENS, 4711).await?.remaining(), 9_994);
    /// # Ok::<_, RequestPerMinute>(()) }).unwrap();
    /// ```
    pub fn record(&mut self, more: u64) {
        if let Some(holding) = self.holding_mut() {
            holding.record(more);
        }
    }

    /// As [`Permit::record`], if more than `used` may have been used. The drop charges at least the maximum.
    #[cfg(feature = "tower")]
    pub(crate) fn record_part(&mut self, used: u64) {
        if let Some(holding) = self.holding_mut() {
            holding.record_part(used);
        }
    }

    /// Charges the cost `used` in place of the maximum of a `Settled` cost, and returns when the store
    /// has done so. Other charges of the call stay as they are.
    ///
    /// It does not add what was [recorded](Self::record). A place is freed, and time is charged as
    /// it passed. A permit that is not settled is only dropped.
    ///
    /// # Errors
    ///
    /// [`Cause::Unavailable`](crate::Cause::Unavailable) or
    /// [`Cause::Misconfigured`](crate::Cause::Misconfigured) if the store did not confirm within
    /// the limiter's deadline. Then either the maximum may be charged, or the used cost.
    ///
    /// # Cancellation
    ///
    /// A future that was polled once still settles when it is dropped. If it was never polled,
    /// dropping it drops the permit.
    ///
    /// ```
    /// # use ratelimit_runtime::{RequestPerMinute, limit_request_per_time};
    /// #[limit_request_per_time("tokens", 1, Minutes, 10_000, algorithm = SlidingLog,
    ///     cost = Settled(max = 4_000), permit = permit)]
    /// async fn answer() -> Result<&'static str, RequestPerMinute> {
    ///     let answer = "an answer of 5 tokens";
    ///     permit.settle(5).await?;
    ///     Ok(answer)
    /// }
    /// ```
    pub async fn settle(self, used: u64) -> Result<(), RequestPerMinute> {
        match self.into_holding() {
            Some(holding) => holding.settle(used).await,
            None => Ok(()),
        }
    }

    /// Time from the decision until the whole limit is available again, if there are no other
    /// calls.
    pub fn reset_after(&self) -> Duration {
        Duration::from_millis(self.numbers.reset_after_ms())
    }

    /// Refunds the charges of this permit, and returns the amount, over all of its rules.
    ///
    /// Code that is not async runs it with `block_on` of any tokio runtime.
    ///
    /// A charge that no longer counts is not refunded. A later window is not credited, but for [rare
    /// cases](crate::guide::promises#a-refund-arrives-late):
    ///
    /// | algorithm | refund |
    /// |---|---|
    /// | `FixedWindow` | all of it until the window ends, then nothing |
    /// | `SlidingLog` | all of it for one period, then nothing (see below) |
    /// | `SlidingWindow` | the part that still counts |
    /// | `TokenBucket` | the part that can't have refilled since; a part of a token counts as one (see below) |
    /// | `Concurrent`, and charges by time | all of it, also if the place was lost: it is free, and no time was used |
    /// | `LeakyBucket` | all of it, if no later slot was given and its slot has not passed; otherwise nothing |
    ///
    /// After a change of the count of a `TokenBucket`, a refund counts the refill at the higher of the two
    /// counts, until the bucket was full once.
    ///
    /// A `TokenBucket` refunds more of a charge with a `Settled` cost, and of a reservation: all that was unused, but
    /// at most the lowest number of tokens that were missing since the charge. That is nothing if it was full once.
    ///
    /// A `SlidingLog` also refunds nothing behind more than 5,000 later entries, which would all
    /// have to be rewritten. On Redis, a charge with a cost above 1 has two entries.
    ///
    /// # Errors
    ///
    /// [`Cause::Unavailable`](crate::Cause::Unavailable) or
    /// [`Cause::Misconfigured`](crate::Cause::Misconfigured) if the store did not confirm the
    /// refund within the limiter's deadline. The charge may or may not have been refunded then. If the
    /// request was not sent, or the server has refused it, it is sent again in the background. Not so if
    /// it waited for a connection until the deadline, or if a prefetched permit was acquired without waiting
    /// for the server.
    ///
    /// # Cancellation
    ///
    /// If the future is dropped before it is done, the charge may or may not have been refunded. It is not
    /// sent again.
    pub async fn refund(self) -> Result<u64, RequestPerMinute> {
        let receipt = match self.receipt {
            Receipt::Backend(mut charge) => {
                if let Some(place) = charge.place() {
                    return Ok(place.cost);
                }
                let Some((engine, receipt)) = charge.0.take() else { return Ok(0) };
                return engine.refund_receipt(receipt).await;
            }
            Receipt::Several(charges) => return charges.refund().await,
            receipt => receipt.into_other(),
        };
        match receipt {
            None => Ok(0),
            Some(OtherReceipt::Store((engine, charges, origin))) => engine.refund(charges, origin).await,
            Some(OtherReceipt::Hold(mut holding, rest)) => {
                let (engine, mut charges, origin) = holding.take_refundable();
                if let Some((_, rest, _)) = rest {
                    charges.append(rest);
                }
                let held = holding.amount();
                let (cancelled, refunded) = tokio::join!(holding.cancel(), engine.refund(charges, origin));
                cancelled.and(refunded).map(|refunded| held + refunded)
            }
        }
    }
}

impl Permit {
    /// Refunds the permit in the background. Holds are settled by the drop of `Holding`.
    pub(crate) fn refund_in_background(self) {
        let receipt = match self.receipt {
            Receipt::Backend(mut charge) => return charge.refund_in_background(),
            Receipt::Several(charges) => return charges.refund_in_background(),
            receipt => receipt.into_other(),
        };
        match receipt {
            None | Some(OtherReceipt::Hold(_, None)) => {}
            Some(
                OtherReceipt::Store((engine, charges, origin)) | OtherReceipt::Hold(_, Some((engine, charges, origin))),
            ) => {
                engine.refund_in_background(charges, origin);
            }
        }
    }
}

#[cfg(feature = "client")]
impl Permit {
    /// Splits off the charge of this counter, so that it can be refunded alone. The numbers stay those
    /// of the call.
    pub(crate) fn split(self, counter: crate::counter::CounterId) -> (Self, Self) {
        let Self { numbers, receipt } = self;
        let (its, rest) = match receipt {
            Receipt::Several(charges) => {
                let [its, rest] = charges.split(counter);
                (Receipt::Several(its), Receipt::Several(rest))
            }
            Receipt::Other(receipt) => match Arc::into_inner(receipt) {
                Some(OtherReceipt::Store((engine, charges, origin))) => {
                    let (its, rest) = charges.split(|charge| charge.counter.id() == counter);
                    let of = |charges| OtherReceipt::Store((engine.clone(), charges, origin)).into();
                    (of(its), of(rest))
                }
                hold => (Receipt::Nothing, hold.map_or(Receipt::Nothing, Receipt::from)),
            },
            rest => (Receipt::Nothing, rest),
        };
        let [its, rest] = [its, rest].map(|receipt| Self { numbers, receipt });
        (its, rest)
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("limit", &ReadableNumber(self.limit()))
            .field("remaining", &ReadableNumber(self.remaining()))
            .field("reset_after", &self.reset_after())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use super::*;
    use crate::{Algorithm, Limiter};

    /// Its drop would wake callers who wait for a place, and a web layer would keep it.
    #[tokio::test]
    async fn a_call_of_cost_0_has_no_place_to_free() {
        let rule = Rule::new("place", 1, Duration::from_secs(60)).with_algorithm(Algorithm::Concurrent);
        let limiter = Limiter::in_memory();
        for (cost, has_place) in [(0, false), (1, true)] {
            let permit = limiter.acquire_n(&rule, 1, cost).await.unwrap();
            let is_place = matches!(&permit.receipt, Receipt::Backend(charge) if charge.place().is_some());
            assert_eq!(is_place, has_place, "cost {cost}");
        }
    }
}
