//! What is held for a call: places, and charges that come to something when it is over.
//!
//! A remote store forgets a hold that is not renewed, so it is renewed in the background, see
//! `renewals.rs`, and a background task settles it when its holder is dropped. The memory store
//! keeps holds by itself and is settled at once.

use std::{
    collections::HashMap,
    fmt,
    future::Future,
    mem,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    sync::{
        oneshot,
        watch::{Receiver, Sender},
    },
    task::JoinHandle,
    time::{Instant, sleep, sleep_until, timeout_at},
};

use crate::{
    CounterName, RequestPerMinute, Rule, background,
    call::CountedBy,
    limiter::{Held, refusal},
    observe,
    renewals::HeldCharge,
    store::{Batch, Charge, Charges, Hold, Reply, Request, StoreError},
};

/// Before what failed is tried again, at first.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Before it is tried again later.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// After so many answers that there is no hold, clean-up relies on the answer to the caller alone.
const MOST_DENIALS: u32 = 3;

/// What is held for one call. Dropped, it is settled.
pub(crate) struct Holding {
    limiter: Held,
    by: CountedBy,
    began: Duration,
    /// The least time that a charge by elapsed time has granted.
    granted: Duration,
    much: u64,
    /// What was used, as far as it is known.
    known: Option<u64>,
    kept: Kept,
}

/// Who settles.
enum Kept {
    /// Whoever drops it.
    Here(Charges),
    /// A background task. It is renewed until then.
    ByTask(Vec<Arc<HeldCharge>>),
    /// It is settled.
    Settled,
}

/// How much was used.
#[derive(Clone, Copy)]
struct Used {
    elapsed_ms: u64,
    /// By who knows; nothing if it was not said, which is all of it.
    told: Option<u64>,
}

impl Used {
    fn of(self, charge: &Charge) -> u64 {
        match charge.hold {
            Some(hold) if hold.is_timed => self.elapsed_ms,
            _ => self.told.unwrap_or(charge.cost),
        }
    }
}

impl Holding {
    /// Takes over what a store has just granted. `asked`: when it was.
    pub(crate) fn new(limiter: Held, mut charges: Charges, by: CountedBy, asked: Duration) -> Self {
        let began = limiter.settings().clock.now();
        // Places last, in which they are left too: who takes one next finds charged what was used in it.
        charges.sort_by_key(|charge| charge.rule.is_concurrent());
        let is_timed = |charge: &&Charge| charge.hold.is_some_and(|hold| hold.is_timed) && !charge.rule.is_shadow();
        let timed = charges.iter().filter(is_timed);
        let granted = timed.map(|charge| Duration::from_millis(charge.cost)).min().unwrap_or(Duration::MAX);
        let much = charges.iter().map(|charge| charge.cost).sum();
        let is_here = matches!(by, CountedBy::Local) || limiter.memory().is_some();
        let kept = if is_here { Kept::Here(charges) } else { Kept::renewed(&limiter, charges, asked) };
        Self { limiter, by, began, granted, much, known: None, kept }
    }

    /// What a call that is charged by its time may still use.
    pub(crate) fn remaining_time(&self) -> Duration {
        if self.granted == Duration::MAX {
            return Duration::MAX;
        }
        self.granted.saturating_sub(self.elapsed())
    }

    /// Whether nobody else can have it.
    pub(crate) fn is_held(&self) -> bool {
        match &self.kept {
            // A share of this process, as long as the store is away.
            Kept::Here(_) => matches!(self.by, CountedBy::Store) || self.limiter.is_degraded(),
            Kept::ByTask(held) => {
                let now_us = self.limiter.settings().clock.now_us();
                held.iter().all(|held| held.is_held(now_us))
            }
            Kept::Settled => false,
        }
    }

    /// How much was held when it began, of all counters.
    pub(crate) fn much(&self) -> u64 {
        self.much
    }

    /// Adds to what is known to have been used.
    pub(crate) fn record(&mut self, more: u64) {
        self.known = Some(self.known.unwrap_or_default().saturating_add(more));
    }

