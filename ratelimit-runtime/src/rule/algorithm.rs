//! The algorithms that a rule can count by.

/// How a [`Rule`](crate::Rule) counts.
///
/// For a count of C in a period of P:
///
/// | algorithm | admitted in any window of P, at most | state a key |
/// |---|---|---|
/// | `FixedWindow` | 2C; C in each of its windows | one integer |
/// | `SlidingLog` | C, exactly | about 10 bytes an admitted call |
/// | `SlidingWindow { buckets: n }` | less than 2C; C in any window of P - P/n | n + 3 numbers of 8 bytes |
/// | `TokenBucket { burst: B, .. }` | B + C | three integers |
/// | `LeakyBucket { queue: Q }` | C, by the slots the calls are given; C - 1 + the largest cost, if costs differ from 1 | three integers |
/// | `Concurrent` | any number, but never more than C at once | about 100 bytes a call that holds places |
///
/// ```
/// use ratelimit_runtime::{Algorithm, Refill, Rule};
/// use std::time::Duration;
///
/// const MINUTE: Duration = Duration::from_secs(60);
/// const FROM_FIRST_CALL: Rule = Rule::new("mail", 100, MINUTE); // a fixed window, if nothing is said
/// const FROM_FULL_MINUTE: Rule = Rule::new("mail", 100, MINUTE).with_algorithm(Algorithm::FixedWindow { align: true });
/// const ANY_MINUTE: Rule = Rule::new("mail", 100, MINUTE).with_algorithm(Algorithm::SlidingLog);
/// const ABOUT_ANY_MINUTE: Rule = Rule::new("mail", 100, MINUTE).with_algorithm(Algorithm::SlidingWindow { buckets: 6 });
/// const BURSTS: Rule =
///     Rule::new("mail", 100, MINUTE).with_algorithm(Algorithm::TokenBucket { burst: 20, refill: Refill::Greedy });
/// const EVENLY: Rule = Rule::new("mail", 100, MINUTE).with_algorithm(Algorithm::LeakyBucket { queue: 50 });
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
    ///
    /// A log has room for 10,000 holds at once, such as reservations: a further one is refused as
    /// [`Cause::Exceeded`](crate::Cause::Exceeded) until one of them ends. Charges that hold nothing are not affected.
    SlidingLog,
    /// Counts calls in sub-windows of `P / buckets`, and weights the oldest by how much of it the last period still overlaps.
    ///
    /// This is the *sliding window counter* of the textbooks. With one bucket it is the previous window, weighted by its
    /// overlap, plus the current one: with 84 calls in the last minute and 36 in this one, a quarter of a minute old, 84 × 45/60 + 36 = 99
    /// count. Sub-windows begin on multiples of their length since 1970-01-01 00:00 UTC.
    ///
    /// The weight assumes that the calls of the oldest sub-window were spread evenly. Where they all came at its end, a window of one
    /// period may see up to 2C - ⌈2C/S⌉ calls (C, if S is 1) by the store's milliseconds, S being the length of a sub-window in milliseconds; a window one sub-window shorter
    /// never sees more than C.
    SlidingWindow {
        /// How many sub-windows a period has: from 1 to 1,000, and the period in milliseconds is a multiple of it.
        buckets: u64,
    },
    /// Takes tokens from a bucket that is refilled with the count in each period.
    ///
    /// This is the *token bucket*; with [`Refill::Greedy`] it decides as the *generic cell rate algorithm* (GCRA) of the ATM Forum does.
    /// The bucket starts full. At most what it holds can be taken at once, so a burst is bounded apart from the rate.
    ///
    /// It keeps its full rate only if it holds more than comes in one millisecond: with a burst of 1 it grants 1,000 a second at most.
    TokenBucket {
        /// What the bucket holds, at least 1. A larger cost never fits.
        burst: u64,
        /// When tokens come back.
        refill: Refill,
    },
    /// Gives each call a slot, one every `P / C`, and lets it sleep until then.
    ///
    /// This is the *leaky bucket as a queue* of the textbooks: calls leave it at a constant rate, in the order in which they were
    /// admitted. A cost of n takes n slots, and the call runs at the first. When more than `queue` slots are
    /// taken ahead, a call is refused.
    ///
    /// A call that gives up while it sleeps frees its slot, if nobody has been given a later one since; otherwise the slot passes unused.
    ///
    /// A rule with this algorithm stands alone: it can't be one of several in [`Limiter::acquire_all`](crate::Limiter::acquire_all).
    LeakyBucket {
        /// How many calls may wait. With 0 a call is admitted only if it can run at once.
        queue: u64,
    },
    /// Lets the count run at once, however long they take.
    ///
    /// This is the *counting semaphore*, with leases: an admitted call holds a place until its [`Permit`](crate::Permit) is dropped. The period is the
    /// lease: a process that died keeps its places for that long at most, and one that lives renews its leases every third of it.
    /// [`Permit::is_held`](crate::Permit::is_held) tells whether it could.
    ///
    /// The count is what all processes may hold together. The lease is not part of the counter's name. A cost of n takes n places. If a Redis
    /// server's clock is set back, places of those who died are kept for as much longer.
    ///
    /// ```
    /// use ratelimit_runtime::{Algorithm, Limiter, Rule};
    /// use std::time::Duration;
    ///
    /// const EXPORTS: Rule = Rule::new("export", 1, Duration::from_secs(30)).with_algorithm(Algorithm::Concurrent);
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let limiter = Limiter::in_memory();
    /// let permit = limiter.acquire(&EXPORTS, "alice").await?;
    /// assert!(limiter.acquire(&EXPORTS, "alice").await.is_err());
    /// drop(permit);
    /// assert!(limiter.acquire(&EXPORTS, "alice").await.is_ok());
    /// # Ok::<_, ratelimit_runtime::RequestPerMinute>(()) }).unwrap();
    /// ```
    Concurrent,
}

