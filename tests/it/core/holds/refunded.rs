//! Costs that are settled by a refund: fixed and sliding windows, and token buckets.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use ratelimit_harness::{Mode, Proxy, RedisServer};
use ratelimit_runtime::__private::{Call, charge, charge_settled, key as key_of, permit_of_several};
use ratelimit_runtime::{
    Algorithm, Cause, Health, Limiter, OnStoreError, Permit, Refill, RequestPerMinute, Rule, limit_request_per_time,
};

use crate::support::holds::{PLACES, remaining};
use crate::support::plain_store::on_plain_store;
use crate::support::servers::script_calls;
use crate::support::{
    ALIGNED, BUCKET, FIXED, INTERVAL, LOG, MS, SECOND, SLIDING, Timed, ends, eventually, exceeded, fresh_key, hourly,
    limiter_on,
};

const REFUNDED: [Algorithm; 5] = [FIXED, ALIGNED, SLIDING, BUCKET, INTERVAL];
const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn a_settled_charge_ends_with_what_was_used() {
    for timed in Timed::both().await {
        for algorithm in REFUNDED {
            let (limiter, key, rule) = (&timed.limiter, fresh_key(), hourly(1000, algorithm));
            let left = async |expected: u64| {
                // A drop settles in the background.
                eventually("it is settled", || async { remaining(limiter, &rule, key).await == expected }).await;
            };
            let reservation = limiter.reserve(&rule, key, 600).await.unwrap();
            assert_eq!((reservation.held(), reservation.is_held()), (600, true));
            assert_eq!(remaining(limiter, &rule, key).await, 400, "{}", timed.of(&rule));
            let refused = exceeded(limiter.reserve(&rule, key, 500).await);
            assert_eq!(refused.remaining(), 400, "{}", timed.of(&rule));
            limiter.acquire_n(&rule, key, 50).await.unwrap();
            reservation.settle(123).await.unwrap();
            assert_eq!(remaining(limiter, &rule, key).await, 827, "{}", timed.of(&rule));
            limiter.reserve(&rule, key, 600).await.unwrap().cancel().await.unwrap();
            assert_eq!(remaining(limiter, &rule, key).await, 827, "{}", timed.of(&rule));
            // The whole of it, and more: that is charged, too.
            limiter.reserve(&rule, key, 100).await.unwrap().settle(100).await.unwrap();
            limiter.reserve(&rule, key, 1).await.unwrap().settle(28).await.unwrap();
            assert_eq!(remaining(limiter, &rule, key).await, 699, "{}", timed.of(&rule));
            // Without a report, all stays charged.
            drop(limiter.reserve(&rule, key, 99).await.unwrap());
            assert_eq!(remaining(limiter, &rule, key).await, 600, "{}", timed.of(&rule));
            let mut recorded = limiter.reserve(&rule, key, 500).await.unwrap();
            recorded.record(60);
            recorded.record(40);
            drop(recorded);
            left(500).await;
            limiter.reserve(&rule, key, 500).await.unwrap().settle(u64::MAX).await.unwrap();
            assert_eq!(remaining(limiter, &rule, key).await, 0, "{}", timed.of(&rule));
            exceeded(limiter.acquire(&rule, key).await);
        }
    }
}

#[limit_request_per_time("window", 1, Hours, 1000, key = id, cost = Settled(max = 600, |outcome| outcome.as_ref().map_or(7, |used| *used)), limiter = limiter)]
async fn window(limiter: &Limiter, id: u64, used: Result<u64, RequestPerMinute>) -> Result<u64, RequestPerMinute> {
    let used = used?;
    assert!(used != 13, "the body's own");
    if used == 14 {
        std::future::pending::<()>().await;
    }
    Ok(used)
}

