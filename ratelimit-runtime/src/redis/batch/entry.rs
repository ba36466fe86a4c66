//! A decision in the batch queue, with all the callers who share it.

use std::{
    fmt, mem,
    sync::{Arc, OnceLock},
    task::Waker,
    time::Duration,
};

use smallvec::SmallVec;
use tokio::{runtime::Id, time::Instant};

use super::result::{BatchResult, CallerResult, EntryReply, SendError};
use crate::{
    algorithm,
    backend::QueryTag,
    store::{Charge, Charges, StoreError},
    sync::{SpinMutex, SpinMutexGuard, spin_lock},
};

/// A decision and its callers.
pub(crate) struct BatchEntry {
    pub(super) charges: Charges,
    pub(super) consume: bool,
    slot: u16,
    tag: Option<QueryTag>,
    /// The time of arrival of the first caller, if there is no tag, which tells it. `None` in model checks.
    began: Option<Instant>,
    /// Runtime of the queue; `None` in model checks.
    pub(super) runtime: Option<Id>,
    callers: SpinMutex<EntryCallers>,
    /// The result, and the callers it excludes: cancelled or timed out before it was sent.
    result: OnceLock<(BatchResult, Vec<usize>)>,
}

#[derive(Debug, Default)]
pub(super) struct EntryCallers {
    /// In order of arrival.
    pub(super) all: SmallVec<[EntryCaller; 1]>,
    /// Number of callers that have timed out: the first ones.
    pub(super) timed_out: usize,
}

#[derive(Debug)]
pub(super) struct EntryCaller {
    pub(super) waker: Waker,
    /// Time of arrival, by the clock of the queue.
    pub(super) since_ms: u64,
    pub(super) is_cancelled: bool,
}

impl EntryCaller {
    pub(super) fn new(waker: &Waker, since_ms: u64) -> Self {
        Self { waker: waker.clone(), since_ms, is_cancelled: false }
    }
}

impl BatchEntry {
    pub(super) fn new(
        charges: Charges,
        consume: bool,
        slot: u16,
        tag: Option<QueryTag>,
        runtime: Option<Id>,
        caller: EntryCaller,
    ) -> Self {
        let callers = SpinMutex::new(EntryCallers { all: SmallVec::from([caller]), ..EntryCallers::default() });
        let began = (tag.is_none() && runtime.is_some()).then(Instant::now);
        Self { charges, consume, slot, tag, began, runtime, callers, result: OnceLock::new() }
    }

    /// Charge of an entry on one counter.
    pub(crate) fn charge(&self) -> Option<&Charge> {
        self.charges.first()
    }

    pub(crate) fn tag(&self) -> Option<QueryTag> {
        self.tag
    }

    pub(super) fn began(&self) -> Option<Instant> {
        self.began
    }

    pub(crate) fn slot(&self) -> u16 {
        self.slot
    }

    /// Charges of one caller, to be refunded with its receipt.
    pub(crate) fn charged(&self, receipt: [u64; 2]) -> Charges {
        let mut charges = self.charges.clone();
        charges.iter_mut().for_each(|charge| charge.receipt = receipt);
        charges
    }

    /// Adds a caller and returns its index.
    #[allow(clippy::cast_possible_truncation)] // callers take more room each than that many could have
    pub(super) fn join(&self, caller: EntryCaller) -> u32 {
        let mut callers = self.lock();
        callers.all.push(caller);
        callers.all.len() as u32 - 1
    }

    /// Upper bound of the script steps that the server needs for the entry.
    pub(super) fn steps(&self) -> u64 {
        let decisions = match &*self.charges {
            [_] if self.lock().all.len() > 1 => algorithm::DECISIONS_PER_REPEAT,
            [_] => 1,
            _ => algorithm::DECISIONS_PER_TRANSACTION,
        };
        decisions * self.charges.iter().map(algorithm::steps).sum::<u64>()
    }

    /// Arrival of the first caller that has not timed out.
    pub(super) fn oldest_ms(&self) -> Option<u64> {
        let callers = self.lock();
        callers.all.get(callers.timed_out).map(|caller| caller.since_ms)
    }

    /// Fixes the callers that a round trip is made for. `None` if all of them are gone.
    pub(super) fn into_sent(self: Arc<Self>) -> Option<SentEntry> {
        let callers = self.lock();
        let timed_out = callers.timed_out;
        let is_gone = |(at, caller): (usize, &EntryCaller)| (at < timed_out || caller.is_cancelled).then_some(at);
        let gone: Vec<_> = callers.all.iter().enumerate().filter_map(is_gone).collect();
        let count = callers.all.len() - gone.len();
        let since_ms = callers.all.first()?.since_ms;
        drop(callers);
        (count > 0).then(|| SentEntry { entry: self, callers: count, since_ms, gone })
    }

