//! Values that are no constant rule.

use std::time::Duration;

use ratelimit_runtime::{RequestPerMinute, Rule, limit_request_per_time};

type R = Result<(), RequestPerMinute>;

const NAME: &str = "item";
const ORDERS: Rule = Rule::new("orders", 100, Duration::from_secs(60));

#[limit_request_per_time(rule = rule)]
async fn of_a_call(rule: Rule) -> R {
    Ok(())
}

#[limit_request_per_time(rule = NAME)]
async fn prefix() -> R {
    Ok(())
}

#[limit_request_per_time(rule = &ORDERS)]
async fn reference() -> R {
    Ok(())
}

#[limit_request_per_time(rule = ORDERS, count = 5, on_limit = Wait)]
async fn beside_a_count() -> R {
    Ok(())
}

fn main() {}
