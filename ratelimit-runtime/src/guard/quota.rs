//! Prefetched quota: permits of fixed windows, charged at the store several at a time and spent
//! here.
//!
//! At most one prefetch of a counter is under way. A caller who finds too little quota waits for
//! it, in the order of arrival. The prefetch belongs to no single caller.
//!
//! `Guard::close`, the drop of `GuardInner` and a changed count refund what is left of it. The quota of a
//! killed process stays charged until the window ends.

use std::{
    collections::{HashMap, VecDeque},
    hash::BuildHasherDefault,
    mem,
    sync::atomic::{AtomicUsize, Ordering},
};

use tokio::sync::oneshot;

use crate::{
    CounterName, Decision, Rule,
    counter::{CounterId, IdentityHasher},
    decision::{Outcome, wait_ms},
    store::{Charge, StoreError},
    sync::{CachePadded, SpinMutex, SpinMutexGuard, spin_lock},
};

#[cfg(all(test, model_check))]
mod model_check;
#[cfg(all(test, not(model_check)))]
mod tests;

/// The prefetched quota of all counters, in shards, for all threads.
#[derive(Debug)]
pub(super) struct QuotaBatches {
    shards: Box<[CachePadded<SpinMutex<QuotaShard>>]>,
    /// The number of prefetch tasks that run or are about to, and of their requests. Counted under the lock of a shard
    /// that is not closed, so none is added after [`QuotaBatches::close`].
    tasks: AtomicUsize,
}

#[derive(Debug, Default)]
struct QuotaShard {
    batches: HashMap<CounterId, QuotaBatch, BuildHasherDefault<IdentityHasher>>,
    /// Set for good by [`QuotaBatches::close`]: no prefetch task starts any more. A running one goes on while callers
    /// wait for it.
    is_closed: bool,
    /// Set for good by [`QuotaBatches::drain`]: what a prefetch leaves is refunded at its end.
    is_drained: bool,
    /// The earliest time of the next sweep, if the shard is full.
    sweep_at_us: u64,
}

/// The prefetched quota of one counter's window, and the callers who wait for more.
#[derive(Debug)]
struct QuotaBatch {
    counter: CounterName,
    rule: Rule,
    left: u64,
    /// The receipt of the window's first charge, which all permits of the window get. On Redis the first number may be
    /// that of another window, too, and the second one differs between charges of one window.
    receipt: [u64; 2],
    /// A lower bound of the window's end, counted from when the query was sent: quota is spent
    /// until then.
    ends_after_us: u64,
    /// An upper bound of the window's end, counted from when the answer arrived: callers see this
    /// one.
    ends_by_us: u64,
    /// The permits that remained at the store, by its last answer.
    remaining: u64,
    /// The arrival of the last prefetch.
    arrived_us: u64,
    /// The number of its permits.
    arrived: u64,
    /// The size of a prefetch, as a multiple of `Rule::prefetch`.
    factor: u64,
    is_prefetching: bool,
    waiting: VecDeque<Waiting>,
    /// How often the quota was invalidated: by a reset, or by a rule with another count.
    invalidations: u64,
    /// Invalidated quota to be refunded: of another count, or from a prefetch that was under way. The next prefetch
    /// refunds it first, as it takes the room of the new charge.
    owed: Option<Owed>,
}

/// A charge to be refunded.
#[derive(Debug)]
struct Owed {
    charge: Charge,
    /// A lower bound of its window's end.
    ends_after_us: u64,
}

#[derive(Debug)]
struct Waiting {
    cost: u64,
    since_us: u64,
    answer: oneshot::Sender<QuotaAnswer>,
}

/// The answer to a caller who waits for a prefetch.
#[derive(Debug)]
pub(super) enum QuotaAnswer {
    /// The cost, and the outcome of spending it.
    Spent(u64, Outcome),
    /// Neither the quota nor the store has enough.
    Denied(Decision),
    Failed(StoreError),
}

/// Answers to be sent.
type QuotaAnswers = Vec<(oneshot::Sender<QuotaAnswer>, QuotaAnswer)>;

