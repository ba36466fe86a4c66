//! A function that returns before the async block that the limit is in.

use std::pin::Pin;

use ratelimit_runtime::{RequestPerMinute, limit_request_per_time};

type R = Result<(), RequestPerMinute>;
type BoxFuture = Pin<Box<dyn Future<Output = R> + Send>>;

#[limit_request_per_time("item", 1, Days, 1)]
fn in_a_branch(id: u64) -> BoxFuture {
    if id == 0 {
        return Box::pin(std::future::ready(Ok(())));
    }
    Box::pin(async move { Ok(()) })
}

#[limit_request_per_time("item", 1, Days, 1)]
fn before_a_return(id: u64) -> BoxFuture {
    let id = match id {
        0 => return Box::pin(std::future::ready(Ok(()))),
        id => id,
    };
    return Box::pin(async move {
        drop(id);
        Ok(())
    });
}

/// Those of closures, functions and async blocks are their own.
#[limit_request_per_time("item", 1, Days, 1)]
fn fits(id: u64) -> BoxFuture {
    fn next(id: u64) -> u64 {
        return id + 1;
    }
    let is_even = |id: u64| {
        return id % 2 == 0;
    };
    let or = id | next(id);
    let _other = async { return };
    return Box::pin(async move {
        if is_even(or) {
            return Ok(());
        }
        Ok(())
    });
}

fn main() {
    let _ = (in_a_branch(1), before_a_return(1), fits(1));
}
