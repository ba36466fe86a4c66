//! Time, for the memory store and for all waiting.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::{sync::Notify, time::Instant};

/// The time a limiter lives by: the memory store decides by it, and waiting callers sleep by it.
///
/// The default is the system's, read once and from then on monotonic. It follows tokio's paused
/// time, so a test under `#[tokio::test(start_paused = true)]` waits for nothing. A [`ManualClock`] moves only
/// when told to. A Redis store decides by its server's clock, whichever clock the limiter has.
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
pub struct Clock(Kind);

#[derive(Clone, Debug)]
enum Kind {
    System { at: Duration, since: Instant },
    Manual(ManualClock),
}

impl Clock {
    /// The system's clock.
    pub fn system() -> Self {
        Self(Kind::System {
            at: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            since: Instant::now(),
        })
    }

    /// Time since 1970-01-01 00:00 UTC.
    pub fn now(&self) -> Duration {
        match &self.0 {
            Kind::System { at, since } => *at + since.elapsed(),
            Kind::Manual(manual) => manual.now(),
        }
    }

    /// Microseconds since 1970-01-01 00:00 UTC.
    #[allow(clippy::cast_possible_truncation)] // lasts for half a million years
    pub(crate) fn now_us(&self) -> u64 {
        self.now().as_micros() as u64
    }

    /// Returns when the clock has reached `time`.
    pub(crate) async fn sleep_until(&self, time: Duration) {
        match &self.0 {
            Kind::System { .. } => tokio::time::sleep(time.saturating_sub(self.now())).await,
            Kind::Manual(manual) => manual.reaches(time).await,
        }
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::system()
    }
}

impl From<ManualClock> for Clock {
    fn from(clock: ManualClock) -> Self {
        Self(Kind::Manual(clock))
    }
}

/// A clock that stands still until it is moved, for tests of annotated code.
///
/// Clones show the same time.
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
pub struct ManualClock(Arc<Manual>);

struct Manual {
    now: Mutex<Duration>,
    moved: Notify,
}

impl ManualClock {
    /// A clock that shows the first second of the year 2000, UTC.
    pub fn new() -> Self {
        Self(Arc::new(Manual { now: Mutex::new(Duration::from_secs(946_684_800)), moved: Notify::new() }))
    }

    /// Time since 1970-01-01 00:00 UTC.
    pub fn now(&self) -> Duration {
        *self.0.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves the clock forward and wakes whoever waits for the time it then shows.
    pub fn advance(&self, by: Duration) {
        {
            let mut now = self.0.now.lock().unwrap_or_else(PoisonError::into_inner);
            *now = now.saturating_add(by);
        }
        self.0.moved.notify_waiters();
    }

    async fn reaches(&self, time: Duration) {
        loop {
            let moved = self.0.moved.notified(); // registered before the look, so that no move is missed
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
