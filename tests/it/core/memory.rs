//! The memory store is bounded, and its bound gives no caller a fresh counter.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ratelimit_runtime::{Algorithm, Cause, Key, Limiter, ManualClock, OnStoreError, Refill, Rule};

use crate::support::{ALGORITHMS, BUCKET, By, INTERVAL, WINDOWS, admitted, exceeded, in_memory, lifetime};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

async fn holding(max_keys: usize, policy: OnStoreError) -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    let builder = Limiter::builder("memory://").clock(clock.clone()).max_keys(max_keys).on_store_error(policy);
    (builder.build().await.unwrap(), clock)
}

#[tokio::test]
async fn a_full_store_refuses_new_keys_and_keeps_all_old_ones() {
    for algorithm in ALGORITHMS {
        for max_keys in [1, 2, 100, 1000] {
            let (limiter, clock) = holding(max_keys, OnStoreError::Deny).await;
            let rule = Rule::new("full", 3, MINUTE).by(algorithm);
            for key in 0..max_keys {
                limiter.acquire(&rule, key).await.unwrap_or_else(|error| panic!("{key} of {max_keys}: {error}"));
            }
            for stranger in 0..1_500 {
                let refused = limiter.acquire(&rule, ("stranger", stranger)).await.unwrap_err();
                assert_eq!(refused.cause(), Cause::Unavailable, "{refused}");
                assert_eq!(refused.retry_after(), None);
            }
            // Looking takes no room, and needs none.
            assert_eq!(limiter.peek(&rule, "stranger").await.unwrap().remaining(), 3);
            for key in 0..max_keys {
                assert_eq!(limiter.peek(&rule, key).await.unwrap().remaining(), 2, "{algorithm:?}, {max_keys}");
                assert_eq!(admitted(&limiter, &rule, key as u64, 5).await, 2, "{algorithm:?}, {max_keys}");
            }

            // Once nothing of it counts, all of them are as good as new: there is room for as many again.
            clock.advance(lifetime(&rule) + SECOND);
            for key in 0..max_keys {
                limiter
                    .acquire(&rule, ("next", key))
                    .await
                    .unwrap_or_else(|error| panic!("{key} of {max_keys}: {error}"));
            }
            limiter.acquire(&rule, 0).await.unwrap_err();
        }
    }
}

#[tokio::test]
async fn the_failure_policy_decides_on_a_full_store() {
    let rule = Rule::new("full", 1, MINUTE);
    for (policy, let_through) in
        [(OnStoreError::Local, false), (OnStoreError::Deny, false), (OnStoreError::Allow, true)]
    {
        let (limiter, _clock) = holding(10, policy).await;
        for key in 0..10 {
            limiter.acquire(&rule, key).await.unwrap();
        }
        let answer = limiter.acquire(&rule, "eleventh").await;
        assert_eq!(answer.is_ok(), let_through, "{policy:?}");
        if let Err(refused) = answer {
            assert_eq!(refused.cause(), Cause::Unavailable);
        }
        assert_eq!(exceeded(limiter.acquire(&rule, 3).await).rule(), "full", "{policy:?}: a live counter goes on");
    }
}

/// A counter that is stored is charged without a look at all of the rule: only rules without a fault may find it.
#[tokio::test]
async fn an_invalid_rule_does_not_charge_the_counter_of_a_valid_one() {
    let (limiter, _clock) = holding(10, OnStoreError::Deny).await;
    let right = Rule::new("item", 9_999_999_999, SECOND);
    limiter.acquire(&right, 1).await.unwrap();
    for fault in [
        Rule::new("item", 10_000_000_000, SECOND),
        Rule::new("item", 1, SECOND + Duration::from_nanos(1)),
        Rule::new("item", 1, SECOND + Duration::from_secs(1 << 34)),
    ] {
        let refused = limiter.acquire(&fault, 1).await.unwrap_err();
        assert_eq!(refused.cause(), Cause::Misconfigured, "{fault:?}");
    }
    assert_eq!(limiter.peek(&right, 1).await.unwrap().remaining(), 9_999_999_998);
}

