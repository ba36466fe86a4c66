//! Callers who wait for a server some milliseconds away. The clock is moved by hand.

use std::{cmp::Reverse, collections::BinaryHeap, slice};

use super::wait_queue::MOST_RESERVATIONS;
use super::{callers::charge_of, *};
use crate::{Algorithm, Refill, Rule};
use crate::{
    Decision, Key, ManualClock,
    memory::Memory,
    store::{Hold, Reply, Request, Store as _},
};

const TASKS: usize = 100;
const DURATION: Duration = Duration::from_secs(2);

/// The counts of a simulation: admitted calls, and refused requests after the first round trips.
struct Run {
    admitted: u64,
    refused: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrives,
    IsAnswered,
}

/// A caller who calls again as soon as it is admitted.
#[derive(Default)]
struct Task<'a> {
    ticket: u64,
    position: Option<QueuePosition<'a>>,
    sent_at: Duration,
    answer: Option<(StoreAnswer, bool)>,
    changes: u64,
}

/// A network link to the server. A request takes half a round trip, or up to `jitter` times as
/// long. Requests arrive in order.
struct SimulatedLink {
    half: Duration,
    jitter: u32,
    seed: u64,
    latest: Duration,
}

impl SimulatedLink {
    fn arrival(&mut self, now: Duration) -> Duration {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let part = u32::try_from(self.seed >> 33).unwrap_or_default() % 64;
        self.latest = self.latest.max(now + self.half + self.half * part * (self.jitter - 1) / 64);
        self.latest
    }
}

/// Runs callers against a server that is at least half a round trip away.
fn run(rule: Rule, round_trip: Duration, jitter: u32) -> Run {
    let clock = ManualClock::new();
    let (start, half) = (clock.now(), round_trip / 2);
    let mut link = SimulatedLink { half, jitter, seed: 1, latest: start };
    let server = Memory::new(clock.clone().into(), 10, 0);
    let queues = WaitQueues::new(1_000, clock.clone().into(), true);
    let charge = || Charge::new(rule, CounterName::new("", &rule, &Key::new(1)), 1);
    let mut tasks: Vec<Task<'_>> = (0..TASKS).map(|_| Task::default()).collect();
    let mut events = BinaryHeap::new();
    let mut run = Run { admitted: 0, refused: 0 };
    let mut calls: Vec<usize> = (0..TASKS).collect();
    loop {
        let now = clock.now();
        for number in std::mem::take(&mut calls) {
            let task = &mut tasks[number];
            task.ticket = queues.ticket();
            task.changes = queues.changes(&[charge()]);
            if queues.waited_for(&[charge()], task.ticket).is_some() {
                task.position = queues.join(task.ticket, &[charge()], None, false).ok();
            } else {
                task.sent_at = now;
                events.push(Reverse((link.arrival(now), Event::Arrives, number)));
            }
        }
        let mut next = events.peek().map(|Reverse((at, ..))| *at);
        for (number, task) in tasks.iter_mut().enumerate() {
            let Some(position) = task.position.as_ref().filter(|_| task.sent_at == Duration::ZERO) else { continue };
            match position.look() {
                Ok(_) => {
                    task.sent_at = now;
                    let arrival = link.arrival(now);
                    events.push(Reverse((arrival, Event::Arrives, number)));
                    next = Some(next.map_or(arrival, |other| other.min(arrival)));
                }
                Err(wake_at) => next = next.into_iter().chain(wake_at).min(),
            }
        }
        let next = next.expect("a caller asks, or has a timer");
        if next >= start + DURATION {
            return run;
        }
        clock.advance(next.saturating_sub(now));
        while let Some(Reverse((at, event, number))) = events.peek().copied().filter(|Reverse((at, ..))| *at <= next) {
            events.pop();
            let task = &mut tasks[number];
            if event == Event::Arrives {
                let Reply::Ready(batch) = server.decide(Request::new(charge(), true).into()) else { continue };
                let request = batch.into_first().expect("the batch has the request");
                let fits = request.outcome == Ok(true);
                task.answer = Some((StoreAnswer::of(&request.charges, task.sent_at), fits));
                events.push(Reverse((at + half, Event::IsAnswered, number)));
                continue;
            }
            let Some((answer, fits)) = task.answer.take() else { continue };
            task.sent_at = Duration::ZERO;
            if fits {
                run.admitted += 1;
                if let Some(position) = task.position.take() {
                    position.admitted(&answer);
                }
                calls.push(number);
                continue;
            }
            run.refused += u64::from(at > start + 2 * round_trip);
            if let Some(position) = &task.position {
                position.refused(&answer);
            } else {
                let charge = [charge()];
                task.position = queues.join(task.ticket, &charge, Some((&answer, task.changes)), false).ok();
            }
        }
    }
}

