//! The queues of all counters: callers who may ask, parked callers, and reservations.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use smallvec::SmallVec;

use super::{
    answer::{QueueId, StoreAnswer},
    wait_queue::{MOST_RESERVATIONS, RoomLeft, WaitQueue},
};
use crate::{
    Cause,
    counter::CounterId,
    store::StoreError,
    sync::{AtomicU64, AtomicUsize, Notify},
};

pub(super) const CELLS: usize = if cfg!(all(test, model_check)) { 2 } else { 64 };

/// A caller looks again after this time: at a counter that it no longer waits for and that has room, or, if it has
/// several counters, in an outage.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// Counts that are read without the lock of the queues, by the low bits of a counter's id.
pub(super) struct SharedCounts {
    /// Callers who wait or ask, without parked ones.
    busy: [AtomicUsize; CELLS],
    /// Refunds, resets and settlements, of all counters of a cell. A refusal from before a change is not valid after
    /// it.
    changes: [AtomicU64; CELLS],
}

impl SharedCounts {
    pub(super) fn new() -> Self {
        Self { busy: [(); CELLS].map(|()| AtomicUsize::new(0)), changes: [(); CELLS].map(|()| AtomicU64::new(0)) }
    }

    pub(super) fn busy(&self, id: CounterId) -> &AtomicUsize {
        &self.busy[cell(id)]
    }

    #[cfg(all(test, not(model_check)))]
    pub(super) fn all_busy(&self) -> impl Iterator<Item = &AtomicUsize> {
        self.busy.iter()
    }

    pub(super) fn changes(&self, id: CounterId) -> &AtomicU64 {
        &self.changes[cell(id)]
    }
}

#[allow(clippy::cast_possible_truncation)] // only the low bits are used
pub(super) fn cell(id: CounterId) -> usize {
    id.0 as usize % CELLS
}

pub(super) struct WaitState {
    pub(super) shared: Arc<SharedCounts>,
    pub(super) queues: BTreeMap<QueueId, WaitQueue>,
    pub(super) callers: BTreeMap<u64, WaitingCaller>,
    /// The moving average of the time from a request to its answer.
    pub(super) round_trip: Option<Duration>,
    pub(super) is_closed: bool,
}

/// A caller in the queues of its counters. Its ticket gives the order of arrival.
pub(super) struct WaitingCaller {
    pub(super) counters: SmallVec<[WaitingFor; 1]>,
    pub(super) turn: Arc<Notify>,
    /// It may ask, and its answer has not arrived.
    pub(super) is_asking: bool,
    /// The caller waits for the store, which could not decide, and still counts as asking.
    pub(super) is_away: bool,
    /// The time of the next look at the queues. `None`: when notified.
    pub(super) wake_at: Option<Duration>,
    pub(super) outage: Outage,
}

/// The time for which a caller is blocked by callers ahead of it who wait for the store.
#[derive(Default)]
pub(super) struct Outage {
    pub(super) since: Option<Duration>,
    /// The total of earlier ones.
    pub(super) before: Duration,
}

pub(super) struct WaitingFor {
    pub(super) id: QueueId,
    /// The least that has to fit.
    pub(super) cost: u64,
    /// The most that it takes, if that fits.
    pub(super) most: u64,
    /// The end of the caller's longest wait for this counter.
    pub(super) gives_up_at: Option<Duration>,
    /// [`SharedCounts::changes`] of this counter when the caller was allowed to ask.
    pub(super) changes: u64,
    /// [`WaitQueue::joined`] when the caller joined behind all others. [`WaitQueue::departed`] if it joined ahead of
    /// some.
    pub(super) joined_before: u128,
    /// The end of the present or latest reservation.
    pub(super) reserved_until: Option<Duration>,
    /// The caller stands outside this queue, because another of its counters has no room for
    /// longer. It is never parked in all of its queues.
    pub(super) is_parked: bool,
}

/// The standing of a caller in a queue. It depends on how soon its other counters have room.
#[derive(Clone, Copy)]
pub(super) enum Standing {
    /// They have room now, as far as is known, or earlier than this counter. Also if this counter has no room for any
    /// caller.
    Ready,
    /// They have no room yet, but will within one period of this counter. They are probed at `probe_at`. The caller's
    /// cost is reserved here until `until`.
    Reserves { probe_at: Duration, until: Duration },
    /// This other counter blocks the caller.
    BlockedBy(QueueId),
}

