//! One attempt on the counters of several rules.

use std::array;

use super::{Memory, MemoryShard, tables::CounterTables};
use crate::{
    backend::{Attempt, MAX_AT_ONCE, Query},
    clock::ClockReadings,
    sync::SpinMutexGuard,
};

impl Memory {
    /// The code is short, as the number of charges is known when it is compiled.
    #[inline]
    pub(super) fn charge_several<const N: usize>(&self, queries: &mut [Query<'_>; N]) -> Attempt {
        const { assert!(N <= MAX_AT_ONCE) };
        // A denied call stores new counters until it undoes them: `MAX_AT_ONCE` at most, and one such call
        // at a time in each shard. With room for all of them, hardly another call finds the store full.
        if !self.has_room(self.shards.len() * MAX_AT_ONCE) {
            return Attempt::Unsupported;
        }
        // In one order of all callers, so that no two of them wait for each other's locks.
        let mut ordered = queries.each_mut();
        for end in (1..N).rev() {
            for at in 0..end {
                let [first, second] = [ordered[at].id, ordered[at + 1].id];
                if first == second {
                    return Attempt::Unsupported; // charges of one counter are merged first
                }
                if second < first {
                    ordered.swap(at, at + 1);
                }
            }
        }
        let mut locked = None;
        let mut shards: [_; N] = array::from_fn(|at| {
            let index = self.shard_of(ordered[at].id);
            (locked.replace(index) != Some(index)).then(|| self.shard(index))
        });
        // The clock is read before the searches. So the memory of all slots is asked for first, also in small tables:
        // it arrives during the reading.
        let mut shard = None;
        for (locked, query) in shards.iter().zip(&ordered) {
            shard = locked.as_deref().or(shard);
            if let Some(shard) = shard {
                shard.counters.prefetch(query.id, query.rule);
            }
        }
        // Read once for all charges that are decided at once, and under all locks: see `try_charge`.
        let needs_us = ordered.iter().any(|query| CounterTables::needs_us(query.rule));
        let us = needs_us.then(|| self.clock.now_us());
        let read = ClockReadings { us, ms: Some(us.map_or_else(|| self.clock.now_ms(), |us| us / 1000)) };
        let mut charged_us = [0; N];
        let mut shard = None;
        let (mut attempt, mut all_fit) = (Attempt::Decided, true);
        for ((locked, query), charged_us) in shards.iter_mut().zip(&mut ordered).zip(&mut charged_us) {
            shard = locked.as_deref_mut().or(shard);
            let Some((outcome, us)) = shard.as_deref_mut().and_then(|shard| self.charge_one(shard, query, read, true))
            else {
                (attempt, all_fit) = (Attempt::Unsupported, false);
                break;
            };
            (query.outcome, *charged_us) = (outcome, us);
            all_fit &= outcome.fits();
        }
        if !all_fit {
            self.undo(&mut shards, &ordered, &charged_us);
        }
        attempt
    }

    /// Refunds the charges of an attempt. No other call has seen them, as their shards are still locked.
    #[cold]
    fn undo(
        &self,
        shards: &mut [Option<SpinMutexGuard<'_, MemoryShard>>],
        queries: &[&mut Query<'_>],
        charged_us: &[u64],
    ) {
        let mut shard = None;
        for ((locked, query), charged_us) in shards.iter_mut().zip(queries).zip(charged_us) {
            shard = locked.as_deref_mut().or(shard);
            let Query { rule, id, cost, outcome, .. } = **query;
            if let Some(shard) = shard.as_deref_mut()
                && outcome.fits()
            {
                // At the time of the charge: later, a part of it may have refilled.
                shard.refund(id, rule, cost, outcome.receipt, *charged_us);
                // A new one leaves: others may be denied with ever new keys.
                if shard.update(id, rule, |state| state.is_fresh(*charged_us)) == Some(true) {
                    self.remove(shard, id);
                }
            }
        }
    }
}
