//! Errors that can't be made from a refusal.

use ratelimit_runtime::limit_request_per_time;

#[derive(Debug)]
enum SaveError {
    Full,
}

#[limit_request_per_time("item", 1, Days, 1)]
async fn save() -> Result<u64, SaveError> {
    Err(SaveError::Full)
}

type Answer = Result<u64, SaveError>;

#[limit_request_per_time("item", 1, Days, 1)]
async fn alias() -> Answer {
    Err(SaveError::Full)
}

fn main() {}
