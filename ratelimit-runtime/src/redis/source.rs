//! Source of a server's address: fixed, or asked of sentinels.

use std::{
    fmt,
    future::{self, Future},
    time::Duration,
};

use redis::{Client, aio::MultiplexedConnection};

use super::{backoff::TimeLimit, sentinel::Sentinels};
use crate::store::StoreError;

/// One server, with everything that is needed to connect to it. Displays without its password.
pub(crate) enum ServerSource {
    Fixed(Client),
    /// The current primary of a service. It may be another server after a failover.
    Primary(Sentinels),
}

impl ServerSource {
    /// Looks the server up and connects to it.
    ///
    /// `connect` opens the connection; its second value is passed through.
    pub(super) async fn connect<T, F>(
        &self,
        limit: TimeLimit,
        connect: impl Fn(Client, TimeLimit) -> F,
    ) -> Result<(Client, MultiplexedConnection, T), StoreError>
    where
        F: Future<Output = Result<(MultiplexedConnection, T), StoreError>>,
    {
        match self {
            Self::Fixed(client) => {
                let connected = connect(client.clone(), limit).await;
                let (connection, with) = connected.map_err(|error| error.about(self))?;
                Ok((client.clone(), connection, with))
            }
            Self::Primary(sentinels) => sentinels.primary(limit, connect).await,
        }
    }

    /// Returns once the server is another one than `from`. `limit`: time limit of each look-up.
    pub(super) async fn moved(&self, from: &Client, limit: Duration) {
        match self {
            Self::Fixed(_) => future::pending().await,
            Self::Primary(sentinels) => sentinels.moved(from, limit).await,
        }
    }
}

/// The server's address.
impl fmt::Display for ServerSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(client) => client.get_connection_info().addr().fmt(f),
            Self::Primary(sentinels) => sentinels.fmt(f),
        }
    }
}

impl fmt::Debug for ServerSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerSource({self})")
    }
}
