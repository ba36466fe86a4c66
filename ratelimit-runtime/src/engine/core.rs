//! The engine: a backend, its settings, wait queues, settlements, renewals and health.

use std::{ops, sync::Arc, time::Duration};

use once_cell::sync::OnceCell;
use tokio::time::Instant;

use super::{
    backend_kind::BackendKind,
    outage::OutageWaiters,
    queue::WaitQueues,
    refusal::refusal,
    renewals::{Renew, Renewals},
    settings::EngineSettings,
    settlements::Settlements,
};
use crate::{
    CounterName, Health, Key, RequestPerMinute, Rule,
    clock::after,
    deadline,
    guard::Guard,
    health::HealthTracker,
    memory::Memory,
    observe::{self, StoreTimer},
    store::{Charge, Charges, Reply, Request, Store, StoreError},
    sync::CachePadded,
};

/// A reference to an engine, kept by a call and its permit.
#[derive(Clone)]
pub(crate) enum EngineRef {
    /// The process-wide engine, which is never dropped.
    Static(&'static Engine),
    /// Counted at one of several handles, each used by some of the threads. If all threads counted
    /// references in one place, they would be as slow as threads that decide on one key.
    Counted(Arc<CachePadded<Arc<Engine>>>),
}

impl ops::Deref for EngineRef {
    type Target = Engine;

    #[inline]
    fn deref(&self) -> &Engine {
        match self {
            Self::Static(engine) => engine,
            Self::Counted(engine) => engine,
        }
    }
}

pub(crate) struct Engine {
    backend: BackendKind,
    settings: EngineSettings,
    queues: Arc<WaitQueues>,
    settlements: Settlements,
    renewals: Arc<Renewals<EngineRef>>,
    /// Counts in this process alone during an outage of the store.
    local: OnceCell<Memory>,
    health_tracker: Arc<HealthTracker>,
    outage_waiters: OutageWaiters,
}

/// The place that counts a charge.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Origin {
    Store,
    LocalFallback,
}

impl Renew for EngineRef {
    fn renew(&self, charges: Vec<Charge>) -> Reply<Result<Vec<bool>, StoreError>> {
        match self.store() {
            Some(store) => store.renew(charges),
            None => Reply::Ready(Ok(vec![false; charges.len()])),
        }
    }

    fn now(&self) -> Duration {
        self.settings.clock.now()
    }

    fn deadline(&self) -> Duration {
        self.settings.deadline
    }
}

/// A charge of what a call has used above its charge. It is made even if it does not fit, up to the
/// largest number that the counter can store.
fn excess(charge: Charge, more: u64) -> Charge {
    let rule = charge.rule.with_largest_limit().with_ban(Duration::ZERO);
    let largest = rule.limit().saturating_sub(charge.rule.limit());
    Charge::new(rule, charge.counter, more.min(largest))
}

impl Engine {
    pub(crate) fn new(backend: BackendKind, settings: EngineSettings) -> Self {
        let is_shared = matches!(backend, BackendKind::Other(_));
        let outage_waiters = OutageWaiters::new(settings.max_waiting);
        let queues = Arc::new(WaitQueues::new(settings.max_waiting, settings.clock.clone(), is_shared));
        if let BackendKind::Other(guard) = &backend {
            let queues = Arc::clone(&queues);
            guard.refunds().listen(move |id, _| queues.changed_id(id));
        }
        Self {
            backend,
            settings,
            queues,
            settlements: Settlements::default(),
            renewals: Arc::default(),
            local: OnceCell::new(),
            health_tracker: Arc::default(),
            outage_waiters,
        }
    }

    #[inline]
    pub(crate) fn backend(&self) -> &BackendKind {
        &self.backend
    }

    pub(crate) fn health(&self) -> Health {
        self.health_tracker.health(self.store().and_then(Store::outage).as_ref())
    }

    pub(super) fn refund_charges(&self, charges: Charges, origin: Origin) -> Reply<Result<u64, StoreError>> {
        match (origin, self.store()) {
            (Origin::LocalFallback, _) => self.local().refund(charges),
            (Origin::Store, Some(store)) => store.refund(charges),
            (Origin::Store, None) => Reply::Ready(Ok(0)),
        }
    }

    #[inline]
    pub(crate) fn settings(&self) -> &EngineSettings {
        &self.settings
    }

    /// `None` for a limiter that limits nothing.
    pub(crate) fn store(&self) -> Option<&dyn Store> {
        match &self.backend {
            BackendKind::None => None,
            BackendKind::Memory(memory) => Some(memory),
            BackendKind::Other(guard) => Some(guard),
        }
    }

