//! Commands, packed as the bytes of a script call, and how replies are split among them.

use std::{collections::HashSet, hash::BuildHasherDefault, iter, mem, slice};

use redis::{Cmd, Value};
use smallvec::SmallVec;

use super::{
    batch::{EntryReply, SentEntry},
    scripts::HashedScript,
};
use crate::{
    CounterName,
    algorithm::{self, HoldSupport, PackedNumbers, ScriptMode},
    background,
    counter::IdentityHasher,
    store::{Charge, Charges, Request},
};

/// A command on counters of one slot.
#[derive(Debug)]
pub(super) enum Command {
    /// Charges with `consume`, if all of them fit; evaluates without.
    Decide {
        charges: Charges,
        consume: bool,
    },
    Refund(Charge),
    /// Renews holds of the charge's counter, each described by [`algorithm::renewal_args`].
    Renew(Charge, Vec<u8>),
    /// Replaces a hold by a charge of this amount.
    Settle(Charge, u64),
    /// Bans the counter for so many milliseconds; 0 ends its ban.
    Ban(Charge, u64),
    Delete(CounterName),
}

impl Command {
    /// Takes the charges out of a request; [`Command::into_charges`] returns them.
    pub(super) fn decide(request: &mut Request) -> Self {
        Self::Decide { charges: mem::take(&mut request.charges), consume: request.consume }
    }

    /// The first counter; the others are in the same slot.
    pub(super) fn counter(&self) -> Option<&CounterName> {
        match self {
            Self::Decide { charges, .. } => charges.first().map(|charge| &charge.counter),
            Self::Refund(charge) | Self::Renew(charge, _) | Self::Settle(charge, _) | Self::Ban(charge, _) => {
                Some(&charge.counter)
            }
            Self::Delete(counter) => Some(counter),
        }
    }

    /// Charges of a [`Command::Decide`].
    pub(super) fn into_charges(self) -> Charges {
        match self {
            Self::Decide { charges, .. } => charges,
            Self::Refund(_) | Self::Renew(..) | Self::Settle(..) | Self::Ban(..) | Self::Delete(_) => {
                Charges::default()
            }
        }
    }

    /// Decisions without holds and bans may share a round trip with others. A prefetch may not: the replies of a round
    /// trip are no longer read after the deadline, and it has to learn from a later one what it has charged.
    pub(super) fn is_batchable(&self) -> bool {
        let is_prefetch = |charge: &Charge| charge.rule.prefetch() > 1 && background::is_here();
        let is_plain =
            |charge: &Charge| !charge.is_settled_later() && charge.rule.ban_ms() == 0 && !is_prefetch(charge);
        matches!(self, Self::Decide { charges, .. } if charges.iter().all(is_plain))
    }
}

