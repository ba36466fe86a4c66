//! The connections to one node, on each runtime, and the task that keeps them open.
//!
//! A connection dies with the tokio runtime that opened it, so each runtime has its own. A task on that runtime
//! opens it and opens it again when it is gone, so no caller spends its time on that; callers
//! wait for the first attempt that is under way, and after that are told at once: see [`super::breaker`].

use std::{
    fmt,
    future::{Future, pending, poll_fn},
    iter, mem,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use redis::{
    AsyncConnectionConfig, Client, Cmd, Pipeline, PushInfo, PushKind, RedisError, ServerErrorKind, Value,
    aio::MultiplexedConnection,
};
use tokio::{
    runtime::{Handle, Id},
    sync::{Notify, watch},
    task::{coop::consume_budget, yield_now},
    time::{Instant, sleep, timeout},
};

use super::{
    attempt::{Backoff, LONGEST_PAUSE, Loss, TimeLimit, first_limit, with_jitter},
    breaker::{SILENT_CALLS, Silence, State},
    coalescing::{self, Entry, Failure, Queue, Share},
    command::{self, Command, Packet},
    reply::explain,
    target::{Address, Target},
};
use crate::{
    backend::QueryTag,
    background,
    counter::CounterId,
    failures::{Epoch, Failures},
    observe,
    store::{Charge, Charges, StoreError},
};

const NO_KEEPER: &str =
    "nobody keeps its connection open: its tokio runtime is shutting down, or was built without enable_all";
/// How long silent connections are waited for before another one is opened, less up to half of it:
/// long enough for a short stall, and the clients of a server that stalls for longer do not all
/// come at once.
const PATIENCE: Duration = Duration::from_secs(4);
/// A server that has answered nothing for so long is probed.
const IDLE: Duration = Duration::from_secs(5);
/// How long the server may take to tell its settings, which only the log needs.
const INSPECTION: Duration = Duration::from_millis(500);

/// The connections to one node.
#[derive(Debug)]
pub(super) struct Links {
    node: Arc<Node>,
    by_runtime: Arc<Mutex<ByRuntime>>,
    /// Those of the first runtime that called, which mostly is the only one: found without a lock.
    first: OnceLock<(Id, Arc<Link>)>,
    /// Its end tells the tasks that nobody asks any more.
    in_use: watch::Sender<()>,
}

/// How nodes are talked to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// The limiter's. A server that needs longer to answer is as good as away.
    pub(crate) deadline: Duration,
    /// How many connections a runtime has.
    pub(crate) connections: usize,
    /// Whether decisions of several callers travel together.
    pub(crate) coalescing: bool,
}

/// A process has few runtimes, mostly one.
type ByRuntime = Vec<(Id, Arc<Link>)>;

#[derive(Debug)]
struct Node {
    target: Target,
    settings: Settings,
    /// Whether the log was told what is to be said of its settings.
    inspected: AtomicBool,
    /// How it stands with its user and password.
    access: Access,
    /// On how many runtimes it is away: all that is looked at while it is on none.
    away: AtomicUsize,
    failures: Failures,
}

/// The connections of one runtime.
#[derive(Debug)]
pub(super) struct Link {
    node: Arc<Node>,
    /// It is the runtime for background work.
    is_background: bool,
    state: watch::Sender<State<Open>>,
    /// Whether callers are let through, or wait to be: all that a decision looks at then.
    admits: AtomicBool,
    queue: Queue,
    silence: Silence,
    /// A call was answered since the last attempt to open a connection.
    served: AtomicBool,
    /// When the server last answered a probe, too late as that was.
    heard: AtomicU64,
    /// A caller went too early to say anything about the server.
    doubted: Notify,
    next: AtomicUsize,
    /// From here on times are measured.
    began: Instant,
}

/// An open connection. It is told from others by its silence. A connection that is dead without an error, behind a proxy
/// say, is only told from a slow one by that too.
#[derive(Clone)]
struct Open {
    redis: MultiplexedConnection,
    silence: Arc<Silence>,
    opened: u64,
}

/// An open connection, for one caller.
#[derive(Debug)]
pub(super) struct Connection {
    open: Open,
    link: Arc<Link>,
}

impl Connection {
    /// Sends a call's commands in one go, each once, and answers in their order. An error a server
    /// replied with is an answer.
    ///
    /// After an error nobody knows whether they were executed. `callers`: how many wait for that.
    pub(super) async fn send(
        &mut self,
        commands: impl ExactSizeIterator<Item = Cmd>,
        callers: usize,
    ) -> Result<Vec<Value>, StoreError> {
        let replies = self.ask(commands, callers).await?;
        if !self.link.served.load(Ordering::Relaxed) {
            self.link.served.store(true, Ordering::Relaxed);
        }
        Ok(replies)
    }

