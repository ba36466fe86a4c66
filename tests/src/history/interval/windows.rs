//! Windows and logs: never more than the bound, and one caller for each permit of a window.

use super::super::steps::Entry;
use super::super::{Answer, Counting};
use super::{Counter, number};

impl<'a> Counter<'a> {
    /// Never more is used than there is, and admitted in a period than the algorithm's bound.
    pub(super) fn never_passed(&mut self) {
        let most = self.calls.iter().map(|call| self.limits[call.limit].limit).max().unwrap_or(0);
        if let Some((time, used)) = self.steps.first_above(number(most)) {
            let last = self.entries.iter().find(|entry| entry.from.1 + 1 == time).map(|entry| entry.call);
            let message = format!("{used} are in use, of {most}");
            self.accuse("more than the limit", message, last, (self.before(time), time));
        }
        let bound = match self.limit.counting {
            Counting::Fixed | Counting::Aligned | Counting::Sliding { weighted: false, .. } => 2 * most,
            Counting::Log => most,
            Counting::Sliding { .. } => 2 * most - 1,
            _ => return,
        };
        if !(self.has_resets || self.has_holds) {
            self.any_window(bound);
        }
    }

    /// The sum of the calls that lie within one period.
    fn any_window(&mut self, bound: u64) {
        let mut inside: Vec<(u64, u64, u64)> =
            self.kept().map(|entry| (entry.from.0, entry.from.1, entry.cost)).collect();
        inside.sort_unstable_by(|one, other| other.cmp(one));
        let mut ends: Vec<u64> = inside.iter().map(|(_, end, _)| *end).collect();
        ends.sort_unstable();
        let mut sums = vec![0_u64; ends.len() + 1];
        let period = self.limit.period.saturating_sub(self.bounds.skew);
        for (from, end, cost) in inside {
            let mut at = ends.partition_point(|other| *other < end) + 1;
            while at < sums.len() {
                sums[at] += cost;
                at += at & at.wrapping_neg();
            }
            let mut until = ends.partition_point(|other| *other < from.saturating_add(period));
            let mut sum = 0;
            while until > 0 {
                sum += sums[until];
                until -= until & until.wrapping_neg();
            }
            if sum > bound {
                let message = format!("{sum} were admitted within one period, {bound} at most");
                self.accuse("more than the bound", message, None, (from, from + period));
                return;
            }
        }
    }

    /// Windows are as long as the period, and each charge of a window has a place of its own in it.
    pub(super) fn windows(&mut self) {
        if !self.is_plain {
            return;
        }
        let (period, skew) = (self.limit.period, self.bounds.skew);
        let mut ends: Vec<Entry<'a>> =
            self.entries.iter().filter(|entry| entry.is_certain && self.limit.prefetch <= 1).cloned().collect();
        for entry in &ends {
            if let Answer::Admitted { reset_after_ms, .. } = entry.call.answer
                && reset_after_ms * 1000 > period + 1000
            {
                let message = format!("all are back in {reset_after_ms} ms, {} at most", period / 1000);
                let span = (entry.from.0, entry.from.1);
                self.accuse("a window longer than its period", message, Some(entry.call), span);
            }
        }
        ends.retain(|entry| entry.natural.1 - entry.natural.0 < period / 4);
        ends.sort_by_key(|entry| entry.natural.0);
        let mut windows: Vec<Vec<Entry<'a>>> = Vec::new();
        for entry in ends {
            match windows.last_mut() {
                Some(window) if entry.natural.0 - window[0].natural.0 < period / 2 => window.push(entry),
                _ => windows.push(vec![entry]),
            }
        }
        for window in &windows {
            self.places(window);
            let first = window.iter().map(|entry| entry.natural.1).min().unwrap_or(0);
            if let Some(other) = window.iter().find(|entry| entry.natural.0 > first + skew) {
                let message = format!("ends {} ms apart are told in one period", (other.natural.0 - first) / 1000);
                let span = (window[0].from.0, other.from.1);
                self.accuse("a window that ends at two times", message, Some(other.call), span);
            }
        }
    }

    fn places(&mut self, window: &[Entry<'a>]) {
        let mut places: Vec<(u64, &Entry<'a>)> = Vec::new();
        for entry in window {
            if let Answer::Admitted { remaining: Some(remaining), .. } = entry.call.answer {
                places.push((self.limits[entry.call.limit].limit - remaining, entry));
            }
        }
        places.sort_by_key(|(used, entry)| (*used, entry.from.0));
        let mut latest: Option<&Entry<'a>> = None;
        let mut before: Option<(u64, &Entry<'a>)> = None;
        for &(used, entry) in &places {
            let span = |other: &Entry<'a>| (other.from.0.min(entry.from.0), other.from.1.max(entry.from.1));
            if let Some((taken, other)) = before
                && used.saturating_sub(entry.cost) < taken
            {
                let message = format!(
                    "{used} are used after #{} of process {} and {taken} after #{} of process {}",
                    entry.call.id, entry.call.process, other.call.id, other.call.process
                );
                self.accuse("one permit for two callers", message, Some(entry.call), span(other));
                return;
            }
            if let Some(other) = latest
                && entry.from.1 < other.from.0
            {
                let message =
                    format!("{used} are used after it, but it was answered before #{} was asked", other.call.id);
                self.accuse("a later state told to an earlier caller", message, Some(entry.call), span(other));
                return;
            }
            before = Some((used, entry));
            if latest.is_none_or(|latest| latest.from.0 < entry.from.0) {
                latest = Some(entry);
            }
        }
    }
}
