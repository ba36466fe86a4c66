//! Users spend no more time than their budget in any window, however many attempts they make at once.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use ratelimit_harness::RedisServer;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::time::sleep;

use crate::{
    FOR_EVER,
    lab::{Lab, Line, Watch, alone, read},
};

/// Errors in a log, and the longest time that each user used in any window, in microseconds.
pub(crate) fn check(lines: &[Line], budget_us: u64, window_us: u64) -> (Vec<String>, BTreeMap<&str, u64>) {
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
    let (_alone, watch) = (alone().await, Watch::start());
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
    let lines = read(&log);
    println!("{statuses:?}, {sent} requests, past the time given by {:?} at most", watch.finish().judge(&lines));
    assert_eq!((lines.len(), statuses.values().sum::<usize>()), (sent, ATTEMPTS));
    assert!(statuses.keys().all(|status| [200, 400, 422].contains(status)), "{statuses:?}");
    lines
}

fn assert_within_the_budget(lines: &[Line], budget_us: u64, window_us: u64) {
    let (faults, most) = check(lines, budget_us, window_us);
    assert!(faults.is_empty(), "{} faults, the first: {}", faults.len(), faults[0]);
    // The limit was reached, or else nothing was shown. Charged is also the time around a query.
    let charged_by = |last: &Line| {
        let counts = |line: &&Line| line.end_us <= last.end_us && line.end_us + window_us > last.end_us;
        let its = lines.iter().filter(|line| line.user == last.user);
        its.filter(counts).map(|line| line.charged_ms * 1_000).sum::<u64>()
    };
    for user in most.keys() {
        let charged_us = lines.iter().filter(|line| line.user == **user).map(charged_by).max().unwrap_or_default();
        assert!(charged_us > budget_us / 10 * 9, "{user} was charged {charged_us} us at most, and used: {most:?}");
    }
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
