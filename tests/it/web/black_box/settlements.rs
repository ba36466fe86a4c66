//! Costs that the response tells: by its status, a header field, or its body.

use ratelimit_runtime::web::SettleBy;
use ratelimit_runtime::{Algorithm, Key};

use super::*;
use crate::support::eventually;

const TOKENS: Rule = Rule::new("tokens", 100, MINUTE).with_algorithm(Algorithm::SlidingLog);

/// The numbers behind `tokens=` in a body, wherever it is split.
fn by_body() -> SettleBy {
    SettleBy::body(|response| {
        let is_counted = response.status == 200;
        let mut text = String::new();
        move |part| {
            text.push_str(std::str::from_utf8(part).unwrap());
            let mut used = 0;
            while let Some((line, rest)) = text.split_once(';') {
                used += line.strip_prefix("tokens=").filter(|_| is_counted).map_or(0, |tokens| tokens.parse().unwrap());
                text = rest.to_owned();
            }
            used
        }
    })
}

async fn used_by(rule: &Rule, user: &str, limiter: &Limiter) -> u64 {
    100 - limiter.peek(rule, user).await.unwrap().remaining()
}

async fn used(limiter: &Limiter) -> u64 {
    used_by(&TOKENS, "alice", limiter).await
}

fn tokens(max: u64, by: SettleBy) -> Limit {
    Limit::new(TOKENS).key(by_user()).settle(max, by)
}

#[tokio::test]
async fn only_failed_logins_count() {
    let rule = Rule::new("logins", 2, MINUTE).with_algorithm(Algorithm::SlidingLog);
    let server = ratelimit_harness::RedisServer::start();
    for kind in KINDS {
        for limiter in [Limiter::in_memory(), crate::support::limiter_on(&server).await] {
            let is_failed = SettleBy::response(|response| u64::from(response.status == 401));
            let limit = Limit::new(rule).key(KeyBy::header("x-user".parse().unwrap())).settle(1, is_failed);
            let service = Service::start(kind, RateLimitLayer::new([limit]).limiter(limiter.clone()));
            let user = crate::support::fresh_key().to_string();
            let login = |status: u16| service.get(&format!("/status/{status}")).header("x-user", &user);
            assert_eq!(service.statuses(5, || login(200)).await, [200; 5], "{kind:?}");
            assert_eq!(service.statuses(3, || login(401)).await, [401, 401, 429], "{kind:?}");
            assert_eq!(service.status(login(200)).await, 429, "{kind:?}");
        }
    }
}

#[tokio::test]
async fn a_header_field_tells_the_cost() {
    for kind in KINDS {
        let (layer, limiter, _clock) = timed([tokens(30, SettleBy::header("x-used".parse().unwrap()))]).await;
        let service = Service::start(kind, layer);
        let ask = || service.get("/used").header("x-user", "alice");
        let mut expected = 0;
        for (field, cost) in [(Some("5"), 5), (Some("0"), 0), (None, 30), (Some("-1"), 30), (Some("31"), 31)] {
            let request = if let Some(field) = field { ask().header("x-use", field) } else { ask() };
            let response = request.send().await.unwrap();
            assert_eq!(response.status(), 200, "{kind:?}");
            assert_eq!(response.headers()["ratelimit-policy"], "\"tokens\";q=100;w=60", "{kind:?}");
            expected += cost;
            assert_eq!(used(&limiter).await, expected, "{kind:?}: {field:?}, when the head is there");
        }
        // Four are left, and a request holds up to thirty.
        assert_eq!(service.status(ask()).await, 429, "{kind:?}");
    }
}

/// A cost that is not held could not be settled, and so would never be counted.
#[tokio::test]
async fn a_request_of_cost_0_is_settled() {
    for kind in KINDS {
        let limit = tokens(40, SettleBy::header("x-used".parse().unwrap())).cost(|_| 0);
        let (layer, limiter, _clock) = timed([limit]).await;
        let service = Service::start(kind, layer);
        let request = service.get("/used").header("x-user", "alice").header("x-use", "7");
        assert_eq!(service.status(request).await, 200, "{kind:?}");
        assert_eq!(used(&limiter).await, 7, "{kind:?}");
    }
}

/// The service has set a length that is not that of the body.
#[tokio::test]
async fn all_parts_of_a_body_count_whatever_its_length_was_said_to_be() {
    use tower::{Layer as _, ServiceExt as _};

    let (layer, limiter, _clock) = timed([tokens(40, by_body())]).await;
    let service = tower::service_fn(async |_: http::Request<()>| {
        let parts = stream::iter(["tokens=3;", "tokens=4;"].map(Ok::<_, std::io::Error>));
        let response = http::Response::builder().header("content-length", 9);
        Ok::<_, std::io::Error>(response.body(Body::from_stream(parts)).unwrap())
    });
    let request = http::Request::builder().header("x-user", "alice").body(()).unwrap();
    let response = layer.layer(service).oneshot(request).await.unwrap();
    response.into_body().collect().await.unwrap();
    assert_eq!(used(&limiter).await, 7);
}

