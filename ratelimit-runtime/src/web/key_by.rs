//! Who sends a request: the key of a limit, found in the request.

use std::{
    fmt,
    future::Future,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    pin::Pin,
    sync::Arc,
};

use http::{HeaderMap, HeaderName, request::Parts};

use crate::{Key, RateKey};

/// What tells the senders of requests apart; for [`Limit::key`](super::Limit::key).
///
/// An IPv6 address counts by its first 64 bits, as whoever has one address has all of these.
///
/// ```
/// use ratelimit_runtime::{Key, web::KeyBy};
/// use std::net::SocketAddr;
///
/// struct UserId(u64);
///
/// KeyBy::peer_ip(|peer: &SocketAddr| peer.ip()); // who is connected
/// KeyBy::x_forwarded_for(1);                     // who is connected to the one proxy in front of this server
/// KeyBy::header("x-api-key".parse().unwrap());
/// KeyBy::extension(|user: &UserId| user.0);      // what another layer has found out
/// KeyBy::from_fn(|request| Some(Key::new((request.method.as_str(), request.uri.path()))));
/// ```
#[derive(Clone)]
pub struct KeyBy(Arc<dyn Fn(&Parts) -> Found + Send + Sync>);

pub(super) enum Found {
    Now(Option<Key>),
    Later(Pin<Box<dyn Future<Output = Option<Key>> + Send>>),
}

impl KeyBy {
    /// The address of the peer, which servers put into the request's extensions, each in a type of its own; none of that type, and the key is
    /// missing.
    ///
    /// | server | |
    /// |---|---|
    /// | `axum`, served with `into_make_service_with_connect_info::<SocketAddr>()` | `KeyBy::peer_ip(\|peer: &ConnectInfo<SocketAddr>\| peer.0.ip())` |
    /// | `tonic` | `KeyBy::peer_ip(\|peer: &TcpConnectInfo\| peer.remote_addr().map(\|peer\| peer.ip()))` |
    /// | `hyper` | insert what `accept` returns: `KeyBy::peer_ip(\|peer: &SocketAddr\| peer.ip())` |
    ///
    /// Behind a proxy that is the proxy's address: see [`KeyBy::x_forwarded_for`].
    pub fn peer_ip<T: Send + Sync + 'static, I: Into<Option<IpAddr>>>(
        ip: impl Fn(&T) -> I + Send + Sync + 'static,
    ) -> Self {
        Self::from_fn(move |request| request.extensions.get::<T>().and_then(|peer| ip(peer).into()).map(ip_key))
    }

    /// The address in `X-Forwarded-For`, behind so many proxies of yours: the last one each of them adds is whom it was connected to, so
    /// it is counted from the end.
    ///
    /// What stands in front of that was sent by the client, who may write what it likes. A request with fewer
    /// addresses has come around a proxy, and has no key.
    ///
    /// # Panics
    ///
    /// If `trusted_hops` is 0: then nobody whom you trust has written the field.
    pub fn x_forwarded_for(trusted_hops: usize) -> Self {
        assert_trusted(trusted_hops);
        Self::from_fn(move |request| {
            let field = HeaderName::from_static("x-forwarded-for");
            from_end(&request.headers, &field, trusted_hops).and_then(|address| read_ip(&address)).map(ip_key)
        })
    }

    /// The address in `Forwarded` ([RFC 7239](https://www.rfc-editor.org/rfc/rfc7239)), behind so many proxies of yours; otherwise as
    /// [`KeyBy::x_forwarded_for`].
    ///
    /// # Panics
    ///
    /// If `trusted_hops` is 0.
    pub fn forwarded(trusted_hops: usize) -> Self {
        assert_trusted(trusted_hops);
        Self::from_fn(move |request| {
            let element = from_end(&request.headers, &http::header::FORWARDED, trusted_hops)?;
            let address = element.split(';').find_map(|pair| {
                let (name, value) = pair.split_once('=')?;
                name.trim().eq_ignore_ascii_case("for").then(|| value.trim().trim_matches('"'))
            });
            address.and_then(read_ip).map(ip_key)
        })
    }

    /// The value of a header field, the number of a customer say. One that is empty, or that the request has twice, is missing.
    ///
    /// It becomes part of the counter's name, which whoever may look into a Redis server can read: of a secret, take a hash, with [`KeyBy::from_fn`].
    pub fn header(name: HeaderName) -> Self {
        Self::from_fn(move |request| {
            let mut values = request.headers.get_all(&name).iter();
            match (values.next(), values.next()) {
                (Some(value), None) if !value.is_empty() => Some(Key::new(value.as_bytes())),
                _ => None,
            }
        })
    }

    /// The path, without the query. As clients choose it, everything they ask for has a counter, found or not.
    pub fn path() -> Self {
        Self::from_fn(|request| Some(Key::new(request.uri.path())))
    }

    /// Something of an extension that another layer has put into the request.
    pub fn extension<T: Send + Sync + 'static, K: RateKey>(key: impl Fn(&T) -> K + Send + Sync + 'static) -> Self {
        Self::from_fn(move |request| request.extensions.get::<T>().map(|extension| Key::new(key(extension))))
    }

    /// What a function finds in the head of the request.
    pub fn from_fn(find: impl Fn(&Parts) -> Option<Key> + Send + Sync + 'static) -> Self {
        Self(Arc::new(move |request| Found::Now(find(request))))
    }

    /// What a future finds out, which a function makes from the head of the request.
    ///
    /// ```
    /// use ratelimit_runtime::{Key, web::KeyBy};
    ///
    /// async fn user_of(token: Vec<u8>) -> Option<u64> {
    /// #   None
    ///     // asks a database
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
        Self(Arc::new(move |request| Found::Later(Box::pin(find(request)))))
    }

    pub(super) fn find(&self, request: &Parts) -> Found {
        (self.0)(request)
    }
}

