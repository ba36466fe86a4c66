//! The largest numbers that each algorithm can store.

use std::time::Duration;

use super::algorithm::{Algorithm, Refill, RuleField};
use crate::duration::ReadableDuration;

/// The largest integer up to which Lua's arithmetic is exact, including quotients rounded up.
pub(crate) const EXACT: u64 = 1 << 52;

/// The largest count of a fixed window. Redis stores a number 450,001 times as large, and Lua's
/// remainders are exact up to 2^52.
pub(crate) const LARGEST_WINDOW: u64 = 9_999_999_999;

/// The largest number of holds in one log: its script keeps them in one string, and each step
/// copies it. See `sliding_log/decide.lua`.
pub(crate) const MOST_HOLDS: usize = 10_000;

/// The stored form of a log. It depends only on the period, so a changed count can read the same
/// log.
pub(crate) struct LogLayout {
    /// Microseconds per tick.
    pub(crate) tick_us: u64,
    pub(crate) period_ticks: u64,
}

/// The product of the moduli of times and totals in Redis. Lua's integers are exact up to it.
const ROOM: u64 = 8_123_456_790_000_000;
const MAX_DIGITS: u32 = 7;

impl LogLayout {
    pub(crate) const fn of(period_ms: u64) -> Self {
        if period_ms <= 200_000 {
            Self { tick_us: 1, period_ticks: period_ms * 1000 }
        } else {
            Self { tick_us: 1000, period_ticks: period_ms }
        }
    }

    /// The number of digits for the total in an entry in Redis: as many as leave two and a half
    /// periods for the modulus of times.
    pub(crate) const fn digits(&self) -> u32 {
        let mut digits = MAX_DIGITS;
        while ROOM / 10_u64.pow(digits) / 5 * 2 < self.period_ticks {
            digits -= 1;
        }
        digits
    }

    /// The modulus of times in Redis: at least two and a half periods.
    #[cfg(any(feature = "redis", test))]
    pub(crate) const fn cycle(&self) -> u64 {
        ROOM / self.largest_count()
    }

    /// The tick of a time.
    #[inline]
    pub(crate) fn tick(&self, now_us: u64) -> u64 {
        if self.tick_us == 1 { now_us } else { now_us / 1000 }
    }

    /// The first tick that is not before a time.
    #[inline]
    pub(crate) fn next_tick(&self, now_us: u64) -> u64 {
        if self.tick_us == 1 { now_us } else { now_us.div_ceil(1000) }
    }

    /// Whether an entry no longer counts.
    #[inline]
    pub(crate) fn is_expired(&self, time: u64, now: u64) -> bool {
        time + self.period_ticks <= now
    }

    /// Time until an entry expires.
    #[inline]
    pub(crate) fn wait_ms(&self, time: u64, now: u64) -> u64 {
        ((time + self.period_ticks - now) * self.tick_us).div_ceil(1000)
    }

    /// The modulus of totals in Redis.
    pub(crate) const fn largest_count(&self) -> u64 {
        10_u64.pow(self.digits())
    }
}

/// Whether a place may have this lease. A shorter one would end before it is renewed, while its call runs.
/// A longer one would keep the places of a dead process for days.
pub(crate) const fn is_lease(time: Duration) -> bool {
    1_000 <= time.as_millis() && time.as_millis() <= 86_400_000
}

/// The times of [`is_lease`], for messages.
macro_rules! lease_bounds {
    () => {
        "at least 1 s, and at most 1 day"
    };
}
pub(crate) use lease_bounds;

/// The reason why a rule is invalid.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RuleFault {
    NoPrefix,
    Period,
    NoBuckets,
    TooManyBuckets,
    UnevenBuckets,
    NoBurst,
    NoPrefetch,
    PrefetchUnsupported,
    BanUnsupported,
    BanInShadow,
    BanWithPrefetch,
    BanTooLong,
    TooLarge { field: RuleField, number: u64, largest: u64 },
}

