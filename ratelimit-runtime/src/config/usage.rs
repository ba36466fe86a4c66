//! The use that calls make of a rule: some settings fit one use and not another.

use crate::{Algorithm, Rule};

/// The use that a call makes of a rule in the code.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Use {
    /// Its charge is held, and settled when the call is over.
    pub(crate) is_settled: bool,
    pub(crate) is_one_of_several: bool,
}

impl Use {
    /// A bit for each kind of call that settings may fit or not: its use, and how the code counts it.
    pub(super) fn bit_with(self, rule: &Rule) -> u32 {
        let algorithm = match rule.algorithm() {
            Algorithm::FixedWindow { .. } => 0,
            Algorithm::SlidingLog => 1,
            Algorithm::SlidingWindow { .. } => 2,
            Algorithm::TokenBucket { .. } => 3,
            Algorithm::LeakyBucket { .. } => 4,
            Algorithm::Concurrent => 5,
        };
        1 << (4 * algorithm + 2 * u32::from(self.is_settled) + u32::from(self.is_one_of_several))
    }
}
