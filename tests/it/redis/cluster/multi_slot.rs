//! Calls whose counters are in several slots of a cluster.

use std::future::poll_fn;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use ratelimit_harness::{Mode, RedisCluster};
use ratelimit_runtime::__private::{Call, charge, charge_settled, key, permit_of_several};
use ratelimit_runtime::conformance::Subject;
use ratelimit_runtime::{Algorithm, Cause, Key, Limiter, ManualClock, OnStoreError, Permit, RequestPerMinute, Rule};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{Timed, keys_apart, limiter_on, name};
use crate::support::servers::ask;
use crate::support::{
    ALGORITHMS, BUCKET, By, FIXED, LOG, MS, PATIENCE, SECOND, SLIDING, eventually, exceeded, fresh_key, hourly,
    in_memory, is_admitted,
};

type Answer = Result<Permit, RequestPerMinute>;

/// Call by call, decisions over several slots equal those of the memory store.
#[tokio::test]
async fn charges_of_several_slots_are_decided_as_in_memory() {
    let cluster = Timed::start(3, false).await;
    for algorithm in ALGORITHMS {
        let clock = ManualClock::new();
        clock.advance(cluster.now() - clock.now());
        let memory = in_memory(&clock).await;
        let rules = [(7, 60), (5, 600), (11, 10)]
            .map(|(count, seconds)| Rule::new("item", count, Duration::from_secs(seconds)).by(algorithm));
        let keys = [fresh_key(), fresh_key(), fresh_key()];
        let mut permits = Vec::new();
        for step in 0..40_u64 {
            let charges: Vec<_> =
                (0..3).map(|at| (&rules[at], Key::new(keys[at]), (step + at as u64 * 2) % 4)).collect();
            let (here, there) = (cluster.limiter.acquire_all(&charges).await, memory.acquire_all(&charges).await);
            let said = |answer: &Answer| match answer {
                Ok(permit) => format!("{permit:?}"),
                Err(refused) => format!("{refused:?}"),
            };
            assert_eq!(said(&here), said(&there), "{algorithm:?}, step {step}");
            for at in 0..3 {
                let (here, there) =
                    (cluster.limiter.peek(&rules[at], keys[at]).await, memory.peek(&rules[at], keys[at]).await);
                assert_eq!(here.unwrap(), there.unwrap(), "{algorithm:?}, step {step}, rule {at}");
            }
            permits.extend(here.ok().zip(there.ok()));
            if step % 7 == 6 {
                let (here, there) = permits.pop().expect("some are granted");
                assert_eq!(here.refund().await.unwrap(), there.refund().await.unwrap(), "{algorithm:?}, step {step}");
            }
            let pass = Duration::from_millis(step * 137);
            cluster.advance(pass);
            clock.advance(pass);
        }
    }
}

/// All or nothing, and exactly as many as the tightest rule lets through.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn charges_of_several_slots_are_all_or_nothing() {
    let cluster = RedisCluster::builder().replicas(0).start();
    let limiter = limiter_on(&cluster).await;
    for algorithm in [FIXED, LOG, SLIDING] {
        let keys = keys_apart(&cluster, 3);
        let rules = [hourly(60, algorithm), hourly(200, algorithm), hourly(90, algorithm)];
        let mut tasks = JoinSet::new();
        for task in 0..8 {
            let (limiter, keys) = (limiter.clone(), keys.clone());
            tasks.spawn(async move {
                let mut charges = each(&rules, &keys);
                charges.rotate_left(task % 3);
                let mut admitted = 0;
                for _ in 0..20 {
                    admitted += u64::from(is_admitted(limiter.acquire_all(&charges).await));
                }
                admitted
            });
        }
        let mut all: u64 = tasks.join_all().await.into_iter().sum();
        // What was refused for the moment that another was charged fits now.
        while is_admitted(limiter.acquire_all(&each(&rules, &keys)).await) {
            all += 1;
        }
        assert_eq!(all, 30, "{algorithm:?}: of 90 with a cost of 3");
        for at in 0..3 {
            let used = rules[at].limit() - limiter.peek(&rules[at], keys[at]).await.unwrap().remaining();
            assert_eq!(used, 30 * (at as u64 + 1), "{algorithm:?}, rule {at}");
        }
    }
}

