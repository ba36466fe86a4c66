//! A refusal, and a permit, as responses.

use axum::Json;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use ratelimit_runtime::{Cause, Limiter, OnStoreError, RequestPerMinute, Rule, limit_request_per_time};
use serde_json::json;

use super::*;
use crate::support::{FIXED, hourly, limiter_on};

#[limit_request_per_time(prefix = "save", ttl = 1, unit = Minutes, count = 2, permit = permit)]
async fn save() -> Result<Response, RequestPerMinute> {
    Ok((permit.headers("save"), Json("saved")).into_response())
}

/// An error type of an application: made from a refusal, and turned into a response.
#[derive(Debug)]
struct AppError(RequestPerMinute);

impl From<RequestPerMinute> for AppError {
    fn from(refused: RequestPerMinute) -> Self {
        Self(refused)
    }
}

impl IntoResponse for AppError {
    fn into_response(self) -> Response {
        self.0.into_response()
    }
}

async fn handler() -> Result<Response, AppError> {
    Ok(save().await?)
}

#[tokio::test]
async fn an_annotated_axum_handler_responds_to_a_refusal() {
    let clock = ManualClock::new();
    let limiter = in_memory(&clock).await;
    for path in ["/annotated", "/through-an-error-of-its-own"] {
        let routes = Router::new().route("/annotated", get(save)).route("/through-an-error-of-its-own", get(handler));
        let ask = || send(&routes, Request::get(path).body(Body::empty()).unwrap());
        limiter
            .scope(async {
                for remaining in ["r=1;t=60", "r=0;t=60"] {
                    let saved = ask().await;
                    assert_eq!(saved.status(), 200);
                    assert_eq!(saved.headers()["ratelimit-policy"], "\"save\";q=2;w=60");
                    assert_eq!(saved.headers()["ratelimit"], format!("\"save\";{remaining}"));
                    assert_eq!(saved.headers()["content-type"], "application/json");
                }
                clock.advance(Duration::from_millis(10_001));
                let refused = ask().await;
                assert_eq!(refused.status(), 429);
                assert_eq!(refused.headers()["retry-after"], "50");
                assert_eq!(refused.headers()["ratelimit"], "\"save\";r=0;t=50");
                let expected = json!({
                    "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
                    "title": "Request cannot be satisfied as assigned quota has been exceeded",
                    "status": 429,
                    "detail": "`save` is limited to 2 per minute; retry in 50 s",
                    "violated-policies": ["save"],
                });
                assert_eq!(problem(refused).await, expected);
            })
            .await;
        clock.advance(MINUTE);
    }
}

/// The words of a failure name servers and keys: they are not for clients.
#[tokio::test]
async fn a_response_does_not_show_internal_errors() {
    let down = nowhere(OnStoreError::Deny).await;
    let unavailable = down.acquire(&per_minute(1), "alice").await.unwrap_err();
    assert_eq!(unavailable.cause(), Cause::Unavailable);
    assert!(unavailable.to_string().contains("127.0.0.1:1"), "{unavailable}");
    let response = unavailable.into_response();
    assert_eq!(response.status(), 503);
    assert!(response.headers().get("ratelimit-policy").is_none());
    let expected = json!({
        "title": "Service Unavailable",
        "status": 503,
        "detail": "this request cannot be counted now; try again later",
    });
    assert_eq!(problem(response).await, expected);

    let faulty = Rule::new("item", 1, Duration::from_nanos(1));
    let misconfigured = Limiter::in_memory().acquire(&faulty, "alice").await.unwrap_err();
    assert_eq!(misconfigured.cause(), Cause::Misconfigured);
    let response = misconfigured.into_response();
    assert_eq!(response.status(), 500);
    let expected = json!({
        "title": "Internal Server Error",
        "status": 500,
        "detail": "this server's limits are set up wrongly; its log says how",
    });
    assert_eq!(problem(response).await, expected);
}

#[tokio::test]
async fn a_response_to_a_cost_that_never_fits_has_no_retry_after() {
    let refused = Limiter::in_memory().acquire_n(&per_minute(5), "alice", 6).await.unwrap_err();
    let response = refused.into_response();
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()["ratelimit-policy"], "\"item\";q=5;w=60");
    for field in ["retry-after", "ratelimit"] {
        assert!(response.headers().get(field).is_none(), "{field}");
    }
}

/// On Redis a permit has several rules in it, and tells the tightest.
#[tokio::test]
async fn a_permit_of_redis_has_the_same_headers() {
    let server = ratelimit_harness::RedisServer::start();
    let limiter = limiter_on(&server).await;
    let permit = limiter.acquire(&hourly(5, FIXED), "alice").await.unwrap();
    let headers = permit.headers("item");
    assert_eq!(headers["ratelimit-policy"], "\"item\";q=5;w=3600");
    assert_eq!(headers["ratelimit"], "\"item\";r=4;t=3600");
    let permit = Limiter::unlimited().acquire(&per_minute(5), "alice").await.unwrap();
    assert!(permit.headers("item").is_empty(), "nothing was counted");
}
