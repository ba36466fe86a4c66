//! `ttl`, `prefix` and the numbers of an algorithm are known when compiling.

use ratelimit_runtime::{RequestPerMinute, limit_request_per_time};

type R = Result<(), RequestPerMinute>;

#[limit_request_per_time("item", hours, Hours, 1)]
async fn ttl(hours: u64) -> R {
    Ok(())
}

#[limit_request_per_time(prefix = name, unit = Hours, count = 1)]
async fn prefix(name: &'static str) -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Hours, const { limit })]
async fn count(limit: u64) -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Hours, 1, algorithm = SlidingWindow(buckets = buckets))]
async fn buckets(buckets: u64) -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Hours, 1, algorithm = TokenBucket(burst = burst))]
async fn burst(burst: u64) -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Hours, 1, algorithm = LeakyBucket(queue = queue))]
async fn queue(queue: u64) -> R {
    Ok(())
}

#[limit_request_per_time(prefix = "item", period = period, count = 1)]
async fn period(period: std::time::Duration) -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Hours, 1, on_limit = Wait(max = longest))]
async fn longest_wait(longest: std::time::Duration) -> R {
    Ok(())
}

const SECONDS: u64 = 90;

#[limit_request_per_time(prefix = "item", period = SECONDS, count = 1)]
async fn period_without_unit() -> R {
    Ok(())
}

fn main() {}
