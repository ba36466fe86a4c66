//! Waiting for a limit against asking again every millisecond: admitted calls, and how long callers waited for them.
//!
//! ```sh
//! cargo run --release -p ratelimit-benches --bin waiting             # or -- --quick, or words that choose rows
//! ```
//!
//! The baseline is the loop that a user would write: `acquire`, and after a refusal `sleep(1 ms)`.
//! Both run by turns in one process, each on keys of its own, with the number of tasks of the row.
//! An admitted task calls again at once. The ratio of a row is the median over its turns. Round
//! trips are those of a proxy that delays both directions, and are measured in the row.
//!
//! The second table is about a caller of two rules, one of its own and one of all users. 1,000
//! users call while others wait for the limit of a user who has spent it, or each for one of its
//! own. The baseline has no waiting callers.

use std::{
    future::Future,
    mem,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ratelimit_harness::{Mode, Proxy, RedisServer};
use ratelimit_runtime::{Algorithm, Limiter, OnStoreError, Refill, RequestPerMinute, Rule, limit_request_per_time};
use tokio::{
    task::{JoinSet, yield_now},
    time::{Instant, sleep},
};

const PATIENCE: Duration = Duration::from_secs(3600);
const MS: Duration = Duration::from_millis(1);

const FIXED: Rule = Rule::new("fixed", 1_000, Duration::from_millis(100));
const LOG: Rule = Rule::new("log", 1_000, Duration::from_millis(500)).with_algorithm(Algorithm::SlidingLog);
const WINDOW: Rule = Rule::new("window", 1_000, Duration::from_millis(500))
    .with_algorithm(Algorithm::SlidingWindow { buckets: 1, weighted: true });
const BUCKET: Rule = Rule::new("bucket", 10_000, Duration::from_secs(1))
    .with_algorithm(Algorithm::TokenBucket { burst: 100, refill: Refill::Greedy });
const INTERVAL: Rule = Rule::new("interval", 1_000, Duration::from_millis(100))
    .with_algorithm(Algorithm::TokenBucket { burst: 1_000, refill: Refill::Interval });
const PER_KEY: Rule = Rule::new("per-key", 10, Duration::from_millis(500));

/// The stores, and the delay of their proxies in each direction.
const STORES: [(&str, Option<Duration>); 4] = [
    ("memory", None),
    ("Redis", Some(Duration::ZERO)),
    ("Redis, 1 ms", Some(Duration::from_micros(500))),
    ("Redis, 5 ms", Some(Duration::from_micros(2_500))),
];

#[derive(Clone, Copy)]
enum Caller {
    Waits,
    Retries,
}

const USERS: u64 = 1_000;
const SPENT: u64 = USERS;
const OF_USER: Rule = Rule::new("of-user", 1_000_000_000, Duration::from_secs(3600));

#[limit_request_per_time("of-user", 1, Hours, 1_000_000_000, key = user, limiter = limiter, on_limit = Wait)]
#[limit_request_per_time("of-all", 100, Milliseconds, 1_000, key = turn)]
async fn of_user_and_all(limiter: &Limiter, user: u64, turn: u64) -> Result<(), RequestPerMinute> {
    Ok(())
}

#[limit_request_per_time("of-user", 1, Hours, 1_000_000_000, key = user, limiter = limiter, on_limit = Wait)]
#[limit_request_per_time("of-many", 100, Milliseconds, 1_000_000_000, key = turn)]
async fn of_user_and_many(limiter: &Limiter, user: u64, turn: u64) -> Result<(), RequestPerMinute> {
    Ok(())
}

#[limit_request_per_time("of-user", 1, Hours, 1_000_000_000, key = user, limiter = limiter, on_limit = Wait)]
#[limit_request_per_time("of-hour", 1, Hours, 1_000_000_000, key = turn)]
async fn of_user_and_hour(limiter: &Limiter, user: u64, turn: u64) -> Result<(), RequestPerMinute> {
    Ok(())
}

#[limit_request_per_time("of-user-and-second", 1, Seconds, 1, key = user, limiter = limiter, on_limit = Wait)]
#[limit_request_per_time("of-hour", 1, Hours, 1_000_000_000, key = turn)]
async fn of_second_and_hour(limiter: &Limiter, user: u64, turn: u64) -> Result<(), RequestPerMinute> {
    Ok(())
}

/// The limit of all users, and the callers who wait beside them.
#[derive(Clone, Copy)]
enum OfAll {
    /// It admits 10,000 a second. The others share a limit that is spent for an hour.
    Tight,
    /// It admits all calls. The others share a limit that is spent for an hour.
    Loose,
    /// It admits all calls. Each of the others calls once a second, as its own limit says.
    Hourly,
}

/// The result of one turn.
struct Turn {
    admitted: usize,
    /// Milliseconds, sorted.
    waits: Vec<f64>,
}

impl Turn {
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)] // an index
    fn percentile(&self, percent: f64) -> f64 {
        let at = (self.waits.len() as f64 * percent / 100.0) as usize;
        self.waits.get(at).copied().unwrap_or(f64::NAN)
    }
}

