//! Limits on HTTP and gRPC requests, with the real server crates.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use http_body_util::BodyExt as _;
use ratelimit_runtime::web::{KeyBy, Limit, RateLimitLayer};
use ratelimit_runtime::{Limiter, ManualClock, Rule};
use serde_json::Value;
use tower::ServiceExt as _;

use crate::support::in_memory;

/// Dependencies of servers are not in the default build.
#[test]
fn the_default_build_has_no_dependency_of_the_web_features() {
    let tree = |more: &[&str]| {
        let arguments =
            ["tree", "--offline", "--package", "ratelimit-runtime", "--edges", "normal", "--prefix", "none"];
        let output = std::process::Command::new(env!("CARGO")).args(arguments).args(more).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let (default, all) = (tree(&[]), tree(&["--all-features"]));
    for name in ["arc-swap", "axum-core", "base64", "http", "metrics", "serde", "toml", "tower-layer", "tower-service"]
    {
        let is_in = |tree: &str| tree.lines().any(|line| line.split(' ').next() == Some(name));
        assert!(!is_in(&default) && is_in(&all), "{name}");
    }
}

mod axum_responses;
mod grpc;
mod headers;
mod keys;
mod layer;

const MINUTE: Duration = Duration::from_secs(60);

/// A rule of `count` a minute.
const fn per_minute(count: u64) -> Rule {
    Rule::new("item", count, MINUTE)
}

/// By the field `x-user`.
fn by_user() -> KeyBy {
    KeyBy::header("x-user".parse().unwrap())
}

fn by(user: &str) -> Request {
    Request::builder().header("x-user", user).body(Body::empty()).unwrap()
}

fn anonymous() -> Request {
    Request::new(Body::empty())
}

/// A service that says hello, behind a layer.
fn behind(layer: RateLimitLayer) -> Router {
    Router::new().fallback(|| async { "hello" }).layer(layer)
}

/// Behind one limit, in memory, by a clock of the test.
async fn limited(limit: Limit) -> (Router, ManualClock) {
    let clock = ManualClock::new();
    let layer = RateLimitLayer::new([limit]).limiter(in_memory(&clock).await);
    (behind(layer), clock)
}

async fn send(router: &Router, request: Request) -> Response {
    let Ok(response) = router.clone().oneshot(request).await;
    response
}

async fn status(router: &Router, request: Request) -> u16 {
    send(router, request).await.status().as_u16()
}

async fn problem(response: Response) -> Value {
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    serde_json::from_slice(&response.into_body().collect().await.unwrap().to_bytes()).unwrap()
}

/// Serves on a free port until the test is over.
async fn serve(router: Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await });
    address
}

/// A limiter without a server.
async fn nowhere(on_store_error: ratelimit_runtime::OnStoreError) -> Limiter {
    Limiter::builder("redis://127.0.0.1:1").lazy().on_store_error(on_store_error).build().await.unwrap()
}
