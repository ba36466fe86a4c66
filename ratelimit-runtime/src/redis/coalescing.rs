//! Decisions that travel together: while a few calls are under way, later decisions gather, and the next call carries them.
//!
//! Databases commit in groups this way (*group commit*). There is no timer: a decision that comes alone goes at once.
//! Decisions are taken in the order in which they came, and callers who ask the same share one. A call belongs to no single caller, so
//! one who leaves takes nothing from the others.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    future::Future,
    hash::BuildHasherDefault,
    mem,
    pin::Pin,
    sync::{Arc, OnceLock, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

use redis::Value;
use tokio::time::Instant;

use super::command::Packet;
use crate::{
    Algorithm, algorithm,
    guard::Asked,
    key::{AlreadyHashed, Fingerprint},
    observe,
    store::{Charge, Charges, StoreError},
    sync::{Mutex, MutexGuard},
};

#[cfg(all(test, model_check))]
mod model_check;

/// How many calls may be under way before decisions gather.
const CALLS: usize = 3;
/// How many different decisions a call carries. So many do not wait for another call to end.
const ENTRIES: usize = 64;

/// Why nobody knows an answer.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// Nothing was sent.
    Unsent(StoreError),
    /// What was sent may have run.
    Unknown(StoreError),
}

impl Failure {
    pub(crate) fn into_error(self) -> StoreError {
        match self {
            Self::Unsent(error) | Self::Unknown(error) => error,
        }
    }
}

/// Decisions that wait for a call to carry them.
#[derive(Debug, Default)]
pub(super) struct Queue(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Arc<Decision>>,
    /// How many have been taken: the number of the first that waits.
    taken: u64,
    /// The number of the latest on each counter. Who asks the same may share that one; any other would be overtaken.
    latest: HashMap<Fingerprint, u64, BuildHasherDefault<AlreadyHashed>>,
    /// How many calls are under way, or about to be.
    calls: usize,
    /// A caller who came while nothing was under way sends by itself: that spares the way over a task.
    is_one_alone: bool,
}

/// What is to be decided, and for whom.
pub(crate) struct Decision {
    charges: Charges,
    consume: bool,
    slot: u16,
    /// What the guard wants to know later.
    asked: Option<Asked>,
    callers: Mutex<Callers>,
    /// What came of it, and those for whom it was not: they had left, or had waited too long, before it was sent.
    told: OnceLock<(Told, Vec<usize>)>,
}

#[derive(Debug, Default)]
struct Callers {
    /// In the order in which they came.
    all: Vec<Caller>,
    /// So many of them have waited too long.
    late: usize,
    /// It is on its way.
    is_sent: bool,
}

#[derive(Debug)]
struct Caller {
    waker: Waker,
    since: Instant,
    has_left: bool,
}

/// What came of a decision.
#[derive(Debug)]
enum Told {
    /// The same for all.
    Reply(Value),
    /// Some of equal charges were granted.
    Equal(Equal),
    Failure(Failure),
}

/// What `each.lua` replies to equal charges.
#[derive(Debug)]
struct Equal {
    granted: usize,
    /// Which of them the reply is the one to.
    at: i64,
    reply: Value,
    refusal: Value,
}

/// A decision on its way.
#[derive(Debug)]
pub(super) struct Entry {
    decision: Arc<Decision>,
    callers: usize,
    /// When the first of them came.
    since: Instant,
    /// Those who have left before, or have waited too long.
    gone: Vec<usize>,
}

/// One caller's share in a decision.
#[derive(Debug)]
pub(crate) struct Share {
    /// Until it is taken.
    decision: Option<Arc<Decision>>,
    /// Which of the callers it is.
    index: u32,
    is_told: bool,
}

impl Queue {
    /// Whether a caller may send by itself, as nothing else is under way. Then [`Queue::not_alone`] is to be called when it is done.
    pub(super) fn alone(&self) -> bool {
        let mut state = self.lock();
        let may = state.is_idle();
        state.is_one_alone |= may;
        may
    }

    pub(super) fn not_alone(&self) {
        self.lock().is_one_alone = false;
    }

