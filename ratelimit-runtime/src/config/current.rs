//! The table in force, which the watcher replaces.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::watch::{Receiver, Sender};

use super::table::OverrideTable;

/// The table in force, and its subscribers.
pub(super) struct Current {
    pub(super) table: ArcSwap<OverrideTable>,
    changed: Sender<()>,
}

impl Current {
    pub(super) fn new(table: OverrideTable) -> Arc<Self> {
        Arc::new(Self { table: ArcSwap::from_pointee(table), changed: Sender::new(()) })
    }

    /// Notified of each change from now on.
    pub(super) fn changes(&self) -> Receiver<()> {
        self.changed.subscribe()
    }

    pub(super) fn replace(&self, table: OverrideTable) {
        self.table.store(Arc::new(table));
        self.changed.send_replace(());
    }
}
