//! The algorithms: arithmetic in Rust for the memory store, and its twin in Lua for Redis.
//!
//! Each has a folder, and a row in `table.rs`. `contract.rs` says what a folder provides, and
//! `script.rs` assembles the Lua scripts. Nothing here knows of connections, locks or callers.

pub(crate) mod bucket;
mod contract;
pub(crate) mod fixed_window;
mod hold_set;
#[cfg(feature = "redis")]
mod script;
pub(crate) mod semaphore;
pub(crate) mod sliding_log;
pub(crate) mod sliding_window;
mod table;
#[cfg(feature = "redis")]
mod wire;

pub(crate) use self::{
    contract::{Evaluation, MemoryState, Recovery, ban, charge, charge_fresh, evaluate},
    table::{CacheableDenials, Capabilities, HoldSupport, algorithms, capabilities, recovery},
};
#[cfg(feature = "redis")]
pub(crate) use self::{
    script::{
        DECISIONS_PER_REPEAT, DECISIONS_PER_TRANSACTION, MAX_STEPS, ScriptMode, batch_outcome, batch_script,
        decide_script, outcome_for_nth, packed_args, refund_script, renewal_args, repeat_script, reply_for_nth,
        transaction_script,
    },
    table::{
        SCRIPT_COUNT, needs_stored_cost, parse_reply, refund_args, renewal_steps, script_args, script_id, steps,
        stored_cost,
    },
    wire::PackedNumbers,
};
