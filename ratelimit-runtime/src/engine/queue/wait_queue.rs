//! The queue of one counter and one limit, and the counter's state as known from answers.

use std::{collections::BTreeMap, time::Duration};

use super::answer::CounterAnswer;
use crate::{
    RequestPerMinute, Rule,
    algorithm::{CacheableDenials, Recovery, capabilities, recovery},
    store::StoreError,
};

/// The maximum number of callers with a reservation at one counter. Each answer looks at all of
/// them.
pub(super) const MOST_RESERVATIONS: usize = 16;

/// Time until a probe, if other callers may release a hold. If other processes may settle a charge by a
/// refund, it is the shortest time: as long as the first refusal is ago, up to [`PROBE_SETTLED`].
const PROBE_HELD: Duration = Duration::from_millis(50);
/// Longest time until a probe, if other processes may settle a charge by a refund. With a longer one, a process that
/// has just been served overtakes one that has waited for long; see `fairness.rs`.
const PROBE_SETTLED: Duration = Duration::from_millis(250);
/// Time until a probe, if other processes may make room by refunds and resets; a tenth of the period if
/// that is longer. And while the store is away, until it is asked again.
const PROBE_OTHERS: Duration = Duration::from_secs(1);

/// Shortest time until a probe after a refusal without a wait, as a custom store may give. Without
/// this, the store would be asked in an endless loop.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// The callers of one counter with one limit, and the counter's state as known from answers.
pub(super) struct WaitQueue {
    pub(super) rule: Rule,
    /// Costs by ticket, in the order of arrival. Without callers who are asking or parked.
    pub(super) waiting: BTreeMap<u64, u64>,
    pub(super) parked: usize,
    pub(super) askers: usize,
    /// The most that all askers together may take.
    pub(super) asking_cost: u64,
    /// The time the request of the latest answer was sent, and the time the answer came.
    pub(super) sent_at: Duration,
    pub(super) answered_at: Option<Duration>,
    /// The largest cost that fitted then.
    pub(super) remaining: u64,
    /// The refused cost, or 0, and the time it fits if nothing else changes. That time counts from
    /// the sending of the request, so that the next request arrives just then.
    pub(super) refused_cost: u64,
    pub(super) ready_at: Duration,
    /// `ready_at` counted from the arrival of the answer. Callers get this time.
    pub(super) reported_ready_at: Duration,
    /// The time of the latest refusal.
    pub(super) refused_at: Option<Duration>,
    /// The time of the next probe. Before `ready_at` where room may come earlier.
    pub(super) probe_at: Duration,
    /// See [`Charge::may_free_early`](crate::store::Charge::may_free_early).
    pub(super) may_free_early: bool,
    /// A charge of some caller [settles](crate::store::Charge::settles), so others may do so, too.
    pub(super) settles: bool,
    /// The time of the first refusal since the latest cost that fitted.
    refused_since: Option<Duration>,
    /// The share of the refill that this process gets, in 1/256. It decreases after a refusal, and
    /// increases after a round trip without one. It is above 1 if the round trip is longer than it
    /// seems.
    pub(super) refill_share: u32,
    pub(super) share_changed_at: Duration,
    /// The total cost of callers of this counter alone: of all that ever joined, and of those that
    /// no longer wait. Callers of several counters do not count, as they may block no other.
    pub(super) joined: u128,
    pub(super) departed: u128,
    pub(super) latest_refusal: Option<RequestPerMinute>,
    /// Askers who wait for the store, which could not decide.
    pub(super) away: usize,
    /// Why the store could not decide. `None` once it has decided and no asker is away, or no caller asks.
    pub(super) store_error: Option<StoreError>,
}

const WHOLE: u32 = 256;
const LARGEST_SHARE: u32 = 4 * WHOLE;

/// The room that a queue leaves for the next caller.
pub(super) struct RoomLeft {
    pub(super) room: u64,
    /// See [`WaitQueue::probes_below`].
    pub(super) probes_below: u64,
    /// The room before any caller took a part.
    pub(super) known: u64,
    pub(super) limit: u64,
    pub(super) reserved: u64,
    pub(super) reservations: usize,
}

impl RoomLeft {
    pub(super) fn fits(&self, cost: u64) -> bool {
        let fits_beside = || self.known == 0 && self.reserved.saturating_add(cost) <= self.limit;
        cost <= self.room || cost < self.probes_below && (self.reservations == 0 || fits_beside())
    }

    pub(super) fn take(&mut self, most: u64) {
        self.room = self.room.saturating_sub(most);
        self.probes_below = 0;
    }

