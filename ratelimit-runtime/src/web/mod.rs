//! Limits for HTTP and gRPC servers: a layer in front of a service, and refusals as responses.
//!
//! The layer is [`RateLimitLayer`]. A handler may also have the attribute, and its refusal,
//! `RequestPerMinute`, is then a response. The features:
//!
//! | server | layer | refusal of a handler as a response |
//! |---|---|---|
//! | `axum` | `tower`; for [`KeyBy::peer`] also `axum` | `axum` |
//! | `actix-web` | `actix-web` | `actix-web` |
//! | `tonic`, `hyper` and other services of `tower` | `tower` | none: make a response of your own |
//!
//! A layer has one or several limits. A [`Limit`] is a rule with a [`KeyBy`], which says who is counted:
//!
//! ```
//! # #[cfg(feature = "tower")] {
//! use ratelimit_runtime::{Rule, web::{KeyBy, Limit, RateLimitLayer}};
//! use std::time::Duration;
//!
//! /// Inserted into the request by an outer layer, which authenticates.
//! #[derive(Clone)]
//! struct UserId(u64);
//!
//! const PER_USER: Rule = Rule::new("user", 100, Duration::from_secs(60));
//! const ALL: Rule = Rule::new("all", 10_000, Duration::from_secs(1));
//!
//! let by_user = KeyBy::extension(|user: &UserId| user.0);
//! let layer = RateLimitLayer::new([Limit::new(PER_USER).key(by_user), Limit::new(ALL)]);
//! # }
//! ```
//!
//! A request is charged to all limits, or to none. It is decided before its body is read. Authentication
//! has to be in an outer layer, so that it runs first: in `axum`, the `.layer(..)` that is added last.
//! [`RateLimitLayer`] has a whole example, and the guide
//! has one [behind a proxy](crate::guide::recipes#per-ip-address-behind-a-proxy).
//!
//! # Responses
//!
//! Responses have header fields with the limit: by default `RateLimit-Policy: "user";q=100;w=60` and
//! `RateLimit: "user";r=99;t=60`. [`HeaderStyle`] selects other ones, such as `X-RateLimit-*`, or none. While
//! Redis is away, they show [what this process may admit](crate::OnStoreError::Local), but for `q`, which stays
//! the count of the rule. A handler with the attribute adds them with
//! [`Permit::headers`](crate::Permit::headers).
//!
//! A refused request gets
//!
//! - a status, such as `429 Too Many Requests`;
//! - `Retry-After` in whole seconds, rounded up and at least 1;
//! - `Cache-Control: no-store`;
//! - a body of type `application/problem+json` ([RFC 9457](https://www.rfc-editor.org/rfc/rfc9457)):
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
//! | [`Cause`](crate::Cause) | HTTP status | gRPC status |
//! |---|---|---|
//! | `Exceeded` | 429, with `Retry-After` | `RESOURCE_EXHAUSTED` |
//! | `Banned` | 429, with `Retry-After` | `RESOURCE_EXHAUSTED` |
//! | `NeverFits` | 429, without `Retry-After`: no wait would help | `RESOURCE_EXHAUSTED` |
//! | `MissingKey` | 403 | `PERMISSION_DENIED` |
//! | `Unavailable` | 503, with `Retry-After: 1` | `UNAVAILABLE` |
//! | `Misconfigured` | 500 | `INTERNAL` |
//!
//! - For a limit of concurrent calls, `Retry-After` is 1: when a place becomes free is not known.
//! - The bodies of `Unavailable` and `Misconfigured` name neither servers nor settings, as they are not
//!   for clients. The log does.
//! - [`RateLimitLayer::on_refusal`] makes another response, with the same header fields.
//! - Outer layers find the [`RequestPerMinute`](crate::RequestPerMinute) in the extensions of the response.
//! - A gRPC call gets its status without a body, and a `RetryInfo` in place of `Retry-After`.
//!
//! # From the attribute to the layer
//!
//! A layer decides like the attribute. The counterpart of each argument:
//!
//! | attribute | layer |
//! |---|---|
//! | `prefix` `ttl` `unit` `period` `algorithm` `rule` | the `Rule` of a [`Limit`] |
//! | `shadow` `denial_cache` `prefetch` `ban` | the `Rule` of a [`Limit`] |
//! | `count`, also an expression | that of the rule, [`Limit::count`] or [`Limit::count_async`] |
//! | `key` | [`Limit::key`] with a [`KeyBy`] |
//! | `on_missing_key` | [`Limit::on_missing_key`] |
//! | `cost` with a number or an expression | [`Limit::cost`] |
//! | `cost = Settled(..)` | [`Limit::settle`] with a [`SettleBy`]: by status, header field or body |
//! | `cost = Elapsed(..)` | none: the time would depend on how fast the client reads the response |
//! | several attributes | several limits of one [`RateLimitLayer`] |
//! | `#[limit_concurrent_requests]` | a rule of [`Concurrent`](crate::Algorithm::Concurrent) |
//! | `lease` | the period of such a rule |
//! | `on_limit = Reject` | the default |
//! | `on_limit = Wait(max = ..)` | [`RateLimitLayer::wait`]; it needs a longest time |
//! | `on_limit = Return(..)` | [`RateLimitLayer::on_refusal`] |
//! | `on_store_error` | [`RateLimitLayer::on_store_error`] |
//! | `limiter` | [`RateLimitLayer::limiter`] |
//! | `permit` | [`RequestHold`]. What remains, and until when, is in the header fields of the response |
//! | `skip` | [`Limit::when`], [`Limit::allow_keys`], [`Limit::allow_networks`] |
//! | `blocking`, `crate` | none: services are async, and the layer is no macro |

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
