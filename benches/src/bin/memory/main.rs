//! The memory store against governor, and against other limiters that count in memory.
//!
//! ```sh
//! cargo run --release -p ratelimit-benches --bin memory            # or -- --quick, or words that choose rows
//! cargo run --release -p ratelimit-benches --bin memory -- acquire TokenBucket 900,000 2-threads
//! ```
//!
//! Rows that miss what is wanted come first, the largest loss at the top. A row is chosen if each
//! word is in one of its columns.
//!
//! **Method.** A row has a process of its own. There our calls and the other's take turns, and change
//! places after each round. Both make the same number of calls in a turn: as many as take the slower
//! one some milliseconds, and at least for a quarter of the keys. All keys were called before, and are called in
//! an order that no cache likes; a turn goes on where the last one ended. Nanoseconds are those of a
//! call on each thread, in the median of the rounds: of processor time with one thread, of real time
//! with two. They hold for one machine and one moment. The ratio is what to read: the median of the
//! rounds' ratios, ours to the other.
//! `±` is half the distance between their quartiles. `allocs` are allocations of one of our calls.
//! They are counted while the clock runs, which costs about a nanosecond each. Futures are polled
//! where they are made, once and with a waker that does nothing: no executor takes part.
//!
//! **Rows.**
//!
//! - `annotated`, `two-rules`: an annotated function with one rule, or with two.
//! - `acquire`, `acquire_n`, `acquire_all`: methods of `Limiter`; the permit is made and dropped.
//!   `acquire_n` has a cost of 2, and is compared with `check_key_n`. `acquire_all` has two rules.
//! - `admitted`: no limit is reached. `refused`: each key has spent its limit of 1 an hour.
//! - The limiter is the installed one. `rules-file`: a rules file sets the count of the rule.
//!   `namespace`: it has one. `own-limiter`: it is not installed.
//! - `governor`: `check_key` of its keyed limiter with default settings. It has one algorithm, and
//!   all of ours are compared with that. `governor-numbers`: it also tells what is left, by its
//!   middleware, or the wait until a retry, and both results are read. `two-governors`: one call of
//!   each of two such limiters. `one-rule`: our own call with one rule. `own-log`: a map of logs of
//!   times, as a user would write it. `semaphores`: a map of tokio's semaphores.
//! - `bytes`: all that is allocated for a key, empty slots included, at 900,000 keys and at the
//!   worst number of keys between that and 2,000,000.
//!
//! An admitted call of a `LeakyBucket` sleeps if its key was called within the same millisecond, so it has rows of
//! 900,000 keys only. In admitted rows, our tables of `LeakyBucket` and `Concurrent` have few counters: an empty queue
//! and a place that was given back need not be stored. In all other rows, both contenders store all keys.
//!
//! Beside a contender that is many times slower, such as `limitador`, our turns are short.
//!
//! **Wanted.** `Case::wanted` has the numbers. A rules file may double the time of a call. A refusal
//! has to do without allocations, too.
//!
//! **Instructions.** `--once CALLS WORDS` makes so many calls of the first row that has the words.
//! Without other words it has 1,000 integers as keys. With the word `other` it calls the row's
//! other contender. Instructions do not depend on what else the machine does:
//!
//! ```sh
//! valgrind --tool=callgrind --toggle-collect='*visit_keys*' --callgrind-out-file=/tmp/calls \
//!     target/release/memory --once 20000 acquire TokenBucket   # `Collected` divided by 20,000
//! callgrind_annotate /tmp/calls | head -60
//! ```

mod cases;
mod ours;
mod peers;
mod turns;

use std::{
    env, fmt,
    io::{self, Write as _},
    ops::Range,
    process::{self, Command, Stdio},
    time::Duration,
};

use cases::{Case, LARGEST, MANY, Way};
use ours::{fill, limiter, ours};
use peers::other;
use turns::{Effort, Figures, Integers, Keys, Run, Texts, float};

