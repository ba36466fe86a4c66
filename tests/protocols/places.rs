//! Places of a concurrency limit: hold, renew and settle, by `engine/renewals.rs`, `engine/hold.rs`,
//! `engine/abandon.rs` and the script of `algorithm/semaphore`.
//!
//! A message that never arrives is a lost one, and a process that takes no more steps has crashed or
//! was stopped. Renewals and settlements may arrive twice.

use std::collections::{BTreeMap, BTreeSet};

use stateright::{Model, Property};

use crate::check::{breaks, calls, holds, processes};

const PLACES: usize = 1;
/// In ticks.
const LEASE: u8 = 2;
const LAST_TICK: u8 = 4;
/// Renewals of one call.
const RENEWALS: u8 = 1;

/// One step done wrong, or one that the docs allow to exceed the bound.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// The lease is counted from the arrival of the reply, not from the sending of the request.
    CountsFromArrival,
    /// The store renews a hold whose lease has ended.
    RenewsEnded,
    /// A process believes in a hold again that the store has reported as lost.
    RevivesLost,
    /// All calls that run count, also those whose hold is lost.
    CountsRunning,
    /// The store restarts without its counters.
    Restarts,
}

struct Places(Fault);

/// The process of a call, and its number there.
type Id = (usize, u8);

#[derive(Clone, Debug, Default, Hash, PartialEq, Eq)]
struct Process {
    /// The number of the next call.
    next: u8,
    asks: bool,
    /// The time until which the running call certainly holds its place.
    runs_until: Option<u8>,
    renewals: u8,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
enum Message {
    Hold { id: Id, sent: u8 },
    Granted { id: Id, sent: u8 },
    Renew { id: Id, sent: u8 },
    Renewed { id: Id, sent: u8, is_held: bool },
    Settle { id: Id },
}

#[derive(Clone, Debug, Default, Hash, PartialEq, Eq)]
struct State {
    now: u8,
    /// The holds at the store, with the ends of their leases. Ended ones stay for a while.
    held: BTreeMap<Id, u8>,
    processes: Vec<Process>,
    network: BTreeSet<Message>,
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Tick,
    Asks(usize),
    TimesOut(usize),
    Renews(usize),
    Ends(usize),
    Arrives(Message),
    /// It arrives, and will arrive again.
    ArrivesOnce(Message),
    Restarts,
}

impl State {
    /// Drops messages that change nothing any more, which makes fewer states.
    fn forget_idle_messages(&mut self) {
        let asked: BTreeSet<Id> = self.network.iter().filter_map(Message::asked).collect();
        self.network.retain(|message| match message {
            Message::Hold { .. } => true,
            Message::Granted { id: (process, number), .. } => {
                self.processes[*process].asks && self.processes[*process].next == number + 1
            }
            Message::Renew { id: (process, number), .. } | Message::Renewed { id: (process, number), .. } => {
                self.processes[*process].runs_until.is_some() && self.processes[*process].next == number + 1
            }
            Message::Settle { id } => self.held.contains_key(id) || asked.contains(id),
        });
    }
}

impl Message {
    fn asked(&self) -> Option<Id> {
        if let Self::Hold { id, .. } = self { Some(*id) } else { None }
    }
}

impl Places {
    /// The calls that count as holding a place.
    fn holders(&self, state: &State) -> usize {
        let counts = |until: u8| state.now < until || self.0 == Fault::CountsRunning;
        state.processes.iter().filter(|process| process.runs_until.is_some_and(counts)).count()
    }

