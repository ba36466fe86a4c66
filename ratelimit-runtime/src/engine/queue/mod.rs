//! Queues of callers who wait for a counter.
//!
//! A caller stands in the queue of each of its counters. Callers are let ask the store in the order of their arrival, as
//! many at a time as the counter has *room* for when they arrive there: what the latest answer said remains, and what
//! refills meanwhile, less the cost of those who are asking. When there is no room, one caller asks (a *probe*) as soon as
//! the latest refusal's wait is over. A caller whose cost does not fit yet holds up those behind it.
//!
//! A caller of several counters waits for all of them at once. While another of its counters has no room, or others are
//! ahead of it there, it holds up nobody: it is *parked*, and nobody looks at it. Within one period before it has room
//! there, its cost is *reserved* at a counter that has refused a call of late: those behind it get the rest. So it is not
//! overtaken for ever, and the counter stands idle for one period at most, or for as long as a cost above its count takes to
//! have room.
//!
//! The store decides whatever this says: room that is not there costs a refused question, no more.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    hash::BuildHasherDefault,
    sync::{Arc, PoisonError, atomic::Ordering},
    time::Duration,
};

use smallvec::SmallVec;

use crate::{
    Algorithm, Clock, CounterName, Refill, RequestPerMinute, Rule,
    counter::{CounterId, IdentityHasher},
    store::Charge,
    sync::{AtomicU64, AtomicUsize, Mutex, MutexGuard, Notify},
};

#[cfg(all(test, not(model_check)))]
mod callers;
#[cfg(all(test, model_check))]
mod model_check;
#[cfg(all(test, not(model_check)))]
mod schedules;
#[cfg(all(test, not(model_check)))]
mod simulation;
#[cfg(all(test, not(model_check)))]
mod starvation;

/// Time until a probe looks for what others may have left before their time.
const PROBE_HELD: Duration = Duration::from_millis(50);
/// Time until a probe looks for room that other processes may have made by refunds and resets; a tenth of the period if
/// that is longer.
const PROBE_OTHERS: Duration = Duration::from_secs(1);

/// Time until a probe after a refusal that tells no wait, which a store of the user's own may make: not at once, or the
/// store would be asked without end.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// Callers of one counter for whom it reserves their cost, at most. Each answer looks at all of them.
const MOST_RESERVATIONS: usize = 16;

/// The queues of one limiter.
pub(crate) struct WaitQueues {
    state: Mutex<State>,
    /// The number of waiting callers, read without the lock.
    waiting: AtomicUsize,
    /// The same by the low bits of a counter's id, without those who are parked.
    busy: Arc<Busy>,
    next_ticket: AtomicU64,
    /// Counts refunds, resets and settlements of counters, by the low bits of the counter's id: a refusal from before one
    /// of them says nothing about the time after it.
    changes: [AtomicU64; SLOTS],
    clock: Clock,
    /// Callers in one queue, at most.
    capacity: usize,
    /// Other processes count in the same store.
    is_shared: bool,
}

const SLOTS: usize = if cfg!(all(test, model_check)) { 2 } else { 64 };

/// Numbers of callers in queues, by the low bits of the counter's id.
struct Busy([AtomicUsize; SLOTS]);

impl Busy {
    fn of(&self, id: CounterId) -> &AtomicUsize {
        &self.0[slot(id)]
    }
}

#[allow(clippy::cast_possible_truncation)] // the low bits are what is wanted
fn slot(id: CounterId) -> usize {
    id.0 as usize % SLOTS
}

struct State {
    busy: Arc<Busy>,
    queues: HashMap<CounterId, Queue, BuildHasherDefault<IdentityHasher>>,
    callers: BTreeMap<u64, Caller>,
    /// The mean time that a question took of late.
    round_trip: Option<Duration>,
    is_closed: bool,
}

/// A caller in the queues of its counters. Its ticket tells when it came.
struct Caller {
    counters: SmallVec<[WaitingFor; 1]>,
    turn: Arc<Notify>,
    /// It has been let ask, and its answer is not here yet.
    is_asking: bool,
    /// When to look at the queues again. Nothing: when notified.
    wake_at: Option<Duration>,
}

struct WaitingFor {
    id: CounterId,
    cost: u64,
    /// [`WaitQueues::changes`] when it was let ask.
    changes: u64,
    /// [`Queue::joined`] when it joined behind all others.
    behind: u128,
    /// Until when its cost is or was reserved.
    reserved_until: Option<Duration>,
    /// It stands outside this queue, as another of its counters has no room for longer. Never so in all of its queues.
    is_parked: bool,
}

/// Callers of one counter, and the state of the counter as far as answers have told it.
struct Queue {
    rule: Rule,
    /// Costs by ticket, so in the order of arrival. Without those who are asking, and those who are parked.
    waiting: BTreeMap<u64, u64>,
    parked: usize,
    askers: usize,
    /// The cost of all askers.
    asking: u64,
    /// When the question of the latest answer was sent, and when the answer came.
    sent_at: Duration,
    answered_at: Option<Duration>,
    /// The largest cost that fitted then.
    remaining: u64,
    /// The cost that was refused, and when it fits if nothing else changes: counted from when the question was sent, so
    /// that the next one arrives just then. Zero if none was refused.
    refused: u64,
    ready_at: Duration,
    /// The same, counted from when the answer came: what callers are told.
    told_at: Duration,
    /// When the latest refusal came.
    refused_at: Option<Duration>,
    /// When to probe. Before `ready_at` where room may come sooner.
    probe_at: Duration,
    /// Others hold something that they may leave at any time.
    is_held: bool,
    /// How much of the refill comes to this process, in 1/256: less after a refusal, and more after a round trip
    /// without one. Above 1 where the round trip is longer than it seems.
    share: u32,
    shared_at: Duration,
    /// The cost of all callers of this counter alone that ever joined, and of those that no longer wait. Callers of several
    /// counters may hold up nobody.
    joined: u128,
    left: u128,
    latest: Option<RequestPerMinute>,
}

