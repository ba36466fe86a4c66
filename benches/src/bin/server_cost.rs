//! What a decision costs the Redis server: each algorithm beside a script of the kind that is in use for the same purpose.
//!
//! `cargo run --release -p ratelimit-benches --bin server_cost`
//!
//! Microseconds are what the server itself counts (`INFO commandstats`). They hold for one machine and one moment: the ratios are
//! what to read. All contenders of a group are sent the same way, by turns, to keys of their own.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures_util::StreamExt as _;
use ratelimit_runtime::{Algorithm, Limiter, OnStoreError, Refill, Rule};
use ratelimit_tests::RedisServer;
use redis::{Client, Cmd, Value, aio::MultiplexedConnection};
use tokio::task::JoinSet;

const KEYS: u64 = 100_000;
/// Shares no factor with [`KEYS`], so that keys come in an order no cache knows.
const STRIDE: u64 = 38_197;
const CALLERS: u64 = 64;
/// Keys.
const TURN: usize = 5_000;
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

/// The caller's clock for the time and for the member, and no expiry: calls of one microsecond are one, a key stays for ever.
const PLAIN_LOG: &str = "
redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, ARGV[4] - ARGV[3] * 1000000)
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[2]) then
  return 0
end
redis.call('ZADD', KEYS[1], ARGV[4], ARGV[4])
return 1";

/// What [`PLAIN_LOG`] lacks to keep its promise.
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
    calls_a_key: usize,
    /// A name, a script, and how many keys it has.
    scripts: &'static [(&'static str, &'static str, u64)],
    /// And the largest ratios that are wanted, one a script.
    algorithms: &'static [(Algorithm, &'static [f64])],
}

const GROUPS: [Group; 3] = [
    Group {
        calls_a_key: 20,
        scripts: &[("GET, compare, INCRBY, EXPIRE", FIXED_WINDOW, 1)],
        algorithms: &[
            (Algorithm::FixedWindow { align: false }, &[0.9]),
            (Algorithm::SlidingWindow { buckets: 1 }, &[]), // nothing simple counts like it
        ],
    },
    Group {
        calls_a_key: 20,
        scripts: &[("TIME, GET, GET, SETEX, SETEX", TOKEN_BUCKET, 2)],
        algorithms: &[
            (Algorithm::TokenBucket { burst: COUNT, refill: Refill::Greedy }, &[0.6]),
            (Algorithm::TokenBucket { burst: COUNT, refill: Refill::Interval }, &[0.6]),
            (Algorithm::LeakyBucket { queue: 100 }, &[]),
        ],
    },
    Group {
        calls_a_key: 20,
        scripts: &[
            ("ZREMRANGEBYSCORE, ZCARD, ZADD", PLAIN_LOG, 1),
            ("TIME, ZREM.., ZCARD, ZADD, PEXPIRE", WHOLE_LOG, 1),
        ],
        algorithms: &[(Algorithm::SlidingLog, &[1.0, 1.0])],
    },
];

/// What charges a key: a script, sent as a raw command whoever wrote it, so that all of them reach the server at the same pace.
#[derive(Clone)]
struct Contender {
    connection: MultiplexedConnection,
    calls: Arc<AtomicU64>,
    /// The command, in which [`KEY`] stands for the key.
    command: Vec<String>,
    /// Whether it is told the time and a number of its own.
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
        let rule = Rule::new("ours", count, HOUR).algorithm(algorithm);
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
        let command = line.split('"').skip(1).step_by(2).map(str::to_owned).collect();
        Self { connection: connection.clone(), calls: Arc::default(), command, is_told: false }
    }

    async fn script(connection: &MultiplexedConnection, number: usize, text: &str, keys: u64) -> Self {
        let mut loading = connection.clone();
        let digest: String =
            redis::cmd("SCRIPT").arg("LOAD").arg(text).query_async(&mut loading).await.expect("a script");
        let mut command = vec!["EVALSHA".to_owned(), digest, keys.to_string()];
        command.extend((0..keys).map(|part| format!("script:{number}:{KEY}:{part}")));
        command.extend(["1".to_owned(), COUNT.to_string(), HOUR.as_secs().to_string()]);
        Self { connection: connection.clone(), calls: Arc::default(), command, is_told: true }
    }

    async fn charge(&self, key: u64) -> Result<(), String> {
        let mut command = Cmd::new();
        for part in &self.command {
            command.arg(part.replace(KEY, &format!("{{{key}}}")));
        }
        if self.is_told {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970").as_micros();
            let now = u64::try_from(now).expect("microseconds fit");
            command.arg(now).arg(self.calls.fetch_add(1, Ordering::Relaxed));
        }
        match self.connection.clone().send_packed_command(&command).await {
            Ok(Value::Int(number)) if number > 0 || !self.is_told => Ok(()),
            Ok(Value::Array(reply)) if matches!(reply.first(), Some(Value::Int(number)) if *number >= i64::from(self.is_told)) => {
                Ok(())
            }
            Ok(Value::BulkString(text)) if !text.starts_with(b"-") => Ok(()),
            other => Err(format!("not admitted: {other:?}")),
        }
    }

    /// Charges each of these keys once, and returns what that has cost the server, in microseconds.
    async fn charge_each(&self, keys: Range<u64>, server: &RedisServer) -> f64 {
        server.command(&[b"CONFIG", b"RESETSTAT"]);
        let mut callers = JoinSet::new();
        for caller in 0..CALLERS {
            let (contender, mut keys) = (self.clone(), keys.clone());
            keys.start += caller;
            callers.spawn(async move {
                for number in keys.step_by(usize::try_from(CALLERS).expect("a few")) {
                    if let Err(reason) = contender.charge(number * STRIDE % KEYS).await {
                        panic!("{reason}");
                    }
                }
            });
        }
        callers.join_all().await;
        microseconds(server)
    }
}

