//! Leases on a real server: holds are renewed until they are settled, and end with their lease otherwise.

use futures_util::future::join_all;
use ratelimit_harness::{Mode, Proxy, RedisCluster, RedisServer};
use ratelimit_runtime::{Algorithm, Key, Limiter, OnStoreError, Permit, Rule};
use tokio::time::{Instant, sleep};

use crate::support::holds::{LEASE, PLACES, TOKENS, acquire_time, remaining};
use crate::support::servers::script_calls;
use crate::support::{FIXED, LOG, MS, PATIENCE, SECOND, Timed, eventually, exceeded, fresh_key, limiter_on};

/// Nothing renews or settles the hold, as if the process had died.
#[tokio::test]
async fn an_unrenewed_hold_is_charged_in_full_and_its_place_is_freed() {
    let timed = Timed::redis().await;
    let (limiter, key) = (&timed.limiter, fresh_key());
    let (place, reservation) =
        (limiter.acquire(&PLACES, key).await.unwrap(), limiter.reserve(&TOKENS, key, 600).await.unwrap());
    timed.advance(LEASE - MS);
    assert_eq!((remaining(limiter, &PLACES, key).await, place.is_held()), (1, true));
    timed.advance(MS);
    assert_eq!((remaining(limiter, &PLACES, key).await, place.is_held()), (2, false));
    assert!(!reservation.is_held());
    timed.advance(60 * SECOND - MS);
    assert_eq!(remaining(limiter, &TOKENS, key).await, 400);
    timed.advance(MS);
    assert_eq!(remaining(limiter, &TOKENS, key).await, 1000);
    // It was used all the same, and is charged when that is known.
    reservation.settle(700).await.unwrap();
    assert_eq!(remaining(limiter, &TOKENS, key).await, 300);
    // And a late settlement corrects what was charged in full.
    let late = limiter.reserve(&TOKENS, key, 300).await.unwrap();
    timed.advance(LEASE + SECOND);
    assert_eq!(remaining(limiter, &TOKENS, key).await, 0);
    late.settle(100).await.unwrap();
    assert_eq!(remaining(limiter, &TOKENS, key).await, 200);
}

/// On the real clock, so that leases would end while the test runs.
#[tokio::test]
async fn a_call_longer_than_its_lease_keeps_its_holds() {
    let server = RedisServer::start();
    let (limiter, other, key) = (limiter_on(&server).await, limiter_on(&server).await, fresh_key());
    let places = Rule::new("short", 1, 2 * SECOND).with_algorithm(Algorithm::Concurrent);
    // The lease of a log is the time that is granted.
    let time = Rule::new("time", 2000, 2001 * MS).with_algorithm(LOG);
    let (place, permit) =
        (limiter.acquire(&places, key).await.unwrap(), acquire_time(&limiter, time, key, None).await.unwrap());
    let until = Instant::now() + 6 * SECOND;
    while Instant::now() < until {
        assert!(place.is_held() && permit.is_held());
        exceeded(other.acquire(&places, key).await);
        exceeded(other.acquire(&time, key).await);
        sleep(20 * MS).await;
    }
    drop(permit);
    drop(place);
    eventually("the place is free", || async { other.acquire(&places, key).await.is_ok() }).await;
}

/// 200 calls of one key that hold something with a lease of two seconds.
async fn hold_together(limiter: &Limiter, rule: Rule, key: u64) -> Vec<Permit> {
    let hold = |_| async { acquire_time(limiter, rule, key, Some(2000)).await.unwrap() };
    join_all((0..200).map(hold)).await
}

#[tokio::test]
async fn holds_of_one_counter_are_renewed_together() {
    let server = RedisServer::start();
    let limiter = limiter_on(&server).await;
    let log = Rule::new("many", 1_000_000, 60 * SECOND).with_algorithm(LOG);
    let places = Rule::new("many", 1_000, 2 * SECOND).with_algorithm(Algorithm::Concurrent);
    let (one, other) = (fresh_key(), fresh_key());
    let mut held = hold_together(&limiter, log, one).await;
    held.extend(hold_together(&limiter, log, other).await);
    held.extend(join_all((0..200).map(|_| async { limiter.acquire(&places, one).await.unwrap() })).await);
    sleep(100 * MS).await; // all that is sent for them has arrived
    let before = script_calls(&server);
    let until = Instant::now() + 5 * SECOND;
    while Instant::now() < until {
        assert!(held.iter().all(Permit::is_held));
        sleep(20 * MS).await;
    }
    // Of each counter eight, or a few more, as some begin later than others.
    let scripts = script_calls(&server) - before;
    assert!(scripts <= 60, "{scripts} scripts renewed {} holds of 3 counters", held.len());
    assert_eq!(remaining(&limiter, &places, one).await, 800);
}

#[tokio::test]
async fn renewing_many_holds_loses_only_those_that_the_server_has_lost() {
    let server = RedisServer::start();
    let limiter = limiter_on(&server).await;
    let log = Rule::new("some", 1_000_000, 60 * SECOND).with_algorithm(LOG);
    let (one, other) = (fresh_key(), fresh_key());
    let held = hold_together(&limiter, log, one).await;
    let lost = hold_together(&limiter, log, other).await;
    limiter.reset(&log, other).await.unwrap();
    let new = hold_together(&limiter, log, other).await;
    let (settled, held): (Vec<_>, Vec<_>) = held.into_iter().enumerate().partition(|(at, _)| at % 3 == 0);
    drop(settled);
    eventually("they learn that they have lost it", || async { lost.iter().all(|lost| !lost.is_held()) }).await;
    let until = Instant::now() + 4 * SECOND;
    while Instant::now() < until {
        assert!(held.iter().all(|(_, held)| held.is_held()));
        assert!(new.iter().all(Permit::is_held));
        assert!(lost.iter().all(|lost| !lost.is_held()));
        sleep(20 * MS).await;
    }
}

