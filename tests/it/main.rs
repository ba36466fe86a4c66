//! Tests against real servers.
#![allow(clippy::unchecked_time_subtraction)] // a test may panic

mod algorithms;
mod bounds;
mod cancel;
mod chaos;
mod cluster;
mod coalescing;
mod config;
mod conformance;
mod connection;
mod cost;
mod denials;
mod exact;
mod failure;
mod give_back;
mod harness;
mod keys;
mod leases;
mod lints;
mod memory;
mod model;
mod observe;
mod places;
mod runtimes;
mod sentinel;
mod server;
mod shadow;
mod size;
mod stacked;
mod state;
mod store;
mod support;
mod time;
mod wait;
mod web;
mod words;
