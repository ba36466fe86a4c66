//! The promises, one after the other, the plain ones first: what breaks many is named by the plainest.

use std::time::Duration;

use super::{
    schedule::Schedule,
    subject::{ALGORITHMS, Subject},
    trial::{Broken, Compared, Trial},
};
use crate::{
    Algorithm, Rule,
    store::{Charge, Charges, Hold, Request},
};

type Outcome = Result<(), Broken>;

const MILLISECOND: Duration = Duration::from_millis(1);
const COUNT: u64 = 10;
/// Shorter and longer than a period.
const LEASE: Duration = Duration::from_secs(20);
const LONG_LEASE: Duration = Duration::from_secs(150);

/// Checks that a store keeps the promises of [`Store`](crate::Store), for these algorithms, and that it refuses the others.
///
/// See [the module](super) for how to call it.
///
/// # Panics
///
/// When the store breaks a promise. The message says which one, what was asked before, and what came instead of what.
pub async fn check(subject: &impl Subject, algorithms: &[Algorithm]) {
    assert!(!algorithms.is_empty(), "no algorithm is given, so there is nothing to check");
    // Whole milliseconds are all that is asked for.
    let beyond = subject.now().subsec_nanos() % 1_000_000;
    if beyond > 0 {
        subject.advance(MILLISECOND.saturating_sub(Duration::from_nanos(beyond.into())));
    }
    if let Err(broken) = check_all(subject, algorithms).await {
        panic!("{broken}");
    }
}

async fn check_all(subject: &dyn Subject, algorithms: &[Algorithm]) -> Outcome {
    let stores = [("the store", subject)];
    let supports_holds = subject.store().supports_holds();
    // Nobody asks a store for places that can't hold them.
    let algorithms: Vec<_> =
        algorithms.iter().copied().filter(|algorithm| supports_holds || *algorithm != Algorithm::Concurrent).collect();
    for &algorithm in &algorithms {
        let rule = rule("item", algorithm);
        check_charges(&stores, rule, &algorithms, None).await?;
        if supports_holds && matches!(algorithm, Algorithm::SlidingLog | Algorithm::Concurrent) {
            check_holds(&stores, rule, &algorithms).await?;
        }
        if supports_holds && algorithm == Algorithm::SlidingLog {
            check_charges(&stores, rule, &algorithms, Some(LEASE)).await?;
        }
    }
    let trial = |promise: &str| Trial::new(promise, &stores);
    let mut random = Random(1);
    for _ in 0..20 * algorithms.len() {
        let (rules, steps) = (random.numbers(16), (0..40).map(|_| random.numbers(40)).collect::<Vec<_>>());
        let schedule = Schedule::new(&algorithms, &rules, &steps, false);
        let schedule = if supports_holds { schedule } else { schedule.without_holds() };
        schedule.run(trial("every answer follows from the calls before it")).await?;
    }
    let is_given = |other: &Algorithm| algorithms.iter().any(|given| given.tag().name == other.tag().name);
    for &algorithm in ALGORITHMS.iter().filter(|algorithm| !is_given(algorithm)) {
        if supports_holds || algorithm != Algorithm::Concurrent {
            trial("an algorithm that the store does not have is `misconfigured`")
                .refuses_to_know(&rule("item", algorithm))
                .await?;
        }
    }
    Ok(())
}

