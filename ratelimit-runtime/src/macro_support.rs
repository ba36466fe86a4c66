//! What the attribute's code calls. Nobody else should: it changes without notice.

use std::{borrow::Borrow, time::Duration};

use crate::{
    Algorithm, Cause, Key, Limiter, OnStoreError, Permit, RateKey, Refill, RequestPerMinute, Rule,
    engine::{
        acquire,
        core::{Engine, EngineRef},
        request::{AcquireOptions, CostKind, OnLimit, RequestKey},
    },
};
pub use crate::{
    engine::{
        acquire::{Acquire, Admit},
        request::ChargeRequest,
    },
    policy::OnMissingKey,
};

/// A rule from the attribute's numbers. Evaluated at compile time, so its panics are compile errors.
#[must_use]
pub const fn rule(prefix: &'static str, count: u64, ttl: u64, unit_ms: u64) -> Rule {
    assert!(count > 0, "`count` must be at least 1");
    rule_without_count(prefix, ttl, unit_ms).with_count(count)
}

/// A rule whose count is known only at the call: until [`with_count`] it is 0.
#[must_use]
pub const fn rule_without_count(prefix: &'static str, ttl: u64, unit_ms: u64) -> Rule {
    assert!(!prefix.is_empty(), "`prefix` is empty; give the counter a name");
    assert!(ttl > 0, "`ttl` must be at least 1");
    let Some(period_ms) = ttl.checked_mul(unit_ms) else { panic!("`ttl` is too large") };
    let period = Duration::from_millis(period_ms);
    assert!(period.as_secs() <= Rule::LONGEST_PERIOD.as_secs(), "`ttl` is longer than 3,650 days");
    Rule::new(prefix, 0, period)
}

/// A rule for places, held until the permit is dropped.
#[must_use]
pub const fn concurrent(prefix: &'static str, count: u64, lease_ms: u64) -> Rule {
    assert!(count > 0, "`count` must be at least 1");
    concurrent_without_count(prefix, lease_ms).with_count(count)
}

/// The same with a count that is known only at the call.
#[must_use]
pub const fn concurrent_without_count(prefix: &'static str, lease_ms: u64) -> Rule {
    rule_without_count(prefix, 1, lease_ms).with_algorithm(Algorithm::Concurrent)
}

/// The rule by a sliding window.
#[must_use]
pub const fn sliding_window(rule: Rule, buckets: u64) -> Rule {
    checked(rule.with_algorithm(Algorithm::SlidingWindow { buckets }))
}

/// The rule by a token bucket that holds `burst`.
#[must_use]
pub const fn token_bucket(rule: Rule, burst: u64, refill: Refill) -> Rule {
    assert!(burst > 0, "`burst` must be at least 1");
    checked(rule.with_algorithm(Algorithm::TokenBucket { burst, refill }))
}

/// The rule by a token bucket that holds the count.
#[must_use]
pub const fn token_bucket_of_count(rule: Rule, refill: Refill) -> Rule {
    checked(rule.with_algorithm(Algorithm::TokenBucket { burst: rule.count(), refill }))
}

/// The rule by a leaky bucket.
#[must_use]
pub const fn leaky_bucket(rule: Rule, queue: u64) -> Rule {
    checked(rule.with_algorithm(Algorithm::LeakyBucket { queue }))
}

/// The rule with permits taken so many at a time.
#[must_use]
pub const fn prefetch(rule: Rule, permits: u64) -> Rule {
    checked(rule.with_prefetch(permits))
}

/// The rule, if its numbers are right as far as they are known; a count of 0 is not.
const fn checked(rule: Rule) -> Rule {
    if let Some(fault) = rule.limit_fault() {
        panic!("{}", fault.words());
    }
    rule
}

/// The rule with a count that is known only now.
#[must_use]
pub const fn with_count(rule: &Rule, count: u64) -> Rule {
    let rule = rule.with_count(count);
    match rule.algorithm() {
        // It holds the count, which `token_bucket_of_count` did not know.
        Algorithm::TokenBucket { burst: 0, .. } => rule.with_burst(count),
        _ => rule,
    }
}

/// A count of any integer type; a negative one admits nothing.
pub fn count<N: TryInto<u64>>(count: N) -> u64 {
    count.try_into().unwrap_or(0)
}

