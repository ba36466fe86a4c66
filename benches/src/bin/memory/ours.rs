//! The ways into this crate that are measured, as a user writes them.

use std::{hint::black_box, mem, time::Duration};

use ratelimit_runtime::{
    Algorithm, Key, Limiter, RateKey, Refill, RequestPerMinute, Rule, config::Rules, limit_concurrent_requests,
    limit_request_per_time,
};

use crate::{
    cases::{Against, Case, Name, On, Way},
    turns::{Keys, Run, now, run},
};

type Answer = Result<(), RequestPerMinute>;

pub(crate) const HOUR: Duration = Duration::from_secs(3600);
/// Permits that come back to a token bucket in an hour. They are few: when a bucket is called again, it is not full. A
/// full one need not be stored.
pub(crate) const REFILL: u32 = 100;
/// Permits of a token bucket: more than all calls of a row.
pub(crate) const BURST: u32 = 100_000_000;
/// The cost of a call of `acquire_n`.
pub(crate) const COST: u32 = 2;

/// 1, or more than is ever called for.
const fn count(name: Name, refused: bool) -> u64 {
    match name {
        _ if refused => 1,
        Name::TokenBucket => REFILL as u64,
        Name::SlidingLog => 9_999_999, // its largest
        _ => 1_000_000_000,
    }
}

/// The burst of the token bucket: 1, or more than all calls of a row.
const fn burst(refused: bool) -> u64 {
    if refused { 1 } else { BURST as u64 }
}

/// The rule of the functions below. It is evaluated at compile time.
const fn rule(prefix: &'static str, name: Name, refused: bool) -> Rule {
    let (count, burst) = (count(name, refused), burst(refused));
    let algorithm = match name {
        Name::FixedWindow => Algorithm::FixedWindow { align: false },
        Name::SlidingWindow => Algorithm::SlidingWindow { buckets: 1, weighted: true },
        Name::TokenBucket => Algorithm::TokenBucket { burst, refill: Refill::Greedy },
        Name::SlidingLog => Algorithm::SlidingLog,
        Name::LeakyBucket => Algorithm::LeakyBucket { queue: 0 },
        Name::Concurrent => Algorithm::Concurrent,
    };
    Rule::new(prefix, count, HOUR).with_algorithm(algorithm)
}

/// The annotated functions of an algorithm: one with a rule, and one with two.
macro_rules! functions {
    ($name:ident, $one:ident $(, $two:ident)?: #[$limit:ident($($argument:tt)*)]) => {
        #[$limit(prefix = "item", count = const { count(Name::$name, R) }, key = id, $($argument)*)]
        async fn $one<K: RateKey, const R: bool>(id: K) -> Answer {
            Ok(())
        }
        functions! { $($two)?: $name, $limit, $($argument)* }
    };
    (: $($nothing:tt)*) => {};
    ($two:ident: $name:ident, $limit:ident, $($argument:tt)*) => {
        #[$limit(prefix = "item", count = const { count(Name::$name, R) }, key = id, $($argument)*)]
        #[$limit(prefix = "other", count = const { count(Name::$name, R) }, key = id, $($argument)*)]
        async fn $two<K: RateKey, const R: bool>(id: K) -> Answer {
            Ok(())
        }
    };
}

functions! { FixedWindow, fixed_window, fixed_windows: #[limit_request_per_time(ttl = 1, unit = Hours)] }
functions! {
    SlidingWindow, sliding_window, sliding_windows:
    #[limit_request_per_time(ttl = 1, unit = Hours, algorithm = SlidingWindow(buckets = 1))]
}
functions! {
    TokenBucket, token_bucket, token_buckets:
    #[limit_request_per_time(ttl = 1, unit = Hours, algorithm = TokenBucket(burst = const { burst(R) }))]
}
functions! {
    SlidingLog, sliding_log, sliding_logs: #[limit_request_per_time(ttl = 1, unit = Hours, algorithm = SlidingLog)]
}
functions! {
    LeakyBucket, leaky_bucket: #[limit_request_per_time(ttl = 1, unit = Hours, algorithm = LeakyBucket(queue = 0))]
}
functions! { Concurrent, concurrent, concurrents: #[limit_concurrent_requests(lease = "1h")] }

#[limit_request_per_time(
    prefix = "item", ttl = 1, unit = Hours, count = const { count(Name::FixedWindow, R) }, key = id, limiter = limiter
)]
async fn with_limiter<K: RateKey, const R: bool>(limiter: &Limiter, id: K) -> Answer {
    Ok(())
}

