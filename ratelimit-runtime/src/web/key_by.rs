//! The key of a limit, found in a request.

mod addresses;
#[cfg(all(test, not(model_check)))]
mod proxies;

use std::{
    any::type_name,
    fmt,
    future::Future,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use http::{Extensions, HeaderName, request::Parts};

pub use self::addresses::TrustedProxies;
pub(super) use self::addresses::includes;
use crate::{Key, RateKey, observe};

/// The key of a request, for [`Limit::key`](super::Limit::key).
///
/// A limit by key is only safe if clients cannot choose the key. A client that can choose it gets a
/// fresh counter for each value it makes up. With the value of another client it uses up that
/// client's limit.
///
/// | key | chosen by |
/// |---|---|
/// | [`peer`](KeyBy::peer), [`peer_ip`](KeyBy::peer_ip) | the network; a client has one per address |
/// | [`x_forwarded_for`](KeyBy::x_forwarded_for) | your proxies, see [`TrustedProxies`] |
/// | [`forwarded`](KeyBy::forwarded) | your proxies, see [`TrustedProxies`] |
/// | [`extension`](KeyBy::extension) | the layer that inserted it: ideally authentication |
/// | [`header`](KeyBy::header), [`path`](KeyBy::path) | the client |
/// | [`first_of`](KeyBy::first_of) | the client, if it can leave out the first of them |
/// | [`from_fn`](KeyBy::from_fn), [`from_async_fn`](KeyBy::from_async_fn) | depends on the input of the function |
///
/// Each value is a counter, even if it is made up. It takes about 50 bytes in memory, or about 100
/// on Redis, until its period is over. A memory store that is [full](crate::Builder::max_keys) of
/// such counters has no room for others. Therefore authenticate first, in an outer layer, and use
/// its result as the key; or put a limit by address in front of a limit by header.
///
/// An IPv6 address counts by its first 64 bits, usually the network of one client. If your clients
/// have larger networks, such as a /56 or a /48, use a shorter prefix with [`KeyBy::from_fn`]. An address in
/// `64:ff9b:1::/48` (RFC 8215) counts as a whole. An IPv4 address
/// inside an IPv6 one (`::ffff:192.0.2.1`, `64:ff9b::192.0.2.1`) counts as the IPv4 address.
///
/// ```
/// use ratelimit_runtime::{Key, web::KeyBy};
///
/// #[derive(Clone)]
/// struct UserId(u64);
///
/// KeyBy::extension(|user: &UserId| user.0);      // the user, from an authenticating layer
/// KeyBy::peer();                                 // the address of the connection
/// KeyBy::x_forwarded_for(1);                     // the address that connected to the one proxy in front
/// KeyBy::header("x-api-key".parse().unwrap());   // verified by an outer layer
/// KeyBy::first_of([KeyBy::extension(|user: &UserId| user.0), KeyBy::peer()]); // the user if there is one
/// KeyBy::from_fn(|request| Some(Key::new((request.method.as_str(), request.uri.path()))));
/// ```
#[derive(Clone)]
pub struct KeyBy(Arc<[KeyFinder]>);

/// One way to find a key.
#[derive(Clone)]
struct KeyFinder {
    find: Arc<dyn Fn(&Parts) -> KeyResult + Send + Sync>,
    /// It may return a future.
    is_looked_up: bool,
    /// Copies the extension that it looks for, from a server with extensions of its own.
    #[cfg(feature = "actix-web")]
    import: Option<ImportFn>,
}

#[cfg(feature = "actix-web")]
type ImportFn = fn(&actix_web::dev::Extensions, &mut Extensions);

enum KeyResult {
    Ready(Option<FoundKey>),
    /// Several values, any of which the service may use.
    Ambiguous,
    Pending(Pin<Box<dyn Future<Output = Option<Key>> + Send>>),
}

/// A key, and the address that it stands for.
pub(super) struct FoundKey {
    pub(super) key: Key,
    pub(super) ip: Option<IpAddr>,
}

impl FoundKey {
    fn of_ip(ip: IpAddr) -> Self {
        Self { key: ip_key(addresses::unmapped(ip)), ip: Some(ip) }
    }
}

/// A request has several values, any of which the service may use.
pub(super) struct AmbiguousKey;

impl KeyBy {
    /// The address of the peer of the connection, as servers insert it into the extensions of a
    /// request:
    ///
    /// | server | |
    /// |---|---|
    /// | `axum` (feature `axum`) | serve with `into_make_service_with_connect_info::<SocketAddr>()` |
    /// | `actix-web` | nothing to do |
    /// | `hyper` | insert the `SocketAddr` that `accept` returns |
    /// | others | see [`KeyBy::peer_ip`] |
    ///
    /// Without an address no request has a key, and the log has one warning that says what is
    /// missing.
    ///
    /// Behind a proxy, this is the proxy's address: see [`KeyBy::x_forwarded_for`].
    pub fn peer() -> Self {
        let reported = AtomicBool::new(false);
        Self::from_ip(move |request| peer_of(&request.extensions, &reported))
    }

    /// The address of the peer, from an extension of another type than [`KeyBy::peer`] looks for.
    /// Without this type, the key is missing.
    ///
    /// For `tonic`: `KeyBy::peer_ip(|peer: &TcpConnectInfo| peer.remote_addr().map(|peer| peer.ip()))`.
    ///
    /// Behind a proxy, this is the proxy's address: see [`KeyBy::x_forwarded_for`].
    pub fn peer_ip<T: Clone + Send + Sync + 'static, I: Into<Option<IpAddr>>>(
        ip: impl Fn(&T) -> I + Send + Sync + 'static,
    ) -> Self {
        let reported = AtomicBool::new(false);
        Self::from_ip(move |request| {
            let peer = request.extensions.get::<T>();
            if peer.is_none() {
                warn_of_missing_peer::<T>(&reported);
            }
            ip(peer?).into()
        })
        .importing::<T>()
    }

    /// The client's address in `X-Forwarded-For`, behind these trusted proxies: their number, or
    /// their networks.
    ///
    /// Each proxy appends the address of its peer. An address that is malformed is no key.
    ///
    /// # Panics
    ///
    /// If the number of trusted proxies is 0: none has written the field.
    #[track_caller]
    pub fn x_forwarded_for(trusted: impl Into<TrustedProxies>) -> Self {
        let (trusted, reported) = (checked(trusted.into()), AtomicBool::new(false));
        Self::from_ip(move |request| {
            let peer = || peer_of(&request.extensions, &reported);
            trusted.client(peer, addresses::x_forwarded_for(&request.headers))
        })
    }

    /// The client's address in `Forwarded` ([RFC 7239](https://www.rfc-editor.org/rfc/rfc7239)),
    /// behind these trusted proxies, as by [`KeyBy::x_forwarded_for`].
    ///
    /// A proxy that copies parts of the request into its element, such as the `Host`, must write
    /// them as a quoted string, with `\"` and `\\` escaped. An element that is malformed, or has
    /// two addresses, is no key.
    ///
    /// # Panics
    ///
    /// If the number of trusted proxies is 0.
    #[track_caller]
    pub fn forwarded(trusted: impl Into<TrustedProxies>) -> Self {
        let (trusted, reported) = (checked(trusted.into()), AtomicBool::new(false));
        Self::from_ip(move |request| {
            let peer = || peer_of(&request.extensions, &reported);
            trusted.client(peer, addresses::forwarded(&request.headers))
        })
    }

    /// The first key that is found, for example a user's, or else the address of the client.
    ///
    /// The first of these keys is used as it is, unless it is a tuple. A tuple, and a key that is found by
    /// the n-th one (from 0 on), becomes the pair of n and the key, such as `(1,203.0.113.7)`. So no client can
    /// name itself like the address of another one.
    ///
    /// A header field that occurs twice is refused, as by [`KeyBy::header`], and later keys are not
    /// looked for.
    pub fn first_of(keys: impl IntoIterator<Item = Self>) -> Self {
        Self(keys.into_iter().flat_map(|by| by.0.to_vec()).collect())
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
        Self::new(move |request| {
            let mut values = request.headers.get_all(&name).iter();
            match (values.next(), values.next()) {
                (Some(_), Some(_)) => KeyResult::Ambiguous,
                (value, _) => of_key(value.filter(|value| !value.is_empty()).map(|value| Key::new(value.as_bytes()))),
            }
        })
    }

    /// The path, without the query.
    ///
    /// Clients choose it: each path is a counter, even if it does not exist. See [`KeyBy`] for the
    /// consequences. Except with `actix-web`, it is the text that was sent, and a client may escape
    /// any letter in it: for a counter per route, use the name of the route.
    ///
    /// A layer inside of a nested router of `axum` sees the path without the prefix of the nest, so two nests share
    /// counters. Put the layer around the outer router, or use the whole path:
    ///
    /// ```
    /// # #[cfg(feature = "axum")] {
    /// use ratelimit_runtime::web::KeyBy;
    ///
    /// KeyBy::extension(|whole: &axum::extract::OriginalUri| whole.path().to_owned());
    /// # }
    /// ```
    pub fn path() -> Self {
        Self::from_fn(|request| Some(Key::new(request.uri.path())))
    }

    /// A value of an extension that an outer layer has inserted into the request. The best key
    /// behind an authenticating layer. Without the extension, the key is missing.
    pub fn extension<T: Clone + Send + Sync + 'static, K: RateKey>(
        key: impl Fn(&T) -> K + Send + Sync + 'static,
    ) -> Self {
        Self::from_fn(move |request| request.extensions.get::<T>().map(|extension| Key::new(key(extension))))
            .importing::<T>()
    }

    /// The result of a function of the request's head. See [`KeyBy`] for input that clients can
    /// choose.
    pub fn from_fn(find: impl Fn(&Parts) -> Option<Key> + Send + Sync + 'static) -> Self {
        Self::new(move |request| of_key(find(request)))
    }

    /// The result of an async function of the request's head. See [`KeyBy`] for input that clients
    /// can choose. It runs for each request, before any limit of the layer is decided: a limit that
    /// protects it belongs into an outer layer of its own.
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
        let mut by = Self::new(move |request| KeyResult::Pending(Box::pin(find(request))));
        for finder in Arc::make_mut(&mut by.0) {
            finder.is_looked_up = true;
        }
        by
    }

    fn new(find: impl Fn(&Parts) -> KeyResult + Send + Sync + 'static) -> Self {
        let finder = KeyFinder {
            find: Arc::new(find),
            is_looked_up: false,
            #[cfg(feature = "actix-web")]
            import: None,
        };
        Self(Arc::new([finder]))
    }

    fn from_ip(find: impl Fn(&Parts) -> Option<IpAddr> + Send + Sync + 'static) -> Self {
        Self::new(move |request| KeyResult::Ready(find(request).map(FoundKey::of_ip)))
    }

    /// Copies this extension from servers with extensions of their own.
    #[cfg_attr(not(feature = "actix-web"), allow(clippy::extra_unused_type_parameters, unused_mut))]
    fn importing<T: Clone + Send + Sync + 'static>(mut self) -> Self {
        #[cfg(feature = "actix-web")]
        for finder in Arc::make_mut(&mut self.0) {
            finder.import = Some(|from, to| {
                if let Some(extension) = from.get::<T>() {
                    to.insert(extension.clone());
                }
            });
        }
        self
    }

    /// Copies the extensions that the keys are made of.
    #[cfg(feature = "actix-web")]
    pub(super) fn import(&self, from: &actix_web::dev::Extensions, to: &mut Extensions) {
        self.0.iter().filter_map(|finder| finder.import).for_each(|import| import(from, to));
    }

    /// A key may have to be looked up.
    pub(super) fn is_looked_up(&self) -> bool {
        self.0.iter().any(|finder| finder.is_looked_up)
    }

    /// The key of a request. `None` if it has none.
    pub(super) async fn find(&self, request: &Parts) -> Result<Option<FoundKey>, AmbiguousKey> {
        for (position, finder) in self.0.iter().enumerate() {
            let found = match (finder.find)(request) {
                KeyResult::Ready(found) => found,
                KeyResult::Pending(key) => key.await.map(|key| FoundKey { key, ip: None }),
                KeyResult::Ambiguous => return Err(AmbiguousKey),
            };
            if let Some(found) = found {
                let is_tuple = || found.key.with_text(|text| text.starts_with(b"("));
                let is_as_it_is = self.0.len() == 1 || position == 0 && !is_tuple();
                let key = if is_as_it_is { found.key } else { Key::new((position, &found.key)) };
                return Ok(Some(FoundKey { key, ..found }));
            }
        }
        Ok(None)
    }
}

