//! Callers behind one who waits for the store.

use super::{
    callers::{World, charge_of},
    *,
};
use crate::{
    Rule,
    store::{Charges, Reply, Request, Store as _},
};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

fn ask(world: &World, charges: &[Charge]) -> StoreAnswer {
    let mut asked = Charges::default();
    for charge in charges {
        asked.push(charge.clone());
    }
    let Reply::Ready(batch) = world.server.decide(Request::new(asked, true).into()) else {
        panic!("the memory store answers at once")
    };
    StoreAnswer::of(&batch.into_first().expect("the batch has the request").charges, world.clock.now())
}

/// Joins with a longest wait of a minute for the store.
fn join<'a>(world: &'a World, charges: &[Charge]) -> QueuePosition<'a> {
    let mut position = world.queues.join(world.queues.ticket(), charges, None, false).expect("there is space");
    position.longest_outage = Some(MINUTE);
    position
}

fn is_asking(position: &QueuePosition<'_>) -> bool {
    matches!(position.look(), Ok(Turn::Ask { .. }))
}

/// The first caller is admitted and leaves room for two others, who ask now. Another process takes the
/// rest but one.
fn two_ask<'a>(world: &'a World, charges: [&[Charge]; 2], last: &[Charge]) -> [QueuePosition<'a>; 3] {
    let first = join(world, last);
    let others = [charges[0], charges[1], last].map(|charges| join(world, charges));
    first.admitted(&ask(world, last));
    assert_eq!([0, 1, 2].map(|at: usize| is_asking(&others[at])), [true, true, false]);
    ask(world, last);
    others
}

#[test]
fn those_behind_wait_for_the_store_no_longer_once_nobody_asks() {
    let (world, rule) = (World::new(), Rule::new("item", 3, HOUR));
    let charges = [charge_of(&rule, 1, 1)];
    let [away, refused, behind] = two_ask(&world, [&charges, &charges], &charges);
    ask(&world, &charges);
    away.store_is_away(&StoreError::no_answer());
    refused.refused(&ask(&world, &charges));
    for waits in [&refused, &behind] {
        assert_eq!(waits.look(), Err(Some(world.clock.now() + MINUTE)));
    }
    drop(away);
    world.clock.advance(MINUTE);
    for waits in [&refused, &behind] {
        assert!(waits.look().is_err(), "the store may be back, and no caller has asked it");
        assert_eq!(waits.take_outage(), (MINUTE, None));
    }
}

/// Its other counter may be on another server.
#[test]
fn an_answer_to_another_caller_does_not_end_an_outage() {
    let (world, rule, other) = (World::new(), Rule::new("item", 3, HOUR), Rule::new("other", 9, HOUR));
    let charges = [charge_of(&rule, 1, 1)];
    let both = [charge_of(&rule, 1, 1), charge_of(&other, 1, 1)];
    let [away, admitted, behind] = two_ask(&world, [&both, &charges], &charges);
    away.store_is_away(&StoreError::no_answer());
    admitted.admitted(&ask(&world, &charges));
    world.clock.advance(MINUTE / 2);
    assert_eq!(behind.look(), Err(Some(world.clock.now() + MINUTE)));
    world.clock.advance(MINUTE);
    assert_eq!(behind.look(), Ok(Turn::StoreAway));
    assert!(behind.store_error().is_some());
    away.refused(&ask(&world, &both));
    assert!(behind.look().is_err());
    assert!(behind.store_error().is_none());
}

/// Its own policy says what happens when the store is away.
#[test]
fn a_caller_who_does_not_wait_for_the_store_gives_up_in_time() {
    let (world, rule) = (World::new(), Rule::new("item", 1, HOUR));
    let [first, second] = [HOUR, MINUTE].map(|longest_wait| Charge { longest_wait, ..charge_of(&rule, 1, 1) });
    let away = join(&world, &[first]);
    let mut behind = join(&world, &[second]);
    behind.longest_outage = None;
    away.store_is_away(&StoreError::no_answer());
    world.clock.advance(MINUTE);
    assert_eq!(behind.look(), Ok(Turn::TooLate));
    assert_eq!(behind.take_outage(), (Duration::ZERO, None));
}

/// Their queue is gone when the second one leaves it.
#[test]
fn the_last_callers_to_be_admitted_leave_no_queue_busy() {
    let (world, rule) = (World::new(), Rule::new("item", 9, HOUR));
    let charges = [charge_of(&rule, 1, 1)];
    let first = join(&world, &charges);
    let others = [(); 2].map(|()| join(&world, &charges));
    first.admitted(&ask(&world, &charges));
    assert!(others.iter().all(is_asking));
    // As `admitted` does, each in its thread.
    world.queues.update(|state, _, _| others.iter().for_each(|caller| state.stop_asking(caller.ticket)));
    drop(others);
    assert_eq!(world.queues.waited_for(&charges, world.queues.ticket()), None);
    assert!(world.queues.shared.all_busy().all(|count| count.load(Ordering::Relaxed) == 0));
}

/// A refund at the store, for example, of a call that another slot has refused.
#[test]
fn a_local_denial_is_not_asked_for_again_at_once_after_a_change() {
    let (world, rule) = (World::new().shared(), Rule::new("item", 1, HOUR));
    let charges = [charge_of(&rule, 1, 1)];
    ask(&world, &charges);
    for is_local in [true, false] {
        let waits = join(&world, &charges);
        assert!(is_asking(&waits));
        world.queues.changed(&charges[0].counter);
        let mut denied = ask(&world, &charges);
        denied.counters[0].is_local = is_local;
        waits.refused(&denied);
        assert_eq!(is_asking(&waits), !is_local);
        world.clock.advance(Duration::from_secs(1));
        assert!(is_asking(&waits));
    }
}
