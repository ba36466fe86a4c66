//! Batches: decisions of many callers share few round trips.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use ratelimit_harness::{Mode, Proxy, RedisCluster, RedisServer, documented_acl_of_prefix};
use ratelimit_runtime::config::Rules;
use ratelimit_runtime::{Algorithm, Cause, Key, Limiter, OnStoreError, Permit, Rule};
use tokio::time::sleep;

use crate::support::servers::script_calls;
use crate::support::{ALGORITHMS, ALIGNED, BUCKET, By, FIXED, LOG, SLIDING};

const PERIOD: Duration = Duration::from_secs(60);

/// An aligned window seldom ends during a test.
fn rule(prefix: &'static str, count: u64, algorithm: Algorithm) -> Rule {
    let period = if algorithm == ALIGNED { 60 * PERIOD } else { PERIOD };
    Rule::new(prefix, count, period).by(algorithm).with_denial_cache(false)
}

async fn limiter_on(server: &RedisServer) -> Limiter {
    let builder = Limiter::builder(&server.url()).on_store_error(OnStoreError::Deny);
    builder.deadline(Duration::from_secs(20)).build().await.unwrap()
}

/// All ask before any is answered: they are on one thread.
#[tokio::test]
async fn equal_calls_in_a_batch_are_granted_as_they_fit_with_numbers_of_their_own() {
    let server = RedisServer::start();
    let limiter = limiter_on(&server).await;
    for algorithm in ALGORITHMS {
        for (count, cost) in [(100, 1), (250, 1), (300, 3), (100, 7), (1000, 1)] {
            let rule = rule("equal", count, algorithm);
            let key = Key::new((count, cost));
            limiter.acquire_n(&rule, &key, 1).await.unwrap(); // the server knows the script from now on
            let before = script_calls(&server);
            let calls = join_all((0..250).map(|_| limiter.acquire_n(&rule, &key, cost))).await;
            assert!(script_calls(&server) - before <= 8, "{rule:?}: {}", script_calls(&server) - before);

            let fit = 250.min((count - 1) / cost);
            let granted: BTreeSet<_> = calls.iter().flatten().map(Permit::remaining).collect();
            let expected: BTreeSet<_> = (1..=fit).map(|nth| count - 1 - nth * cost).collect();
            assert_eq!(granted, expected, "{rule:?} by {cost}");
            for refused in calls.into_iter().filter_map(Result::err) {
                assert_eq!(refused.cause(), Cause::Exceeded, "{refused}");
                // What was charged in a sub-window weighs for up to two periods.
                let longest = if algorithm == SLIDING { 2 * rule.period() } else { rule.period() };
                assert!(refused.retry_after() <= Some(longest) && refused.retry_after() > Some(Duration::ZERO));
                assert_eq!(refused.remaining(), count - 1 - fit * cost);
            }
            let left = limiter.peek(&rule, &key).await.unwrap().remaining();
            assert_eq!(left, count - 1 - fit * cost, "{rule:?} by {cost}");
        }
    }
}

/// The window stores the cost of all of them times 450,001, which takes more than 32 bits here.
#[tokio::test]
async fn equal_calls_of_a_large_cost_are_decided_together() {
    let server = RedisServer::start();
    let limiter = limiter_on(&server).await;
    let rule = rule("large", 10_000, FIXED);
    limiter.acquire(&rule, 1).await.unwrap();
    let before = script_calls(&server);
    let calls = join_all((0..6).map(|_| limiter.acquire_n(&rule, 1, 2_000))).await;
    assert!(script_calls(&server) - before <= 2, "{}", script_calls(&server) - before);
    let granted: BTreeSet<_> = calls.iter().flatten().map(Permit::remaining).collect();
    assert_eq!(granted, [1_999, 3_999, 5_999, 7_999].into());
}

