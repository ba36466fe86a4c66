//! A store that has to be asked, behind what this process knows already: denials that still hold, and quota taken ahead.

mod core;
mod denials;
mod prefetch;
mod quota;
mod upstream;

#[cfg(feature = "redis")]
use std::task::{Context, Poll, Waker};
use std::{sync::Arc, time::Duration};

use smallvec::SmallVec;
use tokio::runtime::Handle;

use self::core::InvalidateQuota;
#[cfg(feature = "redis")]
use self::denials::Denial;
pub(crate) use self::{core::Guard, quota::Spent, upstream::Upstream};
use crate::{
    CounterName, Decision, Rule, background,
    counter::CounterId,
    observe,
    store::{Batch, Charge, Charges, Reply, Request, Store, StoreError},
};
#[cfg(feature = "redis")]
use crate::{
    algorithm::Taken,
    backend::QueryTag,
    redis::{BatchTicket, Redis},
};

/// What need not be asked.
pub(crate) enum LocalAnswer {
    Spent(Spent),
    Denied(Decision),
}

impl Guard {
    /// What becomes of a cost that can be spent here, or of which it is known that the store would refuse it.
    pub(crate) fn known(&self, name: CounterId, rule: &Rule, cost: u64) -> Option<LocalAnswer> {
        let guard = &*self.0;
        let prefetches = rule.prefetch() > 1;
        if !prefetches && guard.denials.is_empty() {
            return None;
        }
        let now_us = guard.clock.now_us();
        if prefetches {
            match guard.batches.spend(name, rule, cost, now_us) {
                Ok((spent, take)) => {
                    if let Some(take) = take {
                        self.begin(take);
                    }
                    return Some(LocalAnswer::Spent(spent));
                }
                Err(0) => {}
                Err(_) => return None, // with what is here there may be enough
            }
        }
        let denial = guard.known(name, rule, cost, Duration::MAX, now_us)?;
        observe::cached_denial(rule);
        Some(LocalAnswer::Denied(denial.decision))
    }
}

#[cfg(feature = "redis")]
impl Guard {
    /// A share in a decision, where such travel together now: the short way for many callers at once. `charge`: what is to be charged, asked for
    /// if nobody is about to charge the same.
    #[inline]
    pub(crate) fn share(
        &self,
        name: CounterId,
        rule: &Rule,
        cost: u64,
        charge: impl FnOnce() -> Charge,
        waker: &Waker,
    ) -> Option<BatchTicket> {
        let Upstream::Redis(redis) = &self.0.store else { return None };
        if rule.prefetch() > 1 {
            return None; // what it takes is not for one caller
        }
        let is_same = |other: &Charge| other.cost == cost && other.rule == *rule;
        let asked = || self.0.asked(name, 0, self.0.clock.now_us());
        redis.try_charge(name, is_same, || (charge(), asked()), waker)
    }

    /// What came of it. Nothing for a caller who has waited for longer than the deadline.
    #[inline]
    pub(crate) fn poll(
        &self,
        share: &mut BatchTicket,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Taken, StoreError>>> {
        let guard = &self.0;
        let told = Redis::poll_charge(share, context, |decision, charge, look| {
            if let Some(asked) = decision.tag() {
                let denial = Denial { decision: look.decision, wait_ms: look.wait_ms };
                guard.keep(charge, denial, look.held, asked);
            }
        });
        let Poll::Ready(told) = told else {
            share.time_out_elsewhere(guard.deadline);
            return Poll::Pending;
        };
        if cfg!(feature = "metrics")
            && let Some(QueryTag { at_us, .. }) = share.tag()
        {
            observe::store_latency(Duration::from_micros(guard.clock.now_us().saturating_sub(at_us)));
        }
        if let (Some(Ok(taken)), Some(charge)) = (&told, share.charge())
            && taken.fits()
        {
            guard.denials.drop_one(charge.counter.id());
        }
        Poll::Ready(told)
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
        let one = |batch: Batch| batch.into_first().expect("a request, as was seen");
        match prefetched {
            Some(false) => self.peek_prefetched(one(batch)),
            // Without a runtime a caller can't wait for what is taken.
            Some(true) if Handle::try_current().is_ok() && background::runtime().is_ok() => {
                self.decide_prefetched(one(batch))
            }
            None if batch.iter().flat_map(|request| &*request.charges).any(|charge| charge.hold.is_some()) => {
                match background::runtime() {
                    Ok(_) => self.ask_upstream(batch),
                    // Without the background thread it would not be renewed.
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
            && self.put_back(counter.id(), *cost, *receipt)
        {
            return Reply::Ready(Ok(*cost));
        }
        self.return_charges(charges)
    }

    fn reset(&self, counter: CounterName) -> Reply<Result<(), StoreError>> {
        let void = InvalidateQuota { guard: Arc::clone(&self.0), name: counter.id() };
        let names = SmallVec::from_iter([counter.id()]);
        match self.forget_after(names, self.0.store.reset(counter)) {
            Reply::Ready(done) => Reply::Ready(done),
            Reply::Pending(done) => Reply::Pending(Box::pin(async move {
                let _void = void;
                done.await
            })),
        }
    }

    fn supports_holds(&self) -> bool {
        self.0.store.supports_holds()
    }

    fn renew(&self, charges: Vec<Charge>) -> Reply<Result<Vec<bool>, StoreError>> {
        // What had become a charge ends later than was known.
        let names = charges.first().map(|charge| charge.counter.id()).into_iter().collect();
        self.forget_after(names, self.0.store.renew(charges))
    }

    fn settle(&self, charge: Charge, used: u64) -> Reply<Result<(), StoreError>> {
        let names = SmallVec::from_iter([charge.counter.id()]);
        self.forget_after(names, self.0.store.settle(charge, used))
    }

    fn outage(&self) -> Option<StoreError> {
        self.0.store.outage()
    }
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

    use tokio::time::advance;

    use super::*;
    use crate::Limiter;

    const HOUR: Duration = Duration::from_secs(3600);
    const RULE: Rule = Rule::new("item", 1, HOUR);

    /// Refuses everything, or is away.
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

    /// Whoever learns of it first.
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
        let ask_ten = async || {
            let before = store.0.1.load(SeqCst);
            for key in 1000..1010 {
                assert!(limiter.acquire(&RULE, key).await.is_err());
            }
            store.0.1.load(SeqCst) - before
        };
        assert_eq!(ask_ten().await, 10);
        assert!(ask_ten().await < 10, "none of them is known");
    }
}
