//! Limits of HTTP and gRPC requests: a layer in front of any service (features `tower` and
//! `actix-web`), header fields, and refusals as responses (features `axum` and `actix-web`).
//!
//! | server | limits as a layer | a refusal of an annotated handler |
//! |---|---|---|
//! | `axum` | `RateLimitLayer` as a layer of a router (`tower`) | `IntoResponse` (`axum`) |
//! | `actix-web` | `RateLimitLayer` as middleware of an app (`actix-web`) | `ResponseError` (`actix-web`) |
//! | `tonic`, `hyper` and other services of `tower` | `RateLimitLayer` (`tower`) | a value of your own |
//!
//! # Attribute, layer and client
//!
//! Attribute and layer decide alike: each argument of the attribute has its part in the layer. The
//! client is [`Outgoing`](crate::client::Outgoing) (feature `client`), which keeps to limits that
//! others set.
//!
//! | attribute | layer | client |
//! |---|---|---|
//! | `prefix` `ttl` `unit` `period` `algorithm` `rule` | the `Rule` of a `Limit` | none: the upstream says |
//! | `shadow` `denial_cache` `prefetch` `ban` | the `Rule` of a `Limit` | none: the upstream refuses calls |
//! | `count`, also an expression | that of the rule, [`Limit::count`] or [`Limit::count_async`] | the announced limit |
//! | `key` | [`Limit::key`] with a [`KeyBy`] | [`Outgoing::key`] |
//! | `on_missing_key` | [`Limit::on_missing_key`] | none: each call has a host |
//! | `cost` with a number or an expression | [`Limit::cost`] | none: responses show what a call cost |
//! | `cost = Settled(..)` | [`Limit::settle`] with a [`SettleBy`]: by status, field or body | what responses say |
//! | `cost = Elapsed(..)` | none: it would depend on the client's reading | none: no field announces time |
//! | several attributes | several limits of one [`RateLimitLayer`] | the announced policy with the least remaining |
//! | `#[limit_concurrent_requests]` | a rule of [`Concurrent`] | none: no field announces it |
//! | `lease` | the period of such a rule | none: a call in flight counts for 30 seconds at most |
//! | `on_limit = Reject` | the default | [`Outgoing::longest_wait`] of zero |
//! | `on_limit = Wait(..)` | [`RateLimitLayer::wait`], bounded | the default, or [`Outgoing::longest_wait`] |
//! | `on_limit = Return(..)` | [`RateLimitLayer::on_refusal`] | none: the caller gets the error |
//! | `on_store_error` | [`RateLimitLayer::on_store_error`] | [`Builder::on_store_error`] |
//! | `limiter` | [`RateLimitLayer::limiter`] | [`Outgoing::new`] |
//! | `permit` | [`RequestHold`]; its numbers are in the fields of the response | none: the response has the numbers |
//! | `skip` | [`Limit::when`], [`Limit::allow_keys`], [`Limit::allow_networks`] | none: use another client |
//! | `blocking` | none: services are async | none: clients are async |
//! | `crate` | none: the layer is no macro | none: it is no macro |
//!
//! [`Concurrent`]: crate::Algorithm::Concurrent
//! [`Outgoing::key`]: crate::client::Outgoing::key
//! [`Outgoing::longest_wait`]: crate::client::Outgoing::longest_wait
//! [`Outgoing::new`]: crate::client::Outgoing::new
//! [`Builder::on_store_error`]: crate::Builder::on_store_error
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
