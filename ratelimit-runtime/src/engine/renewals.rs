//! Renewal of holds at a store. The holds of one counter that are due are renewed together.
//!
//! A limiter has one timetable of all its holds. A task on the background runtime sleeps until the
//! first of them is due. Holds that begin and end in the meantime wake no thread.

use std::{
    collections::{BTreeMap, BTreeSet},
    process,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{sync::Notify, time::timeout_at};

use crate::{
    background,
    counter::CounterId,
    deadline, observe,
    store::{Charge, Reply, StoreError},
};

/// The longest time between two renewals. It also limits how long a hold that a server has lost is
/// believed to be valid.
const LONGEST_INTERVAL: Duration = Duration::from_secs(10);

/// The largest number of holds in one request for renewal.
const MOST_AT_ONCE: usize = 2_500;

/// The engine whose store renews holds.
pub(super) trait Renew: Clone + Send + Sync + 'static {
    /// Extends holds of one counter by their full lease.
    fn renew(&self, charges: Vec<Charge>) -> Reply<Result<Vec<bool>, StoreError>>;

    /// The time by the limiter's clock.
    fn now(&self) -> Duration;

    fn deadline(&self) -> Duration;
}

/// A charge that is held at a store. It keeps the engine alive.
pub(super) struct HeldCharge<E> {
    engine: E,
    pub(super) charge: Charge,
    /// The time until which it is certainly held, in microseconds of the limiter's clock. 0 if it
    /// is lost.
    until_us: AtomicU64,
}

/// The id of a counter, and of a hold of it.
type Id = (CounterId, u64);

impl<E: Renew> HeldCharge<E> {
    /// `sent_at`: time of the request that was granted.
    pub(super) fn new(engine: E, charge: Charge, sent_at: Duration) -> Self {
        let held = Self { engine, charge, until_us: AtomicU64::new(0) };
        held.extend_from(sent_at);
        held
    }

    pub(super) fn is_held(&self, now_us: u64) -> bool {
        now_us < self.until_us.load(Ordering::Acquire)
    }

    fn extend_from(&self, sent_at: Duration) {
        let until = sent_at.saturating_add(self.lease());
        self.until_us.store(u64::try_from(until.as_micros()).unwrap_or(u64::MAX), Ordering::Release);
    }

    fn id(&self) -> Id {
        (self.charge.counter.id(), self.charge.hold.map_or(0, |hold| hold.id))
    }

    fn lease(&self) -> Duration {
        self.charge.hold.map_or(Duration::ZERO, |hold| hold.lease)
    }

    fn interval(&self) -> Duration {
        (self.lease() / 3).min(LONGEST_INTERVAL)
    }

    /// The time until the first renewal. The lease began when the store granted it, at `sent_at` at the earliest.
    fn first_pause(&self) -> Duration {
        let until = Duration::from_micros(self.until_us.load(Ordering::Acquire));
        let passed = (self.engine.now().saturating_add(self.lease())).saturating_sub(until);
        self.interval().saturating_sub(passed)
    }

    /// The pause after a failed renewal: a third of the time for which it is still held, so that a lease
    /// has room for several attempts. It is at least a deadline of the store, and at most the interval
    /// between renewals, which follows also if it is no longer held.
    fn pause_after_failure(&self) -> Duration {
        let until = Duration::from_micros(self.until_us.load(Ordering::Acquire));
        let left = until.saturating_sub(self.engine.now());
        if left.is_zero() { self.interval() } else { (left / 3).max(self.engine.deadline()).min(self.interval()) }
    }
}

/// The holds of a limiter at its store, and when each is due for renewal.
pub(super) struct Renewals<E>(Mutex<Timetable<E>>);

impl<E> Default for Renewals<E> {
    fn default() -> Self {
        Self(Mutex::new(Timetable::new(0)))
    }
}

