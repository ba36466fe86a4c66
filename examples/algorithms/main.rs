//! One traffic through all five algorithms, the sliding window in both of its forms: the admitted
//! calls and their times. Writes a picture and prints a table.
//!
//! ```text
//! cargo run --example algorithms
//! cargo run --example algorithms -- docs/algorithms.svg
//! cargo run --example algorithms -- --redis redis://127.0.0.1:6379
//! ```

mod chart;
mod real;
mod simulated;
mod table;
mod traffic;

use std::{
    collections::BTreeMap, env, error::Error, fs, io, io::Write as _, path::PathBuf, process::ExitCode, time::Duration,
};

use clap::Parser;
use ratelimit_runtime::{Algorithm, Refill, Rule};

use crate::traffic::Traffic;

/// Sends the same traffic through all five algorithms, writes a picture of it and prints a table.
///
/// Without --redis it counts in memory. The clock is simulated: five seconds take no time, and each run is the same.
#[derive(Parser)]
struct Args {
    #[arg(help = "Where to write the picture (SVG) [default: beside the program]")]
    picture: Option<PathBuf>,

    /// Count on this Redis server, in real time: for example `redis://127.0.0.1:6379`
    ///
    /// It takes six seconds. The server decides by its own clock, and calls take time to get there. So the picture
    /// differs a bit from the simulated one: by a call here and there, and by more if this computer is busy. Windows
    /// begin at the server's full seconds. If its clock differs from this one's, the third row is not at a border.
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
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

impl Candidate {
    fn rule(&self) -> Rule {
        Rule::new("example", COUNT, Duration::from_millis(PERIOD_MS)).with_algorithm(self.algorithm)
    }
}

const CANDIDATES: [Candidate; 6] = [
    Candidate {
        name: "FixedWindow(align = true)",
        algorithm: Algorithm::FixedWindow { align: true },
        promise: 2 * COUNT,
    },
    Candidate { name: "SlidingLog", algorithm: Algorithm::SlidingLog, promise: COUNT },
    Candidate {
        name: "SlidingWindow",
        algorithm: Algorithm::SlidingWindow { buckets: 1, weighted: true },
        promise: 2 * COUNT - (2 * COUNT).div_ceil(PERIOD_MS),
    },
    Candidate {
        name: "SlidingWindow(buckets = 5, weighted = false)",
        algorithm: Algorithm::SlidingWindow { buckets: 5, weighted: false },
        promise: 2 * COUNT,
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

/// The admitted calls of all traffics.
struct Outcome {
    /// For each traffic, one entry a candidate.
    rows: Vec<(Traffic, Vec<Admitted>)>,
    /// Longest time by which the time of a call may be later than the store's decision on it.
    late_ms: u64,
}

impl Outcome {
    /// The largest number of calls in any window of one period. Windows are half open: two calls
    /// that are a whole period apart share none.
    ///
    /// Two calls that are at least a period apart for the store may be nearer to each other here,
    /// by as much as the first one is late. So the window is shorter by that.
    fn most_in_a_period(&self, calls: &[u64]) -> i64 {
        in_last(self.window_ms(), calls).into_iter().map(|(_, count)| count).max().unwrap_or_default()
    }

    fn window_ms(&self) -> u64 {
        PERIOD_MS.saturating_sub(self.late_ms)
    }
}

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
    let outcome = match &args.redis {
        Some(url) => real::send(url)?,
        None => simulated::send()?,
    };
    fs::write(&picture, chart::svg(&outcome)?).map_err(|error| format!("{}: {error}", picture.display()))?;
    writeln!(io::stdout(), "{}\nThe picture is in {}", table::text(&outcome), picture.display())?;
    Ok(())
}

/// Number of calls in the window before each moment: the corners of the line in the chart.
fn in_last(window_ms: u64, calls: &[u64]) -> Vec<(u64, i64)> {
    let mut changes = BTreeMap::<u64, i64>::new();
    for at_ms in calls {
        *changes.entry(*at_ms).or_default() += 1;
        *changes.entry(at_ms + window_ms).or_default() -= 1;
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
