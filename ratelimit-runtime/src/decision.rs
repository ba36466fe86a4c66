//! The numbers of one counter, from a store's decision.

use std::{
    fmt,
    num::{NonZeroU32, NonZeroU64},
    time::Duration,
};

/// The state of one counter for one cost, at the moment of the store's decision.
///
/// Durations count from that moment, and are rounded up to whole milliseconds.
///
/// ```
/// # use ratelimit_runtime::{Limiter, Rule};
/// # use std::time::Duration;
/// const RULE: Rule = Rule::new("item", 1, Duration::from_secs(60));
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let limiter = Limiter::in_memory();
/// assert_eq!(limiter.peek(&RULE, 4711).await?.remaining(), 1);
///
/// limiter.acquire(&RULE, 4711).await?;
/// let decision = limiter.peek(&RULE, 4711).await?;
/// assert_eq!(decision.remaining(), 0);
/// assert!(decision.retry_after().is_some());
/// # Ok::<_, ratelimit_runtime::RequestPerMinute>(()) }).unwrap();
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    pub(crate) limit: u64,
    pub(crate) remaining: u64,
    pub(crate) reset_after_ms: u64,
    /// `u64::MAX` if the cost fits. An `Option` would take another word in each permit. With
    /// [`BANNED`] if the counter is banned.
    pub(crate) retry_after_ms: u64,
}

/// Marks the wait until a ban ends. It travels with the wait, so calls that meet no ban never check
/// it.
pub(crate) const BANNED: u64 = 1 << 63;

impl Decision {
    /// A store's decision. `retry_after` is `None` if the cost fits.
    ///
    /// The durations are rounded up to whole milliseconds. See the getters for the meaning of each
    /// number.
    pub fn new(limit: u64, remaining: u64, reset_after: Duration, retry_after: Option<Duration>) -> Self {
        Self {
            limit,
            remaining,
            reset_after_ms: round_up_ms(reset_after),
            retry_after_ms: retry_after.map_or(u64::MAX, round_up_ms),
        }
    }

    /// A store's decision on a banned counter: nothing remains, and no cost fits. `retry_after` is
    /// the wait until the ban has ended and the cost fits.
    ///
    /// ```
    /// # use ratelimit_runtime::Decision;
    /// # use std::time::Duration;
    /// const WAIT: Duration = Duration::from_secs(60);
    ///
    /// let decision = Decision::banned(100, WAIT, WAIT);
    /// assert!(decision.is_banned());
    /// assert_eq!((decision.remaining(), decision.retry_after()), (0, Some(WAIT)));
    /// ```
    pub fn banned(limit: u64, reset_after: Duration, retry_after: Duration) -> Self {
        let decision = Self::new(limit, 0, reset_after, Some(retry_after));
        Self { retry_after_ms: decision.retry_after_ms | BANNED, ..decision }
    }

    /// The decision of an unused counter.
    pub(crate) fn fresh(limit: u64) -> Self {
        Self { limit, remaining: limit, reset_after_ms: 0, retry_after_ms: u64::MAX }
    }

    /// The largest cost that is ever granted: see [`Rule::limit`](crate::Rule::limit).
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// The largest cost that would be granted now.
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Time until `remaining` equals `limit`, without further calls.
    pub fn reset_after(&self) -> Duration {
        Duration::from_millis(self.reset_after_ms)
    }

    /// The shortest wait after which this cost is granted, without other calls. `None` if it fits
    /// now. From [`Limiter::peek`](crate::Limiter::peek) also `None` for places, as it is unknown when one becomes
    /// free.
    pub fn retry_after(&self) -> Option<Duration> {
        wait_ms(self.retry_after_ms).map(Duration::from_millis)
    }

    /// This decision, with an unknown wait.
    pub(crate) fn without_retry(self) -> Self {
        Self { retry_after_ms: u64::MAX, ..self }
    }

    /// Whether the counter is banned; see [`Rule::with_ban`](crate::Rule::with_ban) and
    /// [`Limiter::ban`](crate::Limiter::ban).
    pub fn is_banned(&self) -> bool {
        is_ban(self.retry_after_ms)
    }
}