struct Timetable<E> {
    /// The process that made the holds. After a fork, the child sees that they are its parent's.
    process: u32,
    /// Holds, each with the time it is due. `None` during a renewal, and when it is lost.
    held: BTreeMap<Id, (Option<Instant>, Arc<HeldCharge<E>>)>,
    due: BTreeSet<(Instant, Id)>,
    /// The time when the task wakes. `None` if there is no task.
    wakes_at: Option<Instant>,
    /// Wakes the task earlier.
    sooner: Arc<Notify>,
}

impl<E: Renew> Renewals<E> {
    /// Renews these holds from now on.
    ///
    /// After an error none of them is renewed: there is no thread for background work.
    pub(super) fn insert(self: &Arc<Self>, held: &[Arc<HeldCharge<E>>]) -> Result<(), StoreError> {
        let (now, process) = (Instant::now(), process::id());
        let mut timetable = self.lock();
        if timetable.process != process {
            *timetable = Timetable::new(process);
        }
        for held in held {
            timetable.held.insert(held.id(), (None, Arc::clone(held)));
            timetable.schedule(held, now + held.first_pause());
        }
        let done = self.wake(timetable);
        if done.is_err() {
            self.remove(held);
        }
        done
    }

    /// Stops renewing these holds. True if this process did renew them.
    pub(super) fn remove(&self, held: &[Arc<HeldCharge<E>>]) -> bool {
        let process = process::id();
        let mut timetable = self.lock();
        let timetable = &mut *timetable;
        let mut was_ours = timetable.process == process;
        for id in held.iter().map(|held| held.id()) {
            match timetable.held.remove(&id) {
                Some((Some(due), _)) => drop(timetable.due.remove(&(due, id))),
                Some((None, _)) => {}
                None => was_ours = false,
            }
        }
        was_ours
    }

    fn lock(&self) -> MutexGuard<'_, Timetable<E>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes sure that the task wakes when the first hold is due.
    fn wake(self: &Arc<Self>, mut timetable: MutexGuard<'_, Timetable<E>>) -> Result<(), StoreError> {
        let (first, wakes_at) = (timetable.first(), timetable.wakes_at);
        if first.is_none_or(|first| wakes_at.is_some_and(|wakes_at| wakes_at <= first)) {
            return Ok(());
        }
        timetable.wakes_at = first;
        let sooner = Arc::clone(&timetable.sooner);
        drop(timetable);
        if wakes_at.is_some() {
            sooner.notify_one();
            return Ok(());
        }
        let started = background::spawn(Arc::clone(self).run(sooner));
        if started.is_err() {
            self.lock().wakes_at = None;
        }
        started.map(drop)
    }

    /// Renews holds that are due, until none is left.
    async fn run(self: Arc<Self>, sooner: Arc<Notify>) {
        loop {
            let (due, next) = {
                let mut timetable = self.lock();
                let due = timetable.take_due(Instant::now());
                timetable.wakes_at = timetable.first();
                (due, timetable.wakes_at)
            };
            for held in due {
                // Each counter has a task of its own, as the store may be slow for some of them.
                tokio::spawn(Arc::clone(&self).renew(held));
            }
            let Some(next) = next else { return };
            let _ = timeout_at(next.into(), sooner.notified()).await;
        }
    }

    /// Renews holds of one counter, in batches small enough for the deadline.
    async fn renew(self: Arc<Self>, due: Vec<Arc<HeldCharge<E>>>) {
        let (mut failed, mut is_any_held, mut is_any_lost) = (None, false, false);
        for some in due.chunks(MOST_AT_ONCE) {
            let (engine, began_at) = (&some[0].engine, Instant::now());
            let sent_at = engine.now();
            let renewed = match failed {
                Some(error) => Err(error), // the others fail with the first batch
                None => ask(engine, some).await,
            };
            let (is_held, is_lost) = self.apply_result(some, sent_at, began_at, &renewed);
            is_any_held |= is_held && renewed.is_err();
            is_any_lost |= is_lost;
            failed = renewed.err();
        }
        // Last, as a log subscriber may panic.
        if is_any_lost {
            observe::hold_lost(&due[0].charge.rule);
        }
        if let Some(error) = &failed
            && is_any_held
        {
            observe::not_renewed(&due[0].charge.rule, error);
        }
    }

