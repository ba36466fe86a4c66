//! The general way of a call: holds, waiting, and everything that the attempt could not decide.

use std::{future::Future, pin::Pin, time::Duration};

use tokio::time::Instant;

use super::{
    abandon::{self, AbandonOnDrop},
    ask::{AcquireResult, RefundOnDrop},
    outage::OutageWait,
    outcome::{Resolution, RetryableRefusal},
    permit::{Permit, uncounted_decision},
    request::{AcquireRequest, RequestKey},
};
use crate::{
    Key, RequestPerMinute,
    clock::after,
    store::{Batch, Charges, Reply, Request, StoreError},
};

pub(super) type BoxedAcquire = Pin<Box<dyn Future<Output = AcquireResult> + Send>>;

/// The keys of a call with the prefixes of their rules. Empty if refusals name no keys.
pub(super) struct CallKeys(Vec<(&'static str, Key)>);

impl CallKeys {
    /// Adds its key to the refusal.
    pub(super) fn named(self, answer: Result<AcquireResult, BoxedAcquire>) -> Result<AcquireResult, BoxedAcquire> {
        match answer {
            answer if self.0.is_empty() => answer,
            Ok(answer) => Ok(answer.map_err(|refused| self.name(refused))),
            Err(pending) => Err(Box::pin(async move { pending.await.map_err(|refused| self.name(refused)) })),
        }
    }

    fn name(&self, refused: RequestPerMinute) -> RequestPerMinute {
        let mut keys = self.0.iter().filter(|(prefix, _)| *prefix == refused.rule()).map(|(_, key)| key);
        match keys.next() {
            Some(key) if keys.all(|other| other == key) => refused.with_key(key),
            _ => refused,
        }
    }
}

impl AcquireRequest {
    /// The result if the store decides at once, otherwise the future that awaits it.
    pub(super) fn start(self) -> Result<AcquireResult, BoxedAcquire> {
        self.keys().named(self.start_unnamed())
    }

    /// The keys of the call, if its refusal names one.
    pub(super) fn keys(&self) -> CallKeys {
        let names_keys = self.engine.settings().names_keys;
        let requests = self.charges.iter().map(|charge| &charge.request).filter(|_| names_keys);
        let keys = requests.filter_map(|request| match &request.key {
            RequestKey::Some(key) => Some((request.rule.prefix(), key.clone())),
            _ => None,
        });
        CallKeys(keys.collect())
    }

    fn start_unnamed(mut self) -> Result<AcquireResult, BoxedAcquire> {
        self.apply_rules(true); // first: a rule of the file may let a call wait that takes all of it
        self.wait_ticket = self.take_wait_ticket();
        self.queue_or_send()
    }

    /// Decides the call by its rules as they are applied, behind callers who wait.
    pub(super) fn queue_or_send(mut self) -> Result<AcquireResult, BoxedAcquire> {
        let charges = match self.charges() {
            Ok(charges) => charges,
            Err(refused) => return Ok(Err(refused)),
        };
        if let Some(ticket) = &mut self.wait_ticket {
            if let Some(queue) = self.engine.queues().waited_for(&charges, ticket.id) {
                return Err(Box::pin(self.wait(charges, Some(queue), None)));
            }
            ticket.changes = self.engine.queues().changes(&charges);
        }
        self.send(charges, None)
    }

    /// Asks the store again about a call that was certainly not decided, until `end`.
    pub(super) fn start_again(mut self, end: Instant) -> Result<AcquireResult, BoxedAcquire> {
        self.apply_rules(false);
        let keys = self.keys();
        keys.named(match self.charges() {
            Ok(charges) => self.send(charges, Some(end)),
            Err(refused) => Ok(Err(refused)),
        })
    }

    /// Asks the store. The result if it decides at once, otherwise the future that awaits it until `end`: the
    /// deadline, from now on, if that is `None`.
    fn send(self, charges: Charges, end: Option<Instant>) -> Result<AcquireResult, BoxedAcquire> {
        let Some(store) = self.engine.store().filter(|_| !charges.is_empty()) else {
            return Ok(Ok(Permit::free(uncounted_decision(&charges))));
        };
        let settlements = self.engine.settlements();
        if charges.iter().any(|charge| settlements.has(charge.counter.id())) {
            return Err(Box::pin(async move {
                let end = self.end(end);
                let (sent_at, batch) = self.query_store(charges, true, end).await;
                match self.resolve_or_wait(batch, sent_at, Some(end)) {
                    Ok(answer) => answer,
                    Err(waiting) => waiting.await,
                }
            }));
        }
        let sent_at = self.clock().now();
        // The memory store decides at once.
        let held = self.engine.guard().and_then(|_| abandon::held_charges(&charges));
        match store.decide(Request::new(charges, true).into()) {
            Reply::Ready(batch) => self.resolve_or_wait(Ok(batch), sent_at, end),
            reply @ Reply::Pending(_) => Err(Box::pin(async move {
                let end = self.end(end);
                let reply = AbandonOnDrop::around(&self.engine, held, reply);
                let batch = self.engine.until(end, reply).await;
                match self.resolve_or_wait(batch, sent_at, Some(end)) {
                    Ok(answer) => answer,
                    Err(waiting) => waiting.await,
                }
            })),
        }
    }

    /// The end of a request to the store, with the whole deadline unless one was set before.
    fn end(&self, end: Option<Instant>) -> Instant {
        end.unwrap_or_else(|| after(self.engine.settings().deadline))
    }

    /// Resolves an answer. `end`: of another request, without the shadow rules that have refused.
    pub(super) fn resolve_or_wait(
        mut self,
        batch: Result<Batch, StoreError>,
        sent_at: Duration,
        end: Option<Instant>,
    ) -> Result<AcquireResult, BoxedAcquire> {
        match self.resolve(batch, true, sent_at) {
            Ok(resolution) => {
                if self.wait_ticket.is_some() && matches!(resolution, Resolution::Undecided { .. }) {
                    // Without an answer, the request takes nothing from the time of the call.
                    let began = OutageWait::new(self.clock().now(), sent_at);
                    self.outage_wait.get_or_insert(began);
                }
                self.act_on(resolution)
            }
            // Asks again, without the shadow rules that have refused.
            Err(rejection) if rejection.rest.is_empty() => Ok(Ok(Permit::free(rejection.decision))),
            Err(rejection) => self.send(rejection.rest, end),
        }
    }

    pub(super) fn act_on(self, resolution: Resolution) -> Result<AcquireResult, BoxedAcquire> {
        match (resolution, self.wait_ticket) {
            (Resolution::Exceeded(exceeded), Some(_)) if self.waits_for(exceeded.reason) => {
                let RetryableRefusal { charges, answer, .. } = *exceeded;
                let queue = answer.refusal.as_ref().map(|(queue, _)| *queue);
                Err(Box::pin(self.wait(charges, queue, Some(answer))))
            }
            (Resolution::Admitted(permit, Some(run_at)), _) => {
                Err(Box::pin(self.wait_for_slot(run_at, RefundOnDrop::new(permit))))
            }
            (Resolution::Admitted(permit, None), _) => Ok(Ok(permit)),
            (Resolution::Undecided { error, max }, _) => Err(Box::pin(self.outlast(error, max))),
            (Resolution::Exceeded(exceeded), _) => Ok(Err(exceeded.refusal)),
            (Resolution::Rejected(refused), _) => Ok(Err(refused)),
        }
    }
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use super::*;
    use crate::Rule;

    #[test]
    fn a_refusal_names_the_key_that_all_charges_of_its_rule_have() {
        let rule = Rule::new("item", 1, Duration::from_secs(60));
        let named = |charges: [(&'static str, u64); 2]| {
            let keys = CallKeys(charges.map(|(prefix, key)| (prefix, Key::new(key))).into());
            keys.name(RequestPerMinute::never_fits(&rule, 2)).key().cloned()
        };
        assert_eq!(named([("other", 1), ("item", 2)]), Some(Key::new(2)));
        assert_eq!(named([("item", 2), ("item", 2)]), Some(Key::new(2)));
        assert_eq!(named([("item", 1), ("item", 2)]), None);
    }
}
