//! Clocks, for the memory store and all waiting.

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use tokio::{runtime::Handle, sync::Notify, time};

/// The clock of a limiter: the memory store decides by it, and waiting callers sleep by it.
///
/// - The default is the system's clock. The time of day is read once; from then on the clock is
///   monotonic. Between two readings, at most a millisecond apart, it reads the processor's time
///   stamp counter.
/// - If the build contains tokio's feature `test-util`, it follows tokio's time instead, which can
///   be paused. A test under `#[tokio::test(start_paused = true)]` then does not really wait.
/// - A [`ManualClock`] moves only when it is advanced.
///
/// A Redis store decides by its server's clock, whichever clock the limiter has.
///
/// ```
/// use ratelimit_runtime::{Clock, ManualClock};
/// use std::time::Duration;
///
/// let manual = ManualClock::new();
/// let clock = Clock::from(manual.clone());
/// let before = clock.now();
/// manual.advance(Duration::from_secs(5));
/// assert_eq!(clock.now() - before, Duration::from_secs(5));
/// ```
#[derive(Clone, Debug)]
pub struct Clock(TimeSource);

#[derive(Clone, Debug)]
enum TimeSource {
    System(Arc<SystemClock>),
    /// tokio's time, where it can be paused.
    Tokio {
        began: Duration,
        since: tokio::time::Instant,
    },
    Manual(ManualClock),
}

impl Clock {
    /// The system's clock.
    pub fn system() -> Self {
        if TOKIO_CAN_PAUSE {
            Self(TimeSource::Tokio { began: time_since_epoch(), since: tokio::time::Instant::now() })
        } else {
            Self::unpaused()
        }
    }

    /// The system's clock, even while tokio's time is paused.
    pub(crate) fn unpaused() -> Self {
        Self(TimeSource::System(Arc::new(SystemClock::new(time_since_epoch()))))
    }

    /// Time since 1970-01-01 00:00 UTC.
    pub fn now(&self) -> Duration {
        match &self.0 {
            TimeSource::System(system) => Duration::from_nanos(system.now_ns()),
            TimeSource::Tokio { began, since } => *began + since.elapsed(),
            TimeSource::Manual(manual) => manual.now(),
        }
    }

    /// Microseconds since 1970-01-01 00:00 UTC. Saturates in the year 3084, so that counters can
    /// add the longest period.
    #[inline]
    pub(crate) fn now_us(&self) -> u64 {
        match &self.0 {
            TimeSource::System(system) => system.now_ns() / 1000,
            TimeSource::Tokio { .. } | TimeSource::Manual(_) => self.read_us(),
        }
    }

    /// Milliseconds since 1970-01-01 00:00 UTC. Saturates like [`Clock::now_us`].
    #[inline(always)]
    #[allow(clippy::inline_always)] // in each call
    pub(crate) fn now_ms(&self) -> u64 {
        match &self.0 {
            TimeSource::System(system) => system.now_ms(),
            TimeSource::Tokio { .. } | TimeSource::Manual(_) => self.read_ms(),
        }
    }

    #[cold]
    fn read_ms(&self) -> u64 {
        self.read_us() / 1000
    }

    #[allow(clippy::cast_possible_truncation)]
    fn read_us(&self) -> u64 {
        self.now().as_micros().min(MAX_US) as u64
    }

    /// Returns when the clock has reached `time`.
    pub(crate) async fn sleep_until(&self, time: Duration) {
        match &self.0 {
            TimeSource::System(_) | TimeSource::Tokio { .. } => {
                sleep(time.saturating_sub(self.now())).await;
            }
            TimeSource::Manual(manual) => manual.wait_for(time).await,
        }
    }
}

/// Sleeps for this time, on whichever runtime the future is polled. It panics without one.
pub(crate) async fn sleep(length: Duration) {
    let is_on_runtime = wait_until(after(length)).await;
    assert!(is_on_runtime, "a call that waits has to be polled on a tokio runtime");
}

/// The instant after this time, at most 100 years ahead.
pub(crate) fn after(length: Duration) -> time::Instant {
    const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
    time::Instant::now() + length.min(LONGEST)
}

