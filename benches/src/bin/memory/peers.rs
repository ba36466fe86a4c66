//! The limiters that ours is compared with, each as a user would call it.

use std::{
    collections::{HashMap, VecDeque},
    hint::black_box,
    num::NonZeroU32,
    sync::Arc,
    time::Instant,
};

use dashmap::DashMap;
use governor::{DefaultKeyedRateLimiter, Quota, clock::Clock as _, middleware::StateInformationMiddleware};
use ratelimit_runtime::Limiter;
use throttle_kit::InMemoryBackend;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    cases::{Against, Case, Way},
    ours::{BURST, COST, HOUR, REFILL, ours},
    turns::{Keys, Run, now, run},
};

/// The calls that ours are compared with. Each key has been asked about once.
pub(crate) fn other<K: Keys<Key: 'static>>(case: &Case, limiter: &'static Limiter, keys: &'static K) -> Run {
    let count = count(case.refused);
    match case.against {
        Against::OneRule => {
            let way = if case.way == Way::TwoAnnotated { Way::Annotated } else { Way::Acquire };
            ours(&Case { way, ..*case }, limiter, keys)
        }
        Against::Governor if case.way == Way::AcquireN => {
            let (limiter, cost) = (governor::<K>(case.refused), NonZeroU32::new(COST).expect("not 0"));
            filled(case, keys, move |key| limiter.check_key_n(key, cost).expect("it fits").is_ok())
        }
        Against::Governor => {
            let limiter = governor::<K>(case.refused);
            filled(case, keys, move |key| limiter.check_key(key).is_ok())
        }
        Against::GovernorNumbers => {
            let limiter = governor::<K>(case.refused).with_middleware::<StateInformationMiddleware>();
            filled(case, keys, move |key| match limiter.check_key(key) {
                Ok(state) => {
                    black_box(state.remaining_burst_capacity());
                    true
                }
                Err(refused) => {
                    black_box(refused.wait_time_from(limiter.clock().now()));
                    false
                }
            })
        }
        Against::TwoGovernors => {
            let [item, other] = [(); 2].map(|()| governor::<K>(case.refused));
            filled(case, keys, move |key| item.check_key(key).is_ok() && other.check_key(key).is_ok())
        }
        Against::ThrottleKit => {
            let quota = throttle_kit::Quota::from_parts(HOUR / count, count);
            let limiter = throttle_kit::RateLimiter::new(quota, InMemoryBackend::new());
            filled(case, keys, move |key| K::with_text(key, |key| now(limiter.check(key)).allowed))
        }
        // Its keys are maps of texts.
        Against::Limitador => {
            let limiter = limitador::RateLimiter::new(case.keys);
            let (namespace, variable) = ("bench".into(), "key".try_into().expect("a name"));
            limiter.add_limit(limitador::limit::Limit::new("bench", count.into(), 3600, vec![], vec![variable]));
            filled(case, keys, move |key| {
                let context = HashMap::from([("key".to_owned(), K::with_text(key, str::to_owned))]).into();
                !limiter.check_rate_limited_and_update(&namespace, &context, 1).expect("memory does not fail").limited
            })
        }
        Against::OwnLog => {
            let logs = DashMap::<K::Key, VecDeque<Instant>>::new();
            filled(case, keys, move |key| {
                let (mut log, now) = (logs.entry(key.clone()).or_default(), Instant::now());
                while log.front().is_some_and(|time| *time + HOUR <= now) {
                    log.pop_front();
                }
                let fits = log.len() < count as usize;
                if fits {
                    log.push_back(now);
                }
                fits
            })
        }
        // A permit is dropped when its call ends. In rows with refusals the first one is kept.
        Against::Semaphores => {
            let (places, refused) = (DashMap::<K::Key, Arc<Semaphore>>::new(), case.refused);
            filled(case, keys, move |key| {
                let semaphore = {
                    let places = places.entry(key.clone()).or_insert_with(|| Arc::new(Semaphore::new(count as usize)));
                    Arc::clone(&places)
                };
                let place = semaphore.try_acquire_owned();
                if refused { place.map(OwnedSemaphorePermit::forget).is_ok() } else { place.is_ok() }
            })
        }
        // It has no keys.
        Against::LeakyBucket => {
            let count = count as usize;
            let mut builder = leaky_bucket::RateLimiter::builder();
            let limiter = builder.initial(count).max(count).refill(1).interval(HOUR).build();
            filled(case, keys, move |_| limiter.try_acquire(1))
        }
    }
}

/// The calls of a limiter that has been asked about all keys, in the order in which they were made.
fn filled<K: Keys>(case: &Case, keys: &'static K, admits: impl Fn(&K::Key) -> bool + Sync + 'static) -> Run {
    (0..case.keys).for_each(|index| assert!(keys.with(index, &admits), "the first call"));
    run(keys, case.keys, admits)
}

/// 1, or more than is ever called for.
const fn count(refused: bool) -> u32 {
    if refused { 1 } else { 1_000_000_000 }
}

/// A limiter with the quota of our token bucket.
pub(crate) fn governor<K: Keys>(refused: bool) -> DefaultKeyedRateLimiter<K::Key> {
    let (count, burst) = if refused { (1, 1) } else { (REFILL, BURST) };
    let burst = NonZeroU32::new(burst).expect("not 0");
    DefaultKeyedRateLimiter::keyed(Quota::with_period(HOUR / count).expect("not 0").allow_burst(burst))
}
