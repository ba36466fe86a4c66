//! The Lua side: the scripts, what they take and what their replies say.

use std::fmt::Write as _;

use redis::Value;
use smallvec::SmallVec;

use super::{Look, bucket, fixed_window, sliding_log, sliding_window};
use crate::{Algorithm, store::Charge};

/// What an algorithm's scripts take.
pub(crate) type Arguments = SmallVec<[u64; 6]>;

/// The Lua half of an algorithm: two bodies, and the names of what they take.
///
/// A body sees `key`, `call` (which is `redis.call`) and its arguments, as the strings they come as. The one that decides also sees `charge`
/// (`false` to look, `true` to charge if the cost fits, `'always'` if it is known to fit) and `time` (the reply of TIME, or nil: it asks
/// when it needs to). It returns its reply and whether the cost fits; the one that gives back returns how much it gave.
struct Half {
    name: &'static str,
    decide: &'static str,
    arguments: &'static str,
    give_back: &'static str,
    give_back_arguments: &'static str,
}

const FIXED_WINDOW: Half = Half {
    name: "fixed_window",
    decide: include_str!("fixed_window.lua"),
    arguments: "cost, room, period, align",
    give_back: include_str!("fixed_window_give_back.lua"),
    give_back_arguments: "cost, number",
};
const SLIDING_LOG: Half = Half {
    name: "sliding_log",
    decide: include_str!("sliding_log.lua"),
    arguments: "cost, count, period, digits",
    give_back: include_str!("sliding_log_give_back.lua"),
    give_back_arguments: "cost, period, charged, digits",
};
const SLIDING_WINDOW: Half = Half {
    name: "sliding_window",
    decide: include_str!("sliding_window.lua"),
    arguments: "cost, count, size, buckets",
    give_back: include_str!("sliding_window_give_back.lua"),
    give_back_arguments: "cost, size, buckets, charged",
};
const BUCKET: Half = Half {
    name: "bucket",
    decide: include_str!("bucket.lua"),
    arguments: "cost, capacity, refill, interval, longest",
    give_back: include_str!("bucket_give_back.lua"),
    give_back_arguments: "cost, unit, refill, interval, charged, spare",
};
const HALVES: [Half; 4] = [FIXED_WINDOW, SLIDING_LOG, SLIDING_WINDOW, BUCKET];

/// How many scripts of each kind there are.
pub(crate) const KINDS: usize = HALVES.len();

/// Which of them an algorithm is counted by.
pub(crate) fn kind(algorithm: Algorithm) -> usize {
    match algorithm {
        Algorithm::FixedWindow { .. } => 0,
        Algorithm::SlidingLog => 1,
        Algorithm::SlidingWindow { .. } => 2,
        Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } => 3,
    }
}

fn with_arguments(script: &str, names: &str) -> String {
    let values: Vec<_> = (1..=names.split(',').count()).map(|index| format!("argv[{index}]")).collect();
    format!("local key, call, argv = KEYS[1], redis.call, ARGV\nlocal {names} = {}\n{script}", values.join(", "))
}

/// Decides on one counter. KEYS: the counter. ARGV: its [`arguments`].
pub(crate) fn decide_one(kind: usize, charge: bool) -> String {
    let Half { decide, arguments, .. } = &HALVES[kind];
    with_arguments(&format!("local charge, time = {charge}, nil\n{decide}"), arguments)
}

/// Decides on several counters, all or nothing. KEYS: the counters. ARGV: 1 to charge and 0 to look, then for each counter
/// the [`name`] of its script's half, how many arguments there are, and its [`arguments`].
pub(crate) fn decide_all() -> String {
    let mut script = String::from("local functions = {}\n");
    for Half { name, decide, arguments, .. } in HALVES {
        let _ = write!(script, "function functions.{name}(key, call, charge, time, {arguments})\n{decide}end\n");
    }
    script + include_str!("all.lua")
}

/// Returns a charge. KEYS: the counter. ARGV: the [`give_back_arguments`]. Replies with what was returned.
pub(crate) fn give_back(kind: usize) -> String {
    let Half { give_back, give_back_arguments, .. } = &HALVES[kind];
    with_arguments(give_back, give_back_arguments)
}

pub(crate) fn name(algorithm: Algorithm) -> &'static str {
    HALVES[kind(algorithm)].name
}

pub(crate) fn arguments(charge: &Charge) -> Arguments {
    let (rule, cost) = (&charge.rule, charge.cost);
    match rule.counted_by() {
        Algorithm::FixedWindow { .. } => fixed_window::arguments(rule, cost),
        Algorithm::SlidingLog => sliding_log::arguments(rule, cost),
        Algorithm::SlidingWindow { .. } => sliding_window::arguments(rule, cost),
        Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } => {
            bucket::arguments(rule, cost, charge.longest_wait_ms())
        }
    }
}

pub(crate) fn give_back_arguments(charge: &Charge) -> Arguments {
    let (rule, receipt, cost) = (&charge.rule, charge.receipt, charge.cost);
    match rule.counted_by() {
        Algorithm::FixedWindow { .. } => fixed_window::give_back_arguments(receipt, cost),
        Algorithm::SlidingLog => sliding_log::give_back_arguments(rule, receipt, cost),
        Algorithm::SlidingWindow { .. } => sliding_window::give_back_arguments(rule, receipt, cost),
        Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } => {
            bucket::give_back_arguments(rule, receipt, cost)
        }
    }
}

/// What a reply says of the counter, after the charge if it was `charged`, and the receipt of that. Nothing if it is no reply of the script.
pub(crate) fn read(charge: &Charge, charged: bool, reply: &Value) -> Option<(Look, [u64; 2])> {
    let (rule, cost) = (&charge.rule, charge.cost);
    match rule.counted_by() {
        Algorithm::FixedWindow { .. } => fixed_window::read(rule, cost, charged, reply),
        Algorithm::SlidingLog => sliding_log::read(rule, reply),
        Algorithm::SlidingWindow { .. } => sliding_window::read(rule, cost, charged, reply),
        Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } => {
            bucket::read(rule, cost, charge.longest_wait_ms(), charged, reply)
        }
    }
}
