//! Rules in a file: what it says of a prefix holds instead of what the code says (feature `config`).
//!
//! ```toml
//! [rules.item]                # the rule with this prefix
//! count = 500                 # all that is not said stays as it is in the code
//!
//! [rules.search]
//! count = 100
//! ttl = 1
//! unit = "Seconds"
//! algorithm = "TokenBucket"
//! burst = 200
//! shadow = true
//!
//! [rules.search.keys]         # of these keys alone
//! "4711" = { count = 1000, burst = 2000 }
//! "(eu,4712)" = { enabled = false }
//! ```
//!
//! | setting | value | |
//! |---|---|---|
//! | `enabled` | `true` or `false` | `false`: the rule is not asked |
//! | `count` | at least 1 | acts on the next call; what was counted goes on to count |
//! | `ttl`, `unit` | at least 1, 1 if not said; `"Milliseconds"`, `"Seconds"`, `"Minutes"`, `"Hours"` or `"Days"` | the period. Another one starts fresh |
//! | `algorithm` | `"FixedWindow"`, `"SlidingLog"`, `"SlidingWindow"`, `"TokenBucket"` or `"LeakyBucket"` | another one starts fresh |
//! | `align` | `true` or `false` | of `FixedWindow` |
//! | `buckets` | at least 1, 1 if not said | of `SlidingWindow` |
//! | `burst`, `refill` | at least 1, the count if not said; `"Greedy"` or `"Interval"` | of `TokenBucket` |
//! | `queue` | needed | of `LeakyBucket` |
//! | `shadow` | `true` or `false` | see [`Rule::with_shadow`] |
//! | `on_store_error` | `"Local"`, `"Allow"` or `"Deny"` | see [`OnStoreError`]; of several rules of a call, the first that says something |
//! | `keys` | a table of tables, by key as [`Key`] prints it | the same settings, for one key |
//!
//! The number of a count, burst or queue is at most 2^52. A table beside `[rules]` is an error, unless the program says that it is its
//! own, by [`Rules::watch_beside`]. Settings that do not fit the rule of the code, a `TokenBucket` for a rule whose calls are settled
//! say, do not hold: the last ones that did hold on, or the code. The log has an error then.
//!
//! The options of an algorithm stand beside the word `algorithm`. Where a file changes the count of a token bucket whose algorithm is in the code, its burst stays.
//!
//! The environment goes over the file: what stands in the variable `RATELIMIT_RULES` is read as if it stood in the table `[rules]`, for example
//! `RATELIMIT_RULES='item.count = 50'`.
//!
//! ```
//! use ratelimit_runtime::{Limiter, Rule, config::Rules};
//! use std::time::Duration;
//!
//! const ITEM: Rule = Rule::new("item", 1, Duration::from_secs(60));
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let rules = Rules::parse("[rules.item]\ncount = 2")?;
//! let limiter = Limiter::builder("memory://").rules(rules).build().await?;
//! assert_eq!(limiter.acquire(&ITEM, 4711).await.unwrap().limit(), 2);
//!
//! let mistake = Rules::parse("[rules.item]\ncuont = 2").unwrap_err();
//! assert!(mistake.to_string().starts_with("line 2: unknown field `cuont`"), "{mistake}");
//! # Ok::<_, ratelimit_runtime::SetupError>(()) }).unwrap();
//! ```

mod current;
mod file;
mod usage;
mod watch;

