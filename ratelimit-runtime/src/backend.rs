//! Data that the guard hands to a store with a query, and that the store keeps unread until the
//! answer.

use crate::failures::Epoch;

/// The state of the guard when a query was sent. Tells later whether its denial may be cached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueryTag {
    pub(crate) sent_us: u64,
    /// How often the counter's cached denials had been invalidated.
    pub(crate) invalidations: u32,
    pub(crate) slot: u16,
    /// The epoch of the server. `None` if the server was away, or had failed within a second
    /// before.
    pub(crate) epoch: Option<Epoch>,
}
