//! Counts that depend on the request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::join_all;
use ratelimit_runtime::Algorithm;
use tokio::sync::Semaphore;

use super::*;
use crate::support::eventually;

/// The number in the field `x-count`.
fn wanted(request: &http::request::Parts) -> Option<u64> {
    request.headers.get("x-count")?.to_str().ok()?.parse().ok()
}

#[tokio::test]
async fn a_request_has_the_count_of_its_sender() {
    for kind in KINDS {
        let limit = Limit::new(per_minute(1)).key(by_user()).count(|request| wanted(request).unwrap_or(1));
        let (layer, ..) = timed([limit]).await;
        let service = Service::start(kind, layer);
        let with = |count: &str| service.get("/").header("x-user", "alice").header("x-count", count);
        assert_eq!(service.statuses(3, || with("2")).await, [200, 200, 429], "{kind:?}");
        // The counter is the same: what was counted still counts.
        assert_eq!(service.statuses(2, || with("3")).await, [200, 429], "{kind:?}");
        let response = with("5").send().await.unwrap();
        assert_eq!(response.headers()["ratelimit-policy"], "\"item\";q=5;w=60", "{kind:?}");
        assert_eq!(response.headers()["ratelimit"], "\"item\";r=1;t=60", "{kind:?}");
        assert_eq!(service.status(with("0")).await, 429, "{kind:?}: 0 admits nothing");
        let misconfigured = with("99999999999").send().await.unwrap();
        assert_eq!(misconfigured.status(), 500, "{kind:?}: above what the algorithm can count");
    }
}

/// On each algorithm whose count is no part of the counter.
#[tokio::test]
async fn a_counter_does_not_depend_on_the_count() {
    for algorithm in [
        Algorithm::FixedWindow { align: false },
        Algorithm::SlidingLog,
        Algorithm::SlidingWindow { buckets: 2, weighted: true },
    ] {
        let rule = per_minute(1).with_algorithm(algorithm);
        let limit = Limit::new(rule).key(by_user()).count(|request| wanted(request).unwrap_or(1));
        let (router, _clock) = limited(limit).await;
        for (count, expected) in [("1", 200), ("1", 429), ("2", 200), ("2", 429), ("4", 200)] {
            let request = Request::get("/").header("x-user", "alice").header("x-count", count);
            let got = status(&router, request.body(Body::empty()).unwrap()).await;
            assert_eq!(got, expected, "{algorithm:?}: {count}");
        }
    }
}

/// Looks up the field `x-count`; without it, it fails.
fn looked_up(lookups: &Arc<AtomicU64>, gate: &Arc<Semaphore>) -> Limit {
    let (lookups, gate) = (Arc::clone(lookups), Arc::clone(gate));
    Limit::new(per_minute(1)).key(by_user()).count_async(Duration::from_secs(30), move |request| {
        let (lookups, gate, count) = (Arc::clone(&lookups), Arc::clone(&gate), wanted(request));
        async move {
            lookups.fetch_add(1, Ordering::Relaxed);
            gate.acquire().await.unwrap().forget();
            count.ok_or("the database is away, says secret-server:5432")
        }
    })
}

#[tokio::test]
async fn a_count_that_is_looked_up_is_kept_for_a_time() {
    for kind in KINDS {
        let (lookups, open) = (Arc::new(AtomicU64::new(0)), Arc::new(Semaphore::new(1_000)));
        let (layer, _limiter, clock) = timed([looked_up(&lookups, &open)]).await;
        let service = Service::start(kind, layer);
        let as_user = |user: &str, count: &str| service.get("/").header("x-user", user).header("x-count", count);
        assert_eq!(service.statuses(3, || as_user("alice", "2")).await, [200, 200, 429], "{kind:?}");
        assert_eq!(lookups.load(Ordering::Relaxed), 1, "{kind:?}");
        assert_eq!(service.status(as_user("bob", "1")).await, 200, "{kind:?}");
        assert_eq!(lookups.load(Ordering::Relaxed), 2, "{kind:?}: another key");
        clock.advance(Duration::from_millis(29_999));
        assert_eq!(service.status(as_user("alice", "3")).await, 429, "{kind:?}: still the old one");
        clock.advance(Duration::from_millis(1));
        assert_eq!(service.status(as_user("alice", "3")).await, 200, "{kind:?}: the new one");
        assert_eq!(lookups.load(Ordering::Relaxed), 3, "{kind:?}");
        assert_eq!(service.status(service.get("/")).await, 403, "{kind:?}: without a key, nothing is looked up");
        assert_eq!(lookups.load(Ordering::Relaxed), 3, "{kind:?}");
    }
}

