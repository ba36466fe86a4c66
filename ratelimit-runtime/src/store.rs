//! The interface of a store, which keeps counters and decides on charges.
//!
//! Implement [`Store`] to keep counters elsewhere than in memory or in Redis.

use std::{fmt, future::Future, ops, pin::Pin, time::Duration};

use smallvec::SmallVec;

pub use crate::error::StoreError;
use crate::{
    CounterName, Decision, Rule,
    duration::{random, random_in_process},
};

/// A store keeps counters and decides on charges.
///
/// The crate has two stores: memory and Redis. Pass a store of your own to
/// [`Limiter::with_store`](crate::Limiter::with_store) or [`Builder::over`](crate::Builder::over).
///
/// A store must:
///
/// - Decide each request atomically and independently of the others. Either every charge of it fits
///   and all are charged, or none is charged and nothing changes. The order of the requests of a
///   batch is free.
/// - Use one clock of its own for all decisions.
/// - Change nothing for a request that does not consume, and for a cost of 0.
/// - Answer with [`StoreError::misconfigured`] for an algorithm that it does not implement.
///
/// The store writes into each request its [`Request::outcome`], and into each charge its
/// [`Decision`] and [`Charge::receipt`].
///
/// Bans are optional, too. A store that implements [`Store::ban`] returns `true` from
/// [`Store::supports_bans`]. It also bans the counter of each charge that a consuming request is
/// refused for, if its rule has a [ban](Rule::ban), in the same step. The exceptions are charges that
/// fit once others release their holds, and costs of 0.
///
/// Holds are optional. A store that implements them returns `true` from [`Store::supports_holds`].
/// Only then does it get charges with a [`Hold`], and calls of [`Store::renew`] and
/// [`Store::settle`].
///
/// `conformance::check` (feature `conformance`) checks all this in one line of a test, and that the
/// store decides like the crate's own stores.
///
/// ```
/// use ratelimit_runtime::{
///     CounterName, Decision, Limiter, Rule, Store,
///     store::{Batch, Charges, Reply, StoreError},
/// };
/// use std::{collections::HashMap, sync::Mutex, time::Duration};
///
/// /// Counts without ever expiring, in process memory.
/// #[derive(Debug, Default)]
/// struct Forever(Mutex<HashMap<CounterName, u64>>);
///
/// impl Store for Forever {
///     fn decide(&self, mut batch: Batch) -> Reply<Batch> {
///         let mut used = self.0.lock().unwrap();
///         for request in batch.iter_mut() {
///             let mut fits = true;
///             for charge in request.charges.iter_mut() {
///                 let limit = charge.rule.limit();
///                 let remaining = limit - used.get(&charge.counter).unwrap_or(&0);
///                 let never = (charge.cost > remaining).then_some(Duration::MAX);
///                 charge.decision = Decision::new(limit, remaining, Duration::ZERO, never);
///                 fits &= never.is_none();
///             }
///             if fits && request.consume {
///                 for charge in request.charges.iter_mut() {
///                     *used.entry(charge.counter.clone()).or_default() += charge.cost;
///                     let remaining = charge.decision.remaining() - charge.cost;
///                     charge.decision = Decision::new(charge.rule.limit(), remaining, Duration::ZERO, None);
///                 }
///             }
///             request.outcome = Ok(fits);
///         }
///         drop(used);
///         Reply::Ready(batch)
///     }
///
///     fn refund(&self, charges: Charges) -> Reply<Result<u64, StoreError>> {
///         let mut used = self.0.lock().unwrap();
///         for charge in charges.iter() {
///             *used.entry(charge.counter.clone()).or_default() -= charge.cost;
///         }
///         Reply::Ready(Ok(charges.iter().map(|charge| charge.cost).sum()))
///     }
///
///     fn reset(&self, counter: CounterName) -> Reply<Result<(), StoreError>> {
///         self.0.lock().unwrap().remove(&counter);
///         Reply::Ready(Ok(()))
///     }
/// }
///
/// const RULE: Rule = Rule::new("once", 1, Duration::from_secs(1));
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let limiter = Limiter::with_store(Forever::default());
/// assert!(limiter.acquire(&RULE, "alice").await.is_ok());
/// assert!(limiter.acquire(&RULE, "alice").await.is_err());
/// # });
/// ```
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Decides each request of a batch, and returns the batch with the results written into it.
    ///
    /// The returned batch must have the same requests in the same order. An error of one request
    /// goes into its [`Request::outcome`].
    ///
    /// # Cancellation
    ///
    /// A future that is dropped before it ends may or may not have charged.
    fn decide(&self, batch: Batch) -> Reply<Batch>;

    /// Refunds the part of granted charges that still counts. Returns the total cost that was
    /// refunded.
    ///
    /// Of a charge with [`Charge::settles`], [`Charge::cost`] may be a part of what was charged with the
    /// receipt: the call has used the rest. Of a rule with prefetch, it may be any part of what was charged in the
    /// window.
    ///
    /// A charge that no longer counts is not refunded: a later window must not be credited. (On Redis there
    /// are rare [exceptions](crate::guide::promises#a-refund-arrives-late).) A charge that is held is refunded
    /// like a settlement in which nothing was used.
    fn refund(&self, charges: Charges) -> Reply<Result<u64, StoreError>>;

    /// Resets a counter: its charges, holds and ban are forgotten.
    fn reset(&self, counter: CounterName) -> Reply<Result<(), StoreError>>;

    /// Returns whether the store implements holds. The default is `false`.
    ///
    /// If not, calls that need a hold are refused as
    /// [`Cause::Misconfigured`](crate::Cause::Misconfigured), without a query to the store.
    fn supports_holds(&self) -> bool {
        false
    }

    /// Renews holds: each lasts for its whole lease again, from now.
    ///
    /// All charges are of one counter. [`Charge::hold`] is set in each, with a distinct id, and
    /// [`Charge::cost`] is the cost that is held.
    ///
    /// Returns one result per hold, in the order of the charges. `false` means that the hold no
    /// longer counts, and it is not changed then: it was settled or reset, the lease of its place
    /// was over, or the charge that it became has expired.
    ///
    /// The limiter renews all due holds of a counter in one call: after every third of their lease,
    /// and at least every 10 seconds. After an error it tries again after a third of the time for which
    /// they are still held, but not before a deadline has passed.
    ///
    /// # Errors
    ///
    /// After an error, some of the holds may have been renewed. A store without holds returns
    /// [`StoreError::misconfigured`], which is the default.
    fn renew(&self, charges: Vec<Charge>) -> Reply<Result<Vec<bool>, StoreError>> {
        let _ = charges;
        Reply::Ready(Err(StoreError::misconfigured(HOLDS_NOTHING)))
    }

    /// Settles a hold: ends it, and charges the cost `used` instead, now and whether or not it
    /// fits.
    ///
    /// If the hold is gone, because its lease is over and the charge that it became has expired,
    /// the cost is charged all the same.
    ///
    /// A settlement that got no answer is sent again, with [`Hold::is_retry`]. The two may arrive
    /// in any order, and `used` must be charged once:
    ///
    /// - A retry charges nothing if the hold is gone.
    /// - A retry that ends a hold of a log keeps the hold's id as a tombstone. A first attempt that
    ///   finds the tombstone charges nothing. A tombstone counts nothing and changes no number of
    ///   any answer. It is forgotten one lease and one period later, or when the counter is reset.
    ///
    /// For [`Algorithm::Concurrent`](crate::Algorithm::Concurrent) the places become free, and
    /// nothing is charged. If their lease is over, nothing changes: the places of other holds
    /// stay. A log counts up to the [largest count](Rule::new) for its period. Use
    /// beyond that is not charged.
    ///
    /// # Errors
    ///
    /// After an error, the hold may or may not have been settled. A store without holds returns
    /// [`StoreError::misconfigured`], which is the default.
    fn settle(&self, charge: Charge, used: u64) -> Reply<Result<(), StoreError>> {
        let _ = (charge, used);
        Reply::Ready(Err(StoreError::misconfigured(HOLDS_NOTHING)))
    }

    /// Returns whether the store implements bans. The default is `false`.
    ///
    /// If not, calls of rules with a [ban](Rule::ban) are refused as
    /// [`Cause::Misconfigured`](crate::Cause::Misconfigured), without a query to the store.
    fn supports_bans(&self) -> bool {
        false
    }

    /// Bans a counter for some time, from now: every charge of it is denied with
    /// [`Decision::banned`], whatever its cost. A zero time ends its ban.
    ///
    /// - Of two bans, the one that ends later holds.
    /// - A store may drop the charges of the counter. Then the ban lasts at least until none of them
    ///   would count any more. After it, the counter is fresh.
    /// - Holds go on below a ban: they are renewed and settled as usual. Other charges are not
    ///   refunded meanwhile.
    /// - [`Store::reset`] ends a ban, too.
    ///
    /// The charge has the rule and the counter, and a cost of 0.
    ///
    /// # Errors
    ///
    /// After an error, the counter may or may not be banned. A store without bans returns
    /// [`StoreError::misconfigured`], which is the default.
    fn ban(&self, charge: Charge, time: Duration) -> Reply<Result<(), StoreError>> {
        let _ = (charge, time);
        Reply::Ready(Err(StoreError::misconfigured(BANS_NOTHING)))
    }

    /// The reason why the store could not decide now, as far as is known without a query to it.
    ///
    /// `None` if no outage is known, which is the default.
    /// [`Limiter::health`](crate::Limiter::health) reports it.
    ///
    /// Calls ask for it, also under a lock. So it must return at once, and must not call the limiter.
    fn outage(&self) -> Option<StoreError> {
        None
    }
}

