//! The errors that callers get: refusals, and limiters that cannot be set up.

mod store_error;

use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

#[cfg(feature = "redis")]
pub(crate) use self::store_error::Doubt;
pub use self::store_error::StoreError;
use crate::{
    Key, Rule,
    decision::{BANNED, Quotient, is_ban, round_up_ms, wait_ms},
    duration::ReadableDuration,
    rule::{Rate, limits::MOST_HOLDS},
};

/// The cause of a refusal.
///
/// ```
/// use ratelimit_runtime::{Cause, RequestPerMinute};
///
/// /// The HTTP status of a refusal.
/// fn status(refused: &RequestPerMinute) -> u16 {
///     match refused.cause() {
///         Cause::Exceeded | Cause::NeverFits | Cause::Banned => 429,
///         Cause::MissingKey => 403,
///         Cause::Unavailable => 503,
///         _ => 500,
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// The limit is reached. [`RequestPerMinute::retry_after`] says when to try again, if that is known.
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
    /// The counter is banned, whatever remains of its limit. [`RequestPerMinute::retry_after`] says
    /// when the ban ends.
    ///
    /// See [`Rule::with_ban`] and [`Limiter::ban`](crate::Limiter::ban).
    Banned,
}

impl Cause {
    /// Whether a limit refused the call: `on_limit` applies, and a response tells the limit.
    pub(crate) fn is_about_the_limit(self) -> bool {
        match self {
            Self::Exceeded | Self::NeverFits | Self::Banned => true,
            Self::MissingKey | Self::Unavailable | Self::Misconfigured => false,
        }
    }
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
pub struct RequestPerMinute(NamedRefusal);

#[derive(Clone, PartialEq, Eq)]
enum NamedRefusal {
    Unnamed(Refusal),
    /// With the key of the call, see [`Builder::keys_in_refusals`](crate::Builder::keys_in_refusals).
    Keyed(Arc<(Refusal, Key)>),
}

#[derive(Clone, PartialEq, Eq)]
enum Refusal {
    /// In place, so that the most frequent refusal allocates nothing.
    Exceeded(ExceededLimit),
    Other(Arc<RefusalDetails>),
}

/// A reached limit: the rule without its id and options, and the numbers of the decision.
#[derive(Clone)]
struct ExceededLimit {
    prefix: &'static str,
    rate: Rate,
    cost: u64,
    remaining: u64,
    /// The largest number if it is not known. With [`BANNED`] if the counter is banned. Of tokens, see
    /// [`Counted::Tokens`].
    wait: u64,
    counted: Counted,
}

/// The things of which there are too many. As wide as a word: padding is moved in pieces that
/// overlap, for which the processor stalls.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
enum Counted {
    Calls,
    /// Calls, with a wait that is divided by the count when it is read: a bucket refills the count in each
    /// interval. The divisor of a [`Quotient`] would make the refusal larger.
    Tokens,
    Milliseconds,
    /// The cost fits, but the log has no room for a further hold.
    Holds,
}

impl ExceededLimit {
    fn retry_after_ms(&self) -> u64 {
        match self.counted {
            Counted::Tokens => self.wait / self.rate.count,
            Counted::Calls | Counted::Milliseconds | Counted::Holds => self.wait,
        }
    }

    fn set(&mut self, retry_after_ms: u64, counted: Counted) {
        (self.wait, self.counted) = (retry_after_ms, counted);
    }
}

impl PartialEq for ExceededLimit {
    fn eq(&self, other: &Self) -> bool {
        let [this, other] = [self, other].map(|limit| {
            let Self { prefix, rate, cost, remaining, wait: _, counted } = *limit;
            let counted = if counted == Counted::Tokens { Counted::Calls } else { counted };
            (prefix, rate, cost, remaining, limit.retry_after_ms(), counted)
        });
        this == other
    }
}

impl Eq for ExceededLimit {}

#[derive(Clone, PartialEq, Eq)]
struct RefusalDetails {
    cause: Cause,
    rule: Rule,
    cost: u64,
    reason: Cow<'static, str>,
}

impl RequestPerMinute {
    fn new(cause: Cause, rule: &Rule, cost: u64, reason: impl Into<Cow<'static, str>>) -> Self {
        let details = RefusalDetails { cause, rule: *rule, cost, reason: reason.into() };
        Self(NamedRefusal::Unnamed(Refusal::Other(Arc::new(details))))
    }

    #[inline(always)]
    #[allow(clippy::inline_always)] // so that it is made in its place
    pub(crate) fn exceeded(
        rule: &Rule,
        cost: u64,
        remaining: impl Into<Quotient>,
        retry_after_ms: impl Into<Quotient>,
    ) -> Self {
        let retry_after_ms = retry_after_ms.into();
        let (wait, counted) = match retry_after_ms.dividend_by(rule.count()) {
            _ if rule.is_concurrent() => (u64::MAX, Counted::Calls), // a place becomes free at an unknown time
            Some(dividend) => (dividend, Counted::Tokens),
            None => (retry_after_ms.value(), Counted::Calls),
        };
        Self(NamedRefusal::Unnamed(Refusal::Exceeded(ExceededLimit {
            prefix: rule.prefix(),
            rate: rule.rate(),
            cost,
            remaining: remaining.into().value(),
            wait,
            counted,
        })))
    }

