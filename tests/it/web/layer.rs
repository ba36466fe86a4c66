//! `RateLimitLayer` in front of a service.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::join_all;
use ratelimit_runtime::config::Rules;
use ratelimit_runtime::web::{RequestHold, SettleBy};
use ratelimit_runtime::{Algorithm, OnStoreError};
use tower::{Layer as _, Service as _, service_fn};

use super::*;

/// A clone that counts for itself limits nothing: servers clone a service for each connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_requests_pass_a_layer_exactly_up_to_the_limit() {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let server = ratelimit_harness::RedisServer::start();
    for limiter in [Limiter::in_memory(), crate::support::limiter_on(&server).await] {
        let layer = RateLimitLayer::new([Limit::new(per_minute(100)).key(by_user())]).limiter(limiter);
        let address = serve(behind(layer)).await;
        let requests = (0..1_000).map(|_| {
            let request = client.get(format!("http://{address}/")).header("x-user", "alice");
            tokio::spawn(async move { request.send().await.unwrap().status().as_u16() })
        });
        let statuses: Vec<_> = join_all(requests).await.into_iter().map(Result::unwrap).collect();
        let with = |status| statuses.iter().filter(|other| **other == status).count();
        assert_eq!((with(200), with(429)), (100, 900));
    }
}

#[tokio::test]
async fn several_limits_of_a_layer_are_one_decision() {
    const PER_USER: Rule = Rule::new("user", 10, MINUTE);
    const ALL: Rule = Rule::new("all", 2, MINUTE);
    let limiter = Limiter::in_memory();
    let layer = RateLimitLayer::new([Limit::new(PER_USER).key(by_user()), Limit::new(ALL)]);
    let router = behind(layer.limiter(limiter.clone()));
    for expected in [200, 200, 429, 429] {
        assert_eq!(status(&router, by("alice")).await, expected);
    }
    assert_eq!(limiter.peek(&PER_USER, "alice").await.unwrap().remaining(), 8, "a refusal charges no rule");
    let refused = send(&router, by("alice")).await;
    assert_eq!(problem(refused).await["violated-policies"], serde_json::json!(["all"]));
}

#[tokio::test]
async fn a_limit_may_apply_to_some_requests_and_at_a_cost() {
    let is_export = |request: &http::request::Parts| request.uri.path() == "/export";
    let cost = |request: &http::request::Parts| if request.method == "POST" { 3 } else { 1 };
    let (router, _clock) = limited(Limit::new(per_minute(4)).when(is_export).cost(cost)).await;
    let request = |method: &str, path: &str| Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
    for (method, path, expected) in [
        ("POST", "/export", 200),
        ("POST", "/export", 429),
        ("GET", "/export", 200),
        ("GET", "/export", 429),
        ("POST", "/", 200),
    ] {
        assert_eq!(status(&router, request(method, path)).await, expected, "{method} {path}");
    }
}

#[tokio::test]
async fn a_rule_of_a_layer_may_ban() {
    let (router, clock) = limited(Limit::new(per_minute(1).with_ban(5 * MINUTE)).key(by_user())).await;
    for expected in [200, 429] {
        assert_eq!(status(&router, by("alice")).await, expected);
    }
    clock.advance(4 * MINUTE);
    let banned = send(&router, by("alice")).await;
    assert_eq!((banned.status().as_u16(), banned.headers()["retry-after"].to_str().unwrap()), (429, "60"));
    clock.advance(MINUTE);
    assert_eq!(status(&router, by("alice")).await, 200);
}

#[tokio::test]
async fn a_route_may_have_a_layer_of_its_own() {
    let limiter = Limiter::in_memory();
    let layer = |rule| RateLimitLayer::new([Limit::new(rule)]).limiter(limiter.clone());
    let hello = || async { "hello" };
    let router = Router::new()
        .route("/a", axum::routing::get(hello).layer(layer(Rule::new("a", 1, MINUTE))))
        .route("/b", axum::routing::get(hello).layer(layer(Rule::new("b", 2, MINUTE))));
    let at = |path: &str| Request::get(path).body(Body::empty()).unwrap();
    for (path, expected) in [("/a", 200), ("/a", 429), ("/b", 200), ("/b", 200), ("/b", 429)] {
        assert_eq!(status(&router, at(path)).await, expected, "{path}");
    }
}

