//! The entries of a log in memory.

use std::ops::{Deref, DerefMut};

use smallvec::SmallVec;

/// The tick of an entry, and the total of all charges up to and including it.
pub(super) type LogEntry = (u64, u64);

/// The entries that count, the oldest first. Three of them take no allocation.
///
/// A few entries lie in the slot of the counter itself, so a call waits for memory once. A ring would lie
/// elsewhere.
#[derive(Debug, Default)]
pub(super) struct LogEntries {
    stored: SmallVec<[LogEntry; 3]>,
    /// The number of stored entries that no longer count. They are removed when the list is full and they are at
    /// least a quarter of it (with fewer of them, it grows), and when they are three quarters of a long list.
    dropped: usize,
}

/// An empty list keeps room for so many entries, and gives back more. One with so many dropped entries counts as long.
const KEPT: usize = 64;

impl LogEntries {
    /// Adds the newest entry.
    pub(super) fn push(&mut self, entry: LogEntry) {
        let stored = self.stored.len();
        // If a quarter can be removed, so many entries pay for moving the others.
        let is_full = stored == self.stored.capacity() && 4 * self.dropped >= stored;
        // A list that was long may never be full again.
        let is_mostly_dropped = self.dropped >= KEPT && 4 * self.dropped >= 3 * stored;
        if is_full || is_mostly_dropped {
            self.stored.drain(..self.dropped);
            self.dropped = 0;
            if 4 * self.stored.len() <= self.stored.capacity() {
                self.stored.shrink_to_fit();
            }
        }
        self.stored.push(entry);
    }

    /// Drops the oldest entry.
    #[inline]
    pub(super) fn drop_first(&mut self) {
        self.dropped += 1;
        if self.dropped >= self.stored.len() {
            self.clear();
        }
    }

    pub(super) fn remove(&mut self, at: usize) {
        self.stored.remove(self.dropped + at);
        if self.is_empty() {
            self.clear();
        }
    }

    pub(super) fn clear(&mut self) {
        self.stored.clear();
        self.dropped = 0;
        if self.stored.capacity() > KEPT {
            self.stored = SmallVec::new();
        }
    }
}

impl Deref for LogEntries {
    type Target = [LogEntry];

    #[inline]
    fn deref(&self) -> &[LogEntry] {
        self.stored.get(self.dropped..).unwrap_or_default()
    }
}

impl DerefMut for LogEntries {
    fn deref_mut(&mut self) -> &mut [LogEntry] {
        self.stored.get_mut(self.dropped..).unwrap_or_default()
    }
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_holds_what_a_ring_holds(steps in prop::collection::vec((0_u8..30, any::<prop::sample::Index>()), 1..300)) {
            let (mut entries, mut ring) = (LogEntries::default(), VecDeque::<LogEntry>::new());
            for (step, (what, at)) in (1..).zip(steps) {
                match what {
                    0 => {
                        entries.clear();
                        ring.clear();
                    }
                    1..12 if !ring.is_empty() => {
                        entries.drop_first();
                        ring.pop_front();
                    }
                    12 | 13 if !ring.is_empty() => {
                        let at = at.index(ring.len());
                        entries.remove(at);
                        ring.remove(at);
                    }
                    14 => entries.iter_mut().zip(&mut ring).for_each(|(entry, other)| {
                        entry.1 += step;
                        other.1 += step;
                    }),
                    _ => {
                        entries.push((step, 2 * step));
                        ring.push_back((step, 2 * step));
                    }
                }
                prop_assert_eq!(&*entries, &*ring.make_contiguous());
            }
        }
    }

    #[test]
    fn a_log_that_was_long_gives_its_memory_back() {
        for left in [0, 1, 2, 100] {
            let mut entries = LogEntries::default();
            (0..10_000).for_each(|step| entries.push((step, 0)));
            for step in 10_000..60_000 {
                entries.push((step, 0));
                while entries.len() > left {
                    entries.drop_first();
                }
            }
            let reserved = entries.stored.capacity();
            assert!(reserved <= 4 * left.max(16), "{reserved} for {left}");
        }
    }

    /// It has an entry at any time.
    #[test]
    fn a_log_that_became_short_gives_its_memory_back_at_the_next_entry() {
        for left in [1, 3, 10] {
            let mut entries = LogEntries::default();
            (0..10_000 + left).for_each(|step| entries.push((step, 0)));
            (0..10_000).for_each(|_| entries.drop_first());
            entries.push((10_000 + left, 0));
            let reserved = entries.stored.capacity();
            assert!(entries.len() as u64 == left + 1 && reserved <= 4 * entries.len().max(16), "{reserved} for {left}");
        }
    }

    #[test]
    fn three_entries_take_no_memory_and_many_take_less_than_three_times_theirs() {
        for count in [1, 2, 3, 4, 100, 777, 1_000] {
            let mut entries = LogEntries::default();
            for step in 0..100 * count {
                entries.push((step as u64, 0));
                if entries.len() > count {
                    entries.drop_first();
                }
            }
            let (needed, reserved) = (count + 1, entries.stored.capacity());
            assert!(reserved <= 3 * needed, "{reserved} for {needed}");
            assert_eq!(entries.stored.spilled(), needed > 3, "{count}");
        }
    }
}
