//! Linearizability of short histories against the reference model.
//!
//! A history is linearizable if its calls can be put into one order that keeps the order of calls
//! that did not overlap, and in which the model gives every answer. The search is that of Wing and
//! Gong with the memory of Lowe: sets of calls that led to a state are not tried twice. Each
//! counter is checked by itself. A call without an answer may have taken effect at any later time,
//! or never.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use ratelimit_runtime::conformance::Model;
use ratelimit_runtime::store::{Charge, Hold, Request};
use ratelimit_runtime::{Algorithm, Decision, Key, Rule};

use super::show::Accusation;
use super::{Action, Answer, Call, History};

/// The numbers of an answer that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbers {
    /// All of them: every move of the store's clock is in the history.
    Exact,
    /// `remaining` only: nothing expires while the history lasts.
    Remaining,
}

/// The result of the search.
#[derive(Debug)]
pub enum Linearized {
    /// There is such an order, for every counter.
    Yes,
    /// There is none.
    No(Box<Accusation>),
    /// Some counters have too many possible orders; no other has none.
    TooMany,
}

/// States that are tried for one counter.
const BUDGET: usize = 30_000;

/// Looks for an order that explains every answer. The clock of the store shows `start` first;
/// `rules` are those of the history.
pub fn linearize(history: &History, rules: &[Rule], start: Duration, numbers: Numbers) -> Linearized {
    let mut is_cut_short = false;
    let moves: Vec<&Call> = history.calls.iter().filter(|call| matches!(call.action, Action::Advance { .. })).collect();
    for ((prefix, key), calls) in history.counters() {
        let mut calls: Vec<Call> = calls.into_iter().chain(moves.iter().copied()).cloned().collect();
        calls.sort_by_key(ended);
        let search = |calls: &[Call]| Search::new(calls, rules, numbers).run(start);
        match search(&calls) {
            Found::Order => continue,
            Found::TooMany => {
                is_cut_short = true;
                continue;
            }
            Found::None(_) => {}
        }
        // The shortest beginning of the history that has no order: if one has none, no longer one has.
        let (mut good, mut bad) = (0, calls.len());
        while good + 1 < bad {
            let middle = usize::midpoint(good, bad);
            match search(&beginning(&calls, middle)) {
                Found::None(_) => bad = middle,
                _ => good = middle,
            }
        }
        let shortest = beginning(&calls, bad);
        let accused = &calls[bad - 1];
        let said = match search(&shortest) {
            Found::None(said) => said,
            _ => BTreeSet::new(),
        };
        let said: Vec<String> = said.into_iter().collect();
        let model = if said.is_empty() { "it can be explained by no order".to_owned() } else { said.join(", or ") };
        let mut shown = shortest;
        shown.sort_by_key(|call| (call.invoked, call.order, call.id));
        return Linearized::No(Box::new(Accusation {
            broken: "no order explains an answer",
            message: format!("`{prefix}` of key {key}: the model says {model}"),
            calls: shown,
            accused: Some((accused.process, accused.id)),
            limits: history.limits.clone(),
        }));
    }
    if is_cut_short { Linearized::TooMany } else { Linearized::Yes }
}

fn began(call: &Call) -> u64 {
    call.order.map_or(call.invoked, |order| order.0)
}

fn ended(call: &Call) -> u64 {
    if call.is_unknown() { u64::MAX } else { call.order.map_or(call.answered, |order| order.1) }
}

/// The history when its first `count` answers had come.
fn beginning(calls: &[Call], count: usize) -> Vec<Call> {
    let last = ended(&calls[count - 1]);
    let later = calls[count..].iter().filter(|call| began(call) <= last).cloned();
    let open = later.map(|call| Call { answer: Answer::Unknown, ..call });
    calls[..count].iter().cloned().chain(open).collect()
}

enum Found {
    Order,
    TooMany,
    /// And the model's answers in place of the last one.
    None(BTreeSet<String>),
}

struct Search<'a> {
    calls: &'a [Call],
    /// The call whose answer came last.
    last: Option<usize>,
    rules: &'a [Rule],
    numbers: Numbers,
    tried: HashSet<(Vec<u64>, u64)>,
    said: BTreeSet<String>,
    is_cut_short: bool,
}

/// After some of the calls.
#[derive(Clone)]
struct State {
    model: Model,
    now: Duration,
    /// The charges of calls that are refunded or settled later, by their numbers.
    granted: BTreeMap<u64, Charge>,
}