/// Checks that at least 90 % of the calls within the limit are admitted, and none above it. At most
/// one request per round trip is refused.
fn check(rule: Rule, most: u64) {
    for (micros, jitter) in [30, 3_200, 7_500].into_iter().flat_map(|micros| [(micros, 1), (micros, 3)]) {
        let round_trip = Duration::from_micros(micros);
        let Run { admitted, refused } = run(rule, round_trip, jitter);
        let summary = format!(
            "{admitted} of {most} admitted, {refused} refused, {micros} us, jitter {jitter}, {:?}",
            rule.algorithm()
        );
        println!("{summary}");
        assert!(admitted <= most && admitted * 10 >= most * 9, "{summary}");
        let round_trips = DURATION.as_micros() / round_trip.as_micros();
        assert!(u128::from(refused) <= round_trips, "{summary}");
    }
}

#[test]
fn waiting_callers_use_all_of_a_window_that_is_some_round_trips_long() {
    check(Rule::new("window", 100, Duration::from_millis(100)), 2_000);
}

#[test]
fn waiting_callers_use_all_of_a_bucket_that_refills_within_a_round_trip() {
    let bucket = Algorithm::TokenBucket { burst: 10, refill: Refill::Greedy };
    check(Rule::new("bucket", 1_000, Duration::from_secs(1)).with_algorithm(bucket), 2_010);
}

#[test]
fn waiting_callers_use_all_of_a_log() {
    check(Rule::new("log", 100, Duration::from_millis(200)).with_algorithm(Algorithm::SlidingLog), 1_000);
}

#[test]
fn waiting_callers_use_all_of_a_bucket_that_refills_at_once() {
    let bucket = Algorithm::TokenBucket { burst: 100, refill: Refill::Interval };
    check(Rule::new("interval", 100, Duration::from_millis(100)).with_algorithm(bucket), 2_100);
}

#[test]
fn the_largest_costs_of_many_callers_add_up() {
    let clock = ManualClock::new();
    let queues = WaitQueues::new(10_000, clock.into(), false);
    let rule = Rule::new("large", 1 << 52, Duration::from_secs(1)).with_algorithm(Algorithm::Concurrent);
    let charges = [Charge::new(rule, CounterName::new("", &rule, &Key::NONE), 1 << 52)];
    let join = |_| queues.join(queues.ticket(), &charges, None, false).ok();
    let positions: Vec<_> = (0..5_000).filter_map(join).collect();
    assert_eq!(positions.len(), 5_000);
    drop(positions);
    assert_eq!(queues.waiting.load(Ordering::Relaxed), 0);
}

const HOUR: Duration = Duration::from_secs(3600);
const SECOND: Duration = Duration::from_secs(1);

/// A limit of one user, which is used up for an hour, and a limit of all users, which has this
/// amount remaining.
fn of_user_and_all(remaining: u64) -> [Charge; 2] {
    let (own, all) = (Rule::new("own", 1, HOUR), Rule::new("all", 10, SECOND));
    let [mut one, mut other] = [own, all].map(|rule| Charge::new(rule, CounterName::new("", &rule, &Key::new(1)), 1));
    one.decision = Decision::new(1, 0, HOUR, Some(HOUR));
    other.decision = Decision::new(10, remaining, SECOND, (remaining == 0).then_some(SECOND));
    [one, other]
}

