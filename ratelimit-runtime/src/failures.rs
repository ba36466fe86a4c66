//! Failures of a server, which end the cached denials of its counters.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

/// How long after a failure nothing is cached or served from a cache.
const QUIET: Duration = Duration::from_secs(1);

/// The time between two failures of a server. Each is unique in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Epoch(u32);

/// The number of epochs so far, of all servers.
static EPOCHS: AtomicU32 = AtomicU32::new(0);

impl Epoch {
    fn next() -> Self {
        Self(EPOCHS.fetch_add(1, Ordering::Relaxed))
    }

    /// The number of epochs so far, of all servers. While it does not change, no epoch has ended.
    pub(crate) fn count() -> u32 {
        EPOCHS.load(Ordering::Relaxed)
    }
}

/// The failures of one server. It may come back without its counters, so cached knowledge is valid
/// only in the epoch it is from.
#[derive(Debug)]
pub(crate) struct Failures {
    epoch: AtomicU32,
    /// False if `last` is long ago. Spares the lock.
    is_recent: AtomicBool,
    last: Mutex<Option<Instant>>,
}

impl Default for Failures {
    fn default() -> Self {
        Self { epoch: AtomicU32::new(Epoch::next().0), is_recent: AtomicBool::new(false), last: Mutex::new(None) }
    }
}

impl Failures {
    /// Records that the server could not decide. Begins a new epoch, unless the last failure is
    /// less than a second ago.
    pub(crate) fn failed(&self) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.replace(Instant::now()).is_none_or(|last| last.elapsed() >= QUIET) {
            self.epoch.store(Epoch::next().0, Ordering::Release);
        }
        self.is_recent.store(true, Ordering::Release);
    }

    /// The current epoch. `None` within a second of a failure.
    #[inline]
    pub(crate) fn epoch(&self) -> Option<Epoch> {
        if self.is_recent.load(Ordering::Acquire) && self.is_recent_still() {
            return None;
        }
        Some(Epoch(self.epoch.load(Ordering::Acquire)))
    }

    #[cold]
    fn is_recent_still(&self) -> bool {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_recent = last.is_some_and(|last| last.elapsed() < QUIET);
        self.is_recent.store(is_recent, Ordering::Release);
        is_recent
    }
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn failures_in_a_row_end_one_epoch() {
        let (failures, other) = (Failures::default(), Failures::default());
        let first = failures.epoch();
        assert!(first.is_some() && first != other.epoch());
        let epoch = || failures.epoch.load(Ordering::Relaxed);
        failures.failed();
        let begun = epoch();
        advance(QUIET / 2).await;
        failures.failed();
        advance(QUIET / 2).await;
        assert_eq!(failures.epoch(), None);
        advance(QUIET / 2).await;
        let second = failures.epoch();
        assert!(second.is_some() && second != first && second == Some(Epoch(begun)));
        let count = Epoch::count();
        failures.failed();
        assert_ne!(epoch(), begun);
        assert_ne!(Epoch::count(), count);
        assert_eq!(failures.epoch(), None);
    }
}
