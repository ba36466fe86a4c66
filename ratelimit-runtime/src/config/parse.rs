//! The TOML text of the rules: its grammar, and its errors with their line.

use std::{collections::BTreeMap, ops::Range, time::Duration};

use serde::Deserialize;
use toml::Spanned;

use super::rule_override::{
    AlgorithmSpec::{self, Complete, SizedByCount},
    RuleOverride,
};
use crate::{Algorithm, OnStoreError, Refill, Rule, SetupError};

/// The settings in a text, by prefix.
#[derive(Debug, Default)]
pub(super) struct RulesText {
    pub(super) by_prefix: BTreeMap<String, RuleEntry<RuleOverride>>,
}

/// The settings of one rule, and of some of its keys.
#[derive(Debug, Default)]
pub(super) struct RuleEntry<S> {
    pub(super) all: S,
    /// By the printed key.
    pub(super) keys: BTreeMap<Box<[u8]>, S>,
}

#[derive(Deserialize)]
struct RawFile {
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
    weighted: Option<Spanned<bool>>,
    burst: Option<Spanned<u64>>,
    refill: Option<Spanned<RefillWord>>,
    queue: Option<Spanned<u64>>,
    shadow: Option<bool>,
    ban: Option<Spanned<String>>,
    on_store_error: Option<Spanned<PolicyWord>>,
    keys: Option<Spanned<BTreeMap<Spanned<String>, RawRule>>>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
enum Unit {
    Milliseconds = 1,
    Seconds = 1_000,
    Minutes = 60_000,
    Hours = 3_600_000,
    Days = 86_400_000,
}

#[derive(Clone, Copy, Deserialize)]
enum RefillWord {
    Greedy,
    Interval,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
enum PolicyWord {
    Local,
    Allow,
    Deny,
    Wait { max: u64, unit: Unit },
}

/// An error in a text, and the span that it is about.
struct TextError(String, Range<usize>);

impl TextError {
    fn at<T>(value: &Spanned<T>, message: impl Into<String>) -> Self {
        Self(message.into(), value.span())
    }

    fn with_line(self, text: &str) -> SetupError {
        let Self(message, span) = self;
        let line = text.get(..span.start).map_or(1, |before| 1 + before.matches('\n').count());
        SetupError::new(format!("line {line}: {message}"))
    }
}

fn from_toml<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, TextError> {
    toml::from_str(text)
        .map_err(|error| TextError(error.message().trim().replace('\n', "; "), error.span().unwrap_or_default()))
}

impl RulesText {
    /// Parses a file. Tables other than `[rules]` are errors unless they are among `own_tables`.
    pub(super) fn parse(text: &str, own_tables: &[&str]) -> Result<Self, SetupError> {
        Self::parse_file(text, own_tables)
            .map_err(|error| error.with_line(text))?
            .ok_or_else(|| SetupError::new("there is no table [rules]; write [rules.item], and its settings below it"))
    }

    /// `None` if there is no table `[rules]`.
    fn parse_file(text: &str, own_tables: &[&str]) -> Result<Option<Self>, TextError> {
        let is_known = |name: &str| name == "rules" || own_tables.contains(&name);
        if let Some(name) = from_toml::<TopLevel>(text)?.keys().find(|name| !is_known(name.get_ref())) {
            let message = format!("unknown table `{}`; write a rule as [rules.item]", name.get_ref());
            return Err(TextError::at(name, message));
        }
        from_toml::<RawFile>(text)?.rules.map(Self::check).transpose()
    }

    /// Parses the content of a table `[rules]`.
    pub(super) fn parse_rules(text: &str) -> Result<Self, SetupError> {
        from_toml(text).and_then(Self::check).map_err(|error| error.with_line(text))
    }

    fn check(rules: RawRules) -> Result<Self, TextError> {
        let mut by_prefix = BTreeMap::new();
        for (prefix, rule) in rules {
            match prefix.get_ref().as_str() {
                "" => return Err(TextError::at(&prefix, "the prefix is empty; give the counter a name")),
                "*" => {
                    let message = "`*` is no prefix, and there are no wildcards; write a table for each rule";
                    return Err(TextError::at(&prefix, message));
                }
                _ => {}
            }
            let place = prefix.span();
            by_prefix.insert(prefix.into_inner(), rule.check(&place)?);
        }
        Ok(Self { by_prefix })
    }

