//! What the stores and what stands in front of them tell one another.

use crate::failures::Epoch;

/// When a decision was asked for, and what tells later whether its denial still holds.
///
/// A batch of decisions carries it to the server and back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueryTag {
    pub(crate) at_us: u64,
    /// How often the denials of the counter had been invalidated.
    pub(crate) forgotten: u32,
    pub(crate) slot: u16,
    /// `None` if the server had failed just before.
    pub(crate) epoch: Option<Epoch>,
}
