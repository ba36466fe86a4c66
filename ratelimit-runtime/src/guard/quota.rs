//! Permits of fixed windows that were taken from the store several at a time, to be spent here.
//!
//! At most one take of a counter is under way. Who finds too few permits waits for it, in the order of arrival; it belongs to none of them.

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
    store::{Charge, StoreError},
    sync::{CachePadded, SpinMutex, SpinMutexGuard, spin_lock},
};

#[cfg(all(test, model_check))]
mod model_check;

/// What this process has taken, for all threads.
#[derive(Debug)]
pub(super) struct QuotaBatches {
    shards: Box<[CachePadded<SpinMutex<QuotaShard>>]>,
    /// How many tasks take, or are about to. Counted under the lock of a shard that is not closed, so that after [`QuotaBatches::close`] none is added.
    taking: AtomicUsize,
}

#[derive(Debug, Default)]
struct QuotaShard {
    batches: HashMap<CounterId, QuotaBatch, BuildHasherDefault<IdentityHasher>>,
    /// Whether nothing is taken any more.
    is_closed: bool,
    /// Not before, one that is full is looked through for what is over.
    sweep_at_us: u64,
}

/// What is left of one counter's window.
#[derive(Debug)]
struct QuotaBatch {
    counter: CounterName,
    rule: Rule,
    left: u64,
    /// Tells the window from others.
    receipt: [u64; 2],
    /// The window ends then or later. Counted from when the store was asked.
    until_us: u64,
    /// The window ends then or sooner. Counted from when the store's answer arrived.
    ends_us: u64,
    /// At the store, as it said last.
    remaining: u64,
    /// When the last permits arrived, and how many that were.
    arrived_us: u64,
    arrived: u64,
    /// How many times the rule's number are taken at once.
    times: u64,
    is_taking: bool,
    waiting: VecDeque<Waiting>,
    /// How often what was taken became void.
    voided: u64,
}

#[derive(Debug)]
struct Waiting {
    cost: u64,
    since_us: u64,
    answer: oneshot::Sender<QuotaAnswer>,
}

/// What comes of waiting for a take.
#[derive(Debug)]
pub(super) enum QuotaAnswer {
    Spent(Spent),
    /// The store refuses it.
    Denied(Decision),
    Failed(StoreError),
}

/// Permits that were spent here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spent {
    pub(crate) cost: u64,
    /// Here and at the store.
    pub(crate) remaining: u64,
    pub(crate) reset_after_ms: u64,
    pub(crate) receipt: [u64; 2],
}

/// What becomes of a cost that was not spent at once.
#[derive(Debug)]
pub(super) enum SpendResult {
    Spent(Spent),
    Waits(oneshot::Receiver<QuotaAnswer>),
    /// The store is to be asked for this cost alone.
    Alone,
}

/// A charge of several permits that is to be made. It is under way from the moment it is handed out.
#[derive(Debug)]
pub(super) struct Take {
    pub(super) name: CounterId,
    pub(super) counter: CounterName,
    pub(super) rule: Rule,
    pub(super) cost: u64,
    voided: u64,
}

/// What is to be done when the lock is free again.
#[derive(Debug, Default)]
pub(super) struct FollowUp {
    pub(super) answers: Vec<(oneshot::Sender<QuotaAnswer>, QuotaAnswer)>,
    pub(super) take: Option<Take>,
    /// To be refunded to the store, as nobody may spend it.
    pub(super) back: Option<Charge>,
}

const SHARDS: usize = if cfg!(all(test, model_check)) { 2 } else { 64 };
/// 65,536 in all.
const CAPACITY: usize = if cfg!(test) { 2 } else { 1024 };
const SWEEP_PAUSE_US: u64 = 100_000;
/// What does not last so long is too little: the next take is twice as large.
const TOO_SHORT_US: u64 = 10_000;
/// What lasts so long is too much: the next take is half as large.
const TOO_LONG_US: u64 = 40_000;
/// The largest take, in times of the rule's number.
const MOST_TIMES: u64 = 64;
const NO_RECEIPT: [u64; 2] = [u64::MAX; 2];

