//! Callers may leave at any moment: nothing hangs, no permit is lost, and the queue goes on.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Waker};
use std::time::Duration;

use proptest::prelude::*;
use ratelimit_harness::RedisServer;
use ratelimit_harness::history::{Bounds, Granted, RecordedLimiter, Recorder, check};
use ratelimit_runtime::{Key, Limiter, ManualClock, Permit, RequestPerMinute, Rule};
use tokio::task::JoinHandle;

use crate::support::plain_store::on_plain_store;
use crate::support::{
    ALGORITHMS, BUCKET, By, FIXED, INTERVAL, LOG, admitted, ends, exceeded, fresh_key, hourly, in_memory, limiter_on,
    settle,
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

fn waiter(limiter: &Limiter, rule: Rule) -> JoinHandle<Result<Permit, RequestPerMinute>> {
    let limiter = limiter.clone();
    tokio::spawn(async move { limiter.acquire_within(&rule, 1, HOUR).await })
}

/// The sleeping caller at the head leaves, one in the middle, the last, and the head with the one
/// behind it.
#[tokio::test]
async fn a_caller_may_leave_any_position_of_a_queue() {
    for algorithm in [FIXED, LOG, BUCKET, INTERVAL] {
        for leaving in [vec![0], vec![2], vec![4], vec![0, 1], vec![1, 3], vec![0, 1, 2, 3], vec![0, 1, 2, 3, 4]] {
            let clock = ManualClock::new();
            let limiter = in_memory(&clock).await;
            let rule = Rule::new("leave", 1, SECOND).by(algorithm);
            limiter.acquire(&rule, 1).await.unwrap();
            let mut waiting = Vec::new();
            for _ in 0..5 {
                waiting.push(waiter(&limiter, rule));
                settle().await;
            }
            for &place in &leaving {
                waiting[place].abort();
            }
            settle().await;
            waiting =
                waiting.into_iter().enumerate().filter(|(at, _)| !leaving.contains(at)).map(|(_, task)| task).collect();
            for served in 1..=waiting.len() {
                clock.advance(SECOND);
                settle().await;
                let done: Vec<_> = waiting.iter().map(JoinHandle::is_finished).collect();
                assert_eq!(done.iter().filter(|done| **done).count(), served, "{algorithm:?}, left: {leaving:?}");
                assert!(done[..served].iter().all(|done| *done), "the order is kept");
            }
            clock.advance(SECOND);
            limiter.acquire(&rule, 1).await.unwrap();
        }
    }
}

/// A caller that was just woken leaves.
#[tokio::test]
async fn a_caller_may_leave_when_it_has_just_been_woken() {
    let clock = ManualClock::new();
    let limiter = in_memory(&clock).await;
    let rule = Rule::new("turn", 1, SECOND);
    limiter.acquire(&rule, 1).await.unwrap();
    let (first, second, third) = (waiter(&limiter, rule), waiter(&limiter, rule), waiter(&limiter, rule));
    settle().await;
    clock.advance(SECOND); // the first is woken, and has not run yet
    first.abort();
    settle().await;
    assert!(second.is_finished() && !third.is_finished());
    clock.advance(SECOND);
    second.abort(); // has its permit
    settle().await;
    assert!(third.is_finished());
    ends(third).await.unwrap().unwrap();
}

/// The store is asked by the head of a queue, or without a queue.
#[tokio::test]
async fn a_caller_may_leave_while_the_store_is_asked() {
    let (limiter, store, clock) = on_plain_store();
    let rule = Rule::new("call", 1, SECOND);
    let mut waiting = vec![waiter(&limiter, rule)];
    settle().await;
    waiting.extend([waiter(&limiter, rule), waiter(&limiter, rule), waiter(&limiter, rule)]);
    settle().await;
    assert!(waiting.remove(0).is_finished());
    store.hold();
    let asked = store.calls();
    clock.advance(SECOND);
    settle().await;
    assert_eq!(store.calls(), asked + 1, "the head asks");
    waiting.remove(0).abort();
    settle().await;
    assert_eq!(store.calls(), asked + 2, "the next one asks");
    store.release();
    settle().await;
    assert!(waiting.remove(0).is_finished());
    settle().await;
    // Refused, as the window is used up again; then it sleeps, and asks once more.
    store.release();
    clock.advance(SECOND);
    store.release();
    settle().await;
    ends(waiting.remove(0)).await.unwrap().unwrap();
}

/// Polls a future as often as said, each time as far as everything else can go, and drops it.
async fn poll_and_drop(future: impl Future, polls: usize, mut between: impl FnMut()) {
    let mut future = pin!(future);
    for _ in 0..polls {
        let mut context = Context::from_waker(Waker::noop());
        if future.as_mut().poll(&mut context).is_ready() {
            return;
        }
        between();
        settle().await;
    }
}

/// The future is dropped after each possible number of polls.
#[tokio::test]
async fn a_future_may_be_dropped_after_any_poll() {
    for algorithm in ALGORITHMS {
        for polls in 0..12 {
            let clock = ManualClock::new();
            let limiter = in_memory(&clock).await;
            let rule = Rule::new("polls", 1, SECOND).by(algorithm);
            limiter.acquire(&rule, 1).await.unwrap();
            let behind = async {
                settle().await;
                limiter.acquire_within(&rule, 1, HOUR).await
            };
            let dropped = poll_and_drop(limiter.acquire_within(&rule, 1, HOUR), polls, || clock.advance(SECOND / 4));
            let moved_on = async {
                dropped.await;
                for _ in 0..12 {
                    clock.advance(SECOND / 4);
                    settle().await;
                }
            };
            let (answer, ()) = ends(async { tokio::join!(behind, moved_on) }).await;
            answer.unwrap_or_else(|error| panic!("after {polls} polls: {error}"));
        }
    }
}

/// A future that was never polled has charged nothing.
#[tokio::test]
async fn a_future_that_is_never_polled_charges_nothing() {
    let server = RedisServer::start();
    for limiter in [Limiter::in_memory(), limiter_on(&server).await] {
        let (rule, key) = (hourly(3, FIXED), fresh_key());
        let charges = [(&rule, Key::new(key), 1)];
        drop(limiter.acquire(&rule, key));
        drop(limiter.acquire_within(&rule, key, HOUR));
        drop(limiter.acquire_all(&charges));
        settle().await;
        assert_eq!(limiter.peek(&rule, key).await.unwrap().remaining(), 3);
    }
}

/// On Redis a dropped call is charged as a whole or not at all. The next call works at once.
#[tokio::test]
async fn a_dropped_call_to_redis_is_charged_as_a_whole_or_not_at_all() {
    let server = RedisServer::start();
    let limiter = limiter_on(&server).await;
    for algorithm in ALGORITHMS {
        for polls in 0..4 {
            let (one, other) = (hourly(100, algorithm), Rule::new("other", 100, HOUR).by(algorithm));
            let key = fresh_key();
            for _ in 0..10 {
                let charges = [(&one, Key::new(key), 1), (&other, Key::new(key), 1)];
                poll_and_drop(limiter.acquire_all(&charges), polls, || ()).await;
            }
            let left = ends(limiter.peek(&one, key)).await.unwrap().remaining();
            assert!((90..=100).contains(&left), "{left}");
            assert_eq!(limiter.peek(&other, key).await.unwrap().remaining(), left, "{algorithm:?}");
            assert_eq!(admitted(&limiter, &one, key, 100).await, left, "{algorithm:?}, {polls} polls");
        }
    }
}

/// Callers come, leave and are served in random order. As many are served as the rule allows, in
/// the order of arrival, and the queue is empty in the end.
#[derive(Clone, Copy, Debug)]
enum Step {
    Arrive { patience: u8 },
    Cancel { which: usize },
    Pass { tenths: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0_u8..40).prop_map(|patience| Step::Arrive { patience }),
        2 => (0_usize..20).prop_map(|which| Step::Cancel { which }),
        4 => (0_u8..12).prop_map(|tenths| Step::Pass { tenths }),
    ]
}

