//! Keys: how a request identifies its sender, with real servers.

use std::sync::mpsc;
use std::thread;

use axum::Extension;
use axum::extract::ConnectInfo;
use futures_util::FutureExt as _;
use ratelimit_runtime::Key;
use ratelimit_runtime::web::OnMissingKey;
use reqwest::Client;

use super::*;
use crate::support::log::Log;

/// The gateway's behaviour: no name, no answer, unless it is set up otherwise.
#[tokio::test]
async fn a_missing_key_is_denied_unless_set_otherwise() {
    let limit = |missing| Limit::new(per_minute(1)).key(by_user()).on_missing_key(missing);
    let layer = |missing| RateLimitLayer::new([limit(missing)]).limiter(Limiter::in_memory());

    let default = behind(RateLimitLayer::new([Limit::new(per_minute(1)).key(by_user())]).limiter(Limiter::in_memory()));
    let refused = send(&default, anonymous()).await;
    assert_eq!(refused.status(), 403);
    let problem = problem(refused).await;
    assert_eq!(problem["detail"], "`item` is limited by key, and this call has no key");
    assert_eq!(status(&default, by("alice")).await, 200, "a refusal has not counted");

    let unauthorized = layer(OnMissingKey::Deny).on_refusal(|refused| refused.problem(http::StatusCode::UNAUTHORIZED));
    let unauthorized = behind(unauthorized);
    let refused = send(&unauthorized, anonymous()).await;
    assert_eq!(refused.status(), 401);
    assert_eq!(super::problem(refused).await["status"], 401);

    let skip = behind(layer(OnMissingKey::Skip));
    for _ in 0..3 {
        let response = send(&skip, anonymous()).await;
        assert_eq!(response.status(), 200);
        assert!(response.headers().get("ratelimit").is_none(), "nothing was counted");
    }

    let shared = behind(layer(OnMissingKey::Shared));
    assert_eq!(status(&shared, anonymous()).await, 200);
    assert_eq!(status(&shared, anonymous()).await, 429);
    assert_eq!(status(&shared, by("alice")).await, 200);
}

#[tokio::test]
async fn an_unlimited_limiter_needs_no_key_and_no_count() {
    let keyed = || Limit::new(per_minute(1)).key(by_user());
    let failing = keyed().count_async(Duration::from_secs(1), |_| async { Err::<u64, _>("no database") });
    for limit in [keyed(), failing] {
        let router = behind(RateLimitLayer::new([limit]).limiter(Limiter::unlimited()));
        assert_eq!(status(&router, anonymous()).await, 200);
        assert_eq!(status(&router, by("alice")).await, 200);
    }
}

/// A service may take either value, so a limit must not be skipped because of the other.
#[tokio::test]
async fn a_key_header_sent_twice_is_always_refused() {
    let twice = || Request::builder().header("x-user", "alice").header("x-user", "bob").body(Body::empty()).unwrap();
    for missing in [OnMissingKey::Deny, OnMissingKey::Skip, OnMissingKey::Shared] {
        let limit = Limit::new(per_minute(1)).key(by_user()).on_missing_key(missing);
        let router = behind(RateLimitLayer::new([limit]).limiter(Limiter::in_memory()));
        for _ in 0..3 {
            assert_eq!(status(&router, twice()).await, 403, "{missing:?}");
        }
        assert_eq!(status(&router, anonymous()).await == 200, missing != OnMissingKey::Deny, "{missing:?}");
    }
}

#[tokio::test]
async fn a_request_that_costs_nothing_needs_no_key() {
    let (router, _clock) = limited(Limit::new(per_minute(1)).key(by_user()).cost(|_| 0)).await;
    assert_eq!(status(&router, anonymous()).await, 200);
    assert_eq!(status(&router, by("alice")).await, 200);
}

#[tokio::test]
async fn the_peer_address_of_axum_is_a_key() {
    let by_peer = KeyBy::peer_ip(|peer: &ConnectInfo<SocketAddr>| peer.0.ip());
    let layer = RateLimitLayer::new([Limit::new(per_minute(2)).key(by_peer)]).limiter(Limiter::in_memory());
    let address = serve(behind(layer)).await;
    let mut statuses = Vec::new();
    for _ in 0..3 {
        let client = Client::builder().no_proxy().build().unwrap(); // a connection, and a port, of its own
        statuses.push(client.get(format!("http://{address}/")).send().await.unwrap().status().as_u16());
    }
    assert_eq!(statuses, [200, 200, 429]);
}

/// Every request is refused then, so the log says why: once, and not for each request.
#[tokio::test]
async fn a_missing_peer_address_is_one_warning() {
    let (log, _guard) = Log::install();
    let by_peer = KeyBy::peer_ip(|peer: &ConnectInfo<SocketAddr>| peer.0.ip());
    let layer = RateLimitLayer::new([Limit::new(per_minute(2)).key(by_peer)]).limiter(Limiter::in_memory());
    for router in [behind(layer.clone()), behind(layer)] {
        for _ in 0..2 {
            assert_eq!(status(&router, anonymous()).await, 403);
        }
    }
    let warnings = log.with("the address of its peer");
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    let (level, line) = &warnings[0];
    assert_eq!(*level, tracing::Level::WARN);
    assert!(line.contains("ConnectInfo<") && line.contains("into_make_service_with_connect_info"), "{line}");
}

