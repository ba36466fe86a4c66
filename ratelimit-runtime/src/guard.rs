//! What stands in front of a store that has to be asked: what this process knows already is not asked again.

mod denials;

#[cfg(feature = "redis")]
use std::task::{Context, Poll, Waker, ready};
use std::{fmt, ops, sync::Arc, time::Duration};

use smallvec::SmallVec;

use self::denials::{Denial, Denials};
#[cfg(feature = "redis")]
use crate::redis::{self, Redis, Share};
use crate::{
    Algorithm, Clock, CounterName, Decision, Rule,
    health::Seen,
    key::Fingerprint,
    limiter::Settings,
    observe,
    store::{Batch, Charge, Charges, Reply, Request, Store, StoreError},
};

/// A store, and what is known of its counters. It is a store too, which decides as the one behind it does.
#[derive(Clone)]
pub(crate) struct Guarded(Arc<Guard>);

struct Guard {
    store: Behind,
    clock: Clock,
    seen: Arc<Seen>,
    denials: Denials,
}

/// A store that has to be asked.
pub(crate) enum Behind {
    #[cfg(feature = "redis")]
    Redis(Redis),
    Other(Box<dyn Store>),
}

impl ops::Deref for Behind {
    type Target = dyn Store;

    fn deref(&self) -> &(dyn Store + 'static) {
        match self {
            #[cfg(feature = "redis")]
            Self::Redis(redis) => redis,
            Self::Other(store) => &**store,
        }
    }
}

/// When a batch was sent, and how often something had been forgotten then of each charge in it.
struct Sent {
    at_us: u64,
    forgotten: SmallVec<[u64; 1]>,
}

impl Guarded {
    pub(crate) fn new(store: Behind, settings: &Settings, seen: Arc<Seen>) -> Self {
        Self(Arc::new(Guard { store, clock: settings.clock.clone(), seen, denials: Denials::new() }))
    }

    /// What the store would say of a cost, if it is known that it would refuse it.
    pub(crate) fn known_denial(&self, name: Fingerprint, rule: &Rule, cost: u64) -> Option<Decision> {
        let guard = &*self.0;
        if guard.denials.is_empty() {
            return None;
        }
        let denial = guard.known(name, rule, cost, Duration::MAX, guard.clock.now_us())?;
        if guard.is_degraded() {
            return None;
        }
        observe::known(rule);
        Some(denial.decision)
    }
}

#[cfg(feature = "redis")]
impl Guarded {
    /// A share in a decision, where such travel together now: the short way for many callers at once. `charge`: what is to be charged, asked for
    /// if nobody is about to charge the same.
    pub(crate) fn share(
        &self,
        name: Fingerprint,
        rule: &Rule,
        cost: u64,
        charge: impl FnOnce() -> Charge,
        waker: &Waker,
    ) -> Option<Share> {
        let Behind::Redis(redis) = &self.0.store else { return None };
        let is_same = |other: &Charge| other.cost == cost && other.rule == *rule;
        let asked = || Asked { at_us: self.0.clock.now_us(), forgotten: self.0.denials.forgotten(name) };
        redis.share(name, is_same, || (charge(), asked()), waker)
    }

    /// What came of it. Nothing for a caller who has waited for longer than the deadline.
    pub(crate) fn poll(&self, share: &mut Share, context: &mut Context<'_>) -> Poll<Option<redis::Shared>> {
        let told = ready!(Redis::poll(share, context));
        let guard = &self.0;
        if let Some(Asked { at_us, .. }) = share.asked() {
            observe::answered_after(Duration::from_micros(guard.clock.now_us().saturating_sub(at_us)));
        }
        if let (Some(Ok((look, _))), Some(charge)) = (&told, share.charge()) {
            if look.fits {
                guard.denials.drop_one(charge.counter.fingerprint());
            } else if let Some(asked) = share.asked() {
                guard.keep(charge, &look.decision, look.wait_ms, asked);
            }
        }
        Poll::Ready(told)
    }
}

/// When a decision was asked for, and how often something had been forgotten of its counter then.
#[cfg(feature = "redis")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    at_us: u64,
    forgotten: u64,
}

impl Guard {
    /// Whether the store is away, or was of late. What was known is forgotten then: a server may come back without its counters.
    fn is_degraded(&self) -> bool {
        let is_degraded = self.seen.is_degraded() || self.store.outage().is_some();
        if is_degraded {
            self.denials.forget_all();
        }
        is_degraded
    }

    fn known(&self, name: Fingerprint, rule: &Rule, cost: u64, longest_wait: Duration, now_us: u64) -> Option<Denial> {
        may_be_known(rule, cost, longest_wait).then(|| self.denials.look(name, rule, now_us))?
    }

