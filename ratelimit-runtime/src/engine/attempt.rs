//! Attempts to charge at once, without a list of charges and the future of a store.

use std::task::Poll;

use smallvec::SmallVec;

use super::{
    backend_kind::Ticket,
    core::Engine,
    request::{BorrowedCharge, CostKind, RequestKey},
};
use crate::{
    Key, RequestPerMinute, Rule,
    backend::{Attempt, Backend as _, MAX_AT_ONCE, Query, Waiter},
    counter::CounterId,
    decision::{Outcome, Quotient},
    observe,
    rule::call_kind::CallKind,
};

/// The decision of an attempt.
#[derive(Debug)]
pub(crate) enum Decided {
    Admitted,
    Refused,
}

/// Attempts to charge without a future. `None` if nothing has changed, and a future is needed.
///
/// A refusal is written to `refused`: returned in an enum, it would be copied in each call.
#[inline(always)]
#[allow(clippy::inline_always)] // in one place
pub(crate) fn try_acquire(
    engine: &Engine,
    rule: &Rule,
    key: &RequestKey,
    cost: u64,
    refused: &mut Option<RequestPerMinute>,
) -> Option<Decided> {
    let key = key.counter_key()?;
    if engine.settings().rules_may_differ() {
        return try_acquire_applied(engine, rule, key, cost, refused);
    }
    try_acquire_rule(engine, rule, key, cost, refused)
}

/// [`try_acquire`], by the rule as it applies now.
#[inline(never)]
fn try_acquire_applied(
    engine: &Engine,
    rule: &Rule,
    key: &Key,
    cost: u64,
    refused: &mut Option<RequestPerMinute>,
) -> Option<Decided> {
    let rules = engine.settings().rules_now();
    let rule = rules.applied(rule, key, CallKind::default())?;
    try_acquire_rule(engine, &rule, key, cost, refused)
}

#[inline(always)]
#[allow(clippy::inline_always)] // in two places
fn try_acquire_rule(
    engine: &Engine,
    rule: &Rule,
    key: &Key,
    cost: u64,
    refused: &mut Option<RequestPerMinute>,
) -> Option<Decided> {
    let mut query = Query::new(rule, key, cost);
    match try_charge(engine, &mut query, None) {
        Attempt::Decided if query.outcome.fits() => Some(Decided::Admitted),
        Attempt::Decided => {
            let Outcome { remaining, retry_after_ms, .. } = query.outcome;
            // Made in its place: a copy of it takes longer than the decision.
            let refused = refused.insert(RequestPerMinute::exceeded(rule, cost, remaining, retry_after_ms));
            if observe::records_refusals() {
                observe::refused(refused);
            }
            if engine.settings().names_keys {
                add_key(refused, key);
            }
            Some(Decided::Refused)
        }
        Attempt::Pending | Attempt::Unsupported => None,
    }
}

/// The result of a call whose charge was denied, after it was recorded.
///
/// It takes the outcome by value. For a reference, an admitted call would store its outcome too, number by number,
/// and read the two of its receipt back as one: the processor stalls.
#[inline(always)]
#[allow(clippy::inline_always)] // so that the refusal is made in its place: a copy takes long
pub(super) fn exceeded<T>(
    rule: &Rule,
    key: &Key,
    cost: u64,
    outcome: Outcome,
    names_keys: bool,
) -> Poll<Result<T, RequestPerMinute>> {
    let Outcome { remaining, retry_after_ms, .. } = outcome;
    if observe::records_refusals() {
        record_exceeded(rule, cost, remaining, retry_after_ms);
    }
    if names_keys {
        return Poll::Ready(Err(RequestPerMinute::exceeded(rule, cost, remaining, retry_after_ms).with_key(key)));
    }
    Poll::Ready(Err(RequestPerMinute::exceeded(rule, cost, remaining, retry_after_ms)))
}

/// Records a refusal of its own: a refusal that others have seen is not made in its place.
#[inline(never)]
fn record_exceeded(rule: &Rule, cost: u64, remaining: Quotient, retry_after_ms: Quotient) {
    observe::refused(&RequestPerMinute::exceeded(rule, cost, remaining, retry_after_ms));
}

