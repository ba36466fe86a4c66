//! The process in which one query runs. It has limits of its own, so that it takes nothing from others.

use std::{
    error::Error,
    io::{self, Write as _},
    path::Path,
    process,
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    process::{Resource, Rlimit, getpid, setpriority_process, setrlimit},
    time::{ClockId, clock_gettime},
};
use serde::{Deserialize, Serialize};

use crate::database::{Fault, Table, open};

/// The memory of a query, and beside it the program, its threads and the result.
const MOST_ADDRESSES: u64 = 512 << 20;
/// Priorities as in `nice`: the lab goes first, so that it kills in time, and short queries go before long ones.
const SHORT: i32 = 5;
const LONG: i32 = 15;
/// Processor time after which a query is a long one. The start of its process is included.
const LONGEST_SHORT: Duration = Duration::from_millis(50);

/// A query, as the lab sends it: one line of JSON.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Job {
    pub(crate) sql: String,
    pub(crate) given_ms: u64,
}

/// The reply, as the worker prints it: JSON up to the end of the output.
pub(crate) type Reply = Result<Table, Fault>;

/// Waits for one query, prints its result, and ends.
pub(crate) fn run(database: &Path) -> Result<(), Box<dyn Error>> {
    let reply = match work(database) {
        Ok(Some(reply)) => reply,
        Ok(None) => return Ok(()),
        Err(error) => Err(Fault::Lab(error.to_string())),
    };
    let mut output = io::stdout().lock();
    serde_json::to_writer(&mut output, &reply)?;
    Ok(output.flush()?)
}

/// `None` if the lab has ended.
fn work(database: &Path) -> Result<Option<Reply>, Box<dyn Error>> {
    limit(Resource::As, MOST_ADDRESSES)?;
    limit(Resource::Fsize, 0)?;
    limit(Resource::Core, 0)?;
    setpriority_process(None, SHORT)?;
    let connection = open(database)?;

    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    if line.is_empty() {
        return Ok(None);
    }
    let job: Job = serde_json::from_str(&line)?;
    limit(Resource::Cpu, job.given_ms.div_ceil(1_000) + 1)?;
    end_after(Duration::from_millis(job.given_ms));
    Ok(Some(Table::read(&connection, &job.sql)))
}

fn limit(resource: Resource, most: u64) -> io::Result<()> {
    Ok(setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?)
}

/// Ends this process when its time is over, or when the lab has ended: then the input is over. The lab kills it, too,
/// but either of them may get a processor late.
fn end_after(given: Duration) {
    let (lab, ended) = mpsc::channel::<()>();
    thread::spawn(move || {
        let _lab = lab;
        io::copy(&mut io::stdin(), &mut io::sink())
    });
    thread::spawn(move || {
        let start = Instant::now();
        loop {
            let left = given.saturating_sub(start.elapsed());
            let short = LONGEST_SHORT.saturating_sub(processor_time());
            let next = if short.is_zero() {
                let _ = setpriority_process(Some(getpid()), LONG); // of the thread that runs the query
                left
            } else {
                left.min(short.max(Duration::from_millis(1)))
            };
            if left.is_zero() || ended.recv_timeout(next) != Err(RecvTimeoutError::Timeout) {
                process::exit(1);
            }
        }
    });
}

/// Of this process. A query that waits for a processor, or sleeps, uses none.
fn processor_time() -> Duration {
    clock_gettime(ClockId::ProcessCPUTime).try_into().unwrap_or_default()
}
