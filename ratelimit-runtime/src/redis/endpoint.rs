//! A server as all runtimes of the process see it.

use std::{
    fmt,
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use redis::{Client, aio::MultiplexedConnection};
use tokio::time::timeout;

use super::{backoff::first_limit, source::ServerSource};
use crate::{
    error::{Doubt, StoreError},
    failures::Failures,
};

/// Time limit for reading the server's settings, which only the log needs.
const INSPECTION: Duration = Duration::from_millis(500);

/// How nodes are talked to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeOptions {
    /// Deadline of a decision. A slower server counts as unavailable.
    pub(crate) deadline: Duration,
    /// Number of connections of a runtime.
    pub(crate) connections: usize,
    /// Decisions of several callers may share a round trip.
    pub(crate) is_batching: bool,
}

/// A server: where it is, and what the runtimes have learned of it.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) source: ServerSource,
    pub(super) options: NodeOptions,
    /// Its settings were read once; see [`Endpoint::inspect`].
    pub(super) is_inspected: AtomicBool,
    pub(super) credentials: CredentialState,
    /// Number of runtimes with an open breaker. Nothing else is read while it is 0.
    pub(super) open_breakers: AtomicUsize,
    pub(super) failures: Failures,
}

impl Endpoint {
    /// `were_accepted`: the limiter's user and password, by any of its servers.
    pub(super) fn new(source: ServerSource, options: NodeOptions, were_accepted: Arc<AtomicBool>) -> Self {
        Self {
            source,
            options,
            is_inspected: AtomicBool::new(false),
            credentials: CredentialState { were_accepted, are_rejected: AtomicBool::new(false) },
            open_breakers: AtomicUsize::new(0),
            failures: Failures::default(),
        }
    }

    /// Returns once the server is another one than `from`.
    pub(super) async fn moved(&self, from: Option<&Client>) {
        match from {
            Some(from) => self.source.moved(from, first_limit(self.options.deadline)).await,
            None => pending().await,
        }
    }

    /// If this limiter was connected before, an error in [`Doubt`] means that the server has changed: then it becomes
    /// an outage. Logs rejected credentials once.
    pub(super) fn rejected(&self, error: StoreError) -> StoreError {
        let Some(doubt) = error.doubt().filter(|_| self.credentials.were_accepted.load(Ordering::Acquire)) else {
            return error;
        };
        if doubt == Doubt::Credentials && !self.credentials.are_rejected.swap(true, Ordering::AcqRel) {
            tracing::error!(
                server = %self.source, reason = error.reason(),
                "the server no longer accepts this limiter's credentials; calls follow their failure policy until it does"
            );
        }
        error.into_outage()
    }

    /// Error that names the server.
    pub(super) fn unavailable(&self, reason: fmt::Arguments<'_>) -> StoreError {
        StoreError::unavailable(reason.to_string()).about(&self.source)
    }

    /// Logs a warning if the server may evict counters. Does nothing for a user who may not run
    /// INFO.
    pub(super) async fn inspect(self: Arc<Self>, mut redis: MultiplexedConnection) {
        let mut command = redis::cmd("INFO");
        command.arg("memory");
        let Ok(Ok(reply)) = timeout(INSPECTION, redis.send_packed_command(&command)).await else { return };
        let Ok(info) = redis::from_redis_value::<String>(reply) else { return };
        let value_of = |name| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        if let (Some(maxmemory), Some(policy)) = (value_of("maxmemory"), value_of("maxmemory_policy"))
            && maxmemory != "0"
            && policy != "noeviction"
        {
            tracing::warn!(
                server = %self.source, maxmemory, policy,
                "this server evicts keys when its memory is full, and an evicted counter starts again from zero; \
                 set its maxmemory-policy to noeviction"
            );
        }
    }
}

/// State of the user and password.
#[derive(Debug)]
pub(super) struct CredentialState {
    /// A connection was opened: the credentials were right, and it was a Redis server. The nodes of a cluster share
    /// this: a node that joins later may be the first to reject them.
    were_accepted: Arc<AtomicBool>,
    /// They have been rejected since, and the log says so.
    are_rejected: AtomicBool,
}

impl CredentialState {
    pub(super) fn accepted(&self) {
        self.were_accepted.store(true, Ordering::Release);
        self.are_rejected.store(false, Ordering::Release);
    }
}
