//! The memory store of one process.

use std::{
    convert::Infallible,
    fmt,
    num::NonZeroUsize,
    sync::atomic::Ordering,
    task::{Context, Poll},
    thread,
    time::Duration,
};

use smallvec::SmallVec;

use crate::{
    Clock, CounterName, Rule,
    algorithm::{Evaluation, MemoryState, ban, charge, charge_fresh, evaluate},
    backend::{Attempt, Backend, CounterReceipt, Query, Undecided, Waiter},
    clock::{ClockReadings, LockedTime},
    counter::CounterId,
    decision::Outcome,
    observe,
    rule::ban_ms,
    store::{Batch, Charge, ChargeQuery, Charges, Hold, Reply, Request, Store, StoreError},
    sync::{AtomicUsize, CachePadded, SpinMutex, SpinMutexGuard, spin_lock, spin_lock_all},
};

mod counter_table;
#[cfg(all(test, model_check))]
mod model_check;
mod overflow;
mod room;
mod several;
mod tables;
#[cfg(all(test, not(model_check)))]
mod tests;

use counter_table::{NotAtOnce, spread};
use overflow::Overflow;
use tables::CounterTables;

/// Counters of one process, exact under any number of threads.
///
/// No background task is needed: counters that equal a fresh one are dropped when a new one needs
/// room. If the store is full of live counters, new keys fail as unavailable, so that
/// [`OnStoreError`](crate::OnStoreError) decides, or are counted in the [`Overflow`]. Stored counters
/// go on.
///
/// A fixed window, a sliding window of one bucket and a bucket take a slot of 32 bytes, places one of 40.
/// After growth, a table has between 5 slots for 4 counters and 11 slots for 7.
pub(crate) struct Memory {
    clock: Clock,
    shards: Box<[PaddedShard]>,
    capacity: usize,
    stored: CachePadded<AtomicUsize>,
    overflow: Option<Overflow>,
}

/// The store has no room for a new counter.
struct Full;

/// Findings of a batch about room, for the log.
#[derive(Default)]
struct RoomNotes {
    /// It was charged in the overflow.
    overflows: bool,
    /// A rule in shadow mode had no room.
    is_missing: bool,
}

/// The order in which the charges of a request are made.
///
/// A rule in shadow mode takes no room from the others. What may find no room comes before what finds it certainly,
/// and stored counters come last: a refund may not leave them as they were.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ChargeOrder {
    is_shadow: bool,
    is_stored: bool,
    /// The overflow never refunds.
    can_overflow: bool,
    at: usize,
}

/// The order of fields puts all that most calls need into one cache line with the lock.
#[derive(Default)]
#[repr(C)]
struct MemoryShard {
    /// Time of the last decision.
    latest_us: u64,
    /// Lower bound of the expiry times of all counters.
    sweep_at_ms: u64,
    counters: CounterTables,
    /// Number of counters from which on new ones replace expired ones, and all expired ones are dropped before
    /// a table grows.
    replace_above: usize,
    /// Number of counters that were left when all expired ones were dropped.
    kept: usize,
}

/// A shard in an odd number of cache lines.
///
/// The first line of each shard is in use. With an even number, they would share a half or fewer of the sets of a
/// processor's first cache, and evict each other from it.
#[repr(C, align(64))]
struct PaddedShard {
    shard: SpinMutex<MemoryShard>,
    _padding: [u8; PADDING],
}

const PADDING: usize =
    (size_of::<SpinMutex<MemoryShard>>().div_ceil(64) | 1) * 64 - size_of::<SpinMutex<MemoryShard>>();

impl Default for PaddedShard {
    fn default() -> Self {
        Self { shard: SpinMutex::default(), _padding: [0; PADDING] }
    }
}

/// The shards of one request, locked.
struct LockedShards<'a> {
    memory: &'a Memory,
    /// In order.
    indices: SmallVec<[usize; 2]>,
    shards: SmallVec<[SpinMutexGuard<'a, MemoryShard>; 2]>,
}

impl Memory {
    /// `overflow_bytes` are for each period. 0: there is no overflow.
    pub(crate) fn new(clock: Clock, capacity: usize, overflow_bytes: usize) -> Self {
        Self {
            clock,
            shards: (0..number_of_shards()).map(|_| PaddedShard::default()).collect(),
            capacity,
            stored: CachePadded::default(),
            overflow: (overflow_bytes > 0).then(|| Overflow::new(overflow_bytes)),
        }
    }

