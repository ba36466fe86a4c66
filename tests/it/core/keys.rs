//! Keys of any content: distinct counters have distinct names, and a name is readable.

use std::borrow::Cow;
use std::collections::HashSet;
use std::env;
use std::time::Duration;

use proptest::prelude::*;
use ratelimit_harness::RedisServer;
use ratelimit_runtime::{
    Algorithm, Key, KeyWriter, Limiter, ManualClock, RateKey, RequestPerMinute, Rule, limit_request_per_time,
};
use tokio::runtime::Runtime;

use crate::support::log::Log;
use crate::support::plain_store::{PlainStore, on_plain_store};
use crate::support::{ALGORITHMS, FIXED, LOG, PATIENCE, fresh_key, hourly, limiter_on};

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// The name of the counter, as a store sees it, and as Redis would be sent it.
fn name(namespace: &str, rule: &Rule, key: impl RateKey) -> Vec<u8> {
    let store = PlainStore::new(&ManualClock::new());
    let limiter = Limiter::builder("memory://").namespace(namespace).over(store.clone()).unwrap();
    runtime().block_on(async { limiter.peek(rule, key).await.unwrap() });
    store.seen()[0].as_bytes().to_vec()
}

fn name_of(key: impl RateKey) -> String {
    String::from_utf8(name("", &Rule::new("item", 1, Duration::from_secs(60)), key)).unwrap()
}

#[test]
fn the_name_of_a_counter_reads_as_documented() {
    assert_eq!(name_of(4711), "item:{4711}:fixed:60000");
    assert_eq!(name_of(("eu", 4711)), "item:{(eu,4711)}:fixed:60000");
    let log = Rule::new("item", 1, Duration::from_secs(3600)).with_algorithm(LOG);
    assert_eq!(name("shop", &log, "alice"), b"shop::item:{alice}:sliding-log:3600000");
    let window = log.with_algorithm(Algorithm::SlidingWindow { buckets: 6, weighted: true });
    assert_eq!(name("shop", &window, "alice"), b"shop::item:{alice}:sliding-6:3600000");
}

#[test]
fn keys_that_print_the_same_are_one_key() {
    let same: [&[&dyn RateKey]; 4] = [
        &[
            &1_u8,
            &1_i128,
            &"1",
            &String::from("1"),
            &b"1",
            &'1',
            &Cow::Borrowed("1"),
            &vec![b'1'],
            &std::num::NonZeroU64::MIN,
        ],
        &[&(1, "a"), &("1", 'a'), &(&1_u64, Box::new("a")), &Key::new((1, "a"))],
        &[&true, &"true"],
        &[&std::net::IpAddr::from([127, 0, 0, 1]), &"127.0.0.1"],
    ];
    let mut names = HashSet::new();
    for group in same {
        let group: HashSet<_> = group.iter().map(|key| name_of(*key)).collect();
        assert_eq!(group.len(), 1, "{group:?}");
        names.extend(group);
    }
    assert_eq!(names.len(), 4);
}

/// Each of these has been taken for another somewhere.
#[test]
fn notorious_keys_have_distinct_names() {
    let keys: Vec<Box<dyn RateKey>> = vec![
        Box::new(""),
        Box::new(("",)),
        Box::new(("", "")),
        Box::new((("",), "")),
        Box::new(("", ("",))),
        Box::new("()"),
        Box::new("(,)"),
        Box::new(","),
        Box::new("%"),
        Box::new("%25"),
        Box::new("%2525"),
        Box::new("{}"),
        Box::new("{"),
        Box::new("}"),
        Box::new("}{"),
        Box::new("a:b"),
        Box::new(("a", "b")),
        Box::new("a,b"),
        Box::new(("a:b", "")),
        Box::new(("a", ":b")),
        Box::new(("a,b", "c")),
        Box::new(("a", "b,c")),
        Box::new(("a", "b", "c")),
        Box::new((("a", "b"), "c")),
        Box::new(("a", ("b", "c"))),
        Box::new("\0"),
        Box::new("\0\0"),
        Box::new("%00"),
        Box::new("\n"),
        Box::new("\r\n"),
        Box::new("a\nb"),
        Box::new(" "),
        Box::new(b"\xff"),
        Box::new("%FF"),
        Box::new("\u{ff}"),
        Box::new("\u{fffd}"),
        Box::new(b"\xc3"),
        Box::new("%sha256-"),
        Box::new("{4711}:fixed:60000"),
        Box::new("x".repeat(200)),
        Box::new("x".repeat(201)),
        Box::new("\0".repeat(66)),
        Box::new("\0".repeat(67)),
        Box::new("x".repeat(1_000_000)),
        Box::new("x".repeat(1_000_001)),
        Box::new(("x".repeat(1_000_000), "")),
        Box::new("x".repeat(1_000_000) + "y"),
    ];
    let names: HashSet<_> = keys.iter().map(name_of).collect();
    assert_eq!(names.len(), keys.len());
    for name in &names {
        is_sound(name.as_bytes());
    }
    // A long key's digest is no key that could be written.
    let digest = name_of("x".repeat(300));
    let tag = &digest[digest.find('{').unwrap() + 1..digest.find('}').unwrap()];
    assert_ne!(name_of(tag), digest);
}