impl Spent {
    /// As a store says it.
    pub(super) fn write_to(self, charge: &mut Charge) {
        let Self { remaining, reset_after_ms, receipt, .. } = self;
        let limit = charge.rule.limit();
        charge.decision = Decision { limit, remaining, reset_after_ms, retry_after_ms: u64::MAX };
        charge.receipt = receipt;
    }
}

impl QuotaBatches {
    pub(super) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| CachePadded::default()).collect(), taking: AtomicUsize::new(0) }
    }

    #[allow(clippy::cast_possible_truncation)] // the low bits are what is wanted
    #[inline]
    fn shard(&self, name: CounterId) -> SpinMutexGuard<'_, QuotaShard> {
        spin_lock(&self.shards[name.0 as usize % SHARDS])
    }

    /// Spends what is here, and says what is to be taken ahead then; or how much is here.
    #[inline]
    pub(super) fn spend(
        &self,
        name: CounterId,
        rule: &Rule,
        cost: u64,
        now_us: u64,
    ) -> Result<(Spent, Option<Take>), u64> {
        let mut shard = self.shard(name);
        let QuotaShard { batches, is_closed, .. } = &mut *shard;
        let batch = batches.get_mut(&name).filter(|batch| batch.rule.count() == rule.count()).ok_or(0_u64)?;
        let left = batch.left_at(now_us);
        if left < cost || !batch.waiting.is_empty() {
            return Err(left);
        }
        let spent = batch.spend(cost, now_us);
        let is_low = batch.times > 1 && batch.left < batch.arrived / 2 && !*is_closed;
        let take = if is_low { batch.take_ahead(name, now_us) } else { None };
        self.count_task(take.is_some());
        Ok((spent, take))
    }

    /// How much is here.
    pub(super) fn left(&self, name: CounterId, now_us: u64) -> u64 {
        self.shard(name).batches.get(&name).map_or(0, |batch| batch.left_at(now_us))
    }

    /// Spends what is here, or joins those who wait for a take.
    pub(super) fn ask(&self, counter: &CounterName, rule: &Rule, cost: u64, now_us: u64) -> (SpendResult, FollowUp) {
        let (name, mut then) = (counter.id(), FollowUp::default());
        let mut shard = self.shard(name);
        if shard.is_closed || !shard.has_room(name, now_us) {
            return (SpendResult::Alone, then);
        }
        let batch = shard.batches.entry(name).or_insert_with(|| QuotaBatch::new(counter, rule));
        if batch.rule.count() != rule.count() {
            then.back = batch.void(); // what was taken by another count may be more than this one has
        }
        batch.rule = *rule;
        if !batch.has_waiting() && batch.left_at(now_us) >= cost {
            return (SpendResult::Spent(batch.spend(cost, now_us)), then);
        }
        let (answer, answered) = oneshot::channel();
        batch.waiting.push_back(Waiting { cost, since_us: now_us, answer });
        if !batch.is_taking {
            batch.adapt(now_us);
            let remaining = batch.remaining_at(now_us);
            then.take = Some(batch.take(name, remaining, now_us));
            self.count_task(true);
        }
        (SpendResult::Waits(answered), then)
    }

    fn count_task(&self, is_one_more: bool) {
        if is_one_more {
            self.taking.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// A task that took has ended. Says whether it was the last one.
    pub(super) fn task_ended(&self) -> bool {
        self.taking.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Whether something is being taken.
    pub(super) fn is_taking(&self) -> bool {
        self.taking.load(Ordering::Acquire) > 0
    }

    /// Takes in what the store said of a take, whether it was charged or an error, and hands it to those who wait. If there is another take to be
    /// made, it is under way by now.
    pub(super) fn arrived(
        &self,
        take: &Take,
        said: Result<(Charge, bool), StoreError>,
        sent_us: u64,
        now_us: u64,
    ) -> FollowUp {
        let mut then = FollowUp::default();
        let mut shard = self.shard(take.name);
        let Some(batch) = shard.batches.get_mut(&take.name) else { return then };
        batch.is_taking = false;
        let mut remaining = batch.rule.count();
        match said {
            Err(error) => {
                let fail = |Waiting { answer, .. }| (answer, QuotaAnswer::Failed(error.clone()));
                then.answers.extend(batch.waiting.drain(..).map(fail));
            }
            // It may have been charged before what it was taken of became void, or after.
            Ok((charge, is_charged)) if batch.voided != take.voided => then.back = is_charged.then_some(charge),
            Ok((charge, true)) => {
                batch.add(&charge, sent_us, now_us);
                batch.serve(sent_us, now_us, &mut then.answers);
                remaining = batch.remaining_at(now_us);
            }
            Ok((charge, false)) => {
                remaining = charge.decision.remaining;
                batch.deny(charge.decision, now_us, &mut then.answers);
                batch.serve(0, now_us, &mut then.answers); // who was behind them may need no more than is here
            }
        }
        if batch.has_waiting() {
            then.take = Some(batch.take(take.name, remaining, now_us));
        }
        then
    }

    /// A take was given up. Those who wait for it hear so, as their senders are dropped.
    pub(super) fn given_up(&self, name: CounterId) {
        if let Some(batch) = self.shard(name).batches.get_mut(&name) {
            batch.is_taking = false;
            batch.waiting.clear();
        }
    }

    /// Takes back permits that were spent, if it is known that their window lasts, and says what is to be done then.
    pub(super) fn put_back(&self, name: CounterId, receipt: [u64; 2], cost: u64, now_us: u64) -> Option<FollowUp> {
        let mut shard = self.shard(name);
        let QuotaShard { batches, is_closed: false, .. } = &mut *shard else { return None };
        let is_known = |batch: &&mut QuotaBatch| batch.receipt == receipt && now_us < batch.until_us;
        let batch = batches.get_mut(&name).filter(is_known)?;
        let mut then = FollowUp::default();
        batch.left += cost;
        batch.serve(0, now_us, &mut then.answers);
        Some(then)
    }

    /// The charge by which the store finds permits of a window, if that is the last one that is known.
    pub(super) fn charge(&self, name: CounterId, receipt: [u64; 2], cost: u64) -> Option<Charge> {
        let shard = self.shard(name);
        let batch = shard.batches.get(&name).filter(|batch| batch.receipt == receipt)?;
        Some(batch.charge(cost))
    }

    /// Forgets what was taken of a counter that is reset, and what is on its way.
    pub(super) fn forget(&self, name: CounterId) {
        if let Some(batch) = self.shard(name).batches.get_mut(&name) {
            batch.void();
            batch.receipt = NO_RECEIPT;
        }
    }

    /// From now on nothing is taken but what is spent at once.
    pub(super) fn close(&self) {
        for shard in &self.shards {
            spin_lock(shard).is_closed = true;
        }
    }

    /// All that is left, to be refunded.
    pub(super) fn drain(&self, now_us: u64) -> Vec<Charge> {
        let mut charges = Vec::new();
        for shard in &self.shards {
            let mut shard = spin_lock(shard);
            for batch in shard.batches.values_mut() {
                let left = batch.left_at(now_us);
                batch.left = 0;
                charges.extend((left > 0).then(|| batch.charge(left)));
            }
        }
        charges
    }
}

impl QuotaShard {
    /// Whether there is room for a batch, perhaps in place of those whose windows are over.
    fn has_room(&mut self, name: CounterId, now_us: u64) -> bool {
        if self.batches.len() < CAPACITY || self.batches.contains_key(&name) {
            return true;
        }
        if now_us >= self.sweep_at_us {
            self.sweep_at_us = now_us.saturating_add(SWEEP_PAUSE_US);
            self.batches.retain(|_, batch| batch.until_us > now_us || batch.is_taking);
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
            until_us: 0,
            ends_us: 0,
            remaining: 0,
            arrived_us: 0,
            arrived: 0,
            times: 1,
            is_taking: false,
            waiting: VecDeque::new(),
            voided: 0,
        }
    }

    #[inline]
    fn left_at(&self, now_us: u64) -> u64 {
        if now_us < self.until_us { self.left } else { 0 }
    }

    /// At the store, as far as it is known.
    fn remaining_at(&self, now_us: u64) -> u64 {
        if now_us < self.until_us { self.remaining } else { self.rule.count() }
    }

    /// Whether somebody waits who is first in line. Others may have gone.
    fn has_waiting(&mut self) -> bool {
        while self.waiting.front().is_some_and(|waiting| waiting.answer.is_closed()) {
            self.waiting.pop_front();
        }
        !self.waiting.is_empty()
    }

    #[inline]
    fn spend(&mut self, cost: u64, now_us: u64) -> Spent {
        self.left -= cost;
        let reset_after_ms = self.ends_us.saturating_sub(now_us).div_ceil(1000);
        Spent {
            cost,
            remaining: (self.remaining + self.left).min(self.rule.count()),
            reset_after_ms,
            receipt: self.receipt,
        }
    }

    /// Larger takes where they do not last, smaller ones where they do.
    fn adapt(&mut self, now_us: u64) {
        let lasted_us = now_us.saturating_sub(self.arrived_us);
        if lasted_us > TOO_LONG_US {
            self.times = (self.times / 2).max(1);
        } else if lasted_us < TOO_SHORT_US && self.arrived >= self.times * self.rule.prefetch() {
            self.times = (self.times * 2).min(MOST_TIMES);
        }
    }

    fn take_ahead(&mut self, name: CounterId, now_us: u64) -> Option<Take> {
        // Near the limit, what one process holds is what others lack.
        if self.is_taking || self.remaining / 2 < self.rule.prefetch() {
            return None;
        }
        self.adapt(now_us);
        Some(self.take(name, self.remaining, now_us))
    }

    /// The next take: what those who wait need, rounded up to the rule's number, and more where that does not last. Beyond what they need it is
    /// no more than half of what remains, so that there is something for others to the end.
    fn take(&mut self, name: CounterId, remaining: u64, now_us: u64) -> Take {
        let left = self.left_at(now_us);
        let size = self.rule.prefetch();
        let here = self.waiting.iter().filter(|waiting| !waiting.answer.is_closed());
        let wanted = here.fold(0_u64, |sum, waiting| sum.saturating_add(waiting.cost));
        let needed = wanted.saturating_sub(left);
        let first = self.waiting.front().map_or(0, |waiting| waiting.cost.saturating_sub(left));
        let whole = needed.div_ceil(size).max(self.times).saturating_mul(size);
        let cost = whole.min(remaining / 2).max(needed).min(remaining).max(first).min(self.rule.count()).max(1);
        self.is_taking = true;
        Take { name, counter: self.counter.clone(), rule: self.rule, cost, voided: self.voided }
    }

    /// Takes in what has been charged.
    fn add(&mut self, charge: &Charge, sent_us: u64, now_us: u64) {
        let Decision { remaining, reset_after_ms, .. } = charge.decision;
        // The store has decided after it was asked, and has rounded up to a millisecond.
        let until_us = sent_us.saturating_add(reset_after_ms.saturating_sub(1).saturating_mul(1000));
        let is_same_window = self.receipt == charge.receipt && now_us < self.until_us;
        self.left = if is_same_window { self.left } else { 0 } + charge.cost;
        self.until_us = if is_same_window { self.until_us.max(until_us) } else { until_us };
        self.ends_us = now_us.saturating_add(reset_after_ms.saturating_mul(1000));
        (self.receipt, self.remaining) = (charge.receipt, remaining);
        (self.arrived_us, self.arrived) = (now_us, charge.cost);
    }

    /// Hands out what is here, in the order of arrival. If the window may be over, to those alone who waited when the store was asked.
    fn serve(&mut self, sent_us: u64, now_us: u64, answers: &mut Vec<(oneshot::Sender<QuotaAnswer>, QuotaAnswer)>) {
        while let Some(Waiting { cost, since_us, answer }) = self.waiting.pop_front() {
            if answer.is_closed() {
                continue;
            }
            let is_in_time = since_us <= sent_us || now_us < self.until_us;
            if cost > self.left || !is_in_time {
                self.waiting.push_front(Waiting { cost, since_us, answer });
                return;
            }
            answers.push((answer, QuotaAnswer::Spent(self.spend(cost, now_us))));
        }
    }

    /// Refuses those for whom there is not enough, here and at the store. A fixed window has the same wait for each cost.
    fn deny(&mut self, said: Decision, now_us: u64, answers: &mut Vec<(oneshot::Sender<QuotaAnswer>, QuotaAnswer)>) {
        self.remaining = said.remaining;
        let remaining = self.left_at(now_us) + said.remaining;
        for waiting in mem::take(&mut self.waiting) {
            if waiting.cost > remaining {
                answers.push((waiting.answer, QuotaAnswer::Denied(Decision { remaining, ..said })));
            } else {
                self.waiting.push_back(waiting);
            }
        }
    }

    /// Nothing that was taken is to be spent, be it here or on its way. Returns what is here.
    fn void(&mut self) -> Option<Charge> {
        let left = mem::take(&mut self.left);
        (self.until_us, self.times) = (0, 1);
        self.voided += 1;
        (left > 0).then(|| self.charge(left))
    }

    /// As the store has charged it.
    fn charge(&self, cost: u64) -> Charge {
        let mut charge = Charge::new(self.rule, self.counter.clone(), cost);
        charge.receipt = self.receipt;
        charge
    }
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Key, Rule};

    const SIZE: u64 = 10;
    const START: u64 = 1_000_000;

    fn rule(count: u64) -> Rule {
        Rule::new("item", count, Duration::from_secs(60)).with_prefetch(SIZE)
    }

    fn counter(key: u64) -> CounterName {
        CounterName::new("", &rule(1), Some(&Key::new(key)))
    }

    /// Joins those who wait; the take that is begun, and the answer.
    fn wait(
        batches: &QuotaBatches,
        count: u64,
        cost: u64,
        now_us: u64,
    ) -> (Option<Take>, oneshot::Receiver<QuotaAnswer>) {
        match batches.ask(&counter(1), &rule(count), cost, now_us) {
            (SpendResult::Waits(answer), then) => (then.take, answer),
            (other, _) => panic!("{other:?}"),
        }
    }

    /// The store charges a take, of which so much remains then, in a window that lasts so long.
    fn charge(
        batches: &QuotaBatches,
        take: &Take,
        remaining: u64,
        lasts_ms: u64,
        sent_us: u64,
        now_us: u64,
    ) -> Option<Take> {
        let mut charge = Charge::new(take.rule, take.counter.clone(), take.cost);
        let limit = take.rule.count();
        charge.decision = Decision { limit, remaining, reset_after_ms: lasts_ms, retry_after_ms: u64::MAX };
        charge.receipt = [7, 0];
        let then = batches.arrived(take, Ok((charge, true)), sent_us, now_us);
        then.answers.into_iter().for_each(|(caller, answer)| drop(caller.send(answer)));
        then.take
    }

    fn is_spent(answer: &mut oneshot::Receiver<QuotaAnswer>) -> bool {
        matches!(answer.try_recv(), Ok(QuotaAnswer::Spent(_)))
    }

    /// How much is taken at a time where one permit is spent in each so many microseconds.
    fn sizes(count: u64, pause_us: u64) -> Vec<u64> {
        let (batches, name) = (QuotaBatches::new(), counter(1).id());
        let (mut now_us, mut left, mut sizes) = (START, count, Vec::new());
        while sizes.len() < 10 {
            let mut waits = None;
            let take = match batches.spend(name, &rule(count), 1, now_us) {
                Ok((_, ahead)) => ahead,
                Err(_) if left == 0 => break,
                Err(_) => {
                    let (take, answer) = wait(&batches, count, 1, now_us);
                    waits = Some(answer);
                    take
                }
            };
            if let Some(take) = take {
                left -= take.cost;
                sizes.push(take.cost);
                assert!(charge(&batches, &take, left, 60_000, now_us, now_us).is_none());
            }
            assert!(waits.is_none_or(|mut answer| is_spent(&mut answer)));
            now_us += pause_us;
        }
        sizes
    }

    #[test]
    fn takes_grow_where_they_do_not_last() {
        assert_eq!(sizes(1_000_000, 100_000), [SIZE; 10]);
        assert_eq!(sizes(1_000_000, 1100), [SIZE; 10]);
        assert_eq!(sizes(1_000_000, 1), [1, 2, 4, 8, 16, 32, 64, 64, 64, 64].map(|times| times * SIZE));
        // 160 last for 8 ms, 320 for 16.
        assert_eq!(sizes(1_000_000, 50), [1, 2, 4, 8, 16, 32, 32, 32, 32, 32].map(|times| times * SIZE));
    }

    #[test]
    fn takes_shrink_near_the_limit() {
        assert_eq!(sizes(40, 1_000_000), [10, 10, 10, 5, 2, 1, 1, 1]);
        assert_eq!(sizes(5, 1_000_000), [2, 1, 1, 1]);
        assert_eq!(sizes(1, 1_000_000), [1]);
    }

    #[test]
    fn what_arrives_after_its_window_is_for_those_who_asked_before() {
        let batches = QuotaBatches::new();
        let (take, mut first) = wait(&batches, 100, 1, START);
        let (none, mut late) = wait(&batches, 100, 1, START + 1);
        assert!(none.is_none());
        let take = take.unwrap();
        let next = charge(&batches, &take, 90, 5, START, START + 8_000);
        assert!(is_spent(&mut first) && !is_spent(&mut late));
        assert!(charge(&batches, &next.expect("somebody waits"), 90, 60_000, START + 8_000, START + 9_000).is_none());
        assert!(is_spent(&mut late));
    }

    /// A store is never asked for more than a rule has: in a window that it has to open it does not look.
    #[test]
    fn who_waits_for_more_than_a_lowered_count_does_not_get_it() {
        let batches = QuotaBatches::new();
        let (take, _large) = wait(&batches, 100, 50, START);
        let (_, _lowered) = wait(&batches, 5, 1, START);
        let next = charge(&batches, &take.unwrap(), 90, 60_000, START, START + 1_000).expect("somebody waits");
        assert!(next.cost <= next.rule.count(), "{} of {}", next.cost, next.rule.count());
    }

    #[test]
    fn a_full_shard_takes_the_place_of_what_is_over_and_of_nothing_else() {
        let batches = QuotaBatches::new();
        let mut keys = (0..).filter(|key| counter(*key).id().0.is_multiple_of(SHARDS as u64));
        let mut ask = |key: Option<u64>, now_us| {
            let counter = counter(key.unwrap_or_else(|| keys.next().unwrap()));
            let (asked, then) = batches.ask(&counter, &rule(100), 1, now_us);
            if let Some(take) = then.take {
                charge(&batches, &take, 90, 1000, now_us, now_us);
            }
            matches!(asked, SpendResult::Waits(_))
        };
        assert_eq!([ask(None, START), ask(None, START), ask(None, START)], [true, true, false]);
        assert!(!ask(None, START + SWEEP_PAUSE_US));
        assert!(ask(None, START + 1_000_000));
    }
}
