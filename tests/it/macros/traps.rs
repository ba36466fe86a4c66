//! Mistakes that once passed silently, names of items, and lints of the body.

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use ratelimit_runtime::{Algorithm, Cause, Limiter, Rule, limit_concurrent_requests, limit_request_per_time};
use tokio::time::Duration;
use tracing::Instrument as _;

use super::{R, exceeded, limits_each_key, refused};

/// Items cannot be hidden by hygiene: a local with the name of one of them would be a pattern.
mod items {
    #![allow(dead_code, non_camel_case_types, non_upper_case_globals)]

    use ratelimit_runtime::{Limiter, limit_concurrent_requests, limit_request_per_time};

    use super::R;

    static key: &str = "key";
    static limiter: u64 = 1;
    const count: u64 = 1;
    const permit: u64 = 1;
    const decided: u64 = 1;
    struct refused;
    struct cost;
    struct deciding;
    struct undecided;
    struct outcome;
    struct _permit;

    #[limit_request_per_time("item", 1, Hours, count = count, key = id, cost = id.min(1), limiter = own)]
    pub(super) async fn call(id: u64, own: &Limiter) -> R {
        Ok(id)
    }

    #[limit_request_per_time("item", 1, Hours, 1, key = id, on_limit = Return(Ok(id + 10)))]
    #[limit_concurrent_requests("place", id, key = id, permit = place)]
    pub(super) async fn held(id: u64) -> R {
        assert!(place.is_held());
        Ok(id)
    }

    #[limit_request_per_time("item", 1, Hours, 10, algorithm = SlidingLog, cost = Settled(max = 5, |_| 5))]
    pub(super) async fn settled(id: u64) -> R {
        Ok(id)
    }

    #[limit_request_per_time("item", 1, Hours, 1, key = id)]
    pub(super) async fn const_parameters<const key: u64, const deciding: u64, const count: u64>(id: u64) -> R {
        Ok(id + key + deciding + count)
    }
}

#[tokio::test]
async fn items_named_like_the_locals() {
    let limiter = Limiter::in_memory();
    limits_each_key(async |id| items::call(id, &limiter).await).await;
    limits_each_key(items::const_parameters::<0, 0, 0>).await;
    let calls = async {
        assert_eq!([items::held(1).await.unwrap(), items::held(1).await.unwrap()], [1, 11]);
        assert_eq!([items::settled(1).await.unwrap(), items::settled(2).await.unwrap()], [1, 2]);
        exceeded(items::settled(3).await);
    };
    Limiter::in_memory().scope(calls).await;
}

/// Only the call shows that both limits charge one counter.
#[tokio::test]
async fn one_counter_twice() {
    const NAME: &str = "twice";
    #[limit_request_per_time(NAME, 1, Minutes, 5)]
    #[limit_request_per_time("twice", 1, Minutes, 50)]
    async fn without_key() -> R {
        Ok(1)
    }
    #[limit_request_per_time("twice", 1, Minutes, 5, key = a)]
    #[limit_concurrent_requests("place", 1)]
    #[limit_request_per_time("twice", 1, Minutes, 50, key = b, shadow = true)]
    async fn of_keys(a: u64, b: &str) -> R {
        Ok(a)
    }
    let calls = async {
        let error = refused(without_key().await, Cause::Misconfigured);
        assert!(error.to_string().contains("give it another prefix"), "{error}");
        refused(of_keys(1, "1").await, Cause::Misconfigured);
        for _ in 0..5 {
            of_keys(1, "2").await.unwrap();
        }
        exceeded(of_keys(1, "2").await);
    };
    Limiter::in_memory().scope(calls).await;
}

/// A limit of two keys is meant to charge both, even if they are equal.
#[tokio::test]
async fn one_limit_of_two_equal_keys() {
    #[limit_request_per_time("account", 1, Minutes, 5, key = from)]
    #[limit_request_per_time("account", 1, Minutes, 5, key = to)]
    async fn transfer(from: u64, to: u64) -> R {
        Ok(from)
    }
    let calls = async {
        transfer(1, 1).await.unwrap();
        transfer(1, 2).await.unwrap();
        transfer(1, 1).await.unwrap();
        assert_eq!(exceeded(transfer(1, 2).await).remaining(), 0);
    };
    Limiter::in_memory().scope(calls).await;
}

