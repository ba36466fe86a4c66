//! Replies and errors of a server as ours, with advice.

use std::fmt::Write as _;

use redis::{ErrorKind, RedisError, ServerErrorKind, Value};

use crate::store::StoreError;

/// A server's reply, or its error as ours.
pub(super) fn answer(reply: Value) -> Result<Value, StoreError> {
    reply.extract_error().map_err(|error| explain(&error))
}

/// A reply that is a whole number.
pub(super) fn number(value: &Value) -> Result<i64, StoreError> {
    match value {
        Value::Int(number) => Ok(*number),
        other => Err(unexpected(other)),
    }
}

/// A reply that no script makes, as its type and how it begins: it may be long, and the numbers in it say what a user did.
pub(super) fn unexpected(reply: &Value) -> StoreError {
    const SHOWN: usize = 100;
    let mut beginning = Beginning { text: String::new(), room: SHOWN };
    let is_whole = write!(beginning, "{reply:?}").is_ok();
    let more = if is_whole { "" } else { " .." };
    let text = beginning.text;
    StoreError::misconfigured(format!("the server's reply to a script is not what the script returns: {text}{more}"))
}

/// Takes so many bytes of a text, and then fails, so that the rest is never made.
struct Beginning {
    text: String,
    room: usize,
}

impl std::fmt::Write for Beginning {
    fn write_str(&mut self, more: &str) -> std::fmt::Result {
        for letter in more.chars() {
            if self.text.len() + letter.len_utf8() > self.room {
                return Err(std::fmt::Error);
            }
            self.text.push(letter);
        }
        Ok(())
    }
}

/// An error in words, with what to do where that is known. Never with what a key or a password holds.
pub(super) fn explain(error: &RedisError) -> StoreError {
    let code = error.code().unwrap_or_default();
    // `unknown command 'HELLO', with args beginning with: 'AUTH' ..` goes on with the password, and with keys for scripts.
    let detail = error.detail().unwrap_or_default();
    let detail = detail.split_once(", with args").map_or(detail, |(detail, _)| detail);
    let is_full = detail.contains("max number of clients");
    let advice = match (error.kind(), code) {
        (_, "NOPERM") => "give its user the rights named in the documentation",
        (_, "WRONGTYPE") => "something else is stored under a counter's name: choose another namespace",
        (_, "OOM") => "the server is out of memory: see its maxmemory",
        _ if is_full => "it has as many connections as it may: raise its maxclients",
        (_, "ERR") if detail.starts_with("unknown command") && detail.contains("HELLO") => {
            "add ?protocol=resp2 to the URL"
        }
        (_, "BUSY") => "a script runs on and on: end it with SCRIPT KILL",
        (_, "READONLY") => "this is a replica: connect to the primary",
        (_, "MOVED" | "ASK" | "CROSSSLOT") => {
            "this server is a node of a cluster: write redis+cluster:// (or rediss+cluster://) in the URL"
        }
        (_, "ERR") if detail.contains("cluster support disabled") => {
            "this server is not in a cluster: write redis:// (or rediss://) in the URL"
        }
        (ErrorKind::AuthenticationFailed, _) | (_, "WRONGPASS" | "NOAUTH") => "check user and password",
        (ErrorKind::RESP3NotSupported, _) => "add ?protocol=resp2 to the URL",
        _ => "",
    };
    let mut reason = match error.code() {
        // As the server said it, so that it is found where people look for it.
        Some(code) if !detail.is_empty() => format!("Redis: {code} {detail}"),
        _ if detail.is_empty() => format!("Redis: {error}"),
        _ => format!("Redis: {:?}: {detail}", error.kind()),
    };
    if !advice.is_empty() {
        let _ = write!(reason, "; {advice}");
    }
    let misconfigured = match error.kind() {
        _ if is_full || is_lost(code, detail) => false,
        // A key was deleted and written by one script, while its slot was moving.
        _ if detail.contains("non local key") => false,
        // Servers before 7.0 wrap what a command of a script said.
        _ if ["-OOM", "-READONLY", "-MISCONF", "-NOREPLICAS"].iter().any(|code| detail.contains(code)) => false,
        ErrorKind::Io | ErrorKind::ClusterConnectionNotFound => false,
        ErrorKind::Server(kind) => matches!(
            kind,
            ServerErrorKind::ResponseError
                | ServerErrorKind::ExecAbort
                | ServerErrorKind::CrossSlot
                | ServerErrorKind::Moved
                | ServerErrorKind::Ask
                | ServerErrorKind::NoPerm
                | ServerErrorKind::NoScript
        ),
        ErrorKind::Extension => !matches!(code, "OOM" | "BUSY" | "MISCONF" | "NOREPLICAS"),
        _ => true,
    };
    match error.kind() {
        ErrorKind::AuthenticationFailed => StoreError::misconfigured(reason).about_credentials(),
        _ if matches!(code, "WRONGPASS" | "NOAUTH") => StoreError::misconfigured(reason).about_credentials(),
        _ if misconfigured => StoreError::misconfigured(reason),
        _ => StoreError::unavailable(reason),
    }
}

