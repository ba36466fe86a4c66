//! The denial cache under every interleaving of the steps of a few threads.

use std::{sync::Arc, time::Duration};

use shuttle::{
    sync::{Mutex, atomic::AtomicUsize},
    thread,
};

use super::*;
use crate::{failures::Failures, sync::every_order};

const RULE: Rule = Rule::new("item", 1, Duration::from_secs(60));
const ID: CounterId = CounterId(0, 1);
const DENIAL: Denial = Denial {
    decision: Decision { limit: 1, remaining: 0, reset_after_ms: 60_000, retry_after_ms: 60_000 },
    wait_ms: 0,
};

/// A store with one counter of count 1, and the denial cache in front.
struct Scene {
    /// True if the counter is charged.
    charged: Mutex<bool>,
    denials: DenialCache,
    /// The epochs before and after a failure of the store, and the index of the current one.
    epochs: [Epoch; 2],
    epoch: AtomicUsize,
}

impl Scene {
    fn new(charged: bool) -> Arc<Self> {
        let epochs = [(); 2].map(|()| Failures::default().epoch().unwrap());
        Arc::new(Self { charged: Mutex::new(charged), denials: DenialCache::new(), epochs, epoch: AtomicUsize::new(0) })
    }

    fn server(&self) -> ServerEpoch {
        ServerEpoch { slot: 0, epoch: self.epochs[self.epoch.load(Ordering::Acquire)] }
    }

    /// Acquires in the way the guard does. Returns true if admitted.
    fn acquire(&self) -> bool {
        if self.denials.get(ID, &RULE, 0).is_some_and(|(_, server)| server == self.server()) {
            return false;
        }
        let server = self.server();
        let invalidations = self.denials.invalidations(ID);
        let was_charged = std::mem::replace(&mut *self.charged.lock().unwrap(), true);
        if was_charged {
            self.denials.insert(ID, &RULE, DENIAL, (0, 0), (invalidations, server), |_| true);
        }
        !was_charged
    }

    fn refund(&self) {
        *self.charged.lock().unwrap() = false;
        self.denials.invalidate(ID);
    }

    fn fail_over_without_data(&self) {
        *self.charged.lock().unwrap() = false;
        self.epoch.store(1, Ordering::Release);
    }
}

#[test]
fn no_denial_survives_a_completed_refund() {
    every_order(|| {
        let scene = Scene::new(true);
        let asking = {
            let scene = Arc::clone(&scene);
            thread::spawn(move || scene.acquire())
        };
        scene.refund();
        let admitted = asking.join().unwrap();
        assert_eq!(scene.acquire(), !admitted);
    });
}

#[test]
fn no_denial_survives_an_outage() {
    every_order(|| {
        let scene = Scene::new(true);
        let asking = {
            let scene = Arc::clone(&scene);
            thread::spawn(move || scene.acquire())
        };
        scene.fail_over_without_data();
        let admitted = asking.join().unwrap();
        assert_eq!(scene.acquire(), !admitted);
    });
}
