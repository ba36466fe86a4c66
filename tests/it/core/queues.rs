//! Queues of waiting callers: how many ask the store at once, calls of several counters, changes
//! from outside, callers who leave, and the numbers of refusals.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

use futures_util::FutureExt;
use ratelimit_runtime::store::{Batch, Charges, Reply, StoreError};
use ratelimit_runtime::{
    Algorithm, CounterName, Decision, Limiter, ManualClock, OnStoreError, Permit, Refill, RequestPerMinute, Rule,
    limit_request_per_time,
};
use tokio::task::JoinSet;

use crate::support::plain_store::{PlainStore, on_plain_store};
use crate::support::{FIXED, LOG, Timed, ends, exceeded, in_memory, settle};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

/// Callers who wait, and their number once they are served.
struct Callers {
    tasks: JoinSet<Result<Permit, RequestPerMinute>>,
    served: Arc<AtomicU64>,
}

impl Callers {
    fn new() -> Self {
        Self { tasks: JoinSet::new(), served: Arc::default() }
    }

    /// Returns when the caller waits, or has been served.
    async fn add(&mut self, limiter: &Limiter, rule: Rule, key: u64, longest: Duration) {
        let (limiter, served) = (limiter.clone(), Arc::clone(&self.served));
        self.tasks.spawn(async move {
            let permit = limiter.acquire_within(&rule, key, longest).await?;
            served.fetch_add(1, Ordering::Relaxed);
            Ok(permit)
        });
        settle().await;
    }

    fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }
}

/// The first in line has not asked since the refunds.
#[tokio::test]
async fn a_refund_counts_for_a_caller_who_comes_before_those_ahead_have_asked() {
    let clock = ManualClock::new();
    let (limiter, rule) = (in_memory(&clock).await, Rule::new("refunded", 2, HOUR));
    let permits = [limiter.acquire(&rule, 1).await.unwrap(), limiter.acquire(&rule, 1).await.unwrap()];
    let mut callers = Callers::new();
    callers.add(&limiter, rule, 1, 2 * HOUR).await;
    for permit in permits {
        permit.refund().await.unwrap(); // does not yield
    }
    let mut late = Box::pin(limiter.acquire_within(&rule, 1, SECOND));
    assert!(late.as_mut().now_or_never().is_none(), "it was refused from what was known before the refunds");
    settle().await;
    assert_eq!(callers.served(), 1);
    ends(late).await.unwrap();
}

#[tokio::test]
async fn a_caller_who_gives_up_leaves_its_place_before_its_last_look() {
    let (limiter, store, clock) = on_plain_store();
    let rule = Rule::new("last-look", 2, SECOND);
    for _ in 0..2 {
        limiter.acquire(&rule, 1).await.unwrap();
    }
    let mut callers = Callers::new();
    for longest in [HOUR, SECOND + 500 * MS, HOUR] {
        callers.add(&limiter, rule, 1, longest).await;
    }
    store.hold();
    let before = store.calls();
    clock.advance(SECOND);
    settle().await; // the first one asks
    clock.advance(500 * MS);
    settle().await; // the second one gives up: its last look is on its way
    store.release(); // the first is admitted, and one permit remains
    settle().await;
    assert_eq!(store.calls() - before, 3, "the third one has room, and asks");
}

/// The first reply says how much remains. All callers that fit ask before the next reply is here.
#[tokio::test]
async fn as_many_waiting_callers_ask_at_once_as_there_is_room() {
    let (limiter, store, clock) = on_plain_store();
    let rule = Rule::new("room", 10, SECOND);
    let mut callers = Callers::new();
    for _ in 0..40 {
        callers.add(&limiter, rule, 1, HOUR).await;
    }
    assert_eq!(callers.served(), 10);
    clock.advance(SECOND);
    store.hold();
    settle().await;
    let before = store.calls();
    clock.advance(MS);
    settle().await;
    for (answers, asked) in [(1, 9), (9, 10), (1, 10)] {
        (0..answers).for_each(|_| store.release());
        settle().await;
        assert_eq!(store.calls() - before, asked, "after {answers} more answers");
    }
    assert_eq!(callers.served(), 20);
}

#[limit_request_per_time(prefix = "a", ttl = 2, unit = Seconds, count = 1, key = 1, limiter = limiter, on_limit = Wait)]
#[limit_request_per_time(prefix = "b", ttl = 2, unit = Seconds, count = 1, key = 1)]
async fn of_a_and_b(limiter: &Limiter) -> Result<(), RequestPerMinute> {
    Ok(())
}

