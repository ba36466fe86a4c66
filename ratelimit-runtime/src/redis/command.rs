//! What is sent to a server, and what a server that lacks a script is sent instead.

use std::{iter, slice};

use redis::{Cmd, ServerErrorKind, Value};
use smallvec::SmallVec;

use super::{coalescing::Entry, link::Connection, script::Script};
use crate::{
    CounterName, algorithm,
    store::{Charge, Charges, StoreError},
};

/// A command on counters of one slot.
#[derive(Debug)]
pub(super) enum Command {
    /// Charges if all of them fit and it is to `consume`.
    Decide {
        charges: Charges,
        consume: bool,
    },
    GiveBack(Charge),
    Delete(CounterName),
}

impl Command {
    /// The first counter; the others are in the same slot.
    pub(super) fn counter(&self) -> Option<&CounterName> {
        match self {
            Self::Decide { charges, .. } => charges.first().map(|charge| &charge.counter),
            Self::GiveBack(charge) => Some(&charge.counter),
            Self::Delete(counter) => Some(counter),
        }
    }

    /// What it was to decide.
    pub(super) fn into_charges(self) -> Charges {
        match self {
            Self::Decide { charges, .. } => charges,
            Self::GiveBack(_) | Self::Delete(_) => Charges::default(),
        }
    }
}

/// What a server is sent as one command.
pub(super) enum Packet<'a> {
    /// One that is on its own.
    Command(&'a Command),
    /// Decisions in one script.
    Decisions(&'a [Entry]),
}

impl Packet<'_> {
    /// How many answers its reply holds.
    fn len(&self) -> usize {
        match self {
            Self::Command(_) => 1,
            Self::Decisions(entries) => entries.len(),
        }
    }

    /// What a reply says to each of its commands or entries. An error is said to all.
    fn read(&self, reply: Value, answers: &mut Vec<Value>) {
        let by_itself = match self {
            Self::Command(Command::Decide { charges, .. }) => charges.len() == 1,
            Self::Command(Command::GiveBack(_) | Command::Delete(_)) => true,
            Self::Decisions(entries) => entries.len() == 1 && entries[0].is_by_itself(),
        };
        match reply {
            Value::Array(replies) if !by_itself && replies.len() == self.len() => answers.extend(replies),
            reply => answers.extend(iter::repeat_n(reply, self.len())),
        }
    }

    /// A script by its digest, or, for a server that does not know it, by its text.
    fn packed(&self, by_digest: bool) -> Cmd {
        match self {
            Self::Command(Command::Decide { charges, consume }) => match &**charges {
                [charge] => decide_one(charge, *consume, by_digest),
                charges => decide_many(slice::from_ref(&Decision { charges, consume: *consume, times: 1 }), by_digest),
            },
            Self::Command(Command::GiveBack(charge)) => {
                let script = Script::give_back(charge.rule.counted_by());
                let mut command = call(script, by_digest, slice::from_ref(&charge.counter).iter(), 1);
                command.arg(&*algorithm::give_back_numbers(charge));
                command
            }
            Self::Command(Command::Delete(counter)) => {
                let mut command = redis::cmd("DEL");
                command.arg(counter.as_bytes());
                command
            }
            Self::Decisions([entry]) if entry.times() == 1 => Packet::Command(entry.command()).packed(by_digest),
            Self::Decisions(entries) => {
                let decisions = entries.iter().filter_map(|entry| match entry.command() {
                    Command::Decide { charges, consume } => {
                        Some(Decision { charges, consume: *consume, times: entry.times() })
                    }
                    Command::GiveBack(_) | Command::Delete(_) => None,
                });
                decide_many(&decisions.collect::<SmallVec<[_; 64]>>(), by_digest)
            }
        }
    }
}

/// A request as `many.lua` takes it.
struct Decision<'a> {
    charges: &'a [Charge],
    consume: bool,
    /// How many such charges are asked for.
    times: usize,
}

fn decide_one(charge: &Charge, consume: bool, by_digest: bool) -> Cmd {
    let script = Script::decide_one(charge.rule.counted_by(), consume && charge.cost > 0);
    let mut command = call(script, by_digest, slice::from_ref(&charge.counter).iter(), 2);
    command.arg(&*algorithm::numbers(charge));
    if algorithm::is_told(charge) {
        command.arg(algorithm::charged(charge));
    }
    command
}

