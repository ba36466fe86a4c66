//! Events in the log, and with the feature `metrics` also metrics.
//!
//! Neither contains keys: there may be millions of them, and they may be personal data.

use std::{
    collections::BTreeMap,
    future::{Future, poll_fn},
    panic::{self, AssertUnwindSafe},
    pin::Pin,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use tracing::{
    Span,
    level_filters::{LevelFilter, STATIC_MAX_LEVEL},
};

use crate::{OnStoreError, RequestPerMinute, Rule, error::StoreError};

/// Records what others than its caller depend on. A recorder or a log subscriber may panic: that ends only the record.
pub(crate) fn shielded(record: impl FnOnce()) {
    let _ = panic::catch_unwind(AssertUnwindSafe(record));
}

/// Awaits a future within a span. A panic of a subscriber does not lose the output, which may have places.
pub(crate) async fn in_span<F: Future>(span: Span, mut future: Pin<&mut F>) -> F::Output {
    let output = poll_fn(|context| {
        let in_span = span.enter();
        let polled = future.as_mut().poll(context);
        shielded(|| drop(in_span));
        polled
    })
    .await;
    shielded(|| drop(span));
    output
}

/// Records that a rule admitted a call, and what remains of its limit.
#[inline]
#[cfg_attr(not(feature = "metrics"), allow(unused_variables))]
pub(crate) fn admitted(rule: &Rule, remaining: u64) {
    #[cfg(feature = "metrics")]
    recorder::admitted(rule, remaining);
}

/// Whether [`refused`] may do anything.
#[inline]
pub(crate) fn records_refusals() -> bool {
    cfg!(feature = "metrics") || may_log_refusals()
}

/// Whether a refusal may be logged. With its feature `log`, `tracing` also writes to the logger of the `log` crate,
/// mostly where it has no subscriber.
#[inline]
fn may_log_refusals() -> bool {
    let to_subscriber = STATIC_MAX_LEVEL >= LevelFilter::DEBUG && LevelFilter::current() >= LevelFilter::DEBUG;
    to_subscriber || log::STATIC_MAX_LEVEL >= log::LevelFilter::Debug && log::max_level() >= log::LevelFilter::Debug
}

/// Records that a call was refused.
pub(crate) fn refused(refused: &RequestPerMinute) {
    #[cfg(feature = "metrics")]
    recorder::refused(refused);
    tracing::debug!(
        rule = refused.rule(),
        cause = ?refused.cause(),
        retry_after = ?refused.retry_after(),
        "a rate limit refuses a call"
    );
}

/// Records that a rule in shadow mode would have refused a call.
pub(crate) fn refused_in_shadow(rule: &Rule) {
    static LOGGED: RuleLogThrottle = RuleLogThrottle::new();
    #[cfg(feature = "metrics")]
    recorder::refused_in_shadow(rule);
    if LOGGED.allow(rule) {
        tracing::info!(rule = rule.prefix(), "a rule in shadow mode would have refused a call");
    }
}

/// Logs that a hold could not be renewed. When its lease ends, it is charged in full, or its place
/// is lost.
pub(crate) fn not_renewed(rule: &Rule, error: &StoreError) {
    static LOGGED: RuleLogThrottle = RuleLogThrottle::new();
    if LOGGED.allow(rule) {
        tracing::warn!(rule = rule.prefix(), %error, "cannot renew the hold of a call");
    }
}

/// Logs that the store no longer has the hold of a running call.
pub(crate) fn hold_lost(rule: &Rule) {
    static LOGGED: RuleLogThrottle = RuleLogThrottle::new();
    if LOGGED.allow(rule) {
        tracing::warn!(rule = rule.prefix(), "the store has lost the hold of a running call");
    }
}

/// Logs that a charge could not be settled.
pub(crate) fn not_settled(rule: &Rule, error: &StoreError) {
    static LOGGED: RuleLogThrottle = RuleLogThrottle::new();
    if LOGGED.allow(rule) {
        tracing::warn!(rule = rule.prefix(), %error, "cannot settle a call");
    }
}

/// Logs that the memory store has no room for a new counter.
pub(crate) fn memory_is_full(error: &StoreError) {
    static LOGGED: LogThrottle = LogThrottle::new();
    if LOGGED.allow() {
        tracing::warn!(reason = error.reason(), "the memory store has no room for new keys");
    }
}

/// Logs that the memory store counts new keys in its overflow.
pub(crate) fn memory_overflows() {
    static LOGGED: LogThrottle = LogThrottle::new();
    if LOGGED.allow() {
        tracing::warn!("the memory store is full, and counts new keys in its overflow");
    }
}

/// Records a decision by the failure policy, whether it admits the call or not.
#[cfg_attr(not(feature = "metrics"), allow(unused_variables))]
pub(crate) fn fallback_decision(policy: OnStoreError) {
    #[cfg(feature = "metrics")]
    metrics::counter!("ratelimit_fallback_decisions_total", "policy" => match policy {
        OnStoreError::Local => "local",
        OnStoreError::Allow => "allow",
        OnStoreError::Deny => "deny",
        OnStoreError::Wait { .. } => "wait",
    })
    .increment(1);
}

/// Records a round trip to a server, for which several callers may wait, and the number of decisions it carried.
#[cfg(feature = "redis")]
#[cfg_attr(not(feature = "metrics"), allow(unused_variables))]
pub(crate) fn store_round_trip(decisions: usize) {
    #[cfg(feature = "metrics")]
    shielded(|| {
        metrics::counter!("ratelimit_store_round_trips_total").increment(1);
        metrics::counter!("ratelimit_store_decisions_total").increment(decisions as u64);
    });
}

/// Records a denial from the cache.
#[cfg_attr(not(feature = "metrics"), allow(unused_variables))]
pub(crate) fn cached_denial(rule: &Rule) {
    #[cfg(feature = "metrics")]
    shielded(|| recorder::cached_denial(rule)); // a panic would end a prefetch that others wait for
}

/// Records how long a store took to answer, or a caller waited in vain. The answer may have places without an owner.
#[cfg_attr(not(feature = "metrics"), allow(unused_variables))]
#[cfg(any(feature = "redis", feature = "metrics"))]
pub(crate) fn store_latency(wait: Duration) {
    #[cfg(feature = "metrics")]
    shielded(|| metrics::histogram!("ratelimit_store_duration_seconds").record(wait));
}

/// Measures how long a store takes to answer.
pub(crate) struct StoreTimer(#[cfg(feature = "metrics")] Instant);

impl StoreTimer {
    pub(crate) fn start() -> Self {
        Self(
            #[cfg(feature = "metrics")]
            Instant::now(),
        )
    }

    #[allow(clippy::unused_self)] // it is empty without `metrics`
    pub(crate) fn stop(self) {
        #[cfg(feature = "metrics")]
        store_latency(self.0.elapsed());
    }
}

/// Counts a caller as waiting until it is dropped, and then records how long it waited.
pub(crate) struct WaitTimer {
    began: Instant,
    prefix: &'static str,
    admitted: bool,
}

impl WaitTimer {
    pub(crate) fn start(rule: &Rule) -> Self {
        let prefix = rule.prefix();
        #[cfg(feature = "metrics")]
        metrics::gauge!("ratelimit_waiting", "rule" => prefix).increment(1);
        let timer = Self { began: Instant::now(), prefix, admitted: false };
        tracing::debug!(rule = prefix, "a call waits for its rate limit");
        timer
    }

    pub(crate) fn stop(mut self, admitted: bool) {
        self.admitted = admitted;
    }

    fn record(&self) {
        let Self { began, prefix, admitted } = *self;
        let waited = began.elapsed();
        #[cfg(feature = "metrics")]
        {
            metrics::gauge!("ratelimit_waiting", "rule" => prefix).decrement(1);
            metrics::histogram!("ratelimit_wait_duration_seconds", "rule" => prefix).record(waited);
        }
        tracing::debug!(rule = prefix, ?waited, admitted, "a call no longer waits for its rate limit");
    }
}

impl Drop for WaitTimer {
    fn drop(&mut self) {
        shielded(|| self.record()); // while a panic unwinds, a second one would end the process
    }
}

/// Limits a log event to one a second: it could otherwise occur with every call.
pub(crate) struct LogThrottle(Mutex<Option<Instant>>);

impl LogThrottle {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Whether the last event is at least a second ago.
    pub(crate) fn allow(&self) -> bool {
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let allowed = logged.is_none_or(|logged| logged.elapsed() >= Duration::from_secs(1));
        if allowed {
            *logged = Some(Instant::now());
        }
        allowed
    }
}

/// A [`LogThrottle`] for each rule, so that a frequent event of one rule does not suppress that of
/// another.
struct RuleLogThrottle(Mutex<BTreeMap<&'static str, Instant>>);

impl RuleLogThrottle {
    const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// Whether the rule's last event is at least a second ago.
    fn allow(&self, rule: &Rule) -> bool {
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let last = logged.get(rule.prefix());
        let allowed = last.is_none_or(|last| now.duration_since(*last) >= Duration::from_secs(1));
        if allowed {
            logged.insert(rule.prefix(), now);
        }
        allowed
    }
}

/// Describes the metrics to the installed recorder.
pub(crate) fn describe() {
    #[cfg(feature = "metrics")]
    shielded(recorder::describe); // also within the `Lazy` of the process-wide limiter
}

#[cfg(feature = "metrics")]
mod recorder {
    use std::{
        cell::RefCell,
        collections::HashMap,
        sync::{LazyLock, Mutex, PoisonError},
    };

    use metrics::{
        Key, Label, Level, Metadata, Unit, describe_counter, describe_gauge, describe_histogram, with_recorder,
    };

    use crate::{Cause, RequestPerMinute, Rule};

    /// The counters of a rule: those of [`OUTCOMES`], then those of [`OTHERS`], in the same order.
    /// [`series`] finds them by their number.
    #[derive(Clone, Copy)]
    enum Recorded {
        Admitted,
        Refused,
        RefusedInShadow,
        NeverFits,
        MissingKey,
        Unavailable,
        Misconfigured,
        Banned,
        NearLimit,
        CachedDenial,
    }

    const DECISIONS: &str = "ratelimit_decisions_total";
    const OUTCOMES: [&str; 8] = [
        "admitted",
        "refused",
        "shadow_refused",
        "never_fits",
        "missing_key",
        "unavailable",
        "misconfigured",
        "banned",
    ];
    const OTHERS: [&str; 2] = ["ratelimit_near_limit_total", "ratelimit_cached_denials_total"];

    static METADATA: Metadata<'_> = Metadata::new(module_path!(), Level::INFO, Some(module_path!()));

    /// The metric keys of a rule, by [`Recorded`]. Cached, as a decision in memory takes no longer
    /// than a few allocations.
    type Series = [Key; OUTCOMES.len() + OTHERS.len()];

    fn series(prefix: &'static str) -> &'static Series {
        /// By the address and length of the prefix: a program has few prefixes, and hashing the
        /// text is slower.
        type SeriesByAddress = HashMap<(usize, usize), &'static Series>;
        static ALL: LazyLock<Mutex<HashMap<&'static str, &'static Series>>> = LazyLock::new(Mutex::default);
        thread_local! {
            static LOCAL: RefCell<SeriesByAddress> = RefCell::default();
        }
        let make = || {
            let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
            *all.entry(prefix).or_insert_with(|| {
                let rule = || Label::from_static_parts("rule", prefix);
                let outcome = |at: usize| match OUTCOMES.get(at) {
                    Some(outcome) => {
                        Key::from_parts(DECISIONS, vec![rule(), Label::from_static_parts("outcome", outcome)])
                    }
                    None => Key::from_parts(OTHERS[at - OUTCOMES.len()], vec![rule()]),
                };
                Box::leak(Box::new(std::array::from_fn(outcome)))
            })
        };
        let address = (prefix.as_ptr().addr(), prefix.len());
        LOCAL.try_with(|local| *local.borrow_mut().entry(address).or_insert_with(make)).unwrap_or_else(|_| make())
    }

    fn increment(prefix: &'static str, counter: Recorded) {
        let key = &series(prefix)[counter as usize];
        with_recorder(|recorder| recorder.register_counter(key, &METADATA).increment(1));
    }

    pub(super) fn admitted(rule: &Rule, remaining: u64) {
        increment(rule.prefix(), Recorded::Admitted);
        if remaining < rule.limit().div_ceil(10) {
            increment(rule.prefix(), Recorded::NearLimit);
        }
    }

    pub(super) fn refused(refused: &RequestPerMinute) {
        let cause = match refused.cause() {
            Cause::Exceeded => Recorded::Refused,
            Cause::NeverFits => Recorded::NeverFits,
            Cause::MissingKey => Recorded::MissingKey,
            Cause::Unavailable => Recorded::Unavailable,
            Cause::Misconfigured => Recorded::Misconfigured,
            Cause::Banned => Recorded::Banned,
        };
        increment(refused.rule(), cause);
    }

    pub(super) fn cached_denial(rule: &Rule) {
        increment(rule.prefix(), Recorded::CachedDenial);
    }

    pub(super) fn refused_in_shadow(rule: &Rule) {
        increment(rule.prefix(), Recorded::RefusedInShadow);
    }

    pub(super) fn describe() {
        describe_counter!(DECISIONS, Unit::Count, "Decisions, by the rule's prefix and the outcome.");
        describe_counter!(
            OTHERS[0],
            Unit::Count,
            "Admitted calls that leave less than a tenth of the limit, by the rule's prefix."
        );
        describe_counter!(
            OTHERS[1],
            Unit::Count,
            "Denials from the cache, without asking the store, by the rule's prefix."
        );
        describe_counter!(
            "ratelimit_fallback_decisions_total",
            Unit::Count,
            "Decisions by the failure policy, as the store could not decide."
        );
        describe_counter!(
            "ratelimit_store_round_trips_total",
            Unit::Count,
            "Round trips to Redis servers that carried decisions."
        );
        describe_counter!(
            "ratelimit_store_decisions_total",
            Unit::Count,
            "Decisions carried by round trips to Redis servers."
        );
        describe_histogram!("ratelimit_store_duration_seconds", Unit::Seconds, "How long the store took to answer.");
        describe_gauge!(
            "ratelimit_waiting",
            Unit::Count,
            "Callers that wait for their rate limit now, by the rule's prefix."
        );
        describe_histogram!(
            "ratelimit_wait_duration_seconds",
            Unit::Seconds,
            "How long callers waited for their rate limit, by the rule's prefix."
        );
        describe_gauge!("ratelimit_degraded", Unit::Count, "Limiters whose store is unavailable.");
    }
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use std::{env, process::Command};

    use super::*;

    /// Runs once more in a process of its own, where `tracing` has no subscriber.
    #[test]
    fn refusals_are_made_for_a_logger_at_its_level() {
        const IS_CHILD: &str = "RATELIMIT_TEST_LOG_LEVEL";
        if env::var_os(IS_CHILD).is_none() {
            let name = "observe::tests::refusals_are_made_for_a_logger_at_its_level";
            let child = Command::new(env::current_exe().unwrap()).args(["--exact", name]).env(IS_CHILD, "1").output();
            let child = child.unwrap();
            let output = String::from_utf8_lossy(&child.stdout);
            assert!(child.status.success() && output.contains("1 passed"), "{output}");
            return;
        }
        assert!(!may_log_refusals());
        log::set_max_level(log::LevelFilter::Info);
        assert!(!may_log_refusals());
        log::set_max_level(log::LevelFilter::Debug);
        assert!(may_log_refusals());
        log::set_max_level(log::LevelFilter::Off);
        tracing::subscriber::with_default(Everything, || assert!(may_log_refusals()));
    }

    /// A subscriber of all events.
    struct Everything;

    impl tracing::Subscriber for Everything {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }

        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

        fn event(&self, _: &tracing::Event<'_>) {}

        fn enter(&self, _: &tracing::span::Id) {}

        fn exit(&self, _: &tracing::span::Id) {}
    }
}