/// Waits until `end`. For a future that may move to another runtime.
///
/// A timer of tokio belongs to the runtime it was made on: it stops with it, and panics after its end. Here the
/// future gets a new timer on each runtime that polls it. `false` without a runtime, at once.
pub(crate) async fn wait_until(end: time::Instant) -> bool {
    let mut timer_runtime = None;
    let mut timer = pin!(None);
    poll_fn(|context| {
        let Ok(runtime) = Handle::try_current() else { return Poll::Ready(false) };
        let runtime = Some(runtime.id());
        if runtime != timer_runtime {
            timer_runtime = runtime;
            timer.set(Some(time::sleep_until(end)));
        }
        timer.as_mut().as_pin_mut().map_or(Poll::Pending, |timer| timer.poll(context).map(|()| true))
    })
    .await
}

/// Awaits this for a time at most. Without a runtime of tokio, it is polled once.
#[cfg(any(feature = "redis", feature = "client"))]
pub(crate) async fn within(longest: Duration, work: impl Future) {
    tokio::select! {
        biased;
        _ = work => {}
        _ = wait_until(after(longest)) => {}
    }
}

/// The time of a decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecisionTime {
    pub(crate) us: u64,
    pub(crate) ms: u64,
}

/// The time of decisions under a lock. It does not go back where the clocks of two processors
/// differ, by less than a millisecond. A clock that was set back by more is followed; the
/// system's clock never is.
pub(crate) struct LockedTime<'a> {
    pub(crate) clock: &'a Clock,
    /// The latest time of a decision under this lock.
    pub(crate) latest_us: &'a mut u64,
    pub(crate) read: ClockReadings,
}

/// Readings of the clock, taken under the locks of several shards.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ClockReadings {
    pub(crate) us: Option<u64>,
    pub(crate) ms: Option<u64>,
}

/// Upper bound of the skew between the clocks of two processors. A larger difference is a clock that
/// was set back.
const SKEW_US: u64 = 1000;

impl LockedTime<'_> {
    #[inline(always)]
    #[allow(clippy::inline_always)] // in each call
    pub(crate) fn read(self, needs_us: bool) -> DecisionTime {
        if needs_us { self.us() } else { self.ms() }
    }

    #[inline(always)]
    #[allow(clippy::inline_always)] // in each call
    pub(crate) fn us(self) -> DecisionTime {
        let now_us = self.read.us.unwrap_or_else(|| self.clock.now_us());
        let is_skew = now_us < *self.latest_us && *self.latest_us - now_us < SKEW_US;
        if !is_skew {
            *self.latest_us = now_us;
        }
        DecisionTime { us: *self.latest_us, ms: *self.latest_us / 1000 }
    }

    /// The time in whole milliseconds, which is cheaper. It may be before an earlier decision; a state
    /// that was written later than now is left to [`LockedTime::us`].
    #[inline(always)]
    #[allow(clippy::inline_always)] // in each call
    fn ms(self) -> DecisionTime {
        let ms = self.read.ms.unwrap_or_else(|| self.clock.now_ms());
        let us = ms * 1000;
        *self.latest_us = (*self.latest_us).max(us);
        DecisionTime { us, ms }
    }
}

/// In the year 3084. A longest period later, it still has 46 bits of milliseconds.
const MAX_US: u128 = 1000 << 45;

impl Default for Clock {
    fn default() -> Self {
        Self::system()
    }
}

impl From<ManualClock> for Clock {
    fn from(clock: ManualClock) -> Self {
        Self(TimeSource::Manual(clock))
    }
}

fn time_since_epoch() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Whether tokio's time can be paused: whether a crate in this build enables tokio's feature
/// `test-util`.
///
/// A crate cannot query the features of another. But names in a block shadow outer ones: `pause` is
/// tokio's function of size 0 if it exists, and else the constant below.
const TOKIO_CAN_PAUSE: bool = {
    #[allow(unused_imports, clippy::wildcard_imports)]
    use tokio::time::*;
    size_of_val(&pause) == 0
};

/// Found instead if tokio has no such function.
#[allow(dead_code, non_upper_case_globals)]
const pause: u8 = 0;

/// The system's monotonic clock, read once a millisecond. In between, the processor's time stamp
/// counter is read, which takes a third of the time.
///
/// The counter is assumed to be slower by a thousandth than it is. It therefore stays behind the
/// clock until the next calibration, by a microsecond at most, and time does not go back: only by
/// the few nanoseconds that the counters of two processors differ.
#[derive(Debug)]
struct SystemClock {
    /// Nanoseconds since 1970.
    began: u64,
    since: Instant,
    counter: quanta::Clock,
    /// Nanoseconds in 2^32 ticks of the counter, minus a thousandth.
    pace: u64,
    /// The counter at the last calibration, in nanoseconds.
    calibrated_at: AtomicU64,
    /// Added to the counter to get the time, modulo 2^64.
    offset: AtomicU64,
    /// The millisecond at the last calibration, which ends at the tick `ms_until`.
    ms: AtomicU64,
    ms_until: AtomicU64,
    /// Ticks of the counter per millisecond, by its pace.
    ticks: u64,
    calibration: Mutex<()>,
}

