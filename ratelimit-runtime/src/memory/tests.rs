//! Times under the locks, and attempts on several counters.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use proptest::prelude::*;

use super::*;
use crate::{Algorithm, Decision, Key, ManualClock, Refill, backend::MAX_AT_ONCE};

#[test]
fn time_goes_back_in_a_shard_if_the_clock_was_set_back() {
    let early = ManualClock::new();
    let at = |after: Duration| {
        let clock = ManualClock::new();
        clock.advance(after);
        Clock::from(clock)
    };
    let mut shard = MemoryShard::default();
    let start_us = shard.now_us(&early.into());
    for (after, seen) in [(5_000, 5_000), (4_001, 5_000), (4_000, 4_000), (4_001, 4_001), (4_001, 4_001)] {
        assert_eq!(shard.now_us(&at(Duration::from_micros(after))) - start_us, seen, "{after}");
    }
}

/// Others may change the counter, and the clock moves on, while a thread waits for the lock.
#[test]
fn a_window_is_evaluated_at_the_time_at_which_it_is_locked() {
    let rule = Rule::new("item", 1, Duration::from_secs(1));
    let manual = ManualClock::new();
    let memory = Memory::new(manual.clone().into(), 10, 0);
    let id = CounterId::new(&rule, &Key::NONE);
    let charge = || {
        let mut query = Query::new(&rule, &Key::NONE, 1);
        assert!(matches!(memory.try_charge(&mut query, None), Attempt::Decided));
        query.outcome
    };
    charge();
    std::thread::scope(|scope| {
        let locked = memory.shard(memory.shard_of(id));
        let charged = scope.spawn(charge);
        std::thread::sleep(Duration::from_millis(50));
        manual.advance(Duration::from_millis(300));
        drop(locked);
        let charged = charged.join().unwrap();
        assert_eq!((charged.fits(), charged.retry_after_ms.value()), (false, 700));
    });
}

