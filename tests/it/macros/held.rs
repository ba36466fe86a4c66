//! Holds of annotated functions: places, time, and costs that the outcome reports, until the body
//! ends in any way.

use std::error::Error;
use std::fmt::Display;
use std::future::pending;
use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use ratelimit_runtime::{
    Algorithm, Cause, Limiter, ManualClock, RequestPerMinute, Rule, limit_concurrent_requests, limit_request_per_time,
};

use super::{R, exceeded, refused, send};
use crate::support::in_memory;

const MS: Duration = Duration::from_millis(1);

/// Tokens, or milliseconds, a minute.
const BUDGET: Rule = Rule::new("item", 1_000, Duration::from_secs(60)).with_algorithm(Algorithm::SlidingLog);

async fn left(limiter: &Limiter) -> u64 {
    limiter.peek(&BUDGET, 1).await.unwrap().remaining()
}

/// How a body ends.
#[derive(Clone, Copy)]
enum End {
    Value,
    Return,
    Error,
    Panic,
    Never,
}

use End::{Error as Fails, Never, Panic, Return, Value};

async fn end(how: End) -> R {
    match how {
        Value => Ok(1),
        Return => Ok(2),
        Fails => Err(Limiter::in_memory().acquire_n(&BUDGET, 1, 1_001).await.unwrap_err()),
        Panic => panic!("as it should"),
        Never => pending().await,
    }
}

/// Calls something that one caller of each key may run at once.
async fn holds_a_place(call: impl AsyncFn(u64, End) -> R) {
    let calls = async {
        let mut first = Box::pin(call(1, Never));
        assert!((&mut first).now_or_never().is_none());
        for _ in 0..3 {
            exceeded(call(1, Value).await);
        }
        let mut second = Box::pin(call(2, Never));
        assert!((&mut second).now_or_never().is_none());
        exceeded(call(2, Value).await);
        drop(first);
        for _ in 0..3 {
            assert_eq!(call(1, Value).await.unwrap(), 1);
            assert_eq!(call(1, Return).await.unwrap(), 2);
            refused(call(1, Fails).await, Cause::NeverFits);
            let panicked = std::panic::AssertUnwindSafe(call(1, Panic)).catch_unwind().await;
            assert!(panicked.is_err());
        }
        exceeded(call(2, Value).await);
    };
    Limiter::in_memory().scope(calls).await;
}

/// A body with every way out.
macro_rules! body {
    ($how:ident) => {{
        if matches!($how, Return) {
            return end($how).await;
        }
        let one = end($how).await?;
        Ok(one)
    }};
}

#[tokio::test]
async fn functions_hold_a_place_while_they_run() {
    #[limit_concurrent_requests("place", 1, key = id)]
    async fn function(id: u64, how: End) -> R {
        body!(how)
    }
    #[limit_concurrent_requests(prefix = "place", count = places, key = (id, "a"), lease = "1m30s", on_limit = Reject)]
    async fn all_arguments<T: Into<u64>>(id: u64, how: End, places: T) -> R {
        body!(how)
    }
    #[limit_concurrent_requests("place", const { N }, key = id, on_missing_key = Deny, permit = permit)]
    async fn bound<const N: u64>(id: Option<u64>, how: End) -> R {
        assert!(permit.is_held());
        assert_eq!((permit.limit(), permit.remaining(), permit.remaining_time()), (1, 0, Duration::MAX));
        body!(how)
    }
    #[limit_concurrent_requests("place", 1, key = id)]
    fn future(id: u64, how: End) -> impl Future<Output = R> + Send {
        let told = how;
        async move { body!(told) }
    }
    #[limit_concurrent_requests("place", 1, key = id)]
    fn pinned(id: u64, how: End) -> Pin<Box<dyn Future<Output = R> + Send>> {
        Box::pin(async move { body!(how) })
    }
    #[limit_concurrent_requests("place", 1, key = id)]
    fn boxed(id: u64, how: End) -> BoxFuture<'static, R> {
        async move { body!(how) }.boxed()
    }
    holds_a_place(function).await;
    holds_a_place(async |id, how| all_arguments(id, how, 1_u64).await).await;
    holds_a_place(async |id, how| bound::<1>(Some(id), how).await).await;
    holds_a_place(future).await;
    holds_a_place(pinned).await;
    holds_a_place(boxed).await;
    drop(send(function(1, Value)));
    drop(send(bound::<1>(None, Value)));
}

