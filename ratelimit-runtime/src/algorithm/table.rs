//! The table of the algorithms: one line for each, and all code that depends on which one it is.

#[cfg(feature = "redis")]
use redis::Value;

use super::contract::{MemoryState, Recovery};
#[cfg(feature = "redis")]
use super::{
    contract::{Evaluation, LuaScript, RedisScript},
    wire::PackedNumbers,
};
#[cfg(feature = "redis")]
use crate::store::Charge;
use crate::{Algorithm, Rule};

/// Denials of a counter with nothing remaining that stay true until `retry_after`.
///
/// `AnyCost`: all costs that do not fit have the same `retry_after`. Waiting callers rely on that, too.
/// `CostOfOne`: a larger cost waits longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheableDenials {
    CostOfOne,
    AnyCost,
}

/// The way in which a charge is settled when its call ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldSupport {
    Never,
    /// Nothing is held. The most is charged, and a settlement refunds the rest.
    Refunded,
    /// A settlement charges the amount used.
    Settled,
    /// Each charge is held, and a settlement frees it.
    Always,
}

/// Properties of an algorithm that callers and stores look up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capabilities {
    #[cfg_attr(not(feature = "config"), allow(dead_code))]
    pub(crate) name: &'static str,
    pub(crate) denials: CacheableDenials,
    pub(crate) holds: HoldSupport,
    /// An admitted call waits for its slot, and a slot may be too late for it.
    pub(crate) has_slots: bool,
    /// A rule can't be one of several rules of a call.
    pub(crate) stands_alone: bool,
    /// A process can take quota ahead.
    #[cfg_attr(not(feature = "config"), allow(dead_code))]
    pub(crate) has_prefetch: bool,
}

/// The table. Each row is a state and the algorithms that it serves. For each of these: which denials
/// can be cached, which charges can be held, and the other [`Capabilities`] that it has.
///
/// Calls a macro with all rows. The memory store makes its tables of counters from them.
macro_rules! algorithms {
    ($callback:ident) => {
        $callback! {
            super::fixed_window::FixedWindow { FixedWindow: denials AnyCost, holds Refunded, has_prefetch; }
            super::sliding_log::SlidingLog { SlidingLog: denials CostOfOne, holds Settled; }
            super::sliding_window::SlidingWindow { SlidingWindow: denials CostOfOne, holds Refunded; }
            super::bucket::Bucket {
                TokenBucket: denials CostOfOne, holds Refunded;
                LeakyBucket: denials CostOfOne, holds Never, has_slots, stands_alone;
            }
            super::semaphore::Semaphore { Concurrent: denials CostOfOne, holds Always; }
        }
    };
}
pub(crate) use algorithms;

impl Capabilities {
    /// The capabilities of an algorithm whose row names no others.
    const fn new(name: &'static str, denials: CacheableDenials, holds: HoldSupport) -> Self {
        Self { name, denials, holds, has_slots: false, stands_alone: false, has_prefetch: false }
    }
}

