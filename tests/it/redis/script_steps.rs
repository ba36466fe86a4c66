//! A script blocks the server while it runs. The production scripts run here with a counter in each
//! loop and around each function.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use futures_util::future::join_all;
use ratelimit_harness::RedisServer;
use ratelimit_runtime::conformance::{counter_of, store_of};
use ratelimit_runtime::store::{Charge, Hold, Request};
use ratelimit_runtime::{Algorithm, Cause, Key, Limiter, Rule};
use redis::Value;

use crate::support::{BUCKET, By, FIXED, LOG, limiter_on};

const MOST_STEPS: i64 = 64_000;
const BUCKETS: Algorithm = Algorithm::SlidingWindow { buckets: 1_000, weighted: true };
const KEYS: u64 = 64;

/// Stands in front of a script. Commands are eight steps; calls of functions, and 64 bytes of their
/// strings, are one.
const COUNTING: &str = "
local steps = 0
local function sizes(...)
  for i = 1, select('#', ...) do
    local one = select(i, ...)
    steps = steps + (type(one) == 'string' and (#one - #one % 64) / 64 or 0)
  end
  return ...
end
local function counted(act, weight, copies_nothing)
  return function(...)
    if not copies_nothing then
      sizes(...)
    end
    steps = steps + weight
    return sizes(act(...))
  end
end
local function all(functions)
  local counting = {}
  for name, act in pairs(functions) do
    counting[name] = type(act) == 'function' and counted(act, 1, name == 'unpack' or name == 'sub') or act
  end
  return counting
end
local redis = { call = counted(redis.call, 8) }
local string, struct, math, table = all(string), all(struct), all(math), all(table)
local function script()
";

/// A script call as it is sent: the text, and the arguments from the number of keys on.
type Sent = (String, Vec<Vec<u8>>);

/// The scripts that a server runs meanwhile.
async fn scripts_of(server: &RedisServer, act: impl Future<Output = ()>) -> Vec<Sent> {
    let mut monitor = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    monitor.write_all(b"MONITOR\r\n").unwrap();
    let mut lines = BufReader::new(monitor).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "+OK");
    act.await;
    server.command(&[b"ECHO", b"the end"]);
    let lines = lines.map(Result::unwrap).take_while(|line| !line.contains("\"ECHO\" \"the end\""));
    let lines: Vec<_> = lines.filter(|line| !line.contains(" lua] ")).collect();
    let calls = lines.iter().filter(|line| line.contains("] \"EVAL")).map(|line| {
        let words = line.split_once('"').unwrap().1.trim_end_matches('"').split("\" \"").map(unescape);
        words.collect::<Vec<_>>()
    });
    let calls: Vec<_> = calls.collect();
    let mut texts = HashMap::new();
    for call in calls.iter().filter(|call| call[0] == b"EVAL") {
        let Value::BulkString(digest) = server.command(&[b"SCRIPT", b"LOAD", &call[1]]) else { panic!("a digest") };
        texts.insert(digest, String::from_utf8(call[1].clone()).unwrap());
    }
    let text = |call: &Vec<Vec<u8>>| Some((texts.get(&call[1])?.clone(), call[2..].to_vec()));
    calls.iter().filter(|call| call[0] == b"EVALSHA").filter_map(text).collect()
}

/// An argument as MONITOR shows it.
fn unescape(shown: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), shown.bytes());
    while let Some(byte) = rest.next() {
        bytes.push(match (byte, if byte == b'\\' { rest.next() } else { None }) {
            (_, Some(b'x')) => {
                let digits = [rest.next(), rest.next()].map(|digit| digit.unwrap());
                u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
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

/// Number of steps of a script.
fn steps(server: &RedisServer, (text, arguments): &Sent) -> i64 {
    let mut counting = String::from(COUNTING);
    for line in text.lines() {
        let is_loop = line.ends_with(" do") || line.trim() == "repeat";
        writeln!(counting, "{line}{}", if is_loop { " steps = steps + 1" } else { "" }).unwrap();
    }
    counting.push_str("end\nscript()\nreturn steps");
    let mut words: Vec<&[u8]> = vec![b"EVAL", counting.as_bytes()];
    words.extend(arguments.iter().map(Vec::as_slice));
    match server.command(&words) {
        Value::Int(steps) => steps,
        other => panic!("{other:?}"),
    }
}

fn names(server: &RedisServer) -> Vec<Vec<u8>> {
    redis::from_redis_value(server.command(&[b"KEYS", b"*"])).unwrap()
}

/// The steps of all scripts that the server runs meanwhile, each on what it found.
async fn steps_of(server: &RedisServer, act: impl Future<Output = ()>) -> Vec<i64> {
    let names = names(server);
    let before = |name: &[u8]| [b"before:", name].concat();
    for name in &names {
        server.command(&[b"COPY", name, &before(name), b"REPLACE"]);
    }
    let scripts = scripts_of(server, act).await;
    assert!(!scripts.is_empty());
    let mut counted = Vec::new();
    for script in &scripts {
        for name in &names {
            server.command(&[b"COPY", &before(name), name, b"REPLACE"]);
        }
        counted.push(steps(server, script));
    }
    for name in &names {
        server.command(&[b"DEL", &before(name)]);
    }
    counted
}

/// A charge in each of a thousand sub-windows of each key, a step of the clock apart.
async fn fill(server: &RedisServer, limiter: &Limiter, rule: &Rule) {
    for _ in 0..1_001 {
        limiter.acquire(rule, 0).await.unwrap();
        server.clock().advance(rule.period() / 1_000);
    }
    let names = names(server);
    let first = names.iter().find(|name| name.windows(3).any(|part| part == b"{0}")).unwrap();
    let first = String::from_utf8(first.clone()).unwrap();
    for key in 1..KEYS {
        let name = first.replace("{0}", &format!("{{{key}}}"));
        assert_ne!(first, name);
        server.command(&[b"COPY", first.as_bytes(), name.as_bytes(), b"REPLACE"]);
    }
}

/// The largest batch: as many counters as fit, near their limits, with many equal charges of each.
/// More callers do not add steps.
#[tokio::test]
async fn the_largest_batch_takes_a_bounded_number_of_script_steps() {
    for algorithm in [BUCKETS, FIXED, BUCKET, LOG] {
        let server = RedisServer::builder().controlled_clock().start();
        let limiter = limiter_on(&server).await;
        let rule = Rule::new("steps", 100_000, Duration::from_secs(1000)).by(algorithm).with_denial_cache(false);
        // The server is sent the text of each script once.
        let mut longest = Vec::new();
        for callers in [1_u64, 20, 400] {
            server.command(&[b"FLUSHALL"]);
            if algorithm == BUCKETS {
                fill(&server, &limiter, &rule).await;
            }
            for _ in 0..if algorithm == BUCKET { 8 } else { 0 } {
                // A bucket remembers charges that are settled later.
                server.clock().advance(Duration::from_millis(1));
                join_all((0..KEYS).map(|key| limiter.reserve(&rule, key, 10))).await;
            }
            for key in 0..KEYS {
                let left = limiter.peek(&rule, key).await.unwrap().remaining();
                limiter.acquire_n(&rule, key, left - callers.div_ceil(2)).await.unwrap();
            }
            server.clock().advance(Duration::from_secs(400));
            server.command(&[b"SCRIPT", b"FLUSH"]);
            let warm_up = async {
                join_all((0..2 * KEYS).map(|key| limiter.acquire(&rule, 1000 + key % KEYS))).await;
                join_all((0..callers * KEYS).map(|call| limiter.acquire(&rule, call % KEYS))).await;
            };
            let counted = steps_of(&server, warm_up).await;
            let most = *counted.iter().max().unwrap();
            assert!(most <= MOST_STEPS, "{algorithm:?}, {callers} callers of each key: {counted:?}");
            longest.push(most);
        }
        // A log looks for what has to expire by halves.
        assert!(longest[2] <= longest[1] * 3 / 2, "{algorithm:?}: more for more callers, {longest:?}");
    }
}

/// A call of more rules than a server may be kept busy with is refused before anything is sent.
#[tokio::test]
async fn one_call_takes_a_bounded_number_of_script_steps() {
    for algorithm in [BUCKETS, FIXED, BUCKET, LOG] {
        let server = RedisServer::builder().controlled_clock().start();
        let limiter = limiter_on(&server).await;
        let rule = Rule::new("steps", 100_000, Duration::from_secs(1000)).by(algorithm).with_denial_cache(false);
        let charges = |rules: u64| (0..rules).map(|key| (&rule, Key::new(key), 1)).collect::<Vec<_>>();
        let (mut low, mut high) = (1, 4_096);
        while high - low > 1 {
            let middle = u64::midpoint(low, high);
            match limiter.acquire_all(&charges(middle)).await {
                Ok(_) => low = middle,
                Err(refused) => {
                    assert_eq!(refused.cause(), Cause::Misconfigured, "{refused}");
                    assert!(refused.to_string().contains("fewer rules"), "{refused}");
                    high = middle;
                }
            }
        }
        assert!((4..1_000).contains(&low), "{algorithm:?}: {low}");
        if algorithm == BUCKETS {
            assert!(low < 64, "{low}");
            fill(&server, &limiter, &rule).await;
        }
        server.clock().advance(Duration::from_secs(400));
        server.command(&[b"SCRIPT", b"FLUSH"]);
        let act = async {
            limiter.acquire_all(&charges(2)).await.unwrap();
            limiter.acquire_all(&charges(low)).await.unwrap();
        };
        let counted = steps_of(&server, act).await;
        assert!(counted.iter().all(|steps| *steps <= MOST_STEPS), "{algorithm:?}, {low} rules: {counted:?}");
        let sent = scripts_of(&server, async { assert!(limiter.acquire_all(&charges(low + 1)).await.is_err()) }).await;
        assert!(sent.is_empty(), "{} scripts", sent.len());
    }
}

/// The largest number of holds of one counter, with leases that are all different: all of them, and
/// every second.
#[tokio::test]
async fn renewals_take_a_bounded_number_of_script_steps() {
    let log = Rule::new("steps", 1_000_000, Duration::from_secs(60)).with_algorithm(LOG);
    let places = Rule::new("steps", 10_000_000, Duration::from_secs(60)).with_algorithm(Algorithm::Concurrent);
    // A place is stored by the digits of its cost: this one has ten.
    for (rule, count, cost) in [(log, 10_000, 1), (places, 3_000, 1), (places, 3_000, 1023)] {
        let server = RedisServer::builder().controlled_clock().start();
        let limiter = limiter_on(&server).await;
        let mut held = Vec::new();
        for at in 0..count {
            let mut charge = Charge::new(rule, counter_of(&rule, 1), cost);
            charge.hold = Some(Hold::new(Duration::from_millis(60_000 + at * 7919 % count)));
            let batch = store_of(&limiter).decide(Request::new(charge, true).into()).answer().await;
            assert_eq!(batch[0].outcome, Ok(true));
            held.push(batch[0].charges[0].clone());
        }
        server.clock().advance(Duration::from_secs(20));
        let mut counted = Vec::new();
        for only_half in [false, true] {
            let renewed: Vec<_> = held.iter().step_by(if only_half { 2 } else { 1 }).cloned().collect();
            server.command(&[b"SCRIPT", b"FLUSH"]);
            let renew = async {
                let renewed = store_of(&limiter).renew(renewed).answer().await.unwrap();
                assert!(renewed.iter().all(|is_held| *is_held));
            };
            counted.extend(steps_of(&server, renew).await);
        }
        assert!(counted.iter().all(|steps| *steps <= MOST_STEPS), "{rule:?}: {counted:?}");
        // A log walks over all of its holds once for each script.
        assert!(counted.len() < 200, "{rule:?}: {} scripts", counted.len());
        println!("{} scripts of up to {} steps", counted.len(), counted.iter().max().unwrap());
    }
}