    /// Charges what was used, and the time that it took where that is charged.
    pub(crate) async fn settle(self, used: u64) -> Result<(), RequestPerMinute> {
        let used = Used { elapsed_ms: self.elapsed_ms(), told: Some(used) };
        self.settle_as(used).await
    }

    /// Charges nothing.
    pub(crate) async fn cancel(self) -> Result<(), RequestPerMinute> {
        self.settle_as(Used { elapsed_ms: 0, told: Some(0) }).await
    }

    async fn settle_as(mut self, used: Used) -> Result<(), RequestPerMinute> {
        let (told, answer) = oneshot::channel();
        let Some(rule) = self.end(used, Some(told)) else { return Ok(()) };
        let gone = || StoreError::unavailable("the task that settles it has ended");
        // It has the deadline, on a runtime that has a timer.
        answer.await.unwrap_or_else(|_| Err(gone())).map_err(|error| refusal(&rule, error))
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.elapsed().as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
    }

    fn elapsed(&self) -> Duration {
        self.limiter.settings().clock.now().saturating_sub(self.began)
    }

    /// The rule to be named in an error, if somebody else does it.
    fn end(&mut self, used: Used, told: Option<oneshot::Sender<Result<(), StoreError>>>) -> Option<Rule> {
        match mem::replace(&mut self.kept, Kept::Settled) {
            Kept::Here(charges) => {
                for charge in charges.iter() {
                    drop(self.limiter.settle(charge.clone(), used.of(charge), self.by));
                    self.limiter.queues().changed(&charge.counter);
                }
                None
            }
            // The parent of a forked process settles what it holds.
            Kept::ByTask(held) if !self.limiter.renewals().remove(&held) => None,
            Kept::ByTask(held) => {
                let rule = held.first()?.charge.rule;
                let counters = held.iter().map(|held| held.charge.counter.clone()).collect();
                let under_way = UnderWay::new(self.limiter.clone(), counters);
                let _ = background::spawn(settle(self.limiter.clone(), held, used, under_way, told));
                Some(rule)
            }
            Kept::Settled => None,
        }
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.end(Used { elapsed_ms: self.elapsed_ms(), told: self.known }, None);
    }
}

impl Kept {
    /// Held at a store.
    fn renewed(limiter: &Held, charges: Charges, asked: Duration) -> Self {
        #[cfg(feature = "redis")]
        if let Some(guarded) = limiter.guarded() {
            guarded.prepare(); // so that the settlement finds a connection
        }
        let held = |charge| Arc::new(HeldCharge::new(limiter.clone(), charge, asked));
        let held: Vec<_> = charges.into_charges().map(held).collect();
        match limiter.renewals().insert(&held) {
            Ok(()) => Self::ByTask(held),
            // The thread ran when the store was asked: the process was forked since, and the
            // parent has the hold.
            Err(_) => Self::Settled,
        }
    }
}

/// Settles what is held. `under_way`: those who ask wait until it is dropped.
async fn settle(
    limiter: Held,
    held: Vec<Arc<HeldCharge>>,
    used: Used,
    under_way: UnderWay,
    told: Option<oneshot::Sender<Result<(), StoreError>>>,
) {
    let deadline = limiter.settings().deadline;
    let end = after(deadline);
    let (mut settled, mut failed) = (Ok(()), Vec::new());
    for charge in held.iter().map(|held| &held.charge) {
        let settling = limiter.settle(charge.clone(), used.of(charge), CountedBy::Store);
        let done = match settling {
            Reply::Ready(done) => done,
            Reply::Pending(done) => timeout_at(end, done).await.unwrap_or_else(|_| Err(StoreError::late(deadline))),
        };
        if let Err(error) = &done {
            observe::not_settled(&charge.rule, error);
            if !error.misconfigured {
                failed.push(charge);
            }
        }
        settled = settled.and(done);
    }
    // Whoever asks next need not wait for a store that is away.
    drop(under_way);
    if let Some(told) = told {
        let _ = told.send(settled);
    }
    for charge in failed {
        let (used, limiter, mut charge) = (used.of(charge), limiter.clone(), charge.clone());
        charge.hold = charge.hold.map(|hold| Hold { is_retry: true, ..hold });
        let beyond = if charge.rule.is_concurrent() { Duration::ZERO } else { charge.rule.period() };
        tokio::spawn(async move {
            let (end, mut pause) = (after(lease_of(&charge).saturating_add(beyond)), FIRST_PAUSE);
            let mut is_settled = false;
            while !is_settled && Instant::now() < end {
                sleep(pause).await;
                pause = (2 * pause).min(LONGEST_PAUSE);
                let settling = limiter.settle(charge.clone(), used, CountedBy::Store);
                is_settled = settling.in_time(deadline).await.is_ok();
            }
            limiter.queues().changed(&charge.counter);
        });
    }
}