/// 1,000 callers wait for a limit of their own that is used up. They do not block others, and the
/// queue skips them until their own limit has room. Then the first one returns.
#[test]
fn callers_whose_own_limit_is_spent_are_parked() {
    let clock = ManualClock::new();
    let queues = WaitQueues::new(10_000, clock.clone().into(), false);
    let charges = of_user_and_all(9);
    let of_all = QueueId::of(&charges[1]);
    let standing = || queues.lock().queues.get(&of_all).map_or(0, |queue| queue.waiting.len());
    let answer = StoreAnswer::of(&charges, clock.now());
    let join = |_| {
        let ticket = queues.ticket();
        let position = queues.join(ticket, &charges, Some((&answer, queues.changes(&charges))), false);
        assert_eq!((standing(), queues.waited_for(&charges[1..], queues.ticket())), (0, None));
        position.unwrap_or_else(|_| panic!("there is space in the queue"))
    };
    let positions: Vec<_> = (0..1_000).map(join).collect();
    assert_eq!(queues.lock().queues[&of_all].parked, 1_000);

    clock.advance(HOUR.saturating_sub(SECOND));
    assert!(positions.iter().all(|position| position.look().is_err()));
    assert_eq!(standing(), 0, "no call was refused, so no cost is reserved");
    clock.advance(SECOND);
    let asking = positions.iter().filter(|position| position.look().is_ok()).count();
    assert_eq!((asking, standing()), (1, 0), "the next caller waits for the answer to the first one");
    drop(positions);
    let busy = queues.shared.all_busy().map(|count| count.load(Ordering::Relaxed)).sum::<usize>();
    assert_eq!((busy, queues.lock().queues.len()), (0, 0));
}

/// 1,000 users wait a second each for a limit of their own. The limit of all users is per hour, and
/// has room. While it refuses no call, none of them stands in its queue. After a refusal it
/// reserves the cost of a few of them. Each asks when its own second is over.
#[test]
fn few_of_those_who_wait_for_another_counter_are_looked_at() {
    let clock = ManualClock::new();
    let queues = WaitQueues::new(10_000, clock.clone().into(), false);
    let (own, all) = (Rule::new("own", 1, SECOND), Rule::new("all", 100_000, HOUR));
    let of_all = |remaining, retry| {
        let mut charge = charge_of(&all, 0, 1);
        charge.decision = Decision::new(100_000, remaining, HOUR, retry);
        charge
    };
    let join = |charges: &[Charge]| {
        let answer = StoreAnswer::of(charges, clock.now());
        queues.join(queues.ticket(), charges, Some((&answer, queues.changes(charges))), false).ok()
    };
    let user_joins = |user| {
        let mut of_own = charge_of(&own, user, 1);
        of_own.decision = Decision::new(1, 0, SECOND, Some(SECOND));
        join(&[of_own, of_all(50_000, None)])
    };
    let standing = || queues.lock().queues[&QueueId::of(&of_all(0, None))].waiting.len();
    let mut positions: Vec<_> = (0..500).filter_map(user_joins).collect();
    assert_eq!((standing(), queues.waited_for(&[of_all(0, None)], queues.ticket())), (0, None));

    let refused = join(&[of_all(0, Some(Duration::from_millis(1)))]).expect("there is space in the queue");
    clock.advance(Duration::from_millis(1));
    assert!(refused.look().is_ok());
    refused.admitted(&StoreAnswer::of(&[of_all(50_000, None)], clock.now()));
    positions.extend((500..1_000).filter_map(user_joins));
    assert_eq!((positions.len(), standing()), (1_000, MOST_RESERVATIONS));

    assert!(positions.iter().all(|position| position.look().is_err()));
    clock.advance(SECOND);
    assert!(positions.iter().all(|position| position.look().is_ok()));
}

