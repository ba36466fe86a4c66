//! One query of one user, and the limits on it.

use std::{
    collections::HashMap,
    process,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use clap::ValueEnum;
use ratelimit_runtime::{
    Algorithm, Limiter, Permit, RequestPerMinute, Rule, limit_concurrent_requests, limit_request_per_time,
};
use serde::Serialize;
use tokio::{sync::oneshot, task::spawn_blocking, time::sleep};

use crate::{
    database::{Database, Fault, Table},
    log::{Entry, Log, Outcome},
    workers::Workers,
};

/// State that all queries share.
#[derive(Debug)]
pub(crate) struct Lab {
    pub(crate) workers: Workers,
    /// Queries that run at once in this process.
    pub(crate) most_workers: u64,
    pub(crate) limiter: Limiter,
    /// Time that the queries of a user may run in any window.
    pub(crate) budget_ms: u64,
    pub(crate) window: Window,
    pub(crate) log: Log,
    /// The start of each query that runs here, and the time it was given, by its user.
    pub(crate) running: Mutex<HashMap<String, (Instant, Duration)>>,
    /// Kept for as long as queries read it.
    pub(crate) _database: Database,
}

impl Lab {
    fn running(&self) -> MutexGuard<'_, HashMap<String, (Instant, Duration)>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The windows there is a `run` for, in milliseconds.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Window {
    #[value(name = "2s")]
    S2 = 2_000,
    #[value(name = "5s")]
    S5 = 5_000,
    #[value(name = "10s")]
    S10 = 10_000,
    #[value(name = "60s")]
    S60 = 60_000,
}

impl Window {
    pub(crate) fn length(self) -> Duration {
        Duration::from_millis(self as u64)
    }
}

/// Interval at which it is checked whether a query still has its place.
const CHECK: Duration = Duration::from_millis(50);

/// The function this program is about: one query of a user at a time, and all of them together no longer than the
/// budget in any window. A user who asks for more at once waits for the query before; one who has nothing left is
/// refused. All users together have a number of processes, and a query waits for a free one.
///
/// While a query runs, all that its user has left is held. The time that it took is charged when it ends, however it
/// ends.
///
/// `ttl` is a constant, hence the parameter; `count` may be any expression.
#[limit_concurrent_requests("query-place", 1, key = user, lease = "10s", on_limit = Wait)]
#[limit_concurrent_requests("query-workers", lab.most_workers, key = process::id(), lease = "10s")]
#[limit_request_per_time(
    prefix = "query-time",
    ttl = WINDOW_MS,
    unit = Milliseconds,
    count = lab.budget_ms,
    key = user,
    algorithm = SlidingLog,
    cost = Elapsed,
    permit = permit
)]
async fn run<const WINDOW_MS: u64>(
    lab: &Arc<Lab>,
    user: &str,
    sql: String,
) -> Result<(Entry, Answer), RequestPerMinute> {
    // A task of its own: the query is charged until its process has ended, even if the client leaves.
    let (_client, left) = oneshot::channel();
    let admitted = (permit, Instant::now());
    let query = lab.workers.spawn(execute(Arc::clone(lab), admitted, user.to_owned(), sql, left));
    Ok(query.await.expect("a query does not panic"))
}

/// Runs an admitted query, and logs its result.
///
/// `left` ends with the function that waits here. The permit is dropped at the end, and the query is charged.
async fn execute(
    lab: Arc<Lab>,
    (permit, admitted_at): (Permit, Instant),
    user: String,
    sql: String,
    left: oneshot::Receiver<()>,
) -> (Entry, Answer) {
    let (start_us, given) = (now_us(), permit.remaining_time());
    lab.running().insert(user.clone(), (Instant::now(), given));
    let place_lost = async {
        while permit.is_held() {
            sleep(CHECK).await;
        }
    };
    let stopped = async {
        tokio::select! {
            _ = left => Answer::Cancelled,
            () = place_lost => Answer::PlaceLost,
        }
    };
    let (answer, took) = lab.workers.run(sql, given, stopped).await;
    lab.running().remove(&user);
    let answer = if permit.is_held() { answer } else { Answer::PlaceLost };
    let logged =
        spawn_blocking(move || (lab.logged(user, start_us, [given, took, admitted_at.elapsed()], &answer), answer));
    logged.await.expect("the log does not panic")
}

