//! The scripts, as a server knows them.

use std::array;

use once_cell::sync::Lazy;
use redis::Script as Digest;

use crate::{
    Algorithm,
    algorithm::{self, KINDS},
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

    /// See [`algorithm::decide_one`].
    pub(super) fn decide_one(algorithm: Algorithm, charge: bool) -> &'static Self {
        static SCRIPTS: Lazy<[[Script; 2]; KINDS]> = Lazy::new(|| {
            array::from_fn(|kind| [false, true].map(|charge| Script::new(algorithm::decide_one(kind, charge))))
        });
        &SCRIPTS[usize::from(algorithm::kind(algorithm))][usize::from(charge)]
    }

    /// See [`algorithm::decide_each`].
    pub(super) fn decide_each(algorithm: Algorithm) -> &'static Self {
        static SCRIPTS: Lazy<[Script; KINDS]> =
            Lazy::new(|| array::from_fn(|kind| Script::new(algorithm::decide_each(kind))));
        &SCRIPTS[usize::from(algorithm::kind(algorithm))]
    }

    /// See [`algorithm::decide_all`].
    pub(super) fn decide_all() -> &'static Self {
        static SCRIPT: Lazy<Script> = Lazy::new(|| Script::new(algorithm::decide_all()));
        &SCRIPT
    }

    /// See [`algorithm::give_back`].
    pub(super) fn give_back(algorithm: Algorithm) -> &'static Self {
        static SCRIPTS: Lazy<[Script; KINDS]> =
            Lazy::new(|| array::from_fn(|kind| Script::new(algorithm::give_back(kind))));
        &SCRIPTS[usize::from(algorithm::kind(algorithm))]
    }
}
