//! The callers of one process who wait for one counter, by `engine/queue/mod.rs`, `state.rs` and
//! `wait_queue.rs`. Costs are 1. Another process also uses the counter, and does not tell.

use std::collections::{BTreeMap, BTreeSet};

use stateright::{Model, Property};

use crate::check::{breaks, calls, holds};

/// Permits that are free at first, and those that another process may refund.
const FREE: u8 = 1;
const OF_OTHERS: u8 = 1;
/// Requests to the store, in all.
const REQUESTS: u8 = 7;

/// One step done wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// A refusal from before a refund counts, although it arrives after it.
    IgnoresChanges,
    /// A caller who leaves lets nobody else ask.
    LeavesSilently,
    /// A refused caller goes to the end of the queue.
    LosesTicket,
}

struct Queue(Fault);

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
enum Message {
    Ask { ticket: u8, sent: u8, changes: u8 },
    Answer { ticket: u8, sent: u8, changes: u8, remaining: Option<u8> },
    Refund,
    Refunded,
}

#[derive(Clone, Debug, Default, Hash, PartialEq, Eq)]
struct State {
    free: u8,
    of_others: u8,
    of_this_process: u8,
    /// The next ticket, and the number of the next request.
    next: u8,
    requests: u8,
    /// Tickets by place.
    waiting: BTreeMap<u8, u8>,
    asking: BTreeSet<u8>,
    /// The remaining permits, by the latest answer.
    remaining: u8,
    /// The request of the latest answer.
    latest: u8,
    /// The time of the next probe is to come. Otherwise the first caller may ask.
    has_timer: bool,
    /// Refunds of this process.
    changes: u8,
    network: BTreeSet<Message>,
    admitted: u8,
    /// Another process has refunded since the latest decision.
    has_silent_refund: bool,
    is_overtaken: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Calls,
    Leaves(u8),
    Arrives(Message),
    TimerEnds,
    Refunds,
    AnotherProcessRefunds,
}

impl State {
    fn ask(&mut self, ticket: u8) {
        self.network.insert(Message::Ask { ticket, sent: self.requests, changes: self.changes });
        self.requests += 1;
    }

    fn advance(&mut self) {
        let mut may_probe = self.asking.is_empty() && !self.has_timer;
        while let Some((place, ticket)) = self.waiting.first_key_value().map(|(place, ticket)| (*place, *ticket)) {
            if usize::from(self.remaining) <= self.asking.len() && !may_probe {
                return;
            }
            self.waiting.remove(&place);
            self.is_overtaken |= self.waiting.values().any(|other| *other < ticket);
            self.asking.insert(ticket);
            self.ask(ticket);
            may_probe = false;
        }
    }

    /// The queue of a counter without callers is dropped, with what it knows.
    fn forget_if_empty(&mut self) {
        if self.waiting.is_empty() && self.asking.is_empty() {
            (self.remaining, self.latest, self.has_timer) = (0, 0, false);
        }
    }

    /// See `WaitQueue::learn`.
    fn learn(&mut self, sent: u8, remaining: Option<u8>, has_changed: bool) {
        if sent + 1 < self.latest {
            if let Some(remaining) = remaining.filter(|_| !self.has_timer) {
                self.remaining = self.remaining.min(remaining);
            }
        } else {
            (self.latest, self.remaining) = (sent + 1, remaining.unwrap_or(0));
            self.has_timer = remaining.is_none();
        }
        self.has_timer &= !has_changed;
    }
}

impl Queue {
    fn arrives(&self, state: &mut State, message: Message) {
        match message {
            Message::Ask { ticket, sent, changes } => {
                let remaining = state.free.checked_sub(1);
                state.free = remaining.unwrap_or(0);
                state.has_silent_refund = false;
                state.network.insert(Message::Answer { ticket, sent, changes, remaining });
            }
            Message::Answer { ticket, sent, changes, remaining } => {
                let was_queued = state.asking.remove(&ticket);
                if remaining.is_some() {
                    (state.admitted, state.of_this_process) = (state.admitted + 1, state.of_this_process + 1);
                    if was_queued {
                        state.learn(sent, remaining, false);
                    }
                } else {
                    let place = if self.0 == Fault::LosesTicket { 100 + sent } else { ticket };
                    if !was_queued {
                        state.forget_if_empty();
                    }
                    state.waiting.insert(place, ticket);
                    let has_changed = changes != state.changes && self.0 != Fault::IgnoresChanges;
                    state.learn(sent, None, has_changed);
                }
                state.advance();
            }
            Message::Refund => {
                state.free += 1;
                state.network.insert(Message::Refunded);
            }
            Message::Refunded => {
                (state.changes, state.has_timer) = (state.changes + 1, false);
                state.advance();
            }
        }
    }
}

