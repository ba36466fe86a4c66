//! Tests against real servers.

mod cost;
mod exact;
mod give_back;
mod harness;
mod lints;
mod places;
mod size;
mod stacked;
mod state;
mod support;
mod time;
