//! A Redis cluster of one test.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use crate::patience::wait_until;
use crate::proxy::{Proxy, SERVERS};
use crate::server::{RedisServer, RedisServerBuilder};
use crate::tls::TlsFiles;

const SLOTS: u16 = 16_384;

/// A replica that has not taken over by then gets the order again. Redis gives up after five seconds.
const MANUAL_FAILOVER: Duration = Duration::from_secs(6);

/// A running Redis cluster with nothing in it: three primaries with one replica each by default.
/// Drop: every node ends.
///
/// Nodes go by their index. The first are the primaries it started with, node 0 with the lowest slots; then come the
/// replicas, each in the order of its primaries: of six nodes 3 is the replica of 0.
///
/// A node that is killed and restarted comes back as itself, without its keys. As a cluster does: if that is faster
/// than the others notice, it is still primary, of an empty database.
#[derive(Debug)]
#[must_use = "a cluster ends when it is dropped"]
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
    ids: Vec<String>,
    /// None, or one a node.
    proxies: Vec<Proxy>,
    password: Option<String>,
}

/// Settings of a cluster; see [`RedisCluster::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct RedisClusterBuilder {
    primaries: usize,
    replicas: usize,
    node_timeout: Duration,
    tls: bool,
    proxied: bool,
    password: Option<String>,
    args: Vec<(String, String)>,
}

/// A line of `CLUSTER NODES`: what one node knows of another, or of itself.
#[derive(Debug)]
struct Line {
    id: String,
    myself: bool,
    /// `None` of a primary.
    replica_of: Option<String>,
    /// Reachable and known, in the eyes of the node that was asked.
    well: bool,
    epoch: u64,
    slots: Vec<RangeInclusive<u16>>,
}

/// The layout that all nodes agree about: by id, the primary it follows and the slots it serves.
type Layout = BTreeMap<String, (Option<String>, Vec<RangeInclusive<u16>>)>;

impl RedisClusterBuilder {
    /// Number of primaries that share the slots, 3 by default. A single one has no other to vote
    /// for its replica.
    pub fn primaries(mut self, primaries: usize) -> Self {
        self.primaries = primaries;
        self
    }

    /// Number of replicas of each primary: 1 by default, 0 for none.
    pub fn replicas(mut self, each: usize) -> Self {
        self.replicas = each;
        self
    }

    /// Time after which a node counts as gone (`cluster-node-timeout`), a second by default. A
    /// replica takes over some time later, about twice that after its primary went away.
    pub fn node_timeout(mut self, timeout: Duration) -> Self {
        self.node_timeout = timeout;
        self
    }

    /// Speaks TLS only, also among its nodes; see [`RedisCluster::tls`].
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Puts a [`Proxy`] in front of each node. The nodes tell clients these addresses as theirs. What they say to each
    /// other passes undisturbed. Linux only: the nodes call from a loopback address of their own.
    pub fn proxied(mut self) -> Self {
        self.proxied = true;
        self
    }

    /// Asks clients for a password. [`RedisCluster::url`] has it.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Any setting of `redis.conf` for every node, as in [`RedisServerBuilder::arg`].
    pub fn arg(mut self, name: &str, value: &str) -> Self {
        self.args.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts the cluster, and waits until every node serves it and every replica follows its primary. That takes about
    /// two seconds: so long a new primary refuses to serve.
    pub fn start(self) -> RedisCluster {
        let mut cluster =
            RedisCluster { nodes: Vec::new(), ids: Vec::new(), proxies: Vec::new(), password: self.password.clone() };
        for _ in 0..self.primaries * (1 + self.replicas) {
            cluster.add(self.node(cluster.nodes.first().and_then(RedisServer::tls)), self.proxied);
        }
        cluster.join(self.primaries);
        cluster.wait_until_ready();
        cluster
    }

    fn node(&self, tls: Option<&TlsFiles>) -> RedisServerBuilder {
        let mut node = RedisServer::builder()
            .cluster_node()
            .arg("--cluster-node-timeout", &self.node_timeout.as_millis().to_string())
            .arg("--cluster-announce-ip", "127.0.0.1")
            // Replicas stay where they are put, and take over however long they were cut off.
            .arg("--cluster-allow-replica-migration", "no")
            .arg("--cluster-replica-validity-factor", "0")
            .arg("--repl-diskless-sync-delay", "0");
        if self.tls {
            node = node.shared_tls(tls).arg("--tls-cluster", "yes").arg("--tls-replication", "yes");
        }
        if self.proxied {
            node = node.arg("--bind-source-addr", &SERVERS.to_string());
        }
        if let Some(password) = &self.password {
            node = node.password(password).arg("--masterauth", password);
        }
        self.args.iter().fold(node, |node, (name, value)| node.arg(name, value))
    }
}

impl RedisCluster {
    /// Three primaries with a replica each, on free loopback ports, without password, without persistence.
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// A cluster that is not the plain one.
    pub fn builder() -> RedisClusterBuilder {
        RedisClusterBuilder {
            primaries: 3,
            replicas: 1,
            node_timeout: Duration::from_secs(1),
            tls: false,
            proxied: false,
            password: None,
            args: Vec::new(),
        }
    }

