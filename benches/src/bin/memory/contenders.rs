//! The limiters that are compared, each by its own shortest way to ask about a key.

use std::{
    collections::HashMap,
    num::NonZeroU32,
    pin::pin,
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use governor::{DefaultKeyedRateLimiter, Quota};
use ratelimit_runtime::{Limiter, RequestPerMinute, Rule, limit_request_per_time};
use throttle_kit::InMemoryBackend;

/// More than is ever asked for.
pub(crate) const PLENTY: u32 = 1_000_000_000;
/// The limit of a test that asks for more.
pub(crate) const EXACT: u32 = 10_000;
const HOUR: Duration = Duration::from_secs(3600);

/// A key as the contenders take it.
#[derive(Clone, Copy)]
pub(crate) enum Key<'a> {
    Number(u64),
    Text(&'a String),
}

/// A limiter that is asked about keys.
pub(crate) trait Contender: Sync {
    const NAME: &'static str;

    /// A limiter that admits `count` calls of a key within the hour, and stores at least `keys` of
    /// them. `None` if it cannot.
    fn new(count: u32, keys: usize, text: bool) -> Option<Self>
    where
        Self: Sized;

    /// True if one more call is admitted.
    fn admits(&self, key: Key<'_>) -> bool;
}

/// Polls what is done at the first poll, where it is.
#[inline(always)]
#[allow(clippy::inline_always)] // so that no future is moved, which an `await` does not do either
pub(crate) fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("a limiter in memory answers at once"),
    }
}

/// An annotated function.
pub(crate) struct Annotated(Limiter, u32);

impl Contender for Annotated {
    const NAME: &'static str = "annotated function";

    fn new(count: u32, keys: usize, _text: bool) -> Option<Self> {
        Some(Self(in_memory(keys), count))
    }

    #[inline]
    fn admits(&self, key: Key<'_>) -> bool {
        match (key, self.1) {
            (Key::Number(key), 1) => now(one(&self.0, key)).is_ok(),
            (Key::Number(key), PLENTY) => now(many(&self.0, key)).is_ok(),
            (Key::Text(key), 1) => now(one_text(&self.0, key)).is_ok(),
            (Key::Text(key), PLENTY) => now(many_texts(&self.0, key)).is_ok(),
            (Key::Number(key), EXACT) => now(exact(&self.0, key)).is_ok(),
            _ => panic!("there is no function with this limit"),
        }
    }
}

#[limit_request_per_time(prefix = "item", ttl = 1, unit = Hours, count = 1, key = id, limiter = limiter)]
async fn one(limiter: &Limiter, id: u64) -> Result<(), RequestPerMinute> {
    Ok(())
}

#[limit_request_per_time(prefix = "item", ttl = 1, unit = Hours, count = const { PLENTY as u64 }, key = id, limiter = limiter)]
async fn many(limiter: &Limiter, id: u64) -> Result<(), RequestPerMinute> {
    Ok(())
}

#[limit_request_per_time(prefix = "item", ttl = 1, unit = Hours, count = const { EXACT as u64 }, key = id, limiter = limiter)]
async fn exact(limiter: &Limiter, id: u64) -> Result<(), RequestPerMinute> {
    Ok(())
}

#[limit_request_per_time(prefix = "item", ttl = 1, unit = Hours, count = 1, key = id, limiter = limiter)]
async fn one_text(limiter: &Limiter, id: &str) -> Result<(), RequestPerMinute> {
    Ok(())
}

#[limit_request_per_time(prefix = "item", ttl = 1, unit = Hours, count = const { PLENTY as u64 }, key = id, limiter = limiter)]
async fn many_texts(limiter: &Limiter, id: &str) -> Result<(), RequestPerMinute> {
    Ok(())
}

/// The process-wide limiter, which gives a permit. Each contest has a rule of its own there.
pub(crate) struct Ours(Rule);

pub(crate) static INSTALLED: LazyLock<Limiter> = LazyLock::new(|| {
    let limiter = in_memory(10_000_000);
    limiter.clone().install().expect("there is none yet");
    limiter
});

fn in_memory(keys: usize) -> Limiter {
    now(Limiter::builder("memory://").max_keys(keys).build()).expect("nothing is wrong with that")
}

fn admits(limiter: &Limiter, rule: &Rule, key: Key<'_>) -> bool {
    match key {
        Key::Number(key) => now(limiter.acquire(rule, key)).is_ok(),
        Key::Text(key) => now(limiter.acquire(rule, key.as_str())).is_ok(),
    }
}

