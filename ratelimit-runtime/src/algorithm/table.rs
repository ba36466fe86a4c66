//! The table of the algorithms: one line for each, and all code that depends on which one it is.

#[cfg(feature = "redis")]
use redis::Value;

use super::{
    bucket::Bucket,
    contract::{self, Evaluation, MemoryState},
    fixed_window::FixedWindow,
    semaphore::Semaphore,
    sliding_log::SlidingLog,
    sliding_window::SlidingWindow,
};
#[cfg(feature = "redis")]
use super::{
    contract::{LuaScript, RedisScript},
    wire::PackedNumbers,
};
#[cfg(feature = "redis")]
use crate::store::Charge;
use crate::{
    Algorithm, Rule,
    decision::Outcome,
    store::{ChargeQuery, Hold},
};

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

macro_rules! algorithms {
    ($($state:ident($stored:ty) {
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

        /// The state of one counter in memory.
        #[derive(Debug)]
        pub(crate) enum CounterState {
            $($state($stored),)+
        }

        impl CounterState {
            /// A counter without charges.
            pub(crate) fn fresh(rule: &Rule, now_us: u64) -> Self {
                match rule.algorithm() {
                    $($(Algorithm::$algorithm { .. })|+ => Self::$state($state::fresh(rule, now_us).into()),)+
                }
            }

            /// Time from which it equals a fresh counter and can be dropped.
            #[inline]
            pub(crate) fn expires_at_ms(&self) -> u64 {
                match self {
                    $(Self::$state(state) => state.expires_at_ms(),)+
                }
            }

            #[inline]
            pub(crate) fn is_fresh(&self, now_us: u64) -> bool {
                self.expires_at_ms() <= now_us / 1000
            }

            /// Decides without a charge on a counter, `None` if it is not stored.
            #[inline]
            pub(crate) fn evaluate(stored: Option<&mut Self>, query: &ChargeQuery<'_>, now_us: u64) -> Evaluation {
                match stored {
                    None => Evaluation::fresh(query.rule, query.least()),
                    $(Some(Self::$state(state)) => contract::evaluate::<$state>(state, query, now_us),)+
                }
            }

            /// Charges the cost if it fits.
            pub(crate) fn charge(&mut self, query: &ChargeQuery<'_>, now_us: u64) -> Outcome {
                match self {
                    $(Self::$state(state) => state.charge(query, now_us),)+
                }
            }

            /// Undoes a charge. Returns the amount that still counted. An empty counter is fresh
            /// afterwards.
            pub(crate) fn refund(&mut self, rule: &Rule, cost: u64, receipt: [u64; 2], now_us: u64) -> u64 {
                match self {
                    _ if self.is_fresh(now_us) => 0,
                    $(Self::$state(state) => state.refund(rule, cost, receipt, now_us),)+
                }
            }

            /// Makes a hold last one lease from now. `false` if it no longer counts.
            pub(crate) fn renew(&mut self, hold: &Hold, now_us: u64) -> bool {
                match self {
                    $(Self::$state(state) => state.renew(hold, now_us),)+
                }
            }

            /// Replaces a hold by a charge of the amount used. Returns the amount that was still
            /// held.
            pub(crate) fn settle(&mut self, rule: &Rule, hold: &Hold, used: u64, now_us: u64) -> u64 {
                match self {
                    $(Self::$state(state) => state.settle(rule, hold, used, now_us),)+
                }
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

// A state, how it is stored, and the algorithms that it serves. For each of them: which denials can
// be cached, which charges can be held, whether calls wait for slots, and whether a rule stands alone.
algorithms! {
    FixedWindow(FixedWindow)          { FixedWindow:   denials AnyCost,   holds Never,   slots false, alone false; }
    SlidingLog(Box<SlidingLog>)       { SlidingLog:    denials CostOfOne, holds Settled, slots false, alone false; }
    SlidingWindow(Box<SlidingWindow>) { SlidingWindow: denials CostOfOne, holds Never,   slots false, alone false; }
    Bucket(Bucket)                    { TokenBucket:   denials CostOfOne, holds Never,   slots false, alone false;
                                        LeakyBucket:   denials CostOfOne, holds Never,   slots true,  alone true; }
    Semaphore(Box<Semaphore>)         { Concurrent:    denials CostOfOne, holds Always,  slots false, alone false; }
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