/// With the clock of programs. Tests have one that can be paused.
#[test]
fn time_never_goes_back_in_a_shard() {
    let memory = Arc::new(Memory::new(Clock::unpaused(), 10, 0));
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

/// Each key is called once, and a few thousand at a time have not expired.
#[test]
fn new_counters_take_the_slots_of_expired_ones() {
    let clock = ManualClock::new();
    let memory = Memory::new(clock.clone().into(), 1_000_000, 0);
    let rule = Rule::new("item", 1, PERIOD);
    let stored = || memory.stored.load(Ordering::Relaxed);
    let mut most = 0;
    for number in 0..200_000 {
        clock.advance(Duration::from_micros(500));
        let key = Key::new(number);
        let mut query = Query::new(&rule, &key, 1);
        assert!(matches!(memory.try_charge(&mut query, None), Attempt::Decided));
        assert!(query.outcome.fits());
        most = most.max(stored());
    }
    assert_eq!(stored(), (0..memory.shards.len()).map(|at| memory.shard(at).counters.len()).sum::<usize>());
    assert!(most < 16_384, "{most} counters were stored");
}

/// A caller of a later slot has to sleep, and the general way lets it.
#[test]
fn only_the_first_slot_of_a_queue_is_given_at_once() {
    let clock = ManualClock::new();
    let memory = Memory::new(clock.clone().into(), 1_000_000, 0);
    let rule = Rule::new("item", 10, PERIOD).with_algorithm(Algorithm::LeakyBucket { queue: 1 });
    for _ in 0..2 {
        let attempt = |cost| {
            let mut query = Query::new(&rule, &Key::NONE, cost);
            matches!(memory.try_charge(&mut query, None), Attempt::Decided).then(|| query.outcome.fits())
        };
        assert_eq!([attempt(1), attempt(1), attempt(2)], [Some(true), None, Some(false)]);
        clock.advance(PERIOD / 10);
        // A request of the general way takes the slot of now.
        let queued = Charge::new(rule, CounterName::new("", &rule, &Key::NONE), 1);
        let queued = Charge { longest_wait: Duration::MAX, ..queued };
        let Reply::Ready(batch) = memory.decide(Request::new(queued, true).into()) else { panic!("memory waits") };
        assert!(batch.into_first().unwrap().outcome.unwrap());
        assert_eq!(attempt(1), None);
        clock.advance(PERIOD);
    }
}

const PERIOD: Duration = Duration::from_secs(1);

fn rules() -> impl Strategy<Value = Rule> {
    let algorithm = prop_oneof![
        any::<bool>().prop_map(|align| Algorithm::FixedWindow { align }),
        Just(Algorithm::SlidingLog),
        (prop_oneof![Just(1), Just(2), Just(4)], any::<bool>())
            .prop_map(|(buckets, weighted)| Algorithm::SlidingWindow { buckets, weighted }),
        (1..6_u64, prop_oneof![Just(Refill::Greedy), Just(Refill::Interval)])
            .prop_map(|(burst, refill)| Algorithm::TokenBucket { burst, refill }),
    ];
    (algorithm, 1..5_u64).prop_map(|(algorithm, count)| Rule::new("item", count, PERIOD).with_algorithm(algorithm))
}

/// The state of each counter, by a request that charges nothing.
fn states(memory: &Memory, rules: &[Rule], keys: &[Key]) -> Vec<Decision> {
    let peek = |(rule, key): (&Rule, &Key)| {
        let charge = Charge::new(*rule, CounterName::new("", rule, key), 1);
        let Reply::Ready(batch) = memory.decide(Request::new(charge, false).into()) else { panic!("memory waits") };
        batch.into_first().unwrap().charges[0].decision
    };
    rules.iter().zip(keys).map(peek).collect()
}

proptest! {
    /// Two stores get the same calls, one by attempts, one by requests.
    #[test]
    fn several_charges_are_attempted_as_a_request_decides_them(
        rules in proptest::collection::vec(rules(), 2..4),
        calls in proptest::collection::vec((0..400_u64, proptest::collection::vec(1..7_u64, 3)), 1..40),
    ) {
        let clock = ManualClock::new();
        let [attempted, requested] = [(); 2].map(|()| Memory::new(clock.clone().into(), 10_000, 0));
        let keys: Vec<Key> = (0..rules.len()).map(Key::new).collect();
        for (later_ms, costs) in calls {
            clock.advance(Duration::from_millis(later_ms));
            let mut queries: Vec<_> =
                rules.iter().zip(&keys).zip(&costs).map(|((rule, key), cost)| Query::new(rule, key, *cost)).collect();
            let attempt = match queries.first_chunk_mut::<3>() {
                Some(queries) => attempted.try_charge_all(queries),
                None => attempted.try_charge_all(queries.first_chunk_mut::<2>().unwrap()),
            };

            let charge = |((rule, key), cost): ((&Rule, &Key), &u64)| {
                Charge::new(*rule, CounterName::new("", rule, key), *cost)
            };
            let mut charges = Charges::default();
            rules.iter().zip(&keys).zip(&costs).map(charge).for_each(|charge| charges.push(charge));
            let Reply::Ready(batch) = requested.decide(Request::new(charges, true).into()) else { panic!("memory waits") };
            let request = batch.into_first().unwrap();
            prop_assert!(matches!(attempt, Attempt::Decided));
            let is_admitted = queries.iter().all(|query| query.outcome.fits());
            prop_assert_eq!(is_admitted, request.outcome.unwrap(), "{:?} {:?}", rules, costs);
            for query in queries.iter().filter(|query| query.cost <= query.rule.limit()) {
                let charge = request.charges.iter().find(|charge| charge.counter.id() == query.id).unwrap();
                let outcome = query.outcome;
                prop_assert_eq!(outcome.retry_after_ms.value(), charge.decision.retry_after_ms, "{:?} {:?}", rules, costs);
                if is_admitted {
                    prop_assert_eq!(outcome.decision(charge.rule.limit()), charge.decision, "{:?} {:?}", rules, costs);
                } else if !outcome.fits() {
                    prop_assert_eq!(outcome.remaining.value(), charge.decision.remaining, "{:?} {:?}", rules, costs);
                }
            }
            prop_assert_eq!(states(&attempted, &rules, &keys), states(&requested, &rules, &keys), "{:?}", rules);
        }
    }
}

pub(super) const RULE: Rule = Rule::new("item", 1, PERIOD);

/// A key whose counter is in this shard.
pub(super) fn key_in(shard: usize, rule: &Rule, from: u64) -> Key {
    let is_there = |key: &Key| spread(CounterId::new(rule, key).0, number_of_shards()) == shard;
    (from..from + 100_000).map(Key::new).find(is_there).unwrap()
}

fn request(asked: &[(&Rule, &Key)]) -> Request {
    let mut charges = Charges::default();
    for (rule, key) in asked {
        charges.push(Charge::new(**rule, CounterName::new("", rule, key), 1));
    }
    Request::new(charges, true)
}

/// The decision on charges of 1. `Err` if the store is full.
pub(super) fn decide(memory: &Memory, asked: &[(&Rule, &Key)]) -> Result<bool, StoreError> {
    let Reply::Ready(batch) = memory.decide(request(asked).into()) else { panic!("memory waits") };
    batch.into_first().unwrap().outcome
}

/// An expired counter may be dropped before its turn, and then find no room: it comes before the stored ones, as a new
/// one does.
#[test]
fn an_expired_counter_is_charged_like_a_new_one() {
    let clock = ManualClock::new();
    let memory = Memory::new(clock.clone().into(), 10, 0);
    let (lasting, key) = (Rule::new("lasting", 5, 10 * PERIOD), Key::new(1));
    let both = [(&lasting, &key), (&RULE, &key)];
    assert!(decide(&memory, &both).unwrap());
    clock.advance(2 * PERIOD);
    let request = request(&both);
    let mut shards = memory.lock_shards(request.charges.iter().map(|charge| charge.counter.id()));
    let now_us = memory.now_us_in(&mut shards);
    let order = memory.make_room_for(&request, &mut shards, now_us);
    assert_eq!(order.iter().map(|order| (order.at, order.is_stored)).collect::<Vec<_>>(), [(1, false), (0, true)]);
}

/// Both of its shards are locked. All expired counters are in one of them.
#[test]
fn a_request_drops_expired_counters_in_all_its_shards() {
    for expired in [&[7, 7][..], &[6]] {
        let clock = ManualClock::new();
        let memory = Memory::new(clock.clone().into(), 2, 0);
        for (from, shard) in (0..).zip(expired) {
            assert!(decide(&memory, &[(&RULE, &key_in(*shard, &RULE, from * 1_000_000))]).unwrap());
        }
        clock.advance(2 * PERIOD);
        let both = [6, 7].map(|shard| key_in(shard, &RULE, 2_000_000));
        assert!(decide(&memory, &both.each_ref().map(|key| (&RULE, key))).unwrap(), "{expired:?}");
    }
}

#[test]
fn expired_counters_make_room_and_live_ones_stay() {
    let clock = ManualClock::new();
    let memory = Memory::new(clock.clone().into(), 3, 0);
    let lasting = Rule::new("item", 1, Duration::from_secs(3600));
    let keys = [1, 2, 3, 4].map(|number| key_in(7, &lasting, number * 1_000_000));
    assert!(decide(&memory, &[(&RULE, &key_in(7, &RULE, 0))]).unwrap());
    assert!(decide(&memory, &[(&lasting, &keys[0])]).unwrap());
    assert!(decide(&memory, &[(&lasting, &keys[1])]).unwrap());
    assert!(decide(&memory, &[(&lasting, &keys[2])]).is_err(), "it has as many as it may");
    clock.advance(2 * PERIOD);
    assert!(decide(&memory, &[(&lasting, &keys[2])]).unwrap());
    assert!(decide(&memory, &[(&lasting, &keys[3])]).is_err());
    for key in &keys[..3] {
        assert!(!decide(&memory, &[(&lasting, key)]).unwrap());
    }
}

#[test]
fn charges_count_as_made_now_if_the_clock_was_set_back() {
    for algorithm in [
        Algorithm::FixedWindow { align: false },
        Algorithm::SlidingLog,
        Algorithm::SlidingWindow { buckets: 1, weighted: true },
        Algorithm::SlidingWindow { buckets: 4, weighted: false },
        Algorithm::TokenBucket { burst: 5, refill: Refill::Greedy },
    ] {
        let (late, early) = (ManualClock::new(), ManualClock::new());
        late.advance(Duration::from_secs(3600));
        let mut memory = Memory::new(late.into(), 10, 0);
        let rule = Rule::new("item", 5, PERIOD).with_algorithm(algorithm);
        let charge = |memory: &Memory, cost| {
            let mut query = Query::new(&rule, &Key::NONE, cost);
            assert!(matches!(memory.try_charge(&mut query, None), Attempt::Decided));
            query.outcome
        };
        assert!(charge(&memory, 3).fits());
        memory.clock = early.clone().into();
        assert_eq!(charge(&memory, 2).remaining.value(), 0, "{algorithm:?}");
        let denied = charge(&memory, 5);
        assert!(!denied.fits() && denied.retry_after_ms.value() <= 2_000, "{algorithm:?}: {denied:?}");
        early.advance(2 * PERIOD);
        assert!(charge(&memory, 5).fits(), "{algorithm:?}");
    }
}

/// With a clock that moves on while calls are denied.
#[test]
fn a_denied_call_of_several_rules_takes_no_refill() {
    let memory = Memory::new(Clock::unpaused(), 10_000, 0);
    // A token a millisecond.
    let bucket = Algorithm::TokenBucket { burst: 1_000, refill: Refill::Greedy };
    let refilling = Rule::new("refilling", 1_000, Duration::from_secs(1)).with_algorithm(bucket);
    let exhausted = Rule::new("exhausted", 1, Duration::from_secs(3600));
    let (first, second) = (key_in(0, &refilling, 0), key_in(1, &exhausted, 0)); // in the order of their shards
    let queries = |cost| [Query::new(&refilling, &first, cost), Query::new(&exhausted, &second, 1)];
    let is_admitted = |cost| {
        let mut queries = queries(cost);
        assert!(matches!(memory.try_charge_all(&mut queries), Attempt::Decided));
        queries.iter().all(|query| query.outcome.fits())
    };
    assert!(is_admitted(1_000));
    let emptied = Instant::now();
    while emptied.elapsed() < Duration::from_millis(100) {
        assert!(!is_admitted(1));
    }
    let elapsed_ms = u64::try_from(emptied.elapsed().as_millis()).unwrap();
    let charge = Charge::new(refilling, CounterName::new("", &refilling, &first), 1);
    let Reply::Ready(batch) = memory.decide(Request::new(charge, false).into()) else { panic!("memory waits") };
    let remaining = batch.into_first().unwrap().charges[0].decision.remaining;
    assert!(remaining + 1 >= elapsed_ms, "{remaining} after {elapsed_ms} ms");
}

/// Other calls may store counters for a moment: see `Memory::charge_several`.
#[test]
fn several_charges_are_attempted_only_with_room_for_those_of_all_other_calls() {
    for (stored, is_decided) in [(0_u64, true), (1, false)] {
        let memory = Memory::new(ManualClock::new().into(), number_of_shards() * MAX_AT_ONCE, 0);
        for key in 0..stored {
            assert!(decide(&memory, &[(&RULE, &Key::new(key))]).unwrap());
        }
        let keys = [10, 11].map(Key::new);
        let mut queries = keys.each_ref().map(|key| Query::new(&RULE, key, 1));
        let attempt = memory.try_charge_all(&mut queries);
        assert_eq!(matches!(attempt, Attempt::Decided), is_decided, "{stored}");
    }
}

/// The attempt ends at a slot that comes later, which needs a sleep. So it tells what was charged before.
#[test]
fn several_charges_are_made_in_the_order_of_their_shards() {
    let memory = Memory::new(ManualClock::new().into(), 10_000, 0);
    let queue = Rule::new("queue", 1, PERIOD).with_algorithm(Algorithm::LeakyBucket { queue: 5 });
    let (first, second) = (key_in(3, &queue, 0), key_in(5, &RULE, 0));
    assert!(matches!(memory.try_charge(&mut Query::new(&queue, &first, 1), None), Attempt::Decided));
    let mut queries = [Query::new(&RULE, &second, 1), Query::new(&queue, &first, 1)];
    assert!(matches!(memory.try_charge_all(&mut queries), Attempt::Unsupported));
    assert_eq!(queries[0].outcome, Outcome::NONE, "it was not charged");

    // In another order, this call would wait for a shard that it has locked itself.
    let keys = [(5, 0), (3, 0), (5, 1_000_000)].map(|(shard, from)| key_in(shard, &RULE, from));
    let mut queries = keys.each_ref().map(|key| Query::new(&RULE, key, 1));
    assert!(matches!(memory.try_charge_all(&mut queries), Attempt::Decided));
}

/// Between two milliseconds, where waits are rounded up.
#[test]
fn a_place_is_denied_at_once_as_a_request_is() {
    let manual = ManualClock::new();
    let memory = Memory::new(manual.clone().into(), 10, 0);
    let place = Rule::new("place", 1, PERIOD).with_algorithm(Algorithm::Concurrent);
    let request = || {
        let mut charge = Charge::new(place, CounterName::new("", &place, &Key::NONE), 1);
        charge.hold = Some(Hold { is_kept: true, ..Hold::new(PERIOD) });
        let Reply::Ready(batch) = memory.decide(Request::new(charge, true).into()) else { panic!("memory waits") };
        batch.into_first().unwrap()
    };
    assert!(request().outcome.unwrap());
    manual.advance(Duration::from_micros(500));
    let denied = request();
    assert!(!denied.outcome.unwrap());
    let mut query = Query::new(&place, &Key::NONE, 1);
    assert!(matches!(memory.try_charge(&mut query, None), Attempt::Decided));
    assert_eq!(query.outcome.decision(place.limit()), denied.charges[0].decision);
}

/// Of a new counter, and of one whose place is free again. No call would free it.
#[test]
fn a_request_without_a_hold_takes_no_place() {
    let memory = Memory::new(ManualClock::new().into(), 10, 0);
    let place = Rule::new("place", 1, PERIOD).with_algorithm(Algorithm::Concurrent);
    for _ in 0..2 {
        assert!(decide(&memory, &[(&place, &Key::NONE)]).unwrap());
        let mut query = Query::new(&place, &Key::NONE, 1);
        assert!(matches!(memory.try_charge(&mut query, None), Attempt::Decided) && query.outcome.fits());
        memory.refund_charge(CounterReceipt::new(query.id, &place, 1, query.outcome.receipt));
    }
}

/// In the units of the bucket, the largest cost here would wrap to 0.
#[test]
fn a_bucket_denies_every_cost_above_its_burst() {
    let bucket = Algorithm::TokenBucket { burst: 10, refill: Refill::Greedy };
    let rule = Rule::new("item", 10, PERIOD).with_algorithm(bucket);
    let memory = Memory::new(ManualClock::new().into(), 10, 0);
    for (cost, fits, remaining) in [(1, true, 9), (11, false, 9), (1 << 61, false, 9), (9, true, 0)] {
        let mut query = Query::new(&rule, &Key::NONE, cost);
        assert!(matches!(memory.try_charge(&mut query, None), Attempt::Decided));
        assert_eq!((query.outcome.fits(), query.outcome.remaining.value()), (fits, remaining), "{cost}");
    }
}

/// By the lower count, half of the tokens would still be missing.
#[test]
fn a_bucket_that_is_full_again_is_full_for_a_lowered_count() {
    let bucket = Algorithm::TokenBucket { burst: 10, refill: Refill::Greedy };
    let rule = Rule::new("item", 10, PERIOD).with_algorithm(bucket);
    let manual = ManualClock::new();
    let memory = Memory::new(manual.clone().into(), 10, 0);
    let left_after = |rule: Rule, cost| {
        let mut query = Query::new(&rule, &Key::NONE, cost);
        assert!(matches!(memory.try_charge(&mut query, None), Attempt::Decided));
        query.outcome.remaining.value()
    };
    assert_eq!(left_after(rule, 10), 0);
    manual.advance(PERIOD);
    assert_eq!(left_after(rule.with_count(5), 1), 9);
}

/// Two rules of one counter. The faster one refills it faster, but only if it was charged.
#[test]
fn a_denied_call_of_several_rules_refills_nothing_for_a_lower_count() {
    let clock = ManualClock::new();
    let memory = Memory::new(clock.clone().into(), 10_000, 0);
    let bucket = Algorithm::TokenBucket { burst: 50, refill: Refill::Greedy };
    let slow = Rule::new("item", 1, PERIOD).with_algorithm(bucket);
    let fast = slow.with_count(1_000);
    let exhausted = Rule::new("exhausted", 1, Duration::from_secs(3600));
    let fits = |rule: &Rule, cost| {
        let mut query = Query::new(rule, &Key::NONE, cost);
        assert!(matches!(memory.try_charge(&mut query, None), Attempt::Decided));
        query.outcome.fits()
    };
    assert!(fits(&slow, 50) && fits(&exhausted, 1));
    clock.advance(Duration::from_millis(20));
    let mut queries = [Query::new(&fast, &Key::NONE, 1), Query::new(&exhausted, &Key::NONE, 1)];
    if let Attempt::Unsupported = memory.try_charge_all(&mut queries) {
        assert!(!decide(&memory, &[(&fast, &Key::NONE), (&exhausted, &Key::NONE)]).unwrap());
    }
    assert!(!fits(&slow, 1));
}

/// The store is full, so there is no room for the other rule.
#[test]
fn a_call_that_finds_no_room_refills_nothing_for_a_lower_count() {
    let clock = ManualClock::new();
    let memory = Memory::new(clock.clone().into(), 1, 0);
    let bucket = Algorithm::TokenBucket { burst: 50, refill: Refill::Greedy };
    let slow = Rule::new("item", 1, PERIOD).with_algorithm(bucket);
    let (fast, other) = (slow.with_count(1_000), Rule::new("other", 1, PERIOD));
    for _ in 0..50 {
        assert!(decide(&memory, &[(&slow, &Key::NONE)]).unwrap());
    }
    clock.advance(Duration::from_millis(20));
    assert!(decide(&memory, &[(&fast, &Key::NONE), (&other, &Key::NONE)]).is_err());
    assert!(!decide(&memory, &[(&slow, &Key::NONE)]).unwrap());
}

#[test]
fn an_expired_counter_of_the_call_is_new_once_it_is_swept() {
    let clock = ManualClock::new();
    let memory = Memory::new(clock.clone().into(), 2, 1 << 16);
    let bucket = Rule::new("bucket", 1, PERIOD);
    let bucket = bucket.with_algorithm(Algorithm::TokenBucket { burst: 1, refill: Refill::Greedy });
    let lasting = Rule::new("lasting", 1, Duration::from_secs(3600));
    for rule in [&bucket, &lasting] {
        assert!(decide(&memory, &[(rule, &Key::NONE)]).unwrap());
    }
    clock.advance(2 * PERIOD);
    let window = Rule::new("window", 1, PERIOD);
    assert!(decide(&memory, &[(&bucket, &Key::NONE), (&window, &Key::NONE)]).unwrap());
}

#[test]
fn a_rule_in_shadow_mode_takes_no_table_from_the_others() {
    let memory = Memory::new(ManualClock::new().into(), 1, 1 << 16);
    let rule = |seconds| Rule::new("item", 1, Duration::from_secs(seconds));
    for seconds in [3600, 2, 3, 4] {
        assert!(decide(&memory, &[(&rule(seconds), &Key::new(seconds))]).unwrap());
    }
    let shadow = Rule::new("shadow", 1, Duration::from_secs(10)).with_shadow(true);
    assert!(decide(&memory, &[(&shadow, &Key::NONE), (&rule(20), &Key::NONE)]).unwrap());
}

#[test]
fn a_request_drops_as_many_expired_counters_as_it_needs() {
    let clock = ManualClock::new();
    let memory = Memory::new(clock.clone().into(), 2, 0);
    let log = RULE.with_algorithm(Algorithm::SlidingLog);
    assert!(decide(&memory, &[(&RULE, &key_in(7, &RULE, 0))]).unwrap());
    assert!(decide(&memory, &[(&log, &key_in(7, &log, 1_000_000))]).unwrap());
    clock.advance(3 * PERIOD);
    let both = [7, 6].map(|shard| key_in(shard, &RULE, 2_000_000));
    assert!(decide(&memory, &both.each_ref().map(|key| (&RULE, key))).unwrap());
}
