//! The rows: what is measured, and how.

use std::{
    env,
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use ratelimit_harness::{RedisServer, ServerClock};
use ratelimit_runtime::{Algorithm, Limiter, Rule};
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinSet,
    time,
};

use crate::{
    peers::{Answer, Client, Peer},
    traffic::{Call, Caller, Shape, Traffic, monotonic, most_in_a_second},
};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
/// More than is ever asked for.
const PLENTY: u64 = 200_000;

pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) how: &'static str,
    /// A cell for each limiter.
    pub(crate) measure: fn() -> Vec<Cell>,
}

pub(crate) struct Cell {
    pub(crate) text: String,
    /// Less is better.
    pub(crate) score: Option<f64>,
}

impl Cell {
    fn new(text: impl Into<String>, score: f64) -> Self {
        Self { text: text.into(), score: Some(score) }
    }

    fn without_score(text: impl Into<String>) -> Self {
        Self { text: text.into(), score: None }
    }
}

pub(crate) const ROWS: [Row; 15] = [
    Row {
        name: "Most admitted in a second, of 100",
        how: "Four processes call one key that admits 100 calls a second, in two runs of 8 s. In one, each makes 500 calls a \
              second. In the other, one call, then 500 a second from 0.9 s to 1.2 s, again every 2.5 s. A call counts if it \
              began and ended within the second. The figure is that of the worst second of both runs.",
        measure: || each(most_admitted),
    },
    Row {
        name: "Share of the limit used while calls are refused",
        how: "Four processes make 500 calls a second each, of one key that admits 100, for 8 s: all admitted calls as a share \
              of 800. A limiter that charges refused calls leaves a part of the limit unused. More than 100 % is a burst, \
              or too many.",
        measure: || each(used),
    },
    Row {
        name: "One caller, p50, µs",
        how: "5,000 calls of one key, one after the other, each admitted. The time of a call.",
        measure: || laps(Crowd::One, |lap| lap.p50, micros),
    },
    Row { name: "One caller, p99, µs", how: "As above.", measure: || laps(Crowd::One, |lap| lap.p99, micros) },
    Row {
        name: "64 callers, 10,000 keys, p99, µs",
        how: "64 tasks of one process make 1,000 calls each, each after the answer to the one before. The time of a call.",
        measure: || laps(Crowd::Spread, |lap| lap.p99, micros),
    },
    Row {
        name: "One hot key, decisions a second",
        how: "64 tasks of one process make 1,000 calls each of one key. All are admitted.",
        measure: || laps(Crowd::Hot, |lap| lap.rate, |rate| Cell::new(format!("{rate:.0}"), -rate)),
    },
    Row {
        name: "Commands a decision",
        how: "64 tasks, 10,000 keys: commands that the server ran, those within scripts not counted, by `INFO commandstats`.",
        measure: || laps(Crowd::Spread, |lap| lap.commands, |commands| Cell::new(format!("{commands:.2}"), commands)),
    },
    Row {
        name: "Processor time of the server, µs a decision",
        how: "As above, by `INFO cpu`.",
        measure: || laps(Crowd::Spread, |lap| lap.server, micros),
    },
    Row {
        name: "Redis halted for 30 s",
        how: "One process makes 200 calls a second of a key that admits 100. The server is halted (`SIGSTOP`) from second 2 \
              to 32. A cell has four numbers: the longest time of a call; the calls admitted per second while the server was \
              halted; the calls failed per second in that time; the most calls admitted in one second afterwards.",
        measure: halted,
    },
    Row {
        name: "A clock an hour back",
        how: "200 calls a second of a key that admits 100. After 3 s the wall clock of the server is set back by an hour; in \
              another run that of the caller. The longest time without an admission, and the most admitted in a second.",
        measure: || stepped(false),
    },
    Row { name: "A clock an hour ahead", how: "As above, an hour ahead.", measure: || stepped(true) },
    Row {
        name: "Is the wait of a refusal enough?",
        how: "One caller uses up the limit of 100 a second. Whenever it is refused it waits as long as the refusal says, and \
              asks again. The share of these calls that is admitted.",
        measure: || each(wait_is_enough),
    },
    Row {
        name: "A URL without a server",
        how: "The limiter is built with a URL on whose port nothing listens, and asked once.",
        measure: || each(|peer| misconfigured(peer, "redis://127.0.0.1:1", 100)),
    },
    Row {
        name: "A limit of 0",
        how: "The limiter is built with a limit of 0 calls a second, and asked once. The attribute of this crate refuses to \
              compile it; the row shows a rule that is made while the program runs.",
        measure: || {
            let server = RedisServer::start();
            each(|peer| misconfigured(peer, &server.url(), 0))
        },
    },
    Row {
        name: "A holder is killed",
        how: "A process holds the only place of a limit of concurrent calls, with a lease of 2 s, and is killed. The time until \
              another process gets the place.",
        measure: holder_killed,
    },
];

