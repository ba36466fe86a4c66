//! Attributes that would compile, and limit something else than is meant.

use ratelimit_runtime::{RequestPerMinute, limit_concurrent_requests, limit_request_per_time};

type R = Result<(), RequestPerMinute>;

struct Request {
    seller_id: u64,
}

#[limit_request_per_time("item", 1, Minutes, 100, key = "req.seller_id")]
async fn string_as_key(req: Request) -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Minutes, 100, key = ("req.seller_id", "req.shop"))]
async fn strings_as_key(req: Request) -> R {
    Ok(())
}

#[limit_request_per_time("twice", 1, Minutes, 5)]
#[limit_request_per_time("twice", 60, Seconds, 50)]
async fn one_counter_twice() -> R {
    Ok(())
}

struct Client(u64);

#[limit_concurrent_requests("place", 5, key = self.0)]
impl Client {
    #[limit_concurrent_requests("place", 3, key = self.0)]
    async fn one_place_twice(&self) -> R {
        Ok(())
    }
}

#[limit_request_per_time("item", 1, Days, 10_000_000_000)]
async fn more_than_a_window_stores() -> R {
    Ok(())
}

#[limit_request_per_time("gpu", 1, Days, 14_400_000, algorithm = SlidingLog, cost = Elapsed)]
async fn more_than_a_log_stores() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1, algorithm = TokenBucket(burst = 100_000_000))]
async fn more_than_a_bucket_stores() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1, permit = permit)]
async fn a_permit_that_hides_an_argument(permit: u64) -> R {
    drop(permit);
    Ok(())
}

#[limit_request_per_time("item", ttl = "1m", unit = Minutes, count = 5, on_limit = Wait(10))]
async fn durations() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1, algorithm = TokenBucket { burst: 5 })]
async fn options_in_braces() -> R {
    Ok(())
}

fn main() {}
