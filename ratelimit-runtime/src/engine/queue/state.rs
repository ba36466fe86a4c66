//! The queues of all counters: who may ask, who is parked, and for whom a cost is reserved.

use std::{
    collections::{BTreeMap, HashMap},
    hash::BuildHasherDefault,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use smallvec::SmallVec;

use super::{
    answer::StoreAnswer,
    wait_queue::{MOST_RESERVATIONS, RoomLeft, WaitQueue},
};
use crate::{
    RequestPerMinute,
    counter::{CounterId, IdentityHasher},
    sync::{AtomicU64, AtomicUsize, Notify},
};

pub(super) const SLOTS: usize = if cfg!(all(test, model_check)) { 2 } else { 64 };

/// What is read of the queues without their lock, by the low bits of a counter's id.
pub(super) struct SharedCounts {
    /// Callers in queues, without those that are parked.
    busy: [AtomicUsize; SLOTS],
    /// Refunds, resets and settlements. A refusal from before one of them says nothing about the time after it.
    changes: [AtomicU64; SLOTS],
}

impl SharedCounts {
    pub(super) fn new() -> Self {
        Self { busy: [(); SLOTS].map(|()| AtomicUsize::new(0)), changes: [(); SLOTS].map(|()| AtomicU64::new(0)) }
    }

    pub(super) fn busy(&self, id: CounterId) -> &AtomicUsize {
        &self.busy[slot(id)]
    }

    #[cfg(all(test, not(model_check)))]
    pub(super) fn all_busy(&self) -> impl Iterator<Item = &AtomicUsize> {
        self.busy.iter()
    }

    pub(super) fn changes(&self, id: CounterId) -> &AtomicU64 {
        &self.changes[slot(id)]
    }
}

#[allow(clippy::cast_possible_truncation)] // the low bits are what is wanted
pub(super) fn slot(id: CounterId) -> usize {
    id.0 as usize % SLOTS
}

pub(super) struct WaitState {
    pub(super) shared: Arc<SharedCounts>,
    pub(super) queues: HashMap<CounterId, WaitQueue, BuildHasherDefault<IdentityHasher>>,
    pub(super) callers: BTreeMap<u64, WaitingCaller>,
    /// The mean time that a question took of late.
    pub(super) round_trip: Option<Duration>,
    pub(super) is_closed: bool,
}

/// A caller in the queues of its counters. Its ticket tells when it came.
pub(super) struct WaitingCaller {
    pub(super) counters: SmallVec<[WaitingFor; 1]>,
    pub(super) turn: Arc<Notify>,
    /// It has been let ask, and its answer is not here yet.
    pub(super) is_asking: bool,
    /// When to look at the queues again. Nothing: when notified.
    pub(super) wake_at: Option<Duration>,
}

pub(super) struct WaitingFor {
    pub(super) id: CounterId,
    pub(super) cost: u64,
    /// [`WaitQueues::changes`] when it was let ask.
    pub(super) changes: u64,
    /// [`WaitQueue::joined`] when it joined behind all others.
    pub(super) joined_before: u128,
    /// Until when its cost is or was reserved.
    pub(super) reserved_until: Option<Duration>,
    /// It stands outside this queue, as another of its counters has no room for longer. Never so in all of its queues.
    pub(super) is_parked: bool,
}

/// How a caller stands in a queue, by how soon it gets what it needs of its other counters.
#[derive(Clone, Copy)]
pub(super) enum Standing {
    /// They have room now, as far as is known, or before this one has.
    Ready,
    /// They have room by then, within one period of this counter. Until `until` its cost is reserved here.
    Reserves { ready_at: Duration, until: Duration },
    /// It is held up by this other one.
    HeldUpBy(CounterId),
}

/// Callers to wake when the lock is free again: their wakers may run any code.
pub(super) type Wakes = SmallVec<[Arc<Notify>; 4]>;

impl WaitingFor {
    /// Has the caller stand in the queue of this counter.
    pub(super) fn return_to(&mut self, queue: &mut WaitQueue, ticket: u64, shared: &SharedCounts) {
        if std::mem::take(&mut self.is_parked) {
            shared.busy(self.id).fetch_add(1, Ordering::Release);
            queue.parked -= 1;
            queue.waiting.insert(ticket, self.cost);
        }
    }
}

impl WaitingCaller {
    pub(super) fn ids(&self) -> SmallVec<[CounterId; 1]> {
        self.counters.iter().map(|counter| counter.id).collect()
    }

    /// What the caller adds to [`WaitQueue::joined`] for a cost.
    pub(super) fn cost_in_line(&self, cost: u64) -> u128 {
        if self.counters.len() == 1 { cost.into() } else { 0 }
    }
}

impl WaitState {
    pub(super) fn new(shared: Arc<SharedCounts>) -> Self {
        Self { shared, queues: HashMap::default(), callers: BTreeMap::new(), round_trip: None, is_closed: false }
    }

    /// Adds a caller who is not asking to its queues.
    pub(super) fn enqueue(&mut self, ticket: u64) {
        let Some(caller) = self.callers.get(&ticket) else { return };
        for WaitingFor { id, cost, .. } in &caller.counters {
            if let Some(queue) = self.queues.get_mut(id) {
                queue.waiting.insert(ticket, *cost);
                queue.joined += caller.cost_in_line(*cost);
            }
        }
    }

    pub(super) fn stop_asking(&mut self, ticket: u64) {
        let Some(caller) = self.callers.get_mut(&ticket) else { return };
        if !std::mem::take(&mut caller.is_asking) {
            return;
        }
        for WaitingFor { id, cost, .. } in &caller.counters {
            if let Some(queue) = self.queues.get_mut(id) {
                queue.askers -= 1;
                queue.asking_cost -= cost;
            }
        }
    }

    /// Removes a caller, and queues that have none left. Returns its counters.
    pub(super) fn remove(&mut self, ticket: u64) -> SmallVec<[CounterId; 1]> {
        self.stop_asking(ticket);
        let Some(caller) = self.callers.remove(&ticket) else { return SmallVec::new() };
        for WaitingFor { id, is_parked, .. } in &caller.counters {
            let Some(queue) = self.queues.get_mut(id) else { continue };
            queue.parked -= usize::from(*is_parked);
            self.shared.busy(*id).fetch_sub(usize::from(!is_parked), Ordering::Release);
            if let Some(cost) = queue.waiting.remove(&ticket) {
                // Those ahead of the last one wait no shorter because it leaves.
                if queue.waiting.last_key_value().is_none_or(|(last, _)| *last < ticket) {
                    queue.joined -= caller.cost_in_line(cost);
                } else {
                    queue.departed += caller.cost_in_line(cost);
                }
                // The wait was that of a larger cost than the next one's.
                let next = queue.waiting.first_key_value().map_or(u64::MAX, |(_, cost)| *cost);
                if cost == queue.refused_cost && next < cost {
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
    pub(super) fn learn(
        &mut self,
        answer: &StoreAnswer,
        has_changed: impl Fn(CounterId) -> bool,
        now: Duration,
        is_shared: bool,
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
            queue.latest_refusal = Some(refusal.clone());
        }
    }

    /// Lets callers ask for whom there is room now, and says of the others when to look again.
    pub(super) fn advance(&mut self, ids: SmallVec<[CounterId; 1]>, now: Duration, wakes: &mut Wakes) {
        let (mut ids, mut next) = (ids, 0);
        while let Some(id) = ids.get(next) {
            self.advance_one(*id, now, wakes, &mut ids);
            next += 1;
        }
    }

    /// The same for one queue. `others`: queues to look at, too.
    pub(super) fn advance_one(
        &mut self,
        id: CounterId,
        now: Duration,
        wakes: &mut Wakes,
        others: &mut SmallVec<[CounterId; 1]>,
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
                others.extend(returned); // once more, if they have been looked at without it
                continue;
            }
            self.let_ask(ticket, wakes);
            room_left.take(cost);
        }
        // Those ahead of a caller in its other queues may be held up meanwhile, and then hold it up no longer.
        if let Some((ticket, at)) = passed.filter(|_| self.queues[&id].waiting.len() > 1) {
            self.wake_at(ticket, at, now, wakes);
        }
    }

    pub(super) fn let_ask(&mut self, ticket: u64, wakes: &mut Wakes) {
        let Some(caller) = self.callers.get_mut(&ticket) else { return };
        (caller.is_asking, caller.wake_at) = (true, None);
        wakes.push(Arc::clone(&caller.turn));
        let is_counted = caller.counters.len() == 1;
        for counter in &mut caller.counters {
            counter.changes = self.shared.changes(counter.id).load(Ordering::Acquire);
            counter.reserved_until = None;
            if let Some(queue) = self.queues.get_mut(&counter.id) {
                counter.return_to(queue, ticket, &self.shared);
                queue.waiting.remove(&ticket);
                queue.departed += if is_counted { counter.cost.into() } else { 0 };
                queue.askers += 1;
                queue.asking_cost += counter.cost;
            }
        }
    }

    /// Has a caller stand outside a queue for as long as another counter, in whose queue it stands, has no room.
    pub(super) fn park(&mut self, ticket: u64, id: CounterId, other: CounterId, now: Duration, wakes: &mut Wakes) {
        let Some(caller) = self.callers.get_mut(&ticket) else { return };
        let mut look_at = None;
        for counter in &mut caller.counters {
            let Some(queue) = self.queues.get_mut(&counter.id) else { continue };
            if counter.id == id && queue.waiting.remove(&ticket).is_some() {
                (queue.parked, counter.is_parked) = (queue.parked + 1, true);
                self.shared.busy(id).fetch_sub(1, Ordering::Release);
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

    /// Has a caller stand in all of its queues again.
    pub(super) fn unpark(&mut self, ticket: u64) -> SmallVec<[CounterId; 1]> {
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

    /// Has a caller who gets room at `ready_at` stand in those queues again where its cost is to be reserved now. Returns
    /// when to do so with the next one.
    pub(super) fn unpark_in_time(
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
            counter.return_to(queue, ticket, &self.shared);
            others.extend((!others.contains(&counter.id)).then_some(counter.id));
        }
        next
    }

    /// Has a caller look again then, if not before.
    pub(super) fn wake_at(&mut self, ticket: u64, at: Duration, now: Duration, wakes: &mut Wakes) {
        if let Some(caller) = self.callers.get_mut(&ticket)
            && at > now
            && caller.wake_at.is_none_or(|before| at < before)
        {
            caller.wake_at = Some(at);
            wakes.push(Arc::clone(&caller.turn));
        }
    }

    /// Until when a caller's cost is reserved: for one period, and after each such period not for the next one.
    pub(super) fn reserved_until(
        &self,
        ticket: u64,
        id: CounterId,
        now: Duration,
        period: Duration,
    ) -> Option<Duration> {
        let counter = self.callers.get(&ticket)?.counters.iter().find(|counter| counter.id == id)?;
        match counter.reserved_until {
            Some(until) if now < until => Some(until),
            Some(until) if now < until.saturating_add(period) => None,
            _ => Some(now.saturating_add(period)),
        }
    }

    pub(super) fn note_reservation(&mut self, ticket: u64, id: CounterId, until: Duration) {
        let Some(caller) = self.callers.get_mut(&ticket) else { return };
        for counter in caller.counters.iter_mut().filter(|counter| counter.id == id) {
            counter.reserved_until = Some(until);
        }
    }

    /// How a caller stands in this queue, where the callers before it leave so much.
    pub(super) fn standing(
        &self,
        ticket: u64,
        cost: u64,
        id: CounterId,
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
            return Standing::HeldUpBy(other);
        }
        // This counter has room last, or for nobody.
        if !room_left.fits(cost) && (room_left.room == 0 || ready_at <= queue.ready_at) {
            return Standing::Ready;
        }
        // Where others are ahead of it, its turn depends on them and not on time alone.
        let is_behind = || caller.counters.iter().any(|other| other.id != id && self.is_behind(other.id, ticket, now));
        // While all calls are admitted, none overtakes it.
        let is_scarce = queue.refused_at.is_some_and(|at| now < at.saturating_add(period.saturating_mul(2)));
        if is_late || !is_scarce || room_left.reservations >= MOST_RESERVATIONS || is_behind() {
            return Standing::HeldUpBy(other);
        }
        match self.reserved_until(ticket, id, now, period) {
            Some(until) => Standing::Reserves { ready_at: probe_at, until },
            None => Standing::HeldUpBy(other),
        }
    }

    /// Of a caller's other counters that have no room for it, the one that has room last: when that is, which one it is, and when
    /// the last probe of them is.
    pub(super) fn no_room_elsewhere(
        &self,
        ticket: u64,
        id: CounterId,
        now: Duration,
    ) -> Option<(Duration, CounterId, Duration)> {
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
    pub(super) fn is_behind(&self, id: CounterId, ticket: u64, now: Duration) -> bool {
        let Some(queue) = self.queues.get(&id) else { return false };
        let is_late = |other: u64, cost: u64| {
            let then = now.saturating_add(queue.time_for(cost));
            self.no_room_elsewhere(other, id, now).is_some_and(|(ready_at, ..)| ready_at > then)
        };
        queue.waiting.range(..ticket).any(|(other, cost)| !is_late(*other, *cost))
    }

    /// A caller's other counters have room for it, and for those who came before.
    pub(super) fn may_ask_elsewhere(&self, ticket: u64, id: CounterId, now: Duration) -> bool {
        let others = self.callers[&ticket].counters.iter().filter(|counter| counter.id != id);
        others.into_iter().all(|counter| self.has_room(counter.id, ticket, counter.cost, now))
    }

    /// A counter has room for a caller, and for those who came before.
    pub(super) fn has_room(&self, id: CounterId, ticket: u64, cost: u64, now: Duration) -> bool {
        let Some(queue) = self.queues.get(&id) else { return true };
        let mut room_left = queue.room_left(now, self.round_trip);
        for (&before, &cost) in queue.waiting.range(..ticket) {
            match self.standing(before, cost, id, now, &room_left) {
                Standing::HeldUpBy(_) => {}
                Standing::Reserves { .. } => room_left.reserve(cost),
                Standing::Ready if room_left.fits(cost) => room_left.take(cost),
                Standing::Ready => return false,
            }
        }
        room_left.fits(cost)
    }

    /// The latest refusal of the counter that a caller waits for longest, when its turn comes there if those ahead stay, and
    /// whether it may come sooner. The time is never too late by a counter that this process alone uses.
    pub(super) fn estimate(&self, ticket: u64, now: Duration) -> Option<(RequestPerMinute, Duration, bool)> {
        let caller = self.callers.get(&ticket)?;
        let estimates = caller.counters.iter().filter_map(|counter| {
            let queue = self.queues.get(&counter.id)?;
            let ahead = u64::try_from(counter.joined_before.saturating_sub(queue.departed)).unwrap_or(u64::MAX);
            let at = queue.turn_at(ahead, counter.cost, now, self.round_trip);
            Some((queue.latest_refusal.clone()?, at, queue.may_free_early))
        });
        estimates.max_by_key(|(_, at, _)| *at)
    }
}