#[tokio::test]
async fn negative_numbers() {
    #[limit_request_per_time("count", 1, Minutes, count = count, on_limit = Return(Ok(0)))]
    async fn of_count(count: i64) -> R {
        Ok(1)
    }
    #[limit_request_per_time("cost", 1, Minutes, 10, cost = cost)]
    async fn of_cost(cost: i64) -> R {
        Ok(1)
    }
    #[limit_request_per_time("cost", 1, Minutes, 10, cost = cost, permit = permit, on_limit = Wait)]
    async fn with_permit(cost: i64) -> R {
        Ok(permit.remaining())
    }
    #[limit_request_per_time("cost", 1, Minutes, 10, cost = cost)]
    #[limit_request_per_time("others", 1, Minutes, 10)]
    async fn beside_others(cost: i64) -> R {
        Ok(1)
    }
    #[limit_request_per_time("used", 1, Minutes, 10, key = 1, algorithm = SlidingLog, cost = Settled(max = max, |_| used))]
    async fn settled(max: i64, used: i64) -> R {
        Ok(1)
    }
    let limiter = Limiter::in_memory();
    let calls = async {
        assert_eq!(of_count(-5).await.unwrap(), 0);
        for error in [of_cost(-1).await, with_permit(-1).await, beside_others(-1).await, settled(-1, 1).await] {
            let error = refused(error, Cause::Misconfigured);
            assert!(error.to_string().contains("its cost is negative"), "{error}");
        }
        refused(of_cost(i64::MAX).await, Cause::NeverFits);
        assert_eq!(with_permit(4).await.unwrap(), 6);
        let used = Rule::new("used", 10, Duration::from_secs(60)).with_algorithm(Algorithm::SlidingLog);
        let left = async || limiter.peek(&used, 1).await.unwrap().remaining();
        settled(3, 1).await.unwrap();
        assert_eq!(left().await, 9);
        settled(3, -1).await.unwrap();
        assert_eq!(left().await, 6, "what was held");
    };
    limiter.scope(calls).await;
}

/// The largest burst depends on a count that only the call knows. A count of 0 refuses each cost, and bounds no burst.
#[tokio::test]
async fn a_large_burst_of_a_dynamic_count() {
    #[limit_request_per_time("bucket", 1, Days, limit, algorithm = TokenBucket(burst = 1_000_000_000, refill = Interval))]
    async fn call(limit: u64) -> R {
        Ok(limit)
    }
    let calls = async {
        call(100).await.unwrap();
        refused(call(1).await, Cause::Misconfigured);
        refused(call(0).await, Cause::NeverFits);
    };
    Limiter::in_memory().scope(calls).await;
}

/// Behind methods that do not change the output, and in a block.
#[tokio::test]
async fn returned_futures() {
    #[limit_request_per_time("instrument", 1, Hours, 1, key = id)]
    fn instrumented(id: u64) -> impl Future<Output = R> + Send {
        async move { Ok(id) }.instrument(tracing::Span::none())
    }
    #[limit_request_per_time("current", 1, Hours, 1, key = id)]
    fn boxed(id: u64) -> BoxFuture<'static, R> {
        {
            let next = id + 1;
            async move { Ok(next - 1) }.in_current_span().boxed()
        }
    }
    limits_each_key(instrumented).await;
    limits_each_key(boxed).await;
}

/// A string may be a part of a key, and an expression may begin with the name of an argument.
#[tokio::test]
async fn what_only_looks_like_a_mistake() {
    const fn ttl() -> u64 {
        1
    }
    #[limit_request_per_time("item", ttl(), Hours, 1, key = ("seller", id))]
    async fn call(id: u64) -> R {
        Ok(id)
    }
    limits_each_key(call).await;
}

/// Clippy still looks at the body: it looks at no block that a macro generates.
mod lints {
    #![warn(
        clippy::items_after_statements,
        clippy::missing_panics_doc,
        clippy::panic,
        clippy::print_stdout,
        clippy::todo,
        clippy::unimplemented,
        clippy::unreachable
    )]

    use ratelimit_runtime::limit_request_per_time;

    use super::R;

    #[expect(clippy::todo)]
    #[limit_request_per_time("item", 1, Hours, 1)]
    pub(super) async fn todo() -> R {
        todo!()
    }

    #[expect(clippy::panic)]
    #[limit_request_per_time("item", 1, Hours, 1)]
    pub(super) async fn panic(id: u64) -> R {
        panic!("{id}")
    }

    #[expect(clippy::unimplemented)]
    #[limit_request_per_time("item", 1, Hours, 1)]
    pub(super) async fn unimplemented() -> R {
        unimplemented!()
    }

    #[expect(clippy::unreachable, clippy::print_stdout)]
    #[limit_request_per_time("item", 1, Hours, 1)]
    pub(super) async fn unreachable() -> R {
        println!("text");
        unreachable!()
    }

    #[expect(clippy::items_after_statements)]
    #[limit_request_per_time("item", 1, Hours, 1)]
    pub(super) async fn item_after_statement(id: u64) -> R {
        let next = id + 1;
        const ONE: u64 = 1;
        Ok(next - ONE)
    }

    #[expect(clippy::needless_return, clippy::todo)]
    #[limit_request_per_time("log", 1, Hours, 1, algorithm = SlidingLog, cost = Settled(max = 1, |_| 1))]
    pub(super) async fn settled(is_ready: bool) -> R {
        if !is_ready {
            todo!();
        }
        return Ok(1);
    }

    #[expect(clippy::manual_async_fn, clippy::needless_return)]
    #[limit_request_per_time("item", 1, Hours, 1)]
    pub(super) fn returned() -> impl Future<Output = R> {
        async move {
            return Ok(1);
        }
    }
}

#[tokio::test]
async fn the_bodies_that_clippy_looks_at_run() {
    drop((lints::todo(), lints::panic(1), lints::unimplemented(), lints::unreachable()));
    let calls = async {
        assert_eq!(lints::item_after_statement(1).await.unwrap(), 1);
        assert_eq!(lints::settled(true).await.unwrap(), 1);
        exceeded(lints::returned().await);
    };
    Limiter::in_memory().scope(calls).await;
}
