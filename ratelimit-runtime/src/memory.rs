//! The store in this process's memory.

use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use crate::{
    Algorithm, Clock, CounterName, Rule,
    algorithm::{Counter, PackedWindow, Taken, TakenWindow, Window},
    counter::CounterId,
    store::{Batch, Charge, ChargeQuery, Charges, Hold, Reply, Request, Store, StoreError},
    sync::{AtomicUsize, CachePadded, SpinMutex, SpinMutexGuard, spin_lock, spin_lock_all, try_spin_lock},
};

#[cfg(all(test, model_check))]
mod model_check;
mod table;

use table::Table;

/// Counters of one process, exact under any number of threads.
///
/// It needs no background task: what equals a fresh counter is dropped when a new one needs its room. When every
/// counter is live and the store is full, new keys are refused as unavailable, and those that are stored go on.
///
/// A fixed window takes 32 bytes, of a table that has up to three empty places for four windows: 40 to 56 bytes a window.
#[derive(Debug)]
pub(crate) struct Memory {
    clock: Clock,
    shards: Box<[CachePadded<SpinMutex<Shard>>; SHARDS]>,
    capacity: usize,
    stored: CachePadded<AtomicUsize>,
}

/// In this order, so that what a call of a fixed window needs is in one cache line with the lock.
#[derive(Debug, Default)]
#[repr(C)]
struct Shard {
    /// When it was last asked.
    latest_us: u64,
    /// No counter is fresh before this.
    sweep_at_ms: u64,
    counters: Counters,
    /// Let go of what is fresh when there are this many.
    sweep_above: usize,
}

/// Fixed windows, which are small, and the rest.
#[derive(Debug, Default)]
#[repr(C)]
struct Counters {
    windows: Table<PackedWindow>,
    others: Table<Option<Counter>>,
}

const SHARDS: usize = if cfg!(all(test, model_check)) { 2 } else { 256 };
/// A shard with fewer counters is let alone, fresh or not: 4,096 in all.
const SWEPT_AT_LEAST: usize = 16;
/// How far at most the counters of two processors are apart, and more.
const SKEW_US: u64 = 1000;

/// The shards of one request.
type Locked<'a> = SmallVec<[(usize, SpinMutexGuard<'a, Shard>); 1]>;

impl Memory {
    pub(crate) fn new(clock: Clock, capacity: usize) -> Self {
        Self {
            clock,
            shards: Box::new([(); SHARDS].map(|()| CachePadded::default())),
            capacity,
            stored: CachePadded::default(),
        }
    }

