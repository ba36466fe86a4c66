//! The one way in: a rule, a key and a cost become a permit or a refusal.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use once_cell::sync::OnceCell;

use crate::{
    Builder, Clock, CounterName, Decision, Key, OnStoreError, Permit, RateKey, RequestPerMinute, Rule, SetupError,
    memory::Memory,
    store::{Batch, Charge, Charges, Reply, Request, Store, StoreError},
    wait::{Lines, Refused},
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
pub struct Limiter(Arc<Inner>);

struct Inner {
    /// Nothing for a limiter that limits nothing.
    store: Option<Box<dyn Store>>,
    settings: Settings,
    lines: Lines,
    /// Counts for this process alone while the store is away.
    local: OnceCell<Memory>,
    degraded: AtomicBool,
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
}

/// One charge as a caller asks for it.
#[derive(Debug)]
pub struct Asked<'a> {
    pub(crate) rule: &'a Rule,
    pub(crate) key: AskedKey,
    pub(crate) cost: u64,
}

#[derive(Debug)]
pub(crate) enum AskedKey {
    Some(Key),
    /// One counter for all.
    Shared,
    /// A missing key, that is refused.
    Missing,
    /// A missing key, that is let through.
    Skip,
}

/// How a call wants to be treated.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Manner {
    pub(crate) on_limit: OnLimit,
    pub(crate) on_store_error: Option<OnStoreError>,
}

/// What a caller does who is over the limit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum OnLimit {
    #[default]
    Reject,
    /// Waits, up to so long if something is said.
    Wait(Option<Duration>),
}

type Answer = Result<Permit, RequestPerMinute>;

