//! A store of one's own, as somebody outside of the crate writes it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ratelimit_runtime::store::{Batch, Charge, Charges, Reply, Request, StoreError};
use ratelimit_runtime::{Cause, CounterName, Decision, Key, Limiter, ManualClock, OnStoreError, Rule, Store};
use tokio::sync::Semaphore;

use crate::support::{ALGORITHMS, admitted, exceeded, hourly};

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
        for Charge { rule, counter, cost, decision, .. } in request.charges.iter_mut() {
            if fits && request.consume && *cost > 0 {
                let window = windows.entry(counter.clone()).or_insert((now, 0));
                if window.0 <= now {
                    *window = (now + rule.period(), 0);
                }
                window.1 += *cost;
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
        Reply::Ready(Ok(()))
    }
}

pub(crate) fn on_plain_store() -> (Limiter, PlainStore, ManualClock) {
    let clock = ManualClock::new();
    let store = PlainStore::new(&clock);
    let limiter = Limiter::builder("memory://").clock(clock.clone()).on_store_error(OnStoreError::Deny);
    (limiter.over(store.clone()).unwrap(), store, clock)
}

#[tokio::test]
async fn decides_for_a_limiter() {
    let clock = ManualClock::new();
    let store = PlainStore::new(&clock);
    let limiter = Limiter::with_store(store.clone());
    let (rule, other) = (Rule::new("own", 3, Duration::from_secs(60)), hourly(2, ALGORITHMS[0]));
    assert_eq!(admitted(&limiter, &rule, 1, 5).await, 3);
    assert_eq!(store.calls(), 5);
    let refused = exceeded(limiter.acquire(&rule, 1).await);
    assert_eq!((refused.retry_after(), refused.rule()), (Some(Duration::from_secs(60)), "own"));
    assert_eq!(limiter.peek(&rule, 1).await.unwrap().remaining(), 0);

    let charges = [(&rule, Key::new(2), 3), (&other, Key::new(2), 1)];
    let permit = limiter.acquire_all(&charges).await.unwrap();
    assert_eq!((permit.limit(), permit.remaining()), (3, 0));
    assert_eq!(exceeded(limiter.acquire_all(&charges).await).rule(), "own");
    assert_eq!(permit.refund().await.unwrap(), 4);
    limiter.reset(&rule, 1).await.unwrap();
    assert_eq!(admitted(&limiter, &rule, 1, 5).await, 3);
    clock.advance(Duration::from_secs(60));
    assert_eq!(admitted(&limiter, &rule, 1, 5).await, 3);
}

/// It sees what the docs promise: distinct counters, costs that could fit, nothing for an impossible call.
#[tokio::test]
async fn is_asked_only_what_it_can_decide() {
    let (limiter, store, _clock) = on_plain_store();
    let rule = hourly(3, ALGORITHMS[0]);
    limiter.acquire_n(&rule, 1, 4).await.unwrap_err();
    limiter.acquire(&hourly(0, ALGORITHMS[0]), 1).await.unwrap_err();
    limiter.acquire(&Rule::new("", 1, Duration::from_secs(1)), 1).await.unwrap_err();
    limiter.acquire_all(&[]).await.unwrap();
    assert_eq!(store.calls(), 0);
    limiter.acquire_all(&[(&rule, Key::new(1), 1), (&rule, Key::new("1"), 1)]).await.unwrap();
    assert_eq!(store.seen().len(), 1);
}

/// Each on its own, in this order, from first to last.
#[tokio::test]
async fn a_batch_is_a_list_of_requests() {
    let (limiter, store, _clock) = on_plain_store();
    let rule = hourly(3, ALGORITHMS[0]);
    for key in [1, 2] {
        limiter.peek(&rule, key).await.unwrap();
    }
    let [one, two] = store.seen().try_into().unwrap();
    let request =
        |counter: &CounterName, cost, consume| Request::new(Charge::new(rule, counter.clone(), cost), consume);
    let batch: Batch = [
        request(&one, 2, true),
        request(&two, 3, true),
        request(&one, 2, true),
        request(&one, 1, false),
        request(&one, 1, true),
    ]
    .into_iter()
    .collect();
    assert!(batch.iter().all(|request| request.outcome.is_err()), "nothing is decided yet");
    let Reply::Ready(batch) = store.decide(batch) else { panic!("nothing holds it") };
    let outcomes: Vec<_> = batch.iter().map(|request| request.outcome.clone().unwrap()).collect();
    assert_eq!(outcomes, [true, true, false, true, true]);
    let remaining: Vec<_> = batch.iter().map(|request| request.charges[0].decision.remaining()).collect();
    assert_eq!(remaining, [1, 0, 1, 1, 0]);
}

