//! The backend of an engine: memory, or the guard in front of another store.

use std::task::{Context, Poll};

use crate::{
    backend::{Attempt, Backend, Query, Undecided, Waiter},
    decision::Outcome,
    guard::{Guard, GuardReceipt},
    memory::Memory,
    store::{Reply, StoreError},
};

/// The place where a limiter counts.
#[allow(clippy::large_enum_variant)] // a limiter has one, and it is not moved
#[derive(Debug)]
pub(crate) enum BackendKind {
    /// The first variant, so that the test for it in each call is short code.
    Memory(Memory),
    /// None: it limits nothing.
    None,
    Other(Guard),
}

/// A charge on its way. Memory has none.
pub(super) type Ticket = <Guard as Backend>::Ticket;

/// The receipt of a charge, also of a memory store. A type of its own for memory would need one more tag. A refund
/// does not need it: it asks the backend.
pub(super) type BackendReceipt = GuardReceipt;

impl Backend for BackendKind {
    type Ticket = Ticket;
    type Receipt = BackendReceipt;

    #[inline(always)]
    #[allow(clippy::inline_always)] // in each call
    fn try_charge(&self, query: &mut Query<'_>, waiter: Option<Waiter<'_, Ticket>>) -> Attempt {
        if let Self::Memory(memory) = self {
            return memory.try_charge(query, None);
        }
        match self {
            Self::Other(guard) if query.cost <= query.rule.limit() => {
                // A copy, so that the query can stay in registers.
                let mut copy = *query;
                let attempt = guard.try_charge(&mut copy, waiter);
                if let Attempt::Decided = attempt {
                    query.outcome = copy.outcome;
                }
                attempt
            }
            _ => Attempt::Unsupported,
        }
    }

    #[inline]
    fn try_charge_all<const N: usize>(&self, queries: &mut [Query<'_>; N]) -> Attempt {
        match self {
            Self::Memory(memory) => memory.try_charge_all(queries),
            Self::None | Self::Other(_) => Attempt::Unsupported,
        }
    }

    #[inline]
    fn poll_charge(
        &self,
        ticket: &mut Ticket,
        context: &mut Context<'_>,
    ) -> Poll<Result<(Outcome, BackendReceipt), Undecided>> {
        match self {
            Self::Other(guard) => guard.poll_charge(ticket, context),
            Self::None | Self::Memory(_) => Poll::Ready(Err(Undecided::Failed(StoreError::no_answer()))),
        }
    }

    fn refund_charge(&self, receipt: BackendReceipt) -> Reply<Result<u64, StoreError>> {
        match (self, receipt) {
            (Self::Memory(memory), BackendReceipt::Counter(receipt)) => memory.refund_charge(receipt),
            (Self::Other(guard), receipt) => guard.refund_charge(receipt),
            _ => Reply::Ready(Ok(0)),
        }
    }
}
