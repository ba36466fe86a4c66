//! QuotaBatches under every order in which the steps of a few threads can follow one another.

use std::{sync::Arc, time::Duration};

use shuttle::{sync::Mutex, thread};

use super::*;
use crate::{Key, sync::every_order};

const COUNT: u64 = 8;
const RULE: Rule = Rule::new("item", COUNT, Duration::from_secs(60)).with_prefetch(2);

/// A counter at a store, and what was taken of it.
struct Scene {
    window: Mutex<Window>,
    batches: QuotaBatches,
}

struct Window {
    opened: u64,
    charged: u64,
}

fn counter() -> CounterName {
    CounterName::new("", &RULE, Some(&Key::new(1)))
}

fn name() -> CounterId {
    counter().id()
}

impl Scene {
    fn new(charged: u64) -> Arc<Self> {
        Arc::new(Self { window: Mutex::new(Window { opened: 1, charged }), batches: QuotaBatches::new() })
    }

    /// Makes a take, and those after it, as a task does.
    fn make(&self, mut take: Take) {
        loop {
            let mut charge = Charge::new(RULE, counter(), take.cost);
            let mut window = self.window.lock().unwrap();
            let fits = take.cost <= COUNT - window.charged;
            window.charged += if fits { take.cost } else { 0 };
            charge.decision = Decision {
                limit: COUNT,
                remaining: COUNT - window.charged,
                reset_after_ms: 60_000,
                retry_after_ms: if fits { u64::MAX } else { 60_000 },
            };
            charge.receipt = [window.opened, 0];
            drop(window);
            match self.follow(self.batches.arrived(&take, Ok((charge, fits)), 0, 0)) {
                Some(next) => take = next,
                None => return,
            }
        }
    }

    fn follow(&self, FollowUp { answers, take, back }: FollowUp) -> Option<Take> {
        for (caller, answer) in answers {
            if let Err(QuotaAnswer::Spent(spent)) = caller.send(answer) {
                self.put_back(spent);
            }
        }
        if let Some(back) = back {
            self.refund(back.cost, back.receipt);
        }
        take
    }

    /// To the store, as far as it still counts.
    fn refund(&self, cost: u64, [opened, _]: [u64; 2]) {
        let mut window = self.window.lock().unwrap();
        if window.opened == opened {
            window.charged -= cost;
        }
    }

    fn reset(&self) {
        let mut window = self.window.lock().unwrap();
        *window = Window { opened: window.opened + 1, charged: 0 };
        drop(window);
        self.batches.forget(name());
    }

    fn put_back(&self, spent: Spent) {
        match self.batches.put_back(name(), spent.receipt, spent.cost, 0) {
            Some(then) => assert!(self.follow(then).is_none()),
            None => self.refund(spent.cost, spent.receipt),
        }
    }

    /// What a caller spends who goes if its answer is not there when the takes it began are made.
    fn acquire(&self, cost: u64) -> Option<Spent> {
        let (asked, then) = self.batches.ask(&counter(), &RULE, cost, 0);
        self.follow(then).into_iter().for_each(|take| self.make(take));
        match asked {
            SpendResult::Spent(spent) => Some(spent),
            SpendResult::Alone => panic!("there is room"),
            SpendResult::Waits(mut answer) => {
                answer.close();
                match answer.try_recv() {
                    Ok(QuotaAnswer::Spent(spent)) => Some(spent),
                    _ => None,
                }
            }
        }
    }

    /// What was charged is here or has been spent.
    fn check(&self, spent: u64, charged_before: u64) {
        let charged = self.window.lock().unwrap().charged;
        assert!(charged <= COUNT, "{charged} charged");
        assert_eq!(self.batches.left(name(), 0) + spent + charged_before, charged);
        let shard = self.batches.shard(name());
        let batch = shard.batches.get(&name());
        assert!(batch.is_none_or(|batch| !batch.is_taking), "a take is under way that nobody makes");
    }
}

fn start<T: Send + 'static>(
    scene: &Arc<Scene>,
    act: impl FnOnce(&Scene) -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    let scene = Arc::clone(scene);
    thread::spawn(move || act(&scene))
}

fn cost(spent: Option<Spent>) -> u64 {
    spent.map_or(0, |spent| spent.cost)
}

#[test]
fn no_more_is_spent_than_was_taken_and_nothing_is_lost() {
    every_order(|| {
        let scene = Scene::new(0);
        let other = start(&scene, |scene| cost(scene.acquire(1)));
        let spent = cost(scene.acquire(3)) + other.join().unwrap();
        scene.check(spent, 0);
    });
}

/// One remains, and both want one.
#[test]
fn near_the_limit_one_is_refused() {
    every_order(|| {
        let scene = Scene::new(COUNT - 1);
        let other = start(&scene, |scene| cost(scene.acquire(1)));
        let spent = cost(scene.acquire(1)) + other.join().unwrap();
        assert!(spent <= 1);
        scene.check(spent, COUNT - 1);
    });
}

#[test]
fn what_is_put_back_is_spent_once() {
    every_order(|| {
        let scene = Scene::new(0);
        let first = scene.acquire(1).unwrap();
        let other = start(&scene, |scene| cost(scene.acquire(2)));
        scene.put_back(first);
        let spent = cost(scene.acquire(1)) + other.join().unwrap();
        scene.check(spent, 0);
    });
}

/// What was charged before the reset is not spent after it.
#[test]
fn nothing_survives_a_reset_that_is_over() {
    every_order(|| {
        let scene = Scene::new(0);
        let other = start(&scene, |scene| cost(scene.acquire(1)));
        scene.reset();
        let is_of_this_window = || {
            let left = scene.batches.left(name(), 0);
            let Window { opened, charged } = *scene.window.lock().unwrap();
            assert!(
                left == 0 || scene.batches.charge(name(), [opened, 0], left).is_some(),
                "{left} of before the reset"
            );
            charged >= left
        };
        assert!(is_of_this_window());
        other.join().unwrap();
        assert!(is_of_this_window());
    });
}

/// What is closed is taken one by one.
#[test]
fn what_is_drained_is_not_spent() {
    every_order(|| {
        let scene = Scene::new(0);
        scene.acquire(1).unwrap();
        let other = start(&scene, |scene| scene.batches.spend(name(), &RULE, 1, 0).map_or(0, |(spent, _)| spent.cost));
        scene.batches.close();
        let drained: u64 = scene.batches.drain(0).iter().map(|charge| charge.cost).sum();
        let spent = 1 + other.join().unwrap();
        scene.check(spent + drained, 0);
        assert!(matches!(scene.batches.ask(&counter(), &RULE, 1, 0).0, SpendResult::Alone));
    });
}
