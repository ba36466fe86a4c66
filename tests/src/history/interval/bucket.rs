//! Token buckets: never more than burst and refill, and no refusal of tokens that are there.

use super::super::steps::{Entry, MaxTree};
use super::super::{Action, Answer, Call, Counting};
use super::Counter;

impl Counter<'_> {
    /// From any time to any other, no more than burst and refill.
    pub(super) fn bucket_never_passed(&mut self) {
        let Counting::Bucket { burst, is_greedy } = self.limit.counting else { return };
        if self.has_resets {
            return;
        }
        let (count, period) = (i128::from(self.limit.count), i128::from(self.limit.period));
        let kept: Vec<(u64, u64, u64)> = {
            let refunded = self.refunded();
            let kept = self.entries.iter().filter(|entry| entry.is_certain);
            let kept = kept.filter(|entry| !refunded.contains(&(entry.call.process, entry.call.id)));
            kept.map(|entry| (entry.from.1, entry.from.0, entry.cost)).collect()
        };
        let mut kept = kept;
        kept.sort_unstable();
        let mut starts: Vec<u64> = kept.iter().map(|(_, from, _)| *from).collect();
        starts.sort_unstable();
        starts.dedup();
        let mut sums = MaxTree::new(&starts.iter().map(|start| i128::from(*start) * count).collect::<Vec<_>>());
        let spare = count * i128::from(2 * self.bounds.skew) + if is_greedy { period } else { count * period };
        for (end, from, cost) in kept {
            sums.add_to_first(starts.partition_point(|start| *start <= from), i128::from(cost) * period);
            let most = sums.largest_of_first(starts.partition_point(|start| *start <= end));
            let over = most - i128::from(end) * count - i128::from(burst) * period - spare;
            if over > 0 {
                let message = format!("more than a burst of {burst} and the refill until then");
                let call = self.calls.iter().copied().find(|call| call.invoked == from && call.answered == end);
                let length = self.limit.period * burst / self.limit.count.max(1);
                self.accuse("more than the bound", message, call, (end.saturating_sub(length), end));
                return;
            }
        }
    }

    fn refunded(&self) -> Vec<(u32, u64)> {
        let of = |call: &&Call| if let Action::Refund { of } = call.action { Some((call.process, of)) } else { None };
        self.calls.iter().filter_map(of).collect()
    }

    /// A bucket refuses only if all that may have been charged leaves too little.
    pub(super) fn bucket_refusals(&mut self) {
        let Counting::Bucket { burst, is_greedy } = self.limit.counting else { return };
        let (count, period) = (i128::from(self.limit.count), i128::from(self.limit.period));
        let mut refused: Vec<&Call> = self
            .calls
            .iter()
            .copied()
            .filter(|call| matches!(call.answer, Answer::Refused { .. }) && !call.degraded)
            .collect();
        refused.sort_by_key(|call| call.answered);
        let asked = |call: &Call| call.invoked.saturating_sub(self.bounds.skew);
        let mut starts: Vec<u64> = self.entries.iter().map(|entry| entry.from.1).collect();
        starts.extend(refused.iter().map(|call| asked(call)));
        starts.sort_unstable();
        starts.dedup();
        let mut charges: Vec<&Entry<'_>> = self.entries.iter().collect();
        charges.sort_by_key(|entry| entry.from.0);
        let mut charges = charges.into_iter().peekable();
        let mut sums = MaxTree::new(&starts.iter().map(|start| i128::from(*start) * count).collect::<Vec<_>>());
        let spare = if is_greedy { period } else { count * period };
        let mut wrong = Vec::new();
        for call in refused {
            while let Some(entry) = charges.next_if(|entry| entry.from.0 <= call.answered) {
                let until = starts.partition_point(|start| *start <= entry.from.1);
                sums.add_to_first(until, i128::from(entry.cost) * period);
            }
            let most = sums.largest_of_first(starts.partition_point(|start| *start <= asked(call)));
            let used = most - i128::from(asked(call)) * count + spare;
            if used + i128::from(call.cost()) * period <= i128::from(burst) * period {
                wrong.push((call, (used / period).max(0)));
            }
        }
        for (call, used) in wrong {
            let message =
                format!("a cost of {} is refused of {burst}, though at most {used} were missing", call.cost());
            let length = self.limit.period * burst / self.limit.count.max(1);
            self.accuse(
                "a refusal without a reason",
                message,
                Some(call),
                (call.invoked.saturating_sub(length), call.answered),
            );
        }
    }
}