    /// These settings, with those of `under` where they are missing.
    pub(super) fn merged_over(self, mut under: Self) -> Self {
        for (prefix, RuleEntry { all, keys }) in self.by_prefix {
            let below = under.by_prefix.entry(prefix).or_default();
            below.all = all.merged_over(&below.all);
            for (key, settings) in keys {
                let of_key = below.keys.entry(key).or_default();
                *of_key = settings.merged_over(of_key);
            }
        }
        under
    }
}

/// The reason why no printed [`Key`](crate::Key) can be this text.
fn key_fault(key: &str) -> Option<String> {
    match key {
        "*" => Some("`*` is no key, and there are no wildcards; write settings for all keys beside `keys`".into()),
        _ if key.contains(|letter: char| letter.is_ascii_control() || letter == '{' || letter == '}') => Some(format!(
            "no call has the key `{}`; in a printed key, braces and control characters are escaped: `{{` is `%7B`",
            key.escape_debug()
        )),
        _ => None,
    }
}

impl RawRule {
    fn check(self, place: &Range<usize>) -> Result<RuleEntry<RuleOverride>, TextError> {
        let check = |settings: &RuleOverride, place: &Range<usize>| match settings.own_fault() {
            Some(fault) => Err(TextError(format!("invalid rule: {fault}"), place.clone())),
            None => Ok(()),
        };
        let all = self.settings()?;
        check(&all, place)?;
        let mut keys = BTreeMap::new();
        if let Some(of_keys) = self.keys {
            for (key, rule) in of_keys.into_inner() {
                if let Some(keys) = &rule.keys {
                    return Err(TextError::at(keys, "a key cannot have `keys` of its own"));
                }
                if let Some(policy) = &rule.on_store_error {
                    return Err(TextError::at(
                        policy,
                        "`on_store_error` applies to all keys of a rule; write it beside `keys`",
                    ));
                }
                if let Some(fault) = key_fault(key.get_ref()) {
                    return Err(TextError::at(&key, fault));
                }
                let settings = rule.settings()?;
                check(&settings.clone().merged_over(&all), &key.span())?;
                keys.insert(key.into_inner().into_bytes().into(), settings);
            }
        }
        Ok(RuleEntry { all, keys })
    }

    fn settings(&self) -> Result<RuleOverride, TextError> {
        Ok(RuleOverride {
            enabled: self.enabled,
            count: self.count.as_ref().map(|count| positive(count, "count")).transpose()?,
            period: self.period()?,
            algorithm: self.algorithm()?,
            shadow: self.shadow,
            ban: self.ban.as_ref().map(ban).transpose()?,
            on_store_error: self.on_store_error.as_ref().map(policy).transpose()?,
        })
    }