const CALIBRATION_INTERVAL_NS: u64 = 1_000_000;

impl SystemClock {
    fn new(began: Duration) -> Self {
        let counter = quanta::Clock::new();
        let pace = counter.delta_as_nanos(0, 1 << 32);
        let pace = pace - pace / 1024;
        let system = Self {
            began: nanoseconds(began),
            since: Instant::now(),
            counter,
            pace,
            calibrated_at: AtomicU64::new(0),
            offset: AtomicU64::new(0),
            ms: AtomicU64::new(0),
            ms_until: AtomicU64::new(0),
            ticks: ticks(CALIBRATION_INTERVAL_NS, pace),
            calibration: Mutex::new(()),
        };
        system.calibrate();
        system
    }

    #[inline]
    fn now_ns(&self) -> u64 {
        let counted = self.counter_ns();
        // In this order: a thread that sees a calibration also sees its offset.
        let calibrated_at = self.calibrated_at.load(Ordering::Acquire);
        let offset = self.offset.load(Ordering::Acquire);
        if counted.wrapping_sub(calibrated_at) < CALIBRATION_INTERVAL_NS {
            counted.wrapping_add(offset)
        } else {
            self.calibrate()
        }
    }

    /// The time in milliseconds. Cheaper: nothing is computed until the current millisecond has
    /// ended.
    #[inline(always)]
    #[allow(clippy::inline_always)] // a few instructions, on the fast path
    fn now_ms(&self) -> u64 {
        let raw = self.counter.raw();
        // In this order, as above. If they are of two calibrations, `ms` is the later one, which
        // has begun.
        let until = self.ms_until.load(Ordering::Acquire);
        let ms = self.ms.load(Ordering::Acquire);
        if until.wrapping_sub(raw).wrapping_sub(1) < self.ticks { ms } else { self.calibrate_ms() }
    }

    fn counter_ns(&self) -> u64 {
        self.ticks_to_ns(self.counter.raw())
    }

    #[allow(clippy::cast_possible_truncation)] // only differences matter
    #[inline]
    fn ticks_to_ns(&self, raw: u64) -> u64 {
        ((u128::from(raw) * u128::from(self.pace)) >> 32) as u64
    }

    #[cold]
    fn calibrate_ms(&self) -> u64 {
        self.calibrate() / 1_000_000
    }

    /// Corrects the offset of the counter by the clock.
    ///
    /// The time is between two readings of the clock. If the counter agrees, nothing changes. If
    /// not, it was behind; or the machine was asleep or moved to another host, and the counter
    /// stopped, jumped or restarted.
    #[cold]
    fn calibrate(&self) -> u64 {
        let _guard = self.calibration.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.clock_ns();
        let raw = self.counter.raw();
        let after = self.clock_ns();
        let counted = self.ticks_to_ns(raw);
        let now = counted.wrapping_add(self.offset.load(Ordering::Acquire)).clamp(before, after);
        self.offset.store(now.wrapping_sub(counted), Ordering::Release);
        self.calibrated_at.store(counted, Ordering::Release);
        self.ms.store(now / 1_000_000, Ordering::Release);
        self.ms_until.store(raw.wrapping_add(ticks(1_000_000 - now % 1_000_000, self.pace)), Ordering::Release);
        now
    }

    fn clock_ns(&self) -> u64 {
        self.began + nanoseconds(self.since.elapsed())
    }
}

/// The ticks in this many nanoseconds, rounded up. At most a million nanoseconds.
fn ticks(nanoseconds: u64, pace: u64) -> u64 {
    (nanoseconds << 32).div_ceil(pace)
}

/// Nanoseconds, for up to 584 years.
fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A clock that stands still until it is advanced, for tests of annotated code.
///
/// Clones share their time.
///
/// ```
/// # use ratelimit_runtime::{Limiter, ManualClock, Rule};
/// # use std::time::Duration;
/// const RULE: Rule = Rule::new("item", 1, Duration::from_secs(60));
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let clock = ManualClock::new();
/// let limiter = Limiter::builder("memory://").clock(clock.clone()).build().await?;
///
/// limiter.acquire(&RULE, 4711).await?;
/// clock.advance(Duration::from_millis(59_999));
/// assert!(limiter.acquire(&RULE, 4711).await.is_err());
/// clock.advance(Duration::from_millis(1));
/// limiter.acquire(&RULE, 4711).await?;
/// # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct ManualClock(Arc<ManualTime>);

