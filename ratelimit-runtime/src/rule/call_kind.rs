//! Kinds of calls: some settings of a rules file fit one kind and not another.

/// The way a call uses a rule of the code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(not(feature = "config"), allow(dead_code))]
pub(crate) struct CallKind {
    pub(crate) cost: CallCost,
    pub(crate) is_one_of_several: bool,
    /// The call may wait for the limit.
    pub(crate) waits: bool,
}

/// The kind of cost of a call, as far as it decides whether settings fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(not(feature = "config"), allow(dead_code))]
pub(crate) enum CallCost {
    #[default]
    Fixed,
    /// It is settled at the end.
    Settled,
    /// It is charged even if it does not fit.
    Debt,
}
