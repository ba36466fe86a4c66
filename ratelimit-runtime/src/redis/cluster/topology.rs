//! The slot table of a cluster, and the background task that refreshes it.

use std::{
    convert::Infallible,
    fmt, mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak},
    time::{Duration, Instant},
};

use futures_util::future::{join, join_all};
use redis::Client;
use tokio::{
    runtime::Handle,
    sync::watch,
    time::{sleep, timeout},
};

use super::table::{ANNOUNCE, ClusterNode, ClusterSeeds, SlotTableState, topology_unknown};
use crate::{
    redis::{
        address::{ServerAddress, addresses},
        backoff::first_limit,
        endpoint::NodeOptions,
        quorum::{Votes, are_mostly_misconfigured, quorum},
        slots::SlotMap,
    },
    store::StoreError,
};

/// Time limit of a node's reply with its slot map. It doubles up to the deadline if no node answers; for
/// the first map it is the deadline if that is longer.
const PATIENCE: Duration = Duration::from_millis(500);
/// Time for the other nodes once one has sent its slot map. One is enough.
const GRACE: Duration = Duration::from_millis(500);
/// Pause between two rounds while they change something. It grows to the second value.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// A refresh task without a sign of life for this long is on a runtime that stands still.
const ABANDONED: Duration = Duration::from_secs(4);
/// Maximum number of nodes asked at once.
const MAX_ASKED: usize = 8;

/// The slot table and its refresh.
pub(super) struct ClusterTopology {
    seeds: ClusterSeeds,
    state: RwLock<SlotTableState>,
    /// Nodes that are asked if those with slots do not answer. Kept until a node answers, as
    /// connecting may take longer than a round.
    candidates: Mutex<Vec<Arc<ClusterNode>>>,
    refresh: Mutex<RefreshState>,
    /// Number of rounds in which the nodes were asked.
    rounds: watch::Sender<u64>,
}

/// State of the refresh task.
struct RefreshState {
    /// Number of the task whose findings count. An earlier one on an abandoned runtime may go on.
    task: u64,
    /// Last sign of life of that task. `None` if it has ended.
    alive: Option<Instant>,
    last: Option<Instant>,
    pause: Duration,
}

impl ClusterTopology {
    pub(super) fn new(clients: Vec<Client>, options: NodeOptions) -> Self {
        Self {
            seeds: ClusterSeeds { clients, options, were_accepted: Arc::default() },
            state: RwLock::new(SlotTableState::Unknown),
            candidates: Mutex::default(),
            refresh: Mutex::new(RefreshState { task: 0, alive: None, last: None, pause: PAUSE }),
            rounds: watch::Sender::new(0),
        }
    }

    /// Waits until the topology is known, and for a connection to each node.
    pub(super) async fn connected(self: &Arc<Self>) -> Result<(), StoreError> {
        let mut rounds = self.rounds.subscribe();
        self.refresh()?;
        if !matches!(&*self.read(), SlotTableState::Known(_)) {
            let _ = rounds.changed().await;
        }
        let nodes = match &*self.read() {
            SlotTableState::Known(table) => table.nodes.clone(),
            SlotTableState::Failed(error) => return Err(error.clone()),
            SlotTableState::Unknown => return Err(topology_unknown()),
        };
        // A node without connection is no error here: its breaker handles it.
        let limit = first_limit(self.seeds.options.deadline);
        join_all(nodes.iter().map(|node| timeout(limit, node.server.connected()))).await;
        Ok(())
    }

    /// The node of a slot. Waits for a round only if nothing is known yet.
    pub(super) async fn node_of(self: &Arc<Self>, slot: u16) -> Result<Arc<ClusterNode>, StoreError> {
        let node = if let Some(node) = self.known_node_of(slot) {
            node
        } else {
            let mut rounds = self.rounds.subscribe();
            self.refresh()?;
            if self.known_node_of(slot).is_none() {
                let _ = rounds.changed().await;
            }
            self.known_node_of(slot).unwrap_or_else(|| Err(topology_unknown()))
        };
        if node.is_err() {
            let _ = self.refresh();
        }
        node
    }

    /// The node of a slot. `None` if nothing is known yet.
    pub(super) fn known_node_of(&self, slot: u16) -> Option<Result<Arc<ClusterNode>, StoreError>> {
        match &*self.read() {
            SlotTableState::Unknown => None,
            SlotTableState::Failed(error) => Some(Err(error.clone())),
            SlotTableState::Known(table) => Some(table.node_of(slot).cloned().ok_or_else(|| {
                StoreError::unavailable(format!(
                    "slot {slot} of the cluster has no node, or one without a known address: {ANNOUNCE}"
                ))
            })),
        }
    }