pub(crate) const HOLDS_NOTHING: &str =
    "this store does not support holds; places need them, and so do costs of a log that are settled later";

pub(crate) const BANS_NOTHING: &str = "this store does not support bans";

/// The reply of a store: an answer that is ready, or a future of one.
///
/// A store without I/O answers at once, and its callers need no future.
#[allow(missing_debug_implementations)] // futures have nothing to show
#[non_exhaustive]
pub enum Reply<T> {
    /// The answer.
    Ready(T),
    /// A future of the answer. It owns what it needs of the store.
    ///
    /// It may be awaited on the background thread of the process. It is also moved there, after it
    /// has been polled elsewhere, when its caller leaves. It must not block.
    Pending(Pin<Box<dyn Future<Output = T> + Send>>),
}

impl<T> Reply<T> {
    /// Awaits the answer, for a store that wraps another one.
    ///
    /// ```
    /// # use ratelimit_runtime::store::Reply;
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// assert_eq!(Reply::Ready(1).answer().await, 1);
    /// assert_eq!(Reply::Pending(Box::pin(async { 2 })).answer().await, 2);
    /// # });
    /// ```
    pub async fn answer(self) -> T {
        match self {
            Self::Ready(answer) => answer,
            Self::Pending(answer) => answer.await,
        }
    }