const WHOLE: u32 = 256;
const LARGEST_SHARE: u32 = 4 * WHOLE;

/// An answer of the store to a caller.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    /// When the question was sent, by the limiter's clock.
    pub(crate) sent_at: Duration,
    pub(crate) counters: SmallVec<[CounterAnswer; 1]>,
    /// The refusal, and the counter that it is about.
    pub(crate) refusal: Option<(CounterId, RequestPerMinute)>,
}

/// What an answer says about one counter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CounterAnswer {
    id: CounterId,
    cost: u64,
    remaining: u64,
    /// Nothing if the cost fits.
    ready_in: Option<Duration>,
    is_held: bool,
}

impl Answer {
    /// The counters of charges that a store has decided on.
    pub(crate) fn of(charges: &[Charge], sent_at: Duration) -> Self {
        let counters = counted(charges).map(|charge| CounterAnswer {
            id: charge.counter.id(),
            cost: charge.least(),
            remaining: charge.decision.remaining,
            ready_in: charge.decision.retry_after(),
            is_held: charge.held_by_others > 0,
        });
        Self { sent_at, counters: counters.collect(), refusal: None }
    }
}

/// The charges that callers wait for: a rule in shadow mode refuses nobody.
fn counted(charges: &[Charge]) -> impl Iterator<Item = &Charge> {
    charges.iter().filter(|charge| !charge.rule.is_shadow() && charge.cost > 0)
}

/// How a caller stands in a queue, by how soon it gets what it needs of its other counters.
#[derive(Clone, Copy)]
enum Standing {
    /// They have room now, as far as is known, or before this one has.
    Ready,
    /// They have room by then, within one period of this counter. Until `until` its cost is reserved here.
    Reserves { ready_at: Duration, until: Duration },
    /// It is held up by this other one.
    HeldUpBy(CounterId),
}

/// What a queue leaves to the next caller.
struct Left {
    room: u64,
    may_probe: bool,
    /// The room that all callers share.
    known: u64,
    limit: u64,
    reserved: u64,
    reservations: usize,
}

impl Left {
    fn fits(&self, cost: u64) -> bool {
        let fits_beside = || self.known == 0 && self.reserved.saturating_add(cost) <= self.limit;
        cost <= self.room || self.may_probe && (self.reservations == 0 || fits_beside())
    }

    fn take(&mut self, cost: u64) {
        self.room = self.room.saturating_sub(cost);
        self.may_probe = false;
    }

    fn reserve(&mut self, cost: u64) {
        self.room = self.room.saturating_sub(cost);
        self.reserved = self.reserved.saturating_add(cost);
        self.reservations += 1;
    }
}

/// A caller's turn, see [`QueuePosition::turn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It may ask the store. `early`: before the time that the latest refusal told.
    Ask { early: bool },
    /// The limiter was closed.
    Closed,
}

/// Callers to wake when the lock is free again: their wakers may run any code.
type Wakes = SmallVec<[Arc<Notify>; 4]>;

fn wake(wakes: Wakes) {
    wakes.into_iter().for_each(|turn| turn.notify_one());
}

impl WaitQueues {
    pub(crate) fn new(capacity: usize, clock: Clock, is_shared: bool) -> Self {
        let busy = Arc::new(Busy([(); SLOTS].map(|()| AtomicUsize::new(0))));
        let state = State {
            busy: Arc::clone(&busy),
            queues: HashMap::default(),
            callers: BTreeMap::new(),
            round_trip: None,
            is_closed: false,
        };
        Self {
            state: Mutex::new(state),
            waiting: AtomicUsize::new(0),
            busy,
            next_ticket: AtomicU64::new(0),
            changes: [(); SLOTS].map(|()| AtomicU64::new(0)),
            clock,
            capacity,
            is_shared,
        }
    }

    /// A number for a caller who arrives now; lower ones come first.
    pub(crate) fn ticket(&self) -> u64 {
        self.next_ticket.fetch_add(1, Ordering::Relaxed)
    }

    /// The number of changes of these counters, to be given to [`WaitQueues::join`] with the answer to a question that is
    /// sent now.
    pub(crate) fn changes(&self, charges: &[Charge]) -> u64 {
        counted(charges).map(|charge| self.changes_of(charge.counter.id()).load(Ordering::SeqCst)).sum()
    }

    fn changes_of(&self, id: CounterId) -> &AtomicU64 {
        &self.changes[slot(id)]
    }

    /// A caller with this ticket has to wait for one of these counters: behind others, or because those who are asking
    /// leave no room.
    pub(crate) fn is_behind_others(&self, charges: &[Charge], ticket: u64) -> bool {
        let is_free = |charge: &Charge| self.busy.of(charge.counter.id()).load(Ordering::Acquire) == 0;
        if counted(charges).all(is_free) {
            return false;
        }
        let (state, now) = (self.lock(), self.clock.now());
        counted(charges).any(|charge| {
            let id = charge.counter.id();
            let is_used_up = |queue: &Queue| queue.askers > 0 && queue.room(now, state.round_trip) < charge.least();
            // Behind those whose cost is reserved, too: what it is told has to be known to the queue.
            state.queues.get(&id).is_some_and(is_used_up) || state.is_behind(id, ticket, now)
        })
    }

