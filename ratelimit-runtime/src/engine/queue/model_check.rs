//! The queues under many of the possible orders of steps of a few callers. All orders would be too
//! many.

use std::{
    future::Future,
    pin::{Pin, pin},
    task::{Context, Waker},
};

use shuttle::{future::block_on, thread};

use super::*;
use crate::Rule;
use crate::{Decision, Key, ManualClock, sync::many_orders};

const RULE: Rule = Rule::new("item", 1, Duration::from_secs(60));

fn queues() -> Arc<WaitQueues> {
    Arc::new(WaitQueues::new(100, ManualClock::new().into(), false))
}

fn charge(key: u64) -> Charge {
    Charge::new(RULE, CounterName::new("", &RULE, &Key::new(key)), 1)
}

/// The store's answer: the amount that remains. The cost does not fit if none remains.
fn answer(key: u64, remaining: u64) -> StoreAnswer {
    let mut charge = charge(key);
    let wait = (remaining == 0).then_some(Duration::from_secs(60));
    charge.decision = Decision::new(1, remaining, Duration::from_secs(60), wait);
    StoreAnswer::of(&[charge], ManualClock::new().now())
}

fn join<'a>(queues: &'a WaitQueues, ticket: u64, refused: Option<&StoreAnswer>) -> QueuePosition<'a> {
    let refused = refused.map(|answer| (answer, queues.changes(&[charge(1)])));
    queues.join(ticket, &[charge(1)], refused, false).unwrap_or_else(|_| panic!("there is space in the queue"))
}

/// The turn of a caller who has looked once and sleeps.
fn asleep<'a>(position: &'a QueuePosition<'_>) -> Pin<Box<dyn Future<Output = Turn> + 'a>> {
    let mut turn = Box::pin(position.turn());
    assert!(turn.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    turn
}

fn is_empty(queues: &WaitQueues) -> bool {
    let state = queues.lock();
    state.queues.is_empty() && state.callers.is_empty() && queues.waiting.load(Ordering::Relaxed) == 0
}

#[test]
fn an_admitted_caller_lets_the_next_one_ask() {
    many_orders(|| {
        let queues = queues();
        let first = join(&queues, 0, None);
        assert_eq!(block_on(first.turn()), Turn::Ask { early: false });
        thread::scope(|threads| {
            threads.spawn(|| block_on(join(&queues, 1, None).turn()));
            first.admitted(&answer(1, 1));
        });
        assert!(is_empty(&queues));
    });
}

#[test]
fn a_caller_who_leaves_lets_the_next_one_ask() {
    many_orders(|| {
        let queues = queues();
        let [first, leaving, staying] = [0, 1, 2].map(|ticket| join(&queues, ticket, None));
        let turn = asleep(&staying);
        thread::scope(|threads| {
            threads.spawn(|| {
                let _ = pin!(leaving.turn()).poll(&mut Context::from_waker(Waker::noop()));
                drop(leaving);
            });
            drop(first);
            block_on(turn);
        });
        drop(staying);
        assert!(is_empty(&queues));
    });
}

/// The refund comes before the request, during it, or after the answer.
#[test]
fn a_refund_is_not_missed() {
    many_orders(|| {
        let queues = queues();
        let position = join(&queues, 0, Some(&answer(1, 0)));
        thread::scope(|threads| {
            threads.spawn(|| queues.changed(&charge(1).counter));
            assert_eq!(block_on(position.turn()), Turn::Ask { early: true });
        });
        drop(position);

        // While the caller joins as the first to wait.
        let changes = queues.changes(&[charge(1)]);
        thread::scope(|threads| {
            threads.spawn(|| queues.changed(&charge(1).counter));
            let position = queues.join(1, &[charge(1)], Some((&answer(1, 0), changes)), false);
            let position = position.unwrap_or_else(|_| panic!("there is space in the queue"));
            assert_eq!(block_on(position.turn()), Turn::Ask { early: true });
        });

        let position = join(&queues, 2, None);
        assert_eq!(block_on(position.turn()), Turn::Ask { early: false });
        thread::scope(|threads| {
            threads.spawn(|| queues.changed(&charge(1).counter));
            position.refused(&answer(1, 0));
            assert_eq!(block_on(position.turn()), Turn::Ask { early: true });
        });
    });
}

#[test]
fn a_caller_who_came_earlier_and_joins_later_blocks_no_other() {
    many_orders(|| {
        let queues = queues();
        let [first, last] = [1, 2].map(|ticket| join(&queues, ticket, None));
        let turn = asleep(&last);
        thread::scope(|threads| {
            threads.spawn(|| drop(join(&queues, 0, None)));
            drop(first);
            block_on(turn);
        });
        drop(last);
        assert!(is_empty(&queues));
    });
}

#[test]
fn a_waiting_caller_is_seen_while_others_come_and_go() {
    many_orders(|| {
        let queues = queues();
        thread::scope(|threads| {
            threads.spawn(|| drop(queues.join(0, &[charge(2)], None, false)));
            let position = join(&queues, 1, Some(&answer(1, 0)));
            assert!(queues.waited_for(&[charge(1)], 2).is_some());
            assert!(queues.waited_for(&[charge(3)], 0).is_none());
            drop(position);
        });
        assert!(is_empty(&queues));
    });
}

#[test]
fn a_closed_limiter_keeps_no_caller_waiting() {
    many_orders(|| {
        let queues = queues();
        let position = join(&queues, 0, Some(&answer(1, 0)));
        thread::scope(|threads| {
            threads.spawn(|| queues.close());
            assert_eq!(block_on(position.turn()), Turn::Closed);
        });
        assert!(queues.join(1, &[charge(1)], None, false).is_err());
    });
}