/// The script reads all counters of a batch before it decides. The look reads its counter again.
#[tokio::test]
async fn a_look_behind_a_charge_of_one_batch_counts_it() {
    let server = RedisServer::start();
    let limiter = limiter_on(&server).await;
    for algorithm in ALGORITHMS {
        let (rule, key, other) = (rule("behind", 100, algorithm), Key::new("a"), Key::new("b"));
        for key in [&key, &other] {
            limiter.acquire(&rule, key).await.unwrap();
        }
        let (_, charged, seen) =
            tokio::join!(limiter.peek(&rule, &other), limiter.acquire_n(&rule, &key, 5), limiter.peek(&rule, &key));
        assert_eq!((charged.unwrap().remaining(), seen.unwrap().remaining()), (94, 94), "{algorithm:?}");
    }
}

#[tokio::test]
async fn permits_and_refusals_of_a_batch_have_the_limit_of_the_rules_file() {
    let server = RedisServer::start();
    let builder = Limiter::builder(&server.url()).rules(Rules::parse("[rules.equal]\ncount = 50").unwrap());
    let limiter = builder.deadline(Duration::from_secs(20)).build().await.unwrap();
    let rule = rule("equal", 100, FIXED);
    let calls = join_all((0..250).map(|_| limiter.acquire(&rule, 1))).await;
    assert_eq!(calls.iter().flatten().count(), 50);
    for call in calls {
        assert_eq!(call.map_or_else(|refused| refused.limit(), |permit| permit.limit()), 50);
    }
}

#[tokio::test]
async fn a_permit_granted_in_a_batch_is_refunded_on_its_own() {
    let server = RedisServer::start();
    let limiter = limiter_on(&server).await;
    for algorithm in [FIXED, ALIGNED, LOG, SLIDING] {
        // Hardly ever an aligned hour ends meanwhile, which an aligned minute does.
        let rule = Rule::new("back", 100, 60 * PERIOD).by(algorithm).with_denial_cache(false);
        let permits = join_all((0..100).map(|_| limiter.acquire(&rule, 1))).await;
        let permits: Vec<_> = permits.into_iter().map(Result::unwrap).collect();
        for (nth, permit) in (1..=40).zip(permits) {
            assert_eq!(permit.refund().await.unwrap(), 1, "{rule:?}");
            assert_eq!(limiter.peek(&rule, 1).await.unwrap().remaining(), nth, "{rule:?}");
        }
    }
}

#[tokio::test]
async fn calls_of_different_rules_and_keys_share_round_trips() {
    let server = RedisServer::start();
    let limiter = limiter_on(&server).await;
    let rules = ALGORITHMS.map(|algorithm| rule("mixed", 3, algorithm));
    join_all(rules.iter().map(|rule| limiter.acquire(rule, "before"))).await;
    let before = script_calls(&server);
    // Each key three times by each rule, and once more.
    let ask = |key: u64| rules.iter().map(move |rule| (*rule, key));
    let calls = (0..4).flat_map(|_| (0..20).flat_map(ask)).map(|(rule, key)| {
        let asked = limiter.acquire(&rule, key);
        async move { (rule, key, asked.await) }
    });
    let answers = join_all(calls).await;
    assert!(script_calls(&server) - before < 60, "{}", script_calls(&server) - before);
    for rule in rules {
        for key in 0..20 {
            let theirs = answers.iter().filter(|(asked, by, _)| *asked == rule && *by == key);
            let fits: Vec<_> = theirs.map(|(_, _, answer)| answer.is_ok()).collect();
            assert_eq!(fits, [true, true, true, false], "{rule:?} of {key}");
        }
    }
}

