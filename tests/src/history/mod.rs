//! Histories of calls, and checks of them.
//!
//! A [`Recorder`] notes when each call was invoked and answered, and the answer. [`check`] finds
//! answers that no correct limiter gives, whatever the order of concurrent calls was. [`linearize`]
//! decides for short histories whether one order of the calls explains every answer exactly.

mod interval;
mod linear;
mod recorder;
mod show;
mod stalls;
mod steps;
mod traffic;
mod waits;

use std::collections::BTreeMap;

use ratelimit_runtime::{Algorithm, Refill, Rule};
use serde::{Deserialize, Serialize};

pub use interval::{Bounds, check};
pub use linear::{Linearized, Numbers, linearize};
pub use recorder::{Granted, RecordedLimiter, Recorder, monotonic_us};
pub use show::Accusation;
pub use traffic::{TRAFFIC_RULES, Traffic, traffic};

/// A limit, as a history names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// The rule's prefix.
    pub prefix: String,
    /// The rule's count.
    pub count: u64,
    /// The largest cost that is ever granted.
    pub limit: u64,
    /// Microseconds.
    pub period: u64,
    /// The rule's algorithm.
    pub counting: Counting,
    /// Permits that a process takes at a time; 1 if none are taken ahead.
    pub prefetch: u64,
    /// Denials are cached.
    pub caches: bool,
}

/// An algorithm, as a history names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // those of `Algorithm`
pub enum Counting {
    Fixed,
    Aligned,
    Log,
    Sliding { buckets: u64, weighted: bool },
    Bucket { burst: u64, is_greedy: bool },
    Leaky,
    Concurrent,
}

impl Limit {
    /// Describes a rule. Two settings of it cannot be read from the rule.
    pub fn new(rule: &Rule, prefetch: u64, caches: bool) -> Self {
        let counting = match rule.algorithm() {
            Algorithm::FixedWindow { align: false } => Counting::Fixed,
            Algorithm::FixedWindow { align: true } => Counting::Aligned,
            Algorithm::SlidingLog => Counting::Log,
            Algorithm::SlidingWindow { buckets, weighted } => Counting::Sliding { buckets, weighted },
            Algorithm::TokenBucket { burst, refill } => Counting::Bucket { burst, is_greedy: refill == Refill::Greedy },
            Algorithm::Concurrent => Counting::Concurrent,
            Algorithm::LeakyBucket { .. } => Counting::Leaky,
            other => panic!("the checker of histories does not know {other:?}"),
        };
        let period = u64::try_from(rule.period().as_micros()).unwrap_or(u64::MAX / 4);
        let (prefix, count, limit) = (rule.prefix().to_owned(), rule.count(), rule.limit());
        Self { prefix, count, limit, period, counting, prefetch, caches }
    }
}

/// One call, as its caller saw it. Times are microseconds of the recorder's clock.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Call {
    /// Number of the process.
    pub process: u32,
    /// Number of the call in its process.
    pub id: u64,
    /// Index of the rule in [`History::limits`].
    pub limit: usize,
    /// The key.
    pub key: u64,
    /// The question.
    pub action: Action,
    /// Time of its first poll.
    pub invoked: u64,
    /// Time at which its first poll returned `Pending`, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<u64>,
    /// Time of its answer, or at which it was given up.
    pub answered: u64,
    /// Invoked and answered by the real order of events, if the clock stands still at times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<(u64, u64)>,
    /// The answer.
    pub answer: Answer,
    /// The limiter was degraded when the answer came: the failure policy may have given it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub degraded: bool,
}

/// A question to a limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Charges a cost. A caller who waits says how long, in microseconds.
    Acquire {
        /// The cost.
        cost: u64,
        /// The longest wait.
        within: Option<u64>,
    },
    /// Holds a cost until [`Action::Settle`].
    Hold {
        /// The cost.
        cost: u64,
        /// The longest wait.
        within: Option<u64>,
        /// Time for which the server keeps it without a renewal, in microseconds.
        lease: u64,
    },
    /// Ends a hold and charges what was used. `is_held` as the holder saw it just before.
    Settle {
        /// The call that holds.
        of: u64,
        /// Charged instead.
        used: u64,
        /// The settlement reported that the hold still existed.
        is_held: bool,
    },
    /// Returns the charge of a call.
    Refund {
        /// The call that was charged.
        of: u64,
    },
    /// Reads the counter.
    Peek,
    /// Forgets the counter.
    Reset,
    /// Moves the store's clock forward, in microseconds.
    Advance {
        /// So far.
        by: u64,
    },
}

/// The answer of a limiter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// A permit, with its numbers if there are any.
    Admitted {
        /// `remaining`
        remaining: Option<u64>,
        /// `reset_after`
        reset_after_ms: u64,
    },
    /// `Cause::Exceeded`
    Refused {
        /// `remaining`
        remaining: u64,
        /// `retry_after`
        retry_after_ms: Option<u64>,
    },
    /// `Cause::NeverFits`
    NeverFits,
    /// Cancelled, late, or `Cause::Unavailable`: it may or may not have taken effect.
    Unknown,
    /// Any other error.
    Wrong(String),
    /// A refund, a settlement, a reset: so much was returned.
    Done(u64),
    /// A peek.
    Seen {
        /// `remaining`
        remaining: u64,
        /// `reset_after`
        reset_after_ms: u64,
    },
}

/// Calls, of one process or of several.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct History {
    /// The rules. Two with the same prefix, algorithm and period share their counters.
    pub limits: Vec<Limit>,
    /// The calls, in any order.
    pub calls: Vec<Call>,
}

impl History {
    /// Adds the calls of another process with the same rules.
    pub fn merge(&mut self, other: Self) {
        if self.limits.is_empty() {
            self.limits = other.limits;
        } else {
            assert_eq!(self.limits, other.limits, "histories with different rules");
        }
        self.calls.extend(other.calls);
    }

    /// The calls of each counter, by the time of their invocation.
    fn counters(&self) -> BTreeMap<(&str, u64), Vec<&Call>> {
        let mut counters: BTreeMap<(&str, u64), Vec<&Call>> = BTreeMap::new();
        for call in &self.calls {
            if !matches!(call.action, Action::Advance { .. }) {
                counters.entry((&self.limits[call.limit].prefix, call.key)).or_default().push(call);
            }
        }
        for calls in counters.values_mut() {
            calls.sort_by_key(|call| (call.invoked, call.answered));
        }
        counters
    }
}

impl Call {
    /// The cost that it asks for.
    fn cost(&self) -> u64 {
        match self.action {
            Action::Acquire { cost, .. } | Action::Hold { cost, .. } => cost,
            _ => 0,
        }
    }

    /// The longest wait, of a caller who waits.
    fn within(&self) -> Option<u64> {
        match self.action {
            Action::Acquire { within, .. } | Action::Hold { within, .. } => within,
            _ => None,
        }
    }

    /// It was refused when it had waited as long as it was ready to.
    fn has_waited_in_vain(&self) -> bool {
        let is_over = |within| self.answered >= self.invoked.saturating_add(within);
        matches!(self.answer, Answer::Refused { .. }) && self.within().is_some_and(is_over)
    }

    fn is_admitted(&self) -> bool {
        matches!(self.answer, Answer::Admitted { .. })
    }

    fn is_unknown(&self) -> bool {
        matches!(self.answer, Answer::Unknown)
    }
}
