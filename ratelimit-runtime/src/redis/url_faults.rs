//! Faults of Redis URLs.
//!
//! A message names the part and its position. It repeats no text but option names: a misplaced `@`,
//! `:` or `?` makes a part of the password look like a host, a port or a database.

use std::fmt;

use crate::SetupError;

/// Options in the query of a URL.
const OPTIONS: &[&str] = &["protocol"];
/// Options of a Unix socket, whose URL has no other place for them.
const UNIX_OPTIONS: &[&str] = &["db", "user", "pass", "protocol"];

/// Parts of a URL after its scheme.
struct Parts<'a> {
    url: &'a str,
    /// Host names with ports, separated by commas.
    hosts: &'a str,
    path: &'a str,
    query: Option<&'a str>,
    fragment: Option<&'a str>,
}

impl<'a> Parts<'a> {
    fn of(url: &'a str, rest: &'a str) -> Self {
        let (rest, fragment) = rest.split_once('#').map_or((rest, None), |(rest, end)| (rest, Some(end)));
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, end)| (rest, Some(end)));
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let hosts = authority.rsplit('@').next().unwrap_or_default();
        Self { url, hosts, path, query, fragment }
    }

    /// Position of a part in the URL, in characters from 1 on.
    fn position(&self, part: &str) -> usize {
        let offset = part.as_ptr().addr() - self.url.as_ptr().addr();
        1 + self.url.get(..offset).map_or(0, |before| before.chars().count())
    }

    fn fault(&self, part: &str, message: impl fmt::Display) -> SetupError {
        SetupError::new(format!("invalid Redis URL: {message} (at character {})", self.position(part)))
    }

    fn check_host(&self, host: &str) -> Result<(), SetupError> {
        // The colons within the brackets are those of an IPv6 address.
        let after_address = match host.strip_prefix('[') {
            Some(address) => address.split_once(']').map(|(_, rest)| rest),
            None => Some(&host[host.find(':').unwrap_or(host.len())..]),
        };
        let Some(after_address) = after_address else {
            return Err(self.fault(host, "the IPv6 address has no closing bracket; write [::1]:6379"));
        };
        if host.len() == after_address.len() {
            return Err(
                self.fault(host, "a host is missing; write host:port, or host:port,host:port if there are several")
            );
        }
        let port = after_address.strip_prefix(':').unwrap_or(after_address);
        if !after_address.is_empty() && !port.parse().is_ok_and(|port: u16| port > 0) {
            return Err(self.fault(port, "the port is not a number from 1 to 65535"));
        }
        Ok(())
    }

    fn check_database(&self, database: &str) -> Result<(), SetupError> {
        match database.parse::<i64>() {
            _ if database.is_empty() => Ok(()),
            Ok(0..) => Ok(()),
            Ok(number) => {
                Err(self.fault(database, format_args!("there is no database {number}; they are numbered from 0")))
            }
            Err(_) => Err(self.fault(database, "the database is not a number")),
        }
    }

    fn check_options(&self, known: &[&str]) -> Result<(), SetupError> {
        let Some(query) = self.query else { return Ok(()) };
        let mut may_show = true;
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            match name {
                "protocol" if !["2", "3", "resp2", "resp3"].contains(&value) => {
                    return Err(self.fault(option, "the option `protocol` is neither `resp2` nor `resp3`"));
                }
                "db" if known.contains(&name) => self.check_database(value)?,
                _ if known.contains(&name) => {}
                _ => {
                    // Behind an unescaped `?` in a password, the query has the rest of it.
                    let is_name = name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
                    let name = if may_show && is_name && !query.contains('@') {
                        format!("unknown option `{name}`")
                    } else {
                        "unknown option".into()
                    };
                    let known = known.join("`, `");
                    return Err(self.fault(option, format_args!("{name}; the options here are `{known}`")));
                }
            }
            may_show &= name != "pass"; // an unescaped `&` in the password
        }
        Ok(())
    }

    fn check_fragment(&self, is_tls: bool) -> Result<(), SetupError> {
        match self.fragment {
            None => Ok(()),
            Some("insecure") if is_tls => Ok(()),
            Some(fragment) => Err(self.fault(fragment, "only #insecure may follow the URL, and only with TLS")),
        }
    }
}

/// Checks each part of a URL.
pub(super) fn check(url: &str) -> Result<(), SetupError> {
    let Some((scheme, rest)) = url.split_once("://") else { return Ok(()) };
    let parts = Parts::of(url, rest);
    let (base, topology) = scheme.split_once('+').unwrap_or((scheme, ""));
    if scheme == "unix" || topology == "unix" {
        parts.check_options(UNIX_OPTIONS)?;
        return parts.check_fragment(false);
    }
    parts.hosts.split(',').try_for_each(|host| parts.check_host(host))?;
    let path = parts.path.trim_matches('/');
    match topology {
        "sentinel" => parts.check_database(path.split_once('/').map_or("", |(_, database)| database))?,
        _ => parts.check_database(path)?,
    }
    parts.check_options(OPTIONS)?;
    parts.check_fragment(matches!(base, "rediss" | "valkeys"))
}
