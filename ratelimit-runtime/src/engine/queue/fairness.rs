//! Two processes that wait for the settlements of a third one. Neither is passed over.

use super::{
    callers::{SimulatedCaller, World, charge_of},
    schedules::Random,
    *,
};
use crate::{
    Rule,
    store::{Reply, Request, Store as _},
};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const RULE: Rule = Rule::new("tokens", 1_000_000, Duration::from_secs(360_000));
const COST: u64 = 100;
/// Callers of each process. Each of them calls again as soon as it is served.
const CALLERS: usize = 3;

/// The third process settles.
struct Settlements {
    /// The amount that a settlement refunds.
    freed: u64,
    /// The mean time from one to the next.
    every: Duration,
    /// Draws these times. `None`: each is the mean.
    random: Option<Random>,
}

impl Settlements {
    fn pause(&mut self) -> Duration {
        let percent = self.random.as_mut().map_or(100, |random| random.below(200));
        self.every * u32::try_from(percent).unwrap() / 100
    }
}

/// Returns the calls of each process that are admitted in a minute. The first process has waited for this time when
/// the other one comes and the settlements begin.
fn admitted(mut settlements: Settlements, waited: Duration) -> [u64; 2] {
    let world = World::new();
    let processes = [world.shared(), world.shared()];
    let Reply::Ready(all) = world.server.decide(Request::new(charge_of(&RULE, 1, RULE.limit()), true).into()) else {
        panic!("the memory store answers at once")
    };
    let part = Charge { cost: settlements.freed, ..all[0].charges[0].clone() };
    let charges = [Charge { settles: true, ..charge_of(&RULE, 1, COST) }];
    let arrives = |process: usize| (process, SimulatedCaller::arrives(&processes[process], &charges, MS));
    let mut callers: Vec<_> = [0; CALLERS].map(arrives).into();
    let begin = world.clock.now() + waited;
    let (mut settles_at, mut admitted) = (begin, [0; 2]);
    while world.clock.now() < begin + 60 * SECOND {
        let looks = callers.iter_mut().filter_map(|(_, caller)| caller.look(MS));
        let next = looks.chain([settles_at]).min().unwrap_or_default();
        world.clock.advance(next.saturating_sub(world.clock.now()));
        if world.clock.now() >= settles_at {
            if settles_at == begin {
                callers.extend([1; CALLERS].map(arrives));
            }
            let Reply::Ready(refunded) = world.server.refund(part.clone().into()) else { panic!("at once") };
            assert_eq!(refunded, Ok(settlements.freed));
            settles_at += settlements.pause().max(MS);
        }
        for (process, caller) in &mut callers {
            if caller.is_served() {
                admitted[*process] += 1;
                *caller = arrives(*process).1;
            }
        }
    }
    admitted
}

#[test]
fn each_process_gets_three_tenths_of_what_others_settle() {
    for freed in [COST, 70, 35, 250] {
        for every in [20, 50, 70, 150, 300, 700] {
            for waited in [0, 30] {
                for random in [None, Some(1), Some(2)] {
                    let settlements = Settlements { freed, every: MS * every, random: random.map(Random) };
                    let [one, other] = admitted(settlements, waited * SECOND);
                    assert!(
                        10 * one.min(other) >= 3 * (one + other),
                        "{one} and {other} calls of those who wait for {waited} s and for 0 s; {freed} are freed every \
                         {every} ms, times from {random:?}"
                    );
                }
            }
        }
    }
}
