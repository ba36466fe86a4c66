//! Callers of several counters. The answer that each waits for reaches it, and all are served in
//! the end.

use super::wait_queue::MOST_RESERVATIONS;
use super::{
    callers::{SimulatedCaller, World, charge_of},
    *,
};
use crate::{Algorithm, Refill, Rule};
use crate::{
    Decision, ManualClock,
    store::{Request, Store as _},
};

const HOUR: Duration = Duration::from_secs(3600);
const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);
const OWN: Rule = Rule::new("own", 3, HOUR);
const ALL: Rule = Rule::new("all", 10, SECOND);

/// A charge of 1 for this key, with this decision of the store.
fn decided(rule: Rule, key: u64, remaining: u64, retry: Option<Duration>) -> Charge {
    let mut charge = charge_of(&rule, key, 1);
    charge.decision = Decision::new(rule.limit(), remaining, HOUR, retry);
    charge
}

fn join<'a>(
    queues: &'a WaitQueues,
    ticket: u64,
    charges: &[Charge],
    answer: Option<&StoreAnswer>,
) -> QueuePosition<'a> {
    let refused = answer.map(|answer| (answer, queues.changes(charges)));
    queues.join(ticket, charges, refused, false).unwrap_or_else(|_| panic!("there is space in the queue"))
}

/// F, X0 and X charge `own`, which is used up for an hour, and `all`. Y charges `all` alone. F and
/// Y ask, then X0. The answer to Y has to find X.
fn x_waits_for_the_answer_of_y<'a>(
    clock: &ManualClock,
    queues: &'a WaitQueues,
) -> (QueuePosition<'a>, QueuePosition<'a>) {
    let both = |own, all| [decided(OWN, 1, own, (own == 0).then_some(HOUR)), decided(ALL, 1, all, None)];
    let answer = StoreAnswer::of(&both(0, 9), clock.now());
    let [f, x0, x] = [(); 3].map(|()| join(queues, queues.ticket(), &both(0, 9), Some(&answer)));
    clock.advance(HOUR.saturating_sub(SECOND));
    assert!(f.look().is_err() && x0.look().is_err() && x.look().is_err());
    clock.advance(SECOND);
    assert!(f.look().is_ok() && x0.look().is_err() && x.look().is_err());
    let y = join(queues, queues.ticket(), &[decided(ALL, 1, 0, None)], None);
    assert!(y.look().is_ok());
    let sent_at = clock.now();
    clock.advance(MS);
    f.admitted(&StoreAnswer::of(&both(2, 2), sent_at));
    assert!(x0.look().is_ok() && x.look().is_err());
    x0.admitted(&StoreAnswer::of(&both(1, 0), clock.now()));
    assert!(x.look().is_err());
    (x, y)
}

/// X waits for a request of `all` in flight, and for nothing else.
#[test]
fn the_answer_of_another_finds_a_caller_who_waits_for_it() {
    let clock = ManualClock::new();
    let queues = WaitQueues::new(10_000, clock.clone().into(), false);
    let (x, y) = x_waits_for_the_answer_of_y(&clock, &queues);
    // Y was admitted in the next window of `all`, where 9 remain.
    y.admitted(&StoreAnswer::of(&[decided(ALL, 1, 9, None)], clock.now()));
    for after in [Duration::ZERO, SECOND, 59 * SECOND, HOUR, 24 * HOUR] {
        clock.advance(after);
    }
    assert!(x.look().is_ok(), "X waits for ever: both of its counters have room");
}

/// A refund of its own limit finds X while another caller asks `all`.
#[test]
fn a_refund_finds_a_parked_caller() {
    let clock = ManualClock::new();
    let queues = WaitQueues::new(10_000, clock.clone().into(), false);
    let both = [decided(OWN, 1, 0, Some(HOUR)), decided(ALL, 1, 1, None)];
    let answer = StoreAnswer::of(&both, clock.now());
    let x = join(&queues, queues.ticket(), &both, Some(&answer));
    let y = join(&queues, queues.ticket(), &[decided(ALL, 1, 0, None)], None);
    assert!(x.look().is_err() && y.look().is_ok());
    let sent_at = clock.now();
    queues.changed(&both[0].counter);
    assert!(x.look().is_err());
    clock.advance(MS);
    y.admitted(&StoreAnswer::of(&[decided(ALL, 1, 9, None)], sent_at));
    assert!(x.look().is_ok(), "both counters have room: {:?}", x.look());
}

