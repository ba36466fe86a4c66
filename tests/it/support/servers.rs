//! Questions to a server, and checks of a limiter that uses one.

use std::collections::BTreeMap;
use std::fmt::Debug;

use ratelimit_harness::RedisServer;
use ratelimit_runtime::{Key, Limiter, OnStoreError};
use redis::FromRedisValue;

use super::eventually;
use crate::support::{ALGORITHMS, BUCKET, LOG, PATIENCE, admitted, fresh_key, hourly};

pub(crate) const SECRET: &str = "swordfish";

pub(crate) fn ask<T: FromRedisValue>(server: &RedisServer, command: &str) -> T {
    let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
    reply(server, &words)
}

pub(crate) async fn with_policy(url: &str, policy: OnStoreError) -> Limiter {
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

/// Number of script calls by digest. A call of an unknown script counts, too; the script is sent after it.
pub(crate) fn script_calls(server: &RedisServer) -> u64 {
    let stats: String = ask(server, "INFO commandstats");
    let calls = |line: &str| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok();
    stats.lines().filter(|line| line.starts_with("cmdstat_evalsha:")).map(|line| calls(line).unwrap()).sum()
}

/// The reply to a command of these words.
pub(crate) fn reply<T: FromRedisValue>(server: &RedisServer, words: &[&[u8]]) -> T {
    redis::from_redis_value(server.command(words)).unwrap()
}

/// All keys of the server.
pub(crate) fn keys(server: &RedisServer) -> Vec<Vec<u8>> {
    reply(server, &[b"KEYS", b"*"])
}

/// Every key with its end and its content.
pub(crate) fn dump(server: &RedisServer) -> BTreeMap<Vec<u8>, (i64, Option<Vec<u8>>)> {
    let all = keys(server).into_iter();
    all.map(|key| {
        let end = reply(server, &[b"PEXPIRETIME", &key]);
        let content = reply(server, &[b"DUMP", &key]);
        (key, (end, content))
    })
    .collect()
}
