//! The connections of one runtime to one server, and their circuit breaker.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use redis::aio::MultiplexedConnection;
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use super::{
    breaker::{BreakerState, MAX_MISSED_REPLIES, MissedReplies},
    endpoint::Endpoint,
};
use crate::{background, observe, store::StoreError};

const NO_SUPERVISOR: &str =
    "no task keeps its connection open: its tokio runtime is shutting down, or was built without enable_all";

/// The connections of one runtime to one server.
///
/// A connection dies with the tokio runtime that opened it, so each runtime has a pool of its own.
/// The runtime's [`Supervisor`](super::supervisor::Supervisor) opens them; callers never do.
#[derive(Debug)]
pub(super) struct ConnectionPool {
    pub(super) endpoint: Arc<Endpoint>,
    /// The runtime is the one for background work.
    is_background: bool,
    pub(super) state: watch::Sender<BreakerState<OpenConnection>>,
    /// The breaker admits callers: they send, or wait for the first connection. A copy of `state`
    /// that is read without a lock.
    admits: AtomicBool,
    pub(super) missed: MissedReplies,
    /// A command was answered since the last attempt to connect.
    pub(super) has_served: AtomicBool,
    /// Time of the last reply to a probe that missed its deadline.
    pub(super) late_reply: AtomicU64,
    /// Notified if a caller leaves too early to tell whether the server answers.
    pub(super) suspected: Notify,
    next: AtomicUsize,
    /// Times are nanoseconds since this moment.
    began: Instant,
}

/// An open connection, identified by its counter of missed replies.
///
/// That counter is also what tells a dead connection from a slow one if it ends without an error,
/// as it may behind a proxy.
#[derive(Clone)]
pub(super) struct OpenConnection {
    pub(super) redis: MultiplexedConnection,
    pub(super) missed: Arc<MissedReplies>,
    pub(super) opened: u64,
}

impl ConnectionPool {
    pub(super) fn new(endpoint: Arc<Endpoint>) -> Self {
        Self {
            endpoint,
            is_background: background::is_here(),
            state: watch::Sender::new(BreakerState::Connecting),
            admits: AtomicBool::new(true),
            missed: MissedReplies::default(),
            has_served: AtomicBool::new(false),
            late_reply: AtomicU64::new(0),
            suspected: Notify::new(),
            next: AtomicUsize::new(0),
            began: Instant::now(),
        }
    }

    /// The breaker admits callers.
    pub(super) fn admits(&self) -> bool {
        self.admits.load(Ordering::Acquire)
    }

    /// The caller has left, and the background runtime polls for the reply in its place.
    #[inline]
    pub(super) fn caller_has_left(&self) -> bool {
        background::is_here() && !self.is_background
    }

    /// The deadline of commands that were sent then is over. A tenth is subtracted, because it began before.
    pub(super) fn is_late(&self, sent: u64) -> bool {
        let deadline = self.endpoint.options.deadline;
        self.since(sent) >= deadline.saturating_sub(deadline / 10)
    }

    /// A late caller of the background runtime has left, too: its clean-up polls for the reply, on the same
    /// runtime.
    pub(super) fn is_late_in_background(&self, sent: u64) -> bool {
        self.is_background && self.is_late(sent)
    }

    /// One of the open connections, in turn. `None` while the first one is being opened.
    pub(super) fn pick(&self) -> Option<Result<OpenConnection, StoreError>> {
        match &*self.state.borrow() {
            BreakerState::Connecting => None,
            BreakerState::Closed(open) => {
                let turn = if open.len() == 1 { 0 } else { self.next.fetch_add(1, Ordering::Relaxed) % open.len() };
                Some(Ok(open[turn].clone()))
            }
            BreakerState::Open { error, .. } => Some(Err(error.clone())),
            BreakerState::Ended => Some(Err(StoreError::unavailable(NO_SUPERVISOR))),
        }
    }

    /// Why the breaker does not admit callers. `None` if it does.
    pub(super) fn refusal(&self) -> Option<StoreError> {
        if self.admits() {
            return None;
        }
        match &*self.state.borrow() {
            BreakerState::Connecting | BreakerState::Closed(_) => None,
            BreakerState::Open { error, .. } => Some(error.clone()),
            BreakerState::Ended => Some(StoreError::unavailable(NO_SUPERVISOR)),
        }
    }

    /// Why the breaker is open. `None` if it is not.
    pub(super) fn outage(&self) -> Option<StoreError> {
        match &*self.state.borrow() {
            BreakerState::Open { error, .. } => Some(error.clone()),
            _ => None,
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        matches!(*self.state.borrow(), BreakerState::Ended)
    }

    /// Removes a connection that was lost.
    pub(super) fn lost(&self, missed: &Arc<MissedReplies>) {
        if self.change(|state| state.lost(|open| Arc::ptr_eq(&open.missed, missed))) {
            observe::shielded(|| tracing::debug!(server = %self.endpoint.source, "connection lost, opening another"));
        }
    }

    /// Opens the breaker: the server has missed too many replies.
    pub(super) fn fell_silent(&self) {
        let error = self.endpoint.unavailable(format_args!("{MAX_MISSED_REPLIES} calls in a row had no answer"));
        self.change(|state| state.fell_silent(error, Instant::now()));
    }

    /// Changes the state of the breaker and wakes waiting callers, if `change` returns true.
    pub(super) fn change(&self, change: impl FnOnce(&mut BreakerState<OpenConnection>) -> bool) -> bool {
        self.state.send_if_modified(|state| {
            let (was_open, was_connected) = (state.is_open(), state.connections() > 0);
            let is_changed = change(state);
            match (was_open, state.is_open()) {
                (false, true) => drop(self.endpoint.open_breakers.fetch_add(1, Ordering::AcqRel)),
                (true, false) => drop(self.endpoint.open_breakers.fetch_sub(1, Ordering::AcqRel)),
                _ => {}
            }
            // The next connection may lead to another server, or to this one without its counters.
            if !was_open && state.is_open() || was_connected && state.is_connecting() {
                self.endpoint.failures.failed();
            }
            let admits = matches!(state, BreakerState::Connecting | BreakerState::Closed(_));
            self.admits.store(admits, Ordering::Release);
            is_changed
        })
    }

    /// Nanoseconds since the pool was made.
    #[allow(clippy::cast_possible_truncation)] // lasts for 500 years
    pub(super) fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// The moment `time` ago.
    #[allow(clippy::cast_possible_truncation)] // of a few seconds
    pub(super) fn ago(&self, time: Duration) -> u64 {
        self.now().saturating_sub(time.as_nanos() as u64)
    }

    /// Time since a moment.
    pub(super) fn since(&self, then: u64) -> Duration {
        Duration::from_nanos(self.now().saturating_sub(then))
    }
}

impl fmt::Debug for OpenConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenConnection").finish_non_exhaustive()
    }
}
