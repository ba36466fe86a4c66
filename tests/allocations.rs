//! Allocations of the memory store, in a process of its own, as they are counted for a whole
//! process.

use std::{
    pin::pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use ratelimit_runtime::{
    Algorithm, Key, Limiter, ManualClock, Refill, RequestPerMinute, Rule, config::Rules, limit_concurrent_requests,
    limit_request_per_time,
};

const DAY: Duration = Duration::from_secs(86_400);
const MILLION: u64 = 1_000_000;

fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("memory answers at once"),
    }
}

fn allocations(call: impl Fn()) -> u64 {
    call(); // the counter is new, and so may be what is made once
    allocation_counter::measure(|| (0..100).for_each(|_| call())).count_total
}

#[test]
fn an_admitted_call_allocates_nothing() {
    #[limit_request_per_time(prefix = "annotated", ttl = 1, unit = Days, count = 1_000_000, key = id)]
    async fn annotated(id: u64) -> Result<u64, RequestPerMinute> {
        Ok(id)
    }

    let limiter = Limiter::in_memory();
    let fixed = Rule::new("item", MILLION, DAY);
    let bucket = Algorithm::TokenBucket { burst: MILLION, refill: Refill::Interval };
    for rule in [fixed, fixed.with_algorithm(Algorithm::FixedWindow { align: true }), fixed.with_algorithm(bucket)] {
        assert_eq!(allocations(|| drop(now(limiter.acquire(&rule, 4711)).unwrap())), 0, "{rule:?}");
        assert_eq!(allocations(|| drop(now(limiter.acquire(&rule, "user-0004711")).unwrap())), 0, "{rule:?}");
        assert_eq!(allocations(|| drop(now(limiter.acquire(&rule, ("eu", 4711))).unwrap())), 0, "{rule:?}");
        assert_eq!(allocations(|| drop(now(limiter.acquire_n(&rule, 4712, 2)).unwrap())), 0, "{rule:?}");
        let refund = || assert_eq!(now(now(limiter.acquire(&rule, 4713)).unwrap().refund()).unwrap(), 1);
        assert_eq!(allocations(refund), 0, "{rule:?}");
    }
    assert_eq!(allocations(|| assert!(now(annotated(1)).is_ok())), 0);
}

/// Its counter has expired, and is stored still.
#[test]
fn a_call_of_a_bucket_that_is_full_again_allocates_nothing() {
    let clock = ManualClock::new();
    let limiter = now(Limiter::builder("memory://").clock(clock.clone()).build()).unwrap();
    for algorithm in [Algorithm::TokenBucket { burst: 9, refill: Refill::Greedy }, Algorithm::LeakyBucket { queue: 0 }]
    {
        let rule = Rule::new("item", 9, Duration::from_secs(9)).with_algorithm(algorithm);
        let call = || {
            clock.advance(Duration::from_secs(1));
            drop(now(limiter.acquire(&rule, 4711)).unwrap());
        };
        assert_eq!(allocations(call), 0, "{algorithm:?}");
    }
}

#[test]
fn an_admitted_call_of_several_limits_allocates_nothing() {
    const DAILY: Rule = Rule::new("daily", MILLION, DAY);

    #[limit_request_per_time(rule = DAILY, key = id, limiter = limiter)]
    #[limit_request_per_time(prefix = "hourly", ttl = 1, unit = Hours, count = 1_000_000, key = id)]
    async fn two(limiter: &Limiter, id: u64) -> Result<(), RequestPerMinute> {
        Ok(())
    }

    #[limit_request_per_time(rule = DAILY, key = id, limiter = limiter)]
    #[limit_request_per_time(prefix = "hourly", ttl = 1, unit = Hours, count = 1_000_000, key = id)]
    #[limit_request_per_time(prefix = "all", ttl = 1, unit = Hours, count = 1_000_000)]
    async fn three(limiter: &Limiter, id: u64) -> Result<(), RequestPerMinute> {
        Ok(())
    }

    let rules = Rules::parse("[rules.daily]\ncount = 500_000").unwrap();
    let with_rules = now(Limiter::builder("memory://").rules(rules).build()).unwrap();
    for limiter in [&Limiter::in_memory(), &with_rules] {
        assert_eq!(allocations(|| now(two(limiter, 1)).unwrap()), 0, "{limiter:?}");
    }
    let limiter = Limiter::in_memory();
    assert_eq!(allocations(|| now(three(&limiter, 1)).unwrap()), 0);
}

