//! The functions that generated code calls. Not for other use: they change without notice.

use std::{borrow::Borrow, time::Duration};

use crate::{
    Algorithm, Key, KeyWriter, Limiter, OnStoreError, Permit, RateKey, RequestPerMinute, Rule,
    algorithm::capabilities,
    engine::{
        attempt::{self, Decided},
        core::{Engine, EngineRef},
        options::{AcquireOptions, OnLimit},
        request::{BAN_AND_WAIT, BorrowedCharge, BorrowedCharges, CostKind, RequestKey, check_settled},
    },
    rule::limits::{RuleFault, is_lease, lease_bounds},
};
pub use crate::{
    engine::{
        acquire::{Acquire, Admit},
        request::{ChargeRequest, ChargeRequests},
    },
    policy::OnMissingKey,
};

/// An integer constant of any type.
#[derive(Clone, Copy, Debug)]
pub struct Constant<N>(pub N);

macro_rules! constants {
    ($($integer:ty)*) => {$(
        impl Constant<$integer> {
            /// The integer. Panics if it is no `u64`.
            #[allow(clippy::cast_lossless, clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
            #[allow(clippy::cast_sign_loss, clippy::unnecessary_cast, unused_comparisons)]
            #[must_use]
            pub const fn integer(self) -> u64 {
                let number = self.0 as u64;
                assert!(self.0 >= 0 && number as $integer == self.0, "a number is negative, or too large for a `u64`");
                number
            }
        }
    )*};
}
constants!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize);

/// The milliseconds of a constant.
#[must_use]
pub const fn milliseconds(duration: Duration) -> u64 {
    assert!(duration.subsec_nanos().is_multiple_of(1_000_000), "a duration is a whole number of milliseconds");
    let milliseconds = duration.as_millis();
    assert!(milliseconds > 0, "a duration must be greater than 0");
    assert!(milliseconds <= u64::MAX as u128, "a duration is too long");
    #[allow(clippy::cast_possible_truncation)]
    return milliseconds as u64;
}

/// A rule with a fixed window from the attribute's arguments. Evaluated at compile time, so its
/// panics are compile errors.
#[must_use]
pub const fn rule(prefix: &'static str, count: u64, ttl: u64, unit_ms: u64) -> Rule {
    checked(unchecked_rule(prefix, count, ttl, unit_ms))
}

/// A rule for one of the functions that set an algorithm, which checks the numbers.
#[must_use]
pub const fn unchecked_rule(prefix: &'static str, count: u64, ttl: u64, unit_ms: u64) -> Rule {
    assert!(count > 0, "`count` must be at least 1");
    rule_without_count(prefix, ttl, unit_ms).with_count(count)
}

/// A rule whose count is known at the call. It is 0 until [`with_count`].
#[must_use]
pub const fn rule_without_count(prefix: &'static str, ttl: u64, unit_ms: u64) -> Rule {
    assert!(ttl > 0, "`ttl` must be at least 1");
    let Some(period_ms) = ttl.checked_mul(unit_ms) else { panic!("`ttl` is too large") };
    checked(Rule::new(prefix, 0, Duration::from_millis(period_ms)))
}

/// A rule for places, each held until its permit is dropped.
#[must_use]
pub const fn concurrent(prefix: &'static str, count: u64, lease_ms: u64) -> Rule {
    assert!(count > 0, "`count` must be at least 1");
    checked(concurrent_without_count(prefix, lease_ms).with_count(count))
}

/// A rule for places whose count is known at the call. It is 0 until [`with_count`].
#[must_use]
pub const fn concurrent_without_count(prefix: &'static str, lease_ms: u64) -> Rule {
    assert!(is_lease(Duration::from_millis(lease_ms)), concat!("`lease` must be ", lease_bounds!()));
    rule_without_count(prefix, 1, lease_ms).with_algorithm(Algorithm::Concurrent)
}

/// The rule with an algorithm and its options.
#[must_use]
pub const fn with_algorithm(rule: Rule, algorithm: Algorithm) -> Rule {
    assert!(!algorithm.lacks_burst(), "{}", RuleFault::NoBurst.words());
    checked(rule.with_algorithm(algorithm))
}

