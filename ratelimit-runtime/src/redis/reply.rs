//! Replies of a server, and its errors with advice on what to do.

use std::fmt::Write as _;

use redis::{ErrorKind, RedisError, ServerErrorKind, Value};

use crate::error::{Doubt, StoreError};

/// Turns a server's error into a [`StoreError`]; any other reply is returned.
pub(super) fn answer(reply: Value) -> Result<Value, StoreError> {
    reply.extract_error().map_err(|error| explain(&error))
}

/// An integer reply.
pub(super) fn number(value: &Value) -> Result<i64, StoreError> {
    match value {
        Value::Int(number) => Ok(*number),
        other => Err(unexpected(other)),
    }
}

/// Error about a malformed reply, with its type and beginning only: it may be long, and its numbers
/// describe a user's activity.
pub(super) fn unexpected(reply: &Value) -> StoreError {
    const SHOWN: usize = 100;
    let mut beginning = Beginning { text: String::new(), room: SHOWN };
    let is_whole = write!(beginning, "{reply:?}").is_ok();
    let more = if is_whole { "" } else { " .." };
    let text = beginning.text;
    StoreError::misconfigured(format!("malformed reply to a script: {text}{more}"))
}

/// Accepts `room` bytes of text and then fails, so that the rest is never formatted.
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

/// Describes an error, with advice if there is some. Never contains a key or a password.
pub(super) fn explain(error: &RedisError) -> StoreError {
    // `unknown command 'HELLO', with args beginning with: 'AUTH' ..` goes on with the password, or
    // with the keys of a script.
    let detail = error.detail().unwrap_or_default();
    let detail = detail.split_once(", with args").map_or(detail, |(detail, _)| detail);
    let (code, is_wrapped) = script_code(error.code().unwrap_or_default(), detail);
    let is_full = detail.contains("max number of clients");
    let advice = match (error.kind(), code) {
        (_, "NOPERM") => "give its user the rights named in the documentation",
        (_, "WRONGTYPE") => "a counter's key holds another type: choose another namespace",
        (_, "OOM") => "the server is out of memory: see its maxmemory",
        _ if is_full => "it has reached its connection limit: raise its maxclients",
        (_, "ERR") if detail.starts_with("unknown command") && detail.contains("HELLO") => {
            "add ?protocol=resp2 to the URL"
        }
        (_, "BUSY") => "a script blocks the server: end it with SCRIPT KILL",
        (_, "READONLY") => "this is a replica: connect to the primary",
        (_, "MOVED" | "ASK" | "CROSSSLOT") => {
            "this server is a node of a cluster: write redis+cluster:// (or rediss+cluster://) in the URL"
        }
        (_, "ERR") if detail.contains("cluster support disabled") => {
            "this server is not in a cluster: write redis:// (or rediss://) in the URL"
        }
        (ErrorKind::AuthenticationFailed, _) | (_, "WRONGPASS" | "NOAUTH") => {
            "the server refused the credentials: check user and password"
        }
        (ErrorKind::RESP3NotSupported, _) => "add ?protocol=resp2 to the URL",
        _ => "",
    };
    if error.kind() == ErrorKind::Parse {
        return StoreError::misconfigured(other_protocol(error)).with_doubt(Some(Doubt::Protocol));
    }
    let mut reason = match error.code() {
        // The server's own words, so that a search finds them.
        Some(code) if !detail.is_empty() => format!("Redis: {code} {detail}"),
        _ if detail.is_empty() => format!("Redis: {error}"),
        _ => format!("Redis: {:?}: {detail}", error.kind()),
    };
    if !advice.is_empty() {
        let _ = write!(reason, "; {advice}");
    }
    let misconfigured = match error.kind() {
        _ if is_full || is_server_lost(code, detail) => false,
        // A script deleted and wrote a key whose slot was moving.
        _ if detail.contains("non local key") || detail.contains(CLUSTER_DOWN) => false,
        _ if matches!(code, "OOM" | "BUSY" | "MISCONF" | "NOREPLICAS" | "READONLY") => false,
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
        _ => true,
    };
    let explained = match error.kind() {
        ErrorKind::AuthenticationFailed => StoreError::misconfigured(reason).with_doubt(Some(Doubt::Credentials)),
        _ if matches!(code, "WRONGPASS" | "NOAUTH") => {
            StoreError::misconfigured(reason).with_doubt(Some(Doubt::Credentials))
        }
        _ if code == "DENIED" => StoreError::misconfigured(reason).with_doubt(Some(Doubt::Configuration)),
        _ if misconfigured => StoreError::misconfigured(reason),
        _ => StoreError::unavailable(reason),
    };
    if has_changed_nothing(code, is_wrapped) || detail.contains(CLUSTER_DOWN) {
        explained.with_no_effect()
    } else {
        explained
    }
}

