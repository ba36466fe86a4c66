//! Settlements in flight, by counter.

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

/// Settlements in flight. A call waits for those of its counters.
#[derive(Debug, Default)]
pub(crate) struct Settlements {
    /// A settlement has ended when its sender is dropped.
    by_counter: Mutex<HashMap<CounterName, Vec<Receiver<()>>>>,
    /// The number of counters, for a check without the lock.
    count: AtomicUsize,
}

impl Settlements {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Begins a settlement of these counters. It lasts until [`Settlements::end`].
    pub(super) fn begin(&self, counters: &[CounterName]) -> Sender<()> {
        let done = Sender::new(());
        let mut in_flight = self.lock();
        for counter in counters {
            in_flight.entry(counter.clone()).or_default().push(done.subscribe());
        }
        self.count.store(in_flight.len(), Ordering::Release);
        done
    }

    /// Ends a settlement that [`Settlements::begin`] began.
    pub(super) fn end(&self, counters: &[CounterName], done: &Sender<()>) {
        let own = done.subscribe();
        let mut in_flight = self.lock();
        for counter in counters {
            if let Some(receivers) = in_flight.get_mut(counter) {
                receivers.retain(|other| !other.same_channel(&own));
                if receivers.is_empty() {
                    in_flight.remove(counter);
                }
            }
        }
        self.count.store(in_flight.len(), Ordering::Release);
    }

    /// The settlements in flight of these counters. `None` if there are none.
    pub(crate) fn for_charges(&self, charges: &[Charge]) -> Option<UntilDone> {
        if self.is_empty() {
            return None;
        }
        let in_flight = self.lock();
        let receivers = charges.iter().filter_map(|charge| in_flight.get(&charge.counter));
        let receivers: Vec<_> = receivers.flatten().cloned().collect();
        (!receivers.is_empty()).then_some(UntilDone(receivers))
    }

    /// All settlements in flight.
    pub(crate) fn all(&self) -> UntilDone {
        UntilDone(self.lock().values().flatten().cloned().collect())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<CounterName, Vec<Receiver<()>>>> {
        self.by_counter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Settlements to wait for. Settlements that begin later are not among them.
#[derive(Debug)]
pub(crate) struct UntilDone(Vec<Receiver<()>>);

impl UntilDone {
    pub(crate) async fn done(self) {
        for mut settlement in self.0 {
            let _ = settlement.changed().await; // an error means that its sender is dropped
        }
    }
}

pub(super) fn lease_of(charge: &Charge) -> Duration {
    charge.hold.map_or(Duration::ZERO, |hold| hold.lease)
}

/// The instant after this time, at most 100 years ahead.
pub(super) fn after(time: Duration) -> Instant {
    const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    Instant::now() + time.min(LONGEST)
}
