//! Charges as the deficit of a bucket: of tokens, or of slots that have not passed yet.

use super::{
    state::{Level, ModelCounter, RefundedCharge},
    units::{ceil, count, period_ms},
};
use crate::{Algorithm, Refill, Rule};

/// The whole count comes back at the end of each period.
fn is_refilled_at_once(rule: &Rule) -> bool {
    matches!(rule.algorithm(), Algorithm::TokenBucket { refill: Refill::Interval, .. })
}

/// Units per cost of 1, chosen so that each refill is a whole number of units.
pub(super) fn unit(rule: &Rule) -> i128 {
    if is_refilled_at_once(rule) { 1 } else { period_ms(rule) }
}

/// Time between two refills of a bucket. Each adds `count` units.
fn refill_ms(rule: &Rule) -> i128 {
    if is_refilled_at_once(rule) { period_ms(rule) } else { 1 }
}

/// A bucket does not tell larger counts apart.
const LARGEST_PACE: i128 = (1 << 30) - 1;

/// The units of a refill, as far as a bucket remembers them.
fn pace(rule: &Rule) -> i128 {
    count(rule).min(LARGEST_PACE)
}

fn level_at(counter: &ModelCounter, now_ms: i128) -> Option<Level> {
    counter.level.filter(|level| now_ms < level.full_ms)
}

pub(super) fn spent(counter: &ModelCounter, rule: &Rule, at_us: i128) -> i128 {
    let now = at_us / 1000;
    let Some(level) = level_at(counter, now) else { return 0 };
    let refills = level.refills_to_come(rule, level.written_ms) - level.refills_to_come(rule, now);
    (level.deficit - refills * count(rule)).max(0)
}

/// Slots that were handed out stay if the count was raised since.
pub(super) fn slots_spent(counter: &ModelCounter, rule: &Rule, at_us: i128) -> i128 {
    let Some(level) = level_at(counter, at_us / 1000) else { return 0 };
    spent(counter, rule, at_us).max((level.full_ms - at_us / 1000 - 1) * count(rule) + 1)
}

/// Time until the slot of a call that is made now.
pub(super) fn slot_ms(counter: &ModelCounter, rule: &Rule, at_us: i128) -> i128 {
    if rule.count() > 0 { ceil(slots_spent(counter, rule, at_us), count(rule)) } else { 0 }
}

pub(super) fn charge(counter: &mut ModelCounter, rule: &Rule, now: i128, cost: i128, _receipt: u64) {
    note_deficit(counter, spent(counter, rule, now));
    add(counter, rule, now, spent(counter, rule, now) + cost * unit(rule));
}

pub(super) fn charge_slots(counter: &mut ModelCounter, rule: &Rule, now: i128, cost: i128, _receipt: u64) {
    add(counter, rule, now, slots_spent(counter, rule, now) + cost * unit(rule));
}

/// The number of charges to be settled that a bucket remembers.
const MOST_LOWS: usize = 8;

/// No time since a charge had a higher deficit than now. Of charges with the same lowest deficit since,
/// the first is enough.
fn note_deficit(counter: &mut ModelCounter, deficit: i128) {
    let lows = &mut counter.lows;
    for at in 0..lows.len() {
        lows[at].1 = lows[at..].iter().map(|(_, lowest)| *lowest).min().unwrap_or(deficit).min(deficit);
    }
    lows.retain(|(_, lowest)| *lowest > 0);
    lows.dedup_by_key(|(_, lowest)| *lowest);
}

/// Remembers the charge that was made now. With too many, forgets the one that is nearest to the one
/// before.
pub(super) fn settles(counter: &mut ModelCounter, now: i128) {
    let (now_ms, Some(level)) = (now / 1000, counter.level) else { return };
    let lows = &mut counter.lows;
    lows.retain(|(from_ms, _)| *from_ms < now_ms);
    lows.push((now_ms, level.deficit));
    if lows.len() > MOST_LOWS {
        let above = |at: &usize| lows[*at].1 - lows[*at - 1].1;
        let nearest = (1..lows.len()).min_by_key(above).expect("more than one");
        lows.remove(nearest);
    }
}

