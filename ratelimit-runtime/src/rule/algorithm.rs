//! The algorithms that a rule can count by.

/// The algorithm of a [`Rule`](crate::Rule). [The guide](crate::guide::choosing) helps to choose.
///
/// For a count of C in a period of P:
///
/// | algorithm | admitted in any time span of P, at most | state per key, on Redis |
/// |---|---|---|
/// | `FixedWindow` | 2C; C in each of its windows | one integer |
/// | `SlidingLog` | C, exactly | per admitted call about 10 bytes |
/// | `SlidingWindow { buckets: n, .. }` | less than 2C; C in any time span of P - P/n | n + 3 numbers of 8 bytes |
/// | `SlidingWindow { weighted: false, .. }` | 2C; C in any time span of P - P/n | n + 2 numbers of 8 bytes |
/// | `TokenBucket { burst: B, .. }` | B + C | four integers |
/// | `LeakyBucket { queue: Q }` | C, by slots; C - 1 + the largest cost, if costs differ from 1 | four integers |
/// | `Concurrent` | any number, but never more than C at once | about 100 bytes per call that holds places |
///
/// ```
/// use ratelimit_runtime::{Algorithm, Refill, Rule};
/// use std::time::Duration;
///
/// const MINUTE: Duration = Duration::from_secs(60);
/// const FROM_FIRST_CALL: Rule = Rule::new("mail", 100, MINUTE); // a fixed window by default
/// const FROM_FULL_MINUTE: Rule =
///     Rule::new("mail", 100, MINUTE).with_algorithm(Algorithm::FixedWindow { align: true });
/// const ANY_MINUTE: Rule = Rule::new("mail", 100, MINUTE).with_algorithm(Algorithm::SlidingLog);
/// const ABOUT_ANY_MINUTE: Rule =
///     Rule::new("mail", 100, MINUTE).with_algorithm(Algorithm::SlidingWindow { buckets: 6, weighted: true });
/// const BURSTS: Rule =
///     Rule::new("mail", 100, MINUTE).with_algorithm(Algorithm::TokenBucket { burst: 20, refill: Refill::Greedy });
/// const EVENLY: Rule = Rule::new("mail", 100, MINUTE).with_algorithm(Algorithm::LeakyBucket { queue: 50 });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// Counts calls in consecutive windows.
    ///
    /// This is the *fixed window counter*. A window opens with the first call admitted after the
    /// last one ended, and always ends one period later. With `align`, windows begin on multiples
    /// of the period since 1970-01-01 00:00 UTC instead: on the full minute for a period of a
    /// minute.
    ///
    /// A time span of one period that crosses the border of two windows may see twice the count.
    FixedWindow {
        /// Whether windows begin on multiples of the period since 1970-01-01 00:00 UTC: by the server's clock,
        /// or by that of the process, which stands still while the machine sleeps (see [`Clock`](crate::Clock)).
        align: bool,
    },
    /// Keeps each admitted call for one period.
    ///
    /// This is the *sliding window log*: exact in every time span of one period. On Redis an admitted call
    /// takes about 10 bytes. Calls within one microsecond (one millisecond for periods above 200
    /// seconds) share an entry, which is the sum of their costs.
    ///
    /// A log has room for 10,000 holds at once, such as reservations. A further hold is refused
    /// with [`Cause::Exceeded`](crate::Cause::Exceeded) until one of them ends. Charges without a
    /// hold are not affected.
    SlidingLog,
    /// Counts calls in buckets of `P / buckets`.
    ///
    /// This is the *sliding window counter*, in both of its forms. Buckets begin on multiples of
    /// their length since 1970-01-01 00:00 UTC.
    ///
    /// **Weighted**, the current bucket and those before it count, and the oldest one by its
    /// overlap with the last period. With one bucket it is the previous window, weighted by its
    /// overlap, plus the current one. For example, with 84 calls in the previous minute and 36 in
    /// the current one, which is 15 seconds old, 84 × 45/60 + 36 = 99 calls count.
    ///
    /// The weight assumes that the calls of the oldest bucket were spread evenly. If all 84 came
    /// in the first second of their minute, 63 of them count still, and a log counts none: fewer calls
    /// are admitted than by a log. If all came at its end, a time span of one period may see up to 2C -
    /// ⌈2C/S⌉ calls, where S is the length of a bucket in milliseconds (C, if S is 1; times are
    /// the store's milliseconds). A time span that is one bucket shorter never sees more than C.
    ///
    /// **Simply added up**, without `weighted`, the current bucket and the `buckets - 1` before
    /// it count in full. Calls come back at once when their bucket is `buckets` old, after
    /// P - P/n to P. So a time span of one period may see 2C calls, whatever the number of buckets is:
    /// C at the end of a bucket, and C at the start of the one that is `buckets` later. A time span
    /// that is one bucket shorter never sees more than C. One bucket is a fixed window that is
    /// aligned.
    ///
    /// To keep either form to C in any time span of P, count in a period of P + P/n with n + 1 buckets.
    /// For example, 70 seconds in 7 buckets never admit more than C in any minute.
    SlidingWindow {
        /// The number of buckets in a period, from 1 to 1,000. It must divide the period in
        /// milliseconds.
        buckets: u64,
        /// Whether the oldest bucket is weighted by its overlap with the last period.
        weighted: bool,
    },
    /// Takes tokens from a bucket that is refilled with the count in each period.
    ///
    /// This is the *token bucket*. With [`Refill::Greedy`] it decides like the *generic cell rate
    /// algorithm* (GCRA) of the ATM Forum. The bucket starts full. Its size bounds bursts
    /// independently of the rate.
    ///
    /// The full rate needs a burst above the tokens of one millisecond: a burst of 1 grants at most
    /// 1,000 calls a second.
    TokenBucket {
        /// The size of the bucket, at least 1. A larger cost never fits.
        burst: u64,
        /// When tokens come back.
        refill: Refill,
    },
    /// Gives each call a slot, one every `P / C`, until which the call sleeps.
    ///
    /// This is the *leaky bucket as a queue*: calls leave at a constant rate, in the order of
    /// admission. A cost of n takes n slots, and the call runs at the first. A call is refused if
    /// more than `queue` slots are taken ahead of it.
    ///
    /// A call that is cancelled while it sleeps frees its slot, unless a later slot was given out
    /// since; then the slot passes unused.
    ///
    /// A rule with this algorithm cannot be one of several in
    /// [`Limiter::acquire_all`](crate::Limiter::acquire_all).
    LeakyBucket {
        /// The number of calls that may wait. With 0, a call is admitted only if it can run at
        /// once.
        queue: u64,
    },
    /// Limits how many calls run at once.
    ///
    /// This is the *counting semaphore*, with leases. An admitted call holds a place until its
    /// [`Permit`](crate::Permit) is dropped; a cost of n takes n places. The count is for all
    /// processes together.
    ///
    /// The period is the lease: a process that crashed keeps its places for at most that long. A
    /// live process renews its leases after every third of it, and at least every 10 seconds. Attributes and rules
    /// files take leases of 1 s to 1 day. A shorter one, of [`Rule::new`](crate::Rule::new), may end while its call
    /// runs.
    /// [`Permit::is_held`](crate::Permit::is_held) is false if that failed. The lease is not part
    /// of the counter's name. If a Redis server's clock is set back, places of crashed processes
    /// are kept for as much longer.
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

