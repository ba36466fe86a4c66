//! The interface to where counters live.

use std::{
    fmt,
    future::Future,
    hash::{BuildHasher as _, RandomState},
    ops,
    pin::Pin,
    time::Duration,
};

use smallvec::SmallVec;

pub use crate::error::StoreError;
use crate::{CounterName, Decision, Rule};

/// Where counters live and decisions are made.
///
/// The crate has two: memory and Redis. A store of your own decides for [`Limiter::with_store`](crate::Limiter::with_store).
///
/// A store must
///
/// - decide each request on its own, atomically, and the requests of a batch in any order: either every charge of it fits and all are charged, or
///   none is and nothing changes;
/// - decide by one clock of its own;
/// - only look, and change nothing, for a request that does not consume, and for a cost of 0;
/// - answer with [`StoreError::misconfigured`] for an algorithm that it does not have.
///
/// What it writes back into a request: each charge's [`Decision`] and [`Charge::receipt`], and the [`Request::outcome`].
///
/// A store that also knows what a [`Hold`] is says so by [`Store::supports_holds`], and is then asked to hold, renew and settle.
///
/// Whether a store does all this, and decides as the crate's own do, is told by `conformance::check` (feature `conformance`), one line
/// in a test.
///
/// ```
/// use ratelimit_runtime::{
///     CounterName, Decision, Limiter, Rule, Store,
///     store::{Batch, Charges, Reply, StoreError},
/// };
/// use std::{collections::HashMap, sync::Mutex, time::Duration};
///
/// /// Counts for as long as the process runs.
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
    /// Decides each request of a batch.
    ///
    /// A future that is dropped half way may or may not have charged.
    fn decide(&self, batch: Batch) -> Reply<Batch>;

    /// Returns what still counts of charges that were granted, and how much that was in total.
    ///
    /// What no longer counts is not returned: a later window is never credited. What is held of a charge is returned as by a settlement in which nothing was
    /// used.
    fn refund(&self, charges: Charges) -> Reply<Result<u64, StoreError>>;

    /// Forgets a counter.
    fn reset(&self, counter: CounterName) -> Reply<Result<(), StoreError>>;

    /// Whether the store holds charges that have a [`Hold`]. If not, as if nothing is said, those who ask for one are told that it can't.
    fn supports_holds(&self) -> bool {
        false
    }

    /// Makes holds last as long again, from now. All of them are of one counter, each with an id of its own.
    ///
    /// Answers for each, in their order. `false` if it counts no more, and then it is not changed: it was settled or reset, the time
    /// of its place was over, or the charge it became has expired.
    ///
    /// After an error, some of them may have been renewed. The limiter renews those of a counter that are due in one go, every third
    /// of their lease, and tries them again then if that failed. [`Charge::hold`] is set in each of the charges, and
    /// [`Charge::cost`] is how much is held.
    fn renew(&self, charges: Vec<Charge>) -> Reply<Result<Vec<bool>, StoreError>> {
        let _ = charges;
        Reply::Ready(Err(StoreError::misconfigured(HOLDS_NOTHING)))
    }

    /// Ends what is held of a charge, and charges what was used instead, now and whether or not it fits.
    ///
    /// If nothing is held any more, its time was over and the charge it became has expired: what was used is charged all the same.
    ///
    /// A settlement whose answer did not come is sent again, with [`Hold::again`], and the two may arrive in any order. Used is charged once:
    /// - A retry charges nothing if the hold is gone.
    /// - A retry that ends a hold of a log leaves its id behind. A first attempt that finds the id charges nothing. The id counts nothing,
    ///   changes no number of any answer, and is forgotten one lease and one period later, or when the counter is reset.
    ///
    /// With [`Algorithm::Concurrent`](crate::Algorithm::Concurrent) places become free, and nothing is charged. A log counts up to the
    /// [largest count](Rule::new) for its period: what was used beyond that is not charged.
    fn settle(&self, charge: Charge, used: u64) -> Reply<Result<(), StoreError>> {
        let _ = (charge, used);
        Reply::Ready(Err(StoreError::misconfigured(HOLDS_NOTHING)))
    }

    /// Why the store would not decide now, as far as that is known without asking it; see [`Limiter::health`](crate::Limiter::health).
    /// Nothing, if not said otherwise.
    fn outage(&self) -> Option<StoreError> {
        None
    }
}

pub(crate) const HOLDS_NOTHING: &str = "this store can't hold a charge until it is settled";

/// An answer that is there, or one that has to be awaited.
///
/// A store without input and output answers at once, and its callers pay for no future.
#[allow(missing_debug_implementations)] // futures have nothing to show
#[non_exhaustive]
pub enum Reply<T> {
    /// The answer.
    Ready(T),
    /// The answer is on its way. The future holds what it needs of the store itself.
    ///
    /// It may be awaited on the background thread of the process, and be moved there half way when
    /// its caller leaves. It must not block.
    Pending(Pin<Box<dyn Future<Output = T> + Send>>),
}

impl<T> Reply<T> {
    /// The answer, when it is there: for a store that asks another one.
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
}

/// Requests to be decided; a list that holds one of them without an allocation.
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
    /// The first request of a batch that has one.
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

/// One decision a caller asks for: all of its charges, or none. Made by [`Request::new`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// What to charge. No two are for one counter.
    pub charges: Charges,
    /// Charge if everything fits (`true`), or only look (`false`).
    pub consume: bool,
    /// Whether everything fits, and so, with `consume`, was charged.
    pub outcome: Result<bool, StoreError>,
}

impl Request {
    /// A request that has not been decided.
    pub fn new(charges: impl Into<Charges>, consume: bool) -> Self {
        Self { charges: charges.into(), consume, outcome: Err(StoreError::unavailable("the store gave no answer")) }
    }
}

