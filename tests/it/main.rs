//! Tests against real servers.

mod exact;
mod harness;
mod support;
