//! Outgoing calls to an API that announces its limit and changes it three times: refusals, rows and time.
//!
//! ```sh
//! cargo run --release -p ratelimit-benches --bin outgoing            # or -- --quick
//! ```
//!
//! Four processes with 16 tasks each send rows to one API, with one Redis. The API counts in fixed
//! windows, which open with their first call. The ideal client knows the limit at any time, and its
//! calls travel in no time. The peer is `reqwest-retry`, with its default policy and 20 retries. It
//! knows neither the header fields nor the other processes.

use std::{
    env,
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use ratelimit_harness::RedisServer;
use ratelimit_runtime::{Limiter, client::Outgoing};
use reqwest_middleware::{ClientBuilder, reqwest};
use reqwest_retry::{RetryTransientMiddleware, policies::ExponentialBackoff};
use tokio::task::JoinSet;

use self::announced::{Figures, Plan};

#[path = "../../../examples/excel_import/announced.rs"]
#[allow(unreachable_pub)]
mod announced;

const PROCESSES: usize = 4;
const TASKS: u64 = 16;
const WINDOW: Duration = Duration::from_secs(2);

#[derive(Clone, Copy)]
enum Client {
    Ours,
    Retry,
}

impl Client {
    const ALL: [(Self, &str); 2] = [(Self::Ours, "client::Outgoing"), (Self::Retry, "reqwest-retry")];
}

#[tokio::main]
async fn main() {
    let arguments: Vec<_> = env::args().skip(1).collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["worker", name, api, redis, rows] => work(name, api, redis, rows.parse().expect("a number")).await,
        ["--quick"] => compare(4).await,
        _ => compare(20).await,
    }
}

/// The rows of one process. It begins when its parent says so, and prints how many were accepted.
async fn work(name: &str, api: &str, redis: &str, rows: u64) {
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    let client = ClientBuilder::new(client);
    let client = match Client::ALL.into_iter().find(|(_, its_name)| *its_name == name).expect("a client").0 {
        Client::Ours => client.with(Outgoing::new(Limiter::connect(redis).await.expect("a limiter"))),
        Client::Retry => client
            .with(RetryTransientMiddleware::new_with_policy(ExponentialBackoff::builder().build_with_max_retries(20))),
    };
    let client = client.build();
    println!("ready");
    std::io::stdin().lock().read_line(&mut String::new()).expect("a line");
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (client, url) = (client.clone(), format!("{api}/items"));
        tasks.spawn(async move {
            let mut accepted = 0;
            for _ in 0..rows {
                let answer = client.put(&url).send().await;
                accepted += u64::from(answer.is_ok_and(|answer| answer.status().is_success()));
            }
            accepted
        });
    }
    println!("{}", tasks.join_all().await.into_iter().sum::<u64>());
}

async fn compare(rows_of_task: u64) {
    let rows = rows_of_task * TASKS * PROCESSES as u64;
    let part = |parts: u64| rows * parts / 100;
    let limits = vec![(0, part(10)), (part(24), part(3)), (part(36), part(16)), (part(82), part(5))];
    let plan = Plan { window: WINDOW, limits };
    println!("{rows} rows, limits of a {WINDOW:?} window {:?}", plan.limits);
    println!("the ideal takes {:?}\n", ideal(&plan, rows));
    println!(
        "| client | rows | seconds | for each limit: accepted + refused (in flight at the change; sent after it, before a refusal was known; sent later) |"
    );
    println!("|---|---|---|---|");
    for (_, name) in Client::ALL {
        let server = RedisServer::start();
        let (url, api) = announced::open(0, plan.clone()).await.expect("a port");
        let api = tokio::spawn(api);
        let mut workers: Vec<_> = (0..PROCESSES).map(|_| start(name, &url, &server.url(), rows_of_task)).collect();
        let began = Instant::now();
        for (worker, _) in &mut workers {
            worker.stdin.take().expect("a pipe").write_all(b"go\n").expect("a worker");
        }
        let accepted = tokio::task::spawn_blocking(move || {
            let mut accepted = 0;
            for (mut worker, mut output) in workers {
                accepted += line(&mut output).parse::<u64>().expect("a number");
                worker.wait().expect("a worker");
            }
            accepted
        });
        let (accepted, took) = (accepted.await.expect("workers"), began.elapsed());
        let figures: Vec<Figures> =
            reqwest::get(format!("{url}/figures")).await.expect("the API").json().await.expect("figures");
        let figures: Vec<_> = figures
            .iter()
            .map(|Figures { accepted, refused, in_flight, unaware, late, .. }| {
                format!("{accepted} + {refused} ({in_flight}; {unaware}; {late})")
            })
            .collect();
        println!("| {name} | {accepted} | {:.1} | {} |", took.as_secs_f64(), figures.join("; "));
        api.abort();
    }
}

fn start(name: &str, api: &str, redis: &str, rows: u64) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut command = Command::new(env::current_exe().expect("the path of this program"));
    command.args(["worker", name, api, redis, &rows.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut worker = command.spawn().expect("a process");
    let mut output = BufReader::new(worker.stdout.take().expect("a pipe"));
    assert_eq!(line(&mut output), "ready");
    (worker, output)
}

fn line(output: &mut impl std::io::BufRead) -> String {
    let mut line = String::new();
    output.read_line(&mut line).expect("a line");
    line.trim().to_owned()
}

/// The shortest time in which the API accepts so many calls.
fn ideal(plan: &Plan, rows: u64) -> Duration {
    let limit = |accepted: u64| plan.limits.iter().rfind(|(from, _)| accepted >= *from).map_or(0, |(_, limit)| *limit);
    let (mut used, mut windows) = (0, 0);
    for accepted in 0..rows {
        if used >= limit(accepted) {
            (used, windows) = (0, windows + 1);
        }
        used += 1;
    }
    plan.window * windows
}
