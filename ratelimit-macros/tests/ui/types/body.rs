//! Errors of the body stay where they are.

use ratelimit_runtime::{RequestPerMinute, limit_request_per_time};

type R = Result<u64, RequestPerMinute>;

#[limit_request_per_time("item", 1, Days, 1, key = id)]
async fn wrong_type(id: u64) -> R {
    id
}

#[limit_request_per_time("item", 1, Days, 1)]
async fn nothing() -> R {}

#[limit_request_per_time("item", 1, Days, 1)]
async fn semicolon() -> R {
    Ok(1);
}

#[limit_request_per_time("item", 1, Days, 1)]
async fn inside() -> R {
    let one: u64 = "one";
    Ok(one)
}

#[limit_request_per_time("item", 1, Days, 1)]
fn boxed() -> std::pin::Pin<Box<dyn Future<Output = R>>> {
    Box::pin(async { Ok("text") })
}

struct Client;

#[limit_request_per_time("item", 1, Days, 1)]
impl Client {
    async fn method(&self) -> R {
        self.missing()
    }
}

fn main() {}
