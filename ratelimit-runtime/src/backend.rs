//! The interface between the engine and the place that counts, for charges that can be decided at once.
//!
//! [`Store`](crate::store::Store) is the public contract. A backend decides most charges without
//! the list, the counter name and the boxed future of a store.

use std::{
    fmt,
    sync::{Arc, OnceLock},
    task::{Context, Poll, Waker},
    time::Duration,
};

#[cfg(feature = "redis")]
use crate::{CounterName, store::Charge};
use crate::{
    Key, Rule,
    counter::CounterId,
    decision::Outcome,
    failures::Epoch,
    rule::Rate,
    store::{Reply, StoreError},
};

/// A place that counts.
pub(crate) trait Backend {
    /// A charge on its way. Dropping it is leaving: it is charged only if it was sent before.
    type Ticket;
    /// Refunds a charge once. The receipt of a charge that was decided at once is made from its numbers.
    type Receipt: From<CounterReceipt>;

    /// Charges one counter if the cost fits. The outcome is set with [`Attempt::Decided`] only. A memory store takes a
    /// place, which the caller frees by a refund; all others only deny places.
    ///
    /// `waiter` is `None` outside of a poll. Then [`Attempt::Unsupported`] if the backend may have
    /// to wait.
    fn try_charge(&self, query: &mut Query<'_>, waiter: Option<Waiter<'_, Self::Ticket>>) -> Attempt;

    /// Charges several counters if all costs fit. With [`Attempt::Decided`] the outcome of each is set. One
    /// that fits was charged only if all do.
    ///
    /// [`Attempt::Unsupported`] if one counter is charged twice, if there may be no room for a counter, and for slots
    /// that are not denied.
    fn try_charge_all<const N: usize>(&self, _queries: &mut [Query<'_>; N]) -> Attempt {
        Attempt::Unsupported
    }

    /// Polls a charge on its way. It is not polled again after it was ready.
    fn poll_charge(
        &self,
        ticket: &mut Self::Ticket,
        context: &mut Context<'_>,
    ) -> Poll<Result<(Outcome, Self::Receipt), Undecided>>;

    /// Refunds a charge. Returns the amount that still counted.
    fn refund_charge(&self, receipt: Self::Receipt) -> Reply<Result<u64, StoreError>>;
}

/// A listener for refunds that no caller makes: of a call that another slot refused, or whose caller has left.
///
/// It gets the counter, and whether the refund is pending: it was sent and has no answer, so it may be made later.
#[derive(Clone, Default)]
pub(crate) struct RefundListener(Arc<OnceLock<Listener>>);

type Listener = Box<dyn Fn(CounterId, bool) + Send + Sync>;

impl RefundListener {
    /// Calls this after each such refund. Only the first call acts.
    pub(crate) fn listen(&self, listener: impl Fn(CounterId, bool) + Send + Sync + 'static) {
        let _ = self.0.set(Box::new(listener));
    }

    pub(crate) fn refunded(&self, counter: CounterId, is_pending: bool) {
        if let Some(listener) = self.0.get() {
            listener(counter, is_pending);
        }
    }
}

impl fmt::Debug for RefundListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RefundListener").finish_non_exhaustive()
    }
}

/// The largest number of counters that one attempt charges.
pub(crate) const MAX_AT_ONCE: usize = 4;

/// The result of an attempt to charge.
pub(crate) enum Attempt {
    /// The query has the outcome.
    Decided,
    /// The waiter has a ticket, which has to be polled.
    Pending,
    /// Nothing was charged. The store has to be asked.
    Unsupported,
}

/// A charge on its way that has no outcome.
#[derive(Debug)]
pub(crate) enum Undecided {
    Failed(StoreError),
    /// It was certainly not made: it was not sent, or a node of a cluster redirected it or could not run it.
    /// The store has to be asked again, within the time that is left.
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    NotMade {
        left: Duration,
    },
}

/// A caller that can wait for a decision.
pub(crate) struct Waiter<'a, T> {
    pub(crate) waker: &'a Waker,
    /// The place for its ticket.
    pub(crate) ticket: &'a mut Option<T>,
}

/// A charge of one counter at a cost of 1 or more, and its outcome. It is not settled later, but for a place.
///
/// The name of the counter is made when it is needed: only a server needs it.
#[derive(Clone, Copy)]
pub(crate) struct Query<'a> {
    pub(crate) rule: &'a Rule,
    pub(crate) key: &'a Key,
    pub(crate) id: CounterId,
    pub(crate) cost: u64,
    pub(crate) outcome: Outcome,
}

const NO_RULE: &Rule = &Rule::new("", 0, Duration::ZERO);

impl<'a> Query<'a> {
    /// No charge.
    pub(crate) const NONE: Self =
        Self { rule: NO_RULE, key: &Key::NONE, id: CounterId::NONE, cost: 0, outcome: Outcome::NONE };

    #[inline(always)]
    #[allow(clippy::inline_always)] // the hash is short code
    pub(crate) fn new(rule: &'a Rule, key: &'a Key, cost: u64) -> Self {
        Self { rule, key, id: CounterId::new_inline(rule, key), cost, outcome: Outcome::NONE }
    }

    /// The charge, with the name of the counter.
    #[cfg(feature = "redis")]
    pub(crate) fn charge(&self, namespace: &str) -> Charge {
        Charge::new(*self.rule, CounterName::new(namespace, self.rule, self.key), self.cost)
    }
}

/// The numbers by which a charge of one counter is refunded.
#[derive(Clone, Copy)]
pub(crate) struct CounterReceipt {
    pub(crate) id: CounterId,
    pub(crate) cost: u64,
    pub(crate) receipt: [u64; 2],
    rate: Rate,
}

impl CounterReceipt {
    #[inline]
    pub(crate) fn new(id: CounterId, rule: &Rule, cost: u64, receipt: [u64; 2]) -> Self {
        Self { id, cost, receipt, rate: rule.rate() }
    }

    /// Whether it is a place, which its refund frees.
    #[inline]
    pub(crate) fn is_place(&self) -> bool {
        self.rule().is_concurrent()
    }

    /// The rule without its name.
    #[inline]
    pub(crate) fn rule(&self) -> Rule {
        Rule::without_id("", self.rate)
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
