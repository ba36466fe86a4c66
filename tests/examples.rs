//! The example programs, run as a user runs them.
//!
//! They have to be built: `cargo test --workspace --all-features` does.

use std::{
    env, fs,
    fs::File,
    io::{BufRead as _, BufReader, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use ratelimit_harness::RedisServer;
use ratelimit_runtime::{Algorithm, ManualClock, conformance};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;

use self::own_store::OwnStore;

#[path = "../examples/excel_import/own_store.rs"]
mod own_store;

/// How often each import runs. `RATELIMIT_RUNS` in the environment sets another number.
const RUNS: usize = 5;
/// They wait for most of their time. More of them at once would wait for a processor too, and the time a call does that
/// is time that it travels.
const AT_ONCE: usize = 5;
static MACHINE: Mutex<()> = Mutex::new(());
const ROWS: u64 = 500;

fn example(name: &str) -> Command {
    let test = env::current_exe().unwrap();
    let path: PathBuf = test.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(path.exists(), "{} is not built: run the tests with tests/run", path.display());
    Command::new(path)
}

fn text(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A file of rules is checked before a program reads it, with what the environment says of it.
#[test]
fn check_rules_tells_the_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rules.toml");
    let check_with = |text: &str, environment: &str, prefixes: &[&str]| {
        fs::write(&path, text).unwrap();
        let mut command = example("check_rules");
        let output = command.arg(&path).args(prefixes).env("RATELIMIT_RULES", environment).output().unwrap();
        let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        (output.status.code().unwrap(), out, err)
    };
    let check = |text: &str, environment: &str| check_with(text, environment, &[]);
    let text = "[rules.half]\ncount = 1\n[rules.item]\ncount = 100\nunit = \"Minutes\"\nshadow = true";
    let item = "item: 100 per 60s by FixedWindow { align: false }, only tried out\n";
    let half = "half: changes the rule of the code with this prefix, if there is one\n";
    assert_eq!(check(text, ""), (0, format!("{half}{item}"), String::new()));
    let changed = format!("{half}{}", item.replace("100", "50"));
    assert_eq!(check(text, "item.count = 50"), (0, changed, String::new()));
    let file = path.display();
    let wrong = format!("{file}: line 2: `count` is 0; it must be at least 1\n");
    assert_eq!(check("[rules.item]\ncount = 0", ""), (1, String::new(), wrong));
    let (code, _, wrong) = check(text, "item.cuont = 50");
    assert_eq!(code, 1);
    assert!(wrong.starts_with("the variable RATELIMIT_RULES: line 1: unknown field `cuont`"), "{wrong}");
    assert_eq!(check_with(text, "", &["item", "half", "other"]).0, 0);
    let unknown = "no rule of the program has the prefix `half`; those of its rules are `item`\n";
    assert_eq!(check_with(text, "", &["item"]), (1, String::new(), unknown.into()));
}

fn start_import(arguments: &[&str]) -> Child {
    start_import_with(arguments, Stdio::piped())
}

fn start_import_with(arguments: &[&str], stderr: impl Into<Stdio>) -> Child {
    example("excel_import").arg("--json").args(arguments).stdout(Stdio::piped()).stderr(stderr).spawn().unwrap()
}

fn report(import: Child) -> Value {
    let output = import.wait_with_output().unwrap();
    let report = serde_json::from_slice(&output.stdout);
    report.unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)))
}

fn alone() -> MutexGuard<'static, ()> {
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs them some at a time, and gives what each returned.
fn each_run<T: Send>(run: impl Fn() -> T + Sync) -> Vec<T> {
    let _alone = alone();
    let times = env::var("RATELIMIT_RUNS").map_or(RUNS, |times| times.parse().expect("RATELIMIT_RUNS is a number"));
    let mut results = Vec::new();
    for first in (0..times).step_by(AT_ONCE) {
        thread::scope(|scope| {
            let run = &run;
            let runs: Vec<_> = (first..times.min(first + AT_ONCE))
                .map(|_| {
                    thread::sleep(Duration::from_millis(200)); // not all of them start cold at the same moment
                    scope.spawn(run)
                })
                .collect();
            results.extend(runs.into_iter().map(|run| run.join().unwrap()));
        });
    }
    results
}

