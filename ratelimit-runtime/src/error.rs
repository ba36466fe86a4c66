//! The errors that callers get: refusals, and limiters that cannot be set up.

mod store_error;

use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

pub use self::store_error::StoreError;
use crate::{Decision, Rule, rule::limits::MOST_HOLDS};

/// The cause of a refusal.
///
/// ```
/// use ratelimit_runtime::{Cause, RequestPerMinute};
///
/// /// The HTTP status of a refusal.
/// fn status(refused: &RequestPerMinute) -> u16 {
///     match refused.cause() {
///         Cause::Exceeded | Cause::NeverFits => 429,
///         Cause::MissingKey => 403,
///         Cause::Unavailable => 503,
///         _ => 500,
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// The limit is reached. [`RequestPerMinute::retry_after`] says when to try again.
    Exceeded,
    /// The cost is above [`Rule::limit`]: no wait will help.
    NeverFits,
    /// The key was `None`, under `on_missing_key = Deny`.
    MissingKey,
    /// The store is unreachable, too slow or full, and the failure policy does not admit the call.
    Unavailable,
    /// The configuration of the rule, the limiter or the server is invalid. The message names the
    /// mistake.
    Misconfigured,
}

/// A refused call.
///
/// Nothing was charged. With [`Cause::Unavailable`] the charge may or may not have happened.
///
/// ```
/// # use ratelimit_runtime::{Cause, Limiter, Rule};
/// # use std::time::Duration;
/// const RULE: Rule = Rule::new("item", 1, Duration::from_secs(60));
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let limiter = Limiter::in_memory();
/// limiter.acquire(&RULE, 4711).await.unwrap();
/// let refused = limiter.acquire(&RULE, 4711).await.unwrap_err();
///
/// assert_eq!(refused.cause(), Cause::Exceeded);
/// assert_eq!((refused.rule(), refused.limit(), refused.remaining()), ("item", 1, 0));
/// assert!(refused.retry_after().unwrap() <= Duration::from_secs(60));
/// assert!(refused.to_string().starts_with("`item` is limited to 1 per minute; retry in "));
/// # });
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct RequestPerMinute(Arc<RefusalDetails>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct RefusalDetails {
    cause: Cause,
    rule: Rule,
    cost: u64,
    remaining: u64,
    retry_after: Option<Duration>,
    /// Whether the count is in milliseconds.
    is_timed: bool,
    reason: Cow<'static, str>,
}

impl RefusalDetails {
    /// `100 per minute`
    fn limit(&self) -> String {
        let (count, period) = (self.rule.count(), Period(self.rule.period()));
        match self.rule.is_concurrent() {
            true => format!("{count} at once"),
            false if self.is_timed => format!("{:?} of time per {period}", Duration::from_millis(count)),
            false => format!("{count} per {period}"),
        }
    }
}

impl RequestPerMinute {
    fn new(cause: Cause, rule: &Rule, cost: u64, reason: impl Into<Cow<'static, str>>) -> Self {
        let reason = reason.into();
        Self(Arc::new(RefusalDetails {
            cause,
            rule: *rule,
            cost,
            remaining: 0,
            retry_after: None,
            is_timed: false,
            reason,
        }))
    }

    pub(crate) fn exceeded(rule: &Rule, cost: u64, decision: &Decision) -> Self {
        let remaining = decision.remaining;
        // A place becomes free at an unknown time.
        let retry_after = decision.retry_after().filter(|_| !rule.is_concurrent());
        let (cause, is_timed, reason) = (Cause::Exceeded, false, "".into());
        Self(Arc::new(RefusalDetails { cause, rule: *rule, cost, remaining, retry_after, is_timed, reason }))
    }

    /// Marks the count as milliseconds.
    pub(crate) fn of_time(mut self) -> Self {
        Arc::make_mut(&mut self.0).is_timed = true;
        self
    }

    /// Sets the message for a cost that fits a log which has no room for a further hold.
    pub(crate) fn of_holds(mut self) -> Self {
        Arc::make_mut(&mut self.0).reason =
            format!("has {MOST_HOLDS} holds at once, the maximum of a SlidingLog").into();
        self
    }

    pub(crate) fn never_fits(rule: &Rule, cost: u64) -> Self {
        Self::new(Cause::NeverFits, rule, cost, "")
    }

    pub(crate) fn missing_key(rule: &Rule) -> Self {
        Self::new(Cause::MissingKey, rule, 0, "")
    }

    pub(crate) fn unavailable(rule: &Rule, reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Cause::Unavailable, rule, 0, reason)
    }

    pub(crate) fn misconfigured(rule: &Rule, reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(Cause::Misconfigured, rule, 0, reason)
    }

    /// Sets the rest of the wait.
    pub(crate) fn retry_in(mut self, wait: Duration) -> Self {
        let ms = u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
        let retry_after = &mut Arc::make_mut(&mut self.0).retry_after;
        *retry_after = retry_after.map(|_| Duration::from_millis(ms));
        self
    }

    /// Whether too few places of a semaphore are free.
    pub(crate) fn fits_when_released(&self) -> bool {
        matches!(self.0.cause, Cause::Exceeded | Cause::NeverFits) && self.0.rule.is_concurrent()
    }

    /// The rule that refused, and the cost of the call.
    #[cfg(any(feature = "axum", feature = "tower"))]
    pub(crate) fn asked(&self) -> (Rule, u64) {
        (self.0.rule, self.0.cost)
    }

    /// The cause of the refusal.
    pub fn cause(&self) -> Cause {
        self.0.cause
    }

    /// The prefix of the rule that refused. Of several rules, the one with the longest wait.
    pub fn rule(&self) -> &'static str {
        self.0.rule.prefix()
    }

    /// The largest cost that this rule ever grants; see [`Rule::limit`].
    pub fn limit(&self) -> u64 {
        self.0.rule.limit()
    }

    /// The period of this rule.
    pub fn period(&self) -> Duration {
        self.0.rule.period()
    }

    /// The largest cost that this rule would have granted. 0 for causes other than
    /// [`Cause::Exceeded`].
    pub fn remaining(&self) -> u64 {
        self.0.remaining
    }

    /// The shortest wait after which this call is granted without other calls, from the store's
    /// decision, rounded up to a millisecond.
    ///
    /// `None` for causes other than [`Cause::Exceeded`], and for
    /// [`Algorithm::Concurrent`](crate::Algorithm::Concurrent): a place becomes free at an unknown
    /// time.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }
}