/// A cost of 1 to the first rule, of 2 to the second, of 3 to the third.
fn each<'a>(rules: &'a [Rule; 3], keys: &[u64]) -> Vec<(&'a Rule, Key, u64)> {
    rules.iter().zip(keys).zip(1..).map(|((rule, key), cost)| (rule, Key::new(key), cost)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_caller_who_leaves_between_two_slots_has_charged_nothing() {
    leave_between_two_slots(false, FIXED).await;
}

/// Also the plain charges beside a settled one are refunded.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_caller_who_leaves_before_it_can_settle_has_charged_nothing() {
    leave_between_two_slots(true, FIXED).await;
}

/// Also those beside a held one.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_caller_who_leaves_before_it_can_hold_has_charged_nothing() {
    leave_between_two_slots(true, LOG).await;
}

/// Callers leave at all times. If a charge settles, it is the first one; that of a log is held.
async fn leave_between_two_slots(settles: bool, settled: Algorithm) {
    let cluster = RedisCluster::builder().replicas(0).start();
    let limiter = limiter_on(&cluster).await;
    let keys = keys_apart(&cluster, 3);
    let rules = [hourly(1_000_000, settled), hourly(1_000_000, FIXED), hourly(1_000_000, FIXED)];
    let charges = each(&rules, &keys);
    let (mut kept, mut left) = (0, 0);
    let mut whole = Duration::ZERO;
    for call in 0..500 {
        // One caller stays, and shows how long a call takes. The next ones leave at all times in
        // between, for which a timer is too coarse.
        let (asked, step) = (Instant::now(), call % 50);
        let leave_at = asked + if step == 0 { PATIENCE } else { whole * (step - 1) / 40 };
        let plain = |at: usize| charge(rules[at], key(&keys[at]), at as u64 + 1);
        let first = charge_settled(rules[0], key(&keys[0]), 1);
        let mut acquired = if settles {
            permit_of_several(Some(&limiter), Call::DEFAULT, (first, (plain(1), (plain(2), ())))).boxed()
        } else {
            limiter.acquire_all(&charges).boxed()
        };
        let left_or_answered = poll_fn(|context| match acquired.poll_unpin(context) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending if Instant::now() > leave_at => Poll::Ready(None),
            Poll::Pending => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
        });
        match left_or_answered.await {
            Some(answer) => kept += u64::from(is_admitted(answer)),
            None => left += 1,
        }
        if step == 0 {
            whole = asked.elapsed();
        }
    }
    assert!(kept > 0 && left > 0, "{kept} stayed, {left} left");
    eventually("what those who left were charged is refunded", || async {
        let mut settled = true;
        for (rule, key, cost) in &charges {
            let used = rule.limit() - limiter.peek(rule, key.to_string()).await.unwrap().remaining();
            assert!(used >= kept * cost, "{used} for {kept} permits of {cost}");
            settled &= used == kept * cost;
        }
        settled
    })
    .await;
}

/// The refund is the first request of the background runtime, whose connection takes longer to open than a deadline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_refund_waits_until_its_connection_is_open() {
    let cluster = RedisCluster::builder().replicas(0).proxied().start();
    let limiter = Limiter::builder(&cluster.url()).on_store_error(OnStoreError::Deny).build().await.unwrap();
    let keys = keys_apart(&cluster, 2);
    let rule = hourly(10, FIXED);
    for key in &keys {
        eventually("its script is loaded", async || limiter.peek(&rule, key).await.is_ok()).await;
    }
    // A round trip of 80 ms: the call is late at its second one, and the connection after 160 ms.
    (0..3).for_each(|node| cluster.proxy(node).set(Mode::Delay(40 * MS)));
    let refused = limiter.acquire_all(&[(&rule, Key::new(keys[0]), 1), (&rule, Key::new(keys[1]), 1)]).await;
    assert_eq!(refused.unwrap_err().cause(), Cause::Unavailable);
    sleep(2 * SECOND).await;
    (0..3).for_each(|node| cluster.proxy(node).set(Mode::Pass));
    for key in &keys {
        eventually("it is refunded", || async {
            limiter.peek(&rule, key).await.is_ok_and(|decision| decision.remaining() == 10)
        })
        .await;
    }
}

