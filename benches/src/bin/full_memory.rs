//! The memory store when it is full: what a counter takes, and what a call costs that finds no room.
//! And the longest calls while counters that have expired are dropped.
//!
//! `cargo run --release -p ratelimit-benches --bin full_memory`

use std::{
    fs,
    time::{Duration, Instant},
};

use ratelimit_runtime::{Algorithm, Cause, Limiter, ManualClock, Rule};

const KEYS: u64 = 1_000_000;
const CALLS: u64 = 1_000_000;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let fixed = Rule::new("fixed", 1_000_000, Duration::from_secs(3600));
    for rule in [fixed, fixed.with_algorithm(Algorithm::SlidingLog)] {
        let before = resident_bytes();
        let limiter = Limiter::in_memory();
        for key in 0..KEYS {
            limiter.acquire(&rule, key).await.expect("there is room for a million");
        }
        let bytes = resident_bytes().saturating_sub(before) / KEYS;

        let known = time(|call| {
            let (limiter, rule) = (&limiter, &rule);
            async move { assert!(limiter.acquire(rule, call).await.is_ok()) }
        });
        let known = known.await;
        let refused = time(|call| {
            let (limiter, rule) = (&limiter, &rule);
            async move {
                let refused = limiter.acquire(rule, KEYS + call).await.expect_err("there is no room");
                assert_eq!(refused.cause(), Cause::Unavailable);
            }
        });
        let refused = refused.await;
        println!("{:?}, full with {KEYS} live counters", rule.algorithm());
        println!("  bytes a counter         {bytes}");
        println!("  call of a stored key    {known:?}");
        println!("  refusal of a new key    {refused:?}, {:.2} of it", refused.as_secs_f64() / known.as_secs_f64());
    }
    for keys in [100_000, KEYS, 10 * KEYS] {
        sweep(keys).await;
    }
}

/// Calls of as many new keys as there are expired counters. Expired counters are dropped on the way.
async fn sweep(keys: u64) {
    let clock = ManualClock::new();
    let limiter = Limiter::builder("memory://")
        .clock(clock.clone())
        .max_keys(usize::try_from(2 * keys).expect("fits"))
        .build()
        .await
        .expect("valid settings");
    let rule = Rule::new("sweep", 1, Duration::from_secs(60));
    for key in 0..keys {
        limiter.acquire(&rule, key).await.expect("there is room");
    }
    clock.advance(Duration::from_secs(61));
    let mut times = Vec::with_capacity(usize::try_from(keys).expect("fits"));
    for key in keys..2 * keys {
        let started = Instant::now();
        limiter.acquire(&rule, key).await.expect("there is room");
        times.push(started.elapsed());
    }
    times.sort_unstable();
    let [median, p999, longest] = [500, 999, 1000].map(|at| times[(times.len() * at / 1000).min(times.len() - 1)]);
    println!("{keys} expired counters, calls of new keys: median {median:?}, p99.9 {p999:?}, longest {longest:?}");
}

/// One call on average, over keys in no order that a cache would like.
async fn time<F: Future<Output = ()>>(call: impl Fn(u64) -> F) -> Duration {
    let started = Instant::now();
    for number in 0..CALLS {
        call(number.wrapping_mul(0x9E37_79B9_7F4A_7C15) % KEYS).await;
    }
    started.elapsed() / u32::try_from(CALLS).expect("a million fits")
}

fn resident_bytes() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").expect("needs Linux");
    let pages: u64 = statm.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).expect("pages");
    pages * 4096
}
