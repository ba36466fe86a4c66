//! The number of commands that a call with holds runs on a server.

use ratelimit_harness::RedisServer;
use ratelimit_runtime::conformance::{counter_of, store_of};
use ratelimit_runtime::store::Request;
use ratelimit_runtime::{Algorithm, Rule};

use crate::support::holds::{LEASE, decide_all, held_charge};
use crate::support::{LOG, MS, SECOND, Timed, fresh_key};

/// Number of commands the server has run, those of scripts among them.
fn commands(server: &RedisServer) -> u64 {
    let info: String = redis::from_redis_value(server.command(&[b"INFO", b"commandstats"])).unwrap();
    let calls = info.lines().filter_map(|line| line.split_once(":calls=")?.1.split(',').next()?.parse::<u64>().ok());
    calls.sum()
}

/// The largest number of commands of one of these calls.
async fn most_commands(timed: &Timed, requests: Vec<Request>) -> u64 {
    let mut most = 0;
    for request in requests {
        let server = timed.server().unwrap();
        server.command(&[b"CONFIG", b"RESETSTAT"]);
        decide_all(timed, [request].into_iter()).await;
        most = most.max(commands(server));
    }
    most
}

fn look(request: &Request) -> Request {
    let mut look = request.clone();
    look.consume = false;
    look
}

#[tokio::test]
async fn commands_of_a_call_do_not_grow_with_the_number_of_places() {
    const MANY: Rule = Rule::new("many", 5_000, LEASE).with_algorithm(Algorithm::Concurrent);
    let (timed, key) = (Timed::redis().await, fresh_key());
    let places = |cost| held_charge(MANY, key, cost, LEASE);
    // One of them outlives the others.
    decide_all(&timed, [held_charge(MANY, key, 1, 10 * LEASE)].into_iter()).await;
    decide_all(&timed, (1..5_000).map(|_| places(1))).await;
    timed.advance(SECOND);
    let most = most_commands(&timed, vec![places(1), places(5_000), look(&places(5_000)), look(&places(1))]).await;
    assert!(most <= 12, "{most} commands of one call");
    // All other holds are expired, and each new call removes a few of them.
    timed.advance(LEASE);
    let most = most_commands(&timed, vec![look(&places(5_000)), places(4_000), places(1_000), places(1)]).await;
    assert!(most <= 30, "{most} commands of one call");
    let name = counter_of(&MANY, key).to_string();
    let stored: u64 = redis::from_redis_value(timed.server().unwrap().command(&[b"ZCARD", name.as_bytes()])).unwrap();
    assert!((4_700..5_000).contains(&stored), "{stored} are stored");
    decide_all(&timed, (0..100).map(|_| places(1))).await;
    let stored: u64 = redis::from_redis_value(timed.server().unwrap().command(&[b"ZCARD", name.as_bytes()])).unwrap();
    assert!(stored < 200, "{stored} are stored");
}

/// Each of which has ended, and counts for a period from then on; entries that were charged lie between.
#[tokio::test]
async fn commands_of_a_call_do_not_grow_with_the_number_of_holds() {
    let rule = Rule::new("overdue", 10_000, 60 * SECOND).with_algorithm(LOG);
    let (timed, key) = (Timed::redis().await, fresh_key());
    for at in 0..2_000_u32 {
        decide_all(&timed, [held_charge(rule, key, 2, (2_100 - at) * 10 * MS)].into_iter()).await;
        timed.limiter.acquire_n(&rule, key, 3).await.unwrap();
        timed.advance(10 * MS);
    }
    timed.advance(25 * SECOND);
    let hold = |cost| held_charge(rule, key, cost, LEASE);
    let calls = vec![hold(1), hold(5_000), hold(10_000), look(&hold(7_777)), look(&hold(1))];
    let most = most_commands(&timed, calls).await;
    assert!(most <= 300, "{most} commands of one call");
}

/// A log that holds something keeps the entries that have expired, for cheap charges, but not many of them.
#[tokio::test]
async fn a_log_with_a_hold_forgets_expired_entries() {
    let (timed, key) = (Timed::redis().await, fresh_key());
    let log = Rule::new("log", 100_000, SECOND).with_algorithm(LOG);
    decide_all(&timed, [held_charge(log, key, 1, 1_000 * LEASE)].into_iter()).await;
    let name = counter_of(&log, key).to_string();
    let stored =
        || -> u64 { redis::from_redis_value(timed.server().unwrap().command(&[b"LLEN", name.as_bytes()])).unwrap() };
    for _ in 0..10 {
        timed.advance(2 * SECOND);
        timed.limiter.acquire(&log, key).await.unwrap();
    }
    assert!(stored() <= 5, "{} are stored", stored());
    for made in 1..=1_500 {
        timed.advance(10 * MS);
        timed.limiter.acquire(&log, key).await.unwrap();
        // The entries of the last second count, one from above among them, and the hold.
        let counted = (made + 1).min(100) + 1;
        assert_eq!(timed.limiter.peek(&log, key).await.unwrap().remaining(), 100_000 - counted, "{made}");
    }
    assert!(stored() <= 1_200, "{} are stored", stored());
}

/// The list of holds, which may be long, is neither read nor written.
#[tokio::test]
async fn a_charge_beside_a_hold_takes_few_commands() {
    let (timed, key) = (Timed::redis().await, fresh_key());
    let log = Rule::new("log", 100_000, SECOND).with_algorithm(LOG);
    decide_all(&timed, [held_charge(log, key, 1, 1_000 * LEASE)].into_iter()).await;
    let plain = || {
        let mut charge = held_charge(log, key, 1, LEASE);
        charge.charges[0].hold = None;
        charge
    };
    decide_all(&timed, [plain()].into_iter()).await;
    timed.advance(MS);
    let most = most_commands(&timed, vec![plain()]).await;
    assert!(most <= 9, "{most} commands");
}

/// A log without holds is a list of charges.
#[tokio::test]
async fn a_log_keeps_nothing_of_a_settled_hold() {
    let (timed, key) = (Timed::redis().await, fresh_key());
    let log = Rule::new("log", 10, SECOND).with_algorithm(LOG);
    let held = decide_all(&timed, [held_charge(log, key, 1, LEASE)].into_iter()).await;
    store_of(&timed.limiter).settle(held[0].charges[0].clone(), 2).answer().await.unwrap();
    let name = counter_of(&log, key).to_string();
    let server = timed.server().unwrap();
    let stored: u64 = redis::from_redis_value(server.command(&[b"LLEN", name.as_bytes()])).unwrap();
    assert_eq!(stored, 2, "numbers of a charge of 2");
}

/// Places that have ended and are still stored need not be counted.
#[tokio::test]
async fn a_look_at_ended_places_takes_one_command_for_each_size() {
    const MANY: Rule = Rule::new("many", 100, LEASE).with_algorithm(Algorithm::Concurrent);
    let (timed, key) = (Timed::redis().await, fresh_key());
    let places = |cost, lease| held_charge(MANY, key, cost, lease);
    decide_all(&timed, [places(7, LEASE), places(8, 10 * LEASE)].into_iter()).await;
    timed.advance(2 * LEASE);
    let most = most_commands(&timed, vec![look(&places(1, LEASE))]).await;
    assert!(most <= 9, "{most} commands");
}
