//! A Redis Cluster: routes each command to the node of its slot, and follows redirections.
//!
//! Each node is a [`Node`](super::node::Node), as a single server is. The redis crate's cluster
//! client is not used. It resends commands that may have run (one script ran ten times), waits
//! without end for a silent node, and has one queue for all nodes.

mod table;
mod topology;

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    task::Waker,
    time::{Duration, Instant},
};

use redis::{Client, Value};

use self::{
    table::{ANNOUNCE, ClusterNode, topology_unknown},
    topology::ClusterTopology,
};
use super::{
    batch::{BatchTicket, SendError},
    command::Command,
    endpoint::NodeOptions,
    reply::answer,
    slots::{Redirection, redirection, slot_of},
};
use crate::{
    backend::QueryTag,
    clock::{after, wait_until},
    failures::Epoch,
    store::{Charge, StoreError},
};

/// Maximum number of redirections of a command.
const MAX_REDIRECTIONS: u8 = 5;
/// Pause between attempts while the keys of a slot are moving (TRYAGAIN).
const TRY_AGAIN_PAUSE: Duration = Duration::from_millis(5);
/// Time after which such attempts end. Most callers' deadline is sooner.
const TRY_AGAIN_FOR: Duration = Duration::from_secs(5);

/// A cluster.
#[derive(Clone)]
pub(super) struct Cluster {
    topology: Arc<ClusterTopology>,
}

/// Route of a command.
struct CommandRoute {
    slot: u16,
    /// The node that an ASK redirection named, for the next attempt only.
    ///
    /// It holds for the moment of the reply. An importing node obeys it also when the counter is at
    /// the slot's owner again, and would count from zero.
    ask: Option<Arc<ClusterNode>>,
    redirections: u8,
}

/// Next step for a command.
enum NextStep {
    Done(Result<Value, StoreError>),
    /// It fails, and no node has run it.
    NotRun(StoreError),
    Retry,
    RetryLater,
}

impl Cluster {
    /// `seeds`: some nodes of the cluster, which know the others.
    pub(super) fn new(seeds: Vec<Client>, options: NodeOptions) -> Self {
        Self { topology: Arc::new(ClusterTopology::new(seeds, options)) }
    }

    /// Waits until the topology is known, and for a connection to each node.
    pub(super) async fn connected(&self) -> Result<(), StoreError> {
        self.topology.connected().await
    }

    /// Runs a command on the node of its slot.
    pub(super) async fn run(&self, mut command: Command) -> (Command, Result<Value, StoreError>) {
        let begun = Instant::now();
        let slot = command.counter().map_or(0, |counter| slot_of(counter.as_bytes()));
        let mut route = CommandRoute { slot, ask: None, redirections: 0 };
        loop {
            let asking = route.ask.is_some();
            let node = match route.ask.take() {
                Some(node) => node,
                None => match self.topology.node_of(slot).await {
                    Ok(node) => node,
                    Err(error) => return (command, Err(error.with_no_effect())),
                },
            };
            let (returned, reply) = node.server.run(command, slot, asking).await;
            command = returned;
            // The node is not connected yet. Once it is, the redirection may be out of date.
            if asking && matches!(reply, Err(SendError::NotSent(_))) && node.server.connected().await.is_ok() {
                match redirect(&mut route) {
                    NextStep::NotRun(error) => return (command, Err(error.with_no_effect())),
                    _ => continue,
                }
            }
            match self.next(&mut route, &node, reply) {
                NextStep::Done(reply) => return (command, reply),
                NextStep::NotRun(error) => return (command, Err(error.with_no_effect())),
                NextStep::RetryLater if begun.elapsed() > TRY_AGAIN_FOR => {
                    let error = format!("the keys of slot {slot} have been moving for too long");
                    return (command, Err(StoreError::unavailable(error).with_no_effect()));
                }
                NextStep::RetryLater => _ = wait_until(after(TRY_AGAIN_PAUSE)).await,
                NextStep::Retry => {}
            }
        }
    }

