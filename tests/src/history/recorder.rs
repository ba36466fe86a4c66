//! Calls a limiter, and notes each call and its answer.

use std::cell::Cell;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ratelimit_runtime::{Cause, Health, Limiter, Permit, RateKey, RequestPerMinute, Reservation, Rule};
use rustix::time::{ClockId, clock_gettime};

use super::{Action, Answer, Call, Counting, History, Limit};

/// The machine's monotonic clock, which all of its processes share.
pub fn monotonic_us() -> u64 {
    monotonic_ns() / 1000
}

fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

const SHARDS: usize = 16;

/// Collects the calls of one process.
pub struct Recorder {
    process: u32,
    /// The store's clock where the test controls it.
    clock: Option<Box<dyn Fn() -> u64 + Send + Sync>>,
    next: AtomicU64,
    /// By thread, so that threads do not wait for each other.
    shards: [Mutex<Vec<Call>>; SHARDS],
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("process", &self.process).finish_non_exhaustive()
    }
}

impl Recorder {
    /// Records by the machine's monotonic clock.
    pub fn new(process: u32) -> Arc<Self> {
        Arc::new(Self { process, clock: None, next: AtomicU64::new(0), shards: Default::default() })
    }

    /// Records by a clock that the test moves, in microseconds.
    pub fn by_clock(clock: impl Fn() -> u64 + Send + Sync + 'static) -> Arc<Self> {
        let clock: Option<Box<dyn Fn() -> u64 + Send + Sync>> = Some(Box::new(clock));
        Arc::new(Self { process: 0, clock, next: AtomicU64::new(0), shards: Default::default() })
    }

    /// The recorder's time.
    pub fn now(&self) -> u64 {
        self.clock.as_ref().map_or_else(monotonic_us, |clock| clock())
    }

    /// All calls that have ended.
    pub fn take(&self) -> Vec<Call> {
        let take =
            |shard: &Mutex<Vec<Call>>| std::mem::take(&mut *shard.lock().unwrap_or_else(PoisonError::into_inner));
        self.shards.iter().flat_map(take).collect()
    }

    /// Notes a call that moves the store's clock.
    pub fn advance(&self, by: Duration, advance: impl FnOnce()) {
        let by = u64::try_from(by.as_micros()).expect("a short time");
        let mut open = Open::new(self, 0, 0, Action::Advance { by });
        advance();
        open.end(Answer::Done(0), false);
    }

    fn push(&self, call: Call) {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local!(static THREAD: Cell<usize> = const { Cell::new(usize::MAX) });
        let shard = THREAD.with(|thread| {
            if thread.get() == usize::MAX {
                thread.set(THREADS.fetch_add(1, Ordering::Relaxed) % SHARDS);
            }
            thread.get()
        });
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner).push(call);
    }
}

/// A call under way. Dropped without an answer, it is recorded as unknown.
struct Open<'a> {
    recorder: &'a Recorder,
    call: Option<Call>,
    ordered: u64,
}

impl<'a> Open<'a> {
    fn new(recorder: &'a Recorder, limit: usize, key: u64, action: Action) -> Self {
        let ordered = monotonic_ns();
        let invoked = recorder.now();
        let id = recorder.next.fetch_add(1, Ordering::Relaxed);
        let (process, pending, answer, degraded) = (recorder.process, None, Answer::Unknown, false);
        let answered = invoked;
        let call = Call { process, id, limit, key, action, invoked, pending, answered, order: None, answer, degraded };
        Self { recorder, call: Some(call), ordered }
    }

    fn id(&self) -> u64 {
        self.call.as_ref().map_or(0, |call| call.id)
    }

    /// Awaits an answer and notes when its first poll was pending.
    async fn answer<F: Future>(&mut self, future: F) -> F::Output {
        let mut future = pin!(future);
        poll_fn(|context| {
            let polled = future.as_mut().poll(context);
            if polled.is_pending()
                && let Some(call) = &mut self.call
                && call.pending.is_none()
            {
                call.pending = Some(self.recorder.now());
            }
            polled
        })
        .await
    }

