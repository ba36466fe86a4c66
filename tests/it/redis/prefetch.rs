//! Prefetched permits are spent in their window, once, and only by this process.

use std::collections::BTreeMap;
use std::future::Future;
use std::io::{BufRead, BufReader, Read};
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use futures_util::FutureExt;
use ratelimit_harness::{Mode, Proxy, RedisServer};
use ratelimit_runtime::{
    Cause, Health, Key, Limiter, ManualClock, OnStoreError, Permit, RequestPerMinute, Rule, limit_request_per_time,
};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::support::eventually;
use crate::support::plain_store::{PlainStore, on_plain_store};
use crate::support::servers::script_calls;
use crate::support::{
    ALGORITHMS, ALIGNED, By, FIXED, PATIENCE, Timed, admitted, ends, exceeded, fresh_key, hourly, limiter_on, settle,
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const PERIOD: Duration = Duration::from_secs(60);

fn rule(count: u64, prefetch: u64) -> Rule {
    Rule::new("prefetched", count, PERIOD).with_prefetch(prefetch)
}

/// The charged count, as another process sees it.
async fn charged(server: &RedisServer, key: u64) -> u64 {
    const MANY: u64 = 1_000_000;
    MANY - limiter_on(server).await.peek(&rule(MANY, 1), key).await.unwrap().remaining()
}

#[tokio::test]
async fn most_calls_of_a_prefetching_rule_need_no_round_trip() {
    let timed = Timed::redis().await;
    let (server, key) = (timed.server().unwrap(), fresh_key());
    for remaining in (0..10_000).rev() {
        let permit = timed.limiter.acquire(&rule(10_000, 100), key).await.unwrap();
        assert_eq!((permit.limit(), permit.remaining(), permit.reset_after()), (10_000, remaining, PERIOD));
    }
    // A hundred at least, except near the limit.
    let takes = script_calls(server);
    assert!(takes < 130, "{takes}");
    let refused = exceeded(timed.limiter.acquire(&rule(10_000, 100), key).await);
    assert_eq!((refused.limit(), refused.remaining(), refused.retry_after()), (10_000, 0, Some(PERIOD)));
    let takes = script_calls(server);
    exceeded(timed.limiter.acquire(&rule(10_000, 100), key).await);
    assert_eq!(script_calls(server), takes, "a refusal is known");
}

/// To open another connection for it takes longer than the deadline.
#[tokio::test]
async fn a_first_prefetch_uses_the_connection_of_its_caller() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let builder = Limiter::builder(&server.url_through(&proxy)).deadline(5 * SECOND);
    let limiter = builder.on_store_error(OnStoreError::Deny).build().await.unwrap();
    limiter.acquire_within(&rule(10, 1), fresh_key(), SECOND).await.unwrap(); // loads the same script
    // A round trip takes twice as long; to connect and ask takes three of them.
    proxy.set(Mode::Delay(Duration::from_millis(900)));
    limiter.acquire(&rule(10, 5), fresh_key()).await.unwrap();
}

/// One process is granted all, whatever the numbers are and in whichever portions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prefetching_admits_exactly_the_count() {
    let server = RedisServer::start();
    let limiter = limiter_on(&server).await;
    for (count, prefetch) in [(1, 2), (1, 100), (2, 2), (7, 3), (100, 100), (100, 1_000_000), (1000, 100), (1000, 7)] {
        let (rule, key) = (rule(count, prefetch), fresh_key());
        let mut tasks = JoinSet::new();
        for _ in 0..64 {
            let limiter = limiter.clone();
            tasks.spawn(async move { admitted(&limiter, &rule, key, 40).await });
        }
        assert_eq!(tasks.join_all().await.iter().sum::<u64>(), count, "{count}, {prefetch} at a time");
        assert_eq!(charged(&server, key).await, count);
        let refused = exceeded(limiter.acquire(&rule, key).await);
        assert_eq!(refused.remaining(), 0);
    }
}

/// Nothing is left at the store.
#[tokio::test]
async fn a_look_counts_the_permits_that_are_here() {
    let (limiter, _store, _clock) = on_plain_store();
    let rule = rule(10, 10);
    limiter.acquire(&rule, 1).await.unwrap();
    let seen = limiter.peek(&rule, 1).await.unwrap();
    assert_eq!((seen.remaining(), seen.retry_after()), (9, None));
    for _ in 0..9 {
        limiter.acquire(&rule, 1).await.unwrap();
    }
    let seen = limiter.peek(&rule, 1).await.unwrap();
    assert_eq!((seen.remaining(), seen.retry_after()), (0, Some(PERIOD)));
}