/// When a [`TokenBucket`](Algorithm::TokenBucket) gets its tokens back.
///
/// ```
/// use ratelimit_runtime::{Algorithm, Refill, Rule};
/// use std::time::Duration;
///
/// const HOUR: Duration = Duration::from_secs(3600);
/// // One every 36 seconds.
/// const STEADY: Rule = Rule::new("mail", 100, HOUR).with_algorithm(Algorithm::TokenBucket { burst: 100, refill: Refill::Greedy });
/// // A hundred once an hour.
/// const HOURLY: Rule =
///     Rule::new("mail", 100, HOUR).with_algorithm(Algorithm::TokenBucket { burst: 100, refill: Refill::Interval });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refill {
    /// One by one, spread evenly over the period.
    #[default]
    Greedy,
    /// All of the count at once, at the end of each period. The first period begins with the first call that finds the bucket full.
    Interval,
}

impl Algorithm {
    /// The algorithm's part of a counter's name. It changes when the stored form does.
    pub(crate) fn key_tag(self) -> KeyTag {
        let (name, buckets) = match self {
            Self::FixedWindow { align: false } => ("fixed", None),
            Self::FixedWindow { align: true } => ("fixed-aligned", None),
            Self::SlidingLog => ("sliding-log", None),
            Self::SlidingWindow { buckets } => ("sliding-", Some(buckets)),
            Self::TokenBucket { refill: Refill::Greedy, .. } => ("bucket", None),
            Self::TokenBucket { refill: Refill::Interval, .. } => ("bucket-interval", None),
            Self::LeakyBucket { .. } => ("leaky", None),
            Self::Concurrent => ("places", None),
        };
        KeyTag { name, buckets }
    }

    /// The same as a number, below 2^13 for a rule without fault: algorithms with one tag have one number.
    #[inline]
    pub(crate) const fn id(self) -> u64 {
        match self {
            Self::FixedWindow { align: false } => 0,
            Self::FixedWindow { align: true } => 1,
            Self::SlidingLog => 2,
            Self::TokenBucket { refill: Refill::Greedy, .. } => 3,
            Self::TokenBucket { refill: Refill::Interval, .. } => 4,
            Self::LeakyBucket { .. } => 5,
            Self::Concurrent => 7,
            Self::SlidingWindow { buckets } => 6 | buckets << 3,
        }
    }
}

/// `fixed`, or `sliding-6`.
pub(crate) struct KeyTag {
    pub(crate) name: &'static str,
    pub(crate) buckets: Option<u64>,
}
