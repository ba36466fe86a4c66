//! One traffic through all five algorithms: the admitted calls and their times. Writes a picture
//! and prints a table.
//!
//! ```text
//! cargo run --example algorithms
//! cargo run --example algorithms -- docs/algorithms.svg
//! ```

mod chart;
mod table;
mod traffic;

use std::{
    collections::BTreeMap,
    env,
    error::Error,
    fs, io,
    io::Write as _,
    path::PathBuf,
    process::ExitCode,
    task::{Context, Poll, Waker},
    time::Duration,
};

use clap::Parser;
use ratelimit_runtime::{Algorithm, Cause, Limiter, ManualClock, Refill, Rule};
use tokio::runtime;

use crate::traffic::Traffic;

/// Sends the same traffic through all five algorithms, writes a picture of it and prints a table.
#[derive(Parser)]
struct Args {
    #[arg(help = "Where to write the picture (SVG) [default: beside the program]")]
    picture: Option<PathBuf>,
}

const COUNT: u64 = 10;
const PERIOD_MS: u64 = 1000;

/// Traffic comes for three seconds, and calls may wait one more for their slot. The fifth second
/// shows how the last ones leave the period.
const END_MS: u64 = 5 * PERIOD_MS;

/// An algorithm as the attribute names it, and how many calls it admits in any window of one period at most.
struct Candidate {
    name: &'static str,
    algorithm: Algorithm,
    promise: u64,
}

const CANDIDATES: [Candidate; 5] = [
    Candidate {
        name: "FixedWindow(align = true)",
        algorithm: Algorithm::FixedWindow { align: true },
        promise: 2 * COUNT,
    },
    Candidate { name: "SlidingLog", algorithm: Algorithm::SlidingLog, promise: COUNT },
    Candidate {
        name: "SlidingWindow",
        algorithm: Algorithm::SlidingWindow { buckets: 1 },
        promise: 2 * COUNT - (2 * COUNT).div_ceil(PERIOD_MS),
    },
    Candidate {
        name: "TokenBucket(burst = 5)",
        algorithm: Algorithm::TokenBucket { burst: 5, refill: Refill::Greedy },
        promise: 5 + COUNT,
    },
    Candidate { name: "LeakyBucket(queue = 10)", algorithm: Algorithm::LeakyBucket { queue: 10 }, promise: COUNT },
];

/// Times at which the calls of each client were admitted, in milliseconds; one list a client, as in
/// the traffic.
type Admitted = Vec<Vec<u64>>;

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("algorithms: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Result<(), Box<dyn Error>> {
    let picture = match args.picture {
        Some(path) => path,
        None => env::current_exe()?.with_extension("svg"),
    };
    let mut rows = Vec::new();
    for traffic in traffic::all() {
        let admitted =
            CANDIDATES.iter().map(|candidate| send(&traffic, candidate.algorithm)).collect::<Result<_, _>>()?;
        rows.push((traffic, admitted));
    }
    fs::write(&picture, chart::svg(&rows)?).map_err(|error| format!("{}: {error}", picture.display()))?;
    writeln!(io::stdout(), "{}\nThe picture is in {}", table::text(&rows), picture.display())?;
    Ok(())
}

/// Sends the calls to a limiter of their own, whose clock is moved by hand. Five seconds take no
/// time, and each run is the same.
fn send(traffic: &Traffic, algorithm: Algorithm) -> Result<Admitted, Box<dyn Error>> {
    let rule = Rule::new("example", COUNT, Duration::from_millis(PERIOD_MS)).with_algorithm(algorithm);
    let clock = ManualClock::new(); // at a full second
    let limiter = Limiter::builder("memory://").clock(clock.clone()).build();
    let limiter = runtime::Builder::new_current_thread().build()?.block_on(limiter)?;

    let mut admitted = vec![Vec::new(); traffic.clients.len()];
    let mut calls = Vec::new();
    for now_ms in 0..END_MS {
        for (number, client) in traffic.clients.iter().enumerate() {
            for _ in client.calls.iter().filter(|at_ms| **at_ms == now_ms) {
                calls.push((number, Box::pin(limiter.acquire(&rule, client.name))));
            }
        }
        // Sleeping calls are polled after each move of the clock, so nothing has to wake them.
        let mut waiting = Vec::new();
        for (number, mut call) in calls {
            match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Ok(_)) => admitted[number].push(now_ms),
                Poll::Ready(Err(refused)) if refused.cause() == Cause::Exceeded => {}
                Poll::Ready(Err(error)) => return Err(error.into()),
                Poll::Pending => waiting.push((number, call)),
            }
        }
        calls = waiting;
        clock.advance(Duration::from_millis(1));
    }
    if calls.is_empty() {
        Ok(admitted)
    } else {
        Err(format!("{} calls still wait after {END_MS} ms", calls.len()).into())
    }
}

/// Number of calls in the period before each moment: the corners of the line in the chart.
fn in_last_period(calls: &[u64]) -> Vec<(u64, i64)> {
    let mut changes = BTreeMap::<u64, i64>::new();
    for at_ms in calls {
        *changes.entry(*at_ms).or_default() += 1;
        *changes.entry(at_ms + PERIOD_MS).or_default() -= 1;
    }
    changes.retain(|_, by| *by != 0);
    let mut corners = vec![(0, 0)];
    let mut count = 0;
    for (at_ms, by) in changes {
        corners.push((at_ms, count));
        count += by;
        corners.push((at_ms, count));
    }
    corners.push((END_MS, count));
    corners
}

/// The largest number of calls in any window of one period. Windows are half open: two calls that
/// are a whole period apart share none.
fn most_in_a_period(calls: &[u64]) -> i64 {
    in_last_period(calls).into_iter().map(|(_, count)| count).max().unwrap_or_default()
}
