//! Requests to the store, and their results.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::{
    abandon::{self, AbandonOnDrop},
    outcome::{Resolution, ShadowRejection},
    permit::{Permit, uncounted_decision},
    refusal::refusal,
    request::AcquireRequest,
};
use crate::{
    RequestPerMinute,
    store::{Batch, Charges, Request, StoreError},
};

pub(super) type AcquireResult = Result<Permit, RequestPerMinute>;

/// A permit whose slot has not come yet. It is refunded if it is dropped before.
pub(super) struct RefundOnDrop(Option<Permit>);

impl RefundOnDrop {
    pub(super) fn new(permit: Permit) -> Self {
        Self(Some(permit))
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
    /// Sends a request to the store, after the settlements of its counters. Returns the time it was
    /// sent and the answer.
    pub(super) async fn query_store(&self, charges: Charges, consume: bool) -> (Duration, Result<Batch, StoreError>) {
        let (began, mut left) = (Instant::now(), self.engine.settings().deadline);
        if let Some(settlements) = self.engine.settlements().for_charges(&charges) {
            let _ = timeout(left / 2, settlements.done()).await; // the rest is for the request
            left = left.saturating_sub(began.elapsed());
        }
        let sent_at = self.clock().now();
        let Some(store) = self.engine.store() else { return (sent_at, Err(StoreError::no_answer())) };
        let held = abandon::held_charges(&charges).filter(|_| consume);
        let reply = store.decide(Request::new(charges, consume).into());
        (sent_at, self.engine.within(left, AbandonOnDrop::around(&self.engine, held, reply)).await)
    }

    /// Waits for the slot of a permit.
    pub(super) async fn sleep_until(&self, run_at: Duration, mut pending: RefundOnDrop) -> AcquireResult {
        self.clock().sleep_until(run_at).await;
        pending.0.take().ok_or_else(|| refusal(&self.rule(), StoreError::no_answer()))
    }

    /// Asks the store, and again without the shadow rules that have refused.
    pub(super) async fn ask(&self, charges: Charges, consume: bool) -> Resolution {
        if self.engine.store().is_none() {
            return Resolution::Admitted(Permit::free(uncounted_decision(&charges)), None);
        }
        let (sent_at, batch) = self.query_store(charges, consume).await;
        match self.resolve(batch, consume, sent_at) {
            Ok(resolution) => resolution,
            Err(rejection) => self.ask_without_shadowed(rejection, consume).await,
        }
    }

    /// Sends the request again, without the shadow rules that have refused.
    pub(super) async fn ask_without_shadowed(&self, rejection: Box<ShadowRejection>, consume: bool) -> Resolution {
        let ShadowRejection { decision, rest } = *rejection;
        if rest.is_empty() {
            return Resolution::Admitted(Permit::free(decision), None);
        }
        Box::pin(self.ask(rest, consume)).await
    }
}
