//! The one way in: a rule, a key and a cost become a permit or a refusal.

use std::{fmt, future::Future, time::Duration};

use crate::{
    Decision, Health, Key, Permit, RateKey, RequestPerMinute, Rule,
    engine::{
        acquire::Acquire,
        core::{Engine, EngineRef},
        handle::Handles,
        refusal,
        request::{AcquireOptions, ChargeRequest, CostKind, OnLimit, RequestKey},
    },
    store::{Batch, Request, StoreError},
};

/// Decides who may run.
///
/// A limiter is a cheap handle: clones share its counters. Which store it counts in is told by a URL; see
/// [`Limiter::builder`].
///
/// ```
/// use ratelimit_runtime::{Limiter, Rule};
/// use std::time::Duration;
///
/// const RULE: Rule = Rule::new("item", 2, Duration::from_secs(60));
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let limiter = Limiter::in_memory();
/// assert!(limiter.acquire(&RULE, "alice").await.is_ok());
/// assert!(limiter.acquire(&RULE, "alice").await.is_ok());
/// assert!(limiter.acquire(&RULE, "alice").await.is_err());
/// assert!(limiter.acquire(&RULE, "bob").await.is_ok());
/// # });
/// ```
#[derive(Clone)]
pub struct Limiter(pub(crate) Handles);

impl Limiter {
    /// A reference for a call.
    #[inline]
    pub(crate) fn engine_ref(&self) -> EngineRef {
        self.0.engine_ref()
    }

    #[inline]
    pub(crate) fn engine(&self) -> &Engine {
        self.0.engine()
    }

    /// Charges a cost of 1 to the rule's counter for this key.
    ///
    /// With a [`LeakyBucket`](crate::Algorithm::LeakyBucket) an admitted call sleeps here until its slot.
    ///
    /// # Errors
    ///
    /// [`RequestPerMinute`], and nothing is consumed. Only after [`Cause::Unavailable`](crate::Cause::Unavailable) it may have been: a server that does not answer
    /// in time may have counted the call all the same.
    ///
    /// # Cancellation
    ///
    /// A future that was never polled has charged nothing. One that is dropped while a Redis server is being asked may or may
    /// not have been charged. One that is dropped while it sleeps until its slot gives the slot back: at once in memory,
    /// in the background on Redis.
    ///
    /// # Panics
    ///
    /// On a Redis store, within a tokio runtime that was built without `enable_time`. Also when it has to sleep outside of one.
    #[inline]
    pub fn acquire<K: RateKey>(
        &self,
        rule: &Rule,
        key: K,
    ) -> impl Future<Output = Result<Permit, RequestPerMinute>> + Send + use<K> {
        self.acquire_n(rule, key, 1)
    }

    /// Charges a cost to the rule's counter for this key. A cost of 0 is always let through and consumes nothing.
    ///
    /// Errors, cancellation and panics are those of [`Limiter::acquire`].
    #[inline]
    pub fn acquire_n<K: RateKey>(
        &self,
        rule: &Rule,
        key: K,
        cost: u64,
    ) -> impl Future<Output = Result<Permit, RequestPerMinute>> + Send + use<K> {
        Acquire::single(self.engine_ref(), rule, RequestKey::Some(Key::new(key)), cost, AcquireOptions::default())
    }

    /// Charges a cost of 1, and waits for it up to `longest` if the limit is reached.
    ///
    /// Callers of one counter and process are let ask in the order of their arrival. The call is refused at once if
    /// its turn would come later than that, as those stand who wait already; `retry_after` is then the time until its turn.
    /// It is also refused if too many wait (see [`Builder::max_waiting`]). Callers that do not wait are not held up by those
    /// who do. The [crate page](crate#waiting) says how several rules, refunds and other processes come in.
    ///
    /// ```
    /// # use ratelimit_runtime::{Limiter, Rule};
    /// # use std::time::Duration;
    /// const RULE: Rule = Rule::new("item", 1, Duration::from_millis(20));
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let limiter = Limiter::in_memory();
    /// for _ in 0..3 {
    ///     limiter.acquire_within(&RULE, "alice", Duration::from_secs(1)).await?;
    /// }
    /// assert!(limiter.acquire_within(&RULE, "alice", Duration::ZERO).await.is_err());
    /// # Ok::<_, ratelimit_runtime::RequestPerMinute>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// [`RequestPerMinute`], and nothing is consumed. Only after [`Cause::Unavailable`](crate::Cause::Unavailable) it may have been: a server that does not answer
    /// in time may have counted the call all the same.
    ///
    /// # Cancellation
    ///
    /// A future that is dropped while it waits leaves its queue, and those behind it move up. It has charged nothing, unless
    /// it was asking a Redis server just then: then it may or may not have been charged.
    /// A future that is kept but not polled holds up those behind it when its turn has come.
    ///
    /// # Panics
    ///
    /// Those of [`Limiter::acquire`]; also on the memory store when it has to wait outside of a tokio runtime with time enabled.
    pub fn acquire_within<K: RateKey>(
        &self,
        rule: &Rule,
        key: K,
        longest: Duration,
    ) -> impl Future<Output = Result<Permit, RequestPerMinute>> + Send + use<K> {
        let manner = AcquireOptions::new(OnLimit::Wait(Some(longest)), None);
        Acquire::single(self.engine_ref(), rule, RequestKey::Some(Key::new(key)), 1, manner)
    }

