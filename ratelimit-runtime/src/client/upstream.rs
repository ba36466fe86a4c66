//! An upstream: its announced limit, kept in counters that all processes share.
//!
//! The limit is not configured. A *window* is opened by the response to one call, the probe: it
//! says how many calls remain, and for how long. See `counters.rs` for what the store keeps.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::{self, Notify};

use super::{
    announcement::Announcement,
    counters::{ANNOUNCED, CREDITS, Counters, Credits, FLIGHT, KNOWN, LIMIT, LONGEST_WINDOW, MOST, PAUSE, PROBE},
    window::{SeenWindow, UNSAID, Window},
};
use crate::{
    Cause, Limiter, Permit, RequestPerMinute, Rule, background::FinishOnDrop, decision::round_up_ms,
    duration::with_jitter,
};

pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(86_400);
/// The time after a window for which a response without fields is not taken for the upstream's.
const REMEMBERED: Duration = Duration::from_secs(60);
/// A waiting process looks again after this time, as another one may have learnt of a new window.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// The pause while another call probes, and before other processes learn of a pause. It doubles each time.
pub(super) const FIRST_POLL: Duration = Duration::from_millis(10);
const LONGEST_POLL: Duration = Duration::from_millis(250);

/// One upstream, as this process sees it.
#[derive(Debug)]
pub(super) struct UpstreamState {
    pub(super) counters: Counters,
    /// Waits end when it is closed. The counters may be of another one.
    limiter: Limiter,
    pub(super) longest_pause: Duration,
    local: Mutex<LocalView>,
    /// Held by the task that looks for an open window. The others of the process wait for it.
    turn: sync::Mutex<()>,
    probed: Notify,
}

/// The knowledge of the process, without asking the store.
#[derive(Debug, Default)]
pub(super) struct LocalView {
    pub(super) window: Option<SeenWindow>,
    /// Nothing remains of the open window.
    is_used_up: bool,
    /// The number of pauses that the upstream asked of this process. A call that was admitted before may not be sent.
    pub(super) pauses: u64,
    /// The end of the latest pause that was asked of this process. It holds whatever the store says.
    pub(super) paused_until: Duration,
    /// The number of calls that were not counted in the store.
    uncounted: u64,
    /// The value of `uncounted` when the store's window was last closed for them.
    closed_for: u64,
    /// The time of the latest uncounted call.
    doubted_at: Duration,
    /// A task of this process tells others of the pause. A fork copies this, but has no such task.
    pub(super) telling_in: Option<u32>,
}

/// A call that may be sent. Dropping that of a probe lets another call probe.
#[derive(Debug)]
pub(super) struct Admission {
    pub(super) state: Arc<UpstreamState>,
    /// The end of the window that the call belongs to.
    window_ends: Duration,
    /// The pauses before the call asked for its credit.
    pauses: u64,
    /// Set before the call is sent. A call that leaves unsent is not in flight any more, and its credit is lost.
    /// One that leaves later counts as in flight for some time: the upstream may not have counted it yet.
    pub(super) is_sent: bool,
    /// Ends the flight.
    flight: Option<Permit>,
    probe: Option<Permit>,
    /// For a probe: the other calls that were in flight.
    in_flight: u64,
}

impl Admission {
    /// False if the upstream was paused, or the window has ended, since the call was admitted. A window
    /// of which nothing remains has not ended.
    pub(super) fn is_current(&self) -> bool {
        let state = &self.state;
        match &self.probe {
            None if self.flight.is_none() => true, // not counted
            None => self.pauses == state.local().pauses && state.now() < self.window_ends,
            Some(_) => state.pause_left().is_zero(),
        }
    }

    /// Whether the store knows of a pause, of another process for example, or of a window that another probe has
    /// opened. A probe that waits for longer than [`PROBE`] is not the only one.
    pub(super) async fn is_outdated(&self) -> bool {
        if self.flight.is_none() {
            return false;
        }
        let state = &self.state;
        let is_window_open =
            async { self.probe.is_some() && state.counters.left_of(&KNOWN).await.is_ok_and(|left| !left.is_zero()) };
        let (is_paused, is_window_open) = tokio::join!(state.is_paused(), is_window_open);
        is_paused.unwrap_or(false) || is_window_open
    }

