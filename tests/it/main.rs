//! Tests against real servers.

mod harness;