    /// Whether the process can get so much memory for an overflow.
    pub(crate) fn can_have_overflow(bytes: usize) -> bool {
        Overflow::new(bytes).is_possible()
    }

    /// The shard of a counter. Counters in the order of their ids are in that of their shards.
    #[inline]
    fn shard_of(&self, id: CounterId) -> usize {
        spread(id.0, self.shards.len())
    }

    #[inline]
    fn shard(&self, index: usize) -> SpinMutexGuard<'_, MemoryShard> {
        // A panic while it was locked can't leave a shard half changed: each change is complete.
        spin_lock(&self.shards[index].shard)
    }

    fn charge_locked(
        &self,
        shard: &mut MemoryShard,
        id: CounterId,
        query: &ChargeQuery<'_>,
        now_us: u64,
    ) -> Result<Outcome, Full> {
        match shard.update(id, query.rule, |state| charge(state, query, now_us)) {
            Some(outcome) => Ok(outcome),
            None => self.charge_new(shard, id, query, now_us),
        }
    }

    /// Charges one counter if the cost fits. Returns also the time of the decision. `None` if there is
    /// no room for the counter, and for a slot that comes later.
    /// If it `may_be_undone`, also for a charge that can't be.
    #[inline(always)]
    #[allow(clippy::inline_always)] // in each call
    fn charge_one(
        &self,
        shard: &mut MemoryShard,
        query: &Query<'_>,
        read: ClockReadings,
        may_be_undone: bool,
    ) -> Option<(Outcome, u64)> {
        let Query { rule, id, cost, .. } = *query;
        let MemoryShard { latest_us, counters, .. } = shard;
        let time = LockedTime { clock: &self.clock, latest_us, read };
        let is_stored = match counters.charge_at_once(id, rule, cost, time) {
            Ok(decided) => return Some(decided),
            Err(why) => why != NotAtOnce::NotStored,
        };
        let now_us = LockedTime { clock: &self.clock, latest_us: &mut shard.latest_us, read }.us().us;
        let can_undo = |state: &mut dyn MemoryState| state.is_fresh(now_us) || state.can_undo(rule);
        if may_be_undone && is_stored && shard.update(id, rule, can_undo) != Some(true) {
            return None;
        }
        // Not the query, which would be written to memory for this: a tenth of the steps of each call.
        self.charge_slowly(shard, id, rule, cost, is_stored, now_us).map(|outcome| (outcome, now_us))
    }

    /// See [`Memory::charge_one`].
    #[inline(never)] // the code of each call stays short
    fn charge_slowly(
        &self,
        shard: &mut MemoryShard,
        id: CounterId,
        rule: &Rule,
        cost: u64,
        is_stored: bool,
        now_us: u64,
    ) -> Option<Outcome> {
        let place = rule.is_concurrent().then(|| Hold::of_permit(rule.period()));
        // Denies a slot for which the caller has to sleep.
        let query = ChargeQuery { longest_wait_ms: 0, hold: place.as_ref(), ..ChargeQuery::of(rule, cost) };
        let charged = if is_stored {
            self.charge_locked(shard, id, &query, now_us)
        } else {
            self.charge_new(shard, id, &query, now_us)
        };
        let outcome = charged.ok()?;
        (outcome.fits() || rule.decides_at_once() || place.is_some()).then_some(outcome)
    }

    /// Locks the shards of some counters, each once and in order.
    fn lock_shards(&self, ids: impl Iterator<Item = CounterId>) -> LockedShards<'_> {
        let mut indices: SmallVec<[usize; 2]> = ids.map(|id| self.shard_of(id)).collect();
        indices.sort_unstable();
        indices.dedup();
        let shards = spin_lock_all(&indices.iter().map(|index| &self.shards[*index].shard));
        LockedShards { memory: self, indices, shards }
    }

    /// The time of one decision in some shards.
    fn now_us_in(&self, shards: &mut LockedShards<'_>) -> u64 {
        let shards = &mut shards.shards;
        let now_us = shards.iter_mut().map(|shard| shard.now_us(&self.clock)).max().unwrap_or_default();
        shards.iter_mut().for_each(|shard| shard.latest_us = now_us);
        now_us
    }

    /// Decides a request.
    fn decide_one(&self, request: &mut Request, room: &mut RoomNotes) {
        let mut shards = self.lock_shards(request.charges.iter().map(|charge| charge.counter.id()));
        let now_us = self.now_us_in(&mut shards);
        let mut all_fit = true;
        for charge in &mut *request.charges {
            let (id, query) = (charge.counter.id(), charge.query());
            let found = shards.of(&id).update(id, query.rule, |state| evaluate(state, &query, now_us));
            let found = found.unwrap_or_else(|| self.evaluate_new(id, &query, now_us));
            all_fit &= found.fits;
            found.write_to(charge, [0; 2]);
        }
        request.outcome = Ok(all_fit);
        if !request.consume {
            return;
        }
        if !all_fit {
            for charge in request.charges.iter_mut().filter(|charge| charge.starts_ban()) {
                let (id, query) = (charge.counter.id(), charge.query());
                let banned = shards.of(&id).update(id, query.rule, |state| {
                    ban(state, query.rule, query.rule.ban_ms(), now_us);
                    evaluate(state, &query, now_us)
                });
                // A refusal of the overflow bans no key: its charges may be those of other keys.
                if let Some(found) = banned {
                    found.write_to(charge, [0; 2]);
                }
            }
            return;
        }

        let order = self.make_room_for(request, &mut shards, now_us);
        for (made, ChargeOrder { at, .. }) in order.iter().copied().enumerate() {
            let charge = &mut request.charges[at];
            if charge.cost == 0 {
                continue;
            }
            let (id, query) = (charge.counter.id(), charge.query());
            let charged = self.charge_locked(shards.of(&id), id, &query, now_us).or_else(|Full| {
                let has_room = self.has_room(1);
                let overflow = self.overflow.as_ref();
                let found = overflow.and_then(|overflow| overflow.charge(id, &query, has_room, now_us / 1000));
                room.overflows |= found.is_some();
                found.map(|found| Outcome::new(found.decision, [0; 2])).ok_or(Full)
            });
            if let Ok(outcome) = &charged {
                (charge.decision, charge.receipt) = (outcome.decision(charge.rule.limit()), outcome.receipt);
            }
            match charged {
                Ok(outcome) if outcome.fits() => charge.set_held_cost(),
                // It refuses nothing, so it is not counted.
                Err(Full) if charge.rule.is_shadow() => {
                    (charge.cost, charge.hold, charge.settles) = (0, None, false);
                    room.is_missing = true;
                }
                // In the overflow, others may have charged since it was evaluated.
                charged => {
                    for ChargeOrder { at, .. } in &order[..made] {
                        let charge = &request.charges[*at];
                        self.refund_or_release(shards.of(&charge.counter.id()), charge, now_us);
                    }
                    request.outcome = charged.map(|_| false).map_err(|Full| self.full());
                    return;
                }
            }
        }
    }

    /// Evaluates a counter that is not stored.
    fn evaluate_new(&self, id: CounterId, query: &ChargeQuery<'_>, now_us: u64) -> Evaluation {
        let overflow = self.overflow.as_ref();
        let found = overflow.and_then(|overflow| overflow.evaluate(id, query, now_us / 1000));
        found.unwrap_or_else(|| Evaluation::fresh(query.rule, query.least()))
    }

    /// Charges a counter that is not stored. One that is in the overflow stays there: here it would get a
    /// fresh quota.
    fn charge_new(
        &self,
        shard: &mut MemoryShard,
        id: CounterId,
        query: &ChargeQuery<'_>,
        now_us: u64,
    ) -> Result<Outcome, Full> {
        let overflow = self.overflow.as_ref();
        if overflow.is_some_and(|overflow| overflow.evaluate(id, query, now_us / 1000).is_some()) {
            return Err(Full);
        }
        let found = Evaluation::fresh(query.rule, query.least());
        if !found.fits || query.cost == 0 {
            return Ok(Outcome::new(found.decision, [0; 2]));
        }
        let room = found.decision.remaining;
        self.insert_new(shard, id, query.rule, now_us, |state| charge_fresh(state, query, room, now_us))
    }

    /// Refunds a charge, or releases its hold. Returns the amount that still counted.
    fn refund_or_release(&self, shard: &mut MemoryShard, charge: &Charge, now_us: u64) -> u64 {
        let Charge { counter, rule, cost, hold, receipt, .. } = charge;
        match hold {
            None => shard.refund(counter.id(), rule, *cost, *receipt, now_us),
            Some(hold) => self.settle_locked(shard, counter.id(), rule, hold, 0, now_us).unwrap_or(0),
        }
    }

    /// Replaces a hold by a charge of the amount used. Returns the amount that was still held. `Full` if the counter is
    /// gone, and there is no room for another one.
    fn settle_locked(
        &self,
        shard: &mut MemoryShard,
        id: CounterId,
        rule: &Rule,
        hold: &Hold,
        used: u64,
        now_us: u64,
    ) -> Result<u64, Full> {
        let settle = |state: &mut dyn MemoryState| state.settle(rule, hold, used, now_us);
        match shard.update(id, rule, settle) {
            None if used > 0 && !hold.is_retry && !rule.is_concurrent() => {
                self.insert_new(shard, id, rule, now_us, settle)
            }
            settled => Ok(settled.unwrap_or(0)),
        }
    }
}

