//! A store that fails: who waits, for how long, what they get, and how it ends.
//!
//! Ways to be away that have a test of their own elsewhere are in `server.rs` (`away`, `misconfigured`).

mod background;
mod chaos;

use std::fmt::{Debug, Write as _};
use std::future::Future;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use futures_util::future::join_all;
use ratelimit_harness::{Mode, Proxy, RedisServer};
use ratelimit_runtime::store::StoreError;
use ratelimit_runtime::{Algorithm, Cause, Health, Key, Limiter, ManualClock, OnStoreError, Refill, Rule};
use tokio::runtime::{self, Handle};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber, span};

use crate::core::custom_store::PlainStore;
use crate::support::{
    ALGORITHMS, FIXED, LOG, PATIENCE, admitted, ends, exceeded, fresh_key, hourly, is_admitted, limiter_on, settle,
};

const DEADLINE: Duration = Duration::from_millis(200);
/// Much longer than anything that is not held up takes.
const LONG_DEADLINE: Duration = Duration::from_secs(3);
const HOUR: Duration = Duration::from_secs(3600);
const POLICIES: [OnStoreError; 3] = [OnStoreError::Local, OnStoreError::Allow, OnStoreError::Deny];

async fn limiter(url: &str, policy: OnStoreError) -> Limiter {
    Limiter::builder(url).deadline(DEADLINE).on_store_error(policy).instances(4).build().await.unwrap()
}

/// What the future has to say without any waiting, be it for the server, a timer or another task.
fn at_once<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let until_it_holds = async {
        while !holds().await {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(Duration::from_secs(30), until_it_holds).await.unwrap_or_else(|_| panic!("not within 30 seconds: {what}"));
}

/// The server decides again.
async fn recovers(limiter: &Limiter) {
    eventually("the server decides", async || limiter.peek(&hourly(1, FIXED), 0).await.is_ok()).await;
}

/// Calls, one after another, until one has its answer at once. How many had not.
async fn calls_until_the_breaker_opens(limiter: &Limiter, rule: &Rule) -> u64 {
    for unanswered in 0..100 {
        let mut call = Box::pin(limiter.acquire(rule, 1));
        if at_once(&mut call).is_some() {
            return unanswered;
        }
        let _ = ends(call).await;
    }
    panic!("the breaker never opens");
}

fn ask<T: redis::FromRedisValue>(server: &RedisServer, command: &str) -> T {
    let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
    redis::from_redis_value(server.command(&words)).unwrap()
}

/// How many scripts that it knew the server has executed since its start. The probe of a new connection is not among them.
fn executed(server: &RedisServer) -> u64 {
    let stats: String = ask(server, "INFO commandstats");
    let calls = |line: &str| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok();
    let failed = |line: &str| line.split_once("failed_calls=")?.1.trim().parse::<u64>().ok();
    let scripts = stats.lines().filter(|line| line.starts_with("cmdstat_evalsha:"));
    scripts.map(|line| calls(line).unwrap() - failed(line).unwrap()).sum()
}

/// Something like a server, for as long as the test runs, that answers everything but one command.
struct HalfServer {
    url: String,
    /// Connections that it has taken.
    accepted: Arc<AtomicU64>,
    /// Times that it got the command.
    unanswered: Arc<AtomicU64>,
}

impl HalfServer {
    fn silent_on(command: &'static str) -> Self {
        Self::start(command, |_| {})
    }

    fn closing_on(command: &'static str) -> Self {
        Self::start(command, |connection| drop(connection.shutdown(Shutdown::Both)))
    }

    fn start(command: &'static str, act: fn(&TcpStream)) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://127.0.0.1:{}/?protocol=resp2", listener.local_addr().unwrap().port());
        let (accepted, unanswered) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let server = Self { url, accepted: Arc::clone(&accepted), unanswered: Arc::clone(&unanswered) };
        let serve = move |mut connection: TcpStream, unanswered: &AtomicU64| {
            let mut bytes = [0; 4096];
            while let Ok(length @ 1..) = connection.read(&mut bytes) {
                let text = String::from_utf8_lossy(&bytes[..length]);
                if text.contains(&format!("\n{command}\r")) {
                    unanswered.fetch_add(1, Ordering::SeqCst);
                    act(&connection);
                } else {
                    let commands = text.lines().filter(|line| line.starts_with('*')).count();
                    let _ = connection.write_all("+OK\r\n".repeat(commands).as_bytes());
                }
            }
        };
        thread::spawn(move || {
            for connection in listener.incoming() {
                accepted.fetch_add(1, Ordering::SeqCst);
                let unanswered = Arc::clone(&unanswered);
                thread::spawn(move || serve(connection.unwrap(), &unanswered));
            }
        });
        server
    }

    fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::SeqCst)
    }

    fn unanswered(&self) -> u64 {
        self.unanswered.load(Ordering::SeqCst)
    }
}

