//! Costs that are known at the end of a call: held, settled and settled again, by `engine/hold.rs`
//! and the script of `algorithm/sliding_log`. `places.rs` has renewals.
//!
//! A message that never arrives is a lost one. Others arrive within a lease and a period: a
//! connection is given up long before.

use std::collections::{BTreeMap, BTreeSet};

use stateright::{Model, Property};

use crate::check::{breaks, calls, holds, processes};

const COUNT: u8 = 1;
/// In ticks.
const PERIOD: u8 = 2;
const LEASE: u8 = 1;
const LAST_TICK: u8 = 4;

/// One step done wrong, or one that the docs allow to exceed the bound.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// The store forgets a hold at the end of its lease, and not a period later.
    ForgetsEnded,
    /// The lease is counted from the arrival of the reply, not from the sending of the request.
    CountsFromArrival,
    /// The store does not remember holds that a retry has settled.
    ForgetsSettled,
    /// A retry charges although the hold is gone.
    RetryCharges,
    /// The use of calls that lost their hold counts, too.
    CountsLost,
    /// A call uses one more than it held.
    UsesMore,
}

struct Costs(Fault);

/// The process of a call, and its number there.
type Id = (usize, u8);

#[derive(Clone, Debug, Default, Hash, PartialEq, Eq)]
struct Process {
    /// The number of the next call.
    next: u8,
    asks: bool,
    /// The amount that the running call holds, and until when it certainly does.
    runs: Option<(u8, u8)>,
    /// The use of the call that ended last, while its settlement has no reply.
    unsettled: Option<u8>,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
enum Message {
    Hold { id: Id, sent: u8, amount: u8 },
    Granted { id: Id, sent: u8, amount: u8 },
    Settle { id: Id, sent: u8, used: u8, is_retry: bool },
}

#[derive(Clone, Debug, Default, Hash, PartialEq, Eq)]
struct State {
    now: u8,
    /// The holds at the store: the end of the lease, and the amount.
    held: BTreeMap<Id, (u8, u8)>,
    /// The charges at the store, by their time.
    charged: BTreeMap<u8, u8>,
    /// Holds that a retry has settled, and until when they are remembered.
    settled: BTreeMap<Id, u8>,
    processes: Vec<Process>,
    network: BTreeSet<Message>,
    /// The costs that calls have used, by the time of their end.
    used: BTreeMap<u8, u8>,
    /// Calls whose settlement was charged, and whether one was charged twice.
    charged_calls: BTreeSet<Id>,
    is_charged_twice: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Tick,
    Asks { process: usize, amount: u8 },
    TimesOut { process: usize },
    Ends { process: usize, used: u8 },
    SettlesAgain { process: usize },
    Arrives(Message),
}

fn within_a_period(amounts: &BTreeMap<u8, u8>, now: u8) -> u8 {
    amounts.iter().filter(|(at, _)| now < **at + PERIOD).map(|(_, amount)| amount).sum()
}

impl State {
    /// Drops messages that change nothing any more, and what no message asks for, which makes fewer
    /// states.
    fn forget_idle_messages(&mut self) {
        let of = |message: &Message| match message {
            Message::Hold { id, .. } | Message::Granted { id, .. } | Message::Settle { id, .. } => *id,
        };
        let asked = |message: &&Message| matches!(message, Message::Hold { .. });
        let asked: BTreeSet<Id> = self.network.iter().filter(asked).map(of).collect();
        self.network.retain(|message| match message {
            Message::Hold { .. } | Message::Settle { is_retry: false, .. } => true,
            Message::Granted { id: (process, number), .. } => {
                self.processes[*process].asks && self.processes[*process].next == number + 1
            }
            Message::Settle { id, used, .. } => *used > 0 || self.held.contains_key(id) || asked.contains(id),
        });
        let settling: BTreeSet<Id> = self.network.iter().map(of).collect();
        let may_settle = |id: &Id| {
            settling.contains(id) || self.processes[id.0].next == id.1 + 1 && self.processes[id.0].unsettled.is_some()
        };
        self.charged_calls.retain(may_settle);
        self.settled.retain(|id, until| self.now < *until && may_settle(id));
    }
}

impl Costs {
    /// A hold that is not settled counts until a period after its lease, so as a charge made then.
    fn counts(&self, ends: u8, now: u8) -> bool {
        now < ends + if self.0 == Fault::ForgetsEnded { 0 } else { PERIOD }
    }

