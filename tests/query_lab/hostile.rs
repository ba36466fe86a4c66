//! Hostile queries end in time, and take nothing from others: no memory, no time, nothing of the disk.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{StreamExt as _, stream};
use serde_json::Value;
use tokio::{task::JoinHandle, time::sleep};

use crate::{
    lab::{Halts, Lab, Line, Watch, alone, read},
    long_steps,
    statements::Statements,
};

/// A query that has most of the memory of one, for some time.
const HOG: &str = "WITH big AS MATERIALIZED (SELECT zeroblob(90000) b FROM orders LIMIT 600)
    SELECT (SELECT count(*) FROM big), sleep(700)";
const TOO_MUCH: &str = "WITH big AS MATERIALIZED (SELECT zeroblob(90000) b FROM orders LIMIT 2740),
    sm AS MATERIALIZED (SELECT zeroblob(3000) b FROM orders LIMIT 669)
    SELECT (SELECT count(*) FROM big) + (SELECT count(*) FROM sm), sleep(2500)";

/// Users who ask for little, one after another, for as long as hostile ones are there. Each is answered.
struct Neighbours {
    task: JoinHandle<(usize, Duration)>,
    stop: tokio::sync::oneshot::Sender<()>,
}

impl Neighbours {
    fn of(lab: &Arc<Lab>) -> Self {
        let (lab, (stop, mut stopped)) = (Arc::clone(lab), tokio::sync::oneshot::channel());
        let task = tokio::spawn(async move {
            let queries = [
                ("SELECT count(*) FROM orders WHERE pieces = 3", 4_000),
                ("SELECT count(DISTINCT day) FROM orders", 365),
                ("SELECT length(group_concat(title)) FROM items", 4_391),
            ];
            let (mut number, mut longest) = (0, Duration::ZERO);
            while stopped.try_recv().is_err() {
                let (sql, expected) = queries[number % queries.len()];
                let asked = Instant::now();
                let response = lab.query(&format!("neighbour-{number}"), sql).await;
                let status = response.status().as_u16();
                let answer: Value = response.json().await.unwrap();
                let is_answered = status == 200 && answer["table"]["rows"][0][0] == expected;
                assert!(is_answered || status == 422, "{sql}: {answer}");
                longest = longest.max(asked.elapsed());
                number += 1;
                sleep(Duration::from_millis(10)).await;
            }
            (number, longest)
        });
        Self { task, stop }
    }

    /// The number of their queries, and the longest time that one of them took.
    async fn finish(self) -> (usize, Duration) {
        let _ = self.stop.send(());
        self.task.await.unwrap()
    }
}

/// All neighbours have their answers, unless the machine halted meanwhile or shortly before.
fn assert_answered(lines: &[Line], halts: &Halts) {
    const LONGEST_US: u64 = 50_000;
    for line in lines.iter().filter(|line| line.user.starts_with("neighbour-") && line.outcome != "rows") {
        let halted = halts.within(line.start_us - 1_000_000, line.end_us);
        assert!(halted > LONGEST_US, "halted for {halted} us: {line:?}");
    }
}

