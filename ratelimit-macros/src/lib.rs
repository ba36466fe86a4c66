//! The attributes of [`ratelimit-runtime`](https://docs.rs/ratelimit-runtime), which re-exports
//! them. Depend on that crate, not on this one.

mod args;
mod assigned;
mod duration;
mod entry_points;
mod errors;
mod expand;
mod future;
mod future_type;
mod generate;
mod incomplete;
mod item;
mod kind;
mod names;
mod rate_key;
mod suggest;
mod tokens;
mod value;

#[cfg(doctest)]
#[path = "tests/older_editions.rs"]
mod older_editions;
#[cfg(test)]
mod tests;

use proc_macro::TokenStream;

use crate::kind::AttributeKind;

/// Limits how often an async function runs, or how much time or other resources its calls use.
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
/// Each call is counted before its body runs. A call over the limit returns an error at once,
/// waits, or returns another value: see [`on_limit`](#over-the-limit).
/// [`limit_concurrent_requests`](macro@limit_concurrent_requests) limits how many calls run at
/// once.
///
/// # Arguments
///
/// | argument | meaning | value | default |
/// |---|---|---|---|
/// | `prefix` | name of the rule | string of 1 to 200 bytes, or a constant | required, unless `rule` is given |
/// | `ttl` | number of units in a period | integer or constant, at least 1 | `1` |
/// | `unit` | unit of `ttl` | `Milliseconds`, `Seconds`, `Minutes`, `Hours`, `Days` | required, see below |
/// | `period` | the period, in place of `ttl` and `unit` | duration | |
/// | `count` | limit of a period | integer or expression | required, unless `rule` is given |
/// | `rule` | the whole rule, see [below](#a-constant-rule) | constant `Rule` | |
/// | `key` | the subject that is counted | expression | one counter for all calls |
/// | `algorithm` | the way to count | see [Algorithms](#algorithms) | `FixedWindow` |
/// | `cost` | amount of `count` that a call takes | integer, expression, `Elapsed`, `Settled` | `1` |
/// | `on_limit` | reaction to a refusal | `Reject`, `Wait`, `Wait(max = "30s")`, `Return(expr)` | `Reject` |
/// | `on_store_error` | decision while Redis is away | `Local`, `Allow`, `Deny`, `Wait(max = "1m")` | the limiter's |
/// | `on_missing_key` | decision if the key is `None` | `Deny`, `Skip`, `Shared` | required for an `Option` |
/// | `permit` | variable for the call's `Permit` | a name, or `mut` and a name | |
/// | `limiter` | the limiter to ask | expression for a `&Limiter` | the one of the process |
/// | `prefetch` | permits to take from the store at a time | integer or constant | `1` |
/// | `ban` | time for which a refusal bans the key | duration | none |
/// | `denial_cache` | use of cached denials | `true`, `false` | `true` |
/// | `shadow` | count, but refuse no call | `true`, `false` | `false` |
/// | `blocking` | the function is not async | no value | |
/// | `crate` | path of the runtime | path | `::ratelimit_runtime` |
///
/// - `prefix`: functions with the same prefix, key, algorithm and period share one counter.
/// - `unit`: required, unless `period` or `rule` is given. A path is allowed, too: `TimeUnit::Minutes`.
/// - `count`: a literal or a `const { .. }` block is checked at compile time. Any other expression
///   is evaluated at each call; if it is 0 or negative, no call fits.
/// - `key`: an expression over the arguments and `self`, also over parts of a destructured argument, such
///   as `user` of `Path(user): Path<u64>`. It is borrowed, not moved, and so is each
///   part of a tuple. A string literal is a compile error, as all callers would share one counter.
/// - `cost`: the expression is evaluated once, after the key. A call of cost 0 is free. A literal
///   above the limit is a compile error, and a negative cost is `Cause::Misconfigured`. `Elapsed`
///   and `Settled` charge [the actual use](#costs-that-are-known-at-the-end) when the call ends.
/// - `on_store_error`: with `Local`, this process counts alone until Redis is back. With `Wait`, the
///   call waits until then, and is refused after `max`. The limiter's own setting is `Local`,
///   unless it was changed.
/// - `on_missing_key`: `Deny` refuses the call, `Skip` does not limit it, and `Shared` counts all
///   calls without a key together. Required if the key is an `Option`, and only then.
/// - `permit`: the variable that holds the permit in the body; no argument may have this name.
///   Dropping it ends all that it holds.
/// - `prefetch`: the process spends these permits without asking the store again. Only for
///   `FixedWindow`. `Rule::with_prefetch` says how much of the limit a process may take.
/// - `ban`: the first refusal bans the key for this time, at most 49 days. Each further call is
///   refused as `Cause::Banned`, and does not prolong it. See `Rule::with_ban`. Not with `Wait`,
///   `LeakyBucket`, `prefetch` or `shadow`.
/// - `denial_cache`: with `false`, a call asks the store even if a cached denial would refuse it.
///   See `Rule::with_denial_cache`.
/// - `shadow`: with `true`, the rule decides and counts as usual, but its refusals let the call
///   through. Use it to try out a limit.
/// - `crate`: for crates that re-export the runtime. The path starts with `::`, `crate` or
///   `$crate`.
///
/// Names that begin with `__ratelimit_` are reserved for the generated code.
///
/// A duration is a string: `"250ms"`, `"30s"`, `"5m"`, `"2h"`, `"1d"`, or a sum such as `"1m30s"`. Or
/// it is a constant `Duration` of whole milliseconds.
///
/// ```
/// # use ratelimit_runtime::{RequestPerMinute, limit_request_per_time};
/// # use std::time::Duration;
/// const LONGEST_WAIT: Duration = Duration::from_secs(5);
///
/// #[limit_request_per_time(prefix = "item", period = "90s", count = 100, on_limit = Wait(max = LONGEST_WAIT))]
/// async fn save_item() -> Result<(), RequestPerMinute> {
///     Ok(())
/// }
/// ```
///
/// The first four arguments may be given without their names, in this order, before the others:
///
/// ```
/// # use ratelimit_runtime::{RequestPerMinute, limit_request_per_time};
/// #[limit_request_per_time("item", 1, Minutes, 100, key = (shop, seller), on_limit = Wait(max = "30s"))]
/// async fn save_item(shop: u64, seller: &str) -> Result<(), RequestPerMinute> {
///     Ok(())
/// }
/// ```
///
/// # A constant rule
///
/// `rule` takes a `Rule` in place of `prefix`, `ttl`, `unit`, `period`, `count`, `algorithm`,
/// `prefetch`, `ban`, `denial_cache` and `shadow`. Other code can then name the same rule: to peek at
/// the counter, to reset or ban it, or in a test.
///
/// ```
/// # use ratelimit_runtime::{Limiter, RequestPerMinute, Rule, limit_request_per_time};
/// # use std::time::Duration;
/// const ORDERS: Rule = Rule::new("orders", 100, Duration::from_secs(60));
///
/// #[limit_request_per_time(rule = ORDERS, key = seller)]
/// async fn save_order(seller: u64) -> Result<(), RequestPerMinute> {
///     Ok(())
/// }
///
/// async fn remaining(limiter: &Limiter, seller: u64) -> Result<u64, RequestPerMinute> {
///     Ok(limiter.peek(&ORDERS, seller).await?.remaining())
/// }
/// ```
///
/// The value is the path of a constant or a static, or a constant expression such as
/// `ORDERS.with_shadow(true)`. The rule is checked at compile time: its count is at least 1, and
/// the algorithm can store its numbers. `Elapsed` needs a `SlidingLog`, `Settled` any algorithm but
/// `LeakyBucket` and no prefetch, and a literal `cost` has to fit. A rule with
/// [`LeakyBucket`](#algorithms) or a prefetch allows no second limit.
/// Calls of a rule with the argument `ban` cannot wait. A ban by `Limiter::ban` is waited for.
///
/// # Over the limit
///
/// | `on_limit =` | reaction to a call over the limit |
/// |---|---|
/// | `Reject` | return the error |
/// | `Wait` | wait until the call fits |
/// | `Wait(max = "30s")` | wait; return the error at once if the wait is known to be longer than `max` |
/// | `Return(expr)` | return the value of this expression |
///
/// `max` is a constant. For a time that is known only at run time, call `Limiter::acquire_within` in place of
/// the attribute.
///
/// The expression of `Return` can use the function's arguments and `.await`. The variable `refused`
/// holds the `RequestPerMinute`. The value is returned for every refusal, also if a key is missing,
/// or if the store failed and `on_store_error` does not admit the call. `refused.cause()` tells them
/// apart. If the function also has a limit of the other attribute without `Return`, the value is returned
/// only when this attribute's limit refuses. An invalid rule or a misconfigured server is still an `ERROR` in the log.
///
/// # Algorithms
///
/// For a `count` of C in a period of P:
///
/// | `algorithm =` | admitted calls |
/// |---|---|
/// | `FixedWindow` | C in each window; a window opens with its first call |
/// | `FixedWindow(align = true)` | C in each window; windows start at multiples of P since 1970, UTC |
/// | `SlidingLog` | at most C in any P |
/// | `SlidingWindow(buckets = 6)` | less than 2C in any P |
/// | `SlidingWindow(buckets = 6, weighted = false)` | at most 2C in any P |
/// | `TokenBucket(burst = 200, refill = Interval)` | as many as there are tokens |
/// | `LeakyBucket(queue = 50)` | one every P/C |
///
/// - `FixedWindow`: up to 2C calls are admitted within P where two windows meet.
/// - `SlidingWindow`: P is divided into equal buckets, 1 by default and 1,000 at most. The oldest
///   bucket is weighted by its overlap with the last P. With `weighted = false`, the current bucket and
///   the `buckets - 1` before it are simply added up. Both admit at most C in any time span that is one
///   bucket shorter than P. P in milliseconds must be a multiple of `buckets`.
/// - `TokenBucket`: the bucket starts full, with `burst` tokens, or C by default. C tokens come
///   back in each P: one by one with `refill = Greedy`, the default, or all at its end with
///   `Interval`.
/// - `LeakyBucket`: an admitted call sleeps until its turn. `queue`, which is required, is the
///   number of calls that may wait. With 0, a call runs at once or is over the limit: then `on_limit` decides.
///
/// Numbers are integers, constants of any integer type, or constant expressions of type `u64`. If an
/// algorithm cannot store them (see `Rule::new`), constant ones are a compile error, and others are
/// reported by each call.
///
/// # Costs that are known at the end
///
/// A call can be charged for its actual use. While it runs, a part of `count` is taken, so that
/// concurrent calls cannot spend more than there is. When it ends, that is replaced by the actual
/// use.
///
/// | `cost =` | taken while the body runs | charged when it ends |
/// |---|---|---|
/// | `Elapsed(max = "5s")` | 5,000, or what remains if that is less | milliseconds of the body, rounded up |
/// | `Elapsed` | all that remains | milliseconds of the body, rounded up |
/// | `Settled(max = 4_000, \|outcome\| outcome.tokens())` | 4,000 | the closure's result |
///
/// - `Elapsed`: the algorithm is `SlidingLog`, and `count` is in milliseconds. The time is charged
///   however the body ends: with a value or an error, by a panic, or because the call is dropped.
///   Without `max`, calls of one key run one after another. This wait is no refusal: a call waits
///   for its turn even with `on_limit = Reject`.
/// - `Settled`: `max` is an integer or an expression, as for any cost. The closure gets a reference
///   to the returned value and returns an integer of any type. If that is negative, the call is
///   charged `max`. So is a call that panics or is dropped, which has no outcome.
/// - `Settled` fits all algorithms but `LeakyBucket` and `Concurrent`. A `SlidingLog` holds `max`, and the actual use
///   counts from the end of the call. The others charge `max` when the call begins, and refund the rest
///   to the same window when it ends. The actual use counts from the start of the call, an excess over `max`
///   from its end.
/// - With `on_limit = Wait(max = "5s")`, a `Settled` call also waits for running calls to end. If its turn
///   would come after `max` and no call runs, a `SlidingLog` refuses it at once. The other algorithms do not
///   know the running calls, so they refuse it after `max`.
/// - A refusal of a `Settled` call is not cached, as other processes may refund. A call that waits asks
///   again after 50 ms, and less and less often later, down to once in 250 ms. A plain call of the same
///   counter may still be refused from the cache.
/// - One call can't charge the counter of a `Settled` limit twice, for example by two keys that are equal.
/// - If a process dies, its calls are charged all that they have taken.
/// - The actual use may exceed what was taken, and is charged in full. A `TokenBucket` has to refill all of
///   it, also if that takes many periods.
/// - `Settled`: if less than `max` remains, the call is refused or waits, as `on_limit` says. `Elapsed(max = ..)`
///   then takes what remains.
///
/// ```
/// # use ratelimit_runtime::{RequestPerMinute, limit_request_per_time};
/// # use std::time::Duration;
/// # async fn run(_: &str, _: Duration) -> Result<u64, RequestPerMinute> { Ok(5) }
/// // 20 seconds of queries a minute for each user, and at most 5 s for one query.
/// #[limit_request_per_time("query", 1, Minutes, 20_000, key = user, algorithm = SlidingLog,
///     cost = Elapsed(max = "5s"), permit = permit)]
/// async fn query(user: u64, sql: &str) -> Result<u64, RequestPerMinute> {
///     run(sql, permit.remaining_time()).await // the time that this call may still use
/// }
///
/// struct Answer { tokens: u64 }
///
/// // 100,000 tokens a minute for each user, and for all users together. A failed call uses none.
/// #[limit_request_per_time("tokens", 1, Minutes, 100_000, key = user, algorithm = SlidingLog,
///     cost = Settled(max = 4_000, |outcome| outcome.as_ref().map_or(0, |answer| answer.tokens)))]
/// #[limit_request_per_time("all tokens", 1, Minutes, 100_000, algorithm = TokenBucket, cost = Settled(max = 4_000))]
/// async fn ask(user: u64, prompt: String) -> Result<Answer, RequestPerMinute> {
///     Ok(Answer { tokens: prompt.len() as u64 })
/// }
/// ```
///
/// With `permit = permit`, a call ends, for the limiter, when its permit is dropped: before or after
/// the body itself ends. `drop(permit)` ends it early. A permit that is returned, or moved into a
/// task, keeps it open.
///
/// `Settled` with `permit` has no closure: the body settles the permit, or what it returns does. So
/// a stream can be charged for what it delivered, after the function has returned it:
///
/// ```
/// # use ratelimit_runtime::{Permit, RequestPerMinute, limit_request_per_time};
/// struct Answer { parts: Vec<String>, permit: Permit }
///
/// impl Iterator for Answer {
///     type Item = String;
///
///     fn next(&mut self) -> Option<String> {
///         let part = self.parts.pop()?;
///         self.permit.record(part.len() as u64); // charged when the answer is dropped
///         Some(part)
///     }
/// }
///
/// #[limit_request_per_time("tokens", 1, Minutes, 100_000, key = user, algorithm = SlidingLog,
///     cost = Settled(max = 4_000), permit = permit)]
/// async fn answer(user: u64, parts: Vec<String>) -> Result<Answer, RequestPerMinute> {
///     Ok(Answer { parts, permit })
/// }
/// ```
///
/// If several limits are `Settled`, one of them has the closure. The closure can use arguments that the
/// body does not use. It can also use `Copy` ones, such as integers and shared references, with their values before
/// the body. Return whatever else the cost depends on. The body becomes an async block, so the
/// future stores each argument of the body twice. If the signature does not name the
/// returned type, for instance behind an alias of a future, the closure does: `|outcome: &R| ..`. So it does if
/// `BoxFuture<T>` is an alias of yours whose output is not `T`.
///
/// # The returned type
///
/// | the function returns | a refused call returns |
/// |---|---|
/// | `Result<_, E>` with `E: From<RequestPerMinute>` | `Err(refused.into())` |
/// | `Response` of `axum`, also as an error (feature `axum`) | the status 429, 403, 503 or 500 |
/// | `HttpResponse` of `actix-web` (feature `actix-web`) | the same |
/// | a type of yours | what its `FromRefusal` makes of the refusal |
/// | any type, with `on_limit = Return(expr)` | the value of the expression |
///
/// ```
/// # use ratelimit_runtime::limit_request_per_time;
/// #[limit_request_per_time("hints", 1, Minutes, 10, key = user, on_limit = Return(Vec::new()))]
/// async fn hints(user: u64) -> Vec<String> {
///     vec!["a hint".to_owned()]
/// }
/// ```
///
/// # Supported items
///
/// - An `async fn`: free, a method with any receiver, in a trait with a default body, in the
///   implementation of a trait, generic, `unsafe`. All instances of a generic function share one
///   counter, unless the key tells them apart.
/// - A function that returns a future and ends in its async block: `async move { .. }`,
///   `Box::pin(async move { .. })`, `async move { .. }.boxed()`, `async move { .. }.instrument(span)`.
///   Also `boxed_local`, `fuse`, `in_current_span`, `in_span`, `with_subscriber` and `with_current_subscriber`
///   may stand behind it. The call is counted when the future is first polled. Write `async move` if an
///   argument of the attribute uses one of the function. A `return` before that block is a compile error, as it would
///   not be limited. So is a `let` before it that gives another value to the name of an argument that the limit uses.
/// - An `impl` block: each of its async methods is limited, and `self` may be in the key.
///   `#[limit_request_per_time(skip)]` leaves a method out of all limits. **These methods are not
///   limited:** those that macros generate inside the block; those that return a future by an alias without
///   showing its async block, such as `fn put(&self) -> Answer { self.client.put() }`; those that run an
///   async block themselves, with `block_on` or `spawn`; and those that return a stream.
/// - With `blocking`, a function that is [not async](#functions-that-are-not-async).
///
/// Any other item is a compile error. Where it stands next to other attributes:
///
/// - `#[async_trait]`: above or below it, and on its methods. Once it has expanded, the parts of a
///   destructured argument, `(a, b): (u64, u64)`, have no value yet when the limit is checked. Name
///   the argument and destructure it in the body.
/// - `#[axum::debug_handler]`: above or below it.
/// - `#[tokio::test]` and `#[tokio::main]`: above them, since they make the function synchronous.
/// - `#[tracing::instrument]`: above it to wait inside the span, below it to wait outside.
///
/// # Functions that are not async
///
/// With the word `blocking`, the thread waits where an async function awaits:
///
/// ```
/// # use ratelimit_runtime::{RequestPerMinute, limit_request_per_time};
/// #[limit_request_per_time("report", 1, Minutes, 5, key = user, on_limit = Wait(max = "10s"), blocking)]
/// fn report(user: u64) -> Result<String, RequestPerMinute> {
///     Ok(format!("report of {user}"))
/// }
///
/// assert!(report(4711).is_ok());
/// ```
///
/// - In memory a call is decided at once, on any thread. With `on_limit = Wait` the thread sleeps
///   until the call fits.
/// - On Redis the thread waits for the reply, for at most the deadline, or longer with
///   `on_store_error = Wait`. It needs no tokio runtime:
///   the connections are those of the runtime's background thread.
/// - **A call panics if it has to wait on a thread that runs async tasks**, as they would all stand
///   still. So an async function calls it inside `tokio::task::spawn_blocking`. A call that panics
///   for this reason is not charged. In memory it seldom has to wait, so a test in memory may not
///   show it; the guide's page `testing` has one that does.
/// - All arguments apply. With `Settled`, the body becomes a closure instead of an async block.
/// - An `impl` block limits its async methods only. Write the attribute on each of the others; the
///   limits of the block apply to them, too.
/// - Several limits of a function are one decision here, too. One of them has the word, or all.
/// - `Limiter::scope_blocking` gives a test its own limiter.
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
/// All limits of a function are one decision: the call is admitted by all of them, or charged to
/// none. (A call that is refused as `Cause::Unavailable` may have been charged.) The error names the
/// limit with the longest wait. Limits are asked in source order, those
/// of an `impl` block first. `LeakyBucket` and `prefetch` do not allow a second limit.
///
/// `limiter`, `on_store_error`, `permit` and `crate` apply to the whole call. Write each on one of
/// the attributes. All `limit_request_per_time` of a function share one `on_limit`. All
/// `limit_concurrent_requests` share another.
///
/// Limits with the same prefix, key, algorithm and period have one counter, which a call would be
/// charged for twice. That is a compile error where the attributes are equal word by word. Two
/// limits whose keys differ in the code may have equal keys in a call, such as sender and receiver. If only
/// their keys and costs differ in the code, the counter is charged for both. Otherwise, or with a `Settled` cost, the
/// call is refused as `Cause::Misconfigured`. (In
/// `Limiter::acquire_all`, such charges add up, and the lower limit applies.)
///
/// [`limit_concurrent_requests`](macro@limit_concurrent_requests) takes part in the same decision,
/// with an `on_limit` of its own. If only one of the two has `on_limit = Return(..)`, the function
/// must also return [a type that can hold a refusal](#the-returned-type), for the other one.
///
/// Stacked attributes must be written under their own names. One that is imported under another
/// name, or that `cfg_attr` adds to a method of a limited `impl` block, is a compile error.
///
/// # Order, cancellation, recursion
///
/// First count, key and cost of each limit are evaluated in turn, then `limiter`. Then the limiter
/// is asked, and then the body runs. A borrow by one of these expressions, such as a lock, ends
/// before the next one is evaluated; that by `limiter` ends before the first `.await`.
///
/// A call that is dropped while it waits stops waiting. A call that is dropped while it is being
/// counted may have been counted: such an error admits fewer calls, never more.
///
/// Each call of a recursive function is counted, and holds its own amount. A call never ends if it
/// waits for a place, or for all the remaining time, that an outer call of the same function holds.
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
/// A call takes a place before its body runs. It holds the place until the body ends: with a value
/// or an error, by a panic, or because the call is dropped. If all places are taken, the function
/// returns an error at once, waits, or returns another value, as `on_limit` says.
///
/// A stream that the function returns is read after that. To hold the place meanwhile, move the permit
/// into the stream: see `permit`.
///
/// # Arguments
///
/// | argument | meaning | value | default |
/// |---|---|---|---|
/// | `prefix` | name of the rule | string of 1 to 200 bytes, or a constant | required, unless `rule` is given |
/// | `count` | number of places | integer or expression | required, unless `rule` is given |
/// | `rule` | the whole rule, see [there](macro@limit_request_per_time#a-constant-rule) | constant `Rule` | |
/// | `key` | the subject whose calls are counted | expression | one counter for all calls |
/// | `lease` | time until a dead process loses its places | duration from 1 s to 1 day | `"30s"` |
/// | `on_limit` | reaction to a refusal | `Reject`, `Wait`, `Wait(max = "30s")`, `Return(expr)` | `Reject` |
/// | `on_store_error` | decision while Redis is away | `Local`, `Allow`, `Deny`, `Wait(max = "1m")` | the limiter's |
/// | `on_missing_key` | decision if the key is `None` | `Deny`, `Skip`, `Shared` | required for an `Option` |
/// | `permit` | variable for the call's `Permit` | a name, or `mut` and a name | |
/// | `limiter` | the limiter to ask | expression for a `&Limiter` | the one of the process |
/// | `blocking` | the function is not async | no value | |
/// | `crate` | path of the runtime | path | `::ratelimit_runtime` |
///
/// - `prefix`: functions with the same prefix and key share their places.
/// - `rule`: with `Algorithm::Concurrent`, in place of `prefix`, `count` and `lease`.
/// - `permit`: the place is held until the permit is dropped.
/// - `on_limit`: with `Wait(max = "30s")` a call waits for that time at most, since the end of the
///   wait is not known in advance.
///
/// Otherwise they are [those of `limit_request_per_time`](macro@limit_request_per_time#arguments).
/// `prefix` and `count` may be given without their names, in this order, before the others:
/// `#[limit_concurrent_requests("export", 2, key = user)]`.
///
/// # The lease
///
/// While a call runs, its process renews the lease of its place, so a call may take longer than its
/// lease. If the process dies, its places are free again when their leases expire. A process that
/// was only suspended for longer, or could not reach the store, may have lost its place to another:
///
/// ```
/// # use ratelimit_runtime::{RequestPerMinute, limit_concurrent_requests};
/// # async fn step(_: u32) {}
/// #[limit_concurrent_requests("migration", 1, lease = "1m", on_store_error = Deny, permit = place)]
/// async fn migrate() -> Result<bool, RequestPerMinute> {
///     for number in 0..10 {
///         if !place.is_held() {
///             return Ok(false); // another process may have begun
///         }
///         step(number).await;
///     }
///     Ok(true)
/// }
/// ```
///
/// The body owns the permit: `drop(place)` frees the place early. A permit that is returned, or
/// moved into a task, keeps the place.
///
/// # Supported items
///
/// [Those of `limit_request_per_time`](macro@limit_request_per_time#supported-items): async
/// functions, functions that return a future, `impl` blocks, and functions with `blocking`.
/// `#[limit_concurrent_requests(skip)]` leaves a method out of all limits. The function must be
/// able to [return a refusal](macro@limit_request_per_time#the-returned-type), too. Its
/// `retry_after` is `None`, since the time at which a place becomes free is not known.
///
/// # Several limits
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
/// All limits of a function are one decision, in whatever order they stand. If one of them refuses
/// a call, it is charged to none and takes no place. The `on_limit` of an attribute applies to
/// refusals by limits of the same attribute; several `#[limit_concurrent_requests]` have one. So a call that
/// waits for a place does not wait for a limit that rejects, and for each limit no longer than its `max`.
/// `limiter`, `on_store_error`, `permit` and `crate` apply to the whole call. Write each on one of
/// the attributes.
///
/// # Order, cancellation, recursion
///
/// As for [`limit_request_per_time`](macro@limit_request_per_time#order-cancellation-recursion). A
/// call that is dropped while it runs frees its place. A recursive function takes a place for each
/// call: with fewer places than it needs, it is refused, or with `Wait` it waits for itself forever.
#[proc_macro_attribute]
pub fn limit_concurrent_requests(args: TokenStream, item: TokenStream) -> TokenStream {
    expand::expand(AttributeKind::Places, args.into(), item.into()).into()
}

