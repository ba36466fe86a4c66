//! A property of rules in files: the table in force decides each call and each waiting caller.
//! Settings that do not fit leave the last ones that did.
//!
//! Code rules, environments and files are random, and so is their order. `model` predicts the rule
//! of each call. A store records each request, and so shows which rule decided it.

mod model;

use std::collections::{HashMap, HashSet};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{env, fs, mem};

use fastrand::Rng;
use futures_util::future::join_all;
use model::{Expected, HOUR, Model, PREFIXES, Sections, Use, WAITING, could_all_be, merged, random_sections, text_of};
use ratelimit_runtime::config::Rules;
use ratelimit_runtime::store::{Batch, Charge, Charges, Reply, StoreError};
use ratelimit_runtime::{
    Algorithm, Cause, CounterName, Decision, Key, Limiter, ManualClock, Permit, Refill, RequestPerMinute, Rule, Store,
};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::{File, MINUTE};
use crate::support::PATIENCE;

/// Every process has one environment, and these run side by side in it.
const TIMELINES: u64 = 24;

const PROCESSES: u64 = 3;
const STEPS: u64 = 4;

/// Longer than any turn of two waiting callers.
const LONGEST_WAIT: Duration = Duration::from_secs(86_400 * 300);

/// A file that is not to be taken in has been read often enough by then.
const READ: Duration = Duration::from_secs(1);

/// A file whose last line has no end is taken in after two seconds, and not before.
const HALF_WRITTEN: Duration = Duration::from_millis(1900);

/// The reason why a process fails whose file was half written for longer. It runs [`ATTEMPTS`] times at most.
const HALTED: &str = "the machine halted: this run says nothing";
const ATTEMPTS: usize = 5;

const SEED: &str = "RATELIMIT_CHANGES_SEED";

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

/// A waiting caller, with a store of its own that records its requests.
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
    /// Log of the steps, for messages.
    story: Vec<String>,
    half_written: Option<Instant>,
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
            Algorithm::SlidingWindow { buckets: 2, weighted: true },
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
        let mut model = Model { code, environment: environment.clone(), in_force: HashMap::new(), off: HashSet::new() };
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
        Some(Self { random, model, file, rules, limiter, recorder, waiters, story, half_written: None })
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
                self.half_written = Some(Instant::now());
                fs::write(&self.file.path, half.trim_end()).unwrap();
                self.goes_on(&before, &before, Duration::from_millis(700)).await;
                self.file.write(&right);
                self.check_half_written();
                self.half_written = None;
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

    /// Ends the process if the file is half written for too long.
    fn check_half_written(&self) {
        assert!(self.half_written.is_none_or(|since| since.elapsed() < HALF_WRITTEN), "{HALTED}");
    }

    /// Calls are made all the time, and each is decided as before, or as after.
    async fn goes_on(&mut self, before: &[Expected], after: &[Expected], during: Duration) {
        let began = Instant::now();
        loop {
            let at = self.random.usize(..before.len());
            let Expected { site, key, rules: by } = &before[at];
            let asked = self.call(site, key).await;
            self.check_half_written();
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

    /// The settings in force decide all calls, and all waiting callers.
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
    /// Waiting callers are admitted, or wait by the current rule. One caller always waits, unless
    /// all are admitted.
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
    let start = |seed: u64| {
        let mut process = Command::new(env::current_exe().unwrap());
        process.args([name, "--exact", "--nocapture"]).env(SEED, seed.to_string());
        let environment = environment_of(seed);
        if !environment.is_empty() {
            process.env("RATELIMIT_RULES", text_of(&environment, ""));
        }
        process.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let processes: Vec<_> = (first..first + PROCESSES).map(|seed| (seed, start(seed))).collect();
    for (seed, mut process) in processes {
        for attempt in 1.. {
            let output = process.wait_with_output().unwrap();
            let (said, wrong) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            if output.status.success() && said.contains("1 passed") {
                break;
            }
            let again = text_of(&environment_of(seed), "");
            let halted = wrong.contains(HALTED) && attempt < ATTEMPTS;
            assert!(halted, "run it again with {SEED}={seed} RATELIMIT_RULES='{again}'\n{said}\n{wrong}");
            process = start(seed);
        }
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
