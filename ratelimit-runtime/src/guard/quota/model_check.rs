//! [`QuotaBatches`] under every interleaving of the steps of a few threads.

use std::{sync::Arc, time::Duration};

use shuttle::{sync::Mutex, thread};

use super::*;
use crate::{Key, sync::every_order};

const COUNT: u64 = 8;
const RULE: Rule = Rule::new("item", COUNT, Duration::from_secs(60)).with_prefetch(2);

/// A store with one counter, and the quota prefetched from it.
struct Scene {
    window: Mutex<Window>,
    batches: QuotaBatches,
}

struct Window {
    opened: u64,
    charged: u64,
}

fn counter() -> CounterName {
    CounterName::new("", &RULE, &Key::new(1))
}

fn id() -> CounterId {
    counter().id()
}

impl Scene {
    fn new(charged: u64) -> Arc<Self> {
        Arc::new(Self { window: Mutex::new(Window { opened: 1, charged }), batches: QuotaBatches::new() })
    }

    /// Runs a prefetch, and the ones after it, as the task does.
    fn run(&self, mut prefetch: Prefetch) {
        loop {
            let mut charge = Charge::new(RULE, counter(), prefetch.cost);
            let mut window = self.window.lock().unwrap();
            let fits = prefetch.cost <= COUNT - window.charged;
            window.charged += if fits { prefetch.cost } else { 0 };
            charge.decision = Decision {
                limit: COUNT,
                remaining: COUNT - window.charged,
                reset_after_ms: 60_000,
                retry_after_ms: if fits { u64::MAX } else { 60_000 },
            };
            charge.receipt = [window.opened, 0];
            drop(window);
            match self.follow(self.batches.finish_prefetch(&prefetch, Ok((charge, fits)), 0, 0)) {
                Some(next) => prefetch = next,
                None => return,
            }
        }
    }

    fn follow(&self, FollowUp { answers, prefetch, refund }: FollowUp) -> Option<Prefetch> {
        for (caller, answer) in answers {
            if let Err(QuotaAnswer::Spent(cost, outcome)) = caller.send(answer) {
                self.put_back((cost, outcome));
            }
        }
        if let Some(charge) = refund.as_ref().or(prefetch.as_ref().and_then(|prefetch| prefetch.refund.as_ref())) {
            self.refund(charge.cost, charge.receipt);
        }
        prefetch
    }

    /// Refunds to the store, if the window is still the same.
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
        self.batches.invalidate(id());
    }

    fn put_back(&self, (cost, Outcome { receipt, .. }): (u64, Outcome)) {
        match self.batches.put_back(id(), None, receipt, cost, 0) {
            Some(follow_up) => assert!(self.follow(follow_up).is_none()),
            None => self.refund(cost, receipt),
        }
    }

    /// Spends a cost. The caller leaves if its answer is not there when the prefetches it started
    /// have ended.
    fn acquire(&self, cost: u64) -> Option<(u64, Outcome)> {
        let (result, follow_up) = self.batches.spend_or_wait(&counter(), &RULE, cost, 0);
        self.follow(follow_up).into_iter().for_each(|prefetch| self.run(prefetch));
        match result {
            SpendResult::Spent(outcome) => Some((cost, outcome)),
            SpendResult::AskUpstream => panic!("there is room"),
            SpendResult::Waits(mut answer) => {
                answer.close();
                match answer.try_recv() {
                    Ok(QuotaAnswer::Spent(cost, outcome)) => Some((cost, outcome)),
                    _ => None,
                }
            }
        }
    }

    /// Checks that all charged permits are here or were spent.
    fn check(&self, spent: u64, charged_before: u64) {
        let charged = self.window.lock().unwrap().charged;
        assert!(charged <= COUNT, "{charged} charged");
        assert_eq!(self.batches.remaining(id(), COUNT, 0, 0) + spent + charged_before, charged);
        let shard = self.batches.shard(id());
        let batch = shard.batches.get(&id());
        assert!(
            batch.is_none_or(|batch| !batch.is_prefetching),
            "a prefetch is marked as running, but no task runs it"
        );
    }
}

fn start<T: Send + 'static>(
    scene: &Arc<Scene>,
    act: impl FnOnce(&Scene) -> T + Send + 'static,
) -> thread::JoinHandle<T> {
    let scene = Arc::clone(scene);
    thread::spawn(move || act(&scene))
}

fn cost(spent: Option<(u64, Outcome)>) -> u64 {
    spent.map_or(0, |(cost, _)| cost)
}

#[test]
fn spent_quota_equals_charged_quota() {
    every_order(|| {
        let scene = Scene::new(0);
        let other = start(&scene, |scene| cost(scene.acquire(1)));
        let spent = cost(scene.acquire(3)) + other.join().unwrap();
        scene.check(spent, 0);
    });
}

/// One permit remains, and both threads request one.
#[test]
fn near_the_limit_one_caller_is_refused() {
    every_order(|| {
        let scene = Scene::new(COUNT - 1);
        let other = start(&scene, |scene| cost(scene.acquire(1)));
        let spent = cost(scene.acquire(1)) + other.join().unwrap();
        assert!(spent <= 1);
        scene.check(spent, COUNT - 1);
    });
}

#[test]
fn quota_put_back_is_spent_once() {
    every_order(|| {
        let scene = Scene::new(0);
        let first = scene.acquire(1).unwrap();
        let other = start(&scene, |scene| cost(scene.acquire(2)));
        scene.put_back(first);
        let spent = cost(scene.acquire(1)) + other.join().unwrap();
        scene.check(spent, 0);
    });
}

/// Quota charged before the reset is not spent after it.
#[test]
fn no_quota_survives_a_completed_reset() {
    every_order(|| {
        let scene = Scene::new(0);
        let other = start(&scene, |scene| cost(scene.acquire(1)));
        scene.reset();
        let quota_is_of_this_window = || {
            let left = scene.batches.remaining(id(), COUNT, 0, 0);
            let Window { opened, charged } = *scene.window.lock().unwrap();
            assert!(
                left == 0 || scene.batches.charge(id(), [opened, 0], left).is_some(),
                "{left} from before the reset"
            );
            charged >= left
        };
        assert!(quota_is_of_this_window());
        other.join().unwrap();
        assert!(quota_is_of_this_window());
    });
}

/// After closing, each cost is charged at the store.
#[test]
fn drained_quota_is_not_spent() {
    every_order(|| {
        let scene = Scene::new(0);
        scene.acquire(1).unwrap();
        let other = start(&scene, |scene| scene.batches.spend(id(), &RULE, 1, 0).map_or(0, |_| 1));
        scene.batches.close();
        let drained: u64 = scene.batches.drain(0).iter().map(|charge| charge.cost).sum();
        let spent = 1 + other.join().unwrap();
        scene.check(spent + drained, 0);
        assert!(matches!(scene.batches.spend_or_wait(&counter(), &RULE, 1, 0).0, SpendResult::AskUpstream));
    });
}
