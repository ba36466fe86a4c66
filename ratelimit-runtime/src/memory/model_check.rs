//! Model checks: the store under every interleaving of a few threads.

use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use shuttle::thread;

use super::*;
use crate::{Key, ManualClock, Rule, sync::every_order};

const PERIOD: Duration = Duration::from_secs(60);
const ONE: Rule = Rule::new("item", 1, PERIOD);
const TWO: Rule = Rule::new("item", 2, PERIOD);
const ROOMY: usize = 100;

/// A store and the operations that the threads of a test make on it.
struct MemoryScene {
    store: Memory,
    clock: ManualClock,
}

impl MemoryScene {
    fn new(capacity: usize) -> Arc<Self> {
        let clock = ManualClock::new();
        Arc::new(Self { store: Memory::new(clock.clone().into(), capacity, 0), clock })
    }

    fn ask(&self, rule: Rule, counters: &[&CounterName], consume: bool) -> Request {
        let mut charges = Charges::default();
        for &counter in counters {
            charges.push(Charge::new(rule, counter.clone(), 1));
        }
        let Reply::Ready(batch) = self.store.decide(Request::new(charges, consume).into()) else {
            panic!("memory answers at once");
        };
        batch.into_first().unwrap()
    }

    /// Charges all counters or none. Returns an error if the store is full.
    fn charge(&self, rule: Rule, counters: &[&CounterName]) -> Result<bool, StoreError> {
        self.ask(rule, counters, true).outcome
    }

    /// The attempt on one counter.
    fn attempt(&self, rule: Rule, key: &Key) -> Outcome {
        let mut query = Query::new(&rule, key, 1);
        assert!(matches!(self.store.try_charge(&mut query, None), Attempt::Decided));
        query.outcome
    }

    /// The attempt on several counters. Returns whether all costs fit.
    fn attempt_all<const N: usize>(&self, mut queries: [Query<'_>; N]) -> bool {
        let attempt = self.store.try_charge_all(&mut queries);
        matches!(attempt, Attempt::Decided) && queries.iter().all(|query| query.outcome.fits())
    }

    fn refund(&self, charges: Charges) -> u64 {
        let Reply::Ready(back) = self.store.refund(charges) else { panic!("memory answers at once") };
        back.unwrap()
    }

    fn reset(&self, counter: &CounterName) {
        let Reply::Ready(done) = self.store.reset(counter.clone()) else { panic!("memory answers at once") };
        done.unwrap();
    }

    fn used(&self, rule: Rule, counter: &CounterName) -> u64 {
        rule.limit() - self.ask(rule, &[counter], false).charges[0].decision.remaining()
    }

    /// Number of stored counters. Asserts that the store counts the same.
    fn stored(&self) -> usize {
        let counters = (0..self.store.shards.len()).map(|shard| self.store.shard(shard).counters.len()).sum();
        assert_eq!(self.store.stored.load(Ordering::Relaxed), counters, "the number of stored counters");
        assert!(counters <= self.store.capacity, "{counters} counters, {} allowed", self.store.capacity);
        counters
    }
}

/// The key of the nth counter of a shard.
fn key_in(shard: usize, nth: usize) -> Key {
    let keys = (0..).map(|key: u32| Key::new(key));
    keys.filter(|key| spread(CounterId::new(&ONE, key).0, number_of_shards()) == shard).nth(nth).unwrap()
}

/// The nth counter of a shard.
fn counter_in(shard: usize, nth: usize) -> CounterName {
    CounterName::new("", &ONE, &key_in(shard, nth))
}

/// Runs an operation on a thread of its own.
fn start<T: Send + 'static>(
    scene: &Arc<MemoryScene>,
    act: impl FnOnce(&MemoryScene) -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    let scene = Arc::clone(scene);
    thread::spawn(move || act(&scene))
}

#[test]
fn one_counter_is_charged_up_to_its_count() {
    every_order(|| {
        let scene = MemoryScene::new(ROOMY);
        let counter = counter_in(0, 0);
        let others: Vec<_> =
            (0..2).map(|_| start(&scene, |scene| scene.charge(TWO, &[&counter_in(0, 0)]).unwrap())).collect();
        let mut granted = u64::from(scene.charge(TWO, &[&counter]).unwrap());
        for other in others {
            granted += u64::from(other.join().unwrap());
        }
        assert_eq!(granted, 2);
        assert_eq!(scene.used(TWO, &counter), 2);
        assert_eq!(scene.stored(), 1);
    });
}

