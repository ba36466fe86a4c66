//! Outgoing HTTP calls, within limits that the upstream announces (feature `client`).
//!
//! [`Outgoing`] is a layer of `tower`, and a middleware for `reqwest` (feature
//! `reqwest-middleware`). Nobody configures a number: the limit is read from the header fields of
//! responses, and all processes with one store keep it together.
//!
//! - **A window** is opened by one call, the probe. Its response says how many calls remain and for
//!   how long. Until then all other calls wait. When the window has ended, one call probes again: so
//!   a changed limit is known before it is used. A window that is longer than
//!   [`Outgoing::longest_pause`], or than an hour, is asked for again after that time.
//! - **Calls in flight** when the probe is sent, of all processes, are taken off a new window: the
//!   upstream may count them there. A call without an answer counts for 30 seconds. As it may have
//!   failed, such a window is asked for again after 30 seconds, and one call is left for that. So when
//!   more calls have failed than remain, the others wait for up to 30 seconds.
//! - **Within a window** the number of remaining calls only falls: with each call that is sent, and to
//!   what a response announces if that is less. If the limit itself falls, the difference is taken
//!   off once. A higher limit applies from the next window on.
//! - **A refusal**, 429 or 503 with `Retry-After`, stops all processes within one round trip to the
//!   store. They pause for `Retry-After`, or else until the announced reset, or else for a second. Then
//!   one call probes. No pause is longer than [`Outgoing::longest_pause`]. Of several, the longest
//!   holds, also in a process with a shorter bound.
//! - **An upstream that announces nothing** is not limited, apart from pauses. Every ten
//!   seconds one call goes ahead, and the others wait for its answer. So slow answers slow the others
//!   down: until one has arrived, one more call is sent every ten seconds. One that fails with 500 and above and
//!   announces nothing is called by one caller at a time. So is one that has announced limits in the
//!   minute before: the answer may be a page of a proxy.
//! - **Retries**: see [`Outgoing::retries`].
//!
//! When the limit changes, the upstream refuses calls that are in flight, and calls that are sent
//! before the first answer that tells of it has arrived. No client can know of it earlier. It refuses
//! none that asks the store a round trip later.
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
//! Of a field that comes several times, the least number of calls and the longest time count. A
//! `RateLimit-Policy` alone grants its quota once in its window. If
//! [`Outgoing::longest_pause`] cuts that into parts, each has its share. Without a window it is not
//! used.
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
//!   probes, too. Give the client a timeout. A caller who leaves while the store is asked for the probe
//!   may keep others waiting as long.
//! - A wait ends with [`Limiter::close`](crate::Limiter::close), or after
//!   [`Outgoing::longest_wait`]. The call fails and was not sent.
//! - While the store is away, each process keeps to what it is told by itself, if the limiter's
//!   policy is `Local` or `Allow`. With `Deny` calls are not sent, and with `Wait` they wait. After
//!   an outage the upstream is asked again, and other processes are told of a pause that still lasts.
//!   Calls of the outage that are still in flight are not taken off.
//! - If the store loses its counters, the next call probes. The calls in flight are then forgotten,
//!   and as many may be refused.
//!
//! # Limits
//!
//! - A call that is answered later than after 30 seconds is not taken off a window that opens
//!   meanwhile.
//! - An upstream with a `RateLimit-Policy` alone may have other windows than the client: in two of the
//!   client's, it may get the quota twice. It is not asked again because of calls in flight: if these
//!   have failed, less of the quota is used.
//! - `reqwest` follows redirects inside of one call, and adds its default header fields after the key
//!   was made. Use `redirect::Policy::none()`, and [`Outgoing::key`] for a credential in default fields.
//!
//! Eight counters of the store belong to each upstream, for up to two hours after its last call. That
//! of a pause is kept for up to a day, and that of the retries for the period of the budget. Do not
//! make keys of what others choose, such as paths of URLs that users enter: each takes room in the
//! store. The prefixes of the counters begin with `client-`, and their metrics count the decisions on
//! them, not the calls.
//!
//! Each call takes two round trips: one before it is sent, and one in the background when it is
//! answered. A few more follow in the background if an answer tells of less than the process knew. A
//! call that had to wait for its service asks once more. The more calls are in flight, the longer the
//! store takes for an answer.

mod announcement;
mod attempts;
mod config;
mod counters;
mod layer;
#[cfg(feature = "reqwest-middleware")]
mod middleware;
#[cfg(test)]
mod tests;
mod upstream;

pub use self::{
    config::{Outgoing, OutgoingRequest},
    layer::{OutgoingError, OutgoingService},
};
