//! Effects of a refusal on the turns of its caller, and of other callers.

use std::slice;

use super::{callers::charge_of, *};
use crate::{Algorithm, Decision, ManualClock, Rule};

const HOUR: Duration = Duration::from_secs(3_600);
const SECOND: Duration = Duration::from_secs(1);

/// A refusal that came with this wait.
fn refused_with(rule: &Rule, cost: u64, wait: Duration) -> [Charge; 1] {
    let mut charge = charge_of(rule, 1, cost);
    charge.decision = Decision::new(rule.limit(), 0, HOUR, Some(wait));
    [charge]
}

/// Both have asked before one of them waits.
#[test]
fn a_refusal_of_a_later_caller_who_needs_more_does_not_delay_the_first() {
    let clock = ManualClock::new();
    let queues = WaitQueues::new(10_000, clock.clone().into(), false);
    let rule = Rule::new("item", 10, HOUR).with_algorithm(Algorithm::SlidingLog);
    let [first, second] = [(1, SECOND), (9, HOUR)].map(|(cost, wait)| {
        let charges = refused_with(&rule, cost, wait);
        let answer = (&StoreAnswer::of(&charges, clock.now()), queues.changes(&charges));
        queues.join(queues.ticket(), &charges, Some(answer), false).expect("there is space in the queue")
    });
    clock.advance(SECOND);
    assert!(first.look().is_ok(), "its own wait is over: {:?}", first.look());
    assert!(second.look().is_err());
}

fn refusal_of([charge]: &[Charge; 1], sent_at: Duration) -> StoreAnswer {
    let Decision { remaining, retry_after_ms, .. } = charge.decision;
    let refusal = RequestPerMinute::exceeded(&charge.rule, charge.cost, remaining, retry_after_ms);
    let answer = StoreAnswer::of(slice::from_ref(charge), sent_at);
    StoreAnswer { refusal: Some((QueueId::of(charge), refusal)), ..answer }
}

/// Waits are given in whole milliseconds, rounded up, from the request on.
#[test]
fn a_turn_in_the_millisecond_after_the_longest_wait_is_in_time() {
    let clock = ManualClock::new();
    let queues = WaitQueues::new(10_000, clock.clone().into(), false);
    let [ms, us] = [Duration::from_millis(1), Duration::from_micros(1)];
    let [charge] = refused_with(&Rule::new("item", 1, SECOND), 1, ms);
    let charges = [Charge { longest_wait: ms + Charge::SHORTEST_WAIT, ..charge }];
    let position = queues.join(queues.ticket(), &charges, None, false).expect("there is space in the queue");
    assert_eq!(position.look(), Ok(Turn::Ask { early: false }));
    clock.advance(10 * us);
    position.refused(&StoreAnswer::of(&charges, clock.now()));
    clock.advance(999 * us);
    assert_eq!(position.look(), Err(Some(clock.now() + us)));
    clock.advance(us);
    assert_eq!(position.look(), Ok(Turn::Ask { early: false }));
}

/// Not that of the caller ahead, whose refusal is the latest.
#[test]
fn a_caller_whose_turn_comes_too_late_is_told_its_own_cost() {
    let clock = ManualClock::new();
    let queues = WaitQueues::new(10_000, clock.clone().into(), false);
    let rule = Rule::new("item", 10, HOUR);
    let ahead = refused_with(&rule, 5, HOUR);
    let answer = refusal_of(&ahead, clock.now());
    let _ahead = queues.join(queues.ticket(), &ahead, Some((&answer, queues.changes(&ahead))), false).expect("space");
    let charges = [Charge { longest_wait: SECOND, ..charge_of(&rule, 1, 1) }];
    let (refused, _) = queues.join(queues.ticket(), &charges, None, false).err().flatten().expect("a refusal");
    assert_eq!(refused.rule_and_cost().1, 1);
}

/// The answer to the later request, of a larger cost, is handled first.
#[test]
fn a_caller_is_not_refused_at_once_for_the_wait_of_a_larger_cost() {
    let clock = ManualClock::new();
    let queues = WaitQueues::new(10_000, clock.clone().into(), false);
    let rule = Rule::new("item", 10, HOUR).with_algorithm(Algorithm::SlidingLog);
    let (small_ticket, large_ticket) = (queues.ticket(), queues.ticket());
    let [small] = refused_with(&rule, 1, SECOND);
    let small = [Charge { longest_wait: 30 * SECOND, ..small }];
    let large = refused_with(&rule, 9, HOUR);
    let of_small = refusal_of(&small, clock.now());
    clock.advance(Duration::from_millis(1));
    let of_large = refusal_of(&large, clock.now());
    let _large =
        queues.join(large_ticket, &large, Some((&of_large, queues.changes(&large))), false).expect("there is space");
    assert!(queues.join(small_ticket, &small, Some((&of_small, queues.changes(&small))), false).is_ok());
}

/// In a fixed window a smaller cost waits as long. The larger one is of two counters, so it is not in line.
#[test]
fn a_caller_of_a_full_window_is_refused_at_once_behind_a_larger_cost() {
    let clock = ManualClock::new();
    let queues = WaitQueues::new(10_000, clock.clone().into(), false);
    let (all, own) = (Rule::new("all", 10, HOUR), Rule::new("own", 100, HOUR));
    let [mut of_all, mut of_own] = [charge_of(&all, 1, 9), charge_of(&own, 1, 1)];
    of_all.decision = Decision::new(10, 0, HOUR, Some(HOUR));
    of_own.decision = Decision::new(100, 99, HOUR, None);
    let large = [of_all, of_own];
    let mut answer = StoreAnswer::of(&large, clock.now());
    answer.refusal = Some((
        QueueId::of(&large[0]),
        RequestPerMinute::exceeded(&all, 9, large[0].decision.remaining, large[0].decision.retry_after_ms),
    ));
    let _large =
        queues.join(queues.ticket(), &large, Some((&answer, queues.changes(&large))), false).expect("there is space");
    let small = [Charge { longest_wait: 30 * SECOND, ..charge_of(&all, 1, 1) }];
    let ticket = queues.ticket();
    assert!(queues.waited_for(&small, ticket).is_some());
    assert!(queues.join(ticket, &small, None, false).is_err(), "the window is full for an hour");
}

/// The settlement of another process wakes none of them, so all have to ask in time.
#[test]
fn a_cost_that_settles_sets_the_timers_of_callers_with_any_count() {
    let clock = ManualClock::new();
    let queues = WaitQueues::new(10_000, clock.clone().into(), true);
    let [rule, other] = [10, 20].map(|count| Rule::new("item", count, HOUR));
    let refused = refused_with(&rule, 1, HOUR);
    let answer = (&StoreAnswer::of(&refused, clock.now()), queues.changes(&refused));
    let first = queues.join(queues.ticket(), &refused, Some(answer), false).expect("there is space");
    let later = first.look().unwrap_err().expect("a timer");
    let settled = [Charge { settles: true, ..charge_of(&other, 1, 1) }];
    let _second = queues.join(queues.ticket(), &settled, None, false).expect("there is space");
    let sooner = first.look().unwrap_err().expect("a timer");
    assert!(sooner < later && sooner <= clock.now() + SECOND, "{sooner:?}, {later:?}");
}