/// One that came earlier is not overtaken, by an equal one of others neither.
#[tokio::test]
async fn costs_of_one_counter_are_decided_in_the_order_of_arrival() {
    let server = RedisServer::start();
    let limiter = limiter_on(&server).await;
    for algorithm in ALGORITHMS {
        let rule = rule("order", 10, algorithm);
        limiter.acquire(&rule, "first").await.unwrap();
        let costs = [1, 1, 5, 1, 3, 1, 1, 1];
        let ahead = join_all((0..4).map(|key| limiter.acquire(&rule, key))); // so that the others gather
        let calls = join_all(costs.map(|cost| limiter.acquire_n(&rule, "order", cost)));
        let (_, calls) = futures_util::future::join(ahead, calls).await;
        let fits: Vec<_> = calls.iter().map(Result::is_ok).collect();
        // 1 + 1 + 5 + 1 = 8; 3 does not fit, 1 and 1 do.
        assert_eq!(fits, [true, true, true, true, false, true, true, false], "{rule:?}");
    }
}

#[tokio::test]
async fn calls_of_several_rules_and_of_one_are_decided_in_order() {
    let server = RedisServer::start();
    let limiter = limiter_on(&server).await;
    let (one, other) = (rule("one", 5, ALGORITHMS[0]), rule("other", 2, ALGORITHMS[4]));
    // The server knows the scripts from now on: what it has to be told first comes later.
    limiter.acquire_all(&[(&one, Key::new("first"), 1), (&other, Key::new("first"), 1)]).await.unwrap();
    join_all((0..8).map(|_| limiter.acquire(&one, "first"))).await;
    let ahead = join_all((0..4).map(|key| limiter.acquire(&one, key)));
    let both = [(&one, Key::new("both"), 1), (&other, Key::new("both"), 1)];
    let calls = join_all((0..4).map(|_| {
        let (several, single) = (limiter.acquire_all(&both), limiter.acquire(&one, "both"));
        async { futures_util::future::join(several, single).await }
    }));
    let (_, calls) = futures_util::future::join(ahead, calls).await;
    // In turn: both, one, both, one, and then only one fits.
    let fits: Vec<_> = calls.iter().map(|(several, single)| (several.is_ok(), single.is_ok())).collect();
    assert_eq!(fits, [(true, true), (true, true), (false, true), (false, false)]);
}

#[tokio::test]
async fn a_counter_of_another_type_fails_alone_in_its_batch() {
    let server = RedisServer::start();
    let limiter = limiter_on(&server).await;
    for algorithm in ALGORITHMS {
        let rule = rule("bad", 100, algorithm);
        limiter.acquire(&rule, 7).await.unwrap();
        let keys: Vec<Vec<u8>> = redis::from_redis_value(server.command(&[b"KEYS", b"bad:{7}*"])).unwrap();
        server.command(&[b"DEL", &keys[0]]);
        server.command(&[b"SADD", &keys[0], b"member"]);
        let before = script_calls(&server);
        let calls = join_all((0..60).map(|nth| limiter.acquire(&rule, nth % 20))).await;
        let scripts = script_calls(&server) - before;
        assert!(scripts <= 6, "{scripts} scripts for 60 calls at once");
        for (nth, call) in calls.into_iter().enumerate() {
            match call {
                Ok(_) => assert_ne!(nth % 20, 7, "{rule:?}"),
                Err(error) => {
                    assert_eq!((nth % 20, error.cause()), (7, Cause::Misconfigured), "{rule:?}: {error}");
                    let text = error.to_string();
                    assert!(text.contains("misconfigured: Redis: ") && text.contains("WRONGTYPE"), "{text}");
                }
            }
        }
        server.command(&[b"DEL", &keys[0]]);
    }
}

