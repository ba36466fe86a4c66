//! Fixed window: one counter, one end.
//!
//! The *fixed window counter* of the textbooks. A window is anchored once, by the charge that opens it,
//! and no later charge moves its end.

use crate::{Decision, Rule};

/// Ten digits of the stored value hold what is used.
pub(super) const LARGEST_COUNT: u64 = 9_999_999_999;

/// Decides on what is `used` of a window with `left_ms` to go.
pub(super) fn decide(rule: &Rule, used: u64, left_ms: u64, cost: u64) -> (bool, Decision) {
    let remaining = rule.count().saturating_sub(used);
    let fits = cost <= remaining;
    let decision = Decision {
        limit: rule.count(),
        remaining,
        reset_after_ms: if used == 0 { 0 } else { left_ms },
        retry_after_ms: if fits { u64::MAX } else { left_ms },
    };
    (fits, decision)
}

/// When a window that is opened now ends.
pub(super) fn end_ms(rule: &Rule, align: bool, now_ms: u64) -> u64 {
    let period = rule.period_ms();
    if align { now_ms - now_ms % period + period } else { now_ms + period }
}

#[cfg(feature = "redis")]
pub(super) fn arguments(align: bool) -> [u64; 3] {
    [u64::from(align), 0, 0]
}

#[cfg(feature = "redis")]
pub(super) fn decode(rule: &Rule, [used, left_ms, window]: [i64; 3]) -> (bool, Decision, u64) {
    let refused = used < 0;
    let used = if refused { -1 - used } else { used }.unsigned_abs();
    // The script has compared; a refusal is for any cost above what remains.
    let cost = if refused { u64::MAX } else { 0 };
    let (_, decision) = decide(rule, used, left_ms.unsigned_abs(), cost);
    (!refused, decision, window.unsigned_abs())
}