type Answer = Pin<Box<dyn Future<Output = Batch> + Send>>;

/// The answer of a store that is asked for a hold. If it is dropped before the answer is there, a
/// background task awaits the answer, and refunds what was granted.
pub(crate) struct CleanUpOnDrop {
    limiter: Held,
    /// Of the charges, those that are held.
    held: Charges,
    answer: Option<Answer>,
    /// Before the first poll nothing is sent.
    is_polled: bool,
}

impl CleanUpOnDrop {
    /// Around the answer, if something is to be held.
    pub(crate) fn around(limiter: &Held, held: Option<Charges>, reply: Reply<Batch>) -> Reply<Batch> {
        match (held, reply) {
            (Some(held), Reply::Pending(answer)) => {
                let (limiter, answer) = (limiter.clone(), Some(answer));
                Reply::Pending(Box::pin(Self { limiter, held, answer, is_polled: false }))
            }
            (_, reply) => reply,
        }
    }
}

impl Future for CleanUpOnDrop {
    type Output = Batch;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Batch> {
        self.is_polled = true;
        let Some(answer) = &mut self.answer else { panic!("an answer polled after it was there") };
        let polled = answer.as_mut().poll(context);
        if let Poll::Ready(batch) = &polled {
            self.answer = None;
            if granted(batch).is_none() {
                let _ = background::spawn(clean_up(self.limiter.clone(), mem::take(&mut self.held), None));
            }
        }
        polled
    }
}

impl Drop for CleanUpOnDrop {
    fn drop(&mut self) {
        if let Some(answer) = self.answer.take()
            && self.is_polled
        {
            let _ = background::spawn(clean_up(self.limiter.clone(), mem::take(&mut self.held), Some(answer)));
        }
    }
}

/// The charges that are to be held. `None` if there are none.
pub(crate) fn held(charges: &Charges) -> Option<Charges> {
    let is_held = charges.iter().any(|charge| charge.hold.is_some());
    is_held.then(|| charges.clone().split_held().0)
}

/// Tells whether something was granted. `None` if that is unknown, because an answer was lost.
fn granted(batch: &Batch) -> Option<bool> {
    let granted = |request: &Request| match &request.outcome {
        Ok(is_granted) => Some(*is_granted),
        Err(error) => (error.is_unsent() || error.misconfigured).then_some(false),
    };
    batch.iter().map(granted).try_fold(false, |any, granted| Some(any | granted?))
}

