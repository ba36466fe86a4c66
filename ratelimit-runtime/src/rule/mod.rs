//! Rules: a counter's prefix, the count, the period and the algorithm.

use std::{fmt, time::Duration};

pub(crate) mod algorithm;
pub(crate) mod call_kind;
pub(crate) mod limits;

pub use self::algorithm::{Algorithm, Refill};
use self::{algorithm::RuleField, limits::RuleFault};
use crate::decision::round_up_ms;
use xxhash_rust::const_xxh3::{xxh3_128, xxh3_128_with_seed};

/// A limit of `count` in each `period`, for the counters named `prefix`.
///
/// A rule is a small constant. All calls with the same prefix, key, algorithm and period share a
/// counter. A changed count or burst takes effect on the next call, and earlier calls still count.
/// After a changed period or algorithm, all counters begin at zero.
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
    rate: Rate,
    /// Milliseconds of the ban with [`RuleOptions::BAN`], or else nanoseconds of an invalid period,
    /// below a millisecond.
    ban_or_rest: u32,
    options: RuleOptions,
    prefetch: u16,
    /// Distinguishes its counters from those of other rules.
    id: RuleId,
}

/// The part of a rule that refunds and refusals need. It is copied in whole: words that are stored one by one, and
/// then read in pairs, make the processor wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Rate {
    pub(crate) count: u64,
    /// The period in milliseconds, which is all of it in a valid rule.
    period_ms: u64,
    algorithm: Algorithm,
}

/// Properties of a rule that are on or off, in one byte.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct RuleOptions(u8);

impl RuleOptions {
    const SHADOW: u8 = 1;
    const DENIAL_CACHE: u8 = 2;
    /// Every call checks it, so it is computed once, mostly at compile time.
    const VALID: u8 = 4;
    const BAN: u8 = 8;
    /// Its places need a holder. Computed with [`RuleOptions::VALID`].
    const PLACES: u8 = 16;

    #[inline]
    const fn has(self, option: u8) -> bool {
        self.0 & option != 0
    }

    const fn with(self, option: u8, is_on: bool) -> Self {
        Self(if is_on { self.0 | option } else { self.0 & !option })
    }
}

/// A hash of a rule's prefix, algorithm and period, mostly computed at compile time.
///
/// XXH3 with 128 bits, without a secret: an attacker who chooses prefixes could search for a
/// collision. Prefixes must therefore be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RuleId(pub(crate) u64, pub(crate) u64);

impl RuleId {
    #[allow(clippy::cast_possible_truncation)] // split into two halves
    const fn new(rule: &Rule) -> Self {
        let period = rule.identity_period();
        // The whole period is hashed, so that an invalid rule never shares the id of a valid one.
        let (seconds, nanoseconds) = (period.as_secs() as u128, period.subsec_nanos() as u128);
        let counted = seconds << 64 | (rule.rate.algorithm.key_tag().id() as u128) << 32 | nanoseconds;
        let id = xxh3_128(rule.prefix.as_bytes()) ^ xxh3_128_with_seed(&counted.to_le_bytes(), 1);
        Self(id as u64, (id >> 64) as u64)
    }
}

impl Rule {
    /// The longest period a rule may have: 3,650 days.
    pub const LONGEST_PERIOD: Duration = Duration::from_secs(3_650 * 24 * 60 * 60);

