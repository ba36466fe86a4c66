//! The least and the most of a counter that is used at each time.

use super::Call;

/// A charge or a hold, and when it counts.
///
/// It begins to count between `from.0` and `from.1`, and stops between `until.0` and `until.1`.
#[derive(Clone, Debug)]
pub(super) struct Entry<'a> {
    pub(super) call: &'a Call,
    pub(super) cost: u64,
    pub(super) from: (u64, u64),
    pub(super) until: (u64, u64),
    /// The time at which it would stop without refunds and resets.
    pub(super) natural: (u64, u64),
    /// It did count for certain.
    pub(super) is_certain: bool,
}

/// The least and the most that is used, as steps over time.
#[derive(Debug)]
pub(super) struct Steps {
    times: Vec<u64>,
    most: Vec<i64>,
    least: Vec<i64>,
}

/// One step, with its time cut to what was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) from: u64,
    pub(super) until: u64,
    pub(super) most: i64,
    pub(super) least: i64,
}

impl Steps {
    /// With `natural`, as if nothing had been refunded or reset.
    pub(super) fn new(entries: &[Entry<'_>], natural: bool) -> Self {
        let mut changes: Vec<(u64, i64, i64)> = Vec::with_capacity(4 * entries.len());
        for entry in entries {
            let cost = i64::try_from(entry.cost).unwrap_or(i64::MAX / 1_000_000);
            let until = if natural { entry.natural.1.max(entry.until.1) } else { entry.until.1 };
            if entry.from.0 <= until {
                changes.push((entry.from.0, cost, 0));
                changes.push((until.saturating_add(1), -cost, 0));
            }
            if entry.is_certain && entry.from.1.saturating_add(1) < entry.until.0 {
                changes.push((entry.from.1 + 1, 0, cost));
                changes.push((entry.until.0, 0, -cost));
            }
        }
        changes.sort_unstable();
        let mut steps = Self { times: vec![0], most: vec![0], least: vec![0] };
        let (mut above, mut below) = (0, 0);
        for (when, change, certain) in changes {
            (above, below) = (above + change, below + certain);
            if steps.times.last() == Some(&when) {
                steps.most.pop();
                steps.least.pop();
            } else {
                steps.times.push(when);
            }
            steps.most.push(above);
            steps.least.push(below);
        }
        steps
    }

    /// The steps from one time to another, both included.
    pub(super) fn between(&self, from: u64, until: u64) -> impl Iterator<Item = Step> + '_ {
        let first = self.times.partition_point(|time| *time <= from) - 1;
        (first..self.times.len()).take_while(move |at| self.times[*at] <= until).map(move |at| Step {
            from: self.times[at].max(from),
            until: self.times.get(at + 1).map_or(until, |next| (next - 1).min(until)),
            most: self.most[at],
            least: self.least[at],
        })
    }

    /// The first time at which the least is more than so much.
    pub(super) fn first_above(&self, limit: i64) -> Option<(u64, i64)> {
        let at = self.least.iter().position(|least| *least > limit)?;
        Some((self.times[at], self.least[at]))
    }
}

/// Numbers at positions: adds to all up to a position, and finds the largest up to a position.
#[derive(Debug)]
pub(super) struct MaxTree {
    size: usize,
    largest: Vec<i128>,
    added: Vec<i128>,
}

impl MaxTree {
    pub(super) fn new(values: &[i128]) -> Self {
        let size = values.len().next_power_of_two().max(1);
        let mut largest = vec![i128::MIN / 4; 2 * size];
        largest[size..size + values.len()].copy_from_slice(values);
        for node in (1..size).rev() {
            largest[node] = largest[2 * node].max(largest[2 * node + 1]);
        }
        Self { size, largest, added: vec![0; 2 * size] }
    }

    /// Adds to the first `count` numbers.
    pub(super) fn add_to_first(&mut self, count: usize, value: i128) {
        self.add(1, self.size, count, value);
    }

    fn add(&mut self, node: usize, width: usize, count: usize, value: i128) {
        if count == 0 {
        } else if count >= width {
            self.largest[node] += value;
            self.added[node] += value;
        } else {
            let half = width / 2;
            self.add(2 * node, half, count.min(half), value);
            self.add(2 * node + 1, half, count.saturating_sub(half), value);
            self.largest[node] = self.largest[2 * node].max(self.largest[2 * node + 1]) + self.added[node];
        }
    }

    /// The largest of the first `count` numbers.
    pub(super) fn largest_of_first(&self, count: usize) -> i128 {
        self.find(1, self.size, count)
    }

    fn find(&self, node: usize, width: usize, count: usize) -> i128 {
        if count == 0 {
            return i128::MIN / 4;
        }
        if count >= width {
            return self.largest[node];
        }
        let half = width / 2;
        let (left, right) =
            (self.find(2 * node, half, count.min(half)), self.find(2 * node + 1, half, count.saturating_sub(half)));
        left.max(right) + self.added[node]
    }
}
