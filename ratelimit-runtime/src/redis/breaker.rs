//! The circuit breaker of a server's connections: a state machine without clock or network.
//!
//! ```text
//!               a connection was opened          the last one was lost
//!   Connecting -------------------------> Closed ---------------------> Connecting
//!      |                                   ^  |
//!      | an attempt failed,                |  | too many callers
//!      | or takes too long                 |  | in a row get no reply
//!      |                                   |  v
//!      +----------------------------------> Open
//!          a connection was opened, or a silent one answers again
//! ```
//!
//! A connection counts as opened, or as answering again, when the server has answered a script over it
//! in time. Nothing else closes the breaker: for a server that is slower than the deadline it stays
//! open. (The first attempt of a pool has two seconds in all, or the deadline if that is longer.)
//!
//! Silent connections are kept. A server that halts for a second answers over them as soon as it
//! goes on; the handshakes of all its clients would keep it busy for far longer.

use std::{
    mem,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use tokio::time::Instant;

use crate::store::StoreError;

/// Callers in a row without a reply that open the breaker. One round trip of three callers is enough.
pub(super) const MAX_MISSED_REPLIES: u32 = 3;

/// State of the breaker, with the connections `C`.
#[derive(Debug)]
pub(super) enum BreakerState<C> {
    /// There is no connection, and one is being opened. Callers wait for it.
    Connecting,
    /// Callers use these connections in turn. Never empty.
    Closed(Vec<C>),
    /// Callers fail at once.
    Open {
        error: StoreError,
        /// Attempts to connect that have failed since.
        attempts: u32,
        /// Connections that missed replies.
        silent: Vec<C>,
    },
    /// No task opens connections any more. Callers fail at once.
    Ended,
}

impl<C> BreakerState<C> {
    pub(super) fn is_connecting(&self) -> bool {
        matches!(self, Self::Connecting)
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self, Self::Open { .. })
    }

    /// Connections that missed replies.
    pub(super) fn silent(&self) -> &[C] {
        match self {
            Self::Open { silent, .. } => silent,
            _ => &[],
        }
    }

    /// Number of connections that callers use.
    pub(super) fn connections(&self) -> usize {
        match self {
            Self::Closed(connections) => connections.len(),
            _ => 0,
        }
    }

    /// A connection was opened, and the server answers.
    pub(super) fn opened(&mut self, connection: C) {
        match self {
            Self::Closed(connections) => connections.push(connection),
            Self::Connecting | Self::Open { .. } => *self = Self::Closed(vec![connection]),
            Self::Ended => {}
        }
    }

    /// Removes the connections that are gone. Returns true if there were any.
    pub(super) fn lost(&mut self, is_gone: impl Fn(&C) -> bool) -> bool {
        let (Self::Closed(connections) | Self::Open { silent: connections, .. }) = self else { return false };
        let before = connections.len();
        connections.retain(|connection| !is_gone(connection));
        let after = connections.len();
        if after == 0 && matches!(self, Self::Closed(_)) {
            *self = Self::Connecting;
        }
        after < before
    }

    /// An attempt to connect failed. Callers go on over other connections, if there are any.
    pub(super) fn failed(&mut self, error: StoreError, now: Instant) {
        match self {
            Self::Connecting => *self = Self::open(error.since(now), 1, Vec::new()),
            Self::Open { error: known, attempts, .. } => {
                *known = error.since(known.began().unwrap_or(now));
                *attempts = attempts.saturating_add(1);
            }
            Self::Closed(_) | Self::Ended => {}
        }
    }

    /// An attempt to connect takes longer than callers should wait. Returns true if that is a
    /// change.
    pub(super) fn late(&mut self, error: StoreError, now: Instant) -> bool {
        let changes = self.is_connecting();
        if changes {
            *self = Self::open(error.since(now), 0, Vec::new());
        }
        changes
    }

    /// The server no longer answers over any connection. Returns true if that is a change.
    pub(super) fn fell_silent(&mut self, error: StoreError, now: Instant) -> bool {
        let Self::Closed(connections) = self else { return false };
        let silent = mem::take(connections);
        *self = Self::open(error.since(now), 0, silent);
        true
    }

    /// The server answers over a silent connection. Returns true if that is a change.
    ///
    /// All silent connections are used again: most likely it answers over all of them, and a dead
    /// one soon misses replies of its own.
    pub(super) fn revived(&mut self) -> bool {
        let Self::Open { silent, .. } = self else { return false };
        let connections = mem::take(silent);
        let changes = !connections.is_empty();
        if changes {
            *self = Self::Closed(connections);
        }
        changes
    }

    fn open(error: StoreError, attempts: u32, silent: Vec<C>) -> Self {
        Self::Open { error, attempts, silent }
    }
}

/// Count of callers in a row without a reply. Times are nanoseconds since an arbitrary moment.
#[derive(Debug, Default)]
pub(super) struct MissedReplies {
    count: AtomicU32,
    /// Latest time that was given to [`MissedReplies::answered`].
    answered: AtomicU64,
}

impl MissedReplies {
    /// The server has answered a command that was sent at `since`, or answers now. Commands sent earlier no longer
    /// count.
    pub(super) fn answered(&self, since: u64) {
        self.answered.fetch_max(since, Ordering::Relaxed);
        if self.count.load(Ordering::Relaxed) != 0 {
            self.count.store(0, Ordering::Relaxed);
        }
    }

    /// The server has answered since `then`.
    pub(super) fn answered_since(&self, then: u64) -> bool {
        self.answered.load(Ordering::Relaxed) > then
    }

