//! Tests against real servers.
#![allow(clippy::unchecked_time_subtraction)] // a test may panic

mod cancel;
mod connection;
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
