//! Simulated callers. Each asks a memory store whose answer arrives later, waits in the queues, and
//! asks again in its turn. The clock is moved by hand.

use super::*;
use crate::Rule;
use crate::{
    Key, ManualClock,
    memory::Memory,
    store::{Charges, Reply, Request, Store as _},
};

pub(super) fn charge_of(rule: &Rule, key: u64, cost: u64) -> Charge {
    Charge::new(*rule, CounterName::new("", rule, &Key::new(key)), cost)
}

/// The clock, the store and the queues that all callers share.
pub(super) struct World {
    pub(super) clock: ManualClock,
    pub(super) server: Arc<Memory>,
    pub(super) queues: WaitQueues,
}

impl World {
    pub(super) fn new() -> Self {
        let clock = ManualClock::new();
        let server = Arc::new(Memory::new(clock.clone().into(), 100, 0));
        let queues = WaitQueues::new(10_000, clock.clone().into(), false);
        Self { clock, server, queues }
    }

    /// The queues of a process that shares the store with another one.
    pub(super) fn shared(&self) -> Self {
        let queues = WaitQueues::new(10_000, self.clock.clone().into(), true);
        Self { clock: self.clock.clone(), server: Arc::clone(&self.server), queues }
    }
}

pub(super) struct SimulatedCaller<'a> {
    world: &'a World,
    charges: Vec<Charge>,
    ticket: u64,
    position: Option<QueuePosition<'a>>,
    /// The time the answer arrives, the answer, and true if all charges fit.
    answer: Option<(Duration, StoreAnswer, bool)>,
    /// The changes of the counters before the first request.
    changes_before: u64,
}

impl<'a> SimulatedCaller<'a> {
    /// Asks at once, unless others wait. The answer arrives after `latency`.
    pub(super) fn arrives(world: &'a World, charges: &[Charge], latency: Duration) -> Self {
        let ticket = world.queues.ticket();
        let changes_before = world.queues.changes(charges);
        let mut caller =
            Self { world, charges: charges.to_vec(), ticket, position: None, answer: None, changes_before };
        if world.queues.waited_for(charges, ticket).is_some() {
            caller.join(None);
        } else {
            caller.ask(latency);
        }
        caller
    }

    fn join(&mut self, refused: Option<&StoreAnswer>) {
        let refused = refused.map(|answer| (answer, self.changes_before));
        self.position = self.world.queues.join(self.ticket, &self.charges, refused, false).ok();
        assert!(self.position.is_some(), "there is space in the queue");
    }

    fn ask(&mut self, latency: Duration) {
        let mut charges = Charges::default();
        self.charges.iter().for_each(|charge| charges.push(charge.clone()));
        let now = self.world.clock.now();
        let Reply::Ready(batch) = self.world.server.decide(Request::new(charges, true).into()) else {
            panic!("the memory store answers at once")
        };
        let request = batch.into_first().expect("the batch has the request");
        self.answer = Some((now + latency, StoreAnswer::of(&request.charges, now), request.outcome == Ok(true)));
    }

    pub(super) fn is_asking(&self) -> bool {
        self.answer.is_some()
    }

    /// Asks if its turn has come. Returns the time of its next action.
    pub(super) fn look(&mut self, latency: Duration) -> Option<Duration> {
        if self.answer.is_none() {
            match self.position.as_ref().expect("the caller waits").look() {
                Ok(_) => self.ask(latency),
                Err(at) => return at,
            }
        }
        self.answer.as_ref().map(|(at, ..)| *at)
    }

    /// Takes the answer if it has arrived. True if the caller was admitted.
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