/// The rule with an algorithm whose largest cost is the count.
#[must_use]
pub const fn with_algorithm_of_count(rule: Rule, algorithm: Algorithm) -> Rule {
    checked(rule.with_algorithm(algorithm).sized_by_count())
}

/// The rule with a prefetch of so many permits.
#[must_use]
pub const fn prefetch(rule: Rule, permits: u64) -> Rule {
    checked(rule.with_prefetch(permits))
}

/// The rule with a ban of so many milliseconds.
#[must_use]
pub const fn ban(rule: Rule, ms: u64) -> Rule {
    checked(rule.with_ban(Duration::from_millis(ms)))
}

/// The rule of calls that wait for the limit.
#[must_use]
pub const fn waiting_rule(rule: Rule) -> Rule {
    assert!(rule.ban_ms() == 0, "{}", BAN_AND_WAIT);
    rule
}

/// The rule. Panics if its numbers are invalid, as far as they are known: a count of 0 is not known
/// yet.
const fn checked(rule: Rule) -> Rule {
    if let Some(fault) = rule.first_fault() {
        panic!("{}", fault.words());
    }
    rule
}

/// The constant of the argument `rule`, for calls per time.
#[must_use]
pub const fn rule_per_time(rule: Rule) -> Rule {
    assert!(!rule.is_concurrent(), "the rule limits calls at once: write #[limit_concurrent_requests(rule = ..)]");
    complete(rule)
}

/// The constant of the argument `rule`, for places.
#[must_use]
pub const fn rule_of_places(rule: Rule) -> Rule {
    assert!(rule.is_concurrent(), "the rule limits calls per time: write #[limit_request_per_time(rule = ..)]");
    assert!(is_lease(rule.period()), concat!("the period of the rule is the lease: it must be ", lease_bounds!()));
    complete(rule)
}

const fn complete(rule: Rule) -> Rule {
    assert!(rule.count() > 0, "the count of the rule must be at least 1");
    checked(rule)
}

/// The rule of calls whose cost is known when they end. `is_timed`: it is the elapsed time.
#[must_use]
pub const fn settled_rule(rule: Rule, is_timed: bool) -> Rule {
    check_settled(rule, is_timed)
}

/// The rule as one of several limits of a function.
#[must_use]
pub const fn stacked_rule(rule: Rule) -> Rule {
    let stands_alone = capabilities(rule.algorithm()).stands_alone || rule.prefetch() > 1;
    assert!(!stands_alone, "a rule with `LeakyBucket` or `prefetch` stands alone: remove the other limits");
    rule
}

/// The rule of calls with this cost.
#[must_use]
pub const fn rule_of_cost(rule: Rule, cost: u64) -> Rule {
    assert!(cost <= rule.limit(), "the cost never fits: it is above the largest cost of the rule, `Rule::limit`");
    rule
}

/// The rule with its count, now that it is known.
#[must_use]
pub const fn with_count(rule: &Rule, count: u64) -> Rule {
    let rule = rule.with_count(count);
    // Made by `with_algorithm_of_count`, when the count was not known.
    if rule.algorithm().lacks_burst() { rule.sized_by_count() } else { rule }
}

/// An integer of any type.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a count or a cost",
    label = "not an integer",
    note = "a count or a cost is an integer of any type: round a float, and take the value of a `NonZero` with `.get()`"
)]
pub trait Amount {
    /// `None` if it is negative, or too large for a `u64`.
    fn amount(self) -> Option<u64>;
}

#[diagnostic::do_not_recommend]
impl<N: TryInto<u64>> Amount for N {
    #[inline]
    fn amount(self) -> Option<u64> {
        self.try_into().ok()
    }
}

/// A count of any integer type; a negative one admits nothing.
pub fn count<N: Amount>(count: N) -> u64 {
    count.amount().unwrap_or(0)
}