    /// Answers a request if each charge of it is known to be refused, and says whether it did.
    ///
    /// If only some are, nobody knows what the store would say of the others, and the refusal names the one with the longest wait.
    fn refuse(&self, request: &mut Request, now_us: u64) -> bool {
        if !request.consume || request.charges.is_empty() {
            return false;
        }
        let known = |charge: &Charge| {
            self.known(charge.counter.fingerprint(), &charge.rule, charge.cost, charge.longest_wait, now_us)
        };
        let Some(denials) = request.charges.iter().map(known).collect::<Option<SmallVec<[Denial; 1]>>>() else {
            return false;
        };
        if self.is_degraded() {
            return false;
        }
        for (charge, denial) in request.charges.iter_mut().zip(denials) {
            observe::known(&charge.rule);
            (charge.decision, charge.wait) = (denial.decision, Duration::from_millis(denial.wait_ms));
        }
        request.outcome = Ok(false);
        true
    }

    /// Remembers what the store said, for those who ask again.
    fn learn(&self, batch: &[Request], sent: &Sent) {
        if self.seen.is_degraded() {
            return;
        }
        let now_us = self.clock.now_us();
        for ((request, charge), forgotten) in charges_of(batch).zip(&sent.forgotten) {
            let name = charge.counter.fingerprint();
            match request.outcome {
                Ok(false) if request.consume && will_stay_known(charge, &charge.decision) => {
                    let wait_ms = u64::try_from(charge.wait.as_millis()).unwrap_or(u64::MAX);
                    let denial = Denial { decision: charge.decision, wait_ms };
                    self.denials.keep(name, &charge.rule, denial, (sent.at_us, now_us), *forgotten);
                }
                // By a rule of another count: what was known by the old one has changed.
                Ok(true) if request.consume && charge.cost > 0 => self.denials.drop_one(name),
                _ => {}
            }
        }
    }

    /// The same for one charge.
    #[cfg(feature = "redis")]
    fn keep(&self, charge: &Charge, decision: &Decision, wait_ms: u64, Asked { at_us, forgotten }: Asked) {
        if will_stay_known(charge, decision) && !self.seen.is_degraded() {
            let (name, denial) = (charge.counter.fingerprint(), Denial { decision: *decision, wait_ms });
            self.denials.keep(name, &charge.rule, denial, (at_us, self.clock.now_us()), forgotten);
        }
    }

    fn forgotten(&self, batch: &[Request]) -> SmallVec<[u64; 1]> {
        charges_of(batch).map(|(_, charge)| self.denials.forgotten(charge.counter.fingerprint())).collect()
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
        && match rule.counted_by() {
            Algorithm::FixedWindow { .. } => cost > 0,
            Algorithm::LeakyBucket { .. } => cost == 1 && longest_wait == Duration::MAX,
            _ => cost == 1,
        }
}

fn will_stay_known(charge: &Charge, decision: &Decision) -> bool {
    decision.remaining() == 0 && may_be_known(&charge.rule, charge.cost, charge.longest_wait)
}

/// Forgets what is known of some counters when something has been done to them, or may have been.
struct Forget {
    guard: Arc<Guard>,
    names: SmallVec<[Fingerprint; 1]>,
}

impl Drop for Forget {
    fn drop(&mut self) {
        self.names.iter().for_each(|name| self.guard.denials.forget(*name));
    }
}

impl Guarded {
    fn forget_after<T: Send + 'static>(&self, names: SmallVec<[Fingerprint; 1]>, reply: Reply<T>) -> Reply<T> {
        // Not before: what is asked while the store is about to act may be refused, and answered after it has acted.
        let forget = Forget { guard: Arc::clone(&self.0), names };
        match reply {
            Reply::Ready(answer) => Reply::Ready(answer),
            Reply::Pending(answer) => Reply::Pending(Box::pin(async move {
                let _forget = forget;
                answer.await
            })),
        }
    }
}

impl Store for Guarded {
    fn decide(&self, mut batch: Batch) -> Reply<Batch> {
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
        let sent = Sent { at_us: now_us, forgotten: guard.forgotten(&batch) };
        match guard.store.decide(batch) {
            // Who has the answer at once need not be spared the question.
            Reply::Ready(batch) => Reply::Ready(with_known(batch, known)),
            Reply::Pending(reply) => {
                let guard = Arc::clone(guard);
                Reply::Pending(Box::pin(async move {
                    let batch = reply.await;
                    guard.learn(&batch, &sent);
                    with_known(batch, known)
                }))
            }
        }
    }

    fn give_back(&self, charges: Charges) -> Reply<Result<u64, StoreError>> {
        let names = charges.iter().map(|charge| charge.counter.fingerprint()).collect();
        self.forget_after(names, self.0.store.give_back(charges))
    }

    fn reset(&self, counter: CounterName) -> Reply<Result<(), StoreError>> {
        let names = SmallVec::from_iter([counter.fingerprint()]);
        self.forget_after(names, self.0.store.reset(counter))
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

impl fmt::Debug for Guarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.store.fmt(f)
    }
}
