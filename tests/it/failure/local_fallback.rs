//! `OnStoreError::Local`: each process decides alone, by its share of the limit.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ratelimit_harness::RedisServer;
use ratelimit_runtime::store::StoreError;
use ratelimit_runtime::{Algorithm, Cause, Key, Limiter, ManualClock, Refill, Rule};
use tokio::task::JoinSet;

use super::HOUR;
use crate::support::log::Log;
use crate::support::plain_store::PlainStore;
use crate::support::{ALGORITHMS, FIXED, PATIENCE, admitted, ends, exceeded, fresh_key, hourly, settle};

fn on_failing_store(instances: u32) -> (Limiter, PlainStore, ManualClock) {
    let clock = ManualClock::new();
    let store = PlainStore::new(&clock);
    let limiter = Limiter::builder("memory://").clock(clock.clone()).instances(instances).over(store.clone());
    store.fail(Some(gone()));
    (limiter.unwrap(), store, clock)
}

fn gone() -> StoreError {
    StoreError::unavailable("gone fishing")
}

/// One outage a second, and one share an hour.
#[tokio::test]
async fn the_local_fallback_grants_one_share_over_many_outages() {
    for algorithm in ALGORITHMS {
        let (limiter, store, clock) = on_failing_store(4);
        let (rule, key) = (hourly(40, algorithm), fresh_key());
        let mut granted = 0;
        for _ in 0..20 {
            store.fail(Some(gone()));
            granted += admitted(&limiter, &rule, key, 3).await;
            store.fail(None);
            limiter.acquire(&hourly(1000, FIXED), "another").await.unwrap();
            clock.advance(Duration::from_secs(1));
        }
        assert_eq!(granted, 10, "{algorithm:?}");
    }
}

#[tokio::test]
async fn the_local_fallback_keeps_the_rate_of_a_bucket_smaller_than_the_instances() {
    let second = Duration::from_secs(1);
    let rule = Rule::new("small", 100, second);
    for algorithm in [Algorithm::TokenBucket { burst: 5, refill: Refill::Greedy }, Algorithm::LeakyBucket { queue: 5 }]
    {
        let (limiter, _store, clock) = on_failing_store(10);
        let rule = rule.with_algorithm(algorithm);
        for _ in 0..20 {
            limiter.acquire(&rule, 1).await.unwrap();
            exceeded(limiter.acquire(&rule, 1).await);
            clock.advance(second / 10);
        }
        let refused = limiter.acquire_n(&rule, 1, 2).await.unwrap_err();
        assert_eq!(refused.cause(), Cause::Unavailable);
    }
}

#[tokio::test]
async fn the_local_fallback_says_that_its_share_is_zero() {
    let (limiter, _store, _clock) = on_failing_store(10);
    let rule = hourly(9, FIXED);
    let refused = limiter.acquire(&rule, 1).await.unwrap_err();
    assert_eq!(refused.cause(), Cause::Unavailable);
    let words = refused.to_string();
    for part in ["gone fishing", "`item`", "10 instances", "is 0"] {
        assert!(words.contains(part), "{words}");
    }
}

#[tokio::test]
async fn the_local_fallback_charges_all_rules_or_none() {
    let (limiter, _store, _clock) = on_failing_store(2);
    let (one, other) = (hourly(10, FIXED), Rule::new("other", 4, HOUR));
    let charges = [(&one, Key::new(1), 1), (&other, Key::new(1), 1)];
    for _ in 0..2 {
        limiter.acquire_all(&charges).await.unwrap();
    }
    assert_eq!(exceeded(limiter.acquire_all(&charges).await).rule(), "other");
    assert_eq!(admitted(&limiter, &one, 1, 9).await, 3, "what was refused was not charged");
}

/// Callers queue for the share as for the limit.
#[tokio::test]
async fn the_local_fallback_serves_waiting_callers_in_order() {
    let (limiter, store, clock) = on_failing_store(2);
    let rule = Rule::new("wait", 2, Duration::from_secs(1));
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut waiting = JoinSet::new();
    for number in 0..4 {
        let (limiter, served) = (limiter.clone(), Arc::clone(&served));
        waiting.spawn(async move {
            limiter.acquire_within(&rule, 1, HOUR).await.unwrap();
            served.lock().unwrap().push(number);
        });
        settle().await;
    }
    for expected in 1..=2 {
        assert_eq!(served.lock().unwrap().len(), expected);
        clock.advance(Duration::from_secs(1));
        settle().await;
    }
    store.fail(None); // the store has its whole count, by now
    for _ in 0..2 {
        clock.advance(Duration::from_secs(1));
        settle().await;
    }
    ends(waiting.join_all()).await;
    assert_eq!(*served.lock().unwrap(), [0, 1, 2, 3]);
}

/// The share is used up for an hour, and the store has room as soon as it is back.
#[tokio::test]
async fn waiting_callers_ask_the_store_soon_after_an_outage() {
    let (limiter, store, clock) = on_failing_store(2);
    let rule = hourly(4, FIXED);
    let waiting = |longest| {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.acquire_within(&rule, 1, longest).await })
    };
    assert_eq!(admitted(&limiter, &rule, 1, 4).await, 2, "its share");
    let first = waiting(2 * HOUR);
    settle().await;
    assert!(!first.is_finished());
    store.fail(None);
    let second = waiting(Duration::from_secs(30));
    settle().await;
    clock.advance(Duration::from_secs(2));
    for call in [first, second] {
        ends(call).await.unwrap().unwrap();
    }
}

