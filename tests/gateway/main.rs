//! The gateway, run as a user runs it: real requests through it to real upstreams, and its page in a real browser.
//!
//! It has to be built: `cargo test --workspace --all-features` does.

mod addresses;
mod mistakes;
mod page;
mod requests;
mod slow;
mod support;
mod upstreams;

use std::{
    collections::BTreeMap,
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use ratelimit_harness::RedisServer;
use serde_json::Value;

use self::support::{Gateway, client, number};

const BUCKET: &str = "count = 100\nunit = \"Seconds\"\nalgorithm = \"TokenBucket\"\nburst = 200";

/// 10,000 requests over 64 connections, 100 a second by a bucket of 200 on Redis. No more than the
/// bucket and its refill pass. Each answer is 200 or 429 with its fields, and a client that obeys
/// Retry-After is admitted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_requests() {
    let server = RedisServer::start();
    let routes = [("/api", "headers = \"Gateway\"\nlimits = [{ rule = \"api\" }]")];
    let gateway = Arc::new(Gateway::with(&server.url(), &routes, &[("api", BUCKET)]));
    let (sent, admitted) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let begin = Instant::now();
    let connections: Vec<_> = (0..64)
        .map(|_| {
            let (gateway, sent, admitted) = (Arc::clone(&gateway), Arc::clone(&sent), Arc::clone(&admitted));
            tokio::spawn(async move {
                let client = client();
                while sent.fetch_add(1, Ordering::Relaxed) < 10_000 {
                    let response = gateway.get(&client, "/api/items?page=1").await;
                    assert_eq!(number(&response, "x-ratelimit-replenish-rate"), 100);
                    assert_eq!(number(&response, "x-ratelimit-burst-capacity"), 200);
                    assert_eq!(number(&response, "x-ratelimit-requested-tokens"), 1);
                    let remaining = number(&response, "x-ratelimit-remaining");
                    match response.status().as_u16() {
                        200 => {
                            assert!(remaining < 200);
                            assert_eq!(response.text().await.unwrap(), "GET /api/items?page=1\n");
                            admitted.fetch_add(1, Ordering::Relaxed);
                        }
                        429 => {
                            assert_eq!((remaining, number(&response, "retry-after")), (0, 1));
                            let problem: Value = response.json().await.unwrap();
                            assert_eq!(problem["violated-policies"], serde_json::json!(["api"]));
                        }
                        other => panic!("{other}: {}", response.text().await.unwrap()),
                    }
                }
            })
        })
        .collect();
    for connection in connections {
        connection.await.unwrap();
    }
    let most = 200.0 + 100.0 * begin.elapsed().as_secs_f64();
    let admitted = admitted.load(Ordering::Relaxed);
    println!("{admitted} of 10,000 in {:?}", begin.elapsed());
    assert!(
        admitted >= 200 && u32::try_from(admitted).is_ok_and(|admitted| f64::from(admitted) <= most),
        "{admitted}, {most}"
    );
    let client = client();
    for _ in 0..3 {
        let mut response = gateway.get(&client, "/api").await;
        while response.status() == 200 {
            response = gateway.get(&client, "/api").await;
        }
        tokio::time::sleep(Duration::from_secs(number(&response, "retry-after"))).await;
        assert_eq!(gateway.get(&client, "/api").await.status(), 200);
    }
}

/// Headers and a missing key behave as in the old gateway, without its mistakes: a burst below the
/// rate limits.
#[tokio::test]
async fn keys_that_are_missing_and_a_small_burst() {
    let burst = "count = 100\nunit = \"Seconds\"\nalgorithm = \"TokenBucket\"\nburst = 3";
    let limits = |more: &str| {
        format!("headers = \"Gateway\"\nlimits = [{{ rule = \"small\", key = \"header:x-user\", cost = 3{more} }}]")
    };
    let deny = limits("");
    let (skip, other) = (limits(", on_missing_key = \"Skip\""), format!("missing_key_status = 401\n{deny}"));
    let routes = [("/deny", deny.as_str()), ("/deny/other", &other), ("/skip", &skip)];
    let gateway = Gateway::with("memory://", &routes, &[("small", burst)]);
    let client = client();
    assert_eq!(gateway.get(&client, "/deny").await.status(), 403);
    assert_eq!(gateway.get(&client, "/deny/other").await.status(), 401);
    let skipped = gateway.get(&client, "/skip").await;
    assert_eq!(skipped.status(), 200);
    assert!(skipped.headers().keys().all(|name| !name.as_str().contains("ratelimit")));
    assert_eq!(gateway.get(&client, "/elsewhere").await.status(), 404);
    assert_eq!(gateway.get(&client, "/denying").await.status(), 404);

    let with_key = async || client.get(format!("{}/deny", gateway.url)).header("x-user", "alice").send().await.unwrap();
    let first = with_key().await;
    let fields = ["remaining", "replenish-rate", "burst-capacity", "requested-tokens"];
    assert_eq!(fields.map(|field| number(&first, &format!("x-ratelimit-{field}"))), [0, 100, 3, 3]);
    let mut statuses = BTreeMap::new();
    for _ in 0..50 {
        *statuses.entry(with_key().await.status().as_u16()).or_insert(0) += 1;
    }
    assert!(statuses.contains_key(&429), "{statuses:?}");
}

