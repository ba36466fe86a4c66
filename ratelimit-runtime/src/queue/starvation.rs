//! Callers of several counters: each is found by the answer that it waits for, and served in the end.

use super::*;
use crate::{
    Decision, Key, ManualClock,
    memory::Memory,
    store::{Charges, Reply, Request, Store as _},
};

const HOUR: Duration = Duration::from_secs(3600);
const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);
const OWN: Rule = Rule::new("own", 3, HOUR);
const ALL: Rule = Rule::new("all", 10, SECOND);

/// A charge of 1 for this key, of which the store said so.
fn said(rule: Rule, key: u64, remaining: u64, retry: Option<Duration>) -> Charge {
    let mut charge = Charge::new(rule, CounterName::new("", &rule, Some(&Key::new(key))), 1);
    charge.decision = Decision::new(rule.limit(), remaining, HOUR, retry);
    charge
}

fn join<'a>(queues: &'a WaitQueues, ticket: u64, charges: &[Charge], answer: Option<&Answer>) -> QueuePosition<'a> {
    let refused = answer.map(|answer| (answer, queues.changes(charges)));
    queues.join(ticket, charges, refused, None).unwrap_or_else(|_| panic!("there is room in the queue"))
}

/// F, X0 and X of one user whose limit is spent for an hour, and of all users; Y of all users alone. F and Y ask, then X0; X is to be
/// found by the answer of Y.
fn x_waits_for_the_answer_of_y<'a>(
    clock: &ManualClock,
    queues: &'a WaitQueues,
) -> (QueuePosition<'a>, QueuePosition<'a>) {
    let both = |own, all| [said(OWN, 1, own, (own == 0).then_some(HOUR)), said(ALL, 1, all, None)];
    let answer = Answer::of(&both(0, 9), clock.now());
    let [f, x0, x] = [(); 3].map(|()| join(queues, queues.ticket(), &both(0, 9), Some(&answer)));
    clock.advance(HOUR.saturating_sub(SECOND));
    assert!(f.look().is_err() && x0.look().is_err() && x.look().is_err());
    clock.advance(SECOND);
    assert!(f.look().is_ok() && x0.look().is_err() && x.look().is_err());
    let y = join(queues, queues.ticket(), &[said(ALL, 1, 0, None)], None);
    assert!(y.look().is_ok());
    let sent_at = clock.now();
    clock.advance(MS);
    f.admitted(&Answer::of(&both(2, 2), sent_at));
    assert!(x0.look().is_ok() && x.look().is_err());
    x0.admitted(&Answer::of(&both(1, 0), clock.now()));
    assert!(x.look().is_err());
    (x, y)
}

/// X waits for a question of `all` that is on its way, and for nothing else.
#[test]
fn the_answer_of_another_finds_a_caller_who_waits_for_it() {
    let clock = ManualClock::new();
    let queues = WaitQueues::new(10_000, clock.clone().into(), false);
    let (x, y) = x_waits_for_the_answer_of_y(&clock, &queues);
    // Y was admitted in the next window of `all`, of which 9 remain.
    y.admitted(&Answer::of(&[said(ALL, 1, 9, None)], clock.now()));
    for after in [Duration::ZERO, SECOND, 59 * SECOND, HOUR, 24 * HOUR] {
        clock.advance(after);
    }
    assert!(x.look().is_ok(), "X waits for ever: both of its counters have room");
}

/// A refund of its own limit finds X while another asks `all`.
#[test]
fn a_refund_finds_a_parked_caller() {
    let clock = ManualClock::new();
    let queues = WaitQueues::new(10_000, clock.clone().into(), false);
    let both = [said(OWN, 1, 0, Some(HOUR)), said(ALL, 1, 1, None)];
    let answer = Answer::of(&both, clock.now());
    let x = join(&queues, queues.ticket(), &both, Some(&answer));
    let y = join(&queues, queues.ticket(), &[said(ALL, 1, 0, None)], None);
    assert!(x.look().is_err() && y.look().is_ok());
    let sent_at = clock.now();
    queues.changed(&both[0].counter);
    assert!(x.look().is_err());
    clock.advance(MS);
    y.admitted(&Answer::of(&[said(ALL, 1, 9, None)], sent_at));
    assert!(x.look().is_ok(), "both counters have room: {:?}", x.look());
}

