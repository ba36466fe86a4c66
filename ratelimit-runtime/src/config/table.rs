//! The settings in force: file and environment merged, with earlier versions to fall back to.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    iter,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use super::{
    call_kind::CallKind,
    parse::{RuleEntry, RulesText},
    rule_override::RuleOverride,
};
use crate::{Key, OnStoreError, Rule, SetupError, observe::LogThrottle};

/// The settings of all rules, by prefix. Those of a key are merged over those of its rule.
#[derive(Debug, Default)]
pub(crate) struct OverrideTable {
    pub(super) by_prefix: BTreeMap<String, RuleEntry<Arc<OverrideVersion>>>,
}

impl OverrideTable {
    /// The table of a text that replaces `before`.
    ///
    /// Fails if the settings of a rule are invalid only together: parts of them may come from the
    /// environment.
    pub(super) fn new(text: RulesText, before: &Self) -> Result<Self, SetupError> {
        let mut by_prefix = BTreeMap::new();
        for (prefix, RuleEntry { all, keys }) in text.by_prefix {
            let check = |settings: &RuleOverride| match settings.own_fault() {
                Some(fault) => Err(SetupError::new(format!("rules.{prefix}: invalid rule: {fault}"))),
                None => Ok(()),
            };
            check(&all)?;
            let known = before.by_prefix.get(&prefix);
            let mut of_keys = BTreeMap::new();
            for (key, settings) in keys {
                let settings = settings.merged_over(&all);
                check(&settings)?;
                let known = known.and_then(|known| known.keys.get(&key).or(Some(&known.all)));
                of_keys.insert(key, OverrideVersion::new(settings, known));
            }
            let all = OverrideVersion::new(all, known.map(|known| &known.all));
            by_prefix.insert(prefix, RuleEntry { all, keys: of_keys });
        }
        Ok(Self { by_prefix })
    }

    /// The rule in force for a key. `None` if it is disabled.
    pub(crate) fn apply<'a>(&'a self, rule: &'a Rule, key: Option<&Key>, kind: CallKind) -> Option<Cow<'a, Rule>> {
        static LOGGED: LogThrottle = LogThrottle::new();
        let Some(entry) = self.by_prefix.get(rule.prefix()) else { return Some(Cow::Borrowed(rule)) };
        let of_key = match key {
            Some(key) if !entry.keys.is_empty() && *key != Key::NONE => key.with_text(|text| entry.keys.get(text)),
            _ => None,
        };
        // Whether settings fit can only be seen together with the rule in the code.
        let (settings, fault) = of_key.unwrap_or(&entry.all).latest_fitting(rule, kind);
        if let Some(fault) = fault
            && LOGGED.allow()
        {
            tracing::error!(
                rule = rule.prefix(),
                fault,
                "ignoring settings of a rule that do not fit the code; the rule stays as it was"
            );
        }
        match settings {
            Some(settings) if settings.enabled == Some(false) => None,
            Some(settings) => Some(Cow::Owned(settings.apply(rule))),
            None => Some(Cow::Borrowed(rule)),
        }
    }

    /// The failure policy for calls of the rule with this prefix.
    pub(crate) fn on_store_error(&self, prefix: &str) -> Option<OnStoreError> {
        self.by_prefix.get(prefix)?.all.settings.on_store_error
    }
}

/// Settings, and the earlier ones to use for calls that these do not fit.
#[derive(Debug, Default)]
pub(super) struct OverrideVersion {
    pub(super) settings: RuleOverride,
    /// The kinds of calls that the settings fit, as far as tried. One bit each, see
    /// [`CallKind::bit_with`].
    fits: AtomicU32,
    /// Earlier versions, newest first: for each kind of call the last that fits it, and recent ones
    /// that no call has tried.
    pub(super) before: Vec<Arc<Self>>,
}

/// The number of untried versions that are kept.
const MAX_UNTRIED: usize = 8;

impl OverrideVersion {
    fn new(settings: RuleOverride, before: Option<&Arc<Self>>) -> Arc<Self> {
        let (mut kept, mut known, mut untried) = (Vec::new(), 0, 0);
        for version in before.into_iter().flat_map(|before| iter::once(before).chain(&before.before)) {
            let fits = version.fits.load(Ordering::Relaxed);
            untried += usize::from(fits == 0);
            if fits & !known != 0 || fits == 0 && untried <= MAX_UNTRIED {
                kept.push(version.without_history());
            }
            known |= fits;
        }
        Arc::new(Self { settings, fits: AtomicU32::default(), before: kept })
    }

    /// A copy without earlier versions, which would otherwise accumulate.
    fn without_history(&self) -> Arc<Self> {
        let (settings, fits) = (self.settings.clone(), self.fits.load(Ordering::Relaxed).into());
        Arc::new(Self { settings, fits, before: Vec::new() })
    }

    /// The newest settings that fit a rule of the code, if any, and the fault of the newest
    /// settings of all.
    pub(super) fn latest_fitting(&self, rule: &Rule, kind: CallKind) -> (Option<&RuleOverride>, Option<String>) {
        let newest = self.settings.fault_with(rule, kind);
        let fits = |version: &&Self| version.settings.fault_with(rule, kind).is_none();
        let fitting = match newest {
            None => Some(self),
            Some(_) => self.before.iter().map(|version| &**version).find(fits),
        };
        let bit = kind.bit_with(rule);
        if let Some(version) = fitting
            && version.fits.load(Ordering::Relaxed) & bit == 0
        {
            version.fits.fetch_or(bit, Ordering::Relaxed);
        }
        (fitting.map(|version| &version.settings), newest)
    }
}
