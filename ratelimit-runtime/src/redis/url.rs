//! Redis URLs: which servers they name, with which credentials and certificates.

use std::{fmt, time::Duration};

use redis::{
    Client, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo, RedisResult,
    io::tcp::{TcpSettings, socket2::TcpKeepalive},
};

use super::{
    address::{ServerAddress, addresses},
    sentinel::Sentinels,
    source::ServerSource,
    url_faults,
};
use crate::SetupError;

/// The servers that a URL names. Displays without its password.
#[allow(clippy::large_enum_variant)] // made and taken apart at once
pub(crate) enum RedisTopology {
    Single(ServerSource),
    /// Some nodes of a cluster, which know the others.
    Cluster(Vec<Client>),
}

/// Certificates for TLS, in PEM.
#[derive(Clone, Default)]
pub(crate) struct Certificates {
    #[cfg(feature = "rustls")]
    pub(crate) authority: Option<Vec<u8>>,
    #[cfg(feature = "rustls")]
    pub(crate) client: Option<(Vec<u8>, Vec<u8>)>,
}

/// A user and a password. The user is empty if a server has only a password.
#[derive(Clone, Default)]
pub(crate) struct Credentials {
    pub(crate) user: String,
    pub(crate) password: String,
}

const SENTINEL_PORT: u16 = 26379;

impl RedisTopology {
    /// Parses a URL. `sentinels`: the sentinels' own credentials, if they require some.
    pub(crate) fn new(
        url: &str,
        certificates: &Certificates,
        sentinels: Option<&Credentials>,
    ) -> Result<Self, SetupError> {
        if ends_early(url) {
            return Err(SetupError::new(
                "invalid Redis URL: there is an `@` after the host; percent-encode `/`, `?`, `#` and `@` in the password",
            ));
        }
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        let is_list = scheme.ends_with("+cluster") || scheme.ends_with("+sentinel");
        if is_list || !names_several(rest) {
            url_faults::check(url)?;
        }
        match scheme.split_once('+') {
            Some((scheme, "cluster")) => cluster(&HostList::parse(scheme, rest), certificates),
            Some((scheme, "sentinel")) => sentinel(&HostList::parse(scheme, rest), certificates, sentinels),
            _ if names_several(rest) => Err(SetupError::new(
                "invalid Redis URL: it names several hosts; write redis+cluster://host,host for nodes of a cluster, or \
                 redis+sentinel://host,host/service for sentinels",
            )),
            _ => client(url, certificates).map(|client| Self::Single(ServerSource::Fixed(client))),
        }
    }
}

/// True if the part of a URL after its scheme names several hosts.
fn names_several(rest: &str) -> bool {
    let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    authority.rsplit('@').next().is_some_and(|hosts| hosts.contains(','))
}

/// A URL of several hosts, which have all but the address in common.
struct HostList<'a> {
    scheme: &'a str,
    /// User and password, with the `@` after them.
    user: &'a str,
    names: Vec<&'a str>,
    /// Path, with the slash before it.
    path: &'a str,
    /// Query and fragment.
    end: &'a str,
}

impl<'a> HostList<'a> {
    fn parse(scheme: &'a str, rest: &'a str) -> Self {
        let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let (path, end) = tail.split_at(tail.find(['?', '#']).unwrap_or(tail.len()));
        let (user, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
        let names: Vec<_> = hosts.split(',').collect();
        Self { scheme, user, names, path, end }
    }

    /// URLs of the single hosts, with this path.
    fn urls(&self, path: &str) -> impl Iterator<Item = String> {
        self.names.iter().map(move |host| format!("{}://{}{host}{path}{}", self.scheme, self.user, self.end))
    }
}

fn cluster(hosts: &HostList<'_>, certificates: &Certificates) -> Result<RedisTopology, SetupError> {
    let seeds: Vec<_> = hosts.urls(hosts.path).map(|url| client(&url, certificates)).collect::<Result<_, _>>()?;
    if seeds.iter().any(|seed| seed.get_connection_info().redis_settings().db() != 0) {
        return Err(SetupError::new("invalid Redis URL: a cluster has only database 0; leave it out"));
    }
    Ok(RedisTopology::Cluster(seeds))
}

fn sentinel(
    hosts: &HostList<'_>,
    certificates: &Certificates,
    credentials: Option<&Credentials>,
) -> Result<RedisTopology, SetupError> {
    let path = hosts.path.trim_matches('/');
    let (service, database) = path.split_once('/').unwrap_or((path, ""));
    // The characters that Redis allows in a name.
    if service.is_empty() || !service.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte)) {
        return Err(SetupError::new(
            "invalid Redis URL: say which service to ask the sentinels for, in letters, digits, `.`, `-` and `_`: \
             redis+sentinel://host:port,host:port/service",
        ));
    }
    let mut sentinels = Vec::with_capacity(hosts.names.len());
    let mut server = None;
    for url in hosts.urls(&format!("/{database}")) {
        let client = client(&url, certificates)?;
        let mut address = ServerAddress::of(&client);
        if redis::parse_redis_url(&url).is_some_and(|url| url.port().is_none()) {
            address.port = SENTINEL_PORT;
        }
        // RESP2 is enough: sentinels push nothing.
        let mut settings = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP2);
        if let Some(Credentials { user, password }) = credentials {
            settings = settings.set_password(password);
            settings = if user.is_empty() { settings } else { settings.set_username(user) };
        }
        let info = address.connection_info(&client).set_redis_settings(settings);
        sentinels.push(Client::open(info).map_err(invalid)?);
        server = Some(client);
    }
    let Some(server) = server else {
        return Err(SetupError::new("invalid Redis URL: name the sentinels: redis+sentinel://host:port/service"));
    };
    Ok(RedisTopology::Single(ServerSource::Primary(Sentinels::new(sentinels, service.to_owned(), server))))
}