#[tokio::test]
async fn a_counter_without_rights_fails_alone_in_its_batch() {
    let server = RedisServer::start();
    let rights = documented_acl_of_prefix("mine");
    server.command(&rights.split(' ').map(str::as_bytes).collect::<Vec<_>>());
    let url = server.url().replace("redis://", "redis://some:secret@");
    let builder = Limiter::builder(&url).on_store_error(OnStoreError::Deny).deadline(Duration::from_secs(20));
    let limiter = builder.build().await.unwrap();
    let (mine, theirs) = (rule("mine", 5, ALGORITHMS[0]), rule("theirs", 5, ALGORITHMS[0]));
    // Ten callers of each key.
    let calls = (0..60).map(|nth| limiter.acquire(if nth % 3 == 0 { &theirs } else { &mine }, nth % 6));
    let mut remaining: [Vec<u64>; 6] = Default::default();
    for (nth, call) in join_all(calls).await.into_iter().enumerate() {
        match call {
            Ok(permit) => remaining[nth % 6].push(permit.remaining()),
            Err(error) if nth % 3 == 0 => {
                assert_eq!(error.cause(), Cause::Misconfigured, "{error}");
                assert!(error.to_string().contains("NOPERM"), "{error}");
            }
            Err(error) => assert_eq!(error.cause(), Cause::Exceeded, "{error}"),
        }
    }
    for (key, remaining) in remaining.iter().enumerate() {
        assert_eq!(remaining, if key % 3 == 0 { &[][..] } else { &[4, 3, 2, 1, 0] });
    }
}

/// A caller who leaves before the batch is sent is not charged. One who leaves later changes
/// nothing for the others.
#[tokio::test]
async fn a_caller_who_leaves_a_batch_is_not_charged_and_costs_others_nothing() {
    let server = RedisServer::start();
    let limiter = limiter_on(&server).await;
    let rule = rule("leaves", 1000, ALGORITHMS[0]);
    limiter.acquire(&rule, 1).await.unwrap();
    let mut calls: Vec<_> = (0..200).map(|_| Box::pin(limiter.acquire(&rule, 1))).collect();
    for call in &mut calls {
        assert!(call.as_mut().now_or_never().is_none());
    }
    // Nothing but the first has been sent: this is the only thread.
    let staying: Vec<_> = calls.into_iter().enumerate().filter(|(nth, _)| nth % 2 == 0).map(|(_, call)| call).collect();
    let answers = join_all(staying).await;
    assert!(answers.iter().all(Result::is_ok));
    assert_eq!(limiter.peek(&rule, 1).await.unwrap().remaining(), 1000 - 1 - 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_batched_call_to_a_silent_server_ends_at_its_deadline() {
    let server = RedisServer::start();
    let builder = Limiter::builder(&server.url()).on_store_error(OnStoreError::Deny);
    let limiter = builder.deadline(Duration::from_millis(200)).build().await.unwrap();
    let rule = rule("silent", 100_000, ALGORITHMS[0]);
    limiter.acquire(&rule, 1).await.unwrap();
    server.stop();
    let calls = join_all((0..300).map(|nth| {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.acquire(&rule, nth % 100).await })
    }));
    for call in calls.await {
        assert_eq!(call.unwrap().unwrap_err().cause(), Cause::Unavailable);
    }
    server.cont();
    let eventually = async {
        while limiter.acquire(&rule, 1).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), eventually).await.expect("the server is back");
}

#[tokio::test]
async fn in_a_cluster_each_slot_has_a_script_call_of_its_own() {
    let cluster = RedisCluster::start();
    let builder = Limiter::builder(&cluster.url()).on_store_error(OnStoreError::Deny);
    let limiter = builder.deadline(Duration::from_secs(20)).build().await.unwrap();
    for algorithm in ALGORITHMS {
        let rule = rule("slots", 5, algorithm);
        let calls = join_all((0..300).map(|nth| limiter.acquire(&rule, nth % 50))).await;
        for key in 0..50 {
            let granted = calls.iter().skip(key).step_by(50).filter(|call| call.is_ok()).count();
            assert_eq!(granted, 5, "{rule:?} of {key}");
        }
    }
}

/// Without it, each decision is a call.
#[tokio::test]
async fn batching_can_be_turned_off() {
    let server = RedisServer::start();
    let limiter =
        Limiter::builder(&server.url()).coalescing(false).deadline(Duration::from_secs(20)).build().await.unwrap();
    let rule = rule("off", 50, ALGORITHMS[0]);
    limiter.acquire(&rule, 1).await.unwrap();
    let before = script_calls(&server);
    let calls = join_all((0..100).map(|_| limiter.acquire(&rule, 1))).await;
    assert_eq!(calls.iter().filter(|call| call.is_ok()).count(), 49);
    assert_eq!(script_calls(&server) - before, 100);
}

