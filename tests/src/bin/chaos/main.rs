//! Breaks real Redis servers under load, and counts.
//!
//! `cargo run --release -p ratelimit-tests --all-features --bin chaos [--short] [PART ..]`
//!
//! Parts: `load`, `local`, `outage`, `failover` and `keys`; all of them if none is named. Each
//! prints a table and its promises. The program ends with an error if a promise was broken. Times
//! depend on the machine, so the reader judges them.

mod failover;
mod keys;
mod load;
mod outage;
mod place;
mod worker;

use std::{env, process::ExitCode};

/// The amount of everything: enough to see a fault, or a few seconds of it.
#[derive(Clone, Copy, Debug)]
struct Extent {
    /// In all processes together, each topology.
    decisions: usize,
    /// Each with TLS too: so many handshakes want an optimised build.
    tls: bool,
    outage_ms: u64,
    /// Length of the calls of all other kinds, which run beside the counted ones.
    traffic_ms: u64,
    keys: usize,
}

const WHOLE: Extent = Extent { decisions: 500_000, tls: true, outage_ms: 3_000, traffic_ms: 15_000, keys: 100_000 };
const SHORT: Extent = Extent { decisions: 20_000, tls: false, outage_ms: 1_500, traffic_ms: 1_500, keys: 5_000 };

/// The broken promises.
#[derive(Debug, Default)]
struct Faults(Vec<String>);

impl Faults {
    fn expect(&mut self, holds: bool, what: impl Into<String>) {
        if !holds {
            self.0.push(what.into());
        }
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    if args.first().is_some_and(|arg| arg == "worker") {
        worker::run(&args[1..]);
        return ExitCode::SUCCESS;
    }
    let extent = if args.iter().any(|arg| arg == "--short") { SHORT } else { WHOLE };
    let parts: Vec<&str> = args.iter().map(String::as_str).filter(|arg| *arg != "--short").collect();
    if let Some(unknown) = parts.iter().find(|part| !["load", "local", "outage", "failover", "keys"].contains(part)) {
        eprintln!("there is no part `{unknown}`; there are load, local, outage, failover and keys");
        return ExitCode::FAILURE;
    }
    let wanted = |part: &str| parts.is_empty() || parts.contains(&part);

    let mut faults = Faults::default();
    if wanted("load") {
        load::deny(extent, &mut faults);
    }
    if wanted("local") {
        load::local(extent, &mut faults);
    }
    if wanted("outage") {
        outage::run(extent, &mut faults);
    }
    if wanted("failover") {
        failover::run(extent, &mut faults);
    }
    if wanted("keys") {
        keys::run(extent, &mut faults);
    }
    for fault in &faults.0 {
        println!("DID NOT HOLD: {fault}");
    }
    if faults.0.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A single-threaded or larger runtime for a part; each has its own.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// The value below which so many percent of the sorted ones lie.
fn percentile(sorted: &[u64], percent: usize) -> u64 {
    sorted.get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1))).copied().unwrap_or(0)
}

fn ms(micros: u64) -> String {
    #[allow(clippy::cast_precision_loss)] // a few hours at most
    let millis = micros as f64 / 1000.0;
    format!("{millis:.1}")
}