    fn end(&mut self, answer: Answer, degraded: bool) {
        let Some(mut call) = self.call.take() else { return };
        call.answered = self.recorder.now();
        (call.answer, call.degraded) = (answer, degraded);
        call.order = self.recorder.clock.is_some().then(|| (self.ordered, monotonic_ns()));
        self.recorder.push(call);
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.end(Answer::Unknown, false);
    }
}

/// A limiter whose calls are recorded.
#[derive(Clone, Debug)]
pub struct RecordedLimiter {
    limiter: Limiter,
    recorder: Arc<Recorder>,
    limits: Arc<[(Rule, Limit)]>,
    decides_alone: bool,
}

/// A permit or a reservation, and the number of the call that got it.
#[derive(Debug)]
pub struct Granted {
    /// Number of the call.
    pub id: u64,
    limit: usize,
    key: u64,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Permit(Permit),
    Reservation(Reservation),
}

impl RecordedLimiter {
    /// Calls this limiter for these rules; `prefetch` and whether denials are cached as [`Limit::new`] takes them.
    pub fn new(limiter: Limiter, recorder: Arc<Recorder>, rules: &[(Rule, u64, bool)]) -> Self {
        let limits = rules.iter().map(|(rule, prefetch, caches)| (*rule, Limit::new(rule, *prefetch, *caches)));
        Self { limiter, recorder, limits: limits.collect(), decides_alone: false }
    }

    /// The limiter's failure policy may let calls through while it is degraded.
    #[must_use]
    pub fn decides_alone(mut self, decides_alone: bool) -> Self {
        self.decides_alone = decides_alone;
        self
    }

    /// The record so far.
    pub fn history(&self) -> History {
        let limits = self.limits.iter().map(|(_, limit)| limit.clone()).collect();
        History { limits, calls: self.recorder.take() }
    }

    fn rule(&self, limit: usize) -> &Rule {
        &self.limits[limit].0
    }

    fn is_degraded(&self) -> bool {
        self.decides_alone && self.limiter.health() != Health::Available
    }

    /// Charges a cost, or a cost of 1 with a longest wait.
    pub async fn acquire(&self, limit: usize, key: u64, cost: u64, within: Option<Duration>) -> Option<Granted> {
        let (id, answer) = self.acquire_as(limit, (key, key), cost, within).await;
        answer.ok().map(|permit| Granted { id, limit, key, kind: Kind::Permit(permit) })
    }

    /// Like `acquire`, with a key of any type and its number in the record. Also returns the number
    /// of the call.
    pub async fn acquire_as<K: RateKey>(
        &self,
        limit: usize,
        (number, key): (u64, K),
        cost: u64,
        within: Option<Duration>,
    ) -> (u64, Result<Permit, RequestPerMinute>) {
        let (rule, within_us) = (self.rule(limit), within.map(micros));
        let is_hold = self.limits[limit].1.counting == Counting::Concurrent;
        let action = if is_hold {
            Action::Hold { cost, within: within_us, lease: self.limits[limit].1.period }
        } else {
            Action::Acquire { cost, within: within_us }
        };
        let mut open = Open::new(&self.recorder, limit, number, action);
        let id = open.id();
        let answer = match within {
            Some(longest) => open.answer(self.limiter.acquire_within(rule, key, longest)).await,
            None => open.answer(self.limiter.acquire_n(rule, key, cost)).await,
        };
        let said = match &answer {
            Ok(permit) => {
                let reset_after_ms = u64::try_from(permit.reset_after().as_millis()).unwrap_or(u64::MAX);
                Answer::Admitted { remaining: Some(permit.remaining()), reset_after_ms }
            }
            Err(refused) => refusal(refused),
        };
        open.end(said, self.is_degraded());
        (id, answer)
    }

