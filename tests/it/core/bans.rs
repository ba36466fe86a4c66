//! Banned counters, in memory and on Redis alike.

use std::time::Duration;

use futures_util::future::join_all;
use ratelimit_runtime::conformance::counter_of;
use ratelimit_runtime::store::{Charge, Request};
use ratelimit_runtime::{
    Algorithm, Cause, Key, Limiter, ManualClock, Permit, Refill, RequestPerMinute, Rule, limit_request_per_time,
};

use crate::support::holds::{decide_all, held_charge};
use crate::support::{ALGORITHMS, By, LOG, MS, SECOND, Timed, ends, exceeded, fresh_key, settle};

const MINUTE: Duration = Duration::from_secs(60);
const BAN: Duration = Duration::from_secs(600);

/// Every algorithm that can be banned, with a period below and above those that the scripts treat alike.
fn rules() -> Vec<Rule> {
    let buckets = Algorithm::SlidingWindow { buckets: 5, weighted: true };
    let algorithms = || ALGORITHMS.into_iter().chain([buckets]);
    let of_period = |period| algorithms().map(move |algorithm| Rule::new("banned", 5, period).by(algorithm));
    of_period(MINUTE).chain(of_period(300 * SECOND)).collect()
}

/// The wait of a refusal because of a ban.
#[track_caller]
fn banned(answer: Result<Permit, RequestPerMinute>) -> Duration {
    let refused = answer.unwrap_err();
    assert_eq!((refused.cause(), refused.remaining()), (Cause::Banned, 0), "{refused}");
    refused.retry_after().unwrap()
}

/// A part is granted, so nothing is refused.
#[tokio::test]
async fn a_call_for_a_part_of_its_cost_bans_only_if_nothing_fits() {
    for timed in Timed::both().await {
        for algorithm in ALGORITHMS {
            let (key, rule) = (fresh_key(), Rule::new("part", 100, MINUTE).by(algorithm).with_ban(BAN));
            timed.limiter.acquire_n(&rule, key, 80).await.unwrap();
            let (granted, _permit) = timed.limiter.acquire_up_to(&rule, key, 80).await.unwrap();
            assert_eq!(granted, 20, "{}", timed.of(&rule));
            assert!(!timed.limiter.peek(&rule, key).await.unwrap().is_banned(), "{}", timed.of(&rule));
            let refused = timed.limiter.acquire_up_to(&rule, key, 80).await.unwrap_err();
            assert_eq!(refused.cause(), Cause::Banned, "{}: {refused}", timed.of(&rule));
        }
    }
}

#[limit_request_per_time("priced", 1, Minutes, 5, key = id, cost = cost, on_limit = Wait(max = "5s"), limiter = limiter)]
async fn priced(limiter: &Limiter, id: u64, cost: u64) -> Result<(), RequestPerMinute> {
    Ok(())
}

/// Also calls that cost nothing, which stand in no queue.
#[tokio::test]
async fn calls_wait_for_the_end_of_a_ban_as_long_as_they_may() {
    const PRICED: Rule = Rule::new("priced", 5, MINUTE);
    for timed in Timed::both().await {
        for cost in [0, 1] {
            let (id, of) = (fresh_key(), timed.of(&PRICED));
            let call = || {
                let limiter = timed.limiter.clone();
                tokio::spawn(async move { priced(&limiter, id, cost).await })
            };
            timed.limiter.ban(&PRICED, id, 3 * SECOND).await.unwrap();
            let calls = [call(), call()];
            settle().await;
            assert!(!calls[0].is_finished(), "{of}");
            timed.advance(3 * SECOND);
            for call in calls {
                ends(call).await.unwrap().unwrap();
            }
            timed.limiter.ban(&PRICED, id, 10 * SECOND).await.unwrap();
            assert_eq!(ends(call()).await.unwrap().unwrap_err().cause(), Cause::Banned, "{of}");
        }
    }
}

