//! The overflow may refuse too much. It never admits too much.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::{
    Key, ManualClock,
    counter::CounterName,
    memory::{
        Memory,
        tests::{RULE as ONCE, decide, key_in},
    },
    store::{Charge, Reply, Store as _},
};

const PERIOD_MS: u64 = 1_000;
const COUNT: u64 = 5;
const RULE: Rule = Rule::new("item", COUNT, Duration::from_millis(PERIOD_MS));
const SPACIOUS: usize = 1 << 20;

fn id(key: u64) -> CounterId {
    CounterId::new(&RULE, &Key::new(key))
}

fn charge(overflow: &Overflow, key: u64, cost: u64, now_ms: u64) -> Evaluation {
    overflow.charge(id(key), &ChargeQuery::of(&RULE, cost), false, now_ms).unwrap()
}

/// The largest sum of costs in a period, of calls in the order of their times.
fn most_in_a_period(calls: &[(u64, u64)]) -> u64 {
    let sum = |first: usize| {
        let in_period = calls[first..].iter().take_while(|(ms, _)| *ms < calls[first].0 + PERIOD_MS);
        in_period.map(|(_, cost)| cost).sum()
    };
    (0..calls.len()).map(sum).max().unwrap_or_default()
}

/// A debt has another limit than the calls of its counter. In the store it would begin a fresh window.
#[test]
fn a_debt_is_counted_with_the_calls_of_its_counter() {
    let overflow = Overflow::new(SPACIOUS);
    assert!((0..COUNT).all(|_| charge(&overflow, 1, 1, 0).fits));
    let in_debt = RULE.with_largest_limit();
    let debt = ChargeQuery::of(&in_debt, 3);
    assert!(overflow.evaluate(id(1), &debt, 0).is_some_and(|found| found.fits));
    assert!(overflow.charge(id(1), &debt, false, 0).unwrap().fits);
    let now = |cost| overflow.evaluate(id(1), &ChargeQuery::of(&RULE, cost), 0).unwrap();
    assert_eq!((now(1).fits, now(0).decision.remaining), (false, 0));
    let later = charge(&overflow, 1, 1, 2 * PERIOD_MS);
    assert!(later.fits && later.decision.remaining == COUNT - 1);
}

#[test]
fn a_charge_of_long_ago_does_not_count() {
    for spans in [SPANS / 2, SPANS - MOST_AHEAD - 1, SPANS - 5, SPANS - 1] {
        let overflow = Overflow::new(SPACIOUS);
        let table = overflow.table(&RULE).unwrap();
        assert!(charge(&overflow, 1, COUNT, 0).fits);
        let now_ms = spans * PERIOD_MS;
        // Nor is it of a later span, in which other counters would have no charges yet.
        assert_eq!(table.read(overflow.cells_of(table, id(1)), now_ms).1, now_ms, "{spans}");
        assert!(charge(&overflow, 1, 1, now_ms).fits, "{spans}");
    }
}

#[test]
fn a_cost_of_any_size_is_evaluated() {
    let overflow = Overflow::new(SPACIOUS);
    assert!(charge(&overflow, 1, 1, 0).fits);
    let found = overflow.evaluate(id(1), &ChargeQuery::of(&RULE, u64::MAX), 0).unwrap();
    assert_eq!((found.fits, found.decision.remaining), (false, COUNT - 1));
}

/// Its charge is made in the span that the other thread has begun.
#[test]
fn a_call_whose_clock_is_late_is_told_the_time_until_the_end_of_later_charges() {
    let overflow = Overflow::new(SPACIOUS);
    assert!(charge(&overflow, 1, COUNT, PERIOD_MS).fits);
    let refused = charge(&overflow, 1, 1, PERIOD_MS - 1).decision;
    assert_eq!((refused.retry_after_ms, refused.reset_after_ms), (2 * PERIOD_MS + 1, 2 * PERIOD_MS + 1));
    let admitted = charge(&overflow, 2, 1, 3 * PERIOD_MS);
    assert_eq!((admitted.fits, admitted.decision.reset_after_ms), (true, 2 * PERIOD_MS));
    let admitted = charge(&overflow, 2, 1, 3 * PERIOD_MS - 1);
    assert_eq!((admitted.fits, admitted.decision.reset_after_ms), (true, 2 * PERIOD_MS + 1));
    assert!(charge(&overflow, 1, 1, PERIOD_MS - 1 + refused.retry_after_ms).fits);
}