/// The result of [`QuotaBatches::spend_or_wait`].
#[derive(Debug)]
pub(super) enum SpendResult {
    Spent(Outcome),
    Waits(oneshot::Receiver<QuotaAnswer>),
    /// The store is asked for this cost alone: the shard is full or closed, or callers wait for permits under another
    /// count.
    AskUpstream,
}

/// A charge of several permits that is to be made. It counts as under way from the moment it is
/// returned.
#[derive(Debug)]
pub(super) struct Prefetch {
    pub(super) id: CounterId,
    pub(super) counter: CounterName,
    pub(super) rule: Rule,
    pub(super) cost: u64,
    /// Invalidated quota, to be refunded before: see [`QuotaBatch::owed`].
    pub(super) refund: Option<Charge>,
    invalidations: u64,
}

/// Actions that must wait until the shard's lock is free.
#[derive(Debug, Default)]
pub(super) struct FollowUp {
    pub(super) answers: QuotaAnswers,
    pub(super) prefetch: Option<Prefetch>,
    /// Invalidated quota, to be refunded to the store. With a prefetch, that one has it.
    pub(super) refund: Option<Charge>,
}

const SHARDS: usize = if cfg!(all(test, model_check)) { 2 } else { 64 };
/// Batches in a shard. All shards have 65,536.
const CAPACITY: usize = if cfg!(test) { 2 } else { 1024 };
const SWEEP_PAUSE_US: u64 = 100_000;
/// If a prefetch lasts for less than this, the next one is twice as large.
const GROW_BELOW_US: u64 = 10_000;
/// If a prefetch lasts for longer than this, the next one is half as large.
const SHRINK_ABOVE_US: u64 = 40_000;
/// The largest prefetch, as a multiple of `Rule::prefetch`.
const MAX_FACTOR: u64 = 64;
const NO_RECEIPT: [u64; 2] = [u64::MAX; 2];

