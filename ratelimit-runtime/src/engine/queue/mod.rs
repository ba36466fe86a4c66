//! Queues of callers who wait for counters.
//!
//! A caller stands in the queue of each of its counters. Callers of one counter with different limits stand in
//! different queues, as there may be room for one and not for the other. Callers ask the store in the order of
//! arrival, as many at a time as the counter has *room* for. Room is what the latest answer left,
//! plus what refills until the request arrives, less the cost of callers who are asking now.
//!
//! A caller whose turn has come and whose future is not polled keeps its turn, and blocks the
//! callers behind it: see [`Limiter::acquire_within`](crate::Limiter::acquire_within).
//!
//! Without room, one caller asks as soon as the wait of the latest refusal is over: a *probe*. It
//! asks sooner if room may come sooner: another process may refund, or a hold may end, or the refusal
//! was of a larger cost than its own. A caller whose cost does not fit yet blocks the callers behind it.
//!
//! A caller of several counters waits for all of them at once. While another of its counters has no
//! room, the caller is *parked* here. A parked caller blocks no other, and the queue skips it. It also
//! skips a caller that has others ahead of it at another counter that has room.
//!
//! If this counter has recently refused a call, the caller's cost is *reserved* here, from one period
//! before its other counter has room. The callers behind it get the rest. So it is not overtaken for
//! ever. The counter stays idle for one period at most; a cost above the count
//! may keep it idle until that cost has room.
//!
//! The store decides in any case. If there is less room than assumed, that costs a refused request,
//! and nothing else.

use std::{
    fmt,
    sync::{Arc, PoisonError, atomic::Ordering},
    time::Duration,
};

use smallvec::SmallVec;

pub(crate) use self::answer::{QueueId, StoreAnswer};
use self::{
    answer::counted,
    state::{LOOK_AGAIN, Outage, SharedCounts, WaitState, WaitingCaller, WaitingFor, Wakes},
    wait_queue::WaitQueue,
};
use crate::{
    Clock, CounterName, RequestPerMinute,
    counter::CounterId,
    store::{Charge, StoreError},
    sync::{AtomicU64, AtomicUsize, Mutex, MutexGuard, Notify},
};

mod answer;
#[cfg(all(test, not(model_check)))]
mod callers;
mod estimate;
#[cfg(all(test, not(model_check)))]
mod fairness;
#[cfg(all(test, model_check))]
mod model_check;
#[cfg(all(test, not(model_check)))]
mod outages;
#[cfg(all(test, not(model_check)))]
mod refusals;
#[cfg(all(test, not(model_check)))]
mod schedules;
#[cfg(all(test, not(model_check)))]
mod simulation;
#[cfg(all(test, not(model_check)))]
mod starvation;
mod state;
mod wait_queue;

/// The wait queues of one limiter.
pub(crate) struct WaitQueues {
    state: Mutex<WaitState>,
    /// The number of waiting callers, readable without the lock.
    waiting: AtomicUsize,
    shared: Arc<SharedCounts>,
    next_ticket: AtomicU64,
    clock: Clock,
    /// The maximum number of callers in one queue.
    capacity: usize,
    /// True if other processes count in the same store.
    is_shared: bool,
}

/// The turn of a caller, see [`QueuePosition::turn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The caller may ask the store. `early`: the wait of the latest refusal is not over.
    Ask { early: bool },
    /// The caller's longest wait is over: for all of its counters, or for one that has no room for it.
    TooLate,
    /// The caller's longest wait for the store is over. A caller ahead of it has found the store away.
    StoreAway,
    /// The limiter was closed.
    Closed,
}