impl fmt::Display for RequestPerMinute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RefusalDetails { cause, rule, cost, retry_after, reason, .. } = &*self.0;
        let prefix = rule.prefix();
        match cause {
            Cause::Exceeded => {
                match &**reason {
                    "" => write!(f, "`{prefix}` is limited to {}", self.0.limit())?,
                    reason => write!(f, "`{prefix}` {reason}")?,
                }
                match retry_after {
                    Some(wait) => write!(f, "; retry in {:.3}s", wait.as_secs_f64()),
                    None => Ok(()),
                }
            }
            Cause::NeverFits => {
                write!(f, "`{prefix}` is limited to {}", self.0.limit())?;
                if rule.limit() != rule.count() {
                    write!(f, " and {} at once", rule.limit())?;
                }
                write!(f, "; a cost of {cost} never fits")
            }
            Cause::MissingKey => {
                write!(f, "`{prefix}` is limited by key, and this call has no key")
            }
            Cause::Unavailable => write!(f, "`{prefix}` cannot be counted now: {reason}"),
            Cause::Misconfigured => write!(f, "the limit `{prefix}` is misconfigured: {reason}"),
        }
    }
}

impl fmt::Debug for RequestPerMinute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestPerMinute")
            .field("cause", &self.cause())
            .field("rule", &self.rule())
            .field("limit", &self.limit())
            .field("period", &self.period())
            .field("remaining", &self.remaining())
            .field("retry_after", &self.retry_after())
            .field("message", &self.to_string())
            .finish()
    }
}

impl std::error::Error for RequestPerMinute {}

/// Prints `minute`, `5 minutes` or `1.5s`.
struct Period(Duration);

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u128); 5] =
            [("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1_000), ("millisecond", 1)];
        let ms = self.0.as_millis();
        match UNITS.iter().find(|(_, unit)| ms > 0 && ms.is_multiple_of(*unit)) {
            Some((name, unit)) if ms == *unit => f.write_str(name),
            Some((name, unit)) => write!(f, "{} {name}s", ms / unit),
            None => write!(f, "{:?}", self.0),
        }
    }
}

/// A return type that can report a refusal.
///
/// A refused annotated function returns early with such a value. Implemented for every `Result`
/// whose error is [`From<RequestPerMinute>`](From). Implement it for other return types.
///
/// ```
/// use ratelimit_runtime::{FromRefusal, RequestPerMinute};
///
/// enum Answer { Page(String), SlowDown }
///
/// impl FromRefusal for Answer {
///     fn from_refusal(_: RequestPerMinute) -> Self {
///         Self::SlowDown
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot report that a call was refused by its rate limit",
    label = "an annotated function must be able to return a `RequestPerMinute`",
    note = "return a `Result` whose error implements `From<ratelimit_runtime::RequestPerMinute>`",
    note = "or implement `ratelimit_runtime::FromRefusal` for a return type of your own"
)]
pub trait FromRefusal {
    /// The value that an annotated function returns instead of running.
    fn from_refusal(refused: RequestPerMinute) -> Self;
}

impl<T, E: From<RequestPerMinute>> FromRefusal for Result<T, E> {
    fn from_refusal(refused: RequestPerMinute) -> Self {
        Err(refused.into())
    }
}

/// A limiter could not be set up. The message names the mistake and the fix. It never contains a
/// password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetupError(String);

impl SetupError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }
}

impl fmt::Display for SetupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SetupError {}
