//! Calls one limit with a prefetch for a while, in a process of its own. `it/redis/prefetch.rs`
//! runs several.
//!
//! `prefetcher URL COUNT PERIOD PREFETCH MILLISECONDS`: periods in milliseconds, windows aligned.
//! Prints a line when it begins. Then it prints, for each window, its number since 1970 and the
//! number of admitted calls that began and ended in it.

use ratelimit_runtime::{Algorithm, Cause, Limiter, OnStoreError, Rule};
use std::collections::BTreeMap;
use std::env;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::task::{JoinSet, yield_now};

#[tokio::main(worker_threads = 2)]
async fn main() {
    let url = env::args().nth(1).expect("usage: prefetcher URL COUNT PERIOD LEASE MILLISECONDS");
    let numbers: Vec<u64> = env::args().skip(2).map(|arg| arg.parse().expect("a number")).collect();
    let [count, period_ms, prefetch, lasts_ms] = numbers[..] else { panic!("four numbers are needed after the URL") };
    let rule = Rule::new("prefetched", count, Duration::from_millis(period_ms)).with_prefetch(prefetch);
    let rule = rule.with_algorithm(Algorithm::FixedWindow { align: true });
    let limiter = Limiter::builder(&url).deadline(Duration::from_secs(10)).on_store_error(OnStoreError::Deny);
    let limiter = limiter.build().await.expect("the server answers");
    let window = move || {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970");
        u64::try_from(now.as_millis()).expect("a time before 500,000,000") / period_ms
    };
    println!("begins");
    let ends = Instant::now() + Duration::from_millis(lasts_ms);
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let limiter = limiter.clone();
        tasks.spawn(async move {
            let mut admitted = BTreeMap::<u64, u64>::new();
            while Instant::now() < ends {
                let began = window();
                match limiter.acquire(&rule, 1).await {
                    Ok(_) if window() == began => *admitted.entry(began).or_default() += 1,
                    Ok(_) => {}
                    Err(refused) => assert_eq!(refused.cause(), Cause::Exceeded, "{refused}"),
                }
                yield_now().await;
            }
            admitted
        });
    }
    let mut admitted = BTreeMap::<u64, u64>::new();
    for (window, count) in tasks.join_all().await.into_iter().flatten() {
        *admitted.entry(window).or_default() += count;
    }
    limiter.close().await;
    for (window, count) in admitted {
        println!("{window} {count}");
    }
}
