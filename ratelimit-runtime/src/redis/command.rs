//! What is sent to a server, and what a server that lacks a script is sent instead.

use std::{collections::HashSet, hash::BuildHasherDefault, iter, mem, slice};

use redis::{Cmd, ServerErrorKind, Value};
use smallvec::SmallVec;

use super::{
    coalescing::{Answer, Entry},
    link::Connection,
    script::Script,
};
use crate::{
    Algorithm, CounterName,
    algorithm::{self, PackedNumbers, ScriptMode},
    counter::IdentityHasher,
    store::{Charge, Charges, Request, StoreError},
};

/// A command on counters of one slot.
#[derive(Debug)]
pub(super) enum Command {
    /// Charges if all of them fit and it is to `consume`.
    Decide {
        charges: Charges,
        consume: bool,
    },
    Refund(Charge),
    /// Makes holds of one counter last as long again: those of the charge's counter that [`algorithm::renewal_args`] describes.
    Renew(Charge, Vec<u8>),
    /// Charges so much instead of what is held.
    Settle(Charge, u64),
    Delete(CounterName),
}

impl Command {
    /// Takes the charges out of a request; see [`Command::into_charges`].
    pub(super) fn decide(request: &mut Request) -> Self {
        Self::Decide { charges: mem::take(&mut request.charges), consume: request.consume }
    }

    /// The first counter; the others are in the same slot.
    pub(super) fn counter(&self) -> Option<&CounterName> {
        match self {
            Self::Decide { charges, .. } => charges.first().map(|charge| &charge.counter),
            Self::Refund(charge) | Self::Renew(charge, _) | Self::Settle(charge, _) => Some(&charge.counter),
            Self::Delete(counter) => Some(counter),
        }
    }

    /// What it was to decide.
    pub(super) fn into_charges(self) -> Charges {
        match self {
            Self::Decide { charges, .. } => charges,
            Self::Refund(_) | Self::Renew(..) | Self::Settle(..) | Self::Delete(_) => Charges::default(),
        }
    }

    /// Whether it can be decided together with others.
    pub(super) fn may_travel(&self) -> bool {
        matches!(self, Self::Decide { charges, .. } if charges.iter().all(|charge| charge.hold.is_none()))
    }
}

