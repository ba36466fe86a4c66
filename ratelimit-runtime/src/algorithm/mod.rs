//! The algorithms, each a pair: arithmetic in Rust for the memory store, its twin in Lua for Redis.
//!
//! Nothing here knows of connections, locks or callers. `counter.rs` gives the pairs one face, `script.rs` makes
//! scripts of the Lua halves and reads their replies.

mod bucket;
mod counter;
mod fixed_window;
mod holds;
mod places;
#[cfg(feature = "redis")]
mod script;
mod sliding_log;
mod sliding_window;

pub(crate) use counter::{Ask, Counter};
pub(crate) use fixed_window::{PackedWindow, TakenWindow, Window};
#[cfg(feature = "redis")]
pub(crate) use script::*;
pub(crate) use sliding_log::MOST_HOLDS;

use crate::{Algorithm, Decision, Refill, Rule};

/// What a counter says of a cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    pub(crate) fits: bool,
    pub(crate) decision: Decision,
    /// How long until the call may run, if it fits.
    pub(crate) wait_ms: u64,
    /// How much is held, if it does not fit.
    pub(crate) held: u64,
    /// Whether it would fit without that.
    pub(crate) is_busy: bool,
}

/// What a counter says after it was asked to charge a cost, and the receipt if it did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) remaining: u64,
    pub(crate) reset_after_ms: u64,
    /// `u64::MAX` if the cost was charged.
    pub(crate) retry_after_ms: u64,
    pub(crate) receipt: [u64; 2],
}

impl Taken {
    pub(crate) fn new(Look { decision, .. }: Look, receipt: [u64; 2]) -> Self {
        let Decision { remaining, reset_after_ms, retry_after_ms, .. } = decision;
        Self { remaining, reset_after_ms, retry_after_ms, receipt }
    }

    #[inline]
    pub(crate) fn fits(&self) -> bool {
        self.retry_after_ms == u64::MAX
    }

    #[inline]
    pub(crate) fn decision(&self, rule: &Rule) -> Decision {
        let Self { remaining, reset_after_ms, retry_after_ms, .. } = *self;
        Decision { limit: rule.limit(), remaining, reset_after_ms, retry_after_ms }
    }
}

impl Look {
    #[inline]
    fn new(rule: &Rule, remaining: u64, reset_after_ms: u64, retry_after_ms: Option<u64>) -> Self {
        let retry_after_ms = retry_after_ms.unwrap_or(u64::MAX);
        let decision = Decision { limit: rule.limit(), remaining, reset_after_ms, retry_after_ms };
        Self { fits: retry_after_ms == u64::MAX, decision, wait_ms: 0, held: 0, is_busy: false }
    }

    /// The same where so much is held, as a script says it: as -n if the cost would not fit without that either.
    #[cfg(feature = "redis")]
    fn holding(self, reply: &[redis::Value]) -> Self {
        match (self.fits, reply) {
            (false, [redis::Value::Int(held)]) => Self { held: held.unsigned_abs(), is_busy: *held > 0, ..self },
            _ => self,
        }
    }

    /// What a counter says that nobody has used.
    #[inline]
    fn fresh(rule: &Rule, cost: u64) -> Self {
        Self::new(rule, rule.limit(), 0, (cost > rule.limit()).then_some(0))
    }
}

/// The largest whole number up to which Lua's arithmetic, quotients rounded up included, is exact.
const EXACT: u64 = 1 << 52;

impl Algorithm {
    /// The algorithm's part of a counter's name. It changes when the stored form does.
    pub(crate) fn tag(self) -> Tag {
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
        Tag { name, buckets }
    }

    /// The same as a number, below 2^13 for a rule without fault: algorithms with one tag have one number.
    #[inline]
    pub(crate) const fn number(self) -> u64 {
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
pub(crate) struct Tag {
    pub(crate) name: &'static str,
    pub(crate) buckets: Option<u64>,
}

/// What is wrong with the numbers of a rule.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    NoBuckets,
    TooManyBuckets,
    UnevenBuckets,
    NoBurst,
    NoLease,
    NotLeased,
    TooLarge { what: What, number: u64, largest: u64 },
}

/// A number of a rule.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    Count,
    Burst,
    Queue,
}

impl Fault {
    /// As far as it can be told at compile time.
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::NoBuckets => "`buckets` must be at least 1",
            Self::TooManyBuckets => "`buckets` must be at most 1,000",
            Self::UnevenBuckets => "the period in milliseconds must be a multiple of `buckets`",
            Self::NoBurst => "`burst` must be at least 1",
            Self::NoLease => "`lease` must be at least 1",
            Self::NotLeased => "`lease` needs the algorithm `FixedWindow`",
            Self::TooLarge { what: What::Count, .. } => "`count` is more than the algorithm can store, see `Rule::new`",
            Self::TooLarge { what: What::Burst, .. } => "`burst` is more than the algorithm can store, see `Rule::new`",
            Self::TooLarge { what: What::Queue, .. } => "`queue` is more than the algorithm can store, see `Rule::new`",
        }
    }

    /// With the numbers of the rule it is in.
    pub(crate) fn explain(self, rule: &Rule) -> String {
        let (algorithm, period) = (rule.counted_by(), rule.period());
        match self {
            Self::TooLarge { what, number, largest } => {
                let what = match what {
                    What::Count => "count",
                    What::Burst => "burst",
                    What::Queue => "queue",
                };
                format!("its {what} is {number}; {algorithm:?} over {period:?} can store {largest} at most")
            }
            _ => format!("{}; it is {algorithm:?} over {period:?}", self.words()),
        }
    }
}

/// What is wrong with the numbers of a rule whose period is right, if anything is.
#[inline]
pub(crate) const fn fault(rule: &Rule) -> Option<Fault> {
    const MOST_BUCKETS: u64 = 1_000;
    let (count, period) = (rule.count(), rule.period_ms());
    match rule.counted_by() {
        _ if rule.lease_size() == 0 => Some(Fault::NoLease),
        Algorithm::FixedWindow { .. } => too_large(What::Count, count, fixed_window::LARGEST_COUNT),
        _ if rule.lease_size() > 1 => Some(Fault::NotLeased),
        Algorithm::SlidingLog => too_large(What::Count, count, sliding_log::Layout::of(rule).largest_count()),
        Algorithm::Concurrent => too_large(What::Count, count, EXACT),
        Algorithm::SlidingWindow { buckets: 0 } => Some(Fault::NoBuckets),
        Algorithm::SlidingWindow { buckets } if buckets > MOST_BUCKETS => Some(Fault::TooManyBuckets),
        Algorithm::SlidingWindow { buckets } if !period.is_multiple_of(buckets) => Some(Fault::UnevenBuckets),
        Algorithm::SlidingWindow { buckets } => too_large(What::Count, count, EXACT / (period / buckets)),
        _ if count > EXACT => too_large(What::Count, count, EXACT),
        Algorithm::LeakyBucket { queue } => too_large(What::Queue, queue, EXACT / period - 1),
        Algorithm::TokenBucket { burst: 0, .. } if count > 0 => Some(Fault::NoBurst),
        Algorithm::TokenBucket { burst, refill: Refill::Greedy } => too_large(What::Burst, burst, EXACT / period),
        Algorithm::TokenBucket { burst, .. } => {
            let fills = (EXACT / period).saturating_mul(if count == 0 { 1 } else { count });
            too_large(What::Burst, burst, if fills < EXACT { fills } else { EXACT })
        }
    }
}

const fn too_large(what: What, number: u64, largest: u64) -> Option<Fault> {
    if number > largest { Some(Fault::TooLarge { what, number, largest }) } else { None }
}