    /// The same for commands of no call: an answer says that the server is there, and not that it
    /// serves calls.
    pub(super) async fn ask(
        &mut self,
        mut commands: impl ExactSizeIterator<Item = Cmd>,
        callers: usize,
    ) -> Result<Vec<Value>, StoreError> {
        let Self { open: Open { redis, silence, opened }, link } = self;
        let mut sent = Sent { link, silence, at: link.now(), callers, returned: false };
        let count = commands.len();
        let replies = if count == 1
            && let Some(command) = commands.next()
        {
            sent.until_left(pin!(redis.send_packed_command(&command))).await.map(|reply| vec![reply])
        } else {
            let mut pipeline = Pipeline::with_capacity(count);
            for command in commands {
                pipeline.add_command(command);
            }
            sent.until_left(pin!(redis.send_packed_commands(&pipeline, 0, count))).await
        };
        sent.returned = true;
        if let Ok(replies) = &replies
            && let Some(error) = replies.iter().find_map(no_auth)
        {
            // Nothing has run. The next connection tells whether the credentials are taken.
            link.lost(silence);
            return Err(link.node.refused(error));
        }
        match &replies {
            Err(error) if is_fatal(error) => link.lost(silence),
            // Somebody else is the primary now, maybe at the same name. If not, that is found out no more often than this.
            Ok(replies) if replies.iter().any(is_readonly) && link.since(*opened) > LONGEST_PAUSE => {
                link.lost(silence);
            }
            _ => {
                link.silence.answered(sent.at);
                silence.answered(sent.at);
            }
        }
        replies.map_err(|error| explain(&error))
    }
}

fn is_fatal(error: &RedisError) -> bool {
    error.is_io_error() || error.is_unrecoverable_error()
}

/// The error of a server that wants a password first.
fn no_auth(reply: &Value) -> Option<StoreError> {
    if !matches!(reply, Value::ServerError(_)) {
        return None;
    }
    let error = reply.clone().extract_error().err()?;
    (error.code() == Some("NOAUTH")).then(|| explain(&error))
}

fn is_readonly(reply: &Value) -> bool {
    let error = match reply {
        Value::ServerError(error) => error,
        Value::Array(replies) => return replies.iter().any(is_readonly), // of decisions that were sent together
        _ => return false,
    };
    // Servers before 7.0 wrap what a command of a script said.
    error.kind() == Some(ServerErrorKind::ReadOnly)
        || error.details().is_some_and(|detail| detail.contains("-READONLY"))
}

/// A call that has been sent. Dropped before it returned, it may count as unanswered.
struct Sent<'a> {
    link: &'a Link,
    silence: &'a Arc<Silence>,
    at: u64,
    callers: usize,
    returned: bool,
}

impl Sent<'_> {
    /// Awaits the reply. Polled in the background, its caller has left: that counts as a drop does.
    async fn until_left<T>(&mut self, mut reply: Pin<&mut impl Future<Output = T>>) -> T {
        poll_fn(|context| {
            let reply = reply.as_mut().poll(context);
            if reply.is_pending() && self.link.is_left() {
                self.left();
            }
            reply
        })
        .await
    }

    fn left(&mut self) {
        // A caller who gives up before the deadline says nothing about the server, which is asked then. The deadline began
        // a moment before the call was sent, hence the tenth.
        let Self { link, silence, at, callers, .. } = *self;
        if mem::replace(&mut self.returned, true) {
            return;
        }
        let patience = link.node.settings.deadline.saturating_sub(link.node.settings.deadline / 10);
        if link.since(at) < patience {
            if !silence.answered_since(at) {
                link.doubted.notify_one();
            }
            return;
        }
        let connection_is_silent = silence.unanswered(at, callers);
        if link.silence.unanswered(at, callers) {
            link.silent();
        } else if connection_is_silent {
            link.lost(silence);
        }
    }
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        self.left();
    }
}

/// A command on its way.
#[allow(clippy::large_enum_variant)] // it lies in the future of its caller, which is large enough anyway
pub(super) enum Running {
    Together { link: Arc<Link>, command: Option<Command>, slot: u16, share: Option<Share> },
    Alone(Pin<Box<dyn Future<Output = Told> + Send>>),
}

/// A command comes back with what came of it.
pub(super) type Told = (Command, Result<Value, Failure>);

impl Running {
    fn alone(told: impl Future<Output = Told> + Send + 'static) -> Self {
        Self::Alone(Box::pin(told))
    }
}

impl Future for Running {
    type Output = Told;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Told> {
        match &mut *self {
            Self::Alone(told) => told.as_mut().poll(context),
            Self::Together { link, command, slot, share } => {
                if let (None, Some(Command::Decide { charges, consume })) = (&share, &command) {
                    *share = Some(link.join(charges, *consume, *slot, context.waker()));
                    return Poll::Pending;
                }
                let (Some(share), Some(_)) = (share, &command) else { panic!("a command polled after it was done") };
                Pin::new(share).poll(context).map(|told| {
                    let command = command.take().expect("it was there");
                    let late = || Err(Failure::Unknown(StoreError::late(link.node.settings.deadline)));
                    (command, told.unwrap_or_else(late))
                })
            }
        }
    }
}

