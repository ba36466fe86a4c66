//! Server addresses, and clients for further servers of the same deployment.

use std::fmt;

use redis::{Client, ConnectionAddr, ConnectionInfo};

use super::reply::explain;
use crate::store::StoreError;

/// Host and port of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ServerAddress {
    pub(super) host: String,
    pub(super) port: u16,
}

impl ServerAddress {
    /// Address of a client's server. A Unix socket has its path as host, and port 0.
    pub(super) fn of(client: &Client) -> Self {
        match client.get_connection_info().addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Self { host: host.clone(), port: *port }
            }
            path => Self { host: path.to_string(), port: 0 },
        }
    }

    /// Connection settings for this address; all others are those of `template`: credentials,
    /// protocol, certificates.
    pub(super) fn connection_info(&self, template: &Client) -> ConnectionInfo {
        let Self { host, port } = self.clone();
        let info = template.get_connection_info();
        let addr = match info.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
            }
            _ => ConnectionAddr::Tcp(host, port),
        };
        info.clone().set_addr(addr)
    }

    /// Client for this address with the settings of `template`.
    pub(super) fn client(&self, template: &Client) -> Result<Client, StoreError> {
        Client::open(self.connection_info(template)).map_err(|error| explain(&error))
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// Addresses of the clients' servers, separated by commas.
pub(super) fn addresses(clients: &[Client]) -> String {
    let addresses: Vec<_> = clients.iter().map(|client| ServerAddress::of(client).to_string()).collect();
    addresses.join(", ")
}