const A: Rule = Rule::new("a", 1, Duration::from_secs(2));
const B: Rule = Rule::new("b", 1, Duration::from_secs(2));

/// The windows of two rules open in alternate seconds, and others always wait for either of them.
#[tokio::test]
async fn a_caller_of_two_rules_is_served_although_their_windows_never_meet() {
    let clock = ManualClock::new();
    let limiter = in_memory(&clock).await;
    limiter.acquire(&A, 1).await.unwrap();
    clock.advance(SECOND);
    limiter.acquire(&B, 1).await.unwrap();
    let (of_both, bypassed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut tasks = JoinSet::new();
    let (one, is_served) = (limiter.clone(), Arc::clone(&of_both));
    tasks.spawn(async move {
        of_a_and_b(&one).await.unwrap();
        is_served.store(true, Ordering::Relaxed);
    });
    settle().await;
    for rule in [A, A, B, B] {
        let (limiter, bypassed, of_both) = (limiter.clone(), Arc::clone(&bypassed), Arc::clone(&of_both));
        tasks.spawn(async move {
            loop {
                limiter.acquire_within(&rule, 1, HOUR).await.unwrap();
                bypassed.fetch_add(u64::from(!of_both.load(Ordering::Relaxed)), Ordering::Relaxed);
            }
        });
    }
    for _ in 0..40 {
        settle().await;
        clock.advance(SECOND / 4);
    }
    settle().await;
    assert!(of_both.load(Ordering::Relaxed), "it still waits after 10 s");
    assert_eq!(bypassed.load(Ordering::Relaxed), 0, "callers were served before");
}

#[limit_request_per_time(prefix = "user", ttl = 1, unit = Hours, count = 5, key = user, limiter = limiter, on_limit = Wait)]
#[limit_request_per_time(prefix = "all", ttl = 1, unit = Seconds, count = 10)]
async fn of_user(limiter: &Limiter, user: u64) -> Result<(), RequestPerMinute> {
    Ok(())
}

/// Ten a second of all users are served, whether or not one of them waits for its own limit.
#[tokio::test]
async fn a_caller_who_waits_for_its_own_limit_delays_no_other() {
    let mut served = Vec::new();
    for exhausted in [0, 20] {
        let clock = ManualClock::new();
        let limiter = in_memory(&clock).await;
        let mut tasks = JoinSet::new();
        let done = Arc::new(AtomicU64::new(0));
        for _ in 0..5 + exhausted {
            let limiter = limiter.clone();
            tasks.spawn(async move { of_user(&limiter, 0).await });
            settle().await;
        }
        clock.advance(SECOND);
        for user in 1..=100 {
            let (limiter, done) = (limiter.clone(), Arc::clone(&done));
            tasks.spawn(async move {
                of_user(&limiter, user).await?;
                done.fetch_add(1, Ordering::Relaxed);
                Ok(())
            });
        }
        for _ in 0..20 {
            settle().await;
            clock.advance(SECOND / 4);
        }
        settle().await;
        served.push(done.load(Ordering::Relaxed));
    }
    assert_eq!(served[0], 60);
    assert_eq!(served[1], served[0], "with callers who wait for their own limit");
}

/// Many users get room again in each period of the limit of all, which keeps serving.
#[tokio::test]
async fn a_permit_reserved_for_a_waiting_caller_leaves_the_rest_to_others() {
    let clock = ManualClock::new();
    let limiter = in_memory(&clock).await;
    let (user, all) = (Rule::new("of-user", 1, 4 * SECOND), Rule::new("of-all", 100, SECOND));
    for key in 0..50_u64 {
        limiter.acquire(&user, key).await.unwrap();
    }
    let mut tasks = JoinSet::new();
    for key in 0..50_u64 {
        let limiter = limiter.clone();
        tasks.spawn(async move { of_user_and_all(&limiter, key).await });
        settle().await;
    }
    let mut callers = Callers::new();
    for second in 0..4 {
        for _ in 0..100 {
            callers.add(&limiter, all, 1, HOUR).await;
        }
        assert!(callers.served() >= second * 100 + 50, "{} served in second {second}", callers.served());
        clock.advance(SECOND);
        settle().await;
    }
    settle().await;
    assert_eq!(tasks.len(), 50);
    let mut done = 0;
    while let Some(answer) = tasks.try_join_next() {
        answer.unwrap().unwrap();
        done += 1;
    }
    assert_eq!(done, 50, "all of them fit when their own limit has room");
}

#[limit_request_per_time(prefix = "of-user", ttl = 4, unit = Seconds, count = 1, key = user, limiter = limiter, on_limit = Wait)]
#[limit_request_per_time(prefix = "of-all", ttl = 1, unit = Seconds, count = 100, key = 1)]
async fn of_user_and_all(limiter: &Limiter, user: u64) -> Result<(), RequestPerMinute> {
    Ok(())
}

/// A refund or a reset by this process is available to waiting callers at once.
#[tokio::test]
async fn a_refund_or_a_reset_wakes_the_next_waiting_caller() {
    for timed in Timed::both().await {
        for algorithm in [FIXED, LOG] {
            for is_reset in [false, true] {
                let of = format!("{} {algorithm:?} {is_reset}", timed.name());
                let (limiter, rule) =
                    (timed.limiter.clone(), Rule::new("changed", 2, 4 * SECOND).with_algorithm(algorithm));
                let key = crate::support::fresh_key();
                let permit = limiter.acquire(&rule, key).await.unwrap();
                limiter.acquire(&rule, key).await.unwrap();
                let mut callers = Callers::new();
                callers.add(&limiter, rule, key, HOUR).await;
                refusal_is_here().await;
                if is_reset {
                    limiter.reset(&rule, key).await.unwrap();
                } else {
                    permit.refund().await.unwrap();
                }
                ends(callers.tasks.join_next()).await.unwrap().unwrap().unwrap();
                assert_eq!(callers.served(), 1, "{of}");
                // A caller with a maximum wait of a second is refused like one without.
                if is_reset {
                    ends(limiter.acquire_within(&rule, key, SECOND)).await.expect(&of);
                }
            }
        }
    }
}

/// The store makes the change, although nobody waits for its answer.
#[tokio::test]
async fn a_reset_whose_caller_leaves_wakes_the_next_waiting_caller() {
    let (limiter, store, _clock) = on_plain_store();
    let rule = Rule::new("left", 1, HOUR);
    limiter.acquire(&rule, 1).await.unwrap();
    let mut callers = Callers::new();
    callers.add(&limiter, rule, 1, 2 * HOUR).await;
    store.hold();
    assert!(limiter.reset(&rule, 1).now_or_never().is_none());
    settle().await;
    store.release();
    settle().await;
    assert_eq!(callers.served(), 1);
}

/// A refund while the refusal of the caller is on its way.
#[tokio::test]
async fn a_refund_while_a_refusal_is_on_its_way_is_not_missed() {
    let (limiter, store, clock) = on_plain_store();
    let rule = Rule::new("meanwhile", 1, HOUR);
    let permit = limiter.acquire(&rule, 1).await.unwrap();
    let mut callers = Callers::new();
    store.hold();
    callers.add(&limiter, rule, 1, 2 * HOUR).await;
    store.release();
    settle().await; // refused, and waits
    permit.refund().await.unwrap();
    settle().await;
    store.release();
    settle().await;
    assert_eq!(callers.served(), 1);
    drop(clock);
}

/// Another process has reset the counter: noticed when the longest time without a question is over.
#[tokio::test]
async fn changes_by_other_processes_are_noticed_in_a_second_or_a_tenth_of_the_period() {
    let timed = Timed::redis().await;
    let rule = Rule::new("others", 1, 60 * SECOND);
    let server = timed.server().unwrap();
    let other = crate::support::limiter_on(server).await;
    timed.limiter.acquire(&rule, 1).await.unwrap();
    let mut callers = Callers::new();
    callers.add(&timed.limiter, rule, 1, HOUR).await;
    refusal_is_here().await;
    other.reset(&rule, 1).await.unwrap();
    timed.advance(6 * SECOND);
    ends(callers.tasks.join_next()).await.unwrap().unwrap().unwrap();
}

/// Gives the refusal of a real server time to arrive, so that its caller waits.
async fn refusal_is_here() {
    tokio::time::sleep(50 * MS).await;
}

/// Callers who leave cost the store nothing: callers behind them know the last reply.
#[tokio::test]
async fn callers_who_leave_a_queue_cause_no_request() {
    let (limiter, store, _clock) = on_plain_store();
    let rule = Rule::new("leave", 1, HOUR);
    let mut callers = Callers::new();
    let mut leaving = Vec::new();
    for _ in 0..200 {
        callers.add(&limiter, rule, 1, 2 * HOUR).await;
    }
    for _ in 0..100 {
        let limiter = limiter.clone();
        leaving.push(tokio::spawn(async move { limiter.acquire_within(&rule, 1, 2 * HOUR).await }));
        settle().await;
    }
    let before = store.calls();
    drop(callers); // the first in the queue, and those behind it, one by one
    settle().await;
    for caller in leaving {
        caller.abort();
        settle().await;
    }
    assert_eq!(store.calls(), before);
}

type Acquiring = Pin<Box<dyn Future<Output = Result<Permit, RequestPerMinute>> + Send>>;

/// A waker that ends its task, as an executor does whose queue is gone.
#[derive(Default)]
struct EndsItsTask(Mutex<Option<Acquiring>>);

impl Wake for EndsItsTask {
    fn wake(self: Arc<Self>) {
        let task = self.0.lock().unwrap().take();
        drop(task);
    }
}

#[test]
fn a_waker_that_drops_its_task_causes_no_deadlock() {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _inside = runtime.enter();
        let limiter = Limiter::in_memory();
        let rule = Rule::new("wake", 1, HOUR);
        runtime.block_on(limiter.acquire(&rule, 1)).unwrap();
        let mut tasks = Vec::new();
        for _ in 0..3 {
            let task = Arc::new(EndsItsTask::default());
            let mut future: Acquiring = Box::pin(limiter.acquire_within(&rule, 1, 24 * HOUR));
            assert!(future.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(&task)))).is_pending());
            *task.0.lock().unwrap() = Some(future);
            tasks.push(task);
        }
        let first = tasks[0].0.lock().unwrap().take();
        drop(first);
        done.send(()).unwrap();
    });
    is_done.recv_timeout(Duration::from_secs(20)).expect("the waker was called under a lock");
}

