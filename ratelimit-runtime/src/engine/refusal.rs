//! Errors of the store as errors of the caller.

use crate::{RequestPerMinute, Rule, observe::Throttle, store::StoreError};

pub(crate) fn refusal(rule: &Rule, error: StoreError) -> RequestPerMinute {
    if error.misconfigured {
        static SAID: Throttle = Throttle::new();
        if SAID.may_speak() {
            tracing::error!(rule = rule.prefix(), reason = %error, "a rate limit is misconfigured");
        }
        RequestPerMinute::misconfigured(rule, error.into_words())
    } else {
        RequestPerMinute::unavailable(rule, error.into_words())
    }
}
