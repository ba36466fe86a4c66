//! `Limiter::current`: the limiter of annotated code. `bin/runtimes.rs` checks it where one is installed.

use std::time::Duration;

use ratelimit_runtime::{Limiter, RequestPerMinute, Rule, limit_request_per_time};

use crate::support::fresh_key;

const RULE: Rule = Rule::new("current", 3, Duration::from_secs(3600));

#[limit_request_per_time("current", 1, Hours, 3, key = key)]
async fn limited(key: u64) -> Result<(), RequestPerMinute> {
    Ok(())
}

/// The amount that remains for the key, by the current limiter.
async fn left(key: u64) -> u64 {
    Limiter::current().peek(&RULE, key).await.unwrap().remaining()
}

/// No test of this process installs a limiter.
#[tokio::test]
async fn without_an_installed_limiter_it_is_the_one_in_memory() {
    let key = fresh_key();
    limited(key).await.unwrap();
    assert_eq!(left(key).await, 2);
    Limiter::current().acquire(&RULE, key).await.unwrap();
    assert_eq!(tokio::spawn(left(key)).await.unwrap(), 1);
}

#[tokio::test]
async fn in_a_scope_it_is_the_one_of_the_scope() {
    let key = fresh_key();
    let (outer, inner) = (Limiter::in_memory(), Limiter::in_memory());
    let calls = async {
        limited(key).await.unwrap();
        let nested = async {
            limited(key).await.unwrap();
            limited(key).await.unwrap();
            let scoped = tokio::spawn(Limiter::current().scope(left(key)));
            (left(key).await, scoped.await.unwrap(), tokio::spawn(left(key)).await.unwrap())
        };
        (inner.scope(nested).await, left(key).await)
    };
    assert_eq!(outer.scope(calls).await, ((1, 1, 3), 2));
    assert_eq!(left(key).await, 3);
}
