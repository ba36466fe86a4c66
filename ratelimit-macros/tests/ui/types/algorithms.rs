//! The numbers of an algorithm are checked where their function is used.

use ratelimit_runtime::{RequestPerMinute, limit_request_per_time};

type R = Result<(), RequestPerMinute>;

const NONE: u64 = 0;
const SEVEN: u64 = 7;
const MANY: u64 = 1_000_000_000_000;

#[limit_request_per_time("item", 1, Seconds, 1, algorithm = SlidingWindow(buckets = NONE))]
async fn no_buckets() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Seconds, 1, algorithm = SlidingWindow(buckets = MANY))]
async fn too_many_buckets() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Seconds, 1, algorithm = SlidingWindow(buckets = SEVEN))]
async fn unequal_buckets() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, const { MANY }, algorithm = SlidingWindow)]
async fn large_window() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1, algorithm = TokenBucket(burst = NONE))]
async fn no_burst() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, const { MANY }, algorithm = TokenBucket)]
async fn large_bucket() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1_000, algorithm = TokenBucket(burst = MANY, refill = Interval))]
async fn slow_bucket() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, limit, algorithm = LeakyBucket(queue = MANY))]
async fn large_queue(limit: u64) -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, const { MANY * 10_000 }, algorithm = LeakyBucket(queue = 1))]
async fn large_count() -> R {
    Ok(())
}

/// Values that only a call knows are checked by the call.
#[limit_request_per_time("item", 1, Days, limit, algorithm = TokenBucket(burst = MANY, refill = Interval))]
async fn perhaps_slow(limit: u64) -> R {
    Ok(())
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let calls = async {
        no_buckets().await?;
        too_many_buckets().await?;
        unequal_buckets().await?;
        large_window().await?;
        no_burst().await?;
        large_bucket().await?;
        slow_bucket().await?;
        large_queue(1).await?;
        large_count().await?;
        perhaps_slow(1).await
    };
    runtime.block_on(calls).unwrap();
}
