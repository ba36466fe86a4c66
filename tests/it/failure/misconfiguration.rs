//! Mistakes in the setup: reported under every failure policy, and never with a password.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ratelimit_harness::RedisServer;
use ratelimit_runtime::{Algorithm, Cause, Key, Limiter, OnStoreError, Rule};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;

use super::POLICIES;
use crate::support::servers::{SECRET, ask, keeps_the_secret, with_policy};
use crate::support::{ALGORITHMS, FIXED, PATIENCE, eventually, fresh_key, hourly, limiter_on};

/// The error is reported under each policy, by each operation.
async fn is_loud(url: &str, rule: &Rule, key: u64) {
    for policy in POLICIES {
        let limiter = with_policy(url, policy).await;
        let charges = [(rule, Key::new(key), 1), (&Rule::new("other", 1, Duration::from_secs(1)), Key::new(key), 1)];
        for refused in [
            limiter.acquire(rule, key).await.unwrap_err(),
            limiter.acquire_within(rule, key, PATIENCE).await.unwrap_err(),
            limiter.acquire_all(&charges).await.unwrap_err(),
            limiter.peek(rule, key).await.unwrap_err(),
        ] {
            assert_eq!(refused.cause(), Cause::Misconfigured, "{policy:?}, {:?}: {refused}", rule.algorithm());
            assert_eq!(refused.retry_after(), None);
        }
    }
}

#[tokio::test]
async fn a_key_of_another_type_is_misconfigured() {
    let server = RedisServer::start();
    for algorithm in ALGORITHMS {
        for foreign in
            ["SADD NAME pear", "HSET NAME fruit pear", "SET NAME pear", "RPUSH NAME pear", "RPUSH NAME pear plum fig"]
        {
            let (rule, key) = (hourly(3, algorithm), fresh_key());
            let limiter = limiter_on(&server).await;
            limiter.acquire(&rule, key).await.unwrap();
            let name: String = ask::<Vec<String>>(&server, &format!("KEYS *{{{key}}}*")).remove(0);
            ask::<i64>(&server, &format!("DEL {name}"));
            ask::<redis::Value>(&server, &foreign.replace("NAME", &name));
            is_loud(&server.url(), &rule, key).await;
        }
    }
}

#[tokio::test]
async fn a_user_without_the_needed_rights_is_misconfigured() {
    let server = RedisServer::start();
    // Nothing but to connect; no scripts; other keys; scripts that may not write.
    let users = [
        "weak ~* +@connection",
        "noscript ~* +@all -@scripting",
        "elsewhere ~elsewhere:* +@all",
        "reader ~* +@all -@write",
    ];
    for user in users {
        let (name, rights) = user.split_once(' ').unwrap();
        ask::<()>(&server, &format!("ACL SETUSER {name} on >{SECRET} {rights}"));
        let url = format!("redis://{name}:{SECRET}@127.0.0.1:{}/", server.port());
        for algorithm in ALGORITHMS {
            let (rule, key) = (hourly(3, algorithm), fresh_key());
            for policy in POLICIES {
                let refused = with_policy(&url, policy).await.acquire(&rule, key).await.unwrap_err();
                assert_eq!(refused.cause(), Cause::Misconfigured, "{policy:?}, {name}, {algorithm:?}: {refused}");
                keeps_the_secret(&refused);
            }
        }
    }
}

/// The script has taken the place when the server refuses to charge the window, and Redis undoes nothing.
#[tokio::test]
async fn a_call_that_lacks_the_rights_for_its_second_rule_leaves_no_place_taken() {
    let server = RedisServer::start();
    ask::<()>(&server, &format!("ACL SETUSER partial on >{SECRET} ~* +@all -incrby"));
    let url = format!("redis://partial:{SECRET}@127.0.0.1:{}/", server.port());
    let (limiter, other) = (with_policy(&url, OnStoreError::Deny).await, limiter_on(&server).await);
    let (place, window, key) = (hourly(3, Algorithm::Concurrent), hourly(9, FIXED), fresh_key());
    other.acquire(&window, key).await.unwrap();
    let refused = limiter.acquire_all(&[(&place, Key::new(key), 1), (&window, Key::new(key), 1)]).await.unwrap_err();
    assert_eq!(refused.cause(), Cause::Misconfigured, "{refused}");
    eventually("the place is free", async || other.peek(&place, key).await.unwrap().remaining() == 3).await;
}

