//! Calls that the store cannot decide: the policies of `OnStoreError`, by `engine/outcome.rs`
//! (`resolve`, `decide_locally`) and `engine/core.rs` (`local`), for a sliding log.
//!
//! Each call gets a reply, gets none although it was charged, or does not reach the store. So a
//! partition, a lost reply and an outage of any length are among the orders.

use stateright::{Model, Property};

use crate::check::{breaks, holds, processes};

const COUNT: usize = 3;
/// In ticks.
const PERIOD: u8 = 2;
const LAST_TICK: u8 = 3;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Policy {
    Deny,
    Local,
    Allow,
    /// `Local`, done wrong: the share's counters start fresh with each outage.
    ForgetsShare,
    /// `Deny`, and the store fails over to a server that missed the latest charge.
    FailsOver,
}

struct Outage {
    policy: Policy,
    /// The bound: the count, and this often the share of a process.
    shares: usize,
}

#[derive(Clone, Debug, Default, Hash, PartialEq, Eq)]
struct State {
    now: u8,
    /// The times of charges: at the store, and in each process.
    charged: Vec<u8>,
    local: Vec<Vec<u8>>,
    admitted: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Tick,
    IsAnswered(usize),
    /// The store decides, and its reply is lost.
    LosesReply(usize),
    FindsNoStore(usize),
    FailsOver,
}

fn share() -> usize {
    COUNT / processes()
}

fn is_charged(charges: &mut Vec<u8>, now: u8, count: usize) -> bool {
    let fits = charges.len() < count;
    charges.extend(fits.then_some(now));
    fits
}

impl Outage {
    fn decide_without_store(&self, state: &mut State, process: usize) {
        let is_admitted = match self.policy {
            Policy::Deny | Policy::FailsOver => false,
            Policy::Allow => true,
            Policy::Local | Policy::ForgetsShare => is_charged(&mut state.local[process], state.now, share()),
        };
        state.admitted.extend(is_admitted.then_some(state.now));
    }
}

impl Model for Outage {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State { local: vec![Vec::new(); processes()], ..State::default() }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.now < LAST_TICK {
            steps.push(Step::Tick);
        }
        for process in 0..processes() {
            steps.extend([Step::IsAnswered(process), Step::LosesReply(process), Step::FindsNoStore(process)]);
        }
        if self.policy == Policy::FailsOver {
            steps.push(Step::FailsOver);
        }
    }

    fn next_state(&self, before: &State, step: Step) -> Option<State> {
        let mut state = before.clone();
        let now = state.now;
        match step {
            Step::Tick => {
                state.now += 1;
                for times in state.local.iter_mut().chain([&mut state.charged, &mut state.admitted]) {
                    times.retain(|at| now + 1 < at + PERIOD);
                }
            }
            Step::IsAnswered(process) => {
                let is_admitted = is_charged(&mut state.charged, now, COUNT);
                state.admitted.extend(is_admitted.then_some(now));
                if self.policy == Policy::ForgetsShare {
                    state.local[process].clear();
                }
            }
            Step::LosesReply(process) => {
                is_charged(&mut state.charged, now, COUNT);
                self.decide_without_store(&mut state, process);
            }
            Step::FindsNoStore(process) => self.decide_without_store(&mut state, process),
            Step::FailsOver => drop(state.charged.pop()),
        }
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(BOUND, |model: &Self, state: &State| {
                state.admitted.len() <= COUNT + model.shares * share()
            }),
            Property::sometimes("the bound is reached", |model: &Self, state: &State| {
                state.admitted.len() == COUNT + model.shares * share()
            }),
        ]
    }
}

const BOUND: &str = "a period admits at most the count, with `Local` and a share for each process";

#[test]
fn deny_keeps_the_count_and_local_adds_a_share_for_each_process() {
    holds("`Deny`", Outage { policy: Policy::Deny, shares: 0 });
    holds("`Local`", Outage { policy: Policy::Local, shares: processes() });
}

#[test]
fn a_share_that_starts_fresh_is_found() {
    breaks("a share that starts fresh", Outage { policy: Policy::ForgetsShare, shares: processes() }, BOUND);
}

/// "Limits of the promises": `Allow`, `Local` beyond the count, and a failover.
#[test]
fn what_the_docs_allow_in_an_outage_is_found() {
    breaks("`Allow`", Outage { policy: Policy::Allow, shares: processes() }, BOUND);
    breaks("`Local` beyond the count", Outage { policy: Policy::Local, shares: 0 }, BOUND);
    breaks("a failover that lost a charge", Outage { policy: Policy::FailsOver, shares: 0 }, BOUND);
}
