//! The settings in force: file and environment merged, with earlier versions to fall back to.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap},
    iter,
    sync::{
        Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use foldhash::fast::FixedState;
use tokio::time::Instant;

use super::{
    parse::{RuleEntry, RulesText},
    rule_override::RuleOverride,
};
use crate::{Key, OnStoreError, Rule, SetupError, rule::call_kind::CallKind};

/// The environment variable whose settings go before those of a file.
pub(super) const VARIABLE: &str = "RATELIMIT_RULES";

/// How long calls have to use a prefix, from the first call on.
const TRIAL: Duration = Duration::from_secs(60);

/// At most so many rules are found by their id.
const PLACES: usize = 32;

/// The settings of all rules, by prefix. Those of a key are merged over those of its rule.
#[derive(Debug, Default)]
pub(crate) struct OverrideTable {
    pub(super) by_prefix: HashMap<String, RuleEntry<Arc<OverrideVersion>>, FixedState>,
    /// Rules for which all keys have one entry, or none, as they apply: by id, where no other had the place
    /// before. Most calls find theirs here, without its prefix.
    by_id: [OnceLock<AppliedRule>; PLACES],
    first_call: OnceLock<Instant>,
    calls: AtomicU32,
    /// No report of unused prefixes is due: `Rules::expect` has checked them, or the log has named them.
    is_checked: AtomicBool,
    /// Prefixes that were checked in the table before. They are not reported again.
    checked_before: BTreeSet<String>,
}

impl OverrideTable {
    /// The table of a text that replaces `before`.
    ///
    /// Fails if the settings of a rule are invalid only together: parts of them may come from the
    /// environment.
    pub(super) fn new(text: RulesText, before: &Self) -> Result<Self, SetupError> {
        let mut by_prefix = HashMap::default();
        for (prefix, RuleEntry { all, keys }) in text.by_prefix {
            let check = |settings: &RuleOverride, key: &str| match settings.own_fault() {
                // The text was checked alone, and so was the variable.
                Some(fault) => Err(SetupError::new(format!(
                    "rules.{prefix}{key}: invalid rule, together with the variable {VARIABLE}: {fault}"
                ))),
                None => Ok(()),
            };
            check(&all, "")?;
            let known = before.by_prefix.get(&prefix);
            let all = OverrideVersion::new(all, None, known.map(|known| &known.all));
            let mut of_keys = BTreeMap::new();
            for (key, settings) in keys {
                let settings = settings.merged_over(&all.settings);
                check(&settings, &format!(".keys.{:?}", String::from_utf8_lossy(&key)))?;
                // Settings of a new key that do not fit leave it those of all keys.
                let known = known.and_then(|known| known.keys.get(&key)).unwrap_or(&all);
                of_keys.insert(key, OverrideVersion::new(settings, Some(&all), Some(known)));
            }
            by_prefix.insert(prefix, RuleEntry { all, keys: of_keys });
        }
        let is_checked = before.is_checked.load(Ordering::Relaxed);
        let known = before.by_prefix.keys().filter(|prefix| is_checked || before.checked_before.contains(*prefix));
        let checked_before = known.cloned().collect();
        Ok(Self { by_prefix, checked_before, ..Self::default() })
    }

    /// Fails if there are other prefixes than these.
    pub(super) fn check_prefixes(&self, expected: &BTreeSet<&'static str>) -> Result<(), SetupError> {
        let quoted = |prefixes: &mut dyn Iterator<Item = &str>| {
            prefixes.map(|prefix| format!("`{prefix}`")).collect::<Vec<_>>().join(", ")
        };
        let is_unknown = |prefix: &&str| !expected.contains(prefix);
        let unknown = self.by_prefix.keys().map(String::as_str).filter(is_unknown).collect::<BTreeSet<_>>();
        let unknown = quoted(&mut unknown.into_iter());
        if !unknown.is_empty() {
            let expected = quoted(&mut expected.iter().copied());
            return Err(SetupError::new(format!(
                "no rule of the program has the prefix {unknown}; those of its rules are {expected}"
            )));
        }
        self.is_checked.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// The rule in force for a key. `None` if it is disabled.
    #[allow(clippy::cast_possible_truncation)] // less than the number of places
    pub(crate) fn apply<'a>(&'a self, rule: &'a Rule, key: &Key, kind: CallKind) -> Option<Cow<'a, Rule>> {
        if !self.is_checked.load(Ordering::Relaxed) {
            self.look_for_unused();
        }
        let place = &self.by_id[rule.id().0 as usize % PLACES];
        if let Some(first) = place.get()
            && first.is_of(rule, kind)
        {
            return first.applied();
        }
        let entry = self.by_prefix.get(rule.prefix());
        let version = entry.map(|entry| version(entry, key));
        let applied = version.map_or(Some(Cow::Borrowed(rule)), |version| version.applied(rule, kind));
        if entry.is_none_or(|entry| entry.keys.is_empty()) {
            place.get_or_init(|| AppliedRule { code: *rule, kind, applied: applied.as_deref().copied() });
        }
        applied
    }

    /// The rule for a key in calls of the kind that was made first, with this entry of the file or an earlier one, or
    /// with the entry of all keys. Also if it is disabled: its counters are still there.
    pub(crate) fn apply_as_calls<'a>(&'a self, rule: &'a Rule, key: &Key) -> Cow<'a, Rule> {
        let Some(entry) = self.by_prefix.get(rule.prefix()) else { return Cow::Borrowed(rule) };
        let version = version(entry, key);
        let kind = [version, &entry.all].into_iter().find_map(|version| version.kind_of_calls(rule));
        Cow::Owned(version.rule_by_latest_fitting(rule, kind.unwrap_or_default()))
    }

    /// Reports unused prefixes when the trial is over. The clock is read in each of the first calls,
    /// then in a few of many.
    fn look_for_unused(&self) {
        const READ_EVERY: u32 = 256;
        let calls = self.calls.load(Ordering::Relaxed);
        self.calls.store(calls.saturating_add(1), Ordering::Relaxed); // some may be lost
        let reads_clock = calls < READ_EVERY || calls.is_multiple_of(READ_EVERY) || calls == u32::MAX;
        if reads_clock && self.first_call.get_or_init(Instant::now).elapsed() >= TRIAL {
            self.report_unused();
        }
    }

    /// Logs the prefixes that no call has used.
    #[cold]
    fn report_unused(&self) {
        if self.is_checked.swap(true, Ordering::Relaxed) {
            return;
        }
        let is_unused = |entry: &RuleEntry<Arc<OverrideVersion>>| {
            !iter::once(&entry.all).chain(entry.keys.values()).any(|version| version.is_used())
        };
        let unused =
            self.by_prefix.iter().filter(|(prefix, entry)| is_unused(entry) && !self.checked_before.contains(*prefix));
        let unused: BTreeSet<_> = unused.map(|(prefix, _)| prefix.as_str()).collect();
        if !unused.is_empty() {
            tracing::warn!(
                prefixes = Vec::from_iter(unused).join(", "),
                "no call has used these rules of the file within a minute; correct misspelt prefixes, and name the \
                 program's rules with `Rules::expect` to make others an error"
            );
        }
    }

    /// Whether calls of the rule with this prefix may wait for slots.
    #[cfg(feature = "tower")]
    pub(crate) fn has_slots(&self, prefix: &str) -> bool {
        let Some(entry) = self.by_prefix.get(prefix) else { return false };
        iter::once(&entry.all)
            .chain(entry.keys.values())
            .any(|version| iter::once(version).chain(&version.before).any(|version| version.settings.has_slots()))
    }

    /// The failure policy for calls of the rule with this prefix.
    pub(crate) fn on_store_error(&self, prefix: &str) -> Option<OnStoreError> {
        self.by_prefix.get(prefix)?.all.settings.on_store_error
    }
}

/// The settings of a rule for a key.
fn version<'a>(entry: &'a RuleEntry<Arc<OverrideVersion>>, key: &Key) -> &'a OverrideVersion {
    let has_keys = !entry.keys.is_empty() && *key != Key::NONE;
    let of_key = has_keys.then(|| key.with_text(|text| entry.keys.get(text))).flatten();
    of_key.unwrap_or(&entry.all)
}

