//! What is known under every order in which the steps of a few threads can follow one another.

use std::{sync::Arc, time::Duration};

use shuttle::{
    sync::{Mutex, atomic::AtomicUsize},
    thread,
};

use super::*;
use crate::{failures::Failures, sync::every_order};

const RULE: Rule = Rule::new("item", 1, Duration::from_secs(60));
const NAME: CounterId = CounterId(0, 1);
const DENIAL: Denial = Denial {
    decision: Decision { limit: 1, remaining: 0, reset_after_ms: 60_000, retry_after_ms: 60_000 },
    wait_ms: 0,
};

/// A counter of one at a store, and what is known of it here.
struct Scene {
    /// Whether it is charged.
    charged: Mutex<bool>,
    denials: DenialCache,
    /// Before and after a failure of the store, and which of them it is.
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

    /// Whether a call is let through, as the guard goes about it.
    fn acquire(&self) -> bool {
        if self.denials.look(NAME, &RULE, 0).is_some_and(|(_, server)| server == self.server()) {
            return false;
        }
        let server = self.server();
        let forgotten = self.denials.forgotten(NAME);
        let was_charged = std::mem::replace(&mut *self.charged.lock().unwrap(), true);
        if was_charged {
            self.denials.keep(NAME, &RULE, DENIAL, (0, 0), (forgotten, server), |_| true);
        }
        !was_charged
    }

    fn refund(&self) {
        *self.charged.lock().unwrap() = false;
        self.denials.forget(NAME);
    }

    fn lose_everything(&self) {
        *self.charged.lock().unwrap() = false;
        self.epoch.store(1, Ordering::Release);
    }
}

#[test]
fn no_denial_survives_a_refund_that_is_over() {
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
        scene.lose_everything();
        let admitted = asking.join().unwrap();
        assert_eq!(scene.acquire(), !admitted);
    });
}
