//! Sentinels: a limiter follows the primary that they name.

use std::cell::RefCell;
use std::time::Duration;

use ratelimit_harness::{Mode, Proxy, RedisSentinel, RedisSentinelBuilder, RedisServer};
use ratelimit_runtime::conformance::{self, ALGORITHMS, Subject, store_of};
use ratelimit_runtime::{Cause, Health, Limiter, ManualClock, OnStoreError, Store};

use crate::support::eventually;
use crate::support::servers::{ask, keeps_the_secret, recovers, works};
use crate::support::{FIXED, LOG, PATIENCE, fresh_key, hourly, is_admitted};

const SECRET: &str = "swordfish";

async fn limiter_at(url: &str) -> Limiter {
    Limiter::builder(url).deadline(PATIENCE).on_store_error(OnStoreError::Deny).build().await.unwrap()
}

/// Lives by a clock of the test.
struct Timed {
    limiter: Limiter,
    clock: ManualClock,
    sentinel: RedisSentinel,
}

impl Timed {
    async fn start(sentinel: RedisSentinelBuilder) -> Self {
        // No server is to seem away because the time was moved.
        let sentinel = sentinel.controlled_clock().down_after(Duration::from_secs(3600)).start();
        let clock = ManualClock::new();
        let builder = Limiter::builder(&sentinel.url()).clock(clock.clone()).deadline(PATIENCE);
        #[cfg(feature = "rustls")]
        let builder = match sentinel.tls() {
            Some(files) => builder.ca_certificate(std::fs::read(&files.ca_pem).unwrap()),
            None => builder,
        };
        let limiter = builder.on_store_error(OnStoreError::Deny).build().await.unwrap();
        Self { limiter, clock, sentinel }
    }
}

impl Subject for Timed {
    fn store(&self) -> &dyn Store {
        store_of(&self.limiter)
    }

    fn now(&self) -> Duration {
        Duration::from_micros(self.sentinel.node(0).clock().now_micros())
    }

