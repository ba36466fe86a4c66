//! Constants that the algorithm cannot store.

use ratelimit_runtime::{RequestPerMinute, limit_concurrent_requests, limit_request_per_time};

type R = Result<(), RequestPerMinute>;

const MANY: u64 = 1 << 53;
const TEN: u64 = 10;

#[limit_request_per_time("item", 1, Days, const { MANY })]
async fn fixed_window() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, const { MANY }, algorithm = SlidingLog)]
async fn sliding_log() -> R {
    Ok(())
}

#[limit_request_per_time("item", TEN, Days, 1_000_000_000, algorithm = SlidingWindow)]
async fn sliding_window() -> R {
    Ok(())
}

#[limit_request_per_time("item", 5, Milliseconds, 1, algorithm = SlidingWindow(buckets = TEN))]
async fn short_buckets() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1, algorithm = TokenBucket(burst = MANY))]
async fn token_bucket() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, const { MANY }, algorithm = TokenBucket(refill = Interval))]
async fn token_bucket_of_count() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1, algorithm = LeakyBucket(queue = MANY))]
async fn leaky_bucket() -> R {
    Ok(())
}

#[limit_concurrent_requests("item", const { MANY })]
async fn places() -> R {
    Ok(())
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let calls = async {
        fixed_window().await?;
        sliding_log().await?;
        sliding_window().await?;
        short_buckets().await?;
        token_bucket().await?;
        token_bucket_of_count().await?;
        leaky_bucket().await?;
        places().await
    };
    runtime.block_on(calls).unwrap();
}
