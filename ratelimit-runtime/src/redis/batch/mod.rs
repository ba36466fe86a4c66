//! Group commit: decisions gather while a few round trips are in flight, and the next one carries
//! them all.
//!
//! There is no timer: a decision that finds nothing in flight is sent at once. Callers with equal
//! charges share an entry. A round trip belongs to no single caller, so a cancelled caller takes
//! nothing from the others.
//!
//! An entry is one decision. A batch is the entries of one round trip: in a cluster, of several slots. It is
//! sent as one script call for each slot and script, see `Packet` in `command.rs`.
//!
//! Nothing here touches the network: `runtime_node` sends what the queue yields.

mod entry;
mod queue;
mod result;
mod ticket;

pub(crate) use self::{
    entry::BatchEntry,
    result::{CallerResult, SendError},
    ticket::BatchTicket,
};
pub(super) use self::{
    entry::{SentEntry, is_same_charge},
    queue::BatchQueue,
    result::EntryReply,
};
