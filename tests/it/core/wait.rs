//! Waiting callers: served in the order of arrival, woken one at a time, bounded in number.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Waker};
use std::time::Duration;

use ratelimit_harness::RedisServer;
use ratelimit_runtime::{Algorithm, Cause, Limiter, ManualClock, RequestPerMinute, Rule, limit_request_per_time};
use tokio::task::JoinSet;

use crate::support::plain_store::on_plain_store;
use crate::support::{
    ALGORITHMS, ALIGNED, By, FIXED, INTERVAL, LOG, admitted, ends, exceeded, fresh_key, in_memory, lifetime,
    limiter_on, settle,
};

const US: Duration = Duration::from_micros(1);
const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// Waiting callers, and the numbers of those admitted, in that order.
struct Line {
    limiter: Limiter,
    tasks: JoinSet<Result<(), RequestPerMinute>>,
    served: Arc<Mutex<Vec<u32>>>,
}

impl Line {
    fn new(limiter: &Limiter) -> Self {
        Self { limiter: limiter.clone(), tasks: JoinSet::new(), served: Arc::default() }
    }

    /// Returns when the caller waits, or has been served.
    async fn join(&mut self, number: u32, rule: Rule, key: u64, longest: Duration) {
        let (limiter, served) = (self.limiter.clone(), Arc::clone(&self.served));
        self.tasks.spawn(async move {
            let _permit = limiter.acquire_within(&rule, key, longest).await?;
            served.lock().unwrap().push(number);
            Ok(())
        });
        settle().await;
    }

    fn served(&self) -> Vec<u32> {
        self.served.lock().unwrap().clone()
    }

    async fn all(self) -> Vec<Result<(), RequestPerMinute>> {
        ends(self.tasks.join_all()).await
    }
}

#[tokio::test]
async fn waiting_callers_are_served_in_the_order_of_arrival() {
    for algorithm in ALGORITHMS {
        for per_second in [1, 3] {
            let clock = ManualClock::new();
            let mut line = Line::new(&in_memory(&clock).await);
            let rule = Rule::new("order", per_second, SECOND).by(algorithm);
            for number in 0..10 {
                line.join(number, rule, 1, HOUR).await;
            }
            let started = clock.now();
            while line.served().len() < 10 {
                clock.advance(25 * MS);
                settle().await;
                let served = line.served();
                assert_eq!(served, (0..10).collect::<Vec<_>>()[..served.len()], "{algorithm:?}");
                assert!(clock.now() - started <= 10 * lifetime(&rule), "{served:?}, {algorithm:?}");
            }
            assert!(line.all().await.iter().all(Result::is_ok));
        }
    }
}

/// Each window serves its count, and no caller a millisecond early.
#[tokio::test]
async fn waiting_callers_are_served_when_a_window_ends() {
    for algorithm in [FIXED, ALIGNED, LOG, INTERVAL] {
        for per_second in [1, 3] {
            let clock = ManualClock::new();
            let mut line = Line::new(&in_memory(&clock).await);
            let rule = Rule::new("order", per_second, SECOND).by(algorithm);
            for number in 0..10 {
                line.join(number, rule, 1, HOUR).await;
            }
            let at_once = usize::try_from(per_second).unwrap();
            for served in (at_once..=10).step_by(at_once) {
                assert_eq!(line.served(), (0..10).collect::<Vec<_>>()[..served], "{algorithm:?}");
                clock.advance(SECOND - MS);
                settle().await;
                assert_eq!(line.served().len(), served, "{algorithm:?}");
                clock.advance(MS);
                settle().await;
            }
            assert_eq!(line.served(), (0..10).collect::<Vec<_>>(), "{algorithm:?}");
            assert!(line.all().await.iter().all(Result::is_ok));
        }
    }
}

