//! Concurrency limits: how many places are held at once, and who gets a free one.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ratelimit_harness::RedisServer;
use ratelimit_runtime::__private::{
    Attempted, Call, charge, concurrent, key, limit_one, limit_several, permit_of_several,
};
use ratelimit_runtime::{Algorithm, Cause, Key, Limiter, Rule};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::support::holds::{LEASE, PLACES, remaining};
use crate::support::{MS, PATIENCE, SECOND, Timed, ends, eventually, exceeded, fresh_key, limiter_on, settle};

#[tokio::test]
async fn a_concurrency_limit_holds_at_most_its_count() {
    for timed in Timed::both().await {
        let (limiter, key) = (&timed.limiter, fresh_key());
        let one = limiter.acquire(&PLACES, key).await.unwrap();
        assert_eq!((one.limit(), one.remaining()), (2, 1));
        let two = limiter.acquire(&PLACES, key).await.unwrap();
        assert_eq!(two.remaining(), 0);
        let refused = exceeded(limiter.acquire(&PLACES, key).await);
        assert_eq!((refused.rule(), refused.limit(), refused.retry_after()), ("place", 2, None), "{}", timed.name());
        assert_eq!(refused.to_string(), "`place` is limited to 2 at once");
        let seen = limiter.peek(&PLACES, key).await.unwrap();
        assert_eq!((seen.remaining(), seen.retry_after()), (0, None));
        assert!(one.is_held() && two.is_held());
        assert_eq!(remaining(limiter, &PLACES, fresh_key()).await, 2);
        for _ in 0..10 {
            // A dropped place is free for the next call, although the server hears of it in the
            // background.
            drop(limiter.acquire(&PLACES, key).await.ok());
        }
        drop(one);
        let three = limiter.acquire(&PLACES, key).await.unwrap();
        assert_eq!(two.refund().await, Ok(1));
        assert_eq!(remaining(limiter, &PLACES, key).await, 1);
        let both = limiter.acquire_n(&PLACES, key, 2).await;
        exceeded(both);
        drop(three);
        assert_eq!(limiter.acquire_n(&PLACES, key, 2).await.unwrap().remaining(), 0);
        let never = limiter.acquire_n(&PLACES, key, 3).await.unwrap_err();
        assert_eq!(never.cause(), Cause::NeverFits);
    }
}

/// Without a permit, nobody would free it.
#[tokio::test]
async fn a_call_that_gets_no_permit_takes_no_place() {
    let (timed, call) = (Timed::memory().await, Call::DEFAULT);
    let one = limit_one(Some(&timed.limiter), call, PLACES, key(&4711), 1, &mut None);
    assert!(matches!(one, Attempted::Deferred(_)));
    let two = limit_several(Some(&timed.limiter), call, (charge(PLACES, key(&4711), 1), ()), &mut None);
    assert!(matches!(two, Attempted::Deferred(_)));
    assert_eq!(remaining(&timed.limiter, &PLACES, 4711).await, 2);
}

/// Its counter is another one: the place that it would free is held by a later permit.
#[tokio::test]
async fn a_permit_from_before_a_reset_frees_no_place() {
    for timed in Timed::both().await {
        let (limiter, key, rate) = (&timed.limiter, fresh_key(), Rule::new("rate", 100, 60 * SECOND));
        let all = [(&PLACES, Key::new(key), 2), (&rate, Key::new(key), 1)];
        let before = limiter.acquire_n(&PLACES, key, 2).await.unwrap();
        limiter.reset(&PLACES, key).await.unwrap();
        let again = limiter.acquire_all(&all).await.unwrap();
        drop(before);
        settle().await;
        exceeded(limiter.acquire(&PLACES, key).await);
        limiter.reset(&PLACES, key).await.unwrap();
        let last = limiter.acquire_n(&PLACES, key, 2).await.unwrap();
        drop(again);
        settle().await;
        exceeded(limiter.acquire(&PLACES, key).await);
        drop(last);
        assert_eq!(limiter.acquire_n(&PLACES, key, 2).await.unwrap().remaining(), 0, "{}", timed.name());
    }
}

#[tokio::test]
async fn a_released_place_goes_to_the_longest_waiting_caller() {
    for timed in Timed::both().await {
        let (limiter, key) = (timed.limiter.clone(), fresh_key());
        let places = PLACES;
        let (first, second) =
            (limiter.acquire(&places, key).await.unwrap(), limiter.acquire(&places, key).await.unwrap());
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        for at in 0..20 {
            let (limiter, tell) = (limiter.clone(), tell.clone());
            tasks.spawn(async move {
                let permit = limiter.acquire_within(&places, key, PATIENCE).await.unwrap();
                tell.send(at).unwrap();
                drop(permit);
            });
            settle().await;
        }
        drop((first, second));
        for at in 0..20 {
            assert_eq!(ends(told.recv()).await, Some(at), "{}", timed.name());
        }
        ends(tasks.join_all()).await;
        eventually("both are free", || async { remaining(&limiter, &places, key).await == 2 }).await;
    }
}

