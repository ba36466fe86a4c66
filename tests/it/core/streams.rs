//! Streams whose items are limited.

use std::time::Duration;

use futures_util::{FutureExt, Stream, StreamExt, stream};
use ratelimit_runtime::{Algorithm, Cause, Limiter, ManualClock, Rule};

use crate::support::{SECOND, Timed, exceeded, fresh_key};

const TWO: Rule = Rule::new("rows", 2, Duration::from_secs(1));

#[tokio::test]
async fn items_wait_until_the_rule_admits_them() {
    let clock = ManualClock::new();
    let limiter = Limiter::builder("memory://").clock(clock.clone()).build().await.unwrap();
    let mut rows = limiter.limit_stream(&TWO, 1, stream::iter(1..=5));
    assert_eq!(rows.size_hint(), (5, None));
    for expected in [[1, 2], [3, 4]] {
        for row in expected {
            assert_eq!(rows.next().now_or_never().unwrap(), Some(Ok(row)));
        }
        assert!(rows.next().now_or_never().is_none());
        clock.advance(SECOND);
    }
    assert_eq!(rows.size_hint(), (1, None));
    assert_eq!(rows.next().await, Some(Ok(5)));
    // The end charges nothing.
    assert_eq!(rows.next().await, None);
    assert_eq!(limiter.peek(&TWO, 1).await.unwrap().remaining(), 1);
}

/// In memory and on Redis.
#[tokio::test]
async fn streams_and_calls_of_one_key_share_its_counter() {
    for timed in Timed::both().await {
        let (limiter, id) = (&timed.limiter, fresh_key());
        let slow = Rule::new("slow", 3, 60 * SECOND);
        let [mut one, mut other] = [0, 10].map(|first| limiter.limit_stream(&slow, id, stream::iter(first..)));
        assert_eq!((one.next().await, other.next().await), (Some(Ok(0)), Some(Ok(10))));
        limiter.acquire(&slow, id).await.unwrap();
        assert!(tokio::time::timeout(SECOND / 5, one.next()).await.is_err(), "{}", timed.name());
        exceeded(limiter.acquire(&slow, id).await);
        // An item whose stream is dropped is not charged, and the other stream is next.
        drop(one);
        timed.advance(60 * SECOND);
        assert_eq!(other.next().await, Some(Ok(11)), "{}", timed.name());
    }
}

#[tokio::test]
async fn an_item_holds_no_place() {
    let limiter = Limiter::in_memory();
    let places = TWO.with_algorithm(Algorithm::Concurrent);
    let refused = limiter.limit_stream(&places, 1, stream::iter(["a"])).next().await.unwrap().unwrap_err();
    assert_eq!(refused.cause(), Cause::Misconfigured);
}

/// Each other key fails while the store is full.
#[tokio::test]
async fn an_item_that_was_refused_is_asked_for_again() {
    let limiter = Limiter::builder("memory://").max_keys(1).build().await.unwrap();
    limiter.acquire(&TWO, "first").await.unwrap();
    let mut rows = limiter.limit_stream(&TWO, "second", stream::iter(["a", "b"]));
    for _ in 0..2 {
        let refused = rows.next().await.unwrap().unwrap_err();
        assert_eq!(refused.cause(), Cause::Unavailable);
    }
    limiter.reset(&TWO, "first").await.unwrap();
    assert_eq!(rows.map(Result::unwrap).collect::<Vec<_>>().await, ["a", "b"]);
}
