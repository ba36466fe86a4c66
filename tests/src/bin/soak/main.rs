//! Mixed load for an hour, while servers fail. Memory, tasks, threads, connections, descriptors and
//! keys have to be at the end as at the start, and no promise may be broken.
//!
//! `cargo run --release -p ratelimit-tests --all-features --bin soak [-- --minutes 60]`
//!
//! One process counts in memory, on one Redis server and on a cluster of three. A warm-up, a tenth
//! of the time, has the same load. After it and at the end the callers end, and the program measures
//! when all counters are over. Each minute it measures under load. The program ends with an error
//! if a promise was broken. Linux only: it reads `/proc`.

mod callers;
mod churn;
mod counts;
mod failures;
mod measure;
mod slices;
mod verdict;
mod world;

use std::process::ExitCode;
use std::sync::Arc;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};
use std::{env, iter};

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use crate::measure::{Sample, resident};
use crate::world::World;

/// Of each site.
const CALLERS: usize = 24;
/// Threads of a runtime that are idle end after 10 seconds, and the longest lease lasts 30.
const SETTLES_WITHIN: Duration = Duration::from_secs(90);
const BETWEEN_SIZES: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let minutes = match &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => Ok(60),
        ["--minutes", minutes] => minutes.parse::<u32>(),
        _ => "".parse(),
    };
    let Ok(minutes @ 1..) = minutes else {
        eprintln!("usage: soak [--minutes 60]");
        return ExitCode::FAILURE;
    };
    let whole = 60 * u64::from(minutes);
    let warm_up = (whole / 10).max(20);
    let (warm_up, rest) = (Duration::from_secs(warm_up), Duration::from_secs(whole - warm_up));
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let world = Arc::new(runtime.block_on(World::start()));

    println!("Warm-up of {warm_up:?}, then {rest:?} under load, with {CALLERS} callers of each store.");
    load(&world, &runtime, warm_up, &mut Vec::new());
    let start = settled(&world, &runtime, None);
    let mut sizes = Vec::new();
    load(&world, &runtime, rest, &mut sizes);
    let end = settled(&world, &runtime, Some(&start));

    world.calls.print("calls");
    world.failures.print("failures");
    world.others.print_lines();
    for broken in verdict::print(&start, &end, &sizes) {
        world.fault(broken);
    }
    if world.has_faults() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Ends the load when it is dropped.
struct Over<'a>(&'a World);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.set_over(true);
    }
}

/// Everything at once, until the time is over or a promise was broken.
fn load(world: &Arc<World>, runtime: &Runtime, lasts: Duration, sizes: &mut Vec<u64>) {
    if world.has_faults() {
        return;
    }
    world.set_over(false);
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for site in 0..world.sites.len() {
        for _ in 0..CALLERS {
            tasks.spawn_on(callers::run(Arc::clone(world), site), runtime.handle());
        }
    }
    tasks.spawn_on(churn::limiters(Arc::clone(world)), runtime.handle());
    tasks.spawn_on(churn::rules_file(Arc::clone(world)), runtime.handle());
    thread::scope(|scope| {
        let _over = Over(world); // also if something here panics: the threads would go on for ever
        for site in &world.sites[1..] {
            scope.spawn(move || failures::run(world, site));
        }
        scope.spawn(|| churn::runtimes(world));
        scope.spawn(|| slices::run(world, runtime.handle()));
        print_head();
        for number in 1_u32.. {
            while !world.is_over() && begun.elapsed() < (BETWEEN_SIZES * number).min(lasts) {
                sleep(Duration::from_millis(100));
            }
            sizes.push(resident());
            let is_over = world.is_over() || begun.elapsed() >= lasts;
            if is_over || (BETWEEN_SIZES * number).as_secs().is_multiple_of(60) {
                print_row(world, runtime, begun.elapsed());
            }
            if is_over {
                break;
            }
        }
    });
    runtime.block_on(async {
        while let Some(ended) = tasks.join_next().await {
            ended.expect("no panic");
        }
    });
}

/// Measures without calls, when all keys are gone and everything else is as at the start, at the
/// latest after a while.
fn settled(world: &World, runtime: &Runtime, start: Option<&Sample>) -> Sample {
    let ended = Instant::now();
    // Each limiter is connected to each of its servers.
    runtime.block_on(async {
        for key in 0..50_u64 {
            for site in &world.sites {
                let _ = site.limiter.peek(&callers::FROM_FILE, key).await;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    sleep(Duration::from_secs(15));
    let samples = iter::from_fn(|| {
        sleep(Duration::from_secs(1));
        Some(Sample::take(world, runtime.handle()))
    });
    let is_settled = |sample: &Sample| match start {
        Some(start) => sample.counts() == start.counts(),
        None => sample.keys() == 0,
    };
    let is_last = |sample: &Sample| is_settled(sample) || ended.elapsed() > SETTLES_WITHIN;
    let sample = samples.into_iter().find(is_last).expect("there is always another");
    println!("\nQuiet after {} s.", ended.elapsed().as_secs());
    sample
}

fn print_head() {
    println!(
        "\n{:>6}{:>9}{:>7}{:>9}{:>6}{:>13}{:>7}{:>10}{:>9}{:>9}{:>11}{:>10}{:>10}   servers' memory, KiB",
        "second",
        "MiB",
        "tasks",
        "threads",
        "fds",
        "connections",
        "keys",
        "admitted",
        "refused",
        "away",
        "cancelled",
        "failures",
        "histories"
    );
}

fn print_row(world: &World, runtime: &Runtime, elapsed: Duration) {
    let sample = Sample::take(world, runtime.handle());
    let [admitted, refused, away, cancelled] =
        ["admitted", "refused", "unavailable", "cancelled"].map(|column| world.calls.sum(Some(column)));
    let histories = world.others.sum(Some("in peace")) + world.others.sum(Some("in trouble"));
    let memory: Vec<String> = sample.servers.iter().map(|server| server.memory.to_string()).collect();
    println!(
        "{:>6}{:>9}{:>7}{:>9}{:>6}{:>13}{:>7}{admitted:>10}{refused:>9}{away:>9}{cancelled:>11}{:>10}{histories:>10}   {}",
        elapsed.as_secs(),
        format!("{}.{}", sample.memory / 1024, sample.memory % 1024 * 10 / 1024),
        sample.tasks,
        sample.threads,
        sample.descriptors,
        sample.connections(),
        sample.keys(),
        world.failures.sum(None),
        memory.join(" ")
    );
}