    /// For a call that was answered, or not sent.
    pub(super) fn end_flight(&mut self) {
        if let Some(flight) = self.flight.take() {
            flight.refund_in_background();
        }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        if !self.is_sent {
            self.end_flight();
        }
        if let Some(permit) = self.probe.take() {
            permit.refund_in_background();
            self.state.probed.notify_waiters();
        }
    }
}

impl UpstreamState {
    pub(super) fn new(counters: Counters, limiter: Limiter, longest_pause: Duration) -> Self {
        let (local, turn, probed) = Default::default();
        Self { counters, limiter, longest_pause, local, turn, probed }
    }

    /// Waits until a call may be sent, but no longer than `until`.
    ///
    /// # Cancellation
    ///
    /// A future that is dropped may have taken a credit, which is not returned.
    pub(super) async fn admit(self: &Arc<Self>, until: Option<Duration>) -> Result<Admission, RequestPerMinute> {
        if !self.are_counted() {
            return Ok(self.admission(Duration::ZERO, 0, None, None));
        }
        let counters = self.counters.until(until);
        loop {
            self.wait_for_pause(until).await?;
            let pauses = self.local().pauses;
            if let Some(window) = self.window() {
                match counters.take_credit().await {
                    Ok((credits, flight)) => {
                        let mut admission = self.admission(window.ends, pauses, Some(flight), None);
                        let is_replaced = window.is_replaced(credits);
                        let is_admitted = if credits.left >= MOST {
                            // The store has lost the counter. A probe is as good as a new one.
                            counters.reset(&KNOWN).await?;
                            false
                        } else if is_replaced {
                            self.close(window.ends, false);
                            self.join_window(&counters, credits, &mut admission).await?
                        } else {
                            credits.left < window.left
                        };
                        if is_admitted && admission.is_current() {
                            if !is_replaced {
                                self.change(window.ends, |seen| seen.left = seen.left.min(credits.left));
                            }
                            return Ok(admission);
                        }
                        drop(admission);
                        self.close(window.ends, false);
                    }
                    Err(refused) if refused.cause() == Cause::Exceeded => self.close(window.ends, true),
                    Err(refused) => return Err(refused),
                }
            }
            let _turn = self.bounded(self.turn.lock(), until).await?;
            if self.window().is_none()
                && let Some(probe) = self.find_window(&counters, until).await?
            {
                return Ok(probe);
            }
        }
    }

    fn admission(
        self: &Arc<Self>,
        window_ends: Duration,
        pauses: u64,
        flight: Option<Permit>,
        probe: Option<Permit>,
    ) -> Admission {
        Admission { state: Arc::clone(self), window_ends, pauses, is_sent: false, flight, probe, in_flight: 0 }
    }

    /// For a call whose credit is of a window that another process has opened. `false` if that has ended, too.
    async fn join_window(
        &self,
        counters: &Counters,
        credits: Credits,
        admission: &mut Admission,
    ) -> Result<bool, RequestPerMinute> {
        let asked = self.now();
        let known = counters.left_of(&KNOWN).await?;
        let seen_at = self.now();
        if known.is_zero() || !counters.left_of(&PAUSE).await?.is_zero() {
            return Ok(false);
        }
        if self.now().saturating_sub(asked) > FLIGHT / 2 {
            return Ok(false); // the call may not count as in flight any more, and the window may be a later one
        }
        admission.window_ends = if let Some(window) = self.window().filter(|window| !window.is_replaced(credits)) {
            window.ends // another call of this process has joined it
        } else {
            let ends = asked.saturating_add(known);
            self.open_local(ends, seen_at, MOST, MOST, None);
            ends
        };
        Ok(true)
    }

