//! The batch queue: which entries the next round trip carries, and when one is needed.

use std::{
    collections::{HashMap, VecDeque},
    hash::BuildHasherDefault,
    sync::{Arc, atomic::Ordering},
    task::Waker,
};

use tokio::runtime::Id;

use super::{
    entry::{BatchEntry, EntryCaller, SentEntry},
    ticket::BatchTicket,
};
use crate::{
    Clock, algorithm,
    backend::QueryTag,
    counter::{CounterId, IdentityHasher},
    observe,
    store::{Charge, Charges},
    sync::{AtomicU64, AtomicUsize, CachePadded, SpinMutex, SpinMutexGuard, spin_lock, spin_lock_all, thread_index},
};

#[cfg(all(test, model_check))]
mod model_check;

/// Up to this many round trips, each new entry begins one. With more in flight, entries wait, and one more begins each
/// time that [`MAX_ENTRIES`] of them wait.
const FREE_ROUND_TRIPS: u64 = if cfg!(all(test, model_check)) { 1 } else { 4 };
/// Maximum number of entries of a round trip; fewer if their scripts take more than `MAX_STEPS`. `decide_batch` in
/// `command.rs` counts them in one byte.
const MAX_ENTRIES: usize = 64;
const _: () = assert!(MAX_ENTRIES < 255);
const SHARDS: usize = if cfg!(all(test, model_check)) { 2 } else { 16 };

/// Entries that wait for a round trip, of one server on one runtime.
///
/// Each thread adds to a shard of its own: threads that share one spend half their time waiting for
/// each other. The oldest entry of all shards is taken first. A caller may join an entry that is older than one on
/// another thread. The calls in both have not ended then, so no order is promised.
#[derive(Debug)]
pub(crate) struct BatchQueue {
    shards: [CachePadded<SpinMutex<QueueShard>>; SHARDS],
    state: CachePadded<AtomicU64>,
    /// Number of entries ever added.
    added: CachePadded<AtomicU64>,
    /// Number of callers of the round trip that began last.
    last_callers: AtomicUsize,
    /// Measures how long callers wait: system time, whatever the limiter's clock is.
    clock: Clock,
    /// Runtime of its round trips.
    runtime: Option<Id>,
}

impl Default for BatchQueue {
    fn default() -> Self {
        let (shards, state, added, last_callers) = Default::default();
        Self { shards, state, added, last_callers, clock: Clock::unpaused(), runtime: None }
    }
}

#[derive(Debug, Default)]
struct QueueShard {
    /// Entries, each with its number among those of all shards.
    waiting: VecDeque<(u64, Arc<BatchEntry>)>,
    /// Number of entries ever taken: the index, in this shard, of the first that waits.
    taken: u64,
    /// Index of the latest entry on each counter. A caller joins only that one: joining an earlier
    /// entry would pass those between.
    latest: HashMap<CounterId, u64, BuildHasherDefault<IdentityHasher>>,
}

/// Round trips in flight and entries waiting, packed into a word.
///
/// It changes together with a shard, under that shard's lock.
#[derive(Clone, Copy)]
struct BatchQueueState(u64);

impl BatchQueueState {
    /// A caller sends by itself, as nothing else is in flight: that saves a task switch.
    const BYPASS: u64 = 1;
    /// A round trip that is in flight, or about to be.
    const ROUND_TRIP: u64 = 1 << 1;
    /// An entry that waits.
    const WAITING: u64 = 1 << 32;

    fn is_idle(self) -> bool {
        self.0 == 0
    }

    fn round_trips(self) -> u64 {
        (self.0 % Self::WAITING) / Self::ROUND_TRIP
    }

    fn waiting(self) -> u64 {
        self.0 / Self::WAITING
    }

    /// The entry that was added last needs a further round trip.
    fn needs_round_trip(self) -> bool {
        self.round_trips() < FREE_ROUND_TRIPS || self.waiting().is_multiple_of(MAX_ENTRIES as u64)
    }
}