impl Links {
    /// Connections to one node, opened when they are first asked for.
    pub(super) fn new(target: Target, settings: Settings) -> Self {
        Self {
            node: Arc::new(Node {
                target,
                settings,
                inspected: AtomicBool::new(false),
                access: Access::default(),
                away: AtomicUsize::new(0),
                failures: Failures::default(),
            }),
            by_runtime: Arc::default(),
            first: OnceLock::new(),
            in_use: watch::Sender::new(()),
        }
    }

    /// Runs a command. A decision goes together with those of other callers, unless it is `asking`: then a node runs it that
    /// is about to take over its slot.
    pub(super) fn run(&self, command: Command, slot: u16, asking: bool) -> Running {
        let link = match self.link() {
            Ok(link) => link,
            Err(error) => return Running::alone(async move { (command, Err(Failure::Unsent(error))) }),
        };
        if asking || !link.node.settings.coalescing || !command.may_travel() {
            return Running::alone(link.send_alone(command, asking));
        }
        if let Some(error) = link.refusal() {
            return Running::alone(async move {
                consume_budget().await; // see `Link::connection`
                (command, Err(Failure::Unsent(error)))
            });
        }
        if link.queue.alone() {
            let alone = Alone(Arc::clone(&link));
            return Running::alone(async move {
                let _alone = alone;
                link.send_alone(command, false).await
            });
        }
        Running::Together { link, command: Some(command), slot, share: None }
    }

    /// A share in a decision on one counter, where such travel together now. `charge`: what is to be charged, where it is not known yet.
    #[inline(always)]
    #[allow(clippy::inline_always)] // or a share is copied from one to the next
    pub(super) fn share(
        &self,
        name: CounterId,
        is_same: impl Fn(&Charge) -> bool,
        charge: impl FnOnce() -> (Charge, QueryTag),
        waker: &Waker,
    ) -> Option<Share> {
        let runtime = Handle::try_current().ok()?;
        let other;
        let link = if let Some(link) = self.first_link(runtime.id()) {
            link
        } else {
            other = self.link_on(&runtime);
            &other
        };
        if !link.node.settings.coalescing || !link.admits.load(Ordering::Acquire) {
            return None;
        }
        match link.queue.join(name, is_same, true, waker) {
            Ok(share) => Some(share),
            Err(true) => None,
            Err(false) => {
                let (charge, asked) = charge();
                Some(link.add(charge.into(), true, 0, Some(asked), waker))
            }
        }
    }

    /// A connection of the runtime we are on. Waits for one that is being opened, unless the breaker is open.
    ///
    /// With an error, nothing was sent.
    pub(super) async fn connection(&self) -> Result<Connection, StoreError> {
        self.link()?.connection().await
    }

    /// Waits until the node has answered, or has fallen silent, or a whole attempt to reach it has
    /// failed, however long that takes.
    pub(super) async fn connected(&self) -> Result<(), StoreError> {
        let link = self.link()?;
        let tried = |state: &State<Open>| match state {
            State::Opening => false,
            State::Away { attempts, silent, .. } => *attempts > 0 || !silent.is_empty(),
            State::Up(_) | State::Ended => true,
        };
        let _ = link.state.subscribe().wait_for(tried).await;
        self.connection().await.map(drop)
    }

    /// Why callers are not let through to the node, if they are not: those of the runtime we are on. Who is on none, or on
    /// one that never called, hears of it if it holds for all of them. A runtime that nobody drives any more knows nothing new.
    pub(super) fn outage(&self) -> Option<StoreError> {
        if self.node.away.load(Ordering::Acquire) == 0 {
            return None;
        }
        let links = lock(&self.by_runtime);
        match Handle::try_current().ok().and_then(|runtime| links.iter().find(|(id, _)| *id == runtime.id())) {
            Some((_, link)) => link.outage(),
            None => links.iter().map(|(_, link)| link.outage()).collect::<Option<Vec<_>>>()?.pop(),
        }
    }

    /// A decision of the node failed.
    pub(super) fn failed(&self) {
        self.node.failures.failed();
    }

    /// The epoch of the node's failures. `None` during an outage, and within a second of a failure.
    pub(super) fn epoch(&self) -> Option<Epoch> {
        if self.outage().is_some() { None } else { self.node.failures.epoch() }
    }

    fn link(&self) -> Result<Arc<Link>, StoreError> {
        let runtime = Handle::try_current().map_err(|_| StoreError::no_runtime())?;
        Ok(self.first_link(runtime.id()).cloned().unwrap_or_else(|| self.link_on(&runtime)))
    }

