//! Questions to the store, each with its answer.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::{
    abandon::{self, AbandonOnDrop},
    outcome::{Resolution, ShadowRejection},
    permit::Permit,
    refusal::refusal,
    request::AcquireRequest,
};
use crate::{
    RequestPerMinute,
    store::{Batch, Charges, Request, StoreError},
};

pub(super) type AcquireResult = Result<Permit, RequestPerMinute>;

/// A permit whose time has not come. Dropped, it is refunded.
struct RefundOnDrop(Option<Permit>);

impl Drop for RefundOnDrop {
    fn drop(&mut self) {
        if let Some(permit) = self.0.take() {
            permit.abandon();
        }
    }
}

impl AcquireRequest {
    /// Asks the store, when what is being settled has been; and tells when it did.
    pub(super) async fn question(&self, charges: Charges, consume: bool) -> (Duration, Result<Batch, StoreError>) {
        let (began, mut left) = (Instant::now(), self.limiter.settings().deadline);
        if let Some(settlements) = self.limiter.settlements().of(&charges) {
            let _ = timeout(left / 2, settlements.done()).await; // the rest is for the question
            left = left.saturating_sub(began.elapsed());
        }
        let asked = self.clock().now();
        let Some(store) = self.limiter.store() else { return (asked, Err(StoreError::no_answer())) };
        let held = abandon::held(&charges).filter(|_| consume);
        let reply = store.decide(Request::new(charges, consume).into());
        (asked, self.limiter.within(left, AbandonOnDrop::around(&self.limiter, held, reply)).await)
    }

    pub(super) async fn sleep_until(&self, at: Duration, permit: Permit) -> AcquireResult {
        let mut slot = RefundOnDrop(Some(permit));
        self.clock().sleep_until(at).await;
        slot.0.take().ok_or_else(|| refusal(&self.rule(), StoreError::no_answer()))
    }

    pub(super) async fn ask(&self, charges: Charges, consume: bool) -> Resolution {
        if self.limiter.store().is_none() {
            return Resolution::Admitted(Permit::free(&charges), None);
        }
        let (asked, batch) = self.question(charges, consume).await;
        match self.conclude(batch, consume, asked) {
            Ok(verdict) => verdict,
            Err(shadowed) => self.ask_without(shadowed, consume).await,
        }
    }

    /// Asks again without the rules that are only tried out and have refused.
    pub(super) async fn ask_without(&self, shadowed: Box<ShadowRejection>, consume: bool) -> Resolution {
        let ShadowRejection { said, rest } = *shadowed;
        if rest.is_empty() {
            return Resolution::Admitted(Permit::of_shadow(said), None);
        }
        Box::pin(self.ask(rest, consume)).await
    }
}
