//! The store in this process's memory.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::{BuildHasherDefault, Hasher},
    sync::{PoisonError, TryLockError, atomic::Ordering},
};

use siphasher::sip128::{Hasher128, SipHasher13};
use smallvec::SmallVec;

use crate::{
    Clock, CounterName,
    algorithm::{Counter, Look},
    store::{Batch, Charge, Charges, Reply, Request, Store, StoreError},
    sync::{AtomicUsize, Mutex, MutexGuard},
};

#[cfg(all(test, model_check))]
mod model_check;

/// Counters of one process, exact under any number of threads.
///
/// It needs no background task: what equals a fresh counter is dropped when a new one needs its room. When every
/// counter is live and the store is full, new keys are refused as unavailable, and those that are stored go on.
#[derive(Debug)]
pub(crate) struct Memory {
    clock: Clock,
    /// Of the hash, so that nobody can choose keys that collide.
    secret: (u64, u64),
    shards: Box<[Mutex<Shard>]>,
    stored: AtomicUsize,
    capacity: usize,
}

/// The hash of a counter's name under this store's secret.
type Fingerprint = u128;

#[derive(Debug, Default)]
struct Shard {
    counters: HashMap<Fingerprint, Counter, BuildHasherDefault<AlreadyHashed>>,
    /// Nothing is to be gained by a look for fresh counters before this.
    sweep_at_ms: u64,
    /// Let go of what is fresh when there are this many.
    sweep_above: usize,
}

const SHARDS: usize = if cfg!(all(test, model_check)) { 2 } else { 64 };
const SWEEP_PAUSE_MS: u64 = 100;

/// The shards of one request.
type Locked<'a> = SmallVec<[(usize, MutexGuard<'a, Shard>); 1]>;

impl Memory {
    pub(crate) fn new(clock: Clock, capacity: usize) -> Self {
        Self {
            clock,
            secret: (random(), random()),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            stored: AtomicUsize::new(0),
            capacity,
        }
    }

    fn fingerprint(&self, name: &CounterName) -> Fingerprint {
        let mut hasher = SipHasher13::new_with_keys(self.secret.0, self.secret.1);
        hasher.write(name.as_bytes());
        hasher.finish128().as_u128()
    }

    fn shard(&self, index: usize) -> MutexGuard<'_, Shard> {
        // A panic elsewhere can't leave a shard half changed: each change is a whole one.
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn decide_one(&self, request: &mut Request) {
        let names: SmallVec<[Fingerprint; 1]> =
            request.charges.iter().map(|charge| self.fingerprint(&charge.counter)).collect();

        // Each shard once, in order, so that two requests cannot wait for each other.
        let mut indices: SmallVec<[usize; 1]> = names.iter().map(shard_of).collect();
        indices.sort_unstable();
        indices.dedup();
        let mut shards: Locked<'_> = indices.into_iter().map(|index| (index, self.shard(index))).collect();
        // Read under the locks: whoever comes later sees a later time.
        let now_us = self.clock.now_us();

        let mut all_fit = true;
        for (charge, name) in request.charges.iter_mut().zip(&names) {
            let shard = shard_in(&mut shards, name);
            let mut stored = shard.counters.get_mut(name);
            let until_ms = stored.as_ref().map_or(0, |counter| counter.until_ms());
            let look = Counter::look(stored.as_deref_mut(), charge, now_us);
            if let Some(counter) = stored
                && counter.until_ms() < until_ms
            {
                shard.sweep_at_ms = shard.sweep_at_ms.min(counter.until_ms()); // the clock was set back
            }
            all_fit &= look.fits;
            charge.decided(look, [0; 2]);
        }
        request.outcome = Ok(all_fit);
        if !(all_fit && request.consume) {
            return;
        }

        for at in 0..names.len() {
            let charge = &mut request.charges[at];
            if charge.cost == 0 {
                continue;
            }
            match self.charge(shard_in(&mut shards, &names[at]), names[at], charge, now_us) {
                Ok((after, receipt)) => (charge.decision, charge.receipt) = (after.decision, receipt),
                Err(full) => {
                    for (charge, name) in request.charges[..at].iter().zip(&names) {
                        self.return_charge(shard_in(&mut shards, name), *name, charge, now_us);
                    }
                    request.outcome = Err(full);
                    return;
                }
            }
        }
    }

