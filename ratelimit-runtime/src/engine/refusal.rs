//! Errors of the store as errors of the caller.

use crate::{RequestPerMinute, Rule, observe::LogThrottle, store::StoreError};

pub(crate) fn refusal(rule: &Rule, error: StoreError) -> RequestPerMinute {
    if error.misconfigured {
        static LOG_THROTTLE: LogThrottle = LogThrottle::new();
        if LOG_THROTTLE.allow() {
            tracing::error!(rule = rule.prefix(), reason = %error, "a rate limit is misconfigured");
        }
        RequestPerMinute::misconfigured(rule, error.into_words())
    } else {
        RequestPerMinute::unavailable(rule, error.into_words())
    }
}
