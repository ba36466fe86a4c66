//! Slices of recorded calls, and their check. A record lasts as long as its slice.

use std::thread::sleep;
use std::time::{Duration, Instant};

use ratelimit_harness::history::{Bounds, RecordedLimiter, Recorder, TRAFFIC_RULES, Traffic, check, traffic};
use ratelimit_runtime::{Health, Limiter, OnStoreError};
use tokio::runtime::Handle;

use crate::world::{Permitted, Site, World};

const TRAFFIC: Traffic =
    Traffic { tasks: 8, waiters: 6, length: Duration::from_secs(4), pause: Duration::from_millis(25) };
/// Between two slices. A site's counters of the last slice are over when the next one begins.
const PAUSE: Duration = Duration::from_secs(6);

/// One slice after the other, each on another site, until the load is over. Half of them use the
/// limiter that lasts, half a new one. During half of them no server fails.
pub(crate) fn run(world: &World, runtime: &Handle) {
    for number in 0.. {
        let pause_ends = Instant::now() + PAUSE;
        while Instant::now() < pause_ends {
            if world.is_over() {
                return;
            }
            sleep(Duration::from_millis(100));
        }
        let site = &world.sites[number % 3];
        let permitted = if (number / 3).is_multiple_of(2) { Permitted::None } else { Permitted::Harmless };
        site.permit(permitted);
        slice(world, site, permitted, number, runtime);
        site.permit(Permitted::All);
    }
}

fn slice(world: &World, site: &Site, permitted: Permitted, number: usize, runtime: &Handle) {
    let limiter = if (number / 6).is_multiple_of(2) {
        site.limiter.clone()
    } else {
        let builder = site.builder().namespace(format!("slice {number}"));
        let Ok(limiter) = runtime.block_on(builder.build()) else {
            world.others.add("histories", "not begun");
            return;
        };
        limiter
    };
    let begun = Instant::now();
    while limiter.health() != Health::Available && begun.elapsed() < Duration::from_secs(10) {
        sleep(Duration::from_millis(100));
    }
    let recorded = RecordedLimiter::new(limiter.clone(), Recorder::new(0), &TRAFFIC_RULES);
    let recorded = recorded.decides_alone(site.policy == OnStoreError::Local);
    runtime.block_on(traffic(recorded.clone(), TRAFFIC));

    let history = recorded.history();
    let bounds = match permitted {
        Permitted::None => Bounds::default(),
        // A server may stand still for longer than a lease, and a slot that moves takes a while, by
        // which its windows end later.
        _ => Bounds { skew: 30_000, idle: None, holds_may_be_lost: true, passes: None, ..Bounds::default() },
    };
    let calls = history.calls.len();
    for accusation in check(&history, &bounds) {
        world.fault(format!("{}, {permitted:?}, a history of {calls} calls: {accusation}", site.name));
    }
    world.others.add("histories", if permitted == Permitted::None { "in peace" } else { "in trouble" });
    world.others.add_many("recorded calls", site.name, calls as u64);

    site.permit(Permitted::None);
    runtime.block_on(forget(&limiter));
}

/// Forgets the counters that would last for hours.
async fn forget(limiter: &Limiter) {
    for (rule, ..) in TRAFFIC_RULES.iter().filter(|(rule, ..)| rule.period() > Duration::from_secs(60)) {
        for _ in 0..100 {
            tokio::time::sleep(Duration::from_millis(100)).await; // what was given up is over
            if limiter.reset(rule, 0_u64).await.is_ok() {
                break;
            }
        }
    }
}
