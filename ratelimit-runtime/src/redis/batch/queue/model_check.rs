//! The batch queue under many of the interleavings of its callers and round trips.

use std::time::Duration;

use redis::Value;
use shuttle::{future::block_on, sync::Mutex, thread};

use super::*;
use crate::{
    CounterName, Key, ManualClock, Rule,
    algorithm::Evaluation,
    redis::{
        batch::{SendError, is_same_charge},
        command::Packet,
    },
    sync::{every_order, many_orders},
};

const RULE: Rule = Rule::new("item", 2, Duration::from_secs(60));

/// A server that counts fixed windows.
#[derive(Default)]
struct CountingServer(Mutex<Vec<(CounterName, i64)>>);

impl CountingServer {
    /// Replies as the scripts do.
    fn run(&self, packet: &Packet<'_>) -> Value {
        match packet {
            Packet::Repeat(entries) => {
                self.decide(entries[0].charges(), Some(entries.iter().map(SentEntry::times).sum()))
            }
            Packet::Batch([entry]) => {
                assert_eq!(entry.times(), 1);
                self.decide(entry.charges(), None)
            }
            Packet::Batch(entries) => {
                let times = |entry: &SentEntry| (entry.times() > 1).then(|| entry.times());
                Value::Array(entries.iter().map(|entry| self.decide(entry.charges(), times(entry))).collect())
            }
            Packet::Command(_) => panic!("decisions only"),
        }
    }

    fn decide(&self, charges: &[Charge], times: Option<usize>) -> Value {
        let [charge] = charges else { panic!("one counter") };
        let mut counters = self.0.lock().unwrap();
        let at = counters.iter().position(|(name, _)| *name == charge.counter).unwrap_or_else(|| {
            counters.push((charge.counter.clone(), 0));
            counters.len() - 1
        });
        let used = &mut counters[at].1;
        let packed = |used: i64| Value::Int((used * 450_001 + 7) * 60_000 + 1);
        let refused = |used: i64| Value::Int(-1 - ((used * 450_001 + 7) * 60_000 + 1));
        let granted = i64::try_from(times.unwrap_or(1)).unwrap().min(2 - *used);
        let before = *used;
        *used += granted;
        match times {
            None if granted == 1 => packed(before),
            None => refused(before),
            Some(_) => Value::Array(vec![Value::Int(granted), Value::Int(0), packed(before), refused(*used)]),
        }
    }

    fn used(&self) -> i64 {
        self.0.lock().unwrap().iter().map(|(_, used)| used).sum()
    }
}

fn charge(key: u64) -> Charge {
    Charge::new(RULE, CounterName::new("", &RULE, &Key::new(key)), 1)
}

/// Enqueues a charge. Returns true if the caller is to begin a round trip.
fn enqueue(queue: &BatchQueue, key: u64) -> (BatchTicket, bool) {
    let charge = charge(key);
    let is_same = |other: &Charge| is_same_charge(other, &charge);
    match queue.join(charge.counter.id(), is_same, true, Waker::noop()) {
        Ok(ticket) => (ticket, false),
        Err(_) => queue.add(charge.into(), true, 0, None, Waker::noop()),
    }
}

fn run_round_trips(queue: &BatchQueue, server: &CountingServer) {
    while let Some(mut entries) = queue.take() {
        Packet::sort(&mut entries);
        let mut replies = Vec::new();
        for packet in Packet::group(&entries) {
            packet.parse(server.run(&packet), &mut replies);
        }
        entries.into_iter().zip(replies).for_each(|(entry, reply)| entry.answer(reply));
    }
}

/// A queue with a manual clock.
fn queue_with_clock() -> (BatchQueue, ManualClock) {
    let clock = ManualClock::new();
    (BatchQueue { clock: clock.clone().into(), ..BatchQueue::default() }, clock)
}

fn entry(ticket: &BatchTicket) -> &BatchEntry {
    ticket.entry.as_ref().expect("it is not taken")
}

fn result(ticket: BatchTicket) -> Evaluation {
    let reply = block_on(ticket).expect("no caller times out").expect("the server answers");
    algorithm::parse_reply(&charge(0), true, &reply).expect("a reply of the script").0
}

fn is_idle(queue: &BatchQueue) -> bool {
    queue.state().is_idle() && queue.shards.iter().all(|shard| lock(shard).latest.is_empty())
}

/// Enqueues a charge, runs round trips if it is to begin one, and waits.
fn decide(queue: &BatchQueue, server: &CountingServer, key: u64) -> Evaluation {
    let (ticket, begin) = enqueue(queue, key);
    if begin {
        run_round_trips(queue, server);
    }
    result(ticket)
}

#[test]
fn each_caller_is_answered_once_and_in_order() {
    many_orders(|| {
        let (queue, server) = (BatchQueue::default(), CountingServer::default());
        let (one, other) = thread::scope(|threads| {
            let other = threads.spawn(|| decide(&queue, &server, 0));
            (decide(&queue, &server, 0), other.join().unwrap())
        });
        let mut remaining = [one, other].map(|look| (look.fits, look.decision.remaining()));
        remaining.sort_unstable();
        assert_eq!(remaining, [(true, 0), (true, 1)]);
        assert!(is_idle(&queue) && server.used() == 2);
    });
}