    /// Commands that were sent at `sent` for this many callers were not answered. Returns true if
    /// that is too many in a row.
    pub(super) fn missed(&self, sent: u64, callers: usize) -> bool {
        let count = u32::try_from(callers).unwrap_or(MAX_MISSED_REPLIES).min(MAX_MISSED_REPLIES);
        sent >= self.answered.load(Ordering::Relaxed)
            && self.count.fetch_add(count, Ordering::Relaxed).saturating_add(count) >= MAX_MISSED_REPLIES
    }
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn error(reason: &'static str) -> StoreError {
        StoreError::unavailable(reason)
    }

    fn open(state: &BreakerState<u32>) -> (&StoreError, u32) {
        match state {
            BreakerState::Open { error, attempts, .. } => (error, *attempts),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn three_missed_replies_in_a_row_are_silence() {
        for sent in [[5, 6, 7], [5, 5, 5], [7, 6, 5]] {
            let replies = MissedReplies::default();
            replies.answered(4);
            assert_eq!(sent.map(|sent| replies.missed(sent, 1)), [false, false, true]);
            assert!(replies.missed(8, 1), "and it lasts");
        }
    }

    #[test]
    fn an_answer_ends_a_silence() {
        let replies = MissedReplies::default();
        for sent in [1, 2, 4, 5, 7, 8] {
            assert!(!replies.missed(sent, 1));
            if sent % 3 == 2 {
                replies.answered(sent + 1);
            }
        }
        assert!(!replies.missed(10, 1) && !replies.missed(11, 1) && replies.missed(12, 1));
    }

    /// They end at their deadline, long after the server has answered others.
    #[test]
    fn replies_missed_before_an_answered_command_do_not_count() {
        let replies = MissedReplies::default();
        replies.answered(100);
        assert!((0..100).all(|sent| !replies.missed(sent, 1)));
    }

    #[test]
    fn a_failed_attempt_a_late_one_and_silence_open_the_breaker() {
        let now = Instant::now();
        let mut state = BreakerState::<u32>::Connecting;
        state.failed(error("refused"), now);
        assert_eq!(open(&state).1, 1);

        let mut state = BreakerState::<u32>::Connecting;
        assert!(state.late(error("late"), now) && !state.late(error("later"), now));
        assert_eq!(open(&state).1, 0);
        state.opened(1);
        assert!(state.fell_silent(error("silent"), now) && !state.fell_silent(error("silent"), now));
        assert_eq!(open(&state).1, 0);
    }

    #[test]
    fn silent_connections_are_kept_until_they_answer_or_end() {
        let now = Instant::now();
        let silent = || {
            let mut state = BreakerState::Closed(vec![1, 2]);
            assert!(state.fell_silent(error("silent"), now));
            assert_eq!((state.connections(), state.silent()), (0, &[1, 2][..]));
            state
        };
        let mut state = silent();
        state.failed(error("refused"), now);
        assert!(state.lost(|number| *number == 1) && state.revived() && !state.revived());
        assert_eq!((state.connections(), state.silent()), (1, &[][..]));

        let mut state = silent();
        assert!(state.lost(|_| true) && state.is_open() && !state.revived(), "callers do not wait for another one");
        let mut state = silent();
        state.opened(3);
        assert!(matches!(&state, BreakerState::Closed(connections) if *connections == [3]));
    }

    #[test]
    fn an_outage_keeps_its_beginning_and_has_the_latest_reason() {
        let began = Instant::now();
        let mut state = BreakerState::<u32>::Connecting;
        state.failed(error("refused"), began);
        state.failed(error("no route"), began + SECOND);
        let (error, attempts) = open(&state);
        assert_eq!((error.began(), attempts), (Some(began), 2));
        assert_eq!(error.to_string(), "no route", "the same for each caller");
    }

    #[test]
    fn callers_wait_after_the_last_connection_is_lost() {
        let mut state = BreakerState::Closed(vec![1, 2]);
        assert!(state.lost(|number| *number == 1) && state.connections() == 1);
        assert!(!state.lost(|number| *number == 1), "lost already");
        state.failed(error("refused"), Instant::now());
        assert_eq!(state.connections(), 1, "the other one is still there");
        assert!(state.lost(|_| true) && state.is_connecting());
    }

    proptest! {
        /// From any state: only an answer closes the breaker, and callers wait only after a loss.
        #[test]
        fn only_an_answer_closes_the_breaker(steps in prop::collection::vec(0_u8..6, 0..40)) {
            let now = Instant::now();
            let mut state = BreakerState::<u8>::Connecting;
            for step in steps {
                let before = (state.is_open(), state.connections());
                let can_revive = step == 5 && !state.silent().is_empty();
                match step {
                    0 => state.opened(step),
                    1 => drop(state.lost(|_| true)),
                    2 => state.failed(error("failed"), now),
                    3 => drop(state.late(error("late"), now)),
                    4 => drop(state.fell_silent(error("silent"), now)),
                    _ => prop_assert_eq!(state.revived(), can_revive),
                }
                if before.0 {
                    prop_assert_eq!(state.is_open(), step != 0 && !can_revive);
                }
                if state.is_connecting() {
                    prop_assert!(step == 1 || before == (false, 0));
                }
                prop_assert!(step != 0 || state.connections() == before.1 + 1);
                prop_assert!(!matches!(&state, BreakerState::Closed(connections) if connections.is_empty()));
            }
            state = BreakerState::Ended;
            state.opened(1);
            prop_assert!(matches!(state, BreakerState::Ended));
        }
    }
}
