//! The health of a limiter's store.

use std::{
    fmt,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::error::StoreError;
#[cfg(feature = "metrics")]
use crate::observe;

/// How long the store must go without a failure to be reported available again. While one of
/// several servers is down, decisions fail and succeed in turn.
const QUIET: Duration = Duration::from_secs(1);

/// The health of a limiter's store, from [`Limiter::health`](crate::Limiter::health).
///
/// ```
/// use ratelimit_runtime::{Health, Limiter};
///
/// /// The text of a health page.
/// fn page(limiter: &Limiter) -> String {
///     match limiter.health() {
///         Health::Available => "limits hold".into(),
///         Health::Degraded { lasts, reason, .. } => format!("no limits from Redis for {lasts:?}: {reason}"),
///         other => format!("{other:?}"),
///     }
/// }
///
/// assert_eq!(page(&Limiter::in_memory()), "limits hold");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Health {
    /// No failure is known.
    Available,
    /// The store cannot decide. [`OnStoreError`](crate::OnStoreError) applies to calls.
    #[non_exhaustive]
    Degraded {
        /// How long this has lasted.
        lasts: Duration,
        /// The last error. It never contains a key or a password.
        reason: String,
    },
}

impl Health {
    fn degraded(since: Instant, error: &StoreError) -> Self {
        Self::Degraded { lasts: since.elapsed(), reason: error.reason().to_owned() }
    }
}

/// Derives the health from the outcomes of decisions. Entering and leaving the degraded state is
/// logged, and changes the gauge.
pub(crate) struct HealthTracker {
    /// Whether `degraded` is `Some`. The only field that a decision reads while the store is
    /// available.
    is_degraded: AtomicBool,
    degraded: Mutex<Option<Degraded>>,
    gauge: &'static DegradedGauge,
}

impl Default for HealthTracker {
    fn default() -> Self {
        static PROCESS_GAUGE: DegradedGauge = DegradedGauge(AtomicU32::new(0));
        Self::with_gauge(&PROCESS_GAUGE)
    }
}

#[derive(Debug)]
struct Degraded {
    since: Instant,
    last_failure: Instant,
    error: StoreError,
}

impl HealthTracker {
    fn with_gauge(gauge: &'static DegradedGauge) -> Self {
        Self { is_degraded: AtomicBool::default(), degraded: Mutex::default(), gauge }
    }

    /// Records a decision that failed.
    pub(crate) fn failed(&self, error: &StoreError) {
        let now = Instant::now();
        let mut degraded = self.lock();
        let begins = degraded.is_none();
        let since = match &*degraded {
            // An outage that began after a quiet time is a new one, although no call noticed the
            // pause.
            Some(known) => match error.began() {
                Some(began) if began > known.last_failure + QUIET => began,
                _ => known.since,
            },
            None => error.began().unwrap_or(now),
        };
        *degraded = Some(Degraded { since, last_failure: now, error: error.clone() });
        self.is_degraded.store(true, Ordering::Relaxed);
        if begins {
            self.gauge.enter();
        }
        drop(degraded); // a log subscriber may ask for the health
        self.gauge.record();
        if begins {
            tracing::warn!(reason = error.reason(), "the rate limit store is unavailable");
        }
    }

    /// Records a decision that succeeded. During an outage that is known, `is_away`, it was made
    /// from prefetched quota and says nothing about the store.
    pub(crate) fn succeeded(&self, is_away: impl FnOnce() -> bool) {
        if !self.is_degraded.load(Ordering::Relaxed) || is_away() {
            return;
        }
        let mut degraded = self.lock();
        let over = degraded.take_if(|degraded| degraded.last_failure.elapsed() >= QUIET);
        self.is_degraded.store(degraded.is_some(), Ordering::Relaxed);
        if over.is_some() {
            self.gauge.leave();
        }
        drop(degraded);
        if let Some(over) = over {
            self.gauge.record();
            tracing::info!(lasted = ?over.since.elapsed(), "the rate limit store is available again");
        }
    }

    /// Whether a decision failed within the last second.
    pub(crate) fn is_degraded(&self) -> bool {
        let is_recent = |degraded: &Degraded| degraded.last_failure.elapsed() < QUIET;
        self.is_degraded.load(Ordering::Relaxed) && self.lock().as_ref().is_some_and(is_recent)
    }

