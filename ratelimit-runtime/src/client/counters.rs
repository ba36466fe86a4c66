//! The counters of an upstream, which all processes share.
//!
//! | counter | meaning |
//! |---|---|
//! | `CREDITS` | what remains: the largest count, less what was charged. Each call takes one |
//! | `LIMIT` | the announced limit in the same form. It only falls |
//! | `IN_FLIGHT` | the calls that were sent and have no answer yet |
//! | `KNOWN` | a timer: the window is open until it ends |
//! | `ANNOUNCED` | a timer: until it ends, an answer without fields opens no window |
//! | `PAUSE` | a timer: no probe until it ends |
//! | `PROBE` | a single permit: one call at a time asks for a new window |
//!
//! A timer is a bucket in debt that refills by one token a millisecond. "At most r remain" and "at
//! least t ms are left" are both a partial grant under another limit: it takes what is above, and
//! nothing if less is left. So it can be repeated, and processes need not agree on an order.

use std::time::Duration;

use crate::{
    Algorithm, Cause, Key, Limiter, OnStoreError, Permit, Refill, RequestPerMinute, Rule,
    engine::{
        acquire::Acquire,
        options::{AcquireOptions, OnLimit},
        request::{ChargeRequest, ChargeRequests, CostKind, RequestKey},
    },
};

/// The count of the counters. A fresh one has more than any window: so a lost counter shows.
const COUNT: u64 = 1 << 23;
/// The most calls of one window.
pub(super) const MOST: u64 = COUNT / 2;
/// More than calls and lower limits ever charge to the credits of a window.
const DRAINED: u64 = 2 * COUNT;
/// A longer window is asked for again after this time.
pub(super) const LONGEST_WINDOW: Duration = Duration::from_secs(3600);
/// Longer than any window is open.
const LIFETIME: Duration = Duration::from_secs(2 * 3600);
/// A call without an answer counts as in flight for this time, or for up to a second less.
pub(super) const FLIGHT: Duration = Duration::from_secs(31);

pub(super) const CREDITS: Rule = Rule::new("client-credits", COUNT, LIFETIME).with_denial_cache(false);
pub(super) const LIMIT: Rule = Rule::new("client-limit", COUNT, LIFETIME).with_denial_cache(false);
/// It has more room than the credits: so those are what a permit of both shows to remain.
///
/// It is not a log, which refunds only its last 5,000 charges.
const IN_FLIGHT: Rule = Rule::new("client-in-flight", 10_000_000, FLIGHT)
    .with_algorithm(Algorithm::SlidingWindow { buckets: 31, weighted: false })
    .with_denial_cache(false);
pub(super) const KNOWN: Rule = timer("client-known", 1);
pub(super) const ANNOUNCED: Rule = timer("client-announced", 1);
pub(super) const PAUSE: Rule = timer("client-pause", 1);
/// A probe without an answer does not keep others from asking for longer than this.
pub(super) const PROBE: Rule = Rule::new("client-probe", 1, Duration::from_secs(10)).with_denial_cache(false);

const fn timer(prefix: &'static str, longest_ms: u64) -> Rule {
    bucket(prefix, 1_000, Duration::from_secs(1), longest_ms).with_denial_cache(false)
}

pub(super) const fn bucket(prefix: &'static str, count: u64, period: Duration, burst: u64) -> Rule {
    Rule::new(prefix, count, period).with_algorithm(Algorithm::TokenBucket { burst, refill: Refill::Greedy })
}

/// The credits of the open window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Credits {
    pub(super) left: u64,
    /// They are no older: the window that they belong to was opened at this time or later.
    pub(super) opened: Duration,
}

impl Credits {
    fn of(permit: &Permit, asked: Duration) -> Self {
        let age = LIFETIME.saturating_sub(permit.reset_after());
        // A store may count whole milliseconds, and its clock may run faster or slower than that of the process.
        let margin = Duration::from_millis(10) + age / 10_000;
        Self { left: permit.remaining(), opened: asked.saturating_sub(age + margin) }
    }
}

/// The counters of one upstream.
#[derive(Clone, Debug)]
pub(super) struct Counters {
    pub(super) limiter: Limiter,
    pub(super) key: Key,
    /// With [`OnStoreError::Wait`], an outage is waited for until this time at most.
    until: Duration,
}

impl Counters {
    /// For what a response says: it is out of date when an outage is over.
    pub(super) fn new(limiter: Limiter, key: Key) -> Self {
        Self { limiter, key, until: Duration::ZERO }
    }

    /// For a call that waits until this time at most.
    pub(super) fn until(&self, until: Option<Duration>) -> Self {
        Self { until: until.unwrap_or(Duration::MAX), ..self.clone() }
    }

    /// Whether the limiter counts at all.
    pub(super) fn are_counted(&self) -> bool {
        self.limiter.engine().store().is_some()
    }

    /// Takes a credit, and counts the call as in flight. Returns the credits, and the permit that ends the flight.
    pub(super) async fn take_credit(&self) -> Result<(Credits, Permit), RequestPerMinute> {
        let asked = self.now();
        let permit = self.take_all(&[CREDITS, IN_FLIGHT]).await?;
        Ok((Credits::of(&permit, self.last_asked(asked)), self.split_flight(permit)?.0))
    }