fn decide_many(decisions: &[Decision<'_>], by_digest: bool) -> Cmd {
    let counters = decisions.iter().flat_map(|decision| decision.charges).map(|charge| &charge.counter);
    let mut command = call(Script::decide_many(), by_digest, counters, 1 + 2 * decisions.len());
    let kinds: SmallVec<[u8; 64]> = decisions.iter().map(Decision::kind).collect();
    command.arg(&*kinds);
    for Decision { charges, times, .. } in decisions {
        if let [charge] = charges {
            command.arg(&*algorithm::numbers(charge));
            if *times > 1 {
                command.arg(&*algorithm::repetition(charge, *times));
            } else if algorithm::is_told(charge) {
                command.arg(algorithm::charged(charge));
            }
            continue;
        }
        command.arg(charges.len());
        for charge in *charges {
            command.arg(algorithm::kind(charge.rule.counted_by()));
            command.arg(&*algorithm::numbers(charge)).arg(algorithm::charged(charge));
        }
    }
    command
}

impl Decision<'_> {
    /// The byte that `many.lua` knows it by.
    fn kind(&self) -> u8 {
        let Self { charges, consume, times } = self;
        let [charge] = charges else { return 32 + u8::from(*consume) };
        let kind = algorithm::kind(charge.rule.counted_by());
        match *consume && charge.cost > 0 {
            _ if *times > 1 => kind + 16,
            charged => kind + u8::from(charged) * 4 + u8::from(algorithm::is_told(charge)) * 8,
        }
    }
}

/// A call of a script with its keys, and room for its arguments.
fn call<'a>(
    script: &Script,
    by_digest: bool,
    counters: impl Iterator<Item = &'a CounterName> + Clone,
    arguments: usize,
) -> Cmd {
    let (name, text) = if by_digest { ("EVALSHA", &script.digest) } else { ("EVAL", &script.text) };
    let keys = counters.clone().count();
    let bytes = counters.clone().map(|counter| counter.as_bytes().len()).sum::<usize>();
    let mut command = Cmd::with_capacity(3 + keys + arguments, 16 + text.len() + bytes + 40 * arguments);
    command.arg(name).arg(text).arg(keys);
    for counter in counters {
        command.arg(counter.as_bytes());
    }
    command
}

/// Sends packets over a connection in one go. Answers for each command and each entry, in their order.
///
/// `callers`: how many wait for that. With `asking`, a node that is about to take over their slot runs them all the same.
pub(super) async fn send(
    connection: &mut Connection,
    packets: &[Packet<'_>],
    callers: usize,
    asking: bool,
) -> Result<Vec<Value>, StoreError> {
    let replies = send_known(connection, packets, callers, asking).await?;
    let mut answers = Vec::with_capacity(packets.iter().map(Packet::len).sum());
    let mut refused = Vec::new();
    for (packet, reply) in packets.iter().zip(replies) {
        match packet {
            // A user who may not use one of the counters is refused them all, and nothing has run.
            Packet::Decisions(entries) if entries.len() > 1 && is_error(&reply, ServerErrorKind::NoPerm) => {
                refused.extend(entries.chunks(1).zip(answers.len()..).map(|(entry, at)| (Packet::Decisions(entry), at)));
                packet.read(reply, &mut answers);
            }
            _ => packet.read(reply, &mut answers),
        }
    }
    if !refused.is_empty() {
        let (alone, places): (Vec<_>, Vec<_>) = refused.into_iter().unzip();
        let replies = send_known(connection, &alone, callers, asking).await?;
        let mut answered = Vec::with_capacity(alone.len());
        alone.iter().zip(replies).for_each(|(packet, reply)| packet.read(reply, &mut answered));
        places.into_iter().zip(answered).for_each(|(at, answer)| answers[at] = answer);
    }
    Ok(answers)
}

/// Sends packets, and those scripts that the server does not know once more as text. A reply to each.
async fn send_known(
    connection: &mut Connection,
    packets: &[Packet<'_>],
    callers: usize,
    asking: bool,
) -> Result<Vec<Value>, StoreError> {
    let mut replies = send_once(connection, packets.iter(), callers, true, asking).await?;
    let is_unknown = |reply: &Value| is_error(reply, ServerErrorKind::NoScript);
    let unknown: Vec<usize> = (0..replies.len()).filter(|&at| is_unknown(&replies[at])).collect();
    if !unknown.is_empty() {
        // On the same connection: another server may not know the script either.
        let again = unknown.iter().map(|&at| &packets[at]);
        let again = send_once(connection, again, callers, false, asking).await?;
        for (at, reply) in unknown.into_iter().zip(again) {
            replies[at] = reply;
        }
    }
    Ok(replies)
}

async fn send_once<'a>(
    connection: &mut Connection,
    packets: impl ExactSizeIterator<Item = &'a Packet<'a>>,
    callers: usize,
    by_digest: bool,
    asking: bool,
) -> Result<Vec<Value>, StoreError> {
    if !asking {
        return connection.send(packets.map(|packet| packet.packed(by_digest)), callers).await;
    }
    // It holds for one command.
    let pairs: Vec<_> = packets.flat_map(|packet| [redis::cmd("ASKING"), packet.packed(by_digest)]).collect();
    let mut replies = connection.send(pairs.into_iter(), callers).await?.into_iter();
    let mut answers = Vec::with_capacity(replies.len() / 2);
    while let (Some(asked), Some(reply)) = (replies.next(), replies.next()) {
        answers.push(if matches!(asked, Value::ServerError(_)) { asked } else { reply });
    }
    Ok(answers)
}

fn is_error(reply: &Value, kind: ServerErrorKind) -> bool {
    matches!(reply, Value::ServerError(error) if error.kind() == Some(kind))
}
