//! Checks long histories: every call may have been decided at any time between its invocation and its answer.
//!
//! Sound: a history of a correct limiter is never accused, as long as the [`Bounds`] hold. Not
//! complete: see [`super::linearize`].
//!
//! A `LeakyBucket` is checked only for errors and for answers that never fit: its callers see their
//! slots too late to count them.

mod bucket;
mod entries;
mod windows;

use std::collections::HashMap;
use std::fmt::Display;

use self::entries::entries;
use super::show::Accusation;
use super::stalls::Stalls;
use super::steps::{Entry, Step, Steps};
use super::{Action, Answer, Call, Counting, History, Limit, waits};

/// Deviations of a correct limiter. Times are in microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Largest difference between the clocks of store and recorder over one period, with rounding
    /// to milliseconds.
    pub skew: u64,
    /// A call without an answer may take effect up to this long after it was given up.
    pub straggler: u64,
    /// An answer tells of a decision that is no older.
    pub decision: u64,
    /// Longest wait on a counter that certainly has room. `None`: not checked.
    pub idle: Option<u64>,
    /// A process without any event for this long stood still. The times below do not count then.
    pub stall: u64,
    /// A later caller passes a waiting one if it is answered this much earlier.
    pub pass_slack: u64,
    /// A caller whose first poll was pending may have its first request in flight for this long.
    /// From then on it is queued.
    pub queued: u64,
    /// Number of later callers who may pass a waiting one. `None`: not checked.
    pub passes: Option<usize>,
    /// Servers may have been away or processes stopped for a whole lease, so that a hold may be lost.
    pub holds_may_be_lost: bool,
    /// Refusals of callers who wait contain the wait they would have had.
    pub waits_are_told: bool,
}

impl Default for Bounds {
    /// For processes of one busy machine, and a deadline of 100 ms. Requests in several packets may
    /// be decided in any order, so a few later callers may pass.
    fn default() -> Self {
        Self {
            skew: 3_000,
            straggler: 5_000_000,
            decision: 350_000,
            stall: 50_000,
            idle: Some(400_000),
            pass_slack: 250_000,
            queued: 150_000,
            passes: Some(3),
            holds_may_be_lost: false,
            waits_are_told: true,
        }
    }
}

impl Bounds {
    /// For a memory store whose clock the test moves, and lets every caller go on before it is moved again.
    pub fn of_controlled_clock() -> Self {
        Self {
            skew: 0,
            straggler: 0,
            decision: 0,
            stall: u64::MAX,
            idle: Some(0),
            pass_slack: 0,
            queued: 0,
            passes: Some(0),
            ..Self::default()
        }
    }
}

/// Finds answers that no correct limiter gives.
pub fn check(history: &History, bounds: &Bounds) -> Vec<Accusation> {
    let mut accusations = Vec::new();
    let stalls = Stalls::new(&history.calls, bounds.stall);
    for ((prefix, key), calls) in history.counters() {
        let counter = Counter::new(format!("`{prefix}` of key {key}"), &history.limits, calls, (bounds, &stalls));
        accusations.extend(counter.check());
    }
    accusations
}

/// The calls of one counter.
#[allow(clippy::struct_excessive_bools)] // each says something of its own
pub(super) struct Counter<'a> {
    pub(super) name: String,
    pub(super) limits: &'a [Limit],
    pub(super) limit: &'a Limit,
    pub(super) calls: Vec<&'a Call>,
    pub(super) bounds: &'a Bounds,
    pub(super) stalls: &'a Stalls,
    pub(super) entries: Vec<Entry<'a>>,
    pub(super) steps: Steps,
    natural: Option<Steps>,
    has_resets: bool,
    has_refunds: bool,
    has_holds: bool,
    is_plain: bool,
    /// Quota that other processes may hold.
    pub(super) ahead: i64,
    pub(super) accusations: Vec<Accusation>,
}

/// After so many, a counter needs no more.
const ENOUGH: usize = 3;

pub(super) fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX / 1_000_000)
}

