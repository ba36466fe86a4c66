//! The call to the registration API, and the limit on it.

use std::{
    error::Error,
    fmt::{self, Display},
    time::Duration,
};

use clap::ValueEnum;
use ratelimit_runtime::{Algorithm, RequestPerMinute, Rule, client::Outgoing, limit_request_per_time};
use reqwest::StatusCode;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};

use crate::{announced::Figures, api::Stats, sheet::Item};

/// The function this program is about: at most `count` calls for each seller in any period, and who comes too early
/// waits.
///
/// The period is a bit longer than the API's window, because the two do not look at the same moment: a call counts
/// here when it is let through, and there when it arrives. If one call travels for 20 ms, and the one that is let
/// through a window later for 0 ms, they arrive 20 ms less than a window apart. The allowance is for that, and
/// has to cover the difference between the slowest and the fastest way: from the decision, so the store's answer and
/// waiting for a processor are part of it.
///
/// While Redis is away, a call waits for it, too. A row that is a minute late is better than one that was lost, or
/// that the API refused because calls were not counted.
///
/// `ttl` is a constant, hence the parameters; `count` may be any expression.
#[limit_request_per_time(
    prefix = "item-registration",
    ttl = WINDOW_MS + ALLOWANCE_MS,
    unit = Milliseconds,
    count = api.count,
    key = item.seller,
    algorithm = SlidingLog,
    on_limit = Wait,
    on_store_error = Wait(max = "1m")
)]
async fn register<const WINDOW_MS: u64, const ALLOWANCE_MS: u64>(api: &Api, item: &Item) -> Result<(), NotRegistered> {
    api.post(item).await
}

/// The rule of the attribute above, to look at the counter of a seller.
pub(crate) fn rule(window: Window, allowance: Allowance, count: u64) -> Rule {
    let period = Duration::from_millis(window as u64 + allowance as u64);
    Rule::new("item-registration", count, period).with_algorithm(Algorithm::SlidingLog)
}

/// Calls the `register` for this window and allowance.
pub(crate) async fn register_within(
    window: Window,
    allowance: Allowance,
    api: &Api,
    item: &Item,
) -> Result<(), NotRegistered> {
    match window {
        Window::S1 => with_window::<{ Window::S1 as u64 }>(allowance, api, item).await,
        Window::S2 => with_window::<{ Window::S2 as u64 }>(allowance, api, item).await,
        Window::S5 => with_window::<{ Window::S5 as u64 }>(allowance, api, item).await,
        Window::S10 => with_window::<{ Window::S10 as u64 }>(allowance, api, item).await,
        Window::S60 => with_window::<{ Window::S60 as u64 }>(allowance, api, item).await,
    }
}

async fn with_window<const WINDOW_MS: u64>(allowance: Allowance, api: &Api, item: &Item) -> Result<(), NotRegistered> {
    match allowance {
        Allowance::None => register::<WINDOW_MS, { Allowance::None as u64 }>(api, item).await,
        Allowance::Ms250 => register::<WINDOW_MS, { Allowance::Ms250 as u64 }>(api, item).await,
        Allowance::Ms500 => register::<WINDOW_MS, { Allowance::Ms500 as u64 }>(api, item).await,
        Allowance::Ms1000 => register::<WINDOW_MS, { Allowance::Ms1000 as u64 }>(api, item).await,
    }
}

/// The windows there is a `register` for, in milliseconds.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Window {
    #[value(name = "1s")]
    S1 = 1_000,
    #[value(name = "2s")]
    S2 = 2_000,
    #[value(name = "5s")]
    S5 = 5_000,
    #[value(name = "10s")]
    S10 = 10_000,
    #[value(name = "60s")]
    S60 = 60_000,
}

/// The allowances there is a `register` for, in milliseconds.
#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Allowance {
    #[value(name = "0")]
    None = 0,
    #[value(name = "250ms")]
    Ms250 = 250,
    #[value(name = "500ms")]
    Ms500 = 500,
    #[value(name = "1s")]
    Ms1000 = 1_000,
}

/// The registration API as its callers see it.
pub(crate) struct Api {
    url: String,
    http: ClientWithMiddleware,
    /// Number of calls it accepts in a window, for each seller.
    count: u64,
}

impl Api {
    pub(crate) fn new(url: &str, count: u64, outgoing: Option<Outgoing>) -> Result<Self, reqwest::Error> {
        let http = ClientBuilder::new(reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(10)).build()?);
        let http = outgoing.into_iter().fold(http, ClientBuilder::with).build();
        Ok(Self { url: url.trim_end_matches('/').into(), http, count })
    }

    /// Registers an item, whatever the limit.
    pub(crate) async fn post(&self, item: &Item) -> Result<(), NotRegistered> {
        let answer = self.http.post(format!("{}/items", self.url)).json(item).send().await?;
        match answer.status() {
            StatusCode::CREATED => Ok(()),
            StatusCode::TOO_MANY_REQUESTS => Err(NotRegistered::RefusedByApi),
            status => Err(NotRegistered::Status(status)),
        }
    }

    pub(crate) async fn stats(&self) -> Result<Stats, NotRegistered> {
        let answer = self.http.get(format!("{}/stats", self.url)).send().await?;
        answer.error_for_status()?.json().await.map_err(NotRegistered::from)
    }

    /// The figures of an API that announces its limit, one for each limit it had. This call does not count.
    pub(crate) async fn figures(&self) -> Result<Vec<Figures>, reqwest::Error> {
        let http = reqwest::Client::builder().no_proxy().build()?;
        http.get(format!("{}/figures", self.url)).send().await?.error_for_status()?.json().await
    }
}

#[derive(Debug)]
pub(crate) enum NotRegistered {
    /// The limiter could not decide; a call that is only too early waits.
    Limiter(RequestPerMinute),
    RefusedByApi,
    Status(StatusCode),
    Http(reqwest_middleware::Error),
}

impl From<RequestPerMinute> for NotRegistered {
    fn from(refused: RequestPerMinute) -> Self {
        Self::Limiter(refused)
    }
}

impl From<reqwest_middleware::Error> for NotRegistered {
    fn from(error: reqwest_middleware::Error) -> Self {
        Self::Http(error)
    }
}

impl From<reqwest::Error> for NotRegistered {
    fn from(error: reqwest::Error) -> Self {
        Self::Http(error.into())
    }
}

impl Display for NotRegistered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limiter(refused) => refused.fmt(f),
            Self::RefusedByApi => f.write_str("refused by the API: too many requests of this seller"),
            Self::Status(status) => write!(f, "the API answered {status}"),
            Self::Http(error) => {
                error.fmt(f)?;
                let mut source = error.source();
                while let Some(error) = source {
                    write!(f, ": {error}")?;
                    source = error.source();
                }
                Ok(())
            }
        }
    }
}

impl Error for NotRegistered {}
