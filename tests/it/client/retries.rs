//! Which calls are repeated, how often, and when.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use http::{Method, Request, Response};
use ratelimit_runtime::{Limiter, client::Outgoing};
use tokio::time::Instant;
use tower::{ServiceBuilder, ServiceExt as _, service_fn};

use crate::support::{MS, SECOND};

/// An upstream that always answers with this status, or fails if it is 0. Returns the number of attempts
/// of one call.
async fn attempts(outgoing: &Outgoing, method: Method, status: u16) -> usize {
    let sent = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&sent);
    let client = service_fn(move |request: Request<String>| {
        assert_eq!(request.body(), "body");
        assert_eq!(request.headers()["x-id"], "4711");
        counted.fetch_add(1, SeqCst);
        async move { if status == 0 { Err("reset") } else { Ok(Response::builder().status(status).body(()).unwrap()) } }
    });
    let client = ServiceBuilder::new().layer(outgoing.clone()).service(client);
    let request = Request::builder().method(method).uri("http://api/").header("x-id", "4711").body("body".into());
    let answer = client.oneshot(request.unwrap()).await;
    assert_eq!(answer.is_err(), status == 0);
    sent.load(SeqCst)
}

#[tokio::test(start_paused = true)]
async fn idempotent_calls_are_repeated_and_others_only_if_told() {
    let outgoing = Outgoing::new(Limiter::in_memory());
    for status in [0, 429, 502, 503, 504] {
        for method in [Method::GET, Method::PUT, Method::DELETE] {
            assert_eq!(attempts(&outgoing, method, status).await, 4, "{status}");
        }
        assert_eq!(attempts(&outgoing, Method::POST, status).await, 1, "{status}");
        assert_eq!(attempts(&outgoing.clone().retry_any_method(), Method::POST, status).await, 4, "{status}");
        assert_eq!(attempts(&outgoing.clone().retries(0), Method::GET, status).await, 1, "{status}");
    }
    for status in [200, 400, 404, 500] {
        assert_eq!(attempts(&outgoing, Method::GET, status).await, 1, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_retry_budget_is_of_all_processes_and_refills() {
    let limiter = Limiter::in_memory();
    let [one, other] =
        [(); 2].map(|()| Outgoing::new(limiter.clone()).retry_budget(5, 3600 * SECOND).longest_pause(SECOND));
    assert_eq!(attempts(&one, Method::GET, 502).await, 4);
    assert_eq!(attempts(&other, Method::GET, 502).await, 3);
    assert_eq!(attempts(&one, Method::GET, 502).await, 1);
    tokio::time::sleep(3600 * SECOND).await;
    assert_eq!(attempts(&one, Method::GET, 502).await, 4);
    let unbounded = Outgoing::new(Limiter::in_memory()).retry_budget(u64::MAX, 10 * SECOND);
    assert_eq!(attempts(&unbounded, Method::GET, 502).await, 4);
    let none = Outgoing::new(limiter.clone()).retry_budget(0, SECOND);
    assert_eq!(attempts(&none, Method::GET, 502).await, 1);
}

/// They wait for the pause, and for a place in the next window.
#[tokio::test(start_paused = true)]
async fn retries_after_refusals_do_not_spend_the_budget() {
    let outgoing = Outgoing::new(Limiter::in_memory()).retry_budget(2, 3600 * SECOND);
    for _ in 0..3 {
        assert_eq!(attempts(&outgoing, Method::GET, 429).await, 4);
    }
    assert_eq!(attempts(&outgoing, Method::GET, 502).await, 3);
}

#[tokio::test(start_paused = true)]
async fn a_backoff_is_random_grows_and_is_bounded() {
    let outgoing = Outgoing::new(Limiter::in_memory()).retries(12).retry_budget(1_000_000, SECOND);
    let mut took = Vec::new();
    for _ in 0..20 {
        let began = Instant::now();
        assert_eq!(attempts(&outgoing, Method::GET, 502).await, 13);
        took.push(began.elapsed());
    }
    took.sort();
    // 100, 200, .. 6,400 ms and then 10 s at most, half of it on average.
    assert!(took[19] < Duration::from_millis(12_700 + 50_000) + 100 * MS, "{took:?}");
    assert!(took[10] > 15 * SECOND, "{took:?}");
    took.dedup();
    assert!(took.len() > 15, "{took:?}");

    let bounded = outgoing.longest_pause(10 * MS);
    let began = Instant::now();
    attempts(&bounded, Method::GET, 502).await;
    assert!(began.elapsed() <= 12 * 15 * MS);
}