macro_rules! dispatch {
    ($(super::$module:ident::$state:ident {
        $($algorithm:ident: denials $denials:ident, holds $holds:ident $(, $capability:ident)*;)+
    })+) => {
        /// The properties of an algorithm.
        #[inline]
        pub(crate) const fn capabilities(algorithm: Algorithm) -> Capabilities {
            match algorithm {
                $($(Algorithm::$algorithm { .. } => Capabilities {
                    $($capability: true,)*
                    ..Capabilities::new(stringify!($algorithm), CacheableDenials::$denials, HoldSupport::$holds)
                },)+)+
            }
        }

        /// How room comes back at a counter of this rule.
        pub(crate) fn recovery(rule: &Rule) -> Recovery {
            match rule.algorithm() {
                $($(Algorithm::$algorithm { .. })|+ => super::$module::$state::recovery(rule),)+
            }
        }

        #[cfg(feature = "redis")]
        const SCRIPTS: &[&[LuaScript]] = &[$(super::$module::$state::SCRIPTS),+];

        /// Number of the script that decides on a charge.
        #[cfg(feature = "redis")]
        pub(crate) fn script_id(charge: &Charge) -> usize {
            enum Position { $($state),+ }
            match charge.rule.algorithm() {
                $($(Algorithm::$algorithm { .. })|+ => {
                    const FIRST: usize = scripts_before(Position::$state as usize);
                    FIRST + super::$module::$state::script_index(charge)
                })+
            }
        }

        /// Numbers of the script that decides on a charge.
        #[cfg(feature = "redis")]
        pub(crate) fn script_args(charge: &Charge) -> PackedNumbers {
            match charge.rule.algorithm() {
                $($(Algorithm::$algorithm { .. })|+ => super::$module::$state::args(charge),)+
            }
        }

        /// The cost in the unit in which the script stores it.
        #[cfg(feature = "redis")]
        pub(crate) fn stored_cost(charge: &Charge) -> u64 {
            match charge.rule.algorithm() {
                $($(Algorithm::$algorithm { .. })|+ => super::$module::$state::stored_cost(charge),)+
            }
        }

        /// The script for one counter takes [`stored_cost`] as an argument, since it can't derive
        /// it.
        #[cfg(feature = "redis")]
        pub(crate) fn needs_stored_cost(charge: &Charge) -> bool {
            match charge.rule.algorithm() {
                $($(Algorithm::$algorithm { .. })|+ => super::$module::$state::needs_stored_cost(charge),)+
            }
        }

        /// Numbers of the script that refunds a charge.
        #[cfg(feature = "redis")]
        pub(crate) fn refund_args(charge: &Charge) -> PackedNumbers {
            match charge.rule.algorithm() {
                $($(Algorithm::$algorithm { .. })|+ => super::$module::$state::refund_args(charge),)+
            }
        }

        /// Upper bound of the steps of one decision; see [`MAX_STEPS`](super::MAX_STEPS).
        #[cfg(feature = "redis")]
        pub(crate) fn steps(charge: &Charge) -> u64 {
            match charge.rule.algorithm() {
                $($(Algorithm::$algorithm { .. })|+ => super::$module::$state::steps(&charge.rule),)+
            }
        }

        /// Upper bound of the steps to renew one hold among as many others as a counter may have.
        #[cfg(feature = "redis")]
        pub(crate) fn renewal_steps(charge: &Charge) -> u64 {
            match charge.rule.algorithm() {
                $($(Algorithm::$algorithm { .. })|+ => super::$module::$state::renewal_steps(charge),)+
            }
        }

        /// Parses a reply: the evaluation (after the charge if it was `charged`) and the receipt.
        /// `None` if it is malformed.
        #[cfg(feature = "redis")]
        pub(crate) fn parse_reply(charge: &Charge, charged: bool, reply: &Value) -> Option<(Evaluation, [u64; 2])> {
            match charge.rule.algorithm() {
                $($(Algorithm::$algorithm { .. })|+ => super::$module::$state::parse_reply(charge, charged, reply),)+
            }
            .or_else(|| Some((parse_banned(&charge.rule, reply)?, [0; 2])))
        }

        /// See [`RedisScript::shift_reply`].
        #[cfg(feature = "redis")]
        pub(super) fn shift_reply(rule: &Rule, reply: &Value, more: i64) -> Option<Value> {
            match rule.algorithm() {
                $($(Algorithm::$algorithm { .. })|+ => super::$module::$state::shift_reply(rule, reply, more),)+
            }
        }

        /// See [`RedisScript::REPEATS_SHARE_RECEIPT`].
        #[cfg(feature = "redis")]
        pub(super) fn repeats_share_receipt(rule: &Rule) -> bool {
            match rule.algorithm() {
                $($(Algorithm::$algorithm { .. })|+ => super::$module::$state::REPEATS_SHARE_RECEIPT,)+
            }
        }
    };
}

algorithms!(dispatch);

/// Parses the reply of a banned counter: see `script/banned.lua`.
#[cfg(feature = "redis")]
fn parse_banned(rule: &Rule, reply: &Value) -> Option<Evaluation> {
    let Value::Array(outer) = reply else { return None };
    let [Value::Array(waits)] = &**outer else { return None };
    let [Value::Int(reset_ms), Value::Int(retry_ms)] = **waits else { return None };
    Some(Evaluation::banned(rule, reset_ms.unsigned_abs(), retry_ms.unsigned_abs()))
}

/// Number of scripts that decide, one for each [`script_id`].
#[cfg(feature = "redis")]
pub(crate) const SCRIPT_COUNT: usize = scripts_before(SCRIPTS.len());

/// Number of scripts of the states before a position in the table.
#[cfg(feature = "redis")]
const fn scripts_before(mut position: usize) -> usize {
    let mut count = 0;
    while position > 0 {
        position -= 1;
        count += SCRIPTS[position].len();
    }
    count
}

/// All scripts, in the order of their ids.
#[cfg(feature = "redis")]
pub(super) fn scripts() -> impl Iterator<Item = &'static LuaScript> {
    SCRIPTS.iter().copied().flatten()
}
