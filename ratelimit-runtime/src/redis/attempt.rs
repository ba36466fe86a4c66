//! Attempts to reach a server: the pause before each, and the time it has.

use std::{
    hash::{BuildHasher as _, RandomState},
    time::Duration,
};

use tokio::time::Instant;

const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// Between two attempts that fail.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// Between two attempts that succeed though no call is answered, or that fail while other connections are open.
const LONGEST_REST: Duration = Duration::from_secs(1);

/// The back-off of one runtime's connections to one server.
///
/// It ends when a call was answered, not when a connection was opened: a server may take connections, answer the
/// probe, and end each connection at its first call.
#[derive(Debug)]
pub(super) struct Backoff {
    pause: Duration,
    last: Option<Instant>,
    /// The last attempt succeeded.
    has_opened: bool,
}

/// How connections came to be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// One has ended. A connection may end after an hour without calls, and is replaced at once then.
    Ended,
    /// Calls had no answer. More of them would wait in vain too, however long the silence took to show.
    Silent,
}

impl Backoff {
    pub(super) fn new() -> Self {
        Self { pause: FIRST_PAUSE, last: None, has_opened: false }
    }

    /// The time until the next attempt. Since the last one, was a call answered (`served`), and what was lost?
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
            _ => Duration::ZERO,
        }
    }

    /// An attempt succeeded.
    pub(super) fn opened(&mut self) {
        (self.has_opened, self.last) = (true, Some(Instant::now()));
    }

    /// An attempt failed. `others`: calls go on over other connections.
    pub(super) fn failed(&mut self, others: bool) {
        (self.has_opened, self.last) = (false, Some(Instant::now()));
        self.pause = longer(self.pause, if others { LONGEST_REST } else { LONGEST_PAUSE });
    }
}

fn longer(pause: Duration, longest: Duration) -> Duration {
    (pause * 2).min(longest)
}

/// Between half of it and all of it, so that the clients of a server that is back do not all arrive at once.
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
        assert_eq!(Backoff::new().next(false, None), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_pause_for_up_to_a_quarter_of_a_second() {
        let fails = |backoff: &mut Backoff| {
            backoff.failed(false);
            backoff.next(true, Some(Loss::Ended))
        };
        assert_eq!(pauses(&mut Backoff::new(), 7, fails).await, [20, 40, 80, 160, 250, 250, 250]);
        let fails_beside_others = |backoff: &mut Backoff| {
            backoff.failed(true);
            backoff.next(true, None)
        };
        assert_eq!(pauses(&mut Backoff::new(), 8, fails_beside_others).await[4..], [320, 640, 1000, 1000]);
    }

    #[tokio::test(start_paused = true)]
    async fn only_an_answered_call_ends_the_back_off() {
        let lost_at_its_first_call = |backoff: &mut Backoff| {
            backoff.opened();
            backoff.next(false, Some(Loss::Ended))
        };
        let mut backoff = Backoff::new();
        assert_eq!(pauses(&mut backoff, 8, lost_at_its_first_call).await, [20, 40, 80, 160, 320, 640, 1000, 1000]);
        backoff.failed(false);
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
        assert_eq!(pauses(&mut Backoff::new(), 5, added).await, [10; 5]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_was_open_for_long_is_replaced_at_once() {
        let mut backoff = Backoff::new();
        for _ in 0..9 {
            backoff.opened();
            advance(2 * SECOND).await;
            assert_eq!(backoff.next(false, Some(Loss::Ended)), Duration::ZERO);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn silence_pauses_unless_a_call_was_answered_before() {
        let mut backoff = Backoff::new();
        backoff.opened();
        advance(2 * SECOND).await;
        assert_eq!(backoff.next(true, Some(Loss::Silent)), Duration::ZERO);
        for _ in 0..9 {
            backoff.opened();
            advance(2 * SECOND).await;
            assert!(backoff.next(false, Some(Loss::Silent)) >= backoff.pause / 2);
        }
        assert_eq!(backoff.pause, LONGEST_REST);
    }
}
