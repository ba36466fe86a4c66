//! One server, as the callers of all runtimes use it.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
};

use redis::{Cmd, Value};
use tokio::{
    runtime::{Handle, Id},
    sync::watch,
    task::coop::consume_budget,
};

use super::{
    batch::{BatchTicket, SendError},
    breaker::BreakerState,
    command::Command,
    connection::Connection,
    endpoint::{Endpoint, NodeOptions},
    pool::OpenConnection,
    reply::answer,
    runtime_node::{CommandResult, EndBypassOnDrop, RuntimeNode},
    source::ServerSource,
    supervisor::Supervisor,
};
use crate::{
    backend::QueryTag,
    counter::CounterId,
    failures::Epoch,
    store::{Charge, StoreError},
};

/// One server. Connections are opened when it is first used on a runtime.
#[derive(Debug)]
pub(super) struct Node {
    endpoint: Arc<Endpoint>,
    runtimes: Arc<Mutex<PerRuntime>>,
    /// The first runtime that called, which mostly is the only one: found without a lock.
    first: OnceLock<(Id, Arc<RuntimeNode>)>,
    /// Dropping it stops the supervisor tasks.
    in_use: watch::Sender<()>,
}

/// A process has few runtimes, mostly one.
type PerRuntime = Vec<(Id, Arc<RuntimeNode>)>;

impl Node {
    pub(super) fn new(source: ServerSource, options: NodeOptions, were_accepted: Arc<AtomicBool>) -> Self {
        Self {
            endpoint: Arc::new(Endpoint::new(source, options, were_accepted)),
            runtimes: Arc::default(),
            first: OnceLock::new(),
            in_use: watch::Sender::new(()),
        }
    }

    /// Runs a command. A decision goes alone if the node is idle, and else shares a round trip. With
    /// `asking` it also goes alone: a node that is importing the slot then accepts the command.
    pub(super) fn run(&self, command: Command, slot: u16, asking: bool) -> CommandFuture {
        let node = match self.here() {
            Ok(node) => node,
            Err(error) => return CommandFuture::alone(async move { (command, Err(SendError::NotSent(error))) }),
        };
        if asking || !node.is_batching || !command.is_batchable() {
            return CommandFuture::alone(node.send_alone(command, asking, None));
        }
        if let Some(error) = node.pool.refusal() {
            return CommandFuture::alone(async move {
                consume_budget().await; // see `Connection::from_pool`
                (command, Err(SendError::NotSent(error)))
            });
        }
        if node.queue.try_bypass() {
            let bypass = EndBypassOnDrop(Arc::clone(&node));
            return CommandFuture::alone(node.send_alone(command, false, Some(bypass)));
        }
        CommandFuture::Batched { node, command: Some(command), slot, ticket: None }
    }

    /// A ticket for a charge of one counter, in this slot of a cluster. `None` if it cannot share a round trip now.
    ///
    /// `charge` is built only if no waiting entry makes the same charge.
    #[inline(always)]
    #[allow(clippy::inline_always)] // or the ticket is copied from frame to frame
    pub(super) fn try_charge(
        &self,
        id: CounterId,
        slot: u16,
        is_same: impl Fn(&Charge) -> bool,
        charge: impl FnOnce() -> Charge,
        tag: impl FnOnce(u16) -> QueryTag,
        waker: &Waker,
    ) -> Option<BatchTicket> {
        let runtime = Handle::try_current().ok()?;
        let other;
        let node = if let Some(node) = self.first_on(runtime.id()) {
            node
        } else {
            other = self.on(&runtime);
            &other
        };
        if !node.is_batching || !node.pool.admits() {
            return None;
        }
        match node.queue.join(id, is_same, true, waker) {
            Ok(ticket) => Some(ticket),
            Err(true) => None,
            Err(false) => {
                let tag = Some(tag(slot));
                Some(node.add(charge().into(), true, slot, tag, waker))
            }
        }
    }

    /// Sends a command of no caller: its reply does not show that the server serves calls.
    pub(super) async fn ask(&self, command: Cmd) -> Result<Value, StoreError> {
        let node = self.here()?;
        let mut connection = Connection::from_pool(&node.pool).await?;
        let replies = connection.round_trip([command].into_iter(), 1).await?;
        answer(replies.into_iter().next().unwrap_or_default())
    }

    /// Waits until the server has answered or fallen silent, or an attempt to connect has failed,
    /// however long that takes.
    pub(super) async fn connected(&self) -> Result<(), StoreError> {
        let node = self.here()?;
        let has_tried = |state: &BreakerState<OpenConnection>| match state {
            BreakerState::Connecting => false,
            BreakerState::Open { attempts, silent, .. } => *attempts > 0 || !silent.is_empty(),
            BreakerState::Closed(_) | BreakerState::Ended => true,
        };
        let _ = node.pool.state.subscribe().wait_for(has_tried).await;
        Connection::from_pool(&node.pool).await.map(drop)
    }

    /// Waits until the breaker of this runtime is not open.
    pub(super) async fn returned(&self) {
        if let Ok(node) = self.here() {
            let _ = node.pool.state.subscribe().wait_for(|state| !state.is_open()).await;
        }
    }