/// The attempt by id, the attempt on several counters, and the request by name.
#[test]
fn all_ways_charge_one_counter() {
    every_order(|| {
        let scene = MemoryScene::new(ROOMY);
        let counter = counter_in(0, 0);
        let by_name = start(&scene, |scene| scene.charge(TWO, &[&counter_in(0, 0)]).unwrap());
        let by_id = start(&scene, move |scene| scene.attempt(TWO, &key_in(0, 0)).fits());
        let key = key_in(0, 0);
        let mut granted = u64::from(scene.attempt_all([Query::new(&TWO, &key, 1)]));
        granted += u64::from(by_name.join().unwrap());
        granted += u64::from(by_id.join().unwrap());
        assert_eq!(granted, 2);
        assert_eq!(scene.used(TWO, &counter), 2);
        assert_eq!(scene.stored(), 1);
    });
}

#[test]
fn two_counters_are_charged_together_in_whichever_order_they_are_named() {
    every_order(|| {
        let scene = MemoryScene::new(ROOMY);
        let (left, right) = (counter_in(0, 0), counter_in(1, 0));
        let other = start(&scene, |scene| scene.charge(ONE, &[&counter_in(1, 0), &counter_in(0, 0)]).unwrap());
        let granted = scene.charge(ONE, &[&left, &right]).unwrap();
        assert_ne!(granted, other.join().unwrap());
        assert_eq!((scene.used(ONE, &left), scene.used(ONE, &right)), (1, 1));
        assert_eq!(scene.stored(), 2);
    });
}

/// Of three counters, two are in one shard.
#[test]
fn attempts_on_several_counters_do_not_wait_for_each_other() {
    every_order(|| {
        let scene = MemoryScene::new(ROOMY);
        let attempt = |scene: &MemoryScene, keys: [Key; 3]| {
            scene.attempt_all(keys.each_ref().map(|key| Query::new(&ONE, key, 1)))
        };
        let keys = || [key_in(0, 0), key_in(1, 0), key_in(0, 1)];
        let other = start(&scene, move |scene| {
            let [first, second, third] = keys();
            attempt(scene, [second, third, first])
        });
        assert_ne!(attempt(&scene, keys()), other.join().unwrap());
        for (shard, nth) in [(0, 0), (1, 0), (0, 1)] {
            assert_eq!(scene.used(ONE, &counter_in(shard, nth)), 1);
        }
        assert_eq!(scene.stored(), 3);
    });
}

#[test]
fn of_two_counters_none_is_charged_if_one_is_used_up() {
    every_order(|| {
        let scene = MemoryScene::new(ROOMY);
        let (left, right) = (counter_in(0, 0), counter_in(1, 0));
        let other = start(&scene, |scene| scene.charge(ONE, &[&counter_in(0, 0), &counter_in(1, 0)]).unwrap());
        let alone = scene.charge(ONE, &[&right]).unwrap();
        let together = other.join().unwrap();
        assert_ne!(alone, together);
        assert_eq!(scene.used(ONE, &left), u64::from(together));
        assert_eq!(scene.used(ONE, &right), 1);
        scene.stored();
    });
}

#[test]
fn charge_refund_and_reset_end_as_if_one_came_after_the_other() {
    let seen = Arc::new(std::sync::Mutex::new(BTreeSet::new()));
    every_order({
        let seen = Arc::clone(&seen);
        move || {
            let scene = MemoryScene::new(ROOMY);
            let counter = counter_in(0, 0);
            let held = scene.ask(ONE, &[&counter], true).charges;
            let refund = start(&scene, |scene| scene.refund(held));
            let reset = start(&scene, |scene| scene.reset(&counter_in(0, 0)));
            let granted = scene.charge(ONE, &[&counter]).unwrap();
            let back = refund.join().unwrap();
            reset.join().unwrap();
            seen.lock().unwrap().insert((back, granted, scene.used(ONE, &counter)));
            scene.stored();
        }
    });
    let in_turn = BTreeSet::from([
        (1, true, 0), // refund, charge, reset; or reset, charge, refund: the new charge, as nothing tells them apart
        (1, true, 1), // refund, reset, charge
        (1, false, 0), // charge, refund, reset
        (0, false, 0), // charge, reset, refund
        (0, true, 1), // reset, refund, charge
    ]);
    assert_eq!(*seen.lock().unwrap(), in_turn, "returned, granted, and used in the end");
}

#[test]
fn a_charge_is_of_the_window_in_which_it_is_made() {
    every_order(|| {
        let scene = MemoryScene::new(ROOMY);
        let counter = counter_in(0, 0);
        assert_eq!(scene.charge(ONE, &[&counter]), Ok(true));
        let moving = start(&scene, |scene| scene.clock.advance(PERIOD));
        let other = start(&scene, |scene| scene.charge(ONE, &[&counter_in(0, 0)]).unwrap());
        let granted = [scene.charge(ONE, &[&counter]).unwrap(), other.join().unwrap()];
        moving.join().unwrap();
        assert_ne!(granted, [true, true]);
        scene.clock.advance(Duration::from_millis(59_999));
        assert_eq!(scene.used(ONE, &counter), u64::from(granted != [false, false]));
    });
}

