//! The pauses that an upstream asks for.

use std::{mem, process, time::Duration};

use super::{
    announcement::Announcement,
    counters::PAUSE,
    upstream::{FIRST_POLL, LOOK_AGAIN, UpstreamState},
    window::UNSAID,
};
use crate::RequestPerMinute;

/// Clears `telling_in` when the task that tells other processes of a pause ends early.
struct ClearTellingOnDrop<'a>(&'a UpstreamState);

impl Drop for ClearTellingOnDrop<'_> {
    fn drop(&mut self) {
        self.0.local().telling_in = None;
    }
}

impl UpstreamState {
    /// Stops the calls of this process for the announced time, whether the store answers or not.
    pub(super) fn pause_here(&self, said: &Announcement) {
        let ends = self.now().saturating_add(self.pause_of(said));
        let mut local = self.local();
        local.window = None;
        local.pauses += 1;
        local.paused_until = local.paused_until.max(ends);
    }

    pub(super) fn pause_of(&self, said: &Announcement) -> Duration {
        let reset = said.length().filter(|_| said.remaining == Some(0));
        said.retry_after.or(reset).unwrap_or(UNSAID).min(self.longest_pause)
    }

    /// Stops all processes for the announced time. Then one call probes.
    pub(super) async fn pause(&self, said: &Announcement) -> Result<(), RequestPerMinute> {
        self.pause_here(said);
        self.pause_all(self.pause_of(said)).await
    }

    /// Tells other processes the rest of this process' pause, until the store has answered. One task does that for
    /// all refused calls.
    pub(super) async fn pause_later(&self) {
        let here = Some(process::id());
        if mem::replace(&mut self.local().telling_in, here) == here {
            return;
        }
        let (telling, mut wait) = (ClearTellingOnDrop(self), FIRST_POLL);
        loop {
            self.sleep(wait).await;
            let paused_until = self.local().paused_until;
            let left = paused_until.saturating_sub(self.now());
            if left.is_zero() || self.pause_all(left).await.is_ok() {
                let mut local = self.local();
                if local.paused_until == paused_until {
                    local.telling_in = None; // under the lock: a later refusal begins a new task
                    drop(local);
                    return mem::forget(telling);
                }
            }
            wait = (2 * wait).min(LOOK_AGAIN);
        }
    }

    /// Takes the credits in the first round trip, as most calls look at nothing else. Then, when the
    /// timer is set, once more: whoever opens a window looks at the timer last.
    async fn pause_all(&self, pause: Duration) -> Result<(), RequestPerMinute> {
        let timer = self.counters.set_timer(PAUSE.prefix(), pause);
        let (timer, credits) = tokio::join!(timer, self.counters.take_all_credits());
        timer.and(credits)?;
        self.close_all().await
    }

    pub(super) async fn is_paused(&self) -> Result<bool, RequestPerMinute> {
        // The probe itself has charged the timer with a millisecond.
        let least = Duration::from_millis(1);
        Ok(!self.pause_left().is_zero() || self.counters.left_of(&PAUSE).await? > least)
    }

    /// The time left of the latest pause that was asked of this process.
    pub(super) fn pause_left(&self) -> Duration {
        let paused_until = self.local().paused_until;
        paused_until.saturating_sub(self.now())
    }

    pub(super) async fn wait_for_pause(&self, until: Option<Duration>) -> Result<(), RequestPerMinute> {
        loop {
            let left = self.pause_left();
            if left.is_zero() {
                return Ok(());
            }
            self.wait(left, left, until).await?;
        }
    }
}