    fn advance(&self, by: Duration) {
        self.sentinel.node(0).clock().advance(by);
        self.clock.advance(by);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_primary_behind_sentinels_conforms() {
    conformance::check(&Timed::start(RedisSentinel::builder()).await, ALGORITHMS).await;
}

#[cfg(feature = "rustls")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_primary_behind_sentinels_over_tls_conforms() {
    conformance::check(&Timed::start(RedisSentinel::builder().tls()).await, ALGORITHMS).await;
}

#[tokio::test]
async fn a_primary_is_reached_by_each_form_of_a_sentinel_url() {
    let sentinel = RedisSentinel::builder().password(SECRET).sentinel_password("another").start();
    for end in ["", "/0", "?protocol=resp2"] {
        let builder = Limiter::builder(&(sentinel.url() + end)).sentinel_credentials("", "another");
        let builder = builder.deadline(PATIENCE).on_store_error(OnStoreError::Deny);
        let limiter = builder.build().await.unwrap();
        works(&limiter).await;
        keeps_the_secret(&limiter);
    }
    let builder = Limiter::builder(&(sentinel.url() + "/3")).sentinel_credentials("", "another");
    let limiter = builder.deadline(PATIENCE).on_store_error(OnStoreError::Deny).build().await.unwrap();
    limiter.acquire(&hourly(3, FIXED), 1).await.unwrap();
    let keyspace: String = ask(sentinel.node(sentinel.primary()), "INFO keyspace");
    assert!(keyspace.contains("db3:keys=1"), "{keyspace}");

    // And not like this.
    let error = Limiter::connect(&sentinel.url()).await.unwrap_err().to_string();
    assert!(error.contains("sentinel_credentials"), "{error}");
    let wrong = sentinel.url().replace(SECRET, "other");
    let error = Limiter::builder(&wrong).sentinel_credentials("", "another").build().await.unwrap_err().to_string();
    assert!(error.contains("password"), "{error}");
    let port = sentinel.node(0).port().to_string();
    assert!(error.contains(&port), "{error}");
}

#[tokio::test]
async fn mistakes_in_a_sentinel_url_are_errors_that_name_them() {
    let sentinel = RedisSentinel::start();
    let unknown = sentinel.url().replace("/shop", "/market");
    let error = Limiter::connect(&unknown).await.unwrap_err().to_string();
    assert!(error.contains("`market`") && error.contains("shop"), "{error}");

    let server = RedisServer::start();
    let error =
        Limiter::connect(&format!("redis+sentinel://127.0.0.1:{}/shop", server.port())).await.unwrap_err().to_string();
    assert!(error.contains("not a sentinel"), "{error}");

    let nowhere = "redis+sentinel://127.0.0.1:1,127.0.0.1:2/shop";
    let error = Limiter::connect(nowhere).await.unwrap_err().to_string();
    assert!(error.contains("127.0.0.1:1") && error.contains("127.0.0.1:2"), "{error}");
    // The sentinels will not see for an hour what we see.
    let sentinel = RedisSentinel::builder().down_after(Duration::from_secs(3600)).start();
    ask::<()>(sentinel.node(0), &format!("REPLICAOF 127.0.0.1 {}", sentinel.node(1).port()));
    let error = Limiter::connect(&sentinel.url()).await.unwrap_err().to_string();
    assert!(error.contains("says it is a slave"), "{error}");
    for url in ["redis+sentinel://127.0.0.1:1", "redis+sentinel://127.0.0.1:1/", "redis+sentinel://127.0.0.1:1/a b"] {
        let error = Limiter::connect(url).await.unwrap_err().to_string();
        assert!(error.contains("which service"), "{url}: {error}");
    }
}

#[cfg(feature = "rustls")]
#[tokio::test]
async fn a_primary_behind_sentinels_is_reached_over_tls() {
    let sentinel = RedisSentinel::builder().tls().password(SECRET).start();
    let files = sentinel.tls().unwrap();
    let builder = Limiter::builder(&sentinel.url()).ca_certificate(std::fs::read(&files.ca_pem).unwrap());
    let limiter = builder.deadline(PATIENCE).on_store_error(OnStoreError::Deny).build().await.unwrap();
    works(&limiter).await;
    sentinel.failover();
    recovers(&limiter).await;
    let error = Limiter::connect(&sentinel.url()).await.unwrap_err().to_string();
    assert!(error.contains("certificate"), "{error}");
}

/// Planned, killed, halted: the next primary counts, under a deadline as most have one.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_failover_of_sentinels_is_followed() {
    let mut sentinel = RedisSentinel::start();
    let builder = Limiter::builder(&sentinel.url()).deadline(Duration::from_millis(300));
    let limiter = builder.on_store_error(OnStoreError::Deny).build().await.unwrap();
    let (rule, key) = (hourly(1_000_000, LOG), fresh_key());
    let counts = async || limiter.acquire(&rule, key).await.is_ok();
    eventually("the first primary counts", counts).await;
    for round in 0..3 {
        let before = sentinel.primary();
        match round {
            0 => drop(tokio::task::block_in_place(|| sentinel.failover())),
            1 => sentinel.node_mut(before).kill(),
            _ => {
                // One of the sentinels hangs as well.
                sentinel.sentinels()[2].stop();
                sentinel.node(before).stop();
            }
        }
        tokio::task::block_in_place(|| sentinel.wait_until_primary_is_not(before));
        let now = sentinel.primary();
        eventually("the next primary counts", || async {
            counts().await && ask::<i64>(sentinel.node(now), "DBSIZE") > 0 && calls(sentinel.node(now)) > 0
        })
        .await;
        match round {
            1 => sentinel.node_mut(before).restart(),
            2 => {
                sentinel.sentinels()[2].cont();
                sentinel.node(before).cont();
            }
            _ => {}
        }
        tokio::task::block_in_place(|| sentinel.wait_until_ready());
        recovers(&limiter).await;
    }
}

/// Number of scripts called by their digest, as only decisions are.
fn calls(server: &RedisServer) -> u64 {
    let asked = || {
        redis::Client::open(server.url())?
            .get_connection()
            .and_then(|mut connection| redis::cmd("INFO").arg("commandstats").query::<String>(&mut connection))
    };
    // Sentinels end every connection to a server whose role they change, this one too.
    let stats = std::iter::repeat_with(asked).take(100).find_map(Result::ok);
    calls_of(&stats.expect("the server answers"))
}

