//! The limiters that are compared, each by its own shortest way to ask Redis about a key.

use std::{
    collections::HashMap,
    fmt::Write as _,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures_util::StreamExt as _;
use limitador_0_6::{
    AsyncRateLimiter,
    limit::{Limit, Namespace},
    storage::redis::{AsyncRedisStorage, CachedRedisStorage},
};
use ratelimit_harness::RedisServer;
use ratelimit_runtime::{Limiter, OnStoreError, Rule};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, Value,
    aio::{ConnectionLike as _, ConnectionManager, ConnectionManagerConfig, MultiplexedConnection},
    cluster::ClusterClient,
    cluster_async::ClusterConnection,
    io::tcp::TcpSettings,
};
use throttle_kit::{Quota, RedisBackend};
use trypema::{
    RateLimit, RateLimitDecision, RateLimiterBuilder as _, WindowSize,
    redis::{RedisKey, RedisRateLimiterProvider},
};

use crate::place::Place;

const HOUR: Duration = Duration::from_secs(3600);
const HOUR_MS: u64 = 3_600_000;
/// A machine that is busy with something else is no outage.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Ours,
    /// Each decision in a call of its own.
    OneByOne,
    /// Each refusal the server's.
    Forgetful,
    /// A hundred permits at a time.
    Prefetching,
    /// The bare client, and the script that a user would write.
    Users,
    /// The bare client, and our script.
    Raw,
    Trypema,
    ThrottleKit,
    Limitador,
    LimitadorCached,
}

/// The script that the documentation of `INCR` suggests. It counts refused calls, too.
const USERS: &str = "\
local count = redis.call('INCR', KEYS[1])
if count == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return count <= tonumber(ARGV[1]) and count or -1";

impl Kind {
    pub(crate) const ALL: [Self; 10] = [
        Self::Ours,
        Self::OneByOne,
        Self::Forgetful,
        Self::Prefetching,
        Self::Users,
        Self::Raw,
        Self::Trypema,
        Self::ThrottleKit,
        Self::Limitador,
        Self::LimitadorCached,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ours => "ratelimit-runtime",
            Self::OneByOne => "  coalescing off",
            Self::Forgetful => "  denial cache off",
            Self::Prefetching => "  prefetch of 100",
            Self::Users => "redis client, user's script",
            Self::Raw => "redis client, our script",
            Self::Trypema => "trypema",
            Self::ThrottleKit => "throttle-kit",
            Self::Limitador => "limitador 0.6",
            Self::LimitadorCached => "limitador 0.6, cached",
        }
    }

    /// True if its count can be read on the server at once.
    pub(crate) fn counts_at_once(self) -> bool {
        !matches!(self, Self::LimitadorCached | Self::Prefetching | Self::Users)
    }

    /// True if it reads keys by a command of its own, and not in a script.
    pub(crate) fn sends_mget(self) -> bool {
        matches!(self, Self::Limitador | Self::LimitadorCached)
    }

    /// How often a key was admitted, by what is stored under a name; 0 for what is no counter.
    pub(crate) fn admitted(self, name: &[u8], value: &str) -> u64 {
        match self {
            Self::Trypema if !name.ends_with(b":absolute:t") => 0,
            Self::Trypema | Self::Limitador | Self::LimitadorCached | Self::Users => value.parse().expect("a number"),
            // The time at which all of it is refilled; one comes back each hour.
            Self::ThrottleKit => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970").as_millis();
                let ahead = u128::from(value.parse::<u64>().expect("a time")).saturating_sub(now);
                u64::try_from(ahead.div_ceil(HOUR_MS.into())).expect("fits")
            }
            // See `fixed_window/decide.lua`.
            _ => value.parse::<u64>().expect("a number") / 450_001,
        }
    }
}

/// One of the limiters, that many callers ask.
pub(crate) enum Contender {
    Ours(Arc<(Limiter, Rule)>),
    Raw(Arc<(MultiplexedConnection, Script)>),
    RawCluster(Arc<(ClusterConnection, Script)>),
    Trypema(Arc<(Arc<RedisRateLimiterProvider>, RateLimit)>),
    ThrottleKit(Arc<throttle_kit::RateLimiter<RedisBackend>>),
    Limitador(Arc<(AsyncRateLimiter, Namespace)>),
}

