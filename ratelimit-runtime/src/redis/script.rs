//! The scripts, as a server knows them.

use once_cell::sync::Lazy;
use redis::Script as Digest;

use crate::{Algorithm, algorithm};

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
    pub(super) fn decide_one(algorithm: Algorithm) -> &'static Self {
        static FIXED_WINDOW: Lazy<Script> =
            Lazy::new(|| Script::new(algorithm::decide_one(Algorithm::FixedWindow { align: false })));
        static SLIDING_LOG: Lazy<Script> = Lazy::new(|| Script::new(algorithm::decide_one(Algorithm::SlidingLog)));
        match algorithm {
            Algorithm::FixedWindow { .. } => &FIXED_WINDOW,
            _ => &SLIDING_LOG,
        }
    }

    /// See [`algorithm::decide_all`].
    pub(super) fn decide_all() -> &'static Self {
        static ALL: Lazy<Script> = Lazy::new(|| Script::new(algorithm::decide_all()));
        &ALL
    }

    /// See [`algorithm::give_back`].
    pub(super) fn give_back(algorithm: Algorithm) -> &'static Self {
        static FIXED_WINDOW: Lazy<Script> =
            Lazy::new(|| Script::new(algorithm::give_back(Algorithm::FixedWindow { align: false })));
        static SLIDING_LOG: Lazy<Script> = Lazy::new(|| Script::new(algorithm::give_back(Algorithm::SlidingLog)));
        match algorithm {
            Algorithm::FixedWindow { .. } => &FIXED_WINDOW,
            _ => &SLIDING_LOG,
        }
    }
}
