//! The attributes: where they may stand, their arguments, and the code around them.

mod algorithm_words;
mod arguments;
mod blocking;
mod blocks;
mod derived_keys;
mod functions;
mod future_size;
mod futures;
mod held;
mod lints;
mod methods;
mod names;
mod neighbours;
mod readme;
mod returned;
mod rules;
mod stacked;
mod traps;

use std::fmt::Debug;

use ratelimit_runtime::{Cause, Limiter, RequestPerMinute};

type R<T = u64> = Result<T, RequestPerMinute>;

/// Calls something that is limited to one call for each key and returns the key: in a limiter of its own the first
/// call runs, the second is refused, one with another key runs.
async fn limits_each_key(call: impl AsyncFn(u64) -> R) {
    Limiter::in_memory()
        .scope(async {
            assert_eq!(call(1).await.unwrap(), 1);
            exceeded(call(1).await);
            assert_eq!(call(2).await.unwrap(), 2);
            exceeded(call(2).await);
        })
        .await;
}

fn exceeded<T: Debug>(answer: R<T>) -> RequestPerMinute {
    refused(answer, Cause::Exceeded)
}

fn refused<T: Debug>(answer: R<T>, cause: Cause) -> RequestPerMinute {
    let refused = answer.unwrap_err();
    assert_eq!(refused.cause(), cause, "{refused}");
    refused
}

/// Takes only what may move to another thread.
fn send<T: Send>(value: T) -> T {
    value
}