#[tokio::test]
async fn a_body_is_charged_what_its_outcome_reports_and_the_maximum_without_one() {
    const RULE: Rule = Rule::new("window", 1000, HOUR);
    for timed in Timed::both().await {
        let (limiter, id) = (&timed.limiter, fresh_key());
        let left =
            |left| eventually("it is charged", move || async move { remaining(limiter, &RULE, id).await == left });
        assert_eq!(window(limiter, id, Ok(100)).await, Ok(100));
        left(900).await;
        let error = limiter.acquire(&Rule::new("none", 0, SECOND), 1).await.unwrap_err();
        assert_eq!(window(limiter, id, Err(error.clone())).await, Err(error));
        left(893).await;
        assert!(AssertUnwindSafe(window(limiter, id, Ok(13))).catch_unwind().await.is_err());
        left(293).await;
        assert_eq!(exceeded(window(limiter, id, Ok(1)).await).remaining(), 293);
        let id = fresh_key();
        assert!(tokio::time::timeout(SECOND / 5, window(limiter, id, Ok(14))).await.is_err());
        assert_eq!(remaining(limiter, &RULE, id).await, 400, "{}", timed.name());
    }
}

/// The window, or the sub-window, of the charge is over. A bucket has refilled all of it.
#[tokio::test]
async fn a_late_settlement_credits_no_later_window() {
    for timed in Timed::both().await {
        for algorithm in REFUNDED {
            let (limiter, key, rule) = (&timed.limiter, fresh_key(), hourly(1000, algorithm));
            let reservation = limiter.reserve(&rule, key, 600).await.unwrap();
            timed.advance(2 * HOUR);
            limiter.acquire_n(&rule, key, 300).await.unwrap();
            reservation.settle(0).await.unwrap();
            assert_eq!(remaining(limiter, &rule, key).await, 700, "{}", timed.of(&rule));
        }
    }
}

/// A permit with a settled charge of one rule, and a plain charge of another.
async fn settled_beside_plain(limiter: &Limiter, settled: Rule, plain: Rule, key: u64) -> Permit {
    let charges = (charge_settled(settled, key_of(&key), 600), (charge(plain, key_of(&key), 3), ()));
    permit_of_several(Some(limiter), Call::DEFAULT, charges).await.unwrap()
}

#[tokio::test]
async fn a_settlement_changes_no_other_rule_of_the_call() {
    let calls = Rule::new("calls", 10, HOUR);
    for timed in Timed::both().await {
        for algorithm in REFUNDED {
            let (limiter, key, rule) = (&timed.limiter, fresh_key(), hourly(1000, algorithm));
            let left = async || (remaining(limiter, &rule, key).await, remaining(limiter, &calls, key).await);
            let permit = settled_beside_plain(limiter, rule, calls, key).await;
            assert_eq!(left().await, (400, 7), "{}", timed.of(&rule));
            permit.settle(5).await.unwrap();
            assert_eq!(left().await, (995, 7), "{}", timed.of(&rule));
            let permit = settled_beside_plain(limiter, rule, calls, key).await;
            assert_eq!(permit.refund().await, Ok(603), "{}", timed.of(&rule));
            assert_eq!(left().await, (995, 7), "{}", timed.of(&rule));
        }
        // Nothing of it counts any more.
        let (limiter, key, rule) = (&timed.limiter, fresh_key(), hourly(1000, FIXED));
        let permit = settled_beside_plain(limiter, rule, calls, key).await;
        timed.advance(2 * HOUR);
        assert_eq!(permit.refund().await, Ok(0), "{}", timed.name());
    }
}

#[tokio::test]
async fn a_settled_window_stands_beside_places_and_a_log() {
    let log = hourly(1000, LOG);
    for timed in Timed::both().await {
        let (limiter, key, rule) = (&timed.limiter, fresh_key(), hourly(1000, FIXED));
        let left = async || {
            let log = remaining(limiter, &log, key).await;
            (remaining(limiter, &rule, key).await, log, remaining(limiter, &PLACES, key).await)
        };
        let charges = (
            charge(PLACES, key_of(&key), 1),
            (charge_settled(rule, key_of(&key), 600), (charge_settled(log, key_of(&key), 500), ())),
        );
        let permit = permit_of_several(Some(limiter), Call::DEFAULT, charges).await.unwrap();
        assert_eq!(left().await, (400, 500, 1), "{}", timed.name());
        assert!(permit.is_held());
        permit.settle(70).await.unwrap();
        assert_eq!(left().await, (930, 930, 2), "{}", timed.name());
    }
}

#[limit_request_per_time("waits", 1, Hours, 1000, key = id, cost = Settled(max = 600), on_limit = Wait, permit = permit, limiter = limiter)]
async fn waits(limiter: &Limiter, id: u64) -> Result<Permit, RequestPerMinute> {
    Ok(permit)
}

