//! Callers of every kind.

use std::sync::Arc;
use std::time::Duration;

use ratelimit_runtime::{
    Algorithm, Cause, Key, Limiter, Refill, RequestPerMinute, Rule, limit_concurrent_requests, limit_request_per_time,
};
use tokio::time::{sleep, timeout};

use crate::world::{Site, World};

/// Between two calls of a caller, at most.
const PAUSE: Duration = Duration::from_millis(80);
/// A call that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(30);

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

const WINDOW: Rule = Rule::new("soak window", 20, secs(2));
const MANY: Rule = Rule::new("soak many", 100, secs(30));
const ALIGNED: Rule = Rule::new("soak aligned", 20, secs(2)).with_algorithm(Algorithm::FixedWindow { align: true });
const PREFETCHED: Rule = Rule::new("soak prefetched", 200, secs(2)).with_prefetch(10);
const LOG: Rule = Rule::new("soak log", 20, secs(3)).with_algorithm(Algorithm::SlidingLog);
const HELD: Rule = Rule::new("soak held", 100, secs(3)).with_algorithm(Algorithm::SlidingLog);
const SLIDING: Rule =
    Rule::new("soak sliding", 20, secs(2)).with_algorithm(Algorithm::SlidingWindow { buckets: 10, weighted: true });
const BUCKET: Rule =
    Rule::new("soak bucket", 20, secs(1)).with_algorithm(Algorithm::TokenBucket { burst: 10, refill: Refill::Greedy });
const LEAKY: Rule = Rule::new("soak leaky", 20, secs(1)).with_algorithm(Algorithm::LeakyBucket { queue: 5 });
const PLACES: Rule = Rule::new("soak places", 3, secs(2)).with_algorithm(Algorithm::Concurrent);
const BANNED: Rule = Rule::new("soak banned", 5, secs(1)).with_ban(secs(2));
/// The file changes it.
pub(crate) const FROM_FILE: Rule = Rule::new("soak from file", 10, secs(2));

#[limit_request_per_time(prefix = "soak time", period = "3s", count = 1_000, key = key, algorithm = SlidingLog,
    cost = Elapsed(max = "200ms"))]
async fn timed(key: u64, lasts: Duration) -> Result<(), RequestPerMinute> {
    sleep(lasts).await;
    Ok(())
}

#[limit_request_per_time(prefix = "soak tokens", period = "2s", count = 1_000, key = key, algorithm = TokenBucket,
    cost = Settled(max = 100, |used| used.as_ref().copied().unwrap_or(0)))]
async fn settled(key: u64, used: u64) -> Result<u64, RequestPerMinute> {
    sleep(Duration::from_millis(used)).await;
    Ok(used)
}

#[limit_concurrent_requests(prefix = "soak export", count = 2, key = key, lease = "2s", on_limit = Wait(max = "1s"))]
async fn export(key: u64, lasts: Duration) -> Result<(), RequestPerMinute> {
    sleep(lasts).await;
    Ok(())
}

#[limit_request_per_time(prefix = "soak waiting", period = "1s", count = 5, key = key, on_limit = Wait(max = "2s"))]
#[limit_request_per_time(prefix = "soak all", period = "1s", count = 100)]
async fn waiting(key: u64) -> Result<(), RequestPerMinute> {
    Ok(())
}

#[limit_request_per_time(prefix = "soak blocking", period = "2s", count = 20, key = key, blocking)]
fn blocking(key: u64) -> Result<(), RequestPerMinute> {
    Ok(())
}

const KINDS: [&str; 21] = [
    "fixed window",
    "long window",
    "aligned window",
    "prefetch",
    "log",
    "sliding window",
    "token bucket",
    "leaky bucket",
    "wait",
    "place",
    "reservation",
    "elapsed",
    "settled",
    "concurrent, wait",
    "two rules, wait",
    "three rules",
    "refund",
    "peek, reset",
    "ban, unban",
    "rules file",
    "blocking",
];

/// One caller, until the load is over.
pub(crate) async fn run(world: Arc<World>, site: usize) {
    let site = &world.sites[site];
    let mut random = fastrand::Rng::new();
    while !world.is_over() {
        let kind = KINDS[random.usize(0..KINDS.len())];
        one(&world, site, kind, &mut random).await;
        sleep(PAUSE.mul_f64(random.f64())).await;
    }
}

