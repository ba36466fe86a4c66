//! A store as a user of the crate writes one: a fixed window of the plainest kind.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ratelimit_runtime::store::{Batch, Charge, Charges, Reply, Request, StoreError};
use ratelimit_runtime::{CounterName, Decision, Limiter, ManualClock, OnStoreError, Store};
use tokio::sync::Semaphore;

/// A fixed window of the plainest kind. Counts the calls it gets; can be made to hold its answers, or to fail.
#[derive(Clone, Debug)]
pub(crate) struct PlainStore(Arc<Plain>);

#[derive(Debug)]
struct Plain {
    clock: ManualClock,
    windows: Mutex<HashMap<CounterName, (Duration, u64)>>,
    calls: AtomicUsize,
    seen: Mutex<Vec<CounterName>>,
    holds: AtomicBool,
    released: Semaphore,
    fails: Mutex<Option<StoreError>>,
}

impl PlainStore {
    pub(crate) fn new(clock: &ManualClock) -> Self {
        Self(Arc::new(Plain {
            clock: clock.clone(),
            windows: Mutex::default(),
            calls: AtomicUsize::new(0),
            seen: Mutex::default(),
            holds: AtomicBool::new(false),
            released: Semaphore::new(0),
            fails: Mutex::new(None),
        }))
    }

    /// How often it was asked.
    pub(crate) fn calls(&self) -> usize {
        self.0.calls.load(Ordering::Relaxed)
    }

    /// The counters it was asked about.
    pub(crate) fn seen(&self) -> Vec<CounterName> {
        std::mem::take(&mut self.0.seen.lock().unwrap())
    }

    /// From now on every answer waits for a [`PlainStore::release`].
    pub(crate) fn hold(&self) {
        self.0.holds.store(true, Ordering::Relaxed);
    }

    /// Lets one answer go.
    pub(crate) fn release(&self) {
        self.0.released.add_permits(1);
    }

    /// From now on every decision fails, or none.
    pub(crate) fn fail(&self, error: Option<StoreError>) {
        *self.0.fails.lock().unwrap() = error;
    }

    fn decide_now(&self, batch: &mut Batch) {
        for request in batch.iter_mut() {
            request.outcome = match self.0.fails.lock().unwrap().clone() {
                Some(error) => Err(error),
                None => Ok(self.decide_one(request)),
            };
        }
    }

    fn decide_one(&self, request: &mut Request) -> bool {
        let (now, mut windows) = (self.0.clock.now(), self.0.windows.lock().unwrap());
        let mut fits = true;
        for Charge { rule, counter, cost, decision, .. } in request.charges.iter_mut() {
            let (end, used) = windows.get(counter).copied().filter(|(end, _)| *end > now).unwrap_or((now, 0));
            let remaining = rule.count().saturating_sub(used);
            let retry_after = (*cost > remaining).then(|| end - now);
            *decision = Decision::new(rule.count(), remaining, end - now, retry_after);
            fits &= *cost <= remaining;
        }
        for Charge { rule, counter, cost, decision, receipt, .. } in request.charges.iter_mut() {
            if fits && request.consume && *cost > 0 {
                let window = windows.entry(counter.clone()).or_insert((now, 0));
                if window.0 <= now {
                    *window = (now + rule.period(), 0);
                }
                window.1 += *cost;
                receipt[0] = u64::try_from(window.0.as_micros()).unwrap(); // for prefetched permits
                *decision = Decision::new(rule.count(), decision.remaining() - *cost, window.0 - now, None);
            }
        }
        fits
    }
}

impl Store for PlainStore {
    fn decide(&self, mut batch: Batch) -> Reply<Batch> {
        self.0.calls.fetch_add(1, Ordering::Relaxed);
        let counters = batch.iter().flat_map(|request| request.charges.iter()).map(|charge| charge.counter.clone());
        self.0.seen.lock().unwrap().extend(counters);
        if !self.0.holds.load(Ordering::Relaxed) {
            self.decide_now(&mut batch);
            return Reply::Ready(batch);
        }
        let store = self.clone();
        Reply::Pending(Box::pin(async move {
            store.0.released.acquire().await.unwrap().forget();
            store.decide_now(&mut batch);
            batch
        }))
    }

    fn refund(&self, charges: Charges) -> Reply<Result<u64, StoreError>> {
        let mut windows = self.0.windows.lock().unwrap();
        let mut back = 0;
        for charge in charges.iter() {
            if let Some((_, used)) = windows.get_mut(&charge.counter) {
                *used -= charge.cost;
                back += charge.cost;
            }
        }
        Reply::Ready(Ok(back))
    }

    fn reset(&self, counter: CounterName) -> Reply<Result<(), StoreError>> {
        self.0.windows.lock().unwrap().remove(&counter);
        if !self.0.holds.load(Ordering::Relaxed) {
            return Reply::Ready(Ok(()));
        }
        let store = self.clone();
        Reply::Pending(Box::pin(async move {
            store.0.released.acquire().await.unwrap().forget();
            Ok(())
        }))
    }
}

pub(crate) fn on_plain_store() -> (Limiter, PlainStore, ManualClock) {
    let clock = ManualClock::new();
    let store = PlainStore::new(&clock);
    let limiter = Limiter::builder("memory://").clock(clock.clone()).on_store_error(OnStoreError::Deny);
    (limiter.over(store.clone()).unwrap(), store, clock)
}
