//! Limits on HTTP and gRPC requests, with the real server crates.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use http_body_util::BodyExt as _;
use ratelimit_runtime::web::{KeyBy, Limit, RateLimitLayer};
use ratelimit_runtime::{Limiter, ManualClock, Rule};
use serde_json::Value;
use tower::ServiceExt as _;

use crate::support::in_memory;

/// Dependencies of servers are not in the default build.
#[test]
fn the_default_build_has_no_dependency_of_the_web_features() {
    let tree = |more: &[&str]| {
        let arguments =
            ["tree", "--offline", "--package", "ratelimit-runtime", "--edges", "normal", "--prefix", "none"];
        let output = std::process::Command::new(env!("CARGO")).args(arguments).args(more).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let (default, all) = (tree(&[]), tree(&["--all-features"]));
    for name in [
        "actix-web",
        "arc-swap",
        "axum",
        "base64",
        "http",
        "httpdate",
        "ipnet",
        "metrics",
        "reqwest-middleware",
        "serde",
        "sfv",
        "toml",
        "tower-layer",
        "tower-service",
    ] {
        let is_in = |tree: &str| tree.lines().any(|line| line.split(' ').next() == Some(name));
        assert!(!is_in(&default) && is_in(&all), "{name}");
    }
}

/// The arguments of the attribute, and the tests of their parts in the layer. None: the docs of `web` say why there is
/// no such part.
const PARTS: [(&str, &[&str]); 21] = [
    ("prefix", &["several_limits_of_a_layer_are_one_decision"]),
    ("ttl", &["a_client_that_obeys_retry_after_is_admitted"]),
    ("unit", &["a_client_that_obeys_retry_after_is_admitted"]),
    ("period", &["a_client_that_obeys_retry_after_is_admitted"]),
    (
        "count",
        &[
            "a_request_has_the_count_of_its_sender",
            "a_counter_does_not_depend_on_the_count",
            "a_count_that_is_looked_up_is_kept_for_a_time",
            "a_failed_look_up_refuses_and_is_not_kept",
            "requests_of_one_key_share_a_look_up",
        ],
    ),
    ("rule", &["a_route_may_have_a_layer_of_its_own"]),
    (
        "key",
        &[
            "the_address_of_the_peer_is_a_key_without_extra_work",
            "a_value_of_middleware_is_a_key",
            "proxies_are_trusted_by_their_networks",
            "the_first_of_several_keys_counts",
            "an_allow_list_lifts_a_limit_for_its_keys_only",
        ],
    ),
    ("algorithm", &["headers_report_the_capacity_of_a_bucket"]),
    (
        "cost",
        &[
            "a_limit_may_apply_to_some_requests_and_at_a_cost",
            "only_failed_logins_count",
            "a_header_field_tells_the_cost",
            "the_parts_of_a_body_tell_the_cost",
            "several_limits_are_settled_with_one_cost",
        ],
    ),
    (
        "on_limit",
        &[
            "a_refusal_has_a_status_fields_and_problem_details",
            "requests_wait_in_their_order_for_as_long_as_they_may",
            "a_request_waits_for_a_place_until_its_client_leaves",
            "a_response_of_ones_own_keeps_the_fields_of_the_refusal",
            "the_status_of_a_refusal_can_be_set_by_its_cause",
        ],
    ),
    (
        "on_store_error",
        &["policies_are_named_while_the_store_is_away", "an_outage_is_decided_by_the_policy_of_the_layer"],
    ),
    ("on_missing_key", &["a_missing_key_is_denied_unless_set_otherwise"]),
    (
        "permit",
        &[
            "responses_name_all_policies_and_the_tightest_limit",
            "a_place_is_held_until_an_upgraded_connection_is_closed",
        ],
    ),
    ("limiter", &["a_layer_without_a_limiter_uses_that_of_the_scope"]),
    ("prefetch", &["a_rule_of_a_layer_may_have_prefetch_and_no_denial_cache"]),
    ("ban", &["a_rule_of_a_layer_may_ban"]),
    ("denial_cache", &["a_rule_of_a_layer_may_have_prefetch_and_no_denial_cache"]),
    ("shadow", &["headers_never_report_a_shadow_rule"]),
    ("blocking", &[]),
    ("crate", &[]),
    ("lease", &["a_place_is_free_when_the_body_has_ended"]),
];

/// The arguments that have a part in the client, and the tests of it.
const CLIENT_PARTS: [(&str, &[&str]); 7] = [
    ("count", &["the_announced_limit_is_kept_and_used_up", "a_lower_limit_counts_the_calls_in_flight"]),
    ("key", &["hosts_and_credentials_are_told_apart_and_no_credential_is_stored", "the_key_of_calls_can_be_set"]),
    ("cost", &["use_by_others_is_taken_off"]),
    ("several", &["of_several_policies_the_one_with_the_least_remaining_counts"]),
    (
        "on_limit",
        &[
            "with_a_longest_wait_of_zero_calls_are_rejected",
            "a_call_waits_for_no_longer_than_the_longest_wait",
            "closing_the_limiter_ends_all_waits",
        ],
    ),
    (
        "on_store_error",
        &["while_the_store_is_away_a_process_keeps_to_what_it_is_told", "with_deny_no_call_is_sent_without_the_store"],
    ),
    ("limiter", &["until_the_limit_is_known_one_call_is_in_flight"]),
];

/// An argument of the attribute has its part in the layer and in the client, or the tables of their docs say
/// why not.
#[test]
fn each_argument_of_the_attribute_has_its_part_in_the_layer_and_in_the_client() {
    let workspace = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let read = |path: &str| std::fs::read_to_string(workspace.join(path)).unwrap();
    let attribute = read("ratelimit-macros/src/lib.rs");
    let (layer, client) = (read("ratelimit-runtime/src/web/mod.rs"), read("ratelimit-runtime/src/client/mod.rs"));
    let rows_of = |page: &str, head: &str| -> Vec<Vec<String>> {
        let table = page.split(head).nth(1).unwrap().lines().skip(2);
        let rows = table.map_while(|line| line.strip_prefix("//! | "));
        let rows = rows.map(|row| row.trim_end_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect());
        rows.inspect(|row: &Vec<String>| {
            assert!(row.len() == 2 && row.iter().all(|cell| !cell.is_empty() && cell != "none"), "{row:?}");
        })
        .collect()
    };
    let tables = [rows_of(&layer, "//! | attribute | layer |"), rows_of(&client, "//! | attribute | client |")];
    let mut tests = String::new();
    for folder in ["tests/it/web", "tests/it/web/black_box", "tests/it/client", "ratelimit-runtime/src/client"] {
        for file in std::fs::read_dir(workspace.join(folder)).unwrap() {
            let file = file.unwrap().path();
            if file.is_file() {
                tests += &std::fs::read_to_string(file).unwrap();
            }
        }
    }
    let table = attribute.split("/// | argument |").nth(1).unwrap().lines().skip(2);
    let arguments: Vec<_> = table.map_while(|line| line.strip_prefix("/// | `")?.split('`').next()).collect();
    assert!(arguments.len() > 15, "{arguments:?}");
    for argument in arguments.into_iter().chain(["lease"]) {
        let (_, names) = PARTS.iter().find(|(name, _)| *name == argument).unwrap_or_else(|| panic!("{argument}"));
        for name in *names {
            assert!(tests.contains(&format!("fn {name}(")), "{argument}: there is no test {name}");
        }
        let is_its_row = |row: &Vec<String>| row[0].split('`').any(|word| word.split(' ').next() == Some(argument));
        for (rows, page) in tables.iter().zip(["web", "client"]) {
            assert!(rows.iter().any(is_its_row), "{argument} is not in the table of `{page}`");
        }
    }
    for row in &tables[1] {
        let parts = CLIENT_PARTS.iter().filter(|(name, _)| row[0].split(['`', ' ']).any(|word| word == *name));
        let names: Vec<_> = parts.flat_map(|(_, names)| *names).collect();
        assert!(row[1].starts_with("none: ") || !names.is_empty(), "{row:?}: no test of the client");
        for name in names {
            assert!(tests.contains(&format!("fn {name}(")), "{row:?}: there is no test {name}");
        }
    }
}

mod axum_responses;
mod black_box;
mod grpc;
mod headers;
mod keys;
mod layer;

const MINUTE: Duration = Duration::from_secs(60);

/// A rule of `count` a minute.
const fn per_minute(count: u64) -> Rule {
    Rule::new("item", count, MINUTE)
}

/// By the field `x-user`.
fn by_user() -> KeyBy {
    KeyBy::header("x-user".parse().unwrap())
}

fn by(user: &str) -> Request {
    Request::builder().header("x-user", user).body(Body::empty()).unwrap()
}

fn anonymous() -> Request {
    Request::new(Body::empty())
}

/// A service that says hello, behind a layer.
fn behind(layer: RateLimitLayer) -> Router {
    Router::new().fallback(|| async { "hello" }).layer(layer)
}

/// Behind one limit, in memory, by a clock of the test.
async fn limited(limit: Limit) -> (Router, ManualClock) {
    let clock = ManualClock::new();
    let layer = RateLimitLayer::new([limit]).limiter(in_memory(&clock).await);
    (behind(layer), clock)
}

async fn send(router: &Router, request: Request) -> Response {
    let Ok(response) = router.clone().oneshot(request).await;
    response
}

async fn status(router: &Router, request: Request) -> u16 {
    send(router, request).await.status().as_u16()
}

async fn problem(response: Response) -> Value {
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    serde_json::from_slice(&response.into_body().collect().await.unwrap().to_bytes()).unwrap()
}

/// Serves on a free port until the test is over.
async fn serve(router: Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await });
    address
}

/// A limiter without a server.
async fn nowhere(on_store_error: ratelimit_runtime::OnStoreError) -> Limiter {
    Limiter::builder("redis://127.0.0.1:1").lazy().on_store_error(on_store_error).build().await.unwrap()
}