/// The refused call takes no room, not even for a moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_refused_call_of_several_slots_takes_no_room_from_others() {
    let cluster = RedisCluster::builder().replicas(0).start();
    let limiter = limiter_on(&cluster).await;
    let rule = hourly(10, LOG);
    let mut keys = keys_apart(&cluster, 2);
    keys.sort_by_key(|key| cluster.slot_of(name(&rule, *key)));
    limiter.acquire_n(&rule, keys[1], 10).await.unwrap();
    let refused = tokio::spawn({
        let (limiter, charges) = (limiter.clone(), [(keys[0], 10), (keys[1], 1)]);
        async move {
            loop {
                exceeded(limiter.acquire_all(&charges.map(|(key, cost)| (&rule, Key::new(key), cost))).await);
            }
        }
    });
    for _ in 0..300 {
        let permit = limiter.acquire(&rule, keys[0]).await.unwrap();
        assert_eq!(permit.refund().await.unwrap(), 1);
    }
    assert!(!refused.is_finished(), "{:?}", refused.await);
    refused.abort();
}

/// A log keeps its charges during a ban.
#[tokio::test]
async fn a_refusal_that_bans_in_one_of_several_slots_tells_the_wait_for_its_cost() {
    let cluster = RedisCluster::builder().replicas(0).start();
    let (limiter, keys) = (limiter_on(&cluster).await, keys_apart(&cluster, 2));
    let rule = Rule::new("log", 5, Duration::from_secs(60)).by(LOG).with_ban(Duration::from_secs(1));
    limiter.acquire_n(&rule, keys[0], 5).await.unwrap();
    let refused =
        limiter.acquire_all(&[(&rule, Key::new(keys[0]), 1), (&rule, Key::new(keys[1]), 1)]).await.unwrap_err();
    assert_eq!(refused.cause(), Cause::Banned);
    assert!(refused.retry_after() > Some(Duration::from_secs(30)), "{refused:?}");
}

#[tokio::test]
async fn a_refusal_in_one_of_several_slots_bans_its_counter_alone() {
    let cluster = RedisCluster::builder().replicas(0).start();
    let limiter = limiter_on(&cluster).await;
    let ban = Duration::from_secs(600);
    for algorithm in [FIXED, LOG] {
        let rules =
            ["one", "two"].map(|prefix| Rule::new(prefix, 5, Duration::from_secs(60)).by(algorithm).with_ban(ban));
        let keys = keys_apart(&cluster, 2);
        let charges = [(&rules[0], Key::new(keys[0]), 1), (&rules[1], Key::new(keys[1]), 1)];
        limiter.acquire_n(&rules[1], keys[1], 5).await.unwrap();
        for _ in 0..2 {
            let refused = limiter.acquire_all(&charges).await.unwrap_err();
            assert_eq!((refused.cause(), refused.rule()), (Cause::Banned, "two"), "{algorithm:?}");
            assert!(refused.retry_after().unwrap() > ban - Duration::from_secs(60), "{algorithm:?}");
        }
        let seen = [limiter.peek(&rules[0], keys[0]).await.unwrap(), limiter.peek(&rules[1], keys[1]).await.unwrap()];
        assert_eq!(seen.map(|seen| (seen.remaining(), seen.is_banned())), [(5, false), (0, true)], "{algorithm:?}");
        limiter.unban(&rules[1], keys[1]).await.unwrap();
        limiter.acquire_all(&charges).await.unwrap();
    }
}