    /// Charges several rules, each with its key and cost: all of them, or none.
    ///
    /// ```
    /// # use ratelimit_runtime::{Key, Limiter, Rule};
    /// # use std::time::Duration;
    /// const PER_SELLER: Rule = Rule::new("seller", 10, Duration::from_secs(60));
    /// const TOTAL: Rule = Rule::new("total", 1000, Duration::from_secs(1));
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let limiter = Limiter::in_memory();
    /// let charges = [(&PER_SELLER, Key::new(4711), 10), (&TOTAL, Key::new("all"), 1)];
    /// assert!(limiter.acquire_all(&charges).await.is_ok());
    /// assert_eq!(limiter.acquire_all(&charges).await.unwrap_err().rule(), "seller");
    /// assert_eq!(limiter.peek(&TOTAL, "all").await?.remaining(), 999);
    /// # Ok::<_, ratelimit_runtime::RequestPerMinute>(()) }).unwrap();
    /// ```
    ///
    /// Two charges of one counter are one: their costs add up, and the lower limit holds. On Redis all of it is one script.
    ///
    /// In a Redis Cluster it is one script if the rules have the same key, and so the same slot. Otherwise all
    /// are looked at in one round trip, and if all fit they are charged slot by slot, each in a round trip of its own; what was charged is refunded
    /// if a later slot refuses after all, or fails. Never is more admitted than the limits say; a concurrent caller may be refused for what is about to
    /// be refunded.
    ///
    /// # Errors
    ///
    /// [`RequestPerMinute`], naming the rule with the longest wait, and no rule is charged; after [`Cause::Unavailable`](crate::Cause::Unavailable) some may have been. As [`Cause::Misconfigured`](crate::Cause::Misconfigured) if one
    /// of several rules is a [`LeakyBucket`](crate::Algorithm::LeakyBucket): it stands alone.
    ///
    /// # Cancellation
    ///
    /// As for [`Limiter::acquire`]: all of the charges were made, or none. In a cluster, over several slots, what a dropped future has charged
    /// is refunded in the background; what that does not reach within a second stays charged.
    pub fn acquire_all(
        &self,
        charges: &[(&Rule, Key, u64)],
    ) -> impl Future<Output = Result<Permit, RequestPerMinute>> + Send + use<> {
        let asked = charges
            .iter()
            .map(|(rule, key, cost)| ChargeRequest {
                rule: **rule,
                key: RequestKey::Some(key.clone()),
                cost: *cost,
                cost_kind: CostKind::Fixed,
            })
            .collect();
        Acquire::all(self.engine_ref(), asked, AcquireOptions::default(), OnLimit::Reject)
    }

