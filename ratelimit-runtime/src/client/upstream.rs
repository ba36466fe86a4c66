//! An upstream: its announced limit, kept in counters that all processes share.
//!
//! Nobody configures the limit. A *window* is opened by the response to one call, the probe: it
//! says how many calls remain, and for how long. Five counters of the store keep that:
//!
//! | counter | meaning |
//! |---|---|
//! | `CREDITS` | what remains: the largest count, less what was charged. Each call takes one |
//! | `LIMIT` | the announced limit in the same form. It only falls |
//! | `KNOWN` | a timer: the window is open until it ends |
//! | `PAUSE` | a timer: no probe until it ends |
//! | `PROBE` | a single permit: one call at a time asks for a new window |
//!
//! A timer is a bucket in debt that refills by one token a millisecond. "At most r remain" and "at
//! least t ms are left" are both a partial grant under another limit: it takes what is above, and
//! nothing if less is left. So it can be repeated, and processes need not agree on an order.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::{self, Notify};

use super::announcement::Announcement;
use crate::{
    Algorithm, Cause, Key, Limiter, OnStoreError, Permit, Refill, RequestPerMinute, Rule,
    engine::{
        acquire::Acquire,
        request::{AcquireOptions, ChargeRequest, CostKind, OnLimit, RequestKey},
    },
};

/// The count of the counters. A fresh one has more than any window: so a lost counter shows.
const COUNT: u64 = 1 << 32;
/// The most calls of one window.
const MOST: u64 = COUNT / 2;
/// Longer than any window is open.
const LIFETIME: Duration = Duration::from_secs(2 * 86_400);
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(86_400);

const CREDITS: Rule = Rule::new("client-credits", COUNT, LIFETIME).with_denial_cache(false);
const LIMIT: Rule = Rule::new("client-limit", COUNT, LIFETIME).with_denial_cache(false);
const KNOWN: Rule = timer("client-known", 1);
const PAUSE: Rule = timer("client-pause", 1);
/// A probe without an answer does not keep others from asking for longer than this.
const PROBE: Rule = Rule::new("client-probe", 1, Duration::from_secs(10)).with_denial_cache(false);

/// The wait after a refusal that says nothing, and the length of a window without an end.
const UNSAID: Duration = Duration::from_secs(1);
/// The time for which calls are not limited, after a response that announces nothing.
const UNANNOUNCED: Duration = Duration::from_secs(10);
/// A waiting process looks again after this time, as another one may have learnt of a new window.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// The same while another process probes.
const POLL: Duration = Duration::from_millis(10);

const fn timer(prefix: &'static str, longest_ms: u64) -> Rule {
    bucket(prefix, 1_000, Duration::from_secs(1), longest_ms).with_denial_cache(false)
}

pub(super) const fn bucket(prefix: &'static str, count: u64, period: Duration, burst: u64) -> Rule {
    Rule::new(prefix, count, period).with_algorithm(Algorithm::TokenBucket { burst, refill: Refill::Greedy })
}

/// One upstream, as this process sees it.
#[derive(Debug)]
pub(super) struct UpstreamState {
    limiter: Limiter,
    key: Key,
    longest_pause: Duration,
    local: Mutex<LocalView>,
    /// Held by the task that looks for an open window. The others of the process wait for it.
    turn: sync::Mutex<()>,
    probed: Notify,
}

/// What the process knows without asking the store.
#[derive(Debug, Default)]
struct LocalView {
    window: Option<SeenWindow>,
    /// Nothing remains of the open window.
    is_used_up: bool,
    /// The end of the latest pause that this process was told. It holds whatever the store says.
    paused_until: Duration,
}

/// An open window, as this process has seen it.
#[derive(Clone, Copy, Debug)]
struct SeenWindow {
    ends: Duration,
    /// The least that was seen to remain. More than that shows that the counter was lost or opened
    /// anew.
    left: u64,
    limit: u64,
}

/// A call that may be sent. Dropping that of a probe lets another call probe.
#[derive(Debug)]
pub(super) struct Admission {
    pub(super) state: Arc<UpstreamState>,
    /// The end of the window that the call belongs to.
    window: Duration,
    probe: Option<Permit>,
}

