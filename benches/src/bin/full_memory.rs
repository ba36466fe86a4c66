//! The memory store when it is full: what a counter takes, and what a call costs that finds no room.
//! And the longest calls while counters that have expired are dropped. And an attack: 10 million keys
//! in one window, and what becomes of the calls of others.
//!
//! `cargo run --release -p ratelimit-benches --bin full_memory`

use std::{
    env, fs,
    process::Command,
    time::{Duration, Instant},
};

use ratelimit_runtime::{Algorithm, Cause, Limiter, ManualClock, Rule};

const KEYS: u64 = 1_000_000;
const CALLS: u64 = 1_000_000;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let ["--attack", name, numbers @ ..] = &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        let number = |at: usize| numbers[at].parse().expect("a number");
        return attack(name, number(0), number(1), number(2), number(3)).await;
    }
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
    println!(
        "\n{ATTACKERS} new keys of an attacker with one call each, and between them the calls of {HONEST} honest keys, in one window"
    );
    println!("{:<34}{:>10}{:>12}{:>12}{:>12}", "", "refused", "median", "p99", "memory");
    for (count, calls) in [(100, 20), (20, 10), (5, 3)] {
        println!("count {count}, {calls} calls of each honest key");
        for (name, attackers, mebibytes) in [
            ("  no attack", 0, 0),
            ("  attack", ATTACKERS, 0),
            ("  attack, overflow of 16 MiB", ATTACKERS, 16),
            ("  attack, overflow of 64 MiB", ATTACKERS, 64),
        ] {
            // In a process of its own, whose memory is all its own.
            let numbers = [count, calls, attackers, mebibytes << 20].map(|number| number.to_string());
            let mut command = Command::new(env::current_exe().expect("the path of this program"));
            let status = command.args(["--attack", name]).args(numbers).status();
            assert!(status.expect("cannot start a process").success());
        }
    }
}

const ATTACKERS: u64 = 10 * KEYS;
const HONEST: u64 = 10_000;

/// Calls of an attacker, each with a new key, with the calls of honest keys between them. The store has
/// room for a tenth of the attacker's keys, which come first.
async fn attack(name: &str, count: u64, calls: u64, attackers: u64, overflow_bytes: u64) {
    let before = resident_bytes();
    let builder = Limiter::builder("memory://")
        .clock(ManualClock::new())
        .overflow_bytes(usize::try_from(overflow_bytes).expect("fits"));
    let limiter = builder.build().await.expect("valid settings");
    let rule = Rule::new("attacked", count, Duration::from_secs(60));
    let mut attacker = 0..attackers;
    for key in attacker.by_ref().take(usize::try_from(KEYS).expect("fits")) {
        limiter.acquire(&rule, key).await.expect("there is room");
    }
    let (mut refused, mut times) = (0, Vec::new());
    for call in 0..HONEST * calls {
        for key in
            attacker.by_ref().take(usize::try_from((attackers - attackers / 10) / (HONEST * calls)).expect("fits"))
        {
            let _ = limiter.acquire(&rule, key).await;
        }
        let started = Instant::now();
        refused += u64::from(limiter.acquire(&rule, ("honest", call % HONEST)).await.is_err());
        times.push(started.elapsed());
    }
    times.sort_unstable();
    #[allow(clippy::cast_precision_loss)] // of numbers of calls
    let share = 100.0 * refused as f64 / times.len() as f64;
    let [median, p99] = [times[times.len() / 2], times[times.len() * 99 / 100]];
    let memory = resident_bytes().saturating_sub(before) >> 20;
    println!("{name:<34}{share:>8.2} %{median:>12.1?}{p99:>12.1?}{memory:>8} MiB");
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
