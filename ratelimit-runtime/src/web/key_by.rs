//! The key of a limit, found in a request.

use std::{
    any::type_name,
    fmt,
    future::Future,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    pin::Pin,
    sync::{Arc, Once},
};

use http::{HeaderMap, HeaderName, header::FORWARDED, request::Parts};

use crate::{Key, RateKey};

/// The key of a request, for [`Limit::key`](super::Limit::key).
///
/// A limit by key is only safe if clients cannot choose the key. A client that can choose it gets a
/// fresh counter for each value it makes up. With the value of another client it uses up that
/// client's limit.
///
/// | key | chosen by |
/// |---|---|
/// | [`peer_ip`](KeyBy::peer_ip) | the network; a client has one per address |
/// | [`x_forwarded_for`](KeyBy::x_forwarded_for) | your proxies, if every request passes them |
/// | [`forwarded`](KeyBy::forwarded) | your proxies, if every request passes them |
/// | [`extension`](KeyBy::extension) | the layer that inserted it: ideally authentication |
/// | [`header`](KeyBy::header), [`path`](KeyBy::path) | the client |
/// | [`from_fn`](KeyBy::from_fn), [`from_async_fn`](KeyBy::from_async_fn) | depends on the input of the function |
///
/// Each value is a counter, even if it is made up. It takes about 50 bytes in memory, or about 100
/// on Redis, until its period is over. A memory store that is [full](crate::Builder::max_keys) of
/// such counters has no room for others. Therefore authenticate first, in an outer layer, and use
/// its result as the key; or put a limit by address in front of a limit by header.
///
/// An IPv6 address counts by its first 64 bits, usually the network of one client. If your clients
/// have larger networks, such as a /56 or a /48, use a shorter prefix with [`KeyBy::from_fn`].
///
/// ```
/// use ratelimit_runtime::{Key, web::KeyBy};
/// use std::net::SocketAddr;
///
/// struct UserId(u64);
///
/// KeyBy::extension(|user: &UserId| user.0);      // the user, from an authenticating layer
/// KeyBy::peer_ip(|peer: &SocketAddr| peer.ip()); // the address of the connection
/// KeyBy::x_forwarded_for(1);                     // the address that connected to the one proxy in front
/// KeyBy::header("x-api-key".parse().unwrap());   // verified by an outer layer
/// KeyBy::from_fn(|request| Some(Key::new((request.method.as_str(), request.uri.path()))));
/// ```
#[derive(Clone)]
pub struct KeyBy(Arc<dyn Fn(&Parts) -> KeyResult + Send + Sync>);

pub(super) enum KeyResult {
    Ready(Option<Key>),
    /// Several values, any of which the service may use.
    Ambiguous,
    Pending(Pin<Box<dyn Future<Output = Option<Key>> + Send>>),
}