impl Drop for Admission {
    fn drop(&mut self) {
        if let Some(permit) = self.probe.take() {
            permit.refund_in_background();
            self.state.probed.notify_waiters();
        }
    }
}

impl UpstreamState {
    pub(super) fn new(limiter: Limiter, key: Key, longest_pause: Duration) -> Self {
        let (local, turn, probed) = Default::default();
        Self { limiter, key, longest_pause, local, turn, probed }
    }

    /// Waits until a call may be sent.
    ///
    /// # Cancellation
    ///
    /// A future that is dropped may have taken a credit, which is not returned.
    pub(super) async fn admit(self: &Arc<Self>) -> Result<Admission, RequestPerMinute> {
        if self.limiter.engine().store().is_none() {
            return Ok(Admission { state: Arc::clone(self), window: Duration::ZERO, probe: None });
        }
        loop {
            self.wait_for_pause().await;
            if let Some(window) = self.window() {
                match self.take(&CREDITS, 1).await {
                    Ok(permit) if permit.remaining() < window.left => {
                        self.change(window.ends, |seen| seen.left = seen.left.min(permit.remaining()));
                        return Ok(Admission { state: Arc::clone(self), window: window.ends, probe: None });
                    }
                    Ok(_) => self.close(window.ends, false),
                    Err(refused) if refused.cause() == Cause::Exceeded => self.close(window.ends, true),
                    Err(refused) => return Err(refused),
                }
            }
            let _turn = self.turn.lock().await;
            if self.window().is_none()
                && let Some(probe) = self.find_window().await?
            {
                return Ok(probe);
            }
        }
    }

    /// Waits until a window is open, or until this call may probe.
    async fn find_window(self: &Arc<Self>) -> Result<Option<Admission>, RequestPerMinute> {
        loop {
            self.wait_for_pause().await;
            let asked = self.now();
            let known = self.left_of(&KNOWN).await?;
            if !known.is_zero() {
                // Its probe had an answer, and then another call was refused.
                let pause = self.left_of(&PAUSE).await?;
                if !pause.is_zero() {
                    self.sleep(pause.min(LOOK_AGAIN)).await;
                    continue;
                }
                if !mem::take(&mut self.local().is_used_up) {
                    self.open_local(asked.saturating_add(known), MOST, MOST);
                    return Ok(None);
                }
                self.sleep(known.min(LOOK_AGAIN)).await;
                continue;
            }
            self.local().is_used_up = false;
            match self.take_probe().await {
                Ok(permit) => {
                    let probe = Admission { state: Arc::clone(self), window: Duration::ZERO, probe: Some(permit) };
                    // An earlier probe may have ended in between.
                    if self.left_of(&KNOWN).await?.is_zero() && self.pause_left().is_zero() {
                        return Ok(Some(probe));
                    }
                }
                Err(refused) if refused.cause() == Cause::Exceeded => {
                    let wait = refused.retry_after().unwrap_or(POLL);
                    if refused.rule() == PROBE.prefix() {
                        tokio::select! {
                            () = self.sleep(wait.min(POLL)) => {}
                            () = self.probed.notified() => {}
                        }
                    } else {
                        self.sleep(wait.min(LOOK_AGAIN)).await;
                    }
                }
                Err(refused) => return Err(refused),
            }
        }
    }

    /// Takes in the response to a call.
    ///
    /// # Cancellation
    ///
    /// A future that is dropped has told other processes a part of it.
    pub(super) async fn learn(&self, admission: &Admission, said: &Announcement) -> Result<(), RequestPerMinute> {
        if self.limiter.engine().store().is_none() {
            return Ok(());
        }
        if said.is_refusal {
            return self.pause(said).await;
        }
        if admission.probe.is_some() && self.left_of(&KNOWN).await?.is_zero() {
            return if said.is_announced() || !said.is_failure { self.open(said).await } else { Ok(()) };
        }
        self.follow(admission.window, said).await
    }

    /// Stops the calls of this process for the announced time, whether the store answers or not.
    pub(super) fn pause_here(&self, said: &Announcement) {
        let ends = self.now().saturating_add(self.pause_of(said));
        let mut local = self.local();
        local.window = None;
        local.paused_until = local.paused_until.max(ends);
    }

