//! Rules in shadow mode: they count and decide, and admit what they would refuse.

use std::time::Duration;

use ratelimit_harness::RedisServer;
use ratelimit_runtime::config::Rules;
use ratelimit_runtime::{
    Algorithm, Cause, Key, Limiter, ManualClock, OnStoreError, Refill, RequestPerMinute, Rule, limit_request_per_time,
};

use crate::support::log::Log;
use crate::support::plain_store::PlainStore;
use crate::support::{
    ALGORITHMS, By as _, FIXED, Timed, ends, eventually, exceeded, fresh_key, hourly, lifetime, limiter_on, settle,
};

const MINUTE: Duration = Duration::from_secs(60);
const TRIED: Rule = Rule::new("tried", 2, MINUTE).with_shadow(true);
const HELD: Rule = Rule::new("held", 4, MINUTE);

#[tokio::test]
async fn a_shadow_rule_counts_and_never_refuses() {
    for timed in Timed::both().await {
        for algorithm in ALGORITHMS {
            let rule = hourly(2, algorithm).with_shadow(true);
            for remaining in [1, 0, 0, 0] {
                let permit = timed.limiter.acquire(&rule, 1).await.unwrap();
                assert_eq!((permit.limit(), permit.remaining()), (2, remaining), "{}", timed.of(&rule));
            }
            let refused = exceeded(timed.limiter.acquire(&rule.with_shadow(false), 1).await);
            assert!(refused.retry_after().unwrap() <= lifetime(&rule), "a call let through was not charged");
            timed.limiter.reset(&rule, 1).await.unwrap();
        }
    }
}

/// A transfer is limited by its sender and by its receiver, say, who are the same.
#[tokio::test]
async fn a_shadow_rule_that_is_charged_twice_for_a_key_refuses_nothing() {
    for timed in Timed::both().await {
        let (rule, key) = (hourly(3, FIXED).with_shadow(true), fresh_key());
        let charge = (&rule, Key::new(key), 2);
        timed.limiter.acquire_all(&[charge.clone(), charge]).await.unwrap();
        assert_eq!(timed.limiter.peek(&rule, key).await.unwrap().remaining(), 1, "the first charge counts");
        // Of other rules with the same prefix, each has a counter of its own.
        let (second, key) = (Rule::new(rule.prefix(), 1, MINUTE).with_shadow(true), fresh_key());
        timed.limiter.acquire_all(&[(&rule, Key::new(key), 1), (&second, Key::new(key), 1)]).await.unwrap();
        assert_eq!(timed.limiter.peek(&second, key).await.unwrap().remaining(), 0);
        // One counter: the lower count is the limit, and so is that of an enforced rule.
        let (larger, held) = (hourly(100, FIXED).with_shadow(true), hourly(3, FIXED));
        for order in [[&rule, &larger], [&larger, &rule], [&held, &larger], [&larger, &held]] {
            let key = fresh_key();
            timed.limiter.acquire_all(&order.map(|rule| (rule, Key::new(key), 2))).await.unwrap();
            assert_eq!(timed.limiter.peek(&rule, key).await.unwrap().remaining(), 1, "{order:?}");
        }
        // The burst is no part of a counter, nor is the lease of places.
        let [small, large] =
            [10, 20].map(|burst| hourly(9, Algorithm::TokenBucket { burst, refill: Refill::Greedy }).with_shadow(true));
        let [short, long] = [1, 2].map(|minutes| {
            Rule::new("place", 1, minutes * MINUTE).with_algorithm(Algorithm::Concurrent).with_shadow(true)
        });
        for (one, other, cost) in [(&small, &large, 8), (&short, &long, 1)] {
            for order in [[one, other], [other, one]] {
                let key = Key::new(fresh_key());
                timed.limiter.acquire_all(&order.map(|rule| (rule, key.clone(), cost))).await.unwrap();
            }
        }
        // What is granted beyond the limit is not counted.
        let key = fresh_key();
        assert_eq!(timed.limiter.acquire_up_to(&rule, key, 500).await.unwrap().0, 500);
        assert_eq!(timed.limiter.peek(&rule, key).await.unwrap().remaining(), 0);
    }
}

