//! What is limited: a counter's name, how much of it, in how long, by which algorithm.

use std::{fmt, time::Duration};

pub(crate) mod algorithm;
pub(crate) mod limits;

pub use self::algorithm::{Algorithm, Refill};
use self::limits::RuleFault;
use xxhash_rust::const_xxh3::{xxh3_128, xxh3_128_with_seed};

/// A limit: at most `count` in each `period`, for the counter named `prefix`.
///
/// A rule is a small constant. The counter it speaks of is found by prefix, key, algorithm and
/// period: a changed count acts on the next call, a changed period or algorithm starts fresh.
///
/// ```
/// use ratelimit_runtime::{Algorithm, Limiter, Rule};
/// use std::time::Duration;
///
/// const RULE: Rule = Rule::new("item", 100, Duration::from_secs(60)).with_algorithm(Algorithm::SlidingLog);
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let limiter = Limiter::in_memory();
/// let permit = limiter.acquire(&RULE, 4711).await?;
/// assert_eq!(permit.remaining(), 99);
/// # Ok::<_, ratelimit_runtime::RequestPerMinute>(()) }).unwrap();
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rule {
    prefix: &'static str,
    count: u64,
    /// The period in two parts: a `Duration` has room behind it, and keeps it. Every call carries its rules.
    seconds: u64,
    nanos: u32,
    shadow: bool,
    denial_cache: bool,
    prefetch: u16,
    algorithm: Algorithm,
    /// What tells its counters from those of other rules.
    id: RuleId,
}

/// A hash of a rule's prefix, algorithm and period, worked out where the rule is written: mostly by the compiler.
///
/// XXH3 with 128 bits. It has no secret, so a prefix must not come from strangers: they could look for two that share it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RuleId(pub(crate) u64, pub(crate) u64);

impl RuleId {
    #[allow(clippy::cast_possible_truncation)] // in two halves
    const fn new(rule: &Rule) -> Self {
        let period = rule.identity_period();
        // The period is all of it, so that none with a fault has the id of one without.
        let (seconds, nanoseconds) = (period.as_secs() as u128, period.subsec_nanos() as u128);
        let counted = seconds << 64 | (rule.algorithm.id() as u128) << 32 | nanoseconds;
        let id = xxh3_128(rule.prefix.as_bytes()) ^ xxh3_128_with_seed(&counted.to_le_bytes(), 1);
        Self(id as u64, (id >> 64) as u64)
    }
}

impl Rule {
    /// The longest period a rule may have: 3,650 days.
    pub const LONGEST_PERIOD: Duration = Duration::from_secs(3_650 * 24 * 60 * 60);

    /// A rule that admits `count` in each `period` by [`Algorithm::FixedWindow`].
    ///
    /// The period is a whole number of milliseconds, from one to [`Rule::LONGEST_PERIOD`]. Any
    /// other period, an empty prefix, or numbers beyond what the algorithm can store are reported by each acquire
    /// as [`Cause::Misconfigured`](crate::Cause::Misconfigured). A count of 0 never admits anything.
    ///
    /// A prefix is part of the program. What strangers send belongs into keys: in this process rules are told apart by a hash of prefix, algorithm and
    /// period that has no secret, that of keys has one.
    ///
    /// | algorithm | the largest numbers it can store |
    /// |---|---|
    /// | `FixedWindow` | a count of 9,999,999,999 |
    /// | `SlidingLog` | a count of 10,000,000 up to a period of 90 hours, 1,000,000 up to 37 days, 100,000 up to 376 days, and 10,000 above |
    /// | `SlidingWindow` | count × milliseconds of a sub-window: 2^52 (52 million for sub-windows of a day) |
    /// | `TokenBucket` | burst × milliseconds of the period, or with [`Refill::Interval`] of the periods to fill it: 2^52 (1,250 million for an hour) |
    /// | `LeakyBucket` | (queue + 1) × milliseconds of the period: 2^52 |
    ///
    /// No count, burst or queue may be above 2^52.
    pub const fn new(prefix: &'static str, count: u64, period: Duration) -> Self {
        let (seconds, nanos) = (period.as_secs(), period.subsec_nanos());
        let algorithm = Algorithm::FixedWindow { align: false };
        let id = RuleId(0, 0);
        Self { prefix, count, seconds, nanos, shadow: false, denial_cache: true, prefetch: 1, algorithm, id }.with_id()
    }

