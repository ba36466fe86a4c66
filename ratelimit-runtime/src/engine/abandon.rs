//! Clean-up after a caller who leaves while the store decides on a charge that is settled later.

use std::{
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    task::JoinHandle,
    time::{Instant, sleep_until, timeout_at},
};

use super::{
    core::{EngineRef, Origin},
    request::LEASE,
    settlements::{FIRST_PAUSE, LONGEST_PAUSE, lease_of},
};
use crate::{
    background,
    clock::after,
    deadline,
    store::{Batch, Charge, Charges, Reply, Request},
};

/// Number of replies that there is no such hold, or that something is misconfigured, after which clean-up relies on
/// the answer to the caller alone.
const MOST_ABSENCES: u32 = 3;

type BatchFuture = Pin<Box<dyn Future<Output = Batch> + Send>>;

/// The answer of a store that decides on charges that are settled later. If this is dropped before
/// the answer arrives, a background task awaits the answer and refunds what was granted: the holds, and
/// the other charges if one of them is settled by a refund, or if they lie in several slots of a cluster. If the
/// answer is lost, holds are cleaned up as well, and other charges stay.
pub(crate) struct AbandonOnDrop {
    engine: EngineRef,
    /// The charges that are to be held.
    held: Charges,
    answer: Option<BatchFuture>,
    /// Before the first poll, nothing has been sent.
    is_polled: bool,
}

impl AbandonOnDrop {
    /// Wraps the reply, if some charge is settled later. `held`: the ones to be held.
    pub(crate) fn around(engine: &EngineRef, held: Option<Charges>, reply: Reply<Batch>) -> Reply<Batch> {
        match (held, reply) {
            (Some(held), Reply::Pending(answer)) => {
                let (engine, answer) = (engine.clone(), Some(answer));
                Reply::Pending(Box::pin(Self { engine, held, answer, is_polled: false }))
            }
            (_, reply) => reply,
        }
    }
}

impl Future for AbandonOnDrop {
    type Output = Batch;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Batch> {
        self.is_polled = true;
        let Some(answer) = &mut self.answer else { panic!("`AbandonOnDrop` polled after it was done") };
        let polled = answer.as_mut().poll(context);
        if let Poll::Ready(batch) = &polled {
            self.answer = None;
            if is_granted(batch).is_none() {
                let _ = background::spawn(clean_up(self.engine.clone(), mem::take(&mut self.held), None));
            }
        }
        polled
    }
}

impl Drop for AbandonOnDrop {
    fn drop(&mut self) {
        if let Some(answer) = self.answer.take()
            && self.is_polled
        {
            let _ = background::spawn(clean_up(self.engine.clone(), mem::take(&mut self.held), Some(answer)));
        }
    }
}

/// The charges that are to be held. `None` if no charge is settled later.
pub(crate) fn held_charges(charges: &Charges) -> Option<Charges> {
    let is_settled = charges.iter().any(Charge::is_settled_later);
    is_settled.then(|| charges.clone().split(|charge| charge.hold.is_some()).0)
}

/// True if something was granted. `None` if that is unknown: an answer was lost, or is an error. A server that finds a
/// mistake half way in a script undoes nothing.
fn is_granted(batch: &Batch) -> Option<bool> {
    let granted = |request: &Request| match &request.outcome {
        Ok(is_granted) => Some(*is_granted),
        Err(error) => error.has_no_effect().then_some(false),
    };
    batch.iter().map(granted).try_fold(false, |any, granted| Some(any | granted?))
}

