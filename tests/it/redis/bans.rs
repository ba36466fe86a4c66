//! The cost of a ban at a server, and what each process knows of it.

use std::time::Duration;

use ratelimit_harness::RedisServer;
use ratelimit_runtime::{Cause, Limiter, ManualClock, OnStoreError, Rule};

use crate::support::servers::{ask, keys, script_calls};
use crate::support::{ALGORITHMS, By, FIXED, LOG, MS, PATIENCE, SECOND, Timed, fresh_key};

const MINUTE: Duration = Duration::from_secs(60);
const LOGINS: Rule = Rule::new("login", 5, MINUTE);
const BAN: Duration = Duration::from_secs(600);

/// The attempts that reached the handler, the scripts that ran, and the writes of these scripts.
type Cost = (u64, u64, u64);

#[tokio::test]
async fn an_ended_ban_leaves_no_key() {
    let timed = Timed::redis().await;
    for algorithm in ALGORITHMS {
        let (rule, key) = (LOGINS.by(algorithm), fresh_key());
        timed.limiter.ban(&rule, key, BAN).await.unwrap();
        timed.limiter.unban(&rule, key).await.unwrap();
        assert_eq!(keys(timed.server().unwrap()), Vec::<Vec<u8>>::new(), "{}", timed.of(&rule));
    }
}

/// 10,000 attempts of one address in an hour, one every 360 ms, with a user beside it who logs in
/// every minute.
async fn attack(rule: &Rule) -> Cost {
    let timed = Timed::redis().await;
    let (limiter, server) = (&timed.limiter, timed.server().unwrap());
    let (attacker, user) = (fresh_key(), fresh_key());
    let (mut reached, mut of_user) = (0, (0, 0));
    for attempt in 0..10_000 {
        reached += u64::from(limiter.acquire(rule, attacker).await.is_ok());
        if attempt % 167 == 0 {
            let before = (script_calls(server), writes(server));
            limiter.acquire(rule, user).await.expect("the user is never refused");
            of_user = (of_user.0 + script_calls(server) - before.0, of_user.1 + writes(server) - before.1);
        }
        timed.advance(360 * MS);
    }
    (reached, script_calls(server) - of_user.0, writes(server) - of_user.1)
}

/// The commands of scripts that write.
fn writes(server: &RedisServer) -> u64 {
    let stats: String = ask(server, "INFO commandstats");
    let of = |command: &str| {
        let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_")?.strip_prefix(command));
        let calls = line.and_then(|line| line.strip_prefix(":calls=")?.split(',').next()?.parse::<u64>().ok());
        calls.unwrap_or(0)
    };
    ["set", "incrby", "del", "lpush", "rpush", "lset", "ltrim", "pexpire"].map(of).iter().sum()
}

#[tokio::test]
async fn an_attack_on_a_rule_with_a_ban_reaches_the_handler_less_and_writes_less() {
    for algorithm in [FIXED, LOG] {
        let rule = LOGINS.by(algorithm);
        let (reached, scripts, written) = attack(&rule).await;
        assert_eq!(reached, 60 * 5, "{algorithm:?}: the limit of each minute");
        assert!(scripts <= 400 && written >= reached, "{algorithm:?}: {scripts} scripts with {written} writes");
        let (reached, scripts, written) = attack(&rule.with_ban(BAN)).await;
        assert_eq!(reached, 6 * 5, "{algorithm:?}: the limit of each ban");
        // One a second, as a ban is cached for no longer.
        assert!(scripts <= 3_600 && written <= 50, "{algorithm:?}: {scripts} scripts with {written} writes");
        assert!(written == reached + 6 || algorithm != FIXED, "a write for each call and each ban, not {written}");
    }
}

