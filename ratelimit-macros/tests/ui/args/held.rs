//! Costs that are known when the call ends.

use ratelimit_runtime::{RequestPerMinute, limit_concurrent_requests, limit_request_per_time};

type R<T = u64> = Result<T, RequestPerMinute>;

#[limit_request_per_time("item", 1, Minutes, 20_000, cost = Elapsed(max = "5s"))]
async fn elapsed_in_a_window() -> R {
    Ok(1)
}

#[limit_request_per_time("item", 1, Minutes, 20_000, algorithm = LeakyBucket(queue = 9), cost = Settled(max = 5, |_| 5))]
async fn settled_in_a_queue() -> R {
    Ok(1)
}

#[limit_request_per_time("item", 1, Minutes, 20_000, prefetch = 100, cost = Settled(max = 5, |_| 5))]
async fn settled_from_prefetched_permits() -> R {
    Ok(1)
}

#[limit_request_per_time("item", 1, Minutes, 4_000, algorithm = SlidingLog, cost = Elapsed(max = "5s"))]
async fn longer_than_the_budget() -> R {
    Ok(1)
}

#[limit_request_per_time("item", 1, Minutes, 4_000, algorithm = SlidingLog, cost = Settled(max = 5_000, |_| 5))]
async fn larger_than_the_budget() -> R {
    Ok(1)
}

#[limit_request_per_time("item", 1, Minutes, 4_000, algorithm = SlidingLog, cost = Elapsd(max = "5s"))]
async fn misspelt() -> R {
    Ok(1)
}

#[limit_request_per_time("item", 1, Minutes, 4_000, algorithm = SlidingLog, cost = Elapsed("5s"))]
async fn without_a_name() -> R {
    Ok(1)
}

#[limit_request_per_time("item", 1, Minutes, 4_000, algorithm = SlidingLog, cost = Settled(4_000, |_| 5))]
async fn settled_without_a_name() -> R {
    Ok(1)
}

#[limit_request_per_time("item", 1, Minutes, 4_000, algorithm = SlidingLog, cost = Settled(|_| 5))]
async fn settled_without_a_maximum() -> R {
    Ok(1)
}

#[limit_request_per_time("item", 1, Minutes, 4_000, algorithm = SlidingLog, cost = Settled(max = 5, |_| 5), permit = p)]
async fn settled_with_a_permit() -> R {
    Ok(1)
}

#[limit_concurrent_requests("item", 3, permit = p)]
#[limit_request_per_time("item", 1, Minutes, 4_000, algorithm = SlidingLog, cost = Settled(max = 5, |_| 5))]
async fn settled_with_a_permit_of_another() -> R {
    Ok(1)
}

#[limit_request_per_time("one", 1, Minutes, 4_000, algorithm = SlidingLog, cost = Settled(max = 5, |_| 5))]
#[limit_request_per_time("two", 1, Minutes, 4_000, algorithm = SlidingLog, cost = Settled(max = 5, |_| 5))]
async fn settled_twice() -> R {
    Ok(1)
}

fn main() {}
