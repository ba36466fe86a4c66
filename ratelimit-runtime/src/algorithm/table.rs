//! The table of the algorithms: one line for each, and all code that depends on which one it is.

#[cfg(feature = "redis")]
use redis::Value;

#[cfg(feature = "redis")]
use super::{
    bucket::Bucket,
    contract::{Evaluation, LuaScript, RedisScript},
    fixed_window::FixedWindow,
    semaphore::Semaphore,
    sliding_log::SlidingLog,
    sliding_window::SlidingWindow,
    wire::PackedNumbers,
};
use crate::Algorithm;
#[cfg(feature = "redis")]
use crate::{Rule, store::Charge};

/// Denials of a counter with nothing remaining that stay true until `retry_after`.
///
/// `AnyCost`: all costs have the same `retry_after` then. `CostOfOne`: a larger cost waits longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheableDenials {
    CostOfOne,
    AnyCost,
}

/// Charges that may be held until they are settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldSupport {
    Never,
    /// A settlement charges the amount used.
    Settled,
    /// Each charge is held, and a settlement frees it.
    Always,
}

/// Properties of an algorithm that callers and stores look up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capabilities {
    pub(crate) denials: CacheableDenials,
    pub(crate) holds: HoldSupport,
    /// An admitted call waits for its slot, and a slot may be too late for it.
    pub(crate) has_slots: bool,
    /// A rule can't be one of several rules of a call.
    pub(crate) stands_alone: bool,
}

/// The table. Each line is a state and the algorithms that it serves. For each of these: which
/// denials can be cached, which charges can be held, whether calls wait for slots, and whether a
/// rule stands alone.
///
/// Calls a macro with all lines. The memory store makes its tables of counters from them.
macro_rules! algorithms {
    ($callback:ident) => {
        $callback! {
            FixedWindow   { FixedWindow:   denials AnyCost,   holds Never,   slots false, alone false; }
            SlidingLog    { SlidingLog:    denials CostOfOne, holds Settled, slots false, alone false; }
            SlidingWindow { SlidingWindow: denials CostOfOne, holds Never,   slots false, alone false; }
            Bucket        { TokenBucket:   denials CostOfOne, holds Never,   slots false, alone false;
                            LeakyBucket:   denials CostOfOne, holds Never,   slots true,  alone true; }
            Semaphore     { Concurrent:    denials CostOfOne, holds Always,  slots false, alone false; }
        }
    };
}
pub(crate) use algorithms;

impl Capabilities {
    /// A charge that holds nothing is decided at once.
    #[inline]
    pub(crate) const fn decides_at_once(self) -> bool {
        !self.has_slots && !matches!(self.holds, HoldSupport::Always)
    }
}

macro_rules! dispatch {
    ($($state:ident {
        $($algorithm:ident:
            denials $denials:ident, holds $holds:ident, slots $has_slots:literal, alone $stands_alone:literal;)+
    })+) => {
        /// The properties of an algorithm.
        #[inline]
        pub(crate) const fn capabilities(algorithm: Algorithm) -> Capabilities {
            match algorithm {
                $($(Algorithm::$algorithm { .. } => Capabilities {
                    denials: CacheableDenials::$denials,
                    holds: HoldSupport::$holds,
                    has_slots: $has_slots,
                    stands_alone: $stands_alone,
                },)+)+
            }
        }

        /// The place of an algorithm in the table, from 0 on.
        #[cfg(feature = "config")]
        pub(crate) const fn position(algorithm: Algorithm) -> u32 {
            enum Position { $($($algorithm,)+)+ }
            match algorithm {
                $($(Algorithm::$algorithm { .. } => Position::$algorithm as u32,)+)+
            }
        }

        #[cfg(feature = "redis")]
        const SCRIPTS: &[&[LuaScript]] = &[$($state::SCRIPTS),+];

        /// Number of the script that decides on a charge.
        #[cfg(feature = "redis")]
        pub(crate) fn script_id(charge: &Charge) -> usize {
            enum Position { $($state),+ }
            match charge.rule.algorithm() {
                $($(Algorithm::$algorithm { .. })|+ => {
                    const FIRST: usize = scripts_before(Position::$state as usize);
                    FIRST + $state::script_index(charge)
                })+
            }
        }

        /// Numbers of the script that decides on a charge.
        #[cfg(feature = "redis")]
        pub(crate) fn script_args(charge: &Charge) -> PackedNumbers {
            match charge.rule.algorithm() {
                $($(Algorithm::$algorithm { .. })|+ => $state::args(charge),)+
            }
        }

        /// The cost in the unit in which the script stores it.
        #[cfg(feature = "redis")]
        pub(crate) fn stored_cost(charge: &Charge) -> u64 {
            match charge.rule.algorithm() {
                $($(Algorithm::$algorithm { .. })|+ => $state::stored_cost(charge),)+
            }
        }

        /// The script for one counter takes [`stored_cost`] as an argument, since it can't derive
        /// it.
        #[cfg(feature = "redis")]
        pub(crate) fn needs_stored_cost(charge: &Charge) -> bool {
            match charge.rule.algorithm() {
                $($(Algorithm::$algorithm { .. })|+ => $state::needs_stored_cost(charge),)+
            }
        }

        /// Numbers of the script that refunds a charge.
        #[cfg(feature = "redis")]
        pub(crate) fn refund_args(charge: &Charge) -> PackedNumbers {
            match charge.rule.algorithm() {
                $($(Algorithm::$algorithm { .. })|+ => $state::refund_args(charge),)+
            }
        }

        /// Upper bound of the steps of one decision; see [`MAX_STEPS`](super::MAX_STEPS).
        #[cfg(feature = "redis")]
        pub(crate) fn steps(charge: &Charge) -> u64 {
            match charge.rule.algorithm() {
                $($(Algorithm::$algorithm { .. })|+ => $state::steps(&charge.rule),)+
            }
        }

        /// Upper bound of the steps to renew one hold among as many others as a counter may have.
        #[cfg(feature = "redis")]
        pub(crate) fn renewal_steps(charge: &Charge) -> u64 {
            match charge.rule.algorithm() {
                $($(Algorithm::$algorithm { .. })|+ => $state::renewal_steps(charge),)+
            }
        }

        /// Parses a reply: the evaluation (after the charge if it was `charged`) and the receipt.
        /// `None` if it is malformed.
        #[cfg(feature = "redis")]
        pub(crate) fn parse_reply(charge: &Charge, charged: bool, reply: &Value) -> Option<(Evaluation, [u64; 2])> {
            match charge.rule.algorithm() {
                $($(Algorithm::$algorithm { .. })|+ => $state::parse_reply(charge, charged, reply),)+
            }
        }

        /// See [`RedisScript::shift_reply`].
        #[cfg(feature = "redis")]
        pub(super) fn shift_reply(rule: &Rule, reply: &Value, more: i64) -> Option<Value> {
            match rule.algorithm() {
                $($(Algorithm::$algorithm { .. })|+ => $state::shift_reply(rule, reply, more),)+
            }
        }

        /// See [`RedisScript::REPEATS_SHARE_RECEIPT`].
        #[cfg(feature = "redis")]
        pub(super) fn repeats_share_receipt(rule: &Rule) -> bool {
            match rule.algorithm() {
                $($(Algorithm::$algorithm { .. })|+ => $state::REPEATS_SHARE_RECEIPT,)+
            }
        }
    };
}

algorithms!(dispatch);

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