    /// Waits until a window is open, or until this call may probe.
    async fn find_window(
        self: &Arc<Self>,
        counters: &Counters,
        until: Option<Duration>,
    ) -> Result<Option<Admission>, RequestPerMinute> {
        let uncounted = self.local().uncounted;
        if uncounted != self.local().closed_for {
            let state = Arc::clone(self);
            FinishOnDrop::new(async move { state.close_all().await }).await?;
            self.local().closed_for = uncounted;
        }
        let mut poll = FIRST_POLL;
        loop {
            self.wait_for_pause(until).await?;
            let asked = self.now();
            let known = counters.left_of(&KNOWN).await?;
            let seen_at = self.now();
            if !known.is_zero() {
                // Its probe had an answer, and then another call was refused.
                let pause = counters.left_of(&PAUSE).await?;
                if !pause.is_zero() {
                    self.wait(pause, LOOK_AGAIN, until).await?;
                    continue;
                }
                if self.window().is_some() {
                    return Ok(None); // a call whose window was replaced has joined it
                }
                if !mem::take(&mut self.local().is_used_up) {
                    self.open_local(asked.saturating_add(known), seen_at, MOST, MOST, None);
                    return Ok(None);
                }
                self.wait(known, LOOK_AGAIN, until).await?;
                continue;
            }
            self.local().is_used_up = false;
            match counters.take_probe().await {
                Ok((flight, probe)) => {
                    let mut probe = self.admission(Duration::ZERO, 0, Some(flight), Some(probe));
                    // An earlier probe may have ended in between.
                    if counters.left_of(&KNOWN).await?.is_zero() {
                        probe.in_flight = self.drain_and_count_flights(counters).await?;
                        if probe.is_current() {
                            return Ok(Some(probe));
                        }
                    }
                }
                Err(refused) if refused.cause() == Cause::Exceeded => {
                    let wait = refused.retry_after().unwrap_or(FIRST_POLL);
                    if refused.rule() == PROBE.prefix() {
                        let pause = self.sleep(wait.min(with_jitter(poll)));
                        let either = async {
                            tokio::select! { () = pause => {}, () = self.probed.notified() => {} }
                        };
                        self.bounded(either, until).await?;
                        poll = (2 * poll).min(LONGEST_POLL);
                    } else {
                        self.wait(wait, LOOK_AGAIN, until).await?;
                    }
                }
                Err(refused) => return Err(refused),
            }
        }
    }

    /// Takes all credits, so that no call uses an old one, and returns the calls in flight besides this probe. The
    /// upstream may count those after the probe, also those that are answered before it.
    async fn drain_and_count_flights(&self, counters: &Counters) -> Result<u64, RequestPerMinute> {
        let drain = || FinishOnDrop::new(Self::drain(self.counters.clone()));
        let drained = drain().await;
        if drained.is_err() {
            // It may be done in part, so once more. With the policy `Wait`, this request waits for the store.
            counters.left_of(&KNOWN).await?;
            return drain().await;
        }
        drained
    }

    /// See [`Self::drain_and_count_flights`]. It may not be cancelled: a window without credits would stay open.
    async fn drain(counters: Counters) -> Result<u64, RequestPerMinute> {
        counters.take_all_credits().await?;
        let (in_flight, known) = tokio::join!(counters.in_flight(), counters.left_of(&KNOWN));
        if !known?.is_zero() {
            // A probe of earlier has opened a window meanwhile, and nothing is left of it.
            counters.reset(&KNOWN).await?;
        }
        Ok(in_flight?.saturating_sub(1))
    }

    /// Takes in the response to a call.
    ///
    /// # Cancellation
    ///
    /// A future that is dropped has told other processes a part of it.
    pub(super) async fn learn(&self, admission: &mut Admission, said: &Announcement) -> Result<(), RequestPerMinute> {
        if !self.are_counted() {
            return Ok(());
        }
        if said.is_refusal {
            admission.end_flight();
            return self.pause(said).await;
        }
        let Some(probe) = admission.flight.take_if(|_| admission.probe.is_some()) else {
            admission.end_flight();
            return self.follow(admission.window_ends, said).await;
        };
        // The response counts the probe itself. Without a refund, it counts twice.
        let _ = probe.refund().await;
        if !self.counters.left_of(&KNOWN).await?.is_zero() {
            return Ok(()); // another probe was faster
        }
        let is_of_upstream =
            said.is_announced() || !said.is_failure && self.counters.left_of(&ANNOUNCED).await?.is_zero();
        if is_of_upstream { self.open(said, admission.in_flight).await } else { Ok(()) }
    }