/// What a server is sent as one command.
pub(super) enum Packet<'a> {
    /// One that is on its own.
    Command(&'a Command),
    /// Decisions in one script: one, or such as [`Entry::may_travel_with`] says.
    Decisions(&'a [Entry]),
    /// Equal charges of one counter.
    Equal(&'a [Entry]),
}

impl<'a> Packet<'a> {
    /// Of entries that may travel with each other.
    pub(super) fn of(entries: &'a [Entry]) -> Self {
        match entries {
            [first, others @ ..]
                if (first.times() > 1 || !others.is_empty()) && others.iter().all(|other| first.is_equal_to(other)) =>
            {
                Self::Equal(entries)
            }
            _ => Self::Decisions(entries),
        }
    }

    /// How many answers its reply holds.
    fn len(&self) -> usize {
        match self {
            Self::Command(_) => 1,
            Self::Decisions(entries) | Self::Equal(entries) => entries.len(),
        }
    }

    /// What a reply says to each of its commands or entries. An error is said to all.
    #[allow(clippy::cast_possible_truncation)] // Lua's numbers are whole, and below 2^53
    pub(super) fn read(&self, reply: Value, answers: &mut Vec<Answer>) {
        match (self, reply) {
            (Self::Equal(entries), reply) => {
                let mut before = 0;
                for entry in *entries {
                    answers.push(Answer { reply: reply.clone(), before: Some(before) });
                    before += entry.times();
                }
            }
            (Self::Decisions(entries @ [_, _, ..]), Value::Array(replies)) if replies.len() == entries.len() => {
                let answer = |(entry, reply): (&Entry, _)| {
                    let before = (entry.times() > 1).then_some(0);
                    Answer { reply, before }
                };
                answers.extend(entries.iter().zip(replies).map(answer));
            }
            (Self::Decisions(entries @ [_, _, ..]), Value::BulkString(numbers))
                if numbers.len() == 8 * entries.len() =>
            {
                let number = |number: &[u8; 8]| Value::Int(f64::from_le_bytes(*number) as i64);
                answers.extend(numbers.as_chunks().0.iter().map(number).map(Answer::from));
            }
            (_, reply) => answers.extend(iter::repeat_n(reply, self.len()).map(Answer::from)),
        }
    }

    /// A script by its digest, or, for a server that does not know it, by its text.
    fn packed(&self, by_digest: bool) -> Cmd {
        match self {
            Self::Command(Command::Decide { charges, consume }) => decide(charges, *consume, by_digest),
            Self::Command(Command::Refund(charge)) => {
                let mut command = call(Script::refund(charge), by_digest, slice::from_ref(charge).iter(), 1);
                command.arg(&*algorithm::refund_args(charge));
                command
            }
            Self::Command(Command::Renew(charge, holds)) => {
                let mut command = on_hold(charge, ScriptMode::Renew, charge.cost, by_digest);
                command.arg(&**holds);
                command
            }
            Self::Command(Command::Settle(charge, used)) => {
                // Places become free, all of them.
                let is_time = !matches!(charge.rule.algorithm(), Algorithm::Concurrent);
                let again = charge.hold.is_some_and(|hold| hold.is_retry);
                let act = if again { ScriptMode::SettleAgain } else { ScriptMode::Settle };
                on_hold(charge, act, if is_time { *used } else { charge.cost }, by_digest)
            }
            Self::Command(Command::Delete(counter)) => {
                let mut command = redis::cmd("DEL");
                command.arg(counter.as_bytes());
                command
            }
            Self::Decisions([entry]) => decide(entry.charges(), entry.consume(), by_digest),
            Self::Decisions(entries) => decide_each(entries, by_digest),
            Self::Equal(entries) => decide_equal(entries, by_digest),
        }
    }
}

/// Something done to what is held.
fn on_hold(charge: &Charge, act: ScriptMode, cost: u64, by_digest: bool) -> Cmd {
    let mut command = call(Script::decide_one(charge, act), by_digest, slice::from_ref(charge).iter(), 1);
    command.arg(&*algorithm::script_args(&Charge { cost, ..charge.clone() }));
    command
}

/// One request.
fn decide(charges: &[Charge], consume: bool, by_digest: bool) -> Cmd {
    if let [charge] = charges {
        let act = if consume && charge.cost > 0 { ScriptMode::Charge } else { ScriptMode::Evaluate };
        let script = Script::decide_one(charge, act);
        let mut command = call(script, by_digest, charges.iter(), 2);
        command.arg(&*algorithm::script_args(charge));
        if algorithm::needs_stored_cost(charge) {
            command.arg(algorithm::stored_cost(charge));
        }
        return command;
    }
    let mut command = call(Script::decide_all(), by_digest, charges.iter(), 1 + 3 * charges.len());
    command.arg(u64::from(consume));
    for charge in charges {
        command.arg(algorithm::script_id(charge));
        command.arg(&*algorithm::script_args(charge)).arg(algorithm::stored_cost(charge));
    }
    command
}

/// Requests about one counter each, all of one kind; see `batch.lua`.
fn decide_each(entries: &[Entry], by_digest: bool) -> Cmd {
    let charges = entries.iter().filter_map(|entry| entry.charges().first());
    let Some(first) = charges.clone().next() else { return Cmd::new() };
    let mut rules: SmallVec<[(&Charge, PackedNumbers); 4]> = SmallVec::new();
    let mut requests: SmallVec<[u8; 32]> = smallvec::smallvec![0];
    let mut names = HashSet::<_, BuildHasherDefault<IdentityHasher>>::with_capacity_and_hasher(
        entries.len(),
        BuildHasherDefault::default(),
    );
    for (entry, charge) in entries.iter().zip(charges.clone()) {
        let known = rules.iter().position(|(other, _)| {
            other.rule == charge.rule && other.cost == charge.cost && other.longest_wait == charge.longest_wait
        });
        let number = known.unwrap_or_else(|| {
            rules.push((charge, algorithm::packed_args(charge)));
            rules.len() - 1
        });
        let has_been = !names.insert(charge.counter.id());
        let request = match entry.times() {
            1 => u8::from(entry.consume() && charge.cost > 0),
            _ => 2,
        };
        let run = [request + 4 * u8::from(has_been), small(number)];
        match &mut requests[..] {
            [.., count, request, number] if [*request, *number] == run => *count += 1,
            _ => requests.extend([1, run[0], run[1]]),
        }
    }
    requests[0] = small(rules.len());
    let mut command = call(Script::decide_each(first), by_digest, charges.clone(), 2 + rules.len());
    command.arg(&*requests);
    for (_, rule) in &rules {
        command.arg(&**rule);
    }
    for (entry, charge) in entries.iter().zip(charges).filter(|(entry, _)| entry.times() > 1) {
        command.arg(entry.times()).arg(most(charge));
    }
    command
}

/// Equal charges of one counter; see `repeat.lua`.
fn decide_equal(entries: &[Entry], by_digest: bool) -> Cmd {
    let Some(charge) = entries.first().and_then(|entry| entry.charges().first()) else { return Cmd::new() };
    let mut command = call(Script::decide_equal(charge), by_digest, slice::from_ref(charge).iter(), 3);
    let times: usize = entries.iter().map(Entry::times).sum();
    command.arg(&*algorithm::packed_args(charge)).arg(times).arg(most(charge));
    command
}

/// How many such charges the limit has room for.
fn most(charge: &Charge) -> u64 {
    charge.rule.limit() / charge.cost.max(1)
}

fn small(number: usize) -> u8 {
    u8::try_from(number).expect("a call carries fewer than 255 decisions")
}

/// A call of a script with its keys, and room for its arguments.
fn call<'a>(
    script: &Script,
    by_digest: bool,
    charges: impl Iterator<Item = &'a Charge> + Clone,
    arguments: usize,
) -> Cmd {
    let (name, text) = if by_digest { ("EVALSHA", &script.digest) } else { ("EVAL", &script.text) };
    let names = charges.map(|charge| charge.counter.as_bytes());
    let (keys, bytes) = names.clone().fold((0, 0), |(keys, bytes), name| (keys + 1, bytes + name.len()));
    let mut command = Cmd::with_capacity(3 + keys + arguments, 16 + text.len() + bytes + 48 * arguments);
    command.arg(name).arg(text).arg(keys);
    for name in names {
        command.arg(name);
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
) -> Result<Vec<Answer>, StoreError> {
    let replies = send_known(connection, packets, callers, asking).await?;
    let mut answers = Vec::with_capacity(packets.iter().map(Packet::len).sum());
    let mut refused = Vec::new();
    for (packet, reply) in packets.iter().zip(replies) {
        match packet {
            // One of the counters was a reason to refuse them all, and nothing has run: the user may not use it, or it has moved to another node.
            Packet::Decisions(entries) if entries.len() > 1 && is_about_one(&reply) => {
                refused.extend(entries.chunks(1).zip(answers.len()..).map(|(entry, at)| (Packet::of(entry), at)));
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

fn is_about_one(reply: &Value) -> bool {
    [ServerErrorKind::NoPerm, ServerErrorKind::Ask, ServerErrorKind::TryAgain].iter().any(|kind| is_error(reply, *kind))
}

fn is_error(reply: &Value, kind: ServerErrorKind) -> bool {
    matches!(reply, Value::ServerError(error) if error.kind() == Some(kind))
}
