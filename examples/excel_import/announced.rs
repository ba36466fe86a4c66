//! An API that announces its limit in header fields, and changes it while calls come in.
//!
//! It counts all calls together, in windows that open with their first call.

use std::{
    io,
    net::Ipv4Addr,
    ops::RangeInclusive,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    Json, Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

/// Time that a call or its answer is on its way, in milliseconds.
const TRAVEL: RangeInclusive<u64> = 1..=20;
/// Longest time for a process to tell the others of a refusal: a round trip to the store, and the time to be let
/// run on a busy machine.
const TOLD: Duration = Duration::from_millis(50);

/// The limit of the API, and its changes: from so many accepted calls on, another one applies at once.
#[derive(Clone)]
pub(crate) struct Plan {
    pub(crate) window: Duration,
    pub(crate) limits: Vec<(u64, u64)>,
}

impl Plan {
    /// Three changes for the rows of the sample.
    #[allow(dead_code)] // a bench has a plan of its own
    pub(crate) fn of_sample(window: Duration) -> Self {
        Self { window, limits: vec![(0, 100), (150, 30), (210, 120), (400, 50)] }
    }
}

/// The figures since its start, as `GET /figures` returns them: one for each limit.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(crate) struct Figures {
    pub(crate) limit: u64,
    /// Calls that were here when it became the limit, the one that was just arriving included.
    pub(crate) in_flight: u64,
    pub(crate) accepted: u64,
    pub(crate) refused: u64,
    /// Refused calls that arrived here after it became the limit, and were sent before a refusal of it was known. No
    /// client can avoid them: nothing had told it of the change yet.
    pub(crate) unaware: u64,
    /// Refused calls that were sent later than a store round trip after the first refusal had arrived.
    pub(crate) late: u64,
    /// When it became the limit.
    #[serde(skip)]
    began: Option<Instant>,
    /// When the first refusal had arrived.
    #[serde(skip)]
    told: Option<Instant>,
}

struct Announced {
    plan: Plan,
    state: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    in_flight: u64,
    window: Option<(Instant, u64)>,
    figures: Vec<Figures>,
}

/// Opens the API on loopback, on any free port if it is 0. Gives its URL, and the future that serves it.
pub(crate) async fn open(port: u16, plan: Plan) -> io::Result<(String, impl Future<Output = io::Result<()>>)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    let url = format!("http://{}", listener.local_addr()?);
    let api = Arc::new(Announced { plan, state: Mutex::default() });
    let routes = Router::new().route("/items", post(register).put(register)).route("/figures", get(figures));
    Ok((url, async move { axum::serve(listener, routes.with_state(api)).await }))
}

async fn register(State(api): State<Arc<Announced>>) -> Response {
    let sent = Instant::now();
    api.counts().in_flight += 1;
    travel().await;
    let (at, response) = api.arrives(sent);
    travel().await;
    let mut counts = api.counts();
    counts.in_flight -= 1;
    if response.status() == StatusCode::TOO_MANY_REQUESTS {
        counts.figures[at].told.get_or_insert_with(Instant::now);
    }
    response
}

async fn figures(State(api): State<Arc<Announced>>) -> Json<Vec<Figures>> {
    Json(api.counts().figures.clone())
}

async fn travel() {
    tokio::time::sleep(Duration::from_millis(fastrand::u64(TRAVEL))).await;
}

impl Announced {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts a call that arrives now, or refuses it. Also returns the place of the limit in force.
    fn arrives(&self, sent: Instant) -> (usize, Response) {
        let (now, counts, Plan { window, limits }) = (Instant::now(), &mut *self.counts(), &self.plan);
        let accepted: u64 = counts.figures.iter().map(|figures| figures.accepted).sum();
        if let Some((_, limit)) = limits.get(counts.figures.len()).filter(|(from, _)| accepted >= *from) {
            let in_flight = counts.in_flight;
            let (limit, began) = (*limit, Some(now));
            counts.figures.push(Figures { limit, in_flight, began, ..Figures::default() });
        }
        let at = counts.figures.len() - 1;
        let figures = &mut counts.figures[at];
        let (opened, used) = counts.window.get_or_insert((now, 0));
        if now.duration_since(*opened) >= *window {
            (*opened, *used) = (now, 0);
        }
        let left = window.saturating_sub(now.duration_since(*opened)).as_secs_f64().ceil();
        let is_accepted = *used < figures.limit;
        if is_accepted {
            *used += 1;
            figures.accepted += 1;
        } else {
            figures.refused += 1;
            let is_late = figures.told.is_some_and(|told| sent > told + TOLD);
            figures.late += u64::from(is_late);
            figures.unaware += u64::from(!is_late && figures.began.is_some_and(|began| sent > began));
        }
        let fields = [
            ("ratelimit-policy", format!("\"items\";q={};w={}", figures.limit, window.as_secs())),
            ("ratelimit", format!("\"items\";r={};t={left}", figures.limit.saturating_sub(*used))),
        ];
        let response = if is_accepted {
            (StatusCode::CREATED, fields).into_response()
        } else {
            (StatusCode::TOO_MANY_REQUESTS, fields, [("retry-after", left.to_string())]).into_response()
        };
        (at, response)
    }
}
