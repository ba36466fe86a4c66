//! What is held for a call: places, and charges that come to something when it is over.
//!
//! A store that has to be asked forgets what nobody renews, so a task keeps what is held there, and settles it. It does so wherever
//! its holder is dropped, and to its end. A store in this process keeps it by itself, and is settled at once.

use std::{
    collections::HashMap,
    fmt,
    future::Future,
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::{
        oneshot,
        watch::{Receiver, Sender},
    },
    time::{Instant, sleep, timeout},
};

use crate::{
    CounterName, RequestPerMinute, Rule,
    call::CountedBy,
    limiter::{Held, refusal},
    observe,
    store::{Charge, Charges, Hold, Reply, StoreError},
};

/// Before what failed is tried again, at first.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Before it is tried again later, and between two renewals: nobody believes for longer that something is held which a server has lost.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

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
    ByTask(Task),
    Settled,
}

/// A task that keeps what is held.
struct Task {
    rule: Rule,
    counters: Vec<CounterName>,
    settle: oneshot::Sender<Settlement>,
    /// Until when it is held for certain, in microseconds of the limiter's clock; 0 once it is lost.
    until_us: Arc<AtomicU64>,
}

/// What is to be charged instead of what is held.
struct Settlement {
    used: Used,
    /// Held by those who ask before it is done.
    under_way: UnderWay,
    told: Option<oneshot::Sender<Result<(), StoreError>>>,
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
        let kept = match Handle::try_current() {
            Ok(runtime) if !is_here => Kept::ByTask(Task::start(&runtime, &limiter, charges, asked)),
            _ => Kept::Here(charges),
        };
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
            Kept::ByTask(task) => self.limiter.settings().clock.now_us() < task.until_us.load(Ordering::Acquire),
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
        let gone = || StoreError::unavailable("its tokio runtime is shutting down");
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
            Kept::ByTask(Task { rule, counters, settle, .. }) => {
                let under_way = UnderWay::new(self.limiter.clone(), counters);
                drop(settle.send(Settlement { used, under_way, told }));
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

impl Task {
    fn start(runtime: &Handle, limiter: &Held, charges: Charges, asked: Duration) -> Self {
        let lease = charges.iter().filter_map(|charge| charge.hold).map(|hold| hold.lease).min().unwrap_or_default();
        let until_us = Arc::new(AtomicU64::new(in_us(asked.saturating_add(lease))));
        let rule = charges[0].rule;
        let counters = charges.iter().map(|charge| charge.counter.clone()).collect();
        let (settle, settlement) = oneshot::channel();
        runtime.spawn(keep(limiter.clone(), charges, lease, Arc::clone(&until_us), settlement));
        Self { rule, counters, settle, until_us }
    }
}

/// Renews what is held until it is to be settled.
async fn keep(
    limiter: Held,
    charges: Charges,
    lease: Duration,
    until_us: Arc<AtomicU64>,
    mut settlement: oneshot::Receiver<Settlement>,
) {
    let deadline = limiter.settings().deadline;
    let Settlement { used, under_way, told } = loop {
        tokio::select! {
            biased;
            settlement = &mut settlement => match settlement {
                Ok(settlement) => break settlement,
                Err(_) => return,
            },
            () = sleep((lease / 3).min(LONGEST_PAUSE)) => {}
        }
        let asked = limiter.settings().clock.now();
        let mut is_held = until_us.load(Ordering::Acquire) > 0;
        let mut is_known = true;
        for charge in charges.iter() {
            match in_time(deadline, limiter.renew(charge.clone())).await {
                Ok(renewed) => is_held &= renewed,
                Err(error) => {
                    is_known = false;
                    observe::not_renewed(&charge.rule, &error);
                }
            }
        }
        // What is lost stays so: somebody else may have had it in the meantime.
        if !is_held {
            until_us.store(0, Ordering::Release);
        } else if is_known {
            until_us.store(in_us(asked.saturating_add(lease)), Ordering::Release);
        }
    };
    let (mut settled, mut failed) = (Ok(()), Vec::new());
    for charge in charges.iter() {
        let done = in_time(deadline, limiter.settle(charge.clone(), used.of(charge), CountedBy::Store)).await;
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
        charge.hold = charge.hold.map(|hold| Hold { again: true, ..hold });
        let beyond = if charge.rule.is_concurrent() { Duration::ZERO } else { charge.rule.period() };
        tokio::spawn(async move {
            sleep(FIRST_PAUSE).await;
            let settle = || async {
                let settled = in_time(deadline, limiter.settle(charge.clone(), used, CountedBy::Store)).await;
                limiter.queues().changed(&charge.counter);
                settled.is_ok()
            };
            repeat(lease_of(&charge) + beyond, settle).await;
        });
    }
}

/// Leaves what the store may have granted to a caller who has gone before it answered. What it has not granted yet it may grant later, so it is
/// asked until it had something to leave, or has none any more.
pub(crate) fn abandon(limiter: &Held, charges: &Charges) {
    let Ok(runtime) = Handle::try_current() else { return };
    for charge in charges.iter() {
        let (limiter, charge) = (limiter.clone(), charge.clone());
        runtime.spawn(async move {
            let give_back = || async {
                let back = limiter.store().map(|store| store.give_back(charge.clone().into()));
                let back = in_time(limiter.settings().deadline, back.unwrap_or(Reply::Ready(Ok(1)))).await;
                limiter.queues().changed(&charge.counter);
                back.is_ok_and(|back| back > 0)
            };
            repeat(lease_of(&charge), give_back).await;
        });
    }
}

fn lease_of(charge: &Charge) -> Duration {
    charge.hold.map_or(Duration::ZERO, |hold| hold.lease)
}

/// Does something until it is done, with longer and longer pauses, or for so long.
async fn repeat<F: Future<Output = bool>>(longest: Duration, mut act: impl FnMut() -> F) {
    let (end, mut pause) = (Instant::now() + longest, FIRST_PAUSE);
    while !act().await && Instant::now() < end {
        sleep(pause).await;
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
}

async fn in_time<T>(deadline: Duration, reply: Reply<Result<T, StoreError>>) -> Result<T, StoreError> {
    match reply {
        Reply::Ready(answer) => answer,
        Reply::Pending(answer) => timeout(deadline, answer).await.unwrap_or_else(|_| Err(StoreError::late(deadline))),
    }
}

fn in_us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
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