/// Raises the deficit.
fn add(counter: &mut ModelCounter, rule: &Rule, now: i128, deficit: i128) {
    let now_ms = now / 1000;
    let fresh = Level { written_ms: now_ms, deficit: 0, full_ms: now_ms, paces: (pace(rule), pace(rule)) };
    let level = level_at(counter, now_ms).unwrap_or(fresh);
    counter.level = Some(level.changed(rule, now_ms, deficit));
}

/// Refunds the part without which the bucket would not have been full since, as far as that is known. It
/// is never less than the part that was not refilled since, at the highest count.
pub(super) fn refund(counter: &mut ModelCounter, rule: &Rule, now: i128, refunded: &RefundedCharge) -> i128 {
    let now_ms = now / 1000;
    let Some(level) = level_at(counter, now_ms) else { return 0 };
    let to_come = level.refills_to_come(rule, now_ms);
    let refills = (level.refills_to_come(rule, refunded.granted.at_us / 1000) - to_come).max(0);
    let deficit = spent(counter, rule, now);
    let is_any = level.paces.1 == LARGEST_PACE && count(rule) < LARGEST_PACE;
    let fastest = if is_any { i128::MAX / refills.max(1) } else { count(rule).max(level.paces.1) };
    let not_refilled = (refunded.cost * unit(rule) - refills * fastest).max(0);
    let before = counter.lows.clone();
    note_deficit(counter, deficit);
    let charged_ms = refunded.granted.at_us / 1000;
    let known = counter.lows.iter().rposition(|(from_ms, _)| *from_ms <= charged_ms);
    let lowest = known.map_or(0, |at| counter.lows[at].1);
    let back = not_refilled.max(lowest.min(refunded.cost * unit(rule))).min(deficit);
    if back == 0 {
        counter.lows = before;
        return 0;
    }
    if charged_ms < now_ms {
        for (from_ms, lowest) in &mut counter.lows[known.unwrap_or(0)..] {
            // What was not refilled was added to the deficit of before.
            *lowest -= if *from_ms < charged_ms { (back - not_refilled).max(0) } else { back };
        }
    }
    let deficit = deficit - back;
    note_deficit(counter, deficit);
    let after = level.changed(rule, now_ms, deficit);
    let after = Level { full_ms: after.full_ms.min(level.full_ms), ..after };
    counter.level = (deficit > 0 || after.paces.0 < after.paces.1).then_some(after);
    ceil(back, unit(rule))
}

/// Refunds the last charge only.
pub(super) fn refund_slots(counter: &mut ModelCounter, rule: &Rule, now: i128, refunded: &RefundedCharge) -> i128 {
    let now_ms = now / 1000;
    let Some(level) = level_at(counter, now_ms) else { return 0 };
    let is_last = refunded.granted.level.is_some_and(|after| after.end(rule) == level.end(rule));
    if !is_last {
        return 0;
    }
    let spent = slots_spent(counter, rule, now);
    let back = spent.min(refunded.cost * unit(rule));
    let deficit = spent - back;
    let full_ms = now_ms + ceil(deficit, count(rule));
    counter.level = (deficit > 0).then_some(Level { written_ms: now_ms, deficit, full_ms, ..level });
    ceil(back, unit(rule))
}

impl Level {
    fn refills_to_come(&self, rule: &Rule, at_ms: i128) -> i128 {
        ceil(self.full_ms - at_ms, refill_ms(rule))
    }

    /// The level after a charge or a refund. If the paces differ, it is full no sooner than before.
    fn changed(self, rule: &Rule, now_ms: i128, deficit: i128) -> Self {
        let paces = (self.paces.0.min(pace(rule)), self.paces.1.max(pace(rule)));
        let more = ceil(deficit, count(rule)) - self.refills_to_come(rule, now_ms);
        let full_ms = self.full_ms + more * refill_ms(rule);
        let least_ms = if paces.0 < paces.1 { self.full_ms } else { full_ms };
        Self { written_ms: now_ms, deficit, full_ms: full_ms.max(least_ms), paces }
    }

    /// When a leaky bucket is empty: the millisecond, and the fraction that is left of it.
    fn end(&self, rule: &Rule) -> (i128, i128) {
        (self.full_ms, (self.full_ms - self.written_ms) * count(rule) - self.deficit)
    }
}