/// Callers to wake after the lock is released: their wakers may run any code.
pub(super) type Wakes = SmallVec<[Arc<Notify>; 4]>;

impl WaitingFor {
    /// Puts the caller back into the queue of this counter.
    pub(super) fn return_to(&mut self, queue: &mut WaitQueue, ticket: u64, shared: &SharedCounts) {
        if std::mem::take(&mut self.is_parked) {
            shared.busy(self.id.counter).fetch_add(1, Ordering::Release);
            queue.parked -= 1;
            queue.waiting.insert(ticket, self.cost);
        }
    }
}

impl WaitingCaller {
    pub(super) fn ids(&self) -> SmallVec<[QueueId; 1]> {
        self.counters.iter().map(|counter| counter.id).collect()
    }

    /// An outage takes nothing from the time to wait for a limit.
    pub(super) fn end_outage(&mut self, now: Duration) {
        if let Some(since) = self.outage.since.take() {
            let blocked_for = now.saturating_sub(since);
            self.outage.before = self.outage.before.saturating_add(blocked_for);
            for end in self.counters.iter_mut().filter_map(|counter| counter.gives_up_at.as_mut()) {
                *end = end.saturating_add(blocked_for);
            }
        }
    }

    /// The amount that the caller adds to [`WaitQueue::joined`] for a cost. 0 with several
    /// counters.
    pub(super) fn cost_in_queue(&self, cost: u64) -> u128 {
        if self.counters.len() == 1 { cost.into() } else { 0 }
    }
}

impl WaitState {
    pub(super) fn new(shared: Arc<SharedCounts>) -> Self {
        Self { shared, queues: BTreeMap::new(), callers: BTreeMap::new(), round_trip: None, is_closed: false }
    }

    /// Adds a caller who is not asking to its queues. `is_back`: it has asked, and takes its place again.
    pub(super) fn enqueue(&mut self, ticket: u64, is_back: bool) {
        let Some(caller) = self.callers.get(&ticket) else { return };
        for WaitingFor { id, cost, .. } in &caller.counters {
            if let Some(queue) = self.queues.get_mut(id) {
                queue.waiting.insert(ticket, *cost);
                let cost = caller.cost_in_queue(*cost);
                if is_back { queue.departed -= cost } else { queue.joined += cost }
            }
        }
    }

    pub(super) fn stop_asking(&mut self, ticket: u64) {
        let Some(caller) = self.callers.get_mut(&ticket) else { return };
        if !std::mem::take(&mut caller.is_asking) {
            return;
        }
        let is_away = std::mem::take(&mut caller.is_away);
        for WaitingFor { id, most, .. } in &caller.counters {
            if let Some(queue) = self.queues.get_mut(id) {
                queue.askers -= 1;
                queue.asking_cost -= most;
                queue.away -= usize::from(is_away);
            }
        }
    }

    /// Notes that the store could not decide for an asker, and wakes those who wait behind it.
    pub(super) fn set_away(&mut self, ticket: u64, error: &StoreError, wakes: &mut Wakes) {
        let Some(caller) = self.callers.get_mut(&ticket) else { return };
        let was_away = std::mem::replace(&mut caller.is_away, true);
        for id in caller.ids() {
            if let Some(queue) = self.queues.get_mut(&id) {
                queue.away += usize::from(!was_away);
                let is_new = queue.store_error.replace(error.clone()).is_none();
                // Callers of several counters may have been parked when the outage began.
                self.wake_waiting(id, |caller| is_new || !was_away && caller.counters.len() > 1, wakes);
            }
        }
    }

    /// The store has decided, or no caller asks: those who wait look again.
    fn store_is_back(&mut self, id: QueueId, wakes: &mut Wakes) {
        if self.queues.get_mut(&id).is_some_and(|queue| queue.store_error.take().is_some()) {
            self.wake_waiting(id, |_| true, wakes);
        }
    }

    fn wake_waiting(&self, id: QueueId, looks_again: impl Fn(&WaitingCaller) -> bool, wakes: &mut Wakes) {
        let waiting = self.queues.get(&id).into_iter().flat_map(|queue| queue.waiting.keys());
        let callers = waiting.filter_map(|ticket| self.callers.get(ticket)).filter(|caller| looks_again(caller));
        wakes.extend(callers.map(|caller| Arc::clone(&caller.turn)));
    }

