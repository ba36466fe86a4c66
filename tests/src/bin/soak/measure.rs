//! The memory, tasks, connections and keys of the process and the servers.

use std::fs;

use peak_alloc::PeakAlloc;
use ratelimit_harness::RedisServer;
use redis::FromRedisValue;
use tokio::runtime::Handle;

use crate::world::World;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// The numbers at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    /// Resident memory of the process, in KiB. It depends on how many threads have allocated at once.
    pub(crate) memory: u64,
    /// Memory that is in use, in KiB.
    pub(crate) allocated: u64,
    pub(crate) tasks: usize,
    pub(crate) threads: u64,
    pub(crate) descriptors: usize,
    pub(crate) servers: Vec<ServerSample>,
}

/// Of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerSample {
    pub(crate) name: String,
    pub(crate) connections: u64,
    pub(crate) keys: u64,
    /// In KiB.
    pub(crate) memory: u64,
}

impl Sample {
    /// Waits for failures under way: a server has to answer.
    pub(crate) fn take(world: &World, runtime: &Handle) -> Self {
        let mut servers = Vec::new();
        for site in &world.sites {
            let guarded = site.lock();
            let nodes = guarded.servers.nodes();
            for (number, node) in nodes.iter().enumerate() {
                let name = if nodes.len() == 1 { site.name.to_owned() } else { format!("{} {number}", site.name) };
                servers.push(ServerSample::take(node, name));
            }
        }
        let descriptors = fs::read_dir("/proc/self/fd").expect("the process's descriptors").count() - 1; // of the folder
        let (memory, threads) = (resident(), status("Threads:"));
        let allocated = u64::try_from(ALLOCATOR.current_usage() / 1024).unwrap_or(u64::MAX);
        Self { memory, allocated, tasks: runtime.metrics().num_alive_tasks(), threads, descriptors, servers }
    }

    pub(crate) fn connections(&self) -> u64 {
        self.servers.iter().map(|server| server.connections).sum()
    }

    pub(crate) fn keys(&self) -> u64 {
        self.servers.iter().map(|server| server.keys).sum()
    }

    /// All that has to be the same again: no memory.
    pub(crate) fn counts(&self) -> Vec<(String, u64)> {
        let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let mut counts = vec![
            ("tasks".to_owned(), count(self.tasks)),
            ("threads".to_owned(), self.threads),
            ("descriptors".to_owned(), count(self.descriptors)),
        ];
        counts.extend(self.servers.iter().map(|server| (format!("connections, {}", server.name), server.connections)));
        counts.extend(self.servers.iter().map(|server| (format!("keys, {}", server.name), server.keys)));
        counts
    }
}

impl ServerSample {
    fn take(node: &RedisServer, name: String) -> Self {
        // One connection is that of the question.
        let connections = info(node, "clients", "connected_clients:").saturating_sub(1);
        let memory = info(node, "memory", "used_memory:") / 1024;
        Self { name, connections, keys: reply(node, &[b"DBSIZE"]), memory }
    }
}

fn reply<T: FromRedisValue>(node: &RedisServer, command: &[&[u8]]) -> T {
    redis::from_redis_value(node.command(command)).expect("a reply of that type")
}

fn info(node: &RedisServer, section: &str, field: &str) -> u64 {
    let text: String = reply(node, &[b"INFO", section.as_bytes()]);
    number(&text, field)
}

/// Resident memory of this process, in KiB.
pub(crate) fn resident() -> u64 {
    status("VmRSS:")
}

fn status(field: &str) -> u64 {
    number(&fs::read_to_string("/proc/self/status").expect("the process's status"), field)
}

/// The number behind a field, up to its unit.
fn number(text: &str, field: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    let word = line.and_then(|line| line.split_whitespace().next());
    word.and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("no number behind {field} in {text}"))
}
