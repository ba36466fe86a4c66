//! `Limiter::health`, and the log lines that begin and end an outage.

use std::time::Duration;

use ratelimit_harness::RedisServer;
use ratelimit_runtime::{Cause, Health, Limiter, OnStoreError};
use tokio::runtime;
use tokio::time::sleep;
use tracing::Level;

use super::{decides_again, limiter};
use crate::support::log::Log;
use crate::support::servers::ask;
use crate::support::{FIXED, eventually, hourly};

fn is_degraded(limiter: &Limiter) -> bool {
    matches!(limiter.health(), Health::Degraded { .. })
}

/// An outage has two log lines, whatever happens in it. Health shows it without any call.
#[tokio::test]
async fn an_outage_is_logged_once_when_it_begins_and_once_when_it_ends() {
    let (log, _guard) = Log::install();
    let mut server = RedisServer::builder().password("swordfish").start();
    let limiter = limiter(&server.url(), OnStoreError::Deny).await;
    assert_eq!(limiter.health(), Health::Available);
    limiter.acquire(&hourly(1000, FIXED), "pear").await.unwrap();
    server.kill();
    eventually("it is known without a call", async || is_degraded(&limiter)).await;
    assert_eq!(log.with("rate limit store"), []);
    for _ in 0..100 {
        limiter.acquire(&hourly(1000, FIXED), "pear").await.unwrap_err();
    }
    let Health::Degraded { lasts, reason, .. } = limiter.health() else { panic!("available") };
    assert!(reason.contains(&server.port().to_string()) && lasts < Duration::from_secs(60), "{reason}");
    assert_eq!(log.with("rate limit store is unavailable").len(), 1);

    server.restart();
    eventually("it is known without a call", async || !is_degraded(&limiter)).await;
    assert_eq!(log.with("available again").len(), 0, "no decision was made yet");
    eventually("a decision says so", async || {
        let _ = limiter.acquire(&hourly(1000, FIXED), "pear").await;
        log.with("available again").len() == 1
    })
    .await;
    let events = log.with("rate limit store");
    assert_eq!(events.iter().map(|(level, _)| *level).collect::<Vec<_>>(), [Level::WARN, Level::INFO]);
    assert!(events[0].1.contains("reason=") && events[1].1.contains("lasted="), "{events:?}");
    assert_eq!((log.with("swordfish").len(), log.with("pear").len()), (0, 0));
}

/// Prefetched quota is spent without the server, by callers who wait and by others.
#[tokio::test]
async fn prefetched_quota_does_not_end_an_outage_in_the_log() {
    let (log, _guard) = Log::install();
    let mut server = RedisServer::start();
    let limiter = limiter(&server.url(), OnStoreError::Deny).await;
    let rule = hourly(1000, FIXED).with_prefetch(100);
    limiter.acquire(&rule, 1).await.unwrap();
    server.kill();
    eventually("a call fails", async || {
        let _ = limiter.acquire(&rule, 2).await;
        log.with("rate limit store is unavailable").len() == 1
    })
    .await;
    tokio::time::sleep(Duration::from_millis(1_200)).await; // no failure is recent
    limiter.acquire_within(&rule, 1, Duration::ZERO).await.unwrap();
    limiter.acquire(&rule, 1).await.unwrap();
    assert_eq!(log.with("available again"), []);
}

/// With RESP2 a client does not hear that its connection has ended. A server that halts does not
/// end it.
#[tokio::test]
async fn health_of_an_idle_limiter_is_that_of_its_server() {
    for (query, halts) in [("", true), ("?protocol=resp2", true), ("?protocol=resp2", false)] {
        let mut server = RedisServer::start();
        let builder = Limiter::builder(&format!("{}{query}", server.url())).on_store_error(OnStoreError::Deny);
        let limiter = builder.connections(2).build().await.unwrap();
        if halts {
            server.stop();
        } else {
            server.kill();
        }
        eventually("it is known without a call", async || is_degraded(&limiter)).await;
    }
}

/// A runtime that is idle during an outage does not hear of its end.
#[test]
fn health_is_that_of_the_runtime_that_reads_it() {
    let runtime = || runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (left, used, another) = (runtime(), runtime(), runtime());
    let mut server = RedisServer::start();
    let limiter = left.block_on(limiter(&server.url(), OnStoreError::Deny));
    server.kill();
    left.block_on(eventually("it is known", async || is_degraded(&limiter)));
    assert!(is_degraded(&limiter) && another.block_on(async { is_degraded(&limiter) }), "by all there are");
    server.restart();
    used.block_on(eventually("the outage is over", async || {
        limiter.acquire(&hourly(1_000_000, FIXED), 1).await.is_ok() && !is_degraded(&limiter)
    }));
    assert!(!is_degraded(&limiter) && !another.block_on(async { is_degraded(&limiter) }));
    assert!(left.block_on(async { is_degraded(&limiter) }), "it was not driven");
    left.block_on(decides_again(&limiter));
}

#[tokio::test]
async fn health_of_a_full_memory_store_is_available() {
    let limiter = Limiter::builder("memory://").max_keys(1).build().await.unwrap();
    let (log, _guard) = Log::install();
    limiter.acquire(&hourly(1, FIXED), 1).await.unwrap();
    assert_eq!(log.with("max_keys").len(), 0);
    // At most once a second in this process.
    eventually("a warning", async || {
        assert_eq!(limiter.acquire(&hourly(1, FIXED), 2).await.unwrap_err().cause(), Cause::Unavailable);
        !log.with("max_keys").is_empty()
    })
    .await;
    assert_eq!(limiter.health(), Health::Available);
}

#[tokio::test]
async fn a_server_that_evicts_keys_is_warned_about_once() {
    for (memory, policy, rights, expected) in [
        ("100mb", "allkeys-lru", "+@all", 1),
        ("100mb", "noeviction", "+@all", 0),
        ("0", "allkeys-lru", "+@all", 0),
        ("100mb", "volatile-ttl", "+@all -info", 0),
    ] {
        let (log, _guard) = Log::install();
        let server = RedisServer::builder().arg("--maxmemory", memory).arg("--maxmemory-policy", policy).start();
        ask::<()>(&server, &format!("ACL SETUSER limiter on >swordfish ~* {rights}"));
        let url = format!("redis://limiter:swordfish@127.0.0.1:{}/", server.port());
        let limiter = limiter(&url, OnStoreError::Deny).await;
        decides_again(&limiter).await;
        eventually("a warning", async || log.with("maxmemory-policy").len() >= expected).await;
        ask::<i64>(&server, "CLIENT KILL TYPE normal SKIPME yes");
        sleep(Duration::from_millis(50)).await;
        decides_again(&limiter).await;
        let warned = log.with("maxmemory-policy");
        assert_eq!(warned.len(), expected, "{memory} {policy} {rights}: {warned:?}");
    }
}