/// As a cluster takes it: the tag is what stands between the first `{` and the next `}`, if that is something.
fn is_sound(name: &[u8]) {
    let text = std::str::from_utf8(name).unwrap();
    let (open, close) = (text.find('{').unwrap(), text.find('}').unwrap());
    assert!(open + 1 < close, "{text}: an empty tag");
    assert_eq!((text.rfind('{'), text.rfind('}')), (Some(open), Some(close)), "{text}: a foreign brace");
    assert!(!text.chars().any(|char| char.is_ascii_control()), "{text:?}: a control character");
    assert!(name.len() < 700, "{} bytes", name.len());
}

/// A key of any shape.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Shape {
    Bytes(Vec<u8>),
    Tuple(Vec<Shape>),
}

impl RateKey for Shape {
    fn write_key(&self, key: &mut KeyWriter<'_>) {
        match self {
            Self::Bytes(bytes) => bytes.write_key(key),
            Self::Tuple(parts) => match parts.as_slice() {
                [a] => (a,).write_key(key),
                [a, b] => (a, b).write_key(key),
                [a, b, c] => (a, b, c).write_key(key),
                [a, b, c, d] => (a, b, c, d).write_key(key),
                _ => unreachable!("tuples of one to four"),
            },
        }
    }
}

fn text() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        6 => prop::collection::vec(prop::sample::select(b"a1%{}(),:0F2\0\n".as_slice()), 0..4),
        2 => prop::collection::vec(any::<u8>(), 0..4),
        1 => (190_usize..210, any::<bool>()).prop_map(|(length, last)| {
            let mut long = vec![b'x'; length];
            long[length - 1] = if last { b'x' } else { b'y' };
            long
        }),
    ]
}

fn shape() -> impl Strategy<Value = Shape> {
    text()
        .prop_map(Shape::Bytes)
        .prop_recursive(3, 12, 4, |part| prop::collection::vec(part, 1..=4).prop_map(Shape::Tuple))
}

/// Two shapes that are alike: a second one made by regrouping or moving a character, or an unrelated one.
fn pair() -> impl Strategy<Value = (Shape, Shape)> {
    let regrouped = prop::collection::vec(text(), 2..=4).prop_map(|texts| {
        let parts: Vec<_> = texts.iter().cloned().map(Shape::Bytes).collect();
        let (head, tail) = parts.split_at(1);
        let nested = Shape::Tuple(vec![head[0].clone(), Shape::Tuple(tail.to_vec())]);
        (Shape::Tuple(parts), nested)
    });
    let moved = (text(), text(), text()).prop_map(|(one, two, three)| {
        let left = Shape::Tuple(vec![Shape::Bytes([one.clone(), two.clone()].concat()), Shape::Bytes(three.clone())]);
        let right = Shape::Tuple(vec![Shape::Bytes(one), Shape::Bytes([two, three].concat())]);
        (left, right)
    });
    let joined = (text(), text(), prop::sample::select(b",:%({".as_slice())).prop_map(|(one, two, by)| {
        let joined = Shape::Bytes([one.clone(), vec![by], two.clone()].concat());
        (Shape::Tuple(vec![Shape::Bytes(one), Shape::Bytes(two)]), joined)
    });
    prop_oneof![(shape(), shape()), regrouped, moved, joined]
}

