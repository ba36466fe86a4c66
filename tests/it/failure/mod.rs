//! Servers, connections and stores that fail: what callers get, how long they wait, and how an outage ends.

mod abandoned_calls;
mod background;
mod breaker;
mod chaos;
mod connections;
mod credentials;
mod deadlines;
mod fake_server;
mod gate;
mod health;
mod holds;
mod local_fallback;
mod misconfiguration;
mod outages;
mod outlast;
mod sent_once;
mod server_errors;
mod settlements;

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ratelimit_runtime::{Limiter, OnStoreError, Rule};

use crate::support::{FIXED, ends, eventually, hourly};

const DEADLINE: Duration = Duration::from_millis(200);

/// Much longer than any step that nothing blocks.
const LONG_DEADLINE: Duration = Duration::from_secs(3);

const HOUR: Duration = Duration::from_secs(3600);
const POLICIES: [OnStoreError; 3] = [OnStoreError::Local, OnStoreError::Allow, OnStoreError::Deny];

async fn limiter(url: &str, policy: OnStoreError) -> Limiter {
    Limiter::builder(url).deadline(DEADLINE).on_store_error(policy).instances(4).build().await.unwrap()
}

/// The output of the future, if it is ready at its first poll.
fn at_once<F: Future>(future: F) -> Option<F::Output> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// The server decides again.
async fn decides_again(limiter: &Limiter) {
    eventually("the server decides", async || limiter.peek(&hourly(1, FIXED), 0).await.is_ok()).await;
}

/// Calls until one is answered at its first poll. Returns how many were not.
async fn calls_until_the_breaker_opens(limiter: &Limiter, rule: &Rule) -> u64 {
    for unanswered in 0..100 {
        let mut call = Box::pin(limiter.acquire(rule, 1));
        if at_once(&mut call).is_some() {
            return unanswered;
        }
        let _ = ends(call).await;
    }
    panic!("the breaker never opens");
}
