//! Constants that cannot be the rule of a function.

use std::time::Duration;

use ratelimit_runtime::{Algorithm, RequestPerMinute, Rule, limit_concurrent_requests, limit_request_per_time};

type R = Result<(), RequestPerMinute>;

const MINUTE: Duration = Duration::from_secs(60);
const FIXED: Rule = Rule::new("fixed", 100, MINUTE);
const LEAKY: Rule = FIXED.with_algorithm(Algorithm::LeakyBucket { queue: 5 });
static LOG: Rule = FIXED.with_algorithm(Algorithm::SlidingLog);
const SHORT: Rule = Rule::new("short", 5, Duration::from_millis(999)).with_algorithm(Algorithm::Concurrent);
const PLACES: Rule = FIXED.with_algorithm(Algorithm::Concurrent);

#[limit_request_per_time(rule = Rule::new("", 100, MINUTE))]
async fn no_prefix() -> R {
    Ok(())
}

#[limit_request_per_time(rule = Rule::new("item", 100, Duration::from_micros(1)))]
async fn no_period() -> R {
    Ok(())
}

#[limit_request_per_time(rule = Rule::new("item", 0, MINUTE))]
async fn no_count() -> R {
    Ok(())
}

#[limit_request_per_time(rule = Rule::new("item", 10_000_000_000, MINUTE))]
async fn too_large() -> R {
    Ok(())
}

#[limit_request_per_time(rule = FIXED.with_algorithm(Algorithm::SlidingWindow { buckets: 7, weighted: true }))]
async fn unequal_buckets() -> R {
    Ok(())
}

#[limit_request_per_time(rule = PLACES)]
async fn places_per_time() -> R {
    Ok(())
}

#[limit_concurrent_requests(rule = FIXED)]
async fn calls_at_once() -> R {
    Ok(())
}

#[limit_concurrent_requests(rule = SHORT)]
async fn short_lease() -> R {
    Ok(())
}

#[limit_request_per_time(rule = LEAKY, cost = Settled(max = 5, |_| 5))]
async fn settled_slots() -> R {
    Ok(())
}

#[limit_request_per_time(rule = FIXED.with_prefetch(5), cost = Settled(max = 5, |_| 5))]
async fn settled_prefetched_permits() -> R {
    Ok(())
}

#[limit_request_per_time(rule = FIXED, cost = Elapsed(max = "5ms"))]
async fn elapsed_without_a_log() -> R {
    Ok(())
}

#[limit_request_per_time(rule = LOG, cost = Elapsed(max = "101ms"))]
async fn elapsed_above_the_count() -> R {
    Ok(())
}

#[limit_request_per_time(rule = LEAKY, cost = 7)]
async fn cost_above_the_queue() -> R {
    Ok(())
}

#[limit_request_per_time(rule = FIXED)]
#[limit_request_per_time(rule = LEAKY)]
async fn leaky_bucket_beside_another() -> R {
    Ok(())
}

#[limit_request_per_time(rule = FIXED.with_prefetch(5))]
#[limit_concurrent_requests("place", 5)]
async fn prefetch_beside_another() -> R {
    Ok(())
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let calls = async {
        no_prefix().await?;
        no_period().await?;
        no_count().await?;
        too_large().await?;
        unequal_buckets().await?;
        places_per_time().await?;
        calls_at_once().await?;
        short_lease().await?;
        settled_slots().await?;
        settled_prefetched_permits().await?;
        elapsed_without_a_log().await?;
        elapsed_above_the_count().await?;
        cost_above_the_queue().await?;
        leaky_bucket_beside_another().await?;
        prefetch_beside_another().await
    };
    runtime.block_on(calls).unwrap();
}