/// Calls the `run` for this window.
async fn run_within(
    window: Window,
    lab: &Arc<Lab>,
    user: &str,
    sql: String,
) -> Result<(Entry, Answer), RequestPerMinute> {
    match window {
        Window::S2 => run::<{ Window::S2 as u64 }>(lab, user, sql).await,
        Window::S5 => run::<{ Window::S5 as u64 }>(lab, user, sql).await,
        Window::S10 => run::<{ Window::S10 as u64 }>(lab, user, sql).await,
        Window::S60 => run::<{ Window::S60 as u64 }>(lab, user, sql).await,
    }
}

/// The answer to a query.
#[derive(Debug)]
pub(crate) enum Answer {
    Rows(Table),
    Fault(Fault),
    Interrupted,
    Cancelled,
    PlaceLost,
    Refused(RequestPerMinute),
}

/// Runs a query in the name of a user, and logs its result. Dropped, it ends the query.
pub(crate) async fn ask(lab: &Arc<Lab>, user: &str, sql: String) -> (Entry, Answer) {
    run_within(lab.window, lab, user, sql).await.unwrap_or_else(|refused| {
        let answer = Answer::Refused(refused);
        (lab.logged(user.to_owned(), now_us(), [Duration::ZERO; 3], &answer), answer)
    })
}

impl Lab {
    /// Charged is all the time since the admission.
    fn logged(&self, user: String, start_us: u64, [given, took, charged]: [Duration; 3], answer: &Answer) -> Entry {
        let outcome = match answer {
            Answer::Rows(_) => Outcome::Rows,
            Answer::Fault(Fault::Sql(_)) => Outcome::Fault,
            Answer::Fault(Fault::Memory) => Outcome::Memory,
            Answer::Fault(Fault::Lab(_)) => Outcome::LabFault,
            Answer::Interrupted => Outcome::Interrupted,
            Answer::Cancelled => Outcome::Cancelled,
            Answer::PlaceLost => Outcome::PlaceLost,
            Answer::Refused(_) => Outcome::Refused,
        };
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let entry = Entry {
            user,
            process: process::id(),
            start_us,
            end_us: start_us.saturating_add(us(took)),
            given_us: us(given),
            charged_ms: us(charged).div_ceil(1_000),
            outcome,
        };
        self.log.write(&entry);
        entry
    }
}

/// The rest of the budget of a user.
#[derive(Debug, Serialize)]
pub(crate) struct Account {
    budget_ms: u64,
    window_ms: u64,
    left_ms: u64,
    /// A query of the user runs, and holds all that is left.
    is_running: bool,
    /// Time that it has run and was given, if it runs in this process.
    progress_ms: Option<[u64; 2]>,
}

impl Account {
    pub(crate) async fn of(lab: &Lab, user: &str) -> Result<Self, RequestPerMinute> {
        // Counters are known by what stands in the attributes of `run`.
        let time = Rule::new("query-time", lab.budget_ms, lab.window.length()).with_algorithm(Algorithm::SlidingLog);
        let place = Rule::new("query-place", 1, Duration::from_secs(10)).with_algorithm(Algorithm::Concurrent);
        let left_ms = lab.limiter.peek(&time, user).await?.remaining();
        let is_running = lab.limiter.peek(&place, user).await?.remaining() == 0;
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let progress_ms = lab.running().get(user).map(|(start, given)| [ms(start.elapsed()), ms(*given)]);
        Ok(Self { budget_ms: lab.budget_ms, window_ms: lab.window as u64, left_ms, is_running, progress_ms })
    }
}

/// By a clock that all processes of the machine have.
fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}