#[tokio::test]
async fn a_closed_limiter_refuses_its_waiting_callers() {
    let clock = ManualClock::new();
    let limiter = in_memory(&clock).await;
    let rule = Rule::new("closed", 1, SECOND);
    let mut callers = Callers::new();
    for _ in 0..4 {
        callers.add(&limiter, rule, 1, HOUR).await;
    }
    limiter.close().await;
    let answers = ends(callers.tasks.join_all()).await;
    let refused: Vec<_> = answers.into_iter().filter_map(Result::err).collect();
    assert_eq!(refused.len(), 3, "{refused:?}");
    let later = exceeded(ends(limiter.acquire_within(&rule, 1, HOUR)).await);
    assert_eq!(later.retry_after(), Some(SECOND));
    clock.advance(SECOND);
    limiter.acquire_within(&rule, 1, HOUR).await.unwrap();
}

/// A refused caller hears how long its wait would have been, not that of the first in the queue.
#[tokio::test]
async fn retry_after_of_a_refused_caller_includes_the_queue_ahead() {
    for count in [1_u64, 3] {
        let clock = ManualClock::new();
        let limiter = in_memory(&clock).await;
        let rule = Rule::new("told", count, 300 * MS);
        let mut callers = Callers::new();
        for _ in 0..5 * count {
            callers.add(&limiter, rule, 1, 700 * MS).await;
        }
        let mut refused = Vec::new();
        while let Some(answer) = callers.tasks.try_join_next() {
            refused.extend(answer.unwrap().err().and_then(|refused| refused.retry_after()));
        }
        assert_eq!(
            (refused.len() as u64, refused.iter().all(|wait| *wait == 900 * MS)),
            (2 * count, true),
            "{refused:?}"
        );
        clock.advance(300 * MS);
        settle().await;
        clock.advance(300 * MS);
        settle().await;
        assert_eq!(callers.served(), 3 * count);
    }
}

