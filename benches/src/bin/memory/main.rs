//! The memory store against other limiters that count in memory.
//!
//! `cargo run --release -p ratelimit-benches --bin memory`. With `--json` it prints the figures as
//! JSON in place of the tables. With `--json FILE` it prints the tables, and writes the figures to
//! the file. `--quick` has fewer and shorter rounds, for a look.
//!
//! All contenders run in this process, round by round, one after the other. Each figure and each
//! ratio is the median of the rounds. Read the ratios, ours to the other: below 1 this crate takes
//! less. Ours is an annotated function; `Limiter::acquire` gives a permit, too.
//!
//! Allocations are counted while the clock runs, which costs about a nanosecond for each.
//!
//! Futures are polled where they are made, once and with a waker that does nothing: no executor takes part.
//!
//! `--once CALLS CONTENDER` makes only these calls of one contender: `annotated`, `acquire`, `own`
//! or `governor`, with `-texts` behind it for texts as keys. The difference between two runs is
//! instructions a call, a figure that does not depend on the load of the machine:
//!
//! ```text
//! for calls in 1000 101000; do
//!     valgrind --tool=callgrind --callgrind-out-file=/tmp/callgrind.$calls \
//!         target/release/memory --once $calls annotated
//! done
//! callgrind_annotate /tmp/callgrind.101000 | head -60
//! ```

mod contenders;
mod report;

use std::{
    env,
    hint::black_box,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use contenders::{
    Annotated, Contender, EXACT, Governor, INSTALLED, Key, LeakyBucket, Limitador, OfItsOwn, Ours, PLENTY, ThrottleKit,
    now,
};
use ratelimit_runtime::{RequestPerMinute, Rule, limit_request_per_time};
use report::{Report, Row};

/// Shares no factor with any number of keys here, and leads to them in an order that no cache likes.
const STRIDE: u64 = 382_197;
const MILLION: u64 = 1_000_000;

/// The size of a measurement.
#[derive(Clone, Copy)]
struct Effort {
    rounds: usize,
    /// Figures of one contender in one round.
    turn: Duration,
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let ["--once", calls, contender] = arguments[..] {
        return once(calls.parse().expect("a number of calls"), contender);
    }
    let effort = if arguments.contains(&"--quick") {
        Effort { rounds: 9, turn: Duration::from_millis(10) }
    } else {
        Effort { rounds: 41, turn: Duration::from_millis(25) }
    };
    let mut report = Report::new(arguments.contains(&"--json"));
    exactness(&mut report);
    // The process-wide limiter keeps the keys of every contest: few come before many.
    attribute(&mut report, effort);
    for (keys, text) in [(1, false), (1_000, false), (1_000, true), (MILLION, false), (MILLION, true)] {
        for refused in [false, true] {
            speed(&mut report, effort, Scene { keys, text, refused });
        }
    }
    for keys in [MILLION, MILLION * 3 / 2, 2 * MILLION] {
        size(&mut report, keys);
    }
    for keys in [1_000, 10_000, 100_000, MILLION, 10 * MILLION] {
        growth(&mut report, effort, keys);
    }
    report.end(arguments.into_iter().find(|argument| !argument.starts_with("--")));
}

/// The calls of a measurement.
#[derive(Clone, Copy)]
struct Scene {
    keys: u64,
    text: bool,
    refused: bool,
}

impl Scene {
    fn title(self) -> String {
        let Self { keys, text, refused } = self;
        let outcome = if refused { "refused" } else { "admitted" };
        format!("{outcome}, {keys} {}", if text { "texts as keys" } else { "integers as keys" })
    }

    /// Made beforehand, as whoever asks has its key.
    fn texts(self) -> Vec<String> {
        if self.text { (0..self.keys).map(|key| format!("user-{key:07}")).collect() } else { Vec::new() }
    }
}

/// One contender, and how to let it run: so many calls on each of so many threads.
struct Runner<'a> {
    name: &'static str,
    run: Box<dyn Fn(u64, u64) -> Lap + 'a>,
}

/// The result of a run.
#[derive(Clone, Copy)]
struct Lap {
    /// The slowest thread's.
    time: Duration,
    admitted: u64,
}

impl<'a> Runner<'a> {
    /// `None` for a contender that can't do this. Each key has been asked about once.
    fn new<C: Contender + 'a>(scene: Scene, texts: &'a [String]) -> Option<Self> {
        let keys = usize::try_from(scene.keys).expect("fits");
        let contender = C::new(if scene.refused { 1 } else { PLENTY }, keys, scene.text)?;
        let key = move |index: u64| match texts.get(usize::try_from(index).expect("fits")) {
            Some(text) => Key::Text(text),
            None => Key::Number(index),
        };
        (0..scene.keys).for_each(|index| assert!(contender.admits(key(index)), "{}: the first call", C::NAME));
        let run = move |calls, threads| on_threads(threads, calls, scene.keys, |index| contender.admits(key(index)));
        Some(Self { name: C::NAME, run: Box::new(run) })
    }

    /// Number of calls that fill a turn.
    fn calls(&self, threads: u64, turn: Duration) -> u64 {
        let mut calls = 1_000;
        loop {
            let Lap { time, .. } = (self.run)(calls, threads);
            if time > turn / 4 {
                return (calls * u64::try_from(turn.as_nanos()).expect("short"))
                    / u64::try_from(time.as_nanos()).expect("short");
            }
            calls *= 2;
        }
    }
}