/// A cost of any integer type; a negative one never fits.
#[inline]
pub fn cost<N: TryInto<u64>>(cost: N) -> u64 {
    cost.try_into().unwrap_or(u64::MAX)
}

/// The key of a call, made from a reference so that no argument is moved.
#[derive(Debug)]
pub struct ChargedKey(RequestKey);

#[inline(always)]
#[allow(clippy::inline_always)] // what is copied at once after it was written in parts is waited for
pub fn key<K: RateKey + ?Sized>(key: &K) -> ChargedKey {
    ChargedKey(RequestKey::Some(Key::new(key)))
}

#[must_use]
#[inline]
pub fn no_key() -> ChargedKey {
    ChargedKey(RequestKey::Shared)
}

pub fn optional_key<K: OptionalKey>(key: &K, missing: OnMissingKey) -> ChargedKey {
    ChargedKey(match (key.key(), missing) {
        (Some(key), _) => RequestKey::Some(key),
        (None, OnMissingKey::Deny) => RequestKey::Missing,
        (None, OnMissingKey::Skip) => RequestKey::Skip,
        (None, OnMissingKey::Shared) => RequestKey::Shared,
    })
}

#[diagnostic::on_unimplemented(
    message = "`on_missing_key` needs a key that can be missing, and `{Self}` cannot",
    label = "not an `Option` of a key",
    note = "leave `on_missing_key` out, or give an `Option` of something that implements `RateKey`"
)]
pub trait OptionalKey {
    fn key(&self) -> Option<Key>;
}

impl<K: RateKey> OptionalKey for Option<K> {
    fn key(&self) -> Option<Key> {
        self.as_ref().map(Key::new)
    }
}

impl<K: OptionalKey + ?Sized> OptionalKey for &K {
    fn key(&self) -> Option<Key> {
        K::key(self)
    }
}

/// A charge as a function asks for it. The rule is a reference where it is known when the function is compiled: it is not copied on the way of
/// most calls.
#[derive(Debug)]
pub struct AnnotatedCharge<R> {
    rule: R,
    key: RequestKey,
    cost: u64,
    holds: CostKind,
}

impl<R: Borrow<Rule>> AnnotatedCharge<R> {
    /// One of several.
    #[must_use]
    pub fn asked(self) -> ChargeRequest {
        let Self { rule, key, cost, holds } = self;
        ChargeRequest { rule: *rule.borrow(), key, cost, cost_kind: holds }
    }
}

#[must_use]
#[inline]
pub fn charge<R>(rule: R, ChargedKey(key): ChargedKey, cost: u64) -> AnnotatedCharge<R> {
    AnnotatedCharge { rule, key, cost, holds: CostKind::Fixed }
}

/// For the milliseconds until the permit is dropped. `max_ms`, or what remains if that is less, is held until then.
#[must_use]
pub fn charge_elapsed<R>(rule: R, ChargedKey(key): ChargedKey, max_ms: Option<u64>) -> AnnotatedCharge<R> {
    AnnotatedCharge { rule, key, cost: max_ms.unwrap_or(u64::MAX).max(1), holds: CostKind::Elapsed }
}

/// For what is told at the end, see [`settle`].
#[must_use]
pub fn charge_settled<R>(rule: R, ChargedKey(key): ChargedKey, max: u64) -> AnnotatedCharge<R> {
    AnnotatedCharge { rule, key, cost: max, holds: CostKind::Reported }
}

/// Charges what an outcome says that it has used.
pub fn settle<T: ?Sized, N: TryInto<u64>>(permit: Permit, outcome: &T, used: impl FnOnce(&T) -> N) {
    if let Some(mut holding) = permit.into_holding() {
        holding.record(cost(used(outcome)));
    }
}

/// How a call is treated: what is said once, however many rules it has.
#[derive(Clone, Copy, Debug)]
pub struct Call(AcquireOptions, OnLimit);

impl Call {
    #[allow(clippy::new_without_default)]
    #[must_use]
    pub const fn new() -> Self {
        Self(AcquireOptions::new(OnLimit::Reject, None), OnLimit::Reject)
    }

