//! Keys from header fields compared with a simple parser of the RFC, behind proxies that copy
//! hostile input.

use std::{
    fmt::Write as _,
    net::{IpAddr, SocketAddr},
};

use http::{HeaderName, HeaderValue, Request};
use proptest::{collection::vec, option, prelude::*, sample::select};

use super::{AmbiguousKey, FoundKey, KeyBy, TrustedProxies, addresses, found_now};
use crate::{hostile::inputs, web::Networks};

/// Parses a `Forwarded` field into elements of parameters, from left to right, by the grammar of
/// RFC 7239, section 4. `None` if the text is malformed.
fn elements_of(text: &str) -> Option<Vec<Vec<(String, String)>>> {
    let mut chars = text.chars().peekable();
    let mut elements = vec![Vec::new()];
    loop {
        while chars.next_if(|next| matches!(next, ' ' | '\t')).is_some() {}
        let name = token(&mut chars);
        if !name.is_empty() {
            chars.next_if_eq(&'=')?;
            let value = match chars.next_if_eq(&'"') {
                Some(_) => rest_of_quoted_string(&mut chars)?,
                None => Some(token(&mut chars)).filter(|value| !value.is_empty())?,
            };
            elements.last_mut()?.push((name.to_ascii_lowercase(), value));
        }
        while chars.next_if(|next| matches!(next, ' ' | '\t')).is_some() {}
        match chars.next() {
            None => return Some(elements),
            Some(',') => elements.push(Vec::new()),
            Some(';') => {}
            Some(_) => return None,
        }
    }
}

type Chars<'a> = std::iter::Peekable<std::str::Chars<'a>>;

/// Whether a character may occur in a token (RFC 9110, section 5.6.2).
fn is_of_token(c: char) -> bool {
    c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c)
}

fn token(chars: &mut Chars<'_>) -> String {
    std::iter::from_fn(|| chars.next_if(|next| is_of_token(*next))).collect()
}

/// Parses a quoted string after its first quotation mark (RFC 9110, section 5.6.4).
fn rest_of_quoted_string(chars: &mut Chars<'_>) -> Option<String> {
    let mut text = String::new();
    loop {
        match chars.next()? {
            '"' => return Some(text),
            '\\' => text.push(chars.next()?),
            other => text.push(other),
        }
    }
}

/// The key by the simple parser: the address in one element, counted from the end.
fn plain_key(lines: &[String], hops: usize) -> Option<String> {
    let elements = elements_of(&lines.join(", "))?;
    let element = elements.into_iter().rev().nth(hops - 1)?;
    let mut addresses = element.iter().filter(|(name, _)| name == "for");
    let (Some((_, address)), None) = (addresses.next(), addresses.next()) else { return None };
    let of_hidden_port = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let address = match address.rsplit_once(':') {
        Some((ip, port)) if port.len() > 1 && port.starts_with('_') && port.chars().all(of_hidden_port) => ip,
        _ => address,
    };
    addresses::parse_ip(address).map(text_of)
}

fn text_of(ip: IpAddr) -> String {
    FoundKey::of_ip(ip).key.to_string()
}

fn key_of(by: &KeyBy, field: &HeaderName, lines: &[String]) -> Option<String> {
    let lines: Vec<_> = lines.iter().map(|line| HeaderValue::from_bytes(line.as_bytes()).unwrap()).collect();
    key_of_values(by, field, &lines, None)
}

/// The key of a request from this peer.
fn key_of_values(by: &KeyBy, field: &HeaderName, values: &[HeaderValue], peer: Option<IpAddr>) -> Option<String> {
    let mut request = Request::new(());
    for value in values {
        request.headers_mut().append(field, value.clone());
    }
    if let Some(peer) = peer {
        request.extensions_mut().insert(SocketAddr::from((peer, 4711)));
    }
    match found_now(by, &request.into_parts().0) {
        Ok(found) => found.map(|found| found.key.to_string()),
        Err(AmbiguousKey) => panic!("not a header that is a key"),
    }
}

/// Elements in front of a malformed one are not counted, not even those of an earlier line.
#[test]
fn nothing_in_front_of_a_malformed_element_is_a_key() {
    for (lines, key) in [
        (["for=203.0.113.7", "for=198.51.100.1"], Some("203.0.113.7")),
        (["for=203.0.113.7", "for=\"198.51.100.1"], None),
        (["for=203.0.113.7", "for=203.0.113.7, for=a\"b\""], None),
    ] {
        let lines = lines.map(str::to_owned);
        let found = key_of(&KeyBy::forwarded(2), &http::header::FORWARDED, &lines);
        assert_eq!(found.as_deref(), key, "{lines:?}");
    }
}

