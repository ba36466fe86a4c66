//! Limits that can't be joined into one decision.

use ratelimit_runtime::limit_request_per_time as limited;
use ratelimit_runtime::limit_concurrent_requests as at_once;
use ratelimit_runtime::{RequestPerMinute, limit_concurrent_requests, limit_request_per_time};

type R = Result<(), RequestPerMinute>;

#[limit_request_per_time("one", 1, Days, 1)]
#[limited("two", 1, Days, 1)]
async fn renamed_below() -> R {
    Ok(())
}

// What the first one generates is called otherwise.
#[limit_request_per_time("one", 1, Days, 1)]
#[limit_request_per_time("two", 1, Days, 1)]
#[limited("three", 1, Days, 1)]
async fn renamed_below_two() -> R {
    Ok(())
}

#[limit_request_per_time("one", 1, Days, 1)]
#[at_once("two", 1)]
async fn renamed_place_below() -> R {
    Ok(())
}

#[limit_concurrent_requests("one", 1)]
#[limited("two", 1, Days, 1)]
async fn renamed_below_a_place() -> R {
    Ok(())
}

struct Client;

#[limit_request_per_time("one", 1, Days, 1)]
impl Client {
    #[limited("two", 1, Days, 1)]
    async fn renamed(&self) -> R {
        Ok(())
    }

    #[cfg_attr(all(), limit_request_per_time("two", 1, Days, 1))]
    async fn by_cfg_attr(&self) -> R {
        Ok(())
    }

    #[at_once("two", 1)]
    async fn renamed_place(&self) -> R {
        Ok(())
    }

    #[cfg_attr(all(), limit_concurrent_requests("two", 1))]
    async fn place_by_cfg_attr(&self) -> R {
        Ok(())
    }
}

fn main() {
    drop((renamed_below(), renamed_below_two(), renamed_place_below(), renamed_below_a_place()));
    drop((Client.renamed(), Client.by_cfg_attr(), Client.renamed_place(), Client.place_by_cfg_attr()));
}
