//! Constants are checked where their function is used.

use ratelimit_runtime::{RequestPerMinute, limit_concurrent_requests, limit_request_per_time};

type R = Result<(), RequestPerMinute>;

const NONE: u64 = 0;
const EMPTY: &str = "";
const MANY: u64 = 5_000;

#[limit_request_per_time("item", 1, Days, const { NONE })]
async fn count() -> R {
    Ok(())
}

#[limit_request_per_time("item", NONE, Days, 1)]
async fn ttl() -> R {
    Ok(())
}

#[limit_request_per_time(EMPTY, 1, Days, 1)]
async fn prefix() -> R {
    Ok(())
}

#[limit_request_per_time("item", MANY, Days, 1)]
async fn long_ttl() -> R {
    Ok(())
}

#[limit_concurrent_requests("item", const { NONE })]
async fn places() -> R {
    Ok(())
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let calls = async {
        count().await?;
        ttl().await?;
        prefix().await?;
        long_ttl().await?;
        places().await
    };
    runtime.block_on(calls).unwrap();
}