    /// The health by recent decisions, and by an outage that is known without them.
    pub(crate) fn health(&self, outage: Option<&StoreError>) -> Health {
        let degraded = self.lock();
        match (&*degraded, outage) {
            (Some(Degraded { since, last_failure, .. }), Some(error)) => {
                let began = error.began().filter(|began| *began > *last_failure + QUIET);
                Health::degraded(began.unwrap_or(*since), error)
            }
            (None, Some(error)) => Health::degraded(error.began().unwrap_or_else(Instant::now), error),
            (Some(Degraded { since, last_failure, error }), None) if last_failure.elapsed() < QUIET => {
                Health::degraded(*since, error)
            }
            _ => Health::Available,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Degraded>> {
        self.degraded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for HealthTracker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock().fmt(f)
    }
}

impl Drop for HealthTracker {
    fn drop(&mut self) {
        if self.is_degraded.load(Ordering::Relaxed) {
            self.gauge.leave();
            self.gauge.record();
        }
    }
}

/// The number of degraded limiters in the process. It is recorded as an absolute value, which is
/// also right for a recorder that is installed during an outage.
struct DegradedGauge(AtomicU32);

impl DegradedGauge {
    fn enter(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn leave(&self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }

    /// Records the number, and again if it has changed meanwhile: of several threads, the last one
    /// to record has the current number.
    #[cfg_attr(not(feature = "metrics"), allow(clippy::unused_self))]
    fn record(&self) {
        #[cfg(feature = "metrics")]
        loop {
            let count = self.0.load(Ordering::SeqCst);
            observe::shielded(|| metrics::gauge!("ratelimit_degraded").set(f64::from(count)));
            if self.0.load(Ordering::SeqCst) == count {
                return;
            }
        }
    }
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use tokio::time::advance;

    use super::*;

    const TENTH: Duration = Duration::from_millis(100);

    fn error() -> StoreError {
        StoreError::unavailable("refused")
    }

    fn lasts(health: &Health) -> Option<Duration> {
        match health {
            Health::Available => None,
            Health::Degraded { lasts, .. } => Some(*lasts),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_fails_among_others_is_one_outage() {
        let tracker = HealthTracker::default();
        for tenths in 0..50 {
            tracker.failed(&error());
            tracker.succeeded(|| false);
            assert_eq!(lasts(&tracker.health(None)), Some(tenths * TENTH));
            advance(TENTH).await;
        }
        for _ in 0..8 {
            advance(TENTH).await;
            tracker.succeeded(|| false);
            assert!(tracker.is_degraded.load(Ordering::Relaxed), "less than a second ago");
        }
        advance(TENTH).await;
        tracker.succeeded(|| false);
        assert!(!tracker.is_degraded.load(Ordering::Relaxed));
        assert_eq!(tracker.health(None), Health::Available);
    }

    #[cfg(feature = "redis")]
    #[tokio::test(start_paused = true)]
    async fn an_outage_that_began_long_after_the_last_one_is_another() {
        let tracker = HealthTracker::default();
        tracker.failed(&error());
        advance(3600 * QUIET).await;
        let known = StoreError::unavailable("no route").since(Instant::now());
        advance(TENTH).await;
        assert_eq!(lasts(&tracker.health(Some(&known))), Some(TENTH));
        tracker.failed(&known);
        assert_eq!(lasts(&tracker.health(None)), Some(TENTH));
    }

    #[cfg(feature = "redis")]
    #[tokio::test(start_paused = true)]
    async fn an_outage_begins_before_the_first_call_that_fails() {
        let tracker = HealthTracker::default();
        let known = StoreError::unavailable("no route").since(Instant::now());
        advance(30 * QUIET).await;
        assert_eq!(lasts(&tracker.health(Some(&known))), Some(30 * QUIET));
        tracker.failed(&known);
        assert_eq!(lasts(&tracker.health(Some(&known))), Some(30 * QUIET));
    }

    /// Without calls, no decision could end an outage.
    #[tokio::test(start_paused = true)]
    async fn health_needs_no_calls() {
        let tracker = HealthTracker::default();
        tracker.failed(&error());
        advance(QUIET).await;
        assert_eq!(tracker.health(None), Health::Available);
        advance(QUIET).await;
        let known = StoreError::unavailable("no route");
        assert_eq!(lasts(&tracker.health(Some(&known))), Some(2 * QUIET), "one outage since the first failure");
        let Health::Degraded { reason, .. } = tracker.health(Some(&known)) else { panic!() };
        assert_eq!(reason, "no route");
        assert!(lasts(&HealthTracker::default().health(Some(&known))).is_some());
    }

    #[cfg(feature = "metrics")]
    #[tokio::test(start_paused = true)]
    async fn the_gauge_follows() {
        use std::sync::Arc;

        use metrics::{
            Counter, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
            with_local_recorder,
        };

        static GAUGE: DegradedGauge = DegradedGauge(AtomicU32::new(0));

        /// All values of the gauge.
        #[derive(Debug, Default)]
        struct Values(Mutex<Vec<f64>>);

        impl Values {
            fn last(&self) -> Option<f64> {
                self.0.lock().unwrap().last().copied()
            }

            fn push(&self, value: impl FnOnce(f64) -> f64) {
                let last = self.last().unwrap_or_default();
                self.0.lock().unwrap().push(value(last));
            }
        }

        impl GaugeFn for Values {
            fn increment(&self, by: f64) {
                self.push(|last| last + by);
            }
            fn decrement(&self, by: f64) {
                self.push(|last| last - by);
            }
            fn set(&self, value: f64) {
                self.push(|_| value);
            }
        }

        struct OnlyGauge(Arc<Values>);

        impl Recorder for OnlyGauge {
            fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
            fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
            fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
            fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
                Counter::noop()
            }
            fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
                assert_eq!(key.name(), "ratelimit_degraded");
                Gauge::from_arc(Arc::clone(&self.0))
            }
            fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
                Histogram::noop()
            }
        }

        let values = Arc::<Values>::default();
        let (recorder, tracker) = (OnlyGauge(Arc::clone(&values)), HealthTracker::with_gauge(&GAUGE));
        // A recorder that is installed during an outage gets the current value.
        tracker.failed(&error());
        for _ in 0..3 {
            with_local_recorder(&recorder, || tracker.failed(&error()));
            assert_eq!(values.last(), Some(1.0));
        }
        let other = HealthTracker::with_gauge(&GAUGE);
        with_local_recorder(&recorder, || other.failed(&error()));
        assert_eq!(values.last(), Some(2.0));
        with_local_recorder(&recorder, || drop(other));
        advance(QUIET).await;
        for _ in 0..3 {
            with_local_recorder(&recorder, || tracker.succeeded(|| false));
            assert_eq!(values.last(), Some(0.0));
        }
        // A dropped limiter is not degraded.
        tracker.failed(&error());
        with_local_recorder(&recorder, || drop(tracker));
        assert_eq!(values.last(), Some(0.0));
    }
}
