//! A Redis primary, its replicas and their sentinels, all of one test.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::time::Duration;

use crate::patience::wait_until;
use crate::server::{RedisServer, RedisServerBuilder};
use crate::tls::TlsFiles;

const REPLICAS: usize = 2;
const SENTINELS: usize = 3;
const QUORUM: usize = 2;

/// A running primary with two replicas, watched by three sentinels. Drop: all of them end.
///
/// Nodes go by their index; node 0 is the primary it started with. A node that is killed and
/// restarted remembers only which node it followed. A primary comes back as one, empty, until the
/// sentinels change that.
#[derive(Debug)]
#[must_use = "servers end when they are dropped"]
pub struct RedisSentinel {
    nodes: Vec<RedisServer>,
    sentinels: Vec<RedisServer>,
}

/// Settings; see [`RedisSentinel::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct RedisSentinelBuilder {
    down_after: Duration,
    tls: bool,
    password: Option<String>,
    sentinel_password: Option<String>,
    controlled_clock: bool,
    args: Vec<(String, String)>,
}

impl RedisSentinelBuilder {
    /// After how long without an answer a server counts as gone (`down-after-milliseconds`): a second unless asked for.
    /// A replica takes over a second or two later. On a busy machine less finds servers gone that are only slow.
    pub fn down_after(mut self, time: Duration) -> Self {
        self.down_after = time;
        self
    }

    /// All of them speak TLS only, also among each other; see [`RedisSentinel::tls`].
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// The primary and its replicas ask clients for a password. [`RedisSentinel::url`] has it.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// The sentinels ask clients for a password, which no URL has.
    pub fn sentinel_password(mut self, password: &str) -> Self {
        self.sentinel_password = Some(password.to_owned());
        self
    }

    /// Puts the wall clock of the first primary in the hands of the test, see [`RedisServer::clock`].
    pub fn controlled_clock(mut self) -> Self {
        self.controlled_clock = true;
        self
    }

    /// Any setting of `redis.conf` for the primary and its replicas, as in [`RedisServerBuilder::arg`].
    pub fn arg(mut self, name: &str, value: &str) -> Self {
        self.args.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts everything, and waits until a failover could happen: the replicas follow, and the
    /// sentinels know them and each other.
    pub fn start(self) -> RedisSentinel {
        let primary = self.node("", None);
        let primary = if self.controlled_clock { primary.controlled_clock() } else { primary }.start();
        let tls = primary.tls().cloned();
        let port = primary.port();
        let mut all = RedisSentinel { nodes: vec![primary], sentinels: Vec::new() };
        for _ in 0..REPLICAS {
            all.nodes.push(self.node(&format!("replicaof 127.0.0.1 {port}\n"), tls.as_ref()).start());
        }
        // A sentinel that finds them all at its first look need not wait for its second.
        for replica in &all.nodes[1..] {
            wait_until("a replica follows", || replica.follows(&all.nodes[0]));
        }
        for _ in 0..SENTINELS {
            let sentinel = self.sentinel(port, tls.as_ref()).start();
            // A sentinel that finds two seconds missing, as on a busy machine, does nothing for 30 seconds
            // ("tilt"), which is as long as tests wait. Redis before 7.0 has no such command.
            let _ = sentinel.ask::<()>("SENTINEL DEBUG tilt-period 1000");
            all.sentinels.push(sentinel);
        }
        all.wait_until_ready();
        all
    }

    fn node(&self, config: &str, tls: Option<&TlsFiles>) -> RedisServerBuilder {
        let mut node =
            self.on_tls(RedisServer::builder().configured(config), tls).arg("--repl-diskless-sync-delay", "0");
        if let Some(password) = &self.password {
            node = node.password(password).arg("--masterauth", password);
        }
        self.args.iter().fold(node, |node, (name, value)| node.arg(name, value))
    }

    fn sentinel(&self, port: u16, tls: Option<&TlsFiles>) -> RedisServerBuilder {
        let service = RedisSentinel::SERVICE;
        let mut config = format!(
            "sentinel monitor {service} 127.0.0.1 {port} {QUORUM}\n\
             sentinel down-after-milliseconds {service} {}\n\
             sentinel failover-timeout {service} 3000\n\
             sentinel parallel-syncs {service} {REPLICAS}\n",
            self.down_after.as_millis()
        );
        if let Some(password) = &self.password {
            let _ = writeln!(config, "sentinel auth-pass {service} \"{password}\"");
        }
        if let Some(password) = &self.sentinel_password {
            let _ = writeln!(config, "sentinel sentinel-pass \"{password}\"");
        }
        let sentinel = self.on_tls(RedisServer::builder().sentinel(&config), tls);
        match &self.sentinel_password {
            Some(password) => sentinel.password(password),
            None => sentinel,
        }
    }

    fn on_tls(&self, server: RedisServerBuilder, files: Option<&TlsFiles>) -> RedisServerBuilder {
        if self.tls { server.shared_tls(files).arg("--tls-replication", "yes") } else { server }
    }
}

impl RedisSentinel {
    /// The name of the service at the sentinels.
    pub const SERVICE: &str = "shop";

    /// On free loopback ports, without password, without persistence.
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// A builder for other settings.
    pub fn builder() -> RedisSentinelBuilder {
        RedisSentinelBuilder {
            down_after: Duration::from_secs(1),
            tls: false,
            password: None,
            sentinel_password: None,
            controlled_clock: false,
            args: Vec::new(),
        }
    }

