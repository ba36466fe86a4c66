//! The denial cache: charges that the store has denied, each until shortly before its
//! `retry_after`, a ban for a second at most.

use std::{collections::HashMap, hash::BuildHasherDefault, sync::atomic::Ordering};

use crate::{
    Decision, Rule,
    counter::{CounterId, IdentityHasher},
    decision::{BANNED, is_ban},
    failures::Epoch,
    sync::{AtomicBool, CachePadded, SpinMutex, SpinMutexGuard, spin_lock},
};

#[cfg(all(test, model_check))]
mod model_check;

/// Cached denials, in shards, for all threads.
#[derive(Debug)]
pub(super) struct DenialCache {
    shards: Box<[CachePadded<SpinMutex<DenialShard>>]>,
    /// Set by the first insert, and never cleared: until then no shard is locked.
    was_used: AtomicBool,
}

/// A denial by the store. From the cache, it has the times that the store would give now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Denial {
    pub(super) decision: Decision,
    /// The delay until the slot of a leaky bucket.
    pub(super) wait_ms: u64,
}

#[derive(Debug, Default)]
struct DenialShard {
    entries: HashMap<CounterId, DenialEntry, BuildHasherDefault<IdentityHasher>>,
    /// No entry ends before this time.
    earliest_end_us: u64,
    /// The number of epochs at the last sweep. If it has grown since, a server has failed.
    swept_at_epoch: u32,
    /// How often a counter of this shard was invalidated.
    invalidations: u32,
}

/// The server of a counter, and the epoch of its failures in which a denial holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ServerEpoch {
    pub(super) slot: u16,
    pub(super) epoch: Epoch,
}

/// A cached denial. Kept small, because a lookup takes as long as its cache misses.
#[derive(Debug)]
struct DenialEntry {
    /// The arrival of the store's answer. The waits count from here, so a caller who obeys them is
    /// not too early.
    arrived_us: u64,
    /// The time from sending the query to its answer. The entry ends this much earlier.
    round_trip_us: u32,
    retry_after_ms: u32,
    reset_after_ms: u32,
    wait_ms: u32,
    count: u64,
    limit: u64,
    server: ServerEpoch,
    is_ban: bool,
}

/// The longest time for which a ban is cached: another process may end it.
const LONGEST_BAN_US: u64 = 1_000_000;

impl DenialEntry {
    /// `None` if it has ended already, or if a time is more than 49 days away.
    ///
    /// The store decided after `sent_us` and rounded its times up to a millisecond. So the entry
    /// ends one millisecond before `retry_after`, counted from `sent_us`: until then the store
    /// would deny too. A ban ends after [`LONGEST_BAN_US`] at the latest.
    fn new(
        rule: &Rule,
        Denial { decision, wait_ms }: Denial,
        (sent_us, now_us): (u64, u64),
        server: ServerEpoch,
    ) -> Option<Self> {
        let entry = Self {
            arrived_us: now_us,
            round_trip_us: now_us.saturating_sub(sent_us).try_into().ok()?,
            retry_after_ms: (decision.retry_after_ms & !BANNED).try_into().ok()?,
            reset_after_ms: decision.reset_after_ms.try_into().ok()?,
            wait_ms: wait_ms.try_into().ok()?,
            count: rule.count(),
            limit: rule.limit(),
            server,
            is_ban: is_ban(decision.retry_after_ms),
        };
        (entry.ends_us() > now_us).then_some(entry)
    }

    /// The end of the entry: from then on the store is asked.
    fn ends_us(&self) -> u64 {
        let holds_us = u64::from(self.retry_after_ms.saturating_sub(1)) * 1000;
        let holds_us = if self.is_ban { holds_us.min(LONGEST_BAN_US) } else { holds_us };
        (self.arrived_us + holds_us).saturating_sub(self.round_trip_us.into())
    }

    /// The denial with the times that remain. `None` if the entry has ended.
    fn denial_at(&self, now_us: u64) -> Option<Denial> {
        if now_us >= self.ends_us() {
            return None;
        }
        let passed_ms = now_us.saturating_sub(self.arrived_us) / 1000; // so the times left are rounded up
        let left_ms = |ms: u32| u64::from(ms).saturating_sub(passed_ms);
        let decision = Decision {
            limit: self.limit,
            remaining: 0,
            reset_after_ms: left_ms(self.reset_after_ms),
            retry_after_ms: left_ms(self.retry_after_ms) | if self.is_ban { BANNED } else { 0 },
        };
        Some(Denial { decision, wait_ms: left_ms(self.wait_ms) })
    }
}

const SHARDS: usize = if cfg!(all(test, model_check)) { 2 } else { 64 };
/// Entries in a shard. All shards have 131,072, which take 8 to 15 MB.
const CAPACITY: usize = if cfg!(test) { 2 } else { 2048 };

