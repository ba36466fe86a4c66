//! Simulated callers: each asks a memory store that answers later, waits in the queues, and asks again in its turn. The
//! clock is moved by hand.

use super::*;
use crate::Rule;
use crate::{
    Key, ManualClock,
    memory::Memory,
    store::{Charges, Reply, Request, Store as _},
};

pub(super) fn charge_of(rule: &Rule, key: u64, cost: u64) -> Charge {
    Charge::new(*rule, CounterName::new("", rule, Some(&Key::new(key))), cost)
}

/// What callers share.
pub(super) struct World {
    pub(super) clock: ManualClock,
    pub(super) server: Memory,
    pub(super) queues: WaitQueues,
}

impl World {
    pub(super) fn new() -> Self {
        let clock = ManualClock::new();
        let server = Memory::new(clock.clone().into(), 100);
        let queues = WaitQueues::new(10_000, clock.clone().into(), false);
        Self { clock, server, queues }
    }
}

pub(super) struct SimulatedCaller<'a> {
    world: &'a World,
    charges: Vec<Charge>,
    ticket: u64,
    position: Option<QueuePosition<'a>>,
    /// When the answer arrives, and whether all charges fitted.
    answer: Option<(Duration, StoreAnswer, bool)>,
    /// The changes of the counters before the first question.
    seen: u64,
}

impl<'a> SimulatedCaller<'a> {
    /// It asks at once, unless others wait. The answer arrives after `latency`.
    pub(super) fn arrives(world: &'a World, charges: &[Charge], latency: Duration) -> Self {
        let ticket = world.queues.ticket();
        let seen = world.queues.changes(charges);
        let mut caller = Self { world, charges: charges.to_vec(), ticket, position: None, answer: None, seen };
        if world.queues.is_behind_others(charges, ticket) {
            caller.join(None);
        } else {
            caller.ask(latency);
        }
        caller
    }

    fn join(&mut self, refused: Option<&StoreAnswer>) {
        let refused = refused.map(|answer| (answer, self.seen));
        self.position = self.world.queues.join(self.ticket, &self.charges, refused, None).ok();
        assert!(self.position.is_some(), "there is room in the queue");
    }

    fn ask(&mut self, latency: Duration) {
        let mut asked = Charges::default();
        self.charges.iter().for_each(|charge| asked.push(charge.clone()));
        let now = self.world.clock.now();
        let Reply::Ready(batch) = self.world.server.decide(Request::new(asked, true).into()) else {
            panic!("the memory store answers at once")
        };
        let request = batch.into_first().expect("the request");
        self.answer = Some((now + latency, StoreAnswer::of(&request.charges, now), request.outcome == Ok(true)));
    }

    pub(super) fn is_asking(&self) -> bool {
        self.answer.is_some()
    }

    /// Asks if its turn has come. Returns when it does something again by itself.
    pub(super) fn look(&mut self, latency: Duration) -> Option<Duration> {
        if self.answer.is_none() {
            match self.position.as_ref().expect("it waits").look() {
                Ok(_) => self.ask(latency),
                Err(at) => return at,
            }
        }
        self.answer.as_ref().map(|(at, ..)| *at)
    }

    /// Takes the answer if it has arrived. `true`: it was served.
    pub(super) fn is_served(&mut self) -> bool {
        let now = self.world.clock.now();
        let Some((_, answer, fits)) = self.answer.take_if(|(at, ..)| *at <= now) else { return false };
        match self.position.take() {
            Some(position) if fits => position.admitted(&answer),
            Some(position) => {
                position.refused(&answer);
                self.position = Some(position);
            }
            None if fits => {}
            None => self.join(Some(&answer)),
        }
        fits
    }
}
