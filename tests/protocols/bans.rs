//! Bans: a refusal that bans, cached bans and `Limiter::unban`, by `algorithm/script.rs`
//! (`BAN_IF_OVER`), the ban of a sliding log and `guard/denials.rs`.
//!
//! The first process has a rule with a ban, the others the same rule without one. A message that
//! never arrives is a lost one.

use std::collections::BTreeSet;

use stateright::{Model, Property};

use crate::check::{breaks, calls, holds, processes};

const COUNT: usize = 1;
/// In ticks.
const PERIOD: u8 = 3;
const BAN: u8 = 2;
/// The longest time for which a process caches a ban.
const CACHED: u8 = 1;
const LAST_TICK: u8 = 4;

/// One step done wrong, or one that the docs allow to exceed the bound.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// A refusal during the ban begins it anew.
    Prolongs,
    /// A process whose rule has no ban does not see the ban of another one.
    IsNotSeen,
    /// A ban ends with the charges forgotten, though they still count.
    ForgetsCharges,
    /// A ban is cached until it ends.
    CachesAll,
    /// The time in the cache begins with the reply, not with the request.
    CachesFromReply,
    /// The store restarts without its counters.
    Restarts,
}

struct Bans(Fault);

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
enum Message {
    Ask {
        process: usize,
        sent: u8,
    },
    /// A refusal by a ban, with the time left of it. Other replies change nothing here.
    Banned {
        process: usize,
        sent: u8,
        wait: u8,
    },
    Unban,
}

#[derive(Clone, Debug, Default, Hash, PartialEq, Eq)]
struct Process {
    asked: u8,
    /// The time until which it refuses by a cached ban.
    cached_until: u8,
}

/// The latest step, to an observer of the whole.
#[derive(Clone, Copy, Debug, Default, Hash, PartialEq, Eq)]
enum Seen {
    #[default]
    Other,
    AdmittedInBan,
    AdmittedAfterBan,
    BannedTooLong,
    CachedTooLong,
    RefusedByCache,
}

#[derive(Clone, Debug, Default, Hash, PartialEq, Eq)]
struct State {
    now: u8,
    /// At the store: the times of charges, and the end of the ban.
    charged: Vec<u8>,
    banned_until: Option<u8>,
    processes: Vec<Process>,
    has_unbanned: bool,
    network: BTreeSet<Message>,
    /// The end of the latest ban, as promised, and when it was ended before.
    ban_ends: Option<u8>,
    unbanned: Option<u8>,
    /// The times of admissions within a period.
    admitted: Vec<u8>,
    seen: Seen,
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Tick,
    Asks(usize),
    Unbans,
    Arrives(Message),
    Restarts,
}

impl State {
    fn is_banned(&self) -> bool {
        self.ban_ends.is_some_and(|ends| self.now < ends)
    }
}

impl Bans {
    /// The store decides. Returns the time left of a ban.
    fn decide(&self, state: &mut State, process: usize) -> Option<u8> {
        let now = state.now;
        let has_ban = process == 0;
        let sees_ban = has_ban || self.0 != Fault::IsNotSeen;
        if let Some(until) = state.banned_until.filter(|until| now < *until && sees_ban) {
            if !state.is_banned() {
                state.seen = Seen::BannedTooLong;
            }
            if self.0 == Fault::Prolongs {
                state.banned_until = Some(now + BAN);
            }
            return Some(until - now);
        }
        if state.charged.len() < COUNT {
            state.charged.push(now);
            state.admitted.push(now);
            state.seen = match state.ban_ends {
                Some(ends) if now < ends => Seen::AdmittedInBan,
                Some(_) => Seen::AdmittedAfterBan,
                None => Seen::Other,
            };
            return None;
        }
        if !has_ban {
            return None;
        }
        (state.banned_until, state.ban_ends) = (Some(now + BAN), Some(now + BAN));
        if self.0 == Fault::ForgetsCharges {
            state.charged.clear();
        }
        Some(BAN)
    }

