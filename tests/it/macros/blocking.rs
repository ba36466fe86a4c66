//! Functions that are not async, limited with `blocking`.

use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::Duration;

use futures_util::FutureExt as _;
use ratelimit_harness::RedisServer;
use ratelimit_runtime::{
    Algorithm, Cause, Limiter, ManualClock, Permit, RateKey, RequestPerMinute, Rule, limit_concurrent_requests,
    limit_request_per_time,
};
use tokio::runtime::Builder;

use super::{R, exceeded, refused};
use crate::support::{fresh_key, in_memory, limiter_on};

const MS: Duration = Duration::from_millis(1);

/// As [`super::limits_each_key`], on a thread without a runtime.
fn limits_each_key(call: impl Fn(u64) -> R) {
    Limiter::in_memory().scope_blocking(|| {
        assert_eq!(call(1).unwrap(), 1);
        exceeded(call(1));
        assert_eq!(call(2).unwrap(), 2);
        exceeded(call(2));
    });
}

#[test]
fn functions_are_limited() {
    #[limit_request_per_time("item", 1, Hours, 1, key = id, blocking)]
    fn function(id: u64) -> R {
        Ok(id)
    }
    #[limit_request_per_time(blocking, prefix = "item", unit = Hours, count = count, key = (id, &*key), cost = key.len())]
    fn arguments(id: u64, count: u8, key: &mut String) -> R {
        key.push('a');
        Ok(id)
    }
    #[limit_request_per_time("item", N, Hours, const { N }, key = &id, blocking)]
    fn generic<const N: u64, K>(id: K) -> R
    where
        K: RateKey + Into<u64> + Copy,
    {
        Ok(id.into())
    }
    #[limit_request_per_time("item", 1, Hours, 1, key = a, blocking)]
    fn destructured((a, b): (u64, u64)) -> R {
        Ok(a + b - b)
    }
    #[limit_request_per_time("item", 1, Hours, 1, key = id, on_missing_key = Skip, blocking)]
    fn optional(id: Option<u64>) -> R {
        Ok(id.unwrap_or_default())
    }
    #[limit_request_per_time("item", 1, Hours, 1, key = id, algorithm = TokenBucket, on_store_error = Deny, blocking)]
    fn with_permit(id: u64) -> R {
        Ok(permitted(id)?.remaining() + id)
    }
    #[limit_request_per_time("other", 1, Hours, 1, key = id, permit = permit, blocking)]
    fn permitted(id: u64) -> R<Permit> {
        Ok(permit)
    }
    limits_each_key(function);
    limits_each_key(|id| arguments(id, 1, &mut "a".to_owned()));
    limits_each_key(generic::<1, u64>);
    limits_each_key(|id| destructured((id, 5)));
    limits_each_key(|id| optional(Some(id)));
    limits_each_key(with_permit);
    assert_eq!([optional(None), optional(None)], [Ok(0), Ok(0)]);
}

#[test]
fn methods_are_limited() {
    struct Client(u64);

    impl Client {
        #[limit_request_per_time("ref", 1, Hours, 1, key = self.0, blocking)]
        fn by_ref(&self) -> R {
            Ok(self.0)
        }

        #[limit_request_per_time("mut", 1, Hours, 1, key = self.0, blocking)]
        fn by_mut(&mut self) -> R<&mut u64> {
            Ok(&mut self.0)
        }

        #[limit_request_per_time("value", 1, Hours, 1, key = self.0, blocking)]
        fn by_value(self) -> R {
            Ok(self.0)
        }
    }

    trait Api {
        fn id(&self) -> u64;

        #[limit_request_per_time("default", 1, Hours, 1, key = self.id(), blocking)]
        fn default(&self) -> R {
            Ok(self.id())
        }
    }

    impl Api for Client {
        fn id(&self) -> u64 {
            self.0
        }
    }

    #[limit_request_per_time("block", 1, Hours, 1, key = self.0)]
    impl Client {
        #[limit_request_per_time("more", 1, Hours, 5, key = self.0, blocking)]
        fn in_a_limited_block(&self) -> R {
            Ok(self.0)
        }

        async fn asynchronous(&self) -> R {
            Ok(self.0)
        }

        fn unlimited(&self) -> u64 {
            self.0
        }
    }

    limits_each_key(|id| Client(id).by_ref());
    limits_each_key(|id| Client(id).by_mut().copied());
    limits_each_key(|id| Client(id).by_value());
    limits_each_key(|id| Client(id).default());
    limits_each_key(|id| Client(id).in_a_limited_block());
    limits_each_key(|id| Client(id).asynchronous().now_or_never().unwrap());
    assert_eq!(Client(1).unlimited(), 1);
}

