//! What is known to be refused, and until when.

use std::{collections::HashMap, hash::BuildHasherDefault, sync::atomic::Ordering};

use crate::{
    Decision, Rule,
    counter::{CounterId, IdentityHasher},
    failures::Epoch,
    sync::{AtomicBool, CachePadded, SpinMutex, SpinMutexGuard, spin_lock},
};

#[cfg(all(test, model_check))]
mod model_check;

/// The denials that still hold, for all threads.
#[derive(Debug)]
pub(super) struct DenialCache {
    shards: Box<[CachePadded<SpinMutex<DenialShard>>]>,
    /// Whether there has been any.
    any: AtomicBool,
}

/// What a store said when it refused, and what it would say now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Denial {
    pub(super) decision: Decision,
    /// Until the slot of a queue.
    pub(super) wait_ms: u64,
}

#[derive(Debug, Default)]
struct DenialShard {
    kept: HashMap<CounterId, DenialEntry, BuildHasherDefault<IdentityHasher>>,
    /// No denial ends before.
    soonest_us: u64,
    /// How many epochs there had been when it was last looked through for room.
    epochs: u32,
    /// How often one was forgotten.
    forgotten: u32,
}

/// The server of a counter, and the epoch of its failures in which a denial holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ServerEpoch {
    pub(super) slot: u16,
    pub(super) epoch: Epoch,
}

/// As small as can be: a look takes as long as the memory where it lies.
#[derive(Debug)]
struct DenialEntry {
    /// When the store's answer arrived. What it says of time is counted from here, so that who obeys it does not come too early.
    since_us: u64,
    /// For how long the store had been asked then: by so much earlier is it asked again.
    asked_for_us: u32,
    retry_after_ms: u32,
    reset_after_ms: u32,
    wait_ms: u32,
    count: u64,
    limit: u64,
    server: ServerEpoch,
}

impl DenialEntry {
    /// Nothing of what says nothing of now, or of times that are more than 49 days away.
    ///
    /// The store has decided after `sent_us`, and rounded up to a millisecond: as long as less than that has passed, it would refuse too.
    fn new(
        rule: &Rule,
        Denial { decision, wait_ms }: Denial,
        (sent_us, now_us): (u64, u64),
        server: ServerEpoch,
    ) -> Option<Self> {
        let kept = Self {
            since_us: now_us,
            asked_for_us: now_us.saturating_sub(sent_us).try_into().ok()?,
            retry_after_ms: decision.retry_after_ms.try_into().ok()?,
            reset_after_ms: decision.reset_after_ms.try_into().ok()?,
            wait_ms: wait_ms.try_into().ok()?,
            count: rule.count(),
            limit: rule.limit(),
            server,
        };
        (kept.until_us() > now_us).then_some(kept)
    }

    /// Until then the store is not asked.
    fn until_us(&self) -> u64 {
        let holds_us = u64::from(self.retry_after_ms.saturating_sub(1)) * 1000;
        (self.since_us + holds_us).saturating_sub(self.asked_for_us.into())
    }

    fn look(&self, now_us: u64) -> Option<Denial> {
        if now_us >= self.until_us() {
            return None;
        }
        let passed_ms = now_us.saturating_sub(self.since_us) / 1000; // what is left is rounded up
        let left_ms = |ms: u32| u64::from(ms).saturating_sub(passed_ms);
        let decision = Decision {
            limit: self.limit,
            remaining: 0,
            reset_after_ms: left_ms(self.reset_after_ms),
            retry_after_ms: left_ms(self.retry_after_ms),
        };
        Some(Denial { decision, wait_ms: left_ms(self.wait_ms) })
    }
}

const SHARDS: usize = if cfg!(all(test, model_check)) { 2 } else { 64 };
/// 131,072 in all, which take 8 to 15 MB.
const CAPACITY: usize = if cfg!(test) { 2 } else { 2048 };

