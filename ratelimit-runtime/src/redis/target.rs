//! Which server, and how to get there.

use std::{fmt, time::Duration};

use redis::{
    Client, ConnectionInfo, IntoConnectionInfo, ProtocolVersion,
    io::tcp::{TcpSettings, socket2::TcpKeepalive},
};

use crate::SetupError;

/// A server, and everything that is needed to open a connection to it. Shows itself without its password.
pub(crate) struct Target {
    pub(super) client: Client,
}

/// Certificates for TLS, in PEM.
#[derive(Clone, Default)]
pub(crate) struct Certificates {
    #[cfg(feature = "rustls")]
    pub(crate) authority: Option<Vec<u8>>,
    #[cfg(feature = "rustls")]
    pub(crate) client: Option<(Vec<u8>, Vec<u8>)>,
}

impl Target {
    pub(crate) fn new(url: &str, certificates: Certificates) -> Result<Self, SetupError> {
        if ends_early(url) {
            return Err(SetupError::new(
                "this URL of a Redis server has an `@` behind its host: percent-encode `/`, `?`, `#` and `@` in the password",
            ));
        }
        // Nothing of a URL is shown that was not understood: any part of it could be the password.
        let invalid = |error| SetupError::new(format!("this URL of a Redis server is not right: {error}"));
        let info: ConnectionInfo = url.into_connection_info().map_err(invalid)?;
        let info = info.clone().set_tcp_settings(tcp_settings());
        // RESP3 tells at once when a connection is gone, even an idle one.
        let chosen =
            redis::parse_redis_url(url).is_some_and(|url| url.query_pairs().any(|(name, _)| name == "protocol"));
        let info = if chosen {
            info
        } else {
            let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
            info.set_redis_settings(settings)
        };
        let client = open(info, certificates).map_err(invalid)?;
        Ok(Self { client })
    }
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
fn open(info: ConnectionInfo, certificates: Certificates) -> redis::RedisResult<Client> {
    use redis::{ClientTlsConfig, TlsCertificates};

    // The redis crate builds on whatever the process has installed and panics without; an earlier choice stands.
    let _ = rustls::crypto::ring::default_provider().install_default();
    if let redis::ConnectionAddr::TcpTls { .. } = info.addr() {
        let Certificates { authority: root_cert, client } = certificates;
        let client_tls = client.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
        return Client::build_with_tls(info, TlsCertificates { client_tls, root_cert });
    }
    Client::open(info)
}

#[cfg(not(feature = "rustls"))]
fn open(info: ConnectionInfo, _: Certificates) -> redis::RedisResult<Client> {
    Client::open(info)
}

/// The server's address.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.client.get_connection_info().addr().fmt(f)
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({self})")
    }
}
