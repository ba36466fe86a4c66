//! Memory, Redis and a reference model run the same random schedules, and decide alike.

use std::env;

use proptest::prelude::*;
use ratelimit_runtime::Algorithm;
use ratelimit_runtime::conformance::{ALGORITHMS, Schedule, Subject, Trial};

use crate::support::{BUCKET, FIXED, LOG, Timed};

/// The number of schedules: `RATELIMIT_SCHEDULES`, or 500.
fn schedules() -> u32 {
    env::var("RATELIMIT_SCHEDULES").map_or(500, |number| {
        number.parse().unwrap_or_else(|_| panic!("RATELIMIT_SCHEDULES is {number:?}; give it a number of schedules"))
    })
}

/// Made of numbers, which get smaller and fewer when it fails.
fn schedule(algorithms: &'static [Algorithm], strict: bool) -> impl Strategy<Value = Schedule> {
    let several = |count| prop::collection::vec(any::<u32>(), count);
    (several(16), prop::collection::vec(several(40), 1..60))
        .prop_map(move |(rules, steps)| Schedule::new(algorithms, &rules, &steps, strict))
}

fn all_decide_alike(schedules: impl Strategy<Value = Schedule>, count: u32) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let redis = runtime.block_on(Timed::redis());
    let config = ProptestConfig { cases: count, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(schedule in schedules)| {
        runtime.block_on(async {
            // From the same instant each time, so that a schedule that fails fails again.
            let memory = Timed::memory().await;
            redis.set_to(&memory);
            let stores: [(&str, &dyn Subject); 2] = [("memory", &memory), ("redis", &redis)];
            schedule.run(Trial::new("memory, Redis and the model decide alike", &stores)).await
        }).map_err(TestCaseError::fail)?;
    });
}

#[test]
fn memory_redis_and_the_model_decide_alike() {
    all_decide_alike(schedule(ALGORITHMS, true).prop_map(Schedule::without_denial_cache), schedules());
}

/// Algorithms that hold, and some beside them.
const HOLDING: &[Algorithm] = &[LOG, Algorithm::Concurrent, LOG, FIXED, BUCKET];

#[test]
fn memory_redis_and_the_model_hold_alike() {
    all_decide_alike(schedule(HOLDING, true).prop_map(Schedule::without_denial_cache), schedules());
}

/// In whole milliseconds: what a store rounded up to one is known no better.
#[test]
fn cached_denials_are_what_redis_would_reply() {
    all_decide_alike(schedule(ALGORITHMS, false), schedules());
}

#[test]
fn cached_denials_of_holds_are_what_redis_would_reply() {
    all_decide_alike(schedule(HOLDING, false), schedules());
}