impl DenialCache {
    pub(super) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| CachePadded::default()).collect(), was_used: AtomicBool::new(false) }
    }

    #[allow(clippy::cast_possible_truncation)] // the low bits are enough
    fn shard(&self, id: CounterId) -> SpinMutexGuard<'_, DenialShard> {
        spin_lock(&self.shards[id.0 as usize % SHARDS])
    }

    /// Checks that no denial was ever cached.
    pub(super) fn was_never_used(&self) -> bool {
        !self.was_used.load(Ordering::Acquire)
    }

    /// The denial of a counter that the store would repeat now, and the epoch it is from.
    ///
    /// It holds only if the server is still in that epoch, which the caller checks. `None` if the
    /// entry is of a rule with another count or limit.
    pub(super) fn get(&self, id: CounterId, rule: &Rule, now_us: u64) -> Option<(Denial, ServerEpoch)> {
        if self.was_never_used() {
            return None;
        }
        let shard = self.shard(id);
        let entry = shard.entries.get(&id)?;
        let is_same_rule = (entry.count, entry.limit) == (rule.count(), rule.limit());
        if is_same_rule { Some((entry.denial_at(now_us)?, entry.server)) } else { None }
    }

    /// How often this counter, or another one of its shard, was invalidated.
    pub(super) fn invalidations(&self, id: CounterId) -> u32 {
        self.shard(id).invalidations
    }

    /// Caches a denial by a counter of which nothing remains.
    ///
    /// `times`: when the query was sent, and when its answer arrived. `invalidations`: the number
    /// when the query was sent. The denial is not cached if that has grown since, or if the shard
    /// has no room.
    pub(super) fn insert(
        &self,
        id: CounterId,
        rule: &Rule,
        denial: Denial,
        times: (u64, u64),
        (invalidations, server): (u32, ServerEpoch),
        is_current: impl Fn(ServerEpoch) -> bool,
    ) {
        let Some(entry) = DenialEntry::new(rule, denial, times, server) else { return };
        let mut shard = self.shard(id);
        if shard.invalidations != invalidations || !shard.make_room(id, times.1, is_current) {
            return;
        }
        let ends_us = entry.ends_us();
        shard.earliest_end_us = if shard.entries.is_empty() { ends_us } else { shard.earliest_end_us.min(ends_us) };
        self.was_used.store(true, Ordering::Release);
        shard.entries.insert(id, entry);
    }

    /// Removes a denial that no longer holds, as a later answer of the store shows.
    #[inline]
    pub(super) fn remove(&self, id: CounterId) {
        if !self.was_never_used() {
            self.shard(id).entries.remove(&id);
        }
    }

    /// Removes the denial of a counter. Answers that are still on the way are not cached.
    pub(super) fn invalidate(&self, id: CounterId) {
        let mut shard = self.shard(id);
        shard.entries.remove(&id);
        shard.invalidations = shard.invalidations.wrapping_add(1);
    }
}

impl DenialShard {
    /// Returns true if there is room for an entry. A full shard is swept if entries may have ended
    /// since.
    fn make_room(&mut self, id: CounterId, now_us: u64, is_current: impl Fn(ServerEpoch) -> bool) -> bool {
        let epochs = Epoch::count();
        let may_have_ended = self.earliest_end_us <= now_us || self.swept_at_epoch != epochs;
        if self.entries.len() >= CAPACITY && may_have_ended && !self.entries.contains_key(&id) {
            self.swept_at_epoch = epochs;
            self.entries.retain(|_, entry| entry.ends_us() > now_us && is_current(entry.server));
            self.earliest_end_us = self.entries.values().map(DenialEntry::ends_us).min().unwrap_or(u64::MAX);
        }
        self.entries.len() < CAPACITY || self.entries.contains_key(&id)
    }
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use std::{sync::LazyLock, time::Duration};

    use super::*;
    use crate::failures::Failures;

    const RULE: Rule = Rule::new("item", 1, Duration::from_secs(60));
    const START: u64 = 1_000_000;

    /// An id in the one shard that these tests use.
    fn id(number: u64) -> CounterId {
        CounterId(0, number + 1)
    }

    fn denial(retry_after_ms: u64, reset_after_ms: u64) -> Denial {
        let decision = Decision { limit: 1, remaining: 0, reset_after_ms, retry_after_ms };
        Denial { decision, wait_ms: 7 }
    }

    fn server() -> ServerEpoch {
        static SERVER: LazyLock<ServerEpoch> =
            LazyLock::new(|| ServerEpoch { slot: 0, epoch: Failures::default().epoch().unwrap() });
        *SERVER
    }

    fn keep(denials: &DenialCache, number: u64, denial: Denial, times: (u64, u64)) {
        let id = id(number);
        denials.insert(id, &RULE, denial, times, (denials.invalidations(id), server()), |_| true);
    }

    fn is_cached(denials: &DenialCache, number: u64, now_us: u64) -> bool {
        denials.get(id(number), &RULE, now_us).is_some()
    }