/// The time when the caller of a charge stops waiting for its counter.
fn gives_up_at(charge: &Charge, now: Duration) -> Option<Duration> {
    let is_limited = charge.longest_wait < Duration::MAX;
    is_limited.then(|| now.saturating_add(charge.longest_wait.saturating_sub(Charge::SHORTEST_WAIT)))
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

    /// A number for a caller who arrives now. Lower numbers come first.
    pub(crate) fn ticket(&self) -> u64 {
        self.next_ticket.fetch_add(1, Ordering::Relaxed)
    }

    /// The number of changes of these counters, and of others that share their cells. Read it before sending a request,
    /// and pass it to [`WaitQueues::join`] with the answer.
    pub(crate) fn changes(&self, charges: &[Charge]) -> u64 {
        counted(charges).map(|charge| self.shared.changes(charge.counter.id()).load(Ordering::SeqCst)).sum()
    }

    /// The one of these counters that a caller with this ticket has to wait for: others are ahead of it, or callers who
    /// are asking leave no room. Of several, the one that has room last.
    pub(crate) fn waited_for(&self, charges: &[Charge], ticket: u64) -> Option<QueueId> {
        let is_free = |charge: &Charge| self.shared.busy(charge.counter.id()).load(Ordering::Acquire) == 0;
        if counted(charges).all(is_free) {
            return None;
        }
        let (state, now) = (self.lock(), self.clock.now());
        let waited_for = counted(charges).filter(|charge| {
            let id = QueueId::of(charge);
            let is_used_up = |queue: &WaitQueue| queue.askers > 0 && queue.room(now, state.round_trip) < charge.least();
            // Also behind callers whose cost is reserved: the queue has to know the answer that the
            // caller gets.
            state.queues.get(&id).is_some_and(is_used_up) || state.is_behind(id, ticket, now)
        });
        let ids = waited_for.map(QueueId::of);
        ids.max_by_key(|id| state.queues.get(id).map(|queue| queue.ready_at))
    }

    /// Joins the queues of these counters. Dropping the position leaves them.
    ///
    /// `answer`: the refusal that the caller has received, and [`WaitQueues::changes`] from before
    /// its request. Fails if the limiter is closed, if a queue is full, or if the caller's turn would come
    /// after its longest wait. The error has the latest refusal, and the time of that turn. One that `has_waited`
    /// before finds no queue full: its rule has changed.
    pub(crate) fn join(
        &self,
        ticket: u64,
        charges: &[Charge],
        answer: Option<(&StoreAnswer, u64)>,
        has_waited: bool,
    ) -> Result<QueuePosition<'_>, Option<(RequestPerMinute, Duration)>> {
        let (now, mut wakes) = (self.clock.now(), Wakes::new());
        let mut state = self.lock();
        let turn = Arc::new(Notify::new());
        let mut counters = SmallVec::<[WaitingFor; 1]>::new();
        let (mut is_full, mut to_advance) = (false, SmallVec::<[QueueId; 1]>::new());
        for charge in counted(charges) {
            let (id, cost, most) = (QueueId::of(charge), charge.least(), charge.cost);
            state.queues.entry(id).or_insert_with(|| WaitQueue::new(&charge.rule)).rule = charge.rule;
            // A settlement makes room for callers of all limits.
            let of_counter = || QueueId::all_of(id.counter);
            if charge.settles || state.queues.range(of_counter()).any(|(_, queue)| queue.settles) {
                for (other, queue) in state.queues.range_mut(of_counter()) {
                    queue.expect_settlements(now, self.is_shared);
                    to_advance.push(*other);
                }
            } else {
                to_advance.push(id);
            }
            let queue = &state.queues[&id];
            let is_first = queue.waiting.first_key_value().is_none_or(|(first, _)| ticket < *first);
            let has_space = is_first || has_waited || queue.waiting.len() < self.capacity;
            is_full |= self.capacity == 0 || !has_space;
            let is_last = queue.waiting.last_key_value().is_none_or(|(last, _)| *last < ticket);
            let joined_before = if is_last { queue.joined } else { queue.departed };
            counters.push(WaitingFor {
                id,
                cost,
                most,
                gives_up_at: gives_up_at(charge, now),
                changes: 0,
                joined_before,
                reserved_until: None,
                is_parked: false,
            });
        }
        // Shadow rules block no call. A caller with no other rules may ask at once.
        let is_asking = counters.is_empty();
        for counter in &counters {
            self.shared.busy(counter.id.counter).fetch_add(1, Ordering::Release);
        }
        let outage = Outage::default();
        let (turn_of_caller, is_away, wake_at) = (Arc::clone(&turn), false, None);
        let caller = WaitingCaller { counters, turn: turn_of_caller, is_asking, is_away, wake_at, outage };
        state.callers.insert(ticket, caller);
        state.enqueue(ticket, false);
        // Before the changes are read: a thread that counts a later change then sees a waiting
        // caller.
        self.waiting.store(state.callers.len(), Ordering::SeqCst);
        if let Some((answer, changes)) = answer {
            let has_changed = changes != self.changes(charges);
            state.learn(answer, |_| has_changed, now, self.is_shared, &mut wakes);
        }
        let estimate = state.estimate(ticket, now);
        let is_refused = is_full || state.is_closed || state.is_known_to_be_too_late(ticket, now);
        if is_refused {
            state.remove(ticket);
        }
        state.advance(to_advance, now, &mut wakes);
        self.waiting.store(state.callers.len(), Ordering::Release);
        drop(state);
        wake(wakes);
        if is_refused { Err(estimate) } else { Ok(QueuePosition { queues: self, ticket, turn, longest_outage: None }) }
    }

    /// Lets a caller ask again: a refund, a reset or a settlement may have made room.
    pub(crate) fn changed(&self, counter: &CounterName) {
        self.changed_id(counter.id());
    }

    /// [`WaitQueues::changed`] by the counter's id.
    pub(crate) fn changed_id(&self, id: CounterId) {
        self.shared.changes(id).fetch_add(1, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) == 0 {
            return;
        }
        self.update(|state, now, wakes| {
            let mut ids = SmallVec::new();
            for (id, queue) in state.queues.range_mut(QueueId::all_of(id)) {
                queue.probe_at = Duration::ZERO;
                ids.push(*id);
            }
            state.advance(ids, now, wakes);
        });
    }

    /// Does [`WaitQueues::changed_id`] for these counters when dropped.
    pub(crate) fn changed_on_drop(&self, ids: SmallVec<[CounterId; 1]>) -> ChangedOnDrop<'_> {
        ChangedOnDrop { queues: self, ids }
    }

    /// Refuses all waiting callers, and all later ones.
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