/// The renewal that comes first is that of the hold which began last.
#[tokio::test]
async fn a_short_lease_is_renewed_in_time_beside_a_long_one() {
    let server = RedisServer::start();
    let (limiter, key) = (limiter_on(&server).await, fresh_key());
    let long = limiter.reserve(&TOKENS, key, 1).await.unwrap();
    sleep(100 * MS).await;
    let places = Rule::new("short", 1, SECOND).with_algorithm(Algorithm::Concurrent);
    let short = limiter.acquire(&places, key).await.unwrap();
    let until = Instant::now() + 3 * SECOND;
    while Instant::now() < until {
        assert!(long.is_held() && short.is_held());
        sleep(20 * MS).await;
    }
}

#[tokio::test]
async fn a_permit_is_no_longer_held_when_the_server_has_lost_it() {
    let server = RedisServer::start();
    let (limiter, key) = (limiter_on(&server).await, fresh_key());
    let places = Rule::new("lost", 1, 3 * SECOND).with_algorithm(Algorithm::Concurrent);
    let place = limiter.acquire(&places, key).await.unwrap();
    server.command(&[b"FLUSHALL"]);
    eventually("it learns that", || async { !place.is_held() }).await;
    let next = limiter.acquire(&places, key).await.unwrap();
    // Its end does not release the place of the later caller.
    drop(place);
    exceeded(limiter.acquire(&places, key).await);
    assert!(next.is_held());
}

/// The hold may be released at any time, by any process.
#[tokio::test]
async fn a_denial_because_of_a_hold_is_not_cached() {
    let server = RedisServer::start();
    let (one, other, key) = (limiter_on(&server).await, limiter_on(&server).await, fresh_key());
    let all = one.reserve(&TOKENS, key, 1000).await.unwrap();
    for _ in 0..3 {
        exceeded(other.acquire(&TOKENS, key).await);
    }
    all.settle(999).await.unwrap();
    other.acquire(&TOKENS, key).await.unwrap();
    exceeded(other.acquire(&TOKENS, key).await);
}

#[tokio::test]
async fn a_cluster_holds_counters_of_one_slot_and_of_several() {
    let cluster = RedisCluster::start();
    let builder = Limiter::builder(&cluster.url()).deadline(PATIENCE).on_store_error(OnStoreError::Deny);
    let limiter = builder.build().await.unwrap();
    let rate = Rule::new("rate", 2, 60 * SECOND).with_algorithm(FIXED);
    for _ in 0..10 {
        let (one, two) = (fresh_key(), fresh_key());
        let charges = [(&PLACES, Key::new(one), 2), (&rate, Key::new(two), 1)];
        let permit = limiter.acquire_all(&charges).await.unwrap();
        assert_eq!(exceeded(limiter.acquire_all(&charges).await).rule(), "place");
        assert_eq!(remaining(&limiter, &rate, two).await, 1);
        assert_eq!(permit.refund().await, Ok(3));
        assert_eq!(remaining(&limiter, &PLACES, one).await, 2);
        assert_eq!(remaining(&limiter, &rate, two).await, 2);
        limiter.reserve(&TOKENS, one, 10).await.unwrap().settle(3).await.unwrap();
        assert_eq!(remaining(&limiter, &TOKENS, one).await, 997);
    }
}

#[tokio::test]
async fn closing_a_limiter_waits_for_settlements_in_flight() {
    let server = RedisServer::start();
    let (limiter, other, key) = (limiter_on(&server).await, limiter_on(&server).await, fresh_key());
    for _ in 0..20 {
        let permits = [limiter.acquire(&PLACES, key).await.unwrap(), limiter.acquire(&PLACES, key).await.unwrap()];
        drop(permits);
        assert_eq!(limiter.close().await, 0);
        assert_eq!(remaining(&other, &PLACES, key).await, 2);
    }
}

/// Settlements that begin after it came are not waited for, nor a server that is away.
#[tokio::test]
async fn a_call_waits_only_for_settlements_that_began_before_it() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let builder = Limiter::builder(&proxy.url()).deadline(PATIENCE).on_store_error(OnStoreError::Allow);
    let (limiter, key) = (builder.build().await.unwrap(), fresh_key());
    let places = Rule::new("busy", 1000, 60 * SECOND).with_algorithm(Algorithm::Concurrent);
    let mut held = Vec::new();
    for _ in 0..300 {
        held.push(limiter.acquire(&places, key).await.unwrap());
    }
    proxy.set(Mode::Delay(20 * MS));
    // One ends every 5 ms, and each is settled within 40: some always are.
    let ending = tokio::spawn(async move {
        while let Some(permit) = held.pop() {
            drop(permit);
            sleep(5 * MS).await;
        }
    });
    sleep(50 * MS).await;
    limiter.acquire(&places, key).await.unwrap();
    assert!(!ending.is_finished(), "it did not wait for the last of them");
    ending.abort();
}