impl QuotaBatches {
    pub(super) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| CachePadded::default()).collect(), tasks: AtomicUsize::new(0) }
    }

    #[allow(clippy::cast_possible_truncation)] // the low bits are enough
    #[inline]
    fn shard(&self, id: CounterId) -> SpinMutexGuard<'_, QuotaShard> {
        spin_lock(&self.shards[id.0 as usize % SHARDS])
    }

    /// Spends quota that is here, and returns the prefetch to start because little is left.
    ///
    /// `Err` with the number of permits that are here: too few, of another count, or callers wait for them. Those of
    /// another count give room to this one when they are refunded.
    #[inline]
    pub(super) fn spend(
        &self,
        id: CounterId,
        rule: &Rule,
        cost: u64,
        now_us: u64,
    ) -> Result<(Outcome, Option<Prefetch>), u64> {
        let mut shard = self.shard(id);
        let QuotaShard { batches, is_closed, .. } = &mut *shard;
        let batch = batches.get_mut(&id).ok_or(0_u64)?;
        let left = batch.left_at(now_us);
        if left < cost || !batch.waiting.is_empty() || batch.rule.count() != rule.count() {
            return Err(left);
        }
        let spent = batch.spend(cost, now_us);
        let is_low = batch.factor > 1 && batch.left < batch.arrived / 2 && !*is_closed;
        let prefetch = if is_low { batch.prefetch_early(id, now_us) } else { None };
        self.count_task(prefetch.is_some());
        Ok((spent, prefetch))
    }

    /// The rest of a count: at the store, and of the quota that is here.
    pub(super) fn remaining(&self, id: CounterId, count: u64, at_store: u64, now_us: u64) -> u64 {
        let shard = self.shard(id);
        let Some(batch) = shard.batches.get(&id) else { return at_store };
        let left = batch.left_at(now_us);
        if at_store > 0 || batch.rule.count() <= count {
            return (at_store + left).min(count);
        }
        // More than this count may be charged, so a part of the quota gives no room when it is refunded.
        let charged = batch.rule.count().saturating_sub(batch.remaining);
        count.saturating_sub(charged.saturating_sub(left)).min(left)
    }

    /// Spends quota that is here, or joins the callers who wait for a prefetch.
    pub(super) fn spend_or_wait(
        &self,
        counter: &CounterName,
        rule: &Rule,
        cost: u64,
        now_us: u64,
    ) -> (SpendResult, FollowUp) {
        let (id, mut follow_up) = (counter.id(), FollowUp::default());
        let mut shard = self.shard(id);
        if shard.is_closed || !shard.make_room(id, now_us) {
            return (SpendResult::AskUpstream, follow_up);
        }
        let batch = shard.batches.entry(id).or_insert_with(|| QuotaBatch::new(counter, rule));
        if batch.rule.count() != rule.count() {
            if batch.has_waiting() {
                return (SpendResult::AskUpstream, follow_up); // those wait for permits under their count
            }
            let left = batch.invalidate(); // quota of another count may exceed what this count allows
            batch.owe(left, now_us);
        }
        batch.rule = *rule;
        if !batch.has_waiting() && batch.left_at(now_us) >= cost {
            return (SpendResult::Spent(batch.spend(cost, now_us)), follow_up);
        }
        let (answer, receiver) = oneshot::channel();
        batch.waiting.push_back(Waiting { cost, since_us: now_us, answer });
        if !batch.is_prefetching {
            batch.adapt(now_us);
            let remaining = batch.remaining_at(now_us);
            follow_up.prefetch = Some(batch.next_prefetch(id, remaining, now_us));
            self.count_task(true);
        }
        (SpendResult::Waits(receiver), follow_up)
    }

    pub(super) fn count_task(&self, is_new: bool) {
        if is_new {
            self.tasks.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Counts a prefetch task as ended. Returns whether it was the last one.
    pub(super) fn task_ended(&self) -> bool {
        self.tasks.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Checks whether a prefetch task runs, or is about to.
    pub(super) fn has_tasks(&self) -> bool {
        self.tasks.load(Ordering::Acquire) > 0
    }

    /// Takes over the store's answer to a prefetch, and answers the waiting callers.
    ///
    /// `result`: the charge and whether it was made, or an error. The next prefetch, if one is
    /// needed, counts as under way when this returns.
    pub(super) fn finish_prefetch(
        &self,
        prefetch: &Prefetch,
        result: Result<(Charge, bool), StoreError>,
        sent_us: u64,
        now_us: u64,
    ) -> FollowUp {
        let mut follow_up = FollowUp::default();
        let mut shard = self.shard(prefetch.id);
        let QuotaShard { batches, is_closed, is_drained, .. } = &mut *shard;
        let Some(batch) = batches.get_mut(&prefetch.id) else { return follow_up };
        batch.is_prefetching = false;
        let mut remaining = batch.rule.count();
        match result {
            Err(error) => batch.fail(&error, now_us, &mut follow_up.answers),
            // Invalidated meanwhile, before or after the store made this charge. So it must not be
            // spent.
            Ok((charge, is_charged)) if batch.invalidations != prefetch.invalidations => {
                let ends_after_us = ends_after_us(sent_us, charge.decision.reset_after_ms);
                batch.owe(is_charged.then_some(Owed { charge, ends_after_us }), now_us);
            }
            Ok((charge, true)) => {
                batch.add(&charge, sent_us, now_us);
                batch.serve(sent_us, now_us, &mut follow_up.answers);
                remaining = batch.remaining_at(now_us);
            }
            Ok((charge, false)) => {
                remaining = charge.decision.remaining;
                batch.deny(charge.decision, sent_us, now_us, &mut follow_up.answers);
                batch.serve(0, now_us, &mut follow_up.answers); // callers behind the denied ones may fit what is here
            }
        }
        if batch.has_waiting() {
            follow_up.prefetch = Some(batch.next_prefetch(prefetch.id, remaining, now_us));
        } else if *is_drained || !*is_closed {
            if *is_drained {
                let left = batch.invalidate();
                batch.owe(left, now_us);
            }
            follow_up.refund = batch.owed.take().map(|owed| owed.charge); // otherwise `drain` takes it
        }
        follow_up
    }

    /// Ends a prefetch without an answer. Its callers get an error, because their senders are
    /// dropped.
    pub(super) fn abort_prefetch(&self, id: CounterId) {
        let mut shard = self.shard(id);
        let waiting = shard.batches.get_mut(&id).map(|batch| {
            batch.is_prefetching = false;
            mem::take(&mut batch.waiting)
        });
        drop(shard);
        drop(waiting); // after the lock: this wakes the callers, and a waker may run any code
    }

    /// Puts permits back into the quota. `None` if that is not possible: their window may be over, the quota is closed,
    /// or it has another count than they have. More may be charged under a higher count than a lower one allows.
    ///
    /// `count` is `None` for permits that were spent from this quota. They fit under its count: if that was lowered
    /// since, its charge was made while they counted.
    pub(super) fn put_back(
        &self,
        id: CounterId,
        count: Option<u64>,
        receipt: [u64; 2],
        cost: u64,
        now_us: u64,
    ) -> Option<FollowUp> {
        let mut shard = self.shard(id);
        let QuotaShard { batches, is_closed: false, .. } = &mut *shard else { return None };
        let is_same_window = |batch: &&mut QuotaBatch| batch.receipt == receipt && now_us < batch.ends_after_us;
        let batch = batches.get_mut(&id).filter(is_same_window)?;
        if count.is_some_and(|count| count != batch.rule.count()) {
            return None;
        }
        let mut follow_up = FollowUp::default();
        batch.left += cost;
        batch.serve(0, now_us, &mut follow_up.answers);
        Some(follow_up)
    }

    /// The charge that refunds permits to the store. `None` if their window is not the latest one
    /// known here. (On Redis it may be another one with the same number: the store finds out.)
    pub(super) fn charge(&self, id: CounterId, receipt: [u64; 2], cost: u64) -> Option<Charge> {
        let shard = self.shard(id);
        let batch = shard.batches.get(&id).filter(|batch| batch.receipt[0] == receipt[0])?;
        Some(batch.charge(cost, receipt))
    }

    /// The rule by which permits of a counter are prefetched.
    pub(super) fn rule_of(&self, id: CounterId) -> Option<Rule> {
        self.shard(id).batches.get(&id).map(|batch| batch.rule)
    }

    /// Invalidates the quota of a counter that is reset, also quota that is still on the way.
    pub(super) fn invalidate(&self, id: CounterId) {
        if let Some(batch) = self.shard(id).batches.get_mut(&id) {
            batch.invalidate();
            (batch.receipt, batch.owed) = (NO_RECEIPT, None);
        }
    }

    /// Starts no further prefetch tasks. Quota that is here can still be spent. A running task goes on until no caller
    /// waits for it.
    pub(super) fn close(&self) {
        for shard in &self.shards {
            spin_lock(shard).is_closed = true;
        }
    }

    /// Removes the quota that is left, and returns it as charges to be refunded.
    pub(super) fn drain(&self, now_us: u64) -> Vec<Charge> {
        let mut charges = Vec::new();
        for shard in &self.shards {
            let mut shard = spin_lock(shard);
            shard.is_drained = true;
            for batch in shard.batches.values_mut() {
                let left = batch.left_at(now_us);
                batch.left = 0;
                charges.extend((left > 0).then(|| batch.charge(left, batch.receipt)));
                charges.extend(batch.owed.take().map(|owed| owed.charge));
            }
        }
        charges
    }
}

impl QuotaShard {
    /// Returns true if there is room for a batch. A full shard is swept of windows that are over.
    fn make_room(&mut self, id: CounterId, now_us: u64) -> bool {
        if self.batches.len() < CAPACITY || self.batches.contains_key(&id) {
            return true;
        }
        if now_us >= self.sweep_at_us {
            self.sweep_at_us = now_us.saturating_add(SWEEP_PAUSE_US);
            let is_needed = |batch: &QuotaBatch| batch.is_prefetching || batch.owed.is_some();
            self.batches.retain(|_, batch| batch.ends_after_us > now_us || is_needed(batch));
        }
        self.batches.len() < CAPACITY
    }
}

impl QuotaBatch {
    fn new(counter: &CounterName, rule: &Rule) -> Self {
        Self {
            counter: counter.clone(),
            rule: *rule,
            left: 0,
            receipt: NO_RECEIPT,
            ends_after_us: 0,
            ends_by_us: 0,
            remaining: 0,
            arrived_us: 0,
            arrived: 0,
            factor: 1,
            is_prefetching: false,
            waiting: VecDeque::new(),
            invalidations: 0,
            owed: None,
        }
    }

    #[inline]
    fn left_at(&self, now_us: u64) -> u64 {
        if now_us < self.ends_after_us { self.left } else { 0 }
    }

    /// The permits that remain at the store, as far as is known. After the window: the whole count.
    fn remaining_at(&self, now_us: u64) -> u64 {
        if now_us < self.ends_after_us { self.remaining } else { self.rule.count() }
    }

    /// Checks whether a caller waits. Drops callers at the front who have left.
    fn has_waiting(&mut self) -> bool {
        while self.waiting.front().is_some_and(|waiting| waiting.answer.is_closed()) {
            self.waiting.pop_front();
        }
        !self.waiting.is_empty()
    }

    #[inline]
    fn spend(&mut self, cost: u64, now_us: u64) -> Outcome {
        self.left -= cost;
        let reset_after_ms = self.ends_by_us.saturating_sub(now_us).div_ceil(1000);
        let remaining = (self.remaining + self.left).min(self.rule.count());
        Outcome::admitted(remaining, reset_after_ms, self.receipt)
    }

    /// Adapts the size: larger prefetches if the last one was spent quickly, smaller ones if
    /// slowly.
    fn adapt(&mut self, now_us: u64) {
        let lasted_us = now_us.saturating_sub(self.arrived_us);
        if lasted_us > SHRINK_ABOVE_US {
            self.factor = (self.factor / 2).max(1);
        } else if lasted_us < GROW_BELOW_US && self.arrived >= self.factor * self.rule.prefetch() {
            self.factor = (self.factor * 2).min(MAX_FACTOR);
        }
    }

    /// The next prefetch, before the quota is spent. `None` if one is under way, or the limit is
    /// near.
    fn prefetch_early(&mut self, id: CounterId, now_us: u64) -> Option<Prefetch> {
        // Near the limit, quota that this process holds is missing in others.
        if self.is_prefetching || self.remaining / 2 < self.rule.prefetch() {
            return None;
        }
        self.adapt(now_us);
        Some(self.next_prefetch(id, self.remaining, now_us))
    }

    /// The next prefetch: the need of the waiting callers, rounded up to `Rule::prefetch`, and
    /// more if that is spent quickly.
    ///
    /// Beyond the need it is at most half of what remains, so that quota is left for other
    /// processes.
    fn next_prefetch(&mut self, id: CounterId, remaining: u64, now_us: u64) -> Prefetch {
        let left = self.left_at(now_us);
        let size = self.rule.prefetch();
        let waiting = self.waiting.iter().filter(|waiting| !waiting.answer.is_closed());
        let requested = waiting.fold(0_u64, |sum, waiting| sum.saturating_add(waiting.cost));
        let needed = requested.saturating_sub(left);
        let first = self.waiting.front().map_or(0, |waiting| waiting.cost.saturating_sub(left));
        let preferred = needed.div_ceil(size).max(self.factor).saturating_mul(size);
        let cost = preferred.min(remaining / 2).max(needed).min(remaining).max(first).min(self.rule.count()).max(1);
        self.is_prefetching = true;
        let (counter, rule, invalidations) = (self.counter.clone(), self.rule, self.invalidations);
        Prefetch { id, counter, rule, cost, refund: self.owed.take().map(|owed| owed.charge), invalidations }
    }

    /// Adds permits that the store has charged.
    fn add(&mut self, charge: &Charge, sent_us: u64, now_us: u64) {
        let Decision { remaining, reset_after_ms, .. } = charge.decision;
        let ends_after_us = ends_after_us(sent_us, reset_after_ms);
        if self.receipt[0] == charge.receipt[0] && now_us < self.ends_after_us {
            self.left += charge.cost;
            self.ends_after_us = self.ends_after_us.max(ends_after_us);
        } else {
            (self.left, self.ends_after_us, self.receipt) = (charge.cost, ends_after_us, charge.receipt);
        }
        self.ends_by_us = now_us.saturating_add(reset_after_ms.saturating_mul(1000));
        self.remaining = remaining;
        (self.arrived_us, self.arrived) = (now_us, charge.cost);
    }

    /// Spends quota for the waiting callers, in the order of arrival, until it does not suffice.
    ///
    /// If the window may be over, only callers who waited when the query was sent are served.
    fn serve(&mut self, sent_us: u64, now_us: u64, answers: &mut QuotaAnswers) {
        while let Some(Waiting { cost, since_us, answer }) = self.waiting.pop_front() {
            if answer.is_closed() {
                continue;
            }
            let is_in_time = since_us <= sent_us || now_us < self.ends_after_us;
            if cost > self.left || !is_in_time {
                self.waiting.push_front(Waiting { cost, since_us, answer });
                return;
            }
            answers.push((answer, QuotaAnswer::Spent(cost, self.spend(cost, now_us))));
        }
    }

    /// Denies the callers whose cost exceeds the quota here and at the store together.
    ///
    /// All get the same wait, because in a fixed window it does not depend on the cost. Callers who came when the
    /// window may have been over, and after the query was sent, go on waiting.
    fn deny(&mut self, decision: Decision, sent_us: u64, now_us: u64, answers: &mut QuotaAnswers) {
        self.remaining = decision.remaining;
        let remaining = self.left_at(now_us) + decision.remaining;
        let ends_after_us = ends_after_us(sent_us, wait_ms(decision.retry_after_ms).unwrap_or_default());
        for waiting in mem::take(&mut self.waiting) {
            let is_in_time = waiting.since_us <= sent_us || waiting.since_us < ends_after_us;
            if waiting.cost > remaining && is_in_time {
                answers.push((waiting.answer, QuotaAnswer::Denied(Decision { remaining, ..decision })));
            } else {
                self.waiting.push_back(waiting);
            }
        }
    }

    /// Spends quota for the waiting callers, in the order of arrival, and fails those for whom it does not
    /// suffice.
    fn fail(&mut self, error: &StoreError, now_us: u64, answers: &mut QuotaAnswers) {
        self.factor = 1; // the next one may be lost, too
        for Waiting { cost, answer, .. } in mem::take(&mut self.waiting) {
            if answer.is_closed() {
                continue;
            }
            let its_answer = if cost <= self.left_at(now_us) {
                QuotaAnswer::Spent(cost, self.spend(cost, now_us))
            } else {
                QuotaAnswer::Failed(error.clone())
            };
            answers.push((answer, its_answer));
        }
    }

    /// Invalidates the quota, here and on the way. Returns the charge that refunds what is here.
    fn invalidate(&mut self) -> Option<Owed> {
        let (left, ends_after_us) = (mem::take(&mut self.left), mem::take(&mut self.ends_after_us));
        self.factor = 1;
        self.invalidations += 1;
        (left > 0).then(|| Owed { charge: self.charge(left, self.receipt), ends_after_us })
    }

    /// Notes a charge to be refunded. An earlier one of another window counts no more.
    fn owe(&mut self, owed: Option<Owed>, now_us: u64) {
        let Some(owed) = owed else { return };
        match &mut self.owed {
            Some(Owed { charge, ends_after_us })
                if charge.receipt[0] == owed.charge.receipt[0] && now_us < *ends_after_us =>
            {
                charge.cost += owed.charge.cost;
            }
            earlier => *earlier = Some(owed),
        }
    }

    /// A charge, as the store has made it.
    fn charge(&self, cost: u64, receipt: [u64; 2]) -> Charge {
        let mut charge = Charge::new(self.rule, self.counter.clone(), cost);
        charge.receipt = receipt;
        charge
    }
}

/// A lower bound of a window's end. The store said that the window lasts for `lasts_ms`. It decided after `sent_us`,
/// and rounded up to a millisecond.
fn ends_after_us(sent_us: u64, lasts_ms: u64) -> u64 {
    sent_us.saturating_add(lasts_ms.saturating_sub(1).saturating_mul(1000))
}
