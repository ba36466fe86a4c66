//! The longest time that each script occupies a Redis server, which does nothing else meanwhile.
//!
//! ```sh
//! cargo run --release -p ratelimit-benches --bin blocking
//! ```
//!
//! Words choose groups of cases, for example `blocking log holds`.
//!
//! The longest entry of SLOWLOG for each case, in milliseconds: the largest of several runs, and
//! the median run. Each has to stay at or below [`BOUND_MS`] on a quiet machine. A case that cannot
//! be set up says so and counts as failed.

use std::{
    future::Future,
    process::ExitCode,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use ratelimit_harness::RedisServer;
use ratelimit_runtime::{
    Algorithm, Cause, Key, Limiter, OnStoreError, Permit, Refill, RequestPerMinute, Rule,
    conformance::{counter_of, store_of},
    store::{Charge, Hold, Request},
};
use redis::{Pipeline, Value};
use tokio::time::sleep;

const BOUND_MS: f64 = 10.0;
const RUNS: usize = 5;
const KEYS: u64 = 64;
const CALLERS: u64 = 5_000;
const LOG_ENTRIES: u64 = 10_000_000;
/// With room for the charges that are made.
const LONG_LOG: u64 = LOG_ENTRIES - CALLERS * 3;
const DEEP: usize = 5_000;
const HOLDS: u64 = 10_000;
const HOLDS_BESIDE: u64 = 1_000_000;
const PLACES: u64 = 100_000;
const MOST_RULES: u64 = 2_048;

const SECOND: Duration = Duration::from_secs(1);
const BUCKETS: Algorithm = Algorithm::SlidingWindow { buckets: 1_000, weighted: true };

/// A server, the limiter on it, and the rows so far.
struct Bench {
    server: RedisServer,
    limiter: Limiter,
    failed: u64,
}

async fn limiter_on(server: &RedisServer) -> Limiter {
    let builder = Limiter::builder(&server.url()).on_store_error(OnStoreError::Deny);
    builder.deadline(Duration::from_secs(600)).build().await.expect("a limiter")
}

impl Bench {
    async fn start() -> Self {
        let server = RedisServer::start();
        server.command(&[b"CONFIG", b"SET", b"slowlog-log-slower-than", b"0", b"slowlog-max-len", b"1000000"]);
        let limiter = limiter_on(&server).await;
        Self { server, limiter, failed: 0 }
    }

    /// Runs something several times, each time after a set-up, and prints the longest scripts.
    async fn case<S, A, T>(
        &mut self,
        name: &str,
        mut set_up: impl FnMut(usize) -> S,
        mut act: impl FnMut(usize, T) -> A,
    ) where
        S: Future<Output = T>,
        A: Future<Output = ()>,
    {
        let mut runs = Vec::new();
        for run in 0..RUNS {
            let ready = set_up(run).await;
            self.server.command(&[b"SLOWLOG", b"RESET"]);
            act(run, ready).await;
            runs.push(longest_ms(&self.server));
        }
        runs.sort_by(f64::total_cmp);
        self.row(name, runs[RUNS - 1], runs[RUNS / 2]);
    }

    fn row(&mut self, name: &str, longest: f64, median: f64) {
        let fits = longest <= BOUND_MS;
        self.failed += u64::from(!fits);
        let verdict = if fits { "" } else { "  above the bound" };
        println!("{name:<78}{longest:>9.2}{median:>9.2}{BOUND_MS:>7.0}{verdict}");
    }

    fn failed(&mut self, name: &str, reason: &str) {
        self.failed += 1;
        println!("{name:<78}NOT MEASURED: {reason}");
    }
}

/// The longest script since SLOWLOG RESET, in milliseconds.
fn longest_ms(server: &RedisServer) -> f64 {
    let Value::Array(entries) = server.command(&[b"SLOWLOG", b"GET", b"-1"]) else { panic!("a list") };
    let micros = entries.iter().filter_map(|entry| {
        let Value::Array(fields) = entry else { panic!("an entry") };
        let (Value::Int(micros), Value::Array(words)) = (&fields[2], &fields[3]) else { panic!("fields") };
        let is_script = matches!(&words[0], Value::BulkString(word) if word == b"EVALSHA");
        is_script.then_some(*micros)
    });
    let micros = u32::try_from(micros.max().expect("a script was called")).expect("less than an hour");
    f64::from(micros) / 1000.0
}

#[track_caller]
fn refused<T>(answer: Result<T, RequestPerMinute>) {
    match answer {
        Err(refusal) => assert_eq!(refusal.cause(), Cause::Exceeded, "{refusal}"),
        Ok(_) => panic!("admitted"),
    }
}

/// Sub-windows, as many as there may be, all of them with charges: for each of so many keys.
async fn fill_sub_windows(limiter: &Limiter, rule: &Rule, keys: u64) {
    let began = Instant::now();
    while began.elapsed() < rule.period() + rule.period() / 10 {
        for answer in join_all((0..keys).map(|key| limiter.acquire(rule, key))).await {
            answer.expect("an admitted call");
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    const GROUPS: [&str; 7] = ["windows", "equal", "transactions", "log", "expired", "holds", "places"];
    let chosen: Vec<_> = std::env::args().skip(1).collect();
    if let Some(other) = chosen.iter().find(|word| !GROUPS.contains(&word.as_str())) {
        println!("There is no group `{other}`, only {}.", GROUPS.join(", "));
        return ExitCode::FAILURE;
    }
    println!("The longest script of each case, in milliseconds of a server: of {RUNS} runs, and of the median run.\n");
    println!("{:<78}{:>9}{:>9}{:>7}", "case", "longest", "median", "bound");
    let mut failed = 0;
    for group in GROUPS.into_iter().filter(|group| chosen.is_empty() || chosen.iter().any(|word| word == group)) {
        let mut bench = Bench::start().await;
        match group {
            "windows" => windows(&mut bench).await,
            "equal" => equal(&mut bench).await,
            "transactions" => transactions(&mut bench).await,
            "log" => log(&mut bench).await,
            "expired" => expired_log(&mut bench).await,
            "holds" => holds(&mut bench).await,
            _ => places(&mut bench).await,
        }
        failed += bench.failed;
    }
    if failed == 0 {
        println!("\nAll cases are within {BOUND_MS} ms.");
        ExitCode::SUCCESS
    } else {
        println!("\nCases above {BOUND_MS} ms, or not measured: {failed}.");
        ExitCode::FAILURE
    }
}

async fn windows(bench: &mut Bench) {
    let limiter = bench.limiter.clone();
    let rule = Rule::new("window", 1_000_000, 2 * SECOND).with_algorithm(BUCKETS).with_denial_cache(false);
    let fill = |_| fill_sub_windows(&limiter, &rule, 1);
    let charge = |_, ()| async {
        limiter.acquire(&rule, 0).await.expect("an admitted call");
    };
    bench.case("1,000 sub-windows: a charge", fill, charge).await;
    let refusal = |_, ()| async { refused(limiter.acquire_n(&rule, 0, 1_000_000).await) };
    bench.case("1,000 sub-windows: a refusal", fill, refusal).await;
    let later = |_| async {
        fill_sub_windows(&limiter, &rule, 1).await;
        sleep(rule.period() * 9 / 10).await;
    };
    bench.case("1,000 sub-windows: a charge that drops 900 of them", later, charge).await;
    let permit = |_| async {
        fill_sub_windows(&limiter, &rule, 1).await;
        limiter.acquire(&rule, 0).await.expect("an admitted call")
    };
    let refund = |_, permit: Permit| async {
        permit.refund().await.expect("a server");
    };
    bench.case("1,000 sub-windows: a refund", permit, refund).await;
    let later = |_| async {
        fill_sub_windows(&limiter, &rule, KEYS).await;
        sleep(rule.period() * 9 / 10).await;
    };
    let charges = |_, ()| async {
        join_all((0..=KEYS).map(|key| limiter.acquire(&rule, key % KEYS))).await;
    };
    bench.case("1,000 sub-windows of 64 keys: charges that drop 900 each", later, charges).await;
}

/// 5,000 equal charges of each of 64 keys, half of which fit.
async fn equal(bench: &mut Bench) {
    let limiter = bench.limiter.clone();
    let count = 1_000_000;
    let bucket = Algorithm::TokenBucket { burst: count, refill: Refill::Greedy };
    let rules = [
        ("1,000 sub-windows", BUCKETS, 2 * SECOND),
        ("fixed windows", Algorithm::FixedWindow { align: false }, 300 * SECOND),
        ("token buckets", bucket, 3600 * SECOND),
        ("logs", Algorithm::SlidingLog, 100 * SECOND),
    ];
    for (name, algorithm, period) in rules {
        let rule = Rule::new("equal", count, period).with_algorithm(algorithm).with_denial_cache(false);
        let near_the_limit = |run: usize| {
            let (limiter, rule) = (limiter.clone(), &rule);
            async move {
                let from = run as u64 * KEYS;
                if algorithm == BUCKETS {
                    fill_sub_windows(&limiter, rule, KEYS).await;
                }
                let from = if algorithm == BUCKETS { 0 } else { from };
                for key in from..from + KEYS {
                    let remaining = limiter.peek(rule, key).await.expect("a server").remaining();
                    limiter.acquire_n(rule, key, remaining - CALLERS / 2).await.expect("an admitted call");
                }
                from
            }
        };
        let charges = |_, from: u64| {
            let (limiter, rule) = (limiter.clone(), &rule);
            async move {
                let calls = (0..CALLERS).flat_map(|_| from..from + KEYS).map(|key| limiter.acquire(rule, key));
                let admitted = join_all(calls).await.into_iter().flatten().count() as u64;
                assert!(admitted >= KEYS * CALLERS / 2, "{admitted}");
            }
        };
        bench.case(&format!("64 x 5,000 equal charges near the limit: {name}"), near_the_limit, charges).await;
    }
}

/// The largest call of several rules that is admitted at all.
async fn transactions(bench: &mut Bench) {
    let limiter = bench.limiter.clone();
    let rules = [
        ("1,000 sub-windows", BUCKETS, 2 * SECOND),
        ("fixed windows", Algorithm::FixedWindow { align: false }, 300 * SECOND),
        ("logs of 10,000,000", Algorithm::SlidingLog, 100 * SECOND),
    ];
    for (name, algorithm, period) in rules {
        let count = if algorithm == Algorithm::SlidingLog { LOG_ENTRIES } else { 1_000_000 };
        let rule = Rule::new("all", count, period).with_algorithm(algorithm).with_denial_cache(false);
        let charges = |rules: u64| (0..rules).map(|key| (&rule, Key::new(key), 1)).collect::<Vec<_>>();
        let (mut low, mut high) = (1, MOST_RULES + 1);
        while high - low > 1 {
            let middle = u64::midpoint(low, high);
            match limiter.acquire_all(&charges(middle)).await {
                Ok(_) => low = middle,
                Err(error) if error.cause() == Cause::Misconfigured => high = middle,
                Err(error) => panic!("{error}"),
            }
        }
        let fill = |_| async {
            if algorithm == BUCKETS {
                fill_sub_windows(&limiter, &rule, low).await;
                sleep(rule.period() * 9 / 10).await;
            }
        };
        let charge = |_, ()| async {
            limiter.acquire_all(&charges(low)).await.expect("an admitted call");
        };
        let more = if low == MOST_RULES { " or more" } else { "" };
        bench.case(&format!("one call of the most rules ({low}{more}): {name}"), fill, charge).await;
    }
}

/// Writes a log of `entries` entries of mixed costs, the newest of which is of now. Returns the
/// rule. `None` if the log does not hold what was written: then the stored form is another.
async fn write_log(bench: &Bench, period: Duration, entries: u64) -> Option<Rule> {
    const WRAP: u64 = 10_000_000;
    const CYCLE: u64 = 812_345_679;
    const CHUNK: u64 = 10_000;
    let rule = Rule::new("long", LOG_ENTRIES, period).with_algorithm(Algorithm::SlidingLog).with_denial_cache(false);
    bench.limiter.acquire(&rule, 0).await.ok()?;
    let Value::Array(keys) = bench.server.command(&[b"KEYS", b"*long*"]) else { return None };
    let [Value::BulkString(key)] = &keys[..] else { return None };
    let Value::BulkString(entry) = bench.server.command(&[b"LINDEX", key, b"0"]) else { return None };
    let [entry] = *entry.as_chunks::<8>().0 else { return None };
    let (entry, written) = (f64::from_le_bytes(entry), Instant::now());
    if entry.fract() != 0.0 || !(0.0..9.0e15).contains(&entry) {
        return None;
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // it has been looked at
    let time = entry as u64 / WRAP;

    let period_us = u64::try_from(period.as_micros()).ok()?;
    let step_ns = period_us * 700 / entries;
    bench.server.command(&[b"DEL", key]);
    let client = redis::Client::open(bench.server.url()).ok()?;
    let mut connection = client.get_connection().ok()?;
    for from in (0..entries).step_by(usize::try_from(CHUNK).ok()?) {
        let mut push = redis::cmd("RPUSH");
        push.arg(key);
        for number in from..(from + CHUNK).min(entries) {
            // The last one has the time of the entry that was found. Charges of 1 and of 2 are two
            // entries of one time.
            let moment = number - u64::from(number % 3 == 2);
            let at = time + CYCLE - (entries - 1 - moment) * step_ns / 1000;
            #[allow(clippy::cast_precision_loss)] // below 2^53
            push.arg(((at % CYCLE * WRAP + (number + 1) % WRAP) as f64).to_le_bytes().as_slice());
        }
        let mut pipeline = Pipeline::new();
        pipeline.add_command(push).ignore();
        pipeline.exec(&mut connection).ok()?;
    }
    let left = (period + period / 16).saturating_sub(written.elapsed());
    bench.server.command(&[b"PEXPIRE", key, left.as_millis().to_string().as_bytes()]);
    let remaining = bench.limiter.peek(&rule, 0).await.ok()?.remaining();
    (remaining == LOG_ENTRIES - entries).then_some(rule)
}

async fn log(bench: &mut Bench) {
    let Some(rule) = write_log(bench, 199 * SECOND, LONG_LOG).await else {
        return bench
            .failed("a log of 10,000,000 entries", "the stored form of a log is not the one this bench writes");
    };
    let limiter = bench.limiter.clone();
    let ready = |_| async {};
    let charge = |_, ()| async {
        limiter.acquire(&rule, 0).await.expect("an admitted call");
    };
    bench.case("a log of 10,000,000 entries: a charge", ready, charge).await;
    let refusal = |_, ()| async { refused(limiter.acquire_n(&rule, 0, LOG_ENTRIES / 2).await) };
    bench.case("a log of 10,000,000 entries: a refusal", ready, refusal).await;
    let permits = |_| async {
        let first = limiter.acquire(&rule, 0).await.expect("an admitted call");
        for _ in 1..DEEP {
            limiter.acquire(&rule, 0).await.expect("an admitted call");
        }
        first
    };
    let refund = |run, permit: Permit| async move {
        let back = permit.refund().await.expect("a server");
        assert_eq!(back, 1, "run {run}");
    };
    let short = Rule::new("short", LOG_ENTRIES, 199 * SECOND).with_algorithm(Algorithm::SlidingLog);
    let permits_of_short = |_| async {
        let first = limiter.acquire(&short, 0).await.expect("an admitted call");
        for _ in 1..DEEP {
            limiter.acquire(&short, 0).await.expect("an admitted call");
        }
        first
    };
    bench.case("a refund with 4,999 entries behind it, in a log of little else", permits_of_short, refund).await;
    if limiter.peek(&rule, 0).await.expect("a server").remaining() >= DEEP as u64 {
        let permit = permits(0).await;
        bench.server.command(&[b"SLOWLOG", b"RESET"]);
        refund(0, permit).await;
        let longest = longest_ms(&bench.server);
        bench.row("a refund with 4,999 entries behind it, in a log of 10,000,000", longest, longest);
    }
    let remaining = limiter.peek(&rule, 0).await.expect("a server").remaining();
    bench.server.command(&[b"SLOWLOG", b"RESET"]);
    let calls = join_all((0..remaining + CALLERS / 2).map(|_| limiter.acquire(&rule, 0))).await;
    let longest = longest_ms(&bench.server);
    assert!(calls.iter().any(Result::is_err) && calls.iter().any(Result::is_ok));
    bench.row("a log of 10,000,000 entries: equal charges near the limit", longest, longest);
}

async fn expired_log(bench: &mut Bench) {
    let name = "a log of 10,000,000 entries, all expired: a charge";
    let began = Instant::now();
    let period = 60 * SECOND;
    let Some(rule) = write_log(bench, period, LONG_LOG).await else {
        return bench.failed(name, "the stored form of a log is not the one this bench writes, or it took too long");
    };
    sleep((period + period / 30).saturating_sub(began.elapsed())).await;
    bench.server.command(&[b"SLOWLOG", b"RESET"]);
    let permit = bench.limiter.acquire(&rule, 0).await.expect("an admitted call");
    let longest = longest_ms(&bench.server);
    if permit.remaining() == LOG_ENTRIES - 1 {
        bench.row(name, longest, longest);
    } else {
        bench.failed(name, "not all of it has expired");
    }
}

/// Charges that are held, asked of the store itself: a limiter would renew them. Says how many were granted.
async fn hold(bench: &Bench, rule: Rule, charges: u64, cost: u64, lease: Duration) -> (u64, Vec<Charge>) {
    let mut granted = Vec::new();
    for from in (0..charges).step_by(100) {
        let requests = (from..charges.min(from + 100)).map(|_| {
            let mut charge = Charge::new(rule, counter_of(&rule, 0), cost);
            charge.hold = Some(Hold::new(lease));
            store_of(&bench.limiter).decide(Request::new(charge, true).into()).answer()
        });
        for batch in join_all(requests).await {
            let held = batch.iter().filter(|request| request.outcome == Ok(true));
            granted.extend(held.map(|request| request.charges[0].clone()));
        }
    }
    (granted.len() as u64, granted)
}

async fn holds(bench: &mut Bench) {
    const LEASE: Duration = Duration::from_secs(60);
    let limiter = bench.limiter.clone();
    let used = HOLDS_BESIDE + HOLDS * 10;
    for (state, lease) in [("held", LEASE), ("overdue", SECOND)] {
        bench.server.command(&[b"FLUSHALL"]);
        let Some(rule) = write_log(bench, 199 * SECOND, HOLDS_BESIDE).await else {
            return bench.failed("holds of a log", "the stored form of a log is not the one this bench writes");
        };
        let (most, mut held) = hold(bench, rule, HOLDS, 10, lease).await;
        if most != HOLDS {
            return bench.failed("holds of a log", &format!("only {most} could be made"));
        }
        if lease == SECOND {
            sleep(2 * lease).await;
        }
        let name = |what: &str| format!("{most} holds of a log of 1,000,000 entries, {state}: {what}");
        let ready = |_| async {};
        let charge = |_, ()| async {
            limiter.acquire(&rule, 0).await.expect("an admitted call");
        };
        bench.case(&name("a charge"), ready, charge).await;
        // It waits for entries behind some of the holds.
        let refusal = |_, ()| async { refused(limiter.acquire_n(&rule, 0, LOG_ENTRIES - used + 600_000).await) };
        bench.case(&name("a refusal"), ready, refusal).await;
        let further = |_, ()| async { refused(limiter.reserve(&rule, 0, 1).await) };
        bench.case(&name("one more is refused"), ready, further).await;
        for again in [false, true] {
            let mut some = held.split_off(held.len() - RUNS);
            let settle = |_, ()| {
                let mut charge = some.pop().expect("enough");
                charge.hold.as_mut().expect("a hold").is_retry = again;
                let settled = store_of(&limiter).settle(charge, 1).answer();
                async move { settled.await.expect("a server") }
            };
            bench.case(&name(if again { "a settlement that is a retry" } else { "a settlement" }), ready, settle).await;
        }
        let reserve = |_, ()| async {
            limiter.reserve(&rule, 0, 1).await.expect("an admitted call").cancel().await.expect("a server");
        };
        bench.case(&name("one is made and cancelled"), ready, reserve).await;
        for (what, renewed) in [("one of them is renewed", &held[..1]), ("all of them are renewed", &held[..])] {
            let renew = |_, ()| async {
                let renewed = store_of(&limiter).renew(renewed.to_vec()).answer().await.expect("a server");
                assert!(renewed.iter().all(|is_held| *is_held));
            };
            bench.case(&name(what), ready, renew).await;
        }
    }
}

/// The first holder has places of each size, and outlives all others.
async fn places(bench: &mut Bench) {
    const LEASE: Duration = Duration::from_secs(30);
    const OF_EACH_SIZE: u64 = 65_535;
    let rule = Rule::new("place", PLACES + OF_EACH_SIZE + 10, LEASE).with_algorithm(Algorithm::Concurrent);
    let rule = rule.with_denial_cache(false);
    hold(bench, rule, 1, OF_EACH_SIZE, 20 * LEASE).await;
    let (held, charges) = hold(bench, rule, PLACES, 1, LEASE).await;
    let limiter = bench.limiter.clone();
    let ready = |_| async {};
    let renew = |_, ()| async {
        let renewed = store_of(&limiter).renew(charges.clone()).answer().await.expect("a server");
        assert!(renewed.iter().all(|is_held| *is_held));
    };
    bench.case("100,000 holders, alive: all of them renew their places", ready, renew).await;
    let taken = Instant::now();
    let free = limiter.peek(&rule, 0).await.expect("a server").remaining();
    if (held, free) != (PLACES, 10) {
        return bench.failed("100,000 holders", &format!("{held} places could be taken, and {free} are free"));
    }
    let look = |_, ()| async {
        limiter.peek(&rule, 0).await.expect("a server");
    };
    let take = |_, ()| async {
        limiter.acquire(&rule, 0).await.expect("a place").refund().await.expect("a server");
    };
    let refusal = |_, ()| async { refused(limiter.acquire_n(&rule, 0, rule.count()).await) };
    for state in ["alive", "dead but one"] {
        if state != "alive" {
            sleep((LEASE + SECOND).saturating_sub(taken.elapsed())).await;
            let free = limiter.peek(&rule, 0).await.expect("a server").remaining();
            if free != PLACES + 10 {
                return bench.failed("100,000 holders, dead but one", &format!("{free} places are free"));
            }
        }
        bench.case(&format!("100,000 holders, {state}: a look"), ready, look).await;
        bench.case(&format!("100,000 holders, {state}: a refusal"), ready, refusal).await;
        bench.case(&format!("100,000 holders, {state}: a place is taken and left"), ready, take).await;
    }
}
