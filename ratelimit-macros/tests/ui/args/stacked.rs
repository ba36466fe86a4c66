//! Settings of the whole call, given twice.

use ratelimit_runtime::{Limiter, RequestPerMinute, limit_request_per_time};

type R = Result<(), RequestPerMinute>;

#[limit_request_per_time("one", 1, Days, 1, on_limit = Wait, permit = a)]
#[limit_request_per_time("two", 1, Days, 1, on_limit = Reject, permit = b)]
async fn twice() -> R {
    Ok(())
}

#[limit_request_per_time("one", 1, Days, 1, crate = ::ratelimit_runtime)]
#[limit_request_per_time("two", 1, Days, 1, crate = crate::runtime)]
async fn two_runtimes() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1, algorithm = LeakyBucket(queue = 5))]
#[limit_request_per_time("other", 1, Days, 1)]
async fn leaky() -> R {
    Ok(())
}

struct Client(Limiter);

#[limit_request_per_time("one", 1, Days, 1, limiter = &self.0)]
impl Client {
    #[limit_request_per_time("two", 1, Days, 1, limiter = &self.0)]
    async fn call(&self) -> R {
        Ok(())
    }

    #[limit_request_per_time(skip)]
    #[limit_request_per_time("two", 1, Days, 1)]
    async fn contradiction(&self) -> R {
        Ok(())
    }

    #[limit_request_per_time(skip, count = 5)]
    async fn not_alone(&self) -> R {
        Ok(())
    }
}

#[limit_request_per_time(skip)]
async fn nothing_to_skip() -> R {
    Ok(())
}

#[limit_request_per_time("one", 1, Days, 1)]
#[limit_request_per_time = "two"]
async fn without_parentheses() -> R {
    Ok(())
}

// Nobody has to import a sibling.
#[limit_request_per_time("one", 1, Days, 1)]
#[limit_concurrent_requests("two", 1, max = 5)]
async fn beside_concurrency() -> R {
    Ok(())
}

fn main() {}