#[tokio::test]
async fn a_ban_refuses_every_call_until_it_ends_and_then_the_counter_is_fresh() {
    for timed in Timed::both().await {
        for rule in rules() {
            let (key, of, limiter) = (fresh_key(), timed.of(&rule), &timed.limiter);
            limiter.ban(&rule, key, BAN).await.unwrap();
            assert_eq!(banned(limiter.acquire(&rule, key).await), BAN, "{of}");
            timed.advance(BAN - MS);
            limiter.unban(&rule, fresh_key()).await.unwrap();
            assert_eq!(banned(limiter.acquire_n(&rule, key, 5).await), MS, "{of}");
            assert_eq!(banned(limiter.acquire_n(&rule, key, 0).await), MS, "{of}");
            let seen = limiter.peek(&rule, key).await.unwrap();
            assert_eq!((seen.is_banned(), seen.remaining(), seen.limit()), (true, 0, 5), "{of}");
            assert_eq!((seen.retry_after(), seen.reset_after()), (Some(MS), MS), "{of}");
            assert!(!limiter.peek(&rule, fresh_key()).await.unwrap().is_banned(), "{of}");
            timed.advance(MS);
            assert!(!limiter.peek(&rule, key).await.unwrap().is_banned(), "{of}");
            assert_eq!(limiter.acquire_n(&rule, key, 5).await.unwrap().remaining(), 0, "{of}");
            exceeded(limiter.acquire(&rule, key).await);
        }
    }
}

/// A script of many decisions knows the time, and reads no expiry.
#[tokio::test]
async fn callers_who_share_round_trips_meet_a_ban() {
    for timed in Timed::both().await {
        for rule in rules() {
            let (keys, of) = ([fresh_key(), fresh_key()], timed.of(&rule));
            timed.limiter.ban(&rule, keys[0], BAN).await.unwrap();
            for left in [BAN, BAN - 299 * SECOND, MS] {
                timed.advance(timed.limiter.peek(&rule, keys[0]).await.unwrap().reset_after() - left);
                // Two costs, so that some of the charges are not merged.
                let calls =
                    (0..60).map(|call| timed.limiter.acquire_n(&rule, keys[call % 2], 1 + (call as u64 / 2) % 2));
                let (mut admitted, mut at) = (0, 0);
                for answer in join_all(calls).await {
                    match at % 2 {
                        0 => assert_eq!(banned(answer), left, "{of}"),
                        _ => admitted += u64::from(answer.is_ok()),
                    }
                    at += 1;
                }
                assert!(admitted > 0 || left != BAN, "{of}");
            }
        }
    }
}

#[tokio::test]
async fn of_two_bans_the_later_end_holds() {
    for timed in Timed::both().await {
        for rule in rules() {
            let (key, of, limiter) = (fresh_key(), timed.of(&rule), &timed.limiter);
            limiter.ban(&rule, key, BAN).await.unwrap();
            timed.advance(SECOND);
            limiter.ban(&rule, key, MINUTE).await.unwrap();
            assert_eq!(banned(limiter.acquire(&rule, key).await), BAN - SECOND, "{of}");
            limiter.ban(&rule, key, BAN).await.unwrap();
            assert_eq!(banned(limiter.acquire(&rule, key).await), BAN, "{of}");
            limiter.ban(&rule, key, Duration::ZERO).await.unwrap();
            assert_eq!(banned(limiter.acquire(&rule, key).await), BAN, "{of}");
        }
    }
}

#[tokio::test]
async fn an_ended_ban_leaves_a_fresh_counter() {
    for timed in Timed::both().await {
        for rule in rules() {
            let (key, of, limiter) = (fresh_key(), timed.of(&rule), &timed.limiter);
            limiter.acquire_n(&rule, key, 3).await.unwrap();
            limiter.unban(&rule, key).await.unwrap();
            assert_eq!(limiter.peek(&rule, key).await.unwrap().remaining(), 2, "{of}");
            limiter.ban(&rule, key, BAN).await.unwrap();
            limiter.unban(&rule, key).await.unwrap();
            assert_eq!(limiter.acquire(&rule, key).await.unwrap().remaining(), 4, "{of}");
            limiter.ban(&rule, key, BAN).await.unwrap();
            limiter.reset(&rule, key).await.unwrap();
            assert_eq!(limiter.acquire(&rule, key).await.unwrap().remaining(), 4, "{of}");
        }
    }
}