/// The clocks stand still, so that no wait is ever over.
#[tokio::test]
async fn a_settlement_wakes_the_callers_of_its_process() {
    let rule = Rule::new("waits", 1000, HOUR);
    for timed in Timed::both().await {
        let (limiter, key) = (&timed.limiter, fresh_key());
        let reservation = limiter.reserve(&rule, key, 1000).await.unwrap();
        let mut plain = Box::pin(limiter.acquire_within(&rule, key, 2 * HOUR));
        assert!(tokio::time::timeout(SECOND / 10, &mut plain).await.is_err());
        reservation.settle(300).await.unwrap();
        ends(plain).await.unwrap();
        let key = fresh_key();
        let reservation = limiter.reserve(&rule, key, 600).await.unwrap();
        let mut settled = Box::pin(waits(limiter, key));
        assert!(tokio::time::timeout(SECOND / 10, &mut settled).await.is_err());
        drop(reservation.settle(300).now_or_never());
        ends(settled).await.unwrap();
    }
}

/// Another process has settled. A caller who settles looks again soon.
#[tokio::test]
async fn a_waiting_caller_looks_for_settlements_of_other_processes() {
    let (timed, key) = (Timed::redis().await, fresh_key());
    let other = limiter_on(timed.server().unwrap()).await;
    let rule = Rule::new("waits", 1000, HOUR);
    let reservation = other.reserve(&rule, key, 600).await.unwrap();
    let mut waiting = Box::pin(waits(&timed.limiter, key));
    assert!(tokio::time::timeout(SECOND / 10, &mut waiting).await.is_err());
    reservation.settle(300).await.unwrap();
    timed.advance(50 * MS);
    ends(waiting).await.unwrap();
}

#[tokio::test]
async fn denials_of_settled_charges_are_neither_cached_nor_answered_from_the_cache() {
    let server = RedisServer::start();
    let (limiter, other) = (limiter_on(&server).await, limiter_on(&server).await);
    for algorithm in [FIXED, SLIDING, BUCKET] {
        let (key, rule) = (fresh_key(), hourly(1000, algorithm));
        let reservation = other.reserve(&rule, key, 1000).await.unwrap();
        for _ in 0..3 {
            let before = script_calls(&server);
            exceeded(limiter.reserve(&rule, key, 1).await);
            assert!(script_calls(&server) > before, "{algorithm:?}");
        }
        // A plain call is denied by the store, and then from the cache.
        let before = script_calls(&server);
        exceeded(limiter.acquire(&rule, key).await);
        assert!(script_calls(&server) > before, "{algorithm:?}");
        let before = script_calls(&server);
        exceeded(limiter.acquire(&rule, key).await);
        assert_eq!(script_calls(&server), before, "{algorithm:?}");
        reservation.cancel().await.unwrap();
        assert_eq!(limiter.reserve(&rule, key, 1).await.unwrap().held(), 1);
    }
}

#[tokio::test]
async fn rules_that_cannot_settle_are_misconfigured() {
    let prefetched = hourly(1000, FIXED).with_prefetch(10);
    let queue = Rule::new("queue", 10, SECOND).with_algorithm(Algorithm::LeakyBucket { queue: 5 });
    for timed in Timed::both().await {
        for (rule, said) in [(prefetched, "remove `prefetch`"), (queue, "LeakyBucket"), (PLACES, "Concurrent")] {
            let refused = timed.limiter.reserve(&rule, 1, 1).await.unwrap_err();
            assert_eq!(refused.cause(), Cause::Misconfigured, "{refused}");
            assert!(refused.to_string().contains(said), "{refused}");
        }
        let never = timed.limiter.reserve(&hourly(10, FIXED), 1, 11).await.unwrap_err();
        assert_eq!(never.cause(), Cause::NeverFits);
        assert_eq!(timed.limiter.reserve(&hourly(10, FIXED), 1, 0).await.unwrap().held(), 0);
    }
}

#[tokio::test]
async fn a_store_of_ones_own_without_holds_settles() {
    let (limiter, _, _clock) = on_plain_store();
    let (key, rule) = (fresh_key(), hourly(1000, FIXED));
    limiter.reserve(&rule, key, 600).await.unwrap().settle(100).await.unwrap();
    assert_eq!(remaining(&limiter, &rule, key).await, 900);
    limiter.reserve(&rule, key, 600).await.unwrap().settle(700).await.unwrap();
    assert_eq!(remaining(&limiter, &rule, key).await, 200);
    assert_eq!(limiter.reserve(&hourly(1000, LOG), key, 1).await.unwrap_err().cause(), Cause::Misconfigured);
}

