//! Whether a node is asked at all.
//!
//! ```text
//!               a connection was opened           the last one was lost
//!   Opening ------------------------------> Up -------------------------> Opening
//!      |                                   ^  |
//!      | an attempt failed,                |  | calls in a row
//!      | or takes too long                 |  | had no answer
//!      |                                   |  v
//!      +---------------------------------> Away
//!          a connection was opened, or a silent one answers again
//! ```
//!
//! A connection counts as opened when the server has run a script over it in time. So the breaker, which is open while the node is
//! `Away`, is closed by such an answer alone, and a server that is slower than the deadline leaves it open.
//!
//! Connections that fell silent are kept: a server that halts for a second answers over them as
//! soon as it goes on. If all clients opened others instead, their handshakes would keep it busy
//! for far longer than it had halted.

use std::{
    mem,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use tokio::time::Instant;

use crate::store::StoreError;

/// So many calls in a row without an answer, and nobody is asked any more.
pub(super) const SILENT_CALLS: u32 = 3;

/// How a node stands with its callers.
#[derive(Debug)]
pub(super) enum State<C> {
    /// There is no connection, and one is being opened. Callers wait for it.
    Opening,
    /// Callers use these in turn. Never empty.
    Up(Vec<C>),
    /// Callers are told at once.
    Away {
        error: StoreError,
        /// Attempts that failed since.
        attempts: u32,
        /// Connections whose calls had no answer.
        silent: Vec<C>,
    },
    /// Nobody opens connections any more.
    Ended,
}

impl<C> State<C> {
    pub(super) fn is_opening(&self) -> bool {
        matches!(self, Self::Opening)
    }

    pub(super) fn is_away(&self) -> bool {
        matches!(self, Self::Away { .. })
    }

    /// Connections whose calls had no answer.
    pub(super) fn silent(&self) -> &[C] {
        match self {
            Self::Away { silent, .. } => silent,
            _ => &[],
        }
    }

    /// How many connections callers use.
    pub(super) fn open(&self) -> usize {
        match self {
            Self::Up(connections) => connections.len(),
            _ => 0,
        }
    }

    /// A connection was opened, and the server answers.
    pub(super) fn opened(&mut self, connection: C) {
        match self {
            Self::Up(connections) => connections.push(connection),
            Self::Opening | Self::Away { .. } => *self = Self::Up(vec![connection]),
            Self::Ended => {}
        }
    }

    /// The connections for which this holds are gone. Says whether there were any.
    pub(super) fn lost(&mut self, gone: impl Fn(&C) -> bool) -> bool {
        let (Self::Up(connections) | Self::Away { silent: connections, .. }) = self else { return false };
        let before = connections.len();
        connections.retain(|connection| !gone(connection));
        let after = connections.len();
        if after == 0 && matches!(self, Self::Up(_)) {
            *self = Self::Opening;
        }
        after < before
    }

    /// An attempt to open a connection failed. Where others are open, callers go on with those.
    pub(super) fn failed(&mut self, error: StoreError, now: Instant) {
        match self {
            Self::Opening => *self = Self::away(error.since(now), 1, Vec::new()),
            Self::Away { error: known, attempts, .. } => {
                *known = error.since(known.began().unwrap_or(now));
                *attempts = attempts.saturating_add(1);
            }
            Self::Up(_) | Self::Ended => {}
        }
    }

    /// An attempt to open a connection takes longer than callers should wait. Says whether that changes anything.
    pub(super) fn late(&mut self, error: StoreError, now: Instant) -> bool {
        let changes = self.is_opening();
        if changes {
            *self = Self::away(error.since(now), 0, Vec::new());
        }
        changes
    }

    /// The server no longer answers, whatever the connection. Says whether that changes anything.
    pub(super) fn fell_silent(&mut self, error: StoreError, now: Instant) -> bool {
        let Self::Up(connections) = self else { return false };
        let silent = mem::take(connections);
        *self = Self::away(error.since(now), 0, silent);
        true
    }

    /// The server answers over a silent connection. The others are used again, too: most likely it
    /// answers over all of them, and one that is dead is found by its own silence. Says whether
    /// that changes anything.
    pub(super) fn revived(&mut self) -> bool {
        let Self::Away { silent, .. } = self else { return false };
        let connections = mem::take(silent);
        let changes = !connections.is_empty();
        if changes {
            *self = Self::Up(connections);
        }
        changes
    }

    fn away(error: StoreError, attempts: u32, silent: Vec<C>) -> Self {
        Self::Away { error, attempts, silent }
    }
}

/// How many calls in a row had no answer. Times are nanoseconds since any one moment.
#[derive(Debug, Default)]
pub(super) struct Silence {
    calls: AtomicU32,
    /// When the latest call was sent that has been answered.
    answered: AtomicU64,
}

impl Silence {
    /// A call that was sent then has been answered, so all that were sent before it no longer count.
    pub(super) fn answered(&self, sent: u64) {
        self.answered.fetch_max(sent, Ordering::Relaxed);
        if self.calls.load(Ordering::Relaxed) != 0 {
            self.calls.store(0, Ordering::Relaxed);
        }
    }

    /// Whether a call that was sent later has been answered.
    pub(super) fn answered_since(&self, then: u64) -> bool {
        self.answered.load(Ordering::Relaxed) > then
    }

    /// What was sent then for so many callers had no answer. Says whether that is one too many.
    pub(super) fn unanswered(&self, sent: u64, callers: usize) -> bool {
        let calls = u32::try_from(callers).unwrap_or(SILENT_CALLS).min(SILENT_CALLS);
        sent >= self.answered.load(Ordering::Relaxed)
            && self.calls.fetch_add(calls, Ordering::Relaxed).saturating_add(calls) >= SILENT_CALLS
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn error(reason: &'static str) -> StoreError {
        StoreError::unavailable(reason)
    }

    fn away(state: &State<u32>) -> (&StoreError, u32) {
        match state {
            State::Away { error, attempts, .. } => (error, *attempts),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn three_calls_in_a_row_are_silence_whenever_they_were_sent() {
        for sent in [[5, 6, 7], [5, 5, 5], [7, 6, 5]] {
            let silence = Silence::default();
            silence.answered(4);
            assert_eq!(sent.map(|sent| silence.unanswered(sent, 1)), [false, false, true]);
            assert!(silence.unanswered(8, 1), "and it lasts");
        }
    }

    #[test]
    fn an_answer_ends_a_silence() {
        let silence = Silence::default();
        for sent in [1, 2, 4, 5, 7, 8] {
            assert!(!silence.unanswered(sent, 1));
            if sent % 3 == 2 {
                silence.answered(sent + 1);
            }
        }
        assert!(!silence.unanswered(10, 1) && !silence.unanswered(11, 1) && silence.unanswered(12, 1));
    }

    /// Such calls end at their deadline, long after the server has answered others.
    #[test]
    fn calls_sent_before_one_that_was_answered_say_nothing() {
        let silence = Silence::default();
        silence.answered(100);
        assert!((0..100).all(|sent| !silence.unanswered(sent, 1)));
    }

    #[test]
    fn the_breaker_opens_by_a_failed_attempt_a_late_one_or_silence() {
        let now = Instant::now();
        let mut state = State::<u32>::Opening;
        state.failed(error("refused"), now);
        assert_eq!(away(&state).1, 1);

        let mut state = State::<u32>::Opening;
        assert!(state.late(error("late"), now) && !state.late(error("later"), now));
        assert_eq!(away(&state).1, 0);
        state.opened(1);
        assert!(state.fell_silent(error("silent"), now) && !state.fell_silent(error("silent"), now));
        assert_eq!(away(&state).1, 0);
    }

    #[test]
    fn silent_connections_are_kept_until_they_answer_or_end_or_another_does() {
        let now = Instant::now();
        let silent = || {
            let mut state = State::Up(vec![1, 2]);
            assert!(state.fell_silent(error("silent"), now));
            assert_eq!((state.open(), state.silent()), (0, &[1, 2][..]));
            state
        };
        let mut state = silent();
        state.failed(error("refused"), now);
        assert!(state.lost(|number| *number == 1) && state.revived() && !state.revived());
        assert_eq!((state.open(), state.silent()), (1, &[][..]));

        let mut state = silent();
        assert!(state.lost(|_| true) && state.is_away() && !state.revived(), "callers do not wait for another one");
        let mut state = silent();
        state.opened(3);
        assert!(matches!(&state, State::Up(connections) if *connections == [3]));
    }

    #[test]
    fn an_outage_keeps_its_beginning_and_tells_its_latest_reason() {
        let began = Instant::now();
        let mut state = State::<u32>::Opening;
        state.failed(error("refused"), began);
        state.failed(error("no route"), began + SECOND);
        let (error, attempts) = away(&state);
        assert_eq!((error.began(), attempts), (Some(began), 2));
        assert!(error.to_string().starts_with("no route (for "), "{error}");
    }

    #[test]
    fn a_lost_connection_is_waited_for_once() {
        let mut state = State::Up(vec![1, 2]);
        assert!(state.lost(|number| *number == 1) && state.open() == 1);
        assert!(!state.lost(|number| *number == 1), "lost already");
        state.failed(error("refused"), Instant::now());
        assert_eq!(state.open(), 1, "the other one is still there");
        assert!(state.lost(|_| true) && state.is_opening());
    }

    proptest! {
        /// From wherever: an answer closes the breaker, nothing else does, and callers wait only after a loss.
        #[test]
        fn only_an_answer_closes_the_breaker(steps in prop::collection::vec(0_u8..6, 0..40)) {
            let now = Instant::now();
            let mut state = State::<u8>::Opening;
            for step in steps {
                let before = (state.is_away(), state.open());
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
                    prop_assert_eq!(state.is_away(), step != 0 && !can_revive);
                }
                if state.is_opening() {
                    prop_assert!(step == 1 || before == (false, 0));
                }
                prop_assert!(step != 0 || state.open() == before.1 + 1);
                prop_assert!(!matches!(&state, State::Up(connections) if connections.is_empty()));
            }
            state = State::Ended;
            state.opened(1);
            prop_assert!(matches!(state, State::Ended));
        }
    }
}
