//! The receipt that refunds a charge of one counter.

use crate::{Algorithm, Rule, counter::CounterId};

/// The receipt of one charge: the numbers that a refund needs.
pub(crate) struct CounterReceipt {
    pub(crate) id: CounterId,
    pub(crate) cost: u64,
    pub(crate) receipt: [u64; 2],
    pub(super) count: u64,
    pub(super) period_ms: u64,
    pub(super) algorithm: Algorithm,
}

impl CounterReceipt {
    #[inline]
    pub(crate) fn new(id: CounterId, rule: &Rule, cost: u64, receipt: [u64; 2]) -> Self {
        let (count, period_ms, algorithm) = (rule.count(), rule.period_ms(), rule.algorithm());
        Self { id, cost, receipt, count, period_ms, algorithm }
    }

    /// The rule without its name.
    pub(crate) fn rule(&self) -> Rule {
        Rule::unnamed(self.count, self.period_ms, self.algorithm)
    }
}
