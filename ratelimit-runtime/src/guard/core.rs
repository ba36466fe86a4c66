//! The guard itself, and its use of the denial cache: the store is not asked for a denial that
//! still holds.

#[cfg(feature = "redis")]
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fmt, mem, sync::Arc, time::Duration};

use smallvec::SmallVec;
#[cfg(feature = "redis")]
use tokio::{runtime::Handle, sync::watch};
use tokio::{sync::Notify, time::sleep};

use super::{
    denials::{Denial, DenialCache, ServerEpoch},
    quota::QuotaBatches,
    upstream::Upstream,
};
#[cfg(feature = "redis")]
use crate::clock::{after, wait_until};
use crate::{
    Clock, CounterName, Decision, Rule,
    algorithm::{CacheableDenials, Capabilities, capabilities},
    backend::{QueryTag, RefundListener},
    background,
    counter::CounterId,
    observe,
    store::{Batch, Charge, Charges, Reply, Request, StoreError},
};

/// A store with a denial cache and prefetched quota in front. It is a store itself, and decides
/// like the one behind it.
#[derive(Clone)]
pub(crate) struct Guard(pub(super) Arc<GuardInner>);

pub(super) struct GuardInner {
    pub(super) store: Upstream,
    /// The first part of the names of counters.
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    pub(super) namespace: String,
    pub(super) clock: Clock,
    pub(super) deadline: Duration,
    pub(super) denials: DenialCache,
    pub(super) batches: QuotaBatches,
    /// Notified when the last prefetch task has ended.
    pub(super) prefetches_done: Notify,
    pub(super) refunds: RefundListener,
    /// Set by the first hold or prefetch; see [`Guard::prepare`].
    #[cfg(feature = "redis")]
    is_prepared: AtomicBool,
    /// The background runtime has opened its connection, or has tried.
    #[cfg(feature = "redis")]
    is_background_connected: watch::Sender<bool>,
}

impl Guard {
    pub(crate) fn new(store: Upstream, namespace: String, clock: Clock, deadline: Duration) -> Self {
        let guard = Self(Arc::new(GuardInner {
            store,
            namespace,
            clock,
            deadline,
            denials: DenialCache::new(),
            batches: QuotaBatches::new(),
            prefetches_done: Notify::new(),
            refunds: RefundListener::default(),
            #[cfg(feature = "redis")]
            is_prepared: AtomicBool::new(false),
            #[cfg(feature = "redis")]
            is_background_connected: watch::Sender::new(false),
        }));
        #[cfg(feature = "redis")]
        if let Upstream::Redis(redis) = &guard.0.store {
            let guard = Arc::downgrade(&guard.0);
            redis.refunds().listen(move |id, is_pending| {
                if let Some(guard) = guard.upgrade() {
                    let refunds = guard.refunds.clone();
                    drop(CounterChange { guard, ids: [id].into(), drops_permits: false, is_pending });
                    refunds.refunded(id, is_pending);
                }
            });
        }
        guard
    }

    /// Refunds that no caller makes.
    pub(crate) fn refunds(&self) -> &RefundListener {
        &self.0.refunds
    }

    /// Opens the connection for background work, so that the first settlement finds one. Only the
    /// first call acts.
    #[cfg(feature = "redis")]
    pub(crate) fn prepare(&self) {
        let Upstream::Redis(redis) = &self.0.store else { return };
        if !self.0.is_prepared.load(Ordering::Relaxed) && !self.0.is_prepared.swap(true, Ordering::Relaxed) {
            let (redis, guard) = (redis.clone(), Arc::downgrade(&self.0));
            let _ = background::spawn(async move {
                let _ = redis.connected().await;
                if let Some(guard) = guard.upgrade() {
                    guard.is_background_connected.send_replace(true);
                }
            });
        }
    }

    /// Waits until background work has an open connection, for half of the deadline at most. Returns whether
    /// it has one, or has failed to open one. The server of this counter may also be known to be away.
    #[cfg(feature = "redis")]
    pub(super) async fn has_prepared(&self, counter: &CounterName) -> bool {
        let is_connected = || *self.0.is_background_connected.borrow();
        if !matches!(self.0.store, Upstream::Redis(_)) || is_connected() || Handle::try_current().is_err() {
            return true;
        }
        self.prepare();
        if self.0.store.is_away(self.0.store.slot(counter)) {
            return true;
        }
        let mut is_connected = self.0.is_background_connected.subscribe();
        tokio::select! {
            biased;
            _ = is_connected.wait_for(|is_connected| *is_connected) => true,
            _ = wait_until(after(self.0.deadline / 2)) => false,
        }
    }

