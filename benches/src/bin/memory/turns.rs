//! Two contenders that take turns, and the keys that they are asked about.

use std::{
    hash::Hash,
    hint::black_box,
    pin::pin,
    sync::{
        Barrier,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

use ratelimit_runtime::RateKey;
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;

/// Shares no factor with any number of keys here. It visits them in an order that no cache likes.
const STRIDE: u64 = 382_199;

/// A turn visits at least this part of the keys. In a short turn, most calls would find the other's memory in the
/// caches.
const LEAST_PART: u64 = 4;

/// The keys of a row, by index.
pub(crate) trait Keys: Sync {
    /// As governor stores it.
    type Key: Clone + Eq + Hash + Send + Sync;
    /// As an annotated function takes it.
    type Argument<'a>: RateKey + Copy;

    fn with<T>(&self, index: u64, call: impl FnOnce(&Self::Key) -> T) -> T;
    fn argument(key: &Self::Key) -> Self::Argument<'_>;
    /// For limiters whose keys are texts only.
    fn with_text<T>(key: &Self::Key, call: impl FnOnce(&str) -> T) -> T;
}

/// The index itself.
pub(crate) struct Integers;

impl Keys for Integers {
    type Key = u64;
    type Argument<'a> = u64;

    #[inline]
    fn with<T>(&self, index: u64, call: impl FnOnce(&u64) -> T) -> T {
        call(&index)
    }

    #[inline]
    fn argument(key: &u64) -> u64 {
        *key
    }

    #[inline]
    fn with_text<T>(key: &u64, call: impl FnOnce(&str) -> T) -> T {
        call(itoa::Buffer::new().format(*key))
    }
}

/// Made beforehand, since a caller has its key.
pub(crate) struct Texts(Vec<String>);

impl Texts {
    pub(crate) fn new(keys: u64) -> Self {
        Self((0..keys).map(|key| format!("user-{key:07}")).collect())
    }
}

impl Keys for Texts {
    type Key = String;
    type Argument<'a> = &'a str;

    #[inline]
    fn with<T>(&self, index: u64, call: impl FnOnce(&String) -> T) -> T {
        call(&self.0[usize::try_from(index).expect("an index")])
    }

    #[inline]
    fn argument(key: &String) -> &str {
        key
    }

    #[inline]
    fn with_text<T>(key: &String, call: impl FnOnce(&str) -> T) -> T {
        call(key)
    }
}

/// Polls a future that is ready at its first poll, where it is.
#[inline(always)]
#[allow(clippy::inline_always)] // so that no future is moved, which an `await` does not do either
pub(crate) fn now<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("a limiter in memory answers at once"),
    }
}

/// Makes so many calls on each of so many threads.
pub(crate) type Run = Box<dyn Fn(u64, u64) -> Lap>;

/// The result of a run.
#[derive(Clone, Copy)]
pub(crate) struct Lap {
    /// Time of the slowest thread.
    pub(crate) time: Duration,
    pub(crate) admitted: u64,
}

/// A run of calls, one key after another. The loop is compiled for this call.
pub(crate) fn run<K: Keys>(keys: &'static K, count: u64, admits: impl Fn(&K::Key) -> bool + Sync + 'static) -> Run {
    let made = AtomicU64::new(0);
    Box::new(move |calls, threads| {
        // A turn goes on where the last one ended. If all began with the same key, they would call the same few
        // thousand of 900,000 keys again and again.
        let first = made.fetch_add(calls, Ordering::Relaxed) % count * (STRIDE % count) % count;
        on_threads(threads, calls, (first, count), |index| keys.with(index, &admits))
    })
}

/// Calls on each of the threads, which begin together, each somewhere else among the keys.
fn on_threads(threads: u64, calls: u64, (first, keys): (u64, u64), admits: impl Fn(u64) -> bool + Sync) -> Lap {
    let barrier = Barrier::new(usize::try_from(threads).expect("a few"));
    // A thread that is alone waits for nothing. Its processor time leaves out other programs.
    let clock = if threads == 1 { ClockId::ThreadCPUTime } else { ClockId::Monotonic };
    let time = || Duration::try_from(clock_gettime(clock)).expect("a time since the start");
    let run = |thread: u64| {
        barrier.wait();
        let started = time();
        let admitted = visit_keys((first + thread * keys / threads) % keys, keys, calls, &admits);
        Lap { time: time().saturating_sub(started), admitted }
    };
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|thread| scope.spawn(move || run(thread))).collect();
        let first = run(0);
        others
            .into_iter()
            .map(|other| other.join().expect("no panics"))
            .fold(first, |sum, lap| Lap { time: sum.time.max(lap.time), admitted: sum.admitted + lap.admitted })
    })
}

