//! Waiting, places, and clones of a layer.

use std::sync::Arc;

use futures_util::future::join_all;
use ratelimit_runtime::{Algorithm, Key};

use super::*;
use crate::support::eventually;

/// A server has a clone of the layer for each thread or connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn clones_of_a_layer_share_their_counters() {
    for kind in KINDS {
        let (layer, ..) = timed([Limit::new(per_minute(50))]).await;
        let service = Arc::new(Service::start(kind, layer));
        let requests = (0..200).map(|_| {
            let service = Arc::clone(&service);
            tokio::spawn(async move { service.status(service.get("/")).await })
        });
        let statuses: Vec<_> = join_all(requests).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 50, "{kind:?}");
    }
}

#[tokio::test]
async fn requests_wait_in_their_order_for_as_long_as_they_may() {
    for kind in KINDS {
        let (layer, limiter, clock) = timed([Limit::new(per_minute(1)).key(by_user())]).await;
        let service = Arc::new(Service::start(kind, layer.wait(2 * MINUTE)));
        let ask = |service: &Arc<Service>| {
            let service = Arc::clone(service);
            tokio::spawn(async move { service.status(service.get("/").header("x-user", "alice")).await })
        };
        assert_eq!(ask(&service).await.unwrap(), 200, "{kind:?}");
        let waiting = |number: usize| {
            let limiter = limiter.clone();
            eventually("they wait", move || {
                let limiter = limiter.clone();
                // A waiting caller would come after all of them.
                async move {
                    let refused = limiter.acquire_within(&per_minute(1), "alice", Duration::ZERO).await.unwrap_err();
                    refused.retry_after().unwrap() > MINUTE * u32::try_from(number).unwrap()
                }
            })
        };
        let second = ask(&service);
        waiting(1).await;
        let third = ask(&service);
        waiting(2).await;
        // Its turn would come after three minutes.
        assert_eq!(ask(&service).await.unwrap(), 429, "{kind:?}");
        clock.advance(MINUTE);
        assert_eq!(second.await.unwrap(), 200, "{kind:?}");
        // The third asks on a thread of the server. Were the clock moved meanwhile, its answer would be a minute old.
        waiting(1).await;
        assert!(!third.is_finished(), "{kind:?}");
        clock.advance(MINUTE);
        assert_eq!(third.await.unwrap(), 200, "{kind:?}");
    }
}

/// A place, alone or beside another limit. A client that leaves while it waits takes neither.
#[tokio::test]
async fn a_request_waits_for_a_place_until_its_client_leaves() {
    let places = Rule::new("places", 1, MINUTE).with_algorithm(Algorithm::Concurrent);
    for kind in KINDS {
        for limits in [vec![Limit::new(places)], vec![Limit::new(places), Limit::new(per_minute(3))]] {
            let limiter = Limiter::in_memory();
            let layer = RateLimitLayer::new(limits.clone()).limiter(limiter.clone()).wait(MINUTE);
            let service = Arc::new(Service::start(kind, layer));
            let what = format!("{kind:?}, {} limits", limits.len());
            let user = format!("user-{}", crate::support::fresh_key());
            let request = service.get("/stream").header("x-parts", "text|forever").header("x-user", &user);
            let mut first = request.send().await.unwrap();
            first.chunk().await.unwrap();
            let ask = |user: &str| {
                let (service, user) = (Arc::clone(&service), user.to_owned());
                tokio::spawn(async move { service.status(service.get("/").header("x-user", user)).await })
            };
            let (leaver, waiter) = (format!("{user}-leaves"), format!("{user}-waits"));
            let leaving = ask(&leaver);
            eventually(&format!("{what}: it has arrived"), || async { requests(&leaver).0 == 1 }).await;
            let next = ask(&waiter);
            tokio::time::sleep(Duration::from_millis(30)).await;
            assert!(!leaving.is_finished() && !next.is_finished(), "{what}: the place is taken while the body is sent");
            leaving.abort();
            eventually(&format!("{what}: the server drops its request"), || async { requests(&leaver).0 == 0 }).await;
            drop(first);
            assert_eq!(next.await.unwrap(), 200, "{what}");
            assert_eq!((requests(&leaver).1, requests(&waiter).1), (0, 1), "{what}: reached the handler");
            let left = limiter.peek(&per_minute(3), Key::NONE).await.unwrap().remaining();
            assert_eq!(left, if limits.len() == 2 { 1 } else { 3 }, "{what}: two of the three were charged");
            eventually(&format!("{what}: the place is free"), || async {
                limiter.peek(&places, Key::NONE).await.unwrap().remaining() == 1
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_place_is_free_when_the_body_has_ended() {
    let places = Rule::new("places", 1, MINUTE).with_algorithm(Algorithm::Concurrent);
    for kind in KINDS {
        let limiter = Limiter::in_memory();
        let service = Service::start(kind, RateLimitLayer::new([Limit::new(places)]).limiter(limiter));
        let mut first = service.get("/stream").header("x-parts", "text|forever").send().await.unwrap();
        first.chunk().await.unwrap();
        assert_eq!(service.status(service.get("/")).await, 429, "{kind:?}");
        drop(first);
        eventually(&format!("{kind:?}: the place is free"), || async { service.status(service.get("/")).await == 200 })
            .await;
    }
}

/// With prefetch, requests are admitted without the server. Without a denial cache, each refusal asks it.
#[tokio::test]
async fn a_rule_of_a_layer_may_have_prefetch_and_no_denial_cache() {
    let server = ratelimit_harness::RedisServer::start();
    for kind in KINDS {
        let limiter = crate::support::limiter_on(&server).await;
        let key = crate::support::fresh_key();
        let limit = Limit::new(per_minute(100).with_prefetch(20));
        let limit = limit.key(KeyBy::from_fn(move |_| Some(ratelimit_runtime::Key::new(key))));
        let service = Service::start(kind, RateLimitLayer::new([limit]).limiter(limiter.clone()));
        assert_eq!(service.statuses(5, || service.get("/")).await, [200; 5], "{kind:?}");
        assert!(limiter.close().await >= 15, "{kind:?}: permits were prefetched, and are refunded");

        // Another process refunds: only a rule without a denial cache sees it at once.
        let rule = per_minute(1).with_denial_cache(false);
        let key = crate::support::fresh_key();
        let limit = Limit::new(rule).key(KeyBy::from_fn(move |_| Some(ratelimit_runtime::Key::new(key))));
        let other = crate::support::limiter_on(&server).await;
        let permit = other.acquire(&rule, key).await.unwrap();
        let service = Service::start(kind, RateLimitLayer::new([limit]).limiter(limiter));
        assert_eq!(service.status(service.get("/")).await, 429, "{kind:?}");
        permit.refund().await.unwrap();
        assert_eq!(service.status(service.get("/")).await, 200, "{kind:?}");
    }
}