/// Every row registered, and nothing refused by an API that counts for itself.
fn assert_complete(report: &Value, rows: u64) {
    let counts =
        |report: &Value| ["rows", "registered", "failed", "refused"].map(|name| report[name].as_u64().unwrap());
    assert_eq!(counts(report), [rows, rows, 0, 0], "{report}");
    assert_eq!(report["api"]["refused"], 0, "{report}");
    let most = report["api"]["most_in_window"].as_u64().unwrap();
    assert_eq!(most, report["api"]["count"].as_u64().unwrap(), "the limit was not even reached: {report}");
}

/// The program is also an API that several of it can use.
struct Api(Child, String);

impl Api {
    fn start() -> Self {
        let mut api = example("excel_import").args(["--serve-api", "0"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut url = String::new();
        BufReader::new(api.stdout.take().unwrap()).read_line(&mut url).unwrap();
        Self(api, url.trim().to_owned())
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn quickstart_says_what_is_admitted_refused_and_when_to_retry() {
    let output = text(&mut example("quickstart"));
    for expected in [
        "order: 3 a second for each seller",
        "time  key    result    remaining\n",
        "alice  admitted          2  ##\n",
        "alice  admitted          0\n",
        "alice  refused           0  by order, retry in ",
        "bob    refused           0  by payout-all, retry in ",
    ] {
        assert!(output.contains(expected), "{output}");
    }
    // A millisecond decides whether the mail before the last one still counts.
    let last = ["eve    admitted          1  #\n", "eve    admitted          0\n"];
    assert!(last.iter().any(|line| output.contains(line)), "{output}");
    // The time stands first: mails wait for half a second each two.
    let time = |key| {
        let line = output.lines().find(|line| line.contains(key)).unwrap();
        line.split_whitespace().next().unwrap().parse::<f64>().unwrap()
    };
    assert!(time("  ben ") < 0.5 && time("  dan ") >= 0.5 && time("  eve ") >= 1.0, "{output}");
    assert!(output.lines().all(|line| line.len() <= 80 && line.trim_end() == line), "{output}");
    assert!(text(example("quickstart").arg("--help")).contains("redis://127.0.0.1:6379"));
}

#[test]
fn quickstart_runs_on_redis_and_says_when_there_is_none() {
    let mut server = RedisServer::start();
    let lines = |output: String| output.lines().filter(|line| line.contains("  refused  ")).count();
    assert_eq!(lines(text(example("quickstart").arg(server.url()))), 3);
    server.kill();
    let output = example("quickstart").arg(server.url()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains(&server.port().to_string()) && error.contains("Connection refused"), "{error}");
}

/// A line of the table of `algorithms`: a client's calls by one algorithm.
struct Line {
    admitted: u64,
    most: u64,
}

/// Draws, and checks that the table has what the algorithms promise.
fn draw_algorithms(arguments: &[&str]) -> (Vec<Line>, Vec<u8>, String) {
    let directory = tempfile::tempdir().unwrap();
    let drawn = directory.path().join("algorithms.svg");
    let table = text(example("algorithms").arg(&drawn).args(arguments));
    let mut lines = Vec::new();
    for line in table.lines() {
        let mut numbers: Vec<u64> = line.split_whitespace().rev().map_while(|word| word.parse().ok()).collect();
        numbers.reverse();
        let [offered, admitted, refused, in_second @ .., most, promised] = &*numbers else { continue };
        assert!(*admitted > 0 && most <= promised, "{line}\n{table}");
        assert_eq!((admitted + refused, in_second.iter().sum()), (*offered, *admitted), "{line}\n{table}");
        lines.push(Line { admitted: *admitted, most: *most });
    }
    assert_eq!(lines.len(), 5 * 6, "{table}");
    (lines, fs::read(&drawn).unwrap(), table)
}

/// The table shows what the algorithms promise, and the picture in `docs` is the one that the
/// example draws.
#[test]
fn algorithms_keep_their_promises_and_draw_the_picture_in_docs() {
    let (lines, drawn, table) = draw_algorithms(&[]);
    let most_by_line: Vec<_> = lines.iter().map(|line| line.most).collect();
    let by_traffic: Vec<_> = most_by_line.chunks(6).collect();
    let [_steady, _burst, border, _greedy, modest] = *by_traffic else { panic!("{table}") };
    assert_eq!(border, [20, 10, 19, 14, 14, 10], "{table}");
    assert_eq!(modest, [4; 6], "{table}");

    let shown = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/algorithms.svg");
    assert!(
        drawn == fs::read(shown).unwrap(),
        "docs/algorithms.svg is not what is drawn now; if it should be: cargo run --example algorithms -- docs/algorithms.svg"
    );
}

/// In real time. The burst at the border needs calls that come in time, to 10 ms, so it is not compared.
#[test]
fn algorithms_on_redis_decide_as_in_memory() {
    let _alone = alone();
    let server = RedisServer::start();
    let (on_redis, drawn, table) = draw_algorithms(&["--redis", &server.url()]);
    let (in_memory, _, _) = draw_algorithms(&[]);
    assert!(drawn.starts_with(b"<svg"));
    for (number, (real, simulated)) in on_redis.iter().zip(&in_memory).enumerate() {
        let is_burst_at_border = (12..18).contains(&number);
        let close = real.admitted.abs_diff(simulated.admitted) <= 3;
        assert!(close || is_burst_at_border, "line {number}, {} in memory\n{table}", simulated.admitted);
    }
}

#[test]
fn excel_import_in_memory() {
    for report in each_run(|| report(start_import(&[]))) {
        assert_complete(&report, ROWS);
    }
}

#[test]
fn excel_import_on_redis() {
    let reports = each_run(|| {
        let server = RedisServer::start();
        report(start_import(&["--store", &server.url()]))
    });
    for report in reports {
        assert_complete(&report, ROWS);
    }
}

#[test]
fn excel_import_as_two_processes_on_one_redis() {
    let reports = each_run(|| {
        let (server, api) = (RedisServer::start(), Api::start());
        start_two_imports(&server, &api).map(report)
    });
    reports.iter().for_each(assert_both_complete);
}

/// Each registers every other row.
fn start_two_imports(server: &RedisServer, api: &Api) -> [Child; 2] {
    let url = server.url();
    ["1/2", "2/2"].map(|part| start_import(&["--store", &url, "--api", &api.1, "--part", part]))
}

fn assert_both_complete([one, other]: &[Value; 2]) {
    let rows = [one, other].map(|report| report["rows"].as_u64().unwrap());
    assert_eq!(rows.iter().sum::<u64>(), ROWS);
    assert!(rows.iter().all(|rows| *rows > 0));
    let last = if one["api"]["accepted"].as_u64() > other["api"]["accepted"].as_u64() { one } else { other };
    assert_eq!(last["api"]["accepted"], ROWS, "{last}");
    assert_eq!(last["api"]["refused"], 0, "{last}");
    for (report, rows) in [one, other].into_iter().zip(rows) {
        assert_eq!([&report["registered"], &report["failed"]], [rows, 0], "{report}");
    }
}

#[test]
fn excel_import_on_its_own_store() {
    let _alone = alone();
    assert_complete(&report(start_import(&["--store", "own"])), ROWS);
}

#[tokio::test(flavor = "multi_thread")]
async fn own_store_of_excel_import_conforms() {
    let clock = ManualClock::new();
    let store = OwnStore::new(clock.clone());
    conformance::check(&(store, clock), &[Algorithm::SlidingLog]).await;
}

/// Nobody configured a limit, and it changes three times. A call that is sent before the first refusal is known may be
/// refused, one for each of the 16 consumers, and no later one.
#[test]
fn excel_import_with_limits_that_the_api_announces() {
    const CONSUMERS: u64 = 16;
    let reports = each_run(|| {
        let server = RedisServer::start();
        report(start_import(&["--outgoing", "--window", "1s", "--store", &server.url()]))
    });
    for report in reports {
        assert_eq!([&report["registered"], &report["failed"]], [ROWS, 0], "{report}");
        let limits = report["limits"].as_array().unwrap();
        let number = |figures: &Value, name: &str| figures[name].as_u64().unwrap();
        assert_eq!(limits.len(), 4, "{report}");
        assert_eq!(limits.iter().map(|figures| number(figures, "accepted")).sum::<u64>(), ROWS, "{report}");
        for figures in limits {
            // A call that was sent before anything told of the change may be refused, too: see
            // `client::windows::a_call_that_begins_before_the_change_is_known_may_be_refused`.
            assert!(
                number(figures, "refused") <= number(figures, "in_flight") + number(figures, "unaware"),
                "{report}"
            );
            assert!(number(figures, "refused") <= CONSUMERS, "each of them once: {report}");
            assert_eq!(number(figures, "late"), 0, "{report}");
        }
    }
}

/// Redis halts. Or it is killed, and restarted with all that it counted, within the API's window.
#[test]
fn excel_import_waits_while_redis_is_away() {
    let _alone = alone();
    thread::scope(|scope| {
        scope.spawn(|| {
            let server = RedisServer::start();
            let terminal = Terminal::open();
            let import = start_import_with(&["--store", &server.url()], terminal.program_side());
            let shown = terminal.read_until_closed();
            once_all_sellers_count(&server);
            server.stop();
            thread::sleep(Duration::from_secs(3));
            server.cont();
            assert_complete(&report(import), ROWS);
            let shown = shown.join().unwrap();
            for waits in ["waits for Redis: ", "waits for seller 1001, "] {
                assert!(shown.contains(waits), "{shown}");
            }
        });
        scope.spawn(|| {
            let server = RedisServer::builder().arg("--appendonly", "yes").arg("--appendfsync", "always");
            let (mut server, api) = (server.start(), Api::start());
            let imports = start_two_imports(&server, &api);
            once_all_sellers_count(&server);
            server.kill();
            thread::sleep(Duration::from_secs(1));
            server.restart();
            assert_both_complete(&imports.map(report));
        });
    });
}

/// Returns in the midst of the import.
fn once_all_sellers_count(server: &RedisServer) {
    let started = Instant::now();
    while server.command(&[b"DBSIZE"]) != redis::Value::Int(25) {
        assert!(started.elapsed() < Duration::from_secs(30), "the import does not begin");
        thread::sleep(Duration::from_millis(10));
    }
}

/// A terminal in which a program shows its progress.
struct Terminal(File);

impl Terminal {
    fn open() -> Self {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        Self(terminal.into())
    }

    fn program_side(&self) -> File {
        let name = ptsname(&self.0, Vec::new()).unwrap();
        let not_ours = i32::try_from(OpenptFlags::NOCTTY.bits()).unwrap();
        File::options().read(true).write(true).custom_flags(not_ours).open(name.to_str().unwrap()).unwrap()
    }

    /// All that was shown, once no program has it open.
    fn read_until_closed(mut self) -> thread::JoinHandle<String> {
        thread::spawn(move || {
            let mut shown = Vec::new();
            let _ = self.0.read_to_end(&mut shown); // on Linux, the end is an error
            String::from_utf8_lossy(&shown).into_owned()
        })
    }
}

/// As text, too.
#[test]
fn excel_import_names_all_failed_rows() {
    let output = example("excel_import").arg("--bypass").output().unwrap();
    let report = String::from_utf8(output.stdout).unwrap();
    let failed: usize = report.split("failed      ").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
    let rows = report.split("of this seller; rows ").nth(1).unwrap().lines().next().unwrap();
    assert!(failed > 5 && rows.split(", ").all(|row| row.parse::<u32>().is_ok()), "{report}");
    assert_eq!(rows.split(", ").count(), failed, "{report}");
}

/// The API does refuse, and the program says how often: without the allowance, and without the annotation.
#[test]
fn excel_import_without_the_allowance_or_the_annotation() {
    let refusals: Vec<_> = each_run(|| report(start_import(&["--allowance", "0"]))["refused"].as_u64().unwrap());
    assert!(refusals.iter().all(|refused| *refused > 0), "{refusals:?}");

    let report = report(start_import(&["--bypass"]));
    let refused = report["refused"].as_u64().unwrap();
    assert!(refused > 0 && report["registered"] == ROWS - refused && report["api"]["refused"] == refused, "{report}");
    assert_eq!(report["failures"].as_array().unwrap().len() as u64, refused);
}

#[test]
fn excel_import_says_what_is_wrong_with_a_file() {
    let output = example("excel_import").arg("no-such-file.xlsx").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("no-such-file.xlsx"));
    assert!(text(example("excel_import").arg("--help")).contains("--allowance"));
}
