//! A primary dies and a replica takes over, under load.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};
use std::thread;
use std::time::{Duration, Instant};

use ratelimit_harness::RedisServer;
use ratelimit_runtime::{Limiter, OnStoreError, Rule};
use redis::Client;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::place::{Place, Servers, Topology};
use crate::{Extent, Faults, runtime};

const TASKS: usize = 32;
const KEY: &str = "seller";
const RULE: Rule = Rule::new("failover", 1_000_000, Duration::from_secs(3600));
/// A failover that takes longer is a fault.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn run(_: Extent, faults: &mut Faults) {
    println!(
        "\nA primary is killed under {TASKS} tasks, OnStoreError::Deny. Named: when the sentinels or the other nodes named another one. Admitted: when a call"
    );
    println!(
        "was admitted again. Acknowledged: permits up to then. Kept: what of them the new primary counts. Extra: permits that could be admitted once more,"
    );
    println!(
        "which are the writes that the failover lost; the clocks of these servers are one, so their offset adds nothing."
    );
    println!("{:<10}{:>11}{:>14}{:>15}{:>9}{:>8}", "", "named, ms", "admitted, ms", "acknowledged", "kept", "extra");
    for topology in [Topology::Sentinel, Topology::Cluster] {
        let mut place = Place::start(topology, false);
        runtime().block_on(measure(&mut place, faults));
    }
}

async fn measure(place: &mut Place, faults: &mut Faults) {
    let name = place.name();
    let limiter = place.builder().on_store_error(OnStoreError::Deny).build().await.expect("the servers answer");
    let (admitted, last_admitted, done) =
        (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (limiter, admitted, last_admitted, done) =
            (limiter.clone(), Arc::clone(&admitted), Arc::clone(&last_admitted), Arc::clone(&done));
        tasks.spawn(async move { call(&limiter, start, &admitted, &last_admitted, &done).await });
    }
    sleep(Duration::from_secs(1)).await;

    let primary = match &place.servers {
        Servers::Sentinel(servers) => servers.primary(),
        Servers::Cluster(servers) => servers.primary_of(KEY),
        Servers::Single(_) => unreachable!("a single server has no replica"),
    };
    match &mut place.servers {
        Servers::Sentinel(servers) => servers.node_mut(primary).kill(),
        Servers::Cluster(servers) => servers.node_mut(primary).kill(),
        Servers::Single(_) => {}
    }
    let killed = start.elapsed();
    sleep(Duration::from_millis(150)).await; // what was on its way has been answered or given up
    let acknowledged = admitted.load(Ordering::SeqCst);
    // Replicas follow one primary, and none of them counts meanwhile.
    let kept =
        place.nodes().iter().enumerate().filter(|(index, _)| *index != primary).map(|(_, node)| counted(node)).max();
    let kept = kept.unwrap_or(0);

    let named = thread::scope(|scope| {
        let place = &*place;
        let waiting = scope.spawn(move || {
            match &place.servers {
                Servers::Sentinel(servers) => servers.wait_until_primary_is_not(primary),
                Servers::Cluster(servers) => {
                    while servers.primary_of(KEY) == primary {
                        thread::sleep(Duration::from_millis(5));
                    }
                }
                Servers::Single(_) => {}
            }
            start.elapsed()
        });
        waiting.join().expect("another primary")
    });
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    while last_admitted.load(Ordering::SeqCst) < micros(killed) + 150_000 && start.elapsed() < named + PATIENCE {
        sleep(Duration::from_millis(1)).await;
    }
    let again = last_admitted.load(Ordering::SeqCst);
    done.store(true, Ordering::Relaxed);
    tasks.join_all().await;
    let since = |time: u64| time.saturating_sub(micros(killed)) / 1000;
    let extra = acknowledged.saturating_sub(kept);
    println!("{name:<10}{:>11}{:>14}{acknowledged:>15}{kept:>9}{extra:>8}", since(micros(named)), since(again));
    faults.expect(again > micros(killed) + 150_000, format!("{name}: no call was admitted again"));
    // Each task may have had one call whose write was not replicated before the kill. The servers
    // alone could lose more.
    let all = admitted.load(Ordering::SeqCst);
    let decision = limiter.peek(&RULE, KEY).await;
    match decision {
        Ok(decision) => {
            let charged = RULE.count() - decision.remaining();
            faults.expect(
                all <= charged + extra,
                format!("{name}: {all} permits, {charged} charged, and only {extra} writes were lost"),
            );
        }
        Err(error) => faults.expect(false, format!("{name}: {error}")),
    }
}

async fn call(limiter: &Limiter, start: Instant, admitted: &AtomicU64, last: &AtomicU64, done: &AtomicBool) {
    while !done.load(Ordering::Relaxed) {
        if limiter.acquire(&RULE, KEY).await.is_ok() {
            admitted.fetch_add(1, Ordering::SeqCst);
            last.fetch_max(u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX), Ordering::SeqCst);
        }
        sleep(Duration::from_millis(1)).await;
    }
}

/// The count on a server, replica or not. The value of a window is the used count times 450,001,
/// plus a smaller part.
fn counted(node: &RedisServer) -> u64 {
    let name = format!("{}:{{{KEY}}}:fixed:3600000", RULE.prefix());
    let client = Client::open(node.url()).expect("an address");
    let Ok(mut connection) = client.get_connection() else { return 0 };
    let _ = redis::cmd("READONLY").exec(&mut connection); // a node of a cluster wants to be told; any other says that it is none
    let value: Option<u64> = redis::cmd("GET").arg(name).query(&mut connection).unwrap_or_default();
    value.unwrap_or(0) / 450_001
}