/// Refunds what a store may have granted to a caller who left before the answer.
///
/// Only the answer to the caller's request tells whether the hold was granted. A refund that is sent
/// later may arrive earlier, on another connection. So clean-up awaits the answer.
///
/// While the answer is late, or if it is lost, clean-up also asks the store to end the hold. It
/// stops asking when the store has ended it, or has replied [`MOST_ABSENCES`] times that there is
/// none, or that something is misconfigured. Charges that are not held are refunded by their receipts, which are in
/// the answer, if one of them is settled later, or if they lie in several slots.
async fn clean_up(engine: EngineRef, held: Charges, answer: Option<BatchFuture>) {
    // In a task of its own, as the store may panic.
    let mut answer = answer.map(|answer| AbortOnDrop(tokio::spawn(answer)));
    let longest = held.iter().map(lease_of).max().unwrap_or(LEASE);
    let end = after(if answer.is_some() { longest.max(LEASE) } else { longest });
    let (deadline, mut is_answered) = (engine.settings().deadline, false);
    let mut pause = deadline.clamp(FIRST_PAUSE, LONGEST_PAUSE);
    // Each with the number of replies that there is no such hold.
    let mut held: Vec<_> = held.into_charges().map(|charge| (charge, 0)).collect();
    loop {
        let may_ask = held.iter().any(|(_, absences)| *absences < MOST_ABSENCES);
        if let Some(AbortOnDrop(waiting)) = &mut answer {
            let until = if may_ask { end.min(after(pause)) } else { end };
            if let Ok(batch) = timeout_at(until, waiting).await {
                let batch = batch.ok();
                let granted = batch.as_ref().and_then(is_granted);
                if granted == Some(false) {
                    return;
                }
                is_answered = granted.is_some();
                let requests = batch.into_iter().filter(|_| is_answered).flat_map(Batch::into_requests);
                // Plain charges of one slot stay: a call may run although its charges were late.
                let is_refunded = |charges: &[Charge]| {
                    charges.iter().any(|charge| charge.settles)
                        || engine.guard().is_some_and(|guard| guard.are_apart(charges))
                };
                for request in requests.filter(|request| is_refunded(&request.charges)) {
                    let (_, unheld) = request.charges.split(|charge| charge.hold.is_some());
                    engine.refund_in_background(unheld, Origin::Store);
                }
                answer = None;
            }
        }
        if Instant::now() >= end || !may_ask && !is_answered || answer.is_none() && held.is_empty() {
            return;
        }
        // One by one: the store may have granted one of them after another was asked for. The charges beside the
        // holds are refunded when the answer is there.
        for (charge, absences) in mem::take(&mut held) {
            if absences >= MOST_ABSENCES && !is_answered {
                held.push((charge, absences));
                continue;
            }
            let (its_engine, refunding) = (engine.clone(), charge.clone());
            let refunded = background::in_own_task(async move {
                let refunded = its_engine.store().map(|store| store.refund(refunding.into()));
                deadline::answer(refunded.unwrap_or(Reply::Ready(Ok(1))), deadline).await
            });
            match refunded.await {
                Ok(0) if !is_answered => held.push((charge, absences + 1)),
                Ok(_) => engine.queues().changed(&charge.counter),
                Err(error) => held.push((charge, absences + u32::from(error.misconfigured))),
            }
        }
        if answer.is_none() {
            sleep_until(end.min(after(pause))).await;
        }
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
}

struct AbortOnDrop(JoinHandle<Batch>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use std::{
        future::{pending, ready},
        sync::{
            Arc,
            atomic::{AtomicU32, Ordering},
        },
    };

    use tokio::{runtime::Handle, task::yield_now};

    use super::*;
    use crate::{
        Algorithm, CounterName, Key, Limiter, Rule, Store,
        store::{Hold, StoreError},
    };

    const RULE: Rule = Rule::new("place", 1, LEASE).with_algorithm(Algorithm::Concurrent);

    /// A store where nothing is held. Counts its refunds.
    #[derive(Clone, Debug, Default)]
    struct Empty(Arc<AtomicU32>);

    impl Store for Empty {
        fn decide(&self, batch: Batch) -> Reply<Batch> {
            Reply::Ready(batch)
        }

        fn refund(&self, _: Charges) -> Reply<Result<u64, StoreError>> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Reply::Ready(Ok(0))
        }

        fn reset(&self, _: CounterName) -> Reply<Result<(), StoreError>> {
            Reply::Ready(Ok(()))
        }
    }

    /// The hold was granted, and is over by now. Or the answer is lost.
    #[tokio::test(start_paused = true)]
    async fn clean_up_ends_before_the_lease_if_the_store_has_no_such_hold() {
        let mut charge = Charge::new(RULE, CounterName::new("", &RULE, &Key::NONE), 1);
        charge.hold = Some(Hold::new(LEASE));
        let mut granted = Request::new(charge.clone(), true);
        granted.outcome = Ok(true);
        let answer: BatchFuture = Box::pin(ready(Batch::from(granted)));
        for (answer, refunds) in [(Some(answer), 1), (None, MOST_ABSENCES)] {
            let (store, began) = (Empty::default(), Instant::now());
            let engine = Limiter::with_store(store.clone()).engine_ref();
            clean_up(engine, charge.clone().into(), answer).await;
            assert_eq!(store.0.load(Ordering::Relaxed), refunds);
            assert!(began.elapsed() < LEASE, "it took {:?}", began.elapsed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn clean_up_leaves_no_task_behind_if_no_answer_comes() {
        let mut charge = Charge::new(RULE, CounterName::new("", &RULE, &Key::NONE), 1);
        charge.hold = Some(Hold::new(LEASE));
        let engine = Limiter::with_store(Empty::default()).engine_ref();
        let tasks = || Handle::current().metrics().num_alive_tasks();
        let before = tasks();
        clean_up(engine, charge.into(), Some(Box::pin(pending()))).await;
        yield_now().await;
        assert_eq!(tasks(), before);
    }
}