    /// A rule that admits `count` in each `period` by [`Algorithm::FixedWindow`].
    ///
    /// The period is a whole number of milliseconds, from 1 ms to [`Rule::LONGEST_PERIOD`]. A count
    /// of 0 never admits anything.
    ///
    /// A rule is invalid with any other period, an empty prefix, or numbers above those in the
    /// table. Each call is then refused as [`Cause::Misconfigured`](crate::Cause::Misconfigured).
    ///
    /// Do not make prefixes of untrusted input: two of them could be made to share counters. Put it
    /// into keys.
    ///
    /// | algorithm | largest numbers |
    /// |---|---|
    /// | `FixedWindow` | a count of 9,999,999,999 |
    /// | `SlidingLog` | a count of 10,000,000; see below for periods above 90 hours |
    /// | `SlidingWindow` | count × milliseconds of a bucket: 2^52 (52 million for a bucket of a day) |
    /// | `TokenBucket` | burst × milliseconds of the period: 2^52 (1,250 million for an hour) |
    /// | `TokenBucket` with [`Refill::Interval`] | burst × milliseconds of the period / count: 2^52 |
    /// | `LeakyBucket` | (queue + 1) × milliseconds of the period: 2^52 |
    ///
    /// The count of a `SlidingLog` is at most 1,000,000 for periods above 90 hours, 100,000 above 37
    /// days, and 10,000 above 376 days. No count, burst or queue can be above 2^52.
    pub const fn new(prefix: &'static str, count: u64, period: Duration) -> Self {
        let (period_ms, ban_or_rest) = (saturating_ms(period), period.subsec_nanos() % 1_000_000);
        let rate = Rate { count, period_ms, algorithm: Algorithm::FixedWindow { align: false } };
        let (options, id) = (RuleOptions(RuleOptions::DENIAL_CACHE), RuleId(0, 0));
        Self { prefix, rate, ban_or_rest, options, prefetch: 1, id }.with_id()
    }

    const fn with_id(mut self) -> Self {
        self.id = RuleId::new(&self);
        self.checked()
    }

    const fn checked(mut self) -> Self {
        let (is_valid, has_places) = (self.first_fault().is_none(), self.is_concurrent());
        self.options = self.options.with(RuleOptions::VALID, is_valid).with(RuleOptions::PLACES, has_places);
        self
    }

    /// Sets the algorithm. By default [`Algorithm::FixedWindow`].
    #[must_use]
    pub const fn with_algorithm(mut self, algorithm: Algorithm) -> Self {
        self.rate.algorithm = algorithm;
        self.with_id()
    }