#[tokio::test]
async fn methods_hold_a_place_while_they_run() {
    struct Client(u64);

    #[limit_concurrent_requests("block", 1, key = self.0)]
    impl Client {
        async fn by_ref(&self, how: End) -> R {
            body!(how)
        }

        #[limit_request_per_time("more", 1, Hours, 1_000)]
        fn pinned(&self, how: End) -> Pin<Box<dyn Future<Output = R> + '_>> {
            Box::pin(async move { body!(how) })
        }

        #[limit_concurrent_requests(skip)]
        async fn one(&self) -> u64 {
            tokio::task::yield_now().await;
            1
        }

        #[limit_request_per_time(skip)]
        async fn two(&self) -> u64 {
            tokio::task::yield_now().await;
            2
        }
    }

    #[async_trait]
    trait Api {
        async fn above(&self, how: End) -> R;
        async fn below(&mut self, how: End) -> R;
    }

    #[limit_concurrent_requests("above", 1, key = self.0)]
    #[async_trait]
    impl Api for Client {
        async fn above(&self, how: End) -> R {
            body!(how)
        }

        #[limit_request_per_time(skip)]
        async fn below(&mut self, _: End) -> R {
            Ok(1)
        }
    }

    struct Other(u64);

    #[async_trait]
    impl Api for Other {
        async fn above(&self, _: End) -> R {
            Ok(1)
        }

        #[limit_concurrent_requests("below", 1, key = self.0)]
        async fn below(&mut self, how: End) -> R {
            self.0 += 1;
            body!(how)
        }
    }

    holds_a_place(async |id, how| Client(id).by_ref(how).await).await;
    holds_a_place(async |id, how| Client(id).pinned(how).await).await;
    holds_a_place(async |id, how| Client(id).above(how).await).await;
    holds_a_place(async |id, how| Other(id).below(how).await).await;
    assert_eq!((Client(1).one().await, Client(1).two().await), (1, 2));
}

/// Whichever stands first, and whichever refuses: the other is as before.
#[tokio::test]
async fn both_attributes_on_a_function_are_one_decision() {
    #[limit_concurrent_requests("place", 1, key = id)]
    #[limit_request_per_time("calls", 1, Hours, 2)]
    async fn place_first(id: u64, how: End) -> R {
        end(how).await
    }
    #[limit_request_per_time("calls", 1, Hours, 2)]
    #[limit_concurrent_requests("place", 1, key = id)]
    async fn place_last(id: u64, how: End) -> R {
        end(how).await
    }
    let check = async |call: &dyn Fn(u64, End) -> BoxFuture<'static, R>| {
        let calls = async {
            let mut first = call(1, Never);
            assert!((&mut first).now_or_never().is_none());
            for _ in 0..5 {
                assert_eq!(exceeded(call(1, Value).await).rule(), "place");
            }
            call(2, Value).await.unwrap();
            drop(first);
            for _ in 0..5 {
                // Had it taken a place, the next one would be told of that.
                assert_eq!(exceeded(call(3, Value).await).rule(), "calls");
            }
        };
        Limiter::in_memory().scope(calls).await;
    };
    check(&|id, how| place_first(id, how).boxed()).await;
    check(&|id, how| place_last(id, how).boxed()).await;
}