#[tokio::test]
async fn a_refund_or_a_reset_makes_room_in_a_full_store() {
    for algorithm in ALGORITHMS {
        let (limiter, _clock) = holding(2, OnStoreError::Deny).await;
        let rule = Rule::new("room", 3, MINUTE).by(algorithm);
        let permit = limiter.acquire(&rule, 1).await.unwrap();
        limiter.acquire(&rule, 2).await.unwrap();
        limiter.acquire(&rule, 3).await.unwrap_err();
        assert_eq!(permit.refund().await.unwrap(), 1);
        limiter.acquire(&rule, 3).await.unwrap();
        limiter.acquire(&rule, 4).await.unwrap_err();
        limiter.reset(&rule, 2).await.unwrap();
        limiter.acquire(&rule, 4).await.unwrap();
        limiter.acquire(&rule, 5).await.unwrap_err();
        // What grants nothing takes no room.
        limiter.reset(&rule, 4).await.unwrap();
        limiter.acquire_n(&rule, "looked", 0).await.unwrap();
        limiter.peek(&rule, "at").await.unwrap();
        limiter.acquire(&rule, 6).await.unwrap();
    }
}

/// No half of a stack is charged where there is no room for the other half.
#[tokio::test]
async fn several_rules_without_room_for_all_charge_nothing() {
    let (limiter, _clock) = holding(3, OnStoreError::Deny).await;
    let rule = Rule::new("stack", 5, MINUTE);
    limiter.acquire(&rule, "old").await.unwrap();
    limiter.acquire(&rule, "older").await.unwrap();
    let charges = [(&rule, Key::new("old"), 1), (&rule, Key::new("new"), 1), (&rule, Key::new("newer"), 1)];
    assert_eq!(limiter.acquire_all(&charges).await.unwrap_err().cause(), Cause::Unavailable);
    assert_eq!(limiter.peek(&rule, "old").await.unwrap().remaining(), 4);
    limiter.acquire_all(&charges[..2]).await.unwrap();
}

/// Keys come and go far above what the store holds; every call is answered, and no key gets more than its limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn keys_far_above_the_capacity_are_all_answered_and_limited() {
    for algorithm in ALGORITHMS {
        let (limiter, clock) = holding(500, OnStoreError::Deny).await;
        let rule = Rule::new("far", 2, SECOND).by(algorithm);
        let (served, refused) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let mut tasks = tokio::task::JoinSet::new();
        for task in 0..4_u32 {
            let (limiter, clock) = (limiter.clone(), clock.clone());
            let (served, refused) = (Arc::clone(&served), Arc::clone(&refused));
            tasks.spawn(async move {
                for call in 0..10_000_u32 {
                    match limiter.acquire(&rule, (task, call)).await {
                        Ok(_) => served.fetch_add(1, Ordering::Relaxed),
                        Err(error) => {
                            assert_eq!(error.cause(), Cause::Unavailable);
                            refused.fetch_add(1, Ordering::Relaxed)
                        }
                    };
                    if task == 0 && call % 50 == 0 {
                        clock.advance(SECOND / 10);
                    }
                }
            });
        }
        tasks.join_all().await;
        let (served, refused) = (served.load(Ordering::Relaxed), refused.load(Ordering::Relaxed));
        assert_eq!(served + refused, 40_000);
        // 20 seconds pass. A key charged once is as good as new after a second, or after half a
        // second for a bucket of two a second. At most 500 new keys fit in each of these times, and
        // in the one before the first.
        let lives = if algorithm == BUCKET { 40 } else { 20 };
        assert!((501..=(lives + 2) * 500).contains(&served), "{served} served, {algorithm:?}");
    }
}