/// A bucket gives a permit each 100 ms: the fifth caller would wait for 500 ms.
#[tokio::test]
async fn retry_after_behind_a_queue_is_computed_from_the_rate_of_a_bucket() {
    let clock = ManualClock::new();
    let limiter = in_memory(&clock).await;
    let bucket = Algorithm::TokenBucket { burst: 1, refill: ratelimit_runtime::Refill::Greedy };
    let rule = Rule::new("bucket", 10, SECOND).with_algorithm(bucket);
    let mut callers = Callers::new();
    for _ in 0..5 {
        callers.add(&limiter, rule, 1, HOUR).await;
    }
    let refused = exceeded(ends(limiter.acquire_within(&rule, 1, 450 * MS)).await);
    assert_eq!(refused.retry_after(), Some(500 * MS));
    callers.add(&limiter, rule, 1, 500 * MS).await;
    for left in [500, 400, 300, 200, 100] {
        clock.advance(100 * MS);
        settle().await;
        let refused = exceeded(ends(limiter.acquire_within(&rule, 1, (left - 50) * MS)).await);
        assert_eq!(refused.retry_after(), Some(left * MS), "those who were served are no longer ahead");
    }
    assert_eq!(callers.served(), 6);
}

/// Callers who ask in vain are still ahead of those behind them.
#[tokio::test]
async fn retry_after_behind_a_queue_includes_callers_who_were_refused_again() {
    let clock = ManualClock::new();
    let (limiter, rule) = (in_memory(&clock).await, Rule::new("told", 1, SECOND));
    limiter.acquire(&rule, 1).await.unwrap();
    let mut callers = Callers::new();
    for _ in 0..2 {
        callers.add(&limiter, rule, 1, HOUR).await;
    }
    let last = tokio::spawn(limiter.acquire_within(&rule, 1, 3_500 * MS));
    settle().await;
    for _ in 0..3 {
        clock.advance(SECOND);
        limiter.acquire(&rule, 1).await.unwrap(); // before those who wait have asked
        settle().await;
    }
    clock.advance(500 * MS);
    // The first goes in half a second, the second and the last a second later each.
    assert_eq!(exceeded(ends(last).await.unwrap()).retry_after(), Some(2_500 * MS));
}

