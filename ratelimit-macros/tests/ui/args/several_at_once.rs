//! Five mistakes are five errors, and calls of the function none.

use ratelimit_runtime::{RequestPerMinute, limit_request_per_time};

#[limit_request_per_time(prefx = "item", ttl = "1", unit = Minuts, count = 0, count = 5, key = seller)]
async fn save(seller: u64) -> Result<u64, RequestPerMinute> {
    Ok(seller)
}

async fn caller() -> Result<u64, RequestPerMinute> {
    save(1).await
}

fn main() {
    drop(caller());
}