/// Calls on each of the threads, which begin together, each somewhere else among the keys.
fn on_threads(threads: u64, calls: u64, keys: u64, admits: impl Fn(u64) -> bool + Sync) -> Lap {
    let barrier = Barrier::new(usize::try_from(threads).expect("fits"));
    let run = |thread: u64| {
        let mut index = thread * keys / threads;
        let step = STRIDE % keys;
        barrier.wait();
        let started = Instant::now();
        let mut admitted = 0;
        for _ in 0..calls {
            admitted += u64::from(black_box(admits(index)));
            index += step;
            if index >= keys {
                index -= keys;
            }
        }
        Lap { time: started.elapsed(), admitted }
    };
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|thread| scope.spawn(move || run(thread))).collect();
        let first = run(0);
        others
            .into_iter()
            .map(|other| other.join().expect("no panics"))
            .fold(first, |sum, lap| Lap { time: sum.time.max(lap.time), admitted: sum.admitted + lap.admitted })
    })
}

/// The result of the turns of a contender.
struct Turns {
    /// Nanoseconds a call.
    time: f64,
    /// The time of the first contender divided by this one: the median over the rounds, as a shared
    /// machine is faster at one time than at another.
    ratio: f64,
    /// True if each call was admitted, or refused, as it should be.
    right: bool,
}

fn take_turns(runners: &[Runner<'_>], threads: u64, effort: Effort, refused: bool) -> Vec<Turns> {
    let calls: Vec<u64> = runners.iter().map(|runner| runner.calls(threads, effort.turn)).collect();
    let mut nanoseconds = vec![Vec::new(); runners.len()];
    let mut right = vec![true; runners.len()];
    for _ in 0..effort.rounds {
        for (at, runner) in runners.iter().enumerate() {
            let lap = (runner.run)(calls[at], threads);
            nanoseconds[at].push(lap.time.as_secs_f64() * 1e9 / float(calls[at]));
            right[at] &= lap.admitted == if refused { 0 } else { calls[at] * threads };
        }
    }
    let ratio = |times: &[f64]| median(nanoseconds[0].iter().zip(times).map(|(first, time)| first / time).collect());
    let turns = nanoseconds.iter().zip(right);
    turns.map(|(times, right)| Turns { time: median(times.clone()), ratio: ratio(times), right }).collect()
}

/// Checks that each contender admits exactly the count when two threads ask at once.
fn exactness(report: &mut Report) {
    fn admitted<C: Contender>() -> Row {
        let contender = C::new(EXACT, 1, false).expect("one key is within everybody's reach");
        let lap = on_threads(2, EXACT.into(), 1, |key| contender.admits(Key::Number(key)));
        let note = (lap.admitted != u64::from(EXACT)).then(|| "does not limit as it should".to_owned());
        Row { name: C::NAME, figures: vec![float(lap.admitted)], note }
    }
    let rows = vec![
        admitted::<Annotated>(),
        admitted::<Ours>(),
        admitted::<Governor>(),
        admitted::<ThrottleKit>(),
        admitted::<Limitador>(),
        admitted::<LeakyBucket>(),
    ];
    report.table("20,000 calls of one key, by two threads, limited to 10,000 an hour", &["admitted"], &[], rows);
}

fn speed(report: &mut Report, effort: Effort, scene: Scene) {
    let texts = scene.texts();
    let runners: Vec<Runner<'_>> = [
        Runner::new::<Annotated>(scene, &texts),
        Runner::new::<Ours>(scene, &texts),
        Runner::new::<OfItsOwn>(scene, &texts),
        Runner::new::<Governor>(scene, &texts),
        Runner::new::<ThrottleKit>(scene, &texts),
        Runner::new::<Limitador>(scene, &texts),
        Runner::new::<LeakyBucket>(scene, &texts),
    ]
    .into_iter()
    .flatten()
    .collect();
    let [one, two] = [1, 2].map(|threads| take_turns(&runners, threads, effort, scene.refused));
    let ratios = one.iter().zip(&two).map(|(one, two)| vec![Some(one.ratio), Some(two.ratio), None]).collect();
    let rows = runners.iter().zip(one.into_iter().zip(two)).map(|(runner, (one, two))| {
        const CALLS: u64 = 10_000;
        let allocations = allocation_counter::measure(|| _ = (runner.run)(CALLS, 1));
        // The barrier and the list of threads are not the contender's.
        let allocations = (float(allocations.count_total) / float(CALLS) * 100.0).round() / 100.0;
        let wrong = if scene.refused { "admitted calls above the limit" } else { "refused calls within the limit" };
        let note = (!(one.right && two.right)).then(|| wrong.to_owned());
        Row { name: runner.name, figures: vec![one.time, two.time, allocations], note }
    });
    let rows = rows.collect();
    report.table_with(&scene.title(), &["1 thread, ns", "2 threads, ns", "allocations"], ratios, rows);
}

