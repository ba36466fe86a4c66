//! The scripts with their digests, assembled when first used.

use std::array;

use once_cell::sync::Lazy;

use crate::{
    algorithm::{self, SCRIPT_COUNT, ScriptMode},
    store::Charge,
};

/// A script with its SHA-1 digest.
#[derive(Debug)]
pub(super) struct HashedScript {
    pub(super) text: String,
    pub(super) digest: String,
}

impl HashedScript {
    fn new(text: String) -> Self {
        let digest = redis::Script::new(&text).get_hash().to_owned();
        Self { text, digest }
    }

    /// See [`algorithm::decide_script`].
    pub(super) fn decide(charge: &Charge, mode: ScriptMode) -> &'static Self {
        const MODES: [ScriptMode; 7] = [
            ScriptMode::Evaluate,
            ScriptMode::Charge,
            ScriptMode::Renew,
            ScriptMode::Settle,
            ScriptMode::SettleAgain,
            ScriptMode::Ban,
            ScriptMode::ChargeOrBan,
        ];
        static SCRIPTS: Lazy<[[HashedScript; MODES.len()]; SCRIPT_COUNT]> =
            Lazy::new(|| array::from_fn(|id| MODES.map(|mode| HashedScript::new(algorithm::decide_script(id, mode)))));
        &SCRIPTS[algorithm::script_id(charge)][mode as usize]
    }

    /// See [`algorithm::batch_script`].
    pub(super) fn batch(charge: &Charge) -> &'static Self {
        static SCRIPTS: Lazy<[HashedScript; SCRIPT_COUNT]> =
            Lazy::new(|| array::from_fn(|id| HashedScript::new(algorithm::batch_script(id))));
        &SCRIPTS[algorithm::script_id(charge)]
    }

    /// See [`algorithm::repeat_script`].
    pub(super) fn repeat(charge: &Charge) -> &'static Self {
        static SCRIPTS: Lazy<[HashedScript; SCRIPT_COUNT]> =
            Lazy::new(|| array::from_fn(|id| HashedScript::new(algorithm::repeat_script(id))));
        &SCRIPTS[algorithm::script_id(charge)]
    }

    /// See [`algorithm::transaction_script`].
    pub(super) fn transaction(bans: bool) -> &'static Self {
        static SCRIPTS: Lazy<[HashedScript; 2]> =
            Lazy::new(|| [false, true].map(|bans| HashedScript::new(algorithm::transaction_script(bans))));
        &SCRIPTS[usize::from(bans)]
    }

    /// See [`algorithm::refund_script`].
    pub(super) fn refund(charge: &Charge) -> &'static Self {
        static SCRIPTS: Lazy<[HashedScript; SCRIPT_COUNT]> =
            Lazy::new(|| array::from_fn(|id| HashedScript::new(algorithm::refund_script(id))));
        &SCRIPTS[algorithm::script_id(charge)]
    }
}
