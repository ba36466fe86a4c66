//! Connections: which are kept, which are replaced, and when others are opened.

use std::time::Duration;

use futures_util::future::join_all;
use ratelimit_harness::{Mode, Proxy, RedisServer};
use ratelimit_runtime::{Limiter, OnStoreError};
use tokio::runtime;
use tokio::time::{sleep, timeout};

use super::fake_server::HalfServer;
use super::{DEADLINE, LONG_DEADLINE, at_once, calls_until_the_breaker_opens, decides_again, limiter};
use crate::support::log::Log;
use crate::support::servers::{ask, script_calls};
use crate::support::{FIXED, PATIENCE, admitted, ends, eventually, exceeded, hourly, limiter_on};

async fn several(url: &str) -> Limiter {
    let builder = Limiter::builder(url).deadline(DEADLINE).on_store_error(OnStoreError::Deny);
    builder.connections(3).build().await.unwrap()
}

/// Open connections: the id of each, and its latest command.
fn connected(server: &RedisServer) -> Vec<(u64, String)> {
    let clients: String = ask(server, "CLIENT LIST TYPE normal");
    let value = |line: &str, name: &str| {
        line.split(' ').find_map(|field| field.strip_prefix(name)?.strip_prefix('=')).unwrap().to_owned()
    };
    let clients = clients.lines().filter(|line| !line.contains("cmd=client"));
    clients.map(|line| (value(line, "id").parse().unwrap(), value(line, "cmd"))).collect()
}

/// Waits until exactly so many connections are open, each of which has run a script.
async fn are_open(server: &RedisServer, count: usize) {
    eventually("so many connections", async || {
        let now = connected(server);
        now.len() == count && now.iter().all(|(_, latest)| latest.starts_with("eval") || latest == "info")
    })
    .await;
}

/// The panic ends the task that opens connections. The next call starts another one.
#[tokio::test]
async fn after_a_panic_of_a_log_subscriber_a_limiter_connects_again() {
    let mut server = RedisServer::start();
    let limiter = limiter(&server.url(), OnStoreError::Deny).await;
    let (log, _guard) = Log::panicking_at("cannot connect");
    server.kill();
    eventually("an attempt to connect", async || {
        limiter.peek(&hourly(1, FIXED), 0).await.is_err() && !log.with("cannot connect").is_empty()
    })
    .await;
    server.restart();
    decides_again(&limiter).await;
}

#[tokio::test]
async fn connections_are_used_in_turn_and_each_is_reopened() {
    let server = RedisServer::start();
    let limiter = several(&server.url()).await;
    let rule = hourly(10_000, FIXED);
    are_open(&server, 3).await;
    limiter.acquire(&rule, 1).await.unwrap(); // the server knows the script
    for _ in 0..3 {
        limiter.acquire(&rule, 1).await.unwrap();
    }
    let before = connected(&server);
    assert!(before.iter().all(|(_, latest)| latest == "evalsha"), "{before:?}");

    ask::<i64>(&server, &format!("CLIENT KILL ID {}", before[0].0));
    eventually("a third connection again", async || {
        let now = connected(&server);
        now.len() == 3 && now.iter().all(|(id, _)| *id != before[0].0)
    })
    .await;
    limiter.acquire(&rule, 1).await.unwrap();
}

/// The handshake takes longer than the first attempt may, as when many clients reconnect at once.
/// Decisions are in time.
#[cfg(feature = "rustls")]
#[tokio::test]
async fn a_connection_opens_although_its_handshake_is_slow() {
    let server = RedisServer::builder().tls().start();
    let proxy = Proxy::start(server.port());
    let builder = Limiter::builder(&server.url_through(&proxy)).deadline(DEADLINE * 5);
    let builder = builder.ca_certificate(std::fs::read(&server.tls().unwrap().ca_pem).unwrap());
    let limiter = builder.on_store_error(OnStoreError::Deny).build().await.unwrap();
    proxy.set(Mode::Delay(DEADLINE * 3 / 2)); // four times: of TLS and of the protocol, there and back
    proxy.cut();
    assert!(ends(limiter.peek(&hourly(9, FIXED), 1)).await.is_err());
    decides_again(&limiter).await;
}

/// Each reply takes longer than a connection may take with a short deadline.
#[tokio::test]
async fn a_slow_connection_opens_within_a_long_deadline() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    proxy.set(Mode::Delay(Duration::from_millis(1_100)));
    let builder = Limiter::builder(&proxy.url()).deadline(PATIENCE).on_store_error(OnStoreError::Deny);
    let limiter = builder.build().await.unwrap();
    proxy.set(Mode::Pass);
    limiter.acquire(&hourly(9, FIXED), 1).await.unwrap();
    assert_eq!(proxy.accepted(), 1);
}