/// Something like a proxy whose server is lost: it answers each script with these words.
fn failing_with(words: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://127.0.0.1:{}/?protocol=resp2", listener.local_addr().unwrap().port());
    let serve = move |mut connection: TcpStream| {
        let mut bytes = [0; 16 * 1024];
        while let Ok(length @ 1..) = connection.read(&mut bytes) {
            let text = String::from_utf8_lossy(&bytes[..length]);
            for name in text.split('*').filter_map(|command| command.lines().nth(2)) {
                let reply = if name.starts_with("EVAL") { format!("-{words}\r\n") } else { "+OK\r\n".to_owned() };
                let _ = connection.write_all(reply.as_bytes());
            }
        }
    };
    thread::spawn(move || {
        for connection in listener.incoming() {
            thread::spawn(move || serve(connection.unwrap()));
        }
    });
    url
}

/// What stands between a limiter and its server answers, and the server is lost all the same.
#[tokio::test]
async fn the_words_of_proxies_for_a_lost_server_are_an_outage() {
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

/// Connections that the server does not allow are not asked for all the time; those that it allows do.
#[tokio::test]
async fn more_connections_than_the_server_allows_are_seldom_asked_for() {
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
    // Once all are gone there is no reason to wait.
    proxy.cut();
    recovers(&limiter).await;
}

mod breaker {
    use super::*;

    /// Callers meet the deadline until the breaker opens, and nothing at all after that; this process goes on limiting.
    #[tokio::test]
    async fn opens_when_the_server_halts_and_closes_when_it_goes_on() {
        let server = RedisServer::start();
        let limiter = limiter(&server.url(), OnStoreError::Local).await;
        let rule = hourly(4000, FIXED);
        recovers(&limiter).await;
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
            recovers(&limiter).await;
            assert_eq!(admitted(&limiter, &hourly(40, LOG), key, 50).await, 40, "by the server");
        }
    }

    #[tokio::test]
    async fn opens_once_for_hundreds_of_callers() {
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
        assert!(words.contains(&format!("127.0.0.1:{}: ", server.port())) && words.contains(" (for "), "{words}");
        server.cont();
        recovers(&limiter).await;
    }

    /// Killed, the first call knows at once or at its deadline; those behind it at once.
    #[tokio::test]
    async fn opens_when_the_server_is_killed_and_closes_when_it_is_back() {
        let mut server = RedisServer::start();
        let limiter = limiter(&server.url(), OnStoreError::Local).await;
        for _ in 0..3 {
            recovers(&limiter).await;
            server.kill();
            assert!(calls_until_the_breaker_opens(&limiter, &hourly(4000, FIXED)).await <= 10);
            server.restart();
        }
        recovers(&limiter).await;
        assert_eq!(admitted(&limiter, &hourly(40, FIXED), fresh_key(), 50).await, 40);
    }

    /// Connections are taken, and nothing passes; they are refused; replies get lost.
    #[tokio::test]
    async fn opens_and_closes_whatever_is_wrong_on_the_way() {
        let server = RedisServer::start();
        let proxy = Proxy::start(server.port());
        let limiter = limiter(&proxy.url(), OnStoreError::Deny).await;
        for mode in [Mode::Stall, Mode::DropReplies, Mode::Refuse] {
            recovers(&limiter).await;
            proxy.set(mode);
            if mode == Mode::Refuse {
                proxy.reset();
            }
            assert!(calls_until_the_breaker_opens(&limiter, &hourly(4000, FIXED)).await <= 10, "{mode:?}");
            sleep(DEADLINE).await; // some attempts fail
            proxy.set(Mode::Pass);
        }
        recovers(&limiter).await;
    }

    /// It answers, and never in time: calls are not sent to it by turns.
    #[tokio::test]
    async fn stays_open_before_a_server_slower_than_the_deadline() {
        let server = RedisServer::start();
        let proxy = Proxy::start(server.port());
        let limiter = limiter(&proxy.url(), OnStoreError::Deny).await;
        let rule = hourly(4000, FIXED);
        recovers(&limiter).await;
        proxy.set(Mode::Delay(DEADLINE * 3 / 4)); // a reply needs twice as much
        assert!(calls_until_the_breaker_opens(&limiter, &rule).await <= 10);
        for _ in 0..100 {
            assert!(at_once(limiter.acquire(&rule, 1)).expect("the breaker is open").is_err());
            sleep(DEADLINE / 10).await;
        }
        proxy.set(Mode::Pass);
        recovers(&limiter).await;
    }

    /// It answers whatever writes nothing: what is asked before callers are let through must be what they ask.
    #[tokio::test]
    async fn stays_open_before_a_server_that_holds_back_writes() {
        let server = RedisServer::start();
        let limiter = limiter(&server.url(), OnStoreError::Deny).await;
        let rule = hourly(4000, FIXED);
        recovers(&limiter).await;
        ask::<()>(&server, "CLIENT PAUSE 60000 WRITE");
        assert!(calls_until_the_breaker_opens(&limiter, &rule).await <= 10);
        for _ in 0..100 {
            assert!(at_once(limiter.acquire(&rule, 1)).expect("the breaker is open").is_err());
            sleep(DEADLINE / 10).await;
        }
        ask::<()>(&server, "CLIENT UNPAUSE");
        recovers(&limiter).await;
    }

    /// Three callers at a time, one time after another, for four seconds.
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

    /// Where calls are never answered, though the probe is, callers are let through less and less
    /// often.
    #[tokio::test]
    async fn closes_more_rarely_while_only_the_probe_is_answered() {
        let server = HalfServer::silent_on("EVALSHA");
        keep_calling(&server).await;
        assert!(server.accepted() <= 2, "the silent one, and that of the background");
        let unanswered = server.unanswered();
        assert!((2..100).contains(&unanswered), "{unanswered} calls");
    }

    /// The same where each connection ends at its first call.
    #[tokio::test]
    async fn closes_more_rarely_while_connections_are_lost_at_their_first_call() {
        let server = HalfServer::closing_on("EVALSHA");
        keep_calling(&server).await;
        let accepted = server.accepted();
        assert!((2..40).contains(&accepted), "{accepted} connections");
    }

    /// A server that was never there: callers wait for the first attempt, and at most for their deadline.
    #[tokio::test]
    async fn opens_before_the_first_connection_too() {
        let server = RedisServer::start();
        let proxy = Proxy::start(server.port());
        proxy.set(Mode::Stall);
        let builder = Limiter::builder(&proxy.url()).lazy().deadline(DEADLINE).on_store_error(OnStoreError::Deny);
        let limiter = builder.build().await.unwrap();
        // Long before the attempt itself is given up.
        assert!((1..=3).contains(&calls_until_the_breaker_opens(&limiter, &hourly(9, FIXED)).await));
        proxy.set(Mode::Pass);
        recovers(&limiter).await;
    }

    /// Somebody with less patience than the deadline, a `select!` say, says nothing about the server.
    #[tokio::test]
    async fn is_not_opened_by_callers_who_go_early() {
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

        // For longer than the deadline, and nobody else calls.
        let builder = Limiter::builder(&proxy.url()).deadline(DEADLINE * 5).on_store_error(OnStoreError::Deny);
        let limiter = builder.build().await.unwrap();
        for _ in 0..100 {
            assert!(timeout(Duration::from_millis(20), limiter.acquire(&rule, 1)).await.is_err());
            assert_eq!(limiter.health(), Health::Available);
        }
        assert_eq!(proxy.accepted(), 2, "the connection was given up");
    }

    /// Nobody waits for the deadline, and yet it is found out that the server no longer answers.
    #[tokio::test]
    async fn opens_when_all_callers_go_early() {
        let server = RedisServer::start();
        let limiter = limiter(&server.url(), OnStoreError::Local).await;
        let rule = hourly(4000, FIXED);
        recovers(&limiter).await;
        for _ in 0..2 {
            server.stop();
            eventually("the breaker is open", async || timeout(DEADLINE / 4, limiter.acquire(&rule, 1)).await.is_ok())
                .await;
            assert!(at_once(limiter.acquire(&rule, 1)).is_some());
            assert_ne!(limiter.health(), Health::Available);
            server.cont();
            recovers(&limiter).await;
        }
    }

    /// An error is an answer: the policy decides, call by call, and the server is asked each time.
    #[tokio::test]
    async fn is_not_opened_by_errors_of_the_server() {
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
}

mod connections {
    use super::*;

    async fn several(url: &str) -> Limiter {
        let builder = Limiter::builder(url).deadline(DEADLINE).on_store_error(OnStoreError::Deny);
        builder.connections(3).build().await.unwrap()
    }

    /// The connections there are, each by its id and its latest command.
    fn connected(server: &RedisServer) -> Vec<(u64, String)> {
        let clients: String = ask(server, "CLIENT LIST TYPE normal");
        let value = |line: &str, name: &str| {
            line.split(' ').find_map(|field| field.strip_prefix(name)?.strip_prefix('=')).unwrap().to_owned()
        };
        let clients = clients.lines().filter(|line| !line.contains("cmd=client"));
        clients.map(|line| (value(line, "id").parse().unwrap(), value(line, "cmd"))).collect()
    }

    /// So many connections are open, and no others: the server has run a script over each.
    async fn are_open(server: &RedisServer, count: usize) {
        eventually("so many connections", async || {
            let now = connected(server);
            now.len() == count && now.iter().all(|(_, latest)| latest.starts_with("eval") || latest == "info")
        })
        .await;
    }

    #[tokio::test]
    async fn are_used_in_turn_and_each_is_opened_again() {
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

    /// A handshake takes longer than an attempt may at first, as when all clients come back at once; decisions are in time.
    #[cfg(feature = "rustls")]
    #[tokio::test]
    async fn are_opened_by_a_server_whose_handshakes_are_slow() {
        let server = RedisServer::builder().tls().start();
        let proxy = Proxy::start(server.port());
        let builder = Limiter::builder(&server.url_through(&proxy)).deadline(DEADLINE * 5);
        let builder = builder.ca_certificate(std::fs::read(&server.tls().unwrap().ca_pem).unwrap());
        let limiter = builder.on_store_error(OnStoreError::Deny).build().await.unwrap();
        proxy.set(Mode::Delay(DEADLINE * 3 / 2)); // four times: of TLS and of the protocol, there and back
        proxy.cut();
        assert!(ends(limiter.peek(&hourly(9, FIXED), 1)).await.is_err());
        recovers(&limiter).await;
    }

    /// Each of its answers takes longer than a connection may with a short deadline.
    #[tokio::test]
    async fn are_opened_within_a_long_deadline() {
        let server = RedisServer::start();
        let proxy = Proxy::start(server.port());
        proxy.set(Mode::Delay(Duration::from_millis(1_100)));
        let builder = Limiter::builder(&proxy.url()).deadline(PATIENCE).on_store_error(OnStoreError::Deny);
        let limiter = builder.build().await.unwrap();
        proxy.set(Mode::Pass);
        limiter.acquire(&hourly(9, FIXED), 1).await.unwrap();
        assert_eq!(proxy.accepted(), 1);
    }

    /// What is asked for the log alone is not waited for, whatever the deadline.
    #[tokio::test]
    async fn are_opened_though_the_server_does_not_tell_its_settings() {
        let server = HalfServer::silent_on("INFO");
        let builder =
            Limiter::builder(&server.url).deadline(Duration::from_secs(3600)).on_store_error(OnStoreError::Deny);
        let _limiter = builder.connections(3).build().await.unwrap();
        eventually("three connections", async || server.accepted() == 3).await;
    }

    /// A server that halts and goes on answers over the connections that it has, and no client
    /// opens others.
    #[tokio::test]
    async fn are_kept_when_the_server_halts() {
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
            recovers(&limiter).await;
            for _ in 0..2 * count {
                limiter.acquire(&rule, 1).await.unwrap();
            }
            assert_eq!(proxy.accepted(), before, "of {count} connections");
        }
    }

    /// A connection that has ended does not answer again, so another is opened at once.
    #[tokio::test]
    async fn that_end_while_they_are_silent_are_replaced() {
        let server = RedisServer::start();
        let proxy = Proxy::start(server.port());
        for query in ["", "?protocol=resp2"] {
            let builder =
                Limiter::builder(&(proxy.url() + query)).deadline(DEADLINE).on_store_error(OnStoreError::Deny);
            let limiter = builder.build().await.unwrap();
            recovers(&limiter).await;
            proxy.set(Mode::Stall);
            calls_until_the_breaker_opens(&limiter, &hourly(4000, FIXED)).await;
            let before = proxy.accepted();
            proxy.cut();
            eventually("another one", async || proxy.accepted() > before).await;
            proxy.set(Mode::Pass);
            recovers(&limiter).await;
        }
    }

    /// An answer that comes too late shows that a connection is alive.
    #[tokio::test]
    async fn are_kept_when_the_server_is_slower_than_the_deadline() {
        let server = RedisServer::start();
        let proxy = Proxy::start(server.port());
        let builder = Limiter::builder(&proxy.url()).deadline(DEADLINE).on_store_error(OnStoreError::Deny);
        let limiter = builder.build().await.unwrap();
        recovers(&limiter).await;
        proxy.set(Mode::Delay(DEADLINE * 3 / 4)); // a reply needs twice as much
        calls_until_the_breaker_opens(&limiter, &hourly(4000, FIXED)).await;
        sleep(DEADLINE * 25).await; // longer than a connection without any answer is kept
        proxy.set(Mode::Pass);
        recovers(&limiter).await;
        assert_eq!(proxy.accepted(), 1);
    }

    /// One of them says nothing any more, the others do: it alone is given up.
    #[tokio::test]
    async fn that_go_silent_are_replaced_one_by_one() {
        let server = RedisServer::start();
        let proxy = Proxy::start(server.port());
        let limiter = several(&proxy.url()).await;
        let rule = hourly(10_000, FIXED);
        eventually("three connections", async || connected(&server).len() == 3).await;
        recovers(&limiter).await;
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
        recovers(&limiter).await;
        assert_eq!(proxy.accepted(), before + 1);
    }

    /// New connections are refused, as by a server that has as many as it may, but those that there
    /// are go on.
    #[tokio::test]
    async fn that_answer_again_are_used_while_others_are_refused() {
        let server = RedisServer::start();
        let far = Proxy::start(server.port());
        let near = Proxy::start(far.port());
        let limiter = limiter(&near.url(), OnStoreError::Deny).await;
        recovers(&limiter).await;
        near.set(Mode::Refuse);
        far.set(Mode::Stall);
        calls_until_the_breaker_opens(&limiter, &hourly(4000, FIXED)).await;
        sleep(DEADLINE * 25).await; // longer than a connection without any answer is waited for
        far.set(Mode::Delay(DEADLINE / 10)); // an answer takes longer than a refusal
        recovers(&limiter).await;
    }

    /// Callers who go early do not say which of them is silent.
    #[tokio::test]
    async fn that_go_silent_are_replaced_though_all_callers_go_early() {
        let server = RedisServer::start();
        let proxy = Proxy::start(server.port());
        let builder = Limiter::builder(&proxy.url()).deadline(DEADLINE * 5).on_store_error(OnStoreError::Deny);
        let limiter = builder.connections(3).build().await.unwrap();
        let rule = hourly(1_000_000, FIXED);
        eventually("three connections", async || connected(&server).len() == 3).await;
        recovers(&limiter).await;
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

    /// Behind what took its place there may be a server without its counters.
    #[tokio::test]
    async fn that_were_lost_may_lead_to_a_server_that_knows_nothing() {
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

    /// Their end with a runtime says nothing about the server.
    #[tokio::test]
    async fn that_end_with_their_runtime_are_no_failure() {
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
        let before = crate::redis::denial_cache::asked(&server);
        exceeded(limiter.acquire(&rule, 1).await);
        assert_eq!(crate::redis::denial_cache::asked(&server), before);
    }

    #[test]
    fn a_share_whose_runtime_stands_still_has_a_deadline() {
        let server = RedisServer::start();
        let proxy = Proxy::start(server.port());
        let build = || runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (first, second) = (build(), build());
        let limiter = first.block_on(limiter(&proxy.url(), OnStoreError::Deny));
        first.block_on(recovers(&limiter));
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
}

mod executed {
    use super::*;

    /// Nothing is sent twice, though its reply is lost.
    #[tokio::test]
    async fn once_though_the_connection_ends_before_the_reply() {
        let server = RedisServer::start();
        let proxy = Proxy::start(server.port());
        let limiter = limiter(&proxy.url(), OnStoreError::Deny).await;
        for algorithm in ALGORITHMS {
            let (rule, key) = (hourly(100, algorithm), fresh_key());
            recovers(&limiter).await;
            limiter.acquire(&rule, key).await.unwrap(); // the server knows the script
            let before = executed(&server);
            proxy.cut_at_next_reply();
            assert_eq!(limiter.acquire(&rule, key).await.unwrap_err().cause(), Cause::Unavailable);
            assert_eq!(executed(&server), before + 1, "{algorithm:?}");
        }
    }

    /// Under a load, through outages: what was admitted was charged, and what was charged was sent once.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn never_more_often_than_asked_for() {
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
            sleep(DEADLINE * 2).await;
            assert_eq!(at_once(limiter.acquire(&rule, 2)).map(|answer| answer.is_err()), Some(true));
            server.cont();
        }
        tasks.shutdown().await;
        recovers(&limiter).await;
        let left = limiter.peek(&rule, 1).await.unwrap().remaining();
        let (charged, admitted) = (1_000_000 - left, done.load(Ordering::SeqCst));
        assert!(admitted <= charged && charged <= asked.load(Ordering::SeqCst), "{admitted} {charged}");
    }
}

mod local {
    use super::*;

    fn on_failing_store(instances: u32) -> (Limiter, PlainStore, ManualClock) {
        let clock = ManualClock::new();
        let store = PlainStore::new(&clock);
        let limiter = Limiter::builder("memory://").clock(clock.clone()).instances(instances).over(store.clone());
        store.fail(Some(gone()));
        (limiter.unwrap(), store, clock)
    }

    fn gone() -> StoreError {
        StoreError::unavailable("gone fishing")
    }

    /// An outage in each second, and one share in each hour.
    #[tokio::test]
    async fn grants_one_share_however_often_the_store_goes() {
        for algorithm in ALGORITHMS {
            let (limiter, store, clock) = on_failing_store(4);
            let (rule, key) = (hourly(40, algorithm), fresh_key());
            let mut granted = 0;
            for _ in 0..20 {
                store.fail(Some(gone()));
                granted += admitted(&limiter, &rule, key, 3).await;
                store.fail(None);
                limiter.acquire(&hourly(1000, FIXED), "another").await.unwrap();
                clock.advance(Duration::from_secs(1));
            }
            assert_eq!(granted, 10, "{algorithm:?}");
        }
    }

    #[tokio::test]
    async fn grants_what_the_rate_allows_from_a_bucket_smaller_than_the_instances() {
        let second = Duration::from_secs(1);
        let rule = Rule::new("small", 100, second);
        for algorithm in
            [Algorithm::TokenBucket { burst: 5, refill: Refill::Greedy }, Algorithm::LeakyBucket { queue: 5 }]
        {
            let (limiter, _store, clock) = on_failing_store(10);
            let rule = rule.with_algorithm(algorithm);
            for _ in 0..20 {
                limiter.acquire(&rule, 1).await.unwrap();
                exceeded(limiter.acquire(&rule, 1).await);
                clock.advance(second / 10);
            }
            let refused = limiter.acquire_n(&rule, 1, 2).await.unwrap_err();
            assert_eq!(refused.cause(), Cause::Unavailable);
        }
    }

    #[tokio::test]
    async fn says_when_a_share_is_nothing() {
        let (limiter, _store, _clock) = on_failing_store(10);
        let rule = hourly(9, FIXED);
        let refused = limiter.acquire(&rule, 1).await.unwrap_err();
        assert_eq!(refused.cause(), Cause::Unavailable);
        let words = refused.to_string();
        for part in ["gone fishing", "`item`", "10 instances", "is 0"] {
            assert!(words.contains(part), "{words}");
        }
    }

    #[tokio::test]
    async fn charges_all_rules_or_none() {
        let (limiter, _store, _clock) = on_failing_store(2);
        let (one, other) = (hourly(10, FIXED), Rule::new("other", 4, HOUR));
        let charges = [(&one, Key::new(1), 1), (&other, Key::new(1), 1)];
        for _ in 0..2 {
            limiter.acquire_all(&charges).await.unwrap();
        }
        assert_eq!(exceeded(limiter.acquire_all(&charges).await).rule(), "other");
        assert_eq!(admitted(&limiter, &one, 1, 9).await, 3, "what was refused was not charged");
    }

    /// Lines form before the share as before the limit.
    #[tokio::test]
    async fn serves_those_who_wait_in_their_order() {
        let (limiter, store, clock) = on_failing_store(2);
        let rule = Rule::new("wait", 2, Duration::from_secs(1));
        let served = Arc::new(Mutex::new(Vec::new()));
        let mut waiting = JoinSet::new();
        for number in 0..4 {
            let (limiter, served) = (limiter.clone(), Arc::clone(&served));
            waiting.spawn(async move {
                limiter.acquire_within(&rule, 1, HOUR).await.unwrap();
                served.lock().unwrap().push(number);
            });
            settle().await;
        }
        for expected in 1..=2 {
            assert_eq!(served.lock().unwrap().len(), expected);
            clock.advance(Duration::from_secs(1));
            settle().await;
        }
        store.fail(None); // the store has its whole count, by now
        for _ in 0..2 {
            clock.advance(Duration::from_secs(1));
            settle().await;
        }
        ends(waiting.join_all()).await;
        assert_eq!(*served.lock().unwrap(), [0, 1, 2, 3]);
    }

    /// Who stops waiting asks once more what to say, and takes nothing.
    #[tokio::test]
    async fn charges_nothing_to_those_who_stop_waiting() {
        let (limiter, store, clock) = on_failing_store(1);
        let rule = Rule::new("stop", 1, Duration::from_secs(1));
        store.hold();
        let waiting = |longest| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.acquire_within(&rule, 1, longest).await })
        };
        let first = waiting(HOUR);
        settle().await;
        store.release();
        settle().await;
        assert!(first.is_finished());
        let asks = waiting(HOUR);
        settle().await;
        store.release(); // refused, and first in line
        settle().await;
        let stops = waiting(Duration::from_secs(2));
        settle().await;
        clock.advance(Duration::from_secs(1)); // the first in the queue asks
        settle().await;
        clock.advance(Duration::from_secs(1)); // the other one stops, and asks too
        settle().await;
        asks.abort();
        settle().await;
        store.release();
        settle().await;
        exceeded(ends(stops).await.unwrap());
        assert_eq!(store.calls(), 4);
        store.release();
        ends(limiter.acquire(&rule, 1)).await.unwrap();
    }
}