    fn arrives(&self, state: &mut State, message: Message) {
        let now = state.now;
        state.held.retain(|_, (ends, _)| self.counts(*ends, now));
        match message {
            Message::Hold { id, sent, amount } => {
                let held: u8 = state.held.values().map(|(_, amount)| amount).sum();
                if within_a_period(&state.charged, now) + held + amount <= COUNT {
                    state.held.insert(id, (now + LEASE, amount));
                    state.network.insert(Message::Granted { id, sent, amount });
                }
            }
            Message::Granted { id: (process, number), sent, amount } => {
                let it = &mut state.processes[process];
                if it.asks && it.next == number + 1 {
                    let from = if self.0 == Fault::CountsFromArrival { now } else { sent };
                    (it.asks, it.runs) = (false, Some((amount, from + LEASE)));
                }
            }
            Message::Settle { id, used, is_retry, .. } => {
                let was_held = state.held.remove(&id).is_some();
                if was_held && is_retry && self.0 != Fault::ForgetsSettled {
                    state.settled.insert(id, now + LEASE + PERIOD);
                }
                let is_remembered = state.settled.get(&id).is_some_and(|until| now < *until);
                let charges = was_held || if is_retry { self.0 == Fault::RetryCharges } else { !is_remembered };
                if charges && used > 0 {
                    *state.charged.entry(now).or_default() += used;
                    state.is_charged_twice |= !state.charged_calls.insert(id);
                }
            }
        }
    }
}

impl Model for Costs {
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
                steps.push(Step::TimesOut { process });
            } else if let Some((amount, _)) = it.runs {
                let most = amount + u8::from(self.0 == Fault::UsesMore);
                steps.extend((0..=most).map(|used| Step::Ends { process, used }));
            } else if it.next < calls(1) {
                steps.extend((1..=COUNT).map(|amount| Step::Asks { process, amount }));
            }
            if it.unsettled.is_some() {
                steps.push(Step::SettlesAgain { process });
            }
        }
        steps.extend(state.network.iter().copied().map(Step::Arrives));
    }

    fn next_state(&self, before: &State, step: Step) -> Option<State> {
        let mut state = before.clone();
        let now = state.now;
        match step {
            Step::Tick => {
                state.now += 1;
                let now = state.now;
                state.charged.retain(|at, _| now < *at + PERIOD);
                state.used.retain(|at, _| now < *at + PERIOD);
                state.network.retain(|message| match message {
                    Message::Hold { sent, .. } | Message::Granted { sent, .. } | Message::Settle { sent, .. } => {
                        now < sent + LEASE + PERIOD
                    }
                });
            }
            Step::Asks { process, amount } => {
                let it = &mut state.processes[process];
                state.network.insert(Message::Hold { id: (process, it.next), sent: now, amount });
                (it.asks, it.next, it.unsettled) = (true, it.next + 1, None);
            }
            // What it may have been granted is settled as unused.
            Step::TimesOut { process } => {
                let it = &mut state.processes[process];
                it.asks = false;
                state.network.insert(Message::Settle {
                    id: (process, it.next - 1),
                    sent: now,
                    used: 0,
                    is_retry: true,
                });
            }
            Step::Ends { process, used } => {
                let it = &mut state.processes[process];
                let (_, until) = it.runs.take()?;
                it.unsettled = Some(used);
                if now < until || self.0 == Fault::CountsLost {
                    *state.used.entry(now).or_default() += used;
                }
                state.network.insert(Message::Settle { id: (process, it.next - 1), sent: now, used, is_retry: false });
            }
            Step::SettlesAgain { process } => {
                let it = &mut state.processes[process];
                let used = it.unsettled.take()?;
                state.network.insert(Message::Settle { id: (process, it.next - 1), sent: now, used, is_retry: true });
            }
            Step::Arrives(message) => {
                state.network.remove(&message);
                self.arrives(&mut state, message);
            }
        }
        state.forget_idle_messages();
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        fn in_use(state: &State) -> u8 {
            let runs = state.processes.iter().filter_map(|process| process.runs);
            let held: u8 = runs.filter(|(_, until)| state.now < *until).map(|(amount, _)| amount).sum();
            held + within_a_period(&state.used, state.now)
        }
        vec![
            Property::always(ANY_PERIOD, |_, state| in_use(state) <= COUNT),
            Property::always(ONCE, |_, state: &State| !state.is_charged_twice),
            Property::sometimes("the count is used up", |_, state| in_use(state) == COUNT),
            Property::sometimes("a retry settles", |_, state: &State| !state.settled.is_empty()),
        ]
    }
}

const ANY_PERIOD: &str = "what runs holds, and what was used within a period, are at most the count";
const ONCE: &str = "a settlement that is sent again charges once";

#[test]
fn held_costs_stay_within_the_count() {
    holds("held costs", Costs(Fault::None));
}

#[test]
fn a_hold_that_ends_too_early_is_found() {
    breaks("a hold forgotten with its lease", Costs(Fault::ForgetsEnded), ANY_PERIOD);
    breaks("a lease counted from the reply", Costs(Fault::CountsFromArrival), ANY_PERIOD);
}

#[test]
fn a_settlement_that_charges_twice_is_found() {
    breaks("settled holds that are forgotten", Costs(Fault::ForgetsSettled), ONCE);
    breaks("a retry that charges without a hold", Costs(Fault::RetryCharges), ONCE);
}

/// "Limits of the promises": a call uses more than it held, or runs on after its lease.
#[test]
fn what_the_docs_allow_with_holds_is_found() {
    breaks("a call that uses more than it held", Costs(Fault::UsesMore), ANY_PERIOD);
    breaks("a call that runs on after its lease", Costs(Fault::CountsLost), ANY_PERIOD);
}
