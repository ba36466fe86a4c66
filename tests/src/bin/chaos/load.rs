//! Four processes, and connections cut, scripts forgotten and slots moved all the while.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};
use std::thread;
use std::time::Duration;

use ratelimit_harness::history::{Bounds, History, check};
use ratelimit_runtime::{Limiter, OnStoreError, Rule};
use tokio::task::JoinSet;

use crate::place::{Place, Servers};
use crate::worker::{Fate, INSTANCES, ONCE, Report, SHARED, SHARED_KEYS, TASKS, Worker};
use crate::{Extent, Faults, ms, runtime};

const PROCESSES: usize = 4;
const PAUSE: Duration = Duration::from_millis(100);

/// How often what was broken.
#[derive(Debug, Default)]
struct Broken {
    cuts: AtomicUsize,
    flushes: AtomicUsize,
    moves: AtomicUsize,
}

struct Outcome {
    reports: Vec<Report>,
    broken: Broken,
    /// Charged on the servers, by process and key.
    once: Vec<Vec<u64>>,
    /// And by key.
    shared: Vec<u64>,
}

/// Sets the flag when it is dropped.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs the workers against a place, breaks it meanwhile, and asks it afterwards.
fn run(place: &Place, policy: OnStoreError, extent: Extent, faults: &mut Faults) -> Outcome {
    let (broken, done) = (Broken::default(), AtomicBool::new(false));
    let each = extent.decisions.div_ceil(PROCESSES);
    let workers: Vec<_> =
        (0..PROCESSES).map(|number| Worker::start(place, policy, number, each, extent.traffic_ms)).collect();
    let mut reports = thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                thread::sleep(PAUSE);
                place.cut_connections();
                let cuts = broken.cuts.fetch_add(1, Ordering::Relaxed);
                if cuts % 5 == 4 {
                    place.forget_scripts();
                    broken.flushes.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        if let Servers::Cluster(cluster) = &place.servers {
            scope.spawn(|| {
                // A slot that is asked for all the time, back and forth.
                let slot = cluster.slot_of("0");
                while !done.load(Ordering::Relaxed) {
                    let from = cluster.primary_of_slot(slot);
                    let to = cluster.primaries().into_iter().find(|index| *index != from).expect("another primary");
                    cluster.move_slot(slot, from, to);
                    broken.moves.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // Also if a worker ends without a report: the threads above would go on for ever.
        let _done = SetOnDrop(&done);
        workers.into_iter().map(Worker::report).collect::<Vec<_>>()
    });
    check_histories(place, policy, &mut reports, faults);
    let (once, shared) = runtime().block_on(charged(place, each.div_ceil(2)));
    Outcome { reports, broken, once, shared }
}

/// Checks the calls of all workers, counter by counter.
fn check_histories(place: &Place, policy: OnStoreError, reports: &mut [Report], faults: &mut Faults) {
    let mut history = History::default();
    for report in reports {
        history.merge(std::mem::take(&mut report.history));
    }
    // Connections are cut ten times a second: renewals may be late, and callers meet a store that is away. A slot that
    // moves takes a while, by which its windows end later.
    let bounds =
        Bounds { skew: 30_000, idle: Some(900_000), holds_may_be_lost: true, passes: Some(10), ..Bounds::default() };
    for accusation in check(&history, &bounds) {
        faults.expect(false, format!("{}, {policy:?}, a history: {accusation}", place.name()));
    }
}

/// The counts on the servers.
async fn charged(place: &Place, keys: usize) -> (Vec<Vec<u64>>, Vec<u64>) {
    let builder = place.builder().deadline(Duration::from_secs(20)).on_store_error(OnStoreError::Deny);
    let limiter = builder.build().await.expect("the servers are back");
    let mut once = Vec::new();
    for process in 0..PROCESSES {
        once.push(charged_to(&limiter, &ONCE, keys, move |key| ratelimit_runtime::Key::new((process, key))).await);
    }
    (once, charged_to(&limiter, &SHARED, SHARED_KEYS, ratelimit_runtime::Key::new).await)
}

async fn charged_to(
    limiter: &Limiter,
    rule: &'static Rule,
    keys: usize,
    key: impl Fn(usize) -> ratelimit_runtime::Key + Clone + Send + 'static,
) -> Vec<u64> {
    let next = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..128 {
        let (limiter, next, key) = (limiter.clone(), Arc::clone(&next), key.clone());
        tasks.spawn(async move {
            let mut charged = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= keys {
                    return charged;
                }
                let decision = limiter.peek(rule, key(number)).await.expect("the servers answer");
                charged.push((number, rule.count() - decision.remaining()));
            }
        });
    }
    let mut all = vec![0; keys];
    for (number, charged) in tasks.join_all().await.into_iter().flatten() {
        all[number] = charged;
    }
    all
}

fn waits(reports: &[Report]) -> String {
    let longest = |at: usize| reports.iter().map(|report| report.waits[at]).max().unwrap_or(0);
    [0, 1, 2].map(|at| format!("{:>8}", ms(longest(at)))).concat()
}

fn broken(broken: &Broken) -> String {
    let [cuts, flushes, moves] =
        [&broken.cuts, &broken.flushes, &broken.moves].map(|times| times.load(Ordering::Relaxed));
    format!("{cuts} / {flushes} / {moves}")
}

pub(crate) fn deny(extent: Extent, faults: &mut Faults) {
    println!(
        "\nUnder load, OnStoreError::Deny: {PROCESSES} processes x {TASKS} tasks; half of the calls ask for a key of their own, half share"
    );
    println!(
        "{SHARED_KEYS} keys of {} each. Every 100 ms all connections are cut, every 500 ms all scripts forgotten; in the cluster a slot",
        SHARED.count()
    );
    println!("moves back and forth. Charged is what the servers counted. Waits in ms: median, 99 of 100, longest.");
    println!(
        "{:<15}{:>9}{:>10}{:>10}{:>12}{:>8}{:>7}   {:<17}{:>8}{:>8}{:>8}",
        "",
        "sent",
        "charged",
        "admitted",
        "unavailable",
        "double",
        "over",
        "cut/flush/moved",
        "median",
        "99",
        "longest"
    );
    for (topology, tls) in Place::kinds(extent.tls) {
        let place = Place::start(topology, tls);
        let outcome = run(&place, OnStoreError::Deny, extent, faults);
        let (mut sent, mut charged, mut admitted, mut double, mut uncharged) = (0, 0, 0, 0, 0_u64);
        for (report, counted) in outcome.reports.iter().zip(&outcome.once) {
            for (fate, counted) in report.once.iter().zip(counted) {
                sent += u64::from(fate.is_some());
                charged += counted;
                admitted += u64::from(*fate == Some(Fate::Admitted));
                double += u64::from(*counted > 1);
                uncharged += u64::from(*fate == Some(Fate::Admitted) && *counted == 0);
                faults.expect(*fate != Some(Fate::Refused), format!("{}: a first call was refused", place.name()));
            }
        }
        let mut over = uncharged;
        for (key, counted) in outcome.shared.iter().enumerate() {
            let of_key = outcome.reports.iter().map(|report| report.shared[key]).sum::<u64>();
            over += of_key.saturating_sub(*counted);
            charged += counted;
            admitted += of_key;
        }
        sent += outcome.reports.iter().map(|report| report.shared_sent).sum::<u64>();
        let unavailable = outcome.reports.iter().map(|report| report.unavailable).sum::<u64>();
        println!(
            "{:<15}{sent:>9}{charged:>10}{admitted:>10}{unavailable:>12}{double:>8}{over:>7}   {:<17}{}",
            place.name(),
            broken(&outcome.broken),
            waits(&outcome.reports)
        );
        let name = place.name();
        faults.expect(
            admitted <= charged && charged <= sent,
            format!("{name}: admitted {admitted} <= charged {charged} <= sent {sent}"),
        );
        faults.expect(double == 0, format!("{name}: {double} calls were executed twice"));
        faults.expect(over == 0, format!("{name}: {over} were admitted and not charged"));
        let held = outcome.shared.iter().all(|counted| *counted <= SHARED.count());
        faults.expect(held, format!("{name}: more than {} were charged: {:?}", SHARED.count(), outcome.shared));
        errors(&name, &outcome.reports, faults);
        faults.expect(admitted * 10 > sent, format!("{name}: only {admitted} of {sent} admitted, that is no load"));
    }
}

pub(crate) fn local(extent: Extent, faults: &mut Faults) {
    println!(
        "\nThe same under OnStoreError::Local with instances({INSTANCES}). Extras are admitted beyond the {} of a shared key; each process may",
        SHARED.count()
    );
    println!(
        "admit its share of {} alone, so {} a key at most.",
        SHARED.count() / u64::from(INSTANCES),
        SHARED.count() / u64::from(INSTANCES) * PROCESSES as u64
    );
    println!(
        "{:<15}{:>9}{:>10}{:>17}{:>11}   {:<17}{:>8}{:>8}{:>8}",
        "", "sent", "admitted", "extras of a key", "at most", "cut/flush/moved", "median", "99", "longest"
    );
    for (topology, tls) in Place::kinds(extent.tls) {
        let place = Place::start(topology, tls);
        let outcome = run(&place, OnStoreError::Local, extent, faults);
        let of_key = |key: usize| outcome.reports.iter().map(|report| report.shared[key]).sum::<u64>();
        let extras = (0..SHARED_KEYS).map(|key| of_key(key).saturating_sub(SHARED.count()));
        let (largest, admitted) = (extras.max().unwrap_or(0), (0..SHARED_KEYS).map(of_key).sum::<u64>());
        let bound = SHARED.count() / u64::from(INSTANCES) * PROCESSES as u64;
        let sent = outcome.reports.iter().map(|report| report.shared_sent).sum::<u64>();
        println!(
            "{:<15}{sent:>9}{admitted:>10}{largest:>17}{bound:>11}   {:<17}{}",
            place.name(),
            broken(&outcome.broken),
            waits(&outcome.reports)
        );
        let name = place.name();
        faults.expect(largest <= bound, format!("{name}: {largest} extras, {bound} at most"));
        errors(&name, &outcome.reports, faults);
    }
}

fn errors(name: &str, reports: &[Report], faults: &mut Faults) {
    for error in reports.iter().flat_map(|report| &report.errors) {
        faults.expect(false, format!("{name}: {error}"));
    }
}
