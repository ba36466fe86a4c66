//! Responses to refused requests, and the header fields of all responses.

use http::{Response as Answer, StatusCode};
use ratelimit_runtime::web::HeaderStyle;
use ratelimit_runtime::{Cause, OnStoreError};

use super::*;

fn fields(headers: &HeaderMap) -> Vec<(String, String)> {
    let is_of_limit = |name: &str| name.contains("ratelimit") || ["retry-after", "cache-control"].contains(&name);
    let fields = headers.iter().filter(|(name, _)| is_of_limit(name.as_str()));
    let mut fields: Vec<_> =
        fields.map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect();
    fields.sort();
    fields
}

#[tokio::test]
async fn a_refusal_has_a_status_fields_and_problem_details() {
    for kind in KINDS {
        let (layer, _limiter, clock) = timed([Limit::new(per_minute(1))]).await;
        let service = Service::start(kind, layer);
        assert_eq!(service.status(service.get("/")).await, 200);
        clock.advance(Duration::from_millis(20_500));
        let refused = service.get("/").send().await.unwrap();
        assert_eq!(refused.status(), 429, "{kind:?}");
        assert_eq!(refused.headers()["content-type"], "application/problem+json", "{kind:?}");
        assert_eq!(refused.headers()["x-refused-by"], "item", "{kind:?}: outer middleware sees the refusal");
        let expected = [
            ("cache-control", "no-store"),
            ("ratelimit", "\"item\";r=0;t=40"),
            ("ratelimit-policy", "\"item\";q=1;w=60"),
            ("retry-after", "40"),
        ];
        assert_eq!(fields(refused.headers()), expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let length = refused.headers()["content-length"].clone();
        let problem: Value = refused.json().await.unwrap();
        assert_eq!(problem["detail"], "`item` is limited to 1 per minute; retry in 39.5 s", "{kind:?}");
        assert_eq!(problem["violated-policies"], serde_json::json!(["item"]), "{kind:?}");

        let head = service.client.head(&service.url).send().await.unwrap();
        assert_eq!(head.status(), 429, "{kind:?}");
        assert_eq!(head.headers()["content-length"], length, "{kind:?}: that of the response to a GET");
        assert_eq!(head.bytes().await.unwrap(), "", "{kind:?}");
    }
}

#[tokio::test]
async fn an_annotated_handler_answers_alike() {
    for kind in KINDS {
        // It uses the limiter of the process, so what it has counted before is not known.
        let service = Service::start(kind, RateLimitLayer::new([]));
        let statuses = service.statuses(2, || service.get("/annotated")).await;
        assert_eq!(statuses[1], 429, "{kind:?}");
        let refused = service.get("/annotated").send().await.unwrap();
        assert_eq!(refused.headers()["content-type"], "application/problem+json", "{kind:?}");
        assert_eq!(refused.headers()["x-refused-by"], "annotated", "{kind:?}");
        assert!(refused.headers().contains_key("retry-after"), "{kind:?}");
        assert_eq!(refused.headers()["ratelimit-policy"], "\"annotated\";q=1;w=60", "{kind:?}");
    }
}

/// A response of the user's own gets the header fields, and cannot lose or change them.
#[tokio::test]
async fn a_response_of_ones_own_keeps_the_fields_of_the_refusal() {
    for kind in KINDS {
        let (layer, ..) = timed([Limit::new(per_minute(1)).key(by_user())]).await;
        let layer = layer.on_refusal(|refused| {
            let page = format!("{} at {}", refused.refusal().rule(), refused.request().uri.path());
            let response = Answer::builder().status(StatusCode::SERVICE_UNAVAILABLE).header("x-own", "kept");
            let response = response.header("retry-after", "0").header("ratelimit", "lies").header("ratelimit", "lies");
            response.header("content-type", "text/plain").header("cache-control", "public").body(page).unwrap()
        });
        let service = Service::start(kind, layer);
        let ask = || service.get("/path").header("x-user", "alice");
        assert_eq!(service.status(ask()).await, 200);
        let refused = ask().send().await.unwrap();
        assert_eq!(refused.status(), 503, "{kind:?}");
        assert_eq!(
            (&refused.headers()["x-own"], &refused.headers()["content-type"]),
            (&"kept".parse().unwrap(), &"text/plain".parse().unwrap())
        );
        let expected = [
            ("cache-control", "no-store"),
            ("ratelimit", "\"item\";r=0;t=60"),
            ("ratelimit-policy", "\"item\";q=1;w=60"),
            ("retry-after", "60"),
        ];
        assert_eq!(fields(refused.headers()), expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(refused.headers()["x-refused-by"], "item", "{kind:?}");
        assert_eq!(refused.text().await.unwrap(), "item at /path", "{kind:?}");
    }
}

#[tokio::test]
async fn the_status_of_a_refusal_can_be_set_by_its_cause() {
    for kind in KINDS {
        let (layer, ..) = timed([Limit::new(per_minute(1)).key(by_user())]).await;
        let layer = layer.on_refusal(|refused| match refused.refusal().cause() {
            Cause::MissingKey => refused.problem(StatusCode::UNAUTHORIZED),
            Cause::Exceeded => refused.problem(StatusCode::SERVICE_UNAVAILABLE),
            _ => refused.problem(refused.status()),
        });
        let service = Service::start(kind, layer);
        let ask = || service.get("/").header("x-user", "alice");
        assert_eq!(service.statuses(2, ask).await, [200, 503], "{kind:?}");
        let problem: Value = ask().send().await.unwrap().json().await.unwrap();
        assert_eq!(problem["status"], 503, "{kind:?}: the body names it, too");
        let unauthorized = service.get("/").send().await.unwrap();
        assert_eq!(unauthorized.status(), 401, "{kind:?}");
        assert_eq!(unauthorized.json::<Value>().await.unwrap()["status"], 401, "{kind:?}");
    }
}

#[tokio::test]
async fn responses_name_all_policies_and_the_tightest_limit() {
    let wide = Rule::new("wide", 10, MINUTE);
    for kind in KINDS {
        let places = Rule::new("places", 5, MINUTE).with_algorithm(ratelimit_runtime::Algorithm::Concurrent);
        let tried = Rule::new("tried", 1, MINUTE).with_shadow(true);
        let is_export = |request: &http::request::Parts| request.uri.path() == "/export";
        let export = Limit::new(Rule::new("export", 1, MINUTE)).when(is_export);
        let limits = [Limit::new(wide), Limit::new(per_minute(3)), Limit::new(places), Limit::new(tried), export];
        let (layer, ..) = timed(limits).await;
        let service = Service::start(kind, layer);
        let response = service.get("/").send().await.unwrap();
        assert_eq!(response.headers()["ratelimit-policy"], "\"wide\";q=10;w=60, \"item\";q=3;w=60", "{kind:?}");
        assert_eq!(response.headers()["ratelimit"], "\"item\";r=2;t=60", "{kind:?}");
        assert_eq!(service.status(service.get("/export")).await, 200);
        let refused = service.get("/export").send().await.unwrap();
        assert_eq!(refused.status(), 429);
        let policies = "\"wide\";q=10;w=60, \"item\";q=3;w=60, \"export\";q=1;w=60";
        assert_eq!(refused.headers()["ratelimit-policy"], policies, "{kind:?}");
        assert_eq!(refused.headers()["ratelimit"], "\"export\";r=0;t=60", "{kind:?}: the one that refused");
    }
}

/// Nothing was counted, but a client still learns its limits.
#[tokio::test]
async fn policies_are_named_while_the_store_is_away() {
    for kind in KINDS {
        let layer = RateLimitLayer::new([Limit::new(per_minute(1)), Limit::new(Rule::new("other", 2, MINUTE))]);
        let service = Service::start(kind, layer.limiter(nowhere(OnStoreError::Allow).await));
        for _ in 0..3 {
            let response = service.get("/").send().await.unwrap();
            assert_eq!(response.status(), 200);
            assert_eq!(response.headers()["ratelimit-policy"], "\"item\";q=1;w=60, \"other\";q=2;w=60", "{kind:?}");
            assert!(response.headers().get("ratelimit").is_none(), "{kind:?}: no numbers");
        }
        let unlimited = RateLimitLayer::new([Limit::new(per_minute(1))]).limiter(Limiter::unlimited());
        let service = Service::start(kind, unlimited);
        assert_eq!(fields(service.get("/").send().await.unwrap().headers()), [], "{kind:?}: nothing is limited");
        let denying = RateLimitLayer::new([Limit::new(per_minute(1))]).limiter(nowhere(OnStoreError::Deny).await);
        let service = Service::start(kind, denying);
        let refused = service.get("/").send().await.unwrap();
        assert_eq!(refused.status(), 503, "{kind:?}");
        assert_eq!(refused.headers()["retry-after"], "1", "{kind:?}");
    }
}

/// The fields of layers one around the other.
#[tokio::test]
async fn fields_of_nested_layers_are_combined() {
    for kind in KINDS {
        let layer = |count, style| {
            RateLimitLayer::new([Limit::new(per_minute(count))]).limiter(Limiter::in_memory()).headers(style)
        };
        for [inner, outer] in [[3, 10], [10, 3]] {
            let style = HeaderStyle::XRateLimit;
            let service = Service::start_with(kind, layer(inner, style), layer(outer, style));
            let response = service.get("/").send().await.unwrap();
            let numbers = ["x-ratelimit-limit", "x-ratelimit-remaining"].map(|name| response.headers()[name].clone());
            assert_eq!(numbers, ["3", "2"], "{kind:?}");
        }
        // The inner layer refuses, with a status that no one knows it by.
        let refusing = layer(0, HeaderStyle::XRateLimit).on_refusal(|refused| refused.problem(StatusCode::CONFLICT));
        let service = Service::start_with(kind, refusing, layer(1, HeaderStyle::XRateLimit));
        let refused = service.get("/").send().await.unwrap();
        assert_eq!(refused.status(), 409, "{kind:?}");
        assert_eq!(refused.headers()["x-ratelimit-limit"], "0", "{kind:?}: its own numbers");
        let service = Service::start_with(kind, layer(3, HeaderStyle::Ietf), layer(10, HeaderStyle::Ietf));
        let response = service.get("/").send().await.unwrap();
        assert_eq!(response.headers().get_all("ratelimit").iter().count(), 2, "{kind:?}");
    }
}