#[tokio::test]
async fn a_cost_above_the_prefetch_size_is_granted_from_what_is_left() {
    let timed = Timed::redis().await;
    let (limiter, rule, key) = (&timed.limiter, rule(100, 10), fresh_key());
    assert_eq!(limiter.acquire_n(&rule, key, 35).await.unwrap().remaining(), 65);
    assert_eq!(limiter.acquire_n(&rule, key, 3).await.unwrap().remaining(), 62);
    assert_eq!(limiter.acquire_n(&rule, key, 0).await.unwrap().remaining(), charged_rest(&timed, key).await);
    // More than is at the store, with what is here.
    assert_eq!(limiter.acquire_n(&rule, key, 60).await.unwrap().remaining(), 2);
    let refused = exceeded(limiter.acquire_n(&rule, key, 3).await);
    assert_eq!((refused.remaining(), refused.retry_after()), (2, Some(PERIOD)));
    assert_eq!(limiter.peek(&rule, key).await.unwrap().remaining(), 2);
    assert_eq!(limiter.acquire_n(&rule, key, 2).await.unwrap().remaining(), 0);
    assert_eq!(limiter.peek(&rule, key).await.unwrap().remaining(), 0);
    assert_eq!(limiter.acquire_n(&rule, key, 101).await.unwrap_err().cause(), Cause::NeverFits);
}

/// The count that a call with a cost of 0 reports.
async fn charged_rest(timed: &Timed, key: u64) -> u64 {
    100 - charged(timed.server().unwrap(), key).await
}

/// Up to the last millisecond, as the store has rounded up.
#[tokio::test]
async fn prefetched_permits_end_with_their_window() {
    for algorithm in [FIXED, ALIGNED] {
        let timed = Timed::redis().await;
        let (limiter, server) = (&timed.limiter, timed.server().unwrap());
        let (rule, key) = (rule(100, 10).by(algorithm), fresh_key());
        for _ in 0..5 {
            let mut permits = vec![limiter.acquire(&rule, key).await.unwrap()];
            let before = script_calls(server);
            timed.advance(PERIOD - 2 * MS);
            permits.push(limiter.acquire(&rule, key).await.unwrap());
            assert_eq!((permits[1].remaining(), permits[1].reset_after()), (98, 2 * MS));
            assert_eq!(script_calls(server), before);
            timed.advance(MS);
            let last = limiter.acquire(&rule, key).await.unwrap();
            assert_eq!(script_calls(server), before + 1, "what is left is not spent in the last millisecond");
            assert_eq!(last.reset_after(), MS);
            timed.advance(MS);
            let next = limiter.acquire(&rule, key).await.unwrap();
            assert_eq!((next.remaining(), next.reset_after()), (99, PERIOD));
            for old in permits {
                assert_eq!(old.refund().await.unwrap(), 0, "no later window is credited");
            }
            assert_eq!(next.refund().await.unwrap(), 1);
            assert_eq!(limiter.peek(&rule, key).await.unwrap().remaining(), 100);
            timed.advance(PERIOD);
        }
    }
}

/// Polls a call once. It waits.
fn begin<F: Future>(mut call: Pin<Box<F>>) -> Pin<Box<F>> {
    assert!(call.as_mut().now_or_never().is_none());
    call
}

#[tokio::test]
async fn callers_wait_for_one_prefetch_in_the_order_of_arrival() {
    let (limiter, store, _clock) = on_plain_store();
    let rule = hourly(1000, FIXED).with_prefetch(2);
    let calls = |cost| Box::pin(limiter.acquire_n(&rule, 1, cost));
    store.hold();
    let (first, second, third, fourth) = (begin(calls(1)), begin(calls(2)), begin(calls(2)), begin(calls(1)));
    eventually("one take is under way", || async { store.calls() == 1 }).await;
    settle().await;
    assert_eq!(store.calls(), 1);
    store.release();
    assert_eq!(ends(first).await.unwrap().remaining(), 999);
    let mut second = begin(second);
    let (third, fourth) = (begin(third), begin(fourth));
    eventually("the next take is under way", || async { store.calls() == 2 }).await;
    drop(third);
    store.release();
    assert!(ends(second.as_mut()).await.is_ok());
    assert!(ends(fourth).await.is_ok());
    assert_eq!(store.calls(), 2);
}

