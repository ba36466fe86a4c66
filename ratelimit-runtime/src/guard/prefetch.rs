//! Quota that a process takes ahead of need: spending it, taking more, and returning what is left.

use std::sync::Arc;

use tokio::{sync::oneshot, time::timeout};

use super::{
    core::{Guard, GuardInner},
    quota::{FollowUp, QuotaAnswer, SpendResult, Spent, Take},
};
use crate::{
    background,
    counter::CounterId,
    deadline,
    store::{Batch, Charge, Charges, Reply, Request, StoreError},
};

impl Guard {
    /// Refunds what was spent here: to be spent here again, or to the store if that is not to be.
    pub(crate) fn refund_spent(&self, name: CounterId, cost: u64, receipt: [u64; 2]) -> Reply<Result<u64, StoreError>> {
        if self.put_back(name, cost, receipt) {
            return Reply::Ready(Ok(cost));
        }
        match self.0.batches.charge(name, receipt, cost) {
            Some(charge) => self.return_charges(charge.into()),
            None => Reply::Ready(Ok(0)), // of a window before, or from before a reset
        }
    }

    /// Refunds all that was taken and not spent, and takes no more.
    pub(crate) async fn close(&self) -> u64 {
        let guard = &self.0;
        guard.batches.close();
        let all_taken = async {
            loop {
                let all_taken = guard.all_taken.notified(); // registered before the look
                if !guard.batches.is_taking() {
                    return;
                }
                all_taken.await;
            }
        };
        let _ = timeout(guard.deadline, all_taken).await;
        let mut back = 0;
        for charges in guard.unspent() {
            let permits: u64 = charges.iter().map(|charge| charge.cost).sum();
            let refunded = deadline::answer(self.return_charges(charges), guard.deadline).await;
            match refunded {
                Ok(permits) => back += permits,
                Err(error) => tracing::warn!(permits, %error, "permits that were taken and not spent stay charged"),
            }
        }
        back
    }

    /// Decides on one charge of a rule with prefetch.
    pub(super) fn decide_prefetched(&self, mut request: Request) -> Reply<Batch> {
        let (guard, now_us) = (&self.0, self.0.clock.now_us());
        let charge = &mut request.charges[0];
        match guard.batches.spend(charge.counter.id(), &charge.rule, charge.cost, now_us) {
            Ok((spent, take)) => {
                if let Some(take) = take {
                    self.begin(take);
                }
                spent.write_to(charge);
                request.outcome = Ok(true);
                return Reply::Ready(request.into());
            }
            Err(0) if guard.refuse(&mut request, now_us) => return Reply::Ready(request.into()),
            Err(_) => {}
        }
        let store = self.clone();
        Reply::Pending(Box::pin(async move {
            let charge = &mut request.charges[0];
            let answer = match store.ask(charge) {
                SpendResult::Spent(spent) => QuotaAnswer::Spent(spent),
                SpendResult::Waits(answer) => {
                    QuotaWaiter { store: &store, name: charge.counter.id(), answer }.answer().await
                }
                SpendResult::Alone => return store.ask_upstream(request.into()).answer().await,
            };
            request.outcome = match answer {
                QuotaAnswer::Spent(spent) => {
                    spent.write_to(charge);
                    Ok(true)
                }
                QuotaAnswer::Denied(decision) => {
                    charge.decision = decision;
                    Ok(false)
                }
                QuotaAnswer::Failed(error) => Err(error),
            };
            request.into()
        }))
    }

    /// Looks at one charge of a rule with prefetch: what is here can be granted too.
    pub(super) fn peek_prefetched(&self, request: Request) -> Reply<Batch> {
        let (guard, reply) = (Arc::clone(&self.0), self.0.store.decide(request.into()));
        Reply::Pending(Box::pin(async move {
            let mut batch = reply.answer().await;
            for request in batch.iter_mut().filter(|request| request.outcome.is_ok()) {
                for Charge { decision, counter, rule, cost, .. } in &mut *request.charges {
                    let left = guard.batches.left(counter.id(), guard.clock.now_us());
                    decision.remaining = (decision.remaining + left).min(rule.limit());
                    if *cost <= decision.remaining {
                        decision.retry_after_ms = u64::MAX;
                        request.outcome = Ok(true);
                    }
                }
            }
            batch
        }))
    }

    pub(super) fn ask(&self, charge: &Charge) -> SpendResult {
        let Charge { counter, rule, cost, .. } = charge;
        let (asked, then) = self.0.batches.ask(counter, rule, *cost, self.0.clock.now_us());
        if let Some(take) = self.follow(counter.id(), then) {
            self.begin(take);
        }
        asked
    }

