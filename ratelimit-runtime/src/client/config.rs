//! Settings of outgoing calls, and the upstreams they have been made to.

use std::{
    borrow::Cow,
    collections::HashMap,
    fmt::{self, Write as _},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use http::{
    HeaderMap, Method,
    header::{AUTHORIZATION, HeaderName},
};
use once_cell::sync::OnceCell;
use sha2::{Digest as _, Sha256};

use super::{
    counters::{Counters, bucket},
    upstream::{LONGEST_PAUSE, UpstreamState},
};
use crate::{Builder, Key, Limiter, RateKey, Rule, rule::limits::EXACT};

/// Limits of outgoing calls that are not configured: each upstream announces its own.
///
/// It is a `tower` layer for a client of HTTP requests and, with the feature `reqwest-middleware`,
/// a middleware of [`reqwest_middleware`](https://docs.rs/reqwest-middleware). A call waits until it
/// may be sent; see the [module](crate::client).
///
/// Clones share everything. Processes share what upstreams announced through the limiter's store.
///
/// ```
/// use http::{Request, Response};
/// use ratelimit_runtime::{Limiter, client::Outgoing};
/// use std::{convert::Infallible, time::Duration};
/// use tower::{ServiceBuilder, ServiceExt, service_fn};
///
/// // In place of a client such as that of `hyper-util`.
/// let client = service_fn(async |_: Request<String>| {
///     let response = Response::builder().header("RateLimit", "\"api\";r=99;t=60");
///     Ok::<_, Infallible>(response.body(()).unwrap())
/// });
/// let outgoing = Outgoing::new(Limiter::in_memory()).longest_pause(Duration::from_secs(300));
/// let client = ServiceBuilder::new().layer(outgoing).service(client);
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let request = Request::get("https://api.example.com/items").body(String::new()).unwrap();
/// assert_eq!(client.oneshot(request).await.unwrap().status(), 200);
/// # });
/// ```
#[derive(Clone, Debug)]
#[must_use = "it does nothing until it wraps a client"]
pub struct Outgoing(pub(super) Arc<OutgoingConfig>);

/// A request, as [`Outgoing::key`] sees it.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct OutgoingRequest<'a> {
    /// The method.
    pub method: &'a Method,
    /// The host, in lower case.
    pub host: &'a str,
    /// The port, if the URI names one that is not the default.
    pub port: Option<u16>,
    /// The path, without a query.
    pub path: &'a str,
    /// The header fields.
    pub headers: &'a HeaderMap,
}

/// Without the header fields, which have credentials, and without the path, which may have one.
impl fmt::Debug for OutgoingRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { method, host, port, .. } = self;
        f.debug_struct("OutgoingRequest")
            .field("method", method)
            .field("host", host)
            .field("port", port)
            .finish_non_exhaustive()
    }
}

