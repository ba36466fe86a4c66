use super::*;
use ratelimit_harness::{Mode, RedisCluster};

/// Number of keys on that node.
fn size(cluster: &RedisCluster, index: usize) -> i64 {
    ask(cluster.node(index), "DBSIZE")
}

fn redirected(server: &RedisServer, command: &str) -> String {
    let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
    let refused = catch_unwind(AssertUnwindSafe(|| server.command(&words))).unwrap_err();
    *refused.downcast::<String>().unwrap()
}

#[test]
fn a_cluster_serves_and_survives_the_loss_of_a_primary() {
    let mut cluster = RedisCluster::start();
    let pids: Vec<u32> = cluster.nodes().iter().map(RedisServer::pid).collect();
    let addresses: Vec<String> = cluster.nodes().iter().map(|node| format!("127.0.0.1:{}", node.port())).collect();
    assert_eq!(pids.len(), 6);
    assert_eq!(cluster.primaries(), [0, 1, 2]);
    assert_eq!([0, 1, 2].map(|primary| cluster.replicas_of(primary)), [[3], [4], [5]]);
    assert!(cluster.url().starts_with("redis+cluster://") && cluster.url().ends_with(&addresses.join(",")));

    // The slot is an example of the cluster specification.
    assert_eq!(cluster.slot_of("123456789"), 12739);
    assert_eq!(cluster.primary_of("123456789"), 2);
    ask::<()>(cluster.node(2), "SET 123456789 pear");
    assert!(redirected(cluster.node(0), "GET 123456789").contains("Moved: 12739"));
    eventually("the replica has it", || size(&cluster, 5) == 1);

    cluster.failover(5);
    assert_eq!(cluster.primary_of("123456789"), 5);
    assert_eq!(cluster.replicas_of(5), [2]);
    assert_eq!(ask::<String>(cluster.node(5), "GET 123456789"), "pear");

    cluster.node_mut(5).kill();
    cluster.wait_until_ready();
    assert_eq!(cluster.primaries(), [0, 1, 2]);
    assert_eq!(cluster.primary_of("123456789"), 2);
    assert_eq!(ask::<String>(cluster.node(2), "GET 123456789"), "pear");

    cluster.node_mut(5).restart();
    cluster.wait_until_ready();
    assert_eq!(cluster.replicas_of(2), [5]);

    // One that was away learns that it was replaced.
    cluster.node(2).stop();
    assert_eq!(cluster.primary_of("123456789"), 5);
    cluster.node(2).cont();
    eventually("the old primary follows the new one", || cluster.replicas_of(5) == [2]);

    let pids: Vec<u32> = cluster.nodes().iter().map(RedisServer::pid).collect();
    drop(cluster);
    assert!(!pids.into_iter().any(exists));
}

#[test]
fn a_cluster_moves_a_slot_with_its_keys() {
    let cluster = RedisCluster::builder().replicas(0).password("p@ss word").start();
    let slot = cluster.slot_of("{fruit}");
    let from = cluster.primary_of_slot(slot);
    let to = (from + 1) % 3;
    for number in 0..25 {
        ask::<()>(cluster.node(from), &format!("SET {{fruit}}{number} {number} PX 100000"));
    }

    cluster.begin_move(slot, from, to);
    assert_eq!(cluster.primary_of_slot(slot), from);
    assert_eq!(cluster.move_keys(slot, from, to, 7), 7);
    assert_eq!([from, to].map(|index| size(&cluster, index)), [18, 7]);
    assert!(redirected(cluster.node(from), "GET {fruit}no").contains("Ask: "));

    cluster.finish_move(slot, from, to);
    assert_eq!(cluster.primary_of_slot(slot), to);
    assert_eq!([from, to].map(|index| size(&cluster, index)), [0, 25]);
    assert!(ask::<i64>(cluster.node(to), "PTTL {fruit}24") > 0);
    assert!(redirected(cluster.node(from), "GET {fruit}1").contains(&format!("Moved: {slot}")));

    cluster.move_slot(slot, to, from);
    assert_eq!([from, to].map(|index| size(&cluster, index)), [25, 0]);
}

/// Clients see the addresses of the proxies. Traffic between the nodes does not pass the proxies.
#[test]
fn a_cluster_can_stand_behind_proxies() {
    let cluster = RedisCluster::builder().proxied().start();
    for index in 0..6 {
        assert_eq!(cluster.port(index), cluster.proxy(index).port());
        assert!(cluster.url().contains(&format!(":{}", cluster.port(index))));
        assert_eq!(cluster.proxy(index).accepted(), 0);
        let told: String = ask(cluster.node(index), "CLUSTER NODES");
        for other in 0..6 {
            assert!(told.contains(&format!(" 127.0.0.1:{}@", cluster.port(other))), "{told}");
        }
        cluster.proxy(index).set(Mode::Stall);
        cluster.proxy(index).cut();
    }
    let (slot, from) = (cluster.slot_of("fruit"), cluster.primary_of("fruit"));
    ask::<()>(cluster.node(from), "SET fruit pear");
    eventually("the replica has it", || size(&cluster, from + 3) == 1);
    cluster.failover(from + 3);
    cluster.move_slot(slot, from + 3, (from + 1) % 3);
    assert_eq!(size(&cluster, (from + 1) % 3), 1);
}

#[cfg(feature = "rustls")]
#[test]
fn a_cluster_can_speak_tls() {
    let cluster = RedisCluster::builder().tls().proxied().password("pear").start();
    assert!(cluster.url().starts_with("rediss+cluster://"));
    for index in 0..6 {
        let url = format!("rediss://:pear@127.0.0.1:{}/", cluster.port(index));
        assert_eq!(super::tls::over_rustls::ping(&url, cluster.tls(), None).unwrap(), "PONG");
        assert_eq!(setting(cluster.node(index), "port"), "0");
    }
    let (slot, from) = (cluster.slot_of("fruit"), cluster.primary_of("fruit"));
    ask::<()>(cluster.node(from), "SET fruit pear");
    cluster.move_slot(slot, from, (from + 1) % 3);
    assert_eq!(size(&cluster, (from + 1) % 3), 1);
}

#[test]
fn a_cluster_ends_with_a_panic() {
    let mut pids = Vec::new();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let cluster = RedisCluster::builder().replicas(0).start();
        pids.extend(cluster.nodes().iter().map(RedisServer::pid));
        cluster.failover(0);
    }));
    let message = *panicked.unwrap_err().downcast::<String>().unwrap();
    assert_eq!(message, "node 0 is no replica, it can't take over");
    assert_eq!(pids.len(), 3);
    assert!(!pids.into_iter().any(exists));
}
