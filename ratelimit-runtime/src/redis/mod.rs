//! The store on Redis: one server, the primary that sentinels name, or a cluster.
//!
//! A decision is one script call on one connection. Nothing is ever sent twice, except what the
//! server says it has not run.

mod attempt;
mod breaker;
mod cluster;
mod coalescing;
mod command;
mod link;
mod majority;
mod reply;
mod script;
mod sentinel;
mod slots;
mod spread;
mod target;

use std::{
    sync::Arc,
    task::{Context, Poll, Waker},
};

use futures_util::future::join_all;
use redis::Value;
use smallvec::SmallVec;

use self::{
    cluster::Cluster,
    coalescing::{Failure, Theirs},
    command::Command,
    link::Links,
    reply::{answer, number, unexpected},
};
pub(crate) use self::{
    coalescing::{Decision, Share},
    link::Settings,
    target::{Certificates, Credentials, Topology},
};
use crate::{
    CounterName,
    algorithm::{self, Evaluation, Taken},
    backend::QueryTag,
    counter::CounterId,
    failures::Epoch,
    store::{Batch, Charge, Charges, Reply, Request, Store, StoreError},
};

/// Counters on Redis, or on servers that speak its protocol.
#[derive(Clone, Debug)]
pub(crate) struct Redis {
    nodes: Nodes,
}

/// Where commands go.
#[derive(Clone, Debug)]
enum Nodes {
    One(Arc<Links>),
    Cluster(Arc<Cluster>),
}

type Commands = SmallVec<[Command; 1]>;

/// Commands, in their order, and what came of each.
type Replies = SmallVec<[(Command, Result<Value, StoreError>); 1]>;

impl Nodes {
    /// Waits until the servers have answered once on this runtime.
    async fn connected(&self) -> Result<(), StoreError> {
        match self {
            Self::One(links) => links.connected().await,
            Self::Cluster(cluster) => cluster.connected().await,
        }
    }

    /// Runs commands at the same time.
    async fn run(&self, commands: Commands) -> Replies {
        if commands.len() > 1 {
            return join_all(commands.into_iter().map(|command| self.run_one(command))).await.into();
        }
        let mut replies = Replies::new();
        for command in commands {
            replies.push(self.run_one(command).await);
        }
        replies
    }

    async fn run_one(&self, command: Command) -> (Command, Result<Value, StoreError>) {
        match self {
            Self::One(links) => {
                let (command, reply) = links.run(command, 0, false).await;
                (command, reply.map_err(Failure::into_error).and_then(answer))
            }
            Self::Cluster(cluster) => cluster.run(command).await,
        }
    }

    /// Whether one script can't decide on all of them.
    fn are_spread_over(&self, charges: &[Charge]) -> bool {
        match self {
            Self::One(_) => false,
            Self::Cluster(_) => spread::over_slots(charges),
        }
    }
}

impl Redis {
    pub(crate) fn new(topology: Topology, settings: Settings) -> Self {
        let nodes = match topology {
            Topology::One(target) => Nodes::One(Arc::new(Links::new(target, settings))),
            Topology::Cluster(seeds) => Nodes::Cluster(Arc::new(Cluster::new(seeds, settings))),
        };
        Self { nodes }
    }

    /// Waits until the servers have answered once on this runtime.
    pub(crate) async fn connected(&self) -> Result<(), StoreError> {
        self.nodes.connected().await
    }

    /// The slot of a counter, by which its server is found. Always 0 on a single server.
    pub(crate) fn slot(&self, counter: &CounterName) -> u16 {
        match &self.nodes {
            Nodes::One(_) => 0,
            Nodes::Cluster(_) => slots::slot_of(counter.as_bytes()),
        }
    }

    /// Whether callers are not let through to the server of a slot.
    pub(crate) fn is_away(&self, slot: u16) -> bool {
        match &self.nodes {
            Nodes::One(links) => links.outage().is_some(),
            Nodes::Cluster(cluster) => cluster.is_away(slot),
        }
    }

    /// The server of a slot could not decide.
    pub(crate) fn failed(&self, slot: u16) {
        match &self.nodes {
            Nodes::One(links) => links.failed(),
            Nodes::Cluster(cluster) => cluster.failed(slot),
        }
    }

    /// The epoch of the server of a slot. `None` during an outage, and within a second of a failure.
    pub(crate) fn epoch(&self, slot: u16) -> Option<Epoch> {
        match &self.nodes {
            Nodes::One(links) => links.epoch(),
            Nodes::Cluster(cluster) => cluster.epoch(slot),
        }
    }

