//! The general way of a call: several rules, holds, waiting, and whatever the attempt could not decide.

use std::{future::Future, pin::Pin, time::Duration};

use super::{
    abandon::{self, AbandonOnDrop},
    ask::AcquireResult,
    outcome::{Resolution, RetryableRefusal},
    permit::Permit,
    request::{AcquireRequest, WaitTicket},
};
use crate::store::{Batch, Reply, Request, StoreError};

pub(super) type BoxedAcquire = Pin<Box<dyn Future<Output = AcquireResult> + Send>>;

impl AcquireRequest {
    /// The answer of a store that has it at once, or the way to it.
    pub(super) fn start(mut self) -> Result<AcquireResult, BoxedAcquire> {
        self.arrival = self.arrive();
        if self.arrival.is_some() {
            self.rule_changes = self.limiter.settings().rule_changes();
        }
        self.apply_rules(true);
        let charges = match self.charges() {
            Ok(charges) => charges,
            Err(refused) => return Ok(Err(refused)),
        };
        let Some(store) = self.limiter.store().filter(|_| !charges.is_empty()) else {
            return Ok(Ok(Permit::free(&charges)));
        };
        if let Some(arrival) = &mut self.arrival {
            if self.limiter.queues().is_behind_others(&charges, arrival.ticket) {
                return Err(Box::pin(self.wait(charges, None)));
            }
            arrival.changes = self.limiter.queues().changes(&charges);
        }
        if self.limiter.settlements().of(&charges).is_some() {
            return Err(Box::pin(async move {
                let (asked, batch) = self.question(charges, true).await;
                match self.answer_or_wait(batch, asked) {
                    Ok(answer) => answer,
                    Err(waiting) => waiting.await,
                }
            }));
        }
        let asked = self.clock().now();
        let held = abandon::held(&charges);
        match store.decide(Request::new(charges, true).into()) {
            Reply::Ready(batch) => self.answer_or_wait(Ok(batch), asked),
            reply @ Reply::Pending(_) => Err(Box::pin(async move {
                let reply = AbandonOnDrop::around(&self.limiter, held, reply);
                let batch = self.limiter.within_deadline(reply).await;
                match self.answer_or_wait(batch, asked) {
                    Ok(answer) => answer,
                    Err(waiting) => waiting.await,
                }
            })),
        }
    }

    pub(super) fn answer_or_wait(
        self,
        batch: Result<Batch, StoreError>,
        asked: Duration,
    ) -> Result<AcquireResult, BoxedAcquire> {
        match self.conclude(batch, true, asked) {
            Ok(verdict) => self.act_on(verdict),
            Err(shadowed) => Err(Box::pin(async move {
                let verdict = self.ask_without(shadowed, true).await;
                match self.act_on(verdict) {
                    Ok(answer) => answer,
                    Err(waiting) => waiting.await,
                }
            })),
        }
    }

    fn act_on(mut self, verdict: Resolution) -> Result<AcquireResult, BoxedAcquire> {
        match (verdict, self.arrival) {
            (Resolution::Exceeded(exceeded), Some(arrival)) if self.waits_for(exceeded.by) => {
                let RetryableRefusal { by, charges, answer, .. } = *exceeded;
                self.arrival = Some(WaitTicket { give_up: self.give_up(by, arrival), ..arrival });
                Err(Box::pin(self.wait(charges, Some(answer))))
            }
            (Resolution::Admitted(permit, Some(at)), _) => {
                Err(Box::pin(async move { self.sleep_until(at, permit).await }))
            }
            (Resolution::Admitted(permit, None), _) => Ok(Ok(permit)),
            (Resolution::Exceeded(exceeded), _) => Ok(Err(exceeded.refusal)),
            (Resolution::Rejected(refused), _) => Ok(Err(refused)),
        }
    }
}