    fn charge(
        &self,
        shard: &mut Shard,
        name: Fingerprint,
        charge: &Charge,
        now_us: u64,
    ) -> Result<(Look, [u64; 2]), StoreError> {
        if let Entry::Occupied(mut stored) = shard.counters.entry(name) {
            let charged = stored.get_mut().charge(charge, now_us);
            shard.sweep_at_ms = shard.sweep_at_ms.min(stored.get().until_ms());
            return Ok(charged);
        }
        if shard.counters.len() >= shard.sweep_above {
            self.sweep(shard, now_us);
            shard.sweep_above = (2 * shard.counters.len()).max(64);
        }
        while !self.take_room() {
            if self.sweep(shard, now_us) == 0 && self.sweep_others(now_us) == 0 {
                return Err(StoreError::unavailable(format!(
                    "the memory store holds {} counters, as many as it may, and all of them are in use",
                    self.capacity
                )));
            }
        }
        let mut counter = Counter::fresh(&charge.rule, now_us);
        let charged = counter.charge(charge, now_us);
        shard.sweep_at_ms = shard.sweep_at_ms.min(counter.until_ms());
        shard.counters.insert(name, counter);
        Ok(charged)
    }

    /// Counts one more if the store is not full. It never counts too many, not even for a moment: another thread
    /// would find the store full that is not.
    fn take_room(&self) -> bool {
        let one_more = |stored| (stored < self.capacity).then_some(stored + 1);
        self.stored.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }

    /// Drops what is fresh. Returns how many that were.
    fn sweep(&self, shard: &mut Shard, now_us: u64) -> usize {
        if shard.sweep_at_ms > now_us / 1000 {
            return 0;
        }
        let before = shard.counters.len();
        let mut soonest = u64::MAX;
        shard.counters.retain(|_, counter| {
            let live = !counter.is_fresh(now_us);
            if live {
                soonest = soonest.min(counter.until_ms());
            }
            live
        });
        let dropped = before - shard.counters.len();
        // A look at many that frees few is not repeated at once.
        let pause_ms = if before > 1024 && dropped < before / 16 { SWEEP_PAUSE_MS } else { 0 };
        shard.sweep_at_ms = soonest.max(now_us / 1000 + pause_ms);
        self.stored.fetch_sub(dropped, Ordering::Relaxed);
        dropped
    }

    /// Makes room in the first shard that has some. Shards in use are left alone: waiting for one while holding
    /// another could be mutual.
    fn sweep_others(&self, now_us: u64) -> usize {
        self.shards
            .iter()
            .filter_map(|shard| match shard.try_lock() {
                Ok(shard) => Some(shard),
                Err(TryLockError::Poisoned(shard)) => Some(shard.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            })
            .map(|mut shard| self.sweep(&mut shard, now_us))
            .find(|dropped| *dropped > 0)
            .unwrap_or(0)
    }

    fn return_charge(&self, shard: &mut Shard, name: Fingerprint, charge: &Charge, now_us: u64) -> u64 {
        let Entry::Occupied(mut stored) = shard.counters.entry(name) else {
            return 0;
        };
        let back = stored.get_mut().give_back(charge, now_us);
        shard.sweep_at_ms = shard.sweep_at_ms.min(stored.get().until_ms());
        if stored.get().is_fresh(now_us) {
            stored.remove();
            self.stored.fetch_sub(1, Ordering::Relaxed);
        }
        back
    }
}

impl Store for Memory {
    fn decide(&self, mut batch: Batch) -> Reply<Batch> {
        for request in &mut *batch {
            self.decide_one(request);
        }
        Reply::Ready(batch)
    }

    fn give_back(&self, charges: Charges) -> Reply<Result<u64, StoreError>> {
        let back = charges
            .iter()
            .filter(|charge| charge.cost > 0)
            .map(|charge| {
                let name = self.fingerprint(&charge.counter);
                let mut shard = self.shard(shard_of(&name));
                self.return_charge(&mut shard, name, charge, self.clock.now_us())
            })
            .sum();
        Reply::Ready(Ok(back))
    }

    fn reset(&self, counter: CounterName) -> Reply<Result<(), StoreError>> {
        let name = self.fingerprint(&counter);
        if self.shard(shard_of(&name)).counters.remove(&name).is_some() {
            self.stored.fetch_sub(1, Ordering::Relaxed);
        }
        Reply::Ready(Ok(()))
    }
}

fn shard_in<'a>(locked: &'a mut Locked<'_>, name: &Fingerprint) -> &'a mut Shard {
    let index = shard_of(name);
    let at = locked.iter().position(|(locked, _)| *locked == index).unwrap_or_default();
    &mut locked[at].1
}

#[allow(clippy::cast_possible_truncation)] // the low bits are what is wanted
fn shard_of(name: &Fingerprint) -> usize {
    (*name >> 64) as usize % SHARDS
}

/// Secret enough: the standard library seeds its maps from the system's randomness.
fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}

/// A fingerprint is its own hash.
#[derive(Debug, Default)]
struct AlreadyHashed(u64);

impl Hasher for AlreadyHashed {
    fn finish(&self) -> u64 {
        self.0
    }

    #[allow(clippy::cast_possible_truncation)]
    fn write_u128(&mut self, fingerprint: u128) {
        self.0 = fingerprint as u64;
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0 ^= u64::from_le_bytes(word);
        }
    }
}
