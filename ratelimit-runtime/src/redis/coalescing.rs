//! Decisions that travel together: while a few calls are under way, later decisions gather, and the next call carries them.
//!
//! Databases commit in groups this way (*group commit*, DeWitt and others, 1984). There is no timer: a decision that comes alone goes at once.
//! Decisions are taken in the order in which they came, and equal ones travel as one. A call belongs to no single caller, so one who leaves
//! takes nothing from the others.

use std::{collections::VecDeque, sync::PoisonError};

use redis::Value;
use tokio::sync::oneshot;

use super::command::{Command, Packet};
use crate::{
    Algorithm, algorithm,
    store::{Charge, StoreError},
    sync::{Mutex, MutexGuard},
};

#[cfg(all(test, model_check))]
mod model_check;

/// How many calls may be under way before decisions gather.
const CALLS: usize = 4;
/// How many different decisions a call carries.
const ENTRIES: usize = 64;

/// A command comes back with what came of it.
pub(super) type Told = (Command, Result<Value, Failure>);

/// Why nobody knows an answer.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// Nothing was sent.
    Unsent(StoreError),
    /// What was sent may have run.
    Unknown(StoreError),
}

impl Failure {
    pub(super) fn into_error(self) -> StoreError {
        match self {
            Self::Unsent(error) | Self::Unknown(error) => error,
        }
    }
}

/// Decisions that wait for a call to carry them.
#[derive(Debug, Default)]
pub(super) struct Queue(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Waiting>,
    /// How many calls are under way, or about to be.
    calls: usize,
}

/// A caller and what is to be decided.
#[derive(Debug)]
struct Waiting {
    command: Command,
    slot: u16,
    caller: oneshot::Sender<Told>,
}

/// One decision, or equal ones.
#[derive(Debug)]
pub(super) struct Entry {
    first: Waiting,
    more: Vec<Waiting>,
}

impl Queue {
    /// Adds a decision. Its answer comes over the channel. Says whether a call is to be begun: whoever is told so sees to it that [`Queue::take`] is
    /// called until it has nothing.
    pub(super) fn push(&self, command: Command, slot: u16) -> (oneshot::Receiver<Told>, bool) {
        let (caller, told) = oneshot::channel();
        let mut state = self.lock();
        state.waiting.push_back(Waiting { command, slot, caller });
        let begin = state.calls < CALLS;
        if begin {
            state.calls += 1;
        }
        (told, begin)
    }

    /// What the next call carries, without those whose callers have left. Nothing if none is needed: then it is no longer under way.
    pub(super) fn take(&self) -> Option<Vec<Entry>> {
        let mut state = self.lock();
        let mut entries: Vec<Entry> = Vec::new();
        while let Some(waiting) = state.waiting.pop_front() {
            if waiting.caller.is_closed() {
                continue;
            }
            // Only with the latest on its counter: it must not overtake another.
            let latest = entries.iter_mut().rfind(|entry| entry.first.meets(&waiting));
            if let Some(entry) = latest.filter(|entry| entry.first.is_same(&waiting)) {
                entry.more.push(waiting);
            } else if entries.len() == ENTRIES {
                state.waiting.push_front(waiting);
                break;
            } else {
                entries.push(Entry { first: waiting, more: Vec::new() });
            }
        }
        if entries.is_empty() {
            state.calls -= 1;
            return None;
        }
        Some(entries)
    }

