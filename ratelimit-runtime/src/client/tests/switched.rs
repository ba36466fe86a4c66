//! A store that tests of the client switch off and on.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
};

use futures_util::FutureExt as _;
use tokio::task::yield_now;

use crate::{
    Clock, CounterName, Store,
    memory::Memory,
    store::{Batch, Charges, Reply, StoreError},
};

/// A store in memory that may be away.
#[derive(Clone, Debug)]
pub(super) struct Switched(Arc<SwitchedState>);

#[derive(Debug)]
struct SwitchedState {
    memory: Memory,
    is_away: AtomicBool,
    /// The number of requests to decide.
    asked: AtomicUsize,
    fails_at: AtomicUsize,
    waits_at: AtomicUsize,
}

impl Switched {
    /// Its time is that of the test, or stands still.
    pub(super) fn new(clock: Clock) -> Self {
        let [fails_at, waits_at] = [0; 2].map(AtomicUsize::new);
        let (memory, is_away, asked) = (Memory::new(clock, 1_000, 0), AtomicBool::new(false), AtomicUsize::new(0));
        Self(Arc::new(SwitchedState { memory, is_away, asked, fails_at, waits_at }))
    }

    pub(super) fn is_away(&self, is_away: bool) {
        self.0.is_away.store(is_away, SeqCst);
    }

    pub(super) fn asked(&self) -> usize {
        self.0.asked.load(SeqCst)
    }

    /// The request after so many others fails.
    pub(super) fn fails_at(&self, request: usize) {
        self.0.fails_at.store(self.asked() + request, SeqCst);
    }

    /// The reply to the request after so many others is not ready at once.
    pub(super) fn waits_at(&self, request: usize) {
        self.0.waits_at.store(self.asked() + request, SeqCst);
    }

    fn outage(&self) -> Option<StoreError> {
        self.0.is_away.load(SeqCst).then(|| StoreError::unavailable("away"))
    }
}

impl Store for Switched {
    fn decide(&self, mut batch: Batch) -> Reply<Batch> {
        let number = self.0.asked.fetch_add(1, SeqCst) + 1;
        let fails = number == self.0.fails_at.load(SeqCst);
        let Some(outage) = self.outage().or_else(|| fails.then(StoreError::no_answer)) else {
            let reply = self.0.memory.decide(batch);
            let waits = number == self.0.waits_at.load(SeqCst);
            return if waits { Reply::Pending(Box::pin(yield_now().then(|()| reply.answer()))) } else { reply };
        };
        batch.iter_mut().for_each(|request| request.outcome = Err(outage.clone()));
        Reply::Ready(batch)
    }

    fn refund(&self, charges: Charges) -> Reply<Result<u64, StoreError>> {
        self.outage().map_or_else(|| self.0.memory.refund(charges), |outage| Reply::Ready(Err(outage)))
    }

    fn reset(&self, counter: CounterName) -> Reply<Result<(), StoreError>> {
        self.outage().map_or_else(|| self.0.memory.reset(counter), |outage| Reply::Ready(Err(outage)))
    }
}