/// A refused upload is not read.
#[tokio::test]
async fn the_body_of_a_refused_request_is_not_read() {
    struct Untouchable;

    impl http_body::Body for Untouchable {
        type Data = bytes::Bytes;
        type Error = Infallible;

        fn poll_frame(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<http_body::Frame<bytes::Bytes>, Infallible>>> {
            panic!("the body of a refused request was read")
        }
    }

    let (router, _clock) = limited(Limit::new(per_minute(1)).key(by_user())).await;
    assert_eq!(status(&router, by("alice")).await, 200);
    let upload = Request::post("/").header("x-user", "alice").body(Body::new(Untouchable)).unwrap();
    assert_eq!(status(&router, upload).await, 429);
}

/// The instance that was polled ready is the one that is called.
#[tokio::test]
async fn the_service_that_was_polled_ready_gets_the_request() {
    let service = tower::limit::ConcurrencyLimit::new(
        service_fn(async |_: http::Request<()>| Ok::<_, Infallible>(http::Response::new(Body::from("hello")))),
        1,
    );
    let mut limited = RateLimitLayer::new([Limit::new(per_minute(10))]).limiter(Limiter::in_memory()).layer(service);
    for _ in 0..3 {
        limited.ready().await.unwrap();
        assert_eq!(limited.call(http::Request::new(())).await.unwrap().status(), 200);
    }
}

/// The body may come later, and the service may keep the hold.
#[tokio::test]
async fn a_cost_that_the_head_does_not_tell_is_charged_when_the_head_is_there() {
    let inner = service_fn(async |mut request: http::Request<()>| {
        std::mem::forget(request.extensions_mut().remove::<RequestHold>().unwrap());
        Ok::<_, Infallible>(http::Response::new(Body::from("hello")))
    });
    let (clock, log) = (ManualClock::new(), per_minute(10).with_algorithm(Algorithm::SlidingLog));
    let limiter = in_memory(&clock).await;
    let limit = Limit::new(log).key(by_user()).settle(4, SettleBy::header(http::HeaderName::from_static("x-used")));
    let service = RateLimitLayer::new([limit]).limiter(limiter.clone()).layer(inner);
    let request = http::Request::builder().header("x-user", "alice").body(()).unwrap();
    let response = service.oneshot(request).await.unwrap();
    assert_eq!(limiter.peek(&log, "alice").await.unwrap().remaining(), 6);
    clock.advance(MINUTE);
    assert_eq!(limiter.peek(&log, "alice").await.unwrap().remaining(), 10);
    drop(response);
}

/// Also if there is no response: the service fails, or the client leaves. The service may keep the hold.
#[tokio::test]
async fn a_cost_is_charged_when_the_service_fails_or_the_client_leaves() {
    let (clock, log) = (ManualClock::new(), per_minute(10).with_algorithm(Algorithm::SlidingLog));
    let limiter = in_memory(&clock).await;
    for fails in [true, false] {
        let inner = service_fn(move |mut request: http::Request<()>| async move {
            std::mem::forget(request.extensions_mut().remove::<RequestHold>().unwrap());
            if !fails {
                std::future::pending::<()>().await;
            }
            Err::<http::Response<Body>, _>("failed")
        });
        let request = http::Request::builder().header("x-user", "alice").body(()).unwrap();
        let limit = Limit::new(log).key(by_user()).settle(4, SettleBy::header(http::HeaderName::from_static("x-used")));
        let mut answer = Box::pin(RateLimitLayer::new([limit]).limiter(limiter.clone()).layer(inner).oneshot(request));
        assert_eq!(futures_util::FutureExt::now_or_never(&mut answer).is_some(), fails);
        drop(answer);
        assert_eq!(limiter.peek(&log, "alice").await.unwrap().remaining(), 6);
        clock.advance(MINUTE);
        assert_eq!(limiter.peek(&log, "alice").await.unwrap().remaining(), 10);
    }
}

/// The function of the user that tells the cost panics, and the service has kept the hold.
#[tokio::test]
async fn a_cost_is_charged_when_the_function_that_tells_it_panics() {
    let inner = service_fn(async |mut request: http::Request<()>| {
        std::mem::forget(request.extensions_mut().remove::<RequestHold>().unwrap());
        Ok::<_, Infallible>(http::Response::new(Body::from("hello")))
    });
    let (clock, log) = (ManualClock::new(), per_minute(10).with_algorithm(Algorithm::SlidingLog));
    let limiter = in_memory(&clock).await;
    let limit =
        Limit::new(log).key(by_user()).settle(4, SettleBy::response(|_| -> Option<u64> { panic!("no such field") }));
    let service = RateLimitLayer::new([limit]).limiter(limiter.clone()).layer(inner);
    let request = http::Request::builder().header("x-user", "alice").body(()).unwrap();
    assert!(tokio::spawn(service.oneshot(request)).await.unwrap_err().is_panic());
    assert_eq!(limiter.peek(&log, "alice").await.unwrap().remaining(), 6);
    clock.advance(MINUTE);
    assert_eq!(limiter.peek(&log, "alice").await.unwrap().remaining(), 10);
}

/// The service has room for one request. One that is held up, by a limit or a look-up, does not take it.
#[tokio::test]
async fn a_request_that_waits_leaves_the_capacity_of_the_service_to_others() {
    let service = tower::limit::ConcurrencyLimit::new(
        service_fn(async |_: http::Request<()>| Ok::<_, Infallible>(http::Response::new(Body::from("hello")))),
        1,
    );
    let paced = per_minute(1).with_algorithm(Algorithm::LeakyBucket { queue: 5 });
    // A look-up of a request with the field `x-held-up` takes a permit.
    let opened = Arc::new(tokio::sync::Semaphore::new(0));
    let (of_count, of_key) = (Arc::clone(&opened), Arc::clone(&opened));
    let look_up = |opened: &Arc<tokio::sync::Semaphore>, request: &http::request::Parts| {
        let (opened, is_held_up) = (Arc::clone(opened), request.headers.contains_key("x-held-up"));
        async move {
            if is_held_up {
                opened.acquire().await.unwrap().forget();
            }
        }
    };
    let counts = Limit::new(per_minute(9)).key(by_user()).count_async(Duration::ZERO, move |request| {
        let looked_up = look_up(&of_count, request);
        async {
            looked_up.await;
            Ok::<u64, String>(9)
        }
    });
    let keys = KeyBy::from_async_fn(move |request| {
        let looked_up = look_up(&of_key, request);
        async {
            looked_up.await;
            Some(ratelimit_runtime::Key::new("all"))
        }
    });
    for (layer, what) in [
        (RateLimitLayer::new([Limit::new(per_minute(1)).key(by_user())]).wait(MINUTE), "quota"),
        (RateLimitLayer::new([Limit::new(paced).key(by_user())]), "a slot"),
        (RateLimitLayer::new([Limit::new(per_minute(1)).key(by_user())]), "a slot by a file"),
        (RateLimitLayer::new([counts]), "a count"),
        (RateLimitLayer::new([Limit::new(per_minute(9)).key(keys)]), "a key"),
    ] {
        let clock = ManualClock::new();
        let mut builder = Limiter::builder("memory://").clock(clock.clone());
        if what == "a slot by a file" {
            builder = builder.rules(Rules::parse("[rules.item]\nalgorithm = \"LeakyBucket\"\nqueue = 5").unwrap());
        }
        let limited = layer.limiter(builder.build().await.unwrap()).layer(service.clone());
        let ask = |user: &str, is_held_up: bool| {
            let request = http::Request::builder().header("x-user", user);
            let request = if is_held_up { request.header("x-held-up", "") } else { request };
            let answer = tokio::spawn(limited.clone().oneshot(request.body(()).unwrap()));
            async {
                tokio::time::timeout(Duration::from_secs(10), answer)
                    .await
                    .expect("an answer")
                    .unwrap()
                    .unwrap()
                    .status()
            }
        };
        assert_eq!(ask("alice", false).await, 200, "{what}");
        let waiting = tokio::spawn(ask("alice", true));
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(ask("bob", false).await, 200, "{what}");
        assert!(!waiting.is_finished(), "{what}");
        clock.advance(MINUTE);
        opened.add_permits(1);
        assert_eq!(waiting.await.unwrap(), 200, "{what}");
        opened.forget_permits(1);
    }
}

#[tokio::test]
async fn an_error_of_the_service_passes_the_layer() {
    let failing = service_fn(async |_: http::Request<()>| Err::<http::Response<Body>, _>("broken"));
    let limited = RateLimitLayer::new([Limit::new(per_minute(1))]).limiter(Limiter::in_memory()).layer(failing);
    assert_eq!(limited.clone().oneshot(http::Request::new(())).await.unwrap_err(), "broken");
    let refused = limited.oneshot(http::Request::new(())).await.unwrap();
    assert_eq!(refused.status(), 429);
}

#[tokio::test]
async fn a_refused_request_does_not_reach_the_service() {
    let calls = Arc::new(AtomicU64::new(0));
    let counting = {
        let calls = Arc::clone(&calls);
        service_fn(move |_: http::Request<()>| {
            calls.fetch_add(1, Ordering::Relaxed);
            async { Ok::<_, Infallible>(http::Response::new(Body::empty())) }
        })
    };
    let limited = RateLimitLayer::new([Limit::new(per_minute(2))]).limiter(Limiter::in_memory()).layer(counting);
    for _ in 0..5 {
        limited.clone().oneshot(http::Request::new(())).await.unwrap();
    }
    assert_eq!(calls.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn an_outage_is_decided_by_the_policy_of_the_layer() {
    for (limiters, layers, expected) in [
        (OnStoreError::Deny, None, 503),
        (OnStoreError::Allow, None, 200),
        (OnStoreError::Allow, Some(OnStoreError::Deny), 503),
        (OnStoreError::Deny, Some(OnStoreError::Allow), 200),
    ] {
        let layer = RateLimitLayer::new([Limit::new(per_minute(1))]).limiter(nowhere(limiters).await);
        let layer = layers.into_iter().fold(layer, RateLimitLayer::on_store_error);
        let router = behind(layer);
        for _ in 0..2 {
            let response = send(&router, anonymous()).await;
            assert_eq!(response.status(), expected, "{limiters:?}, {layers:?}");
            let retry_after = response.headers().get("retry-after").map(|wait| wait.to_str().unwrap());
            assert_eq!(retry_after, (expected == 503).then_some("1"), "{limiters:?}, {layers:?}");
            assert!(response.headers().get("ratelimit").is_none(), "nothing was counted");
        }
    }
}

/// Without a limiter of its own, a layer sees that of the process, or of the scope.
#[tokio::test]
async fn a_layer_without_a_limiter_uses_that_of_the_scope() {
    let router = behind(RateLimitLayer::new([Limit::new(per_minute(1))]));
    for _ in 0..2 {
        Limiter::in_memory()
            .scope(async {
                assert_eq!(status(&router, anonymous()).await, 200);
                assert_eq!(status(&router, anonymous()).await, 429);
            })
            .await;
    }
}

#[tokio::test]
async fn a_place_is_held_until_the_response_body_has_ended() {
    const PLACES: Rule = Rule::new("download", 1, MINUTE).with_algorithm(Algorithm::Concurrent);
    let server = ratelimit_harness::RedisServer::start();
    for limiter in [Limiter::in_memory(), crate::support::limiter_on(&server).await] {
        let router = behind(RateLimitLayer::new([Limit::new(PLACES).key(by_user())]).limiter(limiter));
        let first = send(&router, by("alice")).await;
        assert_eq!(first.status(), 200);
        let refused = send(&router, by("alice")).await;
        assert_eq!(refused.status(), 429);
        // The time when it is free is not known, and places are no quota of a time.
        assert_eq!(refused.headers()["retry-after"], "1");
        assert!(!refused.headers().keys().any(|name| name.as_str().contains("ratelimit")), "{:?}", refused.headers());
        assert_eq!(problem(refused).await["detail"], "`download` is limited to 1 at once");
        assert_eq!(status(&router, by("bob")).await, 200);
        axum::body::to_bytes(first.into_body(), usize::MAX).await.unwrap();
        assert_eq!(status(&router, by("alice")).await, 200);
    }
}

/// Without a body, and with the length of the one that a `GET` would have got.
#[tokio::test]
async fn a_refused_head_request_gets_no_body() {
    use http_body::Body as _;

    let hello = service_fn(async |_: http::Request<()>| Ok::<_, Infallible>(http::Response::new(Body::empty())));
    let stopped = in_memory(&ManualClock::new()).await; // both name the same wait
    let limited = RateLimitLayer::new([Limit::new(per_minute(1))]).limiter(stopped).layer(hello);
    let ask = async |method: &str| {
        limited.clone().oneshot(http::Request::builder().method(method).body(()).unwrap()).await.unwrap()
    };
    assert_eq!(ask("HEAD").await.status(), 200);
    let (get, head) = (ask("GET").await, ask("HEAD").await);
    assert_eq!((get.status().as_u16(), head.status().as_u16()), (429, 429));
    assert!(head.body().is_end_stream(), "{head:?}");
    assert_eq!(head.headers()["content-length"], get.body().size_hint().exact().unwrap().to_string());
    assert_eq!(head.headers()["content-type"], get.headers()["content-type"]);
    assert_eq!(head.into_body().collect().await.unwrap().to_bytes(), "");
}

/// The response to an upgrade is over at once; its connection is not.
#[tokio::test]
async fn a_place_is_held_until_an_upgraded_connection_is_closed() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;

    async fn echo(mut request: Request) -> Response {
        let upgraded = hyper::upgrade::on(&mut request);
        let hold = request.extensions_mut().remove::<RequestHold>();
        tokio::spawn(async move {
            let _hold = hold;
            let mut connection = hyper_util::rt::TokioIo::new(upgraded.await.unwrap());
            let (mut read, mut write) = tokio::io::split(&mut connection);
            let _ = tokio::io::copy(&mut read, &mut write).await;
        });
        let response = http::Response::builder().status(101).header("connection", "upgrade").header("upgrade", "echo");
        response.body(Body::empty()).unwrap()
    }

    /// The first line of the answer, and the connection.
    async fn connect(address: SocketAddr) -> (String, TcpStream) {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = "GET / HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            answer.push(stream.read_u8().await.unwrap());
        }
        let answer = String::from_utf8(answer).unwrap();
        (answer.lines().next().unwrap().to_owned(), stream)
    }

    // Whichever of two layers has the fewer places, and whether it has another limit.
    for (limits, [inner, outer]) in [(1, [1, 5]), (1, [5, 1]), (2, [1, 5])] {
        let layer = |count: u64| {
            let places = Rule::new("sockets", count, MINUTE).with_algorithm(Algorithm::Concurrent);
            let limits = [places, Rule::new("rate", 1_000, MINUTE)].into_iter().take(limits).map(Limit::new);
            RateLimitLayer::new(limits).limiter(Limiter::in_memory())
        };
        let address = serve(Router::new().fallback(echo).layer(layer(inner)).layer(layer(outer))).await;
        let (first, mut stream) = connect(address).await;
        assert_eq!(first, "HTTP/1.1 101 Switching Protocols");
        stream.write_all(b"ping").await.unwrap();
        let mut echoed = [0; 4];
        stream.read_exact(&mut echoed).await.unwrap();
        assert_eq!(&echoed, b"ping");
        assert_eq!(connect(address).await.0, "HTTP/1.1 429 Too Many Requests");
        drop(stream);
        crate::support::eventually("the place is free", || async {
            connect(address).await.0 == "HTTP/1.1 101 Switching Protocols"
        })
        .await;
    }
}

/// The log warns about a service that ignores its place, once a second at most. The place may be that of an outer
/// layer; the inner one has another hold, which refers to it.
#[tokio::test]
async fn an_upgrade_that_does_not_take_its_place_is_logged() {
    let places = Limit::new(Rule::new("sockets", 9, MINUTE).with_algorithm(Algorithm::Concurrent));
    let settled = Limit::new(per_minute(10).with_algorithm(Algorithm::SlidingLog)).settle(1, SettleBy::response(|_| 1));
    let [inner, outer] = [[settled], [places]].map(RateLimitLayer::new);
    for (keeps, is_nested) in [(true, true), (false, true), (false, false)] {
        let (log, _guard) = crate::support::log::Log::install();
        let upgrade = async || {
            let service = service_fn(move |mut request: http::Request<()>| async move {
                if keeps {
                    std::mem::forget(request.extensions_mut().remove::<RequestHold>().unwrap());
                }
                Ok::<_, Infallible>(http::Response::builder().status(101).body(Body::empty()).unwrap())
            });
            let outer = outer.clone().limiter(Limiter::in_memory());
            let request = http::Request::new(());
            let response = if is_nested {
                outer.layer(inner.clone().limiter(Limiter::in_memory()).layer(service)).oneshot(request).await.map(drop)
            } else {
                outer.layer(service).oneshot(request).await.map(drop)
            };
            response.unwrap();
            !log.with("the service keeps no `RequestHold`").is_empty()
        };
        if keeps {
            assert!(!upgrade().await, "the service keeps the place");
        } else {
            crate::support::eventually("the log has a warning", upgrade).await;
        }
    }
}
