//! The table in force, which a watcher replaces.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::watch::{Receiver, Sender};

use super::file::Table;

/// The table in force, and the callers who wait for another one.
pub(super) struct Current {
    pub(super) table: ArcSwap<Table>,
    changed: Sender<()>,
}

impl Current {
    pub(super) fn new(table: Table) -> Arc<Self> {
        Arc::new(Self { table: ArcSwap::from_pointee(table), changed: Sender::new(()) })
    }

    /// Tells of each change from now on.
    pub(super) fn changes(&self) -> Receiver<()> {
        self.changed.subscribe()
    }

    pub(super) fn replace(&self, table: Table) {
        self.table.store(Arc::new(table));
        self.changed.send_replace(());
    }
}
