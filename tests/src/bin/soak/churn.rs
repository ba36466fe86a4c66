//! Objects that come and go: limiters, runtimes, and the content of the rules file.

use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ratelimit_runtime::{Limiter, Rule, config::Rules};
use tokio::runtime;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::callers::FROM_FILE;
use crate::world::World;

const RULE: Rule = Rule::new("soak brief", 3, Duration::from_secs(1));

/// Builds a limiter, calls it, and closes it or not.
pub(crate) async fn limiters(world: Arc<World>) {
    let mut random = fastrand::Rng::new();
    while !world.is_over() {
        sleep(Duration::from_millis(random.u64(300..2_000))).await;
        let mut builder = world.sites[random.usize(0..3)].builder();
        if random.bool() {
            builder = builder.lazy();
        }
        // The file may be invalid just now.
        if random.bool()
            && let Ok(rules) = Rules::watch(world.rules_file())
        {
            builder = builder.rules(rules);
        }
        let Ok(limiter) = builder.build().await else {
            world.others.add("limiters", "not built");
            continue;
        };
        let mut tasks = JoinSet::new();
        for number in 0..6 {
            let limiter = limiter.clone();
            tasks.spawn(async move { brief(&limiter, number).await });
        }
        if random.bool() {
            tasks.join_all().await;
        } // else they end half way
        if random.bool() {
            limiter.close().await;
            world.others.add("limiters", "closed");
        } else {
            world.others.add("limiters", "dropped");
        }
    }
}

async fn brief(limiter: &Limiter, number: u64) {
    let _ = limiter.acquire(&RULE, number % 2).await;
    let _ = limiter.acquire_within(&RULE, number % 2, Duration::from_secs(2)).await;
    let _ = limiter.acquire(&FROM_FILE, number).await;
}

/// Starts a runtime, calls the limiters that last, and shuts it down with calls under way.
pub(crate) fn runtimes(world: &World) {
    let mut random = fastrand::Rng::new();
    while !world.is_over() {
        thread::sleep(Duration::from_millis(random.u64(500..3_000)));
        let (mut builder, name) = if random.bool() {
            (runtime::Builder::new_current_thread(), "of one thread")
        } else {
            (runtime::Builder::new_multi_thread(), "of two threads")
        };
        let runtime = builder.worker_threads(2).enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let mut tasks = JoinSet::new();
            for site in &world.sites {
                for number in 0..4 {
                    let limiter = site.limiter.clone();
                    let call = async move { brief(&limiter, number).await };
                    if number == 0 {
                        tasks.spawn(call);
                    } else {
                        tokio::spawn(call); // left behind
                    }
                }
            }
            if random.bool() {
                tasks.join_all().await;
            } else {
                tasks.detach_all();
            }
        });
        if random.bool() {
            runtime.shutdown_background();
        }
        world.others.add("runtimes", name);
    }
}

/// Changes the rules every few seconds. One content of five is invalid.
pub(crate) async fn rules_file(world: Arc<World>) {
    let mut random = fastrand::Rng::new();
    while !world.is_over() {
        let count = random.u64(3..30);
        let (text, name) = match random.u8(0..5) {
            0 => (format!("[rules.\"soak from file\"]\ncuont = {count}\n"), "invalid"),
            1 => (format!("[rules.\"soak from file\"]\ncount = {count}\nalgorithm = \"SlidingLog\"\n"), "algorithm"),
            2 => (format!("[rules.\"soak from file\"]\ncount = {count}\nttl = 3\nunit = \"Seconds\"\n"), "period"),
            _ => (
                format!("[rules.\"soak from file\"]\ncount = {count}\nkeys = {{ \"1\" = {{ count = 2 }} }}\n"),
                "count",
            ),
        };
        let path = world.rules_file();
        let beside = path.with_extension("new");
        fs::write(&beside, text).and_then(|()| fs::rename(&beside, &path)).expect("the file of the rules is written");
        world.others.add("rules files", name);
        sleep(Duration::from_millis(random.u64(2_000..5_000))).await;
    }
}
