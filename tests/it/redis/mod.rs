//! Servers, clusters and sentinels, and how the store uses them.

mod batching;
mod cluster;
mod connection;
pub(crate) mod denial_cache;
mod prefetch;
mod runtimes;
mod script_steps;
mod sentinel;
pub(crate) mod server;
