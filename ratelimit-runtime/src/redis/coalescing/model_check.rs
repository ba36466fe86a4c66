//! The queue under many of the orders in which the steps of its callers and calls can follow one another.

use shuttle::{future::block_on, sync::Mutex, thread};

use super::*;
use crate::{
    CounterName, Key, ManualClock, Rule,
    algorithm::Evaluation,
    sync::{every_order, many_orders},
};

const RULE: Rule = Rule::new("item", 2, Duration::from_secs(60));

/// A server that counts fixed windows.
#[derive(Default)]
struct Server(Mutex<Vec<(CounterName, i64)>>);

impl Server {
    /// As `fixed_window/decide.lua`, `batch.lua` and `repeat.lua` reply.
    fn run(&self, packet: &Packet<'_>) -> Value {
        match packet {
            Packet::Equal(entries) => self.decide(entries[0].charges(), Some(entries.iter().map(Entry::times).sum())),
            Packet::Decisions([entry]) => {
                assert_eq!(entry.times(), 1);
                self.decide(entry.charges(), None)
            }
            Packet::Decisions(entries) => {
                let times = |entry: &Entry| (entry.times() > 1).then(|| entry.times());
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
    Charge::new(RULE, CounterName::new("", &RULE, Some(&Key::new(key))), 1)
}

/// What a caller does, and the call that it may have to begin.
fn ask(queue: &Queue, key: u64) -> (Share, bool) {
    let charge = charge(key);
    let is_same = |other: &Charge| is_same(other, &charge);
    match queue.join(charge.counter.id(), is_same, true, Waker::noop()) {
        Ok(share) => (share, false),
        Err(_) => queue.add(charge.into(), true, 0, None, Waker::noop()),
    }
}

fn carry(queue: &Queue, server: &Server) {
    while let Some(mut entries) = queue.take() {
        sort(&mut entries);
        let mut answers = Vec::new();
        for packet in packets(&entries) {
            packet.read(server.run(&packet), &mut answers);
        }
        entries.into_iter().zip(answers).for_each(|(entry, answer)| entry.answer(answer));
    }
}

/// A queue whose clock moves when it is told to.
fn queue_with_clock() -> (Queue, ManualClock) {
    let clock = ManualClock::new();
    (Queue { clock: clock.clone().into(), ..Queue::default() }, clock)
}

fn decision(share: &Share) -> &Decision {
    share.decision.as_ref().expect("it is not taken")
}

fn told(share: Share) -> Evaluation {
    let told = block_on(share).expect("nobody waits for too long").expect("the server answers");
    algorithm::parse_reply(&charge(0), true, &told).expect("a reply of the script").0
}

fn is_idle(queue: &Queue) -> bool {
    queue.standing().is_idle() && queue.places.iter().all(|place| lock(place).latest.is_empty())
}

/// Asks, carries what it has to, and waits.
fn call(queue: &Queue, server: &Server, key: u64) -> Evaluation {
    let (share, begin) = ask(queue, key);
    if begin {
        carry(queue, server);
    }
    told(share)
}

#[test]
fn each_caller_is_answered_once_and_in_order() {
    many_orders(|| {
        let (queue, server) = (Queue::default(), Server::default());
        let (one, other) = thread::scope(|threads| {
            let other = threads.spawn(|| call(&queue, &server, 0));
            (call(&queue, &server, 0), other.join().unwrap())
        });
        let mut remaining = [one, other].map(|look| (look.fits, look.decision.remaining()));
        remaining.sort_unstable();
        assert_eq!(remaining, [(true, 0), (true, 1)]);
        assert!(is_idle(&queue) && server.used() == 2);
    });
}

#[test]
fn of_equal_charges_as_many_are_granted_as_fit() {
    many_orders(|| {
        let (queue, server) = (Queue::default(), Server::default());
        // Two are in it before anybody carries.
        let (first, begin) = ask(&queue, 0);
        let (second, _) = ask(&queue, 0);
        assert!(begin);
        let third = thread::scope(|threads| {
            let third = threads.spawn(|| call(&queue, &server, 0));
            carry(&queue, &server);
            third.join().unwrap()
        });
        let looks = [told(first), told(second), third];
        assert_eq!(looks.iter().filter(|look| look.fits).count(), 2);
        assert!(looks.iter().all(|look| look.fits || look.decision.retry_after().is_some()));
        assert!(is_idle(&queue) && server.used() == 2);
    });
}

#[test]
fn who_leaves_takes_nothing_from_another() {
    many_orders(|| {
        let (queue, server) = (Queue::default(), Server::default());
        let (leaving, _) = ask(&queue, 0);
        let look = thread::scope(|threads| {
            threads.spawn(|| drop(leaving));
            let (share, _) = ask(&queue, 0);
            carry(&queue, &server);
            told(share)
        });
        assert!(look.fits);
        assert!(is_idle(&queue) && (1..=2).contains(&server.used()));
    });
}

#[test]
fn who_has_left_before_is_not_charged() {
    every_order(|| {
        let (queue, server) = (Queue::default(), Server::default());
        let [first, leaving, last] = [(); 3].map(|()| ask(&queue, 0).0);
        drop(leaving);
        carry(&queue, &server);
        assert_eq!([first, last].map(|share| told(share).decision.remaining()), [1, 0]);
        assert_eq!(server.used(), 2);
    });
}

#[test]
fn a_call_that_is_broken_off_leaves_nobody_waiting() {
    many_orders(|| {
        let (queue, server) = (Queue::default(), Server::default());
        let (first, begin) = ask(&queue, 0);
        assert!(begin);
        let ended = thread::scope(|threads| {
            let second = threads.spawn(|| {
                let (share, begin) = ask(&queue, 1);
                if begin {
                    carry(&queue, &server);
                }
                block_on(share)
            });
            if let Some(entries) = queue.take() {
                drop(entries);
                queue.broken_off();
            }
            second.join().unwrap()
        });
        let first = block_on(first);
        assert!(matches!(first, Some(Ok(_) | Err(Failure::Unknown(_)))));
        assert!(matches!(ended, Some(Ok(_) | Err(Failure::Unknown(_)))));
        assert!(is_idle(&queue));
    });
}

#[test]
fn who_has_waited_too_long_has_no_part_in_what_was_sent_for_others() {
    many_orders(|| {
        let ((queue, clock), server) = (queue_with_clock(), Server::default());
        let (late, _) = ask(&queue, 0);
        let now = decision(&late).first().expect("it waits");
        clock.advance(Duration::from_millis(1));
        let (staying, _) = ask(&queue, 0);
        thread::scope(|threads| {
            threads.spawn(|| queue.give_up(now));
            carry(&queue, &server);
        });
        // Polled only now.
        let granted = [late, staying].map(|share| block_on(share).is_some());
        assert!(granted[1]);
        let shares = i64::try_from(granted.iter().filter(|granted| **granted).count()).unwrap();
        assert!(shares <= server.used(), "{shares} of {}", server.used());
    });
}

#[test]
fn who_waits_too_long_is_told_and_the_others_go_on() {
    many_orders(|| {
        let (queue, server) = (Queue::default(), Server::default());
        let (late, _) = ask(&queue, 0);
        let now = decision(&late).first().expect("it waits");
        let ends = thread::scope(|threads| {
            threads.spawn(|| queue.give_up(now));
            carry(&queue, &server);
            block_on(late)
        });
        assert!(matches!(ends, None | Some(Ok(_))));
        assert!(is_idle(&queue) && server.used() == i64::from(ends.is_some()) || server.used() == 1);
    });
}