/// One of those who waited has been admitted, and the next has not asked yet.
#[tokio::test]
async fn a_ban_that_is_over_refuses_no_waiting_caller() {
    let clock = ManualClock::new();
    let (limiter, rule) = (in_memory(&clock).await, Rule::new("banned", 1, SECOND));
    limiter.ban(&rule, 1, SECOND).await.unwrap();
    let [mut first, mut second, mut third] = [(); 3].map(|()| Box::pin(limiter.acquire_within(&rule, 1, HOUR)));
    for waiting in [&mut first, &mut second, &mut third] {
        assert!(waiting.as_mut().now_or_never().is_none());
    }
    clock.advance(SECOND);
    first.as_mut().now_or_never().expect("the ban is over").unwrap();
    let last = tokio::spawn(limiter.acquire_within(&rule, 1, 500 * MS));
    settle().await;
    assert!(second.as_mut().now_or_never().is_none());
    clock.advance(500 * MS);
    exceeded(ends(last).await.unwrap());
}

#[limit_request_per_time(prefix = "tried", ttl = 1, unit = Hours, count = 9, limiter = limiter, shadow = true, on_limit = Wait)]
#[limit_request_per_time(prefix = "enforced", ttl = 1, unit = Hours, count = 1)]
async fn of_tried_and_enforced(limiter: &Limiter) -> Result<(), RequestPerMinute> {
    Ok(())
}

/// There is room again, but the limiter is closed first.
#[tokio::test]
async fn a_closed_limiter_names_a_rule_that_is_enforced() {
    let clock = ManualClock::new();
    let limiter = in_memory(&clock).await;
    of_tried_and_enforced(&limiter).await.unwrap();
    let mut waiting = Box::pin(of_tried_and_enforced(&limiter));
    assert!(waiting.as_mut().now_or_never().is_none());
    clock.advance(HOUR);
    limiter.close().await;
    let refused = waiting.now_or_never().expect("it is refused").unwrap_err();
    assert_eq!((refused.rule(), refused.limit()), ("enforced", 1));
}

