//! Memory, Redis and a model that is plainly right, driven through the same random schedules: they decide alike.

use std::cell::Cell;
use std::time::Duration;

use proptest::prelude::*;
use ratelimit_runtime::{Algorithm, Cause, Decision, Key, Limiter, ManualClock, Permit, RequestPerMinute, Rule};
use ratelimit_tests::RedisServer;

use crate::support::{ALIGNED, FIXED, LOG, in_memory, limiter_on};

/// What a call is told.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    Admitted { limit: u64, remaining: u64, reset_after: u64 },
    Refused { rule: &'static str, limit: u64, remaining: u64, retry_after: u64 },
    NeverFits { rule: &'static str, limit: u64 },
    Seen { limit: u64, remaining: u64, reset_after: u64, retry_after: Option<u64> },
    GivenBack(u64),
    Reset,
}

fn ms(duration: Duration) -> u64 {
    assert_eq!(duration.subsec_nanos() % 1_000_000, 0, "{duration:?} is no whole number of milliseconds");
    u64::try_from(duration.as_millis()).unwrap()
}

impl Answer {
    fn of(answer: &Result<Permit, RequestPerMinute>) -> Self {
        match answer {
            Ok(permit) => Self::Admitted {
                limit: permit.limit(),
                remaining: permit.remaining(),
                reset_after: ms(permit.reset_after()),
            },
            Err(refused) if refused.cause() == Cause::NeverFits => {
                assert_eq!(refused.retry_after(), None);
                Self::NeverFits { rule: refused.rule(), limit: refused.limit() }
            }
            Err(refused) => {
                assert_eq!(refused.cause(), Cause::Exceeded, "{refused}");
                Self::Refused {
                    rule: refused.rule(),
                    limit: refused.limit(),
                    remaining: refused.remaining(),
                    retry_after: ms(refused.retry_after().expect("a wait")),
                }
            }
        }
    }

    fn seen(decision: Decision) -> Self {
        Self::Seen {
            limit: decision.limit(),
            remaining: decision.remaining(),
            reset_after: ms(decision.reset_after()),
            retry_after: decision.retry_after().map(ms),
        }
    }
}

/// One counter: every charge it was ever granted, with what is left of it.
#[derive(Debug, Default)]
struct Counter {
    charges: Vec<Charged>,
}

#[derive(Clone, Copy, Debug)]
struct Charged {
    /// Names the charge; never given twice.
    id: usize,
    /// When it no longer counts, in microseconds.
    ends: u64,
    cost: u64,
}

/// What a counter says of a cost.
#[derive(Clone, Copy, Debug)]
struct Said {
    remaining: u64,
    reset_after: u64,
    retry_after: Option<u64>,
}

impl Counter {
    fn counting(&self, now: u64) -> impl Iterator<Item = &Charged> + Clone {
        self.charges.iter().filter(move |charge| charge.ends > now && charge.cost > 0)
    }

    fn used(&self, now: u64) -> u64 {
        self.counting(now).map(|charge| charge.cost).sum()
    }

    /// The algorithms differ in when a charge ends alone. `precise` cuts a time as the algorithm reads its clock.
    fn say(&self, rule: &Rule, precise: u64, cost: u64) -> Said {
        let remaining = rule.count().saturating_sub(self.used(precise));
        let wait = |ends: u64| (ends - precise).div_ceil(1000);
        let ends = self.counting(precise).map(|charge| charge.ends);
        // The shortest wait after which it fits: there is none between two ends.
        let fits_at = |at: u64| self.used(at) + cost <= rule.count();
        let retry_after = (cost > remaining).then(|| ends.clone().filter(|&at| fits_at(at)).map(wait).min());
        Said {
            remaining,
            reset_after: ends.map(wait).max().unwrap_or(0),
            retry_after: retry_after.map(Option::unwrap_or_default),
        }
    }
}

#[derive(Debug, Default)]
struct Model {
    now: u64,
    /// By rule and key.
    counters: Vec<Counter>,
    next_id: usize,
}

/// Counters, and the charges made to them.
type Receipts = Vec<(usize, usize)>;

const KEYS: usize = 2;

impl Model {
    fn new(now: u64, rules: usize) -> Self {
        Self { now, counters: (0..rules * KEYS).map(|_| Counter::default()).collect(), next_id: 0 }
    }

    /// A log counts periods above 200 seconds, and a window any period, in milliseconds.
    fn tick(rule: &Rule) -> u64 {
        let fine = rule.counted_by() == LOG && rule.period() <= Duration::from_secs(200);
        if fine { 1 } else { 1000 }
    }

    fn read(&self, rule: &Rule) -> u64 {
        self.now - self.now % Self::tick(rule)
    }

    fn say(&self, at: usize, rule: &Rule, cost: u64) -> Said {
        self.counters[at].say(rule, self.read(rule), cost)
    }

    fn charge(&mut self, at: usize, rule: &Rule, cost: u64) -> usize {
        let period = ms(rule.period()) * 1000;
        let (read, tick) = (self.read(rule), Self::tick(rule));
        let counter = &mut self.counters[at];
        let window = counter.counting(read).map(|charge| charge.ends).next();
        let ends = match rule.counted_by() {
            // Each charge for itself, from the end of the tick it was made in.
            Algorithm::SlidingLog => self.now.div_ceil(tick) * tick + period,
            _ if window.is_some() => window.unwrap(),
            algorithm if algorithm == ALIGNED => read - read % period + period,
            _ => read + period,
        };
        self.next_id += 1;
        counter.charges.push(Charged { id: self.next_id, ends, cost });
        self.next_id
    }

    /// All or none.
    fn acquire(&mut self, calls: &[(usize, Rule, u64)]) -> (Answer, Receipts) {
        if let Some((_, rule, _)) = calls.iter().find(|(_, rule, cost)| *cost > rule.count()) {
            return (Answer::NeverFits { rule: rule.prefix(), limit: rule.count() }, vec![]);
        }
        let said: Vec<_> = calls.iter().map(|(at, rule, cost)| (self.say(*at, rule, *cost), rule)).collect();
        let refused = said.iter().filter_map(|(said, rule)| Some((said.retry_after?, said.remaining, *rule)));
        if let Some((retry_after, remaining, rule)) = refused.max_by_key(|(wait, ..)| *wait) {
            let (rule, limit) = (rule.prefix(), rule.count());
            return (Answer::Refused { rule, limit, remaining, retry_after }, vec![]);
        }
        let receipts =
            calls.iter().filter(|(.., cost)| *cost > 0).map(|(at, rule, cost)| (*at, self.charge(*at, rule, *cost)));
        let receipts = receipts.collect();
        let after = calls.iter().map(|(at, rule, _)| (self.say(*at, rule, 0), rule.count()));
        // The tightest, and of two as tight the one that takes longer.
        let tightest = after.min_by_key(|(said, _)| (said.remaining, u64::MAX - said.reset_after));
        let (Said { remaining, reset_after, .. }, limit) = tightest.unwrap();
        (Answer::Admitted { limit, remaining, reset_after }, receipts)
    }

    fn give_back(&mut self, receipts: &[(usize, usize)], rules: &[Rule]) -> u64 {
        let mut back = 0;
        for &(at, id) in receipts {
            let read = self.read(&rules[at / KEYS]);
            let charge = self.counters[at].charges.iter_mut().find(|charge| charge.id == id && charge.ends > read);
            back += charge.map_or(0, |charge| std::mem::take(&mut charge.cost));
        }
        back
    }
}

#[derive(Clone, Debug)]
enum Step {
    Pass {
        rule: usize,
        kind: u8,
        fine: u64,
    },
    Acquire {
        rule: usize,
        key: usize,
        cost: u64,
    },
    Both {
        key: usize,
        costs: (u64, u64),
        turned: bool,
    },
    Peek {
        rule: usize,
        key: usize,
    },
    GiveBack {
        which: usize,
    },
    Reset {
        rule: usize,
        key: usize,
    },
    /// From now on.
    Count {
        rule: usize,
        count: u64,
    },
}

#[derive(Clone, Debug)]
struct Schedule {
    rules: [(Algorithm, u64, u64); 2],
    start: u64,
    steps: Vec<Step>,
}

fn schedule() -> impl Strategy<Value = Schedule> {
    const PERIODS: [u64; 7] = [1, 7, 1000, 60_000, 200_000, 300_000, 86_400_000];
    let rule = || (prop::sample::select(vec![FIXED, ALIGNED, LOG, LOG]), prop::sample::select(&PERIODS[..]), 0_u64..12);
    let steps = prop::collection::vec(step(), 1..60);
    (rule(), rule(), any::<bool>(), 0_u64..3_000_000, steps).prop_map(|(one, mut other, same_period, start, steps)| {
        if same_period {
            other.1 = one.1;
        }
        Schedule { rules: [one, other], start, steps }
    })
}

/// A pause, from nothing to three periods.
fn pause(period: u64, kind: u8, fine: u64) -> u64 {
    match kind {
        0 => fine,
        1 => fine * 1000,
        2 => period / 10 + fine,
        3 => period / 3,
        4 => period - 1,
        5 => period,
        6 => period + fine,
        _ => period / 2 + fine * 250,
    }
    .min(period * 3)
}

fn step() -> impl Strategy<Value = Step> {
    let (rule, key) = (|| 0..2_usize, || 0..KEYS);
    prop_oneof![
        6 => (rule(), 0..8_u8, 0_u64..4000).prop_map(|(rule, kind, fine)| Step::Pass { rule, kind, fine }),
        8 => (rule(), key(), 0_u64..6).prop_map(|(rule, key, cost)| Step::Acquire { rule, key, cost }),
        4 => (key(), (0_u64..5, 0_u64..5), any::<bool>()).prop_map(|(key, costs, turned)| Step::Both { key, costs, turned }),
        2 => (rule(), key()).prop_map(|(rule, key)| Step::Peek { rule, key }),
        3 => (0..8_usize).prop_map(|which| Step::GiveBack { which }),
        1 => (rule(), key()).prop_map(|(rule, key)| Step::Reset { rule, key }),
        1 => (rule(), 0_u64..12).prop_map(|(rule, count)| Step::Count { rule, count }),
    ]
}

/// The stores side by side, on clocks that show the same microsecond.
struct Stores {
    server: RedisServer,
    clock: ManualClock,
    limiters: [Limiter; 2],
    case: Cell<u64>,
}

impl Stores {
    async fn start() -> Self {
        let server = RedisServer::builder().controlled_clock().start();
        let clock = ManualClock::new();
        let limiters = [in_memory(&clock).await, limiter_on(&server).await];
        let stores = Self { server, clock, limiters, case: Cell::new(0) };
        stores.pass(0);
        stores
    }

    fn now(&self) -> u64 {
        u64::try_from(self.clock.now().as_micros()).unwrap()
    }

    fn pass(&self, micros: u64) {
        self.clock.advance(Duration::from_micros(micros));
        self.server.clock().set_micros(self.now());
    }

    async fn run(&self, schedule: &Schedule) -> Result<(), TestCaseError> {
        self.case.set(self.case.get() + 1);
        let key = |key: usize| Key::new((self.case.get(), key as u64));
        let mut rules =
            [("one", schedule.rules[0]), ("two", schedule.rules[1])].map(|(prefix, (algorithm, ms, count))| {
                Rule::new(prefix, count, Duration::from_millis(ms)).algorithm(algorithm)
            });
        self.pass(schedule.start);
        let mut model = Model::new(self.now(), rules.len());
        let mut permits: Vec<([Permit; 2], Receipts)> = Vec::new();
        for (number, step) in schedule.steps.iter().enumerate() {
            let mut told = Vec::new();
            let expected = match *step {
                Step::Pass { rule, kind, fine } => {
                    self.pass(pause(ms(rules[rule].period()) * 1000, kind, fine));
                    model.now = self.now();
                    continue;
                }
                Step::Count { rule, count } => {
                    rules[rule] = Rule::new(rules[rule].prefix(), count, rules[rule].period())
                        .algorithm(rules[rule].counted_by());
                    continue;
                }
                Step::Acquire { .. } | Step::Both { .. } => {
                    let calls = match *step {
                        Step::Acquire { rule, key, cost } => vec![(rule, key, cost)],
                        Step::Both { key, costs, turned: false } => vec![(0, key, costs.0), (1, key, costs.1)],
                        Step::Both { key, costs, .. } => vec![(1, key, costs.1), (0, key, costs.0)],
                        _ => unreachable!(),
                    };
                    let charges: Vec<_> = calls.iter().map(|&(rule, at, cost)| (&rules[rule], key(at), cost)).collect();
                    let mut answers = Vec::new();
                    for limiter in &self.limiters {
                        answers.push(match charges.as_slice() {
                            [(rule, key, cost)] => limiter.acquire_n(rule, key, *cost).await,
                            charges => limiter.acquire_all(charges).await,
                        });
                    }
                    told.extend(answers.iter().map(Answer::of));
                    let calls: Vec<_> =
                        calls.into_iter().map(|(rule, key, cost)| (rule * KEYS + key, rules[rule], cost)).collect();
                    let (expected, receipts) = model.acquire(&calls);
                    let granted: Result<Vec<_>, _> = answers.into_iter().collect();
                    permits.extend(granted.ok().and_then(|granted| Some((granted.try_into().ok()?, receipts))));
                    expected
                }
                Step::Peek { rule, key: at } => {
                    for limiter in &self.limiters {
                        told.push(Answer::seen(limiter.peek(&rules[rule], key(at)).await.unwrap()));
                    }
                    let Said { remaining, reset_after, mut retry_after } = model.say(rule * KEYS + at, &rules[rule], 1);
                    if rules[rule].count() == 0
                        && let Answer::Seen { retry_after: theirs, .. } = told[0]
                    {
                        retry_after = theirs; // never is no duration; they agree on one
                    }
                    Answer::Seen { limit: rules[rule].count(), remaining, reset_after, retry_after }
                }
                Step::GiveBack { which } if which < permits.len() => {
                    let (granted, receipts) = permits.remove(which);
                    for permit in granted {
                        told.push(Answer::GivenBack(permit.give_back().await.unwrap()));
                    }
                    Answer::GivenBack(model.give_back(&receipts, &rules))
                }
                Step::GiveBack { .. } => continue,
                Step::Reset { rule, key: at } => {
                    for limiter in &self.limiters {
                        limiter.reset(&rules[rule], key(at)).await.unwrap();
                        told.push(Answer::Reset);
                    }
                    model.counters[rule * KEYS + at].charges.clear();
                    // What is charged in the instant of a reset is not told apart from what was charged before.
                    self.pass(1000);
                    model.now = self.now();
                    Answer::Reset
                }
            };
            let [memory, redis] = told.try_into().unwrap();
            let context = format!("step {number}, {step:?}, of {rules:?} at {}", model.now);
            prop_assert_eq!(&memory, &redis, "memory and Redis differ: {}", &context);
            prop_assert_eq!(&memory, &expected, "the stores agree, and the model does not: {}", &context);
        }
        Ok(())
    }
}

#[test]
fn memory_redis_and_the_model_decide_alike() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let stores = runtime.block_on(Stores::start());
    let config = ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(schedule in schedule())| {
        runtime.block_on(stores.run(&schedule))?;
    });
}
