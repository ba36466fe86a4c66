//! Rules in a file, which override those in the code (feature `config`).
//!
//! Write the file:
//!
//! ```toml
//! [rules.item]                # the rule with the prefix `item`
//! count = 500                 # settings that are missing stay as in the code: see below
//!
//! [rules.search]
//! count = 100
//! ttl = 10
//! unit = "Seconds"            # 100 in 10 seconds
//! algorithm = "TokenBucket"
//! burst = 200
//! shadow = true
//!
//! [rules.search.keys]         # only for these keys
//! "4711" = { count = 1000, algorithm = "TokenBucket", burst = 2000 }
//! "(eu,4712)" = { enabled = false }
//! ```
//!
//! Load it at the start of the program. Its changes are applied within about a second while the program runs:
//!
//! ```no_run
//! use ratelimit_runtime::{Limiter, Rule, config::Rules};
//! use std::time::Duration;
//!
//! const ITEM: Rule = Rule::new("item", 100, Duration::from_secs(60));
//! const SEARCH: Rule = Rule::new("search", 10, Duration::from_secs(1));
//!
//! # async fn start() -> Result<(), ratelimit_runtime::SetupError> {
//! let rules = Rules::watch("limits.toml")?.expect(&[&ITEM, &SEARCH])?; // other prefixes are errors
//! Limiter::builder("redis://127.0.0.1:6379").rules(rules).build().await?.install()?;
//! # Ok(()) }
//! ```
//!
//! [`Rules::parse`] takes a text, for example in a test:
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
//!
//! # Settings
//!
//! | setting | value | |
//! |---|---|---|
//! | `enabled` | `true` or `false` | `false`: the rule neither refuses nor counts any call; those that wait run |
//! | `count` | at least 1 | acts on the next call; earlier calls still count |
//! | `ttl` | at least 1; 1 if only `unit` is given | the period, in `unit`s. A change makes new counters, see below |
//! | `unit` | `"Milliseconds"`, `"Seconds"`, `"Minutes"`, `"Hours"`, `"Days"` | the unit of `ttl` |
//! | `algorithm` | an [`Algorithm`](crate::Algorithm), not `Concurrent` | a change makes new counters, see below |
//! | `align` | `true` or `false` (default) | option of `FixedWindow` |
//! | `buckets` | at least 1, by default 1 | option of `SlidingWindow` |
//! | `weighted` | `true` (default) or `false` | option of `SlidingWindow` |
//! | `burst` | at least 1, by default the count | option of `TokenBucket` |
//! | `refill` | `"Greedy"` (default) or `"Interval"` | option of `TokenBucket` |
//! | `queue` | required | option of `LeakyBucket` |
//! | `shadow` | `true` or `false` | see [`Rule::with_shadow`]; with `true`, the ban of the code does not apply |
//! | `ban` | a time such as `"10m"`, or `"0s"` for none | see [`Rule::with_ban`]; waiting calls ignore it |
//! | `on_store_error` | `"Local"`, `"Allow"`, `"Deny"`, or see below | [`OnStoreError`](crate::OnStoreError) |
//! | `keys` | a table with an entry per key | the same settings for single keys, except `on_store_error` |
//!
//! - **Times.** A period is `ttl` and `unit`: the attribute's `period = "66s"` is `ttl = 66` and
//!   `unit = "Seconds"` here. A ban is a number and `ms`, `s`, `m`, `h` or `d`. A wait for the store is
//!   `on_store_error = { Wait = { max = 1, unit = "Minutes" } }`.
//! - **Options of an algorithm** need `algorithm` beside them. Without `algorithm`, the options stay as in the
//!   code: a changed count of a `TokenBucket` does not change its burst.
//! - **New counters.** A change of the period, of the algorithm, or of `align`, `buckets`, `weighted` or `refill`
//!   makes new counters, which begin at zero. If it is taken back, the old ones go on, unless they have expired.
//! - **`#[limit_concurrent_requests]`**: `count` is the number of concurrent calls, and the time is the lease,
//!   from 1 s to 1 day. A changed lease keeps the places.
//! - **Keys** are written as a [`Key`](crate::Key) is printed: `"4711"` for a number, `"alice"` for a text,
//!   `"(eu,4712)"` for a tuple. A text with spaces is written as it is. The characters `%{}(),` within a text
//!   are escaped: a comma is `%2C`.
//! - **Several rules in one call**: the first of them that applies to the call and sets `on_store_error` decides, in
//!   the order of the attributes in the code.
//! - **Numbers**: a count, burst or queue is at most 2^52.
//! - **Tables of your own** beside `[rules]` are errors, unless the program names them: see
//!   [`Rules::watch_beside`].
//!
//! # Changes and mistakes
//!
//! - **How the file is replaced** does not matter: it may be rewritten, renamed or linked to another file,
//!   like a Kubernetes `ConfigMap`. It is read a few times a second.
//! - **An invalid file** is ignored as a whole. The rules stay as they were, and the log has an `ERROR` with
//!   the mistake and its line. At the start, it is a [`SetupError`].
//! - **Settings that do not fit the rule in the code** are ignored for the calls that they do not fit. Two
//!   examples are a `TokenBucket` for a `SlidingLog` with a settled cost, which only a log can hold, and a
//!   `LeakyBucket` for one of several rules of a call. (What a store of your own does not support, such as
//!   bans, is not noticed: calls are refused as misconfigured.) The log has one `ERROR` that says what to
//!   change. The last settings that fitted stay in effect, or else the code. If these have another algorithm or
//!   period, such calls are counted apart from other calls of the rule, which the settings fit. `enabled` and
//!   `on_store_error` of the newest entry apply also if other settings of it do not fit.
//! - **A ban** is ignored by calls that wait for their limit (`on_limit = Wait`), with a warning in the log: a
//!   banned caller should not wait. Calls with a rule of [`Rules::rule`] are refused as misconfigured.
//! - **Two limits of a function with one prefix** both get the settings. If these give them the same algorithm
//!   and period, they become one limit, the lower of the two. With equal costs a call is charged once, otherwise
//!   the costs add up. If one of different costs is settled later, the call is refused as misconfigured. Give
//!   stacked limits different prefixes.
//! - **A misspelt prefix** has no effect. [`Rules::expect`] makes it an error. Without it, the log has one
//!   warning with the prefixes that no call has used within a minute. A misspelt key below `keys` is not
//!   noticed: any key may come.
//!
//! # Environment
//!
//! The variable `RATELIMIT_RULES` overrides the file; but the file's settings of a key still override those of
//! its rule. It has the content of a table `[rules]`, for example
//! `RATELIMIT_RULES='item.count = 50'`. [`Rules::watch`] and [`Rules::watch_beside`] read it once, and
//! [`Rules::parse`] does not.

