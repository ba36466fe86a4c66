//! The model of rules and files, written from the documentation of `ratelimit_runtime::config`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;
use std::mem;
use std::time::Duration;

use fastrand::Rng;
use ratelimit_runtime::{Algorithm, Cause, Limiter, Refill, Rule};

use super::super::MINUTE;

pub(super) const HOUR: Duration = Duration::from_secs(3600);
pub(super) const DAY: Duration = Duration::from_secs(86_400);

/// Prefixes that files may change. The rules of the first two stand together in some calls.
pub(super) const PREFIXES: [&str; 3] = ["a", "b", "c"];

/// The keys of calls. Files have settings for the first three.
pub(super) const KEYS: [&str; 4] = ["alice", "bob", WAITING, "carol"];

/// The key of waiting callers.
pub(super) const WAITING: &str = "wait";

/// Settings of one rule, or of one of its keys, in a table.
#[derive(Clone, Debug, Default)]
pub(super) struct Said {
    pub(super) enabled: Option<bool>,
    pub(super) count: Option<u64>,
    pub(super) period: Option<(u64, &'static str)>,
    pub(super) algorithm: Option<Named>,
    pub(super) shadow: Option<bool>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Named {
    Exactly(Algorithm),
    /// A token bucket whose burst is not said: it is the count.
    BucketOfCount,
}

/// A prefix, and one of its keys or all of them.
pub(super) type Section = (&'static str, Option<&'static str>);

/// A table `[rules]`.
pub(super) type Sections = BTreeMap<Section, Said>;

/// The kind of calls that a rule of the code decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Use {
    Alone,
    OneOfTwo,
    Settled,
}

impl Said {
    pub(super) fn random(random: &mut Rng) -> Self {
        let algorithms = [
            Named::Exactly(Algorithm::FixedWindow { align: random.bool() }),
            Named::Exactly(Algorithm::SlidingLog),
            Named::Exactly(Algorithm::SlidingWindow {
                buckets: [1, 6, 999][random.usize(..3)],
                weighted: random.bool(),
            }),
            Named::Exactly(Algorithm::TokenBucket { burst: random.u64(2..30), refill: Refill::Interval }),
            Named::Exactly(Algorithm::LeakyBucket { queue: random.u64(5..30) }),
            Named::BucketOfCount,
        ];
        let counts = [random.u64(2..20), random.u64(2..20), 1000, 99_999_999_999, 1 << 52];
        let periods = [(1, "Minutes"), (2, "Hours"), (1, "Days"), (random.u64(1..4000), "Milliseconds")];
        let mut some = |chance: f64| random.f64() < chance;
        let said = [some(0.15), some(0.6), some(0.3), some(0.4), some(0.15)];
        Self {
            enabled: said[0].then(|| random.bool()),
            count: said[1].then(|| counts[random.usize(..counts.len())]),
            period: said[2].then(|| periods[random.usize(..periods.len())]),
            algorithm: said[3].then(|| algorithms[random.usize(..algorithms.len())]),
            shadow: said[4].then(|| random.bool()),
        }
    }

    /// These settings, completed by those of `under`.
    pub(super) fn over(&self, under: &Self) -> Self {
        Self {
            enabled: self.enabled.or(under.enabled),
            count: self.count.or(under.count),
            period: self.period.or(under.period),
            algorithm: self.algorithm.or(under.algorithm),
            shadow: self.shadow.or(under.shadow),
        }
    }

    /// The rule of the code with all that is said.
    pub(super) fn applied_to(&self, code: &Rule) -> Rule {
        let count = self.count.unwrap_or(code.count());
        let period = self.period.map_or(code.period(), |(number, unit)| {
            let unit = match unit {
                "Milliseconds" => Duration::from_millis(1),
                "Minutes" => MINUTE,
                "Hours" => HOUR,
                _ => DAY,
            };
            unit * u32::try_from(number).unwrap()
        });
        let algorithm = match self.algorithm {
            None => code.algorithm(),
            Some(Named::Exactly(algorithm)) => algorithm,
            Some(Named::BucketOfCount) => Algorithm::TokenBucket { burst: count, refill: Refill::Greedy },
        };
        let shadow = self.shadow.unwrap_or(code.is_shadow());
        Rule::new(code.prefix(), count, period).with_algorithm(algorithm).with_shadow(shadow).with_denial_cache(false)
    }

