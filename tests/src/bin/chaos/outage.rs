//! A server that halts, and one that dies and comes back.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use std::time::{Duration, Instant};

use ratelimit_harness::RedisServer;
use ratelimit_runtime::{Cause, Health, Limiter, OnStoreError, Rule};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::worker::INSTANCES;
use crate::{Extent, Faults, ms, percentile, runtime};

const TASKS: usize = 64;
const DEADLINE: Duration = Duration::from_millis(100);
const HOUR: Duration = Duration::from_secs(3600);
/// Never reached.
const WIDE: Rule = Rule::new("wide", 1_000_000_000, HOUR);
/// Reached at once.
const NARROW: Rule = Rule::new("narrow", 40, HOUR);
/// A server that takes longer to come back is a fault.
const PATIENCE: Duration = Duration::from_secs(30);

/// One call.
#[derive(Clone, Copy, Debug)]
struct Call {
    asked: Duration,
    took: Duration,
    wide: bool,
    answer: Result<(), Cause>,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Halt,
    Kill,
}

pub(crate) fn run(extent: Extent, faults: &mut Faults) {
    println!(
        "\nA server goes away for {} ms under {TASKS} tasks, OnStoreError::Local, instances({INSTANCES}), a deadline of {} ms. Slow: calls that took half",
        extent.outage_ms,
        DEADLINE.as_millis()
    );
    println!(
        "a deadline or more while it was away. Opened: when the last of them was answered. Then: calls until it was back, 99 of 100 and the longest."
    );
    println!(
        "Back: when the server decided again, after it was there again. Alone: admitted of {} by this process's share while the server was away.",
        NARROW.count()
    );
    println!(
        "{:<18}{:>8}{:>6}{:>12}{:>11}{:>9}{:>9}{:>9}{:>8}{:>8}{:>7}",
        "times in ms", "calls", "slow", "longest", "opened", "calls", "99", "longest", "back", "errors", "alone"
    );
    for kind in [Kind::Halt, Kind::Kill] {
        runtime().block_on(measure(kind, extent, faults));
    }
}

async fn measure(kind: Kind, extent: Extent, faults: &mut Faults) {
    let mut server = RedisServer::start();
    let builder = Limiter::builder(&server.url()).deadline(DEADLINE).instances(INSTANCES);
    let limiter = builder.on_store_error(OnStoreError::Local).build().await.expect("the server answers");
    let (start, done) = (Instant::now(), Arc::new(AtomicBool::new(false)));
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (limiter, done) = (limiter.clone(), Arc::clone(&done));
        tasks.spawn(async move {
            let mut calls = Vec::new();
            while !done.load(Ordering::Relaxed) {
                let (asked, wide) = (start.elapsed(), task > 0);
                let answer = limiter.acquire(if wide { &WIDE } else { &NARROW }, task).await;
                let took = start.elapsed().saturating_sub(asked);
                calls.push(Call { asked, took, wide, answer: answer.map(drop).map_err(|refused| refused.cause()) });
                sleep(Duration::from_millis(2)).await;
            }
            calls
        });
    }
    sleep(Duration::from_millis(500)).await;
    let gone = start.elapsed();
    match kind {
        Kind::Halt => server.stop(),
        Kind::Kill => server.kill(),
    }
    sleep(Duration::from_millis(extent.outage_ms)).await;
    let degraded = matches!(limiter.health(), Health::Degraded { .. });
    match kind {
        Kind::Halt => server.cont(),
        Kind::Kill => server.restart(),
    }
    let there = start.elapsed();
    let mut back = None;
    while back.is_none() && start.elapsed() < there + PATIENCE {
        // A look is never answered by this process.
        if limiter.peek(&WIDE, 0).await.is_ok() {
            back = Some(start.elapsed().saturating_sub(there));
        }
        sleep(Duration::from_millis(1)).await;
    }
    // It counts as available again after a second without a failure.
    while limiter.health() != Health::Available && start.elapsed() < there + PATIENCE {
        sleep(Duration::from_millis(10)).await;
    }
    done.store(true, Ordering::Relaxed);
    let calls: Vec<Call> = tasks.join_all().await.into_iter().flatten().collect();
    let healthy = limiter.health() == Health::Available;

    let away = |call: &&Call| call.asked + call.took > gone && call.asked < there;
    let slow: Vec<&Call> = calls.iter().filter(away).filter(|call| call.took >= DEADLINE / 2).collect();
    let opened = slow.iter().map(|call| call.asked + call.took).max().unwrap_or(gone).min(there);
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let mut then: Vec<u64> =
        calls.iter().filter(|call| call.asked > opened && call.asked < there).map(|call| micros(call.took)).collect();
    then.sort_unstable();
    let errors = calls.iter().filter(|call| call.answer.is_err_and(|cause| cause != Cause::Exceeded)).count();
    let alone = calls.iter().filter(|call| !call.wide && call.asked > opened && call.asked < there);
    let alone = alone.filter(|call| call.answer.is_ok()).count();
    println!(
        "{:<18}{:>8}{:>6}{:>12}{:>11}{:>9}{:>9}{:>9}{:>8}{errors:>8}{alone:>7}",
        match kind {
            Kind::Halt => "halted",
            Kind::Kill => "killed, restarted",
        },
        calls.len(),
        slow.len(),
        ms(slow.iter().map(|call| micros(call.took)).max().unwrap_or(0)),
        ms(micros(opened.saturating_sub(gone))),
        then.len(),
        ms(percentile(&then, 99)),
        ms(then.last().copied().unwrap_or(0)),
        back.map_or("never".to_owned(), |back| ms(micros(back))),
    );
    let share = usize::try_from(NARROW.count() / u64::from(INSTANCES)).expect("a few");
    faults.expect(
        slow.len() <= (2 * TASKS).max(10),
        format!("{kind:?}: {} calls were slow, two a task at most", slow.len()),
    );
    faults.expect(!then.is_empty(), format!("{kind:?}: no call was answered while the server was away"));
    faults.expect(alone <= share, format!("{kind:?}: {alone} were admitted alone, {share} at most"));
    faults.expect(errors == 0, format!("{kind:?}: {errors} calls failed"));
    faults.expect(back.is_some(), format!("{kind:?}: the server never decided again"));
    faults.expect(degraded, format!("{kind:?}: health did not tell of the outage"));
    faults.expect(healthy, format!("{kind:?}: health still tells of the outage: {:?}", limiter.health()));
}
