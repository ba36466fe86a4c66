//! Policies for calls without a decision or without a key.

use std::time::Duration;

/// Failure policy: the treatment of calls while the store is unreachable, too slow or full.
///
/// Errors of the configuration are returned under every policy: a wrong type under a counter's
/// name, or a missing permission. [The guide](crate::guide::failures) helps to choose a policy.
///
/// ```
/// use ratelimit_runtime::{Cause, Limiter, OnStoreError, Rule};
/// use std::time::Duration;
///
/// const RULE: Rule = Rule::new("item", 10, Duration::from_secs(60));
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// // No server listens on this port.
/// let redis = || Limiter::builder("redis://127.0.0.1:1").lazy().instances(5);
///
/// let local = redis().on_store_error(OnStoreError::Local).build().await.unwrap();
/// assert!(local.acquire(&RULE, "alice").await.is_ok());
/// assert!(local.acquire(&RULE, "alice").await.is_ok());
/// assert_eq!(local.acquire(&RULE, "alice").await.unwrap_err().cause(), Cause::Exceeded); // a fifth of 10
///
/// let deny = redis().on_store_error(OnStoreError::Deny).build().await.unwrap();
/// assert_eq!(deny.acquire(&RULE, "alice").await.unwrap_err().cause(), Cause::Unavailable);
/// # });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnStoreError {
    /// This process counts alone until the store is back, within its local share of the limit.
    ///
    /// The share is count, burst and queue divided by
    /// [`Builder::instances`](crate::Builder::instances), rounded down, with a burst of at least 1.
    /// Calls are refused with [`Cause::Unavailable`](crate::Cause::Unavailable) if their cost is
    /// above the share, if the count is below the number of instances, or if the local memory store
    /// is full.
    ///
    /// The local counters outlive the outage, by the process's own clock. Repeated outages therefore
    /// do not grant a fresh share each. [`Limiter::reset`](crate::Limiter::reset) deletes only the
    /// store's counter, not the local one.
    #[default]
    Local,
    /// The call is admitted.
    Allow,
    /// The call is refused with [`Cause::Unavailable`](crate::Cause::Unavailable).
    Deny,
    /// The call waits until the store decides again. After `max` it is refused, as by
    /// [`OnStoreError::Deny`].
    ///
    /// `max` counts from the first failure of the call, or of a call ahead of it in its queue, on the
    /// limiter's clock. It is at most 49 days. It is not part of the deadline, nor of the time that
    /// `on_limit = Wait` may take.
    ///
    /// - The call asks again once the server is known to be back. While a server answers with
    ///   errors, such as `LOADING`, the waiting calls of a limiter ask some 500 times a second at
    ///   most, all together.
    /// - A reply that was lost may have charged the call, and asking again charges it again. So
    ///   fewer calls may be admitted than promised, never more. What the call would hold is freed.
    /// - At most [`Builder::max_waiting`](crate::Builder::max_waiting) calls of a limiter wait. The
    ///   next one is refused at once.
    /// - A call that is dropped while it waits charges nothing more.
    /// - [`Limiter::close`](crate::Limiter::close) refuses all waiting calls. Calls whose rules are
    ///   all in shadow mode do not wait.
    /// - Calls wait side by side. A call with `on_limit = Wait` keeps its position if it was in its
    ///   wait queue when the store failed.
    ///
    /// ```
    /// use ratelimit_runtime::{Limiter, OnStoreError};
    /// use std::time::Duration;
    ///
    /// Limiter::builder("redis://127.0.0.1:6379")
    ///     .on_store_error(OnStoreError::Wait { max: Duration::from_secs(60) });
    /// ```
    Wait {
        /// The longest wait. A longer one than 49 days counts as 49 days.
        max: Duration,
    },
}

impl OnStoreError {
    /// With a wait of at most 49 days, as attributes and layers store it.
    pub(crate) fn with_bounded_wait(self) -> Self {
        match self {
            Self::Wait { max } => Self::Wait { max: max.min(Duration::from_millis(u32::MAX.into())) },
            other => other,
        }
    }
}

/// The treatment of calls without a key: the key is an `Option` that is `None`, or `web::KeyBy`
/// finds none in a request.
///
/// A request with an ambiguous key, such as a key header that occurs twice, is treated as by
/// [`OnMissingKey::Deny`], whatever the policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnMissingKey {
    /// The call is refused with [`Cause::MissingKey`](crate::Cause::MissingKey).
    #[default]
    Deny,
    /// The call is not limited. A client that can omit its key evades the limit.
    Skip,
    /// All calls without a key share one counter.
    Shared,
}