/// `RATELIMIT_INPUTS` cases, or this many.
fn cases(usual: u32) -> ProptestConfig {
    let cases = env::var("RATELIMIT_INPUTS").map_or(usual, |number| {
        number.parse().unwrap_or_else(|_| panic!("RATELIMIT_INPUTS is {number:?}; give it a number of inputs"))
    });
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(4000))]

    #[test]
    fn distinct_keys_have_distinct_names((one, other) in pair()) {
        let names = [name_of(&one), name_of(&other)];
        for name in &names {
            is_sound(name.as_bytes());
        }
        prop_assert_eq!(names[0] == names[1], one == other, "{:?}", names);
        prop_assert_eq!(Key::new(&one) == Key::new(&other), one == other);
    }

    /// However a name's parts are filled, no other parts make the same name.
    #[test]
    fn distinct_counters_have_distinct_names((one, other) in two_counters()) {
        let names = [&one, &other].map(|(namespace, prefix, key, algorithm, ms)| {
            let prefix: &'static str = Box::leak(prefix.clone().into_boxed_str());
            let rule = Rule::new(prefix, 1, Duration::from_millis(*ms)).with_algorithm(*algorithm);
            name(namespace, &rule, key)
        });
        for name in &names {
            is_sound(name);
        }
        prop_assert_eq!(names[0] == names[1], one == other, "{:?}", names.map(|name| String::from_utf8_lossy(&name).into_owned()));
    }
}

/// Namespace, prefix, key, algorithm, period.
type Parts = (String, String, String, Algorithm, u64);

fn parts() -> impl Strategy<Value = Parts> {
    let part = |least| prop::collection::vec(prop::sample::select("a:%{},(".chars().collect::<Vec<_>>()), least..4);
    let part = move |least| part(least).prop_map(String::from_iter);
    (part(0), part(1), part(0), prop::sample::select(&ALGORITHMS[..]), prop::sample::select(vec![2, 4]))
}

/// Unrelated ones, or two that differ in where a part ends.
fn two_counters() -> impl Strategy<Value = (Parts, Parts)> {
    let moved =
        (parts(), prop::sample::select(vec!["::", ":", ":{", "{", "}:"]), any::<bool>()).prop_map(|(one, by, late)| {
            let (namespace, prefix, key, algorithm, period) = one.clone();
            let other = if late {
                (namespace, format!("{prefix}{by}{key}"), String::new(), algorithm, period)
            } else {
                (String::new(), format!("{namespace}{by}{prefix}"), key, algorithm, period)
            };
            (one, other)
        });
    prop_oneof![(parts(), parts()), moved]
}

#[limit_request_per_time(prefix = "item", ttl = 1, unit = Minutes, count = 9, limiter = limiter)]
async fn without_a_key(limiter: &Limiter) -> Result<(), RequestPerMinute> {
    Ok(())
}

/// A rule without a key has one counter for all callers. No key has the name of that counter.
#[tokio::test]
async fn no_key_has_the_name_of_the_counter_without_a_key() {
    let (limiter, store, _clock) = on_plain_store();
    without_a_key(&limiter).await.unwrap();
    let shared = store.seen().remove(0);
    assert_eq!(shared.to_string(), "{item}:fixed:60000");
    is_sound(shared.as_bytes());
    let rule = Rule::new("item", 9, Duration::from_secs(60));
    for key in ["", "item", "{item}", "}:fixed:60000"] {
        limiter.acquire(&rule, key).await.unwrap();
        assert_ne!(store.seen().remove(0), shared, "{key}");
    }
    limiter.acquire(&rule, Key::NONE).await.unwrap();
    limiter.acquire_all(&[(&rule, Key::NONE, 1)]).await.unwrap();
    limiter.peek(&rule, Key::new(&Key::NONE)).await.unwrap();
    assert_eq!(store.seen(), [shared.clone(), shared.clone(), shared]);
}

/// Every call that takes a key also takes none.
#[tokio::test]
async fn no_key_is_the_counter_of_an_attribute_without_a_key() {
    let server = RedisServer::start();
    let rule = Rule::new("item", 9, Duration::from_secs(60));
    let log = rule.with_algorithm(LOG);
    for limiter in [Limiter::in_memory(), limiter_on(&server).await] {
        without_a_key(&limiter).await.unwrap();
        assert_eq!(limiter.acquire(&rule, Key::NONE).await.unwrap().remaining(), 7);
        assert_eq!(limiter.acquire_within(&rule, Key::NONE, Duration::ZERO).await.unwrap().remaining(), 6);
        assert_eq!(limiter.acquire_all(&[(&rule, Key::NONE, 2)]).await.unwrap().remaining(), 4);
        assert_eq!(limiter.peek(&rule, Key::NONE).await.unwrap().remaining(), 4);
        assert_eq!(limiter.peek(&rule, "").await.unwrap().remaining(), 9);
        limiter.reset(&rule, Key::NONE).await.unwrap();
        assert_eq!(limiter.peek(&rule, Key::NONE).await.unwrap().remaining(), 9);
        limiter.reserve(&log, Key::NONE, 5).await.unwrap().settle(3).await.unwrap();
        assert_eq!(limiter.peek(&log, Key::NONE).await.unwrap().remaining(), 6);
    }
}

