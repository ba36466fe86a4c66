//! What is told of decisions: events in the log and, with the feature `metrics`, counters and a histogram.
//!
//! Keys are in neither: there may be millions of them, and they may be names of people.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::{OnStoreError, RequestPerMinute, Rule, error::StoreError};

/// A rule has let a call through, and so much of it remains.
#[inline]
#[cfg_attr(not(feature = "metrics"), allow(unused_variables))]
pub(crate) fn admitted(rule: &Rule, remaining: u64) {
    #[cfg(feature = "metrics")]
    recorder::admitted(rule, remaining);
}

/// A call ends with a refusal.
#[inline]
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

/// A rule that is only tried out would have refused a call.
pub(crate) fn refused_in_shadow(rule: &Rule) {
    static SAID: RuleLogThrottle = RuleLogThrottle::new();
    #[cfg(feature = "metrics")]
    recorder::refused_in_shadow(rule);
    if SAID.allow(rule) {
        tracing::info!(rule = rule.prefix(), "a limit in shadow mode would have refused a call");
    }
}

/// What is held could not be renewed: when its time is over, it is charged in full, or lost.
pub(crate) fn not_renewed(rule: &Rule, error: &StoreError) {
    static SAID: RuleLogThrottle = RuleLogThrottle::new();
    if SAID.allow(rule) {
        tracing::warn!(rule = rule.prefix(), %error, "what a call holds could not be renewed");
    }
}

/// What was held could not be settled.
pub(crate) fn not_settled(rule: &Rule, error: &StoreError) {
    static SAID: RuleLogThrottle = RuleLogThrottle::new();
    if SAID.allow(rule) {
        tracing::warn!(rule = rule.prefix(), %error, "what a call held could not be settled: it is charged in full when its time is over");
    }
}

/// What the store could not decide goes by a policy.
#[cfg_attr(not(feature = "metrics"), allow(unused_variables))]
pub(crate) fn fallback_decision(policy: OnStoreError) {
    #[cfg(feature = "metrics")]
    metrics::counter!("ratelimit_decisions_without_store_total", "policy" => match policy {
        OnStoreError::Local => "local",
        OnStoreError::Allow => "allow",
        OnStoreError::Deny => "deny",
    })
    .increment(1);
}

/// A call to a server carries so many decisions.
#[cfg(feature = "redis")]
#[cfg_attr(not(feature = "metrics"), allow(unused_variables))]
pub(crate) fn store_round_trip(decisions: usize) {
    #[cfg(feature = "metrics")]
    {
        metrics::counter!("ratelimit_store_calls_total").increment(1);
        metrics::counter!("ratelimit_store_decisions_total").increment(decisions as u64);
    }
}

/// A rule is known to refuse, and the store is not asked.
#[cfg_attr(not(feature = "metrics"), allow(unused_variables))]
pub(crate) fn cached_denial(rule: &Rule) {
    #[cfg(feature = "metrics")]
    recorder::cached_denial(rule);
}

/// A store has given its answer after so long, or a caller has waited so long for none.
#[cfg_attr(not(feature = "metrics"), allow(unused_variables))]
#[cfg(any(feature = "redis", feature = "metrics"))]
pub(crate) fn store_latency(wait: Duration) {
    #[cfg(feature = "metrics")]
    metrics::histogram!("ratelimit_store_seconds").record(wait);
}

/// How long a store takes for an answer.
pub(crate) struct StoreTimer(#[cfg(feature = "metrics")] Instant);

impl StoreTimer {
    pub(crate) fn start() -> Self {
        Self(
            #[cfg(feature = "metrics")]
            Instant::now(),
        )
    }

    #[allow(clippy::unused_self)] // without `metrics` there is nothing in it
    pub(crate) fn stop(self) {
        #[cfg(feature = "metrics")]
        store_latency(self.0.elapsed());
    }
}

/// A caller waits, until this is dropped.
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
        tracing::debug!(rule = prefix, "a call waits for its rate limit");
        Self { began: Instant::now(), prefix, admitted: false }
    }

    pub(crate) fn stop(mut self, admitted: bool) {
        self.admitted = admitted;
    }
}

impl Drop for WaitTimer {
    fn drop(&mut self) {
        let Self { began, prefix, admitted } = *self;
        let waited = began.elapsed();
        #[cfg(feature = "metrics")]
        {
            metrics::gauge!("ratelimit_waiting", "rule" => prefix).decrement(1);
            metrics::histogram!("ratelimit_wait_seconds", "rule" => prefix).record(waited);
        }
        tracing::debug!(rule = prefix, ?waited, admitted, "a call no longer waits for its rate limit");
    }
}

/// Every caller is told what concerns it; the log once a second, or it would be as long as the list of calls.
pub(crate) struct LogThrottle(Mutex<Option<Instant>>);

impl LogThrottle {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Whether nothing was said for a second.
    pub(crate) fn allow(&self) -> bool {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let may = said.is_none_or(|said| said.elapsed() >= Duration::from_secs(1));
        if may {
            *said = Some(Instant::now());
        }
        may
    }
}

