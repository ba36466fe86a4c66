//! Functions that can't say that they were refused.

use std::pin::Pin;

use futures_util::future::BoxFuture;
use ratelimit_runtime::{RequestPerMinute, limit_concurrent_requests, limit_request_per_time};

#[limit_request_per_time("item", 1, Days, 1)]
async fn plain() -> Vec<String> {
    Vec::new()
}

#[limit_request_per_time("item", 1, Days, 1)]
async fn nothing() {}

#[limit_request_per_time("item", 1, Days, 1, on_limit = Wait)]
async fn waits() -> u64 {
    1
}

#[limit_concurrent_requests("place", 1)]
#[limit_request_per_time("item", 1, Days, 1, on_limit = Return(None))]
async fn returns_for_one_of_two() -> Option<u64> {
    None
}

#[limit_request_per_time("item", 1, Days, 1, on_limit = Return(0))]
async fn another_type() -> Option<u64> {
    None
}

#[limit_request_per_time("item", 1, Days, 1)]
fn impl_future() -> impl Future<Output = String> {
    async { String::new() }
}

#[limit_request_per_time("item", 1, Days, 1)]
fn boxed() -> Pin<Box<dyn Future<Output = String> + Send>> {
    Box::pin(async { String::new() })
}

#[limit_request_per_time("item", 1, Days, 1)]
fn box_future() -> BoxFuture<'static, String> {
    Box::pin(async { String::new() })
}

struct Client;

#[limit_request_per_time("item", 1, Days, 1)]
impl Client {
    async fn nothing(&self) {}

    async fn something(&self) -> Result<u64, RequestPerMinute> {
        Ok(1)
    }
}

macro_rules! of_macro {
    ($type:ty) => {
        #[limit_request_per_time("item", 1, Days, 1, crate = $crate::facade::ratelimit_runtime)]
        async fn of_macro() -> $type {
            todo!()
        }
    };
}
of_macro!(Vec<u8>);

mod facade {
    pub use ratelimit_runtime;
}

fn main() {}