/// Refunds what a store may have granted to a caller who left before the answer.
///
/// The answer to the caller is final: refused, or granted and to be refunded. Anything sent later
/// is not, as it may overtake the question on another connection. So clean-up awaits the answer.
/// While the answer is late, and if it is lost, it also tells the store to end the hold, until the
/// store has ended it or has said [`MOST_DENIALS`] times that there is none.
async fn clean_up(limiter: Held, held: Charges, answer: Option<Answer>) {
    // In a task of its own, as the store may panic.
    let mut answer = answer.map(|answer| AbortOnDrop(tokio::spawn(answer)));
    let end = after(held.iter().map(lease_of).max().unwrap_or_default());
    let (mut pause, mut is_decided, mut denials) =
        (limiter.settings().deadline.clamp(FIRST_PAUSE, LONGEST_PAUSE), false, 0);
    loop {
        let may_ask = denials < MOST_DENIALS;
        if let Some(AbortOnDrop(waiting)) = &mut answer {
            let until = if may_ask { end.min(after(pause)) } else { end };
            if let Ok(batch) = timeout_at(until, waiting).await {
                match batch.ok().and_then(|batch| granted(&batch)) {
                    Some(false) => return,
                    granted => is_decided = granted.is_some(),
                }
                answer = None;
            }
        }
        if Instant::now() >= end || !may_ask && !is_decided {
            return;
        }
        let back = limiter.store().map(|store| store.refund(held.clone()));
        let back = back.unwrap_or(Reply::Ready(Ok(1))).in_time(limiter.settings().deadline).await;
        match back {
            Ok(0) if !is_decided => denials += 1,
            Ok(_) => return held.iter().for_each(|charge| limiter.queues().changed(&charge.counter)),
            Err(_) => {}
        }
        if answer.is_none() {
            sleep_until(end.min(after(pause))).await;
        }
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
}

struct AbortOnDrop(JoinHandle<Batch>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn lease_of(charge: &Charge) -> Duration {
    charge.hold.map_or(Duration::ZERO, |hold| hold.lease)
}

/// A moment that much later, or in a hundred years.
fn after(time: Duration) -> Instant {
    const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    Instant::now() + time.min(LONGEST)
}

/// Settlements that are under way: who asks for a counter waits for those of it.
#[derive(Debug, Default)]
pub(crate) struct Settlements {
    /// Each ends with its sender.
    by_counter: Mutex<HashMap<CounterName, Vec<Receiver<()>>>>,
    /// How many counters there are, for those who only want to know that there are none.
    count: AtomicUsize,
}

impl Settlements {
    #[inline]
    pub(crate) fn are_none(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Those of these counters that are under way, if any are.
    pub(crate) fn of(&self, charges: &[Charge]) -> Option<UntilDone> {
        if self.are_none() {
            return None;
        }
        let under_way = self.lock();
        let these = charges.iter().filter_map(|charge| under_way.get(&charge.counter));
        let these: Vec<_> = these.flatten().cloned().collect();
        (!these.is_empty()).then_some(UntilDone(these))
    }

    /// All that are under way.
    pub(crate) fn all(&self) -> UntilDone {
        UntilDone(self.lock().values().flatten().cloned().collect())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<CounterName, Vec<Receiver<()>>>> {
        self.by_counter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Settlements that are waited for. Those that begin later are not among them.
#[derive(Debug)]
pub(crate) struct UntilDone(Vec<Receiver<()>>);

impl UntilDone {
    pub(crate) async fn done(self) {
        for mut settlement in self.0 {
            let _ = settlement.changed().await; // an error, when its sender is gone
        }
    }
}

/// A settlement under way, until this is dropped.
struct UnderWay {
    limiter: Held,
    counters: Vec<CounterName>,
    done: Sender<()>,
}

impl UnderWay {
    fn new(limiter: Held, counters: Vec<CounterName>) -> Self {
        let done = Sender::new(());
        let settlements = limiter.settlements();
        let mut under_way = settlements.lock();
        for counter in &counters {
            under_way.entry(counter.clone()).or_default().push(done.subscribe());
        }
        settlements.count.store(under_way.len(), Ordering::Release);
        drop(under_way);
        Self { limiter, counters, done }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let (settlements, own) = (self.limiter.settlements(), self.done.subscribe());
        let mut under_way = settlements.lock();
        for counter in &self.counters {
            if let Some(these) = under_way.get_mut(counter) {
                these.retain(|other| !other.same_channel(&own));
                if these.is_empty() {
                    under_way.remove(counter);
                }
            }
        }
        settlements.count.store(under_way.len(), Ordering::Release);
        drop(under_way);
        for counter in &self.counters {
            self.limiter.queues().changed(counter);
        }
    }
}

impl fmt::Debug for Holding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Holding").field("is_held", &self.is_held()).finish_non_exhaustive()
    }
}