/// What holds of all charges. With a lease, those to logs are held, and nobody settles them.
async fn check_charges(
    stores: &[(&str, &dyn Subject)],
    rule: Rule,
    algorithms: &[Algorithm],
    lease: Option<Duration>,
) -> Outcome {
    let of = if lease.is_some() { "of charges that are held: " } else { "" };
    let trial = |promise: &str| Trial::new(format!("{of}{promise}"), stores).holding(lease);
    let counts = |promise: &str| trial(promise).comparing(Compared::Counts);
    unused(counts("a counter that nobody used has its whole limit"), rule).await?;
    cost(counts("a cost of n takes n"), rule).await?;
    instant(counts("calls in the same instant all count"), rule).await?;
    refusal(counts("a refusal takes nothing"), rule).await?;
    look(counts("a request that does not consume takes nothing"), rule).await?;
    cost_of_none(counts("a cost of 0 always fits, and takes nothing"), rule).await?;
    others(counts("other keys, periods and algorithms have counters of their own"), rule, algorithms).await?;
    batch(counts("each request of a batch is decided on its own"), rule).await?;
    batch_of_one_counter(counts("each request of a batch sees what the others took"), rule).await?;
    period(counts("a call counts as long as its algorithm says, and no call makes another count longer"), rule).await?;
    for cost in [1, rule.limit().div_ceil(2), rule.limit()] {
        let trial = trial("after `retry_after` a cost is granted, and not a millisecond before");
        retry(trial.comparing(Compared::RetryAfter), rule, cost).await?;
    }
    let whole = trial("after `reset_after` all of the limit is there, and not a millisecond before");
    reset_after(whole.comparing(Compared::ResetAfter), rule).await?;
    if let Algorithm::LeakyBucket { .. } = rule.algorithm() {
        slots(trial("each call has a slot of its own, one period / count after the other"), rule).await?;
        longest_wait(trial("a slot later than `longest_wait` is refused"), rule).await?;
    }
    refund(trial("what is refunded is there again"), rule).await?;
    refund_late(trial("what no longer counts is not refunded, and no later window is credited"), rule).await?;
    reset(trial("a counter that was reset is as one that nobody used"), rule).await?;
    change(trial("a changed count, burst or queue acts on the next call"), rule).await?;
    crowd(trial("as many as fit are granted, however many call at once"), rule).await?;
    if !matches!(rule.algorithm(), Algorithm::LeakyBucket { .. }) {
        several(trial("all charges of a request are made, or none"), rule).await?;
        crowd_of_several(trial("all charges of a request are made, or none, however many call at once"), rule).await?;
    }
    Ok(())
}

/// What is asked of a log whose charges are held, and of places.
async fn check_holds(stores: &[(&str, &dyn Subject)], rule: Rule, algorithms: &[Algorithm]) -> Outcome {
    let trial = |promise: &str| Trial::new(promise, stores);
    let counts = |promise: &str| trial(promise).comparing(Compared::Counts);
    held(counts("what is held counts"), rule).await?;
    let ends = "what nobody settles is a charge when its lease is over, and a place is free";
    for lease in [LEASE, LONG_LEASE, MILLISECOND] {
        end_of_lease(counts(ends), rule, lease).await?;
    }
    for used in [2, 0, 6] {
        settle(counts("what is settled is charged as much as was used, from then on"), rule, used).await?;
    }
    settle_above(counts("what was used above what was held is charged, too"), rule).await?;
    renew(counts("what is renewed is held for one lease from then on"), rule).await?;
    renew_late(counts("what is gone is not renewed"), rule).await?;
    renew_together(counts("of those that are renewed together each is what it is alone"), rule).await?;
    let known = trial("who asks again is told of what was renewed meanwhile").comparing(Compared::RetryAfter);
    renew_known(known, rule).await?;
    beside(counts("what is charged beside what is held for long counts no longer for that"), rule).await?;
    settle_late(counts("what is settled late is charged as much as was used, and no more"), rule).await?;
    let twice = "a settlement that is sent again is charged once, whichever of the two arrives first";
    settle_twice(trial(twice).comparing(Compared::RetryAfter), rule).await?;
    let turn = trial("what is held alone waits until nothing else is held").comparing(Compared::RetryAfter);
    alone(turn, rule).await?;
    refund_held(counts("what is held and refunded is there again, once"), rule).await?;
    partial(counts("what is held as far as it goes is what remains"), rule).await?;
    in_the_way(trial("a refusal says how much is held, and whether the cost would fit without"), rule).await?;
    let plain = |other: &&Algorithm| !matches!(other, Algorithm::LeakyBucket { .. } | Algorithm::Concurrent);
    if let Some(&other) = algorithms.iter().find(plain) {
        held_with(trial("a request holds and charges all of it, or nothing"), rule, self::rule("other", other)).await?;
    }
    Ok(())
}

fn rule(prefix: &'static str, algorithm: Algorithm) -> Rule {
    let buckets = if let Algorithm::SlidingWindow { buckets } = algorithm { buckets } else { 1 };
    let period = Duration::from_millis(60_000_u64.next_multiple_of(buckets));
    Rule::new(prefix, COUNT, period).with_algorithm(algorithm)
}

async fn unused(mut trial: Trial<'_>, rule: Rule) -> Outcome {
    trial.take(&rule, 0, 1).await.map(drop)
}

async fn cost(mut trial: Trial<'_>, rule: Rule) -> Outcome {
    let half = rule.limit().div_ceil(2);
    trial.take(&rule, 0, half).await?;
    trial.pass(MILLISECOND);
    trial.take(&rule, 0, rule.limit() - half).await?;
    trial.take(&rule, 0, 1).await.map(drop)
}