impl MemoryShard {
    /// The time of a decision, see [`LockedTime`].
    fn now_us(&mut self, clock: &Clock) -> u64 {
        LockedTime { clock, latest_us: &mut self.latest_us, read: ClockReadings::default() }.us().us
    }

    /// Changes a counter. `None` if it is not stored.
    fn update<T>(&mut self, id: CounterId, rule: &Rule, act: impl FnOnce(&mut dyn MemoryState) -> T) -> Option<T> {
        let (sooner, done) = self.counters.update(id, rule, act)?;
        self.note_expiry(sooner);
        Some(done)
    }

    /// Refunds a charge. Returns the amount that still counted.
    fn refund(&mut self, id: CounterId, rule: &Rule, cost: u64, receipt: [u64; 2], now_us: u64) -> u64 {
        let refund = |state: &mut dyn MemoryState| {
            if state.is_fresh(now_us) { 0 } else { state.refund(rule, cost, receipt, now_us) }
        };
        self.update(id, rule, refund).unwrap_or(0)
    }

    fn note_expiry(&mut self, sooner_ms: Option<u64>) {
        if let Some(expires_at_ms) = sooner_ms {
            self.sweep_at_ms = self.sweep_at_ms.min(expires_at_ms);
        }
    }
}

impl Backend for Memory {
    type Ticket = Infallible;
    type Receipt = CounterReceipt;

