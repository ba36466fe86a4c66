//! The time of a caller's turn, as far as it is known, the time when the caller gives up, and outages of the store
//! meanwhile.

use std::time::Duration;

use super::{
    state::{LOOK_AGAIN, WaitState, WaitingFor},
    wait_queue::WaitQueue,
};
use crate::RequestPerMinute;

impl WaitState {
    /// Notes whether callers ahead of a caller wait for the store. Returns the start of the present outage.
    /// `waits`: this caller would wait, too.
    pub(super) fn note_outage(&mut self, ticket: u64, waits: bool, now: Duration) -> Option<Duration> {
        let caller = self.callers.get_mut(&ticket)?;
        let queues = &self.queues;
        let is_away = |counter: &WaitingFor| {
            !counter.is_parked && queues.get(&counter.id).is_some_and(|queue| queue.store_error.is_some())
        };
        if waits && caller.counters.iter().any(is_away) {
            return Some(*caller.outage.since.get_or_insert(now));
        }
        caller.end_outage(now);
        None
    }

    /// An estimate for the counter that a caller waits for longest: the latest refusal, and the time of the
    /// caller's turn if all callers ahead of it stay. For a counter that only this process uses, the time
    /// is never too late.
    pub(super) fn estimate(&self, ticket: u64, now: Duration) -> Option<(RequestPerMinute, Duration)> {
        let caller = self.callers.get(&ticket)?;
        let estimates = caller.counters.iter().filter_map(|counter| {
            let queue = self.queues.get(&counter.id)?;
            // Of the latest caller who was refused, so perhaps with another cost.
            let refusal = queue.latest_refusal.clone()?;
            Some((refusal.with_cost(counter.cost), self.turn_at(counter, now)?))
        });
        estimates.max_by_key(|(_, at)| *at)
    }

    /// The time of a caller's turn at one counter, if all callers ahead of it stay.
    fn turn_at(&self, counter: &WaitingFor, now: Duration) -> Option<Duration> {
        let queue = self.queues.get(&counter.id)?;
        let ahead = u64::try_from(counter.joined_before.saturating_sub(queue.departed)).unwrap_or(u64::MAX);
        Some(queue.turn_at(ahead, counter.cost, now, self.round_trip))
    }

    /// True if a caller's turn comes after its longest wait for a counter, and certainly not earlier.
    pub(super) fn is_known_to_be_too_late(&self, ticket: u64, now: Duration) -> bool {
        let Some(caller) = self.callers.get(&ticket) else { return false };
        caller.counters.iter().any(|counter| {
            // After a change, no caller has asked yet.
            let has_changed = |queue: &WaitQueue| queue.probe_at.is_zero() && !queue.ready_at.is_zero();
            let is_certain =
                |queue: &WaitQueue| queue.latest_refusal.is_some() && !queue.may_free_early && !has_changed(queue);
            self.queues.get(&counter.id).is_some_and(is_certain)
                && counter.gives_up_at.is_some_and(|end| self.turn_at(counter, now).is_some_and(|at| at > end))
        })
    }

    /// Lets a caller wait for turns that come less than a millisecond after its longest wait: the wait for them was
    /// told in whole milliseconds, rounded up.
    pub(super) fn wait_for_rounded_turns(&mut self, ticket: u64) {
        let Some(caller) = self.callers.get_mut(&ticket) else { return };
        for counter in &mut caller.counters {
            let turn_at = self.queues.get(&counter.id).map(|queue| queue.ready_at);
            if let (Some(end), Some(turn_at)) = (&mut counter.gives_up_at, turn_at)
                && turn_at.saturating_sub(*end) < Duration::from_millis(1)
            {
                *end = turn_at.max(*end);
            }
        }
    }

    /// The time when a caller gives up, or when that has to be looked at again. It waits for a counter as long as
    /// it may, and afterwards only for its other counters.
    pub(super) fn gives_up_at(&self, ticket: u64, now: Duration) -> Option<Duration> {
        let counters = &self.callers.get(&ticket)?.counters;
        let mut next = None;
        for counter in counters {
            let Some(end) = counter.gives_up_at else { continue };
            let is_last = || counters.iter().all(|other| other.gives_up_at.is_some_and(|end| end <= now));
            // The answer to a caller who asks now is not known.
            let is_asked = |queue: &WaitQueue| queue.askers > 0 && now >= queue.ready_at;
            let may_have_room = || {
                self.queues.get(&counter.id).is_some_and(is_asked)
                    || self.has_room(counter.id, ticket, counter.cost, now)
            };
            let at = match end <= now {
                false => end,
                true if is_last() || !may_have_room() => return Some(end),
                true => now.saturating_add(LOOK_AGAIN),
            };
            next = Some(next.map_or(at, |next: Duration| next.min(at)));
        }
        next
    }
}