    /// Removes a caller, and queues without callers. Returns the caller's counters.
    pub(super) fn remove(&mut self, ticket: u64) -> SmallVec<[QueueId; 1]> {
        self.stop_asking(ticket);
        let Some(caller) = self.callers.remove(&ticket) else { return SmallVec::new() };
        for WaitingFor { id, is_parked, .. } in &caller.counters {
            self.shared.busy(id.counter).fetch_sub(usize::from(!is_parked), Ordering::Release);
            // The queue may be gone: an admitted caller does not keep it.
            let Some(queue) = self.queues.get_mut(id) else { continue };
            queue.parked -= usize::from(*is_parked);
            if let Some(cost) = queue.waiting.remove(&ticket) {
                // When the last caller leaves, those ahead of it do not wait a shorter time.
                if queue.waiting.last_key_value().is_none_or(|(last, _)| *last < ticket) {
                    queue.joined -= caller.cost_in_queue(cost);
                } else {
                    queue.departed += caller.cost_in_queue(cost);
                }
            }
            if queue.waiting.is_empty() && queue.askers == 0 && queue.parked == 0 {
                self.queues.remove(id);
            }
        }
        caller.ids()
    }

    /// Applies an answer.
    pub(super) fn learn(
        &mut self,
        answer: &StoreAnswer,
        has_changed: impl Fn(QueueId) -> bool,
        now: Duration,
        is_shared: bool,
        wakes: &mut Wakes,
    ) {
        let sample = now.saturating_sub(answer.sent_at);
        let round_trip = match self.round_trip {
            Some(known) => known.saturating_mul(7).saturating_add(sample) / 8,
            None => sample,
        };
        if !answer.counters.is_empty() {
            self.round_trip = Some(round_trip);
        }
        for counter in &answer.counters {
            // An asker who is still away may be asking another server, or have failed later.
            if !counter.is_local && self.queues.get(&counter.id).is_some_and(|queue| queue.away == 0) {
                self.store_is_back(counter.id, wakes);
            }
            if let Some(queue) = self.queues.get_mut(&counter.id) {
                queue.learn(counter, answer.sent_at, now, round_trip, is_shared);
                // The ban is over, unless the refusal below is one.
                queue.latest_refusal.take_if(|refusal| refusal.cause() == Cause::Banned);
                // A change at the store says nothing of what remains in this process.
                if has_changed(counter.id) && !counter.is_local {
                    queue.probe_at = Duration::ZERO;
                }
            }
        }
        if let Some((id, refusal)) = &answer.refusal
            && let Some(queue) = self.queues.get_mut(id)
        {
            queue.latest_refusal = Some(refusal.clone());
        }
    }

    /// Lets callers ask if there is room for them now, and sets the timers of the others.
    pub(super) fn advance(&mut self, ids: SmallVec<[QueueId; 1]>, now: Duration, wakes: &mut Wakes) {
        let (mut ids, mut next) = (ids, 0);
        while let Some(id) = ids.get(next) {
            self.advance_one(*id, now, wakes, &mut ids);
            next += 1;
        }
        // Without askers, no caller would find out that the store is back.
        for id in ids {
            if self.queues.get(&id).is_some_and(|queue| queue.askers == 0) {
                self.store_is_back(id, wakes);
            }
        }
    }

    /// [`WaitState::advance`] for one queue. Adds further queues to look at to `others`.
    pub(super) fn advance_one(
        &mut self,
        id: QueueId,
        now: Duration,
        wakes: &mut Wakes,
        others: &mut SmallVec<[QueueId; 1]>,
    ) {
        let Some(queue) = self.queues.get(&id) else { return };
        let mut room_left = queue.room_left(now, self.round_trip);
        let (mut reserved_until, mut passed, mut from) = (None, None, 0);
        loop {
            let Some(queue) = self.queues.get(&id) else { return };
            let Some((&ticket, &cost)) = queue.waiting.range(from..).next() else { break };
            from = ticket + 1;
            match self.standing(ticket, cost, id, now, &room_left) {
                Standing::Ready => {}
                Standing::BlockedBy(other) => {
                    self.park(ticket, id, other, now, wakes);
                    others.extend((!others.contains(&other)).then_some(other));
                    continue;
                }
                Standing::Reserves { probe_at, until } => {
                    // If it waits for an answer and not for a time, that answer has to find it in
                    // the queue.
                    self.unpark(ticket);
                    self.wake_at(ticket, probe_at, now, wakes);
                    self.note_reservation(ticket, id, until);
                    room_left.reserve(cost);
                    reserved_until = Some(reserved_until.map_or(until, |other: Duration| other.min(until)));
                    continue;
                }
            }
            if !room_left.fits(cost) {
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
                others.extend(returned); // once more, if they were advanced without it
                continue;
            }
            room_left.take(self.most(ticket, id));
            self.let_ask(ticket, wakes);
        }
        // Callers ahead of the passed caller in its other queues may become blocked there. Then
        // they no longer block it.
        if let Some((ticket, at)) = passed.filter(|_| self.queues[&id].waiting.len() > 1) {
            self.wake_at(ticket, at, now, wakes);
        }
    }

