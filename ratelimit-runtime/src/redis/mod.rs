//! The store on one Redis server.
//!
//! A decision is one script call on one connection. Nothing is ever sent twice, except a script the
//! server says it does not know and so has not run.

mod breaker;
mod link;
mod script;
mod target;

use std::{fmt::Write as _, sync::Arc, time::Duration};

use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};

pub(crate) use self::target::{Certificates, Target};
use self::{link::Links, script::Script};
use crate::{
    CounterName, algorithm,
    store::{Batch, Charge, Charges, Reply, Request, Store, StoreError},
};

/// Counters on one Redis server, or one that speaks its protocol.
#[derive(Clone, Debug)]
pub(crate) struct Redis {
    links: Arc<Links>,
}

impl Redis {
    pub(crate) fn new(target: Target, deadline: Duration, connections: usize) -> Self {
        Self { links: Arc::new(Links::new(target, deadline, connections)) }
    }

    /// Waits until the server has answered once on this runtime.
    pub(crate) async fn connected(&self) -> Result<(), StoreError> {
        self.links.connected().await
    }

    /// Runs scripts, each with its arguments, in one round trip, and answers in their order.
    async fn run(&self, calls: &[ScriptCall<'_>]) -> Result<Vec<Result<Value, StoreError>>, StoreError> {
        if calls.is_empty() {
            return Ok(Vec::new());
        }
        let mut connection = self.links.connection().await?;
        let mut replies = connection.send(calls.iter().map(|call| call.command(true))).await?;

        let unknown: Vec<usize> = (0..replies.len()).filter(|&at| is_noscript(&replies[at])).collect();
        if !unknown.is_empty() {
            // On the same connection: another server may not know the script either.
            let again = connection.send(unknown.iter().map(|&at| calls[at].command(false))).await?;
            for (at, reply) in unknown.into_iter().zip(again) {
                replies[at] = reply;
            }
        }
        Ok(replies.into_iter().map(|reply| reply.extract_error().map_err(|error| explain(&error))).collect())
    }

    async fn decide_all(&self, batch: &mut [Request]) -> Result<(), StoreError> {
        let calls: Vec<_> = batch.iter().map(ScriptCall::decide).collect();
        let replies = self.run(&calls).await?;
        for (request, reply) in batch.iter_mut().zip(replies) {
            request.outcome = reply.and_then(|reply| read(&mut request.charges, request.consume, &reply));
        }
        Ok(())
    }
}

impl Store for Redis {
    fn decide(&self, mut batch: Batch) -> Reply<Batch> {
        let redis = self.clone();
        Reply::Pending(Box::pin(async move {
            if let Err(error) = redis.decide_all(&mut batch).await {
                for request in &mut *batch {
                    request.outcome = Err(error.clone());
                }
            }
            batch
        }))
    }

    fn give_back(&self, charges: Charges) -> Reply<Result<u64, StoreError>> {
        let redis = self.clone();
        Reply::Pending(Box::pin(async move {
            let calls: Vec<_> = charges.iter().filter(|charge| charge.cost > 0).map(ScriptCall::give_back).collect();
            let mut back = 0;
            for reply in redis.run(&calls).await? {
                back += number(&reply?)?.unsigned_abs();
            }
            Ok(back)
        }))
    }

    fn reset(&self, counter: CounterName) -> Reply<Result<(), StoreError>> {
        let links = Arc::clone(&self.links);
        Reply::Pending(Box::pin(async move {
            let mut command = redis::cmd("DEL");
            command.arg(counter.as_bytes());
            for reply in links.connection().await?.send([command].into_iter()).await? {
                reply.extract_error().map_err(|error| explain(&error))?;
            }
            Ok(())
        }))
    }

    fn outage(&self) -> Option<StoreError> {
        self.links.outage()
    }
}

/// A script with its keys and arguments.
struct ScriptCall<'a> {
    script: &'static Script,
    charges: &'a [Charge],
    arguments: Arguments,
}

#[derive(Clone, Copy)]
enum Arguments {
    One,
    All { charge: bool },
    GiveBack,
}

impl<'a> ScriptCall<'a> {
    fn decide(request: &'a Request) -> Self {
        let (charges, charge) = (&*request.charges, request.consume);
        match charges {
            [one] => {
                let script = Script::decide_one(one.rule.counted_by(), charge && one.cost > 0);
                Self { script, charges, arguments: Arguments::One }
            }
            _ => Self { script: Script::decide_all(), charges, arguments: Arguments::All { charge } },
        }
    }