pub(crate) fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

fn each(measure: impl Fn(Peer) -> Cell) -> Vec<Cell> {
    Peer::ALL.into_iter().map(measure).collect()
}

/// The calls of some processes against one server.
fn calls_of(peer: Peer, processes: usize, traffic: Traffic) -> Vec<Call> {
    let server = RedisServer::start();
    let mut callers: Vec<_> = (0..processes).map(|_| Caller::start(peer, &server.url(), traffic, None)).collect();
    callers.iter_mut().for_each(Caller::begin);
    callers.into_iter().flat_map(Caller::calls).collect()
}

const CROWD: Traffic = Traffic { shape: Shape::Steady, count: 100, rate: 500, seconds: 8 };

fn most_admitted(peer: Peer) -> Cell {
    let most =
        [Shape::Steady, Shape::Bursts].map(|shape| most_in_a_second(&calls_of(peer, 4, Traffic { shape, ..CROWD })));
    let most = most.into_iter().max().unwrap_or(0);
    Cell::new(most.to_string(), float(most.saturating_sub(100)))
}

fn used(peer: Peer) -> Cell {
    let calls = calls_of(peer, 4, CROWD);
    let admitted = calls.iter().filter(|call| call.is_admitted).count();
    let share = 100.0 * float(admitted) / 800.0;
    // Only what is left unused counts.
    Cell::new(format!("{share:.0} %"), (100.0 - share).max(0.0).round())
}

/// Calls of one process, of a limiter that admits them all.
#[derive(Clone, Copy)]
enum Crowd {
    One,
    Spread,
    Hot,
}

/// The figures of a crowd's calls.
struct Lap {
    /// Microseconds.
    p50: f64,
    p99: f64,
    /// Decisions a second.
    rate: f64,
    /// A decision.
    commands: f64,
    /// Microseconds a decision.
    server: f64,
}

fn lap(peer: Peer, crowd: Crowd) -> Lap {
    let (callers, calls, keys) = match crowd {
        Crowd::One => (1, 5000, 1),
        Crowd::Spread => (64, 1000, 10_000),
        Crowd::Hot => (64, 1000, 1),
    };
    let server = RedisServer::start();
    runtime().block_on(async {
        let client = Client::connect(peer, &server.url(), PLENTY, HOUR).await.expect("a connection");
        client.ask("first").await;
        let before = server_work(&server);
        let began = Instant::now();
        let mut tasks = JoinSet::new();
        for caller in 0..callers {
            let client = client.clone();
            tasks.spawn(async move {
                let mut latencies = Vec::new();
                for call in 0..calls {
                    // A stride that shares no factor with the number of keys.
                    let key = ((caller * calls + call) * 7919 % keys).to_string();
                    let began = Instant::now();
                    assert_eq!(client.ask(&key).await, Answer::Admitted);
                    latencies.push(began.elapsed());
                }
                latencies
            });
        }
        let mut latencies: Vec<Duration> = tasks.join_all().await.concat();
        let took = began.elapsed();
        latencies.sort_unstable();
        let after = server_work(&server);
        let decisions = float(latencies.len());
        let percentile = |percent: usize| latencies[(latencies.len() - 1) * percent / 100].as_secs_f64() * 1e6;
        Lap {
            p50: percentile(50),
            p99: percentile(99),
            rate: decisions / took.as_secs_f64(),
            commands: (after.0 - before.0) / decisions,
            server: (after.1 - before.1) / decisions * 1e6,
        }
    })
}

/// Commands that callers have sent, and seconds of processor time.
fn server_work(server: &RedisServer) -> (f64, f64) {
    let info =
        |section: &[u8]| -> String { redis::from_redis_value(server.command(&[b"INFO", section])).expect("text") };
    let mut commands = 0.0;
    // `INFO` itself and connecting are not counted. Commands within a script are counted too, so
    // only those that callers send are taken.
    for line in info(b"commandstats").lines() {
        if let Some((name, stats)) = line.split_once(":calls=")
            && ["cmdstat_evalsha", "cmdstat_eval", "cmdstat_mget"].contains(&name)
        {
            commands += stats.split(',').next().and_then(|calls| calls.parse::<f64>().ok()).unwrap_or(0.0);
        }
    }
    let cpu = info(b"cpu");
    let seconds = cpu.lines().filter_map(|line| line.split_once(':'));
    let seconds = seconds.filter(|(name, _)| ["used_cpu_sys", "used_cpu_user"].contains(name));
    (commands, seconds.map(|(_, seconds)| seconds.parse().unwrap_or(0.0)).sum())
}