const HEADER: &str = "\
Nanoseconds of a call on each thread, or bytes of a key: ours, the other's, and the median of the rounds' ratios.
Both take turns in one process, with all keys called before. ±: half the distance between the quartiles of the ratios.
allocs: allocations of one of our calls. wanted: the largest ratio, or the most bytes; and no allocation in a refusal.
";

const QUICK: Effort = Effort { rounds: 5, turn: Duration::from_millis(3) };
const FULL: Effort = Effort { rounds: 15, turn: Duration::from_millis(6) };

fn main() {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let effort = if words.contains(&"--quick") { QUICK } else { FULL };
    match words[..] {
        ["--once", calls, ref words @ ..] => once(calls.parse().expect("a number of calls"), words),
        ["--case", at, kinds, ..] => measure(&Case::all()[at.parse::<usize>().expect("a case")], kinds, effort),
        _ => table(&words),
    }
}

/// Measures each row that has the words, and prints all of them.
fn table(words: &[&str]) {
    let (options, words): (Vec<&str>, Vec<&str>) = words.iter().partition(|word| word.starts_with("--"));
    let chosen: Vec<(usize, Case, Vec<&str>)> = Case::all()
        .into_iter()
        .enumerate()
        .map(|(at, case)| (at, case, case.kinds().into_iter().filter(|kind| case.has_words(kind, &words)).collect()))
        .filter(|(_, _, kinds): &(_, _, Vec<_>)| !kinds.is_empty())
        .collect();
    if chosen.is_empty() || options.iter().any(|option| *option != "--quick") {
        eprintln!("no row has each of {words:?}, or an option other than --quick is among {options:?}");
        process::exit(2);
    }
    println!("{HEADER}");
    let [mut missed, mut others] = [const { Vec::new() }; 2];
    for (done, (at, case, kinds)) in chosen.iter().enumerate() {
        eprint!("\r{done} of {} ", chosen.len());
        let mut command = Command::new(env::current_exe().expect("the path of this program"));
        command.args(["--case", &at.to_string(), &kinds.join(" ")]).args(&options).stderr(Stdio::inherit());
        let output = command.output().expect("cannot start a process");
        let output = String::from_utf8_lossy(&output.stdout);
        let mut lines = output.lines();
        for kind in kinds {
            let figures = lines.next().and_then(Figures::from_line);
            let figures = figures.unwrap_or_else(|| panic!("no figures of row {} {kind}", case.title()));
            let row = Row { case: *case, kind, figures };
            if row.holds() { others.push(row) } else { missed.push(row) }
        }
    }
    eprint!("\r                \r");
    missed.sort_by(|one: &Row, other: &Row| other.loss().partial_cmp(&one.loss()).expect("numbers"));
    let wanted = others.iter().filter(|row| row.loss().is_some()).count();
    for (title, rows) in [("missed", &missed), ("held, or nothing is wanted", &others)] {
        println!(
            "{title:<60}{:<9}{:>11}{:>11}{:>10}{:>10}{:>7}{:>7}{:>8}{:>8}",
            "", "keys", "", "ours", "other", "ratio", "±", "allocs", "wanted"
        );
        for row in rows {
            println!("{row}");
        }
        println!();
    }
    println!("{wanted} of {} rows hold what is wanted", wanted + missed.len());
    let is_unsure = |row: &&Row| row.figures.scatter > row.figures.ratio / 10.0;
    let unsure = missed.iter().chain(&others).filter(is_unsure).count();
    if unsure > 0 {
        println!("{unsure} rows scatter by more than a tenth: repeat those while the machine is quiet");
    }
}

/// A line of the table.
struct Row {
    case: Case,
    kind: &'static str,
    figures: Figures,
}

impl Row {
    /// The measured ratio as a part of the wanted one. Above 1 is a loss.
    fn loss(&self) -> Option<f64> {
        let measured = if self.case.way == Way::Size { self.figures.ours } else { self.figures.ratio };
        self.case.wanted().map(|wanted| measured / wanted)
    }