fn calls_of(stats: &str) -> u64 {
    let scripts = stats.lines().filter(|line| line.starts_with("cmdstat_evalsha:"));
    scripts.filter_map(|line| line.split("calls=").nth(1)?.split(',').next()?.parse::<u64>().ok()).sum()
}

/// It has another primary under the same name, and is the only one.
fn mislead(sentinel: &RedisServer, to: u16) {
    ask::<()>(sentinel, "SENTINEL REMOVE shop");
    ask::<()>(sentinel, &format!("SENTINEL MONITOR shop 127.0.0.1 {to} 3"));
}

/// Each step takes longer than half a second. The deadline allows for that, and no other limit is
/// in the way.
#[tokio::test]
async fn slow_sentinels_and_a_slow_primary_are_reached_within_the_deadline() {
    let sentinel = RedisSentinel::builder().down_after(Duration::from_secs(3600)).start();
    let primary = Proxy::start(sentinel.node(0).port());
    let proxies = [0, 1, 2].map(|index| {
        let each = &sentinel.sentinels()[index];
        mislead(each, primary.port());
        Proxy::start(each.port())
    });
    let addresses = proxies.each_ref().map(|proxy| format!("127.0.0.1:{}", proxy.port()));
    let url = format!("redis+sentinel://{}/shop", addresses.join(","));
    for proxy in proxies.iter().chain([&primary]) {
        proxy.set(Mode::Delay(Duration::from_millis(275)));
    }
    let _built = limiter_at(&url).await;
    let lazy = Limiter::builder(&url).lazy().deadline(PATIENCE).on_store_error(OnStoreError::Deny);
    lazy.build().await.unwrap().acquire(&hourly(3, FIXED), fresh_key()).await.unwrap();
}

/// Two of three sentinels are far away, and none may be missing: half a second after the first
/// answer there is none of theirs.
#[tokio::test]
async fn a_fast_sentinel_does_not_cut_short_the_slow_ones() {
    let sentinel = RedisSentinel::start();
    let proxies = sentinel.sentinels().iter().map(|each| Proxy::start(each.port())).collect::<Vec<_>>();
    for proxy in &proxies[1..] {
        proxy.set(Mode::Delay(Duration::from_millis(200)));
    }
    let addresses: Vec<_> = proxies.iter().map(|proxy| format!("127.0.0.1:{}", proxy.port())).collect();
    let url = format!("redis+sentinel://{}/{}", addresses.join(","), RedisSentinel::SERVICE);
    works(&limiter_at(&url).await).await;
    let lazy = Limiter::builder(&url).lazy().on_store_error(OnStoreError::Deny).build().await.unwrap();
    recovers(&lazy).await;
}

/// Number of connections a server has accepted, this one included.
fn connections(server: &RedisServer) -> u64 {
    let stats: String = ask(server, "INFO stats");
    let count = stats.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
    count.unwrap().trim().parse().unwrap()
}

/// The majority counts, and one sentinel that differs causes no reconnects.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_stale_sentinel_changes_nothing() {
    let (sentinel, other) = (RedisSentinel::start(), RedisServer::start());
    mislead(&sentinel.sentinels()[2], other.port());
    let limiter = limiter_at(&sentinel.url()).await;
    let primary = sentinel.node(0);
    works(&limiter).await;
    // Until the limiter has seen it, and has looked for a few times.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let before = connections(primary);
    tokio::time::sleep(Duration::from_secs(6)).await;
    let opened = connections(primary) - before;
    assert!(opened <= 4, "{opened} connections in six seconds");
    works(&limiter).await;
}

/// A sentinel that does not know the service is a mistake, but not the reason while the others are away.
#[tokio::test]
async fn a_sentinel_outage_is_not_reported_as_a_mistake_of_one_sentinel() {
    let mut sentinel = RedisSentinel::start();
    ask::<()>(&sentinel.sentinels()[2], "SENTINEL REMOVE shop");
    let builder = Limiter::builder(&sentinel.url()).lazy().deadline(PATIENCE).on_store_error(OnStoreError::Deny);
    let limiter = builder.build().await.unwrap();
    for index in [0, 1] {
        sentinel.sentinel_mut(index).kill();
    }
    let refused = limiter.acquire(&hourly(3, FIXED), fresh_key()).await.unwrap_err();
    assert_eq!(refused.cause(), Cause::Unavailable, "{refused}");
    assert!(refused.to_string().contains("does not know this service"), "{refused}");
}

