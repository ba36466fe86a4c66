//! The store behind the guard, and the epochs of its servers: a cached denial holds within one
//! epoch.

use std::{future::pending, ops, time::Duration};

#[cfg(feature = "redis")]
use crate::redis::Redis;
use crate::{
    CounterName,
    clock::sleep,
    duration::with_jitter,
    failures::{Epoch, Failures},
    store::{Charge, Store},
};

/// The longest wait, beyond the deadline, for the reply to a prefetch, and the longest time to refund it then. What is
/// charged later stays charged.
pub(super) const LONGEST_DELAY: Duration = Duration::from_secs(5);

/// The store behind the guard: Redis, or a store of the user's.
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

    /// The time after the deadline for which a late reply is awaited, to give back what it has charged. Calls of a
    /// user's own store are dropped at the deadline.
    pub(super) fn longest_delay(&self) -> Duration {
        match self {
            #[cfg(feature = "redis")]
            Self::Redis(_) => LONGEST_DELAY,
            Self::Other(..) => Duration::ZERO,
        }
    }

    /// The slot of a counter, which tells its server. Always 0 if there is one server.
    pub(super) fn slot(&self, counter: &CounterName) -> u16 {
        match self {
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.slot(counter),
            Self::Other(..) => 0,
        }
    }

    /// Whether the counters lie in several slots of a cluster.
    pub(super) fn are_apart(&self, charges: &[Charge]) -> bool {
        match self {
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.are_apart(charges),
            Self::Other(..) => false,
        }
    }

    /// Checks whether the server of a slot is known to be away.
    pub(super) fn is_away(&self, slot: u16) -> bool {
        match self {
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.has_outage(slot),
            Self::Other(store, _) => store.outage().is_some(),
        }
    }

    /// Returns once the server of a slot is not known to be away.
    pub(super) async fn returned(&self, slot: u16) {
        const POLL_INTERVAL: Duration = Duration::from_millis(250);
        while self.is_away(slot) {
            let returned = async {
                #[cfg(feature = "redis")]
                if let Self::Redis(redis) = self {
                    redis.returned().await;
                    if !self.is_away(slot) {
                        return;
                    }
                }
                pending::<()>().await;
            };
            // Asked again, as the call may move to another runtime, which has connections of its own. And a slot may
            // move to another node: a cluster then looks for that node.
            tokio::select! {
                biased;
                () = returned => {}
                () = sleep(with_jitter(POLL_INTERVAL)) => {}
            }
        }
    }

    /// Records that the server of a slot could not decide.
    pub(super) fn failed(&self, slot: u16) {
        match self {
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.failed(slot),
            Self::Other(_, failures) => failures.failed(),
        }
    }

    /// The current epoch of the server of a slot. `None` while the server is away, and within a
    /// second of a failure.
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
