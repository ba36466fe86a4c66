//! The hash tables of a shard.

use std::{mem, ptr};

use branches::prefetch_read_data;

use crate::{Rule, algorithm::MemoryState, clock::LockedTime, counter::CounterId, decision::Outcome};

/// States by counter id, in an open-addressing hash table with linear probing.
///
/// With many counters, waiting for memory takes most of the time. A state and its id lie side by
/// side, and nothing else is needed to find it, so a call waits for memory once. A general-purpose
/// table reads its control bytes first.
///
/// The table knows the soonest expiry of each [`SEGMENT`] of slots, so it finds an expired state
/// without a scan of all slots.
pub(super) struct CounterTable<S: MemoryState + Default> {
    slots: Box<[TableSlot<S>]>,
    /// Lower bound of the expiry times in each segment.
    soonest_ms: Box<[u64]>,
    len: usize,
}

/// Why a charge is not decided at once. As wide as a number: in a `Result`, it lies in the place of one. If it were
/// a byte, each number would be put together from two parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum NotAtOnce {
    /// The counter is not in the table.
    NotStored,
    /// None of the cases of [`MemoryState::charge_at_once`].
    Other,
}

#[repr(C)]
struct TableSlot<S: MemoryState> {
    _align: [S::Align; 0],
    /// [`CounterId::NONE`] if the slot is empty.
    id: CounterId,
    state: S,
}

const SEGMENT: usize = 64;

/// Bytes that a processor loads at once.
const CACHE_LINE: usize = 64;

/// With up to so many slots in each of 32 shards, a processor's own caches hold the tables.
const IN_CACHE: usize = 256;

impl<S: MemoryState + Default> TableSlot<S> {
    fn new(id: CounterId, state: S) -> Self {
        Self { _align: [], id, state }
    }

    fn empty() -> Self {
        Self::new(CounterId::NONE, S::default())
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.id == CounterId::NONE
    }
}

impl<S: MemoryState + Default> Default for CounterTable<S> {
    fn default() -> Self {
        Self { slots: Box::default(), soonest_ms: Box::default(), len: 0 }
    }
}

impl<S: MemoryState + Default> CounterTable<S> {
    /// See [`MemoryState::charge_at_once`]. Returns also the time of the decision, in microseconds.
    #[inline(always)]
    #[allow(clippy::inline_always)] // in each call
    pub(super) fn charge_at_once(
        &mut self,
        id: CounterId,
        rule: &Rule,
        cost: u64,
        time: LockedTime<'_>,
    ) -> Result<(Outcome, u64), NotAtOnce> {
        // A reading of the clock waits for all loads in front of it, but not for a prefetch. So in a large table, the
        // access to memory begins before the reading, and goes on meanwhile. In a small one, the search is done first:
        // the loads behind a reading wait for it, too.
        let (state, now) = if self.slots.len() > IN_CACHE {
            self.prefetch(id);
            let now = time.read(S::needs_us());
            (self.state_of(id).ok_or(NotAtOnce::NotStored)?, now)
        } else {
            (self.state_of(id).ok_or(NotAtOnce::NotStored)?, time.read(S::needs_us()))
        };
        let outcome = state.charge_at_once(rule, cost, now).ok_or(NotAtOnce::Other)?;
        Ok((outcome, now.us))
    }

    /// Changes a state. Returns its new expiry if that is sooner than before, and the result of
    /// `act`. `None` if the state is not in the table.
    pub(super) fn update<T>(&mut self, id: CounterId, act: impl FnOnce(&mut S) -> T) -> Option<(Option<u64>, T)> {
        let at = self.find(id)?;
        let state = &mut self.slots[at].state;
        let before = state.expires_at_ms();
        let done = act(state);
        let sooner = Some(state.expires_at_ms()).filter(|after| *after < before);
        if let Some(expires_at_ms) = sooner {
            self.note_expiry(at, expires_at_ms);
        }
        Some((sooner, done))
    }

    /// Adds a state whose id is not in the table.
    pub(super) fn insert(&mut self, id: CounterId, state: S) {
        // At a load of 4/5 a search takes three probes on average, in the same cache line or the
        // next.
        if self.is_full() {
            self.rebuild(slots_for(self.len + 1));
        }
        self.put(TableSlot::new(id, state));
    }

    /// `false` if the id is not in the table.
    pub(super) fn remove(&mut self, id: CounterId) -> bool {
        let at = self.find(id);
        at.map(|at| self.remove_at(at)).is_some()
    }

    fn remove_at(&mut self, mut gap: usize) {
        let mut at = self.next(gap);
        while !self.slots[at].is_empty() {
            let home = self.home(self.slots[at].id);
            // A search ends at a gap, so a state behind one has to move unless its home is behind
            // it too.
            let stays = if gap < at { gap < home && home <= at } else { gap < home || home <= at };
            if !stays {
                self.slots.swap(gap, at);
                self.note_expiry(gap, self.slots[gap].state.expires_at_ms());
                gap = at;
            }
            at = self.next(at);
        }
        self.slots[gap] = TableSlot::empty();
        self.len -= 1;
    }

