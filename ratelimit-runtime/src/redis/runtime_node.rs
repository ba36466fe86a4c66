//! A node on one runtime: sends a command alone, or as part of a batch.

use std::{pin::pin, sync::Arc, task::Waker, time::Duration};

use redis::Value;
use tokio::{runtime::Id, task::yield_now, time::timeout};

use super::{
    batch::{BatchQueue, BatchTicket, SendError, SentEntry, is_same_charge},
    command::{Command, Packet},
    connection::Connection,
    endpoint::Endpoint,
    exchange,
    pool::ConnectionPool,
};
use crate::{
    backend::QueryTag,
    observe,
    store::{Charge, Charges, StoreError},
};

/// A command, returned with its reply.
pub(super) type CommandResult = (Command, Result<Value, SendError>);

/// A node on one runtime.
#[derive(Debug)]
pub(super) struct RuntimeNode {
    pub(super) pool: Arc<ConnectionPool>,
    pub(super) queue: BatchQueue,
    pub(super) deadline: Duration,
    /// Decisions of several callers may share a round trip.
    pub(super) is_batching: bool,
}

/// A caller that bypasses the batch queue. Dropping it ends the bypass.
pub(super) struct EndBypassOnDrop(pub(super) Arc<RuntimeNode>);

impl Drop for EndBypassOnDrop {
    fn drop(&mut self) {
        self.0.queue.end_bypass();
    }
}

impl RuntimeNode {
    pub(super) fn new(endpoint: &Arc<Endpoint>, runtime: Id) -> Self {
        Self {
            pool: Arc::new(ConnectionPool::new(Arc::clone(endpoint))),
            queue: BatchQueue::on(runtime),
            deadline: endpoint.options.deadline,
            is_batching: endpoint.options.is_batching,
        }
    }

    /// Joins the waiting entry that makes the same charges, or adds one.
    pub(super) fn enqueue(self: &Arc<Self>, charges: &Charges, consume: bool, slot: u16, waker: &Waker) -> BatchTicket {
        if let [charge] = &**charges {
            let is_same = |other: &Charge| other.counter == charge.counter && is_same_charge(other, charge);
            if let Ok(ticket) = self.queue.join(charge.counter.id(), is_same, consume, waker) {
                return ticket;
            }
        }
        self.add(charges.clone(), consume, slot, None, waker)
    }

    /// Adds an entry, and begins a round trip if one is needed.
    pub(super) fn add(
        self: &Arc<Self>,
        charges: Charges,
        consume: bool,
        slot: u16,
        tag: Option<QueryTag>,
        waker: &Waker,
    ) -> BatchTicket {
        let (ticket, begin) = self.queue.add(charges, consume, slot, tag, waker);
        if begin {
            tokio::spawn(BatchSender { node: Arc::clone(self), is_done: false }.run());
        }
        ticket
    }

    /// Sends a command by itself. With `asking`, only if a connection is open.
    ///
    /// A bypass ends with this future. It is an argument, as a future around this one would be copied with it.
    pub(super) async fn send_alone(
        self: Arc<Self>,
        command: Command,
        asking: bool,
        _bypass: Option<EndBypassOnDrop>,
    ) -> CommandResult {
        let connection = if asking {
            Connection::try_from_pool(&self.pool)
                .unwrap_or_else(|| Err(StoreError::unavailable("no connection is open yet")))
        } else {
            Connection::from_pool(&self.pool).await
        };
        let mut connection = match connection {
            Ok(connection) => connection,
            Err(error) => return (command, Err(SendError::NotSent(error))),
        };
        if self.pool.caller_has_left() {
            let error = StoreError::unavailable("its caller has gone").with_no_effect();
            return (command, Err(SendError::NotSent(error)));
        }
        if matches!(command, Command::Decide { .. }) {
            observe::store_round_trip(1);
        }
        let sent = exchange::send(&mut connection, &[Packet::Command(&command)], asking).await;
        let reply = sent.map(|replies| replies.into_iter().next().map(|reply| reply.reply).unwrap_or_default());
        (command, reply.map_err(SendError::Indeterminate))
    }