/// `INFO` is for the log only, so no connection waits for its reply.
#[tokio::test]
async fn connections_open_although_the_server_never_answers_info() {
    let server = HalfServer::silent_on("INFO");
    let builder = Limiter::builder(&server.url).deadline(Duration::from_secs(3600)).on_store_error(OnStoreError::Deny);
    let _limiter = builder.connections(3).build().await.unwrap();
    eventually("three connections", async || server.accepted() == 3).await;
}

/// The server answers later on the connections it has, and no client opens others.
#[tokio::test]
async fn connections_survive_a_server_that_halts_and_resumes() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    for count in [1, 3] {
        let builder = Limiter::builder(&proxy.url()).deadline(LONG_DEADLINE).on_store_error(OnStoreError::Deny);
        let limiter = builder.connections(count).build().await.unwrap();
        let rule = hourly(1_000_000, FIXED);
        are_open(&server, count).await;
        // The replies of the last one may still be on their way.
        eventually("all of them are used", async || {
            limiter.acquire(&rule, 1).await.unwrap();
            connected(&server).iter().all(|(_, latest)| latest == "evalsha")
        })
        .await;
        let before = proxy.accepted();
        proxy.set(Mode::Stall);
        let calls: Vec<_> = (0..3).map(|_| limiter.acquire(&rule, 1)).collect();
        assert!(ends(join_all(calls)).await.iter().all(Result::is_err));
        eventually("the breaker is open", async || at_once(limiter.peek(&rule, 1)).is_some()).await;
        proxy.set(Mode::Pass);
        decides_again(&limiter).await;
        for _ in 0..2 * count {
            limiter.acquire(&rule, 1).await.unwrap();
        }
        assert_eq!(proxy.accepted(), before, "of {count} connections");
    }
}

/// A connection that has ended cannot answer any more, so another is opened at once.
#[tokio::test]
async fn a_silent_connection_that_ends_is_replaced() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    for query in ["", "?protocol=resp2"] {
        let builder = Limiter::builder(&(proxy.url() + query)).deadline(DEADLINE).on_store_error(OnStoreError::Deny);
        let limiter = builder.build().await.unwrap();
        decides_again(&limiter).await;
        proxy.set(Mode::Stall);
        calls_until_the_breaker_opens(&limiter, &hourly(4000, FIXED)).await;
        let before = proxy.accepted();
        proxy.cut();
        eventually("another one", async || proxy.accepted() > before).await;
        proxy.set(Mode::Pass);
        decides_again(&limiter).await;
    }
}

/// A late reply shows that a connection is alive.
#[tokio::test]
async fn a_connection_survives_replies_later_than_the_deadline() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let builder = Limiter::builder(&proxy.url()).deadline(DEADLINE).on_store_error(OnStoreError::Deny);
    let limiter = builder.build().await.unwrap();
    decides_again(&limiter).await;
    proxy.set(Mode::Delay(DEADLINE * 3 / 4)); // a reply needs twice as much
    calls_until_the_breaker_opens(&limiter, &hourly(4000, FIXED)).await;
    sleep(DEADLINE * 25).await; // longer than a connection without any answer is kept
    proxy.set(Mode::Pass);
    decides_again(&limiter).await;
    assert_eq!(proxy.accepted(), 1);
}

/// One connection is silent and the others are not. Only that one is given up.
#[tokio::test]
async fn only_the_silent_one_of_several_connections_is_replaced() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let limiter = several(&proxy.url()).await;
    let rule = hourly(10_000, FIXED);
    eventually("three connections", async || connected(&server).len() == 3).await;
    decides_again(&limiter).await;
    proxy.set(Mode::DropReplies);
    assert!(limiter.acquire(&rule, 1).await.is_err());
    proxy.set(Mode::Pass);
    let before = proxy.accepted();
    eventually("ten calls in a row", async || {
        for _ in 0..10 {
            if let Err(refused) = limiter.acquire(&rule, 1).await {
                assert!(refused.to_string().contains("deadline"), "the breaker opened: {refused}");
                return false;
            }
        }
        true
    })
    .await;
    eventually("it is replaced", async || proxy.accepted() > before).await;
    decides_again(&limiter).await;
    assert_eq!(proxy.accepted(), before + 1);
}

