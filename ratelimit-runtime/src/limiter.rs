//! The limiter: turns a rule, a key and a cost into a permit or a refusal.

use std::{borrow::Cow, fmt, future::Future, time::Duration};

use crate::{
    Cause, Decision, Health, Key, OnStoreError, Permit, RateKey, RequestPerMinute, Rule,
    engine::{
        acquire::Acquire,
        core::{Engine, EngineRef},
        handle::Handles,
        options::{AcquireOptions, OnLimit},
        refusal,
        request::{ChargeRequest, ChargeRequests, CostKind, RequestKey},
    },
    rule::call_kind::CallKind,
    store::{Batch, Charge, Reply, Request, Store, StoreError},
};

/// A limiter decides which calls may run.
///
/// It is a cheap handle: clones share its counters. Its store is memory, Redis, or one of your own;
/// see [`Limiter::builder`].
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
    /// A reference to the engine, for one call.
    #[inline]
    pub(crate) fn engine_ref(&self) -> EngineRef {
        self.0.engine_ref()
    }

    #[inline]
    pub(crate) fn engine(&self) -> &Engine {
        self.0.engine()
    }

    /// Charges a cost of 1 to the rule's counter for this key. [`Key::NONE`] is the key of a rule that
    /// has one counter for all callers.
    ///
    /// With a [`LeakyBucket`](crate::Algorithm::LeakyBucket), the future of an admitted call sleeps
    /// until its slot.
    ///
    /// # Errors
    ///
    /// [`RequestPerMinute`] if the call is refused, and nothing is charged. The exception is
    /// [`Cause::Unavailable`](crate::Cause::Unavailable): a server that does not answer in time may
    /// have charged the call.
    ///
    /// # Cancellation
    ///
    /// A future that was never polled has charged nothing. A future that is dropped during a query
    /// to Redis may or may not have charged. A future that is dropped while it sleeps until its
    /// slot refunds the slot, if no later one was given: at once in memory, in the background on Redis.
    ///
    /// # Panics
    ///
    /// - On a Redis store, within a tokio runtime that was built without `enable_time`.
    /// - When it has to sleep outside of a tokio runtime.
    #[inline]
    pub fn acquire<K: RateKey>(
        &self,
        rule: &Rule,
        key: K,
    ) -> impl Future<Output = Result<Permit, RequestPerMinute>> + Send + use<K> {
        self.acquire_n(rule, key, 1)
    }

    /// [`Limiter::acquire`] for code that is not async: the thread waits for the decision.
    ///
    /// On the memory store, the call is decided at once, on any thread. The thread sleeps only until
    /// its slot of a [`LeakyBucket`](crate::Algorithm::LeakyBucket).
    ///
    /// On any other store the thread waits for the reply, for at most the deadline, or longer with
    /// [`OnStoreError::Wait`](crate::OnStoreError::Wait). The connections are those of the
    /// [background thread](crate::guide::how_it_works#background-work). So the call needs no tokio runtime, and the one
    /// that the limiter was built on may have ended.
    ///
    /// ```
    /// # use ratelimit_runtime::{Limiter, Rule};
    /// # use std::{thread, time::Duration};
    /// const RULE: Rule = Rule::new("item", 2, Duration::from_secs(60));
    ///
    /// let limiter = Limiter::in_memory();
    /// assert!(limiter.acquire_blocking(&RULE, "alice").is_ok());
    /// thread::scope(|scope| scope.spawn(|| limiter.acquire_blocking(&RULE, "alice").map(drop)).join().unwrap())?;
    /// assert!(limiter.acquire_blocking(&RULE, "alice").is_err());
    /// # Ok::<_, ratelimit_runtime::RequestPerMinute>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Limiter::acquire`]. Also [`Cause::Unavailable`](crate::Cause::Unavailable), whatever
    /// the failure policy, if the system has no thread for the background work.
    ///
    /// # Panics
    ///
    /// If it has to wait on a thread that runs async tasks: all of them would stand still. Call it
    /// inside [`spawn_blocking`](tokio::task::spawn_blocking) there. Nothing is charged.
    #[track_caller]
    pub fn acquire_blocking<K: RateKey>(&self, rule: &Rule, key: K) -> Result<Permit, RequestPerMinute> {
        Acquire::single(self.engine_ref(), rule, RequestKey::Some(Key::new(key)), 1, AcquireOptions::default()).block()
    }

    /// Charges a cost to the rule's counter for this key.
    ///
    /// The cost is in the units of the rule's count. A cost of 0 is admitted whatever the counter holds, but
    /// for a ban, and charges nothing. Errors, cancellation and panics are as for [`Limiter::acquire`].
    #[inline]
    pub fn acquire_n<K: RateKey>(
        &self,
        rule: &Rule,
        key: K,
        cost: u64,
    ) -> impl Future<Output = Result<Permit, RequestPerMinute>> + Send + use<K> {
        Acquire::single(self.engine_ref(), rule, RequestKey::Some(Key::new(key)), cost, AcquireOptions::default())
    }

    /// Charges a cost of 1, and waits for up to `longest` if the limit is reached.
    ///
    /// Waiting callers of one counter, with one count, are served in the order of their arrival, within this
    /// process. Calls that do not wait are not delayed by them.
    ///
    /// The call is refused at once
    ///
    /// - if its turn would come after `longest`, judged by the callers ahead of it. `retry_after`
    ///   is then the time until its turn;
    /// - if too many callers wait; see [`Builder::max_waiting`](crate::Builder::max_waiting).
    ///
    /// [The guide](crate::guide::how_it_works#waiting) describes waiting for several rules, and the effect of
    /// refunds and of other processes.
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
    /// [`RequestPerMinute`] if the call is refused, and nothing is charged. The exception is
    /// [`Cause::Unavailable`](crate::Cause::Unavailable): a server that does not answer in time may
    /// have charged the call.
    ///
    /// # Cancellation
    ///
    /// A future that is dropped while it waits leaves its wait queue, and the callers behind it move up.
    /// It has charged nothing, unless it was dropped during a query to Redis: then it may or may
    /// not have charged.
    ///
    /// A future that is kept but not polled blocks the callers behind it when its turn has come.
    ///
    /// # Time
    ///
    /// The time is rounded up to whole milliseconds, as all waits are: a call may wait for up to one more. A query to
    /// Redis that is on its way when the time is over is awaited: the call may return up to two deadlines later.
    ///
    /// # Panics
    ///
    /// As for [`Limiter::acquire`]. Also on the memory store, when it has to wait outside of a
    /// tokio runtime with time enabled.
    pub fn acquire_within<K: RateKey>(
        &self,
        rule: &Rule,
        key: K,
        longest: Duration,
    ) -> impl Future<Output = Result<Permit, RequestPerMinute>> + Send + use<K> {
        let options = AcquireOptions::new(OnLimit::Wait(Some(longest)), None);
        Acquire::single(self.engine_ref(), rule, RequestKey::Some(Key::new(key)), 1, options)
    }

    /// Charges several rules, each with its own key and cost: all of them, or none.
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
    /// Two charges of the same counter are merged: their costs add up, and the lower limit applies.
    /// Of two token buckets, the lower count applies, too.
    ///
    /// On one Redis server, all charges are made by one script. In a Redis Cluster too, if the
    /// rules have the same key and so the same slot. Otherwise:
    ///
    /// - All charges are first checked, in one round trip.
    /// - If all fit, they are charged hash slot by hash slot, in one round trip each.
    /// - If a later one refuses after all, or fails, the charges of earlier slots are refunded.
    ///
    /// The limits are never exceeded by this. But a concurrent call may be refused because of
    /// charges that are about to be refunded.
    ///
    /// # Errors
    ///
    /// - [`RequestPerMinute`] if a rule refuses. It names the rule with the longest wait. A rule that only waits
    ///   for running calls is named if no other refuses, as its wait is unknown. No rule is charged. The exception
    ///   is [`Cause::Unavailable`](crate::Cause::Unavailable), after
    ///   which some rules may have been charged.
    /// - [`Cause::Misconfigured`](crate::Cause::Misconfigured) if one of several rules is a
    ///   [`LeakyBucket`](crate::Algorithm::LeakyBucket) or has a [prefetch](Rule::with_prefetch). These can't
    ///   be combined with others.
    ///
    /// # Cancellation
    ///
    /// As for [`Limiter::acquire`]: all of the charges were made, or none. In a cluster, over
    /// several hash slots, the charges of a dropped future are refunded in the background. A charge that
    /// can't be refunded within a second stays. Places and other holds are released for up to a minute.
    ///
    /// # Panics
    ///
    /// As for [`Limiter::acquire`].
    #[inline]
    pub fn acquire_all(
        &self,
        charges: &[(&Rule, Key, u64)],
    ) -> impl Future<Output = Result<Permit, RequestPerMinute>> + Send + use<> {
        let fill = |requests: &mut ChargeRequests| {
            requests.extend(charges.iter().map(|(rule, key, cost)| {
                let key = RequestKey::Some(key.clone());
                ChargeRequest { key, rule: **rule, cost: *cost, cost_kind: CostKind::Fixed }
            }));
        };
        Acquire::all(self.engine_ref(), fill, AcquireOptions::default(), OnLimit::Reject)
    }

    /// Charges as much of a cost as fits, at least 1. Returns the granted cost and its permit.
    ///
    /// A cost of 0 is granted as 0. If not all of it fits, the store is asked again for what
    /// remains, so a partial grant takes two round trips. It takes one more each time that another
    /// call takes some of that in between. Each is one call for the metrics.
    ///
    /// ```
    /// # use ratelimit_runtime::{Limiter, Rule};
    /// # use std::time::Duration;
    /// const ROWS: Rule = Rule::new("rows", 100, Duration::from_secs(60));
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let limiter = Limiter::in_memory();
    /// let (granted, _) = limiter.acquire_up_to(&ROWS, "alice", 80).await?;
    /// assert_eq!(granted, 80);
    /// let (granted, permit) = limiter.acquire_up_to(&ROWS, "alice", 80).await?;
    /// assert_eq!(granted, 20);
    /// assert!(limiter.acquire_up_to(&ROWS, "alice", 80).await.is_err());
    ///
    /// assert_eq!(permit.refund().await?, 20); // what was not used after all
    /// # Ok::<_, ratelimit_runtime::RequestPerMinute>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Limiter::acquire_n`] with a cost of 1: nothing fits.
    ///
    /// # Cancellation
    ///
    /// As for [`Limiter::acquire`].
    ///
    /// # Panics
    ///
    /// As for [`Limiter::acquire`].
    pub fn acquire_up_to<K: RateKey>(
        &self,
        rule: &Rule,
        key: K,
        most: u64,
    ) -> impl Future<Output = Result<(u64, Permit), RequestPerMinute>> + Send + use<K> {
        let (limiter, rule, key) = (self.clone(), *rule, Key::new(key));
        async move { limiter.acquire_up_to_with(&rule, key, most, AcquireOptions::default()).await }
    }

    /// Charges a cost whether or not it fits, for use that is known afterwards.
    ///
    /// A counter that was charged more than its limit is in debt. Nothing remains then, and
    /// `retry_after` is the time until the debt is over and a cost fits:
    ///
    /// | algorithm | end of the debt |
    /// |---|---|
    /// | `FixedWindow` | its window ends: a debt does not pass to the next one |
    /// | `SlidingLog` `SlidingWindow` | enough of it has left the period |
    /// | `TokenBucket` | it has refilled |
    ///
    /// Permits that processes have [prefetched](Rule::with_prefetch) stay.
    ///
    /// ```
    /// # use ratelimit_runtime::{Algorithm, Limiter, Refill, Rule};
    /// # use std::time::Duration;
    /// const BYTES: Rule = Rule::new("bytes", 1_000, Duration::from_secs(1))
    ///     .with_algorithm(Algorithm::TokenBucket { burst: 1_000, refill: Refill::Greedy });
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let limiter = Limiter::in_memory();
    /// limiter.charge(&BYTES, "alice", 61_000).await?; // the answer was longer than anyone thought
    ///
    /// let refused = limiter.acquire(&BYTES, "alice").await.unwrap_err();
    /// assert!(refused.retry_after().unwrap() > Duration::from_secs(59));
    /// # Ok::<_, ratelimit_runtime::RequestPerMinute>(()) }).unwrap();
    /// ```
    ///
    /// While the store is away, the failure policy applies: under
    /// [`OnStoreError::Allow`](crate::OnStoreError::Allow) it returns `Ok` and nothing is charged.
    /// Under [`OnStoreError::Local`](crate::OnStoreError::Local) the debt is of this process alone,
    /// and the store never learns of it.
    ///
    /// # Errors
    ///
    /// - [`Cause::Misconfigured`](crate::Cause::Misconfigured) for the places of
    ///   [`Algorithm::Concurrent`](crate::Algorithm::Concurrent), and for the slots of a
    ///   [`LeakyBucket`](crate::Algorithm::LeakyBucket).
    /// - [`Cause::NeverFits`](crate::Cause::NeverFits) or
    ///   [`Cause::Exceeded`](crate::Cause::Exceeded) if the counter would exceed the largest number
    ///   that it can store, see [`Rule::new`]. Nothing is charged. So it is if the count is 0.
    /// - Otherwise as for [`Limiter::acquire`].
    ///
    /// # Cancellation
    ///
    /// As for [`Limiter::acquire`].
    ///
    /// # Panics
    ///
    /// As for [`Limiter::acquire`].
    pub fn charge<K: RateKey>(
        &self,
        rule: &Rule,
        key: K,
        cost: u64,
    ) -> impl Future<Output = Result<(), RequestPerMinute>> + Send + use<K> {
        let key = RequestKey::Some(Key::new(key));
        let request = ChargeRequest { rule: *rule, key, cost, cost_kind: CostKind::Forced };
        let fill = |requests: &mut ChargeRequests| requests.push(request);
        let acquire = Acquire::all(self.engine_ref(), fill, AcquireOptions::default(), OnLimit::Reject);
        async move { acquire.await.map(drop) }
    }

    /// The decision of the rule's counter for this key on a cost of 1. Charges nothing.
    ///
    /// The store is always queried, never the denial cache. To peek at the counter of an annotated
    /// function, name one constant in both places: `rule = ORDERS` in the attribute.
    ///
    /// # Errors
    ///
    /// [`Cause::Unavailable`](crate::Cause::Unavailable) or
    /// [`Cause::Misconfigured`](crate::Cause::Misconfigured), whatever the failure policy.
    ///
    /// # Panics
    ///
    /// On a Redis store, within a tokio runtime that was built without `enable_time`.
    pub fn peek<'a, K: RateKey>(
        &'a self,
        rule: &'a Rule,
        key: K,
    ) -> impl Future<Output = Result<Decision, RequestPerMinute>> + Send + use<'a, K> {
        let key = Key::new(key);
        async move {
            let engine = self.engine();
            let rules = || engine.settings().rules_now();
            let rule = &rules().applied_as_calls(rule, &key).into_owned();
            let charge = engine.charge(rule, &key, rule.limit().min(1))?; // with a count of 0, a cost of 1 would have no wait to report
            let Some(store) = engine.store() else {
                return Ok(charge.decision);
            };
            let batch = Request::new(charge, false).into();
            let request = engine.within_deadline(store.decide(batch)).await.map(Batch::into_first);
            match request {
                Ok(Some(Request { charges, outcome: Ok(_), .. })) => {
                    let decision = charges.first().map_or(Decision::fresh(rule.limit()), |charge| charge.decision);
                    // A place becomes free at an unknown time.
                    Ok(if rule.is_concurrent() { decision.without_retry() } else { decision })
                }
                Ok(Some(Request { outcome: Err(error), .. })) | Err(error) => Err(refusal(rule, error)),
                Ok(None) => Err(refusal(rule, StoreError::no_answer())),
            }
        }
    }

    /// Resets the rule's counter for this key: it starts fresh, and is not banned.
    ///
    /// Places and costs that running calls hold become free, although these calls go on.
    ///
    /// Another process that has cached a denial of this counter may refuse by it until it ends: see
    /// [`Rule::with_denial_cache`].
    ///
    /// A permit from before the reset refunds nothing after it. There are two exceptions:
    ///
    /// - The next charge is made in the same tick of the store's clock (a millisecond, or a
    ///   microsecond for logs). The two charges cannot be told apart.
    /// - Sliding windows, token buckets and leaky buckets do not store single charges. A refund may
    ///   return later charges of other calls, up to the permit's own cost.
    ///
    /// # Errors
    ///
    /// [`Cause::Unavailable`](crate::Cause::Unavailable) or
    /// [`Cause::Misconfigured`](crate::Cause::Misconfigured), whatever the failure policy. The
    /// counter may or may not have been reset then.
    ///
    /// # Cancellation
    ///
    /// A future that is dropped during a query to the store may or may not have reset the counter.
    ///
    /// # Panics
    ///
    /// On a Redis store, within a tokio runtime that was built without `enable_time`.
    pub fn reset<'a, K: RateKey>(
        &'a self,
        rule: &'a Rule,
        key: K,
    ) -> impl Future<Output = Result<(), RequestPerMinute>> + Send + use<'a, K> {
        let key = Key::new(key);
        async move { self.change(rule, &key, |store, charge| store.reset(charge.counter)).await }
    }

    /// Bans the rule's counter for this key: every call is refused as
    /// [`Cause::Banned`](crate::Cause::Banned) for this time, whatever its cost.
    ///
    /// - Of two bans, the one that ends later holds: a further ban can prolong a ban, and never
    ///   shortens it. [`Limiter::unban`] ends it.
    /// - A ban takes the place of the counter's state. So it lasts at least until none of the
    ///   counter's charges would count any more, which [`Decision::reset_after`] says: for a window
    ///   until its end, for a bucket until it is full. After it the counter is fresh. A
    ///   [`SlidingLog`](crate::Algorithm::SlidingLog) keeps its charges and holds below the ban, which
    ///   lasts exactly as long as given. The ban of a counter without charges, such as that of a rule for
    ///   bans only, does so, too.
    /// - All processes that share the store refuse the calls. A process that has cached a denial of
    ///   the counter gives that until it ends. Permits that another process has
    ///   [prefetched](Rule::with_prefetch) are spent first; this process drops its own.
    /// - Earlier charges are not refunded while the counter is banned. Holds are renewed and settled
    ///   as usual.
    /// - A call that waits for the limit waits until the ban ends, also a call that comes during the
    ///   ban. If the ban is longer than its longest wait, it is refused at once as
    ///   [`Cause::Banned`](crate::Cause::Banned).
    /// - While a server is away, its bans are unknown: with
    ///   [`OnStoreError::Local`](crate::OnStoreError::Local) calls are admitted by this process.
    ///
    /// The time is rounded up to a millisecond, and a longer one than [`Rule::LONGEST_PERIOD`] counts as
    /// that. A zero time
    /// bans nothing. Bans of 1 ms may take 2 ms.
    ///
    /// ```
    /// # use ratelimit_runtime::{Cause, Limiter, Rule};
    /// # use std::time::Duration;
    /// const LOGINS: Rule = Rule::new("login", 5, Duration::from_secs(60));
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let limiter = Limiter::in_memory();
    /// limiter.ban(&LOGINS, "mallory", Duration::from_secs(3600)).await?;
    /// let refused = limiter.acquire(&LOGINS, "mallory").await.unwrap_err();
    /// assert_eq!(refused.cause(), Cause::Banned);
    /// assert!(refused.retry_after() > Some(Duration::from_secs(3500)));
    /// assert!(limiter.peek(&LOGINS, "mallory").await?.is_banned());
    ///
    /// limiter.unban(&LOGINS, "mallory").await?;
    /// limiter.acquire(&LOGINS, "mallory").await?;
    /// # Ok::<_, ratelimit_runtime::RequestPerMinute>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Cause::Unavailable`](crate::Cause::Unavailable), whatever the failure policy. The counter
    ///   may or may not be banned then.
    /// - [`Cause::Misconfigured`](crate::Cause::Misconfigured), also for a rule with
    ///   [`LeakyBucket`](crate::Algorithm::LeakyBucket) or
    ///   [`Concurrent`](crate::Algorithm::Concurrent), and for a store without bans.
    ///
    /// # Cancellation
    ///
    /// A future that is dropped during a query to the store may or may not have banned the counter.
    ///
    /// # Panics
    ///
    /// On a Redis store, within a tokio runtime that was built without `enable_time`.
    pub fn ban<'a, K: RateKey>(
        &'a self,
        rule: &'a Rule,
        key: K,
        time: Duration,
    ) -> impl Future<Output = Result<(), RequestPerMinute>> + Send + use<'a, K> {
        let key = Key::new(key);
        async move {
            if time.is_zero() {
                return Ok(());
            }
            self.change(rule, &key, |store, charge| {
                if charge.rule.supports_bans() {
                    return store.ban(charge, time);
                }
                let algorithm = charge.rule.algorithm();
                Reply::Ready(Err(StoreError::misconfigured(format!("counters of a {algorithm:?} cannot be banned"))))
            })
            .await
        }
    }

    /// Ends a ban of the rule's counter for this key. The counter starts fresh, but for its holds.
    /// A counter that is not banned stays as it is.
    ///
    /// - Permits that this process has prefetched are dropped. If there was no ban, they stay charged until
    ///   their window ends.
    /// - Other processes may refuse calls for a second more, as they cache bans for so long, or until
    ///   the end of a denial that they have cached before the ban.
    /// - A permit from before the ban that is refunded now may credit later charges, as after
    ///   [`Limiter::reset`].
    /// - Permits that another process had prefetched before the ban can still be spent.
    ///
    /// Errors, cancellation and panics are as for [`Limiter::ban`], where there is an example.
    pub fn unban<'a, K: RateKey>(
        &'a self,
        rule: &'a Rule,
        key: K,
    ) -> impl Future<Output = Result<(), RequestPerMinute>> + Send + use<'a, K> {
        let key = Key::new(key);
        async move {
            self.change(rule, &key, |store, charge| {
                if charge.rule.supports_bans() { store.ban(charge, Duration::ZERO) } else { Reply::Ready(Ok(())) }
            })
            .await
        }
    }

    /// Changes the rule's counter for a key.
    async fn change(
        &self,
        rule: &Rule,
        key: &Key,
        act: impl FnOnce(&dyn Store, Charge) -> Reply<Result<(), StoreError>>,
    ) -> Result<(), RequestPerMinute> {
        let engine = self.engine();
        let rules = || engine.settings().rules_now();
        let rule = &rules().applied_as_calls(rule, key).into_owned();
        let charge = engine.charge(rule, key, 0)?;
        let Some(store) = engine.store() else {
            return Ok(());
        };
        let changed = engine.queues().changed_on_drop([charge.counter.id()].into());
        let done = engine.within_deadline(act(store, charge)).await;
        drop(changed);
        done.and_then(|done| done).map_err(|error| refusal(rule, error))
    }

    /// Shuts down the limiter's use of the store, at the end of a program. Returns the number of
    /// prefetched permits that were refunded.
    ///
    /// - Prefetched permits that are not spent are refunded, and no more are prefetched; see
    ///   [`Rule::with_prefetch`]. Permits that can't be refunded within the deadline stay charged
    ///   until their window ends, and the log has a warning.
    /// - Waiting callers are refused with [`Cause::Exceeded`](crate::Cause::Exceeded), and so are later ones that
    ///   would have to wait. One whose `retry_after` is not known asks the store for it first. Callers who wait
    ///   for the store get [`Cause::Unavailable`](crate::Cause::Unavailable). A call that has a slot of
    ///   a [`LeakyBucket`](crate::Algorithm::LeakyBucket) still waits for it.
    /// - It waits for settlements and refunds that run in the background, for at most the deadline, also for refunds
    ///   that begin meanwhile. Those that have failed, because the store was away, are tried again in that time, and
    ///   then no more. It does not wait for the clean-up after a caller who left before the store's answer.
    /// - Settlements and refunds that fail later, or just before that time is over, are tried again for one deadline
    ///   more.
    /// - All of it takes at most two deadlines, and one more for each 256 counters with prefetched permits.
    ///
    /// The limiter goes on deciding. Each call that no cached denial refuses asks the store.
    ///
    /// ```
    /// # use ratelimit_runtime::Limiter;
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let limiter = Limiter::in_memory();
    /// assert_eq!(limiter.close().await, 0); // the memory store needs no prefetch
    /// # });
    /// ```
    ///
    /// # Cancellation
    ///
    /// A future that is dropped before it ends has refunded some of the permits. The others stay
    /// charged.
    ///
    /// # Panics
    ///
    /// On any store but memory, outside of a tokio runtime with time enabled.
    pub async fn close(&self) -> u64 {
        let engine = self.engine();
        engine.queues().close();
        engine.outage_waiters().close();
        engine.settlements().close(engine.settings().deadline).await;
        match engine.guard() {
            Some(guard) => guard.close().await,
            None => 0,
        }
    }

    /// The health of the store, as far as is known. Returns at once. If a node of a cluster is lost, it makes
    /// this runtime look for the node that has its slots now.
    ///
    /// It is degraded while the breaker of a server is open, and for a second after a decision has
    /// failed. A server that is lost while there are no calls is noticed within some 10 seconds.
    /// The memory store is always available.
    ///
    /// The log has an event when decisions begin to fail. It has another one when they succeed
    /// again and none has failed for a second. The gauge `ratelimit_degraded` (feature `metrics`)
    /// changes with them.
    ///
    /// ```
    /// # use ratelimit_runtime::{Health, Limiter, OnStoreError, Rule};
    /// # use std::time::Duration;
    /// const RULE: Rule = Rule::new("item", 1, Duration::from_secs(60));
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// // No server listens there.
    /// let limiter = Limiter::builder("redis://127.0.0.1:1").lazy().build().await.unwrap();
    /// assert_eq!(limiter.health(), Health::Available); // nothing is known yet
    ///
    /// limiter.acquire(&RULE, "alice").await.unwrap(); // counted in this process alone
    /// let Health::Degraded { reason, .. } = limiter.health() else { panic!() };
    /// assert!(reason.starts_with("127.0.0.1:1: "), "{reason}");
    /// # });
    /// ```
    pub fn health(&self) -> Health {
        self.engine().health()
    }
}