    /// Shadow mode, to try a rule out: the rule counts calls, but refuses none.
    ///
    /// A call that it would refuse runs. It is an event in the log, at most once a second, and counts
    /// as `shadow_refused` in the metric `ratelimit_decisions_total` (feature `metrics`). It is not
    /// charged to this rule. So the counter stops at the limit, and `shadow_refused` has what would
    /// have been refused.
    ///
    /// - The permit has the rule's numbers; header fields leave the rule out.
    /// - A call that would wait for a slot of a [`LeakyBucket`](Algorithm::LeakyBucket) takes the
    ///   slot and runs at once.
    /// - If the rule would refuse, the other rules of the call are decided again without it.
    /// - If a memory store is full and has no counter of the rule, the call is not counted by it. If a server
    ///   fails, the failure policy decides on the whole call: on a cluster that may be the server of this rule's
    ///   counter alone.
    /// - The counter is the same in both modes: after the trial, earlier calls still count.
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
        self.options = self.options.with(RuleOptions::SHADOW, shadow);
        self.checked()
    }

    /// Whether the rule is in shadow mode; see [`Rule::with_shadow`].
    #[inline]
    pub const fn is_shadow(&self) -> bool {
        self.options.has(RuleOptions::SHADOW)
    }

    /// Whether this process caches denials. By default it does. A denial is the store's answer to a
    /// call that it refuses.
    ///
    /// Until shortly before `retry_after` is over, further calls of the counter are refused with the
    /// rest of it, without asking the store.
    ///
    /// **A cached denial may be out of date** if another process refunds or resets the counter: it
    /// counts until its end. Turn the cache off if that happens, and callers cannot wait so long. A
    /// [recipe](crate::guide::operations#unblock-a-customer) shows how to unblock a customer.
    ///
    /// - Denials are dropped when this process itself refunds or resets the counter, when count,
    ///   burst or queue change, and while the store is away.
    /// - A denial is cached if nothing remains of the counter. It must be of a call with a cost of 1,
    ///   or with any cost in a fixed window. The whole limit must be back within 49 days, the
    ///   longest time that the cache can store.
    /// - Several rules of one call are refused from the cache only if each of them has a cached
    ///   denial.
    /// - The cache holds up to 131,072 counters for each limiter.
    ///
    /// Processes may have different settings: they still share the counter. The memory store needs no
    /// cache.
    ///
    /// ```
    /// # use ratelimit_runtime::Rule;
    /// # use std::time::Duration;
    /// const RULE: Rule = Rule::new("item", 100, Duration::from_secs(60)).with_denial_cache(false);
    /// ```
    #[must_use]
    pub const fn with_denial_cache(mut self, cache_denials: bool) -> Self {
        self.options = self.options.with(RuleOptions::DENIAL_CACHE, cache_denials);
        self
    }

    /// Prefetches permits: takes this many from the store in one round trip, and spends them without
    /// asking it.
    ///
    /// By default 1; values above 65,535 are clamped. 0, or an algorithm other than
    /// [`Algorithm::FixedWindow`], is [`Cause::Misconfigured`](crate::Cause::Misconfigured).
    ///
    /// Permits are only spent in the window that they were charged in. So all processes together never
    /// admit more than the count in a window, except after a fork (below), or [if a clock
    /// jumps](crate::guide::promises#limits-of-the-promises). But a call may be refused although another process still
    /// has permits: they are missing for the others until they are refunded or the window ends.
    ///
    /// | with `with_prefetch(n)` | permits of a counter in one process, at most |
    /// |---|---|
    /// | usually | n, or the largest cost of a call if that is more |
    /// | if n permits last for less than 10 ms | twice as many and so on, up to 96n |
    /// | near the limit | half of what remained in the store, and those for callers that already wait |
    /// | after [`Limiter::close`](crate::Limiter::close), or when the last handle of the limiter was dropped | none |
    /// | when the process is killed | its permits stay charged until the window ends |
    /// | when Redis answers after the deadline | none: refunded, but stay charged after five seconds more |
    /// | when the process forks | both processes spend them: fork before the first call |
    ///
    /// - A caller who finds too few permits waits for the store as without prefetch, in order of
    ///   arrival.
    /// - [`Permit::remaining`](crate::Permit::remaining) is the sum of what remained at the store when
    ///   it was last asked, and of the permits of this process.
    /// - A refunded permit can be spent again by this process.
    /// - While the store is away, the permits of this process are spent first. Then
    ///   [`OnStoreError`](crate::OnStoreError) applies.
    /// - A rule with prefetch stands alone: a call with a second rule is refused as
    ///   [`Cause::Misconfigured`](crate::Cause::Misconfigured).
    ///
    /// Processes may have different settings: they still share the counter. The memory store ignores
    /// the setting, as it has no round trips.
    ///
    /// ```
    /// # use ratelimit_runtime::Rule;
    /// # use std::time::Duration;
    /// const RULE: Rule = Rule::new("item", 100_000, Duration::from_secs(60)).with_prefetch(100);
    /// ```
    #[allow(clippy::cast_possible_truncation)] // clamped
    #[must_use]
    pub const fn with_prefetch(mut self, permits: u64) -> Self {
        self.prefetch = if permits > u16::MAX as u64 { u16::MAX } else { permits as u16 };
        self.checked()
    }

    /// Bans a key for this time when it calls over its limit: the first refusal bans the counter, and
    /// each further call is refused as [`Cause::Banned`](crate::Cause::Banned) until the ban ends.
    ///
    /// An attack then costs a query to the store once a second in each process, and writes once.
    ///
    /// - The refusal that bans is a `Banned` one, too. It is the one refusal that writes. Refusals
    ///   during the ban write nothing, and do not prolong it.
    /// - A ban lasts for the given time, or until the window of the counter is over if that is longer.
    ///   For a bucket, that is when it is full again, or if the count has changed, when each charge has come
    ///   back by its own count. Then the counter begins at zero. A
    ///   [`SlidingLog`](Algorithm::SlidingLog) keeps its charges and holds instead, and the ban lasts
    ///   exactly as long as given.
    /// - Of several rules of a call, those that refuse ban their own counters. The others charge
    ///   nothing and ban nothing. If the counters are in several hash slots of a cluster, calls that are refused at
    ///   the same time may each start the ban, and it lasts from the latest of them. A call that a later hash slot
    ///   refuses has charged the earlier ones for a moment. Another call that is refused because of that charge is
    ///   banned.
    /// - No ban comes from [`Limiter::peek`](crate::Limiter::peek), from a cost that [never
    ///   fits](crate::Cause::NeverFits), or from a refusal because of amounts that running calls hold.
    /// - [`Limiter::unban`](crate::Limiter::unban) ends a ban. A process caches a ban for a second at
    ///   most. [`Limiter::ban`](crate::Limiter::ban) bans any counter, whatever its rule, and tells
    ///   more about bans.
    /// - While the store is away, [`OnStoreError::Local`](crate::OnStoreError::Local) knows none of
    ///   its bans, and bans in this process.
    ///
    /// The time is rounded up to a millisecond, and is at most 49 days. A zero time is no ban. Processes
    /// may have different times, or none: they all refuse a banned key.
    ///
    /// A rule with a ban is invalid with a [`LeakyBucket`](Algorithm::LeakyBucket) or
    /// [`Concurrent`](Algorithm::Concurrent), with prefetch, and in shadow mode. Its calls cannot wait
    /// for the limit, because a caller that is banned should not wait. In the attribute, `ban` with
    /// `on_limit = Wait` is a compile error. A call that waits in another way, such as
    /// [`Limiter::acquire_within`](crate::Limiter::acquire_within), is refused as
    /// [`Cause::Misconfigured`](crate::Cause::Misconfigured). It ignores a ban with which a rules file
    /// overrides a rule.
    ///
    /// ```
    /// use ratelimit_runtime::{Cause, Limiter, Rule};
    /// use std::time::Duration;
    ///
    /// const LOGINS: Rule = Rule::new("login", 5, Duration::from_secs(60)).with_ban(Duration::from_secs(600));
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let limiter = Limiter::in_memory();
    /// for _ in 0..5 {
    ///     limiter.acquire(&LOGINS, "192.0.2.1").await?;
    /// }
    /// let refused = limiter.acquire(&LOGINS, "192.0.2.1").await.unwrap_err();
    /// assert_eq!((refused.cause(), refused.retry_after()), (Cause::Banned, Some(Duration::from_secs(600))));
    /// limiter.acquire(&LOGINS, "192.0.2.2").await?;
    /// # Ok::<_, ratelimit_runtime::RequestPerMinute>(()) }).unwrap();
    /// ```
    #[must_use]
    pub const fn with_ban(mut self, time: Duration) -> Self {
        if self.rest_ns() > 0 {
            return self; // invalid
        }
        self.ban_or_rest = ceil_ms(time);
        self.options = self.options.with(RuleOptions::BAN, !time.is_zero());
        self.checked()
    }

    /// The time of the ban; see [`Rule::with_ban`]. `None` if refusals do not ban.
    pub const fn ban(&self) -> Option<Duration> {
        match self.ban_ms() {
            0 => None,
            ms => Some(Duration::from_millis(ms)),
        }
    }

    /// [`Rule::ban`] in milliseconds, or 0.
    #[inline]
    pub(crate) const fn ban_ms(&self) -> u64 {
        if self.options.has(RuleOptions::BAN) { self.ban_or_rest as u64 } else { 0 }
    }

    /// Nanoseconds of an invalid period, below a millisecond.
    #[inline]
    const fn rest_ns(&self) -> u32 {
        if self.options.has(RuleOptions::BAN) { 0 } else { self.ban_or_rest }
    }

    /// Permits that a process takes from the store at a time; 1 unless set by
    /// [`Rule::with_prefetch`].
    #[inline]
    pub const fn prefetch(&self) -> u64 {
        self.prefetch as u64
    }

    /// Whether this process caches the rule's denials; see [`Rule::with_denial_cache`].
    #[inline]
    pub const fn caches_denials(&self) -> bool {
        self.options.has(RuleOptions::DENIAL_CACHE)
    }

    /// The prefix of the names of its counters.
    #[inline]
    pub const fn prefix(&self) -> &'static str {
        self.prefix
    }

    /// The cost admitted in each period, or held at once with [`Algorithm::Concurrent`].
    #[inline]
    pub const fn count(&self) -> u64 {
        self.rate.count
    }

    /// The period; the lease with [`Algorithm::Concurrent`].
    #[inline]
    pub const fn period(&self) -> Duration {
        Duration::new(self.rate.period_ms / 1000, (self.rate.period_ms % 1000) as u32 * 1_000_000 + self.rest_ns())
    }

    /// The algorithm that counts.
    #[inline]
    pub const fn algorithm(&self) -> Algorithm {
        self.rate.algorithm
    }

    /// The largest cost that is ever granted: the burst of a
    /// [`TokenBucket`](Algorithm::TokenBucket), the queue + 1 of a
    /// [`LeakyBucket`](Algorithm::LeakyBucket), or else the count. 0 if the count is 0.
    #[inline]
    pub const fn limit(&self) -> u64 {
        match self.rate.algorithm.size() {
            _ if self.rate.count == 0 => 0,
            Some((RuleField::Queue, queue)) => queue.saturating_add(1),
            Some((_, burst)) => burst,
            None => self.rate.count,
        }
    }

    /// A valid rule without an id, for its numbers only.
    pub(crate) const fn without_id(prefix: &'static str, rate: Rate) -> Self {
        let (options, id) = (RuleOptions(RuleOptions::DENIAL_CACHE | RuleOptions::VALID), RuleId(0, 0));
        Self { prefix, rate, ban_or_rest: 0, options, prefetch: 1, id }
    }

    #[inline]
    pub(crate) const fn rate(&self) -> Rate {
        self.rate
    }

    pub(crate) const fn with_count(mut self, count: u64) -> Self {
        self.rate.count = count;
        self.checked()
    }

    /// Sets the largest cost to the count, if an option of the algorithm bounds it. That option is
    /// not part of the id.
    pub(crate) const fn sized_by_count(mut self) -> Self {
        self.rate.algorithm = self.rate.algorithm.with_largest_cost(self.rate.count);
        self.checked()
    }

    /// The rule with the largest limit that its counter can store, and without prefetch. The counter
    /// stays the same. A count of 0 stays, too, and an invalid rule stays as it is.
    pub(crate) const fn with_largest_limit(mut self) -> Self {
        if self.rate.count == 0 || self.has_fault() {
            return self;
        }
        self.prefetch = 1;
        if self.rate.algorithm.size().is_some() {
            self.rate.algorithm = self.rate.algorithm.with_largest_cost(u64::MAX);
        } else {
            self.rate.count = u64::MAX;
        }
        match self.limit_fault() {
            Some(RuleFault::TooLarge { field: RuleField::Count, largest, .. }) => self.rate.count = largest,
            Some(RuleFault::TooLarge { largest, .. }) => {
                self.rate.algorithm = self.rate.algorithm.with_largest_cost(largest);
            }
            _ => {}
        }
        self.checked()
    }

    /// The local share of the rule for one of this many processes, rounded down.
    ///
    /// A burst is at least 1, as a bucket of 0 would grant nothing at any rate. A queue may become
    /// 0: a call whose slot is free still runs.
    pub(crate) const fn divided_among(mut self, processes: u64) -> Self {
        self.rate.count /= processes;
        match self.rate.algorithm.size_mut() {
            Some((RuleField::Queue, queue)) => *queue /= processes,
            Some((_, burst)) => *burst = if *burst < processes { 1 } else { *burst / processes },
            None => {}
        }
        self.checked()
    }

    /// The period in milliseconds, of a rule without [`Rule::fault`].
    #[inline]
    pub(crate) const fn period_ms(&self) -> u64 {
        self.rate.period_ms
    }

    #[inline]
    pub(crate) const fn is_concurrent(&self) -> bool {
        matches!(self.rate.algorithm, Algorithm::Concurrent)
    }

    /// Whether each charge is decided at once: no slot is given out, and no place is held.
    pub(crate) const fn decides_at_once(&self) -> bool {
        !self.is_concurrent() && !matches!(self.rate.algorithm.size(), Some((RuleField::Queue, _)))
    }

    /// Whether counters of the rule can be banned. Slots that are given out and places that are held
    /// cannot be taken back.
    pub(crate) const fn supports_bans(&self) -> bool {
        self.decides_at_once()
    }

    #[inline]
    pub(crate) const fn id(&self) -> RuleId {
        self.id
    }

    /// Whether both are equal, where the id stands for the prefix: texts take longer to compare than all the rest.
    #[cfg(feature = "config")]
    #[inline]
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let Self { prefix: _, rate, ban_or_rest, options, prefetch, id } = *self;
        id == other.id
            && (ban_or_rest, options, prefetch) == (other.ban_or_rest, other.options, other.prefetch)
            && rate == other.rate
    }

    /// The period as part of a counter's identity. The lease of a semaphore is not.
    #[inline]
    pub(crate) const fn identity_period(&self) -> Duration {
        if self.is_concurrent() { Duration::ZERO } else { self.period() }
    }

    /// [`Rule::identity_period`] in milliseconds.
    #[allow(clippy::cast_possible_truncation)] // at most 3,650 days
    pub(crate) const fn identity_period_ms(&self) -> u64 {
        self.identity_period().as_millis() as u64
    }

    /// Whether the rule is invalid.
    #[inline]
    pub(crate) const fn has_fault(&self) -> bool {
        !self.options.has(RuleOptions::VALID)
    }

    /// Whether the rule is valid, refuses, and its refusals write nothing. Places also need a caller who `can_hold`
    /// them.
    #[inline]
    pub(crate) const fn can_be_attempted(&self, can_hold: bool) -> bool {
        let places = if can_hold { 0 } else { RuleOptions::PLACES };
        let unfit = RuleOptions::SHADOW | RuleOptions::BAN | places;
        self.options.0 & (RuleOptions::VALID | unfit) == RuleOptions::VALID
    }

    /// The reason why the rule is invalid. `None` if it is valid.
    pub(crate) fn fault(&self) -> Option<String> {
        if !self.has_fault() {
            return None;
        }
        self.first_fault().map(|fault| fault.explain(self.rate.algorithm, self.period()))
    }

    pub(crate) const fn first_fault(&self) -> Option<RuleFault> {
        match () {
            () if self.prefix.is_empty() => Some(RuleFault::NoPrefix),
            () if !self.has_period() => Some(RuleFault::Period),
            () => self.limit_fault(),
        }
    }

    #[inline]
    pub(crate) const fn limit_fault(&self) -> Option<RuleFault> {
        match self.ban_fault() {
            Some(fault) => Some(fault),
            None => limits::fault(self.rate.algorithm, self.rate.count, self.period_ms(), self.prefetch),
        }
    }

    const fn ban_fault(&self) -> Option<RuleFault> {
        match () {
            () if !self.options.has(RuleOptions::BAN) => None,
            () if !self.supports_bans() => Some(RuleFault::BanUnsupported),
            () if self.is_shadow() => Some(RuleFault::BanInShadow),
            () if self.prefetch > 1 => Some(RuleFault::BanWithPrefetch),
            () if self.ban_or_rest == u32::MAX => Some(RuleFault::BanTooLong),
            () => None,
        }
    }

    /// Whether the period is valid.
    const fn has_period(&self) -> bool {
        0 < self.rate.period_ms && self.rate.period_ms <= saturating_ms(Self::LONGEST_PERIOD) && self.rest_ns() == 0
    }
}