/// `?`, `return` and borrows pass through.
#[test]
fn the_outcome_settles_the_cost() {
    const TOKENS: Rule = Rule::new("tokens", 100, Duration::from_secs(60)).with_algorithm(Algorithm::SlidingLog);

    fn parse(text: &str) -> R<&str> {
        if text.is_empty() {
            Limiter::in_memory().acquire_blocking(&Rule::new("none", 0, MS), 1).map(|_| text)
        } else {
            Ok(text)
        }
    }

    #[limit_request_per_time("tokens", 1, Minutes, 100, key = 1, algorithm = SlidingLog, blocking,
        cost = Settled(max = 50, |answer| answer.as_ref().map_or(1, |answer| answer.len())))]
    fn answer<'a>(prompt: &'a str, seen: &mut Vec<String>) -> R<&'a str> {
        seen.push(prompt.to_owned());
        if prompt == "early" {
            return Ok(prompt);
        }
        let prompt = parse(prompt)?;
        Ok(&prompt[1..])
    }
    #[limit_request_per_time("tokens", 1, Minutes, 100, key = 1, algorithm = SlidingLog, cost = Settled(max = most))]
    #[limit_request_per_time("calls", 1, Minutes, 2, algorithm = SlidingLog, blocking,
        cost = Settled(max = 1, |outcome| u64::from(outcome.is_ok())))]
    fn stacked(most: u64) -> Result<impl Iterator<Item = u64>, Box<dyn Error>> {
        if most == 0 { Err("none")? } else { Ok(0..most) }
    }
    #[limit_request_per_time("tokens", 1, Minutes, 100, key = 1, algorithm = SlidingLog, blocking,
        cost = Settled(max = 1, |_| 1))]
    fn exclusive(of: &mut [u64]) -> R<&mut u64> {
        Ok(&mut of[0])
    }

    let limiter = Limiter::in_memory();
    let left = || limiter.peek(&TOKENS, 1).now_or_never().unwrap().unwrap().remaining();
    limiter.scope_blocking(|| {
        let mut seen = Vec::new();
        assert_eq!(answer("prompt", &mut seen).unwrap(), "rompt");
        assert_eq!(left(), 95);
        answer("early", &mut seen).unwrap();
        assert_eq!(left(), 90);
        refused(answer("", &mut seen), Cause::NeverFits);
        assert_eq!((left(), seen.len()), (89, 3));
        assert_eq!(stacked(5).unwrap().count(), 5);
        assert_eq!(left(), 88);
        *exclusive(&mut [7, 8]).unwrap() += 1;
        assert_eq!(left(), 87);
        assert!(stacked(10).is_ok());
        assert!(stacked(10).is_err());
        assert_eq!(left(), 86);
    });
}

/// How a body ends.
#[derive(Clone, Copy)]
enum End {
    Value,
    Error,
    Panic,
}

/// A place is free and time is charged however the body ends.
#[test]
fn a_hold_ends_with_the_body() {
    const TIME: Rule = Rule::new("time", 1_000, Duration::from_secs(60)).with_algorithm(Algorithm::SlidingLog);

    #[limit_concurrent_requests("place", 1)]
    #[limit_request_per_time("time", 1, Minutes, 1_000, key = 1, algorithm = SlidingLog, cost = Elapsed(max = "500ms"),
        permit = permit, blocking)]
    fn call(clock: &ManualClock, end: End) -> R<Duration> {
        clock.advance(100 * MS);
        exceeded(nested());
        match end {
            End::Value => Ok(permit.remaining_time()),
            End::Error => Err(nested().unwrap_err()),
            End::Panic => panic!("as it should"),
        }
    }
    #[limit_concurrent_requests("place", 1, blocking)]
    fn nested() -> R {
        Ok(1)
    }
    #[limit_concurrent_requests("places", 3, blocking)]
    fn recursive(depth: u64) -> R {
        if depth == 0 { Ok(0) } else { Ok(recursive(depth - 1)? + 1) }
    }

    let clock = ManualClock::new();
    let limiter = in_memory(&clock).now_or_never().unwrap();
    limiter.scope_blocking(|| {
        assert_eq!(call(&clock, End::Value).unwrap(), 400 * MS);
        exceeded(call(&clock, End::Error));
        assert!(catch_unwind(AssertUnwindSafe(|| call(&clock, End::Panic))).is_err());
        nested().unwrap();
        assert_eq!(limiter.peek(&TIME, 1).now_or_never().unwrap().unwrap().remaining(), 700);
        assert_eq!(recursive(2).unwrap(), 2);
        exceeded(recursive(3));
        assert_eq!(recursive(2).unwrap(), 2);
    });
}

#[test]
fn all_limits_of_a_function_are_one_decision() {
    #[limit_request_per_time("first", 1, Hours, 1, key = id, blocking)]
    #[limit_request_per_time("second", 1, Hours, 2, on_limit = Return(Ok(refused.limit() * 100)), blocking)]
    #[allow(clippy::unnecessary_wraps)] // no refusal is an error
    fn call(id: u64) -> R {
        Ok(id)
    }
    Limiter::in_memory().scope_blocking(|| {
        assert_eq!(call(1).unwrap(), 1);
        for _ in 0..3 {
            assert_eq!(call(1).unwrap(), 100);
        }
        assert_eq!(call(2).unwrap(), 2);
        assert_eq!(call(3).unwrap(), 200);
    });
}

