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

pub(crate) use counter::Counter;
pub(crate) use fixed_window::{PackedWindow, TakenWindow, Window};
#[cfg(feature = "redis")]
pub(crate) use script::*;

use std::time::Duration;

use crate::{Decision, Rule, store::Charge};

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
    pub(crate) fits_when_released: bool,
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
    /// Writes the state of the counter into a charge.
    pub(crate) fn write_to(self, charge: &mut Charge, receipt: [u64; 2]) {
        let Self { decision, wait_ms, held, fits_when_released, .. } = self;
        (charge.decision, charge.slot_delay, charge.receipt) = (decision, Duration::from_millis(wait_ms), receipt);
        (charge.held_by_others, charge.fits_when_released) = (held, fits_when_released);
    }

    #[inline]
    fn new(rule: &Rule, remaining: u64, reset_after_ms: u64, retry_after_ms: Option<u64>) -> Self {
        let retry_after_ms = retry_after_ms.unwrap_or(u64::MAX);
        let decision = Decision { limit: rule.limit(), remaining, reset_after_ms, retry_after_ms };
        Self { fits: retry_after_ms == u64::MAX, decision, wait_ms: 0, held: 0, fits_when_released: false }
    }

    /// The same where so much is held, as a script says it: as -n if the cost would not fit without that either.
    #[cfg(feature = "redis")]
    fn holding(self, reply: &[redis::Value]) -> Self {
        match (self.fits, reply) {
            (false, [redis::Value::Int(held)]) => {
                Self { held: held.unsigned_abs(), fits_when_released: *held > 0, ..self }
            }
            _ => self,
        }
    }

    /// What a counter says that nobody has used.
    #[inline]
    fn fresh(rule: &Rule, cost: u64) -> Self {
        Self::new(rule, rule.limit(), 0, (cost > rule.limit()).then_some(0))
    }
}