/// While the store is away, a part of a cost is what fits the share.
#[tokio::test]
async fn the_local_fallback_grants_a_part_of_a_cost() {
    let (limiter, _store, _clock) = on_failing_store(4);
    let (granted, _) = limiter.acquire_up_to(&hourly(100, FIXED), 1, 80).await.unwrap();
    assert_eq!(granted, 25);
}

/// A caller who stops waiting asks once more, for the numbers of its refusal, and charges nothing.
#[tokio::test]
async fn the_local_fallback_charges_nothing_to_callers_who_stop_waiting() {
    let (limiter, store, clock) = on_failing_store(1);
    let rule = Rule::new("stop", 1, Duration::from_secs(1));
    store.hold();
    let waiting = |longest| {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.acquire_within(&rule, 1, longest).await })
    };
    let first = waiting(HOUR);
    settle().await;
    store.release();
    settle().await;
    assert!(first.is_finished());
    let asks = waiting(HOUR);
    settle().await;
    store.release(); // refused, and first in line
    settle().await;
    let stops = waiting(Duration::from_secs(2));
    settle().await;
    clock.advance(Duration::from_secs(1)); // the first in the queue asks
    settle().await;
    clock.advance(Duration::from_secs(1)); // the other one stops, and asks too
    settle().await;
    asks.abort();
    settle().await;
    store.release();
    settle().await;
    exceeded(ends(stops).await.unwrap());
    assert_eq!(store.calls(), 4);
    store.release();
    ends(limiter.acquire(&rule, 1)).await.unwrap();
}

/// Each process counts its share alone: rule by rule, key by key, all or nothing.
#[tokio::test]
async fn the_local_fallback_admits_the_share_of_this_process() {
    let mut server = RedisServer::start();
    for algorithm in ALGORITHMS {
        let builder = Limiter::builder(&server.url()).deadline(PATIENCE).instances(4);
        let limiter = builder.lazy().build().await.unwrap();
        server.kill();
        let (ten, three, other) =
            (hourly(10, algorithm), hourly(3, algorithm), Rule::new("other", 40, Duration::from_secs(3600)));
        assert_eq!(admitted(&limiter, &ten, 1, 9).await, 2, "{algorithm:?}");
        assert_eq!(admitted(&limiter, &ten, 2, 9).await, 2, "{algorithm:?}");
        let refused = limiter.acquire(&three, 3).await.unwrap_err();
        assert_eq!((refused.cause(), refused.retry_after()), (Cause::Unavailable, None), "{refused}");
        assert_eq!(limiter.acquire_n(&ten, 4, 3).await.unwrap_err().cause(), Cause::Unavailable);

        let both = [(&ten, Key::new(5), 1), (&other, Key::new(5), 4)];
        limiter.acquire_all(&both).await.unwrap();
        let permit = limiter.acquire_all(&both).await.unwrap();
        exceeded(limiter.acquire_all(&both).await);
        assert_eq!(permit.refund().await.unwrap(), 5);
        limiter.acquire_all(&both).await.unwrap();
        exceeded(limiter.acquire_all(&both).await);
        assert_eq!(admitted(&limiter, &other, 5, 9).await, 2, "{algorithm:?}");
        server.restart();
    }
}

/// The first lines of the README log no warning, until a process really counts alone.
#[tokio::test]
async fn an_unknown_number_of_processes_is_one_warning_once_it_matters() {
    let (log, _guard) = Log::install();
    let mut server = RedisServer::start();
    let limiter = Limiter::connect(&server.url()).await.unwrap();
    limiter.acquire(&hourly(10, FIXED), 1).await.unwrap();
    assert!(log.lines().iter().all(|(level, _)| *level > tracing::Level::WARN), "{:?}", log.lines());
    server.kill();
    for _ in 0..3 {
        limiter.acquire(&hourly(10, FIXED), 1).await.unwrap();
    }
    assert_eq!(log.with("set Builder::instances").len(), 1);
    let known = Limiter::builder(&server.url()).lazy().instances(2).build().await.unwrap();
    known.acquire(&hourly(10, FIXED), 1).await.unwrap();
    assert_eq!(log.with("set Builder::instances").len(), 1);
}

#[tokio::test]
async fn the_rule_whose_share_is_too_small_is_named_whatever_the_order() {
    let limiter = Limiter::builder("redis://127.0.0.1:1").lazy().instances(4).build().await.unwrap();
    let (wide, narrow) = (Rule::new("wide", 100, HOUR), Rule::new("narrow", 2, HOUR));
    for both in [[&wide, &narrow], [&narrow, &wide]] {
        let refused = limiter.acquire_all(&both.map(|rule| (rule, Key::new(1), 1))).await.unwrap_err();
        assert_eq!((refused.cause(), refused.rule()), (Cause::Unavailable, "narrow"), "{refused}");
    }
}
