//! Tests against real servers.

mod cancel;
mod cost;
mod exact;
mod give_back;
mod harness;
mod keys;
mod memory;
mod model;
mod runtimes;
mod server;
mod stacked;
mod state;
mod store;
mod support;
mod time;
mod wait;
