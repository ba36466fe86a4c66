//! One attribute on an async function, and no caller gets through more often than its algorithm
//! promises: in one process, or in many that share one Redis.
//!
//! ```
//! use ratelimit_runtime::{RequestPerMinute, limit_request_per_time};
//!
//! struct Item { seller: u64 }
//!
//! #[limit_request_per_time(prefix = "item", ttl = 1, unit = Minutes, count = 2, key = item.seller)]
//! async fn save_item(item: Item) -> Result<(), RequestPerMinute> {
//!     Ok(())
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! assert!(save_item(Item { seller: 4711 }).await.is_ok());
//! assert!(save_item(Item { seller: 4711 }).await.is_ok());
//! assert!(save_item(Item { seller: 4711 }).await.is_err()); // until the minute is over
//! assert!(save_item(Item { seller: 4712 }).await.is_ok());
//! # });
//! ```
//!
//! The attribute's arguments are described at [`limit_request_per_time`]. The function's error type needs a
//! `From<RequestPerMinute>`. Without further ado limits are counted in this process's memory; to share them, install a limiter
//! once, at the start of the program:
//!
//! ```no_run
//! # async fn start() -> Result<(), ratelimit_runtime::SetupError> {
//! use ratelimit_runtime::Limiter;
//!
//! Limiter::connect("redis://127.0.0.1:6379").await?.install()?;
//! # Ok(()) }
//! ```
//!
//! Without the attribute, a [`Rule`] and a [`Limiter`] do the same: see [`Limiter::acquire`].
//!
//! # What each algorithm promises
//!
//! For a count of C in a period of P:
//!
//! | algorithm | admitted in any window of P, at most | state a key |
//! |---|---|---|
//! | [`Algorithm::FixedWindow`] | 2C; C in each of its windows | one integer |
//! | [`Algorithm::SlidingLog`] | C, exactly | about 10 bytes an admitted call |
//!
//! - A refused call consumes nothing. What is charged is what was granted.
//! - Several rules on one call are one decision: all are charged, or none is.
//! - Windows are half open, `[t, t + P)`, on the store's clock, which decides alone: with Redis, that is the
//!   server's.
//! - Whatever a caller puts into a key, distinct keys never share a counter.
//! - Where something fails half way (a dropped future, a crash), the error is on the side of admitting fewer.
//!
//! # What a decision says
//!
//! | | meaning |
//! |---|---|
//! | `limit` | the rule's count |
//! | `remaining` | the largest cost that would be granted now; on a [`Permit`], after its own charge |
//! | `reset_after` | how long until `remaining` is `limit` again if nobody calls |
//! | `retry_after` | the shortest wait after which the cost is granted if nobody else calls |
//!
//! Durations count from the store's decision and are rounded up to a millisecond, so a caller who waits for
//! `retry_after` is not refused again for having come too early.
//!
//! # When the store fails
//!
//! A decision of Redis has a deadline, 100 ms unless [`Builder::deadline`] says otherwise. A server that is away, too slow,
//! loading or out of memory is treated as [`OnStoreError`] says: this process counts alone (the default), the call
//! is let through, or it is refused as [`Cause::Unavailable`]. No command is sent a second time, unless the server said
//! that it did not run. Connections are opened again in the background.
//!
//! Mistakes are reported whatever the policy, as [`Cause::Misconfigured`], and logged:
//!
//! | the server says | what to do |
//! |---|---|
//! | `WRONGTYPE` | something else is stored under a counter's name: choose another [`Builder::namespace`] |
//! | `NOPERM`, or that a user can't run a command | give the user the rights below |
//! | `WRONGPASS`, `NOAUTH` | check user and password in the URL |
//!
//! The least a Redis user needs, for counters in a namespace `shop`:
//! `ACL SETUSER limiter on >password resetkeys ~shop::* -@all +hello +evalsha +eval +get +set +incrby +decrby +del +pttl
//! +pexpire +time +lrange +lindex +llen +lset +rpush +ltrim`. Add `+select` if the URL names a database. Redis 6.2 is the oldest
//! server the scripts run on.
//!
//! # Where a promise ends
//!
//! | what happens | what may be admitted beyond the promise |
//! |---|---|
//! | [`OnStoreError::Allow`] | everything, until the store is back |
//! | [`OnStoreError::Local`] | each process: its count divided by [`Builder::instances`], anew on each outage; and the whole count when the store is back |
//! | Redis restarts without persistence, evicts keys, or fails over to a server that missed writes | the counters that were lost start fresh |
//! | the server's clock is set forward, or another server's is ahead | what the skipped time would have admitted |
//! | it is set back | nothing; what counted may count for up to a period longer |
//! | [`Limiter::reset`] | the counter starts fresh |
//!
//! # Features
//!
//! | feature | |
//! |---|---|
//! | `macros` (default) | the attribute |
//! | `redis` (default) | the Redis store |
//! | `rustls` | `rediss://`, Redis over TLS |
//! | `uuid` | UUIDs as keys |
#![cfg_attr(docsrs, feature(doc_cfg))]

mod algorithm;
mod builder;
mod call;
mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
mod decision;
mod error;
mod key;
mod limiter;
mod memory;
mod process;
#[cfg(feature = "redis")]
mod redis;
mod rule;
pub mod store;
pub mod testing;
mod wait;

#[doc(hidden)]
#[path = "private.rs"]
#[allow(missing_docs)]
pub mod __private;

#[cfg(feature = "macros")]
pub use ratelimit_macros::limit_request_per_time;

pub use self::{
    builder::{Builder, OnStoreError, SetupError},
    clock::{Clock, ManualClock},
    decision::{Decision, Permit},
    error::{Cause, FromRefusal, RequestPerMinute},
    key::{CounterName, Key, KeyWriter, RateKey},
    limiter::Limiter,
    rule::{Algorithm, Refill, Rule},
    store::Store,
};
