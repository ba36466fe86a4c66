//! Rate limits for async functions, declared with one attribute.
//!
//! A limit is counted in one process, or in many that share a Redis server or a cluster. Each
//! algorithm has [a maximum](guide::choosing#promises-of-each-algorithm), also for concurrent calls
//! and many processes. There are two exceptions: while Redis is away, under two of
//! [four policies](OnStoreError); and a few
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
//! `prefix` names the rule, and `key` says who is counted. The error type of the function needs a
//! `From<RequestPerMinute>`. [`limit_request_per_time`] describes all arguments: waiting, costs,
//! [algorithms](Algorithm), functions that are not async. [`limit_concurrent_requests`] limits calls
//! that run at once. The crate needs tokio.
//!
//! # Redis
//!
//! By default, limits are counted in process memory. To share them between processes, install a limiter
//! for Redis once, at the start of the program. Libraries use the installed one, or take a `&Limiter` as an argument.
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
//! The start fails if the server is away, unless [`Builder::lazy`] is called. If it is away later, each process
//! counts alone, by default. It then admits its share: the count divided by [`Builder::instances`], rounded down. Of
//! a count below `instances` it admits nothing. If `instances` is not set, **each process admits the whole
//! count**. [`OnStoreError`] has other policies: refuse, wait, or admit every call.
//!
//! # Where to go on
//!
//! - The [`guide`]: [which algorithm](guide::choosing), [recipes](guide::recipes),
//!   [Redis](guide::redis), [failures](guide::failures), [operations](guide::operations),
//!   [tests](guide::testing), and the [glossary](guide#glossary).
//! - Limits without the attribute: [`Rule`] and [`Limiter::acquire`].
//! - Limits on requests to a web server: [`web`]. On calls to other servers: [`client`].
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `macros` (default) | the attributes, and `derive(RateKey)` |
//! | `redis` (default) | the Redis store |
//! | `rustls` | Redis over TLS |
//! | `metrics` | [metrics](guide::operations#metrics) |
//! | `config` | rules in a file, which may change while the program runs: see [`config`] |
//! | `tower` | [`web::RateLimitLayer`] |
//! | `axum` | [`RequestPerMinute`] as a response of axum, and `KeyBy::peer` there; the layer needs `tower`, too |
//! | `actix-web` | the layer and the response for actix-web |
//! | `client` | [`client::Outgoing`] as a layer of tower, for calls to servers that announce limits |
//! | `reqwest-middleware` | the same as a middleware of reqwest |
//! | `stream` | [`Limiter::limit_stream`]: each item of a stream waits for its turn |
//! | `uuid` | UUIDs as keys |
//! | `conformance` | the tests that [a store of your own](guide::own_store) has to pass |
//!
//! They fit axum 0.8, actix-web 4, tower 0.5, http 1 and reqwest-middleware 0.5 (with reqwest 0.13).
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