/// One command of a round trip.
pub(super) enum Packet<'a> {
    /// A command that is not part of a batch.
    Command(&'a Command),
    /// Entries that one script decides: one entry, or several on one counter each.
    Batch(&'a [SentEntry]),
    /// Entries that make equal charges of one counter.
    Repeat(&'a [SentEntry]),
}

impl<'a> Packet<'a> {
    /// Sorts entries so that those are adjacent that one script can decide.
    ///
    /// Entries that meet at a counter stay in order: nothing passes one on several counters.
    pub(super) fn sort(entries: &mut [SentEntry]) {
        for entries in entries.chunk_by_mut(|one, other| one.charges().len() == 1 && other.charges().len() == 1) {
            entries.sort_by_key(|entry| (entry.slot(), entry.charges().first().map(algorithm::script_id)));
        }
    }

    /// Packets for sorted entries.
    pub(super) fn group(sorted: &'a [SentEntry]) -> Vec<Self> {
        let fit_one_script = |one: &SentEntry, other: &SentEntry| match (one.charges(), other.charges()) {
            ([charge], [other_charge]) => {
                one.slot() == other.slot() && algorithm::script_id(charge) == algorithm::script_id(other_charge)
            }
            _ => false,
        };
        let mut packets = Vec::with_capacity(sorted.len());
        packets.extend(sorted.chunk_by(fit_one_script).map(Packet::of));
        packets
    }

    /// Packet for entries that one script can decide.
    pub(super) fn of(entries: &'a [SentEntry]) -> Self {
        match entries {
            [first, others @ ..]
                if (first.times() > 1 || !others.is_empty())
                    && others.iter().all(|other| first.is_repeat_of(other)) =>
            {
                Self::Repeat(entries)
            }
            _ => Self::Batch(entries),
        }
    }

    /// Number of callers who wait for its reply.
    pub(super) fn callers(&self) -> usize {
        match self {
            Self::Command(_) => 1,
            Self::Batch(entries) | Self::Repeat(entries) => entries.iter().map(SentEntry::callers).sum(),
        }
    }

    /// Number of replies that its reply is split into.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Command(_) => 1,
            Self::Batch(entries) | Self::Repeat(entries) => entries.len(),
        }
    }

    /// Empty for a command.
    pub(super) fn entries(&self) -> &'a [SentEntry] {
        match self {
            Self::Command(_) => &[],
            Self::Batch(entries) | Self::Repeat(entries) => entries,
        }
    }

    /// Splits a reply into one for each command or entry. All of them get an error.
    #[allow(clippy::cast_possible_truncation)] // Lua's numbers are whole, and below 2^53
    pub(super) fn parse(&self, reply: Value, replies: &mut Vec<EntryReply>) {
        match (self, reply) {
            (Self::Repeat(entries), reply) => {
                let mut before = 0;
                for entry in *entries {
                    replies.push(EntryReply { reply: reply.clone(), before: Some(before) });
                    before += entry.times();
                }
            }
            (Self::Batch(entries @ [_, _, ..]), Value::Array(parts)) if parts.len() == entries.len() => {
                let entry_reply = |(entry, reply): (&SentEntry, _)| {
                    let before = (entry.times() > 1).then_some(0);
                    EntryReply { reply, before }
                };
                replies.extend(entries.iter().zip(parts).map(entry_reply));
            }
            (Self::Batch(entries @ [_, _, ..]), Value::BulkString(numbers)) if numbers.len() == 8 * entries.len() => {
                let number = |number: &[u8; 8]| Value::Int(f64::from_le_bytes(*number) as i64);
                replies.extend(numbers.as_chunks().0.iter().map(number).map(EntryReply::from));
            }
            (_, reply) => replies.extend(iter::repeat_n(reply, self.len()).map(EntryReply::from)),
        }
    }

    /// Bytes of the command: a script by its digest, or by its text if the server lacks it.
    pub(super) fn encode(&self, by_digest: bool) -> Cmd {
        match self {
            Self::Command(Command::Decide { charges, consume }) => decide(charges, *consume, by_digest),
            Self::Command(Command::Refund(charge)) => {
                let mut command =
                    script_call(HashedScript::refund(charge), by_digest, slice::from_ref(charge).iter(), 1);
                command.arg(&*algorithm::refund_args(charge));
                command
            }
            Self::Command(Command::Renew(charge, holds)) => {
                let mut command = on_counter(charge, ScriptMode::Renew, charge.cost, by_digest);
                command.arg(&**holds);
                command
            }
            Self::Command(Command::Settle(charge, used)) => {
                // A semaphore's permits are released, all of them.
                let is_time = algorithm::capabilities(charge.rule.algorithm()).holds != HoldSupport::Always;
                let is_retry = charge.hold.is_some_and(|hold| hold.is_retry);
                let mode = if is_retry { ScriptMode::SettleAgain } else { ScriptMode::Settle };
                on_counter(charge, mode, if is_time { *used } else { charge.cost }, by_digest)
            }
            Self::Command(Command::Ban(charge, ms)) => {
                let mut command = on_counter(charge, ScriptMode::Ban, charge.cost, by_digest);
                command.arg(*ms);
                command
            }
            Self::Command(Command::Delete(counter)) => {
                let mut command = redis::cmd("DEL");
                command.arg(counter.as_bytes());
                command
            }
            Self::Batch([entry]) => decide(entry.charges(), entry.consume(), by_digest),
            Self::Batch(entries) => decide_batch(entries, by_digest),
            Self::Repeat(entries) => decide_repeat(entries, by_digest),
        }
    }
}

/// Renews or settles holds, or bans the counter.
fn on_counter(charge: &Charge, mode: ScriptMode, cost: u64, by_digest: bool) -> Cmd {
    let mut command = script_call(HashedScript::decide(charge, mode), by_digest, slice::from_ref(charge).iter(), 1);
    command.arg(&*algorithm::script_args(&Charge { cost, ..charge.clone() }));
    command
}

