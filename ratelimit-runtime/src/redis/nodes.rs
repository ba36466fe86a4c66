//! The servers that commands are sent to: a single one, or the nodes of a cluster.

use std::sync::Arc;

use futures_util::future::join_all;
use redis::Value;
use smallvec::SmallVec;

use super::{
    batch::SendError,
    cluster::Cluster,
    command::Command,
    endpoint::NodeOptions,
    node::Node,
    reply::{answer, unexpected},
    slots,
    url::RedisTopology,
};
use crate::{CounterName, failures::Epoch, store::StoreError};

/// One server, or a cluster. A cheap handle.
#[derive(Clone, Debug)]
pub(super) enum Nodes {
    Single(Arc<Node>),
    Cluster(Cluster),
}

pub(super) type Commands = SmallVec<[Command; 1]>;

/// Why a charge has no outcome.
pub(crate) enum NoOutcome {
    /// It was not made: see [`Undecided::NotMade`](crate::backend::Undecided::NotMade).
    NotMade,
    Failed(StoreError),
}

/// Commands with their replies, in order.
pub(super) type CommandReplies = SmallVec<[(Command, Result<Value, StoreError>); 1]>;

impl Nodes {
    pub(super) fn new(topology: RedisTopology, options: NodeOptions) -> Self {
        match topology {
            RedisTopology::Single(source) => Self::Single(Arc::new(Node::new(source, options, Arc::default()))),
            RedisTopology::Cluster(seeds) => Self::Cluster(Cluster::new(seeds, options)),
        }
    }

    /// Waits until the servers have answered once on this runtime.
    pub(super) async fn connected(&self) -> Result<(), StoreError> {
        match self {
            Self::Single(node) => node.connected().await,
            Self::Cluster(cluster) => cluster.connected().await,
        }
    }

    /// Runs commands concurrently.
    pub(super) async fn run_all(&self, commands: Commands) -> CommandReplies {
        if commands.len() > 1 {
            return join_all(commands.into_iter().map(|command| self.run(command))).await.into();
        }
        let mut replies = CommandReplies::new();
        for command in commands {
            replies.push(self.run(command).await);
        }
        replies
    }

    pub(super) async fn run(&self, command: Command) -> (Command, Result<Value, StoreError>) {
        match self {
            Self::Single(node) => {
                let (command, reply) = node.run(command, 0, false).await;
                (command, reply.map_err(SendError::into_error).and_then(answer))
            }
            Self::Cluster(cluster) => cluster.run(command).await,
        }
    }

    /// Slot of a counter, which determines its server. Always 0 on a single server.
    pub(super) fn slot(&self, counter: &CounterName) -> u16 {
        match self {
            Self::Single(_) => 0,
            Self::Cluster(_) => slots::slot_of(counter.as_bytes()),
        }
    }

    /// A charge that has no reply.
    pub(super) fn failure(&self, slot: u16, error: SendError) -> NoOutcome {
        match (self, error) {
            (Self::Cluster(_), SendError::NotSent(_)) => NoOutcome::NotMade,
            (Self::Cluster(cluster), SendError::Indeterminate(error)) => {
                NoOutcome::Failed(cluster.no_reply(slot, error))
            }
            (Self::Single(_), error) => NoOutcome::Failed(error.into_error()),
        }
    }

    /// A charge whose reply is no outcome.
    pub(super) fn no_outcome(&self, reply: &Value) -> NoOutcome {
        match self {
            Self::Cluster(_) if slots::is_redirection(reply) => NoOutcome::NotMade,
            _ => NoOutcome::Failed(answer(reply.clone()).map_or_else(|error| error, |reply| unexpected(&reply))),
        }
    }

    /// Why a server is unavailable. `None` if all are available.
    pub(super) fn outage(&self) -> Option<StoreError> {
        match self {
            Self::Single(node) => node.outage(),
            Self::Cluster(cluster) => cluster.outage(),
        }
    }

    /// The server of a slot is unavailable.
    pub(super) fn has_outage(&self, slot: u16) -> bool {
        match self {
            Self::Single(node) => node.outage().is_some(),
            Self::Cluster(cluster) => cluster.has_outage(slot),
        }
    }

    /// Records that a decision of the server of a slot failed.
    pub(super) fn failed(&self, slot: u16) {
        match self {
            Self::Single(node) => node.failed(),
            Self::Cluster(cluster) => cluster.failed(slot),
        }
    }

    /// Epoch of the server of a slot. `None` during an outage, and within a second of a failure.
    pub(super) fn epoch(&self, slot: u16) -> Option<Epoch> {
        match self {
            Self::Single(node) => node.epoch(),
            Self::Cluster(cluster) => cluster.epoch(slot),
        }
    }
}
