//! Limits that can't be joined into one decision.

use ratelimit_runtime::limit_request_per_time as limited;
use ratelimit_runtime::{RequestPerMinute, limit_request_per_time};

type R = Result<(), RequestPerMinute>;

#[limit_request_per_time("one", 1, Days, 1)]
#[limited("two", 1, Days, 1)]
async fn renamed_below() -> R {
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
}

fn main() {
    drop((renamed_below(), Client.renamed(), Client.by_cfg_attr()));
}
