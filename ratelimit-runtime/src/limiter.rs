//! The one way in: a rule, a key and a cost become a permit or a refusal.

use std::{
    fmt,
    future::{Future, poll_fn},
    ops,
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use once_cell::sync::OnceCell;
use smallvec::SmallVec;
use tokio::{
    runtime::Handle,
    sync::watch::Receiver,
    time::{Instant, sleep},
};
use tracing::Instrument as _;

use crate::{
    Builder, Clock, CounterName, Decision, Health, Key, OnStoreError, Permit, RateKey, RequestPerMinute, Rule,
    SetupError, background,
    call::{Asked, AskedKey, Call, CountedBy, Holds, Manner, OnLimit},
    counter::CounterId,
    guard::{Behind, Guarded},
    health::HealthTracker,
    hold::Settlements,
    memory::Memory,
    observe::{self, LogThrottle, StoreTimer},
    permit::ChargedInMemory,
    queue::WaitQueues,
    renewals::Renewals,
    store::{Batch, Charge, Charges, Reply, Request, Store, StoreError},
    sync::{CachePadded, thread_index},
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
pub struct Limiter(Arc<[Held; HANDLES]>);

/// A limiter as a call and its permit hold it.
#[derive(Clone)]
pub(crate) enum Held {
    /// The process-wide one, which nobody can drop.
    ForEver(&'static Inner),
    /// Who holds it is counted for some of the threads together, and not for all: threads that count at one place are as slow as threads
    /// that decide on one key.
    Counted(Arc<CachePadded<Arc<Inner>>>),
}

const HANDLES: usize = 16;

impl ops::Deref for Held {
    type Target = Inner;

    #[inline]
    fn deref(&self) -> &Inner {
        match self {
            Self::ForEver(inner) => inner,
            Self::Counted(inner) => inner,
        }
    }
}

/// Where a limiter counts.
#[allow(clippy::large_enum_variant)] // a limiter has one, and it is not moved
#[derive(Debug)]
pub(crate) enum Storage {
    /// Nowhere: it limits nothing.
    None,
    Memory(Memory),
    Other(Guarded),
}

pub(crate) struct Inner {
    storage: Storage,
    settings: Settings,
    queues: WaitQueues,
    settlements: Settlements,
    renewals: Arc<Renewals>,
    /// Counts for this process alone while the store is away.
    local: OnceCell<Memory>,
    seen: Arc<HealthTracker>,
}

/// What a builder settles.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) clock: Clock,
    pub(crate) namespace: String,
    pub(crate) deadline: Duration,
    pub(crate) instances: u64,
    pub(crate) on_store_error: OnStoreError,
    pub(crate) max_keys: usize,
    pub(crate) max_waiting: usize,
    /// Whether counting in this process is what the store does anyway.
    pub(crate) is_local: bool,
    /// What a file says of rules.
    #[cfg(feature = "config")]
    pub(crate) rules: Option<crate::config::Rules>,
}

impl Settings {
    /// The rules as they hold now. A call takes them once, for all of its rules.
    #[cfg_attr(not(feature = "config"), allow(clippy::unused_self))]
    #[inline]
    pub(crate) fn rules_now(&self) -> RulesNow {
        RulesNow {
            #[cfg(feature = "config")]
            table: self.rules.as_ref().map(crate::config::Rules::now),
        }
    }

    /// Tells of each change of the rules from now on, if they can change.
    #[cfg_attr(not(feature = "config"), allow(clippy::unused_self))]
    pub(crate) fn rule_changes(&self) -> Option<Receiver<()>> {
        #[cfg(feature = "config")]
        return self.rules.as_ref().map(crate::config::Rules::changes);
        #[cfg(not(feature = "config"))]
        None
    }

    /// Whether rules hold as the code says.
    #[cfg_attr(not(feature = "config"), allow(clippy::unused_self))]
    #[inline]
    pub(crate) fn rules_are_as_written(&self) -> bool {
        #[cfg(feature = "config")]
        return self.rules.is_none();
        #[cfg(not(feature = "config"))]
        true
    }
}

/// The rules as they held when a call took them.
pub(crate) struct RulesNow {
    #[cfg(feature = "config")]
    table: Option<arc_swap::Guard<Arc<crate::config::Table>>>,
}

#[cfg_attr(not(feature = "config"), allow(clippy::unused_self, clippy::unnecessary_wraps, unused_variables))]
impl RulesNow {
    /// The rule as it holds for a key. `None` if it is not to be asked.
    pub(crate) fn hold(
        &self,
        rule: &Rule,
        key: Option<&Key>,
        is_settled: bool,
        is_one_of_several: bool,
    ) -> Option<Rule> {
        #[cfg(feature = "config")]
        if let Some(table) = &self.table {
            return table.hold(rule, key, crate::config::Use { is_settled, is_one_of_several });
        }
        Some(*rule)
    }

    /// The policy for calls of a rule that the store can't decide.
    pub(crate) fn on_store_error(&self, prefix: &str) -> Option<OnStoreError> {
        #[cfg(feature = "config")]
        if let Some(table) = &self.table {
            return table.on_store_error(prefix);
        }
        None
    }
}

impl Limiter {
    /// A limiter that counts in this process's memory.
    ///
    /// It holds up to a million counters. Decisions take no timer and no runtime; waiting does.
    pub fn in_memory() -> Self {
        Builder::memory()
    }

    /// A limiter on the store the URL names, with every setting at its default. See [`Limiter::builder`].
    ///
    /// # Errors
    ///
    /// A [`SetupError`] if the URL is wrong or the server does not answer.
    ///
    /// ```no_run
    /// # use ratelimit_runtime::{Limiter, SetupError};
    /// # async fn start() -> Result<(), SetupError> {
    /// let limiter = Limiter::connect("redis://127.0.0.1:6379").await?;
    /// # Ok(()) }
    /// ```
    pub async fn connect(url: &str) -> Result<Self, SetupError> {
        Self::builder(url).build().await
    }

    /// Settings for a limiter on the store the URL names.
    ///
    /// | URL | store |
    /// |---|---|
    /// | `memory://` | this process |
    /// | `redis://user:password@host:port/database` | one Redis server, over TCP |
    /// | `rediss://..` | the same, over TLS (feature `rustls`) |
    /// | `redis+unix:///path/to/socket?db=1&user=..&pass=..` | the same, over a unix socket |
    /// | `redis+cluster://user:password@host:port,host:port` | a Redis Cluster; some of its nodes, which know the others |
    /// | `redis+sentinel://user:password@host:port,host:port/service/database` | the primary of the service that these sentinels name |
    /// | `rediss+cluster://..`, `rediss+sentinel://..` | the same two, over TLS (feature `rustls`) |
    ///
    /// User, password and database may be left out, and ports: then 6379, and 26379 for a sentinel. `valkey` may stand for `redis`
    /// everywhere. `?protocol=resp2` makes connections speak the older protocol.
    ///
    /// All nodes of a cluster take the same user and password. Those of a URL of sentinels are the servers'; for what the sentinels
    /// themselves ask see [`Builder::sentinel_credentials`].
    ///
    /// The sentinels of the URL are asked for as long as the limiter lives, and no others. A majority of
    /// them has to name a primary before it is used. Host names are looked up for each connection, so a
    /// sentinel can be replaced by another one under the same name.
    ///
    /// A proxy has to pass all commands on to one server, as `HAProxy` does with `mode tcp`. Proxies that
    /// choose a server for each command are not supported: they do so by the keys, and scripts here have
    /// keys of several servers, or none. Among these are Envoy's Redis filter, twemproxy and
    /// redis-cluster-proxy. Their error replies for a lost server count as an outage all the same.
    pub fn builder(url: &str) -> Builder {
        Builder::new(url)
    }

    /// A limiter on a store of your own.
    pub fn with_store(store: impl Store) -> Self {
        Builder::new("memory://").with_store(store)
    }

    /// A limiter that lets every call through and counts nothing, for tests of what is behind a limit.
    ///
    /// ```
    /// # use ratelimit_runtime::{Limiter, Rule};
    /// # use std::time::Duration;
    /// const RULE: Rule = Rule::new("item", 1, Duration::from_secs(60));
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
    /// let limiter = Limiter::unlimited();
    /// for _ in 0..1000 {
    ///     limiter.acquire(&RULE, "alice").await?;
    /// }
    /// # Ok::<_, ratelimit_runtime::RequestPerMinute>(()) }).unwrap();
    /// ```
    pub fn unlimited() -> Self {
        Builder::new("memory://").without_store()
    }

    /// On a store that has to be asked.
    pub(crate) fn asking(store: Behind, settings: Settings) -> Self {
        let seen = Arc::default();
        let guarded = Guarded::new(store, settings.clock.clone(), settings.deadline);
        Self::assemble(Storage::Other(guarded), settings, seen)
    }

    pub(crate) fn assemble(storage: Storage, settings: Settings, seen: Arc<HealthTracker>) -> Self {
        observe::describe();
        let is_shared = matches!(storage, Storage::Other(_));
        let queues = WaitQueues::new(settings.max_waiting, settings.clock.clone(), is_shared);
        let inner = Arc::new(Inner {
            storage,
            settings,
            queues,
            settlements: Settlements::default(),
            renewals: Arc::default(),
            local: OnceCell::new(),
            seen,
        });
        Self(Arc::new([(); HANDLES].map(|()| Held::Counted(Arc::new(CachePadded(Arc::clone(&inner)))))))
    }

    /// For a call.
    #[inline]
    pub(crate) fn hold(&self) -> Held {
        if let Some(installed) = Self::installed()
            && Arc::ptr_eq(&self.0, &installed.0)
        {
            return installed.hold_for_ever();
        }
        self.0[thread_index() % HANDLES].clone()
    }

    #[inline]
    pub(crate) fn hold_for_ever(&'static self) -> Held {
        Held::ForEver(self.inner())
    }

    #[inline]
    pub(crate) fn inner(&self) -> &Inner {
        &self.0[0]
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
        Call::decide_one(self.hold(), rule, AskedKey::Some(Key::new(key)), cost, Manner::default())
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
        let manner = Manner::new(OnLimit::Wait(Some(longest)), None);
        Call::decide_one(self.hold(), rule, AskedKey::Some(Key::new(key)), 1, manner)
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
            .map(|(rule, key, cost)| Asked {
                rule: **rule,
                key: AskedKey::Some(key.clone()),
                cost: *cost,
                holds: Holds::Cost,
            })
            .collect();
        Call::decide(self.hold(), asked, Manner::default(), OnLimit::Reject)
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
            let inner = self.inner();
            let rule = &inner.settings.rules_now().hold(rule, Some(&key), false, false).unwrap_or(*rule);
            let charge = inner.charge(rule, Some(&key), rule.limit().min(1))?; // a count of 0 has no wait to tell
            let Some(store) = inner.store() else {
                return Ok(charge.decision);
            };
            let batch = Request::new(charge, false).into();
            let request = inner.within_deadline(store.decide(batch)).await.map(Batch::into_first);
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
            let inner = self.inner();
            let rule = &inner.settings.rules_now().hold(rule, Some(&key), false, false).unwrap_or(*rule);
            let charge = inner.charge(rule, Some(&key), 0)?;
            let Some(store) = inner.store() else {
                return Ok(());
            };
            let id = charge.counter.id();
            let reset = inner.within_deadline(store.reset(charge.counter)).await;
            inner.queues.changed_id(id);
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
        let inner = self.inner();
        inner.queues.close();
        if !inner.settlements.are_none() {
            let _ = tokio::time::timeout(inner.settings.deadline, inner.settlements.all().done()).await;
        }
        match inner.guarded() {
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
        let inner = self.inner();
        inner.seen.health(inner.store().and_then(Store::outage).as_ref())
    }
}

impl Held {
    /// Refunds in the background. After a failure it stays charged.
    pub(crate) fn abandon(&self, charges: Charges, by: CountedBy) {
        let counters = ids_of(&charges);
        match self.return_charges(charges, by) {
            Reply::Ready(_) => counters.into_iter().for_each(|counter| self.queues.changed_id(counter)),
            Reply::Pending(back) => {
                let limiter = self.clone();
                let _ = background::spawn(async move {
                    let _ = tokio::time::timeout(limiter.settings.deadline, back).await;
                    counters.into_iter().for_each(|counter| limiter.queues.changed_id(counter));
                });
            }
        }
    }
}

fn ids_of(charges: &[Charge]) -> SmallVec<[CounterId; 1]> {
    charges.iter().map(|charge| charge.counter.id()).collect()
}

impl Inner {
    pub(crate) async fn refund(&self, charges: Charges, by: CountedBy) -> Result<u64, RequestPerMinute> {
        let Some(rule) = charges.first().map(|charge| charge.rule) else {
            return Ok(0);
        };
        let counters: SmallVec<[CounterId; 1]> = charges.iter().map(|charge| charge.counter.id()).collect();
        let back = self.within_deadline(self.return_charges(charges, by)).await;
        counters.into_iter().for_each(|counter| self.queues.changed_id(counter));
        back.and_then(|back| back).map_err(|error| refusal(&rule, error))
    }

    pub(crate) fn refund_in_memory(&self, charged: &ChargedInMemory) -> u64 {
        let ChargedInMemory { name, cost, receipt, .. } = *charged;
        let back = self.memory().map_or(0, |memory| memory.refund_one(name, &charged.rule(), cost, receipt));
        self.queues.changed_id(name);
        back
    }

    /// Refunds what was spent of what this process had taken.
    pub(crate) fn refund_prefetched(&self, charged: &ChargedInMemory) -> Reply<Result<u64, StoreError>> {
        match self.guarded() {
            Some(guarded) => guarded.refund_spent(charged.name, charged.cost, charged.receipt),
            None => Reply::Ready(Ok(0)),
        }
    }

    fn return_charges(&self, charges: Charges, by: CountedBy) -> Reply<Result<u64, StoreError>> {
        match (by, self.store()) {
            (CountedBy::Local, _) => self.local().refund(charges),
            (CountedBy::Store, Some(store)) => store.refund(charges),
            (CountedBy::Store, None) => Reply::Ready(Ok(0)),
        }
    }

    #[inline]
    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Nothing for a limiter that limits nothing.
    pub(crate) fn store(&self) -> Option<&dyn Store> {
        match &self.storage {
            Storage::None => None,
            Storage::Memory(memory) => Some(memory),
            Storage::Other(guarded) => Some(guarded),
        }
    }

    /// The store, if it is memory: that can be asked for a single charge, without a name or a list.
    #[inline]
    pub(crate) fn memory(&self) -> Option<&Memory> {
        match &self.storage {
            Storage::Memory(memory) => Some(memory),
            Storage::None | Storage::Other(_) => None,
        }
    }

    /// The store, if it has to be asked: something may be known of a counter without.
    pub(crate) fn guarded(&self) -> Option<&Guarded> {
        match &self.storage {
            Storage::Other(guarded) => Some(guarded),
            Storage::None | Storage::Memory(_) => None,
        }
    }

    pub(crate) fn queues(&self) -> &WaitQueues {
        &self.queues
    }

    #[inline]
    pub(crate) fn settlements(&self) -> &Settlements {
        &self.settlements
    }

    #[inline]
    pub(crate) fn renewals(&self) -> &Arc<Renewals> {
        &self.renewals
    }

    /// Makes holds of one counter last as long again.
    pub(crate) fn renew(&self, charges: Vec<Charge>) -> Reply<Result<Vec<bool>, StoreError>> {
        match self.store() {
            Some(store) => store.renew(charges),
            None => Reply::Ready(Ok(vec![false; charges.len()])),
        }
    }

    /// Charges what was used instead of what is held.
    pub(crate) fn settle(&self, charge: Charge, used: u64, by: CountedBy) -> Reply<Result<(), StoreError>> {
        match (by, self.store()) {
            (CountedBy::Local, _) => self.local().settle(charge, used),
            (CountedBy::Store, Some(store)) => store.settle(charge, used),
            (CountedBy::Store, None) => Reply::Ready(Ok(())),
        }
    }

    /// Whether the store does not decide, as far as is known.
    pub(crate) fn is_degraded(&self) -> bool {
        self.seen.is_degraded() || self.store().and_then(Store::outage).is_some()
    }

    /// Counts for this process alone.
    pub(crate) fn local(&self) -> &Memory {
        let settings = &self.settings;
        self.local.get_or_init(|| Memory::new(settings.clock.clone(), settings.max_keys))
    }

    pub(crate) fn charge(&self, rule: &Rule, key: Option<&Key>, cost: u64) -> Result<Charge, RequestPerMinute> {
        if let Some(fault) = rule.fault() {
            return Err(refusal(rule, StoreError::misconfigured(fault)));
        }
        Ok(Charge::new(*rule, CounterName::new(&self.settings.namespace, rule, key), cost))
    }

    pub(crate) async fn within_deadline<T>(&self, reply: Reply<T>) -> Result<T, StoreError> {
        self.within(self.settings.deadline, reply).await
    }

    /// Within what is left of the deadline.
    pub(crate) async fn within<T>(&self, left: Duration, reply: Reply<T>) -> Result<T, StoreError> {
        match reply {
            Reply::Ready(answer) => Ok(answer),
            Reply::Pending(_) if Handle::try_current().is_err() => Err(StoreError::no_runtime()),
            Reply::Pending(answer) => {
                let stopwatch = StoreTimer::start();
                let late = || StoreError::late(self.settings.deadline);
                let answer = in_time(left, answer, late).instrument(tracing::debug_span!("ask_rate_limit_store")).await;
                stopwatch.stop();
                answer
            }
        }
    }

    /// The store could not decide on these. Memory is never away; it may be full for some.
    pub(crate) fn failed(&self, error: &StoreError, charges: &[Charge]) {
        if !self.settings.is_local {
            self.seen.failed(error);
        }
        if let Some(guarded) = self.guarded() {
            guarded.failed(charges);
        }
    }

    /// The store has decided.
    pub(crate) fn succeeded(&self) {
        self.seen.succeeded();
    }
}

/// Awaits an answer within a time limit, on any runtime.
///
/// A timer belongs to the runtime it was made on. If that has ended and the answer is awaited on
/// another one, it gets another timer; on none, an error.
async fn in_time<T>(
    left: Duration,
    mut answer: impl Future<Output = T> + Unpin,
    late: impl Fn() -> StoreError,
) -> Result<T, StoreError> {
    let (began, mut made_on) = (Instant::now(), None);
    let mut timer = pin!(None);
    poll_fn(|context| {
        if let Poll::Ready(answer) = Pin::new(&mut answer).poll(context) {
            return Poll::Ready(Ok(answer));
        }
        let Ok(runtime) = Handle::try_current() else {
            return Poll::Ready(Err(StoreError::no_runtime()));
        };
        let runtime = Some(runtime.id());
        if runtime != made_on {
            made_on = runtime;
            timer.set(Some(sleep(left.saturating_sub(began.elapsed()))));
        }
        let timer = timer.as_mut().as_pin_mut();
        timer.map_or(Poll::Pending, |timer| timer.poll(context)).map(|()| Err(late()))
    })
    .await
}

pub(crate) fn refusal(rule: &Rule, error: StoreError) -> RequestPerMinute {
    if error.misconfigured {
        static SAID: LogThrottle = LogThrottle::new();
        if SAID.allow() {
            tracing::error!(rule = rule.prefix(), reason = %error, "a rate limit is misconfigured");
        }
        RequestPerMinute::misconfigured(rule, error.into_words())
    } else {
        RequestPerMinute::unavailable(rule, error.into_words())
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter")
            .field("store", &self.inner().storage)
            .field("settings", &self.inner().settings)
            .finish_non_exhaustive()
    }
}