/// The share of this process counts, and a settlement goes to where the charge was made.
#[tokio::test]
async fn the_local_fallback_settles_its_own_charges() {
    let mut server = RedisServer::start();
    let builder = Limiter::builder(&server.url()).instances(2).deadline(SECOND / 5);
    let (limiter, key, rule) = (builder.build().await.unwrap(), fresh_key(), hourly(1000, FIXED));
    let before = limiter.reserve(&rule, key, 600).await.unwrap();
    server.kill();
    let own = limiter.reserve(&rule, key, 500).await.unwrap();
    exceeded(limiter.reserve(&rule, key, 1).await);
    own.settle(400).await.unwrap();
    drop(limiter.reserve(&rule, key, 100).await.unwrap());
    exceeded(limiter.reserve(&rule, key, 1).await);
    let failed = before.settle(100).await.unwrap_err();
    assert_eq!(failed.cause(), Cause::Unavailable);
}

/// A window of the fallback has nothing that others could take when the server is back.
#[tokio::test]
async fn a_charge_of_the_local_fallback_is_held_after_the_outage() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let limiter = Limiter::builder(&proxy.url()).instances(2).deadline(SECOND / 5).build().await.unwrap();
    let (key, rule) = (fresh_key(), hourly(1000, FIXED));
    proxy.set(Mode::Refuse);
    proxy.cut();
    eventually("the server is away", || async { limiter.health() != Health::Available }).await;
    let own = limiter.reserve(&rule, key, 500).await.unwrap();
    let in_log = limiter.reserve(&hourly(1000, LOG), key, 500).await.unwrap();
    assert!(own.is_held() && in_log.is_held());
    proxy.set(Mode::Pass);
    eventually("the server is back", || async {
        limiter.peek(&rule, key).await.is_ok_and(|counter| counter.limit() == 1000)
    })
    .await;
    eventually("the log's hold is only of this process", || async { !in_log.is_held() }).await;
    assert!(own.is_held());
    own.settle(100).await.unwrap();
}

/// The refund has arrived, and its reply is lost.
#[tokio::test]
async fn a_settlement_without_an_answer_is_not_sent_again() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let builder = Limiter::builder(&proxy.url()).deadline(SECOND / 2).on_store_error(OnStoreError::Deny);
    let (limiter, other) = (builder.build().await.unwrap(), limiter_on(&server).await);
    let (key, rule) = (fresh_key(), hourly(1000, FIXED));
    // The connection for settlements is open, and the server knows their script.
    limiter.reserve(&rule, key, 300).await.unwrap().settle(200).await.unwrap();
    let reservation = limiter.reserve(&rule, key, 300).await.unwrap();
    proxy.set(Mode::DropReplies);
    assert_eq!(reservation.settle(100).await.unwrap_err().cause(), Cause::Unavailable);
    assert_eq!(remaining(&other, &rule, key).await, 700);
    proxy.set(Mode::Pass);
    eventually("the server decides", || async { limiter.peek(&rule, key).await.is_ok() }).await;
    tokio::time::sleep(SECOND).await;
    assert_eq!(remaining(&other, &rule, key).await, 700);
}

/// A caller who leaves before the reply is charged nothing in the end.
#[tokio::test]
async fn a_charge_that_arrives_after_its_caller_left_is_refunded() {
    let server = RedisServer::start();
    let (limiter, other) = (limiter_on(&server).await, limiter_on(&server).await);
    let (key, rule) = (fresh_key(), hourly(1000, FIXED));
    limiter.reserve(&rule, key, 1).await.unwrap().cancel().await.unwrap();
    let mut was_charged = false;
    for _ in 0..50 {
        let mut reserving = Box::pin(limiter.reserve(&rule, key, 1000));
        assert!((&mut reserving).now_or_never().is_none());
        tokio::time::sleep(MS * fastrand::u32(0..3)).await;
        was_charged |= remaining(&other, &rule, key).await < 1000;
        drop(reserving);
    }
    assert!(was_charged, "the server has granted some");
    eventually("nothing is charged", || async { remaining(&other, &rule, key).await == 1000 }).await;
}

