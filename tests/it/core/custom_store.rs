//! A store that a user of the crate wrote, behind a limiter.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use ratelimit_runtime::store::{Batch, Charge, Charges, Reply, Request, StoreError};
use ratelimit_runtime::{
    Algorithm, Cause, CounterName, Decision, Key, Limiter, ManualClock, OnStoreError, Rule, Store,
};

use crate::support::plain_store::{PlainStore, on_plain_store};
use crate::support::{ALGORITHMS, FIXED, admitted, exceeded, hourly};

#[tokio::test]
async fn a_custom_store_decides_for_a_limiter() {
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

/// A store sees only what its docs promise: distinct counters, costs that could fit, and no
/// impossible call.
#[tokio::test]
async fn a_custom_store_is_asked_only_what_it_can_decide() {
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

/// Nothing can be awaited there, so nothing is prefetched.
#[test]
fn a_prefetching_rule_is_decided_outside_of_a_runtime() {
    let (limiter, store, _clock) = on_plain_store();
    let rule = hourly(3, ALGORITHMS[0]).with_prefetch(2);
    for calls in 1..=3 {
        limiter.acquire(&rule, 1).now_or_never().expect("the store answers at once").unwrap();
        assert_eq!(store.calls(), calls);
    }
    limiter.acquire(&rule, 1).now_or_never().expect("the store answers at once").unwrap_err();
    let left = limiter.peek(&rule, 1).now_or_never().expect("the store answers at once");
    assert_eq!(left.unwrap().remaining(), 0);
}

/// Each on its own, in this order, from first to last.
#[tokio::test]
async fn each_request_of_a_batch_is_decided_on_its_own_and_in_order() {
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
async fn a_custom_store_gets_the_charges_of_one_counter_as_one() {
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

/// The failure policy decides an unavailable store. A misconfigured store is an error under each
/// policy.
#[tokio::test]
async fn errors_of_a_custom_store_reach_the_caller() {
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

/// A store that breaks its contract is an error, and admits no call.
#[tokio::test]
async fn mistakes_of_a_custom_store_admit_no_call() {
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

/// A store may still release the hold of a request that it has refused. So the next request has another one.
#[tokio::test]
async fn a_call_that_is_asked_again_without_its_shadow_rule_has_a_new_hold() {
    #[derive(Clone, Debug, Default)]
    struct RefusesShadows(Arc<Mutex<Vec<u64>>>);

    impl Store for RefusesShadows {
        fn decide(&self, mut batch: Batch) -> Reply<Batch> {
            for request in batch.iter_mut() {
                self.0.lock().unwrap().extend(request.charges.iter().filter_map(|charge| Some(charge.hold?.id)));
                request.outcome = Ok(request.charges.iter().all(|charge| !charge.rule.is_shadow()));
                let wait = Duration::from_secs(1);
                request.charges.iter_mut().filter(|charge| charge.rule.is_shadow()).for_each(|charge| {
                    charge.decision = Decision::new(charge.rule.count(), 0, wait, Some(wait));
                });
            }
            Reply::Ready(batch)
        }
        fn refund(&self, _: Charges) -> Reply<Result<u64, StoreError>> {
            Reply::Ready(Ok(0))
        }
        fn supports_holds(&self) -> bool {
            true
        }
        fn settle(&self, _: Charge, _: u64) -> Reply<Result<(), StoreError>> {
            Reply::Ready(Ok(()))
        }
        fn reset(&self, _: CounterName) -> Reply<Result<(), StoreError>> {
            Reply::Ready(Ok(()))
        }
    }

    let (store, place, shadow) =
        (RefusesShadows::default(), hourly(1, Algorithm::Concurrent), hourly(1, FIXED).with_shadow(true));
    let limiter = Limiter::with_store(store.clone());
    limiter.acquire_all(&[(&place, Key::new(1), 1), (&shadow, Key::new(2), 1)]).await.unwrap();
    let ids = store.0.lock().unwrap().clone();
    assert!(ids.len() == 2 && ids[0] != ids[1], "{ids:?}");
}

/// The store never answers.
#[tokio::test(start_paused = true)]
async fn a_call_to_a_silent_custom_store_ends_at_the_deadline() {
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