proptest! {
    /// Counters share few cells. Each call reads a clock that is late by up to three periods, and is made
    /// then, or in a later span that others have begun.
    #[test]
    fn no_counter_is_admitted_beyond_its_count_in_any_period(
        bytes in 32_usize..600,
        steps in prop::collection::vec((0_u64..12, 1..=COUNT, 0..400_u64, 0..3_000_u64), 1..300),
    ) {
        let overflow = Overflow::new(bytes);
        let (mut now_ms, mut admitted) = (1_000_000, vec![Vec::new(); 12]);
        let mut latest = [0; 12];
        for (key, cost, pause, late) in steps {
            now_ms += pause;
            let at = usize::try_from(key).unwrap();
            latest[at] = latest[at].max(now_ms - late);
            let table = overflow.table(&RULE).unwrap();
            let (_, made_ms) = table.read(overflow.cells_of(table, id(key)), latest[at]);
            if charge(&overflow, key, cost, latest[at]).fits {
                admitted[at].push((made_ms, cost));
            }
        }
        for mut calls in admitted {
            calls.sort_unstable();
            prop_assert!(most_in_a_period(&calls) <= COUNT, "{calls:?}");
        }
    }

    #[test]
    fn a_refused_cost_fits_after_its_wait(
        steps in prop::collection::vec((0_u64..4, 1..=COUNT, 0..600_u64), 1..100),
    ) {
        let overflow = Overflow::new(128);
        let mut now_ms = 1_000_000;
        for (key, cost, pause) in steps {
            now_ms += pause;
            let found = charge(&overflow, key, cost, now_ms);
            let looked = |after| overflow.evaluate(id(key), &ChargeQuery::of(&RULE, cost), now_ms + after);
            if let Some(wait) = found.decision.retry_after() {
                let wait = u64::try_from(wait.as_millis()).unwrap();
                prop_assert!(looked(wait).is_none_or(|found| found.fits));
            }
            prop_assert!(looked(found.decision.reset_after_ms).is_none(), "nothing counts after `reset_after`");
        }
    }
}

#[test]
fn a_lone_counter_gets_its_whole_count_once_in_two_periods() {
    let overflow = Overflow::new(SPACIOUS);
    for (second, fits) in [(10, COUNT), (11, 0), (12, COUNT), (14, COUNT)] {
        let admitted = (0..10).filter(|_| charge(&overflow, 1, 1, second * 1_000).fits).count();
        assert_eq!(admitted as u64, fits, "{second}");
    }
    let found = charge(&overflow, 2, 2, 20_500);
    assert_eq!((found.decision.remaining, found.decision.reset_after_ms), (COUNT - 2, 1_500));
}

#[test]
fn rules_with_other_periods_share_no_cells() {
    let overflow = Overflow::new(32); // one cell in each row
    let rule = |seconds| Rule::new("item", 1, Duration::from_secs(seconds));
    let charge = |rule: &Rule, key: u64| {
        let id = CounterId::new(rule, &Key::new(key));
        overflow.charge(id, &ChargeQuery::of(rule, 1), false, 1_000_000).map(|found| found.fits)
    };
    for seconds in 1..=4 {
        assert_eq!(charge(&rule(seconds), 1), Some(true));
        assert_eq!(charge(&rule(seconds), 2), Some(false), "its cells are those of the other key");
    }
    assert_eq!(charge(&rule(5), 1), None, "there are cells for four periods");
}

#[test]
fn charges_count_as_made_now_if_the_clock_was_set_back() {
    let overflow = Overflow::new(SPACIOUS);
    let hour = 3_600_000;
    assert!(charge(&overflow, 1, COUNT, 2 * hour).fits);
    assert!(!charge(&overflow, 1, 1, hour).fits);
    assert!(!charge(&overflow, 1, 1, hour + PERIOD_MS).fits);
    assert!(charge(&overflow, 1, COUNT, hour + 2 * PERIOD_MS).fits);
}

