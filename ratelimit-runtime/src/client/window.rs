//! A window: as a response opens it, and as a process sees it.

use std::time::Duration;

use super::{
    announcement::Announcement,
    counters::{Credits, MOST},
};

/// The wait after a refusal that says nothing, and the length of a window without an end.
pub(super) const UNSAID: Duration = Duration::from_secs(1);
/// The time for which calls are not limited, after a response that announces nothing.
const UNANNOUNCED: Duration = Duration::from_secs(10);

/// The window that a response opens.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Window {
    /// The number of calls that remain.
    pub(super) calls: u64,
    pub(super) length: Duration,
    /// A part of the quota of a policy of which nothing tells what remains.
    pub(super) is_part: bool,
}

/// An open window, as this process has seen it.
#[derive(Clone, Copy, Debug)]
pub(super) struct SeenWindow {
    pub(super) ends: Duration,
    /// It was open by then.
    pub(super) seen_at: Duration,
    /// The next permit shows less than this, unless the counter was lost or opened anew.
    pub(super) left: u64,
    pub(super) limit: u64,
    /// The number of larger limits in a response. `None` until a process that has not sent the probe has one.
    pub(super) larger_limits: Option<usize>,
}

impl SeenWindow {
    /// Whether another process has opened a window since this one was seen.
    pub(super) fn is_replaced(&self, credits: Credits) -> bool {
        credits.opened > self.seen_at
    }
}

impl Announcement {
    /// The number of limits in the response that are larger than this one, as far as a counter tells.
    pub(super) fn larger_limits(&self, limit: u64) -> usize {
        self.limits.iter().filter(|other| (**other).min(MOST) > limit).count()
    }

    pub(super) fn window(&self, longest: Duration) -> Window {
        let of = |(calls, length), is_part| Window { calls, length, is_part };
        let (length, most) = (self.length().unwrap_or(UNSAID), self.at_once.unwrap_or(MOST).min(MOST));
        let (announced, length) = match self.remaining {
            Some(remaining) if self.is_policy => return of(part_of_policy(remaining, most, length, longest), true),
            // A larger number does not fit the counter, so it is asked for again and again.
            Some(remaining) if remaining > MOST => (MOST, length.min(UNANNOUNCED)),
            Some(remaining) => (remaining, length),
            None => (MOST, UNANNOUNCED),
        };
        let whole = (announced, length.min(longest));
        let Some((quota, window)) = self.slowest else { return of(whole, false) };
        // The probe is a call, too.
        let for_one = window / u32::try_from(quota.max(1)).unwrap_or(u32::MAX);
        let part = part_of_policy(quota.saturating_sub(1), most, window, length.max(for_one).min(longest));
        let is_part = part.0 < announced || part.0 == announced && part.1 > whole.1;
        of(if is_part { part } else { whole }, is_part)
    }
}

/// The part of a policy's quota for a window that is cut short, and its length: nothing else tells what remains.
/// `most`: calls at once.
fn part_of_policy(announced: u64, most: u64, length: Duration, longest: Duration) -> (u64, Duration) {
    // The probe has taken one of the quota.
    let (quota, most) = (u128::from(announced) + 1, u128::from(most.max(1)));
    let cut = length.min(longest);
    let part = quota * cut.as_millis() / length.as_millis();
    let (part, cut_ms) =
        if part > most { (most, (length.as_millis() * most).div_ceil(quota)) } else { (part, cut.as_millis()) };
    let to_u64 = |number| u64::try_from(number).unwrap_or(u64::MAX);
    (to_u64(part).saturating_sub(1), Duration::from_millis(to_u64(cut_ms)))
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_window_of_a_policy_is_cut_in_proportion() {
        for (announced, most, length, expected) in [
            (99, MOST, 60, (99, 60 * SECOND)),
            (99, MOST, 600, (49, 300 * SECOND)),
            (99, 10, 60, (9, 6 * SECOND)),
            (17_999, 10, 3600, (9, 2 * SECOND)), // 5 a second, and 10 at once
            (9_999_999, MOST, 2_592_000, (1156, 300 * SECOND)),
            (2 * MOST - 1, MOST, 10, (MOST - 1, 5 * SECOND)),
            (4, MOST, 3600, (0, 300 * SECOND)),
            (u64::MAX - 1, MOST, 300, (MOST - 1, Duration::from_millis(1))),
        ] {
            assert_eq!(part_of_policy(announced, most, length * SECOND, 300 * SECOND), expected);
        }
    }

    #[test]
    fn a_policy_of_which_nothing_tells_what_remains_is_kept_in_each_window() {
        for (slowest, at_once, remaining, reset, expected) in [
            ((10, 1), 10, 700, Some(300), (9, SECOND)),
            ((100, 3600), 100, 900, Some(50_000), (7, 300 * SECOND)), // 96 an hour
            ((10, 60), 10, 700, None, (0, 6 * SECOND)),
            ((100, 3600), 10, 700, Some(4000), (7, 300 * SECOND)),
            ((1_000, 60), 10, 700, Some(60), (9, Duration::from_millis(600))),
            ((100, 60), 100, 5, Some(30), (5, 30 * SECOND)),
            ((0, 60), 0, 5, Some(30), (0, 60 * SECOND)),
            ((100, 3600), 1, 0, Some(1), (0, 36 * SECOND)),
        ] {
            let said = Announcement {
                remaining: Some(remaining),
                reset: reset.map(|reset: u32| reset * SECOND),
                at_once: Some(at_once),
                slowest: Some((slowest.0, slowest.1 * SECOND)),
                ..Announcement::default()
            };
            let Window { calls, length, is_part } = said.window(300 * SECOND);
            assert_eq!((calls, length), expected, "{said:?}");
            assert_eq!(is_part, expected != (5, 30 * SECOND), "{said:?}");
        }
    }
}
