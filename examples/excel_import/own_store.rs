//! A store of this program's own: sliding logs in process memory.
//!
//! It shows all that the interface [`Store`] asks for. The crate's memory store is faster and has every algorithm. This
//! one looks at all of its entries in each call, which is fine for some thousands of them.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use ratelimit_runtime::{
    Algorithm, Clock, CounterName, Decision, Store,
    store::{Batch, Charges, Reply, Request, StoreError},
};

#[derive(Debug)]
pub(crate) struct OwnStore {
    clock: Clock,
    logs: Mutex<Logs>,
}

type Logs = HashMap<CounterName, Log>;

/// The charges of one counter, each by the time when it stops counting.
type Log = BTreeMap<Duration, u64>;

impl OwnStore {
    pub(crate) fn new(clock: impl Into<Clock>) -> Self {
        Self { clock: clock.into(), logs: Mutex::default() }
    }

    /// The charges that count now, and the time. While they are locked, no other call is decided.
    fn lock(&self) -> (MutexGuard<'_, Logs>, Duration) {
        let mut logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        logs.retain(|_, log| {
            log.retain(|until, charged| *until > now && *charged > 0);
            !log.is_empty()
        });
        (logs, now)
    }
}

impl Store for OwnStore {
    fn decide(&self, mut batch: Batch) -> Reply<Batch> {
        let (mut logs, now) = self.lock();
        for request in batch.iter_mut() {
            request.outcome = decide(&mut logs, request, now);
        }
        drop(logs);
        Reply::Ready(batch)
    }

    fn refund(&self, charges: Charges) -> Reply<Result<u64, StoreError>> {
        let (mut logs, _) = self.lock();
        let mut refunded = 0;
        for charge in charges.iter() {
            let until = Duration::from_nanos(charge.receipt[0]);
            if let Some(charged) = logs.get_mut(&charge.counter).and_then(|log| log.get_mut(&until)) {
                let cost = charge.cost.min(*charged);
                *charged -= cost;
                refunded += cost;
            }
        }
        Reply::Ready(Ok(refunded))
    }

    fn reset(&self, counter: CounterName) -> Reply<Result<(), StoreError>> {
        self.lock().0.remove(&counter);
        Reply::Ready(Ok(()))
    }
}

/// Makes all charges of a request, or none.
fn decide(logs: &mut Logs, request: &mut Request, now: Duration) -> Result<bool, StoreError> {
    if request.charges.iter().any(|charge| charge.rule.algorithm() != Algorithm::SlidingLog) {
        return Err(StoreError::misconfigured("this store has only sliding logs"));
    }
    let mut fits = true;
    for charge in request.charges.iter_mut() {
        let log = logs.get(&charge.counter).unwrap_or(const { &Log::new() });
        charge.decision = decision(log, charge.rule.count(), charge.cost, now);
        fits &= charge.decision.retry_after().is_none();
    }
    if fits && request.consume {
        for charge in request.charges.iter_mut().filter(|charge| charge.cost > 0) {
            let until = now + charge.rule.period();
            let log = logs.entry(charge.counter.clone()).or_default();
            *log.entry(until).or_default() += charge.cost;
            charge.receipt[0] = u64::try_from(until.as_nanos()).unwrap_or(u64::MAX);
            charge.decision = decision(log, charge.rule.count(), 0, now);
        }
    }
    Ok(fits)
}

/// The decision on a cost: the rest of the count, the time until all of it is back, and the retry-after.
fn decision(log: &Log, count: u64, cost: u64, now: Duration) -> Decision {
    let mut used = log.values().sum();
    let remaining = count.saturating_sub(used);
    let reset_after = log.last_key_value().map_or(Duration::ZERO, |(until, _)| until.saturating_sub(now));
    let retry_after = (cost > remaining).then(|| {
        let freed = log.iter().find(|(_, charged)| {
            used -= **charged;
            used + cost <= count
        });
        freed.map_or(Duration::MAX, |(until, _)| until.saturating_sub(now))
    });
    Decision::new(count, remaining, reset_after, retry_after)
}