/// A server with a user who may use the counters of the prefix `mine` only, and a limiter behind a proxy.
async fn with_few_rights() -> (Limiter, Proxy, RedisServer) {
    let server = RedisServer::start();
    let rights = documented_acl_of_prefix("mine");
    server.command(&rights.split(' ').map(str::as_bytes).collect::<Vec<_>>());
    let proxy = Proxy::start(server.port());
    let url = proxy.url().replace("redis://", "redis://some:secret@");
    let builder = Limiter::builder(&url).on_store_error(OnStoreError::Deny);
    (builder.deadline(Duration::from_secs(2)).build().await.unwrap(), proxy, server)
}

/// Its reply is there after one round trip. Another packet needs two, which take longer than the deadline.
#[tokio::test]
async fn a_reply_does_not_wait_for_the_second_try_of_others() {
    let (limiter, proxy, _server) = with_few_rights().await;
    let (mine, theirs) = (rule("mine", 100, FIXED), rule("theirs", 100, FIXED));
    let bucket = rule("mine", 100, BUCKET);
    let round = async || {
        let calls = [
            limiter.acquire(&mine, 1), // alone; the others gather behind it
            limiter.acquire(&mine, 2),
            limiter.acquire(&theirs, 3),
            limiter.acquire(&bucket, 4),
        ];
        join_all(calls).await.pop().unwrap()
    };
    for _ in 0..2 {
        round().await.unwrap(); // the server knows the scripts
    }
    proxy.set(Mode::Delay(Duration::from_millis(600)));
    round().await.expect("the server answered within the deadline");
}

/// Three callers of the round trip have their replies. The second try is for one.
#[tokio::test]
async fn a_late_second_try_counts_for_its_own_caller_only() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let builder = Limiter::builder(&proxy.url()).on_store_error(OnStoreError::Deny);
    let limiter = builder.deadline(Duration::from_secs(2)).build().await.unwrap();
    let (known, unknown) = (rule("item", 100, FIXED), rule("item", 100, BUCKET));
    let four = || join_all((0..4).map(|key| limiter.acquire(&known, key))); // one alone, three in a batch
    assert!(four().await.iter().all(Result::is_ok)); // the server knows these scripts
    proxy.set(Mode::Delay(Duration::from_millis(40)));
    let answered = async {
        assert!(four().await.iter().all(Result::is_ok));
        proxy.set(Mode::DropReplies); // the second try is on its way
    };
    let ((), late) = tokio::join!(answered, limiter.acquire(&unknown, 9));
    assert_eq!(late.unwrap_err().cause(), Cause::Unavailable);
    sleep(Duration::from_millis(20)).await; // the batch ends
    assert!(limiter.acquire(&known, 1).now_or_never().is_none(), "one missed reply opened the breaker");
}

/// The server lacks the script of another packet, whose second try takes longer than the deadline.
#[tokio::test]
async fn an_error_reply_does_not_wait_for_a_script_that_the_server_lacks() {
    let (limiter, proxy, _server) = with_few_rights().await;
    let (mine, theirs) = (rule("mine", 100, FIXED), rule("theirs", 100, FIXED));
    limiter.acquire(&mine, 1).await.unwrap();
    proxy.set(Mode::Delay(Duration::from_millis(600)));
    let bucket = rule("mine", 100, BUCKET);
    let calls = [limiter.acquire(&mine, 1), limiter.acquire(&theirs, 2), limiter.acquire(&bucket, 3)];
    let causes = join_all(calls).await.into_iter().map(|answer| answer.err().map(|refused| refused.cause()));
    assert!(causes.eq([None, Some(Cause::Misconfigured), Some(Cause::Unavailable)]));
}
