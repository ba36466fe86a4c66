//! A function that returns before the async block that the limit is in.

#![allow(unreachable_code, unused_variables)]

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

#[limit_request_per_time("item", 1, Days, 1)]
fn behind_a_comparison(known: bool) -> BoxFuture {
    if false == known {
        return Box::pin(std::future::ready(Ok(())));
    }
    Box::pin(async move { Ok(()) })
}

#[limit_request_per_time("item", 1, Days, 1)]
fn behind_bars(id: u64, other: Option<u64>) -> BoxFuture {
    if id == 0 || id == 7 || other.is_some() {
        return Box::pin(std::future::ready(Ok(())));
    }
    Box::pin(async move { Ok(()) })
}

enum Id {
    One { id: u64 },
    Two { id: u64 },
    Three,
}

#[limit_request_per_time("item", 1, Days, 1)]
fn behind_patterns(id: Id) -> BoxFuture {
    match id {
        | Id::One { id: 0 } | Id::Two { id: 0 } => return Box::pin(std::future::ready(Ok(()))),
        Id::One { .. } | Id::Two { .. } | Id::Three => {}
    }
    Box::pin(async move { Ok(()) })
}

#[limit_request_per_time("item", 1, Days, 1)]
fn behind_leading_bars(id: Id) -> BoxFuture {
    match id {
        | Id::Three => return Box::pin(std::future::ready(Ok(()))),
        | Id::One { .. } => {}
        | Id::Two { .. } => {}
    }
    Box::pin(async move { Ok(()) })
}

/// As `stream!` does.
macro_rules! make {
    ($($body:tt)*) => {
        async { $($body)* }
    };
}

macro_rules! or {
    ($value:expr, $else:expr) => {
        match $value {
            Some(value) => value,
            None => $else,
        }
    };
}

#[limit_request_per_time("item", 1, Days, 1)]
fn in_a_macro(id: Option<u64>) -> BoxFuture {
    let id: u64 = or!(id, return Box::pin(std::future::ready(Ok(()))));
    Box::pin(async move {
        drop(id);
        Ok(())
    })
}

#[limit_request_per_time("item", 1, Days, 1)]
fn by_a_macro(id: Option<u64>) -> BoxFuture {
    macro_rules! stop {
        ($value:expr) => {
            return Box::pin(std::future::ready($value))
        };
    }
    if id.is_none() {
        stop!(Ok(()));
    }
    Box::pin(async move { Ok(()) })
}

#[limit_request_per_time("item", 1, Days, 1)]
fn behind_a_function_type(id: u64) -> BoxFuture {
    let next: fn(u64) -> u64 = match id {
        0 => return Box::pin(std::future::ready(Ok(()))),
        _ => |id| id,
    };
    Box::pin(async move {
        next(id);
        Ok(())
    })
}

fn call<F: AsyncFn(u64) -> u64>(_: F, id: u64) -> u64 {
    id
}

#[limit_request_per_time("item", 1, Days, 1)]
fn behind_an_async_closure(id: Option<u64>) -> BoxFuture {
    let _id = call(async |id| id + 1, match id {
        None => return Box::pin(std::future::ready(Ok(()))),
        Some(id) => id,
    });
    Box::pin(async move { Ok(()) })
}

/// A `return` of a closure, a function or an async block is its own.
#[limit_request_per_time("item", 1, Days, 1)]
fn fits(id: u64) -> BoxFuture {
    fn next(id: u64) -> u64 {
        return id + 1;
    }
    let is_even = |id: u64| {
        return id % 2 == 0;
    };
    let or = id | next(id);
    let _part = |id: Id| if let Id::One { id } = id { return id } else { 0 };
    let _other = async { return };
    let _next = async |id: u64, by: u64| { return id + by };
    let _each = [1, 2].map(|id| if id == 1 { return 1 } else { return 2 });
    let stopped = make! { if id == 0 { return; } };
    let parse = |text: &str| -> Result<u64, String> {
        if text.is_empty() {
            return Err(text.to_owned());
        }
        Ok(1)
    };
    let _ = parse("");
    let walk = |act: &mut dyn FnMut(u64)| act(id);
    walk(&mut |id| {
        if id > 7 || id == 3 {
            return;
        }
    });
    // `#[instrument]` above the limit makes this of it.
    if false {
        let returned: BoxFuture = loop {};
        return returned;
    }
    return Box::pin(async move {
        if is_even(or) {
            return Ok(());
        }
        Ok(())
    });
}

fn main() {
    let _ = (in_a_branch(1), before_a_return(1), behind_bars(1, None), in_a_macro(None), by_a_macro(None));
    let _ = (behind_a_function_type(1), behind_leading_bars(Id::Three), behind_an_async_closure(None), fits(1));
    let _ = [Id::One { id: 1 }, Id::Two { id: 1 }, Id::Three].map(behind_patterns);
}