/// What is written into the log by this thread while it lives.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<(Level, String)>>>);

impl Log {
    /// The lines that hold these words.
    pub(crate) fn with(&self, words: &str) -> Vec<(Level, String)> {
        self.0.lock().unwrap().iter().filter(|(_, line)| line.contains(words)).cloned().collect()
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::DEBUG
    }
    fn new_span(&self, attributes: &span::Attributes<'_>) -> span::Id {
        let metadata = attributes.metadata();
        self.0.lock().unwrap().push((*metadata.level(), format!("span {}", metadata.name())));
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &Event<'_>) {
        struct Line(String);
        impl Visit for Line {
            fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
                let _ = write!(self.0, "{}={value:?} ", field.name());
            }
        }
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().unwrap().push((*event.metadata().level(), line.0));
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

mod health {
    use super::*;

    fn is_degraded(limiter: &Limiter) -> bool {
        matches!(limiter.health(), Health::Degraded { .. })
    }

    /// An outage is two events, whatever happens in it; and it is seen without any call.
    #[tokio::test]
    async fn tells_of_an_outage_once() {
        let log = Log::default();
        let _guard = tracing::subscriber::set_default(log.clone());
        let mut server = RedisServer::builder().password("swordfish").start();
        let limiter = limiter(&server.url(), OnStoreError::Deny).await;
        assert_eq!(limiter.health(), Health::Available);
        limiter.acquire(&hourly(1000, FIXED), "pear").await.unwrap();
        server.kill();
        eventually("it is known without a call", async || is_degraded(&limiter)).await;
        assert_eq!(log.with("rate limit store"), []);
        // Another test, which listens to nothing, may have been the first to come by while this one began to listen.
        tracing::callsite::rebuild_interest_cache();
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

    /// Prefetched quota is spent without the server, whether or not its caller would wait.
    #[tokio::test]
    async fn does_not_become_good_by_quota_of_before_the_outage() {
        let log = Log::default();
        let _guard = tracing::subscriber::set_default(log.clone());
        let mut server = RedisServer::start();
        let limiter = limiter(&server.url(), OnStoreError::Deny).await;
        let rule = hourly(1000, FIXED).with_prefetch(100);
        limiter.acquire(&rule, 1).await.unwrap();
        server.kill();
        tracing::callsite::rebuild_interest_cache();
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

    /// In RESP2 a client is not told that its connection has ended. A server that halts does not
    /// end it.
    #[tokio::test]
    async fn of_an_idle_limiter_is_that_of_its_server() {
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

    /// A runtime that is left during an outage never hears of its end.
    #[test]
    fn is_that_of_the_runtime_that_asks() {
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
        left.block_on(recovers(&limiter));
    }

    #[tokio::test]
    async fn of_memory_is_good_even_when_it_is_full() {
        let limiter = Limiter::builder("memory://").max_keys(1).build().await.unwrap();
        limiter.acquire(&hourly(1, FIXED), 1).await.unwrap();
        assert_eq!(limiter.acquire(&hourly(1, FIXED), 2).await.unwrap_err().cause(), Cause::Unavailable);
        assert_eq!(limiter.health(), Health::Available);
    }

    #[tokio::test]
    async fn a_server_that_evicts_is_warned_about_once() {
        for (memory, policy, rights, expected) in [
            ("100mb", "allkeys-lru", "+@all", 1),
            ("100mb", "noeviction", "+@all", 0),
            ("0", "allkeys-lru", "+@all", 0),
            ("100mb", "volatile-ttl", "+@all -info", 0),
        ] {
            let log = Log::default();
            let _guard = tracing::subscriber::set_default(log.clone());
            let server = RedisServer::builder().arg("--maxmemory", memory).arg("--maxmemory-policy", policy).start();
            ask::<()>(&server, &format!("ACL SETUSER limiter on >swordfish ~* {rights}"));
            let url = format!("redis://limiter:swordfish@127.0.0.1:{}/", server.port());
            let limiter = limiter(&url, OnStoreError::Deny).await;
            recovers(&limiter).await;
            eventually("a warning", async || log.with("maxmemory-policy").len() >= expected).await;
            ask::<i64>(&server, "CLIENT KILL TYPE normal SKIPME yes");
            sleep(Duration::from_millis(50)).await;
            recovers(&limiter).await;
            let warned = log.with("maxmemory-policy");
            assert_eq!(warned.len(), expected, "{memory} {policy} {rights}: {warned:?}");
        }
    }
}

/// What a server may answer to a call, and what its caller gets.
mod answers {
    use super::*;

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
    async fn of_a_replica() {
        let server = RedisServer::start();
        ask::<()>(&server, "REPLICAOF 127.0.0.1 1");
        are_unavailable(&server, "connect to the primary").await;
    }

    /// Somebody's script runs on and on.
    #[tokio::test]
    async fn of_a_busy_server() {
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
        recovers(&limiter).await;
        looping.join().unwrap();
    }

    #[tokio::test]
    async fn of_a_server_that_is_loading() {
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
        recovers(&limiter).await;
        reloading.join().unwrap();
    }
}

mod cancelled {
    use super::*;

    /// Polled so often, each time as far as it can go, then dropped.
    async fn poll_and_drop(call: impl Future, polls: usize) {
        let mut call = pin!(call);
        for _ in 0..polls {
            if at_once(call.as_mut()).is_some() {
                return;
            }
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// While a connection is being opened, while the server is asked, while it does not answer, after the breaker opened.
    #[tokio::test]
    async fn callers_leave_nothing_behind() {
        let server = RedisServer::start();
        let proxy = Proxy::start(server.port());
        let rule = hourly(100_000, FIXED);
        for mode in [Mode::Pass, Mode::Stall, Mode::Refuse, Mode::Delay(Duration::from_millis(5))] {
            let builder = Limiter::builder(&proxy.url()).lazy().deadline(DEADLINE).on_store_error(OnStoreError::Deny);
            let limiter = builder.build().await.unwrap();
            proxy.set(mode);
            for polls in 0..30 {
                poll_and_drop(limiter.acquire(&rule, 1), polls).await;
                poll_and_drop(limiter.acquire_within(&rule, 1, HOUR), polls).await;
                poll_and_drop(limiter.acquire_all(&[(&rule, Key::new(1), 1), (&rule, Key::new(2), 1)]), polls).await;
                poll_and_drop(limiter.peek(&rule, 1), polls).await;
                poll_and_drop(limiter.reset(&rule, 1), polls).await;
            }
            proxy.set(Mode::Pass);
            recovers(&limiter).await;
            ends(limiter.acquire_within(&rule, 1, HOUR)).await.unwrap();
            drop(limiter);
            eventually("no task is left", async || Handle::current().metrics().num_alive_tasks() == 0).await;
        }
    }
}

mod deadlines {
    use super::*;

    #[tokio::test]
    async fn of_any_length_are_no_reason_to_panic() {
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

    /// What is refunded is refunded in time, or not at all.
    #[tokio::test]
    async fn end_whatever_is_asked() {
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
}

mod credentials {
    use super::*;

    const RULE: Rule = Rule::new("rotated", 1_000_000, Duration::from_secs(3600));

    fn drop_connections(server: &RedisServer) {
        server.command(&[b"CLIENT", b"KILL", b"TYPE", b"normal"]);
    }

    /// The password changes while a limiter runs, so that its next connection is refused: calls follow the policy, the log has one ERROR, and
    /// with the old password the limiter is back by itself.
    async fn follow_the_policy(
        server: &RedisServer,
        url: &str,
        rotate: impl Fn(&RedisServer),
        put_back: impl Fn(&RedisServer),
    ) {
        let log = Log::default();
        let _guard = tracing::subscriber::set_default(log.clone());
        for policy in POLICIES {
            let before = log.with("no longer accepts").len();
            let limiter = limiter(url, policy).await;
            tracing::callsite::rebuild_interest_cache();
            limiter.acquire(&RULE, "pear").await.unwrap();
            rotate(server);
            drop_connections(server);
            eventually("it is known", async || matches!(limiter.health(), Health::Degraded { .. })).await;
            for _ in 0..20 {
                match limiter.acquire(&RULE, "pear").await {
                    Ok(_) => assert!(!matches!(policy, OnStoreError::Deny)),
                    Err(refused) => {
                        assert_eq!(refused.cause(), Cause::Unavailable, "{policy:?}: {refused}");
                        assert!(matches!(policy, OnStoreError::Deny), "{policy:?}: {refused}");
                    }
                }
            }
            let Health::Degraded { reason, .. } = limiter.health() else { panic!("available") };
            assert!(reason.contains("password"), "{reason}");
            let said = log.with("no longer accepts");
            assert_eq!(said.len() - before, 1, "{said:?}");
            assert_eq!(said.last().unwrap().0, Level::ERROR);
            put_back(server);
            drop_connections(server);
            eventually("it is over", async || {
                let _ = limiter.acquire(&RULE, "pear").await;
                limiter.health() == Health::Available
            })
            .await;
        }
        assert_eq!((log.with("swordfish").len(), log.with("pear").len()), (0, 0));
    }

    #[tokio::test]
    async fn of_the_server_that_change_are_an_outage() {
        let server = RedisServer::builder().password("swordfish").start();
        let url = server.url();
        // The harness' own connections are of the default user too, so they need the password that holds.
        let ask = |password: &str, words: [&str; 4]| {
            let client = redis::Client::open(url.replace("swordfish", password)).unwrap();
            redis::Cmd::new().arg(&words[..]).exec(&mut client.get_connection().unwrap()).unwrap();
        };
        for policy in POLICIES {
            let limiter = limiter(&url, policy).await;
            limiter.acquire(&RULE, "pear").await.unwrap();
            ask("swordfish", ["CONFIG", "SET", "requirepass", "another"]);
            ask("another", ["CLIENT", "KILL", "TYPE", "normal"]);
            eventually("it is known", async || matches!(limiter.health(), Health::Degraded { .. })).await;
            match limiter.acquire(&RULE, "pear").await {
                Ok(_) => assert!(!matches!(policy, OnStoreError::Deny)),
                Err(refused) => assert_eq!(refused.cause(), Cause::Unavailable, "{policy:?}: {refused}"),
            }
            ask("another", ["CONFIG", "SET", "requirepass", "swordfish"]);
            eventually("it is over", async || {
                let _ = limiter.acquire(&RULE, "pear").await;
                limiter.health() == Health::Available
            })
            .await;
        }
    }

    #[tokio::test]
    async fn of_a_user_that_change_are_an_outage() {
        let server = RedisServer::start();
        let set = |server: &RedisServer, password: &str| {
            let password = format!(">{password}");
            server.command(&[b"ACL", b"SETUSER", b"shop", b"reset", b"on", b"~*", b"+@all", password.as_bytes()]);
        };
        set(&server, "swordfish");
        for query in ["", "?protocol=resp3"] {
            let url = format!("redis://shop:swordfish@127.0.0.1:{}/{query}", server.port());
            follow_the_policy(&server, &url, |server| set(server, "another"), |server| set(server, "swordfish")).await;
        }
    }

    /// A server that wants a password now, and a limiter that has none: by RESP2 only its calls are told.
    #[tokio::test]
    async fn that_are_wanted_now_are_an_outage() {
        let server = RedisServer::start();
        let url = format!("redis://127.0.0.1:{}/", server.port());
        let root = redis::Client::open({
            server.command(&[b"ACL", b"SETUSER", b"root", b"on", b">root", b"~*", b"&*", b"+@all"]);
            format!("redis://root:root@127.0.0.1:{}/", server.port())
        })
        .unwrap();
        let ask = |words: &[&str]| {
            redis::Cmd::new().arg(words).exec(&mut root.get_connection().unwrap()).unwrap();
        };
        for query in ["?protocol=resp2", "?protocol=resp3"] {
            let url = format!("{url}{query}");
            let limiter = limiter(&url, OnStoreError::Local).await;
            limiter.acquire(&RULE, "pear").await.unwrap();
            ask(&["CONFIG", "SET", "requirepass", "another"]);
            ask(&["CLIENT", "KILL", "TYPE", "normal"]);
            eventually("it is known", async || {
                let permit = limiter.acquire(&RULE, "pear").await;
                assert!(permit.is_ok(), "{permit:?}");
                matches!(limiter.health(), Health::Degraded { .. })
            })
            .await;
            ask(&["CONFIG", "SET", "requirepass", ""]);
            eventually("it is over", async || {
                limiter.acquire(&RULE, "pear").await.unwrap();
                limiter.health() == Health::Available
            })
            .await;
        }
    }

    /// A right that is taken away is no outage: it is said under every policy.
    #[tokio::test]
    async fn that_lose_a_right_are_misconfigured() {
        let server = RedisServer::start();
        server.command(&[b"ACL", b"SETUSER", b"shop", b"on", b">swordfish", b"~*", b"+@all"]);
        let url = format!("redis://shop:swordfish@127.0.0.1:{}/", server.port());
        let limiter = limiter(&url, OnStoreError::Allow).await;
        limiter.acquire(&RULE, "pear").await.unwrap();
        server.command(&[b"ACL", b"SETUSER", b"shop", b"-evalsha"]);
        assert_eq!(limiter.acquire(&RULE, "pear").await.unwrap_err().cause(), Cause::Misconfigured);
    }
}
