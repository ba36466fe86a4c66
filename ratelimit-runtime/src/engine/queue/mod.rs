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
    fmt,
    sync::{Arc, PoisonError, atomic::Ordering},
    time::Duration,
};

use smallvec::SmallVec;

pub(crate) use self::answer::StoreAnswer;
use self::{
    answer::counted,
    state::{SharedCounts, WaitState, WaitingCaller, WaitingFor, Wakes},
    wait_queue::WaitQueue,
};
use crate::{
    Clock, CounterName, RequestPerMinute,
    counter::CounterId,
    store::Charge,
    sync::{AtomicU64, AtomicUsize, Mutex, MutexGuard, Notify},
};

mod answer;
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
mod state;
mod wait_queue;

/// The queues of one limiter.
pub(crate) struct WaitQueues {
    state: Mutex<WaitState>,
    /// The number of waiting callers, read without the lock.
    waiting: AtomicUsize,
    shared: Arc<SharedCounts>,
    next_ticket: AtomicU64,
    clock: Clock,
    /// Callers in one queue, at most.
    capacity: usize,
    /// Other processes count in the same store.
    is_shared: bool,
}

/// A caller's turn, see [`QueuePosition::turn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It may ask the store. `early`: before the time that the latest refusal told.
    Ask { early: bool },
    /// The limiter was closed.
    Closed,
}

fn wake(wakes: Wakes) {
    wakes.into_iter().for_each(|turn| turn.notify_one());
}

impl WaitQueues {
    pub(crate) fn new(capacity: usize, clock: Clock, is_shared: bool) -> Self {
        let shared = Arc::new(SharedCounts::new());
        Self {
            state: Mutex::new(WaitState::new(Arc::clone(&shared))),
            waiting: AtomicUsize::new(0),
            shared,
            next_ticket: AtomicU64::new(0),
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
        counted(charges).map(|charge| self.shared.changes(charge.counter.id()).load(Ordering::SeqCst)).sum()
    }

    /// A caller with this ticket has to wait for one of these counters: behind others, or because those who are asking
    /// leave no room.
    pub(crate) fn is_behind_others(&self, charges: &[Charge], ticket: u64) -> bool {
        let is_free = |charge: &Charge| self.shared.busy(charge.counter.id()).load(Ordering::Acquire) == 0;
        if counted(charges).all(is_free) {
            return false;
        }
        let (state, now) = (self.lock(), self.clock.now());
        counted(charges).any(|charge| {
            let id = charge.counter.id();
            let is_used_up = |queue: &WaitQueue| queue.askers > 0 && queue.room(now, state.round_trip) < charge.least();
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
        answer: Option<(&StoreAnswer, u64)>,
        give_up_at: Option<Duration>,
    ) -> Result<QueuePosition<'_>, Option<(RequestPerMinute, Duration)>> {
        let (now, mut wakes) = (self.clock.now(), Wakes::new());
        let mut state = self.lock();
        let turn = Arc::new(Notify::new());
        let mut counters = SmallVec::<[WaitingFor; 1]>::new();
        let mut is_full = false;
        for charge in counted(charges) {
            let (id, cost) = (charge.counter.id(), charge.least());
            let queue = state.queues.entry(id).or_insert_with(|| WaitQueue::new(&charge.rule));
            queue.rule = charge.rule;
            let is_first = queue.waiting.first_key_value().is_none_or(|(first, _)| ticket < *first);
            is_full |= self.capacity == 0 || !is_first && queue.waiting.len() >= self.capacity;
            let is_last = queue.waiting.last_key_value().is_none_or(|(last, _)| *last < ticket);
            let joined_before = if is_last { queue.joined } else { queue.departed };
            counters.push(WaitingFor { id, cost, changes: 0, joined_before, reserved_until: None, is_parked: false });
        }
        let ids: SmallVec<[CounterId; 1]> = counters.iter().map(|counter| counter.id).collect();
        // Nothing holds up a caller whose rules are all in shadow mode.
        let is_asking = counters.is_empty();
        for counter in &counters {
            self.shared.busy(counter.id).fetch_add(1, Ordering::Release);
        }
        state.callers.insert(ticket, WaitingCaller { counters, turn: Arc::clone(&turn), is_asking, wake_at: None });
        state.enqueue(ticket);
        // Before the changes are read: who counts one later sees that somebody waits.
        self.waiting.store(state.callers.len(), Ordering::SeqCst);
        if let Some((answer, changes)) = answer {
            let has_changed = changes != self.changes(charges);
            state.learn(answer, |_| has_changed, now, self.is_shared);
        }
        let estimate = state.estimate(ticket, now);
        let is_too_late = |(_, at, may_free_early): &(RequestPerMinute, Duration, bool)| {
            !may_free_early && give_up_at.is_some_and(|give_up_at| *at > give_up_at)
        };
        if is_full || state.is_closed || estimate.as_ref().is_some_and(is_too_late) {
            state.remove(ticket);
            state.advance(ids, now, &mut wakes);
            self.waiting.store(state.callers.len(), Ordering::Release);
            drop(state);
            wake(wakes);
            return Err(estimate.map(|(refusal, at, _)| (refusal, at)));
        }
        state.advance(ids, now, &mut wakes);
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
        self.shared.changes(id).fetch_add(1, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) == 0 {
            return;
        }
        self.update(|state, now, wakes| {
            if let Some(queue) = state.queues.get_mut(&id) {
                queue.probe_at = Duration::ZERO;
                state.advance([id].into(), now, wakes);
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

    fn update<T>(&self, update: impl FnOnce(&mut WaitState, Duration, &mut Wakes) -> T) -> T {
        let (now, mut wakes) = (self.clock.now(), Wakes::new());
        let mut state = self.lock();
        let updated = update(&mut state, now, &mut wakes);
        self.waiting.store(state.callers.len(), Ordering::Release);
        drop(state);
        wake(wakes);
        updated
    }

    fn lock(&self) -> MutexGuard<'_, WaitState> {
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
                state.advance(ids, now, wakes);
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
        let WaitState { queues, callers, .. } = &mut *state;
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
    pub(crate) fn refused(&self, answer: &StoreAnswer) {
        self.queues.update(|state, now, wakes| {
            let Some(caller) = state.callers.get(&self.ticket) else { return };
            let (ids, changes_before): (_, SmallVec<[(CounterId, u64); 1]>) =
                (caller.ids(), caller.counters.iter().map(|counter| (counter.id, counter.changes)).collect());
            let has_changed = |id| {
                let changes = self.queues.shared.changes(id).load(Ordering::Acquire);
                changes_before.iter().any(|(other, before)| *other == id && *before != changes)
            };
            state.stop_asking(self.ticket);
            state.enqueue(self.ticket);
            state.learn(answer, has_changed, now, self.queues.is_shared);
            state.advance(ids, now, wakes);
        });
    }

    /// Leaves, with a permit.
    pub(crate) fn admitted(self, answer: &StoreAnswer) {
        self.queues.update(|state, now, _| state.learn(answer, |_| false, now, self.queues.is_shared));
    }

    /// Lets the first caller ask, whatever the latest answer was.
    pub(crate) fn probe(&self) {
        self.queues.update(|state, now, wakes| {
            let ids = state.callers.get(&self.ticket).map(WaitingCaller::ids).unwrap_or_default();
            for id in &ids {
                if let Some(queue) = state.queues.get_mut(id) {
                    queue.probe_at = Duration::ZERO;
                }
            }
            state.advance(ids, now, wakes);
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
            state.advance(ids, now, wakes);
        });
    }
}
