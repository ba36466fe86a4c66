//! The attribute of [`ratelimit-runtime`](https://docs.rs/ratelimit-runtime), which re-exports it:
//! depend on that crate, not on this one.

mod args;
mod duration;
mod errors;
mod expand;
mod function;
mod future;
mod prologue;
mod suggest;
mod value;

#[cfg(test)]
mod tests;

use proc_macro::TokenStream;

use crate::args::Kind;

/// Limits how often an async function runs.
///
/// ```
/// # use ratelimit_runtime::{RequestPerMinute, limit_request_per_time};
/// # struct SaveItem { seller_id: u64 }
/// # struct Saved;
/// # struct SaveItemError;
/// # impl From<RequestPerMinute> for SaveItemError { fn from(_: RequestPerMinute) -> Self { Self } }
/// #[limit_request_per_time(prefix = "item", ttl = 1, unit = Minutes, count = 100, key = req.seller_id)]
/// async fn save_item(req: SaveItem) -> Result<Saved, SaveItemError> {
///     // 100 times a minute for each seller; SaveItemError: From<RequestPerMinute>
///     Ok(Saved)
/// }
/// ```
///
/// Before the body runs, the call is counted. If it is one too many, the function returns at once,
/// or waits, or returns something else: see `on_limit`.
///
/// # Arguments
///
/// | argument | value | default |
/// |---|---|---|
/// | `prefix` | string of 1 to 200 bytes, or a constant: the counter's name. Functions with the same prefix, key, algorithm and period share one counter | required |
/// | `ttl` | the period, in units: an integer or constant `u64`, at least 1 | `1` |
/// | `unit` | `Milliseconds`, `Seconds`, `Minutes`, `Hours` or `Days`, also written `TimeUnit::Minutes` | required |
/// | `count` | how many calls a period lets through. A literal or `const { .. }` is checked when compiling, any other expression is evaluated at each call; at 0 no call ever fits | required |
/// | `key` | who is counted: an expression over the arguments and `self`. It is borrowed, not moved, and so is each part of a tuple | one counter for all |
/// | `algorithm` | how calls are counted: see [Algorithms](#algorithms) | `FixedWindow` |
/// | `cost` | how much of `count` this call takes: an integer or expression, evaluated once, after the key. A call of cost 0 is free. A literal that never fits is a compile error. Not available yet: `Elapsed(max = "5s")`, the milliseconds the call really took, with `SlidingLog` only | `1` |
/// | `on_limit` | `Reject`: return the error. `Wait`: wait as long as it takes. `Wait(max = "30s")`: wait, but not if it would take longer. `Return(expr)`: return this instead; it sees the arguments, may `.await`, and `refused` names the `RequestPerMinute` | `Reject` |
/// | `on_store_error` | if Redis does not answer: `Local` (this process counts alone until it is back), `Allow` or `Deny` | the limiter's, which is `Local` at first |
/// | `on_missing_key` | if the key is `None`: `Deny` (refuse the call), `Skip` (do not limit it) or `Shared` (all calls without a key share one counter). Needed if the key is an `Option`, and only then | |
/// | `permit` | a name: the body finds its `Permit` there | |
/// | `limiter` | an expression giving a `&Limiter` | the one of the process |
/// | `lease` | how many calls a process takes of the store at a time, to let them through without asking, with `FixedWindow` only: an integer or a constant `u64`. See `Rule::lease` for what a process may hold of the limit | `1` |
/// | `denial_cache` | `false`: ask the store also when it is known to refuse, see `Rule::denial_cache` | `true` |
/// | `shadow` | `true`: the rule is only tried out: it decides and counts, and lets through what it refuses | `false` |
/// | `crate` | where the runtime is, for crates that re-export it: a path starting with `::`, `crate` or `$crate` | `::ratelimit_runtime` |
///
/// What is not available yet is a compile error, never ignored. Durations in quotes are written
/// `"250ms"`, `"30s"`, `"5m"`, `"2h"`, `"1d"`, or as a sum, `"1m30s"`.
///
/// The first four may go without their names, in this order, before the others:
///
/// ```
/// # use ratelimit_runtime::{RequestPerMinute, limit_request_per_time};
/// #[limit_request_per_time("item", 1, Minutes, 100, key = (shop, seller), on_limit = Wait(max = "30s"))]
/// async fn save_item(shop: u64, seller: &str) -> Result<(), RequestPerMinute> {
///     Ok(())
/// }
/// ```
///
/// # Algorithms
///
/// For a `count` of C in a period of P:
///
/// | `algorithm =` | how calls are counted |
/// |---|---|
/// | `FixedWindow` | C in each window, which opens with its first call. Where two windows meet, up to 2C within P |
/// | `FixedWindow(align = true)` | the same, but windows lie on multiples of P since 1970, UTC |
/// | `SlidingLog` | never more than C in any P |
/// | `SlidingWindow(buckets = 6)` | in so many equal parts of P, the oldest weighted by how much of it the last P still overlaps: less than 2C in any P. `buckets` is 1 if not given, at most 1,000, and P in milliseconds is a multiple of it |
/// | `TokenBucket(burst = 200, refill = Interval)` | calls take tokens from a bucket that holds `burst` (C if not given) and starts full; C come back in each P, one by one (`refill = Greedy`, if not given) or all at its end (`Interval`) |
/// | `LeakyBucket(queue = 50)` | one call every P/C: an admitted call sleeps until its turn. `queue`, which must be given, is how many may wait; with 0 a call runs at once or is refused |
///
/// The numbers are integers or constant `u64`s. What the algorithm can't store
/// (see `Rule::new`) is a compile error if it is constant, and otherwise reported by each call.
///
/// # What the function returns
///
/// It has to be able to say that a call was refused, whatever `on_limit` is: `Result<_, E>` with
/// `E: From<RequestPerMinute>`, or a type of yours that implements `FromRefusal`. `Return(expr)` is
/// returned when a limit is reached; when the limiter can't decide (a missing key, a store that is
/// down under `Deny`), that is still returned as an error.
///
/// # Where it stands
///
/// - On an `async fn`: free, a method with any receiver, in a trait with a default body, in the
///   implementation of a trait, generic, `unsafe`. All instances of a generic function share one
///   counter, unless the key tells them apart.
/// - On a function that returns a future and ends in the block it consists of: `async move { .. }`,
///   `Box::pin(async move { .. })`, `async move { .. }.boxed()`. The call is counted when the future
///   is first polled. Write `async move` if the key uses an argument.
/// - On an `impl` block: it limits each of its async methods, `self` may be in the key, and
///   `#[limit_request_per_time(skip)]` leaves a method out. Functions that macros inside of the
///   block produce are not seen.
/// - Above or below `#[async_trait]` and on its methods. Once `#[async_trait]` has run, an argument
///   that is taken apart, `(a, b): (u64, u64)`, has no parts yet when the limit is checked: name the
///   argument and take it apart in the body.
/// - Above `#[tokio::test]` and `#[tokio::main]`, which make the function synchronous. Above
///   `#[tracing::instrument]` to wait inside of the span, below it to wait outside.
///
/// Anywhere else it is a compile error. It never stands there and does nothing.
///
/// # Several limits
///
/// ```
/// # use ratelimit_runtime::{RequestPerMinute, limit_request_per_time};
/// #[limit_request_per_time("seller", 1, Seconds, 5, key = seller)]
/// #[limit_request_per_time("all", 1, Minutes, 1000, on_limit = Wait(max = "10s"))]
/// async fn save_item(seller: u64) -> Result<(), RequestPerMinute> {
///     Ok(())
/// }
/// ```
///
/// This is one decision: the call gets through all of the limits or is charged to none, and the
/// error names the limit with the longest wait. They are asked in the order they are written, those
/// of an `impl` block first. `limiter`, `on_limit`, `on_store_error`, `permit` and `crate` hold for
/// the whole call, and are given on one of them. `LeakyBucket` and `lease` stand alone.
///
/// Each is written under this name: one that is imported under another, or is added to a method of
/// a limited `impl` block by `cfg_attr`, can't be joined with the others and is a compile error.
///
/// # Order, cancellation, recursion
///
/// First `limiter` is evaluated, then count, key and cost of one limit after the other, then the
/// limiter is asked, then the body runs. What one of them borrows, a lock for instance, is released
/// before the next is evaluated.
///
/// A call that is dropped while it waits stops waiting. One that is dropped while it is being
/// counted may have been counted: what goes wrong admits fewer calls, not more. Each call of a
/// function that calls itself is counted.
#[proc_macro_attribute]
pub fn limit_request_per_time(args: TokenStream, item: TokenStream) -> TokenStream {
    expand::expand(Kind::PerTime, args.into(), item.into()).into()
}

/// Limits how many calls of an async function run at once.
#[proc_macro_attribute]
pub fn limit_concurrent_requests(args: TokenStream, item: TokenStream) -> TokenStream {
    expand::expand(Kind::Concurrent, args.into(), item.into()).into()
}
