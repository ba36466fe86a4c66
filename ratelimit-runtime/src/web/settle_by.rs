//! The cost of a request that its response tells.

use std::{fmt, sync::Arc};

use http::{HeaderName, response::Parts};

/// The cost of a request, from its response; for [`Limit::settle`](super::Limit::settle).
///
/// A layer that also has a place ([`Algorithm::Concurrent`](crate::Algorithm::Concurrent)) settles when
/// the place is freed.
///
/// ```
/// use ratelimit_runtime::{Algorithm, Rule, web::{KeyBy, Limit, SettleBy}};
/// use std::time::Duration;
///
/// const MINUTE: Duration = Duration::from_secs(60);
/// const FAILED_LOGINS: Rule = Rule::new("failed-logins", 5, MINUTE).with_algorithm(Algorithm::SlidingLog);
/// const TOKENS: Rule = Rule::new("tokens", 90_000, MINUTE).with_algorithm(Algorithm::SlidingLog);
///
/// // Only failed logins count.
/// Limit::new(FAILED_LOGINS)
///     .key(KeyBy::peer())
///     .settle(1, SettleBy::response(|response| u64::from(response.status == 401)));
///
/// // The service says in a header field what it used.
/// Limit::new(TOKENS).settle(4_000, SettleBy::header("x-tokens-used".parse().unwrap()));
///
/// // A streamed answer says it in one of its events. An event may be split over several parts.
/// Limit::new(TOKENS).settle(4_000, SettleBy::body(|_| {
///     let mut events = Vec::new();
///     move |part| {
///         events.extend_from_slice(part);
///         let mut used = 0;
///         while let Some(end) = events.windows(2).position(|end| end == b"\n\n") {
///             used += tokens_of(&events[..end]);
///             events.drain(..end + 2);
///         }
///         used
///     }
/// }));
///
/// fn tokens_of(event: &[u8]) -> u64 {
/// #   let _ = event;
/// #   0
///     // parses the event
/// }
/// ```
#[derive(Clone)]
pub struct SettleBy(SettleKind);

#[derive(Clone)]
enum SettleKind {
    Head(ResponseFn<Option<u64>>),
    Body(ResponseFn<BodyMeter>),
}

/// A function of a response's head.
type ResponseFn<T> = Arc<dyn Fn(&Parts) -> T + Send + Sync>;

/// Tells the cost of each part of a body.
pub(super) type BodyMeter = Box<dyn FnMut(&[u8]) -> u64 + Send + Sync>;

/// The cost of a response whose head is known.
pub(super) enum ResponseCost {
    Known(u64),
    /// The body tells it.
    Measured(BodyMeter),
    /// It stays unknown.
    Unknown,
}

impl SettleBy {
    /// The result of a function of the response's head, such as its status: a cost, or `None` if it
    /// is not known, which charges all that was held.
    ///
    /// Settled when the head is there.
    pub fn response<U: Into<Option<u64>>>(used: impl Fn(&Parts) -> U + Send + Sync + 'static) -> Self {
        Self(SettleKind::Head(Arc::new(move |response| used(response).into())))
    }

    /// The number in a header field of the response. If it is missing, occurs twice or is no whole
    /// number, all that was held is charged.
    ///
    /// Settled when the head is there. The client gets the field, too.
    pub fn header(name: HeaderName) -> Self {
        Self::response(move |response| {
            let mut values = response.headers.get_all(&name).iter();
            let (Some(value), None) = (values.next(), values.next()) else { return None };
            value.to_str().ok()?.trim().parse().ok()
        })
    }

    /// The sum over all parts of the response's body. The first function gets the head, and returns
    /// the function that gets each part, in order, and returns its cost.
    ///
    /// Settled when the body has ended. If it does not end, because the client has disconnected, the
    /// body failed, the request was a `HEAD` or the connection was upgraded, all that was held is
    /// charged, or the sum if that is more.
    ///
    /// The parts are those that pass the layer. A layer that compresses belongs outside of it.
    pub fn body<M: FnMut(&[u8]) -> u64 + Send + Sync + 'static>(
        meter: impl Fn(&Parts) -> M + Send + Sync + 'static,
    ) -> Self {
        Self(SettleKind::Body(Arc::new(move |response| Box::new(meter(response)))))
    }

    /// The cost of a response. `has_body`: the client gets its whole body.
    pub(super) fn cost_of(&self, response: &Parts, has_body: bool) -> ResponseCost {
        match &self.0 {
            SettleKind::Head(used) => used(response).map_or(ResponseCost::Unknown, ResponseCost::Known),
            SettleKind::Body(meter) if has_body => ResponseCost::Measured(meter(response)),
            SettleKind::Body(_) => ResponseCost::Unknown,
        }
    }

    /// Whether the two are clones of one.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (SettleKind::Head(one), SettleKind::Head(two)) => Arc::ptr_eq(one, two),
            (SettleKind::Body(one), SettleKind::Body(two)) => Arc::ptr_eq(one, two),
            _ => false,
        }
    }
}

impl fmt::Debug for SettleBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SettleBy").finish_non_exhaustive()
    }
}
