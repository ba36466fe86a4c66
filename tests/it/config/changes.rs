//! A property: each call, and each caller who waits, is decided by the current merged table, or by the last settings that fit.
//!
//! Random code rules, environments and files, in random order. The model below is written from the documentation of
//! `ratelimit_runtime::config`. A store that writes down each question shows which rule a call was decided by.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::mem;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{env, fs};

use fastrand::Rng;
use futures_util::future::join_all;
use ratelimit_runtime::config::Rules;
use ratelimit_runtime::store::{Batch, Charge, Charges, Reply, StoreError};
use ratelimit_runtime::{
    Algorithm, Cause, CounterName, Decision, Key, Limiter, ManualClock, Permit, Refill, RequestPerMinute, Rule, Store,
};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::{File, MINUTE};
use crate::support::PATIENCE;

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

/// Every process has one environment, and these run side by side in it.
const TIMELINES: u64 = 24;
const PROCESSES: u64 = 3;
const STEPS: u64 = 4;

/// Longer than any turn of two who wait is away.
const LONGEST_WAIT: Duration = Duration::from_secs(86_400 * 300);

/// A file that is not to be taken in has been read often enough by then.
const READ: Duration = Duration::from_secs(1);
/// A file whose last line has no end is taken in after two seconds, and not before.
const HALF_WRITTEN: Duration = Duration::from_millis(1900);

const SEED: &str = "RATELIMIT_CHANGES_SEED";

/// Prefixes that files may change. The rules of the first two stand together in some calls.
const PREFIXES: [&str; 3] = ["a", "b", "c"];
/// The keys of calls. Files have settings for the first three.
const KEYS: [&str; 4] = ["alice", "bob", WAITING, "carol"];
/// The key of those who wait.
const WAITING: &str = "wait";

/// What a table says of one rule, or of one of its keys.
#[derive(Clone, Debug, Default)]
struct Said {
    enabled: Option<bool>,
    count: Option<u64>,
    period: Option<(u64, &'static str)>,
    algorithm: Option<Named>,
    shadow: Option<bool>,
}

#[derive(Clone, Copy, Debug)]
enum Named {
    Exactly(Algorithm),
    /// A token bucket whose burst is not said: it is the count.
    BucketOfCount,
}

/// A prefix, and one of its keys or all of them.
type Section = (&'static str, Option<&'static str>);

/// A table `[rules]`.
type Sections = BTreeMap<Section, Said>;

/// What a rule of the code is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Use {
    Alone,
    OneOfTwo,
    Settled,
}

