//! Outgoing HTTP calls, within limits that the upstream announces (feature `client`).
//!
//! [`Outgoing`] is a layer of `tower`, and a middleware for `reqwest` (feature
//! `reqwest-middleware`). Nobody configures a number: the limit is read from the header fields of
//! responses, and all processes with one store keep it together.
//!
//! - **A window** is opened by one call, the probe. Its response says how many calls remain and for
//!   how long. Until then all other calls wait. When the window has ended, one call probes again: so
//!   a changed limit is known before it is used.
//! - **Within a window** the number of remaining calls only falls: with each call that is sent, and to
//!   what a response announces if that is less. If the limit itself falls, the difference is taken
//!   off once. A higher limit applies from the next window on.
//! - **A refusal**, 429 or 503 with `Retry-After`, stops all processes. They pause for
//!   `Retry-After`, or else until the announced reset, or else for a second. Then one call probes.
//!   No pause is longer than [`Outgoing::longest_pause`].
//! - **An upstream that announces nothing** is not limited, apart from pauses. One call of ten
//!   seconds goes ahead of the others and looks again. One that fails with 500 and above and
//!   announces nothing is called by one caller at a time.
//! - **Retries**: see [`Outgoing::retries`].
//!
//! These fields are read, with numbers of any size:
//!
//! | fields | |
//! |---|---|
//! | `RateLimit`, `RateLimit-Policy` | the IETF's drafts; of several policies, the one with the least remaining |
//! | `RateLimit-Limit`, `-Remaining`, `-Reset` | earlier drafts |
//! | `X-RateLimit-*`, `X-Rate-Limit-*` | the reset in seconds, or as a time of day; also `-Reset-After` |
//! | `Retry-After` | seconds, or a date |
//!
//! Seconds are often rounded. If an upstream rounds a reset down, the first call after it comes too
//! early and may be refused.
//!
//! If others use the credential, too, a response shows it, and what remains falls. As many calls as
//! are in flight then may be refused: nobody can tell whether the upstream has counted them.
//!
//! # Failures
//!
//! - A call that is cancelled has used what it was granted: the upstream may have counted it.
//! - A probe without an answer keeps others waiting for 10 seconds at most, and then the next call
//!   probes, too. Give the client a timeout.
//! - While the store is away, each process keeps to what it is told by itself, if the limiter's
//!   policy is `Local` or `Allow`. With `Deny` calls are not sent, and with `Wait` they wait.
//! - If the store loses its counters, the next call probes.
//!
//! # Limits
//!
//! - Calls of an earlier window that are still in flight are not counted in a new one. As many calls
//!   may be refused.
//! - A probe that is answered without fields opens a window without a limit for 10 seconds, also if
//!   limits were announced before: a page of a proxy does.
//! - A `RateLimit-Policy` alone grants its quota again after each [`Outgoing::longest_pause`], and if
//!   it has no window, after a second.
//! - Of a field that comes twice, only the first line is read.
//! - A process keeps to pauses that others have set, also if they are longer than its own bound.
//! - If the store loses the counter of what remains while a window is open, calls may ask the store
//!   again and again until the window ends.
//! - While another process probes, the store is asked each 10 ms.
//! - A call that waits is not bounded, and does not end with [`Limiter::close`](crate::Limiter::close).
//!   Give it a timeout.
//! - Retries after refusals spend the retry budget, too.
//! - `reqwest` follows redirects inside of one call, and adds its default header fields after the key
//!   was made. Use `redirect::Policy::none()`, and [`Outgoing::key`] for a credential in default fields.
//!
//! Six counters of the store belong to each upstream, for up to two days. Do not make keys of what
//! others choose, such as paths of URLs that users enter: each takes room in the store. The prefixes of
//! the counters begin with `client-`, and their metrics count the decisions on them, not the calls.

mod announcement;
mod attempts;
mod config;
mod counters;
mod layer;
#[cfg(feature = "reqwest-middleware")]
mod middleware;
mod upstream;

pub use self::{
    config::{Outgoing, OutgoingRequest},
    layer::{OutgoingError, OutgoingService},
};