/// Each attribute answers for what it has refused.
#[tokio::test]
async fn each_of_both_attributes_returns_its_own_value() {
    #[limit_request_per_time("calls", 1, Hours, 2, on_limit = Return(Ok(refused.limit() * 10)))]
    #[limit_concurrent_requests("place", 1, key = id, on_limit = Return(Ok(refused.limit() * 100)))]
    async fn both(id: u64, how: End) -> R {
        end(how).await
    }
    #[limit_request_per_time("calls", 1, Hours, 2, on_limit = Return(Ok(10)))]
    #[limit_concurrent_requests("place", 1, key = id)]
    async fn calls(id: u64, how: End) -> R {
        end(how).await
    }
    #[limit_concurrent_requests("place", 1, key = id, on_limit = Return(Ok(100)))]
    #[limit_request_per_time("calls", 1, Hours, 2)]
    async fn place(id: u64, how: End) -> R {
        end(how).await
    }
    let answers = async |call: &dyn Fn(u64, End) -> BoxFuture<'static, R>| {
        let calls = async {
            let mut first = call(1, Never);
            assert!((&mut first).now_or_never().is_none());
            let busy = call(1, Value).await;
            call(2, Value).await.unwrap();
            let mut answers = Vec::new();
            for answer in [busy, call(3, Value).await] {
                answers.push(answer.map_err(|refused| refused.rule()));
            }
            answers
        };
        Limiter::in_memory().scope(calls).await
    };
    assert_eq!(answers(&|id, how| both(id, how).boxed()).await, [Ok(100), Ok(20)]);
    assert_eq!(answers(&|id, how| calls(id, how).boxed()).await, [Err("place"), Ok(10)]);
    assert_eq!(answers(&|id, how| place(id, how).boxed()).await, [Ok(100), Err("calls")]);
}

/// Each waits for its own.
#[tokio::test]
async fn a_function_waits_for_a_place() {
    #[limit_concurrent_requests("place", 1, on_limit = Wait(max = "20s"))]
    #[limit_request_per_time("calls", 1, Hours, 2)]
    async fn call(turns: u32) -> R {
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
        Ok(1)
    }
    let calls = async {
        let (one, two) = tokio::join!(call(50), call(0));
        assert_eq!((one.unwrap(), two.unwrap()), (1, 1));
        assert_eq!(exceeded(call(0).await).rule(), "calls");
    };
    Limiter::in_memory().scope(calls).await;
}

/// A place is the caller's as long as the permit is kept: longer than the body, or shorter.
#[tokio::test]
async fn a_place_is_held_as_long_as_the_permit_is_kept() {
    #[limit_concurrent_requests("place", 1, permit = place)]
    async fn keeps() -> R<ratelimit_runtime::Permit> {
        Ok(place)
    }
    #[limit_concurrent_requests("place", 1, permit = place)]
    async fn drops() -> R<bool> {
        drop(place);
        Ok(keeps().await.is_ok())
    }
    let calls = async {
        let place = keeps().await.unwrap();
        exceeded(keeps().await);
        drop(place);
        assert!(drops().await.unwrap());
    };
    Limiter::in_memory().scope(calls).await;
}

/// The end of the body does not matter.
#[tokio::test]
async fn a_body_is_charged_the_time_it_takes() {
    #[limit_request_per_time("item", 1, Minutes, 1_000, key = 1, algorithm = SlidingLog, cost = Elapsed(max = "500ms"))]
    async fn call(clock: &ManualClock, how: End) -> R {
        clock.advance(100 * MS);
        body!(how)
    }
    #[limit_request_per_time("item", 1, Minutes, 1_000, key = 1, algorithm = SlidingLog, cost = Elapsed, permit = permit)]
    async fn all_that_remains(clock: &ManualClock) -> R<Duration> {
        clock.advance(100 * MS);
        Ok(permit.remaining_time())
    }
    let clock = ManualClock::new();
    let limiter = in_memory(&clock).await;
    let calls = async {
        call(&clock, Value).await.unwrap();
        assert_eq!(left(&limiter).await, 900);
        call(&clock, Return).await.unwrap();
        refused(call(&clock, Fails).await, Cause::NeverFits);
        let panicked = std::panic::AssertUnwindSafe(call(&clock, Panic)).catch_unwind().await;
        assert!(panicked.is_err());
        assert_eq!(left(&limiter).await, 600);
        let mut held = Box::pin(call(&clock, Never));
        assert!((&mut held).now_or_never().is_none());
        assert_eq!(left(&limiter).await, 100);
        drop(held);
        assert_eq!(left(&limiter).await, 500);
        assert_eq!(all_that_remains(&clock).await.unwrap(), 400 * MS);
        assert_eq!(left(&limiter).await, 400);
    };
    limiter.scope(calls).await;
}

