//! The Redis store: one server, the primary that sentinels name, or a cluster.
//!
//! A decision is one script call over one connection. A command is sent again only if the server
//! says that it has not run it.
//!
//! | floor | files |
//! |---|---|
//! | the store | `mod`, `multi_slot`, `requests` |
//! | which server | `nodes`, `cluster/` |
//! | one server | `node`, `runtime_node`, `supervisor` |
//! | one round trip | `exchange`, `connection`, `pool`, `endpoint` |
//! | what is sent | `command`, `scripts`, `batch/` |
//! | where servers are | `url`, `url_faults`, `source`, `sentinel`, `quorum`, `slots`, `address` |
//! | rules of their own | `breaker`, `backoff`, `reply` |

mod address;
mod backoff;
mod batch;
mod breaker;
mod cluster;
mod command;
mod connection;
mod endpoint;
mod exchange;
mod multi_slot;
mod node;
mod nodes;
mod pool;
mod quorum;
mod reply;
mod requests;
mod runtime_node;
mod scripts;
mod sentinel;
mod slots;
mod source;
mod supervisor;
mod url;
mod url_faults;

use std::{
    task::{Context, Poll, Waker},
    time::Duration,
};

use smallvec::SmallVec;

pub(crate) use self::{
    batch::{BatchEntry, BatchTicket},
    endpoint::NodeOptions,
    nodes::NoOutcome,
    url::{Certificates, Credentials, RedisTopology},
};
use self::{
    batch::{CallerResult, SendError},
    command::Command,
    multi_slot::Servers,
    nodes::Nodes,
    reply::{answer, number},
};
use crate::{
    CounterName,
    algorithm::{self, Evaluation},
    backend::{QueryTag, RefundListener},
    counter::CounterId,
    decision::Outcome,
    failures::Epoch,
    rule::ban_ms,
    store::{Batch, Charge, Charges, Reply, Request, Store, StoreError},
};

/// Counters on Redis, or on servers that speak its protocol.
#[derive(Clone, Debug)]
pub(crate) struct Redis {
    nodes: Nodes,
    refunds: RefundListener,
}

impl Redis {
    pub(crate) fn new(topology: RedisTopology, options: NodeOptions) -> Self {
        Self { nodes: Nodes::new(topology, options), refunds: RefundListener::default() }
    }

    /// Refunds of calls in several slots.
    pub(crate) fn refunds(&self) -> &RefundListener {
        &self.refunds
    }

    /// Waits until the servers have answered once on this runtime.
    pub(crate) async fn connected(&self) -> Result<(), StoreError> {
        self.nodes.connected().await
    }

    /// Slot of a counter, which determines its server. Always 0 on a single server.
    pub(crate) fn slot(&self, counter: &CounterName) -> u16 {
        self.nodes.slot(counter)
    }

    /// Whether the counters lie in several slots of a cluster.
    pub(crate) fn are_apart(&self, charges: &[Charge]) -> bool {
        multi_slot::is_multi_slot(&self.nodes, charges)
    }

    /// The server of a slot is unavailable.
    pub(crate) fn has_outage(&self, slot: u16) -> bool {
        self.nodes.has_outage(slot)
    }

    /// Returns once the breaker of a single server admits callers of this runtime. Returns at once
    /// for a cluster.
    pub(crate) async fn returned(&self) {
        if let Nodes::Single(node) = &self.nodes {
            node.returned().await;
        }
    }

    /// Records that the server of a slot could not decide.
    pub(crate) fn failed(&self, slot: u16) {
        self.nodes.failed(slot);
    }

    /// Epoch of the server of a slot. `None` during an outage, and within a second of a failure.
    pub(crate) fn epoch(&self, slot: u16) -> Option<Epoch> {
        self.nodes.epoch(slot)
    }

    /// Enqueues a charge of one counter for a shared round trip. `None` if it cannot share one now.
    ///
    /// `charge` is built only if no waiting entry makes the same charge.
    #[inline]
    pub(crate) fn try_charge(
        &self,
        id: CounterId,
        is_same: impl Fn(&Charge) -> bool,
        charge: impl FnOnce() -> Charge,
        tag: impl FnOnce(u16) -> QueryTag,
        waker: &Waker,
    ) -> Option<BatchTicket> {
        match &self.nodes {
            Nodes::Single(node) => node.try_charge(id, 0, is_same, charge, tag, waker),
            // The slot follows from the counter's name.
            Nodes::Cluster(cluster) => cluster.try_charge(is_same, charge(), tag, waker),
        }
    }

