//! Limits of HTTP and gRPC requests: a layer in front of any service (features `tower` and
//! `actix-web`), header fields, and refusals as responses (features `axum` and `actix-web`).
//!
//! | server | limits as a layer | a refusal of an annotated handler |
//! |---|---|---|
//! | `axum` | `RateLimitLayer` as a layer of a router (`tower`) | `IntoResponse` (`axum`) |
//! | `actix-web` | `RateLimitLayer` as middleware of an app (`actix-web`) | `ResponseError` (`actix-web`) |
//! | `tonic`, `hyper` and other services of `tower` | `RateLimitLayer` (`tower`) | a value of your own |
//!
//! # Attribute and layer
//!
//! Both decide alike. Each argument of the attribute has its part in the layer:
//!
//! | attribute | layer |
//! |---|---|
//! | `prefix` `ttl` `unit` `period` `algorithm` `rule` | the `Rule` of a `Limit` |
//! | `shadow` `denial_cache` `prefetch` `ban` | the `Rule` of a `Limit` |
//! | `count`, also an expression | the count of the rule, or [`Limit::count`]; [`Limit::count_async`] looks it up |
//! | `key` | [`Limit::key`] with a [`KeyBy`] |
//! | `on_missing_key` | [`Limit::on_missing_key`] |
//! | `cost` with a number or an expression | [`Limit::cost`] |
//! | `cost = Settled(..)` | [`Limit::settle`] with a [`SettleBy`]: by the status, a header field or the body |
//! | `cost = Elapsed(..)` | none: the time of a response is also the time its client takes to read it |
//! | several attributes | several limits of one [`RateLimitLayer`] |
//! | `#[limit_concurrent_requests]` | a rule of [`Algorithm::Concurrent`](crate::Algorithm::Concurrent) |
//! | `lease` | the period of such a rule |
//! | `on_limit = Reject` | the default |
//! | `on_limit = Wait(..)` | [`RateLimitLayer::wait`]; always with a longest time, as a client does not wait for ever |
//! | `on_limit = Return(..)` | [`RateLimitLayer::on_refusal`] |
//! | `on_store_error` | [`RateLimitLayer::on_store_error`] |
//! | `limiter` | [`RateLimitLayer::limiter`] |
//! | `permit` | [`RequestHold`]; the numbers of the permit are in the header fields of the response |
//! | `skip` in an `impl` block | [`Limit::when`]; [`Limit::allow_keys`] and [`Limit::allow_networks`] by client |
//! | `blocking` | none: services are async |
//! | `crate` | none: the layer is no macro |
//!
//! # Responses
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
//!
//! [`RateLimitLayer::on_refusal`] makes another response, with the same header fields. Outer layers
//! find the [`RequestPerMinute`](crate::RequestPerMinute) in the extensions of the response.

#[cfg(feature = "actix-web")]
mod actix;
#[cfg(feature = "axum")]
mod axum;
#[cfg(feature = "tower")]
mod body;
#[cfg(feature = "tower")]
mod count_by;
#[cfg(feature = "tower")]
mod gate;
#[cfg(feature = "tower")]
mod grpc;
mod headers;
#[cfg(feature = "tower")]
mod key_by;
#[cfg(feature = "tower")]
mod layer;
#[cfg(feature = "tower")]
mod limit;
#[cfg(feature = "tower")]
mod networks;
mod problem;
#[cfg(feature = "tower")]
mod request_hold;
#[cfg(feature = "tower")]
mod settle_by;

pub use self::headers::HeaderStyle;
#[cfg(feature = "tower")]
pub use self::{
    body::LimitedBody,
    gate::RefusedRequest,
    key_by::{KeyBy, TrustedProxies},
    layer::{RateLimit, RateLimitLayer},
    limit::Limit,
    networks::Networks,
    request_hold::RequestHold,
    settle_by::SettleBy,
};
#[cfg(feature = "tower")]
pub use crate::policy::OnMissingKey;
