//! A server that goes away and comes back: killed, restarted, out of reach at the start, or a replica by now.

use std::time::Duration;

use ratelimit_harness::RedisServer;
use ratelimit_runtime::{Cause, Limiter, OnStoreError};

use crate::support::servers::{ask, recovers, works};
use crate::support::{FIXED, LOG, PATIENCE, eventually, hourly, limiter_on};

/// A URL without a server behind it.
fn nowhere() -> (String, u16) {
    let mut server = RedisServer::start();
    server.kill();
    (server.url(), server.port())
}

#[tokio::test]
async fn connecting_without_a_server_is_an_error_that_names_the_address() {
    let (url, port) = nowhere();
    let error = Limiter::connect(&url).await.unwrap_err().to_string();
    assert!(error.contains(&format!("127.0.0.1:{port}")), "{error}");

    let error = Limiter::connect("redis+unix:///nowhere/redis.sock").await.unwrap_err().to_string();
    assert!(error.contains("/nowhere/redis.sock"), "{error}");
}

#[tokio::test]
async fn a_lazy_limiter_without_a_server_follows_its_policy() {
    let mut server = RedisServer::start();
    server.kill();
    let rule = hourly(3, FIXED);
    for (policy, expected) in [(OnStoreError::Deny, Err(Cause::Unavailable)), (OnStoreError::Allow, Ok(()))] {
        let builder = Limiter::builder(&server.url()).lazy().deadline(PATIENCE).on_store_error(policy);
        let limiter = builder.build().await.unwrap();
        let answer = limiter.acquire(&rule, 1).await.map(drop).map_err(|refused| refused.cause());
        assert_eq!(answer, expected, "{policy:?}");
    }
    let builder = Limiter::builder(&server.url()).lazy().deadline(PATIENCE).on_store_error(OnStoreError::Deny);
    let limiter = builder.build().await.unwrap();
    limiter.acquire(&rule, 1).await.unwrap_err();
    server.restart();
    recovers(&limiter).await;
}

#[tokio::test]
async fn a_killed_server_is_used_again_after_its_restart() {
    let mut server = RedisServer::start();
    let limiter = limiter_on(&server).await;
    works(&limiter).await;
    for _ in 0..3 {
        server.kill();
        let refused = limiter.acquire(&hourly(3, LOG), 1).await.unwrap_err();
        assert_eq!((refused.cause(), refused.retry_after()), (Cause::Unavailable, None));
        server.restart();
        recovers(&limiter).await;
    }
}

/// No call comes between: the limiter hears of it from the first call, or before.
#[tokio::test]
async fn a_restart_between_two_calls_is_survived() {
    let mut server = RedisServer::start();
    let limiter = limiter_on(&server).await;
    works(&limiter).await;
    server.restart();
    recovers(&limiter).await;
}

#[tokio::test]
async fn killed_connections_are_reopened() {
    let server = RedisServer::start();
    let limiter = limiter_on(&server).await;
    let rule = hourly(100, LOG);
    for round in 1..=10 {
        eventually("a call is counted", || async { limiter.acquire(&rule, 1).await.is_ok() }).await;
        assert!(ask::<i64>(&server, "CLIENT KILL TYPE normal SKIPME yes") >= 1, "round {round}");
    }
    recovers(&limiter).await;
    // A call that failed may have been counted; one that was admitted was.
    assert!(limiter.peek(&rule, 1).await.unwrap().remaining() <= 90);
}

#[tokio::test]
async fn killed_connections_under_load_admit_no_more_than_the_count() {
    let server = RedisServer::start();
    let limiter = limiter_on(&server).await;
    let rule = hourly(300, FIXED);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let limiter = limiter.clone();
        tasks.spawn(async move {
            let mut admitted = 0_u32;
            for _ in 0..100 {
                admitted += u32::from(limiter.acquire(&rule, 1).await.is_ok());
                tokio::task::yield_now().await;
            }
            admitted
        });
    }
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_millis(5)).await;
        ask::<i64>(&server, "CLIENT KILL TYPE normal SKIPME yes");
    }
    let admitted: u32 = tasks.join_all().await.iter().sum();
    assert!(admitted <= 300, "{admitted}");
}

/// The name in the URL may lead to another server by now.
#[tokio::test]
async fn the_connection_to_a_primary_that_became_a_replica_is_reopened() {
    let (server, other) = (RedisServer::start(), RedisServer::start());
    let limiter = limiter_on(&server).await;
    works(&limiter).await;
    let ours = || {
        ask::<String>(&server, "CLIENT LIST").lines().find_map(|line| {
            line.contains("addr=127.0.0.1").then(|| line.split(' ').next().map(str::to_owned)).flatten()
        })
    };
    let before = ours().expect("a connection");
    ask::<()>(&server, &format!("REPLICAOF 127.0.0.1 {}", other.port()));
    eventually("another connection", || async {
        let refused = limiter.acquire(&hourly(3, FIXED), 1).await.unwrap_err();
        assert_eq!(refused.cause(), Cause::Unavailable, "{refused}");
        assert!(refused.to_string().contains("replica"), "{refused}");
        ours().is_some_and(|now| now != before)
    })
    .await;
    ask::<()>(&server, "REPLICAOF NO ONE");
    recovers(&limiter).await;
}