/// New keys do not push an old one out of the store.
#[tokio::test]
async fn a_flood_of_new_keys_evicts_no_counter() {
    for algorithm in ALGORITHMS {
        let (limiter, clock) = holding(50, OnStoreError::Deny).await;
        let quiet = in_memory(&clock).await;
        let (rule, flood) = (Rule::new("victim", 5, MINUTE).by(algorithm), Rule::new("flood", 1, SECOND));
        assert_eq!(admitted(&limiter, &rule, 1, 9).await, 5);
        assert_eq!(admitted(&quiet, &rule, 1, 9).await, 5);
        for second in 0..130_u64 {
            for key in 0..200_u64 {
                let _ = limiter.acquire(&flood, (second, key)).await;
            }
            let victim = limiter.peek(&rule, 1).await.unwrap();
            assert_eq!(victim, quiet.peek(&rule, 1).await.unwrap(), "after {second} s, {algorithm:?}");
            let full = if second < 60 { 0 } else { 5 };
            if WINDOWS.contains(&algorithm) || algorithm == INTERVAL {
                assert_eq!(victim.remaining(), full, "after {second} s, {algorithm:?}");
            }
            clock.advance(SECOND);
        }
        assert_eq!(admitted(&limiter, &rule, 1, 9).await, 5);
    }
}

/// Counters end one after another, and each makes room for a new key in the millisecond of its end.
#[tokio::test]
async fn a_full_store_admits_a_new_key_as_soon_as_a_counter_has_ended() {
    const A_MILLISECOND: u64 = 5;
    let millis = 60_000;
    for algorithm in [WINDOWS[0], BUCKET] {
        let max_keys = millis * A_MILLISECOND;
        let (limiter, clock) = holding(usize::try_from(max_keys).unwrap(), OnStoreError::Deny).await;
        let rule = Rule::new("even", 1, MINUTE).by(algorithm);
        let mut keys = 0..;
        let mut refused = 0;
        for millisecond in 0..millis + 2_000 {
            for key in keys.by_ref().take(usize::try_from(A_MILLISECOND).unwrap()) {
                let key: u64 = key;
                refused += u64::from(limiter.acquire(&rule, key).await.is_err());
            }
            assert_eq!(refused, 0, "{algorithm:?}, in millisecond {millisecond}");
            if millisecond >= millis {
                limiter.acquire(&rule, "one more").await.unwrap_err();
            }
            clock.advance(Duration::from_millis(1));
        }
    }
}

fn bucket_of_five(count: u64) -> Rule {
    let algorithm = Algorithm::TokenBucket { burst: 5, refill: Refill::Greedy };
    Rule::new("full", count, SECOND).with_algorithm(algorithm)
}

#[tokio::test]
async fn a_bucket_that_is_full_sooner_by_a_refund_makes_room_sooner() {
    let (limiter, clock) = holding(1, OnStoreError::Deny).await;
    let permit = limiter.acquire_n(&bucket_of_five(1), 0, 4).await.unwrap();
    limiter.acquire(&bucket_of_five(1), 0).await.unwrap();
    permit.refund().await.unwrap();
    clock.advance(Duration::from_millis(999));
    limiter.acquire(&bucket_of_five(1), 1).await.unwrap_err();
    clock.advance(Duration::from_millis(1));
    limiter.acquire(&bucket_of_five(1), 1).await.unwrap();
}

/// Otherwise a charge by the lower count could be refunded although it has refilled.
#[tokio::test]
async fn a_bucket_whose_count_was_raised_is_kept_until_it_is_full_by_the_lower_one() {
    let (limiter, clock) = holding(1, OnStoreError::Deny).await;
    limiter.acquire_n(&bucket_of_five(1), 0, 5).await.unwrap();
    clock.advance(Duration::from_millis(1));
    limiter.acquire(&bucket_of_five(1000), 0).await.unwrap();
    clock.advance(Duration::from_millis(4998));
    assert_eq!(limiter.peek(&bucket_of_five(1000), 0).await.unwrap().remaining(), 5);
    limiter.acquire(&bucket_of_five(1000), 1).await.unwrap_err();
    clock.advance(Duration::from_millis(1));
    limiter.acquire(&bucket_of_five(1000), 1).await.unwrap();
}

/// A full store with room for others in its overflow.
async fn overflowing(max_keys: usize, overflow_bytes: usize) -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    let builder = Limiter::builder("memory://").clock(clock.clone()).max_keys(max_keys);
    (builder.overflow_bytes(overflow_bytes).build().await.unwrap(), clock)
}