/// A cost to one counter, and what the store said of it. Made by [`Charge::new`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Charge {
    /// The limit.
    pub rule: Rule,
    /// The counter's name.
    pub counter: CounterName,
    /// How much to take. At most [`Rule::limit`].
    pub cost: u64,
    /// How long the caller is ready to sleep until its slot of a [`LeakyBucket`](crate::Algorithm::LeakyBucket): a later slot is refused.
    pub longest_wait: Duration,
    /// To be held until it is settled, instead of charged at once: by [`SlidingLog`](crate::Algorithm::SlidingLog), and always by
    /// [`Concurrent`](crate::Algorithm::Concurrent). The store writes into [`Charge::cost`] how much is held, if that may be less.
    pub hold: Option<Hold>,
    /// Written by the store when it refuses: how much others hold whose time is not over, and may leave before.
    pub held_by_others: u64,
    /// Written by the store when it refuses: whether the cost would fit but for that.
    pub fits_when_released: bool,
    /// Written by the store: the state of the counter after a charge, or what it was when the request was refused
    /// or only looked.
    pub decision: Decision,
    /// Written by the store, also when it refuses: how long from its decision until the call's slot. Zero for all but a `LeakyBucket`.
    pub slot_delay: Duration,
    /// Written by the store on a charge, for itself: what [`Store::refund`] finds the charge by.
    pub receipt: [u64; 2],
}

impl Charge {
    /// A cost that has not been decided on.
    pub fn new(rule: Rule, counter: CounterName, cost: u64) -> Self {
        Self {
            rule,
            counter,
            cost,
            longest_wait: Duration::MAX,
            hold: None,
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

    pub(crate) fn query(&self) -> ChargeQuery<'_> {
        let (rule, longest_wait_ms) = (&self.rule, self.longest_wait_ms());
        ChargeQuery { rule, cost: self.cost, longest_wait_ms, hold: self.hold.as_ref() }
    }

    /// The least that is granted.
    pub(crate) fn least(&self) -> u64 {
        self.query().least()
    }

    /// Takes over from the receipt how much of the cost is held.
    pub(crate) fn set_held_cost(&mut self) {
        if self.hold.is_some() {
            self.cost = self.receipt[1];
        }
    }
}

/// A charge as an algorithm sees it: without a name.
#[derive(Clone, Copy)]
pub(crate) struct ChargeQuery<'a> {
    pub(crate) rule: &'a Rule,
    pub(crate) cost: u64,
    /// Longest time until a slot of a leaky bucket.
    pub(crate) longest_wait_ms: u64,
    /// The hold, for a charge that is settled later.
    pub(crate) hold: Option<&'a Hold>,
}

impl ChargeQuery<'_> {
    /// The least that is granted.
    pub(crate) fn least(&self) -> u64 {
        if self.hold.is_some_and(|hold| hold.allow_partial) { self.cost.min(1) } else { self.cost }
    }
}

/// A charge that is held: how much it comes to is known later.
///
/// It counts while it is held. Nobody else can use what it holds, and when its time is over without having been renewed or settled it
/// becomes a charge in full, made then. Places of [`Algorithm::Concurrent`](crate::Algorithm::Concurrent) become free instead.
#[allow(clippy::struct_excessive_bools)] // each says something of its own
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// What it is known by. No two have the same: below 2^52, and random.
    pub id: u64,
    /// How long it is held, if it is not renewed. Whole milliseconds.
    pub lease: Duration,
    /// Take what remains, at least 1, if that is less than the cost.
    pub allow_partial: bool,
    /// Refuse it while anything of the counter is held whose time is not over, even if it would fit.
    pub exclusive: bool,
    /// When it is settled: this is a retry. Nothing is charged unless it is still held, as it may have been settled before. See
    /// [`Store::settle`].
    pub is_retry: bool,
    /// As long as this process runs, without being renewed.
    pub(crate) is_kept: bool,
    /// What is used is the time it takes.
    pub(crate) is_timed: bool,
}

impl Hold {
    /// A hold of the whole cost, under a new number.
    pub fn new(lease: Duration) -> Self {
        // The standard library seeds its maps from the system's randomness, and each anew.
        let id = RandomState::new().hash_one(0) >> 12;
        Self { id, lease, allow_partial: false, exclusive: false, is_retry: false, is_kept: false, is_timed: false }
    }

    pub(crate) fn lease_ms(&self) -> u64 {
        u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX)
    }
}

/// The charges of one request. A list that is small to move: it goes through many hands, and a charge is some 200 bytes.
#[derive(Clone, Debug, Default)]
pub struct Charges(Vec<Charge>);

impl Charges {
    /// Adds a charge. A second one for a counter is added to the first: the costs add up, and the lower limit holds. If one of them is held, both are.
    pub fn push(&mut self, charge: Charge) {
        match self.0.iter_mut().find(|other| other.counter == charge.counter) {
            Some(other) => {
                other.cost = other.cost.saturating_add(charge.cost);
                other.hold = other.hold.or(charge.hold);
                // One that is only tried out does not stand in for one that holds.
                let tightness = |rule: &Rule| (rule.is_shadow(), rule.limit());
                other.rule = if tightness(&charge.rule) < tightness(&other.rule) { charge.rule } else { other.rule };
            }
            None => self.0.push(charge),
        }
    }
}

impl Charges {
    /// Those that are held, and the others.
    pub(crate) fn split_held(self) -> (Self, Self) {
        let (held, others) = self.0.into_iter().partition(|charge| charge.hold.is_some());
        (Self(held), Self(others))
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