    pub(crate) fn map<U>(self, map: impl FnOnce(T) -> U + Send + 'static) -> Reply<U>
    where
        T: 'static,
    {
        match self {
            Self::Ready(answer) => Reply::Ready(map(answer)),
            Self::Pending(answer) => Reply::Pending(Box::pin(async move { map(answer.await) })),
        }
    }
}

/// A list of requests to be decided. One request needs no allocation.
#[derive(Clone, Debug, Default)]
pub struct Batch(SmallVec<[Request; 1]>);

impl From<Request> for Batch {
    fn from(request: Request) -> Self {
        Self(smallvec::smallvec![request])
    }
}

impl FromIterator<Request> for Batch {
    fn from_iter<I: IntoIterator<Item = Request>>(requests: I) -> Self {
        Self(requests.into_iter().collect())
    }
}

impl Batch {
    /// The first request, if there is one.
    pub(crate) fn into_first(self) -> Option<Request> {
        self.into_requests().next()
    }

    pub(crate) fn into_requests(self) -> impl Iterator<Item = Request> {
        self.0.into_iter()
    }
}

impl ops::Deref for Batch {
    type Target = [Request];

    fn deref(&self) -> &[Request] {
        &self.0
    }
}

impl ops::DerefMut for Batch {
    fn deref_mut(&mut self) -> &mut [Request] {
        &mut self.0
    }
}

/// A request for one decision: all of its charges, or none. Made by [`Request::new`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// The charges to make, each for a counter of its own.
    pub charges: Charges,
    /// `true`: charge if everything fits. `false`: only decide, and change nothing.
    pub consume: bool,
    /// Written by the store: `true` if everything fits, and was charged if the request consumes.
    pub outcome: Result<bool, StoreError>,
}