/// Without room at any counter, only the first caller of a queue has a timer.
#[test]
fn callers_behind_others_have_no_timer() {
    let clock = ManualClock::new();
    let queues = WaitQueues::new(10_000, clock.clone().into(), false);
    let charges = of_user_and_all(0);
    let answer = StoreAnswer::of(&charges, clock.now());
    let join = |_| queues.join(queues.ticket(), &charges, Some((&answer, queues.changes(&charges))), false).ok();
    let positions: Vec<_> = (0..1_000).filter_map(join).collect();
    for _ in 0..10 {
        let timers = queues.lock().callers.values().filter(|caller| caller.wake_at.is_some()).count();
        assert!(timers <= 2, "{timers} of {} have a timer", positions.len());
        clock.advance(SECOND / 4);
        assert!(positions.iter().all(|position| position.look().is_err()));
    }
}

/// The counter changes before anyone waits for it.
#[test]
fn a_change_during_the_first_request_of_a_caller_is_not_missed() {
    let clock = ManualClock::new();
    let queues = WaitQueues::new(10_000, clock.clone().into(), false);
    let charges = of_user_and_all(0);
    let before = queues.changes(&charges);
    let answer = StoreAnswer::of(&charges, clock.now());
    for charge in &charges {
        queues.changed(&charge.counter);
    }
    let position =
        queues.join(queues.ticket(), &charges, Some((&answer, before)), false).expect("there is space in the queue");
    assert_eq!(position.look(), Ok(Turn::Ask { early: true }));
}

/// As after a change of the rules: the answer to the request on its way is by the old ones.
#[test]
fn a_probe_during_the_request_of_another_caller_is_not_missed() {
    let clock = ManualClock::new();
    let queues = WaitQueues::new(10_000, clock.clone().into(), true);
    let charges = of_user_and_all(0);
    let answer = StoreAnswer::of(&charges, clock.now());
    let [asks, waits] = [Some((&answer, queues.changes(&charges))), None]
        .map(|answer| queues.join(queues.ticket(), &charges, answer, false).expect("there is space in the queue"));
    clock.advance(HOUR);
    assert_eq!(asks.look(), Ok(Turn::Ask { early: false }));
    waits.probe();
    asks.refused(&StoreAnswer::of(&charges, clock.now()));
    drop(asks);
    assert_eq!(waits.look(), Ok(Turn::Ask { early: true }));
}

#[test]
fn each_waiting_caller_knows_the_refusal_and_the_time_of_its_own_turn() {
    let clock = ManualClock::new();
    let queues = WaitQueues::new(10_000, clock.clone().into(), false);
    let [charge, _] = of_user_and_all(0);
    let refusal =
        RequestPerMinute::exceeded(&charge.rule, 1, charge.decision.remaining, charge.decision.retry_after_ms);
    let charges = [charge];
    let mut answer = StoreAnswer::of(&charges, clock.now());
    answer.refusal = Some((QueueId::of(&charges[0]), refusal.clone()));
    let [first, second] = [Some((&answer, queues.changes(&charges))), None]
        .map(|answer| queues.join(queues.ticket(), &charges, answer, false).expect("there is space in the queue"));
    assert_eq!(first.refusal(), Some((refusal.clone(), clock.now() + HOUR)));
    assert_eq!(second.refusal(), Some((refusal, clock.now() + 2 * HOUR)));
}