/// Without an outcome, the whole hold is charged.
#[tokio::test]
async fn a_body_is_charged_what_its_outcome_says() {
    fn tokens(outcome: &R) -> u64 {
        outcome.as_ref().map_or(50, |tokens| *tokens)
    }
    #[limit_request_per_time("item", 1, Minutes, 1_000, key = 1, algorithm = SlidingLog, cost = Settled(max = 100, tokens))]
    async fn call(how: End) -> R {
        body!(how)
    }
    #[limit_request_per_time("item", 1, Minutes, 1_000, key = 1, algorithm = SlidingLog, cost = Settled(max = 100, tokens))]
    fn future(how: End) -> impl Future<Output = R> + Send {
        let told = how;
        async move { body!(told) }
    }
    #[limit_request_per_time("item", 1, Minutes, 1_000, key = 1, algorithm = SlidingLog, cost = Settled(|outcome| tokens(outcome).max(1), max = most))]
    fn pinned(how: End, most: u8) -> Pin<Box<dyn Future<Output = R> + Send>> {
        Box::pin(async move { body!(how) })
    }
    struct Client;
    #[async_trait]
    trait Api {
        async fn call(&self, how: End) -> R;
    }
    #[async_trait]
    impl Api for Client {
        #[limit_request_per_time("item", 1, Minutes, 1_000, key = 1, algorithm = SlidingLog, cost = Settled(max = 100, tokens))]
        async fn call(&self, how: End) -> R {
            body!(how)
        }
    }
    let check = async |call: &dyn Fn(End) -> BoxFuture<'static, R>| {
        let limiter = Limiter::in_memory();
        let calls = async {
            assert_eq!(call(Value).await.unwrap(), 1);
            assert_eq!(left(&limiter).await, 999);
            assert_eq!(call(Return).await.unwrap(), 2);
            assert_eq!(left(&limiter).await, 997);
            refused(call(Fails).await, Cause::NeverFits);
            assert_eq!(left(&limiter).await, 947);
            let panicked = std::panic::AssertUnwindSafe(call(Panic)).catch_unwind().await;
            assert!(panicked.is_err());
            assert_eq!(left(&limiter).await, 847);
            let mut held = call(Never);
            assert!((&mut held).now_or_never().is_none());
            assert_eq!(left(&limiter).await, 747);
            drop(held);
            assert_eq!(left(&limiter).await, 747);
        };
        limiter.scope(calls).await;
    };
    check(&|how| call(how).boxed()).await;
    check(&|how| future(how).boxed()).await;
    check(&|how| pinned(how, 100)).await;
    check(&|how| async move { Client.call(how).await }.boxed()).await;
}

