//! Nodes of a cluster that are far away, slow, or lost.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use ratelimit_harness::{Mode, RedisCluster, RedisServer};
use ratelimit_runtime::{Cause, Key, Limiter, OnStoreError, Rule};
use tokio::runtime::Builder;

use super::{keys_apart, limiter_on, name, with_deadline};
use crate::support::servers::{recovers, script_calls};
use crate::support::{FIXED, LOG, PATIENCE, admitted, eventually, exceeded, fresh_key, hourly};

/// A connection takes two round trips or more, a call takes one.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn distant_nodes_are_found_although_connecting_exceeds_the_deadline() {
    let cluster = RedisCluster::builder().replicas(0).proxied().start();
    for node in 0..3 {
        cluster.proxy(node).set(Mode::Delay(Duration::from_millis(100)));
    }
    let url = format!("redis+cluster://127.0.0.1:{}", cluster.port(0));
    for lazy in [false, true] {
        let builder = Limiter::builder(&url).deadline(Duration::from_millis(350)).on_store_error(OnStoreError::Deny);
        let builder = if lazy { builder.lazy() } else { builder };
        let limiter = builder.build().await.unwrap();
        for key in keys_apart(&cluster, 3) {
            eventually("a call is counted", || async { limiter.acquire(&hourly(1000, FIXED), key).await.is_ok() })
                .await;
        }
    }
}

/// Each answer takes longer than half a second. The deadline allows for that, and no other limit is
/// in the way.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn slow_nodes_are_reached_within_the_deadline() {
    let cluster = RedisCluster::builder().replicas(0).proxied().start();
    for node in 0..3 {
        cluster.proxy(node).set(Mode::Delay(Duration::from_millis(350)));
    }
    let url = format!("redis+cluster://127.0.0.1:{}", cluster.port(0));
    for lazy in [false, true] {
        let builder = Limiter::builder(&url).deadline(PATIENCE).on_store_error(OnStoreError::Deny);
        let limiter = if lazy { builder.lazy() } else { builder }.build().await.unwrap();
        limiter.acquire(&hourly(3, FIXED), fresh_key()).await.unwrap();
    }
}

/// One node of the URL is in no cluster. That is not the reason while the others are away.
#[tokio::test]
async fn a_cluster_outage_is_not_reported_as_a_mistake_of_one_node() {
    let server = RedisServer::start();
    for (others, cause) in [("", Cause::Misconfigured), (",127.0.0.1:1", Cause::Unavailable)] {
        let url = format!("redis+cluster://127.0.0.1:{}{others}", server.port());
        let builder = Limiter::builder(&url).lazy().deadline(PATIENCE).on_store_error(OnStoreError::Deny);
        let limiter = builder.build().await.unwrap();
        let refused = limiter.acquire(&hourly(3, FIXED), fresh_key()).await.unwrap_err();
        assert_eq!(refused.cause(), cause, "{refused}");
        assert!(refused.to_string().contains("write redis://"), "{refused}");
    }
}

/// A request without a reply may have run, and is not sent again.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_cluster_call_without_a_reply_does_not_run_twice() {
    let cluster = RedisCluster::builder().replicas(0).proxied().start();
    let limiter = limiter_on(&cluster).await;
    let rule = hourly(1000, LOG);
    let key = fresh_key();
    let node = cluster.primary_of(name(&rule, key));
    let counted = async || loop {
        match limiter.peek(&rule, key).await {
            Ok(state) => break 1000 - state.remaining(),
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    };
    // Later the node knows the script.
    limiter.acquire(&rule, key).await.unwrap();
    let (mut before, mut ran_unanswered) = (1, 0);
    while ran_unanswered < 5 {
        cluster.proxy(node).cut_at_next_reply();
        let answer = limiter.acquire(&rule, key).await;
        let after = counted().await;
        let ran = after - before;
        before = after;
        // If that reply was cut off instead, this call was answered, or never sent.
        match answer {
            Ok(_) => assert_eq!(ran, 1),
            Err(refused) => {
                assert_eq!(refused.cause(), Cause::Unavailable, "{refused}");
                assert!(ran <= 1, "it ran {ran} times");
                ran_unanswered += ran;
            }
        }
    }
}

