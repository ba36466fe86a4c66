//! Errors of the store as errors of the caller.

use crate::{RequestPerMinute, Rule, observe::LogThrottle, store::StoreError};

pub(crate) fn refusal(rule: &Rule, error: StoreError) -> RequestPerMinute {
    if error.misconfigured {
        static SAID: LogThrottle = LogThrottle::new();
        if SAID.allow() {
            tracing::error!(rule = rule.prefix(), reason = %error, "a rate limit is misconfigured");
        }
        RequestPerMinute::misconfigured(rule, error.into_words())
    } else {
        RequestPerMinute::unavailable(rule, error.into_words())
    }
}
