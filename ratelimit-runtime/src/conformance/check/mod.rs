//! All promises of a store, in order: a defect that breaks several is reported by the simplest one.

mod charges;
mod holds;
mod refunds;
mod scenario;
mod several;
mod time;

use std::time::Duration;

use self::{
    charges::{
        batch, batch_of_one_counter, cost, cost_of_zero, fresh_counter, peek, refusal, same_instant, separate_counters,
    },
    holds::{
        charge_beside_hold, end_of_lease, exclusive, held, held_by_others, held_with, partial, refund_held, renew,
        renew_again, renew_late, renew_together, settle, settle_above, settle_late, settle_twice,
    },
    refunds::{change, receipts, refund, refund_late, refund_part, reset},
    scenario::{Checked, LEASE, LONG_LEASE, MILLISECOND, rule_by},
    several::{concurrent_calls, concurrent_requests, several},
    time::{longest_wait, period, reset_after, retry, slots},
};
use super::{
    schedule::Schedule,
    subject::{ALGORITHMS, Subject},
    trial::{Compared, Trial},
};
use crate::{
    Algorithm, Rule,
    algorithm::{Capabilities, HoldSupport, capabilities},
};

/// Checks that a store keeps the promises of [`Store`](crate::Store) for these algorithms, and
/// rejects the others.
///
/// See [the module](super) for how to call it, and for what it does not check.
///
/// # Panics
///
/// When the store breaks a promise. The message names the promise, the steps before, the request,
/// and both the expected and the actual answer.
pub async fn check(subject: &impl Subject, algorithms: &[Algorithm]) {
    assert!(!algorithms.is_empty(), "no algorithm is given, so there is nothing to check");
    // All steps are whole milliseconds, so the clock has to show one.
    let beyond = subject.now().subsec_nanos() % 1_000_000;
    if beyond > 0 {
        subject.advance(MILLISECOND.saturating_sub(Duration::from_nanos(beyond.into())));
    }
    if let Err(broken) = check_all(subject, algorithms).await {
        panic!("{broken}");
    }
}

async fn check_all(subject: &dyn Subject, algorithms: &[Algorithm]) -> Checked {
    let stores = [("the store", subject)];
    let supports_holds = subject.store().supports_holds();
    // Places are holds: a store without holds is never asked for one.
    let is_asked = |algorithm: &&Algorithm| supports_holds || capabilities(**algorithm).holds != HoldSupport::Always;
    let algorithms: Vec<_> = algorithms.iter().filter(is_asked).copied().collect();
    for &algorithm in &algorithms {
        let holds = capabilities(algorithm).holds;
        let rule = rule_by("item", algorithm);
        check_charges(&stores, rule, &algorithms, None).await?;
        if supports_holds && matches!(holds, HoldSupport::Settled | HoldSupport::Always) {
            check_holds(&stores, rule, &algorithms).await?;
        }
        if supports_holds && holds == HoldSupport::Settled {
            check_charges(&stores, rule, &algorithms, Some(LEASE)).await?;
        }
    }
    let trial = |promise: &str| Trial::new(promise, &stores);
    let mut random = SplitMix64(1);
    for _ in 0..20 * algorithms.len() {
        let (rules, steps) = (random.numbers(16), (0..40).map(|_| random.numbers(40)).collect::<Vec<_>>());
        let schedule = Schedule::new(&algorithms, &rules, &steps, false).without_settlements();
        let schedule = if supports_holds { schedule } else { schedule.without_holds() };
        let schedule = if subject.store().supports_bans() { schedule } else { schedule.without_bans() };
        schedule.run(trial("every answer follows from the calls before it")).await?;
    }
    let is_given = |other: &Algorithm| algorithms.iter().any(|given| given.key_tag().name == other.key_tag().name);
    for &algorithm in ALGORITHMS.iter().filter(is_asked).filter(|algorithm| !is_given(algorithm)) {
        trial("an algorithm that the store does not have is `misconfigured`")
            .rejects_algorithm(&rule_by("item", algorithm))
            .await?;
    }
    Ok(())
}

