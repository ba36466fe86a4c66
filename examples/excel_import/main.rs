//! Registers the items of a spreadsheet with an API that accepts only so many of each seller.
//!
//! A producer reads the rows, consumers call the annotated function in `register.rs`. Neither has a line of
//! waiting or counting in it. Calls are counted in memory, in Redis, or in a store of the program's own: `--store`.
//!
//! ```text
//! cargo run --example excel_import --features excel_import
//! cargo run --example excel_import --features excel_import -- --help
//! cargo run --example excel_import --features excel_import -- --outgoing
//! ```
//!
//! With `--outgoing` nothing is annotated, and no limit is configured: the API announces it in
//! header fields, and changes it three times. `client::Outgoing` is then a middleware of the HTTP client.

mod announced;
mod api;
mod own_store;
mod progress;
mod register;
mod report;
mod sheet;

use std::{
    error::Error,
    io::{self, Write as _},
    path::{Path, PathBuf},
    pin::Pin,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use clap::Parser;
use ratelimit_runtime::{Clock, Limiter, SetupError, client::Outgoing};
use tokio::{
    sync::{Mutex, mpsc},
    task::JoinSet,
};

use crate::{
    own_store::OwnStore,
    progress::Progress,
    register::{Allowance, Window, register_within},
    report::{Report, Tally},
    sheet::{Book, Part, Row},
};

/// Registers the items of a spreadsheet with an API that accepts only so many of each seller.
///
/// The API is part of this program: a real HTTP server on loopback with up to 50 ms of latency. It judges calls by
/// when they arrive, in any window of its own clock, and refuses those above its limit. The importer never calls too
/// early, because the function that calls the API is limited and waits. A refused row is not tried again.
///
/// With the defaults a run takes about 8 seconds. Exits with 0 if every row was registered, and with 1 if not.
#[derive(Parser)]
#[command(name = "excel_import")]
struct Args {
    /// The spreadsheet (.xlsx), with the columns seller, sku, title, price, stock [default: a sample of 500 rows, of
    /// 25 sellers, one of whom has three times the count]
    file: Option<PathBuf>,

    /// The sheet of the spreadsheet
    #[arg(long, default_value = "items")]
    sheet: String,

    /// Write the sample to this file, and do nothing else
    #[arg(long, value_name = "FILE", conflicts_with_all = ["file", "serve_api"])]
    write_sample: Option<PathBuf>,

    /// Number of calls that the API accepts of a seller in any window
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    count: u64,

    /// The window of the API
    #[arg(long, default_value = "2s")]
    window: Window,

    /// Time by which the period of the limiter exceeds the window of the API
    ///
    /// The limiter counts a call when it lets it through, the API when it arrives. Two calls that were let through a
    /// window apart arrive closer than that if the second one travels faster, so the allowance has to cover the spread
    /// of travel times: here 20 ms, and the time a call waits for a processor. With 0 the API refuses some.
    #[arg(long, default_value = "500ms")]
    allowance: Allowance,

    /// Number of rows that are registered at the same time
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..))]
    consumers: u16,

    /// Where calls are counted: `memory`, `own` (a store that this program implements), or the URL of a Redis server,
    /// such as `redis://127.0.0.1:6379`, which several processes may share
    ///
    /// While Redis is away, rows wait for it, for up to a minute each. If it loses its data with a restart, it admits
    /// again what it has admitted before, and the API refuses some rows. With `appendonly yes` and `appendfsync always`
    /// it loses nothing.
    #[arg(long, value_name = "STORE", default_value = "memory")]
    store: String,

    /// Register only each n-th row: 1/2 in one process and 2/2 in another one
    #[arg(long, value_name = "PART/PARTS", default_value = "1/1")]
    part: Part,

    /// Use the API of another process, instead of one inside of this one
    #[arg(long, value_name = "URL")]
    api: Option<String>,

    /// Only be the API, on this port (0: any free one), until killed. Prints its URL first
    #[arg(long, value_name = "PORT", conflicts_with_all = ["file", "api"])]
    serve_api: Option<u16>,

    /// Call the API without the limit, to see it refuse
    #[arg(long)]
    bypass: bool,

    /// Keep to a limit that is not configured: the API counts all calls together, announces its limit in header
    /// fields, and changes it three times during the import
    ///
    /// The client reads the fields, and repeats calls that the API refused. Only those can be that were sent before a
    /// refusal was known.
    #[arg(long, conflicts_with_all = ["bypass", "count", "allowance"])]
    outgoing: bool,

    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Args::parse()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("excel_import: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Says whether everything was registered.
async fn run(args: Args) -> Result<bool, Box<dyn Error>> {
    if let Some(path) = &args.write_sample {
        sheet::write_sample(path, args.count)?;
        return Ok(true);
    }
    if let Some(port) = args.serve_api {
        let (url, server) = open_api(port, &args).await?;
        writeln!(io::stdout(), "{url}")?;
        server.await?;
        return Ok(true);
    }

    let limiter = limiter(&args.store).await?;
    limiter.clone().install()?;

    let url = if let Some(url) = &args.api {
        url.clone()
    } else {
        let (url, server) = open_api(0, &args).await?;
        tokio::spawn(server);
        url
    };
    let api = if args.outgoing {
        let outgoing = Outgoing::new(limiter).retry_any_method();
        register::Api::new(&url, args.count, Some(outgoing))?
    } else {
        let api = register::Api::new(&url, args.count, None)?;
        api.stats().await.map_err(|error| format!("no API at {url}: {error}"))?;
        api
    };
    let api = Arc::new(api);

    let report = if let Some(file) = &args.file {
        import(&args, file, api).await?
    } else {
        let sample = tempfile::Builder::new().prefix("sample-").suffix(".xlsx").tempfile()?;
        sheet::write_sample(sample.path(), args.count)?;
        import(&args, sample.path(), api).await?
    };
    let text = if args.json { serde_json::to_string(&report)? + "\n" } else { report.to_string() };
    io::stdout().write_all(text.as_bytes())?;
    Ok(report.is_complete())
}

/// Opens the API on this port. Gives its URL, and the future that serves it.
async fn open_api(
    port: u16,
    args: &Args,
) -> io::Result<(String, Pin<Box<dyn Future<Output = io::Result<()>> + Send>>)> {
    let window = Duration::from_millis(args.window as u64);
    Ok(if args.outgoing {
        let (url, server) = announced::open(port, announced::Plan::of_sample(window)).await?;
        (url, Box::pin(server))
    } else {
        let (url, server) = api::open(port, api::Limit { count: args.count, window }).await?;
        (url, Box::pin(server))
    })
}

/// One of three stores behind one interface. The rest of the program is the same on each.
async fn limiter(store: &str) -> Result<Limiter, SetupError> {
    match store {
        "memory" => Ok(Limiter::in_memory()),
        "own" => Ok(Limiter::with_store(OwnStore::new(Clock::system()))),
        url => Limiter::connect(url).await,
    }
}

async fn import(args: &Args, file: &Path, api: Arc<register::Api>) -> Result<Report, Box<dyn Error>> {
    let start = Instant::now();
    let progress = Arc::new(Progress::new());
    let (sender, receiver) = mpsc::channel(64);

    let (path, sheet, part, shown) = (file.to_owned(), args.sheet.clone(), args.part, Arc::clone(&progress));
    let producer = tokio::task::spawn_blocking(move || -> Result<(), sheet::SheetError> {
        let mut book = Book::open(&path)?;
        let rows = book.rows(&sheet, part)?;
        shown.expect_rows(rows.expected());
        for row in rows {
            if sender.blocking_send(row).is_err() {
                break;
            }
        }
        Ok(())
    });

    let receiver = Arc::new(Mutex::new(receiver));
    let mut consumers = JoinSet::new();
    for _ in 0..args.consumers {
        let (receiver, api, progress) = (Arc::clone(&receiver), Arc::clone(&api), Arc::clone(&progress));
        let (bypass, window, allowance) = (args.bypass || args.outgoing, args.window, args.allowance);
        consumers.spawn(async move {
            let mut tally = Tally::default();
            while let Some(Row { number, item }) = next(&receiver).await {
                match item {
                    Ok(item) if bypass => tally.add(number, item.seller, api.post(&item).await),
                    Ok(item) => {
                        let call = register_within(window, allowance, &api, &item);
                        tally.add(number, item.seller, progress.of_call(number, item.seller, call).await);
                    }
                    Err(reason) => tally.add_failure(number, reason),
                }
                progress.row_is_done();
            }
            tally
        });
    }
    let (rule, shown) = (register::rule(args.window, args.allowance, args.count), Arc::clone(&progress));
    let display = tokio::spawn(async move { shown.show_waiting(rule).await });

    producer.await.map_err(|crash| format!("{}: the reader crashed: {crash}", file.display()))??;
    let mut tally = Tally::default();
    while let Some(done) = consumers.join_next().await {
        tally.merge(done?);
    }
    display.abort();
    progress.finish();
    let name = args.file.as_ref().map(|file| file.display().to_string());
    let took = start.elapsed();
    if args.outgoing {
        let figures = api.figures().await?;
        return Ok(Report::new(name, tally, took, None).with_limits(figures));
    }
    Ok(Report::new(name, tally, took, api.stats().await.ok()))
}

async fn next(rows: &Mutex<mpsc::Receiver<Row>>) -> Option<Row> {
    rows.lock().await.recv().await
}
