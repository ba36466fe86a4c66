//! Deadlines: each operation ends in time, however long or short the deadline is.

use std::time::{Duration, Instant};

use ratelimit_harness::RedisServer;
use ratelimit_runtime::{Cause, Limiter, OnStoreError};

use super::{DEADLINE, HOUR, POLICIES, limiter};
use crate::support::{FIXED, ends, eventually, fresh_key, hourly};

#[tokio::test]
async fn a_deadline_of_any_length_works() {
    let error = Limiter::builder("memory://").deadline(Duration::ZERO).build().await.unwrap_err();
    assert!(error.to_string().contains("deadline"), "{error}");
    let server = RedisServer::start();
    for deadline in [Duration::MAX, Duration::from_nanos(1)] {
        let builder = Limiter::builder(&server.url()).deadline(deadline).on_store_error(OnStoreError::Deny);
        let limiter = builder.build().await.unwrap();
        let (rule, key) = (hourly(9, FIXED), fresh_key());
        for _ in 0..5 {
            let answer = ends(limiter.acquire(&rule, key)).await.map(drop).map_err(|refused| refused.cause());
            assert!(answer == Ok(()) || deadline < DEADLINE && answer == Err(Cause::Unavailable), "{answer:?}");
        }
        drop(limiter.peek(&rule, 1).await);
    }
}

/// A refund is made in time, or not at all.
#[tokio::test]
async fn every_operation_ends_at_the_deadline() {
    let server = RedisServer::start();
    let limiter = limiter(&server.url(), OnStoreError::Deny).await;
    let rule = hourly(100, FIXED);
    let mut permits = Vec::new();
    for _ in 0..5 {
        permits.push(limiter.acquire(&rule, 1).await.unwrap());
    }
    server.stop();
    for permit in permits {
        assert_eq!(ends(permit.refund()).await.unwrap_err().cause(), Cause::Unavailable);
    }
    assert_eq!(ends(limiter.peek(&rule, 1)).await.unwrap_err().cause(), Cause::Unavailable);
    assert_eq!(ends(limiter.reset(&rule, 1)).await.unwrap_err().cause(), Cause::Unavailable);
    assert_eq!(ends(limiter.acquire_within(&rule, 1, HOUR)).await.unwrap_err().cause(), Cause::Unavailable);
    server.cont();
}

/// A halted server accepts connections and is silent: each call ends at the deadline, as the policy
/// says.
#[tokio::test]
async fn a_call_to_a_silent_server_ends_at_the_deadline() {
    for policy in POLICIES {
        let server = RedisServer::start();
        let builder = Limiter::builder(&server.url()).deadline(Duration::from_millis(300)).on_store_error(policy);
        let limiter = builder.instances(4).build().await.unwrap();
        let rule = hourly(10, FIXED);
        server.stop();
        let mut answers = Vec::new();
        let started = Instant::now();
        for _ in 0..4 {
            answers.push(ends(limiter.acquire(&rule, 1)).await.map(drop).map_err(|refused| refused.cause()));
        }
        let took = started.elapsed();
        let expected = match policy {
            OnStoreError::Allow => [Ok(()); 4],
            OnStoreError::Deny => [Err(Cause::Unavailable); 4],
            OnStoreError::Local => [Ok(()), Ok(()), Err(Cause::Exceeded), Err(Cause::Exceeded)],
            other => panic!("{other:?} is not tested"),
        };
        assert_eq!(answers, expected, "{policy:?}");
        assert!(took < Duration::from_secs(8), "four calls took {took:?}");
        assert_eq!(ends(limiter.peek(&rule, 1)).await.unwrap_err().cause(), Cause::Unavailable);
        assert_eq!(ends(limiter.reset(&rule, 1)).await.unwrap_err().cause(), Cause::Unavailable);

        server.cont();
        // By the store again, with the whole count.
        eventually("the store decides", || async {
            let _ = limiter.acquire_n(&rule, 2, 9).await;
            limiter.peek(&rule, 2).await.is_ok_and(|seen| seen.remaining() == 1)
        })
        .await;
    }
}
