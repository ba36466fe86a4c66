//! Tests against real servers.

mod exact;
mod harness;
mod state;
mod support;
mod time;