fn of_key(key: Option<Key>) -> KeyResult {
    KeyResult::Ready(key.map(|key| FoundKey { key, ip: None }))
}

/// The address of the peer, as servers insert it.
fn peer_of(extensions: &Extensions, reported: &AtomicBool) -> Option<IpAddr> {
    #[cfg(feature = "axum")]
    if let Some(axum::extract::ConnectInfo(peer)) = extensions.get::<axum::extract::ConnectInfo<SocketAddr>>() {
        return Some(peer.ip());
    }
    let peer = extensions.get::<SocketAddr>();
    if peer.is_none() {
        warn_of_missing_peer::<SocketAddr>(reported);
    }
    peer.map(SocketAddr::ip)
}

/// Warns once of a type that is in no extension.
fn warn_of_missing_peer<T>(reported: &AtomicBool) {
    let warn = || {
        tracing::warn!(
            missing = type_name::<T>(),
            "a request has no extension with the address of its peer, so a limit by address has no key for it; insert \
             `missing` where connections are accepted; with `KeyBy::peer` on axum, turn on the feature `axum` and serve with \
             `app.into_make_service_with_connect_info::<SocketAddr>()`"
        );
    };
    // A log subscriber may send a request, which gets here again.
    if !reported.swap(true, Ordering::Relaxed) {
        observe::shielded(warn);
    }
}

