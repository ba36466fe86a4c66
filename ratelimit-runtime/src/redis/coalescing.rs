//! Decisions that travel together: while a few calls are under way, later decisions gather, and the next call carries them.
//!
//! Databases commit in groups this way (*group commit*). There is no timer: a decision that comes alone goes at once.
//! Those of one thread are taken in the order in which they came, and its callers who ask the same share one. A call belongs to no single caller, so
//! one who leaves takes nothing from the others.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    future::Future,
    hash::BuildHasherDefault,
    mem,
    pin::Pin,
    sync::{Arc, OnceLock, atomic::Ordering},
    task::{Context, Poll, Waker},
    time::Duration,
};

use redis::Value;
use smallvec::SmallVec;
use tokio::{
    runtime::{Handle, Id},
    time::sleep,
};

use super::{command::Packet, reply::unexpected};
use crate::{
    Algorithm, Clock,
    algorithm::{self, Taken},
    backend::QueryTag,
    counter::{CounterId, IdentityHasher},
    observe,
    store::{Charge, Charges, StoreError},
    sync::{AtomicU64, CachePadded, SpinMutex, SpinMutexGuard, spin_lock, spin_lock_all, thread_index},
};

#[cfg(all(test, model_check))]
mod model_check;

/// How many calls may be under way before decisions gather.
const CALLS: u64 = if cfg!(all(test, model_check)) { 1 } else { 4 };
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
            Self::Unsent(error) => error.unsent(),
            Self::Unknown(error) => error,
        }
    }
}

/// Decisions that wait for a call to carry them.
///
/// Each thread has a place for its own, as threads that gather at one place wait for each other half of the time. The oldest decision of all places is taken
/// first. So a caller on one thread may join a decision that is older than one on another thread; all of them are under way, and nobody is told an
/// order of theirs.
#[derive(Debug)]
pub(super) struct Queue {
    places: [CachePadded<SpinMutex<Place>>; PLACES],
    standing: CachePadded<AtomicU64>,
    /// How many decisions have been added.
    added: CachePadded<AtomicU64>,
    /// By which callers wait. Deadlines are the system's, whatever the limiter's clock shows.
    clock: Clock,
    /// The runtime that its calls are on.
    runtime: Option<Id>,
}

impl Default for Queue {
    fn default() -> Self {
        let (places, standing, added) = Default::default();
        Self { places, standing, added, clock: Clock::unpaused(), runtime: None }
    }
}

const PLACES: usize = if cfg!(all(test, model_check)) { 2 } else { 16 };

#[derive(Debug, Default)]
struct Place {
    /// Each with how many had been added before, by all threads.
    waiting: VecDeque<(u64, Arc<Decision>)>,
    /// How many have been taken: the number of the first that waits, among those of this place.
    taken: u64,
    /// The number of the latest on each counter. Who asks the same may share that one; any other would be overtaken.
    latest: HashMap<CounterId, u64, BuildHasherDefault<IdentityHasher>>,
}

/// What is under way, and what waits. It changes together with what lies in a place, under the lock of that.
#[derive(Clone, Copy)]
struct Standing(u64);

impl Standing {
    /// A caller who came while nothing was under way sends by itself: that spares the way over a task.
    const ALONE: u64 = 1;
    /// A call that is under way, or about to be.
    const CALL: u64 = 1 << 1;
    /// A decision that waits.
    const WAITING: u64 = 1 << 32;

    fn is_idle(self) -> bool {
        self.0 == 0
    }

    fn calls(self) -> u64 {
        (self.0 % Self::WAITING) / Self::CALL
    }

    fn waiting(self) -> u64 {
        self.0 / Self::WAITING
    }

    /// Whether a call is to be begun for the decision that was added last.
    fn needs_call(self) -> bool {
        self.calls() < CALLS || self.waiting().is_multiple_of(ENTRIES as u64)
    }
}

/// What is to be decided, and for whom.
pub(crate) struct Decision {
    charges: Charges,
    consume: bool,
    slot: u16,
    /// What the guard wants to know later.
    asked: Option<QueryTag>,
    /// See [`Queue::runtime`].
    runtime: Option<Id>,
    callers: SpinMutex<Callers>,
    /// What came of it, and those for whom it was not: they had left, or had waited too long, before it was sent.
    told: OnceLock<(Told, Vec<usize>)>,
}