    const fn with_id(mut self) -> Self {
        self.id = RuleId::new(&self);
        self
    }

    /// The same rule, counted by another algorithm.
    #[must_use]
    pub const fn with_algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = algorithm;
        self.with_id()
    }

    /// The same rule, to be tried out: it counts and decides, and lets through what it refuses.
    ///
    /// What it would have refused is an event in the log, once a second at most, and counted in the metric `ratelimit_decisions_total` as
    /// `shadow_refused` (feature `metrics`); nothing is charged for it, as for any refusal. The permit says what the rule says; header
    /// fields do not tell of it. A call that it would have made wait for a slot of a [`LeakyBucket`](Algorithm::LeakyBucket) takes the slot and runs
    /// at once. Where it would refuse, other rules of the call are asked once more, without it. The counter is the same with and without: when the
    /// trial is over, what has been counted goes on to count.
    ///
    /// ```
    /// # use ratelimit_runtime::{Limiter, Rule};
    /// # use std::time::Duration;
    /// const TRIED_OUT: Rule = Rule::new("item", 1, Duration::from_secs(60)).with_shadow(true);
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let limiter = Limiter::in_memory();
    /// assert!(limiter.acquire(&TRIED_OUT, "alice").await.is_ok());
    /// assert!(limiter.acquire(&TRIED_OUT, "alice").await.is_ok());
    /// assert!(limiter.acquire(&TRIED_OUT.with_shadow(false), "alice").await.is_err());
    /// # });
    /// ```
    #[must_use]
    pub const fn with_shadow(mut self, shadow: bool) -> Self {
        self.shadow = shadow;
        self
    }

    /// Whether the rule is only tried out.
    #[inline]
    pub const fn is_shadow(&self) -> bool {
        self.shadow
    }

    /// Whether this process remembers that a call was refused; it does if nothing is said.
    ///
    /// What a store said when it refused is answered here until shortly before the wait is over, with what is left of it, and the store is not
    /// asked. That is what the store would say, as long as nobody else refunds to the counter or resets it: this process forgets what it knows when it does so
    /// itself, while the store is away, and for a rule of another count, burst or queue. Turn it off for a rule whose counters are
    /// reset, or refunded to, by other processes, and whose callers can't wait until the refusal ends.
    ///
    /// It is part of neither the counter's name nor its state. The memory store has no need of it.
    ///
    /// Remembered are, of each store, up to 131,072 counters of which nothing remained, and all will within 49 days: for a cost of 1, and with a fixed window for
    /// any cost. Of a call with several rules, all have to be known to refuse.
    ///
    /// ```
    /// # use ratelimit_runtime::Rule;
    /// # use std::time::Duration;
    /// const RULE: Rule = Rule::new("item", 100, Duration::from_secs(60)).with_denial_cache(false);
    /// ```
    #[must_use]
    pub const fn with_denial_cache(mut self, remember: bool) -> Self {
        self.denial_cache = remember;
        self
    }

    /// Takes the rule's permits so many at a time, to be spent in this process without asking the store. 1 if nothing is said; what is
    /// above 65,535 is taken for that.
    ///
    /// For [`Algorithm::FixedWindow`]: permits are spent in the window they were charged in or not at all, so that never more than the count is
    /// admitted in it, by all processes together. What one process holds is not there for others, until it is refunded or the window ends, so a
    /// call may be refused while another process holds permits. A process holds
    ///
    /// - up to `permits` of each counter, or the largest cost of a call if that is more;
    /// - where these do not last for 10 ms, twice as many, and so on up to 64 times `permits`, and half as many again, as more are taken before the
    ///   last one is spent;
    /// - but it takes no more than half of what remains, beyond what callers wait for: the closer the limit, the fewer.
    ///
    /// What is left goes back to the store with [`Limiter::close`](crate::Limiter::close), and in the background
    /// when the last handle of a limiter is dropped. A process that ends without leaves it charged. A caller who finds too few permits waits for the store as without prefetch, and
    /// callers of one counter are served in the order of their arrival. [`Permit::remaining`](crate::Permit::remaining) is what remained at the store when it was asked last, and
    /// what is left here. A permit that is refunded can be spent again by this process.
    ///
    /// While the store is away, what was taken before is spent, then [`OnStoreError`](crate::OnStoreError) says what happens.
    ///
    /// A rule with prefetch stands alone: it can't be one of several in [`Limiter::acquire_all`](crate::Limiter::acquire_all). The memory store counts in
    /// this process anyway, and takes permits one by one. Other algorithms are [`Cause::Misconfigured`](crate::Cause::Misconfigured), and so is 0. It is not part of the counter's name.
    ///
    /// ```
    /// # use ratelimit_runtime::Rule;
    /// # use std::time::Duration;
    /// const RULE: Rule = Rule::new("item", 100_000, Duration::from_secs(60)).with_prefetch(100);
    /// ```
    #[allow(clippy::cast_possible_truncation)] // not beyond the largest
    #[must_use]
    pub const fn with_prefetch(mut self, permits: u64) -> Self {
        self.prefetch = if permits > u16::MAX as u64 { u16::MAX } else { permits as u16 };
        self
    }

    /// Permits that a process takes from the store at a time; 1 unless set by [`Rule::with_prefetch`].
    #[inline]
    pub const fn prefetch(&self) -> u64 {
        self.prefetch as u64
    }

    /// Whether this process caches the rule's denials; see [`Rule::with_denial_cache`].
    #[inline]
    pub const fn caches_denials(&self) -> bool {
        self.denial_cache
    }

    /// The counter's name.
    #[inline]
    pub const fn prefix(&self) -> &'static str {
        self.prefix
    }

    /// How much is admitted in one period.
    #[inline]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The length of the window.
    #[inline]
    pub const fn period(&self) -> Duration {
        Duration::new(self.seconds, self.nanos)
    }

    /// How the rule counts.
    #[inline]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// The largest cost that is ever granted: the burst of a [`TokenBucket`](Algorithm::TokenBucket), one more than the queue of a
    /// [`LeakyBucket`](Algorithm::LeakyBucket), and otherwise the count. 0 if the count is 0.
    #[inline]
    pub const fn limit(&self) -> u64 {
        match self.algorithm {
            _ if self.count == 0 => 0,
            Algorithm::TokenBucket { burst, .. } => burst,
            Algorithm::LeakyBucket { queue } => queue.saturating_add(1),
            _ => self.count,
        }
    }

    /// A rule that says how it counts, without a prefix.
    pub(crate) const fn unnamed(count: u64, period_ms: u64, algorithm: Algorithm) -> Self {
        let (seconds, nanos) = (period_ms / 1000, (period_ms % 1000) as u32 * 1_000_000);
        let (shadow, denial_cache, prefetch, id) = (false, true, 1, RuleId(0, 0));
        Self { prefix: "", count, seconds, nanos, shadow, denial_cache, prefetch, algorithm, id }
    }

    pub(crate) const fn with_count(mut self, count: u64) -> Self {
        self.count = count;
        self
    }

    /// With another burst, if it has one: that is not in its id.
    pub(crate) const fn with_burst(mut self, holds: u64) -> Self {
        if let Algorithm::TokenBucket { burst, .. } = &mut self.algorithm {
            *burst = holds;
        }
        self
    }

    /// An equal part of the rule, for one of so many processes, rounded down.
    ///
    /// A bucket holds at least one: it would grant nothing, where its rate says that something is to be granted. Of a queue nothing may
    /// be left: a call that finds its slot free runs all the same.
    pub(crate) const fn divided_among(mut self, processes: u64) -> Self {
        self.count /= processes;
        match &mut self.algorithm {
            Algorithm::TokenBucket { burst, .. } => *burst = if *burst < processes { 1 } else { *burst / processes },
            Algorithm::LeakyBucket { queue } => *queue /= processes,
            _ => {}
        }
        self
    }

    /// The period in milliseconds, which [`Rule::fault`] has found to be whole and to fit.
    #[inline]
    pub(crate) const fn period_ms(&self) -> u64 {
        self.seconds.wrapping_mul(1000).wrapping_add(self.nanos as u64 / 1_000_000)
    }

    #[inline]
    pub(crate) const fn is_concurrent(&self) -> bool {
        matches!(self.algorithm, Algorithm::Concurrent)
    }

    #[inline]
    pub(crate) const fn id(&self) -> RuleId {
        self.id
    }

    /// The period that tells the counter from others: a prefetch does not.
    #[inline]
    pub(crate) const fn identity_period(&self) -> Duration {
        match self.algorithm {
            Algorithm::Concurrent => Duration::ZERO,
            _ => self.period(),
        }
    }

    /// The same in milliseconds.
    #[allow(clippy::cast_possible_truncation)] // at most 3,650 days
    pub(crate) const fn identity_period_ms(&self) -> u64 {
        self.identity_period().as_millis() as u64
    }

    /// Whether anything is wrong with the rule's own values.
    #[inline]
    pub(crate) fn has_fault(&self) -> bool {
        self.prefix.is_empty() || !self.has_period() || self.limit_fault().is_some()
    }

    /// What is wrong with the rule's own values, in words, if anything is.
    pub(crate) fn fault(&self) -> Option<String> {
        let (prefix, period) = (self.prefix, self.period());
        if !self.has_fault() {
            return None;
        }
        if prefix.is_empty() {
            return Some("its prefix is empty; give the counter a name".into());
        }
        if !self.has_period() {
            return Some(format!(
                "its period is {period:?}; it must be a whole number of milliseconds, from 1 ms to 3,650 days"
            ));
        }
        self.limit_fault().map(|fault| fault.explain(self.algorithm, period))
    }

    #[inline]
    pub(crate) const fn limit_fault(&self) -> Option<RuleFault> {
        limits::fault(self.algorithm, self.count, self.period_ms(), self.prefetch)
    }

    /// Whether the period is one that a rule can have.
    #[inline]
    fn has_period(&self) -> bool {
        let period = self.period();
        !period.is_zero() && period <= Self::LONGEST_PERIOD && period.subsec_nanos().is_multiple_of(1_000_000)
    }
}

