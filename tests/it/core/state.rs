//! The stored state: it always expires, refusals do not change it, and a changed rule reads it
//! anew.

use std::time::Duration;

use futures_util::future::join_all;
use ratelimit_harness::RedisServer;
use ratelimit_runtime::{Algorithm, Key, Rule};
use redis::Value;

use crate::support::servers::{dump, keys, reply};
use crate::support::{ALGORITHMS, ALIGNED, By, FIXED, LOG, Timed, admitted, exceeded, fresh_key, lifetime};

const SECOND: Duration = Duration::from_secs(1);
const PERIOD: Duration = Duration::from_secs(10);

fn rule(count: u64, algorithm: Algorithm) -> Rule {
    Rule::new("state", count, PERIOD).by(algorithm)
}

/// Longest time that a key may be kept: a log is kept a sixteenth of its period longer than it
/// counts.
fn kept(rule: &Rule) -> Duration {
    if rule.algorithm() == LOG { lifetime(rule) + rule.period() / 16 } else { lifetime(rule) }
}

/// Panics if a key has no end, or one beyond what can count.
fn all_end(server: &RedisServer, longest: Duration, when: &str) {
    for key in keys(server) {
        let left: i64 = reply(server, &[b"PTTL", &key]);
        let longest = i64::try_from(longest.as_millis()).unwrap() + 1;
        assert!((0..=longest).contains(&left), "{when}: {} ends in {left} ms", String::from_utf8_lossy(&key));
    }
}

#[tokio::test]
async fn every_stored_key_expires_after_every_call() {
    let timed = Timed::redis().await;
    let (limiter, server) = (&timed.limiter, timed.server().unwrap());
    for algorithm in ALGORITHMS {
        reply::<Value>(server, &[b"FLUSHALL"]); // others end at other times
        let (rule, other) = (rule(4, algorithm), Rule::new("other", 9, PERIOD).by(algorithm));
        let key = fresh_key();
        let when = |what: &str| all_end(server, kept(&rule), &format!("{what}, {algorithm:?}"));
        limiter.peek(&rule, key).await.unwrap();
        when("peek of nothing");
        let first = limiter.acquire(&rule, key).await.unwrap();
        when("admitted first");
        timed.advance(SECOND);
        let second = limiter.acquire_n(&rule, key, 3).await.unwrap();
        when("admitted");
        exceeded(limiter.acquire(&rule, key).await);
        when("refused");
        limiter.peek(&rule, key).await.unwrap();
        when("peek");
        assert_eq!(second.refund().await.unwrap(), 3);
        when("refunded");
        limiter.acquire_all(&[(&rule, Key::new(key), 1), (&other, Key::new(key), 5)]).await.unwrap();
        when("stacked, admitted");
        exceeded(limiter.acquire_all(&[(&rule, Key::new(key), 4), (&other, Key::new(key), 1)]).await);
        when("stacked, refused");
        first.refund().await.unwrap();
        when("refunded later");
        timed.advance(lifetime(&rule));
        limiter.acquire(&rule, key).await.unwrap();
        when("when nothing counts any more");
    }
    assert!(!keys(server).is_empty());
}

/// Keys that were made permanent. The next call, admitted or refused, sets the expiry, and old
/// charges still count.
async fn a_permanent_key_gets_an_end(algorithm: Algorithm, charged: u64) {
    let timed = Timed::redis().await;
    let (limiter, server) = (&timed.limiter, timed.server().unwrap());
    let (rule, key) = (rule(4, algorithm), fresh_key());
    limiter.acquire_n(&rule, key, charged).await.unwrap();
    timed.advance(SECOND);
    assert_eq!(reply::<i64>(server, &[b"PERSIST", &keys(server)[0]]), 1);

    assert_eq!(admitted(limiter, &rule, key, 1).await, u64::from(charged < 4));
    all_end(server, kept(&rule), &format!("{algorithm:?}, {charged} charged"));
    timed.advance(lifetime(&rule) + Duration::from_millis(1));
    assert_eq!(limiter.peek(&rule, key).await.unwrap().remaining(), 4);
    assert_eq!(admitted(limiter, &rule, key, 9).await, 4);
}

#[tokio::test]
async fn an_admitted_call_makes_a_permanent_key_expire() {
    for algorithm in ALGORITHMS {
        a_permanent_key_gets_an_end(algorithm, 3).await;
    }
}

#[tokio::test]
async fn a_refused_call_makes_a_permanent_key_expire() {
    for algorithm in ALGORITHMS {
        a_permanent_key_gets_an_end(algorithm, 4).await;
    }
}