/// Settings, and the earlier ones to use for calls that these do not fit.
#[derive(Debug, Default)]
pub(super) struct OverrideVersion {
    pub(super) settings: RuleOverride,
    /// Of settings of a key: those of all keys, which are the rule of [`Rules::rule`](super::Rules::rule).
    of_all: Option<Arc<Self>>,
    /// The calls that the settings fit, as far as tried: the rule of the code without its count and burst, which may
    /// change with each call, and the kind of call.
    fits: RwLock<Vec<(Rule, CallKind)>>,
    /// The log has an error about these settings.
    is_reported: AtomicBool,
    /// The log has a warning that calls ignore their ban.
    is_ban_reported: AtomicBool,
    first: OnceLock<AppliedRule>,
    /// The rule and the kind of the first call with an earlier version.
    first_before: Option<(Rule, CallKind)>,
    /// Earlier versions, newest first: the last that fits each kind of call, and some that no call has
    /// tried.
    pub(super) before: Vec<Arc<Self>>,
}

/// A rule of the code, as it applies to the kind of call that came first. Most rules have one kind.
#[derive(Debug)]
struct AppliedRule {
    code: Rule,
    kind: CallKind,
    /// `None` if it is disabled.
    applied: Option<Rule>,
}

impl AppliedRule {
    #[inline]
    fn is_of(&self, code: &Rule, kind: CallKind) -> bool {
        self.code.is_same(code) && self.kind == kind
    }