#[allow(clippy::missing_fields_in_debug)] // they are shown as durations
impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decision")
            .field("limit", &ReadableNumber(self.limit))
            .field("remaining", &ReadableNumber(self.remaining))
            .field("reset_after", &self.reset_after())
            .field("retry_after", &self.retry_after())
            .field("is_banned", &self.is_banned())
            .finish()
    }
}

/// Prints a limit. That of a call without a rule is the largest number, and prints as `unlimited`.
pub(crate) struct ReadableNumber(pub(crate) u64);

impl fmt::Debug for ReadableNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            u64::MAX => f.write_str("unlimited"),
            number => number.fmt(f),
        }
    }
}

/// The one result of a charge, as it travels from a store to the permit or the refusal.
///
/// [`Decision`] without its limit, which the rule has, and with the receipt of the charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) remaining: Quotient,
    /// May be 0 in a denial, as no refusal shows it.
    pub(crate) reset_after_ms: Quotient,
    /// [`Quotient::MAX`] if the cost was charged. With [`BANNED`] if the counter is banned.
    pub(crate) retry_after_ms: Quotient,
    /// Two numbers by which the store finds the charge for a refund.
    pub(crate) receipt: [u64; 2],
}

impl Outcome {
    /// The outcome of no charge.
    pub(crate) const NONE: Self = Self {
        remaining: Quotient::ZERO,
        reset_after_ms: Quotient::ZERO,
        retry_after_ms: Quotient::ZERO,
        receipt: [0; 2],
    };

    /// The outcome of a charge that the store has decided on.
    pub(crate) fn new(decision: Decision, receipt: [u64; 2]) -> Self {
        let Decision { remaining, reset_after_ms, retry_after_ms, .. } = decision;
        Self { retry_after_ms: retry_after_ms.into(), ..Self::admitted(remaining, reset_after_ms, receipt) }
    }

    /// The outcome of a charge that was made.
    #[inline]
    pub(crate) fn admitted(
        remaining: impl Into<Quotient>,
        reset_after_ms: impl Into<Quotient>,
        receipt: [u64; 2],
    ) -> Self {
        let (remaining, reset_after_ms) = (remaining.into(), reset_after_ms.into());
        Self { remaining, reset_after_ms, retry_after_ms: Quotient::MAX, receipt }
    }

    /// The outcome of a cost that is denied without a round trip.
    #[inline]
    pub(crate) fn denied(remaining: u64, retry_after_ms: impl Into<Quotient>) -> Self {
        Self { remaining: remaining.into(), retry_after_ms: retry_after_ms.into(), ..Self::NONE }
    }

    #[inline]
    pub(crate) fn fits(&self) -> bool {
        self.retry_after_ms.is_max()
    }

    /// The decision under a rule's limit.
    #[inline]
    pub(crate) fn decision(&self, limit: u64) -> Decision {
        let Self { remaining, reset_after_ms, retry_after_ms, .. } = *self;
        let [remaining, reset_after_ms, retry_after_ms] =
            [remaining, reset_after_ms, retry_after_ms].map(Quotient::value);
        Decision { limit, remaining, reset_after_ms, retry_after_ms }
    }
}

/// A number that is divided when it is read.
///
/// A bucket divides for what it shows. Many callers read nothing of it, and no one has to divide under a lock.
#[derive(Clone, Copy)]
pub(crate) struct Quotient {
    dividend: u64,
    divisor: NonZeroU64,
}

impl Quotient {
    const ZERO: Self = Self { dividend: 0, divisor: NonZeroU64::MIN };
    pub(crate) const MAX: Self = Self { dividend: u64::MAX, divisor: NonZeroU64::MIN };

    /// Rounded down.
    #[inline]
    pub(crate) fn floor(dividend: u64, divisor: NonZeroU64) -> Self {
        Self { dividend, divisor }
    }

    /// Rounded up. The sum of both has to be a number.
    #[inline]
    pub(crate) fn ceil(dividend: u64, divisor: NonZeroU64) -> Self {
        Self { dividend: dividend + (divisor.get() - 1), divisor }
    }