/// Runs callers against the memory store, which answers a millisecond later. There are `xs` callers
/// X, each with the charges `of_x`. Three more callers for each of the rules `others` call again as
/// soon as they are served. Returns the time when all X were served.
fn x_beside_others(
    xs: usize,
    of_x: &[(Rule, u64)],
    others: &[Rule],
    left: u64,
    offset: Duration,
    lasts: Duration,
) -> Option<Duration> {
    let world = World::new();
    let mut charges = vec![of_x.iter().map(|(rule, cost)| charge_of(rule, 1, *cost)).collect::<Vec<_>>(); xs];
    charges.extend(others.iter().flat_map(|rule| [(); 3].map(|()| vec![charge_of(rule, 1, 1)])));
    // Uses each of the other rules' limits, except for `left`.
    for rule in others {
        world.clock.advance(offset);
        for _ in left..rule.limit() {
            let _ = world.server.decide(Request::new(charge_of(rule, 1, 1), true).into());
        }
    }
    let start = world.clock.now();
    let mut callers: Vec<_> = charges.iter().map(|charges| SimulatedCaller::arrives(&world, charges, MS)).collect();
    let mut served = 0;
    while world.clock.now() < start + lasts {
        let next = callers.iter_mut().filter_map(|caller| caller.look(MS)).min().expect("a caller has a timer");
        world.clock.advance(next.saturating_sub(world.clock.now()));
        for (number, caller) in callers.iter_mut().enumerate() {
            if caller.is_served() {
                served += usize::from(number < xs);
                if served == xs {
                    return Some(world.clock.now().saturating_sub(start));
                }
                // An X that was served goes on as one of the others.
                let again = if number < xs { xs } else { number };
                *caller = SimulatedCaller::arrives(&world, &charges[again], MS);
            }
        }
    }
    None
}

/// Two answers arrive out of order. The answer to the earlier request comes last, and was also
/// decided last. It has one less remaining than the other.
#[test]
fn answers_out_of_order_make_no_room() {
    let clock = ManualClock::new();
    let queues = WaitQueues::new(10_000, clock.clone().into(), false);
    let charges = |remaining, retry| [decided(ALL, 1, remaining, retry)];
    let refused = StoreAnswer::of(&charges(0, Some(SECOND)), clock.now());
    let callers = [(); 5].map(|()| join(&queues, queues.ticket(), &charges(0, None), Some(&refused)));
    clock.advance(SECOND);
    let [first, second, third, rest @ ..] = callers;
    assert!(first.look().is_ok());
    let sent_at = clock.now();
    first.admitted(&StoreAnswer::of(&charges(2, None), sent_at));
    assert!(second.look().is_ok() && third.look().is_ok() && rest[0].look().is_err());
    third.admitted(&StoreAnswer::of(&charges(2, None), sent_at + MS));
    second.admitted(&StoreAnswer::of(&charges(1, None), sent_at));
    let asking = rest.iter().filter(|caller| caller.look().is_ok()).count();
    assert_eq!(asking, 1);
}

/// The windows of two rules open in alternate seconds, and each rule has other waiting callers.
#[test]
fn a_reservation_is_not_taken_by_a_probe() {
    let mut starved = Vec::new();
    for count in [1, 2, 3, 10] {
        let [a, b] = ["a", "b"].map(|name| Rule::new(name, count, 2 * SECOND));
        let at = x_beside_others(1, &[(a, 1), (b, 1)], &[a, b], 0, SECOND, 400 * SECOND);
        if at.is_none() {
            starved.push(count);
        }
    }
    assert!(starved.is_empty(), "never served in 400 s: counts of {starved:?}");
}