    #[must_use]
    pub const fn wait(mut self) -> Self {
        self.0 = AcquireOptions::new(OnLimit::Wait(None), self.0.on_store_error);
        self
    }

    #[must_use]
    pub const fn wait_at_most(mut self, ms: u64) -> Self {
        self.0 = AcquireOptions::new(OnLimit::Wait(Some(Duration::from_millis(ms))), self.0.on_store_error);
        self
    }

    #[must_use]
    pub const fn wait_for_place(mut self) -> Self {
        self.1 = OnLimit::Wait(None);
        self
    }

    #[must_use]
    pub const fn wait_for_place_at_most(mut self, ms: u64) -> Self {
        self.1 = OnLimit::Wait(Some(Duration::from_millis(ms)));
        self
    }

    #[must_use]
    pub const fn on_store_error(mut self, on_store_error: OnStoreError) -> Self {
        self.0.on_store_error = Some(on_store_error);
        self
    }
}

/// The call in front of the body of a function with one limit.
///
/// The body of an `async fn` runs when it is polled, so what most calls come to is found out here, without a future.
///
/// # Errors
///
/// What is not decided yet.
#[inline(always)]
#[allow(clippy::inline_always)] // or what is asked is copied on its way
pub fn limit_request_per_time<R: Borrow<Rule>>(
    limiter: Option<&Limiter>,
    Call(manner, _): Call,
    charge: AnnotatedCharge<R>,
) -> Result<Result<(), RequestPerMinute>, Deferred<R>> {
    if let OnLimit::Reject = manner.on_limit() {
        let at_once = |inner: &Engine| acquire::try_acquire(inner, charge.rule.borrow(), &charge.key, charge.cost);
        let decided = limiter.map_or_else(|| at_once(&Limiter::current()), |limiter| at_once(limiter.engine()));
        if let Some(decided) = decided {
            return Ok(decided);
        }
    }
    Err(Deferred { limiter: hold(limiter), manner, charge })
}

/// What could not be decided at once.
#[allow(missing_debug_implementations)] // it is taken apart where it is made
pub struct Deferred<R> {
    limiter: EngineRef,
    manner: AcquireOptions,
    charge: AnnotatedCharge<R>,
}

impl<R: Borrow<Rule>> Deferred<R> {
    #[must_use]
    pub fn decide(self) -> Admit {
        let Self { limiter, manner, charge: AnnotatedCharge { rule, key, cost, .. } } = self;
        Admit(Acquire::single(limiter, rule.borrow(), key, cost, manner))
    }
}

/// The same for a body that wants the permit.
#[must_use]
pub fn permit_request_per_time<R: Borrow<Rule>>(
    limiter: Option<&Limiter>,
    Call(manner, _): Call,
    AnnotatedCharge { rule, key, cost, .. }: AnnotatedCharge<R>,
) -> Acquire {
    Acquire::single(hold(limiter), rule.borrow(), key, cost, manner)
}

/// The call in front of the body of a function with several.
#[must_use]
pub fn limit_requests_per_time<const N: usize>(
    limiter: Option<&Limiter>,
    Call(manner, _): Call,
    charges: [ChargeRequest; N],
) -> Acquire {
    Acquire::all(hold(limiter), charges.into(), manner, OnLimit::Reject)
}

/// The call in front of the body of a function that holds something while it runs.
#[must_use]
pub fn hold_requests<const N: usize>(
    limiter: Option<&Limiter>,
    Call(manner, on_busy): Call,
    charges: [ChargeRequest; N],
) -> Acquire {
    Acquire::all(hold(limiter), charges.into(), manner, on_busy)
}

#[inline]
fn hold(limiter: Option<&Limiter>) -> EngineRef {
    limiter.map_or_else(Limiter::current, Limiter::engine_ref)
}

/// Whether a refusal is about the limit, and so for `on_limit` to answer.
#[must_use]
pub fn over_limit(refused: &RequestPerMinute) -> bool {
    matches!(refused.cause(), Cause::Exceeded | Cause::NeverFits)
}

/// Whether a refusal is about places, of which too few are free.
#[must_use]
pub fn fits_when_released(refused: &RequestPerMinute) -> bool {
    refused.fits_when_released()
}
