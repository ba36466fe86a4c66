//! What a builder sets, and the rules as they apply now.

#[cfg(feature = "config")]
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch::Receiver;

use crate::{Clock, Key, OnStoreError, Rule};

/// What a builder settles.
#[derive(Debug)]
pub(crate) struct EngineSettings {
    pub(crate) clock: Clock,
    pub(crate) namespace: String,
    pub(crate) deadline: Duration,
    pub(crate) instances: u64,
    pub(crate) on_store_error: OnStoreError,
    pub(crate) max_keys: usize,
    pub(crate) max_waiting: usize,
    /// Whether counting in this process is what the store does anyway.
    pub(crate) is_local: bool,
    /// What a file says of rules.
    #[cfg(feature = "config")]
    pub(crate) rules: Option<crate::config::Rules>,
}

impl EngineSettings {
    /// The rules as they hold now. A call takes them once, for all of its rules.
    #[cfg_attr(not(feature = "config"), allow(clippy::unused_self))]
    #[inline]
    pub(crate) fn rules_now(&self) -> CurrentRules {
        CurrentRules {
            #[cfg(feature = "config")]
            table: self.rules.as_ref().map(crate::config::Rules::now),
        }
    }

    /// Tells of each change of the rules from now on, if they can change.
    #[cfg_attr(not(feature = "config"), allow(clippy::unused_self))]
    pub(crate) fn rule_changes(&self) -> Option<Receiver<()>> {
        #[cfg(feature = "config")]
        return self.rules.as_ref().map(crate::config::Rules::changes);
        #[cfg(not(feature = "config"))]
        None
    }

    /// Whether rules hold as the code says.
    #[cfg_attr(not(feature = "config"), allow(clippy::unused_self))]
    #[inline]
    pub(crate) fn rules_are_as_written(&self) -> bool {
        #[cfg(feature = "config")]
        return self.rules.is_none();
        #[cfg(not(feature = "config"))]
        true
    }
}

/// The rules as they held when a call took them.
pub(crate) struct CurrentRules {
    #[cfg(feature = "config")]
    table: Option<arc_swap::Guard<Arc<crate::config::OverrideTable>>>,
}

#[cfg_attr(not(feature = "config"), allow(clippy::unused_self, clippy::unnecessary_wraps, unused_variables))]
impl CurrentRules {
    /// The rule as it holds for a key. `None` if it is not to be asked.
    pub(crate) fn applied(
        &self,
        rule: &Rule,
        key: Option<&Key>,
        is_settled: bool,
        is_one_of_several: bool,
    ) -> Option<Rule> {
        #[cfg(feature = "config")]
        if let Some(table) = &self.table {
            return table.apply(rule, key, crate::config::CallKind { is_settled, is_one_of_several });
        }
        Some(*rule)
    }

    /// The policy for calls of a rule that the store can't decide.
    pub(crate) fn on_store_error(&self, prefix: &str) -> Option<OnStoreError> {
        #[cfg(feature = "config")]
        if let Some(table) = &self.table {
            return table.on_store_error(prefix);
        }
        None
    }
}
