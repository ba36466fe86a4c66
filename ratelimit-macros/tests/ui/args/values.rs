//! Values of the wrong kind.

use ratelimit_runtime::{RequestPerMinute, limit_request_per_time};

type R = Result<(), RequestPerMinute>;

#[limit_request_per_time(prefix = 5, ttl = 0, unit = "Minutes", count = -1)]
async fn required() -> R {
    Ok(())
}

#[limit_request_per_time(prefix = "", ttl = 1.5, unit = Fortnights, count = 0x1_0000_0000_0000_0000)]
async fn required_again() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1, cost = "5", prefetch = 0, shadow = yes)]
async fn numbers_and_flags() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1, algorithm = SlidingLog, prefetch = 10)]
async fn lease_of_a_log() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 5i32, on_store_error = Fail, on_missing_key = Denny, crate = ratelimit)]
async fn words() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1, algorithm = FixdWindow, on_limit = Wiat, permit = 5, limiter = )]
async fn more_words() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1, algorithm = FixedWindow(aling = true), on_limit = Wait("30s"))]
async fn options() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1, algorithm = SlidingLog(buckets = 1), on_limit = Wait(max = "30 sec"))]
async fn more_options() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1, on_limit = Return)]
async fn nothing_to_return() -> R {
    Ok(())
}

#[limit_request_per_time("item", 20_000_000_000_000, Days, 1, on_missing_key = Deny)]
async fn against_each_other() -> R {
    Ok(())
}

#[limit_request_per_time("item", 3_651, Days, 1)]
async fn too_long() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1, algorithm = SlidingWindow(buckets = 0))]
async fn no_buckets() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1, algorithm = SlidingWindow(buckets = 2_000))]
async fn too_many_buckets() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Seconds, 5, algorithm = SlidingWindow(buckets = 7), cost = 6)]
async fn unequal_buckets() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1, algorithm = TokenBucket(burst = 0, refil = Interval))]
async fn no_burst() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1, algorithm = TokenBucket(burst = 5, refill = Refill::Eager), cost = 6)]
async fn refill() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1, algorithm = TokenBucket(burst = 5), cost = 6)]
async fn larger_than_the_bucket() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1, algorithm = LeakyBucket)]
async fn no_queue() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 9, algorithm = LeakyBucket(queue = 5), cost = 7)]
async fn larger_than_the_queue() -> R {
    Ok(())
}

fn main() {}
