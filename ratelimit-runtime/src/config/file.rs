//! What stands in the file, read and checked.

use std::{
    collections::BTreeMap,
    iter,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use serde::Deserialize;
use toml::Spanned;

use super::usage::Use;
use crate::{Algorithm, OnStoreError, Refill, Rule, SetupError};

/// Settings as they stand in a text, by prefix.
#[derive(Debug, Default)]
pub(super) struct Text {
    by_prefix: BTreeMap<String, OfRule<Settings>>,
}

/// All settings of file and environment together, by prefix.
#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(super) by_prefix: BTreeMap<String, OfRule<Arc<Version>>>,
}

#[derive(Debug, Default)]
pub(super) struct OfRule<S> {
    pub(super) all: S,
    /// By what the key prints. In a [`Table`], with the settings of the rule below those of the key.
    pub(super) keys: BTreeMap<Box<[u8]>, S>,
}

/// Settings, and those that hold where these do not fit the rule of the code.
#[derive(Debug, Default)]
pub(super) struct Version {
    pub(super) settings: Settings,
    /// The kinds of calls that these have been found to fit, a bit each: see [`Use::bit_with`].
    fits: AtomicU32,
    /// Earlier versions, the newest first: of each kind of call the last that is known to fit, and
    /// recent ones that no call has tried.
    before: Vec<Arc<Self>>,
}

/// How many versions are kept that no call has tried.
const UNTRIED: usize = 8;

impl Version {
    fn new(settings: Settings, before: Option<&Arc<Self>>) -> Arc<Self> {
        let (mut kept, mut known, mut untried) = (Vec::new(), 0, 0);
        for version in before.into_iter().flat_map(|before| iter::once(before).chain(&before.before)) {
            let fits = version.fits.load(Ordering::Relaxed);
            untried += usize::from(fits == 0);
            if fits & !known != 0 || fits == 0 && untried <= UNTRIED {
                kept.push(version.alone());
            }
            known |= fits;
        }
        Arc::new(Self { settings, fits: AtomicU32::default(), before: kept })
    }

    /// The same without versions before, which would be kept for ever.
    fn alone(&self) -> Arc<Self> {
        let (settings, fits) = (self.settings.clone(), self.fits.load(Ordering::Relaxed).into());
        Arc::new(Self { settings, fits, before: Vec::new() })
    }

    /// The newest settings that fit a rule of the code, if any do, and the fault of the newest of all.
    pub(super) fn fitting(&self, rule: &Rule, of: Use) -> (Option<&Settings>, Option<String>) {
        let newest = self.settings.fault(rule, of);
        let fitting = match newest {
            None => Some(self),
            Some(_) => self.before.iter().map(|version| &**version).find(|it| it.settings.fault(rule, of).is_none()),
        };
        let bit = of.bit_with(rule);
        if let Some(version) = fitting
            && version.fits.load(Ordering::Relaxed) & bit == 0
        {
            version.fits.fetch_or(bit, Ordering::Relaxed);
        }
        (fitting.map(|version| &version.settings), newest)
    }
}

/// What is said of one rule; the rest stays as it is.
#[derive(Clone, Debug, Default)]
pub(super) struct Settings {
    pub(super) enabled: Option<bool>,
    count: Option<u64>,
    period: Option<Duration>,
    algorithm: Option<Word>,
    shadow: Option<bool>,
    pub(super) on_store_error: Option<OnStoreError>,
}

/// An algorithm; without a number, a bucket holds the count.
#[derive(Clone, Copy, Debug)]
enum Word {
    Known(Algorithm),
    BucketOfCount(Refill),
}