    pub(super) fn reserve(&mut self, cost: u64) {
        self.room = self.room.saturating_sub(cost);
        self.reserved = self.reserved.saturating_add(cost);
        self.reservations += 1;
    }
}

impl WaitQueue {
    pub(super) fn new(rule: &Rule) -> Self {
        Self {
            rule: *rule,
            waiting: BTreeMap::new(),
            parked: 0,
            askers: 0,
            asking_cost: 0,
            sent_at: Duration::ZERO,
            answered_at: None,
            remaining: 0,
            refused_cost: 0,
            ready_at: Duration::ZERO,
            reported_ready_at: Duration::ZERO,
            refused_at: None,
            probe_at: Duration::ZERO,
            may_free_early: false,
            settles: false,
            refused_since: None,
            refill_share: WHOLE,
            share_changed_at: Duration::ZERO,
            joined: 0,
            departed: 0,
            latest_refusal: None,
            away: 0,
            store_error: None,
        }
    }

    /// A caller joins whose charge settles.
    pub(super) fn expect_settlements(&mut self, now: Duration, is_shared: bool) {
        if !self.settles && self.refused_since.is_some() {
            self.may_free_early = true;
            self.probe_at = if is_shared { self.probe_at.min(now.saturating_add(PROBE_HELD)) } else { self.probe_at };
        }
        self.settles = true;
    }

    pub(super) fn learn(
        &mut self,
        answer: &CounterAnswer,
        sent_at: Duration,
        now: Duration,
        round_trip: Duration,
        is_shared: bool,
    ) {
        let CounterAnswer { cost, remaining, ready_in, is_held, is_banned, is_local, .. } = *answer;
        if sent_at < self.sent_at {
            // A later request was answered before this one. It may also have been decided before
            // it. In a window the remaining amount only decreases, so the smaller one is used. One
            // too few costs a round trip, and one too many lets another caller overtake.
            let is_window = refilled(&self.rule, self.rule.period()) == 0;
            if is_window && ready_in.is_none() && self.refused_cost == 0 {
                self.remaining = self.remaining.min(remaining);
            }
            return;
        }
        (self.sent_at, self.answered_at) = (sent_at, Some(now));
        let may_be_settled = self.settles && ready_in.is_some() && !is_banned;
        self.may_free_early = is_held || may_be_settled || is_local;
        let Some(ready_in) = ready_in.map(|ready_in| ready_in.max(SHORTEST_WAIT)) else {
            (self.remaining, self.refused_cost, self.refused_since) = (remaining, 0, None);
            (self.ready_at, self.reported_ready_at, self.probe_at) = Default::default();
            // The bucket becomes full while callers wait: more of them could be on the way.
            let largest = if remaining >= self.rule.limit() - self.rule.limit() / 8 {
                LARGEST_SHARE
            } else {
                WHOLE.max(self.refill_share)
            };
            if now.saturating_sub(self.share_changed_at) > round_trip {
                (self.refill_share, self.share_changed_at) = ((self.refill_share + WHOLE / 16).min(largest), now);
            }
            return;
        };
        // A cost may be refused although it fits, while others hold something.
        self.remaining = if remaining < cost { remaining } else { 0 };
        (self.refused_cost, self.refused_at) = (cost, Some(now));
        self.ready_at = sent_at.max(now.saturating_sub(round_trip)).saturating_add(ready_in);
        self.reported_ready_at = now.saturating_add(ready_in);
        let refused_for = now.saturating_sub(*self.refused_since.get_or_insert(now));
        let sooner = match (is_held, is_shared) {
            (true, _) => PROBE_HELD,
            (false, true) if may_be_settled => refused_for.clamp(PROBE_HELD, PROBE_SETTLED),
            _ if is_local => PROBE_OTHERS,
            (false, true) => PROBE_OTHERS.max(self.rule.period() / 10),
            (false, false) => Duration::MAX,
        };
        self.probe_at = self.ready_at.min(now.saturating_add(sooner));
        if now.saturating_sub(self.share_changed_at) > round_trip {
            (self.refill_share, self.share_changed_at) = ((self.refill_share - self.refill_share / 4).max(1), now);
        }
    }

