//! The circuit breaker: what opens it, what does not, and what closes it again.

use std::time::{Duration, Instant};

use ratelimit_harness::{Mode, Proxy, RedisServer};
use ratelimit_runtime::{Cause, Health, Limiter, OnStoreError, RequestPerMinute, limit_request_per_time};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::fake_server::HalfServer;
use super::{DEADLINE, at_once, calls_until_the_breaker_opens, decides_again, limiter};
use crate::support::servers::ask;
use crate::support::{FIXED, LOG, PATIENCE, admitted, ends, eventually, fresh_key, hourly, is_admitted};

/// Callers wait until the deadline while the breaker is closed, and not at all once it is open. The
/// local fallback goes on limiting.
#[tokio::test]
async fn the_breaker_opens_when_the_server_halts_and_closes_when_it_resumes() {
    let server = RedisServer::start();
    let limiter = limiter(&server.url(), OnStoreError::Local).await;
    let rule = hourly(4000, FIXED);
    decides_again(&limiter).await;
    for round in 0..2 {
        server.stop();
        assert!((1..=10).contains(&calls_until_the_breaker_opens(&limiter, &rule).await));
        let other = hourly(40, FIXED);
        let key = 10 + round;
        let answers = (0..30).map(|_| is_admitted(at_once(limiter.acquire(&other, key)).expect("it waits")));
        assert_eq!(answers.filter(|admitted| *admitted).count(), 10, "a fourth of the limit");
        assert!(at_once(limiter.peek(&other, key)).expect("it waits").is_err());
        assert!(at_once(limiter.reset(&other, key)).expect("it waits").is_err());

        server.cont();
        decides_again(&limiter).await;
        assert_eq!(admitted(&limiter, &hourly(40, LOG), key, 50).await, 40, "by the server");
    }
}

/// Their replies are awaited in the background, on the runtime that has sent them.
#[test]
fn blocking_calls_that_are_settled_later_open_the_breaker() {
    #[limit_request_per_time("settled", 1, Hours, 4000, cost = Settled(max = 1, |_| 1), limiter = limiter, blocking)]
    fn work(limiter: &Limiter) -> Result<(), RequestPerMinute> {
        Ok(())
    }
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let limiter = runtime.block_on(limiter(&server.url(), OnStoreError::Deny));
    while work(&limiter).is_err() {} // the background runtime connects
    server.stop();
    for _ in 0..5 {
        assert_eq!(work(&limiter).unwrap_err().cause(), Cause::Unavailable);
    }
    let ends = Instant::now() + PATIENCE;
    while !work(&limiter).unwrap_err().to_string().contains("calls in a row had no answer") {
        assert!(Instant::now() < ends, "the breaker stays closed");
    }
}

#[tokio::test]
async fn the_breaker_opens_once_for_hundreds_of_callers() {
    let server = RedisServer::start();
    let limiter = limiter(&server.url(), OnStoreError::Deny).await;
    let rule = hourly(10_000, FIXED);
    limiter.acquire(&rule, 1).await.unwrap();
    server.stop();
    let mut calls = JoinSet::new();
    for _ in 0..300 {
        let limiter = limiter.clone();
        calls.spawn(async move { limiter.acquire(&rule, 1).await.map(drop) });
    }
    let answers = ends(calls.join_all()).await;
    assert!(answers.iter().all(|answer| answer.as_ref().is_err_and(|error| error.cause() == Cause::Unavailable)));
    let refused = at_once(limiter.acquire(&rule, 1)).expect("the breaker is open").unwrap_err();
    assert_eq!((refused.cause(), refused.retry_after()), (Cause::Unavailable, None));
    let words = refused.to_string();
    assert!(words.contains(&format!("127.0.0.1:{}: ", server.port())), "{words}");
    server.cont();
    decides_again(&limiter).await;
}

/// The first call after the kill fails at once or at its deadline, later ones at once.
#[tokio::test]
async fn the_breaker_opens_when_the_server_is_killed_and_closes_after_a_restart() {
    let mut server = RedisServer::start();
    let limiter = limiter(&server.url(), OnStoreError::Local).await;
    for _ in 0..3 {
        decides_again(&limiter).await;
        server.kill();
        assert!(calls_until_the_breaker_opens(&limiter, &hourly(4000, FIXED)).await <= 10);
        server.restart();
    }
    decides_again(&limiter).await;
    assert_eq!(admitted(&limiter, &hourly(40, FIXED), fresh_key(), 50).await, 40);
}