    async fn decide_all(&self, batch: &mut [Request]) {
        let mut together: SmallVec<[&mut Request; 1]> = SmallVec::new();
        let mut spread = Vec::new();
        for request in batch {
            if self.nodes.are_spread_over(&request.charges) {
                spread.push(request);
            } else {
                together.push(request);
            }
        }
        if spread.is_empty() {
            return self.decide_together(&mut together).await;
        }
        spread::decide(self, &mut spread, self.decide_together(&mut together)).await;
    }

    /// Decides requests, none of them over several slots.
    async fn decide_together(&self, requests: &mut [&mut Request]) {
        let (mut commands, mut sent) = (Commands::new(), SmallVec::<[&mut Request; 1]>::new());
        for request in requests {
            if let Some(error) = too_long(request) {
                request.outcome = Err(error);
            } else {
                commands.push(Command::decide(request));
                sent.push(request);
            }
        }
        let replies = self.nodes.run(commands).await;
        for (request, (command, reply)) in sent.into_iter().zip(replies) {
            take_in(request, command, reply);
        }
    }

    async fn return_charges(&self, charges: &[Charge]) -> Result<u64, StoreError> {
        let charges = charges.iter().filter(|charge| charge.cost > 0).cloned();
        let command = |charge: Charge| match charge.hold {
            None => Command::Refund(charge),
            Some(_) => Command::Settle(charge, 0),
        };
        let mut back = 0;
        for (_, reply) in self.nodes.run(charges.map(command).collect()).await {
            back += number(&reply?)?.unsigned_abs();
        }
        Ok(back)
    }
}

impl Redis {
    /// Renews holds of one counter, as many in one script as a server may be kept busy with.
    async fn renew_holds(&self, charges: &[Charge]) -> Result<Vec<bool>, StoreError> {
        let steps = charges.iter().map(algorithm::renewal_steps).max().unwrap_or(1);
        let at_once = usize::try_from(algorithm::MAX_STEPS / steps).unwrap_or(usize::MAX);
        // As the script wants them.
        let mut order: Vec<usize> = (0..charges.len()).collect();
        order.sort_by_key(|&at| charges[at].hold.map(|hold| hold.lease));
        let command = |some: &[usize]| {
            let holds = some.iter().flat_map(|&at| algorithm::renewal_args(&charges[at])).collect();
            Command::Renew(charges[some[0]].clone(), holds)
        };
        let replies = self.nodes.run(order.chunks(at_once).map(command).collect()).await;
        let mut are_held = vec![false; charges.len()];
        for (some, (_, reply)) in order.chunks(at_once).zip(replies) {
            match reply? {
                Value::BulkString(said) if said.len() == some.len() => {
                    some.iter().zip(said).for_each(|(&at, said)| are_held[at] = said == b'1');
                }
                other => return Err(unexpected(&other)),
            }
        }
        Ok(are_held)
    }
}

/// What came of a share.
pub(crate) type Shared = Result<Taken, StoreError>;

impl Redis {
    /// A share in a decision on one counter, where such travel together now: the short way for many callers at once.
    #[inline]
    pub(crate) fn share(
        &self,
        name: CounterId,
        is_same: impl Fn(&Charge) -> bool,
        charge: impl FnOnce() -> (Charge, QueryTag),
        waker: &Waker,
    ) -> Option<Share> {
        match &self.nodes {
            Nodes::One(links) => links.share(name, is_same, charge, waker),
            Nodes::Cluster(_) => None, // the node is found by the name, which the short way has not
        }
    }

    /// What a share came to. Nothing for a caller who has waited for longer than the deadline. `refused`: is told what the server says of a charge that
    /// does not fit.
    #[inline]
    pub(crate) fn poll(
        share: &mut Share,
        context: &mut Context<'_>,
        refused: impl FnOnce(&Decision, &Charge, &Evaluation),
    ) -> Poll<Option<Shared>> {
        share.poll_told(context, |decision, theirs| {
            let charge = decision.charge();
            let reply = match theirs {
                Theirs::Failure(failure) => return Err(failure.clone().into_error()),
                Theirs::Another(equal, later) => match charge.and_then(|charge| equal.taken(charge, later)) {
                    Some(taken) => return Ok(taken),
                    None => &equal.reply,
                },
                Theirs::Reply(reply) => {
                    match charge.and_then(|charge| Some((charge, algorithm::parse_reply(charge, true, reply)?))) {
                        Some((charge, (look, receipt))) => {
                            if !look.fits {
                                refused(decision, charge, &look);
                            }
                            return Ok(Taken::new(look, receipt));
                        }
                        None => reply,
                    }
                }
            };
            Err(answer(reply.clone()).map_or_else(|error| error, |reply| unexpected(&reply)))
        })
    }
}

