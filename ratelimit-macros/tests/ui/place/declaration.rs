//! A function without a body.

use async_trait::async_trait;
use ratelimit_runtime::{RequestPerMinute, limit_request_per_time};

trait Api {
    #[limit_request_per_time("item", 1, Days, 1)]
    async fn call(&self) -> Result<(), RequestPerMinute>;
}

#[async_trait]
trait Dynamic {
    #[limit_request_per_time("item", 1, Days, 1)]
    async fn call(&self) -> Result<(), RequestPerMinute>;
}

unsafe extern "C" {
    #[limit_request_per_time("item", 1, Days, 1)]
    fn foreign();
}

struct Client;

impl Api for Client {
    async fn call(&self) -> Result<(), RequestPerMinute> {
        Ok(())
    }
}

fn main() {
    drop(Client.call());
}
