//! What stands in front of a store that has to be asked: what this process knows already is not asked again.

mod denials;
mod quota;

use std::{fmt, future::Future, ops, pin::Pin, sync::Arc, time::Duration};
#[cfg(feature = "redis")]
use std::{
    sync::atomic::{AtomicBool, Ordering},
    task::{Context, Poll, Waker},
};

use smallvec::SmallVec;
use tokio::{
    runtime::Handle,
    sync::{Notify, oneshot},
    time::timeout,
};

pub(crate) use self::quota::Spent;
use self::{
    denials::{Denial, DenialCache, Server},
    quota::{Answer, FollowUp, QuotaBatches, SpendResult, Take},
};
#[cfg(feature = "redis")]
use crate::redis::{self, Redis, Share};
use crate::{
    Algorithm, Clock, CounterName, Decision, Rule,
    backend::QueryTag,
    background,
    counter::CounterId,
    failures::{Epoch, Failures},
    observe,
    store::{Batch, Charge, Charges, Reply, Request, Store, StoreError},
};

/// A store, and what is known of its counters. It is a store too, which decides as the one behind it does.
#[derive(Clone)]
pub(crate) struct Guard(Arc<GuardInner>);

struct GuardInner {
    store: Upstream,
    clock: Clock,
    deadline: Duration,
    denials: DenialCache,
    batches: QuotaBatches,
    /// Nothing is being taken any more.
    all_taken: Notify,
    /// Set by the first hold: see [`Guard::prepare`].
    #[cfg(feature = "redis")]
    is_prepared: AtomicBool,
}

/// What need not be asked.
pub(crate) enum Known {
    Spent(Spent),
    Denied(Decision),
}

/// A store that has to be asked.
pub(crate) enum Upstream {
    #[cfg(feature = "redis")]
    Redis(Redis),
    Other(Box<dyn Store>, Failures),
}

#[cfg_attr(not(feature = "redis"), allow(unused_variables))]
impl Upstream {
    pub(crate) fn other(store: impl Store) -> Self {
        Self::Other(Box::new(store), Failures::default())
    }

    /// The slot of a counter, by which its server is found. Always 0 where there is one.
    fn slot(&self, counter: &CounterName) -> u16 {
        match self {
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.slot(counter),
            Self::Other(..) => 0,
        }
    }

    /// Whether the server of a slot is known to be away.
    fn is_away(&self, slot: u16) -> bool {
        match self {
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.is_away(slot),
            Self::Other(store, _) => store.outage().is_some(),
        }
    }

    /// The server of a slot could not decide.
    fn failed(&self, slot: u16) {
        match self {
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.failed(slot),
            Self::Other(_, failures) => failures.failed(),
        }
    }

    /// The epoch of the server of a slot. `None` while it is away, and within a second of a failure.
    fn epoch(&self, slot: u16) -> Option<Epoch> {
        match self {
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis.epoch(slot),
            Self::Other(store, failures) if store.outage().is_none() => failures.epoch(),
            Self::Other(_, failures) => {
                failures.failed();
                None
            }
        }
    }
}

impl ops::Deref for Upstream {
    type Target = dyn Store;

