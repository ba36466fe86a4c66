//! The servers that count in this program: each kind of Redis, with and without TLS.

use std::fmt;
use std::path::PathBuf;

use ratelimit_harness::{RedisCluster, RedisSentinel, RedisServer};
use ratelimit_runtime::{Builder, Limiter};

/// The user of the limiters, which distinguishes their connections from those of servers and
/// harness.
const USER: &str = "shop";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    Single,
    Sentinel,
    Cluster,
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Single => "single",
            Self::Sentinel => "sentinel",
            Self::Cluster => "cluster",
        })
    }
}

/// Servers of one topology.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) topology: Topology,
    pub(crate) servers: Servers,
    tls: bool,
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // there is one of it
pub(crate) enum Servers {
    Single(RedisServer),
    Sentinel(RedisSentinel),
    Cluster(RedisCluster),
}

impl Place {
    /// Each topology without TLS and, on request, with it.
    pub(crate) fn kinds(tls: bool) -> impl Iterator<Item = (Topology, bool)> {
        let topologies = [Topology::Single, Topology::Sentinel, Topology::Cluster];
        let kinds = topologies.map(|topology| (topology, false)).into_iter();
        kinds.chain(topologies.map(|topology| (topology, true)).into_iter().filter(move |_| tls))
    }

    pub(crate) fn start(topology: Topology, tls: bool) -> Self {
        let servers = match topology {
            Topology::Single => {
                let builder = RedisServer::builder();
                Servers::Single(if tls { builder.tls() } else { builder }.start())
            }
            Topology::Sentinel => {
                let builder = RedisSentinel::builder();
                Servers::Sentinel(if tls { builder.tls() } else { builder }.start())
            }
            Topology::Cluster => {
                let builder = RedisCluster::builder();
                Servers::Cluster(if tls { builder.tls() } else { builder }.start())
            }
        };
        let place = Self { topology, servers, tls };
        for node in place.nodes() {
            node.command(&[b"ACL", b"SETUSER", USER.as_bytes(), b"on", b">secret", b"~*", b"+@all"]);
        }
        place
    }

    pub(crate) fn name(&self) -> String {
        format!("{}{}", self.topology, if self.tls { ", TLS" } else { "" })
    }

    /// All servers that count, primaries and replicas.
    pub(crate) fn nodes(&self) -> &[RedisServer] {
        match &self.servers {
            Servers::Single(server) => std::slice::from_ref(server),
            Servers::Sentinel(servers) => servers.nodes(),
            Servers::Cluster(servers) => servers.nodes(),
        }
    }

    pub(crate) fn url(&self) -> String {
        let url = match &self.servers {
            Servers::Single(server) => server.url(),
            Servers::Sentinel(servers) => servers.url(),
            Servers::Cluster(servers) => servers.url(),
        };
        url.replacen("://", &format!("://{USER}:secret@"), 1)
    }

    /// The certificate of the authority, for limiters that speak TLS.
    pub(crate) fn authority(&self) -> Option<PathBuf> {
        let files = match &self.servers {
            Servers::Single(server) => server.tls(),
            Servers::Sentinel(servers) => servers.tls(),
            Servers::Cluster(servers) => servers.tls(),
        };
        files.map(|files| files.ca_pem.clone())
    }

    pub(crate) fn builder(&self) -> Builder {
        builder(&self.url(), self.authority())
    }

    /// Cuts every connection of a limiter.
    pub(crate) fn cut_connections(&self) {
        for node in self.nodes() {
            node.command(&[b"CLIENT", b"KILL", b"USER", USER.as_bytes()]);
        }
    }

    pub(crate) fn forget_scripts(&self) {
        for node in self.nodes() {
            node.command(&[b"SCRIPT", b"FLUSH"]);
        }
    }
}

pub(crate) fn builder(url: &str, authority: Option<PathBuf>) -> Builder {
    let builder = Limiter::builder(url);
    match authority {
        #[cfg(feature = "rustls")]
        Some(path) => builder.ca_certificate(std::fs::read(path).expect("a certificate")),
        _ => builder,
    }
}