impl BatchQueue {
    /// Queue of a runtime.
    pub(crate) fn on(runtime: Id) -> Self {
        Self { runtime: Some(runtime), ..Self::default() }
    }

    /// Lets a caller send by itself if nothing is in flight. The caller then owes
    /// [`BatchQueue::end_bypass`].
    pub(crate) fn try_bypass(&self) -> bool {
        self.state.compare_exchange(0, BatchQueueState::BYPASS, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    pub(crate) fn end_bypass(&self) {
        self.state.fetch_sub(BatchQueueState::BYPASS, Ordering::AcqRel);
    }

    /// Joins the waiting entry that makes the same charge. Without one, `Err` tells whether the
    /// queue is idle: nothing waits and nothing is in flight.
    pub(crate) fn join(
        &self,
        id: CounterId,
        is_same: impl Fn(&Charge) -> bool,
        consume: bool,
        waker: &Waker,
    ) -> Result<BatchTicket, bool> {
        let shard = self.lock();
        let since_ms = self.now_ms(); // under the lock, as an entry's callers stand in this order
        let latest = shard.latest(id).filter(|entry| match &*entry.charges {
            [charge] => entry.consume == consume && charge.counter.id() == id && is_same(charge),
            _ => false,
        });
        match latest {
            Some(entry) => {
                let index = entry.join(EntryCaller::new(waker, since_ms));
                Ok(BatchTicket::new(Arc::clone(entry), index))
            }
            None => Err(self.state().is_idle()),
        }
    }

    /// Adds an entry, and tells whether a round trip is to begin. Then the caller owes calls of
    /// [`BatchQueue::take`] until that returns `None`, or [`BatchQueue::abort`].
    pub(crate) fn add(
        &self,
        charges: Charges,
        consume: bool,
        slot: u16,
        tag: Option<QueryTag>,
        waker: &Waker,
    ) -> (BatchTicket, bool) {
        let caller = EntryCaller::new(waker, self.now_ms());
        let entry = Arc::new(BatchEntry::new(charges, consume, slot, tag, self.runtime, caller));
        let mut shard = self.lock();
        let number = self.added.fetch_add(1, Ordering::Relaxed);
        let index = shard.taken + shard.waiting.len() as u64;
        for charge in entry.charges.iter() {
            shard.latest.insert(charge.counter.id(), index);
        }
        shard.waiting.push_back((number, Arc::clone(&entry)));
        let mut begin = false;
        self.change(|BatchQueueState(state)| {
            let added = state + BatchQueueState::WAITING;
            begin = BatchQueueState(added).needs_round_trip();
            Some(if begin { added + BatchQueueState::ROUND_TRIP } else { added })
        });
        (BatchTicket::new(entry, 0), begin)
    }

    /// The last round trip had several callers. They are woken together, so they may also call
    /// again together.
    pub(crate) fn is_crowded(&self) -> bool {
        self.last_callers.load(Ordering::Relaxed) > 1
    }

    /// Entries of the next round trip. `None` if nothing waits, which ends the round trip.
    pub(crate) fn take(&self) -> Option<Vec<SentEntry>> {
        loop {
            let taken = self.take_oldest(MAX_ENTRIES);
            if taken.is_empty() && self.end_round_trip() {
                return None;
            }
            let mut entries = Vec::with_capacity(taken.len());
            entries.extend(taken.into_iter().filter_map(BatchEntry::into_sent));
            if !entries.is_empty() {
                let callers = entries.iter().map(SentEntry::callers).sum();
                self.last_callers.store(callers, Ordering::Relaxed);
                observe::store_round_trip(callers);
                return Some(entries);
            }
        }
    }

    /// Takes up to `count` entries, the oldest first, and no more than a server may be kept busy
    /// with.
    fn take_oldest(&self, count: usize) -> Vec<Arc<BatchEntry>> {
        let mut shards = spin_lock_all::<_, SHARDS>(&self.shards.iter().map(|shard| &**shard));
        shards.retain(|shard| !shard.waiting.is_empty());
        let mut taken = Vec::with_capacity(count.min(shards.iter().map(|shard| shard.waiting.len()).sum()));
        let mut steps = 0;
        while taken.len() < count
            && let Some(shard) = shards.iter_mut().min_by_key(|shard| shard.first())
            && let Some((_, entry)) = shard.waiting.front()
        {
            steps += entry.steps();
            if steps > algorithm::MAX_STEPS && !taken.is_empty() {
                break;
            }
            taken.extend(shard.take());
        }
        self.state.fetch_sub(taken.len() as u64 * BatchQueueState::WAITING, Ordering::AcqRel);
        taken
    }

    /// Times out the callers that arrived no later than `until_ms`. Returns the arrival of the
    /// first one left.
    pub(crate) fn time_out(&self, until_ms: u64) -> Option<u64> {
        for shard in &self.shards {
            let waiting: Vec<_> = {
                let shard = lock(shard);
                // Not only the first one: a caller who joined a later one may be left alone in it, as its oldest.
                let late = shard.waiting.iter().filter(|(_, entry)| entry.oldest_ms() <= Some(until_ms));
                late.map(|(_, entry)| Arc::clone(entry)).collect()
            };
            for entry in &waiting {
                entry.time_out(until_ms);
            }
        }
        self.oldest_ms()
    }

    /// Arrival of the first caller that waits.
    pub(crate) fn oldest_ms(&self) -> Option<u64> {
        let oldest = |shard| lock(shard).waiting.iter().filter_map(|(_, entry)| entry.oldest_ms()).min();
        self.shards.iter().filter_map(oldest).min()
    }

    /// Fails all that wait: a round trip has ended early, so the runtime is shutting down.
    pub(crate) fn abort(&self) {
        loop {
            let waiting = self.take_oldest(usize::MAX);
            drop(waiting.into_iter().filter_map(BatchEntry::into_sent).collect::<Vec<_>>());
            if self.end_round_trip() {
                return;
            }
        }
    }

    /// Ends a round trip unless an entry has been added meanwhile. An entry that is added later
    /// finds it ended.
    fn end_round_trip(&self) -> bool {
        self.change(|state| (state.waiting() == 0).then_some(state.0 - BatchQueueState::ROUND_TRIP))
    }

    fn state(&self) -> BatchQueueState {
        BatchQueueState(self.state.load(Ordering::Acquire))
    }

    /// Returns true if the state was changed.
    fn change(&self, mut change: impl FnMut(BatchQueueState) -> Option<u64>) -> bool {
        let change = |state| change(BatchQueueState(state));
        self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).is_ok()
    }

    /// Time in milliseconds since an arbitrary moment.
    #[inline]
    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    /// Locks the shard of this thread.
    fn lock(&self) -> SpinMutexGuard<'_, QueueShard> {
        lock(&self.shards[thread_index() % SHARDS])
    }
}

impl QueueShard {
    /// The latest entry on a counter, if it waits.
    fn latest(&self, counter: CounterId) -> Option<&Arc<BatchEntry>> {
        let at = self.latest.get(&counter)?.checked_sub(self.taken)?;
        self.waiting.get(usize::try_from(at).ok()?).map(|(_, entry)| entry)
    }

    /// Number of the first entry that waits.
    fn first(&self) -> u64 {
        self.waiting.front().map_or(u64::MAX, |(number, _)| *number)
    }

    /// Takes the first entry.
    fn take(&mut self) -> Option<Arc<BatchEntry>> {
        let (_, entry) = self.waiting.pop_front()?;
        for charge in entry.charges.iter() {
            let id = charge.counter.id();
            if self.latest.get(&id) == Some(&self.taken) {
                self.latest.remove(&id);
            }
        }
        self.taken += 1;
        Some(entry)
    }
}

fn lock(shard: &CachePadded<SpinMutex<QueueShard>>) -> SpinMutexGuard<'_, QueueShard> {
    spin_lock(shard)
}
