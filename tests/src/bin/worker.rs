//! Calls one limit from many tasks, in a process of its own. `it/core/exact.rs` runs several.
//!
//! `worker URL ALGORITHM COUNT SECONDS TASKS ATTEMPTS`. Each line of standard input is a key: every
//! task asks for it that many times. The program prints the number of admitted calls.

use std::env;
use std::io::stdin;
use std::time::Duration;

use ratelimit_runtime::{Algorithm, Cause, Limiter, OnStoreError, Refill, Rule};
use tokio::task::JoinSet;

#[tokio::main(worker_threads = 2)]
async fn main() {
    let args: Vec<String> = env::args().skip(1).collect();
    let [url, algorithm, count, seconds, tasks, attempts] = args.as_slice() else {
        panic!("usage: worker URL ALGORITHM COUNT SECONDS TASKS ATTEMPTS");
    };
    let number = |arg: &String| arg.parse::<u64>().unwrap_or_else(|_| panic!("{arg} is no number"));
    let (tasks, attempts) = (number(tasks), number(attempts));
    let (count, period) = (number(count), Duration::from_secs(number(seconds)));
    let rule = Rule::new("exact", count, period).with_algorithm(match algorithm.as_str() {
        "fixed" => Algorithm::FixedWindow { align: false },
        "log" => Algorithm::SlidingLog,
        "sliding" => Algorithm::SlidingWindow { buckets: 1, weighted: true },
        "bucket" => Algorithm::TokenBucket { burst: count, refill: Refill::Greedy },
        other => panic!("{other} is no algorithm"),
    });
    let limiter = Limiter::builder(url).deadline(Duration::from_secs(10)).on_store_error(OnStoreError::Deny);
    let limiter = limiter.build().await.expect("the server answers");

    for key in stdin().lines() {
        let key = key.expect("a line");
        let mut asking = JoinSet::new();
        for _ in 0..tasks {
            let (limiter, key) = (limiter.clone(), key.clone());
            asking.spawn(async move {
                let mut admitted = 0_u64;
                for _ in 0..attempts {
                    match limiter.acquire(&rule, &key).await {
                        Ok(_) => admitted += 1,
                        Err(refused) => assert_eq!(refused.cause(), Cause::Exceeded, "{refused}"),
                    }
                }
                admitted
            });
        }
        println!("{}", asking.join_all().await.iter().sum::<u64>());
    }
}
