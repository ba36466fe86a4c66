//! Policies: how to go on where there is no decision.

/// What happens to a call when the store cannot decide: it is not reachable, too slow or full.
///
/// Mistakes, such as a wrong type under a counter's name or a missing right, are reported whatever is chosen here.
///
/// ```
/// use ratelimit_runtime::{Cause, Limiter, OnStoreError, Rule};
/// use std::time::Duration;
///
/// const RULE: Rule = Rule::new("item", 10, Duration::from_secs(60));
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// // Nobody listens there.
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
    /// This process counts alone until the store is back, within its share of the limit: count, burst and queue divided by
    /// [`Builder::instances`](crate::Builder::instances) and rounded down, but a burst of at least 1. A call whose cost is above that is refused, as
    /// [`Cause::Unavailable`](crate::Cause::Unavailable); so is any call of a rule whose count is below the number of instances, and one that
    /// finds the memory store itself full.
    ///
    /// What it counts lives on by its own clock when the store is back, so that outages in quick succession do not grant a share each.
    /// [`Limiter::reset`](crate::Limiter::reset) does not reach it: it deletes the store's counter alone.
    #[default]
    Local,
    /// The call is let through.
    Allow,
    /// The call is refused, as [`Cause::Unavailable`](crate::Cause::Unavailable).
    Deny,
}

/// What happens to a call without a key.
///
/// An `Option` given as a key is `None`, or a request carries no value that `web::KeyBy` accepts. A request
/// with an ambiguous key, because a header occurs twice, is always refused as by [`OnMissingKey::Deny`].
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
