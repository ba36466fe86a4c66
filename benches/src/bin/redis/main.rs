//! The Redis store against other limiters that count on Redis, and against the bare `redis` client with the script that
//! a user would write, and with ours.
//!
//! `cargo run --release -p ratelimit-benches --bin redis -- [--quick] [--json FILE] [--svg FILE] [WORDS]`: the
//! tables whose title contains one of the words. Without words, all but `growth`, `connections` and
//! `scaling`. `growth` takes some minutes and, with `--full`, some gigabytes. `scaling` has up to 4,096
//! callers; of its figures `--svg` draws a picture. `--json` also writes all figures to a file.
//! `--quick` has shorter rounds, for a look.
//!
//! All contenders run in this process, round by round, one after the other, on a tokio runtime of
//! two threads. Each has one connection to a `redis-server` of its own, which shares the processors
//! with all else. In a round a number of callers make a number of decisions; each waits for its
//! answer before it asks again. Rounds are short, and contenders take turns in another order each
//! time. After some rounds all begin again with new servers. A figure is the median of the rounds.
//! Read the ratios, ours to the other: above 1 this crate decides more often in a second, below 1
//! it takes less time. A ratio is the median over the rounds, as a shared machine is faster at one
//! time than at another, for all.
//!
//! After each round the stored counts must equal the admitted calls. The line of a contender says
//! so if it admits more or fewer than it should, or stores something else.
//!
//! | column | |
//! |---|---|
//! | decisions/s | of all callers together |
//! | p50, p99 | wait of a caller for a decision, in microseconds; one call in 31 is measured |
//! | commands | that reached the servers, a decision |
//! | client, server | processor time a decision, in microseconds |
//! | allocations | a decision, of caller and connection, on a runtime of one thread |
//!
//! Allocations are counted while the clock runs, which costs about a nanosecond for each.
//!
//! `--once CALLS CONTENDER CALLERS KEYS` makes only these calls of one contender, on a runtime of
//! one thread, for a profiler; with `valgrind --tool=callgrind`, the difference between two runs is
//! instructions. `--once-in-cluster` makes them on a cluster of three.

mod contenders;
mod picture;
mod place;
mod report;
mod scripts;

use std::{
    env, fs,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use contenders::{Asked, Contender, HOUR, Kind};
use picture::{Line, Point};
use place::Place;
use ratelimit_harness::{RedisCluster, RedisServer};
use ratelimit_runtime::{Algorithm, Refill, Rule};
use report::{Report, Row};
use rustix::time::{ClockId, clock_gettime};
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinSet,
};

/// More than is ever asked for.
const PLENTY: u64 = 1_000_000_000;
/// Shares no factor with any number of keys here, and leads to them in an order that no cache likes.
const STRIDE: u64 = 382_197;
/// A rate that no contender reaches.
const A_SECOND: u64 = 5_000_000;
const ALGORITHMS: [(&str, Algorithm); 5] = [
    ("FixedWindow", Algorithm::FixedWindow { align: false }),
    ("SlidingLog", Algorithm::SlidingLog),
    ("SlidingWindow", Algorithm::SlidingWindow { buckets: 1, weighted: true }),
    ("TokenBucket", Algorithm::TokenBucket { burst: A_SECOND, refill: Refill::Greedy }),
    ("LeakyBucket", Algorithm::LeakyBucket { queue: MILLION }),
];
const MANY: u64 = 100_000;
const MILLION: u64 = 1_000_000;
/// Number of servers of a contender, one after the other.
const SERVERS: usize = 3;

const COLUMNS: [&str; 7] = ["decisions/s", "p50, µs", "p99, µs", "commands", "client, µs", "server, µs", "allocations"];
/// Columns with a ratio.
const RATIOS: [usize; 2] = [0, 2];

const CONDITIONS: &str = "\
One connection each, which sends at once (TCP_NODELAY), in RESP3; two threads of tokio.
throttle-kit and limitador 0.6 bring a client (redis 0.25) that speaks RESP2 only.
limitador 0.14 is not here: its Redis storage does not compile without its storage on disk, nor does that of 0.7.
limitador, cached, counts in this process and tells the server later: it is here for information.";

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [once @ ("--once" | "--once-in-cluster"), calls, kind, callers, keys] => {
            let place = match once {
                "--once" => Place::Single(RedisServer::start()),
                _ => Place::Cluster(RedisCluster::builder().replicas(0).start()),
            };
            let load = Load { callers: number(callers), calls: number(calls), keys: number(keys), first_key: 0 };
            run_once(kind_named(kind), &place, load);
        }
        ["--process", url, kind, count, calls] => {
            process(url.to_owned(), kind_named(kind), number(count), number(calls));
        }
        _ => Bench::new(&arguments).run(),
    }
}