async fn instant(mut trial: Trial<'_>, rule: Rule) -> Outcome {
    for _ in 0..=rule.limit() {
        trial.take(&rule, 0, 1).await?;
    }
    Ok(())
}

async fn refusal(mut trial: Trial<'_>, rule: Rule) -> Outcome {
    trial.take(&rule, 0, 1).await?;
    for _ in 0..3 {
        trial.take(&rule, 0, rule.limit()).await?;
    }
    trial.take(&rule, 0, rule.limit() - 1).await?;
    for _ in 0..3 {
        trial.take(&rule, 0, 1).await?;
        trial.pass(MILLISECOND);
    }
    trial.look(&rule, 0, 1).await.map(drop)
}

async fn look(mut trial: Trial<'_>, rule: Rule) -> Outcome {
    for _ in 0..2 {
        for cost in [1, rule.limit(), 0] {
            trial.look(&rule, 0, cost).await?;
        }
    }
    trial.take(&rule, 0, 1).await?;
    for _ in 0..2 {
        for cost in [1, rule.limit(), 0] {
            trial.look(&rule, 0, cost).await?;
        }
        trial.pass(MILLISECOND);
    }
    trial.take(&rule, 0, rule.limit() - 1).await.map(drop)
}

async fn cost_of_none(mut trial: Trial<'_>, rule: Rule) -> Outcome {
    trial.take(&rule, 0, 0).await?;
    trial.take(&rule, 0, rule.limit()).await?;
    for _ in 0..2 {
        trial.take(&rule, 0, 0).await?;
        trial.look(&rule, 0, 0).await?;
        trial.pass(MILLISECOND);
    }
    trial.look(&rule, 0, 1).await.map(drop)
}

async fn others(mut trial: Trial<'_>, rule: Rule, algorithms: &[Algorithm]) -> Outcome {
    trial.take(&rule, 0, rule.limit()).await?;
    trial.take(&rule, 1, 1).await?;
    let longer = Rule::new(rule.prefix(), COUNT, 2 * rule.period()).with_algorithm(rule.algorithm());
    trial.take(&longer, 0, 1).await?;
    let mut used = vec![trial.charge(&rule, 0, 1).counter];
    for other in algorithms.iter().map(|&other| self::rule(rule.prefix(), other)) {
        let counter = trial.charge(&other, 0, 1).counter;
        if !used.contains(&counter) {
            used.push(counter);
            trial.take(&other, 0, 1).await?;
        }
    }
    trial.look(&rule, 0, 1).await?;
    trial.look(&rule, 1, rule.limit()).await?;
    trial.look(&longer, 0, longer.limit()).await.map(drop)
}

async fn batch(mut trial: Trial<'_>, rule: Rule) -> Outcome {
    trial.take(&rule, 0, rule.limit()).await?;
    let request = |key, cost, consume| Request::new(trial.charge(&rule, key, cost), consume);
    let requests = vec![
        request(1, 1, true),
        request(0, 1, true),
        request(2, rule.limit(), true),
        request(3, 1, false),
        request(4, 0, true),
    ];
    trial.ask_all(requests).await?;
    for key in 0..5 {
        trial.look(&rule, key, 1).await?;
    }
    trial.ask_all(vec![]).await.map(drop)
}

async fn batch_of_one_counter(mut trial: Trial<'_>, rule: Rule) -> Outcome {
    let calls = rule.limit() + 3;
    trial.take_many(&[rule], calls, true).await?;
    trial.look(&rule, 0, 1).await.map(drop)
}

/// Calls and refusals over two and a half periods.
async fn period(mut trial: Trial<'_>, rule: Rule) -> Outcome {
    trial.take(&rule, 0, rule.limit().div_ceil(2)).await?;
    for step in 0..24 {
        trial.pass(rule.period() / 10 + MILLISECOND * (step % 3));
        trial.take(&rule, 0, 1).await?;
        trial.take(&rule, 0, rule.limit()).await?;
    }
    // Half open: over at its end.
    trial.take(&rule, 1, rule.limit()).await?;
    trial.pass(rule.period().saturating_sub(MILLISECOND));
    trial.take(&rule, 1, 1).await?;
    trial.pass(MILLISECOND);
    trial.take(&rule, 1, rule.limit()).await.map(drop)
}

