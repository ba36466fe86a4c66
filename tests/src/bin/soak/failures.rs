//! Servers that fail.

use std::thread::sleep;
use std::time::Duration;

use ratelimit_harness::{RedisCluster, RedisServer};

use crate::world::{Permitted, Servers, Site, World};

/// Breaks the servers of a site again and again, until the load is over. All of them are up then.
pub(crate) fn run(world: &World, site: &Site) {
    let mut random = fastrand::Rng::new();
    while !world.is_over() {
        sleep(Duration::from_millis(random.u64(300..2_500)));
        let mut guarded = site.lock();
        let permitted = guarded.permitted;
        if permitted == Permitted::None {
            continue;
        }
        let name = fail(&mut guarded.servers, permitted, &mut random);
        world.failures.add(name, site.name);
    }
}

fn fail(servers: &mut Servers, permitted: Permitted, random: &mut fastrand::Rng) -> &'static str {
    let node = random.usize(0..servers.nodes().len());
    match random.u8(0..12) {
        0..=2 => {
            servers.nodes()[node].command(&[b"CLIENT", b"KILL", b"TYPE", b"normal", b"SKIPME", b"yes"]);
            "connections killed"
        }
        3..=4 => {
            servers.nodes()[node].command(&[b"SCRIPT", b"FLUSH"]);
            "scripts flushed"
        }
        5..=6 => {
            halt(&servers.nodes()[node], Duration::from_millis(random.u64(50..1_500)));
            "halted"
        }
        7..=8 if permitted == Permitted::All => {
            let away = Duration::from_millis(if random.bool() { 0 } else { random.u64(0..700) });
            restart(servers, node, away);
            "killed, restarted"
        }
        _ => match servers {
            Servers::Memory => unreachable!("it has no servers"),
            Servers::Single(_, proxy) => match random.u8(0..3) {
                0 => {
                    proxy.cut();
                    "connections closed"
                }
                1 => {
                    proxy.reset();
                    "connections reset"
                }
                _ => {
                    proxy.cut_at_next_reply();
                    "reply lost"
                }
            },
            Servers::Cluster(cluster) => {
                move_a_slot(cluster, random);
                "slot moved, back"
            }
        },
    }
}

fn halt(server: &RedisServer, time: Duration) {
    server.stop();
    sleep(time);
    server.cont();
}

/// It comes back without its keys, at the same port.
fn restart(servers: &mut Servers, node: usize, away: Duration) {
    let server = match servers {
        Servers::Memory => unreachable!("it has no servers"),
        Servers::Single(server, _) => server,
        Servers::Cluster(cluster) => cluster.node_mut(node),
    };
    server.kill();
    sleep(away);
    server.restart();
    if let Servers::Cluster(cluster) = servers {
        cluster.wait_until_ready();
    }
}

/// There and back, so that the nodes end with the slots that they had.
fn move_a_slot(cluster: &RedisCluster, random: &mut fastrand::Rng) {
    cluster.wait_until_ready(); // a node that was halted may count as gone for a moment
    let slot = cluster.slot_of(random.u64(0..10).to_string());
    let from = cluster.primary_of_slot(slot);
    let to = (from + random.usize(1..cluster.nodes().len())) % cluster.nodes().len();
    cluster.move_slot(slot, from, to);
    cluster.move_slot(slot, to, from);
}
