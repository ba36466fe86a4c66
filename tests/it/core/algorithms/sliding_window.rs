//! Sliding windows: the weight of older calls.

use ratelimit_runtime::Rule;

use super::{MINUTE, MS, SECOND, peek, sliding};
use crate::support::{Timed, admitted, exceeded, fresh_key};

/// 84 in the last minute and 36 in this one, a quarter of a minute old: 84 × 45/60 + 36 = 99.
#[tokio::test]
async fn a_sliding_window_weights_the_previous_window_by_its_overlap() {
    for timed in Timed::both().await {
        let (rule, key) = (Rule::new("weighted", 100, MINUTE).with_algorithm(sliding(1)), fresh_key());
        timed.advance(MINUTE / 2);
        timed.limiter.acquire_n(&rule, key, 84).await.unwrap();
        timed.advance(MINUTE / 2 + MINUTE / 4);
        let permit = timed.limiter.acquire_n(&rule, key, 36).await.unwrap();
        assert_eq!((permit.remaining(), permit.limit()), (1, 100), "{}", timed.name());
        assert_eq!(permit.reset_after(), MINUTE + 3 * MINUTE / 4, "{}", timed.name());
        assert_eq!(exceeded(timed.limiter.acquire_n(&rule, key, 2).await).remaining(), 1, "{}", timed.name());
        timed.limiter.acquire(&rule, key).await.unwrap();
        // 62 of the 84 count from 84 × 44.286/60 on.
        assert_eq!(exceeded(timed.limiter.acquire(&rule, key).await).retry_after(), Some(715 * MS), "{}", timed.name());
        timed.advance(715 * MS);
        assert_eq!(admitted(&timed.limiter, &rule, key, 9).await, 1, "{}", timed.name());
    }
}

/// Six sub-windows of ten seconds: whole ones count whole, and only the oldest fades.
#[tokio::test]
async fn a_sliding_window_of_several_buckets_weights_only_the_oldest() {
    for timed in Timed::both().await {
        let (rule, key) = (Rule::new("six", 100, MINUTE).with_algorithm(sliding(6)), fresh_key());
        for cost in [40, 20, 10] {
            timed.limiter.acquire_n(&rule, key, cost).await.unwrap();
            timed.advance(10 * SECOND);
        }
        for (pause, remaining) in [(0, 30), (29, 30), (1, 30), (5, 50), (5, 70), (5, 80), (5, 90), (9, 99), (1, 100)] {
            timed.advance(pause * SECOND);
            assert_eq!(peek(&timed, &rule, key).await.remaining(), remaining, "{}", timed.name());
        }
    }
}