    fn with_counted(mut self, counted: Counted) -> Self {
        if let NamedRefusal::Unnamed(Refusal::Exceeded(exceeded)) = &mut self.0 {
            exceeded.set(exceeded.retry_after_ms(), counted);
        }
        self
    }

    /// Marks the count as milliseconds.
    pub(crate) fn of_time(self) -> Self {
        self.with_counted(Counted::Milliseconds)
    }

    /// Marks a cost that fits a log which has no room for a further hold.
    pub(crate) fn of_holds(self) -> Self {
        self.with_counted(Counted::Holds)
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

    /// Adds the key of the call, if it has one. The last step: the numbers of the refusal are final.
    pub(crate) fn with_key(self, key: &Key) -> Self {
        match self.0 {
            NamedRefusal::Unnamed(refusal) if *key != Key::NONE => {
                Self(NamedRefusal::Keyed(Arc::new((refusal, key.clone()))))
            }
            named => Self(named),
        }
    }

    /// The refusal without its key.
    #[cfg(any(feature = "axum", feature = "client", feature = "tower"))]
    pub(crate) fn without_key(&self) -> Self {
        Self(NamedRefusal::Unnamed(self.refusal().clone()))
    }

    fn refusal(&self) -> &Refusal {
        match &self.0 {
            NamedRefusal::Unnamed(refusal) => refusal,
            NamedRefusal::Keyed(keyed) => &keyed.0,
        }
    }

    /// The refusal of a caller with another cost by the same limit.
    pub(crate) fn with_cost(mut self, cost: u64) -> Self {
        if let NamedRefusal::Unnamed(Refusal::Exceeded(exceeded)) = &mut self.0 {
            exceeded.cost = cost;
        }
        self
    }

    /// Sets the rest of the wait.
    pub(crate) fn retry_in(mut self, wait: Duration) -> Self {
        if let NamedRefusal::Unnamed(Refusal::Exceeded(exceeded)) = &mut self.0 {
            let whole = exceeded.retry_after_ms();
            let counted = if exceeded.counted == Counted::Tokens { Counted::Calls } else { exceeded.counted };
            if whole != u64::MAX {
                exceeded.set(round_up_ms(wait) | (whole & BANNED), counted);
            }
        }
        self
    }

    /// Whether too few places of a semaphore are free.
    pub(crate) fn fits_when_released(&self) -> bool {
        let (rule, _) = self.rule_and_cost();
        matches!(self.cause(), Cause::Exceeded | Cause::NeverFits) && rule.is_concurrent()
    }

    /// The rule that refused, perhaps without its id and options, and the cost of the call.
    pub(crate) fn rule_and_cost(&self) -> (Rule, u64) {
        match self.refusal() {
            Refusal::Exceeded(ExceededLimit { prefix, rate, cost, .. }) => (Rule::without_id(prefix, *rate), *cost),
            Refusal::Other(details) => (details.rule, details.cost),
        }
    }

    /// The cause of the refusal.
    pub fn cause(&self) -> Cause {
        match self.refusal() {
            Refusal::Exceeded(exceeded) if is_ban(exceeded.retry_after_ms()) => Cause::Banned,
            Refusal::Exceeded(_) => Cause::Exceeded,
            Refusal::Other(details) => details.cause,
        }
    }

    /// The prefix of the rule that refused. Of several rules, the one with the longest wait. A rule that only waits for
    /// running calls is named if no other refuses, as its wait is unknown.
    pub fn rule(&self) -> &'static str {
        self.rule_and_cost().0.prefix()
    }

    /// The key of the call, if the limiter was built with
    /// [`Builder::keys_in_refusals`](crate::Builder::keys_in_refusals). `None` without a key.
    pub fn key(&self) -> Option<&Key> {
        match &self.0 {
            NamedRefusal::Unnamed(_) => None,
            NamedRefusal::Keyed(keyed) => Some(&keyed.1),
        }
    }

    /// The largest cost that this rule ever grants; see [`Rule::limit`].
    pub fn limit(&self) -> u64 {
        self.rule_and_cost().0.limit()
    }

    /// The period of this rule.
    pub fn period(&self) -> Duration {
        self.rule_and_cost().0.period()
    }

    /// The largest cost that this rule would have granted. 0 for causes other than
    /// [`Cause::Exceeded`].
    pub fn remaining(&self) -> u64 {
        match self.refusal() {
            Refusal::Exceeded(exceeded) => exceeded.remaining,
            Refusal::Other(_) => 0,
        }
    }

    /// The shortest wait after which this call is granted without other calls, from the store's
    /// decision, rounded up to a millisecond. Running calls with a `Settled` cost may end sooner and use less: then
    /// it is too long. Of several rules, those that only wait for running calls are left out: then it may be too short.
    ///
    /// `None` for causes other than [`Cause::Exceeded`] and [`Cause::Banned`], and for
    /// [`Algorithm::Concurrent`](crate::Algorithm::Concurrent): a place becomes free at an unknown
    /// time.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.refusal() {
            Refusal::Exceeded(exceeded) => wait_ms(exceeded.retry_after_ms()).map(Duration::from_millis),
            Refusal::Other(_) => None,
        }
    }
}