    /// Next step after a node's reply. A command is retried only if it has not run.
    fn next(&self, route: &mut CommandRoute, node: &ClusterNode, reply: Result<Value, SendError>) -> NextStep {
        let reply = match reply {
            Ok(reply) => reply,
            Err(SendError::NotSent(error)) => return self.retry_elsewhere(route, node, error),
            Err(SendError::Indeterminate(error)) => {
                let _ = self.topology.refresh();
                return NextStep::Done(Err(error.about(&node.address)));
            }
        };
        match redirection(&reply, &node.address) {
            Redirection::None => NextStep::Done(answer(reply)),
            Redirection::TryAgain => {
                route.redirections = 0;
                NextStep::RetryLater
            }
            Redirection::Moved(address) => {
                let _ = self.topology.refresh();
                match self.topology.assign(route.slot, address) {
                    Ok(()) => redirect(route),
                    Err(error) => NextStep::NotRun(error),
                }
            }
            Redirection::Ask(address) => match self.topology.node_at(address) {
                Ok(node) => {
                    node.is_importing.store(true, Ordering::Relaxed);
                    route.ask = Some(node);
                    redirect(route)
                }
                Err(error) => NextStep::NotRun(error),
            },
            Redirection::WithoutAddress => {
                let error = StoreError::unavailable(format!(
                    "slot {} has moved to another node, whose address is not known: {ANNOUNCE}",
                    route.slot
                ));
                self.retry_elsewhere(route, node, error.about(&node.address))
            }
            Redirection::Unavailable => {
                let error = match answer(reply) {
                    Err(error) => StoreError::unavailable(format!("{}: {error}", node.address)),
                    Ok(_) => topology_unknown(),
                };
                self.retry_elsewhere(route, node, error)
            }
        }
    }

    /// Retries a command that has not run, if another node has its slot by now.
    fn retry_elsewhere(&self, route: &mut CommandRoute, node: &ClusterNode, error: StoreError) -> NextStep {
        let _ = self.topology.refresh();
        match self.topology.known_node_of(route.slot) {
            Some(Ok(other)) if other.address != node.address => redirect(route),
            _ => NextStep::NotRun(error),
        }
    }

    /// A ticket for a charge, at the node of its slot; see [`Node::try_charge`](super::node::Node::try_charge).
    /// It follows no redirection: see [`Undecided::NotMade`](crate::backend::Undecided::NotMade).
    pub(super) fn try_charge(
        &self,
        is_same: impl Fn(&Charge) -> bool,
        charge: Charge,
        tag: impl FnOnce(u16) -> QueryTag,
        waker: &Waker,
    ) -> Option<BatchTicket> {
        let (id, slot) = (charge.counter.id(), slot_of(charge.counter.as_bytes()));
        let node = self.topology.known_node_of(slot)?.ok()?;
        node.server.try_charge(id, slot, is_same, || charge, tag, waker)
    }

    /// The error of a decision that was sent and has no reply.
    pub(super) fn no_reply(&self, slot: u16, error: StoreError) -> StoreError {
        let _ = self.topology.refresh();
        self.topology.map_node_of(slot, |node| error.clone().about(&node.address)).unwrap_or(error)
    }

    /// Why a node is unavailable. `None` if all are available.
    pub(super) fn outage(&self) -> Option<StoreError> {
        let outage = self.topology.outage();
        self.refresh_if(outage.is_some());
        outage
    }

    /// The node of a slot is unavailable, or not known.
    pub(super) fn has_outage(&self, slot: u16) -> bool {
        let is_away = self.topology.map_node_of(slot, |node| node.server.outage().is_some()).unwrap_or(true);
        self.refresh_if(is_away);
        is_away
    }

    /// Looks for the node that has the slots of a lost one by now. Calls that wait for it make no request
    /// that would.
    fn refresh_if(&self, is_away: bool) {
        if is_away {
            let _ = self.topology.refresh();
        }
    }

    /// Records that a decision on a counter of this slot failed.
    pub(super) fn failed(&self, slot: u16) {
        self.topology.map_node_of(slot, |node| node.server.failed());
    }

    /// Epoch of the node of a slot; see [`Node::epoch`](super::node::Node::epoch).
    pub(super) fn epoch(&self, slot: u16) -> Option<Epoch> {
        self.topology.map_node_of(slot, |node| node.server.epoch()).flatten()
    }
}

fn redirect(route: &mut CommandRoute) -> NextStep {
    route.redirections += 1;
    if route.redirections <= MAX_REDIRECTIONS {
        return NextStep::Retry;
    }
    NextStep::NotRun(StoreError::unavailable(format!(
        "the nodes of the cluster disagree on which of them has slot {}",
        route.slot
    )))
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cluster({})", self.topology)
    }
}