#[tokio::test]
async fn new_keys_of_a_full_store_are_counted_in_its_overflow() {
    let rule = Rule::new("overflow", 3, MINUTE);
    let (limiter, clock) = overflowing(1, 1 << 16).await;
    limiter.acquire(&rule, 0).await.unwrap();
    for key in 1..10 {
        assert_eq!(admitted(&limiter, &rule, key, 5).await, 3, "{key}");
        let refused = exceeded(limiter.acquire(&rule, key).await);
        assert!(refused.retry_after() <= Some(2 * MINUTE), "{refused:?}");
        let too_large = limiter.acquire_n(&rule, key, u64::MAX).await.unwrap_err();
        assert_eq!(too_large.cause(), Cause::NeverFits);
        assert_eq!(limiter.peek(&rule, key).await.unwrap().remaining(), 0);
    }
    // A counter that is stored is not affected.
    assert_eq!(limiter.peek(&rule, 0).await.unwrap().remaining(), 2);
    // Nothing is refunded there, as keys share cells.
    clock.advance(3 * MINUTE);
    limiter.acquire(&rule, 0).await.unwrap();
    let permit = limiter.acquire(&rule, 1).await.unwrap();
    assert_eq!(permit.refund().await.unwrap(), 0);
    assert_eq!(limiter.peek(&rule, 1).await.unwrap().remaining(), 2);
    // Other algorithms find no room.
    let log = Rule::new("overflow", 3, MINUTE).by(Algorithm::SlidingLog);
    assert_eq!(limiter.acquire(&log, 1).await.unwrap_err().cause(), Cause::Unavailable);
}

#[tokio::test]
async fn of_several_rules_none_is_charged_in_the_overflow_if_one_refuses() {
    let [small, large] = [1, 100].map(|count| Rule::new("overflow", count, MINUTE));
    let (limiter, _clock) = overflowing(1, 1 << 16).await;
    limiter.acquire(&large, 0).await.unwrap();
    let charges = [(&small, Key::new("small"), 1), (&large, Key::new("large"), 1)];
    limiter.acquire_all(&charges).await.unwrap();
    exceeded(limiter.acquire_all(&charges).await);
    assert_eq!(limiter.peek(&large, "large").await.unwrap().remaining(), 99);
}

/// Nothing is refunded in the overflow, so it counts only if all others have room.
#[tokio::test]
async fn of_several_rules_none_is_charged_in_the_overflow_if_one_has_no_room() {
    let (limiter, _clock) = overflowing(1, 1 << 16).await;
    let (window, log) = (Rule::new("window", 3, MINUTE), Rule::new("log", 3, MINUTE).by(Algorithm::SlidingLog));
    limiter.acquire(&window, "old").await.unwrap();
    let charges = [(&window, Key::new("new"), 1), (&log, Key::new("new"), 1)];
    assert_eq!(limiter.acquire_all(&charges).await.unwrap_err().cause(), Cause::Unavailable);
    assert_eq!(limiter.peek(&window, "new").await.unwrap().remaining(), 3);
    // One that is stored cannot be refused for lack of room.
    limiter.acquire_all(&[(&window, Key::new("old"), 1), (&window, Key::new("new"), 1)]).await.unwrap();
    assert_eq!(limiter.peek(&window, "new").await.unwrap().remaining(), 2);
}

