//! The part of an answer that is compared, and its words.

use std::{fmt, time::Duration};

use crate::store::{Charge, Request, StoreError};

/// How much of an answer has to match the model's. Each variant includes those before it.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
pub(crate) enum Compared {
    /// Whether the cost fits, the limit and what remains.
    Counts,
    RetryAfter,
    ResetAfter,
    All,
}

/// The answer to one request.
#[derive(PartialEq)]
pub(super) struct RequestAnswer {
    outcome: Result<bool, StoreError>,
    decisions: Vec<ChargeAnswer>,
}

/// The answer to one charge. `None` in fields that are not compared.
#[derive(PartialEq)]
struct ChargeAnswer {
    limit: u64,
    remaining: u64,
    #[allow(clippy::option_option)] // the outer one: not compared
    retry_after: Option<Option<Duration>>,
    reset_after: Option<Duration>,
    slot: Option<Duration>,
    /// The cost that is held now, of a granted hold.
    hold: Option<u64>,
    /// Of a refusal: the cost that others hold, and whether the charge would fit without.
    held_by_others: Option<(u64, bool)>,
}

impl RequestAnswer {
    pub(super) fn of(request: &Request, compared: Compared) -> Self {
        let is_granted = request.consume && request.outcome == Ok(true);
        let decisions = request.charges.iter().map(
            |Charge { decision, slot_delay: wait, cost, hold, held_by_others: held, fits_when_released, .. }| {
                ChargeAnswer {
                    limit: decision.limit(),
                    remaining: decision.remaining(),
                    retry_after: (compared >= Compared::RetryAfter).then_some(decision.retry_after()),
                    reset_after: (compared >= Compared::ResetAfter).then_some(decision.reset_after()),
                    slot: (compared >= Compared::All).then_some(*wait),
                    hold: hold.filter(|_| is_granted).map(|_| *cost),
                    held_by_others: decision
                        .retry_after()
                        .filter(|_| compared >= Compared::All)
                        .map(|_| (*held, *fits_when_released)),
                }
            },
        );
        Self { outcome: request.outcome.clone(), decisions: decisions.collect() }
    }
}

impl fmt::Display for RequestAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.outcome {
            Ok(true) => f.write_str("it fits")?,
            Ok(false) => f.write_str("it does not fit")?,
            Err(error) => return write!(f, "the error {error:?}"),
        }
        for ChargeAnswer { limit, remaining, retry_after, reset_after, slot, hold, held_by_others } in &self.decisions {
            write!(f, "; limit {limit}, remaining {remaining}")?;
            if let Some(wait) = reset_after {
                write!(f, ", reset_after {} ms", wait.as_millis())?;
            }
            match retry_after {
                Some(Some(wait)) => write!(f, ", retry_after {} ms", wait.as_millis())?,
                Some(None) => f.write_str(", no retry_after")?,
                None => {}
            }
            if let Some(wait) = slot.filter(|wait| !wait.is_zero()) {
                write!(f, ", slot in {} ms", wait.as_millis())?;
            }
            if let Some(held) = hold {
                write!(f, ", {held} of it held")?;
            }
            if let Some((held, fits_when_released)) = held_by_others {
                let not = if *fits_when_released { "" } else { "not " };
                write!(f, ", {held} held by others, without which it would {not}fit")?;
            }
        }
        Ok(())
    }
}
