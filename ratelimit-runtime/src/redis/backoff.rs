//! Attempts to reach a server: the pause before each, and the time it has.

use std::{
    future::Future,
    hash::{BuildHasher as _, RandomState},
    time::Duration,
};

use tokio::time::{Instant, error::Elapsed, timeout};

const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// Between two attempts that fail.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// The same where other connections are open: the server may not allow more.
const LONGEST_PAUSE_FOR_MORE: Duration = Duration::from_secs(30);
/// Between two attempts that succeed though no call is answered.
const LONGEST_REST: Duration = Duration::from_secs(1);
/// Clients that lose their connections at one moment open others within this time, or within a
/// quarter of the deadline.
const LONGEST_SPREAD: Duration = Duration::from_millis(50);
/// The time limit of the first attempt, unless the deadline is longer.
const FIRST_LIMIT: Duration = Duration::from_secs(2);
/// The time limit that attempts come to, unless the deadline is longer. An attempt that hangs
/// because packets are dropped would hang for so long beyond the end of an outage.
const LONGEST_LIMIT: Duration = Duration::from_secs(8);

/// The back-off of one runtime's connections to one server.
///
/// It ends when a call was answered, not when a connection was opened: a server may take
/// connections, answer the probe, and end each connection at its first call.
#[derive(Debug)]
pub(super) struct Backoff {
    pause: Duration,
    last: Option<Instant>,
    /// The last attempt succeeded.
    has_opened: bool,
    deadline: Duration,
    limit: Duration,
}

/// How connections came to be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// One has ended, maybe after an hour without calls.
    Ended,
    /// Calls had no answer. More of them would wait in vain too, however long the silence took to
    /// show.
    Silent,
}

impl Backoff {
    pub(super) fn new(deadline: Duration) -> Self {
        Self { pause: FIRST_PAUSE, last: None, has_opened: false, deadline, limit: first_limit(deadline) }
    }

    /// The time that the next attempt has for all its steps.
    pub(super) fn limit(&self) -> TimeLimit {
        TimeLimit::new(self.limit)
    }

    /// The time until the next attempt. Since the last one, was a call answered (`served`), and
    /// what was lost?
    pub(super) fn next(&mut self, served: bool, loss: Option<Loss>) -> Duration {
        if self.has_opened && served {
            self.pause = FIRST_PAUSE;
        } else if self.has_opened && loss.is_some() {
            self.pause = longer(self.pause, LONGEST_REST);
            if loss == Some(Loss::Silent) {
                return with_jitter(self.pause);
            }
        }
        match self.last {
            Some(last) if last.elapsed() < self.pause => with_jitter(self.pause),
            // Other clients may have lost theirs at the same moment. Callers wait for this one.
            Some(_) => part_of(LONGEST_SPREAD.min(self.deadline / 4)),
            None => Duration::ZERO,
        }
    }

    /// There has been no attempt.
    pub(super) fn is_first(&self) -> bool {
        self.last.is_none()
    }

    /// An attempt succeeded.
    pub(super) fn opened(&mut self) {
        (self.has_opened, self.last) = (true, Some(Instant::now()));
        self.limit = first_limit(self.deadline);
    }

    /// An attempt failed. `others`: calls go on over other connections.
    ///
    /// If it ran out of time, the next has twice as much. A server that all its clients come back
    /// to at once needs that for their TLS handshakes: those that are given up cost it as much as
    /// the others.
    pub(super) fn failed(&mut self, limit: TimeLimit, others: bool) {
        if limit.left().is_zero() {
            self.limit = longer(self.limit, LONGEST_LIMIT.max(self.deadline));
        }
        (self.has_opened, self.last) = (false, Some(Instant::now()));
        self.pause = longer(self.pause, if others { LONGEST_PAUSE_FOR_MORE } else { LONGEST_PAUSE });
    }

    /// The other connections were lost.
    pub(super) fn alone(&mut self) {
        self.pause = self.pause.min(LONGEST_PAUSE);
    }
}

/// The time limit of a first attempt.
pub(super) fn first_limit(deadline: Duration) -> Duration {
    FIRST_LIMIT.max(deadline)
}

fn longer(time: Duration, longest: Duration) -> Duration {
    time.saturating_mul(2).min(longest)
}

/// The time that an attempt has for all its steps.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeLimit {
    began: Instant,
    whole: Duration,
}

impl TimeLimit {
    /// Begins now.
    pub(super) fn new(whole: Duration) -> Self {
        Self { began: Instant::now(), whole }
    }

    /// Its length.
    pub(super) fn whole(self) -> Duration {
        self.whole
    }

    pub(super) fn left(self) -> Duration {
        self.whole.saturating_sub(self.began.elapsed())
    }

    /// Awaits a step for as long as there is time.
    pub(super) async fn within<F: Future>(self, step: F) -> Result<F::Output, Elapsed> {
        timeout(self.left(), step).await
    }
}

/// Between half of it and all of it, so that the clients of a server that is back do not all arrive
/// at once.
pub(super) fn with_jitter(pause: Duration) -> Duration {
    pause / 2 + part_of(pause / 2)
}