/// If a bucket needs many periods to refill a cost, the reservation lasts as long.
#[test]
fn large_costs_of_two_buckets_are_served() {
    let bucket = Algorithm::TokenBucket { burst: 100, refill: Refill::Greedy };
    let (one, two) =
        (Rule::new("one", 1, SECOND).with_algorithm(bucket), Rule::new("two", 1, SECOND).with_algorithm(bucket));
    let window = Rule::new("window", 1, SECOND);
    let cases = [
        ("50 of one bucket alone", vec![(one, 50)], vec![one]),
        ("50 of one bucket, 1 of a window", vec![(one, 50), (window, 1)], vec![one, window]),
        ("50 of each of two buckets", vec![(one, 50), (two, 50)], vec![one, two]),
        ("50 of one bucket, 2 of the other", vec![(one, 50), (two, 2)], vec![one, two]),
        ("2 of each of two buckets", vec![(one, 2), (two, 2)], vec![one, two]),
    ];
    let mut starved = Vec::new();
    for (case, of_x, others) in cases {
        let at = x_beside_others(1, &of_x, &others, 1, Duration::ZERO, Duration::from_secs(2_000));
        if at.is_none() {
            starved.push(case);
        }
    }
    assert!(starved.is_empty(), "never served in 2,000 s: {starved:?}");
}

/// More callers than can have a reservation at a time.
#[test]
fn many_callers_of_two_rules_are_all_served() {
    let [a, b] = ["a", "b"].map(|name| Rule::new(name, 1, 2 * SECOND));
    let at = x_beside_others(3 * MOST_RESERVATIONS, &[(a, 1), (b, 1)], &[a, b], 0, SECOND, 200 * SECOND);
    assert!(at.is_some(), "not all were served in 200 s");
}

/// In every second period, others get what would be reserved for it.
#[test]
fn a_reservation_is_followed_by_a_period_without_one() {
    let mut state = WaitState::new(Arc::new(SharedCounts::new()));
    let id = QueueId::of(&charge_of(&ALL, 1, 1));
    let counter = WaitingFor {
        id,
        cost: 1,
        most: 1,
        gives_up_at: None,
        changes: 0,
        joined_before: 0,
        reserved_until: None,
        is_parked: false,
    };
    let turn = Arc::new(Notify::new());
    let caller = WaitingCaller {
        counters: [counter].into_iter().collect(),
        turn,
        is_asking: false,
        is_away: false,
        wake_at: None,
        outage: Outage::default(),
    };
    state.callers.insert(1, caller);
    let mut reserved = |ms: u32| {
        let until = state.reserved_until(1, id, ms * MS, SECOND);
        if let Some(until) = until {
            state.note_reservation(1, id, until);
        }
        until
    };
    assert_eq!([reserved(0), reserved(999)], [Some(SECOND); 2]);
    assert_eq!([reserved(1_000), reserved(1_999)], [None; 2]);
    assert_eq!([reserved(2_000), reserved(2_999)], [Some(3 * SECOND); 2]);
}

/// G reserves the only room of `one`, so X may not ask. Alone in the queue of `quick`, X looks again when the
/// reservation ends. With another caller behind it there, X looks again after a period of `quick`.
#[test]
fn a_caller_whose_other_counter_is_reserved_is_passed_over_and_looks_again() {
    const ONE: Rule = Rule::new("one", 1, SECOND);
    const QUICK: Rule = Rule::new("quick", 1, Duration::from_millis(100));
    let clock = ManualClock::new();
    let queues = WaitQueues::new(10_000, clock.clone().into(), false);
    let of_g = [decided(ONE, 1, 0, Some(MS)), decided(OWN, 1, 0, Some(500 * MS))];
    let g = join(&queues, queues.ticket(), &of_g, Some(&StoreAnswer::of(&of_g, clock.now())));
    clock.advance(MS);
    assert!(g.look().is_err());
    let of_x = [decided(QUICK, 1, 1, None), decided(ONE, 1, 1, None)];
    let x = join(&queues, queues.ticket(), &of_x, None);
    assert_eq!(x.look(), Err(Some(clock.now() + ONE.period())));
    let _another = join(&queues, queues.ticket(), &of_x, None);
    assert_eq!(x.look(), Err(Some(clock.now() + QUICK.period())));
}