/// True if a cluster is down and allows reads, so that the script has written nothing.
pub(super) fn is_cluster_down(reply: &Value) -> bool {
    let Value::ServerError(error) = reply else { return false };
    error.details().is_some_and(|detail| detail.contains(CLUSTER_DOWN))
}

/// Words of the error at the first write of a script, if a cluster that is down allows reads
/// (`cluster-allow-reads-when-down`).
const CLUSTER_DOWN: &str = "while the cluster is down";

/// True if the error proves that the command has changed nothing: the server refuses it before it runs,
/// or refuses the first write of its script. A script that has written is never refused for these reasons.
fn has_changed_nothing(code: &str, is_wrapped: bool) -> bool {
    const REFUSED: [&str; 11] = [
        "ASK",
        "BUSY",
        "CLUSTERDOWN",
        "LOADING",
        "MASTERDOWN",
        "MISCONF",
        "MOVED",
        "NOREPLICAS",
        "OOM",
        "READONLY",
        "TRYAGAIN",
    ];
    // Servers before 7.0 look for errors of the disk at each write of a script.
    if is_wrapped { matches!(code, "OOM" | "READONLY") } else { REFUSED.contains(&code) }
}

/// The code of an error. Servers before 7.0 wrap the error that a script's command gets. In a batch, a script has
/// caught it, as `@user_script: 41: -OOM command not allowed ..`.
fn script_code<'a>(code: &'a str, detail: &'a str) -> (&'a str, bool) {
    let is_wrapped =
        code == "ERR" && (detail.starts_with("Error running script") || detail.starts_with("@user_script"));
    match is_wrapped.then_some(detail).and_then(|error| error.split_once(": -")?.1.split_whitespace().next()) {
        Some(code) => (code, true),
        None => (code, false),
    }
}

/// Describes a server whose reply is none of Redis.
fn other_protocol(error: &RedisError) -> &'static str {
    // The second byte of `HTTP/1.1 400 Bad Request`, as the parser reports it.
    if error.to_string().contains("`84`") {
        "this looks like an HTTP server, not Redis: check host and port in the URL"
    } else {
        "this server does not reply as Redis does: check host and port in the URL, and whether it expects TLS"
    }
}

