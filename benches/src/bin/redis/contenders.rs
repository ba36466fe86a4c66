//! The limiters that are compared, each by its own shortest way to ask Redis about a key.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use limitador_0_6::{
    AsyncRateLimiter,
    limit::{Limit, Namespace},
    storage::redis::{AsyncRedisStorage, CachedRedisStorage},
};
use ratelimit_harness::RedisServer;
use ratelimit_runtime::{Limiter, OnStoreError, Rule};
use redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, IntoConnectionInfo, ProtocolVersion,
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

use crate::{place::Place, scripts::Script};

pub(crate) const HOUR: Duration = Duration::from_secs(3600);
const HOUR_MS: u64 = 3_600_000;
/// A machine that is busy with something else is no outage.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Ours,
    /// Counted in this process.
    InMemory,
    /// Counted on a cluster.
    InCluster,
    /// Several limiters, each with a connection of its own.
    Several(u8),
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
            Self::InMemory => "  in memory",
            Self::InCluster => "  on a cluster of three",
            Self::Several(4) => "  4 connections",
            Self::Several(_) => "  16 connections",
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
        !matches!(self, Self::LimitadorCached | Self::Prefetching | Self::Users | Self::InMemory)
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
    Several(Arc<Vec<(Limiter, Rule)>>),
    Raw(Arc<(MultiplexedConnection, Script)>),
    RawCluster(Arc<(ClusterConnection, Script)>),
    Trypema(Arc<(Arc<RedisRateLimiterProvider>, RateLimit)>),
    ThrottleKit(Arc<throttle_kit::RateLimiter<RedisBackend>>),
    Limitador(Arc<(AsyncRateLimiter, Namespace)>),
}

impl Contender {
    /// Connects to servers, on this runtime. Other limiters count in windows of an hour.
    pub(crate) async fn new(kind: Kind, place: &Place, rule: Rule) -> Self {
        let count = rule.count();
        match kind {
            Kind::Ours | Kind::InMemory | Kind::InCluster | Kind::OneByOne | Kind::Forgetful | Kind::Prefetching => {
                let rule = match kind {
                    Kind::Forgetful => rule.with_denial_cache(false),
                    Kind::Prefetching => rule.with_prefetch(100),
                    _ => rule,
                };
                Self::Ours(Arc::new((limiter(&place.url(), kind != Kind::OneByOne).await, rule)))
            }
            Kind::Several(connections) => {
                let mut limiters = Vec::new();
                for _ in 0..connections {
                    limiters.push((limiter(&place.url(), true).await, rule));
                }
                Self::Several(Arc::new(limiters))
            }
            Kind::Users | Kind::Raw => {
                let script = match kind {
                    Kind::Users => Script::of_users(rule, place).await,
                    _ => Script::of_ours(rule).await,
                };
                // So that the servers know the script.
                let teacher = limiter(&place.url(), false).await;
                let teaching = Rule::new("teaching", count, rule.period()).with_algorithm(rule.algorithm());
                for key in 0..100 {
                    teacher.acquire(&teaching, key).await.expect("an admitted call");
                    teacher.reset(&teaching, key).await.expect("an answer");
                }
                match place {
                    Place::Single(_) | Place::Elsewhere(_) | Place::Memory => {
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

impl Asked for Vec<(Limiter, Rule)> {
    async fn admits(&self, key: u64) -> bool {
        let at = fastrand::usize(..self.len());
        self[at].admits(key).await
    }
}

impl Asked for (MultiplexedConnection, Script) {
    async fn admits(&self, key: u64) -> bool {
        let (connection, script) = self;
        script.admits(&connection.clone().send_packed_command(&script.command(key)).await.expect("an answer")).await
    }
}

impl Asked for (ClusterConnection, Script) {
    async fn admits(&self, key: u64) -> bool {
        let (connection, script) = self;
        script.admits(&connection.clone().req_packed_command(&script.command(key)).await.expect("an answer")).await
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

pub(crate) async fn limiter(url: &str, coalescing: bool) -> Limiter {
    let builder = Limiter::builder(url).on_store_error(OnStoreError::Deny).deadline(PATIENCE).coalescing(coalescing);
    builder.build().await.expect("a limiter")
}

/// With what the limiter chooses for itself: the newer protocol, and to send at once.
fn address(url: &str) -> ConnectionInfo {
    let info = url.into_connection_info().expect("an address");
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    info.set_redis_settings(settings).set_tcp_settings(TcpSettings::default().set_nodelay(true))
}