fn number(word: &str) -> u64 {
    word.parse().unwrap_or_else(|error| panic!("`{word}` is no number: {error}"))
}

fn kind_named(word: &str) -> Kind {
    let is_it = |kind: &&Kind| format!("{kind:?}").eq_ignore_ascii_case(word);
    *Kind::ALL.iter().find(is_it).unwrap_or_else(|| panic!("`{word}` is none of {:?}", Kind::ALL))
}

/// How the calls of a measurement are made.
#[derive(Clone, Copy)]
struct Load {
    callers: u64,
    calls: u64,
    /// A number of keys from this one on.
    keys: u64,
    first_key: u64,
}

/// One call of this many is measured.
const MEASURED: u64 = 31;
/// Least number of times that a caller fetches calls, so that all end at about the same time.
const TIMES: u64 = 32;
/// Largest number of calls that a caller fetches at a time: callers on two threads wait for each
/// other where they fetch each one.
const AT_A_TIME: u64 = 32;

/// The result of a round.
struct Lap {
    time: Duration,
    admitted: u64,
    /// Sorted.
    waits: Vec<Duration>,
}

impl Lap {
    fn microseconds(&self, percentile: usize) -> f64 {
        self.waits[(self.waits.len() - 1) * percentile / 100].as_secs_f64() * 1e6
    }
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

fn run(runtime: &Runtime, contender: &Contender, load: Load) -> Lap {
    match contender {
        Contender::Ours(limiter) => run_one(runtime, limiter, load),
        Contender::Several(limiters) => run_one(runtime, limiters, load),
        Contender::Raw(limiter) => run_one(runtime, limiter, load),
        Contender::RawCluster(limiter) => run_one(runtime, limiter, load),
        Contender::Trypema(limiter) => run_one(runtime, limiter, load),
        Contender::ThrottleKit(limiter) => run_one(runtime, limiter, load),
        Contender::Limitador(limiter) => run_one(runtime, limiter, load),
    }
}

/// Callers of this one alone, whose futures are as large as it makes them.
fn run_one(runtime: &Runtime, limiter: &Arc<impl Asked>, load: Load) -> Lap {
    let Load { callers, calls, keys, first_key } = load;
    let at_a_time = (calls / callers / TIMES).clamp(1, AT_A_TIME);
    let started = Instant::now();
    let next = Arc::new(AtomicU64::new(0));
    let mut lap = Lap { time: Duration::ZERO, admitted: 0, waits: Vec::new() };
    let results = runtime.block_on(async {
        let mut tasks = JoinSet::new();
        for _ in 0..callers {
            let (next, limiter) = (Arc::clone(&next), Arc::clone(limiter));
            tasks.spawn(async move {
                let mut waits = Vec::with_capacity(usize::try_from(2 * calls / callers / MEASURED).expect("fits") + 16);
                let mut admitted = 0;
                loop {
                    let first = next.fetch_add(at_a_time, Ordering::Relaxed);
                    if first >= calls {
                        return (admitted, waits);
                    }
                    for number in first..calls.min(first + at_a_time) {
                        let key = first_key + number * STRIDE % keys;
                        let asked = number.is_multiple_of(MEASURED).then(Instant::now);
                        admitted += u64::from(limiter.admits(key).await);
                        waits.extend(asked.map(|asked| asked.elapsed()));
                    }
                }
            });
        }
        tasks.join_all().await
    });
    lap.time = started.elapsed();
    for (admitted, mut waits) in results {
        lap.admitted += admitted;
        lap.waits.append(&mut waits);
    }
    lap.waits.sort_unstable();
    lap
}

/// One contender in a contest.
struct Runner {
    kind: Kind,
    contender: Contender,
    place: Place,
    rule: Rule,
    /// Since its servers were empty.
    admitted: u64,
    /// A note on it.
    fault: Option<String>,
}

/// Figures of one contender, round by round.
type Figures = [Vec<f64>; 6];

/// Figures of contenders, one by one.
struct Contest {
    figures: Vec<Figures>,
    faults: Vec<Option<String>>,
    /// Share of the processor time that went elsewhere, by server.
    stolen: Vec<f64>,
}

impl Contest {
    fn new(contenders: usize) -> Self {
        let figures = (0..contenders).map(|_| Figures::default()).collect();
        Self { figures, faults: vec![None; contenders], stolen: Vec::new() }
    }
}

/// The start of something, and the processor time that the hypervisor had taken by then.
struct Stolen {
    since: Instant,
    seconds: f64,
    processors: f64,
}

impl Stolen {
    /// Nothing where that is not told.
    fn now() -> Option<Self> {
        let stat = fs::read_to_string("/proc/stat").ok()?;
        let processors = stat.lines().skip(1).take_while(|line| line.starts_with("cpu")).count();
        let hundredths: u32 = stat.lines().next()?.split_whitespace().nth(8)?.parse().ok()?;
        let processors = u32::try_from(processors).expect("fits");
        Some(Self { since: Instant::now(), seconds: f64::from(hundredths) / 100.0, processors: processors.into() })
    }

