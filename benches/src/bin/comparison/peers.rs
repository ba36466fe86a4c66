//! The limiters that are compared, each by its own shortest way to ask about a key.

use std::{collections::HashMap, num::NonZeroU32, panic, sync::Arc, time::Duration};

use governor::{DefaultKeyedRateLimiter, clock::Clock as _};
use limitador_0_6::{AsyncRateLimiter, limit::Limit, storage::redis::AsyncRedisStorage};
use ratelimit_runtime::{Algorithm, Cause, Limiter, Refill, Rule};
use redis::aio::{ConnectionManager, MultiplexedConnection};
use throttle_kit::{Quota, RedisBackend};
use trypema::{
    RateLimit, RateLimitDecision, RateLimiterBuilder as _, WindowSize,
    redis::{RedisKey, RedisRateLimiterProvider},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    FixedWindow,
    TokenBucket,
    SlidingLog,
    Governor,
    ThrottleKit,
    Trypema,
    Limitador,
    Script,
}

/// The answer to one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Admitted,
    /// With the time after which to ask again, if it was told.
    Refused(Option<Duration>),
    Failed,
}

/// The script that the documentation of `INCR` suggests, which counts refused calls, too.
const SCRIPT: &str = "\
local count = redis.call('INCR', KEYS[1])
if count == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
return count";

impl Peer {
    pub(crate) const ALL: [Self; 8] = [
        Self::FixedWindow,
        Self::TokenBucket,
        Self::SlidingLog,
        Self::Governor,
        Self::ThrottleKit,
        Self::Trypema,
        Self::Limitador,
        Self::Script,
    ];

    pub(crate) fn is_ours(self) -> bool {
        matches!(self, Self::FixedWindow | Self::TokenBucket | Self::SlidingLog)
    }

    /// Governor decides in the process, so that no server can fail.
    pub(crate) fn asks_redis(self) -> bool {
        self != Self::Governor
    }

    /// The head of its column.
    pub(crate) fn title(self) -> String {
        match self {
            Self::FixedWindow => "`FixedWindow`".to_owned(),
            Self::TokenBucket => "`TokenBucket`".to_owned(),
            Self::SlidingLog => "`SlidingLog`".to_owned(),
            Self::Governor => format!("governor {}, per process", version("governor", "")),
            Self::ThrottleKit => format!("throttle-kit {}", version("throttle-kit", "")),
            Self::Trypema => format!("trypema {}", version("trypema", "")),
            Self::Limitador => format!("limitador {}", version("limitador", "0.6")),
            Self::Script => "script of Redis' documentation".to_owned(),
        }
    }

    fn rule(self, count: u64, period: Duration) -> Rule {
        let rule = Rule::new("comparison", count, period);
        match self {
            Self::TokenBucket => rule.with_algorithm(Algorithm::TokenBucket { burst: count, refill: Refill::Greedy }),
            Self::SlidingLog => rule.with_algorithm(Algorithm::SlidingLog),
            _ => rule,
        }
    }
}

/// The version of a package, by the lock file. Of several, the one that begins with a prefix.
fn version(package: &str, prefix: &str) -> &'static str {
    let lock = include_str!("../../../../Cargo.lock");
    let name = format!("name = \"{package}\"\nversion = \"{prefix}");
    let (_, rest) = lock.split_once(&name).expect("a locked package");
    let at = lock.len() - rest.len() - prefix.len();
    lock[at..].split('"').next().expect("a version")
}

/// A limiter that admits `count` calls of a key in each period.
#[derive(Clone)]
pub(crate) enum Client {
    Ours(Limiter, Rule),
    Governor(Arc<DefaultKeyedRateLimiter<String>>),
    ThrottleKit(Arc<throttle_kit::RateLimiter<RedisBackend>>),
    Trypema(Arc<RedisRateLimiterProvider>, RateLimit),
    Limitador(Arc<AsyncRateLimiter>),
    Script(MultiplexedConnection, Arc<redis::Script>, u64, Duration),
}

