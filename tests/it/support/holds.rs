//! Rules for calls that hold something, and how they are called.

use std::time::Duration;

use ratelimit_runtime::__private::{Call, charge_elapsed, key, permit_of_several};
use ratelimit_runtime::conformance::{counter_of, store_of};
use ratelimit_runtime::store::{Charge as StoreCharge, Hold, Request};
use ratelimit_runtime::{Algorithm, Limiter, Permit, RequestPerMinute, Rule};

use super::SECOND;
use crate::support::{LOG, Timed};

pub(crate) const LEASE: Duration = Duration::from_secs(30);
pub(crate) const PLACES: Rule = Rule::new("place", 2, LEASE).with_algorithm(Algorithm::Concurrent);
pub(crate) const TOKENS: Rule = Rule::new("tokens", 1000, SECOND.saturating_mul(60)).with_algorithm(LOG);

/// 20 seconds of time a minute.
pub(crate) const TIME: Rule = Rule::new("time", 20_000, SECOND.saturating_mul(60)).with_algorithm(LOG);

pub(crate) async fn acquire_time(
    limiter: &Limiter,
    rule: Rule,
    id: u64,
    max: Option<u64>,
) -> Result<Permit, RequestPerMinute> {
    permit_of_several(Some(limiter), Call::DEFAULT, (charge_elapsed(rule, key(&id), max), ())).await
}

pub(crate) async fn remaining(limiter: &Limiter, rule: &Rule, key: u64) -> u64 {
    limiter.peek(rule, key).await.unwrap().remaining()
}

/// A charge that is held, for the store itself: a limiter would need a task for each.
pub(crate) fn held_charge(rule: Rule, key: u64, cost: u64, lease: Duration) -> Request {
    let mut charge = StoreCharge::new(rule, counter_of(&rule, key), cost);
    charge.hold = Some(Hold::new(lease));
    Request::new(charge, true)
}

/// Decides one after another, and returns what was asked with what came of it.
pub(crate) async fn decide_all(timed: &Timed, requests: impl Iterator<Item = Request>) -> Vec<Request> {
    let mut decided = Vec::new();
    for request in requests {
        let batch = store_of(&timed.limiter).decide(request.into()).answer().await;
        decided.extend(batch.iter().cloned());
    }
    decided
}