/// A caller who leaves the middle of a queue is no longer ahead of those behind it.
#[tokio::test]
async fn retry_after_behind_a_queue_excludes_a_caller_who_left() {
    let clock = ManualClock::new();
    let limiter = in_memory(&clock).await;
    let bucket = Algorithm::TokenBucket { burst: 1, refill: ratelimit_runtime::Refill::Greedy };
    let rule = Rule::new("bucket", 10, SECOND).with_algorithm(bucket);
    let mut callers = Callers::new();
    for _ in 0..3 {
        callers.add(&limiter, rule, 1, HOUR).await;
    }
    let leaves = tokio::spawn(limiter.acquire_within(&rule, 1, HOUR));
    settle().await;
    callers.add(&limiter, rule, 1, HOUR).await;
    let refused = async || exceeded(ends(limiter.acquire_within(&rule, 1, 50 * MS)).await).retry_after();
    assert_eq!(refused().await, Some(500 * MS));
    leaves.abort();
    settle().await;
    assert_eq!(refused().await, Some(400 * MS));
}

#[limit_request_per_time(prefix = "user", ttl = 1, unit = Hours, count = 5, key = user, limiter = limiter, on_limit = Wait(max = "1500ms"))]
#[limit_request_per_time(prefix = "all", ttl = 1, unit = Seconds, count = 10)]
async fn of_patient_user(limiter: &Limiter, user: u64) -> Result<(), RequestPerMinute> {
    Ok(())
}

/// Callers ahead wait for limits of their own, which is no reason to refuse callers behind them.
#[tokio::test]
async fn callers_who_wait_for_their_own_limits_do_not_lengthen_the_wait_of_others() {
    let clock = ManualClock::new();
    let limiter = in_memory(&clock).await;
    let mut exhausted = JoinSet::new();
    for _ in 0..35 {
        let limiter = limiter.clone();
        exhausted.spawn(async move { of_user(&limiter, 0).await });
        settle().await;
    }
    for user in 1..=5 {
        ends(of_user(&limiter, user)).await.unwrap();
    }
    let patient = {
        let limiter = limiter.clone();
        tokio::spawn(async move { of_patient_user(&limiter, 6).await })
    };
    settle().await;
    clock.advance(SECOND);
    ends(patient).await.unwrap().expect("there was room a second later");
    assert_eq!(exhausted.len(), 35);
}

/// A store that refuses a thousand times, and each time reports that the cost fits at once.
#[derive(Clone, Debug, Default)]
struct Impatient(Arc<AtomicU64>);

impl ratelimit_runtime::Store for Impatient {
    fn decide(&self, mut batch: Batch) -> Reply<Batch> {
        let fits = self.0.fetch_add(1, Ordering::Relaxed) >= 1000;
        for request in batch.iter_mut() {
            for charge in request.charges.iter_mut() {
                charge.decision = Decision::new(1, u64::from(fits), SECOND, (!fits).then_some(Duration::ZERO));
            }
            request.outcome = Ok(fits);
        }
        Reply::Ready(batch)
    }
    fn refund(&self, _: Charges) -> Reply<Result<u64, StoreError>> {
        Reply::Ready(Ok(0))
    }
    fn reset(&self, _: CounterName) -> Reply<Result<(), StoreError>> {
        Reply::Ready(Ok(()))
    }
}

#[tokio::test]
async fn a_store_that_denies_without_a_wait_is_not_asked_in_a_loop() {
    let (clock, store) = (ManualClock::new(), Impatient::default());
    let limiter = Limiter::builder("memory://").clock(clock.clone()).over(store.clone()).unwrap();
    let mut callers = Callers::new();
    callers.add(&limiter, Rule::new("impatient", 1, SECOND), 1, HOUR).await;
    let asked = store.0.load(Ordering::Relaxed);
    assert!(asked <= 2, "asked {asked} times while no time passed");
    for _ in 0..1000 {
        clock.advance(MS);
        settle().await;
    }
    assert_eq!(callers.served(), 1);
}

const BUCKET: Rule =
    Rule::new("bucket", 1, SECOND).with_algorithm(Algorithm::TokenBucket { burst: 10, refill: Refill::Greedy });

#[limit_request_per_time(rule = BUCKET, key = 1, cost = cost, on_limit = Wait, limiter = limiter)]
async fn takes(limiter: &Limiter, cost: u64) -> Result<(), RequestPerMinute> {
    Ok(())
}

