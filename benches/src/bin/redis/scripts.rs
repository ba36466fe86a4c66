//! The scripts of the bare client: those that a user would write, and ours.

use std::{
    fmt::Write as _,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures_util::StreamExt as _;
use ratelimit_harness::RedisServer;
use ratelimit_runtime::{Algorithm, Rule};
use redis::{Client, Cmd, Value};
use tokio::time::sleep;

use crate::{contenders::limiter, place::Place};

/// The script that a user would write for an algorithm: that of its source. `ARGV` has the count, the period in
/// milliseconds, and the user's time in milliseconds if the source passes it. It returns -1 if a call is refused.
fn of_source(algorithm: Algorithm) -> (&'static str, bool) {
    match algorithm {
        // The documentation of INCR. It counts refused calls, too.
        Algorithm::FixedWindow { .. } => (
            "\
local count = redis.call('INCR', KEYS[1])
if count == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return count <= tonumber(ARGV[1]) and count or -1",
            false,
        ),
        // A sorted set of times.
        Algorithm::SlidingLog => (
            "\
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, now - ARGV[2] * 1000)
local count = redis.call('ZCARD', KEYS[1])
if count >= tonumber(ARGV[1]) then return -1 end
redis.call('ZADD', KEYS[1], now, time[1] .. time[2] .. '-' .. count)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return ARGV[1] - count - 1",
            false,
        ),
        // Two windows, of which the earlier one counts by its overlap.
        Algorithm::SlidingWindow { .. } => (
            "\
local count, period, now = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local window = math.floor(now / period)
local stored = redis.call('HMGET', KEYS[1], 'window', 'current', 'previous')
local last, current, previous = tonumber(stored[1]), tonumber(stored[2] or 0), tonumber(stored[3] or 0)
if last ~= window then
  previous, current = last == window - 1 and current or 0, 0
end
local used = current + previous * (1 - (now % period) / period)
if used + 1 > count then return -1 end
redis.call('HSET', KEYS[1], 'window', window, 'current', current + 1, 'previous', previous)
redis.call('PEXPIRE', KEYS[1], 2 * period)
return math.floor(count - used - 1)",
            true,
        ),
        // Tokens, and the time of the last refill.
        Algorithm::TokenBucket { .. } => (
            "\
local capacity, period, now = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local rate = capacity / period
local stored = redis.call('HMGET', KEYS[1], 'tokens', 'time')
local tokens, time = tonumber(stored[1] or capacity), tonumber(stored[2] or now)
tokens = math.min(capacity, tokens + math.max(0, now - time) * rate)
if tokens < 1 then return -1 end
redis.call('HSET', KEYS[1], 'tokens', tokens - 1, 'time', now)
redis.call('PEXPIRE', KEYS[1], math.ceil((capacity - tokens + 1) / rate))
return math.floor(tokens - 1)",
            true,
        ),
        // The time at which the queue will be empty.
        Algorithm::LeakyBucket { .. } => (
            "\
local interval, period, now = ARGV[2] / ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local free = math.max(tonumber(redis.call('GET', KEYS[1]) or now), now)
if free - now > period then return -1 end
redis.call('SET', KEYS[1], string.format('%.6f', free + interval), 'PX', math.ceil(free + interval - now))
return math.ceil(free - now)",
            true,
        ),
        other => panic!("no source has a script for {other:?}"),
    }
}

/// The command by which the limiter decides on one call, in two pieces: a key goes between them.
pub(crate) struct Script {
    digest: String,
    before_key: String,
    after_key: String,
    arguments: Vec<Vec<u8>>,
    /// Adds the time in milliseconds to the arguments.
    sends_time: bool,
    /// A negative number is a refusal.
    has_sign: bool,
    /// Another number is the wait for a slot, in milliseconds.
    has_slots: bool,
}

impl Script {
    /// As it reaches a server.
    pub(crate) async fn of_ours(rule: Rule) -> Self {
        const KEY: u64 = 424_242;
        let server = RedisServer::start();
        let limiter = limiter(&server.url(), false).await;
        limiter.acquire(&rule, KEY + 1).await.expect("an admitted call"); // the server knows the script from now on
        let monitor = Client::open(server.url()).expect("an address").get_async_monitor().await.expect("a monitor");
        let mut seen = monitor.into_on_message::<String>();
        limiter.acquire(&rule, KEY).await.expect("an admitted call");
        let line = loop {
            let line = seen.next().await.expect("a command");
            if line.contains("\"EVALSHA\"") {
                break line;
            }
        };
        // 1700000000.123456 [0 127.0.0.1:50000] "EVALSHA" "digest" "1" "key" "argument"
        let (_, words) = line.split_once('"').expect("words");
        let mut words = words.trim_end_matches('"').split("\" \"").map(unescape).skip(1);
        let mut text = || String::from_utf8(words.next().expect("a word")).expect("a text");
        let (digest, keys, key) = (text(), text(), text());
        assert_eq!(keys, "1", "the script has another number of keys");
        let (before_key, after_key) = key.split_once(&KEY.to_string()).expect("the key is in its name");
        let (before_key, after_key) = (before_key.to_owned(), after_key.to_owned());
        // The other scripts have other replies. They refuse nothing here.
        let has_sign = matches!(rule.algorithm(), Algorithm::FixedWindow { .. });
        Self {
            digest,
            before_key,
            after_key,
            arguments: words.collect(),
            sends_time: false,
            has_sign,
            has_slots: false,
        }
    }

    /// Known to all servers of a place.
    pub(crate) async fn of_users(rule: Rule, place: &Place) -> Self {
        let urls = match place {
            Place::Single(_) | Place::Elsewhere(_) | Place::Memory => vec![place.url()],
            Place::Cluster(cluster) => cluster.nodes().iter().map(RedisServer::url).collect(),
        };
        let (text, sends_time) = of_source(rule.algorithm());
        let has_slots = matches!(rule.algorithm(), Algorithm::LeakyBucket { .. });
        let mut digest = String::new();
        for url in urls {
            let client = Client::open(url).expect("an address");
            let mut connection = client.get_multiplexed_async_connection().await.expect("a connection");
            let mut load = redis::cmd("SCRIPT");
            digest = load.arg("LOAD").arg(text).query_async(&mut connection).await.expect("a digest");
        }
        let arguments = [rule.count().into(), rule.period().as_millis()].map(|number| number.to_string().into_bytes());
        let (before_key, after_key) = ("item:".to_owned(), String::new());
        Self { digest, before_key, after_key, arguments: arguments.to_vec(), sends_time, has_sign: true, has_slots }
    }

    pub(crate) fn command(&self, key: u64) -> Cmd {
        let mut name = String::with_capacity(self.before_key.len() + 20 + self.after_key.len());
        let _ = write!(name, "{}{key}{}", self.before_key, self.after_key);
        let mut command = Cmd::with_capacity(4 + self.arguments.len(), 160);
        command.arg("EVALSHA").arg(&self.digest).arg(1).arg(name);
        for argument in &self.arguments {
            command.arg(argument);
        }
        if self.sends_time {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970").as_millis();
            command.arg(itoa::Buffer::new().format(now));
        }
        command
    }

    pub(crate) async fn admits(&self, reply: &Value) -> bool {
        match reply {
            Value::ServerError(error) => panic!("{}: {error:?}", self.digest),
            Value::Int(wait @ 1..) if self.has_slots => {
                sleep(Duration::from_millis(wait.unsigned_abs())).await;
                true
            }
            Value::Int(number) => *number >= 0 || !self.has_sign,
            // A fixed window with a large count.
            Value::Array(numbers) if self.has_sign => matches!(numbers.first(), Some(Value::Int(0..))),
            _ => true,
        }
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
