//! The promises, one after the other, the plain ones first: what breaks many is named by the plainest.

use std::time::Duration;

use super::{
    ALGORITHMS, Schedule, Subject,
    trial::{Broken, Compared, Trial},
};
use crate::{
    Algorithm, Rule,
    store::{Charges, Request},
};

type Outcome = Result<(), Broken>;

const MILLISECOND: Duration = Duration::from_millis(1);
const COUNT: u64 = 10;

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
    let trial = |promise: &str| Trial::new(promise, &stores);
    let counts = |promise: &str| trial(promise).comparing(Compared::Counts);
    for &algorithm in algorithms {
        let rule = rule("item", algorithm);
        unused(counts("a counter that nobody used has its whole limit"), rule).await?;
        cost(counts("a cost of n takes n"), rule).await?;
        instant(counts("calls in the same instant all count"), rule).await?;
        refusal(counts("a refusal takes nothing"), rule).await?;
        look(counts("a request that does not consume takes nothing"), rule).await?;
        cost_of_none(counts("a cost of 0 always fits, and takes nothing"), rule).await?;
        others(counts("other keys, periods and algorithms have counters of their own"), rule, algorithms).await?;
        batch(counts("each request of a batch is decided on its own"), rule).await?;
        batch_of_one_counter(counts("each request of a batch sees what the others took"), rule).await?;
        period(counts("a call counts as long as its algorithm says, and no call makes another count longer"), rule)
            .await?;
        for cost in [1, rule.limit().div_ceil(2), rule.limit()] {
            let trial = trial("after `retry_after` a cost is granted, and not a millisecond before");
            retry(trial.comparing(Compared::RetryAfter), rule, cost).await?;
        }
        let whole = trial("after `reset_after` all of the limit is there, and not a millisecond before");
        reset_after(whole.comparing(Compared::ResetAfter), rule).await?;
        if let Algorithm::LeakyBucket { .. } = algorithm {
            slots(trial("each call has a slot of its own, one period / count after the other"), rule).await?;
            longest_wait(trial("a slot later than `longest_wait` is refused"), rule).await?;
        }
        give_back(trial("what is given back is there again"), rule).await?;
        give_back_late(trial("what no longer counts is not given back, and no later window is credited"), rule).await?;
        reset(trial("a counter that was reset is as one that nobody used"), rule).await?;
        change(trial("a changed count, burst or queue acts on the next call"), rule).await?;
        crowd(trial("as many as fit are granted, however many call at once"), rule).await?;
        if !matches!(algorithm, Algorithm::LeakyBucket { .. }) {
            several(trial("all charges of a request are made, or none"), rule).await?;
            crowd_of_several(trial("all charges of a request are made, or none, however many call at once"), rule)
                .await?;
        }
    }
    let mut random = Random(1);
    for _ in 0..20 * algorithms.len() {
        let (rules, steps) = (random.numbers(16), (0..40).map(|_| random.numbers(24)).collect::<Vec<_>>());
        let schedule = Schedule::new(algorithms, &rules, &steps, false);
        schedule.run(trial("every answer follows from the calls before it")).await?;
    }
    let is_given = |other: &Algorithm| algorithms.iter().any(|given| given.tag().name == other.tag().name);
    for &algorithm in ALGORITHMS.iter().filter(|algorithm| !is_given(algorithm)) {
        trial("an algorithm that the store does not have is `misconfigured`")
            .refuses_to_know(&rule("item", algorithm))
            .await?;
    }
    Ok(())
}

fn rule(prefix: &'static str, algorithm: Algorithm) -> Rule {
    let buckets = if let Algorithm::SlidingWindow { buckets } = algorithm { buckets } else { 1 };
    let period = Duration::from_millis(60_000_u64.next_multiple_of(buckets));
    Rule::new(prefix, COUNT, period).algorithm(algorithm)
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
    let longer = Rule::new(rule.prefix(), COUNT, 2 * rule.period()).algorithm(rule.counted_by());
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
    let other = self::rule("other", rule.counted_by());
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
    trial.give_back(grant).await?;
    trial.look(&rule, 0, 1).await?;
    trial.look(&other, 0, 1).await.map(drop)
}

async fn give_back(mut trial: Trial<'_>, rule: Rule) -> Outcome {
    for cost in [1, rule.limit().div_ceil(2), rule.limit()] {
        trial.take(&rule, 0, cost).await?;
        let grant = trial.granted(0).expect("it fits");
        trial.give_back(grant).await?;
        trial.look(&rule, 0, rule.limit()).await?;
    }
    // Some time later, and while another one counts.
    for pause in [rule.period() / 50, rule.period() / 7 * 2] {
        for _ in 0..2 {
            trial.take(&rule, 0, rule.limit().div_ceil(3)).await?;
            trial.pass(Duration::from_millis(u64::try_from(pause.as_millis()).expect("a minute")));
        }
        while let Some(grant) = trial.granted(0) {
            trial.give_back(grant).await?;
            trial.look(&rule, 0, 1).await?;
        }
    }
    trial.take(&rule, 0, 1).await.map(drop)
}

async fn give_back_late(mut trial: Trial<'_>, rule: Rule) -> Outcome {
    let third = Duration::from_millis(rule.period_ms() / 3);
    for (key, pause) in
        [2 * third, rule.period().saturating_sub(MILLISECOND), rule.period(), rule.period() + third].iter().enumerate()
    {
        let key = key as u64;
        trial.take(&rule, key, rule.limit()).await?;
        let grant = trial.granted(0).expect("it fits");
        trial.pass(*pause);
        trial.take(&rule, key, 1).await?;
        trial.give_back(grant).await?;
        trial.look(&rule, key, 1).await?;
    }
    // Not while nothing counts either.
    trial.pass(3 * rule.period() + third);
    trial.take(&rule, 9, rule.limit()).await?;
    let grant = trial.granted(0).expect("it fits");
    trial.pass(trial.reset_after);
    trial.give_back(grant).await?;
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
    if let Algorithm::FixedWindow { .. } | Algorithm::SlidingLog = rule.counted_by() {
        trial.give_back(old).await?;
    }
    trial.look(&rule, 0, 1).await.map(drop)
}

async fn change(mut trial: Trial<'_>, rule: Rule) -> Outcome {
    let changed = |count, limit| {
        let algorithm = sized(rule.prefix(), rule, limit).counted_by();
        Rule::new(rule.prefix(), count, rule.period()).algorithm(algorithm)
    };
    trial.take(&rule, 0, rule.limit()).await?;
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
    let algorithm = match rule.counted_by() {
        Algorithm::TokenBucket { refill, .. } => Algorithm::TokenBucket { burst: limit, refill },
        Algorithm::LeakyBucket { .. } => Algorithm::LeakyBucket { queue: limit - 1 },
        algorithm => algorithm,
    };
    Rule::new(prefix, limit, rule.period()).algorithm(algorithm)
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
