//! An open connection on loan to one caller. What it sends and misses is counted by the breaker.

use std::{
    future::{Future, poll_fn},
    mem,
    pin::{Pin, pin},
    sync::{Arc, atomic::Ordering},
};

use redis::{Cmd, Pipeline, RedisError, Value};
use tokio::task::coop::consume_budget;

use super::{
    backoff::LONGEST_PAUSE,
    breaker::MissedReplies,
    pool::{ConnectionPool, OpenConnection},
    reply::{explain, is_readonly},
};
use crate::store::StoreError;

/// An open connection, for one caller.
#[derive(Debug)]
pub(super) struct Connection<'a> {
    open: OpenConnection,
    pool: &'a ConnectionPool,
}

impl<'a> Connection<'a> {
    pub(super) fn new(open: OpenConnection, pool: &'a ConnectionPool) -> Self {
        Self { open, pool }
    }

    /// A connection of the pool. Waits while the first one is being opened; fails at once while the
    /// breaker is open.
    pub(super) async fn from_pool(pool: &'a ConnectionPool) -> Result<Self, StoreError> {
        loop {
            if let Some(picked) = Self::try_from_pool(pool) {
                if picked.is_err() {
                    // Nothing else here yields: a caller in a loop would starve the task that opens
                    // connections.
                    consume_budget().await;
                }
                return picked;
            }
            let _ = pool.state.subscribe().wait_for(|state| !state.is_connecting()).await;
        }
    }

    /// A connection of the pool. `None` while the first one is being opened.
    pub(super) fn try_from_pool(pool: &'a ConnectionPool) -> Option<Result<Self, StoreError>> {
        Some(pool.pick()?.map(|open| Self::new(open, pool)))
    }

    /// Sends commands in one go, each once. Replies in order; a server's error is a reply.
    ///
    /// After an error they may have run. `callers`: how many wait for the replies.
    pub(super) async fn send(
        &mut self,
        commands: impl ExactSizeIterator<Item = Cmd>,
        callers: usize,
    ) -> Result<Vec<Value>, StoreError> {
        let replies = self.round_trip(commands, callers).await?;
        if !self.pool.has_served.load(Ordering::Relaxed) {
            self.pool.has_served.store(true, Ordering::Relaxed);
        }
        Ok(replies)
    }

    /// Like [`Connection::send`], for commands of no caller. A reply proves that the server is
    /// there, not that it serves calls.
    pub(super) async fn round_trip(
        &mut self,
        mut commands: impl ExactSizeIterator<Item = Cmd>,
        callers: usize,
    ) -> Result<Vec<Value>, StoreError> {
        let Self { open: OpenConnection { redis, missed, opened }, pool } = self;
        let mut in_flight = CountMissedOnDrop { pool, missed, at: pool.now(), callers, is_done: false, is_late: false };
        let count = commands.len();
        let replies = if count == 1
            && let Some(command) = commands.next()
        {
            in_flight.reply(pin!(redis.send_packed_command(&command))).await.map(|reply| vec![reply])
        } else {
            let mut pipeline = Pipeline::with_capacity(count);
            for command in commands {
                pipeline.add_command(command);
            }
            in_flight.reply(pin!(redis.send_packed_commands(&pipeline, 0, count))).await
        };
        in_flight.is_done = true;
        if let Ok(replies) = &replies
            && let Some(error) = replies.iter().find_map(no_auth)
        {
            // Nothing has run. The next connection shows whether the credentials are accepted.
            pool.lost(missed);
            return Err(pool.endpoint.rejected(error));
        }
        match &replies {
            Err(error) if is_fatal(error) => pool.lost(missed),
            // Another server is the primary now, maybe behind the same name. Reconnects to find
            // out, no more often than this.
            Ok(replies) if replies.iter().any(is_readonly) && pool.since(*opened) > LONGEST_PAUSE => {
                pool.lost(missed);
            }
            _ if in_flight.is_late => {} // it counts as missed
            _ => {
                pool.missed.answered(in_flight.at);
                missed.answered(in_flight.at);
            }
        }
        replies.map_err(|error| pool.endpoint.rejected(explain(&error)).indeterminate())
    }
}

fn is_fatal(error: &RedisError) -> bool {
    error.is_io_error() || error.is_unrecoverable_error()
}

/// Error of a server that requires a password first.
pub(super) fn no_auth(reply: &Value) -> Option<StoreError> {
    if !matches!(reply, Value::ServerError(_)) {
        return None;
    }
    let error = reply.clone().extract_error().err()?;
    (error.code() == Some("NOAUTH")).then(|| explain(&error))
}

/// Commands in flight. Dropping them without a reply counts them as missed.
struct CountMissedOnDrop<'a> {
    pool: &'a ConnectionPool,
    missed: &'a Arc<MissedReplies>,
    at: u64,
    callers: usize,
    is_done: bool,
    /// It was counted as missed. The background may still read the reply.
    is_late: bool,
}

impl CountMissedOnDrop<'_> {
    /// Awaits the reply. If the background polls after the caller has left or is late, that counts like a drop.
    async fn reply<T>(&mut self, mut reply: Pin<&mut impl Future<Output = T>>) -> T {
        poll_fn(|context| {
            let reply = reply.as_mut().poll(context);
            if reply.is_pending() && (self.pool.caller_has_left() || self.pool.is_late_in_background(self.at)) {
                self.count_missed();
            }
            reply
        })
        .await
    }

    fn count_missed(&mut self) {
        let Self { pool, missed, at, callers, .. } = *self;
        if mem::replace(&mut self.is_done, true) {
            return;
        }
        // A caller who leaves before the deadline says nothing about the server, so the server is
        // probed.
        if !pool.is_late(at) {
            if !missed.answered_since(at) {
                pool.suspected.notify_one();
            }
            return;
        }
        self.is_late = true;
        let is_connection_silent = missed.missed(at, callers);
        if pool.missed.missed(at, callers) {
            pool.fell_silent();
        } else if is_connection_silent {
            pool.lost(missed);
        }
    }
}

impl Drop for CountMissedOnDrop<'_> {
    fn drop(&mut self) {
        self.count_missed();
    }
}
