//! The charges and holds of a history, and when each of them counts.

use std::collections::HashMap;

use super::super::stalls::Stalls;
use super::super::steps::Entry;
use super::super::{Action, Answer, Call, Counting, Limit};
use super::Bounds;

/// The time at which each charge and hold counts.
pub(super) fn entries<'a>(limits: &'a [Limit], calls: &[&'a Call], bounds: &Bounds, stalls: &Stalls) -> Vec<Entry<'a>> {
    let mut entries: Vec<Entry<'a>> = Vec::new();
    let mut by_call: HashMap<(u32, u64), usize> = HashMap::new();
    for &call in calls {
        if !matches!(call.action, Action::Acquire { .. } | Action::Hold { .. }) {
            continue;
        }
        let limit = &limits[call.limit];
        let is_charged = call.is_admitted() || call.is_unknown() || call.degraded;
        if !is_charged || call.cost() == 0 {
            continue;
        }
        let is_certain = call.is_admitted() && !call.degraded;
        let mut from = (call.invoked, call.answered);
        if !is_certain {
            from.1 = from.1.saturating_add(bounds.straggler);
        } else if call.within().is_some() {
            from.0 = from.0.max(stalls.before(call.process, from.1, bounds.decision));
        }
        let natural = if let Action::Hold { lease, .. } = call.action {
            let last = u64::MAX / 4;
            let charged = if limit.counting == Counting::Concurrent { 0 } else { limit.period };
            // One that is unknown is not renewed.
            if is_certain { (from.0 + lease.saturating_sub(bounds.skew), last) } else { (0, from.1 + lease + charged) }
        } else {
            natural_end(limit, call, from, bounds)
        };
        by_call.insert((call.process, call.id), entries.len());
        // A permit that was dropped ends its hold at a time that is not in the history.
        let until = if matches!(call.action, Action::Hold { .. }) { (0, natural.1) } else { natural };
        entries.push(Entry { call, cost: call.cost(), from, until, natural, is_certain });
    }
    for &call in calls {
        let (of, settled) = match call.action {
            Action::Refund { of } => (of, None),
            Action::Settle { of, used, is_held } => (of, Some((used, is_held))),
            _ => continue,
        };
        let Some(&at) = by_call.get(&(call.process, of)) else { continue };
        let limit = &limits[call.limit];
        let entry = &mut entries[at];
        let Action::Hold { lease, .. } = entry.call.action else {
            let back = if let Answer::Done(back) = call.answer { Some(back) } else { None };
            if back != Some(0) {
                entry.until.0 = entry.until.0.min(call.invoked);
            }
            // A call that this process decided by itself may have charged the store, too: its reply was lost.
            if entry.is_certain && back.is_some_and(|back| back >= entry.cost) {
                entry.until.1 = entry.until.1.min(call.answered);
            }
            continue;
        };
        // Until it ends it is renewed, unless it was lost.
        let (used, is_held) = settled.unwrap_or((0, true));
        let held_until = if is_held { call.invoked } else { entry.natural.0.min(call.invoked) };
        let is_done = matches!(call.answer, Answer::Done(_)) && !call.degraded;
        let lost = if limit.counting == Counting::Concurrent { 0 } else { limit.period };
        let free = if is_done { call.answered } else { call.answered + bounds.straggler + lease + lost };
        entry.until = (held_until, free);
        if limit.counting != Counting::Concurrent {
            let from = (call.invoked, free);
            let cost = if is_done { used } else { used.max(entry.cost) };
            let is_certain = is_done && entry.is_certain && is_held;
            let natural = natural_end(limit, call, from, bounds);
            entries.push(Entry { call, cost, from, until: natural, natural, is_certain });
        }
    }
    for call in calls.iter().filter(|call| matches!(call.action, Action::Reset)) {
        let is_done = matches!(call.answer, Answer::Done(_)) && !call.degraded;
        for entry in &mut entries {
            if entry.from.0 <= call.answered {
                entry.until.0 = entry.until.0.min(call.invoked);
            }
            if is_done && entry.from.1 < call.invoked {
                entry.until.1 = entry.until.1.min(call.answered);
            }
        }
    }
    entries
}

/// The time at which a charge stops counting by itself.
fn natural_end(limit: &Limit, call: &Call, from: (u64, u64), bounds: &Bounds) -> (u64, u64) {
    let (period, skew) = (limit.period, bounds.skew);
    let latest = from.1 + period + skew;
    match (limit.counting, &call.answer) {
        (Counting::Fixed | Counting::Aligned, Answer::Admitted { reset_after_ms, .. }) if !call.degraded => {
            let reset = reset_after_ms * 1000;
            // Quota taken ahead counts its window's end from the answer, so up to a call too long.
            let late = if limit.prefetch > 1 { bounds.decision } else { 0 };
            let earliest = (from.0 + reset).saturating_sub(1000 + skew + late);
            (earliest, (from.1 + reset + skew).min(latest).max(earliest))
        }
        (Counting::Fixed | Counting::Aligned, _) => (from.0, latest),
        (Counting::Sliding { buckets, weighted }, _) => {
            let bucket = period / buckets.max(1);
            ((from.0 + period).saturating_sub(bucket + skew), latest + if weighted { bucket } else { 0 })
        }
        _ => ((from.0 + period).saturating_sub(skew), latest),
    }
}