/// Counters come to the overflow from windows of their own, and go back to such.
#[tokio::test]
async fn a_key_that_moves_to_the_overflow_and_back_gets_no_fresh_quota() {
    const COUNT: u64 = 3;
    const PERIOD_MS: u64 = 1_000;
    let mut random = fastrand::Rng::with_seed(7);
    for align in [false, true] {
        let rule = Rule::new("moves", COUNT, Duration::from_millis(PERIOD_MS)).by(Algorithm::FixedWindow { align });
        for overflow_bytes in [64, 1 << 16] {
            let (limiter, clock) = overflowing(2, overflow_bytes).await;
            let (mut now_ms, mut admitted) = (0, vec![Vec::new(); 6]);
            for _ in 0..20_000 {
                let pause = if random.u8(..) < 8 { random.u64(..3 * PERIOD_MS) } else { random.u64(..40) };
                clock.advance(Duration::from_millis(pause));
                now_ms += pause;
                let key = random.usize(..admitted.len());
                if limiter.acquire(&rule, key as u64).await.is_ok() {
                    admitted[key].push(now_ms);
                }
            }
            for calls in admitted {
                let most = (0..calls.len())
                    .map(|first| calls[first..].iter().take_while(|ms| **ms < calls[first] + PERIOD_MS).count() as u64)
                    .max();
                assert!(most <= Some(2 * COUNT), "{align}, {overflow_bytes}: {most:?}");
                assert!(most > Some(COUNT / 2), "{align}, {overflow_bytes}: {most:?}");
            }
        }
    }
}

/// Its own window, the overflow, and another window would be three times the count in a period.
#[tokio::test]
async fn a_key_gets_no_new_counter_while_its_charges_in_the_overflow_count() {
    let rule = Rule::new("moves", 3, MINUTE);
    let (limiter, clock) = overflowing(1, 1 << 16).await;
    limiter.acquire(&rule, 1).await.unwrap();
    clock.advance(MINUTE - SECOND);
    assert_eq!(admitted(&limiter, &rule, 1, 5).await, 2);
    clock.advance(SECOND);
    let only = limiter.acquire(&rule, 2).await.unwrap();
    assert_eq!(admitted(&limiter, &rule, 1, 5).await, 3, "in the overflow");
    only.refund().await.unwrap();
    assert_eq!(admitted(&limiter, &rule, 1, 5).await, 0, "although there is room again");
    assert_eq!(admitted(&limiter, &rule.with_ban(MINUTE), 1, 5).await, 0, "and the rule bans now");
    clock.advance(2 * MINUTE);
    let only = limiter.acquire(&rule, 2).await.unwrap();
    limiter.acquire(&rule, 1).await.unwrap();
    only.refund().await.unwrap();
    assert_eq!(admitted(&limiter, &rule.with_ban(MINUTE), 1, 5).await, 2, "it has room where it is counted");
    clock.advance(2 * MINUTE);
    assert_eq!(admitted(&limiter, &rule, 1, 5).await, 3);
}

/// A ban needs a counter of its own, so there has to be room for it.
#[tokio::test]
async fn a_ban_lasts_while_charges_in_the_overflow_count() {
    let rule = Rule::new("banned", 3, MINUTE);
    let (limiter, clock) = overflowing(1, 1 << 16).await;
    let only = limiter.acquire(&rule, 2).await.unwrap();
    assert_eq!(admitted(&limiter, &rule, 1, 5).await, 3, "in the overflow");
    only.refund().await.unwrap();
    limiter.ban(&rule, 1, SECOND).await.unwrap();
    clock.advance(2 * SECOND);
    assert_eq!(limiter.acquire(&rule, 1).await.unwrap_err().cause(), Cause::Banned);
    clock.advance(2 * MINUTE);
    assert_eq!(admitted(&limiter, &rule, 1, 5).await, 3);
    // A rule that bans finds no room: a ban would have no place.
    let bans = Rule::new("bans", 3, MINUTE).with_ban(MINUTE);
    assert_eq!(limiter.acquire(&bans, 3).await.unwrap_err().cause(), Cause::Unavailable);
}

#[tokio::test]
async fn the_debug_text_of_a_limiter_tells_how_full_it_is() {
    let limiter = Limiter::in_memory();
    limiter.acquire(&Rule::new("item", 3, MINUTE), 1).await.unwrap();
    let text = format!("{limiter:?}");
    assert!(text.contains("Memory { capacity: 1000000, stored: 1, .. }"), "{text}");
    assert!(text.len() < 1_000, "{text}");
}