#[derive(Debug, Default)]
struct Callers {
    /// In the order in which they came.
    all: SmallVec<[Caller; 1]>,
    /// So many of them have waited too long.
    late: usize,
}

#[derive(Debug)]
struct Caller {
    waker: Waker,
    /// In milliseconds, as all of these times: see [`Queue::now_ms`].
    since_ms: u64,
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

/// What of it is told to one caller.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Theirs<'a> {
    Reply(&'a Value),
    /// The reply to another of equal charges; so many lie between the two.
    Another(&'a Equal, i64),
    Failure(&'a Failure),
}

/// What `repeat.lua` replies to equal charges.
#[derive(Debug)]
pub(crate) struct Equal {
    granted: usize,
    /// Which of them the reply is the one to; one before them, if it is negative.
    at: i64,
    pub(super) reply: Value,
    /// See [`algorithm::batch_outcome`].
    taken: Option<Taken>,
    refusal: Value,
}

/// What a server replies to an entry.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) reply: Value,
    /// If it is the reply to equal charges: how many there are before those of the entry.
    pub(super) before: Option<usize>,
}

impl From<Value> for Answer {
    fn from(reply: Value) -> Self {
        Self { reply, before: None }
    }
}

/// A decision on its way.
#[derive(Debug)]
pub(super) struct Entry {
    decision: Arc<Decision>,
    callers: usize,
    /// When the first of them came.
    since_ms: u64,
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
    /// See [`Share::limit_elsewhere`].
    is_limited: bool,
}

impl Queue {
    /// The queue of a runtime.
    pub(super) fn on(runtime: Id) -> Self {
        Self { runtime: Some(runtime), ..Self::default() }
    }

    /// Whether a caller may send by itself, as nothing else is under way. Then [`Queue::not_alone`] is to be called when it is done.
    pub(super) fn alone(&self) -> bool {
        self.standing.compare_exchange(0, Standing::ALONE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    pub(super) fn not_alone(&self) {
        self.standing.fetch_sub(Standing::ALONE, Ordering::AcqRel);
    }

    /// A share in a decision that waits, if there is one that serves this charge too. `Err(true)` if nothing at all is under way.
    pub(super) fn join(
        &self,
        name: CounterId,
        is_same: impl Fn(&Charge) -> bool,
        consume: bool,
        waker: &Waker,
    ) -> Result<Share, bool> {
        let place = self.lock();
        let since_ms = self.now_ms(); // callers of one decision stand in this order
        let latest = place.latest(name).filter(|decision| match &*decision.charges {
            [charge] => decision.consume == consume && charge.counter.id() == name && is_same(charge),
            _ => false,
        });
        match latest {
            Some(decision) => {
                let index = decision.join(Caller::new(waker, since_ms));
                Ok(Share::new(Arc::clone(decision), index))
            }
            None => Err(self.standing().is_idle()),
        }
    }

    /// Adds a decision. Says whether a call is to be begun: whoever is told so sees to it that [`Queue::take`] is called until it has nothing.
    pub(super) fn add(
        &self,
        charges: Charges,
        consume: bool,
        slot: u16,
        asked: Option<QueryTag>,
        waker: &Waker,
    ) -> (Share, bool) {
        let caller = Caller::new(waker, self.now_ms());
        let callers = SpinMutex::new(Callers { all: SmallVec::from([caller]), ..Callers::default() });
        let decision =
            Arc::new(Decision { charges, consume, slot, asked, runtime: self.runtime, callers, told: OnceLock::new() });
        let mut place = self.lock();
        let before = self.added.fetch_add(1, Ordering::Relaxed);
        let number = place.taken + place.waiting.len() as u64;
        for charge in decision.charges.iter() {
            place.latest.insert(charge.counter.id(), number);
        }
        place.waiting.push_back((before, Arc::clone(&decision)));
        let mut begin = false;
        self.change(|Standing(standing)| {
            let added = standing + Standing::WAITING;
            begin = Standing(added).needs_call();
            Some(if begin { added + Standing::CALL } else { added })
        });
        (Share::new(decision, 0), begin)
    }

    /// What the next call carries. Nothing if none is needed: then it is no longer under way.
    pub(super) fn take(&self) -> Option<Vec<Entry>> {
        loop {
            let taken = self.take_first(ENTRIES);
            if taken.is_empty() && self.end() {
                return None;
            }
            let entries: Vec<_> = taken.into_iter().filter_map(Decision::send).collect();
            if !entries.is_empty() {
                observe::store_round_trip(entries.iter().map(Entry::callers).sum());
                return Some(entries);
            }
        }
    }

    /// Takes so many out, the oldest first, or fewer, if those keep a server busy for long enough.
    fn take_first(&self, count: usize) -> Vec<Arc<Decision>> {
        let mut places = spin_lock_all::<_, PLACES>(&self.places.iter().map(|place| &**place));
        places.retain(|place| !place.waiting.is_empty());
        let mut taken = Vec::with_capacity(count.min(places.iter().map(|place| place.waiting.len()).sum()));
        let mut steps = 0;
        while taken.len() < count
            && let Some(place) = places.iter_mut().min_by_key(|place| place.first())
            && let Some((_, decision)) = place.waiting.front()
        {
            steps += decision.steps();
            if steps > algorithm::MAX_STEPS && !taken.is_empty() {
                break;
            }
            taken.extend(place.take());
        }
        self.standing.fetch_sub(taken.len() as u64 * Standing::WAITING, Ordering::AcqRel);
        taken
    }

    /// Tells those who came by then that they have waited too long. Returns when the first of the others came.
    pub(super) fn give_up(&self, before_ms: u64) -> Option<u64> {
        for place in &self.places {
            let waiting: Vec<_> = {
                let place = lock(place);
                let late = place.waiting.iter().take_while(|(_, decision)| decision.first() <= Some(before_ms));
                late.map(|(_, decision)| Arc::clone(decision)).collect()
            };
            for decision in &waiting {
                decision.give_up(before_ms);
            }
        }
        self.first()
    }

    /// When the first came of those who wait.
    pub(super) fn first(&self) -> Option<u64> {
        let first = |place| lock(place).waiting.iter().find_map(|(_, decision)| decision.first());
        self.places.iter().filter_map(first).min()
    }

    /// A call has ended before there was nothing left to take, and with it all others: their tokio runtime shuts down.
    pub(super) fn broken_off(&self) {
        loop {
            let waiting = self.take_first(usize::MAX);
            drop(waiting.into_iter().filter_map(Decision::send).collect::<Vec<_>>());
            if self.end() {
                return;
            }
        }
    }

    /// Ends a call, unless somebody has come since there was nothing left to take: who comes later finds that it is over.
    fn end(&self) -> bool {
        self.change(|standing| (standing.waiting() == 0).then_some(standing.0 - Standing::CALL))
    }

    fn standing(&self) -> Standing {
        Standing(self.standing.load(Ordering::Acquire))
    }

    /// Says whether there was a change.
    fn change(&self, mut change: impl FnMut(Standing) -> Option<u64>) -> bool {
        let change = |standing| change(Standing(standing));
        self.standing.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).is_ok()
    }

    /// The time, in milliseconds of which only the difference says something.
    #[inline]
    pub(super) fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    /// The place of this thread.
    fn lock(&self) -> SpinMutexGuard<'_, Place> {
        lock(&self.places[thread_index() % PLACES])
    }
}

impl Caller {
    fn new(waker: &Waker, since_ms: u64) -> Self {
        Self { waker: waker.clone(), since_ms, has_left: false }
    }
}

impl Place {
    /// The latest decision on a counter, if it waits.
    fn latest(&self, counter: CounterId) -> Option<&Arc<Decision>> {
        let at = self.latest.get(&counter)?.checked_sub(self.taken)?;
        self.waiting.get(usize::try_from(at).ok()?).map(|(_, decision)| decision)
    }

    /// How many had been added before the first that waits.
    fn first(&self) -> u64 {
        self.waiting.front().map_or(u64::MAX, |(before, _)| *before)
    }

    /// Takes the first out.
    fn take(&mut self) -> Option<Arc<Decision>> {
        let (_, decision) = self.waiting.pop_front()?;
        for charge in decision.charges.iter() {
            let name = charge.counter.id();
            if self.latest.get(&name) == Some(&self.taken) {
                self.latest.remove(&name);
            }
        }
        self.taken += 1;
        Some(decision)
    }
}

fn lock(place: &CachePadded<SpinMutex<Place>>) -> SpinMutexGuard<'_, Place> {
    spin_lock(place)
}

impl Decision {
    #[allow(clippy::cast_possible_truncation)] // callers take more room each than that many could have
    fn join(&self, caller: Caller) -> u32 {
        let mut callers = self.lock();
        callers.all.push(caller);
        callers.all.len() as u32 - 1
    }

