//! Two processes that settle charges of one key, on a real server.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::future::join_all;
use ratelimit_harness::RedisServer;
use ratelimit_runtime::{Algorithm, Cause, Key, Limiter, Refill, Reservation, Rule};

use crate::support::{MS, SECOND, fresh_key, limiter_on};

const MOST: u64 = 4_000;
const USED: u64 = 300;
const STEP: Duration = MS.saturating_mul(100);
/// Steps that a call takes.
const CALL: u64 = 10;
/// Calls of a process at once.
const AT_ONCE: usize = 30;

/// A process with its calls, each with the step when it ends.
struct Process {
    limiter: Limiter,
    calls: VecDeque<(u64, Reservation)>,
}

/// Two processes make as many calls as they may. Returns the use of the calls in each minute.
async fn use_all(rule: &Rule, minutes: u64) -> Vec<u64> {
    let (server, key) = (RedisServer::builder().controlled_clock().start(), fresh_key());
    let limiters = [limiter_on(&server).await, limiter_on(&server).await];
    let mut processes = limiters.map(|limiter| Process { limiter, calls: VecDeque::new() });
    let mut used = vec![0; usize::try_from(minutes).unwrap()];
    for step in 0..600 * minutes {
        for Process { limiter, calls } in &mut processes {
            while calls.front().is_some_and(|(end, _)| *end <= step) {
                let (_, reservation) = calls.pop_front().unwrap();
                reservation.settle(USED).await.unwrap();
            }
            while calls.len() < AT_ONCE {
                match limiter.reserve(rule, key, MOST).await {
                    Ok(reservation) => calls.push_back((step + CALL, reservation)),
                    Err(refused) => {
                        assert_eq!(refused.cause(), Cause::Exceeded, "{refused}");
                        break;
                    }
                }
                used[usize::try_from(step / 600).unwrap()] += USED;
            }
        }
        server.clock().advance(STEP);
    }
    used
}

/// The first call opens the first window, and each window is a minute.
#[tokio::test]
async fn two_processes_use_nine_tenths_of_a_window() {
    let rule = Rule::new("tokens", 60_000, 60 * SECOND);
    for used in use_all(&rule, 3).await {
        assert!((54_000..=60_000).contains(&used), "{used} of 60,000");
    }
}

#[tokio::test]
async fn two_processes_use_nine_tenths_of_a_bucket() {
    // With `Interval` the last 36,000 come when all is over.
    for (refill, most) in [(Refill::Greedy, 40_000 + 4 * 36_000), (Refill::Interval, 40_000 + 3 * 36_000)] {
        let bucket = Algorithm::TokenBucket { burst: 40_000, refill };
        let rule = Rule::new("tokens", 36_000, 60 * SECOND).with_algorithm(bucket);
        let used: u64 = use_all(&rule, 4).await.iter().sum();
        assert!((most * 9 / 10..=most).contains(&used), "{used} of {most}, {refill:?}");
    }
}

/// A server, a limiter on it, and a rule with a bucket of 40,000 that refills 600 a second.
async fn bucket() -> (RedisServer, Limiter, Rule) {
    let server = RedisServer::builder().controlled_clock().start();
    let limiter = limiter_on(&server).await;
    let bucket = Algorithm::TokenBucket { burst: 40_000, refill: Refill::Greedy };
    let rule = Rule::new("tokens", 36_000, 60 * SECOND).with_algorithm(bucket);
    (server, limiter, rule)
}

/// Calls of one rule and cost share their round trips. Only some of them settle.
#[tokio::test]
async fn plain_calls_of_other_keys_do_not_change_what_a_bucket_remembers() {
    let (server, limiter, rule) = bucket().await;
    limiter.reserve(&rule, fresh_key(), MOST).await.unwrap().settle(USED).await.unwrap();
    for _ in 0..20 {
        let keys = [(); 8].map(|()| fresh_key());
        let plain = join_all(keys[4..].iter().map(|key| limiter.acquire_n(&rule, *key, MOST)));
        let settled = join_all(keys[..4].iter().map(|key| limiter.reserve(&rule, *key, MOST)));
        let more = join_all(keys[4..].iter().map(|key| limiter.acquire_n(&rule, *key, MOST)));
        let (_, settled, _) = tokio::join!(plain, settled, more);
        server.clock().advance(SECOND);
        for (key, reservation) in keys.iter().zip(settled) {
            // 600 have refilled, which is more than was used.
            reservation.unwrap().settle(USED).await.unwrap();
            assert_eq!(limiter.peek(&rule, *key).await.unwrap().remaining(), 40_000);
        }
    }
}

