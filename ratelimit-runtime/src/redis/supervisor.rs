//! The task that keeps the connections of a pool open, and probes the server.

use std::{
    future::pending,
    iter, mem,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use redis::{AsyncConnectionConfig, Client, Cmd, PushInfo, PushKind, RedisError, aio::MultiplexedConnection};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use super::{
    address::ServerAddress,
    backoff::{Backoff, LONGEST_PAUSE, Loss, TimeLimit},
    breaker::{BreakerState, MissedReplies},
    connection::{Connection, no_auth},
    pool::{ConnectionPool, OpenConnection},
    reply::explain,
};
use crate::{
    duration::{ReadableDuration, with_jitter},
    store::StoreError,
};

/// Patience with silent connections before another one is opened, or twice the deadline if that is longer, less up to
/// half of it.
///
/// Long enough for a short stall. If it takes longer, the server's clients do not all reconnect at
/// once.
const PATIENCE: Duration = Duration::from_secs(4);
/// A server that has answered nothing for this long is probed.
const IDLE: Duration = Duration::from_secs(5);

/// Keeps the connections of a pool open. Dropping it ends the pool.
pub(super) struct Supervisor {
    pool: Arc<ConnectionPool>,
}

impl Supervisor {
    pub(super) fn new(pool: Arc<ConnectionPool>) -> Self {
        Self { pool }
    }

    /// Runs until the sender of `in_use` is dropped.
    pub(super) async fn run(&self, mut in_use: watch::Receiver<()>) {
        tokio::select! {
            () = self.maintain_connections() => {}
            () = self.open_breaker_when_connecting_too_long() => {}
            () = self.probe_on_suspicion() => {}
            _ = in_use.changed() => {}
        }
    }

    /// Opens connections whenever some are missing, one at a time, and watches for a failover.
    async fn maintain_connections(&self) {
        let endpoint = &self.pool.endpoint;
        let mut backoff = Backoff::new(endpoint.options.deadline);
        let mut server: Option<Client> = None;
        loop {
            tokio::select! {
                other = self.maintain_connections_to(server.as_ref(), &mut backoff) => {
                    server = Some(other);
                }
                () = endpoint.moved(server.as_ref()) => {
                    tracing::debug!(server = %endpoint.source, "another server is the primary now");
                    self.pool.change(|state| state.lost(|_| true));
                    server = None;
                }
            }
        }
    }

    /// Returns the new server when a connection leads to another one than `server`.
    async fn maintain_connections_to(&self, server: Option<&Client>, backoff: &mut Backoff) -> Client {
        let pool = &self.pool;
        let wanted = pool.endpoint.options.connections;
        let mut state = pool.state.subscribe();
        let mut had = pool.state.borrow().connections();
        loop {
            let missing = state.wait_for(|state| state.connections() < wanted).await;
            let missing = missing.map(|state| (state.is_open(), state.connections()));
            let Ok((is_open, open)) = missing else { return pending().await }; // never: the sender is the pool's
            let kind = if is_open { Loss::Silent } else { Loss::Ended };
            let loss = (open < had).then_some(kind);
            if !self.pause(backoff, loss, open > 0).await {
                continue;
            }
            tokio::select! {
                () = self.revive() => backoff.opened(),
                opened = self.connect_until_open(backoff) => {
                    let Some((open, client)) = opened else { continue };
                    backoff.opened();
                    if let Some(other) = self.opened(open, client, server) {
                        return other;
                    }
                }
            }
            had = pool.state.borrow().connections();
        }
    }

    /// Tries to connect until it succeeds. `None` if the other connections are lost meanwhile.
    async fn connect_until_open(&self, backoff: &mut Backoff) -> Option<(OpenConnection, Client)> {
        let Self { pool } = self;
        loop {
            self.wait_for_silent_connections().await;
            let limit = backoff.limit();
            let error = match self.open(limit, backoff.is_first()).await {
                Ok(opened) => return Some(opened),
                Err(error) => pool.endpoint.rejected(error),
            };
            tracing::debug!(server = %pool.endpoint.source, %error, "cannot connect");
            pool.change(|state| {
                state.failed(error, Instant::now());
                true
            });
            let others = pool.state.borrow().connections() > 0;
            backoff.failed(limit, others);
            if !self.pause(backoff, None, others).await {
                return None;
            }
        }
    }

    /// Pauses before the next attempt. False if there are `others`, open connections, and they are
    /// lost meanwhile.
    async fn pause(&self, backoff: &mut Backoff, loss: Option<Loss>, others: bool) -> bool {
        let pause = backoff.next(self.pool.has_served.swap(false, Ordering::Relaxed), loss);
        let mut state = self.pool.state.subscribe();
        tokio::select! {
            () = sleep(pause) => true,
            _ = state.wait_for(|state| state.connections() == 0), if others => {
                backoff.alone();
                false
            }
        }
    }

    /// Admits callers to a new connection. Returns the server if it is another one than `before`.
    fn opened(&self, open: OpenConnection, client: Client, before: Option<&Client>) -> Option<Client> {
        let Self { pool } = self;
        pool.endpoint.credentials.accepted();
        // Two primaries would count separately, so callers use one.
        let is_other = before.is_none_or(|before| ServerAddress::of(before) != ServerAddress::of(&client));
        let redis = open.redis.clone();
        pool.missed.answered(pool.now());
        if is_other {
            pool.change(|state| state.lost(|_| true));
        }
        pool.change(|state| {
            state.opened(open);
            true
        });
        if !pool.endpoint.is_inspected.swap(true, Ordering::Relaxed) {
            // In a task: a missing reply must not hold up the next connection.
            tokio::spawn(Arc::clone(&pool.endpoint).inspect(redis));
        }
        is_other.then_some(client)
    }

    /// Returns once no connection is silent, or they have been silent for so long that another one
    /// is opened.
    async fn wait_for_silent_connections(&self) {
        let Self { pool } = self;
        let longest = with_jitter(PATIENCE.max(pool.endpoint.options.deadline.saturating_mul(2)));
        let mut state = pool.state.subscribe();
        loop {
            let since = pool.outage().and_then(|outage| outage.began()).map_or(Duration::MAX, |began| began.elapsed());
            let left = longest.saturating_sub(since.min(pool.since(pool.late_reply.load(Ordering::Relaxed))));
            if left.is_zero() || timeout(left, state.wait_for(|state| state.silent().is_empty())).await.is_ok() {
                return;
            }
        }
    }

    /// Probes silent connections until one is answered in time. Then admits callers to all of them.
    async fn revive(&self) {
        let Self { pool } = self;
        let mut state = pool.state.subscribe();
        loop {
            let silent = state.wait_for(|state| !state.silent().is_empty()).await.map(|state| state.silent().to_vec());
            let Ok(silent) = silent else { return pending().await }; // never: the sender is the pool's
            let probe = async |open: &OpenConnection| {
                self.probe_until_in_time(&mut open.redis.clone(), pool.endpoint.options.deadline).await
            };
            let mut probes: FuturesUnordered<_> = silent.iter().map(async |open| (open, probe(open).await)).collect();
            while let Some((open, probed)) = probes.next().await {
                if probed.is_err() {
                    pool.lost(&open.missed);
                    continue;
                }
                let now = pool.now();
                pool.missed.answered(now);
                open.missed.answered(now);
                tracing::debug!(server = %pool.endpoint.source, "a silent connection answers again");
                pool.change(BreakerState::revived);
                return;
            }
        }
    }

    /// Runs the no-op script until a reply is in time: the server may be slower than the deadline,
    /// or busy after its return. After an error the connection is useless.
    async fn probe_until_in_time(
        &self,
        redis: &mut MultiplexedConnection,
        in_time: Duration,
    ) -> Result<(), StoreError> {
        let mut pause = Duration::from_millis(10);
        loop {
            let sent = Instant::now();
            let reply = redis.send_packed_command(&no_op_script()).await.map_err(|error| explain(&error))?;
            // Any other error is a reply too, such as that this user may not run scripts.
            if let Some(error) = no_auth(&reply) {
                return Err(error);
            }
            if sent.elapsed() <= in_time {
                return Ok(());
            }
            self.pool.late_reply.store(self.pool.now(), Ordering::Relaxed);
            sleep(with_jitter(pause)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Opens the breaker if no connection has been opened within the deadline.
    async fn open_breaker_when_connecting_too_long(&self) {
        let Self { pool } = self;
        let (mut state, deadline) = (pool.state.subscribe(), pool.endpoint.options.deadline);
        while state.wait_for(BreakerState::is_connecting).await.is_ok() {
            if timeout(deadline, state.wait_for(|state| !state.is_connecting())).await.is_err() {
                let waited = ReadableDuration(deadline);
                let error = pool.endpoint.unavailable(format_args!("no connection within the deadline of {waited}"));
                pool.change(|state| state.late(error, Instant::now()));
            }
        }
    }

    /// Probes the server when calls do not show its state, until it answers or the breaker opens.
    ///
    /// Callers may have left too early to tell a halted server from one that answers. An idle
    /// server is probed too: in RESP2 a lost connection shows at its next command.
    async fn probe_on_suspicion(&self) {
        let Self { pool } = self;
        let deadline = pool.endpoint.options.deadline;
        loop {
            let is_suspected = timeout(IDLE, pool.suspected.notified()).await.is_ok();
            if is_suspected || !pool.missed.answered_since(pool.ago(IDLE)) {
                while !self.probe_all().await {}
            }
            // Limits the rate of probes if all callers leave early.
            sleep(deadline.min(IDLE)).await;
        }
    }

    /// Probes each open connection once. False if a probe timed out: if only some are answered, a connection is silent
    /// and not the server. An error counts as an answer, as a lost connection is removed.
    async fn probe_all(&self) -> bool {
        let Self { pool } = self;
        let open = match &*pool.state.borrow() {
            BreakerState::Closed(open) => open.clone(),
            _ => return true,
        };
        let mut all = true;
        for open in open {
            let mut connection = Connection::new(open, pool);
            let probe = connection.round_trip(iter::once(no_op_script()), 1);
            all &= timeout(pool.endpoint.options.deadline, probe).await.is_ok();
        }
        all
    }

    /// Opens a connection and runs a script over it, as decisions do. A server may answer all else
    /// and still block what could write (`CLIENT PAUSE .. WRITE`, a failover).
    ///
    /// The script's time is the deadline. For the first attempt of a pool it is the limit of the whole attempt, as
    /// `Builder::build` waits for it.
    async fn open(&self, limit: TimeLimit, is_first: bool) -> Result<(OpenConnection, Client), StoreError> {
        let Self { pool } = self;
        let source = &pool.endpoint.source;
        let (client, mut redis, missed) = source.connect(limit, |client, limit| self.connect(client, limit)).await?;
        let in_time = if is_first { limit.whole() } else { pool.endpoint.options.deadline };
        match limit.within(self.probe_until_in_time(&mut redis, in_time)).await {
            Ok(probed) => probed.map_err(|error| error.about(source))?,
            Err(_) => {
                return Err(pool.endpoint.unavailable(format_args!("no answer to a script within {in_time:?}")));
            }
        }
        Ok((OpenConnection { redis, missed, opened: pool.now() }, client))
    }

    /// Connects. With RESP3, the client reports when the connection is lost.
    async fn connect(
        &self,
        client: Client,
        limit: TimeLimit,
    ) -> Result<(MultiplexedConnection, Arc<MissedReplies>), StoreError> {
        let missed = Arc::<MissedReplies>::default();
        // Deadlines are enforced here: the client's own would be a second one.
        let mut config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(1024);
        if client.get_connection_info().redis_settings().protocol().supports_resp3() {
            let (pool, missed) = (Arc::downgrade(&self.pool), Arc::clone(&missed));
            config = config.set_push_sender(move |push: PushInfo| {
                if push.kind == PushKind::Disconnection
                    && let Some(pool) = pool.upgrade()
                {
                    pool.lost(&missed);
                }
                Ok::<_, RedisError>(())
            });
        }
        let opening = client.get_multiplexed_async_connection_with_config(&config);
        let late = |_| StoreError::unavailable(format!("no connection within {:?}", limit.whole()));
        let redis = limit.within(opening).await.map_err(late)?.map_err(|error| explain(&error))?;
        Ok((redis, missed))
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        let mut state = BreakerState::Ended;
        // Swapped out, so that the connections are dropped after the lock is released.
        self.pool.change(|before| {
            mem::swap(before, &mut state);
            true
        });
    }
}

/// Probe: a script that does nothing.
fn no_op_script() -> Cmd {
    let mut command = redis::cmd("EVAL");
    command.arg("return 1").arg(0);
    command
}