#[tokio::test]
async fn no_caller_overtakes_one_who_needs_more_than_is_prefetched() {
    let (limiter, store, _clock) = on_plain_store();
    let rule = hourly(1000, FIXED).with_prefetch(2);
    limiter.acquire(&rule, 1).await.unwrap();
    store.hold();
    let two = begin(Box::pin(limiter.acquire_n(&rule, 1, 2)));
    let one = begin(Box::pin(limiter.acquire(&rule, 1)));
    store.release();
    assert_eq!(ends(two).await.unwrap().remaining(), 997);
    assert_eq!(ends(one).await.unwrap().remaining(), 996);
}

#[tokio::test]
async fn a_prefetch_is_not_lost_when_its_callers_leave() {
    let (limiter, store, _clock) = on_plain_store();
    let rule = hourly(1000, FIXED).with_prefetch(10);
    let call = |cost| Box::pin(limiter.acquire_n(&rule, 1, cost));
    store.hold();
    let (first, second) = (begin(call(1)), begin(call(1)));
    drop(first);
    store.release();
    sleep(50 * MS).await; // the reply is there, and no caller has polled
    drop(second);
    let mut first = None;
    eventually("the take has arrived", || {
        first = call(1).now_or_never();
        std::future::ready(first.is_some())
    })
    .await;
    assert_eq!(first.unwrap().unwrap().remaining(), 999);
    for remaining in (990..999).rev() {
        assert_eq!(call(1).now_or_never().expect("no store is asked").unwrap().remaining(), remaining);
    }
    assert_eq!(store.calls(), 1);
}

#[tokio::test]
async fn a_prefetch_without_a_reply_fails_all_its_callers() {
    let clock = ManualClock::new();
    let store = PlainStore::new(&clock);
    let builder = Limiter::builder("memory://").clock(clock).deadline(100 * MS).on_store_error(OnStoreError::Deny);
    let (limiter, rule) = (builder.over(store.clone()).unwrap(), hourly(1000, FIXED).with_prefetch(10));
    store.hold();
    let mut tasks = JoinSet::new();
    for _ in 0..5 {
        tasks.spawn(limiter.acquire(&rule, 1));
    }
    for answer in tasks.join_all().await {
        assert_eq!(answer.unwrap_err().cause(), Cause::Unavailable);
    }
    assert_eq!(store.calls(), 1);
    store.release();
    assert_eq!(ends(limiter.acquire(&rule, 1)).await.unwrap().remaining(), 999);
}

/// Nobody would spend them, and a prefetch may have thousands.
#[tokio::test]
async fn permits_that_arrive_after_the_deadline_are_refunded() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let builder = Limiter::builder(&server.url_through(&proxy)).deadline(150 * MS).on_store_error(OnStoreError::Deny);
    let (limiter, key) = (builder.build().await.unwrap(), fresh_key());
    let is_prefetched = async || {
        let _ = limiter.acquire(&rule(1000, 100), key).await; // alone, until the connection for prefetches is open
        charged(&server, key).await >= 100
    };
    eventually("a prefetch has arrived", is_prefetched).await;
    proxy.set(Mode::Delay(2 * SECOND));
    let others = [fresh_key(), fresh_key(), fresh_key()];
    let calls: JoinSet<_> = others.into_iter().map(|other| limiter.acquire(&rule(1000, 100), other)).collect();
    for refused in calls.join_all().await {
        assert_eq!(refused.unwrap_err().cause(), Cause::Unavailable);
    }
    for other in others {
        eventually("each late prefetch is charged", async || charged(&server, other).await == 100).await;
    }
    proxy.set(Mode::Pass); // their replies arrive
    for other in others {
        eventually("each is refunded", async || charged(&server, other).await == 0).await;
    }
}

