//! Prefetched quota of a fixed window: `guard/quota.rs`, `guard/prefetch.rs`, and the script and the
//! refund of `algorithm/fixed_window`.
//!
//! A process charges several permits at once, spends them until their window ends, and refunds what
//! it has left. Any number of permits may be prefetched at a time. A message that never arrives is a
//! lost one. A process that crashes is one that closes, and whose refund is lost.

use std::collections::BTreeSet;

use stateright::{Model, Property};

use crate::check::{breaks, calls, holds, processes};

/// The count of the rule, and its period in ticks.
const COUNT: u8 = 2;
const PERIOD: u8 = 2;
/// The second window has begun then.
const LAST_TICK: u8 = 2;

/// One step done wrong, or one that the docs allow to exceed the bound.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// The store credits a refund to the window that is open, whichever was charged.
    RefundsAnyWindow,
    /// A permit is put back into the quota, whichever window it is of.
    PutsBackAnyWindow,
    /// The end of the window is counted from the arrival of the reply.
    CountsFromArrival,
    /// New permits are added to those of an earlier window.
    KeepsEarlierWindow,
    /// The machine of a process sleeps, and its clock with it.
    Sleeps,
}

struct Prefetching(Fault);

/// A window as its receipt names it: its number from 1 on, and its true end.
#[derive(Clone, Copy, Debug, Default, Hash, PartialEq, Eq, PartialOrd, Ord)]
struct Window {
    number: u8,
    ends: u8,
}

#[derive(Clone, Debug, Default, Hash, PartialEq, Eq, PartialOrd, Ord)]
struct Process {
    /// How far its clock is behind that of the store.
    behind: u8,
    left: u8,
    window: Window,
    ends_after: u8,
    /// The number of the prefetch that is under way, and of the next one.
    prefetch: Option<u8>,
    prefetches: u8,
    /// A caller waits for the prefetch since then.
    waits_since: Option<u8>,
    /// The window of a permit that is in use, and may be refunded. Those of other calls are not.
    permit: Option<Window>,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
enum Message {
    Charge {
        process: usize,
        number: u8,
        sent: u8,
        cost: u8,
    },
    /// Without a window: the cost does not fit.
    Reply {
        process: usize,
        number: u8,
        sent: u8,
        cost: u8,
        reset_after: u8,
        window: Option<Window>,
    },
    Refund {
        window: Window,
        cost: u8,
    },
}

#[derive(Clone, Debug, Default, Hash, PartialEq, Eq)]
struct State {
    now: u8,
    window: Window,
    used: u8,
    processes: Vec<Process>,
    network: BTreeSet<Message>,
    /// Admitted calls of each window, without refunded ones.
    admitted: [u8; 4],
    /// A permit was spent when its window was over.
    is_late: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Step {
    Tick,
    /// A call spends a permit, or waits for a prefetch of this cost.
    Call {
        process: usize,
        prefetch: u8,
    },
    Arrives(Message),
    TimesOut {
        process: usize,
    },
    Refunds {
        process: usize,
    },
    Closes {
        process: usize,
    },
    Sleeps {
        process: usize,
    },
}

impl State {
    fn charge(&mut self, process: usize, number: u8, sent: u8, cost: u8) {
        if self.now >= self.window.ends {
            self.window = Window { number: self.window.number + 1, ends: self.now + PERIOD };
            self.used = 0;
        }
        let fits = self.used + cost <= COUNT;
        self.used += if fits { cost } else { 0 };
        let (reset_after, window) = (self.window.ends - self.now, fits.then_some(self.window));
        self.network.insert(Message::Reply { process, number, sent, cost, reset_after, window });
    }
}

impl Process {
    fn now(&self, now: u8) -> u8 {
        now - self.behind
    }

    fn left_at(&self, now: u8) -> u8 {
        if self.now(now) < self.ends_after { self.left } else { 0 }
    }
}

impl Model for Prefetching {
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
            if it.left_at(state.now) > 0 && it.waits_since.is_none() {
                steps.push(Step::Call { process, prefetch: 0 });
            } else if it.waits_since.is_none()
                && it.prefetch.is_none()
                && it.prefetches < calls(if process == 0 { 2 } else { 1 })
            {
                steps.extend((1..=COUNT).map(|prefetch| Step::Call { process, prefetch }));
            }
            if it.prefetch.is_some() {
                steps.push(Step::TimesOut { process });
            }
            if it.permit.is_some() {
                steps.push(Step::Refunds { process });
            }
            if it.left_at(state.now) > 0 {
                steps.push(Step::Closes { process });
            }
            if self.0 == Fault::Sleeps && it.behind == 0 && state.now < LAST_TICK {
                steps.push(Step::Sleeps { process });
            }
        }
        steps.extend(state.network.iter().copied().map(Step::Arrives));
    }

