//! The promises of a limiter, which hold in memory and on Redis alike.

mod algorithms;
mod bounds;
mod cancel;
mod conformance;
mod cost;
pub(crate) mod custom_store;
mod exact;
mod holds;
mod keys;
mod memory;
mod model;
mod observe;
mod queues;
mod refund;
mod several_rules;
mod shadow;
pub(crate) mod state;
mod time;
mod wait;
