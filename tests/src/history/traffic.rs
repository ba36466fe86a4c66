//! Callers of every kind on one limiter, recorded.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ratelimit_runtime::{Algorithm, Refill, Rule};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::RecordedLimiter;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

const WINDOW: usize = 0;
const REFUNDED: usize = 1;
const LOG: usize = 2;
const RESERVED: usize = 3;
const SLIDING: usize = 4;
const BUCKET: usize = 5;
const PLACES: usize = 6;
const WAITED_FOR: usize = 7;
const PREFETCHED: usize = 8;
const PLACES_WAITED_FOR: usize = 9;
const HOT: usize = 10;
const ALIGNED: usize = 11;
const WAITED_FOR_ALONE: usize = 12;

/// The rules of [`traffic`], with permits taken at a time and whether denials are cached.
pub const TRAFFIC_RULES: [(Rule, u64, bool); 13] = [
    (Rule::new("window", 20, ms(500)), 1, true),
    (Rule::new("refunded", 20, ms(300)).with_denial_cache(false), 1, false),
    (Rule::new("log", 15, ms(400)).with_algorithm(Algorithm::SlidingLog), 1, true),
    (Rule::new("reserved", 100, ms(1_000)).with_algorithm(Algorithm::SlidingLog).with_denial_cache(false), 1, false),
    (
        Rule::new("sliding", 50, ms(500)).with_algorithm(Algorithm::SlidingWindow { buckets: 10, weighted: true }),
        1,
        true,
    ),
    (
        Rule::new("bucket", 50, ms(1_000)).with_algorithm(Algorithm::TokenBucket { burst: 20, refill: Refill::Greedy }),
        1,
        true,
    ),
    (Rule::new("places", 3, ms(1_000)).with_algorithm(Algorithm::Concurrent), 1, false),
    (Rule::new("waited_for", 6, ms(1_000)), 1, true),
    (Rule::new("prefetched", 100, ms(1_000)).with_prefetch(5), 5, true),
    (Rule::new("places_waited_for", 2, ms(1_000)).with_algorithm(Algorithm::Concurrent), 1, false),
    (Rule::new("hot", 4_000, ms(3_600_000)), 1, true),
    (Rule::new("aligned", 30, ms(500)).with_algorithm(Algorithm::FixedWindow { align: true }), 1, true),
    (Rule::new("waited_for_alone", 2, ms(200)), 1, true),
];

/// The amount of traffic.
#[derive(Clone, Copy, Debug)]
pub struct Traffic {
    /// Tasks that call without waiting.
    pub tasks: usize,
    /// Tasks that wait for their turn.
    pub waiters: usize,
    /// Length of the traffic.
    pub length: Duration,
    /// The longest pause between two calls of a task.
    pub pause: Duration,
}

/// Calls a limiter in every way. Its first rules are [`TRAFFIC_RULES`].
pub async fn traffic(limiter: RecordedLimiter, traffic: Traffic) {
    let (start, limiter) = (Instant::now(), Arc::new(limiter));
    let end = start + traffic.length;
    let mut tasks = JoinSet::new();
    for _ in 0..traffic.tasks {
        let limiter = Arc::clone(&limiter);
        tasks.spawn(async move {
            let mut random = fastrand::Rng::new();
            while Instant::now() < end {
                one(&limiter, start.elapsed(), &mut random).await;
                sleep(traffic.pause.mul_f64(random.f64())).await;
            }
        });
    }
    for number in 0..traffic.waiters {
        let limiter = Arc::clone(&limiter);
        tasks.spawn(async move {
            let mut random = fastrand::Rng::new();
            while Instant::now() < end {
                // Those who still wait in the end leave.
                drop(timeout(end.saturating_duration_since(Instant::now()), wait(&limiter, number, &mut random)).await);
                sleep(traffic.pause.mul_f64(random.f64())).await;
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no panic");
    }
}

/// One call that does not wait, and what follows from it.
async fn one(limiter: &RecordedLimiter, elapsed: Duration, random: &mut fastrand::Rng) {
    let (key, cost) = (random.u64(0..2), random.u64(1..=3));
    match random.usize(0..14) {
        WINDOW => drop(limiter.acquire(WINDOW, key, cost, None).await),
        REFUNDED => {
            let granted = limiter.acquire(REFUNDED, key, cost, None).await;
            if let Some(granted) = granted
                && random.u8(0..3) > 0
            {
                let pause = [0, 0, 10, 150, 290, 310, 350][random.usize(0..7)];
                sleep(ms(pause)).await;
                limiter.refund(granted).await;
                limiter.peek(REFUNDED, key).await;
            }
        }
        LOG => drop(limiter.acquire(LOG, key, cost, None).await),
        RESERVED => {
            let most = random.u64(5..40);
            if let Some(reservation) = limiter.reserve(RESERVED, key, most).await {
                sleep(ms(random.u64(0..20))).await;
                match random.u8(0..4) {
                    0 => limiter.refund(reservation).await,
                    _ => limiter.settle(reservation, random.u64(0..=most)).await,
                }
                limiter.peek(RESERVED, key).await;
            }
        }
        SLIDING => drop(limiter.acquire(SLIDING, key, cost, None).await),
        BUCKET => drop(limiter.acquire(BUCKET, key, cost, None).await),
        PLACES => {
            if let Some(place) = limiter.acquire(PLACES, key, 1, None).await {
                // Now and then beyond the lease, so that it has to be renewed.
                sleep(ms(if random.u8(0..40) == 0 { 1_300 } else { random.u64(0..15) })).await;
                limiter.refund(place).await;
            }
        }
        PREFETCHED => {
            // Few calls leave quota at the end of a window, many use up the next one.
            let fits_when_released = elapsed.as_millis() % 3_000 > 2_000;
            for _ in 0..if fits_when_released { 20 } else { random.usize(0..2) } {
                let granted = limiter.acquire(PREFETCHED, key, 1, None).await;
                if let Some(granted) = granted
                    && random.u8(0..10) == 0
                {
                    limiter.refund(granted).await;
                }
            }
        }
        ALIGNED => drop(limiter.acquire(ALIGNED, key, cost, None).await),
        // One who does not stay for the answer.
        12 => drop(timeout(ms(random.u64(0..3)), limiter.acquire(WINDOW, 1, 1, None)).await),
        // Many at once.
        _ => {
            let hot = || limiter.acquire(HOT, 0, 1, None);
            tokio::join!(hot(), hot(), hot(), hot(), hot(), hot(), hot(), hot(), hot(), hot());
        }
    }
}

/// One call that waits.
async fn wait(limiter: &RecordedLimiter, number: usize, random: &mut fastrand::Rng) {
    let longest = ms(random.u64(500..3_000));
    if number.is_multiple_of(3) {
        let place = limiter.acquire(PLACES_WAITED_FOR, 0, 1, Some(longest)).await;
        if let Some(place) = place {
            sleep(ms(random.u64(5..40))).await;
            limiter.refund(place).await;
        }
    } else if number % 6 == 1 {
        // One whom no other caller of its process wakes.
        drop(limiter.acquire(WAITED_FOR_ALONE, number as u64, 1, Some(longest)).await);
    } else if random.u8(0..6) == 0 {
        // One who leaves.
        let call = limiter.acquire(WAITED_FOR, 0, 1, Some(longest));
        drop(timeout(ms(random.u64(0..400)), call).await);
    } else {
        drop(limiter.acquire(WAITED_FOR, 0, 1, Some(longest)).await);
    }
}
