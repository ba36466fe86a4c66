//! The table of a shard's fixed windows.

use std::mem;

use crate::{algorithm::PackedWindow, key::Fingerprint};

/// Windows by name: where a name's window is to be found, or in the next places behind, as far as there is no gap.
///
/// A hash table for this one thing, as memory is what takes time where there are many counters: a window lies in one cache line together with its name
/// and needs nothing else to be found, so that a call waits for memory once. Tables for everything look into a second place first.
#[derive(Debug, Default)]
pub(super) struct Table {
    slots: Box<[Slot]>,
    len: usize,
}

/// Two in a cache line, none in two.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Slot {
    name: Fingerprint,
    window: PackedWindow,
}

impl Slot {
    const EMPTY: Self = Self { name: Fingerprint::NONE, window: PackedWindow::NONE };

    #[inline]
    fn is_empty(&self) -> bool {
        self.name == Fingerprint::NONE
    }
}

impl Table {
    #[inline(always)]
    #[allow(clippy::inline_always)] // see `Memory::take_window`
    pub(super) fn get_mut(&mut self, name: Fingerprint) -> Option<&mut PackedWindow> {
        let at = self.find(name)?;
        Some(&mut self.slots[at].window)
    }

    /// Adds a window whose name is not in the table.
    pub(super) fn insert(&mut self, name: Fingerprint, window: PackedWindow) {
        // Where four of five places are taken, a window is the third that is looked at, on average: in the same cache line or the next.
        if (self.len + 1) * 5 > self.slots.len() * 4 {
            self.rebuild(self.len + 1, |_| true);
        }
        self.put(Slot { name, window });
    }

    /// Says whether it was there.
    pub(super) fn remove(&mut self, name: Fingerprint) -> bool {
        let Some(mut gap) = self.find(name) else { return false };
        let mut at = self.behind(gap);
        while !self.slots[at].is_empty() {
            let home = self.home(self.slots[at].name);
            // What is not at home would not be found behind a gap, unless its home is behind it too.
            let stays = if gap < at { gap < home && home <= at } else { gap < home || home <= at };
            if !stays {
                self.slots[gap] = self.slots[at];
                gap = at;
            }
            at = self.behind(at);
        }
        self.slots[gap] = Slot::EMPTY;
        self.len -= 1;
        true
    }

    /// Lets go of what is not to be kept, and of room that is not needed then.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(PackedWindow) -> bool) {
        let kept = self.slots.iter().filter(|slot| !slot.is_empty() && keep(slot.window)).count();
        if kept < self.len {
            self.rebuild(kept, keep);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    #[allow(clippy::inline_always)] // see `Memory::take_window`
    fn find(&self, name: Fingerprint) -> Option<usize> {
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
    fn home(&self, name: Fingerprint) -> usize {
        ((u128::from(name.1) * self.slots.len() as u128) >> 64) as usize
    }

    #[inline]
    fn behind(&self, at: usize) -> usize {
        if at + 1 < self.slots.len() { at + 1 } else { 0 }
    }

    fn put(&mut self, slot: Slot) {
        let mut at = self.home(slot.name);
        while !self.slots[at].is_empty() {
            at = self.behind(at);
        }
        self.slots[at] = slot;
        self.len += 1;
    }

    /// Moves what is kept into a table with room for so many, and for two in five more.
    #[cold]
    fn rebuild(&mut self, count: usize, mut keep: impl FnMut(PackedWindow) -> bool) {
        let places = (count * 7 / 4).max(8);
        let old = mem::replace(&mut self.slots, vec![Slot::EMPTY; places].into_boxed_slice());
        self.len = 0;
        for slot in old {
            if !slot.is_empty() && keep(slot.window) {
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
    use crate::{Rule, algorithm::Window};

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
            let (mut table, mut map) = (Table::default(), HashMap::new());
            for (step, (what, number, from)) in steps.into_iter().enumerate() {
                let (name, step) = (Fingerprint(1, from + number), step as u64);
                match what {
                    0 => {
                        table.retain(|window| opened(window).is_multiple_of(2));
                        map.retain(|_, window| opened(*window).is_multiple_of(2));
                    }
                    1..7 => prop_assert_eq!(table.remove(name), map.remove(&name).is_some()),
                    _ => {
                        let is_new = map.insert(name, window(step)).is_none();
                        if let Some(stored) = table.get_mut(name) {
                            *stored = window(step);
                            prop_assert!(!is_new);
                        } else {
                            table.insert(name, window(step));
                            prop_assert!(is_new);
                        }
                    }
                }
                prop_assert_eq!(table.len(), map.len());
                for (name, stored) in &map {
                    prop_assert_eq!(table.get_mut(*name).map(|window| opened(*window)), Some(opened(*stored)));
                }
                for place in 0..60 {
                    let name = Fingerprint(1, from + place);
                    prop_assert_eq!(table.get_mut(name).is_some(), map.contains_key(&name));
                }
            }
        }
    }

    #[test]
    fn it_never_takes_twice_the_room_it_needs() {
        let mut table = Table::default();
        for count in 1..=20_000_u64 {
            table.insert(Fingerprint(1, count.wrapping_mul(0x9E37_79B9_7F4A_7C15)), window(1));
            assert!(table.slots.len() as u64 <= (2 * count).max(8), "{} places for {count}", table.slots.len());
        }
        table.retain(|_| false);
        assert_eq!((table.len(), table.slots.len()), (0, 8));
    }
}