    /// Takes back what was spent, and says whether it can be spent again.
    pub(super) fn put_back(&self, name: CounterId, cost: u64, receipt: [u64; 2]) -> bool {
        let back = self.0.batches.put_back(name, receipt, cost, self.0.clock.now_us());
        let is_back = back.is_some();
        self.follow(name, back.unwrap_or_default());
        is_back
    }

    /// The same for somebody who is gone.
    pub(super) fn return_spent(&self, name: CounterId, Spent { cost, receipt, .. }: Spent) {
        self.0.finish_refund(self.refund_spent(name, cost, receipt));
    }

    /// Does what is to be done when the lock is free again. Returns the take that is to be made.
    pub(super) fn follow(&self, name: CounterId, FollowUp { answers, take, back }: FollowUp) -> Option<Take> {
        for (caller, answer) in answers {
            if let Err(QuotaAnswer::Spent(spent)) = caller.send(answer) {
                self.return_spent(name, spent);
            }
        }
        if let Some(back) = back {
            self.0.finish_refund(self.return_charges(back.into()));
        }
        take
    }

    /// Makes a take in the background: its callers may go, and may be on any runtime.
    pub(super) fn begin(&self, take: Take) {
        let under_way = PrefetchTask { store: self.clone(), name: take.name, is_over: false };
        let _ = background::spawn(under_way.make(take)); // or it is given up
    }
}

/// Somebody who waits for a take. What was spent for one who is gone comes back.
struct QuotaWaiter<'a> {
    store: &'a Guard,
    name: CounterId,
    answer: oneshot::Receiver<QuotaAnswer>,
}

impl QuotaWaiter<'_> {
    async fn answer(mut self) -> QuotaAnswer {
        let given_up = || StoreError::unavailable("taking permits from the store was given up");
        (&mut self.answer).await.unwrap_or_else(|_| QuotaAnswer::Failed(given_up()))
    }
}

impl Drop for QuotaWaiter<'_> {
    fn drop(&mut self) {
        self.answer.close();
        if let Ok(QuotaAnswer::Spent(spent)) = self.answer.try_recv() {
            self.store.return_spent(self.name, spent);
        }
    }
}

/// A take that is being made. It is given up if its task ends early, because the store panics say.
struct PrefetchTask {
    store: Guard,
    name: CounterId,
    is_over: bool,
}

impl PrefetchTask {
    /// And those after it, as long as somebody needs more than what came.
    async fn make(mut self, mut take: Take) {
        let guard = Arc::clone(&self.store.0);
        loop {
            let sent_us = guard.clock.now_us();
            let charge = Charge::new(take.rule, take.counter.clone(), take.cost);
            let reply = self.store.ask_upstream(Request::new(charge, true).into());
            let batch = deadline::within(reply, guard.deadline, guard.deadline).await;
            let said = match batch.map(Batch::into_first) {
                Ok(Some(Request { outcome: Ok(fits), charges, .. })) => {
                    charges.first().cloned().map(|charge| (charge, fits)).ok_or_else(StoreError::no_answer)
                }
                Ok(None) => Err(StoreError::no_answer()),
                Ok(Some(Request { outcome: Err(error), .. })) | Err(error) => Err(error),
            };
            let then = guard.batches.arrived(&take, said, sent_us, guard.clock.now_us());
            self.is_over = then.take.is_none();
            match self.store.follow(self.name, then) {
                Some(next) => take = next,
                None => return,
            }
        }
    }
}

impl Drop for PrefetchTask {
    fn drop(&mut self) {
        let guard = &self.store.0;
        if !self.is_over {
            guard.batches.given_up(self.name);
        }
        if guard.batches.task_ended() {
            guard.all_taken.notify_waiters();
        }
    }
}

impl GuardInner {
    /// All that was taken and not spent, as much at a time as is refunded in one call.
    fn unspent(&self) -> Vec<Charges> {
        const AT_ONCE: usize = 256;
        let charges = self.batches.drain(self.clock.now_us());
        let together = |charges: &[Charge]| {
            let mut all = Charges::default();
            for charge in charges {
                all.push(charge.clone());
            }
            all
        };
        charges.chunks(AT_ONCE).map(together).collect()
    }

    /// Awaits a refund in the background. After an error it stays charged.
    fn finish_refund(&self, refund: Reply<Result<u64, StoreError>>) {
        if let Reply::Pending(_) = refund {
            let deadline = self.deadline;
            let _ = background::spawn(async move { deadline::answer(refund, deadline).await });
        }
    }
}

impl Drop for GuardInner {
    fn drop(&mut self) {
        for charges in self.unspent() {
            self.finish_refund(self.store.refund(charges));
        }
    }
}