/// A field or `Host` from a client that imitates the elements of proxies.
fn hostile() -> impl Strategy<Value = String> {
    const PIECES: &[&str] = &[
        "for=9.9.9.9",
        "for=\"9.9.9.9\"",
        "for=\"[2001:db8:6666::1]\"",
        "9.9.9.9",
        "For=",
        "host=",
        "a",
        "\"",
        "\\\"",
        "\\\\",
        "\\",
        ",",
        ", ",
        ";",
        "=",
        "=\"",
        "\",",
        "\";",
        " ",
        "\t",
        "proto=http",
        ",,",
        "é",
    ];
    vec(select(PIECES), 0..12).prop_map(|pieces| pieces.concat())
}

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![any::<[u8; 4]>().prop_map(IpAddr::from), any::<[u16; 8]>().prop_map(IpAddr::from)]
}

/// A proxy that follows the RFC, and its peer.
#[derive(Clone, Debug)]
struct Proxy {
    peer: IpAddr,
    port: Option<u16>,
    /// In `Forwarded`, in place of the port.
    hidden_port: Option<&'static str>,
    /// Copied from the request. True: before the address.
    host: Option<(String, bool)>,
    is_quoted: bool,
    /// A character that is escaped in quoted strings although it need not be.
    escaped: char,
    /// The separator before its element. `None`: it adds a line.
    separator: Option<&'static str>,
}

fn proxy() -> impl Strategy<Value = Proxy> {
    let host = option::of((hostile(), any::<bool>()));
    let separator = option::of(select(&[", ", ",", " , ", ",\t"][..]));
    let escaped = select(&['a', ',', ';', '=', '\0'][..]);
    let ports = (option::of(any::<u16>()), option::of(select(&["_a", "_.-_", "_443"][..])));
    (address(), ports, host, any::<bool>(), escaped, separator).prop_map(
        |(peer, (port, hidden_port), host, is_quoted, escaped, separator)| Proxy {
            peer,
            port,
            hidden_port,
            host,
            is_quoted,
            escaped,
            separator,
        },
    )
}

impl Proxy {
    fn address(&self) -> String {
        match (self.peer, self.port) {
            (peer @ IpAddr::V4(_), None) => peer.to_string(),
            (peer @ IpAddr::V4(_), Some(port)) => format!("{peer}:{port}"),
            (peer @ IpAddr::V6(_), None) => format!("[{peer}]"),
            (peer @ IpAddr::V6(_), Some(port)) => format!("[{peer}]:{port}"),
        }
    }

    fn value(&self, text: &str) -> String {
        if !self.is_quoted && !text.is_empty() && text.chars().all(is_of_token) {
            return text.to_owned();
        }
        let mut quoted = String::from("\"");
        for c in text.chars() {
            if matches!(c, '"' | '\\') || c == self.escaped {
                quoted.push('\\');
            }
            quoted.push(c);
        }
        quoted + "\""
    }

    fn element(&self) -> String {
        let address = match self.hidden_port {
            Some(hidden) => format!("{}:{hidden}", Self { port: None, ..self.clone() }.address()),
            None => self.address(),
        };
        let mut element = format!("for={}", self.value(&address));
        match &self.host {
            Some((host, true)) => element = format!("host={};{element}", self.value(host)),
            Some((host, false)) => write!(element, ";host={};proto=https", self.value(host)).unwrap(),
            None => {}
        }
        element
    }

    /// Appends its element.
    fn forward(&self, lines: &mut Vec<String>, element: &str) {
        match (lines.last_mut(), self.separator) {
            (Some(last), Some(separator)) => write!(last, "{separator}{element}").unwrap(),
            _ => lines.push(element.to_owned()),
        }
    }
}