/// Any part of it.
fn part_of(time: Duration) -> Duration {
    let part = RandomState::new().hash_one(()) % 1024;
    time / 1024 * u32::try_from(part).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const TENTH: Duration = Duration::from_millis(100);

    /// The pauses before so many attempts that follow one another at once.
    async fn pauses(backoff: &mut Backoff, count: usize, attempt: impl Fn(&mut Backoff) -> Duration) -> Vec<u128> {
        let mut pauses = Vec::new();
        for _ in 0..count {
            let pause = attempt(backoff);
            pauses.push(backoff.pause.as_millis());
            assert!(pause >= backoff.pause / 2 && pause <= backoff.pause, "{pause:?} of {:?}", backoff.pause);
            advance(pause).await;
        }
        pauses
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_attempt_does_not_pause() {
        let mut backoff = Backoff::new(TENTH);
        assert!(backoff.is_first());
        assert_eq!(backoff.next(false, None), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_pause_for_up_to_a_quarter_of_a_second() {
        let fails = |backoff: &mut Backoff| {
            backoff.failed(backoff.limit(), false);
            backoff.next(true, Some(Loss::Ended))
        };
        assert_eq!(pauses(&mut Backoff::new(TENTH), 7, fails).await, [20, 40, 80, 160, 250, 250, 250]);
        let fails_beside_others = |backoff: &mut Backoff| {
            backoff.failed(backoff.limit(), true);
            backoff.next(true, None)
        };
        let mut backoff = Backoff::new(TENTH);
        assert_eq!(pauses(&mut backoff, 13, fails_beside_others).await[10..], [20_480, 30_000, 30_000]);
        backoff.alone();
        assert!(backoff.next(true, Some(Loss::Ended)) <= LONGEST_PAUSE);
    }

    #[tokio::test(start_paused = true)]
    async fn only_an_answered_call_ends_the_back_off() {
        let lost_at_its_first_call = |backoff: &mut Backoff| {
            backoff.opened();
            backoff.next(false, Some(Loss::Ended))
        };
        let mut backoff = Backoff::new(TENTH);
        assert_eq!(pauses(&mut backoff, 8, lost_at_its_first_call).await, [20, 40, 80, 160, 320, 640, 1000, 1000]);
        backoff.failed(backoff.limit(), false);
        assert!(backoff.next(true, None) >= LONGEST_PAUSE / 2, "it was answered over another connection");
        backoff.opened();
        assert!(backoff.next(true, Some(Loss::Ended)) <= FIRST_PAUSE);
    }

    #[tokio::test(start_paused = true)]
    async fn connections_that_are_added_do_not_lengthen_it() {
        let added = |backoff: &mut Backoff| {
            backoff.opened();
            backoff.next(false, None)
        };
        assert_eq!(pauses(&mut Backoff::new(TENTH), 5, added).await, [10; 5]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_was_open_for_long_is_replaced_while_callers_wait() {
        let mut backoff = Backoff::new(TENTH);
        for _ in 0..9 {
            backoff.opened();
            advance(2 * SECOND).await;
            assert!(backoff.next(false, Some(Loss::Ended)) <= TENTH / 4);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn silence_pauses_unless_a_call_was_answered_before() {
        let mut backoff = Backoff::new(TENTH);
        backoff.opened();
        advance(2 * SECOND).await;
        assert!(backoff.next(true, Some(Loss::Silent)) <= TENTH / 4);
        for _ in 0..9 {
            backoff.opened();
            advance(2 * SECOND).await;
            assert!(backoff.next(false, Some(Loss::Silent)) >= backoff.pause / 2);
        }
        assert_eq!(backoff.pause, LONGEST_REST);
    }

    /// An attempt that takes all the time it has: how long that is, in seconds.
    async fn runs_out(backoff: &mut Backoff) -> u64 {
        let limit = backoff.limit();
        assert!(limit.within(std::future::pending::<()>()).await.is_err());
        backoff.failed(limit, false);
        limit.whole().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_after_one_that_ran_out_of_time_has_twice_as_much() {
        let mut backoff = Backoff::new(TENTH);
        assert_eq!([runs_out(&mut backoff).await, runs_out(&mut backoff).await], [2, 4]);
        backoff.failed(backoff.limit(), false); // at once
        assert_eq!([runs_out(&mut backoff).await, runs_out(&mut backoff).await], [8, 8]);
        backoff.opened();
        assert_eq!(runs_out(&mut backoff).await, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn no_attempt_has_less_than_the_deadline() {
        for (deadline, limits) in [(5, [5, 8, 8]), (60, [60, 60, 60])] {
            let mut backoff = Backoff::new(deadline * SECOND);
            for limit in limits {
                assert_eq!(runs_out(&mut backoff).await, limit);
            }
        }
        let mut backoff = Backoff::new(Duration::MAX);
        backoff.failed(TimeLimit::new(Duration::ZERO), false);
        assert_eq!(backoff.limit().whole(), Duration::MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn steps_share_a_limit() {
        let limit = TimeLimit::new(4 * SECOND);
        assert!(limit.within(advance(SECOND)).await.is_ok());
        assert_eq!(limit.left(), 3 * SECOND);
        assert!(limit.within(advance(4 * SECOND)).await.is_ok(), "it was done when it was looked at");
        assert_eq!(limit.left(), Duration::ZERO);
    }
}