/// Error without any part of the URL, which could be the password.
#[allow(clippy::needless_pass_by_value)] // for `map_err`
fn invalid(error: redis::RedisError) -> SetupError {
    SetupError::new(format!("invalid Redis URL: {error}"))
}

/// [`invalid`] without the detail, which may be an option's value.
#[allow(clippy::needless_pass_by_value)] // for `map_err`
fn unparsed(error: redis::RedisError) -> SetupError {
    let text = error.to_string();
    let text = error.detail().and_then(|detail| text.strip_suffix(detail)).unwrap_or(&text);
    SetupError::new(format!("invalid Redis URL: {}", text.trim_end_matches([':', ' '])))
}

fn client(url: &str, certificates: &Certificates) -> Result<Client, SetupError> {
    // In a query, `+` would be a space. It may stand in the password of a socket.
    let escaped = url.split_once('?').map(|(before, query)| format!("{before}?{}", query.replace('+', "%2B")));
    let url = escaped.as_deref().unwrap_or(url);
    let info: ConnectionInfo = url.into_connection_info().map_err(unparsed)?;
    let info = info.clone().set_tcp_settings(tcp_settings());
    // RESP3 reports a lost connection at once, even an idle one.
    let is_chosen =
        redis::parse_redis_url(url).is_some_and(|url| url.query_pairs().any(|(name, _)| name == "protocol"));
    let info = if is_chosen {
        info
    } else {
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        info.set_redis_settings(settings)
    };
    open(info, certificates).map_err(invalid)
}

/// TCP settings that detect a vanished peer within a few seconds, even without calls.
fn tcp_settings() -> TcpSettings {
    const SILENCE: Duration = Duration::from_secs(5);
    let keepalive = TcpKeepalive::new().with_time(SILENCE);
    let settings = TcpSettings::default().set_nodelay(true);
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    return settings.set_user_timeout(SILENCE).set_keepalive(keepalive.with_interval(Duration::from_secs(1)));
    #[cfg(not(any(target_os = "android", target_os = "fuchsia", target_os = "linux")))]
    settings.set_keepalive(keepalive)
}

/// True if an unescaped character in the password ends the host early. The start of the password
/// would be taken for the host.
fn ends_early(url: &str) -> bool {
    let Some((scheme, rest)) = url.split_once("://") else { return false };
    let (_, behind) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    !scheme.contains("unix") && behind.contains('@')
}

#[cfg(feature = "rustls")]
fn open(info: ConnectionInfo, certificates: &Certificates) -> RedisResult<Client> {
    use redis::{ClientTlsConfig, ConnectionAddr, TlsCertificates};

    // The redis crate panics unless the process has installed a provider. An earlier choice stands.
    let _ = rustls::crypto::ring::default_provider().install_default();
    if let ConnectionAddr::TcpTls { .. } = info.addr() {
        let Certificates { authority: root_cert, client } = certificates.clone();
        let client_tls = client.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
        return Client::build_with_tls(info, TlsCertificates { client_tls, root_cert });
    }
    Client::open(info)
}

#[cfg(not(feature = "rustls"))]
fn open(info: ConnectionInfo, _: &Certificates) -> RedisResult<Client> {
    Client::open(info)
}

/// Addresses of the servers.
impl fmt::Display for RedisTopology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Single(source) => source.fmt(f),
            Self::Cluster(seeds) => addresses(seeds).fmt(f),
        }
    }
}

#[cfg(all(test, not(model_check)))]
mod hostile;
