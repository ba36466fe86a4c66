//! What a later version can do is refused, never ignored.

use ratelimit_runtime::{RequestPerMinute, limit_request_per_time};

type R = Result<(), RequestPerMinute>;

#[limit_request_per_time("item", 1, Days, 1, algorithm = SlidingLog, cost = Elapsed(max = "5s"))]
async fn elapsed() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1, algorithm = SlidingLog, lease = 10)]
async fn lease_of_a_log() -> R {
    Ok(())
}

fn main() {}