/// The ban takes the place of the charges, so it ends no sooner than they do. A log keeps them.
#[tokio::test]
async fn no_charge_is_forgotten_by_a_short_ban() {
    for timed in Timed::both().await {
        for rule in rules() {
            let (key, of, limiter) = (fresh_key(), timed.of(&rule), &timed.limiter);
            timed.advance(timed.limiter.acquire(&rule, 0).await.unwrap().reset_after());
            limiter.acquire_n(&rule, key, 5).await.unwrap();
            timed.advance(SECOND);
            let counts = limiter.peek(&rule, key).await.unwrap().reset_after();
            limiter.ban(&rule, key, 2 * SECOND).await.unwrap();
            let wait = banned(limiter.acquire(&rule, key).await);
            assert_eq!(wait, counts, "{of}");
            timed.advance(2 * SECOND);
            if rule.algorithm() == LOG {
                assert_eq!(exceeded(limiter.acquire(&rule, key).await).retry_after(), Some(wait - 2 * SECOND), "{of}");
            } else {
                assert_eq!(banned(limiter.acquire(&rule, key).await), wait - 2 * SECOND, "{of}");
            }
            timed.advance(wait - 2 * SECOND - MS);
            limiter.acquire(&rule, key).await.unwrap_err();
            timed.advance(MS);
            limiter.acquire_n(&rule, key, 5).await.unwrap();
        }
    }
}

/// It leaves an empty bucket in front of those that count.
#[tokio::test]
async fn a_refunded_charge_makes_no_ban_longer() {
    for timed in Timed::both().await {
        for (buckets, weighted) in [(1, true), (4, true), (4, false)] {
            let rule = Rule::new("item", 10, MINUTE).with_algorithm(Algorithm::SlidingWindow { buckets, weighted });
            let (keys, limiter) = ([fresh_key(), fresh_key()], &timed.limiter);
            for key in keys {
                limiter.acquire(&rule, key).await.unwrap();
            }
            timed.advance(MINUTE / u32::try_from(buckets).unwrap());
            let refunded = limiter.acquire(&rule, keys[1]).await.unwrap();
            assert_eq!(refunded.refund().await.unwrap(), 1);
            let mut bans = Vec::new();
            for key in keys {
                limiter.ban(&rule, key, SECOND).await.unwrap();
                bans.push(banned(limiter.acquire(&rule, key).await));
            }
            assert_eq!(bans[0], bans[1], "{}", timed.of(&rule));
        }
    }
}

#[tokio::test]
async fn a_log_goes_on_below_a_ban() {
    for timed in Timed::both().await {
        let (rule, limiter) = (Rule::new("banned", 5, MINUTE).with_algorithm(LOG), &timed.limiter);
        for (used, kept) in [(0, 2), (2, 4)] {
            let key = fresh_key();
            limiter.acquire_n(&rule, key, 2).await.unwrap();
            let held = limiter.reserve(&rule, key, 3).await.unwrap();
            limiter.ban(&rule, key, 10 * SECOND).await.unwrap();
            assert_eq!(banned(limiter.acquire(&rule, key).await), MINUTE, "until the first charges expire");
            timed.advance(5 * SECOND);
            held.settle(used).await.unwrap();
            assert_eq!(banned(limiter.acquire(&rule, key).await), 5 * SECOND, "{}", timed.name());
            timed.advance(5 * SECOND);
            assert_eq!(limiter.peek(&rule, key).await.unwrap().remaining(), 5 - kept, "{}", timed.name());
            timed.advance(50 * SECOND);
            assert_eq!(limiter.peek(&rule, key).await.unwrap().remaining(), 5 - used, "{}", timed.name());
        }
        // Longer than the log distinguishes times: the charges are not mistaken for later ones.
        let key = fresh_key();
        limiter.acquire_n(&rule, key, 5).await.unwrap();
        limiter.ban(&rule, key, 1000 * MINUTE).await.unwrap();
        for _ in 0..1000 {
            banned(limiter.acquire(&rule, key).await);
            timed.advance(MINUTE);
        }
        limiter.acquire_n(&rule, key, 5).await.unwrap();
    }
}