/// True if a proxy reports that its server is lost, or if another client has killed the script.
fn is_server_lost(code: &str, detail: &str) -> bool {
    /// Envoy's errors have no code.
    const ENVOY: [(&str, &str); 3] = [("no", "upstream host"), ("upstream", "failure"), ("upstream", "protocol error")];
    /// Twemproxy passes on errors of the operating system, in the words of glibc or musl. The last
    /// one is of redis-cluster-proxy.
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

/// True if the server is a replica, so that the command or script has written nothing.
pub(super) fn is_readonly(reply: &Value) -> bool {
    let error = match reply {
        Value::ServerError(error) => error,
        Value::Array(replies) => return replies.iter().any(is_readonly), // of a batch
        _ => return false,
    };
    script_code(error.code(), error.details().unwrap_or_default()).0 == "READONLY"
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use redis::{Value, parse_redis_value};

    use super::*;

    fn explained(words: &str) -> StoreError {
        let reply = parse_redis_value(format!("-{words}\r\n").as_bytes()).and_then(Value::extract_error);
        explain(&reply.expect_err("an error"))
    }

    /// As a script of a batch catches it on a server before 7.0.
    #[test]
    fn the_error_of_one_command_of_a_batch_is_the_server_s_own() {
        let caught = |error: &str| explained(&format!("ERR @user_script: 41: -{error}"));
        let full = caught("OOM command not allowed when used memory > 'maxmemory'.");
        assert!(!full.misconfigured && full.has_no_effect(), "{full}");
        assert!(caught("WRONGTYPE Operation against a key holding the wrong kind of value").misconfigured);
        let text = b"-ERR @user_script: 41: -READONLY You can't write against a read only replica.\r\n";
        assert!(is_readonly(&parse_redis_value(text).unwrap()));
    }

    /// A server that lost its configuration file has no password, and answers its own machine only.
    #[test]
    fn protected_mode_may_be_the_server_s_mistake() {
        let denied = explained("DENIED Redis is running in protected mode because protected mode is enabled");
        assert!(denied.misconfigured && denied.doubt() == Some(Doubt::Configuration), "{denied}");
    }

    #[test]
    fn arguments_that_a_server_echoes_are_not_shown() {
        let error = explained("ERR unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'shop' 'swordfish'");
        assert!(!error.reason().contains("swordfish"), "{error}");
        assert!(error.reason().contains("HELLO") && error.reason().contains("protocol=resp2"), "{error}");
        let error = explained(
            "ERR unknown command `EVALSHA`, with args beginning with: `abc`, `1`, `item:{4711}:fixed:60000`, ",
        );
        assert!(!error.reason().contains("4711"), "{error}");
    }

    #[test]
    fn only_the_beginning_of_a_malformed_reply_is_shown() {
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
    fn a_server_of_another_protocol_is_named() {
        let explained = |reply: &[u8]| explain(&parse_redis_value(reply).expect_err("not of Redis"));
        let http = explained(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        assert!(http.misconfigured && http.reason().contains("HTTP server, not Redis"), "{http}");
        let tls = explained(b"\x15\x03\x01\0\x02");
        assert!(tls.misconfigured && tls.reason().contains("does not reply as Redis"), "{tls}");
    }

    #[test]
    fn a_refused_command_has_changed_nothing() {
        let digest = "f_0123456789012345678901234567890123456789";
        for words in [
            "ASK 3999 127.0.0.1:6381",
            "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
            "CLUSTERDOWN The cluster is down",
            "LOADING Redis is loading the dataset in memory",
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
            "MISCONF Redis is configured to save RDB snapshots",
            "MOVED 3999 127.0.0.1:6381",
            "NOREPLICAS Not enough good replicas to write.",
            "OOM command not allowed when used memory > 'maxmemory'. script: 0123, on @user_script:1.",
            "READONLY You can't write against a read only replica.",
            "TRYAGAIN Multiple keys request during rehashing of slot",
            &format!("ERR Error running script (call to {digest}): @user_script:1: -OOM command not allowed"),
            &format!("ERR Error running script (call to {digest}): @user_script:1: -READONLY You can't write"),
        ] {
            assert!(explained(words).has_no_effect(), "{words}");
        }
        for words in [
            "ERR Connection reset by peer",
            "ERR Script attempted to access a non local key in a cluster node script: 0123, on @user_script:9.",
            "WRONGTYPE Operation against a key holding the wrong kind of value script: 0123, on @user_script:9.",
            &format!("ERR Error running script (call to {digest}): @user_script:1: -MISCONF Redis is configured"),
            "upstream failure",
        ] {
            assert!(!explained(words).has_no_effect(), "{words}");
        }
    }

    /// It allows reads, and the first write of a script fails.
    #[test]
    fn a_cluster_that_is_down_is_unavailable_and_has_changed_nothing() {
        let write = "attempted to execute a write command while the cluster is down and readonly";
        for words in [
            format!("ERR Script {write} script: 01, on @user_script:9."),
            format!("ERR Error running script (call to f_01): @user_script:9: @user_script: 9: Lua script {write}"),
            format!("ERR @user_script: 41: Script {write}"),
        ] {
            let error = explained(&words);
            assert!(!error.misconfigured && error.has_no_effect(), "{words}");
        }
    }

    #[test]
    fn a_server_at_its_connection_limit_is_unavailable() {
        let error = explained("ERR max number of clients reached");
        assert!(!error.misconfigured && error.reason().contains("maxclients"), "{error}");
    }

    #[test]
    fn a_replica_is_recognized_within_a_script_error_too() {
        let reply = |line: &str| redis::parse_redis_value(format!("{line}\r\n").as_bytes()).unwrap();
        let words = "You can't write against a read only replica.";
        assert!(is_readonly(&reply(&format!("-READONLY {words}"))));
        let digest = "f_0123456789012345678901234567890123456789";
        assert!(is_readonly(&reply(&format!(
            "-ERR Error running script (call to {digest}): @user_script:1: -READONLY {words}"
        ))));
        assert!(!is_readonly(&reply("-ERR Error compiling script (new function): user_script:1: syntax error")));
        assert!(!is_readonly(&reply("-OOM command not allowed when used memory > 'maxmemory'.")));
        assert!(!is_readonly(&reply("+READONLY")));
    }

    #[test]
    fn an_error_within_a_script_gets_its_advice() {
        let digest = "f_0123456789012345678901234567890123456789";
        for (code, advice, misconfigured) in
            [("OOM", "maxmemory", false), ("READONLY", "primary", false), ("WRONGTYPE", "namespace", true)]
        {
            let error = explained(&format!("ERR Error running script (call to {digest}): @user_script:1: -{code} No."));
            assert!(error.reason().contains(advice) && error.misconfigured == misconfigured, "{error}");
        }
    }
}