impl fmt::Debug for KeyBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyBy").finish_non_exhaustive()
    }
}

fn assert_trusted(hops: usize) {
    assert!(hops > 0, "with 0 trusted hops nobody whom you trust has written the field; use KeyBy::peer_ip");
}

/// An address as a key: of IPv6, the first 64 bits.
fn ip_key(ip: IpAddr) -> Key {
    match ip.to_canonical() {
        IpAddr::V4(ip) => Key::new(ip),
        IpAddr::V6(ip) => {
            let [a, b, c, d, ..] = ip.segments();
            Key::new(format_args!("{}/64", Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0)))
        }
    }
}

/// One element of a list in a header, counted from its end, 1 being the last. Whatever a client has put in front, a
/// quotation mark without its other half say, does not change what a proxy has put behind.
fn from_end(headers: &HeaderMap, name: &HeaderName, position: usize) -> Option<String> {
    let lines: Vec<_> = headers.get_all(name).iter().collect();
    let elements = lines.iter().rev().flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','));
    let element = elements.into_iter().nth(position - 1)?;
    Some(str::from_utf8(element).ok()?.trim().to_owned())
}

/// An IP address, perhaps with a port, as proxies write it.
fn read_ip(text: &str) -> Option<IpAddr> {
    let ip = text.parse::<IpAddr>().or_else(|_| text.parse::<SocketAddr>().map(|address| address.ip()));
    ip.ok().or_else(|| text.strip_prefix('[')?.strip_suffix(']')?.parse::<Ipv6Addr>().ok().map(IpAddr::V6))
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn find(by: &KeyBy, request: http::request::Builder) -> Option<String> {
        let Found::Now(key) = by.find(&request.body(()).unwrap().into_parts().0) else { panic!() };
        key.map(|key| key.to_string())
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
    fn only_what_trusted_proxies_wrote_is_believed() {
        let request = |lines: &[&str]| {
            lines.iter().fold(Request::builder(), |request, line| request.header("X-Forwarded-For", *line))
        };
        for (hops, lines, key) in [
            (1, &["203.0.113.7"][..], Some("203.0.113.7")),
            (1, &["10.0.0.1, 203.0.113.7"], Some("203.0.113.7")), // the client wrote the first
            (1, &["10.0.0.1", "203.0.113.7"], Some("203.0.113.7")),
            (2, &["10.0.0.1, 203.0.113.7, 198.51.100.1"], Some("203.0.113.7")),
            (2, &["10.0.0.1, 203.0.113.7", "198.51.100.1:4711"], Some("203.0.113.7")),
            (2, &["203.0.113.7"], None), // came around a proxy
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
    fn so_with_the_field_of_the_standard() {
        for (hops, line, key) in [
            (1, "for=203.0.113.7", Some("203.0.113.7")),
            (1, "for=10.0.0.1, proto=https;For=\"203.0.113.7:4711\";by=x", Some("203.0.113.7")),
            (1, "for=\"[2001:db8:1:2::3]:4711\"", Some("2001:db8:1:2::/64")),
            (1, "for=\"10.0.0.1, for=203.0.113.7", Some("203.0.113.7")), // a quotation mark of the client's
            (2, "for=203.0.113.7, for=198.51.100.1", Some("203.0.113.7")),
            (1, "for=_hidden", None),
            (1, "by=203.0.113.7", None),
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
        assert_eq!(find(&by, request().header("X-Api-Key", "other")), None, "which one would the service take?");
        assert_eq!(find(&by, Request::builder().header("X-Api-Key", "")), None);
        assert_eq!(find(&by, Request::builder()), None);
    }

    #[test]
    #[should_panic(expected = "use KeyBy::peer_ip")]
    fn nobody_trusted_is_a_mistake() {
        KeyBy::x_forwarded_for(0);
    }
}
