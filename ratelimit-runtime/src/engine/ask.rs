//! Requests to the store, and their results.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    abandon::{self, AbandonOnDrop},
    outcome::Resolution,
    permit::{Permit, uncounted_decision},
    queue::StoreAnswer,
    request::AcquireRequest,
};
use crate::{
    RequestPerMinute,
    clock::{after, wait_until},
    store::{Batch, Charges, Request, StoreError},
};

pub(super) type AcquireResult = Result<Permit, RequestPerMinute>;

/// A permit whose slot has not come yet. It is refunded if it is dropped before.
pub(super) struct RefundOnDrop(Option<Permit>);

impl RefundOnDrop {
    pub(super) fn new(permit: Permit) -> Self {
        Self(Some(permit))
    }

    /// The permit, when its slot has come.
    pub(super) fn take(&mut self) -> Option<Permit> {
        self.0.take()
    }
}

impl Drop for RefundOnDrop {
    fn drop(&mut self) {
        if let Some(permit) = self.0.take() {
            permit.refund_in_background();
        }
    }
}

impl AcquireRequest {
    /// Sends a request to the store, after the settlements of its counters, and awaits the answer until
    /// `end`. Returns the time it was sent and the answer.
    pub(super) async fn query_store(
        &self,
        charges: Charges,
        consume: bool,
        end: Instant,
    ) -> (Duration, Result<Batch, StoreError>) {
        if let Some(settlements) = self.engine.settlements().for_charges(&charges) {
            let left = end.saturating_duration_since(Instant::now());
            tokio::select! {
                biased;
                () = settlements.done() => {}
                _ = wait_until(after(left / 2)) => {} // the rest is for the request
            }
        }
        let sent_at = self.clock().now();
        let Some(store) = self.engine.store() else { return (sent_at, Err(StoreError::no_answer())) };
        let held = abandon::held_charges(&charges).filter(|_| consume);
        let reply = store.decide(Request::new(charges, consume).into());
        let answer = self.engine.until(end, AbandonOnDrop::around(&self.engine, held, reply)).await;
        (sent_at, answer)
    }

    /// Asks the store, and again without the shadow rules that have refused, within one deadline.
    pub(super) async fn ask(&self, charges: Charges, consume: bool) -> Resolution {
        self.ask_in_turn(charges, consume).await.0
    }

    /// Like [`AcquireRequest::ask`]. Also returns the numbers of the counters, if the store decided.
    pub(super) async fn ask_in_turn(&self, mut charges: Charges, consume: bool) -> (Resolution, StoreAnswer) {
        if self.engine.store().is_none() {
            let free = Permit::free(uncounted_decision(&charges));
            return (Resolution::Admitted(free, None), StoreAnswer::default());
        }
        let end = after(self.engine.settings().deadline);
        loop {
            let (sent_at, batch) = self.query_store(charges, consume, end).await;
            let decided = batch.as_ref().ok().and_then(|batch| batch.first()).filter(|request| request.outcome.is_ok());
            let answer = decided.map(|request| StoreAnswer::of(&request.charges, sent_at)).unwrap_or_default();
            match self.resolve(batch, consume, sent_at) {
                Ok(resolution) => return (resolution, answer),
                Err(rejection) if rejection.rest.is_empty() => {
                    return (Resolution::Admitted(Permit::free(rejection.decision), None), answer);
                }
                Err(rejection) => charges = rejection.rest,
            }
        }
    }
}