impl Contender {
    /// Connects to servers, on this runtime. It admits `count` calls of a key within the hour.
    pub(crate) async fn new(kind: Kind, place: &Place, count: u64) -> Self {
        let rule = Rule::new("item", count, HOUR);
        match kind {
            Kind::Ours | Kind::OneByOne | Kind::Forgetful | Kind::Prefetching => {
                let rule = match kind {
                    Kind::Forgetful => rule.with_denial_cache(false),
                    Kind::Prefetching => rule.with_prefetch(100),
                    _ => rule,
                };
                Self::Ours(Arc::new((limiter(&place.url(), kind != Kind::OneByOne).await, rule)))
            }
            Kind::Users | Kind::Raw => {
                let script = match kind {
                    Kind::Users => Script::of_users(count, place).await,
                    _ => Script::of_ours(count).await,
                };
                // So that the servers know the script.
                let teacher = limiter(&place.url(), false).await;
                let teaching = Rule::new("teaching", count, HOUR);
                for key in 0..100 {
                    teacher.acquire(&teaching, key).await.expect("an admitted call");
                    teacher.reset(&teaching, key).await.expect("an answer");
                }
                match place {
                    Place::Single(_) | Place::Elsewhere(_) => {
                        let client = Client::open(address(&place.url())).expect("an address");
                        let patient = AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
                        let connection = client.get_multiplexed_async_connection_with_config(&patient).await;
                        Self::Raw(Arc::new((connection.expect("a connection"), script)))
                    }
                    Place::Cluster(cluster) => {
                        let client = ClusterClient::builder(cluster.nodes().iter().map(RedisServer::url))
                            .tcp_settings(TcpSettings::default().set_nodelay(true))
                            .use_protocol(ProtocolVersion::RESP3)
                            .build();
                        let connection = client.expect("addresses").get_async_connection().await;
                        Self::RawCluster(Arc::new((connection.expect("a connection"), script)))
                    }
                }
            }
            Kind::Trypema => {
                let client = Client::open(address(&place.url())).expect("an address");
                let patient = ConnectionManagerConfig::new().set_response_timeout(Some(PATIENCE));
                let connection = ConnectionManager::new_with_config(client, patient).await.expect("a connection");
                let builder = RedisRateLimiterProvider::builder(connection).cleanup_enabled(false);
                let provider = builder.window_size(WindowSize::seconds_or_panic(HOUR.as_secs())).build();
                // It takes a rate, makes a count of it again, and rounds down.
                #[allow(clippy::cast_precision_loss)]
                let rate = RateLimit::per_hour_or_panic(count as f64 + 0.5);
                Self::Trypema(Arc::new((provider.expect("nothing is wrong with that"), rate)))
            }
            Kind::ThrottleKit => {
                let backend = RedisBackend::connect(&place.url()).await.expect("a connection");
                let count = u32::try_from(count).expect("fits");
                Self::ThrottleKit(Arc::new(throttle_kit::RateLimiter::new(Quota::from_parts(HOUR, count), backend)))
            }
            Kind::Limitador | Kind::LimitadorCached => {
                let limiter = if kind == Kind::Limitador {
                    let storage = AsyncRedisStorage::new(&place.url()).await.expect("a connection");
                    AsyncRateLimiter::new_with_storage(Box::new(storage))
                } else {
                    let storage = CachedRedisStorage::new(&place.url()).await.expect("a connection");
                    AsyncRateLimiter::new_with_storage(Box::new(storage))
                };
                let count = i64::try_from(count).expect("fits");
                limiter.add_limit(Limit::new("bench", count, HOUR.as_secs(), Vec::<String>::new(), ["key"]));
                Self::Limitador(Arc::new((limiter, "bench".into())))
            }
        }
    }
}

/// A limiter that is asked about keys.
pub(crate) trait Asked: Send + Sync + 'static {
    /// True if one more call is admitted.
    fn admits(&self, key: u64) -> impl Future<Output = bool> + Send;
}

impl Asked for (Limiter, Rule) {
    async fn admits(&self, key: u64) -> bool {
        let (limiter, rule) = self;
        limiter.acquire(rule, key).await.is_ok()
    }
}