    /// A call has ended before there was nothing left to take. Who still waits is told nothing more.
    pub(super) fn broken_off(&self) {
        let mut state = self.lock();
        state.calls -= 1;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        drop(waiting); // wakes callers
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn decision(&self) -> (&[Charge], bool) {
        match &self.command {
            Command::Decide { charges, consume } => (charges, *consume),
            Command::GiveBack(_) | Command::Delete(_) => (&[], false),
        }
    }

    /// Whether both are about one of the same counters.
    fn meets(&self, other: &Self) -> bool {
        let ((mine, _), (theirs, _)) = (self.decision(), other.decision());
        mine.iter().any(|mine| theirs.iter().any(|theirs| mine.counter == theirs.counter))
    }

    /// Whether one answer serves both, or one charge as large as both.
    fn is_same(&self, other: &Self) -> bool {
        match (self.decision(), other.decision()) {
            (([one], consume), ([other], too)) => {
                // A slot that comes too late for one must not be charged because it is soon enough for another.
                let slots = matches!(one.rule.counted_by(), Algorithm::LeakyBucket { .. });
                consume == too
                    && one.cost == other.cost
                    && one.rule == other.rule
                    && one.counter == other.counter
                    && (!slots || [one, other].map(|charge| charge.longest_wait.as_secs()) == [u64::MAX; 2])
            }
            _ => false,
        }
    }
}

impl Entry {
    pub(super) fn command(&self) -> &Command {
        &self.first.command
    }

    pub(super) fn slot(&self) -> u16 {
        self.first.slot
    }

    pub(super) fn callers(&self) -> usize {
        1 + self.more.len()
    }

    /// Whether a script decides it that decides nothing else.
    pub(super) fn is_by_itself(&self) -> bool {
        self.times() == 1 && self.first.decision().0.len() == 1
    }

    /// How many charges it asks for; one, if it only looks.
    pub(super) fn times(&self) -> usize {
        match self.first.decision() {
            ([charge], true) if charge.cost > 0 => self.callers(),
            _ => 1,
        }
    }

    /// Tells all of its callers the same.
    pub(super) fn fail(self, failure: &Failure) {
        self.tell(|_, _| Err(failure.clone()));
    }

    /// Tells its callers what the server replied to it.
    pub(super) fn answer(self, reply: Value) {
        if self.more.is_empty() {
            let Waiting { command, caller, .. } = self.first;
            // A caller who has left had the charge all the same.
            return drop(caller.send((command, Ok(reply))));
        }
        let equal = match &reply {
            Value::Array(parts) if self.times() > 1 => Equal::read(parts),
            _ => None,
        };
        self.tell(|at, command| {
            let theirs = equal.as_ref().and_then(|equal| equal.reply_to(at, command));
            Ok(theirs.unwrap_or_else(|| reply.clone()))
        });
    }

    fn tell(self, mut what: impl FnMut(usize, &Command) -> Result<Value, Failure>) {
        let Self { first, more } = self;
        for (at, Waiting { command, caller, .. }) in std::iter::once(first).chain(more).enumerate() {
            let told = what(at, &command);
            drop(caller.send((command, told)));
        }
    }
}

/// What `many.lua` replies to equal charges.
struct Equal<'a> {
    granted: usize,
    /// Which of them the reply is the one to.
    at: i64,
    reply: &'a Value,
    refusal: &'a Value,
}

impl<'a> Equal<'a> {
    fn read(parts: &'a [Value]) -> Option<Self> {
        let [Value::Int(granted), Value::Int(at), reply, refusal] = parts else { return None };
        Some(Self { granted: usize::try_from(*granted).ok()?, at: *at, reply, refusal })
    }

    /// As if each had been decided by itself, in order.
    fn reply_to(&self, at: usize, command: &Command) -> Option<Value> {
        if at >= self.granted {
            return Some(self.refusal.clone());
        }
        let Command::Decide { charges, .. } = command else { return None };
        algorithm::reply_to_another(charges.first()?, self.reply, i64::try_from(at).ok()? - self.at)
    }
}

/// Puts together what one script can decide: all on one server, what has the same slot in a cluster.
pub(super) fn packets(entries: &mut [Entry]) -> Vec<Packet<'_>> {
    entries.sort_by_key(Entry::slot); // keeps the order of those in one
    entries.chunk_by(|one, other| one.slot() == other.slot()).map(Packet::Decisions).collect()
}