/// Runs callers against the memory store, which answers a millisecond later: X of two rules and any cost, and those of one rule, who call
/// again as soon as they are served. Returns when X was served.
fn x_beside_others(
    of_x: &[(Rule, u64)],
    others: &[Rule],
    left: u64,
    offset: Duration,
    lasts: Duration,
) -> Option<Duration> {
    let clock = ManualClock::new();
    let server = Memory::new(clock.clone().into(), 10);
    let queues = WaitQueues::new(10_000, clock.clone().into(), false);
    let charge_of = |rule: &Rule, cost| Charge::new(*rule, CounterName::new("", rule, Some(&Key::new(1))), cost);
    let mut charges: Vec<Vec<Charge>> = vec![of_x.iter().map(|(rule, cost)| charge_of(rule, *cost)).collect()];
    for rule in others {
        charges.extend([vec![charge_of(rule, 1)], vec![charge_of(rule, 1)], vec![charge_of(rule, 1)]]);
    }
    // All of the bursts are used, but one.
    for rule in others {
        clock.advance(offset);
        for _ in left..rule.limit() {
            let _ = server.decide(Request::new(charge_of(rule, 1), true).into());
        }
    }
    let start = clock.now();
    let mut positions: Vec<Option<QueuePosition<'_>>> = charges.iter().map(|_| None).collect();
    let mut pending: Vec<Option<(Duration, Answer, bool, u64)>> = charges.iter().map(|_| None).collect();
    let mut tickets = vec![None; charges.len()];
    while clock.now() < start + lasts {
        let now = clock.now();
        let ask = |number: usize| {
            let asked: Charges = {
                let mut all = Charges::default();
                charges[number].iter().for_each(|charge| all.push(charge.clone()));
                all
            };
            let Reply::Ready(batch) = server.decide(Request::new(asked, true).into()) else { panic!("in memory") };
            let request = batch.into_first().unwrap();
            (now + MS, Answer::of(&request.charges, now), request.outcome == Ok(true), queues.changes(&charges[number]))
        };
        for number in 0..charges.len() {
            if tickets[number].is_none() {
                let ticket = queues.ticket();
                tickets[number] = Some(ticket);
                if queues.is_behind_others(&charges[number], ticket) {
                    positions[number] = Some(join(&queues, ticket, &charges[number], None));
                } else {
                    pending[number] = Some(ask(number));
                }
            }
        }
        let mut next = Duration::MAX;
        for number in 0..charges.len() {
            if pending[number].is_none() {
                match positions[number].as_ref().unwrap().look() {
                    Ok(_) => pending[number] = Some(ask(number)),
                    Err(at) => next = next.min(at.unwrap_or(Duration::MAX)),
                }
            }
        }
        next = pending.iter().flatten().map(|(at, ..)| *at).fold(next, Duration::min);
        assert!(next < Duration::MAX, "nobody has a timer");
        clock.advance(next.saturating_sub(now));
        for number in 0..charges.len() {
            let Some((_, said, fits, seen)) = pending[number].take_if(|(at, ..)| *at <= clock.now()) else {
                continue;
            };
            match (fits, positions[number].take()) {
                (true, position) => {
                    if let Some(position) = position {
                        position.admitted(&said);
                    }
                    tickets[number] = None;
                    if number == 0 {
                        return Some(clock.now().saturating_sub(start));
                    }
                }
                (false, Some(position)) => {
                    position.refused(&said);
                    positions[number] = Some(position);
                }
                (false, None) => {
                    positions[number] =
                        queues.join(tickets[number].unwrap(), &charges[number], Some((&said, seen)), None).ok();
                }
            }
        }
    }
    None
}

/// The windows of two rules open in alternate seconds, and others always wait for either of them.
#[test]
fn a_reservation_is_not_taken_by_a_probe() {
    let mut starved = Vec::new();
    for count in [1, 2, 3, 10] {
        let [a, b] = ["a", "b"].map(|name| Rule::new(name, count, 2 * SECOND));
        let at = x_beside_others(&[(a, 1), (b, 1)], &[a, b], 0, SECOND, 400 * SECOND);
        if at.is_none() {
            starved.push(count);
        }
    }
    assert!(starved.is_empty(), "never served in 400 s: counts of {starved:?}");
}

/// A cost that takes a bucket many periods to refill is reserved for as long.
#[test]
fn large_costs_of_two_buckets_are_served() {
    let bucket = Algorithm::TokenBucket { burst: 100, refill: Refill::Greedy };
    let (one, two) = (Rule::new("one", 1, SECOND).algorithm(bucket), Rule::new("two", 1, SECOND).algorithm(bucket));
    let window = Rule::new("window", 1, SECOND);
    let cases = [
        ("50 of one bucket alone", vec![(one, 50)], vec![one]),
        ("50 of one bucket, 1 of a window", vec![(one, 50), (window, 1)], vec![one, window]),
        ("50 of each of two buckets", vec![(one, 50), (two, 50)], vec![one, two]),
        ("50 of one bucket, 2 of the other", vec![(one, 50), (two, 2)], vec![one, two]),
        ("2 of each of two buckets", vec![(one, 2), (two, 2)], vec![one, two]),
    ];
    let mut starved = Vec::new();
    for (what, of_x, others) in cases {
        let at = x_beside_others(&of_x, &others, 1, Duration::ZERO, Duration::from_secs(2_000));
        if at.is_none() {
            starved.push(what);
        }
    }
    assert!(starved.is_empty(), "never served in 2,000 s: {starved:?}");
}
