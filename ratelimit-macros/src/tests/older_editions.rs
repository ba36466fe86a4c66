//! In an older edition too, a place is held until the temporaries of the body's last expression are dropped.
//!
//! ```edition2021
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! use std::future::Future;
//! use std::task::{Context, Waker};
//!
//! use ratelimit_runtime::{Limiter, RequestPerMinute, limit_concurrent_requests};
//!
//! #[limit_concurrent_requests("connection", 1)]
//! async fn query(connection: Connection) -> Result<u64, RequestPerMinute> {
//!     Ok(connection.open().answer())
//! }
//!
//! #[limit_concurrent_requests("connection", 1)]
//! async fn next() -> Result<(), RequestPerMinute> {
//!     Ok(())
//! }
//!
//! struct Connection;
//! struct Open;
//!
//! impl Connection {
//!     fn open(&self) -> Open {
//!         Open
//!     }
//! }
//!
//! impl Open {
//!     fn answer(&self) -> u64 {
//!         42
//!     }
//! }
//!
//! impl Drop for Open {
//!     fn drop(&mut self) {
//!         let next = std::pin::pin!(next()).poll(&mut Context::from_waker(Waker::noop()));
//!         assert!(matches!(next, std::task::Poll::Ready(Err(_))), "the place is free");
//!     }
//! }
//!
//! Limiter::in_memory().scope(query(Connection)).await.unwrap();
//! # }
//! ```