/// Full at different times, and empty again.
async fn fill(trial: &mut Trial<'_>, rule: &Rule) -> Outcome {
    trial.pass(Duration::from_millis(rule.period_ms() / 3 + 7));
    for cost in [rule.limit() / 2, rule.limit() / 4, rule.limit() - rule.limit() / 2 - rule.limit() / 4] {
        trial.take(rule, 0, cost).await?;
        trial.pass(Duration::from_millis(rule.period_ms() / 50));
    }
    Ok(())
}

async fn retry(mut trial: Trial<'_>, rule: Rule, cost: u64) -> Outcome {
    fill(&mut trial, &rule).await?;
    for _ in 0..3 {
        if trial.take(&rule, 0, cost).await?.outcome == Ok(true) {
            continue;
        }
        trial.pass(trial.retry_after.saturating_sub(MILLISECOND));
        trial.take(&rule, 0, cost).await?;
        trial.pass(MILLISECOND);
        trial.take(&rule, 0, cost).await?;
    }
    Ok(())
}

async fn reset_after(mut trial: Trial<'_>, rule: Rule) -> Outcome {
    fill(&mut trial, &rule).await?;
    trial.look(&rule, 0, 1).await?;
    trial.pass(trial.reset_after.saturating_sub(MILLISECOND));
    trial.look(&rule, 0, rule.limit()).await?;
    trial.pass(MILLISECOND);
    trial.look(&rule, 0, rule.limit()).await.map(drop)
}

async fn slots(mut trial: Trial<'_>, rule: Rule) -> Outcome {
    for step in 0..4 * rule.limit() {
        trial.take(&rule, 0, 1 + step % 2 * u64::from(rule.limit() > 1)).await?;
        trial.pass(Duration::from_millis(rule.period_ms() / COUNT * 4 / 5));
    }
    Ok(())
}

async fn longest_wait(mut trial: Trial<'_>, rule: Rule) -> Outcome {
    let spacing = rule.period() / u32::try_from(COUNT).expect("a small number");
    for wait in [Duration::ZERO, spacing.saturating_sub(MILLISECOND), spacing, 2 * spacing] {
        for consume in [false, true] {
            let mut charge = trial.charge(&rule, 0, 1);
            charge.longest_wait = wait;
            trial.ask(Request::new(charge, consume)).await?;
        }
        trial.pass(MILLISECOND);
    }
    Ok(())
}

async fn several(mut trial: Trial<'_>, rule: Rule) -> Outcome {
    let other = self::rule("other", rule.algorithm());
    trial.take(&other, 0, 1).await?;
    let both = |trial: &Trial<'_>, rules: [(&Rule, u64); 2]| {
        let mut charges = Charges::default();
        for (rule, cost) in rules {
            charges.push(trial.charge(rule, 0, cost));
        }
        charges
    };
    for consume in [false, true] {
        // The second does not fit, then the first.
        let mut charges = both(&trial, [(&rule, 1), (&other, other.limit())]);
        for _ in 0..2 {
            trial.ask(Request::new(charges.clone(), consume)).await?;
            charges = both(&trial, [(&other, other.limit()), (&rule, 1)]);
        }
        trial.look(&rule, 0, rule.limit()).await?;
        trial.look(&other, 0, 1).await?;
    }
    let charges = both(&trial, [(&rule, rule.limit()), (&other, other.limit() - 1)]);
    for _ in 0..2 {
        trial.ask(Request::new(charges.clone(), true)).await?;
    }
    let grant = trial.granted(0).expect("the first was granted");
    trial.refund(grant).await?;
    trial.look(&rule, 0, 1).await?;
    trial.look(&other, 0, 1).await.map(drop)
}

async fn refund(mut trial: Trial<'_>, rule: Rule) -> Outcome {
    for cost in [1, rule.limit().div_ceil(2), rule.limit()] {
        trial.take(&rule, 0, cost).await?;
        let grant = trial.granted(0).expect("it fits");
        trial.refund(grant).await?;
        trial.look(&rule, 0, rule.limit()).await?;
    }
    // Some time later, and while another one counts.
    for pause in [rule.period() / 50, rule.period() / 7 * 2] {
        for _ in 0..2 {
            trial.take(&rule, 0, rule.limit().div_ceil(3)).await?;
            trial.pass(Duration::from_millis(u64::try_from(pause.as_millis()).expect("a minute")));
        }
        while let Some(grant) = trial.granted(0) {
            trial.refund(grant).await?;
            trial.look(&rule, 0, 1).await?;
        }
    }
    trial.take(&rule, 0, 1).await.map(drop)
}