    #[inline]
    fn applied(&self) -> Option<Cow<'_, Rule>> {
        self.applied.as_ref().map(Cow::Borrowed)
    }
}

/// The number of untried versions that are kept.
const MAX_UNTRIED: usize = 8;
/// The number of versions that are kept, the newest ones: a rule that the file defines may fit another one each time.
const MAX_KEPT: usize = 32;
/// The number of calls that a version remembers to fit. A program has few rules with one prefix.
const MAX_CALLS: usize = 64;

impl OverrideVersion {
    /// `of_all`: of settings of a key, those of all keys.
    fn new(settings: RuleOverride, of_all: Option<&Arc<Self>>, before: Option<&Arc<Self>>) -> Arc<Self> {
        let (mut kept, mut known, mut untried) = (Vec::new(), Vec::new(), 0);
        for version in before.into_iter().flat_map(|before| iter::once(before).chain(&before.before)) {
            let fits = version.fits().clone(); // a lock that is held twice may wait for ever
            untried += usize::from(fits.is_empty());
            let is_latest_for_some = kept.len() < MAX_KEPT && fits.iter().any(|call| !known.contains(call));
            if is_latest_for_some || fits.is_empty() && untried <= MAX_UNTRIED {
                kept.push(version.without_history());
            }
            known.extend(fits);
        }
        let first =
            before.and_then(|before| before.first.get().map(|first| (first.code, first.kind)).or(before.first_before));
        Arc::new(Self { settings, of_all: of_all.cloned(), before: kept, first_before: first, ..Self::default() })
    }

    /// A copy without earlier versions, which would otherwise accumulate.
    fn without_history(&self) -> Arc<Self> {
        let (settings, fits) = (self.settings.clone(), self.fits().clone().into());
        Arc::new(Self { settings, fits, ..Self::default() })
    }

    fn fits(&self) -> RwLockReadGuard<'_, Vec<(Rule, CallKind)>> {
        self.fits.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a call has tried these settings, or earlier ones.
    fn is_used(&self) -> bool {
        let was_tried = |version: &Arc<Self>| !version.fits().is_empty();
        let was_seen = !self.fits().is_empty() || self.is_reported.load(Ordering::Relaxed);
        was_seen || self.first.get().is_some() || self.before.iter().any(was_tried)
    }