use std::{
    collections::BTreeSet,
    fmt,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use arc_swap::Guard;
use tokio::sync::watch::Receiver;

use self::{current::Current, file::Text};
pub(crate) use self::{file::Table, usage::Use};
use crate::{Key, OnStoreError, Rule, SetupError, observe::LogThrottle};

/// What a file says of rules. A cheap handle: clones change together.
///
/// Given to a limiter with [`Builder::rules`](crate::Builder::rules). See [`config`](crate::config) for what may stand in the file.
#[derive(Clone)]
pub struct Rules(Arc<Current>);

impl Rules {
    /// What a text says. It does not change.
    ///
    /// # Errors
    ///
    /// A [`SetupError`] that says in which line what is wrong.
    pub fn parse(text: &str) -> Result<Self, SetupError> {
        Self::parse_beside(text, &[])
    }

    /// As [`Rules::parse`], of a text in which the program has tables of its own. Any other table is an error.
    ///
    /// # Errors
    ///
    /// As [`Rules::parse`].
    pub fn parse_beside(text: &str, own_tables: &[&str]) -> Result<Self, SetupError> {
        Ok(Self(Current::new(Text::parse(text, own_tables)?.complete(&Table::default())?)))
    }

    /// What a file says, now and whenever it is changed, with the environment over it.
    ///
    /// A change acts within a second, on calls that begin then and on those that wait. It is seen whatever way the file is changed, also if it is a
    /// link to another one then: a thread reads it a few times a second for as long as a handle is left. A file that has become wrong, or is gone,
    /// changes nothing; the log says what is wrong with it, and in which line. Settings that do not fit the rule of the code change
    /// nothing either: the last ones that did hold on.
    ///
    /// A file that is written slowly is taken in when it has been the same for 0.6 seconds; if its last line has no end, for 2 seconds,
    /// as the line may be half written. To be sure, write another file and rename it.
    ///
    /// ```no_run
    /// # use ratelimit_runtime::{Limiter, SetupError, config::Rules};
    /// # async fn start() -> Result<(), SetupError> {
    /// let rules = Rules::watch("limits.toml")?;
    /// Limiter::builder("redis://127.0.0.1:6379").rules(rules).build().await?.install()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// A [`SetupError`] if the file can't be read, or that says in which line what is wrong; also of the variable.
    pub fn watch(path: impl AsRef<Path>) -> Result<Self, SetupError> {
        Self::watch_beside(path, &[])
    }

    /// As [`Rules::watch`], of a file in which the program has tables of its own. Any other table is an error.
    ///
    /// # Errors
    ///
    /// As [`Rules::watch`].
    pub fn watch_beside(path: impl AsRef<Path>, own_tables: &[&str]) -> Result<Self, SetupError> {
        watch::start(path.as_ref(), own_tables).map(Self)
    }

    /// The rule with this prefix, if the file says enough of it: its count and its unit. For programs whose rules are nowhere else.
    ///
    /// Ask with it, and what the file says later holds too. A prefix that was asked for once is kept for as long as the program runs.
    ///
    /// ```
    /// # use ratelimit_runtime::config::Rules;
    /// let rules = Rules::parse("[rules.item]\ncount = 2\nunit = \"Hours\"")?;
    /// assert_eq!(rules.rule("item").unwrap().count(), 2);
    /// assert_eq!(rules.rule("order"), None);
    /// # Ok::<_, ratelimit_runtime::SetupError>(())
    /// ```
    pub fn rule(&self, prefix: &str) -> Option<Rule> {
        self.now().by_prefix.get(prefix)?.all.settings.to_rule(keep(prefix))
    }

    /// The prefixes that the file speaks of, in order.
    pub fn prefixes(&self) -> Vec<String> {
        self.now().by_prefix.keys().cloned().collect()
    }

    /// The table that holds now. A call takes one, for all of its rules.
    pub(crate) fn now(&self) -> Guard<Arc<Table>> {
        self.0.table.load()
    }

    /// Tells of each change from now on.
    pub(crate) fn changes(&self) -> Receiver<()> {
        self.0.changes()
    }
}

impl Table {
    /// The rule as it holds for a key. `None` if it is not to be asked.
    pub(crate) fn hold(&self, rule: &Rule, key: Option<&Key>, of: Use) -> Option<Rule> {
        static SAID: LogThrottle = LogThrottle::new();
        let Some(of_rule) = self.by_prefix.get(rule.prefix()) else { return Some(*rule) };
        let of_key = match key {
            Some(key) if !of_rule.keys.is_empty() => key.with_text(|text| of_rule.keys.get(text)),
            _ => None,
        };
        // Only together with what the code says can it be seen that settings are wrong.
        let (settings, fault) = of_key.unwrap_or(&of_rule.all).fitting(rule, of);
        if let Some(fault) = fault
            && SAID.allow()
        {
            tracing::error!(
                rule = rule.prefix(),
                fault,
                "a rule stays as it was: its settings in the file do not fit the code"
            );
        }
        match settings {
            Some(settings) if settings.enabled == Some(false) => None,
            Some(settings) => Some(settings.change(rule)),
            None => Some(*rule),
        }
    }

    /// The policy for calls of this rule that the store can't decide.
    pub(crate) fn on_store_error(&self, prefix: &str) -> Option<OnStoreError> {
        self.by_prefix.get(prefix)?.all.settings.on_store_error
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Rules").field(&self.prefixes()).finish()
    }
}

/// The prefix for as long as the program runs, each once.
fn keep(prefix: &str) -> &'static str {
    static KEPT: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(prefix) = kept.get(prefix) {
        return prefix;
    }
    let prefix: &'static str = Box::leak(prefix.into());
    kept.insert(prefix);
    prefix
}