    /// Sends entries and hands out their results. Times out callers meanwhile, sent or waiting.
    async fn send_batch(&self, connection: &mut Connection<'_>, mut entries: Vec<SentEntry>) {
        let ends = self.times_out_at(self.queue.now_ms());
        let mut tick = entries.iter().map(SentEntry::since_ms).min().map_or(ends, |since| self.times_out_at(since));
        Packet::sort(&mut entries);
        let replies = {
            let packets = Packet::group(&entries);
            let mut sending = pin!(exchange::send(connection, &packets, false));
            loop {
                if let Ok(replies) = timeout(self.until(tick), &mut sending).await {
                    break replies;
                }
                if self.queue.now_ms() >= ends {
                    break Err(StoreError::late(self.deadline));
                }
                let before = self.timed_out_before();
                let others = entries.iter().map(|entry| entry.time_out(before)).chain([self.queue.time_out(before)]);
                tick = others.flatten().min().map_or(ends, |since| ends.min(self.times_out_at(since)));
            }
        };
        match replies {
            Ok(replies) => entries.into_iter().zip(replies).for_each(|(entry, reply)| entry.answer(reply)),
            Err(error) => fail(entries, &SendError::Indeterminate(error)),
        }
    }

    /// Waits for a connection. Times out waiting callers meanwhile.
    async fn connection_for_batch(&self) -> Result<Connection<'_>, StoreError> {
        if let Some(connection) = Connection::try_from_pool(&self.pool) {
            return connection;
        }
        let mut oldest = self.queue.oldest_ms();
        loop {
            let tick = self.times_out_at(oldest.unwrap_or_else(|| self.queue.now_ms()));
            if let Ok(connection) = timeout(self.until(tick), Connection::from_pool(&self.pool)).await {
                return connection;
            }
            oldest = self.queue.time_out(self.timed_out_before());
        }
    }

    /// Time at which a caller that arrived at `since_ms` times out: up to two milliseconds after
    /// its deadline, and never before.
    fn times_out_at(&self, since_ms: u64) -> u64 {
        since_ms.saturating_add(self.deadline_ms()).saturating_add(1)
    }

    /// Callers that arrived no later than this have timed out.
    fn timed_out_before(&self) -> u64 {
        self.queue.now_ms().saturating_sub(self.deadline_ms()).saturating_sub(1)
    }

    fn deadline_ms(&self) -> u64 {
        u64::try_from(self.deadline.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
    }

    fn until(&self, ms: u64) -> Duration {
        Duration::from_millis(ms.saturating_sub(self.queue.now_ms()))
    }
}

fn fail(entries: Vec<SentEntry>, error: &SendError) {
    for entry in entries {
        entry.fail(error.clone());
    }
}

/// The task of a round trip: sends batches for as long as entries wait.
///
/// Dropped before that, it aborts the queue.
struct BatchSender {
    node: Arc<RuntimeNode>,
    is_done: bool,
}

impl BatchSender {
    async fn run(mut self) {
        let Self { node, .. } = &self;
        loop {
            // Lets other callers join: the queue is in use, so more of them may be on their way.
            yield_now().await;
            if node.queue.is_crowded() {
                yield_now().await; // callers that the first pause woke join, too
            }
            let connection = node.connection_for_batch().await;
            let Some(entries) = node.queue.take() else { break };
            match connection {
                Ok(mut connection) => node.send_batch(&mut connection, entries).await,
                Err(error) => fail(entries, &SendError::NotSent(error)),
            }
        }
        self.is_done = true;
    }
}

impl Drop for BatchSender {
    fn drop(&mut self) {
        if !self.is_done {
            self.node.queue.abort(); // its runtime is shutting down
        }
    }
}