    /// The cost that fits when a request that is sent now arrives. That is the amount that
    /// remained, plus the refill since then and within a round trip, less the cost of the askers.
    pub(super) fn room(&self, now: Duration, round_trip: Option<Duration>) -> u64 {
        let remained = self.remaining.min(self.rule.limit());
        let Some(answered_at) = self.answered_at.filter(|_| now >= self.ready_at) else {
            return remained.saturating_sub(self.asking_cost);
        };
        let share = |refilled: u64| refilled.saturating_mul(self.refill_share.into()) / u64::from(WHOLE);
        let since = share(refilled(&self.rule, now.saturating_sub(answered_at)));
        let meanwhile = share(refilled(&self.rule, round_trip.unwrap_or_default()));
        remained.saturating_add(since).min(self.rule.limit()).saturating_add(meanwhile).saturating_sub(self.asking_cost)
    }

    pub(super) fn room_left(&self, now: Duration, round_trip: Option<Duration>) -> RoomLeft {
        let (room, probes_below) = (self.room(now, round_trip), self.probes_below(now));
        RoomLeft { room, probes_below, known: room, limit: self.rule.limit(), reserved: 0, reservations: 0 }
    }

    /// True if a caller has to wait here, for room or for the first caller, who may need more.
    pub(super) fn has_no_room_for(&self, ticket: u64, cost: u64, now: Duration, round_trip: Option<Duration>) -> bool {
        let first = self.waiting.first_key_value().filter(|(first, _)| **first < ticket);
        let needed = first.map_or(0, |(_, cost)| *cost).max(cost);
        needed > self.room(now, round_trip) && needed >= self.probes_below(now)
    }

    /// The time until a cost has room, if others take none. It is one period, or several if a burst
    /// is larger than the count.
    pub(super) fn time_for(&self, cost: u64) -> Duration {
        let periods = cost.div_ceil(self.rule.count().max(1)).max(1);
        self.rule.period().saturating_mul(u32::try_from(periods).unwrap_or(u32::MAX))
    }

    /// A caller whose cost is below this may ask without room: a probe.
    fn probes_below(&self, now: Duration) -> u64 {
        match self.askers {
            0 if now >= self.probe_at => u64::MAX,
            0 => self.unknown_below(),
            _ => 0,
        }
    }

    /// The latest refusal tells nothing about costs below this one: they may fit earlier. In a fixed window, all
    /// costs that do not fit have the same wait.
    fn unknown_below(&self) -> u64 {
        match capabilities(self.rule.algorithm()).denials {
            CacheableDenials::CostOfOne => self.refused_cost,
            CacheableDenials::AnyCost => 0,
        }
    }

    /// The time of the next probe, if it is still to come.
    pub(super) fn next_probe(&self, now: Duration) -> Option<Duration> {
        (self.askers == 0 && now < self.probe_at).then_some(self.probe_at)
    }

    /// The earliest time when a cost fits behind others.
    pub(super) fn turn_at(&self, ahead: u64, cost: u64, now: Duration, round_trip: Option<Duration>) -> Duration {
        let (needed, room) = (ahead.saturating_add(cost), self.room(now, round_trip));
        if needed <= room || needed < self.probes_below(now).max(self.unknown_below()) {
            return now;
        }
        let is_known_to_be_full = self.ready_at > Duration::ZERO;
        let (from, fits) = if is_known_to_be_full { (self.reported_ready_at, self.refused_cost) } else { (now, room) };
        let count = self.rule.count().max(1);
        let periods = |full: u64| self.rule.period().saturating_mul(u32::try_from(full).unwrap_or(u32::MAX));
        let then = match recovery(&self.rule) {
            Recovery::Even => {
                let missing = u128::from(needed.saturating_sub(fits));
                let nanos = missing.saturating_mul(self.rule.period().as_nanos()) / u128::from(count);
                Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
            }
            // All of the count may be free at `ready_at`.
            Recovery::Whole if is_known_to_be_full => periods((needed - 1) / count),
            Recovery::Whole => periods((needed - room - 1) / count),
            Recovery::Lumps => periods((needed - 1) / count.max(self.rule.limit()).saturating_mul(2)),
            Recovery::Released => Duration::ZERO,
        };
        now.max(from.saturating_add(then))
    }
}

