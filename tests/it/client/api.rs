//! An API with a limit that it announces and may change. It goes by tokio's time.

use std::{
    convert::Infallible,
    future::Future,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{Request, Response, StatusCode};
use ratelimit_runtime::client::{Outgoing, OutgoingError};
use tokio::time::{Instant, sleep};
use tower::{ServiceBuilder, ServiceExt as _, service_fn};

use crate::support::MS;

/// A fixed window that opens with its first call.
#[derive(Clone)]
pub(crate) struct Api(Arc<Mutex<State>>);

struct State {
    limit: u64,
    window: Duration,
    opened: Option<Instant>,
    used: u64,
    latency: [Duration; 2],
    is_silent: bool,
    /// Changes to make when so many calls have arrived, the next one last.
    changes: Vec<(usize, u64)>,
    in_flight: u64,
    calls: Vec<Seen>,
    /// For each change: its time, and the calls in flight.
    changed: Vec<(Instant, u64)>,
}

/// A call that arrived, and its answer.
#[derive(Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) sent: Instant,
    pub(crate) arrived: Instant,
    /// When its caller has the answer.
    pub(crate) answered: Instant,
    pub(crate) is_refused: bool,
}

impl Api {
    pub(crate) fn new(limit: u64, window: Duration) -> Self {
        Self(Arc::new(Mutex::new(State {
            limit,
            window,
            opened: None,
            used: 0,
            latency: [10 * MS, 10 * MS],
            is_silent: false,
            changes: Vec::new(),
            in_flight: 0,
            calls: Vec::new(),
            changed: Vec::new(),
        })))
    }

    fn with(self, change: impl FnOnce(&mut State)) -> Self {
        change(&mut self.0.lock().unwrap());
        self
    }

    /// The shortest and the longest time of a call in each direction.
    pub(crate) fn latency(self, shortest: Duration, longest: Duration) -> Self {
        self.with(|api| api.latency = [shortest, longest])
    }

    /// Announces nothing but `Retry-After`.
    pub(crate) fn silent(self) -> Self {
        self.with(|api| api.is_silent = true)
    }

    /// Has another limit once so many calls have arrived.
    pub(crate) fn then(self, calls: usize, limit: u64) -> Self {
        self.with(|api| api.changes.insert(0, (calls, limit)))
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.0.lock().unwrap().calls.clone()
    }

    pub(crate) fn refused(&self) -> usize {
        self.seen().iter().filter(|call| call.is_refused).count()
    }

    pub(crate) fn changed(&self) -> Vec<(Instant, u64)> {
        self.0.lock().unwrap().changed.clone()
    }

    /// Uses some of the limit, as another client of it would.
    pub(crate) fn use_elsewhere(&self, calls: u64) {
        self.0.lock().unwrap().used += calls;
    }

    async fn answer(self) -> Result<Response<()>, Infallible> {
        let travel = {
            let mut api = self.0.lock().unwrap();
            api.in_flight += 1;
            let [shortest, longest] = api.latency;
            move || shortest + (longest - shortest).mul_f64(fastrand::f64())
        };
        let sent = Instant::now();
        sleep(travel()).await;
        let back = travel();
        let response = self.0.lock().unwrap().arrives(sent, back);
        sleep(back).await;
        self.0.lock().unwrap().in_flight -= 1;
        Ok(response)
    }
}

impl State {
    fn arrives(&mut self, sent: Instant, back: Duration) -> Response<()> {
        let now = Instant::now();
        if self.changes.last().is_some_and(|(calls, _)| self.calls.len() >= *calls) {
            self.limit = self.changes.pop().unwrap().1;
            self.changed.push((now, self.in_flight));
        }
        let opened = *self.opened.get_or_insert(now);
        if now - opened >= self.window {
            (self.opened, self.used) = (Some(now), 0);
        }
        let is_refused = self.used >= self.limit;
        self.used += u64::from(!is_refused);
        self.calls.push(Seen { sent, arrived: now, answered: now + back, is_refused });
        let seconds = |time: Duration| time.as_secs() + u64::from(time.subsec_nanos() > 0);
        let left = seconds(self.opened.unwrap() + self.window - now);
        let mut response = Response::builder();
        if is_refused {
            response = response.status(StatusCode::TOO_MANY_REQUESTS).header("Retry-After", left);
        }
        if !self.is_silent {
            response = response
                .header("RateLimit-Policy", format!("\"api\";q={};w={}", self.limit, seconds(self.window)))
                .header("RateLimit", format!("\"api\";r={};t={left}", self.limit.saturating_sub(self.used)));
        }
        response.body(()).unwrap()
    }
}

/// One call of the API through the layer.
pub(crate) fn put(
    api: &Api,
    outgoing: &Outgoing,
) -> impl Future<Output = Result<StatusCode, OutgoingError<Infallible>>> + Send + use<> {
    let api = api.clone();
    let client = service_fn(move |_: Request<()>| api.clone().answer());
    let client = ServiceBuilder::new().layer(outgoing.clone()).service(client);
    async move { Ok(client.oneshot(Request::put("http://api/items").body(()).unwrap()).await?.status()) }
}