impl DenialCache {
    pub(super) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| CachePadded::default()).collect(), any: AtomicBool::new(false) }
    }

    #[allow(clippy::cast_possible_truncation)] // the low bits are what is wanted
    fn shard(&self, name: CounterId) -> SpinMutexGuard<'_, DenialShard> {
        spin_lock(&self.shards[name.0 as usize % SHARDS])
    }

    /// Whether nothing is known.
    pub(super) fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Acquire)
    }

    /// What the store would say, if that is known and its server has not failed since.
    pub(super) fn look(&self, name: CounterId, rule: &Rule, now_us: u64) -> Option<(Denial, ServerEpoch)> {
        if self.is_empty() {
            return None;
        }
        let shard = self.shard(name);
        let kept = shard.kept.get(&name)?;
        let is_same_rule = (kept.count, kept.limit) == (rule.count(), rule.limit());
        if is_same_rule { Some((kept.look(now_us)?, kept.server)) } else { None }
    }

    /// How often something was forgotten of a counter, or of others beside it.
    pub(super) fn forgotten(&self, name: CounterId) -> u32 {
        self.shard(name).forgotten
    }

    /// Keeps what the store said, unless something has been forgotten since it was asked. It has said that nothing remains.
    pub(super) fn keep(
        &self,
        name: CounterId,
        rule: &Rule,
        denial: Denial,
        times: (u64, u64),
        (forgotten, server): (u32, ServerEpoch),
        is_current: impl Fn(ServerEpoch) -> bool,
    ) {
        let Some(kept) = DenialEntry::new(rule, denial, times, server) else { return };
        let mut shard = self.shard(name);
        if shard.forgotten != forgotten || !shard.has_room(name, times.1, is_current) {
            return;
        }
        let until_us = kept.until_us();
        shard.soonest_us = if shard.kept.is_empty() { until_us } else { shard.soonest_us.min(until_us) };
        self.any.store(true, Ordering::Release);
        shard.kept.insert(name, kept);
    }

    /// Drops a denial that is none any more by what the store has said since.
    pub(super) fn drop_one(&self, name: CounterId) {
        if self.any.load(Ordering::Acquire) {
            self.shard(name).kept.remove(&name);
        }
    }

    /// Forgets what is known of a counter, and does not learn what is on its way.
    pub(super) fn forget(&self, name: CounterId) {
        let mut shard = self.shard(name);
        shard.kept.remove(&name);
        shard.forgotten = shard.forgotten.wrapping_add(1);
    }
}

impl DenialShard {
    /// Whether there is room for one, perhaps in place of those that hold no longer.
    fn has_room(&mut self, name: CounterId, now_us: u64, is_current: impl Fn(ServerEpoch) -> bool) -> bool {
        let epochs = Epoch::count();
        let is_any_over = self.soonest_us <= now_us || self.epochs != epochs;
        if self.kept.len() >= CAPACITY && is_any_over && !self.kept.contains_key(&name) {
            self.epochs = epochs;
            self.kept.retain(|_, kept| kept.until_us() > now_us && is_current(kept.server));
            self.soonest_us = self.kept.values().map(DenialEntry::until_us).min().unwrap_or(u64::MAX);
        }
        self.kept.len() < CAPACITY || self.kept.contains_key(&name)
    }
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use std::{sync::LazyLock, time::Duration};

    use super::*;
    use crate::failures::Failures;

    const RULE: Rule = Rule::new("item", 1, Duration::from_secs(60));
    const START: u64 = 1_000_000;

    /// Of the shard that all of these tests use.
    fn name(number: u64) -> CounterId {
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
        let name = name(number);
        denials.keep(name, &RULE, denial, times, (denials.forgotten(name), server()), |_| true);
    }

    fn is_known(denials: &DenialCache, number: u64, now_us: u64) -> bool {
        denials.look(name(number), &RULE, now_us).is_some()
    }

    #[test]
    fn it_holds_from_sending_and_its_waits_from_the_answer() {
        let denials = DenialCache::new();
        keep(&denials, 1, denial(10, 12), (START, START + 2_500));
        let left = |after_us| {
            let (known, _) = denials.look(name(1), &RULE, START + after_us)?;
            Some((known.decision.retry_after_ms, known.decision.reset_after_ms, known.wait_ms))
        };
        assert_eq!(left(2_500), Some((10, 12, 7)));
        assert_eq!(left(3_499), Some((10, 12, 7)));
        assert_eq!(left(3_500), Some((9, 11, 6)));
        // The store may have decided at once, and have rounded up by almost a millisecond.
        assert_eq!(left(8_999), Some((4, 6, 1)));
        assert_eq!(left(9_000), None);
        // The clock of another processor may be behind.
        assert_eq!(left(2_000), Some((10, 12, 7)));
    }