#[test]
fn a_place_allocates_nothing() {
    #[limit_concurrent_requests(prefix = "place", count = 2, lease = "1h", limiter = limiter)]
    async fn place(limiter: &Limiter) -> Result<(), RequestPerMinute> {
        Ok(())
    }

    let limiter = Limiter::in_memory();
    let rule = Rule::new("item", 2, Duration::from_secs(3600)).with_algorithm(Algorithm::Concurrent);
    assert_eq!(allocations(|| drop(now(limiter.acquire(&rule, 4711)).unwrap())), 0);
    assert_eq!(allocations(|| now(place(&limiter)).unwrap()), 0);
}

#[test]
fn a_permit_of_two_rules_is_one_allocation() {
    let limiter = Limiter::in_memory();
    let [daily, all] = ["daily", "all"].map(|prefix| Rule::new(prefix, MILLION, DAY));
    let charges = [(&daily, Key::new(4711), 1), (&all, Key::NONE, 1)];
    assert_eq!(allocations(|| drop(now(limiter.acquire_all(&charges)).unwrap())), 100);
    let place = Rule::new("place", 2, DAY).with_algorithm(Algorithm::Concurrent);
    let charges = [(&daily, Key::new(4711), 1), (&place, Key::new(4711), 1)];
    assert_eq!(allocations(|| drop(now(limiter.acquire_all(&charges)).unwrap())), 100);
}

/// One for the call, and one for the charges of more than two rules.
#[test]
fn a_permit_of_three_rules_is_two_allocations() {
    #[limit_request_per_time(prefix = "day", ttl = 1, unit = Days, count = 1_000_000, limiter = limiter, permit = _permit)]
    #[limit_request_per_time(prefix = "hour", ttl = 1, unit = Hours, count = 1_000_000)]
    #[limit_request_per_time(prefix = "minute", ttl = 1, unit = Minutes, count = 1_000_000)]
    async fn three(limiter: &Limiter) -> Result<(), RequestPerMinute> {
        Ok(())
    }

    let limiter = Limiter::in_memory();
    assert_eq!(allocations(|| now(three(&limiter)).unwrap()), 200);
}

#[test]
fn a_refused_call_allocates_nothing() {
    #[limit_concurrent_requests(prefix = "place", count = 1, lease = "1h", limiter = limiter)]
    async fn place(limiter: &Limiter) -> Result<(), RequestPerMinute> {
        std::future::pending().await
    }

    let limiter = Limiter::in_memory();
    for algorithm in [
        Algorithm::FixedWindow { align: false },
        Algorithm::SlidingLog,
        Algorithm::SlidingWindow { buckets: 1, weighted: true },
        Algorithm::TokenBucket { burst: 1, refill: Refill::Greedy },
        Algorithm::LeakyBucket { queue: 0 },
        Algorithm::Concurrent,
    ] {
        let rule = Rule::new("item", 1, DAY).with_algorithm(algorithm);
        let _place = now(limiter.acquire(&rule, 4711)).unwrap();
        assert_eq!(allocations(|| drop(now(limiter.acquire(&rule, 4711)).unwrap_err())), 0, "{rule:?}");
    }
    let mut running = pin!(place(&limiter));
    assert!(running.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert_eq!(allocations(|| drop(now(place(&limiter)).unwrap_err())), 0);
}

#[test]
fn an_expired_log_gives_its_memory_back() {
    let clock = ManualClock::new();
    let limiter = now(Limiter::builder("memory://").clock(clock.clone()).build()).unwrap();
    let rule = Rule::new("item", MILLION, Duration::from_secs(1)).with_algorithm(Algorithm::SlidingLog);
    let call = || drop(now(limiter.acquire(&rule, 4711)).unwrap());
    let bytes = |calls: u32| {
        let logged = || {
            (0..calls).for_each(|_| {
                clock.advance(Duration::from_micros(5));
                call();
            });
        };
        allocation_counter::measure(logged).bytes_current
    };
    assert!(bytes(100_000) > 1_000_000);
    clock.advance(Duration::from_secs(2));
    assert!(bytes(1) < -1_000_000);
}

#[test]
fn a_million_fixed_windows_take_at_most_64_bytes_each() {
    for keys in [MILLION, MILLION * 5 / 4] {
        let mut limiter = None;
        let allocated = allocation_counter::measure(|| {
            let made = now(Limiter::builder("memory://").max_keys(2_000_000).build()).unwrap();
            let rule = Rule::new("item", 1, DAY);
            (0..keys).for_each(|key| drop(now(made.acquire(&rule, key)).unwrap()));
            limiter = Some(made);
        });
        let bytes = u64::try_from(allocated.bytes_current).unwrap() / keys;
        assert!((32..=64).contains(&bytes), "{bytes} bytes a key at {keys}");
    }
}