/// Nothing passes, replies get lost, or connections are refused.
#[tokio::test]
async fn the_breaker_opens_and_closes_with_each_kind_of_network_failure() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let limiter = limiter(&proxy.url(), OnStoreError::Deny).await;
    for mode in [Mode::Stall, Mode::DropReplies, Mode::Refuse] {
        decides_again(&limiter).await;
        proxy.set(mode);
        if mode == Mode::Refuse {
            proxy.reset();
        }
        assert!(calls_until_the_breaker_opens(&limiter, &hourly(4000, FIXED)).await <= 10, "{mode:?}");
        sleep(DEADLINE).await; // some attempts fail
        proxy.set(Mode::Pass);
    }
    decides_again(&limiter).await;
}

/// Each reply is too late. The breaker does not close now and then because of that.
#[tokio::test]
async fn the_breaker_stays_open_while_the_server_is_slower_than_the_deadline() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let limiter = limiter(&proxy.url(), OnStoreError::Deny).await;
    let rule = hourly(4000, FIXED);
    decides_again(&limiter).await;
    proxy.set(Mode::Delay(DEADLINE * 3 / 4)); // a reply needs twice as much
    assert!(calls_until_the_breaker_opens(&limiter, &rule).await <= 10);
    for _ in 0..100 {
        assert!(at_once(limiter.acquire(&rule, 1)).expect("the breaker is open").is_err());
        sleep(DEADLINE / 10).await;
    }
    proxy.set(Mode::Pass);
    decides_again(&limiter).await;
}

/// The background awaits the late reply to a prefetch, to refund what it has charged. It is no sign that the server
/// serves calls.
#[tokio::test]
async fn late_replies_to_prefetches_do_not_keep_the_breaker_closed() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let limiter = limiter(&proxy.url(), OnStoreError::Deny).await;
    let rule = hourly(4000, FIXED).with_prefetch(10);
    let is_prefetched = async || {
        let _ = limiter.acquire(&rule, 1).await;
        at_once(limiter.acquire(&rule, 1)).is_some_and(|answer| answer.is_ok())
    };
    eventually("a prefetch has arrived", is_prefetched).await;
    proxy.set(Mode::Delay(DEADLINE * 3 / 4));
    let is_open = async || {
        let refused = limiter.acquire(&rule, 2).await.expect_err("the server is too slow");
        refused.to_string().contains("calls in a row had no answer")
    };
    let mut calls = 0;
    while !is_open().await {
        calls += 1;
        assert!(calls < 10, "the breaker never opens");
    }
    for _ in 0..20 {
        sleep(DEADLINE / 10).await;
        assert!(is_open().await);
    }
}

/// The server answers commands that write nothing. The probe must therefore be a call like those of
/// callers.
#[tokio::test]
async fn the_breaker_stays_open_while_the_server_pauses_writes() {
    let server = RedisServer::start();
    let limiter = limiter(&server.url(), OnStoreError::Deny).await;
    let rule = hourly(4000, FIXED);
    decides_again(&limiter).await;
    ask::<()>(&server, "CLIENT PAUSE 60000 WRITE");
    assert!(calls_until_the_breaker_opens(&limiter, &rule).await <= 10);
    for _ in 0..100 {
        assert!(at_once(limiter.acquire(&rule, 1)).expect("the breaker is open").is_err());
        sleep(DEADLINE / 10).await;
    }
    ask::<()>(&server, "CLIENT UNPAUSE");
    decides_again(&limiter).await;
}

/// Sends three calls at a time, for four seconds.
async fn keep_calling(server: &HalfServer) {
    let builder = Limiter::builder(&server.url).deadline(Duration::from_millis(20));
    let limiter = builder.on_store_error(OnStoreError::Deny).build().await.unwrap();
    let calling = async {
        loop {
            let rule = hourly(4000, FIXED);
            let _ = tokio::join!(limiter.acquire(&rule, 1), limiter.acquire(&rule, 1), limiter.acquire(&rule, 1));
            sleep(Duration::from_millis(1)).await;
        }
    };
    let _ = timeout(Duration::from_secs(4), calling).await;
}

