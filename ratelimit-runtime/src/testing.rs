//! Testing your annotated code.
//!
//! A limit is part of what a function does, so it can be tested like the rest of it, without a server and without waiting.
//!
//! # A limiter of its own for each test
//!
//! Tests run side by side in one process and would share its limiter. [`Limiter::scope`](crate::Limiter::scope) gives a
//! future one of its own:
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
//! Tasks that the future spawns see the process-wide limiter again; scope them too.
//!
//! # No limit at all
//!
//! Where the limit is not what a test is about, [`Limiter::unlimited`](crate::Limiter::unlimited) lets every call through:
//! `Limiter::unlimited().scope(..)`.
//!
//! # Time that you move
//!
//! A [`ManualClock`](crate::ManualClock) stands still until it is told to move. It drives the memory store and everyone who waits:
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
//! The default clock follows it. Under `#[tokio::test(start_paused = true)]` a function with `on_limit = Wait` waits its
//! minute in no time, and in the right order. That goes for memory: paused time runs on while a runtime waits for a socket, so
//! a Redis server would miss every deadline, and a test would in truth be about
//! [`OnStoreError::Local`](crate::OnStoreError::Local).
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