    /// Whether the counters lie in several slots of a cluster.
    pub(crate) fn are_apart(&self, charges: &[Charge]) -> bool {
        self.0.store.are_apart(charges)
    }

    /// Drops the cached denials of these counters, so that the store is asked.
    pub(crate) fn forget_denials(&self, charges: &[Charge]) {
        for charge in charges {
            self.0.denials.remove(charge.counter.id());
        }
    }

    /// Records that the store could not decide on these charges.
    ///
    /// The epoch of their servers ends, and with it every denial cached in that epoch.
    pub(crate) fn failed(&self, charges: &[Charge]) {
        let guard = &self.0;
        let slots: SmallVec<[u16; 1]> = charges.iter().map(|charge| guard.store.slot(&charge.counter)).collect();
        // With several servers, those known to be away caused the failure. If none is known, all
        // may have.
        let is_cause_known = slots.len() > 1 && slots.iter().any(|slot| guard.store.is_away(*slot));
        for slot in slots.into_iter().filter(|slot| !is_cause_known || guard.store.is_away(*slot)) {
            guard.store.failed(slot);
        }
    }

    /// Whether a server of these counters is known to be away.
    pub(crate) fn is_away(&self, charges: &[Charge]) -> bool {
        charges.iter().any(|charge| self.0.store.is_away(self.0.store.slot(&charge.counter)))
    }

    /// Returns once no server of these counters is known to be away.
    pub(crate) async fn returned(&self, charges: &[Charge]) {
        for charge in charges {
            self.0.store.returned(self.0.store.slot(&charge.counter)).await;
        }
    }

    /// Answers requests from the denial cache where possible, and asks the store for the others.
    pub(super) fn ask_upstream(&self, mut batch: Batch) -> Reply<Batch> {
        let guard = &self.0;
        let now_us = guard.clock.now_us();
        let is_refused: SmallVec<[bool; 1]> =
            batch.iter_mut().map(|request| guard.refuse_from_cache(request, now_us)).collect();
        let refused = if is_refused.contains(&true) {
            let (refused, open): (Vec<_>, Vec<_>) =
                batch.into_requests().enumerate().partition(|(index, _)| is_refused[*index]);
            batch = open.into_iter().map(|(_, request)| request).collect();
            refused
        } else {
            Vec::new()
        };
        if batch.is_empty() {
            return Reply::Ready(insert_refused(batch, refused));
        }
        let tags = guard.query_tags(&batch, now_us);
        match guard.store.decide(batch) {
            // Denials of synchronous stores are not cached: asking again costs nothing.
            Reply::Ready(batch) => Reply::Ready(insert_refused(batch, refused)),
            Reply::Pending(reply) => {
                let guard = Arc::downgrade(guard); // its drop refunds: it does not wait for a late reply
                Reply::Pending(Box::pin(async move {
                    let batch = reply.await;
                    if let Some(guard) = guard.upgrade() {
                        guard.update_denials(&batch, &tags);
                    }
                    insert_refused(batch, refused)
                }))
            }
        }
    }

    /// Refunds charges to the store. Their cached denials are invalidated when it has answered.
    pub(super) fn refund_upstream(&self, charges: Charges) -> Reply<Result<u64, StoreError>> {
        let change = self.change_of(charges.iter().map(|charge| &charge.counter));
        change.after(self.0.store.refund(charges))
    }
}

impl GuardInner {
    /// The cached denial that answers a charge. `None` if it has expired, or its server has failed
    /// since.
    pub(super) fn cached_denial(
        &self,
        id: CounterId,
        rule: &Rule,
        cost: u64,
        longest_wait: Duration,
        now_us: u64,
    ) -> Option<Denial> {
        let (denial, server) =
            denial_applies(rule, cost, longest_wait).then(|| self.denials.get(id, rule, now_us))??;
        // A call that bans nothing was refused. The next refusal of one that bans has to ban.
        let has_banned = rule.ban_ms() == 0 || denial.decision.is_banned();
        (has_banned && self.is_current(server)).then_some(denial)
    }

