//! Histories of calls are checked call by call: totals may be right although single answers are
//! wrong.

mod checker;
mod orders;

use std::time::Duration;

use ratelimit_harness::RedisServer;
use ratelimit_harness::history::{
    Accusation, Bounds, History, RecordedLimiter, Recorder, TRAFFIC_RULES, Traffic, check, traffic,
};
use ratelimit_runtime::{Limiter, OnStoreError};

const TRAFFIC: Traffic =
    Traffic { tasks: 24, waiters: 20, length: Duration::from_secs(3), pause: Duration::from_millis(5) };

#[track_caller]
fn is_right(history: &History, bounds: &Bounds) {
    let accusations = check(history, bounds);
    let text: Vec<String> = accusations.iter().map(Accusation::to_string).collect();
    assert!(text.is_empty(), "{} accusations in {} calls:\n{}", text.len(), history.calls.len(), text.join("\n"));
}

async fn is_right_on(limiter: Limiter, bounds: Bounds) {
    let limiter = RecordedLimiter::new(limiter, Recorder::new(0), &TRAFFIC_RULES);
    traffic(limiter.clone(), TRAFFIC).await;
    is_right(&limiter.history(), &bounds);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn histories_of_random_traffic_in_memory_break_no_rule() {
    // Decided at once: a caller in the queue must not be passed.
    is_right_on(Limiter::in_memory(), Bounds { queued: 0, passes: Some(0), ..Bounds::default() }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn histories_of_random_traffic_on_redis_break_no_rule() {
    let server = RedisServer::start();
    let limiter = Limiter::builder(&server.url()).on_store_error(OnStoreError::Deny).build().await.unwrap();
    is_right_on(limiter, Bounds::default()).await;
}
