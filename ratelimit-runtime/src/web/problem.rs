//! A refusal as an HTTP response: status, header fields and problem details.

use std::time::Duration;

#[cfg(feature = "tower")]
use http::response::Parts;
use http::{
    HeaderMap, HeaderValue, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};
use serde_json::{Value, json};

use super::{
    HeaderStyle,
    headers::{QuotaPolicy, QuotaStatus, write_retry_after},
};
use crate::{Cause, RequestPerMinute};

/// The problem type in the IETF's draft of the `RateLimit` fields.
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// The response of the rule that refused.
#[cfg(any(feature = "actix-web", feature = "axum"))]
pub(super) fn whole_response(refused: RequestPerMinute) -> Response<String> {
    let mut response = response(&refused, status(refused.cause()));
    finish(&mut response, refused, HeaderStyle::installed(), &[]);
    response
}

/// The response to a refusal, before [`finish`].
pub(super) fn response(refused: &RequestPerMinute, status: StatusCode) -> Response<String> {
    let mut response = Response::new(problem(refused, status).to_string());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    response
}

/// Adds the header fields of a refusal, in place of others with their names. Its extensions get the
/// refusal.
pub(super) fn finish<B>(
    response: &mut Response<B>,
    refused: RequestPerMinute,
    style: HeaderStyle,
    policies: &[QuotaPolicy<'_>],
) {
    let (fields, headers) = (fields(&refused, style, policies), response.headers_mut());
    for name in fields.keys() {
        headers.remove(name);
    }
    for (name, value) in &fields {
        headers.append(name, value.clone());
    }
    response.extensions_mut().insert(refused);
}

/// The header fields of a refusal, with these policies, or that of the rule that refused.
fn fields(refused: &RequestPerMinute, style: HeaderStyle, policies: &[QuotaPolicy<'_>]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    forbid_caching(&mut headers);
    if let Some(wait) = wait_of(refused) {
        write_retry_after(wait, &mut headers);
    }
    write_limit(refused, style, policies, &mut headers);
    headers
}

/// Adds the fields of the limit, if the refusal is about it.
pub(super) fn write_limit(
    refused: &RequestPerMinute,
    style: HeaderStyle,
    policies: &[QuotaPolicy<'_>],
    headers: &mut HeaderMap,
) {
    if refused.cause().is_about_the_limit() {
        let status = QuotaStatus::of_refusal(refused);
        let own = [status.policy()];
        style.write(if policies.is_empty() { &own } else { policies }, Some(&status), headers);
    }
}

/// The status of a cause.
pub(super) fn status(cause: Cause) -> StatusCode {
    match cause {
        Cause::Exceeded | Cause::NeverFits | Cause::Banned => StatusCode::TOO_MANY_REQUESTS,
        Cause::MissingKey => StatusCode::FORBIDDEN,
        Cause::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Cause::Misconfigured => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// The message for a client. That of the refusal itself may name servers, settings and keys.
pub(super) fn detail(refused: &RequestPerMinute) -> String {
    match refused.cause() {
        Cause::Unavailable => "this request cannot be counted now; try again later".into(),
        Cause::Misconfigured => "this server's limits are set up wrongly; its log says how".into(),
        Cause::Exceeded | Cause::NeverFits | Cause::MissingKey | Cause::Banned => refused.without_key().to_string(),
    }
}

/// The wait after which a client may retry. A second if it is unknown: for a semaphore, or a store
/// that does not answer. `None` if no wait helps.
pub(super) fn wait_of(refused: &RequestPerMinute) -> Option<Duration> {
    const UNKNOWN: Duration = Duration::from_secs(1);
    match refused.cause() {
        Cause::Exceeded | Cause::Banned => Some(refused.retry_after().unwrap_or(UNKNOWN)),
        Cause::Unavailable => Some(UNKNOWN),
        Cause::NeverFits | Cause::MissingKey | Cause::Misconfigured => None,
    }
}

/// Whether a response is a refusal, of this crate or of another limiter.
#[cfg(feature = "tower")]
pub(super) fn is_refusal(response: &Parts) -> bool {
    let is_exhausted = |status: &HeaderValue| status == "8";
    response.status == StatusCode::TOO_MANY_REQUESTS
        || response.headers.get("grpc-status").is_some_and(is_exhausted)
        || response.extensions.get::<RequestPerMinute>().is_some()
}

/// Keeps the refusal of one client out of caches.
pub(super) fn forbid_caching(headers: &mut HeaderMap) {
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
}

/// The problem details of a refusal.
fn problem(refused: &RequestPerMinute, status: StatusCode) -> Value {
    let detail = detail(refused);
    if refused.cause().is_about_the_limit() {
        json!({
            "type": QUOTA_EXCEEDED,
            "title": "Request cannot be satisfied as assigned quota has been exceeded",
            "status": status.as_u16(),
            "detail": detail,
            "violated-policies": [refused.rule()],
        })
    } else {
        // A problem without a type has the title of its status.
        json!({ "title": status.canonical_reason(), "status": status.as_u16(), "detail": detail })
    }
}
