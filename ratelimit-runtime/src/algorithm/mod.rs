//! The algorithms, each a pair: arithmetic in Rust for the memory store, its twin in Lua for Redis.
//!
//! Nothing here knows of connections, locks or callers. `counter.rs` gives the pairs one face, `script.rs` makes
//! scripts of the Lua halves and reads their replies.

mod bucket;
mod counter;
mod fixed_window;
#[cfg(feature = "redis")]
mod script;
mod sliding_log;
mod sliding_window;

pub(crate) use counter::Counter;
#[cfg(feature = "redis")]
pub(crate) use script::*;

use crate::{Algorithm, Decision, Refill, Rule};

/// What a counter says of a cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    pub(crate) fits: bool,
    pub(crate) decision: Decision,
    /// How long until the call may run, if it fits.
    pub(crate) wait_ms: u64,
}

impl Look {
    fn new(rule: &Rule, remaining: u64, reset_after_ms: u64, retry_after_ms: Option<u64>) -> Self {
        let retry_after_ms = retry_after_ms.unwrap_or(u64::MAX);
        let decision = Decision { limit: rule.limit(), remaining, reset_after_ms, retry_after_ms };
        Self { fits: retry_after_ms == u64::MAX, decision, wait_ms: 0 }
    }

    /// What a counter says that nobody has used.
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
            Self::SlidingLog => ("log", None),
            Self::SlidingWindow { buckets } => ("window-", Some(buckets)),
            Self::TokenBucket { refill: Refill::Greedy, .. } => ("bucket", None),
            Self::TokenBucket { refill: Refill::Interval, .. } => ("bucket-interval", None),
            Self::LeakyBucket { .. } => ("leaky", None),
        };
        Tag { name, buckets }
    }
}

/// `fixed`, or `window-6`.
pub(crate) struct Tag {
    pub(crate) name: &'static str,
    pub(crate) buckets: Option<u64>,
}

/// What is wrong with the numbers of a rule, if anything is.
pub(crate) fn fault(rule: &Rule) -> Option<String> {
    match rule.counted_by() {
        Algorithm::FixedWindow { .. } => largest("count", rule.count(), fixed_window::LARGEST_COUNT, rule),
        Algorithm::SlidingLog => largest("count", rule.count(), sliding_log::Layout::of(rule).largest_count(), rule),
        Algorithm::SlidingWindow { buckets } => sliding_window::fault(rule, buckets),
        Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } => bucket::fault(rule),
    }
}

fn largest(what: &str, number: u64, largest: u64, rule: &Rule) -> Option<String> {
    let (algorithm, period) = (rule.counted_by(), rule.period());
    (number > largest)
        .then(|| format!("its {what} is {number}; {algorithm:?} over {period:?} can store {largest} at most"))
}
