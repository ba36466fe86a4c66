//! Settlements in flight, by counter. A caller who asks for a counter waits for those of it.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::watch::{Receiver, Sender},
    time::Instant,
};

use crate::{CounterName, store::Charge};

/// Settlements that are under way: who asks for a counter waits for those of it.
#[derive(Debug, Default)]
pub(crate) struct Settlements {
    /// Each ends with its sender.
    by_counter: Mutex<HashMap<CounterName, Vec<Receiver<()>>>>,
    /// How many counters there are, for those who only want to know that there are none.
    count: AtomicUsize,
}

impl Settlements {
    #[inline]
    pub(crate) fn are_none(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Begins a settlement of these counters. It lasts until [`Settlements::end`].
    pub(super) fn begin(&self, counters: &[CounterName]) -> Sender<()> {
        let done = Sender::new(());
        let mut under_way = self.lock();
        for counter in counters {
            under_way.entry(counter.clone()).or_default().push(done.subscribe());
        }
        self.count.store(under_way.len(), Ordering::Release);
        done
    }

    /// Ends a settlement that [`Settlements::begin`] began.
    pub(super) fn end(&self, counters: &[CounterName], done: &Sender<()>) {
        let own = done.subscribe();
        let mut under_way = self.lock();
        for counter in counters {
            if let Some(these) = under_way.get_mut(counter) {
                these.retain(|other| !other.same_channel(&own));
                if these.is_empty() {
                    under_way.remove(counter);
                }
            }
        }
        self.count.store(under_way.len(), Ordering::Release);
    }

    /// Those of these counters that are under way, if any are.
    pub(crate) fn of(&self, charges: &[Charge]) -> Option<UntilDone> {
        if self.are_none() {
            return None;
        }
        let under_way = self.lock();
        let these = charges.iter().filter_map(|charge| under_way.get(&charge.counter));
        let these: Vec<_> = these.flatten().cloned().collect();
        (!these.is_empty()).then_some(UntilDone(these))
    }

    /// All that are under way.
    pub(crate) fn all(&self) -> UntilDone {
        UntilDone(self.lock().values().flatten().cloned().collect())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<CounterName, Vec<Receiver<()>>>> {
        self.by_counter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Settlements that are waited for. Those that begin later are not among them.
#[derive(Debug)]
pub(crate) struct UntilDone(Vec<Receiver<()>>);

impl UntilDone {
    pub(crate) async fn done(self) {
        for mut settlement in self.0 {
            let _ = settlement.changed().await; // an error, when its sender is gone
        }
    }
}

pub(super) fn lease_of(charge: &Charge) -> Duration {
    charge.hold.map_or(Duration::ZERO, |hold| hold.lease)
}

/// A moment that much later, or in a hundred years.
pub(super) fn after(time: Duration) -> Instant {
    const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    Instant::now() + time.min(LONGEST)
}