impl<'a> Counter<'a> {
    fn new(
        name: String,
        limits: &'a [Limit],
        calls: Vec<&'a Call>,
        (bounds, stalls): (&'a Bounds, &'a Stalls),
    ) -> Self {
        let limit = &limits[calls[0].limit];
        let is_action = |of: fn(&Action) -> bool| calls.iter().any(|call| of(&call.action));
        let has_resets = is_action(|action| matches!(action, Action::Reset));
        let has_refunds = is_action(|action| matches!(action, Action::Refund { .. }));
        let has_holds = is_action(|action| matches!(action, Action::Hold { .. }));
        let is_changed = calls.iter().any(|call| call.limit != calls[0].limit);
        let is_degraded = calls.iter().any(|call| call.degraded);
        let mut processes: Vec<u32> = calls.iter().map(|call| call.process).collect();
        processes.sort_unstable();
        processes.dedup();
        let others = processes.len().saturating_sub(1);
        // A process takes up to 64 prefetches at once, and does not know the outcome of one without
        // a reply.
        let unknown = calls.iter().filter(|call| call.is_unknown()).count();
        let ahead =
            if limit.prefetch > 1 { number(limit.prefetch) * 64 * number((others + unknown) as u64) } else { 0 };
        let entries = entries(limits, &calls, bounds, stalls);
        let steps = Steps::new(&entries, false);
        // Another process does not know that a denial it has cached is void.
        let natural = (limit.caches && others > 0 && (has_refunds || has_resets)).then(|| Steps::new(&entries, true));
        let is_plain = !(has_resets || has_refunds || has_holds || is_changed || is_degraded);
        let accusations = Vec::new();
        Self {
            name,
            limits,
            limit,
            calls,
            bounds,
            stalls,
            entries,
            steps,
            natural,
            has_resets,
            has_refunds,
            has_holds,
            is_plain,
            ahead,
            accusations,
        }
    }

    fn check(mut self) -> Vec<Accusation> {
        self.errors();
        match self.limit.counting {
            Counting::Leaky => return self.accusations,
            Counting::Bucket { .. } => {
                self.bucket_never_passed();
                self.bucket_refusals();
            }
            _ => {
                self.never_passed();
                self.answers();
                self.retries();
                self.refunds();
            }
        }
        if matches!(self.limit.counting, Counting::Fixed | Counting::Aligned) {
            self.windows();
        }
        waits::order(&mut self);
        if !matches!(self.limit.counting, Counting::Bucket { .. }) {
            waits::idle(&mut self);
        }
        self.accusations.truncate(ENOUGH);
        self.accusations
    }

    /// Accuses a call, and shows the calls that ended after `from` and began before `until`.
    pub(super) fn accuse(
        &mut self,
        broken: &'static str,
        message: impl Display,
        call: Option<&Call>,
        span: (u64, u64),
    ) {
        if self.accusations.len() >= ENOUGH {
            return;
        }
        let calls = self.calls.iter().filter(|call| call.answered >= span.0 && call.invoked <= span.1);
        // A refusal before or after tells little of another one.
        let is_admitted = |other: &&&Call| {
            !matches!(other.answer, Answer::Refused { .. })
                || other.within().is_some()
                || call.is_some_and(|call| call.id == other.id && call.process == other.process)
        };
        self.accusations.push(Accusation {
            broken,
            message: format!("{}: {message}", self.name),
            calls: calls.filter(is_admitted).map(|call| (*call).clone()).collect(),
            accused: call.map(|call| (call.process, call.id)),
            limits: self.limits.to_vec(),
        });
    }

    /// The time from which calls may still count at `time`.
    pub(super) fn before(&self, time: u64) -> u64 {
        time.saturating_sub(2 * self.limit.period + self.bounds.decision)
    }

    fn errors(&mut self) {
        for call in self.calls.clone() {
            let limit = &self.limits[call.limit];
            match &call.answer {
                Answer::Wrong(message) => {
                    let span = (call.invoked, call.answered);
                    self.accuse("an error without a reason", message.clone(), Some(call), span);
                }
                Answer::NeverFits if call.cost() <= limit.limit => {
                    let message = format!("a cost of {} fits into {}", call.cost(), limit.limit);
                    self.accuse("refused for ever", message, Some(call), (call.invoked, call.answered));
                }
                _ => {}
            }
            if let Action::Settle { of, is_held: false, .. } = call.action
                && !self.bounds.holds_may_be_lost
                && !call.degraded
                && let Some(hold) =
                    self.calls.iter().copied().find(|hold| (hold.process, hold.id) == (call.process, of))
                && !hold.degraded
            {
                let message = format!("the hold #{of} was not renewed");
                self.accuse("a hold was lost", message, Some(call), (hold.invoked, call.answered));
            }
        }
    }