    #[inline(always)]
    #[allow(clippy::inline_always)] // in each call
    fn try_charge(&self, query: &mut Query<'_>, _waiter: Option<Waiter<'_, Infallible>>) -> Attempt {
        // The time is read under the lock: a thread that is suspended between the two would combine
        // an old time with a newer state.
        let mut shard = self.shard(self.shard_of(query.id));
        // Unlocked in each branch: otherwise the result would be tested twice.
        if let Some((outcome, _)) = self.charge_one(&mut shard, query, ClockReadings::default(), false) {
            drop(shard);
            query.outcome = outcome;
            Attempt::Decided
        } else {
            drop(shard);
            Attempt::Unsupported // the general way decides
        }
    }

    #[inline]
    fn try_charge_all<const N: usize>(&self, queries: &mut [Query<'_>; N]) -> Attempt {
        self.charge_several(queries)
    }

    fn poll_charge(
        &self,
        ticket: &mut Infallible,
        _context: &mut Context<'_>,
    ) -> Poll<Result<(Outcome, CounterReceipt), Undecided>> {
        match *ticket {}
    }

    fn refund_charge(&self, receipt: CounterReceipt) -> Reply<Result<u64, StoreError>> {
        let CounterReceipt { id, cost, receipt: recorded, .. } = receipt;
        let mut shard = self.shard(self.shard_of(id));
        let now_us = shard.now_us(&self.clock);
        Reply::Ready(Ok(shard.refund(id, &receipt.rule(), cost, recorded, now_us)))
    }
}

impl Store for Memory {
    fn decide(&self, mut batch: Batch) -> Reply<Batch> {
        let mut room = RoomNotes::default();
        for request in &mut *batch {
            self.decide_one(request, &mut room);
        }
        // Without the locks: a log subscriber may call a limited function. Places have no owner yet.
        if room.overflows {
            observe::shielded(observe::memory_overflows);
        }
        if room.is_missing {
            observe::shielded(|| observe::memory_is_full(&self.full()));
        }
        Reply::Ready(batch)
    }

