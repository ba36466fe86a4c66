//! The tables of a shard.

use std::mem;

use crate::{
    algorithm::{Counter, PackedWindow, Window},
    counter::CounterId,
};

/// Values by name: where a name's value is to be found, or in the next places behind, as far as there is no gap.
///
/// A hash table for this one thing, as memory is what takes time where there are many counters: a window lies in one cache line together with its name
/// and needs nothing else to be found, so that a call waits for memory once. Tables for everything look into a second place first.
///
/// Of each [`SEGMENT`] of places it knows the soonest end, so that a value that has ended is found without a look at all of them.
#[derive(Debug)]
pub(super) struct Table<V: Stored> {
    slots: Box<[Slot<V>]>,
    /// For each segment a time before which none of its values ends. They may end later.
    soonest_ms: Box<[u64]>,
    len: usize,
}

/// A value of a table. The default stands in empty places.
pub(super) trait Stored: Default {
    /// A type of the alignment of a place.
    type Align: std::fmt::Debug;

    /// When nothing is lost by dropping it.
    fn ends_ms(&self) -> u64;
}

/// Two windows are in a cache line, none in two.
#[derive(Debug)]
#[repr(align(32))]
pub(super) struct HalfLine;

impl Stored for PackedWindow {
    type Align = HalfLine;

    #[inline]
    fn ends_ms(&self) -> u64 {
        Window::from(*self).end_ms
    }
}

impl Stored for Option<Counter> {
    type Align = ();

    #[inline(always)]
    #[allow(clippy::inline_always)] // twice in each call that is not of a fixed window
    fn ends_ms(&self) -> u64 {
        self.as_ref().map_or(u64::MAX, Counter::until_ms)
    }
}

#[derive(Debug)]
#[repr(C)]
struct Slot<V: Stored> {
    _align: [V::Align; 0],
    name: CounterId,
    value: V,
}

const SEGMENT: usize = 64;

impl<V: Stored> Slot<V> {
    fn new(name: CounterId, value: V) -> Self {
        Self { _align: [], name, value }
    }

    fn empty() -> Self {
        Self::new(CounterId::NONE, V::default())
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.name == CounterId::NONE
    }
}

impl<V: Stored> Default for Table<V> {
    fn default() -> Self {
        Self { slots: Box::default(), soonest_ms: Box::default(), len: 0 }
    }
}

impl<V: Stored> Table<V> {
    /// Who changes when the value ends uses [`Table::update`].
    #[inline(always)]
    #[allow(clippy::inline_always)] // see `Memory::take_window`
    pub(super) fn get_mut(&mut self, name: CounterId) -> Option<&mut V> {
        let at = self.find(name)?;
        Some(&mut self.slots[at].value)
    }

    /// Does something to a value. Returns when it ends now, if that is sooner than before, and what was done.
    #[inline]
    pub(super) fn update<T>(&mut self, name: CounterId, act: impl FnOnce(&mut V) -> T) -> Option<(Option<u64>, T)> {
        let at = self.find(name)?;
        let value = &mut self.slots[at].value;
        let before = value.ends_ms();
        let done = act(value);
        let sooner = Some(value.ends_ms()).filter(|after| *after < before);
        if let Some(ends_ms) = sooner {
            self.ends(at, ends_ms);
        }
        Some((sooner, done))
    }

    /// Adds a value whose name is not in the table.
    pub(super) fn insert(&mut self, name: CounterId, value: V) {
        // Where four of five places are taken, a value is the third that is looked at, on average: in the same cache line or the next.
        if (self.len + 1) * 5 > self.slots.len() * 4 {
            self.rebuild(self.len + 1, |_| true);
        }
        self.put(Slot::new(name, value));
    }

    /// Says whether it was there.
    pub(super) fn remove(&mut self, name: CounterId) -> bool {
        let at = self.find(name);
        at.map(|at| self.remove_at(at)).is_some()
    }

    fn remove_at(&mut self, mut gap: usize) {
        let mut at = self.behind(gap);
        while !self.slots[at].is_empty() {
            let home = self.home(self.slots[at].name);
            // What is not at home would not be found behind a gap, unless its home is behind it too.
            let stays = if gap < at { gap < home && home <= at } else { gap < home || home <= at };
            if !stays {
                self.slots.swap(gap, at);
                self.ends(gap, self.slots[gap].value.ends_ms());
                gap = at;
            }
            at = self.behind(at);
        }
        self.slots[gap] = Slot::empty();
        self.len -= 1;
    }

    /// Lets go of what has ended, and of room that is not needed then.
    pub(super) fn drop_all_ended(&mut self, now_ms: u64) {
        let is_live = |value: &V| value.ends_ms() > now_ms;
        let kept = self.slots.iter().filter(|slot| !slot.is_empty() && is_live(&slot.value)).count();
        if kept < self.len {
            self.rebuild(kept, is_live);
        }
    }

    /// Lets go of what has ended in the first segment that has such. Returns how many values that were.
    pub(super) fn drop_some_ended(&mut self, now_ms: u64) -> usize {
        for segment in 0..self.soonest_ms.len() {
            if self.soonest_ms[segment] <= now_ms {
                let dropped = self.drop_ended_in(segment, now_ms);
                if dropped > 0 {
                    return dropped;
                }
            }
        }
        0
    }

