//! The scripts, as a server knows them.

use std::array;

use once_cell::sync::Lazy;
use redis::Script as Digest;

use crate::{
    algorithm::{self, SCRIPT_COUNT, ScriptMode},
    store::Charge,
};

/// A script's text and its digest.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) text: String,
    pub(super) digest: String,
}

impl Script {
    fn new(text: String) -> Self {
        let digest = Digest::new(&text).get_hash().to_owned();
        Self { text, digest }
    }

    /// See [`algorithm::decide_script`].
    pub(super) fn decide_one(charge: &Charge, mode: ScriptMode) -> &'static Self {
        const MODES: [ScriptMode; 5] =
            [ScriptMode::Evaluate, ScriptMode::Charge, ScriptMode::Renew, ScriptMode::Settle, ScriptMode::SettleAgain];
        static SCRIPTS: Lazy<[[Script; 5]; SCRIPT_COUNT]> =
            Lazy::new(|| array::from_fn(|id| MODES.map(|mode| Script::new(algorithm::decide_script(id, mode)))));
        &SCRIPTS[algorithm::script_id(charge)][mode as usize]
    }

    /// See [`algorithm::batch_script`].
    pub(super) fn decide_each(charge: &Charge) -> &'static Self {
        static SCRIPTS: Lazy<[Script; SCRIPT_COUNT]> =
            Lazy::new(|| array::from_fn(|id| Script::new(algorithm::batch_script(id))));
        &SCRIPTS[algorithm::script_id(charge)]
    }

    /// See [`algorithm::repeat_script`].
    pub(super) fn decide_equal(charge: &Charge) -> &'static Self {
        static SCRIPTS: Lazy<[Script; SCRIPT_COUNT]> =
            Lazy::new(|| array::from_fn(|id| Script::new(algorithm::repeat_script(id))));
        &SCRIPTS[algorithm::script_id(charge)]
    }

    /// See [`algorithm::transaction_script`].
    pub(super) fn decide_all() -> &'static Self {
        static SCRIPT: Lazy<Script> = Lazy::new(|| Script::new(algorithm::transaction_script()));
        &SCRIPT
    }

    /// See [`algorithm::refund_script`].
    pub(super) fn refund(charge: &Charge) -> &'static Self {
        static SCRIPTS: Lazy<[Script; SCRIPT_COUNT]> =
            Lazy::new(|| array::from_fn(|id| Script::new(algorithm::refund_script(id))));
        &SCRIPTS[algorithm::script_id(charge)]
    }
}
