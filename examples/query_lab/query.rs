//! One query of one user, and the limits on it.

use std::{
    process,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use clap::ValueEnum;
use ratelimit_runtime::{
    Algorithm, Limiter, RequestPerMinute, Rule, limit_concurrent_requests, limit_request_per_time,
};
use serde::Serialize;
use tokio::{
    task::{JoinError, spawn_blocking},
    time::timeout,
};

use crate::{
    database::{Database, Fault, Table, Time},
    log::{Entry, Log, Outcome},
};

/// State that all queries share.
#[derive(Debug)]
pub(crate) struct Lab {
    pub(crate) database: Arc<Database>,
    pub(crate) limiter: Limiter,
    /// Time that the queries of a user may run in any window.
    pub(crate) budget_ms: u64,
    pub(crate) window: Window,
    pub(crate) log: Log,
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

/// How often it is looked whether a query still has its place.
const LOOK: Duration = Duration::from_millis(50);

/// The function this program is about: one query of a user at a time, and all of them together no longer than the
/// budget in any window. Who asks for more at once waits for the query before; who has nothing left is refused.
///
/// While a query runs, all that its user has left is held. What it took is charged when it ends, however it ends.
///
/// `ttl` is a constant, hence the parameter; `count` may be any expression.
#[limit_concurrent_requests("query-place", 1, key = user, lease = "10s", on_limit = Wait)]
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
    lab: &Lab,
    user: &str,
    sql: String,
    is_wanted: &AtomicBool,
) -> Result<Ran, RequestPerMinute> {
    let (start_us, given) = (now_us(), permit.remaining_time());
    let time = Time::new(given);
    let (database, its_time) = (Arc::clone(&lab.database), time.clone());
    let mut query = spawn_blocking(move || database.read(&sql, &its_time));
    let result = loop {
        // Without its place, another query may run beside it. What is stopped is waited for all the same.
        if !permit.is_held() || !is_wanted.load(Ordering::Relaxed) {
            time.stop();
        }
        if let Ok(result) = timeout(LOOK, &mut query).await {
            break result;
        }
    };
    let answer = match result {
        _ if !permit.is_held() => Answer::PlaceLost,
        Ok(Ok(rows)) => Answer::Rows(rows),
        Ok(Err(Fault::Sql(words))) => Answer::Fault(words),
        Ok(Err(Fault::Interrupted)) if is_wanted.load(Ordering::Relaxed) => Answer::Interrupted,
        Ok(Err(Fault::Interrupted)) => Answer::Cancelled,
        Err(crash) => Answer::Fault(crash.to_string()),
    };
    Ok(Ran { start_us, end_us: now_us(), given, answer })
}

/// A query that was let through.
struct Ran {
    start_us: u64,
    end_us: u64,
    /// Time that its user had left at the start.
    given: Duration,
    answer: Answer,
}

/// Calls the `run` for this window.
async fn run_within(
    window: Window,
    lab: &Lab,
    user: &str,
    sql: String,
    is_wanted: &AtomicBool,
) -> Result<Ran, RequestPerMinute> {
    match window {
        Window::S2 => run::<{ Window::S2 as u64 }>(lab, user, sql, is_wanted).await,
        Window::S5 => run::<{ Window::S5 as u64 }>(lab, user, sql, is_wanted).await,
        Window::S10 => run::<{ Window::S10 as u64 }>(lab, user, sql, is_wanted).await,
        Window::S60 => run::<{ Window::S60 as u64 }>(lab, user, sql, is_wanted).await,
    }
}

/// The answer to a query.
#[derive(Debug)]
pub(crate) enum Answer {
    Rows(Table),
    /// The error, in the words of the database.
    Fault(String),
    Interrupted,
    Cancelled,
    PlaceLost,
    Refused(RequestPerMinute),
}

/// Runs a query in the name of a user, and logs its result. It ends early once no client waits for
/// it.
///
/// It runs in a task of its own: whoever waits here may go away, and the query has its place until it has ended.
pub(crate) async fn ask(
    lab: Arc<Lab>,
    user: String,
    sql: String,
    is_wanted: Arc<AtomicBool>,
) -> Result<(Entry, Answer), JoinError> {
    let task = tokio::spawn(async move {
        let ran = run_within(lab.window, &lab, &user, sql, &is_wanted).await.unwrap_or_else(|refused| {
            let now = now_us();
            Ran { start_us: now, end_us: now, given: Duration::ZERO, answer: Answer::Refused(refused) }
        });
        let Ran { start_us, end_us, given, answer } = ran;
        let entry = Entry {
            user,
            process: process::id(),
            start_us,
            end_us,
            given_us: given.as_micros().try_into().unwrap_or(u64::MAX),
            charged_ms: end_us.saturating_sub(start_us).div_ceil(1_000),
            outcome: match answer {
                Answer::Rows(_) => Outcome::Rows,
                Answer::Fault(_) => Outcome::Fault,
                Answer::Interrupted => Outcome::Interrupted,
                Answer::Cancelled => Outcome::Cancelled,
                Answer::PlaceLost => Outcome::PlaceLost,
                Answer::Refused(_) => Outcome::Refused,
            },
        };
        lab.log.write(&entry);
        (entry, answer)
    });
    task.await
}

/// The rest of the budget of a user.
#[derive(Debug, Serialize)]
pub(crate) struct Account {
    budget_ms: u64,
    window_ms: u64,
    left_ms: u64,
    /// A query of the user runs, and holds all that is left.
    is_running: bool,
}

impl Account {
    pub(crate) async fn of(lab: &Lab, user: &str) -> Result<Self, RequestPerMinute> {
        // Counters are known by what stands in the attributes of `run`.
        let time = Rule::new("query-time", lab.budget_ms, lab.window.length()).with_algorithm(Algorithm::SlidingLog);
        let place = Rule::new("query-place", 1, Duration::from_secs(10)).with_algorithm(Algorithm::Concurrent);
        let left_ms = lab.limiter.peek(&time, user).await?.remaining();
        let is_running = lab.limiter.peek(&place, user).await?.remaining() == 0;
        Ok(Self { budget_ms: lab.budget_ms, window_ms: lab.window as u64, left_ms, is_running })
    }
}

/// By a clock that all processes of the machine have.
fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}