#[tokio::test]
async fn a_wrong_password_is_misconfigured_and_not_shown() {
    for builder in [RedisServer::builder(), RedisServer::builder().unix_socket()] {
        let server = builder.password("another").start();
        let wrong = server.url().replace("another", SECRET);
        let error = Limiter::connect(&wrong).await.unwrap_err();
        keeps_the_secret(&error);
        keeps_the_secret(error.to_string().as_str());
        assert!(error.to_string().contains("refused the credentials"), "{error}");

        for policy in POLICIES {
            let limiter = Limiter::builder(&wrong).lazy().deadline(PATIENCE).on_store_error(policy);
            let limiter = limiter.build().await.unwrap();
            keeps_the_secret(&limiter);
            let refused = limiter.acquire(&hourly(3, FIXED), 1).await.unwrap_err();
            assert_eq!(refused.cause(), Cause::Misconfigured, "{policy:?}: {refused}");
            keeps_the_secret(&refused);
        }
    }
}

/// No error about a URL repeats its password.
#[tokio::test]
async fn errors_about_a_url_do_not_show_its_password() {
    let urls = [
        "redis://:swordfish@127.0.0.1:1/",
        "redis://user:swordfish@127.0.0.1:1/",
        "redis://user:sword@swordfish@127.0.0.1:1/",
        "redis://:swordfish@127.0.0.1:99999/",
        "redis://:swordfish@127.0.0.1:port/",
        "redis://:swordfish@/",
        "redis://:swordfish@127.0.0.1/database",
        "redis://:swordfish@127.0.0.1/?protocol=7",
        "redis://:swordfish@[::1/",
        "rediss://:swordfish@localhost:1/#insecur",
        "redis+unix:///nowhere/redis.sock?pass=swordfish",
        "redis+unix:///nowhere/redis.sock?user=me&pass=swordfish&db=1",
        "redis+unix:///nowhere/redis.sock?pass=swordfish&db=one",
        "redis+unix:///nowhere/redis.sock?pass=salt&swordfish",
        "redis+unix://:salt?swordfish@/nowhere/redis.sock",
        "redis+unix://:salt?2swordfish",
        "unix://:salt?swordfish@/nowhere/redis.sock",
        "redis://user:swordfish",
        "redis://user:swordfish/1",
        "redis://:swordfish",
        "redis://localhost:1/swordfish",
        "redis://localhost:1/#swordfish",
        "redis+cluster://a,user:swordfish",
        "unix:///nowhere/redis.sock?pass=swordfish",
        "redis+sentinel://:swordfish@localhost:1/service",
        "redis+sentinel://:swordfish@localhost:1",
        "redis+sentinel://:swordfish@localhost:1/a/service",
        "redis+sentinel://:swordfish@localhost:1/service/database",
        "redis+sentinel://:swordfish@localhost:1,/service",
        "redis+sentinel://:sword/swordfish@localhost:1/service",
        "redis+sentinel://:swordfish@localhost:port/service",
        "rediss+sentinel://:swordfish@localhost:1/service#insecur",
        "redis+cluster://:swordfish@localhost:1,localhost:2",
        "redis+cluster://:sword,swordfish@localhost:1,localhost:2",
        "redis+cluster://:swordfish@localhost:1,localhost:2/3",
        "redis+cluster://:swordfish@,localhost:2",
        "redis+cluster://localhost:1,:swordfish@localhost:99999",
        "redis+cluster://:swordfish@localhost:1?protocol=7",
        "redis+cluster://:sword?swordfish@localhost:1",
        "http://:swordfish@localhost/",
        "memory://:swordfish@localhost/",
        ":swordfish@localhost",
        "user:swordfish://localhost",
    ];
    let mut told = Vec::new();
    for url in urls {
        let error = Limiter::connect(url).await.expect_err(url);
        told.push(format!("{error} {error:?}"));
    }
    told.retain(|message| message.contains(SECRET));
    assert_eq!(told, Vec::<String>::new());
    for url in ["redis://:swordfish@127.0.0.1:1/", "redis+unix:///nowhere/redis.sock?pass=swordfish"] {
        let builder = Limiter::builder(url).lazy().deadline(PATIENCE).on_store_error(OnStoreError::Deny);
        keeps_the_secret(&builder);
        let limiter = builder.build().await.unwrap();
        keeps_the_secret(&limiter);
        keeps_the_secret(&limiter.acquire(&hourly(3, FIXED), 1).await.unwrap_err());
    }
}

