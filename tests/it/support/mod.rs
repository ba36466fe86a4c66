//! Limiters and rules as most tests want them.

pub(crate) mod holds;
pub(crate) mod log;
pub(crate) mod plain_store;
pub(crate) mod servers;

use std::fmt::Debug;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ratelimit_harness::RedisServer;
use ratelimit_runtime::conformance::{Subject, store_of};
use ratelimit_runtime::{
    Algorithm, Cause, Limiter, ManualClock, OnStoreError, Permit, Refill, RequestPerMinute, Rule, Store,
};

pub(crate) const FIXED: Algorithm = Algorithm::FixedWindow { align: false };
pub(crate) const ALIGNED: Algorithm = Algorithm::FixedWindow { align: true };
pub(crate) const LOG: Algorithm = Algorithm::SlidingLog;
pub(crate) const SLIDING: Algorithm = Algorithm::SlidingWindow { buckets: 1, weighted: true };
pub(crate) const ADDED_UP: Algorithm = Algorithm::SlidingWindow { buckets: 2, weighted: false };
/// These hold the rule's count, see [`By::by`].
pub(crate) const BUCKET: Algorithm = Algorithm::TokenBucket { burst: 1, refill: Refill::Greedy };
pub(crate) const INTERVAL: Algorithm = Algorithm::TokenBucket { burst: 1, refill: Refill::Interval };
/// Algorithms that count a charge in full until a time, and then not at all.
pub(crate) const WINDOWS: [Algorithm; 3] = [FIXED, ALIGNED, LOG];
/// All algorithms that answer at once.
pub(crate) const ALGORITHMS: [Algorithm; 7] = [FIXED, ALIGNED, LOG, SLIDING, BUCKET, INTERVAL, ADDED_UP];

/// A rule counted by an algorithm, whatever its count.
pub(crate) trait By {
    fn by(self, algorithm: Algorithm) -> Self;
}

impl By for Rule {
    /// A token bucket holds as much as the rule's count.
    fn by(self, algorithm: Algorithm) -> Self {
        self.with_algorithm(match algorithm {
            Algorithm::TokenBucket { refill, .. } => Algorithm::TokenBucket { burst: self.count().max(1), refill },
            other => other,
        })
    }
}

/// Longest time that a charge counts, for a token bucket of [`By::by`].
pub(crate) fn lifetime(rule: &Rule) -> Duration {
    match rule.algorithm() {
        Algorithm::SlidingWindow { buckets, weighted: true } => {
            rule.period() + rule.period() / u32::try_from(buckets).unwrap()
        }
        _ => rule.period(),
    }
}

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// A deadline that only tests about deadlines reach.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// A key no other test and no earlier call has.
pub(crate) fn fresh_key() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// `count` in an hour: nothing of it expires while a test runs.
pub(crate) fn hourly(count: u64, algorithm: Algorithm) -> Rule {
    Rule::new("item", count, Duration::from_secs(3600)).by(algorithm)
}

/// On that server, where no failure hides behind a policy.
pub(crate) async fn limiter_on(server: &RedisServer) -> Limiter {
    let builder = Limiter::builder(&server.url()).deadline(PATIENCE).on_store_error(OnStoreError::Deny);
    builder.build().await.unwrap()
}

pub(crate) async fn in_memory(clock: &ManualClock) -> Limiter {
    Limiter::builder("memory://").clock(clock.clone()).build().await.unwrap()
}

/// A limiter whose store and whose waiting live by a clock of the test.
#[derive(Debug)]
pub(crate) struct Timed {
    pub(crate) limiter: Limiter,
    clock: ManualClock,
    server: Option<RedisServer>,
}

impl Timed {
    pub(crate) async fn memory() -> Self {
        let clock = ManualClock::new();
        Self { limiter: in_memory(&clock).await, clock, server: None }
    }

    pub(crate) async fn redis() -> Self {
        Self::on(RedisServer::builder().controlled_clock().start()).await
    }

