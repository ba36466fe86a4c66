//! The words of the attribute for algorithms, and their options.

use std::time::Duration;

use ratelimit_runtime::{Cause, Limiter, ManualClock, RequestPerMinute, limit_request_per_time};

use crate::support::{ends, in_memory, settle};

type R = Result<(), RequestPerMinute>;

const MS: Duration = Duration::from_millis(1);

/// Number of calls that run at once, and milliseconds until the next one runs.
async fn run_at_once(call: impl AsyncFn(&Limiter) -> R) -> (u64, u128) {
    let clock = ManualClock::new();
    let limiter = in_memory(&clock).await;
    for admitted in 0..100 {
        if let Err(refused) = call(&limiter).await {
            assert_eq!(refused.cause(), Cause::Exceeded, "{refused}");
            let wait = refused.retry_after().unwrap();
            clock.advance(wait - MS);
            call(&limiter).await.unwrap_err();
            clock.advance(MS);
            call(&limiter).await.unwrap();
            return (admitted, wait.as_millis());
        }
    }
    panic!("no call was refused");
}

/// Four calls in the first sub-window, which begins at the full minute. One of them counts no longer when a quarter of
/// that sub-window is more than a minute ago.
#[tokio::test]
async fn sliding_window_with_buckets_fades_the_oldest_bucket() {
    const BUCKETS: u64 = 30;

    #[limit_request_per_time("item", 1, Minutes, 4, algorithm = SlidingWindow, limiter = limiter)]
    async fn one(limiter: &Limiter) -> R {
        Ok(())
    }
    #[limit_request_per_time("item", 1, Minutes, 4, algorithm = SlidingWindow(buckets = 2), limiter = limiter)]
    async fn two(limiter: &Limiter) -> R {
        Ok(())
    }
    #[limit_request_per_time("item", 1, Minutes, 4, algorithm = Algorithm::SlidingWindow(buckets = 2 * BUCKETS),
        limiter = limiter)]
    async fn sixty(limiter: &Limiter) -> R {
        Ok(())
    }
    #[limit_request_per_time("item", 1, Minutes, limit, algorithm = SlidingWindow(buckets = 2), limiter = limiter)]
    async fn dynamic(limiter: &Limiter, limit: u64) -> R {
        Ok(())
    }
    assert_eq!(run_at_once(one).await, (4, 75_000));
    assert_eq!(run_at_once(two).await, (4, 67_500));
    assert_eq!(run_at_once(sixty).await, (4, 60_250));
    assert_eq!(run_at_once(async |limiter| dynamic(limiter, 4).await).await, (4, 67_500));
}

/// Four calls in the first sub-window. All of them count until it began a minute ago.
#[tokio::test]
async fn sliding_window_without_weights_adds_up_its_buckets() {
    #[limit_request_per_time("item", 1, Minutes, 4, algorithm = SlidingWindow(weighted = false), limiter = limiter)]
    async fn one(limiter: &Limiter) -> R {
        Ok(())
    }
    #[limit_request_per_time("item", 1, Minutes, 4, algorithm = SlidingWindow(buckets = 6, weighted = false),
        limiter = limiter)]
    async fn six(limiter: &Limiter) -> R {
        Ok(())
    }
    #[limit_request_per_time("item", 1, Minutes, 4, algorithm = SlidingWindow(buckets = 2, weighted = true),
        limiter = limiter)]
    async fn weighted(limiter: &Limiter) -> R {
        Ok(())
    }
    assert_eq!(run_at_once(one).await, (4, 60_000));
    assert_eq!(run_at_once(six).await, (4, 60_000));
    assert_eq!(run_at_once(weighted).await, (4, 67_500));
}