    #[inline]
    fn shard(&self, index: usize) -> SpinMutexGuard<'_, Shard> {
        // A panic elsewhere can't leave a shard half changed: each change is a whole one.
        spin_lock(&self.shards[index])
    }

    /// Charges one counter if the cost, of 1 to the rule's limit, fits.
    pub(crate) fn take(&self, name: CounterId, ask: &ChargeQuery<'_>) -> Result<Taken, StoreError> {
        let mut shard = self.shard(shard_of(&name));
        let now_us = shard.now_us(&self.clock);
        self.take_in(&mut shard, name, ask, now_us)
    }

    /// The same where most calls find themselves, and without a way round: in a fixed window that is stored and open, at a cost of 1 to the count.
    /// `None` if it is not so, and nothing is changed then.
    ///
    /// The rule was looked at when the window was stored, but for its count and its lease. The time is read under the
    /// lock, as everywhere else: a thread that stops between the two would tell an old time with a newer state. It is not kept in the shard, because
    /// it changes nothing but the window that is open then.
    #[inline(always)]
    #[allow(clippy::inline_always)] // or what becomes of it is copied
    pub(crate) fn take_window(&self, name: CounterId, count: u64, cost: u64) -> Option<TakenWindow> {
        let mut shard = self.shard(shard_of(&name));
        let now_ms = self.clock.now_ms();
        shard.counters.windows.get_mut(name)?.take(name, count, now_ms, cost)
    }

    fn take_in(
        &self,
        shard: &mut Shard,
        name: CounterId,
        ask: &ChargeQuery<'_>,
        now_us: u64,
    ) -> Result<Taken, StoreError> {
        match shard.update(name, ask.rule, |counter| counter.take(ask, now_us)) {
            Some(taken) => Ok(taken),
            None => self.take_new(shard, name, ask, now_us),
        }
    }

    fn decide_one(&self, request: &mut Request) {
        // Each shard once, and in order.
        let mut indices: SmallVec<[usize; 1]> =
            request.charges.iter().map(|charge| shard_of(&charge.counter.id())).collect();
        indices.sort_unstable();
        indices.dedup();
        let shards = spin_lock_all::<_, 1>(&indices.iter().map(|index| &*self.shards[*index]));
        let mut shards: Locked<'_> = indices.into_iter().zip(shards).collect();
        let now_us = shards.iter_mut().map(|(_, shard)| shard.now_us(&self.clock)).max().unwrap_or_default();
        shards.iter_mut().for_each(|(_, shard)| shard.latest_us = now_us);

        let mut all_fit = true;
        for charge in &mut *request.charges {
            let (name, ask) = (charge.counter.id(), charge.query());
            let look = |counter: &mut Counter| Counter::look(Some(counter), &ask, now_us);
            let look = shard_in(&mut shards, &name).update(name, ask.rule, look);
            let look = look.unwrap_or_else(|| Counter::look(None, &ask, now_us));
            all_fit &= look.fits;
            look.write_to(charge, [0; 2]);
        }
        request.outcome = Ok(all_fit);
        if !(all_fit && request.consume) {
            return;
        }

        for at in 0..request.charges.len() {
            let charge = &mut request.charges[at];
            if charge.cost == 0 {
                continue;
            }
            let name = charge.counter.id();
            match self.take_in(shard_in(&mut shards, &name), name, &charge.query(), now_us) {
                Ok(taken) => {
                    (charge.decision, charge.receipt) = (taken.decision(&charge.rule), taken.receipt);
                    charge.set_held_cost();
                }
                Err(full) => {
                    for charge in &request.charges[..at] {
                        self.take_back(shard_in(&mut shards, &charge.counter.id()), charge, now_us);
                    }
                    request.outcome = Err(full);
                    return;
                }
            }
        }
    }

    /// Charges a counter that is not stored.
    fn take_new(
        &self,
        shard: &mut Shard,
        name: CounterId,
        ask: &ChargeQuery<'_>,
        now_us: u64,
    ) -> Result<Taken, StoreError> {
        let look = Counter::look(None, ask, now_us);
        if !look.fits || ask.cost == 0 {
            return Ok(Taken::new(look, [0; 2]));
        }
        self.insert_new(shard, name, ask.rule, now_us, |counter| counter.take(ask, now_us))
    }

    /// Stores a new counter after something has been done to it.
    fn insert_new<T>(
        &self,
        shard: &mut Shard,
        name: CounterId,
        rule: &Rule,
        now_us: u64,
        act: impl FnOnce(&mut Counter) -> T,
    ) -> Result<T, StoreError> {
        if shard.counters.len() >= shard.sweep_above {
            let before = shard.counters.len();
            shard.counters.drop_all_ended(now_us / 1000);
            self.stored.fetch_sub(before - shard.counters.len(), Ordering::Relaxed);
            shard.sweep_above = (2 * shard.counters.len()).max(SWEPT_AT_LEAST);
        }
        while !self.take_room() {
            if self.sweep(shard, now_us) == 0 && self.sweep_others(now_us) == 0 {
                return Err(StoreError::unavailable(format!(
                    "the memory store holds {} counters, as many as it may, and all of them are in use",
                    self.capacity
                )));
            }
        }
        let mut counter = Counter::fresh(rule, now_us);
        let done = act(&mut counter);
        shard.sweep_at_ms = shard.sweep_at_ms.min(counter.until_ms());
        shard.counters.insert(name, counter);
        Ok(done)
    }

    /// Counts one more if the store is not full. It never counts too many, not even for a moment: another thread
    /// would find the store full that is not.
    fn take_room(&self) -> bool {
        let one_more = |stored| (stored < self.capacity).then_some(stored + 1);
        self.stored.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }

    /// Drops some of what is fresh, if anything is. Returns how many counters that were.
    fn sweep(&self, shard: &mut Shard, now_us: u64) -> usize {
        if shard.sweep_at_ms > now_us / 1000 {
            return 0;
        }
        let dropped = shard.counters.drop_some_ended(now_us / 1000);
        if dropped == 0 {
            shard.sweep_at_ms = shard.counters.soonest_ms();
        }
        self.stored.fetch_sub(dropped, Ordering::Relaxed);
        dropped
    }

    /// Makes room in the first shard that has some. Shards in use are left alone: waiting for one while holding
    /// another could be mutual.
    fn sweep_others(&self, now_us: u64) -> usize {
        self.shards
            .iter()
            .filter_map(|shard| try_spin_lock(shard))
            .map(|mut shard| self.sweep(&mut shard, now_us))
            .find(|dropped| *dropped > 0)
            .unwrap_or(0)
    }

    /// Returns what still counts of a charge.
    pub(crate) fn refund_one(&self, name: CounterId, rule: &Rule, cost: u64, receipt: [u64; 2]) -> u64 {
        let mut shard = self.shard(shard_of(&name));
        let now_us = shard.now_us(&self.clock);
        self.return_charge(&mut shard, name, rule, cost, receipt, now_us)
    }

    fn return_charge(
        &self,
        shard: &mut Shard,
        name: CounterId,
        rule: &Rule,
        cost: u64,
        receipt: [u64; 2],
        now_us: u64,
    ) -> u64 {
        let returned = shard.update(name, rule, |counter| {
            let back = counter.refund(rule, cost, receipt, now_us);
            (back, counter.is_fresh(now_us))
        });
        let Some((back, is_fresh)) = returned else { return 0 };
        if is_fresh {
            self.remove(shard, name);
        }
        back
    }

    /// Returns what still counts of a charge, or all that is held of it.
    fn take_back(&self, shard: &mut Shard, charge: &Charge, now_us: u64) -> u64 {
        let Charge { counter, rule, cost, hold, receipt, .. } = charge;
        match hold {
            None => self.return_charge(shard, counter.id(), rule, *cost, *receipt, now_us),
            Some(hold) => self.settle_in(shard, counter.id(), rule, hold, 0, now_us),
        }
    }

    /// Charges what was used instead of what was held, and says how much still was.
    fn settle_in(&self, shard: &mut Shard, name: CounterId, rule: &Rule, hold: &Hold, used: u64, now_us: u64) -> u64 {
        let settle = |counter: &mut Counter| (counter.settle(rule, hold, used, now_us), counter.is_fresh(now_us));
        let (still_held, is_fresh) = match shard.update(name, rule, settle) {
            // Where there is no room for a counter, what was used is not counted.
            None if used > 0 && !hold.is_retry => {
                self.insert_new(shard, name, rule, now_us, settle).unwrap_or((0, false))
            }
            settled => settled.unwrap_or((0, false)),
        };
        if is_fresh {
            self.remove(shard, name);
        }
        still_held
    }

    fn remove(&self, shard: &mut Shard, name: CounterId) {
        if shard.counters.remove(name) {
            self.stored.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Shard {
    /// The time. As it is read under the lock, whoever comes later sees a later one, however slightly the processors disagree; what goes back
    /// further is a clock that was set back.
    #[inline]
    fn now_us(&mut self, clock: &Clock) -> u64 {
        let now_us = clock.now_us();
        let is_skew = now_us < self.latest_us && self.latest_us - now_us < SKEW_US;
        if !is_skew {
            self.latest_us = now_us;
        }
        self.latest_us
    }

    /// Does something to a counter, if it is stored.
    #[inline]
    fn update<T>(&mut self, name: CounterId, rule: &Rule, act: impl FnOnce(&mut Counter) -> T) -> Option<T> {
        let (sooner, done) = self.counters.update(name, rule, act)?;
        if let Some(ends_ms) = sooner {
            self.sweep_at_ms = self.sweep_at_ms.min(ends_ms);
        }
        Some(done)
    }
}

impl Counters {
    /// Returns when it ends now, if that is sooner than before, and what was done.
    #[inline]
    fn update<T>(
        &mut self,
        name: CounterId,
        rule: &Rule,
        act: impl FnOnce(&mut Counter) -> T,
    ) -> Option<(Option<u64>, T)> {
        if !matches!(rule.algorithm(), Algorithm::FixedWindow { .. }) {
            let (sooner, done) = self.others.update(name, |counter| counter.as_mut().map(act))?;
            return Some((sooner, done?));
        }
        self.windows.update(name, |packed| {
            let mut counter = Counter::Window(Window::from(*packed));
            let done = act(&mut counter);
            if let Counter::Window(window) = &counter {
                *packed = window.into();
            }
            done
        })
    }

    fn insert(&mut self, name: CounterId, counter: Counter) {
        match counter {
            Counter::Window(window) => self.windows.insert(name, (&window).into()),
            other => self.others.insert(name, Some(other)),
        }
    }

    /// Says whether it was stored.
    fn remove(&mut self, name: CounterId) -> bool {
        self.windows.remove(name) || self.others.remove(name)
    }

    /// Drops what is fresh by then, and room that is not needed any more.
    fn drop_all_ended(&mut self, now_ms: u64) {
        self.windows.drop_all_ended(now_ms);
        self.others.drop_all_ended(now_ms);
    }

    /// Drops some of that. Returns how many counters that were: none only if none is fresh.
    fn drop_some_ended(&mut self, now_ms: u64) -> usize {
        match self.windows.drop_some_ended(now_ms) {
            0 => self.others.drop_some_ended(now_ms),
            dropped => dropped,
        }
    }

    /// A time before which none is fresh.
    fn soonest_ms(&self) -> u64 {
        self.windows.soonest_ms().min(self.others.soonest_ms())
    }

    fn len(&self) -> usize {
        self.windows.len() + self.others.len()
    }
}

impl Store for Memory {
    fn decide(&self, mut batch: Batch) -> Reply<Batch> {
        for request in &mut *batch {
            self.decide_one(request);
        }
        Reply::Ready(batch)
    }

    fn refund(&self, charges: Charges) -> Reply<Result<u64, StoreError>> {
        let refund = |charge: &Charge| {
            let mut shard = self.shard(shard_of(&charge.counter.id()));
            let now_us = shard.now_us(&self.clock);
            self.take_back(&mut shard, charge, now_us)
        };
        Reply::Ready(Ok(charges.iter().filter(|charge| charge.cost > 0).map(refund).sum()))
    }

    fn supports_holds(&self) -> bool {
        true
    }

    fn renew(&self, charges: Vec<Charge>) -> Reply<Result<Vec<bool>, StoreError>> {
        let renew = |Charge { counter, rule, hold, .. }: &Charge| {
            let Some(hold) = hold else { return false };
            let mut shard = self.shard(shard_of(&counter.id()));
            let now_us = shard.now_us(&self.clock);
            let is_held = shard.update(counter.id(), rule, |counter| counter.renew(hold, now_us));
            is_held.unwrap_or(false)
        };
        Reply::Ready(Ok(charges.iter().map(renew).collect()))
    }

    fn settle(&self, charge: Charge, used: u64) -> Reply<Result<(), StoreError>> {
        let Charge { counter, rule, hold, .. } = &charge;
        let Some(hold) = hold else { return Reply::Ready(Ok(())) };
        let mut shard = self.shard(shard_of(&counter.id()));
        let now_us = shard.now_us(&self.clock);
        self.settle_in(&mut shard, counter.id(), rule, hold, used, now_us);
        Reply::Ready(Ok(()))
    }

    fn reset(&self, counter: CounterName) -> Reply<Result<(), StoreError>> {
        let name = counter.id();
        self.remove(&mut self.shard(shard_of(&name)), name);
        Reply::Ready(Ok(()))
    }
}

fn shard_in<'a>(locked: &'a mut Locked<'_>, name: &CounterId) -> &'a mut Shard {
    let index = shard_of(name);
    let at = locked.iter().position(|(locked, _)| *locked == index).unwrap_or_default();
    &mut locked[at].1
}

#[allow(clippy::cast_possible_truncation)] // the low bits are what is wanted
#[inline]
fn shard_of(name: &CounterId) -> usize {
    name.0 as usize % SHARDS
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use std::{
        sync::Arc,
        time::{Duration, Instant},
    };

    use super::*;

    #[test]
    fn time_goes_back_in_a_shard_if_the_clock_was_set_back() {
        let early = crate::ManualClock::new();
        let at = |after: Duration| {
            let clock = crate::ManualClock::new();
            clock.advance(after);
            Clock::from(clock)
        };
        let mut shard = Shard::default();
        let start_us = shard.now_us(&early.into());
        for (after, seen) in [(5_000, 5_000), (4_001, 5_000), (4_000, 4_000), (4_001, 4_001), (4_001, 4_001)] {
            assert_eq!(shard.now_us(&at(Duration::from_micros(after))) - start_us, seen, "{after}");
        }
    }

    /// Others may change the counter while a thread stands at its lock, and the clock moves on.
    #[test]
    fn a_window_is_told_by_the_time_at_which_it_is_locked() {
        let rule = Rule::new("item", 1, Duration::from_secs(1));
        let manual = crate::ManualClock::new();
        let memory = Memory::new(manual.clone().into(), 10);
        let name = CounterId(0, 0);
        memory.take(name, &ChargeQuery { rule: &rule, cost: 1, longest_wait_ms: 0, hold: None }).unwrap();
        std::thread::scope(|scope| {
            let locked = memory.shard(shard_of(&name));
            let taken = scope.spawn(|| memory.take_window(name, rule.count(), 1));
            std::thread::sleep(Duration::from_millis(50));
            manual.advance(Duration::from_millis(300));
            drop(locked);
            let taken = taken.join().unwrap().unwrap();
            assert_eq!((taken.fits, taken.reset_after_ms), (false, 700));
        });
    }

    /// By the clock that programs have: tests have one that can be paused.
    #[test]
    fn time_never_goes_back_in_a_shard() {
        let memory = Arc::new(Memory::new(Clock::unpaused(), 10));
        let ends = Instant::now() + Duration::from_millis(200);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let memory = Arc::clone(&memory);
                scope.spawn(move || {
                    while Instant::now() < ends {
                        let mut shard = memory.shard(0);
                        let before = shard.latest_us;
                        let now = shard.now_us(&memory.clock);
                        assert!(now >= before, "{now} after {before}");
                    }
                });
            }
        });
    }
}