    /// A call is not counted here, as the store is away: so what it knows is not used any more. Returns
    /// whether it is the first call of the outage.
    pub(super) fn doubt(&self) -> bool {
        let now = self.now();
        let mut local = self.local();
        (local.window, local.doubted_at) = (None, now);
        local.uncounted += 1;
        local.uncounted == local.closed_for + 1
    }

    /// Whether this process knows of a pause or of calls that the store may not know of.
    pub(super) fn knows_more(&self) -> bool {
        let now = self.now();
        let local = self.local();
        // No window of the store lasts for longer.
        let is_in_doubt = local.uncounted != local.closed_for && now < local.doubted_at.saturating_add(LONGEST_WINDOW);
        now < local.paused_until || is_in_doubt
    }

    /// Whether calls are counted at all.
    pub(super) fn are_counted(&self) -> bool {
        self.counters.are_counted()
    }

    /// Closes the window of all processes. It may not be cancelled, as [`Self::drain`].
    pub(super) async fn close_all(&self) -> Result<(), RequestPerMinute> {
        self.counters.take_all_credits().await?;
        self.counters.reset(&KNOWN).await
    }

    /// Opens a window. Only a probe does, and no call takes credits until it has ended. `in_flight`:
    /// when the probe was sent.
    async fn open(&self, said: &Announcement, in_flight: u64) -> Result<(), RequestPerMinute> {
        if self.is_paused().await? {
            return Ok(());
        }
        let Window { calls: announced, mut length, is_part } = said.window(self.longest_pause.min(LONGEST_WINDOW));
        // Without a limit, a later one says nothing of what remains.
        let limit = said.limit.unwrap_or(if said.is_announced() { 0 } else { MOST }).min(MOST);
        self.counters.reset(&CREDITS).await?;
        self.counters.reset(&LIMIT).await?;
        // Another probe may have been sent later.
        let in_flight = in_flight.max(self.counters.in_flight().await?);
        // They may count in the old window or in the new one.
        let mut left = announced.saturating_sub(in_flight);
        // They may also have failed, so the upstream is asked again when they are forgotten. One call is kept back as
        // that probe. The upstream does not say what remains of a policy, so it is not asked.
        if in_flight > 0 && announced > 0 && length > FLIGHT && !is_part {
            length = FLIGHT;
            left = left.saturating_sub(1);
        }
        self.counters.lower(&CREDITS, left).await?;
        self.counters.lower(&LIMIT, limit).await?;
        if said.is_announced() {
            self.counters.set_timer(ANNOUNCED.prefix(), length + REMEMBERED).await?;
        }
        let now = self.now();
        let is_set = self.counters.set_timer(KNOWN.prefix(), length).await;
        // In the meantime, another call may have been refused, or another probe may have been sent.
        let (is_paused, are_drained) = tokio::join!(self.is_paused(), self.counters.are_drained());
        if !matches!((&is_set, &is_paused, &are_drained), (Ok(()), Ok(false), Ok(false))) {
            self.close_all().await?;
            return is_set.and(is_paused).and(are_drained).map(drop);
        }
        self.open_local(now.saturating_add(length), now, left, limit, Some(said.larger_limits(limit)));
        Ok(())
    }

    /// Lowers what remains to what a response in an open window says. It never rises: a response
    /// may be old, and a higher limit applies from the next window on.
    async fn follow(&self, ends: Duration, said: &Announcement) -> Result<(), RequestPerMinute> {
        let Some(mut window) = self.window().filter(|window| window.ends == ends) else { return Ok(()) };
        let larger_limits = match window.larger_limits {
            Some(known) => known,
            None if said.limits.is_empty() => 0,
            None => {
                window.limit = self.counters.announced_limit().await?;
                let (limit, larger) = (window.limit, said.larger_limits(window.limit));
                self.change(ends, |seen| (seen.limit, seen.larger_limits) = (seen.limit.min(limit), Some(larger)));
                larger
            }
        };
        // The next response may tell of another policy, or in another field. It also lists the limit of the window.
        let limit = said.limits.iter().rev().nth(larger_limits).copied().or(said.limit);
        let lower_limit = limit.filter(|limit| *limit < window.limit);
        let lower_remaining = said.remaining.filter(|remaining| *remaining < window.left);
        if lower_limit.is_none() && lower_remaining.is_none() {
            return Ok(());
        }
        let credits = self.counters.credits().await?;
        if window.is_replaced(credits) {
            self.close(ends, false);
            return Ok(());
        }
        let mut lowered = Ok(());
        if let Some(limit) = lower_limit {
            self.change(ends, |seen| seen.limit = seen.limit.min(limit));
            lowered = self.lower_limit(limit).await;
        }
        if let Some(remaining) = lower_remaining {
            if remaining < credits.left {
                self.counters.lower(&CREDITS, remaining).await?;
            }
            self.change(ends, |seen| seen.left = seen.left.min(remaining + 1));
        }
        lowered
    }

