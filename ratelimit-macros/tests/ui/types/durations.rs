//! Constants that cannot be a duration or a number.

use std::time::Duration;

use ratelimit_runtime::{RequestPerMinute, limit_concurrent_requests, limit_request_per_time};

type R = Result<(), RequestPerMinute>;

const CENTURY: Duration = Duration::from_secs(3_651 * 24 * 60 * 60);

#[limit_request_per_time(prefix = "item", period = CENTURY, count = 1)]
async fn long_period() -> R {
    Ok(())
}

#[limit_request_per_time(prefix = "item", period = Duration::from_micros(1_500), count = 1)]
async fn part_of_a_millisecond() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1, on_limit = Wait(max = Duration::ZERO))]
async fn no_wait() -> R {
    Ok(())
}

#[limit_concurrent_requests("place", 1, lease = CENTURY)]
async fn long_lease() -> R {
    Ok(())
}

const BEFORE: i32 = -1;

#[limit_request_per_time("item", BEFORE, Days, 1)]
async fn negative() -> R {
    Ok(())
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let calls = async {
        long_period().await?;
        part_of_a_millisecond().await?;
        no_wait().await?;
        long_lease().await?;
        negative().await
    };
    runtime.block_on(calls).unwrap();
}