    /// The most that a caller takes of a counter.
    fn most(&self, ticket: u64, id: QueueId) -> u64 {
        let counters = self.callers.get(&ticket).into_iter().flat_map(|caller| &caller.counters);
        counters.filter(|counter| counter.id == id).map(|counter| counter.most).sum()
    }

    pub(super) fn let_ask(&mut self, ticket: u64, wakes: &mut Wakes) {
        let Some(caller) = self.callers.get_mut(&ticket) else { return };
        (caller.is_asking, caller.wake_at) = (true, None);
        wakes.push(Arc::clone(&caller.turn));
        let counted = caller.cost_in_queue(1);
        for counter in &mut caller.counters {
            counter.changes = self.shared.changes(counter.id.counter).load(Ordering::Acquire);
            counter.reserved_until = None;
            if let Some(queue) = self.queues.get_mut(&counter.id) {
                counter.return_to(queue, ticket, &self.shared);
                queue.waiting.remove(&ticket);
                queue.departed += counted * u128::from(counter.cost);
                queue.askers += 1;
                queue.asking_cost += counter.most;
            }
        }
    }

    /// Parks a caller outside a queue while another counter has no room. The caller stays in the
    /// queue of that counter.
    pub(super) fn park(&mut self, ticket: u64, id: QueueId, other: QueueId, now: Duration, wakes: &mut Wakes) {
        let Some(caller) = self.callers.get_mut(&ticket) else { return };
        let mut look_at = None;
        for counter in &mut caller.counters {
            let Some(queue) = self.queues.get_mut(&counter.id) else { continue };
            if counter.id == id && queue.waiting.remove(&ticket).is_some() {
                (queue.parked, counter.is_parked) = (queue.parked + 1, true);
                self.shared.busy(id.counter).fetch_sub(1, Ordering::Release);
            } else if counter.id == other {
                counter.return_to(queue, ticket, &self.shared);
                let is_first = queue.waiting.first_key_value().is_some_and(|(first, _)| *first == ticket);
                look_at = queue.next_probe(now).filter(|_| is_first);
            }
        }
        if let Some(at) = look_at {
            self.wake_at(ticket, at, now, wakes);
        }
    }

    /// Puts a caller back into all of its queues.
    pub(super) fn unpark(&mut self, ticket: u64) -> SmallVec<[QueueId; 1]> {
        let mut returned = SmallVec::new();
        let Some(caller) = self.callers.get_mut(&ticket) else { return returned };
        for counter in caller.counters.iter_mut().filter(|counter| counter.is_parked) {
            if let Some(queue) = self.queues.get_mut(&counter.id) {
                counter.return_to(queue, ticket, &self.shared);
                returned.push(counter.id);
            }
        }
        returned
    }

