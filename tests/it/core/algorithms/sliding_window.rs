//! Sliding windows: the weight of older calls.

use ratelimit_runtime::Rule;

use super::{MINUTE, MS, SECOND, added_up, peek, sliding};
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

/// Six sub-windows of ten seconds, without weights: each counts in full until six later ones have begun.
#[tokio::test]
async fn sub_windows_that_are_added_up_count_in_full_and_leave_at_once() {
    for timed in Timed::both().await {
        let (rule, key) = (Rule::new("six", 100, MINUTE).with_algorithm(added_up(6)), fresh_key());
        for cost in [40, 20, 10] {
            timed.limiter.acquire_n(&rule, key, cost).await.unwrap();
            timed.advance(10 * SECOND);
        }
        // The first one leaves 60 s after it began.
        assert_eq!(peek(&timed, &rule, key).await.remaining(), 30, "{}", timed.name());
        let refused = exceeded(timed.limiter.acquire_n(&rule, key, 71).await);
        assert_eq!(refused.retry_after(), Some(40 * SECOND), "{}", timed.name());
        let refused = exceeded(timed.limiter.acquire_n(&rule, key, 31).await);
        assert_eq!(refused.retry_after(), Some(30 * SECOND), "{}", timed.name());
        let permit = timed.limiter.acquire_n(&rule, key, 1).await.unwrap();
        assert_eq!((permit.remaining(), permit.reset_after()), (29, MINUTE), "{}", timed.name());
        assert_eq!(permit.refund().await.unwrap(), 1, "{}", timed.name());
        for (pause, remaining) in [(29_999 * MS, 30), (MS, 70), (10 * SECOND, 90), (9_999 * MS, 90), (MS, 100)] {
            timed.advance(pause);
            assert_eq!(peek(&timed, &rule, key).await.remaining(), remaining, "{}", timed.name());
        }
    }
}

/// Weighted and added up are two counters: the stored numbers mean something else.
#[tokio::test]
async fn weighted_and_added_up_sub_windows_are_counted_apart() {
    for timed in Timed::both().await {
        let (rule, key) = (Rule::new("apart", 5, MINUTE), fresh_key());
        assert_eq!(admitted(&timed.limiter, &rule.with_algorithm(sliding(6)), key, 9).await, 5, "{}", timed.name());
        assert_eq!(admitted(&timed.limiter, &rule.with_algorithm(added_up(6)), key, 9).await, 5, "{}", timed.name());
    }
}
