//! The algorithms, each a pair: arithmetic in Rust for the memory store, its twin in Lua for Redis.
//!
//! Nothing here knows of connections, locks or callers. `bucket.rs` gives the pairs one face.

mod bucket;
mod fixed_window;
mod sliding_log;

pub(crate) use bucket::Bucket;
#[cfg(feature = "redis")]
pub(crate) use script::*;

use crate::{Algorithm, Rule};

/// The largest count a rule of this algorithm and period can store.
pub(crate) fn largest_count(rule: &Rule) -> u64 {
    match rule.counted_by() {
        Algorithm::FixedWindow { .. } => fixed_window::LARGEST_COUNT,
        Algorithm::SlidingLog => sliding_log::Layout::of(rule).largest_count(),
    }
}

/// How long after a charge at most the counter still differs from a fresh one, in milliseconds.
fn lifetime_ms(rule: &Rule) -> u64 {
    match rule.counted_by() {
        Algorithm::FixedWindow { .. } => rule.period_ms(),
        Algorithm::SlidingLog => rule.period_ms() + 1, // its clock may be a fraction of a millisecond ahead
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
            Algorithm::SlidingLog => ("sliding_log", DEFINITIONS[1]),
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
            Algorithm::SlidingLog => sliding_log::arguments(rule),
        };
        [charge.cost, rule.count(), lifetime_ms(rule), first, second, third]
    }

    /// What the three numbers of a reply say: whether the cost fits, the decision and the receipt.
    pub(crate) fn decode(rule: &Rule, reply: [i64; 3]) -> (bool, Decision, u64) {
        match rule.counted_by() {
            Algorithm::FixedWindow { .. } => fixed_window::decode(rule, reply),
            Algorithm::SlidingLog => sliding_log::decode(rule, reply),
        }
    }
}