    fn arrives(&self, state: &mut State, message: Message) {
        let now = state.now;
        match message {
            Message::Ask { process, sent } => {
                let wait = self.decide(state, process);
                state.network.extend(wait.map(|wait| Message::Banned { process, sent, wait }));
            }
            Message::Banned { process, sent, wait } => {
                let wait = if self.0 == Fault::CachesAll { wait } else { wait.min(CACHED) };
                let from = if self.0 == Fault::CachesFromReply { now } else { sent };
                let cached_until = &mut state.processes[process].cached_until;
                *cached_until = (*cached_until).max(from + wait);
            }
            Message::Unban => {
                if state.is_banned() {
                    state.unbanned = Some(now);
                }
                (state.banned_until, state.ban_ends) = (None, None);
            }
        }
    }
}

impl Model for Bans {
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
            if it.asked < calls(2) {
                steps.push(Step::Asks(process));
            }
        }
        if !state.has_unbanned {
            steps.push(Step::Unbans);
        }
        steps.extend(state.network.iter().map(|message| Step::Arrives(*message)));
        if self.0 == Fault::Restarts {
            steps.push(Step::Restarts);
        }
    }

    fn next_state(&self, before: &State, step: Step) -> Option<State> {
        let mut state = before.clone();
        let now = state.now;
        state.seen = Seen::Other;
        match step {
            Step::Tick => {
                state.now += 1;
                for times in [&mut state.charged, &mut state.admitted] {
                    times.retain(|at| now + 1 < at + PERIOD);
                }
            }
            Step::Asks(process) => {
                let it = &mut state.processes[process];
                it.asked += 1;
                if now < it.cached_until {
                    let is_unbanned_lately = state.unbanned.is_some_and(|at| now < at + CACHED);
                    let is_right = state.is_banned() || is_unbanned_lately;
                    state.seen = if is_right { Seen::RefusedByCache } else { Seen::CachedTooLong };
                } else {
                    state.network.insert(Message::Ask { process, sent: now });
                }
            }
            Step::Unbans => {
                state.has_unbanned = true;
                state.network.insert(Message::Unban);
            }
            Step::Arrives(message) => {
                state.network.remove(&message);
                self.arrives(&mut state, message);
            }
            Step::Restarts => {
                state.charged.clear();
                state.banned_until = None;
            }
        }
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(BOUND, |_, state: &State| state.admitted.len() <= COUNT),
            Property::always(CLOSED, |_, state: &State| state.seen != Seen::AdmittedInBan),
            Property::always(ENDS, |_, state: &State| state.seen != Seen::BannedTooLong),
            Property::always(CACHE, |_, state: &State| state.seen != Seen::CachedTooLong),
            Property::sometimes("a cached ban refuses", |_, state: &State| state.seen == Seen::RefusedByCache),
            Property::sometimes("a call is admitted after a ban", |_, state: &State| {
                state.seen == Seen::AdmittedAfterBan
            }),
            Property::sometimes("a ban is ended early", |_, state: &State| state.unbanned.is_some()),
        ]
    }
}

const BOUND: &str = "a period admits at most the count";
const CLOSED: &str = "no call is admitted during a ban";
const ENDS: &str = "the store bans no longer than for the time of the ban";
const CACHE: &str =
    "a process refuses by a cached ban only during the ban, and for the time in the cache after `unban`";

#[test]
fn a_ban_closes_the_counter_for_its_time_and_in_all_processes() {
    holds("bans", Bans(Fault::None));
}

#[test]
fn a_ban_that_is_done_wrong_is_found() {
    breaks("a refusal that prolongs a ban", Bans(Fault::Prolongs), ENDS);
    breaks("a process that does not see the ban", Bans(Fault::IsNotSeen), CLOSED);
    breaks("a ban that forgets charges", Bans(Fault::ForgetsCharges), BOUND);
    breaks("a ban that is cached until it ends", Bans(Fault::CachesAll), CACHE);
    breaks("a cached ban counted from the reply", Bans(Fault::CachesFromReply), CACHE);
}

/// "Limits of the promises": a restart without persistence.
#[test]
fn what_the_docs_allow_with_bans_is_found() {
    breaks("a server that restarts without its counters", Bans(Fault::Restarts), CLOSED);
}
