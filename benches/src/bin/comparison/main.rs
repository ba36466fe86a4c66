//! This crate beside other limiters and the script of Redis' documentation, under the same traffic.
//!
//! `cargo run --release -p ratelimit-benches --bin comparison > docs/comparison.md`. It takes some six minutes.
//!
//! Each limiter has servers of its own and its default settings. Rows that another limiter wins
//! come first.

mod peers;
mod rows;
mod traffic;

use std::{env, fmt::Write as _, fs, process::Command};

use peers::Peer;
use ratelimit_harness::RedisServer;
use rows::{Cell, ROWS, Row};

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["calls", peer, url, shape, count, rate, seconds] => {
            rows::runtime().block_on(traffic::make_calls(peer, url, shape, [count, rate, seconds]));
        }
        ["hold", url] => rows::runtime().block_on(rows::hold(url)),
        words => compare(words),
    }
}

/// All rows, or those whose name contains one of the words.
fn compare(words: &[&str]) {
    let mut lines = Vec::new();
    for row in ROWS.iter().filter(|row| words.is_empty() || words.iter().any(|word| row.name.contains(word))) {
        eprintln!("{}", row.name);
        let cells = (row.measure)();
        lines.push((row, is_lost(&cells), cells));
    }
    print!("{}", page(&lines));
}

/// True if the best of the others is better than the best of ours.
fn is_lost(cells: &[Cell]) -> bool {
    let best = |ours: bool| {
        let of_these = Peer::ALL.iter().zip(cells).filter(|(peer, _)| peer.is_ours() == ours);
        of_these.filter_map(|(_, cell)| cell.score).min_by(f64::total_cmp)
    };
    matches!((best(true), best(false)), (Some(ours), Some(others)) if others < ours)
}

fn page(lines: &[(&Row, bool, Vec<Cell>)]) -> String {
    let titles: Vec<String> = Peer::ALL.iter().map(|peer| peer.title()).collect();
    let mut page = format!(
        "# Comparison\n\n\
         Comparison of rate limiters for Rust under the same traffic. One program makes the calls and prints this page:\n\n\
         ```sh\ncargo run --release -p ratelimit-benches --bin comparison > docs/comparison.md\n```\n\n\
         {}.\nEach limiter has its default settings and Redis servers of its own, which share the processors\n\
         with the callers. The first three columns are this crate. A figure holds for this machine.\n\
         Compare the figures of one row.\n\n\
         governor decides in each process alone: it asks no server. So it is shown in the rows about\n\
         speed, server work, outages and clocks, but not ranked there. A row is in the first table if\n\
         the best of the other limiters beats the best of the first three columns.\n",
        place()
    );
    for (title, lost) in [("Another limiter is better", true), ("This crate is as good as the best, or better", false)]
    {
        let rows: Vec<_> = lines.iter().filter(|(_, is_lost, _)| *is_lost == lost).collect();
        if rows.is_empty() {
            continue;
        }
        let _ = write!(page, "\n## {title}\n\n| | {} |\n|---|{}\n", titles.join(" | "), "---|".repeat(titles.len()));
        for (row, _, cells) in &rows {
            let cells: Vec<&str> = cells.iter().map(|cell| cell.text.as_str()).collect();
            let _ = writeln!(page, "| {} | {} |", row.name, cells.join(" | "));
        }
    }
    page += "\n## How each row is measured\n";
    for (row, ..) in lines {
        let end = if row.name.ends_with('?') { "" } else { "." };
        let _ = write!(page, "\n**{}{end}** {}\n", row.name, row.how);
    }
    page
}

/// Date, machine and server.
fn place() -> String {
    let date = Command::new("date").args(["-u", "+%F"]).output().expect("`date`");
    let date = String::from_utf8(date.stdout).expect("text");
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split(": ").nth(1));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let info: String = redis::from_redis_value(RedisServer::start().command(&[b"INFO", b"server"])).expect("text");
    let version = info.lines().find_map(|line| line.split_once("redis_version:")).map_or("?", |(_, version)| version);
    format!(
        "Made on {} on {cores} cores of {} with Redis {version}",
        date.trim(),
        model.unwrap_or("an unknown processor")
    )
}