proptest! {
    #![proptest_config(inputs(4096))]

    /// Whatever the client sends, the key is the peer address of the first trusted proxy.
    #[test]
    fn no_client_behind_proxies_chooses_its_key(sent in vec(hostile(), 0..3), proxies in vec(proxy(), 1..4)) {
        let real = Some(text_of(proxies[0].peer));
        let mut lines = sent.clone();
        for proxy in &proxies {
            proxy.forward(&mut lines, &proxy.element());
        }
        let forwarded = key_of(&KeyBy::forwarded(proxies.len()), &http::header::FORWARDED, &lines);
        prop_assert_eq!(&forwarded, &real, "{:?}", lines);

        let mut lines = sent;
        for proxy in &proxies {
            proxy.forward(&mut lines, &proxy.address());
        }
        let field = HeaderName::from_static("x-forwarded-for");
        let x_forwarded_for = key_of(&KeyBy::x_forwarded_for(proxies.len()), &field, &lines);
        prop_assert_eq!(&x_forwarded_for, &real, "{:?}", lines);
    }

    /// Behind proxies that are trusted by their addresses, however many there are.
    #[test]
    fn no_client_behind_trusted_networks_chooses_its_key(
        sent in vec(hostile(), 0..3),
        proxies in vec(proxy(), 1..4),
        last in address(),
    ) {
        let client = proxies[0].peer;
        let trusted: Vec<_> = proxies[1..].iter().map(|proxy| proxy.peer).chain([last]).collect();
        prop_assume!(trusted.iter().all(|proxy| proxy.to_canonical() != client.to_canonical()));
        let trusted = Networks::parse(trusted.iter().map(ToString::to_string)).unwrap();
        let (mut addresses, mut elements) = (sent.clone(), sent);
        for proxy in &proxies {
            proxy.forward(&mut addresses, &proxy.address());
            proxy.forward(&mut elements, &proxy.element());
        }
        let values = |lines: &[String]| -> Vec<_> {
            lines.iter().map(|line| HeaderValue::from_bytes(line.as_bytes()).unwrap()).collect()
        };
        for (by, field, lines) in [
            (KeyBy::x_forwarded_for(trusted.clone()), HeaderName::from_static("x-forwarded-for"), &addresses),
            (KeyBy::forwarded(trusted.clone()), http::header::FORWARDED, &elements),
        ] {
            let key = key_of_values(&by, &field, &values(lines), Some(last));
            prop_assert_eq!(key, Some(text_of(client)), "{}: {:?}", field, lines);
            // A peer that is no proxy is the client, whatever it sends.
            for lines in [lines.clone(), vec!["9.9.9.9".into()], vec!["for=9.9.9.9".into()]] {
                let key = key_of_values(&by, &field, &values(&lines), Some(client));
                prop_assert_eq!(key, Some(text_of(client)), "{}: {:?}", field, lines);
            }
        }
    }

    /// Any bytes that a field may have, in any number of lines: no panic, and no key without a peer.
    #[test]
    fn any_bytes_are_a_key_or_none(
        lines in vec(vec(prop_oneof![Just(b'\t'), 32_u8..127, 128_u8..=255], 0..64), 0..4),
        hops in 1_usize..4,
        peer in option::of(address()),
    ) {
        let values: Vec<_> = lines.iter().map(|line| HeaderValue::from_bytes(line).unwrap()).collect();
        let everyone = Networks::parse(["0.0.0.0/0", "::/0"]).unwrap();
        for field in [HeaderName::from_static("x-forwarded-for"), http::header::FORWARDED] {
            let by = |trusted: TrustedProxies| match field.as_str() {
                "forwarded" => KeyBy::forwarded(trusted),
                _ => KeyBy::x_forwarded_for(trusted),
            };
            key_of_values(&by(hops.into()), &field, &values, peer);
            let found = key_of_values(&by(everyone.clone().into()), &field, &values, peer);
            prop_assert!(found.is_none() || peer.is_some());
            key_of_values(&KeyBy::first_of([by(hops.into()), KeyBy::peer()]), &field, &values, peer);
        }
    }

    /// Well-formed fields: the key is that of the simple parser, for any number of hops.
    #[test]
    fn a_field_is_parsed_as_the_rfc_says(proxies in vec(proxy(), 0..5), hops in 1_usize..6) {
        let mut lines = Vec::new();
        for proxy in &proxies {
            proxy.forward(&mut lines, &proxy.element());
        }
        let key = key_of(&KeyBy::forwarded(hops), &http::header::FORWARDED, &lines);
        prop_assert_eq!(&key, &plain_key(&lines, hops), "{:?}", lines);
        prop_assert_eq!(key.is_some(), hops <= proxies.len());
    }

    /// Any text: the key of a well-formed field is that of the simple parser, and nothing panics.
    ///
    /// Each line has to be well-formed by itself: a list may go on in another line, a quoted string
    /// may not (RFC 9110, section 5.3).
    #[test]
    fn any_text_is_parsed_as_the_rfc_says_or_not_at_all(lines in vec(hostile(), 1..3), hops in 1_usize..4) {
        let key = key_of(&KeyBy::forwarded(hops), &http::header::FORWARDED, &lines);
        if lines.iter().all(|line| elements_of(line).is_some()) {
            prop_assert_eq!(key, plain_key(&lines, hops), "{:?}", lines);
        }
    }
}