    /// The URL of the sentinels and the service, for the runtime:
    /// `redis+sentinel://127.0.0.1:20000,127.0.0.1:20001,127.0.0.1:20002/shop`, or
    /// `rediss+sentinel://..` with TLS, with the password of the primary and its replicas if they
    /// have one.
    pub fn url(&self) -> String {
        let addresses: Vec<_> = self.sentinels.iter().map(|each| format!("127.0.0.1:{}", each.port())).collect();
        let scheme = if self.tls().is_some() { "rediss+sentinel" } else { "redis+sentinel" };
        format!("{scheme}://{}{}/{}", self.nodes[0].credentials(), addresses.join(","), Self::SERVICE)
    }

    /// The primary and its replicas, by index.
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

    /// To stop and ask them.
    pub fn sentinels(&self) -> &[RedisServer] {
        &self.sentinels
    }

    /// To kill and restart it.
    pub fn sentinel_mut(&mut self, index: usize) -> &mut RedisServer {
        &mut self.sentinels[index]
    }

    /// The certificates of those built with [`RedisSentinelBuilder::tls`], the same for each.
    pub fn tls(&self) -> Option<&TlsFiles> {
        self.nodes[0].tls()
    }

    /// The index of the primary, by the word of the first sentinel that runs.
    pub fn primary(&self) -> usize {
        wait_until("a sentinel names the primary", || {
            let sentinel = self.sentinels.iter().find(|each| each.is_up()).ok_or("no sentinel runs")?;
            self.named_by(sentinel)
        })
    }

    /// Lets another node take over from the primary, which may run (`SENTINEL FAILOVER`), and waits until all of them
    /// know. Returns the new primary.
    pub fn failover(&self) -> usize {
        let before = self.primary();
        let sentinel = self.sentinels.iter().find(|each| each.is_up()).expect("a sentinel runs");
        let command = format!("SENTINEL FAILOVER {}", Self::SERVICE);
        // It refuses while it deems no replica good, or an earlier failover is not over.
        wait_until("a sentinel starts a failover", || sentinel.ask::<()>(&command));
        self.wait_until_primary_is_not(before);
        self.wait_until_ready();
        self.primary()
    }

    /// Waits until the first sentinel that runs names another node: one that was killed or stopped was replaced.
    pub fn wait_until_primary_is_not(&self, before: usize) {
        wait_until(&format!("node {before} is replaced"), || match self.primary() {
            primary if primary == before => Err("the sentinels still name it".to_owned()),
            _ => Ok(()),
        });
    }

    /// Waits until all running sentinels name one running primary, the other running nodes follow
    /// it, and the sentinels see all of that and each other. Killed and stopped nodes are left out,
    /// so this also waits for a replica to take over.
    pub fn wait_until_ready(&self) {
        wait_until("the sentinels are ready", || self.is_ready());
    }

    fn is_ready(&self) -> Result<(), String> {
        let sentinels: Vec<&RedisServer> = self.sentinels.iter().filter(|each| each.is_up()).collect();
        let primary = self.named_by(sentinels.first().ok_or("no sentinel runs")?)?;
        let port = self.nodes[primary].port();
        if !self.nodes[primary].is_up() {
            return Err(format!("the sentinels name node {primary}, which does not run"));
        }
        let replication: String = self.nodes[primary].ask("INFO replication")?;
        if !replication.contains("role:master") {
            return Err(format!("node {primary} is no primary yet: {replication}"));
        }
        let replicas: Vec<&RedisServer> =
            self.nodes.iter().filter(|node| node.is_up() && node.port() != port).collect();
        for replica in &replicas {
            replica.follows(&self.nodes[primary])?;
        }
        for sentinel in &sentinels {
            let named = self.named_by(sentinel)?;
            if named != primary {
                return Err(format!("one sentinel names node {primary}, another node {named}"));
            }
            let ask = |what| sentinel.ask::<HashMap<String, String>>(&format!("SENTINEL {what} {}", Self::SERVICE));
            let ask_all =
                |what| sentinel.ask::<Vec<HashMap<String, String>>>(&format!("SENTINEL {what} {}", Self::SERVICE));
            sees(sentinel, "master", &[ask("MASTER")?], &[&self.nodes[primary]])?;
            sees(sentinel, "slave", &ask_all("REPLICAS")?, &replicas)?;
            let others: Vec<_> = sentinels.iter().copied().filter(|other| other.port() != sentinel.port()).collect();
            sees(sentinel, "sentinel", &ask_all("SENTINELS")?, &others)?;
        }
        Ok(())
    }

    fn named_by(&self, sentinel: &RedisServer) -> Result<usize, String> {
        let (_, port): (String, u16) = sentinel.ask(&format!("SENTINEL GET-MASTER-ADDR-BY-NAME {}", Self::SERVICE))?;
        self.nodes.iter().position(|node| node.port() == port).ok_or_else(|| format!("no node has its port, {port}"))
    }
}

/// Checks that each of them is in the list and well. A server that is down, or not reached yet, has
/// more flags. A sentinel that has just seen a primary down says so in its own flags, and is well.
fn sees(
    sentinel: &RedisServer,
    flags: &str,
    list: &[HashMap<String, String>],
    all: &[&RedisServer],
) -> Result<(), String> {
    for server in all {
        let port = server.port().to_string();
        let seen = list.iter().find(|entry| entry.get("port") == Some(&port));
        let well = |entry: &HashMap<String, String>| {
            entry["flags"].trim_end_matches(",master_down") == flags
                && entry.get("master-link-status").is_none_or(|status| status == "ok")
        };
        if !seen.is_some_and(well) {
            return Err(format!(
                "the sentinel at port {} sees the {flags} at port {port} as {seen:?}",
                sentinel.port()
            ));
        }
    }
    Ok(())
}