    fn holds(&self) -> bool {
        let Figures { allocations, wrong: [wrong, _], .. } = self.figures;
        let is_right = wrong == 0.0 && (allocations == 0.0 || !self.case.refused);
        self.loss().is_none_or(|loss| is_right && loss <= 1.0)
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { case, kind, figures } = self;
        let Figures { ours, other, ratio, scatter, allocations, wrong } = figures;
        write!(f, "{:<60}{:<9}{:>11}{kind:>11}", case.title(), case.key_type(), case.count())?;
        write!(f, "{ours:>10.1}{other:>10.1}{ratio:>7.2}{scatter:>7.2}{allocations:>8}")?;
        match case.wanted() {
            Some(wanted) => write!(f, "{wanted:>8}")?,
            None => write!(f, "{:>8}", "")?,
        }
        for (whose, wrong) in ["ours", "other"].iter().zip(wrong) {
            if *wrong > 0.0 {
                write!(f, "  {whose}: {:.1} % of the calls had the wrong result", wrong * 100.0)?;
            }
        }
        Ok(())
    }
}

/// Prints the figures of a case, one line for each of its rows.
fn measure(case: &Case, kinds: &str, effort: Effort) {
    let kinds = case.kinds().into_iter().zip([1, 2]).filter(|(kind, _)| kinds.split(' ').any(|chosen| chosen == *kind));
    let figures: Vec<Figures> = if case.way == Way::Size {
        let sizes = if case.text { sizes(case, &Texts::new(LARGEST)) } else { sizes(case, &Integers) };
        kinds.map(|(_, threads)| sizes[usize::from(threads == 2)]).collect()
    } else {
        let contenders = contenders(case);
        kinds.map(|(_, threads)| Figures::of(&contenders, case.keys, threads, effort, case.refused)).collect()
    };
    for figures in figures {
        println!("{}", figures.to_line());
    }
    io::stdout().flush().expect("a pipe");
    process::exit(0); // to free a million keys takes as long as to store them
}

fn contenders(case: &Case) -> [Run; 2] {
    fn of<K: Keys<Key: 'static> + 'static>(case: &Case, keys: K) -> [Run; 2] {
        let (limiter, keys) = (limiter(case), &*Box::leak(Box::new(keys)));
        fill(case, limiter, keys, 0..case.keys);
        [ours(case, limiter, keys), other(case, limiter, keys)]
    }
    if case.text { of(case, Texts::new(case.keys)) } else { of(case, Integers) }
}

/// Bytes of a key, at [`MANY`] of them and at the number where they are the most.
fn sizes<K: Keys<Key: 'static>>(case: &Case, keys: &K) -> [Figures; 2] {
    fn bytes(mut store: impl FnMut(Range<u64>)) -> [f64; 2] {
        const STEP: usize = 25_000;
        let (mut from, mut allocated, mut sizes) = (0, 0, Vec::new());
        for to in (MANY..=LARGEST).step_by(STEP) {
            allocated += allocation_counter::measure(|| store(from..to)).bytes_current;
            sizes.push(float(u64::try_from(allocated).expect("more is allocated than freed")) / float(to));
            from = to;
        }
        [sizes[0], sizes.iter().copied().fold(0.0, f64::max)]
    }
    let (mut ours, mut governor) = (None, None);
    let ours = bytes(|range| fill(case, ours.get_or_insert_with(|| limiter(case)), keys, range));
    let other = bytes(|range| {
        let governor = governor.get_or_insert_with(|| peers::governor::<K>(true));
        range.for_each(|index| assert!(keys.with(index, |key| governor.check_key(key)).is_ok()));
    });
    [0, 1].map(|at| Figures::of_size(ours[at], other[at]))
}

fn once(calls: u64, words: &[&str]) {
    let (others, words): (Vec<&str>, Vec<&str>) = words.iter().partition(|word| **word == "other");
    let cases = Case::all().into_iter().filter(|case| case.way != Way::Size && case.has_words("1-thread", &words));
    let case =
        cases.min_by_key(|case| (case.keys != 1_000, case.text)).unwrap_or_else(|| panic!("no row has {words:?}"));
    let lap = contenders(&case)[others.len()](calls, 1);
    println!("{}: {} of {calls} admitted in {:?}", case.title(), lap.admitted, lap.time);
}