impl Said {
    fn random(random: &mut Rng) -> Self {
        let algorithms = [
            Named::Exactly(Algorithm::FixedWindow { align: random.bool() }),
            Named::Exactly(Algorithm::SlidingLog),
            Named::Exactly(Algorithm::SlidingWindow { buckets: [1, 6, 999][random.usize(..3)] }),
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

    /// What this says, and where it says nothing, what `under` does.
    fn over(&self, under: &Self) -> Self {
        Self {
            enabled: self.enabled.or(under.enabled),
            count: self.count.or(under.count),
            period: self.period.or(under.period),
            algorithm: self.algorithm.or(under.algorithm),
            shadow: self.shadow.or(under.shadow),
        }
    }

    /// The rule of the code with all that is said.
    fn applied_to(&self, code: &Rule) -> Rule {
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

    /// Whether calls of this rule can be decided by this.
    fn fits(&self, code: &Rule, of: Use) -> bool {
        let rule = self.applied_to(code);
        let is_leaky = matches!(rule.algorithm(), Algorithm::LeakyBucket { .. });
        let is_another = rule.algorithm() != code.algorithm();
        let is_in_the_way = match of {
            _ if code.algorithm() == Algorithm::Concurrent => is_another,
            Use::Settled => is_another,
            Use::OneOfTwo => is_leaky,
            Use::Alone => false,
        };
        is_right(&rule) && !is_in_the_way
    }

    /// Whether a rule could be like this, as far as it is said.
    fn could_be(&self) -> bool {
        let is_whole = self.count.is_some() && self.period.is_some();
        !is_whole || is_right(&self.applied_to(&Rule::new("any", 1, MINUTE)))
    }

    fn write(&self, text: &mut String) {
        let lines = [
            self.enabled.map(|enabled| format!("enabled = {enabled}")),
            self.count.map(|count| format!("count = {count}")),
            self.period.map(|(number, unit)| format!("ttl = {number}\nunit = \"{unit}\"")),
            self.algorithm.map(|algorithm| match algorithm {
                Named::BucketOfCount => "algorithm = \"TokenBucket\"".to_owned(),
                Named::Exactly(Algorithm::FixedWindow { align }) => {
                    format!("algorithm = \"FixedWindow\"\nalign = {align}")
                }
                Named::Exactly(Algorithm::SlidingWindow { buckets }) => {
                    format!("algorithm = \"SlidingWindow\"\nbuckets = {buckets}")
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

/// Whether any limiter takes the rule, without a file.
fn is_right(rule: &Rule) -> bool {
    let limiter = Limiter::in_memory();
    let looked = futures_util::FutureExt::now_or_never(limiter.peek(rule, 1)).expect("memory answers at once");
    looked.err().is_none_or(|refused| refused.cause() != Cause::Misconfigured)
}

fn random_sections(random: &mut Rng) -> Sections {
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

fn text_of(sections: &Sections, table: &str) -> String {
    let mut text = String::new();
    for ((prefix, key), said) in sections {
        let key = key.map_or(String::new(), |key| format!(".keys.{key}"));
        writeln!(text, "[{table}{prefix}{key}]").unwrap();
        said.write(&mut text);
    }
    text
}

/// What both say, the environment first.
fn merged(environment: &Sections, file: &Sections) -> Sections {
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

/// What is said for a section: of a key, what is said of all keys stands below it.
fn said_for(sections: &Sections, section: Section) -> Said {
    let of_all = sections.get(&(section.0, None)).cloned().unwrap_or_default();
    sections[&section].over(&of_all)
}

/// A file is taken in as a whole, or not at all.
fn could_all_be(sections: &Sections) -> bool {
    sections.keys().all(|section| said_for(sections, *section).could_be())
}

/// A call, and the rules that it is to be decided by: `None` for one that is not asked.
struct Expected {
    site: Vec<usize>,
    key: &'static str,
    rules: Vec<Option<Rule>>,
}

/// The rules of the code, and what is in force for them.
#[derive(Debug)]
struct Model {
    code: Vec<(Rule, Use)>,
    environment: Sections,
    /// By section, rule and use, the last settings that fit; nothing where none did.
    in_force: HashMap<(Section, usize), Option<Said>>,
}

impl Model {
    /// Takes in a file. Nothing changes if it is wrong, in itself or together with the environment.
    fn take_in(&mut self, file: &Sections) -> bool {
        let both = merged(&self.environment, file);
        if !could_all_be(file) || !could_all_be(&both) {
            return false;
        }
        let before = mem::take(&mut self.in_force);
        for section in both.keys().copied() {
            let said = said_for(&both, section);
            for (at, (rule, of)) in self.code.iter().enumerate().filter(|(_, (rule, _))| rule.prefix() == section.0) {
                let holds = if said.fits(rule, *of) {
                    Some(said.clone())
                } else {
                    // A key that was not in the file had the settings of all keys.
                    let known = before.get(&(section, at)).or_else(|| before.get(&((section.0, None), at)));
                    known.cloned().flatten()
                };
                self.in_force.insert((section, at), holds);
            }
        }
        true
    }

    /// The rule that a call is decided by. `None` if the call is let through without a question.
    fn expected(&self, at: usize, key: &'static str) -> Option<Rule> {
        let (code, _) = &self.code[at];
        let prefix = code.prefix();
        let holds = self.in_force.get(&((prefix, Some(key)), at)).or(self.in_force.get(&((prefix, None), at)));
        match holds {
            Some(Some(said)) if said.enabled == Some(false) => None,
            Some(Some(said)) => Some(said.applied_to(code)),
            Some(None) | None => Some(*code),
        }
    }

    fn at(&self, prefix: &str, of: Use) -> Option<usize> {
        self.code.iter().position(|(rule, its)| rule.prefix() == prefix && *its == of)
    }

    /// What each call is decided by: its key, and for each of its rules what is expected.
    fn calls(&self) -> Vec<Expected> {
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

/// Admits by rules of at least this count, and refuses by others for an hour.
const ADMITTED: u64 = 10;

/// Writes down what it is asked.
#[derive(Clone, Debug, Default)]
struct Recorder(Arc<Mutex<Vec<Vec<Rule>>>>);

impl Recorder {
    fn take(&self) -> Vec<Vec<Rule>> {
        mem::take(&mut *self.0.lock().unwrap())
    }
}

impl Store for Recorder {
    fn decide(&self, mut batch: Batch) -> Reply<Batch> {
        for request in batch.iter_mut() {
            self.0.lock().unwrap().push(request.charges.iter().map(|charge| charge.rule).collect());
            let mut fits = true;
            for charge in request.charges.iter_mut() {
                let (limit, is_admitted) = (charge.rule.limit(), charge.rule.count() >= ADMITTED);
                let remaining = if is_admitted { limit - 1 } else { 0 };
                charge.decision = Decision::new(limit, remaining, HOUR, (!is_admitted).then_some(HOUR));
                fits &= is_admitted;
            }
            request.outcome = Ok(fits);
        }
        Reply::Ready(batch)
    }

    fn refund(&self, _: Charges) -> Reply<Result<u64, StoreError>> {
        Reply::Ready(Ok(0))
    }

    fn reset(&self, _: CounterName) -> Reply<Result<(), StoreError>> {
        Reply::Ready(Ok(()))
    }

    fn supports_holds(&self) -> bool {
        true
    }

    fn renew(&self, charges: Vec<Charge>) -> Reply<Result<Vec<bool>, StoreError>> {
        Reply::Ready(Ok(vec![true; charges.len()]))
    }

    fn settle(&self, _: Charge, _: u64) -> Reply<Result<(), StoreError>> {
        Reply::Ready(Ok(()))
    }
}

/// A caller who waits, with a store of its own that shows what it was asked.
struct Waiter {
    at: usize,
    limiter: Limiter,
    recorder: Recorder,
    last: Option<Rule>,
    calls: Vec<JoinHandle<Result<Permit, RequestPerMinute>>>,
}

/// A process, its code and its file.
struct Timeline {
    random: Rng,
    model: Model,
    file: File,
    rules: Rules,
    limiter: Limiter,
    recorder: Recorder,
    waiters: Vec<Waiter>,
    /// What happened, for a message.
    story: Vec<String>,
}

fn limiter_with(rules: &Rules) -> (Limiter, Recorder) {
    let recorder = Recorder::default();
    let builder = Limiter::builder("memory://").clock(ManualClock::new()).deadline(PATIENCE).rules(rules.clone());
    (builder.over(recorder.clone()).unwrap(), recorder)
}

fn random_code(random: &mut Rng) -> Vec<(Rule, Use)> {
    let mut code = Vec::new();
    for prefix in PREFIXES {
        let algorithms = [
            Algorithm::FixedWindow { align: false },
            Algorithm::TokenBucket { burst: 7, refill: Refill::Greedy },
            Algorithm::SlidingLog,
            Algorithm::SlidingWindow { buckets: 2 },
            Algorithm::Concurrent,
            Algorithm::LeakyBucket { queue: 9 },
        ];
        let is_in_pair = PREFIXES[..2].contains(&prefix);
        let algorithm = algorithms[random.usize(..if is_in_pair { 4 } else { 6 })];
        let rule = Rule::new(prefix, random.u64(2..20), [MINUTE, HOUR][random.usize(..2)]).with_algorithm(algorithm);
        let rule = rule.with_denial_cache(false).with_shadow(random.f64() < 0.1);
        code.push((rule, Use::Alone));
        if is_in_pair {
            code.push((rule, Use::OneOfTwo));
        }
        if algorithm == Algorithm::SlidingLog {
            code.push((rule, Use::Settled));
        }
    }
    code
}

impl Timeline {
    /// `None` if the first file is wrong, which is an error.
    fn start(seed: u64, environment: &Sections) -> Option<Self> {
        let mut random = Rng::with_seed(seed);
        let code = random_code(&mut random);
        let mut model = Model { code, environment: environment.clone(), in_force: HashMap::new() };
        let first = random_sections(&mut random);
        let file = File::new(&format!("[rules]\n{}", text_of(&first, "rules.")));
        let rules = Rules::watch(&file.path);
        if !model.take_in(&first) {
            rules.unwrap_err();
            return None;
        }
        let rules = rules.unwrap();
        let (limiter, recorder) = limiter_with(&rules);
        let mut waiters = Vec::new();
        for prefix in PREFIXES {
            let (limiter, recorder) = limiter_with(&rules);
            let at = model.at(prefix, Use::Alone).unwrap();
            waiters.push(Waiter { at, limiter, recorder, last: None, calls: Vec::new() });
        }
        let story = vec![format!("seed {seed}, code {:?}\nfile {first:?}", model.code)];
        Some(Self { random, model, file, rules, limiter, recorder, waiters, story })
    }

    async fn run(mut self) {
        self.check().await;
        for step in 0..STEPS {
            let marker = format!("step{step}");
            self.change(&marker).await;
            self.check().await;
        }
        for calls in self.waiters.iter().flat_map(|waiter| &waiter.calls) {
            calls.abort();
        }
    }

    /// Changes the file in some way.
    async fn change(&mut self, marker: &str) {
        let before = self.model.calls();
        let next = random_sections(&mut self.random);
        let right = format!("[rules.{marker}]\n{}", text_of(&next, "rules."));
        let is_right = self.model.take_in(&next);
        let kind = if is_right { self.random.u32(..8) } else { 0 };
        self.story.push(format!("kind {kind}, {}:\n{right}", if is_right { "right" } else { "wrong together" }));
        match kind {
            0..=2 => self.file.write(&right),
            // Stays half written for a moment.
            3 | 4 => {
                let half = &right[..self.random.usize(1..right.len())];
                let written = Instant::now();
                fs::write(&self.file.path, half.trim_end()).unwrap();
                self.goes_on(&before, &before, Duration::from_millis(700)).await;
                self.file.write(&right);
                assert!(written.elapsed() < HALF_WRITTEN, "the machine halted: this run says nothing");
            }
            // Wrong for a while, or gone.
            5 | 6 => {
                let wrong = [
                    "\n[rules.a".to_owned(),
                    "\n[rule.a]\ncount = 500".to_owned(),
                    "\n[rules.other]\ncuont = 500".to_owned(),
                    "\n[rules.other]\ncount = 0".to_owned(),
                    "\n[rules.other.keys.x.keys.y]\ncount = 5".to_owned(),
                    "\n[rules.other]\ncount = 99_999_999_999\nunit = \"Days\"".to_owned(),
                ];
                let wrong = &wrong[self.random.usize(..wrong.len())];
                self.story.push(format!("first with {wrong}"));
                self.file.write(&format!("{right}{wrong}"));
                self.goes_on(&before, &before, READ).await;
                self.file.write(&right);
            }
            _ => {
                fs::remove_file(&self.file.path).unwrap();
                self.goes_on(&before, &before, READ).await;
                self.file.write(&right);
            }
        }
        let after = self.model.calls();
        if is_right {
            let began = Instant::now();
            while !self.rules.prefixes().iter().any(|prefix| prefix == marker) {
                assert!(began.elapsed() < PATIENCE, "the file is not read: {}", self.story.join("\n"));
                self.goes_on(&before, &after, Duration::ZERO).await;
            }
        } else {
            self.goes_on(&before, &before, READ).await;
            assert!(!self.rules.prefixes().iter().any(|prefix| prefix == marker), "{}", self.story.join("\n"));
        }
    }

    /// Calls are made all the time, and each is decided as before, or as after.
    async fn goes_on(&mut self, before: &[Expected], after: &[Expected], during: Duration) {
        let began = Instant::now();
        loop {
            let at = self.random.usize(..before.len());
            let Expected { site, key, rules: by } = &before[at];
            let asked = self.call(site, key).await;
            let is_by = |rules: &[Option<Rule>]| asked == rules.iter().copied().flatten().collect::<Vec<_>>();
            assert!(
                is_by(by) || is_by(&after[at].rules),
                "{key} {by:?} was asked by {asked:?}: {}",
                self.story.join("\n")
            );
            sleep(Duration::from_millis(30)).await;
            if began.elapsed() >= during {
                return;
            }
        }
    }

    /// The rules that a call is decided by, all of one question.
    async fn call(&self, site: &[usize], key: &'static str) -> Vec<Rule> {
        let rules: Vec<_> = site.iter().map(|at| self.model.code[*at].0).collect();
        let answer = match (self.model.code[site[0]].1, &rules[..]) {
            (Use::Settled, [rule]) => self.limiter.reserve(rule, key, 1).await.map(drop),
            (Use::Alone, [rule]) => {
                // Only the question counts, not the slot of a leaky bucket.
                self.limiter.acquire(rule, key).await.map(drop)
            }
            _ => {
                let charges: Vec<_> = rules.iter().map(|rule| (rule, Key::new(key), 1)).collect();
                self.limiter.acquire_all(&charges).await.map(drop)
            }
        };
        if let Err(refused) = answer {
            assert_eq!(refused.cause(), Cause::Exceeded, "{refused}: {}", self.story.join("\n"));
        }
        // A rule in shadow mode that refuses is left out of a second question.
        self.recorder.take().into_iter().next().unwrap_or_default()
    }

    /// All calls are decided by what holds now, and so are those who wait.
    async fn check(&mut self) {
        for Expected { site, key, rules } in self.model.calls() {
            let asked = self.call(&site, key).await;
            let expected: Vec<_> = rules.into_iter().flatten().collect();
            assert_eq!(asked, expected, "{key}: {}", self.story.join("\n"));
        }
        let story = self.story.join("\n");
        for waiter in &mut self.waiters {
            waiter.check(&self.model, &story).await;
        }
    }
}

impl Waiter {
    /// Those who wait are let in, or wait by the current rule. There is always somebody, unless all are let in.
    async fn check(&mut self, model: &Model, story: &str) {
        let expected = model.expected(self.at, WAITING);
        let is_let_in = expected.is_none_or(|rule| rule.count() >= ADMITTED || rule.is_shadow());
        if !self.calls.is_empty() {
            self.settle(expected, is_let_in, story).await;
        }
        if self.calls.is_empty() {
            let rule = model.code[self.at].0;
            self.last = None;
            self.calls =
                (0..2).map(|_| tokio::spawn(self.limiter.acquire_within(&rule, WAITING, LONGEST_WAIT))).collect();
            self.settle(expected, is_let_in, story).await;
        }
    }

    async fn settle(&mut self, expected: Option<Rule>, is_let_in: bool, story: &str) {
        let began = Instant::now();
        loop {
            self.last = self.recorder.take().pop().map(|rules| rules[0]).or(self.last);
            let is_asked = expected.is_none() || self.last == expected;
            let are_done = self.calls.iter().all(JoinHandle::is_finished);
            if is_asked && are_done == is_let_in {
                break;
            }
            let last = self.last;
            assert!(began.elapsed() < PATIENCE, "waits by {last:?}, not {expected:?}; let in: {is_let_in}: {story}");
            sleep(Duration::from_millis(5)).await;
        }
        if is_let_in {
            for call in self.calls.drain(..) {
                call.await.unwrap().unwrap_or_else(|refused| panic!("{refused}: {story}"));
            }
        }
    }
}

fn environment_of(seed: u64) -> Sections {
    let mut random = Rng::with_seed(seed);
    if seed.is_multiple_of(PROCESSES) {
        return Sections::new();
    }
    loop {
        let mut sections = random_sections(&mut random);
        // Few settings, or nothing is left to the files.
        for said in sections.values_mut() {
            if random.bool() {
                said.count = None;
            }
            if random.bool() {
                said.algorithm = None;
            }
        }
        if !sections.is_empty() && could_all_be(&merged(&sections, &Sections::new())) {
            return sections;
        }
    }
}

/// Each environment is that of a process of its own.
#[test]
fn every_call_is_decided_by_the_current_table_or_the_last_that_fits() {
    if let Ok(seed) = env::var(SEED) {
        return run(seed.parse().unwrap());
    }
    let first = fastrand::u64(..u64::MAX / 2) / PROCESSES * PROCESSES;
    let name = "config::changes::every_call_is_decided_by_the_current_table_or_the_last_that_fits";
    let processes: Vec<_> = (first..first + PROCESSES)
        .map(|seed| {
            let mut process = Command::new(env::current_exe().unwrap());
            process.args([name, "--exact", "--nocapture"]).env(SEED, seed.to_string());
            let environment = environment_of(seed);
            if !environment.is_empty() {
                process.env("RATELIMIT_RULES", text_of(&environment, ""));
            }
            let process = process.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
            (seed, environment, process.spawn().unwrap())
        })
        .collect();
    for (seed, environment, process) in processes {
        let output = process.wait_with_output().unwrap();
        let (said, wrong) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let ran = output.status.success() && said.contains("1 passed");
        let again = text_of(&environment, "");
        assert!(ran, "run it again with {SEED}={seed} RATELIMIT_RULES='{again}'\n{said}\n{wrong}");
    }
}

fn run(seed: u64) {
    let environment = environment_of(seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut timelines = Vec::new();
        let mut seeds = Rng::with_seed(seed);
        while timelines.len() < usize::try_from(TIMELINES).unwrap() {
            if let Some(timeline) = Timeline::start(seeds.u64(..), &environment) {
                timelines.push(timeline.run());
            }
        }
        join_all(timelines).await;
    });
}
