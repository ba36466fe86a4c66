//! The marketplace's item registration API: accepts so many calls of a seller in any window and refuses the others.
//!
//! It knows nothing of the limiter. It goes by its own clock and by when a call arrives.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    net::Ipv4Addr,
    ops::RangeInclusive,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    Json, Router,
    extract::State,
    http::StatusCode,
    routing::{get, post},
};
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

use crate::sheet::Item;

/// Time that a call is on its way, in milliseconds. `--allowance` has to cover the spread.
const TRAVEL: RangeInclusive<u64> = 0..=20;
/// Time to register or refuse an item, in milliseconds.
const PROCESSING: RangeInclusive<u64> = 5..=30;

#[derive(Clone, Copy)]
pub(crate) struct Limit {
    pub(crate) count: u64,
    pub(crate) window: Duration,
}

/// The figures of the API since its start, as `GET /stats` returns them.
#[derive(Deserialize, Serialize)]
pub(crate) struct Stats {
    /// Its limit: so many in any window, for each seller.
    pub(crate) count: u64,
    pub(crate) window_ms: u64,
    pub(crate) accepted: u64,
    pub(crate) refused: u64,
    /// The most it accepted of one seller in one window.
    pub(crate) most_in_window: u64,
    pub(crate) sellers: BTreeMap<u64, Seller>,
}

#[derive(Clone, Default, Deserialize, Serialize)]
pub(crate) struct Seller {
    accepted: u64,
    refused: u64,
    most_in_window: u64,
    /// Arrival times of the calls that count in the window that ends now.
    #[serde(skip)]
    window: VecDeque<Instant>,
}

struct Api {
    limit: Limit,
    sellers: Mutex<BTreeMap<u64, Seller>>,
}

/// Opens the API on loopback, on any free port if it is 0. Gives its URL, and the future that serves it.
pub(crate) async fn open(port: u16, limit: Limit) -> io::Result<(String, impl Future<Output = io::Result<()>>)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    let url = format!("http://{}", listener.local_addr()?);
    let api = Arc::new(Api { limit, sellers: Mutex::default() });
    let routes = Router::new().route("/items", post(register)).route("/stats", get(stats)).with_state(api);
    Ok((url, async move { axum::serve(listener, routes).await }))
}

async fn register(State(api): State<Arc<Api>>, Json(item): Json<Item>) -> StatusCode {
    some_of(TRAVEL).await;
    let accepted = api.arrives(item.seller);
    some_of(PROCESSING).await;
    if accepted { StatusCode::CREATED } else { StatusCode::TOO_MANY_REQUESTS }
}

async fn stats(State(api): State<Arc<Api>>) -> Json<Stats> {
    Json(api.stats())
}

async fn some_of(milliseconds: RangeInclusive<u64>) {
    tokio::time::sleep(Duration::from_millis(fastrand::u64(milliseconds))).await;
}

impl Api {
    /// Accepts a call that arrives now, or refuses it. What is refused does not count in the window.
    fn arrives(&self, seller: u64) -> bool {
        let Limit { count, window } = self.limit;
        let mut sellers = self.sellers.lock().unwrap_or_else(PoisonError::into_inner);
        let seller = sellers.entry(seller).or_default();
        let now = Instant::now();
        while seller.window.front().is_some_and(|arrival| now.duration_since(*arrival) >= window) {
            seller.window.pop_front();
        }
        if seller.window.len() as u64 >= count {
            seller.refused += 1;
            return false;
        }
        seller.window.push_back(now);
        seller.accepted += 1;
        seller.most_in_window = seller.most_in_window.max(seller.window.len() as u64);
        true
    }

    fn stats(&self) -> Stats {
        let sellers = self.sellers.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Stats {
            count: self.limit.count,
            window_ms: u64::try_from(self.limit.window.as_millis()).unwrap_or(u64::MAX),
            accepted: sellers.values().map(|seller| seller.accepted).sum(),
            refused: sellers.values().map(|seller| seller.refused).sum(),
            most_in_window: sellers.values().map(|seller| seller.most_in_window).max().unwrap_or(0),
            sellers,
        }
    }
}
