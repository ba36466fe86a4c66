//! Real servers: every way to reach one, and every way one can be away.

use std::fmt::Debug;
use std::future::Future;
use std::time::{Duration, Instant};

use ratelimit_harness::RedisServer;
use ratelimit_runtime::{Cause, Key, Limiter, OnStoreError, Rule};

use crate::support::{
    ALGORITHMS, BUCKET, FIXED, LOG, PATIENCE, admitted, ends, exceeded, fresh_key, hourly, limiter_on,
};

const POLICIES: [OnStoreError; 3] = [OnStoreError::Local, OnStoreError::Allow, OnStoreError::Deny];
const SECRET: &str = "swordfish";

pub(crate) fn ask<T: redis::FromRedisValue>(server: &RedisServer, command: &str) -> T {
    let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
    redis::from_redis_value(server.command(&words)).unwrap()
}

async fn with_policy(url: &str, policy: OnStoreError) -> Limiter {
    Limiter::builder(url).deadline(PATIENCE).on_store_error(policy).instances(1).build().await.unwrap()
}

/// All algorithms decide, on a key of their own.
pub(crate) async fn works(limiter: &Limiter) {
    for algorithm in ALGORITHMS {
        let rule = hourly(3, algorithm);
        let keys = [fresh_key(), fresh_key(), fresh_key()];
        assert_eq!(admitted(limiter, &rule, keys[0], 5).await, 3, "{algorithm:?}");
        let charges = [(&rule, Key::new(keys[1]), 2), (&rule, Key::new(keys[2]), 1)];
        let back = limiter.acquire_all(&charges).await.unwrap().refund().await.unwrap();
        // A bucket has begun to refill both by then, by parts of a token.
        assert!(back == 3 || algorithm == BUCKET && back >= 1, "{back} of 3, {algorithm:?}");
        for key in keys {
            limiter.reset(&rule, key).await.unwrap();
        }
    }
}

