//! The cost of a decision for the Redis server: each algorithm beside a common script for the same
//! purpose.
//!
//! `cargo run --release -p ratelimit-benches --bin server_cost`
//!
//! Microseconds come from the server itself (`INFO commandstats`). They hold for one machine and
//! one moment, so read the ratios. All contenders of a group are sent the same way, by turns, to
//! keys of their own.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures_util::StreamExt as _;
use ratelimit_harness::RedisServer;
use ratelimit_runtime::{Algorithm, Limiter, OnStoreError, Refill, Rule};
use redis::{AsyncConnectionConfig, Client, Cmd, Pipeline, Value, aio::MultiplexedConnection};
use tokio::task::JoinSet;

const KEYS: u64 = 100_000;
/// Shares no factor with [`KEYS`], so that keys come in an order no cache knows.
const STRIDE: u64 = 38_197;
const CALLERS: usize = 4;
const PIPELINED: usize = 50;
/// Keys.
const TURN: usize = 5_000;
/// The place of its keys in memory favours one contender or another by up to a tenth, and differs
/// from server to server.
const SERVERS: usize = 4;
const CALLS_A_SERVER: usize = 6;
const HOUR: Duration = Duration::from_secs(3600);
/// Never reached: every call is admitted.
const COUNT: u64 = 1_000_000;

const FIXED_WINDOW: &str = "
local used = tonumber(redis.call('GET', KEYS[1]) or '0')
if used + ARGV[1] > tonumber(ARGV[2]) then
  return 0
end
redis.call('INCRBY', KEYS[1], ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[3])
return 1";

const TOKEN_BUCKET: &str = "
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local cost, capacity, seconds = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local rate = capacity / seconds
local tokens = tonumber(redis.call('GET', KEYS[1]) or capacity)
local last = tonumber(redis.call('GET', KEYS[2]) or 0)
tokens = math.min(capacity, tokens + math.max(0, now - last) * rate)
local allowed = tokens >= cost
if allowed then
  tokens = tokens - cost
end
redis.call('SETEX', KEYS[1], seconds * 2, tokens)
redis.call('SETEX', KEYS[2], seconds * 2, now)
return { allowed and 1 or 0, tokens }";

/// Uses the clock of the caller for the time and for the member, without expiry. Calls of one
/// microsecond are one, and a key stays for ever.
const PLAIN_LOG: &str = "
redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, ARGV[4] - ARGV[3] * 1000000)
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[2]) then
  return 0
end
redis.call('ZADD', KEYS[1], ARGV[4], ARGV[4])
return 1";

/// The lines that [`PLAIN_LOG`] lacks to keep its promise.
const WHOLE_LOG: &str = "
local time = redis.call('TIME')
local now = string.format('%d%06d', time[1], time[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - ARGV[3] * 1000000)
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[2]) then
  return 0
end
redis.call('ZADD', KEYS[1], now, ARGV[5])
redis.call('PEXPIRE', KEYS[1], ARGV[3] * 1000)
return 1";

/// Algorithms, and what to compare them with.
struct Group {
    /// A name, a script, the number of its keys, and a flag for scripts that get the time and a
    /// number of their own.
    scripts: &'static [(&'static str, &'static str, u64, bool)],
    /// And the largest ratios that are wanted, one a script.
    algorithms: &'static [(Algorithm, &'static [f64])],
}