    /// Joins the queues of these counters.
    ///
    /// `answer`: a refusal that the caller has got, and [`WaitQueues::changes`] from before it asked. Returns the latest
    /// refusal, and when the caller's turn would have come, if that is after `give_up` or a queue is full.
    pub(crate) fn join(
        &self,
        ticket: u64,
        charges: &[Charge],
        answer: Option<(&Answer, u64)>,
        give_up: Option<Duration>,
    ) -> Result<QueuePosition<'_>, Option<(RequestPerMinute, Duration)>> {
        let (now, mut wakes) = (self.clock.now(), Wakes::new());
        let mut state = self.lock();
        let turn = Arc::new(Notify::new());
        let mut counters = SmallVec::<[WaitingFor; 1]>::new();
        let mut is_full = false;
        for charge in counted(charges) {
            let (id, cost) = (charge.counter.id(), charge.least());
            let queue = state.queues.entry(id).or_insert_with(|| Queue::new(&charge.rule));
            queue.rule = charge.rule;
            let is_first = queue.waiting.first_key_value().is_none_or(|(first, _)| ticket < *first);
            is_full |= self.capacity == 0 || !is_first && queue.waiting.len() >= self.capacity;
            let is_last = queue.waiting.last_key_value().is_none_or(|(last, _)| *last < ticket);
            let behind = if is_last { queue.joined } else { queue.left };
            counters.push(WaitingFor { id, cost, changes: 0, behind, reserved_until: None, is_parked: false });
        }
        let ids: SmallVec<[CounterId; 1]> = counters.iter().map(|counter| counter.id).collect();
        // Nothing holds up a caller whose rules are all in shadow mode.
        let is_asking = counters.is_empty();
        for counter in &counters {
            self.busy.of(counter.id).fetch_add(1, Ordering::Release);
        }
        state.callers.insert(ticket, Caller { counters, turn: Arc::clone(&turn), is_asking, wake_at: None });
        state.enqueue(ticket);
        // Before the changes are read: who counts one later sees that somebody waits.
        self.waiting.store(state.callers.len(), Ordering::SeqCst);
        if let Some((answer, changes)) = answer {
            let has_changed = changes != self.changes(charges);
            state.learn(answer, |_| has_changed, now, self.is_shared);
        }
        let estimate = state.estimate(ticket, now);
        let is_too_late = |(_, at, is_held): &(RequestPerMinute, Duration, bool)| {
            !is_held && give_up.is_some_and(|give_up| *at > give_up)
        };
        if is_full || state.is_closed || estimate.as_ref().is_some_and(is_too_late) {
            state.remove(ticket);
            state.advance(ids, now, self, &mut wakes);
            self.waiting.store(state.callers.len(), Ordering::Release);
            drop(state);
            wake(wakes);
            return Err(estimate.map(|(refusal, at, _)| (refusal, at)));
        }
        state.advance(ids, now, self, &mut wakes);
        self.waiting.store(state.callers.len(), Ordering::Release);
        drop(state);
        wake(wakes);
        Ok(QueuePosition { queues: self, ticket, turn })
    }

    /// Lets a caller ask again: a refund, a reset or a settlement may have made room.
    pub(crate) fn changed(&self, counter: &CounterName) {
        self.changed_id(counter.id());
    }

    /// The same for a counter without a name.
    pub(crate) fn changed_id(&self, id: CounterId) {
        self.changes_of(id).fetch_add(1, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) == 0 {
            return;
        }
        self.update(|state, now, wakes| {
            if let Some(queue) = state.queues.get_mut(&id) {
                queue.probe_at = Duration::ZERO;
                state.advance([id].into(), now, self, wakes);
            }
        });
    }

    /// Refuses all who wait, and all who would.
    pub(crate) fn close(&self) {
        self.update(|state, _, wakes| {
            state.is_closed = true;
            wakes.extend(state.callers.values().map(|caller| Arc::clone(&caller.turn)));
        });
    }

    fn update<T>(&self, update: impl FnOnce(&mut State, Duration, &mut Wakes) -> T) -> T {
        let (now, mut wakes) = (self.clock.now(), Wakes::new());
        let mut state = self.lock();
        let updated = update(&mut state, now, &mut wakes);
        self.waiting.store(state.callers.len(), Ordering::Release);
        drop(state);
        wake(wakes);
        updated
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for WaitQueues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitQueues").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

/// A caller's place in its queues. Dropping it leaves them.
pub(crate) struct QueuePosition<'a> {
    queues: &'a WaitQueues,
    ticket: u64,
    turn: Arc<Notify>,
}