/// Between the read and the write of a call, a call of another counter moves a cell that both share.
#[test]
fn a_charge_counts_in_cells_that_were_moved_on_meanwhile() {
    let overflow = Overflow::new(SPACIOUS);
    let table = overflow.table(&RULE).unwrap();
    let cells = overflow.cells_of(table, id(1));
    for (moved, start_ms) in [(0, 10_000), (1, 20_000), (3, 40_000)] {
        let (counted, _) = table.read(cells, start_ms);
        for cell in cells.iter().take(moved) {
            let later = OverflowCell::of(cell.load(Ordering::Relaxed)).at(start_ms / PERIOD_MS + 1, 0);
            table.raise([cell; ROWS], later, start_ms / PERIOD_MS + 1);
        }
        table.raise(cells, OverflowCell { now: counted.now + COUNT, ..counted }, start_ms / PERIOD_MS);
        assert!(!charge(&overflow, 1, 1, start_ms).fits, "{moved}");
        assert!(!charge(&overflow, 1, 1, start_ms + PERIOD_MS).fits, "{moved}");
    }
}

#[test]
fn a_counter_has_one_cell_in_each_row() {
    let overflow = Overflow::new(SPACIOUS);
    let table = overflow.table(&RULE).unwrap();
    for key in 0..100 {
        let cells = overflow.cells_of(table, id(key));
        for (row, cell) in table.cells.chunks(overflow.cells_in_row).zip(cells) {
            assert!(row.as_ptr_range().contains(&std::ptr::from_ref(cell)), "{key}");
        }
    }
}

#[test]
fn a_cell_keeps_its_numbers_in_one_word() {
    let cell = OverflowCell { span: SPANS - 1, before: LARGEST_COUNT, now: 7 };
    let OverflowCell { span, before, now } = OverflowCell::of(cell.word());
    assert_eq!((span, before, now), (SPANS - 1, LARGEST_COUNT, 7));
    let OverflowCell { span, before, now } = cell.at(SPANS, 0); // the next one
    assert_eq!((span, before, now), (0, 7, 0));
}

#[test]
fn the_end_of_a_ban_leaves_a_counter_of_the_overflow_as_it_is() {
    let memory = Memory::new(ManualClock::new().into(), 1, 1 << 20);
    let [stored, overflowing] = [0, 1].map(Key::new);
    assert!(decide(&memory, &[(&ONCE, &stored)]).unwrap());
    assert!(decide(&memory, &[(&ONCE, &overflowing)]).unwrap());
    let charge = Charge::new(ONCE, CounterName::new("", &ONCE, &overflowing), 1);
    let Reply::Ready(Ok(())) = memory.ban(charge, Duration::ZERO) else { panic!("it was not banned") };
    assert!(!decide(&memory, &[(&ONCE, &overflowing)]).unwrap());
}

/// Each call finds room, as the counters of earlier ones have expired.
#[test]
fn the_overflow_takes_no_table_for_a_counter_that_finds_room() {
    let clock = ManualClock::new();
    let memory = Memory::new(clock.clone().into(), 2, 1 << 16);
    let rule = |seconds| Rule::new("item", 1, Duration::from_secs(seconds));
    for seconds in 2..=6 {
        let both = [6, 7].map(|shard| key_in(shard, &rule(seconds), seconds * 1_000_000));
        let rule = rule(seconds);
        assert!(decide(&memory, &both.each_ref().map(|key| (&rule, key))).unwrap());
        clock.advance(Duration::from_secs(100));
    }
    let (lasting, keys) = (rule(3600), [1, 2].map(Key::new));
    assert!(decide(&memory, &keys.each_ref().map(|key| (&lasting, key))).unwrap());
    assert!(decide(&memory, &[(&rule(10), &Key::new(3))]).unwrap());
}

#[test]
fn two_rules_that_need_the_last_table_of_the_overflow_charge_nothing() {
    let memory = Memory::new(ManualClock::new().into(), 1, 1 << 16);
    let rule = |seconds| Rule::new("item", 1, Duration::from_secs(seconds));
    let [stored, key] = [0, 1].map(Key::new);
    assert!(decide(&memory, &[(&ONCE, &stored)]).unwrap());
    for seconds in 2..=4 {
        assert!(decide(&memory, &[(&rule(seconds), &key)]).unwrap());
    }
    let [first, second] = [rule(10), rule(20)];
    assert!(decide(&memory, &[(&first, &key), (&second, &key)]).is_err());
    let admitted = [first, second].map(|rule| decide(&memory, &[(&rule, &key)]));
    assert!(admitted.iter().any(|admitted| matches!(admitted, Ok(true))), "{admitted:?}");
    assert!(!admitted.iter().any(|admitted| matches!(admitted, Ok(false))), "{admitted:?}");
}
