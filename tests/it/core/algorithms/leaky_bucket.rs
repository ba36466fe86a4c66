//! Leaky buckets: the slots of callers, and callers who leave the queue.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ratelimit_harness::RedisServer;
use ratelimit_runtime::{Algorithm, Cause, Key, Limiter, ManualClock, Permit, RequestPerMinute, Rule};
use tokio::task::JoinHandle;

use super::{DAY, MS, SECOND, ms, peek};
use crate::support::servers::{dump, script_calls};
use crate::support::{ALGORITHMS, By, Timed, ends, exceeded, fresh_key, settle};

/// Calls of one key that sleep until their slots.
pub(crate) struct Queue<'a> {
    timed: &'a Timed,
    rule: Rule,
    key: u64,
    started: Duration,
    calls: Vec<JoinHandle<Result<(), RequestPerMinute>>>,
    ran: Arc<Mutex<Vec<(usize, Duration, Permit)>>>,
}

impl<'a> Queue<'a> {
    pub(crate) fn new(timed: &'a Timed, rule: Rule) -> Self {
        let (key, started) = (fresh_key(), timed.now());
        Self { timed, rule, key, started, calls: Vec::new(), ran: Arc::default() }
    }

    /// A call, which has its slot, or has run or been refused, when this returns. Its number.
    pub(crate) async fn join(&mut self, cost: u64) -> usize {
        let limiter = self.timed.limiter.clone();
        let (rule, key) = (self.rule, self.key);
        self.spawn(cost, async move { limiter.acquire_n(&rule, key, cost).await }).await
    }

    async fn join_within(&mut self, longest: Duration) -> usize {
        let limiter = self.timed.limiter.clone();
        let (rule, key) = (self.rule, self.key);
        self.spawn(1, async move { limiter.acquire_within(&rule, key, longest).await }).await
    }

    async fn spawn(
        &mut self,
        cost: u64,
        call: impl Future<Output = Result<Permit, RequestPerMinute>> + Send + 'static,
    ) -> usize {
        let expected = self.remaining().await.checked_sub(cost);
        let (number, ran) = (self.calls.len(), Arc::clone(&self.ran));
        let clock = self.timed.clock();
        self.calls.push(tokio::spawn(async move {
            let permit = call.await?;
            ran.lock().unwrap().push((number, clock.now(), permit));
            Ok(())
        }));
        let decided = async {
            while !self.calls[number].is_finished() && Some(self.remaining().await) != expected {
                tokio::time::sleep(MS).await;
            }
        };
        ends(decided).await;
        settle().await;
        number
    }

    async fn remaining(&self) -> u64 {
        peek(self.timed, &self.rule, self.key).await.remaining()
    }

    /// Time goes by, a millisecond at a time.
    pub(crate) async fn pass(&self, ms: u64) {
        for _ in 0..ms {
            self.timed.advance(MS);
            settle().await;
        }
    }

    /// The calls that have run, in that order, and how many milliseconds after the start they did.
    pub(crate) fn ran(&self) -> Vec<(usize, u64)> {
        self.ran.lock().unwrap().iter().map(|(number, at, _)| (*number, ms(*at - self.started))).collect()
    }

    /// The permit of a call that has run.
    fn permit(&self, number: usize) -> Permit {
        let mut ran = self.ran.lock().unwrap();
        let at = ran.iter().position(|(other, ..)| *other == number).expect("it has run");
        ran.remove(at).2
    }

    /// A refusal that came at once.
    async fn refused(&mut self, number: usize) -> RequestPerMinute {
        assert!(
            self.calls[number].is_finished(),
            "it waits, or the clock would have to be moved to hear of its refusal"
        );
        let call = std::mem::replace(&mut self.calls[number], tokio::spawn(async { Ok(()) }));
        let refused = call.await.unwrap().unwrap_err();
        assert_eq!(refused.cause(), Cause::Exceeded, "{refused}");
        refused
    }

    /// The caller goes, and its charge is refunded, if it was the last one's.
    async fn leave(&self, number: usize, remaining: u64) {
        let scripts = || self.timed.server().map(script_calls);
        let (before, mut reads) = (scripts(), 0);
        self.calls[number].abort();
        let refunded = async {
            loop {
                reads += 1; // one script each
                let is_back = self.remaining().await >= remaining;
                let has_run = scripts() > before.map(|before| before + reads) || self.timed.server().is_none();
                if is_back && has_run && self.calls[number].is_finished() {
                    return;
                }
                tokio::time::sleep(MS).await;
            }
        };
        ends(refunded).await;
        settle().await;
        assert_eq!(self.remaining().await, remaining, "{}", self.timed.of(&self.rule));
    }
}