    /// Times out the callers that arrived no later than `until_ms`.
    pub(super) fn time_out(&self, until_ms: u64) {
        let mut callers = self.lock();
        let timed_out = callers.all.partition_point(|caller| caller.since_ms <= until_ms);
        let wakers: Vec<_> = callers.all[callers.timed_out.min(timed_out)..timed_out]
            .iter()
            .map(|caller| caller.waker.clone())
            .collect();
        callers.timed_out = callers.timed_out.max(timed_out);
        drop(callers);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Sets the result and wakes the callers.
    fn complete(&self, result: BatchResult, gone: Vec<usize>) {
        let _ = self.result.set((result, gone));
        let callers = mem::take(&mut self.lock().all);
        for caller in callers {
            caller.waker.wake();
        }
    }

    pub(super) fn lock(&self) -> SpinMutexGuard<'_, EntryCallers> {
        spin_lock(&self.callers)
    }

    /// Result for one caller, once there is one. `Some(None)` if it was not sent for that caller.
    #[allow(clippy::option_option)] // no result yet, or never one
    pub(super) fn result(&self, index: usize) -> Option<Option<CallerResult<'_>>> {
        let (result, gone) = self.result.get()?;
        let Err(before) = gone.binary_search(&index) else { return Some(None) };
        Some(Some(result.of_caller(index - before)))
    }
}

impl fmt::Debug for BatchEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchEntry").field("charges", &self.charges).finish_non_exhaustive()
    }
}

/// An entry whose round trip has begun, or is about to.
///
/// Dropping it without a result tells its callers that the round trip was aborted.
#[derive(Debug)]
pub(crate) struct SentEntry {
    entry: Arc<BatchEntry>,
    callers: usize,
    /// Arrival of the first caller.
    since_ms: u64,
    /// Indices of the callers that were cancelled or timed out before.
    gone: Vec<usize>,
}

impl SentEntry {
    pub(crate) fn charges(&self) -> &[Charge] {
        &self.entry.charges
    }

    pub(crate) fn consume(&self) -> bool {
        self.entry.consume
    }

    pub(crate) fn slot(&self) -> u16 {
        self.entry.slot
    }

    /// Number of callers that the round trip is made for.
    pub(crate) fn callers(&self) -> usize {
        self.callers
    }

    /// Arrival of the first caller.
    pub(crate) fn since_ms(&self) -> u64 {
        self.since_ms
    }

    /// Both make the same charge of one counter.
    pub(crate) fn is_repeat_of(&self, other: &Self) -> bool {
        match (self.charges(), other.charges()) {
            ([one], [other_one]) => {
                let consume = self.consume() && other.consume() && one.cost > 0;
                consume && one.counter == other_one.counter && is_same_charge(one, other_one)
            }
            _ => false,
        }
    }

    /// Number of equal charges to make: one for each caller, or 1 if nothing is charged.
    pub(crate) fn times(&self) -> usize {
        match self.charges() {
            [charge] if self.consume() && charge.cost > 0 => self.callers,
            _ => 1,
        }
    }

    /// Times out callers; see [`BatchEntry::time_out`]. Returns the arrival of the first one left.
    pub(crate) fn time_out(&self, until_ms: u64) -> Option<u64> {
        self.entry.time_out(until_ms);
        self.entry.oldest_ms()
    }

    /// Ends the entry with an error, unless it has ended.
    pub(crate) fn fail(mut self, error: SendError) {
        self.entry.complete(BatchResult::Failure(error), mem::take(&mut self.gone));
    }

    /// Ends the entry with the server's reply, unless it has ended.
    pub(crate) fn answer(&self, reply: EntryReply) {
        if self.entry.result.get().is_none() {
            self.entry.complete(BatchResult::parse(reply, self.entry.charge()), self.gone.clone());
        }
    }
}

impl Drop for SentEntry {
    fn drop(&mut self) {
        if self.entry.result.get().is_none() {
            let error = StoreError::unavailable("its tokio runtime is shutting down");
            let failure = BatchResult::Failure(SendError::Indeterminate(error));
            self.entry.complete(failure, mem::take(&mut self.gone));
        }
    }
}

/// Checks that two charges of one counter can be decided together: as one look, or as one charge of
/// twice the cost.
pub(crate) fn is_same_charge(one: &Charge, other: &Charge) -> bool {
    // A leaky bucket's slot may be too late for one and in time for the other: then only one is
    // charged.
    let has_slots = algorithm::capabilities(one.rule.algorithm()).has_slots;
    one.cost == other.cost
        && one.rule == other.rule
        && (!has_slots || [one, other].map(|charge| charge.longest_wait) == [Duration::MAX; 2])
}