    /// Checks that the server is still in this epoch.
    fn is_current(&self, server: ServerEpoch) -> bool {
        self.store.epoch(server.slot) == Some(server.epoch)
    }

    /// The tag for a query that is sent now. Taken before the query, so that later invalidations
    /// count.
    pub(super) fn query_tag(&self, id: CounterId, slot: u16, sent_us: u64) -> QueryTag {
        QueryTag { sent_us, invalidations: self.denials.invalidations(id), slot, epoch: self.store.epoch(slot) }
    }

    /// Refuses a request if every charge has a cached denial. Returns whether it did.
    ///
    /// A refusal names the rule with the longest wait. One charge without a cached denial is enough
    /// to ask the store, because only the store knows that charge's wait.
    pub(super) fn refuse_from_cache(&self, request: &mut Request, now_us: u64) -> bool {
        if !request.consume || request.charges.is_empty() {
            return false;
        }
        let cached_denial = |charge: &Charge| {
            if charge.is_settled_later() {
                return None;
            }
            self.cached_denial(charge.counter.id(), &charge.rule, charge.cost, charge.longest_wait, now_us)
        };
        let Some(denials) = request.charges.iter().map(cached_denial).collect::<Option<SmallVec<[Denial; 1]>>>() else {
            return false;
        };
        for (charge, denial) in request.charges.iter_mut().zip(denials) {
            observe::cached_denial(&charge.rule);
            (charge.decision, charge.slot_delay) = (denial.decision, Duration::from_millis(denial.wait_ms));
        }
        request.outcome = Ok(false);
        true
    }

    /// Updates the denial cache from the store's answers: caches denials, and drops those that no
    /// longer hold.
    fn update_denials(&self, batch: &[Request], tags: &[QueryTag]) {
        for ((request, charge), tag) in charges_of(batch).zip(tags) {
            match request.outcome {
                // It fits, so a cached denial is older.
                Ok(false) if request.consume && charge.cost > 0 && charge.decision.retry_after().is_none() => {
                    self.denials.remove(charge.counter.id());
                }
                Ok(false) if request.consume => {
                    let wait_ms = u64::try_from(charge.slot_delay.as_millis()).unwrap_or(u64::MAX);
                    self.cache_denial(
                        charge,
                        Denial { decision: charge.decision, wait_ms },
                        charge.held_by_others,
                        *tag,
                    );
                }
                // A cached denial is of a rule with another count. The charge has changed the
                // counter.
                Ok(true) if request.consume && charge.cost > 0 => self.denials.remove(charge.counter.id()),
                _ => {}
            }
        }
    }

    /// Caches the denial of one charge, if it is cacheable and the server is in the epoch of the
    /// query.
    pub(super) fn cache_denial(
        &self,
        charge: &Charge,
        denial: Denial,
        held_by_others: u64,
        QueryTag { sent_us, invalidations, slot, epoch }: QueryTag,
    ) {
        if is_cacheable(charge, &denial.decision, held_by_others)
            && let Some(server) =
                epoch.map(|epoch| ServerEpoch { slot, epoch }).filter(|server| self.is_current(*server))
        {
            let (id, times) = (charge.counter.id(), (sent_us, self.clock.now_us()));
            let is_current = |server| self.is_current(server);
            self.denials.insert(id, &charge.rule, denial, times, (invalidations, server), is_current);
        }
    }

    fn query_tags(&self, batch: &[Request], sent_us: u64) -> SmallVec<[QueryTag; 1]> {
        let tag = |charge: &Charge| self.query_tag(charge.counter.id(), self.store.slot(&charge.counter), sent_us);
        charges_of(batch).map(|(_, charge)| tag(charge)).collect()
    }
}

fn charges_of(batch: &[Request]) -> impl Iterator<Item = (&Request, &Charge)> {
    batch.iter().flat_map(|request| request.charges.iter().map(move |charge| (request, charge)))
}

/// Checks that a cached denial of the counter would also deny this charge.
///
/// - A cost of 1: every algorithm denies it when nothing remains. As long as a cost of 1 does not
///   fit, no larger cost fits, so the counter does not change.
/// - Any cost of a fixed window: denied when nothing remains.
/// - A leaky bucket with a longest wait: unknown, because the slot may be early enough for one
///   caller and not for another.
fn denial_applies(rule: &Rule, cost: u64, longest_wait: Duration) -> bool {
    rule.caches_denials()
        && match capabilities(rule.algorithm()) {
            Capabilities { denials: CacheableDenials::AnyCost, .. } => cost > 0,
            Capabilities { has_slots, .. } => cost == 1 && (!has_slots || longest_wait == Duration::MAX),
        }
}