impl KeyBy {
    /// The address of the peer, from the request's extensions. Each server has a type of its own
    /// for it. Without this type, the key is missing.
    ///
    /// | server | |
    /// |---|---|
    /// | `axum` | `KeyBy::peer_ip(\|peer: &ConnectInfo<SocketAddr>\| peer.0.ip())` |
    /// | `tonic` | `KeyBy::peer_ip(\|peer: &TcpConnectInfo\| peer.remote_addr().map(\|peer\| peer.ip()))` |
    /// | `hyper` | insert what `accept` returns: `KeyBy::peer_ip(\|peer: &SocketAddr\| peer.ip())` |
    ///
    /// Serve `axum` with `into_make_service_with_connect_info::<SocketAddr>()`. Without it no
    /// request has a key, and the log has one warning that names the missing type.
    ///
    /// Behind a proxy, this is the proxy's address: see [`KeyBy::x_forwarded_for`].
    pub fn peer_ip<T: Send + Sync + 'static, I: Into<Option<IpAddr>>>(
        ip: impl Fn(&T) -> I + Send + Sync + 'static,
    ) -> Self {
        let reported = Once::new();
        Self::from_fn(move |request| {
            let Some(peer) = request.extensions.get::<T>() else {
                reported.call_once(|| {
                    tracing::warn!(
                        missing = type_name::<T>(),
                        "a request has no address of its peer, so a limit by address has no key for it; serve axum \
                         with `app.into_make_service_with_connect_info::<SocketAddr>()`, or insert the extension \
                         where connections are accepted"
                    );
                });
                return None;
            };
            ip(peer).into().map(ip_key)
        })
    }

    /// The client's address in `X-Forwarded-For`, behind this many trusted proxies.
    ///
    /// Each proxy appends the address of its peer, so addresses are counted from the end. Earlier
    /// ones come from the client, and are ignored. A request with fewer addresses has bypassed a
    /// proxy, and has no key.
    ///
    /// # Panics
    ///
    /// If `trusted_hops` is 0: no trusted proxy has written the field.
    pub fn x_forwarded_for(trusted_hops: usize) -> Self {
        assert_trusted(trusted_hops);
        Self::from_fn(move |request| {
            let lines = request.headers.get_all("x-forwarded-for").iter().rev();
            let address = lines.flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b',')).nth(trusted_hops - 1)?;
            parse_ip(str::from_utf8(address).ok()?.trim()).map(ip_key)
        })
    }

    /// The client's address in `Forwarded` ([RFC 7239](https://www.rfc-editor.org/rfc/rfc7239)),
    /// behind this many trusted proxies, counted as by [`KeyBy::x_forwarded_for`].
    ///
    /// A proxy that copies parts of the request into its element, such as the `Host`, must write
    /// them as a quoted string, with `\"` and `\\` escaped. An element that is malformed, or has
    /// two addresses, is no key.
    ///
    /// # Panics
    ///
    /// If `trusted_hops` is 0.
    pub fn forwarded(trusted_hops: usize) -> Self {
        assert_trusted(trusted_hops);
        Self::from_fn(move |request| forwarded_for(&request.headers, trusted_hops).map(ip_key))
    }

    /// The value of a header field, such as a customer number. An empty value is a missing key.
    ///
    /// Clients choose it: see [`KeyBy`] for the consequences, and verify it in an outer layer. A
    /// request with two values is refused as if [`OnMissingKey`](super::OnMissingKey) was `Deny`,
    /// as the service may use either of them.
    ///
    /// The value is readable in the counter's name on a Redis server. Hash secrets with
    /// [`KeyBy::from_fn`].
    pub fn header(name: HeaderName) -> Self {
        Self(Arc::new(move |request| {
            let mut values = request.headers.get_all(&name).iter();
            match (values.next(), values.next()) {
                (Some(_), Some(_)) => KeyResult::Ambiguous,
                (value, _) => {
                    KeyResult::Ready(value.filter(|value| !value.is_empty()).map(|value| Key::new(value.as_bytes())))
                }
            }
        }))
    }

    /// The path, without the query.
    ///
    /// Clients choose it: each path is a counter, even if it does not exist. See [`KeyBy`] for the
    /// consequences.
    pub fn path() -> Self {
        Self::from_fn(|request| Some(Key::new(request.uri.path())))
    }

    /// A value of an extension that an outer layer has inserted into the request. The best key
    /// behind an authenticating layer. Without the extension, the key is missing.
    pub fn extension<T: Send + Sync + 'static, K: RateKey>(key: impl Fn(&T) -> K + Send + Sync + 'static) -> Self {
        Self::from_fn(move |request| request.extensions.get::<T>().map(|extension| Key::new(key(extension))))
    }

    /// The result of a function of the request's head. See [`KeyBy`] for input that clients can
    /// choose.
    pub fn from_fn(find: impl Fn(&Parts) -> Option<Key> + Send + Sync + 'static) -> Self {
        Self(Arc::new(move |request| KeyResult::Ready(find(request))))
    }

    /// The result of an async function of the request's head. See [`KeyBy`] for input that clients
    /// can choose.
    ///
    /// ```
    /// use ratelimit_runtime::{Key, web::KeyBy};
    ///
    /// async fn user_of(token: Vec<u8>) -> Option<u64> {
    /// #   None
    ///     // queries a database
    /// }
    ///
    /// KeyBy::from_async_fn(|request| {
    ///     let token = request.headers.get("authorization").map(|token| token.as_bytes().to_vec());
    ///     async move { user_of(token?).await.map(Key::new) }
    /// });
    /// ```
    pub fn from_async_fn<F: Future<Output = Option<Key>> + Send + 'static>(
        find: impl Fn(&Parts) -> F + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(move |request| KeyResult::Pending(Box::pin(find(request)))))
    }

    pub(super) fn find(&self, request: &Parts) -> KeyResult {
        (self.0)(request)
    }
}

