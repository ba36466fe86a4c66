//! Checks long histories: every call may have been decided at any time between its invocation and its answer.
//!
//! Sound: a history of a correct limiter is never accused, as long as the [`Bounds`] hold. Not complete: see [`super::linearize`].
//!
//! A `LeakyBucket` is checked for errors and answers that never fit only: its callers see their slots too late to count them.

use std::collections::HashMap;
use std::fmt::Display;

use super::show::Accusation;
use super::stalls::Stalls;
use super::steps::{Entry, MaxTree, Step, Steps};
use super::{Action, Answer, Call, Counting, History, Limit, waits};

/// What a correct limiter may do, in microseconds where it is a time.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// The store's clock may differ so much from the recorder's, over one period; milliseconds that are rounded included.
    pub skew: u64,
    /// A call without an answer may take effect so long after it was given up.
    pub straggler: u64,
    /// An answer tells of a decision that is no older.
    pub decision: u64,
    /// How long a caller may wait on a counter that has room for certain. `None`: not checked.
    pub idle: Option<u64>,
    /// A process without any event for so long stood still; the times below do not count then.
    pub stall: u64,
    /// A later caller counts as one that passed a waiting one if it was answered so much earlier.
    pub pass_slack: u64,
    /// A caller whose first poll was pending may have its first question under way for so long. From then on it is queued.
    pub queued: u64,
    /// So many later callers may pass a waiting one. `None`: not checked.
    pub passes: Option<usize>,
    /// Servers may have been away or processes stopped for a whole lease, so that a hold may be lost.
    pub holds_may_be_lost: bool,
    /// A refused caller who waits is told how long it would have waited.
    pub waits_are_told: bool,
}

impl Default for Bounds {
    /// For processes of one machine that is busy, and a deadline of 100 ms. Questions in several packets may be decided in any
    /// order, so a few later callers may pass.
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
        // A process takes up to 64 times the rule's number at once, and does not know what came of a take that had no answer.
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

    /// Never more is used than there is, and admitted in a period than the algorithm's bound.
    fn never_passed(&mut self) {
        let most = self.calls.iter().map(|call| self.limits[call.limit].limit).max().unwrap_or(0);
        if let Some((time, used)) = self.steps.first_above(number(most)) {
            let last = self.entries.iter().find(|entry| entry.from.1 + 1 == time).map(|entry| entry.call);
            let message = format!("{used} are in use, of {most}");
            self.accuse("more than the limit", message, last, (self.before(time), time));
        }
        let bound = match self.limit.counting {
            Counting::Fixed | Counting::Aligned => 2 * most,
            Counting::Log => most,
            Counting::Sliding { .. } => 2 * most - 1,
            _ => return,
        };
        if !(self.has_resets || self.has_holds) {
            self.any_window(bound);
        }
    }

