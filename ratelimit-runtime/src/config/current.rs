//! The table in force, which a new text replaces.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

use arc_swap::ArcSwap;
use tokio::sync::watch::{Receiver, Sender};

use super::{parse::RulesText, table::OverrideTable};
use crate::SetupError;

/// The table in force, and its subscribers.
pub(super) struct Current {
    pub(super) table: ArcSwap<OverrideTable>,
    /// The tables of a text that are the program's own.
    own_tables: Vec<String>,
    /// The rules that go over each text.
    from_environment: Option<String>,
    /// The only prefixes that a table may have, if the program has named them.
    expected: Mutex<Option<BTreeSet<&'static str>>>,
    changed: Sender<()>,
}

impl Current {
    pub(super) fn new(
        text: &str,
        own_tables: &[&str],
        from_environment: Option<String>,
    ) -> Result<Arc<Self>, SetupError> {
        let current = Self {
            table: ArcSwap::default(),
            own_tables: own_tables.iter().map(|&name| name.to_owned()).collect(),
            from_environment,
            expected: Mutex::default(),
            changed: Sender::new(()),
        };
        current.replace(text)?;
        Ok(Arc::new(current))
    }

    /// Notified of each change from now on.
    pub(super) fn changes(&self) -> Receiver<()> {
        self.changed.subscribe()
    }

    /// Puts the rules of a text in force. Fails if it is invalid, or has a prefix that is not
    /// expected, and changes nothing then.
    pub(super) fn replace(&self, text: &str) -> Result<(), SetupError> {
        let own_tables: Vec<_> = self.own_tables.iter().map(String::as_str).collect();
        let text = RulesText::parse(text, &own_tables)?;
        let text = match &self.from_environment {
            Some(over) => RulesText::parse_rules(over)?.merged_over(text),
            None => text,
        };
        // The lock also keeps two texts apart: each is merged with the one before.
        let expected = self.expected.lock().unwrap_or_else(PoisonError::into_inner);
        let table = OverrideTable::new(text, &self.table.load())?;
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
