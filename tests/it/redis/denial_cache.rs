//! Cached denials: the limiter refuses without a round trip, with the numbers that the store would
//! send.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use futures_util::FutureExt;
use ratelimit_harness::{Proxy, RedisServer};
use ratelimit_runtime::store::{Batch, Charges, Reply, StoreError};
use ratelimit_runtime::{
    Algorithm, Cause, CounterName, Decision, Health, Key, Limiter, ManualClock, OnStoreError, Permit, RequestPerMinute,
    Rule, Store, limit_request_per_time,
};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::support::servers::script_calls;
use crate::support::{
    ALGORITHMS, ALIGNED, By, FIXED, LOG, PATIENCE, Timed, admitted, ends, eventually, exceeded, fresh_key, hourly,
    limiter_on,
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const PERIOD: Duration = Duration::from_secs(10);

fn rule(count: u64, algorithm: Algorithm) -> Rule {
    Rule::new("denied", count, PERIOD).by(algorithm)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_is_not_asked_while_a_denial_is_cached() {
    let timed = Timed::redis().await;
    let server = timed.server().unwrap();
    let queue = Algorithm::LeakyBucket { queue: 0 };
    for algorithm in ALGORITHMS.into_iter().chain([queue]) {
        let (rule, key) = (Rule::new("denied", 1, PERIOD).by(algorithm), fresh_key());
        timed.limiter.acquire(&rule, key).await.unwrap();
        let wait = exceeded(timed.limiter.acquire(&rule, key).await).retry_after().unwrap();
        let before = script_calls(server);
        for pause in [Duration::ZERO, wait / 2, wait / 2 - 2 * MS] {
            timed.advance(pause);
            let mut tasks = JoinSet::new();
            for _ in 0..8 {
                let limiter = timed.limiter.clone();
                tasks.spawn(async move {
                    for _ in 0..20 {
                        exceeded(limiter.acquire(&rule, key).await);
                    }
                });
            }
            tasks.join_all().await;
        }
        assert_eq!(script_calls(server), before, "{}", timed.of(&rule));
        timed.advance(2 * MS);
        timed.limiter.acquire(&rule, key).await.unwrap_or_else(|refused| panic!("{}: {refused}", timed.of(&rule)));
    }
}

/// One limiter with the cache and one without it, on one server, compared in each millisecond of
/// the wait.
#[tokio::test]
async fn a_cached_denial_is_what_the_server_would_reply() {
    let timed = Timed::redis().await;
    let said = |refused: RequestPerMinute| (refused.limit(), refused.remaining(), refused.retry_after());
    for algorithm in ALGORITHMS {
        let (rule, key) = (Rule::new("denied", 10, 40 * MS).by(algorithm), fresh_key());
        assert_eq!(admitted(&timed.limiter, &rule, key, 7).await, 7);
        timed.advance(9 * MS);
        admitted(&timed.limiter, &rule.with_denial_cache(false), key, 10).await;
        loop {
            let uncached = timed.limiter.acquire(&rule.with_denial_cache(false), key).await;
            let Err(uncached) = uncached else { break };
            assert_eq!(said(exceeded(timed.limiter.acquire(&rule, key).await)), said(uncached), "{}", timed.of(&rule));
            timed.advance(MS);
        }
    }
}

/// The server decides the last millisecond. A caller who obeys `retry_after` is admitted, however
/// late the denial was served.
#[tokio::test]
async fn a_caller_who_obeys_retry_after_of_a_cached_denial_is_admitted() {
    for algorithm in ALGORITHMS {
        let timed = Timed::redis().await;
        for late in 0..12 {
            let (rule, key) = (Rule::new("denied", 1, 10 * MS).by(algorithm), fresh_key());
            timed.limiter.acquire(&rule, key).await.unwrap();
            exceeded(timed.limiter.acquire(&rule, key).await);
            timed.advance(Duration::from_micros(late * 700));
            let wait = exceeded(timed.limiter.acquire(&rule, key).await).retry_after().unwrap();
            timed.advance(wait);
            timed.limiter.acquire(&rule, key).await.unwrap_or_else(|refused| panic!("{}: {refused}", timed.of(&rule)));
        }
    }
}

#[tokio::test]
async fn a_cached_denial_answers_other_costs_only_where_the_reply_is_the_same() {
    let timed = Timed::redis().await;
    let server = timed.server().unwrap();
    for algorithm in ALGORITHMS {
        let (rule, key) = (rule(5, algorithm), fresh_key());
        timed.limiter.acquire_n(&rule, key, 5).await.unwrap();
        exceeded(timed.limiter.acquire(&rule, key).await);
        let before = script_calls(server);
        let peeked = timed.limiter.peek(&rule, key).await.unwrap();
        assert_eq!((peeked.remaining(), script_calls(server)), (0, before + 1), "a look is at the store");
        timed.limiter.acquire_n(&rule, key, 0).await.unwrap();
        let before = script_calls(server);
        for _ in 0..3 {
            let of_five = exceeded(timed.limiter.acquire_n(&rule, key, 5).await);
            let uncached = exceeded(timed.limiter.acquire_n(&rule.with_denial_cache(false), key, 5).await);
            assert_eq!(of_five.retry_after(), uncached.retry_after(), "{}", timed.of(&rule));
        }
        let is_window = [FIXED, ALIGNED].contains(&algorithm);
        assert_eq!(script_calls(server) - before, if is_window { 3 } else { 6 }, "{}", timed.of(&rule));
    }
}

#[tokio::test]
async fn the_denial_cache_can_be_turned_off() {
    #[limit_request_per_time("off", 1, Hours, 1, denial_cache = false)]
    async fn uncached() -> Result<(), RequestPerMinute> {
        Ok(())
    }
    #[limit_request_per_time("on", 1, Hours, 1, denial_cache = true)]
    async fn cached() -> Result<(), RequestPerMinute> {
        Ok(())
    }
    let server = RedisServer::start();
    let limiter = limiter_on(&server).await;
    limiter.scope(uncached()).await.unwrap();
    limiter.scope(cached()).await.unwrap();
    limiter.scope(cached()).await.unwrap_err();
    let before = script_calls(&server);
    for asked_before in before..before + 3 {
        assert_eq!(script_calls(&server), asked_before);
        limiter.scope(cached()).await.unwrap_err();
        limiter.scope(uncached()).await.unwrap_err();
    }
    // One counter all the same.
    let rule = hourly(1, FIXED);
    limiter.acquire(&rule, "key").await.unwrap();
    exceeded(limiter.acquire(&rule.with_denial_cache(false), "key").await);
}

#[tokio::test]
async fn a_refund_or_a_reset_invalidates_a_cached_denial() {
    let timed = Timed::redis().await;
    for algorithm in ALGORITHMS {
        let (limiter, rule, key, context) = (&timed.limiter, rule(3, algorithm), fresh_key(), format!("{algorithm:?}"));
        let permit = limiter.acquire_n(&rule, key, 2).await.unwrap();
        limiter.acquire(&rule, key).await.unwrap();
        exceeded(limiter.acquire(&rule, key).await);
        assert_eq!(permit.refund().await.unwrap(), 2, "{context}");
        limiter.acquire_n(&rule, key, 2).await.unwrap_or_else(|refused| panic!("{context}: {refused}"));
        exceeded(limiter.acquire(&rule, key).await);
        limiter.clone().reset(&rule, key).await.unwrap();
        limiter.acquire_n(&rule, key, 3).await.unwrap_or_else(|refused| panic!("{context}: {refused}"));
    }
}

/// A slot that is given up is free again, although no caller waits for it.
#[tokio::test]
async fn a_slot_given_up_invalidates_a_cached_denial() {
    let timed = Timed::redis().await;
    let (limiter, key) = (&timed.limiter, fresh_key());
    let rule = Rule::new("queue", 1, PERIOD).with_algorithm(Algorithm::LeakyBucket { queue: 1 });
    limiter.acquire(&rule, key).await.unwrap();
    let sleeping = tokio::spawn(limiter.acquire(&rule, key));
    let is_refused = async || match timeout(100 * MS, limiter.acquire(&rule, key)).await {
        Ok(refused) => {
            exceeded(refused);
            tokio::task::yield_now().await; // what is known is told without a pause
            true
        }
        Err(_) => false, // it sleeps until its slot, which the clock never reaches
    };
    ends(async { while !is_refused().await {} }).await;
    sleeping.abort();
    ends(async { while is_refused().await {} }).await;
}

/// A counter of one, which acts on command. Its calls wait for their replies.
#[derive(Clone, Debug, Default)]
struct Gated(Arc<Gates>);

#[derive(Debug, Default)]
struct Gates {
    charged: AtomicBool,
    asked: AtomicU64,
    answers: Notify,
    resets: Notify,
}

impl Store for Gated {
    /// Decides at once, and answers later.
    fn decide(&self, mut batch: Batch) -> Reply<Batch> {
        let gates = Arc::clone(&self.0);
        gates.asked.fetch_add(1, SeqCst);
        for request in batch.iter_mut() {
            let was_charged = gates.charged.swap(true, SeqCst);
            request.outcome = Ok(!was_charged);
            request.charges[0].decision = Decision::new(1, 0, PERIOD, was_charged.then_some(PERIOD));
        }
        Reply::Pending(Box::pin(async move {
            gates.answers.notified().await;
            batch
        }))
    }

    fn refund(&self, _: Charges) -> Reply<Result<u64, StoreError>> {
        self.0.charged.store(false, SeqCst);
        Reply::Ready(Ok(1))
    }

    /// Acts later.
    fn reset(&self, _: CounterName) -> Reply<Result<(), StoreError>> {
        let gates = Arc::clone(&self.0);
        Reply::Pending(Box::pin(async move {
            gates.resets.notified().await;
            gates.charged.store(false, SeqCst);
            Ok(())
        }))
    }
}

fn on_gated() -> (Limiter, Gated, impl AsyncFn() -> Result<Permit, RequestPerMinute>) {
    let store = Gated::default();
    let builder = Limiter::builder("memory://").deadline(PATIENCE).clock(ManualClock::new());
    let limiter = builder.over(store.clone()).unwrap();
    let (asks, gates) = (limiter.clone(), Arc::clone(&store.0));
    let acquire = async move || {
        gates.answers.notify_one();
        let answer = asks.acquire(&rule(1, FIXED), 1).await;
        let _ = gates.answers.notified().now_or_never(); // not used if the answer was known
        answer
    };
    (limiter, store, acquire)
}

#[tokio::test]
async fn a_denial_requested_before_a_refund_is_not_cached() {
    let (limiter, store, acquire) = on_gated();
    let permit = acquire().await.unwrap();
    let mut asking = pin!(limiter.acquire(&rule(1, FIXED), 1));
    assert!(asking.as_mut().now_or_never().is_none());
    permit.refund().await.unwrap();
    store.0.answers.notify_one();
    exceeded(asking.await);
    acquire().await.unwrap();
    exceeded(acquire().await);
    let asked = store.0.asked.load(SeqCst);
    exceeded(acquire().await);
    assert_eq!(store.0.asked.load(SeqCst), asked, "it is known by now");
}

#[tokio::test]
async fn a_denial_received_during_a_reset_is_not_cached() {
    let (limiter, store, acquire) = on_gated();
    acquire().await.unwrap();
    let rule = rule(1, FIXED);
    let mut reset = pin!(limiter.reset(&rule, 1));
    assert!(reset.as_mut().now_or_never().is_none());
    exceeded(acquire().await);
    store.0.resets.notify_one();
    reset.await.unwrap();
    acquire().await.unwrap();
    // Nobody knows what one did that was left.
    exceeded(acquire().await);
    let asked = store.0.asked.load(SeqCst);
    assert!(limiter.reset(&rule, 1).now_or_never().is_none());
    exceeded(acquire().await);
    assert_eq!(store.0.asked.load(SeqCst), asked + 1);
}

#[tokio::test]
async fn a_call_of_several_rules_is_denied_from_the_cache_only_if_each_would_refuse() {
    let timed = Timed::redis().await;
    let (limiter, server) = (&timed.limiter, timed.server().unwrap());
    for algorithm in ALGORITHMS {
        let (one, other) = (rule(1, algorithm), Rule::new("other", 1, 2 * PERIOD).by(algorithm));
        let key = fresh_key();
        let charges = [(&one, Key::new(key), 1), (&other, Key::new(key), 1)];
        limiter.acquire(&one, key).await.unwrap();
        let before = script_calls(server);
        for asked_before in before..before + 3 {
            assert_eq!(script_calls(server), asked_before, "the other may be refused by now, for longer");
            assert_eq!(exceeded(limiter.acquire_all(&charges).await).rule(), "denied");
        }
        limiter.acquire(&other, key).await.unwrap();
        assert_eq!(exceeded(limiter.acquire_all(&charges).await).rule(), "other");
        for pause in [Duration::ZERO, PERIOD / 2] {
            timed.advance(pause);
            let before = script_calls(server);
            let known = exceeded(limiter.acquire_all(&charges).await);
            assert_eq!(script_calls(server), before);
            let looked = limiter.peek(&other, key).await.unwrap();
            assert_eq!((known.rule(), known.retry_after()), ("other", looked.retry_after()), "{}", timed.of(&other));
            exceeded(limiter.acquire(&one, key).await);
        }
        timed.advance(PERIOD + PERIOD / 2); // windows of both rules begin now
    }
}

/// By a rule of another count more was granted, and the old one's wait is longer.
#[tokio::test]
async fn a_grant_by_another_count_invalidates_a_cached_denial() {
    let timed = Timed::redis().await;
    let (one, two, key) = (rule(1, LOG), rule(2, LOG), fresh_key());
    timed.limiter.acquire(&one, key).await.unwrap();
    exceeded(timed.limiter.acquire(&one, key).await);
    timed.advance(SECOND);
    timed.limiter.acquire(&two, key).await.unwrap();
    assert_eq!(exceeded(timed.limiter.acquire(&one, key).await).retry_after(), Some(PERIOD));
}

/// The policy decides while the server is away, and the server when it is back.
#[tokio::test]
async fn cached_denials_are_not_used_during_or_after_an_outage() {
    let mut server = RedisServer::start();
    let (rule, key) = (hourly(2, FIXED), fresh_key());
    let limiter = Limiter::builder(&server.url()).deadline(PATIENCE).on_store_error(OnStoreError::Local);
    let limiter = limiter.build().await.unwrap();
    assert_eq!(admitted(&limiter, &rule, key, 3).await, 2);
    server.kill();
    let is_away = async || matches!(limiter.health(), Health::Degraded { .. });
    ends(async {
        while !is_away().await {
            sleep(MS).await;
        }
    })
    .await;
    assert_eq!(admitted(&limiter, &rule, key, 3).await, 2, "this process counts alone");
    server.restart();
    ends(async {
        while limiter.peek(&rule, key).await.is_err() {
            sleep(MS).await;
        }
    })
    .await;
    ends(async {
        while is_away().await {
            sleep(MS).await;
        }
    })
    .await;
    assert_eq!(admitted(&limiter, &rule, key, 3).await, 2, "the server has forgotten what it counted");
}

/// The refund is sent on one connection, and a call that overtakes it on another.
#[tokio::test]
async fn a_refund_that_arrives_after_its_deadline_leaves_no_cached_denial() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let builder = Limiter::builder(&proxy.url()).deadline(100 * MS).on_store_error(OnStoreError::Deny);
    let (limiter, rule, key) = (builder.build().await.unwrap(), hourly(1, FIXED), fresh_key());
    let blocking = async |key: u64| {
        let limiter = limiter.clone();
        tokio::task::spawn_blocking(move || limiter.acquire_blocking(&rule, key)).await.unwrap()
    };
    eventually("the other connection is open", async || blocking(fresh_key()).await.is_ok()).await;
    limiter.acquire(&rule, fresh_key()).await.unwrap().refund().await.unwrap(); // loads the script
    let permit = limiter.acquire(&rule, key).await.unwrap();
    proxy.hold_next_request(3 * SECOND);
    assert_eq!(permit.refund().await.unwrap_err().cause(), Cause::Unavailable);
    exceeded(blocking(key).await);
    sleep(1_200 * MS).await;
    exceeded(blocking(key).await); // it is cached
    let is_refunded = async || limiter.peek(&rule, key).await.is_ok_and(|decision| decision.remaining() == 1);
    eventually("the refund arrives", is_refunded).await;
    // An admission whose reply is late has charged the counter.
    let is_charged = async || limiter.peek(&rule, key).await.is_ok_and(|decision| decision.remaining() == 0);
    eventually("it is admitted", async || limiter.acquire(&rule, key).await.is_ok() || is_charged().await).await;
}

/// A handler is dropped when its client disconnects.
#[tokio::test]
async fn a_caller_who_leaves_its_refund_leaves_the_denials_of_other_counters() {
    let server = RedisServer::start();
    let (limiter, rule, [spent, refunded]) = (limiter_on(&server).await, hourly(1, FIXED), [fresh_key(), fresh_key()]);
    limiter.acquire(&rule, spent).await.unwrap();
    exceeded(limiter.acquire(&rule, spent).await);
    let permit = limiter.acquire(&rule, refunded).await.unwrap();
    let before = script_calls(&server);
    let mut refund = Box::pin(permit.refund());
    assert!(refund.as_mut().now_or_never().is_none());
    drop(refund);
    exceeded(limiter.acquire(&rule, spent).await);
    assert!(script_calls(&server) - before <= 1, "the refund alone");
}
