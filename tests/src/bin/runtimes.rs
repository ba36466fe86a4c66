//! One limiter installed for the whole process, and fifty tokio runtimes one after another; `it/runtimes.rs` runs it.
//!
//! `runtimes URL`: prints how many calls were admitted on each of them.

use ratelimit_runtime::{Cause, Limiter, OnStoreError, RequestPerMinute, Rule, limit_request_per_time};
use std::env;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

#[limit_request_per_time(prefix = "runtimes", ttl = 1, unit = Hours, count = 3, key = number)]
async fn limited(number: u32) -> Result<(), RequestPerMinute> {
    Ok(())
}

/// The counters of `limited`.
const LIMITED: Rule = Rule::new("runtimes", 3, Duration::from_secs(3600));

/// In turn of each flavour.
fn runtime(number: u32) -> Runtime {
    let mut builder =
        if number.is_multiple_of(2) { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    builder.worker_threads(2).enable_all().build().expect("a runtime")
}

fn main() {
    let url = env::args().nth(1).expect("usage: runtimes URL");
    let limiter = Limiter::builder(&url).deadline(Duration::from_secs(10)).on_store_error(OnStoreError::Deny);
    let in_memory = runtime(0).block_on(async {
        limited(0).await.expect("counted in memory");
        let in_memory = Limiter::current();
        limiter.build().await.expect("the server answers").install().expect("it is the first one");
        in_memory
    });
    for number in 0..50 {
        let admitted = runtime(number).block_on(async {
            let mut admitted = 0;
            // Tasks, too, that this runtime may take along when it ends.
            tokio::spawn(limited(number)).await.expect("no panic").expect("the first is admitted");
            let _left_behind = tokio::spawn(limited(1_000_000 + number));
            for _ in 0..5 {
                match limited(number).await {
                    Ok(()) => admitted += 1,
                    Err(refused) => assert_eq!(refused.cause(), Cause::Exceeded, "{refused}"),
                }
            }
            1 + admitted
        });
        println!("{admitted}");
    }
    let left = |limiter: Limiter| runtime(0).block_on(limiter.peek(&LIMITED, 0)).expect("it answers").remaining();
    assert_eq!((left(Limiter::current()), left(in_memory)), (0, 2), "the limiter that is current");
}
