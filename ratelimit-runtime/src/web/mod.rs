//! Limits of HTTP and gRPC requests: header fields and error responses (features `tower` and
//! `axum`), and a layer in front of any service (feature `tower`).
//!
//! Header fields tell a client its limit. Their names have changed over the years: [`HeaderStyle`]
//! selects them.
//!
//! A refused request is answered with
//!
//! - `429 Too Many Requests`;
//! - `Retry-After` in whole seconds, rounded up and at least 1;
//! - `Cache-Control: no-store`;
//! - a body of type `application/problem+json` ([RFC
//!   9457](https://www.rfc-editor.org/rfc/rfc9457)):
//!
//! ```json
//! {
//!   "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
//!   "title": "Request cannot be satisfied as assigned quota has been exceeded",
//!   "status": 429,
//!   "detail": "`item` is limited to 100 per minute; retry in 12.4 s",
//!   "violated-policies": ["item"]
//! }
//! ```
//!
//! | [`Cause`](crate::Cause) | status |
//! |---|---|
//! | `Exceeded` | 429, with `Retry-After`; 1 for a semaphore, whose places become free at an unknown time |
//! | `Banned` | 429, with `Retry-After` |
//! | `NeverFits` | 429, without `Retry-After`: no wait would help |
//! | `MissingKey` | 403 |
//! | `Unavailable` | 503, with `Retry-After: 1` |
//! | `Misconfigured` | 500 |
//!
//! The body of the last two names neither servers nor settings, as they are not for clients. The
//! log does.

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