    /// Those of the first runtime that called, if it is this one and they are kept open.
    fn first_link(&self, runtime: Id) -> Option<&Arc<Link>> {
        let (id, link) = self.first.get()?;
        (*id == runtime && (link.admits.load(Ordering::Acquire) || !link.has_ended())).then_some(link)
    }

    fn link_on(&self, runtime: &Handle) -> Arc<Link> {
        let mut links = lock(&self.by_runtime);
        if let Some((_, link)) = links.iter().find(|(id, _)| *id == runtime.id()) {
            return Arc::clone(link);
        }
        let link = Arc::new(Link {
            node: Arc::clone(&self.node),
            is_background: background::is_here(),
            state: watch::Sender::new(State::Opening),
            admits: AtomicBool::new(true),
            queue: Queue::on(runtime.id()),
            silence: Silence::default(),
            served: AtomicBool::new(false),
            heard: AtomicU64::new(0),
            doubted: Notify::new(),
            next: AtomicUsize::new(0),
            began: Instant::now(),
        });
        let keeper =
            Keeper { link: Arc::clone(&link), runtime: runtime.id(), by_runtime: Arc::downgrade(&self.by_runtime) };
        links.push((runtime.id(), Arc::clone(&link)));
        // A runtime that is shutting down drops the task at once, and with it the keeper, which takes the lock.
        drop(links);
        runtime.spawn(keeper.keep(self.in_use.subscribe()));
        let _ = self.first.set((runtime.id(), Arc::clone(&link)));
        link
    }
}

