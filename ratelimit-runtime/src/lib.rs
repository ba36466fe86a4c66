//! Rate limits for async functions, declared with one attribute.
//!
//! A limit is counted in one process, or in many that share a Redis server or a cluster. Each
//! algorithm has [a maximum](guide::choosing#promises-of-each-algorithm) that concurrent calls and
//! many processes cannot exceed. More calls may run [while Redis is away](#redis), and in a few
//! [other cases](guide::promises#limits-of-the-promises).
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
//! - **Name.** `prefix` is the name of the rule. Functions with the same prefix, key, algorithm and
//!   period share one counter.
//! - **Period.** `ttl` and `unit`, or `period = "1m"`.
//! - **Key.** `key` says who is counted. Without it, all calls share one counter.
//! - **Error.** [`RequestPerMinute`] is the error of a refused call, whatever the period is. The
//!   error type of the function needs a `From<RequestPerMinute>`. With `on_limit = Return(value)`, a
//!   function returns this value instead, and may return any type.
//! - **Waiting.** With `on_limit = Wait(max = "30s")`, a call over the limit waits for its turn.
//! - **Algorithms.** `algorithm = ..` chooses between fixed windows, sliding windows, a log, a token
//!   bucket and a leaky bucket: see [`Algorithm`].
//! - **Costs.** `cost = ..` says how much of the count a call takes; by default 1. It is a
//!   number, or an amount that is known when the call ends, such as bytes or its running time.
//! - **Concurrent calls** are limited by [`limit_concurrent_requests`].
//! - **Functions that are not async** have the word `blocking` in the attribute. Async code calls
//!   them inside `tokio::task::spawn_blocking`.
//!
//! [`limit_request_per_time`] describes all arguments. The crate needs tokio.
//!
//! # Redis
//!
//! By default, limits are counted in process memory. To share them, install a limiter once, at the
//! start of the program:
//!
//! ```no_run
//! # async fn start() -> Result<(), ratelimit_runtime::SetupError> {
//! use ratelimit_runtime::Limiter;
//!
//! Limiter::builder("redis://127.0.0.1:6379")
//!     .instances(4) // the number of processes that share the limits
//!     .build()
//!     .await?
//!     .install()?;
//! # Ok(()) }
//! ```
//!
//! A second `install` in the process is a [`SetupError`]. So only programs install one. A library
//! uses the installed one, or takes a `&Limiter` as an argument.
//!
//! While the server is away, each process counts alone, by default. It then admits its share: the
//! count divided by [`Builder::instances`]. If that is not set, **each process admits the whole
//! count**. [`OnStoreError`] has other policies: refuse, wait, or admit every call.
//!
//! # Without the attribute
//!
//! - Code without the attribute uses a [`Rule`] and a [`Limiter`]: see [`Limiter::acquire`] and
//!   [`Limiter::acquire_blocking`].
//! - A layer limits the requests to a web server: see [`web`].
//! - A client keeps within the limits of the servers that it calls: see [`client`].
//!
//! # Guide
//!
//! The [`guide`] has [recipes](guide::recipes), says [which algorithm to choose](guide::choosing), [how to
//! set up Redis](guide::redis), [what happens when it fails](guide::failures) and [how to test
//! limits](guide::testing). It explains [each log event and metric](guide::operations), and lists
//! [the cases in which more calls are admitted](guide::promises#limits-of-the-promises). [A
//! glossary](guide#words) defines the words.
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `macros` (default) | the attributes, and `derive(RateKey)` |
//! | `redis` (default) | the Redis store |
//! | `rustls` | Redis over TLS: `rediss://`, `rediss+cluster://` and `rediss+sentinel://` |
//! | `metrics` | [metrics](guide::operations#metrics), through the crate [`metrics`](https://docs.rs/metrics) |
//! | `config` | rules in a file that may change while the program runs, or in `RATELIMIT_RULES`: see [`config`] |
//! | `tower` | [`web::RateLimitLayer`], a layer that limits HTTP and gRPC requests, for `tower` 0.5 |
//! | `axum` | `RequestPerMinute` as a response of `axum` 0.8; beside `tower`, also the peer's address as a key |
//! | `actix-web` | [`web::RateLimitLayer`] as middleware of `actix-web` 4, and `RequestPerMinute` as its response |
//! | `client` | [`client::Outgoing`], a layer that keeps outgoing calls within the limits that servers announce |
//! | `reqwest-middleware` | [`client::Outgoing`] as a middleware for `reqwest` 0.13, with `reqwest-middleware` 0.5 |
//! | `stream` | [`Limiter::limit_stream`]: each item of a stream waits until a rule admits it |
//! | `uuid` | UUIDs as keys |
//! | `conformance` | the tests that [a store of your own](guide::own_store) has to pass |
#![cfg_attr(docsrs, feature(doc_cfg))]

mod algorithm;
mod backend;
mod background;
mod builder;
#[cfg(feature = "client")]
pub mod client;
mod clock;
#[cfg(feature = "config")]
pub mod config;
#[cfg(feature = "conformance")]
pub mod conformance;
mod counter;
mod deadline;
mod decision;
mod duration;
mod engine;
mod error;
mod failures;
mod guard;
#[cfg(any(
    not(doctest),
    all(
        feature = "axum",
        feature = "client",
        feature = "config",
        feature = "conformance",
        feature = "macros",
        feature = "metrics",
        feature = "redis",
        feature = "rustls",
        feature = "stream",
        feature = "tower",
    )
))]
pub mod guide;
mod health;
#[cfg(all(test, not(model_check)))]
mod hostile;
mod key;
mod limiter;
mod memory;
mod observe;
mod policy;
mod process;
#[cfg(feature = "redis")]
mod redis;
mod reservation;
mod rule;
pub mod store;
#[cfg(feature = "stream")]
mod stream;
mod sync;
#[cfg(any(feature = "axum", feature = "tower"))]
pub mod web;

#[doc(hidden)]
#[path = "macro_support.rs"]
#[allow(missing_docs)]
pub mod __private;

#[cfg(feature = "macros")]
pub use ratelimit_macros::{RateKey, limit_concurrent_requests, limit_request_per_time};

#[cfg(feature = "stream")]
pub use self::stream::LimitedStream;
pub use self::{
    builder::Builder,
    clock::{Clock, ManualClock},
    counter::CounterName,
    decision::Decision,
    engine::permit::Permit,
    error::{Cause, FromRefusal, RequestPerMinute, SetupError},
    health::Health,
    key::{DisplayKey, Key, KeyWriter, RateKey},
    limiter::Limiter,
    policy::OnStoreError,
    reservation::Reservation,
    rule::{Algorithm, Refill, Rule},
    store::Store,
};