/// Makes so many calls from one key on. Returns how many were admitted.
///
/// A function of its own, so that a profiler can count its instructions and no others.
#[inline(never)]
fn visit_keys(first: u64, keys: u64, calls: u64, admits: impl Fn(u64) -> bool) -> u64 {
    let (mut index, step) = (first, STRIDE % keys);
    let mut admitted = 0;
    for _ in 0..calls {
        admitted += u64::from(black_box(admits(index)));
        index += step;
        if index >= keys {
            index -= keys;
        }
    }
    admitted
}

/// The size of a measurement.
#[derive(Clone, Copy)]
pub(crate) struct Effort {
    pub(crate) rounds: usize,
    /// Time of a turn of the slower contender. With many keys it is longer.
    pub(crate) turn: Duration,
}

/// The figures of two contenders.
#[derive(Clone, Copy)]
pub(crate) struct Figures {
    /// Nanoseconds of a call, or bytes of a key.
    pub(crate) ours: f64,
    pub(crate) other: f64,
    /// Ours to the other: the median of the rounds' ratios.
    pub(crate) ratio: f64,
    /// Half the distance between the quartiles of the rounds' ratios.
    pub(crate) scatter: f64,
    /// Of ours, a call.
    pub(crate) allocations: f64,
    /// The share of our calls that had the wrong result, and of the other's.
    pub(crate) wrong: [f64; 2],
}

impl Figures {
    /// The two contenders change places after every round. Both make the same number of calls in a turn. So each finds
    /// the other's memory in the caches for the same part of its calls. The first round does not count.
    pub(crate) fn of(contenders: &[Run; 2], keys: u64, threads: u64, effort: Effort, refused: bool) -> Self {
        const COUNTED: u64 = 10_000;
        let [ours, other] = contenders.each_ref().map(|run| calls_of_a_turn(run, threads, effort.turn));
        let (of_time, of_keys) = (ours.min(other), keys / LEAST_PART / threads);
        let calls = of_time.max(of_keys);
        // Long turns scatter less.
        let rounds = if of_keys > of_time { (effort.rounds / 3).max(4) } else { effort.rounds };
        let mut nanoseconds = [const { Vec::new() }; 2];
        let mut wrong = [0; 2];
        for round in 0..=rounds {
            for at in [round % 2, 1 - round % 2] {
                let lap = contenders[at](calls, threads);
                wrong[at] += if refused { lap.admitted } else { calls * threads - lap.admitted };
                if round > 0 {
                    nanoseconds[at].push(lap.time.as_secs_f64() * 1e9 / float(calls));
                }
            }
        }
        let mut ratios: Vec<f64> =
            nanoseconds[0].iter().zip(&nanoseconds[1]).map(|(ours, other)| ours / other).collect();
        ratios.sort_by(f64::total_cmp);
        let counted = allocation_counter::measure(|| _ = contenders[0](COUNTED, 1));
        let [ours, other] = nanoseconds.map(median);
        let made = float(calls * threads) * float(rounds as u64 + 1);
        Self {
            ours,
            other,
            ratio: ratios[ratios.len() / 2],
            scatter: (ratios[ratios.len() * 3 / 4] - ratios[ratios.len() / 4]) / 2.0,
            // The barrier and the list of threads are not the contender's.
            allocations: (float(counted.count_total) / float(COUNTED) * 100.0).round() / 100.0,
            wrong: wrong.map(|wrong| float(wrong) / made),
        }
    }

    /// Figures that have no rounds.
    pub(crate) fn of_size(ours: f64, other: f64) -> Self {
        Self { ours, other, ratio: ours / other, scatter: 0.0, allocations: 0.0, wrong: [0.0; 2] }
    }

    /// One line, for the process that prints the table.
    pub(crate) fn to_line(self) -> String {
        let Self { ours, other, ratio, scatter, allocations, wrong: [one, two] } = self;
        json!([ours, other, ratio, scatter, allocations, one, two]).to_string()
    }

    pub(crate) fn from_line(line: &str) -> Option<Self> {
        let [ours, other, ratio, scatter, allocations, one, two] = serde_json::from_str(line).ok()?;
        Some(Self { ours, other, ratio, scatter, allocations, wrong: [one, two] })
    }
}

/// Number of calls that fill a turn.
fn calls_of_a_turn(run: &Run, threads: u64, turn: Duration) -> u64 {
    let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).expect("short");
    let mut calls = 1_000;
    loop {
        let Lap { time, .. } = run(calls, threads);
        if time > turn / 4 {
            return calls * nanoseconds(turn) / nanoseconds(time);
        }
        calls *= 2;
    }
}

#[allow(clippy::cast_precision_loss)] // of numbers of calls
pub(crate) fn float(number: u64) -> f64 {
    number as f64
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}
