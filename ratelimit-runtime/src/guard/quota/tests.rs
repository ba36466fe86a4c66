//! Sizes of prefetches, and who gets an answer of the store.

use std::time::Duration;

use super::*;
use crate::{Key, Rule};

const SIZE: u64 = 10;
const START: u64 = 1_000_000;

fn rule(count: u64) -> Rule {
    Rule::new("item", count, Duration::from_secs(60)).with_prefetch(SIZE)
}

fn counter(key: u64) -> CounterName {
    CounterName::new("", &rule(1), &Key::new(key))
}

/// Joins the waiting callers. Returns the prefetch to start, if any, and the receiver of the
/// answer.
fn wait(
    batches: &QuotaBatches,
    count: u64,
    cost: u64,
    now_us: u64,
) -> (Option<Prefetch>, oneshot::Receiver<QuotaAnswer>) {
    match batches.spend_or_wait(&counter(1), &rule(count), cost, now_us) {
        (SpendResult::Waits(answer), follow_up) => (follow_up.prefetch, answer),
        (other, _) => panic!("{other:?}"),
    }
}

/// Answers a prefetch as charged, with so many permits remaining, in a window that lasts for
/// `lasts_ms`.
fn charge(
    batches: &QuotaBatches,
    prefetch: &Prefetch,
    remaining: u64,
    lasts_ms: u64,
    sent_us: u64,
    now_us: u64,
) -> Option<Prefetch> {
    let mut charge = Charge::new(prefetch.rule, prefetch.counter.clone(), prefetch.cost);
    let limit = prefetch.rule.count();
    charge.decision = Decision { limit, remaining, reset_after_ms: lasts_ms, retry_after_ms: u64::MAX };
    charge.receipt = [7, 0];
    let follow_up = batches.finish_prefetch(prefetch, Ok((charge, true)), sent_us, now_us);
    follow_up.answers.into_iter().for_each(|(caller, answer)| drop(caller.send(answer)));
    follow_up.prefetch
}

fn is_spent(answer: &mut oneshot::Receiver<QuotaAnswer>) -> bool {
    matches!(answer.try_recv(), Ok(QuotaAnswer::Spent(..)))
}

/// The sizes of the prefetches if one permit is spent every `pause_us` microseconds.
fn sizes(count: u64, pause_us: u64) -> Vec<u64> {
    let (batches, id) = (QuotaBatches::new(), counter(1).id());
    let (mut now_us, mut left, mut sizes) = (START, count, Vec::new());
    while sizes.len() < 10 {
        let mut waits = None;
        let prefetch = match batches.spend(id, &rule(count), 1, now_us) {
            Ok((_, ahead)) => ahead,
            Err(_) if left == 0 => break,
            Err(_) => {
                let (prefetch, answer) = wait(&batches, count, 1, now_us);
                waits = Some(answer);
                prefetch
            }
        };
        if let Some(prefetch) = prefetch {
            left -= prefetch.cost;
            sizes.push(prefetch.cost);
            assert!(charge(&batches, &prefetch, left, 60_000, now_us, now_us).is_none());
        }
        assert!(waits.is_none_or(|mut answer| is_spent(&mut answer)));
        now_us += pause_us;
    }
    sizes
}

#[test]
fn a_denial_that_arrives_after_its_window_is_for_callers_who_waited_before() {
    let batches = QuotaBatches::new();
    let (prefetch, mut first) = wait(&batches, 100, 1, START);
    let (_, mut second) = wait(&batches, 100, 1, START + 3_999);
    let (none, mut late) = wait(&batches, 100, 1, START + 4_000);
    assert!(none.is_none());
    let deny = |prefetch: Prefetch, sent_us, now_us| {
        let mut charge = Charge::new(prefetch.rule, prefetch.counter.clone(), prefetch.cost);
        charge.decision = Decision { limit: 100, remaining: 0, reset_after_ms: 5, retry_after_ms: 5 };
        let follow_up = batches.finish_prefetch(&prefetch, Ok((charge, false)), sent_us, now_us);
        follow_up.answers.into_iter().for_each(|(caller, answer)| drop(caller.send(answer)));
        follow_up.prefetch
    };
    let next = deny(prefetch.unwrap(), START, START + 8_000).expect("the store is asked for the late one");
    assert!(matches!(first.try_recv(), Ok(QuotaAnswer::Denied(_))));
    assert!(matches!(second.try_recv(), Ok(QuotaAnswer::Denied(_))));
    assert!(late.try_recv().is_err(), "its window may be another one");
    assert!(deny(next, START + 8_000, START + 9_000).is_none());
    assert!(matches!(late.try_recv(), Ok(QuotaAnswer::Denied(_))));
}