/// All that the lab wrote is its database and its log.
fn assert_nothing_written(folder: &Path) {
    let mut names: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    let [log, database] = &*names else { panic!("{names:?}") };
    assert!(log.ends_with("log.jsonl"), "{names:?}");
    let files: Vec<_> = fs::read_dir(database).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(files, ["sample.db"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_steps_and_much_memory() {
    let (_alone, folder) = (alone().await, tempfile::tempdir().unwrap());
    let log = folder.path().join("log.jsonl");
    let lab = Arc::new(Lab::start("memory://", "4s", "60s", &log));
    let (watch, neighbours) = (Watch::start(), Neighbours::of(&lab));
    let sql = long_steps();
    let (endless, too_much, hogs) = tokio::join!(
        lab.refused("mallory", &sql),
        lab.refused("mallet", TOO_MUCH),
        futures_util::future::join_all((0..6).map(|number| {
            let lab = Arc::clone(&lab);
            async move { lab.query(&format!("hog-{number}"), HOG).await.status().as_u16() }
        })),
    );
    let (answered, longest) = neighbours.finish().await;
    // The time given begins some milliseconds before the query runs.
    let is_interrupted = ["interrupted after 39", "interrupted after 4"].iter().any(|text| endless.1.starts_with(text));
    assert!(endless.0 == 422 && is_interrupted, "{endless:?}");
    assert_eq!(too_much, (422, "the query needs more memory than a query has here, 64 MiB".into()));
    assert_eq!(hogs, [200; 6]);
    assert!(answered > 10, "{answered} queries of others");
    let (lines, halts) = (read(&log), watch.finish());
    let past = halts.judge(&lines);
    assert_answered(&lines, &halts);
    println!("past the time given by {past:?} at most; {answered} queries of others, the longest {longest:?}");
    assert_nothing_written(folder.path());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_statements() {
    println!("{}", run(400).await);
}

/// Takes some minutes, and prints a table: `tests/run ten_thousand -- --ignored --nocapture`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes"]
async fn ten_thousand_statements() {
    println!("{}", run(10_000).await);
}

/// Runs so many statements of one seed, six at once, each of a user of its own, while others go on. A table of it.
async fn run(count: usize) -> String {
    let (_alone, folder) = (alone().await, tempfile::tempdir().unwrap());
    let log = folder.path().join("log.jsonl");
    let lab = Arc::new(Lab::start("memory://", "300ms", "60s", &log));
    let (watch, neighbours) = (Watch::start(), Neighbours::of(&lab));
    let statements: Vec<_> = Statements::new(47).take(count).collect();
    let queries = statements.iter().enumerate().map(|(number, (_, sql))| {
        let lab = Arc::clone(&lab);
        async move {
            let response = lab.query(&format!("hostile-{number}"), sql).await;
            let status = response.status().as_u16();
            let answer = response.text().await.unwrap();
            assert!([200, 400, 422].contains(&status), "{status} {answer}: {sql}");
            assert!(answer.len() < 2 << 20, "{} bytes: {sql}", answer.len());
        }
    });
    stream::iter(queries).buffer_unordered(6).collect::<()>().await;
    let (answered, longest) = neighbours.finish().await;

    let lines = read(&log);
    let mut by_kind = BTreeMap::<_, Vec<&Line>>::new();
    for line in &lines {
        if let Some(number) = line.user.strip_prefix("hostile-") {
            by_kind.entry(statements[number.parse::<usize>().unwrap()].0).or_default().push(line);
        }
    }
    let mut table = format!("{:14}{:>7}{:>7}{:>7}{:>8}{:>13}", "", "run", "rows", "fault", "memory", "interrupted");
    let _ = writeln!(table, "{:>10}{:>13}{:>12}", "given", "longest run", "past that");
    let mut total = [0; 4];
    for (kind, lines) in &by_kind {
        let counts = ["rows", "fault", "memory", "interrupted"]
            .map(|outcome| lines.iter().filter(|line| line.outcome == outcome).count());
        let most = |of: fn(&Line) -> u64| lines.iter().map(|line| of(line)).max().unwrap_or_default().div_ceil(1_000);
        let [rows, fault, memory, interrupted] = counts;
        let _ = writeln!(
            table,
            "{kind:14}{:>7}{rows:>7}{fault:>7}{memory:>8}{interrupted:>13}{:>7} ms{:>10} ms{:>9} ms",
            lines.len(),
            most(|line| line.given_us),
            most(Line::took_us),
            most(Line::overrun_us),
        );
        total = std::array::from_fn(|at| total[at] + counts[at]);
    }
    let _ = writeln!(table, "others: {answered} queries, the longest after {longest:?}");
    assert_eq!(total.iter().sum::<usize>(), count, "{table}");
    // They are hostile, and not only wrong.
    assert!(total[0] > count / 20 && total[3] > count / 20, "{table}");
    let halts = watch.finish();
    halts.judge(&lines);
    assert_answered(&lines, &halts);

    // The kernel has counted no more than was charged, beside the starts of processes.
    let charged: Duration = lines.iter().map(|line| Duration::from_millis(line.charged_ms)).sum();
    let starts = Duration::from_millis(50) * u32::try_from(lines.len()).unwrap();
    let used = lab.processor_time();
    let _ = writeln!(table, "processor time of the queries: {used:?}, charged: {charged:?}");
    assert!(used < charged + starts, "{table}");
    assert!(lab.workers().len() <= 2, "{} processes are left", lab.workers().len());
    assert_nothing_written(folder.path());
    table
}