/// More than was held, nothing, and several counters at once.
#[tokio::test]
async fn an_outcome_may_cost_more_than_was_held_or_nothing() {
    #[limit_request_per_time("item", 1, Minutes, 1_000, key = 1, algorithm = SlidingLog, cost = Settled(max = 100, |outcome| *outcome.as_ref().unwrap()))]
    async fn call(used: usize) -> R<usize> {
        Ok(used)
    }
    #[limit_concurrent_requests("place", 1)]
    #[limit_request_per_time("other", 1, Minutes, 50, key = 1, algorithm = SlidingLog, cost = Settled(max = 20))]
    #[limit_request_per_time("item", 1, Minutes, 1_000, key = 1, algorithm = SlidingLog, cost = Settled(max = 100, |_| 30))]
    #[limit_request_per_time("calls", 1, Minutes, 2)]
    async fn both() -> R {
        Ok(1)
    }
    let limiter = Limiter::in_memory();
    let calls = async {
        both().await.unwrap();
        assert_eq!(left(&limiter).await, 970);
        both().await.unwrap();
        assert_eq!(left(&limiter).await, 940);
        let other = Rule::new("other", 50, Duration::from_secs(60)).with_algorithm(Algorithm::SlidingLog);
        assert_eq!(limiter.peek(&other, 1).await.unwrap().remaining(), 0);
        exceeded(both().await);
        assert_eq!(left(&limiter).await, 940);
        call(0).await.unwrap();
        assert_eq!(left(&limiter).await, 940);
        call(900).await.unwrap();
        assert_eq!(left(&limiter).await, 40);
        assert_eq!(exceeded(call(1).await).remaining(), 40);
    };
    limiter.scope(calls).await;
}

/// A settled body may return each type that other bodies may.
#[tokio::test]
async fn a_settled_body_may_return_each_type_that_others_may() {
    #[limit_request_per_time("item", 1, Minutes, 1_000, key = 1, algorithm = SlidingLog, cost = Settled(max = 100, |_| 1))]
    async fn unnamed(number: &str) -> Result<impl Display, Box<dyn Error + Send + Sync>> {
        Ok(number.parse::<u64>()?)
    }
    #[limit_request_per_time("item", 1, Minutes, 1_000, key = 1, algorithm = SlidingLog, cost = Settled(max = 100, |_| 1))]
    async fn unnamed_items() -> R<Box<dyn Iterator<Item = impl Display>>> {
        Ok(Box::new([1].into_iter()))
    }
    #[limit_request_per_time("item", 1, Minutes, 1_000, key = 1, algorithm = SlidingLog, cost = Settled(max = 100, |_| 1))]
    async fn unnamed_slice() -> R<Box<[impl Display]>> {
        Ok(vec![1].into_boxed_slice())
    }
    #[limit_request_per_time("item", 1, Minutes, 1_000, key = 1, algorithm = SlidingLog, cost = Settled(max = 100, |_| 1))]
    async fn coerced(one: bool) -> R<Box<dyn Display>> {
        if one {
            return Ok(Box::new(1));
        }
        Ok(Box::new("two"))
    }
    #[limit_request_per_time("item", 1, Minutes, 1_000, key = 1, algorithm = SlidingLog, cost = Settled(max = 100, |_| 1))]
    async fn borrowed<'a>(values: &'a mut [String], name: &str) -> R<(&'a mut String, usize)> {
        tokio::task::yield_now().await;
        Ok((&mut values[0], name.len()))
    }
    #[limit_request_per_time("item", 1, Minutes, 1_000, key = 1, algorithm = SlidingLog, cost = Settled(max = 100, |_| id))]
    async fn sees_what_is_copied(id: u64, mut text: String) -> R<String> {
        text.push_str(&id.to_string());
        Ok(text)
    }
    #[limit_request_per_time("item", 1, Minutes, 1_000, key = 1, algorithm = SlidingLog, cost = Settled(max = 100, |_| 1))]
    async fn diverges() -> R {
        pending().await
    }
    type Answering = Pin<Box<dyn Future<Output = R<String>> + Send>>;
    #[limit_request_per_time("item", 1, Minutes, 1_000, key = 1, algorithm = SlidingLog, cost = Settled(max = 100, |answer: &R<String>| {
        answer.as_ref().map_or(0, String::len)
    }))]
    fn unsaid(answer: String) -> Answering {
        Box::pin(async move { Ok(answer) })
    }
    // Its type is not that of `futures`.
    type BoxFuture<T> = Pin<Box<dyn Future<Output = R<T>> + Send>>;
    #[limit_request_per_time("item", 1, Minutes, 1_000, key = 1, algorithm = SlidingLog, cost = Settled(max = 100, |_: &R<Box<dyn Display + Send>>| 1))]
    fn of_another_type(answer: u64) -> BoxFuture<Box<dyn Display + Send>> {
        Box::pin(async move {
            let answer: R<u64> = Ok(answer);
            Ok(Box::new(answer?))
        })
    }
    #[limit_request_per_time("item", 1, Minutes, 1_000, key = 1, algorithm = SlidingLog, cost = Settled(max = 100, |_| 1))]
    async fn generic<T, E: From<RequestPerMinute>>(value: T) -> Result<T, E> {
        Ok(value)
    }
    let limiter = Limiter::in_memory();
    let calls = async {
        assert_eq!(unnamed("5").await.unwrap().to_string(), "5");
        assert!(unnamed("five").await.is_err());
        assert_eq!(unnamed_items().await.unwrap().count() + unnamed_slice().await.unwrap().len(), 2);
        assert_eq!(coerced(true).await.unwrap().to_string() + &coerced(false).await.unwrap().to_string(), "1two");
        let mut values = vec![String::from("a")];
        borrowed(&mut values, "name").await.unwrap().0.push('b');
        assert_eq!(values, ["ab"]);
        assert_eq!(left(&limiter).await, 993);
        assert_eq!(sees_what_is_copied(5, "a".into()).await.unwrap(), "a5");
        assert_eq!(unsaid("four".into()).await.unwrap(), "four");
        assert_eq!(left(&limiter).await, 984);
        assert_eq!(of_another_type(5).await.unwrap().to_string(), "5");
        assert!(diverges().now_or_never().is_none());
        assert_eq!(generic::<_, RequestPerMinute>(5).await.unwrap(), 5);
        assert_eq!(left(&limiter).await, 882);
    };
    limiter.scope(calls).await;
    drop(send(coerced_is_send()));
}