/// Whether a server says that another one is lost, as proxies do, or that the script was ended by somebody else.
fn is_lost(code: &str, detail: &str) -> bool {
    /// Envoy has no codes.
    const ENVOY: [(&str, &str); 3] = [("no", "upstream host"), ("upstream", "failure"), ("upstream", "protocol error")];
    /// Twemproxy says what its operating system does, with glibc or musl; others are of redis-cluster-proxy.
    const LOST: [&str; 9] = [
        "Connection refused",
        "Connection timed out",
        "Operation timed out",
        "Connection reset by peer",
        "Broken pipe",
        "No route to host",
        "Host is unreachable",
        "Network is unreachable",
        "Cluster node disconnected",
    ];
    ENVOY.contains(&(code, detail))
        || code == "ERR" && LOST.iter().any(|words| detail.starts_with(words))
        || detail.contains("Script killed by user")
}

#[cfg(test)]
mod tests {
    use redis::{Value, parse_redis_value};

    use super::*;

    fn said(words: &str) -> StoreError {
        let reply = parse_redis_value(format!("-{words}\r\n").as_bytes()).and_then(Value::extract_error);
        explain(&reply.expect_err("an error"))
    }

    #[test]
    fn what_a_server_repeats_of_a_command_is_not_shown() {
        let error = said("ERR unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'shop' 'swordfish'");
        assert!(!error.reason().contains("swordfish"), "{error}");
        assert!(error.reason().contains("HELLO") && error.reason().contains("protocol=resp2"), "{error}");
        let error =
            said("ERR unknown command `EVALSHA`, with args beginning with: `abc`, `1`, `item:{4711}:fixed:60000`, ");
        assert!(!error.reason().contains("4711"), "{error}");
    }

    #[test]
    fn an_unexpected_reply_is_shown_as_it_begins() {
        let long = Value::BulkString(b"0123456789".repeat(1_700));
        let nested = Value::Array(vec![Value::Array(vec![long.clone(); 3]); 3]);
        for reply in [long, nested, Value::SimpleString("é".repeat(20_000)), Value::Int(7)] {
            let error = unexpected(&reply);
            assert!(error.misconfigured && error.reason().len() < 200, "{} bytes: {error}", error.reason().len());
        }
        assert!(unexpected(&Value::Int(7)).reason().ends_with(": int(7)"), "{}", unexpected(&Value::Int(7)));
        assert!(unexpected(&Value::BulkString(vec![b'x'; 200])).reason().contains("bulk-string('\"xxx"));
    }

    #[test]
    fn a_server_with_all_its_connections_taken_is_away() {
        let error = said("ERR max number of clients reached");
        assert!(!error.misconfigured && error.reason().contains("maxclients"), "{error}");
    }
}