    fn refund(&self, charges: Charges) -> Reply<Result<u64, StoreError>> {
        let refund = |charge: &Charge| {
            let mut shard = self.shard(self.shard_of(charge.counter.id()));
            let now_us = shard.now_us(&self.clock);
            self.refund_or_release(&mut shard, charge, now_us)
        };
        Reply::Ready(Ok(charges.iter().filter(|charge| charge.cost > 0).map(refund).sum()))
    }

    fn supports_holds(&self) -> bool {
        true
    }

    fn renew(&self, charges: Vec<Charge>) -> Reply<Result<Vec<bool>, StoreError>> {
        let renew = |Charge { counter, rule, hold, .. }: &Charge| {
            let Some(hold) = hold else { return false };
            let mut shard = self.shard(self.shard_of(counter.id()));
            let now_us = shard.now_us(&self.clock);
            let is_held = shard.update(counter.id(), rule, |state| state.renew(hold, now_us));
            is_held.unwrap_or(false)
        };
        Reply::Ready(Ok(charges.iter().map(renew).collect()))
    }

    fn settle(&self, charge: Charge, used: u64) -> Reply<Result<(), StoreError>> {
        let Charge { counter, rule, hold, .. } = &charge;
        let Some(hold) = hold else { return Reply::Ready(Ok(())) };
        let mut shard = self.shard(self.shard_of(counter.id()));
        let now_us = shard.now_us(&self.clock);
        let settled = self.settle_locked(&mut shard, counter.id(), rule, hold, used, now_us);
        Reply::Ready(settled.map(drop).map_err(|Full| self.full()))
    }

    fn supports_bans(&self) -> bool {
        true
    }

    fn ban(&self, charge: Charge, time: Duration) -> Reply<Result<(), StoreError>> {
        let Charge { counter, rule, .. } = &charge;
        let (id, mut time_ms) = (counter.id(), ban_ms(time));
        let mut shard = self.shard(self.shard_of(id));
        let now_us = shard.now_us(&self.clock);
        if time_ms > 0 {
            // While charges in the overflow count, the counter gets no fresh window after the ban.
            time_ms = time_ms.max(self.evaluate_new(id, &ChargeQuery::of(rule, 1), now_us).decision.reset_after_ms);
        }
        let act = |state: &mut dyn MemoryState| {
            ban(state, rule, time_ms, now_us);
            state.is_fresh(now_us)
        };
        match shard.update(id, rule, act) {
            Some(true) => self.remove(&mut shard, id),
            None if time_ms > 0 => {
                let banned = self.insert_new(&mut shard, id, rule, now_us, |state| _ = act(state));
                return Reply::Ready(banned.map_err(|Full| self.full()));
            }
            Some(false) | None => {}
        }
        Reply::Ready(Ok(()))
    }

    fn reset(&self, counter: CounterName) -> Reply<Result<(), StoreError>> {
        let id = counter.id();
        self.remove(&mut self.shard(self.shard_of(id)), id);
        Reply::Ready(Ok(()))
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory")
            .field("capacity", &self.capacity)
            .field("stored", &self.stored.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }
}

impl LockedShards<'_> {
    fn of(&mut self, id: &CounterId) -> &mut MemoryShard {
        let index = self.memory.shard_of(*id);
        let at = self.indices.binary_search(&index).unwrap_or_default();
        &mut self.shards[at]
    }
}

/// Enough for each processor that two threads seldom want the same one, and few enough for small ones to stay in a
/// processor's first cache.
fn number_of_shards() -> usize {
    const FOR_EACH_PROCESSOR: usize = 16;
    if cfg!(all(test, model_check)) {
        return 2;
    }
    let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    FOR_EACH_PROCESSOR * processors.min(64)
}
