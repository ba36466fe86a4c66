//! Random steps, derived from plain numbers, so that a property test can shrink them.

use std::time::Duration;

use super::{
    model::Model,
    trial::{Broken, Trial},
};
use crate::{
    Algorithm, Rule,
    algorithm::{HoldSupport, capabilities},
    store::{Charge, Charges, Hold, Request},
};

/// A sequence of steps on the counters of two rules.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// Time of the first step, from the beginning of a period.
    start: Duration,
    /// Also tries cases that the contract leaves open: parts of a millisecond, and refunds of
    /// charges from before a reset.
    strict: bool,
    steps: Vec<Step>,
}

#[derive(Clone, Debug)]
enum Step {
    Pass(Duration),
    PassUntilRetry {
        early: Duration,
    },
    PassUntilReset {
        early: Duration,
    },
    PassLease {
        early: Duration,
    },
    Decide(Vec<RandomRequest>),
    /// Refunds a part, in tenths.
    Refund {
        before_last: usize,
        tenths: u64,
    },
    Renew {
        before_last: usize,
    },
    Settle {
        before_last: usize,
        used: UsedCost,
        is_retry: bool,
        again: bool,
    },
    Reset {
        rule: Rule,
        key: u64,
        return_old: bool,
    },
    Ban {
        rule: Rule,
        key: u64,
        time: Duration,
    },
}

#[derive(Clone, Debug)]
struct RandomRequest {
    charges: Vec<RandomCharge>,
    consume: bool,
    longest_wait: Duration,
}

#[derive(Clone, Debug)]
struct RandomCharge {
    rule: Rule,
    key: u64,
    cost: u64,
    /// The lease of a hold, whether it is partial, and whether it is exclusive.
    hold: Option<(Duration, bool, bool)>,
    settles: bool,
}

/// The cost that was used, in tenths of the held cost, plus some more.
#[derive(Clone, Copy, Debug)]
struct UsedCost {
    tenths: u64,
    more: u64,
}

const KEYS: u64 = 2;
const MILLISECOND: Duration = Duration::from_millis(1);
const DAY_MS: u64 = 86_400_000;
const PERIODS_MS: [u64; 11] = [1000, 1, 7, 60_000, 997, 200_000, 300_000, 3_600_000, DAY_MS, 7 * DAY_MS, 30 * DAY_MS];
const COUNTS: [u64; 10] = [1, 2, 7, 100, 997, 1000, 65_536, 1_000_003, 10_000_000, 999_999_937];
/// Costs used in addition to the held cost, up to more than can be counted.
const USED_MORE: [u64; 8] = [0, 0, 0, 0, 1, 1000, 10_000_001, u64::MAX];
/// The maximum pause: a long queue may take longer than a clock can show.
const LONGEST_PAUSE: Duration = Duration::from_millis(90 * DAY_MS);

impl Schedule {
    /// A schedule with one step per list of numbers. The rules come from `rules`.
    pub fn new(algorithms: &[Algorithm], rules: &[u32], steps: &[Vec<u32>], strict: bool) -> Self {
        let mut draw = Draw(rules.iter());
        let mut rules = ["one", "two"].map(|prefix| draw.rule(prefix, algorithms));
        if draw.below(2) == 1 {
            // The same period, or the nearest valid one.
            let [one, two] = rules;
            rules[1] = fitting("two", two.algorithm(), two.count(), one.period_ms());
        }
        let start = Duration::from_millis(draw.below(rules[0].period_ms()));
        let start = start + Duration::from_micros(draw.below(if strict { 1000 } else { 1 }));
        let steps = steps.iter().filter_map(|numbers| Draw(numbers.iter()).step(&mut rules, strict)).collect();
        Self { start, strict, steps }
    }

    /// The schedule without the denial cache.
    #[must_use]
    pub fn without_denial_cache(mut self) -> Self {
        for step in &mut self.steps {
            match step {
                Step::Decide(requests) => {
                    let charges = requests.iter_mut().flat_map(|request| &mut request.charges);
                    charges.for_each(|one| one.rule = one.rule.with_denial_cache(false));
                }
                Step::Reset { rule, .. } | Step::Ban { rule, .. } => *rule = rule.with_denial_cache(false),
                _ => {}
            }
        }
        self
    }