    /// Applies the store's answer. Returns whether any of these holds still exists here, and whether the store has lost
    /// one.
    fn apply_result(
        self: &Arc<Self>,
        due: &[Arc<HeldCharge<E>>],
        sent_at: Duration,
        began_at: Instant,
        renewed: &Result<Vec<bool>, StoreError>,
    ) -> (bool, bool) {
        let mut timetable = self.lock();
        let (mut is_any_held, mut is_any_lost) = (false, false);
        for (at, held) in due.iter().enumerate() {
            if !timetable.held.contains_key(&held.id()) {
                continue; // it is settled
            }
            is_any_held = true;
            match renewed {
                // A lost hold stays lost: another caller may have had it in the meantime.
                Ok(renewed) if !renewed[at] => {
                    held.until_us.store(0, Ordering::Release);
                    is_any_lost = true;
                }
                Ok(_) => {
                    held.extend_from(sent_at);
                    timetable.schedule(held, began_at + held.interval());
                }
                Err(_) => timetable.schedule(held, Instant::now() + held.pause_after_failure()),
            }
        }
        let _ = self.wake(timetable); // the background runtime exists: this is it
        (is_any_held, is_any_lost)
    }
}

/// Asks the store to renew holds of one counter.
async fn ask<E: Renew>(engine: &E, held: &[Arc<HeldCharge<E>>]) -> Result<Vec<bool>, StoreError> {
    let (engine, charges) = (engine.clone(), held.iter().map(|held| held.charge.clone()).collect());
    let deadline = engine.deadline();
    let renewed =
        background::in_own_task(async move { deadline::answer(engine.renew(charges), deadline).await }).await?;
    if renewed.len() != held.len() {
        return Err(StoreError::misconfigured("the store's answer does not cover each hold that it was to renew"));
    }
    Ok(renewed)
}

impl<E> Timetable<E> {
    fn new(process: u32) -> Self {
        Self { process, held: BTreeMap::new(), due: BTreeSet::new(), wakes_at: None, sooner: Arc::default() }
    }
}

