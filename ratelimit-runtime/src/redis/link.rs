//! The connection of each runtime, and the task that keeps it open.
//!
//! A connection dies with the tokio runtime that opened it, so each runtime has its own. A task on that runtime
//! opens it and opens it again when it is gone, so no caller spends its time on that; callers
//! only wait for an attempt that is under way.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

use redis::{
    AsyncConnectionConfig, Client, Cmd, Pipeline, PushInfo, PushKind, ServerErrorKind, Value,
    aio::MultiplexedConnection,
};
use tokio::{
    runtime::{Handle, Id},
    sync::{Notify, mpsc, watch},
};

use super::{explain, target::Target};
use crate::store::StoreError;

const NO_KEEPER: &str =
    "nobody keeps its connection open: its tokio runtime is shutting down, or was built without enable_all";
/// Successive calls without an answer after which a connection is given up for another.
const SILENT_CALLS: u32 = 3;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(super) struct Links {
    target: Arc<Target>,
    by_runtime: Arc<Mutex<HashMap<Id, Link>>>,
}

/// The callers' end of a connection.
type Link = watch::Receiver<State>;

#[derive(Debug)]
enum State {
    Connecting,
    Up(Connection),
    /// The last attempt failed; another will be made.
    Down(StoreError),
}

/// An open connection, shared by its clones.
#[derive(Clone)]
pub(super) struct Connection {
    redis: MultiplexedConnection,
    broken: Arc<Notify>,
    silence: Arc<Mutex<Silence>>,
}

/// How long a connection has said nothing. A connection that is dead without an error, behind a proxy say, is only told
/// from a slow one by this.
#[derive(Debug, Default)]
struct Silence {
    calls: u32,
    /// When the last of them was given up. Calls that were sent before that say nothing new.
    until: Option<Instant>,
}

/// A call that has been sent. Dropped without an answer, it counts as silence.
struct Sent {
    at: Instant,
    broken: Arc<Notify>,
    silence: Arc<Mutex<Silence>>,
    answered: bool,
}

impl Drop for Sent {
    fn drop(&mut self) {
        let mut silence = self.silence.lock().unwrap_or_else(PoisonError::into_inner);
        if self.answered {
            *silence = Silence::default();
        } else if silence.until.is_none_or(|until| self.at >= until) {
            silence.calls += 1;
            silence.until = Some(Instant::now());
            if silence.calls == SILENT_CALLS {
                self.broken.notify_one();
            }
        }
    }
}

impl Connection {
    /// Sends commands in one go, each once, and answers in their order. An error a server replied with is an answer.
    pub(super) async fn send(
        &mut self,
        mut commands: impl ExactSizeIterator<Item = Cmd>,
    ) -> Result<Vec<Value>, StoreError> {
        let mut sent = Sent {
            at: Instant::now(),
            broken: Arc::clone(&self.broken),
            silence: Arc::clone(&self.silence),
            answered: false,
        };
        let count = commands.len();
        let replies = if count == 1
            && let Some(command) = commands.next()
        {
            self.redis.send_packed_command(&command).await.map(|reply| vec![reply])
        } else {
            let mut pipeline = Pipeline::with_capacity(count);
            for command in commands {
                pipeline.add_command(command);
            }
            self.redis.send_packed_commands(&pipeline, 0, count).await
        };
        sent.answered = true;
        if replies.as_ref().is_ok_and(|replies| replies.iter().any(is_readonly)) {
            self.broken.notify_one(); // somebody else is the primary now
        }
        replies.map_err(|error| {
            if error.is_io_error() || error.is_unrecoverable_error() {
                self.broken.notify_one();
            }
            explain(&error)
        })
    }
}

fn is_readonly(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(error) if error.kind() == Some(ServerErrorKind::ReadOnly))
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

impl Links {
    pub(super) fn new(target: Target) -> Self {
        Self { target: Arc::new(target), by_runtime: Arc::default() }
    }