    fn drop_ended_in(&mut self, segment: usize, now_ms: u64) -> usize {
        let (mut at, before, mut soonest_ms) = (segment * SEGMENT, self.len, u64::MAX);
        while at < self.slots.len().min((segment + 1) * SEGMENT) {
            let slot = &self.slots[at];
            let ends_ms = if slot.is_empty() { u64::MAX } else { slot.value.ends_ms() };
            if ends_ms <= now_ms {
                self.remove_at(at); // another value may stand there then
            } else {
                soonest_ms = soonest_ms.min(ends_ms);
                at += 1;
            }
        }
        self.soonest_ms[segment] = soonest_ms;
        before - self.len
    }

    /// A time before which no value ends.
    pub(super) fn soonest_ms(&self) -> u64 {
        self.soonest_ms.iter().copied().min().unwrap_or(u64::MAX)
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    #[allow(clippy::inline_always)] // see `Memory::take_window`
    fn find(&self, name: CounterId) -> Option<usize> {
        let mut at = self.home(name);
        loop {
            let slot = self.slots.get(at)?; // there may be no place at all
            if slot.name == name {
                return Some(at);
            }
            if slot.is_empty() {
                return None;
            }
            at = self.behind(at);
        }
    }

    /// Names are spread evenly over the places, in their order.
    #[allow(clippy::cast_possible_truncation)] // less than the number of places
    #[inline]
    fn home(&self, name: CounterId) -> usize {
        ((u128::from(name.1) * self.slots.len() as u128) >> 64) as usize
    }

    #[inline]
    fn behind(&self, at: usize) -> usize {
        if at + 1 < self.slots.len() { at + 1 } else { 0 }
    }

    fn put(&mut self, slot: Slot<V>) {
        let mut at = self.home(slot.name);
        while !self.slots[at].is_empty() {
            at = self.behind(at);
        }
        self.ends(at, slot.value.ends_ms());
        self.slots[at] = slot;
        self.len += 1;
    }

    /// The value at this place ends then.
    fn ends(&mut self, at: usize, ends_ms: u64) {
        let soonest_ms = &mut self.soonest_ms[at / SEGMENT];
        *soonest_ms = (*soonest_ms).min(ends_ms);
    }

    /// Moves what is kept into a table with room for so many, and for two in five more.
    #[cold]
    fn rebuild(&mut self, count: usize, keep: impl Fn(&V) -> bool) {
        let places = (count * 7 / 4).max(8);
        let old = mem::replace(&mut self.slots, (0..places).map(|_| Slot::empty()).collect());
        self.soonest_ms = vec![u64::MAX; places.div_ceil(SEGMENT)].into();
        self.len = 0;
        for slot in old {
            if !slot.is_empty() && keep(&slot.value) {
                self.put(slot);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::Rule;

    fn window(opened: u64) -> PackedWindow {
        const RULE: Rule = Rule::new("item", 1, std::time::Duration::from_millis(1));
        PackedWindow::from(&Window::open(&RULE, opened))
    }

    fn opened(window: PackedWindow) -> u64 {
        Window::from(window).end_ms - 1
    }

    proptest! {
        /// Names that crowd at both ends of the table and in its middle.
        #[test]
        fn it_holds_what_a_map_holds(
            steps in prop::collection::vec((0_u8..20, 0_u64..60, prop::sample::select(vec![0, u64::MAX / 2, u64::MAX - 90])), 1..400),
        ) {
            let (mut table, mut map) = (Table::<PackedWindow>::default(), HashMap::new());
            for (step, (what, number, from)) in steps.into_iter().enumerate() {
                let (name, step) = (CounterId(1, from + number), step as u64);
                match what {
                    // A window that is opened at the number of a step ends at the next one.
                    0 => {
                        table.drop_all_ended(step / 2);
                        map.retain(|_, opened| *opened >= step / 2);
                    }
                    1 => {
                        let before = table.len();
                        let dropped = table.drop_some_ended(step / 2);
                        prop_assert_eq!(dropped == 0, map.values().all(|opened| *opened >= step / 2));
                        prop_assert_eq!(before - dropped, table.len());
                        map.retain(|name, _| table.get_mut(*name).is_some());
                        prop_assert!(map.values().all(|opened| *opened + 1 >= table.soonest_ms()));
                    }
                    2..7 => prop_assert_eq!(table.remove(name), map.remove(&name).is_some()),
                    _ => {
                        let is_new = map.insert(name, step).is_none();
                        if table.update(name, |stored| *stored = window(step)).is_some() {
                            prop_assert!(!is_new);
                        } else {
                            table.insert(name, window(step));
                            prop_assert!(is_new);
                        }
                    }
                }
                prop_assert_eq!(table.len(), map.len());
                for (name, stored) in &map {
                    prop_assert_eq!(table.get_mut(*name).map(|window| opened(*window)), Some(*stored));
                }
                for place in 0..60 {
                    let name = CounterId(1, from + place);
                    prop_assert_eq!(table.get_mut(name).is_some(), map.contains_key(&name));
                }
            }
        }
    }

    #[test]
    fn it_never_takes_twice_the_room_it_needs() {
        let mut table = Table::<PackedWindow>::default();
        for count in 1..=20_000_u64 {
            table.insert(CounterId(1, count.wrapping_mul(0x9E37_79B9_7F4A_7C15)), window(1));
            assert!(table.slots.len() as u64 <= (2 * count).max(8), "{} places for {count}", table.slots.len());
        }
        table.drop_all_ended(u64::MAX >> 17);
        assert_eq!((table.len(), table.slots.len()), (0, 8));
    }
}