/// Two charges of one counter are one: the costs add up, and the lower count holds.
#[tokio::test]
async fn charges_of_one_counter_are_one() {
    let (limiter, store, _clock) = on_plain_store();
    let (rule, lower) = (hourly(9, ALGORITHMS[0]), hourly(5, ALGORITHMS[0]));
    limiter.peek(&rule, 1).await.unwrap();
    limiter.peek(&rule, 2).await.unwrap();
    let [one, two] = store.seen().try_into().unwrap();
    let mut charges = Charges::from(Charge::new(rule, one.clone(), 2));
    charges.push(Charge::new(lower, one.clone(), 4));
    charges.push(Charge::new(rule, two, 1));
    charges.push(Charge::new(rule, one.clone(), 1));
    let listed: Vec<_> = charges.iter().map(|charge| (charge.rule.count(), charge.cost)).collect();
    assert_eq!(listed, [(5, 7), (9, 1)]);
    charges.push(Charge::new(rule, one, u64::MAX));
    assert_eq!(charges[0].cost, u64::MAX);
}

/// What it cannot decide goes by the policy; what is wrong with it is told whatever the policy.
#[tokio::test]
async fn its_errors_reach_the_caller() {
    let rule = hourly(8, ALGORITHMS[0]);
    for policy in [OnStoreError::Deny, OnStoreError::Allow, OnStoreError::Local] {
        let clock = ManualClock::new();
        let store = PlainStore::new(&clock);
        let limiter =
            Limiter::builder("memory://").clock(clock.clone()).on_store_error(policy).instances(4).over(store.clone());
        let limiter = limiter.unwrap();
        store.fail(Some(StoreError::unavailable("gone fishing")));
        let mut answers = Vec::new();
        for _ in 0..4 {
            answers
                .push(limiter.acquire(&rule, 1).await.map(|permit| permit.limit()).map_err(|refused| refused.cause()));
        }
        let expected = match policy {
            OnStoreError::Deny => [Err(Cause::Unavailable); 4],
            OnStoreError::Allow => [Ok(8); 4],
            OnStoreError::Local => [Ok(2), Ok(2), Err(Cause::Exceeded), Err(Cause::Exceeded)],
            other => panic!("{other:?} is not tested"),
        };
        assert_eq!(answers, expected, "{policy:?}");
        assert_eq!(limiter.peek(&rule, 1).await.unwrap_err().cause(), Cause::Unavailable);

        store.fail(Some(StoreError::misconfigured("no such table")));
        let refused = limiter.acquire(&rule, 1).await.unwrap_err();
        assert_eq!(refused.cause(), Cause::Misconfigured, "{policy:?}");
        assert!(refused.to_string().contains("no such table"), "{refused}");

        store.fail(None);
        assert_eq!(admitted(&limiter, &rule, 1, 10).await, 8, "{policy:?}: back again");
    }
}

/// A store that breaks its promises is told so, and nobody is let through by it.
#[tokio::test]
async fn its_mistakes_admit_nobody() {
    #[derive(Debug)]
    struct Loses;

    #[derive(Debug)]
    struct RefusesWithoutAWait;

    impl Store for Loses {
        fn decide(&self, _: Batch) -> Reply<Batch> {
            Reply::Ready(Batch::default())
        }
        fn refund(&self, _: Charges) -> Reply<Result<u64, StoreError>> {
            Reply::Ready(Ok(0))
        }
        fn reset(&self, _: CounterName) -> Reply<Result<(), StoreError>> {
            Reply::Ready(Ok(()))
        }
    }

    impl Store for RefusesWithoutAWait {
        fn decide(&self, mut batch: Batch) -> Reply<Batch> {
            batch.iter_mut().for_each(|request| request.outcome = Ok(false));
            Reply::Ready(batch)
        }
        fn refund(&self, _: Charges) -> Reply<Result<u64, StoreError>> {
            Reply::Ready(Ok(0))
        }
        fn reset(&self, _: CounterName) -> Reply<Result<(), StoreError>> {
            Reply::Ready(Ok(()))
        }
    }

    let rule = hourly(3, ALGORITHMS[0]);
    for limiter in [Limiter::with_store(Loses), Limiter::with_store(RefusesWithoutAWait)] {
        assert_eq!(limiter.acquire(&rule, 1).await.unwrap_err().cause(), Cause::Misconfigured);
        let waiting = limiter.acquire_within(&rule, 1, Duration::from_secs(9)).await;
        assert_eq!(waiting.unwrap_err().cause(), Cause::Misconfigured);
    }
    assert_eq!(Limiter::with_store(Loses).peek(&rule, 1).await.unwrap_err().cause(), Cause::Misconfigured);
}

/// It never answers: the deadline does.
#[tokio::test(start_paused = true)]
async fn its_silence_ends_at_the_deadline() {
    let (rule, clock) = (hourly(3, ALGORITHMS[0]), ManualClock::new());
    let store = PlainStore::new(&clock);
    let limiter = Limiter::builder("memory://").deadline(Duration::from_secs(3)).on_store_error(OnStoreError::Deny);
    let limiter = limiter.over(store.clone()).unwrap();
    store.hold();
    let started = tokio::time::Instant::now();
    assert_eq!(limiter.acquire(&rule, 1).await.unwrap_err().cause(), Cause::Unavailable);
    assert_eq!(started.elapsed(), Duration::from_secs(3));
    assert_eq!(limiter.peek(&rule, 1).await.unwrap_err().cause(), Cause::Unavailable);
    assert_eq!(started.elapsed(), Duration::from_secs(6));
    store.release();
    limiter.acquire(&rule, 1).await.unwrap();
}