impl QueuePosition<'_> {
    /// Waits until the caller may ask the store. Nothing is lost if the future is dropped.
    pub(crate) async fn turn(&self) -> Turn {
        loop {
            let wake_at = match self.look() {
                Ok(turn) => return turn,
                Err(wake_at) => wake_at,
            };
            match wake_at {
                Some(wake_at) => tokio::select! {
                    biased;
                    () = self.turn.notified() => {}
                    () = self.queues.clock.sleep_until(wake_at) => {}
                },
                None => self.turn.notified().await,
            }
        }
    }

    /// The turn, if it has come, or when to look again.
    fn look(&self) -> Result<Turn, Option<Duration>> {
        self.queues.update(|state, now, wakes| {
            if state.is_closed {
                return Ok(Turn::Closed);
            }
            let Some(caller) = state.callers.get_mut(&self.ticket) else { return Ok(Turn::Closed) };
            if !caller.is_asking && caller.wake_at.is_some_and(|wake_at| wake_at <= now) {
                caller.wake_at = None;
                let ids = caller.ids();
                state.unpark(self.ticket);
                state.advance(ids, now, self.queues, wakes);
            }
            let caller = &state.callers[&self.ticket];
            if !caller.is_asking {
                return Err(caller.wake_at);
            }
            let is_early =
                |counter: &WaitingFor| state.queues.get(&counter.id).is_some_and(|queue| now < queue.ready_at);
            Ok(Turn::Ask { early: caller.counters.iter().any(is_early) })
        })
    }

    /// The caller waits for just these charges. Rules that change while it waits may give it others.
    pub(crate) fn is_for(&self, charges: &[Charge]) -> bool {
        let mut state = self.queues.lock();
        let State { queues, callers, .. } = &mut *state;
        let Some(caller) = callers.get(&self.ticket) else { return false };
        if caller.counters.len() != counted(charges).count() {
            return false;
        }
        caller.counters.iter().zip(counted(charges)).all(|(counter, charge)| {
            if let Some(queue) = queues.get_mut(&counter.id) {
                queue.rule = charge.rule;
            }
            counter.id == charge.counter.id() && counter.cost == charge.least()
        })
    }

    /// Waits on, after a refusal.
    pub(crate) fn refused(&self, answer: &Answer) {
        self.queues.update(|state, now, wakes| {
            let Some(caller) = state.callers.get(&self.ticket) else { return };
            let (ids, seen): (_, SmallVec<[(CounterId, u64); 1]>) =
                (caller.ids(), caller.counters.iter().map(|counter| (counter.id, counter.changes)).collect());
            let has_changed = |id| {
                let changes = self.queues.changes_of(id).load(Ordering::Acquire);
                seen.iter().any(|(other, before)| *other == id && *before != changes)
            };
            state.stop_asking(self.ticket);
            state.enqueue(self.ticket);
            state.learn(answer, has_changed, now, self.queues.is_shared);
            state.advance(ids, now, self.queues, wakes);
        });
    }

    /// Leaves, with a permit.
    pub(crate) fn admitted(self, answer: &Answer) {
        self.queues.update(|state, now, _| state.learn(answer, |_| false, now, self.queues.is_shared));
    }

    /// Lets the first caller ask, whatever the latest answer was.
    pub(crate) fn probe(&self) {
        self.queues.update(|state, now, wakes| {
            let ids = state.callers.get(&self.ticket).map(Caller::ids).unwrap_or_default();
            for id in &ids {
                if let Some(queue) = state.queues.get_mut(id) {
                    queue.probe_at = Duration::ZERO;
                }
            }
            state.advance(ids, now, self.queues, wakes);
        });
    }

    /// The latest refusal, and when the caller's turn comes if those ahead stay.
    pub(crate) fn refusal(&self) -> Option<(RequestPerMinute, Duration)> {
        let (state, now) = (self.queues.lock(), self.queues.clock.now());
        state.estimate(self.ticket, now).map(|(refusal, at, _)| (refusal, at))
    }
}

impl Drop for QueuePosition<'_> {
    fn drop(&mut self) {
        self.queues.update(|state, now, wakes| {
            let ids = state.remove(self.ticket);
            state.advance(ids, now, self.queues, wakes);
        });
    }
}

impl WaitingFor {
    /// Has the caller stand in the queue of this counter.
    fn return_to(&mut self, queue: &mut Queue, ticket: u64, busy: &Busy) {
        if std::mem::take(&mut self.is_parked) {
            busy.of(self.id).fetch_add(1, Ordering::Release);
            queue.parked -= 1;
            queue.waiting.insert(ticket, self.cost);
        }
    }
}

impl Caller {
    fn ids(&self) -> SmallVec<[CounterId; 1]> {
        self.counters.iter().map(|counter| counter.id).collect()
    }

    /// What the caller adds to [`Queue::joined`] for a cost.
    fn counted(&self, cost: u64) -> u128 {
        if self.counters.len() == 1 { cost.into() } else { 0 }
    }
}

impl State {
    /// Adds a caller who is not asking to its queues.
    fn enqueue(&mut self, ticket: u64) {
        let Some(caller) = self.callers.get(&ticket) else { return };
        for WaitingFor { id, cost, .. } in &caller.counters {
            if let Some(queue) = self.queues.get_mut(id) {
                queue.waiting.insert(ticket, *cost);
                queue.joined += caller.counted(*cost);
            }
        }
    }

    fn stop_asking(&mut self, ticket: u64) {
        let Some(caller) = self.callers.get_mut(&ticket) else { return };
        if !std::mem::take(&mut caller.is_asking) {
            return;
        }
        for WaitingFor { id, cost, .. } in &caller.counters {
            if let Some(queue) = self.queues.get_mut(id) {
                queue.askers -= 1;
                queue.asking -= cost;
            }
        }
    }

