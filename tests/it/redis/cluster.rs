//! Real clusters: what lies where, what moves, and what goes away.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use ratelimit_harness::{Mode, RedisCluster, RedisServer};
use ratelimit_runtime::conformance::{self, ALGORITHMS as ALL, Subject, store_of};
use ratelimit_runtime::{Cause, Key, Limiter, ManualClock, OnStoreError, Rule, Store};
use tokio::runtime::Builder;
use tokio::task::JoinSet;

use crate::redis::server::{ask, eventually, keeps_the_secret, recovers, works};
use crate::support::{
    ALGORITHMS, By, FIXED, LOG, PATIENCE, SLIDING, admitted, ends, exceeded, fresh_key, hourly, in_memory, is_admitted,
};

const SECRET: &str = "swordfish";

/// On that cluster, where no failure hides behind a policy.
async fn limiter_on(cluster: &RedisCluster) -> Limiter {
    with_deadline(cluster, PATIENCE).await
}

async fn with_deadline(cluster: &RedisCluster, deadline: Duration) -> Limiter {
    let builder = Limiter::builder(&cluster.url()).deadline(deadline).on_store_error(OnStoreError::Deny);
    builder.build().await.unwrap()
}

/// What the counter of a rule is stored under.
fn name(rule: &Rule, key: u64) -> String {
    let (prefix, tag, period) = (rule.prefix(), if rule.algorithm() == LOG { "log" } else { "fixed" }, rule.period());
    format!("{prefix}:{{{key}}}:{tag}:{}", period.as_millis())
}

/// Keys whose counters are on that many different nodes, one on each.
fn keys_apart(cluster: &RedisCluster, nodes: usize) -> Vec<u64> {
    let mut taken = Vec::new();
    let mut keys = Vec::new();
    while keys.len() < nodes {
        let key = fresh_key();
        let node = cluster.primary_of(name(&hourly(1, FIXED), key));
        if !taken.contains(&node) {
            taken.push(node);
            keys.push(key);
        }
    }
    keys
}

/// A cluster that lives by a clock of the test.
struct Timed {
    limiter: Limiter,
    clock: ManualClock,
    nodes: Vec<RedisServer>,
}

impl Timed {
    async fn start(nodes: usize, tls: bool) -> Self {
        let mut servers = Vec::new();
        for _ in 0..nodes {
            let builder = RedisServer::builder().controlled_clock().arg("--cluster-enabled", "yes");
            // Nobody is to seem away because the time was moved.
            let builder = builder.arg("--cluster-node-timeout", "100000000000");
            let builder = if tls {
                builder.tls().arg("--tls-cluster", "yes").arg("--cluster-announce-ip", "127.0.0.1")
            } else {
                builder
            };
            servers.push(builder.start());
        }
        for (at, server) in servers.iter().enumerate() {
            let (first, last) = (16384 * at / nodes, 16384 * (at + 1) / nodes - 1);
            ask::<()>(server, &format!("CLUSTER ADDSLOTSRANGE {first} {last}"));
            if at > 0 {
                ask::<()>(server, &format!("CLUSTER MEET 127.0.0.1 {}", servers[0].port()));
            }
        }
        let known = format!("cluster_known_nodes:{nodes}\r\n");
        eventually("the nodes are a cluster", || async {
            // Some of what a node waits for goes by its clock.
            for server in &servers {
                server.clock().advance(Duration::from_secs(1));
            }
            servers.iter().all(|server| {
                let info: String = ask(server, "CLUSTER INFO");
                info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384") && info.contains(&known)
            })
        })
        .await;
        let clock = ManualClock::new();
        let scheme = if tls { "rediss" } else { "redis" };
        let url = format!("{scheme}+cluster://127.0.0.1:{}", servers[0].port());
        let builder = Limiter::builder(&url).clock(clock.clone()).deadline(PATIENCE).on_store_error(OnStoreError::Deny);
        #[cfg(feature = "rustls")]
        let builder = match servers[0].tls() {
            Some(files) => builder.ca_certificate(std::fs::read(&files.ca_pem).unwrap()),
            None => builder,
        };
        let timed = Self { limiter: builder.build().await.unwrap(), clock, nodes: servers };
        let later = timed.now().as_secs().next_multiple_of(3600);
        timed.set(Duration::from_secs(later));
        timed
    }

