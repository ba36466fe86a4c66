//! The result of a batch entry, and what each caller gets of it.

use std::mem;

use redis::Value;

use crate::{
    algorithm,
    decision::Outcome,
    redis::reply::unexpected,
    store::{Charge, StoreError},
};

/// Why a command has no reply.
#[derive(Clone, Debug)]
pub(crate) enum SendError {
    /// Nothing was sent.
    NotSent(StoreError),
    /// It was sent, and may have run.
    Indeterminate(StoreError),
}

impl SendError {
    pub(crate) fn into_error(self) -> StoreError {
        match self {
            Self::NotSent(error) => error.with_no_effect(),
            Self::Indeterminate(error) => error,
        }
    }
}

/// A server's reply to one entry.
#[derive(Clone, Debug)]
pub(crate) struct EntryReply {
    pub(crate) reply: Value,
    /// Number of charges ahead of the entry's own, if the reply covers equal charges.
    pub(crate) before: Option<usize>,
}

impl From<Value> for EntryReply {
    fn from(reply: Value) -> Self {
        Self { reply, before: None }
    }
}

/// Result of an entry.
#[derive(Debug)]
pub(super) enum BatchResult {
    /// Every caller gets this reply.
    Reply(Value),
    /// The callers made equal charges, and some were granted.
    Repeated(RepeatedCharge),
    Failure(SendError),
}

/// One caller's part of a result.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CallerResult<'a> {
    Reply(&'a Value),
    /// The charge was granted. The reply describes an equal charge, made this many charges before
    /// it; after it, if negative.
    Granted(&'a RepeatedCharge, i64),
    Failure(&'a SendError),
}

/// Reply to equal charges: see [`algorithm::repeat_script`].
#[derive(Debug)]
pub(crate) struct RepeatedCharge {
    granted: usize,
    /// Index of the charge that `reply` describes. Negative for an earlier entry's.
    at: i64,
    pub(crate) reply: Value,
    /// See [`algorithm::batch_outcome`].
    taken: Option<Outcome>,
    refusal: Value,
}

impl BatchResult {
    /// Reads a server's reply to an entry.
    pub(super) fn parse(EntryReply { reply, before }: EntryReply, charge: Option<&Charge>) -> Self {
        match (before, reply) {
            (Some(before), Value::Array(parts)) => match RepeatedCharge::parse(parts, before, charge) {
                Ok(repeated) => Self::Repeated(repeated),
                Err(parts) => Self::Failure(SendError::Indeterminate(unexpected(&Value::Array(parts)))),
            },
            (None, reply) | (_, reply @ Value::ServerError(_)) => Self::Reply(reply),
            (_, reply) => Self::Failure(SendError::Indeterminate(unexpected(&reply))),
        }
    }

    /// The part of the caller who made the charge at `index`, as if each had been decided alone.
    #[inline]
    #[allow(clippy::cast_possible_wrap)] // there are not so many callers
    pub(super) fn of_caller(&self, index: usize) -> CallerResult<'_> {
        match self {
            Self::Reply(reply) => CallerResult::Reply(reply),
            Self::Failure(error) => CallerResult::Failure(error),
            Self::Repeated(RepeatedCharge { granted, refusal, .. }) if index >= *granted => {
                CallerResult::Reply(refusal)
            }
            Self::Repeated(repeated) => CallerResult::Granted(repeated, (index as i64).saturating_sub(repeated.at)),
        }
    }
}

impl CallerResult<'_> {
    /// The reply that a server would have sent to this caller alone.
    pub(super) fn reply(self, charge: Option<&Charge>) -> Result<Value, SendError> {
        match self {
            Self::Reply(reply) => Ok(reply.clone()),
            Self::Granted(repeated, later) => {
                let reply = charge.and_then(|charge| algorithm::reply_for_nth(charge, &repeated.reply, later));
                reply.ok_or_else(|| {
                    let error = "cannot derive each caller's reply from the server's reply to equal charges";
                    SendError::Indeterminate(StoreError::unavailable(error))
                })
            }
            Self::Failure(error) => Err(error.clone()),
        }
    }
}

impl RepeatedCharge {
    /// Gives the parts back if they are malformed.
    #[allow(clippy::cast_possible_wrap)] // there are not so many callers
    fn parse(mut parts: Vec<Value>, before: usize, charge: Option<&Charge>) -> Result<Self, Vec<Value>> {
        let [Value::Int(granted), Value::Int(at), reply, refusal] = &mut parts[..] else { return Err(parts) };
        let granted = usize::try_from(*granted).unwrap_or_default().saturating_sub(before);
        let (reply, refusal) = (mem::take(reply), mem::take(refusal));
        let taken = charge.and_then(|charge| algorithm::batch_outcome(charge, &reply));
        Ok(Self { granted, at: at.saturating_sub(before as i64), reply, taken, refusal })
    }

    /// Outcome of a granted charge; `later` as in [`CallerResult::Granted`].
    #[inline]
    pub(crate) fn taken(&self, charge: &Charge, later: i64) -> Option<Outcome> {
        if let Some(taken) = &self.taken {
            return algorithm::outcome_for_nth(charge, taken, later);
        }
        let reply = algorithm::reply_for_nth(charge, &self.reply, later)?;
        algorithm::parse_reply(charge, true, &reply).map(|(look, receipt)| Outcome::new(look.decision, receipt))
    }
}

#[cfg(all(test, not(model_check)))]
mod hostile;
