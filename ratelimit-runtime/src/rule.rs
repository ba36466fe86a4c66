//! What is limited: a counter's name, how much of it, in how long, by which algorithm.

use std::time::Duration;

/// How a [`Rule`] counts.
///
/// | algorithm | admitted in any window of the period, at most | state a key |
/// |---|---|---|
/// | `FixedWindow` | twice the count; the count in each of its windows | one integer |
/// | `SlidingLog` | the count, exactly | about 10 bytes an admitted call |
///
/// ```
/// use ratelimit_runtime::{Algorithm, Rule};
/// use std::time::Duration;
///
/// const MINUTE: Duration = Duration::from_secs(60);
/// const FROM_FIRST_CALL: Rule = Rule::new("mail", 100, MINUTE); // a fixed window, if nothing is said
/// const FROM_FULL_MINUTE: Rule = Rule::new("mail", 100, MINUTE).algorithm(Algorithm::FixedWindow { align: true });
/// const ANY_MINUTE: Rule = Rule::new("mail", 100, MINUTE).algorithm(Algorithm::SlidingLog);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// Counts calls in windows that follow one another.
    ///
    /// A window opens with the first call that is admitted after the last one ended, and ends one
    /// period later, however many calls come in between. With `align` windows begin on multiples
    /// of the period since 1970-01-01 00:00 UTC instead: at the full minute for a minute.
    ///
    /// This is the counter known as *fixed window counter*. Two windows may meet back to back, so
    /// a span of one period that lies across the border may see twice the count.
    FixedWindow {
        /// Begin windows on multiples of the period since the epoch, in UTC.
        align: bool,
    },
    /// Remembers each admitted call for one period.
    ///
    /// This is the *sliding window log*: exact in every window of the period, at about 10 bytes a
    /// remembered call. Calls within the same microsecond (the same millisecond for periods
    /// above 200 seconds) are one entry with their costs added up.
    SlidingLog,
}

impl Algorithm {
    /// The algorithm's part of a counter's name. It changes when the stored form does.
    pub(crate) const fn tag(self) -> &'static str {
        match self {
            Self::FixedWindow { align: false } => "fixed",
            Self::FixedWindow { align: true } => "fixed-aligned",
            Self::SlidingLog => "log",
        }
    }
}

/// A limit: at most `count` in each `period`, for the counter named `prefix`.
///
/// A rule is a small constant. The counter it speaks of is found by prefix, key, algorithm and
/// period: a changed count acts on the next call, a changed period or algorithm starts fresh.
///
/// ```
/// use ratelimit_runtime::{Algorithm, Limiter, Rule};
/// use std::time::Duration;
///
/// const RULE: Rule = Rule::new("item", 100, Duration::from_secs(60)).algorithm(Algorithm::SlidingLog);
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let limiter = Limiter::in_memory();
/// let permit = limiter.acquire(&RULE, 4711).await?;
/// assert_eq!(permit.remaining(), 99);
/// # Ok::<_, ratelimit_runtime::RequestPerMinute>(()) }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rule {
    prefix: &'static str,
    count: u64,
    period: Duration,
    algorithm: Algorithm,
}

impl Rule {
    /// The longest period a rule may have: 3,650 days.
    pub const LONGEST_PERIOD: Duration = Duration::from_secs(3_650 * 24 * 60 * 60);

    /// A rule that admits `count` in each `period` by [`Algorithm::FixedWindow`].
    ///
    /// The period is a whole number of milliseconds, from one to [`Rule::LONGEST_PERIOD`]. Any
    /// other period, an empty prefix, or a count above what the algorithm can store
    /// (9,999,999,999 for a fixed window; for a log 500,000,000 up to a period of 55 hours, and a
    /// tenth of that for each further digit of the period) is reported by each acquire
    /// as [`Cause::Misconfigured`](crate::Cause::Misconfigured). A count of 0 never admits anything.
    pub const fn new(prefix: &'static str, count: u64, period: Duration) -> Self {
        Self { prefix, count, period, algorithm: Algorithm::FixedWindow { align: false } }
    }

    /// The same rule, counted by another algorithm.
    #[must_use]
    pub const fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = algorithm;
        self
    }

    /// The counter's name.
    pub const fn prefix(&self) -> &'static str {
        self.prefix
    }

    /// How much is admitted in one period.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The length of the window.
    pub const fn period(&self) -> Duration {
        self.period
    }

    /// How the rule counts.
    pub const fn counted_by(&self) -> Algorithm {
        self.algorithm
    }

    pub(crate) const fn with_count(mut self, count: u64) -> Self {
        self.count = count;
        self
    }

    /// The period in milliseconds, which [`Rule::fault`] has found to be whole and to fit.
    #[allow(clippy::cast_possible_truncation)] // at most 3,650 days
    pub(crate) const fn period_ms(&self) -> u64 {
        self.period.as_millis() as u64
    }

    /// What is wrong with the rule's own values, in words, if anything is.
    pub(crate) fn fault(&self) -> Option<String> {
        let Self { prefix, count, period, algorithm } = self;
        if prefix.is_empty() {
            return Some("its prefix is empty; give the counter a name".into());
        }
        if period.is_zero() || *period > Self::LONGEST_PERIOD || period.subsec_nanos() % 1_000_000 != 0 {
            return Some(format!(
                "its period is {period:?}; it must be a whole number of milliseconds, from 1 ms to 3,650 days"
            ));
        }
        let largest = crate::algorithm::largest_count(self);
        (*count > largest)
            .then(|| format!("its count is {count}; {algorithm:?} over {period:?} can store at most {largest}"))
    }
}
