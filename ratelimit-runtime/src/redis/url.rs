//! What a URL names, and how to get there.

use std::{fmt, time::Duration};

use redis::{
    Client, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo, RedisResult,
    io::tcp::{TcpSettings, socket2::TcpKeepalive},
};

use super::{
    address::{Address, addresses},
    sentinel::Sentinels,
    source::ServerSource,
};
use crate::SetupError;

/// What a URL names. Shows itself without its password.
#[allow(clippy::large_enum_variant)] // made and taken apart at once
pub(crate) enum Topology {
    Single(ServerSource),
    /// Some nodes of a cluster; they know the others.
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

/// A user and a password. The user is empty where a server has only a password.
#[derive(Clone, Default)]
pub(crate) struct Credentials {
    pub(crate) user: String,
    pub(crate) password: String,
}

const SENTINEL_PORT: u16 = 26379;

impl Topology {
    /// `sentinels`: what the sentinels ask of their clients, if the URL names some.
    pub(crate) fn new(
        url: &str,
        certificates: &Certificates,
        sentinels: Option<&Credentials>,
    ) -> Result<Self, SetupError> {
        if ends_early(url) {
            return Err(SetupError::new(
                "this URL of a Redis server has an `@` behind its host: percent-encode `/`, `?`, `#` and `@` in the password",
            ));
        }
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        match scheme.split_once('+') {
            Some((scheme, "cluster")) => cluster(&Hosts::of(scheme, rest)?, certificates),
            Some((scheme, "sentinel")) => sentinel(&Hosts::of(scheme, rest)?, certificates, sentinels),
            _ if names_several(rest) => Err(SetupError::new(
                "this URL names several hosts: write redis+cluster://host,host for nodes of a cluster, or \
                 redis+sentinel://host,host/service for sentinels",
            )),
            _ => client(url, certificates).map(|client| Self::Single(ServerSource::Fixed(client))),
        }
    }
}

/// A comma among the hosts of a URL, behind its scheme.
fn names_several(rest: &str) -> bool {
    let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    authority.rsplit('@').next().is_some_and(|hosts| hosts.contains(','))
}

/// A URL of several hosts, which differ in nothing but their address.
struct Hosts<'a> {
    scheme: &'a str,
    /// With the `@` behind it.
    user: &'a str,
    names: Vec<&'a str>,
    /// With the slash in front of it.
    path: &'a str,
    /// The query and the fragment.
    end: &'a str,
}

impl<'a> Hosts<'a> {
    fn of(scheme: &'a str, rest: &'a str) -> Result<Self, SetupError> {
        let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let (path, end) = tail.split_at(tail.find(['?', '#']).unwrap_or(tail.len()));
        let (user, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
        let names: Vec<_> = hosts.split(',').collect();
        if names.iter().any(|host| host.is_empty() || host.starts_with(':')) {
            return Err(SetupError::new(
                "a host is missing in this URL: write `host:port`, and a comma between one host and the next",
            ));
        }
        Ok(Self { scheme, user, names, path, end })
    }

    /// Each of them as the URL of one server.
    fn urls(&self, path: &str) -> impl Iterator<Item = String> {
        self.names.iter().map(move |host| format!("{}://{}{host}{path}{}", self.scheme, self.user, self.end))
    }
}

fn cluster(hosts: &Hosts<'_>, certificates: &Certificates) -> Result<Topology, SetupError> {
    let seeds: Vec<_> = hosts.urls(hosts.path).map(|url| client(&url, certificates)).collect::<Result<_, _>>()?;
    if seeds.iter().any(|seed| seed.get_connection_info().redis_settings().db() != 0) {
        return Err(SetupError::new("a cluster has no other database than 0: leave it out of the URL"));
    }
    Ok(Topology::Cluster(seeds))
}

fn sentinel(
    hosts: &Hosts<'_>,
    certificates: &Certificates,
    credentials: Option<&Credentials>,
) -> Result<Topology, SetupError> {
    let path = hosts.path.trim_matches('/');
    let (service, database) = path.split_once('/').unwrap_or((path, ""));
    // What Redis takes as a name.
    if service.is_empty() || !service.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte)) {
        return Err(SetupError::new(
            "say which service the sentinels are to be asked for, in letters, digits, `.`, `-` and `_`: \
             redis+sentinel://host:port,host:port/service",
        ));
    }
    let mut sentinels = Vec::with_capacity(hosts.names.len());
    let mut server = None;
    for url in hosts.urls(&format!("/{database}")) {
        let client = client(&url, certificates)?;
        let mut address = Address::of(&client);
        if redis::parse_redis_url(&url).is_some_and(|url| url.port().is_none()) {
            address.port = SENTINEL_PORT;
        }
        // The older protocol, as there is nothing a sentinel tells by itself.
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
        return Err(SetupError::new("name the sentinels: redis+sentinel://host:port/service"));
    };
    Ok(Topology::Single(ServerSource::Primary(Sentinels::new(sentinels, service.to_owned(), server))))
}

/// Nothing of a URL is shown that was not understood: any part of it could be the password.
#[allow(clippy::needless_pass_by_value)] // for `map_err`
fn invalid(error: redis::RedisError) -> SetupError {
    SetupError::new(format!("this URL of a Redis server is not right: {error}"))
}

fn client(url: &str, certificates: &Certificates) -> Result<Client, SetupError> {
    let info: ConnectionInfo = url.into_connection_info().map_err(invalid)?;
    if let database @ ..0 = info.redis_settings().db() {
        return Err(SetupError::new(format!("there is no database {database}: they are numbered from 0")));
    }
    let info = info.clone().set_tcp_settings(tcp_settings());
    // RESP3 tells at once when a connection is gone, even an idle one.
    let chosen = redis::parse_redis_url(url).is_some_and(|url| url.query_pairs().any(|(name, _)| name == "protocol"));
    let info = if chosen {
        info
    } else {
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        info.set_redis_settings(settings)
    };
    open(info, certificates).map_err(invalid)
}

/// A peer that vanished without a word is found within a few seconds, also when nobody calls.
fn tcp_settings() -> TcpSettings {
    const SILENCE: Duration = Duration::from_secs(5);
    let keepalive = TcpKeepalive::new().with_time(SILENCE);
    let settings = TcpSettings::default().set_nodelay(true);
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    return settings.set_user_timeout(SILENCE).set_keepalive(keepalive.with_interval(Duration::from_secs(1)));
    #[cfg(not(any(target_os = "android", target_os = "fuchsia", target_os = "linux")))]
    settings.set_keepalive(keepalive)
}

/// Whether a character of the password was taken for the end of the host. What is left of it would be the host then.
fn ends_early(url: &str) -> bool {
    let Some((scheme, rest)) = url.split_once("://") else { return false };
    let (_, behind) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    !scheme.contains("unix") && behind.contains('@')
}

#[cfg(feature = "rustls")]
fn open(info: ConnectionInfo, certificates: &Certificates) -> RedisResult<Client> {
    use redis::{ClientTlsConfig, ConnectionAddr, TlsCertificates};

    // The redis crate builds on whatever the process has installed and panics without; an earlier choice stands.
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

/// The servers' addresses.
impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Single(source) => source.fmt(f),
            Self::Cluster(seeds) => addresses(seeds).fmt(f),
        }
    }
}
