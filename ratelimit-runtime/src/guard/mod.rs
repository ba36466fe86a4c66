//! The guard: a denial cache and prefetched quota, in front of any store but the memory store.

mod core;
mod denials;
mod prefetch;
mod quota;
mod upstream;

#[cfg(not(feature = "redis"))]
use std::convert::Infallible as BatchTicket;
#[cfg(feature = "redis")]
use std::sync::Arc;
use std::{
    iter,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::runtime::Handle;

#[cfg(feature = "redis")]
use self::denials::Denial;
pub(crate) use self::{core::Guard, upstream::Upstream};
#[cfg(feature = "redis")]
use crate::redis::{BatchEntry, BatchTicket, NoOutcome};
use crate::{
    CounterName, Rule,
    backend::{Attempt, Backend, CounterReceipt, Query, Undecided, Waiter},
    background,
    counter::CounterId,
    decision::Outcome,
    observe,
    store::{Batch, Charge, Charges, Reply, Request, Store, StoreError},
};

/// Refunds a charge.
pub(crate) enum GuardReceipt {
    /// To the prefetched quota that it was spent from. Without a guard: to the counter.
    Counter(CounterReceipt),
    /// To the store: an entry of a batch, and the receipt of one of its charges.
    #[cfg(feature = "redis")]
    Entry(Arc<BatchEntry>, [u64; 2]),
}

impl From<CounterReceipt> for GuardReceipt {
    #[inline]
    fn from(receipt: CounterReceipt) -> Self {
        Self::Counter(receipt)
    }
}

/// From prefetched quota if the cost fits, by a cached denial, or in a batch with the charges of
/// other callers.
impl Backend for Guard {
    type Ticket = BatchTicket;
    type Receipt = GuardReceipt;

    fn try_charge(&self, query: &mut Query<'_>, waiter: Option<Waiter<'_, BatchTicket>>) -> Attempt {
        let Some(Waiter { waker, ticket }) = waiter else { return Attempt::Unsupported };
        if let Some(outcome) = self.answer_locally(query.id, query.rule, query.cost) {
            query.outcome = outcome;
            return Attempt::Decided;
        }
        *ticket = self.join_batch(query.id, query, waker);
        if ticket.is_some() { Attempt::Pending } else { Attempt::Unsupported }
    }

    /// A denial is cached on the way. An admission drops the cached denial of the counter.
    #[cfg(feature = "redis")]
    #[inline]
    fn poll_charge(
        &self,
        ticket: &mut BatchTicket,
        context: &mut Context<'_>,
    ) -> Poll<Result<(Outcome, GuardReceipt), Undecided>> {
        let guard = &self.0;
        let Upstream::Redis(redis) = &guard.store else {
            return Poll::Ready(Err(Undecided::Failed(StoreError::no_answer())));
        };
        let result = redis.poll_charge(ticket, context, |entry, charge, evaluation| {
            if let Some(tag) = entry.tag() {
                let denial = Denial { decision: evaluation.decision, wait_ms: evaluation.wait_ms };
                guard.cache_denial(charge, denial, evaluation.held, tag);
            }
        });
        let Poll::Ready(result) = result else {
            ticket.time_out_elsewhere(guard.deadline);
            return Poll::Pending;
        };
        // An entry that a call of the general way has made has no tag.
        let taken = || Some(Duration::from_micros(guard.clock.now_us().saturating_sub(ticket.tag()?.sent_us)));
        if cfg!(feature = "metrics")
            && let Some(taken) = taken()
        {
            observe::store_latency(taken);
        }
        let outcome = match result.unwrap_or_else(|| Err(NoOutcome::Failed(StoreError::late(guard.deadline)))) {
            Ok(outcome) => outcome,
            Err(NoOutcome::NotMade) => {
                let taken = taken().or_else(|| ticket.waited()).unwrap_or_default();
                let left = guard.deadline.saturating_sub(taken);
                return Poll::Ready(Err(Undecided::NotMade { left }));
            }
            Err(NoOutcome::Failed(error)) => return Poll::Ready(Err(Undecided::Failed(error))),
        };
        if let (true, Some(charge)) = (outcome.fits(), ticket.charge()) {
            guard.denials.remove(charge.counter.id());
        }
        let entry = ticket.take_entry().expect("its result was delivered just now");
        Poll::Ready(Ok((outcome, GuardReceipt::Entry(entry, outcome.receipt))))
    }

    #[cfg(not(feature = "redis"))]
    fn poll_charge(
        &self,
        ticket: &mut BatchTicket,
        _context: &mut Context<'_>,
    ) -> Poll<Result<(Outcome, GuardReceipt), Undecided>> {
        match *ticket {}
    }

    fn refund_charge(&self, receipt: GuardReceipt) -> Reply<Result<u64, StoreError>> {
        match receipt {
            GuardReceipt::Counter(receipt) => self.refund_spent(receipt.id, receipt.cost, receipt.receipt),
            #[cfg(feature = "redis")]
            GuardReceipt::Entry(entry, receipt) => self.refund(entry.charged(receipt)),
        }
    }
}

#[cfg_attr(not(feature = "redis"), allow(clippy::unnecessary_wraps))]
impl GuardReceipt {
    pub(crate) fn id(&self) -> Option<CounterId> {
        match self {
            Self::Counter(receipt) => Some(receipt.id),
            #[cfg(feature = "redis")]
            Self::Entry(entry, _) => entry.charge().map(|charge| charge.counter.id()),
        }
    }

    /// The charges that its refund passes to the store. Spent quota may be put back instead.
    pub(crate) fn charges(&self) -> Option<Charges> {
        match self {
            Self::Counter(_) => None,
            #[cfg(feature = "redis")]
            Self::Entry(entry, receipt) => Some(entry.charged(*receipt)),
        }
    }

    /// The rule, and the cost of the charge.
    pub(crate) fn rule_and_cost(&self) -> Option<(Rule, u64)> {
        match self {
            Self::Counter(receipt) => Some((receipt.rule(), receipt.cost)),
            #[cfg(feature = "redis")]
            Self::Entry(entry, _) => entry.charge().map(|charge| (charge.rule, charge.cost)),
        }
    }
}

impl Guard {
    /// Decides without the store: from prefetched quota if the cost fits, or by a cached denial.
    /// `None` if the store has to be asked.
    fn answer_locally(&self, id: CounterId, rule: &Rule, cost: u64) -> Option<Outcome> {
        let guard = &*self.0;
        let prefetches = rule.prefetch() > 1;
        if !prefetches && guard.denials.was_never_used() {
            return None;
        }
        let now_us = guard.clock.now_us();
        if prefetches {
            match guard.batches.spend(id, rule, cost, now_us) {
                Ok((outcome, prefetch)) => {
                    if let Some(prefetch) = prefetch {
                        self.start_prefetch(prefetch);
                    }
                    return Some(outcome);
                }
                Err(0) => {}
                Err(_) => return None, // quota is left here; with a prefetch it may be enough
            }
        }
        let denial = guard.cached_denial(id, rule, cost, Duration::MAX, now_us)?;
        observe::cached_denial(rule);
        Some(Outcome::new(denial.decision, [0; 2]))
    }

    /// Joins a batch entry of Redis, if decisions are being batched now: the fast path for many
    /// callers at once.
    #[cfg_attr(not(feature = "redis"), allow(unused_variables, clippy::unused_self))]
    #[inline]
    fn join_batch(&self, id: CounterId, query: &Query<'_>, waker: &Waker) -> Option<BatchTicket> {
        #[cfg(feature = "redis")]
        if let Upstream::Redis(redis) = &self.0.store
            && query.rule.prefetch() <= 1
            && query.rule.decides_at_once()
        {
            // A prefetch is not for one caller. The charge is made if no waiting entry makes it.
            let is_same = |other: &Charge| other.cost == query.cost && other.rule == *query.rule;
            let charge = || query.charge(&self.0.namespace);
            let tag = |slot| self.0.query_tag(id, slot, self.0.clock.now_us());
            return redis.try_charge(id, is_same, charge, tag, waker);
        }
        None
    }
}

impl Store for Guard {
    fn decide(&self, mut batch: Batch) -> Reply<Batch> {
        let prefetched = match &*batch {
            [Request { charges, consume, .. }] => match &**charges {
                [charge] if charge.rule.prefetch() > 1 && charge.cost > 0 => Some(*consume),
                _ => None,
            },
            _ => None,
        };
        let first = |batch: Batch| batch.into_first().expect("the batch has one request");
        match prefetched {
            Some(false) => self.peek_prefetched(first(batch)),
            // Without a runtime a caller can't wait for a prefetch.
            Some(true) if Handle::try_current().is_ok() && background::runtime().is_ok() => {
                self.decide_prefetched(first(batch))
            }
            None if batch.iter().flat_map(|request| &*request.charges).any(|charge| charge.hold.is_some()) => {
                match background::runtime() {
                    Ok(_) => self.ask_upstream(batch),
                    // Without the background thread the hold would not be renewed.
                    Err(error) => {
                        batch.iter_mut().for_each(|request| request.outcome = Err(error.clone()));
                        Reply::Ready(batch)
                    }
                }
            }
            _ => self.ask_upstream(batch),
        }
    }

    fn refund(&self, charges: Charges) -> Reply<Result<u64, StoreError>> {
        if let [Charge { rule, counter, cost, receipt, .. }] = &*charges
            && rule.prefetch() > 1
            && self.put_back(counter.id(), Some(rule.count()), *cost, *receipt)
        {
            return Reply::Ready(Ok(*cost));
        }
        self.refund_upstream(charges)
    }

    fn reset(&self, counter: CounterName) -> Reply<Result<(), StoreError>> {
        self.change_of(iter::once(&counter)).drop_permits().after(self.0.store.reset(counter))
    }

    fn supports_holds(&self) -> bool {
        self.0.store.supports_holds()
    }

    fn renew(&self, charges: Vec<Charge>) -> Reply<Result<Vec<bool>, StoreError>> {
        // A renewed hold ends later, so the waits of cached denials change.
        let change = self.change_of(charges.first().map(|charge| &charge.counter).into_iter());
        change.after(self.0.store.renew(charges))
    }

    fn settle(&self, charge: Charge, used: u64) -> Reply<Result<(), StoreError>> {
        self.change_of(iter::once(&charge.counter)).after(self.0.store.settle(charge, used))
    }

    fn supports_bans(&self) -> bool {
        self.0.store.supports_bans()
    }

    fn ban(&self, charge: Charge, time: Duration) -> Reply<Result<(), StoreError>> {
        self.change_of(iter::once(&charge.counter)).drop_permits().after(self.0.store.ban(charge, time))
    }

    fn outage(&self) -> Option<StoreError> {
        self.0.store.outage()
    }
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    };

    use tokio::time::{advance, sleep};

    use super::*;
    use crate::{Cause, Decision, Key, Limiter, ManualClock, OnStoreError};

    const HOUR: Duration = Duration::from_secs(3600);
    const RULE: Rule = Rule::new("item", 1, HOUR);

    /// A store that refuses everything, or is away. Counts its queries.
    #[derive(Clone, Debug, Default)]
    struct Refusing(Arc<(AtomicBool, AtomicU64)>);

    impl Store for Refusing {
        fn decide(&self, mut batch: Batch) -> Reply<Batch> {
            self.0.1.fetch_add(1, SeqCst);
            for request in batch.iter_mut() {
                request.outcome = self.outage().map_or(Ok(false), Err);
                request.charges[0].decision = Decision::new(1, 0, HOUR, Some(HOUR));
            }
            Reply::Pending(Box::pin(async move { batch }))
        }

        fn refund(&self, _: Charges) -> Reply<Result<u64, StoreError>> {
            Reply::Ready(Ok(0))
        }

        fn reset(&self, _: CounterName) -> Reply<Result<(), StoreError>> {
            Reply::Ready(Ok(()))
        }

        fn outage(&self) -> Option<StoreError> {
            self.0.0.load(SeqCst).then(|| StoreError::unavailable("away"))
        }
    }

    /// The outage may show in [`Store::outage`] first, or in the answer to a query.
    #[tokio::test(start_paused = true)]
    async fn denials_from_before_a_failure_make_room_for_others() {
        let store = Refusing::default();
        let limiter = Limiter::with_store(store.clone());
        for key in 0..1000 {
            assert!(limiter.acquire(&RULE, key).await.is_err());
        }
        store.0.0.store(true, SeqCst);
        for key in 0..1000 {
            let _ = limiter.acquire(&RULE, key).await;
        }
        store.0.0.store(false, SeqCst);
        advance(2 * Duration::from_secs(1)).await;
        let call_ten_keys = async || {
            let before = store.0.1.load(SeqCst);
            for key in 1000..1010 {
                assert!(limiter.acquire(&RULE, key).await.is_err());
            }
            store.0.1.load(SeqCst) - before
        };
        assert_eq!(call_ten_keys().await, 10);
        assert!(call_ten_keys().await < 10, "no denial was cached");
    }

    /// The other rule refuses the call. This one fits: in a cluster, another call may have seen it charged and
    /// not yet refunded.
    #[tokio::test]
    async fn a_cached_denial_is_dropped_when_a_refused_call_finds_that_it_fits() {
        let store = Refusing::default();
        let limiter = Limiter::with_store(store.clone());
        let other = Rule::new("other", 1, HOUR);
        let asked = async |charges: &[(&Rule, Key, u64)]| {
            let before = store.0.1.load(SeqCst);
            assert!(limiter.acquire_all(charges).await.is_err());
            store.0.1.load(SeqCst) - before
        };
        let item = [(&RULE, Key::new(1), 1)];
        assert_eq!([asked(&item).await, asked(&item).await], [1, 0]);
        let both = [(&other, Key::new(1), 1), (&RULE, Key::new(1), 1)];
        assert_eq!([asked(&both).await, asked(&item).await], [1, 1]);
    }

    /// A call that waits for the store asks it once it is back.
    #[tokio::test(start_paused = true)]
    async fn a_store_that_is_known_to_be_away_is_not_asked_again() {
        let store = Refusing::default();
        store.0.0.store(true, SeqCst);
        let builder = Limiter::builder("memory://").on_store_error(OnStoreError::Wait { max: HOUR });
        let limiter = builder.over(store.clone()).unwrap();
        let call = tokio::spawn(limiter.acquire(&RULE, 1));
        sleep(Duration::from_secs(60)).await;
        assert!(!call.is_finished());
        assert_eq!(store.0.1.load(SeqCst), 1);
        store.0.0.store(false, SeqCst);
        assert_eq!(call.await.unwrap().unwrap_err().cause(), Cause::Exceeded);
        assert_eq!(store.0.1.load(SeqCst), 2);
    }

    /// Without a prefetch in the background.
    #[tokio::test]
    async fn a_cached_denial_is_answered_at_once_also_with_prefetch() {
        let store = Refusing::default();
        let guard = Guard::new(Upstream::other(store.clone()), String::new(), ManualClock::new().into(), HOUR);
        let rule = RULE.with_prefetch(10);
        let decide = || {
            let charge = Charge::new(rule, CounterName::new("", &rule, &Key::new(1)), 1);
            guard.decide(Request::new(charge, true).into())
        };
        let denied = decide().answer().await.into_first().unwrap();
        assert!(!denied.outcome.unwrap());
        let Reply::Ready(batch) = decide() else { panic!("it waits for a prefetch") };
        assert!(!batch.into_first().unwrap().outcome.unwrap());
        assert_eq!(store.0.1.load(SeqCst), 1);
    }
}
