//! Tests against real servers.

mod cost;
mod exact;
mod give_back;
mod harness;
mod stacked;
mod state;
mod support;
mod time;