/// One that writes to a service behind the same limit, for example.
#[test]
fn a_log_subscriber_may_send_a_request_while_it_is_told_of_a_missing_peer_address() {
    let (done, is_done) = mpsc::channel();
    // On a thread of its own: it would hang.
    thread::spawn(move || {
        let limit = Limit::new(per_minute(2)).key(KeyBy::peer());
        let router = behind(RateLimitLayer::new([limit]).limiter(Limiter::in_memory()));
        let (same, done_too) = (router.clone(), done.clone());
        let act = move || done_too.send(status(&same, anonymous()).now_or_never()).unwrap();
        let (_log, _guard) = Log::acting_at("the address of its peer", act);
        done.send(status(&router, anonymous()).now_or_never()).unwrap();
    });
    for _ in 0..2 {
        assert_eq!(is_done.recv_timeout(Duration::from_secs(30)), Ok(Some(403)));
    }
}

#[tokio::test]
async fn the_peer_address_of_hyper_is_a_key() {
    use hyper::server::conn::http1;
    use hyper_util::rt::TokioIo;
    use hyper_util::service::TowerToHyperService;
    use tower::{Layer as _, service_fn};

    let by_peer = KeyBy::peer_ip(|peer: &SocketAddr| peer.ip());
    let layer = RateLimitLayer::new([Limit::new(per_minute(2)).key(by_peer)]).limiter(Limiter::in_memory());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, peer)) = listener.accept().await {
            let limited = layer.layer(service_fn(async |_: http::Request<hyper::body::Incoming>| {
                Ok::<_, std::convert::Infallible>(http::Response::new(http_body_util::Full::<bytes::Bytes>::from(
                    "hello",
                )))
            }));
            let with_peer = service_fn(move |mut request: http::Request<hyper::body::Incoming>| {
                request.extensions_mut().insert(peer);
                limited.clone().oneshot(request)
            });
            let service = TowerToHyperService::new(with_peer);
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    let client = Client::builder().no_proxy().build().unwrap();
    let mut answers = Vec::new();
    for _ in 0..3 {
        let response = client.get(format!("http://{address}/")).send().await.unwrap();
        answers.push((response.status().as_u16(), response.text().await.unwrap()));
    }
    assert_eq!(answers[..2], [(200, "hello".to_owned()), (200, "hello".to_owned())]);
    assert_eq!(answers[2].0, 429);
    assert!(answers[2].1.contains("quota-exceeded"), "{}", answers[2].1);
}

#[derive(Clone)]
struct UserId(u64);

#[tokio::test]
async fn a_value_found_by_another_layer_is_a_key() {
    let by_extension = KeyBy::extension(|user: &UserId| user.0);
    let (router, _clock) = limited(Limit::new(per_minute(1)).key(by_extension)).await;
    let as_user = |id| router.clone().layer(Extension(UserId(id)));
    assert_eq!(status(&as_user(1), anonymous()).await, 200);
    assert_eq!(status(&as_user(1), anonymous()).await, 429);
    assert_eq!(status(&as_user(2), anonymous()).await, 200);
    assert_eq!(status(&router, anonymous()).await, 403);
}

#[tokio::test]
async fn a_value_from_an_async_lookup_is_a_key() {
    let looked_up = KeyBy::from_async_fn(|request| {
        let user = request.headers.get("x-user").and_then(|user| user.to_str().ok()).map(str::to_owned);
        async move {
            tokio::task::yield_now().await; // a database
            user.map(|user| Key::new(user.len()))
        }
    });
    let (router, _clock) = limited(Limit::new(per_minute(1)).key(looked_up)).await;
    assert_eq!(status(&router, by("alice")).await, 200);
    assert_eq!(status(&router, by("clara")).await, 429);
    assert_eq!(status(&router, by("bob")).await, 200);
    assert_eq!(status(&router, anonymous()).await, 403);
}

#[tokio::test]
async fn the_path_of_a_request_is_a_key() {
    let (router, _clock) = limited(Limit::new(per_minute(1)).key(KeyBy::path())).await;
    let at = |path: &str| Request::get(path).body(Body::empty()).unwrap();
    assert_eq!(status(&router, at("/a?b")).await, 200);
    assert_eq!(status(&router, at("/a?c")).await, 429);
    assert_eq!(status(&router, at("/b")).await, 200);
}

/// A nested router of `axum` removes its prefix from the path.
#[tokio::test]
async fn the_whole_path_is_a_key_in_a_nested_router() {
    let whole = KeyBy::extension(|whole: &axum::extract::OriginalUri| whole.path().to_owned());
    for (key, second) in [(KeyBy::path(), 429), (whole, 200)] {
        let layer = RateLimitLayer::new([Limit::new(per_minute(1)).key(key)]).limiter(Limiter::in_memory());
        let nest = || Router::new().route("/a", axum::routing::get(|| async { "hello" })).layer(layer.clone());
        let router = Router::new().nest("/v1", nest()).nest("/v2", nest());
        let at = |path: &str| Request::get(path).body(Body::empty()).unwrap();
        assert_eq!(status(&router, at("/v1/a")).await, 200);
        assert_eq!(status(&router, at("/v2/a")).await, second);
        assert_eq!(status(&router, at("/v1/a")).await, 429);
    }
}