fn lock(links: &Mutex<ByRuntime>) -> MutexGuard<'_, ByRuntime> {
    links.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Link {
    /// The caller has left, and the background awaits the answer; see [`CleanUpOnDrop`].
    ///
    /// [`CleanUpOnDrop`]: crate::hold::CleanUpOnDrop
    #[inline]
    fn is_left(&self) -> bool {
        background::is_here() && !self.is_background
    }

    async fn connection(self: &Arc<Self>) -> Result<Connection, StoreError> {
        loop {
            if let Some(answer) = self.open_connection() {
                if answer.is_err() {
                    // Nothing else on this way lets other tasks run: a caller who tries again and again would hold up the
                    // task that opens connections.
                    consume_budget().await;
                }
                return answer;
            }
            let _ = self.state.subscribe().wait_for(|state| !state.is_opening()).await;
        }
    }

    /// Adds a caller to the decisions that travel together.
    fn join(self: &Arc<Self>, charges: &Charges, consume: bool, slot: u16, waker: &Waker) -> Share {
        if let [charge] = &**charges {
            let is_same = |other: &Charge| other.counter == charge.counter && coalescing::is_same(other, charge);
            if let Ok(share) = self.queue.join(charge.counter.id(), is_same, consume, waker) {
                return share;
            }
        }
        self.add(charges.clone(), consume, slot, None, waker)
    }

    fn add(
        self: &Arc<Self>,
        charges: Charges,
        consume: bool,
        slot: u16,
        asked: Option<QueryTag>,
        waker: &Waker,
    ) -> Share {
        let (share, begin) = self.queue.add(charges, consume, slot, asked, waker);
        if begin {
            tokio::spawn(Carrier { link: Arc::clone(self), done: false }.carry());
        }
        share
    }

    /// Sends a command by itself.
    async fn send_alone(self: Arc<Self>, command: Command, asking: bool) -> Told {
        let mut connection = match self.connection().await {
            Ok(connection) => connection,
            Err(error) => return (command, Err(Failure::Unsent(error))),
        };
        if self.is_left() {
            let error = StoreError::unavailable("its caller has gone").unsent();
            return (command, Err(Failure::Unsent(error)));
        }
        if matches!(command, Command::Decide { .. }) {
            observe::store_round_trip(1);
        }
        let sent = command::send(&mut connection, &[Packet::Command(&command)], 1, asking).await;
        let reply = sent.map(|answers| answers.into_iter().next().map(|answer| answer.reply).unwrap_or_default());
        (command, reply.map_err(Failure::Unknown))
    }

    /// Why callers are not let through, if they are not.
    fn refusal(&self) -> Option<StoreError> {
        if self.admits.load(Ordering::Acquire) {
            return None;
        }
        match &*self.state.borrow() {
            State::Opening | State::Up(_) => None,
            State::Away { error, .. } => Some(error.clone()),
            State::Ended => Some(StoreError::unavailable(NO_KEEPER)),
        }
    }

    /// Sends decisions, and tells their callers. Those who have waited too long are told so meanwhile, wherever they are.
    async fn carry(&self, connection: &mut Connection, mut entries: Vec<Entry>) {
        let deadline = self.node.settings.deadline;
        let (ends, callers) = (self.late_at(self.queue.now_ms()), entries.iter().map(Entry::callers).sum());
        let mut tick = entries.iter().map(Entry::since_ms).min().map_or(ends, |since| self.late_at(since));
        coalescing::sort(&mut entries);
        let answers = {
            let packets = coalescing::packets(&entries);
            let mut sending = pin!(command::send(connection, &packets, callers, false));
            loop {
                if let Ok(answers) = timeout(self.until(tick), &mut sending).await {
                    break answers;
                }
                if self.queue.now_ms() >= ends {
                    break Err(StoreError::late(deadline));
                }
                let before = self.late_since();
                let others = entries.iter().map(|entry| entry.give_up(before)).chain([self.queue.give_up(before)]);
                tick = others.flatten().min().map_or(ends, |since| ends.min(self.late_at(since)));
            }
        };
        match answers {
            Ok(answers) => entries.into_iter().zip(answers).for_each(|(entry, answer)| entry.answer(answer)),
            Err(error) => fail(entries, &Failure::Unknown(error)),
        }
    }

    /// The same for those who wait in the queue: who has waited too long meanwhile is told so.
    async fn connection_for_many(self: &Arc<Self>) -> Result<Connection, StoreError> {
        if let Some(connection) = self.open_connection() {
            return connection;
        }
        let mut first = self.queue.first();
        loop {
            let tick = self.late_at(first.unwrap_or_else(|| self.queue.now_ms()));
            if let Ok(connection) = timeout(self.until(tick), self.connection()).await {
                return connection;
            }
            first = self.queue.give_up(self.late_since());
        }
    }

    /// When who came then has waited too long: up to two milliseconds more than the deadline, and never less.
    fn late_at(&self, since_ms: u64) -> u64 {
        since_ms.saturating_add(self.deadline_ms()).saturating_add(1)
    }

    /// Who came by then has waited too long.
    fn late_since(&self) -> u64 {
        self.queue.now_ms().saturating_sub(self.deadline_ms()).saturating_sub(1)
    }

    fn deadline_ms(&self) -> u64 {
        u64::try_from(self.node.settings.deadline.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
    }

    fn until(&self, ms: u64) -> Duration {
        Duration::from_millis(ms.saturating_sub(self.queue.now_ms()))
    }

    /// Nothing while one is being opened.
    fn open_connection(self: &Arc<Self>) -> Option<Result<Connection, StoreError>> {
        match &*self.state.borrow() {
            State::Opening => None,
            State::Up(open) => {
                let turn = if open.len() == 1 { 0 } else { self.next.fetch_add(1, Ordering::Relaxed) % open.len() };
                Some(Ok(Connection { open: open[turn].clone(), link: Arc::clone(self) }))
            }
            State::Away { error, .. } => Some(Err(error.clone())),
            State::Ended => Some(Err(StoreError::unavailable(NO_KEEPER))),
        }
    }

    fn outage(&self) -> Option<StoreError> {
        match &*self.state.borrow() {
            State::Away { error, .. } => Some(error.clone()),
            _ => None,
        }
    }

    #[allow(clippy::cast_possible_truncation)] // lasts for 500 years
    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// The time so long ago.
    #[allow(clippy::cast_possible_truncation)] // of a few seconds
    fn ago(&self, time: Duration) -> u64 {
        self.now().saturating_sub(time.as_nanos() as u64)
    }

    fn since(&self, then: u64) -> Duration {
        Duration::from_nanos(self.now().saturating_sub(then))
    }

    fn lost(&self, silence: &Arc<Silence>) {
        if self.change(|state| state.lost(|open| Arc::ptr_eq(&open.silence, silence))) {
            tracing::debug!(server = %self.node.target, "connection lost, opening another");
        }
    }

    fn silent(&self) {
        let error = self.node.unavailable(format_args!("{SILENT_CALLS} calls in a row had no answer"));
        self.change(|state| state.fell_silent(error, Instant::now()));
    }

    fn has_ended(&self) -> bool {
        matches!(*self.state.borrow(), State::Ended)
    }

    /// Changes how the node stands with its callers, if it does: then whoever waits for that looks again.
    fn change(&self, change: impl FnOnce(&mut State<Open>) -> bool) -> bool {
        self.state.send_if_modified(|state| {
            let (was_away, was_open) = (state.is_away(), state.open() > 0);
            let is_changed = change(state);
            match (was_away, state.is_away()) {
                (false, true) => drop(self.node.away.fetch_add(1, Ordering::AcqRel)),
                (true, false) => drop(self.node.away.fetch_sub(1, Ordering::AcqRel)),
                _ => {}
            }
            // Another server may be in its place by now, or the same one without its counters.
            if !was_away && state.is_away() || was_open && state.is_opening() {
                self.node.failures.failed();
            }
            self.admits.store(matches!(state, State::Opening | State::Up(_)), Ordering::Release);
            is_changed
        })
    }

    /// Opens connections whenever some are missing, one at a time, and looks for another primary
    /// meanwhile.
    async fn keep_open(self: &Arc<Self>) {
        let mut backoff = Backoff::new(self.node.settings.deadline);
        let mut server: Option<Client> = None;
        loop {
            tokio::select! {
                other = self.keep_open_to(server.as_ref(), &mut backoff) => {
                    let Some(other) = other else { return };
                    server = Some(other);
                }
                () = self.node.moved(server.as_ref()) => {
                    tracing::debug!(server = %self.node.target, "another server is the primary now");
                    self.change(|state| state.lost(|_| true));
                    server = None;
                }
            }
        }
    }

    /// Returns when a connection leads to another server than this: to that one. Without one if the
    /// limiter is gone.
    async fn keep_open_to(self: &Arc<Self>, server: Option<&Client>, backoff: &mut Backoff) -> Option<Client> {
        let wanted = self.node.settings.connections;
        let mut state = self.state.subscribe();
        let mut had = self.state.borrow().open();
        loop {
            let (open, loss) = {
                let state = state.wait_for(|state| state.open() < wanted).await.ok()?;
                let kind = if state.is_away() { Loss::Silent } else { Loss::Ended };
                (state.open(), (state.open() < had).then_some(kind))
            };
            if !self.pause(backoff, loss, open > 0).await {
                continue;
            }
            tokio::select! {
                () = self.revive() => backoff.opened(),
                opened = self.attempts(backoff) => {
                    let Some((open, client)) = opened else { continue };
                    backoff.opened();
                    if let Some(other) = self.opened(open, client, server) {
                        return Some(other);
                    }
                }
            }
            had = self.state.borrow().open();
        }
    }

    /// Tries to open a connection until one is open. Nothing if the others are lost meanwhile.
    async fn attempts(self: &Arc<Self>, backoff: &mut Backoff) -> Option<(Open, Client)> {
        loop {
            self.wait_for_the_silent().await;
            let limit = backoff.limit();
            let error = match self.open(limit, backoff.is_first()).await {
                Ok(opened) => return Some(opened),
                Err(error) => self.node.refused(error),
            };
            tracing::debug!(server = %self.node.target, %error, "cannot connect");
            self.change(|state| {
                state.failed(error, Instant::now());
                true
            });
            let others = self.state.borrow().open() > 0;
            backoff.failed(limit, others);
            if !self.pause(backoff, None, others).await {
                return None;
            }
        }
    }

    /// Pauses before the next attempt. False if there were `others`, open connections, and they are
    /// lost meanwhile.
    async fn pause(&self, backoff: &mut Backoff, loss: Option<Loss>, others: bool) -> bool {
        let pause = backoff.next(self.served.swap(false, Ordering::Relaxed), loss);
        let mut state = self.state.subscribe();
        tokio::select! {
            () = sleep(pause) => true,
            _ = state.wait_for(|state| state.open() == 0), if others => {
                backoff.alone();
                false
            }
        }
    }

    /// Lets callers use a new connection. Returns the server if it is another one than before.
    fn opened(&self, open: Open, client: Client, before: Option<&Client>) -> Option<Client> {
        self.node.access.granted();
        // Two primaries would each count alone, so callers use one.
        let other = before.is_none_or(|before| Address::of(before) != Address::of(&client));
        let redis = open.redis.clone();
        self.silence.answered(self.now());
        if other {
            self.change(|state| state.lost(|_| true));
        }
        self.change(|state| {
            state.opened(open);
            true
        });
        if !self.node.inspected.swap(true, Ordering::Relaxed) {
            // Beside all this: an answer that does not come must not hold up the next connection.
            tokio::spawn(Arc::clone(&self.node).inspect(redis));
        }
        other.then_some(client)
    }

    /// Returns once there is no silent connection, or none of them has answered for so long that
    /// another is opened.
    async fn wait_for_the_silent(&self) {
        let longest = with_jitter(PATIENCE.max(self.node.settings.deadline.saturating_mul(2)));
        let mut state = self.state.subscribe();
        loop {
            let since = self.outage().and_then(|outage| outage.began()).map_or(Duration::MAX, |began| began.elapsed());
            let left = longest.saturating_sub(since.min(self.since(self.heard.load(Ordering::Relaxed))));
            if left.is_zero() || timeout(left, state.wait_for(|state| state.silent().is_empty())).await.is_ok() {
                return;
            }
        }
    }

    /// Waits until a silent connection is answered in time, and lets callers use silent ones again.
    async fn revive(&self) {
        let mut state = self.state.subscribe();
        loop {
            let silent = state.wait_for(|state| !state.silent().is_empty()).await.map(|state| state.silent().to_vec());
            let Ok(silent) = silent else { return pending().await }; // never: the sender is of this link
            let prove = async |open: &Open| self.prove(&mut open.redis.clone(), self.node.settings.deadline).await;
            let mut proofs: FuturesUnordered<_> = silent.iter().map(async |open| (open, prove(open).await)).collect();
            while let Some((open, proved)) = proofs.next().await {
                if proved.is_err() {
                    self.lost(&open.silence);
                    continue;
                }
                let now = self.now();
                self.silence.answered(now);
                open.silence.answered(now);
                tracing::debug!(server = %self.node.target, "a silent connection answers again");
                self.change(State::revived);
                return;
            }
        }
    }

    /// Has the server run scripts over a connection until one is answered in time: it is slower
    /// than the deadline, or has just come back and has much to do. With an error the connection is
    /// of no use.
    async fn prove(&self, redis: &mut MultiplexedConnection, in_time: Duration) -> Result<(), StoreError> {
        let mut pause = Duration::from_millis(10);
        loop {
            let sent = Instant::now();
            let reply = redis.send_packed_command(&probe()).await.map_err(|error| explain(&error))?;
            // An error is an answer too, be it that this user may not ask; but not that it wants a
            // password first.
            if let Some(error) = no_auth(&reply) {
                return Err(error);
            }
            if sent.elapsed() <= in_time {
                return Ok(());
            }
            self.heard.store(self.now(), Ordering::Relaxed);
            sleep(with_jitter(pause)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Opens the breaker when callers have waited for a connection for long enough.
    async fn limit_waiting(&self) {
        let (mut state, deadline) = (self.state.subscribe(), self.node.settings.deadline);
        while state.wait_for(State::is_opening).await.is_ok() {
            if timeout(deadline, state.wait_for(|state| !state.is_opening())).await.is_err() {
                let error = self.node.unavailable(format_args!("no connection within the deadline of {deadline:?}"));
                self.change(|state| state.late(error, Instant::now()));
            }
        }
    }

    /// Probes the server where calls do not tell how it is, until it answers or was silent for too
    /// long.
    ///
    /// Callers may have gone too early to tell a halted server from one that answers. And without
    /// calls an outage would not be known: in RESP2 the end of a connection shows at its next
    /// command.
    async fn ask_when_in_doubt(self: &Arc<Self>) {
        let deadline = self.node.settings.deadline;
        loop {
            let is_doubted = timeout(IDLE, self.doubted.notified()).await.is_ok();
            if is_doubted || !self.silence.answered_since(self.ago(IDLE)) {
                while !self.all_answer().await {}
            }
            // If all callers go early, that is no reason to ask all the time.
            sleep(deadline.min(IDLE)).await;
        }
    }

    /// Probes each of the open connections once. Says whether all of them were answered in time: that
    /// of some tells a silent connection from a silent server.
    async fn all_answer(self: &Arc<Self>) -> bool {
        let open = match &*self.state.borrow() {
            State::Up(open) => open.clone(),
            _ => return true,
        };
        let mut all = true;
        for open in open {
            let mut connection = Connection { open, link: Arc::clone(self) };
            let answered = timeout(self.node.settings.deadline, connection.ask(iter::once(probe()), 1)).await;
            all &= answered.is_ok();
        }
        all
    }

    /// A connection over which the server has run a script, as decisions do: it may answer all
    /// else, and hold back whatever could write (`CLIENT PAUSE .. WRITE`, a failover). In time,
    /// unless it is the first that is ever opened: `Builder::build` has the time.
    async fn open(self: &Arc<Self>, limit: TimeLimit, is_first: bool) -> Result<(Open, Client), StoreError> {
        let target = &self.node.target;
        let (client, mut redis, silence) = target.connect(limit, |client, limit| self.connect(client, limit)).await?;
        let in_time = if is_first { limit.whole() } else { self.node.settings.deadline };
        match limit.within(self.prove(&mut redis, in_time)).await {
            Ok(proved) => proved.map_err(|error| error.about(target))?,
            Err(_) => {
                return Err(self.node.unavailable(format_args!("no answer to a script within {in_time:?}")));
            }
        }
        Ok((Open { redis, silence, opened: self.now() }, client))
    }

    /// A connection that tells when it is lost, as far as its protocol can.
    async fn connect(
        self: &Arc<Self>,
        client: Client,
        limit: TimeLimit,
    ) -> Result<(MultiplexedConnection, Arc<Silence>), StoreError> {
        let silence = Arc::<Silence>::default();
        // Deadlines are ours: the client's own would be a second one.
        let mut config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(1024);
        if client.get_connection_info().redis_settings().protocol().supports_resp3() {
            let (link, silence) = (Arc::downgrade(self), Arc::clone(&silence));
            config = config.set_push_sender(move |push: PushInfo| {
                if push.kind == PushKind::Disconnection
                    && let Some(link) = link.upgrade()
                {
                    link.lost(&silence);
                }
                Ok::<_, RedisError>(())
            });
        }
        let opening = client.get_multiplexed_async_connection_with_config(&config);
        let late = |_| StoreError::unavailable(format!("no connection within {:?}", limit.whole()));
        let redis = limit.within(opening).await.map_err(late)?.map_err(|error| explain(&error))?;
        Ok((redis, silence))
    }
}

/// A script that does nothing.
fn probe() -> Cmd {
    let mut command = redis::cmd("EVAL");
    command.arg("return 1").arg(0);
    command
}

impl Node {
    /// Returns once the server is another one than this.
    async fn moved(&self, from: Option<&Client>) {
        match from {
            Some(from) => self.target.moved(from, first_limit(self.settings.deadline)).await,
            None => pending().await,
        }
    }

    /// An error, as an outage if it is about credentials that were taken before. The log has that once.
    fn refused(&self, error: StoreError) -> StoreError {
        if !error.is_about_credentials() || !self.access.was_granted.load(Ordering::Acquire) {
            return error;
        }
        if !self.access.is_refused.swap(true, Ordering::AcqRel) {
            tracing::error!(
                server = %self.target, reason = error.reason(),
                "the server no longer takes this limiter's user and password; calls follow their failure policy until it does"
            );
        }
        error.into_outage()
    }

    fn unavailable(&self, what: fmt::Arguments<'_>) -> StoreError {
        StoreError::unavailable(what.to_string()).about(&self.target)
    }

    /// Says in the log that the server may throw counters away. A user who may not ask INFO is not told.
    async fn inspect(self: Arc<Self>, mut redis: MultiplexedConnection) {
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
                server = %self.target, maxmemory, policy,
                "this server drops keys when its memory is full, and what a dropped counter has counted is forgotten; \
                 set its maxmemory-policy to noeviction"
            );
        }
    }
}

/// How a node stands with its user and password.
#[derive(Debug, Default)]
struct Access {
    /// A connection was open once, so they were right.
    was_granted: AtomicBool,
    /// They have been refused since, and the log says so.
    is_refused: AtomicBool,
}

impl Access {
    fn granted(&self) {
        self.was_granted.store(true, Ordering::Release);
        self.is_refused.store(false, Ordering::Release);
    }
}

/// A runtime's place in the map. Dropped with the task that keeps its connections, when its runtime or the limiter ends.
struct Keeper {
    link: Arc<Link>,
    runtime: Id,
    by_runtime: Weak<Mutex<ByRuntime>>,
}

impl Keeper {
    async fn keep(self, mut in_use: watch::Receiver<()>) {
        tokio::select! {
            () = self.link.keep_open() => {}
            () = self.link.limit_waiting() => {}
            () = self.link.ask_when_in_doubt() => {}
            _ = in_use.changed() => {}
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some(by_runtime) = self.by_runtime.upgrade() {
            lock(&by_runtime).retain(|(id, _)| *id != self.runtime);
        }
        let mut state = State::Ended;
        // What there was is dropped when the lock is free again.
        self.link.change(|before| {
            mem::swap(before, &mut state);
            true
        });
    }
}

fn fail(entries: Vec<Entry>, failure: &Failure) {
    for entry in entries {
        entry.fail(failure.clone());
    }
}

/// A caller who sends by itself.
struct Alone(Arc<Link>);

impl Drop for Alone {
    fn drop(&mut self) {
        self.0.queue.not_alone();
    }
}

/// Carries decisions for as long as some wait.
struct Carrier {
    link: Arc<Link>,
    done: bool,
}

impl Carrier {
    async fn carry(mut self) {
        let Self { link, .. } = &self;
        loop {
            // Others who are about to ask come along: a caller who was alone would not be here.
            yield_now().await;
            let connection = link.connection_for_many().await;
            let Some(entries) = link.queue.take() else { break };
            match connection {
                Ok(mut connection) => link.carry(&mut connection, entries).await,
                Err(error) => fail(entries, &Failure::Unsent(error)),
            }
        }
        self.done = true;
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        if !self.done {
            self.link.queue.broken_off(); // its runtime is shutting down
        }
    }
}

impl fmt::Debug for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Open").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_is_known_by_its_word_within_a_scripts_error_too() {
        let reply = |line: &str| redis::parse_redis_value(format!("{line}\r\n").as_bytes()).unwrap();
        let words = "You can't write against a read only replica.";
        assert!(is_readonly(&reply(&format!("-READONLY {words}"))));
        let digest = "f_0123456789012345678901234567890123456789";
        assert!(is_readonly(&reply(&format!(
            "-ERR Error running script (call to {digest}): @user_script:1: -READONLY {words}"
        ))));
        assert!(!is_readonly(&reply("-ERR Error compiling script (new function): user_script:1: syntax error")));
        assert!(!is_readonly(&reply("-OOM command not allowed when used memory > 'maxmemory'.")));
        assert!(!is_readonly(&reply("+READONLY")));
    }
}
