//! An answer of the store, as the queues take it in.

use std::time::Duration;

use smallvec::SmallVec;

use crate::{RequestPerMinute, counter::CounterId, store::Charge};

/// An answer of the store to a caller.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoreAnswer {
    /// When the question was sent, by the limiter's clock.
    pub(crate) sent_at: Duration,
    pub(crate) counters: SmallVec<[CounterAnswer; 1]>,
    /// The refusal, and the counter that it is about.
    pub(crate) refusal: Option<(CounterId, RequestPerMinute)>,
}

/// What an answer says about one counter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CounterAnswer {
    pub(super) id: CounterId,
    pub(super) cost: u64,
    pub(super) remaining: u64,
    /// Nothing if the cost fits.
    pub(super) ready_in: Option<Duration>,
    pub(super) may_free_early: bool,
}

impl StoreAnswer {
    /// The counters of charges that a store has decided on.
    pub(crate) fn of(charges: &[Charge], sent_at: Duration) -> Self {
        let counters = counted(charges).map(|charge| CounterAnswer {
            id: charge.counter.id(),
            cost: charge.least(),
            remaining: charge.decision.remaining,
            ready_in: charge.decision.retry_after(),
            may_free_early: charge.held_by_others > 0,
        });
        Self { sent_at, counters: counters.collect(), refusal: None }
    }
}

/// The charges that callers wait for: a rule in shadow mode refuses nobody.
pub(super) fn counted(charges: &[Charge]) -> impl Iterator<Item = &Charge> {
    charges.iter().filter(|charge| !charge.rule.is_shadow() && charge.cost > 0)
}