/// A figure is the median of so many laps. Limiters take turns.
const ROUNDS: usize = 5;

/// The medians of a figure of a crowd's calls.
fn laps(crowd: Crowd, figure: fn(&Lap) -> f64, cell: fn(f64) -> Cell) -> Vec<Cell> {
    // Several rows show figures of the same calls.
    static LAPS: [OnceLock<Vec<Vec<Lap>>>; 3] = [const { OnceLock::new() }; 3];
    let laps = LAPS[crowd as usize]
        .get_or_init(|| (0..ROUNDS).map(|_| Peer::ALL.map(|peer| lap(peer, crowd)).into()).collect());
    let median = |at: usize| {
        let mut figures: Vec<f64> = laps.iter().map(|round| figure(&round[at])).collect();
        figures.sort_by(f64::total_cmp);
        figures[ROUNDS / 2]
    };
    let cells = Peer::ALL.into_iter().enumerate().map(|(at, peer)| match cell(median(at)) {
        cell if peer.asks_redis() => cell,
        // It asks no server, so it has no part in the contest.
        cell => Cell::without_score(cell.text),
    });
    cells.collect()
}

fn micros(figure: f64) -> Cell {
    Cell::new(if figure < 10.0 { format!("{figure:.1}") } else { format!("{figure:.0}") }, figure)
}

/// The numbers of an outage as callers saw it: all at once, since it takes long.
fn halted() -> Vec<Cell> {
    const TRAFFIC: Traffic = Traffic { shape: Shape::Steady, count: 100, rate: 200, seconds: 40 };
    let runs: Vec<_> = Peer::ALL
        .into_iter()
        .map(|peer| {
            thread::spawn(move || {
                let server = RedisServer::start();
                let mut caller = Caller::start(peer, &server.url(), TRAFFIC, None);
                caller.begin();
                let began = monotonic();
                thread::sleep(2 * SECOND);
                server.stop();
                thread::sleep(30 * SECOND);
                server.cont();
                let calls = caller.calls();
                let longest = calls.iter().map(|call| call.took()).max().unwrap_or_default();
                let halt = began + 2_000_000..began + 32_000_000;
                let in_halt = || calls.iter().filter(|call| halt.contains(&call.ended));
                let admitted = float(in_halt().filter(|call| call.is_admitted).count()) / 30.0;
                let failed = float(in_halt().filter(|call| call.is_failed).count()) / 30.0;
                let mut after: Vec<u64> = calls.iter().filter(|call| call.is_admitted).map(|call| call.ended).collect();
                after.retain(|ended| *ended >= halt.end);
                let within = |start: u64| after.iter().filter(move |ended| (start..start + 1_000_000).contains(ended));
                let most = after.iter().map(|ended| within(*ended).count()).max().unwrap_or(0);
                let text = format!(
                    "{}; {admitted:.0} admitted and {failed:.0} failed a second; then {most}",
                    seconds(longest)
                );
                if peer.asks_redis() { Cell::new(text, longest.as_secs_f64()) } else { Cell::without_score(text) }
            })
        })
        .collect();
    runs.into_iter().map(|run| run.join().expect("a run")).collect()
}

fn seconds(time: Duration) -> String {
    if time < SECOND { format!("{} ms", time.as_millis()) } else { format!("{:.1} s", time.as_secs_f64()) }
}

/// A wall clock is set by an hour. The worst of two runs counts.
fn stepped(is_ahead: bool) -> Vec<Cell> {
    let runs: Vec<_> = Peer::ALL
        .into_iter()
        .map(|peer| {
            thread::spawn(move || {
                let [server, caller] = [true, false].map(|at_server| step(peer, at_server, is_ahead));
                let text = |(pause, most): (Duration, usize)| format!("{}, {most}", seconds(pause));
                let longest = server.0.max(caller.0).as_secs_f64();
                let text = format!("server {}; caller {}", text(server), text(caller));
                // A burst is a pause of no time.
                if peer.asks_redis() { Cell::new(text, longest.max(1.0)) } else { Cell::without_score(text) }
            })
        })
        .collect();
    runs.into_iter().map(|run| run.join().expect("a run")).collect()
}