    /// The sum of the calls that lie within one period.
    fn any_window(&mut self, bound: u64) {
        let mut inside: Vec<(u64, u64, u64)> =
            self.kept().map(|entry| (entry.from.0, entry.from.1, entry.cost)).collect();
        inside.sort_unstable_by(|one, other| other.cmp(one));
        let mut ends: Vec<u64> = inside.iter().map(|(_, end, _)| *end).collect();
        ends.sort_unstable();
        let mut sums = vec![0_u64; ends.len() + 1];
        let period = self.limit.period.saturating_sub(self.bounds.skew);
        for (from, end, cost) in inside {
            let mut at = ends.partition_point(|other| *other < end) + 1;
            while at < sums.len() {
                sums[at] += cost;
                at += at & at.wrapping_neg();
            }
            let mut until = ends.partition_point(|other| *other < from.saturating_add(period));
            let mut sum = 0;
            while until > 0 {
                sum += sums[until];
                until -= until & until.wrapping_neg();
            }
            if sum > bound {
                let message = format!("{sum} were admitted within one period, {bound} at most");
                self.accuse("more than the bound", message, None, (from, from + period));
                return;
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
            // One who waits may be refused by what one before it was told.
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

    /// Windows are as long as the period, and each charge of a window has a place of its own in it.
    fn windows(&mut self) {
        if !self.is_plain {
            return;
        }
        let (period, skew) = (self.limit.period, self.bounds.skew);
        let mut ends: Vec<Entry<'a>> =
            self.entries.iter().filter(|entry| entry.is_certain && self.limit.prefetch <= 1).cloned().collect();
        for entry in &ends {
            if let Answer::Admitted { reset_after_ms, .. } = entry.call.answer
                && reset_after_ms * 1000 > period + 1000
            {
                let message = format!("all are back in {reset_after_ms} ms, {} at most", period / 1000);
                let span = (entry.from.0, entry.from.1);
                self.accuse("a window longer than its period", message, Some(entry.call), span);
            }
        }
        ends.retain(|entry| entry.natural.1 - entry.natural.0 < period / 4);
        ends.sort_by_key(|entry| entry.natural.0);
        let mut windows: Vec<Vec<Entry<'a>>> = Vec::new();
        for entry in ends {
            match windows.last_mut() {
                Some(window) if entry.natural.0 - window[0].natural.0 < period / 2 => window.push(entry),
                _ => windows.push(vec![entry]),
            }
        }
        for window in &windows {
            self.places(window);
            let first = window.iter().map(|entry| entry.natural.1).min().unwrap_or(0);
            if let Some(other) = window.iter().find(|entry| entry.natural.0 > first + skew) {
                let message = format!("ends {} ms apart are told in one period", (other.natural.0 - first) / 1000);
                let span = (window[0].from.0, other.from.1);
                self.accuse("a window that ends at two times", message, Some(other.call), span);
            }
        }
    }

    fn places(&mut self, window: &[Entry<'a>]) {
        let mut places: Vec<(u64, &Entry<'a>)> = Vec::new();
        for entry in window {
            if let Answer::Admitted { remaining: Some(remaining), .. } = entry.call.answer {
                places.push((self.limits[entry.call.limit].limit - remaining, entry));
            }
        }
        places.sort_by_key(|(used, entry)| (*used, entry.from.0));
        let mut latest: Option<&Entry<'a>> = None;
        let mut before: Option<(u64, &Entry<'a>)> = None;
        for &(used, entry) in &places {
            let span = |other: &Entry<'a>| (other.from.0.min(entry.from.0), other.from.1.max(entry.from.1));
            if let Some((taken, other)) = before
                && used.saturating_sub(entry.cost) < taken
            {
                let message = format!(
                    "{used} are used after #{} of process {} and {taken} after #{} of process {}",
                    entry.call.id, entry.call.process, other.call.id, other.call.process
                );
                self.accuse("one permit for two callers", message, Some(entry.call), span(other));
                return;
            }
            if let Some(other) = latest
                && entry.from.1 < other.from.0
            {
                let message =
                    format!("{used} are used after it, but it was answered before #{} was asked", other.call.id);
                self.accuse("a later state told to an earlier caller", message, Some(entry.call), span(other));
                return;
            }
            before = Some((used, entry));
            if latest.is_none_or(|latest| latest.from.0 < entry.from.0) {
                latest = Some(entry);
            }
        }
    }

    /// From any time to any other, no more than burst and refill.
    fn bucket_never_passed(&mut self) {
        let Counting::Bucket { burst, is_greedy } = self.limit.counting else { return };
        if self.has_resets {
            return;
        }
        let (count, period) = (i128::from(self.limit.count), i128::from(self.limit.period));
        let kept: Vec<(u64, u64, u64)> = {
            let refunded = self.refunded();
            let kept = self.entries.iter().filter(|entry| entry.is_certain);
            let kept = kept.filter(|entry| !refunded.contains(&(entry.call.process, entry.call.id)));
            kept.map(|entry| (entry.from.1, entry.from.0, entry.cost)).collect()
        };
        let mut kept = kept;
        kept.sort_unstable();
        let mut starts: Vec<u64> = kept.iter().map(|(_, from, _)| *from).collect();
        starts.sort_unstable();
        starts.dedup();
        let mut sums = MaxTree::new(&starts.iter().map(|start| i128::from(*start) * count).collect::<Vec<_>>());
        let spare = count * i128::from(2 * self.bounds.skew) + if is_greedy { period } else { count * period };
        for (end, from, cost) in kept {
            sums.add_to_first(starts.partition_point(|start| *start <= from), i128::from(cost) * period);
            let most = sums.largest_of_first(starts.partition_point(|start| *start <= end));
            let over = most - i128::from(end) * count - i128::from(burst) * period - spare;
            if over > 0 {
                let message = format!("more than a burst of {burst} and the refill until then");
                let call = self.calls.iter().copied().find(|call| call.invoked == from && call.answered == end);
                let length = self.limit.period * burst / self.limit.count.max(1);
                self.accuse("more than the bound", message, call, (end.saturating_sub(length), end));
                return;
            }
        }
    }

    fn refunded(&self) -> Vec<(u32, u64)> {
        let of = |call: &&Call| if let Action::Refund { of } = call.action { Some((call.process, of)) } else { None };
        self.calls.iter().filter_map(of).collect()
    }

    /// A bucket refuses only if all that may have been charged leaves too little.
    fn bucket_refusals(&mut self) {
        let Counting::Bucket { burst, is_greedy } = self.limit.counting else { return };
        let (count, period) = (i128::from(self.limit.count), i128::from(self.limit.period));
        let mut refused: Vec<&Call> = self
            .calls
            .iter()
            .copied()
            .filter(|call| matches!(call.answer, Answer::Refused { .. }) && !call.degraded)
            .collect();
        refused.sort_by_key(|call| call.answered);
        let asked = |call: &Call| call.invoked.saturating_sub(self.bounds.skew);
        let mut starts: Vec<u64> = self.entries.iter().map(|entry| entry.from.1).collect();
        starts.extend(refused.iter().map(|call| asked(call)));
        starts.sort_unstable();
        starts.dedup();
        let mut charges: Vec<&Entry<'_>> = self.entries.iter().collect();
        charges.sort_by_key(|entry| entry.from.0);
        let mut charges = charges.into_iter().peekable();
        let mut sums = MaxTree::new(&starts.iter().map(|start| i128::from(*start) * count).collect::<Vec<_>>());
        let spare = if is_greedy { period } else { count * period };
        let mut wrong = Vec::new();
        for call in refused {
            while let Some(entry) = charges.next_if(|entry| entry.from.0 <= call.answered) {
                let until = starts.partition_point(|start| *start <= entry.from.1);
                sums.add_to_first(until, i128::from(entry.cost) * period);
            }
            let most = sums.largest_of_first(starts.partition_point(|start| *start <= asked(call)));
            let used = most - i128::from(asked(call)) * count + spare;
            if used + i128::from(call.cost()) * period <= i128::from(burst) * period {
                wrong.push((call, (used / period).max(0)));
            }
        }
        for (call, used) in wrong {
            let message =
                format!("a cost of {} is refused of {burst}, though at most {used} were missing", call.cost());
            let length = self.limit.period * burst / self.limit.count.max(1);
            self.accuse(
                "a refusal without a reason",
                message,
                Some(call),
                (call.invoked.saturating_sub(length), call.answered),
            );
        }
    }
}

/// When everything that was charged or held counts.
fn entries<'a>(limits: &'a [Limit], calls: &[&'a Call], bounds: &Bounds, stalls: &Stalls) -> Vec<Entry<'a>> {
    let mut entries: Vec<Entry<'a>> = Vec::new();
    let mut by_call: HashMap<(u32, u64), usize> = HashMap::new();
    for &call in calls {
        if !matches!(call.action, Action::Acquire { .. } | Action::Hold { .. }) {
            continue;
        }
        let limit = &limits[call.limit];
        let is_charged = call.is_admitted() || call.is_unknown() || call.degraded;
        if !is_charged || call.cost() == 0 {
            continue;
        }
        let is_certain = call.is_admitted() && !call.degraded;
        let mut from = (call.invoked, call.answered);
        if !is_certain {
            from.1 = from.1.saturating_add(bounds.straggler);
        } else if call.within().is_some() {
            from.0 = from.0.max(stalls.before(call.process, from.1, bounds.decision));
        }
        let natural = if let Action::Hold { lease, .. } = call.action {
            let last = u64::MAX / 4;
            let charged = if limit.counting == Counting::Concurrent { 0 } else { limit.period };
            // One that is unknown is not renewed.
            if is_certain { (from.0 + lease.saturating_sub(bounds.skew), last) } else { (0, from.1 + lease + charged) }
        } else {
            natural_end(limit, call, from, bounds)
        };
        by_call.insert((call.process, call.id), entries.len());
        // A permit that was dropped ends its hold at a time that is not in the history.
        let until = if matches!(call.action, Action::Hold { .. }) { (0, natural.1) } else { natural };
        entries.push(Entry { call, cost: call.cost(), from, until, natural, is_certain });
    }
    for &call in calls {
        let (of, settled) = match call.action {
            Action::Refund { of } => (of, None),
            Action::Settle { of, used, is_held } => (of, Some((used, is_held))),
            _ => continue,
        };
        let Some(&at) = by_call.get(&(call.process, of)) else { continue };
        let limit = &limits[call.limit];
        let entry = &mut entries[at];
        let Action::Hold { lease, .. } = entry.call.action else {
            let back = if let Answer::Done(back) = call.answer { Some(back) } else { None };
            if back != Some(0) {
                entry.until.0 = entry.until.0.min(call.invoked);
            }
            if back.is_some_and(|back| back >= entry.cost) {
                entry.until.1 = entry.until.1.min(call.answered);
            }
            continue;
        };
        // Until it ends it is renewed, unless it was lost.
        let (used, is_held) = settled.unwrap_or((0, true));
        let held_until = if is_held { call.invoked } else { entry.natural.0.min(call.invoked) };
        let is_done = matches!(call.answer, Answer::Done(_)) && !call.degraded;
        let lost = if limit.counting == Counting::Concurrent { 0 } else { limit.period };
        let free = if is_done { call.answered } else { call.answered + bounds.straggler + lease + lost };
        entry.until = (held_until, free);
        if limit.counting != Counting::Concurrent {
            let from = (call.invoked, free);
            let cost = if is_done { used } else { used.max(entry.cost) };
            let is_certain = is_done && entry.is_certain && is_held;
            let natural = natural_end(limit, call, from, bounds);
            entries.push(Entry { call, cost, from, until: natural, natural, is_certain });
        }
    }
    for call in calls.iter().filter(|call| matches!(call.action, Action::Reset)) {
        let is_done = matches!(call.answer, Answer::Done(_)) && !call.degraded;
        for entry in &mut entries {
            if entry.from.0 <= call.answered {
                entry.until.0 = entry.until.0.min(call.invoked);
            }
            if is_done && entry.from.1 < call.invoked {
                entry.until.1 = entry.until.1.min(call.answered);
            }
        }
    }
    entries
}

/// When a charge stops to count by itself.
fn natural_end(limit: &Limit, call: &Call, from: (u64, u64), bounds: &Bounds) -> (u64, u64) {
    let (period, skew) = (limit.period, bounds.skew);
    let latest = from.1 + period + skew;
    match (limit.counting, &call.answer) {
        (Counting::Fixed | Counting::Aligned, Answer::Admitted { reset_after_ms, .. }) if !call.degraded => {
            let reset = reset_after_ms * 1000;
            // Quota taken ahead counts its window's end from the answer, so up to a call too long.
            let late = if limit.prefetch > 1 { bounds.decision } else { 0 };
            let earliest = (from.0 + reset).saturating_sub(1000 + skew + late);
            (earliest, (from.1 + reset + skew).min(latest).max(earliest))
        }
        (Counting::Fixed | Counting::Aligned, _) => (from.0, latest),
        (Counting::Sliding { buckets }, _) => {
            let bucket = period / buckets.max(1);
            ((from.0 + period).saturating_sub(bucket + skew), latest + bucket)
        }
        _ => ((from.0 + period).saturating_sub(skew), latest),
    }
}