    fn next_state(&self, before: &State, step: Step) -> Option<State> {
        let mut state = before.clone();
        let now = state.now;
        match step {
            Step::Tick => state.now += 1,
            Step::Call { process, prefetch } => {
                let it = &mut state.processes[process];
                if it.left_at(now) > 0 {
                    it.left -= 1;
                    it.permit.get_or_insert(it.window);
                    state.is_late |= now >= it.window.ends;
                    state.admitted[usize::from(it.window.number)] += 1;
                } else {
                    (it.waits_since, it.prefetch) = (Some(it.now(now)), Some(it.prefetches));
                    let (number, sent) = (it.prefetches, it.now(now));
                    it.prefetches += 1;
                    state.network.insert(Message::Charge { process, number, sent, cost: prefetch });
                }
            }
            Step::Arrives(message) => {
                state.network.remove(&message);
                self.arrives(&mut state, message);
            }
            Step::TimesOut { process } => {
                let it = &mut state.processes[process];
                (it.prefetch, it.waits_since) = (None, None);
            }
            Step::Refunds { process } => {
                let it = &mut state.processes[process];
                let window = it.permit.take()?;
                let is_same = it.window == window || self.0 == Fault::PutsBackAnyWindow;
                if is_same && it.now(now) < it.ends_after {
                    it.left += 1;
                } else if it.window == window {
                    state.network.insert(Message::Refund { window, cost: 1 });
                }
                state.admitted[usize::from(window.number)] -= 1;
            }
            Step::Closes { process } => {
                let it = &mut state.processes[process];
                state.network.insert(Message::Refund { window: it.window, cost: it.left });
                it.left = 0;
            }
            Step::Sleeps { process } => {
                state.processes[process].behind = 1;
                state.now += 1;
            }
        }
        self.forget_idle_state(&mut state);
        (state.now <= LAST_TICK).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EACH_WINDOW, |_, state: &State| state.admitted.iter().all(|calls| *calls <= COUNT)),
            Property::always(IN_ITS_WINDOW, |_, state: &State| !state.is_late),
            Property::sometimes("two windows admit their count", |_, state: &State| {
                state.admitted.iter().filter(|calls| **calls == COUNT).nth(1).is_some()
            }),
        ]
    }
}

const EACH_WINDOW: &str = "each window admits at most its count";
/// With the other property: no period admits more than twice the count, as it meets two windows.
const IN_ITS_WINDOW: &str = "each permit is spent in the window that it was charged to";

impl Prefetching {
    /// Drops what changes nothing any more, which makes fewer states.
    fn forget_idle_state(&self, state: &mut State) {
        let (now, latest) = (state.now, state.window);
        let is_open = |window: Window| window == latest && now < latest.ends;
        state.network.retain(|message| match message {
            Message::Charge { .. } => true,
            Message::Reply { process, number, .. } => state.processes[*process].prefetch == Some(*number),
            Message::Refund { window, .. } => is_open(*window) || self.0 == Fault::RefundsAnyWindow,
        });
        if self.0 == Fault::None {
            for process in &mut state.processes {
                process.permit = process.permit.filter(|window| is_open(*window));
                process.left = process.left_at(now);
            }
        }
    }

    fn arrives(&self, state: &mut State, message: Message) {
        let now = state.now;
        match message {
            Message::Charge { process, number, sent, cost } => state.charge(process, number, sent, cost),
            Message::Refund { window, cost } => {
                let is_same = window == state.window || self.0 == Fault::RefundsAnyWindow;
                if is_same && now < state.window.ends {
                    state.used = state.used.saturating_sub(cost);
                }
            }
            Message::Reply { process, number, sent, cost, reset_after, window } => {
                let it = &mut state.processes[process];
                if it.prefetch != Some(number) {
                    return; // timed out, or of a process that has crashed
                }
                it.prefetch = None;
                let Some(window) = window else {
                    it.waits_since = None;
                    return;
                };
                let from = if self.0 == Fault::CountsFromArrival { it.now(now) } else { sent };
                let ends_after = from + reset_after;
                let is_same = it.window == window && it.now(now) < it.ends_after || self.0 == Fault::KeepsEarlierWindow;
                (it.left, it.ends_after) =
                    if is_same { (it.left + cost, it.ends_after.max(ends_after)) } else { (cost, ends_after) };
                it.window = window;
                if let Some(since) = it.waits_since
                    && (since <= sent || it.now(now) < it.ends_after)
                {
                    // The caller waited when the store decided. So it was admitted then.
                    (it.waits_since, it.left) = (None, it.left - 1);
                    it.permit.get_or_insert(window);
                    state.admitted[usize::from(window.number)] += 1;
                }
            }
        }
    }
}

#[test]
fn prefetched_quota_is_charged_before_it_is_spent() {
    holds("prefetched quota", Prefetching(Fault::None));
}

#[test]
fn a_refund_to_a_later_window_is_found() {
    breaks("a refund to any window", Prefetching(Fault::RefundsAnyWindow), EACH_WINDOW);
    breaks("a permit put back into any window", Prefetching(Fault::PutsBackAnyWindow), EACH_WINDOW);
}

#[test]
fn quota_that_is_spent_too_late_is_found() {
    breaks("an end counted from the reply", Prefetching(Fault::CountsFromArrival), IN_ITS_WINDOW);
    breaks("quota of two windows", Prefetching(Fault::KeepsEarlierWindow), EACH_WINDOW);
}

/// "Limits of the promises": a process' machine was asleep.
#[test]
fn what_the_docs_allow_with_prefetch_is_found() {
    breaks("a machine that was asleep", Prefetching(Fault::Sleeps), IN_ITS_WINDOW);
}