/// One call. One of eight callers leaves early.
async fn one(world: &World, site: &Site, kind: &'static str, random: &mut fastrand::Rng) {
    let leaves = random.u8(0..8) == 0;
    let longest = if leaves { random.u64(0..100) * random.u64(0..100) / 100 } else { 0 };
    let stays = if leaves { Duration::from_millis(longest) } else { PATIENCE };
    let column = match timeout(stays, call(&site.limiter, kind, random)).await {
        Ok(Ok(())) => "admitted",
        Ok(Err(refused)) => {
            let column = result(&refused);
            if column == "mistake" {
                world.fault(format!("{}, {kind}: {refused}", site.name));
            }
            column
        }
        Err(_) if leaves => "cancelled",
        Err(_) => {
            world.fault(format!("{}, {kind}: no answer within {PATIENCE:?}", site.name));
            "no answer"
        }
    };
    world.calls.add(kind, column);
}

fn result(refused: &RequestPerMinute) -> &'static str {
    match refused.cause() {
        Cause::Exceeded => "refused",
        Cause::Banned => "banned",
        Cause::NeverFits => "never fits",
        Cause::Unavailable => "unavailable",
        _ => "mistake",
    }
}

async fn call(limiter: &Limiter, kind: &str, random: &mut fastrand::Rng) -> Result<(), RequestPerMinute> {
    // Few keys are at their limits, and many come and go.
    let key = if random.bool() { random.u64(0..3) } else { random.u64(0..1_000) };
    let (few, cost) = (random.u64(0..3), random.u64(1..=3));
    let while_it_runs = Duration::from_millis(random.u64(0..40));
    match kind {
        "fixed window" => limiter.acquire_n(&WINDOW, key, cost).await.map(drop),
        "long window" => limiter.acquire_up_to(&MANY, random.u64(0..5_000), cost).await.map(drop),
        "aligned window" => limiter.acquire_n(&ALIGNED, key, cost).await.map(drop),
        "prefetch" => limiter.acquire(&PREFETCHED, few).await.map(drop),
        "log" => limiter.acquire_n(&LOG, key, cost).await.map(drop),
        "sliding window" => limiter.acquire_n(&SLIDING, key, cost).await.map(drop),
        "token bucket" => limiter.acquire_n(&BUCKET, key, cost).await.map(drop),
        "leaky bucket" => limiter.acquire_within(&LEAKY, few, Duration::from_millis(500)).await.map(drop),
        "wait" => limiter.acquire_within(&WINDOW, few, secs(3)).await.map(drop),
        "place" => {
            let _place = limiter.acquire(&PLACES, few).await?;
            // Now and then beyond the lease, so that it has to be renewed.
            sleep(if random.u8(0..100) == 0 { secs(3) } else { while_it_runs }).await;
            Ok(())
        }
        "reservation" => {
            let mut reservation = limiter.reserve(&HELD, key, 10 * cost).await?;
            sleep(while_it_runs).await;
            match random.u8(0..4) {
                0 => reservation.cancel().await,
                1 => {
                    reservation.record(cost);
                    Ok(()) // settled as it is dropped
                }
                _ => reservation.settle(cost).await,
            }
        }
        "elapsed" => limiter.scope(timed(key, while_it_runs)).await,
        "settled" => limiter.scope(settled(key, random.u64(0..40))).await.map(drop),
        "concurrent, wait" => limiter.scope(export(few, while_it_runs)).await,
        "two rules, wait" => limiter.scope(waiting(few)).await,
        "three rules" => {
            let (tenant, user) = (Key::new(few), Key::new((few, key)));
            let charges = [(&WINDOW, tenant.clone(), 1), (&LOG, user, cost), (&BUCKET, tenant, 1)];
            limiter.acquire_all(&charges).await.map(drop)
        }
        "refund" => {
            let permit = limiter.acquire_n(&WINDOW, key, cost).await?;
            sleep(while_it_runs).await;
            permit.refund().await.map(drop)
        }
        "peek, reset" => {
            limiter.peek(&SLIDING, key).await?;
            limiter.charge(&SLIDING, key, cost).await?;
            limiter.reset(&SLIDING, key).await
        }
        "ban, unban" => match random.u8(0..10) {
            0 => limiter.ban(&BANNED, few, secs(1)).await,
            1 => limiter.unban(&BANNED, few).await,
            _ => limiter.acquire(&BANNED, few).await.map(drop),
        },
        "rules file" => limiter.acquire(&FROM_FILE, few).await.map(drop),
        _ => {
            let limiter = limiter.clone();
            let call = move || match key % 2 {
                0 => limiter.scope_blocking(|| blocking(key)),
                _ => limiter.acquire_blocking(&WINDOW, key).map(drop),
            };
            tokio::task::spawn_blocking(call).await.expect("no panic")
        }
    }
}
