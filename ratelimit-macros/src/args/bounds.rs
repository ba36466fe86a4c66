//! The largest numbers that the algorithms can store, for literals. The runtime checks constants by
//! the same bounds, see `rule/limits.rs` there.

/// The argument or option that is bounded, and its largest value.
pub(super) type Bound = (&'static str, u64);

/// The largest integer of Lua up to which quotients are exact.
const EXACT: u64 = 1 << 52;

/// For one integer that counts a window.
pub(super) const WINDOW: Bound = ("count", 9_999_999_999);

/// For a log. It stores times and totals in one number: the longer the period, the smaller the count.
pub(super) fn entries(period: u64) -> Bound {
    const ROOM: u64 = 8_123_456_790_000_000;
    let ticks = if period <= 200_000 { period * 1000 } else { period };
    let totals = [10_000_000, 1_000_000, 100_000, 10_000];
    let largest = totals.into_iter().find(|total| ROOM / total / 5 * 2 >= ticks);
    ("count", largest.unwrap_or(u64::MAX))
}

/// For a window in `buckets` parts, which are weighted by milliseconds.
pub(super) fn parts(buckets: u64, period: u64) -> Bound {
    ("count", EXACT / (period / buckets).max(1))
}

/// For a bucket. `count` is how many tokens come back at once, or 1 if they come back one by one.
pub(super) fn tokens(name: &'static str, count: u64, period: u64) -> Bound {
    (name, (EXACT / period).saturating_mul(count).min(EXACT))
}

/// For a queue of slots.
pub(super) fn slots(period: u64) -> Bound {
    ("queue", EXACT / period - 1)
}
