//! Credentials that change while a limiter runs.

use std::time::Duration;

use ratelimit_harness::RedisServer;
use ratelimit_runtime::{Cause, Health, OnStoreError, Rule};
use tracing::Level;

use super::{POLICIES, limiter};
use crate::support::eventually;
use crate::support::log::Log;

const RULE: Rule = Rule::new("rotated", 1_000_000, Duration::from_secs(3600));

fn drop_connections(server: &RedisServer) {
    server.command(&[b"CLIENT", b"KILL", b"TYPE", b"normal"]);
}

/// The password changes while a limiter runs, so that its next connection is refused. Calls follow
/// the policy, and the log has one ERROR. With the old password the limiter recovers by itself.
async fn follow_the_policy(
    server: &RedisServer,
    url: &str,
    rotate: impl Fn(&RedisServer),
    put_back: impl Fn(&RedisServer),
) {
    let (log, _guard) = Log::install();
    for policy in POLICIES {
        let before = log.with("no longer accepts").len();
        let limiter = limiter(url, policy).await;
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
async fn a_changed_password_of_the_server_is_an_outage() {
    let server = RedisServer::builder().password("swordfish").start();
    let url = server.url();
    // The connections of the harness are of the default user, too, and need the valid password.
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
async fn a_changed_password_of_the_user_is_an_outage() {
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

/// The server requires a password now, and the limiter has none. With RESP2 only the replies to
/// calls show it.
#[tokio::test]
async fn a_server_that_begins_to_require_a_password_is_an_outage() {
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

/// A missing right is not an outage: it is an error under each policy.
#[tokio::test]
async fn a_user_that_loses_a_right_is_misconfigured() {
    let server = RedisServer::start();
    server.command(&[b"ACL", b"SETUSER", b"shop", b"on", b">swordfish", b"~*", b"+@all"]);
    let url = format!("redis://shop:swordfish@127.0.0.1:{}/", server.port());
    let limiter = limiter(&url, OnStoreError::Allow).await;
    limiter.acquire(&RULE, "pear").await.unwrap();
    server.command(&[b"ACL", b"SETUSER", b"shop", b"-evalsha"]);
    assert_eq!(limiter.acquire(&RULE, "pear").await.unwrap_err().cause(), Cause::Misconfigured);
}
