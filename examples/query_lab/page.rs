//! The way in for queries, and the page to try them on.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, Path, State},
    http::{HeaderMap, StatusCode, header},
    response::{Html, IntoResponse, Response},
    routing::{get, post},
};
use ratelimit_runtime::RequestPerMinute;
use serde_json::json;

use crate::query::{Account, Answer, Lab, ask};

pub(crate) fn app(lab: Arc<Lab>) -> Router {
    Router::new()
        .route("/", get(async || Html(include_str!("lab.html"))))
        .route("/query", post(query).layer(DefaultBodyLimit::max(64 << 10)))
        .route("/users/{user}", get(user))
        .with_state(lab)
}

/// Whoever asks for something that takes its time. Dropped, it is not wanted any more.
struct Asker(Arc<AtomicBool>);

impl Drop for Asker {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

async fn query(State(lab): State<Arc<Lab>>, headers: HeaderMap, sql: String) -> Response {
    // A proxy in front of a server like this one authenticates the user, and names the user in a
    // header.
    let Some(user) = headers.get("x-user").and_then(|user| user.to_str().ok()).filter(|user| !user.is_empty()) else {
        return problem(StatusCode::FORBIDDEN, "say in the header X-User who asks");
    };
    let asker = Asker(Arc::new(AtomicBool::new(true)));
    match ask(Arc::clone(&lab), user.to_owned(), sql, Arc::clone(&asker.0)).await {
        Ok((entry, answer)) => match answer {
            Answer::Rows(table) => Json(json!({ "took_ms": entry.charged_ms, "table": table })).into_response(),
            Answer::Fault(words) => problem(StatusCode::BAD_REQUEST, &words),
            // Not 429: the same query again would be interrupted again, unless it is given more.
            Answer::Interrupted => {
                let words = format!(
                    "interrupted after {} ms: all that was left of your {} ms in {} s is used up",
                    entry.charged_ms,
                    lab.budget_ms,
                    lab.window.length().as_secs()
                );
                problem(StatusCode::UNPROCESSABLE_ENTITY, &words)
            }
            Answer::PlaceLost => problem(
                StatusCode::SERVICE_UNAVAILABLE,
                "this server stood still, and another query of yours may have run meanwhile; send it again",
            ),
            Answer::Cancelled => problem(StatusCode::SERVICE_UNAVAILABLE, "cancelled"),
            Answer::Refused(refused) => refused.into_response(),
        },
        Err(crash) => problem(StatusCode::INTERNAL_SERVER_ERROR, &crash.to_string()),
    }
}

async fn user(State(lab): State<Arc<Lab>>, Path(user): Path<String>) -> Result<Json<Account>, RequestPerMinute> {
    Account::of(&lab, &user).await.map(Json)
}

/// In the form that refusals have.
fn problem(status: StatusCode, detail: &str) -> Response {
    let body = json!({ "title": status.canonical_reason(), "status": status.as_u16(), "detail": detail });
    (status, [(header::CONTENT_TYPE, "application/problem+json")], body.to_string()).into_response()
}