    fn period(&self) -> Result<Option<Duration>, TextError> {
        match (&self.ttl, &self.unit) {
            (None, None) => Ok(None),
            (Some(ttl), None) => Err(TextError::at(ttl, "`ttl` has no unit; write unit = \"Seconds\", for example")),
            (ttl, Some(unit)) => {
                let number = ttl.as_ref().map_or(Ok(1), |ttl| positive(ttl, "ttl"))?;
                let period = number.checked_mul(*unit.get_ref() as u64).map(Duration::from_millis);
                let period = period.filter(|period| *period <= Rule::LONGEST_PERIOD);
                let too_long = || {
                    let (place, unit) = (ttl.as_ref().map_or(unit.span(), Spanned::span), unit.get_ref());
                    TextError(format!("`ttl` is {number} {unit:?}; it must be at most 3,650 days"), place)
                };
                period.ok_or_else(too_long).map(Some)
            }
        }
    }
}

/// The algorithms of a file: their word, their options, and what they make of them.
macro_rules! algorithms {
    ($($word:ident($($option:ident),*) => $read:expr;)+) => {
        #[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
        enum AlgorithmWord {
            $($word,)+
        }

        impl RawRule {
            fn algorithm(&self) -> Result<Option<AlgorithmSpec>, TextError> {
                $($(self.check_option(stringify!($option), self.$option.as_ref(), AlgorithmWord::$word)?;)*)+
                let Some(word) = &self.algorithm else { return Ok(None) };
                let read: fn(&Self, &Spanned<AlgorithmWord>) -> Result<AlgorithmSpec, TextError> =
                    match word.get_ref() {
                        $(AlgorithmWord::$word => $read,)+
                    };
                read(self, word).map(Some)
            }
        }
    };
}

// A further algorithm is a further row. An option that is new is also a field of `RawRule`.
algorithms! {
    FixedWindow(align) => |rule, _| Ok(Complete(Algorithm::FixedWindow { align: value(rule.align.as_ref()) == Some(true) }));
    SlidingLog() => |_, _| Ok(Complete(Algorithm::SlidingLog));
    SlidingWindow(buckets, weighted) => |rule, _| {
        let buckets = rule.buckets.as_ref().map_or(Ok(1), |buckets| positive(buckets, "buckets"))?;
        let weighted = value(rule.weighted.as_ref()) != Some(false);
        Ok(Complete(Algorithm::SlidingWindow { buckets, weighted }))
    };
    TokenBucket(burst, refill) => |rule, _| {
        let burst = rule.burst.as_ref().map(|burst| positive(burst, "burst")).transpose()?;
        let refill = match value(rule.refill.as_ref()) {
            None | Some(RefillWord::Greedy) => Refill::Greedy,
            Some(RefillWord::Interval) => Refill::Interval,
        };
        let bucket = Algorithm::TokenBucket { burst: burst.unwrap_or(0), refill };
        Ok(if burst.is_some() { Complete(bucket) } else { SizedByCount(bucket) })
    };
    LeakyBucket(queue) => |rule, word| {
        let Some(queue) = value(rule.queue.as_ref()) else {
            let needs = format!("`{:?}` needs a queue length; write queue = 50, for example", word.get_ref());
            return Err(TextError::at(word, needs));
        };
        Ok(Complete(Algorithm::LeakyBucket { queue }))
    };
}

impl RawRule {
    /// Checks that an option stands beside its algorithm, if it is given.
    fn check_option<T>(&self, name: &str, option: Option<&Spanned<T>>, of: AlgorithmWord) -> Result<(), TextError> {
        match option {
            Some(option) if self.algorithm.as_ref().is_none_or(|word| *word.get_ref() != of) => {
                let message = format!("`{name}` is an option of {of:?}; write algorithm = \"{of:?}\" beside it");
                Err(TextError::at(option, message))
            }
            _ => Ok(()),
        }
    }
}

fn value<T: Copy>(option: Option<&Spanned<T>>) -> Option<T> {
    option.map(|option| *option.get_ref())
}

fn policy(word: &Spanned<PolicyWord>) -> Result<OnStoreError, TextError> {
    Ok(match word.get_ref() {
        PolicyWord::Local => OnStoreError::Local,
        PolicyWord::Allow => OnStoreError::Allow,
        PolicyWord::Deny => OnStoreError::Deny,
        PolicyWord::Wait { max, unit } => {
            let longest = max.checked_mul(*unit as u64).filter(|ms| *ms <= u32::MAX.into());
            let too_long = || TextError::at(word, format!("`max` is {max} {unit:?}; it must be at most 49 days"));
            OnStoreError::Wait { max: Duration::from_millis(longest.ok_or_else(too_long)?) }
        }
    })
}

/// The time of a ban, such as `10m`; `0s` is none.
fn ban(text: &Spanned<String>) -> Result<Duration, TextError> {
    let parse = |text: &str| {
        let (number, unit) = text.split_at(text.find(|letter: char| !letter.is_ascii_digit())?);
        let unit = match unit {
            "ms" => Unit::Milliseconds,
            "s" => Unit::Seconds,
            "m" => Unit::Minutes,
            "h" => Unit::Hours,
            "d" => Unit::Days,
            _ => return None,
        };
        number.parse::<u64>().ok()?.checked_mul(unit as u64).map(Duration::from_millis)
    };
    match parse(text.get_ref()) {
        Some(ban) if ban.as_millis() < u32::MAX.into() => Ok(ban),
        Some(_) => Err(TextError::at(text, format!("`ban` is {:?}; it must be at most 49 days", text.get_ref()))),
        None => {
            let example = "write a number and ms, s, m, h or d: ban = \"10m\", or ban = \"0s\" for none";
            Err(TextError::at(text, format!("`ban` is {:?}; {example}", text.get_ref())))
        }
    }
}

/// The largest number that any algorithm accepts.
const LARGEST: u64 = 1 << 52;

fn positive(value: &Spanned<u64>, name: &str) -> Result<u64, TextError> {
    match *value.get_ref() {
        0 => Err(TextError::at(value, format!("`{name}` is 0; it must be at least 1"))),
        number if number > LARGEST => {
            Err(TextError::at(value, format!("`{name}` is {number}; it must be at most 2^52, {LARGEST}")))
        }
        number => Ok(number),
    }
}