#[cold]
fn add_key(refused: &mut RequestPerMinute, key: &Key) {
    *refused = refused.clone().with_key(key);
}

/// The one attempt on a charge. The general way decides what it does not:
///
/// - calls that are refused without the store, invalid rules, and rules in shadow mode or with a ban;
/// - costs that are settled later, calls that wait, slots that come later, and free places of a store other
///   than memory;
/// - calls after a hold that is still being settled;
/// - errors of the store.
#[inline(always)]
#[allow(clippy::inline_always)] // in each call
pub(super) fn try_charge(engine: &Engine, query: &mut Query<'_>, waiter: Option<Waiter<'_, Ticket>>) -> Attempt {
    // Outside of a poll there is no permit, which would free a place.
    if !can_be_attempted(query.rule, query.cost, waiter.is_some()) || engine.settlements().has(query.id) {
        return Attempt::Unsupported;
    }
    match engine.backend().try_charge(query, waiter) {
        // A place is recorded when its permit can free it: a recorder may panic.
        Attempt::Decided if query.outcome.fits() && query.rule.is_concurrent() => {}
        Attempt::Decided if query.outcome.fits() => observe::admitted(query.rule, query.outcome.remaining.value()),
        // Nothing has been charged, and no wait will help.
        Attempt::Decided if query.cost > query.rule.limit() => return Attempt::Unsupported,
        attempt => return attempt,
    }
    Attempt::Decided
}

/// See [`try_charge`].
#[inline]
fn can_be_attempted(rule: &Rule, cost: u64, can_hold: bool) -> bool {
    cost > 0 && rule.can_be_attempted(can_hold)
}