impl Store for Redis {
    fn decide(&self, mut batch: Batch) -> Reply<Batch> {
        // What most calls are, in a small future.
        if let Nodes::One(links) = &self.nodes
            && let [request] = &mut *batch
        {
            if let Some(error) = too_long(request) {
                request.outcome = Err(error);
                return Reply::Ready(batch);
            }
            let consume = request.consume;
            let running = links.run(Command::decide(request), 0, false);
            return Reply::Pending(Box::pin(async move {
                let (command, reply) = running.await;
                let mut request = Request::new(Charges::default(), consume);
                take_in(&mut request, command, reply.map_err(Failure::into_error).and_then(answer));
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
        let redis = self.clone();
        Reply::Pending(Box::pin(async move { redis.return_charges(&charges).await }))
    }

    fn supports_holds(&self) -> bool {
        true
    }

    fn renew(&self, charges: Vec<Charge>) -> Reply<Result<Vec<bool>, StoreError>> {
        let redis = self.clone();
        Reply::Pending(Box::pin(async move { redis.renew_holds(&charges).await }))
    }

    fn settle(&self, charge: Charge, used: u64) -> Reply<Result<(), StoreError>> {
        let redis = self.clone();
        Reply::Pending(Box::pin(async move {
            let (_, reply) = redis.nodes.run_one(Command::Settle(charge, used)).await;
            number(&reply?).map(drop)
        }))
    }

    fn reset(&self, counter: CounterName) -> Reply<Result<(), StoreError>> {
        let redis = self.clone();
        Reply::Pending(Box::pin(async move {
            let (_, reply) = redis.nodes.run_one(Command::Delete(counter)).await;
            reply.map(drop)
        }))
    }

    fn outage(&self) -> Option<StoreError> {
        match &self.nodes {
            Nodes::One(links) => links.outage(),
            Nodes::Cluster(cluster) => cluster.outage(),
        }
    }
}

/// Why a request is not sent: its script would keep a server from everything else for too long.
fn too_long(request: &Request) -> Option<StoreError> {
    let [_, _, ..] = &*request.charges else { return None }; // one counter never takes as long
    let steps: u64 = request.charges.iter().map(algorithm::steps).sum();
    let steps = algorithm::DECISIONS_PER_TRANSACTION * steps;
    (steps > algorithm::MAX_STEPS).then(|| {
        StoreError::misconfigured(format!(
            "its {} rules are one script of up to {steps} steps, and a server may be kept busy for {} at a time; give one call \
             fewer rules, or sliding windows with fewer buckets",
            request.charges.len(),
            algorithm::MAX_STEPS,
        ))
    })
}

/// Gives a request its charges back, with what came of them.
fn take_in(request: &mut Request, command: Command, reply: Result<Value, StoreError>) {
    request.charges = command.into_charges();
    request.outcome = reply.and_then(|reply| read(&mut request.charges, request.consume, &reply));
}

/// Writes what a script replied into the charges of a request, and says whether all of them fit.
fn read(charges: &mut [Charge], consume: bool, reply: &Value) -> Result<bool, StoreError> {
    let (replies, all_fit) = match reply {
        Value::Array(replies) if charges.len() != 1 => match replies.split_last() {
            Some((all_fit, replies)) if replies.len() == charges.len() => (replies, number(all_fit)? == 1),
            _ => return Err(unexpected(reply)),
        },
        // A single counter's reply says by itself whether the cost was charged.
        reply => (std::slice::from_ref(reply), true),
    };
    let mut each_fits = true;
    for (charge, reply) in charges.iter_mut().zip(replies) {
        let consumed = consume && all_fit && charge.cost > 0;
        let (look, receipt) = algorithm::parse_reply(charge, consumed, reply).ok_or_else(|| unexpected(reply))?;
        look.write_to(charge, receipt);
        if consumed && look.fits {
            charge.set_held_cost();
        }
        each_fits &= look.fits;
    }
    Ok(all_fit && each_fits)
}