    /// Removes a caller, and queues that have none left. Returns its counters.
    fn remove(&mut self, ticket: u64) -> SmallVec<[CounterId; 1]> {
        self.stop_asking(ticket);
        let Some(caller) = self.callers.remove(&ticket) else { return SmallVec::new() };
        for WaitingFor { id, is_parked, .. } in &caller.counters {
            let Some(queue) = self.queues.get_mut(id) else { continue };
            queue.parked -= usize::from(*is_parked);
            self.busy.of(*id).fetch_sub(usize::from(!is_parked), Ordering::Release);
            if let Some(cost) = queue.waiting.remove(&ticket) {
                // Those ahead of the last one wait no shorter because it leaves.
                if queue.waiting.last_key_value().is_none_or(|(last, _)| *last < ticket) {
                    queue.joined -= caller.counted(cost);
                } else {
                    queue.left += caller.counted(cost);
                }
                // The wait was that of a larger cost than the next one's.
                let next = queue.waiting.first_key_value().map_or(u64::MAX, |(_, cost)| *cost);
                if cost == queue.refused && next < cost {
                    queue.probe_at = Duration::ZERO;
                }
            }
            if queue.waiting.is_empty() && queue.askers == 0 && queue.parked == 0 {
                self.queues.remove(id);
            }
        }
        caller.ids()
    }

    /// Takes in an answer.
    fn learn(&mut self, answer: &Answer, has_changed: impl Fn(CounterId) -> bool, now: Duration, is_shared: bool) {
        let sample = now.saturating_sub(answer.sent_at);
        let round_trip = match self.round_trip {
            Some(known) => known.saturating_mul(7).saturating_add(sample) / 8,
            None => sample,
        };
        if !answer.counters.is_empty() {
            self.round_trip = Some(round_trip);
        }
        for counter in &answer.counters {
            if let Some(queue) = self.queues.get_mut(&counter.id) {
                queue.learn(counter, answer.sent_at, now, round_trip, is_shared);
                if has_changed(counter.id) {
                    queue.probe_at = Duration::ZERO;
                }
            }
        }
        if let Some((id, refusal)) = &answer.refusal
            && let Some(queue) = self.queues.get_mut(id)
        {
            queue.latest = Some(refusal.clone());
        }
    }

    /// Lets callers ask for whom there is room now, and says of the others when to look again.
    fn advance(&mut self, ids: SmallVec<[CounterId; 1]>, now: Duration, shared: &WaitQueues, wakes: &mut Wakes) {
        let (mut ids, mut at) = (ids, 0);
        while let Some(id) = ids.get(at) {
            self.advance_one(*id, now, shared, wakes, &mut ids);
            at += 1;
        }
    }

    /// The same for one queue. `others`: queues to look at, too.
    fn advance_one(
        &mut self,
        id: CounterId,
        now: Duration,
        shared: &WaitQueues,
        wakes: &mut Wakes,
        others: &mut SmallVec<[CounterId; 1]>,
    ) {
        let Some(queue) = self.queues.get(&id) else { return };
        let mut left = queue.left(now, self.round_trip);
        let (mut reserved_until, mut passed, mut from) = (None, None, 0);
        loop {
            let Some(queue) = self.queues.get(&id) else { return };
            let Some((&ticket, &cost)) = queue.waiting.range(from..).next() else { break };
            from = ticket + 1;
            match self.standing(ticket, cost, id, now, &left) {
                Standing::Ready => {}
                Standing::HeldUpBy(other) => {
                    self.park(ticket, id, other, now, wakes);
                    others.extend((!others.contains(&other)).then_some(other));
                    continue;
                }
                Standing::Reserves { ready_at, until } => {
                    // Where it waits for an answer rather than for a time, that has to find it.
                    self.unpark(ticket);
                    self.wake_at(ticket, ready_at, now, wakes);
                    self.note_reservation(ticket, id, until);
                    left.reserve(cost);
                    reserved_until = Some(reserved_until.map_or(until, |other: Duration| other.min(until)));
                    continue;
                }
            }
            if !left.fits(cost) {
                let (ready_at, probe_at) = (queue.ready_at, queue.next_probe(now));
                let returns_at = self.unpark_in_time(ticket, ready_at, now, others);
                if let Some(at) = [probe_at, reserved_until, returns_at].into_iter().flatten().min() {
                    self.wake_at(ticket, at, now, wakes);
                }
                return;
            }
            if !self.may_ask_elsewhere(ticket, id, now) {
                passed = passed.or(Some((ticket, now.saturating_add(queue.time_for(cost)))));
                let returned = self.unpark(ticket);
                let ids = self.callers[&ticket].ids();
                others.extend(ids.into_iter().filter(|other| !others.contains(other)).collect::<Vec<_>>());
                others.extend(returned); // once more, if they have been looked at without it
                continue;
            }
            self.let_ask(ticket, shared, wakes);
            left.take(cost);
        }
        // Those ahead of a caller in its other queues may be held up meanwhile, and then hold it up no longer.
        if let Some((ticket, at)) = passed.filter(|_| self.queues[&id].waiting.len() > 1) {
            self.wake_at(ticket, at, now, wakes);
        }
    }