impl Settings {
    /// The rule with all that is said here.
    pub(super) fn change(&self, rule: &Rule) -> Rule {
        let count = self.count.unwrap_or(rule.count());
        let algorithm = match self.algorithm {
            None => rule.algorithm(),
            Some(Word::Known(algorithm)) => algorithm,
            Some(Word::BucketOfCount(refill)) => Algorithm::TokenBucket { burst: count, refill },
        };
        let changed = Rule::new(rule.prefix(), count, self.period.unwrap_or(rule.period())).with_algorithm(algorithm);
        let changed =
            changed.with_shadow(self.shadow.unwrap_or(rule.is_shadow())).with_denial_cache(rule.caches_denials());
        // Other algorithms have none.
        if let Algorithm::FixedWindow { .. } = algorithm { changed.with_prefetch(rule.prefetch()) } else { changed }
    }

    /// The rule, if all of it is said here that a rule needs.
    pub(super) fn to_rule(&self, prefix: &'static str) -> Option<Rule> {
        let rule = Rule::new(prefix, self.count?, self.period?);
        Some(self.change(&rule))
    }

    /// The reason why a rule of the code can't be changed like this.
    fn fault(&self, rule: &Rule, of: Use) -> Option<String> {
        let changed = self.change(rule);
        if let (Some(fault), false) = (changed.fault(), rule.has_fault()) {
            return Some(fault);
        }
        let (before, after) = (rule.algorithm(), changed.algorithm());
        let is_leaky = |algorithm| matches!(algorithm, Algorithm::LeakyBucket { .. });
        match () {
            () if before == after => None,
            () if rule.is_concurrent() => Some("places can't be counted by another algorithm".into()),
            () if of.is_settled && before == Algorithm::SlidingLog => {
                Some(format!("calls that are charged when they are over need a SlidingLog, and this is {after:?}"))
            }
            () if of.is_one_of_several && is_leaky(after) && !is_leaky(before) => {
                Some("a LeakyBucket stands alone, and this is one of several rules of a call".into())
            }
            () => None,
        }
    }

    /// Whether a rule can be like this, as far as that is said here.
    fn check(&self, place: &Range<usize>) -> Result<(), Fault> {
        match self.to_rule("checked").and_then(|rule| rule.fault()) {
            Some(fault) => Err(Fault(format!("a rule can't be like this: {fault}"), place.clone())),
            None => Ok(()),
        }
    }

    fn over(self, under: &Self) -> Self {
        Self {
            enabled: self.enabled.or(under.enabled),
            count: self.count.or(under.count),
            period: self.period.or(under.period),
            algorithm: self.algorithm.or(under.algorithm),
            shadow: self.shadow.or(under.shadow),
            on_store_error: self.on_store_error.or(under.on_store_error),
        }
    }
}

#[derive(Deserialize)]
struct File {
    rules: Option<RawRules>,
}

type TopLevel = BTreeMap<Spanned<String>, toml::Value>;

type RawRules = BTreeMap<Spanned<String>, RawRule>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRule {
    enabled: Option<bool>,
    count: Option<Spanned<u64>>,
    ttl: Option<Spanned<u64>>,
    unit: Option<Spanned<Unit>>,
    algorithm: Option<Spanned<AlgorithmWord>>,
    align: Option<Spanned<bool>>,
    buckets: Option<Spanned<u64>>,
    burst: Option<Spanned<u64>>,
    refill: Option<Spanned<RefillWord>>,
    queue: Option<Spanned<u64>>,
    shadow: Option<bool>,
    on_store_error: Option<Spanned<PolicyWord>>,
    keys: Option<Spanned<BTreeMap<String, RawRule>>>,
}

#[derive(Clone, Copy, Deserialize)]
enum Unit {
    Milliseconds = 1,
    Seconds = 1_000,
    Minutes = 60_000,
    Hours = 3_600_000,
    Days = 86_400_000,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
enum AlgorithmWord {
    FixedWindow,
    SlidingLog,
    SlidingWindow,
    TokenBucket,
    LeakyBucket,
}

#[derive(Clone, Copy, Deserialize)]
enum RefillWord {
    Greedy,
    Interval,
}

#[derive(Clone, Copy, Deserialize)]
enum PolicyWord {
    Local,
    Allow,
    Deny,
}

/// What is wrong, and where in the text.
struct Fault(String, Range<usize>);

impl Fault {
    fn at<T>(value: &Spanned<T>, message: impl Into<String>) -> Self {
        Self(message.into(), value.span())
    }

