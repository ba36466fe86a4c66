//! Error replies that mean an outage: the failure policy decides.

use std::thread;

use ratelimit_harness::RedisServer;
use ratelimit_runtime::{Cause, Health, Limiter, OnStoreError};

use super::fake_server::failing_with;
use super::{POLICIES, decides_again, limiter};
use crate::support::servers::{ask, with_policy, works};
use crate::support::{ALGORITHMS, FIXED, PATIENCE, admitted, eventually, fresh_key, hourly, limiter_on};

async fn are_unavailable(server: &RedisServer, code: &str) {
    for policy in POLICIES {
        let limiter = Limiter::builder(&server.url()).deadline(PATIENCE).on_store_error(policy).lazy();
        let limiter = limiter.build().await.unwrap();
        for algorithm in ALGORITHMS {
            let answer = limiter.acquire(&hourly(10, algorithm), fresh_key()).await;
            match policy {
                OnStoreError::Deny => {
                    let refused = answer.unwrap_err();
                    assert_eq!(refused.cause(), Cause::Unavailable, "{refused}");
                    assert!(refused.to_string().contains(code), "{refused}");
                }
                _ => drop(answer.unwrap()),
            }
        }
    }
}

#[tokio::test]
async fn a_replica_is_unavailable() {
    let server = RedisServer::start();
    ask::<()>(&server, "REPLICAOF 127.0.0.1 1");
    are_unavailable(&server, "connect to the primary").await;
}

/// Another client runs an endless script.
#[tokio::test]
async fn a_busy_server_is_unavailable() {
    let server = RedisServer::builder().arg("--busy-reply-threshold", "1").start();
    let limiter = limiter_on(&server).await;
    let (command, socket) = (["EVAL", "while true do end", "0"], server.url());
    let looping = thread::spawn(move || {
        let mut connection = redis::Client::open(socket).unwrap().get_connection().unwrap();
        let _ = redis::cmd(command[0]).arg(&command[1..]).exec(&mut connection);
    });
    eventually("it is busy", async || {
        limiter.peek(&hourly(1, FIXED), 1).await.is_err_and(|error| error.to_string().contains("BUSY"))
    })
    .await;
    are_unavailable(&server, "BUSY").await;
    ask::<()>(&server, "SCRIPT KILL");
    decides_again(&limiter).await;
    looping.join().unwrap();
}

#[tokio::test]
async fn a_loading_server_is_unavailable() {
    let server = RedisServer::builder().arg("--enable-debug-command", "yes").start();
    let limiter = limiter_on(&server).await;
    ask::<()>(&server, "DEBUG POPULATE 20000");
    ask::<()>(&server, "CONFIG SET key-load-delay 1000");
    ask::<()>(&server, "CONFIG SET loading-process-events-interval-bytes 1024");
    let socket = server.url();
    let reloading = thread::spawn(move || {
        let mut connection = redis::Client::open(socket).unwrap().get_connection().unwrap();
        redis::cmd("DEBUG").arg("RELOAD").exec(&mut connection).unwrap();
    });
    eventually("it is loading", async || {
        limiter.peek(&hourly(1, FIXED), 1).await.is_err_and(|error| error.to_string().contains("LOADING"))
    })
    .await;
    are_unavailable(&server, "LOADING").await;
    ask::<()>(&server, "CONFIG SET key-load-delay 0");
    decides_again(&limiter).await;
    reloading.join().unwrap();
}

/// A proxy between limiter and server answers, although the server is lost.
#[tokio::test]
async fn error_replies_of_a_proxy_about_a_lost_server_are_an_outage() {
    for words in [
        "no upstream host",
        "upstream failure",
        "upstream protocol error",
        "ERR Connection refused",
        "ERR Connection timed out",
        "ERR Connection reset by peer",
        "ERR No route to host",
        "ERR Network is unreachable",
        "ERR Host is unreachable",
        "ERR Operation timed out",
        "ERR Broken pipe",
        "ERR Cluster node disconnected: 10.0.0.1:6379",
        "ERR Error running script (call to f_0123): @user_script:1: Script killed by user with SCRIPT KILL...",
        "ERR Script killed by user with SCRIPT KILL. script: 0123, on @user_script:1.",
    ] {
        let url = failing_with(words);
        let limiter = limiter(&url, OnStoreError::Deny).await;
        let refused = limiter.acquire(&hourly(1, FIXED), 1).await.unwrap_err();
        assert_eq!(refused.cause(), Cause::Unavailable, "{words}: {refused}");
        assert!(refused.to_string().contains(words), "{refused}");
        assert!(matches!(limiter.health(), Health::Degraded { .. }), "{words}");
        let local = self::limiter(&url, OnStoreError::Local).await;
        assert_eq!(admitted(&local, &hourly(40, FIXED), 1, 30).await, 10, "{words}: this process counts alone");
    }
    for words in ["ERR wrong number of arguments for 'evalsha' command", "NOPERM no rights", "invalid request"] {
        let limiter = limiter(&failing_with(words), OnStoreError::Allow).await;
        let refused = limiter.acquire(&hourly(1, FIXED), 1).await.unwrap_err();
        assert_eq!(refused.cause(), Cause::Misconfigured, "{words}: {refused}");
    }
}

/// A full server is not a mistake in the setup.
#[tokio::test]
async fn a_server_out_of_memory_is_unavailable() {
    for algorithm in ALGORITHMS {
        let server = RedisServer::builder().arg("--maxmemory-policy", "noeviction").start();
        let rule = hourly(10, algorithm);
        for policy in POLICIES {
            let limiter = with_policy(&server.url(), policy).await;
            ask::<()>(&server, "CONFIG SET maxmemory 1");
            let answer = limiter.acquire(&rule, fresh_key()).await;
            match policy {
                OnStoreError::Deny => assert_eq!(answer.unwrap_err().cause(), Cause::Unavailable, "{algorithm:?}"),
                _ => drop(answer.unwrap()),
            }
            ask::<()>(&server, "CONFIG SET maxmemory 0");
            works(&limiter).await;
        }
    }
}