/// A cost that is no `u64`. It makes a call misconfigured. No other cost has this number.
const INVALID_COST: u64 = u64::MAX;

/// A cost of any integer type, or `INVALID_COST`.
#[inline]
pub fn cost<N: Amount>(cost: N) -> u64 {
    cost.amount().map_or(INVALID_COST, |cost| cost.min(INVALID_COST - 1)) // neither of these fits any rule
}

/// The key of a call. Made from a reference, so that no argument is moved.
#[derive(Debug)]
pub struct ChargedKey(RequestKey);

impl ChargedKey {
    #[inline]
    fn charged(self, cost: u64) -> RequestKey {
        if cost == INVALID_COST {
            RequestKey::Invalid("its cost is negative, or too large for a `u64`")
        } else {
            self.0
        }
    }
}

#[inline(always)]
#[allow(clippy::inline_always)] // a key written in parts and then copied whole stalls the processor
pub fn key<K: RateKey + ?Sized>(key: &K) -> ChargedKey {
    ChargedKey(RequestKey::Some(Key::new(key)))
}

/// Writes the fields of a derived key.
pub fn write_fields(key: &mut KeyWriter<'_>, fields: &[&dyn RateKey]) {
    key.write_tuple(fields);
}

#[must_use]
#[inline]
pub fn no_key() -> ChargedKey {
    ChargedKey(RequestKey::Some(Key::NONE))
}

