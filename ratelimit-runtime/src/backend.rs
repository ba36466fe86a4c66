//! The interface between the engine and the place that counts, for one charge that holds nothing.
//!
//! [`Store`](crate::store::Store) is the public contract. A backend decides most charges without
//! the list, the counter name and the boxed future of a store.

use std::task::{Context, Poll, Waker};

use smallvec::SmallVec;

use crate::{
    Algorithm, Key, Rule,
    counter::CounterId,
    decision::Outcome,
    failures::Epoch,
    store::{Reply, StoreError},
};
#[cfg(feature = "redis")]
use crate::{CounterName, store::Charge};

/// A place that counts.
pub(crate) trait Backend {
    /// A charge on its way. Dropping it is leaving: it is charged only if it was sent before.
    type Ticket;
    /// Refunds a charge once.
    type Receipt;

    /// Charges one counter if the cost fits, and writes the decision to `decided` if there is one.
    ///
    /// `waiter` is `None` outside of a poll. Then [`Attempt::Unsupported`] if the backend may have
    /// to wait.
    fn try_charge(&self, query: &Query<'_>, waiter: Option<Waiter<'_, Self::Ticket>>, decided: &mut Decided)
    -> Attempt;

    /// Charges several counters if all costs fit. `None` if nothing has changed, and the store has
    /// to be asked.
    fn try_charge_all(&self, _queries: &[Query<'_>]) -> Option<Outcomes> {
        None
    }

    /// The receipt of a charge that was decided at once.
    fn receipt(&self, receipt: CounterReceipt) -> Self::Receipt;

    /// Polls a charge on its way. It is not polled again after it was ready.
    fn poll_charge(
        &self,
        ticket: &mut Self::Ticket,
        context: &mut Context<'_>,
    ) -> Poll<Result<(Outcome, Self::Receipt), StoreError>>;

    /// Refunds a charge. Returns the amount that still counted.
    fn refund_charge(&self, receipt: Self::Receipt) -> Reply<Result<u64, StoreError>>;
}

/// The outcomes of several charges, in their order.
pub(crate) type Outcomes = SmallVec<[Outcome; 2]>;

/// The result of an attempt to charge.
pub(crate) enum Attempt {
    Admitted,
    Denied,
    /// The waiter has a ticket, which has to be polled.
    Pending,
    /// Nothing has changed. The store has to be asked.
    Unsupported,
}

/// A caller that can wait for a decision.
pub(crate) struct Waiter<'a, T> {
    pub(crate) waker: &'a Waker,
    /// The place for its ticket.
    pub(crate) ticket: &'a mut Option<T>,
}

/// The decision on a charge.
///
/// A caller passes its place, where it is written once. To return it through several functions
/// takes as long as the arithmetic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decided {
    pub(crate) id: CounterId,
    pub(crate) outcome: Outcome,
}

impl Decided {
    pub(crate) const fn undecided() -> Self {
        Self { id: CounterId::NONE, outcome: Outcome::NONE }
    }
}

/// A charge of one counter that holds nothing, at a cost of 1 or more.
///
/// The id and the name of the counter are made when they are needed: only a server needs the name.
pub(crate) struct Query<'a> {
    pub(crate) rule: &'a Rule,
    /// `None`: one counter for all callers.
    pub(crate) key: Option<&'a Key>,
    pub(crate) cost: u64,
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    pub(crate) namespace: &'a str,
}

impl Query<'_> {
    #[inline(always)]
    #[allow(clippy::inline_always)] // the hash is short code
    pub(crate) fn id(&self) -> CounterId {
        CounterId::new_inline(self.rule, self.key)
    }

    /// The charge, with the name of the counter.
    #[cfg(feature = "redis")]
    pub(crate) fn charge(&self) -> Charge {
        Charge::new(*self.rule, CounterName::new(self.namespace, self.rule, self.key), self.cost)
    }
}

/// The numbers by which a charge of one counter is refunded.
pub(crate) struct CounterReceipt {
    pub(crate) id: CounterId,
    pub(crate) cost: u64,
    pub(crate) receipt: [u64; 2],
    count: u64,
    period_ms: u64,
    algorithm: Algorithm,
}

impl CounterReceipt {
    #[inline]
    pub(crate) fn new(id: CounterId, rule: &Rule, cost: u64, receipt: [u64; 2]) -> Self {
        let (count, period_ms, algorithm) = (rule.count(), rule.period_ms(), rule.algorithm());
        Self { id, cost, receipt, count, period_ms, algorithm }
    }

    /// The rule without its name.
    pub(crate) fn rule(&self) -> Rule {
        Rule::without_id("", self.count, self.period_ms, self.algorithm)
    }
}

/// Data that the guard hands to a store with a query, and that the store keeps unread until the
/// answer.
///
/// It is the state of the guard when the query was sent. It tells later whether a denial may be
/// cached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueryTag {
    pub(crate) sent_us: u64,
    /// How often the counter's cached denials had been invalidated.
    pub(crate) invalidations: u32,
    pub(crate) slot: u16,
    /// The epoch of the server. `None` if the server was away, or had failed within a second
    /// before.
    pub(crate) epoch: Option<Epoch>,
}
