//! An expression that is being typed is an error at its dot, and the function is still there.

use ratelimit_runtime::{RequestPerMinute, limit_request_per_time};

struct Request {
    seller_id: u64,
}

#[limit_request_per_time("item", 1, Days, 1, key = req.)]
async fn save(req: Request) -> Result<u64, RequestPerMinute> {
    Ok(req.seller_id)
}

#[limit_request_per_time("item", 1, Days, 1, key = (req.seller_id, req.), on_store_error = Deny)]
async fn in_a_tuple(req: Request) -> Result<u64, RequestPerMinute> {
    Ok(req.seller_id)
}

fn main() {
    let _ = save(Request { seller_id: 1 });
    let _ = in_a_tuple(Request { seller_id: 1 });
}
