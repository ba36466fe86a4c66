//! Slots that move to another node, and replicas that take over.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use ratelimit_harness::{Mode, RedisCluster};
use ratelimit_runtime::{Key, Limiter, OnStoreError, Rule};
use tokio::task::JoinSet;

use super::{keys_apart, limiter_on, name, with_deadline};
use crate::support::servers::{ask, recovers};
use crate::support::{FIXED, LOG, admitted, ends, eventually, fresh_key, hourly, is_admitted};

/// Each call runs once, wherever its counter is just then.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_slot_that_moves_is_followed_and_each_call_runs_once() {
    let cluster = Arc::new(RedisCluster::builder().replicas(0).start());
    let limiter = limiter_on(&cluster).await;
    let (one, other) = (hourly(400, FIXED), hourly(400, LOG));
    let key = fresh_key();
    let slot = cluster.slot_of(name(&one, key));
    let from = cluster.primary_of_slot(slot);
    let to = (from + 1) % 3;
    let moving = Arc::new(AtomicBool::new(true));
    let mut tasks = JoinSet::new();
    for task in 0..8 {
        let (limiter, moving) = (limiter.clone(), Arc::clone(&moving));
        tasks.spawn(async move {
            let mut admitted = 0;
            while moving.load(Ordering::Relaxed) {
                // One script on one key, and one on two keys, which a half moved slot has no node for.
                let answer = match task % 2 {
                    0 => limiter.acquire(&one, key).await,
                    _ => limiter.acquire_all(&[(&one, Key::new(key), 1), (&other, Key::new(key), 1)]).await,
                };
                admitted += u64::from(is_admitted(answer));
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            admitted
        });
    }
    let moves = {
        let cluster = Arc::clone(&cluster);
        move || {
            for (from, to) in [(from, to), (to, from), (from, to)] {
                let a_while = || std::thread::sleep(Duration::from_millis(60));
                a_while();
                cluster.begin_move(slot, from, to);
                a_while();
                cluster.move_keys(slot, from, to, 1);
                a_while();
                cluster.move_keys(slot, from, to, 1);
                a_while();
                cluster.finish_move(slot, from, to);
                for node in cluster.nodes() {
                    ask::<()>(node, "SCRIPT FLUSH");
                }
            }
        }
    };
    tokio::task::spawn_blocking(moves).await.unwrap();
    moving.store(false, Ordering::Relaxed);
    let mut all: u64 = ends(tasks.join_all()).await.into_iter().sum();
    let used = one.limit() - limiter.peek(&one, key).await.unwrap().remaining();
    assert!(all > 20, "hardly any call was made: {all}");
    assert_eq!(used, all, "what is counted is what was admitted");
    all += admitted(&limiter, &one, key, 400).await;
    assert_eq!(all, 400);
}

/// While a slot moves, a script cannot write a key again that it has deleted. No script does so:
/// not the refund of the first charge of a log, not the settlement of its only hold, and not the
/// first charge of a log without an expiry.
#[tokio::test]
async fn no_charge_is_lost_while_its_slot_moves() {
    let cluster = RedisCluster::builder().replicas(0).start();
    let limiter = limiter_on(&cluster).await;
    let (log, key) = (hourly(10, LOG), fresh_key());
    let held = Rule::new("held", 10, log.period()).with_algorithm(LOG);
    let short = Rule::new("short", 10, Duration::from_millis(200)).with_algorithm(LOG);
    let slot = cluster.slot_of(name(&log, key));
    let from = cluster.primary_of_slot(slot);

    let first = limiter.acquire_n(&log, key, 3).await.unwrap();
    limiter.acquire_n(&log, key, 2).await.unwrap();
    let reserved = limiter.reserve(&held, key, 5).await.unwrap();
    limiter.acquire(&short, key).await.unwrap();
    // A log without an end is written anew.
    ask::<()>(&cluster.nodes()[from], &format!("PERSIST {}", name(&short, key)));
    cluster.begin_move(slot, from, (from + 1) % 3);
    assert_eq!(first.refund().await.unwrap(), 3);
    reserved.settle(4).await.unwrap();
    tokio::time::sleep(2 * short.period()).await;
    limiter.acquire(&short, key).await.unwrap();
    for (rule, remaining) in [(&log, 8), (&held, 6)] {
        assert_eq!(limiter.peek(rule, key).await.unwrap().remaining(), remaining);
    }
    cluster.finish_move(slot, from, (from + 1) % 3);
    for (rule, remaining) in [(&log, 8), (&held, 6)] {
        assert_eq!(limiter.peek(rule, key).await.unwrap().remaining(), remaining);
    }
}