    fn let_ask(&mut self, ticket: u64, shared: &WaitQueues, wakes: &mut Wakes) {
        let Some(caller) = self.callers.get_mut(&ticket) else { return };
        (caller.is_asking, caller.wake_at) = (true, None);
        wakes.push(Arc::clone(&caller.turn));
        let is_counted = caller.counters.len() == 1;
        for counter in &mut caller.counters {
            counter.changes = shared.changes_of(counter.id).load(Ordering::Acquire);
            counter.reserved_until = None;
            if let Some(queue) = self.queues.get_mut(&counter.id) {
                counter.return_to(queue, ticket, &self.busy);
                queue.waiting.remove(&ticket);
                queue.left += if is_counted { counter.cost.into() } else { 0 };
                queue.askers += 1;
                queue.asking += counter.cost;
            }
        }
    }

    /// Has a caller stand outside a queue for as long as another counter, in whose queue it stands, has no room.
    fn park(&mut self, ticket: u64, id: CounterId, other: CounterId, now: Duration, wakes: &mut Wakes) {
        let Some(caller) = self.callers.get_mut(&ticket) else { return };
        let mut look_at = None;
        for counter in &mut caller.counters {
            let Some(queue) = self.queues.get_mut(&counter.id) else { continue };
            if counter.id == id && queue.waiting.remove(&ticket).is_some() {
                (queue.parked, counter.is_parked) = (queue.parked + 1, true);
                self.busy.of(id).fetch_sub(1, Ordering::Release);
            } else if counter.id == other {
                counter.return_to(queue, ticket, &self.busy);
                let is_first = queue.waiting.first_key_value().is_some_and(|(first, _)| *first == ticket);
                look_at = queue.next_probe(now).filter(|_| is_first);
            }
        }
        if let Some(at) = look_at {
            self.wake_at(ticket, at, now, wakes);
        }
    }

    /// Has a caller stand in all of its queues again.
    fn unpark(&mut self, ticket: u64) -> SmallVec<[CounterId; 1]> {
        let mut returned = SmallVec::new();
        let Some(caller) = self.callers.get_mut(&ticket) else { return returned };
        for counter in caller.counters.iter_mut().filter(|counter| counter.is_parked) {
            if let Some(queue) = self.queues.get_mut(&counter.id) {
                counter.return_to(queue, ticket, &self.busy);
                returned.push(counter.id);
            }
        }
        returned
    }

    /// Has a caller who gets room at `ready_at` stand in those queues again where its cost is to be reserved now. Returns
    /// when to do so with the next one.
    fn unpark_in_time(
        &mut self,
        ticket: u64,
        ready_at: Duration,
        now: Duration,
        others: &mut SmallVec<[CounterId; 1]>,
    ) -> Option<Duration> {
        let mut next = None;
        let caller = self.callers.get_mut(&ticket)?;
        for counter in caller.counters.iter_mut().filter(|counter| counter.is_parked) {
            let Some(queue) = self.queues.get_mut(&counter.id) else { continue };
            let at = ready_at.saturating_sub(queue.time_for(counter.cost));
            if at > now {
                next = Some(next.map_or(at, |next: Duration| next.min(at)));
                continue;
            }
            counter.return_to(queue, ticket, &self.busy);
            others.extend((!others.contains(&counter.id)).then_some(counter.id));
        }
        next
    }

    /// Has a caller look again then, if not before.
    fn wake_at(&mut self, ticket: u64, at: Duration, now: Duration, wakes: &mut Wakes) {
        if let Some(caller) = self.callers.get_mut(&ticket)
            && at > now
            && caller.wake_at.is_none_or(|before| at < before)
        {
            caller.wake_at = Some(at);
            wakes.push(Arc::clone(&caller.turn));
        }
    }

    /// Until when a caller's cost is reserved: for one period, and after each such period not for the next one.
    fn reserved_until(&self, ticket: u64, id: CounterId, now: Duration, period: Duration) -> Option<Duration> {
        let counter = self.callers.get(&ticket)?.counters.iter().find(|counter| counter.id == id)?;
        match counter.reserved_until {
            Some(until) if now < until => Some(until),
            Some(until) if now < until.saturating_add(period) => None,
            _ => Some(now.saturating_add(period)),
        }
    }

    fn note_reservation(&mut self, ticket: u64, id: CounterId, until: Duration) {
        let Some(caller) = self.callers.get_mut(&ticket) else { return };
        for counter in caller.counters.iter_mut().filter(|counter| counter.id == id) {
            counter.reserved_until = Some(until);
        }
    }

    /// How a caller stands in this queue, where the callers before it leave so much.
    fn standing(&self, ticket: u64, cost: u64, id: CounterId, now: Duration, left: &Left) -> Standing {
        let (Some(caller), Some(queue)) = (self.callers.get(&ticket), self.queues.get(&id)) else {
            return Standing::Ready;
        };
        let Some((ready_at, other, probe_at)) = self.no_room_elsewhere(ticket, id, now) else { return Standing::Ready };
        let period = queue.time_for(cost);
        let is_late = ready_at > now.saturating_add(period);
        if is_late && ready_at > queue.ready_at {
            return Standing::HeldUpBy(other);
        }
        // This counter has room last, or for nobody.
        if !left.fits(cost) && (left.room == 0 || ready_at <= queue.ready_at) {
            return Standing::Ready;
        }
        // Where others are ahead of it, its turn depends on them and not on time alone.
        let is_behind = || caller.counters.iter().any(|other| other.id != id && self.is_behind(other.id, ticket, now));
        // While all calls are admitted, none overtakes it.
        let is_scarce = queue.refused_at.is_some_and(|at| now < at.saturating_add(period.saturating_mul(2)));
        if is_late || !is_scarce || left.reservations >= MOST_RESERVATIONS || is_behind() {
            return Standing::HeldUpBy(other);
        }
        match self.reserved_until(ticket, id, now, period) {
            Some(until) => Standing::Reserves { ready_at: probe_at, until },
            None => Standing::HeldUpBy(other),
        }
    }