/// As if each had been charged its use from the begin. Their maximum has refilled a part meanwhile.
#[tokio::test]
async fn calls_of_a_bucket_at_once_are_refunded_in_full() {
    let bucket = Algorithm::TokenBucket { burst: 40_000, refill: Refill::Greedy };
    let rule = Rule::new("tokens", 600, SECOND).with_algorithm(bucket);
    for timed in Timed::both().await {
        let (limiter, key) = (&timed.limiter, fresh_key());
        let mut calls = Vec::new();
        for _ in 0..8 {
            calls.push(limiter.reserve(&rule, key, 4_000).await.unwrap());
            timed.advance(100 * MS);
        }
        timed.advance(1_200 * MS);
        for call in calls {
            call.settle(300).await.unwrap();
            timed.advance(100 * MS);
        }
        // 2,800 ms have refilled 1,680.
        assert_eq!(remaining(limiter, &rule, key).await, 40_000 - (8 * 300 - 1_680), "{}", timed.name());
    }
}

/// Two calls end after most of their charges has refilled, and another call has charged since. Without the two the
/// bucket would have been full then: only what was still missing is refunded, and only once.
#[tokio::test]
async fn two_calls_of_a_bucket_are_not_refunded_the_same_tokens() {
    let bucket = Algorithm::TokenBucket { burst: 40_000, refill: Refill::Greedy };
    let rule = Rule::new("tokens", 36_000, 60 * SECOND).with_algorithm(bucket);
    for timed in Timed::both().await {
        let (limiter, key) = (&timed.limiter, fresh_key());
        let early = [(); 2].map(|()| limiter.reserve(&rule, key, 10_000));
        let early = join_all(early).await;
        timed.advance(25 * SECOND);
        let _late = limiter.reserve(&rule, key, 20_000).await.unwrap();
        assert_eq!(remaining(limiter, &rule, key).await, 15_000, "{}", timed.name());
        for (reservation, left) in early.into_iter().zip([20_000, 20_000]) {
            reservation.unwrap().settle(0).await.unwrap();
            assert_eq!(remaining(limiter, &rule, key).await, left, "{}", timed.name());
        }
    }
}

/// Two processes have different counts. By the higher one, the bucket is full again when a charge is refunded, so
/// nothing is. For the other process it was never full.
#[tokio::test]
async fn a_refund_of_nothing_changes_no_other_refund() {
    let of = |burst, count| {
        Rule::new("tokens", count, SECOND).with_algorithm(Algorithm::TokenBucket { burst, refill: Refill::Greedy })
    };
    let (fast, slow) = (of(997, 997), of(100, 7));
    for timed in Timed::both().await {
        let (limiter, key) = (&timed.limiter, fresh_key());
        let plain = limiter.acquire(&fast, key).await.unwrap();
        let call = limiter.reserve(&slow, key, 20).await.unwrap();
        timed.advance(103 * MS);
        assert_eq!(plain.refund().await.unwrap(), 0, "{}", timed.name());
        call.cancel().await.unwrap();
        // Of the plain charge, 103 ms have refilled a part.
        let seen = limiter.peek(&slow, key).await.unwrap();
        assert_eq!((seen.remaining(), seen.reset_after()), (99, 40 * MS), "{}", timed.name());
    }
}

/// The settlement of one would be one of both.
#[tokio::test]
async fn a_counter_is_not_charged_twice_by_a_call_that_settles_it() {
    for timed in Timed::both().await {
        for algorithm in [FIXED, ALIGNED, SLIDING, BUCKET, INTERVAL, LOG] {
            let (key, rule) = (fresh_key(), hourly(1000, algorithm));
            let (settled, plain) = (|| charge_settled(rule, key_of(&key), 300), || charge(rule, key_of(&key), 1));
            let limiter = Some(&timed.limiter);
            let calls = [
                permit_of_several(limiter, Call::DEFAULT, (settled(), (plain(), ()))).boxed(),
                permit_of_several(limiter, Call::DEFAULT, (plain(), (settled(), ()))).boxed(),
                permit_of_several(limiter, Call::DEFAULT, (settled(), (settled(), ()))).boxed(),
            ];
            for call in calls {
                let refused = call.await.unwrap_err();
                assert_eq!(refused.cause(), Cause::Misconfigured, "{}", timed.of(&rule));
                assert!(refused.to_string().contains("the same counter"), "{refused}");
                assert_eq!(remaining(&timed.limiter, &rule, key).await, 1000, "{}", timed.of(&rule));
            }
            let other = fresh_key();
            let charges =
                (settled(), (charge_settled(rule, key_of(&other), 300), (charge(PLACES, key_of(&key), 1), ())));
            let permit = permit_of_several(Some(&timed.limiter), Call::DEFAULT, charges).await.unwrap();
            permit.settle(100).await.unwrap();
            for key in [key, other] {
                assert_eq!(remaining(&timed.limiter, &rule, key).await, 900, "{}", timed.of(&rule));
            }
        }
    }
}

