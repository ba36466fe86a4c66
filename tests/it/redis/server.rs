//! One server: each way to reach it, with and without TLS.

use ratelimit_harness::RedisServer;
use ratelimit_runtime::{Limiter, OnStoreError};

use crate::support::servers::{SECRET, ask, keeps_the_secret, recovers, with_policy, works};
use crate::support::{FIXED, LOG, PATIENCE, admitted, hourly, limiter_on};

#[tokio::test]
async fn a_server_is_reached_over_tcp() {
    let server = RedisServer::start();
    let limiter = limiter_on(&server).await;
    works(&limiter).await;
    limiter.acquire(&hourly(3, FIXED), 1).await.unwrap();
    assert_eq!(ask::<i64>(&server, "DBSIZE"), 1);
}

#[tokio::test]
async fn a_server_is_reached_over_resp2() {
    let server = RedisServer::start();
    works(&with_policy(&format!("{}?protocol=resp2", server.url()), OnStoreError::Deny).await).await;
}

#[tokio::test]
async fn a_server_is_reached_over_a_unix_socket() {
    let mut server = RedisServer::builder().unix_socket().start();
    let limiter = limiter_on(&server).await;
    works(&limiter).await;
    server.restart();
    recovers(&limiter).await;
}

#[tokio::test]
async fn a_server_is_reached_with_a_password() {
    for builder in [RedisServer::builder(), RedisServer::builder().unix_socket()] {
        let server = builder.password(SECRET).start();
        let limiter = limiter_on(&server).await;
        works(&limiter).await;
        keeps_the_secret(&limiter);
        keeps_the_secret(&Limiter::builder(&server.url()));
    }
}

#[tokio::test]
async fn a_user_with_the_needed_rights_is_enough() {
    let server = RedisServer::start();
    ask::<()>(&server, "ACL SETUSER limiter on >swordfish ~* +@all -@dangerous");
    let url = format!("redis://limiter:{SECRET}@127.0.0.1:{}/", server.port());
    let limiter = with_policy(&url, OnStoreError::Deny).await;
    works(&limiter).await;
    keeps_the_secret(&limiter);
}

#[tokio::test]
async fn the_database_of_the_url_is_used() {
    let server = RedisServer::start();
    let limiter = with_policy(&format!("{}3", server.url()), OnStoreError::Deny).await;
    limiter.acquire(&hourly(3, FIXED), 1).await.unwrap();
    let keyspace: String = ask(&server, "INFO keyspace");
    assert!(keyspace.contains("db3:keys=1,expires=1") && !keyspace.contains("db0"), "{keyspace}");

    let server = RedisServer::builder().unix_socket().start();
    let and = if server.url().contains('?') { '&' } else { '?' };
    let limiter = with_policy(&format!("{}{and}db=5", server.url()), OnStoreError::Deny).await;
    limiter.acquire(&hourly(3, FIXED), 1).await.unwrap();
    let keyspace: String = ask(&server, "INFO keyspace");
    assert!(keyspace.contains("db5:keys=1,expires=1"), "{keyspace}");
}

#[tokio::test]
async fn namespaces_keep_the_counters_of_systems_apart() {
    let server = RedisServer::start();
    let rule = hourly(2, LOG);
    let mut limiters = vec![limiter_on(&server).await];
    for namespace in ["shop", "bank", "a:b"] {
        let builder = Limiter::builder(&server.url()).namespace(namespace).deadline(PATIENCE);
        limiters.push(builder.build().await.unwrap());
    }
    for limiter in &limiters {
        assert_eq!(admitted(limiter, &rule, 1, 4).await, 2);
    }
    let mut keys: Vec<String> = ask(&server, "KEYS *");
    keys.sort();
    assert_eq!(keys.len(), 4);
    assert!(keys.contains(&"shop::item:{1}:sliding-log:3600000".to_owned()), "{keys:?}");
}

#[cfg(not(feature = "rustls"))]
#[tokio::test]
async fn tls_without_the_feature_is_an_error() {
    let error = Limiter::connect("rediss://localhost:6379").await.unwrap_err().to_string();
    assert!(error.contains("feature `rustls`"), "{error}");
}