    /// See [`OverrideVersion::latest_fitting`].
    fn applied(&self, code: &Rule, kind: CallKind) -> Option<Cow<'_, Rule>> {
        let first = self.first.get().unwrap_or_else(|| {
            // Before the lock: it may write to the log, whose subscriber may call a function with
            // this rule.
            let first = AppliedRule { code: *code, kind, applied: self.latest_fitting(code, kind) };
            self.first.get_or_init(|| first)
        });
        if first.is_of(code, kind) {
            return first.applied();
        }
        self.latest_fitting(code, kind).map(Cow::Owned)
    }

    /// The kind of the first call, if it had this rule of the code; also with another count, which may change with each
    /// call, unless the settings fit some calls of the rule.
    fn kind_of_calls(&self, code: &Rule) -> Option<CallKind> {
        let first = self.first.get().map(|first| (first.code, first.kind)).or(self.first_before);
        let (its, kind) = first?;
        let fit_some = || self.fits().iter().any(|(rule, _)| rule.id() == code.id());
        (its == *code || its.id() == code.id() && !fit_some()).then_some(kind)
    }

    /// The rule of the code with the newest settings that fit it, or else as it is. `None` if it is
    /// disabled.
    pub(super) fn latest_fitting(&self, rule: &Rule, kind: CallKind) -> Option<Rule> {
        if self.settings.enabled == Some(false) {
            // If they do not fit, and the rule is enabled again, its earlier settings apply.
            if self.settings.fault_with(rule, kind).is_none() {
                self.note_fit(rule, kind);
            }
            return None;
        }
        Some(self.rule_by_latest_fitting(rule, kind))
    }

    /// [`Self::latest_fitting`], whether it is disabled or not.
    fn rule_by_latest_fitting(&self, rule: &Rule, kind: CallKind) -> Rule {
        // Whether settings fit can only be seen together with the rule in the code.
        let Some(fault) = self.settings.fault_with(rule, kind) else {
            return self.use_for(rule, rule, kind);
        };
        if !self.is_reported.swap(true, Ordering::Relaxed) {
            tracing::error!(
                rule = rule.prefix(),
                fault,
                "ignoring settings of a rule that do not fit the code, for the calls that they do not fit"
            );
        }
        // A rule that the file alone defines is its newest settings. Earlier ones defined another.
        let of_all = self.of_all.as_ref().map_or(&self.settings, |all| &all.settings);
        let own = of_all.to_rule(rule.prefix()).map(|own| own.with_count(rule.count())); // a call may have a count of its own
        let is_from_file = own.as_ref() == Some(rule);
        for version in &self.before {
            let base = version.settings.to_rule(rule.prefix()).filter(|_| is_from_file).unwrap_or(*rule);
            if version.settings.fault_with(&base, kind).is_none() {
                // Whether it is enabled, the newest settings say.
                return version.use_for(&base, rule, kind);
            }
        }
        *rule
    }

    /// Applies the settings to a rule, and records that they fit `code`.
    fn use_for(&self, rule: &Rule, code: &Rule, kind: CallKind) -> Rule {
        self.note_fit(code, kind);
        let applied = self.settings.apply(rule);
        // A call that waits for its limit cannot ban, unless that is a mistake of the code.
        if !kind.waits || applied.ban().is_none() || code.ban().is_some() {
            return applied;
        }
        if !self.is_ban_reported.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                rule = code.prefix(),
                "ignoring the ban that the rules file sets, for calls that wait for their limit"
            );
        }
        applied.with_ban(Duration::ZERO)
    }

    fn note_fit(&self, code: &Rule, kind: CallKind) {
        // Settings fit whether a call waits or not.
        let call = (code.with_count(1).sized_by_count(), CallKind { waits: false, ..kind });
        let is_news = |fits: &[_]| fits.len() < MAX_CALLS && !fits.contains(&call);
        if !is_news(&self.fits()) {
            return;
        }
        let mut fits = self.fits.write().unwrap_or_else(PoisonError::into_inner);
        if is_news(&fits) {
            fits.push(call);
        }
    }
}
