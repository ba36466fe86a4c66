//! The way in for queries, and the page to try them on.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, Path, State},
    http::{HeaderMap, StatusCode, header},
    response::{Html, IntoResponse, Response},
    routing::{get, post},
};
use ratelimit_runtime::RequestPerMinute;
use serde::Serialize;
use serde_json::json;

use crate::{
    database::{Fault, MOST_MEMORY, Table},
    query::{Account, Answer, Lab, ask},
};

pub(crate) fn app(lab: Arc<Lab>) -> Router {
    Router::new()
        .route("/", get(async || Html(include_str!("lab.html"))))
        .route("/query", post(query).layer(DefaultBodyLimit::max(64 << 10)))
        .route("/users/{user}", get(user))
        .with_state(lab)
}

#[derive(Serialize)]
struct Found {
    took_ms: u64,
    table: Table,
}

/// If the client leaves, this function is dropped, and the query ends.
async fn query(State(lab): State<Arc<Lab>>, headers: HeaderMap, sql: String) -> Response {
    // A proxy in front of a server like this one authenticates the user, and names the user in a
    // header.
    let Some(user) = headers.get("x-user").and_then(|user| user.to_str().ok()).filter(|user| !user.is_empty()) else {
        return problem(StatusCode::FORBIDDEN, "say in the header X-User who asks");
    };
    let (entry, answer) = ask(&lab, user, sql).await;
    match answer {
        Answer::Rows(table) => Json(Found { took_ms: entry.charged_ms, table }).into_response(),
        Answer::Fault(Fault::Sql(words)) => problem(StatusCode::BAD_REQUEST, &words),
        // Not 429: the same query again would end like this again, unless it is given more.
        Answer::Fault(Fault::Memory) => {
            let words = format!("the query needs more memory than a query has here, {MOST_MEMORY} MiB");
            problem(StatusCode::UNPROCESSABLE_ENTITY, &words)
        }
        Answer::Interrupted => {
            let words = format!(
                "interrupted after {} ms: all that was left of your {} ms in {} s is used up",
                entry.charged_ms,
                lab.budget_ms,
                lab.window.length().as_secs()
            );
            problem(StatusCode::UNPROCESSABLE_ENTITY, &words)
        }
        Answer::Fault(Fault::Lab(words)) => {
            let words = format!("the lab could not run the query: {words}");
            problem(StatusCode::INTERNAL_SERVER_ERROR, &words)
        }
        Answer::PlaceLost => problem(
            StatusCode::SERVICE_UNAVAILABLE,
            "this server stood still, and another query of yours may have run meanwhile; send it again",
        ),
        Answer::Cancelled => problem(StatusCode::SERVICE_UNAVAILABLE, "cancelled"),
        Answer::Refused(refused) => refused.into_response(),
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