    /// Puts a caller who gets room at `ready_at` back into the queues that have to reserve its cost
    /// now. Returns the time to do so for the next queue.
    pub(super) fn unpark_in_time(
        &mut self,
        ticket: u64,
        ready_at: Duration,
        now: Duration,
        others: &mut SmallVec<[QueueId; 1]>,
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
            counter.return_to(queue, ticket, &self.shared);
            others.extend((!others.contains(&counter.id)).then_some(counter.id));
        }
        next
    }

    /// Sets the time of a caller's next look, unless it has an earlier one.
    pub(super) fn wake_at(&mut self, ticket: u64, at: Duration, now: Duration, wakes: &mut Wakes) {
        if let Some(caller) = self.callers.get_mut(&ticket)
            && at > now
            && caller.wake_at.is_none_or(|before| at < before)
        {
            caller.wake_at = Some(at);
            wakes.push(Arc::clone(&caller.turn));
        }
    }

    /// The end of the reservation of a caller's cost. A reservation lasts one period, or
    /// as many as the cost needs. For as long after it there is none.
    pub(super) fn reserved_until(&self, ticket: u64, id: QueueId, now: Duration, period: Duration) -> Option<Duration> {
        let counter = self.callers.get(&ticket)?.counters.iter().find(|counter| counter.id == id)?;
        match counter.reserved_until {
            Some(until) if now < until => Some(until),
            Some(until) if now < until.saturating_add(period) => None,
            _ => Some(now.saturating_add(period)),
        }
    }

    pub(super) fn note_reservation(&mut self, ticket: u64, id: QueueId, until: Duration) {
        let Some(caller) = self.callers.get_mut(&ticket) else { return };
        for counter in caller.counters.iter_mut().filter(|counter| counter.id == id) {
            counter.reserved_until = Some(until);
        }
    }

    /// The standing of a caller in this queue, after the callers before it have left `room_left`.
    pub(super) fn standing(
        &self,
        ticket: u64,
        cost: u64,
        id: QueueId,
        now: Duration,
        room_left: &RoomLeft,
    ) -> Standing {
        let (Some(caller), Some(queue)) = (self.callers.get(&ticket), self.queues.get(&id)) else {
            return Standing::Ready;
        };
        let Some((ready_at, other, probe_at)) = self.no_room_elsewhere(ticket, id, now) else { return Standing::Ready };
        let period = queue.time_for(cost);
        let is_late = ready_at > now.saturating_add(period);
        if is_late && ready_at > queue.ready_at {
            return Standing::BlockedBy(other);
        }
        // This counter has room last, or has none for any caller.
        if !room_left.fits(cost) && (room_left.room == 0 || ready_at <= queue.ready_at) {
            return Standing::Ready;
        }
        // With others ahead of it there, its turn depends on them, and not on time alone.
        let is_behind = || caller.counters.iter().any(|other| other.id != id && self.is_behind(other.id, ticket, now));
        // While all calls are admitted, none overtakes it.
        let is_scarce = queue.refused_at.is_some_and(|at| now < at.saturating_add(period.saturating_mul(2)));
        if is_late || !is_scarce || room_left.reservations >= MOST_RESERVATIONS || is_behind() {
            return Standing::BlockedBy(other);
        }
        match self.reserved_until(ticket, id, now, period) {
            Some(until) => Standing::Reserves { probe_at, until },
            None => Standing::BlockedBy(other),
        }
    }

    /// A caller's other counters that have no room for it now. Returns the time when the last of
    /// them has room, the id of that one, and the latest probe time of all.
    pub(super) fn no_room_elsewhere(
        &self,
        ticket: u64,
        id: QueueId,
        now: Duration,
    ) -> Option<(Duration, QueueId, Duration)> {
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

    /// True if callers with earlier tickets wait for the counter. Callers whose other counters have
    /// no room for longer do not count.
    pub(super) fn is_behind(&self, id: QueueId, ticket: u64, now: Duration) -> bool {
        let Some(queue) = self.queues.get(&id) else { return false };
        let is_late = |other: u64, cost: u64| {
            let then = now.saturating_add(queue.time_for(cost));
            self.no_room_elsewhere(other, id, now).is_some_and(|(ready_at, ..)| ready_at > then)
        };
        queue.waiting.range(..ticket).any(|(other, cost)| !is_late(*other, *cost))
    }

    /// True if a caller's other counters have room for it, and for the callers before it.
    pub(super) fn may_ask_elsewhere(&self, ticket: u64, id: QueueId, now: Duration) -> bool {
        let others = self.callers[&ticket].counters.iter().filter(|counter| counter.id != id);
        others.into_iter().all(|counter| self.has_room(counter.id, ticket, counter.cost, now))
    }

    /// True if a counter has room for a caller, and for the callers before it.
    pub(super) fn has_room(&self, id: QueueId, ticket: u64, cost: u64, now: Duration) -> bool {
        let Some(queue) = self.queues.get(&id) else { return true };
        let mut room_left = queue.room_left(now, self.round_trip);
        for (&before, &cost) in queue.waiting.range(..ticket) {
            match self.standing(before, cost, id, now, &room_left) {
                Standing::BlockedBy(_) => {}
                Standing::Reserves { .. } => room_left.reserve(cost),
                Standing::Ready if room_left.fits(cost) => room_left.take(self.most(before, id)),
                Standing::Ready => return false,
            }
        }
        room_left.fits(cost)
    }
}