/// The amount that refills evenly within a time. 0 for windows and logs, whose room returns as it
/// was used.
fn refilled(rule: &Rule, time: Duration) -> u64 {
    if recovery(rule) != Recovery::Even {
        return 0;
    }
    let refilled = time.as_nanos().saturating_mul(rule.count().into()) / rule.period().as_nanos().max(1);
    u64::try_from(refilled).unwrap_or(u64::MAX)
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use super::*;
    use crate::{Algorithm, CounterName, Key, engine::queue::QueueId, store::Charge};

    const MS: Duration = Duration::from_millis(1);
    const RULE: Rule = Rule::new("item", 10, Duration::from_secs(3600));

    fn queue_id() -> QueueId {
        QueueId::of(&Charge::new(RULE, CounterName::new("", &RULE, &Key::NONE), 1))
    }

    /// After a caller was admitted, and while another one asks.
    fn with_room_for(remaining: u64) -> WaitQueue {
        let id = queue_id();
        let ready_in = None;
        let answer =
            CounterAnswer { id, cost: 1, remaining, ready_in, is_held: false, is_banned: false, is_local: false };
        let mut queue = WaitQueue::new(&RULE);
        queue.learn(&answer, MS, MS, MS, false);
        queue.askers = 1;
        queue
    }

    #[test]
    fn a_turn_comes_after_the_periods_that_the_callers_ahead_use_up() {
        let queue = with_room_for(3);
        for (ahead, periods) in [(2, 0), (3, 0), (12, 0), (13, 1), (22, 1), (23, 2)] {
            assert_eq!(queue.turn_at(ahead, 1, MS, None), MS + RULE.period() * periods, "behind {ahead}");
        }
    }

    /// A full window opens at the time that its callers get. Other room comes back in lumps of twice the limit.
    #[test]
    fn a_turn_comes_after_whole_periods_also_at_a_full_window_and_in_lumps() {
        let mut full = with_room_for(0);
        (full.ready_at, full.reported_ready_at) = (2 * MS, 3 * MS);
        for (ahead, periods) in [(9, 0), (10, 1), (19, 1), (20, 2)] {
            assert_eq!(full.turn_at(ahead, 1, MS, None), 3 * MS + RULE.period() * periods, "behind {ahead}");
        }
        let mut lumps = with_room_for(0);
        lumps.rule = RULE.with_algorithm(Algorithm::SlidingWindow { buckets: 1, weighted: false });
        for (ahead, periods) in [(19, 0), (20, 1), (39, 1), (40, 2)] {
            assert_eq!(lumps.turn_at(ahead, 1, MS, None), MS + RULE.period() * periods, "behind {ahead}");
        }
    }

    /// It grows beyond the whole only while nearly all of the limit remains.
    #[test]
    fn the_share_of_the_refill_grows_slowly_and_shrinks_by_a_fourth() {
        let id = queue_id();
        let (mut queue, mut now) = (WaitQueue::new(&RULE), Duration::ZERO);
        let refused = Some(RULE.period());
        let answers = [(8, None), (9, None), (0, refused), (0, refused), (0, None)];
        let shares = answers.map(|(remaining, ready_in)| {
            now += 2 * MS;
            let answer =
                CounterAnswer { id, cost: 1, remaining, ready_in, is_held: false, is_banned: false, is_local: false };
            queue.learn(&answer, now, now, MS, false);
            queue.refill_share
        });
        assert_eq!(shares, [256, 272, 204, 153, 169]);
    }

    #[test]
    fn there_is_no_room_behind_a_caller_who_needs_more() {
        let mut queue = with_room_for(2);
        queue.waiting.extend([(1, 3), (2, 1)]);
        assert!(queue.has_no_room_for(1, 3, MS, None));
        assert!(queue.has_no_room_for(2, 1, MS, None));
        queue.waiting.remove(&1);
        assert!(!queue.has_no_room_for(2, 1, MS, None));
    }

    /// The times until the next probe, each asked when the one before is over.
    fn probes(is_shared: bool) -> Vec<Duration> {
        let id = queue_id();
        let ready_in = Some(RULE.period());
        let answer =
            CounterAnswer { id, cost: 1, remaining: 0, ready_in, is_held: false, is_banned: false, is_local: false };
        let (mut queue, mut now) = (WaitQueue::new(&RULE), MS);
        queue.learn(&answer, now, now, MS, is_shared);
        queue.expect_settlements(now, is_shared);
        let mut waits = vec![queue.probe_at.saturating_sub(now)];
        for _ in 0..8 {
            now = queue.probe_at;
            queue.learn(&answer, now, now, MS, is_shared);
            waits.push(queue.probe_at.saturating_sub(now));
        }
        waits
    }

    #[test]
    fn settlements_of_other_processes_are_looked_for_less_and_less_often() {
        let expected = [50, 50, 100, 200, 250, 250, 250, 250, 250].map(|ms| MS * ms);
        assert_eq!(probes(true), expected);
    }

    /// Each settlement of this process wakes the queue.
    #[test]
    fn a_queue_in_memory_looks_for_no_settlements() {
        assert_eq!(probes(false), [RULE.period(); 9]);
    }
}
