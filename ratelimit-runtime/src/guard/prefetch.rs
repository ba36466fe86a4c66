//! Prefetching: spends quota that was charged ahead, prefetches more in the background, and refunds
//! the rest.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use tokio::{
    sync::oneshot,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

use super::{
    core::{Guard, GuardInner},
    quota::{FollowUp, Prefetch, QuotaAnswer, SpendResult},
    upstream::LONGEST_DELAY,
};
use crate::{
    Rule,
    background::{self, FinishOnDrop},
    clock::after,
    counter::CounterId,
    deadline,
    decision::Outcome,
    observe,
    store::{Batch, Charge, Charges, Reply, Request, StoreError},
};

/// The pause before the second attempt to refund a late prefetch. It doubles each time.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

impl Guard {
    /// Refunds a cost that was spent from prefetched quota: to the quota, or else to the store.
    pub(crate) fn refund_spent(&self, id: CounterId, cost: u64, receipt: [u64; 2]) -> Reply<Result<u64, StoreError>> {
        if self.put_back(id, None, cost, receipt) {
            return Reply::Ready(Ok(cost));
        }
        match self.0.batches.charge(id, receipt, cost) {
            Some(charge) => self.refund_upstream(charge.into()),
            None => Reply::Ready(Ok(0)), // from an earlier window, or from before a reset
        }
    }

    /// The rule of a prefetched permit, whose receipt has no prefix.
    pub(crate) fn rule_of(&self, id: CounterId) -> Option<Rule> {
        self.0.batches.rule_of(id)
    }

    /// Refunds the unspent quota, and prefetches no more. Returns how many permits were refunded.
    pub(crate) async fn close(&self) -> u64 {
        let guard = &self.0;
        guard.batches.close();
        let idle = async {
            loop {
                let idle = guard.prefetches_done.notified(); // registered before the check
                if !guard.batches.has_tasks() {
                    return;
                }
                idle.await;
            }
        };
        let _ = timeout(guard.deadline, idle).await;
        let mut refunded = 0;
        for charges in guard.unspent() {
            let permits: u64 = charges.iter().map(|charge| charge.cost).sum();
            let reply = deadline::answer(self.refund_upstream(charges), guard.deadline).await;
            match reply {
                Ok(permits) => refunded += permits,
                Err(error) => {
                    observe::shielded(|| {
                        tracing::warn!(permits, %error, "unspent prefetched permits stay charged until their window ends");
                    });
                }
            }
        }
        refunded
    }