/// All keys share one cell, so the overflow can't tell whether it has counted this one. It is not banned for the calls
/// of others.
#[tokio::test]
async fn a_rule_that_bans_finds_no_room_beside_other_keys_in_the_overflow() {
    let (plain, bans) = (Rule::new("plain", 3, MINUTE), Rule::new("bans", 3, MINUTE).with_ban(10 * MINUTE));
    let (limiter, clock) = overflowing(1, 32).await;
    let only = limiter.acquire(&plain, 0).await.unwrap();
    assert_eq!(admitted(&limiter, &plain, 1, 1).await, 1, "in the overflow");
    assert_eq!(limiter.acquire(&bans, 9).await.unwrap_err().cause(), Cause::Unavailable);
    only.refund().await.unwrap();
    assert_eq!(admitted(&limiter, &bans, 9, 5).await, 2, "with those of the other key, three");
    clock.advance(2 * MINUTE);
    assert_eq!(admitted(&limiter, &bans, 9, 3).await, 3);
    assert_eq!(limiter.acquire(&bans, 9).await.unwrap_err().cause(), Cause::Banned, "in its own counter");
}

/// The overflow never refunds, so a charge there is made last.
#[tokio::test]
async fn a_rule_that_bans_is_not_charged_in_the_overflow_if_another_rule_finds_no_room() {
    let (limiter, _clock) = overflowing(2, 1 << 16).await;
    let rule = Rule::new("item", 3, MINUTE);
    limiter.acquire(&rule, 0).await.unwrap();
    let second = limiter.acquire(&rule, 1).await.unwrap();
    assert_eq!(admitted(&limiter, &rule, 9, 1).await, 1, "in the overflow");
    second.refund().await.unwrap();
    let logs = ["a", "b"].map(|prefix| Rule::new(prefix, 3, MINUTE).with_algorithm(Algorithm::SlidingLog));
    let bans = rule.with_ban(MINUTE);
    let refused = limiter.acquire_all(&[&bans, &logs[0], &logs[1]].map(|rule| (rule, Key::new(9), 1))).await;
    assert_eq!(refused.unwrap_err().cause(), Cause::Unavailable);
    assert_eq!(admitted(&limiter, &bans, 9, 5).await, 2);
}

#[test]
fn threads_share_the_count_of_a_key_in_the_overflow() {
    let rule = Rule::new("overflow", 1_000, MINUTE);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (limiter, _clock) = runtime.block_on(overflowing(1, 1 << 16));
    runtime.block_on(limiter.acquire(&rule, 0)).unwrap();
    let admitted = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..600 {
                    admitted.fetch_add(limiter.acquire_blocking(&rule, 1).is_ok().into(), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(admitted.into_inner(), 1_000);
}

/// The counter of the reservation has expired, and another one has its room.
#[tokio::test]
async fn a_settlement_without_room_is_an_error() {
    let (limiter, clock) = holding(1, OnStoreError::Deny).await;
    let rule = Rule::new("item", 10, SECOND);
    let reserved = limiter.reserve(&rule, "a", 5).await.unwrap();
    clock.advance(SECOND);
    limiter.acquire(&rule, "b").await.unwrap();
    assert_eq!(reserved.settle(9).await.unwrap_err().cause(), Cause::Unavailable);
    // Less than reserved is a refund of nothing.
    clock.advance(SECOND);
    let reserved = limiter.reserve(&rule, "a", 5).await.unwrap();
    clock.advance(SECOND);
    limiter.acquire(&rule, "b").await.unwrap();
    reserved.settle(3).await.unwrap();
}

/// A log whose counter was reset has lost the hold, and all that was used is charged anew.
#[tokio::test]
async fn a_settlement_of_a_log_that_was_reset_needs_room() {
    let (limiter, _clock) = holding(1, OnStoreError::Deny).await;
    let rule = Rule::new("item", 10, MINUTE).with_algorithm(Algorithm::SlidingLog);
    let reserved = limiter.reserve(&rule, "a", 5).await.unwrap();
    limiter.reset(&rule, "a").await.unwrap();
    limiter.acquire(&rule, "b").await.unwrap();
    assert_eq!(reserved.settle(9).await.unwrap_err().cause(), Cause::Unavailable);
}
