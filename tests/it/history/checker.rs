//! The checker of histories: for each of its rules a valid history, and one that breaks the rule by
//! as little as possible.

use std::time::Duration;

use ratelimit_harness::history::{Action, Answer, Bounds, Call, History, Limit, Linearized, Numbers, check, linearize};
use ratelimit_runtime::{Algorithm, Refill, Rule};

use crate::support::{FIXED, LOG};

const MS: u64 = 1000;

/// A history of one counter, written by hand. Times are milliseconds.
struct Hand {
    rule: Rule,
    history: History,
    bounds: Bounds,
}

fn hand(count: u64, period_ms: u64, algorithm: Algorithm) -> Hand {
    let rule = Rule::new("hand", count, Duration::from_millis(period_ms)).with_algorithm(algorithm);
    let history = History { limits: vec![Limit::new(&rule, 1, false)], calls: Vec::new() };
    let bounds = Bounds { straggler: 5_000 * MS, ..Bounds::of_controlled_clock() };
    Hand { rule, history, bounds }
}

impl Hand {
    fn call(&mut self, (invoked, answered): (u64, u64), action: Action, answer: Answer) -> u64 {
        let id = self.history.calls.len() as u64;
        let (invoked, answered) = (invoked * MS, answered * MS);
        self.history.calls.push(Call {
            process: 0,
            id,
            limit: 0,
            key: 1,
            action,
            invoked,
            pending: None,
            answered,
            order: None,
            answer,
            degraded: false,
        });
        id
    }

    fn admitted(&mut self, at: (u64, u64), cost: u64, remaining: u64, reset_after_ms: u64) -> u64 {
        let answer = Answer::Admitted { remaining: Some(remaining), reset_after_ms };
        self.call(at, Action::Acquire { cost, within: None }, answer)
    }

    fn refused(&mut self, at: (u64, u64), cost: u64, remaining: u64, retry_after_ms: u64) -> u64 {
        let answer = Answer::Refused { remaining, retry_after_ms: Some(retry_after_ms) };
        self.call(at, Action::Acquire { cost, within: None }, answer)
    }

    /// A caller who waits, from its invocation on.
    fn waits(&mut self, at: (u64, u64), within_ms: u64, answer: Answer) -> u64 {
        let id = self.call(at, Action::Acquire { cost: 1, within: Some(within_ms * MS) }, answer);
        self.last().pending = Some(at.0 * MS);
        id
    }

    fn hold(&mut self, at: (u64, u64), lease_ms: u64) -> u64 {
        let action = Action::Hold { cost: 1, within: None, lease: lease_ms * MS };
        self.call(at, action, Answer::Admitted { remaining: None, reset_after_ms: 0 })
    }

    fn settled(&mut self, at: (u64, u64), of: u64, used: u64) -> u64 {
        self.call(at, Action::Settle { of, used, is_held: true }, Answer::Done(0))
    }

    fn refunded(&mut self, at: (u64, u64), of: u64, back: u64) -> u64 {
        self.call(at, Action::Refund { of }, Answer::Done(back))
    }

    fn last(&mut self) -> &mut Call {
        self.history.calls.last_mut().unwrap()
    }

    fn found(&self) -> Vec<&'static str> {
        check(&self.history, &self.bounds).iter().map(|accusation| accusation.broken).collect()
    }

    #[track_caller]
    fn is_right(&self) {
        let accusations = check(&self.history, &self.bounds);
        assert!(accusations.is_empty(), "{}", accusations[0]);
    }

    #[track_caller]
    fn is_wrong(&self, broken: &str) {
        assert!(self.found().contains(&broken), "{broken} is not among {:?}", self.found());
    }

    #[track_caller]
    fn has_order(&self, has_order: bool) {
        let found = linearize(&self.history, &[self.rule], Duration::from_secs(10), Numbers::Exact);
        assert_eq!(matches!(found, Linearized::Yes), has_order, "{found:?}");
    }
}

/// The answer for [`Hand::waits`].
fn served(remaining: u64) -> Answer {
    Answer::Admitted { remaining: Some(remaining), reset_after_ms: 100 }
}

