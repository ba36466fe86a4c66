//! Tests of the crates as a program uses them, grouped by what they need.
#![allow(clippy::unchecked_time_subtraction)] // a test may panic

mod client;
mod config;
mod core;
mod failure;
mod harness;
mod history;
mod macros;
mod redis;
mod support;
mod web;