    /// The URL of all nodes, for the runtime: `redis+cluster://127.0.0.1:20000,127.0.0.1:20001`, or
    /// `rediss+cluster://..` with TLS, with the password if it has one.
    pub fn url(&self) -> String {
        let ports = (0..self.nodes.len()).map(|index| self.port(index));
        let addresses: Vec<_> = ports.map(|port| format!("127.0.0.1:{port}")).collect();
        let scheme = if self.tls().is_some() { "rediss+cluster" } else { "redis+cluster" };
        format!("{scheme}://{}{}", self.nodes[0].credentials(), addresses.join(","))
    }

    /// All nodes, by index.
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// To stop and ask it.
    pub fn node(&self, index: usize) -> &RedisServer {
        &self.nodes[index]
    }

    /// To kill and restart it.
    pub fn node_mut(&mut self, index: usize) -> &mut RedisServer {
        &mut self.nodes[index]
    }

    /// The port clients are to use for that node: its proxy's, if it has one.
    pub fn port(&self, index: usize) -> u16 {
        self.proxies.get(index).map_or_else(|| self.nodes[index].port(), Proxy::port)
    }

    /// The proxy in front of that node, in a cluster built with [`RedisClusterBuilder::proxied`].
    pub fn proxy(&self, index: usize) -> &Proxy {
        self.proxies.get(index).expect("the cluster was not built with .proxied()")
    }

    /// The certificates of a cluster built with [`RedisClusterBuilder::tls`], the same for every node.
    pub fn tls(&self) -> Option<&TlsFiles> {
        self.nodes[0].tls()
    }

    /// The hash slot of a key, by the word of the first node that runs.
    pub fn slot_of(&self, key: impl AsRef<[u8]>) -> u16 {
        let node = self.running().next().expect("a node runs").1;
        let reply = node.command(&[b"CLUSTER", b"KEYSLOT", key.as_ref()]);
        redis::from_redis_value(reply).expect("a slot")
    }

    /// The node that serves that key. Waits for one while a failover is under way.
    pub fn primary_of(&self, key: impl AsRef<[u8]>) -> usize {
        self.primary_of_slot(self.slot_of(key))
    }

    /// The node that serves that slot. Waits for one while a failover is under way.
    pub fn primary_of_slot(&self, slot: u16) -> usize {
        wait_until(&format!("a primary serves slot {slot}"), || {
            // One that was away may not know yet that it is replaced: the newest word counts.
            let serving = self.running().filter_map(|(index, node)| {
                let me = own_line(node).ok()?;
                (me.replica_of.is_none() && me.slots.iter().any(|slots| slots.contains(&slot)))
                    .then_some((me.epoch, index))
            });
            serving.max().map(|(_, index)| index).ok_or_else(|| "none of the running nodes does".to_owned())
        })
    }

    /// The nodes that say that they are primaries, of those that run.
    pub fn primaries(&self) -> Vec<usize> {
        let primary = |node| own_line(node).is_ok_and(|me| me.replica_of.is_none());
        self.running().filter(|&(_, node)| primary(node)).map(|(index, _)| index).collect()
    }

    /// The nodes that say that they follow that one, of those that run.
    pub fn replicas_of(&self, index: usize) -> Vec<usize> {
        let follows = |node| own_line(node).is_ok_and(|me| me.replica_of.as_deref() == Some(self.ids[index].as_str()));
        self.running().filter(|&(_, node)| follows(node)).map(|(index, _)| index).collect()
    }

    /// Moves a slot with its keys from one primary to another, as a resharding does, and waits until every node knows.
    pub fn move_slot(&self, slot: u16, from: usize, to: usize) {
        self.begin_move(slot, from, to);
        self.finish_move(slot, from, to);
    }