const GROUPS: [Group; 3] = [
    Group {
        scripts: &[("GET, compare, INCRBY, EXPIRE", FIXED_WINDOW, 1, false)],
        algorithms: &[
            (Algorithm::FixedWindow { align: false }, &[0.9]),
            (Algorithm::SlidingWindow { buckets: 1, weighted: true }, &[]), // nothing simple counts like it
        ],
    },
    Group {
        scripts: &[("TIME, GET, GET, SETEX, SETEX", TOKEN_BUCKET, 2, false)],
        algorithms: &[
            (Algorithm::TokenBucket { burst: COUNT, refill: Refill::Greedy }, &[0.6]),
            (Algorithm::TokenBucket { burst: COUNT, refill: Refill::Interval }, &[0.6]),
            (Algorithm::LeakyBucket { queue: 100 }, &[]),
        ],
    },
    Group {
        scripts: &[
            ("ZREMRANGEBYSCORE, ZCARD, ZADD", PLAIN_LOG, 1, true),
            ("TIME, ZREM.., ZCARD, ZADD, PEXPIRE", WHOLE_LOG, 1, true),
        ],
        algorithms: &[(Algorithm::SlidingLog, &[1.0, 1.0])],
    },
];

/// A script that charges a key, sent as a raw command, so that all scripts reach the server at the
/// same pace.
#[derive(Clone)]
struct Contender {
    connection: MultiplexedConnection,
    calls: Arc<AtomicU64>,
    /// The command, in which [`KEY`] stands for the key.
    command: Vec<Vec<u8>>,
    is_ours: bool,
    /// True if it gets the time and a number of its own.
    is_told: bool,
}

/// One that is not among those that are counted.
const KEY: &str = "{100000}";

impl Contender {
    /// As the limiter sends it.
    async fn ours(server: &RedisServer, connection: &MultiplexedConnection, algorithm: Algorithm) -> Self {
        let limiter =
            Limiter::builder(&server.url()).on_store_error(OnStoreError::Deny).deadline(Duration::from_secs(60));
        let limiter = limiter.build().await.expect("a limiter");
        // A call of a leaky bucket waits for its slot: so many slots that the next one is always due.
        let count = if matches!(algorithm, Algorithm::LeakyBucket { .. }) { 1_000_000_000 } else { COUNT };
        let rule = Rule::new("ours", count, HOUR).with_algorithm(algorithm);
        limiter.acquire(&rule, KEYS).await.expect("an admitted call"); // the server knows the script from now on
        let monitor = Client::open(server.url()).expect("an address").get_async_monitor().await.expect("a monitor");
        let mut seen = monitor.into_on_message::<String>();
        limiter.acquire(&rule, KEYS).await.expect("an admitted call");
        let line = loop {
            let line = seen.next().await.expect("a command");
            if line.contains("\"EVALSHA\"") {
                break line;
            }
        };
        // 1700000000.123456 [0 127.0.0.1:50000] "EVALSHA" "digest" "1" "key" "argument"
        let (_, words) = line.split_once('"').expect("words");
        let command = words.trim_end_matches('"').split("\" \"").map(unescape).collect();
        Self { connection: connection.clone(), calls: Arc::default(), command, is_ours: true, is_told: false }
    }

    async fn script(
        connection: &MultiplexedConnection,
        number: usize,
        (text, keys, is_told): (&str, u64, bool),
    ) -> Self {
        let mut loading = connection.clone();
        let digest: String =
            redis::cmd("SCRIPT").arg("LOAD").arg(text).query_async(&mut loading).await.expect("a script");
        let mut command = vec!["EVALSHA".to_owned(), digest, keys.to_string()];
        command.extend((0..keys).map(|part| format!("script:{number}:{KEY}:{part}")));
        command.extend(["1".to_owned(), COUNT.to_string(), HOUR.as_secs().to_string()]);
        let command = command.into_iter().map(String::into_bytes).collect();
        Self { connection: connection.clone(), calls: Arc::default(), command, is_ours: false, is_told }
    }

    fn command(&self, key: u64) -> Cmd {
        let mut command = Cmd::new();
        for part in &self.command {
            match std::str::from_utf8(part) {
                Ok(part) if part.contains(KEY) => command.arg(part.replace(KEY, &format!("{{{key}}}"))),
                _ => command.arg(part),
            };
        }
        if self.is_told {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970").as_micros();
            let now = u64::try_from(now).expect("microseconds fit");
            command.arg(now).arg(self.calls.fetch_add(1, Ordering::Relaxed));
        }
        command
    }

