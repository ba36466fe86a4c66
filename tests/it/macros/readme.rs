//! The functions of `README.md`, which the compiler checks here.

#![allow(unused_variables, clippy::redundant_closure)] // as a reader sees them, without bodies

use ratelimit_runtime::{RequestPerMinute, limit_concurrent_requests, limit_request_per_time};

struct SaveItem {
    seller_id: u64,
}
struct Saved;
struct SaveItemError;
struct Answer {
    tokens: u64,
}
struct AskError;
struct File;
struct ExportError;

macro_rules! from_refusal {
    ($($error:ident)*) => {
        $(impl From<RequestPerMinute> for $error {
            fn from(_: RequestPerMinute) -> Self {
                Self
            }
        })*
    };
}
from_refusal!(SaveItemError AskError ExportError);

fn tokens(outcome: &Result<Answer, AskError>) -> u64 {
    outcome.as_ref().map_or(0, |answer| answer.tokens)
}

#[limit_request_per_time(prefix = "item", ttl = 1, unit = Minutes, count = 100, key = req.seller_id)]
async fn save_item(req: SaveItem) -> Result<Saved, SaveItemError> {
    Ok(Saved)
}

#[limit_request_per_time(prefix = "tokens", ttl = 1, unit = Minutes, count = 90_000, key = user,
    algorithm = TokenBucket, cost = Settled(max = 4_000, |outcome| tokens(outcome)))]
async fn ask(user: &str, question: &str) -> Result<Answer, AskError> {
    Ok(Answer { tokens: 1_000 })
}

#[limit_concurrent_requests(prefix = "export", count = 4, key = tenant, lease = "30s", on_limit = Wait(max = "10s"))]
async fn export(tenant: u64) -> Result<File, ExportError> {
    Ok(File)
}

/// Signatures and attributes, without white space.
fn signatures(source: &str) -> Vec<String> {
    let source: String = source.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let functions = source.split("#[limit_").skip(1);
    functions.map(|function| function.split('{').next().unwrap_or_default().split_whitespace().collect()).collect()
}

#[tokio::test]
async fn the_functions_of_the_readme_are_these() {
    assert!(save_item(SaveItem { seller_id: 1 }).await.is_ok());
    assert!(ask("user", "question").await.is_ok());
    assert!(export(1).await.is_ok());

    let of_readme = signatures(include_str!("../../../README.md"));
    assert_eq!(of_readme.len(), 3);
    let here = signatures(include_str!("readme.rs"));
    for function in of_readme {
        assert!(here.contains(&function), "README.md has a function that is not here:\n{function}");
    }
}