/// The refusal of a cost says nothing of a smaller one. But in a fixed window, it waits as long.
#[test]
fn a_caller_who_leaves_lets_the_next_one_ask_if_that_one_needs_less() {
    let clock = ManualClock::new();
    let (window, ready_at) = (Rule::new("item", 10, SECOND), clock.now() + SECOND);
    let log = window.with_algorithm(Algorithm::SlidingLog);
    for (rule, cost, turn) in
        [(log, 3, Err(Some(ready_at))), (log, 2, Ok(Turn::Ask { early: true })), (window, 2, Err(Some(ready_at)))]
    {
        let queues = WaitQueues::new(10_000, clock.clone().into(), false);
        let mut refused = charge_of(&rule, 1, 3);
        refused.decision = Decision::new(10, 0, SECOND, Some(SECOND));
        let (refused, next) = ([refused], [charge_of(&rule, 1, cost)]);
        let answer = (&StoreAnswer::of(&refused, clock.now()), queues.changes(&refused));
        let first = queues.join(queues.ticket(), &refused, Some(answer), false).expect("there is space in the queue");
        let second = queues.join(queues.ticket(), &next, None, false).expect("there is space in the queue");
        drop(first);
        assert_eq!(second.look(), turn);
    }
}

/// It has waited for one counter as long as it may, but another caller is asking for it.
#[test]
fn a_caller_of_two_counters_waits_for_the_answer_of_the_caller_ahead() {
    let clock = ManualClock::new();
    let queues = WaitQueues::new(10_000, clock.clone().into(), false);
    let [user, all] = of_user_and_all(0);
    let ahead = queues.join(queues.ticket(), slice::from_ref(&all), None, false).expect("there is space in the queue");
    assert_eq!(ahead.look(), Ok(Turn::Ask { early: false }));
    let charges = [Charge { longest_wait: HOUR, ..all }, Charge { longest_wait: 9 * HOUR, ..user }];
    let behind = queues.join(queues.ticket(), &charges, None, false).expect("there is space in the queue");
    clock.advance(HOUR);
    assert_eq!(behind.look(), Err(Some(clock.now() + LOOK_AGAIN)));
}

/// Each takes up to 5,000 ms, or all that is left: the next one takes the 4,000.
#[test]
fn a_caller_who_may_take_all_that_is_left_asks_alone() {
    let clock = ManualClock::new();
    let queues = WaitQueues::new(10_000, clock.clone().into(), false);
    let rule = Rule::new("time", 10_000, HOUR).with_algorithm(Algorithm::SlidingLog);
    let timed = |remaining, retry| {
        let mut charge = charge_of(&rule, 1, 5_000);
        charge.hold = Some(Hold { allow_partial: true, is_timed: true, ..Hold::new(SECOND) });
        charge.decision = Decision::new(10_000, remaining, HOUR, retry);
        [charge]
    };
    let charges = timed(0, Some(SECOND));
    let refused = StoreAnswer::of(&charges, clock.now());
    let join = |_| queues.join(queues.ticket(), &charges, Some((&refused, queues.changes(&charges))), false).ok();
    let mut callers: Vec<_> = (0..100).filter_map(join).collect();
    clock.advance(SECOND);
    let first = callers.remove(0);
    assert!(first.look().is_ok());
    first.admitted(&StoreAnswer::of(&timed(4_000, None), clock.now()));
    let asking = callers.iter().filter(|caller| caller.look().is_ok()).count();
    assert_eq!((callers.len(), asking), (99, 1));
}

/// Its caller has another count than the one that learns of it.
#[test]
fn a_cost_that_settles_may_make_room_for_callers_with_any_count() {
    let rules = [10, 20].map(|count| Rule::new("item", count, HOUR).with_algorithm(Algorithm::SlidingLog));
    for settling in [0, 1] {
        let queues = WaitQueues::new(10_000, ManualClock::new().into(), true);
        let charges: Vec<_> = (rules.iter().enumerate())
            .map(|(at, rule)| [Charge { settles: at == settling, ..charge_of(rule, 1, 1) }])
            .collect();
        let join = |charges: &[Charge; 1]| queues.join(queues.ticket(), charges, None, false).ok();
        let _callers: Vec<_> = charges.iter().map(join).collect();
        let settles: Vec<_> = queues.lock().queues.values().map(|queue| queue.settles).collect();
        assert_eq!(settles, [true, true], "{settling}");
    }
}