    fn is_admitted(&self, reply: &Value) -> bool {
        match reply {
            Value::Int(number) => *number > 0 || self.is_ours,
            Value::Array(reply) => {
                matches!(reply.first(), Some(Value::Int(number)) if *number >= i64::from(!self.is_ours))
            }
            Value::BulkString(bytes) => bytes.len() == 28 || !bytes.starts_with(b"-"), // a bucket is 28 bytes
            _ => false,
        }
    }

    /// Charges each of these keys once.
    async fn charge(&self, keys: Range<u64>) {
        let mut pipeline = Pipeline::new();
        for number in keys.clone() {
            pipeline.add_command(self.command(number * STRIDE % KEYS));
        }
        let count = pipeline.len();
        let replies = self.connection.clone().send_packed_commands(&pipeline, 0, count).await.expect("an answer");
        for reply in replies {
            assert!(self.is_admitted(&reply), "not admitted: {reply:?}");
        }
    }

    /// Charges each of these keys once, and returns what that has cost the server, in microseconds.
    async fn charge_each(&self, keys: Range<u64>, server: &RedisServer) -> f64 {
        server.command(&[b"CONFIG", b"RESETSTAT"]);
        let mut callers = JoinSet::new();
        for caller in 0..CALLERS {
            let (contender, keys) = (self.clone(), keys.clone());
            callers.spawn(async move {
                for start in keys.clone().step_by(PIPELINED).skip(caller).step_by(CALLERS) {
                    contender.charge(start..(start + PIPELINED as u64).min(keys.end)).await;
                }
            });
        }
        callers.join_all().await;
        microseconds(server)
    }
}

/// An argument as MONITOR shows it.
fn unescape(shown: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), shown.bytes());
    while let Some(byte) = rest.next() {
        bytes.push(match (byte, if byte == b'\\' { rest.next() } else { None }) {
            (_, Some(b'x')) => {
                let digits = [rest.next(), rest.next()].map(|digit| digit.expect("two digits"));
                u8::from_str_radix(std::str::from_utf8(&digits).expect("digits"), 16).expect("digits")
            }
            (_, Some(b'n')) => b'\n',
            (_, Some(b'r')) => b'\r',
            (_, Some(b't')) => b'\t',
            (_, Some(b'a')) => 7,
            (_, Some(b'b')) => 8,
            (_, Some(itself)) | (itself, None) => itself,
        });
    }
    bytes
}

/// Cost of all script calls since RESETSTAT.
fn microseconds(server: &RedisServer) -> f64 {
    let info: String = redis::from_redis_value(server.command(&[b"INFO", b"commandstats"])).expect("text");
    let line = info.lines().find(|line| line.starts_with("cmdstat_evalsha:")).expect("scripts were called");
    let field = line.split(',').find_map(|field| field.strip_prefix("usec=")).expect("a field usec");
    field.parse().expect("a number")
}

/// A script's or an algorithm's calls: the first call of each key, and each later one, of each server.
struct Row {
    name: String,
    first: Vec<f64>,
    later: Vec<f64>,
}

impl Row {
    /// So often a key is called in its life.
    const CALLS: f64 = 20.0;

    fn first(&self) -> f64 {
        median(&self.first)
    }

    /// The median of the later passes, since something else may have had the processor in one of them.
    fn later(&self) -> f64 {
        median(&self.later)
    }

    fn life(&self) -> f64 {
        (self.first() + (Self::CALLS - 1.0) * self.later()) / Self::CALLS
    }
}