/// The same for each rule, so that one that speaks all the time does not silence another.
struct RuleLogThrottle(Mutex<BTreeMap<&'static str, Instant>>);

impl RuleLogThrottle {
    const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// Whether nothing was said of the rule for a second.
    fn allow(&self, rule: &Rule) -> bool {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let last = said.get(rule.prefix());
        let may = last.is_none_or(|last| now.duration_since(*last) >= Duration::from_secs(1));
        if may {
            said.insert(rule.prefix(), now);
        }
        may
    }
}

/// Tells a recorder that is there already what the metrics mean.
pub(crate) fn describe() {
    #[cfg(feature = "metrics")]
    recorder::describe();
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

    /// What is counted for each rule.
    #[derive(Clone, Copy)]
    enum Recorded {
        Admitted,
        Refused,
        RefusedInShadow,
        NeverFits,
        MissingKey,
        Unavailable,
        Misconfigured,
        NearLimit,
        Known,
    }

    const DECISIONS: &str = "ratelimit_decisions_total";
    const OUTCOMES: [&str; 7] =
        ["admitted", "refused", "shadow_refused", "never_fits", "missing_key", "unavailable", "misconfigured"];
    const MORE: [&str; 2] = ["ratelimit_near_limit_total", "ratelimit_known_refusals_total"];

    static METADATA: Metadata<'_> = Metadata::new(module_path!(), Level::INFO, Some(module_path!()));

    /// The names of a rule's counters, by [`Recorded`]. Made once and kept: a decision in memory takes no more time than a few
    /// allocations would.
    type Series = [Key; OUTCOMES.len() + MORE.len()];

    fn series(prefix: &'static str) -> &'static Series {
        /// By the address of the prefix, as a program has few of them, and to hash one takes longer.
        type Known = HashMap<(usize, usize), &'static Series>;
        static MADE: LazyLock<Mutex<HashMap<&'static str, &'static Series>>> = LazyLock::new(Mutex::default);
        thread_local! {
            static KNOWN: RefCell<Known> = RefCell::default();
        }
        let make = || {
            let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
            *made.entry(prefix).or_insert_with(|| {
                let rule = || Label::from_static_parts("rule", prefix);
                let outcome = |at: usize| match OUTCOMES.get(at) {
                    Some(outcome) => {
                        Key::from_parts(DECISIONS, vec![rule(), Label::from_static_parts("outcome", outcome)])
                    }
                    None => Key::from_parts(MORE[at - OUTCOMES.len()], vec![rule()]),
                };
                Box::leak(Box::new(std::array::from_fn(outcome)))
            })
        };
        let address = (prefix.as_ptr().addr(), prefix.len());
        KNOWN.try_with(|known| *known.borrow_mut().entry(address).or_insert_with(make)).unwrap_or_else(|_| make())
    }

    fn count(prefix: &'static str, what: Recorded) {
        let key = &series(prefix)[what as usize];
        with_recorder(|recorder| recorder.register_counter(key, &METADATA).increment(1));
    }

    pub(super) fn admitted(rule: &Rule, remaining: u64) {
        count(rule.prefix(), Recorded::Admitted);
        if remaining < rule.limit().div_ceil(10) {
            count(rule.prefix(), Recorded::NearLimit);
        }
    }

    pub(super) fn refused(refused: &RequestPerMinute) {
        let cause = match refused.cause() {
            Cause::Exceeded => Recorded::Refused,
            Cause::NeverFits => Recorded::NeverFits,
            Cause::MissingKey => Recorded::MissingKey,
            Cause::Unavailable => Recorded::Unavailable,
            Cause::Misconfigured => Recorded::Misconfigured,
        };
        count(refused.rule(), cause);
    }

    pub(super) fn cached_denial(rule: &Rule) {
        count(rule.prefix(), Recorded::Known);
    }

    pub(super) fn refused_in_shadow(rule: &Rule) {
        count(rule.prefix(), Recorded::RefusedInShadow);
    }

    pub(super) fn describe() {
        describe_counter!(DECISIONS, Unit::Count, "Decisions, by the rule's prefix and what came of them.");
        describe_counter!(
            MORE[0],
            Unit::Count,
            "Admitted calls that leave less than a tenth of the limit, by the rule's prefix."
        );
        describe_counter!(
            MORE[1],
            Unit::Count,
            "Refusals that were known without asking the store, by the rule's prefix."
        );
        describe_counter!(
            "ratelimit_decisions_without_store_total",
            Unit::Count,
            "Decisions by a policy, as the store could not decide."
        );
        describe_counter!(
            "ratelimit_store_calls_total",
            Unit::Count,
            "Calls to a Redis server that carried decisions."
        );
        describe_counter!("ratelimit_store_decisions_total", Unit::Count, "Decisions that such calls carried.");
        describe_histogram!("ratelimit_store_seconds", Unit::Seconds, "How long the store took for an answer.");
        describe_gauge!("ratelimit_waiting", Unit::Count, "Callers that wait for their limit, by the rule's prefix.");
        describe_histogram!(
            "ratelimit_wait_seconds",
            Unit::Seconds,
            "How long callers waited for their limit, by the rule's prefix."
        );
        describe_gauge!("ratelimit_degraded", Unit::Count, "Limiters whose store does not decide.");
    }
}