/// An ASK redirection is valid at the moment of the reply. A caller that had to wait for a
/// connection to the named node asks the owner of the slot again: by then the counter may be there.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_ask_redirection_is_not_followed_after_waiting_for_a_connection() {
    let cluster = RedisCluster::builder().replicas(0).proxied().start();
    let limiter = limiter_on(&cluster).await;
    let (rule, key) = (hourly(10, FIXED), fresh_key());
    let slot = cluster.slot_of(name(&rule, key));
    let from = cluster.primary_of_slot(slot);
    let to = (from + 1) % 3;
    cluster.proxy(to).set(Mode::Stall);
    let before = cluster.proxy(to).accepted();
    cluster.proxy(to).cut();
    // By then the client knows that its connection has ended: a request on that one would be lost.
    eventually("the client connects again", || async { cluster.proxy(to).accepted() > before }).await;
    cluster.begin_move(slot, from, to);
    let late = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire(&rule, key).await.unwrap().remaining() }
    });
    let node = &cluster.nodes()[from];
    eventually("the caller is redirected", || async {
        ask::<String>(node, "INFO errorstats").contains("errorstat_ASK:")
    })
    .await;
    cluster.finish_move(slot, from, to);
    cluster.move_slot(slot, to, from);
    assert_eq!(limiter.acquire_n(&rule, key, 3).await.unwrap().remaining(), 7);
    cluster.begin_move(slot, from, to);
    cluster.proxy(to).set(Mode::Pass);
    assert_eq!(late.await.unwrap(), 6);
    cluster.finish_move(slot, from, to);
    assert_eq!(limiter.peek(&rule, key).await.unwrap().remaining(), 6);
}

/// The deadline is a usual one. The replica takes over, and other slots are not affected.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_cluster_failover_is_followed() {
    let mut cluster = RedisCluster::start();
    let limiter = with_deadline(&cluster, Duration::from_millis(300)).await;
    let rule = hourly(1_000_000, FIXED);
    let keys = keys_apart(&cluster, 3);
    let works = async |key: u64| limiter.acquire(&rule, key).await.is_ok();

    // A planned one loses nothing.
    let primary = cluster.primary_of(name(&rule, keys[0]));
    let replica = cluster.replicas_of(primary)[0];
    eventually("a call is counted", || works(keys[0])).await;
    let before = limiter.peek(&rule, keys[0]).await.unwrap().remaining();
    tokio::task::block_in_place(|| cluster.failover(replica));
    eventually("the replica counts", || works(keys[0])).await;
    assert!(limiter.peek(&rule, keys[0]).await.unwrap().remaining() < before);

    for (round, key) in [keys[1], keys[2]].into_iter().enumerate() {
        let primary = cluster.primary_of(name(&rule, key));
        if round == 0 {
            cluster.node_mut(primary).kill();
        } else {
            cluster.node(primary).stop();
        }
        eventually("the replica counts", || works(key)).await;
        // Once it does, it does: nothing goes to the lost node any more.
        eventually("all calls are counted", || async {
            let answers = join_all((0..50).map(|_| limiter.acquire(&rule, key))).await;
            answers.iter().all(Result::is_ok)
        })
        .await;
        eventually("the others count", || works(keys[0])).await;
        if round == 0 {
            cluster.node_mut(primary).restart();
        } else {
            cluster.node(primary).cont();
        }
        tokio::task::block_in_place(|| cluster.wait_until_ready());
        recovers(&limiter).await;
    }
}

/// A single shard has no other node.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_replica_of_a_cluster_of_one_shard_is_found() {
    let mut cluster = RedisCluster::builder().primaries(1).start();
    let url = format!("redis+cluster://127.0.0.1:{}", cluster.port(0));
    // A replica that has got nothing yet is not named.
    Limiter::connect(&url).await.unwrap().acquire(&hourly(3, FIXED), fresh_key()).await.unwrap();
    eventually("the primary names its replica", || async {
        let slots: Vec<Vec<redis::Value>> = ask(cluster.node(0), "CLUSTER SLOTS");
        slots[0].len() == 4
    })
    .await;
    let builder = Limiter::builder(&url).deadline(Duration::from_millis(300)).on_store_error(OnStoreError::Deny);
    let limiter = builder.build().await.unwrap();
    recovers(&limiter).await;
    cluster.node_mut(0).kill();
    ask::<()>(cluster.node(1), "CLUSTER FAILOVER TAKEOVER");
    recovers(&limiter).await;
}

/// The entry that a call joined was made by one that may wait, and its charge is redirected.
#[tokio::test]
async fn a_redirected_call_ends_at_its_deadline_whatever_entry_it_joined() {
    let ms = Duration::from_millis;
    let cluster = RedisCluster::builder().replicas(0).proxied().start();
    let limiter = with_deadline(&cluster, ms(2_000)).await;
    let (rule, key) = (hourly(10, FIXED), fresh_key());
    let slot = cluster.slot_of(name(&rule, key));
    let from = cluster.primary_of_slot(slot);
    let to = (from + 1) % 3;
    let mut other = fresh_key();
    while cluster.primary_of(name(&rule, other)) != from || cluster.slot_of(name(&rule, other)) == slot {
        other = fresh_key();
    }
    limiter.acquire(&rule, other).await.unwrap(); // the connection is open
    cluster.move_slot(slot, from, to);
    cluster.proxy(from).set(Mode::Delay(ms(800)));
    cluster.proxy(to).set(Mode::Stall);
    let began = std::time::Instant::now();
    let plain = async {
        let _ = limiter.acquire(&rule, key).await;
        began.elapsed()
    };
    let (_, _, took) = tokio::join!(
        limiter.acquire(&rule, other),             // keeps the queue in use
        limiter.acquire_within(&rule, key, ms(1)), // makes the entry
        plain                                      // joins it
    );
    assert!(took < ms(3_000), "{took:?} with a deadline of two seconds");
}