/// A script that decides on several counters reads their values before their expiries.
#[tokio::test]
async fn a_look_among_others_makes_a_permanent_key_expire() {
    for algorithm in [FIXED, ALIGNED] {
        let timed = Timed::redis().await;
        let (limiter, server) = (&timed.limiter, timed.server().unwrap());
        let (rule, key) = (Rule::new("long", 4, Duration::from_secs(3600)).by(algorithm), fresh_key());
        limiter.acquire_n(&rule, key, 3).await.unwrap();
        timed.advance(SECOND);
        assert_eq!(reply::<i64>(server, &[b"PERSIST", &keys(server)[0]]), 1);
        let looks = join_all([fresh_key(), fresh_key(), key, fresh_key()].map(|key| limiter.peek(&rule, key))).await;
        assert_eq!(looks[2].as_ref().unwrap().remaining(), 1, "{algorithm:?}");
        all_end(server, kept(&rule), &format!("{algorithm:?}"));
    }
}

#[tokio::test]
async fn a_call_that_is_granted_nothing_writes_nothing() {
    let timed = Timed::redis().await;
    let (limiter, server) = (&timed.limiter, timed.server().unwrap());
    for algorithm in ALGORITHMS {
        let (rule, other) = (rule(5, algorithm), Rule::new("other", 9, PERIOD).by(algorithm));
        let (key, unused) = (fresh_key(), fresh_key());
        limiter.peek(&rule, key).await.unwrap();
        limiter.acquire_n(&rule, key, 0).await.unwrap();
        limiter.acquire_n(&rule, key, 6).await.unwrap_err();
        limiter.reset(&rule, unused).await.unwrap();
        assert!(!dump(server).keys().any(|name| String::from_utf8_lossy(name).contains(&format!("{{{key}}}"))));

        limiter.acquire_n(&rule, key, 2).await.unwrap();
        timed.advance(SECOND);
        limiter.acquire_n(&rule, key, 2).await.unwrap();
        // At once, later, and when the first charge of a log has expired but is stored still.
        for wait in [Duration::ZERO, SECOND, 8 * SECOND] {
            timed.advance(wait);
            let before = dump(server);
            let remaining = limiter.peek(&rule, key).await.unwrap().remaining();
            if remaining < 5 {
                exceeded(limiter.acquire_n(&rule, key, remaining + 1).await);
                exceeded(limiter.acquire_n(&rule, key, 5).await);
                let (fits, fails) = ((&other, Key::new(unused), 1), (&rule, Key::new(key), remaining + 1));
                exceeded(limiter.acquire_all(&[fits.clone(), fails.clone()]).await);
                exceeded(limiter.acquire_all(&[fails, fits]).await);
            }
            limiter.acquire_n(&rule, key, 6).await.unwrap_err();
            limiter.acquire_n(&rule, key, 0).await.unwrap();
            limiter.acquire_all(&[(&rule, Key::new(key), 0), (&other, Key::new(unused), 0)]).await.unwrap();
            limiter.peek(&rule, key).await.unwrap();
            assert_eq!(dump(server), before, "{algorithm:?}, {wait:?}");
        }
    }
}

#[tokio::test]
async fn a_refusal_consumes_nothing() {
    for timed in Timed::both().await {
        for algorithm in ALGORITHMS {
            let (rule, key) = (rule(5, algorithm), fresh_key());
            timed.limiter.acquire_n(&rule, key, 3).await.unwrap();
            timed.advance(SECOND);
            let before = timed.limiter.peek(&rule, key).await.unwrap();
            for _ in 0..20 {
                exceeded(timed.limiter.acquire_n(&rule, key, 3).await);
                timed.limiter.acquire_n(&rule, key, 6).await.unwrap_err();
                timed.limiter.acquire_n(&rule, key, 0).await.unwrap();
            }
            assert_eq!(timed.limiter.peek(&rule, key).await.unwrap(), before, "{}", timed.of(&rule));
            assert_eq!(admitted(&timed.limiter, &rule, key, 9).await, 2, "{}", timed.of(&rule));
        }
    }
}

#[tokio::test]
async fn a_changed_count_of_a_stored_counter_acts_on_the_next_call() {
    for timed in Timed::both().await {
        for algorithm in ALGORITHMS {
            let key = fresh_key();
            let limiter = &timed.limiter;
            assert_eq!(admitted(limiter, &rule(3, algorithm), key, 5).await, 3);
            assert_eq!(admitted(limiter, &rule(10, algorithm), key, 20).await, 7, "{}", timed.of(&rule(10, algorithm)));
            let lowered = limiter.peek(&rule(4, algorithm), key).await.unwrap();
            assert_eq!((lowered.limit(), lowered.remaining()), (4, 0), "{}", timed.of(&rule(4, algorithm)));
            exceeded(limiter.acquire(&rule(4, algorithm), key).await);
            assert_eq!(admitted(limiter, &rule(11, algorithm), key, 20).await, 1);
        }
    }
}