    fn share(&self) -> f64 {
        let seconds = Self::now().map_or(self.seconds, |now| now.seconds);
        (seconds - self.seconds) / (self.since.elapsed().as_secs_f64() * self.processors)
    }
}

impl Runner {
    fn run(&mut self, runtime: &Runtime, load: Load) -> Lap {
        let lap = run(runtime, &self.contender, load);
        self.admitted += lap.admitted;
        lap
    }

    /// Otherwise the figures are worth little.
    fn expect(&mut self, is_right: bool, fault: impl FnOnce() -> String) {
        if !is_right && self.fault.is_none() {
            self.fault = Some(fault());
        }
    }

    fn compare_with_server(&mut self) {
        if !matches!(self.rule.algorithm(), Algorithm::FixedWindow { .. }) || self.rule.period() < HOUR {
            return; // the stored state tells no number of calls
        }
        let stored = self.place.admitted(self.kind);
        let admitted = self.admitted;
        let is_right = match self.kind {
            Kind::Prefetching => stored >= admitted,
            kind => stored == admitted || !kind.counts_at_once(),
        };
        self.expect(is_right, || format!("admitted {admitted}, but {stored} are stored"));
    }

    /// Number of calls that fill a turn.
    fn calls(&mut self, runtime: &Runtime, load: Load, turn: Duration) -> u64 {
        let mut calls = load.callers.max(100);
        loop {
            let Lap { time, .. } = self.run(runtime, Load { calls, ..load });
            if time > turn / 4 {
                let filling = u128::from(calls) * turn.as_nanos() / time.as_nanos();
                return u64::try_from(filling).expect("a turn is short").max(load.callers);
            }
            calls *= 2;
        }
    }

    /// One round, with what it should have come to.
    fn round(&mut self, runtime: &Runtime, load: Load, admitted: u64, figures: &mut Figures) {
        let (work, cpu) = (self.place.work(self.kind), cpu_seconds());
        let lap = self.run(runtime, load);
        let (work_after, cpu_after) = (self.place.work(self.kind), cpu_seconds());
        self.expect(lap.admitted == admitted, || format!("admitted {} instead of {admitted}", lap.admitted));
        let calls = float(load.calls);
        let figure = [
            (calls / lap.time.as_secs_f64()).round(),
            lap.microseconds(50),
            lap.microseconds(99),
            float(work_after.commands - work.commands) / calls,
            (cpu_after - cpu) * 1e6 / calls,
            (work_after.cpu_seconds - work.cpu_seconds) * 1e6 / calls,
        ];
        figures.iter_mut().zip(figure).for_each(|(figures, figure)| figures.push(figure));
    }