    /// Polls a ticket. `None` if the caller has timed out. `refused` gets the server's reply to a
    /// charge that does not fit.
    #[inline]
    pub(crate) fn poll_charge(
        &self,
        ticket: &mut BatchTicket,
        context: &mut Context<'_>,
        refused: impl FnOnce(&BatchEntry, &Charge, &Evaluation),
    ) -> Poll<Option<Result<Outcome, NoOutcome>>> {
        ticket.poll_result(context, |entry, result| {
            let charge = entry.charge();
            let reply = match result {
                CallerResult::Failure(error) => return Err(self.nodes.failure(entry.slot(), error.clone())),
                CallerResult::Granted(repeated, later) => {
                    match charge.and_then(|charge| repeated.taken(charge, later)) {
                        Some(taken) => return Ok(taken),
                        None => &repeated.reply,
                    }
                }
                CallerResult::Reply(reply) => {
                    match charge.and_then(|charge| Some((charge, algorithm::parse_reply(charge, true, reply)?))) {
                        Some((charge, (look, receipt))) => {
                            if !look.fits {
                                refused(entry, charge, &look);
                            }
                            return Ok(Outcome::new(look.decision, receipt));
                        }
                        None => reply,
                    }
                }
            };
            Err(self.nodes.no_outcome(reply))
        })
    }

    async fn decide_all(&self, batch: &mut [Request]) {
        let mut single_slot: SmallVec<[&mut Request; 1]> = SmallVec::new();
        let mut multi_slot = Vec::new();
        for request in batch {
            if self.are_apart(&request.charges) {
                multi_slot.push(request);
            } else {
                single_slot.push(request);
            }
        }
        let single_slot = requests::decide(&self.nodes, &mut single_slot);
        if multi_slot.is_empty() {
            return single_slot.await;
        }
        let servers = Servers { nodes: self.nodes.clone(), refunds: self.refunds.clone() };
        multi_slot::decide(&servers, &mut multi_slot, single_slot).await;
    }
}

impl Store for Redis {
    fn decide(&self, mut batch: Batch) -> Reply<Batch> {
        // The most frequent case gets a small future.
        if let Nodes::Single(node) = &self.nodes
            && let [request] = &mut *batch
        {
            if let Some(error) = requests::too_many_steps(request) {
                request.outcome = Err(error);
                return Reply::Ready(batch);
            }
            let consume = request.consume;
            let mut running = node.run(Command::decide(request), 0, false);
            return Reply::Pending(Box::pin(async move {
                let (command, reply) = (&mut running).await; // by reference, or it is copied
                let mut request = Request::new(Charges::default(), consume);
                requests::complete(&mut request, command, reply.map_err(SendError::into_error).and_then(answer));
                request.into()
            }));
        }
        let redis = self.clone();
        Reply::Pending(Box::pin(async move {
            redis.decide_all(&mut batch).await;
            batch
        }))
    }

    fn refund(&self, charges: Charges) -> Reply<Result<u64, StoreError>> {
        let nodes = self.nodes.clone();
        Reply::Pending(Box::pin(async move { requests::refund(&nodes, &charges).await }))
    }

    fn supports_holds(&self) -> bool {
        true
    }

    fn renew(&self, charges: Vec<Charge>) -> Reply<Result<Vec<bool>, StoreError>> {
        let nodes = self.nodes.clone();
        Reply::Pending(Box::pin(async move { requests::renew(&nodes, &charges).await }))
    }

    fn settle(&self, charge: Charge, used: u64) -> Reply<Result<(), StoreError>> {
        let nodes = self.nodes.clone();
        Reply::Pending(Box::pin(async move {
            let (_, reply) = nodes.run(Command::Settle(charge, used)).await;
            number(&reply?).map(drop)
        }))
    }

    fn supports_bans(&self) -> bool {
        true
    }

    fn ban(&self, charge: Charge, time: Duration) -> Reply<Result<(), StoreError>> {
        let nodes = self.nodes.clone();
        Reply::Pending(Box::pin(async move {
            let (_, reply) = nodes.run(Command::Ban(charge, ban_ms(time))).await;
            reply.map(drop)
        }))
    }

    fn reset(&self, counter: CounterName) -> Reply<Result<(), StoreError>> {
        let nodes = self.nodes.clone();
        Reply::Pending(Box::pin(async move {
            let (_, reply) = nodes.run(Command::Delete(counter)).await;
            reply.map(drop)
        }))
    }

    fn outage(&self) -> Option<StoreError> {
        self.nodes.outage()
    }
}