impl<'a> Search<'a> {
    fn new(calls: &'a [Call], rules: &'a [Rule], numbers: Numbers) -> Self {
        let last = (0..calls.len()).filter(|at| !calls[*at].is_unknown()).max_by_key(|at| ended(&calls[*at]));
        Self { calls, last, rules, numbers, tried: HashSet::new(), said: BTreeSet::new(), is_cut_short: false }
    }

    fn run(mut self, start: Duration) -> Found {
        let state = State { model: Model::default(), now: start, granted: BTreeMap::new() };
        let done = vec![0; self.calls.len().div_ceil(64)];
        // Depth first, without recursion.
        let mut open = vec![(done, state)];
        while let Some((done, state)) = open.pop() {
            let is_left = |at: &usize| done[at / 64] & (1 << (at % 64)) == 0;
            let left: Vec<usize> = (0..self.calls.len()).filter(is_left).collect();
            let first_end = left.iter().map(|at| ended(&self.calls[*at])).min().unwrap_or(u64::MAX);
            if first_end == u64::MAX {
                return Found::Order;
            }
            // The one that was answered first is tried first, so it is pushed last.
            let is_next = |at: &&usize| began(&self.calls[**at]) <= first_end;
            let nexts: Vec<usize> = left.iter().rev().filter(is_next).copied().collect();
            let is_move = |at: &&usize| matches!(self.calls[**at].action, Action::Advance { .. });
            let moves: Vec<usize> = nexts.iter().filter(is_move).copied().collect();
            for &at in &nexts {
                let mut states: Vec<(State, usize)> = Vec::new();
                for &moved in &moves {
                    states.extend(self.apply_while_moved(&state, at, moved).map(|next| (next, moved)));
                }
                states.extend(self.apply(&state, at).map(|next| (next, at)));
                for (next, other) in states {
                    let mut done = done.clone();
                    done[at / 64] |= 1 << (at % 64);
                    done[other / 64] |= 1 << (other % 64);
                    if self.tried.len() >= BUDGET {
                        self.is_cut_short = true;
                    } else if self.tried.insert((done.clone(), next.hash())) {
                        open.push((done, next));
                    }
                }
            }
        }
        if self.is_cut_short { Found::TooMany } else { Found::None(self.said) }
    }