/// Both ask after the same admission, and are refused.
#[tokio::test]
async fn a_small_cost_is_admitted_in_its_time_before_a_larger_one() {
    let clock = ManualClock::new();
    let limiter = in_memory(&clock).await;
    let permit = limiter.acquire_n(&BUCKET, 1, 10).await.unwrap();
    let (mut tasks, is_admitted) = (JoinSet::new(), Arc::new(AtomicBool::new(false)));
    let first = limiter.clone();
    tasks.spawn(async move {
        takes(&first, 1).await.unwrap();
        first.acquire_n(&BUCKET, 1, 9).await.unwrap(); // before those behind it, who may ask now, are polled
    });
    settle().await;
    for cost in [1, 5] {
        let (limiter, is_admitted) = (limiter.clone(), Arc::clone(&is_admitted));
        tasks.spawn(async move {
            takes(&limiter, cost).await.unwrap();
            is_admitted.fetch_or(cost == 1, Ordering::Relaxed);
        });
        settle().await;
    }
    permit.refund().await.unwrap();
    settle().await;
    assert!(!is_admitted.load(Ordering::Relaxed));
    clock.advance(SECOND);
    settle().await;
    assert!(is_admitted.load(Ordering::Relaxed), "a token is there, and it is the first in line");
}

/// As after a tenant has bought more: the count is that of the call.
#[tokio::test]
async fn a_call_with_room_by_its_own_count_does_not_wait_behind_one_with_a_smaller_count() {
    let clock = ManualClock::new();
    let limiter = in_memory(&clock).await;
    let of_count = |count| Rule::new("plan", count, HOUR);
    limiter.acquire(&of_count(1), 1).await.unwrap();
    let mut callers = Callers::new();
    callers.add(&limiter, of_count(1), 1, 2 * HOUR).await;

    let mut larger = Box::pin(limiter.acquire_within(&of_count(3), 1, SECOND));
    larger.as_mut().now_or_never().expect("it waits for the room of another count").unwrap();
    limiter.acquire_within(&of_count(3), 1, SECOND).now_or_never().expect("it waits").unwrap();
    let refused = limiter.acquire_within(&of_count(3), 1, SECOND).await.unwrap_err();
    assert_eq!((refused.limit(), refused.retry_after()), (3, Some(HOUR)));
    assert_eq!(callers.served(), 0);
    clock.advance(HOUR);
    settle().await;
    assert_eq!(callers.served(), 1);
}

/// The places above the smaller count are for others.
#[tokio::test]
async fn a_waiting_call_with_a_smaller_count_keeps_no_place_from_one_with_a_larger_count() {
    let clock = ManualClock::new();
    let limiter = in_memory(&clock).await;
    let of_count = |count| Rule::new("places", count, HOUR).with_algorithm(Algorithm::Concurrent);
    let held = [limiter.acquire(&of_count(3), 1).await.unwrap(), limiter.acquire(&of_count(3), 1).await.unwrap()];
    let third = limiter.acquire(&of_count(3), 1).await.unwrap();
    let mut callers = Callers::new();
    callers.add(&limiter, of_count(2), 1, HOUR).await;
    callers.add(&limiter, of_count(3), 1, HOUR).await;
    drop(third);
    settle().await;
    assert_eq!(callers.served(), 1, "the second one has a place by its own count");
    drop(held);
    settle().await;
    assert_eq!(callers.served(), 2);
}

/// The share of a process is another limit than that of the rule.
#[tokio::test]
async fn while_the_store_is_away_one_of_several_waiting_callers_asks_for_the_share_of_the_process() {
    let clock = ManualClock::new();
    let store = PlainStore::new(&clock);
    let builder = Limiter::builder("memory://").clock(clock.clone()).on_store_error(OnStoreError::Local);
    let limiter = builder.instances(2).over(store.clone()).unwrap();
    let rule = Rule::new("share", 2, HOUR);
    store.fail(Some(StoreError::unavailable("away")));
    limiter.acquire(&rule, 1).await.unwrap();
    let mut callers = Callers::new();
    for _ in 0..3 {
        callers.add(&limiter, rule, 1, 2 * HOUR).await;
    }
    let before = store.calls();
    for _ in 0..100 {
        clock.advance(100 * MS);
        settle().await;
    }
    let asked = store.calls() - before;
    assert!(asked <= 11, "asked {asked} times in ten seconds, and not each second");
    assert_eq!(callers.served(), 0);
    let newcomer = limiter.clone();
    let newcomer = tokio::spawn(async move { newcomer.acquire_within(&rule, 1, HOUR + SECOND).await.is_ok() });
    clock.advance(HOUR);
    settle().await;
    assert_eq!(callers.served(), 1);
    assert!(!newcomer.is_finished() || !newcomer.await.unwrap(), "it came last");
}