impl Limiter {
    /// [`Limiter::acquire_up_to`] with these options.
    pub(crate) async fn acquire_up_to_with(
        &self,
        rule: &Rule,
        key: Key,
        most: u64,
        options: AcquireOptions,
    ) -> Result<(u64, Permit), RequestPerMinute> {
        let (limit, share, is_local, is_enforced) = {
            let settings = self.engine().settings();
            let rules = settings.rules_now();
            let instances = settings.instances.map_or(1, |instances| instances.get().into());
            let policy = rules.on_store_error(rule.prefix()).or(options.on_store_error());
            let has_store = self.engine().store().is_some();
            let numbers = |rule: Cow<'_, Rule>| {
                (rule.limit(), rule.divided_among(instances).limit().max(1), has_store && !rule.is_shadow())
            };
            let applied = rules.applied(rule, &key, CallKind::default());
            let (limit, share, is_enforced) = applied.map_or((u64::MAX, u64::MAX, false), numbers);
            (limit, share, matches!(policy.unwrap_or(settings.on_store_error), OnStoreError::Local), is_enforced)
        };
        let mut cost = most.min(limit.max(1));
        loop {
            let request_key = RequestKey::Some(key.clone());
            // Only if nothing fits, the refusal bans.
            let options = if cost > 1 { options.sparing() } else { options };
            match Acquire::single(self.engine_ref(), rule, request_key, cost, options).await {
                Ok(permit) => return Ok((if is_enforced { cost } else { most }, permit)),
                // Less each time, so it ends: each further round trip is due to another call's charge, or to a lower
                // count of the rules file.
                Err(refused) if cost > 1 && refused.cause() == Cause::Exceeded => {
                    cost = refused.remaining().min(cost - 1).max(1);
                }
                Err(refused) if cost > 1 && refused.cause() == Cause::NeverFits => {
                    cost = refused.limit().min(cost - 1).max(1);
                }
                // While the store is away, this process grants no more than its share.
                Err(refused) if is_local && cost > share && refused.cause() == Cause::Unavailable => cost = share,
                Err(refused) => return Err(refused),
            }
        }
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
