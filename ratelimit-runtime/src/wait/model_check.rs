//! The lines under every order in which the steps of a few callers can follow one another.

use std::{
    future::Future,
    pin::{Pin, pin},
    task::{Context, Waker},
};

use shuttle::{future::block_on, thread};

use super::*;
use crate::{Key, Rule, sync::every_order};

const RULE: Rule = Rule::new("item", 1, Duration::from_secs(60));

fn counter() -> CounterName {
    CounterName::new("", &RULE, None)
}

fn join(lines: &Lines, ticket: u64) -> Place<'_> {
    lines.join(counter(), ticket, None, None).unwrap_or_else(|_| panic!("there is room in the line"))
}

/// A caller who has looked once and sleeps.
fn asleep<'a>(place: &'a Place<'_>) -> Pin<Box<dyn Future<Output = ()> + 'a>> {
    let mut turn = Box::pin(place.first());
    assert!(turn.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    turn
}

fn nobody_waits(lines: &Lines) -> bool {
    lines.lock().is_empty() && lines.count.load(Ordering::Relaxed) == 0
}

#[test]
fn who_is_next_gets_the_turn() {
    every_order(|| {
        let lines = Lines::new(100);
        let first = join(&lines, 0);
        thread::scope(|threads| {
            threads.spawn(|| block_on(join(&lines, 1).first()));
            drop(first);
        });
        assert!(nobody_waits(&lines));
    });
}

#[test]
fn who_leaves_passes_the_turn_on() {
    every_order(|| {
        let lines = Lines::new(100);
        let [first, leaving, staying] = [0, 1, 2].map(|ticket| join(&lines, ticket));
        let turn = asleep(&staying);
        thread::scope(|threads| {
            threads.spawn(|| {
                let _ = pin!(leaving.first()).poll(&mut Context::from_waker(Waker::noop()));
                drop(leaving);
            });
            drop(first);
            block_on(turn);
        });
        assert!(staying.is_first());
        drop(staying);
        assert!(nobody_waits(&lines));
    });
}

#[test]
fn who_came_earlier_and_joins_later_holds_nobody_up() {
    every_order(|| {
        let lines = Lines::new(100);
        let [first, last] = [1, 2].map(|ticket| join(&lines, ticket));
        let turn = asleep(&last);
        thread::scope(|threads| {
            threads.spawn(|| drop(join(&lines, 0)));
            drop(first);
            block_on(turn);
        });
        drop(last);
        assert!(nobody_waits(&lines));
    });
}

#[test]
fn who_waits_is_seen_while_others_come_and_go() {
    every_order(|| {
        let lines = Lines::new(100);
        let elsewhere = CounterName::new("", &RULE, Some(&Key::new("elsewhere")));
        thread::scope(|threads| {
            threads.spawn(|| drop(lines.join(elsewhere, 0, None, None)));
            let place = join(&lines, 1);
            assert_eq!(lines.ahead(&[Charge::new(RULE, counter(), 1)], 2), Some(counter()));
            drop(place);
        });
        assert!(nobody_waits(&lines));
    });
}