#[tokio::test]
async fn token_bucket_has_a_burst_and_a_refill() {
    const BURST: u64 = 5;

    #[limit_request_per_time("item", 1, Seconds, 10, algorithm = TokenBucket, limiter = limiter)]
    async fn plain(limiter: &Limiter) -> R {
        Ok(())
    }
    #[limit_request_per_time("item", 1, Seconds, 10, algorithm = TokenBucket(burst = 2), limiter = limiter)]
    async fn small(limiter: &Limiter) -> R {
        Ok(())
    }
    #[limit_request_per_time("item", 1, Seconds, 2, algorithm = TokenBucket(burst = BURST, refill = Refill::Greedy),
        limiter = limiter)]
    async fn large(limiter: &Limiter) -> R {
        Ok(())
    }
    #[limit_request_per_time("item", 1, Seconds, 2, algorithm = TokenBucket(refill = Interval), limiter = limiter)]
    async fn by_interval(limiter: &Limiter) -> R {
        Ok(())
    }
    #[limit_request_per_time("item", 1, Seconds, 2, algorithm = TokenBucket(refill = Interval, burst = 5),
        limiter = limiter)]
    async fn large_by_interval(limiter: &Limiter) -> R {
        Ok(())
    }
    assert_eq!(run_at_once(plain).await, (10, 100));
    assert_eq!(run_at_once(small).await, (2, 100));
    assert_eq!(run_at_once(large).await, (5, 500));
    assert_eq!(run_at_once(by_interval).await, (2, 1000));
    assert_eq!(run_at_once(large_by_interval).await, (5, 1000));
}

/// The burst is the count unless it is given, also for a count that is computed by the call.
#[tokio::test]
async fn the_burst_of_a_token_bucket_is_the_count_of_the_call() {
    #[limit_request_per_time("item", 1, Seconds, limit, algorithm = TokenBucket, limiter = limiter)]
    async fn plain(limiter: &Limiter, limit: i32) -> R {
        Ok(())
    }
    #[limit_request_per_time("item", 1, Seconds, limit, algorithm = TokenBucket(burst = 5, refill = Interval),
        limiter = limiter)]
    async fn large(limiter: &Limiter, limit: i32) -> R {
        Ok(())
    }
    assert_eq!(run_at_once(async |limiter| plain(limiter, 2).await).await, (2, 500));
    assert_eq!(run_at_once(async |limiter| large(limiter, 2).await).await, (5, 1000));
    let limiter = Limiter::in_memory();
    for refused in [plain(&limiter, 0).await, large(&limiter, 0).await, plain(&limiter, -1).await] {
        let refused = refused.unwrap_err();
        assert_eq!((refused.cause(), refused.limit()), (Cause::NeverFits, 0), "{refused}");
    }
}

/// One call runs every 100 ms, and the callers in the queue sleep until it is their turn.
#[tokio::test]
async fn leaky_bucket_has_a_queue_of_sleeping_callers() {
    const QUEUE: u64 = 2;

    #[limit_request_per_time("item", 1, Seconds, 10, algorithm = LeakyBucket(queue = 0), limiter = &limiter)]
    async fn none(limiter: Limiter) -> R {
        Ok(())
    }
    #[limit_request_per_time("item", 1, Seconds, 10, algorithm = LeakyBucket(queue = 1), limiter = &limiter)]
    async fn one(limiter: Limiter) -> R {
        Ok(())
    }
    #[limit_request_per_time("item", 1, Seconds, 5 + 5, algorithm = LeakyBucket(queue = QUEUE), limiter = &limiter)]
    async fn two(limiter: Limiter) -> R {
        Ok(())
    }
    queues(none, 0).await;
    queues(one, 1).await;
    queues(two, 2).await;
}

/// The first runs at once, as many as fit the queue one after another, and the next is refused.
async fn queues<F: Future<Output = R> + Send + 'static>(call: impl Fn(Limiter) -> F, queue: usize) {
    let clock = ManualClock::new();
    let limiter = in_memory(&clock).await;
    ends(call(limiter.clone())).await.unwrap();
    let mut sleeping = Vec::new();
    for _ in 0..queue {
        sleeping.push(tokio::spawn(call(limiter.clone())));
        settle().await;
    }
    let refused = ends(call(limiter.clone())).await.unwrap_err();
    assert_eq!((refused.cause(), refused.retry_after()), (Cause::Exceeded, Some(100 * MS)), "{refused}");
    for next in sleeping {
        clock.advance(99 * MS);
        settle().await;
        assert!(!next.is_finished());
        clock.advance(MS);
        ends(next).await.unwrap().unwrap();
    }
}