/// Even the shortest wait is enough.
#[tokio::test]
async fn a_caller_who_waits_two_milliseconds_gets_a_place_released_meanwhile() {
    for timed in Timed::both().await {
        let (limiter, key) = (timed.limiter.clone(), fresh_key());
        let first = limiter.acquire_n(&PLACES, key, 2).await.unwrap();
        let waiting = |longest| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.acquire_within(&PLACES, key, longest).await })
        };
        let [soon, later] = [MS, 2 * MS].map(waiting);
        settle().await;
        timed.advance(MS);
        exceeded(ends(soon).await.unwrap());
        assert!(!later.is_finished());
        drop(first);
        ends(later).await.unwrap().unwrap();
    }
}

/// A cost is stored as one number, however many places it takes.
#[tokio::test]
async fn one_call_may_hold_a_million_places() {
    const MANY: Rule = Rule::new("many", 1_000_000, LEASE).with_algorithm(Algorithm::Concurrent);
    for timed in Timed::both().await {
        let (limiter, key) = (&timed.limiter, fresh_key());
        let most = limiter.acquire_n(&MANY, key, 999_990).await.unwrap();
        assert_eq!(most.remaining(), 10, "{}", timed.name());
        let rest = limiter.acquire_n(&MANY, key, 10).await.unwrap();
        exceeded(limiter.acquire(&MANY, key).await);
        drop(most);
        assert_eq!(limiter.acquire_n(&MANY, key, 999_990).await.unwrap().refund().await, Ok(999_990));
        drop(rest);
        assert_eq!(limiter.acquire_n(&MANY, key, 1_000_000).await.unwrap().remaining(), 0, "{}", timed.name());
    }
}

/// Many callers of two limiters on two places: never more than two run at once, and all of them in
/// the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_of_two_limiters_never_exceed_a_concurrency_limit() {
    use std::sync::atomic::AtomicU64;

    let server = RedisServer::start();
    let redis = [limiter_on(&server).await, limiter_on(&server).await];
    for limiters in [redis.to_vec(), vec![Limiter::in_memory()]] {
        let (key, running, most, ran) =
            (fresh_key(), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let mut tasks = JoinSet::new();
        for at in 0..200 {
            let limiter = limiters[at % limiters.len()].clone();
            let (running, most, ran) = (Arc::clone(&running), Arc::clone(&most), Arc::clone(&ran));
            tasks.spawn(async move {
                let permit = limiter.acquire_within(&PLACES, key, 3 * PATIENCE).await.unwrap();
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                sleep(MS).await;
                ran.fetch_add(1, Ordering::SeqCst);
                running.fetch_sub(1, Ordering::SeqCst);
                drop(permit);
            });
        }
        tokio::time::timeout(6 * PATIENCE, tasks.join_all()).await.expect("they end");
        assert_eq!((most.load(Ordering::SeqCst), ran.load(Ordering::SeqCst)), (2, 200));
    }
}

#[tokio::test]
async fn a_refused_place_charges_no_quota_and_refused_quota_takes_no_place() {
    for timed in Timed::both().await {
        let (limiter, id) = (&timed.limiter, fresh_key());
        let rate = Rule::new("rate", 3, 60 * SECOND);
        let both = || {
            let charges = (charge(concurrent("joined", 1, 30_000), key(&id), 1), (charge(rate, key(&id), 1), ()));
            permit_of_several(Some(limiter), Call::DEFAULT, charges)
        };
        let place = Rule::new("joined", 1, LEASE).with_algorithm(Algorithm::Concurrent);
        let permit = both().await.unwrap();
        // Its numbers are those of the quota, though no place is left.
        assert_eq!((permit.limit(), permit.remaining()), (3, 2), "{}", timed.name());
        assert_eq!(exceeded(both().await).rule(), "joined");
        assert_eq!(remaining(limiter, &rate, id).await, 2);
        drop(permit);
        drop(both().await.unwrap());
        // Refunded, both of it.
        assert_eq!(both().await.unwrap().refund().await, Ok(2), "{}", timed.name());
        drop(both().await.unwrap());
        assert_eq!(exceeded(both().await).rule(), "rate");
        assert_eq!(remaining(limiter, &place, id).await, 1);
    }
}

#[tokio::test]
async fn a_concurrency_limit_cannot_be_reserved() {
    let refused = Limiter::in_memory().reserve(&PLACES, 1, 1).await.unwrap_err();
    assert_eq!(refused.cause(), Cause::Misconfigured);
}
