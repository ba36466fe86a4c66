//! The servers of a contender, and their figures.

use ratelimit_harness::{RedisCluster, RedisServer};
use redis::{Client, Pipeline, from_redis_value};

use crate::contenders::Kind;

/// Servers of one contender's own.
#[allow(clippy::large_enum_variant)] // there are few, and they are not moved
pub(crate) enum Place {
    Single(RedisServer),
    Cluster(RedisCluster),
    /// One that another process holds.
    Elsewhere(String),
    /// No server.
    Memory,
}

/// Figures of the servers so far.
#[derive(Clone, Copy, Default)]
pub(crate) struct Work {
    /// Commands that contenders send: scripts, and limitador's question before its script.
    pub(crate) commands: u64,
    pub(crate) cpu_seconds: f64,
}

impl Place {
    pub(crate) fn url(&self) -> String {
        match self {
            Self::Single(server) => server.url(),
            Self::Cluster(cluster) => cluster.url(),
            Self::Elsewhere(url) => url.clone(),
            Self::Memory => "memory://".to_owned(),
        }
    }

    fn servers(&self) -> &[RedisServer] {
        match self {
            Self::Single(server) => std::slice::from_ref(server),
            Self::Cluster(cluster) => cluster.nodes(),
            Self::Elsewhere(_) | Self::Memory => &[],
        }
    }

    pub(crate) fn work(&self, kind: Kind) -> Work {
        let is_sent = |name: &str| match name {
            "cmdstat_evalsha" | "cmdstat_eval" => true,
            "cmdstat_mget" => kind.sends_mget(),
            _ => false,
        };
        let info = |server: &RedisServer, section: &[u8]| -> String {
            from_redis_value(server.command(&[b"INFO", section])).expect("text")
        };
        self.servers().iter().fold(Work::default(), |mut work, server| {
            for line in info(server, b"commandstats").lines() {
                if let Some((name, stats)) = line.split_once(":calls=")
                    && is_sent(name)
                {
                    work.commands += stats.split(',').next().and_then(|calls| calls.parse().ok()).unwrap_or(0);
                }
            }
            for line in info(server, b"cpu").lines() {
                if let Some((name, seconds)) = line.split_once(':')
                    && ["used_cpu_sys", "used_cpu_user"].contains(&name)
                {
                    work.cpu_seconds += seconds.parse().unwrap_or(0.0);
                }
            }
            work
        })
    }

    /// The admitted calls of a contender so far, by the stored counts.
    pub(crate) fn admitted(&self, kind: Kind) -> u64 {
        self.servers().iter().map(|server| admitted(server, kind)).sum()
    }
}

fn admitted(server: &RedisServer, kind: Kind) -> u64 {
    let mut connection = Client::open(server.url()).expect("an address").get_connection().expect("a connection");
    let (mut cursor, mut sum) = (0, 0);
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg(&["COUNT", "10000", "TYPE", "string"]);
        let (next, names): (u64, Vec<Vec<u8>>) = scan.query(&mut connection).expect("names");
        if !names.is_empty() {
            let mut pipeline = Pipeline::with_capacity(names.len());
            for name in &names {
                pipeline.get(name);
            }
            let values: Vec<String> = pipeline.query(&mut connection).expect("values");
            sum += names.iter().zip(&values).map(|(name, value)| kind.admitted(name, value)).sum::<u64>();
        }
        if next == 0 {
            return sum;
        }
        cursor = next;
    }
}