    /// The most steps that a server needs for it.
    fn steps(&self) -> u64 {
        let decisions = match &*self.charges {
            [_] if self.lock().all.len() > 1 => algorithm::DECISIONS_PER_REPEAT,
            [_] => 1,
            _ => algorithm::DECISIONS_PER_TRANSACTION,
        };
        decisions * self.charges.iter().map(algorithm::steps).sum::<u64>()
    }

    /// When the first came of those who still wait.
    fn first(&self) -> Option<u64> {
        let callers = self.lock();
        callers.all.get(callers.late).map(|caller| caller.since_ms)
    }

    /// Nobody can join it any more. Nothing if all of its callers have left.
    fn send(self: Arc<Self>) -> Option<Entry> {
        let callers = self.lock();
        let late = callers.late;
        let has_left = |(at, caller): (usize, &Caller)| (at < late || caller.has_left).then_some(at);
        let gone: Vec<_> = callers.all.iter().enumerate().filter_map(has_left).collect();
        let count = callers.all.len() - gone.len();
        let since_ms = callers.all.first()?.since_ms;
        drop(callers);
        (count > 0).then(|| Entry { decision: self, callers: count, since_ms, gone })
    }

    fn give_up(&self, before_ms: u64) {
        let mut callers = self.lock();
        let late = callers.all.partition_point(|caller| caller.since_ms <= before_ms);
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

    fn lock(&self) -> SpinMutexGuard<'_, Callers> {
        spin_lock(&self.callers)
    }