#[allow(clippy::missing_fields_in_debug)] // two of them are the period, and the id is of others
impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule")
            .field("prefix", &self.prefix)
            .field("count", &self.count)
            .field("period", &self.period())
            .field("algorithm", &self.algorithm)
            .field("shadow", &self.shadow)
            .field("denial_cache", &self.denial_cache)
            .field("prefetch", &self.prefetch)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_grants_something_as_long_as_its_rate_does() {
        let rule = Rule::new("share", 100, Duration::from_secs(1));
        for (processes, count, bucket, queue) in [(1, 100, 5, 5), (2, 50, 2, 2), (10, 10, 1, 0), (100, 1, 1, 0)] {
            let part = rule.divided_among(processes);
            assert_eq!((part.count(), part.limit()), (count, count));
            let part = rule
                .with_algorithm(Algorithm::TokenBucket { burst: 5, refill: Refill::Greedy })
                .divided_among(processes);
            assert_eq!((part.count(), part.limit()), (count, bucket));
            assert!(part.id() == rule.with_algorithm(part.algorithm()).id());
            let part = rule.with_algorithm(Algorithm::LeakyBucket { queue: 5 }).divided_among(processes);
            assert_eq!((part.count(), part.limit()), (count, queue + 1));
        }
        for algorithm in [
            Algorithm::SlidingLog,
            Algorithm::TokenBucket { burst: 500, refill: Refill::Interval },
            Algorithm::LeakyBucket { queue: 500 },
        ] {
            assert_eq!(rule.with_algorithm(algorithm).divided_among(101).limit(), 0, "{algorithm:?}");
        }
    }
}