struct ManualTime {
    now: Mutex<Duration>,
    moved: Notify,
}

impl ManualClock {
    /// A clock that shows 2000-01-01 00:00 UTC.
    pub fn new() -> Self {
        Self(Arc::new(ManualTime { now: Mutex::new(Duration::from_secs(946_684_800)), moved: Notify::new() }))
    }

    /// Time since 1970-01-01 00:00 UTC.
    pub fn now(&self) -> Duration {
        *self.0.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves the clock forward, and wakes callers that wait for a time it has reached.
    pub fn advance(&self, by: Duration) {
        {
            let mut now = self.0.now.lock().unwrap_or_else(PoisonError::into_inner);
            *now = now.saturating_add(by);
        }
        self.0.moved.notify_waiters();
    }

    async fn wait_for(&self, time: Duration) {
        loop {
            let moved = self.0.moved.notified(); // registered before the check, so that no move is missed
            if self.now() >= time {
                return;
            }
            moved.await;
        }
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ManualClock").field(&self.now()).finish()
    }
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use std::{
        task::{Context, Waker},
        thread,
    };

    use tokio::runtime::Builder;

    use super::*;

    fn system() -> SystemClock {
        SystemClock::new(time_since_epoch())
    }

    #[test]
    fn a_wait_goes_on_where_its_first_runtime_has_stopped_or_ended() {
        let new = || Builder::new_current_thread().enable_all().build().unwrap();
        for is_dropped in [false, true] {
            let (first, second) = (new(), new());
            let mut waiting = Box::pin(async {
                let clock = Clock::unpaused();
                clock.sleep_until(clock.now() + Duration::from_millis(20)).await;
            });
            let entered = first.enter();
            assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            drop(entered);
            let _stopped = (!is_dropped).then_some(first);
            second.block_on(waiting);
        }
    }

    #[test]
    fn there_is_no_wait_without_a_runtime() {
        let mut waiting = Box::pin(wait_until(after(Duration::from_secs(9))));
        assert_eq!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(false));
    }

    #[test]
    fn tokio_can_pause_in_tests() {
        const { assert!(TOKIO_CAN_PAUSE) };
    }

    /// Allows for the difference of the processors' counters.
    #[test]
    fn time_never_goes_back_on_any_thread() {
        let (system, latest) = (system(), Mutex::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200_000 {
                        let mut latest = latest.lock().unwrap();
                        let now = system.now_ns();
                        assert!(now + 100_000 > *latest, "{now} after {latest}");
                        *latest = now;
                    }
                });
            }
        });
    }

    #[test]
    fn the_counter_agrees_with_the_clock() {
        let system = system();
        for _ in 0..20_000 {
            let (before, now, after) = (system.clock_ns(), system.now_ns(), system.clock_ns());
            assert!(now <= after, "{now} is ahead of {after}");
            assert!(now + 10_000 >= before, "{now} is behind {before}");
        }
    }

    #[test]
    fn a_millisecond_is_shown_from_its_beginning_to_its_end() {
        let system = system();
        for _ in 0..200_000 {
            let (before, now_ms, after) = (system.clock_ns(), system.now_ms(), system.clock_ns());
            assert!(now_ms * 1_000_000 <= after, "{now_ms} is ahead of {after}");
            assert!((now_ms + 1) * 1_000_000 + 10_000 >= before, "{now_ms} is behind {before}");
        }
    }

    #[test]
    fn a_counter_that_jumped_is_corrected() {
        let system = system();
        for jump in [1 << 40, u64::MAX - (1 << 40)] {
            // As if the counter had jumped forward or back.
            let jumps = || {
                let change = |what: &AtomicU64, by: u64| {
                    what.fetch_add(by, Ordering::Relaxed);
                };
                change(&system.calibrated_at, jump.wrapping_neg());
                change(&system.offset, jump);
                change(&system.ms_until, jump.wrapping_neg());
                change(&system.ms, jump);
            };
            jumps();
            let (before, now, after) = (system.clock_ns(), system.now_ns(), system.clock_ns());
            assert!((before..=after).contains(&now), "{before}, {now}, {after}");
            jumps();
            let (before, now, after) = (system.clock_ns(), system.now_ms(), system.clock_ns());
            assert!((before / 1_000_000..=after / 1_000_000).contains(&now), "{before}, {now} ms, {after}");
        }
    }
}