/// What all calls of scripts have cost since RESETSTAT.
fn microseconds(server: &RedisServer) -> f64 {
    let info: String = redis::from_redis_value(server.command(&[b"INFO", b"commandstats"])).expect("text");
    let line = info.lines().find(|line| line.starts_with("cmdstat_evalsha:")).expect("scripts were called");
    let field = line.split(',').find_map(|field| field.strip_prefix("usec=")).expect("a field usec");
    field.parse().expect("a number")
}

/// A script's or an algorithm's calls: the first call of each key, and each later one.
struct Row {
    name: String,
    passes: Vec<f64>,
}

impl Row {
    fn first(&self) -> f64 {
        self.passes[0]
    }

    /// The median of the later passes, since something else may have had the processor in one of them.
    fn later(&self) -> f64 {
        let mut later = self.passes[1..].to_vec();
        later.sort_by(f64::total_cmp);
        f64::midpoint(later[(later.len() - 1) / 2], later[later.len() / 2])
    }

    fn life(&self) -> f64 {
        let later = f64::from(u32::try_from(self.passes.len() - 1).expect("a few"));
        (self.first() + later * self.later()) / (later + 1.0)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    println!(
        "Microseconds of the server a call. {KEYS} keys, {CALLERS} callers on one connection, every call admitted."
    );
    println!(
        "Each key is called as often as is said; nothing expires meanwhile. `first` is the call that finds no key,"
    );
    println!(
        "`later` the median of the others, by turns with the other rows of the group. `life` is all calls of a key."
    );
    for group in &GROUPS {
        let server = RedisServer::start();
        let rows = measure(&server, group).await;
        print(group, &rows);
    }
}

/// A row a contender, scripts first.
async fn measure(server: &RedisServer, group: &Group) -> Vec<Row> {
    let client = Client::open(server.url()).expect("an address");
    let connection = client.get_multiplexed_async_connection().await.expect("a connection");

    let mut contenders = Vec::new();
    for (number, (name, text, keys)) in group.scripts.iter().enumerate() {
        contenders.push(((*name).to_owned(), Contender::script(&connection, number, text, *keys).await));
    }
    for (algorithm, _) in group.algorithms {
        contenders.push((format!("{algorithm:?}"), Contender::ours(server, &connection, *algorithm).await));
    }
    let mut rows: Vec<_> = contenders.iter().map(|(name, _)| Row { name: name.clone(), passes: Vec::new() }).collect();
    for _ in 0..group.calls_a_key {
        let mut pass = vec![0.0; rows.len()];
        // By turns that are short, so that what else the machine does falls on all alike.
        for turn in (0..KEYS).step_by(TURN) {
            for (micros, (_, contender)) in pass.iter_mut().zip(&contenders) {
                *micros += contender.charge_each(turn..turn + TURN as u64, server).await;
            }
        }
        for (row, micros) in rows.iter_mut().zip(pass) {
            row.passes.push(micros / f64::from(u32::try_from(KEYS).expect("fewer than 2^32")));
        }
    }
    rows
}

fn print(group: &Group, rows: &[Row]) {
    let headings = ["of (a)", "of (b)"].map(str::to_owned).into_iter().take(group.scripts.len());
    let calls = format!("{} calls a key", group.calls_a_key);
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