impl fmt::Display for RequestPerMinute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rule, cost) = self.rule_and_cost();
        let rule_and_key = RefusedRule(self);
        let (cause, reason) = match self.refusal() {
            Refusal::Exceeded(exceeded) => {
                match exceeded.counted {
                    _ if is_ban(exceeded.retry_after_ms()) => write!(f, "{rule_and_key} is banned")?,
                    Counted::Calls | Counted::Tokens => write!(f, "{rule_and_key} is limited to {}", LimitText(&rule))?,
                    Counted::Milliseconds => {
                        let time = ReadableDuration(Duration::from_millis(rule.count()));
                        write!(f, "{rule_and_key} is limited to {time} of time per {}", Period(rule.period()))?;
                    }
                    Counted::Holds => {
                        let algorithm = rule.algorithm();
                        write!(f, "{rule_and_key} has {MOST_HOLDS} holds at once, the maximum of a {algorithm:?}")?;
                    }
                }
                return match self.retry_after() {
                    Some(wait) => write!(f, "; retry in {}", ReadableDuration(wait)),
                    None => Ok(()),
                };
            }
            Refusal::Other(details) => (details.cause, &details.reason),
        };
        match cause {
            Cause::Exceeded | Cause::NeverFits | Cause::Banned => {
                write!(f, "{rule_and_key} is limited to {}", LimitText(&rule))?;
                if rule.limit() != rule.count() {
                    write!(f, " and {} at once", rule.limit())?;
                }
                write!(f, "; a cost of {cost} never fits")
            }
            Cause::MissingKey => {
                write!(f, "{rule_and_key} is limited by key, and this call has no key")
            }
            Cause::Unavailable => write!(f, "{rule_and_key} cannot be counted now: {reason}"),
            Cause::Misconfigured => write!(f, "the limit {rule_and_key} is misconfigured: {reason}"),
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

/// Prints the prefix, and the key if it is known.
struct RefusedRule<'a>(&'a RequestPerMinute);

impl fmt::Display for RefusedRule<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.0.rule())?;
        self.0.key().map_or(Ok(()), |key| write!(f, " for the key `{key}`"))
    }
}

/// Prints `100 per minute` or `5 at once`.
struct LimitText<'a>(&'a Rule);

impl fmt::Display for LimitText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.count();
        if self.0.is_concurrent() {
            write!(f, "{count} at once")
        } else {
            write!(f, "{count} per {}", Period(self.0.period()))
        }
    }
}

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
/// A refused annotated function returns early with such a value, unless it has `on_limit =
/// Return(..)`. Implemented for every `Result` whose error is [`From<RequestPerMinute>`](From), and
/// for the `Response` of `axum` and the `HttpResponse` of `actix-web` (features `axum` and `actix-web`).
/// Implement it for other return types.
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
    note = "return a `Result` whose error implements `From<ratelimit_runtime::RequestPerMinute>`; with `thiserror`, add the variant `RateLimited(#[from] RequestPerMinute)`",
    note = "or say what to return instead: `on_limit = Return(None)`",
    note = "or implement `ratelimit_runtime::FromRefusal` for a return type of your own"
)]
pub trait FromRefusal {
    /// The value that an annotated function returns instead of running.
    fn from_refusal(refused: RequestPerMinute) -> Self;
}

#[diagnostic::do_not_recommend]
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

#[cfg(all(test, not(model_check)))]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    /// It is in the result of each limited function.
    #[test]
    fn a_refusal_does_not_grow() {
        assert!(size_of::<RequestPerMinute>() <= 80, "{}", size_of::<RequestPerMinute>());
    }

    #[test]
    fn a_refusal_shows_the_divided_wait_of_its_outcome() {
        for (count, divisor) in [(1, 1), (1, 3), (3, 3), (3, 1), (1 << 40, 1 << 40)] {
            let rule = Rule::new("item", count, Duration::from_secs(60));
            let wait_ms = Quotient::ceil(5 * divisor + 1, NonZeroU64::new(divisor).unwrap());
            let refused = RequestPerMinute::exceeded(&rule, 1, 0, wait_ms);
            assert_eq!(refused.retry_after(), Some(Duration::from_millis(6)), "{divisor}");
            assert_eq!(refused.clone().of_time().retry_after(), refused.retry_after(), "{divisor}");

            let of_wait = |ms: u64| RequestPerMinute::exceeded(&rule, 1, 0, ms);
            assert_eq!(refused, of_wait(6), "{divisor}");
            assert_ne!(refused, of_wait(7), "{divisor}");
            assert_ne!(refused, of_wait(6).of_time(), "{divisor}");

            let rest = refused.retry_in(Duration::from_millis(2));
            assert_eq!(rest.retry_after(), Some(Duration::from_millis(2)), "{divisor}");
        }
    }
}