#[tokio::test]
async fn close_waits_for_a_late_prefetch_and_its_refund() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let builder = Limiter::builder(&server.url_through(&proxy)).deadline(3 * SECOND).on_store_error(OnStoreError::Deny);
    let (limiter, key) = (builder.build().await.unwrap(), fresh_key());
    limiter.acquire(&rule(1, 100), fresh_key()).await.unwrap(); // opens the connection for prefetches, and leaves nothing
    proxy.set(Mode::Delay(2 * SECOND));
    assert_eq!(limiter.acquire(&rule(1000, 100), key).await.unwrap_err().cause(), Cause::Unavailable);
    proxy.set(Mode::Delay(100 * MS)); // the refund is in time
    limiter.close().await;
    assert_eq!(charged(&server, key).await, 0);
}

#[tokio::test]
async fn callers_of_a_prefetching_rule_may_wait_for_the_next_window() {
    let server = RedisServer::start();
    let (limiter, key) = (limiter_on(&server).await, fresh_key());
    let rule = Rule::new("prefetched", 3, 200 * MS).with_prefetch(10);
    let mut tasks = JoinSet::new();
    for _ in 0..9 {
        tasks.spawn(limiter.acquire_within(&rule, key, PATIENCE));
    }
    assert!(ends(tasks.join_all()).await.iter().all(Result::is_ok));
}

#[tokio::test]
async fn a_refunded_prefetched_permit_is_spent_again() {
    let timed = Timed::redis().await;
    let (limiter, server, rule, key) = (&timed.limiter, timed.server().unwrap(), rule(20, 10), fresh_key());
    let mut permits = Vec::new();
    while let Ok(permit) = limiter.acquire(&rule, key).await {
        permits.push(permit);
    }
    assert_eq!(permits.len(), 20);
    let before = script_calls(server);
    for permit in permits.drain(..5) {
        assert_eq!(permit.refund().await.unwrap(), 1);
    }
    assert_eq!(admitted(limiter, &rule, key, 5).await, 5);
    assert_eq!(script_calls(server), before);
    // A caller who waits for several is served too.
    let mut permits = permits.into_iter();
    permits.next().unwrap().refund().await.unwrap();
    assert_eq!(exceeded(limiter.acquire_n(&rule, key, 2).await).remaining(), 1);
}

/// A prefetch on another connection has overtaken it.
#[tokio::test]
async fn a_reset_that_arrives_after_its_deadline_leaves_no_prefetched_permits() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let builder = Limiter::builder(&server.url_through(&proxy)).deadline(300 * MS).on_store_error(OnStoreError::Deny);
    let (limiter, rule, [warm, key]) = (builder.build().await.unwrap(), rule(20, 10), [fresh_key(), fresh_key()]);
    let is_prefetched = async || limiter.acquire(&rule, warm).await.is_ok() && charged(&server, warm).await >= 10;
    eventually("the connection for prefetches is open", is_prefetched).await;
    limiter.reset(&rule, warm).await.unwrap();
    proxy.hold_next_request(2 * SECOND);
    assert_eq!(limiter.reset(&rule, key).await.unwrap_err().cause(), Cause::Unavailable);
    limiter.acquire(&rule, key).await.unwrap();
    assert_eq!(charged(&server, key).await, 10);
    eventually("the counter is reset", async || charged(&server, key).await == 0).await;
    sleep(3 * SECOND).await; // what is known is invalidated three seconds after the deadline
    assert_eq!(admitted(&limiter, &rule, key, 40).await, 20);
}

#[tokio::test]
async fn a_reset_invalidates_prefetched_permits() {
    let timed = Timed::redis().await;
    let (limiter, server, rule, key) = (&timed.limiter, timed.server().unwrap(), rule(100, 10), fresh_key());
    let old = limiter.acquire(&rule, key).await.unwrap();
    timed.advance(MS);
    limiter.reset(&rule, key).await.unwrap();
    assert_eq!(charged(server, key).await, 0);
    assert_eq!(admitted(limiter, &rule, key, 200).await, 100);
    assert_eq!(charged(server, key).await, 100);
    assert_eq!(old.refund().await.unwrap(), 0);
}

#[tokio::test]
async fn a_changed_count_of_a_prefetching_rule_acts_on_the_next_call() {
    let timed = Timed::redis().await;
    let (limiter, server, key) = (&timed.limiter, timed.server().unwrap(), fresh_key());
    assert_eq!(admitted(limiter, &rule(100, 10), key, 5).await, 5);
    assert_eq!(charged(server, key).await, 10);
    ends(async {
        while admitted(limiter, &rule(5, 10), key, 1).await > 0 || charged(server, key).await > 5 {
            settle().await;
        }
    })
    .await;
    assert_eq!(admitted(limiter, &rule(7, 10), key, 10).await, 2);
}