impl fmt::Debug for KeyBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyBy").finish_non_exhaustive()
    }
}

fn assert_trusted(hops: usize) {
    assert!(hops > 0, "`trusted_hops` is 0, so no trusted proxy has written the field; use KeyBy::peer_ip");
}

/// The key of an address: for IPv6, its first 64 bits.
fn ip_key(ip: IpAddr) -> Key {
    match ip.to_canonical() {
        IpAddr::V4(ip) => Key::new(ip),
        IpAddr::V6(ip) => {
            let [a, b, c, d, ..] = ip.segments();
            Key::new(format_args!("{}/64", Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0)))
        }
    }
}

/// The address in one element of `Forwarded`, counted from the end; 1 is the last.
///
/// Lines are parsed from their end, so that text from the client in front cannot change how the
/// elements of trusted proxies are parsed.
fn forwarded_for(headers: &HeaderMap, mut position: usize) -> Option<IpAddr> {
    for line in headers.get_all(FORWARDED).iter().rev() {
        let mut rest = Some(line.as_bytes());
        while let Some(elements) = rest {
            let (before, element) = rsplit_unquoted(elements, b',')?;
            if position == 1 {
                return address_of(element);
            }
            (rest, position) = (before, position - 1);
        }
    }
    None
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
        Some(quoted) => parse_ip(&unescaped(quoted.strip_suffix('"')?)),
        None => parse_ip(address),
    }
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
fn parse_ip(text: &str) -> Option<IpAddr> {
    let ip = text.parse::<IpAddr>().or_else(|_| text.parse::<SocketAddr>().map(|address| address.ip()));
    ip.ok().or_else(|| text.strip_prefix('[')?.strip_suffix(']')?.parse::<Ipv6Addr>().ok().map(IpAddr::V6))
}