/// Later callers, who come when there is room again, do not overtake those who wait.
#[tokio::test]
async fn a_later_caller_does_not_overtake_waiting_ones() {
    let clock = ManualClock::new();
    let limiter = in_memory(&clock).await;
    let mut line = Line::new(&limiter);
    let rule = Rule::new("late", 1, SECOND);
    for number in 0..3 {
        line.join(number, rule, 1, HOUR).await;
    }
    // No waiting caller has run yet when the latecomer asks.
    clock.advance(SECOND);
    let mut latecomer = pin!(limiter.acquire_within(&rule, 1, HOUR));
    assert!(latecomer.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    settle().await;
    assert_eq!(line.served(), [0, 1]);
    clock.advance(SECOND);
    settle().await;
    assert_eq!(line.served(), [0, 1, 2]);
    clock.advance(SECOND);
    let _ = ends(latecomer).await.unwrap();
}

#[tokio::test]
async fn a_wait_known_to_be_too_long_is_refused_at_once() {
    for algorithm in [FIXED, LOG] {
        let clock = ManualClock::new();
        let limiter = in_memory(&clock).await;
        let rule = Rule::new("patience", 1, SECOND).by(algorithm);
        limiter.acquire_within(&rule, 1, Duration::ZERO).await.unwrap();
        for longest in [Duration::ZERO, MS, SECOND - MS] {
            let refused = exceeded(ends(limiter.acquire_within(&rule, 1, longest)).await);
            assert_eq!(refused.retry_after(), Some(SECOND), "{algorithm:?}");
        }
        let mut line = Line::new(&limiter);
        line.join(0, rule, 1, SECOND).await;
        assert_eq!(line.tasks.len(), 1);
        assert!(line.served().is_empty());
        // Behind the first, whose permit is the next one: another one comes a second later.
        clock.advance(SECOND / 2);
        let refused = exceeded(ends(limiter.acquire_within(&rule, 1, SECOND / 2 - MS)).await);
        assert_eq!(refused.retry_after(), Some(SECOND / 2 + SECOND), "{algorithm:?}");
        clock.advance(SECOND / 2);
        settle().await;
        assert_eq!(line.served(), [0], "{algorithm:?}");
    }
}

/// Waits are told in whole milliseconds, rounded up. So they seem to end after the maximum here.
#[tokio::test]
async fn a_turn_within_the_last_millisecond_of_the_maximum_is_waited_for() {
    for algorithm in [FIXED, LOG, Algorithm::LeakyBucket { queue: 9 }] {
        let clock = ManualClock::new();
        let limiter = in_memory(&clock).await;
        let rule = Rule::new("patience", 1, SECOND).by(algorithm);
        clock.advance(100 * US);
        limiter.acquire_within(&rule, 1, Duration::ZERO).await.unwrap();
        clock.advance(35 * US);
        let mut line = Line::new(&limiter);
        line.join(0, rule, 1, SECOND - 20 * US).await;
        assert_eq!(line.tasks.try_join_next().map(|task| task.unwrap().err()), None, "{algorithm:?}");
        clock.advance(SECOND);
        settle().await;
        assert_eq!(line.served(), [0], "{algorithm:?}");
    }
}

/// A caller behind others leaves when its own maximum is over, and is not charged.
#[tokio::test]
async fn no_caller_waits_longer_than_its_maximum() {
    for algorithm in [FIXED, LOG] {
        let clock = ManualClock::new();
        let limiter = in_memory(&clock).await;
        let mut line = Line::new(&limiter);
        let rule = Rule::new("patience", 1, SECOND).by(algorithm);
        for (number, longest) in [(0, HOUR), (1, HOUR), (2, SECOND + 500 * MS), (3, HOUR), (4, 2 * SECOND)] {
            line.join(number, rule, 1, longest).await;
        }
        for _ in 0..8 {
            clock.advance(SECOND / 2);
            settle().await;
        }
        assert_eq!(line.served(), [0, 1, 3], "{algorithm:?}");
        let refused: Vec<_> = line.all().await.into_iter().filter_map(Result::err).collect();
        assert_eq!(refused.len(), 2);
        assert!(refused.iter().all(|refused| refused.cause() == Cause::Exceeded), "{refused:?}");
    }
}

#[tokio::test]
async fn the_number_of_waiting_callers_is_bounded() {
    let clock = ManualClock::new();
    let limiter = Limiter::builder("memory://").clock(clock.clone()).max_waiting(3).build().await.unwrap();
    let rule = Rule::new("bounded", 1, SECOND);
    let mut line = Line::new(&limiter);
    for number in 0..4 {
        line.join(number, rule, 1, HOUR).await;
    }
    exceeded(ends(limiter.acquire_within(&rule, 1, HOUR)).await);
    // Per counter: another one has a line of its own.
    for number in 10..14 {
        line.join(number, rule, 2, HOUR).await;
    }
    exceeded(ends(limiter.acquire_within(&rule, 2, HOUR)).await);
    assert_eq!(line.served(), [0, 10]);
    clock.advance(SECOND);
    settle().await;
    assert_eq!(line.served().len(), 4);
    line.join(4, rule, 1, HOUR).await;
    exceeded(ends(limiter.acquire_within(&rule, 1, HOUR)).await);
    for _ in 0..3 {
        clock.advance(SECOND);
        settle().await;
    }
    assert!(line.all().await.iter().all(Result::is_ok));
}

/// One caller asks, however many wait: about one request for each admitted call, and one for each
/// full window.
#[tokio::test]
async fn one_waiting_caller_at_a_time_asks_the_store() {
    let (limiter, store, clock) = on_plain_store();
    let rule = Rule::new("stampede", 10, SECOND);
    let mut line = Line::new(&limiter);
    for number in 0..200 {
        line.join(number, rule, 1, HOUR).await;
    }
    let at_start = store.calls();
    assert!(at_start <= 12, "{at_start} questions of 200 callers, 10 of them admitted");
    clock.advance(SECOND - MS);
    settle().await;
    assert_eq!(store.calls(), at_start, "no caller is woken before there is room");
    clock.advance(MS);
    for window in 1..20 {
        for _ in 0..20 {
            settle().await;
        }
        assert_eq!(line.served().len(), 10 * (window + 1));
        let asked = store.calls() - at_start;
        assert!(asked <= 12 * window, "{asked} questions in {window} windows of 10");
        clock.advance(SECOND);
    }
    assert_eq!(line.served(), (0..200).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_queue_delays_no_other_key_and_no_caller_who_does_not_wait() {
    let clock = ManualClock::new();
    let limiter = in_memory(&clock).await;
    let (rule, other) = (Rule::new("item", 1, SECOND), Rule::new("other", 1, SECOND));
    let mut line = Line::new(&limiter);
    for number in 0..5 {
        line.join(number, rule, 1, HOUR).await;
    }
    ends(limiter.acquire_within(&rule, 2, HOUR)).await.unwrap();
    ends(limiter.acquire_within(&other, 1, HOUR)).await.unwrap();
    exceeded(limiter.acquire(&rule, 1).await);
    // Between the start of a window and the wake-up of the first waiter, a caller who does not wait
    // may be served.
    clock.advance(SECOND);
    limiter.acquire(&rule, 1).await.unwrap();
    settle().await;
    assert_eq!(line.served(), [0]);
    clock.advance(SECOND);
    settle().await;
    assert_eq!(line.served(), [0, 1]);
}

/// The store is slow for one counter: callers of another one are not behind it.
#[tokio::test]
async fn a_slow_reply_for_one_key_delays_no_other_key() {
    let (limiter, store, clock) = on_plain_store();
    let rule = Rule::new("slow", 1, SECOND);
    let mut line = Line::new(&limiter);
    line.join(0, rule, 1, HOUR).await;
    line.join(1, rule, 1, HOUR).await;
    line.join(2, rule, 2, HOUR).await;
    line.join(3, rule, 2, HOUR).await;
    store.hold();
    clock.advance(SECOND);
    settle().await;
    assert_eq!(line.served(), [0, 2]);
    // Both have asked; neither waits for the answer of the other.
    store.release();
    store.release();
    settle().await;
    assert_eq!(line.served().len(), 4);
}

/// By the server's clock and real time: all of them come through, in order.
#[tokio::test]
async fn callers_who_wait_on_redis_are_served_in_order() {
    let server = RedisServer::start();
    let limiter = limiter_on(&server).await;
    for algorithm in ALGORITHMS {
        let rule = Rule::new("redis", 2, 150 * MS).by(algorithm);
        let mut line = Line::new(&limiter);
        let key = fresh_key();
        for number in 0..8 {
            line.join(number, rule, key, HOUR).await;
            // By the same connection: the caller has its answer then, and waits if that is a refusal. A caller who
            // asks before it may be admitted by the next window.
            limiter.peek(&rule, key).await.unwrap();
            settle().await;
        }
        let order = Arc::clone(&line.served);
        let answers = line.all().await;
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
        assert_eq!(*order.lock().unwrap(), (0..8).collect::<Vec<_>>(), "{algorithm:?}");
    }
}

/// Waiting callers of several limiters on one server: no window has more than the count.
#[tokio::test]
async fn callers_who_wait_on_redis_never_exceed_the_count() {
    let server = RedisServer::start();
    let rule = Rule::new("shared", 5, SECOND).with_algorithm(LOG);
    let mut tasks = JoinSet::new();
    for _ in 0..3 {
        let limiter = limiter_on(&server).await;
        for _ in 0..5 {
            let limiter = limiter.clone();
            tasks.spawn(async move { limiter.acquire_within(&rule, 1, HOUR).await.map(drop) });
        }
    }
    let started = std::time::Instant::now();
    assert!(ends(tasks.join_all()).await.iter().all(Result::is_ok));
    // 15 calls at 5 a second: the last one is admitted in the third second.
    assert!(started.elapsed() >= 2 * SECOND - 50 * MS, "{:?}", started.elapsed());
}

/// Tokio's paused time drives the default clock.
#[tokio::test(start_paused = true)]
async fn waiting_follows_the_paused_time_of_tokio() {
    let limiter = Limiter::in_memory();
    let rule = Rule::new("paused", 2, 3600 * SECOND).with_algorithm(LOG);
    let started = tokio::time::Instant::now();
    for _ in 0..7 {
        limiter.acquire_within(&rule, 1, 2 * HOUR).await.unwrap();
    }
    let waited = started.elapsed();
    assert!(waited >= 3 * HOUR && waited < 3 * HOUR + SECOND, "{waited:?}");
}

#[limit_request_per_time(prefix = "burst", ttl = 1, unit = Seconds, count = 2, key = key, limiter = limiter, on_limit = Wait(max = "5m"))]
#[limit_request_per_time(prefix = "total", ttl = 10, unit = Seconds, count = 5, key = key)]
async fn limited_twice(limiter: &Limiter, key: u64, number: u32) -> Result<u32, RequestPerMinute> {
    Ok(number)
}

/// The caller waits for the last of its rules, in the order of arrival, and charges nothing
/// meanwhile.
#[tokio::test]
async fn a_caller_of_several_rules_waits_for_the_last_of_them() {
    let clock = ManualClock::new();
    let limiter = in_memory(&clock).await;
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    let started = clock.now();
    for number in 0..12 {
        let (limiter, served, clock) = (limiter.clone(), Arc::clone(&served), clock.clone());
        tasks.spawn(async move {
            let number = limited_twice(&limiter, 1, number).await.unwrap();
            served.lock().unwrap().push((number, (clock.now() - started).as_secs()));
        });
        settle().await;
    }
    for _ in 0..25 {
        settle().await;
        clock.advance(SECOND);
    }
    ends(tasks.join_all()).await;
    let expected = [0, 0, 1, 1, 2, 10, 10, 11, 11, 12, 20, 20];
    assert_eq!(*served.lock().unwrap(), (0..12).zip(expected).collect::<Vec<_>>());
}

#[limit_request_per_time(prefix = "first", ttl = 1, unit = Seconds, count = 1, limiter = limiter, on_limit = Wait)]
#[limit_request_per_time(prefix = "second", ttl = 10, unit = Seconds, count = 10, algorithm = SlidingLog)]
async fn of_both(limiter: &Limiter) -> Result<(), RequestPerMinute> {
    Ok(())
}

#[limit_request_per_time(
    prefix = "second", ttl = 10, unit = Seconds, count = 10, cost = 10, algorithm = SlidingLog, limiter = limiter,
    on_limit = Wait
)]
async fn all_of_the_second(limiter: &Limiter) -> Result<(), RequestPerMinute> {
    Ok(())
}

/// A caller of two counters is served after earlier callers of either queue.
#[tokio::test(start_paused = true)]
async fn a_caller_of_several_rules_overtakes_no_earlier_caller() {
    let limiter = Limiter::in_memory();
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for number in 0..12 {
        let (limiter, served) = (limiter.clone(), Arc::clone(&served));
        tasks.spawn(async move {
            let answer = if number == 5 { all_of_the_second(&limiter).await } else { of_both(&limiter).await };
            answer.unwrap();
            served.lock().unwrap().push(number);
        });
        settle().await;
    }
    tasks.join_all().await;
    assert_eq!(*served.lock().unwrap(), (0..12).collect::<Vec<_>>());
}

/// A caller of two rules and a caller of the second rule alone are both served.
#[tokio::test]
async fn queues_of_two_counters_that_cross_cause_no_deadlock() {
    let clock = ManualClock::new();
    let limiter = in_memory(&clock).await;
    let total = Rule::new("total", 5, 10 * SECOND);
    let burst = Rule::new("burst", 2, SECOND);
    let mut tasks = JoinSet::new();
    for number in 0..30 {
        let limiter = limiter.clone();
        tasks.spawn(async move {
            match number % 3 {
                0 => limited_twice(&limiter, 1, number).await.map(drop),
                1 => limiter.acquire_within(&total, 1, HOUR).await.map(drop),
                _ => limiter.acquire_within(&burst, 1, HOUR).await.map(drop),
            }
        });
    }
    for _ in 0..100 {
        settle().await;
        clock.advance(SECOND);
    }
    settle().await;
    let mut done = 0;
    while let Some(answer) = tasks.try_join_next() {
        answer.unwrap().unwrap();
        done += 1;
    }
    assert_eq!(done, 30, "some wait for ever");
    clock.advance(10 * SECOND);
    assert_eq!(admitted(&limiter, &total, 1, 9).await, 5);
}

/// A wait that is too short ends at once. Its refusal names the time until there is room, not what
/// would be left of it after the wait.
#[tokio::test]
async fn the_refusal_of_a_short_wait_names_the_time_until_there_is_room() {
    for algorithm in ALGORITHMS {
        let clock = ManualClock::new();
        let (limiter, rule) = (in_memory(&clock).await, Rule::new("order", 1, SECOND).by(algorithm));
        limiter.acquire(&rule, 1).await.unwrap();
        let at_once = exceeded(limiter.acquire(&rule, 1).await);
        let wait = at_once.retry_after().unwrap();
        for _ in 0..3 {
            let refused = exceeded(ends(limiter.acquire_within(&rule, 1, wait * 7 / 10)).await);
            assert_eq!(refused.retry_after(), Some(wait), "{algorithm:?}");
            assert_eq!(refused.to_string(), at_once.to_string());
        }
    }
}