/// Checks that a denial holds until its wait is over.
///
/// It does not while others hold quota before the end of their lease, because they may release it
/// at any time. A hold whose lease is over counts as charged. If another process settles it late,
/// this denial is wrong until its wait is over.
/// If the charge settles, other calls like it may refund a part of theirs.
fn is_cacheable(charge: &Charge, decision: &Decision, held_by_others: u64) -> bool {
    decision.remaining() == 0
        && held_by_others == 0
        && !charge.is_settled_later()
        && denial_applies(&charge.rule, charge.cost, charge.longest_wait)
}

/// A change of some counters by the store. When it is dropped, what is known of them here is invalidated.
pub(super) struct CounterChange {
    guard: Arc<GuardInner>,
    ids: SmallVec<[CounterId; 1]>,
    /// Prefetched permits are invalidated, too: it is a reset or a ban.
    drops_permits: bool,
    /// The store was asked and has not answered. It may still make the change, by a request that others overtake. So
    /// all is invalidated once more, and callers who wait are told.
    is_pending: bool,
}

impl CounterChange {
    /// Invalidates prefetched permits, too, unless the change has certainly had no effect.
    pub(super) fn drop_permits(mut self) -> Self {
        self.drops_permits = true;
        self
    }

    /// Invalidates when the reply is there, or its future is dropped.
    pub(super) fn after<T: Send + 'static>(
        mut self,
        reply: Reply<Result<T, StoreError>>,
    ) -> Reply<Result<T, StoreError>> {
        // Not before the reply: a query on the way may be denied before the store acts, and cached
        // after.
        match reply {
            Reply::Ready(answer) => {
                self.note(&answer);
                Reply::Ready(answer)
            }
            Reply::Pending(reply) => Reply::Pending(Box::pin(async move {
                let mut change = self;
                change.is_pending = true;
                let answer = reply.await;
                change.note(&answer);
                answer
            })),
        }
    }

    fn note<T>(&mut self, answer: &Result<T, StoreError>) {
        self.is_pending = false;
        self.drops_permits &= !answer.as_ref().is_err_and(StoreError::has_no_effect);
    }
}

impl Drop for CounterChange {
    fn drop(&mut self) {
        /// Longer than a request that was sent is on its way.
        const CHANGED_AFTER: Duration = Duration::from_secs(3);
        let drops_permits = self.drops_permits;
        self.guard.invalidate(&self.ids, drops_permits);
        if self.is_pending && !self.ids.is_empty() {
            let (guard, ids) = (Arc::downgrade(&self.guard), mem::take(&mut self.ids));
            let _ = background::spawn(async move {
                sleep(CHANGED_AFTER).await;
                if let Some(guard) = guard.upgrade() {
                    guard.invalidate(&ids, drops_permits);
                    ids.iter().for_each(|id| guard.refunds.refunded(*id, false));
                }
            });
        }
    }
}

impl GuardInner {
    /// Drops cached denials, and prefetched permits if the store has reset or banned the counters, or may have.
    fn invalidate(&self, ids: &[CounterId], drops_permits: bool) {
        for id in ids {
            self.denials.invalidate(*id);
            if drops_permits {
                self.batches.invalidate(*id);
            }
        }
    }
}

impl Guard {
    /// A change of these counters.
    pub(super) fn change_of<'a>(&self, counters: impl Iterator<Item = &'a CounterName>) -> CounterChange {
        let (guard, ids) = (Arc::clone(&self.0), counters.map(CounterName::id).collect());
        CounterChange { guard, ids, drops_permits: false, is_pending: false }
    }
}

/// Inserts the requests that were refused from the cache at their places among those that the store
/// answered.
fn insert_refused(batch: Batch, refused: Vec<(usize, Request)>) -> Batch {
    if refused.is_empty() {
        return batch;
    }
    let mut requests: Vec<_> = batch.into_requests().collect();
    for (index, request) in refused {
        requests.insert(index.min(requests.len()), request); // a faulty store may return fewer requests
    }
    requests.into_iter().collect()
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.store.fmt(f)
    }
}