async fn direct(id: u64) -> Result<u64, RequestPerMinute> {
    const RULE: Rule = Rule::new("item", 1_000_000_000, Duration::from_secs(86_400));
    INSTALLED.acquire(&RULE, id).await?;
    Ok(id)
}

#[limit_request_per_time(prefix = "item", ttl = 1, unit = Days, count = 1_000_000_000, key = id, limiter = &INSTALLED)]
async fn annotated(id: u64) -> Result<u64, RequestPerMinute> {
    Ok(id)
}

#[limit_request_per_time(prefix = "item", ttl = 1, unit = Days, count = 1_000_000_000, key = id)]
async fn annotated_without_limiter(id: u64) -> Result<u64, RequestPerMinute> {
    Ok(id)
}

fn attribute(report: &mut Report, effort: Effort) {
    const KEYS: u64 = 1_000;
    let runner = |name, admits: fn(u64) -> bool| Runner {
        name,
        run: Box::new(move |calls, threads| on_threads(threads, calls, KEYS, admits)),
    };
    let mut runners = vec![
        runner("annotated", |id| now(annotated(id)).is_ok()),
        runner("annotated, process-wide limiter", |id| now(annotated_without_limiter(id)).is_ok()),
        runner("Limiter::acquire", |id| now(direct(id)).is_ok()),
    ];
    runners.extend(Runner::new::<Governor>(Scene { keys: KEYS, text: false, refused: false }, &[]));
    let [one, two] = [1, 2].map(|threads| take_turns(&runners, threads, effort, false));
    let ratios = one.iter().zip(&two).map(|(one, two)| vec![Some(one.ratio), Some(two.ratio)]).collect();
    let rows = runners.iter().zip(one.iter().zip(&two));
    let rows =
        rows.map(|(runner, (one, two))| Row { name: runner.name, figures: vec![one.time, two.time], note: None });
    let rows = rows.collect();
    let title = "an annotated function, 1000 integers as keys";
    report.table_with(title, &["1 thread, ns", "2 threads, ns"], ratios, rows);
}

/// Everything that is allocated for so many counters, empty room included.
fn size(report: &mut Report, keys: u64) {
    fn bytes<C: Contender>(keys: u64) -> Row {
        let mut contender = None;
        let allocated = allocation_counter::measure(|| {
            let made =
                C::new(PLENTY, usize::try_from(keys).expect("fits"), false).expect("integers are within its reach");
            (0..keys).for_each(|key| assert!(made.admits(Key::Number(key))));
            contender = Some(made);
        });
        drop(contender);
        let bytes = u64::try_from(allocated.bytes_current).unwrap_or_default();
        Row { name: C::NAME, figures: vec![float(bytes) / float(keys)], note: None }
    }
    let rows =
        vec![bytes::<Annotated>(keys), bytes::<Governor>(keys), bytes::<ThrottleKit>(keys), bytes::<Limitador>(keys)];
    report.table(&format!("memory of {keys} integers as keys"), &["bytes a key"], &[0], rows);
}

fn growth(report: &mut Report, effort: Effort, keys: u64) {
    let scene = Scene { keys, text: false, refused: false };
    let runners = [Runner::new::<Annotated>(scene, &[]), Runner::new::<Governor>(scene, &[])];
    let runners: Vec<Runner<'_>> = runners.into_iter().flatten().collect();
    let turns = take_turns(&runners, 1, effort, false);
    let ratios = turns.iter().map(|turns| vec![Some(turns.ratio)]).collect();
    let rows = runners.iter().zip(turns);
    let rows = rows.map(|(runner, turns)| Row { name: runner.name, figures: vec![turns.time], note: None }).collect();
    report.table_with(&format!("growth, {keys} integers as keys"), &["1 thread, ns"], ratios, rows);
}

fn once(calls: u64, contender: &str) {
    let (contender, text) = contender.strip_suffix("-texts").map_or((contender, false), |contender| (contender, true));
    let scene = Scene { keys: 1_000, text, refused: false };
    let texts = scene.texts();
    let runner = match contender {
        "annotated" => Runner::new::<Annotated>(scene, &texts),
        "acquire" => Runner::new::<Ours>(scene, &texts),
        "own" => Runner::new::<OfItsOwn>(scene, &texts),
        "governor" => Runner::new::<Governor>(scene, &texts),
        _ => panic!("`{contender}` is none of annotated, acquire, own, governor"),
    };
    let lap = (runner.expect("can do this").run)(calls, 1);
    println!("{} of {calls} admitted in {:?}", lap.admitted, lap.time);
}

#[allow(clippy::cast_precision_loss)] // of numbers of calls
fn float(number: u64) -> f64 {
    number as f64
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}
