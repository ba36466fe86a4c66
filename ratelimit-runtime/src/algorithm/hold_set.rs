//! The holds of one counter in memory, ordered by their ends.

use std::{collections::BTreeMap, iter};

use crate::store::Hold;

/// Holds by id and by end, and their total. Each operation takes time logarithmic in their number.
///
/// A hold *ends* one lease after it was made or renewed. It *expires*, and no longer counts, a
/// fixed time after its end.
#[derive(Debug, Default)]
pub(super) struct HoldSet {
    by_id: SmallMap<u64, HeldAmount>,
    /// Amounts by end and id, of the holds that have an end.
    by_end: SmallMap<(u64, u64), u64>,
    /// Amounts by lease, of the holds that are kept: at any time, they end one lease from now.
    kept: SmallMap<u64, u64>,
    total: u64,
    /// Time for which a hold counts after its end.
    counts_on_ms: u64,
}

/// One hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldAmount {
    pub(super) amount: u64,
    lease_ms: u64,
    /// `None` if it is kept.
    ends_ms: Option<u64>,
}

impl HoldSet {
    /// A set whose holds count for a time after their ends.
    pub(super) const fn counting_on(counts_on_ms: u64) -> Self {
        Self { by_id: SmallMap::NONE, by_end: SmallMap::NONE, kept: SmallMap::NONE, total: 0, counts_on_ms }
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Sum of all holds.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Time when none of the holds counts any more.
    pub(super) fn expires_at_ms(&self) -> u64 {
        match self.by_end.last() {
            _ if self.kept.len() > 0 => u64::MAX,
            Some(((ends_ms, _), _)) => ends_ms.saturating_add(self.counts_on_ms),
            None => 0,
        }
    }

    /// Time until which a hold counts that begins now.
    pub(super) fn new_counts_until_ms(&self, now_us: u64, hold: &Hold) -> u64 {
        self.counts_until_ms(end_ms(now_us, hold.lease_ms()))
    }

    /// Time until which a hold with this end counts.
    pub(super) fn counts_until_ms(&self, ends_ms: u64) -> u64 {
        ends_ms.saturating_add(self.counts_on_ms)
    }

    /// The earliest end.
    pub(super) fn first_end_ms(&self, now_us: u64) -> Option<u64> {
        let kept = self.kept.first().map(|(lease_ms, _)| end_ms(now_us, *lease_ms));
        let ending = self.by_end.first().map(|((ends_ms, _), _)| *ends_ms);
        match (kept, ending) {
            (Some(kept), Some(ending)) => Some(kept.min(ending)),
            _ => kept.or(ending),
        }
    }

    /// The latest end.
    pub(super) fn last_end_ms(&self, now_us: u64) -> Option<u64> {
        let kept = self.kept.last().map(|(lease_ms, _)| end_ms(now_us, *lease_ms));
        kept.max(self.by_end.last().map(|((ends_ms, _), _)| *ends_ms))
    }

    /// Ends and amounts, the earliest end first. Kept holds with one lease are one item.
    pub(super) fn in_order(&self, now_us: u64) -> impl Iterator<Item = (u64, u64)> {
        let mut kept = self.kept.iter().map(move |(lease_ms, amount)| (end_ms(now_us, *lease_ms), *amount)).peekable();
        let mut ending = self.by_end.iter().map(|((ends_ms, _), amount)| (*ends_ms, *amount)).peekable();
        iter::from_fn(move || match (kept.peek(), ending.peek()) {
            (Some(one), Some(other)) if other < one => ending.next(),
            (Some(_), _) => kept.next(),
            (None, _) => ending.next(),
        })
    }

    /// Sum of the holds that have ended and still count.
    pub(super) fn ended(&self, now_us: u64) -> u64 {
        self.by_end.iter().take_while(|((ends_ms, _), _)| *ends_ms <= now_us / 1000).map(|(_, amount)| amount).sum()
    }

    pub(super) fn insert(&mut self, now_us: u64, amount: u64, hold: &Hold) {
        let lease_ms = hold.lease_ms();
        let ends_ms = (!hold.is_kept).then(|| end_ms(now_us, lease_ms));
        self.remove(hold.id);
        self.add(hold.id, HeldAmount { amount, lease_ms, ends_ms });
    }

    /// Makes a hold last one lease from now. `false` if it does not count.
    pub(super) fn renew(&mut self, now_us: u64, hold: &Hold) -> bool {
        self.drop_expired(now_us);
        let Some(removed) = self.remove(hold.id) else { return false };
        self.insert(now_us, removed.amount, hold);
        true
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<HeldAmount> {
        let held = self.by_id.remove(&id)?;
        self.total -= held.amount;
        if let Some(ends_ms) = held.ends_ms {
            self.by_end.remove(&(ends_ms, id));
        } else if let Some(amount) = self.kept.get_mut(&held.lease_ms) {
            *amount -= held.amount;
            if *amount == 0 {
                self.kept.remove(&held.lease_ms);
            }
        }
        Some(held)
    }

    /// Removes holds that no longer count.
    #[inline]
    pub(super) fn drop_expired(&mut self, now_us: u64) {
        while let Some(((ends_ms, id), _)) = self.by_end.first()
            && self.counts_until_ms(*ends_ms) <= now_us / 1000
        {
            self.remove(*id);
        }
    }

    /// Moves all ends back if the clock was set back since the hold with the latest end was made.
    pub(super) fn correct_clock(&mut self, now_us: u64) {
        let Some((&(ends_ms, id), _)) = self.by_end.last() else { return };
        let ahead_ms = self.by_id.get(&id).map_or(0, |held| ends_ms.saturating_sub(end_ms(now_us, held.lease_ms)));
        if ahead_ms > 0 {
            self.by_end = SmallMap::NONE;
            for (id, held) in self.by_id.iter_mut() {
                if let Some(ends_ms) = &mut held.ends_ms {
                    *ends_ms = ends_ms.saturating_sub(ahead_ms);
                    self.by_end.insert((*ends_ms, *id), held.amount);
                }
            }
        }
    }

    fn add(&mut self, id: u64, held: HeldAmount) {
        self.total += held.amount;
        match held.ends_ms {
            Some(ends_ms) => self.by_end.insert((ends_ms, id), held.amount),
            None => match self.kept.get_mut(&held.lease_ms) {
                Some(amount) => *amount += held.amount,
                None => self.kept.insert(held.lease_ms, held.amount),
            },
        }
        self.by_id.insert(id, held);
    }
}

/// A map in order that allocates from its second entry on: most counters have one hold.
#[derive(Debug)]
enum SmallMap<K, V> {
    One(Option<(K, V)>),
    Many(BTreeMap<K, V>),
}

impl<K, V> SmallMap<K, V> {
    const NONE: Self = Self::One(None);
}

impl<K, V> Default for SmallMap<K, V> {
    fn default() -> Self {
        Self::NONE
    }
}

impl<K: Ord, V> SmallMap<K, V> {
    fn len(&self) -> usize {
        match self {
            Self::One(entry) => usize::from(entry.is_some()),
            Self::Many(map) => map.len(),
        }
    }

    fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let (one, many) = match self {
            Self::One(entry) => (entry.as_ref(), None),
            Self::Many(map) => (None, Some(map)),
        };
        one.map(|(key, value)| (key, value)).into_iter().chain(many.into_iter().flatten())
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        let (one, many) = match self {
            Self::One(entry) => (entry.as_mut(), None),
            Self::Many(map) => (None, Some(map)),
        };
        one.map(|(key, value)| (&*key, value)).into_iter().chain(many.into_iter().flatten())
    }

    #[inline]
    fn first(&self) -> Option<(&K, &V)> {
        match self {
            Self::One(entry) => entry.as_ref().map(|(key, value)| (key, value)),
            Self::Many(map) => map.first_key_value(),
        }
    }

    #[inline]
    fn last(&self) -> Option<(&K, &V)> {
        match self {
            Self::One(entry) => entry.as_ref().map(|(key, value)| (key, value)),
            Self::Many(map) => map.last_key_value(),
        }
    }

    fn get(&self, key: &K) -> Option<&V> {
        match self {
            Self::One(entry) => entry.as_ref().filter(|(its_key, _)| its_key == key).map(|(_, value)| value),
            Self::Many(map) => map.get(key),
        }
    }

    fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        match self {
            Self::One(entry) => entry.as_mut().filter(|(its_key, _)| its_key == key).map(|(_, value)| value),
            Self::Many(map) => map.get_mut(key),
        }
    }

