//! The time that a fleet of clients needs after a short stall of its server, until all of them
//! decide again.
//!
//! ```sh
//! cargo run --release -p ratelimit-benches --features rustls --bin stall         # 600 limiters, then 300
//! cargo run --release -p ratelimit-benches --features rustls --bin stall -- 1000 # or as many as said
//! ```
//!
//! Each limiter has a TLS connection of its own and makes ten calls a second. The server has an RSA
//! key of 4096 bits, made by `openssl`, halts for a second (SIGSTOP) and goes on. A limiter decides
//! again with the first of ten admitted calls in a row. All limiters are in this process, so on a
//! small machine they compete with the server for its processors.
//!
//! The second part is about a server that closes all connections at once (`CLIENT KILL`), so that
//! each client needs a new handshake. Connections are those whose handshake the server has
//! completed.

use std::{
    fs,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ratelimit_harness::RedisServer;
use ratelimit_runtime::{Limiter, OnStoreError, Rule};
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep, timeout},
};

const RULE: Rule = Rule::new("stall", 1_000_000_000, Duration::from_secs(3600));
const STALL: Duration = Duration::from_secs(1);
const BETWEEN_CALLS: Duration = Duration::from_millis(100);
/// A limiter decides again after this many admitted calls in a row.
const ENOUGH: u32 = 10;
const LONGEST: Duration = Duration::from_secs(60);
const TURNS: usize = 3;

/// The latest row of admitted calls of a limiter.
#[derive(Default)]
struct Row {
    calls: u32,
    began: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
enum Trouble {
    Halted,
    Closed,
}

struct Fleet {
    rows: Vec<Arc<Mutex<Row>>>,
    ends: Arc<AtomicBool>,
    callers: JoinSet<()>,
}

impl Fleet {
    async fn start(server: &RedisServer, count: usize) -> Result<Self, Box<dyn std::error::Error>> {
        let mut fleet = Self { rows: Vec::new(), ends: Arc::default(), callers: JoinSet::new() };
        let authority = fs::read(&server.tls().ok_or("a server with TLS")?.ca_pem)?;
        for number in 0..count {
            let builder = Limiter::builder(&server.url()).ca_certificate(authority.clone());
            let limiter = builder.on_store_error(OnStoreError::Deny).build().await?;
            let (row, ends) = (Arc::<Mutex<Row>>::default(), Arc::clone(&fleet.ends));
            fleet.rows.push(Arc::clone(&row));
            fleet.callers.spawn(async move {
                let mut next = interval(BETWEEN_CALLS);
                next.set_missed_tick_behavior(MissedTickBehavior::Delay);
                while !ends.load(Ordering::Relaxed) {
                    next.tick().await;
                    let began = Instant::now();
                    let is_admitted = limiter.acquire(&RULE, number as u64).await.is_ok();
                    let mut row = row.lock().expect("no panic");
                    if is_admitted {
                        row.calls += 1;
                        row.began.get_or_insert(began);
                    } else {
                        *row = Row::default();
                    }
                }
            });
        }
        Ok(fleet)
    }

    /// Waits until all limiters decide. When each of them began to, sorted, and how many never did.
    async fn decide(&self) -> (Vec<Instant>, usize) {
        let decides = |row: &Arc<Mutex<Row>>| {
            let row = row.lock().expect("no panic");
            row.began.filter(|_| row.calls >= ENOUGH)
        };
        let all = async {
            while !self.rows.iter().all(|row| decides(row).is_some()) {
                sleep(Duration::from_millis(20)).await;
            }
        };
        let _ = timeout(LONGEST, all).await;
        let mut began: Vec<_> = self.rows.iter().filter_map(decides).collect();
        began.sort_unstable();
        let never = self.rows.len() - began.len();
        (began, never)
    }

    fn forget(&self) {
        for row in &self.rows {
            *row.lock().expect("no panic") = Row::default();
        }
    }
}

/// Connections that the server has taken, without those of the harness.
fn connections(server: &RedisServer, asked: &mut u64) -> u64 {
    *asked += 1;
    let redis::Value::BulkString(stats) = server.command(&[b"INFO", b"stats"]) else { panic!("INFO is a text") };
    let stats = String::from_utf8_lossy(&stats).into_owned();
    let count = stats.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
    count.and_then(|count| count.trim().parse::<u64>().ok()).expect("a number") - *asked
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let counts: Vec<usize> = std::env::args().skip(1).map(|count| count.parse()).collect::<Result<_, _>>()?;
    let counts = if counts.is_empty() { vec![600, 300] } else { counts };
    println!(
        "{:>8} {:>8} {:>10} {:>10} {:>10} {:>7} {:>12}",
        "limiters", "server", "p50 s", "p99 s", "all s", "never", "connections"
    );
    for count in counts {
        let server = RedisServer::builder().rsa_tls(4096).start();
        let fleet = Fleet::start(&server, count).await?;
        let mut asked = 0;
        for trouble in [[Trouble::Halted; TURNS], [Trouble::Closed; TURNS]].concat() {
            let (_, never) = fleet.decide().await;
            assert_eq!(never, 0, "not all decide before the stall");
            let before = connections(&server, &mut asked);
            match trouble {
                Trouble::Halted => {
                    server.stop();
                    sleep(STALL).await;
                    server.cont();
                }
                Trouble::Closed => {
                    asked += 1;
                    server.command(&[b"CLIENT", b"KILL", b"TYPE", b"normal"]);
                }
            }
            fleet.forget();
            let began = Instant::now();
            let (decide, never) = fleet.decide().await;
            let opened = connections(&server, &mut asked) - before;
            let seconds = |percent: usize| {
                let at = (decide.len() * percent / 100).min(decide.len().saturating_sub(1));
                decide.get(at).map_or(f64::NAN, |decides| decides.saturating_duration_since(began).as_secs_f64())
            };
            println!(
                "{count:>8} {:>8} {:>10.3} {:>10.3} {:>10.3} {never:>7} {opened:>12}",
                format!("{trouble:?}"),
                seconds(50),
                seconds(99),
                seconds(100)
            );
        }
        fleet.ends.store(true, Ordering::Relaxed);
        fleet.callers.join_all().await;
    }
    Ok(())
}