impl<E: Renew> Timetable<E> {
    fn first(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Sets the time of the next renewal, if the hold still exists.
    fn schedule(&mut self, held: &HeldCharge<E>, due: Instant) {
        let id = held.id();
        if let Some((due_at, _)) = self.held.get_mut(&id) {
            *due_at = Some(due);
            self.due.insert((due, id));
        }
    }

    /// Takes the holds that are due, grouped by counter. Other holds of the same counter come
    /// along.
    ///
    /// Holds that began or were renewed less than half of their interval ago stay. Most of them end
    /// before they are due.
    fn take_due(&mut self, now: Instant) -> Vec<Vec<Arc<HeldCharge<E>>>> {
        let mut taken = Vec::new();
        while let Some(&(first, (counter, _))) = self.due.first()
            && first <= now
        {
            let mut together = Vec::new();
            for (id, (due, held)) in self.held.range_mut((counter, 0)..=(counter, u64::MAX)) {
                let is_old = |due: &mut Instant| due.saturating_duration_since(now) <= held.interval() / 2;
                if let Some(due) = due.take_if(is_old) {
                    self.due.remove(&(due, *id));
                    together.push(Arc::clone(held));
                }
            }
            taken.push(together);
        }
        taken
    }
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use super::*;
    use crate::{Algorithm, CounterName, Key, Rule, store::Hold};

    const MS: Duration = Duration::from_millis(1);

    /// An engine whose holds are all lost.
    #[derive(Clone)]
    struct Lost;

    impl Renew for Lost {
        fn renew(&self, charges: Vec<Charge>) -> Reply<Result<Vec<bool>, StoreError>> {
            Reply::Ready(Ok(vec![false; charges.len()]))
        }

        fn now(&self) -> Duration {
            Duration::ZERO
        }

        fn deadline(&self) -> Duration {
            MS
        }
    }

    /// A place of the key's counter.
    fn held(key: u64, lease: Duration) -> Arc<HeldCharge<Lost>> {
        let rule = Rule::new("held", 9, lease).with_algorithm(Algorithm::Concurrent);
        let mut charge = Charge::new(rule, CounterName::new("", &rule, &Key::new(key)), 1);
        charge.hold = Some(Hold::new(lease));
        Arc::new(HeldCharge::new(Lost, charge, Duration::ZERO))
    }

    #[test]
    fn holds_of_one_counter_are_due_together_but_for_those_that_are_young() {
        let now = Instant::now();
        let mut timetable = Timetable::new(0);
        let lease = 300 * MS;
        for (key, after) in [(1, 0), (1, 30), (1, 50), (1, 51), (1, 100), (2, 1), (3, 0), (3, 49)] {
            let held = held(key, lease);
            timetable.held.insert(held.id(), (None, Arc::clone(&held)));
            timetable.schedule(&held, now + after * MS);
        }
        let mut taken: Vec<_> = timetable.take_due(now).iter().map(Vec::len).collect();
        taken.sort_unstable();
        assert_eq!(taken, [2, 3]);
        assert_eq!(timetable.first(), Some(now + MS));
        let taken = |timetable: &mut Timetable<Lost>, after| {
            timetable.take_due(now + after * MS).iter().map(Vec::len).sum::<usize>()
        };
        assert_eq!([taken(&mut timetable, 0), taken(&mut timetable, 50), taken(&mut timetable, 51)], [0, 1, 2]);
        // During a renewal they are not due.
        assert_eq!((timetable.first(), timetable.held.len()), (None, 8));
    }

    #[test]
    fn a_failed_renewal_is_repeated_after_a_third_of_the_time_that_is_left() {
        let held = held(1, 900 * MS);
        let pause = |left_ms: u64| {
            held.until_us.store(1_000 * left_ms, Ordering::Release);
            held.pause_after_failure()
        };
        // Not before the deadline. A hold that is over has its usual interval.
        assert_eq!([900, 300, 2, 0].map(pause), [300 * MS, 100 * MS, MS, 300 * MS]);
    }

    #[test]
    fn a_hold_is_lost_if_the_store_no_longer_has_it_while_its_call_runs() {
        let (renewals, held) = (Arc::new(Renewals::default()), [held(1, 900 * MS)]);
        renewals.insert(&held).unwrap();
        let apply = |renewed| renewals.apply_result(&held, Duration::ZERO, Instant::now(), &renewed);
        let failed = Err(StoreError::unavailable("away"));
        assert_eq!(
            [apply(Ok(vec![true])), apply(failed), apply(Ok(vec![false]))],
            [(true, false), (true, false), (true, true)]
        );
        assert!(renewals.remove(&held));
        let apply = |renewed| renewals.apply_result(&held, Duration::ZERO, Instant::now(), &renewed);
        assert_eq!(apply(Ok(vec![false])), (false, false)); // its call has ended
    }

    #[test]
    fn a_forked_process_renews_and_settles_nothing_of_its_parent() {
        let renewals = Arc::new(Renewals::default());
        let (first, second) = ([held(1, 900 * MS)], [held(1, 900 * MS)]);
        renewals.insert(&first).unwrap();
        renewals.lock().process += 1;
        renewals.insert(&second).unwrap();
        assert_eq!(renewals.lock().held.len(), 1);
        assert_eq!([renewals.remove(&first), renewals.remove(&second)], [false, true]);
        renewals.insert(&first).unwrap();
        renewals.lock().process += 1;
        assert!(!renewals.remove(&first));
    }
}