    /// Of a quotient that is divided, the dividend is less.
    #[inline]
    pub(crate) fn is_max(self) -> bool {
        self.dividend == u64::MAX
    }

    /// The dividend, and a divisor of 32 bits. By a larger one it is divided now.
    #[inline]
    fn with_small_divisor(self) -> (u64, NonZeroU32) {
        match NonZeroU32::try_from(self.divisor) {
            Ok(divisor) => (self.dividend, divisor),
            Err(_) => (self.value(), NonZeroU32::MIN),
        }
    }

    /// The dividend, if it is divided by this number, above 1.
    #[inline]
    pub(crate) fn dividend_by(self, divisor: u64) -> Option<u64> {
        (self.divisor != NonZeroU64::MIN && self.divisor.get() == divisor).then_some(self.dividend)
    }

    #[inline]
    pub(crate) fn value(self) -> u64 {
        if self.divisor == NonZeroU64::MIN { self.dividend } else { self.dividend / self.divisor }
    }
}

/// The numbers that a permit shows, of an [`Outcome`] or a [`Decision`].
#[derive(Clone, Copy)]
pub(crate) struct PermitNumbers {
    pub(crate) limit: u64,
    remaining: u64,
    reset_after_ms: u64,
    /// The divisors of both, see [`Quotient`]. They share a word, as a permit is moved often.
    divisors: [NonZeroU32; 2],
}

impl PermitNumbers {
    /// The numbers of no permit.
    pub(crate) const NONE: Self = Self { limit: 0, remaining: 0, reset_after_ms: 0, divisors: [NonZeroU32::MIN; 2] };

    #[inline]
    pub(crate) fn new(limit: u64, outcome: &Outcome) -> Self {
        let [(remaining, first), (reset_after_ms, second)] =
            [outcome.remaining, outcome.reset_after_ms].map(Quotient::with_small_divisor);
        Self { limit, remaining, reset_after_ms, divisors: [first, second] }
    }

    pub(crate) fn remaining(&self) -> u64 {
        self.remaining / u64::from(self.divisors[0].get())
    }

    pub(crate) fn reset_after_ms(&self) -> u64 {
        self.reset_after_ms / u64::from(self.divisors[1].get())
    }
}

impl From<Decision> for PermitNumbers {
    fn from(decision: Decision) -> Self {
        Self::new(decision.limit, &Outcome::new(decision, [0; 2]))
    }
}

impl From<u64> for Quotient {
    #[inline]
    fn from(number: u64) -> Self {
        Self { dividend: number, ..Self::ZERO }
    }
}

impl PartialEq for Quotient {
    fn eq(&self, other: &Self) -> bool {
        self.value() == other.value()
    }
}

impl Eq for Quotient {}

impl fmt::Debug for Quotient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.value().fmt(f)
    }
}

/// The wait that a number for `retry_after` stands for. `None` if the cost fits.
pub(crate) fn wait_ms(retry_after_ms: u64) -> Option<u64> {
    (retry_after_ms != u64::MAX).then_some(retry_after_ms & !BANNED)
}

/// Whether a number for `retry_after` is the wait until a ban ends.
pub(crate) fn is_ban(retry_after_ms: u64) -> bool {
    retry_after_ms != u64::MAX && retry_after_ms & BANNED != 0
}

/// Whole milliseconds, below the mark of a ban.
pub(crate) fn round_up_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).min(BANNED - 2)
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use super::*;

    #[test]
    fn a_permit_shows_the_numbers_of_its_outcome() {
        for divisor in [1, 3, u64::from(u32::MAX), 1 << 32, 1 << 40] {
            let by = NonZeroU64::new(divisor).unwrap();
            let (remaining, reset_after_ms) =
                (Quotient::floor(5 * divisor - 1, by), Quotient::ceil(5 * divisor + 1, by));
            let numbers = PermitNumbers::new(7, &Outcome::admitted(remaining, reset_after_ms, [0; 2]));
            assert_eq!((numbers.limit, numbers.remaining(), numbers.reset_after_ms()), (7, 4, 6), "{divisor}");
        }
    }
}