    /// True if calls of this rule can be decided by these settings.
    pub(super) fn fits(&self, code: &Rule, of: Use) -> bool {
        let rule = self.applied_to(code);
        let is_leaky = matches!(rule.algorithm(), Algorithm::LeakyBucket { .. });
        let is_another = rule.algorithm() != code.algorithm();
        let is_in_the_way = match of {
            _ if code.algorithm() == Algorithm::Concurrent => {
                is_another || self.period.is_some() && !(Duration::from_secs(1)..=DAY).contains(&rule.period())
            }
            Use::Settled => is_another,
            Use::OneOfTwo => is_leaky,
            Use::Alone => false,
        };
        is_right(&rule) && !is_in_the_way
    }

    /// True if a rule could have these settings, as far as they are given.
    pub(super) fn could_be(&self) -> bool {
        // The rule of the code for which the most is right.
        let shortest_ms = match self.algorithm {
            Some(Named::Exactly(Algorithm::SlidingWindow { buckets, .. })) => buckets,
            _ => 1,
        };
        let code = Rule::new("any", 1, Duration::from_millis(shortest_ms));
        let code = match (self.count, self.period) {
            (Some(_), Some(_)) => code,
            _ => code.with_algorithm(Algorithm::TokenBucket { burst: 1, refill: Refill::Greedy }),
        };
        is_right(&self.applied_to(&code))
    }

    pub(super) fn write(&self, text: &mut String) {
        let lines = [
            self.enabled.map(|enabled| format!("enabled = {enabled}")),
            self.count.map(|count| format!("count = {count}")),
            self.period.map(|(number, unit)| format!("ttl = {number}\nunit = \"{unit}\"")),
            self.algorithm.map(|algorithm| match algorithm {
                Named::BucketOfCount => "algorithm = \"TokenBucket\"".to_owned(),
                Named::Exactly(Algorithm::FixedWindow { align }) => {
                    format!("algorithm = \"FixedWindow\"\nalign = {align}")
                }
                Named::Exactly(Algorithm::SlidingWindow { buckets, weighted }) => {
                    format!("algorithm = \"SlidingWindow\"\nbuckets = {buckets}\nweighted = {weighted}")
                }
                Named::Exactly(Algorithm::TokenBucket { burst, refill }) => {
                    format!("algorithm = \"TokenBucket\"\nburst = {burst}\nrefill = \"{refill:?}\"")
                }
                Named::Exactly(Algorithm::LeakyBucket { queue }) => {
                    format!("algorithm = \"LeakyBucket\"\nqueue = {queue}")
                }
                Named::Exactly(other) => format!("algorithm = \"{other:?}\""),
            }),
            self.shadow.map(|shadow| format!("shadow = {shadow}")),
        ];
        lines.into_iter().flatten().for_each(|line| writeln!(text, "{line}").unwrap());
    }
}

/// True if a limiter without a file accepts the rule.
pub(super) fn is_right(rule: &Rule) -> bool {
    let limiter = Limiter::in_memory();
    let looked = futures_util::FutureExt::now_or_never(limiter.peek(rule, 1)).expect("memory answers at once");
    looked.err().is_none_or(|refused| refused.cause() != Cause::Misconfigured)
}

pub(super) fn random_sections(random: &mut Rng) -> Sections {
    let mut sections = Sections::new();
    for prefix in PREFIXES {
        if random.f64() < 0.75 {
            sections.insert((prefix, None), Said::random(random));
            for key in &KEYS[..3] {
                if random.f64() < 0.25 {
                    sections.insert((prefix, Some(key)), Said::random(random));
                }
            }
        }
    }
    sections
}

pub(super) fn text_of(sections: &Sections, table: &str) -> String {
    let mut text = String::new();
    for ((prefix, key), said) in sections {
        let key = key.map_or(String::new(), |key| format!(".keys.{key}"));
        writeln!(text, "[{table}{prefix}{key}]").unwrap();
        said.write(&mut text);
    }
    text
}

/// Both tables merged. The environment overrides the file.
pub(super) fn merged(environment: &Sections, file: &Sections) -> Sections {
    let mut both = file.clone();
    for (section, said) in environment {
        let under = both.remove(section).unwrap_or_default();
        both.insert(*section, said.over(&under));
    }
    for (prefix, _) in both.keys().copied().collect::<Vec<_>>() {
        both.entry((prefix, None)).or_default();
    }
    both
}

/// Settings of a section. A key inherits the settings of all keys.
pub(super) fn said_for(sections: &Sections, section: Section) -> Said {
    let of_all = sections.get(&(section.0, None)).cloned().unwrap_or_default();
    sections[&section].over(&of_all)
}

/// A file is taken in as a whole, or not at all.
pub(super) fn could_all_be(sections: &Sections) -> bool {
    sections.keys().all(|section| said_for(sections, *section).could_be())
}

/// A call, and the rules that it is to be decided by: `None` for one that is not asked.
pub(super) struct Expected {
    pub(super) site: Vec<usize>,
    pub(super) key: &'static str,
    pub(super) rules: Vec<Option<Rule>>,
}

/// The rules of the code, and what is in force for them.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) code: Vec<(Rule, Use)>,
    pub(super) environment: Sections,
    /// By section, rule and use, the last settings that fit; nothing where none did.
    pub(super) in_force: HashMap<(Section, usize), Option<Said>>,
    /// Sections whose newest settings switch the rule off, whether or not they fit. Earlier ones switch nothing off.
    pub(super) off: HashSet<Section>,
}

