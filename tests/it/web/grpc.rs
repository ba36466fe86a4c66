//! A gRPC service behind the layer.

use ratelimit_runtime::OnStoreError;
use ratelimit_runtime::web::HeaderStyle;
use tonic::transport::server::TcpConnectInfo;
use tonic::transport::{Channel, Server};
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt as _;

use super::*;

async fn client(layer: RateLimitLayer) -> HealthClient<Channel> {
    let (_reporter, service) = tonic_health::server::health_reporter();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    tokio::spawn(Server::builder().layer(layer).add_service(service).serve_with_incoming(incoming));
    HealthClient::new(Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap())
}

async fn check(client: &mut HealthClient<Channel>) -> Result<(), Status> {
    client.check(HealthCheckRequest { service: String::new() }).await.map(|_| ())
}

#[tokio::test]
async fn a_grpc_refusal_says_when_to_retry() {
    let by_peer = KeyBy::peer_ip(|peer: &TcpConnectInfo| peer.remote_addr().map(|peer| peer.ip()));
    let clock = ManualClock::new();
    let rule = Rule::new("größe, 100 %", 1, MINUTE);
    let layer = RateLimitLayer::new([Limit::new(rule).key(by_peer)]).limiter(in_memory(&clock).await);
    let mut client = client(layer.headers(HeaderStyle::XRateLimit)).await;
    check(&mut client).await.unwrap();
    clock.advance(Duration::from_millis(10_500));
    let refused = check(&mut client).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!(refused.message(), "`größe, 100 %` is limited to 1 per minute; retry in 49.5 s");
    let retry = refused.get_details_retry_info().unwrap();
    assert_eq!(retry.retry_delay, Some(Duration::from_millis(49_500)));
    assert_eq!(refused.metadata().get("x-ratelimit-limit").unwrap(), "1");
    clock.advance(Duration::from_millis(49_500));
    check(&mut client).await.unwrap();
}

#[tokio::test]
async fn each_cause_has_its_grpc_status() {
    let limits = |limit: Limit| RateLimitLayer::new([limit]).limiter(Limiter::in_memory());
    let never_fits = limits(Limit::new(per_minute(1)).cost(|_| 2));
    let missing_key = limits(Limit::new(per_minute(1)).key(by_user()));
    let misconfigured = limits(Limit::new(Rule::new("", 1, MINUTE)));
    let unavailable = RateLimitLayer::new([Limit::new(per_minute(1))]).limiter(nowhere(OnStoreError::Deny).await);
    for (layer, code) in [
        (never_fits, Code::ResourceExhausted),
        (missing_key, Code::PermissionDenied),
        (misconfigured, Code::Internal),
        (unavailable, Code::Unavailable),
    ] {
        let refused = check(&mut client(layer).await).await.unwrap_err();
        assert_eq!(refused.code(), code, "{refused}");
        let retry = refused.get_details_retry_info().and_then(|retry| retry.retry_delay);
        assert_eq!(retry, (code == Code::Unavailable).then_some(Duration::from_secs(1)), "{refused}");
        assert!(!refused.message().contains("127.0.0.1"), "{refused}");
    }
}

/// A place becomes free at a time that is not known.
#[tokio::test]
async fn a_grpc_refusal_for_lack_of_places_says_when_to_retry() {
    const PLACES: Rule = Rule::new("places", 1, MINUTE).with_algorithm(ratelimit_runtime::Algorithm::Concurrent);
    let limiter = Limiter::in_memory();
    let _permit = limiter.acquire(&PLACES, "alice").await.unwrap();
    let layer =
        RateLimitLayer::new([Limit::new(PLACES).key(KeyBy::from_fn(|_| Some(ratelimit_runtime::Key::new("alice"))))]);
    let refused = check(&mut client(layer.limiter(limiter)).await).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!(refused.get_details_retry_info().unwrap().retry_delay, Some(Duration::from_secs(1)));
}

/// `200 OK` is only for clients that look for a gRPC status.
#[tokio::test]
async fn only_grpc_requests_get_a_grpc_status() {
    let (router, _clock) = limited(Limit::new(per_minute(1))).await;
    let request = |method: &str, content_type: &str| {
        let request = Request::builder().method(method).uri("/app.js").header("content-type", content_type);
        send(&router, request.body(Body::empty()).unwrap())
    };
    assert_eq!(request("POST", "application/grpc").await.status(), 200);
    for (method, content_type, answered) in [
        ("GET", "application/grpc", None),
        ("HEAD", "application/grpc", None),
        ("PUT", "application/grpc+proto", None),
        ("POST", "application/grpcxyz", None),
        ("POST", "application/grpc+", None),
        ("POST", "application/grpc+a/b", None),
        ("POST", "application/grpc-web-xyz", None),
        ("POST", "application/json", None),
        ("POST", "application/grpc", Some("application/grpc")),
        ("POST", "application/grpc+proto", Some("application/grpc+proto")),
        ("POST", "Application/GRPC+Proto; charset=utf-8", Some("application/grpc+proto")),
        ("POST", "application/grpc-web", Some("application/grpc-web")),
        ("POST", "application/grpc-web+proto", Some("application/grpc-web+proto")),
        ("POST", "application/grpc-web-text", Some("application/grpc-web-text")),
        ("POST", "application/grpc-web-text+proto", Some("application/grpc-web-text+proto")),
    ] {
        let refused = request(method, content_type).await;
        let headers = refused.headers();
        let status = if answered.is_some() { 200 } else { 429 };
        assert_eq!(refused.status(), status, "{method} {content_type}");
        assert_eq!(headers.get("grpc-status").is_some(), answered.is_some(), "{method} {content_type}");
        let described = answered.unwrap_or("application/problem+json");
        assert_eq!(headers["content-type"], described, "{method} {content_type}");
        assert_eq!(headers["cache-control"], "no-store", "{method} {content_type}");
    }
    let twice =
        Request::post("/").header("content-type", "application/json").header("content-type", "application/grpc");
    assert_eq!(send(&router, twice.body(Body::empty()).unwrap()).await.status(), 429);
}