/// A change of some counters on its way. It may be made even if its caller leaves.
pub(crate) struct ChangedOnDrop<'a> {
    queues: &'a WaitQueues,
    ids: SmallVec<[CounterId; 1]>,
}

impl Drop for ChangedOnDrop<'_> {
    fn drop(&mut self) {
        self.ids.iter().for_each(|id| self.queues.changed_id(*id));
    }
}

/// A caller's position in its queues. Dropping it leaves the queues; the next
/// callers ask if there is room.
pub(crate) struct QueuePosition<'a> {
    queues: &'a WaitQueues,
    ticket: u64,
    turn: Arc<Notify>,
    /// The caller's longest wait for the store, if it waits for it.
    pub(crate) longest_outage: Option<Duration>,
}

impl QueuePosition<'_> {
    /// Waits until the caller may ask the store. Dropping the future loses nothing.
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

    /// The turn, if it has come, otherwise the time of the next look. `None`: when notified.
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
            if !state.callers[&self.ticket].is_asking {
                let outage =
                    self.longest_outage.zip(state.note_outage(self.ticket, self.longest_outage.is_some(), now));
                let caller = &state.callers[&self.ticket];
                if let Some((longest, since)) = outage {
                    let end = since.saturating_add(longest);
                    // A caller of several counters may be parked here meanwhile.
                    let again = if caller.counters.len() > 1 { LOOK_AGAIN } else { longest };
                    let next = end.min(now.saturating_add(again)).min(caller.wake_at.unwrap_or(Duration::MAX));
                    return if end <= now { Ok(Turn::StoreAway) } else { Err(Some(next)) };
                }
                return match state.gives_up_at(self.ticket, now) {
                    Some(at) if at <= now => Ok(Turn::TooLate),
                    gives_up_at => Err([caller.wake_at, gives_up_at].into_iter().flatten().min()),
                };
            }
            let caller = &state.callers[&self.ticket];
            let is_early =
                |counter: &WaitingFor| state.queues.get(&counter.id).is_some_and(|queue| now < queue.ready_at);
            Ok(Turn::Ask { early: caller.counters.iter().any(is_early) })
        })
    }

    /// Tells the queues how the caller's charges have changed: their rules, and the longest waits. False
    /// if that gives the caller other charges than it waits for, as in shadow mode; the queues stay as they are
    /// then.
    pub(crate) fn update_rules(&self, charges: &[Charge]) -> bool {
        let mut state = self.queues.lock();
        let now = self.queues.clock.now();
        let WaitState { queues, callers, .. } = &mut *state;
        let Some(caller) = callers.get_mut(&self.ticket) else { return false };
        let is_same = |(counter, charge): (&WaitingFor, &Charge)| {
            (counter.id, counter.cost, counter.most) == (QueueId::of(charge), charge.least(), charge.cost)
        };
        if caller.counters.len() != counted(charges).count()
            || !caller.counters.iter().zip(counted(charges)).all(is_same)
        {
            return false;
        }
        for (counter, charge) in caller.counters.iter_mut().zip(counted(charges)) {
            counter.gives_up_at = gives_up_at(charge, now);
            if let Some(queue) = queues.get_mut(&counter.id) {
                queue.rule = charge.rule;
            }
        }
        true
    }

    /// Applies a refusal. The caller keeps its ticket and goes on waiting. Returns whether the counter
    /// that refused has changed since it asked.
    pub(crate) fn refused(&self, answer: &StoreAnswer) -> bool {
        self.queues.update(|state, now, wakes| {
            let Some(caller) = state.callers.get(&self.ticket) else { return false };
            let (ids, changes_before): (_, SmallVec<[(QueueId, u64); 1]>) =
                (caller.ids(), caller.counters.iter().map(|counter| (counter.id, counter.changes)).collect());
            let has_changed = |id: QueueId| {
                let changes = self.queues.shared.changes(id.counter).load(Ordering::Acquire);
                changes_before.iter().any(|(other, before)| *other == id && *before != changes)
            };
            let is_out_of_date = answer.refusal.as_ref().is_some_and(|(id, _)| has_changed(*id));
            state.stop_asking(self.ticket);
            state.enqueue(self.ticket, true);
            state.learn(answer, has_changed, now, self.queues.is_shared, wakes);
            state.wait_for_rounded_turns(self.ticket);
            state.advance(ids, now, wakes);
            is_out_of_date
        })
    }

    /// Applies the answer that admitted the caller. The caller leaves the queues.
    pub(crate) fn admitted(self, answer: &StoreAnswer) {
        self.queues.update(|state, now, wakes| {
            state.stop_asking(self.ticket);
            state.learn(answer, |_| false, now, self.queues.is_shared, wakes);
        });
    }

    /// The store could not decide, and the caller waits for it. So do the callers behind it.
    pub(crate) fn store_is_away(&self, error: &StoreError) {
        self.queues.update(|state, _, wakes| state.set_away(self.ticket, error, wakes));
    }

    /// The error of the caller ahead who waits for the store. `None` if the store has decided since.
    pub(crate) fn store_error(&self) -> Option<StoreError> {
        let state = self.queues.lock();
        let ids = state.callers.get(&self.ticket)?.ids();
        ids.iter().find_map(|id| state.queues.get(id)?.store_error.clone())
    }

    /// Takes the time for which callers ahead have waited for the store, since the last call and until now. Returns
    /// also when the present outage began, if it goes on.
    pub(crate) fn take_outage(&self) -> (Duration, Option<Duration>) {
        self.queues.update(|state, now, _| {
            let since = state.note_outage(self.ticket, self.longest_outage.is_some(), now);
            let Some(caller) = state.callers.get_mut(&self.ticket) else { return (Duration::ZERO, None) };
            caller.end_outage(now);
            (std::mem::take(&mut caller.outage).before, since)
        })
    }

    /// True if the caller stands in the queue of the counter that gave this refusal.
    pub(crate) fn is_refused_by(&self, answer: &StoreAnswer) -> bool {
        let Some((id, _)) = &answer.refusal else { return false };
        let state = self.queues.lock();
        state.callers.get(&self.ticket).is_some_and(|caller| caller.counters.iter().any(|counter| counter.id == *id))
    }

    /// Lets the first caller ask, whatever the latest answer was. An answer that is on its way is out of date.
    pub(crate) fn probe(&self) {
        let ids = self.queues.lock().callers.get(&self.ticket).map(WaitingCaller::ids);
        ids.into_iter().flatten().for_each(|id| self.queues.changed_id(id.counter));
    }

    /// The latest refusal, and the time of the caller's turn if all callers ahead of it stay.
    pub(crate) fn refusal(&self) -> Option<(RequestPerMinute, Duration)> {
        let (state, now) = (self.queues.lock(), self.queues.clock.now());
        state.estimate(self.ticket, now)
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