    /// The connection of the runtime we are on. Waits for an attempt that is under way.
    pub(super) async fn connection(&self) -> Result<Connection, StoreError> {
        let mut state = self.state()?;
        let state = state
            .wait_for(|state| !matches!(state, State::Connecting))
            .await
            .map_err(|_| StoreError::unavailable(NO_KEEPER))?;
        match &*state {
            State::Up(connection) => Ok(connection.clone()),
            State::Down(error) => Err(error.clone()),
            State::Connecting => Err(StoreError::unavailable("not connected yet")),
        }
    }

    fn state(&self) -> Result<Link, StoreError> {
        let runtime = Handle::try_current().map_err(|_| StoreError::misconfigured(crate::limiter::NO_RUNTIME))?;
        let mut links = lock(&self.by_runtime);
        if let Some(link) = links.get(&runtime.id())
            && link.has_changed().is_ok()
        {
            return Ok(link.clone());
        }
        let (sender, state) = watch::channel(State::Connecting);
        let entry = Entry { runtime: runtime.id(), by_runtime: Arc::downgrade(&self.by_runtime) };
        links.insert(runtime.id(), state.clone());
        // A runtime that is shutting down drops the task at once, and with it the entry, which takes the lock.
        drop(links);
        runtime.spawn(keep_open(Arc::clone(&self.target), sender, entry));
        Ok(state)
    }
}

fn lock(links: &Mutex<HashMap<Id, Link>>) -> MutexGuard<'_, HashMap<Id, Link>> {
    links.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes the link out of the map when its runtime ends.
struct Entry {
    runtime: Id,
    by_runtime: Weak<Mutex<HashMap<Id, Link>>>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some(by_runtime) = self.by_runtime.upgrade() {
            lock(&by_runtime).remove(&self.runtime);
        }
    }
}

/// Runs until nobody can ask for the connection any more, or the runtime ends.
async fn keep_open(target: Arc<Target>, state: watch::Sender<State>, _entry: Entry) {
    let work = async {
        let mut pause = FIRST_PAUSE;
        loop {
            match open(&target).await {
                Ok((connection, mut pushes, client)) => {
                    let opened = Instant::now();
                    let broken = Arc::clone(&connection.broken);
                    drop(state.send_replace(State::Up(connection)));
                    tokio::select! {
                        () = disconnected(&mut pushes) => {}
                        () = broken.notified() => {}
                        () = target.moved(&client) => {}
                    }
                    tracing::debug!(server = %target, "connection lost, opening another");
                    drop(state.send_replace(State::Connecting));
                    if opened.elapsed() > LONGEST_PAUSE {
                        pause = FIRST_PAUSE;
                        continue;
                    }
                }
                Err(error) => {
                    tracing::debug!(server = %target, %error, "cannot connect");
                    drop(state.send_replace(State::Down(error)));
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    };
    tokio::select! {
        () = work => {}
        () = state.closed() => {}
    }
}

/// What the server pushes on a connection; nothing under RESP2.
type Pushes = Option<mpsc::UnboundedReceiver<PushInfo>>;

async fn open(target: &Target) -> Result<(Connection, Pushes, Client), StoreError> {
    let client = target.client().await?;
    // The deadline is the limiter's: the client's own timeout would be a second one.
    let mut config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(None)
        .set_pipeline_buffer_size(1024);
    let mut pushes = None;
    if client.get_connection_info().redis_settings().protocol().supports_resp3() {
        let (sender, receiver) = mpsc::unbounded_channel();
        config = config.set_push_sender(sender);
        pushes = Some(receiver);
    }
    let redis = client.get_multiplexed_async_connection_with_config(&config).await.map_err(|error| explain(&error))?;
    Ok((Connection { redis, broken: Arc::default(), silence: Arc::default() }, pushes, client))
}

async fn disconnected(pushes: &mut Pushes) {
    match pushes {
        Some(pushes) => while pushes.recv().await.is_some_and(|push| push.kind != PushKind::Disconnection) {},
        None => std::future::pending().await,
    }
}
