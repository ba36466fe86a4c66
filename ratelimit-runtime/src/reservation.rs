//! Reservations: charges whose cost is known when the work is over.

use std::{fmt, future::Future};

use crate::{
    Key, Limiter, RateKey, RequestPerMinute, Rule,
    engine::{
        acquire::Acquire,
        hold::Holding,
        options::{AcquireOptions, OnLimit},
        request::{ChargeRequest, ChargeRequests, CostKind, RequestKey},
    },
};

/// A reservation is a charge whose cost is known when the work is over: tokens of a language model,
/// bytes, rows. Made by [`Limiter::reserve`].
///
/// The reserved cost counts as used until it is settled, so concurrent calls can't spend more than
/// the limit. In windows and buckets it ages meanwhile like any charge: after the end of a
/// [`FixedWindow`](crate::Algorithm::FixedWindow) it counts no more. The settled cost may exceed
/// the reserved one. Then the excess counts too, and no call is admitted until enough of it has expired.
///
/// | end of the reservation | charged cost |
/// |---|---|
/// | [`settle`](Self::settle) | the cost that was used |
/// | [`cancel`](Self::cancel) | 0 |
/// | drop | the cost that was [recorded](Self::record); the reserved cost if none was |
/// | death of the process | the reserved cost; for a log at most half a minute later |
///
/// A [`SlidingLog`](crate::Algorithm::SlidingLog) holds the cost. On Redis, a background task renews the
/// hold at least every ten seconds, together with others of its counter. Windows and token buckets
/// charge the cost at once, and [refund](crate::guide::how_it_works#settlement-by-refund) what was not
/// used. A background task settles both. So a reservation can be settled on any runtime, or without one.
///
/// ```
/// # use ratelimit_runtime::{Algorithm, Limiter, Rule};
/// # use std::time::Duration;
/// const TOKENS: Rule = Rule::new("tokens", 10_000, Duration::from_secs(60)).with_algorithm(Algorithm::SlidingLog);
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// # let limiter = Limiter::in_memory();
/// let reservation = limiter.reserve(&TOKENS, "alice", 4_000).await?;
/// assert_eq!(limiter.peek(&TOKENS, "alice").await?.remaining(), 6_000);
///
/// // the answer had 1,234 tokens
/// reservation.settle(1_234).await?;
/// assert_eq!(limiter.peek(&TOKENS, "alice").await?.remaining(), 8_766);
/// # Ok::<_, ratelimit_runtime::RequestPerMinute>(()) }).unwrap();
/// ```
#[must_use = "a reservation that is dropped is charged what was recorded, or in full"]
pub struct Reservation {
    /// `None` if nothing had to be reserved.
    holding: Option<Holding>,
}

impl Limiter {
    /// Reserves the cost `most` of the rule's counter for this key, until it is settled.
    ///
    /// The cost is in the units of the rule's count. A cost of 0 reserves nothing, and nothing is
    /// charged for it in the end.
    ///
    /// # Errors
    ///
    /// As for [`Limiter::acquire_n`] with this cost. Also
    /// [`Cause::Misconfigured`](crate::Cause::Misconfigured) for a
    /// [`LeakyBucket`](crate::Algorithm::LeakyBucket), for places, and for a rule with a
    /// [prefetch](Rule::with_prefetch).
    ///
    /// # Cancellation
    ///
    /// A future that is dropped has reserved nothing. A reservation that a server may have granted
    /// is refunded in the background. If the server's answer is lost, or the refund does not reach the
    /// server, the cost is charged in full; for a log after half a minute.
    ///
    /// # Panics
    ///
    /// As for [`Limiter::acquire`].
    pub fn reserve<K: RateKey>(
        &self,
        rule: &Rule,
        key: K,
        most: u64,
    ) -> impl Future<Output = Result<Reservation, RequestPerMinute>> + Send + use<K> {
        let request = ChargeRequest {
            rule: *rule,
            key: RequestKey::Some(Key::new(key)),
            cost: most,
            cost_kind: CostKind::Reported,
        };
        let fill = |requests: &mut ChargeRequests| requests.push(request);
        let acquire = Acquire::all(self.engine_ref(), fill, AcquireOptions::default(), OnLimit::Reject);
        async move { Ok(Reservation { holding: acquire.await?.into_holding() }) }
    }
}

impl Reservation {
    /// Charges the cost `used` instead of the reserved one, and returns when the store has done so.
    ///
    /// `used` may exceed the reserved cost. The counter counts up to the largest count that the
    /// algorithm can store for the period (see [`Rule::new`]). Use beyond that is not charged. A
    /// [`TokenBucket`](crate::Algorithm::TokenBucket) has to refill all that was used, also if that
    /// takes many periods.
    ///
    /// # Errors
    ///
    /// [`Cause::Unavailable`](crate::Cause::Unavailable) or
    /// [`Cause::Misconfigured`](crate::Cause::Misconfigured) if the store did not confirm within
    /// the limiter's deadline. Then either the reserved cost may be charged in full, or the used
    /// one. The settlement of a hold is tried again, and so is a refund that was not sent, or that the server
    /// refused. If a counter can't store the excess, there is no error.
    ///
    /// # Cancellation
    ///
    /// A future that was polled once still settles when it is dropped. If it was never polled,
    /// dropping it drops the reservation.
    pub async fn settle(self, used: u64) -> Result<(), RequestPerMinute> {
        match self.holding {
            Some(holding) => holding.settle(used).await,
            None => Ok(()),
        }
    }

    /// Charges nothing, and releases the reserved cost.
    ///
    /// Errors and cancellation are as for [`Reservation::settle`].
    pub async fn cancel(self) -> Result<(), RequestPerMinute> {
        match self.holding {
            Some(holding) => holding.cancel().await,
            None => Ok(()),
        }
    }

    /// Adds to the cost that is charged if the reservation is dropped before it is settled, for
    /// example because its task is cancelled. [`Reservation::settle`] does not add it.
    ///
    /// ```
    /// # use ratelimit_runtime::{Algorithm, Limiter, Rule};
    /// # use std::time::Duration;
    /// # const TOKENS: Rule =
    /// #     Rule::new("tokens", 10_000, Duration::from_secs(60)).with_algorithm(Algorithm::SlidingLog);
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// # let limiter = Limiter::in_memory();
    /// let mut reservation = limiter.reserve(&TOKENS, "alice", 4_000).await?;
    /// for part in [100, 20] {
    ///     reservation.record(part); // as the answer comes in
    /// }
    /// drop(reservation);
    /// assert_eq!(limiter.peek(&TOKENS, "alice").await?.remaining(), 9_880);
    /// # Ok::<_, ratelimit_runtime::RequestPerMinute>(()) }).unwrap();
    /// ```
    pub fn record(&mut self, more: u64) {
        if let Some(holding) = &mut self.holding {
            holding.record(more);
        }
    }

    /// The reserved cost.
    ///
    /// 0 if nothing was reserved: the cost was 0, nothing is limited, or the rule is in shadow mode
    /// and would have refused.
    pub fn held(&self) -> u64 {
        self.holding.as_ref().map_or(0, Holding::amount)
    }

    /// Returns `true` if the reserved cost certainly still counts; see
    /// [`Permit::is_held`](crate::Permit::is_held). It is `true` for all of a window or a bucket, where
    /// nothing is held: the charge may have aged.
    pub fn is_held(&self) -> bool {
        self.holding.as_ref().is_none_or(Holding::is_held)
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("held", &self.held()).finish_non_exhaustive()
    }
}