impl Request {
    /// A request that has not been decided. Its outcome is an error until then.
    pub fn new(charges: impl Into<Charges>, consume: bool) -> Self {
        Self {
            charges: charges.into(),
            consume,
            outcome: Err(StoreError::unavailable("the store did not decide this request")),
        }
    }
}

/// A cost to one counter, and the store's decision on it. Made by [`Charge::new`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Charge {
    /// The rule that limits the counter.
    pub rule: Rule,
    /// The counter's name.
    pub counter: CounterName,
    /// The cost to charge, in the units of the rule's count. At most [`Rule::limit`].
    pub cost: u64,
    /// The longest time that the caller will sleep until its slot of a
    /// [`LeakyBucket`](crate::Algorithm::LeakyBucket). A later slot is refused.
    pub longest_wait: Duration,
    /// If set, the charge is held until it is settled, instead of charged at once.
    ///
    /// [`SlidingLog`](crate::Algorithm::SlidingLog) may hold, and
    /// [`Concurrent`](crate::Algorithm::Concurrent) always does. With [`Hold::allow_partial`] the
    /// store writes into [`Charge::cost`] the cost that is held.
    pub hold: Option<Hold>,
    /// `true`: the caller refunds later what it did not use, with [`Store::refund`] and a part of the
    /// cost. It is never set beside a hold. A store may ignore it. The crate's stores remember such a
    /// charge of a [`TokenBucket`](crate::Algorithm::TokenBucket), and refund more of it.
    pub settles: bool,
    /// Written by the store when it refuses: the cost that other calls hold in unexpired leases.
    /// They may release it earlier.
    pub held_by_others: u64,
    /// Written by the store when it refuses: `true` if the cost fits once those holds are released.
    pub fits_when_released: bool,
    /// Written by the store: the state of the counter after the charge. If nothing was charged, its
    /// state at the decision.
    pub decision: Decision,
    /// Written by the store, also when it refuses: the time from its decision until the call's
    /// slot. Zero for all but a `LeakyBucket`.
    pub slot_delay: Duration,
    /// Written by the store on a charge, for itself: identifies the charge in [`Store::refund`].
    ///
    /// For [`Rule::with_prefetch`](crate::Rule::with_prefetch), the first number has to identify the window of a
    /// `FixedWindow`: it is the same in all charges of one window, and another one in the next. The limiter compares
    /// it, to spend no permit in a later window. (On Redis a later window may have it, too. Then the second number
    /// differs.)
    pub receipt: [u64; 2],
}

impl Charge {
    /// A charge that has not been decided. It holds nothing, and accepts any slot.
    pub fn new(rule: Rule, counter: CounterName, cost: u64) -> Self {
        Self {
            rule,
            counter,
            cost,
            longest_wait: Duration::MAX,
            hold: None,
            settles: false,
            held_by_others: 0,
            fits_when_released: false,
            decision: Decision::fresh(rule.limit()),
            slot_delay: Duration::ZERO,
            receipt: [0; 2],
        }
    }

    pub(crate) fn longest_wait_ms(&self) -> u64 {
        u64::try_from(self.longest_wait.as_millis()).unwrap_or(u64::MAX)
    }

    /// Added to each longest wait, as zero is for no wait at all: see [`Charge::is_waited_for`].
    pub(crate) const SHORTEST_WAIT: Duration = Duration::from_nanos(1);