    /// Of a caller's other counters that have no room for it, the one that has room last: when that is, which one it is, and when
    /// the last probe of them is.
    fn no_room_elsewhere(&self, ticket: u64, id: CounterId, now: Duration) -> Option<(Duration, CounterId, Duration)> {
        let others = self.callers.get(&ticket)?.counters.iter().filter(|counter| counter.id != id);
        let full = others.into_iter().filter_map(|counter| {
            let queue = self.queues.get(&counter.id)?;
            let has_none = queue.has_no_room_for(ticket, counter.cost, now, self.round_trip);
            has_none.then_some((queue.ready_at, counter.id, queue.probe_at.max(now)))
        });
        full.reduce(|(ready_at, other, probe_at), next| {
            let (last, which) = (ready_at, other).max((next.0, next.1));
            (last, which, probe_at.max(next.2))
        })
    }

    /// Callers who came before the ticket wait for the counter. Not counted are those whose other counters have no room for
    /// longer.
    fn is_behind(&self, id: CounterId, ticket: u64, now: Duration) -> bool {
        let Some(queue) = self.queues.get(&id) else { return false };
        let is_late = |other: u64, cost: u64| {
            let then = now.saturating_add(queue.time_for(cost));
            self.no_room_elsewhere(other, id, now).is_some_and(|(ready_at, ..)| ready_at > then)
        };
        queue.waiting.range(..ticket).any(|(other, cost)| !is_late(*other, *cost))
    }

    /// A caller's other counters have room for it, and for those who came before.
    fn may_ask_elsewhere(&self, ticket: u64, id: CounterId, now: Duration) -> bool {
        let others = self.callers[&ticket].counters.iter().filter(|counter| counter.id != id);
        others.into_iter().all(|counter| self.has_room(counter.id, ticket, counter.cost, now))
    }

    /// A counter has room for a caller, and for those who came before.
    fn has_room(&self, id: CounterId, ticket: u64, cost: u64, now: Duration) -> bool {
        let Some(queue) = self.queues.get(&id) else { return true };
        let mut left = queue.left(now, self.round_trip);
        for (&before, &cost) in queue.waiting.range(..ticket) {
            match self.standing(before, cost, id, now, &left) {
                Standing::HeldUpBy(_) => {}
                Standing::Reserves { .. } => left.reserve(cost),
                Standing::Ready if left.fits(cost) => left.take(cost),
                Standing::Ready => return false,
            }
        }
        left.fits(cost)
    }

    /// The latest refusal of the counter that a caller waits for longest, when its turn comes there if those ahead stay, and
    /// whether it may come sooner. The time is never too late by a counter that this process alone uses.
    fn estimate(&self, ticket: u64, now: Duration) -> Option<(RequestPerMinute, Duration, bool)> {
        let caller = self.callers.get(&ticket)?;
        let estimates = caller.counters.iter().filter_map(|counter| {
            let queue = self.queues.get(&counter.id)?;
            let ahead = u64::try_from(counter.behind.saturating_sub(queue.left)).unwrap_or(u64::MAX);
            let at = queue.turn_at(ahead, counter.cost, now, self.round_trip);
            Some((queue.latest.clone()?, at, queue.is_held))
        });
        estimates.max_by_key(|(_, at, _)| *at)
    }
}

impl Queue {
    fn new(rule: &Rule) -> Self {
        Self {
            rule: *rule,
            waiting: BTreeMap::new(),
            parked: 0,
            askers: 0,
            asking: 0,
            sent_at: Duration::ZERO,
            answered_at: None,
            remaining: 0,
            refused: 0,
            ready_at: Duration::ZERO,
            told_at: Duration::ZERO,
            refused_at: None,
            probe_at: Duration::ZERO,
            is_held: false,
            share: WHOLE,
            shared_at: Duration::ZERO,
            joined: 0,
            left: 0,
            latest: None,
        }
    }

    fn learn(
        &mut self,
        answer: &CounterAnswer,
        sent_at: Duration,
        now: Duration,
        round_trip: Duration,
        is_shared: bool,
    ) {
        let CounterAnswer { cost, remaining, ready_in, is_held, .. } = *answer;
        if sent_at < self.sent_at {
            // A later question has been answered before. It may have been decided before, too, and in a window what remains
            // only gets less: room for one too few costs a round trip, and for one too many lets another caller overtake.
            let is_window = refilled(&self.rule, self.rule.period()) == 0;
            if is_window && ready_in.is_none() && self.refused == 0 {
                self.remaining = self.remaining.min(remaining);
            }
            return;
        }
        (self.sent_at, self.answered_at) = (sent_at, Some(now));
        self.is_held = is_held;
        let Some(ready_in) = ready_in.map(|ready_in| ready_in.max(SHORTEST_WAIT)) else {
            (self.remaining, self.refused) = (remaining, 0);
            (self.ready_at, self.told_at, self.probe_at) = Default::default();
            // A bucket that becomes full while callers wait: more of them could be on the way.
            let largest = if remaining >= self.rule.limit() - self.rule.limit() / 8 {
                LARGEST_SHARE
            } else {
                WHOLE.max(self.share)
            };
            if now.saturating_sub(self.shared_at) > round_trip {
                (self.share, self.shared_at) = ((self.share + WHOLE / 16).min(largest), now);
            }
            return;
        };
        // It may be refused although it fits, as long as others hold something.
        self.remaining = if remaining < cost { remaining } else { 0 };
        (self.refused, self.refused_at) = (cost, Some(now));
        self.ready_at = sent_at.max(now.saturating_sub(round_trip)).saturating_add(ready_in);
        self.told_at = now.saturating_add(ready_in);
        let sooner = match (is_held, is_shared) {
            (true, _) => PROBE_HELD,
            (false, true) => PROBE_OTHERS.max(self.rule.period() / 10),
            (false, false) => Duration::MAX,
        };
        self.probe_at = self.ready_at.min(now.saturating_add(sooner));
        if now.saturating_sub(self.shared_at) > round_trip {
            (self.share, self.shared_at) = ((self.share - self.share / 4).max(1), now);
        }
    }

