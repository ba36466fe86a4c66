//! The table in force, which the watcher replaces.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

use arc_swap::ArcSwap;
use tokio::sync::watch::{Receiver, Sender};

use super::table::OverrideTable;
use crate::SetupError;

/// The table in force, and its subscribers.
pub(super) struct Current {
    pub(super) table: ArcSwap<OverrideTable>,
    /// The only prefixes that a table may have, if the program has named them.
    expected: Mutex<Option<BTreeSet<&'static str>>>,
    changed: Sender<()>,
}

impl Current {
    pub(super) fn new(table: OverrideTable) -> Arc<Self> {
        Arc::new(Self { table: ArcSwap::from_pointee(table), expected: Mutex::default(), changed: Sender::new(()) })
    }

    /// Notified of each change from now on.
    pub(super) fn changes(&self) -> Receiver<()> {
        self.changed.subscribe()
    }

    /// Puts a table in force. Fails if it has a prefix that is not expected.
    pub(super) fn replace(&self, table: OverrideTable) -> Result<(), SetupError> {
        let expected = self.expected.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(expected) = &*expected {
            table.check_prefixes(expected)?;
        }
        self.table.store(Arc::new(table));
        self.changed.send_replace(());
        Ok(())
    }

    /// Makes all other prefixes errors, in the table in force and in later ones.
    pub(super) fn expect(&self, prefixes: BTreeSet<&'static str>) -> Result<(), SetupError> {
        let mut expected = self.expected.lock().unwrap_or_else(PoisonError::into_inner);
        self.table.load().check_prefixes(&prefixes)?;
        *expected = Some(prefixes);
        Ok(())
    }
}
