//! Kinds of calls: some settings fit one kind and not another.

use crate::{Algorithm, Rule};

/// The way a call uses a rule of the code.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CallKind {
    /// The call holds its cost, and settles it at the end.
    pub(crate) is_settled: bool,
    pub(crate) is_one_of_several: bool,
}

impl CallKind {
    /// One bit for each kind of call that settings may or may not fit, including the algorithm in
    /// the code.
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
