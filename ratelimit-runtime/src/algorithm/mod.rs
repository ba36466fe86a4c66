//! The algorithms, each a pair: arithmetic in Rust for the memory store, its twin in Lua for Redis.
//!
//! Nothing here knows of connections, locks or callers. `bucket.rs` gives the pairs one face.

mod bucket;
mod fixed_window;
mod sliding_log;

pub(crate) use bucket::Bucket;
#[cfg(feature = "redis")]
pub(crate) use script::*;

use crate::{Algorithm, Refill, Rule};

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
    let (count, algorithm, period) = (rule.count(), rule.counted_by(), rule.period());
    let largest = match algorithm {
        Algorithm::FixedWindow { .. } => fixed_window::LARGEST_COUNT,
        Algorithm::SlidingLog => sliding_log::Layout::of(rule).largest_count(),
        _ => return Some(format!("{algorithm:?} is not available yet")),
    };
    (count > largest)
        .then(|| format!("its count is {count}; {algorithm:?} over {period:?} can store at most {largest}"))
}

/// How long after a charge at most the counter still differs from a fresh one, in milliseconds.
fn lifetime_ms(rule: &Rule) -> u64 {
    match rule.counted_by() {
        Algorithm::FixedWindow { .. } => rule.period_ms(),
        _ => rule.period_ms() + 1, // its clock may be a fraction of a millisecond ahead
    }
}

/// The Lua side.
#[cfg(feature = "redis")]
mod script {
    use super::{fixed_window, lifetime_ms, sliding_log};
    use crate::{Algorithm, Decision, Rule, store::Charge};

    const DEFINITIONS: [&str; 2] = [include_str!("fixed_window.lua"), include_str!("sliding_log.lua")];

    /// The Lua functions of the algorithm: `fixed_window` and `fixed_window_give_back`, say.
    fn function(algorithm: Algorithm) -> (&'static str, &'static str) {
        match algorithm {
            Algorithm::FixedWindow { .. } => ("fixed_window", DEFINITIONS[0]),
            _ => ("sliding_log", DEFINITIONS[1]),
        }
    }

    /// Decides one charge. KEYS: the counter. ARGV: 1 to charge and 0 to look, then [`arguments`].
    pub(crate) fn decide_one(algorithm: Algorithm) -> String {
        let (function, definition) = function(algorithm);
        format!("{definition}return {{{function}(KEYS[1], ARGV[1] == '1', {})}}\n", unpacked(2))
    }

    /// Decides several charges, all or nothing. KEYS: the counters. ARGV: 1 to charge and 0 to look, then for
    /// each counter the name of its function and [`arguments`].
    pub(crate) fn decide_all() -> String {
        DEFINITIONS.concat() + include_str!("all.lua")
    }

    /// Returns a charge. KEYS: the counter. ARGV: the receipt, then [`arguments`]. Replies with what was returned.
    pub(crate) fn give_back(algorithm: Algorithm) -> String {
        let (function, definition) = function(algorithm);
        format!("{definition}return {function}_give_back(KEYS[1], tonumber(ARGV[1]), {})\n", unpacked(2))
    }

    fn unpacked(from: usize) -> String {
        let numbers: Vec<_> = (from..from + 6).map(|index| format!("tonumber(ARGV[{index}])")).collect();
        numbers.join(", ")
    }

    pub(crate) fn function_name(algorithm: Algorithm) -> &'static str {
        function(algorithm).0
    }

    /// What each Lua function takes: cost, count, lifetime in ms, and three numbers of the algorithm.
    pub(crate) fn arguments(charge: &Charge) -> [u64; 6] {
        let rule = &charge.rule;
        let [first, second, third] = match rule.counted_by() {
            Algorithm::FixedWindow { align } => fixed_window::arguments(align),
            _ => sliding_log::arguments(rule),
        };
        [charge.cost, rule.count(), lifetime_ms(rule), first, second, third]
    }

    /// What the three numbers of a reply say: whether the cost fits, the decision and the receipt.
    pub(crate) fn decode(rule: &Rule, reply: [i64; 3]) -> (bool, Decision, u64) {
        match rule.counted_by() {
            Algorithm::FixedWindow { .. } => fixed_window::decode(rule, reply),
            _ => sliding_log::decode(rule, reply),
        }
    }
}