impl Model for Queue {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State { free: FREE, of_others: OF_OTHERS, ..State::default() }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.next < calls(3) {
            steps.push(Step::Calls);
        }
        steps.extend(state.waiting.values().chain(&state.asking).map(|ticket| Step::Leaves(*ticket)));
        steps.extend(state.network.iter().copied().map(Step::Arrives));
        if state.has_timer && state.asking.is_empty() && !state.waiting.is_empty() {
            steps.push(Step::TimerEnds);
        }
        if state.of_this_process > 0
            && !state.network.contains(&Message::Refund)
            && !state.network.contains(&Message::Refunded)
        {
            steps.push(Step::Refunds);
        }
        if state.of_others > 0 {
            steps.push(Step::AnotherProcessRefunds);
        }
    }

    fn next_state(&self, before: &State, step: Step) -> Option<State> {
        let mut state = before.clone();
        match step {
            Step::Calls => {
                let ticket = state.next;
                state.next += 1;
                let is_used_up = !state.asking.is_empty() && usize::from(state.remaining) <= state.asking.len();
                if is_used_up || !state.waiting.is_empty() {
                    state.waiting.insert(ticket, ticket);
                    state.advance();
                } else {
                    state.ask(ticket); // at once, outside of the queue
                }
            }
            Step::Leaves(ticket) => {
                state.waiting.retain(|_, other| *other != ticket);
                state.asking.remove(&ticket);
                // It takes no answer. What was charged stays charged.
                state.network.retain(|message| !matches!(message, Message::Answer { ticket: of, .. } if *of == ticket));
                if self.0 != Fault::LeavesSilently {
                    state.advance();
                }
            }
            Step::Arrives(message) => {
                state.network.remove(&message);
                self.arrives(&mut state, message);
            }
            Step::TimerEnds => {
                state.has_timer = false;
                state.advance();
            }
            Step::Refunds => {
                state.of_this_process -= 1;
                state.network.insert(Message::Refund);
            }
            Step::AnotherProcessRefunds => {
                (state.of_others, state.free) = (state.of_others - 1, state.free + 1);
                state.has_silent_refund = true;
            }
        }
        state.forget_if_empty();
        Some(state)
    }

    fn within_boundary(&self, state: &State) -> bool {
        state.requests <= REQUESTS
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(AWAKE, |_, state: &State| {
                let is_quiet = state.network.is_empty() && !state.waiting.is_empty();
                !is_quiet || state.has_timer && (state.free == 0 || state.has_silent_refund)
            }),
            Property::always(IN_ORDER, |_, state: &State| !state.is_overtaken),
            Property::sometimes("all callers are admitted", |_, state: &State| state.admitted == calls(3)),
        ]
    }
}

const AWAKE: &str = "a waiting caller asks, or has a timer, and room that this process made is asked for at once";
const IN_ORDER: &str = "callers ask in the order of their arrival";

#[test]
fn a_waiting_caller_asks_as_soon_as_this_process_knows_of_room() {
    holds("a wait queue", Queue(Fault::None));
}

#[test]
fn a_lost_wake_up_is_found() {
    breaks("a refusal from before a refund", Queue(Fault::IgnoresChanges), AWAKE);
    breaks("a caller who leaves silently", Queue(Fault::LeavesSilently), AWAKE);
}

#[test]
fn a_caller_who_is_overtaken_is_found() {
    breaks("a refused caller at the end of the queue", Queue(Fault::LosesTicket), IN_ORDER);
}