impl fmt::Debug for KeyBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyBy").finish_non_exhaustive()
    }
}

#[track_caller]
fn checked(trusted: TrustedProxies) -> TrustedProxies {
    let has_none = matches!(trusted, TrustedProxies::Hops(0));
    assert!(!has_none, "the number of trusted proxies is 0, so none has written the field; use KeyBy::peer");
    trusted
}

/// The key of an address: for IPv6, its first 64 bits. A client that is translated with a local prefix
/// (`64:ff9b:1::/48`, RFC 8215) keeps its own key: no standard tells which bits are its IPv4 address.
fn ip_key(ip: IpAddr) -> Key {
    match ip {
        IpAddr::V4(ip) => Key::new(ip),
        IpAddr::V6(ip) => match ip.segments() {
            [0x64, 0xff9b, 1, ..] => Key::new(ip),
            [a, b, c, d, ..] => Key::new(format_args!("{}/64", Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))),
        },
    }
}

/// The key of a request that needs no future.
#[cfg(all(test, not(model_check)))]
fn found_now(by: &KeyBy, request: &Parts) -> Result<Option<FoundKey>, AmbiguousKey> {
    let found = std::pin::pin!(by.find(request));
    match found.poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(found) => found,
        std::task::Poll::Pending => panic!("a future"),
    }
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use http::Request;

    use super::*;

    fn find(by: &KeyBy, request: http::request::Builder) -> Option<String> {
        match found_now(by, &request.body(()).unwrap().into_parts().0) {
            Ok(found) => found.map(|found| found.key.to_string()),
            Err(AmbiguousKey) => Some("ambiguous".into()),
        }
    }

    /// For a server with IPv6 alone.
    #[test]
    fn a_trusted_proxy_may_be_translated_to_ipv6() {
        for (trusted, others) in [("198.51.100.0/24", &["[::ffff:198.51.100.1]:1"][..]), ("64:ff9b::/96", &[])] {
            let by = KeyBy::x_forwarded_for(crate::web::Networks::parse([trusted]).unwrap());
            for peer in others.iter().chain(&["[64:ff9b::198.51.100.1]:1"]) {
                let request = Request::builder().extension(peer.parse::<SocketAddr>().unwrap());
                let request = request.header("X-Forwarded-For", "9.9.9.9, 203.0.113.7");
                assert_eq!(find(&by, request).as_deref(), Some("203.0.113.7"), "{trusted} {peer}");
            }
        }
    }

    /// A user may choose any name, also that of an address.
    #[test]
    fn no_key_of_a_client_looks_like_a_later_key() {
        let user = KeyBy::extension(|user: &(u64, &'static str)| *user);
        let name = KeyBy::extension(|name: &&'static str| *name);
        let by = KeyBy::first_of([user, name, KeyBy::peer_ip(|peer: &SocketAddr| peer.ip())]);
        let peer = "203.0.113.7:80".parse::<SocketAddr>().unwrap();
        let request = || Request::builder().extension(peer);
        let found = |request| find(&by, request).unwrap();
        assert_eq!(found(request()), "(2,203.0.113.7)");
        assert_eq!(found(request().extension((2_u64, "203.0.113.7"))), "(0,(2,203.0.113.7))");
        assert_eq!(found(request().extension("203.0.113.7")), "(1,203.0.113.7)");
        let single = KeyBy::first_of([KeyBy::extension(|user: &(u64, &'static str)| *user)]);
        assert_eq!(find(&single, request().extension((2_u64, "x"))).unwrap(), "(2,x)");
    }

    #[test]
    fn addresses_count_by_client_not_by_socket() {
        let by = KeyBy::peer_ip(|peer: &SocketAddr| peer.ip());
        for (peer, key) in [
            ("192.0.2.1:80", "192.0.2.1"),
            ("[::ffff:192.0.2.1]:81", "192.0.2.1"),
            ("[64:ff9b::192.0.2.1]:81", "192.0.2.1"),
            ("[64:ff9b:0:0:1::192.0.2.1]:81", "64:ff9b::/64"),
            ("[64:ff9b:1::192.0.2.1]:81", "64:ff9b:1::c000:201"),
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
            (1, "for=\"203.0.113.7:_a.1-b\"", Some("203.0.113.7")), // a port that the proxy hides
            (1, "for=\"[2001:db8:1:2::3]:_x\"", Some("2001:db8:1:2::/64")),
            (1, "for=\"203.0.113.7:_\"", None),
            (1, "for=\"203.0.113.7:_a b\"", None),
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
    #[should_panic(expected = "use KeyBy::peer")]
    fn zero_trusted_hops_panic() {
        KeyBy::x_forwarded_for(0);
    }
}
