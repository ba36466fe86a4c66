//! A charge whose cost is known when it is over.

use std::{fmt, future::Future};

use crate::{
    Key, Limiter, RateKey, RequestPerMinute, Rule,
    engine::{
        acquire::Acquire,
        hold::Holding,
        request::{AcquireOptions, ChargeRequest, CostKind, OnLimit, RequestKey},
    },
};

/// A charge whose cost is known when it is over: tokens of a language model, bytes, rows.
///
/// What was reserved counts as used until it is settled, so calls that run at the same time can't spend more than there is. What is settled
/// may be more than was reserved: then so much more counts, and nobody else is let through until it expires.
///
/// | what becomes of the reservation | what is charged |
/// |---|---|
/// | [`settle`](Self::settle) | what was used |
/// | [`cancel`](Self::cancel) | nothing |
/// | it is dropped | what was [recorded](Self::record); all that was reserved, if nothing was |
/// | its process dies | all that was reserved, half a minute later at most |
///
/// On Redis a background task renews it at least every ten seconds, together with the others of its
/// counter, and settles it. So it can be settled on any runtime, and on none.
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
#[must_use = "a reservation that is dropped is charged in full"]
pub struct Reservation {
    /// Nothing if nothing is limited.
    holding: Option<Holding>,
}

impl Limiter {
    /// Reserves up to so much of the rule's counter for this key, until it is known what was used.
    ///
    /// A cost of 0 reserves nothing, and nothing is charged for it in the end.
    ///
    /// The rule counts by [`Algorithm::SlidingLog`](crate::Algorithm::SlidingLog); any other is [`Cause::Misconfigured`](crate::Cause::Misconfigured).
    /// Errors and panics are those of [`Limiter::acquire_n`] with that cost.
    ///
    /// # Cancellation
    ///
    /// A future that is dropped has reserved nothing: what a server may have granted all the same is refunded in the background. If that does not
    /// reach it, it is charged in full after half a minute.
    pub fn reserve<K: RateKey>(
        &self,
        rule: &Rule,
        key: K,
        most: u64,
    ) -> impl Future<Output = Result<Reservation, RequestPerMinute>> + Send + use<K> {
        let asked = ChargeRequest {
            rule: *rule,
            key: RequestKey::Some(Key::new(key)),
            cost: most,
            cost_kind: CostKind::Reported,
        };
        let deciding = Acquire::all(self.engine_ref(), vec![asked], AcquireOptions::default(), OnLimit::Reject);
        async move { Ok(Reservation { holding: deciding.await?.into_holding() }) }
    }
}

impl Reservation {
    /// Charges what was used, which may be more than was reserved, and returns when the store knows it.
    ///
    /// A count can't be passed by any amount: beyond the largest count that the algorithm can store for the period (see [`Rule::new`]) it is that.
    ///
    /// # Errors
    ///
    /// [`Cause::Unavailable`](crate::Cause::Unavailable) or [`Cause::Misconfigured`](crate::Cause::Misconfigured) if the store could not be
    /// told within the limiter's deadline. Then what was reserved may be charged in full, or what was used.
    ///
    /// # Cancellation
    ///
    /// A future that was polled once settles all the same when it is dropped. One that never was is a reservation that is dropped.
    pub async fn settle(self, used: u64) -> Result<(), RequestPerMinute> {
        match self.holding {
            Some(holding) => holding.settle(used).await,
            None => Ok(()),
        }
    }

    /// Charges nothing: what was reserved was not used.
    ///
    /// Errors and cancellation are those of [`Reservation::settle`].
    pub async fn cancel(self) -> Result<(), RequestPerMinute> {
        match self.holding {
            Some(holding) => holding.cancel().await,
            None => Ok(()),
        }
    }

    /// Adds to what is known to have been used: that is charged if the reservation is dropped before it is settled, when its task is cancelled
    /// for instance.
    ///
    /// ```
    /// # use ratelimit_runtime::{Algorithm, Limiter, Rule};
    /// # use std::time::Duration;
    /// # const TOKENS: Rule = Rule::new("tokens", 10_000, Duration::from_secs(60)).with_algorithm(Algorithm::SlidingLog);
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

    /// How much was reserved. 0 where nothing had to be: the cost was 0, nothing is limited, or the rule is only tried out and would have refused.
    pub fn held(&self) -> u64 {
        self.holding.as_ref().map_or(0, Holding::amount)
    }

    /// Whether it still counts as reserved for certain; see [`Permit::is_held`](crate::Permit::is_held).
    pub fn is_held(&self) -> bool {
        self.holding.as_ref().is_none_or(Holding::is_held)
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("held", &self.held()).finish_non_exhaustive()
    }
}