#[test]
fn the_checker_finds_more_in_use_than_the_count() {
    let history = |third_at| {
        let mut log = hand(2, 100, LOG);
        log.admitted((0, 1), 1, 1, 100);
        log.admitted((10, 11), 1, 0, 100);
        log.admitted((third_at, third_at + 2), 1, 0, 100);
        log
    };
    history(99).is_right(); // it may have been decided at 101, when the first was over
    history(97).is_wrong("admitted without room");
    history(97).is_wrong("more than the limit");
}

#[test]
fn the_checker_finds_more_admitted_in_a_period_than_the_bound() {
    let history = |third_at| {
        let mut windows = hand(2, 100, Algorithm::SlidingWindow { buckets: 1, weighted: true });
        windows.admitted((0, 0), 2, 0, 200);
        windows.admitted((third_at, third_at), 2, 0, 200);
        windows
    };
    history(100).is_right();
    history(99).is_wrong("more than the bound");
}

#[test]
fn the_checker_finds_a_bucket_that_admits_more_than_burst_and_refill() {
    let history = |second_at| {
        let mut bucket = hand(10, 100, Algorithm::TokenBucket { burst: 5, refill: Refill::Greedy });
        bucket.admitted((0, 0), 5, 0, 50);
        bucket.admitted((second_at, second_at), 5, 0, 50);
        bucket
    };
    history(50).is_right();
    history(30).is_wrong("more than the bound");
}

#[test]
fn the_checker_finds_a_bucket_that_refuses_tokens_it_has() {
    let history = |at| {
        let mut bucket = hand(10, 100, Algorithm::TokenBucket { burst: 5, refill: Refill::Greedy });
        bucket.admitted((0, 1), 5, 0, 50);
        bucket.refused((at, at), 3, 0, 10);
        bucket
    };
    history(20).is_right();
    history(45).is_wrong("a refusal without a reason");
}

#[test]
fn the_checker_finds_a_refusal_without_a_reason() {
    let history = |refused_at| {
        let mut window = hand(2, 100, FIXED);
        window.admitted((0, 1), 2, 0, 100);
        window.refused((refused_at, refused_at), 1, 0, 101 - refused_at.min(100));
        window
    };
    history(101).is_right();
    history(102).is_wrong("a refusal without a reason");
}

#[test]
fn the_checker_lets_a_call_without_an_answer_be_charged_or_not() {
    let history = |answer: Answer| {
        let mut window = hand(2, 100, FIXED);
        window.admitted((0, 1), 1, 1, 100);
        window.call((2, 3), Action::Acquire { cost: 1, within: None }, answer);
        window.refused((4, 5), 1, 0, 97);
        window
    };
    history(Answer::Unknown).is_right();
    history(Answer::NeverFits).is_wrong("a refusal without a reason");
}

#[test]
fn the_checker_finds_a_wrong_remaining_count_of_a_permit() {
    let history = |remaining| {
        let mut window = hand(5, 100, FIXED);
        window.admitted((0, 1), 2, 3, 100);
        window.admitted((2, 3), 1, remaining, 98);
        window
    };
    history(2).is_right();
    history(1).is_wrong("a wrong `remaining`");
    history(3).is_wrong("a wrong `remaining`");
}

#[test]
fn the_checker_finds_a_wrong_remaining_count_of_a_refusal_or_a_peek() {
    let history = |remaining| {
        let mut window = hand(5, 100, FIXED);
        window.admitted((0, 1), 3, 2, 100);
        window.refused((2, 3), 4, remaining, 98);
        window.call((4, 5), Action::Peek, Answer::Seen { remaining, reset_after_ms: 96 });
        window
    };
    history(2).is_right();
    history(1).is_wrong("a wrong `remaining` of a refusal");
    history(3).is_wrong("a wrong `remaining` of a peek");
}

#[test]
fn the_checker_finds_a_retry_after_too_short_or_too_long() {
    let history = |retry| {
        let mut log = hand(2, 100, LOG);
        log.admitted((0, 1), 1, 1, 100);
        log.admitted((20, 21), 1, 0, 100);
        log.refused((30, 31), 1, 0, retry);
        log
    };
    history(70).is_right();
    history(60).is_wrong("a `retry_after` that is too short");
    history(71).is_right(); // it may have been decided right after the first one
    history(80).is_wrong("a `retry_after` that is too long");
}

