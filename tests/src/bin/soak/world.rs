//! Objects that last for the whole program: the stores, a limiter on each, and the counts.

use std::path::PathBuf;
use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use ratelimit_harness::{Proxy, RedisCluster, RedisServer};
use ratelimit_runtime::{Builder, Limiter, OnStoreError, config::Rules};
use tempfile::TempDir;

use crate::counts::Counts;

/// The failure policy `Local` admits the share of one of so many processes.
const INSTANCES: u32 = 2;

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) sites: [Site; 3],
    pub(crate) calls: Counts,
    pub(crate) failures: Counts,
    pub(crate) others: Counts,
    faults: Mutex<Vec<String>>,
    is_over: AtomicBool,
    folder: TempDir,
}

/// A store, and the limiter that lasts.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) name: &'static str,
    pub(crate) limiter: Limiter,
    pub(crate) policy: OnStoreError,
    url: String,
    guarded: Mutex<Guarded>,
}

/// Whoever holds the lock may break the servers, as far as it is permitted.
#[derive(Debug)]
pub(crate) struct Guarded {
    pub(crate) servers: Servers,
    pub(crate) permitted: Permitted,
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // there are three
pub(crate) enum Servers {
    Memory,
    Single(RedisServer, Proxy),
    Cluster(RedisCluster),
}

/// The failures that may happen now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Permitted {
    None,
    /// Failures after which all counters are as before.
    Harmless,
    All,
}

impl World {
    pub(crate) async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("rules.toml"), "[rules]\n").expect("the file of the rules is written");
        let rules = Rules::watch(folder.path().join("rules.toml")).expect("a valid file");
        let server = RedisServer::start();
        let proxy = Proxy::start(server.port());
        let cluster = RedisCluster::builder().replicas(0).start();
        let (single_url, cluster_url) = (server.url_through(&proxy), cluster.url());
        let sites = [
            ("memory", "memory://".to_owned(), OnStoreError::Deny, Servers::Memory),
            ("redis", single_url, OnStoreError::Local, Servers::Single(server, proxy)),
            ("cluster", cluster_url, OnStoreError::Deny, Servers::Cluster(cluster)),
        ];
        let [memory, single, cluster] =
            sites.map(|(name, url, policy, servers)| Site::start(name, url, policy, servers, &rules));
        Self {
            sites: [memory.await, single.await, cluster.await],
            calls: Counts::default(),
            failures: Counts::default(),
            others: Counts::default(),
            faults: Mutex::default(),
            is_over: AtomicBool::new(false),
            folder,
        }
    }

    pub(crate) fn rules_file(&self) -> PathBuf {
        self.folder.path().join("rules.toml")
    }

    /// The load is to end.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    pub(crate) fn set_over(&self, is_over: bool) {
        self.is_over.store(is_over, Ordering::Relaxed);
    }

    /// A promise was broken. The load ends.
    pub(crate) fn fault(&self, what: String) {
        println!("DID NOT HOLD: {what}");
        self.faults.lock().unwrap_or_else(PoisonError::into_inner).push(what);
        self.set_over(true);
    }

    pub(crate) fn has_faults(&self) -> bool {
        !self.faults.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

impl Site {
    async fn start(name: &'static str, url: String, policy: OnStoreError, servers: Servers, rules: &Rules) -> Self {
        let limiter = builder(&url, policy).rules(rules.clone()).build().await.expect("the servers answer");
        let guarded = Mutex::new(Guarded { servers, permitted: Permitted::All });
        Self { name, limiter, policy, url, guarded }
    }

    /// Of another limiter on the same store. The memory store is one of its own.
    pub(crate) fn builder(&self) -> Builder {
        builder(&self.url, self.policy)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Guarded> {
        self.guarded.lock().expect("no failure has panicked")
    }

    /// Returns when the failures under way have ended.
    pub(crate) fn permit(&self, permitted: Permitted) {
        self.lock().permitted = permitted;
    }
}

impl Servers {
    /// All servers that count.
    pub(crate) fn nodes(&self) -> &[RedisServer] {
        match self {
            Self::Memory => &[],
            Self::Single(server, _) => std::slice::from_ref(server),
            Self::Cluster(cluster) => cluster.nodes(),
        }
    }
}

fn builder(url: &str, policy: OnStoreError) -> Builder {
    Limiter::builder(url).on_store_error(policy).instances(INSTANCES)
}