/// The probe is answered and calls are not: the pauses between trials grow.
#[tokio::test]
async fn the_breaker_closes_less_often_while_only_its_probe_is_answered() {
    let server = HalfServer::silent_on("EVALSHA");
    keep_calling(&server).await;
    assert!(server.accepted() <= 2, "the silent one, and that of the background");
    let unanswered = server.unanswered();
    assert!((2..100).contains(&unanswered), "{unanswered} calls");
}

/// Each connection ends at its first call.
#[tokio::test]
async fn the_breaker_closes_less_often_while_connections_end_at_their_first_call() {
    let server = HalfServer::closing_on("EVALSHA");
    keep_calling(&server).await;
    let accepted = server.accepted();
    assert!((2..40).contains(&accepted), "{accepted} connections");
}

/// The server was never reached. Callers wait for the first attempt, and at most until their
/// deadline.
#[tokio::test]
async fn the_breaker_opens_before_the_first_connection() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    proxy.set(Mode::Stall);
    let builder = Limiter::builder(&proxy.url()).lazy().deadline(DEADLINE).on_store_error(OnStoreError::Deny);
    let limiter = builder.build().await.unwrap();
    // Long before the attempt itself is given up.
    assert!((1..=3).contains(&calls_until_the_breaker_opens(&limiter, &hourly(9, FIXED)).await));
    proxy.set(Mode::Pass);
    decides_again(&limiter).await;
}

/// A caller with less patience than the deadline, for example in a `select!`, proves nothing about
/// the server.
#[tokio::test]
async fn callers_who_leave_early_do_not_open_the_breaker() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let builder = Limiter::builder(&proxy.url()).deadline(PATIENCE).on_store_error(OnStoreError::Deny);
    let limiter = builder.build().await.unwrap();
    let rule = hourly(1000, FIXED);
    proxy.set(Mode::Delay(Duration::from_millis(30)));
    for _ in 0..20 {
        assert!(timeout(Duration::from_millis(1), limiter.acquire(&rule, 1)).await.is_err());
    }
    assert_eq!(limiter.health(), Health::Available);
    ends(limiter.acquire(&rule, 1)).await.unwrap();
    assert_eq!(proxy.accepted(), 1, "the connection was given up");

    // For longer than the deadline, and without any other caller.
    let builder = Limiter::builder(&proxy.url()).deadline(DEADLINE * 5).on_store_error(OnStoreError::Deny);
    let limiter = builder.build().await.unwrap();
    for _ in 0..100 {
        assert!(timeout(Duration::from_millis(20), limiter.acquire(&rule, 1)).await.is_err());
        assert_eq!(limiter.health(), Health::Available);
    }
    assert_eq!(proxy.accepted(), 2, "the connection was given up");
}

/// No caller waits until the deadline, and still the silent server is detected.
#[tokio::test]
async fn the_breaker_opens_although_all_callers_leave_early() {
    let server = RedisServer::start();
    let limiter = limiter(&server.url(), OnStoreError::Local).await;
    let rule = hourly(4000, FIXED);
    decides_again(&limiter).await;
    for _ in 0..2 {
        server.stop();
        eventually("the breaker is open", async || timeout(DEADLINE / 4, limiter.acquire(&rule, 1)).await.is_ok())
            .await;
        assert!(at_once(limiter.acquire(&rule, 1)).is_some());
        assert_ne!(limiter.health(), Health::Available);
        server.cont();
        decides_again(&limiter).await;
    }
}

/// An error is an answer: the failure policy decides, and each call asks the server again.
#[tokio::test]
async fn error_replies_do_not_open_the_breaker() {
    let server = RedisServer::builder().arg("--maxmemory-policy", "noeviction").start();
    let builder = Limiter::builder(&server.url()).deadline(PATIENCE).on_store_error(OnStoreError::Deny);
    let limiter = builder.build().await.unwrap();
    let rule = hourly(100, FIXED);
    ask::<()>(&server, "CONFIG SET maxmemory 1");
    for _ in 0..20 {
        assert_eq!(limiter.acquire(&rule, 1).await.unwrap_err().cause(), Cause::Unavailable);
    }
    ask::<()>(&server, "CONFIG SET maxmemory 0");
    limiter.acquire(&rule, 1).await.unwrap();
}