#[tokio::test]
async fn an_http_server_is_not_taken_for_redis() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, axum::Router::new()).await });
    let error = Limiter::connect(&format!("redis://{address}")).await.unwrap_err().to_string();
    // Nothing of the client's own message: "got 84 (T)" names the byte that an answer of HTTP begins with.
    assert_eq!(error, format!("{address}: this looks like an HTTP server, not Redis: check host and port in the URL"));
}

#[tokio::test]
async fn impossible_settings_are_errors() {
    let corrected = Limiter::builder("memory://").deadline(Duration::ZERO).deadline(PATIENCE).instances(0).instances(2);
    assert!(corrected.build().await.is_ok());
    // The second is a size that allocators accept, and no machine has.
    for bytes in [usize::MAX, usize::MAX / 4] {
        let error = Limiter::builder("memory://").overflow_bytes(bytes).build().await.unwrap_err().to_string();
        assert!(error.starts_with("`overflow_bytes` is more memory than this process can get"), "{error}");
    }
    let error = Limiter::builder("memory://").instances(0).build().await.unwrap_err().to_string();
    assert!(error.contains("instances"), "{error}");
    for url in ["", "localhost:6379", "memory", "memory://x", "http://localhost", "redis+cluster://a,b", "redis://"] {
        assert!(Limiter::connect(url).await.is_err(), "{url:?}");
    }
    // Found before anything is asked.
    for (url, says) in [
        ("redis://a,b", "redis+cluster://host,host"),
        ("redis://user:word@a:1,b:2/0", "redis+sentinel://host,host/service"),
        ("redis://127.0.0.1:1/-1", "database -1"),
        ("redis+unix:///nowhere/redis.sock?db=-1", "database -1"),
        ("redis+sentinel://127.0.0.1:1/shop/-1", "database -1"),
        ("redis://127.0.0.1:478111", "the port is not a number from 1 to 65535 (at character 19)"),
        ("redis://me:word@127.0.0.1:47811x/0", "the port is not a number from 1 to 65535 (at character 27)"),
        ("redis+cluster://a:1,b:x", "the port is not a number from 1 to 65535 (at character 23)"),
        ("redis://[::1]:0", "the port is not a number from 1 to 65535 (at character 15)"),
        ("redis://[::1/", "no closing bracket"),
        (
            "redis://:6379",
            "a host is missing; write host:port, or host:port,host:port if there are several (at character 9)",
        ),
        ("redis+sentinel://a,,b/service", "a host is missing"),
        ("redis://a/one", "the database is not a number (at character 11)"),
        ("redis+sentinel://a/service/one", "the database is not a number (at character 28)"),
        ("redis://a?protcol=resp2", "unknown option `protcol`; the options here are `protocol` (at character 11)"),
        ("redis+cluster://a/?protocol=resp3&db=1", "unknown option `db`"),
        ("redis+unix:///nowhere/redis.sock?pas=me", "unknown option `pas`; the options here are `db`, `user`"),
        ("redis://a?protocol=resp4", "`protocol` is neither `resp2` nor `resp3`"),
        ("redis://a#insecure", "only with TLS"),
        ("rediss://a#insecur", "only #insecure"),
    ] {
        let error = Limiter::builder(url).lazy().build().await.expect_err(url).to_string();
        assert!(error.contains(says), "{url}: {error}");
    }
}

/// It was the right server before, so this is an outage.
#[tokio::test]
async fn another_server_at_the_address_of_one_that_was_used_is_an_outage() {
    let mut server = RedisServer::start();
    let limiter = with_policy(&server.url(), OnStoreError::Allow).await;
    let rule = hourly(1_000_000, FIXED);
    limiter.acquire(&rule, 1).await.unwrap();
    server.kill();
    let listener = TcpListener::bind(("127.0.0.1", server.port())).await.unwrap();
    let tries = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&tries);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            stream.write_all(b"HTTP/1.1 503 Service Unavailable\r\n\r\n").await.unwrap();
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    eventually("it has failed to connect more than once", async || {
        limiter.acquire(&rule, 1).await.unwrap();
        tries.load(Ordering::Relaxed) > 3
    })
    .await;
}