/// Also behind a prefetch that is under way under the old count.
#[test]
fn quota_of_an_old_count_goes_back_before_the_next_prefetch() {
    for is_charged in [false, true] {
        let batches = QuotaBatches::new();
        let (first, _one) = wait(&batches, 100, 1, START);
        assert!(charge(&batches, &first.unwrap(), 50, 60_000, START, START).is_none());
        let left = batches.remaining(counter(1).id(), 100, 0, START);
        let (under_way, gone) = wait(&batches, 100, left + 1, START);
        drop(gone);
        let (next, mut answer) = wait(&batches, 20, 1, START);
        assert!(next.is_none());
        let under_way = under_way.unwrap();
        let mut charge = Charge::new(under_way.rule, under_way.counter.clone(), under_way.cost);
        charge.decision = Decision { limit: 100, remaining: 0, reset_after_ms: 60_000, retry_after_ms: 60_000 };
        charge.receipt = [7, 0];
        let follow_up = batches.finish_prefetch(&under_way, Ok((charge, is_charged)), START, START);
        let refund = follow_up.prefetch.expect("a caller waits").refund.map(|charge| charge.cost);
        assert_eq!(refund, Some(left + u64::from(is_charged) * under_way.cost));
        assert!(follow_up.refund.is_none());
        assert!(answer.try_recv().is_err());
    }
}

#[test]
fn prefetches_grow_when_spent_quickly() {
    assert_eq!(sizes(1_000_000, 100_000), [SIZE; 10]);
    assert_eq!(sizes(1_000_000, 1100), [SIZE; 10]);
    assert_eq!(sizes(1_000_000, 1), [1, 2, 4, 8, 16, 32, 64, 64, 64, 64].map(|factor| factor * SIZE));
    // 160 permits last for 8 ms, and 320 for 16 ms.
    assert_eq!(sizes(1_000_000, 50), [1, 2, 4, 8, 16, 32, 32, 32, 32, 32].map(|factor| factor * SIZE));
}

#[test]
fn prefetches_shrink_near_the_limit() {
    assert_eq!(sizes(40, 1_000_000), [10, 10, 10, 5, 2, 1, 1, 1]);
    assert_eq!(sizes(5, 1_000_000), [2, 1, 1, 1]);
    assert_eq!(sizes(1, 1_000_000), [1]);
}

#[test]
fn quota_is_prefetched_early_when_less_than_half_is_left() {
    const COUNT: u64 = 1_000_000;
    let (batches, id, rule) = (QuotaBatches::new(), counter(1).id(), rule(COUNT));
    let spend = |cost, now_us| batches.spend(id, &rule, cost, now_us).map(|(_, prefetch)| prefetch);
    let arrives = |prefetch: &Prefetch, remaining, now_us| {
        assert!(charge(&batches, prefetch, remaining, 60_000, now_us, now_us).is_none());
    };
    let (prefetch, _first) = wait(&batches, COUNT, 1, START);
    arrives(&prefetch.unwrap(), COUNT - SIZE, START); // 9 are left
    assert_eq!(spend(10, START).err(), Some(9));
    assert!(spend(9, START).unwrap().is_none(), "the first one is not known to be spent quickly");

    let (prefetch, _second) = wait(&batches, COUNT, 1, START);
    let prefetch = prefetch.unwrap();
    assert_eq!(prefetch.cost, 2 * SIZE);
    arrives(&prefetch, COUNT - 3 * SIZE, START); // 19 are left
    assert!(spend(9, START).unwrap().is_none(), "half is left");
    let prefetch = spend(1, START).unwrap().expect("less than half is left");
    assert_eq!(prefetch.cost, 4 * SIZE);
    assert!(spend(1, START).unwrap().is_none(), "one prefetch is under way");
    arrives(&prefetch, COUNT - 7 * SIZE, START); // 48 are left

    // The next one is half as large, as this one has lasted for long.
    let late = START + SHRINK_ABOVE_US + 1;
    let prefetch = spend(40, late).unwrap().expect("less than half is left");
    assert_eq!(prefetch.cost, 2 * SIZE);
    arrives(&prefetch, COUNT - 9 * SIZE, late); // 28 are left
    batches.close();
    assert!(spend(20, late).unwrap().is_none(), "it is closed");
}

#[test]
fn quota_is_drained_once() {
    let batches = QuotaBatches::new();
    let (prefetch, _first) = wait(&batches, 100, 1, START);
    assert!(charge(&batches, &prefetch.unwrap(), 90, 60_000, START, START).is_none());
    let drained = || batches.drain(START).iter().map(|charge| charge.cost).collect::<Vec<_>>();
    assert_eq!([drained(), drained()], [vec![SIZE - 1], vec![]]);
}

