//! `Limiter::acquire_blocking`: threads that run no async tasks, and those that do.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use ratelimit_harness::RedisServer;
use ratelimit_runtime::{
    Algorithm, Cause, Key, Limiter, ManualClock, OnStoreError, Rule, limit_concurrent_requests, limit_request_per_time,
};
use tokio::runtime::{Builder, Runtime};

use crate::support::servers::with_policy;
use crate::support::{FIXED, LOG, PATIENCE, exceeded, fresh_key, hourly, in_memory, is_admitted, limiter_on};

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Its runtime has ended.
fn on_redis(server: &RedisServer) -> Limiter {
    runtime().block_on(limiter_on(server))
}

fn admitted(limiter: &Limiter, rule: &Rule, key: u64, calls: u64) -> u64 {
    (0..calls).map(|_| u64::from(is_admitted(limiter.acquire_blocking(rule, key)))).sum()
}

#[test]
fn a_thread_without_a_runtime_is_answered() {
    let server = RedisServer::start();
    for limiter in [Limiter::in_memory(), on_redis(&server)] {
        for algorithm in [FIXED, LOG] {
            let (rule, key) = (hourly(2, algorithm), fresh_key());
            assert_eq!(limiter.acquire_blocking(&rule, key).unwrap().remaining(), 1);
            assert_eq!(limiter.acquire_blocking(&rule, key).unwrap().remaining(), 0);
            let refused = exceeded(limiter.acquire_blocking(&rule, key));
            assert!(refused.retry_after().unwrap() > Duration::from_secs(3000), "{refused}");
            let permit = limiter.acquire_blocking(&rule, Key::NONE).unwrap();
            assert_eq!(runtime().block_on(permit.refund()).unwrap(), 1);
        }
    }
}

/// Blocking and async callers together, on runtimes that end.
#[test]
fn threads_and_runtimes_share_a_limiter() {
    let server = RedisServer::start();
    for limiter in [Limiter::in_memory(), on_redis(&server)] {
        let (rule, key) = (hourly(100, LOG), fresh_key());
        let admitted: u64 = thread::scope(|scope| {
            let (limiter, rule) = (&limiter, &rule);
            let blocking = || admitted(limiter, rule, key, 40);
            let asynchronous = || {
                let one = || runtime().block_on(crate::support::admitted(limiter, rule, key, 10));
                (0..4).map(|_| one()).sum()
            };
            let threads = [scope.spawn(blocking), scope.spawn(asynchronous), scope.spawn(blocking)];
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(admitted, 100, "of 120");
    }
}

#[test]
fn blocking_tasks_of_a_runtime_are_answered() {
    let server = RedisServer::start();
    let (limiter, rule, key) = (on_redis(&server), hourly(6, FIXED), fresh_key());
    for mut builder in [Builder::new_current_thread(), Builder::new_multi_thread()] {
        let runtime = builder.worker_threads(1).enable_all().build().unwrap();
        let limiter = limiter.clone();
        let calls = move || admitted(&limiter, &rule, key, 3);
        // The one of a current-thread runtime is not driven meanwhile.
        let calls = runtime.spawn_blocking(calls);
        thread::sleep(Duration::from_millis(20));
        assert_eq!(runtime.block_on(calls).unwrap(), 3);
    }
    exceeded(limiter.acquire_blocking(&rule, key));
}

fn text(panic: &(dyn Any + Send)) -> &str {
    panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied()).unwrap()
}

/// It would stop all tasks of the thread. On memory there is nothing to wait for.
#[test]
fn a_thread_that_runs_tasks_panics_instead_of_waiting() {
    const EXPECTED: &str = "Cannot block the current thread from within a runtime: a blocking rate limit has to wait here, and the \
        thread runs async tasks. Call it inside `tokio::task::spawn_blocking`, or use an async function.";
    let server = RedisServer::start();
    let (limiter, rule, key) = (on_redis(&server), hourly(3, FIXED), fresh_key());
    let call = || limiter.acquire_blocking(&rule, key).map(drop);
    let panic = runtime().block_on(async { catch_unwind(AssertUnwindSafe(call)) }).unwrap_err();
    assert_eq!(text(&*panic), EXPECTED);

    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let task = {
        let limiter = limiter.clone();
        runtime.spawn(async move { limiter.acquire_blocking(&rule, key).map(drop) })
    };
    assert_eq!(text(&*runtime.block_on(task).unwrap_err().into_panic()), EXPECTED);

    // Nothing was charged, and the thread may go on.
    assert_eq!(limiter.acquire_blocking(&rule, key).unwrap().remaining(), 2);
    let memory = Limiter::in_memory();
    runtime
        .block_on(async { tokio::spawn(async move { memory.acquire_blocking(&rule, key).unwrap() }).await.unwrap() });
}

/// A slot that the caller can't wait for is given to the next one.
#[test]
fn a_panic_instead_of_waiting_charges_nothing() {
    let limiter = runtime().block_on(in_memory(&ManualClock::new()));
    let rule = hourly(1, Algorithm::LeakyBucket { queue: 1 });
    limiter.acquire_blocking(&rule, 1).unwrap();
    let call = || limiter.acquire_blocking(&rule, 1).map(drop);
    runtime().block_on(async { catch_unwind(AssertUnwindSafe(call)) }).unwrap_err();
    assert_eq!(runtime().block_on(limiter.peek(&rule, 1)).unwrap().remaining(), 1);
}

/// In memory nothing is waited for but time, whatever the general way has to do.
#[tokio::test]
async fn memory_answers_a_thread_that_runs_tasks() {
    #[limit_request_per_time("shadow", 1, Hours, 1, shadow = true)]
    #[limit_request_per_time("calls", 1, Hours, 3)]
    #[limit_concurrent_requests("place", 1, blocking)]
    fn call() -> Result<(), ratelimit_runtime::RequestPerMinute> {
        Ok(())
    }
    Limiter::in_memory().scope_blocking(|| {
        for _ in 0..3 {
            call().unwrap();
        }
        assert_eq!(exceeded(call()).rule(), "calls");
    });
    let tried = hourly(1, FIXED).with_shadow(true);
    let limiter = Limiter::in_memory();
    assert_eq!(admitted(&limiter, &tried, 1, 3), 3);
    assert_eq!(admitted(&Limiter::unlimited(), &hourly(1, FIXED), 1, 3), 3);
}

#[test]
fn a_caller_waits_for_its_slot() {
    let clock = ManualClock::new();
    let limiter = runtime().block_on(in_memory(&clock));
    let rule = hourly(1, Algorithm::LeakyBucket { queue: 1 });
    limiter.acquire_blocking(&rule, 1).unwrap();
    let (done, is_done) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            limiter.acquire_blocking(&rule, 1).unwrap();
            done.send(clock.now()).unwrap();
        });
        let began = clock.now();
        let ended = loop {
            match is_done.recv_timeout(Duration::from_millis(1)) {
                Ok(ended) => break ended,
                Err(_) => clock.advance(Duration::from_secs(60)),
            }
        };
        assert!(ended - began >= Duration::from_secs(3600), "{:?}", ended - began);
    });
}

