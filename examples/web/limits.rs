//! The limits of the web examples, the same for each server.

use std::{env, time::Duration};

use ratelimit_runtime::{
    Algorithm, Limiter, Rule, SetupError,
    web::{KeyBy, Limit, RateLimitLayer, SettleBy},
};

const MINUTE: Duration = Duration::from_secs(60);

/// Requests of each client.
const CLIENT: Rule = Rule::new("client", 10, MINUTE);
/// Failed logins of each client.
const FAILED_LOGINS: Rule = Rule::new("failed-logins", 3, MINUTE).with_algorithm(Algorithm::SlidingLog);

/// The layer in front of a service. `peer` finds the address of a client.
///
/// Limits are counted in memory, or on the server in the variable `REDIS_URL`.
pub(crate) async fn layer(peer: KeyBy) -> Result<RateLimitLayer, SetupError> {
    let limiter = match env::var("REDIS_URL") {
        Ok(url) => Limiter::connect(&url).await?,
        Err(_) => Limiter::in_memory(),
    };
    let is_failed = SettleBy::response(|response| u64::from(response.status == 401));
    let limits = [
        Limit::new(CLIENT).key(peer.clone()),
        Limit::new(FAILED_LOGINS).key(peer).when(|request| request.uri.path() == "/login").settle(1, is_failed),
    ];
    Ok(RateLimitLayer::new(limits).limiter(limiter))
}