/// An answer that is there, or one on its way.
enum Start<'a> {
    Done(Answer),
    Pending(Pin<Box<dyn Future<Output = Answer> + Send + 'a>>),
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
    ///
    /// `?protocol=resp2` makes a connection speak the older protocol.
    pub fn builder(url: &str) -> Builder {
        Builder::new(url)
    }

    /// A limiter on a store of your own.
    pub fn with_store(store: impl Store) -> Self {
        Builder::new("memory://").over(store)
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

    pub(crate) fn assemble(store: Option<Box<dyn Store>>, settings: Settings) -> Self {
        let lines = Lines::new(settings.max_waiting);
        Self(Arc::new(Inner { store, settings, lines, local: OnceCell::new(), degraded: AtomicBool::new(false) }))
    }

    /// Charges a cost of 1 to the rule's counter for this key.
    ///
    /// # Errors
    ///
    /// [`RequestPerMinute`], and nothing is consumed.
    ///
    /// # Cancellation
    ///
    /// A future that was never polled has charged nothing. One that is dropped while a Redis server is being asked may or may
    /// not have been charged.
    ///
    /// # Panics
    ///
    /// On a Redis store, when called from a tokio runtime without time or input and output enabled.
    pub fn acquire<'a, K: RateKey>(
        &'a self,
        rule: &'a Rule,
        key: K,
    ) -> impl Future<Output = Result<Permit, RequestPerMinute>> + Send + use<'a, K> {
        self.acquire_n(rule, key, 1)
    }

    /// Charges a cost to the rule's counter for this key. A cost of 0 is always let through and consumes nothing.
    ///
    /// Errors, cancellation and panics are those of [`Limiter::acquire`].
    pub fn acquire_n<'a, K: RateKey>(
        &'a self,
        rule: &'a Rule,
        key: K,
        cost: u64,
    ) -> impl Future<Output = Result<Permit, RequestPerMinute>> + Send + use<'a, K> {
        let key = Key::new(key);
        async move {
            let asked = [Asked { rule, key: AskedKey::Some(key), cost }];
            self.decide(&asked, Manner::default()).await
        }
    }

    /// Charges a cost of 1, and waits for it up to `longest` if the limit is reached.
    ///
    /// Callers of one counter and process are served in the order of their arrival. The call is refused at once if
    /// it is known that the wait would be longer, or if too many wait already (see [`Builder::max_waiting`]).
    /// Callers that do not wait are not held up by those who do.
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
    /// [`RequestPerMinute`], and nothing is consumed.
    ///
    /// # Cancellation
    ///
    /// A future that is dropped while it waits leaves its line and has charged nothing; the one behind it moves up.
    ///
    /// # Panics
    ///
    /// Those of [`Limiter::acquire`]; also on the memory store when it has to wait outside of a tokio runtime with time enabled.
    pub fn acquire_within<'a, K: RateKey>(
        &'a self,
        rule: &'a Rule,
        key: K,
        longest: Duration,
    ) -> impl Future<Output = Result<Permit, RequestPerMinute>> + Send + use<'a, K> {
        let key = Key::new(key);
        async move {
            let asked = [Asked { rule, key: AskedKey::Some(key), cost: 1 }];
            self.decide(&asked, Manner { on_limit: OnLimit::Wait(Some(longest)), on_store_error: None }).await
        }
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
    /// Two charges of one counter are one: their costs add up, and the lower count holds.
    ///
    /// # Errors
    ///
    /// [`RequestPerMinute`], naming the rule with the longest wait, and no rule is charged.
    ///
    /// # Cancellation
    ///
    /// As for [`Limiter::acquire`]: all of the charges were made, or none.
    pub async fn acquire_all(&self, charges: &[(&Rule, Key, u64)]) -> Result<Permit, RequestPerMinute> {
        let asked: Vec<_> = charges
            .iter()
            .map(|(rule, key, cost)| Asked { rule, key: AskedKey::Some(key.clone()), cost: *cost })
            .collect();
        self.decide(&asked, Manner::default()).await
    }

    /// What the rule's counter for this key says about a cost of 1. Consumes nothing.
    ///
    /// # Errors
    ///
    /// [`Cause::Unavailable`] or [`Cause::Misconfigured`], whatever the failure policy.
    pub fn peek<'a, K: RateKey>(
        &'a self,
        rule: &'a Rule,
        key: K,
    ) -> impl Future<Output = Result<Decision, RequestPerMinute>> + Send + use<'a, K> {
        let key = Key::new(key);
        async move {
            let charge = self.charge(rule, Some(&key), 1)?;
            let Some(store) = &self.0.store else {
                return Ok(charge.decision);
            };
            let batch = Request::new(charge, false).into();
            let request = self.within_deadline(store.decide(batch)).await.map(Batch::into_first);
            match request {
                Ok(Some(Request { charges, outcome: Ok(_), .. })) => {
                    Ok(charges.first().map_or(Decision::fresh(rule.count()), |charge| charge.decision))
                }
                Ok(Some(Request { outcome: Err(error), .. })) | Err(error) => Err(refusal(rule, error)),
                Ok(None) => Err(refusal(rule, no_answer())),
            }
        }
    }

    /// Forgets what the rule's counter for this key has counted.
    ///
    /// # Errors
    ///
    /// [`Cause::Unavailable`] or [`Cause::Misconfigured`], whatever the failure policy. The counter may or may not have been
    /// reset then.
    pub fn reset<'a, K: RateKey>(
        &'a self,
        rule: &'a Rule,
        key: K,
    ) -> impl Future<Output = Result<(), RequestPerMinute>> + Send + use<'a, K> {
        let key = Key::new(key);
        async move {
            let charge = self.charge(rule, Some(&key), 0)?;
            let Some(store) = &self.0.store else {
                return Ok(());
            };
            let reset = self.within_deadline(store.reset(charge.counter)).await;
            reset.and_then(|done| done).map_err(|error| refusal(rule, error))
        }
    }

    pub(crate) async fn give_back(&self, charges: Charges, by: CountedBy) -> Result<u64, RequestPerMinute> {
        let Some(rule) = charges.first().map(|charge| charge.rule) else {
            return Ok(0);
        };
        let reply = match (by, &self.0.store) {
            (CountedBy::Local, _) => self.local().give_back(charges),
            (CountedBy::Store, Some(store)) => store.give_back(charges),
            (CountedBy::Store, None) => return Ok(0),
        };
        self.within_deadline(reply).await.and_then(|back| back).map_err(|error| refusal(&rule, error))
    }

    /// Decides; the one function behind every acquire and every annotated function.
    pub(crate) async fn decide(&self, asked: &[Asked<'_>], manner: Manner) -> Answer {
        // Kept apart, so that a caller's future holds no more than a pointer to what is on its way.
        match self.start(asked, manner) {
            Start::Done(answer) => answer,
            Start::Pending(answer) => answer.await,
        }
    }

    fn start<'a>(&'a self, asked: &'a [Asked<'a>], manner: Manner) -> Start<'a> {
        let charges = match self.charges(asked) {
            Ok(charges) => charges,
            Err(refused) => return Start::Done(Err(refused)),
        };
        let Some(store) = self.0.store.as_deref().filter(|_| !charges.is_empty()) else {
            return Start::Done(Ok(Permit::free(&charges)));
        };
        let arrival = match manner.on_limit {
            OnLimit::Reject => None,
            OnLimit::Wait(longest) => Some(self.arrive(longest)),
        };
        if let Some(arrival) = arrival
            && let Some(counter) = self.0.lines.find(&charges)
        {
            return Start::Pending(Box::pin(self.wait(asked, manner, arrival, counter, None)));
        }
        match store.decide(Request::new(charges, true).into()) {
            Reply::Ready(batch) => match (self.conclude(Ok(batch), asked, manner), arrival) {
                (Verdict::Exceeded(refusal, counter), Some(arrival)) => {
                    let refused = self.refused(refusal);
                    Start::Pending(Box::pin(self.wait(asked, manner, arrival, counter, Some(refused))))
                }
                (verdict, _) => Start::Done(verdict.into()),
            },
            reply @ Reply::Pending(_) => Start::Pending(Box::pin(async move {
                let batch = self.within_deadline(reply).await;
                match (self.conclude(batch, asked, manner), arrival) {
                    (Verdict::Exceeded(refusal, counter), Some(arrival)) => {
                        let refused = self.refused(refusal);
                        self.wait(asked, manner, arrival, counter, Some(refused)).await
                    }
                    (verdict, _) => verdict.into(),
                }
            })),
        }
    }

    /// Waits in the lines of the counters that refuse, one after the other, until none does.
    async fn wait(
        &self,
        asked: &[Asked<'_>],
        manner: Manner,
        Arrival { ticket, give_up }: Arrival,
        mut counter: CounterName,
        mut refused: Option<Refused>,
    ) -> Answer {
        let clock = &self.0.settings.clock;
        let last_word = |refused: Option<Refused>| match refused {
            Some(refused) => Err(refused.at(clock.now())),
            // Its patience ended before anyone in its line was refused.
            None => Err(RequestPerMinute::exceeded(asked[0].rule, asked[0].cost, &Decision::fresh(0))),
        };
        'lines: loop {
            let place = match self.0.lines.join(counter, ticket, refused.clone(), give_up) {
                Ok(place) => place,
                Err(theirs) => return last_word(refused.or(theirs)),
            };
            loop {
                if !in_time(clock, give_up, place.first()).await {
                    return last_word(place.last().or(refused));
                }
                if let Some(Refused { ready_at, .. }) = refused.take() {
                    clock.sleep_until(ready_at).await;
                    if !place.is_first() {
                        continue; // an earlier caller came over from another line
                    }
                }
                let charges = self.charges(asked)?;
                let Some(store) = &self.0.store else {
                    return Ok(Permit::free(&charges));
                };
                let batch = self.within_deadline(store.decide(Request::new(charges, true).into())).await;
                match self.conclude(batch, asked, manner) {
                    Verdict::Exceeded(refusal, by) => {
                        let now_refused = self.refused(refusal);
                        if give_up.is_some_and(|give_up| now_refused.ready_at > give_up) {
                            return last_word(Some(now_refused));
                        }
                        refused = Some(now_refused.clone());
                        if by != *place.counter() {
                            counter = by;
                            continue 'lines;
                        }
                        place.refused(now_refused);
                    }
                    verdict => return verdict.into(),
                }
            }
        }
    }

    fn arrive(&self, longest: Option<Duration>) -> Arrival {
        let give_up = longest.map(|longest| self.0.settings.clock.now().saturating_add(longest));
        Arrival { ticket: self.0.lines.ticket(), give_up }
    }

    fn refused(&self, refusal: RequestPerMinute) -> Refused {
        let wait = refusal.retry_after().unwrap_or_default();
        Refused { refusal, ready_at: self.0.settings.clock.now().saturating_add(wait) }
    }

    /// What a call would charge; checked, so that a store sees only what it can decide.
    fn charges(&self, asked: &[Asked<'_>]) -> Result<Charges, RequestPerMinute> {
        let mut charges = Charges::default();
        for Asked { rule, key, cost } in asked {
            let key = match key {
                AskedKey::Some(key) => Some(key),
                AskedKey::Shared => None,
                AskedKey::Missing => return Err(RequestPerMinute::missing_key(rule)),
                AskedKey::Skip => continue,
            };
            charges.push(self.charge(rule, key, *cost)?);
        }
        match charges.iter().find(|charge| charge.cost > charge.rule.count()) {
            Some(charge) if self.0.store.is_some() => Err(RequestPerMinute::never_fits(&charge.rule, charge.cost)),
            _ => Ok(charges),
        }
    }

    fn charge(&self, rule: &Rule, key: Option<&Key>, cost: u64) -> Result<Charge, RequestPerMinute> {
        if let Some(fault) = rule.fault() {
            return Err(refusal(rule, StoreError::misconfigured(fault)));
        }
        Ok(Charge::new(*rule, CounterName::new(&self.0.settings.namespace, rule, key), cost))
    }

    /// Turns what the store said, or that it said nothing, into what the caller gets.
    fn conclude(&self, batch: Result<Batch, StoreError>, asked: &[Asked<'_>], manner: Manner) -> Verdict {
        let error = match batch.map(Batch::into_first) {
            Ok(Some(Request { charges, outcome: Ok(fits), .. })) => {
                self.recovered();
                return self.verdict(charges, fits, CountedBy::Store);
            }
            Ok(Some(Request { outcome: Err(error), .. })) | Err(error) => error,
            Ok(None) => no_answer(),
        };
        let Some(rule) = asked.first().map(|asked| *asked.rule) else {
            return Verdict::Permit(Permit::free(&[]));
        };
        if error.misconfigured {
            return Verdict::Refused(refusal(&rule, error));
        }
        self.failed(&error);
        match manner.on_store_error.unwrap_or(self.0.settings.on_store_error) {
            OnStoreError::Allow => Verdict::Permit(match self.charges(asked) {
                Ok(charges) => Permit::free(&charges),
                Err(_) => Permit::free(&[]),
            }),
            OnStoreError::Local if !self.0.settings.is_local => self.decide_locally(asked, &rule, &error),
            OnStoreError::Local | OnStoreError::Deny => Verdict::Refused(refusal(&rule, error)),
        }
    }

    /// Decides in this process, within its share of each rule.
    fn decide_locally(&self, asked: &[Asked<'_>], rule: &Rule, error: &StoreError) -> Verdict {
        let mut charges = match self.charges(asked) {
            Ok(charges) => charges,
            Err(refused) => return Verdict::Refused(refused),
        };
        for charge in &mut *charges {
            let share = charge.rule.count() / self.0.settings.instances;
            charge.rule = charge.rule.with_count(share);
            if charge.cost > share {
                let reason = format!("{error}; this process's share of the limit is {share}, below the cost");
                return Verdict::Refused(refusal(rule, StoreError::unavailable(reason)));
            }
        }
        match self.local().decide(Request::new(charges, true).into()) {
            Reply::Ready(batch) => match batch.into_first() {
                Some(Request { charges, outcome: Ok(fits), .. }) => self.verdict(charges, fits, CountedBy::Local),
                Some(Request { outcome: Err(error), .. }) => Verdict::Refused(refusal(rule, error)),
                None => Verdict::Refused(refusal(rule, no_answer())),
            },
            Reply::Pending(_) => Verdict::Refused(refusal(rule, no_answer())),
        }
    }

    fn verdict(&self, charges: Charges, fits: bool, by: CountedBy) -> Verdict {
        if fits {
            return Verdict::Permit(Permit::new(self.clone(), charges, by));
        }
        let refused_by = charges.iter().filter(|charge| charge.decision.retry_after().is_some());
        match refused_by.max_by_key(|charge| charge.decision.retry_after_ms) {
            Some(charge) => Verdict::Exceeded(
                RequestPerMinute::exceeded(&charge.rule, charge.cost, &charge.decision),
                charge.counter.clone(),
            ),
            None => match charges.first() {
                Some(charge) => Verdict::Refused(refusal(
                    &charge.rule,
                    StoreError::misconfigured("the store refused, and named no counter that did"),
                )),
                None => Verdict::Permit(Permit::free(&charges)),
            },
        }
    }

    fn local(&self) -> &Memory {
        let settings = &self.0.settings;
        self.0.local.get_or_init(|| Memory::new(settings.clock.clone(), settings.max_keys))
    }

    async fn within_deadline<T>(&self, reply: Reply<'_, T>) -> Result<T, StoreError> {
        match reply {
            Reply::Ready(answer) => Ok(answer),
            Reply::Pending(answer) => {
                let deadline = self.0.settings.deadline;
                tokio::time::timeout(deadline, answer).await.map_err(|_| {
                    StoreError::unavailable(format!("the store gave no answer within the deadline of {deadline:?}"))
                })
            }
        }
    }

    fn failed(&self, error: &StoreError) {
        if !self.0.degraded.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, "the rate limit store is unavailable");
        }
    }

    fn recovered(&self) {
        if self.0.degraded.load(Ordering::Relaxed) && self.0.degraded.swap(false, Ordering::Relaxed) {
            tracing::info!("the rate limit store is available again");
        }
    }
}

