//! One round trip with a server: commands out, replies in, and what it refused sent once more.
//!
//! Nothing is sent twice here that may have run. Others send it again: calls under `OnStoreError::Wait`
//! (`engine/outlast.rs`), settlements of holds (`engine/repeat.rs`) and renewals (`engine/renewals.rs`).

use redis::{ServerErrorKind, Value};

use super::{batch::EntryReply, command::Packet, connection::Connection};
use crate::store::StoreError;

/// Sends packets in one go. Replies for each command and each entry, in order.
///
/// With `asking`, a node that is importing the slot runs the commands too.
pub(super) async fn send(
    connection: &mut Connection<'_>,
    packets: &[Packet<'_>],
    asking: bool,
) -> Result<Vec<EntryReply>, StoreError> {
    let replies = send_scripts(connection, packets, asking).await?;
    let mut entry_replies = Vec::with_capacity(packets.iter().map(Packet::len).sum());
    let mut refused = Vec::new();
    for (packet, reply) in packets.iter().zip(replies) {
        match packet {
            Packet::Batch(entries) if is_split(packet, &reply) => {
                let first = entry_replies.len();
                refused.extend(entries.chunks(1).zip(first..).map(|(entry, at)| (Packet::of(entry), at)));
                packet.parse(reply, &mut entry_replies);
            }
            _ => packet.parse(reply, &mut entry_replies),
        }
    }
    if !refused.is_empty() {
        let (again, places): (Vec<_>, Vec<_>) = refused.into_iter().unzip();
        // Others do not wait for this round trip, nor lose their reply with it.
        let entries = packets.iter().flat_map(Packet::entries).zip(&entry_replies).enumerate();
        entries.filter(|(at, _)| !places.contains(at)).for_each(|(_, (entry, reply))| entry.answer(reply.clone()));
        let replies = send_scripts(connection, &again, asking).await?;
        let mut single = Vec::with_capacity(again.len());
        again.iter().zip(replies).for_each(|(packet, reply)| packet.parse(reply, &mut single));
        places.into_iter().zip(single).for_each(|(at, reply)| entry_replies[at] = reply);
    }
    Ok(entry_replies)
}

/// Sends scripts by digest, and those that the server lacks once more by text. A reply to each.
async fn send_scripts(
    connection: &mut Connection<'_>,
    packets: &[Packet<'_>],
    asking: bool,
) -> Result<Vec<Value>, StoreError> {
    let mut replies = send_once(connection, packets.iter(), true, asking).await?;
    let is_unknown = |reply: &Value| is_error(reply, ServerErrorKind::NoScript);
    let unknown: Vec<usize> = (0..replies.len()).filter(|&at| is_unknown(&replies[at])).collect();
    if !unknown.is_empty() {
        // The others do not wait for this round trip.
        for (at, (packet, reply)) in packets.iter().zip(&replies).enumerate() {
            if !unknown.contains(&at) && !is_split(packet, reply) {
                let mut known = Vec::with_capacity(packet.len());
                packet.parse(reply.clone(), &mut known);
                packet.entries().iter().zip(known).for_each(|(entry, reply)| entry.answer(reply));
            }
        }
        // On the same connection: another server may lack the script too.
        let again = unknown.iter().map(|&at| &packets[at]);
        let again = send_once(connection, again, false, asking).await?;
        for (at, reply) in unknown.into_iter().zip(again) {
            replies[at] = reply;
        }
    }
    Ok(replies)
}

async fn send_once<'a>(
    connection: &mut Connection<'_>,
    packets: impl ExactSizeIterator<Item = &'a Packet<'a>> + Clone,
    by_digest: bool,
    asking: bool,
) -> Result<Vec<Value>, StoreError> {
    // Not those who have their reply from an earlier try.
    let callers = packets.clone().map(Packet::callers).sum();
    if !asking {
        return connection.send(packets.map(|packet| packet.encode(by_digest)), callers).await;
    }
    // ASKING holds for one command.
    let pairs: Vec<_> = packets.flat_map(|packet| [redis::cmd("ASKING"), packet.encode(by_digest)]).collect();
    let mut replies = connection.send(pairs.into_iter(), callers).await?.into_iter();
    let mut answers = Vec::with_capacity(replies.len() / 2);
    while let (Some(asked), Some(reply)) = (replies.next(), replies.next()) {
        answers.push(asked_reply(asked, reply));
    }
    Ok(answers)
}

/// The reply to a command after ASKING. If both failed, the error of ASKING explains the other one.
fn asked_reply(asked: Value, reply: Value) -> Value {
    match (&asked, &reply) {
        (Value::ServerError(_), Value::ServerError(_)) => asked,
        _ => reply,
    }
}

/// True if each entry is sent once more by itself. The server ran none of them because of one counter: this user
/// may not use it, or its slot is moving. After MOVED, all of them have failed alike.
fn is_split(packet: &Packet<'_>, reply: &Value) -> bool {
    let about_one = [ServerErrorKind::NoPerm, ServerErrorKind::Ask, ServerErrorKind::TryAgain];
    matches!(packet, Packet::Batch([_, _, ..])) && about_one.iter().any(|kind| is_error(reply, *kind))
}

fn is_error(reply: &Value, kind: ServerErrorKind) -> bool {
    matches!(reply, Value::ServerError(error) if error.kind() == Some(kind))
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use redis::parse_redis_value;

    use super::*;

    #[test]
    fn a_script_that_has_run_is_not_hidden_by_the_reply_to_asking() {
        let [error, other] =
            ["-ERR asking\r\n", "-MOVED 1 host:1\r\n"].map(|line| parse_redis_value(line.as_bytes()).unwrap());
        assert_eq!(asked_reply(error.clone(), Value::Int(1)), Value::Int(1));
        assert_eq!(asked_reply(Value::Okay, other.clone()), other);
        assert_eq!(asked_reply(error.clone(), other), error);
    }
}