    #[test]
    fn what_holds_for_less_than_a_millisecond_or_for_ever_is_not_kept() {
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
            assert!(!is_known(&denials, 1, times.1), "{retry_after_ms}");
        }
        let denials = DenialCache::new();
        let longest = u64::from(u32::MAX);
        keep(&denials, 1, denial(longest, longest), (START, START));
        assert!(is_known(&denials, 1, START + (longest - 1) * 1000 - 1));
        assert!(!is_known(&denials, 1, START + (longest - 1) * 1000));
    }

    #[test]
    fn it_is_of_one_count_and_one_limit() {
        let denials = DenialCache::new();
        keep(&denials, 1, denial(10, 10), (START, START));
        assert!(denials.look(name(1), &RULE.with_count(2), START).is_none());
        let burst = |burst| RULE.with_algorithm(crate::Algorithm::TokenBucket { burst, refill: crate::Refill::Greedy });
        denials.keep(name(2), &burst(5), denial(10, 10), (START, START), (0, server()), |_| true);
        assert!(denials.look(name(2), &burst(5), START).is_some());
        assert!(denials.look(name(2), &burst(6), START).is_none());
        assert!(is_known(&denials, 1, START) && !is_known(&denials, 2, START));
    }

    #[test]
    fn a_full_shard_takes_the_place_of_what_is_over_and_of_nothing_else() {
        let denials = DenialCache::new();
        keep(&denials, 1, denial(10, 10), (START, START));
        keep(&denials, 2, denial(20, 20), (START, START));
        keep(&denials, 3, denial(30, 30), (START, START));
        assert_eq!([1, 2, 3].map(|number| is_known(&denials, number, START)), [true, true, false]);
        keep(&denials, 2, denial(40, 40), (START, START));
        assert!(is_known(&denials, 2, START + 30_000), "one that is there is renewed");
        keep(&denials, 3, denial(30, 30), (START + 9_000, START + 9_000));
        assert_eq!([1, 2, 3].map(|number| is_known(&denials, number, START + 9_000)), [false, true, true]);
        keep(&denials, 1, denial(30, 30), (START + 10_000, START + 10_000));
        assert!(!is_known(&denials, 1, START + 10_000));
    }

    #[test]
    fn an_answer_that_was_asked_for_before_something_was_forgotten_is_not_kept() {
        let denials = DenialCache::new();
        let asked = denials.forgotten(name(1));
        denials.forget(name(1));
        denials.keep(name(1), &RULE, denial(10, 10), (START, START), (asked, server()), |_| true);
        assert!(!is_known(&denials, 1, START));
        keep(&denials, 1, denial(10, 10), (START, START));
        assert!(is_known(&denials, 1, START));
        denials.drop_one(name(1));
        assert!(!is_known(&denials, 1, START));
    }

    #[test]
    fn a_full_shard_takes_the_place_of_what_was_known_before_a_failure() {
        let denials = DenialCache::new();
        let failed = ServerEpoch { slot: 1, ..server() };
        keep(&denials, 1, denial(50, 50), (START, START));
        denials.keep(name(2), &RULE, denial(50, 50), (START, START), (0, failed), |_| true);
        let keep_third = |failed: bool| {
            let is_current = |server: ServerEpoch| !failed || server.slot == 0;
            denials.keep(name(3), &RULE, denial(50, 50), (START, START), (0, server()), is_current);
        };
        keep_third(false);
        assert_eq!([1, 2, 3].map(|number| is_known(&denials, number, START)), [true, true, false]);
        Failures::default().failed();
        keep_third(true);
        assert_eq!([1, 2, 3].map(|number| is_known(&denials, number, START)), [true, false, true]);
        assert_eq!(denials.look(name(3), &RULE, START).map(|(_, server)| server), Some(server()));
    }
}