mod current;
#[cfg(all(test, not(model_check)))]
mod hostile;
mod parse;
mod rule_override;
mod table;
#[cfg(all(test, not(model_check)))]
mod tests;
mod watch;

use std::{
    collections::BTreeSet,
    fmt,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use arc_swap::Guard;
use tokio::sync::watch::Receiver;

use self::current::Current;
pub(crate) use self::table::OverrideTable;
use crate::{Rule, SetupError};

/// The rules of a file or a text. A cheap handle: clones change together.
///
/// A limiter takes it with [`Builder::rules`](crate::Builder::rules). The format is described in
/// [`config`](crate::config).
#[derive(Clone)]
pub struct Rules(Arc<Current>);

impl Rules {
    /// Parses a text. These rules change only by [`Rules::replace`].
    ///
    /// # Errors
    ///
    /// A [`SetupError`] that names the line and the mistake.
    pub fn parse(text: &str) -> Result<Self, SetupError> {
        Self::parse_beside(text, &[])
    }

    /// Parses a text in which the program has tables of its own. Any other table is an error.
    ///
    /// # Errors
    ///
    /// As [`Rules::parse`].
    pub fn parse_beside(text: &str, own_tables: &[&str]) -> Result<Self, SetupError> {
        Current::new(text, own_tables, None).map(Self)
    }

    /// Replaces the rules by those of another text, for all handles. For a program that watches its
    /// file itself, for example to change other settings with the rules.
    ///
    /// It acts on new calls and on those that wait, like a change of a watched file. Tables that the
    /// program has named as its own may be in the text. The rules of a file that is
    /// [watched](Rules::watch) stay replaced until the file changes.
    ///
    /// # Errors
    ///
    /// As [`Rules::parse`] and [`Rules::expect`]. Nothing has changed then.
    ///
    /// ```
    /// # use ratelimit_runtime::config::Rules;
    /// let rules = Rules::parse("[rules.item]\ncount = 2\nunit = \"Hours\"")?;
    /// rules.replace("[rules.item]\ncount = 3\nunit = \"Hours\"")?;
    /// assert_eq!(rules.rule("item").unwrap().count(), 3);
    ///
    /// assert!(rules.replace("[rules.item]\ncount = 0").is_err());
    /// assert_eq!(rules.rule("item").unwrap().count(), 3);
    /// # Ok::<_, ratelimit_runtime::SetupError>(())
    /// ```
    pub fn replace(&self, text: &str) -> Result<(), SetupError> {
        self.0.replace(text)
    }

    /// Reads a file, and applies its changes while the program runs. The environment overrides it.
    ///
    /// A change acts within about a second, on new calls and on those that wait. A thread polls the file
    /// a few times a second for as long as a handle exists, so every kind of change is seen:
    /// rewritten, renamed or linked to another file.
    ///
    /// An invalid or missing file changes nothing; the log names the line and the mistake. Settings
    /// that do not fit the rule in the code change nothing either: the last ones that did stay in
    /// effect.
    ///
    /// A file that is written slowly is applied once it has not changed for 0.6 seconds; without a
    /// final newline for 2 seconds, as the last line may be incomplete. To be safe, write a new
    /// file and rename it.
    ///
    /// ```no_run
    /// # use ratelimit_runtime::{Limiter, SetupError, config::Rules};
    /// # async fn start() -> Result<(), SetupError> {
    /// let rules = Rules::watch("limits.toml")?;
    /// Limiter::builder("redis://127.0.0.1:6379").rules(rules).build().await?.install()?;
    /// # Ok(()) }
    /// ```
    ///
    /// A thread of this process reads the file. A forked process sees no changes: fork first.
    ///
    /// # Errors
    ///
    /// A [`SetupError`] if the file cannot be read, or if the file or the environment variable is
    /// invalid: then it names the line and the mistake.
    pub fn watch(path: impl AsRef<Path>) -> Result<Self, SetupError> {
        Self::watch_beside(path, &[])
    }

    /// Watches a file in which the program has tables of its own. Any other table is an error.
    ///
    /// # Errors
    ///
    /// As [`Rules::watch`].
    pub fn watch_beside(path: impl AsRef<Path>, own_tables: &[&str]) -> Result<Self, SetupError> {
        watch::start(path.as_ref(), own_tables).map(Self)
    }

    /// Names the rules of the program. Settings with any other prefix are then an error.
    ///
    /// Later changes of a watched file are checked, too: a file with another prefix changes
    /// nothing, and the log names the prefix. The rules apply to all handles, in place of those of
    /// an earlier call.
    ///
    /// # Errors
    ///
    /// A [`SetupError`] that names the prefixes which none of the rules has.
    ///
    /// ```
    /// use ratelimit_runtime::{Rule, config::Rules};
    /// use std::time::Duration;
    ///
    /// const ITEM: Rule = Rule::new("item", 100, Duration::from_secs(60));
    /// const ORDER: Rule = Rule::new("order", 10, Duration::from_secs(60));
    ///
    /// Rules::parse("[rules.order]\ncount = 5")?.expect(&[&ITEM, &ORDER])?;
    ///
    /// let misspelt = Rules::parse("[rules.ordr]\ncount = 5")?.expect(&[&ITEM, &ORDER]).unwrap_err();
    /// assert_eq!(
    ///     misspelt.to_string(),
    ///     "no rule of the program has the prefix `ordr`; those of its rules are `item`, `order`"
    /// );
    /// # Ok::<_, ratelimit_runtime::SetupError>(())
    /// ```
    pub fn expect(self, rules: &[&Rule]) -> Result<Self, SetupError> {
        self.0.expect(rules.iter().map(|rule| rule.prefix()).collect())?;
        Ok(self)
    }

    /// The rule with this prefix, for programs whose rules are only in the file. `None` if the file
    /// does not set its count and unit.
    ///
    /// Calls with it follow later changes of the file, too. But a setting that the file no longer has stays as it is
    /// in this rule: take the rule anew after each change, or write the setting out, such as `shadow = false`. Each
    /// prefix asked for is kept in memory until the program ends.
    ///
    /// ```
    /// # use ratelimit_runtime::config::Rules;
    /// let rules = Rules::parse("[rules.item]\ncount = 2\nunit = \"Hours\"")?;
    /// assert_eq!(rules.rule("item").unwrap().count(), 2);
    /// assert_eq!(rules.rule("order"), None);
    /// # Ok::<_, ratelimit_runtime::SetupError>(())
    /// ```
    pub fn rule(&self, prefix: &str) -> Option<Rule> {
        self.now().by_prefix.get(prefix)?.all.settings.to_rule(intern(prefix))
    }

    /// The prefixes in the file, sorted.
    pub fn prefixes(&self) -> Vec<String> {
        let mut prefixes: Vec<_> = self.now().by_prefix.keys().cloned().collect();
        prefixes.sort_unstable();
        prefixes
    }

    /// The table in force. A call takes one, for all of its rules.
    pub(crate) fn now(&self) -> Guard<Arc<OverrideTable>> {
        self.0.table.load()
    }

    /// Notified of each change from now on.
    pub(crate) fn changes(&self) -> Receiver<()> {
        self.0.changes()
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Rules").field(&self.prefixes()).finish()
    }
}

/// The prefix as a static string, leaked once each.
fn intern(prefix: &str) -> &'static str {
    static INTERNED: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut interned = INTERNED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(prefix) = interned.get(prefix) {
        return prefix;
    }
    let prefix: &'static str = Box::leak(prefix.into());
    interned.insert(prefix);
    prefix
}
