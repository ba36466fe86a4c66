//! Values of the wrong type.

use ratelimit_runtime::{Limiter, RequestPerMinute, limit_request_per_time};

type R<T = ()> = Result<T, RequestPerMinute>;

#[limit_request_per_time("item", 1, Days, count = name.as_str())]
async fn count(name: String) -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, count = share)]
async fn float(share: f64) -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, count = limit)]
async fn non_zero(limit: std::num::NonZeroU32) -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1, cost = rows)]
async fn cost(rows: Vec<u64>) -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, const { -5i64 })]
async fn const_count() -> R {
    Ok(())
}

const TTL: f32 = 5.0;

#[limit_request_per_time("item", TTL, Days, 1)]
async fn ttl_type() -> R {
    Ok(())
}

const BURST: &str = "5";

#[limit_request_per_time("item", 1, Days, 1, algorithm = TokenBucket(burst = BURST))]
async fn burst_type() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1, algorithm = LeakyBucket(queue = "5".len() as i64))]
async fn queue_type() -> R {
    Ok(())
}

const PREFIX: u64 = 5;

#[limit_request_per_time(PREFIX, 1, Days, 1)]
async fn prefix() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1, limiter = 5)]
async fn no_limiter() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1, limiter = limiter)]
async fn owned_limiter(limiter: Limiter) -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1, on_limit = Return(5))]
async fn returned() -> R<u64> {
    Ok(1)
}

fn main() {}