pub fn optional_key<K: OptionalKey>(key: &K, missing: OnMissingKey) -> ChargedKey {
    ChargedKey(match (key.key(), missing) {
        (Some(key), _) => RequestKey::Some(key),
        (None, OnMissingKey::Deny) => RequestKey::Missing,
        (None, OnMissingKey::Skip) => RequestKey::Skip,
        (None, OnMissingKey::Shared) => RequestKey::Some(Key::NONE),
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

/// A charge as an attribute describes it.
///
/// The rule is a reference if it is known at compile time: most calls do not copy it.
#[derive(Debug)]
pub struct AnnotatedCharge<R> {
    rule: R,
    key: RequestKey,
    cost: u64,
    cost_kind: CostKind,
}

/// The charges of a call: a pair of the first one and the others, or `()`.
pub trait ChargeList {
    const COUNT: usize;
    fn borrow<'a>(&'a self, charges: &mut BorrowedCharges<'a>);
    fn into_requests(self, requests: &mut ChargeRequests);
}

impl ChargeList for () {
    const COUNT: usize = 0;

    fn borrow<'a>(&'a self, _: &mut BorrowedCharges<'a>) {}
    fn into_requests(self, _: &mut ChargeRequests) {}
}

impl<R: Borrow<Rule>, C: ChargeList> ChargeList for (AnnotatedCharge<R>, C) {
    const COUNT: usize = 1 + C::COUNT;

    #[inline(always)]
    #[allow(clippy::inline_always)] // a few words
    fn borrow<'a>(&'a self, charges: &mut BorrowedCharges<'a>) {
        let (AnnotatedCharge { rule, key, cost, cost_kind }, others) = self;
        charges.push(BorrowedCharge { rule: rule.borrow(), key, cost: *cost, cost_kind: *cost_kind });
        others.borrow(charges);
    }

    fn into_requests(self, requests: &mut ChargeRequests) {
        let (AnnotatedCharge { rule, key, cost, cost_kind }, others) = self;
        requests.push(ChargeRequest { rule: *rule.borrow(), key, cost, cost_kind });
        others.into_requests(requests);
    }
}

#[must_use]
#[inline]
pub fn charge<R>(rule: R, key: ChargedKey, cost: u64) -> AnnotatedCharge<R> {
    AnnotatedCharge { rule, key: key.charged(cost), cost, cost_kind: CostKind::Fixed }
}

/// A charge of the milliseconds until the permit is dropped. Until then `max_ms` is held, or what
/// remains if less.
#[must_use]
pub fn charge_elapsed<R>(rule: R, ChargedKey(key): ChargedKey, max_ms: Option<u64>) -> AnnotatedCharge<R> {
    AnnotatedCharge { rule, key, cost: max_ms.unwrap_or(u64::MAX).max(1), cost_kind: CostKind::Elapsed }
}

/// A charge whose cost is reported at the end, by [`settle`]. Until then `max` counts.
#[must_use]
pub fn charge_settled<R>(rule: R, key: ChargedKey, max: u64) -> AnnotatedCharge<R> {
    AnnotatedCharge { rule, key: key.charged(max), cost: max, cost_kind: CostKind::Reported }
}

/// Settles a permit with the cost that the outcome reports. Its drop settles it. A cost that is no
/// `u64` charges the maximum, like a call without an outcome.
pub fn settle<T: ?Sized, N: Amount>(permit: Permit, outcome: &T, used: impl FnOnce(&T) -> N) {
    if let Some(mut holding) = permit.into_holding()
        && let Some(used) = used(outcome).amount()
    {
        holding.record(used);
    }
}

/// Runs the body of a function that is not async, so that `return` and `?` in it end the body only.
///
/// The bound lets the closure return borrows of what it captures.
#[inline]
pub fn run_body<T>(body: impl FnOnce() -> T) -> T {
    body()
}

/// The options of a call, which apply to all of its rules. The second part is for places that are
/// all taken, beside other limits.
#[derive(Clone, Copy, Debug)]
pub struct Call(AcquireOptions, OnLimit);

impl Call {
    pub const DEFAULT: Self = Self(AcquireOptions::new(OnLimit::Reject, None), OnLimit::Reject);

    #[must_use]
    pub const fn wait(mut self) -> Self {
        self.0 = self.0.with_on_limit(OnLimit::Wait(None));
        self
    }

    #[must_use]
    pub const fn wait_at_most(mut self, ms: u64) -> Self {
        self.0 = self.0.with_on_limit(OnLimit::Wait(Some(Duration::from_millis(ms))));
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
        self.0 = self.0.with_policy(Some(on_store_error));
        self
    }

    #[must_use]
    pub const fn wait_for_store_at_most(self, ms: u64) -> Self {
        self.on_store_error(OnStoreError::Wait { max: Duration::from_millis(ms) })
    }
}

/// The result of an attempt in front of a body.
#[derive(Debug)]
pub enum Attempted {
    Admitted,
    Refused,
    /// Nothing has changed. The future decides the call.
    Deferred(Admit),
}

/// Checks the limit of a function with one limit, in front of its body.
///
/// The body of an `async fn` runs when it is polled. So most calls are decided here, without a
/// future. A refusal is written to `refused`.
#[inline(always)]
#[allow(clippy::inline_always)] // otherwise the key and the options are copied
pub fn limit_one<R: Borrow<Rule>>(
    limiter: Option<&Limiter>,
    Call(options, _): Call,
    rule: R,
    key: ChargedKey,
    cost: u64,
    refused: &mut Option<RequestPerMinute>,
) -> Attempted {
    let (rule, key) = (rule.borrow(), key.charged(cost));
    let decided = match options.on_limit() {
        OnLimit::Reject => try_acquire(limiter, rule, &key, cost, refused),
        OnLimit::Wait(_) => None,
    };
    match decided {
        Some(Decided::Admitted) => Attempted::Admitted,
        Some(Decided::Refused) => Attempted::Refused,
        None => Attempted::Deferred(Admit(Acquire::single(engine_ref(limiter), rule, key, cost, options))),
    }
}

/// Checks the limit of a function with one limit whose body uses the permit, or that holds a place while it
/// runs.
#[must_use]
pub fn permit_of_one<R: Borrow<Rule>>(
    limiter: Option<&Limiter>,
    Call(options, _): Call,
    rule: R,
    key: ChargedKey,
    cost: u64,
) -> Acquire {
    Acquire::single(engine_ref(limiter), rule.borrow(), key.charged(cost), cost, options)
}

/// Checks the limits of a function with several limits.
#[inline(always)]
#[allow(clippy::inline_always)] // otherwise the charges are copied
pub fn limit_several<C: ChargeList>(
    limiter: Option<&Limiter>,
    Call(options, _): Call,
    charges: C,
    refused: &mut Option<RequestPerMinute>,
) -> Attempted {
    let decided = match options.on_limit() {
        OnLimit::Reject => {
            let mut borrowed = BorrowedCharges::new();
            charges.borrow(&mut borrowed);
            try_acquire_all(limiter, &borrowed, refused)
        }
        OnLimit::Wait(_) => None,
    };
    match decided {
        Some(Decided::Admitted) => Attempted::Admitted,
        Some(Decided::Refused) => Attempted::Refused,
        None => Attempted::Deferred(Admit(permit_of_several(limiter, Call(options, OnLimit::Reject), charges))),
    }
}

/// Checks the limits of a function whose body uses the permit, or that holds it while it runs.
#[must_use]
pub fn permit_of_several<C: ChargeList>(
    limiter: Option<&Limiter>,
    Call(options, on_busy): Call,
    charges: C,
) -> Acquire {
    let fill = |requests: &mut ChargeRequests| {
        requests.reserve_exact(C::COUNT);
        charges.into_requests(requests);
        invalidate_shared_counters(requests);
    };
    Acquire::all(engine_ref(limiter), fill, options, on_busy)
}

/// Makes the call misconfigured if two limits with different numbers charge one counter.
///
/// With the same numbers it is one limit with two keys, such as sender and receiver. If the keys of
/// a call are equal, the counter is charged for both.
fn invalidate_shared_counters(charges: &mut [ChargeRequest]) {
    for at in 1..charges.len() {
        let (earlier, later) = charges.split_at_mut(at);
        let Some(charge) = later.first_mut() else { return };
        let shares = |other: &ChargeRequest| {
            let is_same_key =
                matches!((&other.key, &charge.key), (RequestKey::Some(one), RequestKey::Some(two)) if one == two);
            is_same_key && other.rule.id() == charge.rule.id() && other.rule != charge.rule
        };
        if earlier.iter().any(shares) {
            charge.key = RequestKey::Invalid("another limit of the call has its counter; give it another prefix");
        }
    }
}

#[inline(never)] // the code that is compiled into each caller ends here
fn try_acquire(
    limiter: Option<&Limiter>,
    rule: &Rule,
    key: &RequestKey,
    cost: u64,
    refused: &mut Option<RequestPerMinute>,
) -> Option<Decided> {
    match engine(limiter) {
        Ok(engine) => attempt::try_acquire(engine, rule, key, cost, refused),
        Err(scoped) => try_acquire(Some(&scoped), rule, key, cost, refused),
    }
}

#[inline(never)] // as above
fn try_acquire_all(
    limiter: Option<&Limiter>,
    charges: &[BorrowedCharge<'_>],
    refused: &mut Option<RequestPerMinute>,
) -> Option<Decided> {
    match engine(limiter) {
        Ok(engine) => attempt::try_acquire_all(engine, charges, refused),
        Err(scoped) => try_acquire_all(Some(&scoped), charges, refused),
    }
}

/// The engine of a call. `Err` for the limiter of a scope, which the call has to keep.
#[inline]
fn engine(limiter: Option<&Limiter>) -> Result<&Engine, Limiter> {
    match limiter {
        Some(limiter) => Ok(limiter.engine()),
        None => Limiter::scoped().map_or_else(|| Ok(Limiter::process_wide()), Err),
    }
}

#[inline]
fn engine_ref(limiter: Option<&Limiter>) -> EngineRef {
    limiter.map_or_else(Limiter::current_engine, Limiter::engine_ref)
}

/// Checks whether a refusal is due to a limit, so that the `on_limit` of one of two kinds applies.
#[must_use]
pub fn over_limit(refusal: &RequestPerMinute) -> bool {
    refusal.cause().is_about_the_limit()
}

/// Checks whether a refusal is due to places that are taken.
#[must_use]
pub fn fits_when_released(refusal: &RequestPerMinute) -> bool {
    refusal.fits_when_released()
}