/// The whole cluster is away, from the start and later.
#[tokio::test]
async fn an_unreachable_cluster_is_decided_by_the_failure_policy() {
    let mut cluster = RedisCluster::builder().replicas(0).start();
    let ports: Vec<_> = (0..3).map(|node| cluster.port(node)).collect();
    let builder = Limiter::builder(&cluster.url()).lazy().deadline(PATIENCE).on_store_error(OnStoreError::Deny);
    let limiter = builder.build().await.unwrap();
    for node in 0..3 {
        cluster.node_mut(node).kill();
    }
    let refused = limiter.acquire(&hourly(3, FIXED), fresh_key()).await.unwrap_err();
    assert_eq!(refused.cause(), Cause::Unavailable, "{refused}");
    for port in &ports {
        assert!(refused.to_string().contains(&port.to_string()), "{refused}");
    }
    let error = Limiter::connect(&cluster.url()).await.unwrap_err().to_string();
    assert!(error.contains(&ports[0].to_string()), "{error}");
    for node in 0..3 {
        cluster.node_mut(node).restart();
    }
    cluster.wait_until_ready();
    recovers(&limiter).await;
}

/// The runtime that began the refresh is kept, and never goes on.
#[test]
fn a_topology_refresh_begun_on_an_idle_runtime_blocks_no_other_call() {
    let cluster = RedisCluster::builder().replicas(0).start();
    let idle = Builder::new_current_thread().enable_all().build().unwrap();
    let (rule, key) = (hourly(3, FIXED), fresh_key());
    let limiter = idle.block_on(async {
        let builder = Limiter::builder(&cluster.url()).lazy().deadline(Duration::from_millis(300));
        let limiter = builder.on_store_error(OnStoreError::Deny).build().await.unwrap();
        let mut first = pin!(limiter.acquire(&rule, key));
        assert!(poll_fn(|context| Poll::Ready(first.as_mut().poll(context).is_pending())).await);
        limiter.clone()
    });
    let driven = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    driven.block_on(eventually("the other is served", || async { limiter.acquire(&rule, key).await.is_ok() }));
    drop(idle);
    driven.block_on(recovers(&limiter));
}

/// An outage of one node concerns its own counters.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn denials_of_healthy_nodes_stay_cached_while_another_node_is_away() {
    // The others neither vote it out nor refuse to serve.
    let builder = RedisCluster::builder().replicas(0).node_timeout(Duration::from_secs(60));
    let mut cluster = builder.arg("--cluster-require-full-coverage", "no").start();
    let limiter = with_deadline(&cluster, Duration::from_millis(500)).await;
    let (rule, other) = (hourly(2, FIXED), Rule::new("other", 2, Duration::from_secs(3600)));
    let keys = keys_apart(&cluster, 3);
    for key in &keys {
        eventually("all is used up", || async {
            limiter.acquire(&rule, *key).await.is_err_and(|refused| refused.cause() == Cause::Exceeded)
        })
        .await;
    }
    let lost = cluster.primary_of(name(&rule, keys[0]));
    let beside = std::iter::repeat_with(fresh_key).find(|key| cluster.primary_of(name(&rule, *key)) == lost).unwrap();
    assert_eq!(admitted(&limiter, &rule, beside, 3).await, 2);
    tokio::task::block_in_place(|| cluster.node_mut(lost).kill());
    let both = [(&rule, Key::new(keys[0]), 1), (&other, Key::new(keys[1]), 1)];
    let is_away = async |refused: Result<_, ratelimit_runtime::RequestPerMinute>| {
        refused.is_err_and(|refused| refused.cause() == Cause::Unavailable)
    };
    eventually("the node is away", || async { is_away(limiter.acquire(&rule, keys[0]).await).await }).await;
    eventually("the others' denials are cached again", || async {
        let before = scripts(&cluster, lost);
        for key in &keys[1..] {
            exceeded(limiter.acquire(&rule, *key).await);
        }
        scripts(&cluster, lost) == before
    })
    .await;
    for _ in 0..50 {
        assert!(is_away(limiter.acquire(&rule, keys[0]).await).await, "the failure policy decides");
        assert!(is_away(limiter.acquire_all(&both).await).await, "for all of a call");
        let before = scripts(&cluster, lost);
        for key in &keys[1..] {
            exceeded(limiter.acquire(&rule, *key).await);
        }
        assert_eq!(scripts(&cluster, lost), before);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // It comes back without its counters, and what was known of them is no longer true.
    tokio::task::block_in_place(|| cluster.node_mut(lost).restart());
    eventually("the node counts afresh", || async { limiter.acquire(&rule, keys[0]).await.is_ok() }).await;
    eventually("no failure is recent", || async { limiter.health() == ratelimit_runtime::Health::Available }).await;
    assert_eq!(admitted(&limiter, &rule, beside, 3).await, 2);
}

/// How often the nodes but one were asked to run a script.
fn scripts(cluster: &RedisCluster, but: usize) -> u64 {
    let nodes = cluster.nodes().iter().enumerate().filter(|(at, _)| *at != but);
    nodes.map(|(_, node)| script_calls(node)).sum()
}
