//! Several settled costs of one call, and settled costs beside other calls.

use futures_util::FutureExt;
use ratelimit_runtime::__private::{Call, charge, charge_settled, key as key_of, permit_of_several};
use ratelimit_runtime::{Algorithm, Key, Permit, RequestPerMinute, Rule};

use crate::support::holds::remaining;
use crate::support::{
    ALIGNED, BUCKET, By, FIXED, INTERVAL, LOG, SECOND, SLIDING, Timed, eventually, exceeded, fresh_key, hourly,
};

const SETTLED: [Algorithm; 6] = [FIXED, ALIGNED, SLIDING, BUCKET, INTERVAL, LOG];

fn other(count: u64, algorithm: Algorithm) -> Rule {
    Rule::new("other", count, 3600 * SECOND).by(algorithm)
}

/// A call that settles both rules, each with its maximum.
async fn both(timed: &Timed, key: u64, rules: [(Rule, u64); 2]) -> Result<Permit, RequestPerMinute> {
    let [one, other] = rules.map(|(rule, most)| charge_settled(rule, key_of(&key), most));
    permit_of_several(Some(&timed.limiter), Call::DEFAULT, (one, (other, ()))).await
}

async fn left(timed: &Timed, key: u64, rules: [Rule; 2]) -> [u64; 2] {
    [remaining(&timed.limiter, &rules[0], key).await, remaining(&timed.limiter, &rules[1], key).await]
}

/// Pairs of rules, each with a maximum of 600 and of 500.
fn pairs() -> impl Iterator<Item = [(Rule, u64); 2]> {
    let with = |one, two| [(hourly(1000, one), 600), (other(1000, two), 500)];
    SETTLED.into_iter().flat_map(move |one| SETTLED.into_iter().map(move |two| with(one, two)))
}

#[tokio::test]
async fn each_rule_is_charged_the_use_whatever_its_maximum_was() {
    for timed in Timed::both().await {
        for rules in pairs() {
            let both_rules = rules.map(|(rule, _)| rule);
            // Nothing, the lesser maximum, between the two, and beyond both.
            for used in [0, 499, 500, 550, 600, 601, 1000] {
                let key = fresh_key();
                let permit = both(&timed, key, rules).await.unwrap();
                assert_eq!(left(&timed, key, both_rules).await, [400, 500], "{}", timed.of(&rules[0].0));
                permit.settle(used).await.unwrap();
                assert_eq!(left(&timed, key, both_rules).await, [1000 - used; 2], "{}", timed.of(&rules[0].0));
            }
            // Beyond what remains: each is used up, and in debt.
            let key = fresh_key();
            both(&timed, key, rules).await.unwrap().settle(1500).await.unwrap();
            assert_eq!(left(&timed, key, both_rules).await, [0; 2], "{}", timed.of(&rules[0].0));
        }
    }
}

#[tokio::test]
async fn a_rule_beside_one_that_refuses_keeps_no_charge() {
    for timed in Timed::both().await {
        for rules in pairs() {
            let key = fresh_key();
            let [(one, most), (small, _)] = rules;
            timed.limiter.acquire_n(&small, key, 501).await.unwrap();
            for order in [rules, [rules[1], rules[0]]] {
                assert_eq!(exceeded(both(&timed, key, order).await).remaining(), 499, "{}", timed.of(&one));
                assert_eq!(left(&timed, key, [one, small]).await, [1000, 499], "{}", timed.of(&one));
            }
            timed.limiter.reserve(&one, key, most).await.unwrap().settle(1).await.unwrap();
            assert_eq!(left(&timed, key, [one, small]).await, [999, 499], "{}", timed.of(&one));
        }
    }
}

