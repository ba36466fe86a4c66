//! A caller's ticket for the result of a batch entry.

use std::{
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use redis::Value;
use tokio::{runtime::Handle, time::sleep};

use super::{
    entry::BatchEntry,
    result::{CallerResult, SendError},
};
use crate::{backend::QueryTag, store::Charge};

/// One caller's claim to a part of an entry's result. Dropping it earlier cancels that caller.
#[derive(Debug)]
pub(crate) struct BatchTicket {
    /// `None` after [`BatchTicket::take_entry`].
    pub(super) entry: Option<Arc<BatchEntry>>,
    /// Index among the entry's callers.
    index: u32,
    is_done: bool,
    /// See [`BatchTicket::time_out_elsewhere`].
    has_own_timeout: bool,
}

impl BatchTicket {
    pub(super) fn new(entry: Arc<BatchEntry>, index: u32) -> Self {
        Self { entry: Some(entry), index, is_done: false, has_own_timeout: false }
    }

    /// Charge of an entry on one counter.
    pub(crate) fn charge(&self) -> Option<&Charge> {
        self.entry.as_ref()?.charge()
    }

    pub(crate) fn tag(&self) -> Option<QueryTag> {
        self.entry.as_ref()?.tag()
    }

    /// The time since the first caller of an entry without a tag arrived.
    pub(crate) fn waited(&self) -> Option<Duration> {
        self.entry.as_ref()?.began().map(|began| began.elapsed())
    }

    /// Enforces the deadline of a caller that is polled on another runtime than the queue's.
    ///
    /// The queue's runtime may stand still, and with it the task that times callers out.
    #[cold]
    pub(crate) fn time_out_elsewhere(&mut self, deadline: Duration) {
        let (Some(entry), Ok(here)) = (&self.entry, Handle::try_current()) else { return };
        if self.has_own_timeout || entry.runtime.is_none_or(|runtime| runtime == here.id()) {
            return;
        }
        self.has_own_timeout = true;
        let since_ms = entry.lock().all.get(self.index as usize).map(|caller| caller.since_ms);
        let (Some(since_ms), entry) = (since_ms, Arc::clone(entry)) else { return };
        here.spawn(async move {
            sleep(deadline).await;
            entry.time_out(since_ms);
        });
    }

    /// Takes the entry once its result has been delivered.
    pub(crate) fn take_entry(&mut self) -> Option<Arc<BatchEntry>> {
        self.entry.take_if(|_| self.is_done)
    }

    /// Polls for the result and maps it. `None` if the caller has timed out.
    #[inline(always)]
    #[allow(clippy::inline_always)] // or the mapped result is copied from frame to frame
    pub(crate) fn poll_result<T>(
        &mut self,
        context: &mut Context<'_>,
        map: impl FnOnce(&BatchEntry, CallerResult<'_>) -> T,
    ) -> Poll<Option<T>> {
        let Some(entry) = &self.entry else { return Poll::Ready(None) };
        let index = self.index as usize;
        let mut result = entry.result(index);
        if result.is_none() {
            // Dropped after the lock: the last waker of a task may drop another ticket of this entry.
            let mut waker = context.waker().clone();
            let mut callers = entry.lock();
            if index < callers.timed_out {
                result = Some(None);
            } else if let Some(caller) = callers.all.get_mut(index) {
                mem::swap(&mut caller.waker, &mut waker);
            } else {
                result = entry.result(index); // it was set meanwhile
            }
        }
        result.map_or(Poll::Pending, |result| {
            self.is_done = true;
            Poll::Ready(result.map(|result| map(entry, result)))
        })
    }
}

impl Future for BatchTicket {
    /// `None` if the caller has timed out.
    type Output = Option<Result<Value, SendError>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_result(context, |entry, result| result.reply(entry.charge()))
    }
}

impl Drop for BatchTicket {
    fn drop(&mut self) {
        if !self.is_done
            && let Some(entry) = &self.entry
            && let Some(caller) = entry.lock().all.get_mut(self.index as usize)
        {
            caller.is_cancelled = true;
        }
    }
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use std::{
        sync::Mutex,
        task::{Wake, Waker},
    };

    use super::*;
    use crate::{
        CounterName, Key, Rule,
        redis::batch::{entry::EntryCaller, queue::BatchQueue},
    };

    /// The waker of a task that owns a ticket, as in an executor whose wakers own their tasks.
    struct Task(#[allow(dead_code)] Mutex<Option<BatchTicket>>);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }

    #[test]
    fn a_waker_that_drops_a_ticket_of_the_same_entry_does_not_lock_it_twice() {
        const RULE: Rule = Rule::new("item", 2, Duration::from_secs(60));
        let charge = Charge::new(RULE, CounterName::new("", &RULE, &Key::new(1)), 1);
        let (mut ticket, _) = BatchQueue::default().add(charge.into(), true, 0, None, Waker::noop());
        let entry = Arc::clone(ticket.entry.as_ref().unwrap());
        let index = entry.join(EntryCaller::new(Waker::noop(), 0));
        let other = Task(Mutex::new(Some(BatchTicket::new(Arc::clone(&entry), index))));
        {
            let waker = Waker::from(Arc::new(other));
            assert!(Pin::new(&mut ticket).poll(&mut Context::from_waker(&waker)).is_pending());
        }
        // The entry has the last waker of the other task: this poll drops it, and the other ticket.
        assert!(Pin::new(&mut ticket).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert!(entry.lock().all[index as usize].is_cancelled);
    }
}
