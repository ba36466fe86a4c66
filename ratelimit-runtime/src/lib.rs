//! One attribute on an async function, and no caller gets through more often than its algorithm promises.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[doc(hidden)]
#[path = "private.rs"]
#[allow(missing_docs)]
pub mod __private;
mod algorithm;
mod builder;
mod call;
mod clock;
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
mod wait;

#[cfg(feature = "macros")]
pub use ratelimit_macros::limit_request_per_time;

pub use self::{
    builder::{Builder, OnStoreError, SetupError},
    clock::{Clock, ManualClock},
    decision::{Decision, Permit},
    error::{Cause, FromRefusal, RequestPerMinute},
    key::{CounterName, Key, KeyWriter, RateKey},
    limiter::Limiter,
    rule::{Algorithm, Rule},
    store::Store,
};