    #[test]
    fn it_ends_counted_from_sending_and_waits_count_from_the_answer() {
        let denials = DenialCache::new();
        keep(&denials, 1, denial(10, 12), (START, START + 2_500));
        let left = |after_us| {
            let (known, _) = denials.get(id(1), &RULE, START + after_us)?;
            Some((known.decision.retry_after_ms, known.decision.reset_after_ms, known.wait_ms))
        };
        assert_eq!(left(2_500), Some((10, 12, 7)));
        assert_eq!(left(3_499), Some((10, 12, 7)));
        assert_eq!(left(3_500), Some((9, 11, 6)));
        // The store may have decided at once, and rounded up by almost a millisecond.
        assert_eq!(left(8_999), Some((4, 6, 1)));
        assert_eq!(left(9_000), None);
        // The clock of another processor may be behind.
        assert_eq!(left(2_000), Some((10, 12, 7)));
    }

    #[test]
    fn a_denial_for_less_than_a_millisecond_or_for_ever_is_not_cached() {
        for (retry_after_ms, times) in [
            (0, (START, START)),
            (1, (START, START)),
            (5, (START, START + 4_000)),
            (1 << 32, (START, START)),
            (u64::MAX, (START, START)),
            (u64::MAX - 1, (START, START)),
            (u64::MAX / 1000, (START, START)),
        ] {
            let denials = DenialCache::new();
            keep(&denials, 1, denial(retry_after_ms, 5), times);
            assert!(!is_cached(&denials, 1, times.1), "{retry_after_ms}");
        }
        let denials = DenialCache::new();
        let longest = u64::from(u32::MAX);
        keep(&denials, 1, denial(longest, longest), (START, START));
        assert!(is_cached(&denials, 1, START + (longest - 1) * 1000 - 1));
        assert!(!is_cached(&denials, 1, START + (longest - 1) * 1000));
    }

    #[test]
    fn it_holds_for_one_count_and_one_limit() {
        let denials = DenialCache::new();
        keep(&denials, 1, denial(10, 10), (START, START));
        assert!(denials.get(id(1), &RULE.with_count(2), START).is_none());
        let burst = |burst| RULE.with_algorithm(crate::Algorithm::TokenBucket { burst, refill: crate::Refill::Greedy });
        denials.insert(id(2), &burst(5), denial(10, 10), (START, START), (0, server()), |_| true);
        assert!(denials.get(id(2), &burst(5), START).is_some());
        assert!(denials.get(id(2), &burst(6), START).is_none());
        assert!(is_cached(&denials, 1, START) && !is_cached(&denials, 2, START));
    }

    #[test]
    fn a_full_shard_replaces_only_entries_that_have_ended() {
        let denials = DenialCache::new();
        keep(&denials, 1, denial(10, 10), (START, START));
        keep(&denials, 2, denial(20, 20), (START, START));
        keep(&denials, 3, denial(30, 30), (START, START));
        assert_eq!([1, 2, 3].map(|number| is_cached(&denials, number, START)), [true, true, false]);
        keep(&denials, 2, denial(40, 40), (START, START));
        assert!(is_cached(&denials, 2, START + 30_000), "an existing entry is replaced");
        keep(&denials, 3, denial(30, 30), (START + 9_000, START + 9_000));
        assert_eq!([1, 2, 3].map(|number| is_cached(&denials, number, START + 9_000)), [false, true, true]);
        keep(&denials, 1, denial(30, 30), (START + 10_000, START + 10_000));
        assert!(!is_cached(&denials, 1, START + 10_000));
    }

    #[test]
    fn an_answer_to_a_query_from_before_an_invalidation_is_not_cached() {
        let denials = DenialCache::new();
        let invalidations = denials.invalidations(id(1));
        denials.invalidate(id(1));
        denials.insert(id(1), &RULE, denial(10, 10), (START, START), (invalidations, server()), |_| true);
        assert!(!is_cached(&denials, 1, START));
        keep(&denials, 1, denial(10, 10), (START, START));
        assert!(is_cached(&denials, 1, START));
        denials.remove(id(1));
        assert!(!is_cached(&denials, 1, START));
    }

    #[test]
    fn a_full_shard_replaces_entries_from_before_a_failure() {
        let denials = DenialCache::new();
        let failed = ServerEpoch { slot: 1, ..server() };
        keep(&denials, 1, denial(50, 50), (START, START));
        denials.insert(id(2), &RULE, denial(50, 50), (START, START), (0, failed), |_| true);
        let keep_third = |failed: bool| {
            let is_current = |server: ServerEpoch| !failed || server.slot == 0;
            denials.insert(id(3), &RULE, denial(50, 50), (START, START), (0, server()), is_current);
        };
        keep_third(false);
        assert_eq!([1, 2, 3].map(|number| is_cached(&denials, number, START)), [true, true, false]);
        Failures::default().failed();
        keep_third(true);
        assert_eq!([1, 2, 3].map(|number| is_cached(&denials, number, START)), [true, false, true]);
        assert_eq!(denials.get(id(3), &RULE, START).map(|(_, server)| server), Some(server()));
    }
}