type KeyFn = dyn Fn(&OutgoingRequest<'_>) -> Key + Send + Sync;

pub(super) struct OutgoingConfig {
    pub(super) limiter: Limiter,
    /// Counts while the store is away, for this process alone.
    local: OnceCell<Limiter>,
    key: Arc<KeyFn>,
    pub(super) longest_pause: Duration,
    pub(super) longest_wait: Option<Duration>,
    pub(super) retries: u32,
    pub(super) retry_budget: Rule,
    pub(super) retries_any_method: bool,
    upstreams: Mutex<Upstreams>,
}

/// The upstreams that calls were made to.
struct Upstreams {
    /// By whether the store or this process alone counts, and by key.
    by_key: HashMap<(bool, Key), Arc<UpstreamState>>,
    /// From this number on, those are dropped that no call uses, unless they know what the store does not. Their
    /// windows are asked for again.
    drop_at: usize,
}

/// The least [`Upstreams::drop_at`].
const MANY: usize = 1_000;

impl Default for Upstreams {
    fn default() -> Self {
        Self { by_key: HashMap::new(), drop_at: MANY }
    }
}

impl Outgoing {
    /// Shares what upstreams announce through the store of this limiter.
    pub fn new(limiter: Limiter) -> Self {
        Self(Arc::new(OutgoingConfig {
            limiter,
            local: OnceCell::new(),
            key: Arc::new(host_and_credential),
            longest_pause: Duration::from_secs(300),
            longest_wait: None,
            retries: 3,
            retry_budget: budget(100, Duration::from_secs(10)),
            retries_any_method: false,
            upstreams: Mutex::default(),
        }))
    }

    /// Sets who shares a limit of the upstream. By default calls to one host with one credential:
    /// the fields `Authorization` and `X-Api-Key`, of which only a hash is stored. An API that has
    /// several limits for one credential, such as one for searches, needs a key for each. So does one whose requests
    /// are signed in `Authorization`: each signature would be a credential of its own.
    ///
    /// ```
    /// # use ratelimit_runtime::{Limiter, client::Outgoing};
    /// // This API counts each seller, who is the first part of the path.
    /// let outgoing = Outgoing::new(Limiter::in_memory())
    ///     .key(|request| (request.host.to_owned(), request.path.split('/').nth(1).unwrap_or_default().to_owned()));
    /// ```
    pub fn key<K: RateKey>(self, key: impl Fn(&OutgoingRequest<'_>) -> K + Send + Sync + 'static) -> Self {
        self.with(|config| config.key = Arc::new(move |request| Key::new(key(request))))
    }

    /// Sets the longest pause, whatever an upstream announces. By default 5 minutes, and a day at
    /// most.
    ///
    /// A call whose pause was cut short asks the upstream again, alone. A call may wait for several
    /// pauses in a row; [`Outgoing::longest_wait`] bounds the sum. Set the same time in all processes:
    /// each obeys the longest pause that one of them has set.
    pub fn longest_pause(self, longest: Duration) -> Self {
        self.with(|config| config.longest_pause = longest.min(LONGEST_PAUSE))
    }

    /// Sets the longest time that a call waits until it may be sent. By default it is not bounded.
    ///
    /// A call that would have to wait for longer fails with [`Cause::Exceeded`](crate::Cause::Exceeded)
    /// and was not sent: at once if the wait is known, as a pause is. If it waited for the store, it
    /// fails with [`Cause::Unavailable`](crate::Cause::Unavailable). Each retry may wait for as long
    /// again. If it would have to wait for longer, the call returns the response that it had.
    ///
    /// The time does not include the wait for the inner service of a layer, which may begin again when a window has
    /// ended: only a timeout around the whole call bounds it.
    ///
    /// Calls also wait for the response of a probe. So of calls that begin at once, a time of zero lets one
    /// through until the window is known, and the others fail.
    pub fn longest_wait(self, longest: Duration) -> Self {
        self.with(|config| config.longest_wait = Some(longest))
    }

    /// Sets the number of retries of one call. By default 3; with 0, responses are passed on as they
    /// are.
    ///
    /// Calls are repeated that were answered with 429, 502, 503 or 504, or not at all. The method
    /// must be idempotent, see [`Outgoing::retry_any_method`], and it must be possible to copy the
    /// body. After a refusal the pause of the upstream is waited for. Otherwise, and over
    /// [`Limiter::unlimited`], a random time of up to 100 ms, which doubles with each retry.
    ///
    /// The response before a retry is kept until the retry is sent, or waits for the inner service of a layer.
    /// Meanwhile its body may hold what other calls of that service wait for.
    pub fn retries(self, retries: u32) -> Self {
        self.with(|config| config.retries = retries)
    }

    /// Sets the retry budget: the number of retries in a period, of all processes and for each key.
    /// By default 100 in 10 seconds. A call is not repeated when it is used up. Retries after a refusal
    /// do not spend it: they wait for the pause, and for their place in the next window. But if the
    /// pause is shorter than 100 ms, they do, and wait for a random time, too. While the
    /// store is away, each process has a budget of its own.
    ///
    /// The budget refills evenly. A count of 0 or an invalid period allows no retries.
    pub fn retry_budget(self, count: u64, period: Duration) -> Self {
        self.with(|config| config.retry_budget = budget(count, period))
    }

    /// Repeats calls of any method. By default only `GET`, `HEAD`, `OPTIONS`, `TRACE`, `PUT` and
    /// `DELETE` are repeated: a `POST` may have been carried out before its answer was lost.
    pub fn retry_any_method(self) -> Self {
        self.with(|config| config.retries_any_method = true)
    }

    fn with(self, change: impl FnOnce(&mut OutgoingConfig)) -> Self {
        let OutgoingConfig { ref limiter, ref key, .. } = *self.0;
        let (limiter, key) = (limiter.clone(), Arc::clone(key));
        let OutgoingConfig { longest_pause, longest_wait, retries, retry_budget, retries_any_method, .. } = *self.0;
        let mut config = OutgoingConfig {
            limiter,
            local: OnceCell::new(),
            key,
            longest_pause,
            longest_wait,
            retries,
            retry_budget,
            retries_any_method,
            upstreams: Mutex::default(),
        };
        change(&mut config);
        Self(Arc::new(config))
    }
}

impl OutgoingConfig {
    pub(super) fn key_of(&self, request: &OutgoingRequest<'_>) -> Key {
        (self.key)(request)
    }

    pub(super) fn may_retry(&self, method: &Method) -> bool {
        self.retries_any_method || method.is_idempotent()
    }

    /// The upstream with this key, counted by the store.
    pub(super) fn upstream(&self, key: &Key) -> Arc<UpstreamState> {
        self.upstream_on(&self.limiter, false, key)
    }

    /// As above, for this process alone.
    pub(super) fn local_upstream(&self, key: &Key) -> Arc<UpstreamState> {
        let clock = || self.limiter.engine().settings().clock.clone();
        let local = self.local.get_or_init(|| Builder::memory_with(clock()));
        self.upstream_on(local, true, key)
    }

    fn upstream_on(&self, limiter: &Limiter, is_local: bool, key: &Key) -> Arc<UpstreamState> {
        let mut upstreams = self.upstreams.lock().unwrap_or_else(PoisonError::into_inner);
        if upstreams.by_key.len() >= upstreams.drop_at {
            upstreams.by_key.retain(|_, upstream| Arc::strong_count(upstream) > 1 || upstream.knows_more());
            upstreams.drop_at = MANY.max(2 * upstreams.by_key.len());
        }
        let new = || {
            let counters = Counters::new(limiter.clone(), key.clone());
            Arc::new(UpstreamState::new(counters, self.limiter.clone(), self.longest_pause))
        };
        Arc::clone(upstreams.by_key.entry((is_local, key.clone())).or_insert_with(new))
    }
}

fn budget(count: u64, period: Duration) -> Rule {
    // More than a bucket can count is as good as no bound.
    let count = count.min(EXACT / u64::try_from(period.as_millis()).unwrap_or(u64::MAX).max(1));
    bucket("client-retries", count, period, count.max(1))
}

/// The default key. A credential is never stored, only a part of its hash.
fn host_and_credential(request: &OutgoingRequest<'_>) -> Key {
    const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
    let host: Cow<'_, str> = match request.port {
        Some(port) => format!("{}:{port}", request.host).into(),
        None => request.host.into(),
    };
    let mut hash = Sha256::new();
    let mut credential = String::new();
    for name in [AUTHORIZATION, API_KEY] {
        for value in request.headers.get_all(&name) {
            hash.update(name.as_str());
            hash.update((value.len() as u64).to_le_bytes());
            hash.update(value.as_bytes());
            credential.push('#');
        }
    }
    if !credential.is_empty() {
        credential.clear();
        for byte in &hash.finalize()[..16] {
            let _ = write!(credential, "{byte:02x}");
        }
    }
    Key::new((&*host, credential))
}

impl fmt::Debug for OutgoingConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutgoingConfig")
            .field("limiter", &self.limiter)
            .field("longest_pause", &self.longest_pause)
            .field("longest_wait", &self.longest_wait)
            .field("retries", &self.retries)
            .field("retry_budget", &self.retry_budget)
            .field("retries_any_method", &self.retries_any_method)
            .finish_non_exhaustive()
    }
}
