use super::*;
use ratelimit_harness::RedisSentinel;

#[test]
fn sentinels_replace_a_primary_on_command_and_after_its_loss() {
    let mut servers = RedisSentinel::start();
    let sentinels: Vec<String> = servers.sentinels().iter().map(|each| format!("127.0.0.1:{}", each.port())).collect();
    assert_eq!((servers.nodes().len(), sentinels.len()), (3, 3));
    assert!(servers.url().starts_with("redis+sentinel://"));
    assert!(servers.url().ends_with(&format!("{}/shop", sentinels.join(","))));
    assert_eq!(servers.primary(), 0);
    ask::<()>(servers.node(0), "SET fruit pear");
    eventually("the replicas have it", || servers.nodes().iter().all(|node| ask::<i64>(node, "DBSIZE") == 1));

    let second = servers.failover();
    assert_ne!(second, 0);
    assert_eq!(ask::<String>(servers.node(second), "GET fruit"), "pear");
    assert!(ask::<String>(servers.node(0), "INFO replication").contains("role:slave"));

    servers.sentinel_mut(0).kill();
    servers.node_mut(second).kill();
    servers.wait_until_primary_is_not(second);
    servers.wait_until_ready();
    let third = servers.primary();
    assert_ne!(third, second);
    assert_eq!(ask::<String>(servers.node(third), "GET fruit"), "pear");

    servers.sentinel_mut(0).restart();
    servers.node_mut(second).restart();
    servers.wait_until_ready();
    assert_eq!(servers.primary(), third);
    assert_eq!(ask::<String>(servers.node(second), "GET fruit"), "pear");

    let all: Vec<u32> = servers.nodes().iter().chain(servers.sentinels()).map(RedisServer::pid).collect();
    drop(servers);
    assert!(!all.into_iter().any(exists));
}

/// As on a busy machine: a sentinel that finds two seconds missing does nothing for a time ("tilt").
#[test]
fn sentinels_replace_a_primary_soon_after_they_were_halted() {
    let mut sentinel = RedisSentinel::start();
    sentinel.sentinels().iter().for_each(RedisServer::stop);
    sleep(Duration::from_millis(2_500));
    sentinel.sentinels().iter().for_each(RedisServer::cont);
    sentinel.node_mut(0).kill();
    sentinel.wait_until_primary_is_not(0);
}

#[cfg(feature = "rustls")]
#[test]
fn sentinels_can_speak_tls_and_require_passwords() {
    let servers = RedisSentinel::builder().tls().password("p@ss word").sentinel_password("plum").start();
    assert!(servers.url().starts_with("rediss+sentinel://"));
    let ping = |url: String| super::tls::over_rustls::ping(&url, servers.tls(), None);
    for node in servers.nodes() {
        assert_eq!(ping(format!("rediss://:p%40ss%20word@127.0.0.1:{}/", node.port())).unwrap(), "PONG");
    }
    for sentinel in servers.sentinels() {
        assert_eq!(ping(format!("rediss://:plum@127.0.0.1:{}/", sentinel.port())).unwrap(), "PONG");
        let error = ping(format!("rediss://127.0.0.1:{}/", sentinel.port())).unwrap_err();
        assert_eq!(error.code(), Some("NOAUTH"));
    }
    assert_ne!(servers.failover(), 0);
}

#[test]
fn sentinels_end_with_a_panic() {
    let mut pids = Vec::new();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let servers = RedisSentinel::start();
        pids.extend(servers.nodes().iter().chain(servers.sentinels()).map(RedisServer::pid));
        panic!("as a failing test does");
    }));
    assert!(panicked.is_err());
    assert_eq!(pids.len(), 6);
    assert!(!pids.into_iter().any(exists));
}
