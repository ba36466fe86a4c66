//! Short histories of random concurrent calls: one order of them explains every answer, to the millisecond.

use std::sync::Arc;
use std::time::Duration;

use ratelimit_harness::RedisServer;
use ratelimit_harness::history::{Granted, History, Linearized, Numbers, RecordedLimiter, Recorder, linearize};
use ratelimit_runtime::{Algorithm, Refill, Rule};
use tokio::task::JoinSet;

use crate::support::{ALIGNED, FIXED, LOG, Timed, fresh_key};

const PERIOD: Duration = Duration::from_secs(1);
const ALGORITHMS: [Algorithm; 9] = [
    FIXED,
    ALIGNED,
    LOG,
    Algorithm::SlidingWindow { buckets: 1, weighted: true },
    Algorithm::SlidingWindow { buckets: 5, weighted: true },
    Algorithm::SlidingWindow { buckets: 2, weighted: false },
    Algorithm::TokenBucket { burst: 7, refill: Refill::Greedy },
    Algorithm::TokenBucket { burst: 7, refill: Refill::Interval },
    Algorithm::LeakyBucket { queue: 4 },
];

/// The kind of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Charges, refunds, peeks, resets, and waits.
    Charges,
    /// Holds that are settled.
    Holds,
}

/// The failures during a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    None,
    /// Callers leave before they have an answer.
    Cancelled,
    /// Scripts are forgotten, connections are cut.
    Server,
}

/// Calls that one schedule has. A refund of a charge from before a reset is left open by the contract.
#[derive(Clone, Copy, Debug)]
struct Mix {
    refunds: bool,
    resets: bool,
    waits: bool,
}

impl Mix {
    /// With `waits_for_changes` callers wait for refunds, resets and raised counts, and not only for time to pass.
    fn new(kind: Kind, random: &mut fastrand::Rng, waits_for_changes: bool, count_changes: bool) -> Self {
        let (resets, waits) = (random.u8(0..3) == 0, random.bool() && !count_changes);
        match kind {
            Kind::Holds => Self { refunds: true, resets: false, waits: false },
            Kind::Charges if waits_for_changes => Self { refunds: !resets, resets, waits: true },
            Kind::Charges => Self { refunds: !resets && !waits, resets: resets && !waits, waits },
        }
    }
}

async fn run(
    timed: &Arc<Timed>,
    rules: &[Rule],
    (kind, trouble, waits_for_changes): (Kind, Trouble, bool),
    seed: u64,
) -> (History, Duration) {
    let (start, clock) = (timed.now(), Arc::clone(timed));
    let recorder = Recorder::by_clock(move || u64::try_from(clock.now().as_micros()).unwrap());
    let named: Vec<(Rule, u64, bool)> = rules.iter().map(|rule| (*rule, 1, false)).collect();
    let limiter = RecordedLimiter::new(timed.limiter.clone(), Arc::clone(&recorder), &named);
    let (key, mut random, mut tasks) = (fresh_key(), fastrand::Rng::with_seed(seed), JoinSet::new());
    let (several, commands) = (rules.len(), Arc::new(tokio::sync::Mutex::new(())));
    let mix = Mix::new(kind, &mut random, waits_for_changes, several > 1);
    for _ in 0..random.usize(2..=8) {
        let (limiter, recorder, timed) = (limiter.clone(), Arc::clone(&recorder), Arc::clone(timed));
        let commands = Arc::clone(&commands);
        let mut random = random.fork();
        tasks.spawn(async move {
            let mut granted: Vec<Granted> = Vec::new();
            for _ in 0..random.usize(2..=12) {
                let limit = random.usize(0..several);
                match random.u8(0..20) {
                    0..=2 => {
                        let by = Duration::from_millis(random.u64(0..300));
                        recorder.advance(by, || timed.advance(by));
                    }
                    3..=5 => limiter.peek(limit, key).await,
                    6..=8 if !granted.is_empty() && mix.refunds => {
                        let granted = granted.swap_remove(random.usize(0..granted.len()));
                        match kind {
                            Kind::Holds if several == 1 && random.bool() => {
                                limiter.settle(granted, random.u64(0..4)).await;
                            }
                            _ => limiter.refund(granted).await,
                        }
                    }
                    9 if mix.resets => limiter.reset(limit, key).await,
                    10..=11 if mix.waits => {
                        let longest = Duration::from_millis(random.u64(0..2_000));
                        granted.extend(limiter.acquire(limit, key, 1, Some(longest)).await);
                    }
                    12 if trouble == Trouble::Cancelled && mix.waits => {
                        let longest = Duration::from_millis(random.u64(0..2_000));
                        let call = limiter.acquire(limit, key, 1, Some(longest));
                        let patience = Duration::from_micros(random.u64(0..1_500));
                        drop(tokio::time::timeout(patience, call).await);
                    }
                    12..=13 if trouble == Trouble::Server => {
                        // A command's connection must not be cut by another command.
                        let _one = commands.lock().await;
                        let server = timed.server().expect("a server");
                        if random.bool() {
                            server.command(&[b"SCRIPT", b"FLUSH"]);
                        } else {
                            server.command(&[b"CLIENT", b"KILL", b"TYPE", b"normal", b"SKIPME", b"yes"]);
                        }
                    }
                    _ if kind == Kind::Holds && several == 1 => {
                        granted.extend(limiter.reserve(limit, key, random.u64(1..=4)).await);
                    }
                    _ => granted.extend(limiter.acquire(limit, key, random.u64(1..=3), None).await),
                }
                if random.bool() {
                    tokio::task::yield_now().await;
                }
            }
            // Dropped now, a hold would end at a time that is not in the history.
            if kind == Kind::Holds {
                for granted in granted {
                    limiter.refund(granted).await;
                }
            }
        });
    }
    let all = async { while tasks.join_next().await.transpose().expect("no panic").is_some() {} };
    tokio::pin!(all);
    while tokio::time::timeout(Duration::from_millis(10), &mut all).await.is_err() {
        recorder.advance(PERIOD / 4, || timed.advance(PERIOD / 4)); // for those who wait
    }
    (limiter.history(), start)
}

