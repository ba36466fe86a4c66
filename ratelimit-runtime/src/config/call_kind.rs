//! Kinds of calls: some settings fit one kind and not another.

use crate::{Rule, algorithm::position};

/// The way a call uses a rule of the code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallKind {
    /// The call settles its cost at the end.
    pub(crate) is_settled: bool,
    pub(crate) is_one_of_several: bool,
}

impl CallKind {
    /// One bit for each kind of call that settings may or may not fit, including the algorithm in
    /// the code. There is room for 8 algorithms.
    pub(super) fn bit_with(self, rule: &Rule) -> u32 {
        1 << (4 * position(rule.algorithm()) + 2 * u32::from(self.is_settled) + u32::from(self.is_one_of_several))
    }
}
