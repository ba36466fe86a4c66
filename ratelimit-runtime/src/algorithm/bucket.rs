//! The state of one counter in memory.

use super::{fixed_window, lifetime_ms, sliding_log::Log};
use crate::{Algorithm, Decision, Rule};

/// What is stored for one counter, and until when it differs from a fresh one.
#[derive(Debug)]
pub(crate) struct Bucket {
    until_ms: u64,
    state: State,
}

#[derive(Debug)]
enum State {
    Window { opened_ms: u64, used: u64 },
    Log(Box<Log>),
}

impl Bucket {
    /// As good as new: nothing is lost by dropping it.
    pub(crate) fn is_fresh(&self, now_us: u64) -> bool {
        self.until_ms <= now_us / 1000
    }

    pub(crate) fn until_ms(&self) -> u64 {
        self.until_ms
    }

    /// Decides without a charge, on a counter that may not be stored yet.
    pub(crate) fn look(stored: Option<&mut Self>, rule: &Rule, now_us: u64, cost: u64) -> (bool, Decision) {
        let millis = now_us / 1000;
        let Some(bucket) = stored.filter(|bucket| !bucket.is_fresh(now_us)) else {
            return fixed_window::decide(rule, 0, 0, cost);
        };
        let set_back = bucket.until_ms > millis + lifetime_ms(rule);
        if set_back {
            bucket.until_ms = match rule.counted_by() {
                Algorithm::FixedWindow { align } => fixed_window::end_ms(rule, align, millis),
                _ => millis + lifetime_ms(rule),
            };
        }
        match &mut bucket.state {
            State::Window { used, .. } => fixed_window::decide(rule, *used, bucket.until_ms - millis, cost),
            State::Log(log) => {
                if set_back {
                    log.restart(rule, now_us);
                }
                log.decide(rule, now_us, cost)
            }
        }
    }

    /// A counter without a charge.
    pub(crate) fn fresh(rule: &Rule, now_us: u64) -> Self {
        let millis = now_us / 1000;
        match rule.counted_by() {
            Algorithm::FixedWindow { align } => Self {
                until_ms: fixed_window::end_ms(rule, align, millis),
                state: State::Window { opened_ms: millis, used: 0 },
            },
            _ => Self { until_ms: millis, state: State::Log(Box::default()) },
        }
    }

    /// Charges a cost that [`Bucket::look`] has found to fit. Returns the decision after it, and its
    /// receipt.
    pub(crate) fn charge(&mut self, rule: &Rule, now_us: u64, cost: u64) -> (Decision, u64) {
        if self.is_fresh(now_us) {
            *self = Self::fresh(rule, now_us);
        }
        let receipt = match &mut self.state {
            State::Window { opened_ms, used } => {
                *used += cost;
                *opened_ms
            }
            State::Log(log) => {
                self.until_ms = now_us / 1000 + lifetime_ms(rule);
                log.charge(rule, now_us, cost)
            }
        };
        (Self::look(Some(self), rule, now_us, 0).1, receipt)
    }

    /// Returns what still counts of a charge. What is then empty is fresh.
    pub(crate) fn give_back(&mut self, rule: &Rule, now_us: u64, receipt: u64, cost: u64) -> u64 {
        if self.is_fresh(now_us) {
            return 0;
        }
        let (back, empty) = match &mut self.state {
            State::Window { opened_ms, used } if *opened_ms == receipt => {
                let back = cost.min(*used);
                *used -= back;
                (back, *used == 0)
            }
            State::Window { .. } => (0, false),
            State::Log(log) => (log.give_back(rule, now_us, receipt, cost), log.is_empty()),
        };
        if empty {
            self.until_ms = 0;
        }
        back
    }
}