/// Until it does, or a long time has passed.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let started = Instant::now();
    while !holds().await {
        assert!(started.elapsed() < Duration::from_secs(20), "not within 20 seconds: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The store decides again.
pub(crate) async fn recovers(limiter: &Limiter) {
    let rule = hourly(3, LOG);
    eventually("the store answers", || async { limiter.peek(&rule, "recovers").await.is_ok() }).await;
    works(limiter).await;
}

/// Neither of them shows the secret.
pub(crate) fn keeps_the_secret(shown: &(impl Debug + ?Sized)) {
    let shown = format!("{shown:?} {shown:#?}");
    assert!(!shown.contains(SECRET), "{shown}");
}

mod reached {
    use super::*;

    #[tokio::test]
    async fn over_tcp() {
        let server = RedisServer::start();
        let limiter = limiter_on(&server).await;
        works(&limiter).await;
        limiter.acquire(&hourly(3, FIXED), 1).await.unwrap();
        assert_eq!(ask::<i64>(&server, "DBSIZE"), 1);
    }

    #[tokio::test]
    async fn over_the_older_protocol() {
        let server = RedisServer::start();
        works(&with_policy(&format!("{}?protocol=resp2", server.url()), OnStoreError::Deny).await).await;
    }

    #[tokio::test]
    async fn over_a_unix_socket() {
        let mut server = RedisServer::builder().unix_socket().start();
        let limiter = limiter_on(&server).await;
        works(&limiter).await;
        server.restart();
        recovers(&limiter).await;
    }

    #[tokio::test]
    async fn with_a_password() {
        for builder in [RedisServer::builder(), RedisServer::builder().unix_socket()] {
            let server = builder.password(SECRET).start();
            let limiter = limiter_on(&server).await;
            works(&limiter).await;
            keeps_the_secret(&limiter);
            keeps_the_secret(&Limiter::builder(&server.url()));
        }
    }

    #[tokio::test]
    async fn by_a_user_with_the_rights_it_needs() {
        let server = RedisServer::start();
        ask::<()>(&server, "ACL SETUSER limiter on >swordfish ~* +@all -@dangerous");
        let url = format!("redis://limiter:{SECRET}@127.0.0.1:{}/", server.port());
        let limiter = with_policy(&url, OnStoreError::Deny).await;
        works(&limiter).await;
        keeps_the_secret(&limiter);
    }

    #[tokio::test]
    async fn in_the_database_of_its_url() {
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
    async fn apart_from_other_systems_by_a_namespace() {
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
}

#[cfg(not(feature = "rustls"))]
#[tokio::test]
async fn tls_without_its_feature_is_told() {
    let error = Limiter::connect("rediss://localhost:6379").await.unwrap_err().to_string();
    assert!(error.contains("feature `rustls`"), "{error}");
}

#[cfg(feature = "rustls")]
mod tls {
    use std::fs::read;

    use super::*;
    use ratelimit_harness::TlsFiles;

    fn builder(server: &RedisServer, ca: &TlsFiles) -> ratelimit_runtime::Builder {
        let builder = Limiter::builder(&server.url()).deadline(PATIENCE).on_store_error(OnStoreError::Deny);
        builder.ca_certificate(read(&ca.ca_pem).unwrap())
    }

    #[tokio::test]
    async fn trusts_the_authority_it_is_given() {
        let mut server = RedisServer::builder().tls().password(SECRET).start();
        let limiter = builder(&server, server.tls().unwrap()).build().await.unwrap();
        works(&limiter).await;
        keeps_the_secret(&limiter);
        server.restart();
        recovers(&limiter).await;
    }

    #[tokio::test]
    async fn trusts_no_other_authority() {
        let (server, stranger) = (RedisServer::builder().tls().start(), RedisServer::builder().tls().start());
        let url = server.url();
        let errors = [
            builder(&server, stranger.tls().unwrap()).build().await.unwrap_err(),
            Limiter::connect(&url).await.unwrap_err(),
        ];
        for error in errors.map(|error| error.to_string()) {
            assert!(error.contains("certificate") && error.contains(&server.port().to_string()), "{error}");
        }
    }

    #[tokio::test]
    async fn shows_a_certificate_of_its_own() {
        let server = RedisServer::builder().tls().arg("--tls-auth-clients", "yes").start();
        let (files, stranger) = (server.tls().unwrap(), RedisServer::builder().tls().start());
        let with = |files: &TlsFiles| (read(&files.client_cert_pem).unwrap(), read(&files.client_key_pem).unwrap());
        let (cert, key) = with(files);
        works(&builder(&server, files).client_certificate(cert, key).build().await.unwrap()).await;
        assert!(builder(&server, files).build().await.is_err());
        let (cert, key) = with(stranger.tls().unwrap());
        assert!(builder(&server, files).client_certificate(cert, key).build().await.is_err());
    }

    #[tokio::test]
    async fn a_certificate_that_is_none_is_told() {
        let server = RedisServer::builder().tls().start();
        let builder = Limiter::builder(&server.url()).ca_certificate(b"no certificate".to_vec());
        assert!(builder.build().await.is_err());
    }
}

mod away {
    use super::*;

    /// A URL where nobody listens.
    fn nowhere() -> (String, u16) {
        let mut server = RedisServer::start();
        server.kill();
        (server.url(), server.port())
    }

    #[tokio::test]
    async fn at_the_start_is_an_error_that_names_the_address() {
        let (url, port) = nowhere();
        let error = Limiter::connect(&url).await.unwrap_err().to_string();
        assert!(error.contains(&format!("127.0.0.1:{port}")), "{error}");

        let error = Limiter::connect("redis+unix:///nowhere/redis.sock").await.unwrap_err().to_string();
        assert!(error.contains("/nowhere/redis.sock"), "{error}");
    }

    #[tokio::test]
    async fn at_the_start_of_a_lazy_limiter_is_like_later() {
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
    async fn a_killed_server_is_found_again() {
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

    /// No call comes between: the limiter learns of it from the first one, or before.
    #[tokio::test]
    async fn a_restart_nobody_saw_is_survived() {
        let mut server = RedisServer::start();
        let limiter = limiter_on(&server).await;
        works(&limiter).await;
        server.restart();
        recovers(&limiter).await;
    }

    #[tokio::test]
    async fn killed_connections_are_opened_again() {
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
    async fn killed_connections_under_load_admit_no_more() {
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

    /// A halted server takes connections and says nothing: each call ends at the deadline, as the policy says.
    #[tokio::test]
    async fn a_silent_server_is_met_by_the_deadline() {
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

    /// Each process counts its share alone, rule by rule, key by key, all or nothing.
    #[tokio::test]
    async fn local_admits_this_process_its_share() {
        let mut server = RedisServer::start();
        for algorithm in ALGORITHMS {
            let builder = Limiter::builder(&server.url()).deadline(PATIENCE).instances(4);
            let limiter = builder.lazy().build().await.unwrap();
            server.kill();
            let (ten, three, other) =
                (hourly(10, algorithm), hourly(3, algorithm), Rule::new("other", 40, Duration::from_secs(3600)));
            assert_eq!(admitted(&limiter, &ten, 1, 9).await, 2, "{algorithm:?}");
            assert_eq!(admitted(&limiter, &ten, 2, 9).await, 2, "{algorithm:?}");
            let refused = limiter.acquire(&three, 3).await.unwrap_err();
            assert_eq!((refused.cause(), refused.retry_after()), (Cause::Unavailable, None), "{refused}");
            assert_eq!(limiter.acquire_n(&ten, 4, 3).await.unwrap_err().cause(), Cause::Unavailable);

            let both = [(&ten, Key::new(5), 1), (&other, Key::new(5), 4)];
            limiter.acquire_all(&both).await.unwrap();
            let permit = limiter.acquire_all(&both).await.unwrap();
            exceeded(limiter.acquire_all(&both).await);
            assert_eq!(permit.refund().await.unwrap(), 5);
            limiter.acquire_all(&both).await.unwrap();
            exceeded(limiter.acquire_all(&both).await);
            assert_eq!(admitted(&limiter, &other, 5, 9).await, 2, "{algorithm:?}");
            server.restart();
        }
    }

    /// The name in the URL may lead to another server by now, so the connection is opened anew.
    #[tokio::test]
    async fn a_primary_that_became_a_replica_is_connected_to_anew() {
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

    /// Full: an error of the server's that has to do with nobody's mistake.
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
}

mod misconfigured {
    use super::*;

    /// Under every policy, by every way of asking.
    async fn is_loud(url: &str, rule: &Rule, key: u64) {
        for policy in POLICIES {
            let limiter = with_policy(url, policy).await;
            let charges =
                [(rule, Key::new(key), 1), (&Rule::new("other", 1, Duration::from_secs(1)), Key::new(key), 1)];
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
    async fn a_key_of_another_type() {
        let server = RedisServer::start();
        for algorithm in ALGORITHMS {
            for foreign in [
                "SADD NAME pear",
                "HSET NAME fruit pear",
                "SET NAME pear",
                "RPUSH NAME pear",
                "RPUSH NAME pear plum fig",
            ] {
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
    async fn a_user_without_the_rights() {
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

    #[tokio::test]
    async fn a_wrong_password() {
        for builder in [RedisServer::builder(), RedisServer::builder().unix_socket()] {
            let server = builder.password("another").start();
            let wrong = server.url().replace("another", SECRET);
            let error = Limiter::connect(&wrong).await.unwrap_err();
            keeps_the_secret(&error);
            keeps_the_secret(error.to_string().as_str());
            assert!(error.to_string().contains("password"), "{error}");

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

    /// Whatever is wrong with a URL, its password is not repeated.
    #[tokio::test]
    async fn a_url_with_a_password() {
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
    async fn settings_that_cannot_be() {
        let error = Limiter::builder("memory://").instances(0).build().await.unwrap_err().to_string();
        assert!(error.contains("instances"), "{error}");
        for url in ["", "localhost:6379", "memory", "memory://x", "http://localhost", "redis+cluster://a,b", "redis://"]
        {
            assert!(Limiter::connect(url).await.is_err(), "{url:?}");
        }
        // Found before anything is asked.
        for (url, says) in [
            ("redis://a,b", "redis+cluster://host,host"),
            ("redis://user:word@a:1,b:2/0", "redis+sentinel://host,host/service"),
            ("redis://127.0.0.1:1/-1", "database -1"),
            ("redis+unix:///nowhere/redis.sock?db=-1", "database -1"),
            ("redis+sentinel://127.0.0.1:1/shop/-1", "database -1"),
        ] {
            let error = Limiter::builder(url).lazy().build().await.expect_err(url).to_string();
            assert!(error.contains(says), "{url}: {error}");
        }
    }
}