#[test]
fn the_checker_finds_a_refund_of_a_wrong_amount() {
    let history = |refunded_at, back| {
        let mut window = hand(2, 100, FIXED);
        let id = window.admitted((0, 1), 2, 0, 100);
        window.refunded((refunded_at, refunded_at + 1), id, back);
        window
    };
    history(50, 2).is_right();
    history(99, 0).is_right();
    history(50, 1).is_wrong("a refund that returns too little");
    history(102, 0).is_right();
    history(102, 2).is_wrong("a refund to a later window");
}

/// The store may have charged a call that its process then decided by itself, and has refunded.
#[test]
fn a_local_charge_that_was_refunded_may_still_count() {
    let history = |is_local| {
        let mut window = hand(20, 300, FIXED);
        let id = window.admitted((0, 10), 3, 17, 300);
        window.last().degraded = is_local;
        window.refunded((20, 21), id, 3);
        window.admitted((30, 31), 3, 14, 275);
        window
    };
    history(true).is_right();
    history(false).is_wrong("a wrong `remaining`");
}

#[test]
fn the_checker_finds_a_call_admitted_before_the_refund_that_makes_room() {
    let history = |admitted_at| {
        let mut log = hand(2, 100, LOG);
        let id = log.admitted((0, 1), 2, 0, 100);
        log.refunded((10, 11), id, 2);
        log.admitted((admitted_at, admitted_at + 1), 2, 0, 100);
        log
    };
    history(10).is_right();
    history(8).is_wrong("admitted without room");
}

#[test]
fn the_checker_finds_a_window_that_does_not_last_its_period() {
    let history = |reset| {
        let mut window = hand(5, 100, FIXED);
        window.admitted((0, 1), 1, 4, 100);
        window.admitted((40, 41), 1, 3, reset);
        window
    };
    history(60).is_right();
    history(64).is_wrong("a window that ends at two times");
    let mut long = hand(5, 100, FIXED);
    long.admitted((0, 1), 1, 4, 102);
    long.is_wrong("a window longer than its period");
}

#[test]
fn the_checker_finds_one_permit_given_to_two_callers() {
    let history = |remaining| {
        let mut window = hand(5, 100, FIXED);
        window.admitted((0, 5), 1, 3, 100);
        window.admitted((0, 5), 1, remaining, 100);
        window.admitted((0, 5), 1, 2, 100);
        window
    };
    history(4).is_right();
    history(3).is_wrong("one permit for two callers");
}

#[test]
fn the_checker_finds_a_later_state_told_to_an_earlier_caller() {
    let history = |second_asked| {
        let mut window = hand(5, 100, FIXED);
        window.admitted((0, 20), 1, 4, 100);
        window.admitted((1, 3), 1, 2, 100);
        window.admitted((second_asked, 6), 1, 3, 100);
        window
    };
    history(2).is_right();
    history(4).is_wrong("a later state told to an earlier caller");
}

#[test]
fn the_checker_finds_a_place_taken_twice_or_never_freed() {
    let history = |next| {
        let mut places = hand(1, 1000, Algorithm::Concurrent);
        let id = places.hold((0, 1), 1000);
        places.settled((50, 52), id, 0);
        places.hold((next, next + 1), 1000);
        places
    };
    history(50).is_right();
    history(48).is_wrong("admitted without room");
    let refused = |at| {
        let mut places = history(60);
        places.settled((70, 72), 2, 0);
        let action = Action::Hold { cost: 1, within: None, lease: 1000 * MS };
        places.call((at, at), action, Answer::Refused { remaining: 0, retry_after_ms: None });
        places
    };
    refused(72).is_right();
    refused(73).is_wrong("a refusal without a reason");
}

#[test]
fn the_checker_finds_a_renewed_hold_that_was_lost() {
    let history = |is_held| {
        let mut places = hand(1, 1000, Algorithm::Concurrent);
        let of = places.hold((0, 1), 1000);
        places.call((2000, 2001), Action::Settle { of, used: 0, is_held }, Answer::Done(0));
        places
    };
    history(true).is_right();
    history(false).is_wrong("a hold was lost");
    let mut lost = history(false);
    lost.bounds.holds_may_be_lost = true;
    lost.is_right();
}