/// The refill schedule of a [`TokenBucket`](Algorithm::TokenBucket).
///
/// ```
/// use ratelimit_runtime::{Algorithm, Refill, Rule};
/// use std::time::Duration;
///
/// const HOUR: Duration = Duration::from_secs(3600);
/// // One token every 36 seconds.
/// const STEADY: Rule =
///     Rule::new("mail", 100, HOUR).with_algorithm(Algorithm::TokenBucket { burst: 100, refill: Refill::Greedy });
/// // A hundred tokens every hour.
/// const HOURLY: Rule =
///     Rule::new("mail", 100, HOUR).with_algorithm(Algorithm::TokenBucket { burst: 100, refill: Refill::Interval });
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Refill {
    /// Tokens come back one by one, spread evenly over the period.
    #[default]
    Greedy,
    /// The whole count comes back at once, at the end of each period. The first period begins with
    /// the first call that finds the bucket full.
    Interval,
}

impl Algorithm {
    /// The algorithm's part of a counter's name and id. A changed stored form needs a new name.
    #[inline]
    pub(crate) const fn key_tag(self) -> KeyTag {
        match self {
            Self::FixedWindow { align } => {
                if align {
                    KeyTag::new("fixed-aligned", 1)
                } else {
                    KeyTag::new("fixed", 0)
                }
            }
            Self::SlidingLog => KeyTag::new("sliding-log", 2),
            Self::SlidingWindow { buckets, weighted } => {
                let tag = if weighted { KeyTag::new("sliding-", 6) } else { KeyTag::new("sliding-sum-", 7) };
                KeyTag { buckets: Some(buckets), ..tag }
            }
            Self::TokenBucket { refill, .. } => match refill {
                Refill::Greedy => KeyTag::new("bucket", 3),
                Refill::Interval => KeyTag::new("bucket-interval", 4),
            },
            Self::LeakyBucket { .. } => KeyTag::new("leaky", 5),
            Self::Concurrent => KeyTag::new("places", 7),
        }
    }

