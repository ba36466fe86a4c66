//! Users send SQL to one database, each one query at a time and no more than 20 seconds of queries in any minute.
//!
//! Their SQL is not trusted. Each query runs in a process of its own: this program again, with `--worker`. The
//! process is killed when the time of its user is over. Unless the machine halts, it runs for 100 ms longer at most.
//! Limits of the process protect the memory, the disk and the processors for others. So this program needs Unix.
//!
//! ```text
//! cargo run --example query_lab --features query_lab      # then open http://127.0.0.1:8080
//! cargo run --example query_lab --features query_lab -- --load 20s --budget 1s --window 5s
//! ```

mod chart;
mod database;
mod load;
mod log;
mod page;
mod query;
mod report;
mod worker;
mod workers;

use std::{
    error::Error,
    fs::File,
    io::{self, Write as _},
    net::SocketAddr,
    path::PathBuf,
    process::ExitCode,
    sync::{Arc, Mutex},
    time::Duration,
};

use clap::Parser;
use ratelimit_runtime::{Limiter, OnStoreError};
use tokio::{net::TcpListener, runtime::Runtime};

use crate::{
    database::Database,
    load::Load,
    log::Log,
    query::{Lab, Window},
    workers::Workers,
};

/// Users send SQL to one database, each one query at a time and no more than so much time of queries in any window.
///
/// POST /query takes a query as its body and the user in the header X-User, and answers with the rows as JSON.
/// A query runs for as long as its user has time left, and is interrupted then. It has 64 MiB of memory. The
/// database is a sample, in this program, and only read. Beside the usual functions there is sleep(ms).
#[derive(Parser)]
#[command(name = "query_lab")]
struct Args {
    /// Time that the queries of a user may run in any window
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = time)]
    budget: Duration,

    /// The window
    #[arg(long, default_value = "60s")]
    window: Window,

    #[arg(long, value_name = "URL", default_value = "memory://")]
    #[arg(help = "Where time is counted; processes share a server, for example redis://127.0.0.1:6379")]
    store: String,

    /// Address of the lab
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: SocketAddr,

    /// Queries that run at once, each in a process of its own
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    workers: u64,

    /// Write a line of JSON for each query to the end of this file
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,

    /// Have users send queries for so long, then show what became of them, and end
    #[arg(long, value_name = "TIME", value_parser = time)]
    load: Option<Duration>,

    /// Users of the load who send one short query after another, with pauses
    #[arg(long, default_value_t = 3, requires = "load")]
    fair: u16,

    /// Users of the load who send expensive queries, four at once
    #[arg(long, default_value_t = 3, requires = "load")]
    greedy: u16,

    #[arg(long, value_name = "FILE", requires = "load")]
    #[arg(help = "Where to draw what the users of the load used (SVG) [default: beside the program]")]
    plot: Option<PathBuf>,

    /// Be a process that runs one query in this database
    #[arg(long, hide = true)]
    worker: Option<PathBuf>,
}

/// At least a millisecond, at most what an hour has.
fn time(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if (Duration::from_millis(1)..=Duration::from_secs(3_600)).contains(&time) {
        Ok(time)
    } else {
        Err("a time from 1ms to 1h is needed".into())
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let ended = match &args.worker {
        Some(database) => worker::run(database),
        None => Runtime::new().map_err(Into::into).and_then(|runtime| runtime.block_on(run(args))),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("query_lab: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> Result<(), Box<dyn Error>> {
    // A query that cannot be charged is better not run: time is the subject here, and no user is in
    // a hurry.
    let limiter = Limiter::builder(&args.store).on_store_error(OnStoreError::Deny).deadline(Duration::from_secs(1));
    let limiter = limiter.build().await?;
    limiter.clone().install()?;
    let log = match &args.log {
        Some(path) => Log::append_to(path).map_err(|error| format!("{}: {error}", path.display()))?,
        None => Log::default(),
    };
    let database = Database::sample()?;
    let lab = Arc::new(Lab {
        workers: Workers::start(database.path().to_owned())?,
        most_workers: args.workers,
        limiter,
        budget_ms: args.budget.as_millis().try_into()?,
        window: args.window,
        log,
        running: Mutex::default(),
        _database: database,
    });

    let listener = TcpListener::bind(args.listen).await.map_err(|error| format!("{}: {error}", args.listen))?;
    writeln!(io::stdout(), "listening on http://{}", listener.local_addr()?)?;
    let server = axum::serve(listener, page::app(Arc::clone(&lab)));
    let Some(lasting) = args.load else { return Ok(server.await?) };
    let plot = match args.plot {
        Some(path) => path,
        None => std::env::current_exe()?.with_extension("svg"),
    };
    // A wrong path is an error now, and not after the load.
    let mut picture = File::create(&plot).map_err(|error| format!("{}: {error}", plot.display()))?;
    // The page is there meanwhile.
    tokio::spawn(async move { server.await });
    let users = Load { lasting, fair: args.fair, greedy: args.greedy }.run(&lab).await?;
    writeln!(io::stdout(), "{}", report::text(&users, &lab))?;
    picture.write_all(chart::svg(&users, &lab, lasting)?.as_bytes())?;
    writeln!(io::stdout(), "The picture is in {}", plot.display())?;
    Ok(())
}