/// The store gets back what was taken under the old count before it is asked under the new one.
#[tokio::test]
async fn permits_of_the_old_count_take_no_room_under_the_new_one() {
    let server = RedisServer::start(); // has never seen the script of a refund, which takes a round trip more
    let (limiter, key) = (limiter_on(&server).await, fresh_key());
    limiter.acquire(&rule(20, 10), key).await.unwrap(); // 10 are charged, 9 of them are here
    limiter.acquire(&rule(10, 10), key).await.unwrap(); // 1 of 10 was used
}

#[tokio::test]
async fn permits_on_the_way_under_the_old_count_take_no_room_under_the_new_one() {
    let server = RedisServer::start();
    let limiter = limiter_on(&server).await;
    limiter.acquire(&rule(20, 10), fresh_key()).await.unwrap(); // the connection for prefetches is open
    // 10 are charged. On a busy machine, the reply may be here before the caller leaves: then another key is tried.
    let key = loop {
        let key = fresh_key();
        if limiter.acquire(&rule(20, 10), key).now_or_never().is_none() {
            break key;
        }
    };
    limiter.acquire(&rule(10, 10), key).await.unwrap(); // none was used
}

/// A caller under the new count asks while others wait under the old one, and is denied.
#[tokio::test]
async fn a_cached_denial_does_not_keep_permits_of_an_old_count() {
    let (limiter, store, _clock) = on_plain_store();
    let [old, new] = [20, 10].map(|count| hourly(count, FIXED).with_prefetch(10));
    store.hold();
    let one = begin(Box::pin(limiter.acquire(&old, 1)));
    eventually("its prefetch is on its way", async || store.calls() == 1).await;
    let other = begin(Box::pin(limiter.acquire(&new, 1)));
    eventually("a call under another count asks the store", async || store.calls() == 2).await;
    store.release();
    ends(one).await.unwrap(); // 10 are charged, 9 of them are here
    store.release();
    exceeded(ends(other).await);
    store.release();
    ends(limiter.acquire(&new, 1)).await.unwrap();
}

#[tokio::test]
async fn a_peek_under_a_lower_count_counts_only_permits_that_give_room() {
    let (limiter, _store, _clock) = on_plain_store();
    let with_count = |count| hourly(count, FIXED).with_prefetch(10);
    limiter.acquire_n(&with_count(100), 1, 41).await.unwrap(); // 50 are charged, 9 of them are here
    for (count, remaining) in [(100, 59), (60, 19), (50, 9), (45, 4), (41, 0), (20, 0)] {
        let seen = limiter.peek(&with_count(count), 1).await.unwrap();
        assert_eq!((seen.remaining(), seen.retry_after().is_some()), (remaining, remaining == 0), "{count}");
    }
    exceeded(limiter.acquire(&with_count(20), 1).await);
}

#[tokio::test]
async fn close_counts_permits_that_come_back_under_another_count() {
    let (limiter, store, _clock) = on_plain_store();
    let [old, new] = [100, 20].map(|count| hourly(count, FIXED).with_prefetch(10));
    store.hold();
    let one = begin(Box::pin(limiter.acquire(&old, 1)));
    eventually("its prefetch is on its way", async || store.calls() == 1).await;
    drop(one);
    drop(begin(Box::pin(limiter.acquire(&new, 1))));
    let closing = begin(Box::pin(limiter.close()));
    store.release();
    assert_eq!(ends(closing).await, 10);
}

#[tokio::test]
async fn a_refund_under_a_higher_count_is_not_spent_under_a_lower_one() {
    let (limiter, store, _clock) = on_plain_store();
    let [few, many] = [5, 100].map(|count| hourly(count, FIXED).with_prefetch(2));
    store.hold();
    let one = begin(Box::pin(limiter.acquire(&few, 1)));
    eventually("its prefetch is on its way", async || store.calls() == 1).await;
    let fifty = begin(Box::pin(limiter.acquire_n(&many, 1, 50)));
    eventually("a call under another count asks the store", async || store.calls() == 2).await;
    store.release();
    ends(one).await.unwrap(); // 2 of 5 are charged, 1 of them is here
    store.release();
    assert_eq!(ends(fifty).await.unwrap().refund().await.unwrap(), 50);
    let spent = (0..10).filter(|_| limiter.acquire(&few, 1).now_or_never().is_some_and(|answer| answer.is_ok()));
    assert!(spent.count() < 5);
}