/// Makes a struct or an enum a key, by its fields.
///
/// ```
/// use ratelimit_runtime::{Key, RateKey, RequestPerMinute, limit_request_per_time};
///
/// #[derive(RateKey)]
/// struct Seller(u64);
///
/// #[derive(RateKey)]
/// struct Account {
///     shop: String,
///     seller: Seller,
/// }
///
/// #[derive(RateKey)]
/// enum Caller {
///     Anonymous,
///     Account(Account),
/// }
///
/// #[limit_request_per_time("search", 1, Minutes, 100, key = caller)]
/// async fn search(caller: &Caller) -> Result<(), RequestPerMinute> {
///     Ok(())
/// }
///
/// let account = Account { shop: "eu".to_owned(), seller: Seller(4711) };
/// assert_eq!(Key::new(&account).to_string(), "(eu,4711)");
/// assert_eq!(Key::new(Caller::Account(account)).to_string(), "(Account,(eu,4711))");
/// assert_eq!(Key::new(Caller::Anonymous).to_string(), "Anonymous");
/// ```
///
/// | type | key |
/// |---|---|
/// | struct with one field | the key of the field |
/// | struct with several fields | the tuple of the fields |
/// | variant without fields | its name |
/// | variant with fields | the tuple of its name and its fields |
///
/// Two values of the type have one key only if each of their fields has. The order of the fields
/// and the names of variants are part of the key: a change starts fresh counters. Names of structs
/// and of fields are not.
///
/// Each field is a key itself, and so is each type parameter. A field that is a float, a union, a
/// struct without fields and an enum without variants are compile errors. An `Option` is no key:
/// use an enum. A field of a type from another crate can be a `DisplayKey`.
///
/// In a crate that knows the runtime by another path, `rate_key` names it:
///
/// ```
/// mod limits {
///     pub use ratelimit_runtime as runtime;
/// }
///
/// #[derive(limits::runtime::RateKey)]
/// #[rate_key(crate = crate::limits::runtime)]
/// struct Seller(u64);
/// # fn main() {}
/// ```
#[proc_macro_derive(RateKey, attributes(rate_key))]
pub fn derive_rate_key(item: TokenStream) -> TokenStream {
    rate_key::derive(item.into()).into()
}