    /// The schedule for a store without bans.
    #[must_use]
    pub(super) fn without_bans(mut self) -> Self {
        self.steps.retain(|step| !matches!(step, Step::Ban { .. }));
        self
    }

    /// The schedule for a store that may ignore [`Charge::settles`].
    #[must_use]
    pub(super) fn without_settlements(mut self) -> Self {
        for step in &mut self.steps {
            if let Step::Decide(requests) = step {
                requests.iter_mut().flat_map(|request| &mut request.charges).for_each(|one| one.settles = false);
            }
        }
        self
    }

    /// The schedule for a store without holds and semaphores.
    #[must_use]
    pub(super) fn without_holds(mut self) -> Self {
        for step in &mut self.steps {
            if let Step::Decide(requests) = step {
                requests.iter_mut().flat_map(|request| &mut request.charges).for_each(|one| one.hold = None);
            }
        }
        self
    }

    /// Runs all steps, up to the first answer that differs from the model's.
    pub async fn run(&self, mut trial: Trial<'_>) -> Result<(), Broken> {
        trial.pass(self.start);
        for step in &self.steps {
            match step {
                Step::Pass(time) => trial.pass(*time),
                Step::PassUntilRetry { early } => {
                    trial.pass(trial.retry_after.saturating_sub(*early).min(LONGEST_PAUSE));
                }
                Step::PassUntilReset { early } => {
                    trial.pass(trial.reset_after.saturating_sub(*early).min(LONGEST_PAUSE));
                }
                Step::PassLease { early } => trial.pass(trial.lease_of_last_hold().saturating_sub(*early)),
                Step::Decide(random) => {
                    let mut requests: Vec<Request> = Vec::new();
                    for RandomRequest { charges: random, consume, longest_wait } in random {
                        let mut charges = Charges::default();
                        for RandomCharge { rule, key, cost, hold, settles } in random {
                            let hold = hold.map(|(lease, allow_partial, exclusive)| Hold {
                                allow_partial,
                                exclusive,
                                ..Hold::new(lease)
                            });
                            let longest_wait = *longest_wait;
                            let settles = *settles;
                            let charge = trial.new_charge(rule, *key, *cost);
                            charges.push(Charge { longest_wait, hold, settles, ..charge });
                        }
                        let request = Request::new(charges, *consume);
                        // A batch may be decided in any order, so requests for the same counter
                        // have no defined result. (Redis decides those last whose script is not
                        // loaded.)
                        if !requests.iter().any(|other| overlap(other, &request)) {
                            requests.push(request);
                        }
                    }
                    trial.decide_batch(requests).await?;
                }
                Step::Refund { before_last, tenths } => {
                    if let Some(grant) = trial.pop_grant(*before_last).filter(|grant| !trial.may_alias(grant)) {
                        trial.refund(grant.part(*tenths)).await?;
                    }
                }
                Step::Renew { before_last } => {
                    if let Some(grant) = trial.pop_hold(*before_last) {
                        trial.renew(&grant).await?;
                        trial.push_grant(grant);
                    }
                }
                Step::Settle { before_last, used: UsedCost { tenths, more }, is_retry, again } => {
                    if let Some(grant) = trial.pop_hold(*before_last) {
                        let used = |held: u64| (held * tenths / 10).saturating_add(*more);
                        if *is_retry {
                            trial.settle_retry(&grant, used).await?;
                        } else {
                            trial.settle(&grant, used).await?;
                        }
                        if *again {
                            trial.push_grant(grant);
                        }
                    }
                }
                Step::Ban { rule, key, time } => {
                    // A ban lasts at least as long as charges count, which depends on the store, unless
                    // they are kept below it.
                    if !time.is_zero() && !Model::keeps_charges(rule) {
                        trial.reset(rule, *key).await?;
                        trial.forget_grants(rule, *key);
                    }
                    trial.ban(rule, *key, *time).await?;
                    if time.is_zero() {
                        trial.forget_grants(rule, *key);
                        trial.pass(MILLISECOND);
                    }
                }
                Step::Reset { rule, key, return_old } => {
                    trial.reset(rule, *key).await?;
                    if !self.strict && !Model::tells_resets_apart(rule) {
                        trial.forget_grants(rule, *key);
                    }
                    // Charges in the instant of a reset cannot be told from earlier ones.
                    trial.pass(MILLISECOND);
                    if self.strict
                        && *return_old
                        && let Some(old) = trial.pop_grant_to(rule, *key)
                    {
                        trial.charge(rule, *key, rule.limit().min(1)).await?;
                        if !trial.may_alias(&old) {
                            trial.refund(old).await?;
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

fn overlap(one: &Request, other: &Request) -> bool {
    one.charges.iter().any(|one| other.charges.iter().any(|other| one.counter == other.counter))
}

/// A source of random numbers. Zeros when it is exhausted.
struct Draw<'a>(std::slice::Iter<'a, u32>);

impl Draw<'_> {
    fn below(&mut self, bound: u64) -> u64 {
        let number = self.0.next().copied().map_or(0, u64::from);
        number % bound
    }

    fn up_to_ten(&mut self) -> u32 {
        self.0.next().map_or(0, |number| number % 11)
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        let at = self.below(from.len() as u64);
        from[usize::try_from(at).expect("an index")]
    }

    fn count(&mut self) -> u64 {
        match self.below(3) {
            0 => self.below(12),
            _ => self.pick(&COUNTS),
        }
    }

    fn rule(&mut self, prefix: &'static str, algorithms: &[Algorithm]) -> Rule {
        let algorithm = self.pick(algorithms);
        let (count, period_ms) = (self.count(), self.pick(&PERIODS_MS));
        fitting(prefix, self.sized(algorithm, count), count, period_ms)
    }

    /// The algorithm with a burst or a queue below, at or above the count.
    fn sized(&mut self, algorithm: Algorithm, count: u64) -> Algorithm {
        let size = match self.below(6) {
            0 => count,
            1 => 1,
            2 => count / 2,
            3 => count * 2 + 1,
            4 => self.below(12),
            _ => self.count(),
        };
        algorithm.with_largest_cost(size.max(1))
    }

    fn step(&mut self, rules: &mut [Rule; 2], strict: bool) -> Option<Step> {
        let kind = self.below(39);
        let at = usize::from(self.below(2) == 1);
        let (rule, key) = (rules[at], self.below(KEYS));
        let both = [(rule, key), (rules[1 - at], self.below(KEYS))];
        Some(match kind {
            0..=6 => Step::Decide(vec![self.random_request(&both[..1], true, strict)]),
            7..=8 => Step::Decide(vec![self.random_request(&both[..1], false, strict)]),
            9..=10 => Step::Decide(vec![self.random_request(&both, true, strict)]),
            11 => Step::Decide(vec![self.random_request(&both, false, strict)]),
            12..=13 => {
                let count = 2 + self.below(3);
                let mut one_of_many = || {
                    let (rule, key) = (self.pick(&rules[..]), self.below(KEYS));
                    let consume = self.below(4) > 0;
                    self.random_request(&[(rule, key)], consume, strict)
                };
                Step::Decide((0..count).map(|_| one_of_many()).collect())
            }
            14..=20 => self.pause(&rule, strict),
            21..=24 => {
                let before_last = usize::try_from(self.below(4)).expect("an index");
                Step::Refund { before_last, tenths: self.pick(&[10, 9, 5, 1]) }
            }
            25..=26 => Step::Reset { rule, key, return_old: self.below(2) == 1 },
            27..=28 => Step::Renew { before_last: usize::try_from(self.below(3)).expect("an index") },
            29..=32 => {
                let before_last = usize::try_from(self.below(3)).expect("an index");
                let used = UsedCost { tenths: self.pick(&[10, 5, 0, 1, 30]), more: self.pick(&USED_MORE) };
                Step::Settle { before_last, used, again: self.below(4) == 1, is_retry: self.below(3) == 1 }
            }
            36..=38 if rule.supports_bans() => {
                let time = match self.below(4) {
                    0 => Duration::ZERO,
                    1 => rule.period() + 2 * MILLISECOND,
                    2 => self.fine(false) + 2 * MILLISECOND,
                    _ => 3 * rule.period() + 2 * MILLISECOND,
                };
                Step::Ban { rule, key, time }
            }
            _ => {
                let count = if kind < 35 { self.count() } else { rule.count() };
                let algorithm = self.sized(rule.algorithm(), count);
                rules[at] = fitting(rule.prefix(), algorithm, count, rule.period_ms());
                return None;
            }
        })
    }

    fn random_request(&mut self, counters: &[(Rule, u64)], consume: bool, strict: bool) -> RandomRequest {
        let stands_alone = counters.iter().any(|(rule, _)| capabilities(rule.algorithm()).stands_alone);
        let counters = if stands_alone { &counters[..1] } else { counters };
        let charges = counters.iter().map(|&(rule, key)| self.random_charge(rule, key)).collect();
        let rule = &counters[0].0;
        let longest_wait = match if capabilities(rule.algorithm()).has_slots { self.below(4) } else { 0 } {
            0..=1 => Duration::MAX,
            2 => self.fine(strict),
            _ => spacing(rule) * self.up_to_ten(),
        };
        RandomRequest { charges, consume, longest_wait }
    }

    fn random_charge(&mut self, rule: Rule, key: u64) -> RandomCharge {
        let cost = self.cost(rule.limit());
        let holds = capabilities(rule.algorithm()).holds;
        let may_hold = matches!(holds, HoldSupport::Settled | HoldSupport::Always);
        let is_held = may_hold && (self.below(2) == 1 || holds == HoldSupport::Always);
        let hold = is_held.then(|| {
            let (lease, allow_partial) = (self.lease(&rule), self.below(3) == 1);
            (lease, allow_partial, !rule.is_concurrent() && self.below(5) == 1)
        });
        let settles = holds == HoldSupport::Refunded && self.below(2) == 1;
        RandomCharge { rule, key, cost, hold, settles }
    }

    /// A lease that is short or long compared with the period.
    fn lease(&mut self, rule: &Rule) -> Duration {
        let period = rule.period();
        match self.below(6) {
            0 => Duration::from_millis(rule.period_ms().div_ceil(10)),
            1 => period,
            2 => period + self.fine(false),
            3 => 3 * period,
            4 => self.fine(false).max(MILLISECOND),
            _ => Duration::from_secs(30),
        }
    }

    fn cost(&mut self, limit: u64) -> u64 {
        match self.below(8) {
            0..=1 => 1,
            2 => 0,
            3 => self.below(7),
            4 => limit,
            5 => limit / 2 + self.below(3),
            6 => limit / 5,
            _ => limit.saturating_sub(self.below(3)),
        }
        .min(limit)
    }

    fn pause(&mut self, rule: &Rule, strict: bool) -> Step {
        let (period, fine) = (rule.period(), self.fine(strict));
        let early = if self.below(2) == 1 { MILLISECOND } else { Duration::ZERO };
        let part = rule.period_ms().div_ceil(rule.algorithm().key_tag().buckets.unwrap_or(10));
        let part = Duration::from_millis(part);
        let time = match self.below(12) {
            0 => fine,
            1 => part,
            2 => part + fine,
            3 => (part * self.up_to_ten()).saturating_sub(early),
            4 => spacing(rule),
            5 => spacing(rule) * self.up_to_ten() + fine,
            6 => period.saturating_sub(early),
            7 => period + fine,
            8 => return Step::PassUntilRetry { early },
            9 => return Step::PassUntilReset { early },
            _ => return Step::PassLease { early },
        };
        Step::Pass(time.min(3 * period))
    }

    /// A few milliseconds, or microseconds if `strict`.
    fn fine(&mut self, strict: bool) -> Duration {
        if strict { Duration::from_micros(self.below(4000)) } else { Duration::from_millis(self.below(4)) }
    }
}

/// Time in which a cost of 1 comes back.
fn spacing(rule: &Rule) -> Duration {
    Duration::from_millis(rule.period_ms().div_ceil(rule.count().max(1)))
}

/// The rule, or the next smaller one that is valid.
fn fitting(prefix: &'static str, algorithm: Algorithm, count: u64, period_ms: u64) -> Rule {
    let period_ms = match algorithm.key_tag().buckets {
        Some(buckets) => buckets * (period_ms / buckets).max(1),
        _ => period_ms,
    };
    let rule = Rule::new(prefix, count, Duration::from_millis(period_ms)).with_algorithm(algorithm);
    if rule.fault().is_none() {
        return rule;
    }
    let (mut smaller, mut count) = (algorithm, count);
    let number = smaller.size_mut().map_or(&mut count, |(_, size)| size);
    *number /= 2;
    fitting(prefix, smaller, count, period_ms)
}
