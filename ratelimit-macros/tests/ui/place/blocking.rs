//! `blocking`, where it does not belong, and a body that is not async.

use ratelimit_runtime::{RequestPerMinute, limit_concurrent_requests, limit_request_per_time};

type R = Result<(), RequestPerMinute>;

#[limit_request_per_time("item", 1, Days, 1, blocking)]
async fn asynchronous() -> R {
    Ok(())
}

#[limit_concurrent_requests("item", 1, blocking)]
fn future() -> impl Future<Output = R> {
    async { Ok(()) }
}

#[limit_request_per_time("item", 1, Days, 1, blocking)]
const fn constant() -> R {
    Ok(())
}

struct Client;

#[limit_request_per_time("item", 1, Days, 1, blocking)]
impl Client {
    async fn get(&self) -> R {
        Ok(())
    }
}

#[limit_request_per_time("item", 1, Days, 1, blocking = true)]
fn with_a_value() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1, blocking, blocking)]
fn twice() -> R {
    Ok(())
}

#[limit_concurrent_requests("item", 1, blokcing)]
fn misspelt() -> R {
    Ok(())
}

#[limit_request_per_time("item", 1, Days, 1, key = 5, bloking)]
fn misspelt_after_a_name() -> R {
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
#[limit_request_per_time("item", 1, Days, 1)]
async fn main() -> R {
    asynchronous().await?;
    future().await?;
    constant()?;
    with_a_value()?;
    twice()?;
    misspelt()?;
    misspelt_after_a_name()?;
    Client.get().await
}