fn median(numbers: &[f64]) -> f64 {
    let mut numbers = numbers.to_vec();
    numbers.sort_by(f64::total_cmp);
    f64::midpoint(numbers[(numbers.len() - 1) / 2], numbers[numbers.len() / 2])
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    println!(
        "Microseconds of the server a call. {KEYS} keys, {CALLERS} callers on one connection, {PIPELINED} calls in one go, all admitted."
    );
    println!("Nothing expires meanwhile. `first` is the call that finds no key,");
    println!(
        "`later` the median of the others, by turns with the other rows of the group. `life` is {} calls of a key.",
        Row::CALLS
    );
    println!("Medians of {SERVERS} servers: where its keys lie in memory favours one row or another by up to a tenth.");
    for group in &GROUPS {
        let mut rows: Vec<Row> = Vec::new();
        for _ in 0..SERVERS {
            measure(&RedisServer::start(), group, &mut rows).await;
        }
        print(group, &rows);
    }
}

/// A row a contender, scripts first.
async fn measure(server: &RedisServer, group: &Group, rows: &mut Vec<Row>) {
    let client = Client::open(server.url()).expect("an address");
    let patient = AsyncConnectionConfig::new().set_response_timeout(None);
    let connection = client.get_multiplexed_async_connection_with_config(&patient).await.expect("a connection");

    let mut contenders = Vec::new();
    for (number, (name, text, keys, is_told)) in group.scripts.iter().enumerate() {
        let contender = Contender::script(&connection, number, (text, *keys, *is_told)).await;
        contenders.push(((*name).to_owned(), contender));
    }
    for (algorithm, _) in group.algorithms {
        contenders.push((format!("{algorithm:?}"), Contender::ours(server, &connection, *algorithm).await));
    }
    let row = |(name, _): &(String, Contender)| Row { name: name.clone(), first: Vec::new(), later: Vec::new() };
    if rows.is_empty() {
        rows.extend(contenders.iter().map(row));
    }
    for call in 0..CALLS_A_SERVER {
        let mut pass = vec![0.0; rows.len()];
        // By turns that are short, so that what else the machine does falls on all alike.
        for turn in (0..KEYS).step_by(TURN) {
            for (micros, (_, contender)) in pass.iter_mut().zip(&contenders) {
                *micros += contender.charge_each(turn..turn + TURN as u64, server).await;
            }
        }
        for (row, micros) in rows.iter_mut().zip(pass) {
            let passes = if call == 0 { &mut row.first } else { &mut row.later };
            passes.push(micros / f64::from(u32::try_from(KEYS).expect("fewer than 2^32")));
        }
    }
}

fn print(group: &Group, rows: &[Row]) {
    let headings = ["of (a)", "of (b)"].map(str::to_owned).into_iter().take(group.scripts.len());
    let calls = format!("{} calls a key", Row::CALLS);
    println!("\n{calls:<62}{}", columns(["first", "later", "life"].map(str::to_owned).into_iter().chain(headings)));
    let (scripts, ours) = rows.split_at(group.scripts.len());
    let micros = |row: &Row| numbers([row.first(), row.later(), row.life()].into_iter());
    for (letter, row) in ["(a)", "(b)"].into_iter().zip(scripts) {
        println!("{:<62}{}", format!("{letter} {}", row.name), micros(row));
    }
    for (row, (_, wanted)) in ours.iter().zip(group.algorithms) {
        let ratios = numbers(scripts.iter().map(|script| row.life() / script.life()));
        let wanted: Vec<_> = wanted.iter().map(|wanted| format!("{wanted:.2}")).collect();
        let wanted = if wanted.is_empty() { String::new() } else { format!("   wanted: {}", wanted.join(", ")) };
        println!("{:<62}{}{ratios}{wanted}", row.name, micros(row));
    }
}

fn numbers(numbers: impl Iterator<Item = f64>) -> String {
    columns(numbers.map(|number| format!("{number:.2}")))
}

fn columns(words: impl Iterator<Item = String>) -> String {
    words.map(|word| format!("{word:>8}")).collect::<Vec<_>>().concat()
}