/// An adapter around the body may ask on after an error, and is told that there is no more.
#[tokio::test]
async fn a_body_that_is_polled_after_its_failure_has_not_ended() {
    use tower::{Layer as _, ServiceExt as _};

    let (layer, limiter, _clock) = timed([tokens(40, by_body())]).await;
    let service = tower::service_fn(async |_: http::Request<()>| {
        let parts = stream::iter([Ok("tokens=3;"), Err(std::io::Error::other("failure"))]);
        Ok::<_, std::io::Error>(http::Response::new(Body::from_stream(parts)))
    });
    let request = http::Request::builder().header("x-user", "alice").body(()).unwrap();
    let mut body = layer.layer(service).oneshot(request).await.unwrap().into_body();
    assert!(body.frame().await.unwrap().is_ok() && body.frame().await.unwrap().is_err());
    assert!(body.frame().await.is_none());
    drop(body);
    assert_eq!(used(&limiter).await, 40);
}

/// A client, by its use of the response.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Client {
    Reads,
    /// Disconnects after the first part.
    Leaves,
}

#[tokio::test]
async fn the_parts_of_a_body_tell_the_cost() {
    let server = ratelimit_harness::RedisServer::start();
    for kind in KINDS {
        let limiters = [Limiter::in_memory(), crate::support::limiter_on(&server).await];
        // A log holds the cost, and a window is charged it and gets a refund.
        let rules = [TOKENS, TOKENS.with_algorithm(Algorithm::FixedWindow { align: false })];
        for (limiter, rule) in limiters.iter().flat_map(|limiter| rules.map(|rule| (limiter, rule))) {
            let limit = Limit::new(rule).key(by_user()).settle(40, by_body());
            let layer = RateLimitLayer::new([limit]).limiter(limiter.clone());
            let service = Service::start(kind, layer);
            for (path, parts, client, cost) in [
                ("/stream", "tokens=3;", Client::Reads, 3),
                ("/stream", "tok|ens=3;tokens=|4;|text", Client::Reads, 7),
                ("/stream", "", Client::Reads, 0),
                ("/stream", "tokens=60;", Client::Reads, 60), // more than was held counts, too
                ("/status/404", "", Client::Reads, 0),
                ("/panic", "", Client::Reads, 40),
                // The body has not ended, so more may have been used: all that was held.
                ("/stream", "tokens=3;|forever", Client::Leaves, 40),
                ("/stream", "tokens=45;|forever", Client::Leaves, 45),
                ("/stream", "tokens=3;|failure", Client::Reads, 40),
                ("/stream", "failure", Client::Reads, 40),
            ] {
                let user = &format!("user-{}", crate::support::fresh_key());
                let what = format!("{kind:?}, {rule:?}, {path}, {parts}, {client:?}");
                let request = service.get(path).header("x-user", user).header("x-parts", parts);
                match (request.send().await, client) {
                    (Err(_), _) => assert!(path == "/panic" || parts.ends_with("failure"), "{what}"),
                    (Ok(response), Client::Reads) => drop(response.bytes().await),
                    (Ok(mut response), Client::Leaves) => {
                        assert!(response.chunk().await.unwrap().is_some(), "{what}");
                        assert_eq!(used_by(&rule, user, limiter).await, 40, "{what}: held while the body runs");
                        drop(response);
                    }
                }
                eventually(&format!("{what}: the body is gone"), || async { !is_open(user) }).await;
                let is_settled = || async { used_by(&rule, user, limiter).await == cost };
                eventually(&format!("{what}: {cost} are used"), is_settled).await;
                tokio::time::sleep(Duration::from_millis(10)).await; // what it held is no other cost
                assert!(is_settled().await, "{what}");
            }
        }
    }
}

/// The client does not get the body, so it cannot tell the cost.
#[tokio::test]
async fn a_head_request_is_charged_what_it_held() {
    for kind in KINDS {
        let (layer, limiter, _clock) = timed([tokens(40, by_body())]).await;
        let service = Service::start(kind, layer);
        let request = service.client.head(format!("{}/stream", service.url)).header("x-parts", "tokens=3;");
        assert_eq!(service.status(request.header("x-user", "alice")).await, 200, "{kind:?}");
        eventually(&format!("{kind:?}: 40 are used"), || async { used(&limiter).await == 40 }).await;
    }
}

