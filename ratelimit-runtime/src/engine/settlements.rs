//! Settlements in flight, by counter.

use std::{
    collections::{BTreeSet, HashMap, hash_map::Entry},
    hash::BuildHasherDefault,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use smallvec::SmallVec;
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

/// Settlements in flight.
#[derive(Debug, Default)]
struct InFlight {
    by_counter: HashMap<CounterId, InFlightOfCounter, BuildHasherDefault<IdentityHasher>>,
    /// The number of the next settlement.
    next: u64,
}

/// The settlements of one counter: at least one.
#[derive(Debug, Default)]
struct InFlightOfCounter {
    numbers: BTreeSet<u64>,
    /// The smallest number, for those who wait. Dropped when there is none.
    oldest: Sender<u64>,
}

/// Settlements in flight. A call waits for those of its counters.
#[derive(Debug)]
pub(crate) struct Settlements {
    in_flight: Mutex<InFlight>,
    /// The number of counters, for a check without the lock.
    count: AtomicUsize,
    /// True once the limiter is closed. Its receivers are what is repeated, and refunds in the background.
    closed: Sender<bool>,
    turns: Semaphore,
}

impl Default for Settlements {
    fn default() -> Self {
        Self {
            in_flight: Mutex::default(),
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

    /// Begins a settlement of these counters. It lasts until [`Settlements::end`]. Returns its number.
    pub(super) fn begin(&self, counters: &[CounterId]) -> u64 {
        let mut in_flight = self.lock();
        let number = in_flight.next;
        in_flight.next += 1;
        for counter in counters {
            let new = || InFlightOfCounter { numbers: BTreeSet::new(), oldest: Sender::new(number) };
            in_flight.by_counter.entry(*counter).or_insert_with(new).numbers.insert(number);
        }
        self.count.store(in_flight.by_counter.len(), Ordering::Release);
        number
    }

    /// Ends a settlement that [`Settlements::begin`] began.
    pub(super) fn end(&self, counters: &[CounterId], number: u64) {
        let mut in_flight = self.lock();
        let end_of = |counter| {
            let Entry::Occupied(mut entry) = in_flight.by_counter.entry(counter) else { return None };
            entry.get_mut().numbers.remove(&number);
            match entry.get().numbers.first() {
                Some(oldest) => Some((entry.get().oldest.clone(), *oldest)),
                None => Some((entry.remove().oldest, u64::MAX)),
            }
        };
        let ended: SmallVec<[_; 1]> = counters.iter().copied().filter_map(end_of).collect();
        self.count.store(in_flight.by_counter.len(), Ordering::Release);
        drop(in_flight); // a waker may run anything
        for (sender, oldest) in ended {
            sender.send_if_modified(|before| {
                let is_later = *before < oldest;
                *before = oldest.max(*before);
                is_later
            });
        }
    }

    /// The settlements in flight of these counters. `None` if there are none.
    pub(crate) fn for_charges(&self, charges: &[Charge]) -> Option<UntilDone> {
        if self.is_empty() {
            return None;
        }
        let in_flight = self.lock();
        let counters = charges.iter().filter_map(|charge| in_flight.by_counter.get(&charge.counter.id()));
        let awaited: Vec<_> = counters.map(|counter| counter.oldest.subscribe()).collect();
        (!awaited.is_empty()).then_some(UntilDone { awaited, until: in_flight.next })
    }

    /// True if a settlement of this counter is in flight.
    #[inline]
    pub(crate) fn has(&self, counter: CounterId) -> bool {
        !self.is_empty() && self.is_in_flight(counter)
    }

    #[cold]
    fn is_in_flight(&self, counter: CounterId) -> bool {
        self.lock().by_counter.contains_key(&counter)
    }

    /// Waits for all settlements, and for refunds in the background, for at most the deadline. What is repeated then is
    /// tried until that time. A repeat that begins later is tried for one deadline.
    pub(crate) async fn close(&self, deadline: Duration) {
        self.closed.send_replace(true);
        let in_flight = {
            let in_flight = self.lock();
            let awaited = in_flight.by_counter.values().map(|counter| counter.oldest.subscribe()).collect();
            UntilDone { awaited, until: in_flight.next }
        };
        if in_flight.awaited.is_empty() && self.closed.receiver_count() == 0 {
            return;
        }
        let all_done = async {
            in_flight.done().await;
            self.closed.closed().await;
        };
        let _ = timeout(deadline, all_done).await;
    }

    /// The end of the limiter, for a refund or a settlement in the background. [`Settlements::close`] waits until this
    /// is dropped.
    pub(super) fn closing(&self) -> Closing {
        Closing(self.closed.subscribe())
    }

    /// The turn of something that is repeated. It ends when this is dropped.
    pub(super) async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        self.turns.acquire().await.ok()
    }

    fn lock(&self) -> MutexGuard<'_, InFlight> {
        self.in_flight.lock().unwrap_or_else(PoisonError::into_inner)
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
pub(crate) struct UntilDone {
    /// The oldest settlement of each counter.
    awaited: Vec<Receiver<u64>>,
    /// The number of the first settlement that is not awaited.
    until: u64,
}

impl UntilDone {
    pub(crate) async fn done(self) {
        for mut oldest in self.awaited {
            let _ = oldest.wait_for(|oldest| *oldest >= self.until).await; // an error means that there are none
        }
    }
}

pub(super) fn lease_of(charge: &Charge) -> Duration {
    charge.hold.map_or(Duration::ZERO, |hold| hold.lease)
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Waker},
    };

    use super::*;
    use crate::{CounterName, Key, Rule};

    /// Calls of other counters take the fast path meanwhile.
    #[test]
    fn a_settlement_is_in_flight_for_its_own_counters() {
        let settlements = Settlements::default();
        let [one, other, third] = [1, 2, 3].map(|id| CounterId(id, id));
        let are_in_flight = || [one, other, third].map(|counter| settlements.has(counter));
        let first = settlements.begin(&[one, other]);
        let second = settlements.begin(&[one]);
        assert_eq!(are_in_flight(), [true, true, false]);
        settlements.end(&[one, other], first);
        assert_eq!(are_in_flight(), [true, false, false]);
        settlements.end(&[one], second);
        assert_eq!(are_in_flight(), [false; 3]);
        assert!(settlements.is_empty());
    }

    /// A call waits for those that were in flight when it came, in whatever order they end, and for no later ones.
    #[test]
    fn a_call_waits_for_earlier_settlements() {
        let (settlements, rule) = (Settlements::default(), Rule::new("item", 1, Duration::from_secs(1)));
        let charges = [1, 2].map(|key| Charge::new(rule, CounterName::new("", &rule, &Key::new(key)), 1));
        let [one, other] = charges.each_ref().map(|charge| charge.counter.id());
        let [first, second, third] = [&[one, other][..], &[one], &[one]].map(|counters| settlements.begin(counters));
        let mut call = pin!(settlements.for_charges(&charges).unwrap().done());
        let mut is_done = || call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        let later = settlements.begin(&[one, other]);
        for (ended, counters) in [(third, &[one][..]), (first, &[one, other]), (second, &[one])] {
            assert!(!is_done());
            settlements.end(counters, ended);
        }
        assert!(is_done());
        settlements.end(&[one, other], later);
        assert!(settlements.is_empty() && settlements.for_charges(&charges).is_none());
    }
}