    fn pause_of(&self, said: &Announcement) -> Duration {
        let reset = said.reset.filter(|_| said.remaining == Some(0));
        said.retry_after.or(reset).unwrap_or(UNSAID).min(self.longest_pause)
    }

    /// Stops all processes for the announced time. Then one call probes.
    async fn pause(&self, said: &Announcement) -> Result<(), RequestPerMinute> {
        self.pause_here(said);
        self.pause_all(self.pause_of(said)).await
    }

    /// Tells other processes the rest of this process' pause, until the store has answered.
    pub(super) async fn pause_later(&self) {
        let mut wait = POLL;
        loop {
            self.sleep(wait).await;
            let left = self.pause_left();
            if left.is_zero() || self.pause_all(left).await.is_ok() {
                return;
            }
            wait = (2 * wait).min(LOOK_AGAIN);
        }
    }

    /// First the timer: whoever opens a window looks at it last. Then the credits, as most calls look
    /// at nothing else.
    async fn pause_all(&self, pause: Duration) -> Result<(), RequestPerMinute> {
        self.set_timer(PAUSE.prefix(), pause).await?;
        self.close_all().await
    }

    /// Closes the window of all processes.
    async fn close_all(&self) -> Result<(), RequestPerMinute> {
        match self.charge(&CREDITS, COUNT).await {
            // More than one refusal may be too much for the counter.
            Err(refused) if refused.cause() != Cause::Exceeded => return Err(refused),
            _ => {}
        }
        self.limiter.reset(&KNOWN, self.key.clone()).await
    }

    /// Opens a window. Only a probe does, and no call takes credits until it has ended.
    async fn open(&self, said: &Announcement) -> Result<(), RequestPerMinute> {
        if self.is_paused().await? {
            return Ok(());
        }
        let (left, length) = match said.remaining {
            Some(remaining) => (remaining.min(MOST), said.reset.filter(|reset| !reset.is_zero()).unwrap_or(UNSAID)),
            None => (MOST, UNANNOUNCED),
        };
        // Without a limit, a later one says nothing of what remains.
        let limit = said.limit.unwrap_or(if said.is_announced() { 0 } else { MOST }).min(MOST);
        self.limiter.reset(&CREDITS, self.key.clone()).await?;
        self.limiter.reset(&LIMIT, self.key.clone()).await?;
        self.lower(&CREDITS, left).await?;
        self.lower(&LIMIT, limit).await?;
        let (length, now) = (length.min(self.longest_pause), self.now());
        self.set_timer(KNOWN.prefix(), length).await?;
        if self.is_paused().await? {
            return self.close_all().await; // another call was refused in the meantime
        }
        self.open_local(now.saturating_add(length), left, limit);
        Ok(())
    }

    /// Lowers what remains to what a response in an open window says. It never rises: a response
    /// may be old, and a higher limit applies from the next window on.
    async fn follow(&self, ends: Duration, said: &Announcement) -> Result<(), RequestPerMinute> {
        let Some(window) = self.window().filter(|window| window.ends == ends) else { return Ok(()) };
        if let Some(limit) = said.limit.filter(|limit| *limit < window.limit) {
            self.change(ends, |seen| seen.limit = seen.limit.min(limit));
            // One process is granted the difference, and takes it from the credits: so the calls in
            // flight, which have taken theirs, count.
            let difference = self.lower(&LIMIT, limit).await?;
            if difference > 0 {
                self.charge(&CREDITS, difference).await?;
            }
        }
        if let Some(remaining) = said.remaining.filter(|remaining| *remaining < window.left) {
            self.lower(&CREDITS, remaining).await?;
            self.change(ends, |seen| seen.left = seen.left.min(remaining + 1));
        }
        Ok(())
    }

    /// Takes one permit of a budget. `false` if it is used up, or if the store does not answer.
    pub(super) async fn spend(&self, budget: &Rule) -> bool {
        self.take(budget, 1).await.is_ok()
    }

