//! A function that is not async.

use ratelimit_runtime::{RequestPerMinute, limit_concurrent_requests, limit_request_per_time};

type R = Result<(), RequestPerMinute>;

#[limit_request_per_time("item", 1, Days, 1)]
fn sync() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1)]
const fn constant() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1)]
fn future() -> impl Future<Output = R> {
    std::future::ready(Ok(()))
}

#[limit_request_per_time("item", 1, Days, 1)]
fn boxed() -> std::pin::Pin<Box<dyn Future<Output = R>>> {
    let future = Box::pin(async { Ok(()) });
    future
}

#[tokio::test]
#[limit_request_per_time("item", 1, Days, 1)]
async fn below_tokio_test() -> R {
    Ok(())
}

#[tokio::test]
#[limit_concurrent_requests("item", 1)]
async fn place_below_tokio_test() -> R {
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
#[limit_request_per_time("item", 1, Days, 1)]
async fn below_tokio_main() -> R {
    Ok(())
}

struct Client;

impl Client {
    #[limit_request_per_time("item", 1, Days, 1)]
    pub fn method(&self) -> R {
        Ok(())
    }
}

#[tokio::main(flavor = "current_thread")]
#[limit_request_per_time("item", 1, Days, 1)]
async fn main() -> R {
    sync()?;
    constant()?;
    future().await?;
    boxed().await?;
    Client.method()
}