/// Before, a call with another rule was refused as unavailable.
#[tokio::test]
async fn a_shadow_rule_refuses_nothing_in_a_full_store() {
    let (log, _guard) = Log::install();
    let builder = Limiter::builder("memory://").max_keys(1).on_store_error(OnStoreError::Deny);
    let limiter = builder.build().await.unwrap();
    // The only room is for the rule that refuses, also if it comes last.
    limiter.acquire_all(&[(&TRIED, Key::new(2), 1), (&HELD, Key::new(1), 1)]).await.unwrap();
    // At most once a second for all tests.
    eventually("it is logged", || async {
        let both = [(&TRIED, Key::new(2), 1), (&HELD, Key::new(1), 1)];
        assert_eq!(limiter.acquire_all(&both).await.unwrap().refund().await.unwrap(), 1);
        !log.with("no room for new keys").is_empty()
    })
    .await;
    let place = Rule::new("place", 1, MINUTE).with_algorithm(Algorithm::Concurrent).with_shadow(true);
    let permit = limiter.acquire_all(&[(&place, Key::new(3), 1), (&HELD, Key::new(1), 1)]).await.unwrap();
    assert_eq!(permit.refund().await.unwrap(), 1, "the place was not held");
    for remaining in [2, 1, 0] {
        let permit = limiter.acquire_all(&[(&HELD, Key::new(1), 1), (&TRIED, Key::new(2), 1)]).await.unwrap();
        assert_eq!(permit.remaining(), remaining);
    }
    let refused = limiter.acquire_all(&[(&HELD, Key::new(1), 1), (&TRIED, Key::new(2), 1)]).await.unwrap_err();
    assert_eq!((refused.cause(), refused.rule()), (Cause::Exceeded, "held"));
}

/// One deadline bounds the decision. The request without the shadow rule gets what is left of it.
#[tokio::test(start_paused = true)]
async fn a_refusal_by_a_shadow_rule_does_not_prolong_the_deadline() {
    let clock = ManualClock::new();
    let store = PlainStore::new(&clock);
    let builder = Limiter::builder("memory://").clock(clock.clone()).deadline(MINUTE / 60);
    let limiter = builder.on_store_error(OnStoreError::Deny).over(store.clone()).unwrap();
    limiter.acquire_n(&TRIED, 1, 2).await.unwrap();
    store.hold();
    let call = tokio::spawn(limiter.acquire_all(&[(&TRIED, Key::new(1), 1), (&HELD, Key::new(1), 1)]));
    let pass = async |by: Duration| {
        settle().await;
        clock.advance(by);
        tokio::time::advance(by).await;
        settle().await;
    };
    pass(Duration::from_millis(900)).await;
    let before = store.calls();
    store.release();
    pass(Duration::from_millis(200)).await;
    assert_eq!(store.calls(), before + 1, "it is asked again");
    assert!(call.is_finished());
    assert_eq!(call.await.unwrap().unwrap_err().cause(), Cause::Unavailable);
}

/// Admitted calls beyond the count are not charged. Otherwise a trial would show more refusals than
/// the real limit.
#[tokio::test]
async fn a_call_that_a_shadow_rule_would_refuse_is_not_charged() {
    for timed in Timed::both().await {
        let rule = hourly(3, FIXED).with_shadow(true);
        timed.limiter.acquire_n(&rule, 1, 2).await.unwrap();
        timed.limiter.acquire_n(&rule, 1, 2).await.unwrap();
        assert_eq!(timed.limiter.peek(&rule, 1).await.unwrap().remaining(), 1, "{}", timed.name());
    }
}

