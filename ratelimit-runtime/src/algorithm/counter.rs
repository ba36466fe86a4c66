//! The state of one counter in memory.

use super::{
    Look, Taken, bucket::Bucket, fixed_window::Window, places::Places, sliding_log::Log, sliding_window::SubWindows,
};
use crate::{
    Algorithm, Rule,
    store::{ChargeQuery, Hold},
};

/// What is stored for one counter.
#[derive(Debug)]
pub(crate) enum Counter {
    Window(Window),
    Log(Box<Log>),
    SubWindows(Box<SubWindows>),
    Bucket(Bucket),
    Places(Box<Places>),
}

impl Counter {
    /// A counter without a charge.
    pub(crate) fn fresh(rule: &Rule, now_us: u64) -> Self {
        let millis = now_us / 1000;
        match rule.algorithm() {
            Algorithm::FixedWindow { .. } => Self::Window(Window::open(rule, millis)),
            Algorithm::SlidingLog => Self::Log(Box::new(Log::empty())),
            Algorithm::SlidingWindow { .. } => Self::SubWindows(Box::new(SubWindows::empty(rule, millis))),
            Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } => Self::Bucket(Bucket::full(millis)),
            Algorithm::Concurrent => Self::Places(Box::default()),
        }
    }

    /// From when on, in milliseconds, it is as good as new: nothing is lost by dropping it.
    #[inline]
    pub(crate) fn until_ms(&self) -> u64 {
        match self {
            Self::Window(window) => window.end_ms,
            Self::Log(log) => log.until_ms(),
            Self::SubWindows(sub_windows) => sub_windows.until_ms,
            Self::Bucket(bucket) => bucket.full_ms,
            Self::Places(places) => places.until_ms(),
        }
    }

    #[inline]
    pub(crate) fn is_fresh(&self, now_us: u64) -> bool {
        self.until_ms() <= now_us / 1000
    }

    /// Decides without a charge, on a counter that may not be stored yet.
    #[inline]
    pub(crate) fn look(stored: Option<&mut Self>, ask: &ChargeQuery<'_>, now_us: u64) -> Look {
        let (rule, millis) = (ask.rule, now_us / 1000);
        let Some(counter) = stored.filter(|counter| !counter.is_fresh(now_us)) else {
            return Look::fresh(rule, ask.least());
        };
        match counter {
            Self::Window(window) => window.set_right(rule, millis),
            Self::Log(log) => log.set_right(rule, now_us),
            Self::SubWindows(sub_windows) => sub_windows.set_right(rule, millis),
            Self::Bucket(bucket) => bucket.set_right(millis),
            Self::Places(_) => {}
        }
        counter.decide(ask, ask.least(), now_us)
    }

    #[inline]
    fn decide(&mut self, ask: &ChargeQuery<'_>, cost: u64, now_us: u64) -> Look {
        let (rule, millis) = (ask.rule, now_us / 1000);
        match self {
            Self::Window(window) => window.look(rule, millis, cost),
            Self::Log(log) => log.look(rule, now_us, cost, ask.hold.filter(|_| cost > 0)),
            Self::SubWindows(sub_windows) => sub_windows.look(rule, millis, cost),
            Self::Bucket(bucket) => bucket.look(rule, millis, cost, ask.longest_wait_ms),
            Self::Places(places) => places.look(rule, now_us, cost),
        }
    }

    /// Charges the cost if it fits.
    pub(crate) fn take(&mut self, ask: &ChargeQuery<'_>, now_us: u64) -> Taken {
        if let Self::Window(window) = self
            && (1..=ask.rule.count()).contains(&ask.cost)
        {
            return window.take(ask.rule, now_us / 1000, ask.cost);
        }
        let look = Self::look(Some(self), ask, now_us);
        if !look.fits || ask.cost == 0 {
            return Taken::new(look, [0; 2]);
        }
        let (rule, cost, millis) = (ask.rule, ask.cost, now_us / 1000);
        if self.is_fresh(now_us) {
            *self = Self::fresh(rule, now_us);
        }
        let receipt = match (self as &mut Self, ask.hold) {
            (Self::Window(window), _) => window.charge(cost),
            (Self::Log(log), Some(hold)) => log.hold(rule, now_us, cost.min(look.decision.remaining), hold),
            (Self::Places(places), Some(hold)) => places.hold(now_us, cost.min(look.decision.remaining), hold),
            (Self::Places(_), None) => [0; 2], // see `Store::decide`
            (Self::Log(log), None) => log.charge(rule, now_us, cost),
            (Self::SubWindows(sub_windows), _) => sub_windows.charge(rule, millis, cost),
            (Self::Bucket(bucket), _) => bucket.charge(rule, millis, cost),
        };
        Taken::new(self.decide(ask, 0, now_us), receipt)
    }

    /// Returns what still counts of a charge. What is then empty is fresh.
    pub(crate) fn refund(&mut self, rule: &Rule, cost: u64, receipt: [u64; 2], now_us: u64) -> u64 {
        let millis = now_us / 1000;
        if self.is_fresh(now_us) {
            return 0;
        }
        match self {
            Self::Window(window) => window.refund(receipt, cost),
            Self::Log(log) => log.refund(rule, now_us, receipt, cost),
            Self::SubWindows(sub_windows) => sub_windows.refund(rule, millis, receipt, cost),
            Self::Bucket(bucket) => bucket.refund(rule, millis, receipt, cost),
            Self::Places(_) => 0, // they are settled
        }
    }

    /// Says whether what is held still counts, and lasts as long again from now.
    pub(crate) fn renew(&mut self, hold: &Hold, now_us: u64) -> bool {
        match self {
            Self::Log(log) => log.renew(now_us, hold),
            Self::Places(places) => places.renew(now_us, hold),
            Self::Window(_) | Self::SubWindows(_) | Self::Bucket(_) => false,
        }
    }

    /// Charges what was used instead of what was held, and says how much still was.
    pub(crate) fn settle(&mut self, rule: &Rule, hold: &Hold, used: u64, now_us: u64) -> u64 {
        match self {
            Self::Log(log) => {
                log.set_right(rule, now_us);
                log.settle(rule, now_us, hold, used)
            }
            Self::Places(places) => places.settle(now_us, hold),
            Self::Window(_) | Self::SubWindows(_) | Self::Bucket(_) => 0,
        }
    }
}