    fn deref(&self) -> &(dyn Store + 'static) {
        match self {
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis,
            Self::Other(store, _) => &**store,
        }
    }
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
            let _ = background::spawn(async move { redis.connected().await });
        }
    }

    /// What becomes of a cost that can be spent here, or of which it is known that the store would refuse it.
    pub(crate) fn known(&self, name: CounterId, rule: &Rule, cost: u64) -> Option<Known> {
        let guard = &*self.0;
        let prefetches = rule.prefetch() > 1;
        if !prefetches && guard.denials.is_empty() {
            return None;
        }
        let now_us = guard.clock.now_us();
        if prefetches {
            match guard.batches.spend(name, rule, cost, now_us) {
                Ok((spent, take)) => {
                    if let Some(take) = take {
                        self.begin(take);
                    }
                    return Some(Known::Spent(spent));
                }
                Err(0) => {}
                Err(_) => return None, // with what is here there may be enough
            }
        }
        let denial = guard.known(name, rule, cost, Duration::MAX, now_us)?;
        observe::cached_denial(rule);
        Some(Known::Denied(denial.decision))
    }

    /// Refunds what was spent here: to be spent here again, or to the store if that is not to be.
    pub(crate) fn refund_spent(&self, name: CounterId, cost: u64, receipt: [u64; 2]) -> Reply<Result<u64, StoreError>> {
        if self.put_back(name, cost, receipt) {
            return Reply::Ready(Ok(cost));
        }
        match self.0.batches.charge(name, receipt, cost) {
            Some(charge) => self.return_charges(charge.into()),
            None => Reply::Ready(Ok(0)), // of a window before, or from before a reset
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

    /// Refunds all that was taken and not spent, and takes no more.
    pub(crate) async fn close(&self) -> u64 {
        let guard = &self.0;
        guard.batches.close();
        let all_taken = async {
            loop {
                let all_taken = guard.all_taken.notified(); // registered before the look
                if !guard.batches.is_taking() {
                    return;
                }
                all_taken.await;
            }
        };
        let _ = timeout(guard.deadline, all_taken).await;
        let mut back = 0;
        for charges in guard.unspent() {
            let permits: u64 = charges.iter().map(|charge| charge.cost).sum();
            let refunded = match self.return_charges(charges) {
                Reply::Ready(answer) => answer,
                Reply::Pending(answer) => {
                    timeout(guard.deadline, answer).await.unwrap_or_else(|_| Err(StoreError::late(guard.deadline)))
                }
            };
            match refunded {
                Ok(permits) => back += permits,
                Err(error) => tracing::warn!(permits, %error, "permits that were taken and not spent stay charged"),
            }
        }
        back
    }
}

#[cfg(feature = "redis")]
impl Guard {
    /// A share in a decision, where such travel together now: the short way for many callers at once. `charge`: what is to be charged, asked for
    /// if nobody is about to charge the same.
    #[inline]
    pub(crate) fn share(
        &self,
        name: CounterId,
        rule: &Rule,
        cost: u64,
        charge: impl FnOnce() -> Charge,
        waker: &Waker,
    ) -> Option<Share> {
        let Upstream::Redis(redis) = &self.0.store else { return None };
        if rule.prefetch() > 1 {
            return None; // what it takes is not for one caller
        }
        let is_same = |other: &Charge| other.cost == cost && other.rule == *rule;
        let asked = || self.0.asked(name, 0, self.0.clock.now_us());
        redis.share(name, is_same, || (charge(), asked()), waker)
    }

    /// What came of it. Nothing for a caller who has waited for longer than the deadline.
    #[inline]
    pub(crate) fn poll(&self, share: &mut Share, context: &mut Context<'_>) -> Poll<Option<redis::Shared>> {
        let guard = &self.0;
        let told = Redis::poll(share, context, |decision, charge, look| {
            if let Some(asked) = decision.asked() {
                let denial = Denial { decision: look.decision, wait_ms: look.wait_ms };
                guard.keep(charge, denial, look.held, asked);
            }
        });
        let Poll::Ready(told) = told else {
            share.limit_elsewhere(guard.deadline);
            return Poll::Pending;
        };
        if cfg!(feature = "metrics")
            && let Some(QueryTag { at_us, .. }) = share.asked()
        {
            observe::store_latency(Duration::from_micros(guard.clock.now_us().saturating_sub(at_us)));
        }
        if let (Some(Ok(taken)), Some(charge)) = (&told, share.charge())
            && taken.fits()
        {
            guard.denials.drop_one(charge.counter.id());
        }
        Poll::Ready(told)
    }
}

impl GuardInner {
    /// The denial of a counter, unless its server has failed since.
    fn known(&self, name: CounterId, rule: &Rule, cost: u64, longest_wait: Duration, now_us: u64) -> Option<Denial> {
        let (denial, server) =
            may_be_known(rule, cost, longest_wait).then(|| self.denials.look(name, rule, now_us))??;
        self.is_current(server).then_some(denial)
    }

    fn is_current(&self, server: Server) -> bool {
        self.store.epoch(server.slot) == Some(server.epoch)
    }

    fn asked(&self, name: CounterId, slot: u16, at_us: u64) -> QueryTag {
        QueryTag { at_us, forgotten: self.denials.forgotten(name), slot, epoch: self.store.epoch(slot) }
    }

    /// Answers a request if each charge of it is known to be refused, and says whether it did.
    ///
    /// If only some are, nobody knows what the store would say of the others, and the refusal names the one with the longest wait.
    fn refuse(&self, request: &mut Request, now_us: u64) -> bool {
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
    fn learn(&self, batch: &[Request], asked: &[QueryTag]) {
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
    fn keep(&self, charge: &Charge, denial: Denial, held: u64, QueryTag { at_us, forgotten, slot, epoch }: QueryTag) {
        if will_stay_known(charge, &denial.decision, held)
            && let Some(server) = epoch.map(|epoch| Server { slot, epoch }).filter(|server| self.is_current(*server))
        {
            let (name, times) = (charge.counter.id(), (at_us, self.clock.now_us()));
            let is_current = |server| self.is_current(server);
            self.denials.keep(name, &charge.rule, denial, times, (forgotten, server), is_current);
        }
    }

    fn all_asked(&self, batch: &[Request], at_us: u64) -> SmallVec<[QueryTag; 1]> {
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
struct InvalidateQuota {
    guard: Arc<GuardInner>,
    name: CounterId,
}

impl Drop for InvalidateQuota {
    fn drop(&mut self) {
        self.guard.batches.forget(self.name);
    }
}

impl Guard {
    fn forget_after<T: Send + 'static>(&self, names: SmallVec<[CounterId; 1]>, reply: Reply<T>) -> Reply<T> {
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

impl Guard {
    /// Asks the store for what is not known to be refused.
    fn ask_upstream(&self, mut batch: Batch) -> Reply<Batch> {
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

    /// Decides on one charge of a rule with prefetch.
    fn decide_prefetched(&self, mut request: Request) -> Reply<Batch> {
        let (guard, now_us) = (&self.0, self.0.clock.now_us());
        let charge = &mut request.charges[0];
        match guard.batches.spend(charge.counter.id(), &charge.rule, charge.cost, now_us) {
            Ok((spent, take)) => {
                if let Some(take) = take {
                    self.begin(take);
                }
                spent.write_to(charge);
                request.outcome = Ok(true);
                return Reply::Ready(request.into());
            }
            Err(0) if guard.refuse(&mut request, now_us) => return Reply::Ready(request.into()),
            Err(_) => {}
        }
        let store = self.clone();
        Reply::Pending(Box::pin(async move {
            let charge = &mut request.charges[0];
            let answer = match store.ask(charge) {
                SpendResult::Spent(spent) => Answer::Spent(spent),
                SpendResult::Waits(answer) => {
                    QuotaWaiter { store: &store, name: charge.counter.id(), answer }.answer().await
                }
                SpendResult::Alone => return answer_of(store.ask_upstream(request.into())).await,
            };
            request.outcome = match answer {
                Answer::Spent(spent) => {
                    spent.write_to(charge);
                    Ok(true)
                }
                Answer::Denied(decision) => {
                    charge.decision = decision;
                    Ok(false)
                }
                Answer::Failed(error) => Err(error),
            };
            request.into()
        }))
    }

    /// Looks at one charge of a rule with prefetch: what is here can be granted too.
    fn peek_prefetched(&self, request: Request) -> Reply<Batch> {
        let (guard, reply) = (Arc::clone(&self.0), self.0.store.decide(request.into()));
        Reply::Pending(Box::pin(async move {
            let mut batch = answer_of(reply).await;
            for request in batch.iter_mut().filter(|request| request.outcome.is_ok()) {
                for Charge { decision, counter, rule, cost, .. } in &mut *request.charges {
                    let left = guard.batches.left(counter.id(), guard.clock.now_us());
                    decision.remaining = (decision.remaining + left).min(rule.limit());
                    if *cost <= decision.remaining {
                        decision.retry_after_ms = u64::MAX;
                        request.outcome = Ok(true);
                    }
                }
            }
            batch
        }))
    }

    fn ask(&self, charge: &Charge) -> SpendResult {
        let Charge { counter, rule, cost, .. } = charge;
        let (asked, then) = self.0.batches.ask(counter, rule, *cost, self.0.clock.now_us());
        if let Some(take) = self.follow(counter.id(), then) {
            self.begin(take);
        }
        asked
    }

    /// Takes back what was spent, and says whether it can be spent again.
    fn put_back(&self, name: CounterId, cost: u64, receipt: [u64; 2]) -> bool {
        let back = self.0.batches.put_back(name, receipt, cost, self.0.clock.now_us());
        let is_back = back.is_some();
        self.follow(name, back.unwrap_or_default());
        is_back
    }

    /// The same for somebody who is gone.
    fn return_spent(&self, name: CounterId, Spent { cost, receipt, .. }: Spent) {
        if let Reply::Pending(back) = self.refund_spent(name, cost, receipt) {
            self.0.in_background(back);
        }
    }

    /// Does what is to be done when the lock is free again. Returns the take that is to be made.
    fn follow(&self, name: CounterId, FollowUp { answers, take, back }: FollowUp) -> Option<Take> {
        for (caller, answer) in answers {
            if let Err(Answer::Spent(spent)) = caller.send(answer) {
                self.return_spent(name, spent);
            }
        }
        if let Some(back) = back
            && let Reply::Pending(back) = self.return_charges(back.into())
        {
            self.0.in_background(back);
        }
        take
    }

    /// Makes a take in the background: its callers may go, and may be on any runtime.
    fn begin(&self, take: Take) {
        let under_way = PrefetchTask { store: self.clone(), name: take.name, is_over: false };
        let _ = background::spawn(under_way.make(take)); // or it is given up
    }

    fn return_charges(&self, charges: Charges) -> Reply<Result<u64, StoreError>> {
        let names = charges.iter().map(|charge| charge.counter.id()).collect();
        self.forget_after(names, self.0.store.refund(charges))
    }
}

/// Somebody who waits for a take. What was spent for one who is gone comes back.
struct QuotaWaiter<'a> {
    store: &'a Guard,
    name: CounterId,
    answer: oneshot::Receiver<Answer>,
}

impl QuotaWaiter<'_> {
    async fn answer(mut self) -> Answer {
        let given_up = || StoreError::unavailable("taking permits from the store was given up");
        (&mut self.answer).await.unwrap_or_else(|_| Answer::Failed(given_up()))
    }
}

impl Drop for QuotaWaiter<'_> {
    fn drop(&mut self) {
        self.answer.close();
        if let Ok(Answer::Spent(spent)) = self.answer.try_recv() {
            self.store.return_spent(self.name, spent);
        }
    }
}

/// A take that is being made. It is given up if its task ends early, because the store panics say.
struct PrefetchTask {
    store: Guard,
    name: CounterId,
    is_over: bool,
}

impl PrefetchTask {
    /// And those after it, as long as somebody needs more than what came.
    async fn make(mut self, mut take: Take) {
        let guard = Arc::clone(&self.store.0);
        loop {
            let sent_us = guard.clock.now_us();
            let charge = Charge::new(take.rule, take.counter.clone(), take.cost);
            let reply = self.store.ask_upstream(Request::new(charge, true).into());
            let batch = timeout(guard.deadline, answer_of(reply)).await;
            let said = match batch.map(Batch::into_first) {
                Ok(Some(Request { outcome: Ok(fits), charges, .. })) => {
                    charges.first().cloned().map(|charge| (charge, fits)).ok_or_else(StoreError::no_answer)
                }
                Ok(Some(Request { outcome: Err(error), .. })) => Err(error),
                Ok(None) => Err(StoreError::no_answer()),
                Err(_) => Err(StoreError::late(guard.deadline)),
            };
            let then = guard.batches.arrived(&take, said, sent_us, guard.clock.now_us());
            self.is_over = then.take.is_none();
            match self.store.follow(self.name, then) {
                Some(next) => take = next,
                None => return,
            }
        }
    }
}

impl Drop for PrefetchTask {
    fn drop(&mut self) {
        let guard = &self.store.0;
        if !self.is_over {
            guard.batches.given_up(self.name);
        }
        if guard.batches.task_ended() {
            guard.all_taken.notify_waiters();
        }
    }
}

impl GuardInner {
    /// All that was taken and not spent, as much at a time as is refunded in one call.
    fn unspent(&self) -> Vec<Charges> {
        const AT_ONCE: usize = 256;
        let charges = self.batches.drain(self.clock.now_us());
        let together = |charges: &[Charge]| {
            let mut all = Charges::default();
            for charge in charges {
                all.push(charge.clone());
            }
            all
        };
        charges.chunks(AT_ONCE).map(together).collect()
    }

    /// Nobody waits for this. What can't be refunded stays charged.
    fn in_background<T: Send + 'static>(&self, back: Pin<Box<dyn Future<Output = T> + Send>>) {
        let deadline = self.deadline;
        let _ = background::spawn(async move { timeout(deadline, back).await.is_ok() });
    }
}

impl Drop for GuardInner {
    fn drop(&mut self) {
        for charges in self.unspent() {
            if let Reply::Pending(back) = self.store.refund(charges) {
                self.in_background(back);
            }
        }
    }
}

async fn answer_of<T>(reply: Reply<T>) -> T {
    match reply {
        Reply::Ready(answer) => answer,
        Reply::Pending(answer) => answer.await,
    }
}

impl Store for Guard {
    fn decide(&self, mut batch: Batch) -> Reply<Batch> {
        let prefetched = match &*batch {
            [Request { charges, consume, .. }] => match &**charges {
                [charge] if charge.rule.prefetch() > 1 && charge.cost > 0 => Some(*consume),
                _ => None,
            },
            _ => None,
        };
        let one = |batch: Batch| batch.into_first().expect("a request, as was seen");
        match prefetched {
            Some(false) => self.peek_prefetched(one(batch)),
            // Without a runtime a caller can't wait for what is taken.
            Some(true) if Handle::try_current().is_ok() && background::runtime().is_ok() => {
                self.decide_prefetched(one(batch))
            }
            None if charges_of(&batch).any(|(_, charge)| charge.hold.is_some()) => match background::runtime() {
                Ok(_) => self.ask_upstream(batch),
                // Without the background thread it would not be renewed.
                Err(error) => {
                    batch.iter_mut().for_each(|request| request.outcome = Err(error.clone()));
                    Reply::Ready(batch)
                }
            },
            _ => self.ask_upstream(batch),
        }
    }

    fn refund(&self, charges: Charges) -> Reply<Result<u64, StoreError>> {
        if let [Charge { rule, counter, cost, receipt, .. }] = &*charges
            && rule.prefetch() > 1
            && self.put_back(counter.id(), *cost, *receipt)
        {
            return Reply::Ready(Ok(*cost));
        }
        self.return_charges(charges)
    }

    fn reset(&self, counter: CounterName) -> Reply<Result<(), StoreError>> {
        let void = InvalidateQuota { guard: Arc::clone(&self.0), name: counter.id() };
        let names = SmallVec::from_iter([counter.id()]);
        match self.forget_after(names, self.0.store.reset(counter)) {
            Reply::Ready(done) => Reply::Ready(done),
            Reply::Pending(done) => Reply::Pending(Box::pin(async move {
                let _void = void;
                done.await
            })),
        }
    }

    fn supports_holds(&self) -> bool {
        self.0.store.supports_holds()
    }

    fn renew(&self, charges: Vec<Charge>) -> Reply<Result<Vec<bool>, StoreError>> {
        // What had become a charge ends later than was known.
        let names = charges.first().map(|charge| charge.counter.id()).into_iter().collect();
        self.forget_after(names, self.0.store.renew(charges))
    }

    fn settle(&self, charge: Charge, used: u64) -> Reply<Result<(), StoreError>> {
        let names = SmallVec::from_iter([charge.counter.id()]);
        self.forget_after(names, self.0.store.settle(charge, used))
    }

    fn outage(&self) -> Option<StoreError> {
        self.0.store.outage()
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

#[cfg(all(test, not(model_check)))]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

    use tokio::time::advance;

    use super::*;
    use crate::Limiter;

    const HOUR: Duration = Duration::from_secs(3600);
    const RULE: Rule = Rule::new("item", 1, HOUR);

    /// Refuses everything, or is away.
    #[derive(Clone, Debug, Default)]
    struct Refusing(Arc<(AtomicBool, AtomicU64)>);

    impl Store for Refusing {
        fn decide(&self, mut batch: Batch) -> Reply<Batch> {
            self.0.1.fetch_add(1, SeqCst);
            for request in batch.iter_mut() {
                request.outcome = self.outage().map_or(Ok(false), Err);
                request.charges[0].decision = Decision::new(1, 0, HOUR, Some(HOUR));
            }
            Reply::Pending(Box::pin(async move { batch }))
        }

        fn refund(&self, _: Charges) -> Reply<Result<u64, StoreError>> {
            Reply::Ready(Ok(0))
        }

        fn reset(&self, _: CounterName) -> Reply<Result<(), StoreError>> {
            Reply::Ready(Ok(()))
        }

        fn outage(&self) -> Option<StoreError> {
            self.0.0.load(SeqCst).then(|| StoreError::unavailable("away"))
        }
    }

    /// Whoever learns of it first.
    #[tokio::test(start_paused = true)]
    async fn denials_from_before_a_failure_make_room_for_others() {
        let store = Refusing::default();
        let limiter = Limiter::with_store(store.clone());
        for key in 0..1000 {
            assert!(limiter.acquire(&RULE, key).await.is_err());
        }
        store.0.0.store(true, SeqCst);
        for key in 0..1000 {
            let _ = limiter.acquire(&RULE, key).await;
        }
        store.0.0.store(false, SeqCst);
        advance(2 * Duration::from_secs(1)).await;
        let ask_ten = async || {
            let before = store.0.1.load(SeqCst);
            for key in 1000..1010 {
                assert!(limiter.acquire(&RULE, key).await.is_err());
            }
            store.0.1.load(SeqCst) - before
        };
        assert_eq!(ask_ten().await, 10);
        assert!(ask_ten().await < 10, "none of them is known");
    }
}