    fn give_back(charge: &'a Charge) -> Self {
        let script = Script::give_back(charge.rule.counted_by());
        Self { script, charges: std::slice::from_ref(charge), arguments: Arguments::GiveBack }
    }

    /// The script by its digest, or, for a server that does not know it, by its text.
    fn command(&self, by_digest: bool) -> Cmd {
        let keys = self.charges.iter().map(|charge| charge.counter.as_bytes().len()).sum::<usize>();
        let text = if by_digest { self.script.digest.len() } else { self.script.text.len() };
        let count = 4 + self.charges.len() * 4;
        let mut command = Cmd::with_capacity(count, text + keys + count * 16);
        if by_digest {
            command.arg("EVALSHA").arg(&self.script.digest);
        } else {
            command.arg("EVAL").arg(&self.script.text);
        }
        command.arg(self.charges.len());
        for charge in self.charges {
            command.arg(charge.counter.as_bytes());
        }
        if let Arguments::All { charge } = self.arguments {
            command.arg(u64::from(charge));
        }
        for charge in self.charges {
            if let Arguments::All { .. } = self.arguments {
                command.arg(algorithm::name(charge.rule.counted_by()));
            }
            let (cost, numbers) = match self.arguments {
                Arguments::GiveBack => algorithm::give_back_arguments(charge),
                _ => algorithm::arguments(charge),
            };
            command.arg(cost).arg(&*numbers);
        }
        command
    }
}

fn is_noscript(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(error) if error.kind() == Some(ServerErrorKind::NoScript))
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
        let (look, receipt) = algorithm::read(charge, consumed, reply).ok_or_else(|| unexpected(reply))?;
        charge.decided(look, receipt);
        each_fits &= look.fits;
    }
    Ok(all_fit && each_fits)
}

fn number(value: &Value) -> Result<i64, StoreError> {
    match value {
        Value::Int(number) => Ok(*number),
        other => Err(unexpected(other)),
    }
}

fn unexpected(reply: &Value) -> StoreError {
    StoreError::misconfigured(format!("the server's reply to a script is not what the script returns: {reply:?}"))
}

/// An error in words, with what to do where that is known. Never with what a key or a password holds.
fn explain(error: &RedisError) -> StoreError {
    let code = error.code().unwrap_or_default();
    let advice = match (error.kind(), code) {
        (_, "NOPERM") => "give its user the rights named in the documentation",
        (_, "WRONGTYPE") => "something else is stored under a counter's name: choose another namespace",
        (_, "OOM") => "the server is out of memory: see its maxmemory",
        (_, "BUSY") => "a script runs on and on: end it with SCRIPT KILL",
        (_, "READONLY") => "this is a replica: connect to the primary",
        (ErrorKind::AuthenticationFailed, _) | (_, "WRONGPASS" | "NOAUTH") => "check user and password",
        (ErrorKind::RESP3NotSupported, _) => "add ?protocol=resp2 to the URL",
        _ => "",
    };
    let mut reason = match (error.code(), error.detail()) {
        // As the server said it, so that it is found where people look for it.
        (Some(code), Some(detail)) => format!("Redis: {code} {detail}"),
        _ => format!("Redis: {error}"),
    };
    if !advice.is_empty() {
        let _ = write!(reason, "; {advice}");
    }
    let detail = error.detail().unwrap_or_default();
    let misconfigured = match error.kind() {
        // Servers before 7.0 wrap what a command of a script said.
        _ if ["-OOM", "-READONLY", "-MISCONF", "-NOREPLICAS"].iter().any(|code| detail.contains(code)) => false,
        ErrorKind::Io | ErrorKind::ClusterConnectionNotFound => false,
        ErrorKind::Server(kind) => matches!(
            kind,
            ServerErrorKind::ResponseError
                | ServerErrorKind::ExecAbort
                | ServerErrorKind::CrossSlot
                | ServerErrorKind::NoPerm
                | ServerErrorKind::NoScript
        ),
        ErrorKind::Extension => !matches!(code, "OOM" | "BUSY" | "MISCONF" | "NOREPLICAS"),
        _ => true,
    };
    if misconfigured { StoreError::misconfigured(reason) } else { StoreError::unavailable(reason) }
}
