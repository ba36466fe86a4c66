//! One call: from its caller's request, through the store, to a permit or a refusal.

mod abandon;
pub(crate) mod acquire;
mod ask;
pub(crate) mod attempt;
pub(crate) mod backend_kind;
pub(crate) mod core;
mod general;
pub(crate) mod handle;
pub(crate) mod hold;
pub(crate) mod options;
pub(crate) mod outage;
mod outcome;
mod outlast;
pub(crate) mod permit;
mod queue;
mod refusal;
mod renewals;
mod repeat;
pub(crate) mod request;
pub(crate) mod settings;
mod settlements;
mod several;
mod wait;

pub(crate) use self::refusal::refusal;
