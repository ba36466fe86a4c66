//! The nodes of a cluster: which of them has which slot, and how a command gets to it.
//!
//! Each node is a [`Links`], as a single server is. The redis crate's own client for clusters is not used: it sends again what
//! may have run (one script ran ten times), waits without end for a node that says nothing, and has one queue for all of them.

use std::{
    collections::HashMap,
    convert::Infallible,
    fmt, mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::{join, join_all};
use redis::{Client, Value};
use tokio::{
    runtime::Handle,
    sync::watch,
    time::{sleep, timeout},
};

use super::{
    attempt::first_limit,
    coalescing::Failure,
    command::Command,
    link::{Links, Settings},
    majority::{Votes, majority, mostly_misconfigured},
    reply::answer,
    slots::{Heard, Layout, Range, SLOTS, heard, read_layout, slot_of},
    target::{Address, Target, addresses},
};
use crate::{failures::Epoch, store::StoreError};

/// How long a node may take to say which node has which slots, unless the deadline is longer.
const PATIENCE: Duration = Duration::from_millis(500);
/// Once a node has told that, how long others are waited for. One node's word is enough.
const GRACE: Duration = Duration::from_millis(500);
/// Between two times that the nodes are asked, while that changes something; up to the second while it does not.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// A task that asks and has not been heard of for so long is on a runtime that nobody drives.
const ABANDONED: Duration = Duration::from_secs(4);
/// How many nodes are asked at once.
const ASKED: usize = 8;
/// How often a command is sent on to another node.
const REDIRECTIONS: u8 = 5;
/// What is to be done where the node that has a slot is not named.
const ANNOUNCE: &str =
    "each node must announce a host, and a port without TLS for redis+cluster:// or with TLS for rediss+cluster://";
/// While the keys of a slot move, and how long that is waited for; the deadline of most callers is sooner.
const TRY_AGAIN_PAUSE: Duration = Duration::from_millis(5);
const TRY_AGAIN_FOR: Duration = Duration::from_secs(5);

pub(super) struct Cluster {
    seeds: Seeds,
    slots: RwLock<Slots>,
    /// Nodes that are asked as those with slots do not answer. Kept until somebody tells: to connect may take longer than a round.
    others: Mutex<Vec<Arc<Node>>>,
    asking: Mutex<Asking>,
    /// How often the nodes have been asked.
    rounds: watch::Sender<u64>,
}

/// The nodes that the URL names. The way to another is that to the first, but for the address.
struct Seeds {
    all: Vec<Client>,
    settings: Settings,
}

/// What is known of the slots.
enum Slots {
    Unknown,
    /// No node has told yet.
    Untold(StoreError),
    Told(Table),
}

struct Table {
    nodes: Vec<Arc<Node>>,
    by_slot: Vec<Option<Arc<Node>>>,
    /// Those that may take the place of a lost node.
    replicas: Vec<Address>,
}

/// A server of the cluster.
struct Node {
    address: Address,
    links: Links,
    /// It was named for a slot that it does not have yet.
    asked: AtomicBool,
}

/// The task that asks the nodes.
struct Asking {
    /// Which of them may say what it has learned, as one on an abandoned runtime may wake up later.
    task: u64,
    /// When the current one was last heard of.
    alive: Option<Instant>,
    last: Option<Instant>,
    pause: Duration,
}

/// Where a command goes.
struct Way {
    slot: u16,
    /// The node it is to be sent to for this once.
    to: Option<Arc<Node>>,
    redirections: u8,
}

/// What comes next for a command.
enum Next {
    Done(Result<Value, StoreError>),
    Again,
    AgainLater,
}

impl Cluster {
    pub(super) fn new(seeds: Vec<Client>, settings: Settings) -> Self {
        Self {
            seeds: Seeds { all: seeds, settings },
            slots: RwLock::new(Slots::Unknown),
            others: Mutex::default(),
            asking: Mutex::new(Asking { task: 0, alive: None, last: None, pause: PAUSE }),
            rounds: watch::Sender::new(0),
        }
    }

    /// Waits until the nodes have told who has which slots, and for a connection to each.
    pub(super) async fn connected(self: &Arc<Self>) -> Result<(), StoreError> {
        let mut rounds = self.rounds.subscribe();
        self.refresh()?;
        if !matches!(&*self.read_slots(), Slots::Told(_)) {
            let _ = rounds.changed().await;
        }
        let nodes = match &*self.read_slots() {
            Slots::Told(table) => table.nodes.clone(),
            Slots::Untold(error) => return Err(error.clone()),
            Slots::Unknown => return Err(untold()),
        };
        // One that is away is met as one that goes away later.
        let opening = first_limit(self.seeds.settings.deadline);
        join_all(nodes.iter().map(|node| timeout(opening, node.links.connected()))).await;
        Ok(())
    }

    /// Runs a command on the node that has its slot.
    pub(super) async fn run(self: &Arc<Self>, mut command: Command) -> (Command, Result<Value, StoreError>) {
        let begun = Instant::now();
        let slot = command.counter().map_or(0, |counter| slot_of(counter.as_bytes()));
        let mut way = Way { slot, to: None, redirections: 0 };
        loop {
            let asking = way.to.is_some();
            let node = match way.to.take() {
                Some(node) => node,
                None => match self.node(slot).await {
                    Ok(node) => node,
                    Err(error) => return (command, Err(error)),
                },
            };
            let (back, reply) = node.links.run(command, slot, asking).await;
            command = back;
            match self.next(&mut way, &node, reply) {
                Next::Done(reply) => return (command, reply),
                Next::AgainLater if begun.elapsed() > TRY_AGAIN_FOR => {
                    let error = format!("the keys of slot {slot} have been moving for too long");
                    return (command, Err(StoreError::unavailable(error)));
                }
                Next::AgainLater => sleep(TRY_AGAIN_PAUSE).await,
                Next::Again => {}
            }
        }
    }

    /// What a node's reply means for a command.
    fn next(self: &Arc<Self>, way: &mut Way, node: &Arc<Node>, reply: Result<Value, Failure>) -> Next {
        let reply = match reply {
            Ok(reply) => reply,
            Err(Failure::Unsent(error)) => return self.elsewhere(way, node, error.unsent()),
            Err(Failure::Unknown(error)) => {
                let _ = self.refresh();
                return Next::Done(Err(error.about(&node.address)));
            }
        };
        // None of those that are not answers has run.
        match heard(&reply, &node.address) {
            Heard::Answer => Next::Done(answer(reply)),
            Heard::TryAgain => {
                way.redirections = 0;
                Next::AgainLater
            }
            Heard::Moved(address) => {
                let _ = self.refresh();
                self.repoint(way.slot, address).map_or_else(|error| Next::Done(Err(error)), |()| redirect(way))
            }
            Heard::Ask(address) => match self.named(address) {
                Ok(node) => {
                    node.asked.store(true, Ordering::Relaxed);
                    way.to = Some(node);
                    redirect(way)
                }
                Err(error) => Next::Done(Err(error)),
            },
            Heard::Nameless => {
                let error = StoreError::unavailable(format!(
                    "another node has slot {}, but its address is not told: {ANNOUNCE}",
                    way.slot
                ));
                self.elsewhere(way, node, error.about(&node.address))
            }
            Heard::NotNow => {
                let error = match answer(reply) {
                    Err(error) => StoreError::unavailable(format!("{}: {error}", node.address)),
                    Ok(_) => untold(),
                };
                self.elsewhere(way, node, error)
            }
        }
    }

    /// A node did not run a command: if by now another has the slot, it goes there.
    fn elsewhere(self: &Arc<Self>, way: &mut Way, node: &Node, error: StoreError) -> Next {
        let _ = self.refresh();
        match self.look(way.slot) {
            Some(Ok(other)) if other.address != node.address => redirect(way),
            _ => Next::Done(Err(error)),
        }
    }

    /// The node that has a slot. Waits only where nothing is known of any.
    async fn node(self: &Arc<Self>, slot: u16) -> Result<Arc<Node>, StoreError> {
        let node = if let Some(node) = self.look(slot) {
            node
        } else {
            let mut rounds = self.rounds.subscribe();
            self.refresh()?;
            if self.look(slot).is_none() {
                let _ = rounds.changed().await;
            }
            self.look(slot).unwrap_or_else(|| Err(untold()))
        };
        if node.is_err() {
            let _ = self.refresh();
        }
        node
    }

    /// The node that has a slot; nothing if nothing is known of any.
    fn look(&self, slot: u16) -> Option<Result<Arc<Node>, StoreError>> {
        match &*self.read_slots() {
            Slots::Unknown => None,
            Slots::Untold(error) => Some(Err(error.clone())),
            Slots::Told(table) => Some(table.by_slot[usize::from(slot)].clone().ok_or_else(|| {
                StoreError::unavailable(format!(
                    "no node of the cluster has slot {slot}, or its address is not told: {ANNOUNCE}"
                ))
            })),
        }
    }

    /// A node told where a slot is now.
    fn repoint(&self, slot: u16, address: Address) -> Result<(), StoreError> {
        let mut slots = self.write_slots();
        let Slots::Told(table) = &mut *slots else { return Ok(()) };
        let node = table.named(address, &self.seeds)?;
        table.by_slot[usize::from(slot)] = Some(node);
        Ok(())
    }

    /// A node by its address.
    fn named(&self, address: Address) -> Result<Arc<Node>, StoreError> {
        match &mut *self.write_slots() {
            Slots::Told(table) => table.named(address, &self.seeds),
            _ => Err(untold()),
        }
    }

    /// Has the nodes asked who has which slots, in the background, until one of them tells.
    fn refresh(self: &Arc<Self>) -> Result<(), StoreError> {
        let runtime = Handle::try_current().map_err(|_| StoreError::no_runtime())?;
        let mut asking = self.lock_asking();
        if asking.alive.is_some_and(|alive| alive.elapsed() < ABANDONED) {
            return Ok(());
        }
        asking.task += 1;
        asking.alive = Some(Instant::now());
        let task = Task { number: asking.task, cluster: Arc::downgrade(self) };
        // A runtime that is shutting down drops the task at once, which takes the lock.
        drop(asking);
        runtime.spawn(task.ask());
        Ok(())
    }

    /// Before the nodes are asked again. Nothing if another task does that now.
    fn pause(&self, task: u64) -> Option<Duration> {
        let mut asking = self.lock_asking();
        let since = asking.last.map_or(Duration::MAX, |last| last.elapsed());
        if since > 2 * LONGEST_PAUSE {
            asking.pause = PAUSE;
        }
        asking.alive = Some(Instant::now());
        (asking.task == task).then(|| asking.pause.saturating_sub(since))
    }

    /// While the nodes are asked: shows that the task is alive, and tells callers if the nodes take
    /// longer than those should wait for it.
    async fn meanwhile(&self, task: u64) -> Infallible {
        let late = async {
            sleep(self.seeds.settings.deadline).await;
            let mut slots = self.write_slots();
            if matches!(*slots, Slots::Unknown) {
                *slots = Slots::Untold(untold());
            }
        };
        let alive = async {
            loop {
                sleep(ABANDONED / 4).await;
                let mut asking = self.lock_asking();
                if asking.task == task {
                    asking.alive = Some(Instant::now());
                }
            }
        };
        join(alive, late).await.0
    }

    /// Takes in what the nodes told. Returns whether they did.
    fn learn(&self, task: u64, told: Result<Layout, StoreError>) -> bool {
        let mut asking = self.lock_asking();
        if asking.task != task {
            return true;
        }
        let done = told.is_ok();
        let mut slots = self.write_slots();
        let changed = match told {
            Ok(layout) => slots.update(layout, &self.seeds, &mem::take(&mut *self.lock_others())),
            Err(error) => {
                if !matches!(*slots, Slots::Told(_)) {
                    *slots = Slots::Untold(error);
                }
                false
            }
        };
        drop(slots);
        asking.last = Some(Instant::now());
        asking.pause = if changed { PAUSE } else { (asking.pause * 2).min(LONGEST_PAUSE) };
        done
    }

    /// What most nodes say.
    async fn ask(&self, round: usize) -> Result<Layout, StoreError> {
        let deadline = self.seeds.settings.deadline;
        let longest = PATIENCE.max(deadline);
        let (known, replicas, opening, answering) = match &*self.read_slots() {
            Slots::Told(table) => {
                // Where one hangs, others are asked soon; where all are slow, longer each time.
                let doubled = PATIENCE.saturating_mul(1 << round.min(20)).min(longest);
                (table.nodes.clone(), table.replicas.clone(), doubled, doubled)
            }
            // To connect takes several round trips, where a call has one.
            _ => (Vec::new(), Vec::new(), first_limit(deadline), longest),
        };
        let replicas = some_of(replicas, round);
        let nodes = some_of(known.clone(), round);
        let patience = |told: &Votes<Layout>, _| (!told.is_empty()).then_some(GRACE);
        let (mut told, mut failed) = majority(nodes.iter().map(|node| node.layout(opening, answering)), patience).await;
        if told.is_empty() {
            let nodes = self.others(&known, replicas)?;
            let (others_told, others_failed) =
                majority(nodes.iter().map(|node| node.layout(opening, answering)), patience).await;
            told = others_told;
            failed.extend(others_failed);
        }
        if let Some((most, _)) = told.into_iter().next() {
            return Ok(most);
        }
        let reasons: Vec<_> = failed.iter().map(StoreError::reason).collect();
        let reason = format!("no node of the cluster tells which node has which slots: {}", reasons.join("; "));
        Err(if mostly_misconfigured(failed.iter()) {
            StoreError::misconfigured(reason)
        } else {
            StoreError::unavailable(reason)
        })
    }

    /// The nodes of the URL and replicas, but for those that are known anyway.
    fn others(&self, known: &[Arc<Node>], replicas: Vec<Address>) -> Result<Vec<Arc<Node>>, StoreError> {
        let mut others = self.lock_others();
        for address in self.seeds.all.iter().map(Address::of).chain(replicas) {
            if !known.iter().chain(&*others).any(|node| node.address == address) {
                others.push(self.seeds.node(address)?);
            }
        }
        Ok(others.clone())
    }

    /// Why callers are not let through to a node, if they are not to some.
    pub(super) fn outage(&self) -> Option<StoreError> {
        match &*self.read_slots() {
            Slots::Unknown => None,
            Slots::Untold(error) => Some(error.clone()),
            Slots::Told(table) => table.nodes.iter().find_map(|node| node.links.outage()),
        }
    }

    /// The node that has a slot, as far as that is known.
    fn links<T>(&self, slot: u16, of: impl FnOnce(&Links) -> T) -> Option<T> {
        match &*self.read_slots() {
            Slots::Told(table) => table.by_slot[usize::from(slot)].as_ref().map(|node| of(&node.links)),
            Slots::Unknown | Slots::Untold(_) => None,
        }
    }

    /// Whether callers are not let through to the node that has a slot.
    pub(super) fn is_away(&self, slot: u16) -> bool {
        self.links(slot, |links| links.outage().is_some()).unwrap_or(true)
    }

    /// A decision on a counter of this slot failed.
    pub(super) fn failed(&self, slot: u16) {
        self.links(slot, Links::failed);
    }

    /// The epoch of the node that has a slot; see [`Links::epoch`].
    pub(super) fn epoch(&self, slot: u16) -> Option<Epoch> {
        self.links(slot, Links::epoch).flatten()
    }

    fn read_slots(&self) -> RwLockReadGuard<'_, Slots> {
        self.slots.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_slots(&self) -> RwLockWriteGuard<'_, Slots> {
        self.slots.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_others(&self) -> MutexGuard<'_, Vec<Arc<Node>>> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_asking(&self) -> MutexGuard<'_, Asking> {
        self.asking.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As many as are asked at once. Others each time, should there be more.
fn some_of<T>(mut all: Vec<T>, round: usize) -> Vec<T> {
    if all.len() > ASKED {
        let at = round * ASKED % all.len();
        all.rotate_left(at);
        all.truncate(ASKED);
    }
    all
}

fn untold() -> StoreError {
    StoreError::unavailable("the nodes of the cluster have not told yet which of them has which slots")
}

fn redirect(way: &mut Way) -> Next {
    way.redirections += 1;
    if way.redirections <= REDIRECTIONS {
        return Next::Again;
    }
    Next::Done(Err(StoreError::unavailable(format!(
        "the nodes of the cluster do not agree on who has slot {}",
        way.slot
    ))))
}

impl Slots {
    /// Takes over who has which slots, and lets go of nodes that have none. Returns whether anything changed.
    /// Nodes of `others` are taken over with their connections.
    fn update(&mut self, layout: Layout, seeds: &Seeds, others: &[Arc<Node>]) -> bool {
        let Layout { ranges, replicas } = layout;
        let before = match self {
            Self::Told(table) => mem::take(&mut table.nodes),
            _ => Vec::new(),
        };
        let mut nodes: HashMap<&Address, Arc<Node>> = HashMap::new();
        let mut by_slot = vec![None; usize::from(SLOTS)];
        for Range { slots, primary } in &ranges {
            let Some(address) = primary else { continue };
            let mut known = before.iter().chain(others);
            let known = nodes.get(address).or_else(|| known.find(|node| node.address == *address)).cloned();
            let Ok(node) = known.map_or_else(|| seeds.node(address.clone()), Ok) else { continue };
            for slot in slots.clone() {
                by_slot[usize::from(slot)] = Some(Arc::clone(&node));
            }
            nodes.insert(address, node);
        }
        let mut nodes: Vec<_> = nodes.into_values().collect();
        // One that is about to take over a slot may have no other.
        let asked = before.into_iter().filter(|node| {
            node.asked.swap(false, Ordering::Relaxed) && !nodes.iter().any(|other| Arc::ptr_eq(other, node))
        });
        let asked: Vec<_> = asked.collect();
        nodes.extend(asked);
        let changed = match self {
            Self::Told(table) => {
                let same = |(one, other): (&Option<Arc<Node>>, &Option<Arc<Node>>)| match (one, other) {
                    (Some(one), Some(other)) => Arc::ptr_eq(one, other),
                    (one, other) => one.is_none() && other.is_none(),
                };
                !table.by_slot.iter().zip(&by_slot).all(same)
            }
            _ => true,
        };
        *self = Self::Told(Table { nodes, by_slot, replicas });
        changed
    }
}

impl Table {
    fn named(&mut self, address: Address, seeds: &Seeds) -> Result<Arc<Node>, StoreError> {
        if let Some(node) = self.nodes.iter().find(|node| node.address == address) {
            return Ok(Arc::clone(node));
        }
        let node = seeds.node(address)?;
        self.nodes.push(Arc::clone(&node));
        Ok(node)
    }
}

impl Seeds {
    /// The node at an address.
    fn node(&self, address: Address) -> Result<Arc<Node>, StoreError> {
        let like = self.all.first().ok_or_else(untold)?;
        let links = Links::new(Target::Server(address.client(like)?), self.settings);
        Ok(Arc::new(Node { address, links, asked: AtomicBool::new(false) }))
    }
}

impl Node {
    /// Who has which slots, as this node knows it. `opening`: how long the connection may take;
    /// `answering`: how long the answer.
    async fn layout(&self, opening: Duration, answering: Duration) -> Result<Layout, StoreError> {
        let late = |_| StoreError::unavailable(format!("no connection within {opening:?}")).about(&self.address);
        timeout(opening, self.links.connected()).await.map_err(late)??;
        let asked = timeout(answering, async {
            let mut question = redis::cmd("CLUSTER");
            question.arg("SLOTS");
            let mut connection = self.links.connection().await?;
            let reply = connection.ask([question].into_iter(), 1).await?.into_iter().next().unwrap_or_default();
            answer(reply)
        });
        let read = match asked.await {
            Ok(Ok(reply)) => read_layout(&reply, &self.address)
                .ok_or_else(|| StoreError::unavailable("its reply to CLUSTER SLOTS is not what that returns")),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(StoreError::unavailable(format!("no answer within {answering:?}"))),
        };
        match read {
            Ok(layout) if layout.ranges.is_empty() => {
                Err(StoreError::unavailable(format!("{}: it knows no slots, as it is in no cluster yet", self.address)))
            }
            read => read.map_err(|error| error.about(&self.address)),
        }
    }
}

/// A task that asks the nodes.
struct Task {
    number: u64,
    cluster: Weak<Cluster>,
}

impl Task {
    async fn ask(self) {
        let mut round = 0;
        while let Some(pause) = self.cluster.upgrade().and_then(|cluster| cluster.pause(self.number)) {
            sleep(pause).await;
            let Some(cluster) = self.cluster.upgrade() else { return };
            let told = tokio::select! {
                told = cluster.ask(round) => told,
                never = cluster.meanwhile(self.number) => match never {},
            };
            if let Err(error) = &told {
                tracing::debug!(%cluster, %error, "cannot read the cluster's slots");
            }
            if cluster.learn(self.number, told) {
                return;
            }
            cluster.rounds.send_modify(|round| *round += 1);
            round += 1;
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(cluster) = self.cluster.upgrade() {
            let mut asking = cluster.lock_asking();
            if asking.task == self.number {
                asking.alive = None;
            }
            drop(asking);
            cluster.rounds.send_modify(|round| *round += 1);
        }
    }
}

/// The addresses of the URL.
impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        addresses(&self.seeds.all).fmt(f)
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cluster({self})")
    }
}
