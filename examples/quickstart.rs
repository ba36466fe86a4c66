//! Three limited functions. No server is needed, and with one the same code runs on it:
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
async fn order(seller: &str) -> Result<String, RequestPerMinute> {
    Ok(format!("order of {seller} taken, {} left", permit.remaining()))
}

/// Two mails in any half second. A call beyond that waits for its turn.
#[limit_request_per_time(
    prefix = "mail", ttl = 500, unit = Milliseconds, count = 2, algorithm = SlidingLog, on_limit = Wait
)]
async fn mail(to: &str) -> Result<String, RequestPerMinute> {
    Ok(format!("mail to {to} sent"))
}

/// Two at once: a refused call is charged to neither, and the error names the limit that refused.
#[limit_request_per_time("payout-seller", 1, Seconds, 2, key = seller)]
#[limit_request_per_time("payout-all", 1, Seconds, 3)]
async fn pay_out(seller: &str) -> Result<String, RequestPerMinute> {
    Ok(format!("{seller} paid"))
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

    println!("3 orders a second for each seller, one more is refused:");
    let start = Instant::now();
    for seller in ["alice", "alice", "alice", "bob"] {
        show(start, order(seller).await);
    }
    if let Err(refused) = order("alice").await {
        let wait = refused.retry_after().unwrap_or_default();
        show(start, Err(refused));
        sleep(wait).await;
        show(start, order("alice").await);
    }

    println!("\n2 mails in any half second, one more waits:");
    let start = Instant::now();
    for to in ["ann", "ben", "cem", "dan", "eve"] {
        show(start, mail(to).await);
    }

    println!("\n2 payouts a second for each seller and 3 in all, one more is refused:");
    let start = Instant::now();
    for seller in ["alice", "alice", "alice", "bob", "bob"] {
        show(start, pay_out(seller).await);
    }
    Ok(())
}

fn show(start: Instant, answer: Result<String, RequestPerMinute>) {
    let at = start.elapsed().as_secs_f64();
    match answer {
        Ok(done) => println!("  {at:.3}s  {done}"),
        Err(refused) => println!("  {at:.3}s  refused: {refused}"),
    }
}