    /// Maps the node of a slot, if it is known.
    pub(super) fn map_node_of<T>(&self, slot: u16, map: impl FnOnce(&ClusterNode) -> T) -> Option<T> {
        match &*self.read() {
            SlotTableState::Known(table) => table.node_of(slot).map(|node| map(node)),
            SlotTableState::Unknown | SlotTableState::Failed(_) => None,
        }
    }

    /// Assigns a slot to the node that a MOVED redirection named.
    pub(super) fn assign(&self, slot: u16, address: ServerAddress) -> Result<(), StoreError> {
        match &mut *self.write() {
            SlotTableState::Known(table) => table.assign(slot, address, &self.seeds),
            _ => Ok(()),
        }
    }

    /// The node at an address.
    pub(super) fn node_at(&self, address: ServerAddress) -> Result<Arc<ClusterNode>, StoreError> {
        match &mut *self.write() {
            SlotTableState::Known(table) => table.node_at(address, &self.seeds),
            _ => Err(topology_unknown()),
        }
    }

    /// Why a node is unavailable. `None` if all are available.
    pub(super) fn outage(&self) -> Option<StoreError> {
        match &*self.read() {
            SlotTableState::Unknown => None,
            SlotTableState::Failed(error) => Some(error.clone()),
            SlotTableState::Known(table) => table.nodes.iter().find_map(|node| node.server.outage()),
        }
    }

    /// Starts the refresh task, unless one is running.
    pub(super) fn refresh(self: &Arc<Self>) -> Result<(), StoreError> {
        let runtime = Handle::try_current().map_err(|_| StoreError::no_runtime())?;
        let mut refresh = self.lock_refresh();
        if refresh.alive.is_some_and(|alive| alive.elapsed() < ABANDONED) {
            return Ok(());
        }
        refresh.task += 1;
        refresh.alive = Some(Instant::now());
        let task = RefreshTask { number: refresh.task, topology: Arc::downgrade(self) };
        // A runtime that is shutting down drops the task at once, which takes the lock.
        drop(refresh);
        runtime.spawn(task.run());
        Ok(())
    }

    /// Pause before the next round. `None` if another task has taken over.
    fn pause(&self, task: u64) -> Option<Duration> {
        let mut refresh = self.lock_refresh();
        if refresh.task != task {
            return None;
        }
        let since = refresh.last.map_or(Duration::MAX, |last| last.elapsed());
        if since > 2 * LONGEST_PAUSE {
            refresh.pause = PAUSE;
        }
        refresh.alive = Some(Instant::now());
        Some(refresh.pause.saturating_sub(since))
    }

    /// Runs beside a round: gives signs of life, and lets waiting callers fail after the deadline.
    async fn keep_alive(&self, task: u64) -> Infallible {
        let fail_callers = async {
            sleep(self.seeds.options.deadline).await;
            let mut state = self.write();
            if matches!(*state, SlotTableState::Unknown) {
                *state = SlotTableState::Failed(topology_unknown());
            }
        };
        let signs_of_life = async {
            loop {
                sleep(ABANDONED / 4).await;
                let mut refresh = self.lock_refresh();
                if refresh.task == task {
                    refresh.alive = Some(Instant::now());
                }
            }
        };
        join(signs_of_life, fail_callers).await.0
    }

    /// Records the result of a round. Returns true if the task is done.
    fn record(&self, task: u64, found: Result<SlotMap, StoreError>) -> bool {
        let mut refresh = self.lock_refresh();
        if refresh.task != task {
            return true;
        }
        let is_done = found.is_ok();
        let mut state = self.write();
        let is_changed = match found {
            Ok(map) => state.update(map, &self.seeds, &mem::take(&mut *self.lock_candidates())),
            Err(error) => {
                if !matches!(*state, SlotTableState::Known(_)) {
                    *state = SlotTableState::Failed(error);
                }
                false
            }
        };
        drop(state);
        refresh.last = Some(Instant::now());
        refresh.pause = if is_changed { PAUSE } else { (refresh.pause * 2).min(LONGEST_PAUSE) };
        is_done
    }

