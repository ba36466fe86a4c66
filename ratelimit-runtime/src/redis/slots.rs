//! Hash slots of a cluster: the slot of a key, slot maps, and redirections.

use std::ops::RangeInclusive;

use crc::{CRC_16_XMODEM, Crc};
use redis::{ServerErrorKind, Value};

use super::{
    address::ServerAddress,
    reply::{is_cluster_down, is_readonly},
};

/// Number of slots of a cluster.
pub(super) const SLOTS: u16 = 16384;

static CRC: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

/// Slot of a key, determined by its hash tag: the part in its first pair of braces, unless that is
/// empty.
pub(super) fn slot_of(key: &[u8]) -> u16 {
    let tag = key.iter().position(|&byte| byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let length = rest.iter().position(|&byte| byte == b'}')?;
        (length > 0).then(|| &rest[..length])
    });
    CRC.checksum(tag.unwrap_or(key)) % SLOTS
}

/// A node's view of which primary has which slots.
#[derive(Clone, Debug)]
pub(super) struct SlotMap {
    pub(super) ranges: Vec<SlotRange>,
    /// Servers that may take the place of a primary.
    pub(super) replicas: Vec<ServerAddress>,
}

/// Compares primaries only: a node leaves out replicas that it considers down.
impl PartialEq for SlotMap {
    fn eq(&self, other: &Self) -> bool {
        self.ranges == other.ranges
    }
}

/// A range of slots of one primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlotRange {
    pub(super) slots: RangeInclusive<u16>,
    /// `None` if the cluster does not know its address.
    pub(super) primary: Option<ServerAddress>,
}

/// Parses a reply to `CLUSTER SLOTS` of the node at `asked`. `None` if it is malformed.
pub(super) fn parse_slot_map(reply: &Value, asked: &ServerAddress) -> Option<SlotMap> {
    let Value::Array(ranges) = reply else { return None };
    let mut replicas: Vec<ServerAddress> = Vec::new();
    let mut read = |range: &Value| {
        let Value::Array(fields) = range else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(primary), others @ ..] = &fields[..] else {
            return None;
        };
        let (first, last) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?);
        for other in others {
            if let Value::Array(replica) = other
                && let Some(address) = parse_node(replica, asked)
                && !replicas.contains(&address)
            {
                replicas.push(address);
            }
        }
        (first <= last && last < SLOTS).then(|| SlotRange { slots: first..=last, primary: parse_node(primary, asked) })
    };
    let mut ranges: Vec<_> = ranges.iter().map(&mut read).collect::<Option<_>>()?;
    ranges.sort_by_key(|range| *range.slots.start()); // older servers send them in any order
    Some(SlotMap { ranges, replicas })
}

/// Parses a node: endpoint, port, id and, in later versions, further attributes.
fn parse_node(fields: &[Value], asked: &ServerAddress) -> Option<ServerAddress> {
    // The port with TLS if this client uses TLS, else the one without. 0 if the node has none.
    let port = fields.get(1).and_then(|port| redis::from_redis_value_ref(port).ok()).filter(|port| *port != 0)?;
    let host = match fields.first() {
        // The endpoint is unknown, so it is the one that was asked.
        None | Some(Value::Nil) => asked.host.clone(),
        Some(host) => match redis::from_redis_value_ref::<String>(host).ok()?.as_str() {
            "" => asked.host.clone(),
            // Nodes are reached by host name, and this one has none.
            "?" => ip_of(fields.get(3)?)?,
            host => host.to_owned(),
        },
    };
    Some(ServerAddress { host, port })
}

/// IP address among the attributes of a node.
fn ip_of(attributes: &Value) -> Option<String> {
    let attributes: std::collections::HashMap<String, String> = redis::from_redis_value_ref(attributes).ok()?;
    attributes.get("ip").filter(|address| !address.is_empty()).cloned()
}

/// Redirection in a node's reply. A command that is redirected has not run.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Redirection {
    /// The reply is an answer.
    None,
    /// The node at this address has the slot now.
    Moved(ServerAddress),
    /// The node at this address is to be asked, this time only.
    Ask(ServerAddress),
    /// Another node has the slot, but its address is not known.
    WithoutAddress,
    /// Keys of the slot are being moved.
    TryAgain,
    /// The node cannot run commands now.
    Unavailable,
}

/// A reply by which another node has to be asked.
pub(super) fn is_redirection(reply: &Value) -> bool {
    redirection(reply, &ServerAddress { host: String::new(), port: 0 }) != Redirection::None
}

/// Redirection in a reply of the node at `asked`.
pub(super) fn redirection(reply: &Value, asked: &ServerAddress) -> Redirection {
    let Value::ServerError(error) = reply else { return Redirection::None };
    let address = || error.details().and_then(|details| parse_address(details, asked));
    match error.kind() {
        Some(ServerErrorKind::Moved) => address().map_or(Redirection::WithoutAddress, Redirection::Moved),
        Some(ServerErrorKind::Ask) => address().map_or(Redirection::WithoutAddress, Redirection::Ask),
        Some(ServerErrorKind::TryAgain) => Redirection::TryAgain,
        Some(ServerErrorKind::ClusterDown | ServerErrorKind::MasterDown | ServerErrorKind::BusyLoading) => {
            Redirection::Unavailable
        }
        _ if is_readonly(reply) || is_cluster_down(reply) => Redirection::Unavailable,
        _ => Redirection::None,
    }
}