async fn refund_late(mut trial: Trial<'_>, rule: Rule) -> Outcome {
    let third = Duration::from_millis(rule.period_ms() / 3);
    for (key, pause) in
        [2 * third, rule.period().saturating_sub(MILLISECOND), rule.period(), rule.period() + third].iter().enumerate()
    {
        let key = key as u64;
        trial.take(&rule, key, rule.limit()).await?;
        let grant = trial.granted(0).expect("it fits");
        trial.pass(*pause);
        trial.take(&rule, key, 1).await?;
        trial.refund(grant).await?;
        trial.look(&rule, key, 1).await?;
    }
    // Not while nothing counts either.
    trial.pass(3 * rule.period() + third);
    trial.take(&rule, 9, rule.limit()).await?;
    let grant = trial.granted(0).expect("it fits");
    trial.pass(trial.reset_after);
    trial.refund(grant).await?;
    trial.take(&rule, 9, rule.limit()).await.map(drop)
}

async fn reset(mut trial: Trial<'_>, rule: Rule) -> Outcome {
    trial.reset(&rule, 0).await?;
    trial.take(&rule, 0, rule.limit()).await?;
    let old = trial.granted(0).expect("it fits");
    trial.take(&rule, 1, 1).await?;
    trial.pass(MILLISECOND);
    trial.reset(&rule, 0).await?;
    trial.look(&rule, 0, 1).await?;
    trial.look(&rule, 1, 1).await?;
    // What is charged in the instant of a reset is not told apart from what was charged before.
    trial.pass(MILLISECOND);
    trial.take(&rule, 0, 1).await?;
    if let Algorithm::FixedWindow { .. } | Algorithm::SlidingLog | Algorithm::Concurrent = rule.algorithm() {
        trial.refund(old).await?;
    }
    trial.look(&rule, 0, 1).await.map(drop)
}

async fn change(mut trial: Trial<'_>, rule: Rule) -> Outcome {
    let changed = |count, limit| {
        let algorithm = sized(rule.prefix(), rule, limit).algorithm();
        Rule::new(rule.prefix(), count, rule.period()).with_algorithm(algorithm)
    };
    // One after the other, so that not all of it ends at once.
    trial.take(&rule, 0, rule.limit().div_ceil(2)).await?;
    trial.pass(Duration::from_millis(rule.period_ms() / 50));
    trial.take(&rule, 0, rule.limit() / 2).await?;
    for (count, size) in [(2 * COUNT, 9), (3, 9), (COUNT, 2), (COUNT, 30), (0, 30), (40, 30)] {
        let changed = changed(count, size);
        for cost in [0, 1, changed.limit()] {
            trial.look(&changed, 0, cost.min(changed.limit())).await?;
        }
        trial.take(&changed, 0, changed.limit().min(1)).await?;
        trial.pass(Duration::from_millis(rule.period_ms() / 9));
    }
    trial.look(&rule, 0, 1).await.map(drop)
}

async fn held(mut trial: Trial<'_>, rule: Rule) -> Outcome {
    trial.hold(&rule, 0, 6, Hold::new(LEASE)).await?;
    trial.take(&rule, 0, 5).await?;
    trial.hold(&rule, 0, 5, Hold::new(LEASE)).await?;
    trial.take(&rule, 0, 3).await?;
    trial.hold(&rule, 0, 1, Hold::new(LEASE)).await?;
    trial.pass(MILLISECOND);
    trial.look(&rule, 0, 1).await.map(drop)
}

async fn end_of_lease(mut trial: Trial<'_>, rule: Rule, lease: Duration) -> Outcome {
    trial.hold(&rule, 0, 6, Hold::new(lease)).await?;
    for time in [lease, rule.period()] {
        trial.pass(time.saturating_sub(MILLISECOND));
        trial.look(&rule, 0, 5).await?;
        trial.pass(MILLISECOND);
        trial.look(&rule, 0, 5).await?;
    }
    trial.take(&rule, 0, rule.limit()).await.map(drop)
}