fn leaky(count: u64, queue: u64) -> Rule {
    Rule::new("leaky", count, SECOND).with_algorithm(Algorithm::LeakyBucket { queue })
}

#[tokio::test]
async fn slots_are_evenly_spaced_and_in_order() {
    for timed in Timed::both().await {
        for count in [10, 7, 1000, 1500] {
            let mut line = Queue::new(&timed, leaky(count, 5));
            for _ in 0..6 {
                line.join(1).await;
            }
            line.pass(6 * 1000 / count + 1).await;
            let expected: Vec<_> =
                (0_u64..6).map(|slot| (usize::try_from(slot).unwrap(), (slot * 1000).div_ceil(count))).collect();
            assert_eq!(line.ran(), expected, "{}", timed.of(&line.rule));
        }
    }
}

/// A caller behind others gets the slot after theirs. A caller of an empty queue runs at once.
#[tokio::test]
async fn a_slot_is_never_earlier_than_its_call() {
    for timed in Timed::both().await {
        let mut line = Queue::new(&timed, leaky(10, 9));
        line.join(1).await;
        line.pass(30).await;
        line.join(3).await;
        line.join(1).await;
        line.pass(620).await;
        line.join(1).await;
        line.join(1).await;
        line.pass(100).await;
        assert_eq!(line.ran(), [(0, 0), (1, 100), (2, 400), (3, 650), (4, 750)], "{}", timed.name());
    }
}

/// One call runs and `queue` calls wait. `retry_after` of the next one is when a place becomes
/// free.
#[tokio::test]
async fn a_call_beyond_the_queue_is_refused() {
    for timed in Timed::both().await {
        for queue in [0, 1, 4] {
            let mut line = Queue::new(&timed, leaky(10, queue));
            for _ in 0..=queue {
                line.join(1).await;
            }
            let stored = timed.server().map(dump);
            let number = line.join(1).await;
            let refused = line.refused(number).await;
            assert_eq!((refused.limit(), refused.remaining()), (queue + 1, 0), "{}", timed.of(&line.rule));
            assert_eq!(refused.retry_after(), Some(100 * MS), "{}", timed.of(&line.rule));
            assert_eq!(timed.server().map(dump), stored, "a refusal writes nothing");
            let never = timed.limiter.acquire_n(&line.rule, line.key, queue + 2).await.unwrap_err();
            assert_eq!(never.cause(), Cause::NeverFits, "{never}");
            line.pass(99).await;
            let number = line.join(1).await;
            assert_eq!(line.refused(number).await.retry_after(), Some(MS), "{}", timed.of(&line.rule));
            line.pass(1).await;
            let last = line.join(1).await;
            line.pass(queue * 100).await;
            assert_eq!(line.ran().last(), Some(&(last, (queue + 1) * 100)), "{}", timed.of(&line.rule));
        }
    }
}

/// The refusal comes at once: a slot does not move, however long its caller waits.
#[tokio::test]
async fn a_slot_beyond_the_longest_wait_is_refused_and_not_reserved() {
    for timed in Timed::both().await {
        let mut line = Queue::new(&timed, leaky(10, 50));
        for _ in 0..5 {
            line.join(1).await;
        }
        let stored = timed.server().map(dump);
        for (longest, retry_after) in [(0, 500), (1, 499), (250, 250), (499, 1)] {
            let number = line.join_within(longest * MS).await;
            let refused = line.refused(number).await;
            assert_eq!(refused.retry_after(), Some(retry_after * MS), "{longest} ms, {}", timed.name());
            assert_eq!(refused.remaining(), 46, "there is room, but not in time");
        }
        assert_eq!(timed.server().map(dump), stored, "a refusal writes nothing");
        let last = line.join_within(500 * MS).await;
        line.pass(500).await;
        assert_eq!(line.ran().last(), Some(&(last, 500)), "{}", timed.name());
    }
}

