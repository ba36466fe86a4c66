//! Slots: which one a key has, and which node a cluster says has it.

use std::ops::RangeInclusive;

use crc::{CRC_16_XMODEM, Crc};
use redis::{ServerErrorKind, Value};

use super::target::Address;

/// How many slots a cluster has.
pub(super) const SLOTS: u16 = 16384;

static CRC: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

/// The slot of a key: of what stands in its first pair of braces, if anything does.
pub(super) fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|&byte| byte == b'{').and_then(|open| {
        let behind = &key[open + 1..];
        let length = behind.iter().position(|&byte| byte == b'}')?;
        (length > 0).then(|| &behind[..length])
    });
    CRC.checksum(tag.unwrap_or(key)) % SLOTS
}

/// Slots that one node has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) slots: RangeInclusive<u16>,
    /// Nothing if the cluster does not know how clients reach it.
    pub(super) primary: Option<Address>,
}

/// The reply to `CLUSTER SLOTS` of the node at `asked`. Nothing if it is none.
pub(super) fn read_ranges(reply: &Value, asked: &Address) -> Option<Vec<Range>> {
    let Value::Array(ranges) = reply else { return None };
    let read = |range: &Value| {
        let Value::Array(fields) = range else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = &fields[..] else { return None };
        let (first, last) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?);
        (first <= last && last < SLOTS).then(|| Range { slots: first..=last, primary: read_node(primary, asked) })
    };
    ranges.iter().map(read).collect()
}

/// Its endpoint and port, its id, and in later versions what else is known of it.
fn read_node(fields: &[Value], asked: &Address) -> Option<Address> {
    let port = fields.get(1).and_then(|port| redis::from_redis_value_ref(port).ok())?;
    let host = match fields.first() {
        // The endpoint is not known, but is the one that was asked.
        None | Some(Value::Nil) => asked.host.clone(),
        Some(host) => match redis::from_redis_value_ref::<String>(host).ok()?.as_str() {
            "" => asked.host.clone(),
            // Nodes are to be reached by their names, and this one has none.
            "?" => address_of(fields.get(3)?)?,
            host => host.to_owned(),
        },
    };
    Some(Address { host, port })
}

/// The address among what else is known of a node.
fn address_of(known: &Value) -> Option<String> {
    let known: std::collections::HashMap<String, String> = redis::from_redis_value_ref(known).ok()?;
    known.get("ip").filter(|address| !address.is_empty()).cloned()
}

/// What the reply of a cluster's node says about where a command has to go.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// It is an answer.
    Answer,
    /// This node has the slot now.
    Moved(Address),
    /// For this time, this node.
    Ask(Address),
    /// Keys of the slot are on the move.
    TryAgain,
    /// The node cannot run it now, and has not.
    NotNow,
}

/// What a reply of the node at `asked` says.
pub(super) fn heard(reply: &Value, asked: &Address) -> Heard {
    let Value::ServerError(error) = reply else { return Heard::Answer };
    let named = || error.details().and_then(|details| named_in(details, asked));
    match error.kind() {
        Some(ServerErrorKind::Moved) => named().map_or(Heard::NotNow, Heard::Moved),
        Some(ServerErrorKind::Ask) => named().map_or(Heard::NotNow, Heard::Ask),
        Some(ServerErrorKind::TryAgain) => Heard::TryAgain,
        Some(
            ServerErrorKind::ClusterDown
            | ServerErrorKind::MasterDown
            | ServerErrorKind::BusyLoading
            | ServerErrorKind::ReadOnly,
        ) => Heard::NotNow,
        _ => Heard::Answer,
    }
}

/// The address in `3999 127.0.0.1:6381`. The host may be missing, and an IPv6 address has no brackets.
fn named_in(details: &str, asked: &Address) -> Option<Address> {
    let (host, port) = details.split_whitespace().nth(1)?.rsplit_once(':')?;
    let host = match host.trim_start_matches('[').trim_end_matches(']') {
        "" => asked.host.clone(),
        "?" => return None,
        host => host.to_owned(),
    };
    Some(Address { host, port: port.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(host: &str, port: u16) -> Address {
        Address { host: host.to_owned(), port }
    }

    fn asked() -> Address {
        address("10.0.0.1", 7000)
    }

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    /// By `CLUSTER KEYSLOT` of Redis 7.0.
    #[test]
    fn slots_are_those_of_the_server() {
        for (key, slot) in [
            ("", 0),
            ("123456789", 12739),
            ("foo", 12182),
            ("{foo}.bar", 12182),
            ("item:{foo}:fixed:60000", 12182),
            ("a{}foo", 16292),
            ("a{{foo}}", 13308),
            ("a{foo", 113),
        ] {
            assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
        }
    }

    #[test]
    fn ranges_name_the_node_that_was_asked_by_nothing() {
        let node = |host: Value| Value::Array(vec![host, Value::Int(7001), text("id")]);
        let range = |node| Value::Array(vec![Value::Int(0), Value::Int(100), node]);
        let read = |node| read_ranges(&Value::Array(vec![range(node)]), &asked()).unwrap().remove(0).primary;
        assert_eq!(read(node(text("10.0.0.2"))), Some(address("10.0.0.2", 7001)));
        assert_eq!(read(node(text("::1"))), Some(address("::1", 7001)));
        assert_eq!(read(node(text(""))), Some(address("10.0.0.1", 7001)));
        assert_eq!(read(node(Value::Nil)), Some(address("10.0.0.1", 7001)));
        assert_eq!(read(node(text("?"))), None);
        let known = Value::Array(vec![text("ip"), text("10.0.0.3")]);
        let nameless = Value::Array(vec![text("?"), Value::Int(7001), text("id"), known]);
        assert_eq!(read(nameless), Some(address("10.0.0.3", 7001)));
    }

    #[test]
    fn what_is_no_table_is_told() {
        for (first, last) in [(0, 16384), (5, 4), (-1, 4)] {
            let node = Value::Array(vec![text("10.0.0.2"), Value::Int(7001)]);
            let range = Value::Array(vec![Value::Int(first), Value::Int(last), node]);
            assert_eq!(read_ranges(&Value::Array(vec![range]), &asked()), None, "{first} to {last}");
        }
        assert_eq!(read_ranges(&Value::Okay, &asked()), None);
    }

    #[test]
    fn redirections_are_read() {
        for (details, named) in [
            ("3999 127.0.0.1:6381", Some(address("127.0.0.1", 6381))),
            ("3999 ::1:6381", Some(address("::1", 6381))),
            ("3999 [::1]:6381", Some(address("::1", 6381))),
            ("3999 redis-1.example:6381", Some(address("redis-1.example", 6381))),
            ("3999 :6381", Some(address("10.0.0.1", 6381))),
            ("3999 ?:6381", None),
            ("3999", None),
            ("3999 127.0.0.1:x", None),
        ] {
            assert_eq!(named_in(details, &asked()), named, "{details}");
        }
    }
}