async fn settle(mut trial: Trial<'_>, rule: Rule, used: u64) -> Outcome {
    trial.hold(&rule, 0, 6, Hold::new(LEASE)).await?;
    let grant = trial.held(0).expect("it fits");
    trial.pass(LEASE / 2);
    trial.settle(&grant, |_| used).await?;
    trial.look(&rule, 0, rule.limit()).await?;
    trial.pass(rule.period().saturating_sub(MILLISECOND));
    trial.look(&rule, 0, rule.limit()).await?;
    trial.pass(MILLISECOND);
    trial.take(&rule, 0, rule.limit()).await.map(drop)
}

async fn settle_above(mut trial: Trial<'_>, rule: Rule) -> Outcome {
    for used in [5, 3, 100] {
        trial.hold(&rule, 0, 2, Hold::new(LEASE)).await?;
        let grant = trial.held(0).expect("it fits");
        trial.pass(MILLISECOND);
        trial.settle(&grant, |_| used).await?;
        trial.look(&rule, 0, 1).await?;
    }
    // Then it is forgotten as what was granted is.
    for time in [rule.period().saturating_sub(2 * MILLISECOND), MILLISECOND, MILLISECOND] {
        trial.pass(time);
        trial.look(&rule, 0, rule.limit()).await?;
    }
    Ok(())
}

async fn renew(mut trial: Trial<'_>, rule: Rule) -> Outcome {
    trial.hold(&rule, 0, 6, Hold::new(LEASE)).await?;
    trial.hold(&rule, 0, 2, Hold::new(LEASE)).await?;
    let renewed = trial.held(1).expect("it fits");
    for _ in 0..3 {
        trial.pass(LEASE.saturating_sub(MILLISECOND));
        trial.renew(&renewed).await?;
        trial.look(&rule, 0, 5).await?;
    }
    for time in [LEASE, rule.period()] {
        trial.pass(time.saturating_sub(MILLISECOND));
        trial.look(&rule, 0, 5).await?;
        trial.pass(MILLISECOND);
        trial.look(&rule, 0, 5).await?;
    }
    Ok(())
}

/// With different leases, and one of them settled before.
async fn renew_together(mut trial: Trial<'_>, rule: Rule) -> Outcome {
    let mut grants = Vec::new();
    for leases in [3, 1, 4, 2, 1] {
        trial.hold(&rule, 0, 1, Hold::new(leases * LEASE)).await?;
        grants.push(trial.held(0).expect("it fits"));
    }
    trial.hold(&rule, 0, 1, Hold::new(2 * LEASE)).await?;
    trial.settle(&grants[3], |used| used).await?;
    trial.pass(LEASE.saturating_sub(MILLISECOND));
    trial.renew_together(&grants).await?;
    for time in [LEASE, LEASE, LEASE, LEASE, rule.period()] {
        trial.pass(time.saturating_sub(MILLISECOND));
        trial.look(&rule, 0, rule.limit()).await?;
        trial.pass(MILLISECOND);
        trial.look(&rule, 0, rule.limit()).await?;
    }
    Ok(())
}

async fn renew_late(mut trial: Trial<'_>, rule: Rule) -> Outcome {
    for (key, pause) in [LEASE, LEASE + MILLISECOND, LEASE + rule.period()].into_iter().enumerate() {
        let key = key as u64;
        trial.hold(&rule, key, 6, Hold::new(LEASE)).await?;
        let grant = trial.held(0).expect("it fits");
        trial.pass(pause);
        // A log can renew what has become a charge, as long as it counts.
        trial.renew(&grant).await?;
        trial.look(&rule, key, 5).await?;
        trial.pass(LEASE);
        trial.look(&rule, key, 5).await?;
    }
    trial.hold(&rule, 9, 6, Hold::new(LEASE)).await?;
    let grant = trial.held(0).expect("it fits");
    trial.settle(&grant, |_| 1).await?;
    trial.renew(&grant).await?;
    trial.look(&rule, 9, rule.limit()).await.map(drop)
}

/// What has become a charge, and is held again: who was refused by it is refused for longer.
async fn renew_known(mut trial: Trial<'_>, rule: Rule) -> Outcome {
    trial.hold(&rule, 0, rule.limit(), Hold::new(LEASE)).await?;
    let grant = trial.held(0).expect("it fits");
    for _ in 0..3 {
        trial.pass(LEASE + MILLISECOND);
        trial.take(&rule, 0, 1).await?;
        trial.pass(MILLISECOND);
        trial.renew(&grant).await?;
        trial.take(&rule, 0, 1).await?;
    }
    Ok(())
}

