//! A call is sent once: without a reply it may have been charged, so it is not sent again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ratelimit_harness::{Proxy, RedisServer};
use ratelimit_runtime::{Cause, OnStoreError};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{at_once, decides_again, limiter};
use crate::support::servers::ask;
use crate::support::{ALGORITHMS, FIXED, eventually, fresh_key, hourly};

/// Number of known scripts that the server has run since its start. The probe of a new connection
/// is not among them.
fn scripts_that_ran(server: &RedisServer) -> u64 {
    let stats: String = ask(server, "INFO commandstats");
    let calls = |line: &str| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok();
    let failed = |line: &str| line.split_once("failed_calls=")?.1.trim().parse::<u64>().ok();
    let scripts = stats.lines().filter(|line| line.starts_with("cmdstat_evalsha:"));
    scripts.map(|line| calls(line).unwrap() - failed(line).unwrap()).sum()
}

/// The reply is lost, and the call is not sent again.
#[tokio::test]
async fn a_call_runs_once_although_its_connection_ends_before_the_reply() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let limiter = limiter(&proxy.url(), OnStoreError::Deny).await;
    for algorithm in ALGORITHMS {
        let (rule, key) = (hourly(100, algorithm), fresh_key());
        decides_again(&limiter).await;
        limiter.acquire(&rule, key).await.unwrap(); // the server knows the script
        let before = scripts_that_ran(&server);
        proxy.cut_at_next_reply();
        assert_eq!(limiter.acquire(&rule, key).await.unwrap_err().cause(), Cause::Unavailable);
        assert_eq!(scripts_that_ran(&server), before + 1, "{algorithm:?}");
    }
}

/// Under load and outages: each admitted call was charged, and each charge was requested.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outages_under_load_charge_no_call_twice() {
    let server = RedisServer::start();
    let limiter = limiter(&server.url(), OnStoreError::Deny).await;
    let rule = hourly(1_000_000, FIXED);
    limiter.acquire(&rule, 1).await.unwrap();
    let (asked, done) = (Arc::new(AtomicU64::new(1)), Arc::new(AtomicU64::new(1)));
    let mut tasks = JoinSet::new();
    for _ in 0..64 {
        let (limiter, asked, done) = (limiter.clone(), Arc::clone(&asked), Arc::clone(&done));
        tasks.spawn(async move {
            loop {
                asked.fetch_add(1, Ordering::SeqCst);
                match limiter.acquire(&rule, 1).await {
                    Ok(_) => drop(done.fetch_add(1, Ordering::SeqCst)),
                    Err(refused) => {
                        assert_eq!(refused.cause(), Cause::Unavailable, "{refused}");
                        sleep(Duration::from_millis(1)).await;
                    }
                }
            }
        });
    }
    for _ in 0..3 {
        let before = done.load(Ordering::SeqCst);
        eventually("calls are admitted", async || done.load(Ordering::SeqCst) > before + 1000).await;
        server.stop();
        eventually("the breaker is open", async || at_once(limiter.peek(&rule, 2)).is_some()).await;
        assert_eq!(at_once(limiter.acquire(&rule, 2)).map(|answer| answer.is_err()), Some(true));
        server.cont();
    }
    tasks.shutdown().await;
    decides_again(&limiter).await;
    let left = limiter.peek(&rule, 1).await.unwrap().remaining();
    let (charged, admitted) = (1_000_000 - left, done.load(Ordering::SeqCst));
    assert!(admitted <= charged && charged <= asked.load(Ordering::SeqCst), "{admitted} {charged}");
}