/// New sentinels that lack their configuration do not know the service. The limiter knew it before, so that is an
/// outage.
#[tokio::test]
async fn a_service_that_all_sentinels_forget_is_an_outage() {
    let sentinel = RedisSentinel::start();
    let builder = Limiter::builder(&sentinel.url()).deadline(PATIENCE).on_store_error(OnStoreError::Local);
    let limiter = builder.build().await.unwrap();
    let (rule, key) = (hourly(1_000_000, FIXED), fresh_key());
    limiter.acquire(&rule, key).await.unwrap();
    let primary = sentinel.node(sentinel.primary());
    sentinel.sentinels().iter().for_each(|sentinel| ask::<()>(sentinel, "SENTINEL REMOVE shop"));
    primary.command(&[b"CLIENT", b"KILL", b"TYPE", b"normal"]);
    eventually("it is known", || async {
        limiter.acquire(&rule, key).await.expect("its policy is `Local`");
        matches!(limiter.health(), Health::Degraded { reason, .. } if reason.contains("does not know this service"))
    })
    .await;
}

/// A replica took the place of its primary unnoticed: its reply says so.
#[tokio::test]
async fn a_primary_that_became_a_replica_is_no_longer_used() {
    let sentinel = RedisSentinel::start();
    let limiter = limiter_at(&sentinel.url()).await;
    let (rule, key) = (hourly(100, LOG), fresh_key());
    assert!(is_admitted(limiter.acquire(&rule, key).await));
    eventually("the replicas have it too", || async {
        sentinel.nodes().iter().all(|node| ask::<i64>(node, "DBSIZE") == 1)
    })
    .await;
    let before = sentinel.primary();
    let after = sentinel.failover();
    assert_ne!(before, after);
    eventually("the next primary counts", || async {
        match limiter.acquire(&rule, key).await {
            Ok(_) => true,
            Err(refused) => {
                assert_eq!(refused.cause(), Cause::Unavailable, "{refused}");
                false
            }
        }
    })
    .await;
    // What the first one counted still counts.
    assert_eq!(limiter.peek(&rule, key).await.unwrap().remaining(), 98);
}