/// Parses the address in `3999 127.0.0.1:6381`. The host may be missing; an IPv6 address has no
/// brackets.
fn parse_address(details: &str, asked: &ServerAddress) -> Option<ServerAddress> {
    let (host, port) = details.split_whitespace().nth(1)?.rsplit_once(':')?;
    let host = match host.trim_start_matches('[').trim_end_matches(']') {
        "" => asked.host.clone(),
        "?" => return None,
        host => host.to_owned(),
    };
    Some(ServerAddress { host, port: port.parse().ok().filter(|port| *port != 0)? })
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use super::*;

    fn address(host: &str, port: u16) -> ServerAddress {
        ServerAddress { host: host.to_owned(), port }
    }

    fn asked() -> ServerAddress {
        address("10.0.0.1", 7000)
    }

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    /// Expected values from `CLUSTER KEYSLOT` of Redis 7.0.
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
    fn an_empty_host_is_the_node_that_was_asked() {
        let node = |host: Value| Value::Array(vec![host, Value::Int(7001), text("id")]);
        let range = |node| Value::Array(vec![Value::Int(0), Value::Int(100), node]);
        let read = |node| parse_slot_map(&Value::Array(vec![range(node)]), &asked()).unwrap().ranges.remove(0).primary;
        assert_eq!(read(node(text("10.0.0.2"))), Some(address("10.0.0.2", 7001)));
        assert_eq!(read(node(text("::1"))), Some(address("::1", 7001)));
        assert_eq!(read(node(text(""))), Some(address("10.0.0.1", 7001)));
        assert_eq!(read(node(Value::Nil)), Some(address("10.0.0.1", 7001)));
        assert_eq!(read(node(text("?"))), None);
        let portless = Value::Array(vec![text("10.0.0.2"), Value::Int(0), text("id")]);
        assert_eq!(read(portless), None, "it has no port with TLS, or none without");
        let known = Value::Array(vec![text("ip"), text("10.0.0.3")]);
        let nameless = Value::Array(vec![text("?"), Value::Int(7001), text("id"), known]);
        assert_eq!(read(nameless), Some(address("10.0.0.3", 7001)));
    }

    #[test]
    fn replicas_do_not_matter_when_slot_maps_are_compared() {
        let node = |port| Value::Array(vec![text("10.0.0.2"), Value::Int(port), text("id")]);
        let range = |first, nodes: &[i64]| {
            let nodes = nodes.iter().map(|port| node(*port));
            Value::Array([Value::Int(first), Value::Int(first + 9)].into_iter().chain(nodes).collect())
        };
        let read = |ranges| parse_slot_map(&Value::Array(ranges), &asked()).unwrap();
        let both = read(vec![range(10, &[7001, 7002, 7003]), range(0, &[7001, 7003, 7002])]);
        assert_eq!(both.replicas, [address("10.0.0.2", 7002), address("10.0.0.2", 7003)]);
        assert_eq!(both, read(vec![range(0, &[7001]), range(10, &[7001])]), "in any order, whatever replicas");
        assert_ne!(both, read(vec![range(0, &[7001]), range(10, &[7002])]));
    }

    #[test]
    fn redirections_are_recognized() {
        let asked = asked();
        for (error, expected) in [
            ("MOVED 3999 ?:6381", Redirection::WithoutAddress),
            ("ASK 3999 10.0.0.2:0", Redirection::WithoutAddress),
            ("MOVED 3999 10.0.0.2:7001", Redirection::Moved(address("10.0.0.2", 7001))),
            ("READONLY You can't write against a read only replica.", Redirection::Unavailable),
            (
                "ERR Error running script (call to f_01): @user_script:1: @user_script: 1: -READONLY You can't write",
                Redirection::Unavailable,
            ),
            (
                "ERR Script attempted to execute a write command while the cluster is down and readonly script: 01",
                Redirection::Unavailable,
            ),
            ("ERR Error running script (call to f_01): @user_script:1: -OOM command not allowed", Redirection::None),
        ] {
            let reply = redis::parse_redis_value(format!("-{error}\r\n").as_bytes()).unwrap();
            assert_eq!(redirection(&reply, &asked), expected, "{error}");
        }
    }

    #[test]
    fn malformed_slot_maps_are_rejected() {
        for (first, last) in [(0, 16384), (5, 4), (-1, 4)] {
            let node = Value::Array(vec![text("10.0.0.2"), Value::Int(7001)]);
            let range = Value::Array(vec![Value::Int(first), Value::Int(last), node]);
            assert_eq!(parse_slot_map(&Value::Array(vec![range]), &asked()), None, "{first} to {last}");
        }
        assert_eq!(parse_slot_map(&Value::Okay, &asked()), None);
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
            ("3999 127.0.0.1:0", None),
            ("3999", None),
            ("3999 127.0.0.1:x", None),
        ] {
            assert_eq!(parse_address(details, &asked()), named, "{details}");
        }
    }
}