/// On a real server there are as many counters as keys, and each is found again.
#[tokio::test]
async fn redis_keeps_all_keys_apart() {
    let server = RedisServer::start();
    let limiter = limiter_on(&server).await;
    let mut keys: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
    keys.extend((0..=255).map(|byte| format!("%{byte:02X}").into_bytes()));
    keys.extend(["", "a:b", "a", "b", "{}", "{a}", "}", "\r\n*1\r\n", "a b"].map(|key| key.as_bytes().to_vec()));
    keys.extend([vec![0; 1_000_000], vec![0; 1_000_001], vec![b'{'; 1_000_000]]);
    let keys: HashSet<Vec<u8>> = keys.into_iter().collect();
    for algorithm in [FIXED, LOG] {
        for (number, key) in (0..).zip(&keys) {
            limiter.acquire_n(&hourly(1000, algorithm), key, 1 + number).await.unwrap();
        }
        for (number, key) in (0..).zip(&keys) {
            let left = limiter.peek(&hourly(1000, algorithm), key).await.unwrap().remaining();
            assert_eq!(left, 999 - number, "{:?}", String::from_utf8_lossy(&key[..key.len().min(20)]));
        }
    }
    let stored: Vec<Vec<u8>> = redis::from_redis_value(server.command(&[b"KEYS", b"*"])).unwrap();
    assert_eq!(stored.len(), 2 * keys.len());
    for name in &stored {
        is_sound(name);
    }
}

#[tokio::test]
async fn memory_keeps_all_keys_apart() {
    let limiter = Limiter::in_memory();
    let rule = hourly(5000, FIXED);
    let keys: Vec<String> = (0..4000).map(|number| format!("{{{number}}}:%")).collect();
    for (number, key) in (0..).zip(&keys) {
        limiter.acquire_n(&rule, key, number).await.unwrap();
    }
    for (number, key) in (0..).zip(&keys) {
        assert_eq!(limiter.peek(&rule, key).await.unwrap().remaining(), 5000 - number);
    }
}

/// In the error, and nowhere else: not for clients, nor in the log.
#[tokio::test]
async fn a_refusal_names_its_key_if_the_limiter_is_built_so() {
    let server = RedisServer::start();
    for url in ["memory://", &server.url()] {
        for names in [false, true] {
            let (log, _guard) = Log::install();
            let builder = Limiter::builder(url).deadline(PATIENCE).keys_in_refusals(names);
            let limiter = builder.build().await.unwrap();
            let (rule, other) = (hourly(1, FIXED), Rule::new("other", 5, Duration::from_secs(3600)));
            let places = Rule::new("places", 1, Duration::from_secs(30)).with_algorithm(Algorithm::Concurrent);
            let key = format!("alice-{}", fresh_key());
            limiter.acquire(&rule, &key).await.unwrap();
            let _place = limiter.acquire(&places, &key).await.unwrap();
            let stacked = [(&other, Key::new("bob"), 1), (&rule, Key::new(&key), 1)];
            for refused in [
                limiter.acquire(&rule, &key).await.unwrap_err(),
                limiter.acquire_n(&rule, &key, 2).await.unwrap_err(),
                limiter.acquire_within(&rule, &key, Duration::from_millis(1)).await.unwrap_err(),
                limiter.acquire(&places, &key).await.unwrap_err(),
                limiter.acquire_all(&stacked).await.unwrap_err(),
            ] {
                assert_eq!(refused.key().cloned(), names.then(|| Key::new(&key)), "{url}: {refused}");
                let says = format!("`{}` for the key `{key}` is limited to", refused.rule());
                assert_eq!(refused.to_string().starts_with(&says), names, "{url}: {refused}");
                assert_eq!(refused.limit(), 1);
                let response = axum::response::IntoResponse::into_response(refused);
                let body = axum::body::to_bytes(response.into_body(), 10_000).await.unwrap();
                assert!(!String::from_utf8_lossy(&body).contains("alice"), "{body:?}");
            }
            let total = Rule::new("total", 1, Duration::from_secs(3600));
            let shared = [(&other, Key::new("carol"), 1), (&total, Key::NONE, 1)];
            limiter.reset(&total, Key::NONE).await.unwrap();
            limiter.acquire(&total, Key::NONE).await.unwrap();
            for refused in [
                limiter.acquire(&total, Key::NONE).await.unwrap_err(),
                limiter.acquire_within(&total, Key::NONE, Duration::from_millis(1)).await.unwrap_err(),
                limiter.acquire_all(&shared).await.unwrap_err(),
            ] {
                assert_eq!(refused.key(), None, "{url}: {refused}");
            }
            assert_eq!(log.with("alice"), []);
        }
    }
}
