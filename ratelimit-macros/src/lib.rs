//! The attributes of [`ratelimit-runtime`](https://docs.rs/ratelimit-runtime), which re-exports them:
//! depend on that crate, not on this one.

mod args;
mod duration;
mod entry_points;
mod errors;
mod expand;
mod future;
mod generate;
mod item;
mod kind;
mod suggest;
mod tokens;
mod value;

#[cfg(test)]
mod tests;

use proc_macro::TokenStream;

use crate::kind::AttributeKind;

/// Limits how often an async function runs; or how much time, or of anything else that is known when it ends, it uses.
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
/// or waits, or returns something else: see `on_limit`. How many calls run at once is limited by
/// [`limit_concurrent_requests`](macro@limit_concurrent_requests).
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
/// | `cost` | how much of `count` this call takes: an integer or expression, evaluated once, after the key. A call of cost 0 is free. A literal that never fits is a compile error. Or what is known when the call ends: see [Costs that are known at the end](#costs-that-are-known-at-the-end) | `1` |
/// | `on_limit` | `Reject`: return the error. `Wait`: wait as long as it takes. `Wait(max = "30s")`: wait, but not if it would take longer. `Return(expr)`: return this instead; it sees the arguments, may `.await`, and `refused` names the `RequestPerMinute` | `Reject` |
/// | `on_store_error` | if Redis does not answer: `Local` (this process counts alone until it is back), `Allow` or `Deny` | the limiter's, which is `Local` at first |
/// | `on_missing_key` | if the key is `None`: `Deny` (refuse the call), `Skip` (do not limit it) or `Shared` (all calls without a key share one counter). Needed if the key is an `Option`, and only then | |
/// | `permit` | a name: the body finds its `Permit` there. What a permit holds ends when it is dropped | |
/// | `limiter` | an expression giving a `&Limiter` | the one of the process |
/// | `prefetch` | permits that a process takes from the store at a time and spends without asking it again, with `FixedWindow` only: an integer or a constant `u64`. See `Rule::with_prefetch` for what a process may hold of the limit | `1` |
/// | `denial_cache` | `false`: ask the store also when it is known to refuse, see `Rule::with_denial_cache` | `true` |
/// | `shadow` | `true`: the rule is only tried out: it decides and counts, and lets through what it refuses | `false` |
/// | `crate` | where the runtime is, for crates that re-export it: a path starting with `::`, `crate` or `$crate` | `::ratelimit_runtime` |
///
/// Durations in quotes are written `"250ms"`, `"30s"`, `"5m"`, `"2h"`, `"1d"`, or as a sum, `"1m30s"`.
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
/// # Costs that are known at the end
///
/// With `algorithm = SlidingLog`, a call may be charged what it has really used. While it runs, so much of `count` is held that calls
/// which run at the same time can't spend more than there is; when it ends, what it has used is charged instead.
///
/// | `cost =` | what is held while the body runs | what is charged when it ends |
/// |---|---|---|
/// | `Elapsed(max = "5s")` | 5,000, or what remains if that is less | the milliseconds that the body took, rounded up; `count` is in milliseconds |
/// | `Elapsed` | all that remains, so calls of one key run one after another: one whose turn has not come waits for it, whatever `on_limit` says | the same |
/// | `Settled(max = 4_000, \|outcome\| outcome.tokens())` | 4,000, an integer or expression like any cost | what the closure says, an integer of any type; it is given a reference to what the function returns |
///
/// The time is charged however the body ends: with a value or an error, by a panic, or when the call is dropped. Where the outcome says the cost,
/// a call that panics or is dropped has none, and is charged all that was held; so is any call whose process dies. What was used counts from the end of the call. It may be more than what was held; then so
/// much more counts. A call of which nothing is left to hold is refused, or waits: see `on_limit`.
///
/// ```
/// # use ratelimit_runtime::{RequestPerMinute, limit_request_per_time};
/// # use std::time::Duration;
/// # async fn run(_: &str, _: Duration) -> Result<u64, RequestPerMinute> { Ok(5) }
/// // 20 seconds of queries a minute for each user, of which one takes 5 s at most.
/// #[limit_request_per_time("query", 1, Minutes, 20_000, key = user, algorithm = SlidingLog, cost = Elapsed(max = "5s"), permit = permit)]
/// async fn query(user: u64, sql: &str) -> Result<u64, RequestPerMinute> {
///     run(sql, permit.remaining_time()).await // what this call may still use, as a limit for the database
/// }
///
/// struct Answer { tokens: u64 }
///
/// // 100,000 tokens a minute for each user, and the same for all. A call that fails has used none.
/// #[limit_request_per_time("tokens", 1, Minutes, 100_000, key = user, algorithm = SlidingLog,
///     cost = Settled(max = 4_000, |outcome| outcome.as_ref().map_or(0, |answer| answer.tokens)))]
/// #[limit_request_per_time("all tokens", 1, Minutes, 100_000, algorithm = SlidingLog, cost = Settled(max = 4_000))]
/// async fn ask(user: u64, prompt: String) -> Result<Answer, RequestPerMinute> {
///     Ok(Answer { tokens: prompt.len() as u64 })
/// }
/// ```
///
/// With `permit = permit`, the call ends for the limiter when the body drops the permit, be that before or after the body ends:
/// `drop(permit)` ends it early, a permit that is returned or moved into a task goes on. With `Settled` the permit is not the
/// body's. Its closure is written once, also where several limits are settled. It can use arguments that the body does not take with it, such as integers and
/// references. The body is then an async block of its own, which costs as much memory again as the arguments it uses, and where the function's type does not
/// say what it returns (an alias of a future), the closure says what it is given: `|outcome: &R| ..`.
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
///   `#[limit_request_per_time(skip)]` leaves a method out of all limits. Functions that macros inside of the
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
/// the whole call, and are given on one of them. `LeakyBucket` and `prefetch` stand alone.
///
/// [`limit_concurrent_requests`](macro@limit_concurrent_requests) beside them is part of the same decision, with an `on_limit` of its own.
///
/// Each is written under its name: one that is imported under another, or is added to a method of
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
/// function that calls itself is counted; where it holds something, so does each of them.
/// One that waits for what its own outer call holds, a place or all the time that remains, waits for ever.
#[proc_macro_attribute]
pub fn limit_request_per_time(args: TokenStream, item: TokenStream) -> TokenStream {
    expand::expand(AttributeKind::PerTime, args.into(), item.into()).into()
}

