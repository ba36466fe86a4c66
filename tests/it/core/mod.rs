//! The promises of a limiter, which hold in memory and on Redis alike.

mod algorithms;
mod bans;
mod blocking;
mod bounds;
mod cancel;
mod conformance;
mod cost;
mod current;
mod custom_store;
mod debt;
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
mod state;
mod streams;
mod time;
mod wait;
