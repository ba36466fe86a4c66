//! The calls of a limiter that wait until its store decides again, and their pauses.
//!
//! A call first waits until no server of its counters is known to be away. Servers that answer with
//! errors are not away, so it also pauses. The pauses grow with the number of waiting calls: all of
//! them together ask at most some 500 times a second.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    time::Duration,
};

use tokio::sync::Notify;

use crate::duration::with_jitter;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Part of a pause for each waiting call, before jitter takes up to half of it.
const PAUSE_PER_CALL: Duration = Duration::from_millis(4);

/// The calls of a limiter that wait for its store.
pub(crate) struct OutageWaiters {
    waiting: AtomicUsize,
    max_waiting: usize,
    is_closed: AtomicBool,
    closed: Notify,
}

impl OutageWaiters {
    pub(crate) fn new(max_waiting: usize) -> Self {
        let (waiting, is_closed) = (AtomicUsize::default(), AtomicBool::default());
        Self { waiting, max_waiting, is_closed, closed: Notify::new() }
    }

    /// Refuses all waiting calls, and all later ones that would wait.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.closed.notify_waiters();
    }

    /// Returns once the limiter is closed.
    pub(crate) async fn closed(&self) {
        let notified = self.closed.notified();
        if !self.is_closed.load(Ordering::SeqCst) {
            notified.await;
        }
    }
}

/// Counts a call as waiting until it is dropped.
pub(super) struct CountedWaiter<'a>(&'a OutageWaiters);

impl<'a> CountedWaiter<'a> {
    /// `None` if too many calls wait.
    pub(super) fn new(waiters: &'a OutageWaiters) -> Option<Self> {
        let waiter = Self(waiters); // counts until it is dropped, in either case
        let others = waiters.waiting.fetch_add(1, Ordering::Relaxed);
        (others < waiters.max_waiting).then_some(waiter)
    }

    /// The pause before the next attempt, after so many.
    pub(super) fn pause(&self, attempts: u32) -> Duration {
        let pause = FIRST_PAUSE.saturating_mul(1 << attempts.min(8)).min(LONGEST_PAUSE);
        let waiting = u32::try_from(self.0.waiting.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        with_jitter(pause.max(PAUSE_PER_CALL.saturating_mul(waiting)))
    }
}

impl Drop for CountedWaiter<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The wait of one call for its store.
#[derive(Clone, Copy)]
pub(super) struct OutageWait {
    /// The time of the first failure.
    pub(super) since: Duration,
    /// Up to this time, the outage is added to the time of the call.
    pub(super) counted_until: Duration,
    pub(super) attempts: u32,
    /// The time for an attempt before the end is drawn: it is the last one, unless the server returns.
    pub(super) is_last: bool,
}

impl OutageWait {
    pub(super) fn new(since: Duration, counted_until: Duration) -> Self {
        Self { since, counted_until, attempts: 0, is_last: false }
    }
}
