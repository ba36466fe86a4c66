//! Back-off and time limits of attempts to connect.

use std::{future::Future, time::Duration};

use tokio::time::{Instant, error::Elapsed, timeout};

use crate::duration::{part_of, with_jitter};

/// Shortest time between two attempts. A failure doubles it first, so the first pause after one is 20 ms.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// Longest pause between attempts that fail, and between probes. Also the least age at which a connection is
/// closed because of READONLY.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// Longest pause while other connections are open: the server may not allow more.
const LONGEST_PAUSE_FOR_MORE: Duration = Duration::from_secs(30);
/// Longest pause between attempts that succeed although no call is answered.
const LONGEST_REST: Duration = Duration::from_secs(1);
/// Clients that lose their connections at the same moment reconnect spread over this time, or over
/// a quarter of the deadline if that is shorter.
const LONGEST_SPREAD: Duration = Duration::from_millis(50);
/// Time limit of the first attempt, unless the deadline is longer.
const FIRST_LIMIT: Duration = Duration::from_secs(2);
/// Longest time limit, unless the deadline is longer. If packets are dropped, an attempt may hang
/// this long beyond the end of an outage.
const LONGEST_LIMIT: Duration = Duration::from_secs(8);

/// Back-off of one runtime's connections to one server.
///
/// It ends when a call is answered, not when a connection is opened: a server may accept
/// connections, answer the probe, and close each connection at its first call.
#[derive(Debug)]
pub(super) struct Backoff {
    pause: Duration,
    last: Option<Instant>,
    /// The last attempt succeeded.
    has_opened: bool,
    deadline: Duration,
    limit: Duration,
}

/// Cause of missing connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// One was closed, maybe after an hour without calls.
    Ended,
    /// Calls were not answered. Further calls would not be either, even over a new connection.
    Silent,
}

impl Backoff {
    pub(super) fn new(deadline: Duration) -> Self {
        Self { pause: FIRST_PAUSE, last: None, has_opened: false, deadline, limit: first_limit(deadline) }
    }

    /// Time limit of the next attempt, for all its steps.
    pub(super) fn limit(&self) -> TimeLimit {
        TimeLimit::new(self.limit)
    }

    /// Pause before the next attempt. Since the last one: `served` if a call was answered, `loss` if
    /// connections were lost.
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
            // Other clients may have lost theirs at the same moment, but callers wait for this one.
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

    /// An attempt failed. `others`: other connections are open.
    ///
    /// If it timed out, the limit of the next one is doubled. A server whose clients all reconnect
    /// at once needs that for their TLS handshakes; an aborted one costs it as much as the others.
    pub(super) fn failed(&mut self, limit: TimeLimit, others: bool) {
        if limit.left().is_zero() {
            self.limit = longer(self.limit, LONGEST_LIMIT.max(self.deadline));
        }
        (self.has_opened, self.last) = (false, Some(Instant::now()));
        self.pause = longer(self.pause, if others { LONGEST_PAUSE_FOR_MORE } else { LONGEST_PAUSE });
    }

    /// The other connections were lost: shortens the pause.
    pub(super) fn alone(&mut self) {
        self.pause = self.pause.min(LONGEST_PAUSE);
    }
}

/// Time limit of a first attempt.
pub(super) fn first_limit(deadline: Duration) -> Duration {
    FIRST_LIMIT.max(deadline)
}

fn longer(time: Duration, longest: Duration) -> Duration {
    time.saturating_mul(2).min(longest)
}

/// Time limit of an attempt, shared by all its steps.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeLimit {
    began: Instant,
    whole: Duration,
}

impl TimeLimit {
    /// A limit that begins now.
    pub(super) fn new(whole: Duration) -> Self {
        Self { began: Instant::now(), whole }
    }

    /// Full length.
    pub(super) fn whole(self) -> Duration {
        self.whole
    }

    /// Time left.
    pub(super) fn left(self) -> Duration {
        self.whole.saturating_sub(self.began.elapsed())
    }

    /// Awaits a step for the time left.
    pub(super) async fn within<F: Future>(self, step: F) -> Result<F::Output, Elapsed> {
        timeout(self.left(), step).await
    }
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use tokio::time::advance;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const TENTH: Duration = Duration::from_millis(100);

    /// Pauses before `count` attempts in a row.
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
    async fn added_connections_do_not_lengthen_the_pause() {
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

    /// Lets an attempt time out. Returns its limit in seconds.
    async fn runs_out(backoff: &mut Backoff) -> u64 {
        let limit = backoff.limit();
        assert!(limit.within(std::future::pending::<()>()).await.is_err());
        backoff.failed(limit, false);
        limit.whole().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn a_timeout_doubles_the_limit_of_the_next_attempt() {
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
        assert!(limit.within(advance(4 * SECOND)).await.is_ok(), "it was done when it was polled");
        assert_eq!(limit.left(), Duration::ZERO);
    }
}