#[test]
fn the_checker_finds_a_settlement_charged_wrongly() {
    let history = |remaining| {
        let mut log = hand(1000, 60_000, LOG);
        let action = Action::Hold { cost: 400, within: None, lease: 30_000 * MS };
        let of = log.call((0, 1), action, Answer::Admitted { remaining: None, reset_after_ms: 0 });
        log.settled((10, 20), of, 100);
        log.call((30, 31), Action::Peek, Answer::Seen { remaining, reset_after_ms: 60_000 });
        log
    };
    history(900).is_right();
    history(800).is_wrong("a wrong `remaining` of a peek");
}

#[test]
fn the_checker_finds_an_error_without_a_reason() {
    let mut window = hand(5, 100, FIXED);
    window.call((0, 1), Action::Acquire { cost: 6, within: None }, Answer::NeverFits);
    window.is_right();
    window.call((2, 3), Action::Acquire { cost: 5, within: None }, Answer::NeverFits);
    window.is_wrong("refused for ever");
    window.call((4, 5), Action::Peek, Answer::Wrong("misconfigured".to_owned()));
    window.is_wrong("an error without a reason");
}

#[test]
fn the_checker_finds_a_refusal_by_charges_before_a_reset() {
    let history = |refused_at| {
        let mut window = hand(1, 100, FIXED);
        window.admitted((0, 1), 1, 0, 100);
        window.call((10, 12), Action::Reset, Answer::Done(0));
        window.refused((refused_at, refused_at), 1, 0, 90);
        window
    };
    history(12).is_right();
    history(13).is_wrong("a refusal without a reason");
}

#[test]
fn the_checker_finds_a_waiting_caller_who_is_passed() {
    let history = |later_came| {
        let mut window = hand(1, 100, FIXED);
        window.admitted((0, 0), 1, 0, 100);
        window.waits((10, 200), 500, served(0));
        window.waits((later_came, 100), 500, served(0));
        window
    };
    history(9).is_right();
    history(11).is_wrong("a waiting caller is passed");
    let mut stated = history(11);
    stated.bounds.passes = Some(1);
    stated.is_right();
}

#[test]
fn the_checker_finds_a_wait_without_a_reason() {
    let history = |answered| {
        let mut window = hand(1, 100, FIXED);
        window.admitted((0, 0), 1, 0, 100);
        window.waits((10, answered), 500, served(0));
        window
    };
    history(100).is_right();
    history(103).is_wrong("a wait without a reason");
    let mut idle = history(103);
    idle.bounds.idle = Some(3 * MS);
    idle.is_right();
}

#[test]
fn the_checker_finds_a_refusal_of_a_wait_that_was_short_enough() {
    let history = |retry| {
        let mut window = hand(1, 100, FIXED);
        window.bounds.waits_are_told = true;
        window.admitted((0, 0), 1, 0, 100);
        window.waits((10, 10), 50, Answer::Refused { remaining: 0, retry_after_ms: Some(retry) });
        window
    };
    history(90).is_right();
    history(40).is_wrong("a refusal of a short wait");
}

#[test]
fn the_checker_ignores_calls_decided_by_the_failure_policy() {
    let mut window = hand(1, 100, FIXED);
    window.admitted((0, 1), 1, 0, 100);
    window.admitted((2, 3), 1, 0, 100);
    window.is_wrong("more than the limit");
    window.last().degraded = true;
    window.is_right();
}

#[test]
fn a_report_of_the_checker_is_readable() {
    let mut window = hand(1, 100, FIXED);
    window.admitted((0, 1), 1, 0, 100);
    window.refused((2, 3), 1, 0, 98);
    window.admitted((4, 5), 1, 0, 96);
    let accusations = check(&window.history, &window.bounds);
    let text = accusations[0].to_string();
    let expected = "\
more than the limit: `hand` of key 1: 2 are in use, of 1
       invoked    answered  process    call and answer (times in ms)
         0.000       1.000  0#0        acquire 1: admitted, 0 remain, all in 100 ms
=>       4.000       5.000  0#2        acquire 1: admitted, 0 remain, all in 96 ms
";
    assert_eq!(text, expected);
}