    /// The first half of [`RedisCluster::move_slot`]. From now on the old node answers for the keys
    /// of this slot that it still has, and redirects clients with `ASK` for all others.
    pub fn begin_move(&self, slot: u16, from: usize, to: usize) {
        self.set_slot(to, &format!("{slot} IMPORTING {}", self.ids[from]));
        self.set_slot(from, &format!("{slot} MIGRATING {}", self.ids[to]));
    }

    /// Between the halves of [`RedisCluster::move_slot`]: moves at most this many keys, and returns
    /// how many it found.
    pub fn move_keys(&self, slot: u16, from: usize, to: usize, at_most: usize) -> usize {
        let keys: Vec<Vec<u8>> = self.must(from, &format!("CLUSTER GETKEYSINSLOT {slot} {at_most}"));
        if !keys.is_empty() {
            let port = self.nodes[to].port().to_string();
            let mut migrate: Vec<&[u8]> = vec![b"MIGRATE", b"127.0.0.1", port.as_bytes(), b"", b"0", b"10000"];
            if let Some(password) = &self.password {
                migrate.extend([&b"AUTH"[..], password.as_bytes()]);
            }
            migrate.push(b"KEYS");
            migrate.extend(keys.iter().map(Vec::as_slice));
            self.nodes[from].command(&migrate);
        }
        keys.len()
    }

    /// The second half of [`RedisCluster::move_slot`].
    pub fn finish_move(&self, slot: u16, from: usize, to: usize) {
        while self.move_keys(slot, from, to, 10) > 0 {}
        // The new node comes first, so that the slot always has an owner. The others need not wait
        // for the news.
        let others = self.primaries().into_iter().filter(|index| ![from, to].contains(index));
        for index in [to, from].into_iter().chain(others) {
            self.set_slot(index, &format!("{slot} NODE {}", self.ids[to]));
        }
        self.wait_until_ready();
    }

