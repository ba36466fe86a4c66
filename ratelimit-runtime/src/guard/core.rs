//! A store behind its denial cache: a denial that still holds is not asked for again.

#[cfg(feature = "redis")]
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fmt, sync::Arc, time::Duration};

use smallvec::SmallVec;
use tokio::sync::Notify;

use super::{
    denials::{Denial, DenialCache, ServerEpoch},
    quota::QuotaBatches,
    upstream::Upstream,
};
use crate::{
    Algorithm, Clock, Decision, Rule,
    backend::QueryTag,
    counter::CounterId,
    observe,
    store::{Batch, Charge, Charges, Reply, Request, StoreError},
};

/// A store, and what is known of its counters. It is a store too, which decides as the one behind it does.
#[derive(Clone)]
pub(crate) struct Guard(pub(super) Arc<GuardInner>);

pub(super) struct GuardInner {
    pub(super) store: Upstream,
    pub(super) clock: Clock,
    pub(super) deadline: Duration,
    pub(super) denials: DenialCache,
    pub(super) batches: QuotaBatches,
    /// Nothing is being taken any more.
    pub(super) all_taken: Notify,
    /// Set by the first hold: see [`Guard::prepare`].
    #[cfg(feature = "redis")]
    pub(super) is_prepared: AtomicBool,
}

impl Guard {
    pub(crate) fn new(store: Upstream, clock: Clock, deadline: Duration) -> Self {
        Self(Arc::new(GuardInner {
            store,
            clock,
            deadline,
            denials: DenialCache::new(),
            batches: QuotaBatches::new(),
            all_taken: Notify::new(),
            #[cfg(feature = "redis")]
            is_prepared: AtomicBool::new(false),
        }))
    }

    /// Opens the connection for background work before it is needed.
    #[cfg(feature = "redis")]
    pub(crate) fn prepare(&self) {
        if let Upstream::Redis(redis) = &self.0.store
            && !self.0.is_prepared.load(Ordering::Relaxed)
            && !self.0.is_prepared.swap(true, Ordering::Relaxed)
        {
            let redis = redis.clone();
            let _ = crate::background::spawn(async move { redis.connected().await });
        }
    }

    /// Drops cached denials of these counters, so that the store is asked.
    pub(crate) fn forget_denials(&self, charges: &[Charge]) {
        for charge in charges {
            self.0.denials.drop_one(charge.counter.id());
        }
    }

    /// The store could not decide on these. What is known of the counters of their servers counts no more.
    pub(crate) fn failed(&self, charges: &[Charge]) {
        let guard = &self.0;
        let slots: SmallVec<[u16; 1]> = charges.iter().map(|charge| guard.store.slot(&charge.counter)).collect();
        // Of several servers, one that is known to be away is the reason.
        let is_known = slots.len() > 1 && slots.iter().any(|slot| guard.store.is_away(*slot));
        for slot in slots.into_iter().filter(|slot| !is_known || guard.store.is_away(*slot)) {
            guard.store.failed(slot);
        }
    }

    /// Asks the store for what is not known to be refused.
    pub(super) fn ask_upstream(&self, mut batch: Batch) -> Reply<Batch> {
        let guard = &self.0;
        let now_us = guard.clock.now_us();
        let denied: SmallVec<[bool; 1]> = batch.iter_mut().map(|request| guard.refuse(request, now_us)).collect();
        let known = if denied.contains(&true) {
            let (known, open): (Vec<_>, Vec<_>) = batch.into_requests().enumerate().partition(|(at, _)| denied[*at]);
            batch = open.into_iter().map(|(_, request)| request).collect();
            known
        } else {
            Vec::new()
        };
        if batch.is_empty() {
            return Reply::Ready(with_known(batch, known));
        }
        let asked = guard.all_asked(&batch, now_us);
        match guard.store.decide(batch) {
            // Who has the answer at once need not be spared the question.
            Reply::Ready(batch) => Reply::Ready(with_known(batch, known)),
            Reply::Pending(reply) => {
                let guard = Arc::clone(guard);
                Reply::Pending(Box::pin(async move {
                    let batch = reply.await;
                    guard.learn(&batch, &asked);
                    with_known(batch, known)
                }))
            }
        }
    }

    pub(super) fn return_charges(&self, charges: Charges) -> Reply<Result<u64, StoreError>> {
        let names = charges.iter().map(|charge| charge.counter.id()).collect();
        self.forget_after(names, self.0.store.refund(charges))
    }
}

impl GuardInner {
    /// The denial of a counter, unless its server has failed since.
    pub(super) fn known(
        &self,
        name: CounterId,
        rule: &Rule,
        cost: u64,
        longest_wait: Duration,
        now_us: u64,
    ) -> Option<Denial> {
        let (denial, server) =
            may_be_known(rule, cost, longest_wait).then(|| self.denials.look(name, rule, now_us))??;
        self.is_current(server).then_some(denial)
    }

    pub(super) fn is_current(&self, server: ServerEpoch) -> bool {
        self.store.epoch(server.slot) == Some(server.epoch)
    }

    pub(super) fn asked(&self, name: CounterId, slot: u16, at_us: u64) -> QueryTag {
        QueryTag { at_us, forgotten: self.denials.forgotten(name), slot, epoch: self.store.epoch(slot) }
    }