    /// A share in a decision that waits, if there is one that serves this charge too. `Err(true)` if nothing at all is under way.
    pub(super) fn join(
        &self,
        name: Fingerprint,
        is_same: impl Fn(&Charge) -> bool,
        consume: bool,
        waker: &Waker,
    ) -> Result<Share, bool> {
        let state = self.lock();
        let latest = state.latest(name).filter(|decision| match &*decision.charges {
            [charge] => decision.consume == consume && charge.counter.fingerprint() == name && is_same(charge),
            _ => false,
        });
        match latest {
            Some(decision) => {
                let index = decision.join(Caller::new(waker));
                Ok(Share::new(Arc::clone(decision), index))
            }
            None => Err(state.is_idle()),
        }
    }

    /// Adds a decision. Says whether a call is to be begun: whoever is told so sees to it that [`Queue::take`] is called until it has nothing.
    pub(super) fn add(
        &self,
        charges: Charges,
        consume: bool,
        slot: u16,
        asked: Option<Asked>,
        waker: &Waker,
    ) -> (Share, bool) {
        let callers = Mutex::new(Callers { all: vec![Caller::new(waker)], ..Callers::default() });
        let decision = Arc::new(Decision { charges, consume, slot, asked, callers, told: OnceLock::new() });
        let mut state = self.lock();
        let number = state.taken + state.waiting.len() as u64;
        for charge in decision.charges.iter() {
            state.latest.insert(charge.counter.fingerprint(), number);
        }
        state.waiting.push_back(Arc::clone(&decision));
        let begin = state.calls < CALLS || state.waiting.len().is_multiple_of(ENTRIES);
        if begin {
            state.calls += 1;
        }
        (Share::new(decision, 0), begin)
    }

    /// What the next call carries. Nothing if none is needed: then it is no longer under way.
    pub(super) fn take(&self) -> Option<Vec<Entry>> {
        let mut state = self.lock();
        loop {
            let count = state.waiting.len().min(ENTRIES);
            if count == 0 {
                state.calls -= 1;
                return None;
            }
            let entries: Vec<_> = state.take(count).into_iter().filter_map(Decision::send).collect();
            if !entries.is_empty() {
                observe::sent_together(entries.iter().map(Entry::callers).sum());
                return Some(entries);
            }
        }
    }

    /// Tells those who came by then that they have waited too long. Returns when the first of the others came.
    pub(super) fn give_up(&self, before: Instant) -> Option<Instant> {
        let waiting: Vec<_> = {
            let state = self.lock();
            let late = state.waiting.iter().take_while(|decision| decision.first() <= Some(before));
            late.map(Arc::clone).collect()
        };
        for decision in &waiting {
            decision.give_up(before);
        }
        self.first()
    }

    /// When the first came of those who wait.
    pub(super) fn first(&self) -> Option<Instant> {
        self.lock().waiting.iter().find_map(|decision| decision.first())
    }