/// Runs some schedules. A few may have too many possible orders to decide.
async fn orders(
    timed: Timed,
    cases: u64,
    (kind, trouble, waits_for_changes): (Kind, Trouble, bool),
    rules: impl Fn(u64) -> Vec<Rule>,
    numbers: Numbers,
) {
    let (timed, mut open) = (Arc::new(timed), 0);
    for _ in 0..cases {
        let seed = fastrand::u64(..);
        let rules = rules(seed);
        let (history, start) = run(&timed, &rules, (kind, trouble, waits_for_changes), seed).await;
        match linearize(&history, &rules, start, numbers) {
            Linearized::Yes => {}
            Linearized::TooMany => open += 1,
            Linearized::No(accusation) => panic!("{}, {trouble:?}: {accusation}", timed.of(&rules[0])),
        }
    }
    assert!(open <= cases / 10, "{open} of {cases} histories were too long to decide");
}

/// Rules of any algorithm. In half of the schedules the count changes from call to call.
fn charges(seed: u64) -> Vec<Rule> {
    charges_by(&ALGORITHMS, seed)
}

/// All but leaky buckets: a caller who leaves gives its slot back at a time that is not in the
/// history.
fn charges_without_slots(seed: u64) -> Vec<Rule> {
    charges_by(&ALGORITHMS[..8], seed)
}

fn charges_by(algorithms: &[Algorithm], seed: u64) -> Vec<Rule> {
    let algorithm = algorithms[usize::try_from(seed % 840).unwrap() % algorithms.len()];
    let rule = Rule::new("orders", 3 + seed / 840 % 5, PERIOD).with_algorithm(algorithm).with_denial_cache(false);
    let is_leaky = matches!(algorithm, Algorithm::LeakyBucket { .. });
    if (seed / 8400).is_multiple_of(2) || is_leaky {
        vec![rule]
    } else {
        vec![rule, Rule::new("orders", 4 + seed / 840 % 5, PERIOD).with_algorithm(algorithm).with_denial_cache(false)]
    }
}

/// Two with different counts are one counter of places, and one is a log with reservations.
fn places(seed: u64) -> Vec<Rule> {
    let places = |count| Rule::new("places", count, Duration::from_secs(3600)).with_algorithm(Algorithm::Concurrent);
    vec![places(3 + seed % 3), places(4 + seed % 3)]
}

fn reserved(seed: u64) -> Vec<Rule> {
    vec![Rule::new("reserved", 6 + seed % 6, 20 * PERIOD).with_algorithm(LOG).with_denial_cache(false)]
}

const CASES: u64 = 60;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn charges_in_memory_have_an_order() {
    orders(Timed::memory().await, 4 * CASES, (Kind::Charges, Trouble::None, false), charges, Numbers::Exact).await;
    orders(
        Timed::memory().await,
        2 * CASES,
        (Kind::Charges, Trouble::Cancelled, false),
        charges_without_slots,
        Numbers::Exact,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn charges_on_redis_have_an_order() {
    orders(Timed::redis().await, CASES, (Kind::Charges, Trouble::None, false), charges, Numbers::Exact).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn charges_on_redis_have_an_order_although_callers_leave() {
    orders(
        Timed::redis().await,
        CASES,
        (Kind::Charges, Trouble::Cancelled, false),
        charges_without_slots,
        Numbers::Exact,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn charges_on_redis_have_an_order_although_connections_are_cut() {
    orders(Timed::redis().await, CASES, (Kind::Charges, Trouble::Server, false), charges, Numbers::Exact).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holds_in_memory_have_an_order() {
    orders(Timed::memory().await, CASES, (Kind::Holds, Trouble::None, false), places, Numbers::Remaining).await;
    orders(Timed::memory().await, CASES, (Kind::Holds, Trouble::None, false), reserved, Numbers::Remaining).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holds_on_redis_have_an_order() {
    orders(Timed::redis().await, CASES, (Kind::Holds, Trouble::None, false), places, Numbers::Remaining).await;
    orders(
        Timed::on(RedisServer::builder().controlled_clock().start()).await,
        CASES,
        (Kind::Holds, Trouble::None, false),
        reserved,
        Numbers::Remaining,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waits_that_end_by_a_refund_or_reset_have_an_order() {
    let kind = (Kind::Charges, Trouble::None, true);
    orders(Timed::memory().await, 2 * CASES, kind, charges, Numbers::Exact).await;
    orders(Timed::redis().await, CASES, kind, charges, Numbers::Exact).await;
}