/// A failure admits no one, tells no one why, and is not kept.
#[tokio::test]
async fn a_failed_look_up_refuses_and_is_not_kept() {
    for kind in KINDS {
        let (lookups, open) = (Arc::new(AtomicU64::new(0)), Arc::new(Semaphore::new(1_000)));
        let (layer, limiter, _clock) = timed([looked_up(&lookups, &open)]).await;
        let service = Service::start(kind, layer);
        let failed = service.get("/").header("x-user", "alice").send().await.unwrap();
        assert_eq!(failed.status(), 503, "{kind:?}");
        assert_eq!(failed.headers()["retry-after"], "1", "{kind:?}");
        assert!(!failed.text().await.unwrap().contains("secret-server"), "{kind:?}");
        assert_eq!(limiter.peek(&per_minute(1), "alice").await.unwrap().remaining(), 1, "{kind:?}: nothing is charged");
        let again = service.get("/").header("x-user", "alice").header("x-count", "1");
        assert_eq!(service.status(again).await, 200, "{kind:?}");
        assert_eq!(lookups.load(Ordering::Relaxed), 2, "{kind:?}");
    }
}

/// Clients that are refused anyway make no one work.
#[tokio::test]
async fn no_count_is_looked_up_for_a_request_that_lacks_a_key() {
    for kind in KINDS {
        let (lookups, open) = (Arc::new(AtomicU64::new(0)), Arc::new(Semaphore::new(1_000)));
        let other = Limit::new(Rule::new("other", 5, MINUTE)).key(KeyBy::header("x-other".parse().unwrap()));
        let (layer, ..) = timed([looked_up(&lookups, &open), other]).await;
        let service = Service::start(kind, layer);
        let request = || service.get("/").header("x-user", "alice").header("x-count", "1");
        assert_eq!(service.status(request()).await, 403, "{kind:?}");
        assert_eq!(lookups.load(Ordering::Relaxed), 0, "{kind:?}");
        assert_eq!(service.status(request().header("x-other", "a")).await, 200, "{kind:?}");
        assert_eq!(lookups.load(Ordering::Relaxed), 1, "{kind:?}");
    }
}

#[tokio::test]
async fn a_failed_look_up_refuses_no_request_of_cost_0() {
    let (lookups, open) = (Arc::new(AtomicU64::new(0)), Arc::new(Semaphore::new(1_000)));
    let cost = |request: &http::request::Parts| u64::from(request.uri.path() != "/free");
    let (router, _clock) = limited(looked_up(&lookups, &open).cost(cost)).await;
    let at = |path: &str| Request::get(path).header("x-user", "alice").body(Body::empty()).unwrap();
    assert_eq!(status(&router, at("/free")).await, 200);
    assert_eq!(status(&router, at("/")).await, 503);
}

/// One look-up, but two kinds of keys: "alice" of the one is not "alice" of the other.
#[tokio::test]
async fn a_limit_with_another_key_keeps_counts_of_its_own() {
    let (lookups, open) = (Arc::new(AtomicU64::new(0)), Arc::new(Semaphore::new(1_000)));
    let by_user = looked_up(&lookups, &open);
    let by_team = by_user.clone().key(KeyBy::header("x-team".parse().unwrap()));
    let ((by_user, _), (by_team, _)) = (limited(by_user).await, limited(by_team).await);
    let with = |field: &str, count: &str| {
        Request::get("/").header(field, "alice").header("x-count", count).body(Body::empty()).unwrap()
    };
    for expected in [200, 429] {
        assert_eq!(status(&by_user, with("x-user", "1")).await, expected);
    }
    for expected in [200, 200, 429] {
        assert_eq!(status(&by_team, with("x-team", "2")).await, expected);
    }
    assert_eq!(lookups.load(Ordering::Relaxed), 2);
}

