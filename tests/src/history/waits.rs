//! Checks of callers who wait: their order, and that the limit explains how long they wait.

use super::interval::{Counter, number};
use super::{Action, Answer, Call};

/// Checks that later callers of the same process and cost do not pass a waiting caller, and that it
/// is refused only if its wait would be too long.
pub(super) fn order(counter: &mut Counter<'_>) {
    let waiters: Vec<&Call> = counter.calls.iter().copied().filter(|call| call.within().is_some()).collect();
    let (bounds, stalls) = (counter.bounds, counter.stalls);
    if let Some(passes) = bounds.passes {
        for first in &waiters {
            let Some(since) = first.pending else { continue };
            if first.degraded {
                continue;
            }
            let queued = since.saturating_add(bounds.queued);
            let begin = waiters.partition_point(|other| other.invoked <= queued);
            let later = waiters[begin..].iter().take_while(|other| other.invoked < first.answered);
            let passed = later.filter(|other| {
                other.process == first.process
                    && other.cost() == first.cost()
                    && !other.degraded
                    && other.is_admitted()
                    && other.answered < stalls.before(first.process, first.answered, bounds.pass_slack)
            });
            let passed: Vec<&&Call> = passed.collect();
            if passed.len() > passes {
                let message = format!(
                    "{} later callers of its process were admitted while it waited, {passes} may be; the first is #{}",
                    passed.len(),
                    passed[0].id
                );
                counter.accuse("a waiting caller is passed", message, Some(first), (first.invoked, first.answered));
            }
        }
    }
    if bounds.waits_are_told {
        for call in waiters {
            let (Some(within), Answer::Refused { retry_after_ms: Some(retry), .. }) = (call.within(), &call.answer)
            else {
                continue;
            };
            let told = call.answered.saturating_add(retry * 1000);
            if !call.degraded && told + bounds.skew < call.invoked.saturating_add(within) {
                let message = format!("refused with a wait of {retry} ms, and ready to wait {} ms", within / 1000);
                counter.accuse("a refusal of a short wait", message, Some(call), (call.invoked, call.answered));
            }
        }
    }
}

/// While a caller waits, the counter is used up, but for a short time.
pub(super) fn idle(counter: &mut Counter<'_>) {
    let Some(most_idle) = counter.bounds.idle else { return };
    if counter.limit.prefetch > 1 {
        return;
    }
    let mut waiters: Vec<&Call> = counter.calls.iter().copied().filter(|call| call.within().is_some()).collect();
    waiters.retain(|call| call.pending.is_some());
    // A large cost at the head holds up those behind it.
    let largest = number(waiters.iter().map(|call| call.cost()).max().unwrap_or(0));
    let smallest = counter.calls.iter().map(|call| counter.limits[call.limit].limit).min().unwrap_or(0);
    let limit = number(smallest);
    for call in waiters {
        let Some(since) = call.pending else { continue };
        if call.degraded {
            continue;
        }
        // What may have been charged for this caller is not in its own way.
        let is_charged = call.is_admitted() || call.is_unknown();
        let own_from = if call.is_admitted() {
            since.max(counter.stalls.before(call.process, call.answered, counter.bounds.decision))
        } else {
            since
        };
        let is_hold = matches!(call.action, Action::Hold { .. });
        let (mut room_since, mut longest) = (None, (0, since));
        for step in counter.steps.between(since, call.answered) {
            let own = if is_charged && step.until >= own_from { number(call.cost()) } else { 0 };
            if step.most - own + largest <= limit {
                let from = *room_since.get_or_insert(step.from);
                let room = step.until - from - counter.stalls.between(call.process, from, step.until);
                if room > longest.0 {
                    longest = (room, from);
                }
            } else {
                room_since = None;
            }
        }
        // A place that another process left is found within a second.
        let allowed =
            if is_hold { most_idle.saturating_add(if counter.is_shared() { 1_000_000 } else { 0 }) } else { most_idle };
        if longest.0 > allowed {
            let message = format!("it waits, and for {} ms there is room for it", longest.0 / 1000);
            let span = (counter.before(call.invoked), call.answered);
            counter.accuse("a wait without a reason", message, Some(call), span);
        }
    }
}

impl Counter<'_> {
    fn is_shared(&self) -> bool {
        self.calls.iter().any(|call| call.process != self.calls[0].process)
    }
}
