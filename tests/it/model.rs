//! Memory, Redis and a model that is plainly right, driven through the same random schedules: they decide alike.

use std::env;

use proptest::prelude::*;
use ratelimit_runtime::conformance::{ALGORITHMS, Schedule, Subject, Trial};

use crate::support::Timed;

/// As many schedules as `RATELIMIT_SCHEDULES` says, or 500.
fn schedules() -> u32 {
    env::var("RATELIMIT_SCHEDULES").map_or(500, |number| {
        number.parse().unwrap_or_else(|_| panic!("RATELIMIT_SCHEDULES is {number:?}; give it a number of schedules"))
    })
}

/// Made of numbers, which get smaller and fewer when it fails.
fn schedule() -> impl Strategy<Value = Schedule> {
    let several = |count| prop::collection::vec(any::<u32>(), count);
    (several(16), prop::collection::vec(several(24), 1..60))
        .prop_map(|(rules, steps)| Schedule::new(ALGORITHMS, &rules, &steps, true))
}

#[test]
fn memory_redis_and_the_model_decide_alike() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let redis = runtime.block_on(Timed::redis());
    let config = ProptestConfig { cases: schedules(), failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(schedule in schedule())| {
        runtime.block_on(async {
            // From the same instant each time, so that a schedule that fails fails again.
            let memory = Timed::memory().await;
            redis.set_to(&memory);
            let stores: [(&str, &dyn Subject); 2] = [("memory", &memory), ("redis", &redis)];
            schedule.run(Trial::new("memory, Redis and the model decide alike", &stores)).await
        }).map_err(TestCaseError::fail)?;
    });
}
