//! Three limited functions, and a table of their calls. No server is needed, and with one the same code runs on it:
//!
//! ```text
//! cargo run --example quickstart
//! cargo run --example quickstart -- redis://127.0.0.1:6379
//! ```

use std::{error::Error, process::ExitCode};

use clap::Parser;
use ratelimit_runtime::{Limiter, RequestPerMinute, limit_request_per_time};
use tokio::time::{Instant, sleep};

/// Calls three limited functions and prints which calls got through, and when.
#[derive(Parser)]
struct Args {
    #[arg(default_value = "memory://", help = "Where calls are counted, for example redis://127.0.0.1:6379")]
    store: String,
}

/// Three orders a second for each seller. The body runs only for a call that is within the limit, and
/// finds what is left of it in `permit`. Any error type will do that is `From<RequestPerMinute>`.
#[limit_request_per_time(prefix = "order", ttl = 1, unit = Seconds, count = 3, key = seller, permit = permit)]
async fn order(seller: &str) -> Result<u64, RequestPerMinute> {
    Ok(permit.remaining())
}

/// Two mails in any half second. A call beyond that waits for its turn.
#[limit_request_per_time(
    prefix = "mail", ttl = 500, unit = Milliseconds, count = 2, algorithm = SlidingLog, on_limit = Wait,
    permit = permit
)]
async fn mail(_to: &str) -> Result<u64, RequestPerMinute> {
    Ok(permit.remaining())
}

/// Two at once: a refused call is charged to neither, and the error names the limit that refused.
#[limit_request_per_time("payout-seller", 1, Seconds, 2, key = seller, permit = permit)]
#[limit_request_per_time("payout-all", 1, Seconds, 3)]
async fn pay_out(seller: &str) -> Result<u64, RequestPerMinute> {
    Ok(permit.remaining())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run(&Args::parse().store).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("quickstart: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(store: &str) -> Result<(), Box<dyn Error>> {
    // Once, at the start of the process. Without it, limits are counted in memory.
    Limiter::connect(store).await?.install()?;

    let table = Table::begin("order: 3 a second for each seller, one more is refused");
    for seller in ["alice", "alice", "alice", "bob"] {
        table.show(seller, &order(seller).await);
    }
    let refused = order("alice").await;
    table.show("alice", &refused);
    if let Err(refused) = refused {
        sleep(refused.retry_after().unwrap_or_default()).await;
        table.show("alice", &order("alice").await);
    }

    println!();
    let table = Table::begin("mail: 2 in any half second, one more waits for its turn");
    for to in ["ann", "ben", "cem", "dan", "eve"] {
        table.show(to, &mail(to).await);
    }

    println!();
    let table = Table::begin("pay_out: 2 a second for each seller and 3 in all, one more is refused");
    for seller in ["alice", "alice", "alice", "bob", "bob"] {
        table.show(seller, &pay_out(seller).await);
    }
    Ok(())
}

/// The calls of one function. Times are seconds since its first call.
struct Table {
    start: Instant,
}

impl Table {
    fn begin(title: &str) -> Self {
        println!("{title}\n\n   time  key    result    remaining");
        Self { start: Instant::now() }
    }

    /// A line for a call, with a mark for each permit that remains.
    fn show(&self, key: &str, result: &Result<u64, RequestPerMinute>) {
        let time = self.start.elapsed().as_secs_f64();
        let (word, remaining, note) = match result {
            Ok(remaining) => ("admitted", *remaining, (0..*remaining).map(|_| '#').collect()),
            Err(error) => ("refused", error.remaining(), reason(error)),
        };
        println!("{}", format!("{time:7.3}  {key:5}  {word:8}  {remaining:9}  {note}").trim_end());
    }
}

fn reason(error: &RequestPerMinute) -> String {
    match error.retry_after() {
        Some(wait) => format!("by {}, retry in {:.3} s", error.rule(), wait.as_secs_f64()),
        None => error.to_string(), // for example, the store is not available
    }
}