#[tokio::test]
async fn a_shadow_rule_changes_nothing_for_the_rules_beside_it() {
    for timed in Timed::both().await {
        let limiter = &timed.limiter;
        for order in [[&TRIED, &HELD], [&HELD, &TRIED]] {
            let key = crate::support::fresh_key();
            let call = || limiter.acquire_all(&order.map(|rule| (rule, Key::new(key), 1)));
            for remaining in [3, 2, 1, 0] {
                assert_eq!(call().await.unwrap().remaining(), remaining, "{}", timed.name());
            }
            assert_eq!(exceeded(call().await).rule(), "held");
            assert_eq!(limiter.peek(&TRIED, key).await.unwrap().remaining(), 0);
            assert_eq!(limiter.peek(&HELD, key).await.unwrap().remaining(), 0);
        }
        // A refusal by the one that holds charges neither.
        let wide = Rule::new("wide", 10, MINUTE).with_shadow(true);
        let key = crate::support::fresh_key();
        let charges = [(&wide, Key::new(key), 1), (&HELD, Key::new(key), 1)];
        for _ in 0..6 {
            let _ = limiter.acquire_all(&charges).await;
        }
        assert_eq!(limiter.peek(&wide, key).await.unwrap().remaining(), 6, "{}", timed.name());
    }
}

#[tokio::test]
async fn two_shadow_rules_count_and_are_refunded_separately() {
    for timed in Timed::both().await {
        let limiter = &timed.limiter;
        let other = Rule::new("other", 3, MINUTE).with_shadow(true);
        let charges = [(&TRIED, Key::new(1), 1), (&other, Key::new(1), 1)];
        for _ in 0..2 {
            limiter.acquire_all(&charges).await.unwrap();
        }
        let third = limiter.acquire_all(&charges).await.unwrap();
        assert_eq!(limiter.peek(&other, 1).await.unwrap().remaining(), 0, "that one still fits");
        assert_eq!(third.refund().await.unwrap(), 1);
        limiter.acquire_all(&charges).await.unwrap();
        assert_eq!(limiter.acquire_all(&charges).await.unwrap().refund().await.unwrap(), 0, "neither fits");
    }
}

/// The counter has both rules, and the enforced one decides.
#[tokio::test]
async fn a_shadow_rule_does_not_replace_the_enforced_rule_of_its_counter() {
    for timed in Timed::both().await {
        let held = Rule::new("tried", 6, MINUTE);
        for order in [[&TRIED, &held], [&held, &TRIED]] {
            let key = crate::support::fresh_key();
            let call = || timed.limiter.acquire_all(&order.map(|rule| (rule, Key::new(key), 1)));
            for _ in 0..3 {
                call().await.unwrap();
            }
            exceeded(call().await);
        }
    }
}