/// One decision: the counters of a user and of all are held together, and each is charged what was used.
#[tokio::test]
async fn several_limits_are_settled_with_one_cost() {
    let [all, trial] = ["all", "trial"].map(|name| Rule::new(name, 200, MINUTE).with_algorithm(Algorithm::SlidingLog));
    let trial = trial.with_shadow(true);
    for kind in KINDS {
        let by = by_body();
        // The cost of a request is what it holds, up to the maximum of the limit.
        let limits = [
            tokens(40, by.clone()).cost(|_| 30),
            Limit::new(all).settle(50, by.clone()),
            Limit::new(per_minute(9)),
            Limit::new(trial).settle(150, by),
        ];
        let (layer, limiter, _clock) = timed(limits).await;
        let service = Service::start(kind, layer);
        let request = service.get("/stream").header("x-user", "alice").header("x-parts", "tokens=35;|forever");
        let mut response = request.send().await.unwrap();
        response.chunk().await.unwrap();
        let left = async |rule| limiter.peek(rule, Key::NONE).await.unwrap().remaining();
        let state = async || (used(&limiter).await, 200 - left(&all).await, 200 - left(&trial).await);
        assert_eq!(state().await, (30, 50, 150), "{kind:?}");
        drop(response);
        // Each is charged what it held, or what was seen if that is more.
        eventually(&format!("{kind:?}: settled"), || async { state().await == (35, 50, 150) }).await;
        let request = service.get("/stream").header("x-user", "alice").header("x-parts", "tokens=35;");
        assert_eq!(service.status(request).await, 200, "{kind:?}");
        eventually(&format!("{kind:?}: settled"), || async { state().await == (70, 85, 150) }).await;
        assert_eq!(limiter.peek(&per_minute(9), Key::NONE).await.unwrap().remaining(), 7, "{kind:?}");
    }
}

/// Both charge one counter, which can be settled once.
#[tokio::test]
async fn a_limit_on_trial_gives_way_to_an_enforced_one_of_its_counter() {
    for kind in KINDS {
        for trial_first in [true, false] {
            let by = SettleBy::header("x-used".parse().unwrap());
            let limit = |is_trial| Limit::new(TOKENS.with_shadow(is_trial)).key(by_user()).settle(30, by.clone());
            let (layer, limiter, _clock) = timed([limit(trial_first), limit(!trial_first)]).await;
            let service = Service::start(kind, layer);
            let ask = |used: &str| service.get("/used").header("x-user", "alice").header("x-use", used);
            assert_eq!(service.status(ask("5")).await, 200, "{kind:?}");
            assert_eq!(used(&limiter).await, 5, "{kind:?}, trial first: {trial_first}");
            assert_eq!(service.status(ask("90")).await, 200, "{kind:?}");
            assert_eq!(service.status(ask("1")).await, 429, "{kind:?}, trial first: {trial_first}");
        }
    }
}

#[test]
#[should_panic(expected = "two limits of a layer are settled by different `SettleBy`")]
fn different_ways_to_settle_do_not_fit_into_one_layer() {
    let _ = RateLimitLayer::new([tokens(5, by_body()), tokens(9, by_body())]);
}

#[test]
#[should_panic(expected = "`item`: prefetched permits can't be settled: remove `prefetch`")]
fn a_rule_that_cannot_settle_is_refused_when_the_limit_is_made() {
    let _ = Limit::new(per_minute(10).with_prefetch(5)).settle(1, by_body());
}

#[test]
#[should_panic(expected = "`tokens`: `max` is 0, so no response would be counted; charge at least 1")]
fn a_limit_that_holds_nothing_is_refused_when_it_is_made() {
    let _ = tokens(0, by_body());
}

#[test]
#[should_panic(expected = "`tokens`: each request would hold 101, above the count of 100, and be refused")]
fn a_limit_that_no_request_fits_is_refused_when_the_layer_is_made() {
    let by = by_body();
    let _ = RateLimitLayer::new([tokens(101, by.clone()).cost(|_| 5), tokens(101, by.clone()).count(|_| 500)]);
    let _ = RateLimitLayer::new([tokens(101, by)]);
}

/// A server asks for nothing after the trailers, and drops the body.
#[tokio::test]
async fn a_body_has_ended_with_its_trailers() {
    use http_body_util::BodyExt as _;
    use tower::{Layer as _, ServiceExt as _};

    let (layer, limiter, _clock) = timed([tokens(40, by_body())]).await;
    let service = tower::service_fn(async |_: http::Request<()>| {
        let parts = futures_util::stream::iter(["tokens=3;", "tokens=4;"].map(Ok::<_, std::io::Error>));
        let trailers = async { Some(Ok(http::HeaderMap::new())) };
        let body = axum::body::Body::new(axum::body::Body::from_stream(parts).with_trailers(trailers));
        Ok::<_, std::io::Error>(http::Response::new(body))
    });
    let request = http::Request::builder().header("x-user", "alice").body(()).unwrap();
    let mut body = layer.layer(service).oneshot(request).await.unwrap().into_body();
    while !body.frame().await.unwrap().unwrap().is_trailers() {}
    drop(body); // as hyper does
    assert_eq!(used(&limiter).await, 7);
}
