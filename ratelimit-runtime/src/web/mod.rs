//! Limits at the edge: what a client of a web server is told about them (features `tower` and `axum`), and a layer that keeps them in
//! front of any service (feature `tower`).
//!
//! A client learns its limit from header fields. Their names have changed over the years; [`HeaderStyle`] says which ones are
//! written. A refused request is answered with `429 Too Many Requests`, a `Retry-After` in whole seconds, rounded up and at
//! least 1, `Cache-Control: no-store`, and a body of type `application/problem+json` ([RFC 9457](https://www.rfc-editor.org/rfc/rfc9457)):
//!
//! ```json
//! {
//!   "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
//!   "title": "Request cannot be satisfied as assigned quota has been exceeded",
//!   "status": 429,
//!   "detail": "`item` is limited to 100 per minute; retry in 12.340s",
//!   "violated-policies": ["item"]
//! }
//! ```
//!
//! | [`Cause`](crate::Cause) | status |
//! |---|---|
//! | `Exceeded` | 429, with `Retry-After`; 1 for places, as the time when one becomes free is not known |
//! | `NeverFits` | 429; no wait would help, so none is named |
//! | `MissingKey` | 403 |
//! | `Unavailable` | 503, with `Retry-After: 1` |
//! | `Misconfigured` | 500 |
//!
//! What the last two have to say is for you and not for a client: the body names neither servers nor settings. The log does.

#[cfg(feature = "axum")]
mod axum;
#[cfg(feature = "tower")]
mod grpc;
mod headers;
#[cfg(feature = "tower")]
mod key_by;
#[cfg(feature = "tower")]
mod layer;
#[cfg(feature = "tower")]
mod limit;
mod problem;

pub use self::headers::HeaderStyle;
#[cfg(feature = "tower")]
pub use self::{
    key_by::KeyBy,
    layer::{LimitedBody, RateLimit, RateLimitLayer, RequestHold},
    limit::Limit,
};
#[cfg(feature = "tower")]
pub use crate::policy::OnMissingKey;