    fn explain(self, text: &str) -> SetupError {
        let Self(message, span) = self;
        let line = text.get(..span.start).map_or(1, |before| 1 + before.matches('\n').count());
        SetupError::new(format!("line {line}: {message}"))
    }
}

fn read<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, Fault> {
    toml::from_str(text)
        .map_err(|error| Fault(error.message().trim().replace('\n', "; "), error.span().unwrap_or_default()))
}

impl Text {
    /// A file, in which a program may have tables of its own beside `[rules]`.
    pub(super) fn parse(text: &str, own_tables: &[&str]) -> Result<Self, SetupError> {
        Self::read(text, own_tables)
            .map_err(|fault| fault.explain(text))?
            .ok_or_else(|| SetupError::new("there is no table [rules]; write [rules.item], and its settings below it"))
    }

    fn read(text: &str, own_tables: &[&str]) -> Result<Option<Self>, Fault> {
        let is_known = |name: &str| name == "rules" || own_tables.contains(&name);
        if let Some(name) = read::<TopLevel>(text)?.keys().find(|name| !is_known(name.get_ref())) {
            let message = format!("unknown table `{}`; a rule stands in [rules.item]", name.get_ref());
            return Err(Fault::at(name, message));
        }
        read::<File>(text)?.rules.map(Self::check).transpose()
    }

    /// From what stands in a table `[rules]`.
    pub(super) fn parse_rules(text: &str) -> Result<Self, SetupError> {
        read(text).and_then(Self::check).map_err(|fault| fault.explain(text))
    }

    fn check(rules: RawRules) -> Result<Self, Fault> {
        let mut by_prefix = BTreeMap::new();
        for (prefix, rule) in rules {
            if prefix.get_ref().is_empty() {
                return Err(Fault::at(&prefix, "the prefix is empty; give the counter a name"));
            }
            let place = prefix.span();
            by_prefix.insert(prefix.into_inner(), rule.check(&place)?);
        }
        Ok(Self { by_prefix })
    }

    /// What both say, this one first.
    pub(super) fn over(self, mut under: Self) -> Self {
        for (prefix, OfRule { all, keys }) in self.by_prefix {
            let below = under.by_prefix.entry(prefix).or_default();
            below.all = all.over(&below.all);
            for (key, settings) in keys {
                let of_key = below.keys.entry(key).or_default();
                *of_key = settings.over(of_key);
            }
        }
        under
    }

    /// The table of all of it, in place of another one. An error if a rule is wrong only now that all of it is known.
    pub(super) fn complete(self, before: &Table) -> Result<Table, SetupError> {
        let mut by_prefix = BTreeMap::new();
        for (prefix, OfRule { all, keys }) in self.by_prefix {
            let check = |settings: &Settings| match settings.to_rule("checked").and_then(|rule| rule.fault()) {
                Some(fault) => Err(SetupError::new(format!("rules.{prefix}: a rule can't be like this: {fault}"))),
                None => Ok(()),
            };
            check(&all)?;
            let known = before.by_prefix.get(&prefix);
            let mut of_keys = BTreeMap::new();
            for (key, settings) in keys {
                let settings = settings.over(&all);
                check(&settings)?;
                let known = known.and_then(|known| known.keys.get(&key).or(Some(&known.all)));
                of_keys.insert(key, Version::new(settings, known));
            }
            let all = Version::new(all, known.map(|known| &known.all));
            by_prefix.insert(prefix, OfRule { all, keys: of_keys });
        }
        Ok(Table { by_prefix })
    }
}

impl RawRule {
    fn check(self, place: &Range<usize>) -> Result<OfRule<Settings>, Fault> {
        let all = self.settings()?;
        all.check(place)?;
        let mut keys = BTreeMap::new();
        if let Some(of_keys) = self.keys {
            let place = of_keys.span();
            for (key, rule) in of_keys.into_inner() {
                if let Some(keys) = &rule.keys {
                    return Err(Fault::at(keys, "a key has no keys of its own"));
                }
                if let Some(policy) = &rule.on_store_error {
                    return Err(Fault::at(
                        policy,
                        "`on_store_error` is for all keys of a rule; write it beside `keys`",
                    ));
                }
                let settings = rule.settings()?;
                settings.clone().over(&all).check(&place)?;
                keys.insert(key.into_bytes().into(), settings);
            }
        }
        Ok(OfRule { all, keys })
    }