/// A process that has cached a ban asks again after a second, and finds that another one has ended it.
#[tokio::test]
async fn a_ban_that_another_process_ended_is_cached_for_a_second_at_most() {
    let timed = Timed::redis().await;
    let (server, clock) = (timed.server().unwrap(), timed.clock());
    let other = Limiter::builder(&server.url()).clock(clock).deadline(PATIENCE).on_store_error(OnStoreError::Deny);
    let other = other.build().await.unwrap();
    for algorithm in [FIXED, LOG] {
        for rule in [LOGINS.by(algorithm), LOGINS.by(algorithm).with_ban(BAN)] {
            let key = fresh_key();
            other.ban(&rule, key, BAN).await.unwrap();
            let refused = timed.limiter.acquire(&rule, key).await.unwrap_err();
            assert_eq!((refused.cause(), refused.retry_after()), (Cause::Banned, Some(BAN)));
            let before = script_calls(server);
            timed.advance(SECOND - MS);
            other.unban(&rule, key).await.unwrap();
            let asked = script_calls(server) - before;
            let refused = timed.limiter.acquire(&rule, key).await.unwrap_err();
            assert_eq!((refused.cause(), refused.retry_after()), (Cause::Banned, Some(BAN - SECOND + MS)));
            assert_eq!(script_calls(server) - before, asked, "the cached ban answers");
            timed.advance(MS);
            timed.limiter.acquire(&rule, key).await.unwrap();
            timed.limiter.ban(&rule, key, BAN).await.unwrap();
            assert_eq!(timed.limiter.acquire(&rule, key).await.unwrap_err().cause(), Cause::Banned);
            timed.limiter.unban(&rule, key).await.unwrap();
            timed.limiter.acquire(&rule, key).await.unwrap();
        }
    }
}

/// While the server is away, its bans are unknown, and this process bans by itself.
#[tokio::test]
async fn the_local_fallback_has_bans_of_its_own() {
    let limiter = Limiter::builder("redis://127.0.0.1:1").clock(ManualClock::new()).lazy().build().await.unwrap();
    let rule = LOGINS.with_ban(BAN);
    assert_eq!(limiter.ban(&rule, 1, BAN).await.unwrap_err().cause(), Cause::Unavailable);
    for _ in 0..5 {
        limiter.acquire(&rule, 1).await.unwrap();
    }
    for _ in 0..2 {
        let refused = limiter.acquire(&rule, 1).await.unwrap_err();
        assert_eq!((refused.cause(), refused.retry_after()), (Cause::Banned, Some(BAN)));
    }
}

/// This process returns its permits, and no more are granted to it.
#[tokio::test]
async fn a_ban_ends_the_prefetched_permits_of_this_process() {
    let timed = Timed::redis().await;
    let (rule, key) = (Rule::new("login", 1000, MINUTE).with_prefetch(100), fresh_key());
    timed.limiter.acquire(&rule, key).await.unwrap();
    timed.limiter.ban(&rule, key, BAN).await.unwrap();
    let refused = timed.limiter.acquire(&rule, key).await.unwrap_err();
    assert_eq!((refused.cause(), refused.retry_after()), (Cause::Banned, Some(BAN)));
}

/// A hold keeps a log's list of holds, where the ban is stored, too.
#[tokio::test]
async fn an_ended_ban_leaves_no_trace_in_a_log_with_holds() {
    let timed = Timed::redis().await;
    let (limiter, server) = (&timed.limiter, timed.server().unwrap());
    let rule = Rule::new("logins", 5, MINUTE).by(LOG);
    let ttl = || -> i64 {
        let names: Vec<String> = ask(server, "KEYS *");
        ask(server, &format!("PTTL {}", names[0]))
    };
    let hour = 60 * MINUTE;

    let held = limiter.reserve(&rule, 1, 2).await.unwrap();
    limiter.ban(&rule, 1, 10 * hour).await.unwrap();
    limiter.unban(&rule, 1).await.unwrap();
    held.settle(1).await.unwrap();
    limiter.acquire(&rule, 1).await.unwrap();
    assert!(ttl() < 5 * 60_000, "the key is kept for {} ms", ttl());

    limiter.reset(&rule, 1).await.unwrap();
    let held = limiter.reserve(&rule, 1, 2).await.unwrap();
    limiter.ban(&rule, 1, 10 * SECOND).await.unwrap();
    timed.advance(11 * SECOND);
    limiter.acquire(&rule, 1).await.unwrap();
    let clock = server.clock();
    clock.set_micros(clock.now_micros() - 10_000_000);
    limiter.acquire(&rule, 1).await.expect("the ban has ended");
    held.settle(1).await.unwrap();
}