/// Attempts several charges without a future, as [`try_acquire`] does.
#[inline(always)]
#[allow(clippy::inline_always)] // in one place
pub(crate) fn try_acquire_all(
    engine: &Engine,
    charges: &[BorrowedCharge<'_>],
    refused: &mut Option<RequestPerMinute>,
) -> Option<Decided> {
    // A recorder may panic. No place is lost: such a call takes none.
    let record = |queries: &[Query<'_>]| {
        for query in queries {
            observe::admitted(query.rule, query.outcome.remaining.value());
        }
    };
    attempt_all(engine, charges.len(), |at| charges[at], false, record, refused)
}

/// The one attempt on several charges, in the memory store. `admit` gets the charges that were made. A refusal is
/// recorded, and written to `refused`. `None` if the general way has to decide: see [`try_charge`], and also
///
/// - costs that are settled later, slots beside other charges, places unless the caller `can_hold` them, rules
///   with `prefetch`, and costs above the limit;
/// - refusals by several rules;
/// - see [`Backend::try_charge_all`](crate::backend::Backend::try_charge_all).
#[inline(always)]
#[allow(clippy::inline_always)] // in two places
pub(super) fn attempt_all<'a>(
    engine: &Engine,
    number: usize,
    charge: impl Fn(usize) -> BorrowedCharge<'a>,
    can_hold: bool,
    admit: impl FnOnce(&[Query<'_>]),
    refused: &mut Option<RequestPerMinute>,
) -> Option<Decided> {
    engine.memory()?;
    if engine.settings().rules_may_differ() {
        return attempt_applied(engine, number, charge, can_hold, admit, refused);
    }
    attempt_rules(engine, number, charge, can_hold, admit, refused)
}

/// [`attempt_all`], by the rules as they apply now.
#[inline(never)]
fn attempt_applied<'a>(
    engine: &Engine,
    number: usize,
    charge: impl Fn(usize) -> BorrowedCharge<'a>,
    can_hold: bool,
    admit: impl FnOnce(&[Query<'_>]),
    refused: &mut Option<RequestPerMinute>,
) -> Option<Decided> {
    let rules = engine.settings().rules_now();
    let kind = CallKind { is_one_of_several: number > 1, ..CallKind::default() };
    let mut applied = SmallVec::<[_; MAX_AT_ONCE]>::new();
    for BorrowedCharge { rule, key, cost_kind, .. } in (0..number).map(&charge) {
        if cost_kind != CostKind::Fixed {
            return None;
        }
        applied.push(rules.applied(rule, key.counter_key()?, kind)?);
    }
    attempt_rules(engine, number, |at| BorrowedCharge { rule: &applied[at], ..charge(at) }, can_hold, admit, refused)
}

/// Attempts some charges, by code for each number of them: lists of unknown length take longer than the
/// arithmetic.
#[inline(always)]
#[allow(clippy::inline_always)] // in two places
fn attempt_rules<'a>(
    engine: &Engine,
    number: usize,
    charge: impl Fn(usize) -> BorrowedCharge<'a>,
    can_hold: bool,
    admit: impl FnOnce(&[Query<'_>]),
    refused: &mut Option<RequestPerMinute>,
) -> Option<Decided> {
    const { assert!(MAX_AT_ONCE == 4) };
    match number {
        1 => attempt_some::<1>(engine, charge, can_hold, admit, refused),
        2 => attempt_some::<2>(engine, charge, can_hold, admit, refused),
        3 => attempt_some::<3>(engine, charge, can_hold, admit, refused),
        4 => attempt_some::<4>(engine, charge, can_hold, admit, refused),
        _ => None,
    }
}

#[inline(always)]
#[allow(clippy::inline_always)] // in one place for each number
fn attempt_some<'a, const N: usize>(
    engine: &Engine,
    charge: impl Fn(usize) -> BorrowedCharge<'a>,
    can_hold: bool,
    admit: impl FnOnce(&[Query<'_>]),
    refused: &mut Option<RequestPerMinute>,
) -> Option<Decided> {
    let mut queries = [Query::NONE; N];
    for (at, query) in queries.iter_mut().enumerate() {
        let BorrowedCharge { rule, key, cost, cost_kind } = charge(at);
        let key = key.counter_key().filter(|_| cost_kind == CostKind::Fixed)?;
        if !can_be_attempted(rule, cost, can_hold) || rule.prefetch() > 1 || cost > rule.limit() {
            return None;
        }
        // What can't be given here would be tried in vain, and others beside it charged and refunded.
        if N > 1 && !rule.decides_at_once() && !rule.is_concurrent() {
            return None;
        }
        // Its other fields stay as they are: writing all of them takes long.
        (query.rule, query.key, query.id, query.cost) = (rule, key, CounterId::new_inline(rule, key), cost);
    }
    let settlements = engine.settlements(); // mostly empty: one test for all counters, not one for each
    if !settlements.is_empty() && queries.iter().any(|query| settlements.has(query.id)) {
        return None;
    }
    match engine.backend().try_charge_all(&mut queries) {
        Attempt::Decided if queries.iter().all(|query| query.outcome.fits()) => {
            admit(&queries);
            Some(Decided::Admitted)
        }
        Attempt::Decided => refuse_one(engine, &queries, (0..N).map(charge), refused),
        Attempt::Pending | Attempt::Unsupported => None,
    }
}

/// Writes and records the refusal, if exactly one rule refuses. `None` if several do: which one is named depends on
/// what others hold.
#[inline(never)]
fn refuse_one<'a>(
    engine: &Engine,
    queries: &[Query<'_>],
    charges: impl Iterator<Item = BorrowedCharge<'a>>,
    refused: &mut Option<RequestPerMinute>,
) -> Option<Decided> {
    let mut refusing = queries.iter().filter(|query| !query.outcome.fits());
    let (Some(Query { rule, key, cost, outcome, .. }), None) = (refusing.next(), refusing.next()) else {
        return None;
    };
    let refused = refused.insert(RequestPerMinute::exceeded(rule, *cost, outcome.remaining, outcome.retry_after_ms));
    let mut of_its_prefix = charges.filter(|charge| charge.rule.prefix() == rule.prefix());
    if engine.settings().names_keys && of_its_prefix.all(|charge| charge.key.counter_key() == Some(*key)) {
        add_key(refused, key);
    }
    observe::refused(refused);
    Some(Decided::Refused)
}