/// Ends a loop, also on panic.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The longest time without an admission, and the most admitted in a second.
fn step(peer: Peer, at_server: bool, is_ahead: bool) -> (Duration, usize) {
    const TRAFFIC: Traffic = Traffic { shape: Shape::Steady, count: 100, rate: 200, seconds: 10 };
    let builder = RedisServer::builder();
    let server = if at_server { builder.controlled_clock() } else { builder }.start();
    let folder = tempfile::tempdir().expect("a folder");
    let own = ServerClock::create(folder.path());
    let clock = if at_server { server.clock() } else { &own };
    let is_over = AtomicBool::new(false);
    let is_set = AtomicBool::new(false);
    let calls = thread::scope(|scope| {
        let _over = SetOnDrop(&is_over);
        scope.spawn(|| {
            let (began, start) = (Instant::now(), clock.now_micros());
            while !is_over.load(Ordering::Relaxed) {
                let passed = u64::try_from(began.elapsed().as_micros()).expect("fits");
                let now = start + passed;
                let hour = u64::try_from(HOUR.as_micros()).expect("fits");
                clock.set_micros(match (is_set.load(Ordering::Relaxed), is_ahead) {
                    (false, _) => now,
                    (true, true) => now + hour,
                    (true, false) => now - hour,
                });
                thread::sleep(Duration::from_millis(1));
            }
        });
        let mut caller = Caller::start(peer, &server.url(), TRAFFIC, (!at_server).then_some(clock));
        caller.begin();
        thread::sleep(3 * SECOND);
        is_set.store(true, Ordering::Relaxed);
        caller.calls()
    });
    let mut ends: Vec<u64> = calls.iter().filter(|call| call.is_admitted).map(|call| call.ended).collect();
    ends.extend(calls.iter().map(|call| call.ended).max());
    ends.sort_unstable();
    let pause = ends.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default();
    (Duration::from_micros(pause), most_in_a_second(&calls))
}

fn wait_is_enough(peer: Peer) -> Cell {
    const REFUSALS: usize = 40;
    let server = RedisServer::start();
    runtime().block_on(async {
        let client = Client::connect(peer, &server.url(), 100, SECOND).await.expect("a connection");
        let (mut enough, mut told) = (0, 0);
        let mut last_wait = false;
        while told < REFUSALS {
            match client.ask("key").await {
                Answer::Admitted => {
                    enough += usize::from(last_wait);
                    last_wait = false;
                }
                Answer::Refused(Some(wait)) => {
                    told += 1;
                    last_wait = true;
                    time::sleep(wait).await;
                }
                Answer::Refused(None) => return Cell::new("tells none", 100.0),
                Answer::Failed => panic!("{peer:?} fails"),
            }
        }
        let share = 100.0 * float(enough) / float(told - 1);
        Cell::new(format!("{share:.0} %"), 100.0 - share)
    })
}

/// When a mistake is seen.
fn misconfigured(peer: Peer, url: &str, count: u64) -> Cell {
    let seen = runtime().block_on(async {
        match time::timeout(10 * SECOND, Client::connect(peer, url, count, SECOND)).await {
            Err(_) => "building takes more than 10 s".to_owned(),
            Ok(Err(_)) => "building fails".to_owned(),
            Ok(Ok(client)) => match time::timeout(10 * SECOND, client.ask("key")).await {
                Err(_) => "a call takes more than 10 s".to_owned(),
                Ok(Answer::Admitted) => "never: the call is admitted".to_owned(),
                Ok(Answer::Refused(_)) => "never: the call is refused as one above the limit".to_owned(),
                Ok(Answer::Failed) => "the call fails".to_owned(),
            },
        }
    });
    Cell::without_score(seen)
}

const PLACES: Rule = Rule::new("places", 1, Duration::from_secs(2)).with_algorithm(Algorithm::Concurrent);

/// The process that [`holder_killed`] kills.
pub(crate) async fn hold(url: &str) {
    let limiter = Limiter::connect(url).await.expect("a limiter");
    let _permit = limiter.acquire(&PLACES, "key").await.expect("a place");
    println!("held");
    std::future::pending::<()>().await;
}

fn holder_killed() -> Vec<Cell> {
    let server = RedisServer::start();
    let mut holder = Command::new(env::current_exe().expect("the path of this program"))
        .args(["hold", &server.url()])
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    BufReader::new(holder.stdout.take().expect("a pipe")).read_line(&mut String::new()).expect("a line");
    // So that it has renewed its lease.
    thread::sleep(2 * SECOND);
    holder.kill().expect("it ran");
    holder.wait().expect("it has ended");
    let began = Instant::now();
    let waited = runtime().block_on(async {
        let limiter = Limiter::connect(&server.url()).await.expect("a limiter");
        limiter.acquire_within(&PLACES, "key", 10 * SECOND).await.expect("the place comes back");
        began.elapsed()
    });
    let text = |peer: Peer| {
        if peer.is_ours() { Cell::new(seconds(waited), 0.0) } else { Cell::without_score("no such limit") }
    };
    each(text)
}

#[allow(clippy::cast_precision_loss)]
fn float(number: usize) -> f64 {
    number as f64
}