/// A call of plain charges meets the counter of a call that is not settled yet.
#[tokio::test]
async fn acquire_all_counts_and_refunds_beside_a_settled_cost() {
    for timed in Timed::both().await {
        for algorithm in SETTLED {
            let (key, rule, beside) = (fresh_key(), hourly(1000, algorithm), other(1000, FIXED));
            let reservation = timed.limiter.reserve(&rule, key, 600).await.unwrap();
            let all = |cost| [(&rule, Key::new(key), cost), (&beside, Key::new(key), 50)];
            exceeded(timed.limiter.acquire_all(&all(401)).await);
            let kept = timed.limiter.acquire_all(&all(100)).await.unwrap();
            let refunded = timed.limiter.acquire_all(&all(200)).await.unwrap();
            assert_eq!(left(&timed, key, [rule, beside]).await, [100, 900], "{}", timed.of(&rule));
            assert_eq!(refunded.refund().await, Ok(250), "{}", timed.of(&rule));
            reservation.settle(10).await.unwrap();
            assert_eq!(left(&timed, key, [rule, beside]).await, [890, 950], "{}", timed.of(&rule));
            drop(kept);
            assert_eq!(left(&timed, key, [rule, beside]).await, [890, 950], "{}", timed.of(&rule));
        }
    }
}

/// The future of the first way to settle is dropped after one poll, and so is the permit.
#[tokio::test]
async fn a_call_is_settled_once_by_whatever_comes_first() {
    for timed in Timed::both().await {
        for rules in pairs() {
            let (key, both_rules) = (fresh_key(), rules.map(|(rule, _)| rule));
            let timed = &timed;
            let is_left = |expected| {
                eventually("it is settled", move || async move { left(timed, key, both_rules).await == [expected; 2] })
            };
            let mut permit = both(timed, key, rules).await.unwrap();
            permit.record(7);
            drop(permit.settle(100).now_or_never());
            is_left(900).await;
            // A future that was never polled drops the permit, with what was recorded.
            let mut permit = both(timed, key, rules).await.unwrap();
            permit.record(7);
            drop(permit.settle(100));
            is_left(893).await;
            timed.limiter.acquire_n(&rules[0].0, key, 1).await.unwrap();
            assert_eq!(left(timed, key, both_rules).await, [892, 893], "{}", timed.of(&rules[0].0));
        }
    }
}

/// It was refused where its rule was on trial, so only the enforced rule is settled.
#[tokio::test]
async fn a_shadow_rule_that_refuses_is_neither_charged_nor_settled() {
    for timed in Timed::both().await {
        for [(enforced, most), (tried, _)] in pairs() {
            let (key, tried) = (fresh_key(), tried.with_shadow(true));
            let enforced = hourly(2000, enforced.algorithm());
            for order in [[(enforced, most), (tried, most)], [(tried, most), (enforced, most)]] {
                timed.limiter.reset(&enforced, key).await.unwrap();
                timed.limiter.reset(&tried, key).await.unwrap();
                let counted = both(&timed, key, order).await.unwrap();
                let uncounted = both(&timed, key, order).await.unwrap();
                assert_eq!(left(&timed, key, [enforced, tried]).await, [800, 400], "{}", timed.of(&enforced));
                uncounted.settle(100).await.unwrap();
                assert_eq!(left(&timed, key, [enforced, tried]).await, [1300, 400], "{}", timed.of(&enforced));
                counted.settle(100).await.unwrap();
                assert_eq!(left(&timed, key, [enforced, tried]).await, [1800, 900], "{}", timed.of(&enforced));
            }
        }
    }
}

/// Two keys of one rule may be equal. Enforced, that is a mistake. On trial, the first charge counts.
#[tokio::test]
async fn a_shadow_rule_with_two_equal_keys_refuses_nothing() {
    for timed in Timed::both().await {
        for algorithm in SETTLED {
            let (key, rule) = (fresh_key(), hourly(1000, algorithm).with_shadow(true));
            let (settled, plain) = (|| charge_settled(rule, key_of(&key), 600), || charge(rule, key_of(&key), 1));
            let limiter = Some(&timed.limiter);
            let calls = [
                (permit_of_several(limiter, Call::DEFAULT, (settled(), (settled(), ()))).boxed(), 600, 50),
                (permit_of_several(limiter, Call::DEFAULT, (settled(), (plain(), ()))).boxed(), 600, 50),
                (permit_of_several(limiter, Call::DEFAULT, (plain(), (settled(), ()))).boxed(), 1, 1),
            ];
            let mut expected = 1000;
            for (call, charged, used) in calls {
                let permit = call.await.unwrap();
                assert_eq!(remaining(&timed.limiter, &rule, key).await, expected - charged, "{}", timed.of(&rule));
                permit.settle(50).await.unwrap();
                expected -= used;
                assert_eq!(remaining(&timed.limiter, &rule, key).await, expected, "{}", timed.of(&rule));
            }
        }
    }
}