    fn arrives(&self, state: &mut State, message: Message) {
        let now = state.now;
        match message {
            Message::Hold { id, sent } => {
                if state.held.values().filter(|ends| now < **ends).count() < PLACES {
                    state.held.insert(id, now + LEASE);
                    state.network.insert(Message::Granted { id, sent });
                }
            }
            Message::Renew { id, sent } => {
                let is_held = state.held.get(&id).is_some_and(|ends| now < *ends || self.0 == Fault::RenewsEnded);
                if is_held {
                    state.held.insert(id, now + LEASE);
                }
                state.network.insert(Message::Renewed { id, sent, is_held });
            }
            Message::Settle { id } => drop(state.held.remove(&id)),
            Message::Granted { id: (process, number), sent } => {
                let it = &mut state.processes[process];
                if it.asks && it.next == number + 1 {
                    let from = if self.0 == Fault::CountsFromArrival { now } else { sent };
                    (it.asks, it.runs_until, it.renewals) = (false, Some(from + LEASE), 0);
                }
            }
            Message::Renewed { id: (process, number), sent, is_held } => {
                let it = &mut state.processes[process];
                if let Some(until) = it.runs_until.as_mut().filter(|_| it.next == number + 1) {
                    let is_held = is_held || self.0 == Fault::RevivesLost;
                    *until = if is_held { (*until).max(sent + LEASE) } else { 0 };
                }
            }
        }
    }
}

impl Model for Places {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State { processes: vec![Process::default(); processes()], ..State::default() }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.now < LAST_TICK {
            steps.push(Step::Tick);
        }
        for (process, it) in state.processes.iter().enumerate() {
            if it.asks {
                steps.push(Step::TimesOut(process));
            } else if it.runs_until.is_some() {
                steps.push(Step::Ends(process));
                steps.extend((it.renewals < RENEWALS).then_some(Step::Renews(process)));
            } else if it.next < calls(1) {
                steps.push(Step::Asks(process));
            }
        }
        for message in &state.network {
            steps.push(Step::Arrives(*message));
            if matches!(message, Message::Renew { .. } | Message::Settle { .. }) {
                steps.push(Step::ArrivesOnce(*message));
            }
        }
        if self.0 == Fault::Restarts && !state.held.is_empty() {
            steps.push(Step::Restarts);
        }
    }

    fn next_state(&self, before: &State, step: Step) -> Option<State> {
        let mut state = before.clone();
        let now = state.now;
        match step {
            Step::Tick => state.now += 1,
            Step::Asks(process) => {
                let it = &mut state.processes[process];
                state.network.insert(Message::Hold { id: (process, it.next), sent: now });
                (it.asks, it.next) = (true, it.next + 1);
            }
            // What it may have been granted is settled.
            Step::TimesOut(process) => {
                let it = &mut state.processes[process];
                it.asks = false;
                state.network.insert(Message::Settle { id: (process, it.next - 1) });
            }
            Step::Renews(process) => {
                let it = &mut state.processes[process];
                it.renewals += 1;
                state.network.insert(Message::Renew { id: (process, it.next - 1), sent: now });
            }
            Step::Ends(process) => {
                let it = &mut state.processes[process];
                it.runs_until = None;
                state.network.insert(Message::Settle { id: (process, it.next - 1) });
            }
            Step::Arrives(message) => {
                state.network.remove(&message);
                self.arrives(&mut state, message);
            }
            Step::ArrivesOnce(message) => self.arrives(&mut state, message),
            Step::Restarts => state.held.clear(),
        }
        state.forget_idle_messages();
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(AT_ONCE, |model, state| model.holders(state) <= PLACES),
            Property::sometimes("all places are held", |model, state| model.holders(state) == PLACES),
            Property::sometimes("a place passes on from a process that was stopped", |model: &Self, state: &State| {
                let run = state.processes.iter().filter(|process| process.runs_until.is_some()).count();
                run > PLACES && model.holders(state) == PLACES
            }),
        ]
    }
}

const AT_ONCE: &str = "at most the count hold a place at once";

#[test]
fn no_more_calls_hold_places_than_there_are() {
    holds("places", Places(Fault::None));
}

#[test]
fn a_lease_that_is_counted_wrong_is_found() {
    breaks("a lease counted from the reply", Places(Fault::CountsFromArrival), AT_ONCE);
    breaks("a renewal of an ended hold", Places(Fault::RenewsEnded), AT_ONCE);
    breaks("a lost hold that is believed in again", Places(Fault::RevivesLost), AT_ONCE);
}

/// "Limits of the promises": a holder that can't renew runs on, and a server loses its counters.
#[test]
fn what_the_docs_allow_with_places_is_found() {
    breaks("a call that runs on after its lease", Places(Fault::CountsRunning), AT_ONCE);
    breaks("a server that restarts without its counters", Places(Fault::Restarts), AT_ONCE);
}