/// Whole milliseconds of a ban, at most [`Rule::LONGEST_PERIOD`].
pub(crate) fn ban_ms(time: Duration) -> u64 {
    round_up_ms(time).min(saturating_ms(Rule::LONGEST_PERIOD))
}

/// Milliseconds, rounded up. [`u32::MAX`] if they are as many or more.
#[allow(clippy::cast_possible_truncation)] // compared first
const fn ceil_ms(duration: Duration) -> u32 {
    let ms = duration.as_nanos().div_ceil(1_000_000);
    if ms > u32::MAX as u128 { u32::MAX } else { ms as u32 }
}

/// Whole milliseconds, for up to 584 million years.
#[allow(clippy::cast_possible_truncation)]
const fn saturating_ms(duration: Duration) -> u64 {
    let ms = duration.as_millis();
    if ms > u64::MAX as u128 { u64::MAX } else { ms as u64 }
}

#[allow(clippy::missing_fields_in_debug)] // some fields are one number, and the id follows from the others
impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule")
            .field("prefix", &self.prefix)
            .field("count", &self.rate.count)
            .field("period", &self.period())
            .field("algorithm", &self.rate.algorithm)
            .field("shadow", &self.is_shadow())
            .field("denial_cache", &self.caches_denials())
            .field("prefetch", &self.prefetch)
            .field("ban", &self.ban())
            .finish()
    }
}

#[cfg(all(test, not(model_check)))]
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