/// A window may end, and another may open, around a charge.
#[test]
fn no_charge_is_lost_when_a_window_ends() {
    every_order(|| {
        let scene = MemoryScene::new(ROOMY);
        let counter = counter_in(0, 0);
        assert_eq!(scene.charge(TWO, &[&counter]), Ok(true));
        let short = start(&scene, |scene| scene.attempt(TWO, &key_in(0, 0)));
        let moving = start(&scene, |scene| {
            scene.clock.advance(PERIOD);
            scene.charge(TWO, &[&counter_in(0, 0)]).unwrap()
        });
        let late = scene.clock.now();
        let taken = short.join().unwrap();
        assert!(moving.join().unwrap());
        // A charge in the window that has ended is irrelevant, and one in the new window counts.
        let opened = u64::try_from((late + PERIOD).as_millis()).unwrap();
        let in_new = taken.receipt[0] >= opened;
        assert!(taken.reset_after_ms.value() <= ONE.period_ms(), "as if it were longer than a period");
        assert_eq!(scene.used(TWO, &counter), 1 + u64::from(in_new));
    });
}

#[test]
fn no_more_counters_are_stored_than_there_is_room_for() {
    every_order(|| {
        let scene = MemoryScene::new(1);
        let other = start(&scene, |scene| scene.charge(ONE, &[&counter_in(1, 0)]).is_ok());
        let granted = scene.charge(ONE, &[&counter_in(0, 0)]).is_ok();
        assert_ne!(granted, other.join().unwrap());
        assert_eq!(scene.stored(), 1);
    });
}

#[test]
fn the_room_of_a_counter_is_free_as_soon_as_it_is_reset() {
    every_order(|| {
        let scene = MemoryScene::new(1);
        let old = counter_in(1, 0);
        assert_eq!(scene.charge(ONE, &[&old]), Ok(true));
        let other = start(&scene, |scene| scene.charge(ONE, &[&counter_in(0, 0)]).is_ok());
        scene.reset(&old);
        let granted = scene.charge(ONE, &[&counter_in(1, 1)]).is_ok();
        assert_ne!(granted, other.join().unwrap(), "there is room for one of them");
        assert_eq!(scene.stored(), 1);
    });
}

#[test]
fn a_counter_without_room_takes_back_what_was_charged_with_it() {
    every_order(|| {
        let scene = MemoryScene::new(1);
        let (left, right) = (counter_in(0, 0), counter_in(1, 0));
        let other = start(&scene, |scene| scene.charge(ONE, &[&counter_in(1, 1)]).is_ok());
        assert!(scene.charge(ONE, &[&left, &right]).is_err());
        assert!(other.join().unwrap());
        assert_eq!((scene.used(ONE, &left), scene.used(ONE, &right)), (0, 0));
        assert_eq!(scene.stored(), 1);
    });
}

#[test]
fn room_is_made_in_other_shards() {
    every_order(|| {
        let scene = MemoryScene::new(2);
        for nth in 0..2 {
            assert_eq!(scene.charge(ONE, &[&counter_in(1, nth)]), Ok(true));
        }
        scene.clock.advance(PERIOD);
        let other = start(&scene, |scene| scene.charge(ONE, &[&counter_in(0, 0)]).is_ok());
        assert!(scene.charge(ONE, &[&counter_in(0, 1)]).is_ok());
        assert!(other.join().unwrap());
        assert_eq!(scene.stored(), 2);
    });
}

#[test]
fn two_that_look_for_room_at_each_other_are_both_answered() {
    every_order(|| {
        let scene = MemoryScene::new(2);
        for shard in 0..2 {
            assert_eq!(scene.charge(ONE, &[&counter_in(shard, 0)]), Ok(true));
        }
        let other = start(&scene, |scene| scene.charge(ONE, &[&counter_in(1, 1)]).is_ok());
        assert!(scene.charge(ONE, &[&counter_in(0, 1)]).is_err());
        assert!(!other.join().unwrap());
        assert_eq!(scene.stored(), 2);
    });
}

#[test]
fn a_counter_is_not_swept_away_with_a_new_charge() {
    every_order(|| {
        let scene = MemoryScene::new(1);
        let (old, new) = (counter_in(1, 0), counter_in(0, 0));
        assert_eq!(scene.charge(ONE, &[&old]), Ok(true));
        scene.clock.advance(PERIOD);
        let sweeping = start(&scene, |scene| scene.charge(ONE, &[&counter_in(0, 0)]).is_ok());
        let again = scene.charge(ONE, &[&old]).is_ok();
        assert_ne!(again, sweeping.join().unwrap(), "there is room for one of them");
        assert_eq!((scene.used(ONE, &old), scene.used(ONE, &new)), (u64::from(again), u64::from(!again)));
        assert_eq!(scene.stored(), 1);
    });
}