#[limit_request_per_time("item", 1, Minutes, 1_000, key = 1, algorithm = SlidingLog, cost = Settled(max = 100, |_| 1))]
async fn coerced_is_send() -> R<std::cell::Cell<u64>> {
    let cell = std::cell::Cell::new(1);
    tokio::task::yield_now().await;
    Ok(cell)
}

/// Names of ours and the user's don't meet, in macros neither.
#[tokio::test]
async fn names_in_held_bodies_do_not_clash_with_generated_ones() {
    #[limit_request_per_time("item", 1, Minutes, 1_000, key = 1, algorithm = SlidingLog,
        cost = Settled(max = outcome, |_| outcome + permit))]
    async fn locals(outcome: u64, permit: u64) -> R {
        Ok(outcome + permit)
    }
    macro_rules! of_macro {
        ($name:ident, $max:expr, $used:expr, $argument:ident, $body:block) => {
            #[limit_concurrent_requests("place", 1, lease = "30s")]
            #[limit_request_per_time("item", 1, Minutes, 1_000, key = 1, algorithm = SlidingLog, cost = Settled(max = $max, $used),
                crate = $crate::macros::names::facade::ratelimit_runtime)]
            async fn $name($argument: u64) -> R $body
        };
    }
    of_macro!(of_macro, most + 1, |outcome| outcome.clone().unwrap(), most, {
        let one = most - 1;
        Ok(one)
    });
    let limiter = Limiter::in_memory();
    let calls = async {
        assert_eq!(locals(3, 4).await.unwrap(), 7);
        assert_eq!(left(&limiter).await, 993);
        assert_eq!(of_macro(4).await.unwrap(), 3);
        assert_eq!(left(&limiter).await, 990);
    };
    limiter.scope(calls).await;
}