/// A limiter with room for all counters of a row. Rows are run in processes of their own, so it can be installed.
pub(crate) fn limiter(case: &Case) -> &'static Limiter {
    let mut builder = Limiter::builder("memory://").max_keys(20_000_000);
    match case.on {
        On::Installed | On::Own => {}
        On::Namespace => builder = builder.namespace("tenant-1"),
        On::Rules => {
            let count = count(case.name, case.refused);
            let rules = format!("[rules.item]\ncount = {count}\n[rules.other]\ncount = {count}");
            builder = builder.rules(Rules::parse(&rules).expect("valid rules"));
        }
    }
    let limiter = Box::leak(Box::new(now(builder.build()).expect("valid settings")));
    if case.on != On::Own {
        limiter.clone().install().expect("none is installed yet");
    }
    limiter
}

/// Stores the counters of all keys. In rows with refusals their places stay occupied.
pub(crate) fn fill<K: Keys>(case: &Case, limiter: &Limiter, keys: &K, indices: impl Iterator<Item = u64>) {
    let is_two = case.way.has_two_rules();
    for index in indices {
        for prefix in ["item", "other"].iter().take(if is_two { 2 } else { 1 }) {
            let rule = rule(prefix, case.name, case.refused);
            let permit = keys.with(index, |key| now(limiter.acquire(&rule, K::argument(key)))).expect("the first call");
            if case.refused {
                mem::forget(permit);
            }
        }
    }
}

/// The calls of a row.
pub(crate) fn ours<K: Keys>(case: &Case, limiter: &'static Limiter, keys: &'static K) -> Run {
    let reads = case.against == Against::GovernorNumbers;
    macro_rules! ways {
        ($($name:ident, $one:ident $(, $two:ident)?;)+) => {
            match (case.name, case.way, case.refused) {
                $(
                    (Name::$name, Way::Annotated, false) => {
                        run(keys, case.keys, |key| now($one::<_, false>(K::argument(key))).is_ok())
                    }
                    (Name::$name, Way::Annotated, true) => {
                        run(keys, case.keys, |key| now($one::<_, true>(K::argument(key))).is_ok())
                    }
                    $((Name::$name, Way::TwoAnnotated, false) => {
                        run(keys, case.keys, |key| now($two::<_, false>(K::argument(key))).is_ok())
                    })?
                    (Name::$name, Way::Acquire, false) if reads => run(keys, case.keys, |key| {
                        let rule = const { &rule("item", Name::$name, false) };
                        let permit = now(limiter.acquire(rule, K::argument(key)));
                        permit.map(|permit| black_box(permit.remaining())).is_ok()
                    }),
                    (Name::$name, Way::Acquire, true) if reads => run(keys, case.keys, |key| {
                        let rule = const { &rule("item", Name::$name, true) };
                        let permit = now(limiter.acquire(rule, K::argument(key)));
                        permit.map_err(|refused| black_box(refused.retry_after())).is_ok()
                    }),
                    (Name::$name, Way::Acquire, false) => run(keys, case.keys, |key| {
                        now(limiter.acquire(const { &rule("item", Name::$name, false) }, K::argument(key))).is_ok()
                    }),
                    (Name::$name, Way::Acquire, true) => run(keys, case.keys, |key| {
                        now(limiter.acquire(const { &rule("item", Name::$name, true) }, K::argument(key))).is_ok()
                    }),
                    (Name::$name, Way::AcquireN, false) => run(keys, case.keys, |key| {
                        let rule = const { &rule("item", Name::$name, false) };
                        now(limiter.acquire_n(rule, K::argument(key), COST.into())).is_ok()
                    }),
                    (Name::$name, Way::AcquireAll, false) => run(keys, case.keys, |key| {
                        let key = Key::new(K::argument(key));
                        let [item, other] = const {
                            [&rule("item", Name::$name, false), &rule("other", Name::$name, false)]
                        };
                        now(limiter.acquire_all(&[(item, key.clone(), 1), (other, key, 1)])).is_ok()
                    }),
                )+
                _ => panic!("there is no such row"),
            }
        };
    }
    match (case.on, case.way, case.refused) {
        (On::Own, Way::Annotated, false) => {
            run(keys, case.keys, |key| now(with_limiter::<_, false>(limiter, K::argument(key))).is_ok())
        }
        (On::Own, Way::Annotated, true) => {
            run(keys, case.keys, |key| now(with_limiter::<_, true>(limiter, K::argument(key))).is_ok())
        }
        _ => ways! {
            FixedWindow, fixed_window, fixed_windows;
            SlidingWindow, sliding_window, sliding_windows;
            TokenBucket, token_bucket, token_buckets;
            SlidingLog, sliding_log, sliding_logs;
            LeakyBucket, leaky_bucket;
            Concurrent, concurrent, concurrents;
        },
    }
}