    fn settings(&self) -> Result<Settings, Fault> {
        Ok(Settings {
            enabled: self.enabled,
            count: self.count.as_ref().map(|count| positive(count, "count")).transpose()?,
            period: self.period()?,
            algorithm: self.algorithm()?,
            shadow: self.shadow,
            on_store_error: self.on_store_error.as_ref().map(|word| match word.get_ref() {
                PolicyWord::Local => OnStoreError::Local,
                PolicyWord::Allow => OnStoreError::Allow,
                PolicyWord::Deny => OnStoreError::Deny,
            }),
        })
    }

    fn period(&self) -> Result<Option<Duration>, Fault> {
        match (&self.ttl, &self.unit) {
            (None, None) => Ok(None),
            (Some(ttl), None) => Err(Fault::at(ttl, "`ttl` has no unit; write unit = \"Seconds\", for example")),
            (ttl, Some(unit)) => {
                let number = ttl.as_ref().map_or(Ok(1), |ttl| positive(ttl, "ttl"))?;
                let period = number.checked_mul(*unit.get_ref() as u64).map(Duration::from_millis);
                let period = period.filter(|period| *period <= Rule::LONGEST_PERIOD);
                period.ok_or_else(|| Fault::at(unit, "`ttl` is longer than 3,650 days")).map(Some)
            }
        }
    }