    /// Answers a request if each charge of it is known to be refused, and says whether it did.
    ///
    /// If only some are, nobody knows what the store would say of the others, and the refusal names the one with the longest wait.
    pub(super) fn refuse(&self, request: &mut Request, now_us: u64) -> bool {
        if !request.consume || request.charges.is_empty() {
            return false;
        }
        let known = |charge: &Charge| {
            if charge.hold.is_some() {
                return None;
            }
            self.known(charge.counter.id(), &charge.rule, charge.cost, charge.longest_wait, now_us)
        };
        let Some(denials) = request.charges.iter().map(known).collect::<Option<SmallVec<[Denial; 1]>>>() else {
            return false;
        };
        for (charge, denial) in request.charges.iter_mut().zip(denials) {
            observe::cached_denial(&charge.rule);
            (charge.decision, charge.slot_delay) = (denial.decision, Duration::from_millis(denial.wait_ms));
        }
        request.outcome = Ok(false);
        true
    }

    /// Remembers what the store said, for those who ask again.
    pub(super) fn learn(&self, batch: &[Request], asked: &[QueryTag]) {
        for ((request, charge), asked) in charges_of(batch).zip(asked) {
            match request.outcome {
                Ok(false) if request.consume => {
                    let wait_ms = u64::try_from(charge.slot_delay.as_millis()).unwrap_or(u64::MAX);
                    self.keep(charge, Denial { decision: charge.decision, wait_ms }, charge.held_by_others, *asked);
                }
                // By a rule of another count: what was known by the old one has changed.
                Ok(true) if request.consume && charge.cost > 0 => self.denials.drop_one(charge.counter.id()),
                _ => {}
            }
        }
    }

    /// Keeps the denial of one charge.
    pub(super) fn keep(
        &self,
        charge: &Charge,
        denial: Denial,
        held: u64,
        QueryTag { at_us, forgotten, slot, epoch }: QueryTag,
    ) {
        if will_stay_known(charge, &denial.decision, held)
            && let Some(server) =
                epoch.map(|epoch| ServerEpoch { slot, epoch }).filter(|server| self.is_current(*server))
        {
            let (name, times) = (charge.counter.id(), (at_us, self.clock.now_us()));
            let is_current = |server| self.is_current(server);
            self.denials.keep(name, &charge.rule, denial, times, (forgotten, server), is_current);
        }
    }

    pub(super) fn all_asked(&self, batch: &[Request], at_us: u64) -> SmallVec<[QueryTag; 1]> {
        let asked = |charge: &Charge| self.asked(charge.counter.id(), self.store.slot(&charge.counter), at_us);
        charges_of(batch).map(|(_, charge)| asked(charge)).collect()
    }
}

fn charges_of(batch: &[Request]) -> impl Iterator<Item = (&Request, &Charge)> {
    batch.iter().flat_map(|request| request.charges.iter().map(move |charge| (request, charge)))
}

/// Whether a denial of this cost can be told from one that came before.
///
/// A cost of 1 is refused when nothing remains, by every algorithm; until it fits nothing else does, so nothing changes but the time. In a fixed window
/// that goes for every cost, if nothing remains. Whether a slot of a queue is early enough is not told before.
fn may_be_known(rule: &Rule, cost: u64, longest_wait: Duration) -> bool {
    rule.caches_denials()
        && match rule.algorithm() {
            Algorithm::FixedWindow { .. } => cost > 0,
            Algorithm::LeakyBucket { .. } => cost == 1 && longest_wait == Duration::MAX,
            _ => cost == 1,
        }
}

/// What others hold they may leave at any time.
fn will_stay_known(charge: &Charge, decision: &Decision, held: u64) -> bool {
    decision.remaining() == 0
        && held == 0
        && charge.hold.is_none()
        && may_be_known(&charge.rule, charge.cost, charge.longest_wait)
}

/// Forgets what is known of some counters when something has been done to them, or may have been.
struct InvalidateDenials {
    guard: Arc<GuardInner>,
    names: SmallVec<[CounterId; 1]>,
}

impl Drop for InvalidateDenials {
    fn drop(&mut self) {
        self.names.iter().for_each(|name| self.guard.denials.forget(*name));
    }
}

/// Makes void what was taken of a counter, when it has been reset, or may have been.
pub(super) struct InvalidateQuota {
    pub(super) guard: Arc<GuardInner>,
    pub(super) name: CounterId,
}

impl Drop for InvalidateQuota {
    fn drop(&mut self) {
        self.guard.batches.forget(self.name);
    }
}

impl Guard {
    pub(super) fn forget_after<T: Send + 'static>(&self, names: SmallVec<[CounterId; 1]>, reply: Reply<T>) -> Reply<T> {
        // Not before: what is asked while the store is about to act may be refused, and answered after it has acted.
        let forget = InvalidateDenials { guard: Arc::clone(&self.0), names };
        match reply {
            Reply::Ready(answer) => Reply::Ready(answer),
            Reply::Pending(answer) => Reply::Pending(Box::pin(async move {
                let _forget = forget;
                answer.await
            })),
        }
    }
}

/// The requests that the store has answered, and in their places those that it was not asked.
fn with_known(batch: Batch, known: Vec<(usize, Request)>) -> Batch {
    if known.is_empty() {
        return batch;
    }
    let mut requests: Vec<_> = batch.into_requests().collect();
    for (at, request) in known {
        requests.insert(at.min(requests.len()), request); // a store may lose some
    }
    requests.into_iter().collect()
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.store.fmt(f)
    }
}