    /// Decides on one charge of a rule with prefetch.
    pub(super) fn decide_prefetched(&self, mut request: Request) -> Reply<Batch> {
        let (guard, now_us) = (&self.0, self.0.clock.now_us());
        let charge = &mut request.charges[0];
        match guard.batches.spend(charge.counter.id(), &charge.rule, charge.cost, now_us) {
            Ok((outcome, prefetch)) => {
                if let Some(prefetch) = prefetch {
                    self.start_prefetch(prefetch);
                }
                write_spent(charge, outcome);
                request.outcome = Ok(true);
                return Reply::Ready(request.into());
            }
            Err(0) if guard.refuse_from_cache(&mut request, now_us) => return Reply::Ready(request.into()),
            Err(_) => {}
        }
        let store = self.clone();
        Reply::Pending(Box::pin(async move {
            // To open the connection for prefetches may take longer than the deadline. Meanwhile the caller
            // charges its cost alone, by a connection of its own runtime.
            #[cfg(feature = "redis")]
            if !store.has_prepared(&request.charges[0].counter).await {
                return store.ask_upstream(request.into()).answer().await;
            }
            let charge = &mut request.charges[0];
            let answer = match store.spend_or_wait(charge) {
                SpendResult::Spent(outcome) => QuotaAnswer::Spent(charge.cost, outcome),
                SpendResult::Waits(answer) => {
                    QuotaWaiter { guard: &store, id: charge.counter.id(), answer, is_answered: false }.answer().await
                }
                SpendResult::AskUpstream => return store.ask_upstream(request.into()).answer().await,
            };
            request.outcome = match answer {
                QuotaAnswer::Spent(_, outcome) => {
                    write_spent(charge, outcome);
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

    /// Peeks at one charge of a rule with prefetch: quota that is left here can be granted too.
    pub(super) fn peek_prefetched(&self, request: Request) -> Reply<Batch> {
        let guard = Arc::clone(&self.0);
        self.0.store.decide(request.into()).map(move |mut batch| {
            for request in batch.iter_mut().filter(|request| request.outcome.is_ok()) {
                for Charge { decision, counter, rule, cost, .. } in &mut *request.charges {
                    let now_us = guard.clock.now_us();
                    decision.remaining =
                        guard.batches.remaining(counter.id(), rule.count(), decision.remaining, now_us);
                    if *cost <= decision.remaining {
                        decision.retry_after_ms = u64::MAX;
                        request.outcome = Ok(true);
                    }
                }
            }
            batch
        })
    }

    /// Spends quota, or joins the callers who wait for a prefetch, and starts one if needed.
    fn spend_or_wait(&self, charge: &Charge) -> SpendResult {
        let Charge { counter, rule, cost, .. } = charge;
        let (result, follow_up) = self.0.batches.spend_or_wait(counter, rule, *cost, self.0.clock.now_us());
        if let Some(prefetch) = self.follow(counter.id(), follow_up) {
            self.start_prefetch(prefetch);
        }
        result
    }

    /// Puts a cost back into the quota. Returns false if that is not possible, see [`QuotaBatches::put_back`].
    pub(super) fn put_back(&self, id: CounterId, count: Option<u64>, cost: u64, receipt: [u64; 2]) -> bool {
        let follow_up = self.0.batches.put_back(id, count, receipt, cost, self.0.clock.now_us());
        let is_put_back = follow_up.is_some();
        self.follow(id, follow_up.unwrap_or_default());
        is_put_back
    }

    /// Refunds, in the background, a cost that was spent for a caller who has left. Others may wait for it.
    fn return_spent(&self, id: CounterId, cost: u64, outcome: Outcome) {
        self.refund_for_others(id, self.refund_spent(id, cost, outcome.receipt));
    }

    /// Awaits a refund in the background, see [`GuardInner::refund_in_background`]. Then others may ask again.
    fn refund_for_others(&self, id: CounterId, refund: Reply<Result<u64, StoreError>>) -> Option<JoinHandle<()>> {
        let refunds = self.0.refunds.clone();
        self.0.refund_in_background(refund.map(move |refunded| {
            refunds.refunded(id, false);
            refunded
        }))
    }

    /// Does what must wait until the lock is free: answers callers and refunds. Returns the next
    /// prefetch, if any.
    fn follow(&self, id: CounterId, FollowUp { answers, prefetch, refund }: FollowUp) -> Option<Prefetch> {
        for (caller, answer) in answers {
            if let Err(QuotaAnswer::Spent(cost, outcome)) = caller.send(answer) {
                self.return_spent(id, cost, outcome);
            }
        }
        if let Some(charge) = refund {
            self.refund_for_others(id, self.refund_upstream(charge.into()));
        }
        prefetch
    }

    /// Runs a prefetch in the background, because its callers may leave, and may be on any runtime.
    pub(super) fn start_prefetch(&self, prefetch: Prefetch) {
        let task = PrefetchTask { guard: self.clone(), id: prefetch.id, is_done: false };
        let _ = background::spawn(task.run(prefetch)); // if that fails, the drop of the task aborts it
    }
}

/// Writes the outcome of spending quota into the charge, as a store does.
fn write_spent(charge: &mut Charge, outcome: Outcome) {
    charge.decision = outcome.decision(charge.rule.limit());
    charge.receipt = outcome.receipt;
}

/// A caller who waits for a prefetch. Dropped before it has read its answer, it refunds what was
/// spent for it.
struct QuotaWaiter<'a> {
    guard: &'a Guard,
    id: CounterId,
    answer: oneshot::Receiver<QuotaAnswer>,
    is_answered: bool,
}

impl QuotaWaiter<'_> {
    async fn answer(mut self) -> QuotaAnswer {
        let aborted = || StoreError::unavailable("the prefetch of permits from the store was aborted");
        let answer = (&mut self.answer).await.unwrap_or_else(|_| QuotaAnswer::Failed(aborted()));
        self.is_answered = true;
        answer
    }
}

impl Drop for QuotaWaiter<'_> {
    fn drop(&mut self) {
        self.answer.close();
        match self.answer.try_recv() {
            Ok(QuotaAnswer::Spent(cost, outcome)) => self.guard.return_spent(self.id, cost, outcome),
            _ if self.is_answered => {}
            _ => self.guard.0.refunds.refunded(self.id, false), // its permits on the way are for others
        }
    }
}

/// A task that runs prefetches of one counter. Dropped early, because the store panics for example,
/// it aborts its prefetch. The last task to end wakes [`Guard::close`].
struct PrefetchTask {
    guard: Guard,
    id: CounterId,
    is_done: bool,
}

impl PrefetchTask {
    /// Runs a prefetch, and further ones as long as a waiting caller needs more than has arrived.
    async fn run(mut self, mut prefetch: Prefetch) {
        let guard = Arc::clone(&self.guard.0);
        loop {
            if let Some(charge) = prefetch.refund.take()
                && let Some(refund) = self.guard.refund_for_others(self.id, self.guard.refund_upstream(charge.into()))
            {
                let _ = timeout(guard.deadline / 2, refund).await; // it goes on after that
            }
            let sent_us = guard.clock.now_us();
            let charge = Charge::new(prefetch.rule, prefetch.counter.clone(), prefetch.cost);
            let result = self.ask(charge).await;
            let follow_up = guard.batches.finish_prefetch(&prefetch, result, sent_us, guard.clock.now_us());
            self.is_done = follow_up.prefetch.is_none();
            match self.guard.follow(self.id, follow_up) {
                Some(next) => prefetch = next,
                None => return,
            }
        }
    }

    /// Asks the store for permits. Returns the charge, and whether it was made. Without an answer at the deadline, it
    /// is refunded when a later answer says that it was made.
    async fn ask(&self, charge: Charge) -> Result<(Charge, bool), StoreError> {
        let (guard, id, deadline) = (&self.guard.0, self.id, self.guard.0.deadline);
        let end = after(deadline.saturating_add(guard.store.longest_delay()));
        let reply = self.guard.ask_upstream(Request::new(charge, true).into());
        let (sender, mut answer) = oneshot::channel();
        guard.batches.count_task(true); // this task still counts, so `close` has not returned
        let in_flight = PrefetchInFlight(Arc::downgrade(guard));
        let asked = FinishOnDrop::new(async move {
            let result = deadline::within(reply, end, deadline).await;
            if let Err(Ok((charge, true))) = sender.send(result.and_then(first_charge)) {
                in_flight.refund(id, charge, deadline).await;
            }
        });
        let _ = timeout(deadline, asked).await;
        answer.close(); // what arrives now is refunded
        answer.try_recv().unwrap_or_else(|_| Err(StoreError::late(deadline)))
    }
}

/// A request for a prefetch, which [`Guard::close`] waits for. It does not keep the guard, whose drop refunds what is
/// left.
struct PrefetchInFlight(Weak<GuardInner>);

impl PrefetchInFlight {
    /// Refunds what a late reply says was charged. Others may then ask again. The server may be known to be away until
    /// it has answered a probe, so this tries again while nothing was sent.
    async fn refund(&self, id: CounterId, charge: Charge, deadline: Duration) {
        let (end, mut pause) = (after(LONGEST_DELAY), FIRST_PAUSE);
        while let Some(guard) = self.0.upgrade().map(Guard) {
            let (refunds, refund) = (guard.refunds().clone(), guard.refund_upstream(charge.clone().into()));
            drop(guard);
            match deadline::answer(refund, deadline).await {
                Err(error) if error.has_no_effect() && Instant::now() < end => {}
                _ => return refunds.refunded(id, false),
            }
            sleep(pause).await;
            pause *= 2;
        }
    }
}

impl Drop for PrefetchInFlight {
    fn drop(&mut self) {
        if let Some(guard) = self.0.upgrade() {
            guard.task_ended();
        }
    }
}

/// The first charge of an answer, and whether it was made.
fn first_charge(batch: Batch) -> Result<(Charge, bool), StoreError> {
    let Request { charges, outcome, .. } = batch.into_first().ok_or_else(StoreError::no_answer)?;
    let (charge, is_made) = (charges.first().cloned(), outcome?);
    Ok((charge.ok_or_else(StoreError::no_answer)?, is_made))
}

impl Drop for PrefetchTask {
    fn drop(&mut self) {
        let guard = &self.guard.0;
        if !self.is_done {
            guard.batches.abort_prefetch(self.id);
        }
        guard.task_ended();
    }
}

impl GuardInner {
    fn task_ended(&self) {
        if self.batches.task_ended() {
            self.prefetches_done.notify_waiters();
        }
    }

    /// The unspent quota, in lists that are each refunded in one call to the store.
    fn unspent(&self) -> Vec<Charges> {
        const MAX_CHARGES: usize = 256;
        let charges = self.batches.drain(self.clock.now_us());
        let to_list = |charges: &[Charge]| {
            let mut all = Charges::default();
            for charge in charges {
                all.push(charge.clone());
            }
            all
        };
        charges.chunks(MAX_CHARGES).map(to_list).collect()
    }

    /// Awaits a refund in the background, until the deadline. After an error the cost stays charged. Returns the
    /// task if there is one.
    fn refund_in_background(&self, refund: Reply<Result<u64, StoreError>>) -> Option<JoinHandle<()>> {
        let Reply::Pending(_) = refund else { return None };
        let deadline = self.deadline;
        background::spawn(async move { _ = deadline::answer(refund, deadline).await }).ok()
    }
}

/// The last handle of the limiter is gone: refunds the unspent quota in the background.
impl Drop for GuardInner {
    fn drop(&mut self) {
        for charges in self.unspent() {
            self.refund_in_background(self.store.refund(charges));
        }
    }
}
