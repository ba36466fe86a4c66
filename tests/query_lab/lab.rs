//! A lab, the log that it writes, and the time for which the machine halted meanwhile.

use std::{
    env, fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use reqwest::{Client, Response};
use rustix::{
    process::{Pid, Signal, kill_process},
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};
use serde::Deserialize;
use serde_json::Value;
use tokio::{
    sync::{Mutex, MutexGuard},
    time::sleep,
};

/// A process of the lab. Dropped, it ends.
pub(crate) struct Lab {
    process: Child,
    pub(crate) url: String,
    pub(crate) client: Client,
}

pub(crate) fn program() -> Command {
    let test = env::current_exe().unwrap();
    let program = test.ancestors().nth(2).unwrap().join("examples/query_lab");
    assert!(program.exists(), "{} is not built: run the tests with tests/run", program.display());
    Command::new(program)
}

impl Lab {
    pub(crate) fn start(store: &str, budget: &str, window: &str, log: &Path) -> Self {
        let mut command = program();
        command.args(["--listen", "127.0.0.1:0", "--store", store, "--budget", budget, "--window", window]);
        command.env("TMPDIR", log.parent().unwrap()).current_dir(log.parent().unwrap());
        let mut process = command.arg("--log").arg(log).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("{line}"));
        Self { process, url: url.to_owned(), client: Client::builder().no_proxy().build().unwrap() }
    }

    pub(crate) async fn query(&self, user: &str, sql: &str) -> Response {
        let query = self.client.post(format!("{}/query", self.url)).header("x-user", user).body(sql.to_owned());
        query.send().await.unwrap()
    }

    /// The error of a query, and its status.
    pub(crate) async fn refused(&self, user: &str, sql: &str) -> (u16, String) {
        let response = self.query(user, sql).await;
        let status = response.status().as_u16();
        let problem: Value = response.json().await.unwrap();
        assert_eq!(problem["status"], status, "{problem}");
        (status, problem["detail"].as_str().unwrap().to_owned())
    }

    /// Time that a user has left, and whether a query of the user runs.
    pub(crate) async fn account(&self, user: &str) -> (u64, bool) {
        let account = self.client.get(format!("{}/users/{user}", self.url)).send().await.unwrap();
        let account: Value = account.error_for_status().unwrap().json().await.unwrap();
        (account["left_ms"].as_u64().unwrap(), account["is_running"].as_bool().unwrap())
    }

    pub(crate) async fn account_becomes(&self, user: &str, expected: impl Fn((u64, bool)) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let account = self.account(user).await;
            if expected(account) {
                return;
            }
            assert!(Instant::now() < deadline, "{user} still has {account:?}");
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// The processes that it has started: those of queries, and those that wait for one.
    pub(crate) fn workers(&self) -> Vec<Process> {
        let ids = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
        ids.filter_map(Process::of).filter(|process| process.parent == self.process.id()).collect()
    }

    /// Processor time of its workers that have ended.
    pub(crate) fn processor_time(&self) -> Duration {
        Process::of(self.process.id()).unwrap().children_time
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A line of the log, as its readers see it. The tests share no code with the example.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Line {
    pub(crate) user: String,
    pub(crate) process: u32,
    pub(crate) start_us: u64,
    pub(crate) end_us: u64,
    pub(crate) given_us: u64,
    pub(crate) charged_ms: u64,
    pub(crate) outcome: String,
}

impl Line {
    pub(crate) fn took_us(&self) -> u64 {
        self.end_us - self.start_us
    }

    /// How far it ran past the time it was given.
    pub(crate) fn overrun_us(&self) -> u64 {
        self.took_us().saturating_sub(self.given_us)
    }

    pub(crate) fn within(&self, from_us: u64, to_us: u64) -> u64 {
        self.end_us.min(to_us).saturating_sub(self.start_us.max(from_us))
    }
}

pub(crate) fn read(log: &Path) -> Vec<Line> {
    fs::read_to_string(log).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A process, as the kernel describes it.
pub(crate) struct Process {
    pub(crate) id: u32,
    parent: u32,
    is_dead: bool,
    children_time: Duration,
}

impl Process {
    /// `None` if it has ended.
    fn of(id: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        // The name before them may have blanks.
        let fields: Vec<_> = stat[stat.rfind(')')? + 2..].split(' ').collect();
        let ticks = |field: usize| fields[field].parse::<u64>().unwrap();
        Some(Self {
            id,
            parent: fields[1].parse().unwrap(),
            is_dead: ["Z", "X"].contains(&fields[0]),
            children_time: Duration::from_millis(10 * (ticks(13) + ticks(14))),
        })
    }

    pub(crate) fn has_ended(&self) -> bool {
        Self::of(self.id).is_none_or(|process| process.is_dead)
    }
}

/// A test that keeps the machine busy runs alone among those of this file.
pub(crate) async fn alone() -> MutexGuard<'static, ()> {
    static MACHINE: Mutex<()> = Mutex::const_new(());
    MACHINE.lock().await
}

/// Watches for times at which the machine halts: a thread on each processor sleeps for a moment, over and over.
/// Where it slept for much longer, that processor was away.
pub(crate) struct Watch {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Vec<(u64, u64)>>>,
}

impl Watch {
    pub(crate) fn start() -> Self {
        const NAP: Duration = Duration::from_millis(5);
        const LONGEST_US: u64 = 12_000;
        let is_over = Arc::new(AtomicBool::new(false));
        let processors = sched_getaffinity(None).unwrap();
        let watch = |processor| {
            let is_over = Arc::clone(&is_over);
            thread::spawn(move || {
                let mut only = CpuSet::new();
                only.set(processor);
                sched_setaffinity(None, &only).unwrap();
                let (mut halts, mut last) = (Vec::new(), now_us());
                while !is_over.load(Ordering::Relaxed) {
                    thread::sleep(NAP);
                    let now = now_us();
                    if now.saturating_sub(last) > LONGEST_US {
                        halts.push((last, now));
                    }
                    last = now;
                }
                halts
            })
        };
        let threads = (0..CpuSet::MAX_CPU).filter(|processor| processors.is_set(*processor)).map(watch).collect();
        Self { is_over, threads }
    }

    pub(crate) fn finish(self) -> Halts {
        self.is_over.store(true, Ordering::Relaxed);
        Halts(self.threads.into_iter().map(|thread| thread.join().unwrap()).collect())
    }
}

/// The times at which the machine halted, for each processor.
pub(crate) struct Halts(Vec<Vec<(u64, u64)>>);

impl Halts {
    /// Time of an interval in which a processor was away.
    pub(crate) fn within(&self, from_us: u64, to_us: u64) -> u64 {
        let halted = |(from, to): &(u64, u64)| to_us.min(*to).saturating_sub(from_us.max(*from));
        self.0.iter().map(|halts| halts.iter().map(halted).sum()).max().unwrap_or_default()
    }

    /// Fails if a query ran for longer than it was given and 100 ms, times without a halt. Returns the longest time
    /// that a query ran past what it was given, halts included.
    pub(crate) fn judge(&self, lines: &[Line]) -> Duration {
        const LONGEST_US: u64 = 100_000;
        for line in lines {
            let halted = self.within(line.start_us + line.given_us, line.end_us);
            assert!(line.overrun_us().saturating_sub(halted) <= LONGEST_US, "halted for {halted} us: {line:?}");
        }
        Duration::from_micros(lines.iter().map(Line::overrun_us).max().unwrap_or_default())
    }
}

fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros().try_into().unwrap()
}