/// The promises about charges. With a lease, charges to logs are held and never settled.
async fn check_charges(
    stores: &[(&str, &dyn Subject)],
    rule: Rule,
    algorithms: &[Algorithm],
    lease: Option<Duration>,
) -> Checked {
    let of = if lease.is_some() { "with held charges: " } else { "" };
    let trial = |promise: &str| Trial::new(format!("{of}{promise}"), stores).holding(lease);
    let counts = |promise: &str| trial(promise).comparing(Compared::Counts);
    fresh_counter(counts("a fresh counter has its whole limit"), rule).await?;
    cost(counts("a cost of n takes n"), rule).await?;
    same_instant(counts("calls in the same instant all count"), rule).await?;
    refusal(counts("a refusal charges nothing"), rule).await?;
    peek(counts("a request that does not consume charges nothing"), rule).await?;
    cost_of_zero(counts("a cost of 0 always fits, and charges nothing"), rule).await?;
    let separate = counts("other keys, periods and algorithms have counters of their own");
    separate_counters(separate, rule, algorithms).await?;
    batch(counts("each request of a batch is decided on its own"), rule).await?;
    batch_of_one_counter(counts("each request of a batch sees the charges of the others"), rule).await?;
    period(counts("a call counts as long as its algorithm says, and no call makes another count longer"), rule).await?;
    for cost in [1, rule.limit().div_ceil(2), rule.limit()] {
        let trial = trial("after `retry_after` a cost is granted, and not a millisecond before");
        retry(trial.comparing(Compared::RetryAfter), rule, cost).await?;
    }
    let whole = trial("after `reset_after` the whole limit is available, and not a millisecond before");
    reset_after(whole.comparing(Compared::ResetAfter), rule).await?;
    let Capabilities { has_slots, stands_alone, .. } = capabilities(rule.algorithm());
    if has_slots {
        slots(trial("each call has a slot of its own, one period / count after the other"), rule).await?;
        longest_wait(trial("a slot later than `longest_wait` is refused"), rule).await?;
    }
    refund(trial("a refunded cost is available again"), rule).await?;
    if capabilities(rule.algorithm()).holds == HoldSupport::Refunded {
        refund_part(trial("of a part of a cost that is refunded, the rest still counts"), rule).await?;
    }
    if capabilities(rule.algorithm()).has_prefetch {
        receipts(trial("the first number of a receipt identifies the window"), rule).await?;
    }
    refund_late(trial("an expired charge is not refunded, and no later window is credited"), rule).await?;
    reset(trial("a counter that was reset is a fresh one"), rule).await?;
    change(trial("a changed count, burst or queue acts on the next call"), rule).await?;
    concurrent_calls(trial("as many calls as fit are granted, also when they are concurrent"), rule).await?;
    if !stands_alone {
        several(trial("all charges of a request are made, or none"), rule).await?;
        let concurrent = trial("all charges of a request are made, or none, also when requests are concurrent");
        concurrent_requests(concurrent, rule).await?;
    }
    Ok(())
}

/// The promises about holds, in a log or of places.
async fn check_holds(stores: &[(&str, &dyn Subject)], rule: Rule, algorithms: &[Algorithm]) -> Checked {
    let trial = |promise: &str| Trial::new(promise, stores);
    let counts = |promise: &str| trial(promise).comparing(Compared::Counts);
    held(counts("a hold counts"), rule).await?;
    let ends = "a hold that is never settled becomes a charge when its lease ends, and a place becomes free";
    for lease in [LEASE, LONG_LEASE, MILLISECOND] {
        end_of_lease(counts(ends), rule, lease).await?;
    }
    for used in [2, 0, 6] {
        settle(counts("a settled hold is charged the cost that was used, from then on"), rule, used).await?;
    }
    settle_above(counts("a cost above the held one is charged, too"), rule).await?;
    renew(counts("a renewed hold lasts one lease from then on"), rule).await?;
    renew_late(counts("a hold that is gone is not renewed"), rule).await?;
    renew_together(counts("holds that are renewed together are renewed like each alone"), rule).await?;
    let again = trial("a refused caller who asks again sees the renewal").comparing(Compared::RetryAfter);
    renew_again(again, rule).await?;
    charge_beside_hold(counts("a charge beside a long hold expires as if there were none"), rule).await?;
    settle_late(counts("a late settlement charges the cost that was used, and no more"), rule).await?;
    let twice = "a retried settlement is charged once, whichever attempt arrives first";
    settle_twice(trial(twice).comparing(Compared::RetryAfter), rule).await?;
    let turn = trial("an exclusive hold waits until nothing else is held").comparing(Compared::RetryAfter);
    exclusive(turn, rule).await?;
    refund_held(counts("a refunded hold is available again, once"), rule).await?;
    partial(counts("a partial hold takes what remains"), rule).await?;
    held_by_others(trial("a refusal says how much others hold, and whether the cost would fit without"), rule).await?;
    let plain = |other: &&Algorithm| {
        let Capabilities { stands_alone, holds, .. } = capabilities(**other);
        !stands_alone && holds != HoldSupport::Always
    };
    if let Some(&other) = algorithms.iter().find(plain) {
        held_with(trial("a request makes all of its holds and charges, or none"), rule, rule_by("other", other))
            .await?;
    }
    Ok(())
}

/// `SplitMix64` (Steele, Lea and Flood): the same numbers in each run.
struct SplitMix64(u64);

impl SplitMix64 {
    #[allow(clippy::cast_possible_truncation)] // the lower half is enough
    fn numbers(&mut self, count: usize) -> Vec<u32> {
        let mut next = || {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (mixed ^ (mixed >> 31)) as u32
        };
        (0..count).map(|_| next()).collect()
    }
}