    /// The caller may wait for this counter. If not, a refusal by it is final, though the caller may wait for
    /// other counters of the call.
    pub(crate) fn is_waited_for(&self) -> bool {
        !self.longest_wait.is_zero()
    }

    /// A later settlement decides how much of the charge stays.
    pub(crate) fn is_settled_later(&self) -> bool {
        self.hold.is_some() || self.settles
    }

    /// The call reports the cost when it ends. A place has none.
    pub(crate) fn has_cost_to_settle(&self) -> bool {
        self.is_settled_later() && !self.rule.is_concurrent()
    }

    /// The store has refused the charge, and room may come before its `retry_after`: others hold
    /// something, or calls like this one will refund what they did not use.
    pub(crate) fn may_free_early(&self) -> bool {
        let is_refused = self.decision.retry_after().is_some() && !self.decision.is_banned();
        self.held_by_others > 0 || self.settles && is_refused
    }

    /// The store has refused the charge, and its rule bans the counter for that.
    pub(crate) fn starts_ban(&self) -> bool {
        let (is_refused, cost) = (self.decision.retry_after().is_some(), self.least());
        let is_over = is_refused && !self.fits_when_released && !self.decision.is_banned();
        self.rule.ban_ms() > 0 && is_over && 0 < cost && cost <= self.rule.limit()
    }

    pub(crate) fn query(&self) -> ChargeQuery<'_> {
        let (rule, longest_wait_ms) = (&self.rule, self.longest_wait_ms());
        ChargeQuery { rule, cost: self.cost, longest_wait_ms, hold: self.hold.as_ref(), settles: self.settles }
    }

    /// The least that is granted.
    pub(crate) fn least(&self) -> u64 {
        self.query().least()
    }

    /// Sets the cost of a hold to the part that is held, which the receipt has.
    pub(crate) fn set_held_cost(&mut self) {
        if self.hold.is_some() {
            self.cost = self.receipt[1];
        }
    }
}

/// A charge as an algorithm sees it, without the counter's name.
#[derive(Clone, Copy)]
pub(crate) struct ChargeQuery<'a> {
    pub(crate) rule: &'a Rule,
    pub(crate) cost: u64,
    /// The longest time until the slot of a leaky bucket.
    pub(crate) longest_wait_ms: u64,
    /// The hold, if the charge is held until it is settled.
    pub(crate) hold: Option<&'a Hold>,
    /// See [`Charge::settles`].
    pub(crate) settles: bool,
}

impl<'a> ChargeQuery<'a> {
    /// A charge that holds nothing.
    #[inline]
    pub(crate) fn of(rule: &'a Rule, cost: u64) -> Self {
        Self { rule, cost, longest_wait_ms: u64::MAX, hold: None, settles: false }
    }

    /// The least that is granted.
    pub(crate) fn least(&self) -> u64 {
        if self.hold.is_some_and(|hold| hold.allow_partial) { self.cost.min(1) } else { self.cost }
    }
}

/// A hold: a charge whose final cost is known later.
///
/// It counts while it is held, so no other call can use its cost. If its lease ends before it is
/// renewed or settled, it becomes a full charge, made at that moment. Places of
/// [`Algorithm::Concurrent`](crate::Algorithm::Concurrent) become free instead.
#[allow(clippy::struct_excessive_bools)] // independent flags
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The id of the hold: random, not 0, below 2^52, and unique.
    pub id: u64,
    /// The lease: how long it is held without being renewed. Whole milliseconds.
    pub lease: Duration,
    /// Hold what remains, but at least 1, if that is less than the cost.
    pub allow_partial: bool,
    /// Refuse the charge while the counter has another hold with an unexpired lease, even if it
    /// would fit.
    pub exclusive: bool,
    /// For [`Store::settle`]: this is a retry. An earlier attempt may have settled the hold, so
    /// nothing is charged unless it is still held.
    pub is_retry: bool,
    /// It lasts until it is settled, without being renewed: the memory store keeps it.
    pub(crate) is_kept: bool,
    /// The cost is the elapsed time.
    pub(crate) is_timed: bool,
}

impl Hold {
    /// A hold of the whole cost, with a new random id.
    pub fn new(lease: Duration) -> Self {
        Self::with_id((random() >> 12).max(1), lease)
    }