    /// The cost that fits when a question arrives that is sent now: what remained, and what has refilled since and does so
    /// within a round trip, less the cost of those who are asking.
    fn room(&self, now: Duration, round_trip: Option<Duration>) -> u64 {
        let there = self.remaining.min(self.rule.limit());
        let Some(answered_at) = self.answered_at.filter(|_| now >= self.ready_at) else {
            return there.saturating_sub(self.asking);
        };
        let share = |refilled: u64| refilled.saturating_mul(self.share.into()) / u64::from(WHOLE);
        let since = share(refilled(&self.rule, now.saturating_sub(answered_at)));
        let meanwhile = share(refilled(&self.rule, round_trip.unwrap_or_default()));
        there.saturating_add(since).min(self.rule.limit()).saturating_add(meanwhile).saturating_sub(self.asking)
    }

    fn left(&self, now: Duration, round_trip: Option<Duration>) -> Left {
        let (room, may_probe) = (self.room(now, round_trip), self.may_probe(now));
        Left { room, may_probe, known: room, limit: self.rule.limit(), reserved: 0, reservations: 0 }
    }

    /// A caller has to wait here: for room, or for the first caller, who may need more.
    fn has_no_room_for(&self, ticket: u64, cost: u64, now: Duration, round_trip: Option<Duration>) -> bool {
        let first = self.waiting.first_key_value().filter(|(first, _)| **first < ticket);
        let needed = first.map_or(0, |(_, cost)| *cost).max(cost);
        needed > self.room(now, round_trip) && !self.may_probe(now)
    }

    /// How long a cost takes to have room, if none is left to others: a period, or some where a burst is larger than the count.
    fn time_for(&self, cost: u64) -> Duration {
        let periods = cost.div_ceil(self.rule.count().max(1)).max(1);
        self.rule.period().saturating_mul(u32::try_from(periods).unwrap_or(u32::MAX))
    }

    fn may_probe(&self, now: Duration) -> bool {
        self.askers == 0 && now >= self.probe_at
    }

    /// When to probe, if that is to come.
    fn next_probe(&self, now: Duration) -> Option<Duration> {
        (self.askers == 0 && now < self.probe_at).then_some(self.probe_at)
    }

    /// When a cost fits behind others, at the soonest.
    fn turn_at(&self, ahead: u64, cost: u64, now: Duration, round_trip: Option<Duration>) -> Duration {
        let (needed, room) = (ahead.saturating_add(cost), self.room(now, round_trip));
        if needed <= room || self.may_probe(now) {
            return now;
        }
        let is_known_to_be_full = self.ready_at > Duration::ZERO;
        let (from, fits) = if is_known_to_be_full { (self.told_at, self.refused) } else { (now, room) };
        let count = self.rule.count().max(1);
        let periods = |full: u64| self.rule.period().saturating_mul(u32::try_from(full).unwrap_or(u32::MAX));
        let then = match self.rule.algorithm() {
            Algorithm::TokenBucket { refill: Refill::Greedy, .. } | Algorithm::LeakyBucket { .. } => {
                let missing = u128::from(needed.saturating_sub(fits));
                let nanos = missing.saturating_mul(self.rule.period().as_nanos()) / u128::from(count);
                Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
            }
            // All of the count may be free at `ready_at`.
            Algorithm::FixedWindow { .. } | Algorithm::SlidingLog if is_known_to_be_full => {
                periods((needed - 1) / count)
            }
            Algorithm::FixedWindow { .. } | Algorithm::SlidingLog => periods((needed - room - 1) / count),
            // A full bucket, or nearly twice the count where two windows meet.
            Algorithm::TokenBucket { .. } | Algorithm::SlidingWindow { .. } => {
                periods((needed - 1) / count.max(self.rule.limit()).saturating_mul(2))
            }
            Algorithm::Concurrent => Duration::ZERO,
        };
        now.max(from.saturating_add(then))
    }
}

/// What refills evenly within a time. Windows and logs become free as they were used, so nothing is known of them.
fn refilled(rule: &Rule, time: Duration) -> u64 {
    match rule.algorithm() {
        Algorithm::TokenBucket { refill: Refill::Greedy, .. } | Algorithm::LeakyBucket { .. } => {
            let refilled = time.as_nanos().saturating_mul(rule.count().into()) / rule.period().as_nanos().max(1);
            u64::try_from(refilled).unwrap_or(u64::MAX)
        }
        _ => 0,
    }
}