    /// The state after a call to a bucket or a sliding window, and a move of the clock in the midst of it.
    ///
    /// Redis up to 7.0 finds keys by the time at which a script began, and tells how long they last by the time now. A
    /// script under way when a bucket becomes full, or a sliding window empty, decides by that moment, which the clock
    /// passes as it is moved. It lies between the call's invocation and its answer, so the answer is right.
    fn apply_while_moved(&mut self, state: &State, at: usize, moved: usize) -> Option<State> {
        let (call, Action::Advance { by }) = (&self.calls[at], self.calls[moved].action) else { return None };
        let rule = self.rules.get(call.limit).copied()?;
        let tells_time_by_its_end = matches!(
            rule.algorithm(),
            Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } | Algorithm::SlidingWindow { .. }
        );
        if !tells_time_by_its_end || !matches!(call.action, Action::Acquire { .. } | Action::Peek) {
            return None;
        }
        let mut look = Request::new(Model::charge(&rule, &Key::new(call.key), 0), false);
        state.model.clone().decide(state.now, &mut look);
        let full_in = look.charges.first()?.decision.reset_after();
        if full_in.is_zero() || full_in > Duration::from_micros(by) {
            return None;
        }
        let full = State { now: state.now + full_in, ..state.clone() };
        let mut next = self.apply(&full, at)?;
        next.now = state.now + Duration::from_micros(by);
        Some(next)
    }

    /// The state after a call, if the model gives its answer.
    fn apply(&mut self, state: &State, at: usize) -> Option<State> {
        let call = &self.calls[at];
        let mut next = state.clone();
        let rule = self.rules.get(call.limit).copied();
        let charge = |rule: Rule, cost| Model::charge(&rule, &Key::new(call.key), cost);
        match call.action {
            Action::Advance { by } => next.now += Duration::from_micros(by),
            Action::Reset => next.model.reset(&charge(rule?, 0).counter),
            Action::Peek => {
                let mut request = Request::new(charge(rule?, rule?.limit().min(1)), false);
                next.model.decide(next.now, &mut request);
                let said = request.charges.first()?.decision;
                if !self.is_as_told(call, true, said) {
                    self.hear(at, true, said);
                    return None;
                }
            }
            Action::Refund { of } => {
                let charge = next.granted.remove(&of)?;
                let back = next.model.refund(next.now, &charge.into());
                if !call.is_unknown() && call.answer != Answer::Done(back) {
                    if self.last == Some(at) {
                        self.said.insert(format!("{back} are returned"));
                    }
                    return None;
                }
            }
            Action::Settle { of, used, .. } => {
                let charge = next.granted.remove(&of)?;
                next.model.settle(next.now, &charge, used);
            }
            // Its maximum wait was over, whatever the counter was like, or an earlier caller was
            // refused with a longer wait.
            _ if call.has_waited_in_vain() || self.is_refused_behind(call) => {}
            Action::Acquire { cost, .. } | Action::Hold { cost, .. } => {
                let mut charge = charge(rule?, cost);
                if let Action::Hold { lease, .. } = call.action {
                    charge.hold = Some(Hold::new(Duration::from_micros(lease)));
                }
                // A slot that comes too late is refused.
                let has_slots = matches!(rule?.algorithm(), Algorithm::LeakyBucket { .. });
                let longest = call.within().filter(|_| has_slots);
                charge.longest_wait = longest.map_or(Duration::MAX, Duration::from_micros);
                let mut request = Request::new(charge, true);
                next.model.decide(next.now, &mut request);
                let charge = request.charges.first()?.clone();
                let is_admitted = request.outcome == Ok(true);
                if call.is_unknown() && !is_admitted {
                    return None; // the same as if it had never come
                }
                if !self.is_as_told(call, is_admitted, charge.decision) {
                    self.hear(at, is_admitted, charge.decision);
                    return None;
                }
                if is_admitted && self.ends_later(call.id) {
                    next.granted.insert(call.id, charge);
                }
            }
        }
        Some(next)
    }

    /// A later call refunds or settles the charge of this one.
    fn ends_later(&self, id: u64) -> bool {
        let ends = |call: &Call| matches!(call.action, Action::Refund { of } | Action::Settle { of, .. } if of == id);
        self.calls.iter().any(ends)
    }

    /// A caller who waits was refused, and may have been behind another one.
    fn is_refused_behind(&self, call: &Call) -> bool {
        let is_before = |other: &Call| {
            other.id != call.id
                && other.within().is_some()
                && began(other) <= ended(call)
                && ended(other) >= began(call)
        };
        matches!(call.answer, Answer::Refused { .. }) && call.within().is_some() && self.calls.iter().any(is_before)
    }

    fn is_as_told(&self, call: &Call, is_admitted: bool, said: Decision) -> bool {
        let is_exact = self.numbers == Numbers::Exact && !matches!(call.action, Action::Hold { .. });
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        match call.answer {
            Answer::Unknown => true,
            Answer::Admitted { remaining, reset_after_ms } => {
                is_admitted
                    && remaining.is_none_or(|remaining| remaining == said.remaining())
                    && (!is_exact || reset_after_ms == ms(said.reset_after()))
            }
            Answer::Seen { remaining, reset_after_ms } => {
                remaining == said.remaining() && (!is_exact || reset_after_ms == ms(said.reset_after()))
            }
            // The numbers of a caller who has waited are older.
            Answer::Refused { .. } if call.within().is_some() => !is_admitted,
            Answer::Refused { remaining, retry_after_ms } => {
                !is_admitted
                    && remaining == said.remaining()
                    && (!is_exact || retry_after_ms.is_none_or(|retry| Some(retry) == said.retry_after().map(ms)))
            }
            _ => false,
        }
    }

    /// Keeps what the model says in place of the last answer.
    fn hear(&mut self, at: usize, is_admitted: bool, said: Decision) {
        if self.last != Some(at) {
            return;
        }
        let (remaining, reset) = (said.remaining(), said.reset_after().as_millis());
        self.said.insert(if is_admitted {
            format!("admitted, {remaining} remain, all in {reset} ms")
        } else {
            let retry = said.retry_after().unwrap_or_default().as_millis();
            format!("refused, {remaining} remain, retry in {retry} ms")
        });
    }
}

impl State {
    fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.now.hash(&mut hasher);
        format!("{:?} {:?}", self.model, self.granted).hash(&mut hasher);
        hasher.finish()
    }
}