impl Model {
    /// Takes in a file. Nothing changes if it is wrong, in itself or together with the environment.
    pub(super) fn take_in(&mut self, file: &Sections) -> bool {
        let both = merged(&self.environment, file);
        if !could_all_be(file) || !could_all_be(&both) {
            return false;
        }
        let before = mem::take(&mut self.in_force);
        self.off.clear();
        for section in both.keys().copied() {
            let said = said_for(&both, section);
            if said.enabled == Some(false) {
                self.off.insert(section);
            }
            for (at, (rule, of)) in self.code.iter().enumerate().filter(|(_, (rule, _))| rule.prefix() == section.0) {
                let holds = if said.fits(rule, *of) {
                    Some(said.clone())
                } else {
                    // A key that was not in the file has the settings of all keys.
                    let known = before.get(&(section, at)).or_else(|| self.in_force.get(&((section.0, None), at)));
                    known.cloned().flatten()
                };
                self.in_force.insert((section, at), holds);
            }
        }
        true
    }

    /// The rule that a call is decided by. `None` if the call is let through without a question.
    pub(super) fn expected(&self, at: usize, key: &'static str) -> Option<Rule> {
        let (code, _) = &self.code[at];
        let prefix = code.prefix();
        let sections = [(prefix, Some(key)), (prefix, None)];
        let section = sections.into_iter().find(|section| self.in_force.contains_key(&(*section, at)));
        match section.and_then(|section| self.in_force.get(&(section, at))) {
            _ if section.is_some_and(|section| self.off.contains(&section)) => None,
            Some(Some(said)) => Some(said.applied_to(code)),
            Some(None) | None => Some(*code),
        }
    }

    pub(super) fn at(&self, prefix: &str, of: Use) -> Option<usize> {
        self.code.iter().position(|(rule, its)| rule.prefix() == prefix && *its == of)
    }

    /// Each call with its key, and the expected rule for each of its rules.
    pub(super) fn calls(&self) -> Vec<Expected> {
        let pair: Vec<_> = PREFIXES[..2].iter().filter_map(|prefix| self.at(prefix, Use::OneOfTwo)).collect();
        let alone = (0..self.code.len()).filter(|at| self.code[*at].1 != Use::OneOfTwo).map(|at| vec![at]);
        let sites: Vec<_> = alone.chain([pair]).collect();
        let calls = sites.into_iter().flat_map(|site| KEYS.into_iter().map(move |key| (site.clone(), key)));
        calls
            .map(|(site, key)| {
                let expected = site.iter().map(|at| self.expected(*at, key)).collect();
                Expected { site, key, rules: expected }
            })
            .collect()
    }
}
