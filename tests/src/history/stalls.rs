//! Times at which a whole process stood still, because its machine was busy.

use std::collections::HashMap;

use super::Call;

/// Gaps without any event of a process, by process and in order.
#[derive(Debug, Default)]
pub(super) struct Stalls(HashMap<u32, Vec<(u64, u64)>>);

impl Stalls {
    /// Gaps of at least so long.
    pub(super) fn new(calls: &[Call], shortest: u64) -> Self {
        let mut events: HashMap<u32, Vec<u64>> = HashMap::new();
        for call in calls {
            events.entry(call.process).or_default().extend([call.invoked, call.answered]);
        }
        let gaps = |mut events: Vec<u64>| {
            events.sort_unstable();
            events.windows(2).filter(|pair| pair[1] - pair[0] >= shortest).map(|pair| (pair[0], pair[1])).collect()
        };
        Self(events.into_iter().map(|(process, events)| (process, gaps(events))).collect())
    }

    /// Time for which a process stood still in an interval.
    pub(super) fn between(&self, process: u32, from: u64, until: u64) -> u64 {
        let stalls = self.0.get(&process).map_or(&[][..], Vec::as_slice);
        let first = stalls.partition_point(|stall| stall.1 <= from);
        let stalls = stalls[first..].iter().take_while(|stall| stall.0 < until);
        stalls.map(|stall| stall.1.min(until) - stall.0.max(from)).sum()
    }

    /// The time `long` before another, without the time for which the process stood still.
    pub(super) fn before(&self, process: u32, time: u64, long: u64) -> u64 {
        let stalls = self.0.get(&process).map_or(&[][..], Vec::as_slice);
        let last = stalls.partition_point(|stall| stall.0 < time);
        let mut from = time.saturating_sub(long);
        for stall in stalls[..last].iter().rev() {
            if stall.1 <= from {
                break;
            }
            from = from.saturating_sub(stall.1.min(time) - stall.0);
        }
        from
    }
}
