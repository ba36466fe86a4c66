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
async fn a_refusal_says_when_to_retry() {
    let by_peer = KeyBy::peer_ip(|peer: &TcpConnectInfo| peer.remote_addr().map(|peer| peer.ip()));
    let clock = ManualClock::new();
    let rule = Rule::new("größe, 100 %", 1, MINUTE);
    let layer = RateLimitLayer::new([Limit::new(rule).key(by_peer)]).limiter(in_memory(&clock).await);
    let mut client = client(layer.headers(HeaderStyle::XRateLimit)).await;
    check(&mut client).await.unwrap();
    clock.advance(Duration::from_millis(10_500));
    let refused = check(&mut client).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert_eq!(refused.message(), "`größe, 100 %` is limited to 1 per minute; retry in 49.500s");
    let retry = refused.get_details_retry_info().unwrap();
    assert_eq!(retry.retry_delay, Some(Duration::from_millis(49_500)));
    assert_eq!(refused.metadata().get("x-ratelimit-limit").unwrap(), "1");
    clock.advance(Duration::from_millis(49_500));
    check(&mut client).await.unwrap();
}

#[tokio::test]
async fn each_cause_has_its_status() {
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
        assert!(refused.get_details_retry_info().is_none(), "{refused}");
        assert!(!refused.message().contains("127.0.0.1"), "{refused}");
    }
}