    /// On a server with a controlled clock.
    pub(crate) async fn on(server: RedisServer) -> Self {
        let clock = ManualClock::new();
        let builder = Limiter::builder(&server.url()).clock(clock.clone()).deadline(PATIENCE);
        let builder = match server.tls() {
            #[cfg(feature = "rustls")]
            Some(files) => builder.ca_certificate(std::fs::read(&files.ca_pem).unwrap()),
            _ => builder,
        };
        let limiter = builder.on_store_error(OnStoreError::Deny).build().await.unwrap();
        Self { limiter, clock, server: Some(server) }
    }

    pub(crate) async fn both() -> [Self; 2] {
        [Self::memory().await, Self::redis().await]
    }

    /// By the clock of the waiting, which starts, as that of a server does, with a full hour.
    pub(crate) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// The clock of the waiting.
    pub(crate) fn clock(&self) -> ManualClock {
        self.clock.clone()
    }

    pub(crate) fn advance(&self, by: Duration) {
        if let Some(server) = &self.server {
            server.clock().advance(by);
        }
        self.clock.advance(by);
    }

    /// Sets a server's clock to what another shows.
    pub(crate) fn set_to(&self, other: &Self) {
        let server = self.server().expect("a server");
        server.clock().set_micros(u64::try_from(other.now().as_micros()).unwrap());
    }

    /// The server of [`Timed::redis`].
    pub(crate) fn server(&self) -> Option<&RedisServer> {
        self.server.as_ref()
    }

    pub(crate) fn name(&self) -> &'static str {
        if self.server().is_some() { "Redis" } else { "memory" }
    }

    /// For a message: the store and the rule.
    pub(crate) fn of(&self, rule: &Rule) -> String {
        format!("{}, {} per {:?} by {:?}", self.name(), rule.count(), rule.period(), rule.algorithm())
    }
}

impl Subject for Timed {
    fn store(&self) -> &dyn Store {
        store_of(&self.limiter)
    }

    fn now(&self) -> Duration {
        self.server.as_ref().map_or(self.clock.now(), |server| Duration::from_micros(server.clock().now_micros()))
    }

    fn advance(&self, by: Duration) {
        Timed::advance(self, by);
    }
}

/// Number of these calls, one after another, that are admitted. The others must be refused because
/// of the limit.
pub(crate) async fn admitted(limiter: &Limiter, rule: &Rule, key: u64, calls: u64) -> u64 {
    let mut admitted = 0;
    for _ in 0..calls {
        admitted += u64::from(is_admitted(limiter.acquire(rule, key).await));
    }
    admitted
}

/// Admitted, or refused because of the limit; nothing else.
pub(crate) fn is_admitted(answer: Result<Permit, RequestPerMinute>) -> bool {
    match answer {
        Ok(_) => true,
        Err(refused) => {
            assert_eq!(refused.cause(), Cause::Exceeded, "{refused}");
            assert!(refused.retry_after().is_some(), "{refused}");
            false
        }
    }
}

/// A refusal because of the limit.
#[track_caller]
pub(crate) fn exceeded<T: Debug>(answer: Result<T, RequestPerMinute>) -> RequestPerMinute {
    let refused = answer.unwrap_err();
    assert_eq!(refused.cause(), Cause::Exceeded, "{refused}");
    refused
}

/// Fails where a test would hang.
pub(crate) async fn ends<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(3 * PATIENCE, future).await.expect("it ends within half a minute")
}

/// Waits until the condition holds, and fails after half a minute.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let until_it_holds = async {
        while !holds().await {
            tokio::time::sleep(10 * MS).await;
        }
    };
    let limit = Duration::from_secs(30);
    tokio::time::timeout(limit, until_it_holds).await.unwrap_or_else(|_| panic!("not within {limit:?}: {what}"));
}

/// Lets every other task of a current-thread runtime go as far as it can without time passing.
pub(crate) async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}
