//! A refusal as an HTTP response: status, header fields and a body that says what is wrong.

use http::{HeaderMap, HeaderValue, StatusCode, header::CONTENT_TYPE};
use serde_json::{Value, json};

use super::{
    HeaderStyle,
    headers::{Told, write_retry_after},
};
use crate::{Cause, RequestPerMinute};

/// A problem type of the IETF's draft of the `RateLimit` fields.
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// What a client hears who is refused.
#[derive(Debug)]
pub(super) struct Problem {
    pub(super) headers: HeaderMap,
    pub(super) body: String,
}

impl Problem {
    pub(super) fn new(refused: &RequestPerMinute, style: HeaderStyle, status: StatusCode) -> Self {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if is_about_the_limit(refused.cause()) {
            write_retry_after(refused, &mut headers);
            style.write(&Told::by_refusal(refused), &mut headers);
        }
        Self { headers, body: body(refused, status).to_string() }
    }
}

/// The status that goes with a cause.
pub(super) fn status(cause: Cause) -> StatusCode {
    match cause {
        Cause::Exceeded | Cause::NeverFits => StatusCode::TOO_MANY_REQUESTS,
        Cause::MissingKey => StatusCode::FORBIDDEN,
        Cause::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Cause::Misconfigured => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// What a client may read. A refusal's own words about the store name servers and settings.
pub(super) fn detail(refused: &RequestPerMinute) -> String {
    match refused.cause() {
        Cause::Unavailable => "this request cannot be counted now; try again later".into(),
        Cause::Misconfigured => "this server's limits are set up wrongly; its log says how".into(),
        Cause::Exceeded | Cause::NeverFits | Cause::MissingKey => refused.to_string(),
    }
}

pub(super) fn is_about_the_limit(cause: Cause) -> bool {
    matches!(cause, Cause::Exceeded | Cause::NeverFits)
}

fn body(refused: &RequestPerMinute, status: StatusCode) -> Value {
    let detail = detail(refused);
    if is_about_the_limit(refused.cause()) {
        json!({
            "type": QUOTA_EXCEEDED,
            "title": "Request cannot be satisfied as assigned quota has been exceeded",
            "status": status.as_u16(),
            "detail": detail,
            "violated-policies": [refused.rule()],
        })
    } else {
        // Without a type of its own, a problem has its status' title.
        json!({ "title": status.canonical_reason(), "status": status.as_u16(), "detail": detail })
    }
}
