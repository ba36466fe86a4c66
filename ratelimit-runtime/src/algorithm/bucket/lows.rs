//! The lowest deficits of a bucket since charges that are settled later.
//!
//! A charge at `t0` is refunded at `t1`. Without it, the deficit would have been lower by the refund from
//! `t0` on, but never below 0. So all of it may be refunded, up to the lowest deficit between the two
//! times, with earlier refunds taken out of the deficit from their own `t0` on. (That is the regulator of
//! a reflected path, see Skorokhod, 1961.)

use smallvec::SmallVec;

/// Pairs that a bucket keeps at most. Of more, two are merged: the refund of a charge is smaller then.
const MOST: usize = 8;

/// Times of charges that are settled later, oldest first. The lowest deficits increase.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lows(SmallVec<[Low; 1]>);

/// From this time on, the deficit was never lower than this. Refunds are taken out of it.
#[derive(Clone, Copy, Debug)]
struct Low {
    from_ms: u64,
    deficit: u64,
}

impl Lows {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Notes the deficit of now. A pair that another one covers is dropped.
    pub(super) fn note(&mut self, deficit: u64) {
        let mut lowest = deficit;
        for low in self.0.iter_mut().rev() {
            lowest = lowest.min(low.deficit);
            low.deficit = lowest;
        }
        let mut before = 0;
        self.0.retain(|low| std::mem::replace(&mut before, low.deficit) < low.deficit);
    }

    /// The lowest deficit since a charge, as far as it is known.
    pub(super) fn since(&self, charged_ms: u64) -> u64 {
        self.0.iter().rfind(|low| low.from_ms <= charged_ms).map_or(0, |low| low.deficit)
    }

    /// Notes a charge that is settled later, and the deficit after it.
    pub(super) fn push(&mut self, now_ms: u64, deficit: u64) {
        match self.0.last_mut() {
            Some(last) if last.from_ms == now_ms => last.deficit = deficit,
            _ => self.0.push(Low { from_ms: now_ms, deficit }),
        }
        if self.0.len() > MOST {
            let nearest = (1..self.0.len()).min_by_key(|&at| self.0[at].deficit - self.0[at - 1].deficit);
            self.0.remove(nearest.unwrap_or_default());
        }
    }

    /// Takes a refund out of the deficits since its charge. `left`: the deficit after the refund.
    ///
    /// `not_refilled`: the part of the charge that can't have refilled since. The deficit was higher by it
    /// than before the charge. So without that part, it is no lower than before the charge.
    pub(super) fn refund(&mut self, charged_ms: u64, now_ms: u64, units: u64, not_refilled: u64, left: u64) {
        if charged_ms < now_ms {
            let first = self.0.partition_point(|low| low.from_ms <= charged_ms).saturating_sub(1);
            for low in &mut self.0[first..] {
                let lower = if low.from_ms < charged_ms { units.saturating_sub(not_refilled) } else { units };
                low.deficit = low.deficit.saturating_sub(lower);
            }
        }
        self.note(left);
    }
}

#[cfg(all(test, not(model_check)))]
mod tests {
    use super::*;

    /// The refund of one charge is smaller then, by as little as possible.
    #[test]
    fn of_too_many_pairs_the_two_nearest_are_merged() {
        let mut lows = Lows::default();
        for (at_ms, deficit) in (1..).zip([10, 100, 190, 290, 293, 400, 500, 600, 700]) {
            lows.push(at_ms, deficit);
        }
        let since: Vec<_> = (1..10).map(|at_ms| lows.since(at_ms)).collect();
        assert_eq!(since, [10, 100, 190, 290, 290, 400, 500, 600, 700]);
    }
}