/// The connection is lost and can't be opened again, so nothing was sent.
#[tokio::test]
async fn a_settlement_that_was_not_sent_is_sent_when_the_server_is_back() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let builder = Limiter::builder(&proxy.url()).deadline(3 * SECOND).on_store_error(OnStoreError::Deny);
    let (limiter, other) = (builder.build().await.unwrap(), limiter_on(&server).await);
    let (key, less, rule) = (fresh_key(), fresh_key(), hourly(1000, FIXED));
    limiter.reserve(&rule, key, 300).await.unwrap().settle(200).await.unwrap();
    let (reservation, exceeding) = (limiter.reserve(&rule, key, 300).await, limiter.reserve(&rule, less, 300).await);
    proxy.set(Mode::Refuse);
    proxy.cut();
    eventually("the server is away", || async { limiter.peek(&rule, key).await.is_err() }).await;
    assert_eq!(reservation.unwrap().settle(100).await.unwrap_err().cause(), Cause::Unavailable);
    assert_eq!(exceeding.unwrap().settle(400).await.unwrap_err().cause(), Cause::Unavailable);
    assert_eq!((remaining(&other, &rule, key).await, remaining(&other, &rule, less).await), (500, 700));
    proxy.set(Mode::Pass);
    eventually("they are settled", || async {
        (remaining(&other, &rule, key).await, remaining(&other, &rule, less).await) == (700, 600)
    })
    .await;
    tokio::time::sleep(SECOND).await;
    assert_eq!((remaining(&other, &rule, key).await, remaining(&other, &rule, less).await), (700, 600));
}

/// The reply comes when the caller has long given up.
#[tokio::test]
async fn a_charge_is_refunded_however_late_its_reply_is() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let builder = Limiter::builder(&proxy.url()).deadline(SECOND / 10).on_store_error(OnStoreError::Deny);
    let (limiter, other) = (builder.build().await.unwrap(), limiter_on(&server).await);
    let (key, rule) = (fresh_key(), hourly(1000, FIXED));
    limiter.reserve(&rule, key, 1).await.unwrap().cancel().await.unwrap();
    proxy.set(Mode::Delay(SECOND));
    assert_eq!(limiter.reserve(&rule, key, 1000).await.unwrap_err().cause(), Cause::Unavailable);
    eventually("it is charged", || async { remaining(&other, &rule, key).await == 0 }).await;
    eventually("it is refunded", || async { remaining(&other, &rule, key).await == 1000 }).await;
}

/// The plain caller is first. Its denial does not say how soon others settle.
#[tokio::test]
async fn a_plain_caller_in_front_hides_no_settlement_of_another_process() {
    let (timed, key) = (Timed::redis().await, fresh_key());
    let other = limiter_on(timed.server().unwrap()).await;
    let rule = Rule::new("waits", 1000, HOUR);
    let reservation = other.reserve(&rule, key, 1000).await.unwrap();
    let mut plain = Box::pin(timed.limiter.acquire_within(&rule, key, 2 * HOUR));
    assert!(tokio::time::timeout(SECOND / 10, &mut plain).await.is_err());
    let mut settled = Box::pin(waits(&timed.limiter, key));
    assert!(tokio::time::timeout(SECOND / 10, &mut settled).await.is_err());
    timed.advance(50 * MS);
    assert!(tokio::time::timeout(SECOND / 10, &mut plain).await.is_err());
    reservation.settle(300).await.unwrap();
    timed.advance(SECOND);
    ends(plain).await.unwrap();
    ends(settled).await.unwrap();
}
