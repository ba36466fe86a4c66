//! Room for new counters: where they are stored, and when expired ones leave.

use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::{ChargeOrder, Full, LockedShards, Memory, MemoryShard};
use crate::{
    Rule,
    algorithm::MemoryState,
    counter::CounterId,
    store::{Request, StoreError},
    sync::try_spin_lock,
};

/// The least [`MemoryShard::replace_above`], of all shards together.
const REPLACE_ABOVE: usize = 4096;

impl Memory {
    pub(super) fn full(&self) -> StoreError {
        StoreError::unavailable(format!(
            "the memory store is full: all of its {} counters are in use; `Builder::max_keys` sets how many it may hold",
            self.capacity
        ))
    }

    /// Stores a new counter after a first change.
    pub(super) fn insert_new<T>(
        &self,
        shard: &mut MemoryShard,
        id: CounterId,
        rule: &Rule,
        now_us: u64,
        act: impl FnOnce(&mut dyn MemoryState) -> T,
    ) -> Result<T, Full> {
        let replaced = if shard.counters.len() < shard.replace_above {
            Err(act)
        } else {
            shard.counters.replace_expired(id, rule, now_us, act)
        };
        let (expires_at_ms, done) = match replaced {
            Ok(replaced) => replaced,
            Err(act) => {
                self.reserve_or_sweep(shard, rule, now_us)?;
                shard.counters.insert(id, rule, now_us, act)
            }
        };
        shard.note_expiry(Some(expires_at_ms));
        Ok(done)
    }

    /// Whether so many more counters can be stored.
    pub(super) fn has_room(&self, more: usize) -> bool {
        self.stored.load(Ordering::Relaxed) + more <= self.capacity
    }

    /// Makes room for the new counters of a request that fits. Returns the order in which its charges are to be made.
    pub(super) fn make_room_for(
        &self,
        request: &Request,
        shards: &mut LockedShards<'_>,
        now_us: u64,
    ) -> SmallVec<[ChargeOrder; 2]> {
        let lacks_room = |more| !self.has_room(more);
        // `insert_new` can't sweep shards that this call has locked.
        let most = request.charges.len();
        shards.shards.iter_mut().for_each(|shard| while lacks_room(most) && self.sweep(shard, now_us) > 0 {});
        let mut order: SmallVec<[_; 2]> = SmallVec::new();
        for (at, charge) in request.charges.iter().enumerate() {
            let (id, query) = (charge.counter.id(), charge.query());
            // One that has expired may be dropped meanwhile.
            let is_stored = shards.of(&id).update(id, query.rule, |state| !state.is_fresh(now_us)) == Some(true);
            order.push(ChargeOrder { is_shadow: query.rule.is_shadow(), is_stored, can_overflow: false, at });
        }
        let is_new = |order: &ChargeOrder| !order.is_stored && request.charges[order.at].cost > 0;
        let new = order.iter().filter(|order| is_new(order)).count();
        while lacks_room(new) && self.sweep_others(now_us) > 0 {}
        if let Some(overflow) = &self.overflow {
            // Of several, each has its table before the first one is charged: it refunds nothing.
            let takes_tables = new > 1 && lacks_room(new);
            order.sort_unstable(); // those of enforced rules take them first
            for order in order.iter_mut().filter(|order| is_new(order)) {
                let charge = &request.charges[order.at];
                let can_count =
                    overflow.can_count(charge.counter.id(), &charge.query(), self.has_room(1), now_us / 1000);
                order.can_overflow = can_count && (!takes_tables || overflow.take_table(&charge.rule));
            }
        }
        order.sort_unstable();
        order
    }

    /// Counts one more counter. From [`MemoryShard::replace_above`] on, drops all expired ones before a table
    /// grows. Drops some if the store is full.
    fn reserve_or_sweep(&self, shard: &mut MemoryShard, rule: &Rule, now_us: u64) -> Result<(), Full> {
        let before = shard.counters.len();
        if before >= shard.replace_above && shard.counters.is_full(rule) {
            // With fewer slots than the last time needed, or than are filled before that, the tables would soon grow
            // again.
            let least = REPLACE_ABOVE / self.shards.len();
            shard.counters.drop_all_expired(now_us / 1000, shard.kept.max(least));
            shard.kept = shard.counters.len();
            self.stored.fetch_sub(before - shard.kept, Ordering::Relaxed);
            shard.replace_above = (2 * shard.kept).max(least);
        }
        while !self.try_reserve() {
            if self.sweep(shard, now_us) == 0 && self.sweep_others(now_us) == 0 {
                return Err(Full);
            }
        }
        Ok(())
    }

    /// Counts one more counter if the store is not full.
    ///
    /// The number never exceeds the capacity, not even for a moment: another thread would find the
    /// store full when it is not.
    fn try_reserve(&self) -> bool {
        let one_more = |stored| (stored < self.capacity).then_some(stored + 1);
        self.stored.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }

    /// Drops some expired counters, if there are any. Returns their number.
    pub(super) fn sweep(&self, shard: &mut MemoryShard, now_us: u64) -> usize {
        if shard.sweep_at_ms > now_us / 1000 {
            return 0;
        }
        let dropped = shard.counters.drop_some_expired(now_us / 1000);
        if dropped == 0 {
            shard.sweep_at_ms = shard.counters.soonest_ms();
        }
        self.stored.fetch_sub(dropped, Ordering::Relaxed);
        dropped
    }

    /// Sweeps the first other shard that has expired counters. Returns their number.
    ///
    /// Locked shards are skipped, since two threads could wait for each other's.
    fn sweep_others(&self, now_us: u64) -> usize {
        self.shards
            .iter()
            .filter_map(|padded| try_spin_lock(&padded.shard))
            .map(|mut shard| {
                // No later decision here may be earlier than the sweep.
                shard.latest_us = shard.latest_us.max(now_us);
                self.sweep(&mut shard, now_us)
            })
            .find(|dropped| *dropped > 0)
            .unwrap_or(0)
    }

    pub(super) fn remove(&self, shard: &mut MemoryShard, id: CounterId) {
        if shard.counters.remove(id) {
            self.stored.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