#[tokio::test]
async fn a_hold_is_settled_after_the_end_of_a_ban() {
    for timed in Timed::both().await {
        let (rule, limiter, key) = (Rule::new("banned", 5, MINUTE).with_algorithm(LOG), &timed.limiter, fresh_key());
        limiter.acquire(&rule, key).await.unwrap();
        let held = limiter.reserve(&rule, key, 3).await.unwrap();
        limiter.ban(&rule, key, BAN).await.unwrap();
        limiter.unban(&rule, key).await.unwrap();
        assert_eq!(limiter.peek(&rule, key).await.unwrap().remaining(), 2, "{}", timed.name());
        held.settle(1).await.unwrap();
        assert_eq!(limiter.peek(&rule, key).await.unwrap().remaining(), 4, "{}", timed.name());
    }
}

#[tokio::test]
async fn nothing_is_refunded_to_a_banned_counter() {
    for timed in Timed::both().await {
        for rule in rules() {
            let (key, of, limiter) = (fresh_key(), timed.of(&rule), &timed.limiter);
            let permit = limiter.acquire_n(&rule, key, 2).await.unwrap();
            limiter.ban(&rule, key, BAN).await.unwrap();
            assert_eq!(permit.refund().await.unwrap(), 0, "{of}");
            assert_eq!(banned(limiter.acquire(&rule, key).await), BAN, "{of}");
        }
    }
}

#[tokio::test]
async fn a_log_refunds_again_from_the_end_of_a_ban() {
    for timed in Timed::both().await {
        let (rule, limiter, key) = (Rule::new("banned", 5, MINUTE).with_algorithm(LOG), &timed.limiter, fresh_key());
        let during = limiter.acquire(&rule, key).await.unwrap();
        let after = limiter.acquire(&rule, key).await.unwrap();
        limiter.ban(&rule, key, SECOND).await.unwrap();
        timed.advance(SECOND - MS);
        assert_eq!(during.refund().await.unwrap(), 0, "{}", timed.name());
        timed.advance(MS);
        assert_eq!(after.refund().await.unwrap(), 1, "{}", timed.name());
    }
}

#[tokio::test]
async fn a_clock_set_back_does_not_prolong_a_ban() {
    let timed = Timed::redis().await;
    let clock = timed.server().unwrap().clock();
    for rule in rules() {
        let (key, of, limiter) = (fresh_key(), timed.of(&rule), &timed.limiter);
        limiter.ban(&rule, key, BAN).await.unwrap();
        clock.set_micros(clock.now_micros() - 3_600_000_000);
        assert_eq!(banned(limiter.acquire(&rule, key).await), BAN, "{of}");
        timed.advance(BAN);
        limiter.acquire(&rule, key).await.unwrap();
    }
}

#[tokio::test]
async fn a_ban_without_an_expiry_ends_all_the_same() {
    let timed = Timed::redis().await;
    let server = timed.server().unwrap();
    for rule in rules() {
        let (key, of, limiter) = (fresh_key(), timed.of(&rule), &timed.limiter);
        limiter.ban(&rule, key, BAN).await.unwrap();
        let names: Vec<Vec<u8>> = redis::from_redis_value(server.command(&[b"KEYS", b"*"])).unwrap();
        let name = names.into_iter().find(|name| name.windows(8).any(|part| part == b"banned:{")).unwrap();
        server.command(&[b"PERSIST", &name]);
        assert_eq!(banned(limiter.acquire(&rule, key).await), BAN, "{of}");
        timed.advance(BAN);
        limiter.acquire_n(&rule, key, 5).await.unwrap();
        server.command(&[b"FLUSHALL"]);
    }
}

