//! Replies, charges and the log, also of labs that are killed or stand still, and the load.

use std::{
    fs,
    time::{Duration, Instant},
};

use ratelimit_harness::RedisServer;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::time::sleep;

use crate::{
    FOR_EVER,
    budget::check,
    lab::{Lab, Process, alone, program, read},
    long_steps,
};

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
        ("SELECT sleep('long')", "sleep(ms) needs a whole number from 0 to 4294967295"),
        ("SELECT sleep(-1)", "sleep(ms) needs a whole number from 0 to 4294967295"),
    ] {
        assert_eq!(lab.refused("alice", sql).await, (400, expected.to_owned()), "{sql}");
    }
    let anonymous = lab.client.post(format!("{}/query", lab.url)).body("SELECT 1").send().await.unwrap();
    assert_eq!(anonymous.status(), 403);

    // Numbers that a page would round are text, and so is what JSON does not have.
    let answer: Value = lab.query("alice", "SELECT 1 << 53, -1 << 62, 9e999, x'00ff'").await.json().await.unwrap();
    let row = serde_json::json!([9_007_199_254_740_992_u64, "-4611686018427387904", "inf", "00ff"]);
    assert_eq!(answer["table"]["rows"][0], row);

    // Who goes away ends the query, in whatever step it is.
    let sql = long_steps();
    let mut gone = Box::pin(lab.query("bob", &sql));
    tokio::select! {
        _ = &mut gone => panic!("it takes seconds"),
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

/// A result is cut at 1,000 rows or 1 MiB of JSON, of which a byte may need six.
#[tokio::test]
async fn large_results() {
    let folder = tempfile::tempdir().unwrap();
    let lab = Lab::start("memory://", "20s", "60s", &folder.path().join("log.jsonl"));
    let control = "SELECT replace(hex(zeroblob(30000)), '0', char(1)) FROM orders";
    let text = lab.query("alice", control).await.text().await.unwrap();
    assert!((500_000..1 << 20).contains(&text.len()), "{}", text.len());
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&answer["table"]["cut"], answer["table"]["rows"].as_array().unwrap().len()), (&true.into(), 2));
    // A name of 30 kB for each of some columns.
    let names = format!("WITH n AS (SELECT 1 AS \"{}\") SELECT n.*, n.*, n.* FROM n", "n".repeat(30_000));
    let (status, words) = lab.refused("alice", &names).await;
    assert_eq!((status, words.as_str()), (400, "the names of the columns have more than 64 KiB"));
}

/// Trouble of the lab is not the user's mistake.
#[tokio::test]
async fn a_database_that_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let lab = Lab::start("memory://", "20s", "60s", &folder.path().join("log.jsonl"));
    assert_eq!(lab.query("alice", "SELECT 1").await.status(), 200);
    let mut files = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let database = files.find(|path| path.is_dir()).unwrap();
    fs::write(database.join("sample.db"), "no database".repeat(1_000)).unwrap();
    let (status, words) = lab.refused("alice", "SELECT count(*) FROM orders").await;
    assert!(status == 500 && words.ends_with("file is not a database"), "{status} {words}");
    fs::remove_dir_all(database).unwrap();
    // Processes that wait for a query have opened it.
    for _ in 0..4 {
        lab.query("alice", "SELECT 1").await;
    }
    let (status, words) = lab.refused("alice", "SELECT 1").await;
    assert!(status == 500 && words.contains("unable to open database file"), "{status} {words}");
}

/// A worker that is killed while it waits is replaced, and one that is killed in a query is the lab's trouble.
#[tokio::test]
async fn workers_that_are_killed() {
    let folder = tempfile::tempdir().unwrap();
    let lab = Lab::start("memory://", "20s", "60s", &folder.path().join("log.jsonl"));
    assert_eq!(lab.query("alice", "SELECT 1").await.status(), 200);
    let kill_all = || {
        let workers = lab.workers();
        for worker in &workers {
            kill_process(Pid::from_raw(worker.id.cast_signed()).unwrap(), Signal::KILL).unwrap();
        }
        while !workers.iter().all(Process::has_ended) {}
    };
    kill_all();
    assert_eq!(lab.query("alice", "SELECT 1").await.status(), 200);
    let killed = async {
        lab.account_becomes("bob", |(_, is_running)| is_running).await;
        sleep(Duration::from_millis(100)).await;
        kill_all();
    };
    let (answer, ()) = tokio::join!(lab.refused("bob", "SELECT sleep(10000)"), killed);
    assert_eq!(answer, (500, "the lab could not run the query: its process ended without a reply".into()));
}

/// A query does not outlive the lab.
#[tokio::test]
async fn a_lab_that_is_killed_leaves_no_query() {
    let folder = tempfile::tempdir().unwrap();
    let lab = Lab::start("memory://", "20s", "60s", &folder.path().join("log.jsonl"));
    let sql = long_steps();
    let workers = async {
        lab.account_becomes("alice", |(_, is_running)| is_running).await;
        sleep(Duration::from_millis(300)).await;
        let workers = lab.workers();
        lab.signal(Signal::KILL);
        workers
    };
    let lost = lab.client.post(format!("{}/query", lab.url)).header("x-user", "alice").body(sql).send();
    let (lost, workers) = tokio::join!(lost, workers);
    assert!(lost.is_err() && workers.len() >= 2, "{lost:?}, {} workers", workers.len());
    let deadline = Instant::now() + Duration::from_secs(5);
    while !workers.iter().all(Process::has_ended) {
        assert!(Instant::now() < deadline, "its query goes on");
        sleep(Duration::from_millis(10)).await;
    }
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
#[tokio::test]
async fn the_load() {
    let _alone = alone().await;
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

/// A load whose picture can't be written does not begin.
#[test]
fn a_plot_that_can_not_be_written() {
    let started = Instant::now();
    let output = program().args(["--listen", "127.0.0.1:0", "--load", "1h", "--plot", "/nowhere/plot.svg"]).output();
    let output = output.unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && errors.contains("/nowhere/plot.svg: No such file"), "{errors}");
    assert!(started.elapsed() < Duration::from_secs(60));
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