    /// Why the breaker of this runtime is open. `None` if it is not.
    ///
    /// On a runtime that never called, or on none, it is an outage if all breakers are open. A
    /// runtime that stands still learns nothing new.
    pub(super) fn outage(&self) -> Option<StoreError> {
        if self.endpoint.open_breakers.load(Ordering::Acquire) == 0 {
            return None;
        }
        let nodes = lock(&self.runtimes);
        match Handle::try_current().ok().and_then(|runtime| nodes.iter().find(|(id, _)| *id == runtime.id())) {
            Some((_, node)) => node.pool.outage(),
            None => nodes.iter().map(|(_, node)| node.pool.outage()).collect::<Option<Vec<_>>>()?.pop(),
        }
    }

    /// Records that a decision of the node failed.
    pub(super) fn failed(&self) {
        self.endpoint.failures.failed();
    }

    /// Epoch of the node's failures. `None` during an outage, and within a second of a failure.
    pub(super) fn epoch(&self) -> Option<Epoch> {
        if self.outage().is_some() { None } else { self.endpoint.failures.epoch() }
    }

    /// The node on the current runtime.
    fn here(&self) -> Result<Arc<RuntimeNode>, StoreError> {
        let runtime = Handle::try_current().map_err(|_| StoreError::no_runtime())?;
        Ok(self.first_on(runtime.id()).cloned().unwrap_or_else(|| self.on(&runtime)))
    }

    /// The node on the first runtime that called, if that is this one and its pool has not ended.
    fn first_on(&self, runtime: Id) -> Option<&Arc<RuntimeNode>> {
        let (id, node) = self.first.get()?;
        (*id == runtime && (node.pool.admits() || !node.pool.has_ended())).then_some(node)
    }

    /// The node on a runtime, added if it is missing.
    fn on(&self, runtime: &Handle) -> Arc<RuntimeNode> {
        let mut nodes = lock(&self.runtimes);
        if let Some((_, node)) = nodes.iter().find(|(id, _)| *id == runtime.id()) {
            return Arc::clone(node);
        }
        let node = Arc::new(RuntimeNode::new(&self.endpoint, runtime.id()));
        let task = SupervisorTask {
            _registration: RemoveOnDrop { runtime: runtime.id(), runtimes: Arc::downgrade(&self.runtimes) },
            supervisor: Supervisor::new(Arc::clone(&node.pool)),
        };
        nodes.push((runtime.id(), Arc::clone(&node)));
        // A runtime that is shutting down drops the task at once, and its registration takes the
        // lock.
        drop(nodes);
        runtime.spawn(task.run(self.in_use.subscribe()));
        let _ = self.first.set((runtime.id(), Arc::clone(&node)));
        node
    }
}

fn lock(runtimes: &Mutex<PerRuntime>) -> MutexGuard<'_, PerRuntime> {
    runtimes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A command on its way.
#[allow(clippy::large_enum_variant)] // it lies in the future of its caller, which is large enough anyway
pub(super) enum CommandFuture {
    /// It is enqueued at the first poll.
    Batched {
        node: Arc<RuntimeNode>,
        command: Option<Command>,
        slot: u16,
        ticket: Option<BatchTicket>,
    },
    Alone(Pin<Box<dyn Future<Output = CommandResult> + Send>>),
}

impl CommandFuture {
    fn alone(future: impl Future<Output = CommandResult> + Send + 'static) -> Self {
        Self::Alone(Box::pin(future))
    }
}

impl Future for CommandFuture {
    type Output = CommandResult;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<CommandResult> {
        match &mut *self {
            Self::Alone(future) => future.as_mut().poll(context),
            Self::Batched { node, command, slot, ticket } => {
                if let (None, Some(Command::Decide { charges, consume })) = (&ticket, &command) {
                    *ticket = Some(node.enqueue(charges, *consume, *slot, context.waker()));
                    return Poll::Pending;
                }
                let (Some(ticket), Some(_)) = (ticket, &command) else { panic!("a command polled after it was done") };
                Pin::new(ticket).poll(context).map(|result| {
                    let command = command.take().expect("it was there");
                    let late = || Err(SendError::Indeterminate(StoreError::late(node.deadline)));
                    (command, result.unwrap_or_else(late))
                })
            }
        }
    }
}

/// The supervisor of a runtime. It is dropped with the task, when the runtime or the limiter ends.
struct SupervisorTask {
    // Dropped first: no caller is to find a pool that has ended.
    _registration: RemoveOnDrop,
    supervisor: Supervisor,
}

impl SupervisorTask {
    async fn run(self, in_use: watch::Receiver<()>) {
        Box::pin(self.supervisor.run(in_use)).await; // it is large
    }
}

/// A runtime's entry in the list. Dropping it removes the entry.
struct RemoveOnDrop {
    runtime: Id,
    runtimes: Weak<Mutex<PerRuntime>>,
}

impl Drop for RemoveOnDrop {
    fn drop(&mut self) {
        if let Some(runtimes) = self.runtimes.upgrade() {
            lock(&runtimes).retain(|(id, _)| *id != self.runtime);
        }
    }
}
