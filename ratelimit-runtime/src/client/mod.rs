//! Outgoing HTTP calls, within the limits that the servers announce (feature `client`).
//!
//! A server that you call is an *upstream* here. Many upstreams say in header fields of their responses how
//! many calls remain, and until when. [`Outgoing`] reads these fields, and lets each call wait until it may
//! be sent. You configure no number. Processes whose limiters have the same store share the limit.
//!
//! [`Outgoing`] is a layer of `tower`, and a middleware for `reqwest` (feature `reqwest-middleware`):
//!
//! ```
//! use http::{Request, Response};
//! use ratelimit_runtime::{Limiter, client::Outgoing};
//! # use std::{convert::Infallible, time::Duration};
//! # use tower::{ServiceBuilder, ServiceExt, service_fn};
//! # let client = service_fn(async |_: Request<String>| {
//! #     let response = Response::builder().header("RateLimit", "\"api\";r=99;t=60");
//! #     Ok::<_, Infallible>(response.body(()).unwrap())
//! # });
//!
//! let outgoing = Outgoing::new(Limiter::in_memory()).longest_wait(Duration::from_secs(30));
//! let client = ServiceBuilder::new().layer(outgoing).service(client); // a client of hyper-util, for example
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let request = Request::get("https://api.example.com/items").body(String::new()).unwrap();
//! assert_eq!(client.oneshot(request).await.unwrap().status(), 200);
//! # });
//! ```
//!
//! # What to know before
//!
//! - **Who shares a limit.** Calls to one host with one credential: the fields `Authorization` and
//!   `X-Api-Key`. [`Outgoing::key`] changes that.
//! - **Waiting** has no bound by default. [`Outgoing::longest_wait`] sets one.
//! - **Retries.** A call that was refused or failed is repeated, three times at most, if its method is
//!   idempotent: see [`Outgoing::retries`].
//! - **An upstream that announces nothing** is not limited. But every ten seconds one call goes ahead, and
//!   the others wait for its response. If that takes longer than ten seconds, one further call is sent
//!   every ten seconds meanwhile. So do not use `Outgoing` for a slow upstream without these fields.
//! - **A call may still be refused** by the upstream, if its limit falls, or if others use the same
//!   credential. Then all processes pause.
//! - **Cost.** Each call takes two round trips to the store: one before it is sent, and one in the background
//!   when it is answered. A probe, a call that waits for a window, and a response that tells of less than its
//!   process knows, take a few more.
//!
//! # How a limit is kept
//!
//! - **A window** is opened by one call, the probe. The others wait for its response, which says how many
//!   calls remain, and for how long. When the window has ended, the next call is a probe again. So a changed
//!   limit is known before other calls are sent.
//! - **Calls in flight** when the probe is sent, of all processes, are taken off the new window: the upstream
//!   may count them there. As some may never have arrived, such a window is cut to 31 seconds (not if it was
//!   made from a policy of which nothing tells what remains), and one call of it is kept for the next probe. If
//!   no more remain than are in flight, none is kept: the upstream may refuse that probe.
//! - **Within a window** the number of remaining calls only falls: by one with each call that is sent, and to
//!   what a response announces if that is less. If the limit itself falls, the difference is taken off once;
//!   of several limits in a response, the one at the same place in their order.
//!   A higher limit applies from the next window on. What a response tells counts until the window ends, also if its
//!   own reset comes earlier.
//! - **After a refusal**, all processes pause within one round trip to the store. A refusal is 429, with or
//!   without `Retry-After`, or 503 with `Retry-After`. The pause lasts for `Retry-After`, or else, if no
//!   call remains, until the announced reset, or else for a second. Then one call probes.
//! - **[`Outgoing::longest_pause`]** bounds each pause that this process announces to the others, and the
//!   length of a window. A pause of another process is obeyed as it is. So set the same time in all processes.
//!
//! | time | |
//! |---|---|
//! | 1 second | the pause after a refusal without a time, and the length of a window without an end |
//! | 10 seconds | the time between two probes of an upstream without fields |
//! | 10 seconds | the time after which another call probes if a probe has no response, or waits for its inner service |
//! | 30 to 31 seconds | the time for which a call without a response counts as in flight |
//! | 5 minutes | [`Outgoing::longest_pause`], by default |
//! | an hour | the longest window, if `longest_pause` is longer than that |
//!
//! These fields are read, with numbers of any size. In `RateLimit` and `RateLimit-Policy` a number has 15 digits
//! at most, as in each structured field; with a longer one the line is ignored:
//!
//! | fields | |
//! |---|---|
//! | `RateLimit`, `RateLimit-Policy` | the IETF's drafts; of several policies, the one with the least remaining |
//! | `RateLimit-Limit`, `-Remaining`, `-Reset` | earlier drafts |
//! | `X-RateLimit-*`, `X-Rate-Limit-*` | the reset in seconds, or as a time of day; also `-Reset-After` |
//! | `Retry-After` | seconds, or a date |
//!
//! Of a field that comes several times, the least number of calls and the longest time count; of several kinds of
//! fields, the kind with the least number of calls. A policy may be listed without what remains of it (in
//! `RateLimit-Policy`, or as `10;w=1` in `RateLimit-Limit`). Then each window is cut, or lasts longer, so that
//! the slowest of these is kept, and no more calls are sent at once than the least of their quotas. A
//! `RateLimit-Policy` without `RateLimit` opens a window with the quota `q` for the time `w`; without `w` it is
//! ignored. Of several, the slowest one counts, and no more calls are sent at once than the least `q` allows. For that,
//! and if `longest_pause` is shorter than `w`, the window is cut, and `q` in proportion.
//!
//! # When something fails
//!
//! - **A call is cancelled**: it counts as sent, as the upstream may have counted it.
//! - **A probe gets no response**, or its caller leaves: the next call probes after 10 seconds at most. Give
//!   your client a timeout.
//! - **A wait takes too long**: the call fails after [`Outgoing::longest_wait`], or at once if it is known to
//!   take longer. It was not sent. A call also fails if the limiter is [closed](crate::Limiter::close).
//! - **A waiting call is not polled**, as in a `buffered` stream whose loop awaits another call: the other calls
//!   of its upstream wait for it. Run calls in tasks, or poll all of them.
//! - **An upstream fails**, with 500 and above and without fields: calls are sent one after the other. The
//!   same is done if it has announced limits in the last minute, and now sends none: the response may be a page
//!   of a proxy. Fields of a response from a cache (`Age` above 0) are old: they are ignored, and the same is
//!   done. A refusal from a cache counts as any other.
//! - **The store is away**: with the failure policy `Local` or `Allow`, each process keeps to what the upstream
//!   tells this process. With `Deny` no calls are sent, and with `Wait` they wait. After the outage a call
//!   probes, and other processes learn of a pause that still lasts. Calls
//!   that were sent in the outage and have no response yet are not taken off the new window.
//! - **The store loses its counters**: the next call probes. Calls in flight are not known any more: up to as
//!   many calls may be refused.
//!
//! # Limits
//!
//! - **A limit that falls** is known with the first response that says so. Calls that were sent before may be
//!   refused. Later calls are not.
//! - **Others use the credential, too**: responses show it, and what remains falls. As many calls as are in
//!   flight then may be refused.
//! - **A call that takes more than 30 seconds**, its wait for the inner service of a layer included, is not taken off a
//!   window that opens meanwhile.
//! - **An upstream that allows less than one call per [`Outgoing::longest_pause`]** gets one call in that time
//!   nevertheless, as a probe. Set a longer time for it. A window lasts for an hour at most. So calls that wait
//!   probe at least once an hour, except in a pause.
//! - **Rounded seconds.** If an upstream rounds a reset down, the first call after it comes too early, and
//!   may be refused.
//! - **`RateLimit-Policy` alone** does not say when the upstream's window begins. So two windows of the client
//!   may fall into one of the upstream, with twice its quota. Calls in flight count as used for the whole
//!   window, even if they failed.
//! - **Redirects.** `reqwest` follows them inside of one call, so these requests are not limited: use
//!   `redirect::Policy::none()`.
//! - **Signed requests.** A signature in `Authorization` (AWS Signature Version 4, OAuth 1.0, HMAC) is another
//!   credential in each request, so no limit is shared, and each call takes counters of its own. Make the key of the
//!   account ([`Outgoing::key`]), or sign after `Outgoing`.
//! - **Default header fields.** `reqwest` adds them after the key was made: use [`Outgoing::key`] for a
//!   credential in them.
//! - **Room in the store.** Each key has eight counters, for up to two hours after its last call; that of a
//!   pause lasts for up to a day, and that of the retries for the period of [`Outgoing::retry_budget`]. Do not
//!   make keys of what others choose, such as paths that users enter.
//! - **Metrics.** The prefixes of the counters begin with `client-`. Their metrics count requests to the store,
//!   not calls.
//!
//! # From the attribute to the client
//!
//! | attribute | client |
//! |---|---|
//! | `prefix` `ttl` `unit` `period` `algorithm` `rule` | none: the upstream says |
//! | `shadow` `denial_cache` `prefetch` `ban` | none: the upstream refuses calls |
//! | `count` | the announced limit |
//! | `key` | [`Outgoing::key`] |
//! | `on_missing_key` | none: each call has a host |
//! | `cost` | none: responses show what a call cost |
//! | several attributes | the announced policy with the least remaining |
//! | `#[limit_concurrent_requests]`, `lease` | none: announced limits of concurrent requests are left out |
//! | `on_limit = Reject` | [`Outgoing::longest_wait`] of zero. Calls that come while a probe is sent fail, too |
//! | `on_limit = Wait(..)` | the default, or [`Outgoing::longest_wait`] |
//! | `on_limit = Return(..)` | none: the caller gets the error |
//! | `on_store_error` | [`Builder::on_store_error`](crate::Builder::on_store_error) |
//! | `limiter` | [`Outgoing::new`] |
//! | `permit` | none: the response has the numbers |
//! | `skip` | none: use another client |
//! | `blocking`, `crate` | none: clients are async, and this is no macro |

mod announcement;
mod attempts;
mod config;
mod counters;
mod fields;
mod layer;
#[cfg(feature = "reqwest-middleware")]
mod middleware;
mod pauses;
#[cfg(all(test, not(model_check)))]
mod tests;
mod upstream;
mod window;

pub use self::{
    config::{Outgoing, OutgoingRequest},
    layer::{OutgoingError, OutgoingService},
};