/// The queue is full. A caller who may wait waits for a place in it, and then for its slot.
#[tokio::test]
async fn a_caller_may_wait_for_a_place_in_the_queue() {
    for timed in Timed::both().await {
        let mut line = Queue::new(&timed, leaky(10, 1));
        line.join(1).await;
        line.join(1).await;
        let limiter = timed.limiter.clone();
        let (rule, key, clock, started) = (line.rule, line.key, timed.clock(), timed.now());
        let late = exceeded(ends(limiter.acquire_within(&rule, key, 199 * MS)).await);
        assert_eq!(late.retry_after(), Some(100 * MS), "{}", timed.name());
        assert_eq!(clock.now(), started, "it is known at once that no slot comes in time");
        let waiting = tokio::spawn(async move { limiter.acquire_within(&rule, key, 200 * MS).await.map(drop) });
        settle().await;
        assert_eq!(line.remaining().await, 0, "{}", timed.name());
        timed.advance(100 * MS);
        let has_a_place = async {
            while line.remaining().await > 0 {
                tokio::time::sleep(MS).await;
            }
        };
        ends(has_a_place).await;
        line.pass(99).await;
        assert!(!waiting.is_finished(), "{}", timed.name());
        line.pass(1).await;
        ends(waiting).await.unwrap().unwrap();
    }
}

/// The next caller has its slot.
#[tokio::test]
async fn a_caller_who_leaves_the_end_of_the_queue_frees_its_slot() {
    for timed in Timed::both().await {
        let mut line = Queue::new(&timed, leaky(10, 9));
        for _ in 0..3 {
            line.join(1).await;
        }
        line.pass(50).await;
        line.leave(2, 8).await;
        let next = line.join(1).await;
        line.pass(200).await;
        assert_eq!(line.ran(), [(0, 0), (1, 100), (next, 200)], "{}", timed.name());
    }
}

/// Callers behind it keep their slots, so that the spacing stays as in the rule.
#[tokio::test]
async fn a_caller_who_leaves_the_middle_of_the_queue_moves_no_slot() {
    for timed in Timed::both().await {
        let mut line = Queue::new(&timed, leaky(10, 9));
        // The server knows the script.
        timed.limiter.acquire(&line.rule, fresh_key()).await.unwrap().refund().await.unwrap();
        for _ in 0..4 {
            line.join(1).await;
        }
        line.leave(1, 6).await;
        line.leave(2, 6).await;
        line.leave(3, 7).await;
        // The slots of the two in the middle pass unused, as does nothing behind them.
        line.join(1).await;
        line.pass(400).await;
        assert_eq!(line.ran(), [(0, 0), (4, 300)], "{}", timed.name());
    }
}

#[tokio::test]
async fn a_slot_can_be_refunded_after_it_has_come() {
    for timed in Timed::both().await {
        let mut line = Queue::new(&timed, leaky(10, 9));
        line.join(1).await;
        line.join(3).await;
        line.pass(150).await;
        assert_eq!(line.permit(0).refund().await.unwrap(), 0, "a later caller has come: {}", timed.name());
        assert_eq!(line.permit(1).refund().await.unwrap(), 3, "{}", timed.name());
        let next = line.join(1).await;
        line.pass(1).await;
        assert_eq!(line.ran(), [(next, 150)], "{}", timed.name());

        line.pass(200).await;
        assert_eq!(line.permit(next).refund().await.unwrap(), 0, "its slot is over: {}", timed.name());
        assert_eq!(line.remaining().await, 10, "{}", timed.name());
    }
}

/// Raised or lowered: no slot moves, and later callers are behind them at the new rate. The queue
/// ahead is counted in calls, so a lower rate also lengthens the wait of later callers.
#[tokio::test]
async fn a_changed_count_keeps_the_slots_already_given() {
    for timed in Timed::both().await {
        for (count, next) in [(100, [300, 310, 320]), (5, [600, 800, 1000])] {
            let mut line = Queue::new(&timed, leaky(10, 9));
            for _ in 0..3 {
                line.join(1).await;
            }
            line.rule = leaky(count, 99);
            for _ in 0..3 {
                line.join(1).await;
            }
            line.pass(1000).await;
            let expected = [(0, 0), (1, 100), (2, 200), (3, next[0]), (4, next[1]), (5, next[2])];
            assert_eq!(line.ran(), expected, "{}", timed.of(&line.rule));
        }
    }
}

/// One millisecond before it.
#[tokio::test]
async fn a_raised_count_does_not_move_the_next_slot() {
    for timed in Timed::both().await {
        let mut line = Queue::new(&timed, leaky(10, 9));
        line.join(1).await;
        line.pass(99).await;
        line.rule = leaky(1000, 99);
        line.join(1).await;
        line.pass(10).await;
        assert_eq!(line.ran(), [(0, 0), (1, 100)], "{}", timed.name());
    }
}