    /// Lets a replica take over from its running primary (`CLUSTER FAILOVER`), and waits until every node knows.
    pub fn failover(&self, replica: usize) {
        let node = &self.nodes[replica];
        let is_primary = || own_line(node).map(|me| me.replica_of.is_none());
        assert!(is_primary() == Ok(false), "node {replica} is no replica, it can't take over");
        wait_until(&format!("node {replica} takes over"), || {
            node.ask::<()>("CLUSTER FAILOVER")?;
            let told = Instant::now();
            while told.elapsed() < MANUAL_FAILOVER {
                if is_primary()? {
                    return Ok(());
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            Err("it is still a replica".to_owned())
        });
        self.wait_until_ready();
    }

    /// Waits until all slots are served, the running nodes agree, and every running replica follows
    /// its primary. Killed and stopped nodes are left out, so this also waits for a replica to take
    /// over.
    pub fn wait_until_ready(&self) {
        wait_until("the cluster is ready", || self.is_ready());
    }

    fn is_ready(&self) -> Result<(), String> {
        let running: Vec<&str> = self.running().map(|(index, _)| self.ids[index].as_str()).collect();
        let (mut agreed, mut latest): (Option<Layout>, Option<String>) = (None, None);
        for (index, node) in self.running() {
            let info: String = node.ask("CLUSTER INFO")?;
            if !info.contains("cluster_state:ok") || !info.contains("cluster_slots_ok:16384") {
                return Err(format!("node {index} does not serve: {info}"));
            }
            // A node that takes over a slot uses the next epoch it knows of. Two nodes with
            // different epochs could both use it.
            let epoch = info.lines().find(|line| line.starts_with("cluster_current_epoch:")).unwrap_or_default();
            if latest.get_or_insert_with(|| epoch.to_owned()) != epoch {
                return Err(format!("node {index} is at {epoch}, and another at {latest:?}"));
            }
            let lines = lines_of(node)?;
            if lines.len() != self.nodes.len() {
                return Err(format!("node {index} knows {} of {} nodes", lines.len(), self.nodes.len()));
            }
            let mut layout = Layout::new();
            for line in lines.into_iter().filter(|line| running.contains(&line.id.as_str())) {
                if !line.well {
                    return Err(format!("node {index} does not reach node {}", line.id));
                }
                if let (true, Some(primary)) = (line.myself, &line.replica_of) {
                    let primary = self.ids.iter().position(|id| id == primary).ok_or("a replica follows a stranger")?;
                    node.follows(&self.nodes[primary])?;
                }
                layout.insert(line.id, (line.replica_of, line.slots));
            }
            let others = agreed.get_or_insert_with(|| layout.clone());
            if *others != layout {
                return Err(format!("node {index} sees {layout:?}, and another {others:?}"));
            }
        }
        let served: usize =
            agreed.iter().flat_map(Layout::values).flat_map(|(_, slots)| slots).map(ExactSizeIterator::len).sum();
        if served == usize::from(SLOTS) { Ok(()) } else { Err(format!("{served} slots are served by nodes that run")) }
    }

    fn add(&mut self, builder: RedisServerBuilder, proxied: bool) {
        let mut node = builder.start();
        if proxied {
            let proxy = Proxy::start(node.port());
            let setting = if node.tls().is_some() { "cluster-announce-tls-port" } else { "cluster-announce-port" };
            node.configure(setting, &proxy.port().to_string());
            self.proxies.push(proxy);
        }
        self.ids.push(node.ask("CLUSTER MYID").unwrap_or_else(|error| panic!("{error}")));
        self.nodes.push(node);
    }

    fn join(&self, primaries: usize) {
        let share = |index: usize| usize::from(SLOTS) * index / primaries;
        for index in 0..self.nodes.len() {
            if index < primaries {
                let (first, last) = (share(index), share(index + 1) - 1);
                self.must::<()>(index, &format!("CLUSTER ADDSLOTSRANGE {first} {last}"));
            }
            self.must::<()>(index, &format!("CLUSTER SET-CONFIG-EPOCH {}", index + 1));
        }
        // Each meets all others itself: word of mouth would take seconds.
        for index in 0..self.nodes.len() {
            for other in &self.nodes[index + 1..] {
                let (port, cluster_port) = (other.port(), other.cluster_port());
                self.must::<()>(index, &format!("CLUSTER MEET 127.0.0.1 {port} {cluster_port}"));
            }
        }
        for index in primaries..self.nodes.len() {
            let primary = (index - primaries) % primaries;
            let replicate = format!("CLUSTER REPLICATE {}", self.ids[primary]);
            wait_until("a replica knows its primary", || self.nodes[index].ask::<()>(&replicate));
        }
    }

    fn set_slot(&self, index: usize, what: &str) {
        self.must::<()>(index, &format!("CLUSTER SETSLOT {what}"));
    }

    fn must<T: redis::FromRedisValue>(&self, index: usize, command: &str) -> T {
        self.nodes[index].ask(command).unwrap_or_else(|error| panic!("{error}"))
    }

    fn running(&self) -> impl Iterator<Item = (usize, &RedisServer)> {
        self.nodes.iter().enumerate().filter(|(_, node)| node.is_up())
    }
}

fn own_line(node: &RedisServer) -> Result<Line, String> {
    lines_of(node)?.into_iter().find(|line| line.myself).ok_or_else(|| "a node does not know itself".to_owned())
}

fn lines_of(node: &RedisServer) -> Result<Vec<Line>, String> {
    let lines: String = node.ask("CLUSTER NODES")?;
    lines.lines().map(|line| read_line(line).ok_or_else(|| format!("CLUSTER NODES has a line {line:?}"))).collect()
}

/// `ID ADDRESS FLAGS PRIMARY PING PONG EPOCH STATE SLOT..`
fn read_line(line: &str) -> Option<Line> {
    let words: Vec<&str> = line.split(' ').collect();
    let (&[id, _, flags, primary, _, _, epoch, state], slots) = words.split_first_chunk()?;
    let flags: Vec<&str> = flags.split(',').collect();
    // Slots on the move stand behind, in brackets, and are in their range too.
    let slots = slots.iter().filter(|slots| !slots.starts_with('[')).map(|slots| {
        let (first, last) = slots.split_once('-').unwrap_or((slots, slots));
        Some(first.parse().ok()?..=last.parse().ok()?)
    });
    Some(Line {
        id: id.to_owned(),
        myself: flags.contains(&"myself"),
        replica_of: flags.contains(&"slave").then(|| primary.to_owned()),
        well: state == "connected" && !["fail", "fail?", "handshake", "noaddr"].iter().any(|flag| flags.contains(flag)),
        epoch: epoch.parse().ok()?,
        slots: slots.collect::<Option<_>>()?,
    })
}