#[tokio::test]
async fn a_shadow_rule_delays_no_call() {
    for timed in Timed::both().await {
        let queue = Rule::new("queue", 1, MINUTE).with_algorithm(Algorithm::LeakyBucket { queue: 2 }).with_shadow(true);
        for remaining in [2, 1, 0, 0, 0] {
            let permit = crate::support::ends(timed.limiter.acquire(&queue, 1)).await.unwrap();
            assert_eq!(permit.remaining(), remaining, "{}", timed.name());
        }
        for _ in 0..3 {
            crate::support::ends(timed.limiter.acquire_within(&TRIED, 1, MINUTE)).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_cost_that_never_fits_a_shadow_rule_is_admitted() {
    let limiter = Limiter::in_memory();
    limiter.acquire_n(&TRIED, 1, 3).await.unwrap();
    assert_eq!(limiter.peek(&TRIED, 1).await.unwrap().remaining(), 2);
    let charges = [(&TRIED, Key::new(1), 3), (&HELD, Key::new(1), 3)];
    assert_eq!(limiter.acquire_all(&charges).await.unwrap().remaining(), 1);
    let faulty = Rule::new("", 1, MINUTE).with_shadow(true);
    assert_eq!(limiter.acquire(&faulty, 1).await.unwrap_err().cause(), Cause::Misconfigured, "mistakes are errors");
}

/// An outage must not refuse a call because of a rule that refuses none.
#[tokio::test]
async fn a_shadow_rule_refuses_nothing_during_an_outage() {
    for policy in [OnStoreError::Local, OnStoreError::Allow, OnStoreError::Deny] {
        let builder = Limiter::builder("redis://127.0.0.1:1").lazy().instances(4);
        let limiter = builder.on_store_error(policy).build().await.unwrap();
        for _ in 0..5 {
            limiter.acquire(&TRIED.by(FIXED), 1).await.unwrap();
        }
        let held = Rule::new("held", 8, MINUTE);
        let admitted = async || {
            let mut admitted = 0;
            for _ in 0..5 {
                let charges = [(&TRIED, Key::new(1), 1), (&held, Key::new(1), 1)];
                admitted += u64::from(limiter.acquire_all(&charges).await.is_ok());
            }
            admitted
        };
        let expected = match policy {
            OnStoreError::Local => 2, // a fourth of 8
            OnStoreError::Allow => 5,
            OnStoreError::Deny => 0,
            other => panic!("{other:?} is not tested"),
        };
        assert_eq!(admitted().await, expected, "{policy:?}");
        if policy == OnStoreError::Deny {
            let refused = limiter.acquire_all(&[(&TRIED, Key::new(1), 1), (&held, Key::new(1), 1)]).await.unwrap_err();
            assert_eq!(refused.rule(), "held");
        }
    }
}

#[tokio::test]
async fn a_rule_without_its_key_decides_nothing_during_an_outage() {
    #[limit_request_per_time("tenant", 1, Days, 1, key = tenant, on_missing_key = Skip)]
    #[limit_request_per_time("tried", 1, Days, 1, shadow = true)]
    async fn in_shadow(tenant: Option<u64>) -> Result<(), RequestPerMinute> {
        Ok(())
    }

    #[limit_request_per_time("tenant", 1, Days, 1, key = tenant, on_missing_key = Skip)]
    #[limit_request_per_time("held", 1, Days, 1)]
    async fn enforced(tenant: Option<u64>) -> Result<(), RequestPerMinute> {
        Ok(())
    }

    let policies = "[rules.tenant]\non_store_error = \"Allow\"\n[rules.held]\non_store_error = \"Deny\"";
    for policy in [OnStoreError::Deny, OnStoreError::Wait { max: 60 * MINUTE }] {
        let builder = Limiter::builder("redis://127.0.0.1:1").lazy().on_store_error(policy);
        builder.build().await.unwrap().scope(async { ends(in_shadow(None)).await.unwrap() }).await;
    }
    let builder = Limiter::builder("redis://127.0.0.1:1").lazy().rules(Rules::parse(policies).unwrap());
    let limiter = builder.build().await.unwrap();
    limiter
        .scope(async {
            let refused = enforced(None).await.unwrap_err();
            assert_eq!((refused.cause(), refused.rule()), (Cause::Unavailable, "held"));
        })
        .await;
}

#[tokio::test]
async fn the_attribute_has_a_shadow_argument() {
    #[limit_request_per_time("tried", 1, Days, 1, key = id, on_missing_key = Deny, shadow = true)]
    async fn tried(id: Option<u64>) -> Result<(), RequestPerMinute> {
        Ok(())
    }

    #[limit_request_per_time("held", 1, Days, 2, shadow = false)]
    #[limit_request_per_time("tried", 1, Days, count = count, algorithm = TokenBucket, shadow = true)]
    async fn stacked(count: u64) -> Result<(), RequestPerMinute> {
        Ok(())
    }

    let server = RedisServer::start();
    for limiter in [Limiter::in_memory(), limiter_on(&server).await] {
        limiter
            .scope(async {
                for id in [Some(1), Some(1), None] {
                    tried(id).await.unwrap();
                }
                stacked(1).await.unwrap();
                stacked(1).await.unwrap();
                assert_eq!(stacked(1).await.unwrap_err().rule(), "held");
            })
            .await;
    }
}