/// The thread sleeps, until the limit allows the call or the time is over.
#[test]
fn a_call_waits() {
    #[limit_request_per_time("item", 1, Hours, 1, key = id, on_limit = Wait, limiter = limiter, blocking)]
    fn waits(id: u64, limiter: &Limiter) -> R {
        Ok(id)
    }
    #[limit_request_per_time("item", 1, Hours, 1, key = id, on_limit = Wait(max = "59m"), limiter = limiter, blocking)]
    fn gives_up(id: u64, limiter: &Limiter) -> R {
        Ok(id)
    }
    #[limit_concurrent_requests("place", 1, on_limit = Wait(max = "1h"), limiter = limiter, permit = permit, blocking)]
    fn place(limiter: &Limiter) -> R<Permit> {
        Ok(permit)
    }
    let clock = ManualClock::new();
    let limiter = in_memory(&clock).now_or_never().unwrap();
    let began = clock.now();
    waits(1, &limiter).unwrap();
    exceeded(gives_up(1, &limiter));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| waits(1, &limiter));
        while !waiting.is_finished() {
            thread::sleep(MS);
            clock.advance(Duration::from_secs(60));
        }
        waiting.join().unwrap().unwrap();
    });
    assert!(clock.now() - began >= Duration::from_secs(3600));

    let held = place(&limiter).unwrap();
    let (done, is_done) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| done.send(place(&limiter).map(drop)).unwrap());
        assert!(is_done.recv_timeout(50 * MS).is_err());
        drop(held);
        is_done.recv_timeout(Duration::from_secs(20)).unwrap().unwrap();
    });
}

/// Calls on Redis, from a plain thread, a blocking task and several threads at once.
#[test]
fn functions_are_limited_on_redis() {
    static HERE: Mutex<u64> = Mutex::new(0);

    #[limit_request_per_time("item", 1, Hours, 3, key = id, limiter = limiter, blocking)]
    fn call(id: u64, limiter: &Limiter) -> R {
        Ok(id)
    }
    #[limit_concurrent_requests("place", 1, key = id, on_limit = Wait)]
    #[limit_request_per_time("time", 1, Hours, 3_600_000, key = id, algorithm = SlidingLog, cost = Elapsed(max = "5s"),
        limiter = limiter, blocking)]
    fn alone(id: u64, limiter: &Limiter) -> R {
        let _here = HERE.try_lock().expect("one at a time");
        thread::sleep(10 * MS);
        call(id, limiter)
    }
    #[limit_request_per_time("tokens", 1, Hours, 100, key = id, algorithm = SlidingLog, limiter = limiter, blocking,
        cost = Settled(max = 50, |used| *used.as_ref().unwrap()))]
    fn settled(id: u64, used: u64, limiter: &Limiter) -> R {
        exceeded(over(id, limiter));
        Ok(used)
    }
    #[limit_request_per_time("tokens", 1, Hours, 100, key = id, algorithm = SlidingLog, cost = 51, limiter = limiter, blocking)]
    fn over(id: u64, limiter: &Limiter) -> R {
        Ok(id)
    }

    #[limit_concurrent_requests("panics", 1, key = id, on_limit = Wait(max = "20s"), limiter = limiter, blocking)]
    fn ends(id: u64, how: End, limiter: &Limiter) -> R {
        assert!(!matches!(how, End::Panic), "as it should");
        Ok(id)
    }

    let server = RedisServer::start();
    let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
    let limiter = runtime().block_on(limiter_on(&server));
    let id = fresh_key();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(|| alone(id, &limiter).unwrap())).collect();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), id);
        }
    });
    exceeded(alone(id, &limiter));
    let key = fresh_key();
    assert_eq!(settled(key, 40, &limiter).unwrap(), 40);
    assert_eq!(over(key, &limiter).unwrap(), key);
    exceeded(over(key, &limiter));

    // Had the panic kept the place, it would be taken for 30 s.
    assert!(catch_unwind(AssertUnwindSafe(|| ends(1, End::Panic, &limiter))).is_err());
    assert_eq!(ends(1, End::Value, &limiter).unwrap(), 1);

    let (id, inside) = (fresh_key(), limiter.clone());
    let runtime = runtime();
    let calls = runtime.spawn_blocking(move || (0..4).filter(|_| call(id, &inside).is_ok()).count());
    assert_eq!(runtime.block_on(calls).unwrap(), 3);
    let panics = runtime.block_on(async { catch_unwind(AssertUnwindSafe(|| call(fresh_key(), &limiter))) });
    assert!(panics.unwrap_err().downcast_ref::<String>().unwrap().starts_with("Cannot block the current thread"));
}

#[test]
fn a_refusal_becomes_the_error_of_the_function() {
    #[derive(Debug)]
    struct Failed(RequestPerMinute);

    impl From<RequestPerMinute> for Failed {
        fn from(refused: RequestPerMinute) -> Self {
            Self(refused)
        }
    }

    #[limit_request_per_time("item", 1, Hours, 1, blocking)]
    fn call() -> Result<(), Failed> {
        Ok(())
    }
    Limiter::in_memory().scope_blocking(|| {
        call().unwrap();
        assert_eq!(call().unwrap_err().0.cause(), Cause::Exceeded);
    });
}