    /// Asks the nodes for their slot map. Returns the one that most of them send.
    async fn ask(&self, round: usize) -> Result<SlotMap, StoreError> {
        let deadline = self.seeds.options.deadline;
        let longest = PATIENCE.max(deadline);
        let (known, replicas, connecting, answering) = match &*self.read() {
            SlotTableState::Known(table) => {
                // If one node hangs, others are asked soon; if all are slow, each round is longer.
                let doubled = PATIENCE.saturating_mul(1 << round.min(20)).min(longest);
                (table.nodes.clone(), table.replicas.clone(), doubled, doubled)
            }
            // Connecting takes several network round trips, a command one.
            _ => (Vec::new(), Vec::new(), first_limit(deadline), longest),
        };
        let replicas = some_of(replicas, round);
        let nodes = some_of(known.clone(), round);
        let patience = |found: &Votes<SlotMap>, _| (!found.is_empty()).then_some(GRACE);
        let maps = nodes.iter().map(|node| node.slot_map(connecting, answering));
        let (mut found, mut failed) = quorum(maps, patience).await;
        if found.is_empty() {
            let candidates = self.candidates(&known, replicas)?;
            let maps = candidates.iter().map(|node| node.slot_map(connecting, answering));
            let (candidates_found, candidates_failed) = quorum(maps, patience).await;
            found = candidates_found;
            failed.extend(candidates_failed);
        }
        if let Some((map, _)) = found.into_iter().next() {
            return Ok(map);
        }
        let reasons: Vec<_> = failed.iter().map(StoreError::reason).collect();
        let reason = format!("no node of the cluster sends its slot map: {}", reasons.join("; "));
        Err(if are_mostly_misconfigured(failed.iter()) {
            StoreError::misconfigured(reason)
        } else {
            StoreError::unavailable(reason)
        })
    }

    /// The seeds and replicas that are not among the known nodes.
    fn candidates(
        &self,
        known: &[Arc<ClusterNode>],
        replicas: Vec<ServerAddress>,
    ) -> Result<Vec<Arc<ClusterNode>>, StoreError> {
        let mut candidates = self.lock_candidates();
        for address in self.seeds.clients.iter().map(ServerAddress::of).chain(replicas) {
            if !known.iter().chain(&*candidates).any(|node| node.address == address) {
                candidates.push(self.seeds.node(address)?);
            }
        }
        Ok(candidates.clone())
    }

    fn read(&self) -> RwLockReadGuard<'_, SlotTableState> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, SlotTableState> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_candidates(&self) -> MutexGuard<'_, Vec<Arc<ClusterNode>>> {
        self.candidates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_refresh(&self) -> MutexGuard<'_, RefreshState> {
        self.refresh.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Up to [`MAX_ASKED`] of them; others each round, if there are more.
fn some_of<T>(mut all: Vec<T>, round: usize) -> Vec<T> {
    if all.len() > MAX_ASKED {
        let at = round * MAX_ASKED % all.len();
        all.rotate_left(at);
        all.truncate(MAX_ASKED);
    }
    all
}

/// The task that asks the nodes, in rounds, until one answers. Dropping it lets another one start.
struct RefreshTask {
    number: u64,
    topology: Weak<ClusterTopology>,
}

impl RefreshTask {
    async fn run(self) {
        let mut round = 0;
        while let Some(pause) = self.topology.upgrade().and_then(|topology| topology.pause(self.number)) {
            sleep(pause).await;
            let Some(topology) = self.topology.upgrade() else { return };
            let found = tokio::select! {
                found = topology.ask(round) => found,
                never = topology.keep_alive(self.number) => match never {},
            };
            if let Err(error) = &found {
                tracing::debug!(cluster = %topology, %error, "cannot read the cluster's slots");
            }
            if topology.record(self.number, found) {
                return;
            }
            topology.rounds.send_modify(|round| *round += 1);
            round += 1;
        }
    }
}

impl Drop for RefreshTask {
    fn drop(&mut self) {
        if let Some(topology) = self.topology.upgrade() {
            let mut refresh = topology.lock_refresh();
            if refresh.task == self.number {
                refresh.alive = None;
            }
            drop(refresh);
            topology.rounds.send_modify(|round| *round += 1);
        }
    }
}

/// Addresses of the seeds.
impl fmt::Display for ClusterTopology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        addresses(&self.seeds.clients).fmt(f)
    }
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use super::*;

    #[test]
    fn a_task_that_another_has_replaced_gives_no_sign_of_life() {
        let options = NodeOptions { deadline: PATIENCE, connections: 1, is_batching: true };
        let topology = ClusterTopology::new(vec![Client::open("redis://127.0.0.1:1").unwrap()], options);
        topology.lock_refresh().task = 2;
        assert_eq!(topology.pause(1), None);
        assert!(topology.lock_refresh().alive.is_none());
        assert!(topology.pause(2).is_some());
        assert!(topology.lock_refresh().alive.is_some());
    }
}
