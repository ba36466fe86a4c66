//! `ttl` and `prefix` are known when compiling.

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

fn main() {}
