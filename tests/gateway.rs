//! The gateway, run as a user runs it: real requests through it to a real upstream, and its page in a real browser.
//!
//! It has to be built: `cargo test --workspace --all-features` does.

use std::{
    collections::BTreeMap,
    env, fs,
    io::{BufRead as _, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use ratelimit_harness::{Browser, RedisServer};
use reqwest::{Client, Response};
use serde_json::Value;
use tempfile::TempDir;

const BUCKET: &str = "count = 100\nunit = \"Seconds\"\nalgorithm = \"TokenBucket\"\nburst = 200";

/// A gateway with a configuration of its own. Dropped, it ends.
struct Gateway {
    process: Child,
    url: String,
    config: PathBuf,
    _folder: TempDir,
}

impl Gateway {
    fn start(store: &str, config: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gateway.toml");
        fs::write(&path, config).unwrap();
        let test = env::current_exe().unwrap();
        let program = test.ancestors().nth(2).unwrap().join("examples/gateway");
        assert!(program.exists(), "{} is not built: run the tests with tests/run", program.display());
        let mut command = Command::new(program);
        // So long that a machine which is busy elsewhere does not make it count alone.
        command
            .args(["--listen", "127.0.0.1:0", "--store", store, "--deadline-ms", "10000"])
            .arg("--config")
            .arg(&path);
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.split([' ', ',']).find(|word| word.starts_with("http://")).unwrap_or_else(|| panic!("{line}"));
        Self { process, url: url.to_owned(), config: path, _folder: folder }
    }

    /// One route for each path, all to the sample upstream.
    fn with(store: &str, routes: &[(&str, &str)], rules: &[(&str, &str)]) -> Self {
        let routes =
            routes.iter().map(|(path, more)| format!("[[routes]]\npath = \"{path}\"\nupstream = \"sample\"\n{more}\n"));
        let rules = rules.iter().map(|(prefix, settings)| format!("[rules.{prefix}]\n{settings}\n"));
        Self::start(store, &routes.chain(rules).collect::<String>())
    }

    fn write(&self, change: impl Fn(&str) -> String) {
        fs::write(&self.config, change(&fs::read_to_string(&self.config).unwrap())).unwrap();
    }

    async fn get(&self, client: &Client, path: &str) -> Response {
        client.get(format!("{}{path}", self.url)).send().await.unwrap()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// One connection at a time, and none shared with another client.
fn client() -> Client {
    Client::builder().no_proxy().pool_max_idle_per_host(1).build().unwrap()
}

fn number(response: &Response, field: &str) -> u64 {
    response.headers()[field].to_str().unwrap().parse().unwrap()
}

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

/// With real clicks: a burst is fired, what came of it is counted and drawn, and a rule that is changed there holds.
#[test]
fn the_page() {
    let routes =
        [("/api", "limits = [{ rule = \"api\" }]"), ("/other", "limits = [{ rule = \"all\" }, { rule = \"api\" }]")];
    let rules = [("api", "count = 30\nunit = \"Days\" # of the sun"), ("all", "count = 5000\nunit = \"Days\"")];
    let gateway = Gateway::with("memory://", &routes, &rules);
    let mut page = Browser::open(&format!("{}/limits", gateway.url));
    page.wait_for("document.querySelectorAll('article').length === 2");
    assert_eq!(page.evaluate("document.querySelector('#rule-all .path').value"), "/other");
    let drawn = |page: &mut Browser, color: &str| {
        page.evaluate(&format!(
            "(() => {{ const canvas = document.querySelector('#rule-api canvas');
            const {{ data }} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height - 6);
            const probe = document.createElement('canvas').getContext('2d');
            probe.fillStyle = getComputedStyle(document.documentElement).getPropertyValue('--{color}'); probe.fillRect(0, 0, 1, 1);
            const [red, green, blue] = probe.getImageData(0, 0, 1, 1).data;
            let count = 0;
            for (let at = 0; at < data.length; at += 4)
                if (data[at + 3] === 255 && data[at] === red && data[at + 1] === green && data[at + 2] === blue) count++;
            return count; }})()"
        ))
        .as_u64()
        .unwrap()
    };
    assert_eq!((drawn(&mut page, "admitted"), drawn(&mut page, "refused")), (0, 0));
    page.click("#rule-api [data-burst='100']");
    page.wait_for("document.querySelector('#rule-api .said').textContent === '30 × 200, 70 × 429'");
    page.wait_for("document.querySelector('#rule-api .admitted b').textContent === '30'");
    page.wait_for("document.querySelector('#rule-api .refused b').textContent === '70'");
    std::thread::sleep(Duration::from_secs(1));
    assert!(drawn(&mut page, "admitted") > 5 && drawn(&mut page, "refused") > 5);

    // What is there in the file stays, and what is changed holds without anything started anew.
    page.write("#rule-api [name=count]", "35");
    page.click("#rule-api .save");
    page.wait_for("document.querySelector('#rule-api .said').textContent === 'saved'");
    let text = fs::read_to_string(&gateway.config).unwrap();
    assert!(text.contains("count = 35\n") && text.contains("# of the sun"), "{text}");
    page.wait_for("document.querySelector('#rule-api [name=count]').value === '35'");
    std::thread::sleep(Duration::from_millis(1_500));
    page.click("#rule-api [data-burst='10']");
    page.wait_for("document.querySelector('#rule-api .said').textContent === '5 × 200, 5 × 429'");

    // An impossible rule is an error and is not written.
    page.write("#rule-api [name=count]", "99999999999");
    page.click("#rule-api .save");
    page.wait_for("document.querySelector('#rule-api .said.wrong')?.textContent.includes('its count is 99999999999')");
    assert_eq!(fs::read_to_string(&gateway.config).unwrap(), text);
}