async fn comes_and_goes(steps: &[Step], count: u64, log: bool) {
    type Waiting = Pin<Box<dyn Future<Output = Option<Granted>> + Send>>;
    let clock = ManualClock::new();
    let limiter = in_memory(&clock).await;
    let rule = Rule::new("comes", count, SECOND).with_algorithm(if log { LOG } else { FIXED });
    let now = clock.clone();
    let recorder = Recorder::by_clock(move || u64::try_from(now.now().as_micros()).unwrap());
    let calls = RecordedLimiter::new(limiter.clone(), recorder, &[(rule, 1, false)]);
    let mut waiting: Vec<(Duration, JoinHandle<Option<Granted>>)> = Vec::new();
    let mut served = Vec::new();
    for step in steps {
        match *step {
            Step::Arrive { patience } => {
                let (calls, longest) = (calls.clone(), u32::from(patience) * SECOND / 10);
                let call: Waiting = Box::pin(async move { calls.acquire(0, 1, 1, Some(longest)).await });
                waiting.push((clock.now() + longest, tokio::spawn(call)));
            }
            Step::Cancel { which } if which < waiting.len() => waiting.remove(which).1.abort(),
            Step::Cancel { .. } => {}
            Step::Pass { tenths } => clock.advance(u32::from(tenths) * SECOND / 10),
        }
        settle().await;
        let mut unserved_ahead = false;
        let mut still = Vec::new();
        for (give_up, task) in waiting {
            if !task.is_finished() {
                assert!(give_up >= clock.now(), "waits beyond its patience");
                unserved_ahead = true;
                still.push((give_up, task));
            } else if task.await.unwrap().is_some() {
                assert!(!unserved_ahead, "served before one that came earlier and waits still");
                served.push(clock.now());
            }
        }
        waiting = still;
    }
    // No caller hangs: the remaining ones are served or give up.
    for _ in 0..50 {
        clock.advance(SECOND / 10);
        settle().await;
    }
    assert!(waiting.iter().all(|(_, task)| task.is_finished()), "a caller waits for ever");
    // The clock moves by up to 1.1 s at once.
    let bounds = Bounds { idle: Some(1_100_000), ..Bounds::of_controlled_clock() };
    if let Some(accusation) = check(&calls.history(), &bounds).first() {
        panic!("{accusation}");
    }
    if log {
        let count = usize::try_from(count).unwrap();
        assert!(served.windows(count + 1).all(|window| window[count] - window[0] >= SECOND), "{served:?}");
    }
    clock.advance(2 * SECOND);
    assert_eq!(admitted(&limiter, &rule, 1, count + 2).await, count);
    exceeded(ends(limiter.acquire_within(&rule, 1, SECOND - MS)).await);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_callers_who_wait_leave_and_return_lose_no_permit(steps in prop::collection::vec(step(), 1..40), count in 1_u64..4, log: bool) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(comes_and_goes(&steps, count, log));
    }
}