    pub(super) async fn credits(&self) -> Result<Credits, RequestPerMinute> {
        let asked = self.now();
        Ok(Credits::of(&self.take(&CREDITS, 0).await?, asked))
    }

    /// The time of the request that was answered now, or before. With [`OnStoreError::Wait`], others may have failed
    /// since `asked`.
    fn last_asked(&self, asked: Duration) -> Duration {
        let settings = self.limiter.engine().settings();
        match settings.on_store_error {
            OnStoreError::Wait { .. } => asked.max(self.now().saturating_sub(settings.deadline)),
            _ => asked,
        }
    }

    /// The limit that the probe's response has announced, or what it has fallen to.
    pub(super) async fn announced_limit(&self) -> Result<u64, RequestPerMinute> {
        Ok(self.take(&LIMIT, 0).await?.remaining().min(MOST))
    }

    fn now(&self) -> Duration {
        self.limiter.engine().settings().clock.now()
    }

    /// Takes the probe, unless there is a pause. Returns the permits that end the flight and the probe.
    pub(super) async fn take_probe(&self) -> Result<(Permit, Permit), RequestPerMinute> {
        let permit = self.take_all(&[PAUSE, PROBE, IN_FLIGHT]).await?;
        self.split_flight(permit)
    }

    fn split_flight(&self, permit: Permit) -> Result<(Permit, Permit), RequestPerMinute> {
        let charge = self.limiter.engine().charge(&IN_FLIGHT, &self.key, 1)?;
        Ok(permit.split(charge.counter.id()))
    }

    /// The number of calls in flight, of all processes.
    pub(super) async fn in_flight(&self) -> Result<u64, RequestPerMinute> {
        Ok(IN_FLIGHT.count() - self.take(&IN_FLIGHT, 0).await?.remaining())
    }

    /// Leaves nothing of the open window.
    pub(super) async fn take_all_credits(&self) -> Result<(), RequestPerMinute> {
        match self.charge(&CREDITS, DRAINED).await {
            // More than one refusal may be too much for the counter.
            Err(refused) if refused.cause() != Cause::Exceeded => Err(refused),
            _ => Ok(()),
        }
    }

    /// Whether the credits were taken all at once since the counter was reset.
    pub(super) async fn are_drained(&self) -> Result<bool, RequestPerMinute> {
        Ok(self.take(&CREDITS.with_count(DRAINED), 0).await?.remaining() == 0)
    }

    /// Lowers what remains of a counter to a number. Returns by how much.
    pub(super) async fn lower(&self, rule: &Rule, left: u64) -> Result<u64, RequestPerMinute> {
        self.take_up_to(&rule.with_count(COUNT - left.min(MOST))).await
    }

    /// Makes a timer last for a time from now at least.
    pub(super) async fn set_timer(&self, prefix: &'static str, time: Duration) -> Result<(), RequestPerMinute> {
        let ms = u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
        // One more: a store may count whole milliseconds.
        self.take_up_to(&timer(prefix, ms.saturating_add(1))).await.map(drop)
    }

    /// The time left of a timer.
    pub(super) async fn left_of(&self, timer: &Rule) -> Result<Duration, RequestPerMinute> {
        Ok(self.take(timer, 0).await?.reset_after())
    }

    pub(super) async fn reset(&self, rule: &Rule) -> Result<(), RequestPerMinute> {
        self.limiter.reset(rule, self.key.clone()).await
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

    pub(super) async fn take(&self, rule: &Rule, cost: u64) -> Result<Permit, RequestPerMinute> {
        let key = RequestKey::Some(self.key.clone());
        Acquire::single(self.limiter.engine_ref(), rule, key, cost, self.options()).await
    }

    async fn take_all(&self, rules: &[Rule]) -> Result<Permit, RequestPerMinute> {
        let fill = |requests: &mut ChargeRequests| {
            requests.extend(rules.iter().map(|rule| self.request(*rule, 1, CostKind::Fixed)));
        };
        Acquire::all(self.limiter.engine_ref(), fill, self.options(), OnLimit::Reject).await
    }

    /// Charges a counter, whether it has room or not.
    pub(super) async fn charge(&self, rule: &Rule, cost: u64) -> Result<(), RequestPerMinute> {
        let fill = |requests: &mut ChargeRequests| requests.push(self.request(*rule, cost, CostKind::Forced));
        Acquire::all(self.limiter.engine_ref(), fill, self.options(), OnLimit::Reject).await.map(drop)
    }

    fn request(&self, rule: Rule, cost: u64, cost_kind: CostKind) -> ChargeRequest {
        ChargeRequest { rule, key: RequestKey::Some(self.key.clone()), cost, cost_kind }
    }

    /// A share of these counters would mean nothing, so they never fall back to local ones.
    fn options(&self) -> AcquireOptions {
        let left = self.until.saturating_sub(self.now());
        let policy = match self.limiter.engine().settings().on_store_error {
            OnStoreError::Wait { max } if !left.is_zero() => OnStoreError::Wait { max: max.min(left) },
            _ => OnStoreError::Deny,
        };
        AcquireOptions::new(OnLimit::Reject, Some(policy))
    }
}