    /// Lowers what remains of a counter to a number. Returns by how much.
    async fn lower(&self, rule: &Rule, left: u64) -> Result<u64, RequestPerMinute> {
        self.take_up_to(&rule.with_count(COUNT - left.min(MOST))).await
    }

    /// Makes a timer last for a time from now at least.
    async fn set_timer(&self, prefix: &'static str, time: Duration) -> Result<(), RequestPerMinute> {
        let ms = u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
        // One more: a store may count whole milliseconds.
        self.take_up_to(&timer(prefix, ms.saturating_add(1))).await.map(drop)
    }

    /// Takes all that remains under this rule.
    async fn take_up_to(&self, rule: &Rule) -> Result<u64, RequestPerMinute> {
        if rule.limit() == 0 {
            return Ok(0);
        }
        match self.limiter.acquire_up_to_with(rule, self.key.clone(), rule.limit(), self.options()).await {
            Ok((granted, _)) => Ok(granted),
            Err(refused) if refused.cause() == Cause::Exceeded => Ok(0),
            Err(refused) => Err(refused),
        }
    }

    /// What is left of a timer.
    async fn left_of(&self, timer: &Rule) -> Result<Duration, RequestPerMinute> {
        Ok(self.take(timer, 0).await?.reset_after())
    }

    async fn is_paused(&self) -> Result<bool, RequestPerMinute> {
        Ok(!self.pause_left().is_zero() || !self.left_of(&PAUSE).await?.is_zero())
    }

    /// What is left of the pause that this process was told.
    pub(super) fn pause_left(&self) -> Duration {
        let paused_until = self.local().paused_until;
        paused_until.saturating_sub(self.now())
    }

    async fn wait_for_pause(&self) {
        loop {
            let left = self.pause_left();
            if left.is_zero() {
                return;
            }
            self.sleep(left).await;
        }
    }

    async fn take_probe(&self) -> Result<Permit, RequestPerMinute> {
        let requests = [PAUSE, PROBE].map(|rule| self.request(rule, 1, CostKind::Fixed));
        Acquire::all(self.limiter.engine_ref(), requests, self.options(), OnLimit::Reject).await
    }

    async fn take(&self, rule: &Rule, cost: u64) -> Result<Permit, RequestPerMinute> {
        let key = RequestKey::Some(self.key.clone());
        Acquire::single(self.limiter.engine_ref(), rule, key, cost, self.options()).await
    }

    async fn charge(&self, rule: &Rule, cost: u64) -> Result<(), RequestPerMinute> {
        let requests = [self.request(*rule, cost, CostKind::Forced)];
        Acquire::all(self.limiter.engine_ref(), requests, self.options(), OnLimit::Reject).await.map(drop)
    }

    fn request(&self, rule: Rule, cost: u64, cost_kind: CostKind) -> ChargeRequest {
        ChargeRequest { rule, key: RequestKey::Some(self.key.clone()), cost, cost_kind }
    }

    /// A share of these counters would mean nothing, so they never fall back to local ones.
    fn options(&self) -> AcquireOptions {
        let policy = match self.limiter.engine().settings().on_store_error {
            wait @ OnStoreError::Wait { .. } => wait,
            _ => OnStoreError::Deny,
        };
        AcquireOptions::new(OnLimit::Reject, Some(policy))
    }

    pub(super) async fn sleep(&self, time: Duration) {
        let clock = &self.limiter.engine().settings().clock;
        clock.sleep_until(clock.now().saturating_add(time)).await;
    }

    fn local(&self) -> MutexGuard<'_, LocalView> {
        self.local.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The open window, as far as this process knows.
    fn window(&self) -> Option<SeenWindow> {
        let now = self.now();
        self.local().window.filter(|window| now < window.ends)
    }

    fn now(&self) -> Duration {
        self.limiter.engine().settings().clock.now()
    }

    /// `ends` is counted from before the store was asked, so that it is no later than there.
    fn open_local(&self, ends: Duration, left: u64, limit: u64) {
        // One more than remains: the next permit shows less.
        let window = Some(SeenWindow { ends, left: left.saturating_add(1), limit });
        let mut local = self.local();
        if local.paused_until <= self.now() {
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