#[tokio::test]
async fn prefetched_permits_are_spent_during_an_outage() {
    let mut server = RedisServer::start();
    let limiter = Limiter::builder(&server.url()).deadline(PATIENCE).on_store_error(OnStoreError::Deny);
    let (limiter, rule, key) = (limiter.build().await.unwrap(), rule(1000, 10), fresh_key());
    limiter.acquire(&rule, key).await.unwrap();
    server.kill();
    ends(async {
        while limiter.health() == Health::Available {
            sleep(MS).await;
        }
    })
    .await;
    limiter.reset(&rule, key).await.unwrap_err(); // it is not sent, and changes nothing
    for _ in 0..9 {
        limiter.acquire(&rule, key).await.unwrap();
    }
    assert_eq!(limiter.acquire(&rule, key).await.unwrap_err().cause(), Cause::Unavailable);
    server.restart();
    ends(async {
        while limiter.acquire(&rule, key).await.is_err() {
            sleep(MS).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_closed_limiter_refunds_its_prefetched_permits() {
    let timed = Timed::redis().await;
    let (limiter, server, keys) = (&timed.limiter, timed.server().unwrap(), [(); 300].map(|()| fresh_key()));
    for key in keys {
        limiter.acquire(&rule(1000, 10), key).await.unwrap();
        assert_eq!(charged(server, key).await, 10);
    }
    let permit = limiter.acquire(&rule(1000, 10), keys[0]).await.unwrap();
    assert_eq!(limiter.clone().close().await, 9 * 300 - 1);
    for (at, key) in keys.into_iter().enumerate() {
        assert_eq!(charged(server, key).await, if at == 0 { 2 } else { 1 });
    }
    assert_eq!(permit.refund().await.unwrap(), 1);
    assert_eq!(charged(server, keys[0]).await, 1);
    limiter.acquire(&rule(1000, 10), keys[0]).await.unwrap();
    assert_eq!(charged(server, keys[0]).await, 2, "one by one");
    assert_eq!(limiter.close().await, 0);
}

/// And for no longer.
#[tokio::test]
async fn closing_a_limiter_waits_for_a_prefetch_in_flight() {
    let store = PlainStore::new(&ManualClock::new());
    let builder = Limiter::builder("memory://").deadline(3600 * SECOND).on_store_error(OnStoreError::Deny);
    let limiter = builder.over(store.clone()).unwrap();
    let rule = hourly(1000, FIXED).with_prefetch(10);
    store.hold();
    drop(begin(Box::pin(limiter.acquire(&rule, 1))));
    settle().await;
    let close = begin(Box::pin(limiter.close()));
    store.release();
    assert_eq!(ends(close).await, 10);
}

#[tokio::test]
async fn a_dropped_limiter_refunds_its_prefetched_permits_in_the_background() {
    let server = RedisServer::start();
    let (limiter, key) = (limiter_on(&server).await, fresh_key());
    drop(limiter.acquire(&rule(1000, 10), key).await.unwrap());
    assert_eq!(charged(&server, key).await, 10);
    drop(limiter);
    ends(async {
        while charged(&server, key).await > 1 {
            sleep(MS).await;
        }
    })
    .await;
    assert_eq!(charged(&server, key).await, 1);
}

#[tokio::test]
async fn prefetch_is_for_single_fixed_windows_only() {
    let server = RedisServer::start();
    for limiter in [Limiter::in_memory(), limiter_on(&server).await] {
        for algorithm in ALGORITHMS {
            let is_window = [FIXED, ALIGNED].contains(&algorithm);
            let prefetched = limiter.acquire(&hourly(100, algorithm).with_prefetch(10), 1).await;
            assert_eq!(
                prefetched.map(drop).map_err(|refused| refused.cause()),
                if is_window { Ok(()) } else { Err(Cause::Misconfigured) }
            );
        }
        let fault = limiter.acquire(&hourly(100, FIXED).with_prefetch(0), 2).await.unwrap_err();
        assert_eq!(fault.cause(), Cause::Misconfigured);
        assert!(fault.to_string().contains("`prefetch` must be at least 1"), "{fault}");
        let (prefetched, other) = (hourly(100, FIXED).with_prefetch(10), Rule::new("other", 1, PERIOD));
        let stacked =
            limiter.acquire_all(&[(&other, Key::new(1), 1), (&prefetched, Key::new(1), 1)]).await.unwrap_err();
        assert_eq!(stacked.cause(), Cause::Misconfigured);
        assert!(stacked.to_string().contains("stands alone"), "{stacked}");
        limiter.acquire_all(&[(&prefetched, Key::new(1), 1)]).await.unwrap();
        assert_eq!(limiter.peek(&other, 1).await.unwrap().remaining(), 1);
    }
}

#[tokio::test]
async fn the_attribute_has_a_prefetch_argument() {
    const PREFETCH: u64 = 50;
    #[limit_request_per_time("prefetched", 1, Minutes, 1000, prefetch = PREFETCH, key = key, permit = permit)]
    async fn prefetched(key: u64) -> Result<Permit, RequestPerMinute> {
        Ok(permit)
    }
    let server = RedisServer::start();
    let (limiter, key) = (limiter_on(&server).await, fresh_key());
    assert_eq!(limiter.scope(prefetched(key)).await.unwrap().remaining(), 999);
    assert_eq!(charged(&server, key).await, 50);
}

/// A take is made in the background, whatever becomes of the runtime it was begun on.
#[test]
fn a_prefetch_outlasts_the_runtime_it_was_begun_on() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let server = RedisServer::start();
    let limiter = runtime().block_on(limiter_on(&server));
    let rule = rule(10_000, 10);
    for _ in 0..20 {
        let key = fresh_key();
        let left = runtime();
        let context = left.enter();
        let mut call = Box::pin(limiter.acquire(&rule, key));
        drop((&mut call).now_or_never()); // it is begun, and may have been answered
        let waits = std::thread::spawn({
            let (limiter, on) = (limiter.clone(), runtime());
            move || on.block_on(ends(limiter.acquire(&rule, key))).unwrap()
        });
        drop(context);
        drop(left);
        waits.join().unwrap();
        drop(call);
    }
}

/// `prefetcher`, a process of its own.
struct Lessee(Child);

impl Lessee {
    fn start(server: &RedisServer, numbers: [u64; 4]) -> Self {
        let numbers = numbers.map(|number| number.to_string());
        let mut command = Command::new(env!("CARGO_BIN_EXE_prefetcher"));
        let mut process = command.arg(server.url()).args(numbers).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = [0; 7];
        process.stdout.as_mut().unwrap().read_exact(&mut line).unwrap();
        assert_eq!(&line, b"begins\n");
        Self(process)
    }

    /// By window.
    fn admitted(mut self) -> Vec<(u64, u64)> {
        let lines = BufReader::new(self.0.stdout.take().unwrap()).lines();
        let pair = |line: String| {
            let (window, count) = line.split_once(' ').unwrap();
            (window.parse().unwrap(), count.parse().unwrap())
        };
        lines.map(|line| pair(line.unwrap())).collect()
    }
}

impl Drop for Lessee {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Two of five are killed half way, with all they hold. No window has more than the count.
#[test]
fn prefetching_processes_together_never_exceed_the_count() {
    const COUNT: u64 = 5000;
    let server = RedisServer::start();
    let lessees: Vec<_> = (0..4).map(|_| Lessee::start(&server, [COUNT, 250, 100, 4000])).collect();
    for _ in 0..2 {
        let killed = Lessee::start(&server, [COUNT, 250, 100, 60_000]);
        std::thread::sleep(Duration::from_millis(700));
        drop(killed);
    }
    let mut windows = BTreeMap::<u64, u64>::new();
    for (window, count) in lessees.into_iter().flat_map(Lessee::admitted) {
        *windows.entry(window).or_default() += count;
    }
    println!("{windows:?}");
    assert!(windows.values().all(|admitted| *admitted <= COUNT), "{windows:?}");
    let full = windows.values().filter(|admitted| **admitted > COUNT / 2).count();
    assert!(full > 3, "windows were used: {windows:?}");
}

#[tokio::test]
async fn a_permit_of_a_caller_who_left_goes_to_one_who_waits() {
    let clock = ManualClock::new();
    let store = PlainStore::new(&clock);
    let builder = Limiter::builder("memory://").clock(clock).deadline(PATIENCE).on_store_error(OnStoreError::Deny);
    let (limiter, rule) = (builder.over(store.clone()).unwrap(), hourly(2, FIXED).with_prefetch(2));
    store.hold();
    let leaving = begin(Box::pin(limiter.acquire_n(&rule, 1, 2)));
    eventually("its prefetch is on its way", async || store.calls() == 1).await;
    let waiter = limiter.clone();
    let waiting = tokio::spawn(async move { waiter.acquire_within(&rule, 1, 7200 * SECOND).await });
    settle().await;
    store.release(); // two permits are charged, and spent for a caller who does not look
    eventually("the next prefetch is on its way", async || store.calls() == 2).await;
    store.release(); // it is denied
    sleep(50 * MS).await; // the other caller stands in the queue
    drop(leaving);
    ends(waiting).await.unwrap().unwrap();
}

/// It leaves while its prefetch is on its way. The permits are not spent for it, and one who waits gets them.
#[tokio::test]
async fn a_prefetch_of_a_caller_who_left_goes_to_one_who_waits() {
    let clock = ManualClock::new();
    let store = PlainStore::new(&clock);
    let builder = || Limiter::builder("memory://").clock(clock.clone()).deadline(PATIENCE);
    let [limiter, other] = [(); 2].map(|()| builder().on_store_error(OnStoreError::Deny).over(store.clone()).unwrap());
    let plain = hourly(2, FIXED).with_denial_cache(false);
    let rule = plain.with_prefetch(2);
    let taken = other.acquire_n(&plain, 1, 2).await.unwrap();
    let waiter = limiter.clone();
    let waiting = tokio::spawn(async move { waiter.acquire_within(&rule, 1, 7200 * SECOND).await });
    eventually("it is refused", async || store.calls() == 2).await;
    sleep(50 * MS).await; // it stands in the queue
    taken.refund().await.unwrap(); // by another process
    let before = store.calls();
    store.hold();
    let leaving = begin(Box::pin(limiter.acquire(&rule, 1)));
    eventually("its prefetch is on its way", async || store.calls() > before).await;
    drop(leaving);
    store.release();
    ends(waiting).await.unwrap().unwrap();
}

/// A caller under a new count has the permits of the old one refunded. Then there is room for those who wait.
#[tokio::test]
async fn refunded_permits_of_an_old_count_go_to_one_who_waits() {
    let (limiter, store, _clock) = on_plain_store();
    let [old, new] = [20, 10].map(|count| hourly(count, FIXED).with_prefetch(10));
    store.hold();
    let one = begin(Box::pin(limiter.acquire(&old, 1)));
    eventually("its prefetch is on its way", async || store.calls() == 1).await;
    let waiter = limiter.clone();
    let waiting = tokio::spawn(async move { waiter.acquire_within(&new, 1, 7200 * SECOND).await });
    eventually("a call under another count asks the store", async || store.calls() == 2).await;
    store.release();
    ends(one).await.unwrap(); // 10 are charged, 9 of them are here
    store.release(); // it is refused
    sleep(50 * MS).await; // it stands in the queue
    (0..9).for_each(|_| store.release());
    ends(limiter.acquire(&new, 1)).await.unwrap();
    ends(waiting).await.unwrap().unwrap();
}

/// The permit of a closed limiter goes back to the server, which cannot read the counter.
#[tokio::test]
async fn a_prefetched_permit_that_cannot_be_refunded_names_its_rule() {
    let server = RedisServer::start();
    let limiter = limiter_on(&server).await;
    limiter.acquire(&rule(1_000, 100), 1).await.unwrap();
    let permit = limiter.acquire(&rule(1_000, 100), 1).await.unwrap();
    limiter.clone().close().await;
    let names: Vec<Vec<u8>> = redis::from_redis_value(server.command(&[b"KEYS", b"prefetched:*"])).unwrap();
    server.command(&[b"DEL", &names[0]]);
    server.command(&[b"SADD", &names[0], b"member"]);
    let failed = permit.refund().await.unwrap_err();
    assert_eq!((failed.rule(), failed.cause()), ("prefetched", Cause::Misconfigured), "{failed}");
}