#[tokio::test]
async fn a_changed_queue_acts_on_the_next_call() {
    for timed in Timed::both().await {
        let mut line = Queue::new(&timed, leaky(10, 1));
        line.join(1).await;
        line.join(1).await;
        let refused = line.join(1).await;
        line.refused(refused).await;
        line.rule = leaky(10, 2);
        let last = line.join(1).await;
        line.rule = leaky(10, 0);
        let lowered = line.join(1).await;
        let refused = line.refused(lowered).await;
        assert_eq!((refused.limit(), refused.remaining()), (1, 0), "{}", timed.name());
        assert_eq!(refused.retry_after(), Some(300 * MS), "{}", timed.name());
        line.pass(200).await;
        assert_eq!(line.ran(), [(0, 0), (1, 100), (last, 200)], "{}", timed.name());
    }
}

/// The deadline applies to the reply of the store. The slot comes later.
#[tokio::test]
async fn a_slot_may_come_later_than_the_deadline() {
    let (server, clock, deadline) = (RedisServer::start(), ManualClock::new(), SECOND);
    let limiter = Limiter::builder(&server.url()).clock(clock.clone()).deadline(deadline).build().await.unwrap();
    let rule = Rule::new("deadline", 1, 3600 * SECOND).with_algorithm(Algorithm::LeakyBucket { queue: 1 });
    limiter.acquire(&rule, 1).await.unwrap();
    let waiting = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire(&rule, 1).await.map(|permit| permit.remaining()) }
    });
    tokio::time::sleep(deadline + deadline / 2).await;
    assert_eq!(limiter.peek(&rule, 1).await.unwrap().remaining(), 0);
    assert!(!waiting.is_finished(), "{:?}", waiting.await);
    clock.advance(3600 * SECOND);
    assert_eq!(ends(waiting).await.unwrap().unwrap(), 0);
}

#[tokio::test]
async fn a_leaky_bucket_cannot_stand_with_other_rules() {
    for timed in Timed::both().await {
        let (leaky, key) = (leaky(10, 9), fresh_key());
        for algorithm in ALGORITHMS {
            let other = Rule::new("other", 10, SECOND).by(algorithm);
            let charges = [(&leaky, Key::new(key), 1), (&other, Key::new(key), 1)];
            let turned = [charges[1].clone(), charges[0].clone()];
            for charges in [&charges, &turned] {
                let refused = timed.limiter.acquire_all(charges).await.unwrap_err();
                assert_eq!((refused.cause(), refused.rule()), (Cause::Misconfigured, "leaky"), "{refused}");
                assert!(refused.to_string().contains("stands alone"), "{refused}");
            }
            assert_eq!(peek(&timed, &other, key).await.remaining(), 10, "{}", timed.of(&other));
        }
        assert_eq!(peek(&timed, &leaky, key).await.remaining(), 10, "{}", timed.name());
        // By itself it may: two charges of one counter are one.
        let alone = [(&leaky, Key::new(key), 1), (&leaky, Key::new(key), 1)];
        assert_eq!(timed.limiter.acquire_all(&alone).await.unwrap().remaining(), 8, "{}", timed.name());
    }
}

/// After the clock was set back, slots are no further apart than before, and no caller waits longer
/// than the queue. A key that was made permanent expires again.
#[tokio::test]
async fn a_leaky_bucket_survives_a_clock_set_back_and_a_permanent_key() {
    let timed = Timed::redis().await;
    let server = timed.server().unwrap();
    for back in [MS, SECOND, 400 * DAY] {
        let mut line = Queue::new(&timed, leaky(10, 3));
        for _ in 0..3 {
            line.join(1).await;
        }
        server.clock().set_micros(server.clock().now_micros() - u64::try_from(back.as_micros()).unwrap());
        let next = line.join(1).await;
        let number = line.join(1).await;
        assert_eq!(line.refused(number).await.retry_after(), Some(100 * MS), "{back:?}");
        line.pass(400).await;
        assert_eq!(line.ran(), [(0, 0), (1, 100), (2, 200), (next, 300)], "{back:?}");
    }
    let mut line = Queue::new(&timed, leaky(10, 3));
    for _ in 0..3 {
        line.join(1).await;
    }
    let name = format!("leaky:{{{}}}:leaky:1000", line.key).into_bytes();
    let (end, _) = dump(server)[&name].clone();
    server.command(&[b"PERSIST", &name]);
    let next = line.join(1).await;
    let (healed, _) = dump(server)[&name].clone();
    assert_eq!(healed, end + 100);
    line.pass(400).await;
    assert_eq!(line.ran(), [(0, 0), (1, 100), (2, 200), (next, 300)]);
}