    /// Certain charges that were not refunded.
    fn kept(&self) -> impl Iterator<Item = &Entry<'a>> {
        self.entries.iter().filter(|entry| entry.is_certain && entry.until == entry.natural)
    }

    /// Each answer fits the state of the counter at some time at which it may have been decided.
    fn answers(&mut self) {
        let is_exact = self.limit.prefetch <= 1;
        let slack = i64::from(matches!(self.limit.counting, Counting::Sliding { .. })); // a weight is rounded up
        for call in self.calls.clone() {
            // One whose patience is over may have been behind others until then.
            if call.degraded || call.has_waited_in_vain() {
                continue;
            }
            let (limit, cost) = (number(self.limits[call.limit].limit), number(call.cost()));
            // A waiting caller may be refused with the wait of an earlier one.
            let from = if call.within().is_some() && matches!(call.answer, Answer::Refused { .. }) {
                self.stalls.before(call.process, call.invoked, self.bounds.decision)
            } else if call.within().is_some() && call.is_admitted() {
                call.invoked.max(self.stalls.before(call.process, call.answered, self.bounds.decision))
            } else {
                call.invoked
            };
            let any = |steps: &Steps, is_right: &dyn Fn(Step) -> bool| steps.between(from, call.answered).any(is_right);
            let span = (self.before(call.invoked), call.answered);
            match call.answer {
                Answer::Admitted { remaining, .. } => {
                    if !any(&self.steps, &|step| step.least + cost <= limit) {
                        let least = self.steps.between(from, call.answered).map(|step| step.least).min();
                        let message =
                            format!("{} are in use, and a cost of {cost} is admitted of {limit}", least.unwrap_or(0));
                        self.accuse("admitted without room", message, Some(call), span);
                    } else if let Some(remaining) = remaining
                        && is_exact
                    {
                        let used = limit - number(remaining) - cost;
                        let is_right = |step: Step| step.least <= used && used <= step.most - cost + slack;
                        if !any(&self.steps, &is_right) {
                            let range = self.range(from, call.answered, cost);
                            let message =
                                format!("{remaining} remain of {limit} after {cost}, but before it {range} were used");
                            self.accuse("a wrong `remaining`", message, Some(call), span);
                        }
                    }
                }
                Answer::Refused { remaining, .. } => {
                    let steps = self.natural.as_ref().unwrap_or(&self.steps);
                    let ahead = self.ahead + slack;
                    if !any(steps, &|step| step.most + ahead + cost > limit) {
                        let range = self.range(from, call.answered, 0);
                        let message = format!("a cost of {cost} is refused of {limit}, though only {range} were used");
                        self.accuse("a refusal without a reason", message, Some(call), span);
                    } else if is_exact && call.within().is_none() {
                        let used = limit - number(remaining);
                        let is_right =
                            |step: Step| step.most + slack >= used && (self.limit.caches || step.least <= used);
                        if number(remaining) >= cost || !any(steps, &is_right) {
                            let range = self.range(from, call.answered, 0);
                            let message =
                                format!("{remaining} remain of {limit} at a cost of {cost}, but {range} were used");
                            self.accuse("a wrong `remaining` of a refusal", message, Some(call), span);
                        }
                    }
                }
                Answer::Seen { remaining, .. } if is_exact => {
                    let used = limit - number(remaining);
                    let is_right = |step: Step| (step.least <= used || remaining == 0) && used <= step.most + slack;
                    if !any(&self.steps, &is_right) {
                        let range = self.range(from, call.answered, 0);
                        let message = format!("{remaining} remain of {limit}, but {range} were used");
                        self.accuse("a wrong `remaining` of a peek", message, Some(call), span);
                    }
                }
                _ => {}
            }
        }
    }

    fn range(&self, from: u64, until: u64, own: i64) -> String {
        let (mut least, mut most) = (i64::MAX, 0);
        for step in self.steps.between(from, until) {
            least = least.min(step.least);
            most = most.max(step.most - own);
        }
        if least == most { format!("{most}") } else { format!("{least} to {most}") }
    }

    /// `retry_after` is neither too short for what is used for certain, nor longer than all that may be used explains.
    fn retries(&mut self) {
        if !matches!(self.limit.counting, Counting::Fixed | Counting::Aligned | Counting::Log)
            || self.has_holds
            || self.has_refunds
            || self.has_resets
            || self.limit.prefetch > 1
        {
            return;
        }
        let mut order: Vec<&Entry<'_>> = self.entries.iter().collect();
        order.sort_by_key(|entry| entry.from.0);
        let longest = order.iter().map(|entry| entry.from.1 - entry.from.0).max().unwrap_or(0);
        let reach = 2 * self.limit.period + longest + self.bounds.skew;
        // A cached denial counts from the time when the server's answer came.
        let late = if self.limit.caches { self.bounds.decision } else { 0 };
        let mut wrong = Vec::new();
        for call in &self.calls {
            let Answer::Refused { retry_after_ms: Some(retry), .. } = call.answer else { continue };
            if call.degraded || call.within().is_some() || wrong.len() >= ENOUGH {
                continue;
            }
            let (limit, retry) = (self.limits[call.limit].limit, retry.saturating_mul(1000));
            let first = order.partition_point(|entry| entry.from.0 < call.invoked.saturating_sub(reach));
            let (mut least, mut most) = (0, 0);
            for entry in order[first..].iter().take_while(|entry| entry.from.0 <= call.answered) {
                let is_before = entry.is_certain && entry.from.1 < call.invoked;
                least += if is_before && entry.natural.0 > call.answered + retry { entry.cost } else { 0 };
                // A millisecond before there was no room.
                let early = (call.invoked + retry).saturating_sub(1000 + self.bounds.skew + late);
                most += if entry.natural.1 >= early { entry.cost } else { 0 };
            }
            if least + call.cost() > limit {
                wrong.push((
                    *call,
                    format!("after {} ms still {least} of {limit} are used", retry / 1000),
                    "too short",
                ));
            } else if most + call.cost() <= limit && call.cost() > 0 {
                wrong.push((
                    *call,
                    format!("a millisecond before {} ms only {most} of {limit} are used", retry / 1000),
                    "too long",
                ));
            }
        }
        for (call, message, which) in wrong {
            let broken = if which == "too short" {
                "a `retry_after` that is too short"
            } else {
                "a `retry_after` that is too long"
            };
            self.accuse(broken, message, Some(call), (self.before(call.invoked), call.answered));
        }
    }

    /// A refund returns all that still counts, and nothing that no longer does.
    fn refunds(&mut self) {
        let by_call: HashMap<(u32, u64), Entry<'a>> =
            self.entries.iter().map(|entry| ((entry.call.process, entry.call.id), entry.clone())).collect();
        let is_whole = !matches!(self.limit.counting, Counting::Sliding { .. });
        for call in self.calls.clone() {
            let (Action::Refund { of }, Answer::Done(back)) = (call.action, &call.answer) else { continue };
            let Some(entry) = by_call.get(&(call.process, of)) else { continue };
            if !entry.is_certain || call.degraded {
                continue;
            }
            let span = (entry.from.0, call.answered);
            if *back > 0 && call.invoked > entry.natural.1 {
                let late = (call.invoked - entry.natural.1) / 1000;
                let message = format!("#{of} no longer counted for {late} ms, and {back} were returned");
                self.accuse("a refund to a later window", message, Some(call), span);
            } else if *back > entry.cost {
                let message = format!("#{of} was charged {}, and {back} were returned", entry.cost);
                self.accuse("a refund of more than the charge", message, Some(call), span);
            } else if is_whole
                && *back < entry.cost
                && call.answered + self.bounds.skew < entry.natural.0
                && !self.has_resets
                && self.limit.prefetch <= 1
                && self.entries.len() < 5_000
            {
                let message = format!("#{of} still counted, and {back} of {} were returned", entry.cost);
                self.accuse("a refund that returns too little", message, Some(call), span);
            }
        }
    }
}