/// A rule that is only tried out refuses no one.
#[tokio::test]
async fn a_failed_look_up_of_a_shadow_rule_refuses_no_one() {
    let rule = per_minute(1).with_shadow(true);
    let limit = Limit::new(rule).count_async(Duration::ZERO, |_| async { Err::<u64, _>("away") });
    let (router, _clock) = limited(limit).await;
    assert_eq!(status(&router, anonymous()).await, 200);
}

/// Settings of a rules file that do not fit beside other limits are ignored there.
#[tokio::test]
async fn a_failed_look_up_refuses_by_the_rule_as_it_applies_beside_others() {
    let text = "[rules.item]\nalgorithm = \"LeakyBucket\"\nqueue = 5\nshadow = true";
    let rules = ratelimit_runtime::config::Rules::parse(text).unwrap();
    let limiter = Limiter::builder("memory://").rules(rules).build().await.unwrap();
    let limit = Limit::new(per_minute(1)).count_async(Duration::ZERO, |_| async { Err::<u64, _>("away") });
    let other = Limit::new(Rule::new("other", 5, MINUTE));
    for kind in KINDS {
        for (limits, expected) in [(vec![limit.clone()], 200), (vec![limit.clone(), other.clone()], 503)] {
            let what = format!("{kind:?}, {} limits", limits.len());
            let service = Service::start(kind, RateLimitLayer::new(limits).limiter(limiter.clone()));
            assert_eq!(service.status(service.get("/")).await, expected, "{what}");
        }
    }
}

#[tokio::test]
async fn requests_of_one_key_share_a_look_up() {
    let (lookups, gate) = (Arc::new(AtomicU64::new(0)), Arc::new(Semaphore::new(0)));
    let (router, _clock) = limited(looked_up(&lookups, &gate)).await;
    let request = |count: Option<&str>| {
        let request = Request::get("/").header("x-user", "alice");
        let request = if let Some(count) = count { request.header("x-count", count) } else { request };
        request.body(Body::empty()).unwrap()
    };
    // The first one looks up, and its client leaves. Another one looks up in its place.
    let leaving = router.clone();
    let first = tokio::spawn(async move { status(&leaving, by("alice")).await });
    eventually("it looks up", || async { lookups.load(Ordering::Relaxed) == 1 }).await;
    let waiting: Vec<_> = (0..50)
        .map(|_| {
            let (router, request) = (router.clone(), request(Some("20")));
            tokio::spawn(async move { status(&router, request).await })
        })
        .collect();
    tokio::task::yield_now().await;
    first.abort();
    eventually("another one looks up", || async { lookups.load(Ordering::Relaxed) == 2 }).await;
    gate.add_permits(1);
    eventually("all are answered", || async { waiting.iter().all(tokio::task::JoinHandle::is_finished) }).await;
    let statuses: Vec<_> = join_all(waiting).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 20);
    assert_eq!(lookups.load(Ordering::Relaxed), 2);
    assert_eq!(gate.available_permits(), 0);

    // So is a failure: those who wait for it do not look up one after another.
    let (lookups, gate) = (Arc::new(AtomicU64::new(0)), Arc::new(Semaphore::new(0)));
    let (router, _clock) = limited(looked_up(&lookups, &gate)).await;
    let failing: Vec<_> = (0..50)
        .map(|_| {
            let (router, request) = (router.clone(), request(None));
            tokio::spawn(async move { status(&router, request).await })
        })
        .collect();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    gate.add_permits(1_000);
    let statuses: Vec<_> = join_all(failing).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(statuses, [503; 50]);
    assert_eq!(lookups.load(Ordering::Relaxed), 1);
}
