//! Testing annotated code.
//!
//! A limit is part of a function's behaviour. It can be tested without a server and without
//! waiting.
//!
//! # A limiter of its own for each test
//!
//! Tests run in parallel in one process, and would share its limiter.
//! [`Limiter::scope`](crate::Limiter::scope) gives a future its own:
//!
//! ```
//! use ratelimit_runtime::{Limiter, RequestPerMinute, limit_request_per_time};
//!
//! #[limit_request_per_time(prefix = "greet", ttl = 1, unit = Minutes, count = 1, key = name)]
//! async fn greet(name: &str) -> Result<String, RequestPerMinute> {
//!     Ok(format!("Hello {name}"))
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! Limiter::in_memory()
//!     .scope(async {
//!         assert!(greet("Ada").await.is_ok());
//!         assert!(greet("Ada").await.is_err());
//!         assert!(greet("Bob").await.is_ok());
//!     })
//!     .await;
//! # });
//! ```
//!
//! Tasks that the future spawns use the process-wide limiter again; scope them, too.
//! [`Limiter::scope_blocking`](crate::Limiter::scope_blocking) does the same for functions that are
//! not async.
//!
//! # No limit at all
//!
//! [`Limiter::unlimited`](crate::Limiter::unlimited) admits every call, for tests of something
//! else: `Limiter::unlimited().scope(..)`.
//!
//! # Controlled time
//!
//! A [`ManualClock`](crate::ManualClock) stands still until the test advances it. It drives the
//! memory store and all waiting callers:
//!
//! ```
//! # use ratelimit_runtime::{Limiter, RequestPerMinute, limit_request_per_time};
//! use ratelimit_runtime::ManualClock;
//! use std::time::Duration;
//!
//! # #[limit_request_per_time(prefix = "greet", ttl = 1, unit = Minutes, count = 1, key = name)]
//! # async fn greet(name: &str) -> Result<String, RequestPerMinute> { Ok(format!("Hello {name}")) }
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let clock = ManualClock::new();
//! let limiter = Limiter::builder("memory://").clock(clock.clone()).build().await.unwrap();
//! limiter
//!     .scope(async {
//!         assert!(greet("Ada").await.is_ok());
//!         clock.advance(Duration::from_secs(59));
//!         assert!(greet("Ada").await.is_err());
//!         clock.advance(Duration::from_secs(1));
//!         assert!(greet("Ada").await.is_ok());
//!     })
//!     .await;
//! # });
//! ```
//!
//! # tokio's paused time
//!
//! The default clock follows tokio's paused time. Under `#[tokio::test(start_paused = true)]` a
//! function with `on_limit = Wait` does not really wait, and calls keep their order.
//!
//! Use it with the memory store only. Paused time jumps ahead while a runtime waits for a socket,
//! so a Redis server would miss every deadline. Such a test would be about
//! [`OnStoreError::Local`](crate::OnStoreError::Local).
//!
//! Functions with `blocking` really wait even then: their timers are those of another runtime. A
//! [`ManualClock`](crate::ManualClock) works for them, too.
//!
//! ```
//! # use ratelimit_runtime::{Limiter, RequestPerMinute, limit_request_per_time};
//! # use std::time::Duration;
//! #[limit_request_per_time(prefix = "mail", ttl = 1, unit = Minutes, count = 1, on_limit = Wait)]
//! async fn send_mail() -> Result<(), RequestPerMinute> {
//!     Ok(())
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(async {
//! let started = tokio::time::Instant::now();
//! Limiter::in_memory()
//!     .scope(async {
//!         for _ in 0..3 {
//!             send_mail().await.unwrap();
//!         }
//!     })
//!     .await;
//! assert!(started.elapsed() >= Duration::from_secs(120));
//! # });
//! ```