/// A refusal does not apply to another cost or count, nor to a counter that has been refunded to or
/// reset since.
#[tokio::test]
async fn a_denial_applies_only_to_its_own_cost_count_and_counter() {
    for timed in Timed::both().await {
        for algorithm in ALGORITHMS {
            let (limiter, key, ten) = (&timed.limiter, fresh_key(), rule(10, algorithm));
            let context = timed.of(&ten);
            let seven = limiter.acquire_n(&ten, key, 7).await.unwrap();
            exceeded(limiter.acquire_n(&ten, key, 4).await);
            limiter.acquire_n(&ten, key, 3).await.unwrap_or_else(|refused| panic!("{context}: {refused}"));
            exceeded(limiter.acquire(&ten, key).await);
            limiter.acquire(&rule(11, algorithm), key).await.unwrap_or_else(|refused| panic!("{context}: {refused}"));
            exceeded(limiter.acquire_n(&ten, key, 2).await);
            assert_eq!(seven.refund().await.unwrap(), 7, "{context}");
            limiter.acquire_n(&ten, key, 2).await.unwrap_or_else(|refused| panic!("{context}: {refused}"));
            exceeded(limiter.acquire_n(&ten, key, 10).await);
            limiter.reset(&ten, key).await.unwrap();
            limiter.acquire_n(&ten, key, 10).await.unwrap_or_else(|refused| panic!("{context}: {refused}"));
        }
    }
}

#[tokio::test]
async fn a_changed_period_or_algorithm_starts_a_new_counter() {
    for timed in Timed::both().await {
        let (limiter, key) = (&timed.limiter, fresh_key());
        let periods = [PERIOD, PERIOD + Duration::from_millis(2), SECOND, 6 * PERIOD];
        let counters = ALGORITHMS.map(|algorithm| periods.map(|period| (algorithm, period)));
        for (algorithm, period) in counters.into_iter().flatten() {
            let rule = Rule::new("state", 3, period).by(algorithm);
            assert_eq!(admitted(limiter, &rule, key, 5).await, 3, "{}", timed.of(&rule));
        }
    }
}

#[tokio::test]
async fn a_reset_clears_one_counter_only() {
    for timed in Timed::both().await {
        for algorithm in ALGORITHMS {
            let (rule, key, other) = (rule(3, algorithm), fresh_key(), fresh_key());
            admitted(&timed.limiter, &rule, key, 3).await;
            admitted(&timed.limiter, &rule, other, 2).await;
            timed.limiter.reset(&rule, key).await.unwrap();
            assert_eq!(timed.limiter.peek(&rule, key).await.unwrap().remaining(), 3, "{}", timed.of(&rule));
            assert_eq!(timed.limiter.peek(&rule, other).await.unwrap().remaining(), 1, "{}", timed.of(&rule));
            assert_eq!(admitted(&timed.limiter, &rule, key, 9).await, 3, "{}", timed.of(&rule));
        }
    }
}

/// Scripts are forgotten by SCRIPT FLUSH; what they count is not.
#[tokio::test]
async fn flushed_scripts_are_sent_again() {
    let timed = Timed::redis().await;
    let (limiter, server) = (&timed.limiter, timed.server().unwrap());
    for algorithm in ALGORITHMS {
        let (rule, other) = (rule(10, algorithm), Rule::new("other", 9, PERIOD).by(algorithm));
        let key = fresh_key();
        for remaining in [9, 8, 7] {
            reply::<Value>(server, &[b"SCRIPT", b"FLUSH"]);
            assert_eq!(limiter.acquire(&rule, key).await.unwrap().remaining(), remaining);
        }
        for remaining in [6, 5] {
            reply::<Value>(server, &[b"SCRIPT", b"FLUSH"]);
            let charges = [(&rule, Key::new(key), 1), (&other, Key::new(key), 1)];
            assert_eq!(limiter.acquire_all(&charges).await.unwrap().remaining(), remaining);
        }
        timed.advance(Duration::from_millis(1));
        let permit = limiter.acquire_n(&rule, key, 2).await.unwrap();
        reply::<Value>(server, &[b"SCRIPT", b"FLUSH"]);
        assert_eq!(permit.refund().await.unwrap(), 2);
        reply::<Value>(server, &[b"SCRIPT", b"FLUSH"]);
        assert_eq!(limiter.peek(&rule, key).await.unwrap().remaining(), 5);
    }
}

/// Many callers at once: each call is counted once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_flushed_under_load_count_each_call_once() {
    let timed = Timed::redis().await;
    let server = timed.server().unwrap();
    for algorithm in ALGORITHMS {
        let (rule, key) = (rule(1000, algorithm), fresh_key());
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..8 {
            let limiter = timed.limiter.clone();
            tasks.spawn(async move {
                for _ in 0..50 {
                    limiter.acquire_n(&rule, key, 1 + task % 2).await.unwrap();
                }
            });
        }
        for _ in 0..20 {
            reply::<Value>(server, &[b"SCRIPT", b"FLUSH"]);
            tokio::task::yield_now().await;
        }
        tasks.join_all().await;
        assert_eq!(timed.limiter.peek(&rule, key).await.unwrap().remaining(), 1000 - 600, "{algorithm:?}");
    }
}