/// So long that a store which keeps times in a few bytes may take an old one for a new one.
async fn beside(mut trial: Trial<'_>, rule: Rule) -> Outcome {
    trial.hold(&rule, 0, 1, Hold::new(100 * rule.period())).await?;
    trial.take(&rule, 0, 5).await?;
    let charged = trial.granted(0).expect("it fits");
    trial.pass(rule.period());
    for _ in 0..110 {
        trial.pass(rule.period() * 9 / 10);
        trial.look(&rule, 0, 5).await?;
        trial.refund(charged.clone()).await?;
    }
    trial.look(&rule, 0, 5).await.map(drop)
}

async fn settle_late(mut trial: Trial<'_>, rule: Rule) -> Outcome {
    for (key, pause) in
        [LEASE, LEASE + rule.period().saturating_sub(MILLISECOND), LEASE + rule.period()].into_iter().enumerate()
    {
        let key = key as u64;
        trial.hold(&rule, key, 6, Hold::new(LEASE)).await?;
        let grant = trial.held(0).expect("it fits");
        trial.pass(pause);
        trial.look(&rule, key, rule.limit()).await?;
        trial.settle(&grant, |_| 2).await?;
        trial.look(&rule, key, rule.limit()).await?;
        trial.pass(rule.period().saturating_sub(MILLISECOND));
        trial.look(&rule, key, rule.limit()).await?;
        trial.pass(MILLISECOND);
        trial.look(&rule, key, rule.limit()).await?;
    }
    Ok(())
}

async fn settle_twice(mut trial: Trial<'_>, rule: Rule) -> Outcome {
    for (key, pause) in
        [Duration::ZERO, MILLISECOND, LEASE, rule.period(), LEASE + rule.period()].into_iter().enumerate()
    {
        for (key, is_retry_first) in [(2 * key as u64, true), (2 * key as u64 + 1, false)] {
            trial.hold(&rule, key, 4, Hold::new(LEASE)).await?;
            let grant = trial.held(0).expect("it fits");
            for is_retry in [is_retry_first, !is_retry_first, true] {
                if is_retry {
                    trial.settle_again(&grant, |_| 3).await?;
                } else {
                    trial.settle(&grant, |_| 3).await?;
                }
                // Nothing is held any more, and nothing is in the way of others.
                trial.renew(&grant).await?;
                trial.look(&rule, key, rule.limit()).await?;
                trial.hold(&rule, key, 0, Hold { exclusive: true, ..Hold::new(LEASE) }).await?;
                trial.pass(pause);
            }
            trial.hold(&rule, key, 1, Hold { exclusive: true, ..Hold::new(LEASE) }).await?;
        }
    }
    // What was charged when nobody settled it has expired.
    trial.hold(&rule, 99, 4, Hold::new(LEASE)).await?;
    let grant = trial.held(0).expect("it fits");
    trial.pass(LEASE + rule.period());
    trial.settle_again(&grant, |_| 3).await?;
    trial.look(&rule, 99, rule.limit()).await?;
    trial.settle(&grant, |_| 3).await?;
    trial.look(&rule, 99, rule.limit()).await.map(drop)
}

async fn partial(mut trial: Trial<'_>, rule: Rule) -> Outcome {
    let hold = || Hold { allow_partial: true, ..Hold::new(LEASE) };
    trial.hold(&rule, 0, 4, hold()).await?;
    trial.hold(&rule, 0, rule.limit(), hold()).await?;
    trial.hold(&rule, 0, rule.limit(), hold()).await?;
    trial.hold(&rule, 0, 1, hold()).await?;
    trial.hold(&rule, 0, 0, hold()).await?;
    let rest = trial.held(0).expect("some of it fits");
    trial.settle(&rest, |_| 1).await?;
    trial.look(&rule, 0, 1).await?;
    trial.hold(&rule, 0, rule.limit(), hold()).await?;
    let rest = trial.held(0).expect("some of it fits");
    trial.refund(rest).await?;
    trial.look(&rule, 0, 1).await.map(drop)
}

async fn alone(mut trial: Trial<'_>, rule: Rule) -> Outcome {
    if rule.is_concurrent() {
        return Ok(()); // whose holders are together by definition
    }
    let hold = || Hold { exclusive: true, ..Hold::new(LEASE) };
    trial.hold(&rule, 0, 2, hold()).await?;
    trial.hold(&rule, 0, 1, Hold::new(LONG_LEASE)).await?;
    for cost in [1, rule.limit(), 0] {
        trial.hold(&rule, 0, cost, hold()).await?;
    }
    for time in [LEASE, LONG_LEASE.saturating_sub(LEASE + MILLISECOND), MILLISECOND] {
        trial.pass(time);
        trial.hold(&rule, 0, 3, hold()).await?;
    }
    let grant = trial.held(0).expect("it fits");
    trial.hold(&rule, 0, 1, hold()).await?;
    trial.settle(&grant, |_| 1).await?;
    trial.hold(&rule, 0, 1, hold()).await.map(drop)
}

