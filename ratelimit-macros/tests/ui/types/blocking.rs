//! Expressions of a function that is not async, and what it returns.

use ratelimit_runtime::{RequestPerMinute, limit_request_per_time};

type R = Result<(), RequestPerMinute>;

async fn cached() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1, on_limit = Return(cached().await), blocking)]
fn awaits() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1, blocking)]
fn returns_nothing() {}

#[limit_request_per_time("item", 1, Days, 1, blocking)]
fn other_error() -> Result<(), std::io::Error> {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 9, algorithm = SlidingLog, cost = Settled(max = 5, |n| n), blocking)]
fn settled(text: String) -> Result<String, RequestPerMinute> {
    Ok(text)
}

fn main() {}
