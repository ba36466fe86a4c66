//! Servers, clusters and sentinels, and how the store uses them.

mod bans;
mod batching;
mod cluster;
mod connection;
mod denial_cache;
mod hold_cost;
mod hold_renewal;
mod prefetch;
mod runtimes;
mod script_steps;
mod sentinel;
mod server;
mod settled;
#[cfg(feature = "rustls")]
mod tls;
