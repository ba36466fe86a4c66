//! The arguments of `limit_concurrent_requests`.

use ratelimit_runtime::{RequestPerMinute, limit_concurrent_requests, limit_request_per_time};

type R = Result<(), RequestPerMinute>;

#[limit_concurrent_requests]
async fn missing() -> R {
    Ok(())
}

#[limit_concurrent_requests("export", 3, leas = "30s", key = 1, cost = 5)]
async fn unknown() -> R {
    Ok(())
}

#[limit_concurrent_requests("export", 3, "30s")]
async fn too_many_unnamed() -> R {
    Ok(())
}

#[limit_concurrent_requests(3)]
async fn no_name() -> R {
    Ok(())
}

#[limit_concurrent_requests("export", 0, lease = 30)]
async fn numbers() -> R {
    Ok(())
}

#[limit_concurrent_requests("export", 3, lease = "500ms", on_limit = Wiat(max = "5s"))]
async fn short_lease() -> R {
    Ok(())
}

#[limit_concurrent_requests("export", 3, lease = "25h", on_missing_key = Deny)]
async fn long_lease() -> R {
    Ok(())
}

#[limit_concurrent_requests("export", 3, on_limit = Wait, permit = a)]
#[limit_concurrent_requests("all", 30, on_limit = Reject)]
#[limit_request_per_time("calls", 1, Minutes, 100, on_limit = Reject, permit = b)]
async fn twice() -> R {
    Ok(())
}

#[limit_request_per_time("calls", 1, Minutes, 100, algorithm = LeakyBucket(queue = 5))]
#[limit_concurrent_requests("export", 3)]
async fn beside_a_leaky_bucket() -> R {
    Ok(())
}

#[limit_concurrent_requests(skip)]
async fn nothing_to_skip() -> R {
    Ok(())
}

#[limit_request_per_time("export", 1, Minutes, 3, algorithm = Concurrent)]
async fn as_an_algorithm() -> R {
    Ok(())
}

struct Client;

#[limit_request_per_time("calls", 1, Minutes, 100, prefetch = 10)]
impl Client {
    #[limit_concurrent_requests("export", 3)]
    async fn beside_a_lease(&self) -> R {
        Ok(())
    }

    #[limit_concurrent_requests(skip)]
    #[limit_request_per_time("more", 1, Minutes, 100)]
    async fn contradiction(&self) -> R {
        Ok(())
    }
}

fn main() {}
