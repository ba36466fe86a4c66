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
    pub(super) fn decide_one(charge: &Charge, act: ScriptMode) -> &'static Self {
        const ACTS: [ScriptMode; 5] =
            [ScriptMode::Evaluate, ScriptMode::Charge, ScriptMode::Renew, ScriptMode::Settle, ScriptMode::SettleAgain];
        static SCRIPTS: Lazy<[[HashedScript; 5]; SCRIPT_COUNT]> =
            Lazy::new(|| array::from_fn(|kind| ACTS.map(|act| HashedScript::new(algorithm::decide_script(kind, act)))));
        &SCRIPTS[algorithm::script_id(charge)][act as usize]
    }

    /// See [`algorithm::batch_script`].
    pub(super) fn decide_each(charge: &Charge) -> &'static Self {
        static SCRIPTS: Lazy<[HashedScript; SCRIPT_COUNT]> =
            Lazy::new(|| array::from_fn(|kind| HashedScript::new(algorithm::batch_script(kind))));
        &SCRIPTS[algorithm::script_id(charge)]
    }

    /// See [`algorithm::repeat_script`].
    pub(super) fn decide_equal(charge: &Charge) -> &'static Self {
        static SCRIPTS: Lazy<[HashedScript; SCRIPT_COUNT]> =
            Lazy::new(|| array::from_fn(|kind| HashedScript::new(algorithm::repeat_script(kind))));
        &SCRIPTS[algorithm::script_id(charge)]
    }

    /// See [`algorithm::transaction_script`].
    pub(super) fn decide_all() -> &'static Self {
        static SCRIPT: Lazy<HashedScript> = Lazy::new(|| HashedScript::new(algorithm::transaction_script()));
        &SCRIPT
    }

    /// See [`algorithm::refund_script`].
    pub(super) fn refund(charge: &Charge) -> &'static Self {
        static SCRIPTS: Lazy<[HashedScript; SCRIPT_COUNT]> =
            Lazy::new(|| array::from_fn(|kind| HashedScript::new(algorithm::refund_script(kind))));
        &SCRIPTS[algorithm::script_id(charge)]
    }
}