#[cfg(test)]
mod proxies;

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn find(by: &KeyBy, request: http::request::Builder) -> Option<String> {
        match by.find(&request.body(()).unwrap().into_parts().0) {
            KeyResult::Ready(key) => key.map(|key| key.to_string()),
            KeyResult::Ambiguous => Some("ambiguous".into()),
            KeyResult::Pending(_) => panic!("a future"),
        }
    }

    #[test]
    fn addresses_count_by_client_not_by_socket() {
        let by = KeyBy::peer_ip(|peer: &SocketAddr| peer.ip());
        for (peer, key) in [
            ("192.0.2.1:80", "192.0.2.1"),
            ("[::ffff:192.0.2.1]:81", "192.0.2.1"),
            ("[2001:db8:1:2:3:4:5:6]:80", "2001:db8:1:2::/64"),
            ("[2001:db8:1:2:ffff::]:80", "2001:db8:1:2::/64"),
            ("[2001:db8:1:3::]:80", "2001:db8:1:3::/64"),
        ] {
            let request = Request::builder().extension(peer.parse::<SocketAddr>().unwrap());
            assert_eq!(find(&by, request).as_deref(), Some(key), "{peer}");
        }
        assert_eq!(find(&by, Request::builder()), None, "no peer");
    }

    #[test]
    fn only_addresses_of_trusted_proxies_are_used() {
        let request = |lines: &[&str]| {
            lines.iter().fold(Request::builder(), |request, line| request.header("X-Forwarded-For", *line))
        };
        for (hops, lines, key) in [
            (1, &["203.0.113.7"][..], Some("203.0.113.7")),
            (1, &["10.0.0.1, 203.0.113.7"], Some("203.0.113.7")), // the first is from the client
            (1, &["10.0.0.1", "203.0.113.7"], Some("203.0.113.7")),
            (2, &["10.0.0.1, 203.0.113.7, 198.51.100.1"], Some("203.0.113.7")),
            (2, &["10.0.0.1, 203.0.113.7", "198.51.100.1:4711"], Some("203.0.113.7")),
            (2, &["203.0.113.7"], None), // bypassed a proxy
            (1, &["203.0.113.7, unknown"], None),
            (1, &["203.0.113.7,"], None),
            (1, &["[2001:db8::1]:4711"], Some("2001:db8::/64")),
            (1, &["[2001:db8::1]"], Some("2001:db8::/64")),
            (1, &[], None),
        ] {
            assert_eq!(find(&KeyBy::x_forwarded_for(hops), request(lines)).as_deref(), key, "{hops} of {lines:?}");
        }
    }

    #[test]
    fn only_elements_of_trusted_proxies_are_parsed() {
        for (hops, line, key) in [
            (1, "for=203.0.113.7", Some("203.0.113.7")),
            (1, "for=10.0.0.1, proto=https;For=\"203.0.113.7:4711\";by=x", Some("203.0.113.7")),
            (1, "for=\"[2001:db8:1:2::3]:4711\"", Some("2001:db8:1:2::/64")),
            (1, "for=\"10.0.0.1, for=203.0.113.7", Some("203.0.113.7")), // a quotation mark from the client
            (2, "for=203.0.113.7, for=198.51.100.1", Some("203.0.113.7")),
            (1, "for=_hidden", None),
            (1, "by=203.0.113.7", None),
            // Input from the client in a quoted string of a proxy.
            (1, "for=203.0.113.7;host=\"a,for=9.9.9.9\"", Some("203.0.113.7")),
            (1, "for=203.0.113.7;host=\"a;for=9.9.9.9\"", Some("203.0.113.7")),
            (1, "host=\"a;for=9.9.9.9;b\";for=203.0.113.7", Some("203.0.113.7")),
            (1, r#"for=203.0.113.7;host="a\", for=9.9.9.9;x=\"b""#, Some("203.0.113.7")),
            (1, r#"for=203.0.113.7;host="a\\""#, Some("203.0.113.7")),
            (2, "for=203.0.113.7;host=\"a,b\", for=198.51.100.1;host=\"c,d\"", Some("203.0.113.7")),
            (1, "for=10.0.0.1;host=\", for=203.0.113.7;host=\"a\"", Some("203.0.113.7")),
            (1, r#"for="203\.0.113.7""#, Some("203.0.113.7")),
            // Unbalanced quotes, and ambiguous texts.
            (1, "for=203.0.113.7;host=\"a", None),
            (1, r#"for=203.0.113.7;host=a\""#, None),
            (1, r#"for=203.0.113.7;host="a\\"b""#, None),
            (1, "for=203.0.113.7;host=a\"b\"", None),
            (1, "for=203.0.113.7;for=9.9.9.9", None),
            (1, "for=203.0.113.7;host", None),
        ] {
            let request = Request::builder().header("Forwarded", line);
            assert_eq!(find(&KeyBy::forwarded(hops), request).as_deref(), key, "{hops} of {line}");
        }
    }

    #[test]
    fn a_header_is_one_value() {
        let by = KeyBy::header(HeaderName::from_static("x-api-key"));
        let request = || Request::builder().header("X-Api-Key", "secret");
        assert_eq!(find(&by, request()).as_deref(), Some("secret"));
        let twice = request().header("X-Api-Key", "other");
        assert_eq!(find(&by, twice).as_deref(), Some("ambiguous"), "which one would the service take?");
        assert_eq!(find(&by, Request::builder().header("X-Api-Key", "")), None);
        assert_eq!(find(&by, Request::builder()), None);
    }

    #[test]
    #[should_panic(expected = "use KeyBy::peer_ip")]
    fn zero_trusted_hops_panic() {
        KeyBy::x_forwarded_for(0);
    }
}