    /// What came of it for one caller: as if each had been decided alone, in order. `Some(None)` for one it was not sent for.
    #[allow(clippy::option_option, clippy::cast_possible_wrap)] // not told yet, or never to be told; there are not so many callers
    fn told(&self, index: usize) -> Option<Option<Theirs<'_>>> {
        let (told, gone) = self.told.get()?;
        let Err(before) = gone.binary_search(&index) else { return Some(None) };
        Some(Some(match told {
            Told::Reply(reply) => Theirs::Reply(reply),
            Told::Failure(failure) => Theirs::Failure(failure),
            Told::Equal(Equal { granted, refusal, .. }) if index - before >= *granted => Theirs::Reply(refusal),
            Told::Equal(equal) => Theirs::Another(equal, ((index - before) as i64).saturating_sub(equal.at)),
        }))
    }
}

impl Theirs<'_> {
    /// As the server's reply to one caller alone.
    fn reply(self, decision: &Decision) -> Result<Value, Failure> {
        match self {
            Self::Reply(reply) => Ok(reply.clone()),
            Self::Another(equal, later) => {
                let charge = decision.charge();
                let theirs = charge.and_then(|charge| algorithm::reply_for_nth(charge, &equal.reply, later));
                theirs.ok_or_else(|| {
                    let error = "the server's reply to equal charges can't be told to each of them";
                    Failure::Unknown(StoreError::unavailable(error))
                })
            }
            Self::Failure(failure) => Err(failure.clone()),
        }
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
                self.slot() == other.slot() && algorithm::script_id(one) == algorithm::script_id(other_one)
            }
            _ => false,
        }
    }

    /// Whether both ask for the same charge of one counter.
    pub(super) fn is_equal_to(&self, other: &Self) -> bool {
        match (self.charges(), other.charges()) {
            ([one], [other_one]) => {
                let consume = self.consume() && other.consume() && one.cost > 0;
                consume && one.counter == other_one.counter && is_same(one, other_one)
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
    pub(super) fn since_ms(&self) -> u64 {
        self.since_ms
    }

    /// Tells those who came by then that they have waited too long. Returns when the first of the others came.
    pub(super) fn give_up(&self, before_ms: u64) -> Option<u64> {
        self.decision.give_up(before_ms);
        self.decision.first()
    }

    pub(super) fn fail(mut self, failure: Failure) {
        self.decision.tell(Told::Failure(failure), mem::take(&mut self.gone));
    }

    /// Tells its callers what the server replied.
    pub(super) fn answer(mut self, Answer { reply, before }: Answer) {
        let told = match (before, reply) {
            (Some(before), Value::Array(parts)) => match Equal::read(parts, before, self.decision.charge()) {
                Ok(equal) => Told::Equal(equal),
                Err(parts) => Told::Failure(Failure::Unknown(unexpected(&Value::Array(parts)))),
            },
            (None, reply) | (_, reply @ Value::ServerError(_)) => Told::Reply(reply),
            (_, reply) => Told::Failure(Failure::Unknown(unexpected(&reply))),
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
    #[allow(clippy::cast_possible_wrap)] // there are not so many callers
    fn read(mut parts: Vec<Value>, before: usize, charge: Option<&Charge>) -> Result<Self, Vec<Value>> {
        let [Value::Int(granted), Value::Int(at), reply, refusal] = &mut parts[..] else { return Err(parts) };
        let granted = usize::try_from(*granted).unwrap_or_default().saturating_sub(before);
        let (reply, refusal) = (mem::take(reply), mem::take(refusal));
        let taken = charge.and_then(|charge| algorithm::batch_outcome(charge, &reply));
        Ok(Self { granted, at: at.saturating_sub(before as i64), reply, taken, refusal })
    }

    /// What [`algorithm::parse_reply`] says of the reply to another.
    #[inline]
    pub(super) fn taken(&self, charge: &Charge, later: i64) -> Option<Taken> {
        if let Some(taken) = &self.taken {
            return algorithm::outcome_for_nth(charge, taken, later);
        }
        let reply = algorithm::reply_for_nth(charge, &self.reply, later)?;
        algorithm::parse_reply(charge, true, &reply).map(|(look, receipt)| Taken::new(look, receipt))
    }
}

/// Whether one answer serves both, or one charge as large as both. They are on one counter.
pub(super) fn is_same(one: &Charge, other: &Charge) -> bool {
    // A slot that comes too late for one must not be charged because it is soon enough for another.
    let has_slots = matches!(one.rule.algorithm(), Algorithm::LeakyBucket { .. });
    one.cost == other.cost
        && one.rule == other.rule
        && (!has_slots || [one, other].map(|charge| charge.longest_wait) == [Duration::MAX; 2])
}

impl Share {
    fn new(decision: Arc<Decision>, index: u32) -> Self {
        Self { decision: Some(decision), index, is_told: false, is_limited: false }
    }

    /// Of a decision on one counter.
    pub(crate) fn charge(&self) -> Option<&Charge> {
        self.decision.as_ref()?.charge()
    }

    pub(crate) fn asked(&self) -> Option<QueryTag> {
        self.decision.as_ref()?.asked()
    }

    /// Sees to the deadline of a caller who waits on another runtime than it began on: that one may
    /// stand still, and with it the call that tells who has waited too long.
    #[cold]
    pub(crate) fn limit_elsewhere(&mut self, deadline: Duration) {
        let (Some(decision), Ok(here)) = (&self.decision, Handle::try_current()) else { return };
        if self.is_limited || decision.runtime.is_none_or(|runtime| runtime == here.id()) {
            return;
        }
        self.is_limited = true;
        let since_ms = decision.lock().all.get(self.index as usize).map(|caller| caller.since_ms);
        let (Some(since_ms), decision) = (since_ms, Arc::clone(decision)) else { return };
        here.spawn(async move {
            sleep(deadline).await;
            decision.give_up(since_ms);
        });
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

    pub(crate) fn asked(&self) -> Option<QueryTag> {
        self.asked
    }

    /// What a caller was charged.
    pub(crate) fn charged(&self, receipt: [u64; 2]) -> Charges {
        let mut charges = self.charges.clone();
        charges.iter_mut().for_each(|charge| charge.receipt = receipt);
        charges
    }
}

impl Share {
    /// What came of it, as it is read. Nothing for a caller who has waited for longer than the deadline.
    #[inline(always)]
    #[allow(clippy::inline_always)] // or what is read is copied from one to the next
    pub(crate) fn poll_told<T>(
        &mut self,
        context: &mut Context<'_>,
        read: impl FnOnce(&Decision, Theirs<'_>) -> T,
    ) -> Poll<Option<T>> {
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
            Poll::Ready(told.map(|theirs| read(decision, theirs)))
        })
    }
}

impl Future for Share {
    /// Nothing for a caller who has waited for longer than the deadline.
    type Output = Option<Result<Value, Failure>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_told(context, |decision, theirs| theirs.reply(decision))
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
            let kind = entry.charges().first().map(algorithm::script_id);
            (entry.slot(), kind)
        });
    }
}

pub(super) fn packets(sorted: &[Entry]) -> Vec<Packet<'_>> {
    sorted.chunk_by(Entry::may_travel_with).map(Packet::of).collect()
}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decision").field("charges", &self.charges).finish_non_exhaustive()
    }
}