/// Decides a request.
fn decide(charges: &[Charge], consume: bool, by_digest: bool) -> Cmd {
    if let [charge] = charges {
        let (consume, bans) = (consume && charge.cost > 0, charge.rule.ban_ms() > 0);
        let mode = match () {
            () if !consume => ScriptMode::Evaluate,
            () if bans => ScriptMode::ChargeOrBan,
            () => ScriptMode::Charge,
        };
        let script = HashedScript::decide(charge, mode);
        let mut command = script_call(script, by_digest, charges.iter(), 3);
        command.arg(&*algorithm::script_args(charge));
        if algorithm::needs_stored_cost(charge) || consume && bans {
            command.arg(algorithm::stored_cost(charge));
        }
        if consume && bans {
            command.arg(charge.rule.ban_ms());
        }
        return command;
    }
    let bans = consume && charges.iter().any(|charge| charge.rule.ban_ms() > 0);
    let script = HashedScript::transaction(bans);
    let mut command = script_call(script, by_digest, charges.iter(), 1 + 4 * charges.len());
    command.arg(u64::from(consume));
    for charge in charges {
        command.arg(algorithm::script_id(charge));
        command.arg(&*algorithm::script_args(charge)).arg(algorithm::stored_cost(charge));
    }
    for charge in charges.iter().filter(|_| bans) {
        command.arg(if charge.cost > 0 { charge.rule.ban_ms() } else { 0 });
    }
    command
}

/// Decides entries on one counter each, all of one kind; see [`algorithm::batch_script`].
fn decide_batch(entries: &[SentEntry], by_digest: bool) -> Cmd {
    let charges = entries.iter().filter_map(|entry| entry.charges().first());
    let Some(first) = charges.clone().next() else { return Cmd::new() };
    let mut rules: SmallVec<[(&Charge, PackedNumbers); 4]> = SmallVec::new();
    let mut requests: SmallVec<[u8; 32]> = smallvec::smallvec![0];
    let mut names = HashSet::<_, BuildHasherDefault<IdentityHasher>>::with_capacity_and_hasher(
        entries.len(),
        BuildHasherDefault::default(),
    );
    for (entry, charge) in entries.iter().zip(charges.clone()) {
        let at = rules.iter().position(|(other, _)| {
            (other.rule, other.cost, other.longest_wait) == (charge.rule, charge.cost, charge.longest_wait)
        });
        let number = at.unwrap_or_else(|| {
            rules.push((charge, algorithm::packed_args(charge)));
            rules.len() - 1
        });
        let is_repeated = !names.insert(charge.counter.id());
        let request = match entry.times() {
            1 => u8::from(entry.consume() && charge.cost > 0),
            _ => 2,
        };
        let run = [request + 4 * u8::from(is_repeated), to_u8(number)];
        match &mut requests[..] {
            [.., count, request, number] if [*request, *number] == run => *count += 1,
            _ => requests.extend([1, run[0], run[1]]),
        }
    }
    requests[0] = to_u8(rules.len());
    let mut command = script_call(HashedScript::batch(first), by_digest, charges.clone(), 2 + rules.len());
    command.arg(&*requests);
    for (_, rule) in &rules {
        command.arg(&**rule);
    }
    for (entry, charge) in entries.iter().zip(charges).filter(|(entry, _)| entry.times() > 1) {
        command.arg(entry.times()).arg(max_repeats(charge));
    }
    command
}

/// Makes equal charges of one counter; see [`algorithm::repeat_script`].
fn decide_repeat(entries: &[SentEntry], by_digest: bool) -> Cmd {
    let Some(charge) = entries.first().and_then(|entry| entry.charges().first()) else { return Cmd::new() };
    let mut command = script_call(HashedScript::repeat(charge), by_digest, slice::from_ref(charge).iter(), 3);
    let times: usize = entries.iter().map(SentEntry::times).sum();
    command.arg(&*algorithm::packed_args(charge)).arg(times).arg(max_repeats(charge));
    command
}

/// Number of such charges that fit into an empty counter.
fn max_repeats(charge: &Charge) -> u64 {
    charge.rule.limit() / charge.cost.max(1)
}

fn to_u8(number: usize) -> u8 {
    u8::try_from(number).expect("a round trip carries fewer than 255 entries")
}

/// Script call with its keys, and room for its arguments.
fn script_call<'a>(
    script: &HashedScript,
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