/// A client that makes up keys has no counter of its own for each of them.
#[tokio::test]
async fn a_key_that_is_made_up_counts_with_all_others() {
    let limits = "limits = [{ rule = \"api\", key = \"client\", on_missing_key = \"Shared\" }]";
    let api = "count = 2\nunit = \"Days\"\n[clients]\n\"key-of-alice\" = \"alice\"";
    let gateway = Gateway::with("memory://", &[("/api", limits)], &[("api", api)]);
    let client = client();
    let status = async |key: &str| {
        let request = client.get(format!("{}/api", gateway.url)).header("x-api-key", key);
        request.send().await.unwrap().status().as_u16()
    };
    for (key, expected) in [
        ("made-up-1", 200),
        ("key-of-alice", 200),
        ("made-up-2", 200),
        ("made-up-3", 429),
        ("key-of-alice", 200),
        ("key-of-alice", 429),
    ] {
        assert_eq!(status(key).await, expected, "{key}");
    }
}

/// Under load: a changed rule holds within a second, nothing is lost, and a broken file changes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rule_changed_in_the_file() {
    let routes = [("/api", "limits = [{ rule = \"api\" }]")];
    let gateway = Arc::new(Gateway::with("memory://", &routes, &[("api", "count = 1000000\nunit = \"Days\"")]));
    let stop = Arc::new(AtomicBool::new(false));
    let load: Vec<_> = (0..8)
        .map(|_| {
            let (gateway, stop) = (Arc::clone(&gateway), Arc::clone(&stop));
            tokio::spawn(async move {
                let client = client();
                let mut answers = 0;
                while !stop.load(Ordering::Relaxed) {
                    let status = gateway.get(&client, "/api").await.status();
                    assert!(status == 200 || status == 429, "{status}");
                    answers += 1;
                }
                answers
            })
        })
        .collect();
    let client = client();
    let quota = async || gateway.get(&client, "/api").await.headers()["ratelimit-policy"].to_str().unwrap().to_owned();
    let becomes = async |expected: &str| {
        let deadline = Instant::now() + Duration::from_secs(30);
        while quota().await != expected {
            assert!(Instant::now() < deadline, "{expected} does not hold");
        }
    };
    becomes("\"api\";q=1000000;w=86400").await;
    let begin = Instant::now();
    gateway.write(|text| text.replace("count = 1000000", "count = 5"));
    becomes("\"api\";q=5;w=86400").await;
    println!("a change held after {:?}", begin.elapsed());
    assert_eq!(gateway.get(&client, "/api").await.status(), 429);
    let whole = fs::read_to_string(&gateway.config).unwrap();
    for broken in ["count = 0", "count = ", "cuont = 7"] {
        gateway.write(|_| whole.replace("count = 5", broken));
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        assert_eq!(quota().await, "\"api\";q=5;w=86400", "{broken}");
    }
    // A new route, while it runs.
    gateway.write(|_| format!("{whole}\n[[routes]]\npath = \"/new\"\nupstream = \"sample\"\nlimits = []\n"));
    let deadline = Instant::now() + Duration::from_secs(30);
    while gateway.get(&client, "/new").await.status() != 200 {
        assert!(Instant::now() < deadline);
    }
    stop.store(true, Ordering::Relaxed);
    for connection in load {
        assert!(connection.await.unwrap() > 10);
    }
}

/// All that the dashboard asks for is there once it has happened.
#[tokio::test]
async fn metrics_can_be_scraped_and_the_dashboard_asks_for_them() {
    let routes = [
        ("/api", "limits = [{ rule = \"api\" }]"),
        ("/tried", "limits = [{ rule = \"tried\" }]"),
        ("/later", "limits = [{ rule = \"later\" }]"),
    ];
    let tried = "count = 1\nunit = \"Days\"\nshadow = true";
    let mut server = RedisServer::start();
    let api = "count = 2\nunit = \"Days\"";
    let rules = [("api", api), ("tried", tried), ("later", "count = 5\nunit = \"Days\"")];
    let gateway = Gateway::with(&server.url(), &routes, &rules);
    let client = client();
    for path in ["/api", "/api", "/api", "/api", "/tried", "/tried"] {
        gateway.get(&client, path).await;
    }
    server.kill();
    gateway.get(&client, "/later").await;
    let scraped = gateway.get(&client, "/metrics").await.text().await.unwrap();
    for line in [
        "ratelimit_decisions_total{rule=\"api\",outcome=\"admitted\"} 2",
        "ratelimit_decisions_total{rule=\"api\",outcome=\"refused\"} 2",
        "ratelimit_cached_denials_total{rule=\"api\"} 1",
        "ratelimit_decisions_total{rule=\"later\",outcome=\"admitted\"} 1", // by this process alone
        "ratelimit_decisions_total{rule=\"tried\",outcome=\"shadow_refused\"} 1",
        "ratelimit_near_limit_total{rule=\"tried\"} 1",
        "ratelimit_fallback_decisions_total{policy=\"local\"} 1",
        "ratelimit_degraded 1",
    ] {
        assert!(scraped.lines().any(|other| other == line), "{line} is not in\n{scraped}");
    }
    let dashboard = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/gateway/dashboard.json");
    let dashboard = fs::read_to_string(dashboard).unwrap();
    serde_json::from_str::<Value>(&dashboard).unwrap();
    let names: Vec<_> = dashboard
        .split(|letter: char| letter != '_' && !letter.is_ascii_alphanumeric())
        .filter(|word| word.starts_with("ratelimit_"))
        .collect();
    assert!(names.len() > 5);
    for name in names {
        assert!(scraped.contains(name), "the dashboard asks for {name}, which is not in\n{scraped}");
    }
}
