//! A reverse proxy that keeps rate limits, with routes and rules from a file that can change while it runs.
//!
//! ```sh
//! cargo run --example gateway --features gateway      # then open http://127.0.0.1:8080/limits
//! ```
//!
//! | file | purpose |
//! |---|---|
//! | `config.rs` | the file: its routes, and one message for each mistake |
//! | `live.rs` | applies changes of the file, all or nothing |
//! | `server.rs` `body.rs` | connections and their bounds in number and time |
//! | `paths.rs` `routes.rs` | the path of a request, and the route that it has |
//! | `proxy.rs` | sends requests to upstreams |
//! | `refusals.rs` | the keys with the most refusals |
//! | `history.rs` | the decisions of the last minute |
//! | `limits.rs` `limits.html` | the page |

mod body;
mod config;
mod history;
mod limits;
mod live;
mod paths;
mod proxy;
mod refusals;
mod routes;
mod server;

use std::{io, net::SocketAddr, path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{Request, State},
    http::StatusCode,
    response::{IntoResponse as _, Response},
    routing::{get, put},
};
use clap::Parser;
use hyper_util::server::graceful::GracefulShutdown;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use ratelimit_runtime::Limiter;
use tokio::{net::TcpListener, signal};

use self::{history::History, live::Live, proxy::Upstreams, refusals::Refusals, server::Bounds};

/// A reverse proxy that keeps rate limits.
#[derive(Parser)]
struct Arguments {
    /// Routes and rules
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/gateway/gateway.toml"))]
    config: PathBuf,
    /// Address of the gateway
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Address of the page and the metrics, for those who may see keys and change limits. By default that of the
    /// gateway if only this machine can reach it, and else none
    #[arg(long)]
    admin: Option<SocketAddr>,
    /// Store of the counters: memory:// or redis://host:port, for example
    #[arg(long, default_value = "memory://")]
    store: String,
    /// Deadline of a Redis decision in milliseconds, after which this process counts alone. By default that of the
    /// limiter
    #[arg(long)]
    deadline_ms: Option<u64>,
    /// Open connections of clients; others wait. Each needs two open files, see `ulimit -n`
    #[arg(long, default_value_t = 450)]
    connections: usize,
    /// Longest time for the head of a request, and for a pause in its body
    #[arg(long, default_value = "10s")]
    read_timeout: humantime::Duration,
    /// Longest time to connect to an upstream
    #[arg(long, default_value = "3s")]
    connect_timeout: humantime::Duration,
    /// Longest time for the head of an upstream's response, and for a pause in its body
    #[arg(long, default_value = "30s")]
    upstream_timeout: humantime::Duration,
}

/// The state that all handlers share.
struct Gateway {
    live: Arc<Live>,
    refusals: Refusals,
    history: History,
    metrics: PrometheusHandle,
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    tracing_subscriber::fmt().with_writer(io::stderr).init();
    match run(arguments).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gateway: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> Result<(), String> {
    let metrics = PrometheusBuilder::new().install_recorder().map_err(|error| error.to_string())?;
    let upstreams = Upstreams::new(arguments.connect_timeout.into(), arguments.upstream_timeout.into());
    let upstreams = upstreams.await.map_err(|error| format!("cannot start the sample server: {}", reason(&error)))?;
    let mut limiter = Limiter::builder(&arguments.store).instances(1).keys_in_refusals(true);
    if let Some(ms) = arguments.deadline_ms {
        limiter = limiter.deadline(Duration::from_millis(ms));
    }
    let live = Live::start(&arguments.config, limiter, upstreams).await?;
    let gateway = Arc::new(Gateway { live, refusals: Refusals::default(), history: History::default(), metrics });
    let recorded = Arc::clone(&gateway);
    tokio::spawn(async move { recorded.history.record(&recorded.metrics).await });

    let bounds = Bounds { connections: arguments.connections, read_timeout: arguments.read_timeout.into() };
    let routes = Router::new().fallback(forward);
    let pages = routes
        .clone() // so that the page can send requests
        .route("/limits", get(limits::page))
        .route("/limits/state", get(limits::state))
        .route("/limits/rules/{prefix}", put(limits::change))
        .route("/metrics", get(async |State(gateway): State<Arc<Gateway>>| gateway.metrics.render()));
    let (routes, pages) = (routes.with_state(Arc::clone(&gateway)), pages.with_state(Arc::clone(&gateway)));
    let (listener, address) = listen(arguments.listen).await?;
    let open = GracefulShutdown::new();
    let serve = |listener, app| server::serve(listener, app, bounds, &open);
    let stopped = stopped().map_err(|error| format!("cannot wait for signals: {}", reason(&error)))?;
    match arguments.admin {
        Some(admin) => {
            let (admin, of_pages) = listen(admin).await?;
            println!("listening on http://{address}, its limits on http://{of_pages}/limits");
            tokio::select! { () = serve(listener, routes) => {}, () = serve(admin, pages) => {}, () = stopped => {} }
        }
        None if address.ip().is_loopback() => {
            println!("listening on http://{address}, its limits on http://{address}/limits");
            tokio::select! { () = serve(listener, pages) => {}, () = stopped => {} }
        }
        None => {
            println!("listening on http://{address}; for its limits, pass --admin 127.0.0.1:8081");
            tokio::select! { () = serve(listener, routes) => {}, () = stopped => {} }
        }
    }
    // Requests on their way are answered.
    let _ = tokio::time::timeout(Duration::from_secs(10), open.shutdown()).await;
    gateway.live.close().await;
    Ok(())
}

/// Waits for Ctrl-C, or the signal of a service manager.
fn stopped() -> io::Result<impl Future<Output = ()>> {
    #[cfg(unix)]
    let mut terminated = signal::unix::signal(signal::unix::SignalKind::terminate())?;
    Ok(async move {
        #[cfg(unix)]
        tokio::select! { _ = signal::ctrl_c() => {}, _ = terminated.recv() => {} }
        #[cfg(not(unix))]
        let _ = signal::ctrl_c().await;
    })
}

async fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), String> {
    let failed = |error| format!("cannot listen on {address}: {}", reason(&error));
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

/// An error of the system, in words.
fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => "the address is in use".into(),
        io::ErrorKind::AddrNotAvailable => "this machine does not have the address".into(),
        io::ErrorKind::NotFound => "there is no such file".into(),
        io::ErrorKind::PermissionDenied => "it is not permitted".into(),
        _ => error.to_string(),
    }
}

/// Sends a request where its route leads, if the route's limits let it through.
async fn forward(State(gateway): State<Arc<Gateway>>, request: Request) -> Response {
    let Some(path) = paths::decoded(request.uri().path()) else {
        return (StatusCode::BAD_REQUEST, "the path has empty, `.` or `..` parts\n").into_response();
    };
    match gateway.live.routes().find(&path) {
        Some(way) => way.respond(request, &gateway.refusals).await,
        None => (StatusCode::NOT_FOUND, "no route leads there\n").into_response(),
    }
}
