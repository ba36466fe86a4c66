//! Tests against real servers.

mod cost;
mod exact;
mod give_back;
mod harness;
mod memory;
mod stacked;
mod state;
mod store;
mod support;
mod time;
