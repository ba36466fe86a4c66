//! The query lab, run as a user runs it: real SQL over HTTP, in one process and in two, and its page in a real browser.
//!
//! It has to be built: `cargo test --workspace --all-features` does.

use std::{
    collections::BTreeMap,
    env, fs,
    io::{BufRead as _, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use ratelimit_harness::{Browser, RedisServer};
use reqwest::{Client, Response};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use serde::Deserialize;
use serde_json::Value;
use tokio::time::sleep;

const FOR_EVER: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT sum(i) FROM n";

/// A process of the lab. Dropped, it ends.
struct Lab {
    process: Child,
    url: String,
    client: Client,
}

fn program() -> Command {
    let test = env::current_exe().unwrap();
    let program = test.ancestors().nth(2).unwrap().join("examples/query_lab");
    assert!(program.exists(), "{} is not built: run the tests with tests/run", program.display());
    Command::new(program)
}

impl Lab {
    fn start(store: &str, budget: &str, window: &str, log: &Path) -> Self {
        let mut command = program();
        command.args(["--listen", "127.0.0.1:0", "--store", store, "--budget", budget, "--window", window]);
        let mut process = command.arg("--log").arg(log).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("{line}"));
        Self { process, url: url.to_owned(), client: Client::builder().no_proxy().build().unwrap() }
    }

    async fn query(&self, user: &str, sql: &str) -> Response {
        let query = self.client.post(format!("{}/query", self.url)).header("x-user", user).body(sql.to_owned());
        query.send().await.unwrap()
    }

    /// The error of a query, and its status.
    async fn refused(&self, user: &str, sql: &str) -> (u16, String) {
        let response = self.query(user, sql).await;
        let status = response.status().as_u16();
        let problem: Value = response.json().await.unwrap();
        assert_eq!(problem["status"], status, "{problem}");
        (status, problem["detail"].as_str().unwrap().to_owned())
    }

    /// Time that a user has left, and whether a query of the user runs.
    async fn account(&self, user: &str) -> (u64, bool) {
        let account = self.client.get(format!("{}/users/{user}", self.url)).send().await.unwrap();
        let account: Value = account.error_for_status().unwrap().json().await.unwrap();
        (account["left_ms"].as_u64().unwrap(), account["is_running"].as_bool().unwrap())
    }

    async fn account_becomes(&self, user: &str, expected: impl Fn((u64, bool)) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let account = self.account(user).await;
            if expected(account) {
                return;
            }
            assert!(Instant::now() < deadline, "{user} still has {account:?}");
            sleep(Duration::from_millis(20)).await;
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A line of the log. What is looked at here is the log and nothing else: no code of the example, and no limiter.
#[derive(Clone, Debug, Deserialize)]
struct Line {
    user: String,
    process: u32,
    start_us: u64,
    end_us: u64,
    given_us: u64,
    charged_ms: u64,
    outcome: String,
}

impl Line {
    fn took_us(&self) -> u64 {
        self.end_us - self.start_us
    }

    /// How far it ran past the time it was given.
    fn overrun_us(&self) -> u64 {
        self.took_us().saturating_sub(self.given_us)
    }

    fn within(&self, from_us: u64, to_us: u64) -> u64 {
        self.end_us.min(to_us).saturating_sub(self.start_us.max(from_us))
    }
}

fn read(log: &Path) -> Vec<Line> {
    fs::read_to_string(log).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Errors in a log, and the longest time that each user used in any window, in microseconds.
fn check(lines: &[Line], budget_us: u64, window_us: u64) -> (Vec<String>, BTreeMap<&str, u64>) {
    let mut by_user = BTreeMap::<_, Vec<_>>::new();
    for line in lines.iter().filter(|line| line.outcome != "refused") {
        by_user.entry(line.user.as_str()).or_default().push(line);
    }
    let (mut faults, mut most) = (Vec::new(), BTreeMap::new());
    for (user, mut lines) in by_user {
        lines.sort_by_key(|line| line.start_us);
        for pair in lines.windows(2) {
            if pair[1].start_us < pair[0].end_us && pair.iter().all(|line| line.outcome != "place-lost") {
                faults.push(format!("two at once: {:?} and {:?}", pair[0], pair[1]));
            }
        }
        // What a window holds is most where it begins with a query or ends with one.
        for start in lines.iter().flat_map(|line| [line.start_us, line.end_us.saturating_sub(window_us)]) {
            let inside = || lines.iter().filter(|line| line.within(start, start + window_us) > 0);
            let used = inside().map(|line| line.within(start, start + window_us)).sum::<u64>();
            let overrun = inside().map(|line| line.overrun_us()).max().unwrap_or_default();
            if used > budget_us + overrun + 1_000 {
                faults.push(format!("{user} used {used} us of {budget_us} in the window from {start}, where queries overran by {overrun} us"));
            }
            let most = most.entry(user).or_insert(0);
            *most = used.max(*most);
        }
    }
    (faults, most)
}

#[test]
fn the_checker_finds_what_is_wrong() {
    let line = |user: &str, start_us: u64, end_us: u64, given_us: u64| Line {
        user: user.into(),
        process: 1,
        start_us,
        end_us,
        given_us,
        charged_ms: (end_us - start_us).div_ceil(1_000),
        outcome: "rows".into(),
    };
    let faults = |lines: &[Line]| check(lines, 300_000, 2_000_000).0;
    let good = [
        line("a", 5_000_000, 5_200_000, 300_000),
        line("b", 5_100_000, 5_400_000, 300_000),
        line("a", 5_200_000, 5_300_000, 100_000),
        line("a", 7_200_000, 7_400_000, 200_000),
        line("a", 7_400_000, 7_505_000, 100_000),
    ];
    assert_eq!(faults(&good), <[String; 0]>::default());
    let with = |line: Line| faults(&good.iter().cloned().chain([line]).collect::<Vec<_>>());
    let two = with(Line { process: 2, ..line("a", 5_299_999, 5_300_001, 100_000) });
    assert!(two.len() == 1 && two[0].starts_with("two at once"), "{two:?}");
    assert_eq!(with(Line { outcome: "place-lost".into(), ..line("a", 5_299_000, 5_299_999, 0) }).len(), 0);
    assert_eq!(with(Line { outcome: "refused".into(), ..line("a", 5_100_000, 5_100_000, 0) }).len(), 0);
    // In a window that begins in the middle of a query.
    let much = with(line("b", 7_050_000, 7_190_000, 300_000));
    assert!(!much.is_empty() && much.iter().all(|fault| fault.starts_with("b used 350000 ")), "{much:?}");
    // Past the time it was given is an overrun, but only one of them counts.
    assert_eq!(with(line("c", 5_000_000, 5_350_000, 300_000)).len(), 0);
    let twice = [line("c", 5_000_000, 5_250_000, 200_000), line("c", 5_250_000, 5_400_000, 100_000)];
    assert!(!faults(&twice).is_empty());
}

/// Attempts of 50 users, 20 of each and all of them at once, over and over until they are let through; a log of it.
async fn thousand_attempts(store: &str, processes: usize) -> Vec<Line> {
    const USERS: usize = 50;
    const ATTEMPTS: usize = 1_000;
    // A connection for each attempt.
    let most = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log.jsonl");
    let labs: Vec<_> = (0..processes).map(|_| Lab::start(store, "300ms", "2s", &log)).collect();
    let requests: Vec<_> = (0..ATTEMPTS)
        .map(|attempt| {
            let lab = &labs[attempt / USERS % processes];
            let sql = match attempt / USERS {
                0..4 => "SELECT sleep(10000)".to_owned(),
                4..6 if attempt % 10 == 0 => FOR_EVER.to_owned(),
                6 => "SELECT nowhere".to_owned(),
                _ => format!("SELECT sleep({})", fastrand::u32(5..50)),
            };
            let url = format!("{}/query", lab.url);
            let query = lab.client.post(url).header("x-user", format!("user-{}", attempt % USERS)).body(sql);
            tokio::spawn(async move {
                let deadline = Instant::now() + Duration::from_secs(90);
                for requests in 1.. {
                    let status = query.try_clone().unwrap().send().await.unwrap().status().as_u16();
                    // On a machine that stands still for a second, places are lost and answers of the server are late.
                    if status != 429 && status != 503 {
                        return (status, requests);
                    }
                    assert!(Instant::now() < deadline, "it was not let through, the last answer is {status}");
                    sleep(Duration::from_millis(fastrand::u64(300..1_500))).await;
                }
                unreachable!()
            })
        })
        .collect();
    let (mut statuses, mut sent) = (BTreeMap::new(), 0);
    for request in requests {
        let (status, requests) = request.await.unwrap();
        *statuses.entry(status).or_insert(0) += 1;
        sent += requests;
    }
    println!("{statuses:?}, {sent} requests");
    let lines = read(&log);
    assert_eq!((lines.len(), statuses.values().sum::<usize>()), (sent, ATTEMPTS));
    assert!(statuses.keys().all(|status| [200, 400, 422].contains(status)), "{statuses:?}");
    lines
}

fn assert_within_the_budget(lines: &[Line], budget_us: u64, window_us: u64) {
    let (faults, most) = check(lines, budget_us, window_us);
    assert!(faults.is_empty(), "{} faults, the first: {}", faults.len(), faults[0]);
    // The limit was reached, or else nothing was shown.
    assert!(most.values().all(|used| *used > budget_us / 10 * 9), "{most:?}");
    // Most queries end when they have to; on a busy machine some are noticed late.
    let interrupted = lines.iter().filter(|line| line.outcome == "interrupted");
    let mut overruns: Vec<_> = interrupted.map(Line::overrun_us).collect();
    overruns.sort_unstable();
    let [middle, worst] = [overruns.len() / 2, overruns.len() - 1].map(|at| overruns[at]);
    println!("interrupted {} times, {middle} us too late in the middle and {worst} at worst; {most:?}", overruns.len());
    assert!(middle < budget_us / 4, "interrupted {middle} us too late, in the middle");
    assert!(lines.iter().all(|line| line.charged_ms * 1_000 >= line.took_us()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_attempts_in_memory() {
    let lines = thousand_attempts("memory://", 1).await;
    assert_within_the_budget(&lines, 300_000, 2_000_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_attempts_on_redis_in_two_processes() {
    let server = RedisServer::start();
    let lines = thousand_attempts(&server.url(), 2).await;
    assert_within_the_budget(&lines, 300_000, 2_000_000);
    let mut processes: Vec<_> =
        lines.iter().filter(|line| line.outcome != "refused").map(|line| line.process).collect();
    processes.sort_unstable();
    processes.dedup();
    assert_eq!(processes.len(), 2);
}

/// Replies and charges: rows, mistakes, interrupted queries, and queries whose client has left.
#[tokio::test]
async fn answers_and_what_they_cost() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log.jsonl");
    let lab = Lab::start("memory://", "3s", "60s", &log);
    let sales = "SELECT city, count(*) AS orders FROM orders JOIN items ON item = items.id
        JOIN sellers ON seller = sellers.id GROUP BY city ORDER BY city LIMIT 1";
    let answer: Value = lab.query("alice", sales).await.json().await.unwrap();
    assert_eq!(answer["table"]["columns"], serde_json::json!(["city", "orders"]));
    assert_eq!(answer["table"]["rows"][0][0], "Aachen");
    let many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n";
    let answer: Value = lab.query("alice", many).await.json().await.unwrap();
    assert_eq!((&answer["table"]["cut"], answer["table"]["rows"].as_array().unwrap().len()), (&true.into(), 1_000));

    for (sql, expected) in [
        ("SELECT nowhere", "no such column: nowhere, at byte 7 of the query"),
        ("SELEC 1", "near \"SELEC\": syntax error, at byte 0 of the query"),
        ("", "there is no SELECT in it"),
        ("SELECT 1; SELECT 2", "Multiple statements provided"),
        ("DELETE FROM orders", "not authorized"),
        ("ATTACH ':memory:' AS other", "not authorized"),
        ("CREATE TEMP TABLE mine AS SELECT 1", "not authorized"),
        ("PRAGMA query_only = OFF", "not authorized"),
        ("SELECT load_extension('mine')", "not authorized"),
        ("SELECT zeroblob(1000000)", "string or blob too big"),
    ] {
        assert_eq!(lab.refused("alice", sql).await, (400, expected.to_owned()), "{sql}");
    }
    let anonymous = lab.client.post(format!("{}/query", lab.url)).body("SELECT 1").send().await.unwrap();
    assert_eq!(anonymous.status(), 403);

    // Who goes away ends the query.
    let mut gone = Box::pin(lab.query("bob", "SELECT sleep(2000)"));
    tokio::select! {
        _ = &mut gone => panic!("it takes two seconds"),
        () = lab.account_becomes("bob", |(left, is_running)| left == 0 && is_running) => {}
    }
    drop(gone);
    lab.account_becomes("bob", |(left, is_running)| left > 1_000 && !is_running).await;

    let (status, words) = lab.refused("bob", FOR_EVER).await;
    assert!(status == 422 && words.starts_with("interrupted after "), "{status} {words}");
    let refused = lab.query("bob", "SELECT 1").await;
    assert_eq!(refused.status(), 429);
    let after: u64 = refused.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((30..=61).contains(&after), "{after}");

    let lines = read(&log);
    let outcomes: Vec<_> = lines.iter().filter(|line| line.user == "bob").map(|line| line.outcome.as_str()).collect();
    assert_eq!(outcomes, ["cancelled", "interrupted", "refused"]);
    // Charged is what was used, a bit before the log looks and a bit after it included.
    let charged: u64 = lines.iter().filter(|line| line.user == "alice").map(|line| line.charged_ms).sum();
    let (left, _) = lab.account("alice").await;
    assert!((charged..=3 * charged).contains(&(3_000 - left)), "{charged}, {left}");
    assert_eq!(lab.account("bob").await, (0, false));
    assert_eq!(lab.account("carol").await, (3_000, false));
}

/// A process that is killed has its user's place for as long as the lease, and all that was left is charged, once.
#[tokio::test]
async fn a_process_that_is_killed() {
    let server = RedisServer::start();
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log.jsonl");
    let [one, other] = [(); 2].map(|()| Lab::start(&server.url(), "9s", "10s", &log));
    let lost = tokio::spawn(
        one.client.post(format!("{}/query", one.url)).header("x-user", "alice").body("SELECT sleep(60000)").send(),
    );
    other.account_becomes("alice", |(left, is_running)| left == 0 && is_running).await;
    one.signal(Signal::KILL);
    assert!(lost.await.unwrap().is_err());
    other.account_becomes("alice", |(left, is_running)| left == 0 && !is_running).await;
    let (status, words) = other.refused("alice", "SELECT 1").await;
    assert_eq!(status, 429, "{words}");
    // It was charged until its time would have been over, and all of it leaves the window at once.
    other.account_becomes("alice", |(left, _)| left > 0).await;
    assert_eq!(other.account("alice").await, (9_000, false));
    assert_eq!(other.query("alice", "SELECT sleep(100)").await.status(), 200);
}

/// A process that stood still for longer than the lease learns that its place is lost, and ends its query.
#[tokio::test]
async fn a_process_that_stands_still() {
    let server = RedisServer::start();
    let folder = tempfile::tempdir().unwrap();
    let logs = ["one", "other"].map(|name| folder.path().join(name));
    let [one, other] = [&logs[0], &logs[1]].map(|log| Lab::start(&server.url(), "60s", "60s", log));
    let lost = tokio::spawn(
        one.client.post(format!("{}/query", one.url)).header("x-user", "alice").body("SELECT sleep(60000)").send(),
    );
    other.account_becomes("alice", |(left, is_running)| left == 0 && is_running).await;
    one.signal(Signal::STOP);
    other.account_becomes("alice", |(_, is_running)| !is_running).await;
    one.signal(Signal::CONT);
    let answer = lost.await.unwrap().unwrap();
    assert_eq!(answer.status(), 503);
    let lines = read(&logs[0]);
    assert_eq!(lines.iter().map(|line| line.outcome.as_str()).collect::<Vec<_>>(), ["place-lost"]);
    assert!(lines[0].took_us() < 50_000_000, "it went on to its own end: {:?}", lines[0]);
    // Others go on.
    assert_eq!(one.query("bob", "SELECT 1").await.status(), 200);
}

/// The time that users of the load used is in the table, the picture and the log.
#[test]
fn the_load() {
    let folder = tempfile::tempdir().unwrap();
    let [log, plot] = ["log.jsonl", "plot.svg"].map(|name| folder.path().join(name));
    let mut command = program();
    command.args(["--listen", "127.0.0.1:0", "--budget", "300ms", "--window", "2s", "--load", "5s"]);
    command.args(["--fair", "1", "--greedy", "2", "--log"]).arg(&log).arg("--plot").arg(&plot);
    let output = command.output().unwrap();
    let [table, errors] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(output.status.success(), "{errors}");
    let lines = read(&log);
    let (faults, most) = check(&lines, 300_000, 2_000_000);
    assert!(faults.is_empty(), "{} faults, the first: {}", faults.len(), faults[0]);
    assert!(most["greedy 1"] > 270_000 && most["greedy 2"] > 270_000, "{most:?}");
    for (user, used) in most {
        let row = table.lines().find(|line| line.starts_with(user)).unwrap_or_else(|| panic!("{table}"));
        assert!(row.contains(&format!(" {} ms", used.div_ceil(1_000))), "{used}: {row}");
    }
    let picture = fs::read_to_string(plot).unwrap();
    assert!(["fair 1", "greedy 1", "greedy 2"].iter().all(|user| picture.contains(user)));
}

#[test]
fn help_and_mistakes() {
    let help = program().arg("--help").output().unwrap();
    assert!(String::from_utf8(help.stdout).unwrap().contains("X-User"));
    for (argument, value, expected) in [
        ("--budget", "0s", "a time from 1ms to 1h is needed"),
        ("--window", "7s", "possible values: 2s, 5s, 10s, 60s"),
        ("--log", "/nowhere/log", "/nowhere/log: No such file"),
    ] {
        let output = program().args(["--listen", "127.0.0.1:0", argument, value]).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && errors.contains(expected), "{errors}");
    }
}

/// With real clicks: rows are shown, a query is interrupted and one is stopped, and the plot shows what was used.
#[test]
fn the_page() {
    let folder = tempfile::tempdir().unwrap();
    let lab = Lab::start("memory://", "1s", "60s", &folder.path().join("log.jsonl"));
    let mut page = Browser::open(&lab.url);
    let said = |words: &str| format!("document.querySelector('.said').textContent.includes({words:?})");
    page.wait_for("document.querySelectorAll('article').length === 3");
    page.click(".run");
    page.wait_for(&said("alice: 5 rows after"));
    assert_eq!(page.evaluate("document.querySelector('td').textContent"), "Cork");
    page.wait_for("document.querySelector('[data-user=alice] .used b').textContent !== '0 ms'");

    page.write("textarea", "SELECT sleep(60000)");
    page.write("[name=user]", "bob");
    page.click(".run");
    page.wait_for("!document.querySelector('[data-user=bob] .badge').hidden");
    page.click(".stop");
    page.wait_for(&said("bob: stopped"));
    page.wait_for("document.querySelector('[data-user=bob] .badge').hidden");

    page.write("textarea", FOR_EVER);
    page.write("[name=user]", "dave");
    page.click(".run");
    page.wait_for(&said("dave: interrupted after"));
    page.wait_for("document.querySelector('[data-user=dave] .left b').textContent === '0 ms'");
    page.click(".run");
    page.wait_for(&said("dave: `query-time` is limited to"));
    // Above what bob has used it is empty, and below the budget of dave it is not.
    let mut drawn = |user: &str| {
        let pixel = format!(
            "(() => {{ const canvas = document.querySelector('[data-user={user}] canvas'), at = canvas.height / 3;
            return canvas.getContext('2d').getImageData(canvas.width - 2, at, 1, 1).data[3]; }})()"
        );
        page.evaluate(&pixel).as_u64().unwrap() > 0
    };
    let deadline = Instant::now() + Duration::from_secs(30);
    while !drawn("dave") {
        assert!(Instant::now() < deadline);
        thread::sleep(Duration::from_millis(50));
    }
    assert!(!drawn("carol"));
}