impl Contender for Ours {
    const NAME: &'static str = "Limiter::acquire";

    fn new(count: u32, _keys: usize, _text: bool) -> Option<Self> {
        static CONTESTS: AtomicU64 = AtomicU64::new(0);
        let prefix = format!("contest-{}", CONTESTS.fetch_add(1, Ordering::Relaxed)).leak();
        Some(Self(Rule::new(prefix, count.into(), HOUR)))
    }

    #[inline]
    fn admits(&self, key: Key<'_>) -> bool {
        admits(&INSTALLED, &self.0, key)
    }
}

/// A limiter that is not installed: it has to be known who holds it.
pub(crate) struct OfItsOwn(Limiter, Rule);

impl Contender for OfItsOwn {
    const NAME: &'static str = "the same, not process-wide";

    fn new(count: u32, keys: usize, _text: bool) -> Option<Self> {
        Some(Self(in_memory(keys), Rule::new("item", count.into(), HOUR)))
    }

    #[inline]
    fn admits(&self, key: Key<'_>) -> bool {
        admits(&self.0, &self.1, key)
    }
}

/// Its keys are of one type, so that there is one for numbers and one for texts.
pub(crate) enum Governor {
    Numbers(DefaultKeyedRateLimiter<u64>),
    Texts(DefaultKeyedRateLimiter<String>),
}

impl Contender for Governor {
    const NAME: &'static str = "governor";

    fn new(count: u32, _keys: usize, text: bool) -> Option<Self> {
        let burst = NonZeroU32::new(count)?;
        let quota = Quota::with_period(HOUR / count)?.allow_burst(burst);
        Some(if text {
            Self::Texts(DefaultKeyedRateLimiter::keyed(quota))
        } else {
            Self::Numbers(DefaultKeyedRateLimiter::keyed(quota))
        })
    }

    fn admits(&self, key: Key<'_>) -> bool {
        match (self, key) {
            (Self::Numbers(limiter), Key::Number(key)) => limiter.check_key(&key).is_ok(),
            (Self::Texts(limiter), Key::Text(key)) => limiter.check_key(key).is_ok(),
            _ => panic!("made for the other kind of keys"),
        }
    }
}

/// Its keys are texts only.
pub(crate) struct ThrottleKit(throttle_kit::RateLimiter<InMemoryBackend>);

impl Contender for ThrottleKit {
    const NAME: &'static str = "throttle-kit";

    fn new(count: u32, _keys: usize, _text: bool) -> Option<Self> {
        let quota = throttle_kit::Quota::from_parts(HOUR / count, count);
        Some(Self(throttle_kit::RateLimiter::new(quota, InMemoryBackend::new())))
    }

    fn admits(&self, key: Key<'_>) -> bool {
        match key {
            Key::Number(key) => now(self.0.check(itoa::Buffer::new().format(key))).allowed,
            Key::Text(key) => now(self.0.check(key)).allowed,
        }
    }
}

/// Its keys are maps of texts.
pub(crate) struct Limitador(limitador::RateLimiter, limitador::limit::Namespace);

impl Contender for Limitador {
    const NAME: &'static str = "limitador";

    fn new(count: u32, keys: usize, _text: bool) -> Option<Self> {
        let limiter = limitador::RateLimiter::new(keys as u64);
        let variable = "key".try_into().ok()?;
        limiter.add_limit(limitador::limit::Limit::new("bench", count.into(), 3600, vec![], vec![variable]));
        Some(Self(limiter, "bench".into()))
    }

    fn admits(&self, key: Key<'_>) -> bool {
        let key = match key {
            Key::Number(key) => key.to_string(),
            Key::Text(key) => key.clone(),
        };
        let context = HashMap::from([("key".to_owned(), key)]).into();
        !self.0.check_rate_limited_and_update(&self.1, &context, 1).expect("memory does not fail").limited
    }
}

/// It has no keys: a limiter stands for one of them.
pub(crate) struct LeakyBucket(leaky_bucket::RateLimiter);

impl Contender for LeakyBucket {
    const NAME: &'static str = "leaky-bucket";

    fn new(count: u32, keys: usize, _text: bool) -> Option<Self> {
        let count = usize::try_from(count).ok()?;
        let limiter = leaky_bucket::RateLimiter::builder().initial(count).max(count).refill(1).interval(HOUR).build();
        (keys == 1).then_some(Self(limiter))
    }

    fn admits(&self, _key: Key<'_>) -> bool {
        self.0.try_acquire(1)
    }
}