    fn set(&self, now: Duration) {
        for node in &self.nodes {
            node.clock().set_micros(u64::try_from(now.as_micros()).unwrap());
        }
    }
}

impl Subject for Timed {
    fn store(&self) -> &dyn Store {
        store_of(&self.limiter)
    }

    fn now(&self) -> Duration {
        Duration::from_micros(self.nodes[0].clock().now_micros())
    }

    fn advance(&self, by: Duration) {
        self.set(self.now() + by);
        self.clock.advance(by);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_cluster_conforms() {
    conformance::check(&Timed::start(3, false).await, ALL).await;
}

#[cfg(feature = "rustls")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_cluster_over_tls_conforms() {
    conformance::check(&Timed::start(1, true).await, ALL).await;
}

/// Call by call, over several slots, it says what memory says: which is charged, and who refuses for how long.
#[tokio::test]
async fn charges_over_slots_are_decided_as_in_memory() {
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
            let said = |answer: &Result<ratelimit_runtime::Permit, ratelimit_runtime::RequestPerMinute>| match answer {
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

#[tokio::test]
async fn is_reached_in_every_way() {
    let cluster = RedisCluster::builder().replicas(0).password(SECRET).start();
    for end in ["", "/", "/0", "?protocol=resp2"] {
        let builder = Limiter::builder(&(cluster.url() + end)).deadline(PATIENCE).on_store_error(OnStoreError::Deny);
        let limiter = builder.build().await.unwrap();
        works(&limiter).await;
        keeps_the_secret(&limiter);
    }
    let one = format!("valkey+cluster://:{SECRET}@127.0.0.1:{}", cluster.port(2));
    let builder = Limiter::builder(&one).lazy().deadline(PATIENCE).on_store_error(OnStoreError::Deny);
    let limiter = builder.build().await.unwrap();
    works(&limiter).await;
    for node in cluster.nodes() {
        ask::<()>(node, "SCRIPT FLUSH");
    }
    works(&limiter).await;

    // And not like this.
    let wrong = cluster.url().replace(SECRET, "other");
    let error = Limiter::connect(&wrong).await.unwrap_err().to_string();
    assert!(error.contains("password") && error.contains(&cluster.port(0).to_string()), "{error}");
    let error = Limiter::connect(&(cluster.url() + "/1")).await.unwrap_err().to_string();
    assert!(error.contains("database"), "{error}");
    keeps_the_secret(error.as_str());
    let single = format!("redis://:{SECRET}@127.0.0.1:{}", cluster.port(0));
    let limiter = Limiter::builder(&single).deadline(PATIENCE).build().await.unwrap();
    let answers = join_all((0..20).map(|_| limiter.acquire(&hourly(3, FIXED), fresh_key()))).await;
    let refused = answers.into_iter().find_map(Result::err).expect("not all slots are on one node");
    assert_eq!(refused.cause(), Cause::Misconfigured);
    assert!(refused.to_string().contains("redis+cluster://"), "{refused}");
}

#[tokio::test]
async fn a_server_without_a_cluster_is_told() {
    let server = RedisServer::start();
    let url = format!("redis+cluster://127.0.0.1:{}", server.port());
    let error = Limiter::connect(&url).await.unwrap_err().to_string();
    assert!(error.contains("write redis://"), "{error}");
}

#[cfg(feature = "rustls")]
#[tokio::test]
async fn is_reached_over_tls() {
    let cluster = RedisCluster::builder().tls().password(SECRET).start();
    let files = cluster.tls().unwrap();
    let builder = Limiter::builder(&cluster.url()).ca_certificate(std::fs::read(&files.ca_pem).unwrap());
    let limiter = builder.deadline(PATIENCE).on_store_error(OnStoreError::Deny).build().await.unwrap();
    works(&limiter).await;
    keeps_the_secret(&limiter);
    cluster.failover(3);
    recovers(&limiter).await;
    let error = Limiter::connect(&cluster.url()).await.unwrap_err().to_string();
    assert!(error.contains("certificate"), "{error}");
}

/// All or nothing, and exactly as many as the tightest rule lets through.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn charges_over_slots_are_all_or_nothing() {
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
async fn a_caller_who_leaves_between_slots_has_charged_nothing() {
    let cluster = RedisCluster::builder().replicas(0).start();
    let limiter = limiter_on(&cluster).await;
    let keys = keys_apart(&cluster, 3);
    let rules = [hourly(1_000_000, FIXED); 3];
    let charges = each(&rules, &keys);
    let (mut kept, mut left) = (0, 0);
    let mut whole = Duration::ZERO;
    for call in 0..500 {
        // One stays, and shows how long that takes; the next leave at all times in between, for which a timer is not fine enough.
        let (asked, step) = (Instant::now(), call % 50);
        let leave_at = asked + if step == 0 { PATIENCE } else { whole * (step - 1) / 40 };
        let mut acquired = pin!(limiter.acquire_all(&charges));
        let left_or_answered = poll_fn(|context| match acquired.as_mut().poll(context) {
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

/// Not even for a moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_refusal_over_slots_is_in_nobodys_way() {
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

#[tokio::test]
async fn charges_over_slots_are_refunded_and_refused_by_the_longest_wait() {
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

/// Each call runs once, wherever its counter is just then.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_slot_that_moves_is_followed() {
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

/// While a slot moves, a key that a script has deleted can't be written again by it. So none is: not by a refund of the first charge of a
/// log, by a settlement of its only hold, by the first charge of one that has lost its end.
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

/// An ASK redirection holds for the moment of the reply. A caller that had to wait for a connection to the node it names asks the owner
/// of the slot again: by then the counter may be there.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_redirection_of_before_the_connection_opened_is_not_followed() {
    let cluster = RedisCluster::builder().replicas(0).proxied().start();
    let limiter = limiter_on(&cluster).await;
    let (rule, key) = (hourly(10, FIXED), fresh_key());
    let slot = cluster.slot_of(name(&rule, key));
    let from = cluster.primary_of_slot(slot);
    let to = (from + 1) % 3;
    cluster.proxy(to).set(Mode::Stall);
    cluster.proxy(to).cut();
    cluster.begin_move(slot, from, to);
    let late = tokio::spawn({
        let (limiter, rule) = (limiter.clone(), rule.clone());
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

/// Under a deadline as most have one, a lost node is met by its replica, and nothing else suffers.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_failover_is_followed() {
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

/// Nobody else is known of a single shard.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_replica_of_a_single_shard_is_found() {
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

/// To connect takes two round trips or more, and a call one.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nodes_far_away_are_found_although_connecting_takes_longer_than_the_deadline() {
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

/// What one node of the URL is, in no cluster, is not the reason while the others are away.
#[tokio::test]
async fn an_outage_is_not_blamed_on_one_node() {
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

/// It could be that nothing ever wakes a caller there.
#[test]
fn without_a_runtime_every_store_says_so() {
    fn at_once<T>(future: impl Future<Output = T>) -> T {
        let Poll::Ready(answer) = pin!(future).poll(&mut Context::from_waker(Waker::noop())) else {
            panic!("nothing would wake it")
        };
        answer
    }
    for url in ["redis://127.0.0.1:1", "redis+sentinel://127.0.0.1:1/shop", "redis+cluster://127.0.0.1:1"] {
        let error = at_once(Limiter::connect(url)).unwrap_err().to_string();
        assert!(error.contains("tokio runtime"), "{url}: {error}");
        let limiter = at_once(Limiter::builder(url).lazy().build()).unwrap();
        let refused = at_once(limiter.acquire(&hourly(3, FIXED), fresh_key())).unwrap_err();
        assert_eq!(refused.cause(), Cause::Misconfigured, "{url}");
        assert!(refused.to_string().contains("tokio runtime"), "{url}: {refused}");
    }
}

/// What was sent and not answered may have run, and is not sent again.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_runs_twice() {
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
async fn a_cluster_that_is_away_is_met_by_the_policy() {
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

/// The one that began to ask the cluster, and is kept, and never goes on.
#[test]
fn a_runtime_that_nobody_drives_holds_up_no_other() {
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
    nodes.map(|(_, node)| crate::redis::denial_cache::asked(node)).sum()
}
