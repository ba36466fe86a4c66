//! Addresses of clients, in the header fields of proxies.

use std::{
    iter,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use http::{HeaderMap, header::FORWARDED};

use super::super::Networks;

/// The proxies in front of a server whose header fields are believed; for
/// [`KeyBy::x_forwarded_for`](super::KeyBy::x_forwarded_for) and
/// [`KeyBy::forwarded`](super::KeyBy::forwarded).
///
/// - A number of proxies that every request passes: addresses are counted from the end of the field.
///   Earlier ones come from the client, and are ignored. A request with fewer addresses has bypassed
///   a proxy, and has no key.
/// - [`Networks`] of the proxies: from the peer of the connection on, and then from the end of the
///   field, the first address that is in none of them is the client's. A peer that is no proxy is
///   itself the client, whatever it sends. If all addresses are of proxies, the first one counts. The
///   peer is found as by [`KeyBy::peer`](super::KeyBy::peer).
///
/// ```
/// use ratelimit_runtime::web::{KeyBy, Networks};
///
/// KeyBy::x_forwarded_for(1); // one proxy
/// KeyBy::forwarded(Networks::parse(["10.0.0.0/8", "2001:db8::/32"])?); // any number, with these addresses
/// # Ok::<_, ratelimit_runtime::SetupError>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum TrustedProxies {
    /// A number of proxies, at least 1.
    Hops(usize),
    /// The proxies with an address in these networks.
    Networks(Networks),
}

impl From<usize> for TrustedProxies {
    fn from(hops: usize) -> Self {
        Self::Hops(hops)
    }
}

impl From<Networks> for TrustedProxies {
    fn from(networks: Networks) -> Self {
        Self::Networks(networks)
    }
}

impl TrustedProxies {
    /// The client's address. `peer` is asked for only if it is needed. `hops` has the addresses that
    /// proxies wrote, from the last one on; `None` for one that is malformed.
    pub(super) fn client(
        &self,
        peer: impl FnOnce() -> Option<IpAddr>,
        mut hops: impl Iterator<Item = Option<IpAddr>>,
    ) -> Option<IpAddr> {
        match self {
            Self::Hops(count) => hops.nth(count.checked_sub(1)?)?,
            Self::Networks(networks) => {
                let mut client = peer()?;
                // A proxy may be translated for a server with IPv6 alone, as a client may.
                while includes(networks, client) {
                    match hops.next() {
                        Some(address) => client = address?,
                        None => break,
                    }
                }
                Some(client)
            }
        }
    }
}

/// Whether networks have an address, in the form in which it came, or as the IPv4 address that it stands for.
pub(in crate::web) fn includes(networks: &Networks, ip: IpAddr) -> bool {
    networks.contains(ip) || networks.contains(unmapped(ip))
}

/// The IPv4 address of a client that is mapped to IPv6, or translated for a server with IPv6 alone
/// (`64:ff9b::192.0.2.1`, RFC 6052 and 7755).
pub(super) fn unmapped(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) if ip.segments().starts_with(&[0x64, 0xff9b, 0, 0, 0, 0]) => {
            let [.., a, b, c, d] = ip.octets();
            Ipv4Addr::new(a, b, c, d).into()
        }
        ip => ip,
    }
}

/// The addresses in `X-Forwarded-For`, from the last one on. `None` for one that is malformed.
pub(super) fn x_forwarded_for(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    let lines = headers.get_all("x-forwarded-for").iter().rev();
    let addresses = lines.flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','));
    addresses.map(|address| parse_ip(str::from_utf8(address).ok()?.trim()))
}

/// The addresses in `Forwarded`, from the last one on. `None` for an element without one address,
/// and at the end of what can be parsed.
///
/// Lines are parsed from their end, so that text from the client in front cannot change how the
/// elements of trusted proxies are parsed.
pub(super) fn forwarded(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    let lines = headers.get_all(FORWARDED).iter().rev();
    let elements = lines.flat_map(|line| {
        let mut rest = Some(line.as_bytes());
        iter::from_fn(move || {
            let split = rsplit_unquoted(rest.take()?, b',');
            rest = split.and_then(|(before, _)| before);
            Some(split.map(|(_, element)| element))
        })
    });
    // Nothing in front of a malformed element is believed.
    let mut is_malformed = false;
    let well_formed = elements.take_while(move |element| !std::mem::replace(&mut is_malformed, element.is_none()));
    well_formed.map(|element| address_of(element?))
}

/// The `for` address in an element of `Forwarded`. `None` if there is none, or more than one.
fn address_of(element: &[u8]) -> Option<IpAddr> {
    let (mut address, mut rest) = (None, Some(element));
    while let Some(pairs) = rest {
        let (before, pair) = rsplit_unquoted(pairs, b';')?;
        rest = before;
        let pair = pair.trim_ascii();
        if pair.is_empty() {
            continue;
        }
        let (name, value) = pair.split_at(pair.iter().position(|byte| *byte == b'=')?);
        if name.eq_ignore_ascii_case(b"for") && address.replace(&value[1..]).is_some() {
            return None;
        }
    }
    let address = str::from_utf8(address?).ok()?;
    match address.strip_prefix('"') {
        Some(quoted) => parse_ip(without_hidden_port(&unescaped(quoted.strip_suffix('"')?))),
        None => parse_ip(address),
    }
}

/// An address without a port that the proxy hides, as `:_a1` (RFC 7239, section 6).
fn without_hidden_port(address: &str) -> &str {
    let is_hidden = |port: &str| port.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
    address.split_once(":_").filter(|(_, port)| !port.is_empty() && is_hidden(port)).map_or(address, |(ip, _)| ip)
}

/// Splits at the last separator outside of quoted strings, into the text before it, if there is
/// one, and after it. `None` if a quoted string in the text after it is malformed.
///
/// From its end, a well-formed text can be parsed in only one way. Within a quoted string, a
/// quotation mark after an odd number of backslashes is escaped, and the opening one follows `=`.
fn rsplit_unquoted(text: &[u8], separator: u8) -> Option<(Option<&[u8]>, &[u8])> {
    let mut is_quoted = false;
    for (at, byte) in text.iter().enumerate().rev() {
        let before = &text[..at];
        match byte {
            b'"' => {
                let backslashes = before.iter().rev().take_while(|byte| **byte == b'\\').count();
                let is_escaped = backslashes % 2 == 1;
                is_quoted = match is_quoted {
                    false if !is_escaped => true,
                    true if is_escaped => true,
                    true if before.ends_with(b"=") => false,
                    _ => return None,
                };
            }
            _ if is_quoted => {}
            b'\\' => return None,
            _ if *byte == separator => return Some((Some(before), &text[at + 1..])),
            _ => {}
        }
    }
    (!is_quoted).then_some((None, text))
}

/// The unescaped text of a quoted string.
fn unescaped(quoted: &str) -> String {
    let mut chars = quoted.chars();
    let next = || match chars.next()? {
        '\\' => chars.next(),
        other => Some(other),
    };
    std::iter::from_fn(next).collect()
}

/// Parses an IP address, with or without a port, as proxies write it.
pub(super) fn parse_ip(text: &str) -> Option<IpAddr> {
    let ip = text.parse::<IpAddr>().or_else(|_| text.parse::<SocketAddr>().map(|address| address.ip()));
    ip.ok().or_else(|| text.strip_prefix('[')?.strip_suffix(']')?.parse::<Ipv6Addr>().ok().map(IpAddr::V6))
}