async fn refund_held(mut trial: Trial<'_>, rule: Rule) -> Outcome {
    for (key, pause) in [MILLISECOND, LEASE, LEASE + rule.period()].into_iter().enumerate() {
        let key = key as u64;
        trial.hold(&rule, key, 6, Hold::new(LEASE)).await?;
        let grant = trial.held(0).expect("it fits");
        trial.pass(pause);
        trial.take(&rule, key, 3).await?;
        for _ in 0..2 {
            trial.refund(grant.clone()).await?;
            trial.look(&rule, key, rule.limit()).await?;
        }
    }
    Ok(())
}

async fn in_the_way(mut trial: Trial<'_>, rule: Rule) -> Outcome {
    trial.take(&rule, 0, 2).await?;
    trial.hold(&rule, 0, 4, Hold::new(LEASE)).await?;
    trial.hold(&rule, 0, 2, Hold::new(LONG_LEASE)).await?;
    for pause in [MILLISECOND, LEASE, LONG_LEASE] {
        for cost in [3, 8, 9, rule.limit()] {
            trial.look(&rule, 0, cost).await?;
        }
        trial.hold(&rule, 0, rule.limit(), Hold::new(LEASE)).await?;
        trial.pass(pause);
    }
    // What is held as far as it goes needs but 1.
    for held in [rule.limit() - 1, 1] {
        trial.hold(&rule, 1, held, Hold::new(LEASE)).await?;
        trial.hold(&rule, 1, rule.limit(), Hold { allow_partial: true, ..Hold::new(LEASE) }).await?;
    }
    Ok(())
}

async fn held_with(mut trial: Trial<'_>, rule: Rule, other: Rule) -> Outcome {
    let both = |trial: &Trial<'_>, held, charged| {
        let mut charges = Charges::from(trial.charge(&other, 0, charged));
        charges.push(Charge { hold: Some(Hold::new(LEASE)), ..trial.charge(&rule, 0, held) });
        Request::new(charges, true)
    };
    let limit = other.limit();
    // Both fit, then one of them, then the other.
    for (held, charged) in [(6, 1), (5, 1), (1, limit), (4, limit - 1), (1, 1)] {
        trial.ask(both(&trial, held, charged)).await?;
        trial.look(&rule, 0, 1).await?;
        trial.look(&other, 0, 1).await?;
    }
    let grant = trial.held(0).expect("the last but one was granted");
    trial.refund(grant).await?;
    trial.look(&rule, 0, 1).await?;
    trial.look(&other, 0, 1).await.map(drop)
}

/// Enough calls that some meet.
const MANY: u64 = 120;

async fn crowd(mut trial: Trial<'_>, rule: Rule) -> Outcome {
    let rule = sized("crowd", rule, MANY);
    trial.take_many(&[rule], 3 * MANY, false).await?;
    trial.look(&rule, 0, 1).await.map(drop)
}

async fn crowd_of_several(mut trial: Trial<'_>, rule: Rule) -> Outcome {
    let rules = [sized("crowd one", rule, MANY / 2), sized("crowd two", rule, MANY)];
    trial.take_many(&rules, 2 * MANY, false).await?;
    trial.look(&rules[0], 0, 1).await?;
    trial.look(&rules[1], 0, 1).await.map(drop)
}

/// With another limit.
fn sized(prefix: &'static str, rule: Rule, limit: u64) -> Rule {
    let algorithm = match rule.algorithm() {
        Algorithm::TokenBucket { refill, .. } => Algorithm::TokenBucket { burst: limit, refill },
        Algorithm::LeakyBucket { .. } => Algorithm::LeakyBucket { queue: limit - 1 },
        algorithm => algorithm,
    };
    Rule::new(prefix, limit, rule.period()).with_algorithm(algorithm)
}

/// The same numbers each time: `SplitMix64`, by Steele, Lea and Flood.
struct Random(u64);

impl Random {
    #[allow(clippy::cast_possible_truncation)] // half of it is enough
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