/// Who holds a charge.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CountedBy {
    Store,
    Local,
}

/// When a caller came who is ready to wait, and when it will have waited enough.
#[derive(Clone, Copy)]
struct Arrival {
    ticket: u64,
    give_up: Option<Duration>,
}

enum Verdict {
    Permit(Permit),
    /// Waiting helps; the counter that asks for the longest wait.
    Exceeded(RequestPerMinute, CounterName),
    Refused(RequestPerMinute),
}

impl From<Verdict> for Answer {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Permit(permit) => Ok(permit),
            Verdict::Exceeded(refused, _) | Verdict::Refused(refused) => Err(refused),
        }
    }
}

/// Whether the future was done before the clock showed `give_up`.
async fn in_time(clock: &Clock, give_up: Option<Duration>, done: impl Future<Output = ()>) -> bool {
    let Some(give_up) = give_up else {
        done.await;
        return true;
    };
    tokio::select! {
        biased;
        () = done => true,
        () = clock.sleep_until(give_up) => false,
    }
}

fn refusal(rule: &Rule, error: StoreError) -> RequestPerMinute {
    if error.misconfigured {
        tracing::error!(rule = rule.prefix(), reason = %error, "a rate limit is misconfigured");
        RequestPerMinute::misconfigured(rule, error.reason)
    } else {
        RequestPerMinute::unavailable(rule, error.reason)
    }
}

fn no_answer() -> StoreError {
    StoreError::misconfigured("the store returned a batch without the request it was given")
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter")
            .field("store", &self.0.store)
            .field("settings", &self.0.settings)
            .finish_non_exhaustive()
    }
}