    /// Reserves a cost of a log.
    pub async fn reserve(&self, limit: usize, key: u64, most: u64) -> Option<Granted> {
        const LEASE: u64 = 30_000_000;
        let action = Action::Hold { cost: most, within: None, lease: LEASE };
        let mut open = Open::new(&self.recorder, limit, key, action);
        let id = open.id();
        let answer = open.answer(self.limiter.reserve(self.rule(limit), key, most)).await;
        let said = match &answer {
            Ok(_) => Answer::Admitted { remaining: None, reset_after_ms: 0 },
            Err(refused) => refusal(refused),
        };
        open.end(said, self.is_degraded());
        answer.ok().map(|reservation| Granted { id, limit, key, kind: Kind::Reservation(reservation) })
    }

    /// Returns a charge, or ends a place, and waits for it.
    pub async fn refund(&self, granted: Granted) {
        let (limit, key, of) = (granted.limit, granted.key, granted.id);
        let is_held = match &granted.kind {
            Kind::Permit(permit) => permit.is_held(),
            Kind::Reservation(reservation) => reservation.is_held(),
        };
        let is_place = self.limits[limit].1.counting == Counting::Concurrent;
        let action = if is_place || matches!(granted.kind, Kind::Reservation(_)) {
            Action::Settle { of, used: 0, is_held }
        } else {
            Action::Refund { of }
        };
        let mut open = Open::new(&self.recorder, limit, key, action);
        let answer = match granted.kind {
            Kind::Permit(permit) => open.answer(permit.refund()).await,
            Kind::Reservation(reservation) => open.answer(reservation.cancel()).await.map(|()| 0),
        };
        open.end(answer.map_or_else(|error| refusal(&error), Answer::Done), self.is_degraded());
    }

    /// Charges what was used of a reservation, and waits for it.
    pub async fn settle(&self, granted: Granted, used: u64) {
        let (limit, key, of) = (granted.limit, granted.key, granted.id);
        let Kind::Reservation(reservation) = granted.kind else { panic!("only a reservation is settled") };
        let action = Action::Settle { of, used, is_held: reservation.is_held() };
        let mut open = Open::new(&self.recorder, limit, key, action);
        let answer = open.answer(reservation.settle(used)).await;
        open.end(answer.map_or_else(|error| refusal(&error), |()| Answer::Done(0)), self.is_degraded());
    }

    /// Reads a counter.
    pub async fn peek(&self, limit: usize, key: u64) {
        let mut open = Open::new(&self.recorder, limit, key, Action::Peek);
        let answer = open.answer(self.limiter.peek(self.rule(limit), key)).await;
        let said = match answer {
            Ok(seen) => {
                let reset_after_ms = u64::try_from(seen.reset_after().as_millis()).unwrap_or(u64::MAX);
                Answer::Seen { remaining: seen.remaining(), reset_after_ms }
            }
            Err(error) => refusal(&error),
        };
        open.end(said, self.is_degraded());
    }

    /// Forgets a counter.
    pub async fn reset(&self, limit: usize, key: u64) {
        let mut open = Open::new(&self.recorder, limit, key, Action::Reset);
        let answer = open.answer(self.limiter.reset(self.rule(limit), key)).await;
        open.end(answer.map_or_else(|error| refusal(&error), |()| Answer::Done(0)), self.is_degraded());
    }
}

fn refusal(refused: &RequestPerMinute) -> Answer {
    match refused.cause() {
        Cause::Exceeded => {
            let retry_after_ms = refused.retry_after().and_then(|wait| u64::try_from(wait.as_millis()).ok());
            Answer::Refused { remaining: refused.remaining(), retry_after_ms }
        }
        Cause::NeverFits => Answer::NeverFits,
        Cause::Unavailable => Answer::Unknown,
        _ => Answer::Wrong(refused.to_string()),
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX / 4)
}