    /// The store, if it is memory.
    #[inline]
    pub(crate) fn memory(&self) -> Option<&Memory> {
        match &self.backend {
            BackendKind::Memory(memory) => Some(memory),
            BackendKind::None | BackendKind::Other(_) => None,
        }
    }

    /// The guard in front of any other store.
    pub(crate) fn guard(&self) -> Option<&Guard> {
        match &self.backend {
            BackendKind::Other(guard) => Some(guard),
            BackendKind::None | BackendKind::Memory(_) => None,
        }
    }

    /// The calls that wait until the store decides again.
    pub(crate) fn outage_waiters(&self) -> &OutageWaiters {
        &self.outage_waiters
    }

    pub(crate) fn queues(&self) -> &WaitQueues {
        &self.queues
    }

    #[inline]
    pub(crate) fn settlements(&self) -> &Settlements {
        &self.settlements
    }

    #[inline]
    pub(super) fn renewals(&self) -> &Arc<Renewals<EngineRef>> {
        &self.renewals
    }

    /// Charges the amount used in place of a charge that is settled later.
    pub(crate) fn settle(&self, charge: Charge, used: u64, origin: Origin) -> Reply<Result<(), StoreError>> {
        let store = match (origin, self.store()) {
            (Origin::LocalFallback, _) => self.local(),
            (Origin::Store, Some(store)) => store,
            (Origin::Store, None) => return Reply::Ready(Ok(())),
        };
        if charge.hold.is_some() {
            return store.settle(charge, used);
        }
        match used.checked_sub(charge.cost) {
            Some(0) => Reply::Ready(Ok(())),
            Some(more) => store.decide(Request::new(excess(charge, more), true).into()).map(|batch| {
                batch.into_first().map_or_else(|| Err(StoreError::no_answer()), |request| request.outcome.map(drop))
            }),
            None => {
                let unused = Charge { cost: charge.cost - used, ..charge };
                store.refund(unused.into()).map(|refunded| refunded.map(drop))
            }
        }
    }

    /// True during an outage of the store, as far as this process knows.
    pub(crate) fn is_degraded(&self) -> bool {
        self.health_tracker.is_degraded() || self.store().and_then(Store::outage).is_some()
    }

    /// The memory that counts for this process alone.
    pub(crate) fn local(&self) -> &Memory {
        let settings = &self.settings;
        let mut is_first = false;
        let local = self.local.get_or_init(|| {
            is_first = true;
            Memory::new(settings.clock.clone(), settings.max_keys, settings.overflow_bytes)
        });
        // After the lock: a log subscriber may call a limited function.
        if is_first && settings.instances.is_none() {
            tracing::warn!(
                "the store is away, and each process now admits the whole limit, as the number of processes is \
                 not known; set Builder::instances"
            );
        }
        local
    }

    #[inline]
    pub(crate) fn charge(&self, rule: &Rule, key: &Key, cost: u64) -> Result<Charge, RequestPerMinute> {
        if let Some(fault) = rule.fault() {
            return Err(refusal(rule, StoreError::misconfigured(fault)));
        }
        Ok(Charge::new(*rule, CounterName::new(&self.settings.namespace, rule, key), cost))
    }

    pub(crate) async fn within_deadline<T>(&self, reply: Reply<T>) -> Result<T, StoreError> {
        match reply {
            Reply::Ready(answer) => Ok(answer),
            reply @ Reply::Pending(_) => self.until(after(self.settings.deadline), reply).await,
        }
    }

    /// Awaits a reply until `end`.
    pub(super) async fn until<T>(&self, end: Instant, reply: Reply<T>) -> Result<T, StoreError> {
        match reply {
            Reply::Ready(answer) => Ok(answer),
            reply @ Reply::Pending(_) => {
                let stopwatch = StoreTimer::start();
                let answer = deadline::within(reply, end, self.settings.deadline).await;
                stopwatch.stop();
                answer
            }
        }
    }

    /// Records that the store could not decide these charges. Memory is never away, but it may be
    /// full for some counters.
    pub(crate) fn record_failure(&self, error: &StoreError, charges: &[Charge]) {
        if let Some(guard) = self.guard() {
            guard.failed(charges);
        }
        // Last: a recorder or a log subscriber may panic.
        if self.settings.is_local {
            observe::memory_is_full(error);
        } else {
            self.health_tracker.failed(error);
        }
    }

    /// Records that the store has decided.
    pub(crate) fn record_success(&self) {
        self.health_tracker.succeeded(|| self.store().and_then(Store::outage).is_some());
    }
}
