//! Exactly the count is admitted, with any number of concurrent callers, tasks and processes.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use ratelimit_harness::RedisServer;
use ratelimit_runtime::{Algorithm, Limiter, Rule};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::support::{ALGORITHMS, BUCKET, By, FIXED, LOG, SLIDING, Timed, admitted, fresh_key, is_admitted};

/// `worker`, a process of its own.
struct Worker {
    process: Child,
    keys: ChildStdin,
    counts: BufReader<ChildStdout>,
}

impl Worker {
    fn start(url: &str, algorithm: &str, seconds: &str) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_worker"))
            .args([url, algorithm, "1000", seconds, "16", "24"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let keys = process.stdin.take().unwrap();
        let counts = BufReader::new(process.stdout.take().unwrap());
        Self { process, keys, counts }
    }

    fn ask(&mut self, key: u32) {
        writeln!(self.keys, "{key}").unwrap();
    }

    fn admitted(&mut self) -> u64 {
        let mut line = String::new();
        self.counts.read_line(&mut line).unwrap();
        line.trim().parse().unwrap_or_else(|_| panic!("the worker printed {line:?}"))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// 16 tasks × 24 attempts × 4 processes: 1,536 attempts.
fn four_processes_are_admitted_exactly_the_count(algorithm: &str, seconds: &str) {
    let server = RedisServer::start();
    let mut workers: Vec<_> = (0..4).map(|_| Worker::start(&server.url(), algorithm, seconds)).collect();
    for round in 0..50 {
        for worker in &mut workers {
            worker.ask(round);
        }
        let admitted: Vec<_> = workers.iter_mut().map(Worker::admitted).collect();
        assert_eq!(admitted.iter().sum::<u64>(), 1000, "round {round}: {admitted:?}");
    }
}

#[test]
fn four_processes_share_a_fixed_window() {
    four_processes_are_admitted_exactly_the_count("fixed", "60");
}

#[test]
fn four_processes_share_a_log() {
    four_processes_are_admitted_exactly_the_count("log", "60");
}

/// 100 days: nothing comes back while the test runs.
const SECONDS: &str = "8640000";

#[test]
fn four_processes_share_a_sliding_window() {
    four_processes_are_admitted_exactly_the_count("sliding", SECONDS);
}

#[test]
fn four_processes_share_a_token_bucket() {
    four_processes_are_admitted_exactly_the_count("bucket", SECONDS);
}

/// Admitted of 1,000 tasks that start at once.
async fn thousand_tasks(limiter: &Limiter, rule: Rule, key: u64) -> u64 {
    let mut tasks = JoinSet::new();
    let start = Arc::new(Barrier::new(1000));
    for _ in 0..1000 {
        let (limiter, start) = (limiter.clone(), Arc::clone(&start));
        tasks.spawn(async move {
            start.wait().await;
            is_admitted(limiter.acquire(&rule, key).await)
        });
    }
    tasks.join_all().await.into_iter().map(u64::from).sum()
}

async fn thousand_tasks_in_memory(algorithm: Algorithm) {
    let limiter = Limiter::in_memory();
    for round in 0..200 {
        let count = 1 + 5 * round;
        let rule = Rule::new("item", count, Duration::from_secs(100 * 86_400)).by(algorithm);
        assert_eq!(thousand_tasks(&limiter, rule, fresh_key()).await, count, "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_thousand_tasks_share_a_fixed_window_in_memory() {
    thousand_tasks_in_memory(FIXED).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_thousand_tasks_share_a_log_in_memory() {
    thousand_tasks_in_memory(LOG).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_thousand_tasks_share_a_sliding_window_in_memory() {
    thousand_tasks_in_memory(SLIDING).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_thousand_tasks_share_a_token_bucket_in_memory() {
    thousand_tasks_in_memory(BUCKET).await;
}

/// All calls carry the same microsecond.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_are_exact_while_the_clock_stands_still() {
    for timed in Timed::both().await {
        for algorithm in ALGORITHMS {
            let rule = Rule::new("item", 600, Duration::from_secs(60)).by(algorithm);
            assert_eq!(admitted(&timed.limiter, &rule, fresh_key(), 1000).await, 600, "{}", timed.of(&rule));
            assert_eq!(thousand_tasks(&timed.limiter, rule, fresh_key()).await, 600, "{}", timed.of(&rule));
        }
    }
}