    /// The key is a new one.
    fn insert(&mut self, key: K, value: V) {
        match self {
            Self::One(entry @ None) => *entry = Some((key, value)),
            Self::One(entry) => *self = Self::Many(entry.take().into_iter().chain([(key, value)]).collect()),
            Self::Many(map) => drop(map.insert(key, value)),
        }
    }

    fn remove(&mut self, key: &K) -> Option<V> {
        match self {
            Self::One(entry) => entry.take_if(|(its_key, _)| its_key == key).map(|(_, value)| value),
            Self::Many(map) => map.remove(key),
        }
    }
}

/// End of a lease that begins now.
pub(super) fn end_ms(now_us: u64, lease_ms: u64) -> u64 {
    now_us.div_ceil(1000).saturating_add(lease_ms)
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    /// A plain list of all holds, as a model of the set.
    #[derive(Default)]
    struct HoldList(Vec<(u64, u64, Hold, u64)>);

    impl HoldList {
        fn ends(&self, now_us: u64) -> Vec<(u64, u64)> {
            let end = |(_, amount, hold, ends_ms): &(_, _, Hold, _)| {
                (if hold.is_kept { end_ms(now_us, hold.lease_ms()) } else { *ends_ms }, *amount)
            };
            let mut ends: Vec<_> = self.0.iter().map(end).collect();
            ends.sort_unstable();
            ends
        }
    }

    fn hold(id: u64, lease_ms: u64, is_kept: bool) -> Hold {
        Hold { id, is_kept, ..Hold::new(Duration::from_millis(lease_ms)) }
    }

    proptest! {
        #[test]
        fn it_answers_as_a_plain_list_does(
            counts_on_ms in prop::sample::select(vec![0, 50]),
            steps in prop::collection::vec((0_u8..8, 0_u64..12, 1_u64..90, any::<bool>()), 1..300),
        ) {
            let (mut set, mut list, mut now_us) = (HoldSet::counting_on(counts_on_ms), HoldList::default(), 1_000_000);
            for (what, id, number, is_kept) in steps {
                let asked = hold(id, number, is_kept);
                match what {
                    0..=2 => {
                        set.insert(now_us, number % 7 + 1, &asked);
                        list.0.retain(|held| held.0 != id);
                        list.0.push((id, number % 7 + 1, asked, end_ms(now_us, number)));
                    }
                    3 => {
                        let held = list.0.iter_mut().find(|held| held.0 == id);
                        prop_assert_eq!(set.renew(now_us, &asked), held.is_some());
                        if let Some(held) = held {
                            (held.2, held.3) = (asked, end_ms(now_us, number));
                        }
                    }
                    4 => {
                        let amount = list.0.extract_if(.., |held| held.0 == id).map(|held| held.1).next();
                        prop_assert_eq!(set.remove(id).map(|held| held.amount), amount);
                    }
                    _ => now_us += number * 211,
                }
                set.drop_expired(now_us);
                list.0.retain(|(_, _, hold, ends_ms)| hold.is_kept || ends_ms + counts_on_ms > now_us / 1000);
                let ends = list.ends(now_us);
                prop_assert_eq!((set.len(), set.total()), (ends.len(), ends.iter().map(|end| end.1).sum::<u64>()));
                prop_assert_eq!(set.first_end_ms(now_us), ends.first().map(|end| end.0));
                prop_assert_eq!(set.last_end_ms(now_us), ends.last().map(|end| end.0));
                let in_order: Vec<_> = set.in_order(now_us).collect();
                prop_assert!(in_order.is_sorted_by_key(|end| end.0), "{in_order:?}");
                for at in 1..250 {
                    let sum = |ends: &[(u64, u64)]| ends.iter().filter(|end| end.0 <= now_us / 1000 + at).map(|end| end.1).sum::<u64>();
                    prop_assert_eq!(sum(&in_order), sum(&ends));
                }
                let ended = list.0.iter().filter(|held| !held.2.is_kept && held.3 <= now_us / 1000).map(|held| held.1);
                prop_assert_eq!(set.ended(now_us), ended.sum::<u64>());
            }
        }
    }

    /// With 50,000 holds in mixed order, a step that visits all of them would not end here.
    #[test]
    fn many_holds_are_as_quick_as_few() {
        let (mut set, count) = (HoldSet::default(), 50_000);
        for id in 0..count {
            set.insert(0, 1, &hold(id * 7919 % count, 1 + id * 104_729 % count, id % 2 == 0));
        }
        assert_eq!((set.len() as u64, set.total()), (count, count));
        for id in 0..count {
            assert!(set.renew(500, &hold(id * 31 % count, 7 + id % 1000, id % 3 == 0)));
            assert!(set.first_end_ms(500) <= set.last_end_ms(500));
        }
        for id in 0..count {
            assert_eq!(set.remove(id * 101 % count).map(|held| held.amount), Some(1));
        }
        assert_eq!((set.total(), set.expires_at_ms(), set.in_order(0).count()), (0, 0, 0));
    }

    #[test]
    fn a_clock_that_was_set_back_moves_all_ends() {
        let mut set = HoldSet::default();
        set.insert(1_000_000, 1, &hold(1, 100, false));
        set.insert(1_010_000, 2, &hold(2, 200, false));
        set.correct_clock(1_010_000);
        assert_eq!(set.in_order(0).collect::<Vec<_>>(), [(1100, 1), (1210, 2)]);
        set.correct_clock(10_000);
        assert_eq!(set.in_order(0).collect::<Vec<_>>(), [(100, 1), (210, 2)]);
    }
}