    /// What the rule's counter for this key says about a cost of 1. Consumes nothing.
    ///
    /// # Errors
    ///
    /// [`Cause::Unavailable`](crate::Cause::Unavailable) or [`Cause::Misconfigured`](crate::Cause::Misconfigured), whatever the failure policy.
    pub fn peek<'a, K: RateKey>(
        &'a self,
        rule: &'a Rule,
        key: K,
    ) -> impl Future<Output = Result<Decision, RequestPerMinute>> + Send + use<'a, K> {
        let key = Key::new(key);
        async move {
            let engine = self.engine();
            let rule = &engine.settings().rules_now().applied(rule, Some(&key), false, false).unwrap_or(*rule);
            let charge = engine.charge(rule, Some(&key), rule.limit().min(1))?; // a count of 0 has no wait to tell
            let Some(store) = engine.store() else {
                return Ok(charge.decision);
            };
            let batch = Request::new(charge, false).into();
            let request = engine.within_deadline(store.decide(batch)).await.map(Batch::into_first);
            match request {
                Ok(Some(Request { charges, outcome: Ok(_), .. })) => {
                    Ok(charges.first().map_or(Decision::fresh(rule.limit()), |charge| charge.decision))
                }
                Ok(Some(Request { outcome: Err(error), .. })) | Err(error) => Err(refusal(rule, error)),
                Ok(None) => Err(refusal(rule, StoreError::no_answer())),
            }
        }
    }

    /// Forgets what the rule's counter for this key has counted.
    ///
    /// A permit from before the reset is worth nothing after it, unless the next charge is made in the same tick of the
    /// store's clock (a millisecond, or a microsecond for logs): the two cannot be told apart. Sliding windows, token buckets and leaky
    /// buckets know no charge by itself: there it may return, up to what it was charged, what others have been charged since.
    ///
    /// # Errors
    ///
    /// [`Cause::Unavailable`](crate::Cause::Unavailable) or [`Cause::Misconfigured`](crate::Cause::Misconfigured), whatever the failure policy. The counter may or may not have been
    /// reset then.
    pub fn reset<'a, K: RateKey>(
        &'a self,
        rule: &'a Rule,
        key: K,
    ) -> impl Future<Output = Result<(), RequestPerMinute>> + Send + use<'a, K> {
        let key = Key::new(key);
        async move {
            let engine = self.engine();
            let rule = &engine.settings().rules_now().applied(rule, Some(&key), false, false).unwrap_or(*rule);
            let charge = engine.charge(rule, Some(&key), 0)?;
            let Some(store) = engine.store() else {
                return Ok(());
            };
            let id = charge.counter.id();
            let reset = engine.within_deadline(store.reset(charge.counter)).await;
            engine.queues().changed_id(id);
            reset.and_then(|done| done).map_err(|error| refusal(rule, error))
        }
    }

    /// Refunds what was taken from the store ahead of need, see [`Rule::with_prefetch`], and takes no more so. Returns how many permits that were.
    /// Also waits for what calls held that have ended, and is being settled with the store in the background.
    ///
    /// For the end of a program. Callers who wait for a limit are refused, and so are later ones who would have to wait. The
    /// limiter goes on deciding, but asks the store for each call.
    /// What can't be refunded within the deadline stays charged until its window ends; the log says so.
    ///
    /// ```
    /// # use ratelimit_runtime::Limiter;
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let limiter = Limiter::in_memory();
    /// assert_eq!(limiter.close().await, 0); // in memory nothing is taken ahead
    /// # });
    /// ```
    ///
    /// # Cancellation
    ///
    /// A future dropped half way has refunded some of it, and the rest stays charged.
    pub async fn close(&self) -> u64 {
        let engine = self.engine();
        engine.queues().close();
        if !engine.settlements().is_empty() {
            let _ = tokio::time::timeout(engine.settings().deadline, engine.settlements().all().done()).await;
        }
        match engine.guard() {
            Some(guarded) => guarded.close().await,
            None => 0,
        }
    }

    /// Whether the store decides, as far as that is known: nothing is asked, and nothing waited for.
    ///
    /// Degraded while the breaker of a server is open, and for a second after a decision could not
    /// be made. A server that is lost while there are no calls is known after some 10 seconds at
    /// most. The memory store is always available.
    ///
    /// The log has an event when decisions begin to fail, and one when they are made again and none
    /// has failed for a second; so has the gauge `ratelimit_degraded` (feature `metrics`).
    ///
    /// ```
    /// # use ratelimit_runtime::{Health, Limiter, OnStoreError, Rule};
    /// # use std::time::Duration;
    /// const RULE: Rule = Rule::new("item", 1, Duration::from_secs(60));
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// // Nobody listens there.
    /// let limiter = Limiter::builder("redis://127.0.0.1:1").lazy().build().await.unwrap();
    /// assert_eq!(limiter.health(), Health::Available); // nothing is known yet
    ///
    /// limiter.acquire(&RULE, "alice").await.unwrap(); // this process counts alone
    /// let Health::Degraded { reason, .. } = limiter.health() else { panic!() };
    /// assert!(reason.starts_with("127.0.0.1:1: "), "{reason}");
    /// # });
    /// ```
    pub fn health(&self) -> Health {
        self.engine().health()
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter")
            .field("store", self.engine().backend())
            .field("settings", self.engine().settings())
            .finish_non_exhaustive()
    }
}
