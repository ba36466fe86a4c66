//! A store that has to be asked, and what its servers' failures say about what is known of their counters.

use std::ops;

#[cfg(feature = "redis")]
use crate::redis::Redis;
use crate::{
    CounterName,
    failures::{Epoch, Failures},
    store::Store,
};

/// A store that has to be asked.
pub(crate) enum Upstream {
    #[cfg(feature = "redis")]
    Redis(Redis),
    Other(Box<dyn Store>, Failures),
}

#[cfg_attr(not(feature = "redis"), allow(unused_variables))]
impl Upstream {
    pub(crate) fn other(store: impl Store) -> Self {
        Self::Other(Box::new(store), Failures::default())
    }

    /// The slot of a counter, by which its server is found. Always 0 where there is one.
    pub(super) fn slot(&self, counter: &CounterName) -> u16 {
        match self {
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.slot(counter),
            Self::Other(..) => 0,
        }
    }

    /// Whether the server of a slot is known to be away.
    pub(super) fn is_away(&self, slot: u16) -> bool {
        match self {
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.has_outage(slot),
            Self::Other(store, _) => store.outage().is_some(),
        }
    }

    /// The server of a slot could not decide.
    pub(super) fn failed(&self, slot: u16) {
        match self {
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.failed(slot),
            Self::Other(_, failures) => failures.failed(),
        }
    }

    /// The epoch of the server of a slot. `None` while it is away, and within a second of a failure.
    pub(super) fn epoch(&self, slot: u16) -> Option<Epoch> {
        match self {
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.epoch(slot),
            Self::Other(store, failures) if store.outage().is_none() => failures.epoch(),
            Self::Other(_, failures) => {
                failures.failed();
                None
            }
        }
    }
}

impl ops::Deref for Upstream {
    type Target = dyn Store;

    fn deref(&self) -> &(dyn Store + 'static) {
        match self {
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis,
            Self::Other(store, _) => &**store,
        }
    }
}