#[tokio::test]
async fn slots_and_places_cannot_be_banned() {
    for timed in Timed::both().await {
        for algorithm in [Algorithm::LeakyBucket { queue: 1 }, Algorithm::Concurrent] {
            let (rule, key) = (Rule::new("banned", 5, MINUTE).with_algorithm(algorithm), fresh_key());
            let refused = timed.limiter.ban(&rule, key, BAN).await.unwrap_err();
            assert_eq!(refused.cause(), Cause::Misconfigured);
            assert!(refused.to_string().contains("cannot be banned"), "{refused}");
            timed.limiter.unban(&rule, key).await.unwrap();
            timed.limiter.acquire(&rule, key).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_waiting_caller_waits_until_a_ban_ends() {
    for timed in Timed::both().await {
        let bucket = Algorithm::TokenBucket { burst: 5, refill: Refill::Greedy };
        for rule in [Rule::new("banned", 5, SECOND).by(LOG), Rule::new("banned", 5, SECOND).with_algorithm(bucket)] {
            let (key, of, limiter) = (fresh_key(), timed.of(&rule), &timed.limiter);
            limiter.ban(&rule, key, BAN).await.unwrap();
            assert_eq!(banned(limiter.acquire_within(&rule, key, MINUTE).await), BAN, "{of}");
            let call = tokio::spawn(limiter.acquire_within(&rule, key, 2 * BAN));
            while !call.is_finished() {
                let left = limiter.peek(&rule, key).await.unwrap().retry_after();
                tokio::task::yield_now().await;
                timed.advance(left.unwrap_or(MS).min(10 * SECOND));
            }
            ends(call).await.unwrap().unwrap();
            limiter.ban(&rule, key, BAN).await.unwrap();
            let call = tokio::spawn(limiter.acquire_within(&rule, key, 2 * BAN));
            tokio::time::sleep(20 * MS).await;
            assert!(!call.is_finished(), "{of}");
            limiter.unban(&rule, key).await.unwrap();
            ends(call).await.unwrap().unwrap();
        }
    }
}

#[tokio::test]
async fn a_stacked_rule_that_is_banned_charges_no_other() {
    for timed in Timed::both().await {
        for rule in rules() {
            let (key, of, limiter) = (fresh_key(), timed.of(&rule), &timed.limiter);
            let other = Rule::new("other", 5, MINUTE);
            limiter.ban(&rule, key, BAN).await.unwrap();
            for charges in [[&other, &rule], [&rule, &other]] {
                let refused = limiter.acquire_all(&charges.map(|rule| (rule, Key::new(key), 1))).await.unwrap_err();
                assert_eq!((refused.cause(), refused.rule()), (Cause::Banned, "banned"), "{of}");
                assert_eq!(limiter.peek(&other, key).await.unwrap().remaining(), 5, "{of}");
            }
        }
    }
}

#[tokio::test]
async fn a_ban_takes_a_slot_of_memory_until_it_ends() {
    let clock = ManualClock::new();
    let builder = Limiter::builder("memory://").clock(clock.clone()).max_keys(2);
    let (limiter, rule) = (builder.build().await.unwrap(), Rule::new("banned", 5, SECOND));
    for key in 0..2 {
        limiter.ban(&rule, key, BAN).await.unwrap();
    }
    assert_eq!(limiter.ban(&rule, 2, BAN).await.unwrap_err().cause(), Cause::Unavailable);
    clock.advance(BAN - MS);
    assert_eq!(limiter.acquire(&rule, 2).await.unwrap_err().cause(), Cause::Unavailable);
    clock.advance(MS);
    limiter.acquire(&rule, 2).await.unwrap();
}

/// The rules with a ban that starts when the limit is reached.
fn banning() -> impl Iterator<Item = Rule> {
    rules().into_iter().map(|rule| rule.with_ban(BAN))
}

#[tokio::test]
async fn the_first_refusal_bans_and_no_later_one_prolongs_the_ban() {
    for timed in Timed::both().await {
        for rule in banning() {
            let (key, of, limiter) = (fresh_key(), timed.of(&rule), &timed.limiter);
            limiter.acquire_n(&rule, key, 4).await.unwrap();
            limiter.peek(&rule, key).await.unwrap();
            limiter.acquire_n(&rule, key, 0).await.unwrap();
            assert_eq!(limiter.acquire_n(&rule, key, 6).await.unwrap_err().cause(), Cause::NeverFits, "{of}");
            limiter.acquire(&rule, key).await.unwrap();
            assert!(!limiter.peek(&rule, key).await.unwrap().is_banned(), "{of}");
            assert_eq!(banned(limiter.acquire(&rule, key).await), BAN, "{of}");
            for second in 1..=3 {
                timed.advance(SECOND);
                let left = BAN - second * SECOND;
                assert_eq!(banned(limiter.acquire_n(&rule, key, 2).await), left, "{of}");
                assert_eq!(banned(limiter.acquire(&rule.with_ban(Duration::ZERO), key).await), left, "{of}");
                assert_eq!(limiter.peek(&rule, key).await.unwrap().retry_after(), Some(left), "{of}");
            }
            limiter.acquire(&rule, fresh_key()).await.unwrap();
            timed.advance(BAN - 3 * SECOND - MS);
            assert_eq!(banned(limiter.acquire(&rule, key).await), MS, "{of}");
            timed.advance(MS);
            limiter.acquire_n(&rule, key, 5).await.unwrap();
            assert_eq!(banned(limiter.acquire(&rule, key).await), BAN, "{of}");
        }
    }
}

/// Also if its charges would expire sooner.
#[tokio::test]
async fn the_refusal_that_bans_says_that_all_is_reset_at_the_end_of_the_ban() {
    for timed in Timed::both().await {
        for rule in banning() {
            let key = fresh_key();
            timed.limiter.acquire_n(&rule, key, 5).await.unwrap();
            let charge = Request::new(Charge::new(rule, counter_of(&rule, key), 1), true);
            let decided = decide_all(&timed, [charge].into_iter()).await;
            let decision = decided[0].charges[0].decision;
            assert_eq!((decision.retry_after(), decision.reset_after()), (Some(BAN), BAN), "{}", timed.of(&rule));
        }
    }
}

/// Each of the 10,000 holds has ended, and counts for one period more.
#[tokio::test]
async fn a_hold_that_only_ended_holds_leave_no_room_for_does_not_ban() {
    for timed in Timed::both().await {
        let (rule, key) = (Rule::new("full", 20_000, MINUTE).by(LOG).with_ban(BAN), fresh_key());
        decide_all(&timed, (0..10_000).map(|_| held_charge(rule, key, 1, SECOND))).await;
        timed.advance(2 * SECOND);
        let decided = decide_all(&timed, [held_charge(rule, key, 1, SECOND)].into_iter()).await;
        let charge = &decided[0].charges[0];
        assert_eq!((decided[0].outcome.clone(), charge.decision.is_banned()), (Ok(false), false), "{}", timed.name());
        assert_eq!(timed.limiter.peek(&rule, key).await.unwrap().remaining(), 10_000, "{}", timed.name());
    }
}

#[tokio::test]
async fn of_many_callers_at_once_as_many_as_fit_are_admitted_and_the_others_banned() {
    for timed in Timed::both().await {
        for rule in banning() {
            let (key, of) = (fresh_key(), timed.of(&rule));
            let answers = join_all((0..100).map(|_| timed.limiter.acquire(&rule, key))).await;
            let (admitted, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
            assert_eq!(admitted.len(), 5, "{of}");
            for answer in refused {
                assert_eq!(banned(answer), BAN, "{of}");
            }
        }
    }
}

#[tokio::test]
async fn of_several_rules_only_those_that_refuse_ban() {
    for timed in Timed::both().await {
        for rule in banning() {
            let (key, of, limiter) = (fresh_key(), timed.of(&rule), &timed.limiter);
            let other = Rule::new("other", 5, MINUTE).with_ban(BAN);
            let both = [(&other, Key::new(key), 1), (&rule, Key::new(key), 1)];
            for _ in 0..5 {
                limiter.acquire_all(&both).await.unwrap();
            }
            limiter.reset(&other, key).await.unwrap();
            let refused = limiter.acquire_all(&both).await;
            assert_eq!(refused.as_ref().map_err(RequestPerMinute::rule).unwrap_err(), "banned");
            assert_eq!(banned(refused), BAN, "{of}");
            assert_eq!(banned(limiter.acquire(&rule, key).await), BAN, "{of}");
            let seen = limiter.peek(&other, key).await.unwrap();
            assert_eq!((seen.remaining(), seen.is_banned()), (5, false), "{of}");
            let plain = Rule::new("plain", 5, MINUTE);
            limiter.acquire_n(&plain, key, 5).await.unwrap();
            let refused = limiter.acquire_all(&[(&other, Key::new(key), 1), (&plain, Key::new(key), 1)]).await;
            exceeded(refused);
            assert_eq!(limiter.peek(&other, key).await.unwrap().remaining(), 5, "{of}");
        }
    }
}

/// A cost that others hold may still be released: only a charged one bans.
#[tokio::test]
async fn a_cost_that_others_hold_does_not_ban() {
    for timed in Timed::both().await {
        let (limiter, key) = (&timed.limiter, fresh_key());
        let rule = Rule::new("failed-logins", 3, MINUTE).with_algorithm(LOG).with_ban(BAN);
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(limiter.reserve(&rule, key, 1).await.unwrap());
        }
        exceeded(limiter.reserve(&rule, key, 1).await);
        exceeded(limiter.acquire(&rule, key).await);
        let other = Rule::new("other", 5, MINUTE);
        exceeded(limiter.acquire_all(&[(&rule, Key::new(key), 1), (&other, Key::new(key), 1)]).await);
        held.pop().unwrap().settle(0).await.unwrap();
        held.push(limiter.reserve(&rule, key, 1).await.unwrap());
        for hold in held {
            hold.settle(1).await.unwrap();
        }
        let refused = limiter.reserve(&rule, key, 1).await.unwrap_err();
        assert_eq!((refused.cause(), refused.retry_after()), (Cause::Banned, Some(BAN)), "{}", timed.name());
    }
}

#[tokio::test]
async fn rules_that_cannot_ban_are_misconfigured() {
    let limiter = Limiter::in_memory();
    let rule = Rule::new("banned", 5, MINUTE);
    let leaky = rule.with_algorithm(Algorithm::LeakyBucket { queue: 1 });
    for (invalid, words) in [
        (leaky.with_ban(BAN), "slots and places cannot be taken back"),
        (rule.with_ban(BAN).with_algorithm(Algorithm::Concurrent), "slots and places cannot be taken back"),
        (rule.with_ban(BAN).with_shadow(true), "shadow mode refuses nothing"),
        (rule.with_prefetch(10).with_ban(BAN), "prefetched permits would be granted"),
        (rule.with_ban(50 * 24 * 60 * MINUTE), "at most 49 days"),
    ] {
        let refused = limiter.acquire(&invalid, 1).await.unwrap_err();
        assert_eq!(refused.cause(), Cause::Misconfigured);
        assert!(refused.to_string().contains(words), "{refused}");
    }
    let refused = limiter.acquire_within(&rule.with_ban(BAN), 1, SECOND).await.unwrap_err();
    assert_eq!(refused.cause(), Cause::Misconfigured);
    assert!(refused.to_string().contains("a call that waits for its limit cannot ban"), "{refused}");
    assert_eq!(rule.ban(), None);
    assert_eq!(rule.with_ban(BAN).ban(), Some(BAN));
    assert_eq!(rule.with_ban(BAN).with_ban(Duration::ZERO), rule);
    assert_eq!(rule.with_ban(Duration::from_micros(1)).ban(), Some(MS));
    limiter.acquire(&rule.with_ban(BAN).with_ban(Duration::ZERO).with_shadow(true), 1).await.unwrap();
}