    /// Slot of an expired state that the search for an id passes.
    pub(super) fn expired_near(&self, id: CounterId, now_ms: u64) -> Option<usize> {
        let mut at = self.home(id);
        while let Some(slot) = self.slots.get(at).filter(|slot| !slot.is_empty()) {
            if slot.state.expires_at_ms() <= now_ms {
                return Some(at);
            }
            at = self.next(at);
        }
        None
    }

    /// Puts another state into the slot that [`CounterTable::expired_near`] has found for its id.
    pub(super) fn replace(&mut self, at: usize, id: CounterId, state: S) {
        self.note_expiry(at, state.expires_at_ms());
        self.slots[at] = TableSlot::new(id, state);
    }

    /// Drops all expired states. Shrinks the table if it has more than one segment, and four times the slots
    /// that it needs for those left, and for `least` if it had as many before.
    pub(super) fn drop_all_expired(&mut self, now_ms: u64, least: usize) {
        let least = least.min(self.len);
        for segment in 0..self.soonest_ms.len() {
            if self.soonest_ms[segment] <= now_ms {
                self.drop_expired_in(segment, now_ms);
            }
        }
        let (slots, needed) = (self.slots.len(), slots_for(self.len.max(least)));
        if slots > SEGMENT && slots >= 4 * needed {
            self.rebuild(needed);
        }
    }

    /// Drops the expired states of the first segment that has any. Returns their number.
    pub(super) fn drop_some_expired(&mut self, now_ms: u64) -> usize {
        for segment in 0..self.soonest_ms.len() {
            if self.soonest_ms[segment] <= now_ms {
                let dropped = self.drop_expired_in(segment, now_ms);
                if dropped > 0 {
                    return dropped;
                }
            }
        }
        0
    }

    fn drop_expired_in(&mut self, segment: usize, now_ms: u64) -> usize {
        let (mut at, before, mut soonest_ms) = (segment * SEGMENT, self.len, u64::MAX);
        while at < self.slots.len().min((segment + 1) * SEGMENT) {
            let slot = &self.slots[at];
            let expires_at_ms = if slot.is_empty() { u64::MAX } else { slot.state.expires_at_ms() };
            if expires_at_ms <= now_ms {
                self.remove_at(at); // may move another state here
            } else {
                soonest_ms = soonest_ms.min(expires_at_ms);
                at += 1;
            }
        }
        self.soonest_ms[segment] = soonest_ms;
        before - self.len
    }