/// Limits how many calls of an async function run at once, in all processes that share a store.
///
/// ```
/// # use ratelimit_runtime::{RequestPerMinute, limit_concurrent_requests};
/// # struct Table;
/// #[limit_concurrent_requests(prefix = "export", count = 2, key = user, on_limit = Wait(max = "5s"))]
/// async fn export(user: u64) -> Result<Table, RequestPerMinute> {
///     // two at once for each user; a third one waits for up to five seconds
///     Ok(Table)
/// }
/// ```
///
/// A call takes a place before its body runs and holds it until the body has ended, by a value or an error, by a panic, or because the call
/// was dropped. If all places are taken, the function returns at once, or waits, or returns something else: see `on_limit`.
///
/// # Arguments
///
/// | argument | value | default |
/// |---|---|---|
/// | `prefix` | string of 1 to 200 bytes, or a constant: the counter's name. Functions with the same prefix and key share their places | required |
/// | `count` | how many calls may run at once. A literal or `const { .. }` is checked when compiling, any other expression is evaluated at each call; at 0 no call ever fits | required |
/// | `key` | whose calls are counted: an expression over the arguments and `self`. It is borrowed, not moved, and so is each part of a tuple | one counter for all |
/// | `lease` | for how long a place stays taken whose process has died: a duration in quotes, `"1s"` to `"1d"` | `"30s"` |
/// | `on_limit` | `Reject`: return the error. `Wait`: wait as long as it takes. `Wait(max = "30s")`: wait, but not longer. `Return(expr)`: return this instead; it sees the arguments, may `.await`, and `refused` names the `RequestPerMinute` | `Reject` |
/// | `on_store_error` | if Redis does not answer: `Local` (this process counts alone until it is back), `Allow` or `Deny` | the limiter's, which is `Local` at first |
/// | `on_missing_key` | if the key is `None`: `Deny` (refuse the call), `Skip` (do not limit it) or `Shared` (all calls without a key share one counter). Needed if the key is an `Option`, and only then | |
/// | `permit` | a name: the body finds its `Permit` there, and the place is held until it is dropped | |
/// | `limiter` | an expression giving a `&Limiter` | the one of the process |
/// | `crate` | where the runtime is, for crates that re-export it: a path starting with `::`, `crate` or `$crate` | `::ratelimit_runtime` |
///
/// `prefix` and `count` may go without their names, in this order, before the others: `#[limit_concurrent_requests("export", 2, key = user)]`.
/// Durations in quotes are written `"250ms"`, `"30s"`, `"5m"`, `"2h"`, `"1d"`, or as a sum, `"1m30s"`.
///
/// # The lease
///
/// While a call runs, its process renews its lease: a call may take longer than that. If the process dies, its places are free again
/// when their leases have ended. One that was only stopped for longer, or could not reach the store, may find that somebody else has its place:
///
/// ```
/// # use ratelimit_runtime::{RequestPerMinute, limit_concurrent_requests};
/// # async fn step(_: u32) {}
/// #[limit_concurrent_requests("migration", 1, lease = "1m", on_store_error = Deny, permit = place)]
/// async fn migrate() -> Result<bool, RequestPerMinute> {
///     for number in 0..10 {
///         if !place.is_held() {
///             return Ok(false); // somebody else may have begun
///         }
///         step(number).await;
///     }
///     Ok(true)
/// }
/// ```
///
/// The name that `permit` gives is the body's: `drop(place)` ends the call's hold on its place early, and a permit that is returned, or moved into a task, goes
/// on to hold it.
///
/// # Where it stands
///
/// Where [`limit_request_per_time`](macro@limit_request_per_time#where-it-stands) may stand: on async functions, functions that return a future, and `impl` blocks,
/// where `#[limit_concurrent_requests(skip)]` leaves a method out of all limits. The function has to be able to
/// [say that a call was refused](macro@limit_request_per_time#what-the-function-returns), too. In the error,
/// `retry_after` is `None`: when a place becomes free nobody knows.
///
/// # Beside other limits
///
/// ```
/// # use ratelimit_runtime::{RequestPerMinute, limit_concurrent_requests, limit_request_per_time};
/// #[limit_concurrent_requests("export", 2, key = user, on_limit = Wait)]
/// #[limit_request_per_time("exports", 1, Days, 100, key = user, on_limit = Reject)]
/// async fn export(user: u64) -> Result<(), RequestPerMinute> {
///     Ok(())
/// }
/// ```
///
/// All limits of a function are one decision, whatever their order: a call that one of them refuses is charged to none and takes no place.
/// Each attribute's `on_limit` answers for what its limits refuse. `limiter`, `on_store_error`, `permit` and
/// `crate` are given on one of them, for the whole call; several `#[limit_concurrent_requests]` have one `on_limit`.
///
/// # Order, cancellation, recursion
///
/// As in [`limit_request_per_time`](macro@limit_request_per_time#order-cancellation-recursion). A call that is dropped while it waits stops waiting, and one that is dropped
/// while it runs frees its place. A function that calls itself takes a place for each call: with fewer than it needs it waits for itself.
#[proc_macro_attribute]
pub fn limit_concurrent_requests(args: TokenStream, item: TokenStream) -> TokenStream {
    expand::expand(AttributeKind::Concurrent, args.into(), item.into()).into()
}