impl Asked for (MultiplexedConnection, Script) {
    async fn admits(&self, key: u64) -> bool {
        let (connection, script) = self;
        script.admits(&connection.clone().send_packed_command(&script.command(key)).await.expect("an answer"))
    }
}

impl Asked for (ClusterConnection, Script) {
    async fn admits(&self, key: u64) -> bool {
        let (connection, script) = self;
        script.admits(&connection.clone().req_packed_command(&script.command(key)).await.expect("an answer"))
    }
}

impl Asked for (Arc<RedisRateLimiterProvider>, RateLimit) {
    async fn admits(&self, key: u64) -> bool {
        let (limiter, rate) = self;
        let key = RedisKey::new_or_panic(key.to_string());
        limiter.absolute().inc(&key, rate, 1).await.expect("an answer") == RateLimitDecision::Allowed
    }
}

impl Asked for throttle_kit::RateLimiter<RedisBackend> {
    async fn admits(&self, key: u64) -> bool {
        self.check(itoa::Buffer::new().format(key)).await.allowed
    }
}

impl Asked for (AsyncRateLimiter, Namespace) {
    async fn admits(&self, key: u64) -> bool {
        let (limiter, namespace) = self;
        let values = HashMap::from([("key".to_owned(), key.to_string())]);
        let answer = limiter.check_rate_limited_and_update(namespace, &values, 1, false).await;
        !answer.expect("an answer").limited
    }
}

async fn limiter(url: &str, coalescing: bool) -> Limiter {
    let builder = Limiter::builder(url).on_store_error(OnStoreError::Deny).deadline(PATIENCE).coalescing(coalescing);
    builder.build().await.expect("a limiter")
}

/// With what the limiter chooses for itself: the newer protocol, and to send at once.
fn address(url: &str) -> ConnectionInfo {
    let info = url.into_connection_info().expect("an address");
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    info.set_redis_settings(settings).set_tcp_settings(TcpSettings::default().set_nodelay(true))
}

/// The command by which the limiter decides on one call, in two pieces: a key goes between them.
pub(crate) struct Script {
    digest: String,
    before_key: String,
    after_key: String,
    arguments: Vec<Vec<u8>>,
}

impl Script {
    /// As it reaches a server.
    async fn of_ours(count: u64) -> Self {
        const KEY: u64 = 424_242;
        let server = RedisServer::start();
        let limiter = limiter(&server.url(), false).await;
        let rule = Rule::new("item", count, HOUR);
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
        Self { digest, before_key: before_key.to_owned(), after_key: after_key.to_owned(), arguments: words.collect() }
    }

    /// Known to all servers of a place.
    async fn of_users(count: u64, place: &Place) -> Self {
        let urls = match place {
            Place::Single(_) | Place::Elsewhere(_) => vec![place.url()],
            Place::Cluster(cluster) => cluster.nodes().iter().map(RedisServer::url).collect(),
        };
        let mut digest = String::new();
        for url in urls {
            let client = Client::open(url).expect("an address");
            let mut connection = client.get_multiplexed_async_connection().await.expect("a connection");
            let mut load = redis::cmd("SCRIPT");
            digest = load.arg("LOAD").arg(USERS).query_async(&mut connection).await.expect("a digest");
        }
        let arguments = [count, HOUR_MS].map(|number| number.to_string().into_bytes()).to_vec();
        Self { digest, before_key: "item:".to_owned(), after_key: String::new(), arguments }
    }

    fn command(&self, key: u64) -> Cmd {
        let mut name = String::with_capacity(self.before_key.len() + 20 + self.after_key.len());
        let _ = write!(name, "{}{key}{}", self.before_key, self.after_key);
        let mut command = Cmd::with_capacity(4 + self.arguments.len(), 160);
        command.arg("EVALSHA").arg(&self.digest).arg(1).arg(name);
        for argument in &self.arguments {
            command.arg(argument);
        }
        command
    }

    /// See `fixed_window/decide.lua`.
    fn admits(&self, reply: &Value) -> bool {
        match reply {
            Value::Int(number) => *number >= 0,
            Value::Array(numbers) => matches!(numbers.first(), Some(Value::Int(0..))),
            Value::Nil => true,
            other => panic!("{} answers {other:?}", self.digest),
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