impl RuleFault {
    /// The message at compile time.
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::NoPrefix => "the prefix is empty; give the counter a name",
            Self::Period => "the period must be a whole number of milliseconds, from 1 ms to 3,650 days",
            Self::NoBuckets => "`buckets` must be at least 1",
            Self::TooManyBuckets => "`buckets` must be at most 1,000",
            Self::UnevenBuckets => "the period in milliseconds must be a multiple of `buckets`",
            Self::NoBurst => "`burst` must be at least 1",
            Self::NoPrefetch => "`prefetch` must be at least 1",
            Self::PrefetchUnsupported => "`prefetch` needs the algorithm `FixedWindow`",
            Self::BanUnsupported => "slots and places cannot be taken back: `ban` needs another algorithm",
            Self::BanInShadow => "a rule in shadow mode refuses nothing: leave `ban` or `shadow` out",
            Self::BanWithPrefetch => "prefetched permits would be granted during a ban: leave `ban` or `prefetch` out",
            Self::BanTooLong => "a ban is at most 49 days",
            Self::TooLarge { field: RuleField::Count, .. } => {
                "`count` is more than the algorithm can store, see `Rule::new`"
            }
            Self::TooLarge { field: RuleField::Burst, .. } => {
                "`burst` is more than the algorithm can store, see `Rule::new`"
            }
            Self::TooLarge { field: RuleField::Queue, .. } => {
                "`queue` is more than the algorithm can store, see `Rule::new`"
            }
        }
    }

    /// The message with the numbers of the rule.
    pub(super) fn explain(self, algorithm: Algorithm, period: Duration) -> String {
        match self {
            Self::TooLarge { field, number, largest } => {
                let field = match field {
                    RuleField::Count => "count",
                    RuleField::Burst => "burst",
                    RuleField::Queue => "queue",
                };
                format!(
                    "its {field} is {number}; {algorithm:?} over {} can store {largest} at most",
                    ReadableDuration(period)
                )
            }
            Self::NoPrefix | Self::NoPrefetch | Self::BanInShadow | Self::BanWithPrefetch | Self::BanTooLong => {
                self.words().to_owned()
            }
            Self::Period => format!("{}; it is {period:?}", self.words()),
            Self::UnevenBuckets => format!("{}; it is {algorithm:?} over {} ms", self.words(), period.as_millis()),
            _ => format!("{}; it is {algorithm:?} over {}", self.words(), ReadableDuration(period)),
        }
    }
}

/// The fault of a rule with a valid period, in milliseconds.
#[inline]
pub(super) const fn fault(algorithm: Algorithm, count: u64, period: u64, prefetch: u16) -> Option<RuleFault> {
    match algorithm {
        _ if prefetch == 0 => Some(RuleFault::NoPrefetch),
        Algorithm::FixedWindow { .. } => too_large(RuleField::Count, count, LARGEST_WINDOW),
        _ if prefetch > 1 => Some(RuleFault::PrefetchUnsupported),
        Algorithm::SlidingLog => too_large(RuleField::Count, count, LogLayout::of(period).largest_count()),
        Algorithm::SlidingWindow { buckets, .. } => buckets_fault(buckets, count, period),
        _ if count > EXACT => too_large(RuleField::Count, count, EXACT),
        Algorithm::TokenBucket { burst, refill } => burst_fault(burst, refill, count, period),
        Algorithm::LeakyBucket { queue } => too_large(RuleField::Queue, queue, EXACT / period - 1),
        _ => None,
    }
}

/// Largest number of sub-windows.
pub(crate) const MOST_BUCKETS: u64 = 1_000;

#[inline]
const fn buckets_fault(buckets: u64, count: u64, period: u64) -> Option<RuleFault> {
    match buckets {
        0 => Some(RuleFault::NoBuckets),
        _ if buckets > MOST_BUCKETS => Some(RuleFault::TooManyBuckets),
        _ if !period.is_multiple_of(buckets) => Some(RuleFault::UnevenBuckets),
        _ => too_large(RuleField::Count, count, EXACT / (period / buckets)),
    }
}

#[inline]
const fn burst_fault(burst: u64, refill: Refill, count: u64, period: u64) -> Option<RuleFault> {
    let largest = match refill {
        _ if burst == 0 && count > 0 => return Some(RuleFault::NoBurst),
        Refill::Greedy => EXACT / period,
        // A call with a count of 0 stores nothing.
        Refill::Interval if count == 0 => EXACT,
        Refill::Interval => {
            let fills = (EXACT / period).saturating_mul(count);
            if fills < EXACT { fills } else { EXACT }
        }
    };
    too_large(RuleField::Burst, burst, largest)
}

#[inline]
const fn too_large(field: RuleField, number: u64, largest: u64) -> Option<RuleFault> {
    if number > largest { Some(RuleFault::TooLarge { field, number, largest }) } else { None }
}