    /// Lower bound of all expiry times.
    pub(super) fn soonest_ms(&self) -> u64 {
        self.soonest_ms.iter().copied().min().unwrap_or(u64::MAX)
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Whether one more state makes it grow.
    pub(super) fn is_full(&self) -> bool {
        self.len >= self.slots.len() * 4 / 5
    }

    #[inline(always)]
    #[allow(clippy::inline_always)] // in each call
    fn state_of(&mut self, id: CounterId) -> Option<&mut S> {
        self.find(id).map(|at| &mut self.slots[at].state)
    }

    #[inline(always)]
    #[allow(clippy::inline_always)] // in each call
    fn find(&self, id: CounterId) -> Option<usize> {
        let mut at = self.home(id);
        loop {
            let slot = self.slots.get(at)?; // `None` if the table has no slots
            if slot.id == id {
                return Some(at);
            }
            if slot.is_empty() {
                return None;
            }
            at = self.next(at);
        }
    }

    /// Asks for the memory of the slot where the search for an id begins, and for the next cache line: at the highest
    /// load a search takes three probes on average, and a slot may lie in two lines.
    #[inline(always)]
    #[allow(clippy::inline_always)] // in each call
    pub(super) fn prefetch(&self, id: CounterId) {
        if let Some(slot) = self.slots.get(self.home(id)) {
            let slot = ptr::from_ref(slot).cast::<u8>();
            prefetch_read_data::<_, 0>(slot);
            prefetch_read_data::<_, 0>(slot.wrapping_add(CACHE_LINE));
        }
    }

    /// First slot to probe for an id. Ids are spread evenly over the slots, in their order.
    #[inline]
    fn home(&self, id: CounterId) -> usize {
        spread(id.1, self.slots.len())
    }

    #[inline]
    fn next(&self, at: usize) -> usize {
        if at + 1 < self.slots.len() { at + 1 } else { 0 }
    }

    fn put(&mut self, slot: TableSlot<S>) {
        let mut at = self.home(slot.id);
        while !self.slots[at].is_empty() {
            at = self.next(at);
        }
        self.note_expiry(at, slot.state.expires_at_ms());
        self.slots[at] = slot;
        self.len += 1;
    }

    /// Lowers the bound of a slot's segment to the expiry of its state.
    fn note_expiry(&mut self, at: usize, expires_at_ms: u64) {
        let soonest_ms = &mut self.soonest_ms[at / SEGMENT];
        *soonest_ms = (*soonest_ms).min(expires_at_ms);
    }

    /// Moves the states into new slots.
    #[cold]
    fn rebuild(&mut self, slots: usize) {
        let old = mem::replace(&mut self.slots, (0..slots).map(|_| TableSlot::empty()).collect());
        self.soonest_ms = vec![u64::MAX; slots.div_ceil(SEGMENT)].into();
        self.len = 0;
        for slot in old {
            if !slot.is_empty() {
                self.put(slot);
            }
        }
    }
}

/// A place for a number among so many, in the order of the numbers and evenly.
#[allow(clippy::cast_possible_truncation)] // less than `places`
#[inline]
pub(super) fn spread(number: u64, places: usize) -> usize {
    ((u128::from(number) * places as u128) >> u64::BITS) as usize
}

/// The slots of a table that is built for a number of states: 11 for 7.
fn slots_for(states: usize) -> usize {
    (states * 11 / 7).max(8)
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::algorithm::fixed_window::FixedWindow;

    const RULE: Rule = Rule::new("item", 1, std::time::Duration::from_millis(1));

    fn window(opened: u64) -> FixedWindow {
        let mut window = FixedWindow::default();
        window.restart(&RULE, opened * 1000);
        window
    }

    fn opened(window: FixedWindow) -> u64 {
        window.expires_at_ms() - 1
    }

    fn get(table: &mut CounterTable<FixedWindow>, id: CounterId) -> Option<FixedWindow> {
        table.update(id, |window| *window).map(|(_, window)| window)
    }

    proptest! {
        /// Ids that cluster at both ends of the table and in its middle.
        #[test]
        fn it_holds_what_a_map_holds(
            steps in prop::collection::vec((0_u8..20, 0_u64..60, prop::sample::select(vec![0, u64::MAX / 2, u64::MAX - 90])), 1..400),
        ) {
            let (mut table, mut map) = (CounterTable::<FixedWindow>::default(), HashMap::new());
            for (step, (what, number, from)) in steps.into_iter().enumerate() {
                let (id, step) = (CounterId(1, from + number), step as u64);
                match what {
                    // A window that is opened at a step ends at the next one.
                    0 => {
                        table.drop_all_expired(step / 2, usize::from(from > 0));
                        map.retain(|_, opened| *opened >= step / 2);
                    }
                    1 => {
                        let before = table.len();
                        let dropped = table.drop_some_expired(step / 2);
                        prop_assert_eq!(dropped == 0, map.values().all(|opened| *opened >= step / 2));
                        prop_assert_eq!(before - dropped, table.len());
                        map.retain(|id, _| get(&mut table, *id).is_some());
                        prop_assert!(map.values().all(|opened| *opened + 1 >= table.soonest_ms()));
                    }
                    2..7 => prop_assert_eq!(table.remove(id), map.remove(&id).is_some()),
                    _ => {
                        let is_new = map.insert(id, step).is_none();
                        if table.update(id, |stored| *stored = window(step)).is_some() {
                            prop_assert!(!is_new);
                        } else if let (Some(at), 14..) = (table.expired_near(id, step / 2), what) {
                            table.replace(at, id, window(step));
                            let expired = map.extract_if(|id, _| get(&mut table, *id).is_none());
                            prop_assert!(expired.map(|(_, opened)| opened < step / 2).eq([true]));
                        } else {
                            table.insert(id, window(step));
                            prop_assert!(is_new);
                        }
                    }
                }
                prop_assert_eq!(table.len(), map.len());
                for (id, stored) in &map {
                    prop_assert_eq!(get(&mut table, *id).map(opened), Some(*stored));
                }
                for number in 0..60 {
                    let id = CounterId(1, from + number);
                    prop_assert_eq!(get(&mut table, id).is_some(), map.contains_key(&id));
                }
            }
        }
    }

    #[test]
    fn it_has_at_most_twice_the_slots_it_needs() {
        let mut table = CounterTable::<FixedWindow>::default();
        for count in 1..=20_000_u64 {
            table.insert(CounterId(1, count.wrapping_mul(0x9E37_79B9_7F4A_7C15)), window(1));
            assert!(table.slots.len() as u64 <= (2 * count).max(8), "{} slots for {count}", table.slots.len());
        }
        // Not if it needed as many the last time.
        table.drop_all_expired(u64::MAX >> 17, 20_000);
        assert!(table.len() == 0 && table.slots.len() > 20_000);
        // The counters that are left by now may be of other kinds.
        table.drop_all_expired(u64::MAX >> 17, 20_000);
        assert_eq!((table.len(), table.slots.len()), (0, 8));
    }
}