#[test]
fn the_checker_finds_an_order_that_explains_all_answers() {
    let history = |first, second| {
        let mut window = hand(3, 1000, FIXED);
        window.call((0, 1), Action::Advance { by: 500 * MS }, Answer::Done(0));
        window.admitted((2, 9), 1, first, 1000);
        window.admitted((3, 8), 1, second, 1000);
        window.call((10, 12), Action::Advance { by: 999 * MS }, Answer::Done(0));
        window.refused((13, 14), 2, 1, 1);
        window.admitted((15, 16), 1, 0, 1);
        window
    };
    history(2, 1).has_order(true);
    history(1, 2).has_order(true);
    history(1, 1).has_order(false);
    history(0, 2).has_order(false);
}

/// A script read the state of the bucket, and the bucket became full before it was decided.
#[test]
fn an_order_may_move_the_clock_in_the_midst_of_one_call_only() {
    let history = |reset_after_ms| {
        let mut bucket = hand(5, 1000, Algorithm::LeakyBucket { queue: 4 });
        bucket.admitted((0, 1), 1, 4, 200);
        bucket.call((2, 9), Action::Advance { by: 500 * MS }, Answer::Done(0));
        bucket.admitted((3, 8), 2, 3, 400);
        let answer = Answer::Seen { remaining: 4, reset_after_ms };
        bucket.call((10, 11), Action::Peek, answer);
        bucket
    };
    history(100).has_order(true);
    // The clock moves at once, or in the midst of one call only.
    history(101).has_order(false);
    history(99).has_order(false);
}

#[test]
fn an_order_keeps_calls_that_did_not_overlap() {
    let history = |second_asked| {
        let mut window = hand(3, 1000, FIXED);
        window.admitted((0, 5), 1, 1, 1000);
        window.admitted((second_asked, 9), 1, 2, 1000);
        window
    };
    history(5).has_order(true);
    history(6).has_order(false);
}

#[test]
fn an_order_may_leave_out_a_call_without_an_answer_or_put_it_later() {
    let history = |remaining| {
        let mut window = hand(5, 1000, FIXED);
        window.admitted((0, 1), 1, 4, 1000);
        window.call((2, 3), Action::Acquire { cost: 2, within: None }, Answer::Unknown);
        window.admitted((4, 5), 1, remaining, 1000);
        window
    };
    history(3).has_order(true);
    history(1).has_order(true);
    history(2).has_order(false);
}

/// A call without an answer and one with an answer may have been decided in either order. Both lead to
/// the same counts, and the refund shows which of them it was.
#[test]
fn an_order_knows_which_call_made_which_charge() {
    let history = |reset_after_ms| {
        let mut log = hand(3, 1000, LOG);
        let first = log.admitted((0, 1), 1, 2, 1000);
        log.call((2, 3), Action::Acquire { cost: 1, within: None }, Answer::Unknown);
        let second = log.admitted((4, 20), 1, 1, 1000);
        log.call((5, 6), Action::Advance { by: 500 * MS }, Answer::Done(0));
        log.refunded((7, 8), first, 1);
        log.call((21, 22), Action::Peek, Answer::Seen { remaining: 1, reset_after_ms: 1000 });
        log.refunded((23, 24), second, 1);
        log.call((25, 26), Action::Peek, Answer::Seen { remaining: 2, reset_after_ms });
        log
    };
    history(500).has_order(true);
    history(1000).has_order(true);
    history(999).has_order(false);
}

#[test]
fn the_shortest_history_without_an_order_is_reported() {
    let mut window = hand(9, 1000, FIXED);
    for at in 0..3 {
        window.admitted((2 * at, 2 * at + 1), 1, 8 - at, 1000);
    }
    let wrong = window.admitted((6, 7), 1, 7, 1000);
    window.admitted((8, 9), 1, 4, 1000);
    let found = linearize(&window.history, &[window.rule], Duration::from_secs(10), Numbers::Exact);
    let Linearized::No(accusation) = found else { panic!("{found:?}") };
    assert_eq!(accusation.accused, Some((0, wrong)));
    assert_eq!(accusation.calls.len(), 4);
    assert!(accusation.message.ends_with("the model says admitted, 5 remain, all in 1000 ms"), "{accusation}");
}