/// A caller who waits still gets its part.
#[test]
fn quota_that_arrives_after_the_drain_is_refunded() {
    for is_here in [false, true] {
        let batches = QuotaBatches::new();
        let (prefetch, first) = wait(&batches, 100, 1, START);
        let prefetch = prefetch.unwrap();
        let mut first = is_here.then_some(first);
        batches.close();
        assert!(batches.drain(START).is_empty());
        let mut charge = Charge::new(prefetch.rule, prefetch.counter.clone(), prefetch.cost);
        charge.decision = Decision { limit: 100, remaining: 90, reset_after_ms: 60_000, retry_after_ms: u64::MAX };
        charge.receipt = [7, 5];
        let FollowUp { answers, prefetch, refund } =
            batches.finish_prefetch(&prefetch, Ok((charge, true)), START, START);
        assert!(prefetch.is_none());
        let refund = refund.expect("it is closed");
        assert_eq!((refund.cost, refund.receipt), (SIZE - u64::from(is_here), [7, 5]));
        for (caller, answer) in answers {
            drop(caller.send(answer));
        }
        assert!(first.as_mut().is_none_or(is_spent));
        assert!(batches.drain(START).is_empty());
    }
}

#[test]
fn quota_that_arrives_after_its_window_is_for_callers_who_waited_before() {
    // The second one ends just then, if its end was rounded up.
    for lasts_ms in [5, 9, 10] {
        let batches = QuotaBatches::new();
        let (prefetch, mut first) = wait(&batches, 100, 1, START);
        let (none, mut late) = wait(&batches, 100, 1, START + 1);
        assert!(none.is_none());
        let prefetch = prefetch.unwrap();
        let next = charge(&batches, &prefetch, 90, lasts_ms, START, START + 8_000);
        assert!(is_spent(&mut first));
        assert_eq!((is_spent(&mut late), next.is_none()), (lasts_ms == 10, lasts_ms == 10));
        if let Some(next) = next {
            assert!(charge(&batches, &next, 90, 60_000, START + 8_000, START + 9_000).is_none());
            assert!(is_spent(&mut late));
        }
    }
}

/// They waited behind a caller who needed more.
#[test]
fn a_failed_prefetch_fails_only_callers_whose_cost_exceeds_the_quota_here() {
    let batches = QuotaBatches::new();
    let (prefetch, _first) = wait(&batches, 100, 1, START);
    assert!(charge(&batches, &prefetch.unwrap(), 90, 60_000, START, START).is_none()); // 9 are left
    let (prefetch, large) = wait(&batches, 100, 20, START);
    let others = [5, 6, 4].map(|cost| wait(&batches, 100, cost, START).1);
    let failed = Err(StoreError::unavailable("it is away"));
    for (caller, answer) in batches.finish_prefetch(&prefetch.unwrap(), failed, START, START).answers {
        let _ = caller.send(answer);
    }
    let [first, second, third] = others;
    assert_eq!([large, first, second, third].map(|mut answer| is_spent(&mut answer)), [false, true, false, true]);
    assert_eq!(batches.remaining(counter(1).id(), 100, 0, START), 0);
}

/// The permits that a caller waits for are charged under its count. A caller with another count asks the
/// store for itself.
#[test]
fn callers_with_different_counts_do_not_wait_together() {
    for (first, second) in [(5, 100), (100, 5)] {
        let batches = QuotaBatches::new();
        let (prefetch, mut waiting) = wait(&batches, first, 1, START);
        let (asks, follow_up) = batches.spend_or_wait(&counter(1), &rule(second), 1, START);
        assert!(matches!(asks, SpendResult::AskUpstream) && follow_up.prefetch.is_none(), "{first}, {second}");
        let prefetch = prefetch.unwrap();
        assert_eq!(prefetch.rule.count(), first);
        assert!(charge(&batches, &prefetch, 1, 60_000, START, START + 1_000).is_none());
        assert!(is_spent(&mut waiting));
    }
}

#[test]
fn a_full_shard_replaces_only_batches_whose_window_is_over() {
    let batches = QuotaBatches::new();
    let mut keys = (0..).filter(|key| counter(*key).id().0.is_multiple_of(SHARDS as u64)).peekable();
    let first = *keys.peek().unwrap();
    let mut ask = |key: Option<u64>, now_us| {
        let counter = counter(key.unwrap_or_else(|| keys.next().unwrap()));
        let (result, follow_up) = batches.spend_or_wait(&counter, &rule(100), 1, now_us);
        if let Some(prefetch) = follow_up.prefetch {
            charge(&batches, &prefetch, 90, 1000, now_us, now_us);
        }
        matches!(result, SpendResult::Waits(_))
    };
    assert_eq!([ask(None, START), ask(None, START), ask(None, START)], [true, true, false]);
    let (spent, _) = batches.spend_or_wait(&counter(first), &rule(100), 1, START);
    assert!(matches!(spent, SpendResult::Spent(_)), "its quota is here");
    assert!(!ask(None, START + SWEEP_PAUSE_US));
    assert!(ask(None, START + 1_000_000));
}
