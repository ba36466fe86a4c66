//! The part of a store's answer that the wait queues use.

use std::{ops::RangeInclusive, time::Duration};

use smallvec::SmallVec;

use crate::{RequestPerMinute, counter::CounterId, store::Charge};

/// A queue: that of the callers of one counter with one limit. A caller whose own limit has room does not wait behind
/// one with a smaller limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QueueId {
    pub(super) counter: CounterId,
    pub(super) count: u64,
    pub(super) limit: u64,
}

impl QueueId {
    pub(crate) fn of(charge: &Charge) -> Self {
        Self { counter: charge.counter.id(), count: charge.rule.count(), limit: charge.rule.limit() }
    }

    /// The queues of all limits.
    pub(super) fn all_of(counter: CounterId) -> RangeInclusive<Self> {
        let [first, last] = [0, u64::MAX].map(|number| Self { counter, count: number, limit: number });
        first..=last
    }
}

/// A store's answer to one caller.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoreAnswer {
    /// The time the request was sent, by the limiter's clock.
    pub(crate) sent_at: Duration,
    pub(crate) counters: SmallVec<[CounterAnswer; 1]>,
    /// The refusal, and the queue of the counter that refused.
    pub(crate) refusal: Option<(QueueId, RequestPerMinute)>,
}

/// The part of an answer about one counter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CounterAnswer {
    pub(super) id: QueueId,
    pub(super) cost: u64,
    pub(super) remaining: u64,
    /// `None` if the cost fits.
    pub(super) ready_in: Option<Duration>,
    /// Others hold a part, and may release it.
    pub(super) is_held: bool,
    pub(super) is_banned: bool,
    /// Decided in this process while the store is away.
    pub(super) is_local: bool,
}

impl StoreAnswer {
    /// The answer about the counters of these charges, which a store has decided.
    pub(crate) fn of(charges: &[Charge], sent_at: Duration) -> Self {
        let counters = counted(charges).map(|charge| CounterAnswer {
            id: QueueId::of(charge),
            cost: charge.least(),
            remaining: charge.decision.remaining,
            ready_in: charge.decision.retry_after(),
            is_held: charge.held_by_others > 0,
            is_banned: charge.decision.is_banned(),
            is_local: false,
        });
        Self { sent_at, counters: counters.collect(), refusal: None }
    }

    /// The answer of [`OnStoreError::Local`](crate::OnStoreError::Local). The store may say otherwise as soon as
    /// it is back.
    pub(crate) fn of_local(charges: &[Charge], sent_at: Duration) -> Self {
        let mut answer = Self::of(charges, sent_at);
        answer.counters.iter_mut().for_each(|counter| counter.is_local = true);
        answer
    }
}

/// The charges to wait for. Shadow rules refuse no call, so they do not count.
pub(super) fn counted(charges: &[Charge]) -> impl Iterator<Item = &Charge> {
    charges.iter().filter(|charge| !charge.rule.is_shadow() && charge.cost > 0 && charge.is_waited_for())
}
