//! A reverse proxy that keeps rate limits, with routes and rules from a file that can change while it runs.
//!
//! ```sh
//! cargo run --example gateway --features gateway      # then open http://127.0.0.1:8080/limits
//! ```

mod limits;
mod proxy;
mod routes;

use std::{error::Error, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{ConnectInfo, Request, State},
    http::StatusCode,
    response::{IntoResponse as _, Response},
    routing::{get, put},
};
use clap::Parser;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use ratelimit_runtime::{Limiter, config::Rules};
use tokio::net::TcpListener;
use tower::ServiceExt as _;

use self::routes::Routes;

/// A reverse proxy that keeps rate limits.
#[derive(Parser)]
struct Arguments {
    /// Routes and rules.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/gateway/gateway.toml"))]
    config: PathBuf,
    /// Address of the gateway. Everyone who can reach it can change limits on its page
    #[arg(long, default_value = "127.0.0.1:8080")]
    listen: SocketAddr,
    /// Store of the counters: memory:// or redis://host:port, for example
    #[arg(long, default_value = "memory://")]
    store: String,
    /// Deadline of a Redis decision in milliseconds, after which this process counts alone
    #[arg(long, default_value_t = 100)]
    deadline_ms: u64,
}

/// The tables of the file that are the gateway's and not the limiter's.
const OWN_TABLES: &[&str] = &["routes", "clients"];

/// The response to a request.
struct Gateway {
    config: PathBuf,
    rules: Rules,
    routes: Routes,
    metrics: PrometheusHandle,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let Arguments { config, listen, store, deadline_ms } = Arguments::parse();
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let metrics = PrometheusBuilder::new().install_recorder()?;
    let rules = Rules::watch_beside(&config, OWN_TABLES)?;
    let limiter = Limiter::builder(&store).instances(1).deadline(Duration::from_millis(deadline_ms));
    let limiter = limiter.rules(rules.clone()).build().await?;
    let routes = Routes::watch(&config, &rules, &limiter, proxy::start_sample().await?)?;
    let gateway = Arc::new(Gateway { config, rules, routes, metrics });
    let app = Router::new()
        .route("/limits", get(limits::page))
        .route("/limits/state", get(limits::state))
        .route("/limits/rules/{prefix}", put(limits::change))
        .route("/metrics", get(async |State(gateway): State<Arc<Gateway>>| gateway.metrics.render()))
        .fallback(forward)
        .with_state(gateway);
    let listener = TcpListener::bind(listen).await?;
    println!("listening on http://{0}, its limits on http://{0}/limits", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

/// Sends a request where its route leads, if the route's limits let it through.
async fn forward(
    State(gateway): State<Arc<Gateway>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    mut request: Request,
) -> Response {
    let Some(service) = gateway.routes.find(request.uri().path()) else {
        return (StatusCode::NOT_FOUND, "no route leads there\n").into_response();
    };
    request.extensions_mut().insert(peer);
    match service.oneshot(request).await {
        Ok(response) => response.map(axum::body::Body::new),
        Err(never) => match never {},
    }
}
