//! One process of several that share limits.

use std::io::{BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use std::time::{Duration, Instant};

use ratelimit_harness::history::{History, RecordedLimiter, Recorder, TRAFFIC_RULES, Traffic, traffic};
use ratelimit_runtime::{Cause, OnStoreError, Rule};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::place::{Place, builder};
use crate::{percentile, runtime};

pub(crate) const TASKS: usize = 32;
pub(crate) const INSTANCES: u32 = 4;
/// The pause of a caller after a failed call. Without it, all calls would be over before the store
/// is back.
const BACK_OFF: Duration = Duration::from_millis(5);
const HOUR: Duration = Duration::from_secs(3600);

/// Every key of it is asked for once, so a call that was executed twice shows as 2.
pub(crate) const ONCE: Rule = Rule::new("once", 3, HOUR);
/// More is asked than there is.
pub(crate) const SHARED: Rule = Rule::new("shared", 200, HOUR);
pub(crate) const SHARED_KEYS: usize = 16;

/// The outcome of a call for [`ONCE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Fate {
    Admitted,
    Refused,
    /// It may have been charged or not.
    Unavailable,
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    /// By the key's number.
    pub(crate) once: Vec<Option<Fate>>,
    /// Admitted, by the key's number.
    pub(crate) shared: Vec<u64>,
    pub(crate) shared_sent: u64,
    pub(crate) unavailable: u64,
    /// Errors other than a refusal and an unavailable store.
    pub(crate) errors: Vec<String>,
    /// Median, 99 of 100, and the longest, in microseconds.
    pub(crate) waits: [u64; 3],
    /// All calls, and those of other kinds that were made meanwhile.
    pub(crate) history: History,
}

/// A worker that is under way.
#[derive(Debug)]
pub(crate) struct Worker(Child);

impl Worker {
    /// Makes `decisions` calls. Half of them for keys of its own, from `number * decisions` on.
    pub(crate) fn start(place: &Place, policy: OnStoreError, number: usize, decisions: usize, ms: u64) -> Self {
        let authority = place.authority().unwrap_or_default();
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["worker", &place.url()]).arg(authority).arg(format!("{policy:?}"));
        command
            .args([number.to_string(), decisions.to_string(), ms.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        Self(command.spawn().expect("this program runs"))
    }

    pub(crate) fn report(mut self) -> Report {
        let out = self.0.stdout.take().expect("its output");
        let report = serde_json::from_reader(BufReader::new(out)).expect("the worker prints a report");
        let _ = self.0.wait();
        report
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The worker's own side: `URL AUTHORITY POLICY NUMBER DECISIONS MS`.
pub(crate) fn run(args: &[String]) {
    let [url, authority, policy, number, decisions, ms] = args else {
        panic!("not the arguments of a worker: {args:?}")
    };
    let authority = (!authority.is_empty()).then(|| PathBuf::from(authority));
    let policy = match policy.as_str() {
        "Local" => OnStoreError::Local,
        "Deny" => OnStoreError::Deny,
        other => panic!("{other} is no policy here"),
    };
    let (number, decisions): (usize, usize) = (number.parse().expect("a number"), decisions.parse().expect("a number"));
    let length = Duration::from_millis(ms.parse().expect("a number"));
    end_with_the_parent();
    let report = runtime().block_on(async {
        let limiter = builder(url, authority).on_store_error(policy).instances(INSTANCES).lazy().build().await;
        let recorder = Recorder::new(u32::try_from(number).expect("a few"));
        let rules: Vec<_> = TRAFFIC_RULES.into_iter().chain([(ONCE, 1, true), (SHARED, 1, true)]).collect();
        let limiter = RecordedLimiter::new(limiter.expect("a limiter"), recorder, &rules);
        let limiter = limiter.decides_alone(policy == OnStoreError::Local);
        let others = Traffic { tasks: 8, waiters: 6, length, pause: Duration::from_millis(10) };
        let (report, ()) = tokio::join!(work(limiter.clone(), number, decisions), traffic(limiter.clone(), others));
        Report { history: limiter.history(), ..report }
    });
    let report = serde_json::to_string(&report).expect("a report");
    std::io::stdout().write_all(report.as_bytes()).expect("the parent reads");
}

/// Standard input is a pipe the parent holds.
fn end_with_the_parent() {
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(1);
    });
}

async fn work(limiter: RecordedLimiter, number: usize, decisions: usize) -> Report {
    let next = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (limiter, next) = (limiter.clone(), Arc::clone(&next));
        tasks.spawn(async move {
            let (mut report, mut waits) = (Report { shared: vec![0; SHARED_KEYS], ..Report::default() }, Vec::new());
            let mut once = Vec::new();
            loop {
                let call = next.fetch_add(1, Ordering::Relaxed);
                if call >= decisions {
                    return (report, once, waits);
                }
                let shared = call % 2 == 1;
                let key = if shared { call / 2 % SHARED_KEYS } else { call / 2 };
                let asked = Instant::now();
                let answer = if shared {
                    limiter.acquire_as(TRAFFIC_RULES.len() + 1, (key as u64, key), 1, None).await.1
                } else {
                    let name = (number << 32 | key) as u64;
                    limiter.acquire_as(TRAFFIC_RULES.len(), (name, (number, key)), 1, None).await.1
                };
                waits.push(u64::try_from(asked.elapsed().as_micros()).unwrap_or(u64::MAX));
                let fate = match answer {
                    Ok(_) => Fate::Admitted,
                    Err(refused) if refused.cause() == Cause::Exceeded => Fate::Refused,
                    Err(refused) if refused.cause() == Cause::Unavailable => Fate::Unavailable,
                    Err(refused) => {
                        report.errors.push(refused.to_string());
                        Fate::Unavailable
                    }
                };
                if fate == Fate::Unavailable {
                    report.unavailable += 1;
                    sleep(BACK_OFF).await;
                }
                if shared {
                    report.shared_sent += 1;
                    report.shared[key] += u64::from(fate == Fate::Admitted);
                } else {
                    once.push((key, fate));
                }
            }
        });
    }
    let mut all = Report { once: vec![None; decisions.div_ceil(2)], shared: vec![0; SHARED_KEYS], ..Report::default() };
    let mut all_waits = Vec::new();
    for (report, once, waits) in tasks.join_all().await {
        for (key, fate) in once {
            all.once[key] = Some(fate);
        }
        for (sum, shared) in all.shared.iter_mut().zip(report.shared) {
            *sum += shared;
        }
        all.shared_sent += report.shared_sent;
        all.unavailable += report.unavailable;
        all.errors.extend(report.errors);
        all_waits.extend(waits);
    }
    all_waits.sort_unstable();
    all.waits = [percentile(&all_waits, 50), percentile(&all_waits, 99), all_waits.last().copied().unwrap_or(0)];
    all.errors.truncate(10);
    all
}
