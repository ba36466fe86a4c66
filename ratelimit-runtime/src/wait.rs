//! Lines of callers that wait for a counter.
//!
//! Per counter and process, callers are served in the order of their arrival. Only the first in a line asks the store and
//! sleeps; when it leaves, for whatever reason, the next one does. So nothing stampedes, and a dropped caller is
//! gone at once.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, PoisonError, atomic::Ordering},
    time::Duration,
};

use crate::{
    CounterName, RequestPerMinute,
    store::Charge,
    sync::{AtomicU64, AtomicUsize, Mutex, MutexGuard, Notify},
};

#[cfg(all(test, model_check))]
mod model_check;

/// The lines of one limiter.
pub(crate) struct Lines {
    by_counter: Mutex<HashMap<CounterName, Line>>,
    /// How many lines there are, for those who only want to know that there are none.
    count: AtomicUsize,
    next_ticket: AtomicU64,
    /// Callers in one line, at most.
    capacity: usize,
}

#[derive(Default)]
struct Line {
    /// By ticket, so in the order of arrival.
    waiting: BTreeMap<u64, Arc<Notify>>,
    last: Option<Refused>,
}

/// A refusal, and when by this limiter's clock the store would admit.
#[derive(Clone)]
pub(crate) struct Refused {
    pub(crate) refusal: RequestPerMinute,
    pub(crate) ready_at: Duration,
    /// When to ask again. Not later than it is ready, and before that where others may leave what they hold.
    pub(crate) ask_at: Duration,
    /// Whether others may leave what they hold.
    pub(crate) is_held: bool,
}

impl Refused {
    /// The refusal, as seen later.
    pub(crate) fn at(self, now: Duration) -> RequestPerMinute {
        self.refusal.retry_in(self.ready_at.saturating_sub(now))
    }

    /// Whether a caller who waits until then knows that it is in vain.
    pub(crate) fn is_after(&self, give_up: Option<Duration>) -> bool {
        !self.is_held && give_up.is_some_and(|give_up| self.ready_at > give_up)
    }
}

impl Lines {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { by_counter: Mutex::default(), count: AtomicUsize::new(0), next_ticket: AtomicU64::new(0), capacity }
    }

    /// A number for a caller who arrives now; lower ones are served first.
    pub(crate) fn ticket(&self) -> u64 {
        self.next_ticket.fetch_add(1, Ordering::Relaxed)
    }

    /// The counter among these that somebody waits for who came before this ticket.
    pub(crate) fn ahead(&self, charges: &[Charge], ticket: u64) -> Option<CounterName> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let lines = self.lock();
        let earlier = |counter: &&CounterName| {
            let first = lines.get(counter).and_then(|line| line.waiting.first_key_value());
            first.is_some_and(|(first, _)| *first < ticket)
        };
        charges.iter().map(|charge| &charge.counter).find(earlier).cloned()
    }

    /// Takes a place in the line of a counter.
    ///
    /// Says what was last refused there if the line is full, or if the caller or the first in the line has to wait
    /// beyond `give_up`.
    pub(crate) fn join(
        &self,
        counter: CounterName,
        ticket: u64,
        refused: Option<&Refused>,
        give_up: Option<Duration>,
    ) -> Result<Place<'_>, Option<Refused>> {
        let too_late = |refused: &Refused| refused.is_after(give_up);
        if let Some(refused) = refused
            && (too_late(refused) || self.capacity == 0)
        {
            return Err(Some(refused.clone()));
        }
        let mut lines = self.lock();
        if let Some(line) = lines.get(&counter)
            && line.waiting.first_key_value().is_some_and(|(first, _)| *first < ticket)
            && (line.last.as_ref().is_some_and(too_late) || line.waiting.len() >= self.capacity)
        {
            return Err(line.last.clone());
        }
        let line = lines.entry(counter.clone()).or_default();
        let first = line.waiting.first_key_value().is_none_or(|(first, _)| ticket < *first);
        if let Some(refused) = refused
            && first
        {
            line.last = Some(refused.clone());
        }
        let turn = Arc::new(Notify::new());
        line.waiting.insert(ticket, Arc::clone(&turn));
        self.count.store(lines.len(), Ordering::Release);
        Ok(Place { lines: self, counter, ticket, turn })
    }

    /// Lets the first in the line of a counter ask again: something has been left there.
    pub(crate) fn call(&self, counter: &CounterName) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let lines = self.lock();
        if let Some((_, first)) = lines.get(counter).and_then(|line| line.waiting.first_key_value()) {
            first.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<CounterName, Line>> {
        self.by_counter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines").field("count", &self.count).finish_non_exhaustive()
    }
}

/// A place in a line. Dropping it lets the next one go.
pub(crate) struct Place<'a> {
    lines: &'a Lines,
    counter: CounterName,
    ticket: u64,
    turn: Arc<Notify>,
}

impl Place<'_> {
    pub(crate) fn counter(&self) -> &CounterName {
        &self.counter
    }

    pub(crate) fn is_first(&self) -> bool {
        let lines = self.lines.lock();
        let first = lines.get(&self.counter).and_then(|line| line.waiting.first_key_value());
        first.is_some_and(|(ticket, _)| *ticket == self.ticket)
    }

    /// Returns when nobody is ahead.
    pub(crate) async fn first(&self) {
        while !self.is_first() {
            self.turn.notified().await; // a turn given before this line is kept for it
        }
    }

    /// Returns when the first in the line was called, see [`Lines::call`].
    pub(crate) async fn called(&self) {
        self.turn.notified().await;
    }

    /// Tells those behind what the store said last.
    pub(crate) fn refused(&self, refused: Refused) {
        if let Some(line) = self.lines.lock().get_mut(&self.counter) {
            line.last = Some(refused);
        }
    }

    /// What the store said last in this line.
    pub(crate) fn last(&self) -> Option<Refused> {
        self.lines.lock().get(&self.counter).and_then(|line| line.last.clone())
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut lines = self.lines.lock();
        let Some(line) = lines.get_mut(&self.counter) else {
            return;
        };
        line.waiting.remove(&self.ticket);
        match line.waiting.first_key_value() {
            Some((_, next)) => next.notify_one(),
            None => {
                lines.remove(&self.counter);
            }
        }
        self.lines.count.store(lines.len(), Ordering::Release);
    }
}