    /// A call has ended before there was nothing left to take, and with it all others: their tokio runtime shuts down.
    pub(super) fn broken_off(&self) {
        let waiting = {
            let mut state = self.lock();
            state.calls -= 1;
            let count = state.waiting.len();
            state.take(count)
        };
        drop(waiting.into_iter().filter_map(Decision::send).collect::<Vec<_>>());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Caller {
    fn new(waker: &Waker) -> Self {
        Self { waker: waker.clone(), since: Instant::now(), has_left: false }
    }
}

impl State {
    fn is_idle(&self) -> bool {
        self.calls == 0 && self.waiting.is_empty() && !self.is_one_alone
    }

    /// The latest decision on a counter, if it waits.
    fn latest(&self, counter: Fingerprint) -> Option<&Arc<Decision>> {
        let at = self.latest.get(&counter)?.checked_sub(self.taken)?;
        self.waiting.get(usize::try_from(at).ok()?)
    }

    /// Takes the first of them out.
    fn take(&mut self, count: usize) -> Vec<Arc<Decision>> {
        let taken: Vec<_> = self.waiting.drain(..count).collect();
        for decision in &taken {
            for charge in decision.charges.iter() {
                let name = charge.counter.fingerprint();
                if self.latest.get(&name) == Some(&self.taken) {
                    self.latest.remove(&name);
                }
            }
            self.taken += 1;
        }
        taken
    }
}

impl Decision {
    #[allow(clippy::cast_possible_truncation)] // callers take more room each than that many could have
    fn join(&self, caller: Caller) -> u32 {
        let mut callers = self.lock();
        callers.all.push(caller);
        callers.all.len() as u32 - 1
    }

    /// When the first came of those who still wait.
    fn first(&self) -> Option<Instant> {
        let callers = self.lock();
        callers.all.get(callers.late).map(|caller| caller.since)
    }

    /// Nobody can join it any more. Nothing if all of its callers have left.
    fn send(self: Arc<Self>) -> Option<Entry> {
        let mut callers = self.lock();
        callers.is_sent = true;
        let late = callers.late;
        let has_left = |(at, caller): (usize, &Caller)| (at < late || caller.has_left).then_some(at);
        let gone: Vec<_> = callers.all.iter().enumerate().filter_map(has_left).collect();
        let count = callers.all.len() - gone.len();
        let since = callers.all.first()?.since;
        drop(callers);
        (count > 0).then(|| Entry { decision: self, callers: count, since, gone })
    }

    fn give_up(&self, before: Instant) {
        let mut callers = self.lock();
        let late = callers.all.partition_point(|caller| caller.since <= before);
        let wakers: Vec<_> =
            callers.all[callers.late.min(late)..late].iter().map(|caller| caller.waker.clone()).collect();
        callers.late = callers.late.max(late);
        drop(callers);
        wakers.into_iter().for_each(Waker::wake);
    }

    fn tell(&self, told: Told, gone: Vec<usize>) {
        let _ = self.told.set((told, gone));
        let callers = mem::take(&mut self.lock().all);
        for caller in callers {
            caller.waker.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Callers> {
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What came of it for one caller: as if each had been decided alone, in order. `Some(None)` for one it was not sent for.
    #[allow(clippy::option_option)] // not told yet; never to be told
    fn told(&self, index: usize) -> Option<Option<Result<Value, Failure>>> {
        let (told, gone) = self.told.get()?;
        let Err(before) = gone.binary_search(&index) else { return Some(None) };
        Some(Some(match told {
            Told::Reply(reply) => Ok(reply.clone()),
            Told::Failure(failure) => Err(failure.clone()),
            Told::Equal(Equal { granted, refusal, .. }) if index - before >= *granted => Ok(refusal.clone()),
            Told::Equal(Equal { at, reply, .. }) => {
                let place = i64::try_from(index - before).ok().zip(self.charges.first());
                let theirs = place.and_then(|(place, charge)| algorithm::reply_to_another(charge, reply, place - at));
                theirs.ok_or_else(|| {
                    let error = "the server's reply to equal charges can't be told to each of them";
                    Failure::Unknown(StoreError::unavailable(error))
                })
            }
        }))
    }
}

impl Entry {
    pub(super) fn charges(&self) -> &[Charge] {
        &self.decision.charges
    }

    pub(super) fn consume(&self) -> bool {
        self.decision.consume
    }

    fn slot(&self) -> u16 {
        self.decision.slot
    }

    pub(super) fn callers(&self) -> usize {
        self.callers
    }

    /// Whether one script decides both.
    fn may_travel_with(&self, other: &Self) -> bool {
        match (self.charges(), other.charges()) {
            ([one], [other_one]) => {
                self.slot() == other.slot()
                    && algorithm::kind(one.rule.counted_by()) == algorithm::kind(other_one.rule.counted_by())
            }
            _ => false,
        }
    }

    /// How many charges it asks for; one, if it only looks.
    pub(super) fn times(&self) -> usize {
        match self.charges() {
            [charge] if self.consume() && charge.cost > 0 => self.callers,
            _ => 1,
        }
    }

    /// When the first of its callers came.
    pub(super) fn since(&self) -> Instant {
        self.since
    }

    /// Tells those who came by then that they have waited too long. Returns when the first of the others came.
    pub(super) fn give_up(&self, before: Instant) -> Option<Instant> {
        self.decision.give_up(before);
        self.decision.first()
    }

    pub(super) fn fail(mut self, failure: Failure) {
        self.decision.tell(Told::Failure(failure), mem::take(&mut self.gone));
    }

    /// Tells its callers what the server replied.
    pub(super) fn answer(mut self, reply: Value) {
        let told = match reply {
            Value::Array(parts) if self.times() > 1 => match Equal::read(parts) {
                Ok(equal) => Told::Equal(equal),
                Err(parts) => Told::Reply(Value::Array(parts)),
            },
            reply => Told::Reply(reply),
        };
        self.decision.tell(told, mem::take(&mut self.gone));
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // It was not: its call has ended early.
        if self.decision.told.get().is_none() {
            let error = StoreError::unavailable("its tokio runtime is shutting down");
            self.decision.tell(Told::Failure(Failure::Unknown(error)), mem::take(&mut self.gone));
        }
    }
}

impl Equal {
    fn read(mut parts: Vec<Value>) -> Result<Self, Vec<Value>> {
        let [Value::Int(granted), Value::Int(at), reply, refusal] = &mut parts[..] else { return Err(parts) };
        let (reply, refusal) = (mem::take(reply), mem::take(refusal));
        Ok(Self { granted: usize::try_from(*granted).unwrap_or_default(), at: *at, reply, refusal })
    }
}

/// Whether one answer serves both, or one charge as large as both. They are on one counter.
pub(super) fn is_same(one: &Charge, other: &Charge) -> bool {
    // A slot that comes too late for one must not be charged because it is soon enough for another.
    let has_slots = matches!(one.rule.counted_by(), Algorithm::LeakyBucket { .. });
    one.cost == other.cost
        && one.rule == other.rule
        && (!has_slots || [one, other].map(|charge| charge.longest_wait) == [Duration::MAX; 2])
}

impl Share {
    fn new(decision: Arc<Decision>, index: u32) -> Self {
        Self { decision: Some(decision), index, is_told: false }
    }

    /// Of a decision on one counter.
    pub(crate) fn charge(&self) -> Option<&Charge> {
        self.decision.as_ref()?.charge()
    }

    pub(crate) fn asked(&self) -> Option<Asked> {
        self.decision.as_ref()?.asked
    }

    /// What it is a share in, when it has been told. It is no share any more then.
    pub(crate) fn take_decision(&mut self) -> Option<Arc<Decision>> {
        self.decision.take_if(|_| self.is_told)
    }
}

impl Decision {
    /// Of a decision on one counter.
    pub(crate) fn charge(&self) -> Option<&Charge> {
        self.charges.first()
    }

    /// What a caller was charged.
    pub(crate) fn charged(&self, receipt: [u64; 2]) -> Charges {
        let mut charges = self.charges.clone();
        charges.iter_mut().for_each(|charge| charge.receipt = receipt);
        charges
    }
}

impl Future for Share {
    /// Nothing for a caller who has waited for longer than the deadline.
    type Output = Option<Result<Value, Failure>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(decision) = &self.decision else { return Poll::Ready(None) };
        let index = self.index as usize;
        let mut told = decision.told(index);
        if told.is_none() {
            let mut callers = decision.lock();
            if index < callers.late {
                told = Some(None);
            } else if let Some(caller) = callers.all.get_mut(index) {
                caller.waker.clone_from(context.waker());
            } else {
                told = decision.told(index); // it was told meanwhile
            }
        }
        told.map_or(Poll::Pending, |told| {
            self.is_told = true;
            Poll::Ready(told)
        })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if !self.is_told
            && let Some(decision) = &self.decision
            && let Some(caller) = decision.lock().all.get_mut(self.index as usize)
        {
            caller.has_left = true;
        }
    }
}

/// Puts those next to each other that one script decides. Those that meet at a counter stay in order: such as are about several counters
/// are not passed by any.
pub(super) fn sort(entries: &mut [Entry]) {
    for entries in entries.chunk_by_mut(|one, other| one.charges().len() == 1 && other.charges().len() == 1) {
        entries.sort_by_key(|entry| {
            let kind = entry.charges().first().map(|charge| algorithm::kind(charge.rule.counted_by()));
            (entry.slot(), kind)
        });
    }
}

pub(super) fn packets(sorted: &[Entry]) -> Vec<Packet<'_>> {
    sorted.chunk_by(Entry::may_travel_with).map(Packet::Decisions).collect()
}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decision").field("charges", &self.charges).finish_non_exhaustive()
    }
}