impl Client {
    /// As its documentation shows, with its default settings.
    pub(crate) async fn connect(peer: Peer, url: &str, count: u64, period: Duration) -> Result<Self, String> {
        match peer {
            Peer::FixedWindow | Peer::TokenBucket | Peer::SlidingLog => {
                let limiter = Limiter::connect(url).await.map_err(words)?;
                Ok(Self::Ours(limiter, peer.rule(count, period)))
            }
            Peer::Governor => {
                let count = u32::try_from(count).ok().and_then(NonZeroU32::new).ok_or("it takes a NonZeroU32")?;
                let quota = governor::Quota::with_period(period / count.get()).ok_or("a quota of no time")?;
                Ok(Self::Governor(Arc::new(DefaultKeyedRateLimiter::keyed(quota.allow_burst(count)))))
            }
            Peer::ThrottleKit => {
                let backend = RedisBackend::connect(url).await.map_err(words)?;
                let count = u32::try_from(count).map_err(words)?;
                let interval = panic::catch_unwind(|| Quota::per_second(count).interval());
                let interval = interval.map_err(|_| "its `Quota` panics")?.mul_f64(period.as_secs_f64());
                Ok(Self::ThrottleKit(Arc::new(throttle_kit::RateLimiter::new(
                    Quota::from_parts(interval, count),
                    backend,
                ))))
            }
            Peer::Trypema => {
                let client = redis::Client::open(url).map_err(words)?;
                let connection = ConnectionManager::new(client).await.map_err(words)?;
                let window = WindowSize::seconds(period.as_secs()).map_err(words)?;
                let provider = RedisRateLimiterProvider::builder(connection).window_size(window).build();
                #[allow(clippy::cast_precision_loss)]
                let rate = RateLimit::per_second(count as f64 / period.as_secs_f64()).map_err(words)?;
                Ok(Self::Trypema(provider.map_err(words)?, rate))
            }
            Peer::Limitador => {
                let storage = AsyncRedisStorage::new(url).await.map_err(|error| format!("{error:?}"))?;
                let limiter = AsyncRateLimiter::new_with_storage(Box::new(storage));
                let count = i64::try_from(count).map_err(words)?;
                limiter.add_limit(Limit::new("comparison", count, period.as_secs(), Vec::<String>::new(), ["key"]));
                Ok(Self::Limitador(Arc::new(limiter)))
            }
            Peer::Script => {
                let client = redis::Client::open(url).map_err(words)?;
                let connection = client.get_multiplexed_async_connection().await.map_err(words)?;
                Ok(Self::Script(connection, Arc::new(redis::Script::new(SCRIPT)), count, period))
            }
        }
    }

    pub(crate) async fn ask(&self, key: &str) -> Answer {
        match self {
            Self::Ours(limiter, rule) => match limiter.acquire(rule, key).await {
                Ok(_) => Answer::Admitted,
                Err(refused) if refused.cause() == Cause::Exceeded => Answer::Refused(refused.retry_after()),
                Err(_) => Answer::Failed,
            },
            Self::Governor(limiter) => match limiter.check_key(&key.to_owned()) {
                Ok(()) => Answer::Admitted,
                Err(refused) => Answer::Refused(Some(refused.wait_time_from(limiter.clock().now()))),
            },
            Self::ThrottleKit(limiter) => match limiter.check(key).await {
                answer if answer.allowed => Answer::Admitted,
                answer => Answer::Refused(answer.retry_after),
            },
            Self::Trypema(provider, rate) => {
                let key = RedisKey::new_or_panic(key.to_owned());
                match provider.absolute().inc(&key, rate, 1).await {
                    Ok(RateLimitDecision::Allowed) => Answer::Admitted,
                    Ok(RateLimitDecision::Rejected { retry_after, .. }) => Answer::Refused(Some(retry_after)),
                    Ok(_) => Answer::Refused(None),
                    Err(_) => Answer::Failed,
                }
            }
            Self::Limitador(limiter) => {
                let values = HashMap::from([("key".to_owned(), key.to_owned())]);
                match limiter.check_rate_limited_and_update(&"comparison".into(), &values, 1, true).await {
                    Ok(answer) if !answer.limited => Answer::Admitted,
                    Ok(answer) => Answer::Refused(
                        answer.counters.iter().filter_map(limitador_0_6::counter::Counter::expires_in).max(),
                    ),
                    Err(_) => Answer::Failed,
                }
            }
            Self::Script(connection, script, count, period) => {
                let mut call = script.key(key);
                let period = u64::try_from(period.as_millis()).expect("fits");
                match call.arg(period).invoke_async::<u64>(&mut connection.clone()).await {
                    Ok(counted) if counted <= *count => Answer::Admitted,
                    Ok(_) => Answer::Refused(None),
                    Err(_) => Answer::Failed,
                }
            }
        }
    }
}

#[allow(clippy::needless_pass_by_value)] // an argument of `map_err`
fn words(error: impl ToString) -> String {
    error.to_string()
}
