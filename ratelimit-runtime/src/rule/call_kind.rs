//! Kinds of calls: some settings of a rules file fit one kind and not another.

/// The way a call uses a rule of the code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(not(feature = "config"), allow(dead_code))]
pub(crate) struct CallKind {
    /// The call settles its cost at the end.
    pub(crate) is_settled: bool,
    pub(crate) is_one_of_several: bool,
    /// The call may wait for the limit.
    pub(crate) waits: bool,
}