#[test]
fn the_failure_policy_applies() {
    let server = RedisServer::start();
    let rule = hourly(2, FIXED);
    let policies = [OnStoreError::Deny, OnStoreError::Allow, OnStoreError::Local];
    let limiters = policies.map(|policy| runtime().block_on(with_policy(&server.url(), policy)));
    for limiter in &limiters {
        limiter.acquire_blocking(&rule, fresh_key()).unwrap();
    }
    drop(server);
    let key = fresh_key();
    let [deny, allow, local] = &limiters;
    assert_eq!(deny.acquire_blocking(&rule, key).unwrap_err().cause(), Cause::Unavailable);
    assert_eq!(admitted(allow, &rule, key, 5), 5);
    assert_eq!(admitted(local, &rule, key, 5), 2);
}

/// A blocking caller opens the connections of the background thread, which then uses them itself.
#[test]
fn the_background_thread_settles_what_a_blocking_call_held() {
    let server = RedisServer::start();
    let limiter = on_redis(&server);
    let places = Rule::new("place", 1, Duration::from_secs(3600)).with_algorithm(Algorithm::Concurrent);
    let key = fresh_key();
    for _ in 0..20 {
        drop(limiter.acquire_blocking(&places, key).unwrap()); // it would be taken for an hour
    }
    let left = async {
        let free = async || limiter.peek(&places, key).await.unwrap().remaining() == 1;
        crate::support::eventually("the place is free", free).await;
    };
    runtime().block_on(left);
}

/// Callers on many threads share round trips, and none is left behind.
#[test]
fn many_threads_are_answered_at_once() {
    let server = RedisServer::start();
    let limiter = runtime().block_on(Limiter::builder(&server.url()).deadline(PATIENCE).build()).unwrap();
    let (rule, key) = (hourly(1_000, FIXED), fresh_key());
    let admitted: u64 = thread::scope(|scope| {
        let threads: Vec<_> = (0..16).map(|_| scope.spawn(|| admitted(&limiter, &rule, key, 100))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(admitted, 1_000);
}