async fn acquire(limiter: &Limiter, rule: &Rule, key: u64, caller: Caller) -> Result<(), RequestPerMinute> {
    match caller {
        Caller::Waits => limiter.acquire_within(rule, key, PATIENCE).await.map(drop),
        Caller::Retries => {
            while let Err(refused) = limiter.acquire(rule, key).await {
                if refused.retry_after().is_none() {
                    return Err(refused);
                }
                sleep(MS).await;
            }
            Ok(())
        }
    }
}

/// The waits of one task, which are handed over when it ends.
struct Waits(Vec<f64>, Arc<Mutex<Vec<f64>>>);

impl Drop for Waits {
    fn drop(&mut self) {
        self.1.lock().unwrap_or_else(PoisonError::into_inner).append(&mut self.0);
    }
}

/// Lets that many tasks call for a while: first to warm up, then for so long.
async fn turn<C, F>(tasks: u64, lasts: Duration, call: C) -> Turn
where
    C: Fn(u64) -> F + Clone + Send + 'static,
    F: Future<Output = Result<(), RequestPerMinute>> + Send,
{
    let [counts, ends] = [(), ()].map(|()| Arc::new(AtomicBool::new(false)));
    let all = Arc::new(Mutex::new(Vec::new()));
    let mut set = JoinSet::new();
    for task in 0..tasks {
        let (call, counts, ends, all) = (call.clone(), Arc::clone(&counts), Arc::clone(&ends), Arc::clone(&all));
        set.spawn(async move {
            let mut waits = Waits(Vec::new(), all);
            let mut calls = 0_u32;
            while !ends.load(Ordering::Relaxed) {
                calls += 1;
                if calls.is_multiple_of(64) {
                    yield_now().await; // the memory store never does
                }
                let began = Instant::now();
                if let Err(refused) = call(task).await {
                    panic!("{refused}");
                }
                if counts.load(Ordering::Relaxed) {
                    waits.0.push(began.elapsed().as_secs_f64() * 1e3);
                }
            }
        });
    }
    // Not a whole number of any row's periods: the time that counts begins and ends between two windows.
    sleep(lasts * 5 / 8).await;
    counts.store(true, Ordering::Relaxed);
    sleep(lasts).await;
    counts.store(false, Ordering::Relaxed);
    ends.store(true, Ordering::Relaxed);
    set.shutdown().await;
    let mut waits = mem::take(&mut *all.lock().unwrap_or_else(PoisonError::into_inner));
    waits.sort_by(f64::total_cmp);
    Turn { admitted: waits.len(), waits }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

async fn timed<F: Future>(future: F) -> f64 {
    let began = Instant::now();
    future.await;
    began.elapsed().as_secs_f64() * 1e3
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let quick = words.iter().any(|word| word == "--quick");
    let chosen: Vec<_> = words.iter().filter(|word| !word.starts_with("--")).collect();
    let (turns, lasts) = if quick { (1, Duration::from_secs(1)) } else { (3, Duration::from_secs(2)) };
    let server = RedisServer::start();

    let mut rows = [FIXED, LOG, WINDOW, BUCKET, INTERVAL].map(|rule| (rule, 500, 1)).to_vec();
    for tasks in [1, 10, 100, 2_000, 10_000, 100_000] {
        rows.push((FIXED, tasks, 1));
    }
    for (tasks, keys) in [(1_000, 1_000), (10_000, 1_000), (100_000, 1_000), (2_000, 10), (10_000, 100)] {
        rows.push((PER_KEY, tasks, keys));
    }
    println!(
        "{:<38} {:>7} {:>5} {:<12} {:>8} {:>10} {:>10} {:>6} {:>22} {:>22}",
        "rule",
        "tasks",
        "keys",
        "store",
        "trip ms",
        "waiting/s",
        "retry/s",
        "ratio",
        "waited p50 p99 ms",
        "retried p50 p99 ms"
    );
    let mut next_key = 0;
    let mut lowest = f64::INFINITY;
    for (rule, tasks, keys) in rows {
        for (name, delay) in STORES {
            let label = format!("{} {} per {:?}", rule.prefix(), rule.count(), rule.period());
            let row = format!("{label} {tasks} {keys} {name}");
            if !chosen.iter().all(|word| row.contains(word.as_str())) {
                continue;
            }
            let proxy = delay.map(|delay| {
                let proxy = Proxy::start(server.port());
                proxy.set(if delay.is_zero() { Mode::Pass } else { Mode::Delay(delay) });
                proxy
            });
            let url = proxy.as_ref().map_or("memory://".to_owned(), Proxy::url);
            let limiter = Limiter::builder(&url)
                .deadline(Duration::from_secs(10))
                .on_store_error(OnStoreError::Deny)
                .max_waiting(200_000)
                .build()
                .await?;
            let mut trips = Vec::new();
            for _ in 0..20 {
                trips.push(timed(limiter.peek(&rule, u64::MAX)).await);
            }
            let (mut waiting, mut retrying) = (Vec::new(), Vec::new());
            for _ in 0..turns {
                for (caller, done) in [(Caller::Waits, &mut waiting), (Caller::Retries, &mut retrying)] {
                    let (limiter, first_key) = (limiter.clone(), next_key);
                    let call = move |task| {
                        let limiter = limiter.clone();
                        async move { acquire(&limiter, &rule, first_key + task % keys, caller).await }
                    };
                    done.push(turn(tasks, lasts, call).await);
                    next_key += keys;
                }
            }
            #[allow(clippy::cast_precision_loss)] // calls of some seconds
            let rate =
                |turns: &[Turn]| median(turns.iter().map(|turn| turn.admitted as f64).collect()) / lasts.as_secs_f64();
            #[allow(clippy::cast_precision_loss)]
            let ratios = waiting.iter().zip(&retrying).map(|(one, other)| one.admitted as f64 / other.admitted as f64);
            let ratio = median(ratios.collect());
            let percentiles = |turns: &[Turn]| {
                let [half, most] =
                    [50.0, 99.0].map(|percent| median(turns.iter().map(|turn| turn.percentile(percent)).collect()));
                format!("{half:.1} {most:.1}")
            };
            println!(
                "{label:<38} {tasks:>7} {keys:>5} {name:<12} {:>8.2} {:>10.0} {:>10.0} {ratio:>6.2} {:>22} {:>22}",
                median(trips),
                rate(&waiting),
                rate(&retrying),
                percentiles(&waiting),
                percentiles(&retrying),
            );
            lowest = lowest.min(ratio);
        }
    }
    lowest = lowest.min(users(&server, turns, lasts, &chosen).await?);
    println!("lowest ratio: {lowest:.2}");
    Ok(())
}

/// Calls of 1,000 users with and without others who wait for the limit of one user. Returns the lowest ratio.
async fn users(
    server: &RedisServer,
    turns: u32,
    lasts: Duration,
    chosen: &[&String],
) -> Result<f64, Box<dyn std::error::Error>> {
    println!(
        "\n{:<38} {:>7} {:<12} {:>10} {:>10} {:>6}",
        "limit of all", "waiting", "store", "with/s", "without/s", "ratio"
    );
    let mut lowest = f64::INFINITY;
    let mut next = 0;
    for of_all in [OfAll::Tight, OfAll::Loose, OfAll::Hourly] {
        for (store, url) in [("memory", "memory://".to_owned()), ("Redis", server.url())] {
            // More than 1,000 who call once a second would be a load of their own.
            let many = if let OfAll::Hourly = of_all { 1_000 } else { 10_000 };
            for waiting in [1, 100, many] {
                let label = match of_all {
                    OfAll::Tight => "1,000 per 100ms",
                    OfAll::Loose => "more than is called",
                    OfAll::Hourly => "the same, others once a second",
                };
                if !chosen.iter().all(|word| format!("users {label} {waiting} {store}").contains(word.as_str())) {
                    continue;
                }
                let [mut with, mut without] = [(); 2].map(|()| Vec::new());
                for _ in 0..turns {
                    for (waiting, done) in [(waiting, &mut with), (0, &mut without)] {
                        let limiter = Limiter::builder(&url)
                            .deadline(Duration::from_secs(10))
                            .on_store_error(OnStoreError::Deny)
                            .max_waiting(20_000)
                            .build()
                            .await?;
                        next += 1;
                        let (turn_of, spent) = (next, SPENT + next);
                        limiter.acquire_n(&OF_USER, spent, OF_USER.count()).await?;
                        let others = limiter.clone();
                        let call = move |user| {
                            let limiter = limiter.clone();
                            async move {
                                match of_all {
                                    OfAll::Tight => of_user_and_all(&limiter, user, turn_of).await,
                                    OfAll::Loose => of_user_and_many(&limiter, user, turn_of).await,
                                    OfAll::Hourly => of_user_and_hour(&limiter, user, turn_of).await,
                                }
                            }
                        };
                        let mut exhausted = JoinSet::new();
                        for other in 0..waiting {
                            if let OfAll::Hourly = of_all {
                                let limiter = others.clone();
                                exhausted.spawn(async move {
                                    while of_second_and_hour(&limiter, other, turn_of).await.is_ok() {}
                                });
                            } else {
                                let call = call(spent);
                                exhausted.spawn(async { drop(call.await) });
                            }
                        }
                        done.push(turn(USERS, lasts, call).await.admitted);
                        exhausted.abort_all();
                    }
                }
                #[allow(clippy::cast_precision_loss)] // calls of some seconds
                let [with, without] = [with, without].map(|done| done.iter().map(|n| *n as f64).collect::<Vec<_>>());
                let ratio = median(with.iter().zip(&without).map(|(one, other)| one / other).collect());
                let [with, without] = [with, without].map(|done| median(done) / lasts.as_secs_f64());
                println!("{label:<38} {waiting:>7} {store:<12} {with:>10.0} {without:>10.0} {ratio:>6.2}");
                lowest = lowest.min(ratio);
            }
        }
    }
    Ok(lowest)
}