    fn algorithm(&self) -> Result<Option<Word>, Fault> {
        use AlgorithmWord::{FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket};
        let options = [
            ("align", self.align.as_ref().map(Spanned::span), FixedWindow),
            ("buckets", self.buckets.as_ref().map(Spanned::span), SlidingWindow),
            ("burst", self.burst.as_ref().map(Spanned::span), TokenBucket),
            ("refill", self.refill.as_ref().map(Spanned::span), TokenBucket),
            ("queue", self.queue.as_ref().map(Spanned::span), LeakyBucket),
        ];
        for (name, span, of) in options {
            if let Some(span) = span
                && self.algorithm.as_ref().is_none_or(|word| *word.get_ref() != of)
            {
                let message = format!("`{name}` is an option of {of:?}; write algorithm = \"{of:?}\" beside it");
                return Err(Fault(message, span));
            }
        }
        let Some(word) = &self.algorithm else { return Ok(None) };
        Ok(Some(match word.get_ref() {
            FixedWindow => {
                let align = self.align.as_ref().is_some_and(|align| *align.get_ref());
                Word::Known(Algorithm::FixedWindow { align })
            }
            SlidingLog => Word::Known(Algorithm::SlidingLog),
            SlidingWindow => {
                let buckets = self.buckets.as_ref().map_or(Ok(1), |buckets| positive(buckets, "buckets"))?;
                Word::Known(Algorithm::SlidingWindow { buckets })
            }
            TokenBucket => {
                let refill = match self.refill.as_ref().map(|refill| *refill.get_ref()) {
                    None | Some(RefillWord::Greedy) => Refill::Greedy,
                    Some(RefillWord::Interval) => Refill::Interval,
                };
                match &self.burst {
                    Some(burst) => Word::Known(Algorithm::TokenBucket { burst: positive(burst, "burst")?, refill }),
                    None => Word::BucketOfCount(refill),
                }
            }
            LeakyBucket => {
                let Some(queue) = &self.queue else {
                    return Err(Fault::at(word, "`LeakyBucket` needs to know how many may wait: queue = 50"));
                };
                Word::Known(Algorithm::LeakyBucket { queue: *queue.get_ref() })
            }
        }))
    }
}

/// No count, burst or queue is larger.
const LARGEST: u64 = 1 << 52;

fn positive(value: &Spanned<u64>, name: &str) -> Result<u64, Fault> {
    match *value.get_ref() {
        0 => Err(Fault::at(value, format!("`{name}` is 0; it must be at least 1"))),
        number if number > LARGEST => {
            Err(Fault::at(value, format!("`{name}` is {number}; it must be at most 2^52, {LARGEST}")))
        }
        number => Ok(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn wrong(text: &str) -> String {
        Text::parse(text, &[]).unwrap_err().to_string()
    }

    fn table(text: &str) -> Table {
        Text::parse(text, &[]).unwrap().complete(&Table::default()).unwrap()
    }

    #[test]
    fn mistakes_are_told_with_line_and_reason() {
        for (text, message) in [
            ("", "there is no table [rules]; write [rules.item], and its settings below it"),
            ("[rule.item]\ncount = 1", "line 1: unknown table `rule`; a rule stands in [rules.item]"),
            ("[rules.item]\n\n[rule.order]", "line 3: unknown table `rule`; a rule stands in [rules.item]"),
            ("counts = 1\n[rules.item]", "line 1: unknown table `counts`; a rule stands in [rules.item]"),
            (
                "[rules.item]\ncount = 9223372036854775807",
                "line 2: `count` is 9223372036854775807; it must be at most 2^52, 4503599627370496",
            ),
            ("[rules.item]\n\ncount = 0", "line 3: `count` is 0; it must be at least 1"),
            ("[rules.item]\nttl = 5", "line 2: `ttl` has no unit; write unit = \"Seconds\", for example"),
            ("[rules.item]\nunit = \"Days\"\nttl = 3651", "line 2: `ttl` is longer than 3,650 days"),
            (
                "[rules.item]\nburst = 5",
                "line 2: `burst` is an option of TokenBucket; write algorithm = \"TokenBucket\" beside it",
            ),
            (
                "[rules.item]\nalgorithm = \"SlidingLog\"\nqueue = 5",
                "line 3: `queue` is an option of LeakyBucket; write algorithm = \"LeakyBucket\" beside it",
            ),
            (
                "[rules.item]\nalgorithm = \"LeakyBucket\"",
                "line 2: `LeakyBucket` needs to know how many may wait: queue = 50",
            ),
            ("[rules.\"\"]\ncount = 5", "line 1: the prefix is empty; give the counter a name"),
            ("[rules.item.keys.a.keys.b]\ncount = 5", "line 1: a key has no keys of its own"),
            (
                "[rules.item.keys.a]\non_store_error = \"Deny\"",
                "line 2: `on_store_error` is for all keys of a rule; write it beside `keys`",
            ),
        ] {
            assert_eq!(wrong(text), message, "{text}");
        }
        for (text, begins) in [
            ("[rules.item]\ncuont = 5", "line 2: unknown field `cuont`, expected one of `enabled`, `count`"),
            ("[rules.item]\ncount = -5", "line 2: invalid value: integer `-5`"),
            ("[rules.item]\ncount = \"5\"", "line 2: invalid type: string \"5\""),
            ("[rules.item]\nunit = \"Minuts\"", "line 2: unknown variant `Minuts`, expected one of `Milliseconds`"),
            ("[rules.item]\ncount = ", "line 2: "),
            ("[rules.item]\ncount = 1\ncount = 2", "line 3: duplicate key"),
            (
                "[rules.item]\ncount = 99_999_999_999\nunit = \"Days\"",
                "line 1: a rule can't be like this: its count is 99999999999",
            ),
            (
                "[rules.item]\ncount = 1\nunit = \"Days\"\n[rules.item.keys.a]\ncount = 99_999_999_999",
                "line 4: a rule can't be like this: its count is 99999999999",
            ),
        ] {
            assert!(wrong(text).starts_with(begins), "{text}: {}", wrong(text));
        }
        assert_eq!(
            Text::parse_rules("item.count = 0").unwrap_err().to_string(),
            "line 1: `count` is 0; it must be at least 1"
        );
    }

    fn change(text: &str, rule: Rule) -> Rule {
        table(text).by_prefix["item"].all.settings.change(&rule)
    }

    #[test]
    fn what_is_not_said_stays() {
        let bucket = Algorithm::TokenBucket { burst: 7, refill: Refill::Interval };
        let rule = Rule::new("item", 5, MINUTE).with_algorithm(bucket).with_shadow(true);
        assert_eq!(change("[rules.item]", rule.with_denial_cache(false)), rule.with_denial_cache(false));
        let prefetched = Rule::new("item", 5, MINUTE).with_prefetch(3);
        assert_eq!(change("[rules.item]\ncount = 6", prefetched), Rule::new("item", 6, MINUTE).with_prefetch(3));
        let unleased = Rule::new("item", 5, MINUTE).with_algorithm(Algorithm::SlidingLog);
        assert_eq!(change("[rules.item]\nalgorithm = \"SlidingLog\"", prefetched), unleased);
        for (text, changed) in [
            ("", rule),
            ("count = 6", Rule::new("item", 6, MINUTE).with_algorithm(bucket).with_shadow(true)),
            ("ttl = 2\nunit = \"Hours\"", Rule::new("item", 5, 120 * MINUTE).with_algorithm(bucket).with_shadow(true)),
            ("unit = \"Milliseconds\"", Rule::new("item", 5, MINUTE / 60_000).with_algorithm(bucket).with_shadow(true)),
            ("shadow = false", rule.with_shadow(false)),
            ("algorithm = \"SlidingLog\"", rule.with_algorithm(Algorithm::SlidingLog)),
            ("algorithm = \"FixedWindow\"\nalign = true", rule.with_algorithm(Algorithm::FixedWindow { align: true })),
            ("algorithm = \"SlidingWindow\"", rule.with_algorithm(Algorithm::SlidingWindow { buckets: 1 })),
            (
                "algorithm = \"SlidingWindow\"\nbuckets = 6",
                rule.with_algorithm(Algorithm::SlidingWindow { buckets: 6 }),
            ),
            (
                "algorithm = \"TokenBucket\"",
                rule.with_algorithm(Algorithm::TokenBucket { burst: 5, refill: Refill::Greedy }),
            ),
            (
                "algorithm = \"TokenBucket\"\nburst = 9\nrefill = \"Interval\"",
                rule.with_algorithm(Algorithm::TokenBucket { burst: 9, refill: Refill::Interval }),
            ),
            ("algorithm = \"LeakyBucket\"\nqueue = 0", rule.with_algorithm(Algorithm::LeakyBucket { queue: 0 })),
        ] {
            assert_eq!(change(&format!("[rules.item]\n{text}"), rule), changed, "{text}");
        }
    }

    /// What is said of a key goes before what is said of all; and the environment before the file.
    #[test]
    fn what_is_more_exact_holds() {
        let file =
            "[rules.item]\ncount = 1\nunit = \"Hours\"\n[rules.item.keys]\na = { count = 2 }\nb = { enabled = false }";
        let environment = "item.count = 3\nitem.keys.c.count = 4\nother.shadow = true";
        let text = Text::parse_rules(environment).unwrap().over(Text::parse(file, &[]).unwrap());
        let table = text.complete(&Table::default()).unwrap();
        let item = &table.by_prefix["item"];
        let of_key = |key: &str| &item.keys[key.as_bytes()].settings;
        let count = |key: &str| of_key(key).change(&Rule::new("item", 9, MINUTE)).count();
        assert_eq!(item.all.settings.count, Some(3));
        assert_eq!((count("a"), count("b"), count("c")), (2, 3, 4));
        assert_eq!(of_key("b").enabled, Some(false));
        assert_eq!(of_key("c").period, Some(60 * MINUTE));
        assert_eq!(table.by_prefix["other"].all.settings.shadow, Some(true));
    }

    /// Neither file nor environment is wrong, but both together are.
    #[test]
    fn what_is_wrong_together_is_an_error() {
        let file = Text::parse("[rules.item]\ncount = 9\nunit = \"Days\"", &[]).unwrap();
        let environment = Text::parse_rules("item.count = 99_999_999_999").unwrap();
        let wrong = environment.over(file).complete(&Table::default()).unwrap_err().to_string();
        assert!(wrong.starts_with("rules.item: a rule can't be like this: its count is 99999999999"), "{wrong}");
    }

    /// However often the file changes, and whether or not it is used in between.
    #[test]
    fn few_versions_are_kept() {
        let rule = Rule::new("item", 1000, MINUTE);
        let change = |count: u64, before: &Table| {
            Text::parse(&format!("[rules.item]\ncount = {count}"), &[]).unwrap().complete(before).unwrap()
        };
        let holds = |table: &Table| {
            let (fitting, fault) = table.by_prefix["item"].all.fitting(&rule, Use::default());
            (fitting.map(|settings| settings.change(&rule).count()), fault.is_some())
        };
        let (right, wrong) = (7, 1 << 52);
        let mut table = change(right, &Table::default());
        assert_eq!(holds(&table), (Some(right), false));
        for _ in 0..5 {
            table = change(wrong, &table);
            assert_eq!(holds(&table), (Some(right), true));
            table = change(wrong, &change(wrong, &table)); // seen by no call
            assert_eq!(holds(&table), (Some(right), true));
            assert!(table.by_prefix["item"].all.before.iter().all(|version| version.before.is_empty()));
        }
        table = change(wrong, &change(right + 1, &table));
        assert_eq!(holds(&table), (Some(right + 1), true), "seen by no call, and yet the last one that is right");
    }

    /// Settings of one kind of call do not take the place of those of another.
    #[test]
    fn each_kind_of_call_keeps_its_last_settings() {
        let rule = Rule::new("item", 1000, MINUTE);
        let change = |settings: &str, before: &Table| {
            Text::parse(&format!("[rules.item]\n{settings}"), &[]).unwrap().complete(before).unwrap()
        };
        let holds = |table: &Table, is_one_of_several| {
            let of = Use { is_one_of_several, ..Use::default() };
            table.by_prefix["item"].all.fitting(&rule, of).0.map(|settings| settings.change(&rule).count())
        };
        let mut table = change("count = 7", &Table::default());
        assert_eq!((holds(&table, false), holds(&table, true)), (Some(7), Some(7)));
        for count in 8..40 {
            // A leaky bucket is not one of several rules.
            table = change(&format!("count = {count}\nalgorithm = \"LeakyBucket\"\nqueue = 5"), &table);
            assert_eq!((holds(&table, false), holds(&table, true)), (Some(count), Some(7)));
            assert!(table.by_prefix["item"].all.before.len() <= 2);
        }
        // And those that no call has tried yet are not forgotten.
        table = change("count = 50", &table);
        for _ in 0..3 {
            table = change("count = 4503599627370496", &table);
        }
        assert_eq!((holds(&table, false), holds(&table, true)), (Some(50), Some(50)));
    }
}