    /// The option that bounds a cost. `None` if that is the count.
    #[inline]
    pub(crate) const fn size_mut(&mut self) -> Option<(RuleField, &mut u64)> {
        match self {
            Self::TokenBucket { burst, .. } => Some((RuleField::Burst, burst)),
            Self::LeakyBucket { queue } => Some((RuleField::Queue, queue)),
            _ => None,
        }
    }

    /// The value of [`Algorithm::size_mut`].
    #[inline]
    pub(crate) const fn size(mut self) -> Option<(RuleField, u64)> {
        match self.size_mut() {
            Some((field, size)) => Some((field, *size)),
            None => None,
        }
    }

    /// Whether it is a bucket of 0 permits: an attribute without a burst, before its count is known.
    pub(crate) const fn lacks_burst(self) -> bool {
        matches!(self.size(), Some((RuleField::Burst, 0)))
    }

    /// The algorithm with another largest cost, if an option bounds it.
    pub(crate) const fn with_largest_cost(mut self, cost: u64) -> Self {
        match self.size_mut() {
            Some((RuleField::Queue, queue)) => *queue = cost.saturating_sub(1),
            Some((_, burst)) => *burst = cost,
            None => {}
        }
        self
    }
}

/// `fixed`, `sliding-6`, or `sliding-sum-6`.
#[derive(Clone, Copy)]
pub(crate) struct KeyTag {
    pub(crate) name: &'static str,
    /// Stands for the name in [`KeyTag::id`]. A tag without `buckets` is 7, or its low three bits are
    /// at most 5.
    number: u64,
    /// The number of buckets, which is part of the tag.
    pub(crate) buckets: Option<u64>,
}

impl KeyTag {
    #[inline]
    const fn new(name: &'static str, number: u64) -> Self {
        Self { name, number, buckets: None }
    }

    /// The algorithm's part of a [`RuleId`](super::RuleId): equal for equal tags, and below 2^13
    /// for a valid rule.
    #[inline]
    pub(crate) const fn id(self) -> u64 {
        match self.buckets {
            Some(buckets) => self.number | buckets << 3,
            None => self.number,
        }
    }
}

/// A number of a rule.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RuleField {
    Count,
    Burst,
    Queue,
}
