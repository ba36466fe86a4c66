//! The state of one counter in memory.

use super::{Look, bucket::Bucket, fixed_window::Window, sliding_log::Log, sliding_window::SubWindows};
use crate::{Algorithm, Rule, store::Charge};

/// What is stored for one counter.
#[derive(Debug)]
pub(crate) enum Counter {
    Window(Window),
    Log(Box<Log>),
    SubWindows(Box<SubWindows>),
    Bucket(Bucket),
}

impl Counter {
    /// A counter without a charge.
    pub(crate) fn fresh(rule: &Rule, now_us: u64) -> Self {
        let millis = now_us / 1000;
        match rule.counted_by() {
            Algorithm::FixedWindow { .. } => Self::Window(Window::open(rule, millis)),
            Algorithm::SlidingLog => Self::Log(Box::default()),
            Algorithm::SlidingWindow { .. } => Self::SubWindows(Box::new(SubWindows::empty(rule, millis))),
            Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } => Self::Bucket(Bucket::full(millis)),
        }
    }

    /// From when on, in milliseconds, it is as good as new: nothing is lost by dropping it.
    pub(crate) fn until_ms(&self) -> u64 {
        match self {
            Self::Window(window) => window.end_ms,
            Self::Log(log) => log.until_ms,
            Self::SubWindows(sub_windows) => sub_windows.until_ms,
            Self::Bucket(bucket) => bucket.full_ms,
        }
    }

    pub(crate) fn is_fresh(&self, now_us: u64) -> bool {
        self.until_ms() <= now_us / 1000
    }

    /// Decides without a charge, on a counter that may not be stored yet.
    pub(crate) fn look(stored: Option<&mut Self>, charge: &Charge, now_us: u64) -> Look {
        let (rule, millis) = (&charge.rule, now_us / 1000);
        let Some(counter) = stored.filter(|counter| !counter.is_fresh(now_us)) else {
            return Look::fresh(rule, charge.cost);
        };
        match counter {
            Self::Window(window) => window.set_right(rule, millis),
            Self::Log(log) => log.set_right(rule, now_us),
            Self::SubWindows(sub_windows) => sub_windows.set_right(rule, millis),
            Self::Bucket(bucket) => bucket.set_right(millis),
        }
        counter.decide(charge, charge.cost, now_us)
    }

    fn decide(&mut self, charge: &Charge, cost: u64, now_us: u64) -> Look {
        let (rule, millis) = (&charge.rule, now_us / 1000);
        match self {
            Self::Window(window) => window.look(rule, millis, cost),
            Self::Log(log) => log.look(rule, now_us, cost),
            Self::SubWindows(sub_windows) => sub_windows.look(rule, millis, cost),
            Self::Bucket(bucket) => bucket.look(rule, millis, cost, charge.longest_wait_ms()),
        }
    }

    /// Charges a cost that [`Counter::look`] has found to fit. Returns what the counter says after it, and the receipt.
    pub(crate) fn charge(&mut self, charge: &Charge, now_us: u64) -> (Look, [u64; 2]) {
        let (rule, cost, millis) = (&charge.rule, charge.cost, now_us / 1000);
        if self.is_fresh(now_us) {
            *self = Self::fresh(rule, now_us);
        }
        let receipt = match self {
            Self::Window(window) => window.charge(cost),
            Self::Log(log) => log.charge(rule, now_us, cost),
            Self::SubWindows(sub_windows) => sub_windows.charge(rule, millis, cost),
            Self::Bucket(bucket) => bucket.charge(rule, millis, cost),
        };
        (self.decide(charge, 0, now_us), receipt)
    }

    /// Returns what still counts of a charge. What is then empty is fresh.
    pub(crate) fn give_back(&mut self, charge: &Charge, now_us: u64) -> u64 {
        let (rule, cost, receipt, millis) = (&charge.rule, charge.cost, charge.receipt, now_us / 1000);
        if self.is_fresh(now_us) {
            return 0;
        }
        match self {
            Self::Window(window) => window.give_back(receipt, cost),
            Self::Log(log) => log.give_back(rule, now_us, receipt, cost),
            Self::SubWindows(sub_windows) => sub_windows.give_back(rule, millis, receipt, cost),
            Self::Bucket(bucket) => bucket.give_back(rule, millis, receipt, cost),
        }
    }
}