    /// A hold that the memory store keeps: its id is unique in this process only.
    pub(crate) fn kept(lease: Duration) -> Self {
        Self { is_kept: true, ..Self::with_id((random_in_process() >> 12).max(1), lease) }
    }

    /// A hold of places that a permit frees when it is dropped. A memory store keeps it, by no id.
    pub(crate) fn of_permit(lease: Duration) -> Self {
        Self { is_kept: true, ..Self::with_id(0, lease) }
    }

    pub(crate) fn is_of_permit(&self) -> bool {
        self.is_kept && self.id == 0
    }

    /// Another hold like this one, for another request: an earlier one may still be released.
    pub(crate) fn anew(self) -> Self {
        let Self { id, .. } = if self.is_kept { Self::kept(self.lease) } else { Self::new(self.lease) };
        Self { id, ..self }
    }

    fn with_id(id: u64, lease: Duration) -> Self {
        Self { id, lease, allow_partial: false, exclusive: false, is_retry: false, is_kept: false, is_timed: false }
    }

    pub(crate) fn lease_ms(&self) -> u64 {
        u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX)
    }
}

/// The charges of one request. A list that is cheap to move, because a charge has some 200 bytes.
#[derive(Clone, Debug, Default)]
pub struct Charges(Vec<Charge>);

impl Charges {
    /// Adds a charge. A second charge of the same counter is merged into the first.
    ///
    /// The costs add up, and the lower limit applies; of two buckets, the lower count, too. A rule in
    /// shadow mode does not change an enforced one. If one of the two is held or settles, both do. The
    /// crate never merges two charges if one of them has a cost to settle: a settlement would be one for
    /// both.
    pub fn push(&mut self, charge: Charge) {
        match self.0.iter_mut().find(|other| other.counter == charge.counter) {
            Some(other) => {
                other.cost = other.cost.saturating_add(charge.cost);
                other.hold = other.hold.or(charge.hold);
                other.settles |= charge.settles;
                other.rule = stricter(other.rule, charge.rule);
            }
            None => self.0.push(charge),
        }
    }
}

/// One rule for a counter that two rules have.
fn stricter(one: Rule, other: Rule) -> Rule {
    match (one.is_shadow(), other.is_shadow()) {
        (false, true) => return one,
        (true, false) => return other,
        _ => {}
    }
    let (lower, higher) = if one.limit() <= other.limit() { (one, other) } else { (other, one) };
    // Of two that refuse the same calls, both bans apply. The refusals of a higher limit are not known.
    let bans = lower.limit() == higher.limit() && lower.ban_ms() < higher.ban_ms() && lower.prefetch() <= 1;
    let lower = if bans { lower.with_ban(higher.ban().unwrap_or_default()) } else { lower };
    // The limit of a bucket is its burst: it may be the lower one, and be refilled faster.
    lower.with_count(one.count().min(other.count()))
}

impl Charges {
    pub(crate) fn with_capacity(number: usize) -> Self {
        Self(Vec::with_capacity(number))
    }

    /// Splits the charges into those that a test accepts, and others.
    pub(crate) fn split(self, is_first: impl Fn(&Charge) -> bool) -> (Self, Self) {
        let (first, others) = self.0.into_iter().partition(is_first);
        (Self(first), Self(others))
    }

    pub(crate) fn append(&mut self, mut others: Self) {
        self.0.append(&mut others.0);
    }

    pub(crate) fn into_charges(self) -> impl ExactSizeIterator<Item = Charge> {
        self.0.into_iter()
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(&Charge) -> bool) {
        self.0.retain(|charge| keep(charge));
    }
}

impl ops::Deref for Charges {
    type Target = [Charge];

    fn deref(&self) -> &[Charge] {
        &self.0
    }
}

impl ops::DerefMut for Charges {
    fn deref_mut(&mut self) -> &mut [Charge] {
        &mut self.0
    }
}

impl From<Charge> for Charges {
    fn from(charge: Charge) -> Self {
        Self(vec![charge])
    }
}