/// Of many charges whose calls run, the bucket keeps eight pairs of 16 bytes behind its 28 bytes.
#[tokio::test]
async fn a_bucket_remembers_eight_charges_at_most() {
    let (server, limiter, rule) = bucket().await;
    let key = fresh_key();
    let mut running = Vec::new();
    let length = || {
        let names: Vec<Vec<u8>> = redis::from_redis_value(server.command(&[b"KEYS", b"tokens:*"])).unwrap();
        let length: u64 = redis::from_redis_value(server.command(&[b"STRLEN", &names[0]])).unwrap();
        (names.len(), length)
    };
    for _ in 0..3 {
        running.push(limiter.reserve(&rule, key, 1_000).await.unwrap());
        assert_eq!(length(), (1, 28 + 16), "charges of one instant are one pair");
    }
    for _ in 0..30 {
        running.push(limiter.reserve(&rule, key, 1_000).await.unwrap());
        server.clock().advance(MS);
    }
    assert_eq!(length(), (1, 28 + 8 * 16));
}

/// Of nine charges it forgets the one that its neighbour stands for best, and not the last.
#[tokio::test]
async fn a_bucket_remembers_the_last_of_nine_charges() {
    let (server, limiter, rule) = bucket().await;
    // At no time is the bucket full, so the last charge is refunded as far as it is missing. At the time of
    // it, 4 of the others have refilled.
    for (last, refilling, remaining) in [(20_000, 20 * SECOND, 40_000), (12_000, 10 * SECOND, 38_004)] {
        let key = fresh_key();
        let mut running = Vec::new();
        for cost in [1_000, 1_000, 1_000, 1_000, 1_000, 1_000, 1_000, 1_000, last] {
            server.clock().advance(MS);
            running.push(limiter.reserve(&rule, key, cost).await.unwrap());
        }
        server.clock().advance(refilling);
        running.pop().unwrap().settle(0).await.unwrap();
        assert_eq!(limiter.peek(&rule, key).await.unwrap().remaining(), remaining, "{last}");
    }
}

/// The amount that the first settlement gave back can't be given back once more.
#[tokio::test]
async fn two_charges_of_one_instant_are_settled_one_after_the_other() {
    let (server, limiter, rule) = bucket().await;
    let key = fresh_key();
    let running = [20_000, 16_000].map(|cost| limiter.reserve(&rule, key, cost));
    let running = join_all(running).await;
    server.clock().advance(20 * SECOND);
    limiter.acquire_n(&rule, key, 14_000).await.unwrap();
    for reservation in running {
        reservation.unwrap().settle(0).await.unwrap();
    }
    assert_eq!(limiter.peek(&rule, key).await.unwrap().remaining(), 40_000 - 14_000);
}

/// The bucket keeps its data from before the second charge.
#[tokio::test]
async fn the_later_of_two_charges_may_be_settled_first() {
    let (server, limiter, rule) = bucket().await;
    let key = fresh_key();
    let first = limiter.reserve(&rule, key, 20_000).await.unwrap();
    server.clock().advance(10 * SECOND);
    let second = limiter.reserve(&rule, key, 10_000).await.unwrap();
    server.clock().advance(2 * SECOND);
    limiter.acquire_n(&rule, key, 10_000).await.unwrap();
    server.clock().advance(3 * SECOND);
    second.settle(0).await.unwrap();
    first.settle(0).await.unwrap();
    // Of the charge between, 3 seconds have refilled.
    assert_eq!(limiter.peek(&rule, key).await.unwrap().remaining(), 40_000 - 10_000 + 3 * 600);
}

/// The counter of one of two limits cannot be read. The error names that one.
#[tokio::test]
async fn a_settlement_that_fails_names_its_rule() {
    let server = RedisServer::start();
    let limiter = limiter_on(&server).await;
    for broken in ["first", "second"] {
        let places =
            ["first", "second"].map(|prefix| Rule::new(prefix, 9, SECOND).with_algorithm(Algorithm::Concurrent));
        let [first, second] = places.each_ref().map(|rule| (rule, Key::new(broken), 1));
        let permit = limiter.acquire_all(&[first, second]).await.unwrap();
        let names: Vec<Vec<u8>> =
            redis::from_redis_value(server.command(&[b"KEYS", format!("{broken}:*").as_bytes()])).unwrap();
        server.command(&[b"DEL", &names[0]]);
        server.command(&[b"SADD", &names[0], b"member"]);
        let failed = permit.refund().await.unwrap_err();
        assert_eq!((failed.rule(), failed.cause()), (broken, Cause::Misconfigured), "{failed}");
        server.command(&[b"DEL", &names[0]]);
    }
}