/// The nodes answer, and write nothing.
#[tokio::test]
async fn a_ban_that_cannot_be_written_admits_no_call_that_was_refused() {
    let cluster = RedisCluster::builder().replicas(0).start();
    let limiter = Limiter::builder(&cluster.url()).deadline(PATIENCE).on_store_error(OnStoreError::Allow);
    let limiter = limiter.build().await.unwrap();
    let rules = ["one", "two"].map(|prefix| Rule::new(prefix, 5, 60 * SECOND).with_ban(600 * SECOND));
    let keys = keys_apart(&cluster, 2);
    limiter.acquire_n(&rules[1], keys[1], 5).await.unwrap();
    for node in cluster.nodes() {
        ask::<()>(node, "CONFIG SET min-replicas-to-write 1");
    }
    let charges = [(&rules[0], Key::new(keys[0]), 1), (&rules[1], Key::new(keys[1]), 1)];
    assert_eq!(exceeded(limiter.acquire_all(&charges).await).rule(), "two");
}

#[tokio::test]
async fn charges_of_several_slots_are_refunded_and_refused_with_the_longest_wait() {
    let cluster = RedisCluster::builder().replicas(0).start();
    let limiter = limiter_on(&cluster).await;
    let keys = keys_apart(&cluster, 3);
    let rules = [60, 6000, 600].map(|seconds| Rule::new("item", 5, Duration::from_secs(seconds)));
    let charges: Vec<_> = (0..3).map(|at| (&rules[at], Key::new(keys[at]), 4)).collect();
    let permit = limiter.acquire_all(&charges).await.unwrap();
    assert_eq!((permit.limit(), permit.remaining()), (5, 1));
    for turn in 0..3 {
        let mut charges = charges.clone();
        charges.rotate_left(turn);
        let refused = exceeded(limiter.acquire_all(&charges).await);
        assert_eq!(refused.period(), Duration::from_secs(6000), "{refused}");
    }
    assert_eq!(permit.refund().await.unwrap(), 12);
    for at in 0..3 {
        assert_eq!(limiter.peek(&rules[at], keys[at]).await.unwrap().remaining(), 5);
        limiter.acquire_n(&rules[at], keys[at], 4).await.unwrap();
        // Only this one refuses.
        assert_eq!(exceeded(limiter.acquire_all(&charges).await).period(), rules[at].period());
        limiter.reset(&rules[at], keys[at]).await.unwrap();
    }
    limiter.acquire_all(&charges).await.unwrap();
}

/// A settlement is a refund in each slot.
#[tokio::test]
async fn settled_charges_of_several_slots_are_settled_in_each() {
    let cluster = RedisCluster::builder().replicas(0).start();
    let limiter = limiter_on(&cluster).await;
    let keys = keys_apart(&cluster, 2);
    let rules = [FIXED, BUCKET].map(|algorithm| hourly(1000, algorithm));
    let left = async || {
        let [one, two] = [0, 1].map(|at| limiter.peek(&rules[at], keys[at]));
        let (one, two) = (one.await.unwrap().remaining(), two.await.unwrap().remaining());
        // The bucket refills a token in 3.6 s.
        (one, two - two % 10)
    };
    let charges = || {
        let charged = |at: usize| charge_settled(rules[at], key(&keys[at]), 600);
        (charged(0), (charged(1), ()))
    };
    let permit = permit_of_several(Some(&limiter), Call::DEFAULT, charges()).await.unwrap();
    assert_eq!(left().await, (400, 400));
    permit.settle(100).await.unwrap();
    assert_eq!(left().await, (900, 900));
    let permit = permit_of_several(Some(&limiter), Call::DEFAULT, charges()).await.unwrap();
    permit.settle(700).await.unwrap();
    assert_eq!(left().await, (200, 200));
    exceeded(permit_of_several(Some(&limiter), Call::DEFAULT, charges()).await);
    assert_eq!(left().await, (200, 200));
}
