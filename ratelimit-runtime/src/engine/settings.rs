//! The settings of an engine, and the rules as they apply now.

#[cfg(feature = "config")]
use std::sync::Arc;
use std::{borrow::Cow, num::NonZeroU32, time::Duration};

use tokio::sync::watch::Receiver;

use crate::{Clock, Key, OnStoreError, Rule, rule::call_kind::CallKind};

/// The settings made by a builder.
#[derive(Debug)]
pub(crate) struct EngineSettings {
    pub(crate) clock: Clock,
    pub(crate) namespace: String,
    pub(crate) deadline: Duration,
    /// `None` if it is not known.
    pub(crate) instances: Option<NonZeroU32>,
    pub(crate) on_store_error: OnStoreError,
    pub(crate) max_keys: usize,
    pub(crate) overflow_bytes: usize,
    pub(crate) max_waiting: usize,
    /// The store itself counts in process memory.
    pub(crate) is_local: bool,
    /// Refusals name the key of their call.
    pub(crate) names_keys: bool,
    /// Rules from outside the code: settings of a file.
    #[cfg(feature = "config")]
    pub(crate) rules: Option<crate::config::Rules>,
}

impl EngineSettings {
    /// Whether rules from outside the code may apply. Otherwise each rule applies as it is.
    #[cfg_attr(not(feature = "config"), allow(clippy::unused_self))]
    #[inline]
    pub(crate) fn rules_may_differ(&self) -> bool {
        #[cfg(feature = "config")]
        return self.rules.is_some();
        #[cfg(not(feature = "config"))]
        false
    }

    /// The rules as they apply now. A call takes them once, for all of its charges.
    #[cfg_attr(not(feature = "config"), allow(clippy::unused_self))]
    #[inline]
    pub(crate) fn rules_now(&self) -> CurrentRules {
        CurrentRules {
            #[cfg(feature = "config")]
            table: self.rules.as_ref().map(crate::config::Rules::now),
        }
    }

    /// Receives each change of the rules from now on. `None` if they can't change.
    #[cfg_attr(not(feature = "config"), allow(clippy::unused_self))]
    pub(crate) fn rule_changes(&self) -> Option<Receiver<()>> {
        #[cfg(feature = "config")]
        return self.rules.as_ref().map(crate::config::Rules::changes);
        #[cfg(not(feature = "config"))]
        None
    }
}

/// The rules as they applied when a call took them.
pub(crate) struct CurrentRules {
    #[cfg(feature = "config")]
    table: Option<arc_swap::Guard<Arc<crate::config::OverrideTable>>>,
}

#[cfg_attr(not(feature = "config"), allow(clippy::unused_self, clippy::unnecessary_wraps, unused_variables))]
impl CurrentRules {
    /// The rule as it applies to a key. `None` if it is skipped.
    pub(crate) fn applied<'a>(&'a self, rule: &'a Rule, key: &Key, kind: CallKind) -> Option<Cow<'a, Rule>> {
        #[cfg(feature = "config")]
        if let Some(table) = &self.table {
            return table.apply(rule, key, kind);
        }
        Some(Cow::Borrowed(rule))
    }

    /// The rule as it applied to the calls for a key, or to an ordinary one if none was made. Also if it is skipped.
    pub(crate) fn applied_as_calls<'a>(&'a self, rule: &'a Rule, key: &Key) -> Cow<'a, Rule> {
        #[cfg(feature = "config")]
        if let Some(table) = &self.table {
            return table.apply_as_calls(rule, key);
        }
        Cow::Borrowed(rule)
    }

    /// Whether the file may let calls of the rule wait for slots.
    #[cfg(feature = "tower")]
    pub(crate) fn has_slots(&self, prefix: &str) -> bool {
        #[cfg(feature = "config")]
        if let Some(table) = &self.table {
            return table.has_slots(prefix);
        }
        false
    }

    /// The policy for store errors that the file sets for the rule.
    pub(crate) fn on_store_error(&self, prefix: &str) -> Option<OnStoreError> {
        #[cfg(feature = "config")]
        if let Some(table) = &self.table {
            return table.on_store_error(prefix);
        }
        None
    }
}
