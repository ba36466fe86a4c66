//! Clusters: each way to reach one, and the promises of a store.

mod moves;
mod multi_slot;
mod outages;
mod slot_refunds;

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::future::join_all;
use ratelimit_harness::{RedisCluster, RedisServer};
use ratelimit_runtime::conformance::{self, ALGORITHMS as ALL, Subject, store_of};
use ratelimit_runtime::{Cause, Limiter, ManualClock, OnStoreError, Rule, Store};

#[cfg(feature = "rustls")]
use crate::support::servers::recovers;
use crate::support::servers::{SECRET, ask, keeps_the_secret, works};
use crate::support::{FIXED, LOG, PATIENCE, eventually, fresh_key, hourly};

/// Failures are errors here, and no policy hides them.
async fn limiter_on(cluster: &RedisCluster) -> Limiter {
    with_deadline(cluster, PATIENCE).await
}

async fn with_deadline(cluster: &RedisCluster, deadline: Duration) -> Limiter {
    let builder = Limiter::builder(&cluster.url()).deadline(deadline).on_store_error(OnStoreError::Deny);
    builder.build().await.unwrap()
}

/// The Redis key of a counter.
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

#[tokio::test]
async fn a_cluster_is_reached_by_each_form_of_its_url() {
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
async fn a_cluster_url_of_a_single_server_is_an_error() {
    let server = RedisServer::start();
    let url = format!("redis+cluster://127.0.0.1:{}", server.port());
    let error = Limiter::connect(&url).await.unwrap_err().to_string();
    assert!(error.contains("write redis://"), "{error}");
}

#[cfg(feature = "rustls")]
#[tokio::test]
async fn a_cluster_is_reached_over_tls() {
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

/// It could be that nothing ever wakes a caller there.
#[test]
fn a_call_without_a_tokio_runtime_is_an_error_on_every_kind_of_server() {
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
