//! Settlements in flight, by counter.

use std::{
    collections::HashMap,
    hash::BuildHasherDefault,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{
        Semaphore, SemaphorePermit,
        watch::{Receiver, Sender},
    },
    time::timeout,
};

use crate::{
    counter::{CounterId, IdentityHasher},
    store::Charge,
};

/// The first pause before a retry.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause before a retry.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// The most repeats at a time: they share one connection, and one that gets no reply in time is lost.
const MOST_REPEATS: usize = 64;

/// Settlements in flight by counter. One has ended when its sender is dropped.
type InFlight = HashMap<CounterId, Vec<Receiver<()>>, BuildHasherDefault<IdentityHasher>>;

/// Settlements in flight. A call waits for those of its counters.
#[derive(Debug)]
pub(crate) struct Settlements {
    by_counter: Mutex<InFlight>,
    /// The number of counters, for a check without the lock.
    count: AtomicUsize,
    /// True once the limiter is closed. Its receivers are the settlements and refunds that are repeated.
    closed: Sender<bool>,
    turns: Semaphore,
}

impl Default for Settlements {
    fn default() -> Self {
        Self {
            by_counter: Mutex::default(),
            count: AtomicUsize::default(),
            closed: Sender::default(),
            turns: Semaphore::new(MOST_REPEATS),
        }
    }
}

impl Settlements {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Begins a settlement of these counters. It lasts until [`Settlements::end`].
    pub(super) fn begin(&self, counters: &[CounterId]) -> Sender<()> {
        let done = Sender::new(());
        let mut in_flight = self.lock();
        for counter in counters {
            in_flight.entry(*counter).or_default().push(done.subscribe());
        }
        self.count.store(in_flight.len(), Ordering::Release);
        done
    }

    /// Ends a settlement that [`Settlements::begin`] began.
    pub(super) fn end(&self, counters: &[CounterId], done: &Sender<()>) {
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
        let receivers = charges.iter().filter_map(|charge| in_flight.get(&charge.counter.id()));
        let receivers: Vec<_> = receivers.flatten().cloned().collect();
        (!receivers.is_empty()).then_some(UntilDone(receivers))
    }

    /// True if a settlement of this counter is in flight.
    #[inline]
    pub(crate) fn has(&self, counter: CounterId) -> bool {
        !self.is_empty() && self.is_in_flight(counter)
    }

    #[cold]
    fn is_in_flight(&self, counter: CounterId) -> bool {
        self.lock().contains_key(&counter)
    }

    /// Waits for all settlements, for at most the deadline. What is repeated then is tried until that time. A
    /// repeat that begins later is tried for one deadline.
    pub(crate) async fn close(&self, deadline: Duration) {
        self.closed.send_replace(true);
        let in_flight = UntilDone(self.lock().values().flatten().cloned().collect());
        if in_flight.0.is_empty() && self.closed.receiver_count() == 0 {
            return;
        }
        let all_done = async {
            in_flight.done().await;
            self.closed.closed().await;
        };
        let _ = timeout(deadline, all_done).await;
    }

    /// The end of the limiter, for something that is repeated. [`Settlements::close`] waits until this is dropped.
    pub(super) fn closing(&self) -> Closing {
        Closing(self.closed.subscribe())
    }

    /// The turn of something that is repeated. It ends when this is dropped.
    pub(super) async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        self.turns.acquire().await.ok()
    }

    fn lock(&self) -> MutexGuard<'_, InFlight> {
        self.by_counter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See [`Settlements::closing`].
pub(super) struct Closing(Receiver<bool>);

impl Closing {
    /// Waits until the limiter is closed.
    pub(super) async fn closed(&mut self) {
        let _ = self.0.wait_for(|is_closed| *is_closed).await;
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

#[cfg(all(test, not(model_check)))]
mod tests {
    use super::*;

    /// Calls of other counters take the fast path meanwhile.
    #[test]
    fn a_settlement_is_in_flight_for_its_own_counters() {
        let settlements = Settlements::default();
        let [one, other, third] = [1, 2, 3].map(|id| CounterId(id, id));
        let are_in_flight = || [one, other, third].map(|counter| settlements.has(counter));
        let first = settlements.begin(&[one, other]);
        let second = settlements.begin(&[one]);
        assert_eq!(are_in_flight(), [true, true, false]);
        settlements.end(&[one, other], &first);
        assert_eq!(are_in_flight(), [true, false, false]);
        settlements.end(&[one], &second);
        assert_eq!(are_in_flight(), [false; 3]);
        assert!(settlements.is_empty());
    }
}
