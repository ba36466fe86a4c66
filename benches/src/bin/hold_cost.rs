//! The cost of a hold and its settlement, against one plain acquire of the same log: on Redis, in
//! one run.
//!
//! ```sh
//! cargo run --release -p ratelimit-benches --bin hold_cost
//! ```
//!
//! All contenders run by turns, each on keys of its own. Microseconds hold for one machine and one
//! moment, so read the ratios. Some settle in the background, and say so: that takes time of the
//! server and of this process, and none of the caller.

use std::{future::Future, hint::black_box, time::Duration};

use futures_util::future::join_all;
use ratelimit_harness::RedisServer;
use ratelimit_runtime::{
    Algorithm, Limiter, RequestPerMinute, Rule, limit_concurrent_requests, limit_request_per_time,
};
use tokio::time::Instant;

const TURNS: usize = 9;
const CALLS_A_TURN: u64 = 2_000;
const KEYS: u64 = 50;

const LOG: Rule = Rule::new("log", 1_000_000, Duration::from_secs(1)).with_algorithm(Algorithm::SlidingLog);
const HELD: Rule = Rule::new("held", 1_000_000, Duration::from_secs(1)).with_algorithm(Algorithm::SlidingLog);
const PLACES: Rule = Rule::new("places", 1_000, Duration::from_secs(30)).with_algorithm(Algorithm::Concurrent);

type Answer = Result<(), RequestPerMinute>;

#[limit_request_per_time("elapsed", 1, Seconds, 1_000_000, key = key, algorithm = SlidingLog, cost = Elapsed(max = "1s"), limiter = limiter)]
async fn elapsed(limiter: &Limiter, key: u64) -> Answer {
    Ok(())
}

#[limit_concurrent_requests("place", 1_000, key = key, limiter = limiter)]
async fn place(limiter: &Limiter, key: u64) -> Answer {
    Ok(())
}

async fn acquire(limiter: &Limiter, key: u64) -> Answer {
    limiter.acquire(&LOG, key).await.map(drop)
}

async fn twice(limiter: &Limiter, key: u64) -> Answer {
    acquire(limiter, key).await?;
    acquire(limiter, key).await
}

async fn reserve(limiter: &Limiter, key: u64) -> Answer {
    limiter.reserve(&HELD, key, 10).await?.settle(1).await
}

async fn refund(limiter: &Limiter, key: u64) -> Answer {
    limiter.acquire(&PLACES, key).await?.refund().await.map(drop)
}

/// Microseconds a call.
async fn turn<F: Future<Output = Answer>>(callers: u64, call: impl Fn(u64) -> F) -> Result<f64, RequestPerMinute> {
    let began = Instant::now();
    let caller = |caller: u64| {
        let call = &call;
        async move {
            for number in 0..CALLS_A_TURN / callers {
                black_box(call((caller * 7 + number) % KEYS).await?);
            }
            Ok(())
        }
    };
    join_all((0..callers).map(caller)).await.into_iter().collect::<Answer>()?;
    #[allow(clippy::cast_precision_loss)] // a few thousand
    Ok(began.elapsed().as_secs_f64() * 1e6 / CALLS_A_TURN as f64)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = RedisServer::start();
    let limiter = &Limiter::builder(&server.url()).deadline(Duration::from_secs(5)).build().await?;
    let names = [
        "acquire",
        "two acquires",
        "reserve and settle, awaited",
        "place, refunded, awaited",
        "Elapsed, settled in the background",
        "place, left in the background",
    ];
    for callers in [1, 64] {
        let mut times = names.map(|_| Vec::new());
        for warm in (0..=TURNS).map(|turn| turn == 0) {
            let turns = [
                turn(callers, |key| acquire(limiter, key)).await?,
                turn(callers, |key| twice(limiter, key)).await?,
                turn(callers, |key| reserve(limiter, key)).await?,
                turn(callers, |key| refund(limiter, key)).await?,
                turn(callers, |key| elapsed(limiter, key)).await?,
                turn(callers, |key| place(limiter, key)).await?,
            ];
            if !warm {
                times.iter_mut().zip(turns).for_each(|(times, turn)| times.push(turn));
            }
        }
        let baseline = times[0].clone();
        println!("{callers} callers, {KEYS} keys, {TURNS} turns of {CALLS_A_TURN} calls");
        println!("{:<36} {:>10} {:>22}", "", "us a call", "to one acquire");
        for (name, times) in names.iter().zip(times) {
            let ratios = times.iter().zip(&baseline).map(|(time, base)| time / base).collect();
            println!("{name:<36} {:>10.1} {:>22.2}", median(times), median(ratios));
        }
        println!();
    }
    Ok(())
}
