//! The Lua side: the scripts, what they take and what their replies say.

use std::fmt::Write as _;

use redis::Value;
use smallvec::SmallVec;

use super::{Look, bucket, fixed_window, sliding_log, sliding_window};
use crate::{Algorithm, store::Charge};

/// What an algorithm's scripts take beside the cost: numbers of 8 bytes in one argument. Each is a whole number, exact up to 2^53, which are quicker to read
/// than digits, and one argument is quicker than several.
pub(crate) type Numbers = SmallVec<[u8; 40]>;

#[allow(clippy::cast_precision_loss)] // what is larger is compared with what is not
pub(super) fn pack<const N: usize>(numbers: [u64; N]) -> Numbers {
    numbers.into_iter().flat_map(|number| (number as f64).to_le_bytes()).collect()
}

/// The Lua half of an algorithm: two bodies, and the names of what they take.
///
/// A body sees `key`, `call` (which is `redis.call`), `cost` (as the string it comes as) and its numbers. The one that decides also sees `charge`
/// (`false` to look, `true` to charge if the cost fits, `'always'` if it is known to fit) and `time` (the reply of TIME, or nil: it asks
/// when it needs to). It returns its reply and whether the cost fits; the one that gives back returns how much it gave.
struct Half {
    name: &'static str,
    decide: &'static str,
    numbers: &'static str,
    give_back: &'static str,
    give_back_numbers: &'static str,
}

const FIXED_WINDOW: Half = Half {
    name: "fixed_window",
    decide: include_str!("fixed_window.lua"),
    numbers: "room, length, align",
    give_back: include_str!("fixed_window_give_back.lua"),
    give_back_numbers: "number",
};
const SLIDING_LOG: Half = Half {
    name: "sliding_log",
    decide: include_str!("sliding_log.lua"),
    numbers: "count, period, digits",
    give_back: include_str!("sliding_log_give_back.lua"),
    give_back_numbers: "period, charged, digits",
};
const SLIDING_WINDOW: Half = Half {
    name: "sliding_window",
    decide: include_str!("sliding_window.lua"),
    numbers: "count, size, buckets",
    give_back: include_str!("sliding_window_give_back.lua"),
    give_back_numbers: "size, buckets, charged",
};
const BUCKET: Half = Half {
    name: "bucket",
    decide: include_str!("bucket.lua"),
    numbers: "capacity, refill, interval, longest",
    give_back: include_str!("bucket_give_back.lua"),
    give_back_numbers: "unit, refill, interval, charged, spare",
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

fn unpack(names: &str) -> String {
    format!("local {names} = struct.unpack('<{}', numbers)", "d".repeat(names.split(',').count()))
}

/// A script for one counter. KEYS: the counter. ARGV: the cost and the numbers.
fn script(numbers: &str, body: &str) -> String {
    format!(
        "local key, call, argv = KEYS[1], redis.call, ARGV\nlocal cost, numbers = argv[1], argv[2]\n{}\n{body}",
        unpack(numbers)
    )
}

/// Decides on one counter. ARGV: what [`arguments`] gives.
pub(crate) fn decide_one(kind: usize, charge: bool) -> String {
    let Half { decide, numbers, .. } = &HALVES[kind];
    script(numbers, &format!("local charge, time = {charge}, nil\n{decide}"))
}

/// Decides on several counters, all or nothing. KEYS: the counters. ARGV: 1 to charge and 0 to look, then for each counter
/// the [`name`] of its script's half, the cost and the numbers.
pub(crate) fn decide_all() -> String {
    let mut script = String::from("local functions = {}\n");
    for Half { name, decide, numbers, .. } in HALVES {
        let numbers = unpack(numbers);
        let _ = write!(
            script,
            "function functions.{name}(key, call, charge, time, cost, numbers)\n{numbers}\n{decide}end\n"
        );
    }
    script + include_str!("all.lua")
}

/// Returns a charge. ARGV: what [`give_back_arguments`] gives. Replies with what was returned.
pub(crate) fn give_back(kind: usize) -> String {
    let Half { give_back, give_back_numbers, .. } = &HALVES[kind];
    script(give_back_numbers, give_back)
}

pub(crate) fn name(algorithm: Algorithm) -> &'static str {
    HALVES[kind(algorithm)].name
}

/// The cost, as the script counts it, and the numbers.
pub(crate) fn arguments(charge: &Charge) -> (u64, Numbers) {
    let (rule, cost) = (&charge.rule, charge.cost);
    match rule.counted_by() {
        Algorithm::FixedWindow { .. } => fixed_window::arguments(rule, cost),
        Algorithm::SlidingLog => (cost, sliding_log::numbers(rule)),
        Algorithm::SlidingWindow { .. } => (cost, sliding_window::numbers(rule)),
        Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } => {
            bucket::arguments(rule, cost, charge.longest_wait_ms())
        }
    }
}

pub(crate) fn give_back_arguments(charge: &Charge) -> (u64, Numbers) {
    let (rule, receipt, cost) = (&charge.rule, charge.receipt, charge.cost);
    match rule.counted_by() {
        Algorithm::FixedWindow { .. } => fixed_window::give_back_arguments(receipt, cost),
        Algorithm::SlidingLog => (cost, sliding_log::give_back_numbers(rule, receipt)),
        Algorithm::SlidingWindow { .. } => (cost, sliding_window::give_back_numbers(rule, receipt)),
        Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } => {
            (cost, bucket::give_back_numbers(rule, receipt))
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