#[test]
fn equal_charges_are_granted_up_to_the_limit() {
    many_orders(|| {
        let (queue, server) = (BatchQueue::default(), CountingServer::default());
        // Two join before the first round trip.
        let (first, begin) = enqueue(&queue, 0);
        let (second, _) = enqueue(&queue, 0);
        assert!(begin);
        let third = thread::scope(|threads| {
            let third = threads.spawn(|| decide(&queue, &server, 0));
            run_round_trips(&queue, &server);
            third.join().unwrap()
        });
        let looks = [result(first), result(second), third];
        assert_eq!(looks.iter().filter(|look| look.fits).count(), 2);
        assert!(looks.iter().all(|look| look.fits || look.decision.retry_after().is_some()));
        assert!(is_idle(&queue) && server.used() == 2);
    });
}

#[test]
fn a_cancelled_caller_takes_nothing_from_another() {
    many_orders(|| {
        let (queue, server) = (BatchQueue::default(), CountingServer::default());
        let (leaving, _) = enqueue(&queue, 0);
        let look = thread::scope(|threads| {
            threads.spawn(|| drop(leaving));
            let (ticket, _) = enqueue(&queue, 0);
            run_round_trips(&queue, &server);
            result(ticket)
        });
        assert!(look.fits);
        assert!(is_idle(&queue) && (1..=2).contains(&server.used()));
    });
}

#[test]
fn a_caller_cancelled_before_the_round_trip_is_not_charged() {
    every_order(|| {
        let (queue, server) = (BatchQueue::default(), CountingServer::default());
        let [first, leaving, last] = [(); 3].map(|()| enqueue(&queue, 0).0);
        drop(leaving);
        run_round_trips(&queue, &server);
        assert_eq!([first, last].map(|ticket| result(ticket).decision.remaining()), [1, 0]);
        assert_eq!(server.used(), 2);
    });
}

#[test]
fn an_aborted_round_trip_leaves_no_caller_waiting() {
    many_orders(|| {
        let (queue, server) = (BatchQueue::default(), CountingServer::default());
        let (first, begin) = enqueue(&queue, 0);
        assert!(begin);
        let ended = thread::scope(|threads| {
            let second = threads.spawn(|| {
                let (ticket, begin) = enqueue(&queue, 1);
                if begin {
                    run_round_trips(&queue, &server);
                }
                block_on(ticket)
            });
            if let Some(entries) = queue.take() {
                drop(entries);
                queue.abort();
            }
            second.join().unwrap()
        });
        let first = block_on(first);
        assert!(matches!(first, Some(Ok(_) | Err(SendError::Indeterminate(_)))));
        assert!(matches!(ended, Some(Ok(_) | Err(SendError::Indeterminate(_)))));
        assert!(is_idle(&queue));
    });
}

#[test]
fn a_caller_timed_out_before_the_round_trip_has_no_part_in_it() {
    many_orders(|| {
        let ((queue, clock), server) = (queue_with_clock(), CountingServer::default());
        let (late, _) = enqueue(&queue, 0);
        let now = entry(&late).oldest_ms().expect("it waits");
        clock.advance(Duration::from_millis(1));
        let (staying, _) = enqueue(&queue, 0);
        thread::scope(|threads| {
            threads.spawn(|| queue.time_out(now));
            run_round_trips(&queue, &server);
        });
        // Polled only now.
        let granted = [late, staying].map(|ticket| block_on(ticket).is_some());
        assert!(granted[1]);
        let shares = i64::try_from(granted.iter().filter(|granted| **granted).count()).unwrap();
        assert!(shares <= server.used(), "{shares} of {}", server.used());
    });
}

#[test]
fn a_caller_that_times_out_ends_and_the_queue_goes_on() {
    many_orders(|| {
        let (queue, server) = (BatchQueue::default(), CountingServer::default());
        let (late, _) = enqueue(&queue, 0);
        let now = entry(&late).oldest_ms().expect("it waits");
        let ends = thread::scope(|threads| {
            threads.spawn(|| queue.time_out(now));
            run_round_trips(&queue, &server);
            block_on(late)
        });
        assert!(matches!(ends, None | Some(Ok(_))));
        assert!(is_idle(&queue) && server.used() == i64::from(ends.is_some()) || server.used() == 1);
    });
}

/// The first entry has a younger caller by then.
#[test]
fn a_caller_times_out_behind_a_younger_one() {
    many_orders(|| {
        let (queue, clock) = queue_with_clock();
        let pause = Duration::from_millis(1);
        let (first, _) = enqueue(&queue, 0);
        let began = entry(&first).oldest_ms().expect("it waits");
        clock.advance(pause);
        let (second, _) = enqueue(&queue, 1);
        clock.advance(pause);
        let (joined, _) = enqueue(&queue, 0);
        thread::scope(|threads| {
            threads.spawn(|| queue.time_out(began));
            queue.time_out(began);
        });
        assert_eq!(queue.oldest_ms(), Some(began + 1));
        assert_eq!(queue.time_out(began + 1), Some(began + 2));
        assert!(block_on(first).is_none() && block_on(second).is_none());
        drop(joined);
        queue.abort();
    });
}
