//! The slot table of a cluster: the node of each slot.

use std::{
    collections::HashMap,
    mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use redis::Client;
use tokio::time::timeout;

use crate::{
    redis::{
        address::ServerAddress,
        endpoint::NodeOptions,
        node::Node,
        slots::{SLOTS, SlotMap, SlotRange, parse_slot_map},
        source::ServerSource,
    },
    store::StoreError,
};

/// Remedy if the cluster names no address for the node of a slot.
pub(super) const ANNOUNCE: &str =
    "each node must announce a host, and a port without TLS for redis+cluster:// or with TLS for rediss+cluster://";

/// The nodes that the URL names. Other nodes are reached with the settings of the first one.
pub(super) struct ClusterSeeds {
    pub(super) clients: Vec<Client>,
    pub(super) options: NodeOptions,
    /// See `CredentialState`.
    pub(super) were_accepted: Arc<AtomicBool>,
}

/// The slot table, if it is known.
pub(super) enum SlotTableState {
    /// The nodes have not been asked yet, or callers still wait for their answer.
    Unknown,
    /// No node has answered.
    Failed(StoreError),
    Known(SlotTable),
}

/// The nodes, and the node of each slot.
pub(super) struct SlotTable {
    pub(super) nodes: Vec<Arc<ClusterNode>>,
    by_slot: Vec<Option<Arc<ClusterNode>>>,
    /// Servers that may take the place of a lost node.
    pub(super) replicas: Vec<ServerAddress>,
}

/// A node of the cluster.
pub(super) struct ClusterNode {
    pub(super) address: ServerAddress,
    pub(super) server: Node,
    /// It was named by an ASK redirection, so it may be about to take over a slot.
    pub(super) is_importing: AtomicBool,
}

pub(super) fn topology_unknown() -> StoreError {
    StoreError::unavailable("the cluster topology is not known yet")
}

impl ClusterSeeds {
    /// Node at an address.
    pub(super) fn node(&self, address: ServerAddress) -> Result<Arc<ClusterNode>, StoreError> {
        let template = self.clients.first().ok_or_else(topology_unknown)?;
        let server =
            Node::new(ServerSource::Fixed(address.client(template)?), self.options, Arc::clone(&self.were_accepted));
        Ok(Arc::new(ClusterNode { address, server, is_importing: AtomicBool::new(false) }))
    }
}

impl ClusterNode {
    /// Slot map as this node knows it. Time limits: `connecting` for the connection, `answering`
    /// for the reply.
    pub(super) async fn slot_map(&self, connecting: Duration, answering: Duration) -> Result<SlotMap, StoreError> {
        let late = |_| StoreError::unavailable(format!("no connection within {connecting:?}")).about(&self.address);
        timeout(connecting, self.server.connected()).await.map_err(late)??;
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let map = match timeout(answering, self.server.ask(command)).await {
            Ok(Ok(reply)) => parse_slot_map(&reply, &self.address)
                .ok_or_else(|| StoreError::unavailable("malformed reply to CLUSTER SLOTS")),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(StoreError::unavailable(format!("no answer within {answering:?}"))),
        };
        match map {
            Ok(map) if map.ranges.is_empty() => Err(StoreError::unavailable(format!(
                "{}: it knows no slots, so it is not in a cluster yet",
                self.address
            ))),
            map => map.map_err(|error| error.about(&self.address)),
        }
    }
}

impl SlotTableState {
    /// Adopts a slot map and drops nodes without slots. Returns true if a slot has another node.
    ///
    /// Nodes among `candidates` are adopted with their connections.
    pub(super) fn update(&mut self, map: SlotMap, seeds: &ClusterSeeds, candidates: &[Arc<ClusterNode>]) -> bool {
        let SlotMap { ranges, replicas } = map;
        let before = match self {
            Self::Known(table) => mem::take(&mut table.nodes),
            _ => Vec::new(),
        };
        let mut nodes: HashMap<&ServerAddress, Arc<ClusterNode>> = HashMap::new();
        let mut by_slot = vec![None; usize::from(SLOTS)];
        for SlotRange { slots, primary } in &ranges {
            let Some(address) = primary else { continue };
            let mut known = before.iter().chain(candidates);
            let known = nodes.get(address).or_else(|| known.find(|node| node.address == *address)).cloned();
            let Ok(node) = known.map_or_else(|| seeds.node(address.clone()), Ok) else { continue };
            for slot in slots.clone() {
                by_slot[usize::from(slot)] = Some(Arc::clone(&node));
            }
            nodes.insert(address, node);
        }
        let mut nodes: Vec<_> = nodes.into_values().collect();
        // An importing node may have no slot yet.
        let importing = before.into_iter().filter(|node| {
            node.is_importing.swap(false, Ordering::Relaxed) && !nodes.iter().any(|other| Arc::ptr_eq(other, node))
        });
        let importing: Vec<_> = importing.collect();
        nodes.extend(importing);
        let is_changed = match self {
            Self::Known(table) => {
                let is_same = |(one, other): (&Option<Arc<ClusterNode>>, &Option<Arc<ClusterNode>>)| match (one, other)
                {
                    (Some(one), Some(other)) => Arc::ptr_eq(one, other),
                    (one, other) => one.is_none() && other.is_none(),
                };
                !table.by_slot.iter().zip(&by_slot).all(is_same)
            }
            _ => true,
        };
        *self = Self::Known(SlotTable { nodes, by_slot, replicas });
        is_changed
    }
}

impl SlotTable {
    /// The node of a slot.
    pub(super) fn node_of(&self, slot: u16) -> Option<&Arc<ClusterNode>> {
        self.by_slot[usize::from(slot)].as_ref()
    }

    /// Assigns a slot to the node at an address.
    pub(super) fn assign(&mut self, slot: u16, address: ServerAddress, seeds: &ClusterSeeds) -> Result<(), StoreError> {
        let node = self.node_at(address, seeds)?;
        self.by_slot[usize::from(slot)] = Some(node);
        Ok(())
    }

    /// The node at an address, added if it is missing.
    pub(super) fn node_at(
        &mut self,
        address: ServerAddress,
        seeds: &ClusterSeeds,
    ) -> Result<Arc<ClusterNode>, StoreError> {
        if let Some(node) = self.nodes.iter().find(|node| node.address == address) {
            return Ok(Arc::clone(node));
        }
        let node = seeds.node(address)?;
        self.nodes.push(Arc::clone(&node));
        Ok(node)
    }
}