    /// Allocations a call, by a contender like it whose connection runs on this thread.
    fn allocations(&mut self, load: Load) -> f64 {
        const CALLS: u64 = 10_000;
        let here = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let contender = here.block_on(Contender::new(self.kind, &self.place, self.rule));
        let mut allocations = |calls| {
            let allocations = allocation_counter::measure(|| {
                self.admitted += run(&here, &contender, Load { calls, ..load }).admitted;
            });
            float(allocations.count_total)
        };
        allocations(2 * CALLS); // what is known of its keys is known from now on
        // The callers themselves are in both.
        (allocations(2 * CALLS) - allocations(CALLS)) / float(CALLS)
    }
}

struct Bench<'a> {
    /// Words of the titles that are wanted.
    words: Vec<&'a str>,
    json: Option<&'a str>,
    svg: Option<&'a str>,
    full: bool,
    /// With each server.
    rounds: usize,
    /// Figures of one contender in one round.
    turn: Duration,
    runtime: Runtime,
    report: Report,
    /// Contenders that do not limit as they should, and how.
    inexact: Vec<(Kind, String)>,
}

impl<'a> Bench<'a> {
    fn new(arguments: &[&'a str]) -> Self {
        let mut words = arguments.to_vec();
        let mut take = |word| words.iter().position(|other| *other == word).map(|at| words.remove(at)).is_some();
        let (quick, full) = (take("--quick"), take("--full"));
        let mut file = |option| {
            let at = words.iter().position(|word| *word == option)?;
            words.remove(at);
            assert!(at < words.len(), "{option} needs the name of a file");
            Some(words.remove(at))
        };
        let (json, svg) = (file("--json"), file("--svg"));
        let runtime = runtime();
        let turn = Duration::from_millis(if quick { 50 } else { 200 });
        let rounds = if quick { 3 } else { 5 };
        let report = Report::default();
        Self { words, json, svg, full, rounds, turn, runtime, report, inexact: Vec::new() }
    }

    fn run(mut self) {
        const OURS_AND_BARE: [Kind; 4] = [Kind::Ours, Kind::OneByOne, Kind::Users, Kind::Raw];
        let [single, cluster] = [false, true].map(|cluster| {
            move |_: Kind| {
                if cluster {
                    Place::Cluster(RedisCluster::builder().replicas(0).start())
                } else {
                    Place::Single(RedisServer::start())
                }
            }
        });
        println!("{CONDITIONS}");
        self.exactness();
        self.physical_limit();
        for (count, keys) in [(PLENTY, 1), (PLENTY, MANY), (1, 1), (1, MANY)] {
            let callers: &[u64] = if keys == 1 { &[1, 64, 256, 1_024] } else { &[1, 64, 256] };
            self.contest("", an_hour(count), keys, callers, &Kind::ALL, single);
        }
        self.lone_caller();
        self.processes();
        for (count, keys) in [(PLENTY, 1), (PLENTY, MANY), (1, MANY)] {
            let callers: &[u64] = if keys == 1 { &[1, 64, 256, 1_024] } else { &[1, 64, 256] };
            self.contest("cluster of three, ", an_hour(count), keys, callers, &OURS_AND_BARE, cluster);
        }
        for (name, algorithm) in ALGORITHMS {
            let rule = Rule::new("item", A_SECOND, Duration::from_secs(1)).with_algorithm(algorithm);
            // Slots are waited for. Our script tells them in a form that only this crate reads.
            let kinds = &OURS_AND_BARE[..if name == "LeakyBucket" { 3 } else { 4 }];
            for keys in [1, MANY] {
                self.contest(&format!("{name}, "), rule, keys, &[64, 256], kinds, single);
            }
        }
        if self.words.contains(&"growth") {
            for keys in [1_000, MANY, MILLION].into_iter().chain(self.full.then_some(10 * MILLION)) {
                self.contest("growth, ", an_hour(PLENTY), keys, &[64], &OURS_AND_BARE, single);
            }
        }
        if self.words.contains(&"scaling") {
            let kinds = [
                Kind::Ours,
                Kind::InMemory,
                Kind::InCluster,
                Kind::Prefetching,
                Kind::Users,
                Kind::Raw,
                Kind::ThrottleKit,
            ];
            let place = |kind| match kind {
                Kind::InMemory => Place::Memory,
                Kind::InCluster => cluster(kind),
                _ => single(kind),
            };
            let callers = [1, 4, 16, 64, 256, 1_024, 4_096];
            let lines = self.contest("scaling, ", an_hour(PLENTY), 1_000, &callers, &kinds, place);
            if let Some(file) = self.svg {
                picture::write(file, &lines).unwrap_or_else(|error| panic!("cannot draw {file}: {error}"));
            }
        }
        if self.words.contains(&"connections") {
            let kinds = [Kind::Ours, Kind::Several(4), Kind::Several(16)];
            for keys in [1, MANY] {
                self.contest("connections, ", an_hour(PLENTY), keys, &[64, 1_024], &kinds, single);
            }
        }
        self.report.end(self.json);
    }

    fn wants(&self, title: &str) -> bool {
        self.words.is_empty() || self.words.iter().any(|word| title.contains(word))
    }

    fn runner(&self, kind: Kind, place: Place, rule: Rule) -> Runner {
        let contender = self.runtime.block_on(Contender::new(kind, &place, rule));
        let inexact = self.inexact.iter().find(|(inexact, _)| *inexact == kind);
        Runner { kind, contender, place, rule, admitted: 0, fault: inexact.map(|(_, fault)| fault.clone()) }
    }

    /// Speed of the server without a script, by its own tool, which has 50 connections.
    fn physical_limit(&mut self) {
        let title = format!("physical limit: redis-benchmark, INCR of {MANY} keys");
        if !self.wants(&title) {
            return;
        }
        let server = RedisServer::start();
        let of_depth = |depth: u64| {
            let url = server.url();
            let port = url.rsplit(':').next().expect("a port");
            let depth = depth.to_string();
            let (keys, calls) = (MANY.to_string(), (20 * MANY).to_string());
            let arguments = ["-p", port, "-n", &calls, "-r", &keys, "-P", &depth, "--csv", "INCR", "key:__rand_int__"];
            let output = Command::new("redis-benchmark").args(arguments).output().ok()?;
            // "test","rps",.. and "INCR key","1000000.00",..
            let text = String::from_utf8(output.stdout).ok()?;
            text.lines().last()?.split(',').nth(1)?.trim_matches('"').parse::<f64>().ok()
        };
        let depths = [1, 16, 64];
        let [Some(one), Some(sixteen), Some(most)] = depths.map(|depth| {
            let rounds: Option<Vec<f64>> = (0..self.rounds).map(|_| of_depth(depth)).collect();
            rounds.map(median)
        }) else {
            println!("\n{title}: there is no redis-benchmark here (Debian package redis-tools)");
            return;
        };
        let row = Row { name: "commands/s", figures: vec![one, sixteen, most], note: None };
        self.report.table(&title, &["depth 1", "depth 16", "depth 64"], &[], vec![row]);
    }

    /// Checks that each contender admits exactly the count when many callers ask at once. Always
    /// first: a contender that fails is marked everywhere.
    fn exactness(&mut self) {
        const COUNT: u64 = 5_000;
        let crowds = [64, 256, 1_024];
        let mut rows = Vec::new();
        for kind in Kind::ALL {
            let mut runner = self.runner(kind, Place::Single(RedisServer::start()), an_hour(COUNT));
            let mut most = crowds.map(|_| 0);
            for round in 0..5 {
                for (at, callers) in crowds.into_iter().enumerate() {
                    let first_key = round * 10 + u64::try_from(at).expect("fits");
                    let load = Load { callers, calls: 2 * COUNT, keys: 1, first_key };
                    let Lap { admitted, .. } = runner.run(&self.runtime, load);
                    most[at] = admitted.max(most[at]);
                    runner.expect(admitted == COUNT, || format!("admits {admitted} of {COUNT}"));
                }
            }
            runner.compare_with_server();
            self.inexact.extend(runner.fault.iter().map(|fault| (kind, fault.clone())));
            rows.push(Row { name: kind.name(), figures: most.map(float).to_vec(), note: runner.fault });
        }
        let title =
            format!("admitted at most in 5 rounds of {} calls of one key, limited to {COUNT} an hour", 2 * COUNT);
        self.report.table(&title, &["64 callers", "256 callers", "1024 callers"], &[], rows);
    }

    fn contest(
        &mut self,
        prefix: &str,
        rule: Rule,
        keys: u64,
        callers: &[u64],
        kinds: &[Kind],
        place: impl Fn(Kind) -> Place,
    ) -> Vec<Line> {
        let refused = rule.count() == 1;
        let outcome = if refused { "refused" } else { "admitted" };
        let what = if keys == 1 { "one key".to_owned() } else { format!("{keys} keys") };
        let title =
            |callers| format!("{prefix}{outcome}, {what}, {callers} caller{}", if callers == 1 { "" } else { "s" });
        let crowds: Vec<u64> = callers.iter().copied().filter(|callers| self.wants(&title(*callers))).collect();
        if crowds.is_empty() {
            return Vec::new();
        }
        let kinds = kinds.iter().filter(|kind| refused || **kind != Kind::Forgetful);
        // Leases are for counts above them.
        let kinds = kinds.filter(|kind| !refused || **kind != Kind::Prefetching);
        let kinds: Vec<Kind> = kinds.copied().collect();
        let load = Load { callers: 256, calls: keys, keys, first_key: 0 };
        let mut contests: Vec<Contest> = crowds.iter().map(|_| Contest::new(kinds.len())).collect();
        let mut runners: Vec<Runner> = Vec::new();
        // Where keys lie in the memory of a server favours one or another, so that no contest is about one server only.
        for _ in 0..if keys > MANY { 1 } else { SERVERS } {
            runners.clear();
            // One that tells its server later does so in the turns of others, so it has turns of its own.
            for kinds in kinds.chunk_by(|_, other| *other != Kind::LimitadorCached) {
                self.runtime = runtime(); // some leave tasks behind, which never rest once their server is gone
                let mut group: Vec<Runner> = kinds.iter().map(|kind| self.runner(*kind, place(*kind), rule)).collect();
                for runner in &mut group {
                    let Lap { admitted, .. } = runner.run(&self.runtime, load); // each key has been asked about once
                    runner.expect(admitted == keys, || format!("admitted {admitted} of {keys} first calls"));
                    if refused {
                        runner.run(&self.runtime, load); // and what is refused is known
                    }
                }
                for (callers, contest) in crowds.iter().zip(&mut contests) {
                    let load = Load { callers: *callers, ..load };
                    contest.stolen.extend(self.take_turns(
                        &mut group,
                        load,
                        refused,
                        &mut contest.figures[runners.len()..],
                    ));
                    for (runner, fault) in group.iter().zip(&mut contest.faults[runners.len()..]) {
                        *fault = fault.take().or_else(|| runner.fault.clone());
                    }
                }
                runners.extend(group);
            }
        }
        let mut lines: Vec<Line> = kinds.iter().map(|kind| Line { name: kind.name(), points: Vec::new() }).collect();
        for (callers, contest) in crowds.into_iter().zip(contests) {
            for (line, figures) in lines.iter_mut().zip(&contest.figures) {
                let [decisions, p99_us] = [0, 2].map(|at| median(figures[at].clone()));
                line.points.push(Point { callers, decisions, p99_us });
            }
            self.report(&title(callers), &mut runners, contest, Load { callers, ..load });
        }
        lines
    }

    /// Returns which share of the processors' time went elsewhere.
    fn take_turns(&self, runners: &mut [Runner], load: Load, refused: bool, figures: &mut [Figures]) -> Option<f64> {
        let stolen = Stolen::now();
        let calls: Vec<u64> = runners.iter_mut().map(|runner| runner.calls(&self.runtime, load, self.turn)).collect();
        for round in 1..=self.rounds {
            let contenders = runners.len();
            for at in (0..contenders).map(|turn| (round + turn) % contenders) {
                let (runner, calls) = (&mut runners[at], calls[at]);
                let admitted = if refused { 0 } else { calls };
                runner.round(&self.runtime, Load { calls, ..load }, admitted, &mut figures[at]);
                // To read millions takes longer than all the rest.
                if load.keys <= MANY || round == self.rounds {
                    runner.compare_with_server();
                }
            }
        }
        stolen.map(|stolen| stolen.share())
    }

    /// A table of what was measured, and of allocations a call.
    fn report(&mut self, title: &str, runners: &mut [Runner], contest: Contest, load: Load) {
        let Contest { figures, faults, stolen } = contest;
        let ratio = |figures_of_it: &Figures, at: usize| {
            let ratios = figures[0][at].iter().zip(&figures_of_it[at]).map(|(ours, its)| ours / its);
            RATIOS.contains(&at).then(|| median(ratios.collect()))
        };
        let ratios =
            |of: &Figures| (0..COLUMNS.len()).map(|at| if at < of.len() { ratio(of, at) } else { None }).collect();
        let ratios = figures.iter().map(ratios).collect();
        let rows = runners.iter_mut().zip(figures.iter().zip(faults)).map(|(runner, (figures, note))| {
            let mut figures: Vec<f64> = figures.iter().cloned().map(median).collect();
            figures.push(runner.allocations(load));
            Row { name: runner.kind.name(), figures, note }
        });
        let rows = rows.collect();
        self.report.table_with(title, &COLUMNS, ratios, rows);
        let stolen = stolen.into_iter().fold(0.0, f64::max);
        if stolen >= 0.01 {
            println!("  Other machines had the processors for up to {:.0} % of the time meanwhile.", 100.0 * stolen);
        }
    }

    /// The price that a single caller pays for batching: many short rounds, by turns.
    fn lone_caller(&mut self) {
        let title = "a caller who is alone, one key, coalescing on and off";
        if !self.wants(title) {
            return;
        }
        let mut runners = [Kind::Ours, Kind::OneByOne]
            .map(|kind| self.runner(kind, Place::Single(RedisServer::start()), an_hour(PLENTY)));
        let load = Load { callers: 1, calls: 200, keys: 1, first_key: 0 };
        let mut figures = [Figures::default(), Figures::default()];
        for _ in 0..40 * self.rounds {
            for (runner, figures) in runners.iter_mut().zip(&mut figures) {
                runner.round(&self.runtime, load, load.calls, figures);
            }
        }
        let ratios = figures[0][0].iter().zip(&figures[1][0]).map(|(on, off)| on / off).collect();
        let ratios = [median(ratios), 1.0];
        let rows = runners.iter().zip(figures).zip(ratios).map(|((runner, [rate, ..]), ratio)| Row {
            name: runner.kind.name(),
            figures: vec![median(rate), ratio],
            note: runner.fault.clone(),
        });
        self.report.table(title, &["decisions/s", "ratio, median"], &[], rows.collect());
    }

    /// Several processes that share one limit.
    fn processes(&mut self) {
        const PROCESSES: u64 = 4;
        const COUNT: u64 = 50_000;
        let title = format!("one key, {COUNT} an hour, {PROCESSES} processes of 64 callers");
        if !self.wants(&title) {
            return;
        }
        let kinds = [Kind::Ours, Kind::OneByOne, Kind::Prefetching, Kind::Users, Kind::Raw];
        let rows = kinds.into_iter().map(|kind| {
            let server = RedisServer::start();
            let [count, calls] = [COUNT, COUNT].map(|number| number.to_string());
            let start = |_| {
                Command::new(env::current_exe().expect("the path of this program"))
                    .args(["--process", &server.url(), &format!("{kind:?}"), &count, &calls])
                    .stdout(Stdio::piped())
                    .spawn()
                    .expect("another process")
            };
            let processes: Vec<_> = (0..PROCESSES).map(start).collect();
            let admitted: u64 = processes
                .into_iter()
                .map(|process| {
                    let output = process.wait_with_output().expect("its output");
                    number(String::from_utf8(output.stdout).expect("a text").trim())
                })
                .sum();
            let above = float(admitted.saturating_sub(COUNT));
            Row { name: kind.name(), figures: vec![float(PROCESSES * COUNT), float(admitted), above], note: None }
        });
        self.report.table(&title, &["calls", "admitted", "above"], &[], rows.collect());
    }
}

/// One of several processes: says how many of its calls were admitted.
fn process(url: String, kind: Kind, count: u64, calls: u64) {
    let runtime = runtime();
    let contender = runtime.block_on(Contender::new(kind, &Place::Elsewhere(url), an_hour(count)));
    println!("{}", run(&runtime, &contender, Load { callers: 64, calls, keys: 1, first_key: 0 }).admitted);
}

fn an_hour(count: u64) -> Rule {
    Rule::new("item", count, HOUR)
}

fn run_once(kind: Kind, place: &Place, load: Load) {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let contender = runtime.block_on(Contender::new(kind, place, an_hour(PLENTY)));
    let lap = run(&runtime, &contender, load);
    println!("{} of {} admitted in {:?}", lap.admitted, load.calls, lap.time);
}

/// Processor time of this process so far.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).expect("a time since the start").as_secs_f64()
}

#[allow(clippy::cast_precision_loss)] // of numbers of calls
fn float(number: u64) -> f64 {
    number as f64
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}