/// Cuts the primary off from its sentinels and replicas. Open connections stay, so the test can
/// still send it commands.
fn cut_off(primary: &RedisServer) -> impl Fn(&str) -> String + use<> {
    let url = format!("redis://127.0.0.1:{}", primary.port());
    let connection = RefCell::new(redis::Client::open(url).unwrap().get_connection().unwrap());
    let tell = move |command: &str| {
        let mut words = redis::Cmd::new();
        command.split(' ').for_each(|word| _ = words.arg(word));
        let reply: redis::Value = words.query(&mut *connection.borrow_mut()).unwrap();
        redis::from_redis_value::<String>(reply).unwrap()
    };
    tell(&format!("CONFIG SET requirepass {SECRET}"));
    // A sentinel that connected just before may give its connection a name only now.
    for _ in 0..10 {
        for id in ids(&tell("CLIENT LIST"), "name=sentinel-") {
            tell(&format!("CLIENT KILL ID {id}"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    tell
}

/// The clients whose lines hold these words.
fn ids(clients: &str, words: &str) -> Vec<String> {
    let lines = clients.lines().filter(|client| client.contains(words));
    lines.map(|client| client.split("id=").nth(1).unwrap().split(' ').next().unwrap().to_owned()).collect()
}

/// It answers as ever, but the sentinels can't reach it and have another.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_primary_cut_off_from_its_sentinels_is_no_longer_used() {
    let sentinel = RedisSentinel::start();
    let limiter = limiter_at(&sentinel.url()).await;
    let (rule, key) = (hourly(1_000_000, LOG), fresh_key());
    assert!(is_admitted(limiter.acquire(&rule, key).await));
    let _before = cut_off(sentinel.node(sentinel.primary()));
    tokio::task::block_in_place(|| sentinel.wait_until_primary_is_not(0));
    let after = sentinel.node(sentinel.primary());
    eventually("the next primary counts", || async { limiter.acquire(&rule, key).await.is_ok() && calls(after) > 0 })
        .await;
}

/// One of several connections to it breaks, and is opened to the next primary: the others are left too.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn all_connections_lead_to_one_primary() {
    let sentinel = RedisSentinel::start();
    let builder = Limiter::builder(&sentinel.url()).deadline(PATIENCE).on_store_error(OnStoreError::Deny);
    let limiter = builder.connections(2).build().await.unwrap();
    let (rule, key) = (hourly(1_000_000, LOG), fresh_key());
    assert!(is_admitted(limiter.acquire(&rule, key).await));
    let before = cut_off(sentinel.node(0));
    // The newer connection breaks again and again, so that one of them finds the next primary.
    eventually("the next primary counts", || async {
        let clients = before("CLIENT LIST");
        if let [_, newer, ..] = &*ids(&clients, "cmd=eval") {
            before(&format!("CLIENT KILL ID {newer}"));
        }
        let _ = limiter.acquire(&rule, key).await;
        sentinel.nodes()[1..].iter().any(|node| calls(node) > 0)
    })
    .await;
    let counted = calls_of(&before("INFO commandstats"));
    for _ in 0..20 {
        limiter.acquire(&rule, key).await.unwrap();
    }
    assert_eq!(calls_of(&before("INFO commandstats")), counted, "the first primary counts on");
}

/// One sentinel of three, on the wrong side of a partition, knows no better than that the old primary is one.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_minority_of_sentinels_does_not_choose_the_primary() {
    let (mut sentinel, other) = (RedisSentinel::start(), RedisServer::start());
    let limiter = limiter_at(&sentinel.url()).await;
    works(&limiter).await;
    mislead(&sentinel.sentinels()[2], other.port());
    for index in [0, 1] {
        tokio::task::block_in_place(|| sentinel.sentinel_mut(index).kill());
    }
    let error = Limiter::connect(&sentinel.url()).await.unwrap_err().to_string();
    assert!(error.contains("1 of 3 sentinels"), "{error}");
    // Nor for a limiter that has to connect again.
    ask::<()>(sentinel.node(0), "CLIENT KILL TYPE normal");
    tokio::time::sleep(Duration::from_secs(2)).await;
    let refused = limiter.acquire(&hourly(3, FIXED), fresh_key()).await.unwrap_err();
    assert_eq!(refused.cause(), Cause::Unavailable, "{refused}");
    assert_eq!(calls(&other), 0);
    tokio::task::block_in_place(|| sentinel.sentinel_mut(0).restart());
    tokio::task::block_in_place(|| sentinel.sentinel_mut(1).restart());
    recovers(&limiter).await;
    assert_eq!(calls(&other), 0);
}

/// The current primary and another server have the same number of votes.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_tie_of_the_sentinels_keeps_the_primary() {
    let (sentinel, other) = (RedisSentinel::start(), RedisServer::start());
    let sentinels = sentinel.sentinels();
    let (one, two) = (sentinels[0].port(), sentinels[1].port());
    for addresses in [[one, two], [two, one]] {
        let [first, second] = addresses;
        let url = format!("redis+sentinel://127.0.0.1:{first},127.0.0.1:{second}/{}", RedisSentinel::SERVICE);
        let limiter = limiter_at(&url).await;
        works(&limiter).await;
        let before = calls(&other);
        mislead(&sentinels[1], other.port());
        for _ in 0..4 {
            ask::<()>(sentinel.node(0), "CLIENT KILL TYPE normal");
            recovers(&limiter).await;
            tokio::time::sleep(Duration::from_millis(700)).await;
        }
        assert_eq!(calls(&other), before);
        // A limiter without a primary does not choose one on a tie.
        let error = Limiter::connect(&url).await.unwrap_err().to_string();
        assert!(error.contains("1 of 2 sentinels"), "{error}");
        mislead(&sentinels[1], sentinel.node(0).port());
    }
}