    /// One process is granted the difference, and takes it from the credits: so the calls in flight,
    /// which have taken theirs, count.
    async fn lower_limit(&self, limit: u64) -> Result<(), RequestPerMinute> {
        let difference = self.counters.lower(&LIMIT, limit).await?;
        // More than any limit: the counter was lost.
        if (1..=MOST).contains(&difference) {
            self.counters.charge(&CREDITS, difference).await?;
        }
        Ok(())
    }

    /// Takes one permit of a budget.
    pub(super) async fn spend(&self, budget: &Rule) -> Result<(), RequestPerMinute> {
        self.counters.take(budget, 1).await.map(drop)
    }

    /// Waits for a time after which a call may be sent, or for a part of it. Fails at once if that is
    /// after `until`.
    pub(super) async fn wait(
        &self,
        time: Duration,
        part: Duration,
        until: Option<Duration>,
    ) -> Result<(), RequestPerMinute> {
        if until.is_some_and(|until| until < self.now().saturating_add(time)) {
            return Err(refusal(time));
        }
        self.bounded(self.sleep(time.min(part)), until).await
    }

    /// Awaits this until `until`, or until the limiter is closed.
    pub(super) async fn bounded<T>(
        &self,
        awaited: impl Future<Output = T>,
        until: Option<Duration>,
    ) -> Result<T, RequestPerMinute> {
        let engine = self.limiter.engine();
        let clock = &engine.settings().clock;
        tokio::select! {
            biased;
            done = awaited => Ok(done),
            () = engine.outage_waiters().closed() => Err(refusal(UNSAID)),
            () = clock.sleep_until(until.unwrap_or_default()), if until.is_some() => Err(refusal(UNSAID)),
        }
    }

    pub(super) async fn sleep(&self, time: Duration) {
        let clock = &self.counters.limiter.engine().settings().clock;
        clock.sleep_until(clock.now().saturating_add(time)).await;
    }

    pub(super) fn local(&self) -> MutexGuard<'_, LocalView> {
        self.local.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The open window, as far as this process knows.
    fn window(&self) -> Option<SeenWindow> {
        let now = self.now();
        self.local().window.filter(|window| now < window.ends)
    }

    pub(super) fn now(&self) -> Duration {
        self.counters.limiter.engine().settings().clock.now()
    }

    /// `ends` is counted from before the store was asked, so that it is no later than there.
    fn open_local(&self, ends: Duration, seen_at: Duration, left: u64, limit: u64, larger_limits: Option<usize>) {
        // One more than remains: the next permit shows less.
        let window = Some(SeenWindow { ends, seen_at, left: left.saturating_add(1), limit, larger_limits });
        let mut local = self.local();
        if local.paused_until <= self.now() && local.uncounted == local.closed_for {
            (local.window, local.is_used_up) = (window, false);
        }
    }

    fn change(&self, ends: Duration, change: impl FnOnce(&mut SeenWindow)) {
        if let Some(window) = self.local().window.as_mut().filter(|window| window.ends == ends) {
            change(window);
        }
    }

    fn close(&self, ends: Duration, is_used_up: bool) {
        let mut local = self.local();
        if local.window.is_some_and(|window| window.ends == ends) {
            (local.window, local.is_used_up) = (None, is_used_up);
        }
    }
}

/// For a call that would have to wait for this time: one call may probe then.
fn refusal(wait: Duration) -> RequestPerMinute {
    let rule = Rule::new("client-wait", 1, Duration::from_secs(wait.as_secs() + 1));
    RequestPerMinute::exceeded(&rule, 1, 0, round_up_ms(wait))
}
