//! The scripts with their digests, assembled when first used.

use std::array;

use once_cell::sync::Lazy;

use crate::{
    algorithm::{self, Act, KINDS},
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

    /// See [`algorithm::decide_one`].
    pub(super) fn decide_one(charge: &Charge, act: Act) -> &'static Self {
        const ACTS: [Act; 5] = [Act::Look, Act::Charge, Act::Renew, Act::Settle, Act::SettleAgain];
        static SCRIPTS: Lazy<[[HashedScript; 5]; KINDS]> =
            Lazy::new(|| array::from_fn(|kind| ACTS.map(|act| HashedScript::new(algorithm::decide_one(kind, act)))));
        &SCRIPTS[usize::from(algorithm::kind(charge))][act as usize]
    }

    /// See [`algorithm::decide_each`].
    pub(super) fn decide_each(charge: &Charge) -> &'static Self {
        static SCRIPTS: Lazy<[HashedScript; KINDS]> =
            Lazy::new(|| array::from_fn(|kind| HashedScript::new(algorithm::decide_each(kind))));
        &SCRIPTS[usize::from(algorithm::kind(charge))]
    }

    /// See [`algorithm::decide_equal`].
    pub(super) fn decide_equal(charge: &Charge) -> &'static Self {
        static SCRIPTS: Lazy<[HashedScript; KINDS]> =
            Lazy::new(|| array::from_fn(|kind| HashedScript::new(algorithm::decide_equal(kind))));
        &SCRIPTS[usize::from(algorithm::kind(charge))]
    }

    /// See [`algorithm::decide_all`].
    pub(super) fn decide_all() -> &'static Self {
        static SCRIPT: Lazy<HashedScript> = Lazy::new(|| HashedScript::new(algorithm::decide_all()));
        &SCRIPT
    }

    /// See [`algorithm::refund`].
    pub(super) fn refund(charge: &Charge) -> &'static Self {
        static SCRIPTS: Lazy<[HashedScript; KINDS]> =
            Lazy::new(|| array::from_fn(|kind| HashedScript::new(algorithm::refund(kind))));
        &SCRIPTS[usize::from(algorithm::kind(charge))]
    }
}