/// The server refuses new connections, as at `maxclients`. The open ones go on.
#[tokio::test]
async fn a_connection_that_answers_again_is_used_while_new_ones_are_refused() {
    let server = RedisServer::start();
    let far = Proxy::start(server.port());
    let near = Proxy::start(far.port());
    let limiter = limiter(&near.url(), OnStoreError::Deny).await;
    decides_again(&limiter).await;
    near.set(Mode::Refuse);
    far.set(Mode::Stall);
    calls_until_the_breaker_opens(&limiter, &hourly(4000, FIXED)).await;
    sleep(DEADLINE * 25).await; // longer than a connection without any answer is waited for
    far.set(Mode::Delay(DEADLINE / 10)); // an answer takes longer than a refusal
    decides_again(&limiter).await;
}

/// Callers who leave early do not show which connection is silent.
#[tokio::test]
async fn a_silent_connection_is_replaced_although_all_callers_leave_early() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let builder = Limiter::builder(&proxy.url()).deadline(DEADLINE * 5).on_store_error(OnStoreError::Deny);
    let limiter = builder.connections(3).build().await.unwrap();
    let rule = hourly(1_000_000, FIXED);
    eventually("three connections", async || connected(&server).len() == 3).await;
    decides_again(&limiter).await;
    proxy.set(Mode::DropReplies);
    assert!(timeout(DEADLINE, limiter.acquire(&rule, 1)).await.is_err());
    proxy.set(Mode::Pass);
    eventually("ten calls in a row", async || {
        for _ in 0..10 {
            if timeout(DEADLINE, limiter.acquire(&rule, 1)).await.is_err() {
                return false;
            }
        }
        true
    })
    .await;
}

/// The new connection may lead to a server without the counters.
#[tokio::test]
async fn a_lost_connection_invalidates_cached_denials() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let builder = Limiter::builder(&proxy.url()).deadline(PATIENCE).on_store_error(OnStoreError::Deny);
    let limiter = builder.build().await.unwrap();
    let rule = hourly(2, FIXED);
    assert_eq!(admitted(&limiter, &rule, 1, 5).await, 2);
    ask::<()>(&server, "FLUSHALL");
    exceeded(limiter.acquire(&rule, 1).await);
    proxy.cut();
    eventually("it counts afresh", async || limiter.acquire(&rule, 1).await.is_ok()).await;
}

/// The end of a runtime says nothing about the server.
#[tokio::test]
async fn a_connection_that_ends_with_its_runtime_keeps_cached_denials() {
    let server = RedisServer::start();
    let limiter = limiter_on(&server).await;
    let rule = hourly(2, FIXED);
    assert_eq!(admitted(&limiter, &rule, 1, 5).await, 2);
    let other = limiter.clone();
    let ended = tokio::task::spawn_blocking(move || {
        let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(other.acquire(&rule, 2)).unwrap();
    });
    ended.await.unwrap();
    let before = script_calls(&server);
    exceeded(limiter.acquire(&rule, 1).await);
    assert_eq!(script_calls(&server), before);
}

#[test]
fn a_batched_call_begun_on_an_idle_runtime_has_its_deadline() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let build = || runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (first, second) = (build(), build());
    let limiter = first.block_on(limiter(&proxy.url(), OnStoreError::Deny));
    first.block_on(decides_again(&limiter));
    proxy.set(Mode::Stall);
    let rule = hourly(1_000_000, FIXED);
    let mut alone = Box::pin(limiter.acquire(&rule, 1));
    let mut call = Box::pin(limiter.acquire(&rule, 1));
    first.block_on(async {
        assert!(at_once(&mut alone).is_none());
        assert!(at_once(&mut call).is_none());
    });
    let answer = second.block_on(async { timeout(DEADLINE * 10, call).await });
    assert!(answer.is_ok(), "it hangs");
}

/// The limiter seldom tries to open connections that the server does not allow, and works with the
/// others.
#[tokio::test]
async fn connections_above_maxclients_are_rarely_retried() {
    let server = RedisServer::builder().arg("--maxclients", "12").start();
    let proxy = Proxy::start(server.port());
    let builder = Limiter::builder(&server.url_through(&proxy)).deadline(PATIENCE).on_store_error(OnStoreError::Deny);
    let limiter = builder.connections(20).build().await.unwrap();
    eventually("all are open that may be, and then some are refused", async || proxy.accepted() > 18).await;
    let before = proxy.accepted();
    sleep(Duration::from_secs(4)).await;
    let asked = proxy.accepted() - before;
    assert!(asked <= 6, "{asked} attempts in four seconds");
    for key in 0..40 {
        limiter.acquire(&hourly(1, FIXED), key).await.unwrap();
    }
    // After all connections are lost there is no reason to pause.
    proxy.cut();
    decides_again(&limiter).await;
}
