//! The connection of each runtime, and the task that keeps it open.
//!
//! A connection dies with the tokio runtime that opened it, so each runtime has its own. A task on that runtime
//! opens it and opens it again when it is gone, so no caller spends its time on that; callers
//! only wait for an attempt that is under way.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use redis::{AsyncConnectionConfig, Client, Cmd, Pipeline, PushInfo, PushKind, Value, aio::MultiplexedConnection};
use tokio::{
    runtime::{Handle, Id},
    sync::{Notify, mpsc, watch},
};

use super::{explain, target::Target};
use crate::store::StoreError;

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
}

impl Connection {
    /// Sends commands in one go, each once, and answers in their order. An error a server replied with is an answer.
    pub(super) async fn send(
        &mut self,
        mut commands: impl ExactSizeIterator<Item = Cmd>,
    ) -> Result<Vec<Value>, StoreError> {
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
        replies.map_err(|error| {
            if error.is_io_error() || error.is_unrecoverable_error() {
                self.broken.notify_one();
            }
            explain(&error)
        })
    }
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
            .map_err(|_| StoreError::unavailable("the runtime that holds the connection is shutting down"))?;
        match &*state {
            State::Up(connection) => Ok(connection.clone()),
            State::Down(error) => Err(error.clone()),
            State::Connecting => Err(StoreError::unavailable("not connected yet")),
        }
    }

    fn state(&self) -> Result<Link, StoreError> {
        let runtime = Handle::try_current().map_err(|_| {
            StoreError::misconfigured("Redis can only be asked from within a tokio runtime, and there is none here")
        })?;
        let mut links = lock(&self.by_runtime);
        if let Some(link) = links.get(&runtime.id())
            && link.has_changed().is_ok()
        {
            return Ok(link.clone());
        }
        let (sender, state) = watch::channel(State::Connecting);
        let entry = Entry { runtime: runtime.id(), by_runtime: Arc::downgrade(&self.by_runtime) };
        runtime.spawn(keep_open(Arc::clone(&self.target), sender, entry));
        links.insert(runtime.id(), state.clone());
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
            match open(&target.client).await {
                Ok((connection, mut pushes)) => {
                    pause = FIRST_PAUSE;
                    let broken = Arc::clone(&connection.broken);
                    drop(state.send_replace(State::Up(connection)));
                    tokio::select! {
                        () = disconnected(&mut pushes) => {}
                        () = broken.notified() => {}
                    }
                    tracing::debug!(server = %target, "connection lost, opening another");
                    drop(state.send_replace(State::Connecting));
                }
                Err(error) => {
                    tracing::debug!(server = %target, %error, "cannot connect");
                    drop(state.send_replace(State::Down(error)));
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    };
    tokio::select! {
        () = work => {}
        () = state.closed() => {}
    }
}

/// What the server pushes on a connection; nothing under RESP2.
type Pushes = Option<mpsc::UnboundedReceiver<PushInfo>>;

async fn open(client: &Client) -> Result<(Connection, Pushes), StoreError> {
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
    Ok((Connection { redis, broken: Arc::default() }, pushes))
}

async fn disconnected(pushes: &mut Pushes) {
    match pushes {
        Some(pushes) => while pushes.recv().await.is_some_and(|push| push.kind != PushKind::Disconnection) {},
        None => std::future::pending().await,
    }
}
